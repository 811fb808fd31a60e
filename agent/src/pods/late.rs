//! What the runtime makes for somebody who does not wait for it any more.
//!
//! A pod may end while the runtime is asked for a container. A call that is given up may be carried out all the same, and
//! nobody would hear of the container or the sandbox that it makes: such a call goes on by itself, and what it makes goes at
//! once, or as soon as the runtime takes it away.

use std::fmt::Display;
use std::future::Future;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use proto::cri;
use tokio::sync::oneshot;

use crate::cri::{CriClient, CriError};
use crate::spans;

use super::worker::{FIRST_RETRY, LAST_RETRY};

/// Has the runtime make a sandbox for the pod of that name. When this is dropped meanwhile, the sandbox goes again.
///
/// # Errors
/// The runtime's.
pub async fn sandbox(
    cri: &CriClient,
    config: cri::PodSandboxConfig,
    handler: String,
    pod: &str,
) -> Result<String, CriError> {
    let (maker, remover, pod) = (cri.clone(), cri.clone(), pod.to_owned());
    let make = async move { maker.run_pod_sandbox(config, handler).await };
    or_taken_away(make, move |id: String| async move {
        until_done(|| take_sandbox_away(&remover, &id, &pod)).await;
        tracing::info!(sandbox = id, pod, "removed a sandbox that came after its pod");
    })
    .await
}

/// Its network is given back by the stop.
async fn take_sandbox_away(cri: &CriClient, id: &str, pod: &str) -> Result<(), CriError> {
    let stopped = match cri.stop_pod_sandbox(id).await {
        Err(error) if !error.is_not_found() => Err(error),
        _ => cri.remove_pod_sandbox(id).await,
    };
    stopped.inspect_err(|_| tracing::debug!(sandbox = id, pod, "a sandbox that came after its pod stays for now"))
}

/// Has the runtime make a container for the pod of that name. When this is dropped meanwhile, the container goes again.
/// `made` hears what came of it either way.
///
/// # Errors
/// The runtime's.
pub async fn container(
    cri: &CriClient,
    request: cri::CreateContainerRequest,
    pod: &str,
    made: impl FnOnce(bool) + Send + 'static,
) -> Result<String, CriError> {
    let (maker, remover, pod) = (cri.clone(), cri.clone(), pod.to_owned());
    let make = async move {
        let answer = maker.create_container(request).await;
        made(answer.is_ok());
        answer.map(|answer| answer.container_id)
    };
    or_taken_away(make, move |id: String| async move {
        // It was never started; a runtime ends one that runs all the same before it removes it.
        until_done(|| remover.remove_container(&id)).await;
        tracing::info!(container = id, pod, "removed a container that came after its pod");
    })
    .await
}

/// Tries something until it is done, after longer and longer pauses.
async fn until_done<E: Display, F: Future<Output = Result<(), E>>>(mut attempt: impl FnMut() -> F) {
    let mut wait = FIRST_RETRY;
    while let Err(error) = attempt().await {
        tracing::warn!(%error, "what came late cannot be taken away; trying again");
        tokio::time::sleep(wait).await;
        wait = longer(wait);
    }
}

/// The pause after one that did not help.
pub fn longer(wait: Duration) -> Duration {
    (wait * 2).min(LAST_RETRY)
}

/// Makes something. When this is dropped meanwhile, the making goes on, and `take_away` gets what came of it.
///
/// # Errors
/// Those of the making.
async fn or_taken_away<T, E, M, A, F>(make: M, take_away: A) -> Result<T, E>
where
    T: Send + 'static,
    E: Send + 'static,
    M: Future<Output = Result<T, E>> + Send + 'static,
    A: FnOnce(T) -> F + Send + 'static,
    F: Future<Output = ()> + Send + 'static,
{
    let (tell, told) = oneshot::channel();
    let take_away = Arc::new(Mutex::new(Some(take_away)));
    let mut waiting = Waiting { told, take_away: take_away.clone() };
    let making = tokio::spawn(spans::inherit(async move {
        // What nobody listens for any more comes back here.
        if let Err(Ok(made)) = tell.send(make.await)
            && let Some(take_away) = taken(&take_away)
        {
            take_away(made).await;
        }
    }));
    match (&mut waiting.told).await {
        Ok(made) => made,
        // Only a panic drops the sender.
        Err(_) => match making.await {
            Err(error) if error.is_panic() => std::panic::resume_unwind(error.into_panic()),
            _ => std::future::pending().await,
        },
    }
}

