//! A node with a NoExecute taint takes only pods that tolerate it, and its own static pods.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use tests::ApiServer;
use tests::node::{IMAGE, Node};
use tests::pods::Pods;

const SETTINGS: &str = "registerWithTaints:\n- {key: example.com/team, value: blue, effect: NoExecute}\n\
                        - {key: example.com/full, effect: NoSchedule}\n";
const REFUSED: &str =
    "Pod was rejected: Predicate TaintToleration failed: node(s) had taints that the pod didn't tolerate";

fn tolerating(tolerations: &Value) -> Value {
    json!({"tolerations": tolerations, "containers": [Pods::shell("exec sleep 1000", &json!({}))]})
}

fn manifest() -> Value {
    let main = json!({"name": "main", "image": IMAGE, "command": ["sh", "-c", "exec sleep 1000"]});
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "own"},
        "spec": {"terminationGracePeriodSeconds": 1, "containers": [main]}})
}

/// Runs, and the pod that the API server has for it says that it tolerates whatever ends pods.
fn static_pods(pods: &Pods) -> Result<()> {
    std::fs::write(pods.node.manifests().join("own.json"), manifest().to_string())?;
    let name = format!("own-{}", pods.node.name);
    pods.wait_phase(&name, "Running")?;
    let pod = pods.server.get("pod", &name)?;
    let tolerations = pod["spec"]["tolerations"].as_array().context("tolerations")?;
    let all = json!({"operator": "Exists", "effect": "NoExecute"});
    ensure!(tolerations.contains(&all), "{tolerations:?}");
    Ok(())
}

#[test]
fn a_node_with_a_taint_takes_only_pods_that_tolerate_it() -> Result<()> {
    if tests::no_node() {
        return Ok(());
    }
    // The controller would delete the refused pods, which are to be looked at.
    let server = ApiServer::start("taints", &["--controllers=*,-taint-eviction-controller"])?;
    let node = Node::start("taints-node", &server, SETTINGS)?;
    let pods = Pods { node, server };
    let wrong = json!([{"key": "example.com/team", "value": "red", "effect": "NoExecute"}]);
    let other_effect = json!([{"key": "example.com/team", "operator": "Exists", "effect": "NoSchedule"}]);
    let refused =
        [("none", tolerating(&json!([]))), ("wrong", tolerating(&wrong)), ("other", tolerating(&other_effect))];
    let value = json!([{"key": "example.com/team", "value": "blue", "effect": "NoExecute"}]);
    let key = json!([{"key": "example.com/team", "operator": "Exists"}]);
    // Of the other taint, which keeps pods from being scheduled, the node thinks nothing.
    let taken = [("value", tolerating(&value)), ("key", tolerating(&key))];
    for (name, spec) in refused.iter().chain(&taken) {
        pods.create(name, spec)?;
    }
    for (name, _) in &refused {
        let status = pods.wait_phase(name, "Failed")?;
        ensure!(status["reason"] == "TaintToleration" && status["message"] == REFUSED, "{name}: {status:#}");
        pods.node.wait_until("it is told", Duration::from_secs(20), || {
            Ok(pods.events(name, "TaintToleration")?.iter().any(|said| REFUSED.ends_with(said.as_str())))
        })?;
    }
    for (name, _) in &taken {
        pods.wait_phase(name, "Running")?;
    }
    static_pods(&pods)?;
    // A taint that comes later refuses later pods, and one that is gone does not.
    pods.server.kubectl(&["taint", "node", &pods.node.name, "example.com/team-"])?;
    let mut attempt = 0;
    pods.node.wait_until("a pod that tolerates nothing runs", Duration::from_secs(60), || {
        attempt += 1;
        let name = format!("later-{attempt}");
        pods.create(&name, &tolerating(&json!([])))?;
        let status = pods.wait(&name, "it is judged", |s| s["phase"] == "Running" || s["phase"] == "Failed")?;
        Ok(status["phase"] == "Running")
    })
}
