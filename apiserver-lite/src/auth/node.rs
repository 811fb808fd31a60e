//! The Node authorizer: a node may read what its pods need, and write its own things.
//!
//! Which node needs what is an index over pods, brought up to date from the store's events by whoever asks next. The
//! admission plugin NodeRestriction looks into objects; this looks at requests only.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use serde_json::Value;

use super::authorizer::{Attributes, Decision};
use super::rule::Rule;
use crate::config::FeatureGates;
use crate::request::User;
use crate::store::{EventKind, EventRef, ObjectRef, ResourceId, Store, Watcher};

/// Kinds of things that pods refer to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Kind {
    Secret,
    ConfigMap,
    Claim,
    ServiceAccount,
    ResourceClaim,
}

type Wanted = (Kind, Box<str>, Box<str>);

/// What one pod on a node refers to.
#[derive(Debug, Default)]
struct Pod {
    node: Box<str>,
    wants: Vec<Wanted>,
}

#[derive(Default)]
struct Index {
    seen: u64,
    watcher: Option<Watcher>,
    /// By namespace and name.
    pods: HashMap<(Box<str>, Box<str>), Pod>,
    /// How many pods of a node refer to a thing.
    wanted: HashMap<Wanted, HashMap<Box<str>, u32>>,
}

pub(super) struct NodeAuthorizer {
    store: Store,
    rules: Vec<Rule>,
    /// Nodes may ask for certificates for their pods.
    certifies_pods: bool,
    index: Mutex<Index>,
}

fn pods() -> ResourceId {
    "pods".into()
}

/// The node's name when the user is a node; empty when it does not say which.
fn node_name(user: &User) -> Option<&str> {
    user.in_group("system:nodes").then(|| user.name.strip_prefix("system:node:").unwrap_or_default())
}

impl NodeAuthorizer {
    pub fn new(store: Store, gates: &FeatureGates) -> Self {
        let rules = crate::bootstrap::roles::node_rules(gates).iter().map(Rule::from_value).collect();
        let certifies_pods = gates.enabled("PodCertificateRequest");
        NodeAuthorizer { store, rules, certifies_pods, index: Mutex::default() }
    }

    pub fn authorize(&self, request: &Attributes<'_>) -> Decision {
        let Some(node) = node_name(request.user) else { return Decision::no_opinion("") };
        if node.is_empty() {
            let user = crate::status::quote(&request.user.name);
            return Decision::no_opinion(format!("unknown node for user {user}"));
        }
        let info = request.info;
        if info.is_resource {
            let verdict = match (info.group.as_str(), info.resource.as_str()) {
                ("", "secrets") => self.read(node, request, Kind::Secret),
                ("", "configmaps") => self.read(node, request, Kind::ConfigMap),
                ("", "persistentvolumeclaims") if info.subresource == "status" => match info.verb.as_str() {
                    "update" | "patch" => self.related(node, request, || self.wants(node, request, Kind::Claim)),
                    _ => Err("can only get/update/patch this type".into()),
                },
                ("", "persistentvolumeclaims") => self.get(node, request, || self.wants(node, request, Kind::Claim)),
                ("", "persistentvolumes") => self.get(node, request, || self.wants_volume(node, &info.name)),
                ("resource.k8s.io", "resourceclaims") => {
                    self.get(node, request, || self.wants(node, request, Kind::ResourceClaim))
                }
                ("storage.k8s.io", "volumeattachments") => {
                    self.get(node, request, || self.names_node("volumeattachments.storage.k8s.io", &info.name, node))
                }
                ("", "serviceaccounts") => self.token(node, request),
                ("coordination.k8s.io", "leases") => lease(node, request),
                ("storage.k8s.io", "csinodes") => csi_node(node, request),
                ("resource.k8s.io", "resourceslices") => self.slice(node, request),
                ("certificates.k8s.io", "podcertificaterequests") if self.certifies_pods => {
                    self.pod_certificate(node, request)
                }
                ("", "nodes") => own_node(node, request),
                ("", "pods") => self.pod(node, request),
                _ => return self.by_rules(request),
            };
            return match verdict {
                Ok(()) => Decision::allow(""),
                Err(reason) => Decision::no_opinion(reason),
            };
        }
        self.by_rules(request)
    }

