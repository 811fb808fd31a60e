//! A node takes the pods that fit it, and tells the others why not, in words that controllers know.

use anyhow::{Result, ensure};
use serde_json::{Value, json};
use tests::pods::{Pods, condition};

fn asks(what: &str, amount: &str) -> Value {
    json!({"containers": [Pods::shell("exec sleep 1000", &json!({"resources": {"requests": {what: amount}}}))]})
}

fn selects(term: Value) -> Value {
    let required = json!({"nodeSelectorTerms": [{"matchExpressions": [term]}]});
    json!({"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}},
        "containers": [Pods::shell("exec sleep 1000", &json!({}))]})
}

#[test]
fn a_node_takes_what_fits_and_says_what_does_not() -> Result<()> {
    if tests::no_node() {
        return Ok(());
    }
    let pods = Pods::start("admission-node", "maxPods: 3\n")?;
    let plain = || json!({"containers": [Pods::shell("exec sleep 1000", &json!({}))]});
    let mut windows = plain();
    windows["os"] = json!({"name": "windows"});
    let mut selector = plain();
    selector["nodeSelector"] = json!({"disk": "fast"});
    let cases = [
        (
            "selector",
            selector,
            "NodeAffinity",
            "Pod was rejected: Predicate NodeAffinity failed: node(s) didn't match Pod's node affinity/selector",
        ),
        ("affinity", selects(json!({"key": "disk", "operator": "Exists"})), "NodeAffinity", "Pod was rejected: "),
        (
            "cpu",
            asks("cpu", "1000"),
            "OutOfcpu",
            "Pod was rejected: Node didn't have enough resource: cpu, requested: 1000000, used: ",
        ),
        (
            "memory",
            asks("memory", "1000Ti"),
            "OutOfmemory",
            "Pod was rejected: Node didn't have enough resource: memory, requested: ",
        ),
        (
            "storage",
            asks("ephemeral-storage", "1000Ti"),
            "OutOfephemeral-storage",
            "Pod was rejected: Node didn't have enough resource: ",
        ),
        ("windows", windows, "PodOSNotSupported", "Pod was rejected: "),
    ];
    for (name, spec, ..) in &cases {
        pods.create(name, spec)?;
    }
    for (name, _, reason, message) in &cases {
        let status = pods.wait_phase(name, "Failed")?;
        let said = status["message"].as_str().unwrap_or_default();
        ensure!(status["reason"] == *reason && said.starts_with(message), "{name}: {status:#}");
        ensure!(
            status["containerStatuses"].as_array().is_none_or(|c| c.iter().all(|c| c["state"]["running"].is_null())),
            "{status:#}"
        );
        pods.node.wait_until("it is told", std::time::Duration::from_secs(20), || {
            Ok(!pods.events(name, reason)?.is_empty())
        })?;
    }
    // Those that were refused take no room; those that run do.
    let names = ["one", "two", "three"];
    for name in names {
        pods.create(name, &selects(json!({"key": "kubernetes.io/os", "operator": "In", "values": ["linux"]})))?;
    }
    for name in names {
        let status = pods.wait_phase(name, "Running")?;
        ensure!(condition(&status, "PodScheduled")["status"] == "True", "{status:#}");
    }
    pods.create("four", &plain())?;
    let status = pods.wait_phase("four", "Failed")?;
    ensure!(status["reason"] == "OutOfpods", "{status:#}");
    pods.server.kubectl(&["delete", "pod", "one", "--timeout=30s"])?;
    pods.create("five", &plain())?;
    pods.wait_phase("five", "Running")?;
    // A refusal is for good.
    ensure!(pods.server.get("pod", "four")?["status"]["phase"] == "Failed", "a pod that was refused came back");
    Ok(())
}

/// Who comes in place of a pod that was deleted by force was refused for good while that one was still ending.
#[test]
fn a_pod_takes_the_place_of_one_that_is_in_no_source_any_more() -> Result<()> {
    if tests::no_node() {
        return Ok(());
    }
    let pods = Pods::start("admission-successor", "")?;
    let stubborn = "trap '' TERM; while :; do sleep 1; done";
    let spec = |script: &str| {
        let port = json!({"ports": [{"containerPort": 80, "hostPort": 18080}]});
        json!({"terminationGracePeriodSeconds": 20, "containers": [Pods::shell(script, &port)]})
    };
    pods.create("first", &spec(stubborn))?;
    pods.wait_phase("first", "Running")?;
    pods.server.kubectl(&["delete", "pod", "first", "--force", "--grace-period=0", "--wait=false"])?;
    pods.create("second", &spec("exec sleep 1000"))?;
    let status =
        pods.wait("second", "judged", |status| status["phase"] != "Pending" || status["hostIP"].is_string())?;
    ensure!(status["phase"] != "Failed", "{status:#}");
    pods.wait_phase("second", "Running")?;
    Ok(())
}
