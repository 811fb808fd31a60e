//! The node object: made when absent, brought in line when it was there before.

use std::collections::BTreeMap;
use std::time::Duration;

use proto::api::core::v1::{Node, NodeSpec, NodeStatus, Taint};
use proto::api::storage::v1::{CsiNode, CsiNodeSpec};
use proto::apimachinery::pkg::apis::meta::v1::OwnerReference;
use serde_json::{Value, json};

use super::{NodeSettings, tree};
use crate::api::{ApiError, Client, Kind, PatchType};
use crate::backoff::Backoff;

const CONTROLLER_MANAGED_ATTACH: &str = "volumes.kubernetes.io/controller-managed-attach-detach";
const PROVIDED_NODE_IP: &str = "alpha.kubernetes.io/provided-node-ip";
/// Labels that are kept right on a node that exists, where the agent has something to say about them.
const KEPT_LABELS: &[&str] = &[
    "kubernetes.io/hostname",
    "topology.kubernetes.io/zone",
    "topology.kubernetes.io/region",
    "failure-domain.beta.kubernetes.io/zone",
    "failure-domain.beta.kubernetes.io/region",
    "node.kubernetes.io/instance-type",
    "beta.kubernetes.io/instance-type",
    "kubernetes.io/os",
    "kubernetes.io/arch",
    "node.kubernetes.io/windows-build",
    "beta.kubernetes.io/os",
    "beta.kubernetes.io/arch",
];
/// What the kubelet says about the volume plugins that moved to CSI.
const MIGRATED_PLUGINS: (&str, &str) = (
    "storage.alpha.kubernetes.io/migrated-plugins",
    "kubernetes.io/aws-ebs,kubernetes.io/azure-disk,kubernetes.io/azure-file,kubernetes.io/cinder,kubernetes.io/gce-pd,\
     kubernetes.io/portworx-volume,kubernetes.io/vsphere-volume",
);

/// Registers with back-off until it has worked, and returns the node as the API server has it. `status` gives the status
/// of a new node.
///
/// `remembers`: an earlier agent's devices are known, and count for nothing until their plugins are back.
pub async fn register(client: &Client, settings: &NodeSettings, remembers: bool, status: impl Fn() -> Value) -> Node {
    let mut backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(7));
    loop {
        match attempt(client, settings, remembers, &status).await {
            Ok(node) => return node,
            Err(error) => {
                let wait = backoff.next_wait();
                tracing::warn!(%error, node = %settings.name, ?wait, "cannot register the node");
                tokio::time::sleep(wait).await;
            }
        }
    }
}

async fn attempt(
    client: &Client,
    settings: &NodeSettings,
    remembers: bool,
    status: &impl Fn() -> Value,
) -> Result<Node, ApiError> {
    match client.create("", &new_node(settings, &status())).await {
        Ok(node) => {
            tracing::info!(node = %settings.name, "node registered");
            Ok(node)
        }
        // It was there before, or this user may only change it.
        Err(error) if error.is_already_exists() || error.is_forbidden() => {
            match client.get::<Node>("", &settings.name).await {
                Ok(node) => reconcile(client, settings, remembers, node).await,
                Err(missing) if missing.is_not_found() => Err(error),
                Err(other) => Err(other),
            }
        }
        Err(error) => Err(error),
    }
}

/// The node as it is first created.
pub fn new_node(settings: &NodeSettings, status: &Value) -> Node {
    let mut node = Node {
        spec: Some(NodeSpec {
            provider_id: settings.config.provider_id.clone(),
            taints: taints(settings),
            ..NodeSpec::default()
        }),
        status: tree::parse::<NodeStatus>("k8s.io.api.core.v1.NodeStatus", status),
        ..Node::default()
    };
    let metadata = node.metadata_mut();
    metadata.name.clone_from(&settings.name);
    metadata.labels = labels(settings);
    metadata.annotations = annotations(settings);
    node
}

fn taints(settings: &NodeSettings) -> Vec<Taint> {
    let mut taints: Vec<Taint> = settings
        .config
        .register_with_taints
        .iter()
        .map(|t| Taint { key: t.key.clone(), value: t.value.clone(), effect: t.effect.clone(), time_added: None })
        .collect();
    if settings.external_cloud {
        taints.push(Taint {
            key: "node.cloudprovider.kubernetes.io/uninitialized".into(),
            value: "true".into(),
            effect: "NoSchedule".into(),
            time_added: None,
        });
    }
    taints
}

