//! The node's server with handlers switched off and on, log queries among them, answers as the kubelet's did.

use std::process::Command;

use anyhow::{Context, Result};
use serde_json::Value;
use tests::agent::{Agent, Place};
use tests::free_port;

/// Answers that cannot be the same here, with the reason.
const OTHERWISE: &[(&str, &str)] = &[("/runningpods/", "the runtime of the test lists nothing")];

fn recordings() -> Option<Value> {
    const FILE: &str = "node-endpoints/http/variants.json";
    let text = std::fs::read(tests::recordings(FILE)?.join(FILE)).ok()?;
    serde_json::from_slice(&text).ok()
}

/// Files for the log handler, where nothing else of the machine shows.
const LOGS: &str = "mount -t tmpfs none /var/log && mkdir -p /var/log/ne/sub && printf 'line one\\nline two\\n' \
                    >/var/log/ne/a.log && echo b >/var/log/ne/sub/b && exec \"$@\"";

struct Ports {
    main: u16,
    healthz: u16,
    read_only: u16,
}

/// Status, headers by lower-case name, body.
type Answer = (u64, Vec<(String, String)>, String);

/// What curl got; None when nobody listens.
fn ask(ports: &Ports, request: &Value) -> Result<Option<Answer>> {
    let base = match request["server"].as_str() {
        Some("healthz") => format!("http://127.0.0.1:{}", ports.healthz),
        Some("read-only") => format!("http://127.0.0.1:{}", ports.read_only),
        _ => format!("https://127.0.0.1:{}", ports.main),
    };
    let (method, path) = (request["method"].as_str().context("a method")?, request["path"].as_str().context("a path")?);
    let mut curl = Command::new("curl");
    curl.args(["-sk", "--http1.1", "--path-as-is", "-m", "30", "-i"]);
    if method == "HEAD" {
        curl.arg("-I");
    } else {
        curl.args(["-X", method]);
    }
    let output = curl.arg(format!("{base}{path}")).output()?;
    // 7: could not connect.
    if output.status.code() == Some(7) {
        return Ok(None);
    }
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let (head, body) = text.split_once("\r\n\r\n").with_context(|| format!("{path}: no answer: {text}"))?;
    let mut lines = head.lines();
    let status = lines.next().and_then(|l| l.split(' ').nth(1)).and_then(|s| s.parse().ok()).context("a status")?;
    let headers = lines.filter_map(|l| l.split_once(": ")).map(|(k, v)| (k.to_ascii_lowercase(), v.to_owned()));
    Ok(Some((status, headers.collect(), body.to_owned())))
}

/// What differs, for a person; None when nothing does.
fn difference(ports: &Ports, request: &Value) -> Result<Option<String>> {
    let want = &request["answer"];
    let Some((status, headers, body)) = ask(ports, request)? else {
        return Ok(want["failed"].is_null().then(|| "nobody listens".to_owned()));
    };
    if want["status"] != status {
        return Ok(Some(format!("status {status}, not {}: {body}", want["status"])));
    }
    for name in ["content-type", "x-content-type-options", "location"] {
        let has = headers.iter().find(|(n, _)| n == name).map(|(_, v)| v.as_str());
        if want[name].as_str() != has {
            return Ok(Some(format!("{name} {has:?}, not {}", want[name])));
        }
    }
    let Some(text) = want["text"].as_str() else { return Ok(None) };
    // A part that was normalized matches anything.
    let mut rest = body.as_str();
    let plain = text.replace("<time>", "\0");
    let parts: Vec<&str> = if text == "(folder listing)" { vec![] } else { plain.split('\0').collect() };
    for part in parts {
        match rest.split_once(part) {
            Some((_, after)) => rest = after,
            None => return Ok(Some(format!("{body:?}, not {text:?}"))),
        }
    }
    Ok(None)
}

#[test]
fn handlers_that_are_switched_answer_as_the_kubelets_do() -> Result<()> {
    let Some(Value::Object(variants)) = recordings() else {
        tests::skipped("no recordings beside the checkout");
        return Ok(());
    };
    if !nix::unistd::geteuid().is_root() {
        tests::skipped("not root, which an own /var/log needs");
        return Ok(());
    }
    let (mut wrong, mut count) = (Vec::new(), 0);
    for (name, variant) in &variants {
        let Some(requests) = variant["requests"].as_array() else { continue };
        let place = Place::new(&format!("variant-{name}"), "")?;
        let ports = Ports { main: place.port, healthz: place.healthz, read_only: free_port()? };
        let config = variant["config"].as_str().context("a configuration")?;
        let config = config.replace("readOnlyPort: 10255", &format!("readOnlyPort: {}", ports.read_only));
        place.configure(&config.replace("address: 127.0.0.1\n", ""))?;
        let agent = Agent::start_under(&place, &["unshare", "-m", "sh", "-c", LOGS, "sh"], &[], &[])?;
        agent.hear_until("READY=1")?;
        for request in requests {
            let path = request["path"].as_str().unwrap_or_default();
            if OTHERWISE.iter().any(|(begin, _)| path.starts_with(begin)) {
                continue;
            }
            count += 1;
            if let Some(what) = difference(&ports, request)? {
                wrong.push(format!("{name}: {} {path}: {what}", request["method"]));
            }
        }
    }
    anyhow::ensure!(wrong.is_empty(), "{} of {count} differ:\n{}", wrong.len(), wrong.join("\n"));
    anyhow::ensure!(count > 50, "only {count} requests");
    Ok(())
}
