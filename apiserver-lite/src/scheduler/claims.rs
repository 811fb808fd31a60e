//! What a pod's resource claims mean for where it can go, and what is written once it goes there.
//!
//! Follows the scheduler's plugin for dynamic resources: claims that have their devices bind the pod to where those are,
//! for the others every node is asked ([`super::devices`]). Before the binding the allocation is written with the pod in
//! `reservedFor`; when the binding fails, both are taken back.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;
use std::time::Instant;

use proto::time::Timestamp;
use serde_json::{Value, json};

use super::conditions;
use super::devices::{Device, Features, Inventory, Place};
use super::node::NodeInfo;
use super::pod::PodInfo;
use super::search::{Chosen, Demand, allocate};
use super::shares::Used;
use crate::client::{Client, unchanged};
use crate::controllers::pods::controller_of;
use crate::controllers::resource_claims::{CLAIMS, FINALIZER};
use crate::metrics::Waited;
use crate::selectors::node_terms;
use crate::status::{ApiError, Result};
use crate::store::{ObjectRef, ResourceId, Store};
use crate::tree::{list, text};

const CLASSES: &str = "deviceclasses.resource.k8s.io";
/// Pods that may use one claim.
const MOST_USERS: usize = 256;
/// Alternatives that a request may have, as its validation says.
const MOST_ALTERNATIVES: i64 = 8;

/// Allocations that are being written, by the claim's uid, with the pod they are for.
#[derive(Default)]
pub struct UnderWay(HashMap<Box<str>, (Box<str>, Value)>);

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
    used: Used,
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
    /// The allocation tells when it was written.
    stamped: bool,
}

impl Reserved {
    fn new(claim: &ObjectRef, allocation: Option<Value>) -> Self {
        Reserved { claim: claim.clone(), allocation, added_user: false, added_allocation: false, stamped: false }
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
    pub fn read(
        store: &Store,
        pod: &PodInfo,
        under_way: &UnderWay,
        features: Features,
    ) -> std::result::Result<Self, String> {
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
            let demand = demand.map_err(|why| format!("claim {}: {why}", claim.key.name))?;
            let mut wishes = demand.requests.iter().flatten();
            if !features.shares
                && let Some(wish) = wishes.find(|wish| !wish.capacity.is_empty())
            {
                let why = "has capacity requests, but the DRAConsumableCapacity feature is disabled";
                return Err(format!("claim {}, request {}: {why}", claim.key.name, wish.name));
            }
            out.demands.push(demand);
        }
        out.inventory = Some(Inventory::read(store, features));
        for claim in store.snapshot(&resource).range(None, None) {
            let value = claim.without_owners();
            // One that is written is still under way until its pod is bound; it takes what it takes once.
            let allocation = match (&value["status"]["allocation"], under_way.0.get(&claim.keys.uid)) {
                (Value::Null, Some((_, allocation))) => allocation,
                (allocation, _) => allocation,
            };
            out.used.add(allocation, features);
        }
        Ok(out)
    }

    /// The devices that the pod would get on a node; nothing where it waits for none.
    ///
    /// # Errors
    /// Why the node will not do.
    pub fn find(&self, node: &NodeInfo) -> std::result::Result<Found<'_>, String> {
        if self.unavailable(node).next().is_some() {
            return Err("resourceclaim not available on the node".into());
        }
        match &self.inventory {
            Some(inventory) => allocate(&self.demands, &inventory.at(node), &self.used),
            None => Ok(Found::new()),
        }
    }

    /// Claims whose devices a pod cannot have on a node: they are elsewhere, or cannot be made ready.
    fn unavailable(&self, node: &NodeInfo) -> impl Iterator<Item = &(ObjectRef, Arc<Value>)> {
        self.allocated.iter().filter(|(_, value)| {
            let selector = &value["status"]["allocation"]["nodeSelector"];
            let terms = || node_terms(selector).iter().any(|t| t.matches(node.labels(), node.name()));
            selector.is_object() && !terms() || conditions::are_given_up(value)
        })
    }

    /// A claim whose devices keep the pod from one of the nodes, though nobody but the pod may have them.
    pub fn in_the_way<'a>(&self, pod: &PodInfo, mut nodes: impl Iterator<Item = &'a NodeInfo>) -> Option<&ObjectRef> {
        let is_own = |value: &Value| list(&value["status"], "reservedFor").all(|u| u["uid"] == *pod.object.keys.uid);
        nodes.find_map(|node| self.unavailable(node).find(|(_, value)| is_own(value)).map(|(claim, _)| claim))
    }

    /// How much the pod prefers what it would get on each node; None where no claim that waits names alternatives.
    pub fn preferences(&self, nodes: &[&NodeInfo], found: &HashMap<&str, Found<'_>>) -> Option<Vec<i64>> {
        let mut requests = self.waiting.iter().flat_map(|(_, claim)| list(&claim["spec"]["devices"], "requests"));
        if !requests.any(|request| list(request, "firstAvailable").next().is_some()) {
            return None;
        }
        let had = self.allocated.iter().map(|(_, claim)| {
            let results = list(&claim["status"]["allocation"]["devices"], "results");
            preference(&claim["spec"], &results.map(|result| text(result, "request")).collect())
        });
        let had: i64 = had.sum();
        let would_get = |found: &Found<'_>| -> i64 {
            let claims = self.waiting.iter().zip(found).map(|((_, claim), chosen)| {
                preference(&claim["spec"], &chosen.iter().map(|c| c.wish.name.as_str()).collect())
            });
            claims.sum()
        };
        Some(nodes.iter().map(|node| had + found.get(node.name()).map_or(0, would_get)).collect())
    }

    /// Takes what was found for the pod on a node.
    pub fn reserve(&self, pod: &PodInfo, node: &NodeInfo, found: &Found<'_>, under_way: &mut UnderWay) -> Reservation {
        let mut claims: Vec<Reserved> = self.allocated.iter().map(|(claim, _)| Reserved::new(claim, None)).collect();
        if let Some(inventory) = &self.inventory {
            let reachable = inventory.at(node);
            let devices = &reachable.devices;
            for ((claim, value), chosen) in self.waiting.iter().zip(found) {
                let allocation = allocation(&value["spec"], chosen, devices, node);
                let (uid, pod) = (claim.keys.uid.clone(), pod.object.keys.uid.clone());
                under_way.0.insert(uid, (pod, allocation.clone()));
                let stamped = inventory.features.conditions;
                claims.push(Reserved { stamped, ..Reserved::new(claim, Some(allocation)) });
            }
        }
        Reservation { claims }
    }
}

