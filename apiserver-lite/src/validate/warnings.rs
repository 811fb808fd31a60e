//! What the server accepts but tells the client about: deprecated fields, and definitions that can hardly be meant.

use std::collections::{HashMap, HashSet};
use std::fmt::Display;

use base64::Engine as _;
use serde_json::Value;

use super::{amounts, has, ip, list, text, texts};
use crate::names;
use crate::resource::Resource;
use crate::status::quote;

/// Node labels that nothing should select by any more.
const OLD_LABELS: [(&str, &str); 8] = [
    ("beta.kubernetes.io/arch", "deprecated since v1.14; use \"kubernetes.io/arch\" instead"),
    ("beta.kubernetes.io/os", "deprecated since v1.14; use \"kubernetes.io/os\" instead"),
    (
        "failure-domain.beta.kubernetes.io/region",
        "deprecated since v1.17; use \"topology.kubernetes.io/region\" instead",
    ),
    ("failure-domain.beta.kubernetes.io/zone", "deprecated since v1.17; use \"topology.kubernetes.io/zone\" instead"),
    ("beta.kubernetes.io/instance-type", "deprecated since v1.17; use \"node.kubernetes.io/instance-type\" instead"),
    ("app.kubernetes.io/created-by", "deprecated since v1.9"),
    ("scheduler.alpha.kubernetes.io/preferAvoidPods", "deprecated since v1.22; use Taints and Tolerations instead"),
    ("node-role.kubernetes.io/master", "use \"node-role.kubernetes.io/control-plane\" instead"),
];

/// Annotations of pods that do nothing any more.
const OLD_ANNOTATIONS: [(&str, &str); 3] = [
    (
        "scheduler.alpha.kubernetes.io/critical-pod",
        "non-functional in v1.16+; use the \"priorityClassName\" field instead",
    ),
    ("security.alpha.kubernetes.io/sysctls", "non-functional in v1.11+; use the \"sysctls\" field instead"),
    ("security.alpha.kubernetes.io/unsafe-sysctls", "non-functional in v1.11+; use the \"sysctls\" field instead"),
];

/// Sources of volumes that are gone or going.
const OLD_VOLUMES: [(&str, &str); 9] = [
    ("photonPersistentDisk", "deprecated in v1.11, non-functional in v1.16+"),
    ("gitRepo", "deprecated in v1.11"),
    ("scaleIO", "deprecated in v1.16, non-functional in v1.22+"),
    ("flocker", "deprecated in v1.22, non-functional in v1.25+"),
    ("storageos", "deprecated in v1.22, non-functional in v1.25+"),
    ("quobyte", "deprecated in v1.22, non-functional in v1.25+"),
    ("glusterfs", "deprecated in v1.25, non-functional in v1.26+"),
    ("cephfs", "deprecated in v1.28, non-functional in v1.31+"),
    ("rbd", "deprecated in v1.28, non-functional in v1.31+"),
];

