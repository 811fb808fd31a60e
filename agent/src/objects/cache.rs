//! Config maps, secrets and services of the pods of this node, kept current by one watch each; the trust bundles of the
//! cluster by one watch for all, while some pod takes from them.
//!
//! The first pod that refers to an object begins its watch, and each use reads the object until the watch has told of it; the
//! last pod that referred to it ends the watch and drops the object. Immutable objects need no watch. An object that no
//! registered pod refers to is read and not kept. The services of a namespace are followed while it has pods here.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use proto::api::core::v1::{ConfigMap, Node, Pod, Secret, Service};
use tokio::sync::watch;
use tokio::task::AbortHandle;
use tokio::time::Instant;

use super::references::{self, References};
use super::{Answer, ObjectError, Objects, TrustBundles};
use crate::api::{Change, Client, Kind, Reflector};
use crate::config::Configuration;

/// How long a pod start waits for the first list of services before it is tried again.
const FIRST_LIST: Duration = Duration::from_secs(10);
/// Headless services give no variables.
const WITH_ADDRESS: &str = "spec.clusterIP!=None";

/// `configMapAndSecretChangeDetectionStrategy`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Strategy {
    /// Keep objects current by watches.
    #[default]
    Watch,
    /// Read the object when what is kept is too old, or a pod has come to refer to it since. That there is none is not kept.
    Cache,
    /// Read the object at each use.
    Get,
}

impl Strategy {
    /// As configured.
    ///
    /// # Errors
    /// Nobody knows it.
    pub fn of(config: &Configuration) -> Result<Self, String> {
        match config.config_map_and_secret_change_detection_strategy.as_str() {
            "Watch" => Ok(Self::Watch),
            "Cache" => Ok(Self::Cache),
            "Get" => Ok(Self::Get),
            other => Err(format!("unknown configmap and secret manager mode: {other}")),
        }
    }
}

/// How long [`Strategy::Cache`] keeps an object: as the control plane says for the size of the cluster, else a minute.
pub fn kept_for(node: &Node) -> Duration {
    let text = node.metadata.as_ref().and_then(|m| m.annotations.get("node.alpha.kubernetes.io/ttl"));
    text.and_then(|seconds| seconds.parse().ok()).map_or(Duration::from_secs(60), Duration::from_secs)
}

/// The API server's objects; see the module.
pub struct ApiObjects {
    client: Client,
    strategy: Strategy,
    /// For [`Strategy::Cache`].
    kept_for: Box<dyn Fn() -> Duration + Send + Sync>,
    /// Whether pods may have trust bundles.
    trust_bundles: bool,
    tables: Mutex<Tables>,
}

type Services = BTreeMap<String, Arc<Service>>;

#[derive(Default)]
struct Tables {
    config_maps: BTreeMap<(String, String), Entry<ConfigMap>>,
    secrets: BTreeMap<(String, String), Entry<Secret>>,
    services: BTreeMap<String, Follower<Services>>,
    kubernetes: Option<Follower<Option<Arc<Service>>>>,
    trust_bundles: Option<Follower<TrustBundles>>,
    /// How often some pod came to refer to something.
    comers: u64,
    /// What each registered pod, by uid, refers to.
    pods: BTreeMap<String, (String, References)>,
}

struct Entry<T> {
    pods: BTreeSet<String>,
    value: Option<Follower<Option<Arc<T>>>>,
    /// An immutable object: known for good.
    fixed: Option<Arc<T>>,
    /// What was read last, and when; gone when one more pod refers to it.
    read: Option<(Option<Arc<T>>, Instant)>,
    /// The last pod that came to refer to it, as a number of its own: what was asked for before says nothing to that pod.
    last_comer: u64,
}

/// A task that follows the API server and what it has seen so far; None before the first list.
struct Follower<V> {
    seen: watch::Receiver<Option<V>>,
    task: AbortHandle,
}

