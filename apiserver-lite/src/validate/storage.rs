//! Storage classes, CSI drivers and nodes, attachments and capacities.

use std::collections::HashSet;

use serde_json::Value;

use super::{amounts, claim, has, list, selector, text, volume};
use crate::field_error::{IMMUTABLE, Report, same};
use crate::go_value::{Field, Shape, shown};
use crate::names;

const SOURCE: Shape = Shape::Struct(&[
    Field("PersistentVolumeName", "persistentVolumeName", Shape::Pointer(&Shape::Text)),
    Field("InlineVolumeSpec", "inlineVolumeSpec", Shape::Any),
]);
/// The spec of an attachment.
const ATTACHMENT: Shape = Shape::Struct(&[
    Field("Attacher", "attacher", Shape::Text),
    Field("Source", "source", SOURCE),
    Field("NodeName", "nodeName", Shape::Text),
]);

pub fn check(report: &mut Report, plural: &str, object: &Value) {
    match plural {
        "storageclasses" => storage_class(report, object),
        "volumeattributesclasses" => {
            report.at("driverName", |r| volume::driver(r, text(object, "driverName")));
            parameters(report, object, "parameters");
            if object["parameters"].as_object().is_none_or(|p| p.is_empty()) {
                report.miss("parameters", "must contain at least one key/value pair");
            }
        }
        "volumeattachments" => attachment(report, object),
        "csidrivers" => {
            let name = text(&object["metadata"], "name");
            report.at("metadata", |r| r.at("name", |r| volume::driver(r, name)));
            report.at("spec", |r| csi_driver(r, &object["spec"]));
        }
        "csinodes" => csi_node(report, object),
        "csistoragecapacities" => {
            report.with(object, "nodeTopology", selector::check);
            report.need_named(object, "storageClassName", names::dns_subdomain);
            for name in ["capacity", "maximumVolumeSize"] {
                if amounts::quantity(&object[name]).is_some_and(|q| q.sign() < 0) {
                    report.bad(name, &object[name], "must be greater than or equal to 0");
                }
            }
        }
        _ => {}
    }
}

fn storage_class(report: &mut Report, object: &Value) {
    let provisioner = text(object, "provisioner");
    if report.need(object, "provisioner") {
        report.at("provisioner", |r| r.complaints(provisioner, names::qualified_name(&provisioner.to_lowercase())));
    }
    parameters(report, object, "parameters");
    let policy = text(object, "reclaimPolicy");
    if !policy.is_empty() {
        report.maybe_choice(object, "reclaimPolicy", &["Delete", "Retain"]);
    }
    if has(object, "volumeBindingMode") {
        report.maybe_choice(object, "volumeBindingMode", &["Immediate", "WaitForFirstConsumer"]);
    } else {
        report.miss("volumeBindingMode", "");
    }
    let terms = list(object, "allowedTopologies");
    report.items(object, "allowedTopologies", |r, index, term| {
        let mut keys = HashSet::new();
        r.each(term, "matchLabelExpressions", |r, expression| {
            let values = list(expression, "values");
            if values.is_empty() {
                r.miss("values", "");
            }
            let mut seen = HashSet::new();
            r.items(expression, "values", |r, _, value| {
                if !seen.insert(value) {
                    r.duplicate(value);
                }
            });
            let key = text(expression, "key");
            r.at("key", |r| r.complaints(key, names::qualified_name(key)));
            if !keys.insert(key) {
                r.at("key", |r| r.duplicate(key));
            }
        });
        if terms[..index].contains(term) {
            r.at("matchLabelExpressions", |r| r.duplicate(""));
        }
    });
}

fn parameters(report: &mut Report, object: &Value, name: &str) {
    let Some(map) = object[name].as_object() else { return };
    report.at(name, |r| {
        if map.len() > 512 {
            return r.too_long(512);
        }
        let mut size = 0;
        for (key, value) in map {
            if key.is_empty() {
                r.invalid("", "field can not be empty.");
            }
            size += key.len() + value.as_str().map_or(0, str::len);
        }
        if size > 256 << 10 {
            r.too_long(256 << 10);
        }
    });
}

