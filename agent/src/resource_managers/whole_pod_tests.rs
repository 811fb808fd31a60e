//! Pods that ask for CPUs and memory as a whole, on a machine that does not exist.

use proto::api::core::v1::{Container, Pod};
use proto::cri::LinuxContainerResources;

use super::Managers;
use super::open::open;
use super::tests::{Fixture, MI, container, dual, had, pod, sidecar};
use crate::metrics;

fn bare(name: &str) -> Container {
    Container { name: name.into(), ..Default::default() }
}

fn shared_sidecar(name: &str) -> Container {
    Container { restart_policy: Some("Always".into()), ..bare(name) }
}

/// A pod that has so much as a whole.
fn whole(uid: &str, cpu: &str, memory: &str, init: Vec<Container>, containers: Vec<Container>) -> Pod {
    let mut pod = pod(uid, init, containers);
    pod.spec.as_mut().unwrap().resources = container("x", cpu, memory).resources;
    pod
}

fn fixture(name: &str, topology_policy: &str, scope: &str, options: &[&str]) -> Fixture {
    let mut fixture = Fixture::new(name, topology_policy, options);
    fixture.settings.topology_scope = scope.into();
    fixture.settings.pod_level = true;
    fixture
}

fn on(managers: &Managers, uid: &str, name: &str) -> String {
    had(managers, uid, name).to_string()
}

fn bytes(managers: &Managers, uid: &str, name: &str) -> Vec<u64> {
    managers.memory_of(uid, name).iter().map(|block| block.size / MI).collect()
}

#[tokio::test]
async fn a_pod_gets_its_cpus_and_memory_in_one_place_and_shares_them_out() {
    let fixture = fixture("whole", "single-numa-node", "pod", &[]);
    let managers = fixture.open();
    let init = vec![container("first", "3", "300Mi"), sidecar("beside", "1", "100Mi"), bare("second")];
    let pod = whole("a", "4", "400Mi", init, vec![container("own", "1", "100Mi"), bare("b"), bare("c")]);
    fixture.admit(&managers, &pod).await.unwrap();
    // Core 0 is reserved; CPUs N and N + 8 are one core.
    assert_eq!(managers.state().cpus.pods["a"].to_string(), "1-2,9-10");
    assert_eq!(on(&managers, "a", "first"), "1-2,9", "an init container that ends leaves them to others");
    assert_eq!((on(&managers, "a", "beside"), on(&managers, "a", "second")), ("1".into(), "2,9-10".into()));
    assert_eq!((on(&managers, "a", "own"), on(&managers, "a", "b")), ("9".into(), "2,10".into()));
    assert_eq!(on(&managers, "a", "b"), on(&managers, "a", "c"));
    assert_eq!(managers.state().cpus.shared.to_string(), "0,3-8,11-15", "nobody else has any of them");
    assert_eq!((bytes(&managers, "a", "first"), bytes(&managers, "a", "second")), (vec![300], vec![300]));
    assert_eq!((bytes(&managers, "a", "own"), bytes(&managers, "a", "b")), (vec![100], vec![200]));
    let machine = managers.state().memory.machine.clone();
    assert_eq!((machine[&0].memory_map["memory"].reserved, machine[&1].memory_map["memory"].reserved), (400 * MI, 0));

    let placed = |name: &str, container: &Container| {
        let mut resources = LinuxContainerResources { cpu_quota: 200_000, ..Default::default() };
        managers.place(&pod, &Container { name: name.into(), ..container.clone() }, &mut resources);
        (resources.cpuset_cpus, resources.cpuset_mems, resources.cpu_quota)
    };
    assert_eq!(placed("own", &container("own", "1", "100Mi")), ("9".into(), "0".into(), -1));
    assert_eq!(placed("b", &bare("b")), ("2,10".into(), "0".into(), 200_000), "who shares keeps his quota");
    assert!(managers.lifts_quota(&pod));
    assert!(managers.exclusive(&pod, &bare("b")).is_empty());

    managers.save().await;
    let again = fixture.open();
    assert_eq!(*again.state(), *managers.state(), "a restart finds what was given");
    fixture.admit(&again, &pod).await.unwrap();
    assert_eq!(*again.state(), *managers.state(), "admitted again, it has what it had");
    again.release("a").await;
    let empty = fixture.open();
    assert_eq!(empty.state().cpus.shared, dual().cpus.all());
    assert_eq!(empty.state().memory.machine[&0].memory_map["memory"].reserved, 0);
}

