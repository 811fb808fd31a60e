//! Security contexts of pods and containers, and sysctls.

use serde_json::Value;

use super::shapes::{PROFILE, SECURITY_CONTEXT};
use super::{list, text, volume};
use crate::field_error::Report;
use crate::go_value::shown;

const ID_RANGE: &str = "must be between 0 and 2147483647, inclusive";
const PROFILE_TYPES: [&str; 3] = ["Localhost", "RuntimeDefault", "Unconfined"];

fn id(report: &mut Report, object: &Value, name: &str) {
    if let Some(id) = object[name].as_i64().filter(|id| !(0..=i64::from(i32::MAX)).contains(id)) {
        report.bad(name, id, ID_RANGE);
    }
}

/// The security context of a container. `host_users`: the pod shares the node's users.
pub fn container(report: &mut Report, security: &Value, host_users: bool) {
    id(report, security, "runAsUser");
    id(report, security, "runAsGroup");
    report.maybe_choice(security, "procMount", &["Default", "Unmasked"]);
    if host_users && text(security, "procMount") == "Unmasked" {
        report.bad("procMount", "Unmasked", "`hostUsers` must be false to use `Unmasked`");
    }
    report.with(security, "seccompProfile", seccomp);
    if security["allowPrivilegeEscalation"] == false {
        if security["privileged"] == true {
            report.invalid(
                shown(security, &SECURITY_CONTEXT),
                "cannot set `allowPrivilegeEscalation` to false and `privileged` to true",
            );
        }
        for _ in list(&security["capabilities"], "add").iter().filter(|c| **c == "CAP_SYS_ADMIN") {
            let why = "cannot set `allowPrivilegeEscalation` to false and `capabilities.Add` CAP_SYS_ADMIN";
            report.invalid(shown(security, &SECURITY_CONTEXT), why);
        }
    }
    report.with(security, "windowsOptions", windows);
    report.with(security, "appArmorProfile", app_armor);
}

/// The security context of a pod or of a template.
pub fn pod(report: &mut Report, spec: &Value) {
    report.with(spec, "securityContext", |r, security| {
        for name in ["fsGroup", "runAsUser", "runAsGroup"] {
            id(r, security, name);
        }
        r.each(security, "supplementalGroups", |r, group| {
            if let Some(id) = group.as_i64().filter(|id| !(0..=i64::from(i32::MAX)).contains(id)) {
                r.invalid(id, ID_RANGE);
            }
        });
        if spec["shareProcessNamespace"] == true && spec["hostPID"] == true {
            let why = "ShareProcessNamespace and HostPID cannot both be enabled";
            r.bad("shareProcessNamespace", true, why);
        }
        sysctls(r, security, spec);
        r.maybe_choice(security, "fsGroupChangePolicy", &["Always", "OnRootMismatch"]);
        r.with(security, "seccompProfile", seccomp);
        r.with(security, "windowsOptions", windows);
        r.with(security, "appArmorProfile", app_armor);
        r.maybe_choice(security, "supplementalGroupsPolicy", &["Merge", "Strict"]);
        r.maybe_choice(security, "seLinuxChangePolicy", &["MountOption", "Recursive"]);
    });
}

fn sysctls(report: &mut Report, security: &Value, spec: &Value) {
    let mut seen: Vec<&str> = Vec::new();
    report.each(security, "sysctls", |r, sysctl| {
        let name = text(sysctl, "name");
        r.at("name", |r| {
            if name.is_empty() {
                r.required("");
            } else if !is_sysctl(name) {
                let why = "must have at most 253 characters and match regex \
                           ^([a-z0-9]([-_a-z0-9]*[a-z0-9])?[\\./])*[a-z0-9]([-_a-z0-9]*[a-z0-9])?$";
                r.invalid(name, why);
            } else if seen.contains(&name) {
                r.duplicate(name);
            }
            let dotted = name.replace('/', ".");
            let net = dotted.starts_with("net.");
            let ipc = ["kernel.shm", "kernel.msg", "kernel.sem", "fs.mqueue."].iter().any(|p| dotted.starts_with(p));
            if net && spec["hostNetwork"] == true {
                r.invalid(name, "may not be specified when 'hostNetwork' is true");
            } else if ipc && spec["hostIPC"] == true {
                r.invalid(name, "may not be specified when 'hostIPC' is true");
            }
        });
        seen.push(name);
    });
}

