//! The scheduler's picture of the cluster: nodes with their pods, those included whose binding is under way.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use super::alike::{Alike, Counts};
use super::node::{NodeInfo, Offer};
use super::pod::PodInfo;
use crate::selectors::LabelSelector;
use crate::store::ObjectRef;

#[derive(Debug, Default)]
pub struct Cluster {
    nodes: BTreeMap<Box<str>, NodeInfo>,
    /// Node of each pod that has one, by the pod's uid.
    placed: HashMap<Box<str>, Box<str>>,
    alike: Alike,
}

impl Cluster {
    /// Nodes that exist.
    pub fn nodes(&self) -> impl Iterator<Item = &NodeInfo> + Clone {
        self.nodes.values().filter(|n| n.object.is_some())
    }

    pub fn node(&self, name: &str) -> Option<&NodeInfo> {
        self.nodes.get(name)
    }

    pub fn pod(&self, uid: &str) -> Option<&Arc<PodInfo>> {
        self.nodes.get(self.placed.get(uid)?)?.pods.get(uid)
    }

    /// How many pods of a namespace each node has that a selector fits.
    pub fn alike(&mut self, namespace: &str, selector: &LabelSelector) -> Counts {
        let pods = self.nodes.iter().flat_map(|(name, node)| node.pods.values().map(|pod| (&**name, pod)));
        self.alike.counts(namespace, selector, pods)
    }

    /// Takes in a node; whether it now offers something else than before.
    pub fn set_node(&mut self, object: &ObjectRef) -> bool {
        let node = self.nodes.entry(object.key.name.clone()).or_default();
        let offer = Offer::read(&object.value());
        let same = node.object.as_ref().is_some_and(|o| o.keys.labels == object.keys.labels) && node.offer == offer;
        node.object = Some(object.clone());
        node.offer = offer;
        !same
    }

    /// The node is gone; its pods still know its name.
    pub fn remove_node(&mut self, name: &str) {
        if let Some(node) = self.nodes.get_mut(name) {
            node.object = None;
            node.offer = Offer::default();
        }
        self.drop_empty(name);
    }

    /// Adds a pod to a node or replaces it by a newer state.
    pub fn place(&mut self, pod: Arc<PodInfo>, node: &str) {
        if self.placed.get(&pod.object.keys.uid).is_some_and(|at| **at != *node) {
            self.remove_pod(&pod.object.keys.uid);
        }
        if let Some(older) = self.pod(&pod.object.keys.uid).cloned() {
            self.alike.change(node, &older, -1);
        }
        self.alike.change(node, &pod, 1);
        self.placed.insert(pod.object.keys.uid.clone(), node.into());
        self.nodes.entry(node.into()).or_default().add(pod);
    }

    /// Whether the pod was on a node.
    pub fn remove_pod(&mut self, uid: &str) -> bool {
        let Some(name) = self.placed.remove(uid) else { return false };
        if let Some(pod) = self.nodes.get_mut(&name).and_then(|node| node.remove(uid)) {
            self.alike.change(&name, &pod, -1);
        }
        self.drop_empty(&name);
        true
    }

    fn drop_empty(&mut self, name: &str) {
        if self.nodes.get(name).is_some_and(|n| n.object.is_none() && n.pods.is_empty()) {
            self.nodes.remove(name);
        }
    }
}
