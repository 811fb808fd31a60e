//! Pods that ask for CPUs and memory as a whole, under the topology manager's scope `pod`.
//!
//! Such a pod gets all of it in one place. Containers that would be Guaranteed alone have their part of it to themselves;
//! the others share the rest, and nobody else does. An init container that ends may use what later ones get, but not what
//! sidecars before it have.
//!
//! Followed: `AllocatePod` of the static policies, KEP-5526.

use std::collections::BTreeMap;

use proto::api::core::v1::{Container, Pod};

use super::admit::Refusal;
use super::cpu_policy::StaticCpus;
use super::cpu_set::CpuSet;
use super::memory_policy::{Amounts, Reusable, StaticMemory};
use super::memory_state::Block;
use super::numa::{Hint, Hints};
use super::wanted::Wanted;
use super::{Managers, State, counts};
use crate::metrics;
use crate::pod::spec::{PodExt as _, is_sidecar};

const CPUS: &str = "cpu";

impl Managers {
    /// Where the CPUs and the memory of the whole pod could come from.
    pub(super) fn whole_pod_hints(&self, state: &State, pod: &Pod) -> Vec<Hints> {
        let (uid, mut hints) = (pod.uid(), Vec::new());
        let wanted = self.wanted.pod_cpus(pod);
        if let Some(policy) = self.cpus.as_ref().filter(|_| wanted > 0) {
            hints.push(match state.cpus.pods.get(uid) {
                Some(has) if has.len() == wanted => policy.hints(has, &CpuSet::default(), wanted),
                Some(_) => Some(Vec::new()),
                None if check_room(pod, &cpu(wanted), |c| cpu(self.wanted.cpus(pod, c))).is_err() => Some(Vec::new()),
                None => policy.hints(&policy.available(&state.cpus), &CpuSet::default(), wanted),
            });
        }
        let wanted = self.wanted.pod_memory(pod);
        if self.memory.is_some() && !wanted.is_empty() {
            let found = match state.memory.pods.get(uid) {
                Some(has) => StaticMemory::hints_of(has, &wanted),
                None if check_room(pod, &wanted, |c| self.wanted.memory(pod, c)).is_err() => {
                    wanted.into_keys().map(|name| (name, Some(Vec::new()))).collect()
                }
                None => StaticMemory::hints(&state.memory.machine, &wanted, &Reusable::default()),
            };
            hints.extend(found.into_values());
        }
        hints
    }

    /// Takes what the pod asks for by what all agreed on, and shares it out. What it has stays with it.
    pub(super) fn take_for_pod(&self, state: &mut State, pod: &Pod, hint: Hint) -> Result<(), Refusal> {
        let uid = pod.uid();
        let wanted = self.wanted.pod_cpus(pod);
        if let Some(policy) = self.cpus.as_ref().filter(|_| wanted > 0 && !state.cpus.pods.contains_key(uid)) {
            let has_part = |container: &Container| self.wanted.cpus(pod, container) > 0;
            let taken = check_room(pod, &cpu(wanted), |c| cpu(self.wanted.cpus(pod, c))).and_then(|()| {
                let all = policy.allocate(&state.cpus, wanted, hint.nodes, &CpuSet::default())?;
                let parts = share_cpus(policy, self.wanted, pod, &all).map_err(Refusal::unexpected)?;
                Ok((all, parts))
            });
            self.wanted.count_pod(counts::CPU, pod, taken.is_ok(), has_part);
            let (all, parts) = taken.inspect_err(|_| metrics::CPU_PINNING_ERRORS.inc(&[]))?;
            let containers = pod.spec().init_containers.iter().chain(&pod.spec().containers);
            containers.filter(|container| has_part(container)).for_each(|_| metrics::CPU_PINNING.inc(&[]));
            state.cpus.assign_pod(uid, all, parts);
        }
        let wanted = self.wanted.pod_memory(pod);
        if self.memory.is_some() && !wanted.is_empty() && !state.memory.pods.contains_key(uid) {
            metrics::MEMORY_PINNING.inc(&[]);
            let taken = check_room(pod, &wanted, |c| self.wanted.memory(pod, c)).and_then(|()| {
                let machine = &mut state.memory.machine;
                StaticMemory::allocate(machine, &wanted, hint, &Reusable::default()).map_err(Refusal::unexpected)
            });
            let has_part = |container: &Container| !self.wanted.memory(pod, container).is_empty();
            self.wanted.count_pod(counts::MEMORY, pod, taken.is_ok(), has_part);
            let blocks = taken.inspect_err(|_| metrics::MEMORY_PINNING_ERRORS.inc(&[]))?;
            let parts = share_memory(pod, &wanted, |c| self.wanted.memory(pod, c));
            let part = |amounts: Amounts| blocks.iter().filter_map(|b| part_of(b, &amounts)).collect();
            let parts = parts.into_iter().map(|(name, amounts)| (name, part(amounts))).collect();
            state.memory.assigned.insert(uid.to_owned(), parts);
            state.memory.pods.insert(uid.to_owned(), blocks);
        }
        Ok(())
    }
}

