//! How the container runtime is: asked every few seconds, told to whoever watches.

use std::sync::Arc;
use std::time::Duration;

use proto::cri;
use tokio::sync::watch;
use tokio::time::Instant;

use crate::cri::CriClient;
use crate::daemon::Beat;
use crate::node::NodeEvents;

/// The kubelet asks this often; while the runtime is not up we ask more often, so that a start is not held up.
const INTERVAL: Duration = Duration::from_secs(5);
const INTERVAL_NOT_READY: Duration = Duration::from_millis(500);
/// A runtime that has not answered for this long is down.
const DOWN_AFTER: Duration = Duration::from_secs(30);
/// How long a version is taken to be the runtime's that answers.
const VERSION_HOLDS: Duration = Duration::from_secs(60);
/// How often the kubelet clears away ended containers.
const COLLECTION: Duration = Duration::from_secs(60);

/// What the runtime says about itself.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct RuntimeState {
    /// `containerd://1.6.20`, or `containerd://Unknown` while it does not answer.
    pub version: String,
    /// Why pods cannot run, None when they can. The text is the Ready condition's.
    pub not_ready: Option<String>,
    /// Why pods without the host's network cannot run.
    pub network_not_ready: Option<String>,
    pub handlers: Vec<cri::RuntimeHandler>,
    pub features: Option<cri::RuntimeFeatures>,
    /// What the last question ended with; None after an answer.
    pub error: Option<String>,
}

impl RuntimeState {
    /// Runtime and network can take any pod.
    pub fn is_ready(&self) -> bool {
        self.not_ready.is_none() && self.network_not_ready.is_none()
    }
}

/// Watches the runtime until the last receiver is dropped.
pub async fn monitor(cri: CriClient, state: watch::Sender<Arc<RuntimeState>>, progress: Beat) {
    let mut known = Known { last_answer: None, name: "unknown".into(), asked: None };
    while !state.is_closed() {
        let before = state.borrow().clone();
        progress.begin().await;
        let next = observe(&cri, &before, &mut known).await;
        progress.end();
        let ready = next.is_ready();
        state.send_if_modified(|current| {
            let changed = **current != next;
            if changed {
                *current = Arc::new(next);
            }
            changed
        });
        let pause = tokio::time::sleep(if ready { INTERVAL } else { INTERVAL_NOT_READY });
        tokio::select! {
            () = pause => {}
            () = state.closed() => {}
        }
    }
}

/// Says once a minute that nothing of ended containers can be cleared away, as long as the runtime does not answer. Ends
/// with the monitor.
pub async fn tell_uncollected(mut state: watch::Receiver<Arc<RuntimeState>>, events: NodeEvents) {
    let begun = Instant::now();
    while state.wait_for(|s| s.error.is_some() && !s.version.starts_with("unknown:")).await.is_ok() {
        // By the clock, so that a runtime that is only started anew is mostly not told of.
        let rounds = begun.elapsed().as_secs() / COLLECTION.as_secs();
        let next = COLLECTION.as_secs().saturating_mul(rounds + 1);
        tokio::time::sleep_until(begun + Duration::from_secs(next)).await;
        let error = state.borrow().error.clone();
        if let Some(error) = error {
            events("Warning", "ContainerGCFailed", error);
        }
    }
}

/// The state before the first answer.
pub fn unknown() -> RuntimeState {
    RuntimeState {
        not_ready: Some("container runtime status check may not have completed yet".into()),
        ..RuntimeState::default()
    }
}

/// What is remembered from one look to the next.
struct Known {
    last_answer: Option<Instant>,
    /// The runtime's name.
    name: String,
    /// When it was asked for its version.
    asked: Option<Instant>,
}

async fn observe(cri: &CriClient, before: &RuntimeState, known: &mut Known) -> RuntimeState {
    let Known { last_answer, name, asked } = known;
    let answer = tokio::time::timeout_at(patience(*last_answer), async {
        // A runtime that is updated may be away for less time than there is between two looks.
        let is_old = asked.is_none_or(|at| at.elapsed() >= VERSION_HOLDS);
        let version = if is_old || before.version.is_empty() || before.version.ends_with("://Unknown") {
            let version = cri.version().await?;
            *asked = Some(Instant::now());
            *name = version.runtime_name.clone();
            format!("{}://{}", version.runtime_name, version.runtime_version)
        } else {
            before.version.clone()
        };
        let status = cri.status(cri::StatusRequest { verbose: false }).await?;
        Ok::<_, crate::cri::CriError>((version, status))
    })
    .await;
    match answer {
        Ok(Ok((version, status))) => {
            *last_answer = Some(Instant::now());
            from_status(version, status)
        }
        Ok(Err(error)) => {
            tracing::debug!(%error, "the runtime does not answer");
            failed(before, *last_answer, name, error.to_string())
        }
        Err(_) => failed(
            before,
            *last_answer,
            name,
            "rpc error: code = DeadlineExceeded desc = context deadline exceeded".into(),
        ),
    }
}

