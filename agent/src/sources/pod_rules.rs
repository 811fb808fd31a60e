//! What binds the members of a manifest to each other where the pod as a whole is meant: security, namespaces, names,
//! tolerations and the node's ports. See [`super::rules`], which calls this.
//!
//! Followed: `ValidatePodCreate`; a pod of another system than Linux is not looked at closely, for no node of this agent's
//! runs it.

use std::collections::HashSet;

use serde_json::Value;

use super::rules::{label_value, list, local_path, qualified_name, text};

/// Longest path of a profile of AppArmor.
const MAX_PROFILE_BYTES: usize = 4095;
const MAX_NAMESERVERS: usize = 3;
const MAX_SEARCHES: usize = 32;
/// All search paths together, with spaces between.
const MAX_SEARCH_CHARACTERS: usize = 2048;
/// The kernel keeps no longer name of a host.
const MAX_HOSTNAME: usize = 64;

/// What is wrong with the spec, each entry with its path.
pub fn broken(spec: &Value, found: &mut Vec<String>) {
    // A pod that names no system may say something of both.
    let linux = text(&spec["os"], "name") == "linux";
    context("spec.securityContext", &spec["securityContext"], linux, found);
    sysctls(spec, found);
    for (path, container) in containers(spec) {
        container_context(&path, container, spec, linux, found);
        stop_signal(&path, container, text(&spec["os"], "name"), found);
    }
    namespaces(spec, found);
    names(spec, found);
    dns(spec, found);
    tolerations(spec, found);
    host_ports(spec, found);
}

fn containers(spec: &Value) -> impl Iterator<Item = (String, &Value)> {
    ["initContainers", "containers"].into_iter().flat_map(|kind| {
        list(spec, kind).iter().enumerate().map(move |(i, container)| (format!("spec.{kind}[{i}]"), container))
    })
}

fn has(value: &Value, member: &str) -> bool {
    value.get(member).is_some_and(|member| !member.is_null())
}

/// What a pod's and a container's have in common.
fn context(path: &str, context: &Value, linux: bool, found: &mut Vec<String>) {
    for (member, name) in [("seccompProfile", "seccomp"), ("appArmorProfile", "AppArmor")] {
        profile(&format!("{path}.{member}"), &context[member], name, found);
    }
    if linux && has(context, "windowsOptions") {
        found.push(format!("{path}.windowsOptions: Forbidden: windows options cannot be set for a linux pod"));
    }
}

/// A profile: only one of the node's own has a file, and must have one.
fn profile(path: &str, profile: &Value, what: &str, found: &mut Vec<String>) {
    if profile.is_null() {
        return;
    }
    let file = profile.get("localhostProfile").and_then(Value::as_str);
    let at = format!("{path}.localhostProfile");
    let missing = || format!("{at}: Required value: must be set when {what} type is Localhost");
    match (text(profile, "type"), file) {
        ("Localhost", None) => found.push(missing()),
        ("Localhost", Some(file)) if what == "seccomp" => {
            found.extend(local_path(file).map(|why| format!("{at}: Invalid value: {file:?}: {why}")));
        }
        ("Localhost", Some(file)) if file.trim() != file => {
            found.push(format!("{at}: Invalid value: {file:?}: must not be padded with whitespace"));
        }
        ("Localhost", Some("")) => found.push(missing()),
        ("Localhost", Some(file)) if file.len() > MAX_PROFILE_BYTES => {
            found.push(format!("{at}: Too long: may not be more than {MAX_PROFILE_BYTES} bytes"));
        }
        ("Localhost", Some(_)) | (_, None) => {}
        (_, Some(file)) => {
            found.push(format!("{at}: Invalid value: {file:?}: can only be set when {what} type is Localhost"));
        }
    }
}