    fn by_rules(&self, request: &Attributes<'_>) -> Decision {
        if self.rules.iter().any(|r| r.allows(request)) { Decision::allow("") } else { Decision::no_opinion("") }
    }

    /// Reading single objects that pods of the node name.
    fn read(&self, node: &str, request: &Attributes<'_>, kind: Kind) -> Result<(), String> {
        let info = request.info;
        if !matches!(info.verb.as_str(), "get" | "list" | "watch") {
            return Err("can only read resources of this type".into());
        }
        if !info.subresource.is_empty() {
            return Err("cannot read subresource".into());
        }
        if info.namespace.is_empty() {
            return Err("can only read namespaced object of this type".into());
        }
        self.related(node, request, || {
            self.wants(node, request, kind)
                || kind == Kind::Secret && self.wants_volume_secret(node, &info.namespace, &info.name)
        })
    }

    fn get(&self, node: &str, request: &Attributes<'_>, found: impl FnOnce() -> bool) -> Result<(), String> {
        if request.info.verb != "get" {
            return Err("can only get individual resources of this type".into());
        }
        if !request.info.subresource.is_empty() {
            return Err("cannot get subresource".into());
        }
        self.related(node, request, found)
    }

    fn related(&self, node: &str, request: &Attributes<'_>, found: impl FnOnce() -> bool) -> Result<(), String> {
        if request.info.name.is_empty() {
            return Err("No Object name found".into());
        }
        if found() { Ok(()) } else { Err(format!("no relationship found between node '{node}' and this object")) }
    }

    /// Reading the service accounts of a node's pods, which credential providers are told of, and making their tokens.
    fn token(&self, node: &str, request: &Attributes<'_>) -> Result<(), String> {
        if request.info.verb == "get" && request.info.subresource.is_empty() {
            return self.get(node, request, || self.wants(node, request, Kind::ServiceAccount));
        }
        if request.info.verb != "create" || request.info.name.is_empty() {
            return Err("can only create tokens for individual service accounts".into());
        }
        if request.info.subresource != "token" {
            return Err("can only create token subresource of serviceaccount".into());
        }
        self.related(node, request, || self.wants(node, request, Kind::ServiceAccount))
    }

    fn slice(&self, node: &str, request: &Attributes<'_>) -> Result<(), String> {
        let info = request.info;
        if !info.subresource.is_empty() {
            return Err("cannot authorize ResourceSlice subresources".into());
        }
        match info.verb.as_str() {
            "create" => Ok(()),
            "get" | "update" | "patch" | "delete" => {
                self.related(node, request, || self.names_node("resourceslices.resource.k8s.io", &info.name, node))
            }
            "list" | "watch" | "deletecollection" if selects(&info.field_selector, "spec.nodeName", node) => Ok(()),
            "list" | "watch" | "deletecollection" => {
                Err("can only list/watch/deletecollection resourceslices with nodeName field selector".into())
            }
            _ => Err("only the following verbs are allowed for a ResourceSlice: get, watch, list, create, update, \
                      patch, delete, deletecollection"
                .into()),
        }
    }

    /// What is asked for is looked at by the admission plugin.
    fn pod_certificate(&self, node: &str, request: &Attributes<'_>) -> Result<(), String> {
        let info = request.info;
        if !info.subresource.is_empty() {
            return Err("nodes may not access the status subresource of PodCertificateRequests".into());
        }
        let mine = || {
            let collection = "podcertificaterequests.certificates.k8s.io".into();
            let found = self.store.get(&collection, &info.namespace, &info.name);
            found.is_some_and(|found| found.field("spec.nodeName") == node)
        };
        match info.verb.as_str() {
            "create" => Ok(()),
            "get" => self.related(node, request, mine),
            "list" | "watch" if selects(&info.field_selector, "spec.nodeName", node) => Ok(()),
            "list" | "watch" => Err("can only list/watch podcertificaterequests with nodeName field selector".into()),
            verb => Err(format!("nodes may not {verb} podcertificaterequests")),
        }
    }

