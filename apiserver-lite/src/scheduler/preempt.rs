//! Making room: which less important pods have to go so that a pod fits on a node, with as little harm as possible.

use std::borrow::Cow;
use std::cmp::Reverse;
use std::sync::Arc;

use super::claims::Claims;
use super::cluster::Cluster;
use super::filter::{self, Refusal};
use super::node::NodeInfo;
use super::pod::PodInfo;
use super::topology::Topology;
use super::volumes::Volumes;
use crate::controllers::pods::condition;
use crate::selectors::LabelSelector;
use crate::store::Store;

/// Why pods go that make room, as their condition says.
pub const PREEMPTION: &str = "PreemptionByScheduler";

/// What making room came to.
pub enum Preemption {
    /// These pods on this node go.
    Victims { node: Box<str>, pods: Vec<Arc<PodInfo>> },
    /// Nobody goes; the explanation in upstream's words.
    None(String),
}

/// Who needs room, with what it claims.
pub struct Needs<'a> {
    pub pod: &'a PodInfo,
    pub volumes: &'a Volumes,
    pub claims: &'a Claims,
}

struct Candidate {
    node: Box<str>,
    victims: Vec<Arc<PodInfo>>,
    /// Budgets that would be overdrawn.
    violations: usize,
}

struct Budget {
    namespace: Box<str>,
    selector: LabelSelector,
    allowed: i64,
}

