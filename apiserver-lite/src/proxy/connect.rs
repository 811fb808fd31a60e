//! Connections to kubelets and other backends.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
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

/// The files that connections to kubelets are made with.
#[derive(Debug, Clone)]
pub struct KubeletFiles {
    pub certificate: PathBuf,
    pub key: PathBuf,
    /// Whose serving certificates are believed; None for anybody's.
    pub authority: Option<PathBuf>,
}

/// How kubelets are reached.
pub struct KubeletClient {
    files: KubeletFiles,
    /// May change while the server runs.
    kubelet: ArcSwap<KubeletTls>,
    /// For proxies to pods and services: no certificate of ours, theirs not checked, as upstream.
    backend: TlsConnector,
    /// Kinds of node addresses, best first.
    pub address_types: Vec<String>,
}

/// Our side of TLS with kubelets.
struct KubeletTls {
    checked: Arc<ClientConfig>,
    /// The same with whatever certificate a kubelet shows.
    unchecked: Arc<ClientConfig>,
}

impl KubeletTls {
    fn connector(&self, target: &Target) -> TlsConnector {
        let config = if target.unverified { &self.unchecked } else { &self.checked };
        TlsConnector::from(config.clone())
    }
}

impl KubeletClient {
    /// # Errors
    /// When a file holds something else.
    pub fn new(files: KubeletFiles, address_types: Vec<String>) -> Result<Self, KubeletClientError> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions()?;
        let unchecked = builder.dangerous().with_custom_certificate_verifier(Arc::new(AnyCertificate));
        Ok(KubeletClient {
            kubelet: ArcSwap::from_pointee(files.read()?),
            files,
            backend: TlsConnector::from(Arc::new(unchecked.with_no_client_auth())),
            address_types,
        })
    }

    /// Takes up what the files hold now.
    ///
    /// # Errors
    /// When a file holds something else; then what was read before stays.
    pub fn read_again(&self) -> Result<(), KubeletClientError> {
        self.files.read().map(|read| self.kubelet.store(Arc::new(read)))
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
        let connector = match target.to_kubelet {
            true => self.kubelet.load().connector(target),
            false => self.backend.clone(),
        };
        match tokio::time::timeout(PATIENCE, connector.connect(name, tcp)).await {
            Ok(Ok(tls)) => handshake(tls, target).await,
            Ok(Err(error)) => Err(unreachable(target, &error)),
            Err(_) => Err(unreachable(target, &"TLS handshake timeout")),
        }
    }
}

impl KubeletFiles {
    fn read(&self) -> Result<KubeletTls, KubeletClientError> {
        let wrong = |flag, path: &Path, reason: String| KubeletClientError::File { flag, path: path.into(), reason };
        let all = |flag, path: &Path| {
            CertificateDer::pem_file_iter(path)
                .and_then(|all| all.collect::<Result<Vec<_>, _>>())
                .map_err(|e| wrong(flag, path, e.to_string()))
        };
        let chain = all("kubelet-client-certificate", &self.certificate)?;
        let private = PrivateKeyDer::from_pem_file(&self.key)
            .map_err(|e| wrong("kubelet-client-key", &self.key, e.to_string()))?;
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions()?;
        let useless = |e: rustls::Error| wrong("kubelet-client-certificate", &self.certificate, e.to_string());
        let anybody = builder.clone().dangerous().with_custom_certificate_verifier(Arc::new(AnyCertificate));
        let unchecked = anybody.with_client_auth_cert(chain.clone(), private.clone_key());
        let unchecked = unchecked.map(Arc::new).map_err(useless)?;
        let Some(path) = &self.authority else {
            return Ok(KubeletTls { checked: unchecked.clone(), unchecked });
        };
        let mut roots = RootCertStore::empty();
        if roots.add_parsable_certificates(all("kubelet-certificate-authority", path)?).0 == 0 {
            return Err(wrong("kubelet-certificate-authority", path, "holds no certificate".into()));
        }
        let checked = builder.with_root_certificates(roots).with_client_auth_cert(chain, private);
        Ok(KubeletTls { checked: checked.map(Arc::new).map_err(useless)?, unchecked })
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

#[cfg(test)]
mod tests {
    use std::net::{IpAddr, Ipv4Addr};

    use super::*;
    use crate::pki::{Leaf, Pki};

    /// Takes connections as a kubelet whose certificate is of an authority of its own.
    async fn kubelet(certificate: &str, key: &str) -> u16 {
        let chain = CertificateDer::pem_slice_iter(certificate.as_bytes()).collect::<Result<Vec<_>, _>>().expect("PEM");
        let key = PrivateKeyDer::from_pem_slice(key.as_bytes()).expect("PEM");
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = rustls::ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
        let config = config.expect("versions").with_no_client_auth().with_single_cert(chain, key).expect("a pair");
        let acceptor = tokio_rustls::TlsAcceptor::from(Arc::new(config));
        let listener = tokio::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.expect("a port");
        let port = listener.local_addr().expect("an address").port();
        tokio::spawn(async move {
            let mut open = Vec::new();
            while let Ok((tcp, _)) = listener.accept().await {
                open.extend(acceptor.accept(tcp).await);
            }
        });
        port
    }

    /// Who asked for the log of a kubelet without a look at its certificate was refused like everybody else.
    #[tokio::test]
    async fn a_kubelet_is_believed_whatever_it_shows_where_the_client_wants_it_so() {
        let folder = |name: &str| std::env::temp_dir().join(format!("kubelets-{name}-{}", crate::random::uuid()));
        let (ours, theirs) = (folder("ours"), folder("theirs"));
        let local = [IpAddr::V4(Ipv4Addr::LOCALHOST)];
        let pki = Pki::ensure(&ours, &[], &local).expect("keys");
        let other = Pki::ensure(&theirs, &[], &local).expect("keys").authority().expect("an authority");
        let (certificate, key) = other.issue(&Leaf::serving("n", &[], &local)).expect("a certificate");
        let own = pki.pair("apiserver-kubelet-client");
        let authority = Some(pki.pair("ca").certificate);
        let files = KubeletFiles { certificate: own.certificate, key: own.key, authority };
        let client = KubeletClient::new(files, Vec::new()).expect("the files are right");
        let port = kubelet(&certificate, &key).await;
        let target = |unverified: bool| Target {
            host: "127.0.0.1".into(),
            others: Vec::new(),
            port,
            says_port: true,
            scheme: Scheme::Https,
            path: "/containerLogs/n/p/c".into(),
            to_kubelet: true,
            unverified,
        };
        assert!(client.connect(&target(true)).await.is_ok());
        assert!(client.connect(&target(false)).await.is_err(), "it is somebody else's certificate");
        for folder in [ours, theirs] {
            std::fs::remove_dir_all(folder).expect("the folder goes");
        }
    }
}
