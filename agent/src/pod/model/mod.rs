//! A model of a node with one pod, driven by chance: the rules of the agent are the real ones, its runtime and its API
//! server are in memory.
//!
//! Between any two calls of the agent containers exit, sandboxes die, probes fail, the image changes, the pod is deleted,
//! evicted or vanishes, the agent is killed and started again, the API server and the runtime are lost and come back (the
//! runtime may then do what it was asked long ago, or have done what nobody heard of), and the wall clock jumps. Whatever the
//! order: no container runs twice, none starts after the end, no grace is exceeded, and what the API server shows never goes
//! back. When things calm down, the pod runs, or it is over, or nothing of it is left.

mod agent;
mod runtime;

use std::collections::BTreeMap;

use proto::api::core::v1::{Container, Pod, PodStatus, Probe};
use proto::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};

use crate::pleg::observed::Observed;
use crate::pod::spec::PodExt;
use crate::probes::ProbeKind;
use crate::status::generate::is_over;
use crate::status::manager::merge;

use super::step_tests::{container, pod, sidecar, with_rule};
use agent::Agent;
use runtime::Runtime;

/// Numbers that look random and are the same in each run.
pub struct Chance(u64);

impl Chance {
    pub fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from((self.0 >> 11) % limit as u64).unwrap_or(0)
    }

    pub fn one_in(&mut self, many: usize) -> bool {
        self.below(many) == 0
    }
}

/// Why a round of the worker went no further.
#[derive(Debug)]
pub enum Cut {
    /// The agent was killed.
    Died,
    /// The pod is to end.
    Ends,
    /// To be tried again.
    Failed,
}

pub struct World {
    chance: Chance,
    /// Things go wrong.
    stormy: bool,
    runtime: Runtime,
    agent: Option<Agent>,
    /// The pod, or the mirror of a static one, as the API server has it; `None` when it is gone.
    api: Option<Pod>,
    api_lost: bool,
    /// The pod is in a file of the node, which says nothing of its status.
    file: Option<Pod>,
    is_static: bool,
    /// The agent found it in the runtime alone.
    orphan: bool,
    /// The file in which an agent leaves when an end began.
    end_began: Option<i64>,
    /// Nothing but an eviction has ended the pod, of which the next agent does not know before the API server does.
    only_evicted: bool,
}

impl World {
    /// The pod as an agent is told of it.
    fn source(&self) -> Option<Pod> {
        if self.is_static { self.file.clone() } else { self.api.clone() }
    }

    fn shows_end(&self) -> bool {
        self.api.as_ref().and_then(|pod| pod.status.as_ref()).is_some_and(is_over)
    }

    /// What the worker takes in when it looks up.
    fn hear(&mut self) {
        let (source, heard) = (self.source(), self.is_static || !self.api_lost);
        let Some(agent) = self.agent.as_mut() else { return };
        match source {
            Some(pod) if heard => agent.pod = pod,
            None if heard => agent.removed = true,
            _ => {}
        }
        agent.ending |= agent.removed || agent.pod.is_deleted();
        if let Some(grace) = agent.evicted.take() {
            self.only_evicted |= !agent.ending && !self.runtime.over;
            agent.imposed = Some(agent.imposed.map_or(grace, |before| before.min(grace)));
            agent.ending = true;
        }
        self.runtime.over |= agent.ending;
    }

    fn ends_now(&self) -> bool {
        let heard = self.is_static || !self.api_lost;
        let evicted = self.agent.as_ref().is_some_and(|agent| agent.evicted.is_some());
        evicted || heard && self.source().is_none_or(|pod| pod.is_deleted())
    }

    /// Some of what can happen at any time.
    fn meanwhile(&mut self) -> Result<(), Cut> {
        if self.stormy && self.chance.one_in(3) {
            self.happen();
        }
        self.send_status();
        let Some(agent) = &self.agent else { return Err(Cut::Died) };
        if !agent.ending && self.ends_now() && self.chance.one_in(2) {
            self.hear();
            return Err(Cut::Ends);
        }
        Ok(())
    }