/// When a question that is not answered is given up: at the moment at which the runtime is down, if it was not before.
fn patience(last_answer: Option<Instant>) -> Instant {
    let (now, moment) = (Instant::now(), Duration::from_millis(1));
    let down = last_answer.map(|at| at + DOWN_AFTER + moment);
    down.filter(|down| *down > now).unwrap_or(now + DOWN_AFTER)
}

fn failed(before: &RuntimeState, last_answer: Option<Instant>, name: &str, error: String) -> RuntimeState {
    let mut state = RuntimeState { version: format!("{name}://Unknown"), error: Some(error), ..before.clone() };
    // For a while the old word holds: restarting the runtime must not make the node flap.
    match last_answer {
        Some(at) if at.elapsed() > DOWN_AFTER => state.not_ready = Some("container runtime is down".into()),
        Some(_) => {}
        None => state.not_ready = unknown().not_ready,
    }
    state
}

fn from_status(version: String, status: cri::StatusResponse) -> RuntimeState {
    let conditions = status.status.map(|s| s.conditions).unwrap_or_default();
    let trouble = |kind: &str, prefix: &str| match conditions.iter().find(|c| c.r#type == kind) {
        Some(c) if c.status => None,
        Some(c) => Some(format!("{prefix}: {kind}={} reason:{} message:{}", c.status, c.reason, c.message)),
        None => Some(format!("{prefix}: <nil>")),
    };
    let mut handlers = status.runtime_handlers;
    handlers.sort_by(|a, b| a.name.cmp(&b.name));
    RuntimeState {
        version,
        not_ready: trouble("RuntimeReady", "container runtime not ready"),
        network_not_ready: trouble("NetworkReady", "container runtime network not ready"),
        handlers,
        features: status.features,
        error: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_network_that_is_not_ready_is_told_in_the_runtimes_words() {
        let condition = |kind: &str, status| cri::RuntimeCondition {
            r#type: kind.into(),
            status,
            reason: "R".into(),
            message: "M".into(),
        };
        let status = cri::StatusResponse {
            status: Some(cri::RuntimeStatus {
                conditions: vec![condition("RuntimeReady", true), condition("NetworkReady", false)],
            }),
            ..cri::StatusResponse::default()
        };
        let state = from_status("containerd://1".into(), status);
        assert_eq!(state.not_ready, None);
        assert_eq!(
            state.network_not_ready.as_deref(),
            Some("container runtime network not ready: NetworkReady=false reason:R message:M")
        );
    }

    #[tokio::test(start_paused = true)]
    async fn what_cannot_be_cleared_away_is_told_each_minute() {
        let (sender, state) = watch::channel(Arc::new(RuntimeState::default()));
        let (told, mut heard) = tokio::sync::mpsc::unbounded_channel();
        let events: NodeEvents = Arc::new(move |_, reason, message| {
            let _ = told.send((reason.to_owned(), message));
        });
        let task = tokio::spawn(tell_uncollected(state, events));
        tokio::time::sleep(Duration::from_secs(100)).await;
        assert!(heard.try_recv().is_err(), "all is well");
        let down =
            RuntimeState { version: "containerd://Unknown".into(), error: Some("gone".into()), ..Default::default() };
        sender.send_replace(Arc::new(down));
        tokio::time::sleep(Duration::from_secs(130)).await;
        for _ in 0..2 {
            assert_eq!(heard.try_recv(), Ok(("ContainerGCFailed".to_owned(), "gone".to_owned())));
        }
        sender.send_replace(Arc::default());
        tokio::time::sleep(Duration::from_secs(200)).await;
        while heard.try_recv().is_ok() {}
        tokio::time::sleep(Duration::from_secs(200)).await;
        assert!(heard.try_recv().is_err(), "it answers again");
        drop(sender);
        task.await.expect("it ends");
    }

    #[tokio::test(start_paused = true)]
    async fn a_silent_runtime_is_down_after_half_a_minute() {
        let up = RuntimeState { version: "containerd://1".into(), ..RuntimeState::default() };
        let at = Instant::now();
        tokio::time::advance(Duration::from_secs(10)).await;
        assert!(patience(Some(at)) <= at + DOWN_AFTER + Duration::from_secs(1), "it is told to be down in time");
        let early = failed(&up, Some(at), "containerd", "gone".into());
        assert_eq!((early.version.as_str(), early.is_ready()), ("containerd://Unknown", true));
        tokio::time::advance(Duration::from_secs(21)).await;
        assert!(patience(Some(at)) == Instant::now() + DOWN_AFTER, "it is asked with patience once it is down");
        assert_eq!(
            failed(&up, Some(at), "containerd", "gone".into()).not_ready.as_deref(),
            Some("container runtime is down")
        );
    }
}
