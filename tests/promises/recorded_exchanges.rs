//! The answers equal those recorded from the real programs, where the recordings lie beside the checkout.

use std::process::Command;

use http::Method;
use serde_json::{Value, json};
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

/// Scenarios of other files that must, too.
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

/// Exchanges of the scenario `write-admission-policy` that differ on purpose (docs/decisions/policy-parameters.md); all others
/// of it are as recorded.
const ON_PURPOSE: [&str; 8] = [
    "refused",
    "refused-with-reason",
    "accepted",
    "update-refused",
    "match-condition-exempts",
    "scale-not-matched",
    "warn-binding",
    "warned",
];

/// The recording of `read-watch-formats` holds the length of an event in protobuf: of an object whose version has so many
/// digits where the clock gives its namespace a name that ends in five, as [`CLOCK`] does.
const FIRST_VERSION: u64 = 1000;

/// Runs the program that follows with a clock that begins elsewhere.
const CLOCK: &str = "import runpy, sys, time
real = time.time
begun = real()
time.time = lambda: 90000 + real() - begun
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name='__main__')
";

/// Changes an object until the server's versions have as many digits as the recorded one's.
async fn raise_versions(server: &ApiServer) {
    let path = "/api/v1/namespaces/default/configmaps";
    let mut connection = tests::Connection::http1(server).await.expect("a connection");
    let body = r#"{"metadata":{"name":"counter"}}"#;
    let made = connection.call(Method::POST, path, "application/json", body).await.expect("an answer");
    assert_eq!(made.status(), 201);
    let own = format!("{path}/counter");
    for number in 0..FIRST_VERSION {
        let body = json!({"data": {"number": number.to_string()}}).to_string();
        let changed = connection.call(Method::PATCH, &own, "application/merge-patch+json", body).await;
        let changed: Value = serde_json::from_slice(changed.expect("an answer").body()).expect("JSON");
        let version = changed["metadata"]["resourceVersion"].as_str().and_then(|v| v.parse::<u64>().ok());
        if version.expect("a version") >= FIRST_VERSION {
            break;
        }
    }
    let gone = connection.call(Method::DELETE, &own, "", "").await.expect("an answer");
    assert_eq!(gone.status(), 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_api_server_answers_as_recorded() {
    let (Some(shared), Some(python)) = (tests::recordings("exchanges/exchanges.py"), tests::python("yaml")) else {
        tests::skipped("no recordings beside the checkout, or no .test/venv");
        return;
    };
    let exchanges = shared.join("exchanges");
    let server = ApiServer::start("exchanges", &["--controllers=-*", "--scheduler=false"]).expect("the server starts");
    // What was said, and the names of the exchanges that differ.
    let run = |before: &[&str], more: &[&str], files: &[&str]| {
        let output = Command::new(&python)
            .args(before)
            .arg(exchanges.join("exchanges.py"))
            .args(["check", "--diffs", "3", "--kubeconfig"])
            .arg(server.kubeconfig())
            .args(more)
            .args(files.iter().map(|name| exchanges.join("scenarios").join(format!("{name}.yaml"))))
            .output()
            .expect("python runs");
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        println!("{said}{}", String::from_utf8_lossy(&output.stderr));
        let passed = said.lines().find_map(|line| line.split_once(" passed, ")?.0.parse::<u32>().ok());
        assert!(passed.is_some_and(|count| count > 0), "{more:?} {files:?}: nothing was asked");
        let failed = said.lines().filter_map(|line| line.strip_prefix("FAIL ")?.split(' ').next());
        failed.map(str::to_owned).collect::<Vec<_>>()
    };
    let none: [&str; 0] = [];
    assert_eq!(run(&[], &[], COMPLETE), none);
    for (file, scenario) in PARTS {
        assert_eq!(run(&[], &["--only", scenario], &[file]), none);
    }
    let policy = "write-admission-policy";
    let on_purpose = ON_PURPOSE.map(|name| format!("{policy}/{name}"));
    assert_eq!(run(&[], &["--only", policy], &["write-admission"]), on_purpose);
    raise_versions(&server).await;
    assert_eq!(run(&["-c", CLOCK], &["--only", "read-watch-formats"], &["read-watch"]), none);
}
