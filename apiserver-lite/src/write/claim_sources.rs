//! What a claim is filled from stands in two fields, an older and a newer one, which say the same.
//!
//! Set after the fields whose gate is off are gone and before anything is checked: whoever sent the object owns what it
//! said and no more. Follows `pkg/api/persistentvolumeclaim`.

use serde_json::{Map, Value};

/// Settles both fields of a spec; `old` is the stored one.
pub(super) fn settle(spec: &mut Value, old: Option<&Value>) {
    let Some(spec) = spec.as_object_mut() else { return };
    let said = |spec: &Map<String, Value>, name: &str| spec.get(name).is_some_and(Value::is_object);
    let before =
        old.and_then(Value::as_object).is_some_and(|old| said(old, "dataSource") || said(old, "dataSourceRef"));
    // The older field never took anything but these, and drops the rest silently, unless the client knows the newer one.
    if !before && !said(spec, "dataSourceRef") && !spec.get("dataSource").is_none_or(is_known) {
        spec.remove("dataSource");
    }
    match (said(spec, "dataSource"), said(spec, "dataSourceRef")) {
        (true, false) => copy(spec, "dataSource", "dataSourceRef"),
        // The older field cannot name what is in another namespace.
        (false, true) if spec["dataSourceRef"]["namespace"].as_str().is_none_or(str::is_empty) => {
            copy(spec, "dataSourceRef", "dataSource");
        }
        _ => {}
    }
}

fn is_known(source: &Value) -> bool {
    let of = |key: &str| source[key].as_str().unwrap_or_default();
    let known = [("", "PersistentVolumeClaim"), ("snapshot.storage.k8s.io", "VolumeSnapshot")];
    known.contains(&(of("apiGroup"), of("kind")))
}

fn copy(spec: &mut Map<String, Value>, from: &str, to: &str) {
    let mut source = spec[from].clone();
    if let Some(source) = source.as_object_mut() {
        source.retain(|key, _| key != "namespace");
    }
    spec.insert(to.into(), source);
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn settled(spec: Value, old: Option<Value>) -> Value {
        let mut spec = spec;
        settle(&mut spec, old.as_ref());
        spec
    }

    #[test]
    fn a_claim_says_twice_what_it_is_filled_from() {
        let snapshot = json!({"apiGroup": "snapshot.storage.k8s.io", "kind": "VolumeSnapshot", "name": "s"});
        let both = json!({"dataSource": snapshot, "dataSourceRef": snapshot});
        assert_eq!(settled(json!({"dataSource": snapshot}), None), both);
        assert_eq!(settled(json!({"dataSourceRef": snapshot}), None), both);
        let far = json!({"dataSourceRef": {"kind": "PersistentVolumeClaim", "name": "a", "namespace": "other"}});
        assert_eq!(settled(far.clone(), None), far);
    }

    #[test]
    fn what_the_older_field_does_not_know_is_dropped_where_nobody_says_it_otherwise() {
        let other = json!({"apiGroup": "example.com", "kind": "Other", "name": "o"});
        let old_field = json!({"dataSource": other});
        assert_eq!(settled(old_field.clone(), None), json!({}));
        let differing = json!({"dataSource": other, "dataSourceRef": {"kind": "PersistentVolumeClaim", "name": "a"}});
        assert_eq!(settled(differing.clone(), None), differing, "refused as they do not match");
        assert_eq!(settled(old_field, Some(differing))["dataSourceRef"], other, "it was filled before");
    }
}
