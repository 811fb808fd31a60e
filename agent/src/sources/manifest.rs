//! A manifest of a static pod: read, defaulted, named and identified.
//!
//! The API server defaults what it stores; nobody does for a file, so the defaults of pods are applied here. The uid is
//! a hash of the content, the node and the path: the same file is the same pod after a restart, a changed file is
//! another pod.

use std::path::Path;

use proto::api::core::v1::{
    Container, EmptyDirVolumeSource, Pod, PodSecurityContext, PodSpec, Probe, Toleration, Volume, VolumeProjection,
    VolumeSource,
};
use proto::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde_json::Value;

use crate::pod::hash::fnv1a_128;
use crate::pod::labels;
use crate::pod::spec::PodExt;

use super::rules;

const POD: &str = "k8s.io.api.core.v1.Pod";
/// `MaxManifestSize` of the kubelet.
pub const MAX_BYTES: u64 = 10 << 20;

/// Of what is wrong with a manifest; the log must not fill with one file.
const MOST_TOLD: usize = 20;
/// Of each of these, which shows what the file says.
const MOST_CHARACTERS: usize = 400;

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

/// Where a manifest was found; part of the identity of its pods.
#[derive(Debug, Clone, Copy)]
pub enum Origin<'a> {
    File(&'a Path),
    Url(&'a str),
}

/// What manifests are read for.
#[derive(Debug, Clone)]
pub struct Manifests {
    pub node: String,
    /// Pods may name objects of the API server, and wait for them (`PreventStaticPodAPIReferences` is off).
    pub may_reference: bool,
}

impl Manifests {
    /// Reads a manifest of one pod.
    ///
    /// # Errors
    /// The text is no pod, or one that cannot be static.
    pub fn parse(&self, text: &[u8], origin: Origin) -> Result<Pod, ManifestError> {
        self.pod_of(&value_of(text)?, origin)
    }

    /// Reads a manifest of one pod, or of a list of them: `PodList`, or a `List` whose items are pods. An empty list is
    /// fine; of a list with a pod that cannot be used, none is.
    ///
    /// # Errors
    /// As [`Manifests::parse`].
    pub fn parse_all(&self, text: &[u8], origin: Origin) -> Result<Vec<Pod>, ManifestError> {
        let value = value_of(text)?;
        let list = match (word(&value, "apiVersion"), word(&value, "kind")) {
            ("v1", kind @ ("PodList" | "List")) => kind,
            _ => return Ok(vec![self.pod_of(&value, origin)?]),
        };
        let items = match value.get("items") {
            None | Some(Value::Null) => &[][..],
            Some(Value::Array(items)) => items,
            Some(_) => return Err(ManifestError::Invalid(format!("the items of the {list} are no list"))),
        };
        items
            .iter()
            .map(|item| match item {
                // The items of a PodList need not say again what they are.
                Value::Object(fields) if list == "PodList" => {
                    let mut fields = fields.clone();
                    fields.entry("apiVersion").or_insert_with(|| "v1".into());
                    fields.entry("kind").or_insert_with(|| "Pod".into());
                    self.pod_of(&Value::Object(fields), origin)
                }
                item => self.pod_of(item, origin),
            })
            .collect()
    }

    fn pod_of(&self, value: &Value, origin: Origin) -> Result<Pod, ManifestError> {
        let (version, kind) = (word(value, "apiVersion"), word(value, "kind"));
        if (version, kind) != ("v1", "Pod") {
            return Err(ManifestError::Kind(format!("{version} {kind}")));
        }
        let mut pod: Pod = crate::wire_json::from_value(POD, value)?;
        check(value, &pod)?;
        if let Some(what) = api_object(&pod).filter(|_| !self.may_reference) {
            return Err(ManifestError::Invalid(format!("static pods may not reference {what}")));
        }
        place(&mut pod, value, &self.node, origin);
        Ok(pod)
    }
}

fn value_of(text: &[u8]) -> Result<Value, ManifestError> {
    proto::yaml::parse(text).map_err(|e| ManifestError::Syntax(e.to_string()))
}

fn word<'a>(value: &'a Value, key: &str) -> &'a str {
    value.get(key).and_then(Value::as_str).unwrap_or("")
}

