//! Keeping the node's status: what it is now, compared with what the API server has, and sent.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use proto::api::core::v1::{Node, NodeStatus};
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::images::{self, Images};
use super::own::Seen;
use super::slow::Slow;
use super::{Network, NodeDeps, addresses, own, patch, register, resources, status, storage_bytes, tree};
use crate::api::{ApiError, Client, PatchType};
use crate::backoff::{jitter, random_below};
use crate::metrics;

pub(super) const STATUS_TYPE: &str = "k8s.io.api.core.v1.NodeStatus";
/// Tries to send one status before the next tick.
const TRIES: u32 = 5;
/// What others write into the status is answered at most this often: writers that disagree must not race.
const ANSWER: Duration = Duration::from_secs(1);

/// See the module's documentation.
pub struct Keeper {
    deps: NodeDeps,
    heartbeat: Client,
    images: Images,
    /// What lists them; ends with the keeper.
    _beside: JoinSet<()>,
    storage: Slow<Option<u64>>,
    resolved: Slow<Vec<IpAddr>>,
    /// None where those that were given are not this node's; then what is known stays.
    addresses: Option<Vec<IpAddr>>,
    /// What is wrong with those that were given.
    refused: Option<String>,
    storage_bytes: Option<u64>,
    /// The status that the API server has, whoever wrote it last.
    known: Option<Value>,
    /// When this agent wrote or first read it.
    reported: Instant,
    /// When it is sent again though nothing changes.
    report_after: Duration,
    first_report: bool,
    /// Until the API server has heard that the node is ready.
    registered: Option<Instant>,
    /// Whether nobody was to schedule here when that was last looked at.
    unschedulable: bool,
}

impl Keeper {
    pub fn new(heartbeat: Client, deps: NodeDeps) -> Self {
        let (sender, images) = watch::channel(Arc::default());
        let mut beside = JoinSet::new();
        if !deps.standalone {
            let limit = deps.settings.config.node_status_max_images;
            beside.spawn(images::follow(deps.cri.clone(), deps.runtime.clone(), limit, sender));
        }
        Keeper {
            heartbeat,
            images,
            _beside: beside,
            storage: Slow::default(),
            resolved: Slow::default(),
            addresses: Some(deps.addresses.clone()).filter(|addresses| !addresses.is_empty()),
            refused: None,
            storage_bytes: None,
            known: None,
            reported: Instant::now(),
            report_after: deps.settings.config.node_status_report_frequency.get(),
            first_report: true,
            registered: None,
            unschedulable: false,
            deps,
        }
    }

    /// Registers the node where it is to, and keeps its status for ever.
    pub async fn keep(&mut self, mut seen: watch::Receiver<Seen>) {
        let mut runtime = self.deps.runtime.clone();
        let mut signals = self.deps.signals.subscribe();
        let mut devices = self.deps.devices.changes();
        let mut images = self.images.clone();
        if self.deps.settings.config.register_node && !self.deps.standalone {
            self.register().await;
        }
        let update = super::status_period(&self.deps.settings.config);
        loop {
            self.deps.status_beat.begin().await;
            self.look().await;
            if self.deps.standalone {
                self.note();
            } else if let Err(error) = self.report().await {
                tracing::warn!(%error, "cannot update the node's status");
            }
            self.deps.status_beat.end();
            let next_tick = Instant::now() + jitter(update, 0.04);
            let mut answer_from = Instant::now() + ANSWER;
            // When to look at what others wrote, if they did.
            let mut look: Option<Instant> = None;
            loop {
                tokio::select! {
                    () = tokio::time::sleep_until(look.map_or(next_tick, |at| at.min(next_tick))) => {
                        if look.take().is_some() {
                            self.take_over(*seen.borrow());
                        }
                        if Instant::now() >= next_tick || self.has_something_to_say() {
                            break;
                        }
                        answer_from = Instant::now() + ANSWER;
                    }
                    Ok(()) = runtime.changed() => break,
                    Ok(()) = signals.changed() => break,
                    Ok(()) = devices.changed() => break,
                    Ok(()) = images.changed() => break,
                    Ok(()) = seen.changed() => {
                        look.get_or_insert_with(|| answer_from.max(Instant::now()));
                    }
                }
            }
            if look.is_some() {
                self.take_over(*seen.borrow());
            }
        }
    }

