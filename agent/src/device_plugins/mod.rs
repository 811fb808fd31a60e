//! Devices of this node that plugins offer (device plugin API v1beta1): who has which, what they need, how they are.
//!
//! A plugin registers ([`registration`]), its stream of devices is followed until it ends ([`endpoint`]); then its devices
//! count as unhealthy, and are forgotten five minutes later unless it comes back. Pods get devices before their first
//! container is made ([`Devices::allocate`]) and keep them until nothing of them is left; assignments outlive the agent
//! in the kubelet's checkpoint file. Nothing here waits for a plugin while it holds the state: one that hangs holds up
//! the pods that want its resource, and those for two minutes at most.
//!
//! Followed: `pkg/kubelet/cm/devicemanager`.

mod allocate;
mod checkpoint;
mod endpoint;
mod hints;
mod place;
mod registration;
mod report;

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use proto::device_plugin::{ContainerAllocateResponse, DevicePluginOptions};
use tokio::sync::watch;
use tokio::time::Instant;

use crate::backoff::Backoff;
use crate::pods_api::PodFeed;
use crate::resource_managers::NodeMask;
use crate::state_file::{self, Damaged};

pub use allocate::{AllocateError, Held, Pool};
pub use endpoint::described;
pub use place::{FIXED, lead, leave};
pub use registration::{RegisterError, start, validate};
pub use report::{AssignedDevice, ContainerDevices};

use endpoint::Endpoint;

/// How long a resource stays known after its plugin went away.
const GRACE: Duration = Duration::from_secs(300);
/// What could not be saved is tried again after this, and ever more seldom after that.
const SAVE_AGAIN: Duration = Duration::from_secs(1);
const SAVE_AT_LEAST: Duration = Duration::from_secs(60);
/// A device without a NUMA node, as the checkpoint writes it.
const NO_NODE: i64 = -1;

/// Gets the uid of a pod whose devices changed their health.
type Listener = Box<dyn Fn(&str) + Send + Sync>;

/// See the module's documentation.
pub struct Devices {
    dir: PathBuf,
    feed: Arc<PodFeed>,
    state: Mutex<State>,
    /// Counts changes of what the node has.
    changes: watch::Sender<u64>,
    listener: Mutex<Option<Listener>>,
    /// An earlier agent had written down what plugins gave.
    remembers: bool,
    /// Plugins can register.
    serves: AtomicBool,
    /// What is on the disk is not what is so, and somebody tries to mend that.
    unsaved: AtomicBool,
    this: Weak<Self>,
}

#[derive(Default)]
struct State {
    resources: BTreeMap<String, Resource>,
    /// Were known, and are no more: the node shows zero of them.
    gone: BTreeSet<String>,
    /// Pod uid, container, resource.
    pods: BTreeMap<String, BTreeMap<String, BTreeMap<String, Assigned>>>,
}

#[derive(Default)]
struct Resource {
    devices: BTreeMap<String, Device>,
    /// `None` after the plugin's stream has ended.
    endpoint: Option<Arc<Endpoint>>,
    /// The devices are what the endpoint has told, and not what one before it had.
    told: bool,
    options: DevicePluginOptions,
    stopped: Option<Instant>,
    /// One pod at a time picks from a resource.
    turn: Arc<tokio::sync::Mutex<()>>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Device {
    /// As the plugin said last.
    healthy: bool,
    /// NUMA nodes; `None` when the plugin did not say.
    nodes: Option<Vec<i64>>,
}

impl Device {
    fn has_nodes(&self) -> bool {
        self.nodes.as_ref().is_some_and(|nodes| !nodes.is_empty())
    }

    fn is_on(&self, nodes: NodeMask) -> bool {
        let own = self.nodes.iter().flatten();
        own.filter_map(|node| u32::try_from(*node).ok()).any(|node| nodes.contains(node))
    }
}

/// What a container got of one resource.
#[derive(Debug, Clone, Default, PartialEq)]
struct Assigned {
    by_node: BTreeMap<i64, BTreeSet<String>>,
    response: ContainerAllocateResponse,
}

impl Assigned {
    fn ids(&self) -> BTreeSet<String> {
        self.by_node.values().flatten().cloned().collect()
    }
}

impl Resource {
    fn healthy(&self) -> BTreeSet<String> {
        // Devices of a plugin that is gone, or has not said anything yet, are nobody's to give.
        let served = self.endpoint.is_some() && self.told;
        self.devices.iter().filter(|(_, d)| served && d.healthy).map(|(id, _)| id.clone()).collect()
    }
}

impl State {
    fn in_use(&self, resource: &str) -> BTreeSet<String> {
        let containers = self.pods.values().flat_map(BTreeMap::values);
        containers.filter_map(|c| c.get(resource)).flat_map(Assigned::ids).collect()
    }

    /// Whether plugins give this resource, or have given it to a pod.
    fn knows(&self, resource: &str) -> bool {
        self.resources.contains_key(resource)
            || self.pods.values().flat_map(BTreeMap::values).any(|c| c.contains_key(resource))
    }
}

impl Devices {
    /// Whether an earlier agent had written down what plugins gave.
    pub fn remembers(&self) -> bool {
        self.remembers
    }

