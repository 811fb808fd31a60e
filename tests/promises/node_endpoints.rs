//! The node's HTTP servers answer as the kubelet's do, where the recordings lie beside the checkout.

mod answers;
mod authorization;
mod metrics;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result};
use nix::sys::signal::Signal;
use serde_json::Value;
use tests::node::Node;
use tests::{ApiServer, free_port, release_binary};

/// Files whose requests are replayed.
const FILES: &[&str] = &["accept", "logs", "matrix", "rights", "streams", "other-ports"];
/// Those that want the gate `PodLogsQuerySplitStreams`.
const SPLIT: &[&str] = &["logs-split"];
const SUBRESOURCES: &[&str] =
    &["metrics", "stats", "log", "proxy", "pods", "healthz", "configz", "checkpoint", "statusz", "flagz"];
/// Each kind of request is reviewed anew, and the configuration has the fields that the recorded one had.
const SETTINGS: &str = "clusterDNS: [10.96.0.10]\nclusterDomain: cluster.local\n\
    evictionHard: {memory.available: 50Mi, nodefs.available: 16Mi, nodefs.inodesFree: 1%, imagefs.available: 16Mi, \
    imagefs.inodesFree: 1%}\n";
const REVIEWS: &str = "apiVersion: audit.k8s.io/v1\nkind: Policy\nomitStages: [RequestReceived]\nrules:\n\
    - {level: Request, users: [\"system:node:node-a\"], resources: [{group: authorization.k8s.io}]}\n- {level: None}\n";

/// A node with the recorded pods, its API server, and what the requests need.
struct Recorded {
    server: ApiServer,
    node: Node,
    recordings: PathBuf,
    credentials: PathBuf,
    /// The API server's log of reviews.
    audit: PathBuf,
    main: String,
    read_only: String,
    healthz: String,
}

