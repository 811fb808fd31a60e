//! Owners of a workload's replicas as its `Scale` shows them, and back.
//!
//! The scale subresource is an object of another kind that holds one field of the workload. Whoever owns that field owns
//! `spec.replicas` of the Scale; a write of the Scale gives the field to its writer.

use serde_json::Value;

use super::element::Element;
use super::managed::{Entries, Entry};
use super::set::Set;

const SCALE_VERSION: &str = "autoscaling/v1";
const REPLICAS: &[&str] = &["spec", "replicas"];

fn path<'a>(names: &[&'a str]) -> Vec<Element<'a>> {
    names.iter().map(|name| Element::name(name)).collect()
}

/// Owners of a Scale, from the owners of its workload. `replicas` is the workload's field, `version` its own version.
pub fn of_scale(owners: &Value, version: &str, replicas: &[&str]) -> Option<Value> {
    let field = path(replicas);
    let entries = Entries::read(owners).unwrap_or_default().0;
    let owners = entries.into_iter().filter(|e| *e.api_version == *version && e.set().contains(&field));
    let entries = owners.map(|mut entry| {
        entry.set_fields(Set::of_names(&[REPLICAS]));
        entry.api_version = SCALE_VERSION.into();
        entry
    });
    Entries(entries.collect()).to_value()
}

/// Owners of a workload after a write of its Scale. Who lost the field there loses it here, who got it gets an entry.
pub fn of_workload(owners: &Value, scale_owners: &Value, version: &str, replicas: &[&str]) -> Option<Value> {
    let field = path(replicas);
    let only = Set::of_names(&[replicas]);
    let before = Entries::read(owners).unwrap_or_default().0;
    let mut scale = Entries::read(scale_owners).unwrap_or_default();
    let mut after: Vec<Entry<'_>> = Vec::with_capacity(before.len() + 1);
    // Times stay with entries of the same identity; owners by update have another one in the Scale, and lose theirs.
    let mut applied = Vec::new();
    for mut entry in before.into_iter().filter(|e| *e.api_version == *version) {
        if !entry.set().contains(&field) {
            after.push(entry);
            continue;
        }
        match scale.find(&entry) {
            Some(at) => {
                scale.0.remove(at);
                after.push(entry);
            }
            None => {
                entry.set_fields(entry.set().difference(&only));
                if entry.set().is_empty() {
                    applied.push(entry);
                } else {
                    after.push(entry);
                }
            }
        }
    }
    let wanted = path(REPLICAS);
    for mut entry in scale.0.into_iter().filter(|e| e.set().contains(&wanted)) {
        entry.time = applied.iter().chain(&after).find(|e| e.same_manager(&entry)).and_then(|e| e.time.clone());
        entry.set_fields(only.clone());
        entry.api_version = version.to_owned().into();
        after.push(entry);
    }
    Entries(after).to_value()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn entry(manager: &str, operation: &str, version: &str, fields: Value) -> Value {
        json!({"manager": manager, "operation": operation, "apiVersion": version, "time": "2026-01-01T00:00:00Z",
            "fieldsType": "FieldsV1", "fieldsV1": fields})
    }

    const WORKLOAD: &str = "apps/v1";

    #[test]
    fn owners_of_replicas_own_the_field_of_the_scale() {
        let owners = json!([
            entry("ann", "Apply", WORKLOAD, json!({"f:spec": {"f:replicas": {}, "f:paused": {}}})),
            entry("bob", "Update", WORKLOAD, json!({"f:spec": {"f:paused": {}}})),
        ]);
        let scale = of_scale(&owners, WORKLOAD, REPLICAS).expect("somebody owns the field");
        assert_eq!(scale, json!([entry("ann", "Apply", SCALE_VERSION, json!({"f:spec": {"f:replicas": {}}}))]));
        assert_eq!(of_scale(&json!([owners[1]]), WORKLOAD, REPLICAS), None);
    }

    #[test]
    fn a_new_owner_of_the_scale_takes_the_field_from_the_workloads_owners() {
        let owners = json!([entry("ann", "Apply", WORKLOAD, json!({"f:spec": {"f:replicas": {}, "f:paused": {}}}))]);
        let mut hpa = entry("hpa", "Update", SCALE_VERSION, json!({"f:spec": {"f:replicas": {}}}));
        hpa["subresource"] = "scale".into();
        let after = of_workload(&owners, &json!([hpa]), WORKLOAD, REPLICAS).expect("there are owners");
        assert_eq!(
            after,
            json!([
                entry("ann", "Apply", WORKLOAD, json!({"f:spec": {"f:paused": {}}})),
                {"manager": "hpa", "operation": "Update", "apiVersion": WORKLOAD, "fieldsType": "FieldsV1",
                    "fieldsV1": {"f:spec": {"f:replicas": {}}}, "subresource": "scale"},
            ])
        );
    }

    #[test]
    fn an_owner_that_keeps_the_field_keeps_its_entry() {
        let owners = json!([entry("ann", "Apply", WORKLOAD, json!({"f:spec": {"f:replicas": {}, "f:paused": {}}}))]);
        let scale = of_scale(&owners, WORKLOAD, REPLICAS).expect("somebody owns the field");
        assert_eq!(of_workload(&owners, &scale, WORKLOAD, REPLICAS), Some(owners));
    }
}
