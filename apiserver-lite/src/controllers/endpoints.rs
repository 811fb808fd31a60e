//! `endpointslice-controller` and `endpoints-controller`: the addresses behind each service that selects pods.
//!
//! Both watch the same and differ in what they write: slices of at most a hundred endpoints, where an endpoint stays in
//! the slice it is in, or one Endpoints object.

mod topology;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::time::Duration;

use futures_util::future::FutureExt as _;
use proto::time::Timestamp;
use serde_json::{Value, json};

use self::topology::{Nodes, Shares};
use super::events::Recorder;
use super::feed::Change;
use super::index::Index;
use super::ownership::is_terminating;
use super::pods::{PodDigest, is_terminal};
use super::queue::Queue;
use super::runner::{Controller, Work};
use crate::client::Client;
use crate::selectors::LabelSelector;
use crate::status::Result;
use crate::store::{Key, ObjectRef, ResourceId};
use crate::write::DeleteOptions;

/// Endpoints per slice, as `--max-endpoints-per-slice`.
const PER_SLICE: usize = 100;
/// Said once, when zones are given out that were not.
const ENABLED: &str = "Topology Aware Hints has been enabled";
/// Addresses that an Endpoints object may have.
const CAPACITY: usize = 1000;
const MANAGED_BY: &str = "endpointslice.kubernetes.io/managed-by";
const MANAGER: &str = "endpointslice-controller.k8s.io";
const SERVICE_NAME: &str = "kubernetes.io/service-name";
const HEADLESS: &str = "service.kubernetes.io/headless";
const SLICES: &str = "endpointslices.discovery.k8s.io";
/// Who reports what is done about zones.
const REPORTER: &str = "endpoint-slice-controller";

/// The controller of slices, or with `LEGACY` that of Endpoints.
pub struct Endpoints<const LEGACY: bool> {
    client: Client,
    recorder: Recorder,
    services: HashMap<Key, LabelSelector>,
    /// Pods by namespace, only those with an address.
    pods: Index,
    /// Our slices by service (`namespace/name`).
    slices: Index,
    nodes: Nodes,
    /// Services whose endpoints are given zones by the CPU of those.
    zoned: HashSet<Key>,
}

/// What is to be done about the zones of a service's endpoints.
#[derive(Debug, Clone)]
enum Zoning {
    No,
    /// It was done until now.
    NoMore,
    By(Shares),
}

/// A pod behind a service.
#[derive(Debug, Clone, PartialEq)]
struct Endpoint {
    address: String,
    ready: bool,
    serving: bool,
    terminating: bool,
    node: String,
    zone: Option<String>,
    /// The zone that it is given, wherever it is.
    given: Option<String>,
    hostname: Option<String>,
    target: Value,
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

/// Endpoints with the same ports, in the order of their addresses.
#[derive(Default)]
struct Subset {
    ports: Ports,
    ready: BTreeMap<String, Value>,
    unready: BTreeMap<String, Value>,
}

/// Ports as a slice lists them; pods may differ in what a port's name means to them.
type Ports = Value;

impl<const LEGACY: bool> Endpoints<LEGACY> {
    pub fn new(client: Client, recorder: Recorder) -> Self {
        Endpoints {
            client,
            recorder,
            services: HashMap::new(),
            pods: Index::default(),
            slices: Index::default(),
            nodes: Nodes::default(),
            zoned: HashSet::new(),
        }
    }

    fn queue_for(&self, pod: &ObjectRef, queue: &mut Queue<Key>) {
        let fitting = self
            .services
            .iter()
            .filter(|(key, selector)| key.namespace == pod.key.namespace && selector.matches(&pod.keys.labels));
        fitting.for_each(|(key, _)| queue.add(key.clone()));
    }