impl<V> Drop for Follower<V> {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Tables {
    /// The services of a namespace, and `default/kubernetes`; from the first call on they are followed.
    fn services(&mut self, client: &Client, namespace: &str) -> (&Follower<Services>, &Follower<Option<Arc<Service>>>) {
        let begin = || follow_all(client, namespace, WITH_ADDRESS);
        let own = self.services.entry(namespace.to_owned()).or_insert_with(begin);
        let kubernetes = self.kubernetes.get_or_insert_with(|| follow_one(client, "default", "kubernetes"));
        (own, kubernetes)
    }
}

trait Held: Kind {
    fn table(tables: &mut Tables) -> &mut BTreeMap<(String, String), Entry<Self>>;
    fn is_immutable(&self) -> bool;
}

impl Held for ConfigMap {
    fn table(tables: &mut Tables) -> &mut BTreeMap<(String, String), Entry<Self>> {
        &mut tables.config_maps
    }
    fn is_immutable(&self) -> bool {
        self.immutable.unwrap_or(false)
    }
}

impl Held for Secret {
    fn table(tables: &mut Tables) -> &mut BTreeMap<(String, String), Entry<Self>> {
        &mut tables.secrets
    }
    fn is_immutable(&self) -> bool {
        self.immutable.unwrap_or(false)
    }
}

impl ApiObjects {
    /// Begins no watch yet; must be used inside a tokio runtime.
    pub fn new(client: Client, strategy: Strategy) -> Self {
        let kept_for = Box::new(|| kept_for(&Node::default()));
        ApiObjects { client, strategy, kept_for, trust_bundles: false, tables: Mutex::new(Tables::default()) }
    }

    /// The same with another age that objects may have under [`Strategy::Cache`].
    pub fn keeping_for(self, age: impl Fn() -> Duration + Send + Sync + 'static) -> Self {
        ApiObjects { kept_for: Box::new(age), ..self }
    }

    /// The same with trust bundles, where the node is to project them.
    pub fn with_trust_bundles(self, enabled: bool) -> Self {
        ApiObjects { trust_bundles: enabled, ..self }
    }

    fn tables(&self) -> MutexGuard<'_, Tables> {
        self.tables.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn object<T: Held>(&self, namespace: &str, name: &str) -> Result<Arc<T>, ObjectError> {
        let key = (namespace.to_owned(), name.to_owned());
        if let Some(known) = self.known::<T>(&key) {
            return known.ok_or_else(|| missing::<T>(name));
        }
        let asked_for = self.last_comer::<T>(&key);
        let answer = self.client.get::<T>(namespace, name).await;
        let object = match answer {
            Ok(object) => Some(Arc::new(object)),
            Err(error) if error.is_not_found() => None,
            // What is too old is better than nothing, while nobody can be asked.
            Err(error) => return self.stale::<T>(&key).unwrap_or_else(|| Err(ObjectError::Api(Arc::new(error)))),
        };
        let mut tables = self.tables();
        if self.strategy == Strategy::Cache
            && let Some(entry) = T::table(&mut tables).get_mut(&key)
            && Some(entry.last_comer) == asked_for
        {
            entry.read = Some((object.clone(), Instant::now()));
        }
        if self.strategy == Strategy::Watch
            && let Some(object) = object.as_ref().filter(|object| object.is_immutable())
            && let Some(entry) = T::table(&mut tables).get_mut(&key)
        {
            (entry.fixed, entry.value) = (Some(object.clone()), None);
        }
        drop(tables);
        object.ok_or_else(|| missing::<T>(name))
    }

    fn last_comer<T: Held>(&self, key: &(String, String)) -> Option<u64> {
        T::table(&mut self.tables()).get(key).map(|entry| entry.last_comer)
    }

    /// What was read once, however long ago.
    fn stale<T: Held>(&self, key: &(String, String)) -> Option<Result<Arc<T>, ObjectError>> {
        let (object, _) = T::table(&mut self.tables()).get(key)?.read.clone()?;
        Some(object.ok_or_else(|| missing::<T>(&key.1)))
    }

    /// What is known without asking: None when nothing is, `Some(None)` when the object does not exist.
    fn known<T: Held>(&self, key: &(String, String)) -> Option<Option<Arc<T>>> {
        let mut tables = self.tables();
        let entry = T::table(&mut tables).get_mut(key)?;
        if let Some(fixed) = &entry.fixed {
            return Some(Some(fixed.clone()));
        }
        // One that did not exist may do so by now, and some pod waits for it.
        if let Some((Some(object), at)) = &entry.read
            && at.elapsed() < (self.kept_for)()
        {
            return Some(Some(object.clone()));
        }
        let seen = entry.value.as_ref()?.seen.borrow().clone()?;
        if let Some(object) = seen.as_ref().filter(|o| o.is_immutable()) {
            entry.fixed = Some(object.clone());
            entry.value = None;
        }
        Some(seen)
    }