fn cpu(count: usize) -> Amounts {
    [(CPUS.to_owned(), u64::try_from(count).unwrap_or(u64::MAX))].into_iter().filter(|(_, count)| *count > 0).collect()
}

/// What is left of all of them.
fn without(all: &Amounts, taken: &Amounts) -> Amounts {
    let left =
        |(name, amount): (&String, &u64)| (name.clone(), amount.saturating_sub(taken.get(name).copied().unwrap_or(0)));
    all.iter().map(left).collect()
}

fn add(sum: &mut Amounts, more: &Amounts) {
    for (name, amount) in more {
        let slot = sum.entry(name.clone()).or_default();
        *slot = slot.saturating_add(*amount);
    }
}

/// Whether those without a part of their own find something to share. An empty set of CPUs would mean all of them.
fn check_room(pod: &Pod, total: &Amounts, own: impl Fn(&Container) -> Amounts) -> Result<(), Refusal> {
    let spec = pod.spec();
    let (mut lasting, mut shares) = (Amounts::new(), false);
    let none_left = |taken: &Amounts| without(total, taken).into_iter().find(|(_, left)| *left == 0);
    for container in &spec.init_containers {
        let wanted = own(container);
        match (is_sidecar(container), wanted.is_empty()) {
            (true, true) => shares = true,
            (true, false) => add(&mut lasting, &wanted),
            (false, true) => {
                if let Some((name, _)) = none_left(&lasting) {
                    let what = if name == CPUS { "cpus" } else { &name };
                    return Err(Refusal::NothingToShare(format!(
                        "pod rejected, pod has shared init containers but no {what} available for them"
                    )));
                }
            }
            (false, false) => {
                for (name, left) in without(total, &lasting) {
                    let asked = wanted.get(&name).copied().unwrap_or(0);
                    if asked > left {
                        let what = if name == CPUS { format!("{asked} cpus") } else { format!("{asked} of {name}") };
                        return Err(Refusal::NothingToShare(format!(
                            "pod rejected, largest exclusive init container requests {what}, but only {left} available"
                        )));
                    }
                }
            }
        }
    }
    for container in &spec.containers {
        let wanted = own(container);
        shares |= wanted.is_empty();
        add(&mut lasting, &wanted);
    }
    match none_left(&lasting).filter(|_| shares) {
        Some((name, _)) => {
            let what = if name == CPUS { "cpus" } else { "memory" };
            Err(Refusal::NothingToShare(format!(
                "pod rejected, sum of exclusive container {name} requests equals pod budget, leaving no {what} for shared \
                 containers"
            )))
        }
        None => Ok(()),
    }
}

fn share_cpus(
    policy: &StaticCpus,
    wanted: Wanted,
    pod: &Pod,
    all: &CpuSet,
) -> Result<BTreeMap<String, CpuSet>, String> {
    let spec = pod.spec();
    let (mut parts, mut pool) = (BTreeMap::new(), all.clone());
    for container in &spec.init_containers {
        let count = wanted.cpus(pod, container);
        let sidecar = is_sidecar(container);
        if count == 0 && sidecar {
            continue;
        }
        let part = if count > 0 { policy.take(&pool, count)? } else { pool.clone() };
        if sidecar {
            pool = pool.difference(&part);
        }
        parts.insert(container.name.clone(), part);
    }
    for container in &spec.containers {
        let count = wanted.cpus(pod, container);
        if count > 0 {
            let part = policy.take(&pool, count)?;
            pool = pool.difference(&part);
            parts.insert(container.name.clone(), part);
        }
    }
    for container in spec.init_containers.iter().chain(&spec.containers) {
        parts.entry(container.name.clone()).or_insert_with(|| pool.clone());
    }
    Ok(parts)
}

fn share_memory(pod: &Pod, total: &Amounts, own: impl Fn(&Container) -> Amounts) -> BTreeMap<String, Amounts> {
    let spec = pod.spec();
    let (mut parts, mut taken) = (BTreeMap::new(), Amounts::new());
    for container in &spec.init_containers {
        let wanted = own(container);
        match (is_sidecar(container), wanted.is_empty()) {
            (true, true) => {}
            (false, true) => drop(parts.insert(container.name.clone(), without(total, &taken))),
            (sidecar, false) => {
                if sidecar {
                    add(&mut taken, &wanted);
                }
                parts.insert(container.name.clone(), wanted);
            }
        }
    }
    for container in &spec.containers {
        let wanted = own(container);
        if !wanted.is_empty() {
            add(&mut taken, &wanted);
            parts.insert(container.name.clone(), wanted);
        }
    }
    let pool = without(total, &taken);
    for container in spec.init_containers.iter().chain(&spec.containers) {
        parts.entry(container.name.clone()).or_insert_with(|| pool.clone());
    }
    parts
}

/// The part of a pod's memory of one kind that one container has.
fn part_of(block: &Block, amounts: &Amounts) -> Option<Block> {
    let size = *amounts.get(&block.r#type).filter(|size| **size > 0)?;
    Some(Block { size, ..block.clone() })
}
