//! Lifecycle hooks by HTTP reach who they are for with what the pod says, pauses take their time and no more, and a hook that
//! fails ends its container. The server is the test's own.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use tests::listener::Listener;
use tests::pods::{Pods, container};
use tests::{free_port, scratch};

const SLEEPS: &str = "trap 'exit 0' TERM; while :; do sleep 0.1; done";

/// A GET to a port of this machine.
fn get(port: u16, path: &str, scheme: &str) -> Value {
    let headers = json!([{"name": "X-Hook", "value": "one"}, {"name": "X-Hook", "value": "two"}, {"name": "Authorization", "value": "secret"}]);
    json!({"httpGet": {"host": "127.0.0.1", "port": port, "path": path, "scheme": scheme, "httpHeaders": headers}})
}

fn with_hooks(hooks: &Value) -> Value {
    Pods::shell(SLEEPS, &json!({"lifecycle": hooks}))
}

/// What arrived at a path, once it has.
fn arrived(pods: &Pods, server: &Listener, path: &str) -> Result<tests::listener::Asked> {
    pods.node.wait_until(&format!("{path} is asked for"), Duration::from_secs(30), || {
        Ok(!server.asked_for(path).is_empty())
    })?;
    server.asked_for(path).pop().context("it was there")
}

/// What comes after a hook waits until it has been answered.
fn in_plain_text(pods: &Pods) -> Result<()> {
    let (server, folder) = (Listener::plain()?, scratch("hook-in-plain-text")?);
    let mounts = json!([{"name": "told", "mountPath": "/told"}]);
    let script = |name: &str| {
        format!("touch /told/{name}-begins; trap 'touch /told/{name}-ends; exit 0' TERM; while :; do sleep 0.1; done")
    };
    let (begin, end) = (get(server.port, "/held/begins?pod=a%20b", "HTTP"), get(server.port, "/held/ends", "HTTP"));
    let main = json!({"volumeMounts": mounts, "lifecycle": {"postStart": begin, "preStop": end}});
    let other = json!({"name": "other", "volumeMounts": mounts});
    let spec = json!({"hostNetwork": true, "terminationGracePeriodSeconds": 60,
        "volumes": [{"name": "told", "hostPath": {"path": folder}}],
        "containers": [Pods::shell(&script("main"), &main), Pods::shell(&script("other"), &other)]});
    pods.create("plain", &spec)?;
    let done = |what: &str| pods.node.wait_until(what, Duration::from_secs(30), || Ok(folder.join(what).exists()));
    let begun = arrived(pods, &server, "/held/begins?pod=a%20b")?;
    ensure!(begun.header("user-agent") == "kube-lifecycle/1.36", "{begun:?}");
    ensure!(begun.header("x-hook") == "one,two" && begun.header("authorization") == "secret", "{begun:?}");
    let host = format!("127.0.0.1:{}", server.port);
    ensure!(begun.header("host") == host && begun.header("accept") == "*/*", "{begun:?}");
    // The container runs; the next one does not before the hook is over.
    done("main-begins")?;
    ensure!(!folder.join("other-begins").exists(), "the hook is not waited for");
    server.let_go("/held/begins?pod=a%20b");
    done("other-begins")?;
    pods.wait("plain", "both run", |s| {
        container(s, "main")["ready"] == true && container(s, "other")["ready"] == true
    })?;
    pods.server.kubectl(&["delete", "pod", "plain", "--wait=false"])?;
    arrived(pods, &server, "/held/ends")?;
    // The other one has no hook, and is told to end at once; this one is not while its hook goes on.
    done("other-ends")?;
    ensure!(!folder.join("main-ends").exists(), "the hook is not waited for");
    server.let_go("/held/ends");
    done("main-ends")?;
    pods.server.kubectl(&["wait", "--for=delete", "pod/plain", "--timeout=30s"])?;
    ensure!(server.asked().len() == 2, "{:#?}", server.asked());
    ensure!(pods.events("plain", "FailedPreStopHook")?.is_empty(), "the hook was answered");
    Ok(())
}

