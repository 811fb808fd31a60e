//! What the agent costs in time, CPU and memory: alone, with pods, while they start and go, with probes, and when it is asked.
//!
//!     agent-load [--pods N] [--scraped N]
//!     agent-load --turns N [--pods N]
//!
//! Starts an API server, a containerd and an agent of its own. CPU is the agent's own user and system time, read from
//! /proc before and after, in steps of 10 ms; what idling takes is read in nanoseconds. Each pod is one container that
//! sleeps, and sits out the two seconds that its grace of one becomes when it is deleted. Scrapes go through the API
//! server's proxy, so the agent's part of them is TLS, HTTP, authorization from its cache, and the page itself. The pods
//! are started and ended by the runtime's calls alone as well, for what of their time is not the agent's. What a runtime
//! needs for the same calls changes by half within minutes, so `--turns` does nothing else, with and without the agent in
//! turns, and tells the medians.
//!
//! Needs root and what a node needs ([`Node::why_not`]).

mod direct;

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use bytes::Bytes;
use http::{Method, Request};
use http_body_util::{BodyExt, Full};
use hyper_util::rt::{TokioExecutor, TokioIo};
use nix::sys::signal::Signal;
use serde_json::json;
use tests::node::{IMAGE, Node};
use tests::process::{cpu_time, idle, resident_mib};
use tests::{ApiServer, Connection};

const PODS: &str = "/api/v1/namespaces/default/pods";
/// Until the agent has given back what its start needed, and looks at an empty runtime as seldom as it ever does.
const SETTLED: Duration = Duration::from_secs(40);
/// Until it does so with pods.
const CALM: Duration = Duration::from_secs(35);
/// As long as the slowest pod waits for its routine look (60 to 90 s), so that each has one in it: in a shorter time their
/// number depends on when the pods came.
const ROUND: Duration = Duration::from_secs(90);
const LONG: Duration = Duration::from_secs(300);
/// Requests of one kind, for the average.
const ROUNDS: u32 = 50;
/// The local sockets take a hundred calls a second.
const PACE: Duration = Duration::from_millis(12);

fn main() -> Result<()> {
    let mut args = std::env::args().skip(1);
    let (mut pods, mut scraped, mut turns) = (40, 110, 0);
    while let Some(flag) = args.next() {
        let value = args.next().context("a flag needs a value")?.parse()?;
        match flag.as_str() {
            "--pods" => pods = value,
            "--scraped" => scraped = value,
            "--turns" => turns = value,
            other => anyhow::bail!("unknown flag {other}; flags are --pods, --scraped and --turns"),
        }
    }
    if let Some(lacks) = Node::why_not() {
        println!("the agent is not measured: there is no {lacks}");
        return Ok(());
    }
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    match turns {
        0 => runtime.block_on(run(pods, scraped)),
        turns => runtime.block_on(in_turns(pods, turns)),
    }
}

/// The CPU and time that one thing takes the agent.
struct Meter {
    pid: u32,
    cpu: Duration,
    begun: Instant,
}

impl Meter {
    fn start(pid: u32) -> Result<Self> {
        Ok(Meter { pid, cpu: cpu_time(pid)?, begun: Instant::now() })
    }

    /// Tells what it took, with its time beside that of the same without an agent.
    fn report(self, what: &str, direct: Option<Duration>) -> Result<()> {
        let (took, used) = (self.begun.elapsed(), cpu_time(self.pid)?.saturating_sub(self.cpu));
        let (took, used) = (took.as_secs_f64(), used.as_secs_f64());
        let beside = direct.map(|direct| direct.as_secs_f64());
        let beside = beside.map_or(String::new(), |direct| format!("  {:.2} of {direct:.1} s", took / direct));
        println!("{what:<44} {used:>9.2} s CPU  {took:>7.1} s  RSS {:.1} MiB{beside}", resident_mib(self.pid)?);
        Ok(())
    }

    fn each(self, what: &str, bytes: usize) -> Result<()> {
        let used = cpu_time(self.pid)?.saturating_sub(self.cpu).as_secs_f64() * 1000.0 / f64::from(ROUNDS);
        println!("{what:<44} {used:>9.2} ms CPU each  {bytes:>8} bytes  RSS {:.1} MiB", resident_mib(self.pid)?);
        Ok(())
    }
}

/// What the agent asks a container every ten seconds.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Probes {
    None,
    /// For its readiness and its life, over HTTP.
    Http,
}

fn pod(node: &str, name: &str, probes: Probes) -> String {
    let mut container = json!({"name": "c", "image": IMAGE, "command": ["sleep", "1000000"],
        "resources": {"requests": {"cpu": "1m", "memory": "4Mi"}}});
    if probes == Probes::Http {
        container["command"] = json!(["busybox", "httpd", "-f", "-p", "8080", "-h", "/etc"]);
        let probe = json!({"httpGet": {"path": "/passwd", "port": 8080}, "periodSeconds": 10, "timeoutSeconds": 5});
        (container["readinessProbe"], container["livenessProbe"]) = (probe.clone(), probe);
    }
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "labels": {"app": "load"}},
        "spec": {"nodeName": node, "terminationGracePeriodSeconds": 1, "containers": [container]}})
    .to_string()
}

