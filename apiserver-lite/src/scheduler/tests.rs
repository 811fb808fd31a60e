use serde_json::{Value, json};

use super::*;
use crate::store::{Encoded, EventKind, Expect, Key, ObjectRef, Store, Write};

pub fn object(plural: &str, value: Value) -> ObjectRef {
    let (_, key, encoded) = encoded("", plural, value);
    encoded.unsaved(key, "")
}

fn encoded(group: &str, plural: &str, mut value: Value) -> (ResourceId, Key, Encoded) {
    let resource = crate::resource::Resources::built_in().lookup(group, "v1", plural).expect("it is served");
    value["metadata"]["uid"] = value["metadata"]["name"].clone();
    let text = |key: &str| value["metadata"][key].as_str().unwrap_or_default().to_owned();
    let key = Key::new(&text("namespace"), &text("name"));
    let fields = crate::resource::fields::of(&resource, &value);
    (resource.storage.clone(), key, crate::store::encode(&resource, &mut value, fields, None))
}

/// Puts an object into a store.
pub async fn write(store: &Store, group: &str, plural: &str, value: Value) {
    let (resource, key, encoded) = encoded(group, plural, value);
    let write = Write { resource, key, expect: Expect::Absent, change: crate::store::Change::Put(encoded) };
    store.commit(write).await.expect("written");
}

pub fn node(name: &str, cpu: &str, zone: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": {"zone": zone}},
        "status": {"allocatable": {"cpu": cpu, "memory": "4Gi", "pods": "10"}}})
}

pub fn pod(name: &str, cpu: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": "n", "labels": {"app": "a"}},
        "spec": {"containers": [{"name": "c", "image": "i", "resources": {"requests": {"cpu": cpu}}}]}})
}

pub fn read(value: Value) -> Arc<PodInfo> {
    Arc::new(PodInfo::read(&object("pods", value)))
}

fn cluster(nodes: &[Value]) -> Cluster {
    let mut cluster = Cluster::default();
    for node in nodes {
        assert!(cluster.set_node(&object("nodes", node.clone())));
    }
    cluster
}

/// The nodes that would take a pod, and what the others say.
async fn ask(cluster: &Cluster, pod: &PodInfo) -> (Vec<String>, Vec<(String, bool)>) {
    let store = Store::open(None).expect("a store in memory opens");
    let topology = Topology::count(&store, cluster, pod, &[]);
    let (mut yes, mut no) = (Vec::new(), Vec::new());
    for node in cluster.nodes() {
        match filter::check(pod, node, &topology, &Volumes::default()) {
            None => yes.push(node.name().to_owned()),
            Some(refusal) => no.push((refusal.reasons.join(", "), refusal.resolvable)),
        }
    }
    (yes, no)
}

fn says(text: &str, resolvable: bool) -> Vec<(String, bool)> {
    vec![(text.to_owned(), resolvable)]
}

#[tokio::test]
async fn room_is_what_pods_leave_and_more_than_a_node_has_is_hopeless() {
    let mut cluster = cluster(&[node("a", "2", "z")]);
    cluster.place(read(pod("there", "1500m")), "a");
    assert_eq!(ask(&cluster, &read(pod("p", "500m"))).await.0, ["a"]);
    assert_eq!(ask(&cluster, &read(pod("p", "501m"))).await.1, says("Insufficient cpu", true));
    assert_eq!(ask(&cluster, &read(pod("p", "3"))).await.1, says("Insufficient cpu", false));
    cluster.remove_pod("there");
    assert_eq!(ask(&cluster, &read(pod("p", "2"))).await.0, ["a"]);
}

#[tokio::test]
async fn taints_selectors_and_cordons_keep_pods_off() {
    let mut tainted = node("a", "2", "z");
    tainted["spec"]["taints"] = json!([{"key": "k", "effect": "NoSchedule"}]);
    let mut bearing = pod("p", "1");
    let picture = cluster(&[tainted]);
    assert_eq!(ask(&picture, &read(bearing.clone())).await.1, says("node(s) had untolerated taint(s)", false));
    bearing["spec"]["tolerations"] = json!([{"key": "k", "operator": "Exists"}]);
    assert_eq!(ask(&picture, &read(bearing.clone())).await.0, ["a"]);
    bearing["spec"]["nodeSelector"] = json!({"zone": "other"});
    let elsewhere = "node(s) didn't match Pod's node affinity/selector";
    assert_eq!(ask(&picture, &read(bearing)).await.1, says(elsewhere, false));
    let mut cordoned = node("a", "2", "z");
    cordoned["spec"]["unschedulable"] = true.into();
    assert_eq!(ask(&cluster(&[cordoned]), &read(pod("p", "1"))).await.1, says("node(s) were unschedulable", false));
}

