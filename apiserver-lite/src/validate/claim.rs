//! Persistent volumes and the claims to them.

use serde_json::Value;

use super::shapes::VOLUME_AFFINITY;
use super::{amounts, diff, has, list, meta, scheduling, selector, text, texts, volume};
use crate::field_error::{IMMUTABLE, Raw, Report, same};
use crate::go_value::shown;
use crate::names;

const MODES: [&str; 4] = ["ReadOnlyMany", "ReadWriteMany", "ReadWriteOnce", "ReadWriteOncePod"];

fn access_modes(report: &mut Report, spec: &Value) {
    let modes = texts(spec, "accessModes");
    report.at("accessModes", |r| {
        for mode in modes.iter().filter(|m| !MODES.contains(m)) {
            r.not_supported(mode, &MODES);
        }
        let once = modes.contains(&"ReadWriteOncePod");
        if once && modes.iter().any(|m| *m != "ReadWriteOncePod" && MODES.contains(m)) {
            r.forbidden("may not use ReadWriteOncePod with other access modes");
        }
    });
}

/// The spec of a claim, alone or in an ephemeral volume.
pub fn spec(report: &mut Report, spec: &Value) {
    if list(spec, "accessModes").is_empty() {
        report.miss("accessModes", "at least 1 access mode is required");
    }
    report.with(spec, "selector", selector::check);
    access_modes(report, spec);
    report.at("resources", |r| {
        r.key("storage", |r| match &spec["resources"]["requests"]["storage"] {
            Value::Null => r.required(""),
            size => amounts::positive(r, size),
        });
    });
    report.named(spec, "storageClassName", names::dns_subdomain);
    report.maybe_choice(spec, "volumeMode", &["Block", "Filesystem"]);
    for name in ["dataSource", "dataSourceRef"] {
        report.with(spec, name, source);
    }
    let (source, reference) = (&spec["dataSource"], &spec["dataSourceRef"]);
    if source.is_object() && !text(reference, "namespace").is_empty() {
        report.invalid(Raw("{}".into()), "may not be specified when dataSourceRef.namespace is specified");
    } else if source.is_object()
        && reference.is_object()
        && (source["apiGroup"] != reference["apiGroup"]
            || ["kind", "name"].iter().any(|k| text(source, k) != text(reference, k)))
    {
        report.invalid(Raw("{}".into()), "must match dataSourceRef");
    }
    report.named(spec, "volumeAttributesClassName", names::dns_subdomain);
}

fn source(report: &mut Report, source: &Value) {
    report.need(source, "name");
    report.need(source, "kind");
    let group = text(source, "apiGroup");
    if group.is_empty() && text(source, "kind") != "PersistentVolumeClaim" {
        let why = "must be 'PersistentVolumeClaim' when referencing the default apiGroup";
        report.invalid(text(source, "kind"), why);
    }
    report.named(source, "apiGroup", names::dns_subdomain);
    report.named(source, "namespace", names::dns_label);
}

/// What became of a claim: how much there is, and how far a change of it has come.
pub fn status(report: &mut Report, status: &Value) {
    const STATES: [&str; 5] = [
        "ControllerResizeInProgress",
        "ControllerResizeInfeasible",
        "NodeResizeInProgress",
        "NodeResizeInfeasible",
        "NodeResizePending",
    ];
    let entries = |name: &str| status[name].as_object().into_iter().flatten();
    for (resource, amount) in entries("capacity") {
        report.at("capacity", |r| r.key(resource, |r| basic(r, amount)));
    }
    for (resource, state) in entries("allocatedResourceStatuses") {
        // Upstream names the field by what it was called once, and shows the resource for the state.
        report.at("allocatedResourceStatus", |r| {
            claimed(r, resource);
            if !state.as_str().is_some_and(|s| STATES.contains(&s)) {
                r.not_supported(resource, &STATES);
            }
        });
    }
    for (resource, amount) in entries("allocatedResources") {
        report.at("allocatedResources", |r| {
            if r.sound(|r| claimed(r, resource)) && r.sound(|r| r.key(resource, |r| basic(r, amount))) {
                r.key(resource, |r| amounts::amount(r, "storage", amount));
            }
        });
    }
}

/// The name of something that volumes have more or less of.
fn claimed(report: &mut Report, resource: &str) {
    let complaints = names::qualified_name(resource);
    if complaints.is_empty() && amounts::is_native(resource) && resource != "storage" {
        return report.not_supported(resource, &["storage"]);
    }
    report.complaints(resource, complaints);
}

