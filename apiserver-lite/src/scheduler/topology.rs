//! What other pods mean for a pod: affinity, anti-affinity and spreading over places. Counted once per attempt, and only
//! for pods that ask for it or where others do.

use std::collections::{HashMap, HashSet};

use super::cluster::Cluster;
use super::filter::fits_affinity;
use super::node::NodeInfo;
use super::pod::{PodInfo, PodTerm, Spread};
use crate::store::{ObjectRef, Store};

/// A label of nodes with a value: one place.
type Place<'a> = (&'a str, &'a str);

#[derive(Debug, Default)]
pub struct Topology<'a> {
    /// Places where a pod lives that does not want this one near.
    refused: HashMap<Place<'a>, usize>,
    /// Places with pods that match every term of affinity.
    wanted: HashMap<Place<'a>, usize>,
    /// Places with pods that match a term of anti-affinity.
    avoided: HashMap<Place<'a>, usize>,
    /// Sums of preferences per place.
    preferred: HashMap<Place<'a>, i64>,
    /// Matching pods per place, for each spread constraint in order.
    spread: Vec<HashMap<&'a str, i64>>,
    /// The pod matches its own affinity, so that it can be the first.
    matches_itself: bool,
}

/// A label of each namespace, for terms that select namespaces.
pub fn namespace_of(store: &Store, pod: &ObjectRef) -> Option<ObjectRef> {
    store.get(&"namespaces".into(), "", &pod.key.namespace)
}

impl<'a> Topology<'a> {
    /// Looks at every pod of the cluster but those that `without` names; nothing is looked at where nobody cares.
    pub fn count(store: &Store, cluster: &'a Cluster, pod: &'a PodInfo, without: &[&str]) -> Self {
        let mut out = Topology { spread: vec![HashMap::new(); pod.spread.len()], ..Topology::default() };
        let own = !pod.affinity.is_empty() || !pod.anti_affinity.is_empty() || !pod.preferred_pods.is_empty();
        out.matches_itself = matches_all(store, &pod.affinity, &pod.object);
        for node in cluster.nodes() {
            if own || node.with_affinity > 0 {
                out.count_affinity(store, node, pod, own, without);
            }
        }
        for (constraint, counts) in pod.spread.iter().zip(&mut out.spread) {
            for node in cluster.nodes().filter(|n| takes_part(n, pod, constraint)) {
                let Some(value) = node.label(&constraint.topology_key) else { continue };
                *counts.entry(value).or_default() += matching(node, pod, constraint, without);
            }
        }
        out
    }

    fn count_affinity(&mut self, store: &Store, node: &'a NodeInfo, pod: &'a PodInfo, own: bool, without: &[&str]) {
        let labels_of = |pod: &ObjectRef| namespace_of(store, pod);
        for other in node.pods.values().filter(|p| !without.contains(&&*p.object.keys.uid)) {
            for term in &other.anti_affinity {
                if term.matches(&pod.object, || labels_of(&pod.object)) {
                    count(&mut self.refused, other_key(term, node));
                }
            }
            // Those that are there have preferences too; required affinity counts as a preference of weight one.
            let hard = other.affinity.iter().map(|term| (1, term));
            for (weight, term) in other.preferred_pods.iter().map(|(w, t)| (*w, t)).chain(hard) {
                if term.matches(&pod.object, || labels_of(&pod.object)) {
                    weigh(&mut self.preferred, other_key(term, node), weight);
                }
            }
            if !own {
                continue;
            }
            let other = &other.object;
            if !pod.affinity.is_empty() && matches_all(store, &pod.affinity, other) {
                for term in &pod.affinity {
                    count(&mut self.wanted, other_key(term, node));
                }
            }
            for term in &pod.anti_affinity {
                if term.matches(other, || labels_of(other)) {
                    count(&mut self.avoided, other_key(term, node));
                }
            }
            for (weight, term) in &pod.preferred_pods {
                if term.matches(other, || labels_of(other)) {
                    weigh(&mut self.preferred, other_key(term, node), *weight);
                }
            }
        }
    }