    fn pod(&self, node: &str, request: &Attributes<'_>) -> Result<(), String> {
        let info = request.info;
        let mine =
            || self.store.get(&pods(), &info.namespace, &info.name).is_some_and(|p| p.field("spec.nodeName") == node);
        match (info.subresource.as_str(), info.verb.as_str()) {
            ("", "get") => self.related(node, request, mine),
            ("", "list" | "watch") if selects(&info.field_selector, "spec.nodeName", node) => Ok(()),
            ("", "list" | "watch") if !info.name.is_empty() => self.related(node, request, mine),
            ("", "list" | "watch") => Err("can only list/watch pods with spec.nodeName field selector".into()),
            ("", "create" | "delete") | ("status", "update" | "patch") | ("eviction", "create") => Ok(()),
            _ => Err(String::new()),
        }
    }

    /// Whether an object's `spec.nodeName` is the node.
    fn names_node(&self, collection: &str, name: &str, node: &str) -> bool {
        self.store.get(&collection.into(), "", name).is_some_and(|o| o.value()["spec"]["nodeName"] == node)
    }

    fn wants(&self, node: &str, request: &Attributes<'_>, kind: Kind) -> bool {
        self.is_wanted(node, kind, &request.info.namespace, &request.info.name)
    }

    fn is_wanted(&self, node: &str, kind: Kind, namespace: &str, name: &str) -> bool {
        let mut index = self.index.lock().unwrap_or_else(PoisonError::into_inner);
        index.catch_up(&self.store);
        index.wanted.get(&(kind, namespace.into(), name.into())).is_some_and(|nodes| nodes.contains_key(node))
    }

    /// Whether the claim that a volume is bound to belongs to a pod on the node.
    fn wants_volume(&self, node: &str, name: &str) -> bool {
        let Some(volume) = self.store.get(&"persistentvolumes".into(), "", name) else { return false };
        self.volume_is_wanted(node, &volume.value())
    }

    fn volume_is_wanted(&self, node: &str, volume: &Value) -> bool {
        let text = |key: &str| volume["spec"]["claimRef"][key].as_str().unwrap_or_default();
        !text("name").is_empty() && self.is_wanted(node, Kind::Claim, text("namespace"), text("name"))
    }

    /// Whether a volume of a pod on the node names the secret. Few volumes do, so they are gone through.
    fn wants_volume_secret(&self, node: &str, namespace: &str, name: &str) -> bool {
        self.store.snapshot(&"persistentvolumes".into()).range(None, None).any(|volume| {
            let value = volume.value();
            names_secret(
                &value["spec"],
                namespace,
                name,
                value["spec"]["claimRef"]["namespace"].as_str().unwrap_or_default(),
            ) && self.volume_is_wanted(node, &value)
        })
    }
}

/// Sources of a volume that name a secret for the node in `secretRef`.
const WITH_SECRETS: [&str; 7] = ["cephfs", "cinder", "flexVolume", "iscsi", "rbd", "scaleIO", "storageos"];
/// What a node asks a CSI driver with. Those that controllers ask with are none of its business.
const OF_CSI: [&str; 3] = ["nodeStageSecretRef", "nodePublishSecretRef", "nodeExpandSecretRef"];

