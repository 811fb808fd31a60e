//! Whether a manifest is one of a pod that an API server would have taken.
//!
//! A pod of the API has been checked when the agent sees it; nobody has checked a file. What is wrong is told as upstream's
//! `ValidatePodCreate` tells it, path by path. [`RULES`] are those of single members; what binds members to each other is
//! code below. What a manifest leaves out gets a default, which is never wrong, so that absence breaks a rule only where
//! there is no default.
//!
//! Limits: of the constraints of scheduling only those on nodes and the tolerations are checked; nothing here reads the
//! others.

use std::collections::HashSet;

use serde_json::Value;

use crate::config::parse_ip;
use crate::pod::grace;

use super::{affinity, mount_rules, pod_rules, resource_rules};

/// What is wrong with a manifest, each entry with its path; nothing when it may run.
pub fn broken(pod: &Value) -> Vec<String> {
    let mut found = Vec::new();
    for (place, needed, check) in RULES {
        visit(pod, place, String::new(), &mut |path, value| {
            // What is empty has been left out.
            match value.filter(|value| !is_nothing(value)) {
                None if *needed => found.push(format!("{path}: Required value")),
                None => {}
                Some(value) => check.told(path, value, &mut found),
            }
        });
    }
    let spec = &pod["spec"];
    containers(spec, &mut found);
    affinity::broken(spec, &mut found);
    pod_rules::broken(spec, &mut found);
    mount_rules::broken(spec, &mut found);
    resource_rules::broken(spec, &mut found);
    for (i, volume) in list(spec, "volumes").iter().enumerate() {
        let members = volume.as_object().into_iter().flatten();
        let mut sources = members.filter(|(name, source)| *name != "name" && !source.is_null());
        if let Some((name, _)) = sources.nth(1) {
            found.push(format!("spec.volumes[{i}].{name}: Forbidden: may not specify more than 1 volume type"));
        }
    }
    found
}

