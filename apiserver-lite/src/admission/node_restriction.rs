//! NodeRestriction: a node writes about itself and its pods, and in no way that draws other pods' secrets to it.
//!
//! The node authorizer decides by the request alone; what depends on the object is here. Follows
//! `plugin/pkg/admission/noderestriction`.

use std::collections::BTreeSet;

use serde_json::Value;

use super::{Call, Operation, certificates, references};
use crate::auth::Attributes;
use crate::request::RequestInfo;
use crate::status::{ApiError, Result, quote};

/// Signers whose certificates say which node somebody is.
const NODE_SIGNERS: [&str; 2] = ["kubernetes.io/kubelet-serving", "kubernetes.io/kube-apiserver-client-kubelet"];

/// Marks the mirrors of static pods.
const MIRROR: &str = "kubernetes.io/config.mirror";

/// Labels of Kubernetes' own that a node may give itself.
const OWN_LABELS: [&str; 14] = [
    "kubernetes.io/hostname",
    "topology.kubernetes.io/zone",
    "topology.kubernetes.io/region",
    "failure-domain.beta.kubernetes.io/zone",
    "failure-domain.beta.kubernetes.io/region",
    "node.kubernetes.io/instance-type",
    "beta.kubernetes.io/instance-type",
    "kubernetes.io/os",
    "kubernetes.io/arch",
    "beta.kubernetes.io/os",
    "beta.kubernetes.io/arch",
    "node.kubernetes.io/windows-build",
    "kubelet.kubernetes.io/",
    "node.kubernetes.io/",
];

pub fn mutate(call: &Call<'_>, new: &mut Value) -> Result<()> {
    check(call, Some(new))
}

pub fn delete(call: &Call<'_>) -> Result<()> {
    check(call, None)
}

fn check(call: &Call<'_>, new: Option<&Value>) -> Result<()> {
    if !call.user.in_group("system:nodes") {
        return Ok(());
    }
    let refuse = |why: String| call.refuse(new, why);
    let Some(node) = call.user.name.strip_prefix("system:node:").filter(|n| !n.is_empty()) else {
        return Err(refuse(format!("could not determine node from user {}", quote(&call.user.name))));
    };
    let object = new.unwrap_or(&Value::Null);
    let refused = match (&*call.resource.group, &*call.resource.plural) {
        ("", "pods") => return pod(call, node, object),
        ("", "nodes") => own_node(call, node, object),
        ("", "persistentvolumeclaims") => claim(call, node, object),
        ("", "serviceaccounts") if call.subresource == "token" => return token(call, node, object),
        ("certificates.k8s.io", "podcertificaterequests") => return pod_certificate(call, node, object),
        ("coordination.k8s.io", "leases") => lease(call, node, object),
        ("storage.k8s.io", "csinodes") if name(call, object) != node => {
            Some("can only access CSINode with the same name as the requesting node".into())
        }
        ("resource.k8s.io", "resourceslices") => slice(call, node, object),
        ("certificates.k8s.io", "certificatesigningrequests") => request(call, node, object),
        _ => None,
    };
    refused.map_or(Ok(()), |why| Err(refuse(why)))
}

fn name<'a>(call: &'a Call<'_>, object: &'a Value) -> &'a str {
    if call.name.is_empty() { object["metadata"]["name"].as_str().unwrap_or_default() } else { call.name }
}

/// The pod that a request is about, as it is stored.
fn stored_pod(call: &Call<'_>, name: &str) -> Result<Value> {
    let found = call.server.store.get(&"pods".into(), call.namespace, name);
    found.map(|p| p.value()).ok_or_else(|| ApiError::not_found("", "pods", name))
}

