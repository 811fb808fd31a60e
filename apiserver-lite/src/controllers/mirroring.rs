//! `endpointslice-mirroring-controller`: slices for Endpoints that somebody writes by hand, so that whoever reads slices
//! alone finds every service's addresses.
//!
//! Endpoints are mirrored that belong to a service without a selector, and are neither a lock of a leader election nor
//! marked to be left out. One slice holds the addresses of one family with the same ports; what is beyond a thousand
//! addresses of a subset is left out, and an event says so. Follows `pkg/controller/endpointslicemirroring`.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Duration;

use serde_json::{Map, Value, json};

use super::events::Recorder;
use super::feed::Change;
use super::index::Index;
use super::ownership::is_terminating;
use super::queue::Queue;
use super::runner::Controller;
use crate::client::Client;
use crate::status::Result;
use crate::store::{Key, ObjectRef, ResourceId};
use crate::tree::list;
use crate::write::DeleteOptions;

/// Addresses of a subset that are mirrored, as `--mirroring-max-endpoints-per-subset`.
const PER_SUBSET: usize = 1000;
const MANAGED_BY: &str = "endpointslice.kubernetes.io/managed-by";
const MANAGER: &str = "endpointslicemirroring-controller.k8s.io";
const SERVICE_NAME: &str = "kubernetes.io/service-name";
const SKIP: &str = "endpointslice.kubernetes.io/skip-mirror";
const LEADER: &str = "control-plane.alpha.kubernetes.io/leader";
const TRIGGER: &str = "endpoints.kubernetes.io/last-change-trigger-time";
const APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";
const SLICES: &str = "endpointslices.discovery.k8s.io";
const REPORTER: &str = "endpoint-slice-mirroring-controller";

pub struct Mirroring {
    client: Client,
    recorder: Recorder,
    /// Our slices by the name of their Endpoints.
    slices: Index,
}

/// A slice that there should be.
#[derive(Debug, PartialEq)]
struct Wanted {
    family: &'static str,
    ports: Value,
    /// By address.
    endpoints: BTreeMap<IpAddr, Value>,
}

/// What is to be mirrored of some Endpoints.
#[derive(Debug, Default, PartialEq)]
struct Mirror {
    slices: Vec<Wanted>,
    invalid: usize,
    /// Left out for being too many.
    skipped: usize,
}

/// Ports of a subset as a slice has them.
fn ports(subset: &Value) -> Value {
    let port = |port: &Value| {
        let mut out = json!({
            "name": port["name"].as_str().unwrap_or_default(), "protocol": port["protocol"].as_str().unwrap_or("TCP"),
            "port": port["port"],
        });
        if port["appProtocol"].is_string() {
            out["appProtocol"] = port["appProtocol"].clone();
        }
        out
    };
    list(subset, "ports").map(port).collect()
}

fn endpoint(address: &Value, ip: IpAddr, ready: bool) -> Value {
    let mut out = json!({"addresses": [ip.to_string()], "conditions": {"ready": ready}});
    for name in ["targetRef", "nodeName", "hostname"] {
        if let Some(value) = address.get(name).filter(|v| !v.is_null() && *v != "") {
            out[name] = value.clone();
        }
    }
    out
}

impl Mirror {
    fn of(endpoints: &Value) -> Self {
        let mut out = Mirror::default();
        for subset in list(endpoints, "subsets") {
            let ports = ports(subset);
            let ready = list(subset, "addresses").map(|address| (address, true));
            let all: Vec<_> = ready.chain(list(subset, "notReadyAddresses").map(|address| (address, false))).collect();
            let mut added = 0;
            for (address, ready) in all {
                if added == PER_SUBSET {
                    out.skipped += 1;
                    continue;
                }
                let Some(ip) = address["ip"].as_str().and_then(|ip| ip.parse::<IpAddr>().ok()) else {
                    out.invalid += 1;
                    continue;
                };
                let family = if ip.is_ipv4() { "IPv4" } else { "IPv6" };
                let at = out.slices.iter().position(|s| s.family == family && s.ports == ports).unwrap_or_else(|| {
                    out.slices.push(Wanted { family, ports: ports.clone(), endpoints: BTreeMap::new() });
                    out.slices.len() - 1
                });
                let slice = &mut out.slices[at].endpoints;
                // Two subsets with the same ports share a slice; it has room for no more either.
                if slice.len() == PER_SUBSET && !slice.contains_key(&ip) {
                    out.skipped += 1;
                    continue;
                }
                added += 1;
                slice.insert(ip, endpoint(address, ip, ready));
            }
        }
        out
    }
}

/// Whether somebody wants these Endpoints mirrored.
fn is_mirrored(endpoints: &ObjectRef) -> bool {
    endpoints.label(SKIP) != Some("true") && endpoints.without_owners()["metadata"]["annotations"][LEADER].is_null()
}

