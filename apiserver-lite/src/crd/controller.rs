//! The server's own work on definitions: names are accepted, versions served, instances removed with their definition.
//!
//! Part of the API server and not of the controllers that can be switched off. It waits on the store's events and looks
//! at all definitions after each batch of them; there are few, and names of one depend on the others.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use serde_json::Value;

use super::{names, registration};
use crate::request::User;
use crate::resource::Resource;
use crate::server::ApiServer;
use crate::status::{ApiError, Result};
use crate::store::{ObjectRef, ResourceId, Watcher};
use crate::write::{self, Target, WriteOptions};

/// Where definitions are stored.
pub const STORAGE: &str = "customresourcedefinitions.apiextensions.k8s.io";
/// Holds a definition until its instances are gone.
pub const FINALIZER: &str = "customresourcecleanup.apiextensions.k8s.io";

/// Time before a failed round is tried again.
const RETRY: Duration = Duration::from_secs(1);
/// Most time between two looks at a collection that is being emptied, beside its own events.
const PATIENCE: Duration = Duration::from_secs(5);

/// Serves what is defined already, then follows every change. Ends with the runtime.
///
/// # Panics
/// Never; a failed round is logged and tried again.
pub async fn run(server: Arc<ApiServer>, ready: tokio::sync::oneshot::Sender<()>) {
    let mut work = Work { server, served: BTreeMap::new(), announced: Vec::new(), cleaning: Arc::default() };
    let mut ready = Some(ready);
    loop {
        let from = work.server.store.revision();
        let Ok(mut watcher) = work.server.store.watch(&ResourceId::from(STORAGE), from) else { continue };
        let outcome = work.round().await;
        if let Some(ready) = ready.take() {
            // Nobody waits any more when the server is already stopping.
            let _ = ready.send(());
        }
        match outcome {
            Ok(()) => work.follow(&mut watcher).await,
            Err(error) => {
                tracing::warn!(%error, "definitions of custom resources are tried again");
                tokio::time::sleep(RETRY).await;
            }
        }
    }
}

/// One definition as it is served.
struct Served {
    uid: String,
    generation: i64,
    terminating: bool,
    names: Value,
    resources: Vec<Arc<Resource>>,
    /// Revision when it was first served.
    born: u64,
}

struct Work {
    server: Arc<ApiServer>,
    /// By name of the definition.
    served: BTreeMap<String, Served>,
    /// Group versions that an APIService was written for.
    announced: Vec<(String, String)>,
    /// Definitions whose instances are being removed.
    cleaning: Arc<Mutex<BTreeSet<String>>>,
}

impl Work {
    async fn follow(&mut self, watcher: &mut Watcher) {
        let mut events = Vec::new();
        loop {
            if watcher.next(&mut events).await.is_err() {
                return;
            }
            events.clear();
            if let Err(error) = self.round().await {
                tracing::warn!(%error, "definitions of custom resources are tried again");
                tokio::time::sleep(RETRY).await;
                return;
            }
        }
    }

    /// Brings registry, status and finalizers in line with all definitions.
    async fn round(&mut self) -> Result<()> {
        let snapshot = self.server.store.snapshot(&ResourceId::from(STORAGE));
        let definitions: Vec<(ObjectRef, Value)> = snapshot.range(None, None).map(|o| (o.clone(), o.value())).collect();
        let before = self.served.len();
        self.served.retain(|name, _| definitions.iter().any(|(o, _)| *o.key.name == **name));
        let mut changed = self.served.len() != before;
        let mut wanted = Vec::new();
        // What is accepted in this round counts for those that come later in it.
        let mut states: Vec<Value> = definitions.iter().map(|(_, value)| value.clone()).collect();
        for (index, (object, value)) in definitions.iter().enumerate() {
            let mut taken = names::Taken::default();
            let group = &value["spec"]["group"];
            let others = states.iter().enumerate().filter(|(at, o)| *at != index && o["spec"]["group"] == *group);
            others.for_each(|(_, other)| taken.add(other));
            let next = status_of(value, &taken);
            changed |= self.serve(object, &next);
            if next["status"] != value["status"] {
                wanted.push(next.clone());
            }
            states[index] = next;
        }
        if changed {
            self.publish();
        }
        // Clients are told that a definition is established after it is.
        for definition in wanted {
            self.write_status(&definition).await?;
        }
        if changed {
            self.announce().await?;
        }
        for definition in states.iter().filter(|d| d["metadata"]["deletionTimestamp"].is_string()) {
            if has_finalizer(definition) {
                let name = definition["metadata"]["name"].as_str().unwrap_or_default().to_owned();
                // One at a time; a definition of the same name that comes after has its own.
                if self.cleaning.lock().unwrap_or_else(PoisonError::into_inner).insert(name.clone()) {
                    tokio::spawn(clean_up(self.server.clone(), name, self.cleaning.clone()));
                }
            }
        }
        Ok(())
    }

