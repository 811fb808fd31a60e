//! Dynamic resource allocation: ResourceClaims of pods are prepared by their drivers before a pod's sandbox is made, and
//! given back when its containers are down.
//!
//! Drivers come and go through the plugin registry ([`Dra::register`]). A claim that is about to be prepared is on disk
//! first, with the pods that use it ([`checkpoint`]), so that an agent that was killed, or the kubelet, gives it back.
//! One pod at a time works on a claim; a driver that hangs holds up only the pods that use its claims.
//!
//! Followed: `pkg/kubelet/cm/dra`.

mod checkpoint;
mod claims;
mod health;
mod plugin;
mod prepare;
mod presence;
mod report;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use proto::dra_health::DeviceHealth;
use tokio::task::AbortHandle;

use crate::api::Client;
use crate::metrics;
use crate::state_file::{self, Damaged};

use checkpoint::Claim;
use health::Healths;
use plugin::{Plugin, Version};

/// Gets the uid of a pod whose devices changed their health.
type Listener = Box<dyn Fn(&str) + Send + Sync>;
/// Namespace and name of a claim.
type Key = (String, String);

/// See the module's documentation.
pub struct Dra {
    /// None without an API server: there are no claims then.
    client: Option<Client>,
    node: String,
    root: PathBuf,
    /// Whether drivers are asked for the health of their devices.
    with_health: bool,
    state: Mutex<State>,
    /// Whose turn it is with a claim.
    turns: Mutex<BTreeMap<Key, Weak<tokio::sync::Mutex<()>>>>,
    /// One writer of the checkpoint at a time.
    writing: Arc<tokio::sync::Mutex<()>>,
    listener: Mutex<Option<Listener>>,
}

#[derive(Default)]
struct State {
    claims: BTreeMap<Key, Known>,
    drivers: BTreeMap<String, Vec<Registered>>,
    healths: Healths,
    /// Drivers that are away, and what will take their slices.
    wipes: BTreeMap<String, AbortHandle>,
}

/// A claim, and whether this agent has seen it prepared. After a restart drivers are asked again, which they must bear.
struct Known {
    claim: Claim,
    prepared: bool,
}

/// A plugin of a driver; a driver that is being replaced has two.
struct Registered {
    plugin: Plugin,
    connected: bool,
    tasks: Vec<AbortHandle>,
}

impl Drop for Registered {
    fn drop(&mut self) {
        self.tasks.iter().for_each(AbortHandle::abort);
    }
}

