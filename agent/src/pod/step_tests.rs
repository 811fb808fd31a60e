//! The rules of [`super::step`]: a table of transitions. What follows from them over time is shown by [`super::model`].

use proto::api::core::v1::{Container, ContainerRestartRule, ContainerRestartRuleOnExitCodes, Pod, PodSpec, Probe};

use crate::pleg::observed::{ContainerRecord, Observed, RunState, Sandbox};
use crate::probes::{ProbeKind, Verdicts};

use super::hash::container_hash;
use super::step::{Actions, step};

pub(super) fn container(name: &str) -> Container {
    Container { name: name.into(), image: "i".into(), ..Default::default() }
}

pub(super) fn sidecar(name: &str) -> Container {
    Container { restart_policy: Some("Always".into()), ..container(name) }
}

fn rule(action: &str, code: i32) -> ContainerRestartRule {
    let exit_codes = Some(ContainerRestartRuleOnExitCodes { operator: "In".into(), values: vec![code] });
    ContainerRestartRule { action: action.into(), exit_codes }
}

pub(super) fn with_rule(name: &str, action: &str) -> Container {
    Container { restart_policy: Some("Never".into()), restart_policy_rules: vec![rule(action, 42)], ..container(name) }
}

pub(super) fn pod(policy: &str, init: Vec<Container>, containers: Vec<Container>) -> Pod {
    let spec = PodSpec { restart_policy: policy.into(), init_containers: init, containers, ..Default::default() };
    Pod { spec: Some(spec), ..Default::default() }
}

/// What a container of the table is in.
#[derive(Debug, Clone, Copy)]
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
    let twice = |policy| pod(policy, vec![sidecar("s"), container("j"), sidecar("t")], vec![container("a")]);
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
        ("a sidecar is restarted during initialisation", aided("Never"), vec![("s", Ended(0)), ("j", Up)], "+s"),
        ("beside the next init container", twice("Never"), vec![("s", Ended(1)), ("j", Ended(0))], "+s +t"),
        ("and beside a later sidecar", twice("Never"), vec![("s", Ended(1)), ("j", Ended(0)), ("t", Up)], "+s +a"),
        ("even if its trace is gone", twice("Always"), vec![("j", Up)], "+s"),
        ("a lost one is ended first", aided("Always"), vec![("s", Lost), ("j", Up)], "-s +s"),
        ("a sidecar that runs stays", aided("Always"), vec![("s", Up), ("j", Ended(1))], "+j"),
        (
            "none is restarted for a pod that cannot start",
            aided("Never"),
            vec![("s", Ended(0)), ("j", Ended(1))],
            "kill-pod",
        ),
        ("and beside the regular ones", aided("Never"), vec![("s", Ended(0)), ("j", Ended(0)), ("a", Up)], "+s"),
        (
            "nor is one that has ended",
            aided("Never"),
            vec![("s", Ended(0)), ("j", Ended(0)), ("a", Ended(0))],
            "kill-pod",
        ),
        ("not when the pod is done", aided("Never"), vec![("s", Up), ("j", Ended(0)), ("a", Ended(0))], "kill-pod"),
        ("a rule restarts", ruled("Restart"), vec![("i", Ended(0)), ("a", Ended(42)), ("b", Up)], "+a"),
        (
            "of a lost init no rule says anything",
            pod(
                "Always",
                vec![Container { restart_policy_rules: vec![rule("Restart", 137)], ..with_rule("i", "Restart") }],
                vec![],
            ),
            vec![("i", Lost)],
            "kill-pod",
        ),
        ("another code does not", ruled("Restart"), vec![("i", Ended(0)), ("a", Ended(1)), ("b", Up)], ""),
    ];
    for (what, pod, containers, wanted) in table {
        let actions = step(&pod, &seen(&pod, &containers), &Verdicts::default(), false);
        assert_eq!(told(&pod, &actions), wanted, "{what}");
    }
}

/// What is only added need not be looked for among all that a pod has.
#[test]
fn a_step_only_adds_where_nothing_of_the_pod_goes() {
    use Is::{Ended, Lost, Made, Up};
    let two = pod("Always", vec![], vec![container("a"), container("b")]);
    for (has, only_adds) in [
        (vec![], true),
        (vec![("a", Up)], true),
        (vec![("a", Ended(1)), ("b", Up)], true),
        (vec![("a", Made), ("b", Up)], false),
        (vec![("a", Lost), ("b", Up)], false),
    ] {
        let observed = seen(&two, &has);
        let actions = step(&two, &observed, &Verdicts::default(), false);
        assert_eq!((actions.is_empty(), actions.only_add(&observed)), (false, only_adds), "{has:?}");
    }
    let first = step(&two, &Observed::default(), &Verdicts::default(), false);
    assert!(first.create_sandbox && first.only_add(&Observed::default()), "there is nothing to take away");
    let mut lost = seen(&two, &[("a", Up)]);
    lost.sandboxes[0].ready = false;
    let again = step(&two, &lost, &Verdicts::default(), false);
    assert!(again.create_sandbox && !again.only_add(&lost));
    let over = step(&two, &seen(&two, &[("a", Ended(1)), ("b", Ended(1))]), &Verdicts::default(), true);
    assert!(!over.reset.is_empty() && !over.only_add(&Observed::default()));
}

#[test]
fn a_lost_container_is_named_by_its_kind() {
    let pod = pod("Always", vec![container("i")], vec![container("a")]);
    for (name, wanted) in [("i", "Init container"), ("a", "Container")] {
        let mut found = seen(&pod, &[(name, Is::Lost)]);
        if name == "a" {
            found = seen(&pod, &[("i", Is::Ended(0)), (name, Is::Lost)]);
        }
        let actions = step(&pod, &found, &Verdicts::default(), false);
        let told = format!("{wanted} is in \"unknown\" state, try killing it before restart");
        assert_eq!(actions.kill.iter().map(|k| &k.message).collect::<Vec<_>>(), [&told]);
    }
}

#[test]
fn all_start_over_and_the_reason_goes_last() {
    let pod = pod("Never", vec![container("i")], vec![with_rule("a", "RestartAllContainers"), container("b")]);
    let observed = seen(&pod, &[("i", Is::Ended(0)), ("a", Is::Ended(42)), ("b", Is::Up)]);
    let actions = step(&pod, &observed, &Verdicts::default(), true);
    assert_eq!(told(&pod, &actions), "~i ~b ~a");
    assert!(actions.reset[1].may_run && !actions.reset[2].may_run);
    assert_eq!(actions.reset[1].kill.message, "killing", "as the kubelet has it");
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