fn container_context(path: &str, container: &Value, spec: &Value, linux: bool, found: &mut Vec<String>) {
    let (path, own) = (format!("{path}.securityContext"), &container["securityContext"]);
    context(&path, own, linux, found);
    if spec["hostUsers"] != false && text(own, "procMount") == "Unmasked" {
        let why = "`hostUsers` must be false to use `Unmasked`";
        found.push(format!("{path}.procMount: Invalid value: \"Unmasked\": {why}"));
    }
    let admin = list(&own["capabilities"], "add").iter().any(|capability| capability == "CAP_SYS_ADMIN");
    if own["allowPrivilegeEscalation"] == false && admin {
        let why = "cannot set `allowPrivilegeEscalation` to false and `capabilities.Add` CAP_SYS_ADMIN";
        found.push(format!("{path}: Invalid value: {why}"));
    }
}

fn stop_signal(path: &str, container: &Value, os: &str, found: &mut Vec<String>) {
    let signal = text(&container["lifecycle"], "stopSignal");
    let at = format!("{path}.lifecycle.stopSignal");
    match os {
        _ if signal.is_empty() => {}
        "" => found.push(format!("{at}: Forbidden: may not be set for containers with empty `spec.os.name`")),
        "linux" => {
            let mut known: Vec<String> = (1..=65).filter_map(crate::pod::container_config::signal_name).collect();
            if !known.iter().any(|name| name == signal) {
                known.sort_unstable();
                let known = known.iter().map(|name| format!("{name:?}")).collect::<Vec<_>>().join(", ");
                found.push(format!("{at}: Unsupported value: {signal:?}: supported values: {known}"));
            }
        }
        _ => {}
    }
}

fn sysctls(spec: &Value, found: &mut Vec<String>) {
    for (i, sysctl) in list(&spec["securityContext"], "sysctls").iter().enumerate() {
        let name = text(sysctl, "name");
        let dotted = name.replace('/', ".");
        let ipc = ["kernel.shm", "kernel.msg", "kernel.sem", "fs.mqueue."].iter().any(|p| dotted.starts_with(p));
        let shared = if dotted.starts_with("net.") && spec["hostNetwork"] == true {
            "hostNetwork"
        } else if ipc && spec["hostIPC"] == true {
            "hostIPC"
        } else {
            continue;
        };
        let at = format!("spec.securityContext.sysctls[{i}].name");
        found.push(format!("{at}: Invalid value: {name:?}: may not be specified when '{shared}' is true"));
    }
}

/// Namespaces of the node's that do not go together with those of the pod's own.
fn namespaces(spec: &Value, found: &mut Vec<String>) {
    if spec["shareProcessNamespace"] == true && spec["hostPID"] == true {
        let why = "ShareProcessNamespace and HostPID cannot both be enabled";
        found.push(format!("spec.securityContext.shareProcessNamespace: Invalid value: true: {why}"));
    }
    if spec["hostUsers"] == false {
        for (member, shown) in [("hostNetwork", "hostNetwork"), ("hostPID", "HostPID"), ("hostIPC", "HostIPC")] {
            if spec[member] == true {
                found.push(format!("spec.{shown}: Forbidden: when `pod.Spec.HostUsers` is false"));
            }
        }
    }
}

fn names(spec: &Value, found: &mut Vec<String>) {
    let name = text(spec, "hostnameOverride");
    if name.len() > MAX_HOSTNAME {
        found.push(format!("spec.hostnameOverride: Too long: may not be more than {MAX_HOSTNAME} bytes"));
    }
    for other in ["hostNetwork", "setHostnameAsFQDN"] {
        if has(spec, "hostnameOverride") && spec[other] == true {
            found.push(format!("spec.hostnameOverride: Forbidden: may not be specified when `{other}` is true"));
        }
    }
    // A pod of a file is on its node from the beginning.
    if !list(spec, "schedulingGates").is_empty() {
        let why = "cannot be set until all schedulingGates have been cleared";
        found.push(format!("spec.nodeName: Forbidden: {why}"));
    }
    let policy = text(spec, "preemptionPolicy");
    if !matches!(policy, "" | "Never" | "PreemptLowerPriority") {
        let known = "supported values: \"Never\", \"PreemptLowerPriority\"";
        found.push(format!("spec.preemptionPolicy: Unsupported value: {policy:?}: {known}"));
    }
}

