//! What a pod's claims mean for where it can go.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;

use serde_json::Value;

use crate::admission::storage::class_of;
use crate::controllers::pods::{PodDigest, foreign_claim};
use crate::controllers::volumes::{Candidates, Choice, Lying, candidates, is_bound};
use crate::selectors::{NodeTerm, label, node_terms};
use crate::store::{Key, Store};

use super::cluster::Cluster;
use super::node::NodeInfo;
use super::pod::PodInfo;

/// Nodes that each of the pod's volumes can be used on; none for all.
#[derive(Default)]
pub struct Volumes {
    bound: Vec<Box<[NodeTerm]>>,
    /// For each claim that waits for its first pod, what it could have; the smallest claim first.
    waiting: Vec<Candidates>,
    /// Labels of volumes that tell of zones and regions, and the values that a node may have.
    zones: Vec<(&'static str, Box<[Box<str>]>)>,
    /// Volumes of storage drivers, by driver; and where to look up how many of them a node takes.
    handles: BTreeMap<String, BTreeSet<Handle>>,
    store: Option<Store>,
    /// Driver and handle of what claims of other pods have, as far as they were looked at: looking for room asks for each
    /// pod that could go.
    others: RefCell<HashMap<Key, Option<(String, Handle)>>>,
    /// Claims of which only one pod at a time may have the volume, and their namespace.
    alone: Vec<Box<str>>,
    /// Nodes where other pods have one of those.
    taken_on: Vec<Box<str>>,
    namespace: Box<str>,
}

/// What a driver's volume is known by.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Handle {
    There(String),
    /// It is to be made for this claim.
    ToMake(Key),
}

/// What bindings that are being written give to claims, by the pod's uid.
#[derive(Default)]
pub struct VolumesUnderWay(HashMap<Box<str>, Binding>);

struct Binding {
    namespace: Box<str>,
    node: Box<str>,
    choices: Vec<Choice>,
}

impl VolumesUnderWay {
    /// A pod goes to a node with these.
    pub fn take(&mut self, pod: &PodInfo, node: &str, choices: &[Choice]) {
        if !choices.is_empty() {
            let namespace = pod.object.key.namespace.clone();
            let binding = Binding { namespace, node: node.into(), choices: choices.to_vec() };
            self.0.insert(pod.object.keys.uid.clone(), binding);
        }
    }

    /// The binding of a pod has ended, one way or the other.
    pub fn forget(&mut self, pod: &str) {
        self.0.remove(pod);
    }
}

/// Labels of volumes and nodes that name their zone or region; the older ones with those that followed them.
const ZONES: [(&str, &str); 4] = [
    ("failure-domain.beta.kubernetes.io/zone", "topology.kubernetes.io/zone"),
    ("failure-domain.beta.kubernetes.io/region", "topology.kubernetes.io/region"),
    ("topology.kubernetes.io/zone", "topology.kubernetes.io/zone"),
    ("topology.kubernetes.io/region", "topology.kubernetes.io/region"),
];

const UNBOUND: &str = "pod has unbound immediate PersistentVolumeClaims";

