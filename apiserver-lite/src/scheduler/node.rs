//! A node as the scheduler sees it: what it offers, and the sum of what its pods take, kept up pod by pod.

use std::collections::HashMap;
use std::sync::Arc;

use serde_json::Value;

use super::pod::{PodInfo, Taint};
use super::resources::Resources;
use crate::selectors::{Labels, label};
use crate::store::ObjectRef;

#[derive(Debug, Default, Clone)]
pub struct NodeInfo {
    /// None while only its pods are known.
    pub object: Option<ObjectRef>,
    pub offer: Offer,
    pub pods: HashMap<Box<str>, Arc<PodInfo>>,
    pub requested: Resources,
    pub assumed: Resources,
    /// How many of its pods have affinity or anti-affinity of their own.
    pub with_affinity: usize,
}

/// What decides where pods go, read from the node object.
#[derive(Debug, Default, Clone, PartialEq)]
pub struct Offer {
    pub unschedulable: bool,
    pub taints: Vec<Taint>,
    pub allocatable: Resources,
    pub max_pods: i64,
    /// Names of images that are there, and their sizes.
    pub images: Vec<(Box<str>, i64)>,
}

impl Offer {
    pub fn read(node: &Value) -> Self {
        let allocatable = &node["status"]["allocatable"];
        let pods = allocatable["pods"].as_str().and_then(|t| t.parse::<proto::quantity::Quantity>().ok());
        let images = node["status"]["images"].as_array().into_iter().flatten();
        let images = images.flat_map(|image| {
            let size = image["sizeBytes"].as_i64().unwrap_or(0);
            let names = image["names"].as_array().into_iter().flatten().filter_map(Value::as_str);
            names.map(move |name| (name.into(), size))
        });
        Offer {
            unschedulable: node["spec"]["unschedulable"] == true,
            taints: node["spec"]["taints"].as_array().into_iter().flatten().map(Taint::parse).collect(),
            allocatable: Resources::parse(allocatable),
            max_pods: pods.map_or(0, |p| p.value()),
            images: images.collect(),
        }
    }
}

impl NodeInfo {
    pub fn name(&self) -> &str {
        self.object.as_ref().map_or("", |o| &o.key.name)
    }

    pub fn labels(&self) -> &Labels {
        self.object.as_ref().map_or(&[], |o| &o.keys.labels)
    }

    pub fn label(&self, key: &str) -> Option<&str> {
        label(self.labels(), key)
    }

    /// Adds a pod, or replaces it by a newer state.
    pub fn add(&mut self, pod: Arc<PodInfo>) {
        self.remove(&pod.object.keys.uid);
        self.requested.add(&pod.requests);
        self.assumed.add(&pod.assumed);
        self.with_affinity += usize::from(has_affinity(&pod));
        self.pods.insert(pod.object.keys.uid.clone(), pod);
    }

    pub fn remove(&mut self, uid: &str) -> Option<Arc<PodInfo>> {
        let pod = self.pods.remove(uid)?;
        self.requested.subtract(&pod.requests);
        self.assumed.subtract(&pod.assumed);
        self.with_affinity -= usize::from(has_affinity(&pod));
        Some(pod)
    }
}

fn has_affinity(pod: &PodInfo) -> bool {
    !pod.affinity.is_empty() || !pod.anti_affinity.is_empty() || !pod.preferred_pods.is_empty()
}