#[tokio::test]
async fn host_ports_are_taken_once() {
    let mut with_port = pod("p", "1");
    with_port["spec"]["containers"][0]["ports"] = json!([{"containerPort": 80, "hostPort": 80}]);
    let mut cluster = cluster(&[node("a", "4", "z"), node("b", "4", "z")]);
    let mut other = with_port.clone();
    other["metadata"]["name"] = "other".into();
    cluster.place(read(other), "a");
    let (yes, no) = ask(&cluster, &read(with_port)).await;
    assert_eq!(yes, ["b"]);
    assert_eq!(no, says("node(s) didn't have free ports for the requested pod ports", true));
}

#[tokio::test]
async fn pods_that_avoid_each_other_stay_apart_in_both_directions() {
    let mut shy = pod("shy", "1");
    shy["spec"]["affinity"]["podAntiAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"] =
        json!([{"labelSelector": {"matchLabels": {"app": "a"}}, "topologyKey": "zone"}]);
    let nodes = [node("a", "4", "x"), node("b", "4", "x"), node("c", "4", "y")];
    let mut picture = cluster(&nodes);
    picture.place(read(pod("there", "1")), "a");
    assert_eq!(ask(&picture, &read(shy.clone())).await.0, ["c"]);
    let mut picture = cluster(&nodes);
    picture.place(read(shy), "a");
    let (yes, no) = ask(&picture, &read(pod("p", "1"))).await;
    assert_eq!(yes, ["c"]);
    assert_eq!(no[0].0, "node(s) didn't satisfy existing pods anti-affinity rules");
}

#[tokio::test]
async fn the_first_of_a_group_that_wants_to_be_together_may_go_anywhere() {
    let mut social = pod("p", "1");
    social["spec"]["affinity"]["podAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"] =
        json!([{"labelSelector": {"matchLabels": {"app": "a"}}, "topologyKey": "zone"}]);
    let mut cluster = cluster(&[node("a", "4", "x"), node("b", "4", "y")]);
    assert_eq!(ask(&cluster, &read(social.clone())).await.0, ["a", "b"]);
    cluster.place(read(pod("there", "1")), "b");
    let (yes, no) = ask(&cluster, &read(social)).await;
    assert_eq!(yes, ["b"]);
    assert_eq!(no, says("node(s) didn't match pod affinity rules", false));
}

#[tokio::test]
async fn spreading_bounds_the_difference_between_places() {
    let mut even = pod("p", "1");
    even["spec"]["topologySpreadConstraints"] = json!([{"maxSkew": 1, "topologyKey": "zone",
        "whenUnsatisfiable": "DoNotSchedule", "labelSelector": {"matchLabels": {"app": "a"}}}]);
    let mut cluster = cluster(&[node("a", "4", "x"), node("b", "4", "y")]);
    cluster.place(read(pod("there", "1")), "a");
    let (yes, no) = ask(&cluster, &read(even)).await;
    assert_eq!(yes, ["b"]);
    assert_eq!(no, says("node(s) didn't match pod topology spread constraints", true));
}

#[tokio::test]
async fn the_emptier_node_is_better() {
    let mut cluster = cluster(&[node("a", "4", "x"), node("b", "4", "x")]);
    cluster.place(read(pod("there", "2")), "a");
    let pod = read(pod("p", "1"));
    let store = Store::open(None).expect("a store in memory opens");
    let topology = Topology::count(&store, &cluster, &pod, &[]);
    let nodes: Vec<&NodeInfo> = cluster.nodes().collect();
    assert_eq!(best(&pod, &nodes, &topology, |_| Views::default()).as_deref(), Some("b"));
}

