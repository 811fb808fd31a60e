//! Autoscalers against a server in memory.

use super::*;

/// While one autoscaler waited for a server of metrics, no other was looked at.
#[tokio::test]
async fn several_autoscalers_are_worked_on_at_once_and_each_keeps_its_memory() {
    let server = crate::serve::testing::server().await;
    let client = Client::new(server, "system:kube-controller-manager", "test");
    let mut scalers = Autoscaler::new(client.clone(), Recorder::start(client.clone()));
    let labels = json!({"app": "a"});
    let deployment = json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "a"},
        "spec": {"replicas": 1, "selector": {"matchLabels": labels}, "template": {"metadata": {"labels": labels},
            "spec": {"containers": [{"name": "c", "image": "i"}]}}}});
    client.create("deployments.apps", "default", deployment).await.expect("a deployment");
    let behavior = json!({"scaleDown": {"stabilizationWindowSeconds": 0}});
    let key = |name: &str| Key::new("default", name);
    for name in ["hung", "other"] {
        let target = json!({"apiVersion": "apps/v1", "kind": "Deployment", "name": "a"});
        let scaler = json!({"apiVersion": KIND.1, "kind": KIND.0, "metadata": {"name": name}, "spec": {"minReplicas": 2,
            "maxReplicas": 9, "behavior": behavior, "scaleTargetRef": target}});
        client.create(SCALERS, "default", scaler).await.expect("an autoscaler");
    }
    let hung = scalers.begin(&key("hung")).expect("it is begun");
    let other = scalers.begin(&key("other")).expect("it is begun meanwhile");
    assert_eq!(other.await.expect("it goes"), Some(PERIOD));
    drop(hung);
    let scaled = client.get("deployments.apps", "default", "a").expect("it is there").value();
    assert_eq!(scaled["spec"]["replicas"], 2);
    // The one that it grew by counts among the four of this quarter of a minute.
    let history = &scalers.histories[&key("other")];
    let limited = history.lock().expect("nobody panicked").limit(&behavior, 2, 50, (1, 100));
    assert_eq!(limited.replicas, 5);
}
