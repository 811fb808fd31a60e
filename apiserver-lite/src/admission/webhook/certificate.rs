//! Why a webhook's certificate does not do, in the words of Go's `crypto/x509`, which people search for.
//!
//! Go looks at a certificate in this order: whether it is in force, whether it is made for the name, and only then who
//! signed it (`go_x509`).

use std::net::IpAddr;

use x509_parser::prelude::{FromDer as _, GeneralName, X509Certificate};

use crate::go_x509::out_of_force;

/// Names in one complaint; a certificate with more is told by their number.
const MOST_NAMES: usize = 100;

/// What is wrong with a certificate itself, at a time in seconds since 1970 and for a host; None if that is nothing.
pub fn complaint(certificate: &[u8], host: &str, now: i64) -> Option<String> {
    let (_, parsed) = X509Certificate::from_der(certificate).ok()?;
    out_of_force(&parsed, now).or_else(|| for_others(&parsed, host))
}

/// Whether a certificate's name, which may begin with a wildcard for one label, is a host's.
fn names(pattern: &str, host: &str) -> bool {
    let (pattern, host) = (pattern.to_ascii_lowercase(), host.trim_end_matches('.').to_ascii_lowercase());
    let pattern = pattern.trim_end_matches('.');
    match pattern.strip_prefix("*.") {
        Some(rest) => host.split_once('.').is_some_and(|(label, of)| !label.is_empty() && of == rest),
        None => !pattern.is_empty() && pattern == host,
    }
}

fn address(bytes: &[u8]) -> Option<IpAddr> {
    let four = <[u8; 4]>::try_from(bytes).map(IpAddr::from);
    four.or_else(|_| <[u8; 16]>::try_from(bytes).map(IpAddr::from)).ok()
}

fn for_others(certificate: &X509Certificate<'_>, host: &str) -> Option<String> {
    let extension = certificate.subject_alternative_name().ok().flatten();
    let all = extension.iter().flat_map(|extension| &extension.value.general_names);
    let (mut dns, mut addresses) = (Vec::new(), Vec::new());
    for name in all {
        match name {
            GeneralName::DNSName(name) => dns.push((*name).to_owned()),
            GeneralName::IPAddress(bytes) => addresses.extend(address(bytes)),
            _ => {}
        }
    }
    let wanted = host.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>().ok();
    let fits = match wanted {
        Some(wanted) => addresses.contains(&wanted),
        None => dns.iter().any(|name| names(name, host)),
    };
    if fits {
        return None;
    }
    let common = certificate.subject().iter_common_name().next().and_then(|name| name.as_str().ok());
    if extension.is_none() && common.is_some_and(|common| names(common, host)) {
        return Some("x509: certificate relies on legacy Common Name field, use SANs instead".into());
    }
    let (valid, what) = match wanted {
        Some(_) if addresses.is_empty() => {
            let why = "because it doesn't contain any IP SANs";
            return Some(format!("x509: cannot validate certificate for {host} {why}"));
        }
        Some(_) => (addresses.iter().map(ToString::to_string).collect(), "IP SANs"),
        None => (dns, "names"),
    };
    Some(match valid.len() {
        0 => format!("x509: certificate is not valid for any names, but wanted to match {host}"),
        many if many >= MOST_NAMES => format!("x509: certificate is valid for {many} {what}, but none matched {host}"),
        _ => format!("x509: certificate is valid for {}, not {host}", valid.join(", ")),
    })
}

#[cfg(test)]
mod tests {
    use rustls_pki_types::CertificateDer;
    use rustls_pki_types::pem::PemObject as _;

    use super::*;
    use crate::pki::{Authority, Leaf, Pair};

    fn authority(name: &str) -> Authority {
        let folder = std::env::temp_dir().join(format!("webhook-{}", crate::random::uuid()));
        std::fs::create_dir_all(&folder).expect("a folder");
        let pair = Pair { certificate: folder.join("ca.crt"), key: folder.join("ca.key") };
        let authority = Authority::open(&pair, name).expect("an authority");
        std::fs::remove_dir_all(&folder).expect("the folder goes");
        authority
    }

    fn issued(by: &Authority, names: &[&str], addresses: &[&str]) -> CertificateDer<'static> {
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        let addresses: Vec<IpAddr> = addresses.iter().map(|a| a.parse().expect("an address")).collect();
        let (pem, _) = by.issue(&Leaf::serving("common.example", &names, &addresses)).expect("a certificate");
        CertificateDer::from_pem_slice(pem.as_bytes()).expect("it is PEM")
    }

    fn now() -> i64 {
        proto::time::Timestamp::now().seconds
    }

    #[test]
    fn a_certificate_for_another_host_tells_for_which_it_is() {
        let ca = authority("ca");
        let two = issued(&ca, &["a.example", "*.b.example"], &["10.0.0.1"]);
        assert_eq!(complaint(&two, "A.example", now()), None);
        assert_eq!(complaint(&two, "x.b.example", now()), None);
        assert_eq!(complaint(&two, "10.0.0.1", now()), None);
        let said = |der: &[u8], host: &str| complaint(der, host, now()).unwrap_or_default();
        assert_eq!(
            said(&two, "x.y.b.example"),
            "x509: certificate is valid for a.example, *.b.example, not x.y.b.example"
        );
        assert_eq!(said(&two, "10.0.0.2"), "x509: certificate is valid for 10.0.0.1, not 10.0.0.2");
        let one = issued(&ca, &["a.example"], &[]);
        assert_eq!(
            said(&one, "10.0.0.2"),
            "x509: cannot validate certificate for 10.0.0.2 because it doesn't contain any IP SANs"
        );
        let none = issued(&ca, &[], &[]);
        assert_eq!(said(&none, "x"), "x509: certificate is not valid for any names, but wanted to match x");
        let legacy = "x509: certificate relies on legacy Common Name field, use SANs instead";
        assert_eq!(said(&none, "common.example"), legacy);
    }

    #[test]
    fn a_certificate_out_of_force_tells_since_when() {
        let ca = authority("ca");
        let der = issued(&ca, &["a"], &[]);
        let (_, parsed) = X509Certificate::from_der(&der).expect("a certificate");
        let end = parsed.validity().not_after.timestamp();
        let said = complaint(&der, "other", end + 1).expect("it is over");
        assert!(said.starts_with("x509: certificate has expired or is not yet valid: current time "), "{said}");
        assert!(said.contains(" is after "), "{said}");
        assert!(
            complaint(&der, "a", 0).is_some_and(|said| said.contains("current time 1970-01-01T00:00:00Z is before "))
        );
    }
}