    /// Looks at what of the machine may change while it runs; waits no longer than a moment for any of it.
    async fn look(&mut self) {
        let settings = &self.deps.settings;
        let root = settings.root_dir.clone();
        // A file system that does not say its size now has the one that it had.
        self.storage_bytes =
            self.storage.ask(move || storage_bytes(&root)).await.copied().flatten().or(self.storage_bytes);
        let resolved = if addresses::asks_names(&settings.given_addresses, &settings.name) {
            let name = settings.name.clone();
            let Some(resolved) = self.resolved.ask(move || addresses::resolve(&name)).await else { return };
            resolved.clone()
        } else {
            Vec::new()
        };
        let network = Network::with(resolved);
        let (kept, given) = (self.addresses.as_deref(), &settings.given_addresses);
        match addresses::follow(kept, given, &settings.name, &network, settings.is_local()) {
            Ok(found) => {
                let found = Some(found);
                if self.addresses != found {
                    tracing::info!(before = ?self.addresses, now = ?found, "the node's addresses have changed");
                    self.addresses = found;
                }
                self.refused = None;
            }
            Err(why) => {
                if self.refused.as_ref() != Some(&why) {
                    tracing::error!("the node's addresses are not updated: {why}");
                }
                self.refused = Some(why);
            }
        }
    }

    /// Goes on from what the watch said of this node.
    fn take_over(&mut self, said: Seen) {
        self.known = match said {
            Seen::Written => Some(status_of(&self.deps.node.borrow())),
            // The next report finds out whether it is really gone, and registers it again.
            Seen::Gone => None,
        };
        self.tell_schedulable();
    }

    /// Whether the API server does not have the status as it is.
    fn has_something_to_say(&self) -> bool {
        self.known.as_ref().is_none_or(|known| status::differ(known, &self.compute(known)))
    }

    /// Keeps the status for this node's own pods: what the runtime can do, and what plugins give.
    fn note(&mut self) {
        let status = self.compute(self.known.as_ref().unwrap_or(&Value::Null));
        self.deps.node.send_replace(Arc::new(register::new_node(&self.deps.settings, &status)));
        self.known = Some(status);
    }

    /// Gives the node a CSINode where it has none; until then it is not ready, as storage drivers could not register.
    async fn ensure_csi_node(&self) {
        if self.deps.signals.borrow().csi_node.is_none() {
            return;
        }
        let trouble = match register::ensure_csi_node(&self.heartbeat, &self.deps.settings.name).await {
            Ok(()) => None,
            // Nobody has answered.
            Err(error) if error.is_retriable() => return,
            Err(error) => Some(format!(
                "failed to initialize CSINode: error updating CSINode annotation: timed out waiting for the condition; \
                 caused by: {error}"
            )),
        };
        self.deps.signals.send_if_modified(|signals| {
            let changed = signals.csi_node != trouble;
            signals.csi_node = trouble;
            changed
        });
    }

    async fn register(&mut self) {
        self.look().await;
        // A node that was here before has its CSINode already, and is ready as soon as it is registered again.
        self.ensure_csi_node().await;
        let began = std::time::Instant::now();
        metrics::node_registers();
        let first = || {
            let status = self.compute(&Value::Null);
            self.tell(&Value::Null, &status);
            status
        };
        let remembers = self.deps.devices.remembers();
        let node = register::register(&self.deps.client, &self.deps.settings, remembers, first).await;
        metrics::NODE_STARTUP_REGISTRATION.set(&[], began.elapsed().as_secs_f64());
        self.registered = Some(Instant::now());
        super::note_reach(&self.deps.reach, None);
        self.accept(node);
        self.ensure_csi_node().await;
        self.reported = Instant::now();
    }

