//! What `kube-system/extension-apiserver-authentication` tells the servers of aggregated APIs: whom to believe, and which
//! headers.
//!
//! What was told before stays beside what is so now: other servers may still go by it, and who has a certificate of an
//! authority that is about to be replaced is believed until it has run out. Follows
//! `pkg/controlplane/controller/clusterauthenticationtrust`.

use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject as _;
use serde_json::{Map, Value, json};
use x509_parser::prelude::{FromDer as _, X509Certificate};

const CLIENTS: &str = "client-ca-file";
const PROXY: &str = "requestheader-client-ca-file";

/// For clocks that differ: seconds for which a certificate that has run out stays.
const SLACK: i64 = 5 * 60;

/// Data of the config map: what is there, then what is not there yet of `ours`. Parts that cannot be read, and those that
/// nobody knows, go. `now` is in seconds since 1970.
pub(super) fn combined(there: &Value, ours: &Value, now: i64) -> Value {
    let mut data = Map::new();
    for (key, own) in ours.as_object().into_iter().flatten() {
        let texts = [&there[key], own].map(|text| text.as_str().unwrap_or_default());
        let both = if *key == CLIENTS || *key == PROXY { authorities(texts, now) } else { names(texts) };
        data.insert(key.clone(), both.into());
    }
    data.retain(|_, text| *text != "");
    // Where no proxy is believed its headers say nothing.
    if !data.contains_key(PROXY) {
        data.retain(|key, _| *key == CLIENTS);
    }
    data.into()
}

/// The certificates of both texts that are still good, once each.
fn authorities(texts: [&str; 2], now: i64) -> String {
    let mut all: Vec<CertificateDer<'static>> = Vec::new();
    for text in texts {
        for found in CertificateDer::pem_slice_iter(text.as_bytes()).filter_map(Result::ok) {
            let until = X509Certificate::from_der(&found).map(|(_, c)| c.validity().not_after.timestamp());
            if until.is_ok_and(|until| until > now - SLACK) && !all.contains(&found) {
                all.push(found);
            }
        }
    }
    all.iter().map(|found| crate::pki::pem("CERTIFICATE", found)).collect()
}

/// The names of both lists, once each; lists are JSON in text here.
fn names(texts: [&str; 2]) -> String {
    let mut all: Vec<String> = Vec::new();
    for name in texts.into_iter().flat_map(|text| serde_json::from_str::<Vec<String>>(text).unwrap_or_default()) {
        if !all.contains(&name) {
            all.push(name);
        }
    }
    json!(all).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn authority(year: i32) -> String {
        let key = rcgen::KeyPair::generate().expect("a key");
        let mut params = rcgen::CertificateParams::default();
        params.not_after = rcgen::date_time_ymd(year, 1, 1);
        params.self_signed(&key).expect("signed").pem()
    }

    fn lines(pem: &str) -> String {
        pem.replace('\r', "")
    }

    /// 2026-01-01.
    const NOW: i64 = 1_767_225_600;

    #[test]
    fn names_and_authorities_of_before_stay_until_they_have_run_out() {
        let (old, new, over) = (authority(2030), authority(2040), authority(2025));
        let there = json!({
            CLIENTS: format!("{over}{old}"), PROXY: old, "requestheader-allowed-names": r#"["a","b"]"#, "other": "x",
            "requestheader-username-headers": "no list",
        });
        let ours = json!({
            CLIENTS: format!("{new}{old}"), PROXY: old, "requestheader-allowed-names": r#"["c","b"]"#,
            "requestheader-username-headers": r#"["X-User"]"#, "requestheader-uid-headers": "[]",
        });
        let both = combined(&there, &ours, NOW);
        let expected = json!({
            CLIENTS: lines(&format!("{old}{new}")), PROXY: lines(&old),
            "requestheader-allowed-names": r#"["a","b","c"]"#, "requestheader-username-headers": r#"["X-User"]"#,
            "requestheader-uid-headers": "[]",
        });
        assert_eq!(both, expected);
        assert_eq!(combined(&both, &ours, NOW), both, "nothing is left to be told");
        assert_eq!(combined(&Value::Null, &both, NOW), both);
    }

    #[test]
    fn without_an_authority_of_proxies_nothing_is_said_of_headers() {
        let clients = authority(2040);
        let ours = json!({CLIENTS: clients, PROXY: authority(2025), "requestheader-allowed-names": r#"["a"]"#});
        assert_eq!(combined(&Value::Null, &ours, NOW), json!({CLIENTS: lines(&clients)}));
    }
}
