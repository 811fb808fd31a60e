//! The rules of [`super::step`]: a table of transitions, and a model that is driven by chance.
//!
//! The model is a runtime in memory that does what the actions say, while containers exit, sandboxes die, probes fail,
//! images and the clock change, and the pod is deleted in any order. What must hold whatever happens is checked after every step.

use std::collections::{BTreeMap, HashMap};

use proto::api::core::v1::{
    Container, ContainerRestartRule, ContainerRestartRuleOnExitCodes, Pod, PodSpec, PodStatus, Probe,
};
use proto::apimachinery::pkg::apis::meta::v1::Time;

use crate::pleg::observed::{ContainerRecord, Observed, RunState, Sandbox};
use crate::probes::{ProbeKind, Verdicts};
use crate::status::generate::is_over;
use crate::status::{Inputs, generate};

use super::hash::container_hash;
use super::restart::ALL_CONTAINERS_RESTARTING;
use super::step::{Actions, step};

fn container(name: &str) -> Container {
    Container { name: name.into(), image: "i".into(), ..Default::default() }
}

fn sidecar(name: &str) -> Container {
    Container { restart_policy: Some("Always".into()), ..container(name) }
}

fn rule(action: &str, code: i32) -> ContainerRestartRule {
    let exit_codes = Some(ContainerRestartRuleOnExitCodes { operator: "In".into(), values: vec![code] });
    ContainerRestartRule { action: action.into(), exit_codes }
}

fn with_rule(name: &str, action: &str) -> Container {
    Container { restart_policy: Some("Never".into()), restart_policy_rules: vec![rule(action, 42)], ..container(name) }
}

fn pod(policy: &str, init: Vec<Container>, containers: Vec<Container>) -> Pod {
    let spec = PodSpec { restart_policy: policy.into(), init_containers: init, containers, ..Default::default() };
    Pod { spec: Some(spec), ..Default::default() }
}

/// What a container of the table is in.
#[derive(Clone, Copy)]
enum Is {
    Up,
    Ended(i32),
    Made,
    Lost,
}

/// A ready sandbox with these containers.
fn seen(pod: &Pod, containers: &[(&str, Is)]) -> Observed {
    let spec = pod.spec.clone().unwrap_or_default();
    let record = |(name, is): &(&str, Is)| {
        let declared = spec.init_containers.iter().chain(&spec.containers).find(|c| c.name == *name);
        let (state, exit_code) = match is {
            Is::Up => (RunState::Running, 0),
            Is::Ended(code) => (RunState::Exited, *code),
            Is::Made => (RunState::Created, 0),
            Is::Lost => (RunState::Unknown, 0),
        };
        ContainerRecord {
            id: format!("id-{name}"),
            name: (*name).into(),
            sandbox_id: "s".into(),
            hash: declared.map(container_hash).unwrap_or_default(),
            state,
            exit_code,
            ..Default::default()
        }
    };
    let sandbox = Sandbox {
        id: "s".into(),
        ready: true,
        ips: vec!["10.0.0.1".into()],
        has_network_status: true,
        ..Default::default()
    };
    Observed { sandboxes: vec![sandbox], containers: containers.iter().map(record).collect() }
}

/// The actions in short: `sandbox`, `kill-pod`, `-name` for a kill, `~name` for a reset, `+name` for a start.
fn told(pod: &Pod, actions: &Actions) -> String {
    let spec = pod.spec.clone().unwrap_or_default();
    let mut words: Vec<String> = Vec::new();
    words.extend(actions.kill_pod.then(|| "kill-pod".to_owned()));
    words.extend(actions.create_sandbox.then(|| "sandbox".to_owned()));
    words.extend(actions.reset.iter().map(|r| format!("~{}", r.kill.name)));
    words.extend(actions.kill.iter().map(|k| format!("-{}", k.name)));
    words.extend(actions.start_init.iter().map(|i| format!("+{}", spec.init_containers[*i].name)));
    words.extend(actions.start.iter().map(|i| format!("+{}", spec.containers[*i].name)));
    words.join(" ")
}

/// What a case is about, the pod, what is seen of its containers, and what is to be done.
type Case = (&'static str, Pod, Vec<(&'static str, Is)>, &'static str);