    /// Sends the status when it differs from what the API server has, or has not been sent for long.
    async fn report(&mut self) -> Result<(), ApiError> {
        if self.known.is_none() {
            match self.heartbeat.get_at::<Node>("", &self.deps.settings.name, "0").await {
                Ok(node) => self.accept(node),
                Err(error) if error.is_not_found() && self.deps.settings.config.register_node => self.again().await,
                Err(error) => return Err(error),
            }
        }
        self.ensure_csi_node().await;
        for attempt in 1.. {
            self.tell_schedulable();
            let Some(old) = &self.known else { return Ok(()) };
            // Before the status is computed, which may have a later one already.
            let volumes = self.deps.signals.borrow().volumes_in_use.change;
            let new = self.compute(old);
            let changed = status::differ(old, &new) || self.first_report;
            let due = changed || self.reported.elapsed() >= self.report_after;
            let Some(changes) = patch::diff(old, &new).filter(|_| due) else {
                match attempt {
                    1 => self.note_heard(volumes),
                    // After a try without an answer it is not known what the server has.
                    _ => self.known = None,
                }
                return Ok(());
            };
            self.tell(old, &new);
            let body = json!({"status": changes}).to_string();
            let name = self.deps.settings.name.clone();
            let before = self.deps.node.borrow().clone();
            match self.heartbeat.patch::<Node>("", &name, "status", PatchType::StrategicMerge, body).await {
                Ok(node) => {
                    self.first_report = false;
                    self.reported = Instant::now();
                    self.report_after =
                        report_after(self.deps.settings.config.node_status_report_frequency.get(), changed);
                    // The watch may have brought a later one meanwhile.
                    own::take_answer(&self.deps.node, node, &before);
                    self.known = Some(status_of(&self.deps.node.borrow()));
                    self.note_heard(volumes);
                    if status::is_ready(&new)
                        && let Some(at) = self.registered.take()
                    {
                        metrics::NODE_STARTUP_POST_REGISTRATION.set(&[], at.elapsed().as_secs_f64());
                        metrics::node_is_ready();
                    }
                    return Ok(());
                }
                Err(error) if error.is_not_found() && self.deps.settings.config.register_node => {
                    // Someone deleted the node: it is still here, so it says so.
                    self.known = None;
                    self.again().await;
                }
                Err(error) if error.is_retriable() && attempt < TRIES => {
                    tracing::debug!(%error, attempt, "sending the node's status again");
                    self.heartbeat.reconnect();
                }
                Err(error) => {
                    // Patches build on what the server has: read it again before the next one.
                    self.known = None;
                    return Err(error);
                }
            }
        }
        Ok(())
    }

    /// The API server has the volumes in use as they were after this change.
    fn note_heard(&self, change: u64) {
        self.deps.volumes_heard.send_if_modified(|heard| std::mem::replace(heard, change) != change);
    }

    /// Registers a node that is gone. Waits for the API server as long as it takes, which is no hang of this loop.
    async fn again(&mut self) {
        self.deps.status_beat.end();
        self.register().await;
        self.deps.status_beat.begin().await;
    }

    fn accept(&mut self, node: Node) {
        self.known = Some(status_of(&node));
        self.deps.node.send_replace(Arc::new(node));
    }

    fn compute(&self, old: &Value) -> Value {
        let (mut capacity, mut allocatable) = self.deps.settings.resources_on(self.storage_bytes);
        for (name, (all, healthy)) in self.deps.devices.amounts() {
            capacity.insert(name.clone(), resources::count(all));
            allocatable.insert(name, resources::count(healthy));
        }
        let runtime = self.deps.runtime.borrow().clone();
        let signals = self.deps.signals.borrow().clone();
        let images = self.images.borrow().clone();
        let settings = &self.deps.settings;
        let now = proto::time::Timestamp::now().to_seconds_text();
        let built = status::build(
            old,
            &status::Facts {
                name: &settings.name,
                machine: &settings.machine,
                capacity: &capacity,
                required: settings.required(),
                allocatable: &allocatable,
                addresses: self.addresses.as_deref(),
                given: settings.has_given_address(),
                runtime: &runtime,
                pleg: crate::pleg::trouble().as_deref(),
                signals: &signals,
                images: &images,
                port: settings.config.port,
                gates: &settings.gates,
                external_cloud: settings.external_cloud,
                now: &now,
            },
        );
        // The same normal form that the API server's answer gets, so that both compare.
        tree::parse::<NodeStatus>(STATUS_TYPE, &built).map_or(built, |status| tree::of(STATUS_TYPE, &status))
    }