/// On a connection of its own: the server ends those that nothing was asked on for long.
async fn create(server: &ApiServer, node: &str, (prefix, count): (&str, usize), probes: Probes) -> Result<()> {
    let mut api = Connection::http2(server).await?;
    for number in 0..count {
        let name = format!("{prefix}{number}");
        let made = api.call(Method::POST, PODS, "application/json", pod(node, &name, probes)).await?;
        ensure!(made.status() == 201, "{}", String::from_utf8_lossy(made.body()));
    }
    until(&mut api, |running, all| running == count && all == count).await
}

/// Waits for as many running pods and pods at all.
async fn until(api: &mut Connection, done: impl Fn(usize, usize) -> bool) -> Result<()> {
    let begun = Instant::now();
    loop {
        let answer = api.call(Method::GET, PODS, "", "").await?;
        let list: serde_json::Value = serde_json::from_slice(answer.body())?;
        let all = list["items"].as_array().context("a list")?;
        let running = all.iter().filter(|pod| pod["status"]["phase"] == "Running").count();
        if done(running, all.len()) {
            return Ok(());
        }
        ensure!(begun.elapsed() < LONG, "{running} of {} pods run", all.len());
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

/// The same pods without an agent and with it, again and again: start and end of each turn, and the medians of all.
async fn in_turns(pods: usize, turns: usize) -> Result<()> {
    let server = ApiServer::start("agent-load", &[])?;
    let mut node = Node::start("agent-load-node", &server, "maxPods: 250\nfileCheckFrequency: 20s\n")?;
    let mut all: [Vec<f64>; 6] = Default::default();
    for turn in 0..turns {
        // An agent ends what it does not know.
        node.end_agent(Signal::SIGTERM);
        direct::pods(&node, 2).await?;
        let (starts, ends) = direct::pods(&node, pods).await?;
        node.start_agent()?;
        node.wait_until("the node is Ready", Duration::from_secs(60), || Ok(node.is_ready(&server)))?;
        tokio::time::sleep(Duration::from_secs(5)).await;
        let (pid, begun) = (node.agent_pid(), Instant::now());
        let before = cpu_time(pid)?;
        create(&server, &node.name, (&format!("t{turn}-"), pods), Probes::None).await?;
        let (started, middle) = (begun.elapsed(), cpu_time(pid)?);
        let mut api = Connection::http2(&server).await?;
        let begun = Instant::now();
        let gone = api.call(Method::DELETE, PODS, "", "").await?;
        ensure!(gone.status() == 200, "{}", String::from_utf8_lossy(gone.body()));
        until(&mut api, |_, all| all == 0).await?;
        let (ended, after) = (begun.elapsed(), cpu_time(pid)?);
        let cpu = [middle.saturating_sub(before), after.saturating_sub(middle)].map(|time| time.as_secs_f64());
        let [starts, ends, started, ended] = [starts, ends, started, ended].map(|time| time.as_secs_f64());
        println!(
            "start {started:.1} of {starts:.1} s, end {ended:.1} of {ends:.1} s, CPU {:.2} and {:.2} s",
            cpu[0], cpu[1]
        );
        let figures = [started, started / starts, ended, ended / ends, cpu[0], cpu[1]];
        all.iter_mut().zip(figures).for_each(|(all, figure)| all.push(figure));
    }
    let [started, start, ended, end, cpu_start, cpu_end] = all.map(|mut all| {
        all.sort_by(f64::total_cmp);
        all.get(all.len() / 2).copied().unwrap_or_default()
    });
    println!(
        "medians of {turns}: start {started:.1} s, {start:.2} of the runtime's calls alone; end {ended:.1} s, {end:.2}; \
         CPU {cpu_start:.2} and {cpu_end:.2} s"
    );
    Ok(())
}

async fn run(pods: usize, scraped: usize) -> Result<()> {
    let server = ApiServer::start("agent-load", &[])?;
    let mut node = Node::start("agent-load-node", &server, "maxPods: 250\nfileCheckFrequency: 20s\n")?;
    // An agent ends what it does not know.
    node.end_agent(Signal::SIGTERM);
    // The first start of a container is slower than any after it.
    direct::pods(&node, 2).await?;
    let (starts, ends) = direct::pods(&node, pods).await?;
    println!(
        "{pods} pods by the runtime's calls alone: {:.1} s to start, {:.1} to end",
        starts.as_secs_f64(),
        ends.as_secs_f64()
    );
    node.start_agent()?;
    node.wait_until("the node is Ready", Duration::from_secs(60), || Ok(node.is_ready(&server)))?;
    let pid = node.agent_pid();
    tokio::time::sleep(SETTLED).await;
    idle("agent, no pods", pid, Duration::from_secs(30))?;

    let meter = Meter::start(pid)?;
    create(&server, &node.name, ("a", pods), Probes::None).await?;
    meter.report(&format!("{pods} pods, created to all Running"), Some(starts))?;
    tokio::time::sleep(CALM).await;
    idle(&format!("agent, {pods} pods without probes"), pid, ROUND)?;
    let meter = Meter::start(pid)?;
    let mut api = Connection::http2(&server).await?;
    let gone = api.call(Method::DELETE, PODS, "", "").await?;
    ensure!(gone.status() == 200, "{}", String::from_utf8_lossy(gone.body()));
    until(&mut api, |_, all| all == 0).await?;
    let took = meter.begun.elapsed().as_secs_f64();
    println!(
        "{pods} pods, deleted to gone: {took:.1} s, {:.2} of {:.1}",
        took / ends.as_secs_f64(),
        ends.as_secs_f64()
    );
    // What follows from the end of the last object is theirs too.
    tokio::time::sleep(Duration::from_secs(5)).await;
    meter.report(&format!("{pods} pods, deleted to gone, and 5 s"), None)?;

    let meter = Meter::start(pid)?;
    create(&server, &node.name, ("b", scraped), Probes::None).await?;
    meter.report(&format!("{scraped} pods, created to all Running"), None)?;
    tokio::time::sleep(CALM).await;
    idle(&format!("agent, {scraped} pods without probes"), pid, ROUND)?;
    for page in [
        "metrics",
        "metrics/resource",
        "metrics/cadvisor",
        "stats/summary?only_cpu_and_memory=true",
        "stats/summary",
        "pods",
    ] {
        scrape(&mut api, &node, page).await?;
    }
    masks(&node).await?;
    for (prefix, count) in [("c", pods), ("d", scraped)] {
        probed(&server, &node, prefix, count).await?;
    }
    Ok(())
}

/// The agent at rest with pods that it probes, in place of those before them.
async fn probed(server: &ApiServer, node: &Node, prefix: &str, count: usize) -> Result<()> {
    let mut api = Connection::http2(server).await?;
    let gone = api.call(Method::DELETE, PODS, "", "").await?;
    ensure!(gone.status() == 200, "{}", String::from_utf8_lossy(gone.body()));
    until(&mut api, |_, all| all == 0).await?;
    create(server, &node.name, (prefix, count), Probes::Http).await?;
    until_ready(&mut api, count).await?;
    tokio::time::sleep(CALM).await;
    let what = format!("agent, {count} pods, each with two probes every 10 s");
    idle(&what, node.agent_pid(), ROUND)?;
    // One that fails would be answered faster than one that is answered.
    let mut api = Connection::http2(server).await?;
    until_ready(&mut api, count).await
}

async fn until_ready(api: &mut Connection, count: usize) -> Result<()> {
    let begun = Instant::now();
    loop {
        let answer = api.call(Method::GET, PODS, "", "").await?;
        let list: serde_json::Value = serde_json::from_slice(answer.body())?;
        let conditions = |pod: &serde_json::Value| pod["status"]["conditions"].as_array().cloned().unwrap_or_default();
        let is_ready = |pod: &&serde_json::Value| {
            conditions(pod).iter().any(|c| c["type"] == "Ready" && c["status"] == "True")
                && pod["status"]["containerStatuses"][0]["restartCount"] == 0
        };
        let ready = list["items"].as_array().context("a list")?.iter().filter(is_ready).count();
        if ready == count {
            return Ok(());
        }
        ensure!(begun.elapsed() < LONG, "{ready} of {count} pods are ready");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

async fn scrape(api: &mut Connection, node: &Node, page: &str) -> Result<()> {
    let path = format!("/api/v1/nodes/{}/proxy/{page}", node.name);
    // The first is answered when containers have been found and users are known.
    let first = api.call(Method::GET, &path, "", "").await?;
    ensure!(first.status() == 200, "{page}: {}", String::from_utf8_lossy(first.body()));
    let meter = Meter::start(node.agent_pid())?;
    for _ in 0..ROUNDS {
        api.call(Method::GET, &path, "", "").await?;
    }
    meter.each(&format!("GET /{page}"), first.body().len())
}

/// Lists over the Pods API: whole, and what a network plugin wants.
async fn masks(node: &Node) -> Result<()> {
    let socket = tokio::net::UnixStream::connect(node.dir.join("kubelet/pods/kubelet.sock")).await?;
    let (mut sender, connection) =
        hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(socket)).await?;
    tokio::spawn(connection);
    for mask in ["", "metadata.uid,status.phase,status.podIPs"] {
        let mut size = 0;
        let meter = Meter::start(node.agent_pid())?;
        for _ in 0..ROUNDS {
            tokio::time::sleep(PACE).await;
            let mut request = Request::post("http://node/v1.Pods/ListPods").header("content-type", "application/grpc");
            if !mask.is_empty() {
                request = request.header("x-field-mask", mask);
            }
            // An empty message, not compressed.
            let answer = sender.send_request(request.body(Full::new(Bytes::from_static(&[0; 5])))?).await?;
            ensure!(answer.status() == 200);
            size = answer.into_body().collect().await?.to_bytes().len();
        }
        let what = if mask.is_empty() { "ListPods, whole".to_owned() } else { format!("ListPods, {mask}") };
        meter.each(&what, size)?;
    }
    Ok(())
}