/// A client certificate by user, as the replay wants them.
fn credentials(server: &ApiServer, folder: &Path, user: &str, groups: &[&str]) -> Result<()> {
    use base64::Engine as _;
    let file = folder.join(format!("{user}.conf"));
    let status = Command::new(release_binary("apiserver-lite")?)
        .args(["kubeconfig", "--user", user, "--server", &format!("https://127.0.0.1:{}", server.port)])
        .args(groups.iter().flat_map(|group| ["--group", group]))
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

impl Recorded {
    fn start(recordings: &Path) -> Result<Self> {
        let audit = tests::scratch("node-endpoints-audit")?;
        std::fs::write(audit.join("policy.yaml"), REVIEWS)?;
        let log = audit.join("audit.log");
        let audit = audit.to_str().context("a path in text")?;
        let server = ApiServer::start(
            "node-endpoints",
            &[
                "--disable-admission-plugins=ServiceAccount",
                &format!("--audit-policy-file={audit}/policy.yaml"),
                &format!("--audit-log-path={audit}/audit.log"),
            ],
        )?;
        let mut node = Node::start("node-a", &server, SETTINGS)?;
        let (read_only, healthz) = (free_port()?, free_port()?);
        node.end_agent(Signal::SIGTERM);
        let path = node.dir.join("agent.yaml");
        let text = std::fs::read_to_string(&path)?;
        // What was recorded had no static pods.
        let text: Vec<&str> = text.lines().filter(|line| !line.starts_with("staticPodPath: ")).collect();
        let text =
            text.join("\n").replace("healthzPort: 0", &format!("healthzPort: {healthz}\nreadOnlyPort: {read_only}"));
        let webhook = "authorization: {mode: Webhook, webhook: {cacheAuthorizedTTL: 1ms, cacheUnauthorizedTTL: 1ms}}";
        std::fs::write(&path, text.replace("authorization: {mode: Webhook}", webhook))?;
        node.start_agent()?;
        node.ctr(&["images", "tag", "localhost/busybox:1", "docker.io/library/busybox:latest"])?;
        let folder = node.dir.join("creds");
        std::fs::create_dir_all(&folder)?;
        credentials(&server, &folder, "nobody", &[])?;
        credentials(&server, &folder, "teams", &["team-a", "team-b"])?;
        credentials(&server, &folder, "reader", &[])?;
        may(&server, "reader", SUBRESOURCES)?;
        for subresource in SUBRESOURCES {
            let user = format!("r-{subresource}");
            credentials(&server, &folder, &user, &[])?;
            may(&server, &user, &[subresource])?;
        }
        let pods = recordings.join("pods.yaml");
        server.kubectl(&["apply", "-f", pods.to_str().context("a path in text")?])?;
        let recorded = Recorded {
            recordings: recordings.to_owned(),
            credentials: folder,
            audit: log,
            main: format!("https://127.0.0.1:{}", node.port),
            read_only: format!("http://127.0.0.1:{read_only}"),
            healthz: format!("http://127.0.0.1:{healthz}"),
            server,
            node,
        };
        recorded.wait_for_pods()?;
        Ok(recorded)
    }

    fn wait_for_pods(&self) -> Result<()> {
        let server = &self.server;
        self.node.wait_until("web is ready and has said all, crash has restarted", Duration::from_secs(120), || {
            let said = |pod: &str, path: &str| server.kubectl(&["get", "pod", "-n", "ns1", pod, "-o", path]);
            let ready = said("web", "jsonpath={.status.containerStatuses[0].ready}")?;
            let restarts = said("crash", "jsonpath={.status.containerStatuses[0].restartCount}")?;
            let again = said("crash", "jsonpath={.status.containerStatuses[0].state.running}")?;
            let logs = server.kubectl(&["logs", "-n", "ns1", "web"])?;
            Ok(ready == "true" && restarts == "1" && !again.is_empty() && logs.contains("err 5"))
        })
    }

    /// A recorded file of JSON.
    fn file(&self, name: &str) -> Result<Value> {
        let text = std::fs::read(self.recordings.join(name))?;
        serde_json::from_slice(&text).with_context(|| name.to_owned())
    }

    /// What curl got from the main port: status and body. `user` is the name of a certificate; empty is none.
    fn ask(&self, user: &str, method: &str, path: &str, further: &[&str]) -> Result<(u64, String)> {
        let mut curl = Command::new("curl");
        curl.args(["-sk", "--http1.1", "--path-as-is", "-m", "40", "-w", "\n%{http_code}"]);
        if !user.is_empty() {
            let file = |end: &str| self.credentials.join(format!("{user}.{end}"));
            curl.arg("--cert").arg(file("crt")).arg("--key").arg(file("key"));
        }
        match method {
            "HEAD" => curl.args(["-I", "-o", "/dev/null"]),
            _ => curl.args(["-X", method]),
        };
        let output = curl.args(further).arg(format!("{}{path}", self.main)).output()?;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let (body, status) = text.rsplit_once('\n').with_context(|| format!("{method} {path}: {output:?}"))?;
        Ok((status.parse()?, body.to_owned()))
    }

    /// A page for the user who may see all.
    fn page(&self, path: &str) -> Result<String> {
        let (status, body) = self.ask("reader", "GET", path, &[])?;
        anyhow::ensure!(status == 200, "{path}: {status} {body}");
        Ok(body)
    }
}

fn replay(recordings: &Path) -> Result<()> {
    let mut recorded = Recorded::start(recordings)?;
    let mut wrong = answers::shapes(&recorded)?;
    wrong.extend(answers::replay(&recorded, FILES)?);
    // Families appear with their first use, and the recorded pages were read after the same requests.
    wrong.extend(metrics::compare(&recorded)?);
    wrong.extend(authorization::compare(&recorded)?);
    recorded.node.end_agent(Signal::SIGTERM);
    let path = recorded.node.dir.join("agent.yaml");
    let text = std::fs::read_to_string(&path)? + "\nfeatureGates: {PodLogsQuerySplitStreams: true}\n";
    std::fs::write(&path, text)?;
    recorded.node.start_agent()?;
    recorded.node.wait_until("the pods are known again", Duration::from_secs(60), || {
        Ok(recorded.page("/pods")?.contains("\"name\":\"web\""))
    })?;
    wrong.extend(answers::replay(&recorded, SPLIT)?);
    anyhow::ensure!(wrong.is_empty(), "{}\n{}", wrong.join("\n"), recorded.node.logs());
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
