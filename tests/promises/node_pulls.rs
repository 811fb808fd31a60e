//! Images are pulled from a registry: as the policy says, with the credentials of the pod or of a plugin, again and again
//! until they are there; and nobody gets an image that somebody else's credentials have pulled.

use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use nix::sys::signal::Signal;
use serde_json::{Value, json};
use tests::pods::{Pods, container};
use tests::registry::{HOST, PASSWORD, Registry, USER};

fn image(repository: &str) -> String {
    format!("{HOST}/{repository}:1")
}

fn create(pods: &Pods, name: &str, repository: &str, policy: &str, more: &Value) -> Result<()> {
    let main = Pods::shell("exec sleep 1000", &json!({"image": image(repository), "imagePullPolicy": policy}));
    let mut spec = json!({"containers": [main]});
    if let (Some(spec), Some(more)) = (spec.as_object_mut(), more.as_object()) {
        spec.extend(more.clone());
    }
    pods.create(name, &spec)
}

fn waits(pods: &Pods, name: &str, reason: &str) -> Result<Value> {
    pods.wait(name, reason, |status| container(status, "main")["state"]["waiting"]["reason"] == reason)
}

/// What the agent notes of pulls, by the folder of the notes.
fn records(pods: &Pods, folder: &str) -> Result<Vec<Value>> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(pods.node.dir.join("kubelet/image_manager").join(folder))?.flatten() {
        found.push(serde_json::from_slice(&std::fs::read(entry.path())?)?);
    }
    Ok(found)
}

/// How often the image of a pod that has started was pulled.
fn pulls(pods: &Pods, pod: &str) -> Result<usize> {
    pods.told(pod, "Started")?;
    Ok(pods.events(pod, "Pulling")?.len())
}

fn policies(pods: &Pods, registry: &Registry) -> Result<()> {
    let none = json!({});
    create(pods, "first", "open/app", "IfNotPresent", &none)?;
    let status = pods.wait_phase("first", "Running")?;
    let id = container(&status, "main")["imageID"].as_str().unwrap_or_default();
    ensure!(id.starts_with(&format!("{HOST}/open/app@sha256:")), "{status:#}");
    let pulled = pods.told("first", "Pulled")?;
    let begins = format!("Successfully pulled image {:?} in ", image("open/app"));
    ensure!(pulled.iter().any(|m| m.starts_with(&begins) && m.contains("Image size: ")), "{pulled:?}");
    ensure!(pods.told("first", "Pulling")? == [format!("Pulling image {:?}", image("open/app"))]);
    let asked = registry.asked("open/app");
    ensure!(asked > 0, "nobody asked the registry");
    for (name, policy) in [("present", "IfNotPresent"), ("never", "Never")] {
        create(pods, name, "open/app", policy, &none)?;
        pods.wait_phase(name, "Running")?;
        ensure!(pulls(pods, name)? == 0, "{policy}");
    }
    ensure!(registry.asked("open/app") == asked, "what is there is not asked for");
    create(pods, "always", "open/app", "Always", &none)?;
    pods.wait_phase("always", "Running")?;
    ensure!(registry.asked("open/app") > asked && pulls(pods, "always")? == 1, "pulled once more");
    ensure!(records(pods, "pulling")?.is_empty(), "nothing is being pulled");
    let noted = records(pods, "pulled")?;
    let anonymous =
        |record: &&Value| !record["credentialMapping"][format!("{HOST}/open/app")]["nodePodsAccessible"].is_null();
    ensure!(noted.iter().filter(anonymous).count() == 1, "{noted:#?}");
    Ok(())
}

