//! `device-taint-eviction-controller`: pods leave devices with NoExecute taints that their claims do not tolerate, or no
//! longer.
//!
//! Taints are those that drivers publish in ResourceSlices; of a pool, those of its newest generation. Time runs from when
//! a taint was added. Follows `pkg/controller/devicetainteviction`.
//!
//! Limits: no DeviceTaintRules, which are off by default.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::time::Duration;

use proto::time::Timestamp;
use serde_json::Value;

use super::events::Recorder;
use super::feed::Change;
use super::index::by_node;
use super::pods::{PodDigest, is_terminal, seconds};
use super::queue::Queue;
use super::resource_claims::{CLAIMS, told};
use super::runner::{Controller, Work};
use super::taint_eviction::Step;
use crate::client::Client;
use crate::scheduler::bears_taint;
use crate::store::{Key, ObjectRef, ResourceId};
use crate::tree::{list, text};

const SLICES: &str = "resourceslices.resource.k8s.io";

/// A pool by its driver and name.
type PoolId = (Box<str>, Box<str>);
/// NoExecute taints by their devices.
type Taints = BTreeMap<Box<str>, Vec<Value>>;

pub struct DeviceTaintEviction {
    client: Client,
    recorder: Recorder,
    /// What each slice of a pool says, with its generation.
    pools: HashMap<PoolId, BTreeMap<Key, (i64, Taints)>>,
    /// Pods that have to leave later.
    leaving: HashSet<Key>,
}

impl DeviceTaintEviction {
    pub fn new(client: Client, recorder: Recorder) -> Self {
        DeviceTaintEviction { client, recorder, pools: HashMap::new(), leaving: HashSet::new() }
    }

    fn say(&self, pod: &ObjectRef, what: &str) {
        let who = "device-taint-eviction-controller";
        self.recorder.say(who, ("Pod", "v1", pod), "DeviceTaintManagerEviction", what.into());
    }

    /// What makes pods leave a pool's devices.
    fn taints(&self, pool: &PoolId) -> Taints {
        let slices = self.pools.get(pool).into_iter().flat_map(BTreeMap::values);
        let newest = slices.clone().map(|(generation, _)| *generation).max();
        let current = slices.filter(|(generation, _)| Some(*generation) == newest);
        current.flat_map(|(_, taints)| taints.clone()).collect()
    }

    /// Takes note of a slice, and queues the pods on devices that have other taints than before.
    fn observe_slice(&mut self, change: Change<'_>, queue: &mut Queue<Key>) {
        let key = &change.object.key;
        let value = change.object.without_owners();
        let spec = &value["spec"];
        let pool: PoolId = (text(spec, "driver").into(), text(&spec["pool"], "name").into());
        let before = self.taints(&pool);
        let slices = self.pools.entry(pool.clone()).or_default();
        match change.deleted() {
            true => drop(slices.remove(key)),
            false => drop(slices.insert(key.clone(), said(spec))),
        }
        if slices.is_empty() {
            self.pools.remove(&pool);
        }
        let after = self.taints(&pool);
        let devices = before.keys().chain(after.keys()).filter(|device| before.get(*device) != after.get(*device));
        let devices: HashSet<&str> = devices.map(|device| &**device).collect();
        if devices.is_empty() {
            return;
        }
        let claims = self.client.store().snapshot(&ResourceId::from(CLAIMS));
        for claim in claims.range(None, None) {
            let value = claim.without_owners();
            let is_one = |result: &Value| pool_of(result) == pool && devices.contains(text(result, "device"));
            if results(&value).any(is_one) {
                queue_users(claim, &value, queue);
            }
        }
    }

    /// When a pod has to leave, in seconds since 1970; None for one that may stay.
    fn leaves_at(&self, pod: &ObjectRef) -> Option<i64> {
        let value = pod.without_owners();
        let entries = list(&value["spec"], "resourceClaims");
        let claims = entries.filter_map(|entry| {
            let (name, is_own) = match entry["resourceClaimName"].as_str() {
                Some(name) => (name, false),
                None => (told(&value, text(entry, "name"))?, true),
            };
            let claim = self.client.get(CLAIMS, &pod.key.namespace, name)?;
            (!is_own || claim.keys.owners.contains(&pod.keys.uid)).then(|| claim.without_owners())
        });
        let mut first: Option<i64> = None;
        for claim in claims {
            if !list(&claim["status"], "reservedFor").any(|user| user["uid"] == *pod.keys.uid) {
                continue;
            }
            for result in results(&claim) {
                let Some(taints) = self.taints(&pool_of(result)).remove(text(result, "device")) else { continue };
                let ends = taints.iter().filter_map(|taint| borne_until(result, taint));
                first = first.into_iter().chain(ends).min();
            }
        }
        first
    }
}

