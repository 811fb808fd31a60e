//! The checks of the levels baseline and restricted, each a function from a pod's tree to a complaint or nothing.
//!
//! Restricted has every check of baseline but those that it sharpens. The order is that of upstream's names, since
//! people read the complaints in it; older versions lack later checks.

use std::collections::BTreeSet;

use serde_json::Value;

use super::policy::{Level, LevelVersion, Version};

pub const SECCOMP_POD: &str = "seccomp.security.alpha.kubernetes.io/pod";
pub const SECCOMP_CONTAINER: &str = "container.seccomp.security.alpha.kubernetes.io/";
const APPARMOR: &str = "container.apparmor.security.beta.kubernetes.io/";

/// What is wrong in few words, and where.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Violation {
    reason: &'static str,
    detail: String,
}

type Check = fn(&Pod<'_>, Version) -> Option<Violation>;

/// Checks of the baseline, and whether restricted has a sharper one of its own since some version.
const BASELINE: &[(Check, Option<u32>)] = &[
    (app_armor, None),
    (capabilities_baseline, Some(22)),
    (host_namespaces, None),
    (host_paths, Some(0)),
    (host_ports, None),
    (host_handlers, None),
    (privileged, None),
    (proc_mount_baseline, Some(35)),
    (selinux, None),
    (seccomp_baseline, Some(19)),
    (sysctls, None),
    (windows_host_process, None),
];

const RESTRICTED: &[Check] = &[
    privilege_escalation,
    capabilities_restricted,
    proc_mount_restricted,
    restricted_volumes,
    run_as_non_root,
    run_as_user,
    seccomp_restricted,
];

/// What a pod, or a template of one, does that a level forbids.
pub fn evaluate(policy: LevelVersion, pod: &Value) -> Vec<Violation> {
    let pod = Pod { pod, spec: &pod["spec"] };
    let version = policy.version;
    let restricted = policy.level == Level::Restricted;
    let baseline = BASELINE.iter().filter(|(_, sharper)| !restricted || !sharper.is_some_and(|s| version.since(s)));
    let baseline = baseline.map(|(check, _)| *check);
    match policy.level {
        Level::Privileged => Vec::new(),
        Level::Baseline => baseline.filter_map(|check| check(&pod, version)).collect(),
        Level::Restricted => {
            baseline.chain(RESTRICTED.iter().copied()).filter_map(|check| check(&pod, version)).collect()
        }
    }
}

/// Reasons with details, as an error tells them.
pub fn details(violations: &[Violation]) -> String {
    let texts = violations.iter().map(|v| match v.detail.as_str() {
        "" => v.reason.to_owned(),
        detail => format!("{} ({detail})", v.reason),
    });
    texts.collect::<Vec<_>>().join(", ")
}

/// Reasons alone.
pub fn reasons(violations: &[Violation]) -> String {
    violations.iter().map(|v| v.reason).collect::<Vec<_>>().join(", ")
}

struct Pod<'a> {
    pod: &'a Value,
    spec: &'a Value,
}

fn items<'a>(value: &'a Value, key: &str) -> impl Iterator<Item = &'a Value> {
    value[key].as_array().into_iter().flatten()
}

impl<'a> Pod<'a> {
    fn containers(&self) -> impl Iterator<Item = &'a Value> + use<'a> {
        let spec = self.spec;
        ["initContainers", "containers", "ephemeralContainers"].into_iter().flat_map(move |list| items(spec, list))
    }

