//! Counters that a pool shares out among its devices: a device of which parts can be had shows the whole and its parts,
//! and each draws on the same memory and cores (`sharedCounters` of a slice, `consumesCounters` of a device).
//!
//! What is left is what the pool has, less what devices draw that somebody has, whichever node reaches them. Whoever
//! administers a device takes nothing.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use proto::quantity::Quantity;
use serde_json::Value;

use super::devices::DeviceId;
use super::shares::Used;
use crate::tree::{list, text};

/// Driver and pool.
type Pool = (Box<str>, Box<str>);
/// Counter set and counter.
type Name = (Box<str>, Box<str>);

/// The pool that a device is in.
fn pool(device: &DeviceId) -> Pool {
    (device.driver.clone(), device.pool.clone())
}

/// What complete pools share out, and which of their devices draw on it.
#[derive(Default)]
pub struct Counters {
    pools: HashMap<Pool, Shared>,
}

#[derive(Default)]
struct Shared {
    whole: BTreeMap<Name, Quantity>,
    /// What each device draws.
    drawn: BTreeMap<Box<str>, Vec<(Name, Quantity)>>,
}

fn amounts<'a>(set: &'a Value, name: &'a str) -> impl Iterator<Item = (Name, Quantity)> + 'a {
    let set_name = text(set, name);
    let counters = set["counters"].as_object().into_iter().flatten();
    // An amount that is none was refused when the slice was written; one that came by anyway counts as nothing.
    counters.filter_map(move |(counter, amount)| {
        Some(((set_name.into(), counter.as_str().into()), amount["value"].as_str()?.parse().ok()?))
    })
}

/// What a device draws on.
fn draws(device: &Value) -> Vec<(Name, Quantity)> {
    list(device, "consumesCounters").flat_map(|set| amounts(set, "counterSet")).collect()
}

impl Counters {
    /// Adds the slices of one pool; false when they contradict each other: a set twice, or a counter that is none.
    pub fn add(&mut self, slices: &[Arc<Value>]) -> bool {
        let mut shared = Shared::default();
        let mut sets = BTreeSet::new();
        for set in slices.iter().flat_map(|slice| list(&slice["spec"], "sharedCounters")) {
            if !sets.insert(text(set, "name")) {
                return false;
            }
            shared.whole.extend(amounts(set, "name"));
        }
        for device in slices.iter().flat_map(|slice| list(&slice["spec"], "devices")) {
            let drawn = draws(device);
            if !drawn.iter().all(|(name, _)| shared.whole.contains_key(name)) {
                return false;
            }
            if !drawn.is_empty() {
                shared.drawn.insert(text(device, "name").into(), drawn);
            }
        }
        if let Some(slice) = slices.first().filter(|_| !shared.drawn.is_empty()) {
            let spec = &slice["spec"];
            self.pools.insert((text(spec, "driver").into(), text(&spec["pool"], "name").into()), shared);
        }
        true
    }

    /// What is left beside the devices that somebody has.
    pub fn left<'a>(&'a self, used: &'a Used) -> Left<'a> {
        Left { of: self, used, amounts: HashMap::new() }
    }
}

impl Shared {
    /// What is left of this pool.
    fn beside(&self, (driver, name): &Pool, used: &Used) -> BTreeMap<Name, Quantity> {
        let mut left = self.whole.clone();
        for drawn in used.in_pool(driver, name).filter_map(|device| self.drawn.get(&device.device)) {
            change(&mut left, drawn, Quantity::subtract);
        }
        left
    }
}

fn change(amounts: &mut BTreeMap<Name, Quantity>, drawn: &[(Name, Quantity)], by: impl Fn(&mut Quantity, Quantity)) {
    for (name, drawn) in drawn {
        if let Some(amount) = amounts.get_mut(name) {
            by(amount, *drawn);
        }
    }
}

/// What is left of the counters during a search; of a pool nobody asked for nothing is reckoned.
pub struct Left<'a> {
    of: &'a Counters,
    used: &'a Used,
    amounts: HashMap<Pool, BTreeMap<Name, Quantity>>,
}

impl Left<'_> {
    /// Draws what a device draws; false, and nothing drawn, where too little is left.
    pub fn take(&mut self, device: &DeviceId) -> bool {
        let (of, used) = (self.of, self.used);
        if of.pools.is_empty() {
            return true;
        }
        let pool = pool(device);
        let Some(shared) = of.pools.get(&pool) else { return true };
        let Some(drawn) = shared.drawn.get(&device.device) else { return true };
        let amounts = self.amounts.entry(pool).or_insert_with_key(|pool| shared.beside(pool, used));
        if !drawn.iter().all(|(name, drawn)| amounts.get(name).is_some_and(|left| drawn <= left)) {
            return false;
        }
        change(amounts, drawn, Quantity::subtract);
        true
    }

    /// Gives back what a device drew.
    pub fn put_back(&mut self, device: &DeviceId) {
        let pool = pool(device);
        let drawn = self.of.pools.get(&pool).and_then(|shared| shared.drawn.get(&device.device));
        if let (Some(drawn), Some(amounts)) = (drawn, self.amounts.get_mut(&pool)) {
            change(amounts, drawn, Quantity::add);
        }
    }
}
