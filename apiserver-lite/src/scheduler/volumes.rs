//! What a pod's claims mean for where it can go.

use crate::selectors::{NodeTerm, node_terms};
use crate::store::Store;

use super::node::NodeInfo;
use super::pod::PodInfo;

/// Nodes that each of the pod's volumes can be used on; none for all.
#[derive(Debug, Default)]
pub struct Volumes {
    bound: Vec<Box<[NodeTerm]>>,
    /// For each claim that waits for its first pod: where the volumes lie that it could have; None where a volume is
    /// made on demand.
    waiting: Vec<Vec<Option<Box<[NodeTerm]>>>>,
}

impl Volumes {
    /// Reads the claims.
    ///
    /// # Errors
    /// The reason why the pod can go nowhere at all.
    pub fn read(store: &Store, pod: &PodInfo) -> Result<Self, String> {
        let mut out = Volumes::default();
        for name in &pod.claims {
            let claim = store.get(&"persistentvolumeclaims".into(), &pod.object.key.namespace, name);
            let claim = claim.ok_or_else(|| format!("persistentvolumeclaim \"{name}\" not found"))?;
            if claim.keys.deleting {
                return Err(format!("persistentvolumeclaim \"{name}\" is being deleted"));
            }
            let claim = claim.value();
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
        None
    }

    /// Whether claims wait for the pod to have a node.
    pub fn waits(&self) -> bool {
        !self.waiting.is_empty()
    }
}
