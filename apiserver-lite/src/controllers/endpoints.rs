//! `endpointslice-controller` and `endpoints-controller`: the addresses behind each service that selects pods.
//!
//! Both watch the same and differ in what they write: [`slices`], or one object with [`subsets`].

mod slices;
mod subsets;
mod topology;

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use futures_util::future::FutureExt as _;
use serde_json::{Value, json};

use self::slices::{MANAGED_BY, MANAGER, SERVICE_NAME, SLICES, Zoning};
use self::topology::Nodes;
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

const HEADLESS: &str = "service.kubernetes.io/headless";

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

#[cfg(test)]
mod tests {
    use super::*;

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
