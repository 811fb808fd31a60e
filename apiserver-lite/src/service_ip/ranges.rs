//! What ranges of services say of themselves: ready, or going with addresses that no other range has.
//!
//! Upstream two do this: the API server says a first word about the configured range, `service-cidr-controller` speaks
//! for all ranges and keeps those in use by a finalizer.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::time::Duration;

use proto::time::{Timestamp, parse_rfc3339};
use serde_json::{Value, json};

use super::addresses::Work;
use super::{cidrs, serves};
use crate::client::Client;
use crate::controllers::{Change, Queue, done, hold};
use crate::status::Result;
use crate::store::{Key, ObjectRef};

pub const RANGES: &str = "servicecidrs.networking.k8s.io";
/// What holds the configured ranges.
const DEFAULT_RANGE: &str = "kubernetes";
const FINALIZER: &str = "networking.k8s.io/service-cidr-finalizer";
/// How long a range stays that is not in use: for addresses of it that were handed out just before.
const GRACE: Duration = Duration::from_secs(10);

/// The ranges there are, as events tell of them.
#[derive(Debug)]
pub struct Ranges {
    /// Whether service-cidr-controller runs.
    pub all: bool,
    /// Those that are being deleted.
    going: BTreeSet<Box<str>>,
}

impl Ranges {
    pub fn new(all: bool) -> Self {
        Ranges { all, going: BTreeSet::new() }
    }

    /// Takes note of an event of a range.
    pub fn observe(&mut self, change: Change<'_>, queue: &mut Queue<Work>) {
        let object = change.object;
        let name = &object.key.name;
        if !self.all {
            let silent = || object.without_owners()["status"]["conditions"].is_null();
            if !change.deleted() && &**name == DEFAULT_RANGE && silent() {
                queue.add(Work::Range(name.clone()));
            }
            return;
        }
        if object.keys.deleting && !change.deleted() {
            self.going.insert(name.clone());
        } else {
            self.going.remove(name);
        }
        if !change.deleted() {
            queue.add(Work::Range(name.clone()));
        }
        // One more range may hold the addresses of others, one less may leave them alone.
        self.others_may_go(queue);
    }

    /// Addresses or ranges came or went: what is going may be held, or free.
    pub fn others_may_go(&self, queue: &mut Queue<Work>) {
        self.going.iter().for_each(|name| queue.add(Work::Range(name.clone())));
    }

    /// Brings a range's condition and finalizer to what they should be; `addresses` are those that services have.
    pub async fn sync(
        &self,
        client: &Client,
        name: &str,
        addresses: impl FnOnce() -> Vec<IpAddr>,
    ) -> Result<Option<Duration>> {
        let Some(object) = client.get(RANGES, "", name) else { return Ok(None) };
        let holding = client.named("kube-controller-manager");
        if !object.keys.deleting {
            if self.all {
                hold(&holding, RANGES, &object.key, FINALIZER, true).await?;
            }
            self.say(client, &object.key, false, &ready(self.all, name)).await?;
            return Ok(None);
        }
        let value = object.without_owners();
        let held = value["metadata"]["finalizers"].as_array().into_iter().flatten().any(|f| f == FINALIZER);
        if !self.all || !held {
            return Ok(None);
        }
        let all = client.store().snapshot(&RANGES.into());
        let others: Vec<ObjectRef> = all.range(None, None).filter(|other| other.key != object.key).cloned().collect();
        let others: Vec<_> = others.iter().map(|other| other.without_owners()).collect();
        if leaves_alone(&value, others.iter().map(|other| &**other), &addresses()) {
            self.say(client, &object.key, true, &terminating()).await?;
            return Ok(None);
        }
        let left = grace_left(value["metadata"]["deletionTimestamp"].as_str().unwrap_or_default(), Timestamp::now());
        if left.is_none() {
            hold(&holding, RANGES, &object.key, FINALIZER, false).await?;
        }
        Ok(left)
    }

