//! The Python `kubernetes` client works unmodified: by itself (`tests/python/client.py`), and as helm leads the life of a
//! chart (`tests/python/helm.py`).

use std::process::Command;

use tests::ApiServer;

fn run(script: &str, name: &str) {
    let Some(python) = tests::python("kubernetes") else {
        tests::skipped("make test prepares .test/venv with the Python client");
        return;
    };
    let server = ApiServer::start(name, &[]).expect("the server starts");
    let output = Command::new(python)
        .arg(tests::repository().join("tests/python").join(script))
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

#[test]
fn the_python_client_creates_watches_patches_and_deletes() {
    run("client.py", "python");
}

#[test]
fn a_chart_of_many_kinds_is_installed_upgraded_rolled_back_and_uninstalled() {
    run("helm.py", "helm");
}