/// Whatever certificate is shown, and whatever is answered; and one that does not speak TLS is asked in plain text.
fn over_tls(pods: &Pods) -> Result<()> {
    let (tls, plain) = (Listener::tls()?, Listener::plain()?);
    let hooks =
        json!({"postStart": get(tls.port, "/status/500", "HTTPS"), "preStop": get(plain.port, "/ends", "HTTPS")});
    pods.create("secret", &json!({"terminationGracePeriodSeconds": 30, "containers": [with_hooks(&hooks)]}))?;
    pods.wait("secret", "it runs", |s| container(s, "main")["ready"] == true)?;
    let begun = arrived(pods, &tls, "/status/500")?;
    ensure!(begun.over_tls && begun.header("authorization") == "secret", "{begun:?}");
    ensure!(pods.events("secret", "LifecycleHTTPFallback")?.is_empty(), "TLS was spoken");
    pods.server.kubectl(&["delete", "pod", "secret", "--timeout=30s"])?;
    let ends = plain.asked_for("/ends");
    ensure!(ends.len() == 1 && ends[0].header("x-hook") == "one,two", "{ends:?}");
    ensure!(ends[0].header("authorization").is_empty(), "a secret in plain text: {ends:?}");
    let said = format!(
        "request to HTTPS lifecycle hook 127.0.0.1:{} got HTTP response, retry with HTTP succeeded",
        plain.port
    );
    pods.told_of("secret", "LifecycleHTTPFallback", &said)?;
    ensure!(pods.events("secret", "FailedPostStartHook")?.is_empty(), "any answer is one");
    Ok(())
}

/// Without a host it is the pod that is asked, by the number or the name of its port.
fn of_the_pod(pods: &Pods) -> Result<()> {
    let folder = scratch("hook-of-the-pod")?;
    let script = "mkdir -p /www/cgi-bin; printf '#!/bin/sh\\necho \"$HTTP_USER_AGENT $HTTP_X_HOOK $QUERY_STRING\" >> /told/log\\n\
                  printf \"\\\\n\"\\n' > /www/cgi-bin/ends; chmod +x /www/cgi-bin/ends; httpd -p 8080 -h /www; \
                  trap 'exit 0' TERM; while :; do sleep 0.1; done";
    let headers = json!([{"name": "X-Hook", "value": "yes"}]);
    let hook = json!({"httpGet": {"port": "web", "path": "cgi-bin/ends?a=b", "httpHeaders": headers}});
    let ready = json!({"tcpSocket": {"port": "web"}, "periodSeconds": 1});
    let main = json!({"ports": [{"name": "web", "containerPort": 8080}], "lifecycle": {"preStop": hook},
        "readinessProbe": ready, "volumeMounts": [{"name": "told", "mountPath": "/told"}]});
    let volumes = json!([{"name": "told", "hostPath": {"path": folder}}]);
    pods.create(
        "own",
        &json!({"terminationGracePeriodSeconds": 30, "volumes": volumes, "containers": [Pods::shell(script, &main)]}),
    )?;
    pods.wait("own", "it serves", |s| container(s, "main")["ready"] == true)?;
    pods.server.kubectl(&["delete", "pod", "own", "--timeout=30s"])?;
    let log = std::fs::read_to_string(folder.join("log")).context("it was not asked")?;
    ensure!(log == "kube-lifecycle/1.36 yes a=b\n", "{log}");
    Ok(())
}

/// A hook that cannot be run ends its container, and the pod where nothing starts it again.
fn failing(pods: &Pods) -> Result<()> {
    let closed = free_port()?;
    let socket = json!({"tcpSocket": {"port": closed}});
    let refused = format!(
        "HTTP lifecycle hook (/x) for Container \"main\" in Pod \"refused_default(UID)\" failed - error: Get \
         \"http://127.0.0.1:{closed}/x\": dial tcp 127.0.0.1:{closed}: connect: connection refused"
    );
    let invalid = format!(
        "Cannot run handler: invalid handler: &LifecycleHandler{{Exec:nil,HTTPGet:nil,\
         TCPSocket:&TCPSocketAction{{Port:{{0 {closed} }},Host:,}},Sleep:nil,}}"
    );
    let cases = [("refused", get(closed, "/x", "HTTP"), refused), ("socket", socket.clone(), invalid)];
    for (name, hook, _) in &cases {
        let main = with_hooks(&json!({"postStart": hook}));
        pods.create(name, &json!({"restartPolicy": "Always", "hostNetwork": true, "containers": [main]}))?;
    }
    // A pod on the node's network is known by no address to its hooks.
    let hook = json!({"httpGet": {"port": closed, "path": "/x"}});
    let never =
        json!({"restartPolicy": "Never", "hostNetwork": true, "containers": [with_hooks(&json!({"postStart": hook}))]});
    pods.create("nowhere", &never)?;
    let last = json!({"preStop": socket});
    pods.create("last", &json!({"containers": [with_hooks(&last)]}))?;
    for (name, _, words) in &cases {
        let uid = pods.server.get("pod", name)?["metadata"]["uid"].as_str().context("a uid")?.to_owned();
        let words = words.replace("UID", &uid);
        pods.wait(name, "it waits for its hook", |s| {
            let waiting = &container(s, "main")["state"]["waiting"];
            waiting["reason"] == "PostStartHookError" && waiting["message"] == words.as_str()
        })?;
        pods.told_of(name, "FailedPostStartHook", "PostStartHook failed")?;
        pods.told_of(name, "Killing", "FailedPostStartHook")?;
    }
    // It ends well when it is told to.
    let status = pods.wait_phase("nowhere", "Succeeded")?;
    ensure!(container(&status, "main")["restartCount"] == 0, "{status:#}");
    ensure!(pods.told("nowhere", "FailedPostStartHook")? == ["PostStartHook failed"]);
    // The last one of all does not keep anybody from ending.
    pods.wait_phase("last", "Running")?;
    pods.server.kubectl(&["delete", "pod", "last", "--timeout=30s"])?;
    pods.told_of("last", "FailedPreStopHook", "PreStopHook failed")
}

