//! Starts `apiserver-lite` as a child process and ends it with the test.

use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

/// The top folder of the checkout.
pub fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("tests/ lies in the repository").to_owned()
}

/// A release binary of this workspace, or the one in the folder `BIN_DIR`, which counts from the top of the checkout.
///
/// # Errors
/// When it has not been built.
pub fn release_binary(name: &str) -> Result<PathBuf> {
    let folder = std::env::var_os("BIN_DIR").map_or_else(
        || std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| "target".into(), PathBuf::from).join("release"),
        PathBuf::from,
    );
    let path = repository().join(folder).join(name);
    if !path.exists() {
        bail!("{} is missing: BUILD_PROFILE=release packaging/package/compile.sh, or set BIN_DIR", path.display());
    }
    Ok(path)
}

/// An empty folder under `.test/` that no other test has; left there for a look after a failure.
///
/// # Errors
/// When the folder cannot be made.
pub fn scratch(name: &str) -> Result<PathBuf> {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    let path = repository().join(".test").join(format!("{name}-{}-{count}", std::process::id()));
    std::fs::create_dir_all(&path).with_context(|| format!("making {}", path.display()))?;
    Ok(path)
}

/// Below those that the kernel gives to connections, which take any of theirs at any moment, and those of services.
const PORTS: Range<u16> = 20_000..30_000;

/// A TCP port on loopback that was free a moment ago. Each process begins elsewhere, and none is told of twice in a row.
///
/// # Errors
/// When the machine has none.
pub fn free_port() -> Result<u16> {
    static ASKED: AtomicU32 = AtomicU32::new(0);
    let width = u32::from(PORTS.end - PORTS.start);
    let begin = std::process::id().wrapping_mul(97) % width;
    for _ in 0..width {
        let offset = (begin + ASKED.fetch_add(1, Ordering::Relaxed)) % width;
        let port = PORTS.start + u16::try_from(offset)?;
        if std::net::TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return Ok(port);
        }
    }
    bail!("no port is free")
}

/// A running API server with its data folder; killed when dropped.
pub struct ApiServer {
    child: Option<Child>,
    pub dir: PathBuf,
    pub port: u16,
    /// A program that starts the server in its own place, and its arguments.
    pub under: Vec<String>,
    args: Vec<String>,
}

impl ApiServer {
    /// Starts on an empty folder with extra arguments and waits until it is ready.
    ///
    /// # Errors
    /// When it does not become ready; the text ends with its log.
    pub fn start(name: &str, args: &[&str]) -> Result<Self> {
        ApiServer::start_under(&[], name, args)
    }

    /// The same through another program, which must become the server: `sh -c '...; exec "$@"' sh`.
    ///
    /// # Errors
    /// As [`ApiServer::start`].
    pub fn start_under(under: &[&str], name: &str, args: &[&str]) -> Result<Self> {
        let mut server = ApiServer {
            child: None,
            dir: scratch(name)?,
            port: free_port()?,
            under: under.iter().map(|&a| a.to_owned()).collect(),
            args: args.iter().map(|&a| a.to_owned()).collect(),
        };
        server.launch()?;
        Ok(server)
    }