/// Labels and annotations of a slice.
fn metadata(endpoints: &ObjectRef, value: &Value) -> (Map<String, Value>, Map<String, Value>) {
    let map = |name: &str| value["metadata"][name].as_object().cloned().unwrap_or_default();
    let mut labels = map("labels");
    labels.insert(SERVICE_NAME.into(), (&*endpoints.key.name).into());
    labels.insert(MANAGED_BY.into(), MANAGER.into());
    let mut annotations = map("annotations");
    annotations.retain(|key, _| key != TRIGGER && key != APPLIED);
    (labels, annotations)
}

fn is_ours(slice: &ObjectRef) -> bool {
    slice.label(MANAGED_BY) == Some(MANAGER)
}

impl Mirroring {
    pub fn new(client: Client, recorder: Recorder) -> Self {
        Mirroring { client, recorder, slices: Index::default() }
    }

    fn own(&self, key: &Key) -> Vec<ObjectRef> {
        let all = self.slices.get(&key.name);
        all.filter(|s| s.key.namespace == key.namespace && !s.keys.deleting).cloned().collect()
    }

    async fn remove(&self, slices: Vec<ObjectRef>) -> Result<()> {
        for slice in slices {
            self.client.delete_object(SLICES, &slice, DeleteOptions::default()).await?;
        }
        Ok(())
    }

    fn report(&self, endpoints: &ObjectRef, reason: &'static str, message: String) {
        self.recorder.warn(REPORTER, ("Endpoints", "v1", endpoints), reason, message);
    }

    async fn mirror(&self, endpoints: &ObjectRef) -> Result<()> {
        let value = endpoints.without_owners();
        let mirror = Mirror::of(&value);
        if mirror.invalid > 0 {
            let count = mirror.invalid;
            let text = format!("Skipped {count} invalid IP addresses when mirroring to EndpointSlices");
            self.report(endpoints, "InvalidIPAddress", text);
        }
        if mirror.skipped > 0 {
            let count = mirror.skipped + mirror.invalid;
            let text = format!(
                "A max of {PER_SUBSET} addresses can be mirrored to EndpointSlices per Endpoints subset. {count} addresses \
                 were skipped"
            );
            self.report(endpoints, "TooManyAddressesToMirror", text);
        }
        let mut existing = self.own(&endpoints.key);
        let metadata = metadata(endpoints, &value);
        let mut missing = Vec::new();
        for wanted in mirror.slices {
            let fits = |slice: &ObjectRef| {
                let slice = slice.without_owners();
                let ports = slice["ports"].as_array().cloned().unwrap_or_default();
                slice["addressType"] == wanted.family && Value::from(ports) == wanted.ports
            };
            match existing.iter().position(fits) {
                Some(at) => self.update(&existing.remove(at), &wanted, &metadata).await?,
                None => missing.push(wanted),
            }
        }
        // What is there and not wanted any more takes up what is missing, unless its family, which never changes, differs.
        for wanted in missing {
            let same = |slice: &ObjectRef| slice.without_owners()["addressType"] == wanted.family;
            match existing.iter().position(same) {
                Some(at) => self.update(&existing.remove(at), &wanted, &metadata).await?,
                None => self.create(endpoints, &wanted, &metadata).await?,
            }
        }
        self.remove(existing).await
    }

    async fn create(
        &self,
        endpoints: &ObjectRef,
        wanted: &Wanted,
        (labels, annotations): &(Map<String, Value>, Map<String, Value>),
    ) -> Result<()> {
        let owner = json!({"apiVersion": "v1", "kind": "Endpoints", "name": endpoints.key.name,
            "uid": endpoints.keys.uid, "controller": true, "blockOwnerDeletion": true});
        let list: Vec<&Value> = wanted.endpoints.values().collect();
        let slice = json!({
            "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": wanted.family,
            "metadata": {"generateName": format!("{}-", endpoints.key.name), "labels": labels,
                "annotations": annotations, "ownerReferences": [owner]},
            "endpoints": list, "ports": wanted.ports,
        });
        self.client.create(SLICES, &endpoints.key.namespace, slice).await.map(|_| ())
    }