impl Dra {
    /// Takes up what an earlier agent wrote below `root`; tells of a file that had to be set aside. No driver is here yet,
    /// so the slices of all are deleted; each publishes its own again.
    pub fn open(
        root: &Path,
        client: Option<Client>,
        node: &str,
        with_health: bool,
        tell: impl FnOnce(&Damaged),
    ) -> Arc<Self> {
        let claims = checkpoint::read(root).unwrap_or_else(|error| {
            tell(&state_file::set_aside(&root.join(checkpoint::FILE), error));
            Vec::new()
        });
        let known = |claim: Claim| ((claim.namespace.clone(), claim.name.clone()), Known { claim, prepared: false });
        let state = State { claims: claims.into_iter().map(known).collect(), ..State::default() };
        if let Some(client) = client.clone() {
            tokio::spawn(presence::wipe(client, node.to_owned(), None));
        }
        let dra = Arc::new(Self {
            client,
            node: node.to_owned(),
            root: root.to_owned(),
            with_health,
            state: Mutex::new(state),
            turns: Mutex::default(),
            writing: Arc::default(),
            listener: Mutex::default(),
        });
        dra.count(&dra.state());
        dra
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Calls `listener` with the uid of each pod whose devices change their health.
    pub fn set_listener(&self, listener: impl Fn(&str) + Send + Sync + 'static) {
        *self.listener.lock().unwrap_or_else(PoisonError::into_inner) = Some(Box::new(listener));
    }

    /// Takes a plugin of a driver in.
    ///
    /// # Errors
    /// In the kubelet's words: it serves no version that is known here, or another plugin has its endpoint.
    pub fn register(self: &Arc<Self>, driver: &str, endpoint: &Path, services: &[String]) -> Result<(), String> {
        let version = Self::check(driver, endpoint, services)?;
        let mut state = self.state();
        let plugins = state.drivers.entry(driver.to_owned()).or_default();
        if plugins.iter().any(|p| p.plugin.endpoint == endpoint) {
            let endpoint = endpoint.display();
            return Err(format!("endpoint {endpoint} already registered for DRA driver plugin {driver}"));
        }
        let plugin = Plugin { driver: driver.to_owned(), endpoint: endpoint.to_owned(), version };
        let watch = presence::watch(Arc::downgrade(self), driver.to_owned(), endpoint.to_owned());
        let mut tasks = vec![tokio::spawn(watch).abort_handle()];
        if self.with_health {
            let follow = health::follow(Arc::downgrade(self), driver.to_owned(), endpoint.to_owned());
            tasks.push(tokio::spawn(follow).abort_handle());
        }
        plugins.push(Registered { plugin, connected: false, tasks });
        self.mind_slices(&mut state, driver);
        Ok(())
    }

    /// Whether a plugin could be taken in.
    ///
    /// # Errors
    /// As [`Dra::register`].
    pub fn check(driver: &str, endpoint: &Path, services: &[String]) -> Result<Version, String> {
        Version::choose(services).map_err(|why| {
            let endpoint = endpoint.display();
            format!("invalid supported gRPC versions of DRA driver plugin {driver} at endpoint {endpoint}: {why}")
        })
    }

    /// The plugin took its registration back.
    pub fn unregister(self: &Arc<Self>, driver: &str, endpoint: &Path) {
        let mut state = self.state();
        if let Some(plugins) = state.drivers.get_mut(driver) {
            plugins.retain(|p| p.plugin.endpoint != endpoint);
            if plugins.is_empty() {
                state.drivers.remove(driver);
            }
        }
        self.mind_slices(&mut state, driver);
        drop(state);
        self.health_ended(driver);
    }

    /// A plugin's connection came or went.
    fn connected(self: &Arc<Self>, driver: &str, endpoint: &Path, connected: bool) {
        let mut state = self.state();
        let plugins = state.drivers.get_mut(driver).into_iter().flatten();
        plugins.filter(|p| p.plugin.endpoint == endpoint).for_each(|p| p.connected = connected);
        self.mind_slices(&mut state, driver);
    }

    /// Begins to wait for a driver that is away, or ends the wait for one that is back.
    fn mind_slices(self: &Arc<Self>, state: &mut State, driver: &str) {
        let Some(client) = self.client.clone() else { return };
        if state.drivers.get(driver).is_some_and(|plugins| plugins.iter().any(|p| p.connected)) {
            if let Some(wipe) = state.wipes.remove(driver) {
                wipe.abort();
            }
        } else if !state.wipes.contains_key(driver) {
            let wipe = tokio::spawn(presence::wipe_later(self.clone(), client, driver.to_owned()));
            state.wipes.insert(driver.to_owned(), wipe.abort_handle());
        }
    }

    /// The plugin to ask: the newest of those that are there.
    fn plugin(&self, driver: &str) -> Result<Plugin, String> {
        let state = self.state();
        let plugins = state.drivers.get(driver).map(Vec::as_slice).unwrap_or_default();
        let there = plugins.iter().rev().find(|p| p.connected).or(plugins.last());
        there.map(|p| p.plugin.clone()).ok_or_else(|| format!("DRA driver {driver} is not registered"))
    }

    fn health_reported(&self, driver: &str, report: Vec<DeviceHealth>) {
        let mut state = self.state();
        let changed = state.healths.update(driver, report);
        self.tell_users(state, driver, &changed);
    }

    fn health_ended(&self, driver: &str) {
        let mut state = self.state();
        let changed = state.healths.forget(driver);
        self.tell_users(state, driver, &changed);
    }

    /// Has the pods that use these devices told anew.
    fn tell_users(&self, state: MutexGuard<'_, State>, driver: &str, changed: &[(String, String)]) {
        let mut pods = std::collections::BTreeSet::new();
        for claim in state.claims.values().map(|known| &known.claim) {
            let devices = claim.drivers.get(driver).map(checkpoint::Driver::devices).unwrap_or_default();
            if devices.iter().any(|d| changed.iter().any(|(p, n)| *p == d.pool_name && *n == d.device_name)) {
                pods.extend(claim.pods.iter().cloned());
            }
        }
        drop(state);
        if let Some(listener) = &*self.listener.lock().unwrap_or_else(PoisonError::into_inner) {
            pods.iter().for_each(|uid| listener(uid));
        }
    }

    /// Shows how many claims are in use.
    fn count(&self, state: &State) {
        let mut counts: BTreeMap<&str, u32> = BTreeMap::new();
        for known in state.claims.values() {
            known.claim.drivers.keys().for_each(|driver| *counts.entry(driver).or_default() += 1);
        }
        let all = u32::try_from(state.claims.len()).unwrap_or(u32::MAX);
        let by_driver = counts.into_iter().map(|(driver, count)| (vec![driver.to_owned()], f64::from(count)));
        metrics::DRA_CLAIMS.set_all(std::iter::once((vec!["<any>".to_owned()], f64::from(all))).chain(by_driver));
    }
}
