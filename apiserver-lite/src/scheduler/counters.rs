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
    pub fn left(&self, used: &BTreeSet<DeviceId>) -> Left<'_> {
        let mut left = Left { of: self, amounts: HashMap::new() };
        for (pool, shared) in &self.pools {
            left.amounts.insert(pool.clone(), shared.whole.clone());
        }
        for device in used.iter().filter(|_| !self.pools.is_empty()) {
            left.change(&pool(device), &device.device, |amount, drawn| amount.subtract(drawn));
        }
        left
    }
}

/// What is left of the counters during a search.
pub struct Left<'a> {
    of: &'a Counters,
    amounts: HashMap<Pool, BTreeMap<Name, Quantity>>,
}

impl Left<'_> {
    /// Draws what a device draws; false, and nothing drawn, where too little is left.
    pub fn take(&mut self, device: &DeviceId) -> bool {
        let of = self.of;
        if of.pools.is_empty() {
            return true;
        }
        let pool = pool(device);
        let Some(drawn) = of.pools.get(&pool).and_then(|shared| shared.drawn.get(&device.device)) else { return true };
        let Some(amounts) = self.amounts.get(&pool) else { return true };
        if !drawn.iter().all(|(name, drawn)| amounts.get(name).is_some_and(|left| drawn <= left)) {
            return false;
        }
        self.change(&pool, &device.device, |amount, drawn| amount.subtract(drawn));
        true
    }

    /// Gives back what a device drew.
    pub fn put_back(&mut self, device: &DeviceId) {
        if !self.of.pools.is_empty() {
            self.change(&pool(device), &device.device, |amount, drawn| amount.add(drawn));
        }
    }

    fn change(&mut self, pool: &Pool, device: &str, change: impl Fn(&mut Quantity, Quantity)) {
        let Some(drawn) = self.of.pools.get(pool).and_then(|shared| shared.drawn.get(device)) else { return };
        let Some(amounts) = self.amounts.get_mut(pool) else { return };
        for (name, drawn) in drawn {
            if let Some(amount) = amounts.get_mut(name) {
                change(amount, *drawn);
            }
        }
    }
}
