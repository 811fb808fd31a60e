//! The runtime of the model: what it has, the clocks, and what must never be asked of it.

use std::collections::{BTreeMap, HashSet, VecDeque};

use crate::pleg::observed::{ContainerRecord, Observed, RunState, Sandbox};
use crate::pod::crash_loop::Moment;

use super::Chance;

const SECOND: i64 = 1_000_000_000;

/// What the agent asks.
#[derive(Debug, Clone)]
pub enum Call {
    RunSandbox { attempt: u32 },
    Create { name: String, hash: String, attempt: u32, sandbox: String },
    Start(String),
    Stop { id: String, seconds: i64 },
    StopSandbox(String),
    Remove(String),
    RemoveSandbox(String),
}

/// No answer, or a refusal.
#[derive(Debug)]
pub struct Failed;

#[derive(Default, Debug)]
pub struct Runtime {
    has: Observed,
    /// The highest try whose log lies on the disk, by container.
    pub logs: BTreeMap<String, u32>,
    pub lost: bool,
    /// What was asked while it hung; it does so when it is back.
    late: VecDeque<Call>,
    made: u32,
    steady_seconds: i64,
    /// How wrong the wall clock is.
    skew_seconds: i64,
    /// Nothing may start any more.
    pub over: bool,
    /// By when all has to be stopped.
    pub limit: Option<i64>,
    /// A start that is under way.
    starting: Option<String>,
    /// Containers that sit out their grace.
    stubborn: HashSet<String>,
}

impl Runtime {
    pub fn moment(&self) -> Moment {
        let steady = self.steady_seconds * SECOND;
        Moment { unix: steady + (self.skew_seconds + 1_000_000_000) * SECOND, steady }
    }

    pub fn steady_seconds(&self) -> i64 {
        self.steady_seconds
    }

    pub fn pass(&mut self, seconds: i64) {
        self.steady_seconds += seconds;
    }

    pub fn set_clock(&mut self, skew_seconds: i64) {
        self.skew_seconds = skew_seconds;
    }

    /// What it says of the pod.
    pub fn look(&self) -> Result<Observed, Failed> {
        if self.lost {
            return Err(Failed);
        }
        let mut has = self.has.clone();
        has.sort();
        Ok(has)
    }

    pub fn is_empty(&self) -> bool {
        self.has.is_empty()
    }

    /// Does what is asked; at times nobody hears that it did.
    pub fn ask(&mut self, call: Call, chance: &mut Chance) -> Result<String, Failed> {
        if self.lost {
            if chance.one_in(3) {
                self.late.push_back(call);
            }
            return Err(Failed);
        }
        let answer = self.run(call, false);
        if chance.one_in(40) { Err(Failed) } else { answer }
    }

    /// It is there again, and does some of what it was asked before.
    pub fn come_back(&mut self) {
        self.lost = false;
    }

    pub fn catch_up(&mut self) {
        if !self.lost
            && let Some(call) = self.late.pop_front()
        {
            // Nobody waits for the answer.
            let _ = self.run(call, true);
        }
    }

    pub fn begin_start(&mut self, id: String) {
        self.starting = Some(id);
    }

    /// The container whose start is under way.
    pub fn starting(&self) -> Option<String> {
        self.starting.clone()
    }

    fn takes_away_what_starts(&self, call: &Call) -> bool {
        let Some(record) = self.has.containers.iter().find(|c| Some(&c.id) == self.starting.as_ref()) else {
            return false;
        };
        match call {
            Call::Stop { id, .. } | Call::Remove(id) => *id == record.id,
            Call::StopSandbox(id) | Call::RemoveSandbox(id) => *id == record.sandbox_id,
            Call::RunSandbox { .. } | Call::Create { .. } | Call::Start(_) => false,
        }
    }

    /// Ends a start that is under way; `None` when there is none. It was called for before the end of the pod.
    pub fn finish_start(&mut self, chance: &mut Chance) -> Option<Result<String, Failed>> {
        let id = self.starting.take()?;
        let over = std::mem::take(&mut self.over);
        let answer = self.ask(Call::Start(id), chance);
        self.over = over;
        Some(answer)
    }

    fn run(&mut self, call: Call, late: bool) -> Result<String, Failed> {
        assert!(late || !self.takes_away_what_starts(&call), "a container was taken away beside its start");
        match call {
            Call::RunSandbox { attempt } => self.run_sandbox(attempt),
            Call::Create { name, hash, attempt, sandbox } => self.create(name, hash, attempt, sandbox),
            Call::Start(id) => self.start(&id, late),
            Call::Stop { id, seconds } => {
                self.stop(&id, seconds, late);
                Ok(String::new())
            }
            Call::StopSandbox(id) => {
                let inside = self.has.containers.iter().filter(|c| c.sandbox_id == id).map(|c| c.id.clone());
                inside.collect::<Vec<_>>().iter().for_each(|id| self.end(id, 137));
                self.has.sandboxes.iter_mut().filter(|s| s.id == id).for_each(|s| s.ready = false);
                Ok(String::new())
            }
            Call::Remove(id) => {
                self.has.containers.retain(|c| c.id != id);
                Ok(String::new())
            }
            Call::RemoveSandbox(id) => {
                self.has.containers.retain(|c| c.sandbox_id != id);
                self.has.sandboxes.retain(|s| s.id != id);
                Ok(String::new())
            }
        }
    }