    async fn all_trust_bundles(&self) -> Result<TrustBundles, ObjectError> {
        if !self.trust_bundles {
            return Err(ObjectError::NoBundles);
        }
        let mut seen = {
            let mut tables = self.tables();
            let client = &self.client;
            tables.trust_bundles.get_or_insert_with(|| follow_all(client, "", "")).seen.clone()
        };
        let listed = tokio::time::timeout(FIRST_LIST, seen.wait_for(Option::is_some)).await;
        listed.ok().and_then(Result::ok).and_then(|seen| seen.clone()).ok_or(ObjectError::NoBundlesYet)
    }

    async fn services_of(&self, namespace: &str) -> Result<Vec<Arc<Service>>, ObjectError> {
        let (mut own, mut kubernetes) = {
            let mut tables = self.tables();
            let (own, kubernetes) = tables.services(&self.client, namespace);
            (own.seen.clone(), kubernetes.seen.clone())
        };
        let both = async {
            let own = own.wait_for(Option::is_some).await.ok().and_then(|s| s.clone());
            let kubernetes = kubernetes.wait_for(Option::is_some).await.ok().and_then(|s| s.clone());
            own.zip(kubernetes)
        };
        let (own, kubernetes) =
            tokio::time::timeout(FIRST_LIST, both).await.ok().flatten().ok_or(ObjectError::NotSynced)?;
        Ok(together(namespace, own, kubernetes))
    }

    /// A pod comes to refer to an object, which is followed from then on: when it is asked for, the API server may be away.
    fn hold<T: Held>(&self, tables: &mut Tables, namespace: &str, name: &str, uid: &str) {
        let key = (namespace.to_owned(), name.to_owned());
        tables.comers += 1;
        let comer = tables.comers;
        let entry = T::table(tables).entry(key).or_insert_with(|| Entry {
            pods: BTreeSet::new(),
            value: None,
            fixed: None,
            read: None,
            last_comer: 0,
        });
        // A pod that comes is to see what there is now. One that is gone over once more is not, or nothing would be kept.
        if entry.pods.insert(uid.to_owned()) {
            entry.read = None;
            entry.last_comer = comer;
        }
        if self.strategy == Strategy::Watch && entry.fixed.is_none() && entry.value.is_none() {
            entry.value = Some(follow_one(&self.client, namespace, name));
        }
    }
}

impl Objects for ApiObjects {
    fn config_map<'a>(&'a self, namespace: &'a str, name: &'a str) -> Answer<'a, Result<Arc<ConfigMap>, ObjectError>> {
        Box::pin(self.object(namespace, name))
    }

    fn secret<'a>(&'a self, namespace: &'a str, name: &'a str) -> Answer<'a, Result<Arc<Secret>, ObjectError>> {
        Box::pin(self.object(namespace, name))
    }

    fn services<'a>(&'a self, namespace: &'a str) -> Answer<'a, Result<Vec<Arc<Service>>, ObjectError>> {
        Box::pin(self.services_of(namespace))
    }

    fn known_services(&self, namespace: &str) -> Vec<Arc<Service>> {
        let mut tables = self.tables();
        let (own, kubernetes) = tables.services(&self.client, namespace);
        let (own, kubernetes) = (own.seen.borrow().clone(), kubernetes.seen.borrow().clone());
        together(namespace, own.unwrap_or_default(), kubernetes.flatten())
    }

    fn trust_bundles(&self) -> Answer<'_, Result<TrustBundles, ObjectError>> {
        Box::pin(self.all_trust_bundles())
    }

    fn register(&self, pod: &Pod) {
        let mut tables = self.tables();
        let (uid, namespace) = (pod.uid().to_owned(), pod.namespace().to_owned());
        let wanted = references::of(pod);
        let before = tables.pods.insert(uid.clone(), (namespace.clone(), References::default()));
        for name in &wanted.config_maps {
            self.hold::<ConfigMap>(&mut tables, &namespace, name, &uid);
        }
        for name in &wanted.secrets {
            self.hold::<Secret>(&mut tables, &namespace, name, &uid);
        }
        if let Some((_, before)) = before {
            for name in before.config_maps.difference(&wanted.config_maps) {
                release::<ConfigMap>(&mut tables, &namespace, name, &uid);
            }
            for name in before.secrets.difference(&wanted.secrets) {
                release::<Secret>(&mut tables, &namespace, name, &uid);
            }
        }
        tables.services(&self.client, &namespace);
        tables.pods.insert(uid, (namespace, wanted));
    }

    fn unregister(&self, pod_uid: &str) {
        let mut tables = self.tables();
        let Some((namespace, held)) = tables.pods.remove(pod_uid) else { return };
        for name in &held.config_maps {
            release::<ConfigMap>(&mut tables, &namespace, name, pod_uid);
        }
        for name in &held.secrets {
            release::<Secret>(&mut tables, &namespace, name, pod_uid);
        }
        if !tables.pods.values().any(|(other, _)| *other == namespace) {
            tables.services.remove(&namespace);
        }
        if tables.pods.is_empty() {
            tables.kubernetes = None;
        }
        if held.trust_bundles && !tables.pods.values().any(|(_, others)| others.trust_bundles) {
            tables.trust_bundles = None;
        }
    }
}

