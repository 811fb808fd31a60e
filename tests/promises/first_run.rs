//! `make run` on a machine with a runtime: real pods in containerd, driven by kubectl, and a clean end on Ctrl-C.

use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;

struct Cluster {
    child: Child,
    dir: PathBuf,
    log: PathBuf,
}

impl Cluster {
    fn start(dir: &Path, ports: (u16, u16), attempt: usize) -> Self {
        use std::os::unix::process::CommandExt;
        let log = dir.with_extension(format!("{attempt}.log"));
        let file = std::fs::File::create(&log).expect("the log is writable");
        let mut make = Command::new("make");
        // Build scripts look at what cargo tells the program that it runs; with it, the binaries would be built anew.
        for (name, _) in std::env::vars_os() {
            let name = name.to_string_lossy().into_owned();
            if ["CARGO_PKG_", "CARGO_MANIFEST_", "CARGO_CRATE_", "CARGO_BIN_"].iter().any(|p| name.starts_with(p)) {
                make.env_remove(name);
            }
        }
        let child = make
            .arg("run")
            .current_dir(tests::repository())
            .env("RUN_DIR", dir)
            .env("NODE_NAME", "first-run")
            .env("SECURE_PORT", ports.0.to_string())
            .env("AGENT_PORT", ports.1.to_string())
            .stdin(Stdio::null())
            .stdout(file.try_clone().expect("a second handle"))
            .stderr(file)
            .process_group(0)
            .spawn()
            .expect("make runs");
        let mut cluster = Cluster { child, dir: dir.to_owned(), log };
        let begun = Instant::now();
        while !cluster.said().contains("The cluster is up") {
            assert!(begun.elapsed() < Duration::from_secs(600), "not up after ten minutes:\n{}", cluster.said());
            assert!(cluster.child.try_wait().expect("known").is_none(), "make run ended:\n{}", cluster.report());
            std::thread::sleep(Duration::from_millis(100));
        }
        cluster
    }

    fn said(&self) -> String {
        let mut text = String::new();
        // The log appears with the process.
        let _ = std::fs::File::open(&self.log).and_then(|mut f| f.read_to_string(&mut text));
        text
    }

    /// What it said, and the end of each daemon's log.
    fn report(&self) -> String {
        let mut text = self.said();
        for name in ["apiserver-lite", "node-agent", "containerd"] {
            let log = std::fs::read_to_string(self.dir.join("logs").join(format!("{name}.log"))).unwrap_or_default();
            let end: Vec<&str> = log.lines().rev().take(30).collect();
            text.push_str(&format!("\n--- {name}\n"));
            text.extend(end.iter().rev().map(|line| format!("{line}\n")));
        }
        text
    }

    fn kubectl(&self, args: &[&str]) -> String {
        let output = Command::new("kubectl")
            .arg("--kubeconfig")
            .arg(self.dir.join("admin.conf"))
            .args(args)
            .output()
            .expect("kubectl runs");
        let text = format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert!(output.status.success(), "kubectl {args:?}: {text}\n{}", self.report());
        text
    }

    fn wait_for(&self, args: &[&str], text: &str) {
        let begun = Instant::now();
        loop {
            let said = self.kubectl(args);
            if said.contains(text) {
                return;
            }
            assert!(
                begun.elapsed() < Duration::from_secs(120),
                "kubectl {args:?} never said {text}: {said}\n{}",
                self.report()
            );
            std::thread::sleep(Duration::from_millis(200));
        }
    }

    /// Ctrl-C: the signal goes to the whole foreground group, as a terminal sends it.
    fn interrupt(mut self) {
        let group = Pid::from_raw(i32::try_from(self.child.id()).expect("pids are small"));
        killpg(group, Signal::SIGINT).expect("the group is there");
        let begun = Instant::now();
        while self.child.try_wait().expect("known").is_none() {
            assert!(begun.elapsed() < Duration::from_secs(90), "Ctrl-C does not end it:\n{}", self.report());
            std::thread::sleep(Duration::from_millis(100));
        }
        let left = processes_that_mention(&self.dir);
        assert!(left.is_empty(), "left behind: {left:?}\n{}", self.report());
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        if matches!(self.child.try_wait(), Ok(None))
            && let Ok(group) = i32::try_from(self.child.id())
        {
            let _ = killpg(Pid::from_raw(group), Signal::SIGTERM);
            let _ = self.child.wait();
        }
    }
}

