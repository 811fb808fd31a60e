//! What the scheduler reads from a pod, once.

use serde_json::Value;

use super::resources::{Resources, pod_requests};
use crate::selectors::{LabelSelector, Labels, NodeTerm, Requirement, label, node_terms};
use crate::store::ObjectRef;

/// A pod as the scheduler sees it.
#[derive(Debug)]
pub struct PodInfo {
    pub object: ObjectRef,
    pub generation: i64,
    pub priority: i64,
    pub requests: Resources,
    /// Requests for scores: containers without any count a little.
    pub assumed: Resources,
    pub ports: Box<[HostPort]>,
    pub node_name: Box<str>,
    pub tolerations: Box<[Toleration]>,
    /// `nodeSelector` and required node affinity.
    pub node_selector: Box<[(Box<str>, Box<str>)]>,
    pub required_nodes: Option<Box<[NodeTerm]>>,
    pub preferred_nodes: Box<[(i64, NodeTerm)]>,
    pub affinity: Box<[PodTerm]>,
    pub anti_affinity: Box<[PodTerm]>,
    /// Negative weights for anti-affinity.
    pub preferred_pods: Box<[(i64, PodTerm)]>,
    pub spread: Box<[Spread]>,
    pub images: Box<[Box<str>]>,
    pub claims: Box<[Box<str>]>,
    /// There are resource claims; and how many of them the status names.
    pub wants_devices: bool,
    pub told_claims: usize,
    pub gated: bool,
    pub never_preempts: bool,
    /// In seconds since 1970.
    pub start_time: i64,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct HostPort {
    pub port: i64,
    pub protocol: Box<str>,
    /// `0.0.0.0` for all addresses.
    pub ip: Box<str>,
}

impl HostPort {
    pub fn conflicts(&self, other: &HostPort) -> bool {
        const ALL: &str = "0.0.0.0";
        self.port == other.port
            && self.protocol == other.protocol
            && (self.ip == other.ip || *self.ip == *ALL || *other.ip == *ALL)
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Taint {
    pub key: Box<str>,
    pub value: Box<str>,
    pub effect: Box<str>,
}

impl Taint {
    pub fn parse(value: &Value) -> Self {
        let text = |key: &str| value[key].as_str().unwrap_or_default().into();
        Taint { key: text("key"), value: text("value"), effect: text("effect") }
    }

    /// Keeps pods off the node.
    pub fn is_hard(&self) -> bool {
        matches!(&*self.effect, "NoSchedule" | "NoExecute")
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Toleration {
    key: Box<str>,
    exists: bool,
    comparison: Option<std::cmp::Ordering>,
    value: Box<str>,
    effect: Box<str>,
    /// How long a NoExecute taint is borne; none for ever.
    pub seconds: Option<i64>,
}

impl Toleration {
    pub fn parse(value: &Value) -> Self {
        let text = |key: &str| value[key].as_str().unwrap_or_default().into();
        Toleration {
            key: text("key"),
            exists: value["operator"] == "Exists",
            comparison: match value["operator"].as_str() {
                Some("Gt") => Some(std::cmp::Ordering::Greater),
                Some("Lt") => Some(std::cmp::Ordering::Less),
                _ => None,
            },
            value: text("value"),
            effect: text("effect"),
            seconds: value["tolerationSeconds"].as_i64(),
        }
    }

    pub fn tolerates(&self, taint: &Taint) -> bool {
        let value_fits = match self.comparison {
            Some(wanted) => match (taint.value.parse::<i64>(), self.value.parse::<i64>()) {
                (Ok(have), Ok(bound)) => have.cmp(&bound) == wanted,
                _ => false,
            },
            None => self.exists || self.value == taint.value,
        };
        (self.effect.is_empty() || self.effect == taint.effect)
            && (self.key.is_empty() && self.exists || self.key == taint.key)
            && value_fits
    }
}

/// Tolerations of a pod spec.
pub fn tolerations(spec: &Value) -> Box<[Toleration]> {
    spec["tolerations"].as_array().into_iter().flatten().map(Toleration::parse).collect()
}

/// Whether a node has what a pod spec's node selector and required node affinity ask for.
pub fn fits_node(spec: &Value, node: &ObjectRef) -> bool {
    let labels = &node.keys.labels;
    let mut selector = spec["nodeSelector"].as_object().into_iter().flatten();
    let required = &spec["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"];
    selector.all(|(key, value)| label(labels, key) == value.as_str())
        && (!required.is_object() || node_terms(required).iter().any(|t| t.matches(labels, &node.key.name)))
}

/// A term of pod affinity: other pods, and the label of nodes that makes two nodes one place.
#[derive(Debug)]
pub struct PodTerm {
    pub selector: LabelSelector,
    pub namespaces: Box<[Box<str>]>,
    pub namespace_selector: LabelSelector,
    pub topology_key: Box<str>,
}

impl PodTerm {
    fn parse(term: &Value, pod: &ObjectRef) -> Self {
        let selector = keyed_selector(term, &pod.keys.labels);
        let listed = term["namespaces"].as_array().into_iter().flatten();
        let mut namespaces: Vec<Box<str>> = listed.filter_map(Value::as_str).map(Into::into).collect();
        // Without any namespaces, those of its own are meant.
        if namespaces.is_empty() && !term["namespaceSelector"].is_object() {
            namespaces.push(pod.key.namespace.clone());
        }
        PodTerm {
            selector,
            namespaces: namespaces.into(),
            namespace_selector: LabelSelector::parse(&term["namespaceSelector"]),
            topology_key: term["topologyKey"].as_str().unwrap_or_default().into(),
        }
    }

    /// Whether another pod is one that the term speaks of; `namespace_labels` are those of its namespace.
    pub fn matches(&self, pod: &ObjectRef, namespace_labels: impl FnOnce() -> Option<ObjectRef>) -> bool {
        if !self.selector.matches(&pod.keys.labels) {
            return false;
        }
        if self.namespaces.contains(&pod.key.namespace) {
            return true;
        }
        !self.namespace_selector.selects_nothing()
            && namespace_labels().is_some_and(|n| self.namespace_selector.matches(&n.keys.labels))
    }
}

/// The selector of a term or a constraint. Keys of labels become requirements of it when a pod is made, and its labels may
/// be others by now; only in pods of an earlier version are the keys alone.
fn keyed_selector(term: &Value, labels: &Labels) -> LabelSelector {
    let own = &term["labelSelector"];
    let expressions = own["matchExpressions"].as_array().map(Vec::as_slice).unwrap_or_default();
    let asked = |key: &str, operator: &str| expressions.iter().any(|e| e["key"] == key && e["operator"] == operator);
    let keys = |name: &str| term[name].as_array().into_iter().flatten().filter_map(Value::as_str);
    let same = keys("matchLabelKeys").filter(|key| !asked(key, "In"));
    let other = keys("mismatchLabelKeys").filter(|key| !asked(key, "NotIn"));
    let same = same.filter_map(|key| Some(Requirement::equals(key, label(labels, key)?)));
    let other = other.filter_map(|key| Some(Requirement::excludes(key, label(labels, key)?)));
    let mut selector = LabelSelector::parse(own);
    selector.and(same.chain(other).collect());
    selector
}

/// A topology spread constraint.
#[derive(Debug)]
pub struct Spread {
    pub max_skew: i64,
    pub topology_key: Box<str>,
    pub selector: LabelSelector,
    pub required: bool,
    pub min_domains: i64,
    pub honor_affinity: bool,
    pub honor_taints: bool,
}

impl Spread {
    fn parse(value: &Value, labels: &Labels) -> Self {
        let selector = keyed_selector(value, labels);
        Spread {
            max_skew: value["maxSkew"].as_i64().unwrap_or(1),
            topology_key: value["topologyKey"].as_str().unwrap_or_default().into(),
            selector,
            required: value["whenUnsatisfiable"] != "ScheduleAnyway",
            min_domains: value["minDomains"].as_i64().unwrap_or(1),
            honor_affinity: value["nodeAffinityPolicy"] != "Ignore",
            honor_taints: value["nodeTaintsPolicy"] == "Honor",
        }
    }
}

impl PodInfo {
    pub fn read(object: &ObjectRef) -> Self {
        let value = object.without_owners();
        let spec = &value["spec"];
        let node_affinity = &spec["affinity"]["nodeAffinity"];
        let required = &node_affinity["requiredDuringSchedulingIgnoredDuringExecution"];
        let (pods, anti) = (&spec["affinity"]["podAffinity"], &spec["affinity"]["podAntiAffinity"]);
        let terms = |list: &Value| {
            let list = list["requiredDuringSchedulingIgnoredDuringExecution"].as_array().into_iter().flatten();
            list.map(|t| PodTerm::parse(t, object)).collect()
        };
        let weighted = |list: &Value, sign: i64| -> Vec<(i64, PodTerm)> {
            let list = list["preferredDuringSchedulingIgnoredDuringExecution"].as_array().into_iter().flatten();
            let weight = |t: &Value| sign * t["weight"].as_i64().unwrap_or(0);
            list.map(|t| (weight(t), PodTerm::parse(&t["podAffinityTerm"], object))).collect()
        };
        let mut preferred_pods = weighted(pods, 1);
        preferred_pods.extend(weighted(anti, -1));
        let preferred_nodes = node_affinity["preferredDuringSchedulingIgnoredDuringExecution"].as_array();
        let containers = || spec["containers"].as_array().into_iter().flatten();
        let selector = spec["nodeSelector"].as_object().into_iter().flatten();
        let start = value["status"]["startTime"].as_str().and_then(|t| proto::time::parse_rfc3339(t).ok());
        PodInfo {
            generation: value["metadata"]["generation"].as_i64().unwrap_or(0),
            priority: spec["priority"].as_i64().unwrap_or(0),
            requests: pod_requests(&value, false),
            assumed: pod_requests(&value, true),
            ports: host_ports(spec).into(),
            node_name: spec["nodeName"].as_str().unwrap_or_default().into(),
            tolerations: tolerations(spec),
            node_selector: selector.filter_map(|(k, v)| Some((k.as_str().into(), v.as_str()?.into()))).collect(),
            required_nodes: required.is_object().then(|| node_terms(required)),
            preferred_nodes: preferred_nodes
                .into_iter()
                .flatten()
                .map(|p| (p["weight"].as_i64().unwrap_or(0), NodeTerm::parse(&p["preference"])))
                .collect(),
            affinity: terms(pods),
            anti_affinity: terms(anti),
            preferred_pods: preferred_pods.into(),
            spread: spec["topologySpreadConstraints"]
                .as_array()
                .into_iter()
                .flatten()
                .map(|s| Spread::parse(s, &object.keys.labels))
                .collect(),
            images: containers().filter_map(|c| c["image"].as_str()).map(Into::into).collect(),
            claims: claims(&value).into(),
            wants_devices: value["spec"]["resourceClaims"].as_array().is_some_and(|c| !c.is_empty()),
            told_claims: value["status"]["resourceClaimStatuses"].as_array().map_or(0, Vec::len),
            gated: spec["schedulingGates"].as_array().is_some_and(|g| !g.is_empty()),
            never_preempts: spec["preemptionPolicy"] == "Never",
            start_time: start.map_or(0, |t| t.seconds),
            object: object.clone(),
        }
    }

    pub fn tolerates(&self, taint: &Taint) -> bool {
        self.tolerations.iter().any(|t| t.tolerates(taint))
    }
}

/// Ports that containers take on the node.
fn host_ports(spec: &Value) -> Vec<HostPort> {
    let sidecars = spec["initContainers"].as_array().into_iter().flatten().filter(|c| c["restartPolicy"] == "Always");
    let containers = spec["containers"].as_array().into_iter().flatten().chain(sidecars);
    let ports = containers.flat_map(|c| c["ports"].as_array().into_iter().flatten());
    let taken = ports.filter_map(|p| {
        let port = p["hostPort"].as_i64().filter(|p| *p > 0)?;
        let ip = p["hostIP"].as_str().filter(|ip| !ip.is_empty() && *ip != "::").unwrap_or("0.0.0.0");
        Some(HostPort { port, protocol: p["protocol"].as_str().unwrap_or("TCP").into(), ip: ip.into() })
    });
    taken.collect()
}

/// Names of the claims that a pod's volumes use.
fn claims(pod: &Value) -> Vec<Box<str>> {
    let name = pod["metadata"]["name"].as_str().unwrap_or_default();
    let volumes = pod["spec"]["volumes"].as_array().into_iter().flatten();
    let claims = volumes.filter_map(|v| {
        let claim = v["persistentVolumeClaim"]["claimName"].as_str().map(Into::into);
        // An ephemeral volume's claim is named after pod and volume.
        let own = || v["ephemeral"].is_object().then(|| format!("{name}-{}", v["name"].as_str().unwrap_or_default()));
        claim.or_else(|| own().map(Into::into))
    });
    claims.collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn taint(key: &str, value: &str, effect: &str) -> Taint {
        Taint::parse(&json!({"key": key, "value": value, "effect": effect}))
    }

    #[test]
    fn keys_of_labels_count_once_and_as_they_were_when_the_pod_was_made() {
        let labels = |value: &str| [("v".into(), value.into())];
        let term = |merged: Value| json!({"labelSelector": {"matchExpressions": merged}, "matchLabelKeys": ["v"], "mismatchLabelKeys": ["none"]});
        let of_before = keyed_selector(&term(json!([])), &labels("1"));
        assert!(of_before.matches(&labels("1")) && !of_before.matches(&labels("2")));
        // The pod has another label by now.
        let merged = term(json!([{"key": "v", "operator": "In", "values": ["1"]}]));
        let relabelled = keyed_selector(&merged, &labels("2"));
        assert!(relabelled.matches(&labels("1")) && !relabelled.matches(&labels("2")));
        let other = json!({"labelSelector": {}, "mismatchLabelKeys": ["v"]});
        let other = keyed_selector(&other, &labels("1"));
        assert!(other.matches(&labels("2")) && !other.matches(&labels("1")));
    }

    #[test]
    fn tolerations_match_by_key_value_and_effect() {
        let equal = Toleration::parse(&json!({"key": "a", "value": "b", "effect": "NoSchedule"}));
        assert!(equal.tolerates(&taint("a", "b", "NoSchedule")));
        assert!(!equal.tolerates(&taint("a", "c", "NoSchedule")));
        assert!(!equal.tolerates(&taint("a", "b", "NoExecute")));
        let everything = Toleration::parse(&json!({"operator": "Exists"}));
        assert!(everything.tolerates(&taint("x", "y", "NoExecute")));
        let any_value = Toleration::parse(&json!({"key": "a", "operator": "Exists"}));
        assert!(
            any_value.tolerates(&taint("a", "z", "NoSchedule")) && !any_value.tolerates(&taint("b", "", "NoSchedule"))
        );
    }

    #[test]
    fn ports_conflict_on_the_same_or_on_all_addresses() {
        let port = |ip: &str, protocol: &str| HostPort { port: 80, protocol: protocol.into(), ip: ip.into() };
        assert!(port("0.0.0.0", "TCP").conflicts(&port("10.0.0.1", "TCP")));
        assert!(!port("10.0.0.2", "TCP").conflicts(&port("10.0.0.1", "TCP")));
        assert!(!port("0.0.0.0", "UDP").conflicts(&port("10.0.0.1", "TCP")));
    }
}
