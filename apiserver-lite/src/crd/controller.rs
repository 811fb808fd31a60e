//! The server's own work on definitions: names are accepted, versions served, instances removed with their definition.
//!
//! Part of the API server and not of the controllers that can be switched off. It waits on the store's events and looks
//! at all definitions after each batch of them; there are few, and names of one depend on the others.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use serde_json::Value;

use super::closing::Keeper;
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
    let mut work = Work::new(server);
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
    /// Those who follow its objects.
    keeper: Keeper,
}

struct Work {
    server: Arc<ApiServer>,
    /// By name of the definition.
    served: BTreeMap<String, Served>,
    /// What followed definitions as they were until the next publishing.
    retired: Vec<Keeper>,
    /// Group versions that an APIService was written for.
    announced: Vec<(String, String)>,
    /// Definitions whose instances are being removed.
    cleaning: Arc<Mutex<BTreeSet<String>>>,
}

impl Work {
    fn new(server: Arc<ApiServer>) -> Self {
        Work { server, served: BTreeMap::new(), retired: Vec::new(), announced: Vec::new(), cleaning: Arc::default() }
    }

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
        let gone = |name: &&String| definitions.iter().all(|(o, _)| *o.key.name != ***name);
        let gone: Vec<String> = self.served.keys().filter(gone).cloned().collect();
        let mut changed = !gone.is_empty();
        for name in gone {
            self.retire(&name);
        }
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
        if is_built_in(&self.server, &name) {
            return false;
        }
        let held = !names::is_true(definition, "Established") && !names::trusts(definition);
        if held || !names::is_true(definition, "NamesAccepted") && !names::is_true(definition, "Established") {
            return self.retire(&name);
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
        let now = self.server.store.revision();
        let born = known.filter(|s| s.uid == uid).map_or(now, |s| s.born);
        // Where it only began to go away, what is served is the same.
        let stays = known.is_some_and(|s| s.uid == uid && s.generation == generation && s.names == names);
        let keeper = match self.served.remove(&name) {
            Some(served) if stays => served.keeper,
            served => {
                self.retired.extend(served.map(|s| s.keeper));
                Keeper::default()
            }
        };
        let resources = registration::resources(definition, born, Some(&keeper));
        self.served.insert(name, Served { uid, generation, terminating, names, resources, born, keeper });
        true
    }

    /// Stops serving a definition; true when it was served.
    fn retire(&mut self, name: &str) -> bool {
        let served = self.served.remove(name);
        let was = served.is_some();
        self.retired.extend(served.map(|s| s.keeper));
        was
    }