    /// Every endpoint of a service by what its ports are.
    fn endpoints(&self, service: &ObjectRef, value: &Value, family: &str) -> Vec<(Ports, Endpoint)> {
        let selector = LabelSelector::from_map(&value["spec"]["selector"]);
        let publish = value["spec"]["publishNotReadyAddresses"] == true;
        let mut out = Vec::new();
        for pod in self.pods.get(&service.key.namespace).filter(|p| selector.matches(&p.keys.labels)) {
            let digest = PodDigest::of(pod);
            let Some(address) = digest.ips.iter().find(|ip| ip.contains(':') == (family == "IPv6")) else { continue };
            if is_terminal(pod) || LEGACY && pod.keys.deleting && !publish {
                continue;
            }
            let pod_value = pod.value();
            let node = pod.field("spec.nodeName").to_owned();
            let zone = self.client.get("nodes", "", &node);
            let zone = zone.and_then(|n| n.label(topology::ZONE).map(str::to_owned));
            let hostname = &pod_value["spec"]["hostname"];
            let named = pod_value["spec"]["subdomain"] == *service.key.name;
            let endpoint = Endpoint {
                address: address.to_string(),
                ready: publish || digest.ready && !pod.keys.deleting,
                serving: digest.ready,
                terminating: pod.keys.deleting,
                node,
                zone,
                given: None,
                hostname: hostname.as_str().filter(|h| named && !h.is_empty()).map(str::to_owned),
                target: json!({"kind": "Pod", "namespace": pod.key.namespace, "name": pod.key.name, "uid": pod.keys.uid}),
            };
            out.push((ports(value, &pod_value), endpoint));
        }
        out
    }
}

/// The ports of a service as one pod offers them.
fn ports(service: &Value, pod: &Value) -> Ports {
    let mut out = Vec::new();
    for port in service["spec"]["ports"].as_array().into_iter().flatten() {
        let protocol = port["protocol"].as_str().unwrap_or("TCP");
        let number = match &port["targetPort"] {
            Value::String(name) => named_port(pod, name, protocol),
            Value::Number(number) if number.as_i64() != Some(0) => number.as_i64(),
            _ => port["port"].as_i64(),
        };
        let Some(number) = number else { continue };
        let mut entry =
            json!({"name": port["name"].as_str().unwrap_or_default(), "protocol": protocol, "port": number});
        if port["appProtocol"].is_string() {
            entry["appProtocol"] = port["appProtocol"].clone();
        }
        out.push(entry);
    }
    out.into()
}

fn named_port(pod: &Value, name: &str, protocol: &str) -> Option<i64> {
    let sidecars = pod["spec"]["initContainers"].as_array().into_iter().flatten();
    let sidecars = sidecars.filter(|c| c["restartPolicy"] == "Always");
    let containers = pod["spec"]["containers"].as_array().into_iter().flatten().chain(sidecars);
    let mut ports = containers.flat_map(|c| c["ports"].as_array().into_iter().flatten());
    let fits = |p: &&Value| p["name"] == name && p["protocol"].as_str().unwrap_or("TCP") == protocol;
    ports.find(fits).and_then(|p| p["containerPort"].as_i64())
}

/// What of a pod shows in endpoints.
fn visible(pod: &ObjectRef) -> impl PartialEq + use<> {
    let digest = PodDigest::of(pod);
    (digest.ips.clone(), digest.ready, pod.keys.deleting, is_terminal(pod), pod.keys.labels.clone())
}

fn of_service(slice: &ObjectRef) -> Option<Box<str>> {
    let ours = slice.label(MANAGED_BY) == Some(MANAGER);
    slice.label(SERVICE_NAME).filter(|_| ours).map(Into::into)
}

impl<const LEGACY: bool> Controller for Endpoints<LEGACY> {
    const NAME: &'static str = if LEGACY { "endpoints-controller" } else { "endpointslice-controller" };
    type Key = Key;

    fn watched(&self) -> Vec<ResourceId> {
        let resources: &[&str] =
            if LEGACY { &["services", "pods", "endpoints"] } else { &["services", "pods", SLICES, "nodes"] };
        resources.iter().map(|name| (*name).into()).collect()
    }

