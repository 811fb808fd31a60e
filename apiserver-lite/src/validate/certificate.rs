//! Certificate signing requests and the names of signers.

use std::collections::HashSet;

use base64::Engine as _;
use serde_json::Value;
use x509_parser::prelude::FromDer as _;

use super::{list, text};
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
    if domain.len() > 253 {
        report.too_long(253);
    }
    report.complaints(signer, names::dns_subdomain(domain));
    if domain.split('.').count() < 2 {
        report.invalid(signer, "should be a domain with at least two segments separated by dots");
    }
    if path.len() > 63 * 2 + 253 {
        report.too_long(63 * 2 + 253);
    }
    report.complaints(signer, names::dns_subdomain(path));
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
    let is = |kind: &str| list(status, "conditions").iter().any(|c| text(c, "type") == kind);
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
        if is("Approved") && is("Denied") {
            r.bad("conditions", "Denied", "Approved and Denied conditions are mutually exclusive");
        }
    });
}

/// The request itself is for ever, and a decision is not taken back.
pub fn update(report: &mut Report, new: &Value, old: &Value, subresource: &str) {
    if !same(&new["spec"], &old["spec"]) {
        report.bad("spec", &new["spec"], crate::field_error::IMMUTABLE);
    }
    let is = |object: &Value, kind: &str| list(&object["status"], "conditions").iter().any(|c| text(c, "type") == kind);
    for kind in ["Approved", "Denied"] {
        let why = if is(old, kind) && !is(new, kind) {
            format!("updates may not remove a condition of type {}", crate::status::quote(kind))
        } else if !is(old, kind) && is(new, kind) && subresource != "approval" {
            format!("updates may not add a condition of type {}", crate::status::quote(kind))
        } else {
            continue;
        };
        report.down(&["status", "conditions"], |r| r.forbidden(&why));
    }
    let (issued, was) = (&new["status"]["certificate"], &old["status"]["certificate"]);
    if !same(was, &Value::Null) && issued != was {
        report.down(&["status", "certificate"], |r| r.forbidden("updates may not set certificate content"));
    }
}
