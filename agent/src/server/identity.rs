//! The serving certificate: given, or of the agent's own making.

use std::net::IpAddr;
use std::path::Path;
use std::sync::Arc;

use service::any_certificate::AnyClient;

use super::{ServerDeps, ServerError};
use crate::config::TlsOffer;
use crate::identity::SelfMade;

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
    let made = SelfMade::at(&deps.flags.cert_dir).get(&names(&deps.node, &deps.addresses));
    made.map_err(|e| ServerError::Certificate(e.to_string()))
}

/// What a certificate of the agent's own making is for.
pub fn names(node: &str, addresses: &[IpAddr]) -> Vec<String> {
    let named = [node.to_owned(), "localhost".to_owned()];
    named.into_iter().chain(addresses.iter().map(ToString::to_string)).collect()
}
