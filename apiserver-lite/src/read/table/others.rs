//! Columns of storage and networking kinds.

use serde_json::Value;

use super::{Cells, Column, age, or_none};

const TEXT: &str = "string";

pub(super) fn printer(group: &str, plural: &str) -> Option<(&'static [Column], Cells)> {
    Some(match (group, plural) {
        ("", "persistentvolumeclaims") => (
            &[
                Column("Status", TEXT, 0),
                Column("Volume", TEXT, 0),
                Column("Capacity", TEXT, 0),
                Column("Access Modes", TEXT, 0),
                Column("StorageClass", TEXT, 0),
                Column("VolumeAttributesClass", TEXT, 0),
                Column("Age", TEXT, 0),
                Column("VolumeMode", TEXT, 1),
            ],
            claim,
        ),
        ("", "persistentvolumes") => (
            &[
                Column("Capacity", TEXT, 0),
                Column("Access Modes", TEXT, 0),
                Column("Reclaim Policy", TEXT, 0),
                Column("Status", TEXT, 0),
                Column("Claim", TEXT, 0),
                Column("StorageClass", TEXT, 0),
                Column("VolumeAttributesClass", TEXT, 0),
                Column("Reason", TEXT, 0),
                Column("Age", TEXT, 0),
                Column("VolumeMode", TEXT, 1),
            ],
            volume,
        ),
        ("storage.k8s.io", "storageclasses") => (
            &[
                Column("Provisioner", TEXT, 0),
                Column("ReclaimPolicy", TEXT, 0),
                Column("VolumeBindingMode", TEXT, 0),
                Column("AllowVolumeExpansion", TEXT, 0),
                Column("Age", TEXT, 0),
            ],
            storage_class,
        ),
        ("storage.k8s.io", "volumeattachments") => (
            &[
                Column("Attacher", TEXT, 0),
                Column("PV", TEXT, 0),
                Column("Node", TEXT, 0),
                Column("Attached", "boolean", 0),
                Column("Age", TEXT, 0),
            ],
            |v| {
                let spec = &v["spec"];
                let attached = v["status"]["attached"].as_bool().unwrap_or(false);
                let volume = text(&spec["source"]["persistentVolumeName"]);
                vec![text(&spec["attacher"]), volume, text(&spec["nodeName"]), attached.into(), age(v)]
            },
        ),
        ("storage.k8s.io", "csidrivers") => (
            &[
                Column("AttachRequired", "boolean", 0),
                Column("PodInfoOnMount", "boolean", 0),
                Column("StorageCapacity", "boolean", 0),
                Column("TokenRequests", TEXT, 0),
                Column("RequiresRepublish", "boolean", 0),
                Column("Modes", TEXT, 0),
                Column("Age", TEXT, 0),
            ],
            csi_driver,
        ),
        ("storage.k8s.io", "csinodes") => (&[Column("Drivers", "integer", 0), Column("Age", TEXT, 0)], |v| {
            vec![v["spec"]["drivers"].as_array().map_or(0, Vec::len).into(), age(v)]
        }),
        ("storage.k8s.io", "csistoragecapacities") => {
            (&[Column("StorageClassName", TEXT, 0), Column("Capacity", TEXT, 0)], |v| {
                vec![text(&v["storageClassName"]), or_unset(&v["capacity"], "<unset>")]
            })
        }
        ("storage.k8s.io", "volumeattributesclasses") => {
            (&[Column("DriverName", TEXT, 0), Column("Age", TEXT, 0)], |v| vec![text(&v["driverName"]), age(v)])
        }
        ("networking.k8s.io", "ingressclasses") => {
            (&[Column("Controller", TEXT, 0), Column("Parameters", TEXT, 0), Column("Age", TEXT, 0)], |v| {
                vec![text(&v["spec"]["controller"]), class_parameters(&v["spec"]["parameters"]), age(v)]
            })
        }
        ("networking.k8s.io", "networkpolicies") => (&[Column("Pod-Selector", TEXT, 0), Column("Age", TEXT, 0)], |v| {
            let selector: Value = crate::selectors::text(&v["spec"]["podSelector"]).into();
            vec![or_none(&selector), age(v)]
        }),
        ("networking.k8s.io", "ipaddresses") => {
            (&[Column("ParentRef", TEXT, 0)], |v| vec![parent(&v["spec"]["parentRef"]), age(v)])
        }
        ("networking.k8s.io", "servicecidrs") => (&[Column("CIDRs", TEXT, 0), Column("Age", TEXT, 0)], |v| {
            let cidrs = v["spec"]["cidrs"].as_array().into_iter().flatten().filter_map(Value::as_str);
            vec![cidrs.collect::<Vec<_>>().join(",").into(), age(v)]
        }),
        ("", "podtemplates") => {
            (&[Column("Containers", TEXT, 0), Column("Images", TEXT, 0), Column("Pod Labels", TEXT, 0)], |v| {
                let [names, images] = super::core::containers(&v["template"]);
                vec![names, images, super::pairs(&v["template"]["metadata"]["labels"])]
            })
        }
        ("", "componentstatuses") => {
            (&[Column("Status", TEXT, 0), Column("Message", TEXT, 0), Column("Error", TEXT, 0)], |v| {
                let conditions = v["conditions"].as_array().into_iter().flatten();
                let health = conditions.into_iter().find(|c| c["type"] == "Healthy");
                let state = health.map_or("Unknown", |c| if c["status"] == "True" { "Healthy" } else { "Unhealthy" });
                let part = |key: &str| health.map_or("".into(), |c| text(&c[key]));
                vec![state.into(), part("message"), part("error")]
            })
        }
        ("networking.k8s.io", "ingresses") => (
            &[
                Column("Class", TEXT, 0),
                Column("Hosts", TEXT, 0),
                Column("Address", TEXT, 0),
                Column("Ports", TEXT, 0),
                Column("Age", TEXT, 0),
            ],
            ingress,
        ),
        ("coordination.k8s.io", "leases") => {
            (&[Column("Holder", TEXT, 0), Column("Age", TEXT, 0)], |v| vec![text(&v["spec"]["holderIdentity"]), age(v)])
        }
        ("node.k8s.io", "runtimeclasses") => {
            (&[Column("Handler", TEXT, 0), Column("Age", TEXT, 0)], |v| vec![text(&v["handler"]), age(v)])
        }
        _ => return None,
    })
}