    /// Names of the containers that something holds for.
    fn named(&self, holds: impl Fn(&Value) -> bool) -> Vec<&'a str> {
        self.containers().filter(|c| holds(c)).map(|c| c["name"].as_str().unwrap_or_default()).collect()
    }

    fn annotations(&self) -> impl Iterator<Item = (&'a str, &'a str)> + use<'a> {
        let all = self.pod["metadata"]["annotations"].as_object().into_iter().flatten();
        all.map(|(k, v)| (k.as_str(), v.as_str().unwrap_or_default()))
    }

    /// The pod has users of its own, so that root in it is nobody outside.
    fn has_user_namespace(&self) -> bool {
        self.spec["hostUsers"] == false
    }

    fn is_windows(&self) -> bool {
        self.spec["os"]["name"] == "windows"
    }

    /// The pod and its containers where they themselves say something bad: `pod and containers "a", "b"`.
    fn setters(&self, bad: impl Fn(&Value) -> bool) -> Option<String> {
        let mut out = Vec::new();
        if bad(&self.spec["securityContext"]) {
            out.push("pod".to_owned());
        }
        let containers = self.named(|c| bad(&c["securityContext"]));
        if !containers.is_empty() {
            out.push(list("container", &containers));
        }
        (!out.is_empty()).then(|| out.join(" and "))
    }

    /// Every text at a path of a security context, of the pod and of its containers.
    fn texts(&self, path: &str) -> Vec<&'a str> {
        let contexts = std::iter::once(&self.spec["securityContext"]);
        let contexts = contexts.chain(self.containers().map(|c| &c["securityContext"]));
        contexts.filter_map(|c| c.pointer(path).and_then(Value::as_str)).collect()
    }
}

fn plural(word: &str, count: usize) -> String {
    if count == 1 { word.to_owned() } else { format!("{word}s") }
}

fn quoted<T: AsRef<str>>(texts: impl IntoIterator<Item = T>) -> String {
    texts.into_iter().map(|t| format!("\"{}\"", t.as_ref())).collect::<Vec<_>>().join(", ")
}

/// `container "a"`, `containers "a", "b"`.
fn list(word: &str, names: &[&str]) -> String {
    format!("{} {}", plural(word, names.len()), quoted(names))
}

fn sorted<'a>(texts: impl IntoIterator<Item = &'a str>) -> BTreeSet<&'a str> {
    texts.into_iter().collect()
}

fn violation(reason: &'static str, detail: String) -> Option<Violation> {
    Some(Violation { reason, detail })
}

fn app_armor(pod: &Pod<'_>, _: Version) -> Option<Violation> {
    let is_bad = |t: &str| !matches!(t, "RuntimeDefault" | "Localhost");
    let setters = pod.setters(|c| c["appArmorProfile"]["type"].as_str().is_some_and(is_bad));
    let mut values: Vec<String> =
        sorted(pod.texts("/appArmorProfile/type")).into_iter().filter(|t| is_bad(t)).map(Into::into).collect();
    let mut setters: Vec<String> = setters.into_iter().collect();
    let mut annotations: Vec<String> = pod
        .annotations()
        .filter(|(key, value)| {
            let fine = value.is_empty() || *value == "runtime/default" || value.starts_with("localhost/");
            key.starts_with(APPARMOR) && !fine
        })
        .map(|(key, value)| format!("{key}={}", crate::status::quote(value)))
        .collect();
    if !annotations.is_empty() {
        annotations.sort();
        setters.push(plural("annotation", annotations.len()));
        values.append(&mut annotations);
    }
    if setters.is_empty() {
        return None;
    }
    let reason = if values.len() == 1 { "forbidden AppArmor profile" } else { "forbidden AppArmor profiles" };
    violation(reason, format!("{} must not set AppArmor profile type to {}", setters.join(" and "), quoted(values)))
}

fn capabilities_baseline(pod: &Pod<'_>, _: Version) -> Option<Violation> {
    const DEFAULT: [&str; 13] = [
        "AUDIT_WRITE",
        "CHOWN",
        "DAC_OVERRIDE",
        "FOWNER",
        "FSETID",
        "KILL",
        "MKNOD",
        "NET_BIND_SERVICE",
        "SETFCAP",
        "SETGID",
        "SETPCAP",
        "SETUID",
        "SYS_CHROOT",
    ];
    added_capabilities(pod, &DEFAULT).and_then(|detail| violation("non-default capabilities", detail))
}

/// Complains of capabilities that are added and not allowed.
fn added_capabilities(pod: &Pod<'_>, allowed: &[&str]) -> Option<String> {
    let added = |c: &Value| -> Vec<String> {
        let all = items(&c["securityContext"]["capabilities"], "add").filter_map(Value::as_str);
        all.filter(|c| !allowed.contains(c)).map(Into::into).collect()
    };
    let containers = pod.named(|c| !added(c).is_empty());
    let capabilities: BTreeSet<String> = pod.containers().flat_map(added).collect();
    (!containers.is_empty()).then(|| {
        let (containers, capabilities) = (list("container", &containers), quoted(capabilities));
        format!("{containers} must not include {capabilities} in securityContext.capabilities.add")
    })
}

