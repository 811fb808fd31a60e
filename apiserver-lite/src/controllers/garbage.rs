//! `garbage-collector-controller`: what an owner leaves behind goes with it.
//!
//! Watches every resource that can be deleted and keeps, for objects with owners only, which owner has which dependents.
//! A dependent whose owners are all gone is deleted. An owner that is deleted in the foreground waits for the dependents
//! that block it; one that orphans its dependents first has itself removed from their owners.
//!
//! An owner is looked for where its dependent is, or among the objects of no namespace. A namespaced dependent of an
//! owner elsewhere has none, and goes; a dependent of no namespace cannot have a namespaced owner at all: nothing can be
//! said about such a reference, and the dependent is never deleted because of its owners. Either gets an event when an
//! owner of that uid is somewhere. Follows `pkg/controller/garbagecollector`.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use futures_util::future::FutureExt as _;
use serde_json::{Value, json};

use super::events::Recorder;
use super::feed::Change;
use super::index::{Index, by_owner};
use super::queue::Queue;
use super::runner::{self, Controller};
use crate::client::{Client, unchanged};
use crate::resource::{Resource, Set, Verbs};
use crate::status::Result;
use crate::store::{Key, ObjectRef, ResourceId};
use crate::write::DeleteOptions;

const FOREGROUND: &str = "foregroundDeletion";
const ORPHAN: &str = "orphan";
/// How many of an object's owners that are not there are looked for elsewhere. One that is found is all that is reported.
const LOOKED_FOR: usize = 100;

pub struct Garbage {
    client: Client,
    recorder: Recorder,
    /// Revision up to which references to owners elsewhere were reported, over all lives of the controller.
    told: Arc<AtomicU64>,
    /// The same when this life began.
    told_before: u64,
    /// The registry's state that `resources` was made from.
    set: Arc<Set>,
    resources: Arc<[Arc<Resource>]>,
    /// Dependents by the uid of their owner, one index per resource.
    dependents: Vec<Index>,
    /// Owners that wait for their dependents, by uid.
    waiting: HashMap<Box<str>, Work>,
}

/// An object by its resource's place in the list.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Work {
    resource: usize,
    key: Key,
    task: Task,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum Task {
    /// Somebody has just said who owns it.
    Named,
    /// Are its owners still there?
    Dependent,
    /// May it go, as far as its dependents are concerned?
    Owner,
}

/// An owner as a dependent names it.
enum Owner {
    Solid,
    /// It is deleted in the foreground.
    Waiting,
    Gone,
    /// Its kind is not served in that version, or lives in namespaces and its dependent does not: nothing can be said.
    Unknown,
}

/// The owners of a dependent, by what became of them.
#[derive(Default)]
struct Owners {
    solid: usize,
    /// Uids.
    waiting: Vec<String>,
    gone: Vec<String>,
}

impl Owners {
    /// None as soon as nothing can be said about one of them: then nothing is done about the dependent.
    fn of(all: impl Iterator<Item = (String, Owner)>) -> Option<Self> {
        let mut owners = Owners::default();
        for (uid, owner) in all {
            match owner {
                Owner::Solid => owners.solid += 1,
                Owner::Waiting => owners.waiting.push(uid),
                Owner::Gone => owners.gone.push(uid),
                Owner::Unknown => return None,
            }
        }
        Some(owners)
    }
}

/// References of one object that lead nowhere, by the kind of their owners: whatever their number, a kind is looked
/// through once.
#[derive(Default)]
struct Lost<'a> {
    /// With the place of each owner in the object's list, by uid.
    kinds: BTreeMap<ResourceId, HashMap<&'a str, usize>>,
    /// The first of those that were found.
    found: Option<usize>,
}

impl<'a> Lost<'a> {
    fn add(&mut self, kind: ResourceId, uid: &'a str, place: usize) {
        self.kinds.entry(kind).or_default().entry(uid).or_insert(place);
    }

    /// The next kind to look through, unless its owners all come after one that was found.
    fn next(&mut self) -> Option<(ResourceId, HashMap<&'a str, usize>)> {
        while let Some((kind, places)) = self.kinds.pop_first() {
            if places.values().any(|place| self.found.is_none_or(|found| *place < found)) {
                return Some((kind, places));
            }
        }
        None
    }

    /// Takes note of the owners that are among some uids.
    fn look<'b>(&mut self, places: &HashMap<&str, usize>, uids: impl Iterator<Item = &'b str>) {
        let found = uids.filter_map(|uid| places.get(uid).copied()).min();
        self.found = self.found.into_iter().chain(found).min();
    }
}

