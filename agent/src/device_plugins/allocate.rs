//! Giving devices to the containers of a pod.
//!
//! A regular container may take over what init containers of its pod had; sidecars keep theirs. The rest comes from
//! healthy devices that nobody holds: first those on the NUMA nodes that the container is to be on, then by the plugin's
//! preference where it has one.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use proto::api::core::v1::{Container, Pod};

use crate::metrics;
use crate::pod::quantity::whole;
use crate::pod::spec::{PodExt as _, is_sidecar};

use super::endpoint::{Endpoint, described};
use super::{Assigned, Devices, NO_NODE, Resource, State};
use crate::resource_managers::NodeMask;

/// Devices that init containers of a pod had and later ones may take over, by resource.
pub type Pool = BTreeMap<String, BTreeSet<String>>;

/// The devices of a pod, as they were before it was tried to give it more.
pub struct Held(Option<BTreeMap<String, BTreeMap<String, Assigned>>>);

/// Why a container gets no devices; the texts are the kubelet's.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AllocateError {
    #[error("pod {pod:?} container {container:?} changed request for resource {resource:?} from {before} to {after}")]
    Changed { pod: String, container: String, resource: String, before: usize, after: usize },
    #[error("cannot allocate unregistered device {0}")]
    Unregistered(String),
    #[error("no healthy devices present; cannot allocate unhealthy devices {0}")]
    NoneHealthy(String),
    #[error("previously allocated devices are no longer healthy; cannot allocate unhealthy devices {0}")]
    NoLongerHealthy(String),
    #[error("requested number of devices unavailable for {resource}. Requested: {wanted}, Available: {available}")]
    TooFew { resource: String, wanted: usize, available: usize },
    #[error("{0}")]
    Plugin(String),
}

/// What there is to pick from.
#[derive(Debug, PartialEq, Eq)]
struct Choice {
    /// Taken over already.
    chosen: BTreeSet<String>,
    available: BTreeSet<String>,
    /// Devices missing yet.
    missing: usize,
}

/// Pure: what a container needs of a resource beyond what it has. `None`: nothing.
fn choice(
    state: &State,
    (pod, container, resource): (&str, &str, &str),
    wanted: usize,
    reusable: &BTreeSet<String>,
) -> Result<Option<Choice>, AllocateError> {
    let had = state.pods.get(pod).and_then(|c| c.get(container)).and_then(|r| r.get(resource)).map(Assigned::ids);
    if let Some(had) = &had
        && had.len() != wanted
    {
        return Err(AllocateError::Changed {
            pod: pod.into(),
            container: container.into(),
            resource: resource.into(),
            before: had.len(),
            after: wanted,
        });
    }
    let known = state.resources.get(resource).ok_or_else(|| AllocateError::Unregistered(resource.into()))?;
    let healthy = known.healthy();
    if healthy.is_empty() {
        return Err(AllocateError::NoneHealthy(resource.into()));
    }
    if let Some(had) = had {
        if !had.is_subset(&healthy) {
            return Err(AllocateError::NoLongerHealthy(resource.into()));
        }
        return Ok(None);
    }
    let chosen: BTreeSet<String> = reusable.iter().take(wanted).cloned().collect();
    let missing = wanted - chosen.len();
    let in_use = state.in_use(resource);
    let available: BTreeSet<String> = healthy.difference(&in_use).filter(|id| !chosen.contains(*id)).cloned().collect();
    if available.len() < missing {
        return Err(AllocateError::TooFew { resource: resource.into(), wanted: missing, available: available.len() });
    }
    Ok(Some(Choice { chosen, available, missing }))
}

impl Devices {
    /// The resources of a container that plugins give, with the amount.
    pub(super) fn wanted(&self, container: &Container) -> Vec<(String, usize)> {
        let state = self.state();
        let limits = container.resources.iter().flat_map(|r| &r.limits);
        let ours = limits.filter(|(name, _)| state.knows(name));
        ours.map(|(name, amount)| (name.clone(), usize::try_from(whole(amount)).unwrap_or(0)))
            .filter(|(_, amount)| *amount > 0)
            .collect()
    }

    /// Whether the pod wants anything of a plugin.
    pub fn concern(&self, pod: &Pod) -> bool {
        let spec = pod.spec();
        spec.init_containers.iter().chain(&spec.containers).any(|c| !self.wanted(c).is_empty())
    }

    /// Whether plugins give the resource, so that its amount at the API server is no concern of admission.
    pub fn gives(&self, resource: &str) -> bool {
        self.state().knows(resource)
    }

    /// What [`Self::restore`] takes.
    pub fn held(&self, uid: &str) -> Held {
        Held(self.state().pods.get(uid).cloned())
    }

