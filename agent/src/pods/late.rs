//! What the runtime makes for somebody who does not wait for it any more.
//!
//! A pod may end while the runtime is asked for a container. A call that is given up may be carried out all the same, and
//! nobody would hear of the container or the sandbox that it makes: such a call goes on by itself, and what it makes goes at
//! once, or as soon as the runtime takes it away.
//!
//! Until then nobody may take up such a sandbox. A static pod that is put back while its sandbox is still to come has the
//! same uid, and would lose what it has begun in it: [`Unheard`] says which sandboxes it does not look at.

use std::collections::HashMap;
use std::fmt::Display;
use std::future::Future;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use proto::api::core::v1::Pod;
use proto::cri;
use tokio::sync::oneshot;

use crate::cri::{CriClient, CriError};
use crate::pleg::observed::Sandbox;
use crate::pod::spec::PodExt as _;
use crate::spans;

use super::worker::{FIRST_RETRY, LAST_RETRY};

/// Sandboxes that were asked for and of which nobody waits to hear any more, by the uid of their pod.
#[derive(Debug, Default)]
pub struct Unheard(Mutex<HashMap<String, Vec<Given>>>);

/// A call that was given up.
#[derive(Debug)]
struct Given {
    call: u64,
    attempt: u32,
    /// As soon as the runtime has said it.
    id: Option<String>,
    /// Sandboxes that the pod has got since: none of them is it.
    others: Vec<String>,
}

impl Unheard {
    /// Whether a sandbox of the pod is one that goes as soon as it is there. Before the runtime has said which it is, its
    /// attempt tells, unless somebody else has heard of the sandbox.
    pub fn goes(&self, uid: &str, sandbox: &Sandbox) -> bool {
        self.goes_as(uid, &sandbox.id, sandbox.attempt)
    }

    fn goes_as(&self, uid: &str, id: &str, attempt: u32) -> bool {
        let may_be = |given: &Given| given.attempt == attempt && !given.others.iter().any(|other| other == id);
        let is_it = |given: &Given| given.id.as_ref().map_or_else(|| may_be(given), |own| own == id);
        self.calls().get(uid).is_some_and(|given| given.iter().any(is_it))
    }

    fn calls(&self) -> MutexGuard<'_, HashMap<String, Vec<Given>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A call for a sandbox, until both the runtime has answered it and what nobody heard of is gone.
struct Call {
    of: Arc<Unheard>,
    number: u64,
    uid: String,
    attempt: u32,
}

impl Call {
    fn begin(of: &Arc<Unheard>, uid: &str, attempt: u32) -> Arc<Self> {
        static NUMBERS: AtomicU64 = AtomicU64::new(0);
        let number = NUMBERS.fetch_add(1, Ordering::Relaxed);
        Arc::new(Self { of: of.clone(), number, uid: uid.to_owned(), attempt })
    }

    fn given_up(&self) {
        let given = Given { call: self.number, attempt: self.attempt, id: None, others: Vec::new() };
        self.of.calls().entry(self.uid.clone()).or_default().push(given);
    }

    /// Somebody waited for this one.
    fn heard(&self, id: &str) {
        let mut calls = self.of.calls();
        calls.get_mut(&self.uid).into_iter().flatten().for_each(|given| given.others.push(id.to_owned()));
    }