/// What an event says about a reference to an owner that is in another namespace, or in one at all.
fn misplaced(owner: &Value, namespace: &str) -> String {
    let text = |key: &str| owner[key].as_str().unwrap_or_default();
    format!(
        "ownerRef [{}/{}, namespace: {namespace}, name: {}, uid: {}] does not exist in namespace {namespace:?}",
        text("apiVersion"),
        text("kind"),
        text("name"),
        text("uid"),
    )
}

impl Garbage {
    pub fn new(client: Client, recorder: Recorder, told: Arc<AtomicU64>) -> Self {
        let set = client.server().resources.current();
        let mut resources: Vec<Arc<Resource>> = Vec::new();
        for resource in set.all() {
            let collected = resource.verbs.contains(Verbs::DELETE.union(Verbs::WATCH)) && &*resource.plural != "events";
            if collected && !resources.iter().any(|r| r.storage == resource.storage) {
                resources.push(resource.clone());
            }
        }
        let dependents = resources.iter().map(|_| Index::default()).collect();
        let told_before = told.load(Ordering::Relaxed);
        let (resources, waiting) = (resources.into(), HashMap::new());
        Garbage { client, recorder, told, told_before, set, resources, dependents, waiting }
    }

    /// Another one for work on an object, with what is known of its dependents now.
    fn hand(&self, uid: &str) -> Self {
        let has_any = self.dependents.iter().any(|index| index.contains(uid));
        let indexes = if has_any { &self.dependents[..] } else { &[] };
        Garbage {
            client: self.client.clone(),
            recorder: self.recorder.clone(),
            told: self.told.clone(),
            told_before: self.told_before,
            set: self.set.clone(),
            resources: self.resources.clone(),
            dependents: indexes.iter().map(|index| index.part(&[uid], |_| true)).collect(),
            waiting: HashMap::new(),
        }
    }

    fn dependents_of(&self, uid: &str) -> Vec<(usize, ObjectRef)> {
        let indexes = self.dependents.iter().enumerate().filter(|(_, index)| index.contains(uid));
        indexes.flat_map(|(i, index)| index.get(uid).map(move |o| (i, o.clone()))).collect()
    }

    /// The resource that an owner says it is of, as it is served; without a second look at other versions, as upstream.
    fn resource_of(&self, owner: &Value) -> Option<Arc<Resource>> {
        let text = |key: &str| owner[key].as_str().unwrap_or_default();
        let (group, version) = text("apiVersion").rsplit_once('/').unwrap_or(("", text("apiVersion")));
        self.set.by_kind(group, version, text("kind")).filter(|r| r.verbs.contains(Verbs::GET))
    }

    fn find(&self, owner: &Value, namespace: &str) -> Owner {
        let text = |key: &str| owner[key].as_str().unwrap_or_default();
        let Some(resource) = self.resource_of(owner) else { return Owner::Unknown };
        if resource.namespaced && namespace.is_empty() {
            return Owner::Unknown;
        }
        let namespace = if resource.namespaced { namespace } else { "" };
        let found = self.client.store().get(&resource.storage, namespace, text("name"));
        match found.filter(|o| *o.keys.uid == *text("uid")) {
            None => Owner::Gone,
            Some(object) if object.keys.deleting && has_finalizer(&object.value(), FOREGROUND) => Owner::Waiting,
            Some(_) => Owner::Solid,
        }
    }

    /// Reports the first owner that is there, but not where it could own the object. Looks through all of the owners'
    /// kinds, and therefore only when the reference is new and leads nowhere.
    async fn report_misplaced(&self, resource: &Resource, object: &ObjectRef, value: &Value) {
        let namespace = &*object.key.namespace;
        let owners = value["metadata"]["ownerReferences"].as_array().map(Vec::as_slice).unwrap_or_default();
        let lost = owners.iter().enumerate().filter_map(|(place, owner)| {
            let of = self.resource_of(owner).filter(|r| r.namespaced)?;
            let uid = owner["uid"].as_str()?;
            let there = matches!(self.find(owner, namespace), Owner::Solid | Owner::Waiting);
            (!there).then(|| (of.storage.clone(), uid, place))
        });
        let mut all = Lost::default();
        lost.take(LOOKED_FOR).for_each(|(kind, uid, place)| all.add(kind, uid, place));
        while let Some((kind, places)) = all.next() {
            let snapshot = self.client.store().snapshot(&kind);
            let elsewhere = snapshot.range(None, None).filter(|o| *o.key.namespace != *namespace);
            all.look(&places, elsewhere.map(|o| &*o.keys.uid));
            // There may be many of a kind, and others have work to do.
            tokio::task::yield_now().await;
        }
        if let Some(owner) = all.found.and_then(|place| owners.get(place)) {
            let mut about = json!({"kind": resource.kind, "apiVersion": resource.api_version(),
                "name": object.key.name, "uid": object.keys.uid});
            if !namespace.is_empty() {
                about["namespace"] = namespace.into();
            }
            self.recorder.warn_of(Self::NAME, about, "OwnerRefInvalidNamespace", misplaced(owner, namespace));
        }
    }

