//! A node survives what happens to it: the agent killed at any moment, a runtime that hangs, a shim that dies, a process
//! out of memory, damaged files, an API server that is away, and pods without end.
//!
//! Needs a runtime, so it is skipped with a stated reason where there is none. `make test` plays 51 kills, and the rest in
//! short; `LONG_FAULTS=1` plays a minute of hanging, ten minutes without API server and 500 pods.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};
use tests::ApiServer;
use tests::node::{IMAGE, Node};
use tests::traces::Traces;

const PATIENCE: Duration = Duration::from_secs(90);
/// How many of many pods come and go at a time.
const BATCH: u64 = 25;
/// Kills of the agent in the starts, lives and ends of pods; three to a pod.
const KILLS: u64 = 51;

/// What is played in full only when somebody has the time.
fn long(short: u64, full: u64) -> u64 {
    if std::env::var_os("LONG_FAULTS").is_some() { full } else { short }
}

struct Cluster {
    server: ApiServer,
    node: Node,
    watch: Watch,
    chance: u64,
}

/// What is in the command line of a container and of no other process of the machine.
fn mark(name: &str) -> String {
    format!("faults-{}-{name}", std::process::id())
}

/// Looks all the time which containers run, and whether some container runs twice.
struct Watch {
    /// By mark, and whether it was seen twice at a time.
    seen: Arc<Mutex<BTreeMap<String, bool>>>,
    over: Arc<AtomicBool>,
}

impl Watch {
    fn start() -> Watch {
        let watch = Watch { seen: Arc::default(), over: Arc::default() };
        let (all, over) = (watch.seen.clone(), watch.over.clone());
        std::thread::spawn(move || {
            while !over.load(Ordering::Relaxed) {
                let mut now = BTreeSet::new();
                for mark in marked_processes() {
                    let again = !now.insert(mark.clone());
                    *all.lock().unwrap_or_else(PoisonError::into_inner).entry(mark).or_default() |= again;
                }
                std::thread::sleep(Duration::from_millis(100));
            }
        });
        watch
    }

    fn seen(&self) -> MutexGuard<'_, BTreeMap<String, bool>> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
    }
}

/// What is behind [`mark`]'s begin, of all first processes of containers of this test.
fn marked_processes() -> Vec<String> {
    let begin = format!("sh\0-c\0: {}", mark(""));
    let processes = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let marked = processes.filter_map(|process| {
        let command = std::fs::read_to_string(process.path().join("cmdline")).ok()?;
        let mark = command.strip_prefix(&begin)?.split_once(';')?.0.to_owned();
        // Its children have the same command line for a moment, before they become what they are to be.
        let status = std::fs::read_to_string(process.path().join("status")).ok()?;
        let first = status.lines().any(|line| line.starts_with("NSpid:") && line.ends_with("\t1"));
        first.then_some(mark)
    });
    marked.collect()
}

impl Cluster {
    fn start(name: &str) -> Result<Self> {
        let server = ApiServer::start(name, &["--scheduler=false"])?;
        let node = Node::start(&format!("{name}-node"), &server, "nodeStatusUpdateFrequency: 1s\n")?;
        Ok(Cluster { server, node, watch: Watch::start(), chance: 0x9E37_79B9_7F4A_7C15 })
    }

    /// Some time below that, another each time and the same in each run.
    fn moment(&mut self, below: Duration) -> Duration {
        self.chance ^= self.chance << 13;
        self.chance ^= self.chance >> 7;
        self.chance ^= self.chance << 17;
        let below = u64::try_from(below.as_millis()).unwrap_or(1).max(1);
        Duration::from_millis(self.chance % below)
    }

    /// A container whose first process can be told from all others of the machine.
    fn container(pod: &str, name: &str, script: &str) -> Value {
        // A shell becomes what its last command is, and would lose the mark.
        let script = format!(": {}; {script}; exit $?", mark(&format!("{pod}-{name}")));
        json!({"name": name, "image": IMAGE, "command": ["sh", "-c", script],
            "volumeMounts": [{"name": "kept", "mountPath": "/kept"}]})
    }