/// What a member has to be.
enum Check {
    /// Anything, so that only absence is wrong.
    Any,
    /// A text that the function does not complain of.
    Text(fn(&str) -> Option<&'static str>),
    OneOf(&'static [&'static str]),
    Between(i64, i64),
    AtLeast(i64),
    /// No more items than these.
    Most(usize),
    /// A number of a port, or the name of one.
    Port,
    /// An amount, or amounts by name, none below zero.
    Amounts,
    Labels,
    Annotations,
    /// Has exactly one of these members; the text names what they are.
    OnlyOne(&'static [&'static str], &'static str),
    /// No two items have the same of this, where they have it.
    Unique(&'static str),
}

const PROTOCOLS: Check = Check::OneOf(&["SCTP", "TCP", "UDP"]);
const HOOKS: Check = Check::OnlyOne(&["exec", "httpGet", "tcpSocket", "sleep"], "handler type");
const PROBES: Check = Check::OnlyOne(&["exec", "httpGet", "tcpSocket", "grpc"], "handler type");
const ID: Check = Check::Between(0, i32::MAX as i64);
const MODE: Check = Check::Between(0, 0o777);
const SECCOMP: Check = Check::OneOf(&["Localhost", "RuntimeDefault", "Unconfined"]);
const LABEL: Check = Check::Text(label);
const SUBDOMAIN: Check = Check::Text(subdomain);
const LOCAL: Check = Check::Text(local_path);
const ALL: &str = "containers|initContainers";

/// Place, whether it must be there, and what it has to be. In a place `[]` stands for every item, `|` for "or", and `@` for
/// the lists of containers; a place whose parents are not there is not looked at.
const RULES: &[(&str, bool, Check)] = &[
    ("metadata.name", true, SUBDOMAIN),
    ("metadata.namespace", false, LABEL),
    ("metadata.uid", false, Check::Text(uid)),
    ("metadata.labels", false, Check::Labels),
    ("metadata.annotations", false, Check::Annotations),
    ("spec.containers", true, Check::Any),
    ("spec.@[].name", true, LABEL),
    ("spec.@[].image", true, Check::Text(trimmed)),
    ("spec.@[].imagePullPolicy", false, Check::OneOf(&["Always", "IfNotPresent", "Never"])),
    ("spec.@[].terminationMessagePolicy", false, Check::OneOf(&["File", "FallbackToLogsOnError"])),
    ("spec.@[].restartPolicy", false, Check::OneOf(&["Always", "Never", "OnFailure"])),
    ("spec.@[].restartPolicyRules", false, Check::Most(20)),
    ("spec.@[].restartPolicyRules[].action", true, Check::OneOf(&["Restart", "RestartAllContainers"])),
    ("spec.@[].restartPolicyRules[].exitCodes", true, Check::Any),
    ("spec.@[].restartPolicyRules[].exitCodes.operator", true, Check::OneOf(&["In", "NotIn"])),
    ("spec.@[].restartPolicyRules[].exitCodes.values", false, Check::Most(255)),
    ("spec.@[].ports", false, Check::Unique("name")),
    ("spec.@[].ports[].name", false, Check::Text(port_name)),
    ("spec.@[].ports[].containerPort", true, Check::Between(1, 65_535)),
    ("spec.@[].ports[].hostPort", false, Check::Between(1, 65_535)),
    ("spec.@[].ports[].protocol", false, PROTOCOLS),
    ("spec.@[].env[].name", true, Check::Text(variable)),
    (
        "spec.@[].env[].valueFrom",
        false,
        Check::OnlyOne(&["fieldRef", "resourceFieldRef", "configMapKeyRef", "secretKeyRef", "fileKeyRef"], "field"),
    ),
    ("spec.@[].env[].valueFrom.fieldRef.fieldPath", true, Check::Any),
    ("spec.@[].env[].valueFrom.resourceFieldRef.resource", true, Check::Any),
    ("spec.@[].env[].valueFrom.fileKeyRef.key", true, Check::Text(variable)),
    ("spec.@[].env[].valueFrom.fileKeyRef.volumeName", true, Check::Any),
    ("spec.@[].env[].valueFrom.fileKeyRef.path", true, LOCAL),
    ("spec.@[].envFrom[].prefix", false, Check::Text(variable)),
    ("spec.@[].volumeMounts", false, Check::Unique("mountPath")),
    ("spec.@[].volumeMounts[].name", true, Check::Any),
    ("spec.@[].volumeMounts[].mountPath", true, Check::Any),
    ("spec.@[].volumeMounts[].subPath", false, LOCAL),
    ("spec.@[].volumeMounts[].subPathExpr", false, LOCAL),
    ("spec.@[].volumeMounts[].mountPropagation", false, Check::OneOf(&["Bidirectional", "HostToContainer", "None"])),
    ("spec.@[].volumeMounts[].recursiveReadOnly", false, Check::OneOf(&["Disabled", "Enabled", "IfPossible"])),
    ("spec.@[].resources.limits|requests", false, Check::Amounts),
    ("spec.resources.limits|requests", false, Check::Amounts),
    ("spec.@[].resizePolicy[].resourceName", true, Check::OneOf(&["cpu", "memory"])),
    ("spec.@[].resizePolicy[].restartPolicy", true, Check::OneOf(&["NotRequired", "RestartContainer"])),
    ("spec.@[].securityContext.runAsUser|runAsGroup", false, ID),
    ("spec.@[].securityContext.procMount", false, Check::OneOf(&["Default", "Unmasked"])),
    ("spec.@[].securityContext.seccompProfile.type", true, SECCOMP),
    ("spec.@[].securityContext.appArmorProfile.type", true, SECCOMP),
    ("spec.@[].lifecycle.postStart|preStop", false, HOOKS),
    ("spec.@[].livenessProbe|readinessProbe|startupProbe", false, PROBES),
    ("spec.@[].lifecycle.postStart|preStop.exec.command", true, Check::Any),
    ("spec.@[].lifecycle.postStart|preStop.httpGet|tcpSocket.port", true, Check::Port),
    ("spec.@[].lifecycle.postStart|preStop.httpGet.scheme", false, Check::OneOf(&["HTTP", "HTTPS"])),
    ("spec.@[].livenessProbe|readinessProbe|startupProbe.exec.command", true, Check::Any),
    ("spec.@[].livenessProbe|readinessProbe|startupProbe.httpGet|tcpSocket|grpc.port", true, Check::Port),
    ("spec.@[].livenessProbe|readinessProbe|startupProbe.httpGet.scheme", false, Check::OneOf(&["HTTP", "HTTPS"])),
    (
        "spec.@[].livenessProbe|readinessProbe|startupProbe.\
         initialDelaySeconds|timeoutSeconds|periodSeconds|successThreshold|failureThreshold",
        false,
        Check::AtLeast(0),
    ),
    ("spec.@[].livenessProbe|startupProbe.successThreshold", false, Check::Between(1, 1)),
    ("spec.@[].livenessProbe|startupProbe.terminationGracePeriodSeconds", false, Check::AtLeast(1)),
    ("spec.restartPolicy", false, Check::OneOf(&["Always", "OnFailure", "Never"])),
    ("spec.dnsPolicy", false, Check::OneOf(&["ClusterFirstWithHostNet", "ClusterFirst", "Default", "None"])),
    ("spec.dnsConfig.nameservers[]", false, Check::Text(address)),
    ("spec.dnsConfig.searches[]", false, Check::Text(search)),
    ("spec.readinessGates[].conditionType", true, Check::Text(qualified_name)),
    ("spec.activeDeadlineSeconds", false, Check::Between(1, i32::MAX as i64)),
    ("spec.hostname|subdomain", false, LABEL),
    ("spec.nodeName|priorityClassName|runtimeClassName|hostnameOverride", false, SUBDOMAIN),
    ("spec.nodeSelector", false, Check::Labels),
    ("spec.hostAliases[].ip", true, Check::Text(address)),
    ("spec.hostAliases[].hostnames[]", false, SUBDOMAIN),
    ("spec.os.name", true, Check::OneOf(&["linux", "windows"])),
    ("spec.overhead", false, Check::Amounts),
    ("spec.securityContext.runAsUser|runAsGroup|fsGroup", false, ID),
    ("spec.securityContext.supplementalGroups[]", false, ID),
    ("spec.securityContext.fsGroupChangePolicy", false, Check::OneOf(&["Always", "OnRootMismatch"])),
    ("spec.securityContext.supplementalGroupsPolicy", false, Check::OneOf(&["Merge", "Strict"])),
    ("spec.securityContext.seLinuxChangePolicy", false, Check::OneOf(&["MountOption", "Recursive"])),
    ("spec.securityContext.seccompProfile.type", true, SECCOMP),
    ("spec.securityContext.appArmorProfile.type", true, SECCOMP),
    ("spec.securityContext.sysctls", false, Check::Unique("name")),
    ("spec.securityContext.sysctls[].name", true, Check::Text(sysctl)),
    ("spec.volumes", false, Check::Unique("name")),
    ("spec.volumes[].name", true, LABEL),
    ("spec.volumes[].hostPath.path", true, Check::Text(no_way_back)),
    (
        "spec.volumes[].hostPath.type",
        false,
        Check::OneOf(&[
            "BlockDevice",
            "CharDevice",
            "Directory",
            "DirectoryOrCreate",
            "File",
            "FileOrCreate",
            "Socket",
        ]),
    ),
    ("spec.volumes[].emptyDir.sizeLimit", false, Check::Amounts),
    ("spec.volumes[].downwardAPI|projected.defaultMode", false, MODE),
    ("spec.volumes[].downwardAPI.items[].path", true, LOCAL),
    ("spec.volumes[].downwardAPI.items[].mode", false, MODE),
    ("spec.volumes[].projected.sources[].downwardAPI.items[].path", true, LOCAL),
    ("spec.volumes[].projected.sources[].downwardAPI.items[].mode", false, MODE),
    ("spec.volumes[].nfs.server", true, Check::Any),
    ("spec.volumes[].nfs.path", true, Check::Text(absolute)),
    ("spec.volumes[].iscsi.targetPortal|iqn", true, Check::Any),
    ("spec.volumes[].image.pullPolicy", false, Check::OneOf(&["Always", "IfNotPresent", "Never"])),
];

/// Shows every member at `place` to `see`, with its path; one that is not there where its parent is, as none.
fn visit(at: &Value, place: &str, path: String, see: &mut dyn FnMut(&str, Option<&Value>)) {
    let (first, rest) = place.split_once('.').map_or((place, None), |(first, rest)| (first, Some(rest)));
    let (names, items) = first.strip_suffix("[]").map_or((first, false), |names| (names, true));
    for name in if names == "@" { ALL } else { names }.split('|') {
        let own = if path.is_empty() { name.to_owned() } else { format!("{path}.{name}") };
        let value = at.get(name).filter(|value| !value.is_null());
        let go_on = |path: String, value: Option<&Value>, see: &mut dyn FnMut(&str, Option<&Value>)| match (rest, value)
        {
            (None, value) => see(&path, value),
            (Some(rest), Some(value)) => visit(value, rest, path, see),
            // Every pod has these two, be they empty.
            (Some(rest), None) if matches!(&*path, "metadata" | "spec") => visit(&Value::Null, rest, path, see),
            (Some(_), None) => {}
        };
        if items {
            for (i, item) in value.and_then(Value::as_array).into_iter().flatten().enumerate() {
                go_on(format!("{own}[{i}]"), Some(item), see);
            }
        } else {
            go_on(own, value, see);
        }
    }
}

impl Check {
    fn told(&self, path: &str, value: &Value, found: &mut Vec<String>) {
        let mut bad = |value: &Value, why: &str| found.push(format!("{path}: Invalid value: {value}: {why}"));
        match self {
            Self::Any => {}
            Self::Text(complaint) => {
                if let Some(why) = value.as_str().and_then(complaint) {
                    bad(value, why);
                }
            }
            Self::OneOf(known) => {
                if !value.as_str().is_some_and(|value| known.contains(&value)) {
                    let known: Vec<String> = known.iter().map(|k| format!("{k:?}")).collect();
                    let known = known.join(", ");
                    found.push(format!("{path}: Unsupported value: {value}: supported values: {known}"));
                }
            }
            Self::Between(1, 1) => {
                if value.as_i64().is_some_and(|n| n > 1) {
                    bad(value, "must be 1");
                }
            }
            Self::Between(least, most) => {
                if value.as_i64().is_some_and(|n| n < *least || n > *most) {
                    bad(value, &format!("must be between {least} and {most}, inclusive"));
                }
            }
            Self::AtLeast(least) => {
                if value.as_i64().is_some_and(|n| n < *least) {
                    bad(value, &format!("must be greater than or equal to {least}"));
                }
            }
            Self::Most(most) => {
                let count = value.as_array().map_or(0, Vec::len);
                if count > *most {
                    found.push(format!("{path}: Too many: {count}: must have at most {most} items"));
                }
            }
            Self::Port => match (value.as_i64(), value.as_str()) {
                (Some(number), _) if !(1..=65_535).contains(&number) => {
                    bad(value, "must be between 1 and 65535, inclusive");
                }
                (_, Some(name)) => {
                    if let Some(why) = port_name(name) {
                        bad(value, why);
                    }
                }
                _ => {}
            },
            Self::Amounts => match value {
                Value::Object(amounts) => {
                    for (name, amount) in amounts {
                        Self::Amounts.told(&format!("{path}[{name}]"), amount, found);
                    }
                }
                amount => match quantity(amount) {
                    None => bad(
                        amount,
                        "quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'",
                    ),
                    Some(amount) if amount.sign() < 0 => bad(value, "must be greater than or equal to 0"),
                    Some(_) => {}
                },
            },
            Self::Labels => {
                for (key, label) in value.as_object().into_iter().flatten() {
                    if let Some(why) = qualified_name(key) {
                        bad(&key.as_str().into(), why);
                    }
                    if let Some(why) = label_value(label.as_str().unwrap_or("?")) {
                        bad(label, why);
                    }
                }
            }
            Self::Annotations => {
                for key in value.as_object().into_iter().flatten().map(|(key, _)| key.to_lowercase()) {
                    if let Some(why) = qualified_name(&key) {
                        bad(&key.as_str().into(), why);
                    }
                }
            }
            Self::OnlyOne(names, what) => {
                let mut given = names.iter().filter(|name| value.get(**name).is_some_and(|member| !member.is_null()));
                match (given.next(), given.next()) {
                    (None, _) => found.push(format!("{path}: Required value: must specify a {what}")),
                    (_, Some(second)) => {
                        let why = format!("may not specify more than 1 {what}");
                        found.push(format!("{path}.{second}: Forbidden: {why}"));
                    }
                    _ => {}
                }
            }
            Self::Unique(key) => {
                let mut seen = HashSet::new();
                for (i, item) in value.as_array().into_iter().flatten().enumerate() {
                    let own = item.get(*key).filter(|own| !is_nothing(own));
                    if let Some(own) = own.filter(|own| !seen.insert(own.to_string())) {
                        found.push(format!("{path}[{i}].{key}: Duplicate value: {own}"));
                    }
                }
            }
        }
    }
}

/// What the members of containers have to do with each other and with the pod.
fn containers(spec: &Value, found: &mut Vec<String>) {
    let volumes: HashSet<&str> = list(spec, "volumes").iter().map(|v| text(v, "name")).collect();
    let grace = spec["terminationGracePeriodSeconds"].as_i64().unwrap_or(grace::DEFAULT_SECONDS);
    let mut names = HashSet::new();
    let all = ["containers", "initContainers"].into_iter().flat_map(|kind| {
        list(spec, kind).iter().enumerate().map(move |(i, container)| (kind, format!("spec.{kind}[{i}]"), container))
    });
    for (kind, path, container) in all {
        let name = text(container, "name");
        if !name.is_empty() && !names.insert(name) {
            found.push(format!("{path}.name: Duplicate value: {name:?}"));
        }
        let has = |member: &str| container.get(member).is_some_and(|value| !value.is_null());
        if kind == "initContainers" && text(container, "restartPolicy") != "Always" {
            let for_sidecars =
                ["lifecycle", "livenessProbe", "readinessProbe", "startupProbe"].into_iter().filter(|m| has(m));
            found.extend(for_sidecars.map(|member| {
                format!("{path}.{member}: Forbidden: may not be set for init containers without restartPolicy=Always")
            }));
        }
        if !list(container, "restartPolicyRules").is_empty() && text(container, "restartPolicy").is_empty() {
            let why = "must specify restartPolicy when restart rules are used";
            found.push(format!("{path}.restartPolicy: Required value: {why}"));
        }
        for hook in ["postStart", "preStop"] {
            let seconds = container["lifecycle"][hook]["sleep"]["seconds"].as_i64();
            if let Some(seconds) = seconds.filter(|seconds| !(0..=grace).contains(seconds)) {
                let why = format!("must be non-negative and less than terminationGracePeriodSeconds ({grace})");
                found.push(format!("{path}.lifecycle.{hook}.sleep: Invalid value: {seconds}: {why}"));
            }
        }
        if container["readinessProbe"].get("terminationGracePeriodSeconds").is_some_and(|grace| !grace.is_null()) {
            let why = "must not be set for readinessProbes";
            let grace = &container["readinessProbe"]["terminationGracePeriodSeconds"];
            found.push(format!("{path}.readinessProbe.terminationGracePeriodSeconds: Invalid value: {grace}: {why}"));
        }
        let privileged = container["securityContext"]["privileged"] == true;
        if privileged && container["securityContext"]["allowPrivilegeEscalation"] == false {
            let why = "cannot set `allowPrivilegeEscalation` to false and `privileged` to true";
            found.push(format!("{path}.securityContext: Invalid value: {why}"));
        }
        for (i, variable) in list(container, "env").iter().enumerate() {
            if !text(variable, "value").is_empty() && variable.get("valueFrom").is_some_and(|from| !from.is_null()) {
                let why = "may not be specified when `value` is not empty";
                found.push(format!("{path}.env[{i}].valueFrom: Invalid value: \"\": {why}"));
            }
        }
        for (i, port) in list(container, "ports").iter().enumerate() {
            let (host, own) = (port["hostPort"].as_i64().unwrap_or(0), port["containerPort"].as_i64().unwrap_or(0));
            if spec["hostNetwork"] == true && kind == "containers" && host != 0 && host != own {
                let why = "must match `containerPort` when `hostNetwork` is true";
                found.push(format!("{path}.ports[{i}].hostPort: Invalid value: {host}: {why}"));
            }
        }
        for (i, mount) in list(container, "volumeMounts").iter().enumerate() {
            let (name, at) = (text(mount, "name"), format!("{path}.volumeMounts[{i}]"));
            if !name.is_empty() && !volumes.contains(name) {
                found.push(format!("{at}.name: Not found: {name:?}"));
            }
            if !text(mount, "subPath").is_empty() && !text(mount, "subPathExpr").is_empty() {
                let expression = text(mount, "subPathExpr");
                found.push(format!(
                    "{at}.subPathExpr: Invalid value: {expression:?}: subPathExpr and subPath are mutually exclusive"
                ));
            }
            if text(mount, "mountPropagation") == "Bidirectional" && !privileged {
                let why = "Bidirectional mount propagation is available only to privileged containers";
                found.push(format!("{at}.mountPropagation: Forbidden: {why}"));
            }
        }
    }
}

pub(super) fn list<'a>(value: &'a Value, name: &str) -> &'a [Value] {
    value.get(name).and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

