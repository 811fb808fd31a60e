//! The answers equal those recorded from the real programs, where the recordings lie beside the checkout.

use std::process::Command;

use tests::ApiServer;

/// Scenario files that must pass without a difference.
const COMPLETE: &[&str] = &[
    "first",
    "read-basics",
    "read-discovery",
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

/// Scenarios of other files that must, too. What is left out: policies with parameters (docs/decisions/policy-parameters.md),
/// and a watch in protobuf, whose first bytes tell how many digits the recorded server's versions had.
const PARTS: &[(&str, &str)] = &[
    ("read-watch", "read-watch-lifecycle"),
    ("read-watch", "read-watch-selectors"),
    ("read-watch", "read-watch-bookmarks"),
    ("read-watch", "read-watch-live"),
    ("read-watch", "read-watch-expired"),
    ("write-admission", "write-admission-limits"),
    ("write-admission", "write-admission-quota"),
    ("write-admission", "write-admission-podsecurity"),
];

#[test]
fn the_api_server_answers_as_recorded() {
    let (Some(shared), Some(python)) = (tests::recordings("exchanges/exchanges.py"), tests::python("yaml")) else {
        tests::skipped("no recordings beside the checkout, or no .test/venv");
        return;
    };
    let exchanges = shared.join("exchanges");
    let server = ApiServer::start("exchanges", &["--controllers=-*", "--scheduler=false"]).expect("the server starts");
    let check = |more: &[&str], files: &[&str]| {
        let output = Command::new(&python)
            .arg(exchanges.join("exchanges.py"))
            .args(["check", "--diffs", "3", "--kubeconfig"])
            .arg(server.kubeconfig())
            .args(more)
            .args(files.iter().map(|name| exchanges.join("scenarios").join(format!("{name}.yaml"))))
            .output()
            .expect("python runs");
        let said = String::from_utf8_lossy(&output.stdout);
        println!("{said}");
        assert!(output.status.success(), "{said}{}", String::from_utf8_lossy(&output.stderr));
        assert!(!said.contains("\n0 passed") && !said.starts_with("0 passed"), "{more:?} {files:?}: nothing was asked");
    };
    check(&[], COMPLETE);
    for (file, scenario) in PARTS {
        check(&["--only", scenario], &[file]);
    }
}