    fn pod(&self, name: &str, scripts: &[&str], init: bool) -> Value {
        let one = |(i, script): (usize, &&str)| Self::container(name, &format!("c{i}"), script);
        let containers: Vec<Value> = scripts.iter().enumerate().map(one).collect();
        let init = if init { json!([Self::container(name, "init", "sleep 0.3")]) } else { json!([]) };
        json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": {
            "nodeName": self.node.name, "terminationGracePeriodSeconds": 1, "initContainers": init,
            "containers": containers, "volumes": [{"name": "kept", "emptyDir": {}}],
        }})
    }

    fn status(&self, name: &str) -> Result<Value> {
        Ok(self.server.get("pod", name)?["status"].clone())
    }

    fn wait_status(&self, name: &str, what: &str, fits: impl Fn(&Value) -> bool) -> Result<Value> {
        let mut last = Value::Null;
        let waited = self.node.wait_until(&format!("{name}: {what}"), PATIENCE, || {
            last = self.status(name)?;
            Ok(fits(&last))
        });
        waited.with_context(|| format!("{last:#}"))?;
        Ok(last)
    }

    /// They run, and the watch knows them: it would see them if they ran twice.
    fn wait_ready(&self, name: &str) -> Result<Value> {
        let status = self.wait_status(name, "all containers run", |status| {
            let all = status["containerStatuses"].as_array().cloned().unwrap_or_default();
            !all.is_empty() && all.iter().all(|c| c["ready"] == true)
        })?;
        let containers = status["containerStatuses"].as_array().into_iter().flatten();
        let marks = containers.map(|c| format!("{name}-{}", c["name"].as_str().unwrap_or_default()));
        let marks: Vec<String> = marks.collect();
        self.node.wait_until(&format!("{marks:?} are watched"), PATIENCE, || {
            let seen = self.watch.seen();
            Ok(marks.iter().all(|mark| seen.contains_key(mark)))
        })?;
        Ok(status)
    }

    fn delete(&self, name: &str) -> Result<()> {
        self.server.kubectl(&["delete", "pod", name, "--wait=false"]).map(drop)
    }

    fn wait_gone(&self, name: &str) -> Result<()> {
        self.node.wait_until(&format!("{name} is gone"), PATIENCE, || Ok(self.server.get("pod", name).is_err()))
    }

    fn kill_agent(&mut self) -> Result<()> {
        self.node.end_agent(Signal::SIGKILL);
        self.node.start_agent()
    }

    fn nothing_ran_twice(&self) -> Result<()> {
        let seen = self.watch.seen().clone();
        let twice: Vec<_> = seen.into_iter().filter_map(|(mark, twice)| twice.then_some(mark)).collect();
        ensure!(twice.is_empty(), "these ran twice at a time: {twice:?}\n{}", self.node.logs());
        Ok(())
    }

    /// The process of a pod's container.
    fn process(&self, name: &str, container: usize) -> Result<(String, u32)> {
        let status = self.status(name)?;
        let id = status["containerStatuses"][container]["containerID"].as_str().context("an id")?.to_owned();
        let id = id.strip_prefix("containerd://").context("the runtime's name")?.to_owned();
        let process = *self.node.tasks()?.get(&id).with_context(|| format!("{id} runs"))?;
        Ok((id, process))
    }

    /// Kills the agent somewhere in the start of a pod, somewhere in its life and somewhere in its end.
    fn agent_killed_anywhere(&mut self) -> Result<()> {
        for round in 0..KILLS / 3 {
            let name = format!("killed-{round}");
            self.server.create(&self.pod(&name, &["sleep 100000", "sleep 100000"], true))?;
            std::thread::sleep(self.moment(Duration::from_millis(2500)));
            self.kill_agent()?;
            self.wait_ready(&name)?;
            self.nothing_ran_twice()?;
            let before = self.node.tasks()?;
            std::thread::sleep(self.moment(Duration::from_millis(500)));
            self.kill_agent()?;
            // Before it has looked at its pods, it can have done nothing to them.
            let page = format!("/api/v1/nodes/{}/proxy/metrics", self.node.name);
            self.node.wait_until("the agent has looked at a pod", PATIENCE, || {
                let page = self.server.kubectl(&["get", "--raw", &page]).unwrap_or_default();
                Ok(page.contains("kubelet_pod_worker_duration_seconds_count{operation_type="))
            })?;
            std::thread::sleep(self.moment(Duration::from_millis(1500)));
            let after = self.node.tasks()?;
            ensure!(before == after, "before {before:?}\nafter {after:?}\n{}", self.node.logs());
            self.delete(&name)?;
            std::thread::sleep(self.moment(Duration::from_millis(2500)));
            self.kill_agent()?;
            self.wait_gone(&name)?;
        }
        self.nothing_ran_twice()
    }

    /// A runtime that does not answer changes nothing of what runs, and is used again when it does.
    fn runtime_hangs(&mut self) -> Result<()> {
        let before = self.node.tasks()?;
        self.node.signal_containerd(Signal::SIGSTOP);
        let created = self.server.create(&self.pod("during-hang", &["sleep 100000"], false));
        std::thread::sleep(Duration::from_secs(long(8, 60)));
        self.node.signal_containerd(Signal::SIGCONT);
        created?;
        self.wait_ready("during-hang")?;
        let after = self.node.tasks()?;
        ensure!(before.iter().all(|(id, pid)| after.get(id) == Some(pid)), "before {before:?}\nafter {after:?}");
        self.delete("during-hang")?;
        self.wait_gone("during-hang")
    }

    /// The control plane hears in time that the runtime hangs, and from the node all the while.
    fn a_runtime_that_hangs_is_told_of(&mut self) -> Result<()> {
        let node = self.node.name.clone();
        let ready = |c: &Cluster| -> Result<Value> {
            let node = c.server.get("node", &node)?;
            let conditions = node["status"]["conditions"].as_array().cloned().unwrap_or_default();
            conditions.into_iter().find(|condition| condition["type"] == "Ready").context("a condition Ready")
        };
        let renewed = |c: &Cluster| {
            let path = "jsonpath={.spec.renewTime}";
            c.server.kubectl(&["get", "lease", "-n", "kube-node-lease", &node, "-o", path])
        };
        ensure!(ready(self)?["status"] == "True", "it is ready to begin with");
        self.node.signal_containerd(Signal::SIGSTOP);
        let begun = Instant::now();
        let outcome = (|| {
            let (mut down, mut lease, mut renewals) = (None, renewed(self)?, 0);
            while begun.elapsed() < Duration::from_secs(45) {
                let (condition, now) = (ready(self)?, renewed(self)?);
                if condition["status"] == "False" && down.is_none() {
                    ensure!(condition["message"] == "container runtime is down", "{condition}");
                    down = Some(begun.elapsed());
                }
                if now != lease {
                    (lease, renewals) = (now, renewals + 1);
                }
                std::thread::sleep(Duration::from_millis(500));
            }
            Ok((down, renewals))
        })();
        self.node.signal_containerd(Signal::SIGCONT);
        let (down, renewals) = outcome?;
        let down = down.with_context(|| format!("Ready=False within 45 s\n{}", self.node.logs()))?;
        // It answered at most five seconds before it hung, and is down half a minute after that; a busy machine takes its
        // time to say so.
        ensure!((20..44).contains(&down.as_secs()), "Ready=False after {down:?}\n{}", self.node.logs());
        ensure!(renewals >= 4, "{renewals} renewals of the lease in 45 s\n{}", self.node.logs());
        self.node.wait_until("the node is Ready again", PATIENCE, || Ok(ready(self)?["status"] == "True"))
    }

    /// What a dead shim held is started again.
    fn shim_dies(&mut self) -> Result<()> {
        self.server.create(&self.pod("shimless", &["sleep 100000"], false))?;
        self.wait_ready("shimless")?;
        let (id, process) = self.process("shimless", 0)?;
        let stat = std::fs::read_to_string(format!("/proc/{process}/stat"))?;
        let parent = stat.rsplit(')').next().and_then(|rest| rest.split_whitespace().nth(1)).context("a parent")?;
        let comm = std::fs::read_to_string(format!("/proc/{parent}/comm"))?;
        ensure!(comm.starts_with("containerd-shim"), "the parent of {process} is {comm}");
        kill(Pid::from_raw(parent.parse()?), Signal::SIGKILL)?;
        self.node.wait_until("the pod runs again", PATIENCE, || {
            let status = self.status("shimless")?["containerStatuses"][0].clone();
            let other = !status["containerID"].as_str().unwrap_or_default().ends_with(&id);
            Ok(status["ready"] == true && other && status["restartCount"].as_u64() >= Some(1))
        })?;
        self.delete("shimless")?;
        self.wait_gone("shimless")
    }

    fn out_of_memory(&mut self) -> Result<()> {
        let eat = "[ -e /kept/mark ] && sleep 100000; touch /kept/mark; x=a; while :; do x=$x$x; done";
        let mut pod = self.pod("hungry", &[eat], false);
        pod["spec"]["containers"][0]["resources"] = json!({"limits": {"memory": "16Mi"}});
        self.server.create(&pod)?;
        let status = self.wait_status("hungry", "it runs again", |status| {
            let container = &status["containerStatuses"][0];
            container["ready"] == true && container["restartCount"] == 1
        })?;
        let last = &status["containerStatuses"][0]["lastState"]["terminated"];
        ensure!(last["reason"] == "OOMKilled" && last["exitCode"] == 137, "{last}");
        self.delete("hungry")?;
        self.wait_gone("hungry")
    }

    /// Damaged files are set aside; nobody's container is touched.
    fn files_are_damaged(&mut self) -> Result<()> {
        let root = self.node.dir.join("kubelet");
        let before = self.node.tasks()?;
        self.node.end_agent(Signal::SIGKILL);
        let states = ["allocated_pods_state", "actuated_pods_state", "graceful_node_shutdown_state"];
        for path in states.map(|name| root.join(name)) {
            std::fs::write(path, "{\"data\": \"half of")?;
        }
        for folder in ["image_manager/pulled", "image_manager/pulling"] {
            std::fs::create_dir_all(root.join(folder))?;
            std::fs::write(root.join(folder).join("sha256-00"), "\u{0}\u{0}")?;
        }
        for uid in std::fs::read_dir(root.join("pods"))?.flatten() {
            if uid.path().is_dir() {
                std::fs::write(uid.path().join("userns"), "{")?;
            }
        }
        self.node.start_agent()?;
        for folder in ["pulled", "pulling"] {
            let aside = root.join("image_manager").join(folder).join("sha256-00.corrupt");
            self.node.wait_until(&format!("{} is there", aside.display()), PATIENCE, || Ok(aside.exists()))?;
        }
        self.server.create(&self.pod("after-damage", &["sleep 100000"], false))?;
        self.wait_ready("after-damage")?;
        let after = self.node.tasks()?;
        ensure!(before.iter().all(|(id, pid)| after.get(id) == Some(pid)), "before {before:?}\nafter {after:?}");
        self.delete("after-damage")?;
        self.wait_gone("after-damage")
    }

    /// While nobody can be told, a pod crashes, one finishes and a static one changes; afterwards the API has all of it.
    fn api_server_is_away(&mut self) -> Result<()> {
        let file = self.node.manifests().join("changed.json");
        let mirror = format!("changed-{}", self.node.name);
        let with = |container: &str| {
            let containers = json!([{"name": container, "image": IMAGE, "command": ["sleep", "100000"]}]);
            json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "changed"},
                "spec": {"terminationGracePeriodSeconds": 1, "containers": containers}})
            .to_string()
        };
        std::fs::write(&file, with("first"))?;
        let mut done = self.pod("finishes", &["sleep 3; exit 0"], false);
        done["spec"]["restartPolicy"] = json!("Never");
        self.server.create(&done)?;
        self.server.create(&self.pod("crashes", &["sleep 100000"], false))?;
        self.wait_ready("crashes")?;
        self.wait_status(&mirror, "the mirror is told to run", |s| s["containerStatuses"][0]["ready"] == true)?;
        let (_, process) = self.process("crashes", 0)?;
        self.server.kill();
        kill(Pid::from_raw(i32::try_from(process)?), Signal::SIGKILL)?;
        std::fs::write(&file, with("second"))?;
        std::thread::sleep(Duration::from_secs(long(6, 600)));
        self.server.launch()?;
        self.wait_status("finishes", "it is done", |s| s["phase"] == "Succeeded")?;
        self.wait_status("crashes", "it was started again", |s| {
            s["containerStatuses"][0]["ready"] == true && s["containerStatuses"][0]["restartCount"] == 1
        })?;
        self.wait_status(&mirror, "the mirror is that of the new file", |s| {
            s["containerStatuses"][0]["name"] == "second" && s["containerStatuses"][0]["ready"] == true
        })?;
        std::fs::remove_file(&file)?;
        for name in ["finishes", "crashes"] {
            self.delete(name)?;
        }
        for name in ["finishes", "crashes", mirror.as_str()] {
            self.wait_gone(name)?;
        }
        self.nothing_ran_twice()
    }

    /// Many pods come and go; nothing of them stays.
    fn pods_without_end(&mut self) -> Result<()> {
        let batch = BATCH;
        let mut traces = Traces::default();
        let mut before = None;
        for round in 0..long(100, 500).div_ceil(batch) {
            let names: Vec<String> = (0..batch).map(|i| format!("many-{round}-{i}")).collect();
            let pods: Vec<Value> = names.iter().map(|name| self.pod(name, &["sleep 100000"], false)).collect();
            self.server.create(&json!({"apiVersion": "v1", "kind": "List", "items": pods}))?;
            let marks: Vec<String> = names.iter().map(|name| format!("{name}-c0")).collect();
            self.node.wait_until("all of a batch run", PATIENCE, || {
                let pods = self.many()?;
                let runs = |pod: &&Value| pod["status"]["containerStatuses"][0]["ready"] == true;
                let seen = self.watch.seen();
                Ok(pods.iter().filter(runs).count() == names.len() && marks.iter().all(|mark| seen.contains_key(mark)))
            })?;
            for pod in self.many()? {
                traces.note_pod(pod["metadata"]["uid"].as_str().context("a uid")?);
            }
            for (id, process) in self.node.tasks()? {
                traces.note_container(&id, process);
            }
            ensure!(traces.count() >= names.len(), "the traces of {} pods: {:?}", names.len(), traces.left());
            let names: Vec<&str> = names.iter().map(String::as_str).collect();
            self.server.kubectl(&[&["delete", "pod", "--wait=false"], &names[..]].concat())?;
            self.node.wait_until("all of a batch are gone", PATIENCE, || Ok(self.many()?.is_empty()))?;
            // The first batch is what everything is made for once.
            before.get_or_insert(self.held()?);
        }
        self.node.wait_until("the runtime has nothing left", PATIENCE, || {
            Ok(self.node.ctr(&["containers", "list", "-q"])?.trim().is_empty())
        })?;
        let (before, after) = (before.context("a batch")?, self.held()?);
        ensure!(after.files <= before.files + 4, "open files: {before:?}, then {after:?}");
        ensure!(after.mounts <= before.mounts, "mounts: {before:?}, then {after:?}");
        ensure!(after.pod_folders == 0, "folders of pods: {after:?}");
        ensure!(after.kib <= before.kib + 8 * 1024, "memory: {before:?}, then {after:?}");
        let left = traces.left();
        ensure!(left.is_empty(), "cgroups and networks: {left:?}");
        Ok(())
    }

    /// The pods of a batch that the API server has.
    fn many(&self) -> Result<Vec<Value>> {
        let list: Value = serde_json::from_str(&self.server.kubectl(&["get", "pods", "-o", "json"])?)?;
        let pods = list["items"].as_array().cloned().unwrap_or_default();
        let of_batch = |pod: &Value| pod["metadata"]["name"].as_str().is_some_and(|name| name.starts_with("many-"));
        Ok(pods.into_iter().filter(of_batch).collect())
    }

    fn held(&self) -> Result<Held> {
        let pid = self.node.agent_pid();
        let status = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
        // What is its own; pages of its file come and go.
        let kib =
            status.lines().find_map(|line| line.strip_prefix("RssAnon:")?.split_whitespace().next()?.parse().ok());
        let dir = self.node.dir.display().to_string();
        let table = std::fs::read_to_string("/proc/self/mountinfo")?;
        // The socket of the Pods API lies there too.
        let pods = std::fs::read_dir(self.node.dir.join("kubelet/pods"))?.flatten();
        let pods = pods.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
        Ok(Held {
            files: std::fs::read_dir(format!("/proc/{pid}/fd"))?.count(),
            mounts: table.lines().filter(|line| line.contains(&dir)).count(),
            pod_folders: pods.count(),
            kib: kib.context("resident memory")?,
        })
    }
}