    fn answered(&self, id: &str) {
        let mut calls = self.of.calls();
        let mut own = calls.get_mut(&self.uid).into_iter().flatten();
        if let Some(given) = own.find(|given| given.call == self.number) {
            given.id = Some(id.to_owned());
        }
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        let mut calls = self.of.calls();
        let Some(given) = calls.get_mut(&self.uid) else { return };
        given.retain(|given| given.call != self.number);
        if given.is_empty() {
            calls.remove(&self.uid);
        }
    }
}

/// Who waits for a call's answer. Dropped without it, the call is given up.
struct Hearer {
    call: Arc<Call>,
    heard: bool,
}

impl Drop for Hearer {
    fn drop(&mut self) {
        if !self.heard {
            self.call.given_up();
        }
    }
}

/// Has the runtime make a sandbox for the pod. When this is dropped meanwhile, the sandbox goes again.
///
/// # Errors
/// The runtime's.
pub async fn sandbox(
    unheard: &Arc<Unheard>,
    cri: &CriClient,
    config: cri::PodSandboxConfig,
    handler: String,
    pod: &Pod,
) -> Result<String, CriError> {
    let attempt = config.metadata.as_ref().map_or(0, |metadata| metadata.attempt);
    let call = Call::begin(unheard, pod.uid(), attempt);
    let (maker, remover, pod) = (cri.clone(), cri.clone(), pod.name().to_owned());
    let make = async move { maker.run_pod_sandbox(config, handler).await };
    heard_or_taken_away(call, make, move |id: String| async move {
        until_done(|| take_sandbox_away(&remover, &id, &pod)).await;
        tracing::info!(sandbox = id, pod, "removed a sandbox that came after its pod");
    })
    .await
}

/// [`or_taken_away`] for a sandbox, which nobody takes up who did not wait for it.
async fn heard_or_taken_away<E, M, A, F>(call: Arc<Call>, make: M, take_away: A) -> Result<String, E>
where
    E: Send + 'static,
    M: Future<Output = Result<String, E>> + Send + 'static,
    A: FnOnce(String) -> F + Send + 'static,
    F: Future<Output = ()> + Send + 'static,
{
    // Dropped after what is waited for, so that the call is given up before its end can be noted.
    let mut hearer = Hearer { call: call.clone(), heard: false };
    let made = or_taken_away(make, move |id: String| async move {
        call.answered(&id);
        take_away(id).await;
        drop(call);
    })
    .await;
    hearer.heard = true;
    if let Ok(id) = &made {
        hearer.call.heard(id);
    }
    made
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

    /// A static pod that was put back took up the sandbox that its last worker had asked for, and lost it.
    #[tokio::test(start_paused = true)]
    async fn nobody_takes_up_a_sandbox_that_goes_as_soon_as_it_comes() {
        let unheard = Arc::new(Unheard::default());
        let goes = |id: &str, attempt| unheard.goes_as("uid", id, attempt);
        let ask = |answer: Result<&'static str, ()>| {
            let call = Call::begin(&unheard, "uid", 3);
            let make = async move {
                tokio::time::sleep(Duration::from_secs(10)).await;
                answer.map(str::to_owned)
            };
            heard_or_taken_away(call, make, |_| tokio::time::sleep(Duration::from_secs(10)))
        };
        let pause = |seconds| tokio::time::sleep(Duration::from_secs(seconds));
        // Its own may be taken up while it is waited for and after.
        assert_eq!(ask(Ok("own")).await.as_deref(), Ok("own"));
        assert!(!goes("own", 3) && ask(Err(())).await.is_err() && unheard.calls().is_empty());
        let given_up = tokio::time::timeout(Duration::from_secs(5), ask(Ok("late"))).await;
        assert!(given_up.is_err());
        assert!(goes("which?", 3) && !goes("older", 2) && !unheard.goes_as("other", "which?", 3));
        let call = Call::begin(&unheard, "uid", 3);
        let again = heard_or_taken_away(call, async { Ok::<_, ()>("again".to_owned()) }, |_| async {});
        assert!(again.await.is_ok() && !goes("again", 3) && goes("which?", 3));
        pause(6).await;
        assert!(goes("late", 3), "it is being taken away");
        assert!(!goes("next", 3), "which one it is is known by now");
        pause(10).await;
        assert!(!goes("late", 3) && unheard.calls().is_empty(), "it is gone");
        assert!(tokio::time::timeout(Duration::from_secs(5), ask(Err(()))).await.is_err());
        assert!(goes("which?", 3));
        pause(6).await;
        assert!(unheard.calls().is_empty(), "there was none");
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
