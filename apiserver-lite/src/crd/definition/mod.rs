//! Definitions as objects: their defaults, what the server sets in them, and whether they are sound.
//!
//! Follows `apis/apiextensions/validation`. Upstream checks the internal form, in which what all versions have in
//! common stands beside them; complaints say its paths, and so do these.

mod defaults;
mod field_path;
mod found;
mod schema;
mod shown;
mod spec;
mod structural;

use std::collections::HashSet;

use proto::time::Timestamp;
use serde_json::{Value, json};

use super::controller::FINALIZER;
use super::names;
use crate::resource::Resource;
use crate::status::{Cause, quote};
pub use field_path::follow as follow_path;
pub use found::Found;
pub use schema::Ruled;
pub use shown::rule as show_rule;

/// Whether a resource is that of definitions.
pub fn is_definition(resource: &Resource) -> bool {
    &*resource.group == "apiextensions.k8s.io" && &*resource.plural == "customresourcedefinitions"
}

fn text<'a>(value: &'a Value, key: &str) -> &'a str {
    value.get(key).and_then(Value::as_str).unwrap_or_default()
}

fn items(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

/// Fills in the names that follow from others, and the conversion.
pub fn default(value: &mut Value) {
    let Some(spec) = value.get_mut("spec").and_then(Value::as_object_mut) else { return };
    if let Some(names) = spec.entry("names").or_insert_with(|| json!({})).as_object_mut() {
        let kind = names.get("kind").and_then(Value::as_str).unwrap_or_default().to_owned();
        let absent = |names: &serde_json::Map<String, Value>, key: &str| {
            names.get(key).and_then(Value::as_str).unwrap_or_default().is_empty()
        };
        if absent(names, "singular") && !kind.is_empty() {
            names.insert("singular".into(), kind.to_lowercase().into());
        }
        if absent(names, "listKind") && !kind.is_empty() {
            names.insert("listKind".into(), format!("{kind}List").into());
        }
    }
    let conversion = spec.entry("conversion").or_insert_with(|| json!({"strategy": "None"}));
    if let Some(service) =
        conversion.get_mut("webhook").and_then(|w| w.get_mut("clientConfig")?.get_mut("service")?.as_object_mut())
    {
        service.entry("port").or_insert(443.into());
    }
}

/// Sets what a new definition begins with, or keeps what an update may not change. The version of storage is remembered
/// for as long as objects may lie in it.
pub fn prepare(value: &mut Value, old: Option<&Value>) {
    value["status"] = match old {
        Some(old) => old["status"].clone(),
        None => json!({"acceptedNames": {"plural": "", "kind": ""}, "storedVersions": []}),
    };
    let storage = items(&value["spec"]["versions"]).iter().find(|v| v["storage"] == true);
    let Some(name) = storage.and_then(|v| v["name"].as_str()).map(ToOwned::to_owned) else { return };
    let stored = &mut value["status"]["storedVersions"];
    if !stored.is_array() {
        *stored = json!([]);
    }
    if let Some(stored) = stored.as_array_mut().filter(|s| s.iter().all(|v| *v != *name)) {
        stored.push(name.into());
    }
}

/// Marks a definition as going away; it stays until its instances are gone. False when it is marked already.
pub fn begin_delete(value: &mut Value) -> bool {
    if value["metadata"]["deletionTimestamp"].is_string() {
        return false;
    }
    value["metadata"]["deletionTimestamp"] = Timestamp::now().to_seconds_text().into();
    let finalizers = &mut value["metadata"]["finalizers"];
    if !finalizers.is_array() {
        *finalizers = json!([]);
    }
    if let Some(list) = finalizers.as_array_mut().filter(|l| l.iter().all(|f| f != FINALIZER)) {
        list.push(FINALIZER.into());
    }
    let pending = "CustomResourceDefinition marked for deletion; CustomResource deletion will begin soon";
    names::set(value, names::condition("Terminating", "True", "InstanceDeletionPending", pending));
    true
}

/// Every complaint about a definition, its metadata apart. `old` is what it replaces.
pub fn check(value: &Value, old: Option<&Value>) -> Vec<Cause> {
    let mut found = Found::default();
    if let Some(old) = old
        && old["spec"] == value["spec"]
        && old["metadata"]["annotations"] == value["metadata"]["annotations"]
    {
        // Nothing to judge: what was let in stays in.
        status(value, &mut found);
        return found.causes;
    }
    if old.is_none() {
        let wanted = format!("{}.{}", text(&value["spec"]["names"], "plural"), text(&value["spec"], "group"));
        let name = text(&value["metadata"], "name");
        if name != wanted {
            found.invalid("metadata.name", &quote(name), "must be spec.names.plural+\".\"+spec.group");
        }
    }
    spec::check(value, old, &mut found);
    status(value, &mut found);
    stored_versions(value, &mut found);
    approval(value, old, &mut found);
    if value["spec"]["preserveUnknownFields"] == true
        && old.is_none_or(|old| old["spec"]["preserveUnknownFields"] != true)
    {
        let why =
            "cannot set to true, set x-kubernetes-preserve-unknown-fields to true in spec.versions[*].schema instead";
        found.invalid("spec.preserveUnknownFields", "true", why);
    }
    found.causes
}

fn status(value: &Value, found: &mut Found) {
    spec::names(&value["status"]["acceptedNames"], "status.acceptedNames", found);
}

fn stored_versions(value: &Value, found: &mut Found) {
    let stored = items(&value["status"]["storedVersions"]);
    let path = "status.storedVersions";
    let shown = value["status"]["storedVersions"].to_string();
    if stored.is_empty() {
        return found.invalid(path, "null", "must have at least one stored version");
    }
    let versions = items(&value["spec"]["versions"]);
    for version in versions.iter().filter(|v| v["storage"] == true && !stored.contains(&v["name"])) {
        found.invalid(path, &shown, &format!("must have the storage version {}", text(version, "name")));
    }
    for (index, name) in stored.iter().enumerate().filter(|(_, name)| versions.iter().all(|v| v["name"] != **name)) {
        let name = name.as_str().unwrap_or_default();
        let why = format!(
            "missing from spec.versions; {name} was previously a storage version, and must remain in spec.versions until \
             a storage migration ensures no data remains persisted in {name} and removes {name} from \
             status.storedVersions"
        );
        found.invalid(&format!("{path}[{index}]"), &quote(name), &why);
    }
}

fn approval(value: &Value, old: Option<&Value>, found: &mut Found) {
    if !names::is_protected(text(&value["spec"], "group")) {
        return;
    }
    let (state, why) = names::approval_state(value);
    if old.is_some_and(|old| names::approval_state(old).0 == state) {
        return;
    }
    let path = format!("metadata.annotations[{}]", names::APPROVAL);
    match state {
        names::Approval::Invalid => {
            found.invalid(&path, &quote(text(&value["metadata"]["annotations"], names::APPROVAL)), &why);
        }
        names::Approval::Missing => found.required(&path, &why),
        names::Approval::Approved | names::Approval::Bypassed => {}
    }
}

/// Warns of formats that mean nothing to the server and were not there before.
pub fn warn_of_formats(value: &Value, old: Option<&Value>) {
    let collect = |definition: &Value| {
        let mut out = Vec::new();
        for version in items(&definition["spec"]["versions"]) {
            schema::visit(&version["schema"]["openAPIV3Schema"], &mut |node| {
                let format = text(node, "format");
                if !format.is_empty() && !super::formats::is_checked(text(node, "type"), format) {
                    out.push(format.to_owned());
                }
            });
        }
        out
    };
    let known: HashSet<String> = old.map(collect).unwrap_or_default().into_iter().collect();
    for format in collect(value).into_iter().filter(|f| !known.contains(f)) {
        crate::warning::add(format!("unrecognized format {}", quote(&format)));
    }
}

#[cfg(test)]
mod tests;
