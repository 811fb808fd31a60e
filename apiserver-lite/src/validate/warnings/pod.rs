//! Warnings about pods and their templates.

use std::collections::{HashMap, HashSet};
use std::fmt::{self, Display};

use serde_json::{Name, Value};

use super::super::{has, list, text, texts};
use super::{Found, OLD_VOLUMES, old_label, spec_map};
use crate::names;
use crate::status::quote;

/// Annotations of pods that do nothing any more.
const OLD_ANNOTATIONS: [(&str, &str); 3] = [
    (
        "scheduler.alpha.kubernetes.io/critical-pod",
        "non-functional in v1.16+; use the \"priorityClassName\" field instead",
    ),
    ("security.alpha.kubernetes.io/sysctls", "non-functional in v1.11+; use the \"sysctls\" field instead"),
    ("security.alpha.kubernetes.io/unsafe-sysctls", "non-functional in v1.11+; use the \"sysctls\" field instead"),
];

impl Found {
    /// A pod or the template of one, whose fields are found below `path`.
    pub(super) fn pod(&mut self, path: &str, pod: &Value, template: bool) {
        let (spec, annotations) = (&pod["spec"], &pod["metadata"]["annotations"]);
        for (key, _) in spec_map(spec, "nodeSelector") {
            if let Some(why) = old_label(key) {
                self.add(format_args!("{path}spec.nodeSelector[{key}]"), why);
            }
        }
        let affinity = &spec["affinity"];
        self.node_affinity(format_args!("{path}spec.affinity.nodeAffinity"), &affinity["nodeAffinity"]);
        for (index, constraint) in list(spec, "topologySpreadConstraints").iter().enumerate() {
            let path = format_args!("{path}spec.topologySpreadConstraints[{index}]");
            let key = text(constraint, "topologyKey");
            if let Some(why) = old_label(key) {
                self.add(format_args!("{path}.topologyKey"), format_args!("{key} is {why}"));
            }
            self.no_selector(path, constraint);
        }
        for (key, why) in OLD_ANNOTATIONS {
            if has(annotations, key) {
                self.add(format_args!("{path}metadata.annotations[{key}]"), why);
            }
        }
        self.volumes(format_args!("{path}spec.volumes"), spec);
        let secrets = list(spec, "imagePullSecrets");
        self.repeated(format_args!("{path}spec.hostAliases"), list(spec, "hostAliases"), "ip");
        self.repeated(format_args!("{path}spec.imagePullSecrets"), secrets, "name");
        for (index, secret) in secrets.iter().enumerate() {
            if text(secret, "name").is_empty() {
                self.add(format_args!("{path}spec.imagePullSecrets[{index}].name"), "invalid empty name \"\"");
            }
        }
        self.fractions(format_args!("{path}spec.overhead"), &spec["overhead"]);
        let noted = annotations.as_object().is_some_and(|all| !all.is_empty());
        let annotated = |found: &mut Found, key: std::fmt::Arguments<'_>, why: &str| {
            if noted && has(annotations, &key.to_string()) {
                found.add(format_args!("{path}metadata.annotations[{key}]"), why);
            }
        };
        let seccomp = "non-functional in v1.27+; use the \"seccompProfile\" field instead";
        let of_pod = &spec["securityContext"];
        if !has(of_pod, "seccompProfile") {
            annotated(self, format_args!("seccomp.security.alpha.kubernetes.io/pod"), seccomp);
        }
        for (at, container) in containers(path, spec) {
            if noted {
                let (name, context) = (text(container, "name"), &container["securityContext"]);
                if !has(context, "seccompProfile") {
                    annotated(self, format_args!("container.seccomp.security.alpha.kubernetes.io/{name}"), seccomp);
                }
                if template && !has(of_pod, "appArmorProfile") && !has(context, "appArmorProfile") {
                    let why = "deprecated since v1.30; use the \"appArmorProfile\" field instead";
                    annotated(self, format_args!("container.apparmor.security.beta.kubernetes.io/{name}"), why);
                }
            }
            let resources = &container["resources"];
            for name in ["memory", "ephemeral-storage"] {
                for part in ["limits", "requests"] {
                    self.fraction(format_args!("{at}.resources.{part}"), &resources[part], name);
                }
            }
            self.variables(at, container);
        }
        self.ports(path, spec);
        if spec["terminationGracePeriodSeconds"].as_i64().is_some_and(|seconds| seconds < 0) {
            let why = "must be >= 0; negative values are invalid and will be treated as 1";
            self.add(format_args!("{path}spec.terminationGracePeriodSeconds"), why);
        }
        for kind in ["podAffinity", "podAntiAffinity"] {
            let (path, affinity) = (format_args!("{path}spec.affinity.{kind}"), &affinity[kind]);
            const TERMS: [&str; 2] =
                ["requiredDuringSchedulingIgnoredDuringExecution", "preferredDuringSchedulingIgnoredDuringExecution"];
            for (index, term) in list(affinity, TERMS[0]).iter().enumerate() {
                self.no_selector(format_args!("{path}.{}[{index}]", TERMS[0]), term);
            }
            for (index, term) in list(affinity, TERMS[1]).iter().enumerate() {
                let path = format_args!("{path}.{}[{index}].podAffinityTerm", TERMS[1]);
                self.no_selector(path, &term["podAffinityTerm"]);
            }
        }
    }

    pub(super) fn node_affinity(&mut self, path: impl Display, affinity: &Value) {
        let required = &affinity["requiredDuringSchedulingIgnoredDuringExecution"];
        for (index, term) in list(required, "nodeSelectorTerms").iter().enumerate() {
            let path = format_args!("{path}.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms[{index}]");
            self.expressions(path, term);
        }
        for (index, term) in list(affinity, "preferredDuringSchedulingIgnoredDuringExecution").iter().enumerate() {
            let path = format_args!("{path}.preferredDuringSchedulingIgnoredDuringExecution[{index}].preference");
            self.expressions(path, &term["preference"]);
            for (at, expression) in list(&term["preference"], "matchExpressions").iter().enumerate() {
                for (index, value) in texts(expression, "values").into_iter().enumerate() {
                    for why in names::label_value(value) {
                        let path = format_args!("{path}.matchExpressions[{at}].values[{index}]");
                        self.add(path, format_args!("{value} is invalid, {why}"));
                    }
                }
            }
        }
    }

    pub(super) fn no_selector(&mut self, path: impl Display, term: &Value) {
        if !has(term, "labelSelector") {
            self.add(format_args!("{path}.labelSelector"), "a null labelSelector results in matching no pod");
        }
    }

    pub(super) fn repeated(&mut self, path: impl Display, items: &[Value], name: &str) {
        let mut seen = HashSet::new();
        for (index, item) in items.iter().enumerate() {
            let value = text(item, name);
            if !seen.insert(value) {
                self.add(format_args!("{path}[{index}].{name}"), format_args!("duplicate {name} {}", quote(value)));
            }
        }
    }

    pub(super) fn volumes(&mut self, path: impl Display, spec: &Value) {
        let volumes = || list(spec, "volumes").iter().enumerate();
        for (index, volume) in volumes() {
            // There are more old sources than members of a volume.
            let is_old = |key: &Name| OLD_VOLUMES.iter().any(|(source, _)| source == key);
            let old = volume.as_object().is_some_and(|all| all.keys().any(is_old));
            for (source, why) in OLD_VOLUMES {
                if old && has(volume, source) {
                    let shown = if source == "storageos" { "storageOS" } else { source };
                    self.add(format_args!("{path}[{index}].{shown}"), why);
                }
            }
            let claim = &volume["ephemeral"]["volumeClaimTemplate"]["spec"];
            self.claim(format_args!("{path}[{index}].ephemeral.volumeClaimTemplate.spec"), claim);
        }
        let tokens: Vec<&str> = volumes()
            .flat_map(|(_, volume)| list(&volume["projected"], "sources"))
            .filter_map(|source| source["serviceAccountToken"]["path"].as_str())
            .collect();
        if tokens.is_empty() {
            return;
        }
        let mut twice = |at: std::fmt::Arguments<'_>, file: &str| {
            if tokens.contains(&file) {
                self.add(at, format_args!("has duplicated path with ServiceAccountToken {}", quote(file)));
            }
        };
        for (index, volume) in volumes() {
            for source in list(&volume["projected"], "sources") {
                for (kind, shown) in [("configMap", "configMap"), ("secret", "secrets"), ("downwardAPI", "downwardAPI")]
                {
                    for (item, file) in list(&source[kind], "items").iter().enumerate() {
                        twice(format_args!("{path}[{index}].projected.sources.{shown}[{item}]"), text(file, "path"));
                    }
                }
                let file = text(&source["clusterTrustBundle"], "path");
                twice(format_args!("{path}[{index}].projected.sources.ClusterTrustBundle"), file);
            }
        }
    }

    pub(super) fn variables(&mut self, path: impl Display, container: &Value) {
        let mut seen = HashSet::new();
        for (index, variable) in list(container, "env").iter().enumerate() {
            let name = text(variable, "name");
            if seen.insert(name) {
                continue;
            }
            // One that builds on the one before is meant.
            let (own, value) = (format!("$({name})"), text(variable, "value"));
            if has(variable, "valueFrom") || value == own || !value.contains(&own) {
                let why =
                    format!("hides previous definition of {}, which may be dropped when using apply", quote(name));
                self.add(format_args!("{path}.env[{index}]"), why);
            }
        }
    }

    pub(super) fn ports(&mut self, path: &str, spec: &Value) {
        let mut seen: HashMap<(i64, &str), Vec<Claimed<'_>>> = HashMap::new();
        for (path, container) in containers(path, spec) {
            for (index, port) in list(container, "ports").iter().enumerate() {
                let number = |port: &Value, name: &str| port[name].as_i64().unwrap_or(0);
                let (host, address) = (number(port, "hostPort"), text(port, "hostIP"));
                let at = format_args!("{path}.ports[{index}]");
                if !address.is_empty() && host == 0 {
                    let why = format!(
                        "hostIP set without hostPort: {{Name:{} HostPort:0 ContainerPort:{} Protocol:{} HostIP:{address}}}",
                        text(port, "name"),
                        number(port, "containerPort"),
                        text(port, "protocol")
                    );
                    self.add(at, why);
                }
                let others = seen.entry((number(port, "containerPort"), text(port, "protocol"))).or_default();
                for (other, place, before) in others.iter() {
                    let (its, there) = (number(before, "hostPort"), text(before, "hostIP"));
                    let how = match () {
                        () if host == its && address == there => "duplicate",
                        () if host == 0 || its == 0 => "overlapping",
                        () if host == its && address.is_empty() != there.is_empty() => "dangerously ambiguous",
                        () => continue,
                    };
                    self.add(at, format_args!("{how} port definition with {other}.ports[{place}]"));
                }
                others.push((path, index, port));
            }
        }
    }
}

/// A port of a container: whose, at which index, and what it says.
type Claimed<'a> = (Place<'a>, usize, &'a Value);

/// Where a container lies in its object.
#[derive(Clone, Copy)]
struct Place<'a> {
    pod: &'a str,
    list: &'static str,
    index: usize,
}

impl Display for Place<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}spec.{}[{}]", self.pod, self.list, self.index)
    }
}

/// All containers of a pod, with their places.
fn containers<'a>(pod: &'a str, spec: &'a Value) -> impl Iterator<Item = (Place<'a>, &'a Value)> {
    let of =
        move |kind| list(spec, kind).iter().enumerate().map(move |(index, c)| (Place { pod, list: kind, index }, c));
    ["initContainers", "containers", "ephemeralContainers"].into_iter().flat_map(of)
}
