//! `namespace-controller`: empties namespaces that are being deleted, then lets them go.
//!
//! Pods go first, then everything else of every resource that is served. What is left after that is held by a finalizer
//! or a grace period; the namespace's conditions say what, and deletions of pods wake us.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::{FutureExt as _, join_all};
use proto::time::Timestamp;
use serde_json::{Value, json};

use super::feed::Change;
use super::queue::Queue;
use super::runner::{Controller, Work};
use crate::client::Client;
use crate::resource::{Resource, Verbs};
use crate::status::Result;
use crate::store::{ObjectRef, ResourceId};
use crate::write::DeleteOptions;

/// Deletes under way at once.
const AT_ONCE: usize = 64;
/// A look at what finalizers hold, which no event of ours announces; doubles up to the longest.
const FIRST_LOOK: Duration = Duration::from_millis(200);
const LONGEST_LOOK: Duration = Duration::from_secs(10);

pub struct Namespaces {
    client: Client,
    /// Looks taken at each namespace that is going away.
    looks: HashMap<Box<str>, u32>,
}

impl Namespaces {
    pub fn new(client: Client) -> Self {
        Namespaces { client, looks: HashMap::new() }
    }
}

impl Controller for Namespaces {
    const NAME: &'static str = "namespace-controller";
    type Key = Box<str>;

    fn watched(&self) -> Vec<ResourceId> {
        ["namespaces", "pods"].map(Into::into).into()
    }

    fn observe(&mut self, change: Change<'_>, queue: &mut Queue<Box<str>>) {
        let key = &change.object.key;
        match (change.resource, change.deleted()) {
            (0, true) => drop(self.looks.remove(&key.name)),
            (0, false) if change.object.keys.deleting && change.previous.is_none_or(|p| !p.keys.deleting) => {
                self.looks.insert(key.name.clone(), 0);
                queue.add(key.name.clone());
            }
            (1, true) if self.looks.contains_key(&key.namespace) => queue.add(key.namespace.clone()),
            _ => {}
        }
    }

    fn begin(&mut self, name: &Box<str>) -> Option<Work> {
        let namespace = self.client.get("namespaces", "", name).filter(|n| n.keys.deleting);
        let wait = self.looks.get_mut(name).map_or(FIRST_LOOK, |looks| {
            *looks = looks.saturating_add(1);
            FIRST_LOOK.saturating_mul(1 << (*looks - 1).min(8)).min(LONGEST_LOOK)
        });
        let client = self.client.clone();
        let work = async move {
            match namespace {
                Some(namespace) => finish(&client, &namespace).await.map(|finished| (!finished).then_some(wait)),
                None => Ok(None),
            }
        };
        Some(work.boxed())
    }
}

/// Empties a namespace, and lets it go once it is empty. Whether there is nothing more to do.
async fn finish(client: &Client, namespace: &ObjectRef) -> Result<bool> {
    let name = &*namespace.key.name;
    let mut resources = contents(client);
    // Pods may need what else is there until they are gone.
    resources.sort_by_key(|r| !(r.group.is_empty() && &*r.plural == "pods"));
    let mut left = Left::default();
    for resource in &resources {
        empty(client, resource, name, &mut left).await;
        if &*resource.plural == "pods" && !left.objects.is_empty() {
            break;
        }
    }
    let finished = left.objects.is_empty() && left.failures.is_empty();
    let written = client.update_status("namespaces", "", name, |value| {
        value["status"]["phase"] = "Terminating".into();
        left.describe(value);
        Ok(())
    });
    match written.await {
        Err(error) if error.is_not_found() => return Ok(true),
        written => written.map(|_| ())?,
    }
    if !finished {
        return Ok(false);
    }
    let released = client.update_part("namespaces", "finalize", "", name, |value| {
        if value["metadata"]["uid"] != *namespace.keys.uid {
            return Err(crate::client::unchanged());
        }
        if let Some(list) = value["spec"]["finalizers"].as_array_mut() {
            list.retain(|f| f != "kubernetes");
        }
        Ok(())
    });
    match released.await {
        Err(error) if !error.is_not_found() && error.code() != 304 => Err(error),
        _ => Ok(true),
    }
}

/// Every namespaced resource that can be deleted, each once.
fn contents(client: &Client) -> Vec<Arc<Resource>> {
    let mut out: Vec<Arc<Resource>> = Vec::new();
    for resource in client.server().resources.current().all() {
        let wanted = resource.namespaced && resource.verbs.contains(Verbs::DELETE);
        if wanted && !out.iter().any(|r| r.storage == resource.storage) {
            out.push(resource.clone());
        }
    }
    out
}

/// What is left of a namespace's contents.
#[derive(Default)]
struct Left {
    /// Objects per resource.
    objects: BTreeMap<String, usize>,
    /// Objects per finalizer.
    finalizers: BTreeMap<String, usize>,
    failures: Vec<String>,
}