/// What to tell about a new object, or about one that replaces another.
pub fn warnings(resource: &Resource, object: &Value, old: Option<&Value>) -> Vec<String> {
    let mut found = Found::default();
    let name = text(&object["metadata"], "name");
    let created = old.is_none();
    let template = |found: &mut Found, path: &str, template: &Value| {
        // A template that did not change was warned of before.
        if old.is_none_or(|old| old["metadata"]["generation"] != object["metadata"]["generation"]) {
            found.pod(path, template, true);
        }
    };
    let spec = &object["spec"];
    match (&*resource.group, &*resource.plural) {
        ("", "pods") => {
            if created {
                found.name(name, "the Pod's hostname");
            }
            found.pod("", object, false);
        }
        ("", "podtemplates") => template(&mut found, "template.", &object["template"]),
        ("apps", "deployments" | "replicasets") | ("", "replicationcontrollers") | ("batch", "jobs") => {
            if created {
                found.name(name, "Pod names and hostnames");
            }
            if spec["completionMode"] == "Indexed"
                && spec["completions"].as_i64() > Some(100_000)
                && spec["parallelism"].as_i64() > Some(10_000)
            {
                let why = "In Indexed Jobs with a number of completions higher than 10^5 and a parallelism higher than 10^4, \
                           Kubernetes might not be able to track completedIndexes when a big number of indexes fail";
                found.add("spec.completions", why);
            }
            template(&mut found, "spec.template.", &spec["template"]);
        }
        ("apps", "daemonsets") => template(&mut found, "spec.template.", &spec["template"]),
        ("apps", "statefulsets") => {
            template(&mut found, "spec.template.", &spec["template"]);
            for (index, claim) in list(spec, "volumeClaimTemplates").iter().enumerate() {
                found.claim(&format!("spec.volumeClaimTemplates[{index}]"), &claim["spec"]);
            }
            if spec["revisionHistoryLimit"].as_i64() < Some(0) && has(spec, "revisionHistoryLimit") {
                let why = "a negative value retains all historical revisions; a value >= 0 is recommended";
                found.add("spec.revisionHistoryLimit", why);
            }
        }
        ("batch", "cronjobs") => {
            if created {
                found.name(name, "Pod names and hostnames");
            }
            if text(spec, "schedule").contains("TZ") {
                let why = "CRON_TZ or TZ used in schedule is not officially supported, see https://kubernetes.io/docs/concepts/\
                           workloads/controllers/cron-jobs/ for more details";
                found.add("spec.schedule", why);
            }
            template(&mut found, "spec.jobTemplate.spec.template.", &spec["jobTemplate"]["spec"]["template"]);
        }
        ("", "services") => found.service(object),
        ("", "secrets") if object["type"] == "kubernetes.io/tls" => {
            found.0.extend(key_pair(&object["data"]));
        }
        ("", "persistentvolumeclaims") => {
            found.class_annotation(object);
            found.claim("spec", spec);
        }
        ("", "persistentvolumes") => found.volume(object),
        ("", "nodes") => {
            if !text(spec, "externalID").is_empty() {
                found.add("spec.externalID", "this field is deprecated, and is unused by Kubernetes");
            }
            for (index, range) in texts(spec, "podCIDRs").into_iter().enumerate() {
                found.range(&format!("spec.podCIDRs[{index}]"), range);
            }
        }
        ("", "serviceaccounts") => {
            const KEY: &str = "kubernetes.io/enforce-mountable-secrets";
            let said = |object: &Value| has(&object["metadata"]["annotations"], KEY);
            if said(object) && !old.is_some_and(said) {
                let why = "deprecated in v1.32+; prefer separate namespaces to isolate access to mounted secrets";
                found.add(format!("metadata.annotations[{KEY}]"), why);
            }
        }
        ("networking.k8s.io", "ingresses") if created => {
            const KEY: &str = "kubernetes.io/ingress.class";
            if has(&object["metadata"]["annotations"], KEY) {
                found.0.push(format!("annotation \"{KEY}\" is deprecated, please use 'spec.ingressClassName' instead"));
            }
        }
        ("networking.k8s.io", "networkpolicies") => {
            for (rules, peers) in [("ingress", "from"), ("egress", "to")] {
                for (at, rule) in list(spec, rules).iter().enumerate() {
                    for (index, peer) in list(rule, peers).iter().enumerate() {
                        let path = format!("spec.{rules}[{at}].{peers}[{index}].ipBlock");
                        found.range(&format!("{path}.cidr"), text(&peer["ipBlock"], "cidr"));
                        for (index, range) in texts(&peer["ipBlock"], "except").into_iter().enumerate() {
                            found.range(&format!("{path}.except[{index}]"), range);
                        }
                    }
                }
            }
        }
        ("node.k8s.io", "runtimeclasses") => {
            for (key, _) in spec_map(&object["scheduling"], "nodeSelector") {
                if let Some(why) = old_label(key) {
                    found.add("scheduling.nodeSelector", why);
                }
            }
        }
        ("storage.k8s.io", "storageclasses") => {
            for (at, topology) in list(object, "allowedTopologies").iter().enumerate() {
                for (index, expression) in list(topology, "matchLabelExpressions").iter().enumerate() {
                    if let Some(why) = old_label(text(expression, "key")) {
                        found.add(format!("allowedTopologies[{at}].matchLabelExpressions[{index}].key"), why);
                    }
                }
            }
        }
        ("storage.k8s.io", "csistoragecapacities") => {
            found.expressions("nodeTopology", &object["nodeTopology"]);
            for (key, _) in spec_map(&object["nodeTopology"], "matchLabels") {
                if let Some(why) = old_label(key) {
                    found.add(format!("nodeTopology.matchLabels.{key}"), why);
                }
            }
        }
        _ => {}
    }
    found.0
}

