//! Certificate signing requests and the names of signers.

use std::collections::HashSet;

use base64::Engine as _;
use serde_json::Value;
use x509_parser::prelude::FromDer as _;

use super::{list, pem, text};
use crate::field_error::{Report, same};
use crate::names;

/// A signer: a domain and a path, such as `example.com/serving`.
pub fn signer_name(report: &mut Report, signer: &str) {
    if signer.is_empty() {
        return report.required("");
    }
    let segments: Vec<&str> = signer.split('/').collect();
    let [domain, path] = segments[..] else {
        return report
            .invalid(signer, "must be a fully qualified domain and path of the form 'example.com/signer-name'");
    };
    const DOMAIN: usize = 253;
    if domain.len() > DOMAIN {
        report.too_long(DOMAIN);
    }
    labels(report, domain, names::dns_label);
    if !domain.contains('.') {
        report.invalid(domain, "should be a domain with at least two segments separated by dots");
    }
    labels(report, path, names::dns_subdomain);
    // Room for a name in a namespace after the domain and its slash.
    let most = DOMAIN + 1 + DOMAIN + 63 + 1;
    if signer.len() > most {
        report.too_long(most);
    }
}

/// The parts between dots; after the first wrong one nothing is told of the others.
fn labels(report: &mut Report, segment: &str, rule: fn(&str) -> Vec<String>) {
    let wrong = segment.split('.').map(|label| (label, rule(label))).find(|(_, complaints)| !complaints.is_empty());
    let (label, complaints) = wrong.unwrap_or_default();
    for why in complaints {
        report.invalid(segment, format_args!("validating label {}: {why}", crate::status::quote(label)));
    }
}

const USAGES: [&str; 23] = [
    "any",
    "cert sign",
    "client auth",
    "code signing",
    "content commitment",
    "crl sign",
    "data encipherment",
    "decipher only",
    "digital signature",
    "email protection",
    "encipher only",
    "ipsec end system",
    "ipsec tunnel",
    "ipsec user",
    "key agreement",
    "key encipherment",
    "microsoft sgc",
    "netscape sgc",
    "ocsp signing",
    "s/mime",
    "server auth",
    "signing",
    "timestamping",
];

pub fn check(report: &mut Report, object: &Value) {
    let spec = &object["spec"];
    report.at("spec", |r| {
        let packed = text(spec, "request");
        let bytes = base64::engine::general_purpose::STANDARD.decode(packed).unwrap_or_default();
        if let Err(why) = request(&bytes) {
            r.bad("request", &spec["request"], why);
        }
        let usages = list(spec, "usages");
        if usages.is_empty() {
            r.miss("usages", "usages must be provided");
        }
        let mut seen = HashSet::new();
        r.items(spec, "usages", |r, _, usage| {
            let text = usage.as_str().unwrap_or_default();
            if !USAGES.contains(&text) {
                r.not_supported(text, &USAGES);
            }
            if !seen.insert(usage) {
                r.duplicate(usage);
            }
        });
        let signer = text(spec, "signerName");
        if signer == "kubernetes.io/legacy-unknown" {
            r.bad("signerName", signer, "the legacy signerName is not allowed via this API version");
        } else {
            r.at("signerName", |r| signer_name(r, signer));
        }
        if let Some(seconds) = spec["expirationSeconds"].as_i64().filter(|s| *s < 600) {
            r.bad("expirationSeconds", seconds, "may not specify a duration less than 600 seconds (10 minutes)");
        }
    });
    conditions(report, object);
}

fn request(bytes: &[u8]) -> Result<(), String> {
    const NOT_PEM: &str = "PEM block type must be CERTIFICATE REQUEST";
    let Ok((_, pem)) = x509_parser::pem::parse_x509_pem(bytes) else { return Err(NOT_PEM.into()) };
    if pem.label != "CERTIFICATE REQUEST" {
        return Err(NOT_PEM.into());
    }
    let parsed = x509_parser::certification_request::X509CertificationRequest::from_der(&pem.contents);
    parsed.map(|_| ()).map_err(|_| "asn1: structure error: malformed certificate request".into())
}

fn conditions(report: &mut Report, object: &Value) {
    let status = &object["status"];
    let mut seen: Vec<&str> = Vec::new();
    report.at("status", |r| {
        r.each(status, "conditions", |r, condition| {
            let kind = text(condition, "type");
            r.need(condition, "type");
            match (kind, text(condition, "status")) {
                (_, "") => r.miss("status", ""),
                ("Approved" | "Denied" | "Failed", "False" | "Unknown") => {
                    r.at("status", |r| r.not_supported(text(condition, "status"), &["True"]));
                }
                _ => r.maybe_choice(condition, "status", &["False", "True", "Unknown"]),
            }
            if seen.contains(&kind) {
                r.at("type", |r| r.duplicate(kind));
            }
            seen.push(kind);
        });
        let first = |kind: &str| seen.iter().position(|k| *k == kind);
        if let (Some(approved), Some(denied)) = (first("Approved"), first("Denied")) {
            let second = seen[approved.max(denied)];
            r.bad("conditions", second, "Approved and Denied conditions are mutually exclusive");
        }
    });
}

