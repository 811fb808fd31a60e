//! What the server accepts but tells the client about: deprecated fields, and definitions that can hardly be meant.

mod network;
mod pem;
mod pod;
mod storage;

use std::fmt::Display;

use serde_json::{Name, Value};

use super::{amounts, has, list, text, texts};
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
        // Little of a pod may change, and it is written often.
        ("", "pods") if created => {
            found.name(name, "the Pod's hostname");
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
                found.claim(format_args!("spec.volumeClaimTemplates[{index}]"), &claim["spec"]);
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
        ("", "endpoints") => found.endpoints(object),
        ("discovery.k8s.io", "endpointslices") => found.endpoint_slice(object, created),
        ("", "secrets") if object["type"] == "kubernetes.io/tls" => {
            found.0.extend(pem::key_pair(&object["data"]));
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

/// What to tell about a new status.
pub fn of_status(resource: &Resource, object: &Value) -> Vec<String> {
    let (mut found, status) = (Found::default(), &object["status"]);
    let lists: &[(&str, &Value, &str)] = match (&*resource.group, &*resource.plural) {
        ("", "pods") => &[("status.podIPs", &status["podIPs"], ".ip"), ("status.hostIPs", &status["hostIPs"], ".ip")],
        ("", "services") => &[("status.loadBalancer.ingress", &status["loadBalancer"]["ingress"], "")],
        _ => &[],
    };
    for (path, list, end) in lists {
        for (index, item) in list.as_array().into_iter().flatten().enumerate() {
            found.address(&format!("{path}[{index}]{end}"), text(item, "ip"));
        }
    }
    found.0
}

fn old_label(key: &str) -> Option<&'static str> {
    OLD_LABELS.iter().find(|(old, _)| *old == key).map(|(_, why)| *why)
}

fn spec_map<'a>(object: &'a Value, name: &str) -> impl Iterator<Item = (&'a Name, &'a Value)> {
    object.get(name).and_then(Value::as_object).into_iter().flatten()
}

/// The warnings so far. Nearly all objects have none, so a path is put together only for one that is told.
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
    fn fraction(&mut self, path: impl Display, amounts: &Value, name: &str) {
        if let Some(amount) = amounts::quantity(&amounts[name]).filter(|q| !q.is_integer()) {
            let why = format!("fractional byte value {} is invalid, must be an integer", quote(&amount.to_string()));
            self.add(format_args!("{path}[{name}]"), why);
        }
    }

    fn fractions(&mut self, path: impl Display, amounts: &Value) {
        self.fraction(&path, amounts, "memory");
        self.fraction(path, amounts, "ephemeral-storage");
    }

    fn claim(&mut self, path: impl Display, spec: &Value) {
        for part in ["requests", "limits"] {
            self.fraction(format_args!("{path}.resources.{part}"), &spec["resources"][part], "storage");
        }
    }

    fn expressions(&mut self, path: impl Display, term: &Value) {
        for (index, expression) in list(term, "matchExpressions").iter().enumerate() {
            let key = text(expression, "key");
            if let Some(why) = old_label(key) {
                self.add(format_args!("{path}.matchExpressions[{index}].key"), format_args!("{key} is {why}"));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use base64::Engine as _;
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
    fn addresses_of_endpoints_are_looked_at_unless_a_controller_wrote_them() {
        let told = |label: &str, by: &str| {
            let mut found = Found::default();
            let labels = json!({ label: by });
            let endpoints = json!([{"addresses": ["10.0.0.1", "FD00::1"]}]);
            let metadata = json!({ "labels": labels });
            found.endpoint_slice(&json!({"metadata": metadata, "addressType": "FQDN", "endpoints": endpoints}), true);
            let subsets = json!([{"addresses": [{"ip": "FD00::1"}], "notReadyAddresses": [{"ip": "FD00::2"}]}]);
            found.endpoints(&json!({"metadata": metadata, "subsets": subsets}));
            found.0.iter().map(|told| told.split(": ").next().unwrap_or_default().to_owned()).collect::<Vec<_>>()
        };
        let slice = "endpoints[0].addresses[1]";
        let old = ["subsets[0].addresses[0].ip", "subsets[0].notReadyAddresses[0].ip"];
        let slices = "endpointslice.kubernetes.io/managed-by";
        assert_eq!(told(slices, "me"), ["spec.addressType", slice, old[0], old[1]]);
        assert_eq!(told(slices, "endpointslice-controller.k8s.io"), ["spec.addressType", old[0], old[1]]);
        assert_eq!(told("endpoints.kubernetes.io/managed-by", "endpoint-controller"), ["spec.addressType", slice]);
    }

    #[test]
    fn a_key_pair_needs_both_blocks() {
        let pack = |text: &str| base64::engine::general_purpose::STANDARD.encode(text);
        let certificate = pack("-----BEGIN CERTIFICATE-----\nAA==\n-----END CERTIFICATE-----\n");
        let key = pack("-----BEGIN EC PRIVATE KEY-----\nAA==\n-----END EC PRIVATE KEY-----\n");
        assert_eq!(pem::key_pair(&json!({"tls.crt": certificate, "tls.key": key})), None);
        let none = pem::key_pair(&json!({"tls.crt": "", "tls.key": key}));
        assert_eq!(none.as_deref(), Some("tls: failed to find any PEM data in certificate input"));
        let none = pem::key_pair(&json!({"tls.crt": certificate, "tls.key": certificate}));
        assert_eq!(none.as_deref(), Some("tls: found a certificate rather than a key in the PEM for the private key"));
    }
}