fn text(value: &Value) -> Value {
    value.as_str().unwrap_or_default().into()
}

/// `RWO,ROX`: each mode once, in upstream's order.
fn access_modes(modes: &Value) -> Value {
    let has = |mode: &str| modes.as_array().is_some_and(|m| m.iter().any(|x| x == mode));
    let known =
        [("ReadWriteOnce", "RWO"), ("ReadOnlyMany", "ROX"), ("ReadWriteMany", "RWX"), ("ReadWriteOncePod", "RWOP")];
    known.into_iter().filter(|(mode, _)| has(mode)).map(|(_, short)| short).collect::<Vec<_>>().join(",").into()
}

fn or_unset(value: &Value, word: &str) -> Value {
    value.as_str().unwrap_or(word).into()
}

/// The class that a claim or volume names; the older annotation wins.
fn storage_class_of(v: &Value) -> Value {
    match &v["metadata"]["annotations"]["volume.beta.kubernetes.io/storage-class"] {
        Value::String(class) => class.as_str().into(),
        _ => text(&v["spec"]["storageClassName"]),
    }
}

fn claim(v: &Value) -> Vec<Value> {
    let (spec, status) = (&v["spec"], &v["status"]);
    let bound = spec["volumeName"].as_str().is_some_and(|n| !n.is_empty());
    let phase =
        if v["metadata"]["deletionTimestamp"].is_string() { "Terminating".into() } else { text(&status["phase"]) };
    vec![
        phase,
        text(&spec["volumeName"]),
        if bound { or_unset(&status["capacity"]["storage"], "0") } else { "".into() },
        if bound { access_modes(&status["accessModes"]) } else { "".into() },
        storage_class_of(v),
        or_unset(&spec["volumeAttributesClassName"], "<unset>"),
        age(v),
        or_unset(&spec["volumeMode"], "<unset>"),
    ]
}

