//! Where a pod can go by what is known of its claims.

use std::sync::Arc;

use serde_json::{Value, json};

use super::*;
use crate::scheduler::filter;
use crate::scheduler::tests::{object, write};
use crate::scheduler::topology::Topology;

fn node(name: &str, labels: &Value) -> Value {
    json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": labels},
        "status": {"allocatable": {"cpu": "4", "memory": "4Gi", "pods": "10"}}})
}

fn pod(name: &str, claim: &str) -> Arc<PodInfo> {
    let volume = json!({"name": "v", "persistentVolumeClaim": {"claimName": claim}});
    let value = json!({"metadata": {"name": name, "namespace": "n"},
        "spec": {"containers": [{"name": "c"}], "volumes": [volume]}});
    Arc::new(PodInfo::read(&object("pods", value)))
}

fn cluster(nodes: &[Value]) -> Cluster {
    let mut cluster = Cluster::default();
    for node in nodes {
        cluster.set_node(&object("nodes", node.clone()));
    }
    cluster
}

/// What each node says, empty where the pod fits.
fn ask(store: &Store, cluster: &Cluster, pod: &PodInfo) -> Vec<&'static str> {
    let volumes = Volumes::read(store, cluster, pod).expect("its claims are there");
    cluster.nodes().map(|node| volumes.refusal(node).map_or("", |(why, _)| why)).collect()
}

async fn waiting(class: Value) -> Store {
    let store = Store::open(None).expect("a store in memory opens");
    let mut class = class;
    class["metadata"] = json!({"name": "slow"});
    class["provisioner"] = "d.example.com".into();
    class["volumeBindingMode"] = "WaitForFirstConsumer".into();
    write(&store, "storage.k8s.io", "storageclasses", class).await;
    let spec = json!({"storageClassName": "slow", "resources": {"requests": {"storage": "5Gi"}}});
    write(&store, "", "persistentvolumeclaims", json!({"metadata": {"name": "c", "namespace": "n"}, "spec": spec}))
        .await;
    store
}

/// The pod started with the claim of an earlier one of its name, and lost it when that was collected.
#[tokio::test]
async fn a_pod_waits_for_the_claim_that_is_made_for_it() {
    let store = waiting(json!({})).await;
    let claim = |name: &str, owner: &str| {
        let owner = json!([{"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": owner, "controller": true}]);
        json!({"metadata": {"name": name, "namespace": "n", "ownerReferences": owner}, "spec": {"storageClassName": "slow"}})
    };
    write(&store, "", "persistentvolumeclaims", claim("p-v", "earlier")).await;
    write(&store, "", "persistentvolumeclaims", claim("q-v", "q")).await;
    let nodes = cluster(&[node("a", &json!({}))]);
    let brings = |name: &str| {
        let volume = json!({"name": "v", "ephemeral": {"volumeClaimTemplate": {}}});
        let value = json!({"metadata": {"name": name, "namespace": "n"}, "spec": {"volumes": [volume]}});
        PodInfo::read(&object("pods", value))
    };
    let why = Volumes::read(&store, &nodes, &brings("p")).err();
    assert_eq!(why.as_deref(), Some("PVC n/p-v was not created for pod n/p (pod is not owner)"));
    assert!(Volumes::read(&store, &nodes, &brings("q")).is_ok());
}

/// Every node was taken to do.
#[tokio::test]
async fn a_volume_is_made_only_where_its_class_allows_it() {
    let term = json!({"matchLabelExpressions": [{"key": "zone", "values": ["a", "b"]}]});
    let store = waiting(json!({ "allowedTopologies": [term] })).await;
    let nodes = cluster(&[node("a", &json!({"zone": "a"})), node("c", &json!({"zone": "c"})), node("d", &json!({}))]);
    let not_here = "node(s) didn't find available persistent volumes to bind";
    assert_eq!(ask(&store, &nodes, &pod("p", "c")), ["", not_here, not_here]);
}

