//! The worker of the model, with the world going on between any two calls. What a step wants it carries out as the real one
//! does, by [`carry_out`]; the rounds around that, and the end of a pod, go by the same rules in the same order, which is
//! written here once more.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::time::Duration;

use futures_util::FutureExt as _;
use proto::api::core::v1::{Container, Pod, PodStatus};
use proto::apimachinery::pkg::apis::meta::v1::Time;

use crate::pleg::observed::Observed;
use crate::pod::crash_loop::CrashLoop;
use crate::pod::grace::{Budget, MINIMUM_STOP_SECONDS, container_grace, pod_grace};
use crate::pod::hash::container_hash;
use crate::pod::restart::ALL_CONTAINERS_RESTARTING;
use crate::pod::spec::{PodExt, find_container};
use crate::pod::step::{Actions, Kill, step};
use crate::pods::gc;
use crate::pods::kill::{Order, Stopping, order};
use crate::pods::round::{Failure, Hands, carry_out, next_try};
use crate::pods::starts::Starts;
use crate::probes::Verdicts;
use crate::status::generate::{Override, is_over};
use crate::status::{Inputs, StartError, generate, terminate};

use super::runtime::{Call, Failed};
use super::{Cut, World};

/// All that an agent knows; gone with it.
pub struct Agent {
    pub pod: Pod,
    observed: Observed,
    pub verdicts: Verdicts,
    status: PodStatus,
    crash_loop: CrashLoop,
    errors: HashMap<String, StartError>,
    stopped: HashSet<String>,
    /// The status wanted and whether something may still run; the API server may lack it.
    pub desired: Option<(PodStatus, bool)>,
    pub ending: bool,
    /// A demand to evict the pod within so many seconds that the worker has yet to take notice of.
    pub evicted: Option<i64>,
    /// The least that such a demand has left to it.
    pub imposed: Option<i64>,
    /// In no source any more.
    pub removed: bool,
    /// Nothing of it is left but its records.
    pub finished: bool,
    pub collect: bool,
}

impl Agent {
    pub fn new(pod: Pod) -> Self {
        let status = pod.status.clone().unwrap_or_default();
        let ending = is_over(&status) || pod.is_deleted();
        Self {
            pod,
            observed: Observed::default(),
            verdicts: Verdicts::default(),
            status,
            crash_loop: CrashLoop::new(Duration::from_secs(300)),
            errors: HashMap::new(),
            stopped: HashSet::new(),
            desired: None,
            ending,
            evicted: None,
            imposed: None,
            removed: false,
            finished: false,
            collect: false,
        }
    }
}

impl From<Failed> for Cut {
    fn from(_: Failed) -> Self {
        Cut::Failed
    }
}

impl World {
    /// A call, before and after which anything may happen.
    fn call(&mut self, call: Call) -> Result<String, Cut> {
        self.meanwhile()?;
        let answer = self.runtime.ask(call.clone(), &mut self.chance);
        let answer = answer?;
        self.check_order();
        Ok(answer)
    }

    /// What the grace is reckoned at and the call are one moment.
    fn stop(&mut self, id: &str, seconds: i64) -> Result<(), Cut> {
        self.runtime.ask(Call::Stop { id: id.to_owned(), seconds }, &mut self.chance)?;
        self.meanwhile()
    }

    fn agent(&mut self) -> Result<&mut Agent, Cut> {
        self.agent.as_mut().ok_or(Cut::Died)
    }

    fn look(&mut self) -> Result<(), Cut> {
        self.meanwhile()?;
        let seen = self.runtime.look()?;
        let agent = self.agent()?;
        agent.observed = seen;
        let alive: HashSet<&str> = agent.observed.containers.iter().map(|c| c.id.as_str()).collect();
        agent.verdicts.retain(|id| alive.contains(id));
        agent.crash_loop.keep_only(&alive);
        Ok(())
    }

    fn tell(&mut self, terminal: bool, last: bool) -> Result<(), Cut> {
        if self.orphan {
            return Ok(());
        }
        let now = Time { seconds: self.runtime.moment().unix / 1_000_000_000, nanos: 0 };
        let agent = self.agent()?;
        let evicted = Override { reason: "Evicted".into(), message: String::new(), disruption: None };
        let mut status = generate(&Inputs {
            pod: &agent.pod,
            observed: &agent.observed,
            old: &agent.status,
            start_errors: &agent.errors,
            probes: &agent.verdicts.of(&agent.pod),
            runtime: "r",
            host_ips: &[],
            terminal,
            imposed: agent.imposed.map(|_| &evicted),
            recursive_read_only: false,
            stop_signals: false,
            resize: Vec::new(),
            now,
        });
        if last {
            status = terminate(&agent.pod, status);
        }
        let may_run = !last && agent.observed.running().next().is_some();
        assert!(!is_over(&agent.status) || is_over(&status), "the agent took an end back");
        agent.status = status;
        agent.desired = Some((agent.status.clone(), may_run));
        // Whatever happens to the agent or the API server now, the pod has come to its end.
        self.runtime.over |= is_over(&self.agent()?.status);
        Ok(())
    }