fn attachment(report: &mut Report, object: &Value) {
    let spec = &object["spec"];
    report.at("spec", |r| {
        r.need(spec, "attacher");
        let source = &spec["source"];
        let name = source.get("persistentVolumeName").and_then(Value::as_str);
        r.at("source", |r| match (name, has(source, "inlineVolumeSpec")) {
            (None, false) => {
                r.required("must specify exactly one of inlineVolumeSpec and persistentVolumeName");
            }
            (Some(_), true) => {
                r.forbidden("must specify exactly one of inlineVolumeSpec and persistentVolumeName");
            }
            (Some(""), false) => r.miss("persistentVolumeName", "must specify non empty persistentVolumeName"),
            (Some(_), false) => {}
            (None, true) => r.at("inlineVolumeSpec", |r| claim::inline_volume(r, &source["inlineVolumeSpec"])),
        });
        r.need_named(spec, "nodeName", names::dns_subdomain);
        r.at("attacher", |r| volume::driver(r, text(spec, "attacher")));
        r.at("source", |r| {
            if let Some(name) = name {
                r.at("persistentVolumeName", |r| r.complaints(name, names::dns_subdomain(name)));
            }
        });
    });
}

fn csi_driver(report: &mut Report, spec: &Value) {
    for name in ["attachRequired", "podInfoOnMount", "storageCapacity"] {
        if !has(spec, name) {
            report.miss(name, "");
        }
    }
    report.maybe_choice(spec, "fsGroupPolicy", &["File", "None", "ReadWriteOnceWithFSType"]);
    let mut seen: Vec<&str> = Vec::new();
    report.each(spec, "tokenRequests", |r, request| {
        let audience = text(request, "audience");
        if seen.contains(&audience) {
            r.at("audience", |r| r.duplicate(audience));
        } else {
            seen.push(audience);
        }
        if let Some(seconds) = request["expirationSeconds"].as_i64() {
            if seconds < 600 {
                r.bad("expirationSeconds", seconds, "may not specify a duration less than 10 minutes");
            }
            if seconds > 1 << 32 {
                r.bad("expirationSeconds", seconds, "may not specify a duration larger than 2^32 seconds");
            }
        }
    });
    let modes = list(spec, "volumeLifecycleModes");
    for mode in modes.iter().filter_map(Value::as_str).filter(|m| !["Persistent", "Ephemeral"].contains(m)) {
        report.at("volumeLifecycleModes", |r| r.not_supported(mode, &["Ephemeral", "Persistent"]));
    }
    if let Some(seconds) = spec["nodeAllocatableUpdatePeriodSeconds"].as_i64().filter(|s| *s < 10) {
        report.bad("nodeAllocatableUpdatePeriodSeconds", seconds, "must be greater than or equal to 10 seconds");
    }
    if let Some(said) =
        spec["serviceAccountTokenInSecrets"].as_bool().filter(|_| list(spec, "tokenRequests").is_empty())
    {
        let why = "serviceAccountTokenInSecrets is set but no tokenRequests are specified";
        report.bad("serviceAccountTokenInSecrets", said, why);
    }
}

fn csi_node(report: &mut Report, object: &Value) {
    let mut seen: Vec<&str> = Vec::new();
    report.at("spec", |r| {
        r.each(&object["spec"], "drivers", |r, driver| {
            let name = text(driver, "name");
            r.at("name", |r| volume::driver(r, name));
            if seen.contains(&name) {
                r.at("name", |r| r.duplicate(name));
            }
            seen.push(name);
            let id = text(driver, "nodeID");
            r.at("nodeID", |r| {
                if id.is_empty() {
                    r.required("");
                }
                if id.len() > 192 {
                    r.invalid(id, "must be 192 characters or less");
                }
            });
            if let Some(count) = driver["allocatable"]["count"].as_i64().filter(|c| *c < 0) {
                r.down(&["allocatable", "count"], |r| r.invalid(count, "must be greater than or equal to 0"));
            }
            let mut keys = HashSet::new();
            r.items(driver, "topologyKeys", |r, _, key| {
                let text = key.as_str().unwrap_or_default();
                if text.is_empty() {
                    r.required("");
                }
                if !keys.insert(key) {
                    r.duplicate(key);
                }
                r.complaints(text, names::qualified_name(text));
            });
        });
    });
}