fn volume(v: &Value) -> Vec<Value> {
    let (spec, status) = (&v["spec"], &v["status"]);
    let phase =
        if v["metadata"]["deletionTimestamp"].is_string() { "Terminating".into() } else { text(&status["phase"]) };
    let claim = &spec["claimRef"];
    let claim = if claim.is_object() {
        let part = |key: &str| claim[key].as_str().unwrap_or_default();
        format!("{}/{}", part("namespace"), part("name"))
    } else {
        String::new()
    };
    vec![
        or_unset(&spec["capacity"]["storage"], "0"),
        access_modes(&spec["accessModes"]),
        text(&spec["persistentVolumeReclaimPolicy"]),
        phase,
        claim.into(),
        storage_class_of(v),
        or_unset(&spec["volumeAttributesClassName"], "<unset>"),
        text(&status["reason"]),
        age(v),
        or_unset(&spec["volumeMode"], "<unset>"),
    ]
}

fn csi_driver(v: &Value) -> Vec<Value> {
    let spec = &v["spec"];
    let flag = |key: &str, default: bool| Value::from(spec[key].as_bool().unwrap_or(default));
    let strings = |list: &Value| -> String {
        list.as_array().into_iter().flatten().filter_map(Value::as_str).collect::<Vec<_>>().join(",")
    };
    let tokens = match spec["tokenRequests"].as_array() {
        None => "<unset>".into(),
        Some(_) => super::joined(&spec["tokenRequests"], "audience"),
    };
    let modes: Value = strings(&spec["volumeLifecycleModes"]).into();
    vec![
        flag("attachRequired", true),
        flag("podInfoOnMount", false),
        flag("storageCapacity", false),
        tokens,
        flag("requiresRepublish", false),
        or_none(&modes),
        age(v),
    ]
}

fn class_parameters(parameters: &Value) -> Value {
    let part = |key: &str| parameters[key].as_str().unwrap_or_default();
    match (part("kind"), part("apiGroup")) {
        ("", _) => "<none>".into(),
        (kind, "") => format!("{kind}/{}", part("name")).into(),
        (kind, group) => format!("{kind}.{group}/{}", part("name")).into(),
    }
}

fn parent(parent: &Value) -> Value {
    if !parent.is_object() {
        return "<none>".into();
    }
    let part = |key: &str| parent[key].as_str().unwrap_or_default();
    let resource = crate::status::qualified(part("group"), part("resource")).to_lowercase();
    match part("namespace") {
        "" => format!("{resource}/{}", part("name")).into(),
        namespace => format!("{resource}/{namespace}/{}", part("name")).into(),
    }
}

fn storage_class(v: &Value) -> Vec<Value> {
    vec![
        text(&v["provisioner"]),
        or_unset(&v["reclaimPolicy"], "Delete"),
        or_unset(&v["volumeBindingMode"], "Immediate"),
        v["allowVolumeExpansion"].as_bool().unwrap_or(false).into(),
        age(v),
    ]
}

const HOSTS_SHOWN: usize = 3;

fn ingress(v: &Value) -> Vec<Value> {
    let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
    let rules = list(&v["spec"]["rules"]);
    // Rules without a host are not shown, but counted.
    let mut hosts = Vec::new();
    let mut more = false;
    for rule in &rules {
        more |= hosts.len() == HOSTS_SHOWN;
        match rule["host"].as_str() {
            Some(host) if !more && !host.is_empty() => hosts.push(host),
            _ => {}
        }
    }
    let hosts = match hosts.len() {
        0 => "*".to_owned(),
        _ if more => format!("{} + {} more...", hosts.join(","), rules.len() - HOSTS_SHOWN),
        _ => hosts.join(","),
    };
    let addresses = super::core::balancers(v);
    let ports = if list(&v["spec"]["tls"]).is_empty() { "80" } else { "80, 443" };
    vec![or_none(&v["spec"]["ingressClassName"]), hosts.into(), addresses.join(",").into(), ports.into(), age(v)]
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn an_ingress_shows_three_hosts_and_counts_the_rest() {
        let rules: Vec<Value> = ["a", "b", "c", "d"].iter().map(|h| json!({"host": h})).collect();
        let cells = ingress(&json!({"spec": {"rules": rules}}));
        assert_eq!(cells[1], "a,b,c + 1 more...");
    }

    #[test]
    fn access_modes_are_shortened_in_a_fixed_order() {
        assert_eq!(access_modes(&json!(["ReadWriteMany", "ReadWriteOnce"])), "RWO,RWX");
    }
}
