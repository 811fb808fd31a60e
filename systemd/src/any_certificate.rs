//! TLS to servers of whom nobody knows who they are: probes of pods, kubelets without an authority, what an operator asks
//! not to be checked.
//!
//! Any certificate is taken, and its key is not asked for: some are of forms and strengths that rustls does not read
//! (version 1, short RSA keys), and nothing is lost, for without an identity to check, whoever is in between brings a
//! certificate of his own.
//!
//! And the same for servers that look at a client's certificate after the handshake ([`AnyClient`]).

use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{DigitallySignedStruct, DistinguishedName, Error, SignatureScheme};

/// What a server may sign with: all that Go's clients take. Nobody looks at the signature, so it need not be understood.
const OFFERED: [SignatureScheme; 10] = [
    SignatureScheme::RSA_PSS_SHA256,
    SignatureScheme::ECDSA_NISTP256_SHA256,
    SignatureScheme::ED25519,
    SignatureScheme::RSA_PSS_SHA384,
    SignatureScheme::RSA_PSS_SHA512,
    SignatureScheme::RSA_PKCS1_SHA256,
    SignatureScheme::RSA_PKCS1_SHA384,
    SignatureScheme::RSA_PKCS1_SHA512,
    SignatureScheme::ECDSA_NISTP384_SHA384,
    SignatureScheme::ECDSA_NISTP521_SHA512,
];

/// Verifies nothing.
#[derive(Debug)]
pub struct AnyCertificate;

impl ServerCertVerifier for AnyCertificate {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn verify_tls13_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        OFFERED.to_vec()
    }
}

/// Asks clients for a certificate and takes any, or none; who it is of is for the one who asks to find out. The other side
/// has to hold its key.
#[derive(Debug)]
pub struct AnyClient(Arc<CryptoProvider>);

impl AnyClient {
    /// `provider` says which signatures are understood.
    pub fn new(provider: Arc<CryptoProvider>) -> Arc<Self> {
        Arc::new(AnyClient(provider))
    }
}

impl ClientCertVerifier for AnyClient {
    fn client_auth_mandatory(&self) -> bool {
        false
    }

