//! The load generator: what the API server costs in time, CPU and memory for the work of a cluster.
//!
//!     load [--pods N] [--clients N] [--under PROGRAM --around PROGRAM]
//!     load --compare TURNS [--other PROGRAM] [--pods N] [--clients N]
//!     load --twins N [--clients N]
//!     load --idle PID
//!
//! Starts a server of its own with controllers and scheduler on, then: start-up, idle, creates (clients share one HTTP/2
//! connection each), gets, status patches, lists (JSON and protobuf), watch fan-out to 100 watchers, and a start on what
//! was written after kill -9. CPU is the server process's own user and system time, read from /proc before and after;
//! times are of this machine and mean something only beside another figure from the same run.
//!
//! `--under` starts the server by a program that must become it, `--around` runs a program as `PROGRAM begin|end PHASE PID`
//! around creates, gets, patches and lists, and nothing else is done then: so a profiler counts one kind of request. As in
//! `--under callgrind.sh`, which ends in `exec valgrind --tool=callgrind --instr-atstart=no "$@"`, with `--around` one that
//! runs `callgrind_control -i on "$3"` at the begin, and `-i off` and `-d` at the end.
//!
//! `--compare` does creates, status patches, lists and a watch of 100 clients, once with everything on and once with what
//! flags can switch off, or with this program and an older one (`--other`), in turns; medians and their relation.
//!
//! `--twins` creates, patches and lists so many objects of built-in kinds and as many of custom ones of the same shape,
//! each kind on a server of its own; `run` ends with 10,000 of each.
//!
//! `--idle` tells what a daemon that runs already costs while nothing is asked of it, the node agent for example.

mod compare;

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use bytes::Bytes;
use http::{Method, Request};
use http_body_util::{BodyExt, Full};
use serde_json::json;
use tests::process::{idle, resident_mib};
use tests::twins::PAIRS;
use tests::{ApiServer, Clients, Connection};
use tokio::task::JoinSet;

const JSON: &str = "application/json";
const STRATEGIC: &str = "application/strategic-merge-patch+json";
const MERGE: &str = "application/merge-patch+json";
const WATCHERS: usize = 100;
/// Objects of each kind that is compared with another.
const TWINS: usize = 10_000;

fn main() -> Result<()> {
    let mut args = std::env::args().skip(1);
    let (mut pods, mut clients) = (2000, 32);
    let (mut under, mut around, mut twins) = (None, None, None);
    let (mut turns, mut other) = (None, None);
    while let Some(flag) = args.next() {
        let value = args.next().context("a flag needs a value")?;
        match flag.as_str() {
            "--pods" => pods = value.parse()?,
            "--clients" => clients = value.parse()?,
            "--under" => under = Some(value),
            "--around" => around = Some(value),
            "--compare" => turns = Some(value.parse()?),
            "--other" => other = Some(value),
            "--twins" => twins = Some(value.parse()?),
            "--idle" => return idle("idle", value.parse()?, Duration::from_secs(30)),
            other => {
                anyhow::bail!(
                    "unknown flag {other}; flags are --pods, --clients, --compare, --other, --twins, --under, --around and --idle"
                )
            }
        }
    }
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    runtime.block_on(async {
        if let Some(turns) = turns {
            return compare::compare(pods, clients, turns, other.as_deref()).await;
        }
        if let Some(count) = twins {
            return compare_twins(count, clients).await;
        }
        let under: Vec<&str> = under.as_deref().into_iter().collect();
        let mut server = ApiServer::start_under(&under, "load", &[])?;
        match around {
            None => {
                run(&mut server, pods, clients).await?;
                drop(server);
                compare_twins(TWINS, clients).await
            }
            Some(program) => requests(&server, pods, clients, Some(&program)).await,
        }
    })
}

struct Meter<'a> {
    server: &'a ApiServer,
    cpu: Duration,
    begun: Instant,
    /// The program to tell of begin and end, and what the phase is called there.
    around: Option<(&'a str, &'a str)>,
}

impl<'a> Meter<'a> {
    fn start(server: &'a ApiServer) -> Result<Self> {
        Meter::around(server, None)
    }

    fn around(server: &'a ApiServer, around: Option<(&'a str, &'a str)>) -> Result<Self> {
        let meter = Meter { server, cpu: server.cpu_time()?, begun: Instant::now(), around };
        meter.tell("begin")?;
        Ok(meter)
    }