/// Looks for room on the nodes that refused the pod.
pub fn preempt(
    store: &Store,
    cluster: &Cluster,
    needs: &Needs<'_>,
    refused: &[(Box<str>, Refusal)],
    nominated: Option<&str>,
    promised: &dyn Fn(&NodeInfo) -> Vec<Arc<PodInfo>>,
) -> Preemption {
    if needs.pod.never_preempts {
        return Preemption::None("not eligible due to preemptionPolicy=Never.".into());
    }
    if nominated.is_some_and(|name| is_awaited(store, cluster, needs.pod, refused, name)) {
        return Preemption::None("not eligible due to a terminating pod on the nominated node.".into());
    }
    let budgets = budgets(store);
    let (mut candidates, mut reasons) = (Vec::new(), Vec::<Cow<'static, str>>::new());
    for (name, refusal) in refused {
        let Some(node) = cluster.node(name).filter(|_| refusal.resolvable) else {
            reasons.push("Preemption is not helpful for scheduling".into());
            continue;
        };
        match victims(store, cluster, needs, (node, promised(node)), &budgets) {
            Ok(candidate) => candidates.push(candidate),
            Err(why) => reasons.extend(why),
        }
    }
    match candidates.into_iter().min_by_key(harm) {
        Some(best) => Preemption::Victims { node: best.node, pods: best.victims },
        None => Preemption::None(super::unavailable(refused.len(), reasons.into_iter())),
    }
}

/// Whether room for the pod is about to come on the node that it waits for.
fn is_awaited(
    store: &Store,
    cluster: &Cluster,
    pod: &PodInfo,
    refused: &[(Box<str>, Refusal)],
    nominated: &str,
) -> bool {
    // One that does not take the pod however many go is waited for in vain, as is one that is gone.
    if refused.iter().any(|(name, refusal)| **name == *nominated && !refusal.resolvable) {
        return false;
    }
    let node = cluster.node(nominated).filter(|node| node.object.is_some());
    node.is_some_and(|node| node.pods.values().any(|p| p.priority < pod.priority && is_preempted(store, p)))
}

/// Whether a pod goes because it makes room. What is known of it here may be from before it was told so.
fn is_preempted(store: &Store, pod: &PodInfo) -> bool {
    let key = &pod.object.key;
    let now = store.get(&"pods".into(), &key.namespace, &key.name);
    now.filter(|now| now.keys.uid == pod.object.keys.uid && now.keys.deleting).is_some_and(|now| {
        condition(&now.without_owners(), "DisruptionTarget")
            .is_some_and(|c| c["status"] == "True" && c["reason"] == PREEMPTION)
    })
}

/// What is to be kept small, most important first.
fn harm(candidate: &Candidate) -> (usize, i64, i64, usize, Reverse<i64>) {
    let highest = candidate.victims.iter().map(|v| v.priority).max().unwrap_or(i64::MIN);
    let sum = candidate.victims.iter().map(|v| v.priority.saturating_add(1 << 31)).fold(0, i64::saturating_add);
    let of_highest = candidate.victims.iter().filter(|v| v.priority == highest);
    let started = of_highest.map(|v| v.start_time).min().unwrap_or(0);
    (candidate.violations, highest, sum, candidate.victims.len(), Reverse(started))
}

/// The pods that have to leave one node, as few as possible; those that it is promised to get what they need all the same.
fn victims(
    store: &Store,
    cluster: &Cluster,
    &Needs { pod, volumes, claims }: &Needs<'_>,
    (node, promised): (&NodeInfo, Vec<Arc<PodInfo>>),
    budgets: &[Budget],
) -> Result<Candidate, Vec<Cow<'static, str>>> {
    let mut lower: Vec<Arc<PodInfo>> = node.pods.values().filter(|p| p.priority < pod.priority).cloned().collect();
    if lower.is_empty() {
        return Err(vec!["No preemption victims found for incoming pod".into()]);
    }
    // The most important and longest running are given back first.
    lower.sort_by_key(|p| (Reverse(p.priority), p.start_time));
    let mut trial = node.clone();
    promised.into_iter().for_each(|expected| trial.add(expected));
    let mut gone: Vec<&str> = Vec::new();
    for victim in &lower {
        trial.remove(&victim.object.keys.uid);
        gone.push(&victim.object.keys.uid);
    }
    if let Some(refusal) = filter::check(pod, &trial, &Topology::count(store, cluster, pod, &gone), volumes) {
        return Err(refusal.reasons);
    }
    // Who goes leaves its devices to its claims: they are there now or not at all.
    if let Err(reason) = claims.find(node) {
        return Err(vec![reason.into()]);
    }
    let (violating, fine) = split(&lower, budgets);
    let mut violations = 0;
    let mut chosen = Vec::new();
    for (victim, violates) in violating.iter().map(|v| (v, true)).chain(fine.iter().map(|v| (v, false))) {
        trial.add((*victim).clone());
        gone.retain(|uid| **uid != *victim.object.keys.uid);
        let topology = Topology::count(store, cluster, pod, &gone);
        if filter::check(pod, &trial, &topology, volumes).is_some() {
            trial.remove(&victim.object.keys.uid);
            gone.push(&victim.object.keys.uid);
            violations += usize::from(violates);
            chosen.push((*victim).clone());
        }
    }
    Ok(Candidate { node: node.name().into(), victims: chosen, violations })
}

fn budgets(store: &Store) -> Vec<Budget> {
    let snapshot = store.snapshot(&"poddisruptionbudgets.policy".into());
    let budgets = snapshot.range(None, None).map(|object| {
        let value = object.value();
        Budget {
            namespace: object.key.namespace.clone(),
            selector: LabelSelector::parse(&value["spec"]["selector"]),
            allowed: value["status"]["disruptionsAllowed"].as_i64().unwrap_or(0),
        }
    });
    budgets.collect()
}

/// Pods whose end would overdraw a budget, and the others.
fn split<'a>(pods: &'a [Arc<PodInfo>], budgets: &[Budget]) -> (Vec<&'a Arc<PodInfo>>, Vec<&'a Arc<PodInfo>>) {
    let mut left: Vec<i64> = budgets.iter().map(|b| b.allowed).collect();
    pods.iter().partition(|pod| {
        let mut violates = false;
        for (budget, left) in budgets.iter().zip(&mut left) {
            let object = &pod.object;
            if budget.namespace == object.key.namespace && budget.selector.matches(&object.keys.labels) {
                *left -= 1;
                violates |= *left < 0;
            }
        }
        violates
    })
}