fn pod(call: &Call<'_>, node: &str, new: &Value) -> Result<()> {
    let refuse = |why: String| Err(call.refuse(Some(new), why));
    let quoted = quote(node);
    match (call.subresource, call.operation) {
        ("", Operation::Create) => match mirror_pod(call, node, new)? {
            Some(why) => refuse(why),
            None => Ok(()),
        },
        ("", Operation::Delete) if stored_pod(call, call.name)?["spec"]["nodeName"] == node => Ok(()),
        ("", Operation::Delete) => {
            refuse(format!("node {quoted} can only delete pods with spec.nodeName set to itself"))
        }
        ("", operation) => refuse(format!(
            "unexpected operation {}, node {quoted} can only create and delete mirror pods",
            quote(operation.name())
        )),
        ("status", Operation::Update) => {
            let old = call.old.unwrap_or(&Value::Null);
            if old["spec"]["nodeName"] != node {
                refuse(format!("node {quoted} can only update pod status for pods with spec.nodeName set to itself"))
            } else {
                forbidden_part(new, old).map_or(Ok(()), |part| refuse(format!("node {quoted} cannot update {part}")))
            }
        }
        ("eviction", Operation::Create) if stored_pod(call, name(call, new))?["spec"]["nodeName"] == node => Ok(()),
        ("eviction", Operation::Create) => {
            refuse(format!("node {node} can only evict pods with spec.nodeName set to itself"))
        }
        ("status" | "eviction", operation) => refuse(format!("unexpected operation {}", quote(operation.name()))),
        (other, _) => {
            refuse(format!("unexpected pod subresource {}, only 'status' and 'eviction' are allowed", quote(other)))
        }
    }
}

/// What of a pod differs that its node does not write with the status. Both kinds of claims open them to the node.
fn forbidden_part(new: &Value, old: &Value) -> Option<&'static str> {
    let differs = |part: &str| new["status"][part] != old["status"][part];
    let all = [
        (labels(new) != labels(old), "labels through pod status"),
        (differs("resourceClaimStatuses"), "resource claim statues"),
        (differs("extendedResourceClaimStatus"), "extended resource claim status"),
    ];
    all.into_iter().find(|(is, _)| *is).map(|(_, part)| part)
}

fn labels(object: &Value) -> Vec<(&str, &str)> {
    let all = object["metadata"]["labels"].as_object().into_iter().flatten();
    let mut all: Vec<_> = all.map(|(k, v)| (k.as_str(), v.as_str().unwrap_or_default())).collect();
    all.sort_unstable();
    all
}

/// What is wrong with the mirror of a static pod.
fn mirror_pod(call: &Call<'_>, node: &str, pod: &Value) -> Result<Option<String>> {
    let quoted = quote(node);
    let spec = &pod["spec"];
    if pod["metadata"]["annotations"][MIRROR].is_null() {
        let mirror = quote(MIRROR);
        return Ok(Some(format!("pod does not have {mirror} annotation, node {quoted} can only create mirror pods")));
    }
    if spec["nodeName"] != node {
        return Ok(Some(format!("node {quoted} can only create pods with spec.nodeName set to itself")));
    }
    let owners = pod["metadata"]["ownerReferences"].as_array().map_or(&[][..], Vec::as_slice);
    let owner = match owners {
        [] => return Ok(Some(format!("node {quoted} can only create pods with an owner reference set to itself"))),
        [owner] => owner,
        _ => {
            return Ok(Some(format!("node {quoted} can only create pods with a single owner reference set to itself")));
        }
    };
    if owner["apiVersion"] != "v1" || owner["kind"] != "Node" || owner["name"] != node {
        return Ok(Some(format!("node {quoted} can only create pods with an owner reference set to itself")));
    }
    if owner["controller"] != true {
        return Ok(Some(format!("node {quoted} can only create pods with a controller owner reference set to itself")));
    }
    if owner["blockOwnerDeletion"] == true {
        return Ok(Some(format!("node {quoted} must not set blockOwnerDeletion on an owner reference")));
    }
    let stored = call.server.store.get(&"nodes".into(), "", node);
    let stored = stored.ok_or_else(|| ApiError::not_found("", "nodes", node))?;
    let uid = owner["uid"].as_str().unwrap_or_default();
    if *uid != *stored.keys.uid {
        return Ok(Some(format!("node {node} UID mismatch: expected {uid} got {}", stored.keys.uid)));
    }
    let volumes = || spec["volumes"].as_array().into_iter().flatten();
    let bundles = |v: &Value| {
        v["projected"]["sources"].as_array().into_iter().flatten().any(|s| !s["clusterTrustBundle"].is_null())
    };
    let referred = [
        (spec["serviceAccountName"].as_str().is_some_and(|n| !n.is_empty()), "a service account"),
        (!references::secrets(pod).is_empty(), "secrets"),
        (!references::config_maps(pod).is_empty(), "configmaps"),
        (volumes().any(bundles), "clustertrustbundles"),
        (volumes().any(|v| !v["persistentVolumeClaim"].is_null()), "persistentvolumeclaims"),
        (spec["resourceClaims"].as_array().is_some_and(|c| !c.is_empty()), "resourceclaims"),
    ];
    let referred = referred.into_iter().find(|(is, _)| *is);
    Ok(referred.map(|(_, what)| format!("node {quoted} can not create pods that reference {what}")))
}