/// Zones without a node for the pod made a constraint weigh more than others.
#[tokio::test]
async fn a_soft_constraint_weighs_by_the_places_that_the_pod_could_go_to() {
    let mut even = pod("p", "1");
    even["spec"]["topologySpreadConstraints"] = json!([{"maxSkew": 1, "topologyKey": "zone",
        "whenUnsatisfiable": "ScheduleAnyway", "labelSelector": {"matchLabels": {"app": "a"}}}]);
    let even = read(even);
    let mut cluster = cluster(&["u", "v", "w", "x", "y", "z"].map(|zone| node(zone, "4", zone)));
    for name in ["1", "2", "3"] {
        cluster.place(read(pod(name, "1")), "x");
    }
    let store = Store::open(None).expect("a store in memory opens");
    let topology = Topology::count(&store, &cluster, &even, &[]);
    let all: Vec<&NodeInfo> = cluster.nodes().collect();
    let two: Vec<&NodeInfo> = all[3..5].to_vec();
    assert_eq!(topology.crowding(&even, &two), [Some(4.0), Some(0.0)], "three pods, by the logarithm of two and two");
    assert_eq!(topology.crowding(&even, &all)[3], Some(6.0), "by that of six and two");
}

type Promised<'a> = &'a dyn Fn(&NodeInfo) -> Vec<Arc<PodInfo>>;

/// Room for a pod that claims nothing.
fn make_room(
    store: &Store,
    cluster: &Cluster,
    pod: &PodInfo,
    refused: &[(Box<str>, Refusal)],
    nominated: Option<&str>,
    promised: Promised<'_>,
) -> Preemption {
    let needs = Needs { pod, volumes: &Volumes::default(), claims: &Claims::default() };
    preempt::preempt(store, cluster, &needs, refused, nominated, promised)
}

#[tokio::test]
async fn the_least_important_pods_make_room_and_no_more_than_needed() {
    let mut cluster = cluster(&[node("a", "4", "x")]);
    for (name, priority) in [("low", 1), ("lower", 0), ("high", 100)] {
        let mut there = pod(name, "1300m");
        there["spec"]["priority"] = priority.into();
        cluster.place(read(there), "a");
    }
    let mut important = pod("p", "1");
    important["spec"]["priority"] = 50.into();
    let important = read(important);
    let store = Store::open(None).expect("a store in memory opens");
    let refused = [("a".into(), Refusal { reasons: vec!["Insufficient cpu".into()], resolvable: true })];
    match make_room(&store, &cluster, &important, &refused, None, &|_| Vec::new()) {
        Preemption::Victims { node, pods } => {
            assert_eq!(&*node, "a");
            let names: Vec<&str> = pods.iter().map(|p| &*p.object.key.name).collect();
            assert_eq!(names, ["lower"]);
        }
        Preemption::None(why) => panic!("there is room to be made: {why}"),
    }
}

/// All pods that came at once had room made on the first node, one after another.
#[tokio::test]
async fn no_room_is_made_for_two_where_there_is_enough_for_one() {
    let mut cluster = cluster(&[node("a", "4", "x"), node("b", "4", "x")]);
    for (name, node) in [("on-a", "a"), ("on-b", "b")] {
        cluster.place(read(pod(name, "4")), node);
    }
    let important = |name: &str| {
        let mut pod = pod(name, "3");
        pod["spec"]["priority"] = 50.into();
        read(pod)
    };
    let (first, second) = (important("first"), important("second"));
    let store = Store::open(None).expect("a store in memory opens");
    let refusal = || Refusal { reasons: vec!["Insufficient cpu".into()], resolvable: true };
    let refused = [("a".into(), refusal()), ("b".into(), refusal())];
    let chosen = |promised: Promised<'_>| match make_room(&store, &cluster, &second, &refused, None, promised) {
        Preemption::Victims { node, pods } => (node.to_string(), pods.len()),
        Preemption::None(why) => panic!("there is room to be made: {why}"),
    };
    assert_eq!(chosen(&|_| Vec::new()), ("a".to_owned(), 1));
    let to_first = |node: &NodeInfo| if node.name() == "a" { vec![first.clone()] } else { Vec::new() };
    assert_eq!(chosen(&to_first), ("b".to_owned(), 1));
}