fn missing<T: Kind>(name: &str) -> ObjectError {
    // The kubelet's own cache names the resource in the singular, and messages show it.
    let kind = match T::PLURAL {
        "configmaps" => "configmap",
        "secrets" => "secret",
        other => other,
    };
    ObjectError::NotFound { kind, name: name.to_owned() }
}

/// What gives variables in a namespace. In its own, `kubernetes` is among the others.
fn together(namespace: &str, own: Services, kubernetes: Option<Arc<Service>>) -> Vec<Arc<Service>> {
    own.into_values().chain(kubernetes.filter(|_| namespace != "default")).collect()
}

fn release<T: Held>(tables: &mut Tables, namespace: &str, name: &str, uid: &str) {
    let key = (namespace.to_owned(), name.to_owned());
    let table = T::table(tables);
    if let Some(entry) = table.get_mut(&key) {
        entry.pods.remove(uid);
        if entry.pods.is_empty() {
            table.remove(&key);
        }
    }
}

fn follow_one<T: Kind>(client: &Client, namespace: &str, name: &str) -> Follower<Option<Arc<T>>> {
    let (sender, seen) = watch::channel(None);
    let mut reflector: Reflector<T> = Reflector::new(client.clone(), namespace, &format!("metadata.name={name}"));
    let task = tokio::spawn(async move {
        while !sender.is_closed() {
            let value = match reflector.next().await {
                Change::Listed(list) => list.into_iter().next().map(Arc::new),
                Change::Applied(object) => Some(Arc::new(object)),
                Change::Deleted(_) => None,
            };
            sender.send_replace(Some(value));
        }
    });
    Follower { seen, task: task.abort_handle() }
}

