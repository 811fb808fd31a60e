//! What plugins' devices say about NUMA nodes, for the topology manager.
//!
//! Pure over the state: a plugin whose devices name no node does not care, and one that has too few left cannot be met.

use std::collections::{BTreeMap, BTreeSet};

use proto::api::core::v1::{Container, Pod};

use super::allocate::Pool;
use super::{Assigned, Devices, Resource, State};
use crate::pod::spec::{PodExt as _, is_sidecar};
use crate::resource_managers::{Hint, Hints, NodeMask, each_mask};

impl Devices {
    /// Where the container's devices could come from; one entry for each resource. `pool` may be used again, `nodes` are
    /// the machine's.
    pub fn hints(&self, uid: &str, container: &Container, pool: &Pool, nodes: &[u32]) -> Vec<Hints> {
        let wanted = self.wanted(container);
        let state = self.state();
        let none = BTreeSet::new();
        let of = |(resource, amount): (String, usize)| {
            let has = state.pods.get(uid).and_then(|c| c.get(&container.name)).and_then(|r| r.get(&resource));
            let pool = pool.get(&resource).unwrap_or(&none);
            hints(&state, &resource, amount, &has.map(Assigned::ids).unwrap_or_default(), pool, nodes)
        };
        wanted.into_iter().map(of).collect()
    }

    /// Where the devices of all containers of the pod could come from.
    pub fn pod_hints(&self, pod: &Pod, nodes: &[u32]) -> Vec<Hints> {
        let (mut init, mut sidecars, mut sum) = (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
        for container in &pod.spec().init_containers {
            for (resource, amount) in self.wanted(container) {
                let beside: &mut usize = sidecars.entry(resource.clone()).or_default();
                let highest: &mut usize = init.entry(resource).or_default();
                if is_sidecar(container) {
                    *beside += amount;
                }
                let now = if is_sidecar(container) { *beside } else { *beside + amount };
                *highest = now.max(*highest);
            }
        }
        for (resource, amount) in pod.spec().containers.iter().flat_map(|container| self.wanted(container)) {
            *sum.entry(resource).or_insert(0_usize) += amount;
        }
        for (resource, highest) in init {
            let running = sum.entry(resource.clone()).or_default();
            *running = (*running + sidecars.get(&resource).copied().unwrap_or(0)).max(highest);
        }
        let state = self.state();
        let of = |(resource, amount): (String, usize)| {
            let containers = state.pods.get(pod.uid()).into_iter().flat_map(BTreeMap::values);
            let has = containers.filter_map(|c| c.get(&resource)).flat_map(Assigned::ids).collect();
            hints(&state, &resource, amount, &has, &BTreeSet::new(), nodes)
        };
        sum.into_iter().map(of).collect()
    }
}

fn hints(
    state: &State,
    name: &str,
    wanted: usize,
    has: &BTreeSet<String>,
    pool: &BTreeSet<String>,
    nodes: &[u32],
) -> Hints {
    let resource = state.resources.get(name)?;
    if !resource.devices.values().any(super::Device::has_nodes) {
        return None;
    }
    if !has.is_empty() {
        let none = BTreeSet::new();
        return if has.len() == wanted {
            Some(on_nodes(resource, has, &none, wanted, nodes))
        } else {
            Some(Vec::new())
        };
    }
    let available: BTreeSet<String> = resource.healthy().difference(&state.in_use(name)).cloned().collect();
    if available.union(pool).count() < wanted {
        return Some(Vec::new());
    }
    Some(on_nodes(resource, &available, pool, wanted, nodes))
}

/// The sets of nodes with enough devices; those of `pool` must all be on them.
fn on_nodes(
    resource: &Resource,
    available: &BTreeSet<String>,
    pool: &BTreeSet<String>,
    wanted: usize,
    nodes: &[u32],
) -> Vec<Hint> {
    let is_on = |id: &String, mask: NodeMask| resource.devices.get(id).is_some_and(|device| device.is_on(mask));
    let cares = |id: &&String| resource.devices.get(*id).is_some_and(super::Device::has_nodes);
    let (mut least, mut hints) = (nodes.len(), Vec::new());
    each_mask(nodes, |mask| {
        if resource.devices.values().filter(|device| device.is_on(mask)).count() >= wanted {
            least = least.min(mask.count());
        }
        let again = pool.iter().filter(cares).count();
        let all_there = pool.iter().filter(cares).all(|id| is_on(id, mask));
        if all_there && again + available.difference(pool).filter(|id| is_on(id, mask)).count() >= wanted {
            hints.push(Hint { nodes: Some(mask), preferred: false });
        }
    });
    for hint in &mut hints {
        hint.preferred = hint.nodes.is_some_and(|nodes| nodes.count() == least);
    }
    hints
}

#[cfg(test)]
mod tests {
    use super::super::Device;
    use super::*;

    #[test]
    fn devices_hint_at_the_nodes_they_are_on() {
        let device = |node: Option<i64>| Device { healthy: true, nodes: node.map(|node| vec![node]) };
        let devices = [("a", device(Some(0))), ("b", device(Some(1))), ("c", device(Some(1))), ("d", device(None))];
        let resource =
            Resource { devices: devices.map(|(id, device)| (id.to_owned(), device)).into(), ..Resource::default() };
        let set = |ids: &[&str]| ids.iter().map(|id| (*id).to_owned()).collect::<BTreeSet<_>>();
        let told = |available: &[&str], pool: &[&str], wanted| -> Vec<String> {
            let hints = on_nodes(&resource, &set(available), &set(pool), wanted, &[0, 1]);
            let text = |h: Hint| format!("{}{}", h.nodes.unwrap(), if h.preferred { "!" } else { "" });
            hints.into_iter().map(text).collect()
        };
        assert_eq!(told(&["a", "b", "c", "d"], &[], 1), ["0!", "1!", "0-1"]);
        assert_eq!(told(&["a", "b", "c", "d"], &[], 2), ["1!", "0-1"]);
        assert_eq!(told(&["a", "b"], &[], 2), ["0-1"], "two could be on one node, were they free");
        assert_eq!(told(&["b", "c"], &["a"], 1), ["0!", "0-1"], "what is used again ties it to its node");
    }
}
