//! Storage drivers (CSI): their place in the CSINode object and on the Node.
//!
//! A driver says which id it has for this node, how many volumes it takes, and where the node lies; the scheduler and
//! the attacher read that from the CSINode, the Node's annotation and its labels. How many it takes is kept up to date
//! for as long as it is there.
//!
//! Followed: `pkg/volume/csi/csi_plugin.go`, `nodeinfomanager`.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use proto::api::core::v1::Node;
use proto::api::storage::v1::CsiNode;
use proto::csi::NodeGetInfoResponse;
use serde_json::{Map, Value, json};
use tokio::task::JoinSet;

use crate::api::{ApiError, Client, Kind as _, PatchType};
use crate::csi::Drivers;
use crate::csi::limit::{self, Limit};

const NODE_IDS: &str = "csi.volume.kubernetes.io/nodeid";

/// Numbers of a dotted version, and its text without a `v`.
pub type Version = (Vec<u64>, String);

fn refusal(name: &str, endpoint: &Path, why: &str) -> String {
    format!(
        "validation failed for CSI Driver {name} at endpoint {}: kubernetes.io/csi: ValidatePlugin for CSI driver {name:?} failed. {why}",
        endpoint.display()
    )
}

/// The highest of a driver's versions that can be used.
///
/// # Errors
/// In the kubelet's words.
pub fn check(name: &str, endpoint: &Path, versions: &[String]) -> Result<Version, String> {
    let refuse = |why: String| refusal(name, endpoint, &why);
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
        Some(version) => Ok(version),
    }
}

fn parse(version: &str) -> Option<Version> {
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
    /// The versions of those that are in.
    versions: Mutex<BTreeMap<String, Version>>,
    /// What keeps the limit of each that is in.
    limits: Mutex<BTreeMap<String, JoinSet<()>>>,
    /// One driver at a time changes the objects that they share.
    turn: tokio::sync::Mutex<()>,
}

impl CsiDrivers {
    pub fn new(client: Option<Client>, node: String, drivers: Arc<Drivers>) -> Self {
        let (versions, limits, turn) = (Mutex::default(), Mutex::default(), tokio::sync::Mutex::default());
        Self { client, node, drivers, versions, limits, turn }
    }

    fn versions(&self) -> MutexGuard<'_, BTreeMap<String, Version>> {
        self.versions.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn limits(&self) -> MutexGuard<'_, BTreeMap<String, JoinSet<()>>> {
        self.limits.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether a driver may be what is known by its name: only a newer version takes the place of one that is there.
    ///
    /// # Errors
    /// In the kubelet's words.
    pub fn admits(&self, name: &str, endpoint: &Path, version: &Version) -> Result<(), String> {
        match self.versions().get(name).filter(|known| known.0 >= version.0) {
            None => Ok(()),
            Some((_, known)) => Err(refusal(
                name,
                endpoint,
                &format!(
                    "Another driver with the same name is already registered with a higher supported version: {known:?}"
                ),
            )),
        }
    }

    /// Asks the driver about this node and writes it down.
    ///
    /// # Errors
    /// When the driver does not answer or the objects cannot be written.
    pub async fn register(&self, name: &str, endpoint: &Path, version: Version) -> Result<(), String> {
        let before = self.drivers.insert(name, endpoint.to_owned());
        let registered = self.tell(name).await;
        // Noted at the end: who is given up on the way, for its socket went, must not stand in the way of the one that follows.
        match (&registered, before) {
            (Ok(limit), _) => {
                self.versions().insert(name.to_owned(), version);
                self.keep_limit(name, *limit);
            }
            // An older driver goes on where a newer one fails.
            (Err(_), Some(before)) if self.versions().contains_key(name) => drop(self.drivers.insert(name, before)),
            (Err(_), _) => self.drivers.remove(name),
        }
        registered.map(drop)
    }

    /// In place of what kept the limit of the driver before.
    fn keep_limit(&self, name: &str, written: Option<i32>) {
        let Some(client) = self.client.clone() else { return };
        let (driver, node, drivers) = (name.to_owned(), self.node.clone(), self.drivers.clone());
        let mut keeping = JoinSet::new();
        keeping.spawn(Limit { client, node, driver, drivers, written }.keep());
        self.limits().insert(name.to_owned(), keeping);
    }

    /// The limit that the driver has told, and that stands in the CSINode now.
    async fn tell(&self, name: &str) -> Result<Option<i32>, String> {
        let driver = self.drivers.get(name).map_err(|e| e.to_string())?;
        let info = driver.info().await.map_err(|e| e.to_string())?;
        if info.node_id.is_empty() {
            return Err(format!("error adding CSI driver node info: driver {name} has no id for this node"));
        }
        let _turn = self.turn.lock().await;
        self.write(name, &info)
            .await
            .map_err(|e| format!("error updating CSINode object with CSI driver node info: {e}"))?;
        Ok(limit::count(&info))
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
        if let Some(count) = limit::count(info) {
            driver["allocatable"] = json!({"count": count});
        }
        Ok(self.patch_drivers(client, driver).await?)
    }

    /// The driver is gone.
    pub async fn unregister(&self, name: &str) {
        self.limits().remove(name);
        self.drivers.remove(name);
        self.versions().remove(name);
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

    /// Two drivers of one name used to take turns, and either of them ended both.
    #[test]
    fn only_a_newer_driver_takes_the_place_of_another() {
        let known = CsiDrivers::new(None, "node-a".into(), Arc::default());
        let admits = |version: &str| known.admits("x", Path::new("/r/y.sock"), &parse(version).unwrap());
        assert_eq!(admits("1.0.0"), Ok(()));
        known.versions().insert("x".into(), parse("1.9.0").unwrap());
        let why = "validation failed for CSI Driver x at endpoint /r/y.sock: kubernetes.io/csi: ValidatePlugin for CSI driver \"x\" failed. Another driver with the same name is already registered with a higher supported version: \"1.9.0\"";
        assert_eq!(admits("1.9.0"), Err(why.to_owned()));
        assert!(admits("1.8.0").is_err());
        assert_eq!(admits("1.10.0"), Ok(()));
    }

    #[test]
    fn only_versions_one_are_taken_and_the_text_is_the_kubelets() {
        let checked = |versions: &[&str]| {
            let versions: Vec<String> = versions.iter().map(|v| (*v).to_owned()).collect();
            check("csi.example.com", Path::new("/r/x.sock"), &versions)
        };
        assert_eq!(checked(&["1.0.0"]).map(|(_, text)| text), Ok("1.0.0".into()));
        assert_eq!(checked(&["v0.3.0", "1.9.0", "2.0.0"]).map(|(_, text)| text), Ok("1.9.0".into()));
        let want = "validation failed for CSI Driver csi.example.com at endpoint /r/x.sock: kubernetes.io/csi: ValidatePlugin for CSI driver \"csi.example.com\" failed. None of the versions specified [\"0.3.0\"] are supported. err=highest supported version reported is 0.3.0, must be v1.x";
        assert_eq!(checked(&["0.3.0"]).unwrap_err(), want);
        assert!(checked(&[]).unwrap_err().ends_with("Plugin returned an empty list for supported versions"));
        assert!(checked(&["9.1.0"]).unwrap_err().contains("could not find a highest supported version"));
    }
}
