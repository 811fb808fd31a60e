//! Images that nobody uses go when their disk fills up, longest unused first, and when they are too old; what is used stays.
//!
//! The kubelet looks every five minutes, and so does the agent: its clock is put forward. The disk is a file system in
//! memory.

use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use nix::sys::signal::Signal;
use serde_json::json;
use tests::ApiServer;
use tests::clock::Clock;
use tests::node::{IMAGE, Node};
use tests::pods::Pods;

const PATIENCE: Duration = Duration::from_secs(60);
const SETTINGS: &str = "imageGCHighThresholdPercent: 85\nimageGCLowThresholdPercent: 80\nimageMinimumGCAge: 1m\n\
                        imageMaximumGCAge: 8m\n";
const PERIOD: Duration = Duration::from_secs(301);
const SANDBOX: &str = "registry.k8s.io/pause:3.10";
/// What is told of the disk's size.
const SIZE: &str = "of 128.0 MiB used";
const MIB: u64 = 1 << 20;

/// The disk of the runtime; unmounted when dropped.
struct Disk(PathBuf);

impl Disk {
    fn mount(at: PathBuf) -> Result<Self> {
        let mounted =
            Command::new("mount").args(["-t", "tmpfs", "-o", "size=128m,mode=711", "none"]).arg(&at).status()?;
        ensure!(mounted.success(), "{} is not mounted", at.display());
        Ok(Disk(at))
    }

    /// Size and free bytes.
    fn room(&self) -> Result<(u64, u64)> {
        let output = Command::new("df").args(["-B1", "--output=size,avail"]).arg(&self.0).output()?;
        let text = String::from_utf8(output.stdout)?;
        let mut numbers = text.split_whitespace().filter_map(|word| word.parse().ok());
        Ok((numbers.next().context("a size")?, numbers.next().context("free bytes")?))
    }

    /// So many thousandths are in use then.
    fn fill(&self, thousandths: u64) -> Result<()> {
        self.empty()?;
        let (size, free) = self.room()?;
        let bytes = free.saturating_sub(size * (1000 - thousandths) / 1000);
        Ok(std::fs::write(self.0.join("filler"), vec![b'x'; usize::try_from(bytes)?])?)
    }

    fn empty(&self) -> Result<()> {
        let path = self.0.join("filler");
        if path.exists() {
            std::fs::remove_file(path)?;
        }
        Ok(())
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let _ = Command::new("umount").args(["--recursive", "--lazy"]).arg(&self.0).status();
    }
}

struct World {
    // The pods go first: they are on the disk.
    pods: Pods,
    disk: Disk,
    clock: Clock,
}

impl World {
    /// The runtime's images are on a disk of their own, and no agent runs yet.
    fn start() -> Result<Self> {
        let clock = Clock::new()?;
        let server = ApiServer::start("unused-images", &[])?;
        let mut node = Node::start_with("unused-images-node", &server, SETTINGS, &clock.variables()?)?;
        node.end_agent(Signal::SIGTERM);
        node.kill_containerd();
        let disk = Disk::mount(node.dir.join("containerd/root"))?;
        node.start_containerd()?;
        for image in ["pause.tar", "busybox.tar"] {
            node.ctr(&["images", "import", node.dir.join("images").join(image).to_str().context("a path in text")?])?;
        }
        Ok(World { pods: Pods { node, server }, disk, clock })
    }

    /// Brings an image of eight megabytes and more.
    fn import(&self, name: &str) -> Result<()> {
        let images = self.pods.node.dir.join("images");
        let (folder, bytes) = (images.join(name), usize::try_from(8 * MIB)?);
        let archive =
            tests::images::variant(&images.join("busybox.tar"), &folder, &format!("localhost/{name}:1"), bytes)?;
        self.pods.node.ctr(&["images", "import", archive.to_str().context("a path in text")?])?;
        Ok(())
    }

    /// Whether the images of these names are there, in this order.
    fn there<const COUNT: usize>(&self, names: [&str; COUNT]) -> Result<[bool; COUNT]> {
        let list = self.pods.node.ctr(&["images", "list", "-q"])?;
        Ok(names.map(|name| list.lines().any(|line| line == name || line == format!("localhost/{name}:1"))))
    }

    /// A sample of the agent's own metrics; 0 while there is none.
    fn metric(&self, sample: &str) -> Result<u64> {
        let path = format!("/api/v1/nodes/{}/proxy/metrics", self.pods.node.name);
        let page = self.pods.server.kubectl(&["get", "--raw", &path])?;
        let line = page.lines().find_map(|line| line.strip_prefix(sample)?.strip_prefix(' '));
        Ok(line.map_or(Ok(0), str::parse)?)
    }

