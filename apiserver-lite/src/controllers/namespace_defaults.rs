//! What every namespace has: the service account `default` and the config map `kube-root-ca.crt`. Both come back when
//! they are deleted.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};

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

/// Time before a failed round is tried again.
const RETRY: Duration = Duration::from_secs(1);

/// Runs until the runtime ends.
pub async fn run(server: Arc<ApiServer>, defaults: Defaults) {
    loop {
        let revision = server.store.revision();
        let watch = |name: &str| server.store.watch(&name.into(), revision);
        let watchers = (watch("namespaces"), watch("serviceaccounts"), watch("configmaps"));
        // An expired watch means that there was more to see than is kept: everything is looked at again.
        if let (Ok(mut namespaces), Ok(mut accounts), Ok(mut maps)) = watchers {
            match ensure_all(&server, &defaults).await {
                Ok(()) => follow(&server, &defaults, &mut namespaces, &mut accounts, &mut maps).await,
                Err(error) => {
                    tracing::warn!(%error, "namespace defaults are tried again");
                    tokio::time::sleep(RETRY).await;
                }
            }
        }
    }
}

async fn ensure_all(server: &ApiServer, defaults: &Defaults) -> Result<()> {
    let snapshot = server.store.snapshot(&"namespaces".into());
    for namespace in snapshot.range(None, None).filter(|n| !n.keys.deleting) {
        ensure(server, defaults, &namespace.key.name).await?;
    }
    Ok(())
}

/// Handles events until something goes wrong.
async fn follow(
    server: &ApiServer,
    defaults: &Defaults,
    namespaces: &mut Watcher,
    accounts: &mut Watcher,
    maps: &mut Watcher,
) {
    let (mut events, mut of_accounts, mut of_maps) = (Vec::new(), Vec::new(), Vec::new());
    loop {
        let waited = tokio::select! {
            waited = namespaces.next(&mut events) => waited,
            waited = accounts.next(&mut of_accounts) => waited,
            waited = maps.next(&mut of_maps) => waited,
        };
        if waited.is_err() {
            return;
        }
        for event in events.drain(..).chain(of_accounts.drain(..)).chain(of_maps.drain(..)) {
            let key = &event.object.key;
            let namespace = match (key.namespace.is_empty(), event.kind) {
                (true, EventKind::Added | EventKind::Modified) => &key.name,
                (false, EventKind::Deleted) if matches!(&*key.name, "default" | "kube-root-ca.crt") => &key.namespace,
                _ => continue,
            };
            if let Err(error) = ensure(server, defaults, namespace).await {
                tracing::warn!(%error, %namespace, "namespace defaults are tried again");
                tokio::time::sleep(RETRY).await;
                return;
            }
        }
    }
}

async fn ensure(server: &ApiServer, defaults: &Defaults, namespace: &str) -> Result<()> {
    let living = server.store.get(&"namespaces".into(), "", namespace).is_some_and(|n| !n.keys.deleting);
    if !living {
        return Ok(());
    }
    if defaults.account {
        let account = json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "default"}});
        make(server, "serviceaccounts", namespace, account).await?;
    }
    if let Some(pem) = &defaults.root_ca {
        let about = "Contains a CA bundle that can be used to verify the kube-apiserver when using internal endpoints \
                     such as the internal service IP or kubernetes.default.svc. No other usage is guaranteed across \
                     distributions of Kubernetes clusters.";
        let map = json!({"apiVersion": "v1", "kind": "ConfigMap", "data": {"ca.crt": pem},
            "metadata": {"name": "kube-root-ca.crt", "annotations": {"kubernetes.io/description": about}}});
        make(server, "configmaps", namespace, map).await?;
    }
    Ok(())
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
        Err(error) if error.is_already_exists() || error.code() == 403 || error.is_not_found() => Ok(()),
        Err(error) => Err(error),
    }
}