/// Segments of lower-case letters, digits, `-` and `_`, joined by dots or slashes.
fn is_sysctl(name: &str) -> bool {
    let edge = |b: Option<&u8>| b.is_some_and(|b| b.is_ascii_lowercase() || b.is_ascii_digit());
    name.len() <= 253
        && name.split(['.', '/']).all(|part| {
            part.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-' || b == b'_')
                && edge(part.as_bytes().first())
                && edge(part.as_bytes().last())
        })
}

fn seccomp(report: &mut Report, profile: &Value) {
    let (kind, file) = (text(profile, "type"), profile.get("localhostProfile").and_then(Value::as_str));
    if kind.is_empty() {
        report.miss("type", "type is required when seccompProfile is set");
    } else {
        report.maybe_choice(profile, "type", &PROFILE_TYPES);
    }
    match (kind, file) {
        ("Localhost", None) => report.miss("localhostProfile", "must be set when seccomp type is Localhost"),
        ("Localhost", Some(file)) => report.at("localhostProfile", |r| volume::descending(r, file)),
        (_, Some(_)) => {
            let shown = shown(profile, &PROFILE);
            report.bad("localhostProfile", shown, "can only be set when seccomp type is Localhost");
        }
        _ => {}
    }
}

fn app_armor(report: &mut Report, profile: &Value) {
    let file = profile.get("localhostProfile").and_then(Value::as_str);
    let missing = "must be set when AppArmor type is Localhost";
    match (text(profile, "type"), file) {
        ("Localhost", None) => report.miss("localhostProfile", missing),
        ("Localhost", Some(file)) => report.at("localhostProfile", |r| {
            if file.trim() != file {
                r.invalid(file, "must not be padded with whitespace");
            } else if file.is_empty() {
                r.required(missing);
            }
            if file.len() > 4095 {
                r.too_long(4095);
            }
        }),
        ("RuntimeDefault" | "Unconfined", Some(file)) => {
            report.bad("localhostProfile", file, "can only be set when AppArmor type is Localhost");
        }
        ("RuntimeDefault" | "Unconfined", None) => {}
        ("", _) => report.miss("type", "type is required when appArmorProfile is set"),
        _ => report.maybe_choice(profile, "type", &PROFILE_TYPES),
    }
}

fn windows(report: &mut Report, options: &Value) {
    report.with(options, "gmsaCredentialSpecName", |r, name| {
        let name = name.as_str().unwrap_or_default();
        r.complaints(name, crate::names::dns_subdomain(name));
    });
    report.with(options, "gmsaCredentialSpec", |r, spec| match spec.as_str().map_or(0, str::len) {
        0 => r.invalid(spec, "gmsaCredentialSpec cannot be an empty string"),
        length if length > 64 << 10 => r.invalid(spec, "gmsaCredentialSpec size must be under 64 KiB"),
        _ => {}
    });
    report.with(options, "runAsUserName", |r, name| user_name(r, name.as_str().unwrap_or_default()));
}