    /// Why the node will not do, and whether moving other pods away could help.
    pub fn refusal(&self, pod: &PodInfo, node: &NodeInfo) -> Option<(&'static str, bool)> {
        for (constraint, counts) in pod.spread.iter().zip(&self.spread).filter(|(c, _)| c.required) {
            let Some(value) = node.label(&constraint.topology_key) else {
                return Some(("node(s) didn't match pod topology spread constraints (missing required label)", false));
            };
            let fewest = counts.values().min().copied().unwrap_or(0);
            let enough = i64::try_from(counts.len()).is_ok_and(|n| n >= constraint.min_domains);
            let fewest = if enough { fewest } else { 0 };
            let itself = i64::from(constraint.selector.matches(&pod.object.keys.labels));
            if counts.get(value).copied().unwrap_or(0) + itself - fewest > constraint.max_skew {
                return Some(("node(s) didn't match pod topology spread constraints", true));
            }
        }
        let here = |counts: &HashMap<Place<'_>, usize>, term: &PodTerm| {
            node.label(&term.topology_key).is_some_and(|value| counts.contains_key(&(&*term.topology_key, value)))
        };
        let keys_there = pod.affinity.iter().all(|t| node.label(&t.topology_key).is_some());
        let together = keys_there && pod.affinity.iter().all(|t| here(&self.wanted, t));
        let first = keys_there && self.wanted.is_empty() && self.matches_itself;
        if !pod.affinity.is_empty() && !together && !first {
            return Some(("node(s) didn't match pod affinity rules", false));
        }
        if pod.anti_affinity.iter().any(|t| here(&self.avoided, t)) {
            return Some(("node(s) didn't match pod anti-affinity rules", true));
        }
        if self.refused.keys().any(|(key, value)| node.label(key) == Some(value)) {
            return Some(("node(s) didn't satisfy existing pods anti-affinity rules", true));
        }
        None
    }

    /// Sum of the preferences that the node's places have.
    pub fn preference(&self, node: &NodeInfo) -> i64 {
        self.preferred.iter().filter(|((key, value), _)| node.label(key) == Some(value)).map(|(_, w)| w).sum()
    }

    pub fn has_preferences(&self) -> bool {
        !self.preferred.is_empty()
    }

    /// How crowded the places of each node are by the soft constraints, `fitting` being the nodes that could take the pod;
    /// None for a node without one of the labels.
    pub fn crowding(&self, pod: &PodInfo, fitting: &[&NodeInfo]) -> Vec<Option<f64>> {
        let soft: Vec<_> = pod.spread.iter().zip(&self.spread).filter(|(c, _)| !c.required).collect();
        let has_all = |node: &NodeInfo| soft.iter().all(|(c, _)| node.label(&c.topology_key).is_some());
        // A constraint weighs by how many places there are to choose from: others than those of these nodes are no choice.
        let weight = |key: &str| {
            let complete = fitting.iter().filter(|node| has_all(node));
            let places: HashSet<&str> = complete.filter_map(|node| node.label(key)).collect();
            (places.len() as f64 + 2.0).ln()
        };
        let weights: Vec<f64> = soft.iter().map(|(c, _)| weight(&c.topology_key)).collect();
        let of = |node: &NodeInfo| -> Option<f64> {
            let mut sum: f64 = 0.0;
            for ((constraint, counts), weight) in soft.iter().zip(&weights) {
                let value = node.label(&constraint.topology_key)?;
                sum += counts.get(value).copied().unwrap_or(0) as f64 * weight + (constraint.max_skew - 1) as f64;
            }
            Some(sum.round())
        };
        fitting.iter().map(|node| of(node)).collect()
    }
}

/// Whether a pod that came to a node, or is another there than `before`, can let a pod fit that waits: it is one that the
/// other wants to be near to, or no longer one that it avoids, or counts otherwise where the other is spread.
pub fn may_help(store: &Store, waiting: &PodInfo, before: Option<&ObjectRef>, now: &ObjectRef) -> bool {
    let is_meant = |term: &PodTerm, pod: &ObjectRef| term.matches(pod, || namespace_of(store, pod));
    let was_meant = |term: &PodTerm| before.is_some_and(|before| is_meant(term, before));
    let counted = |spread: &Spread, pod: &ObjectRef| counts_for(waiting, spread, pod);
    waiting.affinity.iter().any(|term| is_meant(term, now) && !was_meant(term))
        || waiting.anti_affinity.iter().any(|term| was_meant(term) && !is_meant(term, now))
        || waiting.spread.iter().filter(|spread| spread.required).any(|spread| {
            let did = before.is_some_and(|before| counted(spread, before));
            did != counted(spread, now)
        })
}

fn other_key<'a>(term: &'a PodTerm, node: &'a NodeInfo) -> Option<Place<'a>> {
    Some((&term.topology_key, node.label(&term.topology_key)?))
}

fn count<'a>(counts: &mut HashMap<Place<'a>, usize>, place: Option<Place<'a>>) {
    if let Some(place) = place {
        *counts.entry(place).or_default() += 1;
    }
}

fn weigh<'a>(sums: &mut HashMap<Place<'a>, i64>, place: Option<Place<'a>>, weight: i64) {
    if let Some(place) = place {
        *sums.entry(place).or_default() += weight;
    }
}

fn matches_all(store: &Store, terms: &[PodTerm], pod: &ObjectRef) -> bool {
    terms.iter().all(|t| t.matches(pod, || namespace_of(store, pod)))
}

/// Whether a node's place counts for a constraint.
fn takes_part(node: &NodeInfo, pod: &PodInfo, constraint: &Spread) -> bool {
    let same_kind = pod.spread.iter().filter(|c| c.required == constraint.required);
    same_kind.into_iter().all(|c| node.label(&c.topology_key).is_some())
        && (!constraint.honor_affinity || fits_affinity(pod, node))
        && (!constraint.honor_taints || node.offer.taints.iter().filter(|t| t.is_hard()).all(|t| pod.tolerates(t)))
}

fn matching(node: &NodeInfo, pod: &PodInfo, constraint: &Spread, without: &[&str]) -> i64 {
    let others = node.pods.values().map(|p| &p.object);
    let others = others.filter(|o| counts_for(pod, constraint, o) && !without.contains(&&*o.keys.uid));
    i64::try_from(others.count()).unwrap_or(i64::MAX)
}

/// Whether a pod is one of those that another is spread among.
fn counts_for(pod: &PodInfo, constraint: &Spread, other: &ObjectRef) -> bool {
    other.key.namespace == pod.object.key.namespace
        && !other.keys.deleting
        && constraint.selector.matches(&other.keys.labels)
}