/// A pause holds up what comes after it: the next container's start, and the signal to end, for as long as there is grace.
fn pauses(pods: &Pods) -> Result<()> {
    let folder = scratch("hook-pauses")?;
    let told = |name: &str| {
        let script = format!(
            "date +%s >> /told/{name}; trap 'date +%s >> /told/{name}; exit 0' TERM; while :; do sleep 0.1; done"
        );
        (script, json!([{"name": "told", "mountPath": "/told"}]))
    };
    let times = |name: &str| -> Result<Vec<i64>> {
        let text = std::fs::read_to_string(folder.join(name)).with_context(|| format!("{name} was not told"))?;
        text.lines().map(|line| line.parse().context("seconds")).collect()
    };
    let volumes = json!([{"name": "told", "hostPath": {"path": folder}}]);
    let (script, mounts) = told("first");
    let lifecycle = json!({"postStart": {"sleep": {"seconds": 3}}, "preStop": {"sleep": {"seconds": 3}}});
    let first = Pods::shell(&script, &json!({"volumeMounts": mounts, "lifecycle": lifecycle}));
    let (script, mounts) = told("second");
    let second = Pods::shell(
        &script,
        &json!({"name": "second", "volumeMounts": mounts, "lifecycle": {"preStop": {"sleep": {"seconds": 0}}}}),
    );
    pods.create(
        "pausing",
        &json!({"terminationGracePeriodSeconds": 60, "volumes": volumes, "containers": [first, second]}),
    )?;
    let (script, mounts) = told("cut");
    let cut =
        Pods::shell(&script, &json!({"volumeMounts": mounts, "lifecycle": {"preStop": {"sleep": {"seconds": 500}}}}));
    // The API server takes no pause that is longer than the grace of the pod, but a deletion may come with less.
    pods.create("cut", &json!({"terminationGracePeriodSeconds": 600, "volumes": volumes, "containers": [cut]}))?;
    pods.wait("pausing", "both run", |s| {
        container(s, "main")["ready"] == true && container(s, "second")["ready"] == true
    })?;
    pods.wait_phase("cut", "Running")?;
    pods.server.kubectl(&["delete", "pod", "cut", "--grace-period=3", "--wait=false"])?;
    pods.server.kubectl(&["delete", "pod", "pausing", "--timeout=40s"])?;
    pods.server.kubectl(&["wait", "--for=delete", "pod/cut", "--timeout=40s"])?;
    let (first, second, cut) = (times("first")?, times("second")?, times("cut")?);
    ensure!(first.len() == 2 && second.len() == 2 && cut.len() == 2, "told to end: {first:?} {second:?} {cut:?}");
    // Three seconds of a clock that counts whole ones.
    ensure!(second[0] - first[0] >= 2, "the second starts before the pause is over: {first:?} {second:?}");
    ensure!(first[1] - second[1] >= 2, "the first is told to end before the pause is over: {first:?} {second:?}");
    for pod in ["pausing", "cut"] {
        let failed = pods.events(pod, "FailedPreStopHook")?;
        ensure!(failed.is_empty(), "{pod}: {failed:?}");
    }
    Ok(())
}

#[test]
fn lifecycle_hooks_reach_who_they_are_for() -> Result<()> {
    if tests::no_node() {
        return Ok(());
    }
    let pods = Pods::start("hooks", "")?;
    in_plain_text(&pods)?;
    over_tls(&pods)?;
    of_the_pod(&pods)?;
    failing(&pods)?;
    pauses(&pods)
}
