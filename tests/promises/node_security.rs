//! What a pod may do is what its security contexts say, and a pod that cannot have what they say does not run.

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use tests::pods::{Pods, container};

const STATUS: &str = "cat /proc/self/status";

/// A line of `/proc/self/status`.
fn line<'a>(text: &'a str, name: &str) -> Result<&'a str> {
    let found = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    Ok(found.with_context(|| format!("{name} in {text}"))?.trim())
}

fn context(what: &Value) -> Value {
    json!({"securityContext": what})
}

fn users_and_groups(pods: &Pods) -> Result<()> {
    let spec = json!({"volumes": [{"name": "v", "emptyDir": {}}],
        "securityContext": {"runAsUser": 1000, "runAsGroup": 2000, "supplementalGroups": [3000], "fsGroup": 4000}});
    let mounts = json!({"volumeMounts": [{"name": "v", "mountPath": "/v"}]});
    let said =
        pods.said("groups", "id -u; id -g; id -G; stat -c '%g %A' /v; touch /v/f; stat -c %g /v/f", &mounts, &spec)?;
    let mut lines = said.lines();
    ensure!(lines.next() == Some("1000") && lines.next() == Some("2000"), "{said}");
    let mut groups: Vec<&str> = lines.next().unwrap_or_default().split(' ').collect();
    groups.sort_unstable();
    ensure!(groups == ["2000", "3000", "4000"], "{said}");
    ensure!(lines.next() == Some("4000 drwxrwsrwx") && lines.next() == Some("4000"), "{said}");
    // The container's own word counts more than the pod's.
    let own = context(&json!({"runAsUser": 5000, "runAsNonRoot": true}));
    let said =
        pods.said("own-user", "id -u; id -g", &own, &json!({"securityContext": {"runAsUser": 1000, "runAsGroup": 7}}))?;
    ensure!(said == "5000\n7\n", "{said}");
    let refused = json!({"containers": [Pods::shell("true", &context(&json!({"runAsNonRoot": true})))]});
    pods.create("root", &refused)?;
    let status = pods.wait("root", "it is refused", |s| {
        container(s, "main")["state"]["waiting"]["reason"] == "CreateContainerConfigError"
    })?;
    let why = container(&status, "main")["state"]["waiting"]["message"].as_str().unwrap_or_default();
    ensure!(why.starts_with("container has runAsNonRoot and image will run as root"), "{why}");
    Ok(())
}

fn rights(pods: &Pods) -> Result<()> {
    let usual = pods.said("usual", STATUS, &json!({}), &json!({}))?;
    ensure!(line(&usual, "CapEff")? == "00000000a80425fb" && line(&usual, "Seccomp")? == "0", "{usual}");
    let narrow = json!({"capabilities": {"drop": ["ALL"], "add": ["NET_BIND_SERVICE"]}, "allowPrivilegeEscalation": false,
        "readOnlyRootFilesystem": true, "seccompProfile": {"type": "RuntimeDefault"}});
    let narrow = pods.said("narrow", &format!("{STATUS}; touch /x 2>&1 || true"), &context(&narrow), &json!({}))?;
    ensure!(line(&narrow, "CapEff")? == "0000000000000400" && line(&narrow, "NoNewPrivs")? == "1", "{narrow}");
    ensure!(line(&narrow, "Seccomp")? == "2" && narrow.contains("Read-only file system"), "{narrow}");
    // Whatever else it says, a privileged container has no filter.
    let wide = json!({"privileged": true, "seccompProfile": {"type": "RuntimeDefault"}});
    let wide = pods.said("wide", STATUS, &context(&wide), &json!({}))?;
    let all = line(&std::fs::read_to_string("/proc/self/status")?, "CapBnd")?.to_owned();
    ensure!(line(&wide, "CapEff")? == all && line(&wide, "Seccomp")? == "0", "{wide}");
    Ok(())
}

fn profiles(pods: &Pods) -> Result<()> {
    let folder = pods.node.dir.join("kubelet/seccomp/team");
    std::fs::create_dir_all(&folder)?;
    let profile = json!({"defaultAction": "SCMP_ACT_ALLOW",
        "syscalls": [{"names": ["mkdir", "mkdirat"], "action": "SCMP_ACT_ERRNO", "errnoRet": 1}]});
    std::fs::write(folder.join("no-folders.json"), profile.to_string())?;
    std::fs::write(
        folder.join("broken.json"),
        r#"{"defaultAction": "SCMP_ACT_ALLOW", "syscalls": [{"names": "mkdir"}]}"#,
    )?;
    let of = |file: &str| json!({"seccompProfile": {"type": "Localhost", "localhostProfile": file}});
    let said = pods.said(
        "filtered",
        "mkdir /x 2>&1 || touch /y && echo y",
        &json!({}),
        &context(&of("team/no-folders.json")),
    )?;
    ensure!(said.contains("Operation not permitted") && said.ends_with("y\n"), "{said}");
    for (name, file, words) in
        [("missing", "team/none.json", "none.json"), ("broken", "team/broken.json", "syscalls[0].names")]
    {
        pods.create(name, &json!({"containers": [Pods::shell("true", &context(&of(file)))]}))?;
        let status = pods.wait(name, "it is refused", |s| {
            container(s, "main")["state"]["waiting"]["reason"] == "CreateContainerError"
        })?;
        let why = container(&status, "main")["state"]["waiting"]["message"].as_str().unwrap_or_default();
        ensure!(why.contains(words), "{why}");
    }
    Ok(())
}

fn namespaces(pods: &Pods) -> Result<()> {
    let link = |kind: &str| -> Result<String> {
        Ok(std::fs::read_link(format!("/proc/self/ns/{kind}"))?.to_string_lossy().into_owned())
    };
    let ask = "for n in net pid ipc; do readlink /proc/self/ns/$n; done";
    let of_host =
        pods.said("of-host", ask, &json!({}), &json!({"hostNetwork": true, "hostPID": true, "hostIPC": true}))?;
    ensure!(of_host.lines().eq([link("net")?, link("pid")?, link("ipc")?]), "{of_host}");
    let own = pods.said("own", ask, &json!({}), &json!({}))?;
    ensure!(own.lines().count() == 3 && own.lines().all(|l| !of_host.contains(l)), "{own}");
    let shared = json!({"shareProcessNamespace": true,
        "securityContext": {"sysctls": [{"name": "net.ipv4.ip_unprivileged_port_start", "value": "123"}]}});
    let said = pods.said(
        "shared",
        "cat /proc/1/comm; cat /proc/sys/net/ipv4/ip_unprivileged_port_start",
        &json!({}),
        &shared,
    )?;
    ensure!(said == "pause\n123\n", "{said}");
    pods.create(
        "unsafe",
        &json!({"containers": [Pods::shell("true", &json!({}))],
        "securityContext": {"sysctls": [{"name": "kernel.msgmax", "value": "65536"}]}}),
    )?;
    let status = pods.wait_phase("unsafe", "Failed")?;
    ensure!(status["reason"] == "SysctlForbidden", "{status:#}");
    Ok(())
}

#[test]
fn pods_may_do_what_their_contexts_say() -> Result<()> {
    if tests::no_node() {
        return Ok(());
    }
    let pods = Pods::start("security", "")?;
    users_and_groups(&pods)?;
    rights(&pods)?;
    profiles(&pods)?;
    namespaces(&pods)
}
