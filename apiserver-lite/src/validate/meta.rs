//! `metadata` of every kind: names, labels, annotations, owners and finalizers.

use std::collections::HashSet;

use serde_json::Value;

use super::{list, text};
use crate::field_error::{Report, ordered};
use crate::names;

/// Keys and values of all annotations of one object.
const ANNOTATION_BYTES: usize = 256 << 10;
/// Finalizers that need no domain.
const STANDARD_FINALIZERS: [&str; 3] = ["kubernetes", "orphan", "foregroundDeletion"];

/// Whether the kinds of a group refuse finalizers without a domain. Others check their metadata as that of any object,
/// and only a warning tells of such names.
pub fn is_strict(group: &str) -> bool {
    const LENIENT: [&str; 4] =
        ["apiextensions.k8s.io", "apiregistration.k8s.io", "admissionregistration.k8s.io", "coordination.k8s.io"];
    crate::resource::is_built_in_group(group) && !LENIENT.contains(&group)
}

/// Checks the metadata of a new object, or of one that its kind checks again on every update; called at `metadata`.
pub fn check(report: &mut Report, group: &str, plural: &str, metadata: &Value) {
    check_as(report, group, metadata, |text| name(group, plural, text));
}

/// As [`check`] for a kind of Kubernetes' whose names have a rule that depends on more than the kind.
pub fn check_as(report: &mut Report, group: &str, metadata: &Value, rule: impl Fn(&str) -> Vec<String>) {
    check_names(report, metadata, rule);
    if is_strict(group) {
        domains(report, metadata);
    }
}

/// Checks what holds for the metadata of any kind; called at `metadata`.
pub fn in_general(report: &mut Report, metadata: &Value) {
    check_names(report, metadata, names::path_segment);
}

fn check_names(report: &mut Report, metadata: &Value, rule: impl Fn(&str) -> Vec<String>) {
    let stem = text(metadata, "generateName");
    if !stem.is_empty() {
        // A stem may end where a name may not, because something follows it.
        let complaints = match stem.strip_suffix('-').filter(|s| !s.is_empty()) {
            Some(start) => {
                let mut masked = start.to_owned();
                masked.pop();
                masked.push('a');
                rule(&masked)
            }
            None => rule(stem),
        };
        report.at("generateName", |r| r.complaints(stem, complaints));
    }
    let said = text(metadata, "name");
    report.at("name", |r| {
        if said.is_empty() {
            r.required("name or generateName is required");
        } else {
            r.complaints(said, rule(said));
        }
    });
    report.not_negative(metadata, "generation");
    labels(report, metadata);
    owners(report, metadata);
    finalizers(report, metadata);
}

/// As [`in_general_updated`], with what the kinds of Kubernetes' own groups check besides.
pub fn update(report: &mut Report, group: &str, new: &Value, old: &Value) {
    in_general_updated(report, new, old);
    if is_strict(group) {
        domains(report, new);
    }
}

/// What may not change; called at `metadata`. Server-set fields that the new object leaves out are as they were.
pub fn in_general_updated(report: &mut Report, new: &Value, old: &Value) {
    if !old["deletionTimestamp"].is_null() {
        let had = list(old, "finalizers");
        let mut added: Vec<&str> =
            list(new, "finalizers").iter().filter(|f| !had.contains(f)).filter_map(Value::as_str).collect();
        if !added.is_empty() {
            added.sort_unstable();
            added.dedup();
            let shown: Vec<String> = added.iter().map(|f| crate::status::quote(f)).collect();
            let why = format!(
                "no new finalizers can be added if the object is being deleted, found new finalizers []string{{{}}}",
                shown.join(", ")
            );
            report.refuse("finalizers", &why);
        }
    }
    for name in ["name", "namespace", "uid", "creationTimestamp", "deletionTimestamp", "deletionGracePeriodSeconds"] {
        if !new[name].is_null() {
            report.immutable(new, old, name);
        }
    }
    labels(report, new);
    owners(report, new);
}

/// A map of labels, complained about as a whole.
pub fn label_map(report: &mut Report, labels: &Value) {
    for (key, value) in labels.as_object().into_iter().flatten() {
        report.complaints(key, names::qualified_name(key));
        let value = value.as_str().unwrap_or_default();
        report.complaints(value, names::label_value(value));
    }
}

/// `conditions` of a status, as every kind has them that follows the common form.
pub fn conditions(report: &mut Report, status: &Value) {
    const REASON: usize = 1024;
    const MESSAGE: usize = 32 << 10;
    let mut seen = HashSet::new();
    report.each(status, "conditions", |r, condition| {
        let kind = text(condition, "type");
        if !seen.insert(kind) {
            r.at("type", |r| r.duplicate(kind));
        }
        r.at("type", |r| r.complaints(kind, names::qualified_name(kind)));
        let said = text(condition, "status");
        if !["False", "True", "Unknown"].contains(&said) {
            r.at("status", |r| r.not_supported(said, &["False", "True", "Unknown"]));
        }
        if let Some(generation) = condition["observedGeneration"].as_i64().filter(|g| *g < 0) {
            r.bad("observedGeneration", generation, "must be greater than or equal to zero");
        }
        if condition["lastTransitionTime"].is_null() {
            r.miss("lastTransitionTime", "must be set");
        }
        let reason = text(condition, "reason");
        if reason.is_empty() {
            r.miss("reason", "must be set");
        } else {
            r.at("reason", |r| {
                r.complaints(reason, names::condition_reason(reason));
                if reason.len() > REASON {
                    r.too_long(REASON);
                }
            });
        }
        if text(condition, "message").len() > MESSAGE {
            r.at("message", |r| r.too_long(MESSAGE));
        }
    });
}