/// Generation and NoExecute taints of a slice.
fn said(spec: &Value) -> (i64, Taints) {
    let taints = list(spec, "devices").map(|device| {
        let evicting = list(device, "taints").filter(|taint| taint["effect"] == "NoExecute");
        (text(device, "name").into(), evicting.cloned().collect())
    });
    let tainted = taints.filter(|(_, taints): &(_, Vec<Value>)| !taints.is_empty());
    (spec["pool"]["generation"].as_i64().unwrap_or(0), tainted.collect())
}

/// The devices that a claim has.
fn results(claim: &Value) -> impl Iterator<Item = &Value> {
    list(&claim["status"]["allocation"]["devices"], "results")
}

fn pool_of(result: &Value) -> PoolId {
    (text(result, "driver").into(), text(result, "pool").into())
}

/// Until when who has a device bears a taint of it; None for ever.
fn borne_until(result: &Value, taint: &Value) -> Option<i64> {
    let fits = |toleration: &&Value| toleration["effect"] == "NoExecute" && bears_taint(toleration, taint);
    let mut shortest: Option<i64> = None;
    for toleration in list(result, "tolerations").filter(fits) {
        let bears = toleration["tolerationSeconds"].as_i64()?.max(0);
        shortest = Some(shortest.map_or(bears, |s| s.min(bears)));
    }
    Some(seconds(&taint["timeAdded"]).saturating_add(shortest.unwrap_or(0)))
}

/// Queues the pods that a claim is reserved for.
fn queue_users(claim: &ObjectRef, value: &Value, queue: &mut Queue<Key>) {
    let users = list(&value["status"], "reservedFor").filter(|user| user["resource"] == "pods");
    users.for_each(|user| queue.add(Key::new(&claim.key.namespace, text(user, "name"))));
}

impl Controller for DeviceTaintEviction {
    const NAME: &'static str = "device-taint-eviction-controller";
    type Key = Key;

    fn watched(&self) -> Vec<ResourceId> {
        ["pods", CLAIMS, SLICES].map(Into::into).into()
    }

    fn observe(&mut self, change: Change<'_>, queue: &mut Queue<Key>) {
        let object = change.object;
        match change.resource {
            0 if change.deleted() => {
                self.leaving.remove(&object.key);
            }
            0 => {
                if PodDigest::of(object).asks_devices && by_node(object).is_some() && !object.keys.deleting {
                    queue.add(object.key.clone());
                }
            }
            1 => {
                for state in [Some(object), change.previous].into_iter().flatten() {
                    queue_users(state, &state.without_owners(), queue);
                }
            }
            _ => self.observe_slice(change, queue),
        }
    }

    fn begin(&mut self, key: &Key) -> Option<Work> {
        let why = "Device Taint manager: deleting due to NoExecute taint";
        Some(self.next(key).work(&self.client, "DeletionByDeviceTaintManager", why))
    }
}