fn user_name(report: &mut Report, name: &str) {
    let parts: Vec<&str> = name.split('\\').collect();
    if name.is_empty() {
        return report.invalid(name, "runAsUserName cannot be an empty string");
    }
    if name.chars().any(|c| c.is_ascii_control()) {
        return report.invalid(name, "runAsUserName cannot contain control characters");
    }
    if parts.len() > 2 {
        return report.invalid(name, "runAsUserName cannot contain more than one backslash");
    }
    let (domain, user) = if let [domain, user] = parts[..] { (Some(domain), user) } else { (None, name) };
    if let Some(domain) = domain {
        let net_bios = (1..=15).contains(&domain.chars().count())
            && !domain.starts_with('.')
            && !domain.contains(['\\', '/', ':', '*', '?', '"', '<', '>', '|']);
        let edge = |b: Option<&u8>| b.is_some_and(u8::is_ascii_alphanumeric);
        let dns = domain.split('.').all(|part| {
            part.len() <= 63
                && part.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-')
                && edge(part.as_bytes().first())
                && edge(part.as_bytes().last())
        });
        if domain.len() >= 256 {
            report.invalid(name, "runAsUserName's Domain length must be under 256 characters");
        }
        if !net_bios && !dns {
            report.invalid(name, "runAsUserName's Domain doesn't match the NetBios nor the DNS format");
        }
    }
    if user.is_empty() {
        report.invalid(name, "runAsUserName's User cannot be empty");
    } else if user.len() > 104 {
        report.invalid(name, "runAsUserName's User length must not be longer than 104 characters");
    }
    if !user.is_empty() && user.bytes().all(|b| b == b'.' || b == b' ') {
        report.invalid(name, "runAsUserName's User cannot contain only periods or spaces");
    }
    if user.contains(['"', '/', '\\', ':', ';', '|', '=', ',', '+', '*', '?', '<', '>', '@', '[', ']']) {
        let why = "runAsUserName's User cannot contain the following characters: \"/\\:;|=,+*?<>@[]";
        report.invalid(name, why);
    }
}

/// Containers of a pod with where they are, in upstream's order of visiting.
pub fn visit(report: &mut Report, spec: &Value, mut walk: impl FnMut(&mut Report, &Value)) {
    for name in ["initContainers", "containers", "ephemeralContainers"] {
        report.each(spec, name, &mut walk);
    }
}

/// All or none of the containers are the node's own processes, and then they share its network.
pub fn host_process(report: &mut Report, spec: &Value) {
    let host = |object: &Value| object["securityContext"]["windowsOptions"]["hostProcess"].as_bool();
    let (pod, mut all, mut hosts) = (host(spec), 0, 0);
    visit(report, spec, |r, container| {
        all += 1;
        let own = host(container);
        if let (Some(pod), Some(own)) = (pod, own)
            && pod != own
        {
            let why = format!("pod hostProcess value must be identical if both are specified, was {pod}");
            r.down(&["securityContext", "windowsOptions", "hostProcess"], |r| r.invalid(own, why));
        }
        hosts += i32::from(own.or(pod) == Some(true));
    });
    if hosts == 0 {
        return;
    }
    if hosts != all {
        let why = "If pod contains any hostProcess containers then all containers must be HostProcess containers";
        report.invalid("", why);
    }
    if spec["hostNetwork"] != true {
        report.bad("hostNetwork", false, "hostNetwork must be true if pod contains any hostProcess containers");
    }
}

/// A pod with users of its own cannot share the node's other namespaces.
pub fn host_users(report: &mut Report, spec: &Value) {
    if spec["hostUsers"] != false {
        return;
    }
    for (field, shown) in [("hostNetwork", "hostNetwork"), ("hostPID", "HostPID"), ("hostIPC", "HostIPC")] {
        if spec[field] == true {
            report.refuse(shown, "when `pod.Spec.HostUsers` is false");
        }
    }
}

/// What a pod of the other operating system cannot have.
pub fn operating_system(report: &mut Report, spec: &Value) {
    let Some(os) = spec.get("os").filter(|o| o.is_object()) else { return };
    match text(os, "name") {
        "" => report.at("os", |r| r.miss("name", "cannot be empty")),
        "linux" => {
            let why = "windows options cannot be set for a linux pod";
            report.with(spec, "securityContext", |r, s| r.forbid(s, &["windowsOptions"], why));
            visit(report, spec, |r, c| r.with(c, "securityContext", |r, s| r.forbid(s, &["windowsOptions"], why)));
        }
        "windows" => not_windows(report, spec),
        other => report.at("os", |r| r.not_supported(other, &["linux", "windows"])),
    }
}