pub(super) fn text<'a>(value: &'a Value, name: &str) -> &'a str {
    value.get(name).and_then(Value::as_str).unwrap_or("")
}

fn is_nothing(value: &Value) -> bool {
    match value {
        Value::String(text) => text.is_empty(),
        Value::Array(items) => items.is_empty(),
        Value::Number(number) => number.as_i64() == Some(0),
        Value::Null => true,
        Value::Bool(_) | Value::Object(_) => false,
    }
}

pub(super) fn quantity(value: &Value) -> Option<proto::quantity::Quantity> {
    match value {
        Value::String(text) => text.parse().ok(),
        Value::Number(number) => number.to_string().parse().ok(),
        _ => None,
    }
}

fn is_label(text: &str) -> bool {
    let inner = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-';
    (1..=63).contains(&text.len()) && text.bytes().all(inner) && !text.starts_with('-') && !text.ends_with('-')
}

fn label(text: &str) -> Option<&'static str> {
    let why = "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start and \
               end with an alphanumeric character (e.g. 'my-name',  or '123-abc', regex used for validation is \
               '[a-z0-9]([-a-z0-9]*[a-z0-9])?')";
    (!is_label(text)).then_some(if text.len() > 63 { "must be no more than 63 characters" } else { why })
}

pub(super) fn subdomain(text: &str) -> Option<&'static str> {
    let part = |part: &str| {
        let inner = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-';
        !part.is_empty() && part.bytes().all(inner) && !part.starts_with('-') && !part.ends_with('-')
    };
    let why = "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must \
               start and end with an alphanumeric character (e.g. 'example.com', regex used for validation is \
               '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')";
    match text.len() {
        254.. => Some("must be no more than 253 characters"),
        _ => (!text.split('.').all(part)).then_some(why),
    }
}

