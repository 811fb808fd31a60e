//! The agent asks the runtime for what the kubelet asks, and says of its pods what the kubelet says, where the recordings
//! lie beside the checkout.

use std::path::{Path, PathBuf};
use std::process::{Child, Command};

use anyhow::{Context, Result, ensure};
use nix::sys::signal::Signal;
use tests::ApiServer;
use tests::node::Node;

/// Asks for an image that serves the gRPC health protocol, which no Debian package has.
const WITHOUT_IMAGE: &str = "grpc-probes";

/// A proxy that writes down every call; it ends with the value.
struct Proxy(Child);

impl Drop for Proxy {
    fn drop(&mut self) {
        // Gone already is as good.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Where one node's replays live.
struct Replay<'a> {
    python: PathBuf,
    recordings: PathBuf,
    node: &'a Node,
    server: &'a ApiServer,
}

impl Replay<'_> {
    /// The script, with what every mode of it wants.
    fn script(&self, mode: &str) -> Command {
        let dir = &self.node.dir;
        let mut command = Command::new(&self.python);
        command.arg(self.recordings.join("noderec.py")).arg(mode);
        command.arg("--runtime").arg(dir.join("cri.sock")).arg("--log").arg(dir.join("calls.log"));
        command.arg("--proto").arg(tests::repository().join("proto/api/cri/runtime_v1.proto"));
        command.arg("--stubs").arg(dir.join("stubs"));
        command
    }

    fn proxy(&self) -> Result<Proxy> {
        let dir = &self.node.dir;
        let child = self.script("proxy").arg("--listen").arg(dir.join("proxy.sock")).spawn()?;
        let proxy = Proxy(child);
        self.node.wait_until("the proxy listens", std::time::Duration::from_secs(60), || {
            Ok(dir.join("proxy.sock").exists())
        })?;
        Ok(proxy)
    }

    /// Plays cases; answers with the names of those that differ and what was said of them.
    fn play(&self, only: &str, jobs: u8) -> Result<(Vec<String>, String)> {
        let dir = &self.node.dir;
        let output = self
            .script("check")
            .args(["--jobs", &jobs.to_string(), "--only", only, "--node", &self.node.name, "--kubeconfig"])
            .arg(self.server.kubeconfig())
            .arg("--root-dir")
            .arg(dir.join("kubelet"))
            .arg("--static-dir")
            .arg(self.node.manifests())
            .output()?;
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        ensure!(said.contains(" passed, "), "{said}{}", String::from_utf8_lossy(&output.stderr));
        let failed = said.lines().filter_map(|line| line.strip_prefix("FAIL "));
        Ok((failed.filter_map(|rest| Some(rest.split(" - ").next()?.to_owned())).collect(), said))
    }
}

/// Images as the recordings want them: a static shell, in three ways of saying who runs it.
fn import_images(node: &Node, lab: &Path) -> Result<()> {
    let dir = node.dir.join("recorded-images");
    std::fs::create_dir_all(&dir)?;
    let users = "root:x:0:0::/:/bin/sh\nnobody:x:65534:65534::/:/bin/sh\napp:x:1000:2000::/:/bin/sh\n";
    std::fs::write(dir.join("passwd"), users)?;
    std::fs::write(dir.join("group"), "root:x:0:\napp:x:2000:\nextra:x:3000:app\nnogroup:x:65534:\n")?;
    let images: [(&str, &[&str]); 3] = [("box", &[]), ("user", &["--user", "1000"]), ("named", &["--user", "app"])];
    for (name, user) in images {
        let archive = dir.join(format!("{name}.tar"));
        let made = Command::new("python3")
            .current_dir(&dir)
            .arg(lab.join("ociimage.py"))
            .arg(&archive)
            .arg(format!("noderec.test/{name}:1"))
            .args(user)
            .args(["--cmd", "sh", "/usr/bin/busybox=/bin/busybox", "@busybox=/bin/sh", "@busybox=/bin/sleep"])
            .args(["passwd=/etc/passwd:644", "group=/etc/group:644", "/tmp/:1777", "/data/"])
            .status()?;
        ensure!(made.success(), "no image {name}");
        node.ctr(&["images", "import", archive.to_str().context("a path in text")?])?;
    }
    node.ctr(&["images", "tag", tests::node::IMAGE, "docker.io/library/busybox:latest"])?;
    Ok(())
}

