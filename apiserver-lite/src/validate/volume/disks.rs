//! Disks that are reached over a network, by protocols with rules of their own.

use serde_json::Value;

use super::super::{list, text};
use super::{long_portal, need_all};
use crate::field_error::Report;

/// `volume`: the name of the persistent volume whose source this is.
pub(super) fn iscsi(report: &mut Report, source: &Value, volume: Option<&str>) {
    report.need(source, "targetPortal");
    if let Some(volume) = volume.filter(|_| source["initiatorName"].is_string()) {
        let portal = text(source, "targetPortal");
        long_portal(report, "targetportal", portal, volume, portal);
    }
    let strange = "must be valid format starting with iqn, eui, or naa";
    let prefix = if volume.is_some() { "must be valid format" } else { strange };
    if report.need(source, "iqn") {
        initiator(report, "iqn", text(source, "iqn"), prefix);
    }
    if let Some(lun) = source["lun"].as_i64().filter(|l| !(0..=255).contains(l)) {
        report.bad("lun", lun, "must be between 0 and 255, inclusive");
    }
    if (source["chapAuthDiscovery"] == true || source["chapAuthSession"] == true) && !source["secretRef"].is_object() {
        report.miss("secretRef", "");
    }
    if volume.is_some() {
        report.with(source, "secretRef", |r, s| {
            r.need(s, "name");
        });
    }
    if let Some(name) = source.get("initiatorName").and_then(Value::as_str) {
        initiator(report, "initiatorname", name, prefix);
    }
}

fn initiator(report: &mut Report, field: &str, name: &str, prefix: &str) {
    // A prefix, whatever stands after it, and characters of a fixed number.
    let fixed = |length: usize| {
        let mut rest = name.chars().skip(4);
        let found = rest.by_ref().take(length).filter(char::is_ascii_alphanumeric).count();
        found == length && rest.next().is_none()
    };
    let good = match name.get(..3) {
        Some("iqn") => is_iqn(name),
        Some("eui") => fixed(16),
        Some("naa") => fixed(32),
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

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn initiators_are_named_in_one_of_three_forms_of_any_characters() {
        let told = |iqn: &str| {
            let source = json!({"targetPortal": "p", "iqn": iqn});
            Report::told(|r| iscsi(r, &source, None)).len()
        };
        for good in ["iqn.2000-01.a.b:c", "eui.0123456789abcdef", "naa.0123456789abcdef0123456789abcdef"] {
            assert_eq!(told(good), 0, "{good}");
        }
        for bad in ["eui", "eui.", "euié0123456789abcde", "naaé", "eué", "é", "eui.0123456789abcdeé", "iqné", "x"]
        {
            assert_eq!(told(bad), 1, "{bad}");
        }
    }

    #[test]
    fn the_disk_of_a_persistent_volume_is_complained_of_in_order() {
        let source =
            json!({"targetPortal": "x".repeat(64), "iqn": "x", "lun": 256, "secretRef": {}, "initiatorName": "y"});
        let told = |volume| -> Vec<String> {
            Report::told(|r| iscsi(r, &source, volume))
                .iter()
                .map(|t| t.split(": ").next().unwrap_or("").into())
                .collect()
        };
        assert_eq!(told(Some("v")), ["targetportal", "iqn", "lun", "secretRef.name", "initiatorname"]);
        assert_eq!(told(None), ["iqn", "lun", "initiatorname"]);
    }
}
