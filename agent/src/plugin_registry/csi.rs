//! Storage drivers (CSI): their place in the CSINode object and on the Node.
//!
//! A driver says which id it has for this node, how many volumes it takes, and where the node lies; the scheduler and
//! the attacher read that from the CSINode, the Node's annotation and its labels.
//!
//! Followed: `pkg/volume/csi/csi_plugin.go`, `nodeinfomanager`.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use proto::api::core::v1::Node;
use proto::api::storage::v1::CsiNode;
use proto::csi::NodeGetInfoResponse;
use serde_json::{Map, Value, json};

use crate::api::{ApiError, Client, Kind as _, PatchType};
use crate::csi::Drivers;

const NODE_IDS: &str = "csi.volume.kubernetes.io/nodeid";

/// Whether a driver with these versions can be used.
///
/// # Errors
/// In the kubelet's words.
pub fn check(name: &str, endpoint: &Path, versions: &[String]) -> Result<(), String> {
    let refuse = |why: String| {
        format!(
            "validation failed for CSI Driver {name} at endpoint {}: kubernetes.io/csi: ValidatePlugin for CSI driver {name:?} failed. {why}",
            endpoint.display()
        )
    };
    if versions.is_empty() {
        return Err(refuse("Plugin returned an empty list for supported versions".into()));
    }
    let quoted: Vec<String> = versions.iter().map(|v| format!("{v:?}")).collect();
    let none =
        |why: String| refuse(format!("None of the versions specified [{}] are supported. err={why}", quoted.join(" ")));
    // Drivers that say 2 or more are from a future that nobody knows.
    let highest = versions.iter().filter_map(|v| parse(v)).filter(|(v, _)| v.first().is_some_and(|m| *m <= 1)).max();
    match highest {
        None => Err(none(format!(
            "could not find a highest supported version from versions ([{}]) reported by this driver: <nil>",
            versions.join(" ")
        ))),
        Some((parts, text)) if parts[0] != 1 => {
            Err(none(format!("highest supported version reported is {text}, must be v1.x")))
        }
        Some(_) => Ok(()),
    }
}

/// Numbers of a dotted version, and its text without a `v`.
fn parse(version: &str) -> Option<(Vec<u64>, String)> {
    let text = version.strip_prefix('v').unwrap_or(version);
    let core = text.split(['-', '+']).next()?;
    let parts: Option<Vec<u64>> = core.split('.').map(|p| p.parse().ok()).collect();
    parts.filter(|p| p.len() >= 2).map(|p| (p, core.to_owned()))
}

/// Drivers on this node.
pub struct CsiDrivers {
    client: Option<Client>,
    node: String,
    /// Where volumes find them.
    drivers: Arc<Drivers>,
    /// One driver at a time changes the objects that they share.
    turn: tokio::sync::Mutex<()>,
}

impl CsiDrivers {
    pub fn new(client: Option<Client>, node: String, drivers: Arc<Drivers>) -> Self {
        Self { client, node, drivers, turn: tokio::sync::Mutex::default() }
    }

    /// Asks the driver about this node and writes it down.
    ///
    /// # Errors
    /// When the driver does not answer or the objects cannot be written.
    pub async fn register(&self, name: &str, endpoint: &Path) -> Result<(), String> {
        self.drivers.insert(name, endpoint.to_owned());
        let registered = self.tell(name).await;
        if registered.is_err() {
            self.drivers.remove(name);
        }
        registered
    }

    async fn tell(&self, name: &str) -> Result<(), String> {
        let driver = self.drivers.get(name).map_err(|e| e.to_string())?;
        let info = driver.info().await.map_err(|e| e.to_string())?;
        if info.node_id.is_empty() {
            return Err(format!("error adding CSI driver node info: driver {name} has no id for this node"));
        }
        let _turn = self.turn.lock().await;
        self.write(name, &info)
            .await
            .map_err(|e| format!("error updating CSINode object with CSI driver node info: {e}"))
    }

    async fn write(&self, name: &str, info: &NodeGetInfoResponse) -> Result<(), WriteError> {
        let Some(client) = &self.client else { return Ok(()) };
        let segments = info.accessible_topology.as_ref().map(|t| t.segments.clone()).unwrap_or_default();
        let node = client.get::<Node>("", &self.node).await?;
        check_topology(&node, &segments)?;
        let mut ids = ids(&node);
        ids.insert(name.into(), json!(info.node_id));
        let metadata = json!({"annotations": {NODE_IDS: Value::Object(ids).to_string()}, "labels": segments});
        let body = json!({"metadata": metadata}).to_string();
        client.patch::<Node>("", &self.node, "", PatchType::StrategicMerge, body).await?;
        let mut driver = json!({
            "name": name,
            "nodeID": info.node_id,
            "topologyKeys": segments.keys().collect::<Vec<_>>(),
        });
        if info.max_volumes_per_node > 0 {
            let count = i32::try_from(info.max_volumes_per_node).unwrap_or(i32::MAX);
            driver["allocatable"] = json!({"count": count});
        }
        Ok(self.patch_drivers(client, driver).await?)
    }

