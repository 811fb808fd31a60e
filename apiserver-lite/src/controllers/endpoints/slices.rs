//! The slices of a service: at most a hundred endpoints in each, where an endpoint stays in the slice it is in.

use std::collections::BTreeMap;

use proto::time::Timestamp;
use serde_json::{Value, json};

use super::topology::{self, Shares};
use super::{Endpoint, Endpoints, Ports, labels_of};
use crate::status::Result;
use crate::store::ObjectRef;
use crate::write::DeleteOptions;

/// Endpoints per slice, as `--max-endpoints-per-slice`.
const PER_SLICE: usize = 100;
/// Said once, when zones are given out that were not.
const ENABLED: &str = "Topology Aware Hints has been enabled";
/// Who reports what is done about zones.
const REPORTER: &str = "endpoint-slice-controller";
pub(super) const MANAGED_BY: &str = "endpointslice.kubernetes.io/managed-by";
pub(super) const MANAGER: &str = "endpointslice-controller.k8s.io";
pub(super) const SERVICE_NAME: &str = "kubernetes.io/service-name";
pub(super) const SLICES: &str = "endpointslices.discovery.k8s.io";

/// What is to be done about the zones of a service's endpoints.
#[derive(Debug, Clone)]
pub(super) enum Zoning {
    No,
    /// It was done until now.
    NoMore,
    By(Shares),
}

/// Which endpoints a service's traffic should stay with, where there are any.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Near {
    Zone,
    /// And with those of the zone when the node has none.
    Node,
}

impl Near {
    fn of(service: &Value) -> Option<Self> {
        match service["spec"]["trafficDistribution"].as_str()? {
            "PreferClose" | "PreferSameZone" => Some(Near::Zone),
            "PreferSameNode" => Some(Near::Node),
            _ => None,
        }
    }
}

/// What endpoints are told apart by: address, host name and pod. Pods in the network of their node share its address.
type Identity = (String, String, String);

/// That of an endpoint in a slice.
fn identity(endpoint: &Value) -> Identity {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    (text(&endpoint["addresses"][0]), text(&endpoint["hostname"]), text(&endpoint["targetRef"]["name"]))
}

impl<const LEGACY: bool> Endpoints<LEGACY> {
    pub(super) async fn write_slices(&self, service: &ObjectRef, value: &Value, mut zoning: Zoning) -> Result<()> {
        let families = value["spec"]["ipFamilies"].as_array().cloned().unwrap_or_else(|| vec!["IPv4".into()]);
        let mut existing: Vec<ObjectRef> = self
            .slices
            .get(&service.key.name)
            .filter(|s| s.key.namespace == service.key.namespace && !s.keys.deleting)
            .cloned()
            .collect();
        let slices = existing.iter().filter(|_| !matches!(zoning, Zoning::No));
        let zones: Vec<(String, BTreeMap<Identity, String>)> = slices.map(|slice| given(&slice.value())).collect();
        let mut had_zones = zones.iter().any(|(_, zones)| !zones.is_empty());
        let near = Near::of(value).filter(|_| !matches!(zoning, Zoning::By(_)));
        for family in families.iter().filter_map(Value::as_str) {
            let mut endpoints = self.endpoints(service, value, family);
            let told = match &zoning {
                Zoning::By(shares) => {
                    let before = zones.iter().filter(|(of, _)| of == family).flat_map(|(_, zones)| zones.clone());
                    let given = give_zones(&mut endpoints, &before.collect(), shares);
                    let is_new = given.is_ok() && !std::mem::replace(&mut had_zones, given.is_ok());
                    given.err().or_else(|| is_new.then(|| ENABLED.into()))
                }
                Zoning::NoMore if had_zones => {
                    zoning = Zoning::No;
                    Some("Topology Aware Hints has been disabled".into())
                }
                Zoning::NoMore | Zoning::No => None,
            };
            let mut groups: BTreeMap<String, (Ports, Vec<Endpoint>)> = BTreeMap::new();
            for (ports, endpoint) in endpoints {
                groups.entry(ports.to_string()).or_insert_with(|| (ports, Vec::new())).1.push(endpoint);
            }
            // A service without endpoints has one empty slice.
            if groups.is_empty() {
                groups.insert(String::new(), (json!([]), Vec::new()));
            }
            for (ports, wanted) in groups.into_values() {
                let same = |slice: &ObjectRef| {
                    let slice = slice.value();
                    let have = slice["ports"].as_array().cloned().unwrap_or_default();
                    slice["addressType"] == family && Value::from(have) == ports
                };
                let (mine, others) = existing.into_iter().partition(same);
                existing = others;
                self.write_group((service, value), (family, &ports), near, wanted, mine).await?;
            }
            if let Some(text) = told {
                self.tell(service, family, &text);
            }
        }
        for slice in existing {
            self.client.delete_object(SLICES, &slice, DeleteOptions::default()).await?;
        }
        Ok(())
    }

