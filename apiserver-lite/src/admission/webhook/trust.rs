//! Which certificates webhooks may have.
//!
//! A webhook's configuration brings the authorities; without any the machine's count. People also put the webhook's own
//! certificate there: it is trusted when it is the very one, made for the name, and in force. Who vouches for the others is
//! found out as Go does (`go_x509`).

use std::sync::{Arc, OnceLock};

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::CryptoProvider;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::{
    AlertDescription, CertificateError, ClientConfig, DigitallySignedStruct, Error, InvalidMessage, OtherError,
    SignatureScheme,
};
use rustls_pki_types::pem::PemObject as _;
use tokio_rustls::TlsConnector;

use crate::go_x509::{Trusted, Usage};
use crate::outgoing::Identity;

/// Where systems keep the authorities that they trust; the first file that is there counts.
const SYSTEM: [&str; 4] = [
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem",
];

fn system() -> &'static [CertificateDer<'static>] {
    static FOUND: OnceLock<Vec<CertificateDer<'static>>> = OnceLock::new();
    FOUND.get_or_init(|| {
        let text = SYSTEM.iter().find_map(|path| std::fs::read(path).ok()).unwrap_or_default();
        CertificateDer::pem_slice_iter(&text).filter_map(Result::ok).collect()
    })
}

/// A connector that trusts a bundle in PEM, or the machine's authorities where it is empty, and shows a certificate if it
/// has one.
///
/// # Errors
/// A bundle without certificates, or a key that does not fit its certificate.
pub fn connector(bundle: &[u8], identity: Option<Identity>) -> Result<TlsConnector, String> {
    let trusted = match bundle.is_empty() {
        true => system().to_vec(),
        false => CertificateDer::pem_slice_iter(bundle).filter_map(Result::ok).collect(),
    };
    let verifier = verifier(trusted).ok_or("unable to load root certificates: unable to parse bytes as PEM block")?;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|e| e.to_string())?
        .dangerous()
        .with_custom_certificate_verifier(verifier);
    let config = match identity {
        Some((chain, key)) => config.with_client_auth_cert(chain, key).map_err(|e| e.to_string())?,
        None => config.with_no_client_auth(),
    };
    Ok(TlsConnector::from(Arc::new(config)))
}

/// Checks servers as Go does, by certificates that are trusted; None where none of them can be read.
pub fn verifier(trusted: Vec<CertificateDer<'static>>) -> Option<Arc<dyn ServerCertVerifier>> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    Some(Arc::new(Verifier { trusted: Trusted::new(trusted)?, provider }))
}

#[derive(Debug)]
struct Verifier {
    trusted: Trusted,
    provider: Arc<CryptoProvider>,
}

impl ServerCertVerifier for Verifier {
    fn verify_server_cert(
        &self,
        certificate: &CertificateDer<'_>,
        chain: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        _: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let seconds = i64::try_from(now.as_secs()).unwrap_or(i64::MAX);
        if let Some(why) = super::certificate::complaint(certificate, &name.to_str(), seconds) {
            return Err(unfit(why));
        }
        rustls::client::verify_server_name(&ParsedCertificate::try_from(certificate)?, name)?;
        self.trusted.verify(certificate, chain, Usage::Server, now).map_err(unfit)?;
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let known = &self.provider.signature_verification_algorithms;
        rustls::crypto::verify_tls12_signature(message, certificate, signed, known)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let known = &self.provider.signature_verification_algorithms;
        rustls::crypto::verify_tls13_signature(message, certificate, signed, known)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}

/// What is wrong with a certificate, in Go's words.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct Unfit(String);

fn unfit(why: String) -> Error {
    CertificateError::Other(OtherError(Arc::new(Unfit(why)))).into()
}

/// Alerts whose names Go spells in another way than their numbers' registry.
fn alert(description: AlertDescription) -> &'static str {
    match description {
        AlertDescription::UnexpectedMessage => "unexpected message",
        AlertDescription::BadRecordMac => "bad record MAC",
        AlertDescription::RecordOverflow => "record overflow",
        AlertDescription::HandshakeFailure => "handshake failure",
        AlertDescription::BadCertificate => "bad certificate",
        AlertDescription::UnsupportedCertificate => "unsupported certificate",
        AlertDescription::CertificateRevoked => "revoked certificate",
        AlertDescription::CertificateExpired => "expired certificate",
        AlertDescription::CertificateUnknown => "unknown certificate",
        AlertDescription::IllegalParameter => "illegal parameter",
        AlertDescription::UnknownCA => "unknown certificate authority",
        AlertDescription::AccessDenied => "access denied",
        AlertDescription::DecodeError => "error decoding message",
        AlertDescription::DecryptError => "error decrypting message",
        AlertDescription::ProtocolVersion => "protocol version not supported",
        AlertDescription::InsufficientSecurity => "insufficient security level",
        AlertDescription::InternalError => "internal error",
        AlertDescription::UserCanceled => "user canceled",
        AlertDescription::MissingExtension => "missing extension",
        AlertDescription::UnsupportedExtension => "unsupported extension",
        AlertDescription::UnrecognisedName => "unrecognized name",
        AlertDescription::CertificateRequired => "certificate required",
        AlertDescription::NoApplicationProtocol => "no application protocol",
        _ => "unknown alert",
    }
}

/// A failed handshake in the words that people search for.
pub fn explain(error: &std::io::Error) -> String {
    let Some(inner) = error.get_ref().and_then(|inner| inner.downcast_ref::<Error>()) else {
        return match error.kind() {
            std::io::ErrorKind::UnexpectedEof => "EOF".into(),
            std::io::ErrorKind::ConnectionReset => "read: connection reset by peer".into(),
            _ => error.to_string(),
        };
    };
    match inner {
        Error::InvalidCertificate(CertificateError::Other(OtherError(told))) => {
            format!("tls: failed to verify certificate: {told}")
        }
        Error::InvalidCertificate(other) => format!("tls: failed to verify certificate: x509: {other}"),
        Error::AlertReceived(description) => format!("remote error: tls: {}", alert(*description)),
        // A server that was sent a handshake and answers in letters.
        Error::InvalidMessage(InvalidMessage::InvalidContentType) => {
            "http: server gave HTTP response to HTTPS client".into()
        }
        other => format!("tls: {other}"),
    }
}