fn dns(spec: &Value, found: &mut Vec<String>) {
    let (config, at) = (&spec["dnsConfig"], "spec.dnsConfig");
    let (servers, searches) = (list(config, "nameservers"), list(config, "searches"));
    if text(spec, "dnsPolicy") == "None" && config.is_null() {
        return found.push(format!("{at}: Required value: must provide `dnsConfig` when `dnsPolicy` is None"));
    }
    if text(spec, "dnsPolicy") == "None" && servers.is_empty() {
        let why = "must provide at least one DNS nameserver when `dnsPolicy` is None";
        return found.push(format!("{at}.nameservers: Required value: {why}"));
    }
    let mut bad = |member: &str, why: String| {
        let shown = &config[member];
        found.push(format!("{at}.{member}: Invalid value: {shown}: {why}"));
    };
    if servers.len() > MAX_NAMESERVERS {
        bad("nameservers", format!("must not have more than {MAX_NAMESERVERS} nameservers"));
    }
    if searches.len() > MAX_SEARCHES {
        bad("searches", format!("must not have more than {MAX_SEARCHES} search paths"));
    }
    let characters: usize = searches.iter().filter_map(Value::as_str).map(|search| search.len() + 1).sum();
    if characters > MAX_SEARCH_CHARACTERS + 1 {
        let most = MAX_SEARCH_CHARACTERS;
        bad("searches", format!("must not have more than {most} characters (including spaces) in the search list"));
    }
    for (i, option) in list(config, "options").iter().enumerate() {
        if text(option, "name").is_empty() {
            found.push(format!("{at}.options[{i}]: Required value: must not be empty"));
        }
    }
}

fn tolerations(spec: &Value, found: &mut Vec<String>) {
    for (i, toleration) in list(spec, "tolerations").iter().enumerate() {
        let at = format!("spec.tolerations[{i}]");
        let [key, operator, effect, value] = ["key", "operator", "effect", "value"].map(|name| text(toleration, name));
        let mut bad = |member: &str, shown: &str, why: &str| {
            found.push(format!("{at}.{member}: Invalid value: {shown:?}: {why}"));
        };
        if let Some(why) = Some(key).filter(|key| !key.is_empty()).and_then(qualified_name) {
            bad("key", key, why);
        }
        if key.is_empty() && operator != "Exists" {
            let why = "operator must be Exists when `key` is empty, which means \"match all values and all keys\"";
            bad("operator", operator, why);
        }
        if has(toleration, "tolerationSeconds") && effect != "NoExecute" {
            bad("effect", effect, "effect must be 'NoExecute' when `tolerationSeconds` is set");
        }
        match operator {
            "" | "Equal" => {
                if let Some(why) = label_value(value) {
                    bad("operator", value, why);
                }
            }
            "Exists" if !value.is_empty() => bad("operator", value, "value must be empty when `operator` is 'Exists'"),
            "Exists" => {}
            other => found
                .push(format!("{at}.operator: Unsupported value: {other:?}: supported values: \"Equal\", \"Exists\"")),
        }
        if !matches!(effect, "" | "NoSchedule" | "PreferNoSchedule" | "NoExecute") {
            let known = "supported values: \"NoExecute\", \"NoSchedule\", \"PreferNoSchedule\"";
            found.push(format!("{at}.effect: Unsupported value: {effect:?}: {known}"));
        }
    }
}