    /// Takes back what the pod was given since.
    pub fn restore(&self, uid: &str, held: Held) {
        let mut state = self.state();
        if state.pods.get(uid) == held.0.as_ref() {
            return;
        }
        match held.0 {
            Some(before) => state.pods.insert(uid.to_owned(), before),
            None => state.pods.remove(uid),
        };
        self.save(&state);
    }

    /// Gives a container its devices, if it can be on `nodes`. What was given before stays; when a container of the pod
    /// is in `running`, those that hold theirs are not looked at again. `pool` follows from container to container.
    ///
    /// # Errors
    /// See [`AllocateError`]; what other resources gave stays with the container.
    pub async fn allocate_container(
        &self,
        pod: &Pod,
        container: &Container,
        running: &BTreeSet<String>,
        pool: &mut Pool,
        nodes: Option<NodeMask>,
    ) -> Result<(), AllocateError> {
        let is_init = pod.spec().init_containers.iter().any(|init| init.name == container.name);
        let passes_on = is_init && !is_sidecar(container);
        for (resource, amount) in self.wanted(container) {
            let has = self.ids(pod.uid(), &container.name, &resource);
            // A pod that runs was admitted by an earlier agent. Its init containers have ended and keep theirs too.
            if has.is_none() || running.is_empty() {
                self.allocate_one((pod.uid(), &container.name, &resource), amount, pool, nodes).await?;
            }
            let ids = self.ids(pod.uid(), &container.name, &resource).unwrap_or_default();
            let pool = pool.entry(resource).or_default();
            if passes_on {
                pool.extend(ids);
            } else {
                pool.retain(|id| !ids.contains(id));
            }
        }
        Ok(())
    }

    fn ids(&self, pod: &str, container: &str, resource: &str) -> Option<BTreeSet<String>> {
        let state = self.state();
        Some(state.pods.get(pod)?.get(container)?.get(resource)?.ids())
    }

    async fn allocate_one(
        &self,
        (pod, container, resource): (&str, &str, &str),
        amount: usize,
        reusable: &Pool,
        nodes: Option<NodeMask>,
    ) -> Result<(), AllocateError> {
        self.forget_strangers();
        let turn = self.state().resources.get(resource).map(|r| r.turn.clone());
        let turn = turn.ok_or_else(|| AllocateError::Unregistered(resource.into()))?;
        // While this is held nobody else takes of the resource; others may give back.
        let _turn = turn.lock().await;
        let (choice, aligned, endpoint, prefers) = {
            let state = self.state();
            let none = BTreeSet::new();
            let pool = reusable.get(resource).unwrap_or(&none);
            let Some(choice) = choice(&state, (pod, container, resource), amount, pool)? else { return Ok(()) };
            let known = state.resources.get(resource).ok_or_else(|| AllocateError::Unregistered(resource.into()))?;
            let endpoint = known.endpoint.clone().ok_or_else(|| AllocateError::NoneHealthy(resource.into()))?;
            let aligned = Aligned::of(known, &choice.available, nodes);
            (choice, aligned, endpoint, known.options.get_preferred_allocation_available)
        };
        let prefers = prefers.then_some(&endpoint);
        let ids = pick(prefers, choice, aligned, amount).await;
        let labels = [resource];
        let timer = metrics::DEVICE_PLUGIN_ALLOCATION.time(&labels);
        let response = endpoint.allocate(ids.iter().cloned().collect()).await;
        drop(timer);
        let response = response.map_err(|e| AllocateError::Plugin(described(&e)))?;
        let mut state = self.state();
        let known = state.resources.get(resource);
        let mut by_node: BTreeMap<i64, BTreeSet<String>> = BTreeMap::new();
        for id in ids {
            let nodes = known.and_then(|k| k.devices.get(&id)).and_then(|d| d.nodes.clone());
            match nodes {
                Some(nodes) if !nodes.is_empty() => {
                    for node in nodes {
                        by_node.entry(node).or_default().insert(id.clone());
                    }
                }
                _ => {
                    by_node.entry(NO_NODE).or_default().insert(id);
                }
            }
        }
        let containers = state.pods.entry(pod.to_owned()).or_default();
        let assigned = Assigned { by_node, response };
        containers.entry(container.to_owned()).or_default().insert(resource.to_owned(), assigned);
        self.save(&state);
        Ok(())
    }

    /// Takes devices back from pods that this node does not have, once it is known which it has.
    fn forget_strangers(&self) {
        if !self.feed.is_complete() {
            return;
        }
        let known: BTreeSet<String> = self.feed.pods().iter().map(|p| p.pod.uid().to_owned()).collect();
        let mut state = self.state();
        let before = state.pods.len();
        state.pods.retain(|uid, _| known.contains(uid));
        if state.pods.len() != before {
            self.save(&state);
        }
    }
}