    /// The driver is gone.
    pub async fn unregister(&self, name: &str) {
        self.drivers.remove(name);
        let Some(client) = &self.client else { return };
        let _turn = self.turn.lock().await;
        let removed = async {
            self.patch_drivers(client, json!({"$patch": "delete", "name": name})).await?;
            let mut ids = ids(&client.get::<Node>("", &self.node).await?);
            if ids.remove(name).is_some() {
                let value = if ids.is_empty() { Value::Null } else { json!(Value::Object(ids).to_string()) };
                let body = json!({"metadata": {"annotations": {NODE_IDS: value}}}).to_string();
                client.patch::<Node>("", &self.node, "", PatchType::StrategicMerge, body).await?;
            }
            Ok::<_, ApiError>(())
        };
        if let Err(error) = removed.await {
            tracing::warn!(%error, driver = name, "a storage driver that is gone stays in the CSINode");
        }
    }

    async fn patch_drivers(&self, client: &Client, driver: Value) -> Result<(), ApiError> {
        let body = json!({"spec": {"drivers": [driver]}}).to_string();
        client.patch::<CsiNode>("", &self.node, "", PatchType::StrategicMerge, body).await.map(|_| ())
    }
}

/// Why a driver is not in the node's objects.
#[derive(Debug, thiserror::Error)]
enum WriteError {
    #[error(transparent)]
    Api(#[from] ApiError),
    /// The driver's fault, or somebody else's who labelled the node.
    #[error(
        "detected topology value collision: driver reported {key:?}:{reported:?} but existing label is {key:?}:{existing:?}"
    )]
    Topology { key: String, reported: String, existing: String },
}

/// Where the node is may be said by several drivers, but not differently.
fn check_topology(node: &Node, segments: &BTreeMap<String, String>) -> Result<(), WriteError> {
    let Some(metadata) = node.metadata() else { return Ok(()) };
    for (key, reported) in segments {
        if let Some(existing) = metadata.labels.get(key).filter(|existing| *existing != reported) {
            let (key, reported, existing) = (key.clone(), reported.clone(), existing.clone());
            return Err(WriteError::Topology { key, reported, existing });
        }
    }
    Ok(())
}

/// Ids that drivers have for this node; what is no such map counts as empty.
fn ids(node: &Node) -> Map<String, Value> {
    let text = node.metadata().and_then(|m| m.annotations.get(NODE_IDS)).cloned().unwrap_or_default();
    serde_json::from_str(&text).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_driver_cannot_move_the_node() {
        let zone = |name: &str| [("topology.example.com/zone".to_owned(), name.to_owned())].into();
        let mut node = Node::default();
        node.metadata_mut().labels = zone("a");
        assert!(check_topology(&node, &zone("a")).is_ok());
        assert!(check_topology(&Node::default(), &zone("b")).is_ok());
        let words = "detected topology value collision: driver reported \"topology.example.com/zone\":\"b\" but existing label is \"topology.example.com/zone\":\"a\"";
        assert_eq!(check_topology(&node, &zone("b")).unwrap_err().to_string(), words);
    }

    #[test]
    fn only_versions_one_are_taken_and_the_text_is_the_kubelets() {
        let checked = |versions: &[&str]| {
            let versions: Vec<String> = versions.iter().map(|v| (*v).to_owned()).collect();
            check("csi.example.com", Path::new("/r/x.sock"), &versions)
        };
        assert_eq!(checked(&["1.0.0"]), Ok(()));
        assert_eq!(checked(&["v0.3.0", "1.9.0", "2.0.0"]), Ok(()));
        let want = "validation failed for CSI Driver csi.example.com at endpoint /r/x.sock: kubernetes.io/csi: ValidatePlugin for CSI driver \"csi.example.com\" failed. None of the versions specified [\"0.3.0\"] are supported. err=highest supported version reported is 0.3.0, must be v1.x";
        assert_eq!(checked(&["0.3.0"]).unwrap_err(), want);
        assert!(checked(&[]).unwrap_err().ends_with("Plugin returned an empty list for supported versions"));
        assert!(checked(&["9.1.0"]).unwrap_err().contains("could not find a highest supported version"));
    }
}