    /// None: the client may show whatever it has.
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        Ok(ClientCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls12_signature(message, certificate, signed, &self.0.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, certificate, signed, &self.0.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}

#[cfg(test)]
mod tests {
    use rustls::pki_types::PrivateKeyDer;
    use rustls::pki_types::pem::PemObject as _;
    use rustls::server::{ClientHello, ResolvesServerCert};
    use rustls::sign::{CertifiedKey, Signer, SigningKey};
    use rustls::{ClientConfig, ClientConnection, ServerConfig, ServerConnection, SignatureAlgorithm};

    use super::*;

    /// Of version 1, as `openssl x509 -req` makes them without further words.
    const OLD: &str = "\
-----BEGIN CERTIFICATE-----\n\
MIIBFzCBvwIUHyjbD/QV0n+9uPqVl4T9i0dLDmUwCgYIKoZIzj0EAwIwDjEMMAoG\n\
A1UEAwwDb2xkMCAXDTI2MTEyMjA1MjIxN1oYDzIxMjYxMDI5MDUyMjE3WjAOMQww\n\
CgYDVQQDDANvbGQwWTATBgcqhkjOPQIBBggqhkjOPQMBBwNCAASBTXgjtAe/3euh\n\
lRJbAPklwPwRB0uV+exIpTYsbIUvIHjauss4iqDNBXp0lQ0Z0HjG02HKNRaK8L7M\n\
iOI0ZIN1MAoGCCqGSM49BAMCA0cAMEQCIA68DZrecMcYBef0rIHZJ+4Dggyq6iRm\n\
K2ozqZKzeBF0AiBn6YScIMvuvOMzLlylRD59oX+rgXfOxSljsZqHybUE2w==\n\
-----END CERTIFICATE-----";
    const ITS_KEY: &str = "\
-----BEGIN PRIVATE KEY-----\n\
MIGHAgEAMBMGByqGSM49AgEGCCqGSM49AwEHBG0wawIBAQQgk+12gcHVf5M5z8Sv\n\
mkrekZ6lFJ2B/Jq5pmjoNofW3IGhRANCAASBTXgjtAe/3euhlRJbAPklwPwRB0uV\n\
+exIpTYsbIUvIHjauss4iqDNBXp0lQ0Z0HjG02HKNRaK8L7MiOI0ZIN1\n\
-----END PRIVATE KEY-----";
    /// A key that no certificate here has.
    const OTHER_KEY: &str = "\
-----BEGIN PRIVATE KEY-----\n\
MIGHAgEAMBMGByqGSM49AgEGCCqGSM49AwEHBG0wawIBAQQgS+NwmJQszcJZFqla\n\
KdiHLmslL1Mr0U4p/BZQyCJ3LAehRANCAARmXDeKepVSUS5PZl1SBSx2eGD+bfId\n\
VijOi/zy+XFMpV3CWr3/waXC8mjewC3/dKkyJzajYoncg7EtjzOGMYXk\n\
-----END PRIVATE KEY-----";
    /// Of version 3, for the same key as [`OLD`].
    const NEW: &str = "\
-----BEGIN CERTIFICATE-----\n\
MIIBcjCCARmgAwIBAgIUZynYV8B+G3FfcpZEsUDtfLly/mEwCgYIKoZIzj0EAwIw\n\
DjEMMAoGA1UEAwwDbmV3MCAXDTI2MTEyMjA1MjIxOFoYDzIxMjYxMDI5MDUyMjE4\n\
WjAOMQwwCgYDVQQDDANuZXcwWTATBgcqhkjOPQIBBggqhkjOPQMBBwNCAASBTXgj\n\
tAe/3euhlRJbAPklwPwRB0uV+exIpTYsbIUvIHjauss4iqDNBXp0lQ0Z0HjG02HK\n\
NRaK8L7MiOI0ZIN1o1MwUTAdBgNVHQ4EFgQUCRDGgKJIUl2Sr3J5llhS8oYcWq8w\n\
HwYDVR0jBBgwFoAUCRDGgKJIUl2Sr3J5llhS8oYcWq8wDwYDVR0TAQH/BAUwAwEB\n\
/zAKBggqhkjOPQQDAgNHADBEAiBMqnbeGBythn2rvpoUIeGp+PCUiU2CRRuaWwK9\n\
Qtn4JwIgHtA0H+OVdcag+DPsujcPAwZdtu9ikUx6JFWrp/kRJEQ=\n\
-----END CERTIFICATE-----";

    #[derive(Debug)]
    struct Shows(Arc<CertifiedKey>);

    impl ResolvesServerCert for Shows {
        fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
            Some(self.0.clone())
        }
    }

    /// A key of a kind that is not understood here; whatever it signs is nothing.
    #[derive(Debug)]
    struct Strange;

    impl SigningKey for Strange {
        fn choose_scheme(&self, offered: &[SignatureScheme]) -> Option<Box<dyn Signer>> {
            offered.contains(&self.scheme()).then(|| Box::new(Strange) as _)
        }

        fn algorithm(&self) -> SignatureAlgorithm {
            SignatureAlgorithm::ECDSA
        }
    }

    impl Signer for Strange {
        fn sign(&self, _: &[u8]) -> Result<Vec<u8>, Error> {
            Ok(vec![0])
        }

        fn scheme(&self) -> SignatureScheme {
            SignatureScheme::ECDSA_NISTP521_SHA512
        }
    }

    fn handshake(
        certificate: &str,
        key: Option<&str>,
        version: &'static rustls::SupportedProtocolVersion,
    ) -> Result<(), Error> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let read = |key: &str| {
            let key = PrivateKeyDer::from_pem_slice(key.as_bytes()).expect("a key");
            provider.key_provider.load_private_key(key)
        };
        let key = key.map(read).transpose()?.unwrap_or_else(|| Arc::new(Strange));
        let chain = vec![CertificateDer::from_pem_slice(certificate.as_bytes()).expect("a certificate")];
        let shows = Shows(Arc::new(CertifiedKey::new(chain, key)));
        let server = ServerConfig::builder_with_provider(provider.clone()).with_protocol_versions(&[version])?;
        let server = server.with_no_client_auth().with_cert_resolver(Arc::new(shows));
        let client = ClientConfig::builder_with_provider(provider).with_protocol_versions(&[version])?;
        let client = client.dangerous().with_custom_certificate_verifier(Arc::new(AnyCertificate));
        let name = ServerName::try_from("other.example").expect("a name");
        let mut client = ClientConnection::new(Arc::new(client.with_no_client_auth()), name)?;
        let mut server = ServerConnection::new(Arc::new(server))?;
        while client.is_handshaking() {
            let mut wire = Vec::new();
            client.write_tls(&mut wire).expect("a vector takes everything");
            server.read_tls(&mut wire.as_slice()).expect("a slice");
            server.process_new_packets()?;
            let mut wire = Vec::new();
            server.write_tls(&mut wire).expect("a vector takes everything");
            client.read_tls(&mut wire.as_slice()).expect("a slice");
            client.process_new_packets()?;
        }
        Ok(())
    }

    #[test]
    fn anybody_is_taken() {
        for version in [&rustls::version::TLS12, &rustls::version::TLS13] {
            assert_eq!(handshake(NEW, Some(ITS_KEY), version), Ok(()));
            assert_eq!(handshake(OLD, Some(ITS_KEY), version), Ok(()));
            assert_eq!(handshake(NEW, Some(OTHER_KEY), version), Ok(()));
            assert_eq!(handshake(NEW, None, version), Ok(()), "a key that is not understood");
        }
    }
}