/// Makes it a pod of the node, with all that the API server would have given it.
fn place(pod: &mut Pod, value: &Value, node: &str, origin: Origin) {
    let meta = pod.metadata.get_or_insert_with(ObjectMeta::default);
    if meta.uid.is_empty() {
        let mut content = value.to_string().into_bytes();
        match origin {
            Origin::File(path) => content.extend_from_slice(format!("host:{node}file:{}", path.display()).as_bytes()),
            Origin::Url(url) => content.extend_from_slice(format!("url:{url}").as_bytes()),
        }
        meta.uid = format!("{:032x}", fnv1a_128(&content));
    }
    meta.name = format!("{}-{}", meta.name, node.to_lowercase());
    if meta.namespace.is_empty() {
        meta.namespace = "default".into();
    }
    meta.annotations.insert(labels::CONFIG_HASH.into(), meta.uid.clone());
    let spec = pod.spec.get_or_insert_with(PodSpec::default);
    spec.node_name = node.to_owned();
    // A pod of a file belongs here whatever the node suffers.
    let tolerates_all = Toleration { operator: "Exists".into(), effect: "NoExecute".into(), ..Default::default() };
    if matches!(origin, Origin::File(_)) && !spec.tolerations.contains(&tolerates_all) {
        spec.tolerations.push(tolerates_all);
    }
    default_spec(spec);
    let status = pod.status.get_or_insert_default();
    status.phase = "Pending".into();
}

/// What no pod of a manifest can have.
fn check(value: &Value, pod: &Pod) -> Result<(), ManifestError> {
    let invalid = |why: String| Err(ManifestError::Invalid(why));
    let broken = rules::broken(value);
    if !broken.is_empty() {
        let short = |why: &String| why.chars().take(MOST_CHARACTERS).collect::<String>();
        let told: Vec<String> = broken.iter().take(MOST_TOLD).map(short).collect();
        return invalid(format!("invalid pod: [{}]", told.join(" ")));
    }
    if !pod.spec().ephemeral_containers.is_empty() {
        return invalid("static pods cannot have ephemeral containers".into());
    }
    Ok(())
}

/// The first object of the API server that a pod needs to run, as the kubelet names it: without the API server nobody
/// has such objects, and a pod of a file must not wait for it.
fn api_object(pod: &Pod) -> Option<&'static str> {
    let spec = pod.spec();
    if !spec.service_account_name.is_empty() || !spec.service_account.is_empty() {
        return Some("serviceaccounts");
    }
    let references = crate::objects::references::of(pod);
    if !references.secrets.is_empty() {
        return Some("secrets");
    }
    if !references.config_maps.is_empty() {
        return Some("configmaps");
    }
    if !spec.resource_claims.is_empty() {
        return Some("resourceclaims");
    }
    spec.volumes.iter().filter_map(|volume| volume.volume_source.as_ref()).find_map(api_object_of_volume)
}

fn api_object_of_volume(source: &VolumeSource) -> Option<&'static str> {
    // Those that name nothing.
    let of_projection = |part: &VolumeProjection| {
        let kinds = [
            (part.config_map.is_some(), "configmaps (via projected volumes)"),
            (part.secret.is_some(), "secrets (via projected volumes)"),
            (part.service_account_token.is_some(), "serviceaccounts (via projected volumes)"),
            (part.cluster_trust_bundle.is_some(), "clustertrustbundles"),
            (part.pod_certificate.is_some(), "podcertificates"),
        ];
        kinds.into_iter().find(|(has, _)| *has).map(|(_, what)| what)
    };
    let kinds = [
        (source.config_map.is_some(), "configmaps (via configmap volumes)"),
        (source.secret.is_some(), "secrets (via secret volumes)"),
        (source.csi.is_some(), "csidrivers (via CSI volumes)"),
        (source.glusterfs.is_some(), "endpoints (via glusterFS volumes)"),
        (source.persistent_volume_claim.is_some(), "persistentvolumeclaims"),
        (source.ephemeral.is_some(), "persistentvolumeclaims (via ephemeral volumes)"),
        (source.azure_file.is_some(), "secrets (via azureFile volumes)"),
    ];
    let own = kinds.into_iter().find(|(has, _)| *has).map(|(_, what)| what);
    own.or_else(|| source.projected.iter().flat_map(|p| &p.sources).find_map(of_projection))
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
    default_pull_policy(&mut container.image_pull_policy, &container.image);
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