/// A port of the node can be had once. Init containers run one after another, so each is looked at alone.
fn host_ports(spec: &Value, found: &mut Vec<String>) {
    let on_host = spec["hostNetwork"] == true;
    let mut look = |kind: &str, containers: &mut dyn Iterator<Item = (usize, &Value)>| {
        let mut seen = HashSet::new();
        for (i, container) in containers {
            for (j, port) in list(container, "ports").iter().enumerate() {
                let number = |name: &str| port[name].as_i64().filter(|number| *number != 0);
                let Some(number) = number("hostPort").or_else(|| number("containerPort").filter(|_| on_host)) else {
                    continue;
                };
                let protocol = Some(text(port, "protocol")).filter(|p| !p.is_empty()).unwrap_or("TCP");
                let wanted = format!("{protocol}/{}/{number}", text(port, "hostIP"));
                if !seen.insert(wanted.clone()) {
                    found.push(format!("spec.{kind}[{i}].ports[{j}].hostPort: Duplicate value: {wanted:?}"));
                }
            }
        }
    };
    look("containers", &mut list(spec, "containers").iter().enumerate());
    for container in list(spec, "initContainers") {
        // Upstream counts an init container as the first of a list of its own.
        look("initContainers", &mut std::iter::once((0, container)));
    }
}

#[cfg(test)]
mod tests {
    use super::super::rules;

    /// A manifest with these members, above those that every pod needs.
    fn told(spec: &str, container: &str) -> Vec<String> {
        let text =
            format!("metadata: {{name: a}}\nspec: {{containers: [{{name: c, image: x, {container}}}], {spec}}}\n");
        rules::broken(&proto::yaml::parse(text.as_bytes()).unwrap())
    }

    #[test]
    fn a_profile_of_the_node_has_a_file_and_no_other_has_one() {
        let of_container = "spec.containers[0].securityContext";
        let cases = [
            ("seccompProfile", "{type: Localhost}", "Required value: must be set when seccomp type is Localhost"),
            (
                "seccompProfile",
                "{type: Localhost, localhostProfile: /a}",
                "Invalid value: \"/a\": must be a relative path",
            ),
            (
                "seccompProfile",
                "{type: Localhost, localhostProfile: ../a}",
                "Invalid value: \"../a\": must not contain '..'",
            ),
            (
                "seccompProfile",
                "{type: RuntimeDefault, localhostProfile: a}",
                "Invalid value: \"a\": can only be set when seccomp type is Localhost",
            ),
            ("appArmorProfile", "{type: Localhost}", "Required value: must be set when AppArmor type is Localhost"),
            (
                "appArmorProfile",
                "{type: Localhost, localhostProfile: ' a'}",
                "Invalid value: \" a\": must not be padded with whitespace",
            ),
            (
                "appArmorProfile",
                "{type: Unconfined, localhostProfile: a}",
                "Invalid value: \"a\": can only be set when AppArmor type is Localhost",
            ),
        ];
        for (member, profile, why) in cases {
            let given = format!("securityContext: {{{member}: {profile}}}");
            assert_eq!(told(&given, ""), [format!("spec.securityContext.{member}.localhostProfile: {why}")]);
            assert_eq!(told("", &given), [format!("{of_container}.{member}.localhostProfile: {why}")]);
        }
        for profile in
            ["seccompProfile: {type: Localhost, localhostProfile: a/b.json}", "appArmorProfile: {type: RuntimeDefault}"]
        {
            assert_eq!(told("", &format!("securityContext: {{{profile}}}")), [""; 0]);
        }
    }