/// The request itself is for ever, and a decision is not taken back.
pub fn update(report: &mut Report, new: &Value, old: &Value, subresource: &str) {
    if !same(&new["spec"], &old["spec"]) {
        let shown = crate::go_schema::shown("k8s.io.api.certificates.v1.CertificateSigningRequestSpec", &new["spec"]);
        report.bad("spec", shown, crate::field_error::IMMUTABLE);
    }
    let (issued, was) = (text(&new["status"], "certificate"), text(&old["status"], "certificate"));
    report.down(&["status", "certificate"], |r| {
        let decode = |packed: &str| base64::engine::general_purpose::STANDARD.decode(packed).unwrap_or_default();
        let check = |packed: &str| pem::only_certificates(&String::from_utf8_lossy(&decode(packed)));
        // One that was wrong before may be replaced by another wrong one.
        if issued != was
            && !issued.is_empty()
            && (was.is_empty() || check(was).is_ok())
            && let Err(why) = check(issued)
        {
            r.invalid("<certificate data>", why);
        }
    });
    let count = |object: &Value, kind: &str| {
        list(&object["status"], "conditions").iter().filter(|c| text(c, "type") == kind).count()
    };
    let mut refuse = |verb: &str, kind: &str| {
        let why = format!("updates may not {verb} a condition of type {}", crate::status::quote(kind));
        report.down(&["status", "conditions"], |r| r.forbidden(&why));
    };
    for kind in ["Approved", "Denied", "Failed"].into_iter().filter(|kind| count(new, kind) < count(old, kind)) {
        refuse("remove", kind);
    }
    let decisions = ["Approved", "Denied"].into_iter();
    for kind in decisions.filter(|kind| subresource != "approval" && count(new, kind) > count(old, kind)) {
        refuse("add", kind);
    }
    if issued != was && !was.is_empty() {
        report.down(&["status", "certificate"], |r| r.forbidden("updates may not modify existing certificate content"));
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_is_issued_is_certificates_and_stays() {
        let told = |new: &str, old: &str| {
            let object = |data: &str| json!({"status": {"certificate": data}});
            Report::told(|r| update(r, &object(new), &object(old), "status"))
        };
        let none = "status.certificate: Invalid value: \"<certificate data>\": must contain at least one CERTIFICATE \
                    PEM block";
        assert_eq!(told("bm90aGluZw==", ""), [none]);
        assert_eq!(told("bm90aGluZw==", "bm90aGluZw=="), [""; 0]);
        let again = "status.certificate: Forbidden: updates may not modify existing certificate content";
        assert_eq!(told("AAAA", "bm90aGluZw=="), [again]);
    }

    #[test]
    fn only_an_approval_decides() {
        let request = |kinds: &[&str]| {
            let conditions: Vec<Value> = kinds.iter().map(|kind| json!({"type": kind, "status": "True"})).collect();
            json!({"status": {"conditions": conditions}})
        };
        let told = |new: &[&str], old: &[&str], subresource: &str| {
            Report::told(|r| update(r, &request(new), &request(old), subresource))
        };
        let refused = |verb: &str, kind: &str| {
            format!("status.conditions: Forbidden: updates may not {verb} a condition of type \"{kind}\"")
        };
        assert_eq!(told(&["Approved"], &[], "status"), [refused("add", "Approved")]);
        assert_eq!(told(&["Approved"], &[], "approval"), [""; 0]);
        assert_eq!(told(&["Failed"], &["Denied"], "status"), [refused("remove", "Denied")]);
        assert_eq!(told(&["Approved", "Approved"], &["Approved"], "status"), [refused("add", "Approved")]);
    }

    #[test]
    fn decisions_exclude_each_other() {
        let request = |kinds: [&str; 2]| json!({"status": {"conditions": kinds.map(|kind| json!({"type": kind, "status": "True"}))}});
        for (kinds, second) in [(["Approved", "Denied"], "Denied"), (["Denied", "Approved"], "Approved")] {
            let why = format!(
                "status.conditions: Invalid value: \"{second}\": Approved and Denied conditions are mutually exclusive"
            );
            assert_eq!(Report::told(|r| conditions(r, &request(kinds))), [why]);
        }
    }

    #[test]
    fn a_failure_is_not_taken_back() {
        let failed = json!({"status": {"conditions": [{"type": "Failed", "status": "True"}]}});
        let mut report = Report::default();
        update(&mut report, &json!({}), &failed, "status");
        assert_eq!(report.errors[0].message, "Forbidden: updates may not remove a condition of type \"Failed\"");
    }
}
