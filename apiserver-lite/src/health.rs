//! `/healthz`, `/livez`, `/readyz` with their checks, and `/version`.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use crate::http::{Body, Media, Response, respond, route_produces};
use crate::server::{ApiServer, Request, unknown_path, wrong_method};

/// A named check and whether it passes.
pub fn checks(server: &ApiServer, name: &str) -> Vec<(&'static str, bool)> {
    let store = server.store.is_healthy();
    // The names are upstream's, where monitoring looks for them; `etcd` is the store whatever lies behind it. That this
    // answer is written at all shows that requests and logging go on.
    let mut all = vec![("ping", true), ("log", true), ("etcd", store)];
    if name == "readyz" {
        // Drained listeners take no more requests, so whoever can ask is not being shut out.
        all.extend([("etcd-readiness", store), ("informer-sync", true), ("shutdown", true)]);
    }
    all
}

/// Answers the paths of this module; None for others.
pub fn answer(server: &ApiServer, request: &Request) -> Option<Response> {
    let path = request.info.path.as_str();
    if path.trim_end_matches('/') == "/version" {
        if request.method != http::Method::GET {
            return Some(respond::error(&wrong_method(), request.for_error()));
        }
        return Some(match route_produces(&request.accept(), &[Media::Json.name()]) {
            Ok(()) => version(),
            Err(error) => respond::error(&error, request.for_error()),
        });
    }
    if path.starts_with("/version/") {
        return Some(respond::error(&unknown_path(), request.for_error()));
    }
    let mut parts = path.strip_prefix('/')?.splitn(2, '/');
    let asked = parts.next()?;
    let name = ["healthz", "livez", "readyz"].into_iter().find(|page| *page == asked)?;
    let all = checks(server, name);
    if let Some(one) = parts.next() {
        let found = all.iter().find(|(check, _)| *check == one)?;
        server.metrics.checked(name, found.0, found.1);
        return Some(if found.1 {
            // Without the header that forbids guessing the type, as upstream.
            respond::with_type(200, "text/plain; charset=utf-8", Body::from("ok"))
        } else {
            respond::text(500, format!("internal server error: {one} failed\n"))
        });
    }
    let excluded: Vec<&str> = request.query.all("exclude").collect();
    let mut lines = String::new();
    let mut passed = true;
    for &(check, good) in &all {
        if excluded.contains(&check) {
            lines.push_str(&format!("[+]{check} excluded: ok\n"));
            continue;
        }
        server.metrics.checked(name, check, good);
        if good {
            lines.push_str(&format!("[+]{check} ok\n"));
        } else {
            passed = false;
            lines.push_str(&format!("[-]{check} failed: reason withheld\n"));
        }
    }
    if let Some(unknown) = unmatched(&excluded, &all) {
        lines.push_str(&format!("warn: some health checks cannot be excluded: no matches for {unknown}\n"));
    }
    Some(if !passed {
        respond::text(500, format!("{lines}{name} check failed\n"))
    } else if request.query.get("verbose").is_some() {
        respond::text(200, format!("{lines}{name} check passed\n"))
    } else {
        respond::text(200, "ok")
    })
}

/// The checks that were to be left out and are none, in order and each once; None where all are.
fn unmatched(excluded: &[&str], all: &[(&str, bool)]) -> Option<String> {
    let is_none = |name: &&&str| all.iter().all(|(check, _)| check != *name);
    let unknown: BTreeSet<&&str> = excluded.iter().filter(is_none).collect();
    let quoted: Vec<String> = unknown.iter().map(|name| crate::status::quote(name)).collect();
    (!quoted.is_empty()).then(|| quoted.join(","))
}

/// What `/version` tells.
pub fn build() -> Value {
    let architecture = match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    };
    json!({
        "major": "1",
        "minor": "36",
        "emulationMajor": "1",
        "emulationMinor": "36",
        "minCompatibilityMajor": "1",
        "minCompatibilityMinor": "35",
        "gitVersion": "v1.36.2",
        "gitCommit": option_env!("GIT_COMMIT").unwrap_or("unknown"),
        "gitTreeState": "clean",
        "buildDate": "1970-01-01T00:00:00Z",
        "goVersion": "none",
        "compiler": "rustc",
        "platform": format!("linux/{architecture}"),
    })
}

fn version() -> Response {
    let mut compact = Vec::new();
    proto::json::write_sorted(&build(), &mut compact);
    // This answer is always indented upstream.
    respond::bytes(200, Media::Json.name(), proto::json::indent(&compact))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_left_out_is_told_in_order() {
        let all = [("ping", true), ("log", true)];
        assert_eq!(unmatched(&["b", "ping", "a", "b"], &all).as_deref(), Some("\"a\",\"b\""));
        assert_eq!(unmatched(&["ping"], &all), None);
    }
}
