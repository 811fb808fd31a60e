//! Giving devices to the containers of a pod.
//!
//! A regular container may take over what init containers of its pod had; sidecars keep theirs. The rest comes from
//! healthy devices that nobody holds, by the plugin's preference where it has one.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use proto::api::core::v1::{Container, Pod};

use crate::pod::quantity::whole;
use crate::pod::spec::{PodExt as _, is_sidecar};

use super::endpoint::{Endpoint, described};
use super::{Assigned, Devices, NO_NODE, State};

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
    fn wanted(&self, container: &Container) -> Vec<(String, usize)> {
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

    /// Gives every container of the pod its devices. What was given before stays; when a container of the pod is
    /// in `running`, those that hold theirs are not looked at again.
    ///
    /// # Errors
    /// See [`AllocateError`]; nothing stays with the pod that it did not have before.
    pub async fn allocate(&self, pod: &Pod, running: &BTreeSet<String>) -> Result<(), AllocateError> {
        let before = self.state().pods.get(pod.uid()).cloned();
        let outcome = self.allocate_all(pod, running).await;
        if outcome.is_err() {
            let mut state = self.state();
            match before {
                Some(before) => state.pods.insert(pod.uid().to_owned(), before),
                None => state.pods.remove(pod.uid()),
            };
            self.save(&state);
        }
        outcome
    }

    async fn allocate_all(&self, pod: &Pod, running: &BTreeSet<String>) -> Result<(), AllocateError> {
        let mut reusable: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
        let spec = pod.spec();
        let regular = spec.containers.iter().map(|c| (c, false));
        let init = spec.init_containers.iter().map(|c| (c, !is_sidecar(c)));
        for (container, passes_on) in init.chain(regular) {
            for (resource, amount) in self.wanted(container) {
                let has = self.ids(pod.uid(), &container.name, &resource);
                // A pod that runs was admitted by an earlier agent. Its init containers have ended and keep theirs too.
                if has.is_none() || running.is_empty() {
                    self.allocate_one(pod.uid(), &container.name, &resource, amount, &mut reusable).await?;
                }
                let ids = self.ids(pod.uid(), &container.name, &resource).unwrap_or_default();
                let pool = reusable.entry(resource).or_default();
                if passes_on {
                    pool.extend(ids);
                } else {
                    pool.retain(|id| !ids.contains(id));
                }
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
        pod: &str,
        container: &str,
        resource: &str,
        amount: usize,
        reusable: &mut BTreeMap<String, BTreeSet<String>>,
    ) -> Result<(), AllocateError> {
        self.forget_strangers();
        let turn = self.state().resources.get(resource).map(|r| r.turn.clone());
        let turn = turn.ok_or_else(|| AllocateError::Unregistered(resource.into()))?;
        // While this is held nobody else takes of the resource; others may give back.
        let _turn = turn.lock().await;
        let (choice, endpoint, prefers) = {
            let state = self.state();
            let none = BTreeSet::new();
            let pool = reusable.get(resource).unwrap_or(&none);
            let Some(choice) = choice(&state, (pod, container, resource), amount, pool)? else { return Ok(()) };
            let known = state.resources.get(resource).ok_or_else(|| AllocateError::Unregistered(resource.into()))?;
            let endpoint = known.endpoint.clone().ok_or_else(|| AllocateError::NoneHealthy(resource.into()))?;
            (choice, endpoint, known.options.get_preferred_allocation_available)
        };
        let ids = pick(&endpoint, choice, amount, prefers).await;
        let response = endpoint.allocate(ids.iter().cloned().collect()).await;
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

/// The devices to ask for: what was taken over, then the plugin's preference, then the first that are free.
async fn pick(endpoint: &Arc<Endpoint>, choice: Choice, amount: usize, prefers: bool) -> BTreeSet<String> {
    let Choice { chosen: mut ids, available, missing } = choice;
    if missing == 0 {
        return ids;
    }
    if prefers {
        let all = available.union(&ids).cloned().collect();
        match endpoint.preferred(all, ids.iter().cloned().collect(), amount).await {
            Ok(preferred) => {
                let welcome: BTreeSet<String> = preferred.into_iter().filter(|id| available.contains(id)).collect();
                ids.extend(welcome.into_iter().take(missing));
            }
            Err(error) => tracing::warn!(error = described(&error), "a device plugin has no preference after all"),
        }
    }
    for id in available {
        if ids.len() == amount {
            break;
        }
        ids.insert(id);
    }
    ids
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
}