fn labels(settings: &NodeSettings) -> BTreeMap<String, String> {
    let arch = settings.machine.architecture;
    let mut labels: BTreeMap<String, String> = [
        ("kubernetes.io/hostname", settings.name.as_str()),
        ("kubernetes.io/os", "linux"),
        ("kubernetes.io/arch", arch),
        ("beta.kubernetes.io/os", "linux"),
        ("beta.kubernetes.io/arch", arch),
    ]
    .map(|(k, v)| (k.to_owned(), v.to_owned()))
    .into();
    for (key, value) in &settings.labels {
        let before = labels.insert(key.clone(), value.clone());
        if let Some(default) = before.filter(|default| default != value) {
            tracing::info!(label = key, value, default, "the node label takes the place of the default");
        }
    }
    labels
}

fn annotations(settings: &NodeSettings) -> BTreeMap<String, String> {
    let mut annotations = BTreeMap::new();
    if settings.config.enable_controller_attach_detach {
        annotations.insert(CONTROLLER_MANAGED_ATTACH.to_owned(), "true".to_owned());
    }
    if settings.external_cloud && !settings.given_addresses.is_empty() {
        let given: Vec<_> = settings.given_addresses.iter().map(ToString::to_string).collect();
        annotations.insert(PROVIDED_NODE_IP.to_owned(), given.join(","));
    }
    annotations
}

/// Sends what differs in labels, annotations and resources of a node that exists.
async fn reconcile(client: &Client, settings: &NodeSettings, remembers: bool, node: Node) -> Result<Node, ApiError> {
    let Some(patch) = corrections(settings, remembers, &node) else { return Ok(node) };
    tracing::info!(node = %settings.name, %patch, "node was registered before; bringing it in line");
    client.patch::<Node>("", &settings.name, "status", PatchType::StrategicMerge, patch.to_string()).await
}

/// None when the node is as it should be.
fn corrections(settings: &NodeSettings, remembers: bool, node: &Node) -> Option<Value> {
    let metadata = node.metadata().cloned().unwrap_or_default();
    let mut patch = json!({});
    let wanted = labels(settings);
    for key in KEPT_LABELS {
        match (wanted.get(*key), metadata.labels.get(*key)) {
            // Without a value a default label is none at all.
            (Some(value), Some(_)) if value.is_empty() => patch["metadata"]["labels"][*key] = Value::Null,
            (Some(value), before) if !value.is_empty() && before != Some(value) => {
                patch["metadata"]["labels"][*key] = json!(value);
            }
            _ => {}
        }
    }
    let wanted = annotations(settings);
    for key in [CONTROLLER_MANAGED_ATTACH, PROVIDED_NODE_IP] {
        match (wanted.get(key), metadata.annotations.get(key)) {
            (Some(value), before) if before != Some(value) => patch["metadata"]["annotations"][key] = json!(value),
            (None, Some(_)) if key == CONTROLLER_MANAGED_ATTACH || settings.external_cloud => {
                patch["metadata"]["annotations"][key] = Value::Null;
            }
            _ => {}
        }
    }
    // What plugins gave is told by the devices that an earlier agent wrote down, and what somebody else has advertised
    // stays. Where nothing is written nobody can tell one from the other.
    let status = node.status.clone().filter(|_| !remembers).unwrap_or_default();
    for (field, amounts) in [("capacity", &status.capacity), ("allocatable", &status.allocatable)] {
        for (name, amount) in amounts {
            let extended = name.contains('/') && !name.contains("kubernetes.io/");
            if extended && amount.string != "0" {
                patch["status"][field][name] = json!("0");
            }
        }
    }
    (patch != json!({})).then_some(patch)
}

/// Sees to the CSINode object that storage drivers register in, with the annotation of the plugins that moved. It belongs
/// to the Node, and waits for it.
///
/// # Errors
/// The node is not there yet, or the API server does not answer or refuses.
pub async fn ensure_csi_node(client: &Client, name: &str) -> Result<(), ApiError> {
    let node = client.get::<Node>("", name).await?;
    match client.get::<CsiNode>("", name).await {
        Ok(held) if migrated(&held) => return Ok(()),
        Ok(_) => {
            let annotations = json!({MIGRATED_PLUGINS.0: MIGRATED_PLUGINS.1});
            let body = json!({"metadata": {"annotations": annotations}}).to_string();
            return client.patch::<CsiNode>("", name, "", PatchType::StrategicMerge, body).await.map(drop);
        }
        Err(error) if error.is_not_found() => {}
        Err(error) => return Err(error),
    }
    let mut object = CsiNode { spec: Some(CsiNodeSpec::default()), ..CsiNode::default() };
    let metadata = object.metadata_mut();
    metadata.name = node.name().to_owned();
    metadata.annotations.insert(MIGRATED_PLUGINS.0.into(), MIGRATED_PLUGINS.1.into());
    metadata.owner_references = vec![OwnerReference {
        api_version: Node::API_VERSION.into(),
        kind: Node::KIND.into(),
        name: node.name().to_owned(),
        uid: node.uid().to_owned(),
        ..OwnerReference::default()
    }];
    match client.create("", &object).await {
        Err(error) if !error.is_already_exists() => Err(error),
        _ => Ok(()),
    }
}

