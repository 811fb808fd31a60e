//! Volumes hold what they are said to hold, follow what they are made from, keep to the pod, and leave nothing behind.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use tests::ApiServer;
use tests::node::Node;
use tests::pods::{Pods, container};

fn mounted(uid: &str) -> Result<Vec<String>> {
    let table = std::fs::read_to_string("/proc/self/mounts")?;
    Ok(table.lines().filter(|line| line.contains(uid)).map(str::to_owned).collect())
}

fn sources(pods: &Pods) -> Result<()> {
    let (server, node) = (&pods.server, &pods.node);
    server.create(
        &json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "map"}, "data": {"a": "1", "b": "2"}}),
    )?;
    server.create(
        &json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "key"}, "stringData": {"password": "hush"}}),
    )?;
    let token = json!({"serviceAccountToken": {"path": "token", "expirationSeconds": 600}});
    let label = json!({"downwardAPI": {"items": [{"path": "name", "fieldRef": {"fieldPath": "metadata.name"}}]}});
    let volumes = json!([
        {"name": "map", "configMap": {"name": "map", "items": [{"key": "a", "path": "deep/a"}, {"key": "b", "path": "b"}]}},
        {"name": "key", "secret": {"secretName": "key", "defaultMode": 256}},
        {"name": "all", "projected": {"sources": [token, label]}},
        {"name": "memory", "emptyDir": {"medium": "Memory", "sizeLimit": "3Mi"}},
        {"name": "disk", "emptyDir": {}},
    ]);
    let mounts = json!([{"name": "map", "mountPath": "/map"}, {"name": "key", "mountPath": "/key"},
        {"name": "all", "mountPath": "/all", "readOnly": true}, {"name": "memory", "mountPath": "/memory"},
        {"name": "disk", "mountPath": "/disk"}, {"name": "disk", "mountPath": "/part", "subPathExpr": "of-$(WHO)"},
        {"name": "map", "mountPath": "/one-file", "subPath": "b"}]);
    let who = json!([{"name": "WHO", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}]);
    let script = "echo x > /part/file; echo ready; exec sleep 1000";
    let main = Pods::shell(script, &json!({"volumeMounts": mounts, "env": who}));
    pods.create("reader", &json!({"volumes": volumes, "containers": [main]}))?;
    server.kubectl(&["wait", "--for=condition=Ready", "pod/reader", "--timeout=60s"])?;
    let ask = |script: &str| server.kubectl(&["exec", "reader", "--", "sh", "-c", script]);
    let said = ask("cat /map/deep/a /map/b /key/password /all/name /one-file; stat -Lc %a /key/password; ls /disk; \
                    stat -f -c '%T %b %S' /memory; touch /all/x 2>&1 || true")?;
    ensure!(said.starts_with("12hushreader2400\nof-reader\ntmpfs "), "{said}");
    ensure!(said.contains("Read-only file system"), "{said}");
    let size: Vec<u64> =
        said.lines().nth(2).context("a line")?.split(' ').skip(1).filter_map(|n| n.parse().ok()).collect();
    ensure!(size.iter().product::<u64>() == 3 << 20, "{said}");
    let claims = ask("cut -d. -f2 /all/token | tr _- /+")?;
    let claims: String = claims.trim().to_owned();
    ensure!(claims.len() > 100, "a token: {claims}");

    // All files of a map change at once, and one that was mounted by itself never does.
    let update = json!({"data": {"a": "3", "b": "4"}}).to_string();
    server.kubectl(&["patch", "configmap", "map", "-p", &update])?;
    node.wait_until("the map is written anew", Duration::from_secs(100), || {
        let said = ask("cat /map/deep/a /map/b /one-file")?;
        ensure!(said == "122" || said == "342", "half of an update: {said}");
        Ok(said == "342")
    })?;
    let uid = server.get("pod", "reader")?["metadata"]["uid"].as_str().context("a uid")?.to_owned();
    ensure!(!mounted(&uid)?.is_empty(), "memory and secrets are mounted");
    server.kubectl(&["delete", "pod", "reader", "--timeout=30s"])?;
    ensure!(mounted(&uid)?.is_empty(), "{:?}", mounted(&uid)?);
    let folder = node.dir.join("kubelet/pods").join(&uid);
    node.wait_until("its folder is gone", Duration::from_secs(30), || Ok(!folder.exists()))
}

/// Links inside a volume lead nowhere but into it.
fn links(pods: &Pods) -> Result<()> {
    let outside = pods.node.dir.join("outside");
    std::fs::create_dir_all(&outside)?;
    std::fs::write(outside.join("secret"), "hush")?;
    let link = json!({"name": "link", "volumeMounts": [{"name": "v", "mountPath": "/v"}]});
    let link = Pods::shell(&format!("ln -s {} /v/way-out", outside.display()), &link);
    let reads = json!({"volumeMounts": [{"name": "v", "mountPath": "/mine", "subPath": "way-out"}]});
    pods.create(
        "climber",
        &json!({"restartPolicy": "Never", "volumes": [{"name": "v", "emptyDir": {}}],
        "initContainers": [link], "containers": [Pods::shell("cat /mine/secret", &reads)]}),
    )?;
    let status = pods.wait("climber", "it is refused, or sees nothing", |s| {
        let main = &container(s, "main")["state"];
        main["waiting"]["reason"] == "CreateContainerConfigError" || !main["terminated"].is_null()
    })?;
    ensure!(
        container(&status, "main")["state"]["terminated"]["exitCode"] != 0,
        "it read what is not its own: {status:#}"
    );
    Ok(())
}