#[test]
fn every_transition_has_its_actions() {
    use Is::{Ended, Lost, Made, Up};
    let two = |policy| pod(policy, vec![], vec![container("a"), container("b")]);
    let staged = |policy| pod(policy, vec![container("i"), container("j")], vec![container("a")]);
    let aided = |policy| pod(policy, vec![sidecar("s"), container("j")], vec![container("a")]);
    let ruled = |action| pod("Never", vec![container("i")], vec![with_rule("a", action), container("b")]);
    let table: Vec<Case> = vec![
        ("all containers start", two("Always"), vec![], "+a +b"),
        ("what runs stays", two("Always"), vec![("a", Up), ("b", Up)], ""),
        ("Always restarts a success", two("Always"), vec![("a", Ended(0)), ("b", Up)], "+a"),
        ("OnFailure leaves a success", two("OnFailure"), vec![("a", Ended(0)), ("b", Up)], ""),
        ("OnFailure restarts a failure", two("OnFailure"), vec![("a", Ended(1)), ("b", Up)], "+a"),
        ("Never restarts nothing", two("Never"), vec![("a", Ended(1)), ("b", Up)], ""),
        ("a pod that is done is ended", two("Never"), vec![("a", Ended(1)), ("b", Ended(0))], "kill-pod"),
        ("a container that was only made is started", two("Never"), vec![("a", Made), ("b", Up)], "+a"),
        ("a lost one is ended before its successor", two("Never"), vec![("a", Lost), ("b", Up)], "-a +a"),
        ("init containers go first", staged("Always"), vec![], "+i"),
        ("one at a time", staged("Always"), vec![("i", Up)], ""),
        ("the next after a success", staged("Always"), vec![("i", Ended(0))], "+j"),
        ("the regular ones after the last", staged("Always"), vec![("i", Ended(0)), ("j", Ended(0))], "+a"),
        ("a failed init is tried again", staged("Always"), vec![("i", Ended(1))], "+i"),
        ("unless nothing restarts", staged("Never"), vec![("i", Ended(1))], "kill-pod"),
        ("a lost init is ended first", staged("Always"), vec![("i", Lost)], "-i +i"),
        ("done initialisation is not repeated", staged("Always"), vec![("i", Ended(0)), ("a", Up)], ""),
        ("a sidecar lets the next begin", aided("Always"), vec![("s", Up)], "+j"),
        ("a sidecar is restarted during initialisation", aided("Never"), vec![("s", Ended(0)), ("j", Up)], ""),
        ("and beside the regular ones", aided("Never"), vec![("s", Ended(0)), ("j", Ended(0)), ("a", Up)], "+s"),
        ("not when the pod is done", aided("Never"), vec![("s", Up), ("j", Ended(0)), ("a", Ended(0))], "kill-pod"),
        ("a rule restarts", ruled("Restart"), vec![("i", Ended(0)), ("a", Ended(42)), ("b", Up)], "+a"),
        ("another code does not", ruled("Restart"), vec![("i", Ended(0)), ("a", Ended(1)), ("b", Up)], ""),
    ];
    for (what, pod, containers, wanted) in table {
        let actions = step(&pod, &seen(&pod, &containers), &Verdicts::default(), false);
        assert_eq!(told(&pod, &actions), wanted, "{what}");
    }
}

#[test]
fn all_start_over_and_the_reason_goes_last() {
    let pod = pod("Never", vec![container("i")], vec![with_rule("a", "RestartAllContainers"), container("b")]);
    let observed = seen(&pod, &[("i", Is::Ended(0)), ("a", Is::Ended(42)), ("b", Is::Up)]);
    let actions = step(&pod, &observed, &Verdicts::default(), true);
    assert_eq!(told(&pod, &actions), "~i ~b ~a");
    assert!(actions.reset[1].may_run && !actions.reset[2].may_run);
    let actions = step(&pod, &seen(&pod, &[]), &Verdicts::default(), true);
    assert_eq!(told(&pod, &actions), "+i", "everything is gone: it begins again");
}

#[test]
fn probes_and_changes_kill_what_runs() {
    let probed = |policy: &str| {
        let probe = Some(Probe::default());
        pod(policy, vec![], vec![Container { liveness_probe: probe, ..container("a") }])
    };
    let mut verdicts = Verdicts::default();
    verdicts.set("id-a", ProbeKind::Liveness, false);
    for (policy, wanted) in [("Always", "-a +a"), ("OnFailure", "-a +a"), ("Never", "kill-pod -a")] {
        let pod = probed(policy);
        let actions = step(&pod, &seen(&pod, &[("a", Is::Up)]), &verdicts, false);
        assert_eq!(told(&pod, &actions), wanted, "{policy}");
    }
    let pod = probed("Never");
    let mut observed = seen(&pod, &[("a", Is::Up)]);
    observed.containers[0].hash = "other".into();
    let actions = step(&pod, &observed, &Verdicts::default(), false);
    assert_eq!(told(&pod, &actions), "-a +a", "a changed image starts whatever the policy");
}