    /// One round of the worker.
    pub fn round(&mut self) -> Result<(), Cut> {
        self.hear();
        if self.agent()?.finished {
            return self.clean_up();
        }
        if !self.agent()?.ending {
            (self.end_began, self.runtime.limit) = (None, None);
            match self.sync() {
                Ok(false) => return Ok(()),
                Ok(true) | Err(Cut::Ends) => {}
                Err(cut) => return Err(cut),
            }
        }
        self.agent()?.ending = true;
        self.terminate()
    }

    /// Whether the pod is over.
    fn sync(&mut self) -> Result<bool, Cut> {
        self.look()?;
        self.tell(false, false)?;
        let agent = self.agent()?;
        if is_over(&agent.status) {
            return Ok(true);
        }
        let all = |c: &proto::api::core::v1::PodCondition| c.r#type == ALL_CONTAINERS_RESTARTING && c.status == "True";
        let restart_all = agent.status.conditions.iter().any(all);
        let actions = step(&agent.pod, &agent.observed, &agent.verdicts, restart_all);
        if actions.is_empty() {
            agent.errors.clear();
            self.prune()?;
            return Ok(false);
        }
        let acted = self.act(&actions);
        if matches!(acted, Err(Cut::Died | Cut::Ends)) {
            return acted.map(|()| false);
        }
        self.look()?;
        self.tell(false, false)?;
        self.prune()?;
        Ok(is_over(&self.agent()?.status))
    }

    /// The real order; nothing in memory is waited for.
    fn act(&mut self, actions: &Actions) -> Result<(), Cut> {
        let spec = self.agent()?.pod.spec().clone();
        carry_out(self, &spec, actions).now_or_never().expect("the hands of the model wait for nothing")
    }

    fn or_go_on(&mut self, call: Call) -> Result<(), Cut> {
        match self.call(call) {
            Ok(_) | Err(Cut::Failed) => Ok(()),
            Err(cut) => Err(cut),
        }
    }

    /// A start takes its time, and is not called off by what happens meanwhile.
    fn start_made(&mut self, id: String) -> Result<String, Cut> {
        self.meanwhile()?;
        self.runtime.begin_start(id);
        if let Err(cut) = self.meanwhile() {
            if matches!(cut, Cut::Died) {
                self.runtime.finish_start(&mut self.chance);
            }
            return Err(cut);
        }
        let answer = self.runtime.finish_start(&mut self.chance).unwrap_or(Err(Failed))?;
        self.check_order();
        Ok(answer)
    }

    /// `limit`: by when all is to be over.
    fn stop_all(&mut self, limit: Option<i64>) -> Result<(), Cut> {
        let own = self.agent()?.pod.spec().termination_grace_period_seconds.unwrap_or(30);
        // A start that was under way goes on beside what stops here.
        let starting: BTreeSet<String> = self.runtime.starting().into_iter().collect();
        let stopping = Stopping::beside(Starts::default(), starting.clone());
        let observed = stopping.may_run(&self.agent()?.observed).into_owned();
        let begun = self.runtime.steady_seconds();
        let pod = self.agent()?.pod.clone();
        let Order { at_once, in_turn } = order(&pod, &observed);
        let mut all: Vec<_> = at_once.into_iter().chain(in_turn).collect();
        // Nobody waits for it, so it may well be the last.
        all.sort_by_key(|record| starting.contains(&record.id));
        for record in all {
            if starting.contains(&record.id) {
                let seconds = [0, 1, 30][self.chance.below(3)];
                self.runtime.pass(seconds);
                self.runtime.finish_start(&mut self.chance);
                if !self.runtime.may_run(&record.id) {
                    continue;
                }
            }
            // All stop side by side: what one takes, the others have had too.
            let passed = self.runtime.steady_seconds() - begun;
            let left = limit.unwrap_or(own) - passed;
            self.stop(&record.id, left.max(MINIMUM_STOP_SECONDS))?;
            // Out of time is out of turn.
            if left > MINIMUM_STOP_SECONDS {
                self.check_turns(&record.name, &observed);
            }
        }
        for sandbox in &observed.sandboxes {
            if !self.agent()?.stopped.contains(&sandbox.id) {
                self.call(Call::StopSandbox(sandbox.id.clone()))?;
                self.agent()?.stopped.insert(sandbox.id.clone());
            }
        }
        Ok(())
    }

    fn prune(&mut self) -> Result<(), Cut> {
        let observed = self.agent()?.observed.clone();
        let (containers, sandboxes) = gc::superfluous(&observed, 1);
        for container in containers {
            self.or_go_on(Call::Remove(container.id.clone()))?;
        }
        for sandbox in sandboxes {
            self.or_go_on(Call::RemoveSandbox(sandbox.id.clone()))?;
        }
        Ok(())
    }