fn old_label(key: &str) -> Option<&'static str> {
    OLD_LABELS.iter().find(|(old, _)| *old == key).map(|(_, why)| *why)
}

fn spec_map<'a>(object: &'a Value, name: &str) -> impl Iterator<Item = (&'a String, &'a Value)> {
    object.get(name).and_then(Value::as_object).into_iter().flatten()
}

/// The warnings so far.
#[derive(Default)]
struct Found(Vec<String>);

impl Found {
    fn add(&mut self, path: impl Display, why: impl Display) {
        self.0.push(format!("{path}: {why}"));
    }

    fn name(&mut self, name: &str, used: &str) {
        let complaints = names::dns_label(name);
        if !complaints.is_empty() {
            let why = format!(
                "this is used in {used}, which can result in surprising behavior; a DNS label is recommended: [{}]",
                complaints.join(" ")
            );
            self.add("metadata.name", why);
        }
    }

    /// An amount of bytes that is not a whole number.
    fn fraction(&mut self, path: &str, amounts: &Value, name: &str) {
        if let Some(amount) = amounts::quantity(&amounts[name]).filter(|q| !q.is_integer()) {
            let why = format!("fractional byte value {} is invalid, must be an integer", quote(&amount.to_string()));
            self.add(format_args!("{path}[{name}]"), why);
        }
    }

    fn fractions(&mut self, path: &str, amounts: &Value) {
        self.fraction(path, amounts, "memory");
        self.fraction(path, amounts, "ephemeral-storage");
    }

    fn claim(&mut self, path: &str, spec: &Value) {
        for part in ["requests", "limits"] {
            self.fraction(&format!("{path}.resources.{part}"), &spec["resources"][part], "storage");
        }
    }

    fn expressions(&mut self, path: &str, term: &Value) {
        for (index, expression) in list(term, "matchExpressions").iter().enumerate() {
            let key = text(expression, "key");
            if let Some(why) = old_label(key) {
                self.add(format_args!("{path}.matchExpressions[{index}].key"), format_args!("{key} is {why}"));
            }
        }
    }