fn basic(report: &mut Report, amount: &Value) {
    if let Some(value) = amounts::quantity(amount).map(|q| q.value()).filter(|v| *v < 0) {
        report.invalid(value, "must be a valid resource quantity");
    }
}

/// A claim changes in its size, once it is bound, and in the class of its attributes.
pub fn update(report: &mut Report, new: &Value, old: &Value) {
    const CLASS: &str = "volume.beta.kubernetes.io/storage-class";
    let class = |object: &Value| object["metadata"]["annotations"][CLASS].as_str().unwrap_or_default().to_owned();
    let (mut now, mut before) = (new["spec"].clone(), old["spec"].clone());
    if text(&before, "volumeName").is_empty() {
        copy(&mut before, &now, "volumeName");
    }
    let (annotated, annotated_now) = (class(old), class(new));
    let moved = !annotated.is_empty()
        && !has(&before, "storageClassName")
        && now["storageClassName"] == annotated.as_str()
        && (annotated_now.is_empty() || annotated_now == annotated);
    if !moved && annotated != annotated_now {
        report.down(&["metadata", "annotations", CLASS], |r| r.invalid(annotated_now.as_str(), IMMUTABLE));
    }
    let from_nothing = has(&now, "storageClassName") && !has(&before, "storageClassName");
    if from_nothing && (annotated.is_empty() || now["storageClassName"] == annotated.as_str()) {
        copy(&mut now, &before, "storageClassName");
    }
    if new["status"]["phase"] == "Bound" {
        if now["resources"]["requests"].is_object() {
            now["resources"]["requests"]["storage"] = before["resources"]["requests"]["storage"].clone();
        }
        if has(&now, "volumeAttributesClassName") {
            copy(&mut now, &before, "volumeAttributesClassName");
        }
    }
    if now != before {
        let text = diff::lines("core.PersistentVolumeClaimSpec", &before, &now);
        let why = "spec is immutable after creation except resources.requests and volumeAttributesClassName for bound \
                   claims";
        report.refuse("spec", &format!("{why}\n{text}"));
    }
    let size =
        |object: &Value| amounts::quantity(&object["spec"]["resources"]["requests"]["storage"]).unwrap_or_default();
    let capacity = amounts::quantity(&new["status"]["capacity"]["storage"]).unwrap_or_default();
    if size(new) < size(old) && size(new) <= capacity {
        let why = "field can not be less than status.capacity";
        report.down(&["spec", "resources", "requests", "storage"], |r| r.forbidden(why));
    }
    report.immutable_from("volumeMode", &new["spec"]["volumeMode"], &old["spec"]["volumeMode"]);
    attributes_class(report, new, old);
}

fn attributes_class(report: &mut Report, new: &Value, old: &Value) {
    let name = "volumeAttributesClassName";
    let had = old["spec"][name].is_string();
    report.at("spec", |r| match &new["spec"][name] {
        Value::Null if had => r.refuse(name, "update from non-nil value to nil is forbidden"),
        Value::String(now) if had && now.is_empty() => {
            r.refuse(name, "update from non-nil value to an empty string is forbidden");
        }
        _ => {}
    });
}

fn copy(to: &mut Value, from: &Value, name: &str) {
    match from.get(name) {
        Some(value) => to[name] = value.clone(),
        None => drop(to.as_object_mut().and_then(|map| map.remove(name))),
    }
}

/// A persistent volume.
pub fn volume(report: &mut Report, object: &Value) {
    report.at("spec", |r| volume_spec(r, &object["spec"], text(&object["metadata"], "name")));
}

/// The spec of a volume that an attachment has in itself: it is made by a CSI driver, and nobody claims it.
pub fn inline_volume(report: &mut Report, spec: &Value) {
    const WHY: &str = "may not be specified in the context of inline volumes";
    report.forbid(spec, &["claimRef"], WHY);
    if !same(&spec["capacity"], &Value::Null) {
        report.refuse("capacity", WHY);
    }
    if !has(spec, "csi") {
        report.miss("csi", "has to be specified in the context of inline volumes");
    }
    if list(spec, "accessModes").is_empty() {
        report.miss("accessModes", "");
    }
    access_modes(report, spec);
    if !["", "Retain"].contains(&text(spec, "persistentVolumeReclaimPolicy")) {
        report.refuse("persistentVolumeReclaimPolicy", "may only be Retain in the context of inline volumes");
    }
    report.forbid(spec, &["nodeAffinity"], WHY);
    volume::persistent(report, spec, "");
    if !text(spec, "storageClassName").is_empty() {
        report.refuse("storageClassName", WHY);
    }
    if has(spec, "volumeMode") && spec["volumeMode"] != "Filesystem" {
        let why = "may not specify volumeMode other than Filesystem in the context of inline volumes";
        report.refuse("volumeMode", why);
    }
    report.forbid(spec, &["volumeAttributesClassName"], WHY);
}

