//! `service.kubernetes.io/topology-mode: Auto`: which zone each endpoint is for, so that zones get endpoints in proportion
//! to the CPU of their nodes and traffic can stay where it begins.
//!
//! In: nodes as they change, the endpoints of a service and what they are for by now. Out: a zone for each, or why there
//! is none. What is given out stays as long as no zone is overloaded by it, so that clients do not move about. Follows
//! `k8s.io/endpointslice/topologycache`, in whole numbers.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::Value;

use crate::controllers::Change;
use crate::controllers::pods::condition;
use crate::store::ObjectRef;
use crate::validate::quantity;

pub(super) const ZONE: &str = "topology.kubernetes.io/zone";
/// Nodes that serve others do not count.
const EXCLUDED: [&str; 2] = ["node-role.kubernetes.io/control-plane", "node-role.kubernetes.io/master"];

/// Thousandths of CPUs by zone; empty where they say nothing.
pub(super) type Shares = Arc<BTreeMap<Box<str>, i128>>;

/// Whether a service wants its endpoints to be given zones. The older annotation goes first.
pub(super) fn is_wanted(service: &ObjectRef, value: &Value) -> bool {
    let names = ["service.kubernetes.io/topology-aware-hints", "service.kubernetes.io/topology-mode"];
    let annotations = &value["metadata"]["annotations"];
    let said = names.iter().find_map(|name| annotations[*name].as_str());
    !service.keys.deleting && matches!(said, Some("Auto" | "auto"))
}

/// The nodes that count, and what they add up to.
#[derive(Debug, Default)]
pub(super) struct Nodes {
    /// Zone and CPU; None for a node that does not tell both.
    known: BTreeMap<Box<str>, Option<(Box<str>, i128)>>,
    pub shares: Shares,
}

impl Nodes {
    /// Takes note of a node; whether the shares are others now.
    pub fn observe(&mut self, change: &Change<'_>) -> bool {
        let node = change.object;
        let part = if change.deleted() { None } else { part(node) };
        let before = self.known.get(&node.key.name);
        if before == part.as_ref() {
            return false;
        }
        match part {
            Some(part) => drop(self.known.insert(node.key.name.clone(), part)),
            None => drop(self.known.remove(&node.key.name)),
        }
        let mut shares: BTreeMap<Box<str>, i128> = BTreeMap::new();
        for part in self.known.values() {
            let Some((zone, cpu)) = part else {
                shares.clear();
                break;
            };
            *shares.entry(zone.clone()).or_default() += cpu;
        }
        let is_other = *self.shares != shares;
        self.shares = Arc::new(shares);
        is_other
    }
}

/// What a node adds, if it counts.
fn part(node: &ObjectRef) -> Option<Option<(Box<str>, i128)>> {
    let value = node.without_owners();
    let is_ready = condition(&value, "Ready").is_some_and(|ready| ready["status"] == "True");
    if !is_ready || EXCLUDED.iter().any(|label| node.label(label).is_some()) {
        return None;
    }
    let zone = node.label(ZONE).filter(|zone| !zone.is_empty());
    let cpu = quantity(&value["status"]["allocatable"]["cpu"]).map(|cpu| i128::from(cpu.milli_value()));
    Some(zone.zip(cpu.filter(|cpu| *cpu > 0)).map(|(zone, cpu)| (zone.into(), cpu)))
}

/// How many endpoints a zone has to have. Amounts are in parts of which an endpoint has as many as there is CPU.
#[derive(Debug)]
struct Need {
    /// Fewer would overload each of them by more than a fifth.
    least: i128,
    wanted: i128,
}