    fn tell(&self, what: &str) -> Result<()> {
        let Some((program, phase)) = self.around else { return Ok(()) };
        let pid = self.server.pid().to_string();
        let status = std::process::Command::new(program).args([what, phase, &pid]).status()?;
        ensure!(status.success(), "{program} {what} {phase}: {status}");
        Ok(())
    }

    #[expect(clippy::cast_precision_loss, reason = "counts are small")]
    fn report(self, what: &str, count: usize) -> Result<()> {
        let took = self.begun.elapsed();
        let used = self.server.cpu_time()? - self.cpu;
        self.tell("end")?;
        println!(
            "{what:<44} {:>9.3} ms CPU each {:>9.0} /s  RSS {:.1} MiB",
            used.as_secs_f64() * 1000.0 / count as f64,
            count as f64 / took.as_secs_f64(),
            resident_mib(self.server.pid())?
        );
        Ok(())
    }
}

fn pod(number: usize) -> String {
    let container = |name: &str| {
        json!({"name": name, "image": "localhost/busybox:1", "command": ["sleep", "3600"],
            "env": [{"name": "A", "value": "b"}, {"name": "NODE", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}}],
            "ports": [{"containerPort": 8080, "name": name}],
            "resources": {"requests": {"cpu": "10m", "memory": "16Mi"}, "limits": {"memory": "64Mi"}},
            "readinessProbe": {"httpGet": {"path": "/", "port": 8080}},
            "volumeMounts": [{"name": "data", "mountPath": "/data"}]})
    };
    json!({"apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": format!("p{number}"), "labels": {"app": "load", "number": number.to_string()}},
        "spec": {"containers": [container("one"), container("two")], "volumes": [{"name": "data", "emptyDir": {}}], "nodeName": "none"}})
    .to_string()
}

fn status(number: usize) -> String {
    let container = |name: &str| {
        json!({"name": name, "ready": true, "restartCount": 0, "image": "localhost/busybox:1", "imageID": "sha256:0", "started": true,
            "containerID": format!("containerd://{number:064x}"), "state": {"running": {"startedAt": "2026-01-01T00:00:00Z"}}})
    };
    let condition = |kind: &str| json!({"type": kind, "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"});
    json!({"status": {"phase": "Running", "podIP": "10.244.0.7", "podIPs": [{"ip": "10.244.0.7"}], "hostIP": "127.0.0.1",
        "conditions": [condition("Initialized"), condition("Ready"), condition("ContainersReady")],
        "containerStatuses": [container("one"), container("two")]}})
    .to_string()
}

const PODS: &str = "/api/v1/namespaces/default/pods";

async fn list(server: &ApiServer, accept: &str, times: usize) -> Result<usize> {
    let mut connection = Connection::http1(server).await?;
    let mut size = 0;
    for _ in 0..times {
        let request = Request::get(PODS).header("host", "x").header("accept", accept).body(Full::new(Bytes::new()))?;
        let answer = connection.send(request).await?;
        ensure!(answer.status() == 200, "{}", String::from_utf8_lossy(answer.body()));
        size = answer.body().len();
    }
    Ok(size)
}

/// Opens watches of pods; each task ends once it has read `lines` events.
async fn watchers(server: &ApiServer, lines: usize) -> Result<JoinSet<Result<()>>> {
    let mut tasks = JoinSet::new();
    for _ in 0..WATCHERS {
        let stream = hyper_util::rt::TokioIo::new(tests::raw::tls(server, b"http/1.1").await?);
        let (mut sender, connection) = hyper::client::conn::http1::handshake(stream).await?;
        tokio::spawn(connection);
        let request =
            Request::get(format!("{PODS}?watch=1&timeoutSeconds=120")).header("host", "x").header("accept", JSON);
        let request = request.header("x-from", "now").body(Full::new(Bytes::new()))?;
        let mut body = sender.send_request(request).await?.into_body();
        tasks.spawn(async move {
            let _sender = sender;
            let mut seen = 0;
            while seen < lines {
                let frame = body.frame().await.context("the watch ended early")??;
                seen += frame.data_ref().map_or(0, |d| d.iter().filter(|&&b| b == b'\n').count());
            }
            Ok(())
        });
    }
    Ok(tasks)
}