fn volume_spec(report: &mut Report, spec: &Value, name: &str) {
    let r = report;
    {
        if list(spec, "accessModes").is_empty() {
            r.miss("accessModes", "");
        }
        access_modes(r, spec);
        let capacity = &spec["capacity"];
        let amounts_given = capacity.as_object();
        if amounts_given.is_none_or(|c| c.is_empty()) {
            r.miss("capacity", "");
        }
        if capacity["storage"].is_null() || amounts_given.is_some_and(|c| c.len() > 1) {
            let shown = if capacity.is_null() { "null".into() } else { capacity.to_string() };
            r.at("capacity", |r| r.unsupported(&shown, "\"storage\""));
        }
        for (name, amount) in amounts_given.into_iter().flatten() {
            r.at("capacity", |r| {
                r.key(name, |r| {
                    basic(r, amount);
                    amounts::positive(r, amount);
                });
            });
        }
        let policy = text(spec, "persistentVolumeReclaimPolicy");
        if !policy.is_empty() {
            r.maybe_choice(spec, "persistentVolumeReclaimPolicy", &["Delete", "Recycle", "Retain"]);
        }
        r.with(spec, "nodeAffinity", |r, affinity| match &affinity["required"] {
            Value::Null => r.miss("required", "must specify required node constraints"),
            required => r.at("required", |r| scheduling::node_selector(r, required)),
        });
        volume::persistent(r, spec, name);
        let root = spec["hostPath"]["path"].as_str().is_some_and(|p| !p.is_empty() && p.bytes().all(|b| b == b'/'));
        if root && policy == "Recycle" {
            r.refuse("persistentVolumeReclaimPolicy", "may not be 'recycle' for a hostPath mount of '/'");
        }
        r.named(spec, "storageClassName", names::dns_subdomain);
        r.maybe_choice(spec, "volumeMode", &["Block", "Filesystem"]);
        r.with(spec, "volumeAttributesClassName", |r, class| match class.as_str().unwrap_or_default() {
            "" => r.required("an empty string is disallowed"),
            class => r.complaints(class, names::dns_subdomain(class)),
        });
        if has(spec, "volumeAttributesClassName") && !has(spec, "csi") {
            r.miss("csi", "has to be specified when using volumeAttributesClassName");
        }
    }
}

/// The source of a volume is for ever.
pub fn volume_update(report: &mut Report, new: &Value, old: &Value) {
    let source = |object: &Value| -> Value {
        let fields = object["spec"].as_object().into_iter().flatten();
        fields.filter(|(key, _)| volume::is_persistent_source(key)).map(|(k, v)| (k.clone(), v.clone())).collect()
    };
    let (mut now, before) = (source(new), source(old));
    if before["csi"].is_object() && before["csi"]["controllerExpandSecretRef"].is_null() {
        drop(now["csi"].as_object_mut().and_then(|map| map.remove("controllerExpandSecretRef")));
    }
    if now != before {
        let text = diff::lines("core.PersistentVolumeSource", &before, &now);
        let why = format!("spec.persistentvolumesource is immutable after creation\n{text}");
        report.down(&["spec", "persistentvolumesource"], |r| r.forbidden(&why));
    }
    report.immutable_from("volumeMode", &new["spec"]["volumeMode"], &old["spec"]["volumeMode"]);
    let (affinity, was) = (&new["spec"]["nodeAffinity"], &old["spec"]["nodeAffinity"]);
    if !was.is_null() && !same(affinity, &relabelled(was, affinity)) {
        report.bad(
            "nodeAffinity",
            shown(affinity, &VOLUME_AFFINITY),
            format_args!("{IMMUTABLE}, except for updating from beta label to GA"),
        );
    }
    let name = "volumeAttributesClassName";
    if old["spec"][name].is_string() && new["spec"][name].is_null() {
        report.at("spec", |r| r.refuse(name, "update from non-nil value to nil is forbidden"));
    }
}

