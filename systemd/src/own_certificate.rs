//! TLS to servers whose certificate is the very one that is trusted.
//!
//! `openssl req -x509` makes certificates that are authorities, and people give one to a server and to its clients as what
//! these trust. Go takes that; rustls takes no authority for a server. Here such a certificate is a server's when it is among
//! the trusted ones, in force, and made for the name.

use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{VerifierBuilderError, WebPkiServerVerifier, verify_server_name};
use rustls::crypto::CryptoProvider;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::{CertificateError, DigitallySignedStruct, Error, RootCertStore, SignatureScheme};

/// How webpki calls it; dates have been looked at then.
const AUTHORITY_AS_SERVER: &str = "CaUsedAsEndEntity";

/// Verifies servers by the authorities that are trusted, and by being one of them.
#[derive(Debug)]
pub struct OwnCertificate {
    usual: Arc<WebPkiServerVerifier>,
    trusted: Vec<CertificateDer<'static>>,
}

impl OwnCertificate {
    /// `roots` are those of `trusted` that can be read. `provider` says which signatures are understood.
    ///
    /// # Errors
    /// When there are no roots.
    pub fn new(
        roots: RootCertStore,
        trusted: Vec<CertificateDer<'static>>,
        provider: Arc<CryptoProvider>,
    ) -> Result<Arc<Self>, VerifierBuilderError> {
        let usual = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider).build()?;
        Ok(Arc::new(OwnCertificate { usual, trusted }))
    }
}

impl ServerCertVerifier for OwnCertificate {
    fn verify_server_cert(
        &self,
        certificate: &CertificateDer<'_>,
        chain: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        match self.usual.verify_server_cert(certificate, chain, name, ocsp, now) {
            Err(Error::InvalidCertificate(CertificateError::Other(why)))
                if why.0.to_string() == AUTHORITY_AS_SERVER
                    && self.trusted.iter().any(|own| own.as_ref() == certificate.as_ref()) =>
            {
                verify_server_name(&ParsedCertificate::try_from(certificate)?, name)?;
                Ok(ServerCertVerified::assertion())
            }
            other => other,
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.usual.verify_tls12_signature(message, certificate, signed)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.usual.verify_tls13_signature(message, certificate, signed)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.usual.supported_verify_schemes()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use rustls::pki_types::PrivateKeyDer;
    use rustls::pki_types::pem::PemObject as _;
    use rustls::{ClientConfig, ClientConnection, ServerConfig, ServerConnection};

    use super::*;

    /// An authority, made for own.example, from 2020 to 2120.
    const CERTIFICATE: &str = "\
-----BEGIN CERTIFICATE-----\n\
MIIBVjCB/aADAgECAgEBMAoGCCqGSM49BAMCMA4xDDAKBgNVBAMMA293bjAgFw0y\n\
MDAxMDEwMDAwMDBaGA8yMTIwMDEwMTAwMDAwMFowDjEMMAoGA1UEAwwDb3duMFkw\n\
EwYHKoZIzj0CAQYIKoZIzj0DAQcDQgAEuLpzCxSDpxV7bW1e+6TOtSc2ShPAVBeK\n\
bFCEOpB548Q49j7VgYxjobLGYZ9qPYpoVI9cxonxfgtfnf00WWP+NqNKMEgwHQYD\n\
VR0OBBYEFIqXcSI8VwUQpv3XJ7V5LSkq1z01MA8GA1UdEwEB/wQFMAMBAf8wFgYD\n\
VR0RBA8wDYILb3duLmV4YW1wbGUwCgYIKoZIzj0EAwIDSAAwRQIhALQxRHGLv3P8\n\
/S53qI4Elcme5eiXRIFheERLA2SDak4lAiA59bujuABt8gg50t8kSXvolr09MvvF\n\
wb7EwxpgLdyfNQ==\n\
-----END CERTIFICATE-----";
    const KEY: &str = "\
-----BEGIN PRIVATE KEY-----\n\
MIGHAgEAMBMGByqGSM49AgEGCCqGSM49AwEHBG0wawIBAQQgGpXw9keqU8efKEFm\n\
cN/7kQls1/z32Dk4wCbZ8CRDzW2hRANCAAS4unMLFIOnFXttbV77pM61JzZKE8BU\n\
F4psUIQ6kHnjxDj2PtWBjGOhssZhn2o9imhUj1zGifF+C1+d/TRZY/42\n\
-----END PRIVATE KEY-----";

    fn own() -> CertificateDer<'static> {
        CertificateDer::from_pem_slice(CERTIFICATE.as_bytes()).expect("a certificate")
    }

    fn verifier(trusted: Vec<CertificateDer<'static>>) -> Arc<OwnCertificate> {
        let mut roots = RootCertStore::empty();
        roots.add(own()).expect("an authority");
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        OwnCertificate::new(roots, trusted, provider).expect("a verifier")
    }

    /// The word that webpki has for it is compared; another one would show here.
    #[test]
    fn an_authority_is_its_own_server_where_it_is_trusted_itself() {
        let now = UnixTime::now();
        let verified = |trusted: Vec<_>, name: &'static str, now: UnixTime| {
            let name = ServerName::try_from(name).expect("a name");
            verifier(trusted).verify_server_cert(&own(), &[], &name, &[], now).map(drop)
        };
        assert_eq!(verified(vec![own()], "own.example", now), Ok(()));
        assert!(verified(Vec::new(), "own.example", now).is_err(), "only its authority is trusted");
        assert!(verified(vec![own()], "other.example", now).is_err());
        let later = UnixTime::since_unix_epoch(Duration::from_secs(now.as_secs() + 200 * 366 * 86_400));
        let error = verified(vec![own()], "own.example", later).expect_err("it is out of force");
        assert!(matches!(error, Error::InvalidCertificate(CertificateError::ExpiredContext { .. })), "{error:?}");
    }

    #[test]
    fn a_connection_to_such_a_server_comes_about() {
        for version in [&rustls::version::TLS12, &rustls::version::TLS13] {
            let provider = Arc::new(rustls::crypto::ring::default_provider());
            let key = PrivateKeyDer::from_pem_slice(KEY.as_bytes()).expect("a key");
            let server = ServerConfig::builder_with_provider(provider.clone()).with_protocol_versions(&[version]);
            let server = server.expect("a version").with_no_client_auth().with_single_cert(vec![own()], key);
            let client = ClientConfig::builder_with_provider(provider).with_protocol_versions(&[version]);
            let client = client.expect("a version").dangerous().with_custom_certificate_verifier(verifier(vec![own()]));
            let name = ServerName::try_from("own.example").expect("a name");
            let mut client = ClientConnection::new(Arc::new(client.with_no_client_auth()), name).expect("a client");
            let mut server = ServerConnection::new(Arc::new(server.expect("a key that fits"))).expect("a server");
            while client.is_handshaking() {
                let mut wire = Vec::new();
                client.write_tls(&mut wire).expect("a vector takes everything");
                server.read_tls(&mut wire.as_slice()).expect("a slice");
                server.process_new_packets().expect("a good client");
                let mut wire = Vec::new();
                server.write_tls(&mut wire).expect("a vector takes everything");
                client.read_tls(&mut wire.as_slice()).expect("a slice");
                client.process_new_packets().expect("a good server");
            }
        }
    }
}