    fn observe(&mut self, change: Change<'_>, queue: &mut Queue<Key>) {
        let object = change.object;
        match change.resource {
            0 => {
                match change.deleted() {
                    true => drop(self.services.remove(&object.key)),
                    false => {
                        let selector = LabelSelector::from_map(&object.value()["spec"]["selector"]);
                        self.services.insert(object.key.clone(), selector);
                    }
                }
                queue.add(object.key.clone());
            }
            1 => {
                self.pods.observe(change, |pod| (!PodDigest::of(pod).ips.is_empty()).then_some(&*pod.key.namespace));
                if change.previous.is_some_and(|old| !change.deleted() && visible(old) == visible(object)) {
                    return;
                }
                for state in [Some(object), change.previous].into_iter().flatten() {
                    self.queue_for(state, queue);
                }
            }
            _ if LEGACY => {
                if change.deleted() {
                    queue.add(object.key.clone());
                }
            }
            3 => {
                if self.nodes.observe(&change) {
                    self.zoned.iter().for_each(|service| queue.add(service.clone()));
                }
            }
            _ => {
                self.slices.observe(change, |slice| {
                    slice.label(SERVICE_NAME).filter(|_| slice.label(MANAGED_BY) == Some(MANAGER))
                });
                for state in [Some(object), change.previous].into_iter().flatten() {
                    if let Some(service) = of_service(state) {
                        queue.add(Key { namespace: object.key.namespace.clone(), name: service });
                    }
                }
            }
        }
    }

