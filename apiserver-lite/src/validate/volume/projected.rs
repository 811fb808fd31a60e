//! Volumes whose files come from the cluster: keys of config maps and secrets, fields of the pod, tokens, trust.

use serde_json::Value;

use super::super::container::{field_reference, resource_reference};
use super::super::shapes::TRUST_BUNDLE;
use super::super::{list, selector, text};
use super::{local_path, mode, need_all};
use crate::field_error::Report;
use crate::go_value::shown;
use crate::names;

pub(super) fn key_to_path(report: &mut Report, item: &Value) {
    need_all(report, item, &["key", "path"]);
    report.at("path", |r| local_path(r, text(item, "path")));
    mode(report, item, "mode");
}

/// A file that shows a field or a resource; upstream names the list's path, not the item's.
pub(super) fn downward(report: &mut Report, file: &Value) {
    const FIELDS: [&str; 5] =
        ["metadata.name", "metadata.namespace", "metadata.labels", "metadata.annotations", "metadata.uid"];
    report.need(file, "path");
    report.at("path", |r| local_path(r, text(file, "path")));
    if file["fieldRef"].is_object() {
        report.at("fieldRef", |r| field_reference(r, &file["fieldRef"], &FIELDS));
        if file["resourceFieldRef"].is_object() {
            report.invalid("resource", "fieldRef and resourceFieldRef can not be specified simultaneously");
        }
    } else if file["resourceFieldRef"].is_object() {
        report.at("resourceFieldRef", |r| resource_reference(r, &file["resourceFieldRef"], true));
    } else {
        report.required("one of fieldRef and resourceFieldRef is required");
    }
    mode(report, file, "mode");
}

pub(super) fn projected(report: &mut Report, source: &Value) {
    mode(report, source, "defaultMode");
    let mut paths: Vec<&str> = Vec::new();
    for (index, source) in list(source, "sources").iter().enumerate() {
        let inside = |report: &mut Report, walk: &mut dyn FnMut(&mut Report)| {
            report.at("sources", |r| r.index(index, |r| walk(r)));
        };
        let clash = |report: &mut Report, path: &str, shown: &str, paths: &[&str]| {
            if !path.is_empty() && paths.contains(&path) {
                report.invalid(shown, "conflicting duplicate paths");
            }
        };
        let mut count = 0;
        for key in ["secret", "configMap"] {
            let Some(part) = source.get(key).filter(|p| p.is_object()) else { continue };
            count += 1;
            inside(report, &mut |r| {
                r.at(key, |r| {
                    r.need(part, "name");
                })
            });
            for (at, item) in list(part, "items").iter().enumerate() {
                inside(report, &mut |r| r.at(key, |r| r.at("items", |r| r.index(at, |r| key_to_path(r, item)))));
                let path = text(item, "path");
                clash(report, path, text(part, "name"), &paths);
                paths.push(path);
            }
        }
        if let Some(part) = source.get("downwardAPI").filter(|p| p.is_object()) {
            count += 1;
            for file in list(part, "items") {
                inside(report, &mut |r| r.at("downwardAPI", |r| downward(r, file)));
                let path = text(file, "path");
                clash(report, path, path, &paths);
                paths.push(path);
            }
        }
        if let Some(token) = source.get("serviceAccountToken").filter(|p| p.is_object()) {
            count += 1;
            inside(report, &mut |r| r.at("serviceAccountToken", |r| token_seconds(r, token)));
            if report.need(token, "path") {
                report.at("path", |r| local_path(r, text(token, "path")));
            }
        }
        if let Some(bundle) = source.get("clusterTrustBundle").filter(|p| p.is_object()) {
            count += 1;
            inside(report, &mut |r| r.at("clusterTrustBundle", |r| trust_bundle(r, bundle)));
            let path = text(bundle, "path");
            clash(report, path, path, &paths);
            paths.push(path);
        }
        if let Some(wanted) = source.get("podCertificate").filter(|p| p.is_object()) {
            count += 1;
            inside(report, &mut |r| r.at("podCertificate", |r| pod_certificate(r, wanted)));
            for name in CERTIFICATE_PATHS {
                let path = text(wanted, name);
                clash(report, path, path, &paths);
                paths.push(path);
            }
        }
        if count > 1 {
            inside(report, &mut |r| r.forbidden("may not specify more than 1 volume type per source"));
        }
    }
}

const CERTIFICATE_PATHS: [&str; 3] = ["credentialBundlePath", "keyPath", "certificateChainPath"];

/// A key and its certificate, made for the pod.
fn pod_certificate(report: &mut Report, wanted: &Value) {
    const KEYS: [&str; 6] = ["RSA3072", "RSA4096", "ECDSAP256", "ECDSAP384", "ECDSAP521", "ED25519"];
    let (signer, key) = (text(wanted, "signerName"), text(wanted, "keyType"));
    report.at("signerName", |r| super::super::certificate::signer_name(r, signer));
    if !KEYS.contains(&key) {
        report.at("keyType", |r| r.not_supported(key, &KEYS));
    }
    let (least, most) = super::super::trust::life(signer);
    if let Some(seconds) = wanted["maxExpirationSeconds"].as_i64().filter(|s| !(least..=most).contains(s)) {
        report.bad("maxExpirationSeconds", seconds, format_args!("must be in the range [{least}, {most}]"));
    }
    let said: Vec<&str> = CERTIFICATE_PATHS.into_iter().filter(|name| !text(wanted, name).is_empty()).collect();
    for name in &said {
        report.at(name, |r| local_path(r, text(wanted, name)));
    }
    if said.is_empty() {
        report.required("specify at least one of credentialBundlePath, keyPath, and certificateChainPath");
    }
}

fn token_seconds(report: &mut Report, token: &Value) {
    let seconds = token["expirationSeconds"].as_i64().unwrap_or(0);
    if seconds < 600 {
        report.bad("expirationSeconds", seconds, "may not specify a duration less than 10 minutes");
    }
    if seconds > 1 << 32 {
        report.bad("expirationSeconds", seconds, "may not specify a duration larger than 2^32 seconds");
    }
}

fn trust_bundle(report: &mut Report, bundle: &Value) {
    let said = |name: &str| bundle.get(name).and_then(Value::as_str);
    match (said("name"), said("signerName")) {
        (Some(_), Some(_)) => {
            report.invalid(shown(bundle, &TRUST_BUNDLE), "only one of name and signerName may be used")
        }
        (Some(name), None) => {
            if name.is_empty() {
                report.miss("name", "must be a valid object name");
            }
            for why in names::dns_subdomain(&name.replace(':', ".")) {
                report.bad("name", name, format_args!("not a valid clustertrustbundlename: {why}"));
            }
            if bundle["labelSelector"].is_object() {
                let shown = selector::shown(&bundle["labelSelector"]);
                report.bad("labelSelector", shown, "labelSelector must be unset if name is specified");
            }
        }
        (None, Some(signer)) => {
            if signer.is_empty() {
                report.miss("signerName", "must be a valid signer name");
            }
            report.at("signerName", |r| super::super::certificate::signer_name(r, signer));
            report.at("labelSelector", |r| selector::check(r, &bundle["labelSelector"]));
        }
        (None, None) => report.required("either name or signerName must be specified"),
    }
    report.need(bundle, "path");
    report.at("path", |r| local_path(r, text(bundle, "path")));
}