fn paths_of_the_host(pods: &Pods) -> Result<()> {
    let folder = pods.node.dir.join("host");
    std::fs::create_dir_all(&folder)?;
    std::fs::write(folder.join("file"), "x")?;
    let volume = |path: &str, kind: &str| json!([{"name": "h", "hostPath": {"path": folder.join(path), "type": kind}}]);
    let mounts = json!({"volumeMounts": [{"name": "h", "mountPath": "/h"}]});
    let made = json!({"volumes": volume("made", "DirectoryOrCreate")});
    ensure!(pods.said("makes", "touch /h/new && stat -c %F /h", &mounts, &made)? == "directory\n", "made");
    ensure!(folder.join("made/new").exists(), "it is the host's");
    for (name, path, kind, words) in [
        ("no-folder", "none", "Directory", "is not a directory"),
        ("no-file", "made", "File", "is not a file"),
        ("no-socket", "file", "Socket", "is not a socket file"),
    ] {
        pods.create(name, &json!({"volumes": volume(path, kind), "containers": [Pods::shell("true", &mounts)]}))?;
        pods.node.wait_until(name, Duration::from_secs(60), || {
            let told = pods.events(name, "FailedMount")?;
            Ok(told.iter().any(|m| m.contains("hostPath type check failed") && m.contains(words)))
        })?;
        let status: Value = pods.server.get("pod", name)?["status"].take();
        ensure!(status["phase"] == "Pending", "{status:#}");
    }
    Ok(())
}

/// Trust bundles come by name and by signer, and follow the cluster.
fn trusted() -> Result<()> {
    let gates = "--feature-gates=ClusterTrustBundle=true,ClusterTrustBundleProjection=true";
    let server = ApiServer::start("bundles", &[gates, "--runtime-config=certificates.k8s.io/v1beta1=true"])?;
    let settings = "syncFrequency: 1s\nfeatureGates: {ClusterTrustBundle: true, ClusterTrustBundleProjection: true}\n";
    let node = Node::start("bundles-node", &server, settings)?;
    let pods = Pods { node, server };
    let mut anchor = String::new();
    pods.node.wait_until("the cluster's own anchor is known", Duration::from_secs(30), || {
        let found = pods.server.get("configmap", "kube-root-ca.crt").map(|map| map["data"]["ca.crt"].clone());
        anchor = found.ok().and_then(|pem| pem.as_str().map(str::to_owned)).unwrap_or_default();
        Ok(!anchor.is_empty())
    })?;
    let bundle = |name: &str, spec: Value| {
        pods.server.create(&json!({"apiVersion": "certificates.k8s.io/v1beta1", "kind": "ClusterTrustBundle",
            "metadata": {"name": name, "labels": {"stage": "live"}}, "spec": spec}))
    };
    bundle("named", json!({"trustBundle": anchor}))?;
    let signed = json!({"signerName": "example.com/signer", "trustBundle": anchor});
    bundle("example.com:signer:one", signed)?;
    let selector = json!({"matchLabels": {"stage": "live"}});
    let by_signer = |path: &str, signer: &str| json!({"clusterTrustBundle": {"signerName": signer, "labelSelector": selector, "path": path, "optional": true}});
    let sources = json!([
        {"clusterTrustBundle": {"name": "named", "path": "named.pem"}},
        by_signer("signed.pem", "example.com/signer"),
        by_signer("later.pem", "example.com/later"),
    ]);
    let main = Pods::shell("exec sleep 1000", &json!({"volumeMounts": [{"name": "trust", "mountPath": "/trust"}]}));
    let volumes = json!([{"name": "trust", "projected": {"sources": sources}}]);
    pods.create("trusting", &json!({"volumes": volumes, "containers": [main]}))?;
    pods.wait_phase("trusting", "Running")?;
    let read = |file: &str| pods.server.kubectl(&["exec", "trusting", "--", "cat", &format!("/trust/{file}")]);
    ensure!(read("named.pem")?.trim() == anchor.trim(), "{}", read("named.pem")?);
    ensure!(read("signed.pem")?.trim() == anchor.trim(), "{}", read("signed.pem")?);
    ensure!(read("later.pem")?.is_empty(), "{}", read("later.pem")?);
    bundle("example.com:later:one", json!({"signerName": "example.com/later", "trustBundle": anchor}))?;
    pods.node.wait_until("the file follows", Duration::from_secs(60), || Ok(read("later.pem")?.trim() == anchor.trim()))
}

#[test]
fn volumes_hold_what_they_are_said_to_hold() -> Result<()> {
    if tests::no_node() {
        return Ok(());
    }
    let pods = Pods::start("volumes", "syncFrequency: 1s\n")?;
    paths_of_the_host(&pods)?;
    links(&pods)?;
    sources(&pods)?;
    drop(pods);
    trusted()
}
