//! Devices that claims allocate: a driver in Python registers, prepares the claims of a pod and gives them back, also when
//! the agent is killed in between, and its slices go when it stays away.
//!
//! Needs a runtime, so it is skipped with a stated reason where there is none.

use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use nix::sys::signal::Signal;
use serde_json::{Value, json};
use tests::ApiServer;
use tests::node::{IMAGE, Node};

const PATIENCE: Duration = Duration::from_secs(90);
const DRIVER: &str = "dra.example.com";

/// The driver's process; killed when dropped.
struct Driver(Child);

impl Drop for Driver {
    fn drop(&mut self) {
        // Gone already is as good.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

struct Cluster {
    node: Node,
    server: ApiServer,
}

impl Cluster {
    fn start(name: &str) -> Result<Self> {
        let server = ApiServer::start(name, &[])?;
        let node = Node::start(&format!("{name}-node"), &server, "nodeStatusUpdateFrequency: 1s\n")?;
        std::fs::create_dir_all(node.dir.join("driver"))?;
        Ok(Cluster { node, server })
    }

    fn python(&self, mode: &str) -> Command {
        let mut python = Command::new(tests::repository().join(".test/venv/bin/python"));
        python.arg(tests::repository().join("tests/python/dra_driver.py")).arg(mode);
        python.arg(tests::repository().join("proto/api/node")).arg(self.node.dir.join("kubelet"));
        python.arg(self.node.dir.join("driver"));
        python
    }

    fn driver(&self, version: &str) -> Result<Driver> {
        let log = std::fs::File::create(self.node.dir.join("driver.log"))?;
        let mut python = self.python("serve");
        let python = python.arg(version).stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
        Ok(Driver(python.spawn().context("starting the driver")?))
    }

    /// What PodResources says of the claims of a pod.
    fn listed(&self, pod: &str) -> Result<Value> {
        let output = self.python("list").output()?;
        ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        Ok(serde_json::from_slice::<Value>(&output.stdout)?[pod].clone())
    }

    /// The driver's calls of one kind.
    fn calls(&self, kind: &str) -> Vec<Value> {
        let text = std::fs::read_to_string(self.node.dir.join("driver/calls")).unwrap_or_default();
        let all = text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        all.filter(|call| call["call"] == kind).collect()
    }

    /// A claim and a pod that uses it, on a node or for the scheduler.
    fn ask(&self, name: &str, node: Option<&str>) -> Result<()> {
        let requests = json!([{"name": "it", "exactly": {"deviceClassName": "things"}}]);
        self.server
            .create(&json!({"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": {"name": name},
            "spec": {"devices": {"requests": requests}}}))?;
        self.server.create(&json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": {
            "nodeName": node, "terminationGracePeriodSeconds": 1,
            "resourceClaims": [{"name": "thing", "resourceClaimName": name}],
            "containers": [{"name": "main", "image": IMAGE, "command": ["sleep", "100000"],
                "resources": {"claims": [{"name": "thing"}]}}],
        }}))
    }

    /// The same with what a scheduler of somebody else would write, of a device that nobody publishes.
    fn pod(&self, name: &str) -> Result<()> {
        self.ask(name, Some(&self.node.name))?;
        let uid = self.server.get("pod", name)?["metadata"]["uid"].clone();
        let result = json!({"request": "it", "driver": DRIVER, "pool": "pool", "device": "device-0"});
        let status = json!({"status": {
            "allocation": {"devices": {"results": [result]}},
            "reservedFor": [{"resource": "pods", "name": name, "uid": uid}],
        }});
        let patch = ["patch", "resourceclaim", name, "--subresource=status", "--type=merge", "-p"];
        self.server.kubectl(&[&patch[..], &[&status.to_string()]].concat())?;
        Ok(())
    }

    fn wait_running(&self, name: &str) -> Result<()> {
        let running = || Ok(self.server.get("pod", name)?["status"]["phase"] == "Running");
        let waited = self.node.wait_until(&format!("{name} runs"), PATIENCE, running);
        waited.with_context(|| self.server.kubectl(&["get", "events"]).unwrap_or_default())
    }

    fn wait_health(&self, name: &str, word: &str) -> Result<()> {
        self.node.wait_until(&format!("the device of {name} is {word}"), PATIENCE, || {
            let pod = self.server.get("pod", name)?;
            let health = &pod["status"]["containerStatuses"][0]["allocatedResourcesStatus"][0];
            let of = &health["resources"][0];
            Ok(health["name"] == "claim:thing"
                && of["health"] == word
                && of["resourceID"] == format!("example.com/device={name}"))
        })
    }

    fn checkpoint(&self) -> Result<Value> {
        let file: Value = serde_json::from_slice(&std::fs::read(self.node.dir.join("kubelet/dra_manager_state"))?)?;
        Ok(serde_json::from_str(file["Data"].as_str().context("data in text")?)?)
    }
}