    /// Takes a definition's state into what is served; true when that changes anything.
    fn serve(&mut self, object: &ObjectRef, definition: &Value) -> bool {
        let name = object.key.name.to_string();
        let held = !names::is_true(definition, "Established") && !names::trusts(definition);
        if held || !names::is_true(definition, "NamesAccepted") && !names::is_true(definition, "Established") {
            return self.served.remove(&name).is_some();
        }
        let uid = object.keys.uid.to_string();
        let generation = definition["metadata"]["generation"].as_i64().unwrap_or(0);
        let terminating = names::is_true(definition, "Terminating");
        let names = definition["status"]["acceptedNames"].clone();
        let known = self.served.get(&name);
        if known.is_some_and(|s| {
            s.uid == uid && s.generation == generation && s.terminating == terminating && s.names == names
        }) {
            return false;
        }
        // Of a definition that is met for the first time nobody knows under which schema its objects were stored.
        let since = match known {
            Some(served) if served.generation == generation && served.uid == uid => {
                served.resources.iter().filter_map(|r| r.definition.as_ref().map(|d| d.since)).max()
            }
            _ => None,
        };
        let now = self.server.store.revision();
        let born = known.filter(|s| s.uid == uid).map_or(now, |s| s.born);
        let resources = registration::resources(definition, since.unwrap_or(now), born);
        self.served.insert(name, Served { uid, generation, terminating, names, resources, born });
        true
    }

    fn publish(&self) {
        let mut all: Vec<Arc<Resource>> = self.served.values().flat_map(|s| s.resources.iter().cloned()).collect();
        all.sort_by(|a, b| {
            let by_group = a.group.cmp(&b.group);
            by_group
                .then_with(|| registration::compare_versions(&b.version, &a.version))
                .then_with(|| a.plural.cmp(&b.plural))
        });
        self.server.resources.set_custom(all);
    }

    /// Writes an APIService for each group version that is served, and removes those of others.
    async fn announce(&mut self) -> Result<()> {
        let Some(services) = self.server.resources.lookup("apiregistration.k8s.io", "v1", "apiservices") else {
            return Ok(());
        };
        let resources = self.served.values().flat_map(|s| &s.resources);
        let mut now: Vec<(String, String)> = resources.map(|r| (r.group.to_string(), r.version.to_string())).collect();
        now.sort();
        now.dedup();
        let user = User::system("system:apiserver");
        let options = WriteOptions { manager: "kube-apiserver".into(), user: user.clone(), ..WriteOptions::default() };
        for (group, version) in &now {
            let name = format!("{version}.{group}");
            if self.server.store.get(&services.storage, "", &name).is_some() {
                continue;
            }
            let service = registration::api_service(group, version);
            match write::create(&self.server, &services, "", service, &options, &user).await {
                Err(error) if !error.is_already_exists() => return Err(error),
                _ => {}
            }
            let target = Target { resource: &services, subresource: "status", namespace: "", name: &name };
            let said = write::update(&self.server, target, &options, |_, old| {
                let mut value = old.clone();
                value["status"] = crate::bootstrap::available();
                Ok(value)
            });
            gone_is_fine(said.await.map(|_| ()))?;
        }
        for (group, version) in self.announced.iter().filter(|gv| !now.contains(gv)) {
            let name = format!("{version}.{group}");
            let gone = write::delete(&self.server, &services, "", &name, &write::DeleteOptions::default()).await;
            gone_is_fine(gone.map(|_| ()))?;
        }
        self.announced = now;
        Ok(())
    }

    async fn write_status(&self, definition: &Value) -> Result<()> {
        let name = definition["metadata"]["name"].as_str().unwrap_or_default();
        let wanted = definition["status"].clone();
        let revision = definition["metadata"]["resourceVersion"].clone();
        let written = update_status(&self.server, name, |value| {
            // Changed meanwhile: its event is on the way and it is looked at again.
            if value["metadata"]["resourceVersion"] == revision {
                value["status"] = wanted.clone();
            }
        });
        gone_is_fine(written.await)
    }
}

fn gone_is_fine(outcome: Result<()>) -> Result<()> {
    match outcome {
        Err(error) if error.is_not_found() || error.is_conflict() => Ok(()),
        other => other,
    }
}

fn has_finalizer(definition: &Value) -> bool {
    definition["metadata"]["finalizers"].as_array().is_some_and(|f| f.iter().any(|f| f == FINALIZER))
}