/// How much a claim's owner prefers these of its requests: the earlier among the alternatives each is, the more.
fn preference(spec: &Value, got: &HashSet<&str>) -> i64 {
    let requests = list(&spec["devices"], "requests");
    let all = requests.flat_map(|request| {
        let alternatives = list(request, "firstAvailable").zip((1..=MOST_ALTERNATIVES).rev());
        alternatives.map(move |(sub, value)| (format!("{}/{}", text(request, "name"), text(sub, "name")), value))
    });
    all.filter(|(name, _)| got.contains(name.as_str())).map(|(_, value)| value).sum()
}

/// An allocation as a claim's status has it.
fn allocation(spec: &Value, chosen: &[Chosen<'_>], devices: &[Device<'_>], node: &NodeInfo) -> Value {
    let results: Vec<Value> = chosen
        .iter()
        .map(|c| {
            let device = &devices[c.device];
            let id = &device.id;
            let mut result = json!({"request": c.wish.name, "driver": id.driver, "pool": id.pool, "device": id.device});
            if c.wish.admin {
                result["adminAccess"] = true.into();
            }
            if !c.wish.tolerations.is_empty() {
                result["tolerations"] = c.wish.tolerations.clone().into();
            }
            if let Some(share) = &c.share {
                result["shareID"] = crate::random::uuid().into();
                if !share.is_empty() {
                    let amounts = share.iter().map(|(name, amount)| (name.to_string(), amount.to_string().into()));
                    result["consumedCapacity"] = Value::Object(amounts.collect());
                }
            }
            for name in ["bindingConditions", "bindingFailureConditions"] {
                if let Some(conditions) = device.conditions(name) {
                    result[name] = conditions.clone();
                }
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
    if let Some(selector) = node_selector(chosen.iter().filter_map(|c| devices[c.device].place), node) {
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

/// Where all the devices can be reached once they are given away on a node; None for everywhere.
fn node_selector<'a>(places: impl Iterator<Item = Place<'a>>, node: &NodeInfo) -> Option<Value> {
    let mut merged = json!({});
    let mut any = false;
    for place in places {
        any = true;
        let selector = match place {
            Place::Node(_) | Place::Bound => {
                let fields = json!([{"key": "metadata.name", "operator": "In", "values": [node.name()]}]);
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

    /// Whether there are no claims to write.
    pub fn is_empty(&self) -> bool {
        self.claims.is_empty()
    }

    /// Whether devices have to be made ready before the pod is bound.
    pub fn waits(&self, client: &Client) -> bool {
        let now = |claim: &ObjectRef| client.get(CLAIMS, &claim.key.namespace, &claim.key.name);
        self.claims.iter().filter_map(|r| now(&r.claim)).any(|now| conditions::has_conditions(&now.without_owners()))
    }

    /// Waits until they are ready.
    ///
    /// # Errors
    /// As [`conditions::wait`].
    pub async fn wait(&self, client: &Client, pod: &ObjectRef) -> Result<()> {
        let claims: Vec<&ObjectRef> = self.claims.iter().map(|r| &r.claim).collect();
        let now = claims.iter().filter_map(|claim| client.get(CLAIMS, &claim.key.namespace, &claim.key.name));
        let drivers: BTreeSet<String> = now.flat_map(|now| conditions::drivers(&now.without_owners())).collect();
        let since = Instant::now();
        let outcome = conditions::wait(client, pod, &claims).await;
        let ended = match &outcome {
            Ok(()) => Waited::Success,
            Err(error) if conditions::is_timeout(error) => Waited::Timeout,
            Err(_) => Waited::Failure,
        };
        client.server().metrics.scheduling().waited(drivers.iter().map(String::as_str), ended, since.elapsed());
        outcome
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
        if let Some(allocation) = &mut self.allocation {
            if self.stamped {
                allocation["allocationTimestamp"] = Timestamp::now().to_seconds_text().into();
            }
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
