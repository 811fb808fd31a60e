//! What claims of devices mean for where a pod goes, and for who goes for it.

use serde_json::{Value, json};

use super::tests::{node, object, pod, read, scheduler, write};
use super::*;
use crate::store::Store;

const RESOURCE: &str = "resource.k8s.io";

/// A class of devices of a driver of its own.
async fn class(store: &Store, name: &str) {
    let selectors = json!([{"cel": {"expression": format!("device.driver == '{name}.example.com'")}}]);
    let class = json!({"metadata": {"name": name}, "spec": {"selectors": selectors}});
    write(store, RESOURCE, "deviceclasses", class).await;
}

/// A device of a class on a node.
async fn device(store: &Store, class: &str, node: &str) {
    let pool = json!({"name": node, "generation": 1, "resourceSliceCount": 1});
    let (name, driver) = (format!("{class}-{node}"), format!("{class}.example.com"));
    let slice = json!({"metadata": {"name": name}, "spec": {"driver": driver, "nodeName": node, "pool": pool,
        "devices": [{"name": "d"}]}});
    write(store, RESOURCE, "resourceslices", slice).await;
}

/// A claim with one request, and a pod that has it.
async fn claimed(store: &Store, mut request: Value, cpu: &str) -> Arc<PodInfo> {
    request["name"] = "r".into();
    let claim = json!({"metadata": {"name": "c", "namespace": "n"}, "spec": {"devices": {"requests": [request]}}});
    write(store, RESOURCE, "resourceclaims", claim).await;
    let mut pod = pod("p", cpu);
    pod["spec"]["priority"] = 50.into();
    pod["spec"]["resourceClaims"] = json!([{"name": "gpu", "resourceClaimName": "c"}]);
    read(pod)
}

/// One pod after the other went for one that waited for devices, and it could not come then either.
#[tokio::test]
async fn nobody_goes_for_a_pod_whose_devices_are_not_there() {
    let (mut scheduler, _bound) = scheduler().await;
    let store = scheduler.client.store().clone();
    scheduler.cluster.set_node(&object("nodes", node("a", "4", "x")));
    scheduler.cluster.place(read(pod("there", "4")), "a");
    class(&store, "big").await;
    let waiting = claimed(&store, json!({"exactly": {"deviceClassName": "big"}}), "3").await;
    scheduler.schedule(&waiting);
    assert!(scheduler.nominated.is_empty());
    device(&store, "big", "a").await;
    scheduler.schedule(&waiting);
    assert_eq!(scheduler.nominated.get("p").map(|node| &**node), Some("a"));
}

/// Of several nodes the emptier one was taken, though another had what the claim names first.
#[tokio::test]
async fn a_pod_goes_where_it_gets_the_devices_that_it_prefers() {
    let (mut scheduler, _bound) = scheduler().await;
    let store = scheduler.client.store().clone();
    for (name, cpu) in [("a", "8"), ("b", "4")] {
        scheduler.cluster.set_node(&object("nodes", node(name, cpu, "x")));
    }
    for (name, node) in [("big", "b"), ("small", "a")] {
        class(&store, name).await;
        device(&store, name, node).await;
    }
    let alternatives = ["big", "small"].map(|name| json!({"name": name, "deviceClassName": name}));
    let pod = claimed(&store, json!({"firstAvailable": alternatives}), "1").await;
    scheduler.schedule(&pod);
    assert!(scheduler.cluster.node("b").is_some_and(|node| node.pods.contains_key("p")));
}

/// The earlier among its alternatives a request is, the more it counts, however many devices it has.
#[tokio::test]
async fn requests_count_by_their_place_among_the_alternatives() {
    let store = Store::open(None).expect("a store in memory opens");
    class(&store, "big").await;
    class(&store, "small").await;
    let two = json!({"name": "two", "deviceClassName": "big", "count": 2});
    let one = json!({"name": "one", "deviceClassName": "big"});
    let small = json!({"name": "small", "deviceClassName": "small"});
    let pod = claimed(&store, json!({"firstAvailable": [two, one, small]}), "1").await;
    for (class, node) in [("big", "a"), ("small", "b"), ("small", "a")] {
        device(&store, class, node).await;
    }
    let features = Features { shares: true, conditions: true, nominates: true };
    let claims = Claims::read(&store, &pod, &UnderWay::default(), features).expect("it is there");
    let nodes =
        ["a", "b"].map(|name| NodeInfo { object: Some(object("nodes", node(name, "4", "x"))), ..NodeInfo::default() });
    let nodes: Vec<&NodeInfo> = nodes.iter().collect();
    let found = nodes.iter().map(|node| (node.name(), claims.find(node).expect("there are devices"))).collect();
    assert_eq!(claims.preferences(&nodes, &found), Some(vec![7, 6]));
    assert_eq!(Claims::default().preferences(&nodes, &HashMap::new()), None);
}