/// Labels and annotations; pod templates have no more than these.
pub fn labels(report: &mut Report, metadata: &Value) {
    report.at("labels", |r| label_map(r, &metadata["labels"]));
    report.at("annotations", |r| {
        let mut size = 0;
        for (key, value) in metadata["annotations"].as_object().into_iter().flatten() {
            size += key.len() + value.as_str().map_or(0, str::len);
            // Upper case is accepted in the domain of an annotation.
            let complaints = if key.bytes().any(|b| b.is_ascii_uppercase()) {
                names::qualified_name(&key.to_ascii_lowercase())
            } else {
                names::qualified_name(key)
            };
            r.complaints(key, complaints);
        }
        if size > ANNOTATION_BYTES {
            r.too_long(ANNOTATION_BYTES);
        }
    });
}

/// Which kind of name a resource takes.
fn name(group: &str, plural: &str, name: &str) -> Vec<String> {
    match (group, plural) {
        ("rbac.authorization.k8s.io", _) | ("apiregistration.k8s.io", _) => names::path_segment(name),
        ("certificates.k8s.io", "certificatesigningrequests") => Vec::new(),
        ("", "namespaces" | "services") | ("apps", "statefulsets") => names::dns_label(name),
        ("networking.k8s.io", "ipaddresses") => super::ip::strict(name),
        ("coordination.k8s.io", "leasecandidates") => names::config_key(name),
        _ => names::dns_subdomain(name),
    }
}

fn owners(report: &mut Report, metadata: &Value) {
    let Some(owners) = metadata["ownerReferences"].as_array() else { return };
    report.at("ownerReferences", |r| {
        let mut controller: Option<&Value> = None;
        for owner in owners {
            // `apps/` has a group but no version; what has more slashes is no version at all.
            let version = text(owner, "apiVersion");
            if version.matches('/').count() > 1 || version.rsplit('/').next().unwrap_or_default().is_empty() {
                r.at("apiVersion", |r| r.invalid(text(owner, "apiVersion"), "version must not be empty"));
            }
            for key in ["kind", "name", "uid"] {
                if text(owner, key).is_empty() {
                    r.at(key, |r| r.invalid("", "must not be empty"));
                }
            }
            if text(owner, "apiVersion") == "v1" && text(owner, "kind") == "Event" {
                r.invalid(ordered(owner, &OWNER), "/v1, Kind=Event is disallowed from being an owner");
            }
            if owner["controller"] != true {
                continue;
            }
            if let Some(first) = controller {
                let why = format!(
                    "Only one reference can have Controller set to true. Found \"true\" in references for {}/{} and {}/{}",
                    text(first, "kind"),
                    text(first, "name"),
                    text(owner, "kind"),
                    text(owner, "name")
                );
                r.invalid(Owners(owners), why);
            } else {
                controller = Some(owner);
            }
        }
    });
}

/// Members of a reference in the order of their Go struct.
const OWNER: [&str; 6] = ["apiVersion", "kind", "name", "uid", "controller", "blockOwnerDeletion"];

/// References print in the order of their Go struct, whatever order the tree keeps.
struct Owners<'a>(&'a [Value]);

impl crate::field_error::Shown for Owners<'_> {
    fn shown(&self) -> String {
        let shown: Vec<String> = self.0.iter().map(|owner| ordered(owner, &OWNER).0).collect();
        format!("[{}]", shown.join(","))
    }
}

fn finalizers(report: &mut Report, metadata: &Value) {
    let Some(list) = metadata["finalizers"].as_array() else { return };
    report.at("finalizers", |r| {
        for finalizer in list.iter().filter_map(Value::as_str) {
            r.complaints(finalizer, names::qualified_name(finalizer));
        }
        if list.iter().any(|f| f == "orphan") && list.iter().any(|f| f == "foregroundDeletion") {
            r.invalid(&metadata["finalizers"], "finalizer orphan and foregroundDeletion cannot be both set");
        }
    });
}

/// A finalizer is a standard one or has a domain.
fn domains(report: &mut Report, metadata: &Value) {
    let Some(list) = metadata["finalizers"].as_array() else { return };
    report.at("finalizers", |r| {
        for (index, finalizer) in list.iter().filter_map(Value::as_str).enumerate() {
            if !finalizer.contains('/') && !STANDARD_FINALIZERS.contains(&finalizer) {
                let why = "name is neither a standard finalizer name nor is it fully qualified";
                r.index(index, |r| r.invalid(finalizer, why));
            }
        }
    });
}