    /// A pod or the template of one, whose fields are found below `path`.
    fn pod(&mut self, path: &str, pod: &Value, template: bool) {
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

    fn node_affinity(&mut self, path: &str, affinity: &Value) {
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

    fn no_selector(&mut self, path: &str, term: &Value) {
        if !has(term, "labelSelector") {
            self.add(format_args!("{path}.labelSelector"), "a null labelSelector results in matching no pod");
        }
    }

    fn repeated(&mut self, path: &str, items: &[Value], name: &str) {
        let mut seen = HashSet::new();
        for (index, item) in items.iter().enumerate() {
            let value = text(item, name);
            if !seen.insert(value) {
                self.add(format_args!("{path}[{index}].{name}"), format_args!("duplicate {name} {}", quote(value)));
            }
        }
    }

    fn volumes(&mut self, path: &str, spec: &Value) {
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

    fn variables(&mut self, path: &str, container: &Value) {
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

    fn ports(&mut self, path: &str, spec: &Value) {
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

    fn service(&mut self, object: &Value) {
        let (spec, annotations) = (&object["spec"], &object["metadata"]["annotations"]);
        const HINTS: &str = "service.kubernetes.io/topology-aware-hints";
        if has(annotations, HINTS) {
            let new = "service.kubernetes.io/topology-mode";
            self.0.push(format!("annotation {HINTS} is deprecated, please use {new} instead"));
        }
        let (kind, external) = (text(spec, "type"), texts(spec, "externalIPs"));
        let headless = kind == "ClusterIP" && spec["clusterIP"] == "None";
        if !matches!(text(spec, "clusterIP"), "" | "None") {
            for (index, address) in texts(spec, "clusterIPs").into_iter().enumerate() {
                self.address(&format!("spec.clusterIPs[{index}]"), address);
            }
        }
        if headless {
            let set = [
                ("loadBalancerIP", !text(spec, "loadBalancerIP").is_empty()),
                ("externalIPs", !external.is_empty()),
                ("SessionAffinity", spec["sessionAffinity"] != "None"),
            ];
            for (name, _) in set.into_iter().filter(|(_, set)| *set) {
                self.0.push(format!("spec.{name} is ignored for headless services"));
            }
        }
        for (index, address) in external.iter().enumerate() {
            self.address(&format!("spec.externalIPs[{index}]"), address);
        }
        if !external.is_empty() && !headless && kind != "ExternalName" {
            self.0.push("spec.externalIPs is deprecated and may no longer be implemented in some clusters".into());
        }
        self.address("spec.loadBalancerIP", text(spec, "loadBalancerIP"));
        for (index, range) in texts(spec, "loadBalancerSourceRanges").into_iter().enumerate() {
            self.range(&format!("spec.loadBalancerSourceRanges[{index}]"), range);
        }
        if kind == "ExternalName" && !external.is_empty() {
            self.0.push("spec.externalIPs is ignored when spec.type is \"ExternalName\"".into());
        }
        if kind != "ExternalName" && !text(spec, "externalName").is_empty() {
            self.0.push("spec.externalName is ignored when spec.type is not \"ExternalName\"".into());
        }
        if spec["trafficDistribution"] == "PreferClose" {
            self.add("spec.trafficDistribution", "\"PreferClose\" is deprecated; use \"PreferSameZone\"");
        }
    }

    fn class_annotation(&mut self, object: &Value) {
        const KEY: &str = "volume.beta.kubernetes.io/storage-class";
        if has(&object["metadata"]["annotations"], KEY) {
            let why = "deprecated since v1.8; use \"storageClassName\" attribute instead";
            self.add(format_args!("metadata.annotations[{KEY}]"), why);
        }
    }

    fn volume(&mut self, object: &Value) {
        let spec = &object["spec"];
        let terms = &spec["nodeAffinity"]["required"];
        for (index, term) in list(terms, "nodeSelectorTerms").iter().enumerate() {
            self.expressions(&format!("spec.nodeAffinity.required.nodeSelectorTerms[{index}]"), term);
        }
        self.class_annotation(object);
        const OPTIONS: &str = "volume.beta.kubernetes.io/mount-options";
        if has(&object["metadata"]["annotations"], OPTIONS) {
            let why = "deprecated since v1.31; use \"mountOptions\" attribute instead";
            self.add(format_args!("metadata.annotations[{OPTIONS}]"), why);
        }
        if spec["persistentVolumeReclaimPolicy"] == "Recycle" {
            let why = "The Recycle reclaim policy is deprecated. Instead, the recommended approach is to use dynamic \
                       provisioning.";
            self.add("spec.persistentVolumeReclaimPolicy", why);
        }
        for (source, why) in OLD_VOLUMES {
            if has(spec, source) {
                let shown = if source == "storageos" { "storageOS" } else { source };
                self.add(format_args!("spec.{shown}"), why);
            }
        }
        self.fraction("spec.capacity", &spec["capacity"], "storage");
    }

    /// An address that is not written as everybody would.
    fn address(&mut self, path: &str, address: &str) {
        let Some(plain) = ip::parse(address) else { return };
        let text = plain.to_canonical().to_string();
        match address.parse::<std::net::IpAddr>() {
            Ok(std::net::IpAddr::V6(strict)) if strict.to_ipv4_mapped().is_none() => {
                if text != address {
                    let (address, text) = (quote(address), quote(&text));
                    let why = format!("IPv6 address {address} should be in RFC 5952 canonical format ({text})");
                    self.add(path, why);
                }
            }
            Ok(std::net::IpAddr::V4(_)) => {}
            _ => self.nonstandard(path, "IP address", address, &text),
        }
    }

    fn nonstandard(&mut self, path: &str, what: &str, value: &str, text: &str) {
        let why = format!(
            "non-standard {what} {} will be considered invalid in a future Kubernetes release: use {}",
            quote(value),
            quote(text)
        );
        self.add(path, why);
    }

    /// A range that is not written as everybody would, or that has more bits than it uses.
    fn range(&mut self, path: &str, range: &str) {
        let Some((address, bits)) = range.split_once('/') else { return };
        let Some((written, length)) = ip::parse_range(range) else { return };
        let plain = written.to_canonical();
        let mapped = plain != written;
        let length = if mapped { length.saturating_sub(96) } else { length };
        let most = if plain.is_ipv4() { 32 } else { 128 };
        let masked = ip::masked(plain, length);
        let strict = address.parse::<std::net::IpAddr>().is_ok() && (bits == "0" || !bits.starts_with('0'));
        if mapped || !strict {
            self.nonstandard(path, "CIDR value", range, &format!("{masked}/{length}"));
        } else if masked != plain {
            let why = format!(
                "CIDR value {} is ambiguous in this context (should be \"{masked}/{length}\" or \"{plain}/{most}\"?)",
                quote(range)
            );
            self.add(path, why);
        } else if !plain.is_ipv4() && format!("{plain}/{length}") != range {
            let why = format!(
                "IPv6 CIDR value {} should be in RFC 5952 canonical format (\"{plain}/{length}\")",
                quote(range)
            );
            self.add(path, why);
        }
    }
}

/// All containers of a pod, with their paths.
fn containers<'a>(path: &str, spec: &'a Value) -> Vec<(String, &'a Value)> {
    let kinds = ["initContainers", "containers", "ephemeralContainers"];
    let of = |kind| list(spec, kind).iter().enumerate().map(move |(i, c)| (format!("{path}spec.{kind}[{i}]"), c));
    kinds.into_iter().flat_map(of).collect()
}

/// What keeps a secret from being a certificate and its key.
fn key_pair(data: &Value) -> Option<String> {
    let types = |name: &str| -> Vec<String> {
        let bytes = base64::engine::general_purpose::STANDARD.decode(text(data, name)).unwrap_or_default();
        pem_types(&String::from_utf8_lossy(&bytes))
    };
    let skipped = |kinds: &[String]| format!("after skipping PEM blocks of the following types: [{}]", kinds.join(" "));
    let (certificate, key) = (types("tls.crt"), types("tls.key"));
    let is_key = |kind: &String| kind == "PRIVATE KEY" || kind.ends_with(" PRIVATE KEY");
    if !certificate.iter().any(|kind| kind == "CERTIFICATE") {
        return Some(match certificate.as_slice() {
            [] => "tls: failed to find any PEM data in certificate input".into(),
            [one] if one.ends_with("PRIVATE KEY") => {
                "tls: failed to find certificate PEM data in certificate input, but \
                                                      did find a private key; PEM inputs may have been switched"
                    .into()
            }
            kinds => format!("tls: failed to find \"CERTIFICATE\" PEM block in certificate input {}", skipped(kinds)),
        });
    }
    if !key.iter().any(is_key) {
        return Some(match key.as_slice() {
            [] => "tls: failed to find any PEM data in key input".into(),
            [one] if one == "CERTIFICATE" => {
                "tls: found a certificate rather than a key in the PEM for the private key".into()
            }
            kinds => format!(
                "tls: failed to find PEM block with type ending in \"PRIVATE KEY\" in key input {}",
                skipped(kinds)
            ),
        });
    }
    None
}

/// The types of the blocks in a text of PEM.
fn pem_types(text: &str) -> Vec<String> {
    let mut kinds = Vec::new();
    let mut rest = text;
    while let Some((_, after)) = rest.split_once("-----BEGIN ") {
        let Some((kind, body)) = after.split_once("-----") else { break };
        match body.split_once(&format!("-----END {kind}-----")) {
            Some((_, following)) => {
                kinds.push(kind.to_owned());
                rest = following;
            }
            None => rest = body,
        }
    }
    kinds
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn of_pod(spec: Value) -> Vec<String> {
        let mut found = Found::default();
        found.pod("", &json!({"spec": spec}), false);
        found.0
    }

    #[test]
    fn a_variable_that_hides_another_is_told() {
        let env = json!([{"name": "A", "value": "1"}, {"name": "A", "value": "$(A)2"}, {"name": "A", "value": "3"}]);
        let hidden =
            "spec.containers[0].env[2]: hides previous definition of \"A\", which may be dropped when using apply";
        assert_eq!(of_pod(json!({"containers": [{"name": "c", "env": env}]})), [hidden]);
    }

    #[test]
    fn ports_of_all_containers_are_compared() {
        let port = json!({"containerPort": 80, "protocol": "TCP"});
        let spec = json!({"initContainers": [{"ports": [port]}], "containers": [{"ports": [port,
            {"containerPort": 80, "protocol": "TCP", "hostPort": 8}]}]});
        assert_eq!(
            of_pod(spec),
            [
                "spec.containers[0].ports[0]: duplicate port definition with spec.initContainers[0].ports[0]",
                "spec.containers[0].ports[1]: overlapping port definition with spec.initContainers[0].ports[0]",
                "spec.containers[0].ports[1]: overlapping port definition with spec.containers[0].ports[0]",
            ]
        );
    }

    #[test]
    fn addresses_have_one_right_form() {
        let mut found = Found::default();
        for address in ["10.0.0.1", "010.0.0.1", "::ffff:1.2.3.4", "fd00::1", "FD00::1"] {
            found.address("ip", address);
        }
        for range in ["10.0.0.0/8", "10.0.0.1/8", "10.0.0.0/08", "fd00:0::/64"] {
            found.range("range", range);
        }
        assert_eq!(
            found.0,
            [
                "ip: non-standard IP address \"010.0.0.1\" will be considered invalid in a future Kubernetes release: \
                 use \"10.0.0.1\"",
                "ip: non-standard IP address \"::ffff:1.2.3.4\" will be considered invalid in a future Kubernetes \
                 release: use \"1.2.3.4\"",
                "ip: IPv6 address \"FD00::1\" should be in RFC 5952 canonical format (\"fd00::1\")",
                "range: CIDR value \"10.0.0.1/8\" is ambiguous in this context (should be \"10.0.0.0/8\" or \
                 \"10.0.0.1/32\"?)",
                "range: non-standard CIDR value \"10.0.0.0/08\" will be considered invalid in a future Kubernetes \
                 release: use \"10.0.0.0/8\"",
                "range: IPv6 CIDR value \"fd00:0::/64\" should be in RFC 5952 canonical format (\"fd00::/64\")",
            ]
        );
    }

    #[test]
    fn a_key_pair_needs_both_blocks() {
        let pack = |text: &str| base64::engine::general_purpose::STANDARD.encode(text);
        let certificate = pack("-----BEGIN CERTIFICATE-----\nAA==\n-----END CERTIFICATE-----\n");
        let key = pack("-----BEGIN EC PRIVATE KEY-----\nAA==\n-----END EC PRIVATE KEY-----\n");
        assert_eq!(key_pair(&json!({"tls.crt": certificate, "tls.key": key})), None);
        let none = key_pair(&json!({"tls.crt": "", "tls.key": key}));
        assert_eq!(none.as_deref(), Some("tls: failed to find any PEM data in certificate input"));
        let none = key_pair(&json!({"tls.crt": certificate, "tls.key": certificate}));
        assert_eq!(none.as_deref(), Some("tls: found a certificate rather than a key in the PEM for the private key"));
    }
}