/// Command lines of running processes that name the folder.
fn processes_that_mention(dir: &Path) -> Vec<String> {
    let needle = dir.to_string_lossy();
    let Ok(entries) = std::fs::read_dir("/proc") else { return Vec::new() };
    entries
        .flatten()
        .filter_map(|e| std::fs::read(e.path().join("cmdline")).ok())
        .map(|line| String::from_utf8_lossy(&line).replace('\0', " "))
        .filter(|line| line.contains(&*needle))
        .collect()
}

fn why_not() -> Option<&'static str> {
    if !nix::unistd::geteuid().is_root() {
        return Some("containers need root");
    }
    ["kubectl", "containerd", "runc"].into_iter().find(|tool| Command::new(tool).arg("--help").output().is_err())
}

#[test]
fn one_command_leads_to_running_pods_and_ctrl_c_to_a_clean_end() {
    if let Some(reason) = why_not() {
        println!("skipped: {reason} is missing");
        return;
    }
    // Short, because unix sockets lie below it.
    let dir = tests::scratch("run").expect("a folder");
    let ports = (tests::free_port().expect("a port"), tests::free_port().expect("a port"));
    let cluster = Cluster::start(&dir, ports, 1);
    let run = |args: &[&str]| cluster.kubectl(args);

    assert!(run(&["get", "nodes"]).contains("Ready"));
    assert!(run(&["logs", "web", "-c", "prepare"]).contains("prepared on first-run"));
    assert!(run(&["logs", "web"]).contains("serving on port 8080"));
    assert!(run(&["exec", "web", "--", "wget", "-qO-", "http://127.0.0.1:8080/"]).contains("Hello from a config map"));
    assert!(run(&["exec", "hello", "--", "sh", "-c", "echo out; echo err >&2"]).contains("err"));
    let source = dir.join("file.txt");
    std::fs::write(&source, "copied\n").expect("writable");
    run(&["cp", source.to_str().expect("text"), "hello:/tmp/file.txt"]);
    assert_eq!(run(&["exec", "hello", "--", "cat", "/tmp/file.txt"]), "copied\n");

    run(&["run", "once", "--image=localhost/busybox:1", "--restart=Never", "--", "sh", "-c", "echo done; exit 3"]);
    cluster.wait_for(&["get", "pod", "once"], "Error");
    assert!(run(&["logs", "once"]).contains("done"));
    assert_eq!(
        run(&["get", "pod", "once", "-o", "jsonpath={.status.containerStatuses[0].state.terminated.exitCode}"]),
        "3"
    );

    run(&["create", "deployment", "several", "--image=localhost/busybox:1", "--replicas=2", "--", "sleep", "3600"]);
    run(&["rollout", "status", "deployment/several", "--timeout=120s"]);
    run(&["delete", "deployment", "several", "--wait=true", "--timeout=60s"]);
    run(&["create", "namespace", "extra"]);
    run(&[
        "-n",
        "extra",
        "run",
        "p",
        "--image=localhost/busybox:1",
        "--",
        "sh",
        "-c",
        "trap 'exit 0' TERM; sleep 3600 & wait",
    ]);
    cluster.wait_for(&["-n", "extra", "get", "pod", "p"], "Running");
    run(&["delete", "namespace", "extra", "--timeout=90s"]);
    assert!(!run(&["get", "namespaces"]).contains("extra"));
    assert!(run(&["get", "events"]).contains("Started"));

    // The agent dies and comes back: the containers must not notice. `make run` ends when a daemon does, so this uses
    // what it leaves: the same cluster goes on at the next run.
    run(&["create", "configmap", "remember", "--from-literal=a=b"]);
    cluster.interrupt();
    let again = Cluster::start(&dir, ports, 2);
    assert_eq!(again.kubectl(&["get", "configmap", "remember", "-o", "jsonpath={.data.a}"]), "b");
    assert!(again.kubectl(&["get", "pods"]).contains("hello"));
    again.interrupt();
}