/// Why a node will not do, and whether it would if other pods went.
pub type VolumeRefusal = (&'static str, bool);

/// Driver and handle of a persistent volume, if it is a driver's.
fn handle(volume: &Value) -> Option<(String, Handle)> {
    let csi = &volume["spec"]["csi"];
    Some((csi["driver"].as_str()?.to_owned(), Handle::There(csi["volumeHandle"].as_str()?.to_owned())))
}

/// The same of a volume that a class has yet to make for a claim. It takes a place on the node as soon as the pod does.
fn handle_to_make(class: &Value, claim: Key) -> Option<(String, Handle)> {
    Some((class["provisioner"].as_str()?.to_owned(), Handle::ToMake(claim)))
}

/// The class that a claim names.
fn read_class(store: &Store, claim: &Value) -> Option<Arc<Value>> {
    let class = store.get(&"storageclasses.storage.k8s.io".into(), "", class_of(claim)?)?;
    Some(class.without_owners())
}

/// The zones that a volume's label names: one, or several with `__` between them. A label that names none counts for
/// nothing.
fn zone(key: &'static str, value: &str) -> Option<(&'static str, Box<[Box<str>]>)> {
    let values: Box<[Box<str>]> = value.split("__").map(|part| part.trim().into()).collect();
    (!values.iter().any(|part| part.is_empty())).then_some((key, values))
}

impl Volumes {
    /// Reads the claims.
    ///
    /// # Errors
    /// The reason why the pod can go nowhere at all.
    pub fn read(store: &Store, cluster: &Cluster, pod: &PodInfo) -> Result<Self, String> {
        let mut out = Volumes { namespace: pod.object.key.namespace.clone(), ..Volumes::default() };
        let mut waiting = Vec::new();
        let digest = PodDigest::of(&pod.object);
        for name in &pod.claims {
            let claim = store.get(&"persistentvolumeclaims".into(), &pod.object.key.namespace, name);
            let claim = claim.ok_or_else(|| format!("persistentvolumeclaim \"{name}\" not found"))?;
            if claim.keys.deleting {
                return Err(format!("persistentvolumeclaim \"{name}\" is being deleted"));
            }
            if let Some(why) = digest.brought.contains(name).then(|| foreign_claim(&pod.object, &claim)).flatten() {
                return Err(why);
            }
            let claim = claim.without_owners();
            let modes = claim["spec"]["accessModes"].as_array();
            if modes.is_some_and(|modes| modes.iter().any(|m| m == "ReadWriteOncePod")) {
                out.alone.push(name.clone());
            }
            if claim["status"]["phase"] == "Lost" {
                let volume = claim["spec"]["volumeName"].as_str().unwrap_or_default();
                return Err(format!(
                    "persistentvolumeclaim \"{name}\" bound to non-existent persistentvolume \"{volume}\""
                ));
            }
            let handle = match claim["spec"]["volumeName"].as_str().filter(|v| !v.is_empty()) {
                // One that it is yet to be bound to is waited for, however the class has it.
                Some(_) if !is_bound(&claim) => return Err(UNBOUND.into()),
                Some(volume) => {
                    let found = store.get(&"persistentvolumes".into(), "", volume);
                    let found = found.ok_or_else(|| format!("persistentvolume \"{volume}\" not found"))?;
                    out.zones.extend(ZONES.iter().filter_map(|(key, _)| zone(key, label(&found.keys.labels, key)?)));
                    let found = found.without_owners();
                    let required = &found["spec"]["nodeAffinity"]["required"];
                    if required.is_object() {
                        out.bound.push(node_terms(required));
                    }
                    handle(&found)
                }
                None => {
                    let class = read_class(store, &claim);
                    let Some(class) = class.filter(|c| c["volumeBindingMode"] == "WaitForFirstConsumer") else {
                        return Err(UNBOUND.into());
                    };
                    let handle = handle_to_make(&class, Key::new(&out.namespace, name));
                    waiting.push((claim.clone(), class));
                    handle
                }
            };
            if let Some((driver, handle)) = handle {
                out.handles.entry(driver).or_default().insert(handle);
                out.store = Some(store.clone());
            }
        }
        out.waiting = candidates(store, &waiting);
        out.waiting.sort_by_key(|claim| claim.size);
        if !out.alone.is_empty() {
            let taken = cluster.nodes().filter(|node| out.taken(node));
            out.taken_on = taken.map(|node| node.name().into()).collect();
        }
        Ok(out)
    }

    /// Why a node will not do.
    pub fn refusal(&self, node: &NodeInfo) -> Option<VolumeRefusal> {
        let fits = |terms: &[NodeTerm]| terms.iter().any(|t| t.matches(node.labels(), node.name()));
        // Elsewhere nobody goes for the pod's sake; on this node somebody may have gone already.
        if self.taken_on.iter().any(|other| **other != *node.name()) || self.taken(node) {
            let reason = "node has pod using PersistentVolumeClaim with the same name and ReadWriteOncePod access mode";
            return Some((reason, true));
        }
        if self.too_many(node) {
            return Some(("node(s) exceed max volume count", true));
        }
        if !self.bound.iter().all(|terms| fits(terms)) {
            return Some(("node(s) didn't match PersistentVolume's node affinity", false));
        }
        if let Err(reason) = self.found(node) {
            return Some((reason, false));
        }
        (!self.in_zone(node)).then_some(("node(s) had no available volume zone", false))
    }

    /// What each claim that waits gets on a node: a volume that is there, or one that is made.
    ///
    /// # Errors
    /// Why one gets nothing there.
    fn found(&self, node: &NodeInfo) -> Result<Vec<(&Candidates, Option<&Lying>)>, &'static str> {
        let fits = |terms: &[NodeTerm]| terms.iter().any(|t| t.matches(node.labels(), node.name()));
        let mut found: Vec<(&Candidates, Option<&Lying>)> = Vec::new();
        for claim in &self.waiting {
            // What one claim gets is no longer there for the next.
            let is_given = |name: &str| found.iter().any(|(_, given)| given.is_some_and(|given| *given.name == *name));
            let mut left = claim.lying.iter().filter(|volume| !is_given(&volume.name));
            if let Some(volume) = left.find(|volume| volume.place.as_ref().is_none_or(|terms| fits(terms))) {
                found.push((claim, Some(volume)));
                continue;
            }
            let here = claim.promised.as_ref().is_none_or(|promised| **promised == *node.name());
            match &claim.made {
                Some(made) if here && made.is_allowed(node.labels(), node.name()) => {
                    if !made.has_room(node.labels()) {
                        return Err("node(s) did not have enough free storage");
                    }
                }
                _ => return Err("node(s) didn't find available persistent volumes to bind"),
            }
            found.push((claim, None));
        }
        Ok(found)
    }

    /// What the claims get on a node that will do.
    pub fn choose(&self, node: &NodeInfo) -> Vec<Choice> {
        let found = self.found(node).unwrap_or_default();
        let choice = |claim: &Candidates, volume: Option<&Lying>| Choice {
            claim: claim.claim.clone(),
            volume: volume.map(|volume| volume.name.clone()),
        };
        found.into_iter().map(|(claim, volume)| choice(claim, volume)).collect()
    }

    /// Leaves to others what bindings under way give them, and the pod's own claims what they get by those.
    pub fn heed(&mut self, under_way: &VolumesUnderWay) {
        let mut given: HashMap<&str, (&str, &Choice)> = HashMap::new();
        let mut taken: HashSet<&str> = HashSet::new();
        for binding in under_way.0.values() {
            for choice in &binding.choices {
                let is_own = |claim: &Candidates| claim.claim == choice.claim && binding.namespace == self.namespace;
                if self.waiting.iter().any(is_own) {
                    given.insert(&choice.claim, (&binding.node, choice));
                } else {
                    taken.extend(choice.volume.as_deref());
                }
            }
        }
        for claim in &mut self.waiting {
            match given.get(&*claim.claim) {
                Some((_, Choice { volume: Some(given), .. })) => {
                    claim.lying.retain(|volume| volume.name == *given);
                    claim.made = None;
                }
                Some((node, _)) => {
                    claim.lying.clear();
                    claim.promised = Some((*node).into());
                }
                None => claim.lying.retain(|volume| !taken.contains(&*volume.name)),
            }
        }
    }

    /// Whether a node is where the volumes are. One that tells nothing of zones is everywhere.
    fn in_zone(&self, node: &NodeInfo) -> bool {
        if self.zones.is_empty() || ZONES.iter().all(|(key, _)| node.label(key).is_none()) {
            return true;
        }
        self.zones.iter().all(|(key, values)| {
            let newer = || ZONES.iter().find(|(own, _)| own == key).and_then(|(_, newer)| node.label(newer));
            node.label(key).or_else(newer).is_some_and(|value| values.iter().any(|v| **v == *value))
        })
    }

    /// Whether another pod of the node has a claim that is for one pod alone.
    fn taken(&self, node: &NodeInfo) -> bool {
        let same = |p: &PodInfo| {
            p.object.key.namespace == self.namespace && p.claims.iter().any(|claim| self.alone.contains(claim))
        };
        !self.alone.is_empty() && node.pods.values().any(|p| same(p))
    }

    /// Whether a driver would have more volumes on the node than it takes, by its CSINode.
    fn too_many(&self, node: &NodeInfo) -> bool {
        let Some(store) = &self.store else { return false };
        let Some(found) = store.get(&"csinodes.storage.k8s.io".into(), "", node.name()) else { return false };
        let found = found.without_owners();
        let drivers = found["spec"]["drivers"].as_array().into_iter().flatten();
        let limits = drivers.filter_map(|d| Some((d["name"].as_str()?, d["allocatable"]["count"].as_u64()?)));
        // Not to read what every claim of the node has: there are no more volumes than claims, and mostly that is enough.
        let claims: usize = node.pods.values().map(|pod| pod.claims.len()).sum();
        let may_exceed = |limit: u64, new: usize| u64::try_from(claims + new).unwrap_or(u64::MAX) > limit;
        let limits = limits.filter_map(|(name, limit)| Some((name, limit, self.handles.get(name)?)));
        let mut limits = limits.filter(|(_, limit, wanted)| may_exceed(*limit, wanted.len())).peekable();
        if limits.peek().is_none() {
            return false;
        }
        let used = self.handles_on(store, node);
        limits.any(|(name, limit, wanted)| {
            let there = used.get(name);
            let new = wanted.iter().filter(|h| !there.is_some_and(|t| t.contains(*h))).count();
            // A pod that needs nothing new fits even where there is too much already.
            new > 0 && u64::try_from(there.map_or(0, BTreeSet::len) + new).unwrap_or(u64::MAX) > limit
        })
    }

    /// The volumes that the pods of a node have, by driver.
    fn handles_on(&self, store: &Store, node: &NodeInfo) -> BTreeMap<String, BTreeSet<Handle>> {
        let mut out: BTreeMap<String, BTreeSet<Handle>> = BTreeMap::new();
        let mut others = self.others.borrow_mut();
        for pod in node.pods.values() {
            for name in &pod.claims {
                let claim = Key::new(&pod.object.key.namespace, name);
                let known = others.entry(claim).or_insert_with_key(|claim| handle_of(store, claim));
                if let Some((driver, handle)) = known {
                    out.entry(driver.clone()).or_default().insert(handle.clone());
                }
            }
        }
        out
    }
}

/// Driver and handle of the volume that a claim has, or will have.
fn handle_of(store: &Store, key: &Key) -> Option<(String, Handle)> {
    let claim = store.get(&"persistentvolumeclaims".into(), &key.namespace, &key.name)?.without_owners();
    let volume = claim["spec"]["volumeName"].as_str();
    match volume.and_then(|name| store.get(&"persistentvolumes".into(), "", name)) {
        Some(volume) => handle(&volume.without_owners()),
        None => {
            let class = read_class(store, &claim)?;
            handle_to_make(&class, key.clone())
        }
    }
}

#[cfg(test)]
#[path = "volume_tests.rs"]
mod tests;
