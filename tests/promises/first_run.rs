//! `make run` on a machine with a runtime: real pods in containerd, driven by kubectl, and a clean end on Ctrl-C.

use std::io::Read;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;

struct Cluster {
    child: Child,
    dir: PathBuf,
    log: PathBuf,
}

/// `make run` in a process group of its own, as a terminal would start it.
fn make_run(dir: &Path, ports: (u16, u16), log: &Path) -> Child {
    use std::os::unix::process::CommandExt;
    let file = std::fs::File::create(log).expect("the log is writable");
    let mut make = Command::new("make");
    // Build scripts look at what cargo tells the program that it runs; with it, the binaries would be built anew.
    for (name, _) in std::env::vars_os() {
        let name = name.to_string_lossy().into_owned();
        if ["CARGO_PKG_", "CARGO_MANIFEST_", "CARGO_CRATE_", "CARGO_BIN_"].iter().any(|p| name.starts_with(p)) {
            make.env_remove(name);
        }
    }
    make.arg("run")
        .current_dir(tests::repository())
        .env("RUN_DIR", dir)
        // Nodes are named in small letters.
        .env("NODE_NAME", "First-Run")
        .env("SECURE_PORT", ports.0.to_string())
        .env("AGENT_PORT", ports.1.to_string())
        .stdin(Stdio::null())
        .stdout(file.try_clone().expect("a second handle"))
        .stderr(file)
        .process_group(0)
        .spawn()
        .expect("make runs")
}