fn capabilities_restricted(pod: &Pod<'_>, version: Version) -> Option<Violation> {
    if !version.since(22) || version.since(25) && pod.is_windows() {
        return None;
    }
    let keeps = pod.named(|c| !items(&c["securityContext"]["capabilities"], "drop").any(|d| d == "ALL"));
    let mut details = Vec::new();
    if !keeps.is_empty() {
        let containers = list("container", &keeps);
        details.push(format!("{containers} must set securityContext.capabilities.drop=[\"ALL\"]"));
    }
    details.extend(added_capabilities(pod, &["NET_BIND_SERVICE"]));
    if details.is_empty() { None } else { violation("unrestricted capabilities", details.join("; ")) }
}

fn host_namespaces(pod: &Pod<'_>, _: Version) -> Option<Violation> {
    let all = ["hostNetwork", "hostPID", "hostIPC"].into_iter().filter(|n| pod.spec[*n] == true);
    let all: Vec<String> = all.map(|n| format!("{n}=true")).collect();
    if all.is_empty() { None } else { violation("host namespaces", all.join(", ")) }
}

fn host_paths(pod: &Pod<'_>, _: Version) -> Option<Violation> {
    let volumes = items(pod.spec, "volumes").filter(|v| !v["hostPath"].is_null());
    let names: Vec<&str> = volumes.map(|v| v["name"].as_str().unwrap_or_default()).collect();
    if names.is_empty() { None } else { violation("hostPath volumes", list("volume", &names)) }
}

fn host_ports(pod: &Pod<'_>, _: Version) -> Option<Violation> {
    let ports = |c: &Value| -> Vec<String> {
        items(c, "ports").filter_map(|p| p["hostPort"].as_i64()).filter(|p| *p != 0).map(|p| p.to_string()).collect()
    };
    let containers = pod.named(|c| !ports(c).is_empty());
    if containers.is_empty() {
        return None;
    }
    let all: BTreeSet<String> = pod.containers().flat_map(ports).collect();
    let verb = if containers.len() == 1 { "uses" } else { "use" };
    let word = plural("hostPort", all.len());
    let all: Vec<String> = all.into_iter().collect();
    violation("hostPort", format!("{} {verb} {word} {}", list("container", &containers), all.join(", ")))
}

fn host_handlers(pod: &Pod<'_>, version: Version) -> Option<Violation> {
    if !version.since(34) {
        return None;
    }
    let hosts = |c: &Value| -> Vec<String> {
        let lifecycle = &c["lifecycle"];
        let handlers = [&c["livenessProbe"], &c["readinessProbe"], &c["startupProbe"]].into_iter();
        let handlers = handlers.chain([&lifecycle["postStart"], &lifecycle["preStop"]]);
        let hosts = handlers.flat_map(|h| [&h["httpGet"]["host"], &h["tcpSocket"]["host"]]);
        hosts.filter_map(Value::as_str).filter(|h| !h.is_empty()).map(Into::into).collect()
    };
    let containers = sorted(pod.named(|c| !hosts(c).is_empty()));
    if containers.is_empty() {
        return None;
    }
    let all: BTreeSet<String> = pod.containers().flat_map(hosts).collect();
    let verb = if containers.len() == 1 { "uses" } else { "use" };
    let word = plural("probe or lifecycle host", all.len());
    let containers: Vec<&str> = containers.into_iter().collect();
    violation("probe or lifecycle host", format!("{} {verb} {word} {}", list("container", &containers), quoted(all)))
}

fn privileged(pod: &Pod<'_>, _: Version) -> Option<Violation> {
    let containers = pod.named(|c| c["securityContext"]["privileged"] == true);
    if containers.is_empty() {
        return None;
    }
    violation("privileged", format!("{} must not set securityContext.privileged=true", list("container", &containers)))
}