    /// `named`: its owners were named just now.
    async fn check_dependent(&self, resource: &Resource, object: &ObjectRef, named: bool) -> Result<()> {
        let value = object.value();
        let owners = value["metadata"]["ownerReferences"].as_array().into_iter().flatten();
        let found = owners.map(|owner| {
            let uid = owner["uid"].as_str().unwrap_or_default().to_owned();
            (uid, self.find(owner, &object.key.namespace))
        });
        let found: Vec<_> = found.collect();
        if named && found.iter().any(|(_, owner)| matches!(owner, Owner::Gone | Owner::Unknown)) {
            self.report_misplaced(resource, object, &value).await;
        }
        if object.keys.deleting {
            return Ok(());
        }
        let Some(Owners { solid, waiting, gone }) = Owners::of(found.into_iter()) else { return Ok(()) };
        if waiting.is_empty() && gone.is_empty() {
            return Ok(());
        }
        if solid > 0 {
            let leaving: HashSet<&str> = gone.iter().chain(&waiting).map(String::as_str).collect();
            return self.release(resource, object, |uid| leaving.contains(uid)).await;
        }
        let dependents = if waiting.is_empty() { Vec::new() } else { self.dependents_of(&object.keys.uid) };
        let policy = if !dependents.is_empty() {
            // A circle of owners that wait for each other is opened here.
            if dependents.iter().any(|(_, d)| d.keys.deleting && has_finalizer(&d.value(), FOREGROUND)) {
                self.unblock(resource, object).await?;
            }
            // Its own dependents go first, as its owner asked.
            "Foreground"
        } else if has_finalizer(&value, ORPHAN) {
            "Orphan"
        } else if has_finalizer(&value, FOREGROUND) {
            "Foreground"
        } else {
            "Background"
        };
        let options = DeleteOptions { propagation: Some(policy.into()), ..DeleteOptions::default() };
        self.delete_unclaimed(&resource.storage.0, object, options).await
    }

    /// Deletes an object that nobody has claimed since its owners were looked at: admission may ask others, which takes
    /// its time.
    async fn delete_unclaimed(&self, resource: &str, object: &ObjectRef, options: DeleteOptions) -> Result<()> {
        let as_seen = DeleteOptions { revision: Some(object.revision.to_string()), ..options.clone() };
        match self.client.delete_object(resource, object, as_seen).await {
            Err(error) if error.is_conflict() => {
                let owners = |object: &ObjectRef| object.value()["metadata"]["ownerReferences"].take();
                let now = self.client.get(resource, &object.key.namespace, &object.key.name);
                // A webhook that calls its refusal a conflict is not asked twice.
                let is_changed = |now: &ObjectRef| now.revision != object.revision;
                match now.filter(is_changed).is_some_and(|now| owners(&now) == owners(object)) {
                    true => self.client.delete_object(resource, object, options).await,
                    // It is looked at again.
                    false => Err(error),
                }
            }
            deleted => deleted,
        }
    }

    /// Lets an object's owners no longer wait for it.
    async fn unblock(&self, resource: &Resource, object: &ObjectRef) -> Result<()> {
        let key = &object.key;
        let written = self.client.update(&resource.storage.0, &key.namespace, &key.name, |value| {
            if value["metadata"]["uid"] != *object.keys.uid {
                return Err(unchanged());
            }
            let owners = value["metadata"]["ownerReferences"].as_array_mut().into_iter().flatten();
            let mut blocked = false;
            for owner in owners.filter(|o| o["blockOwnerDeletion"] == true) {
                owner["blockOwnerDeletion"] = false.into();
                blocked = true;
            }
            if blocked { Ok(()) } else { Err(unchanged()) }
        });
        finish(written.await.map(|_| ()))
    }

