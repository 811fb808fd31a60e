//! What a pod's claims mean for where it can go.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use crate::selectors::{NodeTerm, node_terms};
use crate::store::Store;

use super::node::NodeInfo;
use super::pod::PodInfo;

/// Nodes that each of the pod's volumes can be used on; none for all.
#[derive(Default)]
pub struct Volumes {
    bound: Vec<Box<[NodeTerm]>>,
    /// For each claim that waits for its first pod: where the volumes lie that it could have; None where a volume is
    /// made on demand.
    waiting: Vec<Vec<Option<Box<[NodeTerm]>>>>,
    /// Volumes of storage drivers, by driver; and where to look up how many of them a node takes.
    handles: BTreeMap<String, BTreeSet<String>>,
    store: Option<Store>,
    /// Claims of which only one pod at a time may have the volume, and their namespace.
    alone: Vec<Box<str>>,
    namespace: Box<str>,
}

/// Driver and handle of a persistent volume, if it is a driver's.
fn handle(volume: &Value) -> Option<(String, String)> {
    let csi = &volume["spec"]["csi"];
    Some((csi["driver"].as_str()?.to_owned(), csi["volumeHandle"].as_str()?.to_owned()))
}

impl Volumes {
    /// Reads the claims.
    ///
    /// # Errors
    /// The reason why the pod can go nowhere at all.
    pub fn read(store: &Store, pod: &PodInfo) -> Result<Self, String> {
        let mut out = Volumes { namespace: pod.object.key.namespace.clone(), ..Volumes::default() };
        for name in &pod.claims {
            let claim = store.get(&"persistentvolumeclaims".into(), &pod.object.key.namespace, name);
            let claim = claim.ok_or_else(|| format!("persistentvolumeclaim \"{name}\" not found"))?;
            if claim.keys.deleting {
                return Err(format!("persistentvolumeclaim \"{name}\" is being deleted"));
            }
            let claim = claim.value();
            let modes = claim["spec"]["accessModes"].as_array();
            if modes.is_some_and(|modes| modes.iter().any(|m| m == "ReadWriteOncePod")) {
                out.alone.push(name.clone());
            }
            if claim["status"]["phase"] == "Lost" {
                let volume = claim["spec"]["volumeName"].as_str().unwrap_or_default();
                return Err(format!(
                    "persistentvolumeclaim \"{name}\" bound to non-existent persistentvolume \"{volume}\""
                ));
            }
            match claim["spec"]["volumeName"].as_str().filter(|v| !v.is_empty()) {
                Some(volume) => {
                    let found = store.get(&"persistentvolumes".into(), "", volume);
                    let found = found.ok_or_else(|| format!("persistentvolume \"{volume}\" not found"))?.value();
                    if let Some((driver, handle)) = handle(&found) {
                        out.handles.entry(driver).or_default().insert(handle);
                        out.store = Some(store.clone());
                    }
                    let required = &found["spec"]["nodeAffinity"]["required"];
                    if required.is_object() {
                        out.bound.push(node_terms(required));
                    }
                }
                None => {
                    let class = claim["spec"]["storageClassName"].as_str().unwrap_or_default();
                    let class = store.get(&"storageclasses.storage.k8s.io".into(), "", class).map(|c| c.value());
                    let Some(class) = class.filter(|c| c["volumeBindingMode"] == "WaitForFirstConsumer") else {
                        return Err("pod has unbound immediate PersistentVolumeClaims".into());
                    };
                    out.waiting.push(crate::controllers::volumes::candidates(store, &claim, &class));
                }
            }
        }
        Ok(out)
    }

    /// Why a node will not do.
    pub fn refusal(&self, node: &NodeInfo) -> Option<&'static str> {
        let fits = |terms: &[NodeTerm]| terms.iter().any(|t| t.matches(node.labels(), node.name()));
        if !self.bound.iter().all(|terms| fits(terms)) {
            return Some("node(s) didn't match PersistentVolume's node affinity");
        }
        if !self.waiting.iter().all(|options| options.iter().any(|o| o.as_ref().is_none_or(|terms| fits(terms)))) {
            return Some("node(s) didn't find available persistent volumes to bind");
        }
        if self.taken(node) {
            return Some(
                "node has pod using PersistentVolumeClaim with the same name and ReadWriteOncePod access mode",
            );
        }
        self.too_many(node).then_some("node(s) exceed max volume count")
    }

    /// Whether another pod of the node has a claim that is for one pod alone.
    fn taken(&self, node: &NodeInfo) -> bool {
        let same = |p: &PodInfo| {
            p.object.key.namespace == self.namespace && p.claims.iter().any(|claim| self.alone.contains(claim))
        };
        !self.alone.is_empty() && node.pods.values().any(|p| same(p))
    }

    /// Whether a driver would have more volumes on the node than it takes, by its CSINode.
    fn too_many(&self, node: &NodeInfo) -> bool {
        let Some(store) = &self.store else { return false };
        let Some(found) = store.get(&"csinodes.storage.k8s.io".into(), "", node.name()) else { return false };
        let found = found.value();
        let drivers = found["spec"]["drivers"].as_array().into_iter().flatten();
        let limits = drivers.filter_map(|d| Some((d["name"].as_str()?, d["allocatable"]["count"].as_u64()?)));
        let mut limits = limits.filter_map(|(name, limit)| Some((name, limit, self.handles.get(name)?))).peekable();
        if limits.peek().is_none() {
            return false;
        }
        let used = handles_on(store, node);
        limits.any(|(name, limit, wanted)| {
            let there = used.get(name);
            let new = wanted.iter().filter(|h| !there.is_some_and(|t| t.contains(*h))).count();
            // A pod that needs nothing new fits even where there is too much already.
            new > 0 && u64::try_from(there.map_or(0, BTreeSet::len) + new).unwrap_or(u64::MAX) > limit
        })
    }

    /// Whether claims wait for the pod to have a node.
    pub fn waits(&self) -> bool {
        !self.waiting.is_empty()
    }
}

/// The volumes that the pods of a node have, by driver.
fn handles_on(store: &Store, node: &NodeInfo) -> BTreeMap<String, BTreeSet<String>> {
    let mut out: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for pod in node.pods.values() {
        for name in &pod.claims {
            let claim = store.get(&"persistentvolumeclaims".into(), &pod.object.key.namespace, name);
            let volume = claim.and_then(|c| c.value()["spec"]["volumeName"].as_str().map(str::to_owned));
            let found = volume.and_then(|v| store.get(&"persistentvolumes".into(), "", &v));
            if let Some((driver, handle)) = found.and_then(|v| handle(&v.value())) {
                out.entry(driver).or_default().insert(handle);
            }
        }
    }
    out
}