/// Whether a volume's `spec` names the secret for the kubelet; without a namespace of its own it is in the claim's. As
/// upstream's `VisitPVSecretNames`.
fn names_secret(spec: &Value, namespace: &str, name: &str, claim_namespace: &str) -> bool {
    let is_it = |said: &Value, [name_key, namespace_key]: [&str; 2]| {
        let there = said[namespace_key].as_str().filter(|n| !n.is_empty()).unwrap_or(claim_namespace);
        said[name_key] == name && there == namespace
    };
    WITH_SECRETS.iter().any(|source| is_it(&spec[*source]["secretRef"], ["name", "namespace"]))
        || OF_CSI.iter().any(|key| is_it(&spec["csi"][*key], ["name", "namespace"]))
        || is_it(&spec["azureFile"], ["secretName", "secretNamespace"])
}

fn lease(node: &str, request: &Attributes<'_>) -> Result<(), String> {
    let info = request.info;
    if !matches!(info.verb.as_str(), "get" | "create" | "update" | "patch" | "delete") {
        return Err("can only get, create, update, patch, or delete a node lease".into());
    }
    if info.namespace != "kube-node-lease" {
        return Err("can only access leases in the \"kube-node-lease\" system namespace".into());
    }
    if info.verb != "create" && info.name != node {
        return Err("can only access node lease with the same name as the requesting node".into());
    }
    Ok(())
}

fn csi_node(node: &str, request: &Attributes<'_>) -> Result<(), String> {
    let info = request.info;
    if !matches!(info.verb.as_str(), "get" | "create" | "update" | "patch" | "delete") {
        return Err("can only get, create, update, patch, or delete a CSINode".into());
    }
    if !info.subresource.is_empty() {
        return Err("cannot authorize CSINode subresources".into());
    }
    if info.verb != "create" && info.name != node {
        return Err("can only access CSINode with the same name as the requesting node".into());
    }
    Ok(())
}

fn own_node(node: &str, request: &Attributes<'_>) -> Result<(), String> {
    let info = request.info;
    match (info.subresource.as_str(), info.verb.as_str()) {
        ("", "create" | "update" | "patch") | ("status", "update" | "patch") => Ok(()),
        ("", "get" | "list" | "watch") if info.name == node => Ok(()),
        ("", "get" | "list" | "watch") if info.name.is_empty() => {
            Err(format!("node '{node}' cannot read all nodes, only its own Node object"))
        }
        ("", "get" | "list" | "watch") => {
            Err(format!("node '{node}' cannot read '{}', only its own Node object", info.name))
        }
        _ => Err(String::new()),
    }
}

/// Whether a field selector demands a value of a field.
fn selects(selector: &str, field: &str, value: &str) -> bool {
    selector.split(',').any(|term| {
        let Some((key, rest)) = term.split_once('=') else { return false };
        !key.ends_with('!') && key == field && rest.strip_prefix('=').unwrap_or(rest) == value
    })
}

impl Index {
    fn catch_up(&mut self, store: &Store) {
        let revision = store.revision();
        if self.seen >= revision && self.watcher.is_some() {
            return;
        }
        let mut events: Vec<EventRef> = Vec::new();
        loop {
            events.clear();
            match self.watcher.as_mut().map(|w| w.ready(&mut events)) {
                Some(Ok(true)) => {
                    for event in &events {
                        match event.kind {
                            EventKind::Deleted => self.remove(&event.object),
                            _ => self.put(&event.object),
                        }
                    }
                }
                Some(Ok(false)) => break,
                None | Some(Err(_)) => {
                    let snapshot = store.snapshot(&pods());
                    self.pods.clear();
                    self.wanted.clear();
                    snapshot.range(None, None).for_each(|pod| self.put(pod));
                    self.watcher = store.watch(&pods(), snapshot.revision).ok();
                }
            }
        }
        self.seen = revision;
    }

    fn put(&mut self, pod: &ObjectRef) {
        let node = pod.field("spec.nodeName");
        // A pod that is over needs nothing any more.
        if node.is_empty() || matches!(pod.field("status.phase"), "Succeeded" | "Failed") && pod.keys.deleting {
            self.remove(pod);
            return;
        }
        let wants = wants(&pod.without_owners());
        let key = (pod.key.namespace.clone(), pod.key.name.clone());
        if self.pods.get(&key).is_some_and(|p| *p.node == *node && p.wants == wants) {
            return;
        }
        self.remove(pod);
        for wanted in &wants {
            *self.wanted.entry(wanted.clone()).or_default().entry(node.into()).or_default() += 1;
        }
        self.pods.insert(key, Pod { node: node.into(), wants });
    }