#[tokio::test]
async fn a_volume_is_made_only_where_its_driver_has_room() {
    let store = waiting(json!({})).await;
    let nodes = cluster(&[node("a", &json!({"zone": "a"})), node("b", &json!({"zone": "b"}))]);
    let driver = json!({"metadata": {"name": "d.example.com"}, "spec": {"storageCapacity": true}});
    assert_eq!(ask(&store, &nodes, &pod("p", "c")), ["", ""], "nobody counts");
    write(&store, "storage.k8s.io", "csidrivers", driver).await;
    for (zone, capacity) in
        [("a", json!({"capacity": "9Gi", "maximumVolumeSize": "4Gi"})), ("b", json!({"capacity": "5Gi"}))]
    {
        let mut told = capacity;
        told["metadata"] = json!({"name": zone, "namespace": "driver"});
        told["storageClassName"] = "slow".into();
        told["nodeTopology"] = json!({"matchLabels": {"zone": zone}});
        write(&store, "storage.k8s.io", "csistoragecapacities", told).await;
    }
    assert_eq!(ask(&store, &nodes, &pod("p", "c")), ["node(s) did not have enough free storage", ""]);
}

/// A pod that came back after its node had gone was sent anywhere, where its volume could not follow.
#[tokio::test]
async fn a_volume_that_is_being_made_is_made_for_one_node() {
    let store = waiting(json!({})).await;
    let spec = json!({"storageClassName": "slow", "resources": {"requests": {"storage": "5Gi"}}});
    let annotations = json!({"volume.kubernetes.io/selected-node": "b"});
    let claim = json!({"metadata": {"name": "d", "namespace": "n", "annotations": annotations}, "spec": spec});
    write(&store, "", "persistentvolumeclaims", claim).await;
    let lying = json!({"storageClassName": "slow", "capacity": {"storage": "9Gi"}});
    let volume = json!({"metadata": {"name": "1"}, "spec": lying, "status": {"phase": "Available"}});
    write(&store, "", "persistentvolumes", volume).await;
    let nodes = cluster(&[node("a", &json!({})), node("b", &json!({}))]);
    let not_here = "node(s) didn't find available persistent volumes to bind";
    assert_eq!(ask(&store, &nodes, &pod("p", "d")), [not_here, ""]);
    assert_eq!(ask(&store, &nodes, &pod("p", "c")), ["", ""]);
}

/// Each claim was asked for alone, so that one volume did for two and the pod was bound where it could not start.
#[tokio::test]
async fn a_volume_that_is_there_serves_one_claim_of_a_pod() {
    let store = Store::open(None).expect("a store in memory opens");
    let class = json!({"metadata": {"name": "local"}, "provisioner": "kubernetes.io/no-provisioner",
        "volumeBindingMode": "WaitForFirstConsumer"});
    write(&store, "storage.k8s.io", "storageclasses", class).await;
    for (name, size) in [("large", "5Gi"), ("small", "1Gi")] {
        let spec = json!({"storageClassName": "local", "resources": {"requests": {"storage": size}}});
        let claim = json!({"metadata": {"name": name, "namespace": "n"}, "spec": spec});
        write(&store, "", "persistentvolumeclaims", claim).await;
    }
    for (name, zone, size) in [("1", "a", "9Gi"), ("2", "b", "9Gi"), ("3", "b", "2Gi")] {
        let term = json!({"matchExpressions": [{"key": "zone", "operator": "In", "values": [zone]}]});
        let spec = json!({"storageClassName": "local", "capacity": {"storage": size},
            "nodeAffinity": {"required": {"nodeSelectorTerms": [term]}}});
        let volume = json!({"metadata": {"name": name}, "spec": spec, "status": {"phase": "Available"}});
        write(&store, "", "persistentvolumes", volume).await;
    }
    let nodes = cluster(&[node("a", &json!({"zone": "a"})), node("b", &json!({"zone": "b"}))]);
    let claim = |name: &str| json!({"name": name, "persistentVolumeClaim": {"claimName": name}});
    let spec = json!({"containers": [{"name": "c"}], "volumes": [claim("large"), claim("small")]});
    let both = PodInfo::read(&object("pods", json!({"metadata": {"name": "p", "namespace": "n"}, "spec": spec})));
    let none_left = "node(s) didn't find available persistent volumes to bind";
    assert_eq!(ask(&store, &nodes, &both), [none_left, ""]);
    assert_eq!(ask(&store, &nodes, &pod("q", "large")), ["", ""]);
}

