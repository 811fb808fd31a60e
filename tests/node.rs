//! A node of its own for a test: a real containerd and a real `node-agent` in one folder.
//!
//! Nothing is shared with the machine's own runtime: socket, images, bridge and address range belong to the node, and
//! its drop ends every container. Either daemon can be killed and started again while the other goes on.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::daemon::{ApiServer, free_port, release_binary, repository, scratch};

/// An image with a shell that every node has.
pub const IMAGE: &str = "localhost/busybox:1";

/// A containerd and an agent; both end when it is dropped.
pub struct Node {
    pub name: String,
    pub dir: PathBuf,
    /// Address that the agent is told to use; without one it finds its own.
    pub address: Option<&'static str>,
    /// Of the agent's own server.
    pub port: u16,
    /// Further flags of the agent.
    pub flags: Vec<String>,
    /// A program that starts the agent in its own place, and its arguments.
    pub under: Vec<String>,
    bridge: String,
    environment: BTreeMap<String, String>,
    containerd: Option<Child>,
    agent: Option<Child>,
}

impl Node {
    /// Why no node can be had on this machine; `None` when it can.
    pub fn why_not() -> Option<&'static str> {
        if !nix::unistd::geteuid().is_root() {
            return Some("root, which containers need");
        }
        let tools = ["containerd", "ctr", "runc", "kubectl", "busybox", "ip", "cc"];
        tools.into_iter().find(|tool| Command::new(tool).arg("--help").output().is_err())
    }

    /// Starts both daemons and waits until the node is Ready. `settings` are further lines of the agent's
    /// configuration.
    ///
    /// # Errors
    /// When something does not start; the text ends with the log.
    pub fn start(name: &str, server: &ApiServer, settings: &str) -> Result<Self> {
        Node::start_with(name, server, settings, &[])
    }

    /// The same with variables in the agent's environment.
    ///
    /// # Errors
    /// As [`Node::start`].
    pub fn start_with(name: &str, server: &ApiServer, settings: &str, environment: &[(&str, &str)]) -> Result<Self> {
        Node::prepare(name, environment, None)?.join(server, settings)
    }

    /// The same through another program, which must become the agent: `sh -c '...; exec "$@"' sh`.
    ///
    /// # Errors
    /// As [`Node::start`].
    pub fn start_under(name: &str, server: &ApiServer, settings: &str, under: &[&str]) -> Result<Self> {
        let mut node = Node::prepare(name, &[], None)?;
        node.under = under.iter().map(|&word| word.to_owned()).collect();
        node.join(server, settings)
    }

    /// The same where pods and the node have addresses of both families.
    ///
    /// # Errors
    /// As [`Node::start`].
    pub fn start_dual(name: &str, server: &ApiServer, settings: &str) -> Result<Self> {
        let mut node = Node::prepare(name, &[], Some("fd74:6e6f:6465"))?;
        node.address = Some("127.0.0.1,::1");
        node.join(server, settings)
    }

    /// Why no node can have addresses of both families; `None` when it can.
    pub fn why_not_dual() -> Option<&'static str> {
        let disabled = std::fs::read_to_string("/proc/sys/net/ipv6/conf/all/disable_ipv6");
        if !disabled.is_ok_and(|text| text.trim() == "0") {
            return Some("pods with IPv6 need IPv6");
        }
        let tables = Command::new("ip6tables").args(["-t", "nat", "-L", "-n"]).output();
        (!tables.is_ok_and(|output| output.status.success())).then_some("pods with IPv6 need ip6tables with nat")
    }

    /// Starts the agent beside a server and waits until the node is Ready.
    fn join(mut self, server: &ApiServer, settings: &str) -> Result<Self> {
        let node = &mut self;
        node.introduce(server)?;
        node.settle(server, settings)?;
        node.start_agent()?;
        node.wait_until("the node is Ready", Duration::from_secs(60), || Ok(node.is_ready(server)))?;
        Ok(self)
    }

    /// Starts both daemons without an API server, and waits until the agent takes pods. Its server lets everybody in.
    ///
    /// # Errors
    /// As [`Node::start`].
    pub fn start_alone(name: &str, settings: &str) -> Result<Self> {
        let mut node = Node::prepare(name, &[], None)?;
        node.configure(crate::agent::STANDALONE, settings)?;
        node.start_agent()?;
        node.wait_until("the agent shows its pods", Duration::from_secs(60), || Ok(node.pods().is_ok()))?;
        Ok(node)
    }

    /// The pods as the agent itself shows them.
    ///
    /// # Errors
    /// When it does not let everybody ask, or does not answer with a list.
    pub fn pods(&self) -> Result<Vec<serde_json::Value>> {
        let output = run(Command::new("curl").args(["-skf", &format!("https://127.0.0.1:{}/pods", self.port)]))?;
        let list: serde_json::Value = serde_json::from_slice(&output.stdout)?;
        Ok(list["items"].as_array().cloned().unwrap_or_default())
    }

    /// A folder with a running containerd that has the images; no agent yet. `six`: how the pods' IPv6 addresses begin.
    fn prepare(name: &str, environment: &[(&str, &str)], six: Option<&str>) -> Result<Self> {
        static COUNT: AtomicU8 = AtomicU8::new(0);
        // Address ranges of nodes under test at the same time must differ.
        let (process, count) = (std::process::id() % 250, COUNT.fetch_add(1, Ordering::Relaxed));
        let mut node = Node {
            name: name.to_owned(),
            dir: scratch(name)?,
            address: Some("127.0.0.1"),
            port: free_port()?,
            flags: Vec::new(),
            under: Vec::new(),
            bridge: format!("t{process}x{count}"),
            environment: environment.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect(),
            containerd: None,
            agent: None,
        };
        let subnet = format!("10.{}.{process}.0/24", 100 + u32::from(count) % 100);
        let subnet6 = six.map(|prefix| format!("{prefix}:{process:x}{count:02x}::/64"));
        let mut configure = Command::new(repository().join("packaging/run/containerd.sh"));
        run(configure.arg(&node.dir).arg(node.socket()).arg(&node.bridge).arg(subnet).args(subnet6))?;
        node.start_containerd()?;
        let images = node.dir.join("images");
        run(Command::new(repository().join("packaging/images/build.sh")).arg(&images))?;
        for image in ["pause.tar", "busybox.tar"] {
            node.ctr(&["images", "import", images.join(image).to_str().context("a path in text")?])?;
        }
        Ok(node)
    }

    fn socket(&self) -> PathBuf {
        self.dir.join("cri.sock")
    }

    /// The folder of static pods.
    pub fn manifests(&self) -> PathBuf {
        self.dir.join("manifests")
    }

    /// Gets the agent a kubeconfig of the server.
    fn introduce(&self, server: &ApiServer) -> Result<()> {
        run(Command::new(release_binary("apiserver-lite")?)
            .args(["kubeconfig", "--group", "system:nodes", "--user"])
            .arg(format!("system:node:{}", self.name))
            .args(["--server", &format!("https://127.0.0.1:{}", server.port), "--data-dir"])
            .arg(&server.dir)
            .arg("--out")
            .arg(self.kubeconfig()))?;
        Ok(())
    }

    /// Gives the node another name, which the server lets it have, from the agent's next start on.
    ///
    /// # Errors
    /// When the server's program makes no kubeconfig.
    pub fn rename(&mut self, server: &ApiServer, name: &str) -> Result<()> {
        name.clone_into(&mut self.name);
        self.introduce(server)
    }

    fn kubeconfig(&self) -> PathBuf {
        self.dir.join("agent.conf")
    }

    /// Writes the configuration anew, with these further lines, which the agent reads at its next start.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn settle(&self, server: &ApiServer, settings: &str) -> Result<()> {
        let access = format!(
            "authentication: {{anonymous: {{enabled: false}}, webhook: {{enabled: true}}, \
             x509: {{clientCAFile: {}/pki/ca.crt}}}}\nauthorization: {{mode: Webhook}}\n",
            server.dir.display()
        );
        self.configure(&access, settings)
    }

    fn configure(&self, access: &str, settings: &str) -> Result<()> {
        std::fs::create_dir_all(self.manifests())?;
        let unified = Path::new("/sys/fs/cgroup/cgroup.controllers").exists();
        let reduced = if unified { "" } else { "cgroupsPerQOS: false\nenforceNodeAllocatable: [none]\n" };
        // The disk of a build machine may be much fuller than the defaults allow, and is nobody's concern here: no pod is
        // evicted and no image removed for it. A test that wants pressure names its own.
        let own = |name: &str| settings.lines().any(|line| line.starts_with(name));
        let eviction =
            if own("evictionHard:") { "" } else { "evictionHard: {memory.available: 50Mi, nodefs.available: 16Mi}\n" };
        let images = if own("imageGCHighThresholdPercent:") { "" } else { "imageGCHighThresholdPercent: 100\n" };
        let files = if own("fileCheckFrequency:") { "" } else { "fileCheckFrequency: 1s\n" };
        let (dir, port) = (self.dir.display(), self.port);
        let text = format!(
            "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n\
             containerRuntimeEndpoint: unix://{dir}/cri.sock\ncgroupDriver: cgroupfs\naddress: 127.0.0.1\n\
             port: {port}\nhealthzPort: 0\nstaticPodPath: {dir}/manifests\nfailSwapOn: false\n\
             podLogsDir: {dir}/pod-logs\n{files}{access}{reduced}{eviction}{images}{settings}\n"
        );
        std::fs::write(self.dir.join("agent.yaml"), text)?;
        Ok(())
    }

    fn spawn(&self, name: &str, command: &mut Command) -> Result<Child> {
        let path = self.dir.join(format!("{name}.log"));
        let log = std::fs::OpenOptions::new().create(true).append(true).open(path)?;
        let command = command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
        command.spawn().with_context(|| format!("starting {name}"))
    }

    /// # Errors
    /// When it does not answer.
    pub fn start_containerd(&mut self) -> Result<()> {
        let config = self.dir.join("containerd/config.toml");
        self.containerd = Some(self.spawn("containerd", Command::new("containerd").arg("--config").arg(config))?);
        self.wait_until("containerd answers", Duration::from_secs(30), || Ok(self.ctr(&["version"]).is_ok()))
    }

    /// # Errors
    /// When the program cannot be started.
    pub fn start_agent(&mut self) -> Result<()> {
        let (dir, binary) = (&self.dir, release_binary("node-agent")?);
        // Without a kubeconfig the agent is on its own.
        let kubeconfig = Some(self.kubeconfig()).filter(|path| path.exists());
        let mut command = match self.under.split_first() {
            None => Command::new(binary),
            Some((program, rest)) => {
                let mut command = Command::new(program);
                command.args(rest).arg(binary);
                command
            }
        };
        self.agent = Some(
            self.spawn(
                "node-agent",
                command
                    .envs(&self.environment)
                    .arg("run")
                    .args(self.address.iter().flat_map(|address| ["--node-ip", address]))
                    .args(["--hostname-override", &self.name, "--config"])
                    .arg(dir.join("agent.yaml"))
                    .args(kubeconfig.iter().flat_map(|path| [std::ffi::OsStr::new("--kubeconfig"), path.as_os_str()]))
                    .arg("--cert-dir")
                    .arg(dir.join("pki"))
                    .arg("--root-dir")
                    .arg(dir.join("kubelet"))
                    .args(&self.flags),
            )?,
        );
        Ok(())
    }

    /// The process of the agent; 0 while it does not run.
    pub fn agent_pid(&self) -> u32 {
        self.agent.as_ref().map_or(0, Child::id)
    }

    /// Ends the agent by a signal and waits until it is gone; containers go on.
    pub fn end_agent(&mut self, signal: Signal) {
        end(self.agent.take(), signal);
    }

    /// Kills containerd and waits until it is gone; its shims and containers go on.
    pub fn kill_containerd(&mut self) {
        end(self.containerd.take(), Signal::SIGKILL);
    }

    /// Sends containerd a signal: SIGSTOP hangs it, SIGCONT lets it go on.
    pub fn signal_containerd(&self, signal: Signal) {
        if let Some(pid) = self.containerd.as_ref().and_then(|child| i32::try_from(child.id()).ok()) {
            // Gone already shows in what the test asks next.
            let _ = kill(Pid::from_raw(pid), signal);
        }
    }

    /// The process of every container and sandbox by id, as the runtime knows them.
    ///
    /// # Errors
    /// When containerd does not answer.
    pub fn tasks(&self) -> Result<BTreeMap<String, u32>> {
        // containerd asks each shim with a deadline of two seconds. One that is late, because it waits for a probe of the
        // agent that was just killed, is listed as UNKNOWN and without its process, though it runs.
        let begun = Instant::now();
        loop {
            let list = self.ctr(&["tasks", "list"])?;
            let rows: Vec<Vec<&str>> = list.lines().skip(1).map(|line| line.split_whitespace().collect()).collect();
            if rows.iter().any(|row| row.get(2) == Some(&"UNKNOWN")) {
                ensure!(begun.elapsed() < Duration::from_secs(60), "containerd does not know its tasks:\n{list}");
                std::thread::sleep(Duration::from_millis(500));
                continue;
            }
            let running = rows.iter().filter(|row| row.get(2) == Some(&"RUNNING"));
            return running.map(|row| Ok((row[0].to_owned(), row[1].parse().with_context(|| list.clone())?))).collect();
        }
    }

    /// A channel to the runtime, as the agent has one.
    ///
    /// # Errors
    /// When nobody listens.
    pub async fn cri(&self) -> Result<tonic::transport::Channel> {
        let address = format!("unix://{}", self.socket().display());
        Ok(tonic::transport::Endpoint::from_shared(address)?.connect().await?)
    }

    /// Runs containerd's own client.
    ///
    /// # Errors
    /// When it fails; the text holds what it said.
    pub fn ctr(&self, args: &[&str]) -> Result<String> {
        let output = run(Command::new("ctr").arg("-a").arg(self.socket()).args(["-n", "k8s.io"]).args(args))?;
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    /// Whether the API server shows the node Ready.
    pub fn is_ready(&self, server: &ApiServer) -> bool {
        let path = "jsonpath={.status.conditions[?(@.type==\"Ready\")].status}";
        server.kubectl(&["get", "node", &self.name, "-o", path]).is_ok_and(|said| said == "True")
    }

    /// Asks ten times a second until the answer is yes.
    ///
    /// # Errors
    /// When it never is; the text ends with both logs.
    pub fn wait_until(&self, what: &str, limit: Duration, mut done: impl FnMut() -> Result<bool>) -> Result<()> {
        let begun = Instant::now();
        loop {
            let answer = done();
            if matches!(answer, Ok(true)) {
                return Ok(());
            }
            if begun.elapsed() > limit {
                let error = answer.err().map(|e| format!(" ({e:#})")).unwrap_or_default();
                bail!("not within {limit:?}: {what}{error}\n{}", self.logs());
            }
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    /// The ends of both daemons' logs.
    pub fn logs(&self) -> String {
        let mut text = String::new();
        for name in ["node-agent", "containerd"] {
            let log = std::fs::read_to_string(self.dir.join(format!("{name}.log"))).unwrap_or_default();
            let lines: Vec<&str> = log.lines().collect();
            text.push_str(&format!("--- {name}\n{}\n", lines[lines.len().saturating_sub(20)..].join("\n")));
        }
        text
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        end(self.agent.take(), Signal::SIGTERM);
        if self.containerd.is_none() {
            // Containers outlive it; somebody has to end them.
            let _ = self.start_containerd();
        }
        for task in self.tasks().unwrap_or_default().keys() {
            let _ = self.ctr(&["tasks", "delete", "--force", task]);
        }
        end(self.containerd.take(), Signal::SIGTERM);
        let _ = Command::new("ip").args(["link", "delete", &self.bridge]).output();
    }
}

fn end(child: Option<Child>, signal: Signal) {
    let Some(mut child) = child else { return };
    if let Ok(pid) = i32::try_from(child.id()) {
        // Gone already is fine; `wait` tells.
        let _ = kill(Pid::from_raw(pid), signal);
    }
    let _ = child.wait();
}

fn run(command: &mut Command) -> Result<Output> {
    let output = command.stdin(Stdio::null()).output().with_context(|| format!("{command:?}"))?;
    if !output.status.success() {
        let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        bail!("{command:?}: {}\n{out}\n{err}", output.status);
    }
    Ok(output)
}
