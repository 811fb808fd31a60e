//! The runtime's own stream of events.

use std::time::Duration;

use proto::cri;
use tokio::sync::mpsc;

use super::parts::{self, Part, Parts};
use crate::cri::CriClient;
use crate::metrics;
use crate::pod::labels;

pub(super) enum StreamEvent {
    /// A stream has opened or ended: whether from now on all that happens is told of.
    Complete(bool),
    /// Something of a pod has moved: what it told, or that something has gone.
    Pod(String, Option<Parts>),
}

/// What an event says of its pod; `None` for what it does not say: what has gone. Beside the container that it is
/// about it tells of all in one sandbox.
fn parts_of(event: &cri::ContainerEventResponse) -> Option<Parts> {
    if event.container_event_type() == cri::ContainerEventType::ContainerDeletedEvent {
        return None;
    }
    let sandbox = event.pod_sandbox_status.as_ref()?;
    let containers = event.containers_statuses.iter().map(|c| Part::new(&c.id, c.state));
    Some(parts::parts(containers.chain([Part::new(&sandbox.id, sandbox.state)]).collect()))
}

/// Whether each reader of a stream gets every event. Before its second major version containerd has one queue for all
/// of them, and an event goes to whichever reader comes first, also to one that has gone without having been noticed.
/// CRI-O has one for each; of others nobody knows.
fn tells_everyone(runtime: &str, version: &str) -> bool {
    let version = version.strip_prefix('v').unwrap_or(version);
    let major = version.split(|c: char| !c.is_ascii_digit()).next().and_then(|major| major.parse::<u32>().ok());
    match runtime {
        "containerd" => major.is_some_and(|major| major >= 2),
        "cri-o" => true,
        _ => false,
    }
}

/// Follows the runtime's own events while it has any; ends for good where it does not know the call.
pub(super) async fn follow(cri: CriClient, events: mpsc::Sender<StreamEvent>) {
    let mut pause = Duration::from_secs(1);
    loop {
        match cri.container_events().await {
            Ok(mut stream) => {
                metrics::EVENTED_PLEG_CONNECTIONS.inc(&[]);
                // Asked for each stream: the runtime may be another one than before.
                let complete = cri.version().await.is_ok_and(|v| tells_everyone(&v.runtime_name, &v.runtime_version));
                if events.send(StreamEvent::Complete(complete)).await.is_err() {
                    return;
                }
                while let Ok(Some(event)) = stream.message().await {
                    // Also where it does not say of which pod.
                    cri.moves().stir();
                    pause = Duration::from_secs(1);
                    let told = parts_of(&event);
                    let status = event.pod_sandbox_status.unwrap_or_default();
                    let uid = status.metadata.map(|m| m.uid).or_else(|| status.labels.get(labels::POD_UID).cloned());
                    if let Some(uid) = uid.filter(|u| !u.is_empty())
                        && events.send(StreamEvent::Pod(uid, told)).await.is_err()
                    {
                        return;
                    }
                }
                if events.send(StreamEvent::Complete(false)).await.is_err() {
                    return;
                }
            }
            Err(e) if e.is_unimplemented() => return,
            Err(error) => {
                metrics::EVENTED_PLEG_ERRORS.inc(&[]);
                tracing::debug!(%error, "no stream of events from the runtime");
            }
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(Duration::from_secs(60));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_tells_what_there_is_and_not_what_has_gone() {
        let sandbox = cri::PodSandboxStatus { id: "s".into(), ..Default::default() };
        let running = cri::ContainerState::ContainerRunning as i32;
        let container = cri::ContainerStatus { id: "c".into(), state: running, ..Default::default() };
        let of = |kind: cri::ContainerEventType, sandbox: Option<&cri::PodSandboxStatus>| {
            parts_of(&cri::ContainerEventResponse {
                container_event_type: kind as i32,
                pod_sandbox_status: sandbox.cloned(),
                containers_statuses: vec![container.clone()],
                ..Default::default()
            })
        };
        let all = parts::parts(vec![Part::new("c", running), Part::new("s", 0)]);
        assert_eq!(of(cri::ContainerEventType::ContainerStartedEvent, Some(&sandbox)), Some(all));
        assert_eq!(of(cri::ContainerEventType::ContainerDeletedEvent, Some(&sandbox)), None);
        assert_eq!(of(cri::ContainerEventType::ContainerStoppedEvent, None), None);
    }

    /// Any open stream was trusted to tell of everything, and of a container that had died nobody knew for a minute
    /// where another reader had got the event.
    #[test]
    fn a_stream_is_complete_where_each_reader_gets_every_event() {
        for version in ["2.0.0", "v2.1.4", "v2.0.0-rc.1", "10.0"] {
            assert!(tells_everyone("containerd", version), "{version}");
        }
        for version in ["1.7.27", "v1.7.0", "1.7.24~ds1-2", "", "unknown"] {
            assert!(!tells_everyone("containerd", version), "{version}");
        }
        assert!(tells_everyone("cri-o", "1.30.0"));
        assert!(!tells_everyone("docker", "28.0.0") && !tells_everyone("", "2.0.0"));
    }
}
