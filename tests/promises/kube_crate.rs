//! The `kube` crate's client and watcher work unmodified.

use std::time::Duration;

use futures_util::TryStreamExt;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{Api, DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::runtime::{WatchStreamExt, watcher};
use tests::ApiServer;

/// A client with the admin's credentials.
pub async fn client(server: &ApiServer) -> kube::Client {
    let kubeconfig = kube::config::Kubeconfig::read_from(server.kubeconfig()).expect("the kubeconfig loads");
    let options = kube::config::KubeConfigOptions::default();
    let config = kube::Config::from_custom_kubeconfig(kubeconfig, &options).await.expect("the kubeconfig is complete");
    kube::Client::try_from(config).expect("the certificates fit")
}

fn config_map(name: &str) -> ConfigMap {
    serde_json::from_value(serde_json::json!({"metadata": {"name": name}, "data": {"key": "value"}}))
        .expect("a config map")
}

#[tokio::test]
async fn the_watcher_sees_creates_changes_and_deletes_across_a_restart() {
    let mut server = ApiServer::start("kube", &[]).expect("the server starts");
    let client = client(&server).await;
    let api: Api<ConfigMap> = Api::namespaced(client, "default");
    api.create(&PostParams::default(), &config_map("before")).await.expect("created");

    let (tell, mut told) = tokio::sync::mpsc::unbounded_channel();
    let watched = watcher(api.clone(), watcher::Config::default()).default_backoff().applied_objects();
    tokio::spawn(async move {
        let mut stream = std::pin::pin!(watched);
        loop {
            match stream.try_next().await {
                Ok(Some(object)) => {
                    tell.send((object.metadata.name.unwrap_or_default(), object.data.unwrap_or_default())).is_ok()
                }
                // The watcher reports a broken stream and takes it up again by itself.
                Err(_) => true,
                Ok(None) => return,
            };
        }
    });
    let mut wait_for = async |name: &str, value: &str| {
        tokio::time::timeout(Duration::from_secs(30), async {
            while let Some((seen, data)) = told.recv().await {
                if seen == name && data.get("key").is_some_and(|v| v == value) {
                    return;
                }
            }
            panic!("the watcher ended");
        })
        .await
        .unwrap_or_else(|_| panic!("{name} with {value} was not seen"));
    };
    wait_for("before", "value").await;
    let patch = serde_json::json!({"data": {"key": "changed"}});
    api.patch("before", &PatchParams::default(), &Patch::Merge(&patch)).await.expect("patched");
    wait_for("before", "changed").await;
    server.kill();
    server.launch().expect("the server starts again");
    api.create(&PostParams::default(), &config_map("after")).await.expect("created");
    wait_for("after", "value").await;

    let page = api.list(&ListParams::default().limit(1)).await.expect("listed");
    assert_eq!(page.items.len(), 1);
    assert!(page.metadata.continue_.is_some());
    api.delete("before", &DeleteParams::default()).await.expect("deleted");
    assert!(api.get_opt("before").await.expect("asked").is_none());
}
