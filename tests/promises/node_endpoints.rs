//! The node's HTTP servers answer as the kubelet's do, where the recordings lie beside the checkout.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result};
use nix::sys::signal::Signal;
use tests::node::Node;
use tests::{ApiServer, free_port, release_binary};

/// Files whose requests are replayed.
const FILES: &[&str] = &["accept", "logs", "matrix", "rights", "streams", "other-ports"];
const SUBRESOURCES: &[&str] =
    &["metrics", "stats", "log", "proxy", "pods", "healthz", "configz", "checkpoint", "statusz", "flagz"];

/// Requests that another machine than the recorded one answers otherwise, with the reason.
const OF_THE_MACHINE: &[(&str, &str)] = &[
    ("/stats/summary", "cgroup v1 and file systems without pressure figures"),
    ("/configz", "the set-up names its certificates and cgroups itself"),
    ("/pods", "service accounts of the API server, statuses of the runtime"),
    ("/%70ods", "the same"),
    ("SPDY protocol []", "the runtime's words"),
    ("unknown upgrade", "the runtime's words"),
    ("portForward web SPDY no protocol", "the runtime's words"),
    ("run no cmd", "the runtime's words"),
    ("run not found", "the runtime's words"),
    ("POST /run/ns1/web/main as reader", "the runtime's words"),
    ("checkpoint timeout zero", "the runtime makes no checkpoints"),
    ("checkpoint success", "the runtime makes no checkpoints"),
    ("Accept application/yaml;as=Statusz", "the version of Go, which there is none of"),
];

/// A client certificate by user, as the replay wants them.
fn credentials(server: &ApiServer, folder: &Path, user: &str) -> Result<()> {
    use base64::Engine as _;
    let file = folder.join(format!("{user}.conf"));
    let status = Command::new(release_binary("apiserver-lite")?)
        .args(["kubeconfig", "--user", user, "--server", &format!("https://127.0.0.1:{}", server.port)])
        .arg("--data-dir")
        .arg(&server.dir)
        .arg("--out")
        .arg(&file)
        .status()?;
    anyhow::ensure!(status.success(), "no credentials for {user}");
    let text = std::fs::read_to_string(&file)?;
    for (key, end) in [("client-certificate-data: ", "crt"), ("client-key-data: ", "key")] {
        let packed = text.lines().find_map(|line| line.trim().strip_prefix(key)).context("an embedded key pair")?;
        let pem = base64::engine::general_purpose::STANDARD.decode(packed.trim())?;
        std::fs::write(folder.join(format!("{user}.{end}")), pem)?;
    }
    Ok(())
}

fn may(server: &ApiServer, user: &str, subresources: &[&str]) -> Result<()> {
    let role = format!("ep-{user}");
    let resources: Vec<String> = subresources.iter().map(|s| format!("nodes/{s}")).collect();
    let resources = resources.join(",");
    server.kubectl(&["create", "clusterrole", &role, "--verb=*", &format!("--resource={resources}")])?;
    server.kubectl(&[
        "create",
        "clusterrolebinding",
        &role,
        &format!("--clusterrole={role}"),
        &format!("--user={user}"),
    ])?;
    Ok(())
}

fn replay(recordings: &Path) -> Result<()> {
    let server = ApiServer::start("node-endpoints", &[])?;
    let mut node = Node::start("node-a", &server, "clusterDNS: [10.96.0.10]\nclusterDomain: cluster.local\n")?;
    let path = node.dir.join("agent.yaml");
    let text = std::fs::read_to_string(&path)?;
    let port = text.lines().find_map(|l| l.strip_prefix("port: ")).context("a port")?.to_owned();
    let (read_only, healthz) = (free_port()?, free_port()?);
    let ports = format!("healthzPort: {healthz}\nreadOnlyPort: {read_only}\n");
    std::fs::write(&path, text.replace("healthzPort: 0\n", &ports))?;
    node.end_agent(Signal::SIGTERM);
    node.start_agent()?;
    node.ctr(&["images", "tag", "localhost/busybox:1", "docker.io/library/busybox:latest"])?;
    let folder = node.dir.join("creds");
    std::fs::create_dir_all(&folder)?;
    credentials(&server, &folder, "nobody")?;
    credentials(&server, &folder, "reader")?;
    may(&server, "reader", SUBRESOURCES)?;
    for subresource in SUBRESOURCES {
        let user = format!("r-{subresource}");
        credentials(&server, &folder, &user)?;
        may(&server, &user, &[subresource])?;
    }
    let pods = recordings.join("pods.yaml");
    server.kubectl(&["apply", "-f", pods.to_str().context("a path in text")?])?;
    node.wait_until("web is ready and has said all, crash has restarted", Duration::from_secs(120), || {
        let said = |pod: &str, path: &str| server.kubectl(&["get", "pod", "-n", "ns1", pod, "-o", path]);
        let ready = said("web", "jsonpath={.status.containerStatuses[0].ready}")?;
        let restarts = said("crash", "jsonpath={.status.containerStatuses[0].restartCount}")?;
        let again = said("crash", "jsonpath={.status.containerStatuses[0].state.running}")?;
        let logs = server.kubectl(&["logs", "-n", "ns1", "web"])?;
        Ok(ready == "true" && restarts == "1" && !again.is_empty() && logs.contains("err 5"))
    })?;
    let output = Command::new("python3")
        .arg(recordings.join("endpoints.py"))
        .args(["check", "--seconds", "10", "--creds"])
        .arg(&folder)
        .args(["--server", &format!("https://127.0.0.1:{port}")])
        .args(["--read-only", &format!("http://127.0.0.1:{read_only}")])
        .args(["--healthz", &format!("http://127.0.0.1:{healthz}")])
        .args(FILES.iter().map(|name| recordings.join(format!("exchanges-{name}.json"))))
        .output()?;
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let summary = said.lines().last().unwrap_or_default();
    anyhow::ensure!(
        summary.ends_with(" differ"),
        "the replay ended early: {said}{}",
        String::from_utf8_lossy(&output.stderr)
    );
    let differs = said.lines().filter_map(|line| line.strip_prefix("DIFFERS "));
    let unexpected: Vec<&str> =
        differs.filter(|name| !OF_THE_MACHINE.iter().any(|(part, _)| name.contains(part))).collect();
    anyhow::ensure!(unexpected.is_empty(), "{unexpected:?}\n{said}\n{}", node.logs());
    println!("{summary}; those by what this machine is: {}", OF_THE_MACHINE.len());
    Ok(())
}

#[test]
fn the_node_answers_as_the_kubelet_does() {
    let Some(shared) = tests::recordings("node-endpoints/http/endpoints.py") else {
        tests::skipped("no recordings beside the checkout");
        return;
    };
    if tests::no_node() {
        return;
    }
    if Command::new("python3").arg("--version").output().is_err() {
        tests::skipped("python3 is missing");
        return;
    }
    replay(&shared.join("node-endpoints/http")).expect("the recorded answers");
}