fn own_node(call: &Call<'_>, node: &str, new: &Value) -> Option<String> {
    let quoted = quote(node);
    let requested = name(call, new);
    if requested != node {
        return Some(format!("node {quoted} is not allowed to modify node {}", quote(requested)));
    }
    let old = call.old.unwrap_or(&Value::Null);
    if call.operation == Operation::Delete {
        return None;
    }
    let source = &new["spec"]["configSource"];
    if call.operation == Operation::Create {
        if !source.is_null() {
            return Some(format!("node {quoted} is not allowed to create pods with a non-nil configSource"));
        }
        let labels = forbidden_labels(new, &Value::Null);
        return (!labels.is_empty())
            .then(|| format!("node {quoted} is not allowed to set the following labels: {}", labels.join(", ")));
    }
    if !source.is_null() && *source != old["spec"]["configSource"] {
        return Some(format!("node {quoted} is not allowed to update configSource to a new non-nil configSource"));
    }
    let list = |key: &str, of: &Value| of[key].as_array().cloned().unwrap_or_default();
    if list("taints", &new["spec"]) != list("taints", &old["spec"]) {
        return Some(format!("node {quoted} is not allowed to modify taints"));
    }
    let labels = forbidden_labels(new, old);
    if !labels.is_empty() {
        return Some(format!("is not allowed to modify labels: {}", labels.join(", ")));
    }
    if list("ownerReferences", &new["metadata"]) != list("ownerReferences", &old["metadata"]) {
        return Some(format!("node {quoted} is not allowed to modify ownerReferences"));
    }
    None
}

/// Labels that differ and that a node may not give itself.
fn forbidden_labels(new: &Value, old: &Value) -> Vec<String> {
    const RESTRICTED: &str = "node-restriction.kubernetes.io";
    let (new, old) = (labels(new), labels(old));
    let changed = new.iter().filter(|l| !old.contains(l)).chain(old.iter().filter(|l| !new.contains(l)));
    let forbidden = changed.map(|(key, _)| *key).filter(|key| {
        let domain = key.split_once('/').map_or("", |(domain, _)| domain);
        let within = |of: &str| domain == of || domain.strip_suffix(of).is_some_and(|d| d.ends_with('.'));
        let own = OWN_LABELS.iter().any(|own| match own.strip_suffix('/') {
            Some(of) => within(of),
            None => own == key,
        });
        within(RESTRICTED) || (within("kubernetes.io") || within("k8s.io")) && !own
    });
    forbidden.collect::<BTreeSet<_>>().into_iter().map(Into::into).collect()
}

fn claim(call: &Call<'_>, node: &str, new: &Value) -> Option<String> {
    if call.subresource != "status" {
        return Some("may only update PVC status".into());
    }
    if call.operation != Operation::Update {
        return Some(format!("unexpected operation {}", quote(call.operation.name())));
    }
    let rest = |claim: &Value| {
        let mut claim = claim.clone();
        for (part, keys) in [
            ("metadata", &["resourceVersion", "managedFields"][..]),
            ("status", &["capacity", "conditions", "allocatedResources", "allocatedResourceStatuses"]),
        ] {
            if let Some(map) = claim.get_mut(part).and_then(Value::as_object_mut) {
                keys.iter().for_each(|key| drop(map.remove(*key)));
            }
        }
        claim
    };
    if rest(new) == rest(call.old.unwrap_or(&Value::Null)) {
        return None;
    }
    let node = quote(node);
    Some(format!("node {node} is not allowed to update fields other than status.quantity and status.conditions"))
}