fn not_windows(report: &mut Report, spec: &Value) {
    let why = "cannot be set for a windows pod";
    let own = |report: &mut Report, names: &[&str]| {
        for name in names {
            // A pointer to `false` is something.
            let pointer = ["hostUsers", "shareProcessNamespace"].contains(name);
            if spec[*name] == true || pointer && !spec[*name].is_null() {
                report.refuse(name, why);
            }
        }
    };
    let context = |report: &mut Report, names: &[&str]| {
        report.with(spec, "securityContext", |r, s| r.forbid(s, names, why));
    };
    context(report, &["appArmorProfile", "seLinuxOptions"]);
    own(report, &["hostUsers", "hostPID", "hostIPC"]);
    context(report, &["seccompProfile", "fsGroup", "fsGroupChangePolicy", "sysctls"]);
    own(report, &["shareProcessNamespace"]);
    context(
        report,
        &["runAsUser", "runAsGroup", "supplementalGroups", "supplementalGroupsPolicy", "seLinuxChangePolicy"],
    );
    visit(report, spec, |r, c| {
        let names = [
            "appArmorProfile",
            "seLinuxOptions",
            "seccompProfile",
            "capabilities",
            "readOnlyRootFilesystem",
            "privileged",
            "allowPrivilegeEscalation",
            "procMount",
            "runAsUser",
            "runAsGroup",
        ];
        r.with(c, "securityContext", |r, s| r.forbid(s, &names, why));
    });
}

const SECCOMP_POD: &str = "seccomp.security.alpha.kubernetes.io/pod";
const TOLERATIONS: &str = "scheduler.alpha.kubernetes.io/tolerations";
const SECCOMP_CONTAINER: &str = "container.seccomp.security.alpha.kubernetes.io/";
const APP_ARMOR: &str = "container.apparmor.security.beta.kubernetes.io/";

/// Annotations of a pod or template that still mean something; called at their `annotations`.
pub fn annotations(report: &mut Report, annotations: &Value, spec: &Value) {
    let said = |key: &str| annotations.get(key).and_then(Value::as_str);
    if let (Some(mirror), "") = (said("kubernetes.io/config.mirror"), text(spec, "nodeName")) {
        let why = "must set spec.nodeName if mirror pod annotation is set";
        report.key("kubernetes.io/config.mirror", |r| r.invalid(mirror, why));
    }
    if let Some(said) = said(TOLERATIONS).filter(|said| !said.is_empty()) {
        match proto::json::parse(said.as_bytes()).map(|parsed| parsed.value) {
            Ok(all @ (Value::Array(_) | Value::Null)) => {
                let object = serde_json::json!({TOLERATIONS: all});
                super::scheduling::tolerations_at(report, &object, TOLERATIONS, false);
            }
            Ok(other) => {
                let kind = match other {
                    Value::Object(_) => "object",
                    Value::String(_) => "string",
                    Value::Bool(_) => "bool",
                    _ => "number",
                };
                report.invalid(
                    TOLERATIONS,
                    format!("json: cannot unmarshal {kind} into Go value of type []core.Toleration"),
                );
            }
            Err(why) => report.invalid(TOLERATIONS, why),
        }
    }
    const COST: &str = "controller.kubernetes.io/pod-deletion-cost";
    let number = |text: &str| text.parse::<i32>().is_ok_and(|n| n.to_string() == text);
    if let Some(cost) = said(COST).filter(|c| !number(c)) {
        report.key(COST, |r| r.invalid(cost, "must be a 32bit integer"));
    }
    if let Some(profile) = said(SECCOMP_POD) {
        report.at(SECCOMP_POD, |r| seccomp_text(r, profile));
    }
    for (key, profile) in annotations.as_object().into_iter().flatten() {
        if key.starts_with(SECCOMP_CONTAINER) {
            report.at(key, |r| seccomp_text(r, profile.as_str().unwrap_or_default()));
        }
    }
    for (key, profile) in annotations.as_object().into_iter().flatten() {
        let profile = profile.as_str().unwrap_or_default();
        if let Some(name) = key.strip_prefix(APP_ARMOR) {
            let known = ["initContainers", "containers", "ephemeralContainers"]
                .iter()
                .any(|l| list(spec, l).iter().any(|c| text(c, "name") == name));
            if !known {
                report.key(key, |r| r.invalid(name, "container not found"));
            }
            let good = ["", "runtime/default", "unconfined"].contains(&profile) || profile.starts_with("localhost/");
            if !good {
                let why = format!("invalid AppArmor profile name: {}", crate::status::quote(profile));
                report.key(key, |r| r.invalid(profile, why));
            }
        }
    }
}

