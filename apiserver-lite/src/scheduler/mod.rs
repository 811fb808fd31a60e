//! The scheduler: gives every pod that names no node one that can take it.
//!
//! One task owns the picture of the cluster ([`cluster`]) and the queue of pods ([`queue`]); both are kept up from the
//! store's events, so an arriving pod costs one look at each node and nothing else. Bindings are written by tasks of their
//! own; until a binding is seen in the store its pod is assumed to be on its node. Follows kube-scheduler's default
//! profile: its filters in its order, its scores and weights, its words.
//!
//! Limits: no extenders, one profile (`default-scheduler`); no pod goes to make devices free ([`devices`] has the others
//! of dynamic resource allocation).

mod alike;
mod claims;
mod cluster;
mod conditions;
mod counters;
mod devices;
mod filter;
mod node;
mod pod;
mod preempt;
mod queue;
mod resources;
mod score;
mod search;
mod shares;
mod spreading;
mod topology;
mod volumes;

use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt as _;
use serde_json::{Value, json};
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;

use self::alike::Counts;
use self::claims::{Claims, Reservation, UnderWay};
use self::cluster::Cluster;
pub use self::devices::{Features, bears_taint};
use self::filter::Refusal;
use self::node::NodeInfo;
use self::pod::PodInfo;
pub use self::pod::{Taint, Toleration, fits_node, tolerations};
use self::preempt::{Needs, Preemption};
use self::queue::SchedulingQueue;
pub(crate) use self::resources::requested;
use self::score::Views;
use self::spreading::Likeness;
use self::topology::Topology;
use self::volumes::{Volumes, VolumesUnderWay};
use crate::client::Client;
use crate::components::Pulse;
use crate::controllers::events::{Recorder, Report, Reporter};
use crate::controllers::feed::{Change, Feed};
use crate::controllers::pods::{PodDigest, evict, is_terminal};
use crate::controllers::volumes::{self as claimed, Choice};
use crate::selectors::LabelSelector;
use crate::status::ApiError;
use crate::store::{ObjectRef, ResourceId};

/// The only profile, and what pods name that want it.
const NAME: &str = "default-scheduler";
/// Outcomes of bindings that may wait for the scheduler.
const OUTCOMES: usize = 1024;