/// Nodes get tokens only for pods they run.
fn token(call: &Call<'_>, node: &str, new: &Value) -> Result<()> {
    let refuse = |why: &str| Err(call.refuse(Some(new), why));
    let bound = &new["spec"]["boundObjectRef"];
    let text = |key: &str| bound[key].as_str().unwrap_or_default();
    if text("apiVersion") != "v1" || text("kind") != "Pod" || text("name").is_empty() {
        return refuse("node requested token not bound to a pod");
    }
    if text("uid").is_empty() {
        return refuse("node requested token with a pod binding without a uid");
    }
    let pod = stored_pod(call, text("name"))?;
    if pod["metadata"]["uid"] != text("uid") {
        let why = format!(
            "the UID in the bound object reference ({}) does not match the UID in record. The object might have been \
             deleted and then recreated",
            text("uid")
        );
        return refuse(&why);
    }
    if pod["spec"]["nodeName"] != node {
        return refuse("node requested token bound to a pod scheduled on a different node");
    }
    if !call.server.config.restricts_audiences {
        return Ok(());
    }
    let audiences = new["spec"]["audiences"].as_array().map_or(&[][..], Vec::as_slice);
    if audiences.len() > 1 {
        return refuse("node may only request 0 or 1 audiences");
    }
    let audience = audiences.first().and_then(Value::as_str).unwrap_or_default();
    if names_audience(call, &pod, audience) || may_have_audience(call, new, audience) {
        return Ok(());
    }
    refuse(&format!(
        "audience {} not found in pod spec volume, {} is not authorized to request tokens for this audience",
        quote(audience),
        call.user.name
    ))
}

/// Whether a volume of a pod needs tokens for an audience: a projected one itself, others by what their driver asks for.
fn names_audience(call: &Call<'_>, pod: &Value, audience: &str) -> bool {
    let find = |plural: &str, namespace: &str, name: &str| {
        call.server.store.get(&plural.into(), namespace, name).map(|found| found.value())
    };
    let asks = |driver: &str| {
        let driver = find("csidrivers.storage.k8s.io", "", driver);
        driver.is_some_and(|driver| of_requests(&driver).any(|asked| asked == audience))
    };
    let of_claim = |claim: &str| {
        let claim = find("persistentvolumeclaims", call.namespace, claim)?;
        let volume = find("persistentvolumes", "", claim["spec"]["volumeName"].as_str()?)?;
        driver_of(&volume["spec"])
    };
    pod["spec"]["volumes"].as_array().into_iter().flatten().any(|volume| {
        let text = |value: &Value| value.as_str().map(str::to_owned);
        let driver = if let Some(claim) = text(&volume["persistentVolumeClaim"]["claimName"]) {
            of_claim(&claim)
        } else if volume["ephemeral"].is_object() {
            let name = |value: &Value| text(&value["name"]).unwrap_or_default();
            of_claim(&format!("{}-{}", name(&pod["metadata"]), name(volume)))
        } else {
            driver_of(volume)
        };
        projected(volume).any(|named| named == audience) || driver.is_some_and(|driver| asks(&driver))
    })
}

/// Audiences of the tokens that a volume projects.
fn projected(volume: &Value) -> impl Iterator<Item = &str> {
    let sources = volume["projected"]["sources"].as_array().into_iter().flatten();
    let tokens = sources.map(|source| &source["serviceAccountToken"]).filter(|token| token.is_object());
    tokens.map(|token| token["audience"].as_str().unwrap_or_default())
}

/// Audiences that a CSIDriver asks tokens for.
fn of_requests(driver: &Value) -> impl Iterator<Item = &str> {
    let requests = driver["spec"]["tokenRequests"].as_array().into_iter().flatten();
    requests.map(|request| request["audience"].as_str().unwrap_or_default())
}

/// Drivers that took over kinds of volumes from Kubernetes itself.
const TAKEN_OVER: [(&str, &str); 7] = [
    ("awsElasticBlockStore", "ebs.csi.aws.com"),
    ("azureDisk", "disk.csi.azure.com"),
    ("azureFile", "file.csi.azure.com"),
    ("cinder", "cinder.csi.openstack.org"),
    ("gcePersistentDisk", "pd.csi.storage.gke.io"),
    ("portworxVolume", "pxd.portworx.com"),
    ("vsphereVolume", "csi.vsphere.vmware.com"),
];

