use super::*;
use proto::api::core::v1::{PodCondition, PodStatus};
use proto::apimachinery::pkg::api::resource::Quantity;

fn entries() -> Entries {
    let list = [("cpu", "1Ki"), ("memory", "1Ki")];
    let requests = list.map(|(k, v)| (k.to_owned(), Quantity { string: v.to_owned() })).into();
    let own = ResourceRequirements { requests, ..Default::default() };
    let allocation = Allocation { containers: [("container1".to_owned(), own)].into(), pod: None };
    [("pod1".to_owned(), allocation)].into()
}

/// The kubelet's own checksum of this very content.
#[test]
fn the_file_is_the_kubelets() {
    let text = encode(&entries(), &mut HashMap::new());
    let file: Value = serde_json::from_str(&text).unwrap();
    let data =
        r#"{"entries":{"pod1":{"ContainerResources":{"container1":{"requests":{"cpu":"1Ki","memory":"1Ki"}}}}}}"#;
    assert_eq!(file["data"], data);
    assert_eq!(file["checksum"], 1_178_570_812);
    assert_eq!(decode(&text).unwrap().keys().collect::<Vec<_>>(), ["pod1"]);
}

#[test]
fn a_changed_file_is_not_believed() {
    let text = encode(&entries(), &mut HashMap::new()).replace("1Ki", "2Ki");
    assert_eq!(decode(&text).unwrap_err(), "the checksum does not fit");
    assert!(decode("{").is_err());
}

#[test]
fn damaged_files_are_set_aside_one_by_one() {
    let dir = std::env::temp_dir().join(format!("allocations-damaged-{}", std::process::id()));
    std::fs::create_dir_all(&dir).unwrap();
    let whole = encode(&entries(), &mut HashMap::new());
    for text in [whole.replace("1Ki", "2Ki"), whole[..whole.len() / 2].to_owned(), String::new(), "[]".into()] {
        std::fs::write(dir.join(ALLOCATED), &text).unwrap();
        std::fs::write(dir.join(ACTUATED), &whole).unwrap();
        let mut told = Vec::new();
        let state = Allocations::open(&dir, |damaged| told.push(damaged.path.clone()));
        assert_eq!(told, [dir.join(ALLOCATED)]);
        assert!(state.allocated("pod1").is_none() && state.given("pod1", "container1").is_some());
        assert_eq!(std::fs::read_to_string(dir.join("allocated_pods_state.corrupt")).unwrap(), text);
    }
    std::fs::write(dir.join(ALLOCATED), [0xff, 0xfe]).unwrap();
    let mut told = 0;
    Allocations::open(&dir, |_| told += 1);
    assert_eq!(told, 1);
    std::fs::remove_dir_all(&dir).unwrap();
}

fn requests(cpu: &str) -> ResourceRequirements {
    let requests = [("cpu".to_owned(), Quantity { string: cpu.into() })].into();
    ResourceRequirements { requests, ..Default::default() }
}

fn allocation(cpu: &str) -> Allocation {
    Allocation { containers: [("c".to_owned(), requests(cpu))].into(), pod: None }
}

/// What is written for a pod that has not changed is kept; what it says has to be what it is.
#[test]
fn whatever_changes_the_file_says_what_is_so() {
    let dir = std::env::temp_dir().join(format!("allocations-written-{}", std::process::id()));
    std::fs::create_dir_all(&dir).unwrap();
    let state = Allocations::open(&dir, |d| panic!("{d}"));
    let changes: [fn(&Allocations); 7] = [
        |s| s.allocate("a", allocation("1")),
        |s| s.allocate("b", allocation("1")),
        |s| s.give("a", "c", requests("1")),
        |s| s.allocate("a", allocation("2")),
        |s| s.give_pod("a", Some(requests("3"))),
        |s| s.forget("b"),
        |s| s.keep_only(|uid| uid != "a"),
    ];
    for change in changes {
        change(&state);
        state.write();
        let inner = state.inner();
        for (name, table) in [(ALLOCATED, &inner.allocated), (ACTUATED, &inner.actuated)] {
            assert_eq!(read(&dir.join(name)).unwrap(), table.entries);
            assert!(table.texts.keys().all(|uid| table.entries.contains_key(uid)), "{name}");
        }
    }
    std::fs::remove_dir_all(&dir).unwrap();
}