/// The zone that each of the ready endpoints is for, in their order. They are told by what they are told apart by, and by
/// their zone; `before` is what those are for that have been given a zone already.
///
/// # Errors
/// Why no zones are given out, as an event says it.
pub(super) fn assign<K: Ord>(
    ready: &[(K, Option<&str>)],
    before: &BTreeMap<K, String>,
    shares: &Shares,
) -> Result<Vec<String>, String> {
    let (count, zones) = (ready.len(), shares.len());
    if zones < 2 {
        let why = "Insufficient Node information: allocatable CPU or zone not specified on one or more nodes";
        return Err(why.into());
    }
    if zones > count {
        return Err(format!("Insufficient number of endpoints ({count} endpoints, {zones} zones)"));
    }
    let all = i128::try_from(count).unwrap_or(i128::MAX);
    let (cpu, mut spare) = (shares.values().sum::<i128>(), all);
    let mut needs: BTreeMap<&str, Need> = BTreeMap::new();
    for (zone, share) in shares.iter() {
        let wanted = share * all;
        // Rounded up.
        let least = (wanted * 5 + cpu * 6 - 1) / (cpu * 6);
        spare -= least;
        needs.insert(zone, Need { least, wanted: wanted.max(least * cpu) });
    }
    if spare < 0 {
        return Err(format!(
            "Unable to allocate minimum required endpoints to each zone without exceeding overload threshold ({count} \
             endpoints, {zones} zones)"
        ));
    }
    let mut own: Vec<&str> = Vec::new();
    for (_, zone) in ready {
        let zone = zone.filter(|zone| !zone.is_empty());
        own.push(zone.ok_or("One or more endpoints do not have a zone specified")?);
    }
    let kept: Option<Vec<&str>> = ready.iter().map(|(id, _)| before.get(id).map(String::as_str)).collect();
    let kept = kept.filter(|kept| before.len() == count && is_balanced(kept, &needs, spare));
    let chosen = kept.unwrap_or_else(|| moved(own, &needs, cpu));
    Ok(chosen.into_iter().map(str::to_owned).collect())
}

fn counts<'a>(zones: &[&'a str]) -> BTreeMap<&'a str, i128> {
    let mut out = BTreeMap::new();
    zones.iter().for_each(|zone| *out.entry(*zone).or_default() += 1);
    out
}

/// Whether every zone has what it needs, and no other has any.
fn is_balanced(zones: &[&str], needs: &BTreeMap<&str, Need>, spare: i128) -> bool {
    let have = counts(zones);
    have.keys().all(|zone| needs.contains_key(zone))
        && needs.iter().all(|(zone, need)| {
            let have = have.get(zone).copied().unwrap_or(0);
            (need.least..=need.least + spare).contains(&have)
        })
}

