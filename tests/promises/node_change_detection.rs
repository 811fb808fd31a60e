//! Volumes follow config maps and secrets by each way of asking that a node can be told (the default, watches, is told of in
//! `node_volumes`), and the API server is asked no more often than that way takes: seen by its audit log.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Result, ensure};
use serde_json::{Value, json};
use tests::node::Node;
use tests::pods::Pods;
use tests::{ApiServer, scratch};

const POLICY: &str = "apiVersion: audit.k8s.io/v1\nkind: Policy\nomitStages: [RequestReceived]\nrules:\n\
    - level: Metadata\n  userGroups: [\"system:nodes\"]\n  resources: [{group: '', resources: [configmaps, secrets]}]\n\
    - {level: None}\n";

/// How often nodes have done this with an object, by the log.
fn asked(audit: &Path, verb: &str, name: &str) -> Result<usize> {
    let text = std::fs::read_to_string(audit)?;
    // The last line may be half written.
    let lines = text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    Ok(lines.filter(|event| event["verb"] == verb && event["objectRef"]["name"] == name).count())
}

fn make(server: &ApiServer, kind: &str, name: &str, value: &str) -> Result<()> {
    let member = if kind == "Secret" { "stringData" } else { "data" };
    server.create(&json!({"apiVersion": "v1", "kind": kind, "metadata": {"name": name}, member: {"value": value}}))
}

fn change(server: &ApiServer, kind: &str, name: &str, value: &str) -> Result<()> {
    let member = if kind == "Secret" { "stringData" } else { "data" };
    let patch = json!({member: {"value": value}}).to_string();
    server.kubectl(&["patch", kind, name, "-p", &patch])?;
    Ok(())
}

/// A pod with the map and the secret, and its own annotations, below `/from`.
fn reader(pods: &Pods, name: &str, map: &str, secret: &str) -> Result<()> {
    let notes = json!({"items": [{"path": "notes", "fieldRef": {"fieldPath": "metadata.annotations"}}]});
    let mounts = ["map", "secret", "own"].map(|volume| json!({"name": volume, "mountPath": format!("/from/{volume}")}));
    let main = Pods::shell("exec sleep 1000", &json!({"volumeMounts": mounts}));
    let volumes = json!([{"name": "map", "configMap": {"name": map}}, {"name": "secret", "secret": {"secretName": secret}},
        {"name": "own", "downwardAPI": notes}]);
    pods.create(name, &json!({"volumes": volumes, "containers": [main]}))
}

/// The files of a pod, as they are on the node.
fn files(pods: &Pods, name: &str) -> Result<PathBuf> {
    let pod = pods.server.get("pod", name)?;
    let uid = pod["metadata"]["uid"].as_str().unwrap_or_default();
    Ok(pods.node.dir.join("kubelet/pods").join(uid).join("volumes"))
}

fn read(files: &Path, plugin: &str, file: &str) -> String {
    std::fs::read_to_string(files.join(format!("kubernetes.io~{plugin}")).join(file)).unwrap_or_default()
}

/// Values of the map and of the secret.
fn values(files: &Path) -> (String, String) {
    (read(files, "configmap", "map/value"), read(files, "secret", "secret/value"))
}

fn becomes(pods: &Pods, files: &Path, value: &str) -> Result<()> {
    pods.node.wait_until(&format!("both are {value}"), Duration::from_secs(30), || {
        let now = values(files);
        ensure!(now == (value.to_owned(), value.to_owned()), "{now:?}");
        Ok(true)
    })
}

/// Returns once the pod has been gone over after what was done before.
fn gone_over(pods: &Pods, name: &str, files: &Path, mark: &str) -> Result<()> {
    pods.server.kubectl(&["annotate", "--overwrite", "pod", name, &format!("mark={mark}")])?;
    let wanted = format!("mark={mark:?}");
    pods.node.wait_until("its annotation is in the volume", Duration::from_secs(30), || {
        Ok(read(files, "downward-api", "own/notes").contains(&wanted))
    })
}

fn keep_for(pods: &Pods, seconds: u32) -> Result<()> {
    let note = format!("node.alpha.kubernetes.io/ttl={seconds}");
    pods.server.kubectl(&["annotate", "--overwrite", "node", &pods.node.name, &note])?;
    Ok(())
}