#[test]
fn what_changes_nothing_is_not_written() {
    let dir = std::env::temp_dir().join(format!("allocations-same-{}", std::process::id()));
    std::fs::create_dir_all(&dir).unwrap();
    let state = Allocations::open(&dir, |d| panic!("{d}"));
    let same = |state: &Allocations| {
        state.allocate("a", allocation("1"));
        state.give("a", "c", requests("1"));
        state.give_pod("a", None);
        state.forget("b");
        state.keep_only(|uid| uid == "a");
    };
    same(&state);
    state.write();
    for name in [ALLOCATED, ACTUATED] {
        std::fs::remove_file(dir.join(name)).unwrap();
    }
    same(&state);
    state.write();
    assert_eq!(std::fs::read_dir(&dir).unwrap().count(), 0);
    std::fs::remove_dir_all(&dir).unwrap();
}

/// A failed write must not be the last.
#[test]
fn what_could_not_be_written_is_written_with_the_next_change() {
    let dir = std::env::temp_dir().join(format!("allocations-late-{}", std::process::id()));
    let state = Allocations::open(&dir, |d| panic!("{d}"));
    state.allocate("a", allocation("1"));
    state.write();
    std::fs::create_dir_all(&dir).unwrap();
    state.allocate("b", allocation("1"));
    state.write();
    assert_eq!(read(&dir.join(ALLOCATED)).unwrap().len(), 2);
    std::fs::remove_dir_all(&dir).unwrap();
}