/// Creates, gets, status patches and lists.
async fn requests(server: &ApiServer, pods: usize, clients: usize, around: Option<&str>) -> Result<()> {
    let meter = |phase| Meter::around(server, around.map(|program| (program, phase)));
    // Pods of a node that is not there are deleted after a while.
    let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "none"}}).to_string();
    let made = Connection::http1(server).await?.call(Method::POST, "/api/v1/nodes", JSON, node).await?;
    ensure!(made.status() == 201, "{}", String::from_utf8_lossy(made.body()));
    let handshakes = meter("connect")?;
    let mut all = Clients::connect(server, clients).await?;
    handshakes.report("connection with a certificate", clients)?;
    let creates = meter("create")?;
    all.send(pods, 201, |n| (Method::POST, PODS.into(), JSON, pod(n))).await?;
    creates.report(&format!("create of a two-container pod, {clients} clients"), pods)?;
    let gets = meter("get")?;
    all.send(pods, 200, |n| (Method::GET, format!("{PODS}/p{n}"), "", String::new())).await?;
    gets.report("get", pods)?;
    let patches = meter("patch")?;
    all.send(pods, 200, |n| (Method::PATCH, format!("{PODS}/p{n}/status"), STRATEGIC, status(n))).await?;
    patches.report("status patch", pods)?;
    for (name, accept) in [("JSON", JSON), ("protobuf", "application/vnd.kubernetes.protobuf")] {
        let first = list(server, accept, 1).await?;
        let lists = meter(name)?;
        list(server, accept, 20).await?;
        lists.report(&format!("list of {pods} pods, {name}, {:.1} MB", f64::from(u32::try_from(first)?) / 1e6), 20)?;
    }
    Ok(())
}

async fn run(server: &mut ApiServer, pods: usize, clients: usize) -> Result<()> {
    let mut starts = Vec::new();
    for _ in 0..5 {
        server.kill();
        starts.push(server.launch()?);
    }
    report_starts("start on a store that holds nothing else", &mut starts);
    tokio::time::sleep(Duration::from_secs(2)).await;
    idle("idle, empty store", server.pid(), Duration::from_secs(20))?;

    requests(server, pods, clients, None).await?;
    let changes = 200.min(pods);
    // Each watch starts with every pod, then sees the changes.
    let tasks = watchers(server, pods + changes).await?;
    tokio::time::sleep(Duration::from_secs(5)).await;
    println!("{:<44} RSS {:.1} MiB", format!("{WATCHERS} watchers connected"), resident_mib(server.pid())?);
    let mut four = Clients::connect(server, 4).await?;
    let meter = Meter::start(server)?;
    four.send(changes, 200, |n| {
        (Method::PATCH, format!("{PODS}/p{n}"), MERGE, r#"{"metadata":{"labels":{"changed":"yes"}}}"#.into())
    })
    .await?;
    for done in tasks.join_all().await {
        done?;
    }
    meter.report(&format!("change seen by {WATCHERS} watchers"), changes)?;
    idle("idle after all that", server.pid(), Duration::from_secs(10))?;
    let mut starts = Vec::new();
    for _ in 0..5 {
        server.kill();
        starts.push(server.launch()?);
    }
    report_starts(&format!("start on {pods} pods after kill -9"), &mut starts);
    idle("idle after that start", server.pid(), Duration::from_secs(10))
}

/// What objects of built-in kinds cost, and those of custom kinds that say the same.
async fn compare_twins(count: usize, clients: usize) -> Result<()> {
    for pair in &PAIRS {
        for twin in pair {
            let cost = twin.cost(count, clients).await?;
            println!(
                "{:<44} {:>9.3} ms CPU per create  {:.3} per merge patch  {:.1} per list ({} bytes each)  {:.0} bytes of memory each",
                format!("{count} objects: {}", twin.name),
                ms(cost.create),
                ms(cost.patch),
                ms(cost.list),
                cost.listed_bytes,
                cost.memory_bytes
            );
        }
    }
    Ok(())
}

/// From the start of the process to the open port.
fn report_starts(what: &str, starts: &mut [Duration]) {
    starts.sort();
    println!("{what:<44} {:>9.1} ms median, {:.1} to {:.1}", ms(starts[2]), ms(starts[0]), ms(starts[4]));
}

fn ms(time: Duration) -> f64 {
    time.as_secs_f64() * 1000.0
}
