//! Events about pods: the kubelet's reasons and messages, counted and combined as client-go does.
//!
//! [`Recorder::event`] never waits: a full queue drops the event (it is a hint, not a record). One task sends: an event
//! equal to an earlier one raises that one's count; more than ten similar ones within ten minutes are combined into
//! one; a burst about one object is limited.

mod correlate;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use proto::api::core::v1::{Event, EventSource, ObjectReference, Pod};
use proto::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use tokio::sync::mpsc;

use crate::api::{ApiError, Client, PatchType};
use crate::pod::spec::{PodExt, field_path};

use correlate::{Correlator, Decision};

/// The name under which the agent reports, so that tools that filter by it keep working.
pub const COMPONENT: &str = "kubelet";
/// Events that wait to be sent.
const QUEUE: usize = 1000;
/// client-go's number of tries.
const TRIES: u32 = 12;
const RETRY: Duration = Duration::from_secs(10);

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum EventType {
    Normal,
    Warning,
}

impl EventType {
    fn as_str(self) -> &'static str {
        match self {
            Self::Normal => "Normal",
            Self::Warning => "Warning",
        }
    }
}

/// An event about an object, not yet correlated.
#[derive(Debug, Clone)]
pub struct Notice {
    pub object: ObjectReference,
    pub kind: EventType,
    pub reason: String,
    pub message: String,
    /// Of the event, for programs.
    pub annotations: BTreeMap<String, String>,
}

/// A handle on the queue; cheap to clone.
#[derive(Clone)]
pub struct Recorder {
    queue: mpsc::Sender<Notice>,
}

impl Recorder {
    /// The handle and the task that sends until the last handle is dropped.
    pub fn new(client: Client, node: &str) -> (Self, impl Future<Output = ()> + Send + 'static) {
        let (queue, receiver) = mpsc::channel(QUEUE);
        let node: Arc<str> = node.into();
        (Self { queue }, send_all(client, node, receiver))
    }

    /// About a pod as a whole.
    pub fn pod(&self, pod: &Pod, kind: EventType, reason: &str, message: impl Into<String>) {
        self.event(reference(pod, String::new()), kind, reason, message.into());
    }

    /// About one container of a pod.
    pub fn container(&self, pod: &Pod, name: &str, kind: EventType, reason: &str, message: impl Into<String>) {
        self.event(reference(pod, field_path(pod.spec(), name)), kind, reason, message.into());
    }

    /// About a pod as a whole, with annotations of the event.
    pub fn annotated(
        &self,
        pod: &Pod,
        kind: EventType,
        reason: &str,
        message: String,
        annotations: BTreeMap<String, String>,
    ) {
        self.send(reference(pod, String::new()), kind, reason, message, annotations);
    }

    /// About any object.
    pub fn event(&self, object: ObjectReference, kind: EventType, reason: &str, message: String) {
        self.send(object, kind, reason, message, BTreeMap::new());
    }

    fn send(
        &self,
        object: ObjectReference,
        kind: EventType,
        reason: &str,
        message: String,
        annotations: BTreeMap<String, String>,
    ) {
        tracing::debug!(object = %object.name, namespace = %object.namespace, reason, message, "event");
        let notice = Notice { object, kind, reason: reason.to_owned(), message, annotations };
        if self.queue.try_send(notice).is_err() {
            tracing::debug!("event queue is full; dropped an event");
        }
    }
}

fn reference(pod: &Pod, field_path: String) -> ObjectReference {
    ObjectReference {
        kind: "Pod".into(),
        namespace: pod.namespace().to_owned(),
        name: pod.name().to_owned(),
        uid: pod.uid().to_owned(),
        api_version: "v1".into(),
        resource_version: pod.meta().resource_version.clone(),
        field_path,
    }
}

async fn send_all(client: Client, node: Arc<str>, mut queue: mpsc::Receiver<Notice>) {
    let mut correlator = Correlator::default();
    while let Some(notice) = queue.recv().await {
        let now = proto::time::Timestamp::now();
        match correlator.decide(&notice, now.seconds) {
            Decision::Drop => {}
            Decision::Create { message, key } => {
                let event = new_event(&node, &notice, message, now);
                if let Some(name) = deliver(&client, &event).await {
                    correlator.created(key, name, now.seconds);
                }
            }
            Decision::Count { name, count, message, key } => {
                let patch = serde_json::json!({
                    "count": count, "lastTimestamp": now.to_seconds_text(), "message": message,
                });
                let namespace = event_namespace(&notice.object);
                let patch = patch.to_string().into_bytes();
                let sent = client.patch::<Event>(namespace, &name, "", PatchType::StrategicMerge, patch).await;
                if sent.is_err_and(|e| e.is_not_found()) {
                    // Events expire; the next one starts anew.
                    let event = new_event(&node, &notice, message, now);
                    if let Some(name) = deliver(&client, &event).await {
                        correlator.created(key, name, now.seconds);
                    }
                }
            }
        }
    }
}

/// Events about objects without a namespace live in `default`.
fn event_namespace(object: &ObjectReference) -> &str {
    if object.namespace.is_empty() { "default" } else { &object.namespace }
}

fn new_event(node: &str, notice: &Notice, message: String, now: proto::time::Timestamp) -> Event {
    let time = Some(Time { seconds: now.seconds, nanos: 0 });
    let nanos = i128::from(now.seconds) * 1_000_000_000 + i128::from(now.nanos);
    Event {
        metadata: Some(ObjectMeta {
            name: format!("{}.{nanos:x}", notice.object.name),
            namespace: event_namespace(&notice.object).to_owned(),
            annotations: notice.annotations.clone(),
            ..Default::default()
        }),
        involved_object: Some(notice.object.clone()),
        reason: notice.reason.clone(),
        message,
        source: Some(EventSource { component: COMPONENT.into(), host: node.to_owned() }),
        first_timestamp: time,
        last_timestamp: time,
        count: 1,
        r#type: notice.kind.as_str().to_owned(),
        reporting_component: COMPONENT.into(),
        reporting_instance: node.to_owned(),
        ..Default::default()
    }
}

/// Creates the event; its name if it was accepted. Retries while the server cannot be reached.
async fn deliver(client: &Client, event: &Event) -> Option<String> {
    let meta = event.metadata.as_ref()?;
    for attempt in 0..TRIES {
        match client.submit(&meta.namespace, event).await {
            Ok(()) => return Some(meta.name.clone()),
            Err(ApiError::Standalone) => return None,
            // The server's word is final: the namespace ends, or the event is not allowed.
            Err(error @ ApiError::Status(_)) if !error.is_retriable() => {
                tracing::debug!(%error, event = %meta.name, "the API server refused an event");
                return None;
            }
            Err(error) => {
                tracing::debug!(%error, attempt, "could not send an event");
                tokio::time::sleep(RETRY).await;
            }
        }
    }
    None
}