    /// Applies a condition, as upstream does: who speaks owns it, whoever spoke before.
    async fn say(&self, client: &Client, key: &Key, going: bool, condition: &Value) -> Result<()> {
        let Some(object) = client.get(RANGES, &key.namespace, &key.name) else { return Ok(()) };
        if object.keys.deleting != going || says(&object.without_owners(), condition) {
            return Ok(());
        }
        let manager = if self.all { "service-cidr-controller" } else { "kubernetes-service-cidr-controller" };
        let mut condition = condition.clone();
        // Every change counts as a transition, also that of a message alone.
        condition["lastTransitionTime"] = Timestamp::now().to_seconds_text().into();
        let words = json!({"kind": "ServiceCIDR", "apiVersion": "networking.k8s.io/v1",
            "metadata": {"name": key.name}, "status": {"conditions": [condition]}});
        let client = client.named(manager);
        let written = client.apply_status(RANGES, &key.namespace, &key.name, &words).await;
        done(written.map(|_| ())).map(|_| ())
    }
}

/// Whether a range says that already.
fn says(range: &Value, condition: &Value) -> bool {
    let part = |value: &Value, name: &str| value[name].as_str().unwrap_or_default().to_owned();
    let mut said = range["status"]["conditions"].as_array().into_iter().flatten();
    said.any(|said| {
        ["type", "status", "reason", "message"].iter().all(|name| part(said, name) == part(condition, name))
    })
}

/// The words of service-cidr-controller; without it those of the API server about the configured range.
fn ready(all: bool, name: &str) -> Value {
    if !all && name == DEFAULT_RANGE {
        // It leaves the reason to others.
        return json!({"type": "Ready", "status": "True", "message": "Kubernetes default Service CIDR is ready"});
    }
    json!({"type": "Ready", "status": "True", "reason": "", "message": "Kubernetes Service CIDR is ready"})
}

fn terminating() -> Value {
    json!({"type": "Ready", "status": "False", "reason": "Terminating",
        "message": "There are still IPAddresses referencing the ServiceCIDR, please remove them or create a new \
                    ServiceCIDR"})
}

/// Whether an address would be in no range any more without this one.
fn leaves_alone<'a>(range: &Value, others: impl Iterator<Item = &'a Value>, addresses: &[IpAddr]) -> bool {
    let own: Vec<_> = cidrs(range).collect();
    let others: Vec<_> = others.flat_map(cidrs).collect();
    let has = |ranges: &[_], address: IpAddr| ranges.iter().any(|range| serves(*range, address));
    addresses.iter().any(|address| has(&own, *address) && !has(&others, *address))
}

/// How much longer a range stays that was deleted then; none when it may go.
fn grace_left(deleted: &str, now: Timestamp) -> Option<Duration> {
    let deleted = parse_rfc3339(deleted).ok()?;
    let passed = now.seconds.saturating_sub(deleted.seconds);
    // A clock that was set back makes no one wait for long.
    let left = i64::try_from(GRACE.as_secs()).unwrap_or_default().saturating_sub(passed).min(10);
    u64::try_from(left).ok().filter(|left| *left > 0).map(Duration::from_secs)
}

#[cfg(test)]
mod tests {
    use proto::json::Slotted;
    use tokio::time::Instant;

    use super::*;
    use crate::store::{Change as Stored, Encoded, EventKind, Expect, Keys, Store, Write};

    fn message(all: bool, name: &str) -> Value {
        ready(all, name)["message"].take()
    }

    #[test]
    fn the_first_word_about_the_configured_range_is_the_servers() {
        assert_eq!(message(false, "kubernetes"), "Kubernetes default Service CIDR is ready");
        assert_eq!(message(true, "kubernetes"), "Kubernetes Service CIDR is ready");
        assert_eq!(message(true, "more"), "Kubernetes Service CIDR is ready");
    }

    #[test]
    fn a_condition_is_written_where_it_differs() {
        let range = json!({"status": {"conditions": [{"type": "Ready", "status": "True", "reason": "",
            "message": "Kubernetes default Service CIDR is ready", "lastTransitionTime": "2020-01-01T00:00:00Z"}]}});
        assert!(says(&range, &ready(false, "kubernetes")));
        assert!(!says(&range, &ready(true, "kubernetes")) && !says(&range, &terminating()));
        assert!(!says(&json!({}), &ready(false, "kubernetes")));
    }

