//! An IPAddress for every address of a service, as clients see what is taken.
//!
//! Addresses are handed out from memory ([`super`]); these objects follow. Those that belong to no service go; what somebody
//! else made under such a name stays, and no service gets its address.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use serde_json::json;

use super::ranges::{RANGES, Ranges};
use crate::client::Client;
use crate::controllers::{Change, Controller, Queue, follow};
use crate::server::ApiServer;
use crate::status::Result;
use crate::store::{Key, ObjectRef, ResourceId, Store};
use crate::write::DeleteOptions;

const ADDRESSES: &str = "ipaddresses.networking.k8s.io";
const MANAGED_BY: &str = "ipaddress.kubernetes.io/managed-by";
const FAMILY: &str = "ipaddress.kubernetes.io/ip-family";
const MANAGER: &str = "ipallocator.k8s.io";

/// Whether somebody else made the object of an address. Those that follow the services may be late, and say nothing.
pub(super) fn is_held(store: &Store, ip: IpAddr) -> bool {
    let object = store.get(&ADDRESSES.into(), "", &ip.to_string());
    object.is_some_and(|object| object.label(MANAGED_BY) != Some(MANAGER))
}

/// Follows the services until the runtime ends. Of the configured range the server says that it is ready; of those that
/// clients made only with `others`, as upstream's controller does, which keeps those in use as well.
pub async fn run(server: Arc<ApiServer>, others: bool) {
    // What `--runtime-config` switched off has no objects.
    if server.resources.lookup("networking.k8s.io", "v1", "ipaddresses").is_none() {
        return;
    }
    let client = Client::new(server.clone(), "system:apiserver", "kube-apiserver");
    follow(server.store.clone(), move || Addresses {
        client: client.clone(),
        ranges: Ranges::new(others),
        owners: HashMap::new(),
    })
    .await;
}

struct Addresses {
    client: Client,
    ranges: Ranges,
    /// The service of each address.
    owners: HashMap<IpAddr, Key>,
}

/// What there is to look at.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Work {
    Address(IpAddr),
    Range(Box<str>),
}

fn addresses(service: &ObjectRef) -> Vec<IpAddr> {
    let value = service.without_owners();
    let all = value["spec"]["clusterIPs"].as_array().into_iter().flatten();
    all.filter_map(|ip| ip.as_str()?.parse().ok()).collect()
}

impl Addresses {
    async fn address(&self, ip: IpAddr) -> Result<()> {
        let name = ip.to_string();
        let there = self.client.get(ADDRESSES, "", &name);
        match (self.owners.get(&ip), there) {
            (Some(service), None) => {
                let family = if ip.is_ipv4() { "IPv4" } else { "IPv6" };
                let parent =
                    json!({"group": "", "resource": "services", "namespace": service.namespace, "name": service.name});
                let object = json!({"apiVersion": "networking.k8s.io/v1", "kind": "IPAddress",
                    "metadata": {"name": name, "labels": {FAMILY: family, MANAGED_BY: MANAGER}},
                    "spec": {"parentRef": parent}});
                match self.client.create(ADDRESSES, "", object).await {
                    Err(error) if !error.is_already_exists() => Err(error),
                    _ => Ok(()),
                }
            }
            (owner, Some(object)) if object.label(MANAGED_BY) == Some(MANAGER) => {
                let parent = &object.without_owners()["spec"]["parentRef"];
                let same = owner.is_some_and(|service| {
                    parent["namespace"] == *service.namespace && parent["name"] == *service.name
                });
                // A reference does not change: its object is made again when it is gone.
                if same {
                    Ok(())
                } else {
                    self.client.delete_object(ADDRESSES, &object, DeleteOptions::default()).await
                }
            }
            _ => Ok(()),
        }
    }

    /// The addresses of all services, as their objects say.
    fn managed(&self) -> Vec<IpAddr> {
        let all = self.client.store().snapshot(&ADDRESSES.into());
        let managed = all.range(None, None).filter(|object| object.label(MANAGED_BY) == Some(MANAGER));
        managed.filter_map(|object| object.key.name.parse().ok()).collect()
    }
}

impl Controller for Addresses {
    const NAME: &'static str = "service-addresses";
    type Key = Work;

    fn watched(&self) -> Vec<ResourceId> {
        vec!["services".into(), ADDRESSES.into(), RANGES.into()]
    }

    fn observe(&mut self, change: Change<'_>, queue: &mut Queue<Work>) {
        let object = change.object;
        match change.resource {
            0 => {
                for ip in change.previous.into_iter().chain(change.deleted().then_some(object)).flat_map(addresses) {
                    if self.owners.get(&ip) == Some(&object.key) {
                        self.owners.remove(&ip);
                        queue.add(Work::Address(ip));
                    }
                }
                if !change.deleted() {
                    for ip in addresses(object) {
                        self.owners.insert(ip, object.key.clone());
                        queue.add(Work::Address(ip));
                    }
                }
            }
            1 => {
                if let Ok(ip) = object.key.name.parse() {
                    queue.add(Work::Address(ip));
                }
                self.ranges.others_may_go(queue);
            }
            _ => self.ranges.observe(change, queue),
        }
    }

    async fn sync(&mut self, work: &Work) -> Result<Option<Duration>> {
        match work {
            Work::Address(ip) => self.address(*ip).await.map(|()| None),
            Work::Range(name) => self.ranges.sync(&self.client, name, || self.managed()).await,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn an_address_is_held_by_the_object_of_somebody_else() {
        let server = crate::serve::testing::server().await;
        let client = Client::new(server.clone(), "system:apiserver", "test");
        let service = |address: &str| {
            json!({"apiVersion": "v1", "kind": "Service", "metadata": {"generateName": "a-"},
                "spec": {"clusterIP": address, "ports": [{"port": 80}]}})
        };
        let made = client.create("services", "default", service("")).await.expect("there are addresses");
        let base = made.value()["spec"]["clusterIP"].as_str().unwrap_or_default().to_owned();
        let (network, _) = base.rsplit_once('.').expect("an address of IPv4");
        let mut free = (7..).map(|last| format!("{network}.{last}")).filter(|address| *address != base);
        let (of_another, of_ours) = (free.next().expect("many"), free.next().expect("many"));
        for (name, labels) in [(&of_another, json!({})), (&of_ours, json!({MANAGED_BY: MANAGER}))] {
            let object = json!({"apiVersion": "networking.k8s.io/v1", "kind": "IPAddress",
                "metadata": {"name": name, "labels": labels}, "spec": {"parentRef": {"resource": "foos", "name": "x"}}});
            client.create(ADDRESSES, "", object).await.expect("a good address");
        }
        let held = client.create("services", "default", service(&of_another)).await;
        let error = held.expect_err("it is held");
        assert_eq!(error.code(), 422);
        assert!(error.status().message.ends_with("provided IP is already allocated"), "{}", error.status().message);
        let late = client.create("services", "default", service(&of_ours)).await;
        late.expect("what follows the services is nobody else's");
    }
}