    fn begin(&mut self, key: &Key) -> Option<Work> {
        let mut hand = Self::new(self.client.clone(), self.recorder.clone());
        let found = self.client.get("services", &key.namespace, &key.name).map(|service| {
            let value = service.value();
            (service, value)
        });
        if let Some((_, value)) = &found {
            let selector = LabelSelector::from_map(&value["spec"]["selector"]);
            hand.pods = self.pods.part(&[&*key.namespace], |pod| selector.matches(&pod.keys.labels));
            hand.slices = self.slices.part(&[&*key.name], |slice| slice.key.namespace == key.namespace);
        }
        let is_zoned = found.as_ref().is_some_and(|(service, value)| !LEGACY && topology::is_wanted(service, value));
        let zoning = match is_zoned {
            true => {
                self.zoned.insert(key.clone());
                Zoning::By(self.nodes.shares.clone())
            }
            false if self.zoned.remove(key) => Zoning::NoMore,
            false => Zoning::No,
        };
        let key = key.clone();
        Some(async move { hand.work(&key, found, zoning).await }.boxed())
    }
}

impl<const LEGACY: bool> Endpoints<LEGACY> {
    /// Work on one service, with the part of the state that was chosen for it as it was found. By now it may select
    /// other pods: those are looked at next.
    async fn work(self, key: &Key, found: Option<(ObjectRef, Value)>, zoning: Zoning) -> Result<Option<Duration>> {
        let Some((service, value)) = found else {
            if LEGACY && let Some(endpoints) = self.client.get("endpoints", &key.namespace, &key.name) {
                let ours = endpoints.label("endpoints.kubernetes.io/managed-by") == Some("endpoint-controller");
                if ours {
                    self.client.delete_object("endpoints", &endpoints, DeleteOptions::default()).await?;
                }
            }
            return Ok(None);
        };
        let selects = value["spec"]["selector"].as_object().is_some_and(|s| !s.is_empty());
        if !selects || value["spec"]["type"] == "ExternalName" || service.keys.deleting {
            return Ok(None);
        }
        let result = match LEGACY {
            true => self.write_endpoints(&service, &value).await,
            false => self.write_slices(&service, &value, zoning).await,
        };
        match result {
            Err(error) if is_terminating(&error) => Ok(None),
            result => result.map(|()| None),
        }
    }
}

/// The labels of a service, without those that are ours.
fn labels_of(value: &Value) -> Value {
    let mut labels = value["metadata"]["labels"].as_object().cloned().unwrap_or_default();
    labels.remove(HEADLESS);
    if matches!(value["spec"]["clusterIP"].as_str(), Some("None")) {
        labels.insert(HEADLESS.into(), "".into());
    }
    labels.into()
}

impl<const LEGACY: bool> Endpoints<LEGACY> {
    async fn write_slices(&self, service: &ObjectRef, value: &Value, mut zoning: Zoning) -> Result<()> {
        let families = value["spec"]["ipFamilies"].as_array().cloned().unwrap_or_else(|| vec!["IPv4".into()]);
        let mut existing: Vec<ObjectRef> = self
            .slices
            .get(&service.key.name)
            .filter(|s| s.key.namespace == service.key.namespace && !s.keys.deleting)
            .cloned()
            .collect();
        let slices = existing.iter().filter(|_| !matches!(zoning, Zoning::No));
        let zones: Vec<(String, BTreeMap<String, String>)> = slices.map(|slice| given(&slice.value())).collect();
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
        let mut left: BTreeMap<String, Value> = wanted.iter().map(|e| (e.address.clone(), e.in_slice(near))).collect();
        let mut slices: Vec<(ObjectRef, Vec<Value>)> = Vec::new();
        for slice in existing {
            let have = slice.value();
            let kept = have["endpoints"].as_array().into_iter().flatten();
            let kept = kept.filter_map(|e| left.remove(e["addresses"][0].as_str()?)).collect();
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

    async fn write_endpoints(&self, service: &ObjectRef, value: &Value) -> Result<()> {
        let family = value["spec"]["ipFamilies"][0].as_str().unwrap_or("IPv4");
        let headless = matches!(value["spec"]["clusterIP"].as_str(), Some("None"));
        // One subset for each set of ports, addresses in order.
        let mut subsets: BTreeMap<String, Subset> = BTreeMap::new();
        let endpoints = self.endpoints(service, value, family);
        let over = endpoints.len() > CAPACITY;
        for (ports, endpoint) in endpoints.into_iter().take(CAPACITY) {
            let none = ports.as_array().is_none_or(Vec::is_empty);
            if none && !headless {
                continue;
            }
            let subset = subsets.entry(ports.to_string()).or_insert_with(|| Subset { ports, ..Subset::default() });
            let place = if endpoint.ready { &mut subset.ready } else { &mut subset.unready };
            place.insert(endpoint.address.clone(), endpoint.in_subset());
        }
        let subsets: Vec<Value> = subsets
            .into_values()
            .map(|Subset { ports, ready, unready }| {
                let mut subset = json!({});
                let mut put = |key: &str, list: Vec<Value>| {
                    if !list.is_empty() {
                        subset[key] = list.into();
                    }
                };
                put("addresses", ready.into_values().collect());
                put("notReadyAddresses", unready.into_values().collect());
                let ports = ports.as_array().into_iter().flatten().cloned().map(without_empty_name);
                put("ports", ports.collect());
                subset
            })
            .collect();
        let mut labels = labels_of(value);
        labels["endpoints.kubernetes.io/managed-by"] = "endpoint-controller".into();
        let found = self.client.get("endpoints", &service.key.namespace, &service.key.name);
        let fill = |target: &mut Value| {
            match subsets.is_empty() {
                true => drop(target.as_object_mut().and_then(|t| t.remove("subsets"))),
                false => target["subsets"] = subsets.clone().into(),
            }
            target["metadata"]["labels"] = labels.clone();
            let trigger = Timestamp::now().to_seconds_text();
            target["metadata"]["annotations"]["endpoints.kubernetes.io/last-change-trigger-time"] = trigger.into();
            let full = "endpoints.kubernetes.io/over-capacity";
            match (over, target["metadata"]["annotations"].as_object_mut()) {
                (true, Some(map)) => drop(map.insert(full.into(), "truncated".into())),
                (false, Some(map)) => drop(map.remove(full)),
                _ => {}
            }
        };
        match found {
            Some(found) => {
                let have = found.value();
                if have["subsets"].as_array().cloned().unwrap_or_default() == subsets
                    && have["metadata"]["labels"] == labels
                {
                    return Ok(());
                }
                let written = self.client.update("endpoints", &found.key.namespace, &found.key.name, |value| {
                    fill(value);
                    Ok(())
                });
                written.await.map(|_| ())
            }
            None => {
                let mut endpoints =
                    json!({"apiVersion": "v1", "kind": "Endpoints", "metadata": {"name": service.key.name}});
                fill(&mut endpoints);
                match self.client.create("endpoints", &service.key.namespace, endpoints).await {
                    Err(error) if error.is_already_exists() => Ok(()),
                    made => made.map(|_| ()),
                }
            }
        }
    }
}

/// Family of a slice's addresses, and the zones that they are for.
fn given(slice: &Value) -> (String, BTreeMap<String, String>) {
    let endpoints = slice["endpoints"].as_array().into_iter().flatten();
    let zones = endpoints.filter_map(|endpoint| {
        let (address, zone) = (&endpoint["addresses"][0], &endpoint["hints"]["forZones"][0]["name"]);
        Some((address.as_str()?.to_owned(), zone.as_str()?.to_owned()))
    });
    (slice["addressType"].as_str().unwrap_or_default().to_owned(), zones.collect())
}

/// Gives the ready ones of a service's endpoints the zones that they are for.
///
/// # Errors
/// Why none is given any.
fn give_zones(
    endpoints: &mut [(Ports, Endpoint)],
    before: &BTreeMap<String, String>,
    shares: &Shares,
) -> std::result::Result<(), String> {
    let ready = endpoints.iter().map(|(_, endpoint)| endpoint).filter(|endpoint| endpoint.ready);
    let ready: Vec<_> = ready.map(|endpoint| (&*endpoint.address, endpoint.zone.as_deref())).collect();
    let zones = topology::assign(&ready, before, shares)?;
    let ready = endpoints.iter_mut().map(|(_, endpoint)| endpoint).filter(|endpoint| endpoint.ready);
    ready.zip(zones).for_each(|(endpoint, zone)| endpoint.given = Some(zone));
    Ok(())
}

fn without_empty_name(mut port: Value) -> Value {
    if port["name"] == ""
        && let Some(map) = port.as_object_mut()
    {
        map.remove("name");
    }
    port
}

impl Endpoint {
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

    fn in_subset(&self) -> Value {
        let mut out = json!({"ip": self.address, "targetRef": self.target});
        if !self.node.is_empty() {
            out["nodeName"] = self.node.as_str().into();
        }
        if let Some(hostname) = &self.hostname {
            out["hostname"] = hostname.as_str().into();
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::super::feed::Feed;
    use super::*;

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
            let spec = json!({"nodeName": "a", "containers": [{"name": "c", "image": "i"}]});
            let metadata = json!({"name": name, "labels": {"app": "x"}});
            let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec});
            client.create("pods", "default", pod).await.expect("a pod");
            let written = client.update_status("pods", "default", name, |pod| {
                let ip = format!("10.9.0.{name}");
                pod["status"]["podIPs"] = json!([{ "ip": ip }]);
                pod["status"]["podIP"] = ip.into();
                pod["status"]["conditions"] = ready.clone();
                Ok(())
            });
            written.await.expect("written");
        }
        let metadata = json!({"name": "s", "annotations": {"service.kubernetes.io/topology-mode": "Auto"}});
        let spec = json!({"selector": {"app": "x"}, "ports": [{"port": 80}]});
        let service = json!({"apiVersion": "v1", "kind": "Service", "metadata": metadata, "spec": spec});
        client.create("services", "default", service).await.expect("a service");
        let mut zones = async || {
            loop {
                feed.drain(|change| controller.observe(change, &mut queue)).expect("in time");
                let Some(key) = queue.pop(tokio::time::Instant::now()) else { break };
                controller.begin(&key).expect("work").await.expect("it goes");
                queue.done(&key);
            }
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

    #[test]
    fn a_target_port_may_be_a_name_that_each_pod_resolves() {
        let service = json!({"spec": {"ports": [{"name": "web", "port": 80, "protocol": "TCP", "targetPort": "http"},
            {"port": 53, "protocol": "UDP", "targetPort": 5353}]}});
        let pod =
            json!({"spec": {"containers": [{"ports": [{"name": "http", "containerPort": 8080, "protocol": "TCP"}]}]}});
        let ports = ports(&service, &pod);
        assert_eq!(
            ports,
            json!([{"name": "web", "protocol": "TCP", "port": 8080}, {"name": "", "protocol": "UDP", "port": 5353}])
        );
        let other = json!({"spec": {"containers": [{}]}});
        assert_eq!(super::ports(&service, &other).as_array().map(Vec::len), Some(1));
    }
}
