//! Which cipher suites connections use.
//!
//! The server chooses, whatever order its clients have them in, as Go's servers do: AES with short keys where the
//! processor knows AES, because long ones cost a third more for every byte of a list, and ChaCha20 where it does not.

use rustls::CipherSuite;
use rustls::crypto::CryptoProvider;

/// The cryptography of the server's own connections, its suites in the order that they are chosen in.
pub(crate) fn provider() -> CryptoProvider {
    ordered(knows_aes())
}

fn ordered(knows_aes: bool) -> CryptoProvider {
    let mut provider = rustls::crypto::ring::default_provider();
    provider.cipher_suites.sort_by_key(|suite| match (suite.suite(), knows_aes) {
        (
            CipherSuite::TLS13_AES_128_GCM_SHA256
            | CipherSuite::TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256
            | CipherSuite::TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256,
            _,
        ) => 1,
        (
            CipherSuite::TLS13_CHACHA20_POLY1305_SHA256
            | CipherSuite::TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256
            | CipherSuite::TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256,
            false,
        ) => 0,
        _ => 2,
    });
    provider
}

fn knows_aes() -> bool {
    #[cfg(target_arch = "x86_64")]
    return std::arch::is_x86_feature_detected!("aes") && std::arch::is_x86_feature_detected!("pclmulqdq");
    #[cfg(target_arch = "aarch64")]
    return std::arch::is_aarch64_feature_detected!("aes") && std::arch::is_aarch64_feature_detected!("pmull");
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_keys_come_first_where_the_processor_knows_aes() {
        let order = |knows_aes| -> Vec<CipherSuite> {
            let provider = ordered(knows_aes);
            provider
                .cipher_suites
                .iter()
                .filter(|s| s.tls13().is_some())
                .map(rustls::SupportedCipherSuite::suite)
                .collect()
        };
        let (short, long) = (CipherSuite::TLS13_AES_128_GCM_SHA256, CipherSuite::TLS13_AES_256_GCM_SHA384);
        let other = CipherSuite::TLS13_CHACHA20_POLY1305_SHA256;
        assert_eq!(order(true), [short, long, other]);
        assert_eq!(order(false), [other, short, long]);
        assert_eq!(ordered(true).cipher_suites.len(), rustls::crypto::ring::default_provider().cipher_suites.len());
    }
}