fn default_pull_policy(policy: &mut String, image: &str) {
    let latest = match crate::images::reference::parse(image) {
        Ok(r) => r.tag.map_or(r.digest.is_none(), |tag| tag == "latest"),
        Err(_) => false,
    };
    default_text(policy, if latest { "Always" } else { "IfNotPresent" });
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
    if *source == VolumeSource::default() {
        source.empty_dir = Some(EmptyDirVolumeSource::default());
    }
    if let Some(image) = &mut source.image {
        default_pull_policy(&mut image.pull_policy, &image.reference);
    }
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

    fn file(path: &str) -> Origin<'_> {
        Origin::File(Path::new(path))
    }

    fn of(node: &str) -> Manifests {
        Manifests { node: node.into(), may_reference: false }
    }

    fn parse(text: &[u8], node: &str, origin: Origin) -> Result<Pod, ManifestError> {
        of(node).parse(text, origin)
    }

    #[test]
    fn lists_hold_pods_in_any_of_their_forms() {
        let item = r#"{"metadata":{"name":"a"},"spec":{"containers":[{"name":"c","image":"x"}]}}"#;
        let whole = item.replacen('{', r#"{"apiVersion":"v1","kind":"Pod","#, 1);
        let parse = |text: String| of("N").parse_all(text.as_bytes(), Origin::Url("http://x/"));
        let names = |text: String| parse(text).unwrap().iter().map(|p| p.name().to_owned()).collect::<Vec<_>>();
        assert_eq!(names(whole.clone()), ["a-n"]);
        assert_eq!(
            names(format!(r#"{{"apiVersion":"v1","kind":"PodList","items":[{item},{whole}]}}"#)),
            ["a-n", "a-n"]
        );
        assert_eq!(names(format!("apiVersion: v1\nkind: List\nitems:\n- {whole}\n")), ["a-n"]);
        assert!(names(r#"{"apiVersion":"v1","kind":"PodList"}"#.into()).is_empty());
        // What an item of a general list is, it has to say.
        assert!(parse(format!(r#"{{"apiVersion":"v1","kind":"List","items":[{item}]}}"#)).is_err());
        assert!(parse(r#"{"apiVersion":"v1","kind":"PodList","items":{}}"#.into()).is_err());
        assert!(parse(format!(r#"{{"apiVersion":"v1","kind":"PodList","items":[{whole},{{}}]}}"#)).is_err());
        assert!(parse(whole).unwrap()[0].spec().tolerations.is_empty(), "only files give the toleration");
    }

    #[test]
    fn a_manifest_becomes_a_named_and_defaulted_pod() {
        let pod = parse(TEXT.as_bytes(), "Node-A", file("/m/st.yaml")).unwrap();
        assert_eq!((pod.name(), pod.namespace()), ("st-node-a", "default"));
        assert_eq!(pod.uid().len(), 32);
        assert_eq!(pod.annotation(labels::CONFIG_HASH), Some(pod.uid()));
        assert_eq!(pod.spec().containers[0].image_pull_policy, "Always");
        assert_eq!(pod.spec().tolerations.len(), 1);
    }

    #[test]
    fn volumes_of_a_manifest_are_what_the_api_server_would_make_of_them() {
        let volumes = "volumes: [{name: e}, {name: l, image: {reference: busybox}}, {name: t, image: {reference: 'x:1'}}, \
                       {name: v, image: {reference: x, pullPolicy: Never}}, {name: h, hostPath: {path: /x}}, \
                       {name: d, image: {reference: 'x:latest@sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef'}}], ";
        let text = TEXT.replace("spec: {", &format!("spec: {{{volumes}"));
        let pod = parse(text.as_bytes(), "n", file("f")).unwrap();
        let source = |i: usize| pod.spec().volumes[i].volume_source.clone().unwrap();
        assert!(source(0).empty_dir.is_some() && source(4).empty_dir.is_none());
        let policies = [1, 2, 3, 5].map(|i| source(i).image.unwrap().pull_policy);
        assert_eq!(policies, ["Always", "IfNotPresent", "Never", "Always"]);
    }

    #[test]
    fn identity_depends_on_content_node_and_path() {
        let uid = |text: &str, node, path| parse(text.as_bytes(), node, path).unwrap().uid().to_owned();
        assert_eq!(uid(TEXT, "n", file("/a")), uid(TEXT, "n", file("/a")));
        assert_ne!(uid(TEXT, "n", file("/a")), uid(TEXT, "n", file("/b")));
        assert_ne!(uid(TEXT, "n", file("/a")), uid(TEXT, "m", file("/a")));
        assert_ne!(uid(TEXT, "n", file("/a")), uid(&TEXT.replace("busybox", "x"), "n", file("/a")));
        // A URL is the same place for every node.
        assert_eq!(uid(TEXT, "n", Origin::Url("http://a")), uid(TEXT, "m", Origin::Url("http://a")));
        assert_ne!(uid(TEXT, "n", Origin::Url("http://a")), uid(TEXT, "n", Origin::Url("http://b")));
    }

    #[test]
    fn api_objects_cannot_be_referenced() {
        let refusal = |more: &str| {
            let text = TEXT.replace("spec: {", &format!("spec: {{{more}, "));
            parse(text.as_bytes(), "n", file("f")).map_err(|error| error.to_string())
        };
        let volume = |source: &str| format!("volumes: [{{name: v, {source}}}]");
        let projected = |source: &str| volume(&format!("projected: {{sources: [{{{source}}}]}}"));
        for (more, what) in [
            ("serviceAccountName: x".to_owned(), "serviceaccounts"),
            ("serviceAccount: x".to_owned(), "serviceaccounts"),
            ("imagePullSecrets: [{name: x}]".to_owned(), "secrets"),
            (
                "initContainers: [{name: i, image: x, env: [{name: A, valueFrom: {secretKeyRef: {name: s, key: k}}}]}]"
                    .to_owned(),
                "secrets",
            ),
            ("initContainers: [{name: i, image: x, envFrom: [{configMapRef: {name: m}}]}]".to_owned(), "configmaps"),
            ("resourceClaims: [{name: c}]".to_owned(), "resourceclaims"),
            (volume("secret: {secretName: s}"), "secrets"),
            (volume("secret: {}"), "secrets (via secret volumes)"),
            (volume("configMap: {name: m}"), "configmaps"),
            (volume("csi: {driver: d}"), "csidrivers (via CSI volumes)"),
            (volume("csi: {driver: d, nodePublishSecretRef: {name: s}}"), "secrets"),
            (volume("iscsi: {targetPortal: p, iqn: i, lun: 0, secretRef: {name: s}}"), "secrets"),
            (volume("persistentVolumeClaim: {claimName: c}"), "persistentvolumeclaims"),
            (volume("ephemeral: {volumeClaimTemplate: {spec: {}}}"), "persistentvolumeclaims (via ephemeral volumes)"),
            (projected("secret: {name: s}"), "secrets"),
            (projected("serviceAccountToken: {path: t}"), "serviceaccounts (via projected volumes)"),
            (projected("clusterTrustBundle: {path: t}"), "clustertrustbundles"),
            (projected("podCertificate: {signerName: s}"), "podcertificates"),
        ] {
            assert_eq!(refusal(&more).unwrap_err(), format!("static pods may not reference {what}"), "{more}");
            let text = TEXT.replace("spec: {", &format!("spec: {{{more}, "));
            let free = Manifests { may_reference: true, ..of("n") };
            assert!(free.parse(text.as_bytes(), file("f")).is_ok(), "{more}");
        }
        for fine in ["iscsi: {targetPortal: p, iqn: i, lun: 0}", "nfs: {server: s, path: /p}", "hostPath: {path: /x}"] {
            assert!(refusal(&volume(fine)).is_ok(), "{fine}");
        }
        assert!(refusal(&projected("downwardAPI: {items: [{path: p, fieldRef: {fieldPath: metadata.name}}]}")).is_ok());
        // What no server would have taken is no pod, and is told first.
        let told = refusal("restartPolicy: Now, serviceAccountName: x").unwrap_err();
        assert!(told.starts_with("invalid pod: [spec.restartPolicy: Unsupported value: \"Now\""), "{told}");
        let told = refusal(&format!("restartPolicy: {}", "x".repeat(100_000))).unwrap_err();
        assert!(told.len() < 1000, "{} bytes", told.len());
        // One without a name needs nothing.
        assert!(refusal("imagePullSecrets: [{}]").is_ok());
        assert!(parse(b"kind: Job\napiVersion: v1\n", "n", file("f")).is_err());
        assert!(parse(b"{", "n", file("f")).is_err());
    }
}
