//! Containers of a pod begin, are looked after and end in the order and for the reasons that they are promised.

use std::time::Duration;

use anyhow::{Result, ensure};
use serde_json::{Value, json};
use tests::pods::{Pods, condition, container};

fn exec(script: &str) -> Value {
    json!({"exec": {"command": ["sh", "-c", script]}})
}

/// Says when it begins and, on SIGTERM, when it ends.
fn teller(name: &str) -> String {
    format!("trap 'echo {name}-end >> /told/log; exit 0' TERM; echo {name} >> /told/log; while :; do sleep 0.1; done")
}

fn first_to_last(pods: &Pods) -> Result<()> {
    let folder = pods.node.dir.join("told");
    std::fs::create_dir_all(&folder)?;
    let told = || -> Result<String> { Ok(std::fs::read_to_string(folder.join("log"))?.replace('\n', " ")) };
    let mounts = json!([{"name": "told", "mountPath": "/told"}]);
    let startup = json!({"exec": {"command": ["sh", "-c", "sleep 1; echo started >> /told/log"]}, "periodSeconds": 1, "timeoutSeconds": 5});
    let sidecar =
        json!({"name": "sidecar", "restartPolicy": "Always", "volumeMounts": mounts, "startupProbe": startup});
    let lifecycle =
        json!({"postStart": exec("sleep 0.5; echo post >> /told/log"), "preStop": exec("echo pre >> /told/log")});
    let readiness = json!({"exec": {"command": ["test", "-e", "/told/ready"]}, "periodSeconds": 1});
    pods.create(
        "orderly",
        &json!({"terminationGracePeriodSeconds": 20,
        "volumes": [{"name": "told", "hostPath": {"path": folder}}],
        "initContainers": [
            Pods::shell("echo init >> /told/log", &json!({"name": "init", "volumeMounts": mounts})),
            Pods::shell(&teller("sidecar"), &sidecar),
        ],
        "containers": [Pods::shell(
            &teller("main"),
            &json!({"volumeMounts": mounts, "lifecycle": lifecycle, "readinessProbe": readiness}),
        )]}),
    )?;
    let status = pods.wait("orderly", "the main container runs", |s| container(s, "main")["started"] == true)?;
    ensure!(told()? == "init sidecar started main post ", "{}", told()?);
    ensure!(condition(&status, "Ready")["status"] == "False", "its readiness has not been seen: {status:#}");
    std::fs::write(folder.join("ready"), "")?;
    pods.wait("orderly", "Ready", |s| condition(s, "Ready")["status"] == "True")?;
    pods.server.kubectl(&["delete", "pod", "orderly", "--timeout=30s"])?;
    ensure!(told()? == "init sidecar started main post pre main-end sidecar-end ", "{}", told()?);
    Ok(())
}

/// What is over, or goes on, before anybody looked lets the next one begin at once.
fn soon_over(pods: &Pods) -> Result<()> {
    let folder = pods.node.dir.join("soon");
    std::fs::create_dir_all(&folder)?;
    let mounts = json!([{"name": "soon", "mountPath": "/soon"}]);
    let short = |name: &str| Pods::shell("true", &json!({"name": name}));
    let sidecar = |name: &str| Pods::shell("exec sleep 1000", &json!({"name": name, "restartPolicy": "Always"}));
    let again = "echo x >> /soon/runs; test $(wc -l < /soon/runs) -gt 1 || exit 0; exec sleep 1000";
    pods.create(
        "soon",
        &json!({"volumes": [{"name": "soon", "hostPath": {"path": folder}}],
        "initContainers": [short("one"), sidecar("two"), short("three"), sidecar("four"), short("five")],
        "containers": [
            Pods::shell(again, &json!({"name": "again", "volumeMounts": mounts})),
            Pods::shell("exec sleep 1000", &json!({"name": "steady"})),
        ]}),
    )?;
    let begun = std::time::Instant::now();
    let status = pods.wait("soon", "all of it runs", |s| {
        container(s, "again")["restartCount"] == 1 && condition(s, "Ready")["status"] == "True"
    })?;
    ensure!(begun.elapsed() < Duration::from_secs(30), "after {:?}: {status:#}", begun.elapsed());
    Ok(())
}

fn last_words(pods: &Pods) -> Result<()> {
    let talks = Pods::shell("printf 'the reason' > /dev/termination-log; exit 3", &json!({"name": "file"}));
    let shouts = Pods::shell(
        "echo last words; exit 4",
        &json!({"name": "log", "terminationMessagePolicy": "FallbackToLogsOnError"}),
    );
    pods.create("talker", &json!({"restartPolicy": "Never", "containers": [talks, shouts]}))?;
    let status = pods.wait_phase("talker", "Failed")?;
    let ended = |name: &str| container(&status, name)["state"]["terminated"].clone();
    ensure!(ended("file")["message"] == "the reason" && ended("file")["exitCode"] == 3, "{status:#}");
    ensure!(ended("log")["message"] == "last words\n" && ended("log")["exitCode"] == 4, "{status:#}");
    Ok(())
}

