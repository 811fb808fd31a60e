//! The order in which what a step wants is carried out, whoever's hands do it.
//!
//! The worker of a pod has a runtime, an API server and files in its hands; the model of `pod::model` has none of them, and
//! puts what may happen between any two of these calls. Both go by the order that is here, so that what holds in the model
//! holds in the worker.
//!
//! Followed: kuberuntime `SyncPod`.

use proto::api::core::v1::{Container, PodSpec};

use crate::pleg::observed::{ContainerRecord, Observed, RunState};
use crate::pod::spec::{ephemeral_as_container, is_sidecar};
use crate::pod::step::{Actions, Kill, Reset};

/// What the actions of a step are carried out with.
pub trait Hands {
    type Failure: Failure;
    /// What containers are started in, and all that their starts have in common.
    type Sandbox;

    /// What the pod has, as far as is known.
    fn observed(&self) -> Result<&Observed, Self::Failure>;
    /// Stops everything. `replaced`: for a sandbox that is to be another.
    async fn kill_pod(&mut self, replaced: bool) -> Result<(), Self::Failure>;
    /// Removes what init containers have left, so that they begin anew. What cannot be removed stays.
    async fn purge_init(&mut self) -> Result<(), Self::Failure>;
    async fn kill(&mut self, kill: &Kill) -> Result<(), Self::Failure>;
    /// Removes a container that starts over. One that cannot be removed is found again by the next step.
    async fn remove(&mut self, kill: &Kill) -> Result<(), Self::Failure>;
    /// Nothing is known any more of starts that failed.
    fn forget_failures(&mut self) -> Result<(), Self::Failure>;
    /// The sandbox to start in, made if need be.
    async fn sandbox(&mut self, actions: &Actions) -> Result<Self::Sandbox, Self::Failure>;
    /// Gives what runs what it is allocated.
    async fn resize(&mut self, sandbox: Option<&Self::Sandbox>) -> Result<(), Self::Failure>;
    /// Why the container may not be started yet, if it may not.
    fn held_back(&mut self, container: &Container) -> Result<Option<Self::Failure>, Self::Failure>;
    /// Removes a try that was made and never started.
    async fn remove_unstarted(&mut self, id: &str) -> Result<(), Self::Failure>;
    /// Makes the container and starts it. `target` names the container that an ephemeral one joins.
    async fn start(
        &mut self,
        sandbox: &Self::Sandbox,
        container: &Container,
        target: Option<&str>,
    ) -> Result<(), Self::Failure>;
}

/// Why something was not done.
pub trait Failure: Sized {
    /// Nothing of the round is done any more.
    fn ends_round(&self) -> bool;
    /// The one that is to be looked at sooner.
    fn worse(self, other: Self) -> Self;
}

/// Carries out what a step wants: resets, or kills, sandbox, ephemeral, init and regular containers.
///
/// # Errors
/// What is to be tried again. One container that cannot be started keeps no other, but an init container all that follow.
pub async fn carry_out<H: Hands>(hands: &mut H, spec: &PodSpec, actions: &Actions) -> Result<(), H::Failure> {
    if !actions.reset.is_empty() {
        for Reset { kill, may_run } in &actions.reset {
            if *may_run {
                hands.kill(kill).await?;
            }
            hands.remove(kill).await?;
        }
        return hands.forget_failures();
    }
    if actions.kill_pod {
        hands.kill_pod(actions.create_sandbox && !actions.sandbox_id.is_empty()).await?;
        if actions.create_sandbox {
            hands.purge_init().await?;
        }
    } else {
        for kill in &actions.kill {
            hands.kill(kill).await?;
        }
    }
    let starts = !actions.start.is_empty() || !actions.start_init.is_empty() || !actions.start_ephemeral.is_empty();
    if !starts && !actions.create_sandbox {
        return hands.resize(None).await;
    }
    let sandbox = hands.sandbox(actions).await?;
    let mut outcome = Ok(());
    for ephemeral in actions.start_ephemeral.iter().filter_map(|at| spec.ephemeral_containers.get(*at)) {
        let container = ephemeral_as_container(ephemeral);
        let target = Some(ephemeral.target_container_name.as_str());
        outcome = both(outcome, start(hands, &sandbox, &container, target).await)?;
    }
    for container in actions.start_init.iter().filter_map(|at| spec.init_containers.get(*at)) {
        let started = start(hands, &sandbox, container, None).await;
        if started.is_err() && !is_sidecar(container) {
            return started;
        }
        outcome = both(outcome, started)?;
    }
    outcome = both(outcome, hands.resize(Some(&sandbox)).await)?;
    for container in actions.start.iter().filter_map(|at| spec.containers.get(*at)) {
        outcome = both(outcome, start(hands, &sandbox, container, None).await)?;
    }
    outcome
}

/// Starts one container unless it is held back. Tries that were made and not started go first: a runtime that hung may do
/// what it was asked long ago, and would start them beside their successor.
async fn start<H: Hands>(
    hands: &mut H,
    sandbox: &H::Sandbox,
    container: &Container,
    target: Option<&str>,
) -> Result<(), H::Failure> {
    if let Some(why) = hands.held_back(container)? {
        return Err(why);
    }
    let unstarted = |c: &&ContainerRecord| c.name == container.name && c.state == RunState::Created;
    let made: Vec<String> = hands.observed()?.containers.iter().filter(unstarted).map(|c| c.id.clone()).collect();
    for id in made {
        hands.remove_unstarted(&id).await?;
    }
    hands.start(sandbox, container, target).await
}

/// What came of two things; the outer error is one after which nothing more is done.
fn both<F: Failure>(a: Result<(), F>, b: Result<(), F>) -> Result<Result<(), F>, F> {
    match (a, b) {
        (_, Err(b)) if b.ends_round() => Err(b),
        (Ok(()), other) | (other, Ok(())) => Ok(other),
        (Err(a), Err(b)) => Ok(Err(a.worse(b))),
    }
}

/// The number of a container's next try: one more than the last one that the runtime remembers or else, by `logged`, the
/// disk.
pub fn next_try(observed: &Observed, name: &str, logged: impl FnOnce() -> Option<u32>) -> u32 {
    let last = observed.container(name).map(|c| c.restart_count).or_else(logged);
    last.map_or(0, |last| last.saturating_add(1))
}
