//! Labels and annotations by which the agent finds its pods and containers in the runtime again.
//!
//! Written at creation, read after a restart of the agent: they are the only memory of a container's hash, attempt and
//! hooks, so names and forms are exactly the kubelet's (either agent can take over from the other).

use std::collections::BTreeMap;

pub const POD_NAME: &str = "io.kubernetes.pod.name";
pub const POD_NAMESPACE: &str = "io.kubernetes.pod.namespace";
pub const POD_UID: &str = "io.kubernetes.pod.uid";
pub const CONTAINER_NAME: &str = "io.kubernetes.container.name";

pub const HASH: &str = "io.kubernetes.container.hash";
pub const RESTART_COUNT: &str = "io.kubernetes.container.restartCount";
pub const TERMINATION_MESSAGE_PATH: &str = "io.kubernetes.container.terminationMessagePath";
pub const TERMINATION_MESSAGE_POLICY: &str = "io.kubernetes.container.terminationMessagePolicy";
pub const PRE_STOP_HANDLER: &str = "io.kubernetes.container.preStopHandler";
pub const PORTS: &str = "io.kubernetes.container.ports";
pub const DELETION_GRACE_PERIOD: &str = "io.kubernetes.pod.deletionGracePeriod";
pub const TERMINATION_GRACE_PERIOD: &str = "io.kubernetes.pod.terminationGracePeriod";

/// Annotation: where the pod came from (`api`, `file`, `http`).
pub const CONFIG_SOURCE: &str = "kubernetes.io/config.source";
/// Annotation: when this agent first saw the pod, RFC 3339 with nanoseconds.
pub const CONFIG_SEEN: &str = "kubernetes.io/config.seen";
/// Annotation: hash of a static pod, which is also its uid.
pub const CONFIG_HASH: &str = "kubernetes.io/config.hash";
/// Annotation of a mirror pod: the hash of the static pod that it shows.
pub const CONFIG_MIRROR: &str = "kubernetes.io/config.mirror";

/// The pod of a runtime object by its labels; `None` for objects that no kubelet made.
pub fn owner(labels: &BTreeMap<String, String>) -> Option<PodRef<'_>> {
    owner_by(|name| labels.get(name).map(String::as_str))
}

/// The same where labels are no map.
pub fn owner_by<'a>(label: impl Fn(&str) -> Option<&'a str>) -> Option<PodRef<'a>> {
    Some(PodRef { uid: label(POD_UID)?, name: label(POD_NAME)?, namespace: label(POD_NAMESPACE)? })
}

/// Names of a pod as the runtime remembers them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct PodRef<'a> {
    pub uid: &'a str,
    pub name: &'a str,
    pub namespace: &'a str,
}