    fn publish(&mut self) {
        // No follower takes what the new state writes, and none comes back before it is there.
        let now = self.server.store.revision();
        self.retired.iter().for_each(|keeper| keeper.begin(now));
        let mut all: Vec<Arc<Resource>> = self.served.values().flat_map(|s| s.resources.iter().cloned()).collect();
        all.sort_by(|a, b| {
            let by_group = a.group.cmp(&b.group);
            by_group
                .then_with(|| registration::compare_versions(&b.version, &a.version))
                .then_with(|| a.plural.cmp(&b.plural))
        });
        self.server.resources.set_custom(all);
        self.retired.clear();
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
            // One that somebody made stays: it sends to a server of theirs.
            if !self
                .server
                .store
                .get(&services.storage, "", &name)
                .is_some_and(|found| registration::is_announced(&found))
            {
                continue;
            }
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
    let done = if names::is_true(&value, "Established") && !is_built_in(server, name) {
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

/// Whether a definition is named as a kind of the server's own. That one is served, and its objects are not the
/// definition's.
fn is_built_in(server: &ApiServer, name: &str) -> bool {
    let id = ResourceId::from(name);
    server.resources.current().all().iter().any(|resource| !resource.custom && resource.storage == id)
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

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::samples;
    use super::*;
    use crate::client::Client;

    const NAME: &str = "foos.g.io";

    fn served(server: &ApiServer) -> Arc<Resource> {
        server.resources.lookup("g.io", "v1", "foos").expect("it is served")
    }

    fn closing(server: &ApiServer) -> super::super::Closing {
        served(server).definition.as_ref().and_then(|d| d.closing.clone()).expect("it is followed")
    }

    /// Who followed a kind went on with its definition as it was, whatever became of it.
    #[tokio::test]
    async fn followers_go_when_a_definition_says_something_else_and_when_it_is_gone() {
        let server = crate::serve::testing::server().await;
        let client = Client::new(server.clone(), "system:apiserver", "test");
        let mut definition = samples::definition(0, &[samples::version("v1", &["color"], &[])]);
        definition["metadata"] = json!({"name": NAME});
        definition["status"].take();
        client.create(STORAGE, "", definition).await.expect("a good definition");
        let mut work = Work::new(server.clone());
        for _ in 0..2 {
            work.round().await.expect("it is accepted");
        }
        let mut first = closing(&server);
        let going = names::condition("Terminating", "True", "X", "x");
        update_status(&server, NAME, |value| names::set(value, going.clone())).await.expect("it is there");
        work.round().await.expect("it is looked at");
        assert!(served(&server).definition.as_ref().is_some_and(|d| d.terminating));
        assert!(!first.has_begun() && !closing(&server).has_begun(), "what is served is the same");

        let resource = client.resource(STORAGE).expect("built in");
        let target = Target { resource: &resource, subresource: "", namespace: "", name: NAME };
        let options = WriteOptions::default();
        let changed = write::update(&server, target, &options, |_, old| {
            let mut value = old.clone();
            value["spec"]["versions"][0]["selectableFields"] = json!([{"jsonPath": ".spec.color"}]);
            Ok(value)
        });
        changed.await.expect("it is there");
        assert!(!first.has_begun());
        work.round().await.expect("it is looked at");
        first.ended().await;
        let mut second = closing(&server);
        assert!(!second.has_begun());
        assert_eq!(served(&server).definition.as_ref().map(|d| d.selectable().count()), Some(1));

        let options = write::DeleteOptions::default();
        write::delete(&server, &resource, "", NAME, &options).await.expect("it may go");
        while server.store.get(&STORAGE.into(), "", NAME).is_some() {
            work.round().await.expect("it is cleaned up");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        work.round().await.expect("it is gone");
        second.ended().await;
        assert!(server.resources.lookup("g.io", "v1", "foos").is_none());
    }

    /// Makes a definition, has it served, and takes it away again.
    async fn come_and_go(server: &Arc<ApiServer>, definition: Value) {
        let client = Client::new(server.clone(), "system:apiserver", "test");
        let definition = client.create(STORAGE, "", definition).await.expect("a good definition");
        let (mut work, name) = (Work::new(server.clone()), &definition.key.name);
        for _ in 0..2 {
            work.round().await.expect("it is accepted");
        }
        let resource = client.resource(STORAGE).expect("built in");
        write::delete(server, &resource, "", name, &write::DeleteOptions::default()).await.expect("it may go");
        while server.store.get(&STORAGE.into(), "", name).is_some() {
            work.round().await.expect("it is cleaned up");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        work.round().await.expect("it is gone");
    }

    /// A definition with the name of a built-in kind was served in its place, and took its objects along when it went.
    #[tokio::test]
    async fn kinds_of_the_servers_own_are_nobody_elses() {
        let server = crate::serve::testing::server().await;
        let client = Client::new(server.clone(), "system:apiserver", "test");
        let backend = json!({"service": {"name": "s", "port": {"number": 80}}});
        let ingress = json!({"apiVersion": "networking.k8s.io/v1", "kind": "Ingress", "metadata": {"name": "i"},
            "spec": {"defaultBackend": backend}});
        client.create("ingresses.networking.k8s.io", "default", ingress).await.expect("an ingress");
        let mut definition = samples::definition(0, &[samples::version("v1", &["color"], &[])]);
        definition["metadata"] = json!({"name": "ingresses.networking.k8s.io",
            "annotations": {"api-approved.kubernetes.io": "unapproved, for a test"}});
        definition["spec"]["group"] = "networking.k8s.io".into();
        definition["spec"]["names"] = json!({"plural": "ingresses", "singular": "ingress", "kind": "Ingress",
            "listKind": "IngressList"});
        definition["status"].take();
        come_and_go(&server, definition).await;
        let kind = server.resources.lookup("networking.k8s.io", "v1", "ingresses").expect("it is served");
        assert!(!kind.custom && server.store.get(&kind.storage, "default", "i").is_some());
    }

    /// An APIService that somebody had made went with the last definition of its group.
    #[tokio::test]
    async fn services_that_somebody_made_stay() {
        let server = crate::serve::testing::server().await;
        let client = Client::new(server.clone(), "system:apiserver", "test");
        let spec = json!({"group": "g.io", "version": "v1", "groupPriorityMinimum": 100, "versionPriority": 10,
            "service": {"namespace": "default", "name": "theirs"}, "insecureSkipTLSVerify": true});
        let theirs = json!({"apiVersion": "apiregistration.k8s.io/v1", "kind": "APIService",
            "metadata": {"name": "v1.g.io"}, "spec": spec});
        const SERVICES: &str = "apiservices.apiregistration.k8s.io";
        client.create(SERVICES, "", theirs).await.expect("a service");
        for (is_there, version) in [(true, "v1"), (false, "v2")] {
            let mut definition = samples::definition(0, &[samples::version(version, &["color"], &[])]);
            definition["metadata"] = json!({"name": NAME});
            definition["status"].take();
            come_and_go(&server, definition).await;
            assert_eq!(client.get(SERVICES, "", &format!("{version}.g.io")).is_some(), is_there);
        }
    }
}
