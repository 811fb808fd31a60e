//! TLS towards the API server: trust, client certificate, server name.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use service::any_certificate::AnyCertificate;
use service::own_certificate::OwnCertificate;

/// Why the certificates or keys cannot be used. The operator's to mend.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    #[error("{0:?} is not the URL of an API server")]
    Server(String),
    #[error("cannot read {path}: {source}")]
    Read { path: PathBuf, source: std::io::Error },
    #[error("the client certificate that was asked for has not come yet")]
    Awaited,
    #[error("no usable certificate in {0}")]
    NoCertificate(String),
    #[error("no usable private key in {0}")]
    NoKey(String),
    #[error(transparent)]
    Rustls(#[from] rustls::Error),
    #[error("{0:?} is no server name")]
    ServerName(String),
}

/// Where Linux distributions keep the public certificate authorities, for kubeconfigs that name none.
const SYSTEM_ROOTS: &[&str] =
    &["/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt", "/etc/ssl/cert.pem"];

/// PEM text given in place or by file; the file is read again for each new connection.
#[derive(Clone, PartialEq, Eq)]
pub(super) enum Pem {
    Data(Vec<u8>),
    File(PathBuf),
}

/// Without what stands in place: it may be a key.
impl std::fmt::Debug for Pem {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Pem::Data(_) => f.debug_tuple("Data").finish_non_exhaustive(),
            Pem::File(path) => f.debug_tuple("File").field(path).finish(),
        }
    }
}

impl Pem {
    pub fn read(&self) -> Result<Vec<u8>, TlsError> {
        match self {
            Pem::Data(data) => Ok(data.clone()),
            Pem::File(path) => std::fs::read(path).map_err(|source| TlsError::Read { path: path.clone(), source }),
        }
    }

    fn source(&self) -> String {
        match self {
            Pem::Data(_) => "the kubeconfig".into(),
            Pem::File(path) => path.display().to_string(),
        }
    }
}

/// Reads certificate authorities from PEM text.
///
/// # Errors
/// When there is no certificate in it; `source` names it in the error.
pub fn trust_roots(pem: &[u8], source: &str) -> Result<RootCertStore, TlsError> {
    let mut roots = RootCertStore::empty();
    let certificates: Vec<_> = CertificateDer::pem_slice_iter(pem).filter_map(Result::ok).collect();
    let (added, _) = roots.add_parsable_certificates(certificates);
    if added == 0 {
        return Err(TlsError::NoCertificate(source.to_owned()));
    }
    Ok(roots)
}

/// A host as TLS names it: DNS name or address.
pub fn server_name(host: &str) -> Result<ServerName<'static>, TlsError> {
    ServerName::try_from(host.to_owned()).map_err(|_| TlsError::ServerName(host.to_owned()))
}

fn system_roots() -> Result<RootCertStore, TlsError> {
    for path in SYSTEM_ROOTS {
        if let Ok(pem) = std::fs::read(path) {
            return trust_roots(&pem, path);
        }
    }
    Err(TlsError::NoCertificate("the system's certificate store".into()))
}

/// Towards servers whose certificates the authorities of the system vouch for; HTTP/1.1.
///
/// # Errors
/// When the system has no store of authorities.
pub fn public_servers() -> Result<ClientConfig, TlsError> {
    let mut config = client_config(None, false, None)?;
    config.alpn_protocols.clear();
    Ok(config)
}

pub(super) fn client_config(
    authority: Option<&Pem>,
    insecure: bool,
    identity: Option<(&Pem, &Pem)>,
) -> Result<ClientConfig, TlsError> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider.clone()).with_safe_default_protocol_versions()?;
    let builder = match authority {
        // `insecure-skip-tls-verify`: the operator asked for no check of the server.
        _ if insecure => builder.dangerous().with_custom_certificate_verifier(Arc::new(AnyCertificate)),
        Some(pem) => {
            let (pem, source) = (pem.read()?, pem.source());
            let trusted = CertificateDer::pem_slice_iter(&pem).filter_map(Result::ok).collect();
            let verifier = OwnCertificate::new(trust_roots(&pem, &source)?, trusted, provider);
            let verifier = verifier.map_err(|_| TlsError::NoCertificate(source))?;
            builder.dangerous().with_custom_certificate_verifier(verifier)
        }
        None => builder.with_root_certificates(system_roots()?),
    };
    let mut config = match identity {
        None => builder.with_no_client_auth(),
        Some((certificate, key)) => {
            let (chain, key) = read_identity(certificate, key)?;
            builder.with_client_auth_cert(chain, key)?
        }
    };
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    // One server, one session: the default keeps room for 256.
    config.resumption = rustls::client::Resumption::in_memory_sessions(2);
    Ok(config)
}

pub(super) fn read_identity(
    certificate: &Pem,
    key: &Pem,
) -> Result<(Vec<CertificateDer<'static>>, PrivateKeyDer<'static>), TlsError> {
    let pem = certificate.read()?;
    let chain: Vec<_> = CertificateDer::pem_slice_iter(&pem).filter_map(Result::ok).collect();
    if chain.is_empty() {
        return Err(TlsError::NoCertificate(certificate.source()));
    }
    let key = PrivateKeyDer::from_pem_slice(&key.read()?).map_err(|_| TlsError::NoKey(key.source()))?;
    Ok((chain, key))
}

/// A relative path means: beside the file that names it.
pub(super) fn beside(folder: &Path, path: &str) -> PathBuf {
    folder.join(path)
}
