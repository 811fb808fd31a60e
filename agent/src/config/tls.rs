//! What port 10250 offers in a handshake: versions, cipher suites, curves.
//!
//! Names are Go's, as the kubelet takes them; what comes of them is the part that rustls has, and the rest is told. As in Go, the suites of TLS
//! 1.3 are always offered, and the order of a list does not matter.

use std::sync::Arc;

use rustls::crypto::{CryptoProvider, SupportedKxGroup};
use rustls::{SupportedCipherSuite, SupportedProtocolVersion};

use super::Configuration;

static ONLY_TLS13: &[&SupportedProtocolVersion] = &[&rustls::version::TLS13];

/// The configured handshake.
pub struct TlsOffer {
    pub provider: Arc<CryptoProvider>,
    pub versions: &'static [&'static SupportedProtocolVersion],
    /// What is asked for and not offered, for the log.
    pub missing: Vec<String>,
}

impl TlsOffer {
    pub fn of(config: &Configuration) -> Self {
        let mut provider = rustls::crypto::ring::default_provider();
        let mut missing = Vec::new();
        let versions = match config.tls_min_version.as_str() {
            "VersionTLS13" => ONLY_TLS13,
            old @ ("VersionTLS10" | "VersionTLS11") => {
                missing.push(format!("tlsMinVersion {old}: VersionTLS12 is the least"));
                rustls::ALL_VERSIONS
            }
            _ => rustls::ALL_VERSIONS,
        };
        let wanted = &config.tls_cipher_suites;
        if !wanted.is_empty() {
            let has = |name: &String| provider.cipher_suites.iter().any(|suite| same(suite, name));
            missing.extend(wanted.iter().filter(|name| !has(name)).map(|name| format!("tlsCipherSuites {name}")));
            provider
                .cipher_suites
                .retain(|suite| suite.tls13().is_some() || wanted.iter().any(|name| same(suite, name)));
        }
        let wanted = &config.tls_curve_preferences;
        if !wanted.is_empty() {
            let has = |curve: &i32| provider.kx_groups.iter().any(|group| number(*group) == *curve);
            let lacking: Vec<_> = wanted.iter().filter(|curve| !has(curve)).collect();
            missing.extend(lacking.iter().map(|curve| format!("tlsCurvePreferences {curve}")));
            // Without any curve nobody could connect.
            if lacking.len() < wanted.len() {
                provider.kx_groups.retain(|group| wanted.contains(&number(*group)));
            }
        }
        TlsOffer { provider: Arc::new(provider), versions, missing }
    }
}

/// Two of the suites have an older name without the hash in Go.
fn same(suite: &SupportedCipherSuite, name: &str) -> bool {
    let own = format!("{:?}", suite.suite()).replace("TLS13_", "TLS_");
    own == name || (name.ends_with("_CHACHA20_POLY1305") && own.strip_suffix("_SHA256") == Some(name))
}

fn number(group: &dyn SupportedKxGroup) -> i32 {
    u16::from(group.name()).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn offer(suites: &[&str], curves: &[i32], least: &str) -> TlsOffer {
        TlsOffer::of(&Configuration {
            tls_cipher_suites: suites.iter().map(ToString::to_string).collect(),
            tls_curve_preferences: curves.to_vec(),
            tls_min_version: least.into(),
            ..Configuration::default()
        })
    }

    fn names(offer: &TlsOffer) -> Vec<String> {
        let old = offer.provider.cipher_suites.iter().filter(|s| s.tls13().is_none());
        old.map(|s| format!("{:?}", s.suite())).collect()
    }

    #[test]
    fn only_what_is_configured_is_offered_and_the_rest_is_told() {
        let all = offer(&[], &[], "");
        assert_eq!((names(&all).len(), all.provider.kx_groups.len(), all.versions.len()), (6, 3, 2));
        let some = offer(
            &["TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256", "TLS_RSA_WITH_AES_128_CBC_SHA"],
            &[25, 23],
            "VersionTLS11",
        );
        assert_eq!(names(&some), ["TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256"]);
        assert_eq!(some.provider.kx_groups.iter().map(|g| number(*g)).collect::<Vec<_>>(), [23]);
        assert_eq!(some.provider.cipher_suites.len(), 4, "those of TLS 1.3 stay");
        assert_eq!(some.missing.len(), 3, "{:?}", some.missing);
        let old = offer(&["TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305"], &[29], "VersionTLS13");
        assert_eq!((names(&old).len(), old.versions.len(), old.missing.len()), (1, 1, 0));
    }

    #[test]
    fn of_a_list_that_has_nothing_to_offer_the_rest_is_offered() {
        let old = offer(&["TLS_RSA_WITH_AES_128_CBC_SHA"], &[], "");
        assert_eq!((names(&old).len(), old.provider.cipher_suites.len(), old.missing.len()), (0, 3, 1));
        let strange = offer(&[], &[25, 4588], "");
        assert_eq!((strange.provider.kx_groups.len(), strange.missing.len()), (3, 2));
    }
}