    fn happen(&mut self) {
        let chance = &mut self.chance;
        match chance.below(40) {
            0..=7 => self.runtime.exit(chance),
            // What follows from it for a static pod nobody remembers but the agent.
            8 if !self.is_static => self.runtime.lose_sight(chance),
            9 => self.runtime.harden(chance),
            10 => {
                let id = self.runtime.running(chance);
                if let (Some(agent), Some(id)) = (&mut self.agent, id) {
                    agent.verdicts.set(&id, ProbeKind::Liveness, false);
                }
            }
            11 => self.runtime.end_sandboxes(),
            12..=14 => self.runtime.set_clock([-100_000, -100, 0, 100, 100_000][chance.below(5)]),
            15..=19 => {
                let seconds = [1, 5, 12, 40, 400][chance.below(5)];
                self.runtime.pass(seconds);
            }
            20..=22 => self.agent = None,
            23 | 24 => self.api_lost = true,
            25..=28 => self.api_lost = false,
            29 => self.runtime.lost = true,
            30..=33 => self.runtime.come_back(),
            34 | 35 => self.runtime.catch_up(),
            36 => {
                if let Some(agent) = &mut self.agent {
                    agent.collect = true;
                }
            }
            37 => self.change(),
            38 if chance.one_in(3) => self.delete(),
            // An agent that began anew starts a static pod once more, whatever was told of it.
            39 if !self.is_static && chance.one_in(2) => {
                if let Some(agent) = &mut self.agent {
                    agent.evicted = Some([0, 1, 3, 30][chance.below(4)]);
                }
                // Whichever of the two gives less time counts.
                if self.chance.one_in(3) {
                    self.delete();
                }
            }
            _ => {}
        }
    }

    /// The pod gets another image, or an old one back.
    fn change(&mut self) {
        let image = ["i", "j"][self.chance.below(2)];
        for pod in [&mut self.api, &mut self.file].into_iter().flatten() {
            pod.metadata.get_or_insert_default().generation += 1;
            for container in pod.spec.iter_mut().flat_map(|spec| &mut spec.containers).take(1) {
                container.image = image.into();
            }
        }
    }

    fn delete(&mut self) {
        if self.is_static {
            self.file = None;
            return;
        }
        if self.chance.one_in(6) {
            self.api = None;
            return;
        }
        let grace = [0, 1, 3, 30][self.chance.below(4)];
        let Some(pod) = &mut self.api else { return };
        let meta = pod.metadata.get_or_insert_default();
        meta.deletion_timestamp.get_or_insert(Time::default());
        // The API server lets it shrink only.
        let before = meta.deletion_grace_period_seconds.unwrap_or(i64::MAX);
        meta.deletion_grace_period_seconds = Some(before.min(grace));
    }

    /// The status manager: sends the newest wish, then deletes what is finished.
    fn send_status(&mut self) {
        let Some(agent) = self.agent.as_mut().filter(|_| !self.api_lost && self.chance.one_in(2)) else { return };
        let Some(api) = &mut self.api else { return };
        if let Some((desired, may_run)) = agent.desired.take() {
            let current = api.status.clone().unwrap_or_default();
            let next = merge(&current, &desired, may_run);
            never_back(&current, &next);
            assert!(!may_run || !is_over(&next) || is_over(&current), "an end was told while something may run");
            api.status = Some(next);
        }
        if agent.finished && api.is_deleted() && api.status.as_ref().is_some_and(is_over) {
            self.api = None;
        }
    }

    fn check_order(&self) {
        let Some(spec) = self.agent.as_ref().and_then(|agent| agent.pod.spec.as_ref()) else { return };
        let regular = |name: &str| spec.containers.iter().any(|c| c.name == name);
        let init = |name: &str| spec.init_containers.iter().any(|c| c.name == name && c.restart_policy.is_none());
        let both = self.runtime.runs(init) && self.runtime.runs(regular);
        assert!(!both, "a regular container ran beside an init container");
    }