    /// Takes owners out of an object's list.
    async fn release(
        &self,
        resource: &Resource,
        object: &ObjectRef,
        leaves: impl Fn(&str) -> bool + Send + Sync,
    ) -> Result<()> {
        let key = &object.key;
        let released = self.client.update(&resource.storage.0, &key.namespace, &key.name, |value| {
            let metadata = &mut value["metadata"];
            if metadata["uid"] != *object.keys.uid {
                return Err(unchanged());
            }
            let Some(list) = metadata["ownerReferences"].as_array_mut() else { return Err(unchanged()) };
            list.retain(|o| !leaves(o["uid"].as_str().unwrap_or_default()));
            if list.is_empty() {
                drop(metadata.as_object_mut().and_then(|m| m.remove("ownerReferences")));
            }
            Ok(())
        });
        finish(released.await.map(|_| ()))
    }

    async fn check_owner(&self, resource: &Resource, object: &ObjectRef) -> Result<()> {
        let value = object.value();
        let dependents = self.dependents_of(&object.keys.uid);
        if has_finalizer(&value, ORPHAN) {
            for (at, dependent) in &dependents {
                self.release(&self.resources[*at], dependent, |uid| *uid == *object.keys.uid).await?;
            }
            return self.unhold(resource, object, ORPHAN).await;
        }
        if has_finalizer(&value, FOREGROUND) {
            let blocking = dependents.iter().any(|(_, dependent)| {
                let value = dependent.value();
                let owners = value["metadata"]["ownerReferences"].as_array().into_iter().flatten();
                owners.into_iter().any(|o| o["uid"] == *object.keys.uid && o["blockOwnerDeletion"] == true)
            });
            if !blocking {
                return self.unhold(resource, object, FOREGROUND).await;
            }
        }
        Ok(())
    }

    async fn unhold(&self, resource: &Resource, object: &ObjectRef, finalizer: &str) -> Result<()> {
        let key = &object.key;
        let written = self.client.update(&resource.storage.0, &key.namespace, &key.name, |value| {
            if value["metadata"]["uid"] != *object.keys.uid {
                return Err(unchanged());
            }
            let metadata = &mut value["metadata"];
            let Some(list) = metadata["finalizers"].as_array_mut() else { return Err(unchanged()) };
            list.retain(|f| f != finalizer);
            if list.is_empty() {
                drop(metadata.as_object_mut().and_then(|m| m.remove("finalizers")));
            }
            Ok(())
        });
        finish(written.await.map(|_| ()))
    }
}

/// Gone meanwhile, or nothing to do, is as good as done.
fn finish(result: Result<()>) -> Result<()> {
    match result {
        Err(error) if error.is_not_found() || error.code() == 304 => Ok(()),
        result => result,
    }
}

fn has_finalizer(value: &Value, name: &str) -> bool {
    value["metadata"]["finalizers"].as_array().is_some_and(|f| f.iter().any(|f| f == name))
}

impl Controller for Garbage {
    const NAME: &'static str = "garbage-collector-controller";
    type Key = Work;

    fn watched(&self) -> Vec<ResourceId> {
        self.resources.iter().map(|r| r.storage.clone()).collect()
    }

    fn stale(&self) -> bool {
        !Arc::ptr_eq(&self.set, &self.client.server().resources.current())
    }

    fn observe(&mut self, change: Change<'_>, queue: &mut Queue<Work>) {
        let (object, resource) = (change.object, change.resource);
        self.told.fetch_max(object.revision, Ordering::Relaxed);
        let work = |task| Work { resource, key: object.key.clone(), task };
        let has_owners = !object.keys.owners.is_empty();
        if has_owners || change.previous.is_some_and(|p| !p.keys.owners.is_empty()) {
            self.dependents[resource].observe(change, by_owner);
        }
        if change.deleted() {
            self.waiting.remove(&object.keys.uid);
            for (at, dependent) in self.dependents_of(&object.keys.uid) {
                queue.add(Work { resource: at, key: dependent.key.clone(), task: Task::Dependent });
            }
        } else {
            let before = change.previous.map(|p| &p.keys.owners);
            if has_owners && before != Some(&object.keys.owners) {
                let new = object.revision > self.told_before;
                queue.add(work(if new { Task::Named } else { Task::Dependent }));
            }
            if object.keys.deleting {
                let value = object.value();
                if has_finalizer(&value, ORPHAN) || has_finalizer(&value, FOREGROUND) {
                    self.waiting.insert(object.keys.uid.clone(), work(Task::Owner));
                    queue.add(work(Task::Owner));
                    for (at, dependent) in self.dependents_of(&object.keys.uid) {
                        queue.add(Work { resource: at, key: dependent.key.clone(), task: Task::Dependent });
                    }
                }
            }
        }
        // An owner that waits looks again when a dependent changes.
        let previous = change.previous.map(|p| &*p.keys.owners).unwrap_or_default();
        for uid in object.keys.owners.iter().chain(previous) {
            if let Some(owner) = self.waiting.get(uid) {
                queue.add(owner.clone());
                if !change.deleted() {
                    queue.add(work(Task::Dependent));
                }
            }
        }
    }

