//! Bundles of authorities that the cluster gives to its pods, and the certificates that pods ask for.
//!
//! Limits: that who asks for a certificate holds the key is the signer's to see.

use std::collections::BTreeMap;

use base64::Engine as _;
use serde_json::Value;
use x509_parser::prelude::FromDer as _;
use x509_parser::x509::SubjectPublicKeyInfo;

use super::{certificate, list, meta, pem, text};
use crate::field_error::{Report, same};
use crate::names;

const BUNDLE_BYTES: usize = 1 << 20;
const HOUR: i64 = 3600;
/// Longest life of a certificate by a signer of Kubernetes', and by any other.
const DAY: i64 = 24 * HOUR;
const QUARTER: i64 = 91 * DAY;

/// The name of a bundle begins with its signer's, where it has one.
pub fn bundle_name(name: &str, signer: &str) -> Vec<String> {
    if signer.is_empty() {
        if name.contains(':') {
            return vec!["ClusterTrustBundle without signer name must not have \":\" in its name".into()];
        }
        return names::dns_subdomain(name);
    }
    let prefix = format!("{}:", signer.replace('/', ":"));
    match name.strip_prefix(&prefix) {
        Some(rest) => names::dns_subdomain(rest),
        None => vec![format!("ClusterTrustBundle for signerName {signer} must be named with prefix {prefix}")],
    }
}

/// The spec of a bundle; what was there before is not read again.
pub fn bundle(report: &mut Report, spec: &Value, old: &Value) {
    let signer = text(spec, "signerName");
    if !signer.is_empty() {
        report.at("signerName", |r| certificate::signer_name(r, signer));
    }
    if old.is_null() || spec["trustBundle"] != old["trustBundle"] {
        report.at("trustBundle", |r| anchors(r, text(spec, "trustBundle")));
    }
    if !old.is_null() {
        report.immutable(spec, old, "signerName");
    }
}

fn anchors(report: &mut Report, said: &str) {
    const VALUE: &str = "<value omitted>";
    if said.len() > BUNDLE_BYTES {
        return report.too_long(BUNDLE_BYTES);
    }
    let blocks = pem::blocks(said);
    let mut places: BTreeMap<&[u8], Vec<usize>> = BTreeMap::new();
    let sound = report.sound(|r| {
        for (index, block) in blocks.iter().enumerate() {
            let why = if block.label != "CERTIFICATE" {
                format!("has bad block type: {}", block.label)
            } else if block.has_headers {
                "has PEM block headers".into()
            } else {
                match pem::certificate(&block.bytes) {
                    None => "does not parse as X.509".into(),
                    Some(found) if !found.is_ca() => "does not have the CA bit set".into(),
                    Some(_) => {
                        places.entry(&block.bytes).or_default().push(index);
                        continue;
                    }
                }
            };
            r.invalid(VALUE, format_args!("entry {index} {why}"));
        }
    });
    if !sound {
        return;
    }
    if places.is_empty() {
        report.invalid(VALUE, "at least one trust anchor must be provided");
    }
    for places in places.values().filter(|places| places.len() > 1) {
        let places: Vec<String> = places.iter().map(ToString::to_string).collect();
        report.invalid(VALUE, format_args!("duplicate trust anchor (indices [{}])", places.join(" ")));
    }
}

/// Seconds that a certificate by this signer may live.
pub fn life(signer: &str) -> (i64, i64) {
    let domain = signer.split('/').next().unwrap_or_default();
    let own = domain == "kubernetes.io" || domain.ends_with(".kubernetes.io");
    (HOUR, if own { DAY } else { QUARTER })
}

/// The spec of a pod's request.
pub fn request(report: &mut Report, spec: &Value) {
    let signer = text(spec, "signerName");
    report.at("signerName", |r| certificate::signer_name(r, signer));
    report.at("unverifiedUserAnnotations", |r| {
        for (key, _) in spec["unverifiedUserAnnotations"].as_object().into_iter().flatten() {
            r.complaints(key, names::domain_prefixed_path(key));
        }
    });
    for (name, uid) in [("podName", "podUID"), ("serviceAccountName", "serviceAccountUID"), ("nodeName", "nodeUID")] {
        let said = text(spec, name);
        report.at(name, |r| r.complaints(said, names::dns_subdomain(said)));
        report.at(uid, |r| match text(spec, uid) {
            "" => r.invalid("", "must not be empty"),
            said if said.len() > 128 => r.too_long(128),
            _ => {}
        });
    }
    let Some(seconds) = spec["maxExpirationSeconds"].as_i64() else {
        return report.miss("maxExpirationSeconds", "must be set");
    };
    let (least, most) = life(signer);
    if !(least..=most).contains(&seconds) {
        report.bad("maxExpirationSeconds", seconds, format_args!("must be in the range [{least}, {most}]"));
    }
    let key = text(spec, "pkixPublicKey");
    let bytes = base64::engine::general_purpose::STANDARD.decode(key).unwrap_or_default();
    let known = SubjectPublicKeyInfo::from_der(&bytes).is_ok_and(|(rest, _)| rest.is_empty());
    if !known && text(spec, "stubPKCS10Request").is_empty() {
        report.bad("pkixPublicKey", key, "must be a valid PKIX-serialized public key");
    }
}

const ENDS: [&str; 3] = ["Issued", "Denied", "Failed"];