fn follow_all<T: Kind>(client: &Client, namespace: &str, fields: &str) -> Follower<BTreeMap<String, Arc<T>>> {
    let (sender, seen) = watch::channel(None);
    let mut reflector: Reflector<T> = Reflector::new(client.clone(), namespace, fields);
    let task = tokio::spawn(async move {
        while !sender.is_closed() {
            let change = reflector.next().await;
            sender.send_modify(|seen: &mut Option<BTreeMap<String, Arc<T>>>| {
                let map = seen.get_or_insert_default();
                match change {
                    Change::Listed(list) => {
                        *map = list.into_iter().map(|o| (o.name().to_owned(), Arc::new(o))).collect();
                    }
                    Change::Applied(object) => {
                        map.insert(object.name().to_owned(), Arc::new(object));
                    }
                    Change::Deleted(object) => {
                        map.remove(object.name());
                    }
                }
            });
        }
    });
    Follower { seen, task: task.abort_handle() }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use bytes::Bytes;
    use http::{Request, Response, header};
    use http_body_util::{BodyExt as _, Full};
    use proto::api::core::v1::PodSpec;

    use super::*;
    use crate::api::{ApiError, Body, ClientOptions, Transport};

    /// A server that tells what there is to whom lists it, while it is there, and notes what it was asked.
    #[derive(Default)]
    struct Server {
        away: AtomicBool,
        asked: Mutex<Vec<String>>,
    }

    impl Transport for Server {
        fn send<'a>(&'a self, request: Request<Bytes>) -> Answer<'a, Result<Response<Body>, ApiError>> {
            if self.away.load(Ordering::Relaxed) {
                return Box::pin(std::future::ready(Err(ApiError::Connect("refused".into()))));
            }
            if request.uri().query().is_some_and(|query| query.contains("watch=")) {
                return Box::pin(std::future::pending());
            }
            self.asked.lock().unwrap_or_else(PoisonError::into_inner).push(request.uri().to_string());
            let (kind, namespace, name) = match request.uri().path() {
                "/api/v1/namespaces/ns/configmaps" => ("ConfigMap", "ns", "settings"),
                "/api/v1/namespaces/ns/secrets" => ("Secret", "ns", "key"),
                "/api/v1/namespaces/ns/services" => ("Service", "ns", "web"),
                _ => ("Service", "default", "kubernetes"),
            };
            let text = format!(
                r#"{{"kind":"{kind}List","apiVersion":"v1","metadata":{{"resourceVersion":"7"}},
                    "items":[{{"metadata":{{"name":"{name}","namespace":"{namespace}"}}}}]}}"#
            );
            let answer = Response::builder()
                .header(header::CONTENT_TYPE, "application/json")
                .body(Full::new(Bytes::from(text)).map_err(Into::into).boxed_unsync())
                .map_err(|e| ApiError::Malformed(e.to_string()));
            Box::pin(std::future::ready(answer))
        }
    }

    fn objects() -> (Arc<Server>, ApiObjects) {
        let server = Arc::new(Server::default());
        let client = Client::new(server.clone(), &ClientOptions::default());
        (server, ApiObjects::new(client, Strategy::Watch))
    }

    fn names(services: &[Arc<Service>]) -> Vec<&str> {
        services.iter().map(|service| service.name()).collect()
    }

    /// A container that an agent before this one had started stayed down when it crashed while the API server was away.
    #[tokio::test(start_paused = true)]
    async fn what_a_pod_refers_to_is_known_before_it_is_asked_for() {
        let (server, objects) = objects();
        let json = r#"{"containers":[{"name":"c","envFrom":[{"configMapRef":{"name":"settings"}},
            {"secretRef":{"name":"key"}}]}]}"#;
        let spec: serde_json::Value = serde_json::from_str(json).expect("text");
        let spec: PodSpec = crate::wire_json::from_value("k8s.io.api.core.v1.PodSpec", &spec).expect("a spec");
        let mut pod = Pod { spec: Some(spec), ..Pod::default() };
        let meta = pod.metadata.get_or_insert_default();
        (meta.namespace, meta.uid) = ("ns".into(), "u".into());
        objects.register(&pod);
        tokio::time::sleep(Duration::from_secs(1)).await;
        server.away.store(true, Ordering::Relaxed);
        objects.register(&pod);
        assert!(objects.config_map("ns", "settings").await.is_ok());
        assert!(objects.secret("ns", "key").await.is_ok());
        assert_eq!(names(&objects.services("ns").await.expect("known")), ["web", "kubernetes"]);
        let asked = server.asked.lock().unwrap_or_else(PoisonError::into_inner).len();
        assert_eq!(asked, 4, "each of them once");
    }

    /// A control plane that was to start on this node waited for its own API server.
    #[tokio::test(start_paused = true)]
    async fn services_that_are_known_are_not_waited_for() {
        let (server, objects) = objects();
        server.away.store(true, Ordering::Relaxed);
        let begun = Instant::now();
        assert!(objects.known_services("ns").is_empty());
        assert!(begun.elapsed().is_zero());
        assert!(matches!(objects.services("ns").await, Err(ObjectError::NotSynced)));
        server.away.store(false, Ordering::Relaxed);
        tokio::time::sleep(Duration::from_secs(60)).await;
        assert_eq!(names(&objects.known_services("ns")), ["web", "kubernetes"]);
        assert_eq!(names(&objects.known_services("default")), Vec::<&str>::new(), "not yet listed");
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert_eq!(names(&objects.known_services("default")), ["kubernetes"]);
    }
}
