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
        report.bad("dataSource", Raw("{}".into()), "may not be specified when dataSourceRef.namespace is specified");
    } else if source.is_object()
        && reference.is_object()
        && ["apiGroup", "kind", "name"].iter().any(|k| source[*k] != reference[*k])
    {
        report.bad("dataSource", Raw("{}".into()), "must match dataSourceRef");
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
                    let quantity = amounts::quantity(amount);
                    if let Some(value) = quantity.map(|q| q.value()).filter(|v| *v < 0) {
                        r.invalid(value, "must be a valid resource quantity");
                    }
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
    if !was.is_null() && !same(affinity, was) {
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

/// Labels of a claim's template, and nothing else of its metadata.
pub fn template_metadata(report: &mut Report, metadata: &Value) {
    meta::labels(report, metadata);
    const OTHERS: [&str; 5] = ["name", "generateName", "namespace", "ownerReferences", "finalizers"];
    report.forbid(metadata, &OTHERS, "cannot be set");
}
