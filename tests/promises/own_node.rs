//! What others write into the node's own object counts at once: labels for the pods that ask for them, a deletion, and
//! what the node controller thought of a node that it did not hear.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use tests::ApiServer;
use tests::node::{IMAGE, Node};

/// Between two looks of the agent at its status: nothing here waits for one.
const LOOKS: &str = "nodeStatusUpdateFrequency: 5m\n";
const SOON: Duration = Duration::from_secs(40);

fn pod(node: &Node, name: &str, disk: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": {
        "nodeName": node.name, "nodeSelector": {"disk": disk}, "terminationGracePeriodSeconds": 1,
        "containers": [{"name": "main", "image": IMAGE, "command": ["sleep", "1000"]}],
    }})
}

/// Phase and reason once the agent has judged the pod.
fn judged(server: &ApiServer, node: &Node, name: &str) -> Result<(String, String)> {
    let mut said = (String::new(), String::new());
    node.wait_until(&format!("{name} is judged"), SOON, || {
        let status = server.get("pod", name)?["status"].take();
        let text = |key: &str| status[key].as_str().unwrap_or_default().to_owned();
        said = (text("phase"), text("reason"));
        Ok(said.0 == "Running" || said.0 == "Failed")
    })?;
    Ok(said)
}

fn condition(server: &ApiServer, node: &Node) -> Result<Value> {
    let status = server.get("node", &node.name)?["status"].take();
    let all = status["conditions"].as_array().context("conditions")?;
    Ok(all.iter().find(|c| c["type"] == "Ready").context("a Ready condition")?.clone())
}

#[test]
fn what_others_write_into_the_node_counts_at_once() -> Result<()> {
    if tests::no_node() {
        return Ok(());
    }
    let server = ApiServer::start("own-node", &[])?;
    let node = Node::start("own-node", &server, LOOKS)?;

    server.kubectl(&["label", "node", &node.name, "disk=fast"])?;
    // A pod may come before the word of the label.
    let mut tries = 0;
    node.wait_until("the label counts", SOON, || {
        tries += 1;
        let name = format!("fits-{tries}");
        server.create(&pod(&node, &name, "fast"))?;
        Ok(judged(&server, &node, &name)?.0 == "Running")
    })?;
    server.create(&pod(&node, "strays", "slow"))?;
    let refused = judged(&server, &node, "strays")?;
    ensure!(refused == ("Failed".to_owned(), "NodeAffinity".to_owned()), "{refused:?}\n{}", node.logs());

    let unheard = json!({"status": {"conditions": [
        {"type": "Ready", "status": "Unknown", "reason": "NodeStatusUnknown", "message": "Kubelet stopped posting node status."},
    ]}});
    server.kubectl(&["patch", "node", &node.name, "--subresource=status", "-p", &unheard.to_string()])?;
    node.wait_until("the node says that it is ready", SOON, || Ok(condition(&server, &node)?["status"] == "True"))?;
    ensure!(condition(&server, &node)?["reason"] == "KubeletReady", "the agent's own word");

    let before = server.get("node", &node.name)?["metadata"]["uid"].take();
    server.kubectl(&["delete", "node", &node.name])?;
    node.wait_until("the node is registered again", SOON, || {
        Ok(server.get("node", &node.name).is_ok_and(|n| n["metadata"]["uid"] != before))
    })?;
    node.wait_until("and ready", SOON, || Ok(node.is_ready(&server)))
}