    fn terminate(&mut self) -> Result<(), Cut> {
        let began = *self.end_began.get_or_insert(self.runtime.steady_seconds());
        let mut budget = Budget::default();
        loop {
            self.hear();
            self.look()?;
            self.tell(false, false)?;
            let imposed = self.agent()?.imposed;
            let wanted = if self.orphan { 1 } else { pod_grace(&self.agent()?.pod, imposed) };
            budget.allow(wanted);
            // Whatever the rule comes to, nobody who imposes an end is kept waiting.
            let end = began + imposed.map_or(wanted, |most| wanted.min(most.max(1)));
            self.runtime.limit = Some(self.runtime.limit.map_or(end, |limit| limit.min(end)));
            let left = budget.left(self.runtime.steady_seconds() - began);
            match self.stop_all(Some(left)) {
                Err(Cut::Failed | Cut::Ends) => {
                    self.runtime.pass(1);
                    continue;
                }
                done => done?,
            }
            self.look()?;
            if self.agent()?.observed.running().next().is_none() {
                break;
            }
        }
        self.tell(true, false)?;
        self.meanwhile()?;
        self.tell(true, true)?;
        self.agent()?.finished = true;
        Ok(())
    }

    /// Takes away what the runtime has of a pod that has ended, once it may.
    fn clean_up(&mut self) -> Result<(), Cut> {
        let shown = self.shows_end() && !self.is_static;
        let agent = self.agent()?;
        let room = std::mem::take(&mut agent.collect) && shown;
        if !agent.removed && !room {
            return Ok(());
        }
        self.look()?;
        let observed = self.agent()?.observed.clone();
        for container in &observed.containers {
            self.call(Call::Remove(container.id.clone()))?;
        }
        for sandbox in &observed.sandboxes {
            self.call(Call::RemoveSandbox(sandbox.id.clone()))?;
        }
        Ok(())
    }
}

impl Failure for Cut {
    fn ends_round(&self) -> bool {
        matches!(self, Cut::Died | Cut::Ends)
    }

    fn worse(self, _: Self) -> Self {
        self
    }
}

impl Hands for World {
    type Failure = Cut;
    type Sandbox = String;

    fn observed(&self) -> Result<&Observed, Cut> {
        self.agent.as_ref().map(|agent| &agent.observed).ok_or(Cut::Died)
    }

    async fn kill_pod(&mut self, _: bool) -> Result<(), Cut> {
        self.stop_all(None)
    }

    async fn purge_init(&mut self) -> Result<(), Cut> {
        let agent = self.agent()?;
        let init: Vec<String> = gc::initialised_before(&agent.pod, &agent.observed).map(|c| c.id.clone()).collect();
        init.into_iter().try_for_each(|id| self.or_go_on(Call::Remove(id)))
    }

    async fn kill(&mut self, kill: &Kill) -> Result<(), Cut> {
        let pod = &self.agent()?.pod;
        let grace = find_container(pod.spec(), &kill.name).map(|(_, c)| container_grace(pod, &c, kill.reason));
        let seconds = grace.unwrap_or_default().max(MINIMUM_STOP_SECONDS);
        self.stop(&kill.container_id, seconds)
    }

    async fn remove(&mut self, kill: &Kill) -> Result<(), Cut> {
        self.or_go_on(Call::Remove(kill.container_id.clone()))
    }

    fn forget_failures(&mut self) -> Result<(), Cut> {
        self.agent()?.errors.clear();
        Ok(())
    }

    async fn sandbox(&mut self, actions: &Actions) -> Result<String, Cut> {
        if !actions.create_sandbox {
            return Ok(actions.sandbox_id.clone());
        }
        let sandbox = self.call(Call::RunSandbox { attempt: actions.attempt })?;
        self.meanwhile()?;
        let seen = self.runtime.look()?;
        self.agent()?.observed.sandboxes = seen.sandboxes;
        self.tell(false, false)?;
        Ok(sandbox)
    }

    async fn resize(&mut self, _: Option<&String>) -> Result<(), Cut> {
        Ok(())
    }

    fn held_back(&mut self, container: &Container) -> Result<Option<Cut>, Cut> {
        let now = self.runtime.moment();
        let agent = self.agent()?;
        let held = agent.crash_loop.hold(container, &agent.observed, now);
        if held.is_some() {
            let error = StartError { reason: "CrashLoopBackOff".into(), message: String::new() };
            agent.errors.insert(container.name.clone(), error);
        }
        Ok(held.map(|_| Cut::Failed))
    }

    async fn remove_unstarted(&mut self, id: &str) -> Result<(), Cut> {
        self.call(Call::Remove(id.to_owned())).map(drop)
    }

    async fn start(&mut self, sandbox: &String, container: &Container, _: Option<&str>) -> Result<(), Cut> {
        let name = container.name.clone();
        let logged = self.runtime.logs.get(&name).copied();
        let attempt = next_try(&self.agent()?.observed, &name, || logged);
        let (hash, sandbox) = (container_hash(container), sandbox.clone());
        let made = self.call(Call::Create { name: name.clone(), hash, attempt, sandbox });
        let started = made.and_then(|id| self.start_made(id));
        let agent = self.agent()?;
        if started.is_ok() {
            agent.errors.remove(&name);
        } else {
            let error = StartError { reason: "RunContainerError".into(), message: String::new() };
            agent.errors.insert(name, error);
        }
        started.map(drop)
    }
}