fn migrated(held: &CsiNode) -> bool {
    held.metadata().and_then(|m| m.annotations.get(MIGRATED_PLUGINS.0)).is_some_and(|said| said == MIGRATED_PLUGINS.1)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A given label lost against the default of the same name.
    #[test]
    fn given_labels_win_over_the_defaults() {
        let mut settings = NodeSettings::for_tests("node-b");
        settings.labels = [("kubernetes.io/hostname".to_owned(), "rack-7".to_owned())].into();
        let node = new_node(&settings, &json!({}));
        assert_eq!(node.metadata().expect("has metadata").labels["kubernetes.io/hostname"], "rack-7");
        settings.labels.clear();
        let plain = new_node(&settings, &json!({}));
        settings.labels = [("kubernetes.io/hostname".to_owned(), "rack-7".to_owned())].into();
        let wanted = json!({"metadata": {"labels": {"kubernetes.io/hostname": "rack-7"}}});
        assert_eq!(corrections(&settings, false, &plain), Some(wanted));
    }

    #[test]
    fn a_new_node_has_the_labels_taints_and_annotation_of_a_kubelet() {
        let mut settings = NodeSettings::for_tests("node-b");
        settings.labels = [("zone".to_owned(), "z1".to_owned())].into();
        settings.external_cloud = true;
        settings.given_addresses = vec!["10.0.2.15".parse().expect("an address")];
        let node = new_node(&settings, &json!({"phase": "Pending"}));
        let metadata = node.metadata().expect("has metadata");
        assert_eq!(metadata.labels["kubernetes.io/hostname"], "node-b");
        assert_eq!(metadata.labels.len(), 6);
        assert_eq!(metadata.annotations[PROVIDED_NODE_IP], "10.0.2.15");
        let taints = node.spec.expect("has a spec").taints;
        assert_eq!(taints[0].key, "node.cloudprovider.kubernetes.io/uninitialized");
        assert_eq!(node.status.expect("has a status").phase, "Pending");
    }

    /// A node that was registered before kept the zone of then.
    #[test]
    fn changed_default_labels_come_onto_a_node_that_exists() {
        let mut settings = NodeSettings::for_tests("node-b");
        let node = new_node(&settings, &json!({}));
        let given = [("topology.kubernetes.io/zone", "z2"), ("node.kubernetes.io/instance-type", ""), ("mine", "x")];
        settings.labels = given.map(|(k, v)| (k.to_owned(), v.to_owned())).into();
        let zone = json!({"topology.kubernetes.io/zone": "z2"});
        assert_eq!(corrections(&settings, false, &node), Some(json!({"metadata": {"labels": zone}})));
        let mut node = new_node(&settings, &json!({}));
        node.metadata_mut().labels.insert("node.kubernetes.io/instance-type".into(), "big".into());
        let none = json!({"node.kubernetes.io/instance-type": null});
        assert_eq!(corrections(&settings, false, &node), Some(json!({"metadata": {"labels": none}})));
    }

    #[test]
    fn only_what_differs_on_an_existing_node_is_sent() {
        let settings = NodeSettings::for_tests("node-b");
        let mut node = new_node(&settings, &json!({}));
        assert_eq!(corrections(&settings, false, &node), None);
        node.metadata_mut().labels.insert("kubernetes.io/os".into(), "plan9".into());
        node.metadata_mut().labels.insert("mine".into(), "stays".into());
        node.status = tree::parse("k8s.io.api.core.v1.NodeStatus", &json!({"capacity": {"example.com/gpu": "2"}}));
        assert_eq!(
            corrections(&settings, false, &node),
            Some(json!({
                "metadata": {"labels": {"kubernetes.io/os": "linux"}},
                "status": {"capacity": {"example.com/gpu": "0"}}
            }))
        );
        // What somebody else had advertised was set to zero by every start.
        let wanted = json!({"metadata": {"labels": {"kubernetes.io/os": "linux"}}});
        assert_eq!(corrections(&settings, true, &node), Some(wanted));
    }
}