/// A pod waited for ever for a node that was lost while others went from there, and for others than its victims.
#[tokio::test]
async fn a_pod_waits_only_for_those_that_go_for_it_from_a_node_that_takes_it() {
    const WAITS: &str = "not eligible due to a terminating pod on the nominated node.";
    let mut important = pod("p", "3");
    important["spec"]["priority"] = 50.into();
    let important = read(important);
    let preempted = "PreemptionByScheduler";
    let cases = [
        (preempted, true, true, None, "it is about to go"),
        (preempted, false, true, Some("b"), "the node takes nobody any more"),
        (preempted, true, false, Some("b"), "the node is gone"),
        ("DeletionByTaintManager", true, true, Some("a"), "it goes for another reason"),
        ("", true, true, Some("a"), "somebody deleted it"),
    ];
    for (reason, resolvable, there, expected, what) in cases {
        let store = Store::open(None).expect("a store in memory opens");
        let mut cluster = cluster(&[node("a", "4", "x"), node("b", "4", "x")]);
        let mut going = pod("on-a", "4");
        going["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into();
        cluster.place(read(going.clone()), "a");
        if !reason.is_empty() {
            // Told after its end was known.
            going["status"]["conditions"] = json!([{"type": "DisruptionTarget", "status": "True", "reason": reason}]);
        }
        write(&store, "", "pods", going).await;
        let mut other = pod("on-b", "4");
        other["spec"]["priority"] = 1.into();
        cluster.place(read(other), "b");
        let refusal = |resolvable| Refusal { reasons: vec!["Insufficient cpu".into()], resolvable };
        let mut refused = vec![("a".into(), refusal(resolvable)), ("b".into(), refusal(true))];
        if !there {
            cluster.remove_node("a");
            refused.remove(0);
        }
        match make_room(&store, &cluster, &important, &refused, Some("a"), &|_| Vec::new()) {
            Preemption::Victims { node, .. } => assert_eq!(Some(&*node), expected, "{what}"),
            Preemption::None(why) => assert_eq!((&*why, None), (WAITS, expected), "{what}"),
        }
    }
}

#[tokio::test(start_paused = true)]
async fn pods_are_tried_by_importance_and_not_again_before_their_backoff() {
    let mut queue = SchedulingQueue::default();
    let mut important = pod("important", "1");
    important["spec"]["priority"] = 10.into();
    queue.set(read(pod("first", "1")));
    queue.set(read(important));
    let start = Instant::now();
    let names = |pod: Option<Arc<PodInfo>>| pod.map(|p| p.object.key.name.to_string());
    assert_eq!(names(queue.pop(start)).as_deref(), Some("important"));
    assert_eq!(names(queue.pop(start)).as_deref(), Some("first"));
    assert_eq!(names(queue.pop(start)), None);
    queue.park("first");
    queue.awaken_all(|_| true);
    assert_eq!(names(queue.pop(start)), None, "its last attempt is too recent");
    assert_eq!(names(queue.pop(start + Duration::from_secs(1))).as_deref(), Some("first"));
}

/// A scheduler that nobody runs, with what its bindings hold.
pub async fn scheduler() -> (Scheduler, mpsc::Receiver<()>) {
    let server = crate::serve::testing::server().await;
    let client = Client::new(server, "system:kube-scheduler", "test");
    let (binding, all_bound) = mpsc::channel(1);
    let features = Features { shares: true, conditions: true, nominates: true };
    (Scheduler::new(client.clone(), Recorder::start(client), features, binding), all_bound)
}

/// Tells a scheduler of a pod.
fn tell(scheduler: &mut Scheduler, kind: EventKind, pod: &ObjectRef) {
    scheduler.observe(Change { resource: PODS, kind, object: pod, previous: None });
}

/// Pods that could go somewhere because of others waited for five minutes.
#[tokio::test]
async fn pods_that_wait_for_others_are_tried_again_when_those_come_or_change() {
    const REQUIRED: &str = "requiredDuringSchedulingIgnoredDuringExecution";
    let (mut scheduler, _) = scheduler().await;
    scheduler.cluster.set_node(&object("nodes", node("a", "4", "x")));
    let term = |app: &str| json!([{"labelSelector": {"matchLabels": {"app": app}}, "topologyKey": "zone"}]);
    let waiting = |name: &str, spec: &Value| {
        let mut pod = pod(name, "1");
        pod["spec"]["schedulerName"] = NAME.into();
        pod["metadata"]["labels"] = json!({"app": "waiting"});
        for (key, value) in spec.as_object().into_iter().flatten() {
            pod["spec"][key] = value.clone();
        }
        object("pods", pod)
    };
    let spread = |when: &str| {
        json!([{"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": when,
            "labelSelector": {"matchLabels": {"app": "a"}}}])
    };
    let all = [
        waiting("even", &json!({"topologySpreadConstraints": spread("DoNotSchedule")})),
        waiting("patient", &json!({"topologySpreadConstraints": spread("ScheduleAnyway")})),
        waiting("shy", &json!({"affinity": {"podAntiAffinity": {REQUIRED: term("a")}}})),
        waiting("social", &json!({"affinity": {"podAffinity": {REQUIRED: term("a")}}})),
        waiting("stranger", &json!({"affinity": {"podAffinity": {REQUIRED: term("b")}}})),
    ];
    // Who is tried again, now or once the wait since the last attempt is over; then all wait once more.
    let mut late = Instant::now();
    let mut tried = |scheduler: &mut Scheduler| {
        late += Duration::from_secs(11);
        let mut names = Vec::new();
        while let Some(pod) = scheduler.queue.pop(late) {
            names.push(pod.object.key.name.to_string());
            scheduler.queue.park(&pod.object.keys.uid);
        }
        names.sort();
        names
    };
    for pod in &all {
        tell(&mut scheduler, EventKind::Added, pod);
    }
    assert_eq!(tried(&mut scheduler).len(), all.len());
    let there = |app: &str, cpu: &str, generation: i64, deleting: bool| {
        let mut pod = pod("there", cpu);
        pod["spec"]["nodeName"] = "a".into();
        pod["metadata"]["labels"]["app"] = app.into();
        pod["metadata"]["generation"] = generation.into();
        if deleting {
            pod["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into();
        }
        object("pods", pod)
    };
    let mut started = there("a", "2", 1, false).value();
    started["status"]["startTime"] = "2026-01-01T00:00:00Z".into();
    let steps = [
        (there("a", "2", 1, false), vec!["even", "social"], "it comes"),
        (object("pods", started), vec![], "it starts"),
        (there("c", "2", 2, false), vec!["even", "shy"], "it is no longer avoided"),
        (there("a", "2", 3, false), vec!["even", "social"], "it is wanted again"),
        (there("a", "1", 4, false), vec!["even", "patient", "shy", "social", "stranger"], "it takes less"),
        (there("a", "1", 5, true), vec!["even"], "it goes"),
    ];
    for (pod, expected, what) in steps {
        tell(&mut scheduler, EventKind::Modified, &pod);
        assert_eq!(tried(&mut scheduler), expected, "{what}");
    }
    // One that was placed from here is known before it is bound.
    let own = read(pod("own", "1"));
    scheduler.cluster.place(own.clone(), "a");
    scheduler.finish(Outcome { pod: own, result: Ok(()) });
    assert_eq!(tried(&mut scheduler), ["even", "social"]);
}

/// After lost events nothing was scheduled until the last volume was made, or for ten minutes.
#[tokio::test]
async fn a_binding_that_waits_for_a_volume_ends_with_its_pod_and_with_the_scheduler() {
    const SOON: Duration = Duration::from_secs(30);
    for pod_goes in [true, false] {
        let (mut scheduler, mut all_bound) = scheduler().await;
        let client = scheduler.client.clone();
        client.create("nodes", "", node("a", "4", "x")).await.expect("a node");
        let spec = json!({"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}},
            "storageClassName": "slow"});
        let claim =
            json!({"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "c"}, "spec": spec});
        client.create("persistentvolumeclaims", "default", claim).await.expect("a claim");
        let mut waiting = pod("p", "1");
        waiting["metadata"]["namespace"] = "default".into();
        let waiting = client.create("pods", "default", waiting).await.expect("a pod");
        let choices = vec![Choice { claim: "c".into(), volume: None }];
        scheduler.assume(&Arc::new(PodInfo::read(&waiting)), "a", choices, Reservation::default());
        let is_asked_for = || {
            let claim = client.get("persistentvolumeclaims", "default", "c").expect("it is there").value();
            claim["metadata"]["annotations"]["volume.kubernetes.io/selected-node"] == "a"
        };
        while !is_asked_for() {
            tokio::task::yield_now().await;
        }
        if pod_goes {
            tell(&mut scheduler, EventKind::Deleted, &waiting);
            let outcome = tokio::time::timeout(SOON, scheduler.outcomes_in.recv()).await.expect("in time");
            assert!(outcome.expect("it ends").result.is_err());
        }
        drop(scheduler);
        assert_eq!(tokio::time::timeout(SOON, all_bound.recv()).await, Ok(None));
    }
}

/// A scheduler that had begun again took the room for others, or made more of it elsewhere.
#[tokio::test]
async fn a_scheduler_that_begins_again_knows_where_pods_are_expected() {
    let (mut scheduler, _) = scheduler().await;
    let pod = |expected: &str| {
        let mut pod = pod("p", "1");
        pod["spec"]["schedulerName"] = NAME.into();
        pod["status"]["nominatedNodeName"] = expected.into();
        object("pods", pod)
    };
    tell(&mut scheduler, EventKind::Added, &pod("a"));
    assert_eq!(scheduler.nominated.get("p").map(|node| &**node), Some("a"));
    // From then on it knows better.
    scheduler.observe(Change {
        resource: PODS,
        kind: EventKind::Modified,
        object: &pod("b"),
        previous: Some(&pod("a")),
    });
    assert_eq!(scheduler.nominated.get("p").map(|node| &**node), Some("a"));
}

/// Room that was kept for a pod stayed empty when the pod did not fit there any more.
#[tokio::test]
async fn a_pod_that_fits_nowhere_is_expected_nowhere() {
    let (mut scheduler, _) = scheduler().await;
    let client = scheduler.client.clone();
    let mut waiting = pod("p", "1");
    waiting["metadata"]["namespace"] = "default".into();
    client.create("pods", "default", waiting).await.expect("a pod");
    let expected = client.update_status("pods", "default", "p", |pod| {
        pod["status"]["nominatedNodeName"] = "a".into();
        Ok(())
    });
    let expected = expected.await.expect("written");
    tell(&mut scheduler, EventKind::Added, &expected);
    let mut other = pod("other", "1");
    other["spec"]["schedulerName"] = NAME.into();
    tell(&mut scheduler, EventKind::Added, &object("pods", other));
    let now = Instant::now();
    let mut given_up = None;
    while let Some(pod) = scheduler.queue.pop(now) {
        match &*pod.object.key.name {
            "p" => given_up = Some(pod),
            _ => scheduler.queue.park(&pod.object.keys.uid),
        }
    }
    let late = now + Duration::from_secs(11);
    assert_eq!(scheduler.nominated.values().map(|node| &**node).collect::<Vec<_>>(), ["a"]);
    assert!(scheduler.queue.pop(late).is_none(), "the other one waits");
    scheduler.give_up(&given_up.expect("it was tried"), "it fits nowhere".into(), None);
    assert!(scheduler.nominated.is_empty());
    // What was kept free is for the other one, and not tried again by the one that has just been.
    let tried = scheduler.queue.pop(late).expect("somebody is tried again");
    assert_eq!(&*tried.object.key.name, "other");
    assert!(scheduler.queue.pop(late).is_none());
    let told = async || {
        let told =
            || client.get("pods", "default", "p").expect("it is there").field("status.nominatedNodeName").is_empty();
        while !told() {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(30), told()).await.expect("it is told");
}

#[test]
fn reasons_are_counted_and_sorted() {
    let reasons = ["node(s) were unschedulable", "Insufficient cpu", "node(s) were unschedulable"];
    assert_eq!(
        unavailable(3, reasons.into_iter().map(Cow::Borrowed)),
        "0/3 nodes are available: 1 Insufficient cpu, 2 node(s) were unschedulable."
    );
}
