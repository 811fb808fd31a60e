//! In which versions objects are stored, and their moves from one to another.

use serde_json::Value;

use super::{list, meta, text, texts};
use crate::field_error::{IMMUTABLE, Report};
use crate::names;

/// `<group>.<resource>`.
pub fn stored_name(name: &str) -> Vec<String> {
    let Some((group, resource)) = name.rsplit_once('.') else {
        return vec!["name must be in the form of <group>.<resource>".into()];
    };
    let group = names::dns_subdomain(group).into_iter().map(|why| format!("the group segment {why}"));
    let resource = names::dns_1035_label(resource).into_iter().map(|why| format!("the resource segment {why}"));
    group.chain(resource).collect()
}

/// What each server says of the versions that it reads and writes, and the one that they have in common.
pub fn stored(report: &mut Report, status: &Value) {
    report.each(status, "storageVersions", |r, server| {
        r.at("apiServerID", |r| {
            let id = text(server, "apiServerID");
            r.complaints(id, names::dns_subdomain(id));
        });
        let encoding = text(server, "encodingVersion");
        version(r, "encodingVersion", encoding);
        r.items(server, "decodableVersions", |r, _, said| {
            let complaints = api_version(said.as_str().unwrap_or_default());
            if !complaints.is_empty() {
                r.invalid(said, complaints.join(","));
            }
        });
        if !texts(server, "decodableVersions").contains(&encoding) {
            let why = format!("decodableVersions must include encodingVersion {encoding}");
            r.bad("decodableVersions", &server["decodableVersions"], why);
        }
    });
    let mut all = list(status, "storageVersions").iter().map(|server| text(server, "encodingVersion"));
    let common = all.next().filter(|first| all.all(|other| other == *first));
    let said = status["commonEncodingVersion"].as_str();
    let name = "commonEncodingVersion";
    match (common, said) {
        (None, Some(said)) => report.bad(
            name,
            said,
            "should be nil if servers do not agree on the same encoding version, or if there is no server reporting the \
             supported versions yet",
        ),
        (Some(common), None) => {
            report.bad(name, &Value::Null, format_args!("the common encoding version is {common}"));
        }
        (Some(common), Some(said)) if common != said => {
            report.bad(name, said, format_args!("the actual common encoding version is {common}"));
        }
        _ => {}
    }
}

fn version(report: &mut Report, name: &str, said: &str) {
    let complaints = api_version(said);
    if !complaints.is_empty() {
        report.bad(name, said, complaints.join(","));
    }
}

/// A version with or without its group.
fn api_version(text: &str) -> Vec<String> {
    let (group, version) = text.split_once('/').map_or((None, text), |(group, version)| (Some(group), version));
    let part = |what: &str, text: &str, rule: fn(&str) -> Vec<String>| -> Vec<String> {
        let complaints = if text.is_empty() { vec!["must be non-empty".to_owned()] } else { rule(text) };
        complaints.into_iter().map(|why| format!("{what} part: {why}")).collect()
    };
    let mut out = group.map(|group| part("group", group, names::dns_subdomain)).unwrap_or_default();
    out.extend(part("version", version, names::dns_1035_label));
    out
}

/// The spec of a migration.
pub fn migration(report: &mut Report, spec: &Value) {
    if text(&spec["resource"], "resource").is_empty() {
        report.down(&["resource", "resource"], |r| r.required("resource is required"));
    }
}

/// What is migrated stays the same; upstream leaves the way to these fields out.
pub fn migration_update(report: &mut Report, new: &Value, old: &Value) {
    let (now, before) = (&new["spec"]["resource"], &old["spec"]["resource"]);
    for name in ["group", "resource"].into_iter().filter(|name| text(now, name) != text(before, name)) {
        report.bad(name, text(now, name), IMMUTABLE);
    }
}

/// How far a migration is: it ends once, well or badly.
pub fn migration_status(report: &mut Report, new: &Value, old: &Value) {
    let (now, was) = (&new["status"], &old["status"]);
    let is = |status: &Value, kind: &str| {
        list(status, "conditions").iter().any(|c| c["type"] == kind && c["status"] == "True")
    };
    let (revision, before) = (text(now, "resourceVersion"), text(was, "resourceVersion"));
    report.at("status", |r| {
        match revision.parse::<i64>() {
            _ if revision.is_empty() => {}
            Ok(number) if number < 0 => r.bad("resourceVersion", number, "must be greater than or equal to 0"),
            Ok(_) => {}
            Err(_) => {
                let said = crate::status::quote(revision);
                let why = format!(
                    "failed to parse resource version {said}: strconv.ParseInt: parsing {said}: invalid syntax"
                );
                r.bad("resourceVersion", revision, why);
            }
        }
        meta::conditions(r, now);
        if !before.is_empty() && before != revision {
            r.bad("resourceVersion", revision, "cannot be updated");
        }
        let (done, failed, running) = (is(now, "Succeeded"), is(now, "Failed"), is(now, "Running"));
        let rules = [
            (done && failed, "Both success and failed conditions cannot be true at the same time"),
            (done && running, "Running condition cannot be true when success condition is true"),
            (failed && running, "Running condition cannot be true when failed condition is true"),
            (is(was, "Succeeded") && !done, "Success condition cannot be set to false once it is true"),
            (is(was, "Failed") && !failed, "Failed condition cannot be set to false once it is true"),
        ];
        for (_, why) in rules.iter().filter(|(broken, _)| *broken) {
            r.bad("conditions", &now["conditions"], *why);
        }
    });
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn servers_agree_on_a_version_or_have_none_in_common() {
        let server =
            |version: &str| json!({"apiServerID": "a", "encodingVersion": version, "decodableVersions": [version]});
        let of = |common: Value, versions: &[&str]| {
            let all: Vec<Value> = versions.iter().map(|v| server(v)).collect();
            Report::told(|r| stored(r, &json!({"storageVersions": all, "commonEncodingVersion": common})))
        };
        assert_eq!(of(json!("v1"), &["v1", "v1"]), [""; 0]);
        let none = "commonEncodingVersion: Invalid value: null: the common encoding version is v1";
        assert_eq!(of(Value::Null, &["v1"]), [none]);
        let other = "commonEncodingVersion: Invalid value: \"v2\": the actual common encoding version is v1";
        assert_eq!(of(json!("v2"), &["v1"]), [other]);
        assert_eq!(of(json!("v1"), &["v1", "v2"]).len(), 1);
        assert_eq!(stored_name("pods"), ["name must be in the form of <group>.<resource>"]);
        assert_eq!(stored_name("apps.deployments"), [""; 0]);
    }

    #[test]
    fn a_migration_ends_once() {
        let of = |kind: &str| {
            json!({"status": {"conditions": [{"type": kind, "status": "True", "reason": "R",
                "lastTransitionTime": "2026-01-01T00:00:00Z"}], "resourceVersion": "1"}})
        };
        assert_eq!(Report::told(|r| migration_status(r, &of("Succeeded"), &of("Running"))), [""; 0]);
        let back = Report::told(|r| migration_status(r, &of("Running"), &of("Succeeded")));
        assert!(back[0].ends_with("Success condition cannot be set to false once it is true"), "{back:?}");
        let none = "resource.resource: Required value: resource is required";
        assert_eq!(Report::told(|r| migration(r, &json!({}))), [none]);
    }
}
