//! A manifest of a static pod: read, defaulted, named and identified.
//!
//! The API server defaults what it stores; nobody does for a file, so the defaults of pods are applied here. The uid is
//! a hash of the content, the node and the path: the same file is the same pod after a restart, a changed file is
//! another pod.

use proto::api::core::v1::{Container, Pod, PodSecurityContext, PodSpec, Probe, Toleration, Volume};
use proto::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use crate::pod::hash::fnv1a_128;
use crate::pod::labels;
use crate::pod::spec::PodExt;

const POD: &str = "k8s.io.api.core.v1.Pod";
/// `MaxManifestSize` of the kubelet.
pub const MAX_BYTES: u64 = 10 << 20;

/// A manifest that makes no pod; whoever wrote the file must mend it.
#[derive(Debug, thiserror::Error)]
pub enum ManifestError {
    #[error("not YAML or JSON: {0}")]
    Syntax(String),
    #[error("kind is {0:?}, wanted v1 Pod")]
    Kind(String),
    #[error("{0}")]
    Shape(#[from] crate::wire_json::WireError),
    #[error("{0}")]
    Invalid(String),
}

/// Reads a manifest; `origin` (`file:PATH`) is part of the pod's identity.
pub fn parse(text: &[u8], node: &str, origin: &str) -> Result<Pod, ManifestError> {
    let value = proto::yaml::parse(text).map_err(|e| ManifestError::Syntax(e.to_string()))?;
    let word = |key: &str| value.get(key).and_then(serde_json::Value::as_str).unwrap_or("").to_owned();
    if word("kind") != "Pod" || word("apiVersion") != "v1" {
        return Err(ManifestError::Kind(format!("{} {}", word("apiVersion"), word("kind"))));
    }
    let mut pod: Pod = crate::wire_json::from_value(POD, &value)?;
    check(&pod)?;
    let meta = pod.metadata.get_or_insert_with(ObjectMeta::default);
    if meta.uid.is_empty() {
        let mut content = value.to_string().into_bytes();
        content.extend_from_slice(format!("host:{node}{origin}").as_bytes());
        meta.uid = format!("{:032x}", fnv1a_128(&content));
    }
    meta.name = format!("{}-{}", meta.name, node.to_lowercase());
    if meta.namespace.is_empty() {
        meta.namespace = "default".into();
    }
    meta.annotations.insert(labels::CONFIG_HASH.into(), meta.uid.clone());
    let spec = pod.spec.get_or_insert_with(PodSpec::default);
    spec.node_name = node.to_owned();
    // A static pod belongs here whatever the node suffers.
    spec.tolerations.push(Toleration { operator: "Exists".into(), effect: "NoExecute".into(), ..Default::default() });
    default_spec(spec);
    let status = pod.status.get_or_insert_default();
    status.phase = "Pending".into();
    Ok(pod)
}

/// What a pod without the API server cannot have.
fn check(pod: &Pod) -> Result<(), ManifestError> {
    let invalid = |why: String| Err(ManifestError::Invalid(why));
    if pod.name().is_empty() {
        return invalid("the pod has no name".into());
    }
    let spec = pod.spec();
    if spec.containers.is_empty() {
        return invalid("the pod has no containers".into());
    }
    if !spec.ephemeral_containers.is_empty() {
        return invalid("static pods cannot have ephemeral containers".into());
    }
    let refused = |what: &str| invalid(format!("static pods may not reference {what}"));
    if !spec.service_account_name.is_empty() || !spec.service_account.is_empty() {
        return refused("serviceaccounts");
    }
    if !spec.image_pull_secrets.is_empty() {
        return refused("imagePullSecrets");
    }
    if !spec.resource_claims.is_empty() {
        return refused("resourceclaims");
    }
    for volume in &spec.volumes {
        let Some(source) = &volume.volume_source else { continue };
        let projected = source.projected.iter().flat_map(|p| &p.sources);
        let mut secret = source.secret.is_some();
        let mut config_map = source.config_map.is_some();
        for part in projected {
            secret |= part.secret.is_some();
            config_map |= part.config_map.is_some();
            if part.service_account_token.is_some() {
                return refused("serviceaccounts");
            }
        }
        if secret {
            return refused("secrets");
        }
        if config_map {
            return refused("configmaps");
        }
        if source.persistent_volume_claim.is_some() {
            return refused("persistentvolumeclaims");
        }
    }
    for container in spec.containers.iter().chain(&spec.init_containers) {
        let from = container.env.iter().filter_map(|e| e.value_from.as_ref());
        let keys: Vec<_> = from.collect();
        if keys.iter().any(|f| f.secret_key_ref.is_some()) || container.env_from.iter().any(|f| f.secret_ref.is_some())
        {
            return refused("secrets");
        }
        if keys.iter().any(|f| f.config_map_key_ref.is_some())
            || container.env_from.iter().any(|f| f.config_map_ref.is_some())
        {
            return refused("configmaps");
        }
    }
    Ok(())
}

fn default_text(text: &mut String, value: &str) {
    if text.is_empty() {
        value.clone_into(text);
    }
}

fn default_spec(spec: &mut PodSpec) {
    default_text(&mut spec.restart_policy, "Always");
    default_text(&mut spec.dns_policy, "ClusterFirst");
    default_text(&mut spec.scheduler_name, "default-scheduler");
    spec.termination_grace_period_seconds.get_or_insert(30);
    spec.enable_service_links.get_or_insert(true);
    spec.security_context.get_or_insert_with(PodSecurityContext::default);
    let host_network = spec.host_network;
    for container in spec.containers.iter_mut().chain(&mut spec.init_containers) {
        default_container(container, host_network);
    }
    for volume in &mut spec.volumes {
        default_volume(volume);
    }
}

fn default_container(container: &mut Container, host_network: bool) {
    default_text(&mut container.termination_message_path, "/dev/termination-log");
    default_text(&mut container.termination_message_policy, "File");
    if container.image_pull_policy.is_empty() {
        let latest = match crate::images::reference::parse(&container.image) {
            Ok(r) => r.digest.is_none() && r.tag.is_none_or(|t| t == "latest"),
            Err(_) => false,
        };
        container.image_pull_policy = if latest { "Always" } else { "IfNotPresent" }.into();
    }
    for port in &mut container.ports {
        default_text(&mut port.protocol, "TCP");
        if host_network && port.host_port == 0 {
            port.host_port = port.container_port;
        }
    }
    let resources = container.resources.get_or_insert_default();
    for (name, limit) in &resources.limits {
        resources.requests.entry(name.clone()).or_insert_with(|| limit.clone());
    }
    let probes = [&mut container.liveness_probe, &mut container.readiness_probe, &mut container.startup_probe];
    for probe in probes.into_iter().flatten() {
        default_probe(probe);
    }
    for variable in &mut container.env {
        if let Some(field) = variable.value_from.as_mut().and_then(|f| f.field_ref.as_mut()) {
            default_text(&mut field.api_version, "v1");
        }
    }
    let hooks = container.lifecycle.iter_mut().flat_map(|l| [&mut l.post_start, &mut l.pre_stop]);
    for action in hooks.flatten().filter_map(|h| h.http_get.as_mut()) {
        default_text(&mut action.scheme, "HTTP");
        default_text(&mut action.path, "/");
    }
}

fn default_probe(probe: &mut Probe) {
    for (value, default) in [
        (&mut probe.timeout_seconds, 1),
        (&mut probe.period_seconds, 10),
        (&mut probe.success_threshold, 1),
        (&mut probe.failure_threshold, 3),
    ] {
        if *value == 0 {
            *value = default;
        }
    }
    if let Some(action) = probe.handler.as_mut().and_then(|h| h.http_get.as_mut()) {
        default_text(&mut action.scheme, "HTTP");
        default_text(&mut action.path, "/");
    }
    if let Some(action) = probe.handler.as_mut().and_then(|h| h.grpc.as_mut()) {
        action.service.get_or_insert_default();
    }
}

fn default_volume(volume: &mut Volume) {
    const MODE: i32 = 0o644;
    let source = volume.volume_source.get_or_insert_default();
    if let Some(host) = &mut source.host_path {
        host.r#type.get_or_insert_default();
    }
    if let Some(downward) = &mut source.downward_api {
        downward.default_mode.get_or_insert(MODE);
    }
    if let Some(projected) = &mut source.projected {
        projected.default_mode.get_or_insert(MODE);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str =
        "apiVersion: v1\nkind: Pod\nmetadata: {name: st}\nspec: {containers: [{name: main, image: busybox}]}\n";

    #[test]
    fn a_manifest_becomes_a_named_and_defaulted_pod() {
        let pod = parse(TEXT.as_bytes(), "Node-A", "file:/m/st.yaml").unwrap();
        assert_eq!((pod.name(), pod.namespace()), ("st-node-a", "default"));
        assert_eq!(pod.uid().len(), 32);
        assert_eq!(pod.annotation(labels::CONFIG_HASH), Some(pod.uid()));
        assert_eq!(pod.spec().containers[0].image_pull_policy, "Always");
        assert_eq!(pod.spec().tolerations.len(), 1);
    }

    #[test]
    fn identity_depends_on_content_node_and_path() {
        let uid = |text: &str, node, path| parse(text.as_bytes(), node, path).unwrap().uid().to_owned();
        assert_eq!(uid(TEXT, "n", "file:/a"), uid(TEXT, "n", "file:/a"));
        assert_ne!(uid(TEXT, "n", "file:/a"), uid(TEXT, "n", "file:/b"));
        assert_ne!(uid(TEXT, "n", "file:/a"), uid(&TEXT.replace("busybox", "x"), "n", "file:/a"));
    }

    #[test]
    fn api_objects_cannot_be_referenced() {
        let text = TEXT.replace("spec: {", "spec: {serviceAccountName: x, ");
        assert!(parse(text.as_bytes(), "n", "f").is_err());
        assert!(parse(b"kind: Job\napiVersion: v1\n", "n", "f").is_err());
        assert!(parse(b"{", "n", "f").is_err());
    }
}