fn proc_mount(pod: &Pod<'_>) -> Option<Violation> {
    let mount = |c: &Value| c["securityContext"]["procMount"].as_str().filter(|m| *m != "Default").map(str::to_owned);
    let containers = pod.named(|c| mount(c).is_some());
    if containers.is_empty() {
        return None;
    }
    let mounts: BTreeSet<String> = pod.containers().filter_map(mount).collect();
    let containers = list("container", &containers);
    violation("procMount", format!("{containers} must not set securityContext.procMount to {}", quoted(mounts)))
}

fn proc_mount_baseline(pod: &Pod<'_>, version: Version) -> Option<Violation> {
    if version.since(35) && pod.has_user_namespace() { None } else { proc_mount(pod) }
}

fn proc_mount_restricted(pod: &Pod<'_>, version: Version) -> Option<Violation> {
    if version.since(35) { proc_mount(pod) } else { None }
}

fn selinux(pod: &Pod<'_>, version: Version) -> Option<Violation> {
    let fine = |t: &str| {
        matches!(t, "" | "container_t" | "container_init_t" | "container_kvm_t")
            || t == "container_engine_t" && version.since(31)
    };
    let text = |c: &Value, key: &str| c["seLinuxOptions"][key].as_str().unwrap_or_default().to_owned();
    let setters =
        pod.setters(|c| !fine(&text(c, "type")) || !text(c, "user").is_empty() || !text(c, "role").is_empty())?;
    let types = sorted(pod.texts("/seLinuxOptions/type").into_iter().filter(|t| !fine(t)));
    let mut details = Vec::new();
    if !types.is_empty() {
        details.push(format!("{} {}", plural("type", types.len()), quoted(types)));
    }
    for key in ["user", "role"] {
        if pod.texts(&format!("/seLinuxOptions/{key}")).iter().any(|t| !t.is_empty()) {
            details.push(format!("{key} may not be set"));
        }
    }
    let details = details.join("; ");
    violation("seLinuxOptions", format!("{setters} set forbidden securityContext.seLinuxOptions: {details}"))
}

fn is_bad_seccomp(context: &Value) -> bool {
    context["seccompProfile"]["type"].as_str().is_some_and(|t| !matches!(t, "RuntimeDefault" | "Localhost"))
}

fn seccomp_set(pod: &Pod<'_>) -> Option<Violation> {
    let setters = pod.setters(is_bad_seccomp)?;
    let types = sorted(pod.texts("/seccompProfile/type"));
    let bad = types.into_iter().filter(|t| !matches!(*t, "RuntimeDefault" | "Localhost"));
    let detail = format!("{setters} must not set securityContext.seccompProfile.type to {}", quoted(bad));
    violation("seccompProfile", detail)
}

fn seccomp_baseline(pod: &Pod<'_>, version: Version) -> Option<Violation> {
    if version.since(19) {
        return seccomp_set(pod);
    }
    let fine = |v: &str| matches!(v, "runtime/default" | "docker/default") || v.starts_with("localhost/");
    let names: Vec<&str> = pod.named(|_| true);
    let known = |key: &str| {
        key == SECCOMP_POD || key.strip_prefix(SECCOMP_CONTAINER).is_some_and(|container| names.contains(&container))
    };
    let bad: BTreeSet<String> = pod
        .annotations()
        .filter(|(key, value)| known(key) && !fine(value))
        .map(|(key, value)| format!("{key}={}", crate::status::quote(value)))
        .collect();
    if bad.is_empty() {
        return None;
    }
    let word = plural("annotation", bad.len());
    violation("seccompProfile", format!("forbidden {word} {}", bad.into_iter().collect::<Vec<_>>().join(", ")))
}

fn seccomp_restricted(pod: &Pod<'_>, version: Version) -> Option<Violation> {
    if !version.since(19) || version.since(25) && pod.is_windows() {
        return None;
    }
    if let Some(bad) = seccomp_set(pod) {
        return Some(bad);
    }
    let unset = |context: &Value| context["seccompProfile"]["type"].is_null();
    if !unset(&pod.spec["securityContext"]) {
        return None;
    }
    let containers = pod.named(|c| unset(&c["securityContext"]));
    if containers.is_empty() {
        return None;
    }
    let containers = list("container", &containers);
    let detail = format!(
        "pod or {containers} must set securityContext.seccompProfile.type to \"RuntimeDefault\" or \"Localhost\""
    );
    violation("seccompProfile", detail)
}

