use super::*;

#[test]
fn the_root_of_the_cgroups_is_somebody_elses_to_make() {
    let mount = std::env::temp_dir().join(format!("node-agent-cgroups-{}", crate::backoff::random_below(u32::MAX)));
    let check = |root: &str, driver| check_root(&mount, root, driver);
    assert_eq!(check("/none", Driver::Cgroupfs), Ok(()), "the older hierarchies are not looked at");
    for folder in ["", "a/b", "a.slice"] {
        std::fs::create_dir_all(mount.join(folder)).expect("a folder");
        std::fs::write(mount.join(folder).join("cgroup.controllers"), "cpu memory").expect("writes");
    }
    for (root, driver) in
        [("", Driver::Systemd), ("/", Driver::Cgroupfs), ("/a/b", Driver::Cgroupfs), ("/a", Driver::Systemd)]
    {
        assert_eq!(check(root, driver), Ok(()), "{root}");
    }
    let path = mount.join("a/c/cgroup.controllers");
    let words = format!(
        "invalid configuration: could not read controllers for cgroup [\"a\" \"c\"]: open {}: no such file or directory",
        path.display()
    );
    assert_eq!(check("/a/c/", Driver::Cgroupfs), Err(words));
    assert!(check("/a/b", Driver::Systemd).is_err());
    std::fs::remove_dir_all(mount).expect("removes");
}

#[test]
fn the_sum_follows_pods_that_come_change_and_go() {
    let mut pods = Pods::default();
    let asked = |milli_cpu, min, low| Asked { milli_cpu, kept: Kept { min, low }, ..Asked::default() };
    pods.note("a", Some(asked(100, 0, 5)));
    pods.note("b", Some(Asked { guaranteed_memory: 9, burstable_memory: 2, ..asked(250, 7, 0) }));
    pods.note("a", Some(asked(50, 0, 3)));
    assert_eq!(pods.sum, Asked { guaranteed_memory: 9, burstable_memory: 2, ..asked(300, 7, 3) });
    pods.note("b", None);
    pods.note("never", None);
    assert_eq!((pods.sum, pods.asked.len()), (asked(50, 0, 3), 1));
}

fn owned(mount: PathBuf, memory_reserved: Option<MemoryReserved>) -> Owned {
    let node = NodeResources {
        memory_bytes: 1 << 30,
        enforce_quota: true,
        period_micros: 100_000,
        hugepage_sizes: Vec::new(),
        limited_swap: false,
        swap_controller: false,
        single_process_oom_kill: None,
        cgroup_v2: true,
        swap_bytes: 0,
        memory_qos: None,
    };
    let settings = Settings {
        mount: mount.clone(),
        driver: Driver::Cgroupfs,
        root: String::new(),
        node,
        pod_pids_limit: -1,
        memory_reserved,
    };
    let (tree, parent) = (Tree::new(mount), CgroupName::kubepods(""));
    Owned::new(settings, tree, parent)
}

/// Memory of the upper tiers was reserved in the configuration alone.
#[tokio::test(start_paused = true)]
async fn lower_tiers_get_what_is_not_reserved_and_never_less_than_they_use() {
    let mount = std::env::temp_dir().join(format!("reserved-{}", crate::backoff::random_below(u32::MAX)));
    let (burstable, best_effort) = (mount.join("kubepods/burstable"), mount.join("kubepods/besteffort"));
    for (tier, used) in [(&burstable, "10"), (&best_effort, "750")] {
        std::fs::create_dir_all(tier).expect("a folder");
        std::fs::write(tier.join("memory.current"), used).expect("writes");
    }
    let owned = owned(mount.clone(), Some(MemoryReserved { percent: 50, allocatable_bytes: 1000 }));
    let limits = || [&burstable, &best_effort].map(|t| std::fs::read_to_string(t.join("memory.max")).expect("set"));
    owned.weigh().await.expect("written");
    assert_eq!(limits(), ["1000", "1000"]);
    owned.pods().note("a", Some(Asked { guaranteed_memory: 400, burstable_memory: 200, ..Asked::default() }));
    owned.weigh().await.expect("written");
    assert_eq!(limits(), ["800", "750"], "what is used stays");
    std::fs::write(best_effort.join("memory.current"), "50").expect("writes");
    owned.weigh().await.expect("nothing is written");
    assert_eq!(limits(), ["800", "750"], "not at every look at every pod");
    tokio::time::advance(IN_USE).await;
    owned.weigh().await.expect("written");
    assert_eq!(limits(), ["800", "700"], "it is tried again");
    std::fs::write(burstable.join("memory.max"), "untouched").expect("writes");
    tokio::time::advance(IN_USE).await;
    owned.weigh().await.expect("nothing is written");
    assert_eq!(limits(), ["untouched", "700"], "nothing is in use");
    std::fs::remove_dir_all(mount).expect("removes");
}