#[derive(Debug, Clone, Copy)]
struct Held {
    files: usize,
    mounts: usize,
    pod_folders: usize,
    kib: u64,
}

/// A leak check that sees nothing passes always.
#[test]
fn what_is_left_of_a_pod_is_seen_and_nothing_of_others() -> Result<()> {
    let root = tests::scratch("traces")?;
    let cgroups = "sys/fs/cgroup/memory";
    let slice = "kubepods.slice/kubepods-burstable.slice/kubepods-burstable-poda_1.slice";
    for path in ["kubepods/poda-1/id1", "k8s.io/id2", slice, "kubepods/podb-2/id9"] {
        std::fs::create_dir_all(root.join(cgroups).join(path))?;
    }
    // A file stands for a namespace: both are known by device and inode.
    for folder in ["run/netns", "proc/7/ns", "proc/8/ns"] {
        std::fs::create_dir_all(root.join(folder))?;
    }
    std::fs::write(root.join("run/netns/own"), "")?;
    std::fs::write(root.join("run/netns/other"), "")?;
    std::fs::hard_link(root.join("run/netns/own"), root.join("proc/7/ns/net"))?;
    std::fs::write(root.join("proc/8/ns/net"), "")?;
    let mut traces = Traces::below(&root);
    ensure!(traces.left().is_empty(), "{:?}", traces.left());
    traces.note_pod("a-1");
    for (id, process) in [("id1", 7), ("id2", 8), ("id3", 9)] {
        traces.note_container(id, process);
    }
    let mut left = traces.left();
    left.sort();
    let mut wanted: Vec<String> = ["kubepods/poda-1", "kubepods/poda-1/id1", "k8s.io/id2", slice]
        .map(|path| root.join(cgroups).join(path).display().to_string())
        .into();
    wanted.push(root.join("run/netns/own").display().to_string());
    wanted.sort();
    ensure!(left == wanted, "{left:?}");
    std::fs::remove_dir_all(root.join(cgroups))?;
    std::fs::remove_file(root.join("run/netns/own"))?;
    ensure!(traces.left().is_empty(), "{:?}", traces.left());
    Ok(())
}

#[test]
fn a_node_survives_its_faults() -> Result<()> {
    if tests::no_node() {
        return Ok(());
    }
    let mut c = Cluster::start("faults")?;
    let begun = Instant::now();
    let told = |what: &str| println!("{what}: {:.0?} after the start", begun.elapsed());
    c.agent_killed_anywhere()?;
    told("the agent was killed");
    c.server.create(&c.pod("steady", &["sleep 100000"], false))?;
    c.wait_ready("steady")?;
    c.runtime_hangs()?;
    c.a_runtime_that_hangs_is_told_of()?;
    told("the runtime hung");
    c.shim_dies()?;
    told("a shim died");
    c.out_of_memory()?;
    told("memory ran out");
    c.files_are_damaged()?;
    told("files were damaged");
    c.api_server_is_away()?;
    told("the API server was away");
    ensure!(c.status("steady")?["containerStatuses"][0]["restartCount"] == 0, "one pod saw nothing of all that");
    c.delete("steady")?;
    c.wait_gone("steady")?;
    c.pods_without_end()?;
    told("pods came and went");
    c.nothing_ran_twice()
}
