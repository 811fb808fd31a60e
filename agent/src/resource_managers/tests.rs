//! Pods that come and go under all policies, on machines that do not exist.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;

use proto::api::core::v1::{Container, Pod, PodSpec, ResourceRequirements};
use proto::apimachinery::pkg::api::resource::Quantity;
use proto::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use proto::cri::LinuxContainerResources;

use super::open::open;
use super::topology::{NodeMemory, Part, Topology, machine};
use super::{CpuSet, Managers, Settings, cpu_state, memory_state};
use crate::device_plugins::Devices;
use crate::pods_api::PodFeed;

pub(super) const MI: u64 = 1 << 20;

/// Two sockets of four cores with two threads (core N has CPUs N and N + 8), a node with 1000 Mi each.
pub(super) fn dual() -> Topology {
    let node = NodeMemory { bytes: 1000 * MI, ..NodeMemory::default() };
    Topology { cpus: machine(2, 2, 2, 4, 2), nodes: [(0, node.clone()), (1, node)].into() }
}

pub(super) struct Fixture {
    dir: PathBuf,
    pub(super) settings: Settings,
    devices: Arc<Devices>,
}

impl Fixture {
    pub(super) fn new(name: &str, topology_policy: &str, options: &[&str]) -> Self {
        let dir = std::env::temp_dir().join(format!("managers-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&dir);
        std::fs::create_dir_all(&dir).unwrap();
        let reserved = |bytes| [("memory".to_owned(), bytes)].into();
        let settings = Settings {
            root_dir: dir.clone(),
            cpu_policy: "static".into(),
            cpu_options: options.iter().map(|name| ((*name).to_owned(), "true".to_owned())).collect(),
            reserved_count: 2,
            memory_policy: "Static".into(),
            reserved_memory: [(0, reserved(100 * MI)), (1, reserved(100 * MI))].into(),
            topology_policy: topology_policy.into(),
            topology_scope: "container".into(),
            without_quota: true,
            ..Settings::default()
        };
        let devices = Devices::new(dir.clone(), Arc::new(PodFeed::default()), |d| panic!("{d}"));
        Self { dir, settings, devices }
    }

    pub(super) fn open(&self) -> Managers {
        open(&self.settings, &dual()).unwrap()
    }

    pub(super) async fn admit(&self, managers: &Managers, pod: &Pod) -> Result<(), String> {
        let admitted = managers.admit(&self.devices, pod, &BTreeSet::new()).await;
        admitted.map_err(|refusal| format!("{}: {refusal}", refusal.reason()))
    }
}

impl Drop for Fixture {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}

pub(super) fn container(name: &str, cpu: &str, memory: &str) -> Container {
    let quantity = |text: &str| Quantity { string: text.into() };
    let limits = [("cpu".to_owned(), quantity(cpu)), ("memory".to_owned(), quantity(memory))].into();
    let resources = Some(ResourceRequirements { limits, ..Default::default() });
    Container { name: name.into(), resources, ..Default::default() }
}

pub(super) fn sidecar(name: &str, cpu: &str, memory: &str) -> Container {
    Container { restart_policy: Some("Always".into()), ..container(name, cpu, memory) }
}

pub(super) fn pod(uid: &str, init_containers: Vec<Container>, containers: Vec<Container>) -> Pod {
    let metadata = Some(ObjectMeta { uid: uid.into(), name: uid.into(), ..Default::default() });
    let spec = Some(PodSpec { init_containers, containers, ..Default::default() });
    Pod { metadata, spec, ..Default::default() }
}

fn one(uid: &str, cpu: &str, memory: &str) -> Pod {
    pod(uid, Vec::new(), vec![container("c", cpu, memory)])
}

/// The CPUs that a container is on, if it is not on those of everybody.
pub(super) fn had(managers: &Managers, uid: &str, name: &str) -> CpuSet {
    managers.state().cpus.of(uid, name).cloned().unwrap_or_default()
}

fn cpus(managers: &Managers, uid: &str) -> String {
    had(managers, uid, "c").to_string()
}

fn placed(managers: &Managers, pod: &Pod, name: &str) -> LinuxContainerResources {
    let mut resources = LinuxContainerResources { cpu_quota: 200_000, cpu_period: 100_000, ..Default::default() };
    managers.place(pod, &container(name, "1", "1Mi"), &mut resources);
    resources
}

#[tokio::test]
async fn whole_cpus_are_exclusive_and_come_back() {
    let fixture = Fixture::new("exclusive", "none", &[]);
    let managers = fixture.open();
    assert_eq!(managers.allocatable_cpus().to_string(), "1-7,9-15", "core 0 is reserved");
    let (whole, part) = (one("a", "2", "10Mi"), one("b", "1500m", "10Mi"));
    fixture.admit(&managers, &whole).await.unwrap();
    fixture.admit(&managers, &part).await.unwrap();
    assert_eq!((cpus(&managers, "a").as_str(), cpus(&managers, "b").as_str()), ("1,9", ""));
    let (own, shared) = (placed(&managers, &whole, "c"), placed(&managers, &part, "c"));
    assert_eq!((own.cpuset_cpus.as_str(), own.cpuset_mems.as_str(), own.cpu_quota), ("1,9", "0", -1));
    assert_eq!((shared.cpuset_cpus.as_str(), shared.cpu_quota), ("0,2-8,10-15", 200_000));
    assert!(managers.lifts_quota(&whole) && !managers.lifts_quota(&part));
    let refused = fixture.admit(&managers, &one("c", "13", "10Mi")).await.unwrap_err();
    assert_eq!(
        refused,
        "UnexpectedAdmissionError: Allocate failed due to not enough cpus available to satisfy request: requested=13, \
         available=12, which is unexpected"
    );
    managers.release("a").await;
    fixture.admit(&managers, &one("c", "14", "10Mi")).await.unwrap();
    assert_eq!(cpus(&managers, "c"), "1-7,9-15");
}

#[tokio::test]
async fn a_restart_keeps_what_was_given_and_a_changed_policy_is_refused() {
    let mut fixture = Fixture::new("restart", "restricted", &[]);
    let first = fixture.open();
    for (uid, cpu) in [("a", "4"), ("b", "8")] {
        fixture.admit(&first, &one(uid, cpu, "100Mi")).await.unwrap();
    }
    let had = (cpus(&first, "a"), cpus(&first, "b"));
    let second = fixture.open();
    assert_eq!((cpus(&second, "a"), cpus(&second, "b")), had);
    fixture.admit(&second, &one("b", "8", "100Mi")).await.unwrap();
    assert_eq!((cpus(&second, "a"), cpus(&second, "b")), had, "admitted again, it has what it had");
    second.take_back(|uid| uid != "b");
    second.save().await;
    let third = fixture.open();
    assert_eq!((cpus(&third, "a").as_str(), cpus(&third, "b")), ("", had.1));
    let refused = |settings: &Settings| open(settings, &dual()).err().unwrap();
    fixture.settings.cpu_policy = "none".into();
    let (path, why) = (fixture.dir.join(cpu_state::FILE), refused(&fixture.settings));
    assert_eq!(
        why,
        format!(
            "start cpu manager error: could not restore state from checkpoint: configured policy \"none\" differs from \
             state checkpoint policy \"static\", please drain this node and delete the CPU manager checkpoint file \
             {:?} before restarting Kubelet",
            path.display().to_string()
        )
    );
    std::fs::remove_file(&path).unwrap();
    std::fs::write(fixture.dir.join(memory_state::FILE), "{}").unwrap();
    assert!(refused(&fixture.settings).starts_with("start memory manager error: could not restore state"));
    std::fs::remove_file(fixture.dir.join(memory_state::FILE)).unwrap();
    fixture.settings.memory_policy = "None".into();
    assert!(cpus(&fixture.open(), "b").is_empty());
}

#[tokio::test]
async fn containers_are_kept_on_one_node_or_refused() {
    let fixture = Fixture::new("single", "single-numa-node", &[]);
    let managers = fixture.open();
    fixture.admit(&managers, &one("a", "4", "800Mi")).await.unwrap();
    // Node 0 has CPUs left, but not the memory.
    fixture.admit(&managers, &one("b", "2", "200Mi")).await.unwrap();
    let node = |uid: &str| dual().cpus.parts(&had(&managers, uid, "c"), Part::Node);
    assert_eq!((node("a"), node("b")), ([0].into(), [1].into()));
    assert_eq!(managers.memory_of("b", "c")[0].numa_affinity, [1]);
    let before = std::fs::read_to_string(fixture.dir.join(cpu_state::FILE)).unwrap();
    let refused = fixture.admit(&managers, &one("c", "9", "10Mi")).await.unwrap_err();
    assert_eq!(refused, "TopologyAffinityError: Resources cannot be allocated with Topology locality");
    assert_eq!(std::fs::read_to_string(fixture.dir.join(cpu_state::FILE)).unwrap(), before, "nothing stays");
}

#[tokio::test]
async fn a_rehearsal_says_what_would_be_and_gives_nothing() {
    for scope in ["container", "pod"] {
        let mut fixture = Fixture::new(&format!("rehearsed-{scope}"), "single-numa-node", &[]);
        fixture.settings.topology_scope = scope.into();
        let managers = fixture.open();
        let rehearse = |pod: &Pod| managers.rehearse(&fixture.devices, pod).map_err(|refusal| refusal.reason());
        let two = pod("p", Vec::new(), vec![container("c", "3", "10Mi"), container("d", "5", "10Mi")]);
        for _ in 0..3 {
            assert_eq!(rehearse(&two), Ok(()), "{scope}");
        }
        assert!(cpus(&managers, "p").is_empty());
        assert_eq!(rehearse(&one("c", "9", "10Mi")), Err("TopologyAffinityError"));
        // Containers count after each other.
        let more = pod("m", Vec::new(), ["c", "d", "e"].map(|name| container(name, "5", "10Mi")).into());
        assert_eq!(rehearse(&more), Err("TopologyAffinityError"), "{scope}");
        fixture.admit(&managers, &one("a", "6", "10Mi")).await.unwrap();
        assert_eq!(rehearse(&one("a", "6", "10Mi")), Ok(()), "what it has it may keep");
    }
}

#[tokio::test]
async fn what_a_container_was_given_is_its_own_until_a_resize_is_granted() {
    let fixture = Fixture::new("resized", "none", &[]);
    let managers = fixture.open();
    fixture.admit(&managers, &one("a", "2", "10Mi")).await.unwrap();
    // As the API has it while the resize waits.
    for asked in ["1500m", "3"] {
        let own = managers.exclusive(&one("a", asked, "10Mi"), &container("c", asked, "10Mi"));
        assert_eq!((own.len(), own.to_string()), (2, cpus(&managers, "a")), "{asked}");
    }
    assert_eq!(managers.exclusive(&one("b", "2", "10Mi"), &container("c", "2", "10Mi")).len(), 0, "nothing was given");
}

#[tokio::test]
async fn the_scope_of_a_pod_keeps_all_its_containers_together() {
    let mut fixture = Fixture::new("scope", "single-numa-node", &[]);
    fixture.settings.topology_scope = "pod".into();
    let managers = fixture.open();
    let two = |uid| pod(uid, Vec::new(), vec![container("c", "3", "10Mi"), container("d", "4", "10Mi")]);
    fixture.admit(&managers, &two("a")).await.unwrap();
    let used = had(&managers, "a", "c").union(&had(&managers, "a", "d"));
    assert_eq!((used.len(), dual().cpus.parts(&used, Part::Node).len()), (7, 1));
    let refused = fixture.admit(&managers, &one("b", "9", "10Mi")).await.unwrap_err();
    assert!(refused.starts_with("TopologyAffinityError"), "{refused}");
}

#[tokio::test]
async fn init_containers_pass_their_cpus_on_and_sidecars_keep_theirs() {
    let fixture = Fixture::new("init", "none", &[]);
    let managers = fixture.open();
    let init = vec![container("i", "4", "10Mi"), sidecar("s", "2", "10Mi")];
    fixture.admit(&managers, &pod("a", init, vec![container("c", "2", "10Mi")])).await.unwrap();
    let of = |name: &str| had(&managers, "a", name);
    assert!(of("s").is_subset(&of("i")) && of("c").is_subset(&of("i")));
    assert!(of("s").intersection(&of("c")).is_empty());
    assert_eq!(managers.state().cpus.exclusive(), 4);
}

#[tokio::test]
async fn threads_of_a_core_stay_together_where_that_is_asked_for() {
    let fixture = Fixture::new("smt", "none", &["full-pcpus-only"]);
    let managers = fixture.open();
    let refused = fixture.admit(&managers, &one("a", "3", "10Mi")).await.unwrap_err();
    assert_eq!(refused, "SMTAlignmentError: SMT Alignment Error: requested 3 cpus not multiple cpus per core = 2");
    let refused = fixture.admit(&managers, &one("a", "16", "10Mi")).await.unwrap_err();
    assert_eq!(
        refused,
        "SMTAlignmentError: SMT Alignment Error: not enough free physical CPUs: available physical CPUs = 14, requested \
         CPUs = 16, CPUs per core = 2"
    );
    fixture.admit(&managers, &one("a", "4", "10Mi")).await.unwrap();
    assert_eq!(cpus(&managers, "a"), "1-2,9-10");
}

#[tokio::test]
async fn strictly_reserved_cpus_are_not_shared_and_options_may_contradict() {
    let fixture = Fixture::new("strict", "none", &["strict-cpu-reservation"]);
    let managers = fixture.open();
    assert_eq!(placed(&managers, &one("x", "1m", "1Mi"), "c").cpuset_cpus, "1-7,9-15");
    managers.save().await;
    let mut settings = fixture.settings.clone();
    settings.cpu_options.clear();
    assert_eq!(
        open(&settings, &dual()).err().unwrap(),
        "start cpu manager error: not all reserved cpus: \"0,8\" are present in defaultCpuSet: \"1-7,9-15\""
    );
    let fixture = Fixture::new("contradict", "none", &["full-pcpus-only", "distribute-cpus-across-cores"]);
    assert_eq!(
        open(&fixture.settings, &dual()).err().unwrap(),
        "new static policy error: static policy options full-pcpus-only and distribute-cpus-across-cores can not be used \
         at the same time"
    );
    let fixture = Fixture::new("socket", "single-numa-node", &["align-by-socket"]);
    assert!(open(&fixture.settings, &dual()).err().unwrap().contains("incompatible with CPUManager align-by-socket"));
}

/// Whatever comes and goes, no CPU has two masters, none is lost, and the file is what is in memory.
#[tokio::test]
async fn no_cpu_is_given_twice_or_lost() {
    for (seed, policy, options) in [
        (1_u64, "none", vec![]),
        (2, "best-effort", vec!["distribute-cpus-across-numa"]),
        (3, "restricted", vec!["full-pcpus-only"]),
        (4, "single-numa-node", vec!["prefer-align-cpus-by-uncorecache"]),
        (5, "best-effort", vec!["distribute-cpus-across-cores"]),
        (6, "restricted", vec!["align-by-socket"]),
    ] {
        let fixture = Fixture::new(&format!("random-{seed}"), policy, &options);
        let managers = fixture.open();
        let mut chance = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15);
        let mut below = |limit: u64| {
            chance ^= chance << 13;
            chance ^= chance >> 7;
            chance ^= chance << 17;
            chance % limit
        };
        let mut admitted = 0;
        for _ in 0..150 {
            let uid = format!("p{}", below(6));
            if below(3) == 0 {
                managers.release(&uid).await;
            } else if managers.state().cpus.of_pod(&uid).is_empty() {
                let (cpu, memory) = (below(6).to_string(), format!("{}Mi", 1 + below(400)));
                let init = if below(2) == 0 { vec![container("i", &cpu, &memory)] } else { Vec::new() };
                let pod = pod(&uid, init, vec![container("c", &cpu, &memory), sidecar("d", "1", "1Mi")]);
                admitted += usize::from(fixture.admit(&managers, &pod).await.is_ok());
            }
            let state = managers.state().clone();
            let all = state.cpus.assigned.keys().map(|pod| state.cpus.of_pod(pod));
            let (mut known, mut count) = (state.cpus.shared.clone(), state.cpus.shared.len());
            for own in all {
                known = known.union(&own);
                count += own.len();
            }
            assert_eq!((known, count), (dual().cpus.all(), 16), "{policy} {options:?}");
            let mut again = state.memory.clone();
            managers.memory.as_ref().unwrap().validate(&mut again).unwrap();
        }
        assert!(admitted > 10, "{policy}: {admitted}");
        managers.save().await;
        assert_eq!(*fixture.open().state(), *managers.state());
    }
}