fn looked_after(pods: &Pods) -> Result<()> {
    let script = "mkdir /www; echo ok > /www/ok; httpd -p 8080 -h /www; sleep 3; rm /www/ok; exec sleep 1000";
    let probe = json!({"httpGet": {"path": "/ok", "port": 8080}, "periodSeconds": 1, "failureThreshold": 2,
        "terminationGracePeriodSeconds": 1, "initialDelaySeconds": 1});
    // The probe's grace counts, not the pod's, which nobody here waits for.
    let container_of = Pods::shell(script, &json!({"livenessProbe": probe}));
    pods.create("sick", &json!({"terminationGracePeriodSeconds": 600, "containers": [container_of]}))?;
    pods.create("crashing", &json!({"restartPolicy": "OnFailure", "containers": [Pods::shell("exit 7", &json!({}))]}))?;
    pods.create("done", &json!({"restartPolicy": "OnFailure", "containers": [Pods::shell("exit 0", &json!({}))]}))?;
    let status = pods.wait("sick", "it is started again", |s| container(s, "main")["restartCount"] == 1)?;
    // The container has been killed, with its grace passed.
    ensure!(container(&status, "main")["lastState"]["terminated"]["exitCode"] == 137, "{status:#}");
    let killed = pods.events("sick", "Killing")?;
    ensure!(killed.iter().any(|m| m == "Container main failed liveness probe, will be restarted"), "{killed:?}");
    let status = pods.wait("crashing", "it has to wait", |s| {
        container(s, "main")["state"]["waiting"]["reason"] == "CrashLoopBackOff"
    })?;
    ensure!(status["phase"] == "Running", "{status:#}");
    let message = container(&status, "main")["state"]["waiting"]["message"].as_str().unwrap_or_default();
    ensure!(message.starts_with("back-off 10s restarting failed container=main pod=crashing_default("), "{message}");
    ensure!(container(&status, "main")["lastState"]["terminated"]["exitCode"] == 7, "{status:#}");
    let status = pods.wait_phase("done", "Succeeded")?;
    ensure!(container(&status, "main")["restartCount"] == 0, "{status:#}");
    Ok(())
}

/// A container that does not listen is given its grace and no more.
fn deaf(pods: &Pods) -> Result<()> {
    let script = "trap '' TERM; while :; do sleep 1; done";
    pods.create("deaf", &json!({"terminationGracePeriodSeconds": 3, "containers": [Pods::shell(script, &json!({}))]}))?;
    pods.wait_phase("deaf", "Running")?;
    let begun = std::time::Instant::now();
    pods.server.kubectl(&["delete", "pod", "deaf", "--timeout=30s"])?;
    let took = begun.elapsed();
    ensure!(took >= Duration::from_millis(2900) && took < Duration::from_secs(12), "{took:?}");
    Ok(())
}

/// A pod that is done ends with its sidecars, the last first, though they would have time; one that ended beside a later
/// init container was started again before.
fn done_with_sidecars(pods: &Pods) -> Result<()> {
    let folder = pods.node.dir.join("job");
    std::fs::create_dir_all(&folder)?;
    let told = || -> Result<String> { Ok(std::fs::read_to_string(folder.join("log"))?.replace('\n', " ")) };
    let mounts = json!([{"name": "told", "mountPath": "/told"}]);
    let sidecar = |name: &str, script: &str| {
        Pods::shell(script, &json!({"name": name, "restartPolicy": "Always", "volumeMounts": mounts}))
    };
    let falls = format!("test -e /told/fell || {{ touch /told/fell; exit 1; }}; {}", teller("first"));
    let waits = "until grep -q first /told/log; do sleep 0.1; done; echo init >> /told/log";
    pods.create(
        "job",
        &json!({"restartPolicy": "Never", "terminationGracePeriodSeconds": 60,
        "volumes": [{"name": "told", "hostPath": {"path": folder}}],
        "initContainers": [
            sidecar("first", &falls),
            Pods::shell(waits, &json!({"name": "init", "volumeMounts": mounts})),
            sidecar("second", &teller("second")),
        ],
        "containers": [Pods::shell(
            "until grep -q second /told/log; do sleep 0.1; done; echo main >> /told/log",
            &json!({"volumeMounts": mounts}),
        )]}),
    )?;
    let begun = std::time::Instant::now();
    pods.wait_phase("job", "Succeeded")?;
    ensure!(begun.elapsed() < Duration::from_secs(40), "after {:?}", begun.elapsed());
    ensure!(told()? == "first init second main second-end first-end ", "{}", told()?);
    Ok(())
}

