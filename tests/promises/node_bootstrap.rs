//! A node that waits for its first client certificate is a node all the same, and goes on asking.

use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use tests::agent::{Agent, Place};
use tests::{ApiServer, release_binary};

use crate::heartbeats::{join, until};

/// The request that nobody has answered yet, other than these.
fn open_request(server: &ApiServer, seen: &[String]) -> Result<Option<String>> {
    let list: Value = serde_json::from_str(&server.kubectl(&["get", "csr", "-o", "json"])?)?;
    let open = list["items"].as_array().into_iter().flatten().filter(|r| r["status"]["conditions"].is_null());
    let mut names = open.filter_map(|r| r["metadata"]["name"].as_str()).map(str::to_owned);
    Ok(names.find(|name| !seen.contains(name)))
}

fn next_request(server: &ApiServer, agent: &Agent, seen: &mut Vec<String>) -> Result<String> {
    let mut found = None;
    until(agent, "no request for a certificate", || {
        found = open_request(server, seen)?;
        Ok(found.is_some())
    })?;
    let name = found.context("a request")?;
    seen.push(name.clone());
    Ok(name)
}

/// The agent stood still until somebody approved its request, and ended when that was refused.
#[test]
fn a_node_works_while_its_certificate_is_asked_for_and_asks_again_when_refused() -> Result<()> {
    let nobody_approves = "--controllers=*,-certificatesigningrequest-approving-controller";
    let server = ApiServer::start("bootstrap", &[nobody_approves, "--scheduler=false"])?;
    let place = Place::new("bootstrap-node", "")?;
    let by_hand = join(&server, &place, "rotateCertificates: true\n")?;
    let kubeconfig = place.dir.join("kubelet.conf").display().to_string();
    let arguments = ["--kubeconfig", &kubeconfig, "--bootstrap-kubeconfig", &by_hand, "--node-ip", "127.0.0.1"];
    let agent = Agent::start(&place, &arguments, &[])?;
    agent.hear_until("STATUS=asking for a client certificate")?;
    let health = Command::new("curl").args(["-sf", &format!("http://127.0.0.1:{}/healthz", place.healthz)]).output()?;
    ensure!(health.stdout == b"ok", "{health:?}\n{}", agent.log());
    let root = place.dir.join("root");
    let status = || -> Result<String> {
        let output = Command::new(release_binary("node-agent")?).args(["status", "--root-dir"]).arg(&root).output()?;
        Ok(String::from_utf8(output.stdout)?)
    };
    ensure!(status()?.contains("API       not reached:"), "{}", status()?);

    let mut seen = Vec::new();
    let refused = next_request(&server, &agent, &mut seen)?;
    server.kubectl(&["certificate", "deny", &refused])?;
    let deleted = next_request(&server, &agent, &mut seen)?;
    ensure!(agent.log().contains("was denied"), "{}", agent.log());
    server.kubectl(&["delete", "csr", &deleted])?;
    let last = next_request(&server, &agent, &mut seen)?;
    ensure!(agent.log().contains("was deleted before it was answered"), "{}", agent.log());

    // What systemd starts after the node does not wait for the control plane.
    let heard = agent.hear_until("READY=1")?;
    let ready = heard.last().context("READY")?.at;
    ensure!(ready < Duration::from_secs(40), "ready after {ready:?}");
    let alone = agent.hear_until("STATUS=node alone is up with 0 pods")?;
    ensure!(alone.last().is_some_and(|s| s.text.contains(", without the API server: ")), "{alone:?}");

    server.kubectl(&["certificate", "approve", &last])?;
    until(&agent, "the node is not registered", || Ok(server.kubectl(&["get", "node", "alone"]).is_ok()))?;
    until(&agent, "the kubeconfig is not written", || Ok(std::path::Path::new(&kubeconfig).exists()))?;
    until(&agent, "the API server is not reached", || Ok(!status()?.contains("API       not reached:")))?;
    Ok(())
}
