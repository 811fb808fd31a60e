//! The control plane hears from the node in time, and again soon after it was away; certificates are replaced in time.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use tests::ApiServer;
use tests::agent::{Agent, Place};

/// What an agent of a cluster needs, and a kubeconfig for it.
fn join(server: &ApiServer, place: &Place, settings: &str) -> Result<String> {
    place.configure(&format!(
        "authentication: {{anonymous: {{enabled: false}}, webhook: {{enabled: true}}, x509: {{clientCAFile: {}/pki/ca.crt}}}}\n\
         authorization: {{mode: Webhook}}\n{settings}",
        server.dir.display()
    ))?;
    let kubeconfig = place.dir.join("agent.conf");
    let made = std::process::Command::new(tests::release_binary("apiserver-lite")?)
        .args(["kubeconfig", "--group", "system:nodes", "--user", "system:node:alone", "--data-dir"])
        .arg(&server.dir)
        .args(["--server", &format!("https://127.0.0.1:{}", server.port), "--out"])
        .arg(&kubeconfig)
        .status()?;
    ensure!(made.success(), "no kubeconfig");
    Ok(kubeconfig.display().to_string())
}

fn renewed(server: &ApiServer) -> Result<String> {
    server.kubectl(&["get", "lease", "-n", "kube-node-lease", "alone", "-o", "jsonpath={.spec.renewTime}"])
}

/// The moments at which another renewal was seen.
fn renewals(server: &ApiServer, time: Duration) -> Vec<Instant> {
    let (begun, mut last, mut seen) = (Instant::now(), String::new(), Vec::new());
    while begun.elapsed() < time {
        if let Ok(now) = renewed(server)
            && !now.is_empty()
            && now != last
        {
            last = now;
            seen.push(Instant::now());
        }
        std::thread::sleep(Duration::from_millis(200));
    }
    seen
}

#[test]
fn the_lease_is_renewed_every_ten_seconds_and_soon_after_the_server_is_back() -> Result<()> {
    let mut server = ApiServer::start("heartbeats", &[])?;
    let place = Place::new("heartbeats-node", "")?;
    let kubeconfig = join(&server, &place, "")?;
    let mut agent = Agent::start(
        &place,
        &["--kubeconfig", &kubeconfig, "--node-ip", "127.0.0.1"],
        &[("WATCHDOG_USEC", "4000000")],
    )?;
    agent.hear_until("READY=1")?;
    let seen = renewals(&server, Duration::from_secs(43));
    let gaps: Vec<f64> = seen.windows(2).map(|pair| (pair[1] - pair[0]).as_secs_f64()).collect();
    // The first was there before it was looked for.
    let whole = gaps.get(1..).unwrap_or_default();
    ensure!(whole.len() >= 2 && whole.iter().all(|gap| (9.0..12.5).contains(gap)), "{gaps:?}\n{}", agent.log());
    let before = renewed(&server)?;
    for _ in 0..2 {
        server.stop();
        std::thread::sleep(Duration::from_secs(15));
        server.launch()?;
        // The back-off ends at 7 s, and a busy machine takes its time.
        let back = Instant::now();
        while renewed(&server).map_or(true, |now| now == before) {
            ensure!(
                back.elapsed() < Duration::from_secs(12),
                "no renewal 12 s after the server came back\n{}",
                agent.log()
            );
            std::thread::sleep(Duration::from_millis(200));
        }
    }
    ensure!(agent.alive(), "{}", agent.log());
    let heard = agent.hear_for(Duration::from_secs(5))?;
    ensure!(heard.iter().any(|s| s.text == "WATCHDOG=1"), "the server's absence is no hang: {heard:?}");
    Ok(())
}

/// The serial number of what the agent shows on its port, and of its client certificate.
fn current(place: &Place, kind: &str) -> Option<std::path::PathBuf> {
    std::fs::read_link(place.dir.join(format!("pki/kubelet-{kind}-current.pem"))).ok()
}

#[test]
fn certificates_that_live_a_minute_are_replaced_in_time() -> Result<()> {
    let server = ApiServer::start("rotation", &["--cluster-signing-duration=1m"])?;
    let place = Place::new("rotation-node", "")?;
    let by_hand = join(&server, &place, "rotateCertificates: true\nserverTLSBootstrap: true\n")?;
    // The kubeconfig made by hand stands for a bootstrap token: it may ask for the node's certificate.
    let kubeconfig = place.dir.join("kubelet.conf").display().to_string();
    let arguments = ["--kubeconfig", &kubeconfig, "--bootstrap-kubeconfig", &by_hand, "--node-ip", "127.0.0.1"];
    let agent = Agent::start(&place, &arguments, &[])?;
    agent.hear_until("READY=1")?;
    let begun = Instant::now();
    let (mut clients, mut servers) = (Vec::new(), Vec::new());
    // Two replacements each, at 42 to 54 seconds; what comes too early would be the third by then.
    while begun.elapsed() < Duration::from_secs(130) && (clients.len() < 3 || servers.len() < 3) {
        // Serving certificates wait for somebody to approve them.
        let list: Value = serde_json::from_str(&server.kubectl(&["get", "csr", "-o", "json"])?)?;
        for request in list["items"].as_array().into_iter().flatten() {
            let pending = request["status"]["conditions"].is_null();
            if pending && request["spec"]["signerName"] == "kubernetes.io/kubelet-serving" {
                let name = request["metadata"]["name"].as_str().context("a name")?;
                server.kubectl(&["certificate", "approve", name])?;
            }
        }
        for (kind, seen) in [("client", &mut clients), ("server", &mut servers)] {
            let now = current(&place, kind);
            if now.is_some() && seen.last() != Some(&now) {
                seen.push(now);
            }
        }
        std::thread::sleep(Duration::from_millis(500));
    }
    ensure!(begun.elapsed() > Duration::from_secs(80), "two replacements after {:?}", begun.elapsed());
    ensure!((3..=5).contains(&clients.len()), "client certificates: {clients:?}\n{}", agent.log());
    ensure!((3..=5).contains(&servers.len()), "serving certificates: {servers:?}\n{}", agent.log());
    // The first two are long over, so what renews the lease and what is served now are later ones.
    let before = renewed(&server)?;
    let waited = Instant::now();
    while renewed(&server)? == before {
        ensure!(waited.elapsed() < Duration::from_secs(15), "the lease is not renewed\n{}", agent.log());
        std::thread::sleep(Duration::from_millis(500));
    }
    let shown = std::process::Command::new("sh")
        .arg("-c")
        .arg(format!(
            "openssl s_client -connect 127.0.0.1:{} </dev/null 2>/dev/null | openssl x509 -noout -checkend 0",
            place.port
        ))
        .output()?;
    ensure!(shown.status.success(), "the port shows an expired certificate: {shown:?}");
    Ok(())
}
