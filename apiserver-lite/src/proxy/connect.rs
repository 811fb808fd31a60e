//! Connections to kubelets and other backends.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use hyper::client::conn::http1::{self, SendRequest};
use hyper_util::rt::TokioIo;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use rustls_pki_types::pem::PemObject as _;
use service::any_certificate::AnyCertificate;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use super::{Scheme, Target};
use crate::server::RequestBody;
use crate::status::{ApiError, Result};

const PATIENCE: Duration = Duration::from_secs(10);

/// Why the settings for connections to kubelets are of no use. The operator has to correct them.
#[derive(Debug, thiserror::Error)]
pub enum KubeletClientError {
    #[error("--{flag} {}: {reason}", path.display())]
    File { flag: &'static str, path: PathBuf, reason: String },
    #[error(transparent)]
    Tls(#[from] rustls::Error),
}

/// How kubelets are reached.
pub struct KubeletClient {
    kubelet: TlsConnector,
    /// For proxies to pods and services: no certificate of ours, theirs not checked, as upstream.
    backend: TlsConnector,
    /// Kinds of node addresses, best first.
    pub address_types: Vec<String>,
}

impl KubeletClient {
    /// # Errors
    /// When a file holds something else.
    pub fn new(
        certificate: &std::path::Path,
        key: &std::path::Path,
        authority: Option<&std::path::Path>,
        address_types: Vec<String>,
    ) -> Result<Self, KubeletClientError> {
        let wrong =
            |flag, path: &std::path::Path, reason: String| KubeletClientError::File { flag, path: path.into(), reason };
        let chain = CertificateDer::pem_file_iter(certificate)
            .and_then(|all| all.collect::<Result<Vec<_>, _>>())
            .map_err(|e| wrong("kubelet-client-certificate", certificate, e.to_string()))?;
        let private = PrivateKeyDer::from_pem_file(key).map_err(|e| wrong("kubelet-client-key", key, e.to_string()))?;
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = || ClientConfig::builder_with_provider(provider.clone()).with_safe_default_protocol_versions();
        let unchecked = || AnyCertificate::new(provider.clone());
        let kubelet = match authority {
            Some(path) => {
                let mut roots = RootCertStore::empty();
                let all = CertificateDer::pem_file_iter(path)
                    .and_then(|all| all.collect::<Result<Vec<_>, _>>())
                    .map_err(|e| wrong("kubelet-certificate-authority", path, e.to_string()))?;
                if roots.add_parsable_certificates(all).0 == 0 {
                    return Err(wrong("kubelet-certificate-authority", path, "holds no certificate".into()));
                }
                builder()?.with_root_certificates(roots)
            }
            None => builder()?.dangerous().with_custom_certificate_verifier(unchecked()),
        };
        let kubelet = kubelet
            .with_client_auth_cert(chain, private)
            .map_err(|e| wrong("kubelet-client-certificate", certificate, e.to_string()))?;
        let backend = builder()?.dangerous().with_custom_certificate_verifier(unchecked()).with_no_client_auth();
        Ok(KubeletClient {
            kubelet: TlsConnector::from(Arc::new(kubelet)),
            backend: TlsConnector::from(Arc::new(backend)),
            address_types,
        })
    }

    pub(super) async fn connect(&self, target: &Target) -> Result<SendRequest<RequestBody>> {
        let tcp = match tokio::time::timeout(PATIENCE, dial(target)).await {
            Ok(Ok(tcp)) => tcp,
            Ok(Err(error)) => return Err(unreachable(target, &error)),
            Err(_) => return Err(unreachable(target, &"i/o timeout")),
        };
        // Keystrokes of a terminal go out one by one.
        let _ = tcp.set_nodelay(true);
        if target.scheme == Scheme::Http {
            return handshake(tcp, target).await;
        }
        let name = ServerName::try_from(target.host.clone()).map_err(|e| unreachable(target, &e))?;
        let connector = if target.to_kubelet { &self.kubelet } else { &self.backend };
        match tokio::time::timeout(PATIENCE, connector.connect(name, tcp)).await {
            Ok(Ok(tls)) => handshake(tls, target).await,
            Ok(Err(error)) => Err(unreachable(target, &error)),
            Err(_) => Err(unreachable(target, &"TLS handshake timeout")),
        }
    }
}

/// Opens a connection. In a small cluster nobody may have told the names of nodes to a name server: a name that does not
/// resolve gives way to the node's next address. A refused connection does not, since the right machine refused it.
async fn dial(target: &Target) -> std::io::Result<TcpStream> {
    let mut unknown = None;
    for host in std::iter::once(&target.host).chain(&target.others) {
        match tokio::net::lookup_host((host.as_str(), target.port)).await {
            Ok(addresses) => return TcpStream::connect(addresses.collect::<Vec<_>>().as_slice()).await,
            Err(error) => unknown = unknown.or(Some(error)),
        }
    }
    Err(unknown.unwrap_or_else(|| std::io::ErrorKind::NotFound.into()))
}

async fn handshake<T>(io: T, target: &Target) -> Result<SendRequest<RequestBody>>
where
    T: tokio::io::AsyncRead + tokio::io::AsyncWrite + Send + Unpin + 'static,
{
    let (sender, connection) = http1::handshake(TokioIo::new(io)).await.map_err(|e| unreachable(target, &e))?;
    tokio::spawn(async move {
        if let Err(error) = connection.with_upgrades().await {
            tracing::debug!(%error, "a proxied connection ended");
        }
    });
    Ok(sender)
}

/// The other side does not answer: a plain 500 for kubelets, 503 for backends, as upstream.
pub(super) fn unreachable(target: &Target, error: &dyn std::fmt::Display) -> ApiError {
    let scheme = if target.scheme == Scheme::Https { "https" } else { "http" };
    if target.to_kubelet {
        let text = format!("Get \"{scheme}://{}:{}{}\": {error}", target.host, target.port, target.path);
        return ApiError::new(500, "", text);
    }
    ApiError::service_unavailable(format!("error trying to reach service: {error}"))
}