/// Who waits. What was told and not heard when the waiting ends is taken away from here, so that it always is by one of
/// the two.
struct Waiting<T, E, A, F>
where
    T: Send + 'static,
    A: FnOnce(T) -> F + Send + 'static,
    F: Future<Output = ()> + Send + 'static,
{
    told: oneshot::Receiver<Result<T, E>>,
    take_away: Arc<Mutex<Option<A>>>,
}

impl<T, E, A, F> Drop for Waiting<T, E, A, F>
where
    T: Send + 'static,
    A: FnOnce(T) -> F + Send + 'static,
    F: Future<Output = ()> + Send + 'static,
{
    fn drop(&mut self) {
        self.told.close();
        // Without a runtime the agent ends, and the next one finds what is there.
        if let Ok(Ok(made)) = self.told.try_recv()
            && let Some(take_away) = taken(&self.take_away)
            && let Ok(runtime) = tokio::runtime::Handle::try_current()
        {
            runtime.spawn(take_away(made));
        }
    }
}

fn taken<A>(of: &Mutex<Option<A>>) -> Option<A> {
    of.lock().unwrap_or_else(PoisonError::into_inner).take()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One try was all: what the runtime did not take away then stayed until somebody looked for another reason.
    #[tokio::test(start_paused = true)]
    async fn what_cannot_be_taken_away_is_tried_again_later_and_later() {
        let (begun, mut tried) = (tokio::time::Instant::now(), Vec::new());
        until_done(|| {
            tried.push(begun.elapsed().as_millis());
            std::future::ready(if tried.len() < 8 { Err("busy") } else { Ok(()) })
        })
        .await;
        assert_eq!(tried, [0, 500, 1500, 3500, 7500, 15_500, 25_500, 35_500]);
    }

    /// A container that the runtime made after its pod had ended stayed until somebody looked for another reason.
    #[tokio::test(start_paused = true)]
    async fn what_comes_after_its_pod_is_taken_away() {
        let taken = Arc::new(Mutex::new(Vec::new()));
        let make = |name: &'static str, answer: Result<(), ()>| {
            let taken = taken.clone();
            let make = async move {
                tokio::time::sleep(Duration::from_secs(5)).await;
                answer.map(|()| name)
            };
            or_taken_away(make, move |name| async move { taken.lock().unwrap().push(name) })
        };
        assert_eq!(make("waited for", Ok(())).await, Ok("waited for"));
        assert_eq!(make("refused", Err(())).await, Err(()));
        for (name, answer) in [("late", Ok(())), ("refused late", Err(()))] {
            assert!(tokio::time::timeout(Duration::from_secs(1), make(name, answer)).await.is_err());
        }
        tokio::time::sleep(Duration::from_secs(10)).await;
        assert_eq!(*taken.lock().unwrap(), ["late"]);
        // Told, and not heard: the wait ends in that moment.
        let mut unheard = Box::pin(make("unheard", Ok(())));
        let begun = std::future::poll_fn(|cx| std::task::Poll::Ready(unheard.as_mut().poll(cx).is_pending()));
        assert!(begun.await, "it takes its time");
        tokio::time::sleep(Duration::from_secs(6)).await;
        drop(unheard);
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert_eq!(*taken.lock().unwrap(), ["late", "unheard"]);
    }
}
