//! What every namespace has: the service account `default` and the config map `kube-root-ca.crt`. Both come back when
//! they are deleted, and what somebody wrote into the map does not stay.

use std::collections::HashSet;
use std::sync::Arc;

use serde_json::{Value, json};
use tokio::time::Instant;

use super::ownership::is_terminating;
use super::queue::Queue;
use crate::request::User;
use crate::server::ApiServer;
use crate::status::{ApiError, Result};
use crate::store::{EventKind, ResourceId, Watcher};
use crate::write::{self, WriteOptions};

/// What to make.
pub struct Defaults {
    pub account: bool,
    /// The cluster's authority as PEM.
    pub root_ca: Option<String>,
}

const ROOT_CA: &str = "kube-root-ca.crt";
const DESCRIPTION: &str = "kubernetes.io/description";

/// Namespaces that are to be looked at; those that failed wait on their own, longer with each failure.
#[derive(Default)]
struct Round {
    queue: Queue<Box<str>>,
    /// Those whose failure was told of already.
    failing: HashSet<Box<str>>,
}

/// Runs until the runtime ends.
pub async fn run(server: Arc<ApiServer>, defaults: Defaults) {
    let mut round = Round::default();
    loop {
        let revision = server.store.revision();
        let watch = |name: &str| server.store.watch(&name.into(), revision);
        let watchers = (watch("namespaces"), watch("serviceaccounts"), watch("configmaps"));
        // An expired watch means that there was more to see than is kept: everything is looked at again.
        if let (Ok(mut namespaces), Ok(mut accounts), Ok(mut maps)) = watchers {
            round.add_all(&server);
            round.follow(&server, &defaults, &mut namespaces, &mut accounts, &mut maps).await;
        }
    }
}

impl Round {
    fn add_all(&mut self, server: &ApiServer) {
        let snapshot = server.store.snapshot(&"namespaces".into());
        for namespace in snapshot.range(None, None).filter(|n| !n.keys.deleting) {
            self.queue.add(namespace.key.name.clone());
        }
    }

    /// Handles namespaces and events until events are lost.
    async fn follow(
        &mut self,
        server: &ApiServer,
        defaults: &Defaults,
        namespaces: &mut Watcher,
        accounts: &mut Watcher,
        maps: &mut Watcher,
    ) {
        let (mut events, mut of_accounts, mut of_maps) = (Vec::new(), Vec::new(), Vec::new());
        loop {
            self.work(server, defaults).await;
            let due = self.queue.next_due();
            let wait = async {
                match due {
                    Some(due) => tokio::time::sleep_until(due).await,
                    None => std::future::pending().await,
                }
            };
            let waited = tokio::select! {
                waited = namespaces.next(&mut events) => waited,
                waited = accounts.next(&mut of_accounts) => waited,
                waited = maps.next(&mut of_maps) => waited,
                () = wait => Ok(()),
            };
            if waited.is_err() {
                return;
            }
            for event in events.drain(..).chain(of_accounts.drain(..)).chain(of_maps.drain(..)) {
                let key = &event.object.key;
                let namespace = match (key.namespace.is_empty(), event.kind) {
                    (true, EventKind::Added | EventKind::Modified) => &key.name,
                    (false, EventKind::Modified) if &*key.name == ROOT_CA => &key.namespace,
                    (false, EventKind::Deleted) if matches!(&*key.name, "default" | ROOT_CA) => &key.namespace,
                    _ => continue,
                };
                self.queue.add(namespace.clone());
            }
        }
    }

    /// Works on every namespace that is due.
    async fn work(&mut self, server: &ApiServer, defaults: &Defaults) {
        while let Some(namespace) = self.queue.pop(Instant::now()) {
            let result = ensure(server, defaults, &namespace).await;
            self.queue.done(&namespace);
            match result {
                Ok(()) => {
                    self.queue.succeeded(&namespace);
                    self.failing.remove(&namespace);
                }
                Err(error) => {
                    if self.failing.insert(namespace.clone()) {
                        tracing::warn!(%error, %namespace, "namespace defaults are tried again");
                    }
                    self.queue.failed(namespace);
                }
            }
        }
    }
}

async fn ensure(server: &ApiServer, defaults: &Defaults, namespace: &str) -> Result<()> {
    let living = server.store.get(&"namespaces".into(), "", namespace).is_some_and(|n| !n.keys.deleting);
    if !living {
        return Ok(());
    }
    let mut account = Ok(());
    if defaults.account {
        let value = json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "default"}});
        account = make(server, "serviceaccounts", namespace, value).await;
    }
    if let Some(pem) = &defaults.root_ca {
        let about = "Contains a CA bundle that can be used to verify the kube-apiserver when using internal endpoints \
                     such as the internal service IP or kubernetes.default.svc. No other usage is guaranteed across \
                     distributions of Kubernetes clusters.";
        let map = json!({"apiVersion": "v1", "kind": "ConfigMap", "data": {"ca.crt": pem},
            "metadata": {"name": ROOT_CA, "annotations": {DESCRIPTION: about}}});
        make(server, "configmaps", namespace, map.clone()).await?;
        correct(server, namespace, &map).await?;
    }
    // Neither waits for the other.
    account
}

