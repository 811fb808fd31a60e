//! What a pod's resource claims mean for where it can go, and what is written once it goes there.
//!
//! Follows the scheduler's plugin for dynamic resources: claims that have their devices bind the pod to where those are,
//! for the others every node is asked ([`super::devices`]). Before the binding the allocation is written with the pod in
//! `reservedFor`; when the binding fails, both are taken back.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use serde_json::{Value, json};

use super::devices::{Device, DeviceId, Inventory, Place};
use super::node::NodeInfo;
use super::pod::PodInfo;
use super::search::{Chosen, Demand, allocate};
use crate::client::{Client, unchanged};
use crate::controllers::pods::controller_of;
use crate::controllers::resource_claims::{CLAIMS, FINALIZER};
use crate::selectors::node_terms;
use crate::status::{ApiError, Result};
use crate::store::{ObjectRef, ResourceId, Store};
use crate::tree::list;

const CLASSES: &str = "deviceclasses.resource.k8s.io";
/// Pods that may use one claim.
const MOST_USERS: usize = 256;

/// Devices of allocations that are being written, by the claim's uid, with the pod they are for.
#[derive(Default)]
pub struct UnderWay(HashMap<Box<str>, (Box<str>, Vec<DeviceId>)>);

impl UnderWay {
    /// The binding of a pod has ended, one way or the other.
    pub fn forget(&mut self, pod: &str) {
        self.0.retain(|_, (of, _)| **of != *pod);
    }
}

/// The claims of a pod that is to be scheduled.
#[derive(Default)]
pub struct Claims {
    /// Those that have devices, and where they can be used.
    allocated: Vec<(ObjectRef, Arc<Value>)>,
    waiting: Vec<(ObjectRef, Arc<Value>)>,
    demands: Vec<Demand>,
    inventory: Option<Inventory>,
    used: BTreeSet<DeviceId>,
}

/// What each claim that waits would get, in places of what the node can reach.
pub type Found<'a> = Vec<Vec<Chosen<'a>>>;

/// What is written before a pod is bound.
#[derive(Default)]
pub struct Reservation {
    claims: Vec<Reserved>,
}

struct Reserved {
    claim: ObjectRef,
    /// None for one that has its devices.
    allocation: Option<Value>,
    /// What of it stands in the claim by now: that the pod uses it, and the allocation.
    added_user: bool,
    added_allocation: bool,
}

impl Reserved {
    fn new(claim: &ObjectRef, allocation: Option<Value>) -> Self {
        Reserved { claim: claim.clone(), allocation, added_user: false, added_allocation: false }
    }
}

/// Names of a pod's claims, each once, and whether they were made for it.
///
/// # Errors
/// The entry whose claim is not made yet.
fn names(pod: &Value) -> std::result::Result<BTreeMap<String, bool>, String> {
    let mut out = BTreeMap::new();
    for entry in list(&pod["spec"], "resourceClaims") {
        let name = entry["name"].as_str().unwrap_or_default();
        let told = || list(&pod["status"], "resourceClaimStatuses").find(|s| s["name"] == name);
        match entry["resourceClaimName"].as_str() {
            Some(claim) => drop(out.entry(claim.to_owned()).or_insert(false)),
            None => match told() {
                // A template may say that no claim is needed.
                Some(status) => out.extend(status["resourceClaimName"].as_str().map(|claim| (claim.to_owned(), true))),
                None => return Err(format!("waiting for the claim of {} to be made", crate::status::quote(name))),
            },
        }
    }
    Ok(out)
}

impl Claims {
    /// Reads the pod's claims.
    ///
    /// # Errors
    /// Why the pod can go nowhere now.
    pub fn read(store: &Store, pod: &PodInfo, under_way: &UnderWay) -> std::result::Result<Self, String> {
        let mut out = Claims::default();
        if !pod.wants_devices {
            return Ok(out);
        }
        let resource = ResourceId::from(CLAIMS);
        for (name, own) in names(&pod.object.without_owners())? {
            let found = store.get(&resource, &pod.object.key.namespace, &name);
            let claim = found.ok_or_else(|| format!("resourceclaim \"{name}\" not found"))?;
            if claim.keys.deleting {
                return Err(format!("resourceclaim \"{name}\" is being deleted"));
            }
            let value = claim.without_owners();
            if own && controller_of(&value).is_none_or(|owner| owner.uid != pod.object.keys.uid) {
                return Err(format!("resourceclaim \"{name}\" was not created for the pod"));
            }
            let users = |value: &Value| list(&value["status"], "reservedFor").count();
            let is_user = list(&value["status"], "reservedFor").any(|user| user["uid"] == *pod.object.keys.uid);
            if !is_user && users(&value) >= MOST_USERS {
                return Err(format!("resourceclaim \"{name}\" is in use"));
            }
            match value["status"]["allocation"].is_object() {
                true => out.allocated.push((claim, value)),
                false if under_way.0.contains_key(&claim.keys.uid) => {
                    return Err(format!("resourceclaim \"{name}\" is in the process of being allocated"));
                }
                false => out.waiting.push((claim, value)),
            }
        }
        if out.waiting.is_empty() {
            return Ok(out);
        }
        let class = |name: &str| Some(store.get(&CLASSES.into(), "", name)?.without_owners());
        for (claim, value) in &out.waiting {
            let demand = Demand::read(&value["spec"], class);
            out.demands.push(demand.map_err(|why| format!("claim {}: {why}", claim.key.name))?);
        }
        out.inventory = Some(Inventory::read(store));
        out.used = under_way.0.values().flat_map(|(_, devices)| devices.iter().cloned()).collect();
        for claim in store.snapshot(&resource).range(None, None) {
            let claim = claim.without_owners();
            let results = list(&claim["status"]["allocation"]["devices"], "results");
            out.used.extend(results.filter(|r| r["adminAccess"] != true).map(DeviceId::of));
        }
        Ok(out)
    }

