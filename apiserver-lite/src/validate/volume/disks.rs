//! Disks that are reached over a network, by protocols with rules of their own.

use serde_json::Value;

use super::super::{list, text};
use super::need_all;
use crate::field_error::Report;

pub(super) fn iscsi(report: &mut Report, source: &Value, first: &str) {
    report.need(source, "targetPortal");
    if report.need(source, "iqn") {
        initiator(report, "iqn", text(source, "iqn"), "must be valid format starting with iqn, eui, or naa");
    }
    if let Some(lun) = source["lun"].as_i64().filter(|l| !(0..=255).contains(l)) {
        report.bad("lun", lun, "must be between 0 and 255, inclusive");
    }
    if (source["chapAuthDiscovery"] == true || source["chapAuthSession"] == true) && !source["secretRef"].is_object() {
        report.miss("secretRef", "");
    }
    if let Some(name) = source.get("initiatorName").and_then(Value::as_str) {
        initiator(report, "initiatorname", name, first);
    }
}

fn initiator(report: &mut Report, field: &str, name: &str, prefix: &str) {
    let fixed = |rest: &str, length: usize| rest.len() == length && rest.bytes().all(|b| b.is_ascii_alphanumeric());
    let good = match name.get(..3) {
        Some("iqn") => is_iqn(name),
        Some("eui") => name.len() > 4 && fixed(&name[4..], 16),
        Some("naa") => name.len() > 4 && fixed(&name[4..], 32),
        _ => return report.bad(field, name, prefix),
    };
    if !good {
        report.bad(field, name, "must be valid format");
    }
}

/// `iqn.YYYY-MM.reversed.domain:identifier`.
fn is_iqn(name: &str) -> bool {
    let Some((date, rest)) = name.strip_prefix("iqn.").and_then(|n| n.split_once('.')) else { return false };
    let digits = |text: &str, length: usize| text.len() == length && text.bytes().all(|b| b.is_ascii_digit());
    let dated = date.split_once('-').is_some_and(|(year, month)| digits(year, 4) && digits(month, 2));
    dated
        && rest.split_once(':').is_some_and(|(domain, id)| {
            !domain.is_empty()
                && domain.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'.')
                && !id.is_empty()
                && !id.contains([',', ';', '*', '&', '$', '|'])
                && !id.contains(char::is_whitespace)
        })
}

pub(super) fn fibre_channel(report: &mut Report, source: &Value) {
    let (names, ids) = (list(source, "targetWWNs"), list(source, "wwids"));
    if names.is_empty() && ids.is_empty() {
        report.miss("targetWWNs", "must specify either targetWWNs or wwids, but not both");
    }
    if !names.is_empty() && !ids.is_empty() {
        let why = "targetWWNs and wwids can not be specified simultaneously";
        report.bad("targetWWNs", &source["targetWWNs"], why);
    }
    if !names.is_empty() {
        match source["lun"].as_i64() {
            None => report.miss("lun", "lun is required if targetWWNs is specified"),
            Some(_) => report.between(source, "lun", 0, 255),
        }
    }
}

pub(super) fn quobyte(report: &mut Report, source: &Value) {
    let why = "must be a host:port pair or multiple pairs separated by commas";
    let registry = text(source, "registry");
    if registry.is_empty() {
        report.miss("registry", why);
    } else if text(source, "tenant").len() >= 65 {
        report.miss("tenant", "must be a UUID and may not exceed a length of 64 characters");
    } else {
        for pair in registry.split(',') {
            let host = pair.rsplit_once(':').map(|(host, _)| host);
            if host.is_none_or(|h| h.contains(':') && !(h.starts_with('[') && h.ends_with(']'))) {
                report.bad("registry", registry, why);
            }
        }
    }
    report.need(source, "volume");
}

pub(super) fn azure_disk(report: &mut Report, source: &Value) {
    need_all(report, source, &["diskName", "diskURI"]);
    report.maybe_choice(source, "cachingMode", &["None", "ReadOnly", "ReadWrite"]);
    report.maybe_choice(source, "kind", &["Dedicated", "Managed", "Shared"]);
    let uri = text(source, "diskURI");
    let managed = "/subscriptions/{sub-id}/resourcegroups/{group-name}/providers/microsoft.compute/disks/{disk-id}";
    let blob = "https://{account-name}.blob.core.windows.net/{container-name}/{disk-name}.vhd";
    match text(source, "kind") {
        "" => {}
        "Managed" if uri.starts_with("/subscriptions/") => {}
        "Managed" => report.at("diskURI", |r| r.not_supported(uri, &[managed])),
        _ if uri.starts_with("https://") => {}
        _ => report.at("diskURI", |r| r.not_supported(uri, &[blob])),
    }
}