    /// Brings a slice to what it should be, if it is not that already.
    async fn update(
        &self,
        slice: &ObjectRef,
        wanted: &Wanted,
        (labels, annotations): &(Map<String, Value>, Map<String, Value>),
    ) -> Result<()> {
        let have = slice.without_owners();
        let map = |name: &str| have["metadata"][name].as_object().cloned().unwrap_or_default();
        let address = |endpoint: &Value| endpoint["addresses"][0].as_str().and_then(|ip| ip.parse::<IpAddr>().ok());
        let there: BTreeMap<IpAddr, Value> =
            list(&have, "endpoints").filter_map(|e| Some((address(e)?, e.clone()))).collect();
        let ports = have["ports"].as_array().cloned().unwrap_or_default();
        let same = there == wanted.endpoints
            && list(&have, "endpoints").count() == there.len()
            && Value::from(ports) == wanted.ports
            && map("labels") == *labels
            && map("annotations") == *annotations;
        if same {
            return Ok(());
        }
        let written = self.client.update(SLICES, &slice.key.namespace, &slice.key.name, |value| {
            value["endpoints"] = wanted.endpoints.values().cloned().collect();
            value["ports"] = wanted.ports.clone();
            value["metadata"]["labels"] = labels.clone().into();
            value["metadata"]["annotations"] = annotations.clone().into();
            Ok(())
        });
        super::ownership::done(written.await.map(|_| ())).map(|_| ())
    }
}

impl Controller for Mirroring {
    const NAME: &'static str = "endpointslice-mirroring-controller";
    type Key = Key;

    fn watched(&self) -> Vec<ResourceId> {
        ["endpoints", "services", SLICES].map(Into::into).into()
    }

    fn observe(&mut self, change: Change<'_>, queue: &mut Queue<Key>) {
        let object = change.object;
        if change.resource < 2 {
            // A service and its Endpoints have one name.
            return queue.add(object.key.clone());
        }
        self.slices.observe(change, |slice| slice.label(SERVICE_NAME).filter(|_| is_ours(slice)));
        for state in [Some(object), change.previous].into_iter().flatten().filter(|slice| is_ours(slice)) {
            if let Some(service) = state.label(SERVICE_NAME) {
                queue.add(Key { namespace: object.key.namespace.clone(), name: service.into() });
            }
        }
    }

    async fn sync(&mut self, key: &Key) -> Result<Option<Duration>> {
        let endpoints = self.client.get("endpoints", &key.namespace, &key.name).filter(is_mirrored);
        let service = self.client.get("services", &key.namespace, &key.name);
        let selects = |service: &ObjectRef| {
            service.without_owners()["spec"]["selector"].as_object().is_some_and(|selector| !selector.is_empty())
        };
        let (Some(endpoints), Some(_)) = (endpoints, service.filter(|service| !selects(service))) else {
            self.remove(self.own(key)).await?;
            return Ok(None);
        };
        if endpoints.keys.deleting {
            return Ok(None);
        }
        match self.mirror(&endpoints).await {
            Err(error) if is_terminating(&error) => Ok(None),
            result => result.map(|()| None),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_grouped_by_family_and_ports() {
        let ports = json!([{"name": "web", "port": 80, "protocol": "TCP"}]);
        let endpoints = json!({"subsets": [
            {"addresses": [{"ip": "10.0.0.2", "hostname": "b"}, {"ip": "fd00::1", "nodeName": "n"}],
             "notReadyAddresses": [{"ip": "10.0.0.1"}], "ports": ports},
            {"addresses": [{"ip": "10.0.0.3"}, {"ip": "nonsense"}], "ports": ports},
            {"addresses": [{"ip": "10.0.0.2"}], "ports": [{"port": 53, "protocol": "UDP"}]},
        ]});
        let mirror = Mirror::of(&endpoints);
        assert_eq!((mirror.invalid, mirror.skipped), (1, 0));
        let shown: Vec<_> = mirror
            .slices
            .iter()
            .map(|slice| (slice.family, slice.ports.clone(), slice.endpoints.values().cloned().collect::<Vec<_>>()))
            .collect();
        let end = |ip: &str, ready: bool| json!({"addresses": [ip], "conditions": {"ready": ready}});
        let mut named = end("10.0.0.2", true);
        named["hostname"] = "b".into();
        let mut placed = end("fd00::1", true);
        placed["nodeName"] = "n".into();
        assert_eq!(
            shown,
            [
                ("IPv4", ports.clone(), vec![end("10.0.0.1", false), named, end("10.0.0.3", true)]),
                ("IPv6", ports, vec![placed]),
                ("IPv4", json!([{"name": "", "port": 53, "protocol": "UDP"}]), vec![end("10.0.0.2", true)]),
            ]
        );
    }

    #[test]
    fn no_more_than_a_thousand_addresses_of_a_subset_are_mirrored() {
        let addresses: Vec<Value> = (0..1010).map(|n| json!({"ip": format!("10.0.{}.{}", n / 256, n % 256)})).collect();
        let mirror = Mirror::of(&json!({"subsets": [{"addresses": addresses, "ports": []}]}));
        assert_eq!((mirror.slices[0].endpoints.len(), mirror.skipped), (1000, 10));
    }
}