/// A search path of a resolver: a final dot is fine, underscores are, and so is the root.
fn search(text: &str) -> Option<&'static str> {
    let why = "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '_', '-' or '.', and must \
               start and end with an alphanumeric character (e.g. 'example.com', regex used for validation is \
               '[a-z0-9_]([-_a-z0-9]*[a-z0-9_])?(\\.[a-z0-9_]([-_a-z0-9]*[a-z0-9_])?)*')";
    match text.strip_suffix('.').unwrap_or(text) {
        // Underscores may stand wherever letters may.
        "" => (text != ".").then_some(why),
        name => subdomain(&name.replace('_', "a")).map(|told| if told.starts_with("must") { told } else { why }),
    }
}

fn name_part(text: &str) -> bool {
    let edge = |b: Option<u8>| b.is_some_and(|b| b.is_ascii_alphanumeric());
    text.len() <= 63
        && text.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.'))
        && edge(text.bytes().next())
        && edge(text.bytes().next_back())
}

pub(super) fn label_value(text: &str) -> Option<&'static str> {
    let why = "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.'";
    (!text.is_empty() && !name_part(text)).then_some(why)
}

pub(super) fn qualified_name(key: &str) -> Option<&'static str> {
    let (prefix, name) = key.split_once('/').map_or((None, key), |(prefix, name)| (Some(prefix), name));
    let why = "name part must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an \
               alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is \
               '([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')";
    prefix.and_then(subdomain).or((!name_part(name)).then_some(why))
}