    /// A webhook may keep one object from going for a while, and not the others.
    fn begin(&mut self, work: &Work) -> Option<runner::Work> {
        let resource = self.resources.get(work.resource)?.clone();
        let object = self.client.store().get(&resource.storage, &work.key.namespace, &work.key.name)?;
        let (hand, task) = (self.hand(&object.keys.uid), work.task);
        let checked = async move {
            match task {
                Task::Named => hand.check_dependent(&resource, &object, true).await?,
                Task::Dependent => hand.check_dependent(&resource, &object, false).await?,
                Task::Owner if object.keys.deleting => hand.check_owner(&resource, &object).await?,
                Task::Owner => {}
            }
            Ok(None)
        };
        Some(checked.boxed())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn owners(all: Vec<Owner>) -> Option<(usize, usize, usize)> {
        let all = all.into_iter().enumerate().map(|(i, owner)| (i.to_string(), owner));
        Owners::of(all).map(|o| (o.solid, o.waiting.len(), o.gone.len()))
    }

    #[test]
    fn one_owner_of_whom_nothing_can_be_said_keeps_the_object_as_it_is() {
        assert_eq!(owners(vec![Owner::Gone, Owner::Unknown]), None);
        assert_eq!(owners(vec![Owner::Unknown, Owner::Solid]), None);
        assert_eq!(owners(vec![Owner::Gone, Owner::Solid, Owner::Waiting, Owner::Gone]), Some((1, 1, 2)));
    }

    #[test]
    fn a_kind_is_looked_through_once_for_all_owners_of_it() {
        let kind = |name: &str| ResourceId::from(name);
        let mut lost = Lost::default();
        for (place, uid) in ["a", "b", "b", "c"].into_iter().enumerate() {
            lost.add(kind("pods"), uid, place);
        }
        lost.add(kind("secrets"), "d", 4);
        lost.add(kind("configmaps"), "e", 5);
        let (first, places) = lost.next().expect("a kind");
        assert_eq!(first, kind("configmaps"));
        lost.look(&places, ["a", "b"].into_iter());
        assert_eq!(lost.found, None, "an owner of another kind is another owner");
        let (second, places) = lost.next().expect("a kind");
        assert_eq!((second, places.len()), (kind("pods"), 3));
        lost.look(&places, ["c", "x", "b"].into_iter());
        assert_eq!(lost.found, Some(1), "the first of the list, whatever comes first in the store");
        assert!(lost.next().is_none(), "what comes later in the list needs no look");
    }

    #[test]
    fn events_name_the_owner_as_the_dependent_would_find_it() {
        let owner = json!({"apiVersion": "v1", "kind": "ConfigMap", "name": "x", "uid": "y"});
        let said = "ownerRef [v1/ConfigMap, namespace: , name: x, uid: y] does not exist in namespace \"\"";
        assert_eq!(misplaced(&owner, ""), said);
        let said = "ownerRef [v1/ConfigMap, namespace: b, name: x, uid: y] does not exist in namespace \"b\"";
        assert_eq!(misplaced(&owner, "b"), said);
    }

    /// A webhook that takes its time over one object held up all others.
    #[tokio::test]
    async fn an_object_goes_while_another_waits_for_its_turn() {
        let server = crate::serve::testing::server().await;
        let client = Client::new(server.clone(), "system:kube-controller-manager", "test");
        let mut garbage = Garbage::new(client.clone(), Recorder::start(client.clone()), Arc::default());
        let place = garbage.resources.iter().position(|r| r.group.is_empty() && &*r.plural == "configmaps");
        let resource = place.expect("they are collected");
        for name in ["a", "b"] {
            let owner = json!({"apiVersion": "v1", "kind": "ConfigMap", "name": "x", "uid": "y"});
            let map = json!({"apiVersion": "v1", "kind": "ConfigMap",
                "metadata": {"name": name, "ownerReferences": [owner]}});
            client.create("configmaps", "default", map).await.expect("a map");
        }
        let mut begin = |name: &str| {
            let work = Work { resource, key: Key::new("default", name), task: Task::Dependent };
            garbage.begin(&work).expect("there is something to do")
        };
        let (waits, goes) = (begin("a"), begin("b"));
        goes.await.expect("it is looked at");
        let is_there = |name: &str| client.get("configmaps", "default", name).is_some();
        assert!(is_there("a") && !is_there("b"));
        waits.await.expect("it is looked at");
        assert!(!is_there("a"));
    }
}