    /// Starts the program again on the same folder and port; returns the time from the call to the port answering.
    ///
    /// # Errors
    /// As [`ApiServer::start`].
    pub fn launch(&mut self) -> Result<Duration> {
        let log = std::fs::OpenOptions::new().create(true).append(true).open(self.log_path())?;
        let begun = Instant::now();
        let binary = release_binary("apiserver-lite")?;
        let mut command = match self.under.split_first() {
            None => Command::new(binary),
            Some((program, args)) => {
                let mut command = Command::new(program);
                command.args(args).arg(binary);
                command
            }
        };
        let child = command
            .args(["serve", "--bind-address", "127.0.0.1", "--secure-port", &self.port.to_string(), "--data-dir"])
            .arg(&self.dir)
            .args(&self.args)
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .spawn()?;
        self.child = Some(child);
        while begun.elapsed() < Duration::from_secs(20) {
            // The port opens last, once everything that a request needs is there.
            if std::net::TcpStream::connect(("127.0.0.1", self.port)).is_ok() {
                return Ok(begun.elapsed());
            }
            if let Some(status) = self.child.as_mut().and_then(|c| c.try_wait().ok().flatten()) {
                bail!("apiserver-lite ended with {status}: {}", self.log());
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        bail!("apiserver-lite is not ready after 20 s: {}", self.log())
    }

    /// [`crate::process::cpu_time`] of the server.
    ///
    /// # Errors
    /// When the process is gone.
    pub fn cpu_time(&self) -> Result<Duration> {
        crate::process::cpu_time(self.pid())
    }

    /// Time that the threads waited for a core so far, though they could have run, together: proc(5), `schedstat`.
    ///
    /// # Errors
    /// When the process is gone.
    pub fn time_in_queue(&self) -> Result<Duration> {
        let mut nanos = 0_u64;
        for thread in std::fs::read_dir(format!("/proc/{}/task", self.pid()))? {
            // A thread may end meanwhile.
            let Ok(text) = std::fs::read_to_string(thread?.path().join("schedstat")) else { continue };
            nanos += text.split_whitespace().nth(1).context("a second number")?.parse::<u64>()?;
        }
        Ok(Duration::from_nanos(nanos))
    }

    pub fn pid(&self) -> u32 {
        self.child.as_ref().map_or(0, Child::id)
    }

    pub fn kubeconfig(&self) -> PathBuf {
        self.dir.join("admin.conf")
    }

    /// A PEM file that the admin's kubeconfig embeds under a key.
    ///
    /// # Errors
    /// When the kubeconfig has no such key.
    pub fn embedded(&self, key: &str) -> Result<Vec<u8>> {
        use base64::Engine as _;
        let text = std::fs::read_to_string(self.kubeconfig())?;
        let line = text.lines().find_map(|l| l.trim().strip_prefix(key)?.strip_prefix(':'));
        let packed = line.with_context(|| format!("{key} in the kubeconfig"))?.trim();
        Ok(base64::engine::general_purpose::STANDARD.decode(packed)?)
    }

    fn log_path(&self) -> PathBuf {
        self.dir.join("server.log")
    }

    pub fn log(&self) -> String {
        std::fs::read_to_string(self.log_path()).unwrap_or_default()
    }

    /// kill -9, and waits until the process is gone.
    pub fn kill(&mut self) {
        self.end(Signal::SIGKILL);
    }

    /// SIGTERM, and waits for the end.
    pub fn stop(&mut self) {
        self.end(Signal::SIGTERM);
    }

    fn end(&mut self, signal: Signal) {
        let Some(mut child) = self.child.take() else { return };
        if let Ok(pid) = i32::try_from(child.id()) {
            // Gone already is fine; `wait` tells.
            let _ = kill(Pid::from_raw(pid), signal);
        }
        let _ = child.wait();
    }

    /// Whether the process still runs.
    pub fn alive(&mut self) -> bool {
        self.child.as_mut().is_some_and(|c| matches!(c.try_wait(), Ok(None)))
    }

    /// Runs kubectl with the admin's kubeconfig; returns its output.
    ///
    /// # Errors
    /// When kubectl fails; the text holds what it said.
    pub fn kubectl(&self, args: &[&str]) -> Result<String> {
        let output = Command::new("kubectl").arg("--kubeconfig").arg(self.kubeconfig()).args(args).output()?;
        if !output.status.success() {
            bail!(
                "kubectl {args:?}: {}\n{}\n{}",
                output.status,
                String::from_utf8_lossy(&output.stdout),
                String::from_utf8_lossy(&output.stderr)
            );
        }
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    /// `kubectl create` of one object.
    ///
    /// # Errors
    /// When it is refused; the text holds what kubectl said.
    pub fn create(&self, object: &Value) -> Result<()> {
        let path = self.dir.join("object.json");
        std::fs::write(&path, object.to_string())?;
        self.kubectl(&["create", "-f", path.to_str().context("a path in text")?])?;
        Ok(())
    }

    /// `kubectl get` of one object (`pod`, `web`).
    ///
    /// # Errors
    /// As [`ApiServer::create`].
    pub fn get(&self, what: &str, name: &str) -> Result<Value> {
        Ok(serde_json::from_str(&self.kubectl(&["get", what, name, "-o", "json"])?)?)
    }
}

impl Drop for ApiServer {
    fn drop(&mut self) {
        self.kill();
    }
}