/// The driver of a volume, of a pod's or a persistent one.
fn driver_of(volume: &Value) -> Option<String> {
    if let Some(driver) = volume["csi"]["driver"].as_str() {
        return Some(driver.to_owned());
    }
    TAKEN_OVER.iter().find(|(kind, _)| volume[kind].is_object()).map(|(_, driver)| (*driver).to_owned())
}

/// Whether a node has the right to an audience for an account, whatever its pods name.
fn may_have_audience(call: &Call<'_>, new: &Value, audience: &str) -> bool {
    let info = RequestInfo {
        is_resource: true,
        verb: "request-serviceaccounts-token-audience".into(),
        version: "v1".into(),
        namespace: call.namespace.into(),
        // An audience may have slashes in it, and is the resource as a whole.
        resource: audience.into(),
        name: name(call, new).into(),
        ..RequestInfo::default()
    };
    call.server.authorizer.decide(&Attributes { user: call.user, info: &info }).allowed
}

/// Nodes get certificates only for pods they run. What a node may have seen before we did is no reason to refuse it for
/// good: that is told as a failure, after which it asks again.
fn pod_certificate(call: &Call<'_>, node: &str, new: &Value) -> Result<()> {
    let refuse = |why: String| Err(call.refuse(Some(new), why));
    let later = |why: String| Err(ApiError::new(500, "", why));
    if call.operation != Operation::Create {
        return refuse(format!("unexpected operation {}", call.operation.name()));
    }
    if !call.subresource.is_empty() {
        return refuse(format!("unexpected subresource {}", call.subresource));
    }
    let said = |key: &str| new["spec"][key].as_str().unwrap_or_default();
    let shown = |key: &str| quote(said(key));
    let found = |plural: &str, namespace: &str, name: &str| call.server.store.get(&plural.into(), namespace, name);
    let (pod_name, account_name) = (said("podName"), said("serviceAccountName"));
    if said("nodeName") != node {
        let (named, node) = (shown("nodeName"), quote(node));
        return refuse(format!("PodCertificateRequest.Spec.NodeName={named}, which is not the requesting node {node}"));
    }
    let about = "named in the PodCertificateRequest";
    let Some(own) = found("nodes", "", node) else {
        let node = quote(node);
        return later(format!("while retrieving node {node} {about}: node {node} not found"));
    };
    let place = quote(&format!("{}/{pod_name}", call.namespace));
    if *own.keys.uid != *said("nodeUID") {
        let (named, uid) = (shown("nodeUID"), quote(&own.keys.uid));
        return later(format!(
            "PodCertificateRequest for pod {place} names node UID {named}, inconsistent with the running node ({uid})"
        ));
    }
    let Some(pod) = found("pods", call.namespace, pod_name) else {
        return later(format!("while retrieving pod {place} {about}: pod {} not found", quote(pod_name)));
    };
    if *pod.keys.uid != *said("podUID") {
        let (named, uid) = (shown("podUID"), quote(&pod.keys.uid));
        return later(format!(
            "PodCertificateRequest for pod {place} contains pod UID ({named}) which differs from running pod {uid}"
        ));
    }
    let pod = pod.value();
    if pod["spec"]["nodeName"] != node {
        return refuse(format!("pod {place} is not running on node {} {about}", quote(node)));
    }
    if !pod["metadata"]["annotations"][MIRROR].is_null() {
        return refuse(format!("pod {place} is a mirror pod"));
    }
    let account = pod["spec"]["serviceAccountName"].as_str().unwrap_or_default();
    if account != account_name {
        let (named, account) = (quote(account_name), quote(account));
        return refuse(format!(
            "PodCertificateRequest for pod {place} contains serviceAccountName ({named}) that differs from running pod \
             ({account})"
        ));
    }
    let Some(account) = found("serviceaccounts", call.namespace, account_name) else {
        let whole = quote(&format!("{}/{account_name}", call.namespace));
        let name = quote(account_name);
        return later(format!("while retrieving service account {whole} {about}: serviceaccount {name} not found"));
    };
    if *account.keys.uid != *said("serviceAccountUID") {
        let (named, uid) = (shown("serviceAccountUID"), quote(&account.keys.uid));
        return later(format!(
            "PodCertificateRequest for pod {place} names service account UID {named}, which differs from the running \
             service account ({uid})"
        ));
    }
    Ok(())
}