/// A definition with the status that it should have.
fn status_of(definition: &Value, taken: &names::Taken) -> Value {
    let mut next = definition.clone();
    let (accepted, condition) = names::accept(definition, taken);
    let settled = definition["status"]["acceptedNames"] == accepted
        && names::find(definition, "NamesAccepted")
            .is_some_and(|c| c["status"] == condition["status"] && c["message"] == condition["message"]);
    let established = names::established(definition, &condition);
    let stays = names::find(definition, "Established")
        .is_some_and(|c| c["status"] == established["status"] && c["reason"] == established["reason"]);
    if !settled || !stays {
        next["status"]["acceptedNames"] = accepted;
        names::set(&mut next, condition);
        names::set(&mut next, established);
    }
    if let Some(approval) = names::approval(definition)
        && names::find(definition, "KubernetesAPIApprovalPolicyConformant")
            .is_none_or(|old| old["message"] != approval["message"])
    {
        names::set(&mut next, approval);
    }
    next
}

/// Changes a definition's status through the write path.
async fn update_status(server: &ApiServer, name: &str, change: impl Fn(&mut Value)) -> Result<()> {
    let resource = server.resources.lookup("apiextensions.k8s.io", "v1", "customresourcedefinitions");
    let resource = resource.ok_or_else(|| ApiError::internal("definitions are not served"))?;
    let user = User::system("system:apiserver");
    let options = WriteOptions { manager: "kube-apiserver".into(), user, ..WriteOptions::default() };
    let target = Target { resource: &resource, subresource: "status", namespace: "", name };
    let written = write::update(server, target, &options, |_, old| {
        let mut value = old.clone();
        change(&mut value);
        Ok(value)
    });
    written.await.map(|_| ())
}

/// Removes every instance of a definition that is going away, then lets go of the definition.
async fn clean_up(server: Arc<ApiServer>, name: String, cleaning: Arc<Mutex<BTreeSet<String>>>) {
    while let Err(error) = try_clean_up(&server, &name).await {
        tracing::warn!(%error, definition = name, "instances of a custom resource are not all gone yet");
        tokio::time::sleep(RETRY).await;
    }
    cleaning.lock().unwrap_or_else(PoisonError::into_inner).remove(&name);
}

async fn try_clean_up(server: &Arc<ApiServer>, name: &str) -> Result<()> {
    let Some(definition) = server.store.get(&ResourceId::from(STORAGE), "", name) else { return Ok(()) };
    let value = definition.value();
    let in_progress =
        names::condition("Terminating", "True", "InstanceDeletionInProgress", "CustomResource deletion is in progress");
    gone_is_fine(update_status(server, name, |value| names::set(value, in_progress.clone())).await)?;
    let done = if names::is_true(&value, "Established") {
        delete_instances(server, &value).await?;
        names::condition("Terminating", "False", "InstanceDeletionCompleted", "removed all instances")
    } else {
        names::condition("Terminating", "False", "NeverEstablished", "resource was never established")
    };
    gone_is_fine(update_status(server, name, |value| names::set(value, done.clone())).await)?;
    // Finalizers are metadata, which a status does not carry.
    let resource = server.resources.lookup("apiextensions.k8s.io", "v1", "customresourcedefinitions");
    let resource = resource.ok_or_else(|| ApiError::internal("definitions are not served"))?;
    let user = User::system("system:apiserver");
    let options = WriteOptions { manager: "kube-apiserver".into(), user, ..WriteOptions::default() };
    let target = Target { resource: &resource, subresource: "", namespace: "", name };
    let freed = write::update(server, target, &options, |_, old| {
        let mut value = old.clone();
        if let Some(list) = value["metadata"]["finalizers"].as_array_mut() {
            list.retain(|f| f != FINALIZER);
        }
        Ok(value)
    });
    gone_is_fine(freed.await.map(|_| ()))
}

/// Deletes every instance and waits until the last finalizer let go.
async fn delete_instances(server: &Arc<ApiServer>, definition: &Value) -> Result<()> {
    // The registry knows served versions alone; instances are stored whether or not any is.
    let Some(resource) = registration::stored(definition) else { return Ok(()) };
    let storage = &resource.storage;
    loop {
        let from = server.store.revision();
        let watcher = server.store.watch(storage, from);
        let snapshot = server.store.snapshot(storage);
        let left: Vec<ObjectRef> = snapshot.range(None, None).cloned().collect();
        if left.is_empty() {
            return Ok(());
        }
        for object in left.iter().filter(|o| !o.keys.deleting) {
            let (namespace, name) = (&object.key.namespace, &object.key.name);
            let gone = write::delete(server, &resource, namespace, name, &write::DeleteOptions::default()).await;
            gone_is_fine(gone.map(|_| ()))?;
        }
        if left.iter().any(|o| o.keys.deleting) || !server.store.snapshot(storage).is_empty() {
            // Someone else's finalizer: wait until something happens to one of them.
            let mut events = Vec::new();
            if let Ok(mut watcher) = watcher {
                let _ = tokio::time::timeout(PATIENCE, watcher.next(&mut events)).await;
            }
        }
    }
}