    /// What was done about zones.
    fn tell(&self, service: &ObjectRef, family: &str, text: &str) {
        let (about, message) = (("Service", "v1", service), format!("{text}, addressType: {family}"));
        match text {
            ENABLED => self.recorder.say(REPORTER, about, "TopologyAwareHintsEnabled", message),
            _ => self.recorder.warn(REPORTER, about, "TopologyAwareHintsDisabled", message),
        }
    }

    /// Brings the slices of one address family and set of ports to the wanted endpoints.
    async fn write_group(
        &self,
        (service, value): (&ObjectRef, &Value),
        (family, ports): (&str, &Ports),
        near: Option<Near>,
        wanted: Vec<Endpoint>,
        existing: Vec<ObjectRef>,
    ) -> Result<()> {
        let mut left: BTreeMap<Identity, Value> = wanted.iter().map(|e| (e.identity(), e.in_slice(near))).collect();
        let mut slices: Vec<(ObjectRef, Vec<Value>)> = Vec::new();
        for slice in existing {
            let have = slice.value();
            let kept = have["endpoints"].as_array().into_iter().flatten();
            let kept = kept.filter_map(|e| left.remove(&identity(e))).collect();
            slices.push((slice, kept));
        }
        // The fullest first: few slices are better than many.
        slices.sort_by_key(|(_, kept)| std::cmp::Reverse(kept.len()));
        let mut rest: Vec<Value> = left.into_values().collect();
        for (_, kept) in &mut slices {
            let room = PER_SLICE.saturating_sub(kept.len()).min(rest.len());
            kept.extend(rest.drain(..room));
        }
        let mut labels = labels_of(value);
        labels[SERVICE_NAME] = service.key.name.to_string().into();
        labels[MANAGED_BY] = MANAGER.into();
        let trigger = Timestamp::now().to_seconds_text();
        let surplus = slices.len() > 1 || !rest.is_empty();
        for (slice, endpoints) in slices {
            if endpoints.is_empty() && surplus {
                self.client.delete_object(SLICES, &slice, DeleteOptions::default()).await?;
                continue;
            }
            let have = slice.value();
            if have["endpoints"].as_array().cloned().unwrap_or_default() == endpoints
                && have["metadata"]["labels"] == labels
            {
                continue;
            }
            let written = self.client.update(SLICES, &slice.key.namespace, &slice.key.name, |value| {
                value["endpoints"] = endpoints.clone().into();
                value["metadata"]["labels"] = labels.clone();
                value["metadata"]["annotations"]["endpoints.kubernetes.io/last-change-trigger-time"] =
                    trigger.as_str().into();
                Ok(())
            });
            match written.await {
                Err(error) if error.is_not_found() => {}
                written => written.map(|_| ())?,
            }
        }
        // Always at least one slice per family.
        let first = rest.is_empty() && wanted.is_empty() && !surplus && self.count(service, family) == 0;
        let chunks: Vec<Vec<Value>> =
            if first { vec![Vec::new()] } else { rest.chunks(PER_SLICE).map(<[Value]>::to_vec).collect() };
        for endpoints in chunks {
            let slice = json!({
                "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": family,
                "metadata": {"generateName": format!("{}-", service.key.name), "labels": labels,
                    "annotations": {"endpoints.kubernetes.io/last-change-trigger-time": trigger},
                    "ownerReferences": [{"apiVersion": "v1", "kind": "Service", "name": service.key.name,
                        "uid": service.keys.uid, "controller": true, "blockOwnerDeletion": true}]},
                "endpoints": endpoints, "ports": ports,
            });
            self.client.create(SLICES, &service.key.namespace, slice).await?;
        }
        Ok(())
    }

    /// Slices of a service for an address family.
    fn count(&self, service: &ObjectRef, family: &str) -> usize {
        let mine = self.slices.get(&service.key.name).filter(|s| s.key.namespace == service.key.namespace);
        mine.filter(|s| s.value()["addressType"] == family).count()
    }
}

/// Family of a slice's addresses, and the zones that they are for.
fn given(slice: &Value) -> (String, BTreeMap<Identity, String>) {
    let endpoints = slice["endpoints"].as_array().into_iter().flatten();
    let zones = endpoints.filter_map(|endpoint| {
        let zone = endpoint["hints"]["forZones"][0]["name"].as_str()?;
        Some((identity(endpoint), zone.to_owned()))
    });
    (slice["addressType"].as_str().unwrap_or_default().to_owned(), zones.collect())
}

