//! What a write, a list and a watch cost with all that a request goes through, and with what can be left out left out; or
//! what they cost this program and another version of it. Both sides in turns, so that a machine's moods meet both alike.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use http::Method;
use serde_json::json;
use tests::{ApiServer, Clients, Connection};

use super::{JSON, MERGE, PODS, STRATEGIC, WATCHERS, list, pod, status, watchers};

const PHASES: [&str; 4] = ["create of a pod", "status patch", "list of all pods, JSON", "change seen by all watchers"];
const LISTS: u32 = 20;

/// All that a server has by default and can do without: who may what, shares of the server's time, admission, and the
/// controllers and the scheduler that look at what is written. Validation, defaults, who owns which fields and what a
/// client is warned of belong to each write.
const BARE: [&str; 5] = [
    "--authorization-mode=AlwaysAllow",
    "--enable-priority-and-fairness=false",
    "--controllers=-*",
    "--scheduler=false",
    "--disable-admission-plugins=NamespaceLifecycle,LimitRanger,ServiceAccount,NodeRestriction,TaintNodesByCondition,\
     PodSecurity,Priority,DefaultTolerationSeconds,DefaultStorageClass,StorageObjectInUseProtection,\
     PersistentVolumeClaimResize,RuntimeClass,CertificateApproval,CertificateSigning,ClusterTrustBundleAttest,\
     CertificateSubjectRestriction,DefaultIngressClass,PodTopologyLabels,MutatingAdmissionPolicy,\
     MutatingAdmissionWebhook,ValidatingAdmissionPolicy,ValidatingAdmissionWebhook,ResourceQuota",
];

/// Milliseconds of the server's CPU for each phase.
type Figures = [f64; PHASES.len()];

/// Measures both sides so many times and prints medians and their relation. `other` is another version's program.
pub async fn compare(pods: usize, clients: usize, turns: usize, other: Option<&str>) -> Result<()> {
    ensure!(turns > 0, "at least one turn");
    // The shell becomes the other program, in place of the one that it is told to start.
    let instead = other.map(|program| format!("shift; exec '{program}' \"$@\""));
    let under: Vec<&str> = instead.as_deref().map_or_else(Vec::new, |script| vec!["sh", "-c", script, "sh"]);
    let flags: &[&str] = if other.is_some() { &[] } else { &BARE };
    let (mut before, mut after) = (Vec::new(), Vec::new());
    for turn in 0..turns {
        // Who is first changes, too.
        for second in [turn % 2 == 1, turn % 2 == 0] {
            if second {
                after.push(figures(&[], &[], pods, clients).await?);
            } else {
                before.push(figures(&under, flags, pods, clients).await?);
            }
        }
    }
    let sides = if other.is_some() { "other program / this one" } else { "without / with all that can be left out" };
    println!("{turns} turns, {pods} pods, {clients} clients, {WATCHERS} watchers; ms of CPU each: {sides}");
    for (at, phase) in PHASES.into_iter().enumerate() {
        let (before, after) = (median(&before, at), median(&after, at));
        println!("{phase:<44} {before:>9.3} {after:>9.3}   times {:.2}", after / before);
    }
    Ok(())
}

fn median(turns: &[Figures], phase: usize) -> f64 {
    let mut all: Vec<f64> = turns.iter().map(|figures| figures[phase]).collect();
    all.sort_by(f64::total_cmp);
    all[all.len() / 2]
}

async fn figures(under: &[&str], flags: &[&str], pods: usize, clients: usize) -> Result<Figures> {
    let server = ApiServer::start_under(under, "compare", flags)?;
    // Pods of a node that is not there are deleted after a while.
    let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "none"}}).to_string();
    let made = Connection::http1(&server).await?.call(Method::POST, "/api/v1/nodes", JSON, node).await?;
    ensure!(made.status() == 201, "{}", String::from_utf8_lossy(made.body()));
    let each = |used: Duration, count: usize| -> Result<f64> {
        Ok(used.as_secs_f64() * 1000.0 / f64::from(u32::try_from(count).context("it fits")?))
    };
    let mut all = Clients::connect(&server, clients).await?;
    let begun = server.cpu_time()?;
    all.send(pods, 201, |n| (Method::POST, PODS.into(), JSON, pod(n))).await?;
    let created = server.cpu_time()?;
    all.send(pods, 200, |n| (Method::PATCH, format!("{PODS}/p{n}/status"), STRATEGIC, status(n))).await?;
    let patched = server.cpu_time()?;
    list(&server, JSON, usize::try_from(LISTS)?).await?;
    let listed = server.cpu_time()?;
    let changes = 200.min(pods);
    let tasks = watchers(&server, pods + changes).await?;
    let mut four = Clients::connect(&server, 4).await?;
    // Until all have seen what is there.
    tokio::time::sleep(Duration::from_secs(5)).await;
    let watching = server.cpu_time()?;
    four.send(changes, 200, |n| {
        (Method::PATCH, format!("{PODS}/p{n}"), MERGE, r#"{"metadata":{"labels":{"changed":"yes"}}}"#.into())
    })
    .await?;
    for done in tasks.join_all().await {
        done?;
    }
    let seen = server.cpu_time()?;
    Ok([
        each(created - begun, pods)?,
        each(patched - created, pods)?,
        each(listed - patched, usize::try_from(LISTS)?)?,
        each(seen - watching, changes)?,
    ])
}
