//! Clients that nobody here wrote use the node's own interfaces: gRPC and the official client from Python, Prometheus and its
//! check of metrics, `kubectl top`.

use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use tests::ApiServer;
use tests::node::{IMAGE, Node};

/// Every page of metrics that a node has.
const PAGES: &[&str] = &["metrics", "metrics/slis", "metrics/resource", "metrics/probes", "metrics/cadvisor"];

/// What the check finds wrong with names that upstream chose, and that dashboards ask for. All else has to be clean.
const NAMES_OF_UPSTREAM: &[&str] = &[
    "authenticated_user_requests ",
    "authentication_attempts ",
    "kubelet_cpu_manager_exclusive_cpu_allocation_count ",
    "kubelet_topology_manager_admission_duration_ms ",
    "cadvisor_version_info ",
    "container_cpu_load_d_average_10s ",
    "container_fs_inodes_total ",
    "container_memory_failcnt ",
    "kubelet_evented_pleg_connection_error_count ",
    "kubelet_evented_pleg_connection_success_count ",
    "kubelet_pleg_discard_events ",
];

/// Runs a script of tests/python against the sockets of a node of its own. `protos` is the folder of its messages.
fn with_sockets(name: &str, script: &str, protos: &Path) -> Result<()> {
    let Some(python) = tests::python("grpc, grpc_tools") else {
        tests::skipped("make test prepares .test/venv with grpcio");
        return Ok(());
    };
    if tests::no_node() {
        return Ok(());
    }
    let server = ApiServer::start(name, &[])?;
    let settings = "nodeStatusUpdateFrequency: 1s\nfeatureGates: {PodsAPI: true}\n";
    let node = Node::start(&format!("{name}-node"), &server, settings)?;
    let stubs = node.dir.join("stubs");
    std::fs::create_dir_all(&stubs)?;
    let output = Command::new(python)
        .arg(tests::repository().join("tests/python").join(script))
        .arg(protos)
        .arg(node.dir.join("kubelet"))
        .arg(server.kubeconfig())
        .args([node.name.as_str(), IMAGE])
        .arg(&stubs)
        .output()?;
    let (said, errors) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    ensure!(output.status.success(), "{said}{errors}\n{}", node.logs());
    Ok(())
}

#[test]
fn a_python_client_uses_each_socket_of_the_node() -> Result<()> {
    with_sockets("sockets", "node_sockets.py", &tests::repository().join("proto/api/node"))
}

#[test]
fn the_sockets_answer_as_the_kubelets_did() -> Result<()> {
    let Some(shared) = tests::recordings("node-endpoints/grpc/device_plugin.py") else {
        tests::skipped("no recordings beside the checkout");
        return Ok(());
    };
    with_sockets("recorded-sockets", "recorded_sockets.py", &shared.join("node-endpoints/grpc"))
}

/// Runs a script of tests/python that needs the official client beside a node of its own, with what it is given.
fn beside_a_node(name: &str, script: &str, further: impl Fn(&Node) -> Result<Vec<String>>) -> Result<()> {
    let Some(python) = tests::python("kubernetes") else {
        tests::skipped("make test prepares .test/venv with the official Python client");
        return Ok(());
    };
    if tests::no_node() {
        return Ok(());
    }
    let server = ApiServer::start(name, &["--disable-admission-plugins=ServiceAccount"])?;
    let node = Node::start(&format!("{name}-node"), &server, "")?;
    let output = Command::new(python)
        .arg(tests::repository().join("tests/python").join(script))
        .arg(server.kubeconfig())
        .args([node.name.as_str(), IMAGE])
        .args(further(&node)?)
        .output()?;
    let (said, errors) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    ensure!(output.status.success(), "{said}{errors}\n{}", node.logs());
    print!("{said}");
    Ok(())
}

/// The client names a form that it accepts, which used to be passed on to the node: every log was 406 for it.
#[test]
fn the_python_client_streams_logs_and_commands_through_the_server() -> Result<()> {
    beside_a_node("streams", "node_streams.py", |_| Ok(Vec::new()))
}