async fn empty(client: &Client, resource: &Resource, namespace: &str, left: &mut Left) {
    let objects = || -> Vec<ObjectRef> {
        client.store().snapshot(&resource.storage).range(Some(namespace), None).cloned().collect()
    };
    let background = || DeleteOptions { propagation: Some("Background".into()), ..DeleteOptions::default() };
    let there: Vec<ObjectRef> = objects().into_iter().filter(|o| !o.keys.deleting).collect();
    for some in there.chunks(AT_ONCE) {
        let deletes = some.iter().map(|o| client.delete_object(&resource.storage.0, o, background()));
        for failed in join_all(deletes).await.into_iter().filter_map(Result::err) {
            left.failures.push(failed.to_string());
        }
    }
    let remaining = objects();
    if remaining.is_empty() {
        return;
    }
    let name = crate::status::qualified(&resource.group, &resource.plural);
    left.objects.insert(name, remaining.len());
    for object in remaining {
        let value = object.value();
        for finalizer in value["metadata"]["finalizers"].as_array().into_iter().flatten() {
            *left.finalizers.entry(finalizer.as_str().unwrap_or_default().into()).or_default() += 1;
        }
    }
}

impl Left {
    /// Writes the conditions of a namespace that is going away.
    fn describe(&self, namespace: &mut Value) {
        let list = |map: &BTreeMap<String, usize>, word: &str| {
            let texts: Vec<String> = map.iter().map(|(k, n)| format!("{k} {word} {n} resource instances")).collect();
            texts.join(", ")
        };
        let remaining =
            format!("Some resources are remaining: {}", list(&self.objects, "has").replace(" has", ". has"));
        let held = format!("Some content in the namespace has finalizers remaining: {}", list(&self.finalizers, "in"));
        let failed = format!(
            "Failed to delete all resource types, {} remaining: {}",
            self.failures.len(),
            self.failures.join(", ")
        );
        let mut set = |kind: &str, bad: bool, yes: (&str, &str), no: (&str, &str)| {
            let (reason, message) = if bad { yes } else { no };
            set_condition(namespace, kind, if bad { "True" } else { "False" }, reason, message);
        };
        set(
            "NamespaceDeletionDiscoveryFailure",
            false,
            ("", ""),
            ("ResourcesDiscovered", "All resources successfully discovered"),
        );
        set(
            "NamespaceDeletionGroupVersionParsingFailure",
            false,
            ("", ""),
            ("ParsedGroupVersions", "All legacy kube types successfully parsed"),
        );
        set(
            "NamespaceDeletionContentFailure",
            !self.failures.is_empty(),
            ("ContentDeletionFailed", &failed),
            ("ContentDeleted", "All content successfully deleted, may be waiting on finalization"),
        );
        set(
            "NamespaceContentRemaining",
            !self.objects.is_empty(),
            ("SomeResourcesRemain", &remaining),
            ("ContentRemoved", "All content successfully removed"),
        );
        set(
            "NamespaceFinalizersRemaining",
            !self.finalizers.is_empty(),
            ("SomeFinalizersRemain", &held),
            ("ContentHasNoFinalizers", "All content-preserving finalizers finished"),
        );
    }
}

fn set_condition(value: &mut Value, kind: &str, status: &str, reason: &str, message: &str) {
    let now = Timestamp::now().to_seconds_text();
    let mut condition =
        json!({"type": kind, "status": status, "reason": reason, "message": message, "lastTransitionTime": now});
    if !value["status"]["conditions"].is_array() {
        value["status"]["conditions"] = json!([]);
    }
    let Some(list) = value["status"]["conditions"].as_array_mut() else { return };
    match list.iter_mut().find(|c| c["type"] == kind) {
        Some(old) => {
            if old["status"] == status {
                condition["lastTransitionTime"] = old["lastTransitionTime"].clone();
            }
            *old = condition;
        }
        None => list.push(condition),
    }
}

#[cfg(test)]
mod tests {
    use super::super::feed::Feed;
    use super::*;
    use crate::serve::testing::server;

    /// Whatever kept one namespace waiting kept all others.
    #[tokio::test]
    async fn namespaces_go_while_another_one_is_worked_on() {
        let server = server().await;
        let client = Client::new(server.clone(), "system:kube-controller-manager", "test");
        let mut controller = Namespaces::new(client.clone());
        let mut feed = Feed::open(&server.store, &controller.watched());
        let mut queue = Queue::default();
        for name in ["a", "b"] {
            let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}});
            client.create("namespaces", "", namespace).await.expect("a namespace");
            let held = json!({"apiVersion": "v1", "kind": "ConfigMap",
                "metadata": {"name": "held", "finalizers": ["example.com/mine"]}});
            client.create("configmaps", name, held).await.expect("what it has");
            client.delete("namespaces", "", name, &DeleteOptions::default()).await.expect("it is to go");
        }
        feed.drain(|change| controller.observe(change, &mut queue)).expect("in time");
        let mut begin = |name: &str| controller.begin(&name.into()).expect("work");
        let waiting = begin("a");
        assert_eq!(begin("b").await.expect("it goes"), Some(FIRST_LOOK));
        assert_eq!(begin("b").await.expect("it goes"), Some(FIRST_LOOK * 2), "nothing new: later");
        let conditions = |name: &str| {
            let namespace = client.get("namespaces", "", name).expect("it is held").value();
            namespace["status"]["conditions"].as_array().map_or(0, Vec::len)
        };
        assert_eq!((conditions("a"), conditions("b")), (0, 5));
        let released = client.update("configmaps", "b", "held", |held| {
            held["metadata"]["finalizers"] = json!([]);
            Ok(())
        });
        released.await.expect("written");
        assert_eq!(begin("b").await.expect("it goes"), None);
        assert!(client.get("namespaces", "", "b").is_none());
        assert_eq!(waiting.await.expect("it goes"), Some(FIRST_LOOK));
        assert_eq!(conditions("a"), 5);
    }
}
