//! A gRPC probe follows what a health server says of the service that it names, and tells of all else in the kubelet's words.
//! The server is the test's own: the pods are on the node's network.

use anyhow::{Result, ensure};
use serde_json::{Value, json};
use tests::free_port;
use tests::health::{Health, Verdict};
use tests::pods::{Pods, container};

/// A pod whose readiness is asked for at a port.
fn create(pods: &Pods, name: &str, port: u16, service: Option<&str>) -> Result<()> {
    let probe = json!({"grpc": {"port": port, "service": service}, "periodSeconds": 1, "failureThreshold": 1});
    let main = Pods::shell("exec sleep 1000", &json!({"readinessProbe": probe}));
    pods.create(name, &json!({"hostNetwork": true, "containers": [main]}))
}

fn ready(status: &Value) -> bool {
    container(status, "main")["ready"] == true
}

fn readiness(pods: &Pods, health: &Health) -> Result<()> {
    let closed = free_port()?;
    let old = "unknown service grpc.health.v1.Health";
    // A pod each: the events of one are told up to a number only.
    let said = [
        ("bad", Verdict::NotServing, "service unhealthy (responded with \"NOT_SERVING\")".to_owned()),
        (
            "old",
            Verdict::Refused(12, old),
            format!("error: this server does not implement the grpc health protocol (grpc.health.v1.Health): {old}"),
        ),
        (
            "broken",
            Verdict::Refused(13, "no luck"),
            "error: health rpc probe failed: rpc error: code = Internal desc = no luck".to_owned(),
        ),
        ("slow", Verdict::Silence, "timeout: health rpc did not complete within 1s".to_owned()),
    ];
    for (service, verdict, _) in &said {
        health.say(service, *verdict);
        create(pods, service, health.port, Some(service))?;
    }
    health.say("", Verdict::Serving);
    health.say("good", Verdict::Serving);
    create(pods, "good", health.port, Some("good"))?;
    create(pods, "whole", health.port, None)?;
    create(pods, "stranger", health.port, Some("stranger"))?;
    create(pods, "nobody", closed, None)?;
    let unknown = "error: health rpc probe failed: rpc error: code = NotFound desc = unknown service".to_owned();
    let unreachable =
        format!("timeout: failed to connect service \"127.0.0.1:{closed}\" within 1s: context deadline exceeded");
    let mut failing: Vec<(&str, String)> = said.into_iter().map(|(name, _, why)| (name, why)).collect();
    failing.extend([("stranger", unknown), ("nobody", unreachable)]);
    for name in ["good", "whole"] {
        let status = pods.wait(name, "it is ready", ready)?;
        ensure!(status["podIP"] == "127.0.0.1", "{status:#}");
        ensure!(pods.events(name, "Unhealthy")?.is_empty(), "{:?}", pods.events(name, "Unhealthy")?);
    }
    for (name, why) in &failing {
        let told = pods.told(name, "Unhealthy")?;
        ensure!(told == [format!("Readiness probe failed: {why}")], "{name}: {told:#?}");
    }
    for service in ["", "good", "stranger", "slow"] {
        let callers = health.callers(service);
        ensure!(!callers.is_empty() && callers.iter().all(|c| c.starts_with("kube-probe/1.36")), "{callers:?}");
    }
    health.say("bad", Verdict::Serving);
    health.say("good", Verdict::NotServing);
    pods.wait("bad", "it follows", ready)?;
    pods.wait("good", "it follows", |s| !ready(s))?;
    for (name, wanted) in [("whole", true), ("stranger", false), ("nobody", false), ("old", false), ("slow", false)] {
        let status = pods.wait_phase(name, "Running")?;
        ensure!(ready(&status) == wanted, "{name}: {status:#}");
        ensure!(container(&status, "main")["restartCount"] == 0, "readiness ends nothing: {status:#}");
    }
    Ok(())
}

/// Startup waits for the server's word, and liveness lasts as long as it.
fn life(pods: &Pods, health: &Health) -> Result<()> {
    health.say("starts", Verdict::NotServing);
    health.say("lives", Verdict::Serving);
    let probe = |service: &str, threshold: u8| json!({"grpc": {"port": health.port, "service": service}, "periodSeconds": 1, "failureThreshold": threshold});
    let main = json!({"startupProbe": probe("starts", 100), "livenessProbe": probe("lives", 1)});
    pods.create("alive", &json!({"hostNetwork": true, "containers": [Pods::shell("exec sleep 1000", &main)]}))?;
    pods.told_of("alive", "Unhealthy", "Startup probe failed: service unhealthy (responded with \"NOT_SERVING\")")?;
    let status = pods.wait_phase("alive", "Running")?;
    ensure!(container(&status, "main")["started"] == false, "{status:#}");
    ensure!(health.callers("lives").is_empty(), "liveness is asked for before the startup is over");
    health.say("starts", Verdict::Serving);
    pods.wait("alive", "it has started", |s| container(s, "main")["started"] == true)?;
    health.say("lives", Verdict::NotServing);
    pods.wait("alive", "it is started again", |s| container(s, "main")["restartCount"] == 1)?;
    pods.told_of("alive", "Unhealthy", "Liveness probe failed: service unhealthy (responded with \"NOT_SERVING\")")?;
    pods.told_of("alive", "Killing", "Container main failed liveness probe, will be restarted")
}

#[test]
fn grpc_probes_follow_what_a_health_server_says() -> Result<()> {
    if tests::no_node() {
        return Ok(());
    }
    let pods = Pods::start("grpc-probes", "")?;
    let health = Health::start()?;
    readiness(&pods, &health)?;
    life(&pods, &health)
}
