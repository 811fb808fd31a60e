//! `resourcequota-controller`: counts what each quota limits, so that its status tells what is used.
//!
//! Admission raises the counts as objects are made; here they are counted afresh when objects go or come to use something
//! else, when a quota changes, and from time to time.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use proto::quantity::{Format, Quantity};
use serde_json::{Map, Value};

use super::feed::Change;
use super::ownership;
use super::queue::Queue;
use super::runner::Controller;
use crate::admission::resources::{self, Resources};
use crate::admission::{Counter, counts_for};
use crate::client::{Client, unchanged};
use crate::resource::{Set, Verbs};
use crate::status::Result;
use crate::store::{Key, ObjectRef, ResourceId};

const QUOTAS: &str = "resourcequotas";
/// How often everything is counted afresh, as `--resource-quota-sync-period`.
const PERIOD: Duration = Duration::from_secs(300);

pub struct Quotas {
    client: Client,
    set: Arc<Set>,
    /// What is counted, and how; each kind of stored object once.
    counted: Vec<(ResourceId, Counter)>,
    /// Quotas of each namespace.
    quotas: HashMap<Box<str>, BTreeMap<Key, ObjectRef>>,
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
                Counter::Objects { .. } => Arc::new(Value::Null),
                _ => object.without_owners(),
            };
            if counter.in_scopes(quota, &object) {
                resources::add(&mut sum, &counter.usage(&object));
            }
        }
        sum
    }
}

/// Whether an object uses something else than before, or in another quota.
fn is_other_use(counter: &Counter, quotas: &BTreeMap<Key, ObjectRef>, old: &ObjectRef, new: &ObjectRef) -> bool {
    if matches!(counter, Counter::Objects { .. }) {
        return false;
    }
    // From then on there is a time when it counts no more.
    if *counter == Counter::Pods && new.keys.deleting && !old.keys.deleting {
        return true;
    }
    let (old, new) = (old.without_owners(), new.without_owners());
    let is_in = |quota: &ObjectRef, object: &Value| counter.in_scopes(&quota.kept(), object);
    counter.usage(&old) != counter.usage(&new) || quotas.values().any(|quota| is_in(quota, &old) != is_in(quota, &new))
}

impl Quotas {
    /// When a namespace is to be counted again: every now and then, and when a pod that should have gone counts no more.
    fn until_next(&self, namespace: &str) -> Duration {
        let pods = self.client.store().snapshot(&"pods".into());
        let going = pods.range(Some(namespace), None).filter(|pod| pod.keys.deleting);
        let ends = going.filter_map(|pod| counts_for(&pod.without_owners())).filter(|left| !left.is_zero());
        ends.fold(PERIOD, Duration::min)
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
                false => drop(there.insert(key.clone(), object.clone())),
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
        // What comes is counted by admission; what goes, ends or changes is counted here. New objects too, a little later:
        // they may have come past a quota that was not there yet.
        let Some(quotas) = self.quotas.get(&key.namespace) else { return };
        let Some((_, counter)) = self.counted.get(change.resource) else { return };
        let other = match change.previous {
            _ if change.deleted() => true,
            Some(old) => is_other_use(counter, quotas, old, object),
            None => false,
        };
        for quota in quotas.keys() {
            match other {
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
        Ok(Some(self.until_next(&key.namespace)))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use tokio::time::Instant;

    use super::super::feed::Feed;
    use super::*;
    use crate::write::DeleteOptions;

    /// A load balancer that had become a plain service, and a pod whose node was lost, used up a quota for good.
    #[tokio::test]
    async fn what_is_used_no_more_is_given_back() {
        let server = crate::serve::testing::server().await;
        let client = Client::new(server.clone(), "system:kube-controller-manager", "test");
        let mut controller = Quotas::new(client.clone());
        let (mut feed, mut queue) = (Feed::open(&server.store, &controller.watched()), Queue::default());
        let make = async |plural: &str, kind: &str, name: &str, spec: Value| {
            let value = json!({"apiVersion": "v1", "kind": kind, "metadata": {"name": name}, "spec": spec});
            client.create(plural, "default", value).await.expect("it is made");
        };
        let hard = json!({"services.loadbalancers": "1", "pods": "1"});
        make(QUOTAS, "ResourceQuota", "q", json!({ "hard": hard })).await;
        make(QUOTAS, "ResourceQuota", "short", json!({"hard": {"pods": "1"}, "scopes": ["Terminating"]})).await;
        // What is queued for a later time is left there: only what a change queues is looked at.
        let mut look = async || {
            let mut looked = Vec::new();
            loop {
                feed.drain(|change| controller.observe(change, &mut queue)).expect("in time");
                let Some(key) = queue.pop(Instant::now()) else { return looked };
                let again = controller.sync(&key).await.expect("it goes").expect("another look");
                queue.done(&key);
                let quota = client.get(QUOTAS, "default", &key.name).expect("it is there").value();
                looked.push((key.name.to_string(), quota["status"]["used"].clone(), again));
            }
        };
        assert!(!look().await.is_empty());
        make("services", "Service", "s", json!({"type": "LoadBalancer", "ports": [{"port": 80}]})).await;
        let containers = json!([{"name": "c", "image": "i"}]);
        make("pods", "Pod", "p", json!({"nodeName": "lost", "containers": containers})).await;
        let used = client.get(QUOTAS, "default", "q").expect("it is there").value()["status"]["used"].clone();
        assert_eq!(used, json!({"services.loadbalancers": "1", "pods": "1"}));
        assert!(look().await.is_empty(), "admission has counted it");
        let changed = client.update("services", "default", "s", |service| {
            service["spec"]["type"] = "ClusterIP".into();
            Ok(())
        });
        changed.await.expect("written");
        let looked = look().await;
        assert_eq!(looked[0], ("q".into(), json!({"services.loadbalancers": "0", "pods": "1"}), PERIOD));
        let changed = client.update("pods", "default", "p", |pod| {
            pod["spec"]["activeDeadlineSeconds"] = 1000.into();
            Ok(())
        });
        changed.await.expect("written");
        assert_eq!(look().await[1].1, json!({"pods": "1"}), "it falls into the scope of the other one by now");
        let grace = DeleteOptions { grace_seconds: Some(10), ..DeleteOptions::default() };
        client.delete("pods", "default", "p", &grace).await.expect("it is to go");
        let again = look().await[0].2;
        assert!(again > Duration::from_secs(10) && again <= Duration::from_secs(20), "{again:?}");
    }
}