fn trimmed(text: &str) -> Option<&'static str> {
    (text.trim().len() != text.len()).then_some("must not have leading or trailing whitespace")
}

/// A uid names folders below the agent's own.
fn uid(text: &str) -> Option<&'static str> {
    let fine = |b: u8| b.is_ascii_alphanumeric() || b == b'-' || b == b'_';
    (text.len() > 253 || !text.bytes().all(fine)).then_some("must consist of alphanumeric characters, '-' or '_'")
}

fn variable(text: &str) -> Option<&'static str> {
    let why = "a valid environment variable name must consist only of printable ASCII characters other than '='";
    (!text.bytes().all(|b| (b' '..=b'~').contains(&b) && b != b'=')).then_some(why)
}

fn port_name(text: &str) -> Option<&'static str> {
    let inner = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-';
    if text.len() > 15 {
        Some("must be no more than 15 characters")
    } else if !text.bytes().all(inner) {
        Some("must contain only alpha-numeric characters (a-z, 0-9), and hyphens (-)")
    } else if !text.bytes().any(|b| b.is_ascii_lowercase()) {
        Some("must contain at least one letter (a-z)")
    } else if text.contains("--") {
        Some("must not contain consecutive hyphens")
    } else {
        (text.starts_with('-') || text.ends_with('-')).then_some("must not begin or end with a hyphen")
    }
}

