//! A pod as the runtime knows it: names and images, no more. The answer of `/runningpods/`.

use proto::cri;
use serde::Serialize;

use crate::pod::labels;

#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct RunningPod {
    metadata: Metadata,
    spec: Spec,
    status: Empty,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
struct Metadata {
    name: String,
    namespace: String,
    uid: String,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
struct Spec {
    /// `null` for none, as Go writes a list that was never made.
    containers: Option<Vec<Container>>,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
struct Container {
    name: String,
    image: String,
    resources: Empty,
}

/// `{}`.
#[derive(Debug, Clone, PartialEq, Serialize)]
struct Empty {}

impl RunningPod {
    /// The pod of a sandbox, with those of `containers` that run in it.
    pub(super) fn of(sandbox: cri::PodSandbox, containers: &[cri::Container]) -> Self {
        let running = containers
            .iter()
            .filter(|c| c.pod_sandbox_id == sandbox.id && c.state == cri::ContainerState::ContainerRunning as i32);
        let containers: Vec<Container> = running
            .map(|c| Container {
                name: c.labels.get(labels::CONTAINER_NAME).cloned().unwrap_or_default(),
                image: c.image.as_ref().map(|i| i.image.clone()).unwrap_or_default(),
                resources: Empty {},
            })
            .collect();
        let metadata = sandbox.metadata.unwrap_or_default();
        RunningPod {
            metadata: Metadata { name: metadata.name, namespace: metadata.namespace, uid: metadata.uid },
            spec: Spec { containers: (!containers.is_empty()).then_some(containers) },
            status: Empty {},
        }
    }
}