fn lease(call: &Call<'_>, node: &str, new: &Value) -> Option<String> {
    const NAMESPACE: &str = "kube-node-lease";
    if call.namespace != NAMESPACE {
        return Some(format!("can only access leases in the {} system namespace", quote(NAMESPACE)));
    }
    let own = name(call, new) == node;
    (!own).then(|| "can only access node lease with the same name as the requesting node".into())
}

fn slice(call: &Call<'_>, node: &str, new: &Value) -> Option<String> {
    let (slice, verb) = match call.operation {
        Operation::Create => (new, "create"),
        Operation::Delete => (call.old?, "delete"),
        Operation::Update | Operation::Connect => return None,
    };
    let own = slice["spec"]["nodeName"] == node;
    (!own).then(|| format!("can only {verb} ResourceSlice with the same NodeName as the requesting node"))
}

fn request(call: &Call<'_>, node: &str, new: &Value) -> Option<String> {
    let signer = new["spec"]["signerName"].as_str().unwrap_or_default();
    if call.operation != Operation::Create || !call.subresource.is_empty() || !NODE_SIGNERS.contains(&signer) {
        return None;
    }
    match certificates::common_name(&new["spec"]["request"]) {
        Err(why) => Some(format!("unable to parse csr: {why}")),
        Ok(name) if name == format!("system:node:{node}") => None,
        Ok(_) => Some(format!("can only create a node CSR with CN=system:node:{node}")),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn volumes_name_audiences_and_drivers() {
        let volume = json!({"name": "v", "projected": {"sources": [
            {"serviceAccountToken": {"path": "t", "audience": "vault"}},
            {"serviceAccountToken": {"path": "u"}},
            {"configMap": {"name": "c"}},
        ]}});
        assert_eq!(projected(&volume).collect::<Vec<_>>(), ["vault", ""], "the server's own is no name");
        assert_eq!(driver_of(&volume), None);
        assert_eq!(driver_of(&json!({"csi": {"driver": "d"}})).as_deref(), Some("d"));
        assert_eq!(driver_of(&json!({"azureFile": {}})).as_deref(), Some("file.csi.azure.com"));
        let driver = json!({"spec": {"tokenRequests": [{"audience": "a"}, {"audience": "b"}]}});
        assert_eq!(of_requests(&driver).collect::<Vec<_>>(), ["a", "b"]);
    }

    #[test]
    fn nodes_leave_the_claims_of_their_pods_as_they_are() {
        let old = json!({"metadata": {"labels": {"a": "b"}}, "status": {"phase": "Pending"}});
        assert_eq!(
            forbidden_part(&json!({"metadata": {"labels": {"a": "b"}}, "status": {"phase": "Running"}}), &old),
            None
        );
        for (path, value, part) in [
            ("/metadata/labels", json!({"a": "c"}), "labels through pod status"),
            ("/status", json!({"resourceClaimStatuses": [{"name": "x"}]}), "resource claim statues"),
            (
                "/status",
                json!({"extendedResourceClaimStatus": {"resourceClaimName": "x"}}),
                "extended resource claim status",
            ),
        ] {
            let mut new = old.clone();
            *new.pointer_mut(path).expect("it is there") = value;
            assert_eq!(forbidden_part(&new, &old), Some(part));
        }
    }

    #[test]
    fn nodes_give_themselves_only_labels_of_their_own() {
        let node = |labels: Value| json!({"metadata": {"labels": labels}});
        let set = node(json!({
            "kubernetes.io/hostname": "n", "node.kubernetes.io/anything": "x", "a.kubelet.kubernetes.io/b": "x",
            "example.com/free": "x", "plain": "x",
        }));
        assert!(forbidden_labels(&set, &Value::Null).is_empty());
        let set = node(json!({
            "node-role.kubernetes.io/control-plane": "", "node-restriction.kubernetes.io/pci": "", "foo.k8s.io/x": "",
        }));
        assert_eq!(
            forbidden_labels(&set, &Value::Null),
            ["foo.k8s.io/x", "node-restriction.kubernetes.io/pci", "node-role.kubernetes.io/control-plane",]
        );
        // What was there may stay, and may not be taken away.
        assert!(forbidden_labels(&set, &set).is_empty());
        assert_eq!(forbidden_labels(&Value::Null, &set).len(), 3);
    }
}