    /// The devices that the pod would get on a node; nothing where it waits for none.
    ///
    /// # Errors
    /// Why the node will not do.
    pub fn find(&self, node: &NodeInfo) -> std::result::Result<Found<'_>, String> {
        let is_reached = |value: &Value| {
            let selector = &value["status"]["allocation"]["nodeSelector"];
            !selector.is_object() || node_terms(selector).iter().any(|t| t.matches(node.labels(), node.name()))
        };
        if !self.allocated.iter().all(|(_, value)| is_reached(value)) {
            return Err("resourceclaim not available on the node".into());
        }
        match &self.inventory {
            Some(inventory) => allocate(&self.demands, &inventory.at(node), &self.used),
            None => Ok(Found::new()),
        }
    }

    /// A claim whose devices keep the pod from every node, though nobody but the pod may have them.
    pub fn in_the_way(&self, pod: &PodInfo) -> Option<&ObjectRef> {
        let is_own = |value: &Value| list(&value["status"], "reservedFor").all(|u| u["uid"] == *pod.object.keys.uid);
        self.allocated.iter().find(|(_, value)| is_own(value)).map(|(claim, _)| claim)
    }

    /// Takes what was found for the pod on a node.
    pub fn reserve(&self, pod: &PodInfo, node: &NodeInfo, found: &Found<'_>, under_way: &mut UnderWay) -> Reservation {
        let mut claims: Vec<Reserved> = self.allocated.iter().map(|(claim, _)| Reserved::new(claim, None)).collect();
        if let Some(inventory) = &self.inventory {
            let reachable = inventory.at(node);
            let devices = &reachable.devices;
            for ((claim, value), chosen) in self.waiting.iter().zip(found) {
                let taken = chosen.iter().filter(|c| !c.wish.admin).map(|c| devices[c.device].id.clone());
                under_way.0.insert(claim.keys.uid.clone(), (pod.object.keys.uid.clone(), taken.collect()));
                claims.push(Reserved::new(claim, Some(allocation(&value["spec"], chosen, devices))));
            }
        }
        Reservation { claims }
    }
}

/// An allocation as a claim's status has it.
fn allocation(spec: &Value, chosen: &[Chosen<'_>], devices: &[Device<'_>]) -> Value {
    let results: Vec<Value> = chosen
        .iter()
        .map(|c| {
            let id = &devices[c.device].id;
            let mut result = json!({"request": c.wish.name, "driver": id.driver, "pool": id.pool, "device": id.device});
            if c.wish.admin {
                result["adminAccess"] = true.into();
            }
            if !c.wish.tolerations.is_empty() {
                result["tolerations"] = c.wish.tolerations.clone().into();
            }
            result
        })
        .collect();
    let mut config = Vec::new();
    let mut told: Vec<&str> = Vec::new();
    for wish in chosen.iter().map(|c| c.wish) {
        if told.contains(&wish.name.as_str()) {
            continue;
        }
        told.push(&wish.name);
        for entry in &wish.class_config {
            config.push(with_source(entry, "FromClass", json!([wish.name])));
        }
    }
    for entry in list(&spec["devices"], "config") {
        config.push(with_source(entry, "FromClaim", entry["requests"].clone()));
    }
    let mut out = json!({"devices": {"results": results}});
    if !config.is_empty() {
        out["devices"]["config"] = config.into();
    }
    if let Some(selector) = node_selector(chosen.iter().filter_map(|c| devices[c.device].place)) {
        out["nodeSelector"] = selector;
    }
    out
}

fn with_source(entry: &Value, source: &str, requests: Value) -> Value {
    let mut out = entry.clone();
    out["source"] = source.into();
    match requests.as_array().is_some_and(|r| !r.is_empty()) {
        true => out["requests"] = requests,
        false => drop(out.as_object_mut().and_then(|o| o.remove("requests"))),
    }
    out
}