/// Moves endpoints from the zones that have most too many to those that lack most, as long as that makes it better.
fn moved<'a>(mut zones: Vec<&'a str>, needs: &BTreeMap<&'a str, Need>, whole: i128) -> Vec<&'a str> {
    let have = counts(&zones);
    let mut over: BTreeMap<&str, i128> =
        needs.iter().map(|(zone, need)| (*zone, have.get(zone).copied().unwrap_or(0) * whole - need.wanted)).collect();
    let (mut giving, mut receiving): (BTreeMap<&str, i128>, Vec<&str>) = Default::default();
    loop {
        let most = over.iter().max_by_key(|(_, over)| **over).map(|(zone, over)| (*zone, *over));
        let least = over.iter().min_by_key(|(_, over)| **over).map(|(zone, over)| (*zone, -*over));
        let (Some((from, surplus)), Some((to, lack))) = (most, least) else { break };
        if surplus.max(lack) < whole || surplus.min(lack) * 2 < whole {
            break;
        }
        *giving.entry(from).or_default() += 1;
        *over.entry(from).or_default() -= whole;
        receiving.push(to);
        *over.entry(to).or_default() += whole;
    }
    receiving.sort_unstable();
    let mut receiving = receiving.into_iter();
    for zone in &mut zones {
        let Some(left) = giving.get_mut(*zone).filter(|left| **left > 0) else { continue };
        *left -= 1;
        if let Some(to) = receiving.next() {
            *zone = to;
        }
    }
    zones
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::store::{EventKind, Key};

    fn shares(zones: &[(&str, i128)]) -> Shares {
        Arc::new(zones.iter().map(|(zone, cpu)| ((*zone).into(), *cpu)).collect())
    }

    /// Endpoints by their zones, each with a letter of its own as its address.
    fn given(zones: &str, before: &str, shares: &Shares) -> Result<String, String> {
        let addresses: Vec<String> = ('A'..='Z').map(String::from).collect();
        let zones: Vec<String> = zones.chars().map(String::from).collect();
        let known = zones.iter().map(|zone| Some(&**zone).filter(|z| *z != "?"));
        let ready: Vec<(String, Option<&str>)> = addresses.iter().cloned().zip(known).collect();
        let before = addresses.iter().cloned().zip(before.chars().map(String::from)).collect();
        assign(&ready, &before, shares).map(|zones| zones.concat())
    }

    #[test]
    fn zones_get_endpoints_in_proportion_to_their_cpu() {
        let even = shares(&[("a", 4000), ("b", 4000)]);
        assert_eq!(given("aabb", "", &even).as_deref(), Ok("aabb"));
        assert_eq!(given("aaaa", "", &even).as_deref(), Ok("bbaa"));
        assert_eq!(given("aaaaaab", "", &even).as_deref(), Ok("bbaaaab"));
        let skewed = shares(&[("a", 2000), ("b", 6000)]);
        assert_eq!(given("aabbaabb", "", &skewed).as_deref(), Ok("bbbbaabb"));
        assert_eq!(given("zzab", "", &even).as_deref(), Ok("zzab"), "no node of that zone counts");
    }

    #[test]
    fn what_was_given_stays_until_a_zone_is_overloaded_or_endpoints_are_others() {
        let even = shares(&[("a", 4000), ("b", 4000)]);
        assert_eq!(given("aaaa", "abab", &even).as_deref(), Ok("abab"));
        assert_eq!(given("aaaa", "aaab", &even).as_deref(), Ok("bbaa"), "one has three times as many");
        assert_eq!(given("aaaa", "aba", &even).as_deref(), Ok("bbaa"), "one is new");
        assert_eq!(given("aaaa", "ababb", &even).as_deref(), Ok("bbaa"), "one is gone");
        assert_eq!(given("aaaa", "abac", &even).as_deref(), Ok("bbaa"), "that zone is gone");
    }

    #[test]
    fn no_zones_are_given_where_one_would_be_overloaded_or_not_enough_is_known() {
        let even = shares(&[("a", 4000), ("b", 4000)]);
        let why = |given: Result<String, String>| given.expect_err("none");
        assert!(why(given("a", "", &even)).starts_with("Insufficient number of endpoints (1 endpoints, 2 zones)"));
        assert!(why(given("ab", "", &shares(&[("a", 1)]))).starts_with("Insufficient Node information: "));
        assert!(why(given("abb?", "", &even)).starts_with("One or more endpoints do not have a zone"));
        let skewed = shares(&[("a", 1), ("b", 99)]);
        assert!(why(given("ab", "", &skewed)).starts_with("Unable to allocate minimum required endpoints"));
    }

    #[test]
    fn nodes_count_that_are_ready_and_do_not_serve_others() {
        let mut nodes = Nodes::default();
        let node = |name: &str, labels: Value, cpu: Value, ready: &str| {
            let resource = crate::resource::Resources::built_in().lookup("", "v1", "nodes").expect("it is served");
            let status = json!({"allocatable": {"cpu": cpu}, "conditions": [{"type": "Ready", "status": ready}]});
            let mut value = json!({"metadata": {"name": name, "labels": labels}, "status": status});
            crate::store::encode(&resource, &mut value, Vec::new(), None).unsaved(Key::new("", name), "")
        };
        let mut told = |kind: EventKind, object: &ObjectRef| {
            let is_other = nodes.observe(&Change { resource: 3, kind, object, previous: None });
            (is_other, nodes.shares.values().copied().collect::<Vec<_>>())
        };
        let zone = |zone: &str| json!({"topology.kubernetes.io/zone": zone});
        assert_eq!(told(EventKind::Added, &node("a", zone("a"), json!("2"), "True")), (true, vec![2000]));
        assert_eq!(told(EventKind::Added, &node("b", zone("b"), json!("4"), "True")), (true, vec![2000, 4000]));
        assert!(!told(EventKind::Modified, &node("b", zone("b"), json!("4"), "True")).0);
        let master = node("c", json!({"node-role.kubernetes.io/control-plane": ""}), json!("4"), "True");
        assert!(!told(EventKind::Added, &master).0);
        assert!(!told(EventKind::Added, &node("d", json!({}), Value::Null, "False")).0);
        let unknown = node("d", json!({}), json!("1"), "True");
        assert_eq!(told(EventKind::Modified, &unknown), (true, vec![]));
        assert_eq!(told(EventKind::Deleted, &unknown), (true, vec![2000, 4000]));
        assert_eq!(told(EventKind::Modified, &node("b", zone("b"), json!("4"), "Unknown")), (true, vec![2000]));
    }
}