fn ended<'a>(status: &'a Value, how: &'a [&'a str]) -> bool {
    list(status, "conditions").iter().any(|c| how.contains(&text(c, "type")) && c["status"] == "True")
}

/// The answer to a pod's request: given once, with one condition that says how.
pub fn answer(report: &mut Report, new: &Value, old: &Value) {
    let (now, was) = (&new["status"], &old["status"]);
    let mut count = 0;
    let sound = report.sound(|r| {
        r.at("status", |r| {
            r.at("conditions", |r| {
                for (index, condition) in list(now, "conditions").iter().enumerate() {
                    r.at(&format!("[{index}]"), |r| {
                        let kind = text(condition, "type");
                        if !ENDS.contains(&kind) {
                            return r.at("type", |r| r.not_supported(kind, &ENDS));
                        }
                        count += 1;
                        if count > 1 {
                            let why =
                                "There may be at most one condition with type \"Issued\", \"Denied\", or \"Failed\"";
                            r.bad("type", kind, why);
                        }
                        r.maybe_choice(condition, "status", &["True"]);
                    });
                }
            });
            meta::conditions(r, now);
        });
    });
    if !sound {
        return;
    }
    let others = now.as_object().into_iter().flatten().any(|(key, v)| key != "conditions" && !same(v, &Value::Null));
    report.at("status", |r| {
        if ended(was, &ENDS) {
            if !same(now, was) {
                r.wrong("immutable after PodCertificateRequest is issued, denied, or failed");
            }
        } else if ended(now, &["Denied", "Failed"]) {
            if others {
                r.wrong("non-condition status fields must be empty when denying or failing the PodCertificateRequest");
            }
        } else if ended(now, &["Issued"]) {
            issued(r, now);
        } else if !same(now, was) {
            r.wrong("status is immutable unless transitioning to \"Issued\", \"Denied\", or \"Failed\"");
        }
    });
}

fn issued(report: &mut Report, status: &Value) {
    let said = text(status, "certificateChain");
    let blocks = pem::blocks(said);
    let why = match blocks.split_first() {
        None => Some("issued certificate chain must contain at least one certificate"),
        Some((leaf, _)) if leaf.label != "CERTIFICATE" => {
            Some("issued certificate chain must consist entirely of CERTIFICATE PEM blocks")
        }
        Some((leaf, _)) if pem::certificate(&leaf.bytes).is_none() => {
            Some("leaf certificate does not parse as valid X.509")
        }
        _ => None,
    };
    if let Some(why) = why {
        return report.bad("certificateChain", said, why);
    }
    const CONSISTENT: &str = "must be present and consistent with the issued certificate";
    const REFRESH: &str = "must be present and in the range [notbefore+10min, notafter-10min]";
    for (name, why) in [("notBefore", CONSISTENT), ("notAfter", CONSISTENT), ("beginRefreshAt", REFRESH)] {
        if status[name].is_null() {
            report.miss(name, why);
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_bundle_is_named_after_its_signer() {
        assert_eq!(bundle_name("x.y:z:foo", "x.y/z"), [""; 0]);
        assert_eq!(bundle_name("foo", ""), [""; 0]);
        let without = "ClusterTrustBundle without signer name must not have \":\" in its name";
        assert_eq!(bundle_name("x.y:z:foo", ""), [without]);
        let other = "ClusterTrustBundle for signerName a.b/c must be named with prefix a.b:c:";
        assert_eq!(bundle_name("x.y:z:foo", "a.b/c"), [other]);
    }

    #[test]
    fn a_bundle_holds_authorities_and_each_once() {
        let of = |ca: bool| {
            let mut params = rcgen::CertificateParams::default();
            if ca {
                params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
            }
            params.self_signed(&rcgen::KeyPair::generate().unwrap()).unwrap().pem()
        };
        let of_text = |said: &str| Report::told(|r| bundle(r, &json!({"trustBundle": said}), &Value::Null));
        let why = |why: &str| [format!("trustBundle: Invalid value: \"<value omitted>\": {why}")];
        let (ca, leaf) = (of(true), of(false));
        assert_eq!(of_text(&ca), [""; 0]);
        assert_eq!(of_text("words"), why("at least one trust anchor must be provided"));
        assert_eq!(of_text(&leaf), why("entry 0 does not have the CA bit set"));
        assert_eq!(of_text(&format!("{ca}{ca}")), why("duplicate trust anchor (indices [0 1])"));
    }

    #[test]
    fn an_answer_is_given_once() {
        let of = |kind: &str| {
            json!({"status": {"conditions": [{"type": kind, "status": "True", "reason": "R",
                "lastTransitionTime": "2026-01-01T00:00:00Z"}]}})
        };
        assert_eq!(Report::told(|r| answer(r, &of("Denied"), &json!({}))), [""; 0]);
        let again = Report::told(|r| answer(r, &of("Failed"), &of("Denied")));
        assert_eq!(
            again,
            ["status: Invalid value: immutable after PodCertificateRequest is issued, denied, or failed"]
        );
        let issued = Report::told(|r| answer(r, &of("Issued"), &json!({})));
        let none = "status.certificateChain: Invalid value: \"\": issued certificate chain must contain at least one \
                    certificate";
        assert_eq!(issued, [none]);
    }
}
