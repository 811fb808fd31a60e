//! The answers equal those recorded from the real programs, where the recordings lie beside the checkout.

use std::path::PathBuf;
use std::process::Command;

use tests::ApiServer;

/// Scenario files that must pass without a difference.
const COMPLETE: &[&str] = &[
    "first",
    "read-basics",
    "read-health",
    "read-negotiation",
    "read-paging",
    "read-paths",
    "read-selectors",
    "read-tables",
    "read-versions",
    "write-apply",
    "write-authz",
    "write-crd",
    "write-create-network",
    "write-create-other",
    "write-create-pods",
    "write-create-workloads",
    "write-delete",
    "write-dry-run",
    "write-field-validation",
    "write-generate-name",
    "write-media",
    "write-namespaces",
    "write-patch",
    "write-subresources",
    "write-update",
    "write-validation",
];

fn exchanges() -> Option<PathBuf> {
    let shared =
        std::env::var_os("ORCHESTRATOR_SHARED").map_or_else(|| tests::repository().join("../shared"), PathBuf::from);
    Some(shared.join("exchanges")).filter(|p| p.join("exchanges.py").exists())
}

#[test]
fn the_api_server_answers_as_recorded() {
    let python = tests::repository().join(".test/venv/bin/python");
    let Some(exchanges) = exchanges().filter(|_| python.exists()) else {
        tests::skipped("no recordings beside the checkout, or no .test/venv");
        return;
    };
    let server = ApiServer::start("exchanges", &["--controllers=-*", "--scheduler=false"]).expect("the server starts");
    let output = Command::new(python)
        .arg(exchanges.join("exchanges.py"))
        .args(["check", "--diffs", "3", "--kubeconfig"])
        .arg(server.kubeconfig())
        .args(COMPLETE.iter().map(|name| exchanges.join("scenarios").join(format!("{name}.yaml"))))
        .output()
        .expect("python runs");
    let said = String::from_utf8_lossy(&output.stdout);
    println!("{said}");
    assert!(output.status.success(), "{said}{}", String::from_utf8_lossy(&output.stderr));
}
