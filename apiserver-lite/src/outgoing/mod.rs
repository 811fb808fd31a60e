//! Connections that the server opens to others by URL: webhooks, and the servers of aggregated APIs.
//!
//! A [`Dialer`] is one such server: its address, how its certificate is checked, and what it is shown. Connections are
//! HTTP/1.1; [`Client`] keeps a few idle ones for small JSON questions, everything else opens its own.

mod client;
pub mod exec;
mod kubeconfig;

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use hyper::body::Body;
use hyper::client::conn::http1::{self, SendRequest};
use hyper_util::rt::TokioIo;
use rustls::ClientConfig;
use rustls::client::danger::ServerCertVerifier;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls_pki_types::pem::PemObject as _;
use service::any_certificate::AnyCertificate;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

pub use client::{Answer, Client, KnownBy};

/// Time to connect, handshake included.
const PATIENCE: Duration = Duration::from_secs(10);

/// Why a server was not reached. Trying again may help, except after `Settings`.
#[derive(Debug, thiserror::Error)]
pub enum OutgoingError {
    #[error("dial tcp {address}: {}", dial_words(.reason))]
    Dial { address: String, reason: std::io::Error },
    #[error("{}", crate::admission::handshake_words(.0))]
    Tls(std::io::Error),
    #[error("context deadline exceeded")]
    Timeout,
    #[error("{0}")]
    Http(#[from] hyper::Error),
    /// What the operator or a client wrote is of no use.
    #[error("{0}")]
    Settings(String),
}

/// Why a connection could not be made, in Go's words.
pub fn dial_words(error: &std::io::Error) -> String {
    let why = match error.kind() {
        std::io::ErrorKind::ConnectionRefused => "connection refused".to_owned(),
        std::io::ErrorKind::HostUnreachable => "no route to host".to_owned(),
        std::io::ErrorKind::NetworkUnreachable => "network is unreachable".to_owned(),
        std::io::ErrorKind::TimedOut => return "i/o timeout".into(),
        _ => error.to_string(),
    };
    format!("connect: {why}")
}

/// Whose certificates the other side may show.
#[derive(Debug, Clone)]
pub enum Trust {
    /// Those of the machine's own list.
    System,
    Certificates(Vec<CertificateDer<'static>>),
    Anything,
}

/// A certificate with its chain, and its key.
pub type Identity = (Vec<CertificateDer<'static>>, PrivateKeyDer<'static>);

/// Where programs of other makers look for the machine's list of authorities.
const SYSTEM_LISTS: [&str; 5] = [
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem",
    "/etc/ssl/cert.pem",
];

/// The client's side of TLS.
///
/// # Errors
/// When there is nothing to check against, or the key does not fit its certificate.
pub fn tls(trust: Trust, identity: Option<Identity>) -> Result<TlsConnector, OutgoingError> {
    let wrong = |e: rustls::Error| OutgoingError::Settings(e.to_string());
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions().map_err(wrong)?;
    let builder = match trust {
        Trust::Anything => builder.dangerous().with_custom_certificate_verifier(Arc::new(AnyCertificate)),
        Trust::Certificates(certificates) => {
            builder.dangerous().with_custom_certificate_verifier(verifier(certificates)?)
        }
        Trust::System => {
            let list = SYSTEM_LISTS.iter().find(|path| Path::new(path).exists());
            let list = list.ok_or_else(|| OutgoingError::Settings("this machine has no list of authorities".into()))?;
            builder.dangerous().with_custom_certificate_verifier(verifier(certificates(Path::new(list))?)?)
        }
    };
    let config = match identity {
        Some((chain, key)) => builder.with_client_auth_cert(chain, key).map_err(wrong)?,
        None => builder.with_no_client_auth(),
    };
    Ok(TlsConnector::from(Arc::new(config)))
}

fn verifier(trusted: Vec<CertificateDer<'static>>) -> Result<Arc<dyn ServerCertVerifier>, OutgoingError> {
    let none = || OutgoingError::Settings("unable to load root certificates: no certificate found".into());
    crate::admission::verifier(trusted).ok_or_else(none)
}

/// Every certificate of a PEM file.
///
/// # Errors
/// When it cannot be read.
pub fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, OutgoingError> {
    let read = CertificateDer::pem_file_iter(path).and_then(Iterator::collect);
    read.map_err(|e| OutgoingError::Settings(format!("{}: {e}", path.display())))
}

/// Every certificate of a PEM text.
///
/// # Errors
/// When it is none.
pub fn certificates_of(pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, OutgoingError> {
    let read: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
    read.map_err(|e| OutgoingError::Settings(e.to_string()))
}

/// A certificate and its key from PEM files.
///
/// # Errors
/// When either cannot be read.
pub fn identity(certificate: &Path, key: &Path) -> Result<Identity, OutgoingError> {
    let read = PrivateKeyDer::from_pem_file(key);
    Ok((certificates(certificate)?, read.map_err(|e| OutgoingError::Settings(format!("{}: {e}", key.display())))?))
}

/// One server.
#[derive(Clone)]
pub struct Dialer {
    /// Name or address to connect to.
    pub host: String,
    pub port: u16,
    /// None for plain HTTP.
    pub tls: Option<TlsConnector>,
    /// The name that its certificate has to be for.
    pub name: String,
}

impl Dialer {
    /// Opens a connection. The caller keeps it alive by keeping what is returned.
    ///
    /// # Errors
    /// When nobody answers in time, or somebody else does.
    pub async fn connect<B>(&self) -> Result<SendRequest<B>, OutgoingError>
    where
        B: Body + Send + 'static,
        B::Data: Send,
        B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        tokio::time::timeout(PATIENCE, self.open()).await.map_err(|_| OutgoingError::Timeout)?
    }

    async fn open<B>(&self) -> Result<SendRequest<B>, OutgoingError>
    where
        B: Body + Send + 'static,
        B::Data: Send,
        B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        let tcp = TcpStream::connect((self.host.as_str(), self.port))
            .await
            .map_err(|reason| OutgoingError::Dial { address: format!("{}:{}", self.host, self.port), reason })?;
        // Questions are small; waiting for more of them would only delay the answer.
        let _ = tcp.set_nodelay(true);
        let Some(tls) = &self.tls else { return handshake(tcp).await };
        let name = ServerName::try_from(self.name.clone())
            .map_err(|e| OutgoingError::Settings(format!("{:?} is no server name: {e}", self.name)))?;
        handshake(tls.connect(name, tcp).await.map_err(OutgoingError::Tls)?).await
    }

    /// What requests carry as `Host`.
    pub fn authority(&self) -> String {
        if self.name.contains(':') {
            format!("[{}]:{}", self.name, self.port)
        } else {
            format!("{}:{}", self.name, self.port)
        }
    }
}

async fn handshake<T, B>(io: T) -> Result<SendRequest<B>, OutgoingError>
where
    T: tokio::io::AsyncRead + tokio::io::AsyncWrite + Send + Unpin + 'static,
    B: Body + Send + 'static,
    B::Data: Send,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    let (sender, connection) = http1::handshake(TokioIo::new(io)).await?;
    tokio::spawn(async move {
        if let Err(error) = connection.with_upgrades().await {
            tracing::debug!(%error, "an outgoing connection ended");
        }
    });
    Ok(sender)
}