#[tokio::test]
async fn pods_that_come_together_are_written_at_a_pace_and_a_resize_at_once() {
    let dir = std::env::temp_dir().join(format!("allocations-pace-{}", std::process::id()));
    std::fs::create_dir_all(&dir).unwrap();
    let state = Arc::new(Allocations::open(&dir, |d| panic!("{d}")));
    let writer = tokio::spawn(state.clone().keep_written());
    let written = || read(&dir.join(ALLOCATED)).unwrap();
    let until = async |wanted: &dyn Fn() -> bool| {
        let begun = Instant::now();
        while !wanted() {
            assert!(begun.elapsed() < Duration::from_secs(20), "it is never written");
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        begun.elapsed()
    };
    state.allocate("a", allocation("1"));
    until(&|| written().contains_key("a")).await;
    // Each write begins the pace anew, after which nothing comes before it has passed.
    let begun = Instant::now();
    state.allocate("b", allocation("1"));
    until(&|| written().contains_key("b")).await;
    let paced = begun.elapsed();
    assert!(paced > PACE / 2, "{paced:?}");
    let mut soonest = Duration::MAX;
    for cpu in ["2", "3", "4", "5", "6"] {
        state.allocate("b", allocation(cpu));
        soonest = soonest.min(until(&|| written()["b"] == allocation(cpu)).await);
    }
    assert!(soonest < PACE / 2, "each resize waited for the pace: {soonest:?}");
    // What comes last is written when the agent stops.
    state.allocate("c", allocation("1"));
    writer.abort();
    let _ = writer.await;
    assert!(written().contains_key("c"));
    std::fs::remove_dir_all(&dir).unwrap();
}

/// Killed between both files, or before the second.
#[test]
fn what_a_container_was_given_without_a_note_is_what_its_pod_was_allocated() {
    let dir = std::env::temp_dir().join(format!("allocations-lost-{}", std::process::id()));
    std::fs::create_dir_all(&dir).unwrap();
    let state = Allocations::open(&dir, |d| panic!("{d}"));
    state.allocate("a", allocation("1"));
    state.allocate("b", allocation("2"));
    state.give("b", "c", requests("1"));
    state.write();
    let given = |uid: &str| Allocations::open(&dir, |d| panic!("{d}")).given(uid, "c");
    assert_eq!((given("a"), given("b")), (Some(requests("1")), Some(requests("1"))));
    std::fs::remove_file(dir.join(ACTUATED)).unwrap();
    assert_eq!((given("a"), given("b")), (Some(requests("1")), Some(requests("2"))));
    std::fs::remove_dir_all(&dir).unwrap();
}

/// A resize of such a pod as a whole was told to be complete, and nothing had been done.
#[test]
fn what_a_pod_was_given_without_a_note_is_what_it_had_before_its_resize() {
    let dir = std::env::temp_dir().join(format!("allocations-whole-{}", std::process::id()));
    std::fs::create_dir_all(&dir).unwrap();
    let whole = |pod: Option<&str>| Allocation { pod: pod.map(requests), ..allocation("1") };
    let state = Allocations::open(&dir, |d| panic!("{d}"));
    state.allocate("noted", whole(Some("2")));
    state.give_pod("noted", Some(requests("1")));
    for (uid, before) in [("with", Some("2")), ("without", None)] {
        state.allocate(uid, whole(before));
    }
    state.write();
    let given = |state: &Allocations| ["noted", "with", "without"].map(|uid| state.given_pod(uid));
    let found = Allocations::open(&dir, |d| panic!("{d}"));
    assert_eq!(given(&found), [Some(requests("1")), Some(requests("2")), None], "the next agent's");
    for state in [&state, &found] {
        for uid in ["noted", "with", "without"] {
            state.resize(uid, whole(Some("3")));
        }
        let nothing = ResourceRequirements::default();
        assert_eq!(given(state), [Some(requests("1")), Some(requests("2")), Some(nothing)]);
    }
    found.resize("of its containers", allocation("2"));
    assert_eq!(found.given_pod("of its containers"), None);
    std::fs::remove_dir_all(&dir).unwrap();
}

#[test]
fn a_refusal_is_news_once_and_the_longest_wait_comes_first() {
    let dir = std::env::temp_dir().join(format!("allocations-{}", std::process::id()));
    let state = Allocations::open(&dir, |d| panic!("{d}"));
    let refusal = |reason, seconds| Pending {
        reason,
        message: "no room".into(),
        generation: 2,
        since: Time { seconds, nanos: 0 },
    };
    assert!(state.set_pending("b", refusal("Deferred", 2)));
    assert!(state.set_pending("a", refusal("Deferred", 1)));
    assert!(!state.set_pending("a", refusal("Deferred", 3)));
    assert!(state.set_pending("c", refusal("Infeasible", 0)));
    assert_eq!(state.deferred(), ["a", "b"]);
    assert!(state.fail("a", 2, "x", Time::default()) && !state.fail("a", 2, "x", Time::default()));
    state.forget("a");
    assert_eq!(state.deferred(), ["b"]);
    assert!(state.finish("a").is_none());
}

/// Every start of the agent told of each resize that waits anew, and since then.
#[test]
fn what_an_earlier_agent_told_is_no_news() {
    let dir = std::env::temp_dir().join(format!("recalled-{}", std::process::id()));
    let condition = |kind: &str, reason: &str, generation| PodCondition {
        r#type: kind.into(),
        status: "True".into(),
        reason: reason.into(),
        message: "no room".into(),
        observed_generation: generation,
        last_transition_time: Some(Time { seconds: 7, nanos: 0 }),
        ..Default::default()
    };
    let now = Time { seconds: 9, nanos: 1 };
    for (reason, generation, waits, news) in
        [("Deferred", 2, true, false), ("Deferred", 1, false, true), ("Infeasible", 2, false, false)]
    {
        let state = Allocations::open(&dir, |d| panic!("{d}"));
        let conditions = vec![condition(RESIZE_PENDING, reason, generation), condition(RESIZE_IN_PROGRESS, "Error", 2)];
        let status = PodStatus { conditions, ..Default::default() };
        let mut pod = Pod { status: Some(status), ..Default::default() };
        let meta = pod.metadata.get_or_insert_default();
        (meta.uid, meta.generation) = ("a".into(), 2);
        assert_eq!(state.recall(&pod), waits);
        let again = Pending { reason, message: "no room".into(), generation: 2, since: now };
        assert_eq!(state.set_pending("a", again), news);
        assert_eq!(state.pending("a").map(|p| p.since.seconds), Some(7));
        assert!(!state.fail("a", 2, "no room", now), "it was told of the error too");
    }
    assert!(!Allocations::open(&dir, |d| panic!("{d}")).recall(&Pod::default()));
}