/// What the runtime was asked for comes to its end before its pod ends: the hook that has begun, and the container after it.
fn ending_in_a_hook(pods: &Pods) -> Result<()> {
    let folder = pods.node.dir.join("begun");
    std::fs::create_dir_all(&folder)?;
    let mounts = json!([{"name": "told", "mountPath": "/told"}]);
    let lifecycle = json!({"postStart": exec(
        "echo hook >> /told/log; while [ ! -e /told/on ]; do sleep 0.1; done; echo hooked >> /told/log"
    )});
    let hooked = json!({"name": "hooked", "volumeMounts": mounts, "lifecycle": lifecycle});
    let other = json!({"name": "other", "volumeMounts": mounts});
    pods.create(
        "begun",
        &json!({"terminationGracePeriodSeconds": 5,
        "volumes": [{"name": "told", "hostPath": {"path": folder}}],
        "containers": [Pods::shell("exec sleep 1000", &hooked), Pods::shell(&teller("other"), &other)]}),
    )?;
    pods.node.wait_until("the hook has begun", Duration::from_secs(60), || Ok(folder.join("log").exists()))?;
    pods.server.kubectl(&["delete", "pod", "begun", "--wait=false"])?;
    std::thread::sleep(Duration::from_secs(1));
    std::fs::write(folder.join("on"), "")?;
    pods.server.kubectl(&["wait", "--for=delete", "pod/begun", "--timeout=60s"])?;
    let told = std::fs::read_to_string(folder.join("log"))?.replace('\n', " ");
    ensure!(told.starts_with("hook hooked other "), "{told}");
    let failed = pods.events("begun", "FailedPostStartHook")?;
    ensure!(failed.is_empty(), "{failed:?}");
    Ok(())
}

/// Readiness is asked for while a pod ends, a hook that takes too long is let go, and a second deletion gives less time.
fn ending(pods: &Pods) -> Result<()> {
    let folder = pods.node.dir.join("ending");
    std::fs::create_dir_all(&folder)?;
    let mounts = json!([{"name": "told", "mountPath": "/told"}]);
    let readiness = json!({"exec": {"command": ["test", "!", "-e", "/told/ends"]}, "periodSeconds": 1,
        "failureThreshold": 1});
    let ends = "trap 'touch /told/ends' TERM; while :; do sleep 0.1; done";
    pods.create(
        "unready",
        &json!({"terminationGracePeriodSeconds": 600,
        "volumes": [{"name": "told", "hostPath": {"path": folder}}],
        "containers": [Pods::shell(ends, &json!({"volumeMounts": mounts, "readinessProbe": readiness}))]}),
    )?;
    let lifecycle = json!({"preStop": exec("echo begun > /told/hook; sleep 1000")});
    pods.create(
        "hooked",
        &json!({"terminationGracePeriodSeconds": 3,
        "volumes": [{"name": "told", "hostPath": {"path": folder}}],
        "containers": [Pods::shell(&teller("hooked"), &json!({"volumeMounts": mounts, "lifecycle": lifecycle}))]}),
    )?;
    pods.wait("unready", "Ready", |s| condition(s, "Ready")["status"] == "True")?;
    pods.wait_phase("hooked", "Running")?;
    pods.server.kubectl(&["delete", "pod", "unready", "--wait=false"])?;
    let begun = std::time::Instant::now();
    pods.server.kubectl(&["delete", "pod", "hooked", "--timeout=30s"])?;
    let took = begun.elapsed();
    ensure!(took >= Duration::from_millis(2900) && took < Duration::from_secs(12), "{took:?}");
    // Its container had the least that each has, and so could say that it ends.
    ensure!(std::fs::read_to_string(folder.join("log"))?.ends_with("hooked-end\n"), "it was not asked to end");
    let status = pods.wait("unready", "it is not ready any more", |s| condition(s, "Ready")["status"] == "False")?;
    ensure!(container(&status, "main")["state"]["running"].is_object(), "{status:#}");
    let begun = std::time::Instant::now();
    pods.server.kubectl(&["delete", "pod", "unready", "--grace-period=2", "--timeout=30s"])?;
    ensure!(begun.elapsed() < Duration::from_secs(12), "{:?}", begun.elapsed());
    Ok(())
}

#[test]
fn containers_begin_and_end_in_their_order() -> Result<()> {
    if tests::no_node() {
        return Ok(());
    }
    let pods = Pods::start("containers", "")?;
    first_to_last(&pods)?;
    soon_over(&pods)?;
    last_words(&pods)?;
    looked_after(&pods)?;
    deaf(&pods)?;
    done_with_sidecars(&pods)?;
    ending_in_a_hook(&pods)?;
    ending(&pods)
}