impl Cluster {
    fn start(dir: &Path, ports: (u16, u16), attempt: usize) -> Self {
        let log = dir.with_extension(format!("{attempt}.log"));
        let child = make_run(dir, ports, &log);
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

    /// Waits for its end, and says how make ended.
    fn ended(&mut self) -> ExitStatus {
        let begun = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait().expect("known") {
                return status;
            }
            assert!(begun.elapsed() < Duration::from_secs(90), "it does not end:\n{}", self.report());
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    fn nothing_is_left(&self) {
        let left = processes_that_mention(&self.dir);
        assert!(left.is_empty(), "left behind: {left:?}\n{}", self.report());
        let mounts = std::fs::read_to_string("/proc/self/mountinfo").expect("readable");
        let mounts: Vec<&str> = mounts.lines().filter(|l| l.contains(&*self.dir.to_string_lossy())).collect();
        assert!(mounts.is_empty(), "mounted still: {mounts:?}\n{}", self.report());
        assert!(!self.bridge_is_there(), "the bridge is there still\n{}", self.report());
    }

    fn bridge_is_there(&self) -> bool {
        let network = self.dir.join("cni/net.d/10-pods.conflist");
        let network: serde_json::Value =
            serde_json::from_slice(&std::fs::read(network).expect("written")).expect("JSON");
        let bridge = network["plugins"][0]["bridge"].as_str().expect("a name");
        Path::new("/sys/class/net").join(bridge).exists()
    }

    /// Ctrl-C: the signal goes to the whole foreground group, as a terminal sends it.
    fn interrupt(mut self) {
        let group = Pid::from_raw(i32::try_from(self.child.id()).expect("pids are small"));
        killpg(group, Signal::SIGINT).expect("the group is there");
        // make ends itself by the signal, once what it started has ended.
        let status = self.ended();
        assert!(status.success() || status.signal() == Some(Signal::SIGINT as i32), "{status}\n{}", self.report());
        self.nothing_is_left();
    }

    /// The process of a daemon, found by its command line below this cluster's folder.
    fn daemon(&self, program: &str) -> Pid {
        let needle = self.dir.to_string_lossy();
        let found = std::fs::read_dir("/proc").expect("mounted").flatten().find_map(|entry| {
            let line = String::from_utf8_lossy(&std::fs::read(entry.path().join("cmdline")).ok()?).into_owned();
            let first = line.split('\0').next()?;
            let named = first.rsplit('/').next() == Some(program) && line.contains(&*needle);
            entry.file_name().to_str()?.parse().ok().filter(|_| named)
        });
        Pid::from_raw(found.unwrap_or_else(|| panic!("no {program}\n{}", self.report())))
    }

    /// A port of the pod, forwarded; what an HTTP GET of `/` through it answers.
    fn through_port_forward(&self, pod: &str) -> String {
        use std::io::{BufRead, BufReader};
        let mut forward = Command::new("kubectl")
            .arg("--kubeconfig")
            .arg(self.dir.join("admin.conf"))
            .args(["port-forward", pod, ":8080"])
            .stdout(Stdio::piped())
            .spawn()
            .expect("kubectl runs");
        let mut line = String::new();
        // Kept until the end: kubectl ends when nobody reads what it says.
        let mut output = BufReader::new(forward.stdout.take().expect("piped"));
        output.read_line(&mut line).expect("kubectl says something");
        let port = line.split(" -> ").next().and_then(|l| l.rsplit(':').next()).unwrap_or_default().to_owned();
        let url = format!("http://127.0.0.1:{port}/");
        let answer = Command::new("curl").args(["-sS", "--max-time", "10", &url]).output().expect("curl runs");
        let _ = forward.kill();
        let _ = forward.wait();
        assert!(answer.status.success(), "{line}: {}\n{}", String::from_utf8_lossy(&answer.stderr), self.report());
        String::from_utf8_lossy(&answer.stdout).into_owned()
    }

    /// A command of kubectl on a terminal, with what is typed.
    fn on_a_terminal(&self, command: &str, typed: &str) -> String {
        use std::io::Write;
        let kubectl = format!("kubectl --kubeconfig {} {command}", self.dir.join("admin.conf").display());
        let mut script = Command::new("timeout")
            .args(["60", "script", "-qec", &kubectl, "/dev/null"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("script runs");
        script.stdin.as_mut().expect("piped").write_all(typed.as_bytes()).expect("kubectl reads");
        let output = script.wait_with_output().expect("it ends");
        String::from_utf8_lossy(&output.stdout).into_owned()
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
    ["kubectl", "containerd", "runc", "script", "curl"]
        .into_iter()
        .find(|tool| Command::new(tool).arg("--help").output().is_err())
}

#[test]
fn one_command_leads_to_running_pods_and_ctrl_c_to_a_clean_end() {
    if let Some(reason) = why_not() {
        tests::skipped(format_args!("{reason} is missing"));
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
    assert!(cluster.through_port_forward("pod/web").contains("Hello from a config map"));
    let typed = cluster.on_a_terminal("exec -it hello -- sh", "tty; exit 7\n");
    assert!(typed.contains("/dev/pts/") && typed.contains("exit code 7"), "{typed}");
    let followed = run(&["logs", "-f", "--limit-bytes=60", "hello"]);
    assert!(followed.starts_with("hello number 1"), "{followed}");
    let echo =
        ["run", "echo", "-i", "--rm", "--restart=Never", "--image=localhost/busybox:1", "--quiet", "--", "sh", "-c"];
    let attached = run(&[&echo[..], &["sleep 1; echo attached"]].concat());
    assert!(attached.contains("attached"), "{attached}");

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

    // A second cluster that fails to start says so and leaves this one alone.
    let other = tests::scratch("run").expect("a folder");
    let log = other.with_extension("log");
    let mut failing = Cluster { child: make_run(&other, ports, &log), dir: other, log };
    assert!(failing.ended().code().is_some_and(|c| c != 0), "the port was taken:\n{}", failing.report());
    assert!(failing.said().contains("Address already in use"), "{}", failing.said());
    assert!(cluster.bridge_is_there());
    assert!(cluster.through_port_forward("pod/web").contains("Hello from a config map"));

    // The same cluster goes on at the next run.
    run(&["create", "configmap", "remember", "--from-literal=a=b"]);
    cluster.interrupt();
    for (attempt, victim) in [(2, "containerd"), (3, "node-agent")] {
        let mut again = Cluster::start(&dir, ports, attempt);
        assert_eq!(again.kubectl(&["get", "configmap", "remember", "-o", "jsonpath={.data.a}"]), "b");
        assert!(again.kubectl(&["get", "pods"]).contains("hello"));

        // A daemon that dies ends the run with an error, and still nothing is left.
        nix::sys::signal::kill(again.daemon(victim), Signal::SIGKILL).expect("it runs");
        assert!(again.ended().code().is_some_and(|c| c != 0), "{}", again.report());
        assert!(again.said().contains(&format!("{victim} ended by itself")), "{}", again.said());
        again.nothing_is_left();
    }
    Cluster::start(&dir, ports, 4).interrupt();
}
