//! Tokens of service accounts in volumes are replaced at four fifths of their life, and the others stay as they are.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde_json::{Value, json};
use tests::ApiServer;
use tests::clock::Clock;
use tests::node::Node;
use tests::pods::Pods;

const PATIENCE: Duration = Duration::from_secs(60);

fn claims(token: &str) -> Result<Value> {
    let part = token.trim().split('.').nth(1).context("a token has three parts")?;
    Ok(serde_json::from_slice(&URL_SAFE_NO_PAD.decode(part)?)?)
}

fn read(pods: &Pods, pod: &str, file: &str) -> Result<String> {
    pods.server.kubectl(&["exec", pod, "--", "cat", &format!("/tokens/{file}")])
}

/// A source of a token: its path, audience and life in seconds.
fn token((path, audience, seconds): (&str, &str, u32)) -> Value {
    json!({"serviceAccountToken": {"path": path, "audience": audience, "expirationSeconds": seconds}})
}

/// A pod with tokens and a file that can be changed.
fn create(pods: &Pods, name: &str, tokens: &[(&str, &str, u32)]) -> Result<()> {
    let marker = json!({"configMap": {"name": "marker", "items": [{"key": "now", "path": "now"}]}});
    let sources: Vec<Value> = tokens.iter().copied().map(token).chain([marker]).collect();
    let main = Pods::shell("exec sleep 1000", &json!({"volumeMounts": [{"name": "tokens", "mountPath": "/tokens"}]}));
    let volumes = json!([{"name": "tokens", "projected": {"sources": sources}}]);
    // No other token that the agent would have to think of.
    let spec = json!({"automountServiceAccountToken": false, "volumes": volumes, "containers": [main]});
    pods.create(name, &spec)?;
    pods.wait_phase(name, "Running")?;
    Ok(())
}

/// Waits until the volume was written once more.
fn written_anew(pods: &Pods, pod: &str, mark: &str) -> Result<()> {
    pods.server.kubectl(&["patch", "configmap", "marker", "-p", &json!({"data": {"now": mark}}).to_string()])?;
    pods.node.wait_until("the volume is written anew", PATIENCE, || Ok(read(pods, pod, "now")? == mark))
}

/// What the API server thinks of a token for an audience.
fn review(pods: &Pods, token: &str, audience: &str) -> Result<Value> {
    let review = json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview",
        "spec": {"token": token.trim(), "audiences": [audience]}});
    let path = pods.server.dir.join("review.json");
    std::fs::write(&path, review.to_string())?;
    let path = path.to_str().context("a path in text")?;
    let answer: Value = serde_json::from_str(&pods.server.kubectl(&["create", "-f", path, "-o", "json"])?)?;
    Ok(answer["status"].clone())
}

fn replaced(pods: &Pods, clock: &Clock) -> Result<()> {
    create(pods, "user", &[("short", "vault", 600), ("long", "other", 7200)])?;
    let (short, long) = (read(pods, "user", "short")?, read(pods, "user", "long")?);
    let told = claims(&short)?;
    let life = told["exp"].as_i64().zip(told["iat"].as_i64()).map(|(end, begin)| end - begin);
    ensure!(life == Some(600) && told["aud"] == json!(["vault"]), "{told:#}");

    // Up to ten seconds before the time is the time, for some; the rest is for what a slow machine has taken so far.
    clock.put_forward(Duration::from_secs(390))?;
    written_anew(pods, "user", "at 390")?;
    ensure!(read(pods, "user", "short")? == short, "it is replaced before its time");
    clock.put_forward(Duration::from_secs(100))?;
    pods.node.wait_until("the token is replaced", PATIENCE, || Ok(read(pods, "user", "short")? != short))?;
    let fresh = read(pods, "user", "short")?;
    ensure!(claims(&fresh)?["exp"].as_i64() > told["exp"].as_i64(), "{:#}", claims(&fresh)?);
    let status = review(pods, &fresh, "vault")?;
    ensure!(status["authenticated"] == true, "{status:#}");
    ensure!(status["user"]["username"] == "system:serviceaccount:default:default", "{status:#}");
    ensure!(review(pods, &fresh, "other")?["authenticated"] != true, "it is for its audience");
    ensure!(read(pods, "user", "long")? == long, "one with a long life is not due");
    ensure!(read(pods, "user", "now")? == "at 390", "what else is in the volume stays");
    Ok(())
}

/// A machine whose clock was wrong when a token came, and is set right, replaces it in time all the same.
fn after_a_wrong_clock(pods: &Pods, clock: &Clock) -> Result<()> {
    pods.server.kubectl(&["delete", "pod", "user", "--timeout=30s"])?;
    clock.set_wall(3 * 3600)?;
    create(pods, "early", &[("short", "vault", 600)])?;
    clock.set_wall(0)?;
    written_anew(pods, "early", "right")?;
    let short = read(pods, "early", "short")?;
    clock.put_forward(Duration::from_secs(490))?;
    pods.node.wait_until("the token is replaced", PATIENCE, || Ok(read(pods, "early", "short")? != short))
}

#[test]
fn tokens_are_replaced_in_time() -> Result<()> {
    if tests::no_node() {
        return Ok(());
    }
    let clock = Clock::new()?;
    let server = ApiServer::start("tokens", &[])?;
    server.create(
        &json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "marker"}, "data": {"now": "first"}}),
    )?;
    let node = Node::start_with("tokens-node", &server, "syncFrequency: 1s\n", &clock.variables()?)?;
    let pods = Pods { node, server };
    replaced(&pods, &clock)?;
    after_a_wrong_clock(&pods, &clock)
}