/// The objects are read whenever a pod is gone over.
fn get(pods: &Pods, audit: &Path) -> Result<()> {
    make(&pods.server, "ConfigMap", "got-map", "1")?;
    make(&pods.server, "Secret", "got-secret", "1")?;
    reader(pods, "getter", "got-map", "got-secret")?;
    pods.wait_phase("getter", "Running")?;
    let files = files(pods, "getter")?;
    becomes(pods, &files, "1")?;
    for name in ["got-map", "got-secret"] {
        let before = asked(audit, "get", name)?;
        ensure!(before > 0, "{name} was not read");
        // Nothing has changed, and it is read all the same.
        pods.node.wait_until(&format!("{name} is read again and again"), Duration::from_secs(30), || {
            Ok(asked(audit, "get", name)? >= before + 2)
        })?;
    }
    change(&pods.server, "ConfigMap", "got-map", "2")?;
    change(&pods.server, "Secret", "got-secret", "2")?;
    becomes(pods, &files, "2")?;
    for (verb, name) in [("watch", "got-map"), ("list", "got-map"), ("watch", "got-secret"), ("list", "got-secret")] {
        ensure!(asked(audit, verb, name)? == 0, "{verb} of {name}");
    }
    Ok(())
}

/// The objects are read when a pod comes that refers to them, and then when their time is over.
fn cache(pods: &Pods, audit: &Path) -> Result<()> {
    // Longer than the test; without this word a minute, which is as good.
    keep_for(pods, 3600)?;
    make(&pods.server, "ConfigMap", "kept-map", "1")?;
    make(&pods.server, "Secret", "kept-secret", "1")?;
    reader(pods, "first", "kept-map", "kept-secret")?;
    pods.wait_phase("first", "Running")?;
    let first = files(pods, "first")?;
    becomes(pods, &first, "1")?;
    let read = || -> Result<_> { Ok((asked(audit, "get", "kept-map")?, asked(audit, "get", "kept-secret")?)) };
    let once = read()?;
    change(&pods.server, "ConfigMap", "kept-map", "2")?;
    change(&pods.server, "Secret", "kept-secret", "2")?;
    for mark in ["a", "b", "c"] {
        gone_over(pods, "first", &first, mark)?;
    }
    ensure!(read()? == once, "read again within their time: {once:?}, {:?}", read()?);
    ensure!(values(&first) == ("1".to_owned(), "1".to_owned()), "{:?}", values(&first));
    // What comes sees what there is, and what was there with it.
    reader(pods, "second", "kept-map", "kept-secret")?;
    pods.wait_phase("second", "Running")?;
    let second = files(pods, "second")?;
    ensure!(values(&second) == ("2".to_owned(), "2".to_owned()), "{:?}", values(&second));
    becomes(pods, &first, "2")?;
    // Both may ask at the same moment, and then neither does again.
    for (now, once) in [(read()?.0, once.0), (read()?.1, once.1)] {
        ensure!((once + 1..=once + 2).contains(&now), "read {once} times before the second, and now {now}");
    }
    // That something is not there is nothing to keep.
    reader(pods, "early", "late-map", "late-secret")?;
    pods.told_of("early", "FailedMount", "configmap \"late-map\" not found")?;
    make(&pods.server, "ConfigMap", "late-map", "1")?;
    make(&pods.server, "Secret", "late-secret", "1")?;
    pods.wait_phase("early", "Running")?;
    // Their time is over.
    change(&pods.server, "ConfigMap", "kept-map", "3")?;
    change(&pods.server, "Secret", "kept-secret", "3")?;
    keep_for(pods, 0)?;
    becomes(pods, &first, "3")?;
    becomes(pods, &second, "3")?;
    for (verb, name) in [("watch", "kept-map"), ("list", "kept-map"), ("watch", "kept-secret"), ("list", "kept-secret")]
    {
        ensure!(asked(audit, verb, name)? == 0, "{verb} of {name}");
    }
    Ok(())
}

#[test]
fn volumes_follow_their_sources_by_each_way_of_asking() -> Result<()> {
    if tests::no_node() {
        return Ok(());
    }
    let folder = scratch("change-detection-audit")?;
    let (policy, audit) = (folder.join("policy.yaml"), folder.join("audit.log"));
    std::fs::write(&policy, POLICY)?;
    let arguments = [
        // It would say how long objects are kept.
        "--controllers=*,-ttl-controller".to_owned(),
        format!("--audit-policy-file={}", policy.display()),
        format!("--audit-log-path={}", audit.display()),
    ];
    let server = ApiServer::start("change-detection", &arguments.each_ref().map(String::as_str))?;
    let settings = |way: &str| format!("syncFrequency: 1s\nconfigMapAndSecretChangeDetectionStrategy: {way}\n");
    let node = Node::start("getting-node", &server, &settings("Get"))?;
    let pods = Pods { node, server };
    get(&pods, &audit)?;
    // No pod of it is gone over any more.
    let Pods { node, server } = pods;
    drop(node);
    let node = Node::start("keeping-node", &server, &settings("Cache"))?;
    cache(&Pods { node, server }, &audit)
}
