//! Storage classes, CSI drivers and nodes, attachments and capacities.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use serde_json::Value;

use super::{amounts, claim, has, list, selector, text, volume};
use crate::field_error::{IMMUTABLE, Report, same};
use crate::go_value::{Field, Shape, shown};
use crate::names;

/// How many times topology terms that are alike are complained of: upstream's number grows with the square of theirs.
const MOST_TWINS: usize = 100;

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
        "csidrivers" => report.at("spec", |r| csi_driver(r, &object["spec"])),
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
    let mut terms: HashMap<BTreeMap<&str, BTreeSet<&str>>, usize> = HashMap::new();
    let count = list(object, "allowedTopologies").len();
    let mut left = MOST_TWINS;
    report.each(object, "allowedTopologies", |r, term| {
        let mut keys: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
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
            if keys.insert(key, values.iter().filter_map(Value::as_str).collect()).is_some() {
                r.at("key", |r| r.duplicate(key));
            }
        });
        // To upstream a term without expressions is the same as each of those that it has not come to yet, and it keeps
        // as many of these in its list as there are terms.
        let blank = if keys.is_empty() { count } else { 0 };
        let before = terms.entry(keys).or_default();
        let told = left.min(blank + *before);
        (left, *before) = (left - told, *before + 1);
        for _ in 0..told {
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
        let node = text(spec, "nodeName");
        r.at("nodeName", |r| r.complaints(node, names::dns_subdomain(node)));
        r.at("attacher", |r| volume::driver(r, text(spec, "attacher")));
        r.at("source", |r| {
            if let Some(name) = name {
                r.at("persistentVolumeName", |r| r.complaints(name, names::dns_subdomain(name)));
            }
        });
    });
    report.at("status", |r| attachment_status(r, &object["status"]));
}

/// What a driver tells of an attachment.
fn attachment_status(report: &mut Report, status: &Value) {
    const METADATA: usize = 256 << 10;
    const MESSAGE: usize = 1024;
    let metadata = status["attachmentMetadata"].as_object().into_iter().flatten();
    let size: usize = metadata.map(|(key, value)| key.len() + value.as_str().map_or(0, str::len)).sum();
    if size > METADATA {
        report.at("attachmentMetadata", |r| r.too_long(METADATA));
    }
    for name in ["attachError", "detachError"] {
        report.with(status, name, |r, error| {
            if text(error, "message").len() > MESSAGE {
                // Upstream tells of the other limit here.
                r.at("message", |r| r.too_long(METADATA));
            }
            r.between(error, "errorCode", 0, i64::from(i32::MAX));
        });
    }
}

/// How upstream spells the field in complaints.
const ATTACH: &str = "attachedRequired";

fn csi_driver(report: &mut Report, spec: &Value) {
    for (name, shown) in
        [("attachRequired", ATTACH), ("podInfoOnMount", "podInfoOnMount"), ("storageCapacity", "storageCapacity")]
    {
        if !has(spec, name) {
            report.miss(shown, "");
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
            if seen.contains(&name) {
                r.at("name", |r| r.duplicate(name));
            }
            seen.push(name);
            let mut keys = HashSet::new();
            // These are told of the driver, not of its list.
            for key in list(driver, "topologyKeys") {
                let text = key.as_str().unwrap_or_default();
                if text.is_empty() {
                    r.required("");
                }
                if !keys.insert(key) {
                    r.duplicate(key);
                }
                // Upstream shows them all.
                names::qualified_name(text).into_iter().for_each(|why| r.invalid(&driver["topologyKeys"], why));
            }
        });
    });
}

/// A driver on a node, but for how many volumes it takes, which may change.
const DRIVER: Shape = Shape::Struct(&[
    Field("Name", "name", Shape::Text),
    Field("NodeID", "nodeID", Shape::Text),
    Field("TopologyKeys", "topologyKeys", Shape::List(&Shape::Text)),
    Field("Allocatable", "", Shape::Any),
]);

fn csi_node_update(report: &mut Report, new: &Value, old: &Value) {
    for before in list(&old["spec"], "drivers") {
        for now in list(&new["spec"], "drivers").iter().filter(|d| text(d, "name") == text(before, "name")) {
            if text(now, "nodeID") != text(before, "nodeID") || !same(&now["topologyKeys"], &before["topologyKeys"]) {
                report.down(&["spec", "drivers"], |r| r.invalid(shown(now, &DRIVER), IMMUTABLE));
            }
        }
    }
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
                let (now, was) = (&new["spec"], &old["spec"]);
                r.immutable_from(ATTACH, &now["attachRequired"], &was["attachRequired"]);
                r.immutable(now, was, "volumeLifecycleModes");
            });
        }
        "csinodes" => csi_node_update(report, new, old),
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
    fn a_driver_on_a_node_stays_as_it_is_but_for_what_it_takes() {
        let of = |id: &str, count: i64| {
            json!({"spec": {"drivers": [
            {"name": "a.b", "nodeID": id, "topologyKeys": ["z"], "allocatable": {"count": count}}]}})
        };
        assert!(Report::told(|r| update(r, "csinodes", &of("n", 1), &of("n", 2))).is_empty());
        let shown = r#"{"Name":"a.b","NodeID":"m","TopologyKeys":["z"],"Allocatable":null}"#;
        let told = Report::told(|r| update(r, "csinodes", &of("m", 1), &of("n", 1)));
        assert_eq!(told, [format!("spec.drivers: Invalid value: {shown}: field is immutable")]);
    }

    #[test]
    fn one_bad_key_of_a_topology_is_told_with_all_of_them() {
        let node = json!({"spec": {"drivers": [{"name": "a.b", "nodeID": "n", "topologyKeys": ["z", "b c"]}]}});
        let told = Report::told(|r| check(r, "csinodes", &node));
        assert!(
            matches!(&told[..], [one] if one.starts_with(r#"spec.drivers[0]: Invalid value: ["z","b c"]: name part"#))
        );
    }

    #[test]
    fn what_a_driver_tells_of_an_attachment_has_its_limits() {
        let status = json!({
            "attachmentMetadata": {"a": "x".repeat(256 << 10)},
            "detachError": {"message": "x".repeat(1025), "errorCode": -1},
        });
        assert_eq!(
            Report::told(|r| attachment_status(r, &status)),
            [
                "attachmentMetadata: Too long: may not be more than 262144 bytes",
                "detachError.message: Too long: may not be more than 262144 bytes",
                "detachError.errorCode: Invalid value: -1: must be between 0 and 2147483647, inclusive",
            ]
        );
    }

    #[test]
    fn terms_of_a_topology_are_compared_as_sets() {
        let of = |values: Value| json!({"matchLabelExpressions": [{"key": "k", "values": values}]});
        let told = |terms: Value| {
            let class = json!({"provisioner": "a.b/c", "volumeBindingMode": "Immediate", "allowedTopologies": terms});
            Report::told(|r| storage_class(r, &class))
        };
        assert_eq!(
            told(json!([of(json!(["a", "b"])), of(json!(["b", "a"]))])),
            ["allowedTopologies[1].matchLabelExpressions: Duplicate value: \"\""]
        );
        assert!(told(json!([of(json!(["a"])), of(json!(["b"]))])).is_empty());
        assert_eq!(told(json!([{}])), ["allowedTopologies[0].matchLabelExpressions: Duplicate value: \"\""]);
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