/// Gives the ready ones of a service's endpoints the zones that they are for.
///
/// # Errors
/// Why none is given any.
fn give_zones(
    endpoints: &mut [(Ports, Endpoint)],
    before: &BTreeMap<Identity, String>,
    shares: &Shares,
) -> std::result::Result<(), String> {
    let ready = endpoints.iter().map(|(_, endpoint)| endpoint).filter(|endpoint| endpoint.ready);
    let ready: Vec<_> = ready.map(|endpoint| (endpoint.identity(), endpoint.zone.as_deref())).collect();
    let zones = topology::assign(&ready, before, shares)?;
    let ready = endpoints.iter_mut().map(|(_, endpoint)| endpoint).filter(|endpoint| endpoint.ready);
    ready.zip(zones).for_each(|(endpoint, zone)| endpoint.given = Some(zone));
    Ok(())
}

impl Endpoint {
    fn identity(&self) -> Identity {
        let name = self.target["name"].as_str().unwrap_or_default();
        (self.address.clone(), self.hostname.clone().unwrap_or_default(), name.to_owned())
    }

    fn in_slice(&self, near: Option<Near>) -> Value {
        let mut out = json!({"addresses": [self.address], "conditions": {"ready": self.ready, "serving": self.serving,
            "terminating": self.terminating}, "targetRef": self.target});
        if !self.node.is_empty() {
            out["nodeName"] = self.node.as_str().into();
        }
        if let Some(zone) = &self.zone {
            out["zone"] = zone.as_str().into();
        }
        if let Some(hostname) = &self.hostname {
            out["hostname"] = hostname.as_str().into();
        }
        if let Some(zone) = &self.given {
            out["hints"]["forZones"] = json!([{"name": zone}]);
        }
        if let Some(near) = near.filter(|_| self.ready) {
            if let Some(zone) = &self.zone {
                out["hints"]["forZones"] = json!([{"name": zone}]);
            }
            if near == Near::Node && !self.node.is_empty() {
                out["hints"]["forNodes"] = json!([{"name": self.node}]);
            }
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::client::Client;
    use crate::controllers::events::Recorder;
    use crate::controllers::feed::Feed;
    use crate::controllers::queue::Queue;
    use crate::controllers::runner::Controller as _;
    use crate::store::Key;

    /// Does what there is to do.
    async fn follow(controller: &mut Endpoints<false>, feed: &mut Feed, queue: &mut Queue<Key>) {
        loop {
            feed.drain(|change| controller.observe(change, queue)).expect("in time");
            let Some(key) = queue.pop(tokio::time::Instant::now()) else { break };
            controller.begin(&key).expect("work").await.expect("it goes");
            queue.done(&key);
        }
    }

    /// A pod of the application `x` on node `a` that is ready.
    async fn start_pod(client: &Client, name: &str, ip: &str) {
        let spec = json!({"nodeName": "a", "containers": [{"name": "c", "image": "i"}]});
        let metadata = json!({"name": name, "labels": {"app": "x"}});
        let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec});
        client.create("pods", "default", pod).await.expect("a pod");
        let written = client.update_status("pods", "default", name, |pod| {
            pod["status"]["podIPs"] = json!([{ "ip": ip }]);
            pod["status"]["podIP"] = ip.into();
            pod["status"]["conditions"] = json!([{"type": "Ready", "status": "True"}]);
            Ok(())
        });
        written.await.expect("written");
    }

    #[test]
    fn hints_follow_the_traffic_distribution_and_only_to_ready_pods() {
        let endpoint = |ready| Endpoint {
            address: "10.0.0.1".into(),
            ready,
            serving: ready,
            terminating: false,
            node: "n1".into(),
            zone: Some("a".into()),
            given: None,
            hostname: None,
            target: json!({}),
        };
        let hints = |distribution: Value, ready| {
            let near = Near::of(&json!({"spec": {"trafficDistribution": distribution}}));
            endpoint(ready).in_slice(near).get("hints").cloned()
        };
        let zones = json!({"forZones": [{"name": "a"}]});
        assert_eq!(hints("PreferClose".into(), true), Some(zones.clone()));
        assert_eq!(hints("PreferSameZone".into(), true), Some(zones));
        let both = json!({"forZones": [{"name": "a"}], "forNodes": [{"name": "n1"}]});
        assert_eq!(hints("PreferSameNode".into(), true), Some(both));
        assert_eq!(hints("PreferSameNode".into(), false), None);
        assert_eq!(hints(Value::Null, true), None);
    }

