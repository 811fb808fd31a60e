//! `resourcequota-controller`: counts what each quota limits, so that its status tells what is used.
//!
//! Admission raises the counts as objects are made; here they are counted afresh when objects go or a quota changes.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use proto::quantity::{Format, Quantity};
use serde_json::{Map, Value};

use super::feed::Change;
use super::ownership;
use super::pods::is_terminal;
use super::queue::Queue;
use super::runner::Controller;
use crate::admission::Counter;
use crate::admission::resources::{self, Resources};
use crate::client::{Client, unchanged};
use crate::resource::{Set, Verbs};
use crate::status::Result;
use crate::store::{Key, ObjectRef, ResourceId};

const QUOTAS: &str = "resourcequotas";

pub struct Quotas {
    client: Client,
    set: Arc<Set>,
    /// What is counted, and how; each kind of stored object once.
    counted: Vec<(ResourceId, Counter)>,
    /// Quotas of each namespace.
    quotas: HashMap<Box<str>, BTreeMap<Key, ()>>,
}

impl Quotas {
    pub fn new(client: Client) -> Self {
        let set = client.server().resources.current();
        let mut counted: Vec<(ResourceId, Counter)> = vec![];
        for resource in set.all().iter().filter(|r| r.namespaced && r.verbs.contains(Verbs::DELETE)) {
            let Some(counter) = Counter::of(resource) else { continue };
            if !counted.iter().any(|(id, _)| *id == resource.storage) {
                counted.push((resource.storage.clone(), counter));
            }
        }
        // The watch of quotas themselves comes first.
        counted.sort_by_key(|(id, _)| *id != ResourceId::from(QUOTAS));
        Quotas { client, set, counted, quotas: HashMap::new() }
    }

    /// What is used of each name that a quota limits; names that nobody counts are left out.
    fn usage(&self, namespace: &str, quota: &Value) -> Map<String, Value> {
        let mut used = Resources::new();
        for (id, counter) in &self.counted {
            let names = quota["spec"]["hard"].as_object().into_iter().flat_map(Map::keys);
            let names: Vec<&str> = names.map(|name| &**name).filter(|name| counter.counts(name)).collect();
            if names.is_empty() {
                continue;
            }
            let sum = self.sum(id, counter, namespace, quota);
            let zero = || Quantity::from_integer(0, Format::DecimalSi);
            used.extend(names.into_iter().map(|n| (n.to_owned(), sum.get(n).copied().unwrap_or_else(zero))));
        }
        used.into_iter().map(|(name, quantity)| (name, quantity.to_string().into())).collect()
    }

    /// What the objects of one kind use that fall into a quota's scopes.
    fn sum(&self, id: &ResourceId, counter: &Counter, namespace: &str, quota: &Value) -> Resources {
        let snapshot = self.client.store().snapshot(id);
        let mut sum = Resources::new();
        for object in snapshot.range(Some(namespace), None) {
            let object = match counter {
                // All that is asked of these is how many there are.
                Counter::Objects { .. } => Value::Null,
                _ => object.value(),
            };
            if counter.in_scopes(quota, &object) {
                resources::add(&mut sum, &counter.usage(&object));
            }
        }
        sum
    }
}

impl Controller for Quotas {
    const NAME: &'static str = "resourcequota-controller";
    type Key = Key;

    fn watched(&self) -> Vec<ResourceId> {
        self.counted.iter().map(|(id, _)| id.clone()).collect()
    }

    fn stale(&self) -> bool {
        !Arc::ptr_eq(&self.set, &self.client.server().resources.current())
    }

    fn observe(&mut self, change: Change<'_>, queue: &mut Queue<Key>) {
        let (object, key) = (change.object, &change.object.key);
        if change.resource == 0 {
            let there = self.quotas.entry(key.namespace.clone()).or_default();
            match change.deleted() {
                true => drop(there.remove(key)),
                false => drop(there.insert(key.clone(), ())),
            }
            if there.is_empty() {
                self.quotas.remove(&key.namespace);
            }
            let limits = |o: &ObjectRef| {
                let value = o.value();
                (value["spec"].clone(), value["status"]["hard"].clone())
            };
            if !change.deleted() && change.previous.is_none_or(|old| limits(old) != limits(object)) {
                queue.add(key.clone());
            }
            if change.previous.is_some() && !change.deleted() {
                return;
            }
        }
        // What comes is counted by admission; what goes, or ends, is counted here. New objects too, a little later: they
        // may have come past a quota that was not there yet.
        let Some(quotas) = self.quotas.get(&key.namespace) else { return };
        let ended = change.previous.is_some_and(|old| !is_terminal(old)) && is_terminal(object);
        for quota in quotas.keys() {
            match change.deleted() || ended {
                true => queue.add(quota.clone()),
                false if change.previous.is_none() => queue.add_after(quota.clone(), Duration::from_millis(200)),
                false => {}
            }
        }
    }

    async fn sync(&mut self, key: &Key) -> Result<Option<Duration>> {
        let Some(quota) = self.client.get(QUOTAS, &key.namespace, &key.name) else { return Ok(None) };
        // What is charged and not stored yet would be missed.
        let _counting = self.client.server().admission.recount(&key.namespace).await;
        let written = self.client.update_status(QUOTAS, &key.namespace, &key.name, |value| {
            let used = self.usage(&key.namespace, value);
            let hard = value["spec"]["hard"].clone();
            let same = value["status"]["hard"] == hard && value["status"]["used"].as_object() == Some(&used);
            if value["metadata"]["uid"] != *quota.keys.uid || same {
                return Err(unchanged());
            }
            value["status"] = serde_json::json!({"hard": hard, "used": used});
            Ok(())
        });
        ownership::done(written.await.map(|_| ()))?;
        Ok(None)
    }
}