    fn removed(&self, reason: &str) -> Result<u64> {
        self.metric(&format!("kubelet_image_garbage_collected_total{{reason=\"{reason}\"}}"))
    }

    /// Five minutes later, once there is what is waited for. The agent notices the time when it is asked something.
    fn later(&self, what: &str, mut done: impl FnMut() -> Result<bool>) -> Result<()> {
        self.clock.put_forward(PERIOD)?;
        self.pods.node.wait_until(what, PATIENCE, || {
            self.removed("age")?;
            done()
        })
    }
}

fn prepare(world: &mut World) -> Result<()> {
    world.import("idle")?;
    world.import("recent")?;
    world.pods.node.start_agent()?;
    let (pods, main) = (&world.pods, Pods::shell("exec sleep 1000", &json!({})));
    pods.create("keeper", &json!({"containers": [main]}))?;
    let used = Pods::shell("exec sleep 1000", &json!({"image": "localhost/recent:1"}));
    pods.create("user", &json!({"containers": [used]}))?;
    pods.wait_phase("keeper", "Running")?;
    pods.wait_phase("user", "Running")?;
    // What an agent sees in its first look counts from then: so begins one that sees all of this.
    world.pods.node.end_agent(Signal::SIGTERM);
    world.pods.node.start_agent()?;
    // Once for the records of pulls, once for the node's status, and once to collect.
    world.pods.node.wait_until("it has seen the images", PATIENCE, || {
        Ok(world.metric("kubelet_runtime_operations_total{operation_type=\"list_images\"}")? >= 3)
    })?;
    world.pods.server.kubectl(&["delete", "pod", "user", "--timeout=30s"])?;
    world.pods.node.wait_until("no container has the image", PATIENCE, || {
        Ok(!world.pods.node.ctr(&["containers", "list"])?.contains("localhost/recent:1"))
    })
}

fn collect(world: &World) -> Result<()> {
    // Six percent and a half are eight megabytes: one image is enough, and the other was used not long ago.
    world.disk.fill(865)?;
    world.later("the image that nobody ever used is gone", || Ok(world.there(["idle"])? == [false]))?;
    ensure!(world.there(["recent", IMAGE, SANDBOX])? == [true; 3], "what is used, or was, stays");
    world.disk.empty()?;

    // Ten minutes after it was used last it is too old. What came meanwhile is not, though it was never used.
    world.import("late")?;
    world.later("the image that is too old is gone", || Ok(world.there(["recent"])? == [false]))?;
    ensure!(world.there(["late", IMAGE, SANDBOX])? == [true; 3], "what is young or used stays");
    ensure!((world.removed("space")?, world.removed("age")?) == (1, 1), "and it is counted");
    // The first agent may have told of the machine's own disk.
    let told = world.pods.events(&world.pods.node.name, "FreeDiskSpaceFailed")?;
    ensure!(told.iter().all(|said| !said.contains(SIZE)), "there was enough to remove: {told:?}");

    // All that may go is not enough; what is used stays nevertheless.
    world.disk.fill(985)?;
    world.later("the last one that may go is gone", || Ok(world.there(["late"])? == [false]))?;
    ensure!(world.there([IMAGE, SANDBOX])? == [true; 2], "what is used stays");
    let begins = "Insufficient free disk space on the node's image filesystem (99% of 128.0 MiB used). Failed to free \
                  sufficient space by deleting unused images (freed ";
    world.pods.node.wait_until("the lack is told", PATIENCE, || {
        let told = world.pods.events(&world.pods.node.name, "FreeDiskSpaceFailed")?;
        let told: Vec<&String> = told.iter().filter(|said| said.contains(SIZE)).collect();
        ensure!(told.iter().all(|said| said.starts_with(begins)), "{told:?}");
        Ok(!told.is_empty())
    })?;
    world.disk.empty()?;
    let status = world.pods.server.get("pod", "keeper")?;
    ensure!(status["status"]["containerStatuses"][0]["restartCount"] == 0, "what runs runs on: {status:#}");
    Ok(())
}

#[test]
fn unused_images_go_by_age_and_for_want_of_room() -> Result<()> {
    if tests::no_node() {
        return Ok(());
    }
    let mut world = World::start()?;
    prepare(&mut world)?;
    collect(&world)
}