/// What may not change.
pub fn update(report: &mut Report, plural: &str, new: &Value, old: &Value) {
    match plural {
        "storageclasses" => {
            for name in ["parameters", "provisioner", "reclaimPolicy", "volumeBindingMode"] {
                report.immutable(new, old, name);
            }
        }
        "volumeattributesclasses" => {
            report.immutable(new, old, "driverName");
            report.immutable(new, old, "parameters");
        }
        "volumeattachments" if !same(&new["spec"], &old["spec"]) => {
            report.bad("spec", shown(&new["spec"], &ATTACHMENT), IMMUTABLE);
        }
        "csidrivers" => {
            report.at("spec", |r| csi_driver(r, &new["spec"]));
            report.at("spec", |r| {
                for name in ["attachRequired", "volumeLifecycleModes"] {
                    r.immutable(&new["spec"], &old["spec"], name);
                }
            });
        }
        "csistoragecapacities" => {
            report.immutable(new, old, "nodeTopology");
            report.immutable(new, old, "storageClassName");
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_volume_inside_of_an_attachment_is_a_drivers_and_nobodys() {
        let inline = json!({"accessModes": ["ReadWriteOnce"], "capacity": {"storage": "1Gi"}, "volumeMode": "Block",
            "nodeAffinity": {}, "persistentVolumeReclaimPolicy": "Delete", "storageClassName": "s", "claimRef": {},
            "hostPath": {"path": "/x"}});
        let object = json!({"spec": {"attacher": "a.b", "nodeName": "n", "source": {"inlineVolumeSpec": inline}}});
        let at = |field: &str, rest: &str| format!("spec.source.inlineVolumeSpec.{field}: {rest}");
        let not = "Forbidden: may not be specified in the context of inline volumes";
        assert_eq!(
            Report::told(|r| check(r, "volumeattachments", &object)),
            [
                at("claimRef", not),
                at("capacity", not),
                at("csi", "Required value: has to be specified in the context of inline volumes"),
                at("persistentVolumeReclaimPolicy", "Forbidden: may only be Retain in the context of inline volumes"),
                at("nodeAffinity", not),
                at("storageClassName", not),
                at(
                    "volumeMode",
                    "Forbidden: may not specify volumeMode other than Filesystem in the context of inline volumes"
                ),
            ]
        );
    }

    #[test]
    fn an_attachment_that_changes_is_shown_as_go_does() {
        let of =
            |node: &str| json!({"spec": {"attacher": "a", "source": {"persistentVolumeName": "p"}, "nodeName": node}});
        let shown = r#"{"Attacher":"a","Source":{"PersistentVolumeName":"p","InlineVolumeSpec":null},"NodeName":"n"}"#;
        let found = Report::told(|r| update(r, "volumeattachments", &of("n"), &of("m")));
        assert_eq!(found, [format!("spec: Invalid value: {shown}: field is immutable")]);
    }

    #[test]
    fn tokens_in_secrets_have_to_be_asked_for() {
        let driver = json!({"attachRequired": true, "podInfoOnMount": true, "storageCapacity": true,
            "serviceAccountTokenInSecrets": false});
        let why = "serviceAccountTokenInSecrets: Invalid value: false: serviceAccountTokenInSecrets is set but no \
                   tokenRequests are specified";
        assert_eq!(Report::told(|r| csi_driver(r, &driver)), [why]);
    }
}
