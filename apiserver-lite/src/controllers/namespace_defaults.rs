//! What every namespace has: the service account `default` and the config map `kube-root-ca.crt`. Both come back when
//! they are deleted, and what somebody wrote into the map does not stay.

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

const ROOT_CA: &str = "kube-root-ca.crt";
const DESCRIPTION: &str = "kubernetes.io/description";

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
                (false, EventKind::Modified) if &*key.name == ROOT_CA => &key.namespace,
                (false, EventKind::Deleted) if matches!(&*key.name, "default" | ROOT_CA) => &key.namespace,
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
            "metadata": {"name": ROOT_CA, "annotations": {DESCRIPTION: about}}});
        make(server, "configmaps", namespace, map.clone()).await?;
        correct(server, namespace, &map).await?;
    }
    Ok(())
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
    let options = WriteOptions { manager: "kube-controller-manager".into(), ..WriteOptions::default() };
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
        Err(error) if error.is_already_exists() || error.code() == 403 || error.is_not_found() => Ok(()),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
}