    fn remove(&mut self, pod: &ObjectRef) {
        let Some(old) = self.pods.remove(&(pod.key.namespace.clone(), pod.key.name.clone())) else { return };
        for wanted in &old.wants {
            let Some(nodes) = self.wanted.get_mut(wanted) else { continue };
            if let Some(count) = nodes.get_mut(&old.node) {
                *count -= 1;
                if *count == 0 {
                    nodes.remove(&old.node);
                }
            }
            if nodes.is_empty() {
                self.wanted.remove(wanted);
            }
        }
    }
}

/// Everything that a pod refers to, once each.
fn wants(pod: &Value) -> Vec<Wanted> {
    // A mirror pod only shows what a node runs anyway; it must not open anything to it.
    if !pod["metadata"]["annotations"]["kubernetes.io/config.mirror"].is_null() {
        return Vec::new();
    }
    let namespace = pod["metadata"]["namespace"].as_str().unwrap_or_default();
    let pod_name = pod["metadata"]["name"].as_str().unwrap_or_default();
    let mut out: Vec<Wanted> = Vec::new();
    let mut add = |kind: Kind, name: &Value| {
        if let Some(name) = name.as_str().filter(|n| !n.is_empty()) {
            let wanted = (kind, namespace.into(), name.into());
            if !out.contains(&wanted) {
                out.push(wanted);
            }
        }
    };
    let spec = &pod["spec"];
    let list = |value: &'static str| spec[value].as_array().into_iter().flatten();
    add(Kind::ServiceAccount, &spec["serviceAccountName"]);
    list("imagePullSecrets").for_each(|s| add(Kind::Secret, &s["name"]));
    for kind in ["initContainers", "containers", "ephemeralContainers"] {
        for container in list(kind) {
            for source in container["envFrom"].as_array().into_iter().flatten() {
                add(Kind::Secret, &source["secretRef"]["name"]);
                add(Kind::ConfigMap, &source["configMapRef"]["name"]);
            }
            for variable in container["env"].as_array().into_iter().flatten() {
                add(Kind::Secret, &variable["valueFrom"]["secretKeyRef"]["name"]);
                add(Kind::ConfigMap, &variable["valueFrom"]["configMapKeyRef"]["name"]);
            }
        }
    }
    for volume in list("volumes") {
        add(Kind::Secret, &volume["secret"]["secretName"]);
        add(Kind::ConfigMap, &volume["configMap"]["name"]);
        add(Kind::Claim, &volume["persistentVolumeClaim"]["claimName"]);
        add(Kind::Secret, &volume["azureFile"]["secretName"]);
        add(Kind::Secret, &volume["csi"]["nodePublishSecretRef"]["name"]);
        for source in ["flexVolume", "cephfs", "cinder", "rbd", "iscsi", "scaleIO", "storageos"] {
            add(Kind::Secret, &volume[source]["secretRef"]["name"]);
        }
        for source in volume["projected"]["sources"].as_array().into_iter().flatten() {
            add(Kind::Secret, &source["secret"]["name"]);
            add(Kind::ConfigMap, &source["configMap"]["name"]);
        }
        if volume["ephemeral"].is_object() {
            let name = format!("{pod_name}-{}", volume["name"].as_str().unwrap_or_default());
            add(Kind::Claim, &Value::from(name));
        }
    }
    list("resourceClaims").for_each(|c| add(Kind::ResourceClaim, &c["resourceClaimName"]));
    for status in pod["status"]["resourceClaimStatuses"].as_array().into_iter().flatten() {
        add(Kind::ResourceClaim, &status["resourceClaimName"]);
    }
    // The scheduler makes a claim for extended resources that a driver has.
    add(Kind::ResourceClaim, &pod["status"]["extendedResourceClaimStatus"]["resourceClaimName"]);
    out
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_pod_wants_what_its_containers_and_volumes_name() {
        let pod = json!({
            "metadata": {"name": "p", "namespace": "n"},
            "spec": {
                "serviceAccountName": "sa",
                "containers": [{"env": [{"valueFrom": {"secretKeyRef": {"name": "a"}}}], "envFrom": [{"configMapRef": {"name": "b"}}]}],
                "volumes": [{"secret": {"secretName": "a"}}, {"name": "x", "ephemeral": {}}, {"projected": {"sources": [{"configMap": {"name": "c"}}]}}],
            },
        });
        let found: Vec<_> = wants(&pod).into_iter().map(|(kind, _, name)| (kind, name.to_string())).collect();
        let expected = [
            (Kind::ServiceAccount, "sa"),
            (Kind::ConfigMap, "b"),
            (Kind::Secret, "a"),
            (Kind::Claim, "p-x"),
            (Kind::ConfigMap, "c"),
        ];
        assert_eq!(found.len(), expected.len());
        assert!(expected.iter().all(|(k, n)| found.contains(&(*k, (*n).to_owned()))));
    }

    #[test]
    fn a_pod_wants_the_claims_that_its_status_names() {
        let pod = json!({
            "metadata": {"name": "p", "namespace": "n"},
            "spec": {"resourceClaims": [{"name": "a", "resourceClaimTemplateName": "t"}]},
            "status": {
                "resourceClaimStatuses": [{"name": "a", "resourceClaimName": "p-a"}],
                "extendedResourceClaimStatus": {"resourceClaimName": "p-extended", "requestMappings": []},
            },
        });
        let expected = ["p-a", "p-extended"].map(|name| (Kind::ResourceClaim, "n".into(), name.into()));
        assert_eq!(wants(&pod), expected);
    }

    /// A node could read what a driver's controller attaches and resizes volumes with.
    #[test]
    fn a_node_sees_no_secrets_of_a_drivers_controller() {
        let reference = |name: &str| json!({"name": name, "namespace": "n"});
        let spec = json!({"csi": {
            "controllerPublishSecretRef": reference("publish"),
            "controllerExpandSecretRef": reference("expand"),
            "nodePublishSecretRef": reference("node-publish"),
            "nodeStageSecretRef": reference("node-stage"),
            "nodeExpandSecretRef": reference("node-expand"),
            "volumeAttributes": {"secretName": "attribute"},
        }});
        for (name, expected) in [
            ("publish", false),
            ("expand", false),
            ("attribute", false),
            ("node-publish", true),
            ("node-stage", true),
            ("node-expand", true),
        ] {
            assert_eq!(names_secret(&spec, "n", name, "n"), expected, "{name}");
        }
        assert!(!names_secret(&spec, "claims", "node-stage", "claims"));
    }

    #[test]
    fn a_secret_without_a_namespace_is_in_the_claims() {
        for spec in [
            json!({"rbd": {"secretRef": {"name": "s"}}}),
            json!({"azureFile": {"secretName": "s"}}),
            json!({"azureFile": {"secretName": "s", "secretNamespace": ""}}),
        ] {
            assert!(names_secret(&spec, "claims", "s", "claims") && !names_secret(&spec, "n", "s", "claims"), "{spec}");
        }
        let elsewhere = json!({"azureFile": {"secretName": "s", "secretNamespace": "n"}});
        assert!(names_secret(&elsewhere, "n", "s", "claims") && !names_secret(&elsewhere, "claims", "s", "claims"));
    }

    #[test]
    fn selectors_demand_a_field() {
        assert!(
            selects("spec.nodeName=a", "spec.nodeName", "a") && selects("x=1,spec.nodeName==a", "spec.nodeName", "a")
        );
        assert!(!selects("spec.nodeName!=a", "spec.nodeName", "a") && !selects("", "spec.nodeName", "a"));
    }
}