fn seccomp_text(report: &mut Report, profile: &str) {
    match profile {
        "runtime/default" | "docker/default" | "unconfined" => {}
        _ => match profile.strip_prefix("localhost/") {
            Some(path) => volume::descending(report, path),
            None => report.invalid(profile, "must be a valid seccomp profile"),
        },
    }
}

/// Annotations and fields that say the same have to agree; called at the spec.
pub fn annotations_match(report: &mut Report, annotations: &Value, spec: &Value) {
    if annotations.as_object().is_none_or(|all| all.is_empty()) {
        return;
    }
    let said = |key: &str| annotations.get(key).and_then(Value::as_str);
    let seccomp = &spec["securityContext"]["seccompProfile"];
    if let Some(text) = said(SECCOMP_POD).filter(|_| seccomp.is_object()) {
        report.down(&["securityContext", "seccompProfile"], |r| profile_matches(r, text, seccomp, "seccomp"));
    }
    let of = |prefix: &str, container: &Value| said(&format!("{prefix}{}", text(container, "name"))).map(str::to_owned);
    visit(report, spec, |r, c| {
        let profile = &c["securityContext"]["seccompProfile"];
        if let Some(text) = of(SECCOMP_CONTAINER, c).filter(|_| profile.is_object()) {
            r.down(&["securityContext", "seccompProfile"], |r| profile_matches(r, &text, profile, "seccomp"));
        }
    });
    if spec["os"]["name"] == "windows" {
        return;
    }
    visit(report, spec, |r, c| {
        let own = &c["securityContext"]["appArmorProfile"];
        let profile = if own.is_object() { own } else { &spec["securityContext"]["appArmorProfile"] };
        if let Some(text) = of(APP_ARMOR, c).filter(|_| profile.is_object()) {
            r.down(&["securityContext", "appArmorProfile"], |r| profile_matches(r, &text, profile, "apparmor"));
        }
    });
}

fn profile_matches(report: &mut Report, annotation: &str, profile: &Value, what: &str) {
    let differ = format!("{what} type in annotation and field must match");
    let default = annotation == "runtime/default" || what == "seccomp" && annotation == "docker/default";
    match text(profile, "type") {
        "Unconfined" if annotation != "unconfined" => report.refuse("type", &differ),
        "RuntimeDefault" if !default => report.refuse("type", &differ),
        "Localhost" => match annotation.strip_prefix("localhost/") {
            None => report.refuse("type", &differ),
            Some(file) if profile["localhostProfile"] != file => {
                report.refuse("localhostProfile", &format!("{what} profile in annotation and field must match"));
            }
            Some(_) => {}
        },
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn tolerations_in_an_annotation_that_cannot_be_read_are_told_as_go_tells_them() {
        let told = |text: &str| {
            let all = json!({TOLERATIONS: text});
            Report::told(|r| r.at("annotations", |r| annotations(r, &all, &Value::Null)))
        };
        let at = format!("annotations: Invalid value: \"{TOLERATIONS}\": ");
        assert_eq!(told("x"), [format!("{at}invalid character 'x' looking for beginning of value")]);
        assert_eq!(told("{}"), [format!("{at}json: cannot unmarshal object into Go value of type []core.Toleration")]);
        assert!(told("[]").is_empty() && told("null").is_empty());
    }
}