    /// Of a pod that ends, a sidecar has stopped: nothing that was seen of what it serves runs any more.
    fn check_turns(&self, stopped: &str, seen: &Observed) {
        let Some(spec) = self.agent.as_ref().and_then(|agent| agent.pod.spec.as_ref()) else { return };
        let inits = &spec.init_containers;
        let Some(at) = inits.iter().position(|c| c.name == stopped && c.restart_policy.is_some()) else { return };
        let later = inits[at + 1..].iter().filter(|c| c.restart_policy.is_some());
        for other in spec.containers.iter().chain(later) {
            let mut tries = seen.running().filter(|record| record.name == other.name);
            assert!(!tries.any(|record| self.runtime.is_up(&record.id)), "{stopped} stopped before {}", other.name);
        }
    }

    /// An agent comes up, as soon as it knows what there is.
    fn begin(&mut self) {
        if self.runtime.lost || (self.api_lost && !self.is_static) {
            return;
        }
        let mut agent = match self.source() {
            Some(pod) => Agent::new(pod),
            None if self.runtime.is_empty() => return,
            None => {
                self.orphan = true;
                Agent::new(Pod::default())
            }
        };
        agent.removed = self.orphan;
        agent.ending |= self.orphan;
        // An eviction that the API server was not told of went with the agent before, and with it what it left to the pod.
        self.runtime.over &= !std::mem::take(&mut self.only_evicted);
        self.runtime.limit = None;
        self.runtime.over |= agent.ending;
        self.agent = Some(agent);
    }

    fn go_on(&mut self) {
        if self.agent.is_none() {
            self.begin();
        }
        if self.agent.is_some() {
            // What failed or died goes on in the next round.
            let _ = self.round();
        }
        self.send_status();
        self.runtime.pass(1);
        if self.stormy {
            self.happen();
        }
    }

    /// Nothing more happens but what the agent does, until it has nothing to do.
    fn calm(&mut self) {
        self.stormy = false;
        (self.api_lost, self.runtime.lost) = (false, false);
        for _ in 0..20 {
            self.runtime.catch_up();
        }
        for _ in 0..60 {
            self.go_on();
            self.runtime.pass(20);
        }
    }
}

/// What was shown of a pod is not taken back.
fn never_back(before: &PodStatus, after: &PodStatus) {
    let what = || format!("\nbefore: {before:?}\nafter: {after:?}");
    assert!(!is_over(before) || after.phase == before.phase, "a pod came back from its end{}", what());
    assert!(before.start_time.is_none() || after.start_time == before.start_time, "a pod began twice");
    assert!(after.observed_generation >= before.observed_generation, "an older spec was observed{}", what());
    let lists = |s: &PodStatus| [s.init_container_statuses.clone(), s.container_statuses.clone()].concat();
    for (old, new) in lists(before).iter().flat_map(|old| lists(after).into_iter().map(move |new| (old.clone(), new))) {
        if old.name == new.name {
            assert!(
                new.restart_count >= old.restart_count,
                "{} restarted less often: {:?} {} {:?}, then {:?} {} {:?}",
                old.name,
                old.restart_count,
                old.container_id,
                old.state,
                new.restart_count,
                new.container_id,
                new.state
            );
            let ended = |s: &proto::api::core::v1::ContainerStatus| s.state.as_ref().and_then(|s| s.terminated.clone());
            let same_try = new.restart_count == old.restart_count && new.container_id == old.container_id;
            let runs = new.state.as_ref().is_some_and(|s| s.running.is_some());
            assert!(!(same_try && runs && ended(&old).is_some()), "{} rose from the dead{}", old.name, what());
            assert!(!is_over(before) || ended(&old).is_none() || ended(&new).is_some(), "an end was lost{}", what());
        }
    }
}