/// Where all the devices can be reached; None for everywhere.
fn node_selector<'a>(places: impl Iterator<Item = Place<'a>>) -> Option<Value> {
    let mut merged = json!({});
    let mut any = false;
    for place in places {
        any = true;
        let selector = match place {
            Place::Node(name) => {
                let fields = json!([{"key": "metadata.name", "operator": "In", "values": [name]}]);
                return Some(json!({"nodeSelectorTerms": [{"matchFields": fields}]}));
            }
            Place::Selected(selector) => selector,
        };
        // A published selector has one term; a node must satisfy those of all devices.
        for kind in ["matchExpressions", "matchFields"] {
            for requirement in list(&selector["nodeSelectorTerms"][0], kind) {
                match merged[kind].as_array_mut() {
                    Some(known) if known.contains(requirement) => {}
                    Some(known) => known.push(requirement.clone()),
                    None => merged[kind] = json!([requirement]),
                }
            }
        }
    }
    any.then(|| json!({"nodeSelectorTerms": [merged]}))
}

impl Reservation {
    /// Writes the allocations and the pod as a user of each claim.
    ///
    /// # Errors
    /// When a claim is no longer what it was; what was written so far is for [`Reservation::release`].
    pub async fn write(&mut self, client: &Client, pod: &ObjectRef) -> Result<()> {
        for reserved in &mut self.claims {
            reserved.write(client, pod).await?;
        }
        Ok(())
    }

    /// Takes back what was written for a pod that does not go there.
    pub async fn release(&self, client: &Client, pod: &ObjectRef) {
        for reserved in self.claims.iter().filter(|r| r.added_user || r.added_allocation) {
            let allocation = reserved.allocation.as_ref().filter(|_| reserved.added_allocation);
            give_back(client, &reserved.claim, pod, |found| allocation == Some(found)).await;
        }
    }
}

impl Reserved {
    async fn write(&mut self, client: &Client, pod: &ObjectRef) -> Result<()> {
        let claim = &self.claim;
        let (namespace, name) = (&claim.key.namespace, &claim.key.name);
        let is_same = |value: &Value| match value["metadata"]["uid"] == *claim.keys.uid {
            true => Ok(()),
            false => Err(ApiError::internal(format!("resourceclaim {name} is another one now"))),
        };
        if self.allocation.is_some() {
            let held = client.update(CLAIMS, namespace, name, |value| {
                is_same(value)?;
                match value["metadata"]["finalizers"].as_array_mut() {
                    Some(list) if list.iter().any(|f| f == FINALIZER) => return Err(unchanged()),
                    Some(list) => list.push(FINALIZER.into()),
                    None => value["metadata"]["finalizers"] = json!([FINALIZER]),
                }
                Ok(())
            });
            settled(held.await)?;
        }
        let (allocation, mut is_new_user) = (&self.allocation, false);
        let written = client.update_status(CLAIMS, namespace, name, |value| {
            is_same(value)?;
            match (allocation, value["status"]["allocation"].is_object()) {
                (Some(allocation), false) => value["status"]["allocation"] = allocation.clone(),
                (None, true) => {}
                _ => return Err(ApiError::internal(format!("resourceclaim {name} was allocated otherwise"))),
            }
            let user = json!({"resource": "pods", "name": pod.key.name, "uid": pod.keys.uid});
            is_new_user = true;
            match value["status"]["reservedFor"].as_array_mut() {
                Some(users) if users.contains(&user) => is_new_user = false,
                Some(users) => users.push(user),
                None => value["status"]["reservedFor"] = json!([user]),
            }
            Ok(())
        });
        settled(written.await)?;
        (self.added_user, self.added_allocation) = (is_new_user, self.allocation.is_some());
        Ok(())
    }
}

/// Takes a pod off the users of a claim, and its allocation, when nobody else uses it and `is_ours` says so of it.
pub async fn give_back(
    client: &Client,
    claim: &ObjectRef,
    pod: &ObjectRef,
    is_ours: impl Fn(&Value) -> bool + Send + Sync,
) {
    let written = client.update_status(CLAIMS, &claim.key.namespace, &claim.key.name, |value| {
        if value["metadata"]["uid"] != *claim.keys.uid {
            return Err(unchanged());
        }
        let Some(status) = value["status"].as_object_mut() else { return Err(unchanged()) };
        let mut users: Vec<Value> = status.get("reservedFor").and_then(Value::as_array).cloned().unwrap_or_default();
        users.retain(|user| user["uid"] != *pod.keys.uid);
        match users.is_empty() {
            false => drop(status.insert("reservedFor".into(), users.into())),
            true => {
                status.remove("reservedFor");
                if status.get("allocation").is_some_and(&is_ours) {
                    status.remove("allocation");
                }
            }
        }
        Ok(())
    });
    if let Err(error) = settled(written.await) {
        // The claims' controller gives it back once the pod is gone.
        tracing::warn!(claim = %claim.key.name, %error, "a claim's devices are not given back");
    }
}

fn settled(written: Result<ObjectRef>) -> Result<()> {
    match written {
        Err(error) if error.code() == 304 => Ok(()),
        written => written.map(|_| ()),
    }
}
