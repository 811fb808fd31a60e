//! A storage driver is found and used: a claim bound for the first pod that wants it, a file that outlives pods, and
//! nothing left mounted, also when the agent is killed in between.
//!
//! Needs a runtime, so it is skipped with a stated reason where there is none.

use std::time::Duration;

use anyhow::{Context, Result};
use nix::sys::signal::Signal;
use serde_json::json;
use tests::ApiServer;
use tests::node::{IMAGE, Node};
use tests::storage_driver::{DRIVER, Running};

const PATIENCE: Duration = Duration::from_secs(90);

struct Cluster {
    // Dropped in this order: containers hold mounts, mounts hold the driver.
    node: Node,
    driver: Running,
    server: ApiServer,
}

impl Cluster {
    fn start(name: &str) -> Result<Self> {
        let server = ApiServer::start(name, &[])?;
        let node = Node::start(&format!("{name}-node"), &server, "")?;
        let folders = node.dir.join("folders");
        std::fs::create_dir_all(&folders)?;
        let driver = Running::start(&node.dir.join("kubelet/plugins_registry"), &folders, &node.name)?;
        Ok(Cluster { node, driver, server })
    }

    fn pod(&self, name: &str, script: &str) -> Result<()> {
        self.server.create(&json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": {
            "terminationGracePeriodSeconds": 1,
            "containers": [{"name": "main", "image": IMAGE, "command": ["sh", "-c", script],
                "volumeMounts": [{"name": "data", "mountPath": "/data"}]}],
            "volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}],
        }}))
    }

    fn wait_running(&self, name: &str) -> Result<()> {
        let running = || Ok(self.server.get("pod", name)?["status"]["phase"] == "Running");
        let waited = self.node.wait_until(&format!("{name} runs"), PATIENCE, running);
        waited.with_context(|| self.server.kubectl(&["get", "events,pvc,pv"]).unwrap_or_default())
    }

    fn storage(&self) -> Result<()> {
        self.server
            .create(&json!({"apiVersion": "storage.k8s.io/v1", "kind": "CSIDriver", "metadata": {"name": DRIVER},
            "spec": {"attachRequired": false}}))?;
        self.server.create(
            &json!({"apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "metadata": {"name": "folders"},
            "provisioner": "kubernetes.io/no-provisioner", "volumeBindingMode": "WaitForFirstConsumer"}),
        )?;
        let mode = ["ReadWriteOnce"];
        self.server.create(
            &json!({"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": "disk"}, "spec": {
                "capacity": {"storage": "1Gi"}, "accessModes": mode, "storageClassName": "folders",
                "persistentVolumeReclaimPolicy": "Retain", "csi": {"driver": DRIVER, "volumeHandle": "disk-1"},
                "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [
                    {"key": "topology.folder.example.com/node", "operator": "In", "values": [self.node.name]}]}]}},
            }}),
        )?;
        self.server.create(
            &json!({"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "data"}, "spec": {
            "accessModes": mode, "storageClassName": "folders", "resources": {"requests": {"storage": "1Gi"}}}}),
        )
    }
}

#[test]
fn a_volume_of_a_driver_outlives_pods_and_the_agent() -> Result<()> {
    if tests::no_node() {
        return Ok(());
    }
    let mut cluster = Cluster::start("storage")?;
    let registered = || {
        let drivers = cluster.server.get("csinode", &cluster.node.name)?["spec"]["drivers"].clone();
        let labels = cluster.server.get("node", &cluster.node.name)?["metadata"]["labels"].clone();
        let known = drivers[0]["name"] == DRIVER && drivers[0]["allocatable"]["count"] == 5;
        Ok(known && labels["topology.folder.example.com/node"] == *cluster.node.name)
    };
    cluster.node.wait_until("the driver is registered", PATIENCE, registered)?;
    cluster.storage()?;
    cluster.pod("writer", "echo kept > /data/file; sleep 100000")?;
    cluster.wait_running("writer")?;
    let driver = cluster.driver.driver.clone();
    let file = driver.folder("disk-1").join("file");
    cluster.node.wait_until("the pod has written", PATIENCE, || Ok(std::fs::read_to_string(&file)? == "kept\n"))?;
    let uid = cluster.server.get("pod", "writer")?["metadata"]["uid"].as_str().unwrap_or_default().to_owned();
    let target = format!("{}/kubelet/pods/{uid}/volumes/kubernetes.io~csi/disk/mount", cluster.node.dir.display());
    assert!(driver.calls().contains(&format!("publish {target}")), "{:?}", driver.calls());

    cluster.node.end_agent(Signal::SIGKILL);
    cluster.server.kubectl(&["delete", "pod", "writer", "--wait=false"])?;
    cluster.node.start_agent()?;
    let gone = || Ok(cluster.server.get("pod", "writer").is_err() && driver.mounted() == 0);
    cluster.node.wait_until("the pod is gone and nothing is mounted", PATIENCE, gone)?;
    assert!(driver.calls().contains(&format!("unpublish {target}")), "{:?}", driver.calls());
    assert!(driver.calls().iter().any(|c| c.starts_with("unstage ")), "{:?}", driver.calls());

    cluster.pod("reader", "grep kept /data/file && sleep 100000")?;
    cluster.wait_running("reader")?;
    cluster.server.kubectl(&["delete", "pod", "reader", "--timeout=60s"])?;
    cluster.node.wait_until("nothing is mounted", PATIENCE, || Ok(driver.mounted() == 0))?;
    assert_eq!(std::fs::read_to_string(&file)?, "kept\n");
    Ok(())
}
