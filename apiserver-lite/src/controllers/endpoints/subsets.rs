//! The Endpoints object of a service: one subset for each set of pods, with the ports that all of them offer.

use std::collections::BTreeMap;

use proto::time::Timestamp;
use serde_json::{Value, json};

use super::{Endpoint, Endpoints, Ports, labels_of};
use crate::status::Result;
use crate::store::ObjectRef;

/// Addresses that an Endpoints object may have.
const CAPACITY: usize = 1000;

impl<const LEGACY: bool> Endpoints<LEGACY> {
    pub(super) async fn write_endpoints(&self, service: &ObjectRef, value: &Value) -> Result<()> {
        let family = value["spec"]["ipFamilies"][0].as_str().unwrap_or("IPv4");
        let mut endpoints = self.endpoints(service, value, family);
        let over = endpoints.len() > CAPACITY;
        endpoints.truncate(CAPACITY);
        let subsets = subsets(value, endpoints);
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

/// Subsets of a service's endpoints. Pods in the network of their node share its address and are told apart by their
/// uids. Follows `RepackSubsets`.
fn subsets(service: &Value, mut endpoints: Vec<(Ports, Endpoint)>) -> Vec<Value> {
    let id = |endpoint: &Endpoint| -> (String, String) {
        (endpoint.address.clone(), endpoint.target["uid"].as_str().unwrap_or_default().to_owned())
    };
    endpoints.sort_by_cached_key(|(_, endpoint)| id(endpoint));
    // By port the places of those that offer it.
    let mut offers: BTreeMap<String, (&Value, Vec<usize>)> = BTreeMap::new();
    for (at, (ports, _)) in endpoints.iter().enumerate() {
        for port in ports.as_array().into_iter().flatten() {
            offers.entry(port.to_string()).or_insert_with(|| (port, Vec::new())).1.push(at);
        }
    }
    let mut groups: BTreeMap<Vec<usize>, Vec<&Value>> = BTreeMap::new();
    for (port, offering) in offers.into_values() {
        groups.entry(offering).or_default().push(port);
    }
    let names = service["spec"]["ports"].as_array().into_iter().flatten().map(|port| &port["name"]);
    let names: Vec<&Value> = names.collect();
    // Behind a headless service pods may have no ports.
    if names.is_empty() && service["spec"]["clusterIP"] == "None" && !endpoints.is_empty() {
        groups.insert((0..endpoints.len()).collect(), Vec::new());
    }
    let subset = |(offering, mut ports): (Vec<usize>, Vec<&Value>)| {
        ports.sort_by_key(|port| names.iter().position(|name| **name == port["name"]));
        let endpoints = offering.iter().filter_map(|at| endpoints.get(*at));
        let (ready, unready): (Vec<&Endpoint>, Vec<&Endpoint>) =
            endpoints.map(|(_, endpoint)| endpoint).partition(|endpoint| endpoint.ready);
        let addresses = |list: Vec<&Endpoint>| list.into_iter().map(Endpoint::in_subset).collect();
        let ports = ports.into_iter().cloned().map(without_empty_name).collect();
        let mut subset = json!({});
        let lists: [(&str, Vec<Value>); 3] =
            [("addresses", addresses(ready)), ("notReadyAddresses", addresses(unready)), ("ports", ports)];
        for (key, list) in lists.into_iter().filter(|(_, list)| !list.is_empty()) {
            subset[key] = list.into();
        }
        subset
    };
    groups.into_iter().map(subset).collect()
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
    use super::*;

    fn endpoint(name: &str, address: &str, ready: bool) -> Endpoint {
        Endpoint {
            address: address.into(),
            ready,
            serving: ready,
            terminating: false,
            node: String::new(),
            zone: None,
            given: None,
            hostname: None,
            target: json!({"name": name, "uid": name}),
        }
    }

    /// Each part of a subset in few words.
    fn short(subset: &Value) -> String {
        let list = |key: &str, part: fn(&Value) -> &Value| -> String {
            let list = subset[key].as_array().into_iter().flatten();
            list.map(|entry| part(entry).to_string().replace('"', "")).collect::<Vec<_>>().join(",")
        };
        let name: fn(&Value) -> &Value = |address| &address["targetRef"]["name"];
        let (ready, unready) = (list("addresses", name), list("notReadyAddresses", name));
        format!("{ready} not {unready} at {}", list("ports", |port| &port["port"]))
    }

    /// Of the pods in the network of one node only one was listed, or two as one that was ready and one that was not.
    #[test]
    fn pods_that_share_an_address_are_all_listed() {
        let service = json!({"spec": {"ports": [{"port": 80}]}});
        let ports = json!([{"name": "", "protocol": "TCP", "port": 80}]);
        let pods = [("c", 1, true), ("b", 2, true), ("a", 1, true), ("d", 1, false)];
        let pods = pods.map(|(name, at, ready)| (ports.clone(), endpoint(name, &format!("10.9.0.{at}"), ready)));
        let subsets = subsets(&service, pods.to_vec());
        assert_eq!(subsets.iter().map(short).collect::<Vec<_>>(), ["a,c,b not d at 80"]);
        assert_eq!(subsets[0]["ports"], json!([{"protocol": "TCP", "port": 80}]));
    }

    /// The port that is the same for all pods was listed once for each set of pods with the same other ports.
    #[test]
    fn ports_that_the_same_pods_offer_make_a_subset() {
        let service = json!({"spec": {"ports": [{"name": "z", "port": 1}, {"name": "web", "port": 80}]}});
        let port = |name: &str, port: i64| json!({"name": name, "protocol": "TCP", "port": port});
        let listed = |ports: [Vec<Value>; 3]| {
            let pods = ["a", "b", "c"].map(|pod| endpoint(pod, pod, true));
            let pods = ports.map(Value::from).into_iter().zip(pods);
            subsets(&service, pods.collect()).iter().map(short).collect::<Vec<_>>()
        };
        let same = || vec![port("z", 1), port("web", 8080)];
        assert_eq!(listed([same(), same(), same()]), ["a,b,c not  at 1,8080"]);
        let other = vec![port("z", 1), port("web", 9090)];
        assert_eq!(listed([same(), other, vec![]]), ["a not  at 8080", "a,b not  at 1", "b not  at 9090"]);
    }

    #[test]
    fn pods_without_ports_are_listed_behind_headless_services_without_ports_only() {
        let listed = |spec: Value| {
            let service = json!({ "spec": spec });
            subsets(&service, vec![(json!([]), endpoint("a", "10.9.0.1", true))]).iter().map(short).collect::<Vec<_>>()
        };
        assert_eq!(listed(json!({"clusterIP": "None"})), ["a not  at "]);
        assert!(listed(json!({"clusterIP": "10.0.0.1"})).is_empty());
        let ports = json!([{"name": "web", "port": 80, "targetPort": "nobody-has-it"}]);
        assert!(listed(json!({"clusterIP": "None", "ports": ports})).is_empty());
        assert!(subsets(&json!({"spec": {"clusterIP": "None"}}), Vec::new()).is_empty());
    }
}