#[test]
fn claims_are_prepared_once_and_given_back_whoever_dies() -> Result<()> {
    if tests::python("grpc, grpc_tools").is_none() {
        tests::skipped("make test prepares .test/venv with grpcio");
        return Ok(());
    }
    if tests::no_node() {
        return Ok(());
    }
    let mut cluster = Cluster::start("claims")?;
    // Without a driver the pod waits, and says for whom.
    cluster.pod("first")?;
    let told =
        || Ok(cluster.server.kubectl(&["get", "events"])?.contains("DRA driver dra.example.com is not registered"));
    cluster.node.wait_until("the pod waits for the driver", PATIENCE, told)?;
    std::fs::write(cluster.node.dir.join("driver/refuse"), "")?;
    let driver = cluster.driver("v1")?;
    let refused = || {
        let event = "NodePrepareResources failed for ResourceClaim first: not today";
        Ok(cluster.server.kubectl(&["get", "events"])?.contains(event))
    };
    cluster.node.wait_until("the driver refuses", PATIENCE, refused)?;
    std::fs::remove_file(cluster.node.dir.join("driver/refuse"))?;
    cluster.wait_running("first")?;
    let uid = cluster.server.get("resourceclaim", "first")?["metadata"]["uid"].clone();
    let prepared = || cluster.calls("prepare").into_iter().filter(|call| call["refused"] == false).collect::<Vec<_>>();
    assert_eq!(prepared().len(), 1, "{:?}", cluster.calls("prepare"));
    assert_eq!(prepared()[0]["uid"], uid);
    let device = json!([[DRIVER, "pool", "device-0", ["example.com/device=first"]]]);
    assert_eq!(cluster.listed("first")?, json!({"first": device}));
    let data = cluster.checkpoint()?;
    assert_eq!(data["ClaimInfoStateList"][0]["DriverState"][DRIVER]["Devices"][0]["DeviceName"], "device-0", "{data}");
    cluster.wait_health("first", "Healthy")?;
    std::fs::write(cluster.node.dir.join("driver/health"), "UNHEALTHY")?;
    cluster.wait_health("first", "Unhealthy")?;
    drop(driver);
    cluster.wait_health("first", "Unknown")?;

    // The pod goes while neither driver nor agent is there; who comes back gives the claim back, by the older service.
    cluster.node.end_agent(Signal::SIGKILL);
    cluster.server.kubectl(&["delete", "pod", "first", "--wait=false"])?;
    cluster.node.start_agent()?;
    cluster.node.wait_until("the node is Ready", PATIENCE, || Ok(cluster.node.is_ready(&cluster.server)))?;
    assert!(cluster.server.get("pod", "first").is_ok(), "nobody has given the claim back yet");
    let driver = cluster.driver("v1beta1")?;
    cluster.node.wait_until("the pod is gone", PATIENCE, || Ok(cluster.server.get("pod", "first").is_err()))?;
    assert!(cluster.calls("unprepare").iter().any(|call| call["uid"] == uid), "{:?}", cluster.calls("unprepare"));
    assert_eq!(cluster.checkpoint()?["ClaimInfoStateList"], json!([]));

    // Nobody but who allocated it by hand gives the first claim's device back.
    cluster.server.kubectl(&["delete", "resourceclaim", "first"])?;
    // The scheduler gives the second pod the device once the driver's slice is there.
    cluster.server.create(&json!({"apiVersion": "resource.k8s.io/v1", "kind": "DeviceClass",
        "metadata": {"name": "things"},
        "spec": {"selectors": [{"cel": {"expression": format!("device.driver == '{DRIVER}'")}}]}}))?;
    cluster.ask("second", None)?;
    let waits = || Ok(cluster.server.get("pod", "second")?.to_string().contains("cannot allocate all claims"));
    cluster.node.wait_until("there is no device for the second pod", PATIENCE, waits)?;
    for (name, driver) in [("own", DRIVER), ("other", "other.example.com")] {
        cluster.server.create(
            &json!({"apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice", "metadata": {"name": name},
            "spec": {"driver": driver, "nodeName": cluster.node.name, "devices": [{"name": "device-0"}],
                "pool": {"name": "pool", "generation": 1, "resourceSliceCount": 1}}}),
        )?;
    }
    cluster.wait_running("second")?;
    let claim = cluster.server.get("resourceclaim", "second")?;
    assert_eq!(claim["status"]["allocation"]["devices"]["results"][0]["device"], "device-0", "{claim}");
    cluster.server.kubectl(&["delete", "pod", "second", "--timeout=60s"])?;
    let given_back = || Ok(cluster.server.get("resourceclaim", "second")?["status"].get("allocation").is_none());
    cluster.node.wait_until("the claim has no device any more", PATIENCE, given_back)?;
    // Slices of a driver that stays away are taken from the API server, those of others are not.
    assert!(cluster.server.get("resourceslice", "own").is_ok());
    drop(driver);
    let wiped = || Ok(cluster.server.get("resourceslice", "own").is_err());
    cluster.node.wait_until("the driver's slice is gone", PATIENCE, wiped)?;
    assert!(cluster.server.get("resourceslice", "other").is_ok());
    Ok(())
}