#[tokio::test]
async fn a_pod_that_leaves_nothing_to_share_is_refused() {
    let fixture = fixture("nothing-left", "best-effort", "pod", &[]);
    let managers = fixture.open();
    let full = || vec![container("a", "3", "300Mi"), container("b", "2", "100Mi")];
    let all_own = whole("ok", "5", "400Mi", Vec::new(), full());
    fixture.admit(&managers, &all_own).await.unwrap();
    managers.release("ok").await;
    let refused = |pod: Pod| {
        let (fixture, managers) = (&fixture, &managers);
        async move { fixture.admit(managers, &pod).await.unwrap_err() }
    };
    let with = |more: Vec<Container>| full().into_iter().chain(more).collect::<Vec<_>>();
    assert_eq!(
        refused(whole("p", "5", "500Mi", Vec::new(), with(vec![bare("c")]))).await,
        "EmptyPodSharedPoolError: pod rejected, sum of exclusive container cpu requests equals pod budget, leaving no cpus \
         for shared containers"
    );
    assert_eq!(
        refused(whole("p", "6", "400Mi", vec![shared_sidecar("s")], full())).await,
        "EmptyPodSharedPoolError: pod rejected, sum of exclusive container memory requests equals pod budget, leaving no \
         memory for shared containers"
    );
    let beside = vec![sidecar("s", "2", "10Mi"), container("i", "4", "10Mi")];
    assert_eq!(
        refused(whole("p", "5", "500Mi", beside, vec![bare("c")])).await,
        "EmptyPodSharedPoolError: pod rejected, largest exclusive init container requests 4 cpus, but only 3 available"
    );
    let beside = vec![sidecar("s", "2", "10Mi"), bare("i")];
    assert_eq!(
        refused(whole("p", "2", "500Mi", beside, vec![bare("c")])).await,
        "EmptyPodSharedPoolError: pod rejected, pod has shared init containers but no cpus available for them"
    );
    assert_eq!(managers.state().cpus.shared, dual().cpus.all(), "nothing stays");

    let strict = super::whole_pod_tests::fixture("nothing-left-strict", "restricted", "pod", &[]);
    let pod = whole("p", "5", "500Mi", Vec::new(), with(vec![bare("c")]));
    let refused = strict.admit(&strict.open(), &pod).await.unwrap_err();
    assert_eq!(refused, "TopologyAffinityError: Resources cannot be allocated with Topology locality");
    let strict = super::whole_pod_tests::fixture("whole-smt", "restricted", "pod", &["full-pcpus-only"]);
    let pod = whole("p", "3", "500Mi", Vec::new(), vec![bare("c")]);
    let refused = strict.admit(&strict.open(), &pod).await.unwrap_err();
    assert!(refused.starts_with("SMTAlignmentError"), "{refused}");
}

#[tokio::test]
async fn in_the_scope_of_containers_only_those_that_ask_get_their_own() {
    for (scope, policy) in [("container", "restricted"), ("pod", "none")] {
        let fixture = fixture(&format!("mixed-{policy}"), policy, scope, &[]);
        let managers = fixture.open();
        let pod = whole("a", "4", "400Mi", vec![sidecar("s", "2", "200Mi")], vec![bare("b")]);
        fixture.admit(&managers, &pod).await.unwrap();
        assert_eq!((had(&managers, "a", "s").len(), on(&managers, "a", "b").as_str()), (2, ""), "{policy}");
        assert!(managers.state().cpus.pods.is_empty());
        assert_eq!(bytes(&managers, "a", "s"), [200]);
        assert!(bytes(&managers, "a", "b").is_empty());
    }
}

#[tokio::test]
async fn without_the_gate_nobody_gets_his_own_and_what_was_given_is_missed() {
    let mut fixture = fixture("gate", "restricted", "pod", &[]);
    let managers = fixture.open();
    let pod = |uid| whole(uid, "4", "400Mi", Vec::new(), vec![container("own", "1", "100Mi"), bare("b")]);
    let part = whole("part", "2500m", "10Mi", Vec::new(), vec![bare("b")]);
    fixture.admit(&managers, &part).await.unwrap();
    assert!(managers.state().cpus.pods.is_empty(), "no whole CPUs");
    managers.release("part").await;
    fixture.admit(&managers, &pod("a")).await.unwrap();
    fixture.settings.pod_level = false;
    // Its containers have all of it between them, but as two assignments where the machine counts one.
    let error = open(&fixture.settings, &dual()).err().unwrap();
    assert!(error.contains("expected machine state is different"), "{error}");
    managers.release("a").await;
    let off = fixture.open();
    fixture.admit(&off, &pod("b")).await.unwrap();
    assert!(off.state().cpus.assigned.is_empty() && off.state().memory.assigned.is_empty());
    assert!(!off.concern(&pod("b")) && managers.concern(&pod("b")));
}

/// Value of a series; zero where there is none.
fn counted(family: &metrics::Family, labels: &[&str]) -> f64 {
    let all = family.snapshot().map_or_else(Vec::new, |shown| shown.samples);
    let found =
        all.into_iter().find(|sample| sample.labels.iter().map(|(_, value)| value.as_str()).eq(labels.iter().copied()));
    match found.map(|sample| sample.value) {
        Some(metrics::Value::Number(value)) => value,
        _ => 0.0,
    }
}

/// There were no such counts, and a pod's own was one request for CPUs whatever it was shared out to.
#[tokio::test]
async fn what_is_given_is_counted_by_where_it_comes_from() {
    let fixture = fixture("counted", "best-effort", "pod", &[]);
    let managers = fixture.open();
    let init = vec![container("first", "3", "300Mi"), sidecar("beside", "1", "100Mi"), bare("second")];
    let shares = whole("a", "4", "400Mi", init, vec![container("own", "1", "100Mi"), bare("b"), bare("c")]);
    fixture.admit(&managers, &shares).await.unwrap();
    let full = whole("p", "1", "10Mi", Vec::new(), vec![container("x", "1", "10Mi"), bare("c")]);
    fixture.admit(&managers, &full).await.unwrap_err();
    fixture.admit(&managers, &pod("n", Vec::new(), vec![container("x", "2", "10Mi")])).await.unwrap();
    let of = |family: &metrics::Family, labels: [&str; 2]| counted(family, &labels);
    for resource in ["cpu", "memory"] {
        let given = ["pod", "node"].map(|source| of(&metrics::RESOURCE_ALLOCATIONS, [resource, source]));
        assert_eq!(given, [6.0, 1.0], "{resource}");
        let kinds = ["pod_exclusive", "pod_shared", "node_exclusive"];
        assert_eq!(
            kinds.map(|kind| of(&metrics::RESOURCE_ASSIGNMENTS, [kind, resource])),
            [3.0, 3.0, 1.0],
            "{resource}"
        );
    }
    assert_eq!(of(&metrics::RESOURCE_ALLOCATION_ERRORS, ["cpu", "pod"]), 1.0);
    assert_eq!(counted(&metrics::CPU_PINNING, &[]), 4.0);
}