    #[test]
    fn what_goes_ill_together_is_told() {
        for (spec, container, wanted) in [
            (
                "",
                "securityContext: {procMount: Unmasked}",
                "spec.containers[0].securityContext.procMount: Invalid value: \"Unmasked\": `hostUsers` must be false to use \
                 `Unmasked`",
            ),
            (
                "",
                "securityContext: {allowPrivilegeEscalation: false, capabilities: {add: [CAP_SYS_ADMIN]}}",
                "spec.containers[0].securityContext: Invalid value: cannot set `allowPrivilegeEscalation` to false and \
                 `capabilities.Add` CAP_SYS_ADMIN",
            ),
            (
                "",
                "lifecycle: {stopSignal: SIGTERM}",
                "spec.containers[0].lifecycle.stopSignal: Forbidden: may not be set for containers with empty `spec.os.name`",
            ),
            (
                "os: {name: linux}, securityContext: {windowsOptions: {}}",
                "",
                "spec.securityContext.windowsOptions: Forbidden: windows options cannot be set for a linux pod",
            ),
            (
                "hostNetwork: true, securityContext: {sysctls: [{name: net.a, value: b}]}",
                "",
                "spec.securityContext.sysctls[0].name: Invalid value: \"net.a\": may not be specified when 'hostNetwork' is \
                 true",
            ),
            (
                "hostPID: true, shareProcessNamespace: true",
                "",
                "spec.securityContext.shareProcessNamespace: Invalid value: true: ShareProcessNamespace and HostPID cannot \
                 both be enabled",
            ),
            ("hostPID: true, hostUsers: false", "", "spec.HostPID: Forbidden: when `pod.Spec.HostUsers` is false"),
            (
                "hostNetwork: true, hostnameOverride: a",
                "",
                "spec.hostnameOverride: Forbidden: may not be specified when `hostNetwork` is true",
            ),
            (
                "schedulingGates: [{name: a}]",
                "",
                "spec.nodeName: Forbidden: cannot be set until all schedulingGates have been cleared",
            ),
            (
                "dnsPolicy: None",
                "",
                "spec.dnsConfig: Required value: must provide `dnsConfig` when `dnsPolicy` is None",
            ),
            (
                "dnsConfig: {nameservers: [1.1.1.1, 1.1.1.2, 1.1.1.3, 1.1.1.4]}",
                "",
                "spec.dnsConfig.nameservers: Invalid value: [\"1.1.1.1\",\"1.1.1.2\",\"1.1.1.3\",\"1.1.1.4\"]: must not have \
                 more than 3 nameservers",
            ),
            (
                "tolerations: [{key: a, operator: Exists, value: b}]",
                "",
                "spec.tolerations[0].operator: Invalid value: \"b\": value must be empty when `operator` is 'Exists'",
            ),
            (
                "tolerations: [{operator: Exists, effect: Never}]",
                "",
                "spec.tolerations[0].effect: Unsupported value: \"Never\": supported values: \"NoExecute\", \"NoSchedule\", \
                 \"PreferNoSchedule\"",
            ),
            (
                "",
                "ports: [{containerPort: 1, hostPort: 80}, {containerPort: 2, hostPort: 80}]",
                "spec.containers[0].ports[1].hostPort: Duplicate value: \"TCP//80\"",
            ),
        ] {
            assert_eq!(told(spec, container), [wanted]);
        }
    }

    #[test]
    fn what_goes_well_together_is_taken() {
        for (spec, container) in [
            ("os: {name: linux}", "lifecycle: {stopSignal: SIGRTMIN+3}"),
            ("hostUsers: false", "securityContext: {procMount: Unmasked}"),
            ("", "ports: [{containerPort: 1, hostPort: 80}, {containerPort: 1, hostPort: 80, protocol: UDP}]"),
            ("tolerations: [{key: a, value: b, effect: NoExecute, tolerationSeconds: 1}, {operator: Exists}]", ""),
            ("dnsPolicy: None, dnsConfig: {nameservers: [1.1.1.1], searches: [a.b]}", ""),
            (
                "initContainers: [{name: i, image: x, ports: [{containerPort: 1, hostPort: 80}]}]",
                "ports: [{containerPort: 1, hostPort: 80}]",
            ),
        ] {
            assert_eq!(told(spec, container), [""; 0], "{spec} {container}");
        }
    }
}