    fn next_id(&mut self, kind: char) -> String {
        self.made += 1;
        format!("{kind}{}", self.made)
    }

    fn run_sandbox(&mut self, attempt: u32) -> Result<String, Failed> {
        if self.has.sandboxes.iter().any(|s| s.attempt == attempt) {
            return Err(Failed);
        }
        let id = self.next_id('s');
        self.has.sandboxes.push(Sandbox {
            id: id.clone(),
            attempt,
            ready: true,
            ips: vec!["10.0.0.1".into()],
            has_network_status: true,
            created_at: self.moment().unix,
            ..Default::default()
        });
        Ok(id)
    }

    fn create(&mut self, name: String, hash: String, attempt: u32, sandbox_id: String) -> Result<String, Failed> {
        let taken = self.has.containers.iter().any(|c| c.name == name && c.restart_count == attempt);
        if taken || !self.has.sandboxes.iter().any(|s| s.id == sandbox_id && s.ready) {
            return Err(Failed);
        }
        let id = self.next_id('c');
        self.has.containers.push(ContainerRecord {
            id: id.clone(),
            name,
            sandbox_id,
            state: RunState::Created,
            hash,
            restart_count: attempt,
            created_at: self.moment().unix,
            ..Default::default()
        });
        Ok(id)
    }

    fn start(&mut self, id: &str, late: bool) -> Result<String, Failed> {
        let Some(at) = self.has.containers.iter().position(|c| c.id == id && c.state == RunState::Created) else {
            return Err(Failed);
        };
        let (name, attempt) = (self.has.containers[at].name.clone(), self.has.containers[at].restart_count);
        assert!(!self.over, "{name} started after the end, late: {late}");
        assert!(!self.runs(|running| running == name), "{name} runs twice: {:?}", self.has.containers);
        let now = self.moment().unix;
        let record = &mut self.has.containers[at];
        (record.state, record.started_at) = (RunState::Running, now);
        let last = self.logs.entry(name).or_default();
        *last = attempt.max(*last);
        Ok(String::new())
    }

    fn stop(&mut self, id: &str, seconds: i64, late: bool) {
        let runs = self.has.running().any(|c| c.id == id);
        let stubborn = self.stubborn.contains(id);
        // Whoever would have waited for the rest of the grace is gone.
        if !runs || late && stubborn {
            return;
        }
        let now = self.steady_seconds;
        if let Some(limit) = self.limit.filter(|_| !late) {
            assert!(
                now + seconds <= limit.max(now + 2),
                "{seconds} s at {now} are too many: the end was to be at {limit}"
            );
        }
        self.pass(if stubborn { seconds } else { 0 });
        self.end(id, if stubborn { 137 } else { 0 });
    }

    fn end(&mut self, id: &str, code: i32) {
        let now = self.moment().unix;
        let alive = |c: &&mut ContainerRecord| c.id == id && c.state != RunState::Exited;
        for record in self.has.containers.iter_mut().filter(alive) {
            (record.state, record.exit_code, record.finished_at) = (RunState::Exited, code, now);
        }
    }

    fn any(&self, chance: &mut Chance) -> Option<String> {
        let running: Vec<&ContainerRecord> =
            self.has.containers.iter().filter(|c| c.state == RunState::Running).collect();
        (!running.is_empty()).then(|| running[chance.below(running.len())].id.clone())
    }

    /// Some container that runs.
    pub fn running(&self, chance: &mut Chance) -> Option<String> {
        self.any(chance)
    }

    /// A container ends by itself.
    pub fn exit(&mut self, chance: &mut Chance) {
        if let Some(id) = self.any(chance) {
            self.end(&id, [0, 0, 1, 42, 137][chance.below(5)]);
        }
    }

    /// The runtime does not know any more how a container is.
    pub fn lose_sight(&mut self, chance: &mut Chance) {
        let Some(id) = self.any(chance) else { return };
        self.has.containers.iter_mut().filter(|c| c.id == id).for_each(|c| c.state = RunState::Unknown);
    }

    pub fn harden(&mut self, chance: &mut Chance) {
        self.stubborn.extend(self.any(chance));
    }

    /// The sandboxes die, and all in them.
    pub fn end_sandboxes(&mut self) {
        let all: Vec<String> = self.has.containers.iter().map(|c| c.id.clone()).collect();
        all.iter().for_each(|id| self.end(id, 137));
        self.has.sandboxes.iter_mut().for_each(|s| s.ready = false);
    }

    /// Whether that try of a container may run.
    pub fn may_run(&self, id: &str) -> bool {
        self.has.running().any(|c| c.id == id)
    }

    /// Whether that try of a container runs, and the runtime knows it.
    pub fn is_up(&self, id: &str) -> bool {
        self.has.containers.iter().any(|c| c.id == id && c.state == RunState::Running)
    }

    /// What runs is told apart by whether the pod's own initialisation is over.
    pub fn runs(&self, is: impl Fn(&str) -> bool) -> bool {
        self.has.running().any(|c| is(&c.name))
    }
}