fn world(seed: u64) -> World {
    let mut chance = Chance(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15));
    chance.below(2);
    let policy = ["Always", "OnFailure", "Never"][chance.below(3)];
    let inits = [
        vec![],
        vec![container("i")],
        vec![sidecar("s"), container("i")],
        vec![sidecar("s")],
        vec![sidecar("s"), container("i"), sidecar("t")],
    ];
    let mut containers = vec![container("a"), container("b")];
    match chance.below(4) {
        0 => containers.push(with_rule("r", "Restart")),
        1 => containers.push(with_rule("r", "RestartAllContainers")),
        2 => containers[0].liveness_probe = Some(Probe::default()),
        _ => {}
    }
    let mut pod = pod(policy, inits[chance.below(5)].clone(), containers);
    pod.metadata = Some(ObjectMeta { generation: 1, ..Default::default() });
    let grace = [None, Some(1), Some(5), Some(60)][chance.below(4)];
    pod.spec.iter_mut().for_each(|spec| spec.termination_grace_period_seconds = grace);
    let is_static = chance.one_in(4);
    World {
        chance,
        stormy: true,
        runtime: Runtime::default(),
        agent: None,
        file: is_static.then(|| pod.clone()),
        api: Some(pod),
        api_lost: false,
        is_static,
        orphan: false,
        end_began: None,
        only_evicted: false,
    }
}

#[test]
fn whatever_happens_nothing_runs_twice_no_grace_is_exceeded_and_no_end_is_taken_back() {
    let (mut ends, mut broken) = (BTreeMap::new(), Vec::new());
    for seed in 1..=1000 {
        let walk = std::panic::catch_unwind(|| {
            let mut world = world(seed);
            (0..60).for_each(|_| world.go_on());
            world.calm();
            world.outcome()
        });
        match walk {
            Ok(outcome) => *ends.entry(outcome).or_insert(0) += 1,
            Err(why) => {
                let why = why.downcast_ref::<String>().map_or("a panic", String::as_str);
                broken.push(format!("walk {seed}: {}", why.lines().next().unwrap_or_default()));
            }
        }
    }
    assert!(broken.is_empty(), "{} walks: {:#?}", broken.len(), &broken[..broken.len().min(9)]);
    // The walks reach ends of every kind, or they would show nothing.
    assert!(["gone", "Running", "Succeeded", "Failed"].iter().all(|end| ends.contains_key(end)), "{ends:?}");
}

impl World {
    /// What the world has come to; it must be one of what a pod can stay in.
    fn outcome(&self) -> &'static str {
        let status = self.api.as_ref().and_then(|pod| pod.status.clone()).unwrap_or_default();
        if self.source().is_none() {
            assert!(self.runtime.is_empty(), "something is left of a pod that is gone");
            return "gone";
        }
        let runs = |names: &[Container]| names.iter().any(|c| self.runtime.runs(|name| name == c.name));
        let spec = self.api.as_ref().and_then(|pod| pod.spec.clone()).unwrap_or_default();
        // Without its sandbox such a pod is not begun again, and not over either.
        let stays = spec.restart_policy == "Never";
        match status.phase.as_str() {
            "Succeeded" => "Succeeded",
            "Failed" => "Failed",
            "Running" if runs(&spec.containers) || stays => {
                let kept_up = |c: &&Container| c.restart_policy.is_none() || self.runtime.runs(|name| name == c.name);
                let down = spec.init_containers.iter().find(|c| !kept_up(c)).map(|c| &c.name);
                assert!(down.is_none() || stays, "{down:?} is down beside what it serves: {:?}", self.runtime);
                "Running"
            }
            "Pending" if runs(&spec.init_containers) || runs(&spec.containers) || stays => "Pending",
            _ => panic!("the pod is stuck: {:?} {:?}", status.phase, self.runtime),
        }
    }
}