/// Whether the map that is there says nothing else than it should, and what it is for.
fn is_right(there: &Value, map: &Value) -> bool {
    let about = there["metadata"]["annotations"][DESCRIPTION].as_str().unwrap_or_default();
    there["data"] == map["data"] && !about.is_empty()
}

/// Gives the map the data that it should have: the authority may be another one than that of an earlier start.
async fn correct(server: &ApiServer, namespace: &str, map: &Value) -> Result<()> {
    let there = server.store.get(&ResourceId::from("configmaps"), namespace, ROOT_CA);
    if there.is_none_or(|there| is_right(&there.value(), map)) {
        return Ok(());
    }
    let resource = server.resources.lookup("", "v1", "configmaps");
    let resource = resource.ok_or_else(|| ApiError::internal("configmaps are not served".to_owned()))?;
    let user = User::system("system:kube-controller-manager");
    let options = WriteOptions { manager: "kube-controller-manager".into(), user, ..WriteOptions::default() };
    let target = write::Target { resource: &resource, subresource: "", namespace, name: ROOT_CA };
    let written = write::update(server, target, &options, |_, old| {
        let mut new = old.clone();
        new["data"] = map["data"].clone();
        new["metadata"]["annotations"][DESCRIPTION] = map["metadata"]["annotations"][DESCRIPTION].clone();
        Ok(new)
    });
    match written.await {
        Ok(_) => Ok(()),
        Err(error) if error.is_not_found() => Ok(()),
        Err(error) => Err(error),
    }
}

async fn make(server: &ApiServer, plural: &str, namespace: &str, value: Value) -> Result<()> {
    let name = value["metadata"]["name"].as_str().unwrap_or_default().to_owned();
    if server.store.get(&ResourceId::from(plural), namespace, &name).is_some() {
        return Ok(());
    }
    let resource = server.resources.lookup("", "v1", plural);
    let resource = resource.ok_or_else(|| ApiError::internal(format!("{plural} are not served")))?;
    let options = WriteOptions { manager: "kube-controller-manager".into(), ..WriteOptions::default() };
    let user = User::system("system:kube-controller-manager");
    match write::create(server, &resource, namespace, value, &options, &user).await {
        Ok(_) => Ok(()),
        // Someone else made it, or the namespace went away meanwhile.
        Err(error) if error.is_already_exists() || is_terminating(&error) || error.is_not_found() => Ok(()),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client::Client;

    /// Data that somebody changed, or of an earlier authority, stayed.
    #[tokio::test]
    async fn the_authority_is_put_right_in_its_config_map() {
        let server = crate::serve::testing::server().await;
        let there = || {
            let map = server.store.get(&ResourceId::from("configmaps"), "default", ROOT_CA);
            map.expect("it is there").value()["data"].clone()
        };
        for authority in ["old", "new"] {
            let defaults = Defaults { account: false, root_ca: Some(authority.into()) };
            ensure(&server, &defaults, "default").await.expect("written");
            assert_eq!(there(), json!({"ca.crt": authority}));
        }
    }

    /// A map that nobody may change any more kept every namespace behind it from its own.
    #[tokio::test]
    async fn a_namespace_that_fails_keeps_no_other_from_its_defaults() {
        let server = crate::serve::testing::server().await;
        let client = Client::new(server.clone(), "system:kube-controller-manager", "test");
        let other = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "other"}});
        client.create("namespaces", "", other).await.expect("a namespace");
        let wrong = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": ROOT_CA}, "data": {"ca.crt": "x"},
            "immutable": true});
        client.create("configmaps", "default", wrong).await.expect("a map");
        let defaults = Defaults { account: false, root_ca: Some("right".into()) };
        let mut round = Round::default();
        for namespace in ["default", "other"] {
            round.queue.add(namespace.into());
        }
        round.work(&server, &defaults).await;
        let data = |namespace: &str| client.get("configmaps", namespace, ROOT_CA).map(|m| m.value()["data"].clone());
        assert_eq!(data("default"), Some(json!({"ca.crt": "x"})));
        assert_eq!(data("other"), Some(json!({"ca.crt": "right"})));
        assert!(round.failing.contains("default") && round.failing.len() == 1);
        assert!(round.queue.next_due().is_some(), "the one that failed is tried again");
    }
}