    /// An event when somebody cordons the node, or takes that back.
    fn tell_schedulable(&mut self) {
        let now = self.deps.node.borrow().spec.as_ref().is_some_and(|spec| spec.unschedulable);
        if std::mem::replace(&mut self.unschedulable, now) != now {
            self.event(if now { "NodeNotSchedulable" } else { "NodeSchedulable" });
        }
    }

    fn event(&self, reason: &str) {
        let message = format!("Node {} status is now: {reason}", self.deps.settings.name);
        (self.deps.events)("Normal", reason, message);
    }

    /// Events for the conditions that turn, and for a machine that was started anew.
    fn tell(&self, old: &Value, new: &Value) {
        let boot = |status: &Value| status["nodeInfo"]["bootID"].as_str().unwrap_or_default().to_owned();
        let (before, now) = (boot(old), boot(new));
        if !before.is_empty() && before != now {
            let message = format!("Node {} has been rebooted, boot id: {now}", self.deps.settings.name);
            (self.deps.events)("Warning", "Rebooted", message);
        }
        for condition in new.get("conditions").and_then(Value::as_array).into_iter().flatten() {
            let text = |c: &Value, key: &str| c.get(key).and_then(Value::as_str).unwrap_or("").to_owned();
            let kind = text(condition, "type");
            let before = old
                .get("conditions")
                .and_then(Value::as_array)
                .and_then(|l| l.iter().find(|c| text(c, "type") == kind))
                .map(|c| text(c, "status"));
            let now = text(condition, "status");
            if before.as_deref() == Some(now.as_str()) {
                continue;
            }
            let reason = match (kind.as_str(), now.as_str()) {
                ("Ready", "True") if before.is_some() => "NodeReady",
                ("Ready", _) if before.is_some() => "NodeNotReady",
                ("MemoryPressure", "True") => "NodeHasInsufficientMemory",
                ("MemoryPressure", _) => "NodeHasSufficientMemory",
                ("DiskPressure", "True") => "NodeHasDiskPressure",
                ("DiskPressure", _) => "NodeHasNoDiskPressure",
                ("PIDPressure", "True") => "NodeHasInsufficientPID",
                ("PIDPressure", _) => "NodeHasSufficientPID",
                _ => continue,
            };
            self.event(reason);
        }
    }
}

/// The status as a tree, in the form that [`Keeper::compute`] gives it.
pub(super) fn status_of(node: &Node) -> Value {
    tree::of(STATUS_TYPE, &node.status.clone().unwrap_or_default())
}

/// When a status that does not change is sent again: after a change at some time around `frequency`, so that nodes which
/// changed together do not report together for ever; from then on by the clock.
fn report_after(frequency: Duration, changed: bool) -> Duration {
    if changed { frequency.mul_f64(0.5 + f64::from(random_below(1001)) / 1000.0) } else { frequency }
}

#[cfg(test)]
mod tests {
    use std::pin::Pin;
    use std::sync::Mutex;
    use std::sync::atomic::{AtomicBool, Ordering};

    use bytes::Bytes;
    use http::{Method, Request, Response, header};
    use http_body_util::{BodyExt as _, Full};

    use super::*;
    use crate::api::{Body, ClientOptions, Transport};
    use crate::cri::CriClient;
    use crate::daemon::Progress;
    use crate::device_plugins::Devices;
    use crate::node::{NodeSettings, NodeSignals, VolumesInUse, unknown_runtime};

    /// A server with a node, which notes what is patched while it takes anything.
    #[derive(Default)]
    struct Server {
        patches: Mutex<Vec<Value>>,
        refuses: AtomicBool,
    }