#[test]
fn a_pod_gets_another_sandbox_when_it_has_none_that_works() {
    let pod = pod("Always", vec![container("i")], vec![container("a")]);
    let mut observed = seen(&pod, &[("i", Is::Ended(0)), ("a", Is::Up)]);
    let none = step(&pod, &Observed::default(), &Verdicts::default(), false);
    assert_eq!((told(&pod, &none).as_str(), none.attempt), ("kill-pod sandbox +i", 0));
    observed.sandboxes[0].ready = false;
    let again = step(&pod, &observed, &Verdicts::default(), false);
    assert_eq!((told(&pod, &again).as_str(), again.attempt), ("kill-pod sandbox +i", 1));
    observed.sandboxes[0].ready = true;
    observed.sandboxes[0].ips.clear();
    assert_eq!(told(&pod, &step(&pod, &observed, &Verdicts::default(), false)), "kill-pod sandbox +i");
}

/// Numbers that look random and are the same in each run.
struct Chance(u64);

impl Chance {
    fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 % limit as u64).unwrap_or(0)
    }
}

/// The runtime of the model, and what the agent remembers.
struct Model {
    pod: Pod,
    observed: Observed,
    verdicts: Verdicts,
    old: PodStatus,
    /// The phase can no longer change, and nothing may start.
    over: bool,
    clock: i64,
    /// How wrong the machine's clock is.
    skew: i64,
}

impl Model {
    fn status(&self, terminal: bool) -> PodStatus {
        generate(&Inputs {
            pod: &self.pod,
            observed: &self.observed,
            old: &self.old,
            start_errors: &HashMap::new(),
            probes: &self.verdicts.of(&self.pod),
            runtime: "r",
            host_ips: &[],
            terminal,
            imposed: None,
            recursive_read_only: false,
            resize: Vec::new(),
            now: Time { seconds: self.clock + self.skew, nanos: 0 },
        })
    }

