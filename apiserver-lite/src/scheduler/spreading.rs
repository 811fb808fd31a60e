//! How pods are spread that say nothing about it: those of one service, replica set or the like over hosts and zones.
//!
//! As the plugin `PodTopologySpread` does by its own defaults: `ScheduleAnyway`, over hosts with a skew of 3 and over zones
//! with a skew of 5. Not every node needs both labels; one without a zone is compared by its host alone.

use std::collections::{BTreeMap, HashMap};

use super::alike::Counts;
use super::cluster::Cluster;
use super::filter::fits_affinity;
use super::node::NodeInfo;
use super::pod::PodInfo;
use crate::controllers::pods::PodDigest;
use crate::selectors::LabelSelector;
use crate::store::{Key, Store};

const HOST: &str = "kubernetes.io/hostname";
const HOST_SKEW: f64 = 3.0;
const ZONE: &str = "topology.kubernetes.io/zone";
const ZONE_SKEW: f64 = 5.0;

/// What the pods are selected by that are like a pod: selectors of services, by their names, and of the owner that was
/// asked for last.
#[derive(Debug, Default)]
pub struct Likeness {
    services: BTreeMap<Key, LabelSelector>,
    owner: Option<(Box<str>, u64, LabelSelector)>,
}

impl Likeness {
    /// A service is there, or gone where it has no selector any more.
    pub fn set_service(&mut self, key: &Key, selector: Option<LabelSelector>) {
        match selector.filter(|s| !s.is_empty()) {
            Some(selector) => drop(self.services.insert(key.clone(), selector)),
            None => drop(self.services.remove(key)),
        }
    }

    /// The selector of the services of a pod and of its owner together; None for a pod that is like no other.
    pub fn of(&mut self, store: &Store, pod: &PodInfo) -> Option<LabelSelector> {
        let (namespace, labels) = (&pod.object.key.namespace, &pod.object.keys.labels);
        let mut all = LabelSelector::everything();
        let inside = self.services.range(Key::new(namespace, "")..).take_while(|(key, _)| key.namespace == *namespace);
        for (_, selector) in inside.filter(|(_, selector)| selector.matches(labels)) {
            all.merge(selector);
        }
        if let Some(selector) = self.of_owner(store, pod) {
            all.merge(selector);
        }
        (!all.is_empty()).then_some(all)
    }

    fn of_owner(&mut self, store: &Store, pod: &PodInfo) -> Option<&LabelSelector> {
        let digest = PodDigest::of(&pod.object);
        let owner = digest.controller.as_ref()?;
        let resource = match &*owner.kind {
            "ReplicationController" => "replicationcontrollers",
            "ReplicaSet" => "replicasets.apps",
            "StatefulSet" => "statefulsets.apps",
            _ => return None,
        };
        let found = store.get(&resource.into(), &pod.object.key.namespace, &owner.name)?;
        if found.keys.uid != owner.uid {
            return None;
        }
        let known = self.owner.as_ref().is_some_and(|(uid, at, _)| *uid == owner.uid && *at == found.revision);
        if !known {
            let value = found.without_owners();
            let selector = &value["spec"]["selector"];
            let selector = match resource {
                "replicationcontrollers" => LabelSelector::from_map(selector),
                _ => LabelSelector::parse(selector),
            };
            self.owner = Some((owner.uid.clone(), found.revision, selector));
        }
        self.owner.as_ref().map(|(_, _, selector)| selector)
    }
}

