//! An agent of its own for a test, on its own: no API server, and a runtime that is never ready.
//!
//! Enough for everything that concerns the daemon and not its pods: what it tells systemd, signals, files, settings.

use std::ffi::OsString;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::daemon::{free_port, release_binary, scratch};

/// A running agent; killed when dropped.
pub struct Agent {
    pub dir: PathBuf,
    pub healthz: u16,
    child: Option<Child>,
    socket: UnixDatagram,
    begun: Instant,
}

/// One message to systemd.
#[derive(Debug, Clone)]
pub struct Said {
    /// Since the agent was started.
    pub at: Duration,
    /// Lines of `NAME=value`.
    pub text: String,
}

/// A folder with a configuration and a runtime that is up for the rest of the test.
pub struct Place {
    pub dir: PathBuf,
    pub healthz: u16,
    pub port: u16,
}

impl Place {
    /// `settings` are further lines of the configuration.
    ///
    /// # Errors
    /// When folder, socket or file cannot be made.
    pub fn new(name: &str, settings: &str) -> Result<Self> {
        let place = Place { dir: scratch(name)?, healthz: free_port()?, port: free_port()? };
        let socket = place.socket();
        std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            // Ends with the process; a socket that cannot be made shows as an agent that never gets ready.
            runtime.map(|runtime| runtime.block_on(crate::runtime::serve(&socket)))
        });
        place.configure(settings)?;
        Ok(place)
    }

    pub fn socket(&self) -> PathBuf {
        self.dir.join("cri.sock")
    }

    pub fn config(&self) -> PathBuf {
        self.dir.join("agent.yaml")
    }

    /// Writes the configuration anew.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn configure(&self, settings: &str) -> Result<()> {
        let text = format!(
            "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\naddress: 127.0.0.1\n\
             containerRuntimeEndpoint: unix://{}\nport: {}\nhealthzPort: {}\nfailSwapOn: false\n\
             podLogsDir: {}/pod-logs\ncgroupsPerQOS: false\nenforceNodeAllocatable: [none]\n{settings}\n",
            self.socket().display(),
            self.port,
            self.healthz,
            self.dir.display()
        );
        Ok(std::fs::write(self.config(), text)?)
    }

    /// The arguments of an agent in this folder.
    pub fn arguments(&self) -> Vec<OsString> {
        let mut arguments: Vec<OsString> = ["run", "--hostname-override", "alone", "--config"].map(Into::into).into();
        arguments.push(self.config().into());
        for (flag, name) in [("--root-dir", "root"), ("--cert-dir", "pki")] {
            arguments.push(flag.into());
            arguments.push(self.dir.join(name).into());
        }
        arguments
    }
}

/// What an agent on its own needs: nobody to ask about users.
pub const STANDALONE: &str = "authentication: {anonymous: {enabled: true}, webhook: {enabled: false}}\n\
                              authorization: {mode: AlwaysAllow}\n";

impl Agent {
    /// Starts an agent in a place, with more arguments and variables.
    ///
    /// # Errors
    /// When the program cannot be started.
    pub fn start(place: &Place, arguments: &[&str], variables: &[(&str, &str)]) -> Result<Self> {
        Agent::start_under(place, &[], arguments, variables)
    }

    /// The same through another program, which must become the agent: `sh -c '...; exec "$@"' sh`.
    ///
    /// # Errors
    /// As [`Agent::start`].
    pub fn start_under(place: &Place, under: &[&str], arguments: &[&str], variables: &[(&str, &str)]) -> Result<Self> {
        let notify = place.dir.join("notify.sock");
        let _ = std::fs::remove_file(&notify);
        let socket = UnixDatagram::bind(&notify)?;
        let log = std::fs::OpenOptions::new().create(true).append(true).open(place.dir.join("agent.log"))?;
        let binary = release_binary("node-agent")?;
        let mut command = match under.split_first() {
            None => Command::new(binary),
            Some((program, rest)) => {
                let mut command = Command::new(program);
                command.args(rest).arg(binary);
                command
            }
        };
        command.args(place.arguments()).args(arguments).env("NOTIFY_SOCKET", &notify);
        command.envs(variables.iter().copied()).env_remove("JOURNAL_STREAM");
        command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
        let begun = Instant::now();
        let child = command.spawn().context("starting node-agent")?;
        Ok(Agent { dir: place.dir.clone(), healthz: place.healthz, child: Some(child), socket, begun })
    }