/// Free devices by how they suit the nodes that a container is to be on.
#[derive(Debug, Default, PartialEq, Eq)]
struct Aligned {
    there: BTreeSet<String>,
    elsewhere: BTreeSet<String>,
    anywhere: BTreeSet<String>,
}

impl Aligned {
    fn of(resource: &Resource, available: &BTreeSet<String>, nodes: Option<NodeMask>) -> Self {
        let mut aligned = Self::default();
        for id in available {
            let device = resource.devices.get(id).filter(|device| device.has_nodes());
            let group = match (device, nodes) {
                (Some(device), Some(nodes)) if device.is_on(nodes) => &mut aligned.there,
                (Some(_), Some(_)) => &mut aligned.elsewhere,
                _ => &mut aligned.anywhere,
            };
            group.insert(id.clone());
        }
        aligned
    }
}

/// The devices to ask for: what was taken over, then those on the right nodes, then the plugin's preference, then the
/// first that are free. `prefers` is the plugin, if it has preferences.
async fn pick(prefers: Option<&Arc<Endpoint>>, choice: Choice, aligned: Aligned, amount: usize) -> BTreeSet<String> {
    let Choice { chosen: mut ids, available, missing } = choice;
    if missing == 0 {
        return ids;
    }
    let Aligned { there, elsewhere, anywhere } = aligned;
    // More than enough on the right nodes: the plugin has a say in which of them.
    let among = if missing < there.len() {
        there
    } else {
        ids.extend(there);
        available
    };
    if let Some(endpoint) = prefers.filter(|_| ids.len() < amount) {
        let all = among.union(&ids).cloned().collect();
        match endpoint.preferred(all, ids.iter().cloned().collect(), amount).await {
            Ok(preferred) => fill(&mut ids, preferred.into_iter().filter(|id| among.contains(id)), amount),
            Err(error) => tracing::warn!(error = described(&error), "a device plugin has no preference after all"),
        }
    }
    let rest = elsewhere.into_iter().chain(anywhere);
    let rest: Vec<String> = rest.filter(|id| among.contains(id)).collect();
    let first: Vec<String> = among.into_iter().filter(|id| !rest.contains(id)).collect();
    fill(&mut ids, first.into_iter().chain(rest), amount);
    ids
}

fn fill(ids: &mut BTreeSet<String>, from: impl Iterator<Item = String>, amount: usize) {
    for id in from {
        if ids.len() >= amount {
            return;
        }
        ids.insert(id);
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Device, Resource};
    use super::*;

    fn state(ids: &[(&str, bool)]) -> State {
        // `healthy` asks for a live plugin; the checks of numbers do not need one.
        let devices = ids.iter().map(|(id, healthy)| ((*id).to_owned(), Device { healthy: *healthy, nodes: None }));
        let mut state = State::default();
        state.resources.insert("r/x".into(), Resource { devices: devices.collect(), ..Resource::default() });
        state
    }

    #[test]
    fn a_plugin_that_is_away_has_nothing_to_give() {
        let state = state(&[("a", true)]);
        let error = choice(&state, ("p", "c", "r/x"), 1, &BTreeSet::new()).unwrap_err();
        assert_eq!(error.to_string(), "no healthy devices present; cannot allocate unhealthy devices r/x");
        let error = choice(&state, ("p", "c", "r/y"), 1, &BTreeSet::new()).unwrap_err();
        assert_eq!(error.to_string(), "cannot allocate unregistered device r/y");
    }

    #[tokio::test]
    async fn devices_on_the_right_nodes_come_first() {
        let device = |nodes: &[i64]| Device { healthy: true, nodes: (!nodes.is_empty()).then(|| nodes.to_vec()) };
        let devices = [("a", device(&[0])), ("b", device(&[1])), ("c", device(&[0, 1])), ("d", device(&[]))];
        let devices: BTreeMap<String, Device> = devices.map(|(id, device)| (id.to_owned(), device)).into();
        let available: BTreeSet<String> = devices.keys().cloned().collect();
        let resource = Resource { devices, ..Resource::default() };
        for (nodes, amount, expected) in [
            (Some(vec![1]), 1, "b"),
            (Some(vec![1]), 2, "b c"),
            (Some(vec![1]), 3, "a b c"),
            (Some(vec![0]), 1, "a"),
            (None, 2, "a b"),
            (Some(vec![0, 1]), 4, "a b c d"),
        ] {
            let mask = nodes.clone().map(|nodes| nodes.into_iter().collect());
            let aligned = Aligned::of(&resource, &available, mask);
            let choice = Choice { chosen: BTreeSet::new(), available: available.clone(), missing: amount };
            let ids: Vec<String> = pick(None, choice, aligned, amount).await.into_iter().collect();
            assert_eq!(ids.join(" "), expected, "{amount} on {nodes:?}");
        }
    }
}