    fn agent(&mut self) {
        let status = self.status(false);
        assert!(!self.over || is_over(&status), "a pod came back from its end");
        assert!(!self.over || status.phase == self.old.phase, "a pod ended twice");
        let begun = self.old.start_time.is_none() || status.start_time == self.old.start_time;
        assert!(begun, "a pod began twice");
        self.old = status;
        self.over |= is_over(&self.old);
        let deleted = self.pod.metadata.as_ref().is_some_and(|m| m.deletion_timestamp.is_some());
        if self.over || deleted {
            // The worker ends what runs and starts nothing any more.
            self.stop_all();
            self.old = self.status(true);
            return;
        }
        let restarting =
            self.old.conditions.iter().any(|c| c.r#type == ALL_CONTAINERS_RESTARTING && c.status == "True");
        let actions = step(&self.pod, &self.observed, &self.verdicts, restarting);
        self.apply(&actions);
    }

    fn apply(&mut self, actions: &Actions) {
        if actions.kill_pod {
            self.stop_all();
        }
        for kill in &actions.kill {
            self.stop(&kill.container_id);
        }
        for reset in &actions.reset {
            self.observed.containers.retain(|c| c.id != reset.kill.container_id);
        }
        if actions.create_sandbox {
            self.clock += 1;
            let ready = Sandbox {
                id: format!("s{}", self.clock),
                attempt: actions.attempt,
                ready: true,
                ips: vec!["10.0.0.1".into()],
                has_network_status: true,
                ..Default::default()
            };
            self.observed.sandboxes.insert(0, ready);
            // Initialisation begins anew.
            let inits: Vec<String> =
                self.pod.spec.iter().flat_map(|s| &s.init_containers).map(|c| c.name.clone()).collect();
            self.observed.containers.retain(|c| !inits.contains(&c.name));
        }
        let spec = self.pod.spec.clone().unwrap_or_default();
        let inits = actions.start_init.iter().map(|i| &spec.init_containers[*i]);
        for container in inits.chain(actions.start.iter().map(|i| &spec.containers[*i])) {
            self.start(container);
        }
        let sidecar = |name: &str| spec.init_containers.iter().any(|c| c.name == name && c.restart_policy.is_some());
        let regular = |name: &str| spec.containers.iter().any(|c| c.name == name);
        let running = |pick: &dyn Fn(&str) -> bool| {
            self.observed.containers.iter().any(|c| c.state == RunState::Running && pick(&c.name))
        };
        let initialising = running(&|name| !regular(name) && !sidecar(name));
        assert!(!(initialising && running(&regular)), "a regular container ran beside an init container");
    }

    fn start(&mut self, container: &Container) {
        let sandbox =
            self.observed.sandboxes.first().filter(|s| s.ready).expect("a container started without a sandbox");
        let twice = self.observed.containers.iter().any(|c| c.name == container.name && c.state == RunState::Running);
        assert!(!twice, "{} ran twice", container.name);
        self.clock += 1;
        let record = ContainerRecord {
            id: format!("c{}", self.clock),
            name: container.name.clone(),
            sandbox_id: sandbox.id.clone(),
            state: RunState::Running,
            hash: container_hash(container),
            created_at: self.clock,
            ..Default::default()
        };
        self.observed.containers.insert(0, record);
    }

    fn stop(&mut self, id: &str) {
        for record in self.observed.containers.iter_mut().filter(|c| c.id == id && c.state != RunState::Exited) {
            record.state = RunState::Exited;
            record.exit_code = 137;
        }
    }

    fn stop_all(&mut self) {
        let all: Vec<String> = self.observed.containers.iter().map(|c| c.id.clone()).collect();
        all.iter().for_each(|id| self.stop(id));
        self.observed.sandboxes.iter_mut().for_each(|s| s.ready = false);
    }

    fn happen(&mut self, chance: &mut Chance) {
        let running: Vec<usize> = (0..self.observed.containers.len())
            .filter(|i| self.observed.containers[*i].state == RunState::Running)
            .collect();
        match chance.below(20) {
            0..=8 if !running.is_empty() => {
                let record = &mut self.observed.containers[running[chance.below(running.len())]];
                record.state = RunState::Exited;
                record.exit_code = [0, 0, 1, 42, 137][chance.below(5)];
            }
            9 if !running.is_empty() => {
                self.observed.containers[running[chance.below(running.len())]].state = RunState::Unknown;
            }
            10 if !running.is_empty() => {
                let id = self.observed.containers[running[chance.below(running.len())]].id.clone();
                self.verdicts.set(&id, ProbeKind::Liveness, false);
            }
            11 => self.observed.sandboxes.iter_mut().for_each(|s| s.ready = false),
            // The agent restarts: it has the API's status and what the runtime has, nothing else.
            12 | 13 => {
                self.verdicts = Verdicts::default();
                self.pod.status = Some(self.old.clone());
            }
            // Garbage collection takes an old try away.
            14 => {
                let last = self.observed.containers.iter().rposition(|c| c.state == RunState::Exited);
                let newer = |i: usize, all: &[ContainerRecord]| all[..i].iter().any(|c| c.name == all[i].name);
                if let Some(i) = last.filter(|i| newer(*i, &self.observed.containers)) {
                    self.observed.containers.remove(i);
                }
            }
            // A container gets another image, or an old one back.
            15 => {
                let containers = self.pod.spec.iter_mut().flat_map(|spec| &mut spec.containers);
                if let Some(container) = containers.into_iter().next() {
                    container.image = ["i", "j"][chance.below(2)].into();
                }
            }
            16 => self.skew = [-100_000, 0, 100_000][chance.below(3)],
            17 if chance.below(10) == 0 => {
                let metadata = self.pod.metadata.get_or_insert_default();
                metadata.deletion_timestamp = Some(Time::default());
            }
            _ => {}
        }
    }
}

#[test]
fn whatever_happens_nothing_runs_twice_and_no_end_is_taken_back() {
    let mut ends = BTreeMap::new();
    for seed in 1..=600_u64 {
        let mut chance = Chance(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15));
        let policy = ["Always", "OnFailure", "Never"][chance.below(3)];
        let inits = [vec![], vec![container("i")], vec![sidecar("s"), container("i")], vec![sidecar("s")]];
        let mut containers = vec![container("a"), container("b")];
        match chance.below(4) {
            0 => containers.push(with_rule("r", "Restart")),
            1 => containers.push(with_rule("r", "RestartAllContainers")),
            2 => containers[0].liveness_probe = Some(Probe::default()),
            _ => {}
        }
        let pod = pod(policy, inits[chance.below(4)].clone(), containers);
        let mut model = Model {
            pod,
            observed: Observed::default(),
            verdicts: Verdicts::default(),
            old: PodStatus::default(),
            over: false,
            clock: 0,
            skew: 0,
        };
        for _ in 0..60 {
            model.agent();
            model.happen(&mut chance);
        }
        *ends.entry(model.old.phase.clone()).or_insert(0) += 1;
    }
    // The walk reaches ends of every kind, or it would show nothing.
    assert!(["Running", "Succeeded", "Failed"].iter().all(|phase| ends.contains_key(*phase)), "{ends:?}");
}
