//! A start that is refused changes nothing of what the server that runs has on disk.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

use anyhow::{Result, ensure};
use tests::{ApiServer, free_port, release_binary, scratch};

/// Content of every file below a folder.
fn files(folder: &Path) -> Result<BTreeMap<String, Vec<u8>>> {
    let mut found = BTreeMap::new();
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            found.extend(files(&path)?);
        } else {
            found.insert(path.display().to_string(), std::fs::read(&path)?);
        }
    }
    Ok(found)
}

fn refused(folder: &Path, port: u16, words: &str) -> Result<()> {
    let mut serve = Command::new(release_binary("apiserver-lite")?);
    serve.args(["serve", "--bind-address", "127.0.0.1", "--secure-port", &port.to_string(), "--data-dir"]);
    let output = serve.arg(folder).output()?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.code() == Some(1) && said.contains(words), "{}: {said}", output.status);
    Ok(())
}

#[test]
fn a_refused_start_leaves_the_files_of_the_running_server_alone() -> Result<()> {
    // Controllers would write meanwhile.
    let server = ApiServer::start("second-start", &["--controllers=-*", "--scheduler=false"])?;
    let before = files(&server.dir.join("pki"))?;
    let kubeconfig = std::fs::read(server.kubeconfig())?;
    refused(&server.dir, free_port()?, "in use")?;
    refused(&server.dir, server.port, "Address already in use")?;
    ensure!(files(&server.dir.join("pki"))? == before, "keys changed");
    ensure!(std::fs::read(server.kubeconfig())? == kubeconfig, "admin.conf changed");

    let other = scratch("second-start-other")?;
    refused(&other, server.port, "Address already in use")?;
    ensure!(files(&other)?.is_empty(), "a server that cannot listen wrote {:?}", files(&other)?.keys());
    Ok(())
}

/// Nobody answers for a webhook before the server listens, and what a role lacks is added at every start.
#[test]
fn a_webhook_that_refuses_everything_keeps_no_server_from_starting() -> Result<()> {
    let mut server = ApiServer::start("refusing-webhook", &["--scheduler=false"])?;
    let rules = serde_json::json!({"rules": []});
    server.kubectl(&["patch", "clusterrole", "system:basic-user", "--type=merge", "-p", &rules.to_string()])?;
    server.create(&serde_json::json!({
        "kind": "ValidatingWebhookConfiguration", "apiVersion": "admissionregistration.k8s.io/v1",
        "metadata": {"name": "nobody"},
        "webhooks": [{
            "name": "nobody.example.com", "failurePolicy": "Fail", "sideEffects": "None", "timeoutSeconds": 1,
            "admissionReviewVersions": ["v1"], "clientConfig": {"url": "https://127.0.0.1:1/"},
            "rules": [{"apiGroups": ["*"], "apiVersions": ["*"], "resources": ["*/*"], "operations": ["*"]}],
        }],
    }))?;
    ensure!(server.kubectl(&["create", "clusterrole", "r", "--verb=get", "--resource=pods"]).is_err());
    server.stop();
    server.launch()?;
    let role = server.get("clusterrole", "system:basic-user")?;
    ensure!(role["rules"].as_array().is_some_and(|rules| !rules.is_empty()), "{role}");
    ensure!(server.kubectl(&["create", "clusterrole", "r", "--verb=get", "--resource=pods"]).is_err());
    Ok(())
}