/// A root folder that mounts pass into containers and back, as a kubelet's is.
struct Shared(PathBuf);

impl Shared {
    fn mount(folder: PathBuf) -> Result<Self> {
        let mount = |args: &[&str]| Command::new("mount").args(args).arg(&folder).status();
        let path = folder.to_str().context("a path in text")?;
        ensure!(mount(&["--bind", path])?.success() && mount(&["--make-rshared"])?.success(), "{path} is not mounted");
        Ok(Shared(folder))
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        let _ = Command::new("umount").args(["--recursive", "--lazy"]).arg(&self.0).status();
    }
}

/// Puts the proxy between agent and runtime, and sets what the recordings were made with.
fn reconfigure(node: &mut Node) -> Result<Shared> {
    let dir = node.dir.clone();
    std::fs::write(dir.join("resolv.conf"), "nameserver 192.0.2.53\nsearch node.example\noptions timeout:1\n")?;
    let path = dir.join("agent.yaml");
    let text = std::fs::read_to_string(&path)?;
    let text = text.replace("cri.sock", "proxy.sock").replace("fileCheckFrequency: 1s\n", "");
    // A node's own address is masked wherever it stands, so it must not be that of the host's loopback.
    let text = text.replace("address: 127.0.0.1\n", "");
    node.address = None;
    // The recordings have the folder of logs where the kubelet has it.
    let text = text.replace(&format!("podLogsDir: {}/pod-logs\n", dir.display()), "");
    std::fs::write(&path, format!("{text}resolvConf: {}/resolv.conf\n", dir.display()))?;
    node.end_agent(Signal::SIGTERM);
    let shared = Shared::mount(dir.join("kubelet"))?;
    node.start_agent()?;
    Ok(shared)
}

fn replay(python: PathBuf, shared: &Path) -> Result<()> {
    let server = ApiServer::start("node-recordings", &["--controllers=-*", "--scheduler=false"])?;
    let dns = "clusterDNS: [10.96.0.10]\nclusterDomain: cluster.local\n";
    let mut node = Node::start("node-rec", &server, dns)?;
    import_images(&node, &shared.join("lab"))?;
    let recordings = shared.join("node-recordings");
    let proxy =
        Replay { python: python.clone(), recordings: recordings.clone(), node: &node, server: &server }.proxy()?;
    let mounted = reconfigure(&mut node)?;
    let replay = Replay { python, recordings, node: &node, server: &server };
    let (failed, said) = replay.play(&format!("^(?!{WITHOUT_IMAGE})"), 6)?;
    println!("{said}");
    if !failed.is_empty() {
        // Probes with a limit of a second miss it on a machine that builds at the same time: alone they have the time.
        let only = format!("^({})$", failed.join("|"));
        let (failed, said) = replay.play(&only, 1)?;
        ensure!(failed.is_empty(), "{said}{}", node.logs());
    }
    node.end_agent(Signal::SIGTERM);
    drop((proxy, mounted));
    Ok(())
}

#[test]
fn pods_are_run_as_recorded() {
    let shared = tests::recordings("node-recordings/noderec.py").filter(|p| p.join("lab/ociimage.py").exists());
    let (Some(shared), Some(python)) = (shared, tests::python("yaml")) else {
        tests::skipped("no recordings beside the checkout, or no .test/venv");
        return;
    };
    if tests::no_node() {
        return;
    }
    replay(python, &shared).expect("as recorded");
}