/// Pods that came one right after the other were all promised the same volume, and all but one failed.
#[tokio::test]
async fn what_a_binding_under_way_gives_is_not_offered_again() {
    let store = Store::open(None).expect("a store in memory opens");
    for (class, provisioner) in [("local", "kubernetes.io/no-provisioner"), ("made", "d.example.com")] {
        let class = json!({"metadata": {"name": class}, "provisioner": provisioner,
            "volumeBindingMode": "WaitForFirstConsumer"});
        write(&store, "storage.k8s.io", "storageclasses", class).await;
    }
    for (name, class) in [("1", "local"), ("2", "local"), ("3", "made")] {
        let spec = json!({"storageClassName": class, "resources": {"requests": {"storage": "1Gi"}}});
        let claim = json!({"metadata": {"name": name, "namespace": "n"}, "spec": spec});
        write(&store, "", "persistentvolumeclaims", claim).await;
    }
    for zone in ["a", "b"] {
        let term = json!({"matchExpressions": [{"key": "zone", "operator": "In", "values": [zone]}]});
        let spec = json!({"storageClassName": "local", "capacity": {"storage": "1Gi"},
            "nodeAffinity": {"required": {"nodeSelectorTerms": [term]}}});
        let volume = json!({"metadata": {"name": zone}, "spec": spec, "status": {"phase": "Available"}});
        write(&store, "", "persistentvolumes", volume).await;
    }
    let nodes = cluster(&[node("a", &json!({"zone": "a"})), node("b", &json!({"zone": "b"}))]);
    let mut under_way = VolumesUnderWay::default();
    let read = |pod: &PodInfo, under_way: &VolumesUnderWay| {
        let mut volumes = Volumes::read(&store, &nodes, pod).expect("its claims are there");
        volumes.heed(under_way);
        volumes
    };
    let says = |claim: &str, under_way: &VolumesUnderWay| -> Vec<&'static str> {
        let volumes = read(&pod("other", claim), under_way);
        nodes.nodes().map(|node| volumes.refusal(node).map_or("", |(why, _)| why)).collect()
    };
    let at = nodes.node("a").expect("it is there");
    for (claim, volume) in [("1", Some("a")), ("3", None)] {
        let first = pod(claim, claim);
        let choices = read(&first, &under_way).choose(at);
        assert_eq!(choices, [Choice { claim: claim.into(), volume: volume.map(Into::into) }]);
        under_way.take(&first, "a", &choices);
    }
    let none_left = "node(s) didn't find available persistent volumes to bind";
    assert_eq!(says("2", &under_way), [none_left, ""], "the volume is another claim's");
    assert_eq!(says("1", &under_way), ["", none_left], "the claim will have its volume there");
    assert_eq!(says("3", &under_way), ["", none_left], "it is made for that node");
    under_way.forget("1");
    assert_eq!(says("2", &under_way), ["", ""]);
}

async fn bound(labels: Value, modes: Value) -> Store {
    let store = Store::open(None).expect("a store in memory opens");
    write(&store, "", "persistentvolumes", json!({"metadata": {"name": "v", "labels": labels}, "spec": {}})).await;
    let metadata = json!({"name": "c", "namespace": "n", "annotations": {"pv.kubernetes.io/bind-completed": "yes"}});
    let claim = json!({"metadata": metadata, "spec": {"volumeName": "v", "accessModes": modes}});
    write(&store, "", "persistentvolumeclaims", claim).await;
    store
}

#[tokio::test]
async fn a_pod_goes_where_the_zone_of_its_volume_is() {
    let older = "failure-domain.beta.kubernetes.io/zone";
    let store = bound(json!({older: "a__b"}), json!([])).await;
    let newer = "topology.kubernetes.io/zone";
    let nodes = cluster(&[
        node("1", &json!({older: "b"})),
        node("2", &json!({newer: "a"})),
        node("3", &json!({newer: "c"})),
        node("4", &json!({})),
    ]);
    assert_eq!(ask(&store, &nodes, &pod("p", "c")), ["", "", "node(s) had no available volume zone", ""]);
}

/// The driver takes so many volumes on a node.
async fn limit(store: &Store, node: &str, count: u64) {
    let driver = json!({"name": "d.example.com", "nodeID": node, "allocatable": {"count": count}});
    let told = json!({"metadata": {"name": node}, "spec": {"drivers": [driver]}});
    write(store, "storage.k8s.io", "csinodes", told).await;
}

/// Its claim counted as bound, and where the volume is was taken from one that may never be the claim's.
#[tokio::test]
async fn a_pod_waits_for_its_claim_to_have_the_volume_that_it_names() {
    let store = waiting(json!({})).await;
    write(&store, "", "persistentvolumes", json!({"metadata": {"name": "v"}, "spec": {}})).await;
    let spec = json!({"storageClassName": "slow", "volumeName": "v"});
    let claim = json!({"metadata": {"name": "d", "namespace": "n"}, "spec": spec});
    write(&store, "", "persistentvolumeclaims", claim).await;
    let nodes = cluster(&[node("a", &json!({}))]);
    let why = Volumes::read(&store, &nodes, &pod("p", "d")).err();
    assert_eq!(why.as_deref(), Some("pod has unbound immediate PersistentVolumeClaims"));
}