    /// Of the pods in the network of one node only one was listed, be it the one that was about to go.
    #[tokio::test]
    async fn pods_that_share_an_address_are_endpoints_of_their_own() {
        let server = crate::serve::testing::server().await;
        let client = Client::new(server.clone(), "system:kube-controller-manager", "test");
        let mut controller = Endpoints::<false>::new(client.clone(), Recorder::start(client.clone()));
        let (mut feed, mut queue) = (Feed::open(&server.store, &controller.watched()), Queue::default());
        let spec = json!({"selector": {"app": "x"}, "ports": [{"port": 80}]});
        let service = json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "s"}, "spec": spec});
        client.create("services", "default", service).await.expect("a service");
        start_pod(&client, "old", "10.9.0.1").await;
        let mut listed = async || {
            follow(&mut controller, &mut feed, &mut queue).await;
            let slices = server.store.snapshot(&SLICES.into());
            let slice = slices.range(Some("default"), None).next().expect("a slice").value();
            let endpoints = slice["endpoints"].as_array().cloned().unwrap_or_default();
            let text = |e: &Value| format!("{} {}", e["targetRef"]["name"], e["conditions"]["ready"]).replace('"', "");
            endpoints.iter().map(text).collect::<Vec<_>>()
        };
        assert_eq!(listed().await, ["old true"]);
        start_pod(&client, "new", "10.9.0.1").await;
        assert_eq!(listed().await, ["old true", "new true"]);
        client.delete("pods", "default", "old", &DeleteOptions::default()).await.expect("it is to go");
        assert_eq!(listed().await, ["old false", "new true"], "each stays where it is");
        let now = DeleteOptions { grace_seconds: Some(0), ..DeleteOptions::default() };
        client.delete("pods", "default", "old", &now).await.expect("it goes");
        assert_eq!(listed().await, ["new true"]);
    }

    /// The annotation did nothing.
    #[tokio::test]
    async fn endpoints_are_given_zones_where_a_service_says_so() {
        let server = crate::serve::testing::server().await;
        let client = Client::new(server.clone(), "system:kube-controller-manager", "test");
        let mut controller = Endpoints::<false>::new(client.clone(), Recorder::start(client.clone()));
        let (mut feed, mut queue) = (Feed::open(&server.store, &controller.watched()), Queue::default());
        let ready = json!([{"type": "Ready", "status": "True"}]);
        for zone in ["a", "b"] {
            let node = json!({"apiVersion": "v1", "kind": "Node",
                "metadata": {"name": zone, "labels": {"topology.kubernetes.io/zone": zone}}});
            client.create("nodes", "", node).await.expect("a node");
            let written = client.update_status("nodes", "", zone, |node| {
                node["status"]["allocatable"]["cpu"] = "4".into();
                node["status"]["conditions"] = ready.clone();
                Ok(())
            });
            written.await.expect("written");
        }
        for name in ["1", "2"] {
            start_pod(&client, name, &format!("10.9.0.{name}")).await;
        }
        let metadata = json!({"name": "s", "annotations": {"service.kubernetes.io/topology-mode": "Auto"}});
        let spec = json!({"selector": {"app": "x"}, "ports": [{"port": 80}]});
        let service = json!({"apiVersion": "v1", "kind": "Service", "metadata": metadata, "spec": spec});
        client.create("services", "default", service).await.expect("a service");
        let mut zones = async || {
            follow(&mut controller, &mut feed, &mut queue).await;
            let slices = server.store.snapshot(&SLICES.into());
            let slice = slices.range(Some("default"), None).next().expect("a slice").value();
            let endpoints = slice["endpoints"].as_array().cloned().unwrap_or_default();
            let zone = |e: &Value| e["hints"]["forZones"][0]["name"].as_str().unwrap_or_default().to_owned();
            let mut zones: Vec<String> = endpoints.iter().map(zone).collect();
            zones.sort();
            zones
        };
        assert_eq!(zones().await, ["a", "b"]);
        let written = client.update("services", "default", "s", |service| {
            service["metadata"]["annotations"]["service.kubernetes.io/topology-mode"] = "Disabled".into();
            Ok(())
        });
        written.await.expect("written");
        assert_eq!(zones().await, ["", ""]);
        let told = async || loop {
            let events = server.store.snapshot(&"events".into());
            let mut said: Vec<String> = events
                .range(None, None)
                .map(|e| e.value()["message"].as_str().unwrap_or_default().to_owned())
                .collect();
            if said.len() == 2 {
                said.sort();
                return said;
            }
            tokio::task::yield_now().await;
        };
        let said = tokio::time::timeout(Duration::from_secs(10), told()).await.expect("it is told");
        let expected = ["disabled", "enabled"];
        assert_eq!(said, expected.map(|what| format!("Topology Aware Hints has been {what}, addressType: IPv4")));
    }
}