fn sysctls(pod: &Pod<'_>, version: Version) -> Option<Violation> {
    /// Safe ones, by the version since when.
    const SAFE: [(u32, &[&str]); 4] = [
        (
            0,
            &[
                "kernel.shm_rmid_forced",
                "net.ipv4.ip_local_port_range",
                "net.ipv4.tcp_syncookies",
                "net.ipv4.ping_group_range",
                "net.ipv4.ip_unprivileged_port_start",
            ],
        ),
        (27, &["net.ipv4.ip_local_reserved_ports"]),
        (
            29,
            &[
                "net.ipv4.tcp_keepalive_time",
                "net.ipv4.tcp_fin_timeout",
                "net.ipv4.tcp_keepalive_intvl",
                "net.ipv4.tcp_keepalive_probes",
            ],
        ),
        (32, &["net.ipv4.tcp_rmem", "net.ipv4.tcp_wmem"]),
    ];
    let safe = |name: &str| SAFE.iter().any(|(since, names)| version.since(*since) && names.contains(&name));
    let names = items(&pod.spec["securityContext"], "sysctls").filter_map(|s| s["name"].as_str());
    let bad: Vec<&str> = names.filter(|n| !safe(n)).collect();
    if bad.is_empty() { None } else { violation("forbidden sysctls", bad.join(", ")) }
}

fn windows_host_process(pod: &Pod<'_>, _: Version) -> Option<Violation> {
    let setters = pod.setters(|c| c["windowsOptions"]["hostProcess"] == true)?;
    violation("hostProcess", format!("{setters} must not set securityContext.windowsOptions.hostProcess=true"))
}

fn privilege_escalation(pod: &Pod<'_>, version: Version) -> Option<Violation> {
    if !version.since(8) || version.since(25) && pod.is_windows() {
        return None;
    }
    let containers = pod.named(|c| c["securityContext"]["allowPrivilegeEscalation"] != false);
    if containers.is_empty() {
        return None;
    }
    let containers = list("container", &containers);
    let detail = format!("{containers} must set securityContext.allowPrivilegeEscalation=false");
    violation("allowPrivilegeEscalation != false", detail)
}