impl DeviceTaintEviction {
    /// Decides about a pod, and says what is decided.
    fn next(&mut self, key: &Key) -> Step {
        let found = self.client.get("pods", &key.namespace, &key.name);
        let Some(pod) = found.filter(|pod| !pod.keys.deleting && !is_terminal(pod)) else {
            self.leaving.remove(key);
            return Step::Wait(None);
        };
        let leaves_at = by_node(&pod).and_then(|_| self.leaves_at(&pod));
        let Some(at) = leaves_at else {
            if self.leaving.remove(key) {
                self.say(&pod, "Cancelling deletion");
            }
            return Step::Wait(None);
        };
        if let Ok(left @ 1..) = u64::try_from(at.saturating_sub(Timestamp::now().seconds)) {
            self.leaving.insert(key.clone());
            return Step::Wait(Some(Duration::from_secs(left)));
        }
        self.say(&pod, "Marking for deletion");
        Step::Evict(pod)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::feed::Feed;
    use super::*;

    #[test]
    fn a_taint_is_borne_for_the_shortest_time_that_is_said_for_it() {
        let until = |tolerations: Value| {
            let taint = json!({"key": "k", "value": "v", "effect": "NoExecute", "timeAdded": "1970-01-01T00:01:40Z"});
            borne_until(&json!({ "tolerations": tolerations }), &taint)
        };
        let any = |seconds: Value| json!({"key": "k", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": seconds});
        assert_eq!(until(json!([])), Some(100));
        assert_eq!(until(json!([any(json!(60)), any(json!(30))])), Some(130));
        assert_eq!(until(json!([any(json!(-5))])), Some(100));
        assert_eq!(until(json!([any(json!(60)), any(Value::Null)])), None);
        let other = json!({"key": "k", "operator": "Equal", "value": "w", "effect": "NoExecute"});
        assert_eq!(until(json!([other])), Some(100));
    }

    #[tokio::test]
    async fn a_pod_leaves_a_device_that_is_tainted_and_stays_when_it_is_not_any_more() {
        let server = crate::serve::testing::server().await;
        let client = Client::new(server.clone(), "system:kube-controller-manager", "test");
        let mut controller = DeviceTaintEviction::new(client.clone(), Recorder::start(client.clone()));
        let (mut feed, mut queue) = (Feed::open(&server.store, &controller.watched()), Queue::default());
        let slice = async |generation: i64, taints: Value| {
            let name = format!("s{generation}");
            let pool = json!({"name": "pool", "generation": generation, "resourceSliceCount": 1});
            let devices = json!([{"name": "d", "taints": taints}]);
            let spec = json!({"driver": "dra.example.com", "nodeName": "n", "pool": pool, "devices": devices});
            let slice = json!({"apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice", "metadata": {"name": name}, "spec": spec});
            client.create(SLICES, "", slice).await.expect("a slice");
        };
        let spec = json!({"nodeName": "n", "containers": [{"name": "c", "image": "i"}],
            "resourceClaims": [{"name": "r", "resourceClaimName": "c"}]});
        let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": spec});
        let pod = client.create("pods", "default", pod).await.expect("a pod");
        let request = json!({"name": "r", "exactly": {"deviceClassName": "c"}});
        let claim = json!({"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": {"name": "c"},
            "spec": {"devices": {"requests": [request]}}});
        client.create(CLAIMS, "default", claim).await.expect("a claim");
        let toleration = json!({"key": "k", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 100});
        let result = json!({"request": "r", "driver": "dra.example.com", "pool": "pool", "device": "d", "tolerations": [toleration]});
        let given = client.update_status(CLAIMS, "default", "c", |claim| {
            claim["status"]["allocation"]["devices"]["results"] = json!([result]);
            claim["status"]["reservedFor"] = json!([{"resource": "pods", "name": "p", "uid": pod.keys.uid}]);
            Ok(())
        });
        given.await.expect("given");
        let mut look = async || {
            feed.drain(|change| controller.observe(change, &mut queue)).expect("in time");
            let key = queue.pop(tokio::time::Instant::now())?;
            queue.done(&key);
            // Whatever it waits for, other pods go on.
            Some(controller.begin(&key).expect("work").await.expect("it goes"))
        };
        assert_eq!(look().await, Some(None));
        slice(1, json!([{"key": "k", "effect": "NoExecute"}, {"key": "other", "effect": "NoSchedule"}])).await;
        let left = look().await.flatten().expect("it is borne for a while");
        assert!(left > Duration::from_secs(90) && left <= Duration::from_secs(100), "{left:?}");
        slice(2, json!([])).await;
        assert_eq!(look().await, Some(None));
        slice(3, json!([{"key": "unbearable", "effect": "NoExecute"}])).await;
        assert_eq!(look().await, Some(None));
        let pod = client.get("pods", "default", "p").expect("its node is to end it");
        assert!(pod.keys.deleting);
        let value = pod.without_owners();
        let condition = super::super::pods::condition(&value, "DisruptionTarget").expect("it is told");
        assert_eq!(condition["reason"], "DeletionByDeviceTaintManager");
    }
}