/// How crowded with pods like this one each of the nodes is that could take it.
pub fn crowding(pod: &PodInfo, cluster: &Cluster, fitting: &[&NodeInfo], alike: &Counts) -> Vec<i64> {
    let of = |node: &NodeInfo| alike.get(node.name()).copied().unwrap_or(0);
    // A node without a zone is in one without a name, which counts as a place and for nobody's score.
    let zone = |node: &NodeInfo| node.label(ZONE).unwrap_or_default().to_owned();
    let mut zones: HashMap<String, i64> = fitting.iter().map(|node| (zone(node), 0)).collect();
    for node in cluster.nodes().filter(|node| of(node) != 0 && fits_affinity(pod, node)) {
        if let Some(count) = zones.get_mut(&zone(node)) {
            *count += of(node);
        }
    }
    let weight = |places: usize| (places as f64 + 2.0).ln();
    let score = |node: &&NodeInfo| {
        let mut sum = 0.0;
        if node.label(HOST).is_some() {
            sum += of(node) as f64 * weight(fitting.len()) + HOST_SKEW - 1.0;
        }
        if node.label(ZONE).is_some() {
            let there = zones.get(&zone(node)).copied().unwrap_or(0);
            sum += there as f64 * weight(zones.len()) + ZONE_SKEW - 1.0;
        }
        sum.round() as i64
    };
    fitting.iter().map(score).collect()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use serde_json::{Value, json};

    use super::*;
    use crate::scheduler::score::{Views, scores};
    use crate::scheduler::tests::{object, write};
    use crate::scheduler::topology::Topology;

    fn node(name: &str, zone: &str) -> Value {
        json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": {HOST: name, ZONE: zone}},
            "status": {"allocatable": {"cpu": "64", "memory": "64Gi", "pods": "110"}}})
    }

    fn pod(name: &str, change: &Value) -> Arc<PodInfo> {
        let mut value = json!({"metadata": {"name": name, "namespace": "n", "labels": {"app": "a"}},
            "spec": {"containers": [{"name": "c", "image": "i"}]}});
        let owner = json!({"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "r", "uid": "r", "controller": true});
        value["metadata"]["ownerReferences"] = json!([owner]);
        for (key, part) in change.as_object().into_iter().flatten() {
            value["metadata"][key] = part.clone();
        }
        Arc::new(PodInfo::read(&object("pods", value)))
    }

    async fn replica_set() -> Store {
        let store = Store::open(None).expect("a store in memory opens");
        let spec = json!({"selector": {"matchLabels": {"app": "a"}}});
        write(&store, "apps", "replicasets", json!({"metadata": {"name": "r", "namespace": "n"}, "spec": spec})).await;
        store
    }

    /// Nothing kept pods of one replica set apart but how full the nodes were.
    #[tokio::test]
    async fn pods_of_one_owner_go_to_hosts_and_zones_with_fewer_of_them() {
        let store = replica_set().await;
        let mut cluster = Cluster::default();
        for (name, zone) in [("1", "a"), ("2", "a"), ("3", "b")] {
            cluster.set_node(&object("nodes", node(name, zone)));
        }
        let selector = Likeness::default().of(&store, &pod("p", &json!({}))).expect("it has an owner");
        let counts = |cluster: &mut Cluster| cluster.alike("n", &selector);
        assert!(counts(&mut cluster).is_empty());
        cluster.place(pod("first", &json!({})), "1");
        cluster.place(pod("other", &json!({"labels": {"app": "b"}})), "3");
        let alike = counts(&mut cluster);
        assert_eq!(alike.get("1"), Some(&1));
        assert_eq!(alike.get("3").copied().unwrap_or(0), 0, "that one is of another kind");
        let new = pod("p", &json!({}));
        let nodes: Vec<&NodeInfo> = cluster.nodes().collect();
        let crowded = crowding(&new, &cluster, &nodes, &alike);
        assert!(crowded[2] < crowded[1] && crowded[1] < crowded[0], "{crowded:?}");
        let topology = Topology::count(&store, &cluster, &new, &[]);
        let with = scores(&new, &nodes, &topology, Views { crowded: Some(crowded), devices: None });
        let without = scores(&new, &nodes, &topology, Views::default());
        let gained: Vec<i64> = with.iter().zip(&without).map(|(with, without)| with - without).collect();
        assert!(gained[2] > gained[1] && gained[1] > gained[0], "{gained:?}");
        cluster.remove_pod("first");
        assert_eq!(counts(&mut cluster).get("1"), Some(&0));
    }

    #[tokio::test]
    async fn services_make_pods_alike_and_pods_without_either_are_like_no_other() {
        let store = Store::open(None).expect("a store in memory opens");
        let mut likeness = Likeness::default();
        let bare = pod("p", &json!({"ownerReferences": []}));
        assert_eq!(likeness.of(&store, &bare), None);
        let service = Key::new("n", "s");
        let selector = |app: &str| Some(LabelSelector::from_map(&json!({"app": app})));
        likeness.set_service(&Key::new("elsewhere", "s"), selector("a"));
        likeness.set_service(&service, selector("b"));
        assert_eq!(likeness.of(&store, &bare), None);
        likeness.set_service(&service, selector("a"));
        assert!(likeness.of(&store, &bare).expect("it has a service").matches(&bare.object.keys.labels));
        likeness.set_service(&service, None);
        assert_eq!(likeness.of(&store, &bare), None);
    }
}
