//! Questions to a pod's spec that many places ask.

use std::borrow::Cow;

use proto::api::core::v1::{Container, EphemeralContainer, Pod, PodSpec};
use proto::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use super::labels;

/// Access to the required parts of a pod; a pod without metadata or spec reads as an empty one.
pub trait PodExt {
    fn meta(&self) -> &ObjectMeta;
    fn spec(&self) -> &PodSpec;
    fn uid(&self) -> &str {
        &self.meta().uid
    }
    fn name(&self) -> &str {
        &self.meta().name
    }
    fn namespace(&self) -> &str {
        &self.meta().namespace
    }
    fn annotation(&self, key: &str) -> Option<&str> {
        self.meta().annotations.get(key).map(String::as_str)
    }
    /// `name_namespace(uid)`, as kubelet messages name a pod.
    fn described(&self) -> String {
        format!("{}_{}({})", self.name(), self.namespace(), self.uid())
    }
    fn is_deleted(&self) -> bool {
        self.meta().deletion_timestamp.is_some()
    }
    /// A pod of this node that does not come from the API server.
    fn is_static(&self) -> bool {
        self.annotation(labels::CONFIG_SOURCE).is_some_and(|s| s != "api")
    }
    /// The API server's picture of a static pod.
    fn is_mirror(&self) -> bool {
        self.meta().annotations.contains_key(labels::CONFIG_MIRROR)
    }
    /// Static, mirror or system-critical priority: runs ahead of others.
    fn is_critical(&self) -> bool {
        self.is_static() || self.is_mirror() || self.spec().priority.is_some_and(|p| p >= 2_000_000_000)
    }
    fn restarts(&self) -> RestartPolicy {
        RestartPolicy::of(&self.spec().restart_policy)
    }
    fn phase(&self) -> &str;
}

static EMPTY_META: std::sync::LazyLock<ObjectMeta> = std::sync::LazyLock::new(ObjectMeta::default);
static EMPTY_SPEC: std::sync::LazyLock<PodSpec> = std::sync::LazyLock::new(PodSpec::default);

impl PodExt for Pod {
    fn meta(&self) -> &ObjectMeta {
        self.metadata.as_ref().unwrap_or(&EMPTY_META)
    }
    fn spec(&self) -> &PodSpec {
        self.spec.as_ref().unwrap_or(&EMPTY_SPEC)
    }
    fn phase(&self) -> &str {
        self.status.as_ref().map_or("", |s| &s.phase)
    }
}

/// The pod's restart policy; anything unknown counts as `Always`, the API's default.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RestartPolicy {
    Always,
    OnFailure,
    Never,
}

impl RestartPolicy {
    fn of(text: &str) -> Self {
        match text {
            "OnFailure" => Self::OnFailure,
            "Never" => Self::Never,
            _ => Self::Always,
        }
    }
}

/// An init container that keeps running beside the others.
pub fn is_sidecar(container: &Container) -> bool {
    container.restart_policy.as_deref() == Some("Always")
}

/// Which list of the spec a container is in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum ContainerKind {
    Init,
    Regular,
    Ephemeral,
}

/// The container of that name, with the list that holds it. Ephemeral ones are converted.
pub fn find_container<'a>(spec: &'a PodSpec, name: &str) -> Option<(ContainerKind, Cow<'a, Container>)> {
    if let Some(c) = spec.containers.iter().find(|c| c.name == name) {
        return Some((ContainerKind::Regular, Cow::Borrowed(c)));
    }
    if let Some(c) = spec.init_containers.iter().find(|c| c.name == name) {
        return Some((ContainerKind::Init, Cow::Borrowed(c)));
    }
    let found = spec.ephemeral_containers.iter().find(|c| ephemeral_name(c) == name)?;
    Some((ContainerKind::Ephemeral, Cow::Owned(ephemeral_as_container(found))))
}

/// `spec.containers{name}`: how events name a container.
pub fn field_path(spec: &PodSpec, name: &str) -> String {
    match find_container(spec, name).map(|(kind, _)| kind) {
        Some(ContainerKind::Init) => format!("spec.initContainers{{{name}}}"),
        Some(ContainerKind::Ephemeral) => format!("spec.ephemeralContainers{{{name}}}"),
        Some(ContainerKind::Regular) => format!("spec.containers{{{name}}}"),
        None => String::new(),
    }
}

pub fn ephemeral_name(container: &EphemeralContainer) -> &str {
    container.ephemeral_container_common.as_ref().map_or("", |c| &c.name)
}

/// The common part of an ephemeral container as a container of its own.
pub fn ephemeral_as_container(container: &EphemeralContainer) -> Container {
    let c = container.ephemeral_container_common.clone().unwrap_or_default();
    Container {
        name: c.name,
        image: c.image,
        command: c.command,
        args: c.args,
        working_dir: c.working_dir,
        ports: c.ports,
        env_from: c.env_from,
        env: c.env,
        resources: c.resources,
        resize_policy: c.resize_policy,
        restart_policy: c.restart_policy,
        restart_policy_rules: c.restart_policy_rules,
        volume_mounts: c.volume_mounts,
        volume_devices: c.volume_devices,
        liveness_probe: c.liveness_probe,
        readiness_probe: c.readiness_probe,
        startup_probe: c.startup_probe,
        lifecycle: c.lifecycle,
        termination_message_path: c.termination_message_path,
        termination_message_policy: c.termination_message_policy,
        image_pull_policy: c.image_pull_policy,
        security_context: c.security_context,
        stdin: c.stdin,
        stdin_once: c.stdin_once,
        tty: c.tty,
    }
}