fn restricted_volumes(pod: &Pod<'_>, _: Version) -> Option<Violation> {
    const ALLOWED: [&str; 9] = [
        "configMap",
        "csi",
        "downwardAPI",
        "emptyDir",
        "ephemeral",
        "image",
        "persistentVolumeClaim",
        "projected",
        "secret",
    ];
    const KNOWN: [&str; 20] = [
        "hostPath",
        "gcePersistentDisk",
        "awsElasticBlockStore",
        "gitRepo",
        "nfs",
        "iscsi",
        "glusterfs",
        "rbd",
        "flexVolume",
        "cinder",
        "cephfs",
        "flocker",
        "fc",
        "azureFile",
        "vsphereVolume",
        "quobyte",
        "azureDisk",
        "portworxVolume",
        "scaleIO",
        "storageos",
    ];
    let has = |v: &Value, all: &[&'static str]| all.iter().copied().find(|source| !v[*source].is_null());
    let bad: Vec<&Value> = items(pod.spec, "volumes").filter(|v| has(v, &ALLOWED).is_none()).collect();
    if bad.is_empty() {
        return None;
    }
    let names: Vec<&str> = bad.iter().map(|v| v["name"].as_str().unwrap_or_default()).collect();
    let types = sorted(bad.iter().map(|v| has(v, &KNOWN).unwrap_or("unknown")));
    let verb = if names.len() == 1 { "uses" } else { "use" };
    let word = plural("restricted volume type", types.len());
    violation("restricted volume types", format!("{} {verb} {word} {}", list("volume", &names), quoted(types)))
}

fn run_as_non_root(pod: &Pod<'_>, version: Version) -> Option<Violation> {
    const REASON: &str = "runAsNonRoot != true";
    if version.since(35) && pod.has_user_namespace() {
        return None;
    }
    if let Some(setters) = pod.setters(|c| c["runAsNonRoot"] == false) {
        return violation(REASON, format!("{setters} must not set securityContext.runAsNonRoot=false"));
    }
    if pod.spec["securityContext"]["runAsNonRoot"] == true {
        return None;
    }
    let containers = pod.named(|c| c["securityContext"]["runAsNonRoot"].is_null());
    if containers.is_empty() {
        return None;
    }
    let containers = list("container", &containers);
    violation(REASON, format!("pod or {containers} must set securityContext.runAsNonRoot=true"))
}

fn run_as_user(pod: &Pod<'_>, version: Version) -> Option<Violation> {
    if !version.since(23) || version.since(35) && pod.has_user_namespace() {
        return None;
    }
    let setters = pod.setters(|c| c["runAsUser"] == 0)?;
    violation("runAsUser=0", format!("{setters} must not set runAsUser=0"))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn at(level: Level, version: Version, spec: Value) -> String {
        details(&evaluate(LevelVersion { level, version }, &json!({"spec": spec})))
    }

    #[test]
    fn a_plain_pod_is_fine_for_baseline_and_not_for_restricted() {
        let spec = || json!({"containers": [{"name": "a"}, {"name": "b"}]});
        assert_eq!(at(Level::Baseline, Version::Latest, spec()), "");
        assert_eq!(
            at(Level::Restricted, Version::Latest, spec()),
            "allowPrivilegeEscalation != false (containers \"a\", \"b\" must set \
             securityContext.allowPrivilegeEscalation=false), unrestricted capabilities (containers \"a\", \"b\" must \
             set securityContext.capabilities.drop=[\"ALL\"]), runAsNonRoot != true (pod or containers \"a\", \"b\" \
             must set securityContext.runAsNonRoot=true), seccompProfile (pod or containers \"a\", \"b\" must set \
             securityContext.seccompProfile.type to \"RuntimeDefault\" or \"Localhost\")"
        );
    }

    #[test]
    fn checks_begin_with_their_version() {
        let spec = || json!({"containers": [{"name": "a", "livenessProbe": {"httpGet": {"host": "x"}}}]});
        assert_eq!(at(Level::Baseline, Version::Minor(33), spec()), "");
        assert_eq!(
            at(Level::Baseline, Version::Minor(34), spec()),
            "probe or lifecycle host (container \"a\" uses probe or lifecycle host \"x\")"
        );
        let spec = || json!({"securityContext": {"sysctls": [{"name": "net.ipv4.tcp_rmem"}, {"name": "x"}]}});
        assert_eq!(at(Level::Baseline, Version::Latest, spec()), "forbidden sysctls (x)");
        assert_eq!(at(Level::Baseline, Version::Minor(31), spec()), "forbidden sysctls (net.ipv4.tcp_rmem, x)");
    }

    #[test]
    fn restricted_sharpens_what_baseline_checks() {
        let spec = json!({"volumes": [{"name": "h", "hostPath": {"path": "/"}}, {"name": "e", "emptyDir": {}}]});
        assert_eq!(
            at(Level::Restricted, Version::Latest, spec),
            "restricted volume types (volume \"h\" uses restricted volume type \"hostPath\")"
        );
    }

    #[test]
    fn pods_and_containers_that_set_something_bad_are_named() {
        let spec = json!({
            "securityContext": {"seLinuxOptions": {"type": "spc_t"}, "seccompProfile": {"type": "Unconfined"}},
            "containers": [{"name": "a", "securityContext": {"seLinuxOptions": {"user": "u"}, "procMount": "Unmasked"}}],
        });
        assert_eq!(
            at(Level::Baseline, Version::Latest, spec),
            "procMount (container \"a\" must not set securityContext.procMount to \"Unmasked\"), seLinuxOptions (pod \
             and container \"a\" set forbidden securityContext.seLinuxOptions: type \"spc_t\"; user may not be set), \
             seccompProfile (pod must not set securityContext.seccompProfile.type to \"Unconfined\")"
        );
    }
}