    pub fn pid(&self) -> u32 {
        self.child.as_ref().map_or(0, Child::id)
    }

    pub fn log(&self) -> String {
        std::fs::read_to_string(self.dir.join("agent.log")).unwrap_or_default()
    }

    /// The next message within the time, if one comes.
    ///
    /// # Errors
    /// When the socket breaks.
    pub fn hear(&self, limit: Duration) -> Result<Option<Said>> {
        self.socket.set_read_timeout(Some(limit.max(Duration::from_millis(1))))?;
        let mut buffer = [0; 4096];
        match self.socket.recv(&mut buffer) {
            Ok(length) => {
                let text = String::from_utf8_lossy(&buffer[..length]).trim_end().to_owned();
                Ok(Some(Said { at: self.begun.elapsed(), text }))
            }
            Err(e) if matches!(e.kind(), std::io::ErrorKind::WouldBlock | std::io::ErrorKind::TimedOut) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// All that is said within the time.
    ///
    /// # Errors
    /// When the socket breaks.
    pub fn hear_for(&self, time: Duration) -> Result<Vec<Said>> {
        let end = Instant::now() + time;
        let mut heard = Vec::new();
        while let Some(left) = end.checked_duration_since(Instant::now()) {
            heard.extend(self.hear(left)?);
        }
        Ok(heard)
    }

    /// All up to the message that has a line beginning like this.
    ///
    /// # Errors
    /// When it does not come within a minute; the text ends with the log.
    pub fn hear_until(&self, line: &str) -> Result<Vec<Said>> {
        let end = Instant::now() + Duration::from_secs(60);
        let mut heard = Vec::new();
        loop {
            let left = end.saturating_duration_since(Instant::now());
            match self.hear(left)? {
                Some(said) => {
                    heard.push(said);
                    if heard.last().is_some_and(|said| said.text.lines().any(|l| l.starts_with(line))) {
                        return Ok(heard);
                    }
                }
                None if left.is_zero() => bail!("{line} was not said: {heard:?}\n{}", self.log()),
                None => {}
            }
        }
    }

    /// # Errors
    /// When the process is gone.
    pub fn signal(&self, signal: Signal) -> Result<()> {
        Ok(kill(Pid::from_raw(i32::try_from(self.pid())?), signal)?)
    }

    /// How it ended, if it does within the time.
    ///
    /// # Errors
    /// When it goes on; the text ends with the log.
    pub fn wait(&mut self, limit: Duration) -> Result<ExitStatus> {
        let begun = Instant::now();
        while begun.elapsed() < limit {
            let status = self.child.as_mut().context("it runs")?.try_wait()?;
            if let Some(status) = status {
                self.child = None;
                return Ok(status);
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        bail!("the agent goes on\n{}", self.log())
    }

    /// Whether the process still runs.
    pub fn alive(&mut self) -> bool {
        self.child.as_mut().is_some_and(|c| matches!(c.try_wait(), Ok(None)))
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        if let Some(mut child) = self.child.take() {
            // Gone already is as good.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Runs an agent that is expected to end by itself; its exit code and all that it said.
///
/// # Errors
/// When it goes on for half a minute.
pub fn run_to_end(arguments: &[OsString], folder: &Path) -> Result<(Option<i32>, String)> {
    let path = folder.join("output");
    let output = std::fs::File::create(&path)?;
    let mut command = Command::new(release_binary("node-agent")?);
    command.args(arguments).current_dir(folder).stdin(Stdio::null()).stdout(output.try_clone()?).stderr(output);
    command.env_remove("NOTIFY_SOCKET").env_remove("JOURNAL_STREAM");
    let mut child = command.spawn()?;
    let begun = Instant::now();
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok((status.code(), std::fs::read_to_string(path)?));
        }
        if begun.elapsed() > Duration::from_secs(30) {
            let _ = child.kill();
            let _ = child.wait();
            bail!("it goes on: {}", std::fs::read_to_string(path)?);
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}