    impl Transport for Server {
        fn send<'a>(
            &'a self,
            request: Request<Bytes>,
        ) -> Pin<Box<dyn Future<Output = Result<Response<Body>, ApiError>> + Send + 'a>> {
            let mut patches = self.patches.lock().unwrap();
            if request.method() == Method::PATCH {
                if self.refuses.load(Ordering::Relaxed) {
                    return Box::pin(std::future::ready(Err(ApiError::Connect("refused".into()))));
                }
                patches.push(serde_json::from_slice(request.body()).unwrap());
            }
            let status =
                patches.last().map_or(json!({}), |patch| json!({"volumesInUse": patch["status"]["volumesInUse"]}));
            let metadata = json!({"name": "n", "uid": "u", "resourceVersion": (patches.len() + 1).to_string()});
            let node = json!({"kind": "Node", "apiVersion": "v1", "metadata": metadata, "status": status});
            let answer = Response::builder()
                .header(header::CONTENT_TYPE, "application/json")
                .body(Full::new(Bytes::from(node.to_string())).map_err(Into::into).boxed_unsync())
                .map_err(|e| ApiError::Malformed(e.to_string()));
            Box::pin(std::future::ready(answer))
        }
    }

    /// Whether a volume is this node's depends on whether the API server knows that it is used.
    #[tokio::test(start_paused = true)]
    async fn volumes_are_heard_of_when_the_server_has_taken_the_status_that_names_them() {
        let server = Arc::new(Server::default());
        let client = Client::new(server.clone(), &ClientOptions::default());
        let (volumes_heard, heard) = watch::channel(0);
        let (signals, _signals) = watch::channel(NodeSignals::default());
        let (node, _node) = watch::channel(Arc::default());
        let progress = Progress::default();
        let limit = Duration::from_secs(60);
        let deps = NodeDeps {
            settings: NodeSettings::for_tests("n"),
            client: client.clone(),
            cri: CriClient::new("/nowhere.sock", None, limit).unwrap(),
            addresses: Vec::new(),
            runtime: watch::channel(Arc::new(unknown_runtime())).1,
            signals: signals.clone(),
            reach: watch::channel(None).0,
            node,
            heard: watch::channel(false).0,
            volumes_heard,
            events: Arc::new(|_, _, _| {}),
            status_beat: progress.register("status", limit),
            lease_beat: progress.register("lease", limit),
            devices: Devices::new("/nonexistent".into(), Arc::default(), |_| {}),
            standalone: false,
        };
        let mut keeper = Keeper::new(client, deps);
        let in_use = |change| {
            let volumes_in_use = VolumesInUse { names: vec!["v".into()], change };
            signals.send_replace(NodeSignals { volumes_in_use, ..NodeSignals::default() });
        };
        in_use(3);
        server.refuses.store(true, Ordering::Relaxed);
        assert!(keeper.report().await.is_err());
        assert_eq!(*heard.borrow(), 0);
        server.refuses.store(false, Ordering::Relaxed);
        keeper.report().await.unwrap();
        assert_eq!(server.patches.lock().unwrap()[0]["status"]["volumesInUse"], json!(["v"]));
        assert_eq!(*heard.borrow(), 3);
        // Taken back and used again before anything was said: the server has it as it is.
        in_use(5);
        keeper.report().await.unwrap();
        assert_eq!(*heard.borrow(), 5);
    }

    #[test]
    fn reports_after_a_change_are_spread_by_half_of_the_interval_each_way() {
        let frequency = Duration::from_secs(300);
        assert_eq!(report_after(frequency, false), frequency);
        let all: Vec<Duration> = (0..1000).map(|_| report_after(frequency, true)).collect();
        let (first, last) = (all.iter().min().unwrap(), all.iter().max().unwrap());
        assert!(*first >= Duration::from_secs(150) && *last <= Duration::from_secs(450), "{first:?} {last:?}");
        assert!(*first < Duration::from_secs(180) && *last > Duration::from_secs(420), "{first:?} {last:?}");
    }
}