fn secrets(pods: &Pods) -> Result<()> {
    let entry = json!({"username": USER, "password": PASSWORD, "auth": STANDARD.encode(format!("{USER}:{PASSWORD}"))});
    let config = json!({"auths": {HOST: entry}}).to_string();
    pods.server.create(&json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "login"},
        "type": "kubernetes.io/dockerconfigjson", "data": {".dockerconfigjson": STANDARD.encode(config)}}))?;
    create(pods, "stranger", "private/app", "IfNotPresent", &json!({}))?;
    waits(pods, "stranger", "ImagePullBackOff")?;
    let failed = pods.told("stranger", "Failed")?;
    ensure!(failed.iter().any(|m| m.starts_with("Failed to pull image ")), "{failed:?}");
    let own = json!({"imagePullSecrets": [{"name": "login"}]});
    create(pods, "owner", "private/app", "IfNotPresent", &own)?;
    pods.wait_phase("owner", "Running")?;
    let noted = records(pods, "pulled")?;
    let mapped =
        |record: &Value| record["credentialMapping"][format!("{HOST}/private/app")]["kubernetesSecrets"][0].clone();
    let secrets: Vec<Value> = noted.iter().map(mapped).filter(|secret| !secret.is_null()).collect();
    ensure!(secrets.len() == 1 && secrets[0]["name"] == "login", "{noted:#?}");
    // It is on the node now, and not for everybody.
    create(pods, "late-stranger", "private/app", "IfNotPresent", &json!({}))?;
    waits(pods, "late-stranger", "ImagePullBackOff")?;
    create(pods, "never-stranger", "private/app", "Never", &json!({}))?;
    let status = waits(pods, "never-stranger", "ErrImageNeverPull")?;
    ensure!(status["phase"] == "Pending", "{status:#}");
    create(pods, "second-owner", "private/app", "IfNotPresent", &own)?;
    pods.wait_phase("second-owner", "Running")?;
    ensure!(pulls(pods, "second-owner")? == 0, "the same secret opens what it has pulled");
    Ok(())
}

/// A plugin that knows the word, and notes that it was asked.
fn write_plugin(folder: &Path) -> Result<()> {
    std::fs::create_dir_all(folder)?;
    let answer = json!({"kind": "CredentialProviderResponse", "apiVersion": "credentialprovider.kubelet.k8s.io/v1",
        "cacheKeyType": "Registry", "cacheDuration": "1h",
        "auth": {HOST: {"username": USER, "password": PASSWORD}}});
    let program = folder.join("words");
    let script = format!("#!/bin/sh\ncat >>'{}/asked'\necho '{answer}'\n", folder.display());
    std::fs::write(&program, script)?;
    std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755))?;
    let config = json!({"apiVersion": "kubelet.config.k8s.io/v1", "kind": "CredentialProviderConfig", "providers": [
        {"name": "words", "apiVersion": "credentialprovider.kubelet.k8s.io/v1", "defaultCacheDuration": "1h",
            "matchImages": [format!("{HOST}/plugin")]}]});
    std::fs::write(folder.join("config.json"), config.to_string())?;
    Ok(())
}

fn plugins(pods: &mut Pods) -> Result<()> {
    let folder = pods.node.dir.join("providers");
    write_plugin(&folder)?;
    pods.node.end_agent(Signal::SIGTERM);
    let (config, programs) = (folder.join("config.json"), folder.clone());
    pods.node.flags.extend([
        format!("--image-credential-provider-config={}", config.display()),
        format!("--image-credential-provider-bin-dir={}", programs.display()),
    ]);
    pods.node.start_agent()?;
    create(pods, "by-plugin", "plugin/app", "Always", &json!({}))?;
    pods.wait_phase("by-plugin", "Running")?;
    let asked = std::fs::read_to_string(folder.join("asked")).context("the plugin was not asked")?;
    ensure!(asked.contains("CredentialProviderRequest") && asked.contains(&format!("{HOST}/plugin/app")), "{asked}");
    Ok(())
}

#[test]
fn images_come_from_a_registry_and_belong_to_who_may_pull_them() -> Result<()> {
    if tests::no_node() {
        return Ok(());
    }
    let mut pods = Pods::start("pulls", "")?;
    let registry = Registry::start(&pods.node.dir.join("images/busybox.tar"), &pods.node.dir.join("registry"))?;
    registry.announce(&pods.node.dir.join("certs.d"))?;
    // It waits for its image beside all else.
    create(&pods, "patient", "late/app", "Always", &json!({}))?;
    waits(&pods, "patient", "ImagePullBackOff")?;
    pods.node.wait_until("the failed pull is told", Duration::from_secs(20), || {
        Ok(pods.events("patient", "Failed")?.iter().any(|m| m == "Error: ErrImagePull"))
    })?;
    policies(&pods, &registry)?;
    let held = pods.told("patient", "BackOff")?;
    ensure!(held.iter().any(|m| m.starts_with(&format!("Back-off pulling image {:?}", image("late/app")))), "{held:?}");
    registry.let_in();
    secrets(&pods)?;
    let status = pods.wait_phase("patient", "Running")?;
    ensure!(container(&status, "main")["restartCount"] == 0, "{status:#}");
    plugins(&mut pods)?;
    // What ran goes on under the next agent, which pulls nothing for it.
    let before = registry.asked("late/app");
    std::thread::sleep(Duration::from_secs(2));
    pods.wait_phase("patient", "Running")?;
    ensure!(registry.asked("late/app") == before, "a running container's image is pulled again");
    Ok(())
}