/// Each start of the agent took the weight of what ran from it, until all pods had been looked at.
#[tokio::test]
async fn a_tier_that_is_there_keeps_its_weight_until_its_pods_are_known() {
    let mount = std::env::temp_dir().join(format!("kept-weight-{}", crate::backoff::random_below(u32::MAX)));
    let (parent, tier) = (mount.join("kubepods"), mount.join("kubepods/burstable"));
    std::fs::create_dir_all(&parent).expect("a folder");
    for file in [mount.join("cgroup.controllers"), mount.join("cgroup.subtree_control")] {
        std::fs::write(file, "").expect("writes");
    }
    std::fs::write(parent.join("cgroup.subtree_control"), "").expect("writes");
    let weight = || std::fs::read_to_string(tier.join("cpu.weight")).expect("weighed");
    let started = async || {
        let owned = owned(mount.clone(), None);
        owned.make_tier(QosClass::Burstable).await.expect("made");
        owned.weigh().await.expect("written");
        owned
    };
    started().await;
    assert_eq!(weight(), "1", "a fresh one");
    std::fs::write(tier.join("cpu.weight"), "500").expect("writes");
    let owned = started().await;
    assert_eq!(weight(), "500");
    owned.pods().note("a", Some(Asked { milli_cpu: 1000, ..Asked::default() }));
    owned.weigh().await.expect("written");
    assert_eq!(weight(), cpu_weight(1024).to_string());
    std::fs::remove_dir_all(mount).expect("removes");
}

/// The tier kept what the pod asked for before, until it was looked at again.
#[tokio::test]
async fn a_tier_follows_the_resize_of_its_pod() {
    use proto::api::core::v1::{Container, PodSpec, ResourceRequirements};
    use proto::apimachinery::pkg::api::resource::Quantity;
    use proto::apimachinery::pkg::apis::meta::v1::ObjectMeta;
    let mount = std::env::temp_dir().join(format!("resized-{}", crate::backoff::random_below(u32::MAX)));
    let tier = mount.join("kubepods/burstable");
    std::fs::create_dir_all(tier.join("podu")).expect("a folder");
    let cgroups = Cgroups { owned: Some(owned(mount.clone(), None)), root: String::new() };
    let pod = |cpu: &str| {
        let requests = [("cpu".to_owned(), Quantity { string: cpu.into() })].into();
        let resources = Some(ResourceRequirements { requests, ..Default::default() });
        let containers = vec![Container { resources, ..Default::default() }];
        let meta = ObjectMeta { uid: "u".into(), ..Default::default() };
        let spec = PodSpec { containers, ..Default::default() };
        Pod { metadata: Some(meta), spec: Some(spec), ..Default::default() }
    };
    let weight = async |cpu: &str| {
        cgroups.set(&pod(cpu), &Limits::default()).await.expect("written");
        std::fs::read_to_string(tier.join("cpu.weight")).expect("weighed")
    };
    let weights = [weight("1").await, weight("2").await];
    assert_eq!(weights, [1024, 2048].map(|shares| cpu_weight(shares).to_string()));
    std::fs::remove_dir_all(mount).expect("removes");
}

#[tokio::test]
async fn what_could_not_be_written_is_not_taken_for_written() {
    // No folder, so that every write fails.
    let owned = owned(PathBuf::from("/dev/null"), None);
    assert!(owned.weigh().await.is_ok(), "there is nothing to write");
    let kept = Kept { min: 1, low: 2 };
    owned.pods().note("a", Some(Asked { milli_cpu: 1000, kept, ..Asked::default() }));
    for _ in 0..2 {
        assert!(owned.weigh().await.is_err());
    }
    owned.pods().given = Some(Kept { min: 1, low: 2 });
    for _ in 0..2 {
        assert!(owned.weigh().await.is_err());
    }
}

/// With the gate on there were no such figures.
#[tokio::test]
async fn memory_that_is_kept_for_pods_is_told_while_the_gate_is_on() {
    use crate::pod::memory_qos::MemoryQos;
    let shown = || {
        [&metrics::MEMORY_MIN, &metrics::MEMORY_LOW].map(|family| {
            let found: Vec<_> = family.is_used().then(|| family.snapshot()).flatten().into_iter().collect();
            let page = String::from_utf8(metrics::page::page(&found, "").0).expect("text");
            page.split_whitespace().last().unwrap_or("nothing").to_owned()
        })
    };
    let mount = std::env::temp_dir().join(format!("kept-{}", crate::backoff::random_below(u32::MAX)));
    std::fs::create_dir_all(mount.join("kubepods/burstable")).expect("a folder");
    let mut owned = owned(mount.clone(), None);
    owned.weigh().await.expect("there is nothing to write");
    assert_eq!(shown(), ["nothing"; 2]);
    let qos = MemoryQos { factor: 0.9, tiered: true, allocatable_bytes: 1 << 30, page_bytes: 4096 };
    owned.settings.node.memory_qos = Some(qos);
    owned.weigh().await.expect("there is nothing to write");
    assert_eq!(shown(), ["0"; 2]);
    for (uid, min, low) in [("a", 5, 0), ("b", 0, 7), ("c", 1, 0)] {
        owned.pods().note(uid, Some(Asked { kept: Kept { min, low }, ..Asked::default() }));
    }
    owned.weigh().await.expect("written");
    assert_eq!(shown(), ["6", "7"]);
    std::fs::remove_dir_all(mount).expect("removes");
}

#[test]
fn the_kernel_allows_as_many_processes_as_its_least_limit() {
    assert!(process_limit(Path::new("/proc")).is_some_and(|limit| limit > 300));
    assert_eq!(process_limit(Path::new("/nowhere")), None);
}
