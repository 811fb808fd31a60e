//! Which certificates webhooks may have.
//!
//! A webhook's configuration brings the authorities; without any the machine's count. People also put the webhook's own
//! certificate there, which is no authority: it is trusted when it is the very one, made for the name, and in force.

use std::sync::{Arc, OnceLock};

use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::CryptoProvider;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::{CertificateError, ClientConfig, DigitallySignedStruct, Error, RootCertStore, SignatureScheme};
use rustls_pki_types::pem::PemObject as _;
use tokio_rustls::TlsConnector;
use x509_parser::prelude::{FromDer as _, X509Certificate};

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

/// A connector that trusts a bundle in PEM, or the machine's authorities where it is empty.
///
/// # Errors
/// A bundle without certificates.
pub fn connector(bundle: &[u8]) -> Result<TlsConnector, String> {
    let own: Vec<CertificateDer<'static>>;
    let trusted = if bundle.is_empty() {
        system()
    } else {
        own = CertificateDer::pem_slice_iter(bundle).filter_map(Result::ok).collect();
        &own
    };
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(trusted.iter().cloned());
    if roots.is_empty() {
        return Err("unable to load root certificates: unable to parse bytes as PEM block".into());
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let usual = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider.clone()).build();
    let usual = usual.map_err(|e| e.to_string())?;
    let pinned = if bundle.is_empty() { Vec::new() } else { trusted.to_vec() };
    let verifier = Verifier { usual, pinned, provider: provider.clone() };
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|e| e.to_string())?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(verifier))
        .with_no_client_auth();
    Ok(TlsConnector::from(Arc::new(config)))
}

#[derive(Debug)]
struct Verifier {
    usual: Arc<WebPkiServerVerifier>,
    pinned: Vec<CertificateDer<'static>>,
    provider: Arc<CryptoProvider>,
}

impl ServerCertVerifier for Verifier {
    fn verify_server_cert(
        &self,
        certificate: &CertificateDer<'_>,
        chain: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        if !self.pinned.iter().any(|pinned| pinned.as_ref() == certificate.as_ref()) {
            return self.usual.verify_server_cert(certificate, chain, name, ocsp, now);
        }
        rustls::client::verify_server_name(&ParsedCertificate::try_from(certificate)?, name)?;
        let (_, parsed) =
            X509Certificate::from_der(certificate).map_err(|_| Error::from(CertificateError::BadEncoding))?;
        let seconds = i64::try_from(now.as_secs()).unwrap_or(i64::MAX);
        let validity = parsed.validity();
        if seconds < validity.not_before.timestamp() {
            return Err(CertificateError::NotValidYet.into());
        }
        if seconds > validity.not_after.timestamp() {
            return Err(CertificateError::Expired.into());
        }
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

/// A failed handshake in the words that people search for.
pub fn explain(error: &std::io::Error, host: &str) -> String {
    let inner = error.get_ref().and_then(|inner| inner.downcast_ref::<Error>());
    let Some(inner) = inner else { return error.to_string() };
    let why = match inner {
        Error::InvalidCertificate(CertificateError::UnknownIssuer) => {
            "x509: certificate signed by unknown authority".to_owned()
        }
        Error::InvalidCertificate(
            CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. },
        ) => format!("x509: certificate is not valid for any names, but wanted to match {host}"),
        Error::InvalidCertificate(
            CertificateError::Expired
            | CertificateError::ExpiredContext { .. }
            | CertificateError::NotValidYet
            | CertificateError::NotValidYetContext { .. },
        ) => "x509: certificate has expired or is not yet valid".to_owned(),
        Error::InvalidCertificate(other) => format!("x509: {other}"),
        other => return format!("remote error: tls: {other}"),
    };
    format!("tls: failed to verify certificate: {why}")
}
