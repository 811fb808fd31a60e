//! The Python `kubernetes` client works unmodified (`tests/python/client.py`).

use std::process::Command;

use tests::ApiServer;

#[test]
fn the_python_client_creates_watches_patches_and_deletes() {
    let Some(python) = tests::python("kubernetes") else {
        tests::skipped("make test prepares .test/venv with the Python client");
        return;
    };
    let server = ApiServer::start("python", &[]).expect("the server starts");
    let output = Command::new(python)
        .arg(tests::repository().join("tests/python/client.py"))
        .arg(server.kubeconfig())
        .output()
        .expect("python runs");
    assert!(
        output.status.success(),
        "{}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
}