/// Pods that came faster than their volumes were made were more than a node took.
#[tokio::test]
async fn volumes_that_are_still_to_be_made_count_as_well() {
    let store = waiting(json!({})).await;
    for (name, class) in [("d", "slow"), ("gone", "none")] {
        let spec = json!({"storageClassName": class, "resources": {"requests": {"storage": "5Gi"}}});
        let claim = json!({"metadata": {"name": name, "namespace": "n"}, "spec": spec});
        write(&store, "", "persistentvolumeclaims", claim).await;
    }
    limit(&store, "a", 1).await;
    limit(&store, "b", 0).await;
    let mut nodes = cluster(&[node("a", &json!({})), node("b", &json!({})), node("c", &json!({}))]);
    let exceeds = "node(s) exceed max volume count";
    nodes.place(pod("nothing", "gone"), "a");
    assert_eq!(ask(&store, &nodes, &pod("p", "c")), ["", exceeds, ""]);
    nodes.place(pod("first", "d"), "a");
    assert_eq!(ask(&store, &nodes, &pod("p", "c")), [exceeds, exceeds, ""]);
    assert_eq!(ask(&store, &nodes, &pod("p", "d")), ["", exceeds, ""], "the same volume");
}

/// What each claim of a node has is read only where the number of claims does not settle it.
#[tokio::test]
async fn a_node_takes_no_more_volumes_than_its_driver_says_however_many_claims_share_them() {
    let store = Store::open(None).expect("a store in memory opens");
    for (claim, handle) in [("c", "1"), ("same", "1"), ("other", "2")] {
        let csi = json!({"driver": "d.example.com", "volumeHandle": handle});
        write(&store, "", "persistentvolumes", json!({"metadata": {"name": claim}, "spec": {"csi": csi}})).await;
        let metadata =
            json!({"name": claim, "namespace": "n", "annotations": {"pv.kubernetes.io/bind-completed": "yes"}});
        let claim = json!({"metadata": metadata, "spec": {"volumeName": claim}});
        write(&store, "", "persistentvolumeclaims", claim).await;
    }
    limit(&store, "a", 1).await;
    limit(&store, "b", 2).await;
    let mut nodes = cluster(&[node("a", &json!({})), node("b", &json!({})), node("c", &json!({}))]);
    for at in ["a", "b", "c"] {
        nodes.place(pod(&format!("first-{at}"), "c"), at);
    }
    let exceeds = "node(s) exceed max volume count";
    assert_eq!(ask(&store, &nodes, &pod("p", "other")), [exceeds, "", ""]);
    assert_eq!(ask(&store, &nodes, &pod("p", "same")), ["", "", ""], "the node has that volume");
    nodes.place(pod("second-b", "same"), "b");
    assert_eq!(ask(&store, &nodes, &pod("p", "other")), [exceeds, "", ""], "two claims, one volume");
}

/// Such a claim was looked for on each node alone, so that two pods had it on two nodes.
#[tokio::test]
async fn a_claim_for_one_pod_alone_is_taken_on_every_node_until_that_pod_goes() {
    let store = bound(json!({}), json!(["ReadWriteOncePod"])).await;
    let mut nodes = cluster(&[node("a", &json!({})), node("b", &json!({}))]);
    nodes.place(pod("first", "c"), "a");
    let taken = "node has pod using PersistentVolumeClaim with the same name and ReadWriteOncePod access mode";
    let second = pod("second", "c");
    assert_eq!(ask(&store, &nodes, &second), [taken, taken]);
    let volumes = Volumes::read(&store, &nodes, &second).expect("its claims are there");
    let mut without = nodes.node("a").expect("it is there").clone();
    let topology = Topology::count(&store, &nodes, &second, &[]);
    let said = filter::check(&second, &without, &topology, &volumes).expect("it is taken");
    assert!(said.resolvable, "the other could go");
    without.remove("first");
    assert_eq!(volumes.refusal(&without), None);
    assert_eq!(volumes.refusal(nodes.node("b").expect("it is there")), Some((taken, true)));
}
