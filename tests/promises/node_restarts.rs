//! A container starts again where its own policy and rules say so, alone or with all the others of its pod.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use tests::ApiServer;
use tests::pods::{Pods, condition, container};

/// Ends with the next of these codes each time that it runs; what has run is noted in `/told`.
fn ends_with(name: &str, codes: &str) -> String {
    format!(
        "echo {name} >> /told/log; echo >> /told/{name}; set -- {codes}; shift $(($(wc -l < /told/{name}) - 1)); exit $1"
    )
}

/// Operator, exit codes, action.
type Rule<'a> = (&'a str, &'a [i32], &'a str);

/// A container that notes what it does in the volume `told`, with a policy and rules of its own.
fn told(name: &str, script: &str, policy: Option<&str>, rules: &[Rule<'_>]) -> Value {
    let mut more = json!({"name": name, "volumeMounts": [{"name": "told", "mountPath": "/told"}]});
    let rule = |(operator, values, action): &Rule<'_>| json!({"action": action, "exitCodes": {"operator": operator, "values": values}});
    if let (Some(policy), Some(more)) = (policy, more.as_object_mut()) {
        more.insert("restartPolicy".into(), json!(policy));
        more.insert("restartPolicyRules".into(), rules.iter().map(rule).collect());
    }
    Pods::shell(script, &more)
}

fn folder(pods: &Pods, name: &str) -> Result<(PathBuf, Value)> {
    let folder = pods.node.dir.join(name);
    std::fs::create_dir_all(&folder)?;
    let volume = json!({"name": "told", "hostPath": {"path": folder}});
    Ok((folder, volume))
}

/// How often each has run.
fn runs(folder: &Path, name: &str) -> Result<usize> {
    let log = std::fs::read_to_string(folder.join("log"))?;
    Ok(log.lines().filter(|line| *line == name).count())
}

/// Name, restarts, and how the last run and the one before ended.
fn ensure_ended(status: &Value, folder: &Path, wanted: &[(&str, usize, i32, Option<i32>)]) -> Result<()> {
    for (name, restarts, last, before) in wanted {
        let own = container(status, name);
        ensure!(own["restartCount"] == *restarts, "{name}: {status:#}");
        ensure!(own["state"]["terminated"]["exitCode"] == *last, "{name}: {status:#}");
        ensure!(own["lastState"]["terminated"]["exitCode"] == json!(before), "{name}: {status:#}");
        ensure!(runs(folder, name)? == restarts + 1, "{name} has run {} times", runs(folder, name)?);
    }
    Ok(())
}

/// Rules, then the container's policy, then the pod's.
fn rules(pods: &Pods) -> Result<()> {
    let (ruled, volume) = folder(pods, "ruled")?;
    let restart_in: &[Rule<'_>] = &[("In", &[41, 42], "Restart")];
    pods.create(
        "ruled",
        &json!({"restartPolicy": "Never", "volumes": [volume],
        "initContainers": [told("init", &ends_with("init", "42 0"), Some("Never"), restart_in)],
        "containers": [
            told("among", &ends_with("among", "42 41 7"), Some("Never"), restart_in),
            told("beside", &ends_with("beside", "1 7"), Some("Never"), &[("NotIn", &[0, 7], "Restart")]),
            told("second", &ends_with("second", "5 0"), Some("Never"), &[("In", &[4], "Restart"), ("In", &[5], "Restart")]),
            told("success", &ends_with("success", "0 1"), Some("Never"), &[("In", &[0], "Restart")]),
            told("policy", &ends_with("policy", "9 0"), Some("OnFailure"), &[("In", &[8], "Restart")]),
            told("plain", &ends_with("plain", "42"), None, &[]),
        ]}),
    )?;
    let (mixed, volume) = folder(pods, "mixed")?;
    pods.create(
        "mixed",
        &json!({"volumes": [volume], "containers": [
            told("once", &ends_with("once", "3"), Some("Never"), &[]),
            told("until", &ends_with("until", "1 0"), Some("OnFailure"), &[]),
            Pods::shell("exec sleep 1000", &json!({"name": "steady"})),
        ]}),
    )?;
    let status = pods.wait_phase("ruled", "Failed")?;
    let wanted = [
        ("init", 1, 0, Some(42)),
        ("among", 2, 7, Some(41)),
        ("beside", 1, 7, Some(1)),
        ("second", 1, 0, Some(5)),
        ("success", 1, 1, Some(0)),
        ("policy", 1, 0, Some(9)),
        ("plain", 0, 42, None),
    ];
    ensure_ended(&status, &ruled, &wanted)?;
    let status = pods.wait("mixed", "one has been tried until it succeeded", |s| {
        container(s, "until")["state"]["terminated"]["exitCode"] == 0
    })?;
    ensure_ended(&status, &mixed, &[("once", 0, 3, None), ("until", 1, 0, Some(1))])?;
    ensure!(status["phase"] == "Running", "{status:#}");
    ensure!(container(&status, "steady")["restartCount"] == 0, "{status:#}");
    Ok(())
}

/// Every version of a pod from the moment on that it is made; ends with the value.
struct History {
    file: PathBuf,
    watch: Child,
}

impl History {
    /// Returns once the first version is there.
    fn of(pod: &str, server: &ApiServer, pods: &Pods) -> Result<Self> {
        let file = pods.node.dir.join(format!("{pod}.history"));
        let mut kubectl = Command::new("kubectl");
        kubectl.arg("--kubeconfig").arg(server.kubeconfig()).args(["get", "pod", pod, "--watch", "-o", "json"]);
        let output = std::fs::File::create(&file)?;
        let watch = kubectl.stdin(Stdio::null()).stdout(output).stderr(Stdio::null()).spawn()?;
        let history = History { file, watch };
        pods.node.wait_until("the watch has begun", Duration::from_secs(20), || Ok(!history.seen()?.is_empty()))?;
        Ok(history)
    }

    /// The statuses so far.
    fn seen(&self) -> Result<Vec<Value>> {
        let text = std::fs::read_to_string(&self.file)?;
        // The last one may be half written.
        let whole = serde_json::Deserializer::from_str(&text).into_iter::<Value>().map_while(Result::ok);
        Ok(whole.map(|mut pod| pod["status"].take()).collect())
    }
}

impl Drop for History {
    fn drop(&mut self) {
        // Gone already is as good.
        let _ = self.watch.kill();
        let _ = self.watch.wait();
    }
}

const STARTED_OVER: &str = "RestartingAllContainers";
const MESSAGE: &str = "The container is removed because RestartAllContainers in place";

/// The end of one container starts all of them over, in the same sandbox, with the same volumes, and without hooks.
fn all_at_once(pods: &Pods) -> Result<()> {
    let (folder, volume) = folder(pods, "over")?;
    let asks = "echo asks >> /told/log; ls /kept >> /told/log; [ -e /told/asked ] && exec sleep 1000; touch /kept/kept; \
                until [ -e /told/go ]; do sleep 0.1; done; touch /told/asked; exit 88";
    let with = |mut container: Value, member: &str, value: Value| {
        if let Some(container) = container.as_object_mut() {
            container.insert(member.into(), value);
        }
        container
    };
    let mounts = json!([{"name": "told", "mountPath": "/told"}, {"name": "kept", "mountPath": "/kept"}]);
    let asks = told("asks", asks, Some("Never"), &[("In", &[87, 88], "RestartAllContainers")]);
    let bystander = told("bystander", "echo bystander >> /told/log; exec sleep 1000", None, &[]);
    let hook = json!({"preStop": {"exec": {"command": ["sh", "-c", "echo hook >> /told/log"]}}});
    pods.create(
        "over",
        &json!({"restartPolicy": "Never", "volumes": [volume, {"name": "kept", "emptyDir": {}}],
        "initContainers": [
            told("init", "echo init >> /told/log", None, &[]),
            told("sidecar", "echo sidecar >> /told/log; exec sleep 1000", Some("Always"), &[]),
        ],
        "containers": [with(asks, "volumeMounts", mounts), with(bystander, "lifecycle", hook)]}),
    )?;
    let before = pods.wait("over", "Ready", |s| condition(s, "Ready")["status"] == "True")?;
    let restarting = |status: &Value| condition(status, "AllContainersRestarting")["status"].clone();
    ensure!(restarting(&before) == "False", "{before:#}");
    let history = History::of("over", &pods.server, pods)?;
    std::fs::write(folder.join("go"), "")?;
    let status = pods.wait("over", "all run again", |s| {
        container(s, "asks")["restartCount"] == 1 && condition(s, "Ready")["status"] == "True"
    })?;
    for name in ["init", "sidecar", "asks", "bystander"] {
        ensure!(container(&status, name)["restartCount"] == 1, "{name}: {status:#}");
        ensure!(runs(&folder, name)? == 2, "{name} has run {} times", runs(&folder, name)?);
        let last = &container(&status, name)["lastState"]["terminated"];
        ensure!(last["reason"] == STARTED_OVER && last["exitCode"] == 137 && last["message"] == MESSAGE, "{status:#}");
    }
    ensure!(runs(&folder, "kept")? == 1, "the volume is another one");
    ensure!(runs(&folder, "hook")? == 0, "a hook has run");
    ensure!(status["podIP"] == before["podIP"] && !status["podIP"].is_null(), "{before:#}\n{status:#}");
    ensure!(pods.events("over", "SandboxChanged")?.is_empty(), "another sandbox");
    let seen = history.seen()?;
    let mut said: Vec<Value> = seen.iter().map(restarting).collect();
    said.dedup();
    ensure!(said == ["False", "True", "False"], "{said:?}");
    let under_way = seen.iter().find(|s| restarting(s) == "True").context("a status")?;
    let own = condition(under_way, "AllContainersRestarting");
    ensure!(own["reason"] == "RestartAllContainersStarted", "{own:#}");
    ensure!(own["message"] == "container exited with restart policy rule", "{own:#}");
    let waits = |status: &Value| container(status, "bystander")["state"]["waiting"]["reason"] == STARTED_OVER;
    ensure!(seen.iter().any(waits), "nobody is told that containers wait: {seen:#?}");
    Ok(())
}

/// The same where an init container asks for it, before others have run.
fn all_from_the_beginning(pods: &Pods) -> Result<()> {
    let (folder, volume) = folder(pods, "early")?;
    let rule: &[Rule<'_>] = &[("NotIn", &[0], "RestartAllContainers")];
    pods.create(
        "early",
        &json!({"restartPolicy": "Never", "volumes": [volume],
        "initContainers": [
            told("first", "echo first >> /told/log", None, &[]),
            told("asks", &ends_with("asks", "5 0"), Some("Never"), rule),
        ],
        "containers": [told("main", "echo main >> /told/log", None, &[])]}),
    )?;
    let status = pods.wait_phase("early", "Succeeded")?;
    for (name, restarts) in [("first", 1), ("asks", 1), ("main", 0)] {
        ensure!(container(&status, name)["restartCount"] == restarts, "{name}: {status:#}");
        ensure!(container(&status, name)["state"]["terminated"]["exitCode"] == 0, "{name}: {status:#}");
        ensure!(runs(&folder, name)? == restarts + 1, "{name} has run {} times", runs(&folder, name)?);
    }
    let own = condition(&status, "AllContainersRestarting");
    ensure!(own["status"] == "False" && own["reason"] == "PodCompleted", "{own:#}");
    Ok(())
}

#[test]
fn containers_start_again_as_their_own_rules_say() -> Result<()> {
    if tests::no_node() {
        return Ok(());
    }
    let pods = Pods::start("restarts", "crashLoopBackOff: {maxContainerRestartPeriod: 1s}\n")?;
    all_from_the_beginning(&pods)?;
    all_at_once(&pods)?;
    rules(&pods)
}
