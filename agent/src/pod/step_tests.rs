//! The rules of [`super::step`]: a table of transitions. What follows from them over time is shown by [`super::model`].

use proto::api::core::v1::{
    Container, ContainerRestartRule, ContainerRestartRuleOnExitCodes, EphemeralContainer, EphemeralContainerCommon,
    Pod, PodSpec, Probe,
};

use crate::pleg::observed::{ContainerRecord, Observed, RunState, Sandbox};
use crate::probes::{ProbeKind, Verdicts};

use super::hash::container_hash;
use super::spec::ephemeral_name;
use super::step::{Actions, KillReason, step};

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

/// The actions in short: `sandbox`, `kill-pod`, `-name` for a kill, `~name` for a reset, `+name` for a start,
/// the ephemeral ones first.
fn told(pod: &Pod, actions: &Actions) -> String {
    let spec = pod.spec.clone().unwrap_or_default();
    let mut words: Vec<String> = Vec::new();
    words.extend(actions.kill_pod.then(|| "kill-pod".to_owned()));
    words.extend(actions.create_sandbox.then(|| "sandbox".to_owned()));
    words.extend(actions.reset.iter().map(|r| format!("~{}", r.kill.name)));
    words.extend(actions.kill.iter().map(|k| format!("-{}", k.name)));
    let ephemeral = actions.start_ephemeral.iter().map(|i| &spec.ephemeral_containers[*i]);
    words.extend(ephemeral.map(|e| format!("+{}", ephemeral_name(e))));
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

/// Beside what goes on with the others, and once only.
#[test]
fn ephemeral_containers_start_whatever_the_others_do() {
    use Is::{Ended, Lost, Made, Up};
    let ephemeral = |mut pod: Pod| {
        let one = |name: &str| {
            let common = EphemeralContainerCommon { name: name.into(), image: "i".into(), ..Default::default() };
            EphemeralContainer { ephemeral_container_common: Some(common), ..Default::default() }
        };
        if let Some(spec) = pod.spec.as_mut() {
            spec.ephemeral_containers = vec![one("e"), one("f")];
        }
        pod
    };
    let always = || ephemeral(pod("Always", vec![], vec![container("a")]));
    let never = || ephemeral(pod("Never", vec![], vec![container("a")]));
    let staged = || ephemeral(pod("Always", vec![container("i")], vec![container("a")]));
    let table: Vec<Case> = vec![
        ("all that have no try", always(), vec![("a", Up)], "+e +f"),
        ("and no more than those", always(), vec![("a", Up), ("e", Up)], "+f"),
        ("one that has ended does not come again", always(), vec![("a", Up), ("e", Ended(1)), ("f", Ended(0))], ""),
        ("nor one that is lost", always(), vec![("a", Up), ("e", Lost), ("f", Up)], ""),
        ("nor one that was only made", always(), vec![("a", Up), ("e", Made), ("f", Up)], ""),
        ("they come before a restart", always(), vec![("a", Ended(1))], "+e +f +a"),
        ("and while the pod initialises", staged(), vec![("i", Up)], "+e +f"),
        ("and before its first container", staged(), vec![], "+e +f +i"),
        ("they keep no pod up", never(), vec![("a", Ended(0)), ("e", Up), ("f", Up)], "kill-pod"),
    ];
    for (what, pod, containers, wanted) in table {
        let actions = step(&pod, &seen(&pod, &containers), &Verdicts::default(), false);
        assert_eq!(told(&pod, &actions), wanted, "{what}");
    }
    let first = step(&always(), &Observed::default(), &Verdicts::default(), false);
    assert_eq!(told(&always(), &first), "kill-pod sandbox +a", "a new sandbox comes before them");
}

/// What a probe has found out about the container that runs.
#[derive(Debug, Clone, Copy)]
enum Found {
    Nothing,
    Startup(bool),
    /// The startup probe passed, and this is what the liveness probe says.
    Liveness(bool),
}

#[test]
fn startup_and_liveness_decide_over_what_runs() {
    use Found::{Liveness, Nothing, Startup};
    let probed = |container: Container| Container {
        startup_probe: Some(Probe::default()),
        liveness_probe: Some(Probe::default()),
        ..container
    };
    let regular = |policy: &str| pod(policy, vec![], vec![probed(container("a"))]);
    let beside = |policy: &str| pod(policy, vec![], vec![probed(container("a")), container("b")]);
    let aided = |policy: &str| pod(policy, vec![probed(sidecar("a"))], vec![container("b")]);
    let ruled = || pod("Never", vec![], vec![probed(with_rule("a", "Restart"))]);
    let later = |policy: &str| {
        let inits = vec![probed(sidecar("a")), container("j")];
        pod(policy, inits, vec![container("b")])
    };
    let (alone, both) = (vec![("a", Is::Up)], vec![("a", Is::Up), ("b", Is::Up)]);
    let table = [
        ("one that starts is left alone", regular("Always"), &alone, Nothing, "", None),
        ("one that has started too", regular("Always"), &alone, Startup(true), "", None),
        ("one that does not start is restarted", regular("Always"), &alone, Startup(false), "-a +a", Some("startup")),
        ("on failure as well", regular("OnFailure"), &alone, Startup(false), "-a +a", Some("startup")),
        ("else it ends the pod", regular("Never"), &alone, Startup(false), "kill-pod -a", Some("startup")),
        ("unless another runs", beside("Never"), &both, Startup(false), "-a", Some("startup")),
        ("one that lives is left alone", regular("Always"), &alone, Liveness(true), "", None),
        ("one that does not is restarted", regular("Always"), &alone, Liveness(false), "-a +a", Some("liveness")),
        ("else it ends alone", beside("Never"), &both, Liveness(false), "-a", Some("liveness")),
        ("a rule waits for the end", ruled(), &alone, Startup(false), "kill-pod -a", Some("startup")),
        ("a sidecar that starts holds all back", aided("Always"), &alone, Nothing, "", None),
        ("until it has started", aided("Always"), &alone, Startup(true), "+b", None),
        ("the next init container too", later("Always"), &alone, Startup(true), "+j", None),
        ("which it holds back before", later("Always"), &alone, Nothing, "", None),
        ("one that does not start is restarted", aided("Always"), &alone, Startup(false), "-a +a", Some("startup")),
        ("whatever the policy of the pod", aided("Never"), &alone, Startup(false), "-a +a", Some("startup")),
        ("others go on meanwhile", aided("Never"), &both, Startup(false), "-a +a", Some("startup")),
        ("a dead one is restarted", aided("Never"), &both, Liveness(false), "-a +a", Some("liveness")),
        ("and holds nobody back", aided("Always"), &alone, Liveness(false), "-a +a +b", Some("liveness")),
    ];
    for (what, pod, has, found, wanted, kill) in table {
        let mut verdicts = Verdicts::default();
        match found {
            Nothing => {}
            Startup(verdict) => verdicts.set("id-a", ProbeKind::Startup, verdict),
            Liveness(verdict) => {
                verdicts.set("id-a", ProbeKind::Startup, true);
                verdicts.set("id-a", ProbeKind::Liveness, verdict);
            }
        }
        let actions = step(&pod, &seen(&pod, has), &verdicts, false);
        assert_eq!(told(&pod, &actions), wanted, "{what}: {found:?}");
        let reason = actions.kill.first().map(|kill| kill.reason);
        let expected = kill.map(|word| match word {
            "startup" => KillReason::StartupProbe,
            _ => KillReason::LivenessProbe,
        });
        assert_eq!(reason, expected, "{what}: {found:?}");
    }
}

/// Whatever runs in them: nobody can tell which one is the pod's.
#[test]
fn two_sandboxes_that_are_ready_make_room_for_one() {
    let another = |ready: bool, mut observed: Observed| {
        let first = observed.sandboxes[0].clone();
        observed.sandboxes.insert(0, Sandbox { id: "t".into(), attempt: 1, ..first });
        observed.sandboxes[1].ready = ready;
        observed
    };
    let staged = |policy: &str| pod(policy, vec![container("i")], vec![container("a")]);
    let plain = |policy: &str| pod(policy, vec![], vec![container("a")]);
    let table = [
        ("what is there is started over", plain("Always"), vec![("a", Is::Up)], "kill-pod sandbox +a"),
        ("from the beginning", staged("Always"), vec![("i", Is::Ended(0)), ("a", Is::Up)], "kill-pod sandbox +i"),
        ("also with nothing in them", plain("Always"), vec![], "kill-pod sandbox +a"),
        ("a pod that runs once has run", plain("Never"), vec![("a", Is::Up)], "kill-pod"),
        ("one that did not begin begins", plain("Never"), vec![], "kill-pod sandbox +a"),
        ("what has succeeded is not repeated", plain("OnFailure"), vec![("a", Is::Ended(0))], "kill-pod"),
    ];
    for (what, pod, has, wanted) in table {
        let actions = step(&pod, &another(true, seen(&pod, &has)), &Verdicts::default(), false);
        assert_eq!((told(&pod, &actions).as_str(), actions.attempt), (wanted, 2), "{what}");
        assert_eq!(actions.sandbox_id, "t", "{what}");
    }
    let pod = plain("Always");
    let actions = step(&pod, &another(false, seen(&pod, &[])), &Verdicts::default(), false);
    assert_eq!(told(&pod, &actions), "+a", "of an old one that is down nothing is wanted");
    assert_eq!((actions.sandbox_id.as_str(), actions.attempt), ("t", 1));
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