    /// Takes up what an earlier agent wrote in `dir`; tells of a file that had to be set aside.
    pub fn new(dir: PathBuf, feed: Arc<PodFeed>, tell: impl FnOnce(&Damaged)) -> Arc<Self> {
        let mut state = State::default();
        let saved = checkpoint::read(&dir);
        let remembers = !matches!(saved, Ok(None));
        match saved {
            Ok(Some(saved)) => {
                state.pods = saved.pods;
                let stopped = || Resource { stopped: Some(Instant::now()), ..Resource::default() };
                state.resources = saved.resources.into_iter().map(|name| (name, stopped())).collect();
            }
            Ok(None) => {}
            // Pods that run keep their devices, but nobody knows of it any more until they end.
            Err(error) => tell(&state_file::set_aside(&dir.join(checkpoint::FILE), error)),
        }
        let names: Vec<String> = state.resources.keys().cloned().collect();
        let devices = Arc::new_cyclic(|this: &Weak<Self>| Self {
            dir,
            feed,
            state: Mutex::new(state),
            changes: watch::Sender::new(0),
            listener: Mutex::default(),
            remembers,
            serves: AtomicBool::new(false),
            unsaved: AtomicBool::new(false),
            this: this.clone(),
        });
        for name in names {
            devices.clone().expire_later(name);
        }
        devices
    }

    /// Whether the socket is there that plugins register on.
    pub fn serves(&self) -> bool {
        self.serves.load(Ordering::Relaxed)
    }

    /// Calls `listener` with the uid of each pod whose devices change their health.
    pub fn set_listener(&self, listener: impl Fn(&str) + Send + Sync + 'static) {
        *self.listener.lock().unwrap_or_else(PoisonError::into_inner) = Some(Box::new(listener));
    }

    /// Changes whenever the node's amounts may have.
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What a plugin said that it has now.
    fn update(&self, resource: &str, endpoint: &Arc<Endpoint>, devices: BTreeMap<String, Device>) {
        {
            let mut state = self.state();
            let Some(known) = state.resources.get_mut(resource) else { return };
            let is_known = known.endpoint.as_ref().is_some_and(|e| Arc::ptr_eq(e, endpoint));
            if !is_known || known.told && known.devices == devices {
                return;
            }
            (known.devices, known.told) = (devices, true);
            self.save(&state);
        }
        self.told(resource);
    }

    /// A plugin's stream has ended.
    fn stopped(self: &Arc<Self>, resource: &str, endpoint: &Arc<Endpoint>) {
        {
            let mut state = self.state();
            let Some(known) = state.resources.get_mut(resource) else { return };
            if !known.endpoint.as_ref().is_some_and(|e| Arc::ptr_eq(e, endpoint)) {
                // Another plugin took over.
                return;
            }
            known.endpoint = None;
            known.stopped = Some(Instant::now());
            self.save(&state);
        }
        tracing::info!(resource, "a device plugin went away");
        self.told(resource);
        self.clone().expire_later(resource.to_owned());
    }

    /// Forgets the resource when its plugin stays away.
    fn expire_later(self: Arc<Self>, resource: String) {
        let devices = Arc::downgrade(&self);
        tokio::spawn(async move {
            tokio::time::sleep(GRACE).await;
            let Some(devices) = devices.upgrade() else { return };
            {
                let mut state = devices.state();
                let expired = |r: &Resource| r.stopped.is_some_and(|at| at.elapsed() >= GRACE);
                if !state.resources.get(&resource).is_some_and(expired) {
                    return;
                }
                state.resources.remove(&resource);
                state.gone.insert(resource.clone());
                devices.save(&state);
            }
            devices.told(&resource);
        });
    }

    fn told(&self, resource: &str) {
        self.changes.send_modify(|n| *n = n.wrapping_add(1));
        let holders: Vec<String> = {
            let state = self.state();
            let holds = |containers: &BTreeMap<String, BTreeMap<String, Assigned>>| {
                containers.values().any(|c| c.contains_key(resource))
            };
            state.pods.iter().filter(|(_, c)| holds(c)).map(|(uid, _)| uid.clone()).collect()
        };
        if let Some(listener) = &*self.listener.lock().unwrap_or_else(PoisonError::into_inner) {
            for uid in holders {
                listener(&uid);
            }
        }
    }

    /// Nothing of the pod is left: its devices are free.
    pub fn release(&self, uid: &str) {
        let mut state = self.state();
        if state.pods.remove(uid).is_some() {
            self.save(&state);
        }
    }

    /// Writes the assignments down, if not now then as soon as the disk lets it.
    fn save(&self, state: &State) {
        let Err(error) = checkpoint::write(&self.dir, state) else {
            return self.unsaved.store(false, Ordering::Relaxed);
        };
        tracing::warn!(%error, "device assignments are not saved");
        let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
        if !self.unsaved.swap(true, Ordering::Relaxed) {
            runtime.spawn(save_later(self.this.clone()));
        }
    }
}

/// Tries to save until somebody has.
async fn save_later(devices: Weak<Devices>) {
    let mut backoff = Backoff::new(SAVE_AGAIN, SAVE_AT_LEAST);
    loop {
        tokio::time::sleep(backoff.next_wait()).await;
        let Some(devices) = devices.upgrade() else { return };
        let state = devices.state();
        if !devices.unsaved.load(Ordering::Relaxed) {
            return;
        }
        if checkpoint::write(&devices.dir, &state).is_ok() {
            tracing::info!("device assignments are saved");
            return devices.unsaved.store(false, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests;