/// The old affinity of a volume with labels by the names that they got when they were done, where the new one has them.
fn relabelled(old: &Value, new: &Value) -> Value {
    const RENAMED: [(&str, &str); 5] = [
        ("failure-domain.beta.kubernetes.io/zone", "topology.kubernetes.io/zone"),
        ("failure-domain.beta.kubernetes.io/region", "topology.kubernetes.io/region"),
        ("beta.kubernetes.io/os", "kubernetes.io/os"),
        ("beta.kubernetes.io/arch", "kubernetes.io/arch"),
        ("beta.kubernetes.io/instance-type", "node.kubernetes.io/instance-type"),
    ];
    let mut old = old.clone();
    let terms = old.pointer_mut("/required/nodeSelectorTerms").and_then(Value::as_array_mut);
    let now = list(&new["required"], "nodeSelectorTerms");
    for (term, now) in terms.into_iter().flatten().zip(now) {
        let expressions = term.get_mut("matchExpressions").and_then(Value::as_array_mut);
        for (expression, now) in expressions.into_iter().flatten().zip(list(now, "matchExpressions")) {
            if RENAMED.contains(&(text(expression, "key"), text(now, "key"))) {
                expression["key"] = now["key"].clone();
            }
        }
    }
    old
}

/// Labels of a claim's template, and nothing else of its metadata.
pub fn template_metadata(report: &mut Report, metadata: &Value) {
    meta::labels(report, metadata);
    const OTHERS: [&str; 13] = [
        "name",
        "generateName",
        "namespace",
        "selfLink",
        "uid",
        "resourceVersion",
        "generation",
        "creationTimestamp",
        "deletionTimestamp",
        "deletionGracePeriodSeconds",
        "ownerReferences",
        "finalizers",
        "managedFields",
    ];
    let zero = |value: &Value| same(value, &Value::Null) || *value == "" || *value == 0;
    for name in OTHERS.iter().filter(|name| !zero(&metadata[**name]) || **name == "deletionGracePeriodSeconds") {
        // A pointer to zero is something.
        if !metadata[*name].is_null() {
            let name = if *name == "uid" { "uID" } else { name };
            report.refuse(name, "cannot be set");
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn labels_of_a_volumes_nodes_may_get_their_new_names() {
        let of = |key: &str, value: &str| {
            let expression = json!({"key": key, "operator": "In", "values": [value]});
            json!({"spec": {"nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [expression]}]}}}})
        };
        let told = |new: &Value, old: &Value| Report::told(|r| volume_update(r, new, old));
        let old = of("failure-domain.beta.kubernetes.io/zone", "a");
        assert!(told(&of("topology.kubernetes.io/zone", "a"), &old).is_empty());
        for other in
            [of("topology.kubernetes.io/zone", "b"), of("topology.kubernetes.io/region", "a"), json!({"spec": {}})]
        {
            let found = told(&other, &old);
            assert!(found[0].starts_with("nodeAffinity: Invalid value: "), "{found:?}");
        }
        let back = told(&old, &of("topology.kubernetes.io/zone", "a"));
        assert_eq!(back.len(), 1, "never back: {back:?}");
    }

    #[test]
    fn the_status_of_a_claim_has_amounts_and_states_that_exist() {
        let status = json!({
            "capacity": {"storage": "-1"},
            "allocatedResourceStatuses": {"cpu": "NodeResizePending", "storage": "x", "a.b/c": "NodeResizeInfeasible"},
            "allocatedResources": {"memory": "1", "storage": "-2"},
        });
        let states = r#""ControllerResizeInProgress", "ControllerResizeInfeasible", "NodeResizeInProgress", "NodeResizeInfeasible", "NodeResizePending""#;
        assert_eq!(
            Report::told(|r| super::status(r, &status)),
            [
                "capacity[storage]: Invalid value: -1: must be a valid resource quantity".to_owned(),
                "allocatedResourceStatus: Unsupported value: \"cpu\": supported values: \"storage\"".to_owned(),
                format!("allocatedResourceStatus: Unsupported value: \"storage\": supported values: {states}"),
                "allocatedResources: Unsupported value: \"memory\": supported values: \"storage\"".to_owned(),
                "allocatedResources[storage]: Invalid value: -2: must be a valid resource quantity".to_owned(),
            ]
        );
    }
}
