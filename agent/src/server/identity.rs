//! The serving certificate: given, or made by ourselves once and kept in the certificate folder.

use std::path::Path;
use std::sync::Arc;

use service::any_certificate::AnyClient;

use super::{ServerDeps, ServerError};
use crate::config::TlsOffer;
use crate::state_file;

/// TLS settings of port 10250; client certificates are asked for but not required.
pub(super) fn server_config(deps: &ServerDeps) -> Result<Arc<rustls::ServerConfig>, ServerError> {
    let refuse = |e: &dyn std::fmt::Display| ServerError::Certificate(e.to_string());
    if !deps.config.server_tls_bootstrap {
        let (certificate, key) = identity(deps)?;
        deps.serving.set(&certificate, &key).map_err(|e| refuse(&e))?;
    }
    let offer = TlsOffer::of(&deps.config);
    for missing in &offer.missing {
        tracing::warn!("port {} does not offer {missing}", deps.config.port);
    }
    let builder = rustls::ServerConfig::builder_with_provider(offer.provider.clone())
        .with_protocol_versions(offer.versions)
        .map_err(|e| refuse(&e))?;
    let builder = if deps.config.authentication.x509.client_ca_file.as_os_str().is_empty() {
        builder.with_no_client_auth()
    } else {
        builder.with_client_cert_verifier(AnyClient::new(offer.provider))
    };
    let mut config = builder.with_cert_resolver(deps.serving.clone());
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(Arc::new(config))
}

fn identity(deps: &ServerDeps) -> Result<(Vec<u8>, Vec<u8>), ServerError> {
    let config = &deps.config;
    let read = |path: &Path| {
        std::fs::read(path).map_err(|e| ServerError::Certificate(format!("cannot read {}: {e}", path.display())))
    };
    if !config.tls_cert_file.as_os_str().is_empty() && !config.tls_private_key_file.as_os_str().is_empty() {
        return Ok((read(&config.tls_cert_file)?, read(&config.tls_private_key_file)?));
    }
    let folder = &deps.flags.cert_dir;
    let (certificate, key) = (folder.join("kubelet.crt"), folder.join("kubelet.key"));
    if !certificate.exists() || !key.exists() {
        let made = self_signed(deps)?;
        let bad = |e: std::io::Error| ServerError::Certificate(format!("cannot write to {}: {e}", folder.display()));
        std::fs::create_dir_all(folder).map_err(bad)?;
        state_file::write_as(&certificate, made.0.as_bytes(), 0o644).map_err(bad)?;
        state_file::write(&key, made.1.as_bytes()).map_err(bad)?;
    }
    Ok((read(&certificate)?, read(&key)?))
}

fn self_signed(deps: &ServerDeps) -> Result<(String, String), ServerError> {
    let refuse = |e: rcgen::Error| ServerError::Certificate(e.to_string());
    let mut names = vec![deps.node.clone(), "localhost".to_owned()];
    names.extend(deps.addresses.iter().map(ToString::to_string));
    let made = rcgen::generate_simple_self_signed(names).map_err(refuse)?;
    Ok((made.cert.pem(), made.signing_key.serialize_pem()))
}