/// Runs until the runtime ends; begins again after a panic or lost events.
pub async fn run(client: Client, recorder: Recorder, features: Features, pulse: Arc<Pulse>) {
    loop {
        let (binding, mut all_bound) = mpsc::channel(1);
        let scheduler = Scheduler::new(client.clone(), recorder.clone(), features, binding);
        let ended = tokio::spawn(scheduler.follow(pulse.clone())).await;
        // Bindings under way take room, volumes and devices that only this scheduler knew of: the next one must see them
        // written. Those that wait for others end with it, and their pods are looked at again.
        while all_bound.recv().await.is_some() {}
        if let Err(error) = ended {
            if error.is_cancelled() {
                return;
            }
            tracing::error!(%error, "the scheduler failed and begins again; this is a bug");
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
    }
}

/// How a binding went.
struct Outcome {
    pod: Arc<PodInfo>,
    result: Result<(), ApiError>,
}

struct Scheduler {
    client: Client,
    recorder: Recorder,
    features: Features,
    cluster: Cluster,
    queue: SchedulingQueue,
    /// Pods that others were removed for, and the node they wait for.
    nominated: HashMap<Box<str>, Box<str>>,
    /// What makes pods alike that are spread without saying so.
    likeness: Likeness,
    /// Devices and volumes that bindings under way take.
    devices: UnderWay,
    volumes: VolumesUnderWay,
    /// Tells a binding under way that its pod goes, by the pod's uid; that the scheduler ends, by its end.
    call_off: HashMap<Box<str>, oneshot::Sender<()>>,
    outcomes: mpsc::Sender<Outcome>,
    outcomes_in: mpsc::Receiver<Outcome>,
    /// Held by each binding until it is written.
    binding: mpsc::Sender<()>,
}

/// The feed's resources.
const PODS: usize = 0;
const NODES: usize = 1;
const SERVICES: usize = 12;

/// What a binding waits for, or an error once its pod goes; None when the scheduler ends. It begins again then, and the
/// pod's claims keep what they have until it looks at it.
async fn unless_called_off(
    work: impl Future<Output = Result<(), ApiError>>,
    called_off: &mut oneshot::Receiver<()>,
) -> Option<Result<(), ApiError>> {
    tokio::select! {
        result = work => Some(result),
        told = called_off => match told {
            Ok(()) => Some(Err(ApiError::new(500, "", "the pod no longer waits for its node"))),
            Err(_) => None,
        },
    }
}

/// Writes where a pod is expected, or that it is expected nowhere any more. It goes on without when that cannot be
/// written.
async fn nominate(client: &Client, pod: &ObjectRef, node: Option<&str>) {
    let (namespace, name) = (&pod.key.namespace, &pod.key.name);
    let written = client.update_status("pods", namespace, name, |value| {
        if value["metadata"]["uid"] != *pod.keys.uid || value["spec"]["nodeName"].is_string() {
            return Err(crate::client::unchanged());
        }
        match node {
            Some(node) => value["status"]["nominatedNodeName"] = node.into(),
            None => drop(value["status"].as_object_mut().and_then(|s| s.remove("nominatedNodeName"))),
        }
        Ok(())
    });
    if let Err(error) = written.await
        && !error.is_not_found()
        && error.code() != 304
    {
        tracing::warn!(pod = %name, %error, "the node that a pod is expected on is not written");
    }
}

impl Scheduler {
    fn new(client: Client, recorder: Recorder, features: Features, binding: mpsc::Sender<()>) -> Self {
        let (outcomes, outcomes_in) = mpsc::channel(OUTCOMES);
        Scheduler {
            client,
            recorder,
            features,
            cluster: Cluster::default(),
            queue: SchedulingQueue::default(),
            nominated: HashMap::new(),
            likeness: Likeness::default(),
            devices: UnderWay::default(),
            volumes: VolumesUnderWay::default(),
            call_off: HashMap::new(),
            outcomes,
            outcomes_in,
            binding,
        }
    }

    /// Works until events are lost.
    async fn follow(mut self, pulse: Arc<Pulse>) {
        let resources: [ResourceId; 13] = [
            "pods".into(),
            "nodes".into(),
            "persistentvolumeclaims".into(),
            "persistentvolumes".into(),
            "storageclasses.storage.k8s.io".into(),
            "namespaces".into(),
            "csinodes.storage.k8s.io".into(),
            "resourceclaims.resource.k8s.io".into(),
            "resourceslices.resource.k8s.io".into(),
            "deviceclasses.resource.k8s.io".into(),
            "csidrivers.storage.k8s.io".into(),
            "csistoragecapacities.storage.k8s.io".into(),
            "services".into(),
        ];
        let store = self.client.store().clone();
        let mut feed = Feed::open(&store, &resources);
        loop {
            loop {
                while let Ok(outcome) = self.outcomes_in.try_recv() {
                    self.finish(outcome);
                }
                if feed.drain(|change| self.observe(change)).is_err() {
                    tracing::info!("the scheduler fell behind the store's history and looks at everything again");
                    return;
                }
                let Some(pod) = self.queue.pop(Instant::now()) else { break };
                self.schedule(&pod);
                let _ = pulse.answer().now_or_never();
                tokio::task::yield_now().await;
            }
            let due = self.queue.next_due();
            let timer = async {
                match due {
                    Some(due) => tokio::time::sleep_until(due).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = feed.changed() => {}
                Some(outcome) = self.outcomes_in.recv() => self.finish(outcome),
                () = timer => {}
                () = pulse.answer() => {}
            }
        }
    }

    fn observe(&mut self, change: Change<'_>) {
        match change.resource {
            PODS => self.observe_pod(change),
            NODES if change.deleted() => {
                self.cluster.remove_node(&change.object.key.name);
                // Spreading may be easier with one place less.
                self.queue.awaken_all(|pod| !pod.spread.is_empty());
            }
            NODES => {
                if self.cluster.set_node(change.object) {
                    self.queue.awaken_all(|_| true);
                }
            }
            // Only where a pod had better go, not whether it can.
            SERVICES => {
                let object = change.object;
                let selector = || LabelSelector::from_map(&object.without_owners()["spec"]["selector"]);
                self.likeness.set_service(&object.key, (!change.deleted()).then(selector));
            }
            // A namespace's labels matter to terms that select namespaces, volumes to pods with claims.
            5 => self.queue.awaken_all(|pod| !pod.affinity.is_empty() || !pod.anti_affinity.is_empty()),
            7..=9 => self.queue.awaken_all(|pod| pod.wants_devices),
            _ => self.queue.awaken_all(|pod| !pod.claims.is_empty()),
        }
    }

    fn observe_pod(&mut self, change: Change<'_>) {
        let object = change.object;
        let (uid, node) = (&object.keys.uid, object.field("spec.nodeName"));
        let ends = change.deleted() || is_terminal(object);
        if (ends || object.keys.deleting || !node.is_empty())
            && let Some(binding) = self.call_off.remove(uid)
        {
            // It may have come to its end already.
            let _ = binding.send(());
        }
        if ends {
            self.queue.remove(uid);
            let waited = self.nominated.remove(uid).is_some();
            if self.cluster.remove_pod(uid) || waited {
                self.queue.awaken_all(|_| true);
            }
            return;
        }
        if !node.is_empty() {
            self.queue.remove(uid);
            self.nominated.remove(uid);
            let digest = PodDigest::of(object);
            let before = self.cluster.pod(uid).cloned();
            let known = before.as_ref().is_some_and(|known| {
                known.generation == digest.generation
                    && known.object.keys.labels == object.keys.labels
                    && known.object.keys.deleting == object.keys.deleting
                    && known.start_time == digest.started
                    && !digest.resized
                    && self.cluster.node(node).is_some_and(|n| n.pods.contains_key(uid))
            });
            if !known {
                let now = Arc::new(PodInfo::read(object));
                self.cluster.place(now.clone(), node);
                match before {
                    Some(before) if now.requests.lacks(&before.requests) => self.queue.awaken_all(|_| true),
                    before => self.awaken_by(before.as_deref(), &now),
                }
            }
            return;
        }
        if object.field("spec.schedulerName") != NAME {
            return;
        }
        if object.keys.deleting {
            self.queue.remove(uid);
            self.nominated.remove(uid);
            return;
        }
        if self.cluster.pod(uid).is_some() {
            // Its binding is under way.
            return;
        }
        // A scheduler that begins again goes on to expect a pod where others have made room for it.
        let expected = object.field("status.nominatedNodeName");
        if change.previous.is_none() && !expected.is_empty() {
            self.nominated.insert(uid.clone(), expected.into());
        }
        let pod = PodInfo::read(object);
        if pod.gated {
            self.queue.remove(uid);
        } else {
            self.queue.set(Arc::new(pod));
        }
    }

    /// A pod came to a node or changed there. Those that wait for anything else than for pods like it sleep on: of many
    /// alike that come one after the other, each would awaken all that wait.
    fn awaken_by(&mut self, before: Option<&PodInfo>, now: &PodInfo) {
        let (store, before, now) = (self.client.store(), before.map(|before| &before.object), &now.object);
        let is_same = |b: &ObjectRef| b.keys.labels == now.keys.labels && b.keys.deleting == now.keys.deleting;
        if before.is_some_and(is_same) {
            return;
        }
        self.queue.awaken_all(|waiting| topology::may_help(store, waiting, before, now));
    }

    /// Tries to find a node for a pod.
    fn schedule(&mut self, pod: &Arc<PodInfo>) {
        let uid = &pod.object.keys.uid;
        let total = self.cluster.nodes().count();
        if total == 0 {
            return self.give_up(pod, "no nodes available to schedule pods".into(), None);
        }
        let alike = self.alike(pod, total);
        let store = self.client.store();
        let nowhere = |reason: &str| {
            let not_helpful = unavailable(total, (0..total).map(|_| NOT_HELPFUL.into()));
            format!("{} {NO_CLAIMS}preemption: {not_helpful}", unavailable_for(total, reason))
        };
        let mut volumes = match Volumes::read(store, &self.cluster, pod) {
            Ok(volumes) => volumes,
            Err(reason) => return self.give_up(pod, nowhere(&reason), None),
        };
        volumes.heed(&self.volumes);
        let claims = match Claims::read(store, pod, &self.devices, self.features) {
            Ok(claims) => claims,
            Err(reason) => return self.give_up(pod, nowhere(&reason), None),
        };
        let topology = Topology::count(store, &self.cluster, pod, &[]);
        let (mut fitting, mut refused, mut found) = (Vec::new(), Vec::new(), HashMap::new());
        for node in self.cluster.nodes() {
            let refusal = self.check(pod, node, &topology, &volumes);
            let without_devices = |reason: String| Refusal { reasons: vec![reason.into()], resolvable: false };
            let refusal = refusal.or_else(|| match claims.find(node) {
                Ok(devices) => {
                    // A pod without claims finds nothing everywhere.
                    if !devices.is_empty() {
                        found.insert(node.name(), devices);
                    }
                    None
                }
                Err(reason) => Some(without_devices(reason)),
            });
            match refusal {
                None => fitting.push(node),
                Some(refusal) => refused.push((Box::<str>::from(node.name()), refusal)),
            }
        }
        // A pod that others made room for goes there if it can.
        let promised = self.nominated.get(uid).and_then(|name| fitting.iter().find(|n| *n.name() == **name));
        let chosen = match promised {
            Some(node) => Some(node.name().to_owned()),
            None => best(pod, &fitting, &topology, |fitting| Views {
                crowded: alike.as_ref().map(|alike| spreading::crowding(pod, &self.cluster, fitting, alike)),
                devices: claims.preferences(fitting, &found),
            }),
        };
        // What is kept of it changes with the pod's place.
        drop(alike);
        if let Some(node) = chosen {
            let devices = found.remove(&*node).unwrap_or_default();
            let at = self.cluster.node(&node);
            let reservation = at.map(|at| claims.reserve(pod, at, &devices, &mut self.devices)).unwrap_or_default();
            let choices = at.map(|at| volumes.choose(at)).unwrap_or_default();
            return self.assume(pod, &node, choices, reservation);
        }
        let nominated = self.nominated.get(uid).cloned();
        let summary = unavailable(total, refused.iter().flat_map(|(_, r)| r.reasons.iter().cloned()));
        let promised = |node: &NodeInfo| self.promised(pod, node);
        let needs = Needs { pod, volumes: &volumes, claims: &claims };
        match preempt::preempt(store, &self.cluster, &needs, &refused, nominated.as_deref(), &promised) {
            Preemption::Victims { node, pods } => {
                self.nominated.insert(uid.clone(), node.clone());
                self.remove_victims(pod, &node, &pods);
                self.give_up(pod, summary, Some(&node));
            }
            Preemption::None(why) => {
                let nodes = refused.iter().filter_map(|(name, _)| self.cluster.node(name));
                let claim = claims.in_the_way(pod, nodes).cloned();
                let done = if claim.is_some() { "deallocation of ResourceClaim completed, " } else { NO_CLAIMS };
                let message = format!("{summary} {done}preemption: {why}");
                // The room that it was promised is others', unless it is about to come.
                let kept = nominated.as_deref().filter(|_| why.starts_with("not eligible"));
                self.give_up(pod, message, kept);
                if let Some(claim) = claim {
                    let (client, pod) = (self.client.clone(), pod.object.clone());
                    // The claim's change brings the pod back.
                    tokio::spawn(async move { claims::give_back(&client, &claim, &pod, |_| true).await });
                }
            }
        }
    }

    /// How many pods like this one each node has; None where it says itself how it is to be spread, or there is no choice.
    fn alike(&mut self, pod: &PodInfo, nodes: usize) -> Option<Counts> {
        if nodes < 2 || !pod.spread.is_empty() {
            return None;
        }
        let selector = self.likeness.of(self.client.store(), pod)?;
        Some(self.cluster.alike(&pod.object.key.namespace, &selector))
    }

    /// Pods of no less priority that a node is promised to and that are not there yet.
    fn promised(&self, pod: &PodInfo, node: &NodeInfo) -> Vec<Arc<PodInfo>> {
        let here = self.nominated.iter().filter(|(uid, name)| {
            ***name == *node.name() && **uid != pod.object.keys.uid && !node.pods.contains_key(*uid)
        });
        let waiting = here.filter_map(|(uid, _)| self.queue.get(uid));
        waiting.filter(|p| p.priority >= pod.priority).cloned().collect()
    }

    /// Nobody expects the pod anywhere any more: what was kept free for it is for others.
    fn expect_nowhere(&mut self, pod: &Arc<PodInfo>) {
        if self.nominated.remove(&pod.object.keys.uid).is_none() {
            return;
        }
        let (client, object) = (self.client.clone(), pod.object.clone());
        tokio::spawn(async move { nominate(&client, &object, None).await });
        self.queue.awaken_all(|_| true);
    }

    /// Checks a node, first with the pods that it is promised to, then as it is.
    fn check(&self, pod: &PodInfo, node: &NodeInfo, topology: &Topology<'_>, volumes: &Volumes) -> Option<Refusal> {
        let promised = self.promised(pod, node);
        if !promised.is_empty() {
            let mut fuller = node.clone();
            promised.into_iter().for_each(|p| fuller.add(p));
            if let Some(refusal) = filter::check(pod, &fuller, topology, volumes) {
                return Some(refusal);
            }
        }
        filter::check(pod, node, topology, volumes)
    }

    /// Counts the pod as being on the node and has that written.
    fn assume(&mut self, pod: &Arc<PodInfo>, node: &str, choices: Vec<Choice>, mut reservation: Reservation) {
        self.cluster.place(pod.clone(), node);
        self.volumes.take(pod, node, &choices);
        let (call_off, mut called_off) = oneshot::channel();
        self.call_off.insert(pod.object.keys.uid.clone(), call_off);
        let binding = self.binding.clone();
        let (client, recorder, outcomes) = (self.client.clone(), self.recorder.clone(), self.outcomes.clone());
        let (pod, node) = (pod.clone(), node.to_owned());
        let nominates = self.features.nominates && !(choices.is_empty() && reservation.is_empty());
        tokio::spawn(async move {
            if nominates {
                // Others that place pods, or make nodes for them, see at once where it is going.
                nominate(&client, &pod.object, Some(&node)).await;
            }
            let namespace = &pod.object.key.namespace;
            let bound = match claimed::give(&client, namespace, &choices, &node).await {
                Ok(()) if !choices.is_empty() => {
                    let bound = claimed::wait(&client, namespace, &choices, &node);
                    let Some(bound) = unless_called_off(bound, &mut called_off).await else { return };
                    bound
                }
                given => given,
            };
            let reserved = match bound {
                Ok(()) => reservation.write(&client, &pod.object).await,
                Err(error) => Err(error),
            };
            let made_ready = match reserved {
                Ok(()) if reservation.waits(&client) => {
                    let message = format!("waiting for binding conditions for device on node {node}");
                    let pending = report(false, "BindingConditionsPending", "Scheduling", message);
                    recorder.report("Pod", "v1", &pod.object, pending);
                    let ready = reservation.wait(&client, &pod.object);
                    let Some(ready) = unless_called_off(ready, &mut called_off).await else { return };
                    ready
                }
                reserved => reserved,
            };
            let result = match made_ready {
                Ok(()) => client.bind(&pod.object, &node).await,
                Err(error) => Err(error),
            };
            if result.is_err() {
                reservation.release(&client, &pod.object).await;
                if nominates {
                    nominate(&client, &pod.object, None).await;
                }
            }
            if result.is_ok() {
                let key = &pod.object.key;
                let message = format!("Successfully assigned {}/{} to {node}", key.namespace, key.name);
                recorder.report("Pod", "v1", &pod.object, report(false, "Scheduled", "Binding", message));
            }
            drop(binding);
            // The scheduler began again: it has read everything anew.
            let _ = outcomes.send(Outcome { pod, result }).await;
        });
    }

    /// Takes note of how a binding went.
    fn finish(&mut self, outcome: Outcome) {
        let uid = &outcome.pod.object.keys.uid;
        self.devices.forget(uid);
        self.volumes.forget(uid);
        self.call_off.remove(uid);
        let Err(error) = outcome.result else {
            self.queue.remove(uid);
            self.awaken_by(None, &outcome.pod);
            return;
        };
        // What it would have had is free again.
        self.queue.awaken_all(|pod| pod.wants_devices || !pod.claims.is_empty());
        let now = self.client.get("pods", &outcome.pod.object.key.namespace, &outcome.pod.object.key.name);
        let Some(now) = now.filter(|o| o.keys.uid == *uid && o.field("spec.nodeName").is_empty()) else {
            // Deleted, or someone else was faster: the events tell.
            return;
        };
        self.cluster.remove_pod(uid);
        self.expect_nowhere(&outcome.pod);
        tracing::info!(pod = %outcome.pod.object.key.name, %error, "binding failed");
        if !now.keys.deleting {
            self.write_failure(&outcome.pod, "SchedulerError", error.to_string(), None);
            self.queue.back_off(uid);
        }
        self.queue.awaken_all(|_| true);
    }

    /// The pod fits nowhere: it waits for the cluster to change.
    fn give_up(&mut self, pod: &Arc<PodInfo>, message: String, nominated: Option<&str>) {
        if nominated.is_none() {
            // Before it is parked, so that it does not awaken itself.
            self.expect_nowhere(pod);
        }
        self.queue.park(&pod.object.keys.uid);
        self.write_failure(pod, "Unschedulable", message, nominated);
    }

    fn write_failure(&self, pod: &Arc<PodInfo>, reason: &'static str, message: String, nominated: Option<&str>) {
        let event = report(true, "FailedScheduling", "Scheduling", message.clone());
        self.recorder.report("Pod", "v1", &pod.object, event);
        let (client, object) = (self.client.clone(), pod.object.clone());
        let nominated = nominated.map(str::to_owned);
        tokio::spawn(async move {
            let (namespace, name) = (object.key.namespace.clone(), object.key.name.clone());
            let written = client.update_status("pods", &namespace, &name, |value| {
                if value["metadata"]["uid"] != *object.keys.uid || value["spec"]["nodeName"].is_string() {
                    return Err(crate::client::unchanged());
                }
                if let Some(node) = &nominated {
                    value["status"]["nominatedNodeName"] = node.as_str().into();
                }
                let generation = value["metadata"]["generation"].clone();
                set_condition(value, "PodScheduled", "False", reason, &message, generation);
                Ok(())
            });
            if let Err(error) = written.await
                && !error.is_not_found()
                && error.code() != 304
            {
                tracing::warn!(pod = %name, %error, "the reason why a pod is not scheduled is not written");
            }
        });
    }

    fn remove_victims(&self, pod: &Arc<PodInfo>, node: &str, victims: &[Arc<PodInfo>]) {
        for victim in victims {
            let message = format!("Preempted by pod {} on node {node}", pod.object.keys.uid);
            let preempted = report(false, "Preempted", "Preempting", message);
            self.recorder.report_related(&victim.object, &pod.object, preempted);
            let (client, victim) = (self.client.clone(), victim.object.clone());
            tokio::spawn(async move {
                let message = "default-scheduler: preempting to accommodate a higher priority pod";
                let evicted = evict(&client, &victim, preempt::PREEMPTION, message);
                if let Err(error) = evicted.await {
                    tracing::warn!(pod = %victim.key.name, %error, "a preempted pod is not deleted");
                }
            });
        }
    }
}

const NOT_HELPFUL: &str = "Preemption is not helpful for scheduling";
/// What dynamic resource allocation says when no claim is in a pod's way.
const NO_CLAIMS: &str = "no new claims to deallocate, ";

fn report(warning: bool, reason: &'static str, action: &'static str, message: String) -> Report {
    Report { reporter: Reporter::Scheduler, warning, reason, action, message }
}

/// One of the best nodes, by chance where several are equally good; `views` tells what else there is to know of them.
fn best(
    pod: &PodInfo,
    fitting: &[&NodeInfo],
    topology: &Topology<'_>,
    views: impl FnOnce(&[&NodeInfo]) -> Views,
) -> Option<String> {
    if fitting.len() <= 1 {
        return fitting.first().map(|n| n.name().to_owned());
    }
    let scores = score::scores(pod, fitting, topology, views(fitting));
    let highest = scores.iter().max()?;
    let best: Vec<&&NodeInfo> = fitting.iter().zip(&scores).filter(|(_, s)| *s == highest).map(|(n, _)| n).collect();
    let at = (crate::random::fraction() * best.len() as f64) as usize;
    best.get(at).or(best.first()).map(|n| n.name().to_owned())
}

/// `0/3 nodes are available: 1 Insufficient cpu, 2 node(s) were unschedulable.`
fn unavailable(total: usize, reasons: impl Iterator<Item = Cow<'static, str>>) -> String {
    let mut counts: BTreeMap<Cow<'static, str>, usize> = BTreeMap::new();
    reasons.for_each(|reason| *counts.entry(reason).or_default() += 1);
    let mut texts: Vec<String> = counts.iter().map(|(reason, count)| format!("{count} {reason}")).collect();
    texts.sort();
    unavailable_for(total, &texts.join(", "))
}

fn unavailable_for(total: usize, why: &str) -> String {
    format!("0/{total} nodes are available: {why}.")
}

/// Sets a condition of a pod; its time of transition changes with its status only.
pub fn set_condition(pod: &mut Value, kind: &str, status: &str, reason: &str, message: &str, generation: Value) {
    let now = proto::time::Timestamp::now().to_seconds_text();
    let mut condition = json!({"type": kind, "status": status, "reason": reason, "message": message,
        "lastProbeTime": null, "lastTransitionTime": now});
    if generation.is_i64() {
        condition["observedGeneration"] = generation;
    }
    if !pod["status"]["conditions"].is_array() {
        pod["status"]["conditions"] = json!([]);
    }
    let Some(list) = pod["status"]["conditions"].as_array_mut() else { return };
    match list.iter_mut().find(|c| c["type"] == kind) {
        Some(old) => {
            if old["status"] == status {
                condition["lastTransitionTime"] = old["lastTransitionTime"].clone();
                condition["lastProbeTime"] = old["lastProbeTime"].clone();
            }
            *old = condition;
        }
        None => list.push(condition),
    }
}

#[cfg(test)]
mod claim_tests;
#[cfg(test)]
mod device_tests;
#[cfg(test)]
mod tests;
