//! Warnings about pods and their templates.

use std::collections::{HashMap, HashSet};

use serde_json::Value;

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
        self.node_affinity(&format!("{path}spec.affinity.nodeAffinity"), &spec["affinity"]["nodeAffinity"]);
        for (index, constraint) in list(spec, "topologySpreadConstraints").iter().enumerate() {
            let path = format!("{path}spec.topologySpreadConstraints[{index}]");
            let key = text(constraint, "topologyKey");
            if let Some(why) = old_label(key) {
                self.add(format_args!("{path}.topologyKey"), format_args!("{key} is {why}"));
            }
            self.no_selector(&path, constraint);
        }
        for (key, why) in OLD_ANNOTATIONS {
            if has(annotations, key) {
                self.add(format_args!("{path}metadata.annotations[{key}]"), why);
            }
        }
        self.volumes(&format!("{path}spec.volumes"), spec);
        self.repeated(&format!("{path}spec.hostAliases"), list(spec, "hostAliases"), "ip");
        self.repeated(&format!("{path}spec.imagePullSecrets"), list(spec, "imagePullSecrets"), "name");
        for (index, secret) in list(spec, "imagePullSecrets").iter().enumerate() {
            if text(secret, "name").is_empty() {
                self.add(format_args!("{path}spec.imagePullSecrets[{index}].name"), "invalid empty name \"\"");
            }
        }
        self.fractions(&format!("{path}spec.overhead"), &spec["overhead"]);
        let annotated = |found: &mut Found, key: &str, why: &str| {
            if has(annotations, key) {
                found.add(format_args!("{path}metadata.annotations[{key}]"), why);
            }
        };
        let seccomp = "non-functional in v1.27+; use the \"seccompProfile\" field instead";
        if !has(&spec["securityContext"], "seccompProfile") {
            annotated(self, "seccomp.security.alpha.kubernetes.io/pod", seccomp);
        }
        for (at, container) in containers(path, spec) {
            let (name, context) = (text(container, "name"), &container["securityContext"]);
            if !has(context, "seccompProfile") {
                annotated(self, &format!("container.seccomp.security.alpha.kubernetes.io/{name}"), seccomp);
            }
            if template && !has(&spec["securityContext"], "appArmorProfile") && !has(context, "appArmorProfile") {
                let why = "deprecated since v1.30; use the \"appArmorProfile\" field instead";
                annotated(self, &format!("container.apparmor.security.beta.kubernetes.io/{name}"), why);
            }
            for name in ["memory", "ephemeral-storage"] {
                for part in ["limits", "requests"] {
                    self.fraction(&format!("{at}.resources.{part}"), &container["resources"][part], name);
                }
            }
            self.variables(&at, container);
        }
        self.ports(path, spec);
        if spec["terminationGracePeriodSeconds"].as_i64().is_some_and(|seconds| seconds < 0) {
            let why = "must be >= 0; negative values are invalid and will be treated as 1";
            self.add(format_args!("{path}spec.terminationGracePeriodSeconds"), why);
        }
        for kind in ["podAffinity", "podAntiAffinity"] {
            let (path, affinity) = (format!("{path}spec.affinity.{kind}"), &spec["affinity"][kind]);
            const TERMS: [&str; 2] =
                ["requiredDuringSchedulingIgnoredDuringExecution", "preferredDuringSchedulingIgnoredDuringExecution"];
            for (index, term) in list(affinity, TERMS[0]).iter().enumerate() {
                self.no_selector(&format!("{path}.{}[{index}]", TERMS[0]), term);
            }
            for (index, term) in list(affinity, TERMS[1]).iter().enumerate() {
                self.no_selector(&format!("{path}.{}[{index}].podAffinityTerm", TERMS[1]), &term["podAffinityTerm"]);
            }
        }
    }

    pub(super) fn node_affinity(&mut self, path: &str, affinity: &Value) {
        let required = &affinity["requiredDuringSchedulingIgnoredDuringExecution"];
        for (index, term) in list(required, "nodeSelectorTerms").iter().enumerate() {
            let path = format!("{path}.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms[{index}]");
            self.expressions(&path, term);
        }
        for (index, term) in list(affinity, "preferredDuringSchedulingIgnoredDuringExecution").iter().enumerate() {
            let path = format!("{path}.preferredDuringSchedulingIgnoredDuringExecution[{index}].preference");
            self.expressions(&path, &term["preference"]);
            for (at, expression) in list(&term["preference"], "matchExpressions").iter().enumerate() {
                for (index, value) in texts(expression, "values").into_iter().enumerate() {
                    for why in names::label_value(value) {
                        let path = format!("{path}.matchExpressions[{at}].values[{index}]");
                        self.add(path, format_args!("{value} is invalid, {why}"));
                    }
                }
            }
        }
    }

    pub(super) fn no_selector(&mut self, path: &str, term: &Value) {
        if !has(term, "labelSelector") {
            self.add(format_args!("{path}.labelSelector"), "a null labelSelector results in matching no pod");
        }
    }

    pub(super) fn repeated(&mut self, path: &str, items: &[Value], name: &str) {
        let mut seen = HashSet::new();
        for (index, item) in items.iter().enumerate() {
            let value = text(item, name);
            if !seen.insert(value) {
                self.add(format_args!("{path}[{index}].{name}"), format_args!("duplicate {name} {}", quote(value)));
            }
        }
    }

    pub(super) fn volumes(&mut self, path: &str, spec: &Value) {
        let volumes = || list(spec, "volumes").iter().enumerate();
        for (index, volume) in volumes() {
            for (source, why) in OLD_VOLUMES {
                if has(volume, source) {
                    let shown = if source == "storageos" { "storageOS" } else { source };
                    self.add(format_args!("{path}[{index}].{shown}"), why);
                }
            }
            let claim = &volume["ephemeral"]["volumeClaimTemplate"]["spec"];
            self.claim(&format!("{path}[{index}].ephemeral.volumeClaimTemplate.spec"), claim);
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

    pub(super) fn variables(&mut self, path: &str, container: &Value) {
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
        let mut seen: HashMap<(i64, &str), Vec<(String, &Value)>> = HashMap::new();
        for (path, container) in containers(path, spec) {
            for (index, port) in list(container, "ports").iter().enumerate() {
                let number = |port: &Value, name: &str| port[name].as_i64().unwrap_or(0);
                let (at, host, address) =
                    (format!("{path}.ports[{index}]"), number(port, "hostPort"), text(port, "hostIP"));
                if !address.is_empty() && host == 0 {
                    let why = format!(
                        "hostIP set without hostPort: {{Name:{} HostPort:0 ContainerPort:{} Protocol:{} HostIP:{address}}}",
                        text(port, "name"),
                        number(port, "containerPort"),
                        text(port, "protocol")
                    );
                    self.add(&at, why);
                }
                let others = seen.entry((number(port, "containerPort"), text(port, "protocol"))).or_default();
                for (other, before) in others.iter() {
                    let (its, there) = (number(before, "hostPort"), text(before, "hostIP"));
                    let how = match () {
                        () if host == its && address == there => "duplicate",
                        () if host == 0 || its == 0 => "overlapping",
                        () if host == its && address.is_empty() != there.is_empty() => "dangerously ambiguous",
                        () => continue,
                    };
                    self.add(&at, format_args!("{how} port definition with {other}"));
                }
                others.push((at, port));
            }
        }
    }
}

/// All containers of a pod, with their paths.
fn containers<'a>(path: &str, spec: &'a Value) -> Vec<(String, &'a Value)> {
    let kinds = ["initContainers", "containers", "ephemeralContainers"];
    let of = |kind| list(spec, kind).iter().enumerate().map(move |(i, c)| (format!("{path}spec.{kind}[{i}]"), c));
    kinds.into_iter().flat_map(of).collect()
}