#[test]
fn prometheus_scrapes_every_page_and_kubectl_top_shows_the_node() -> Result<()> {
    if Command::new("prometheus").arg("--version").output().is_err() {
        tests::skipped("Debian's prometheus is missing");
        return Ok(());
    }
    beside_a_node("monitoring", "node_monitoring.py", |node| {
        let folder = node.dir.join("monitoring");
        std::fs::create_dir_all(&folder)?;
        let made = rcgen::generate_simple_self_signed(vec!["metrics.default.svc".to_owned()])?;
        std::fs::write(folder.join("server.crt"), made.cert.pem())?;
        std::fs::write(folder.join("server.key"), made.signing_key.serialize_pem())?;
        Ok(vec![node.port.to_string(), folder.to_str().context("a path in text")?.to_owned()])
    })
}

/// Lines of the check's complaints about a page.
fn complaints(page: &str) -> Result<Vec<String>> {
    use std::io::Write as _;
    let mut check = Command::new("promtool")
        .args(["check", "metrics"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()?;
    check.stdin.take().context("a pipe")?.write_all(page.as_bytes())?;
    let output = check.wait_with_output()?;
    let said = [output.stdout, output.stderr].concat();
    let lines: Vec<String> = String::from_utf8_lossy(&said).lines().map(str::to_owned).collect();
    ensure!(output.status.success() || !lines.is_empty(), "promtool fails without a word: {}", output.status);
    Ok(lines)
}

#[test]
fn prometheus_finds_nothing_wrong_with_the_metrics() -> Result<()> {
    if Command::new("promtool").arg("--version").output().is_err() {
        tests::skipped("promtool (Debian's prometheus) is missing");
        return Ok(());
    }
    if tests::no_node() {
        return Ok(());
    }
    let server = ApiServer::start("promtool", &[])?;
    let node = Node::start("promtool-node", &server, "")?;
    let pod = node.dir.join("pod.json");
    let text = format!(
        r#"{{"apiVersion":"v1","kind":"Pod","metadata":{{"name":"web"}},"spec":{{"nodeName":"{}","terminationGracePeriodSeconds":1,
        "containers":[{{"name":"c","image":"{IMAGE}","command":["sleep","100000"],
        "livenessProbe":{{"exec":{{"command":["true"]}},"periodSeconds":1}}}}]}}}}"#,
        node.name
    );
    std::fs::write(&pod, text)?;
    server.kubectl(&["create", "-f", pod.to_str().context("a path in text")?])?;
    server.kubectl(&["wait", "--for=condition=Ready", "pod/web", "--timeout=60s"])?;
    let mut wrong = Vec::new();
    let own = ("the API server", "/metrics".to_owned());
    let pages = PAGES.iter().map(|page| (*page, format!("/api/v1/nodes/{}/proxy/{page}", node.name)));
    for (name, path) in pages.chain([own]) {
        let page = server.kubectl(&["get", "--raw", &path])?;
        ensure!(page.contains("# TYPE"), "{name} has no metrics: {page}");
        let complaints = complaints(&page)?;
        let known = |line: &String| NAMES_OF_UPSTREAM.iter().any(|name| line.starts_with(name));
        wrong.extend(complaints.into_iter().filter(|line| !known(line)).map(|line| format!("{name}: {line}")));
    }
    ensure!(wrong.is_empty(), "{}", wrong.join("\n"));
    Ok(())
}

/// kubectl reads a shorter error as YAML, and showed nothing at all.
#[test]
fn kubectl_hears_why_there_is_no_exec() -> Result<()> {
    if tests::no_node() {
        return Ok(());
    }
    let server = ApiServer::start("no-exec", &[])?;
    let mut node = Node::start("no-exec-node", &server, "")?;
    let overrides = format!(r#"{{"spec":{{"nodeName":"{}","terminationGracePeriodSeconds":1}}}}"#, node.name);
    let run = ["run", "web", "--image", IMAGE, "--image-pull-policy=Never", "--overrides", &overrides];
    server.kubectl(&[&run[..], &["--", "sleep", "100000"]].concat())?;
    server.kubectl(&["wait", "--for=condition=Ready", "pod/web", "--timeout=60s"])?;
    ensure!(server.kubectl(&["exec", "web", "--", "echo", "hi"])? == "hi\n", "exec works");
    node.kill_containerd();
    let refused =
        server.kubectl(&["exec", "web", "--", "echo", "hi"]).err().context("there is no runtime")?.to_string();
    ensure!(refused.contains("cri.sock: connect: connection refused"), "{refused}");
    Ok(())
}