    #[test]
    fn a_range_is_held_by_addresses_that_it_alone_has() {
        let range = |all: &[&str]| json!({"spec": {"cidrs": all}});
        let held = |others: &[Value], addresses: &[&str]| {
            let addresses: Vec<IpAddr> = addresses.iter().map(|a| a.parse().expect("an address")).collect();
            leaves_alone(&range(&["10.0.0.0/24", "fd00::/112"]), others.iter(), &addresses)
        };
        assert!(!held(&[], &[]) && !held(&[], &["10.0.1.1", "fd01::1"]));
        assert!(held(&[], &["10.0.1.1", "10.0.0.1"]) && held(&[], &["fd00::1"]));
        let wide = range(&["10.0.0.0/16"]);
        assert!(!held(std::slice::from_ref(&wide), &["10.0.0.1"]));
        assert!(held(std::slice::from_ref(&wide), &["10.0.0.1", "fd00::1"]));
        assert!(!held(&[wide, range(&["fd00::/64"])], &["10.0.0.1", "fd00::1"]));
    }

    #[test]
    fn a_free_range_stays_for_a_while() {
        let at = |seconds: i64| grace_left("1970-01-01T00:01:40Z", Timestamp { seconds, nanos: 0 });
        assert_eq!((at(100), at(109)), (Some(Duration::from_secs(10)), Some(Duration::from_secs(1))));
        assert_eq!((at(110), at(200)), (None, None));
        assert_eq!(at(0), Some(Duration::from_secs(10)), "the clock was set back");
    }

    async fn stored(store: &Store, name: &str, deleting: bool, conditions: &str) -> ObjectRef {
        let text = format!(r#"{{"metadata":{{"resourceVersion":""}},"status":{{{conditions}}}}}"#);
        let json = Slotted { json: text.into_bytes(), offset: 32 };
        let change = Stored::Put(Encoded { json, keys: Keys { deleting, ..Keys::default() }, tree: None });
        let key = Key::new("", name);
        store.commit(Write { resource: RANGES.into(), key, expect: Expect::Absent, change }).await.expect("written");
        store.get(&RANGES.into(), "", name).expect("stored")
    }

    fn queued(ranges: &mut Ranges, object: &ObjectRef, kind: EventKind) -> Vec<String> {
        let mut queue = Queue::default();
        ranges.observe(Change { resource: 2, kind, object, previous: None }, &mut queue);
        let mut all = Vec::new();
        while let Some(work) = queue.pop(Instant::now()) {
            let Work::Range(name) = work else { panic!("{work:?}") };
            all.push(name.to_string());
        }
        all
    }

    #[tokio::test]
    async fn ranges_are_looked_at_when_they_change_and_when_others_do() {
        let store = Store::open(None).expect("memory opens");
        let said = r#""conditions":[{"type":"Ready","status":"False"}]"#;
        let first = stored(&store, "first", false, said).await;
        let going = stored(&store, "going", true, said).await;
        let mut all = Ranges::new(true);
        assert_eq!(queued(&mut all, &first, EventKind::Modified), ["first"], "whatever it says");
        assert_eq!(queued(&mut all, &going, EventKind::Modified), ["going"]);
        assert_eq!(queued(&mut all, &first, EventKind::Added), ["first", "going"]);
        assert_eq!(queued(&mut all, &first, EventKind::Deleted), ["going"]);
        let mut queue = Queue::default();
        all.others_may_go(&mut queue);
        assert_eq!(queue.pop(Instant::now()), Some(Work::Range("going".into())));
        assert_eq!(queued(&mut all, &going, EventKind::Deleted), [""; 0]);
        assert_eq!(queued(&mut all, &first, EventKind::Added), ["first"]);
    }

    #[tokio::test]
    async fn without_the_controller_only_a_silent_configured_range_is_looked_at() {
        let store = Store::open(None).expect("memory opens");
        let mut ranges = Ranges::new(false);
        let silent = stored(&store, "kubernetes", false, "").await;
        let other = stored(&store, "other", false, "").await;
        assert_eq!(queued(&mut ranges, &silent, EventKind::Added), ["kubernetes"]);
        assert_eq!(queued(&mut ranges, &other, EventKind::Added), [""; 0]);
        let store = Store::open(None).expect("memory opens");
        let said = stored(&store, "kubernetes", false, r#""conditions":[]"#).await;
        assert_eq!(queued(&mut ranges, &said, EventKind::Added), [""; 0]);
    }
}