fn absolute(text: &str) -> Option<&'static str> {
    (!text.starts_with('/')).then_some("must be an absolute path")
}

fn no_way_back(text: &str) -> Option<&'static str> {
    text.split('/').any(|part| part == "..").then_some("must not contain '..'")
}

pub(super) fn local_path(text: &str) -> Option<&'static str> {
    if text.starts_with('/') { Some("must be a relative path") } else { no_way_back(text) }
}

fn address(text: &str) -> Option<&'static str> {
    parse_ip(text).is_none().then_some("must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)")
}

fn sysctl(text: &str) -> Option<&'static str> {
    let part = |part: &str| {
        let inner = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || matches!(b, b'-' | b'_');
        let edge = |b: Option<u8>| b.is_some_and(|b| b.is_ascii_lowercase() || b.is_ascii_digit());
        part.bytes().all(inner) && edge(part.bytes().next()) && edge(part.bytes().next_back())
    };
    let why = "must have at most 253 characters and match regex \
               ^([a-z0-9]([-_a-z0-9]*[a-z0-9])?[\\./])*[a-z0-9]([-_a-z0-9]*[a-z0-9])?$";
    (text.len() > 253 || !text.split(['.', '/']).all(part)).then_some(why)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A manifest with these members, above those that every pod needs.
    fn told(spec: &str, container: &str) -> Vec<String> {
        let text = format!(
            "metadata: {{name: a}}\nspec: {{containers: [{{name: c, image: x, {container}}}], volumes: [{{name: v}}], {spec}}}\n"
        );
        broken(&proto::yaml::parse(text.as_bytes()).unwrap())
    }

    #[test]
    fn a_manifest_may_say_all_that_a_pod_may() {
        let container = "ports: [{containerPort: 80, name: web, hostPort: 80, protocol: TCP}, {containerPort: 81}], \
            env: [{name: A.b-C, value: x}, {name: B, valueFrom: {fieldRef: {fieldPath: metadata.name}}}], \
            volumeMounts: [{name: v, mountPath: /a, subPath: b/c}, {name: v, mountPath: /b}], \
            resources: {limits: {cpu: 1, memory: 1Gi}, requests: {cpu: 500m}}, imagePullPolicy: '', \
            securityContext: {runAsUser: 0, privileged: true}, lifecycle: {preStop: {sleep: {seconds: 0}}}, \
            livenessProbe: {httpGet: {port: web, path: /}, successThreshold: 1, periodSeconds: 0}, \
            readinessProbe: {tcpSocket: {port: 80}, successThreshold: 2}";
        let spec = "restartPolicy: Never, hostname: a, hostNetwork: true, nodeSelector: {example.com/a: ''}, \
            hostAliases: [{ip: 10.0.0.1, hostnames: [a.b]}], activeDeadlineSeconds: 1, \
            securityContext: {sysctls: [{name: kernel/a_b/c, value: x}], supplementalGroups: [0, 1]}, \
            initContainers: [{name: i, image: x, restartPolicy: Always, startupProbe: {exec: {command: [a]}}}]";
        assert_eq!(told(spec, container), [""; 0]);
        assert_eq!(told("", ""), [""; 0]);
        let nothing = serde_json::json!({});
        assert_eq!(broken(&nothing), ["metadata.name: Required value", "spec.containers: Required value"]);
    }

    #[test]
    fn what_no_server_would_take_is_told_by_its_path() {
        for (spec, container, wanted) in [
            (
                "",
                "imagePullPolicy: Often",
                "spec.containers[0].imagePullPolicy: Unsupported value: \"Often\": supported values: \
                \"Always\", \"IfNotPresent\", \"Never\"",
            ),
            ("", "ports: [{name: a}]", "spec.containers[0].ports[0].containerPort: Required value"),
            (
                "",
                "ports: [{containerPort: 70000}]",
                "spec.containers[0].ports[0].containerPort: Invalid value: 70000: must be \
                between 1 and 65535, inclusive",
            ),
            (
                "",
                "ports: [{containerPort: 1, name: a}, {containerPort: 2, name: a}]",
                "spec.containers[0].ports[1].name: Duplicate value: \"a\"",
            ),
            ("", "env: [{value: x}]", "spec.containers[0].env[0].name: Required value"),
            (
                "",
                "env: [{name: A, value: x, valueFrom: {fieldRef: {fieldPath: metadata.name}}}]",
                "spec.containers[0].env[0].valueFrom: \
                Invalid value: \"\": may not be specified when `value` is not empty",
            ),
            (
                "",
                "volumeMounts: [{name: w, mountPath: /a}]",
                "spec.containers[0].volumeMounts[0].name: Not found: \"w\"",
            ),
            ("", "volumeMounts: [{name: v}]", "spec.containers[0].volumeMounts[0].mountPath: Required value"),
            (
                "",
                "volumeMounts: [{name: v, mountPath: /a, subPath: ../b}]",
                "spec.containers[0].volumeMounts[0].subPath: Invalid value: \"../b\": must not contain '..'",
            ),
            (
                "",
                "resources: {limits: {cpu: 1}, requests: {cpu: 1001m}}",
                "spec.containers[0].resources.requests: Invalid value: \
                \"1001m\": must be less than or equal to cpu limit of 1",
            ),
            (
                "",
                "resources: {limits: {cpu: -1}}",
                "spec.containers[0].resources.limits[cpu]: Invalid value: -1: must be greater than or equal to 0",
            ),
            (
                "",
                "livenessProbe: {periodSeconds: 1}",
                "spec.containers[0].livenessProbe: Required value: must specify a handler type",
            ),
            (
                "",
                "livenessProbe: {exec: {command: [a]}, successThreshold: 2}",
                "spec.containers[0].livenessProbe.successThreshold: Invalid value: 2: must be 1",
            ),
            (
                "",
                "livenessProbe: {sleep: {seconds: 1}}",
                "spec.containers[0].livenessProbe: Required value: must specify a handler type",
            ),
            (
                "securityContext: {seLinuxChangePolicy: Never}",
                "",
                "spec.securityContext.seLinuxChangePolicy: Unsupported value: \"Never\": supported values: \
                \"MountOption\", \"Recursive\"",
            ),
            (
                "",
                "lifecycle: {preStop: {exec: {command: [a]}, sleep: {seconds: 1}}}",
                "spec.containers[0].lifecycle.preStop.sleep: Forbidden: may not specify more than 1 handler type",
            ),
            (
                "",
                "lifecycle: {preStop: {sleep: {seconds: 31}}}",
                "spec.containers[0].lifecycle.preStop.sleep: Invalid value: 31: must be non-negative and less than \
                terminationGracePeriodSeconds (30)",
            ),
            (
                "terminationGracePeriodSeconds: 3",
                "lifecycle: {preStop: {sleep: {seconds: 3}}, postStart: {sleep: {seconds: -1}}}",
                "spec.containers[0].lifecycle.postStart.sleep: Invalid value: -1: must be non-negative and less than \
                terminationGracePeriodSeconds (3)",
            ),
            (
                "restartPolicy: Now",
                "",
                "spec.restartPolicy: Unsupported value: \"Now\": supported values: \"Always\", \
                \"OnFailure\", \"Never\"",
            ),
            ("initContainers: [{name: c, image: x}]", "", "spec.initContainers[0].name: Duplicate value: \"c\""),
            (
                "initContainers: [{name: i, image: x, livenessProbe: {exec: {command: [a]}}}]",
                "",
                "spec.initContainers[0].livenessProbe: Forbidden: may not be set for init containers without restartPolicy=Always",
            ),
            (
                "activeDeadlineSeconds: -1",
                "",
                "spec.activeDeadlineSeconds: Invalid value: -1: must be between 1 and 2147483647, inclusive",
            ),
            (
                "securityContext: {runAsUser: -1}",
                "",
                "spec.securityContext.runAsUser: Invalid value: -1: must be between 0 and 2147483647, inclusive",
            ),
            (
                "hostAliases: [{ip: here}]",
                "",
                "spec.hostAliases[0].ip: Invalid value: \"here\": must be a valid IP address, (e.g. \
                10.9.8.7 or 2001:db8::ffff)",
            ),
        ] {
            assert_eq!(told(spec, container), [wanted]);
        }
        let rules = |rules: usize, codes: usize| {
            let codes = vec!["1"; codes].join(", ");
            let rule = format!("{{action: Restart, exitCodes: {{operator: In, values: [{codes}]}}}}");
            told("", &format!("restartPolicy: Never, restartPolicyRules: [{}]", vec![rule; rules].join(", ")))
        };
        let at = "spec.containers[0].restartPolicyRules";
        assert_eq!(rules(20, 255), [""; 0]);
        assert_eq!(rules(21, 1), [format!("{at}: Too many: 21: must have at most 20 items")]);
        assert_eq!(rules(1, 256), [format!("{at}[0].exitCodes.values: Too many: 256: must have at most 255 items")]);
        let volumes = |volumes: &str| {
            let text =
                format!("metadata: {{name: a}}\nspec: {{containers: [{{name: c, image: x}}], volumes: [{volumes}]}}\n");
            broken(&proto::yaml::parse(text.as_bytes()).unwrap()).join("; ")
        };
        assert_eq!(volumes("{name: a}, {name: a}"), "spec.volumes[1].name: Duplicate value: \"a\"");
        assert_eq!(volumes("{emptyDir: {}}"), "spec.volumes[0].name: Required value");
        assert_eq!(volumes("{name: a, hostPath: {}}"), "spec.volumes[0].hostPath.path: Required value");
        let relative = "spec.volumes[0].nfs.path: Invalid value: \"b\": must be an absolute path";
        assert_eq!(volumes("{name: a, nfs: {server: s, path: b}}"), relative);
        let two = volumes("{name: a, hostPath: {path: /a}, emptyDir: {}}");
        assert!(two.ends_with("Forbidden: may not specify more than 1 volume type"), "{two}");
    }

    #[test]
    fn search_paths_are_domains() {
        for fine in [".", "a.b", "a.b.", "_tcp.a_b"] {
            assert_eq!(search(fine), None, "{fine}");
        }
        for bad in ["", "..", "A", "a..b", "-a", "a b"] {
            assert!(search(bad).is_some_and(|why| why.contains("'_', '-' or '.'")), "{bad}");
        }
        assert_eq!(search(&"a".repeat(254)), Some("must be no more than 253 characters"));
    }

    /// It would name a folder of the agent's choice no longer.
    #[test]
    fn a_uid_leads_nowhere() {
        for (uid, fine) in [("a-1_B", true), ("..", false), ("a/b", false), ("a.b", false), ("", true)] {
            let pod = serde_json::json!({"metadata": {"name": "a", "uid": uid}, "spec": {"containers": [{"name": "c", "image": "x"}]}});
            assert_eq!(broken(&pod).is_empty(), fine, "{uid:?}");
        }
    }
}
