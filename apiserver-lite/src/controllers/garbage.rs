//! `garbage-collector-controller`: what an owner leaves behind goes with it.
//!
//! Watches every resource that can be deleted and keeps, for objects with owners only, which owner has which dependents.
//! A dependent whose owners are all gone is deleted. An owner that is deleted in the foreground waits for the dependents
//! that block it; one that orphans its dependents first has itself removed from their owners.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;

use super::feed::Change;
use super::index::{Index, by_owner};
use super::queue::Queue;
use super::runner::Controller;
use crate::client::{Client, unchanged};
use crate::resource::{Resource, Set, Verbs};
use crate::status::Result;
use crate::store::{Key, ObjectRef, ResourceId};
use crate::write::DeleteOptions;

const FOREGROUND: &str = "foregroundDeletion";
const ORPHAN: &str = "orphan";

pub struct Garbage {
    client: Client,
    /// The registry's state that `resources` was made from.
    set: Arc<Set>,
    resources: Vec<Arc<Resource>>,
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
    /// Its kind is not served: nothing can be said.
    Unknown,
}

impl Garbage {
    pub fn new(client: Client) -> Self {
        let set = client.server().resources.current();
        let mut resources: Vec<Arc<Resource>> = Vec::new();
        for resource in set.all() {
            let collected = resource.verbs.contains(Verbs::DELETE.union(Verbs::WATCH)) && &*resource.plural != "events";
            if collected && !resources.iter().any(|r| r.storage == resource.storage) {
                resources.push(resource.clone());
            }
        }
        let dependents = resources.iter().map(|_| Index::default()).collect();
        Garbage { client, set, resources, dependents, waiting: HashMap::new() }
    }

    fn dependents_of(&self, uid: &str) -> Vec<(usize, ObjectRef)> {
        let indexes = self.dependents.iter().enumerate().filter(|(_, index)| index.contains(uid));
        indexes.flat_map(|(i, index)| index.get(uid).map(move |o| (i, o.clone()))).collect()
    }

    fn find(&self, owner: &Value, namespace: &str) -> Owner {
        let text = |key: &str| owner[key].as_str().unwrap_or_default();
        let (group, version) = text("apiVersion").rsplit_once('/').unwrap_or(("", text("apiVersion")));
        let resource = match self.set.by_kind(group, version, text("kind")) {
            Some(resource) => resource,
            // Another version of the group may still be served.
            None => match self.set.all().iter().find(|r| *r.group == *group && *r.kind == *text("kind")) {
                Some(resource) => resource.clone(),
                None => return Owner::Unknown,
            },
        };
        let namespace = if resource.namespaced { namespace } else { "" };
        let found = self.client.store().get(&resource.storage, namespace, text("name"));
        match found.filter(|o| *o.keys.uid == *text("uid")) {
            None => Owner::Gone,
            Some(object) if object.keys.deleting && has_finalizer(&object.value(), FOREGROUND) => Owner::Waiting,
            Some(_) => Owner::Solid,
        }
    }

    async fn check_dependent(&self, resource: &Resource, object: &ObjectRef) -> Result<()> {
        let value = object.value();
        if object.keys.deleting && !has_finalizer(&value, FOREGROUND) {
            return Ok(());
        }
        let owners = value["metadata"]["ownerReferences"].as_array().cloned().unwrap_or_default();
        let (mut solid, mut waiting, mut gone) = (0, Vec::new(), Vec::new());
        let mut blocks = false;
        for owner in &owners {
            let uid = owner["uid"].as_str().unwrap_or_default().to_owned();
            match self.find(owner, &object.key.namespace) {
                Owner::Solid | Owner::Unknown => solid += 1,
                Owner::Waiting => {
                    blocks |= owner["blockOwnerDeletion"] == true;
                    waiting.push(uid);
                }
                Owner::Gone => gone.push(uid),
            }
        }
        if waiting.is_empty() && gone.is_empty() {
            return Ok(());
        }
        if solid > 0 {
            return self.release(resource, object, |uid| gone.iter().chain(&waiting).any(|u| u == uid)).await;
        }
        let policy = if !waiting.is_empty() && blocks && !self.dependents_of(&object.keys.uid).is_empty() {
            // Its own dependents go first, as its owner asked.
            "Foreground"
        } else if has_finalizer(&value, ORPHAN) {
            "Orphan"
        } else if has_finalizer(&value, FOREGROUND) {
            "Foreground"
        } else {
            "Background"
        };
        if object.keys.deleting {
            return Ok(());
        }
        let options = DeleteOptions { propagation: Some(policy.into()), ..DeleteOptions::default() };
        self.client.delete_object(&resource.storage.0, object, options).await
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
                queue.add(work(Task::Dependent));
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

    async fn sync(&mut self, work: &Work) -> Result<Option<Duration>> {
        let resource = self.resources[work.resource].clone();
        let Some(object) = self.client.store().get(&resource.storage, &work.key.namespace, &work.key.name) else {
            return Ok(None);
        };
        match work.task {
            Task::Dependent => self.check_dependent(&resource, &object).await?,
            Task::Owner if object.keys.deleting => self.check_owner(&resource, &object).await?,
            Task::Owner => {}
        }
        Ok(None)
    }
}
