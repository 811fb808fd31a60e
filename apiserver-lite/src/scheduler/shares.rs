//! Devices that serve several claims at once (`allowMultipleAllocations`): every claim has a share, and takes of each of the
//! device's capacities what it asks for, in amounts that the capacity's policy allows.
//!
//! Follows the scheduler's consumable capacity: what nobody asks for is taken in the usual amount, or wholly where there is
//! none; what is asked for is rounded up to the next amount that can be had.

use std::collections::{BTreeMap, BTreeSet};

use proto::quantity::{Format, Quantity};
use serde_json::Value;

use super::devices::{DeviceId, Features};
use crate::tree::list;
use crate::validate::quantity;

/// Amounts by the name of the capacity.
pub type Amounts = BTreeMap<Box<str>, Quantity>;

/// Amounts of an object of quantities; those that are none count as nothing.
pub fn amounts(object: &Value) -> Amounts {
    let entries = object.as_object().into_iter().flatten();
    entries.filter_map(|(name, amount)| Some((name.as_str().into(), quantity(amount)?))).collect()
}

pub fn add(to: &mut Amounts, more: &Amounts) {
    more.iter().for_each(|(name, amount)| to.entry(name.clone()).or_insert(Quantity::ZERO).add(*amount));
}

pub fn subtract(from: &mut Amounts, less: &Amounts) {
    for (name, amount) in less {
        if let Some(have) = from.get_mut(name) {
            have.subtract(*amount);
        }
    }
}

/// What claims have by now.
#[derive(Debug, Default)]
pub struct Used {
    /// Devices that a claim has for itself.
    whole: BTreeSet<DeviceId>,
    /// Devices of which claims have shares, and what those take.
    shared: BTreeMap<DeviceId, Amounts>,
}

impl Used {
    /// Counts what an allocation gives away. Who administers a device keeps it from nobody.
    pub fn add(&mut self, allocation: &Value, features: Features) {
        for result in list(&allocation["devices"], "results").filter(|r| r["adminAccess"] != true) {
            let device = DeviceId::of(result);
            if features.shares && result["shareID"].is_string() {
                add(self.shared.entry(device).or_default(), &amounts(&result["consumedCapacity"]));
            } else {
                self.whole.insert(device);
            }
        }
    }

    pub fn is_whole(&self, device: &DeviceId) -> bool {
        self.whole.contains(device)
    }

    /// What shares take of a device; none where nobody has one.
    pub fn of_shares(&self, device: &DeviceId) -> Option<&Amounts> {
        self.shared.get(device)
    }

    /// Devices of a pool that somebody has, wholly or in part.
    pub fn in_pool<'a>(&'a self, driver: &'a str, pool: &'a str) -> impl Iterator<Item = &'a DeviceId> {
        let first = DeviceId { driver: driver.into(), pool: pool.into(), device: "".into() };
        let inside = move |device: &&DeviceId| *device.driver == *driver && *device.pool == *pool;
        let whole = self.whole.range(first.clone()..).take_while(inside);
        let shared = self.shared.range(first..).map(|(device, _)| device).take_while(inside);
        // One that was given wholly before it was offered in shares draws once.
        whole.chain(shared.filter(|device| !self.whole.contains(*device)))
    }
}

/// What a request takes of a device beside what others take; none where the device does not have what is asked for, not in
/// such amounts, or not as much any more. `capacity` is the device's.
pub fn fitting(capacity: &Value, wanted: &Amounts, others: [Option<&Amounts>; 2]) -> Option<Amounts> {
    if !wanted.keys().all(|name| capacity.get(&**name).is_some()) {
        return None;
    }
    let mut out = Amounts::new();
    for (name, capacity) in capacity.as_object().into_iter().flatten() {
        let whole = quantity(&capacity["value"])?;
        let taken = amount(whole, &capacity["requestPolicy"], wanted.get(name.as_str()).copied())?;
        let mut sum = taken;
        others.iter().flatten().filter_map(|o| o.get(name.as_str())).for_each(|other| sum.add(*other));
        if sum > whole {
            return None;
        }
        out.insert(name.as_str().into(), taken);
    }
    Some(out)
}

/// The amount that a request gets; none where the policy has none for it.
fn amount(whole: Quantity, policy: &Value, wanted: Option<Quantity>) -> Option<Quantity> {
    let Some(wanted) = wanted else { return Some(quantity(&policy["default"]).unwrap_or(whole)) };
    let range = &policy["validRange"];
    if let Some(least) = quantity(&range["min"]) {
        let rounded = match quantity(&range["step"]) {
            _ if wanted < least => least,
            None => wanted,
            Some(step) => stepped(wanted.value(), least.value(), step.value())?,
        };
        return quantity(&range["max"]).is_none_or(|most| rounded <= most).then_some(rounded);
    }
    if policy["validValues"].is_array() {
        // They are in ascending order.
        return list(policy, "validValues").filter_map(quantity).find(|value| wanted <= *value);
    }
    Some(wanted)
}

/// `wanted` rounded up to whole steps above `least`.
fn stepped(wanted: i64, least: i64, step: i64) -> Option<Quantity> {
    if step <= 0 {
        return None;
    }
    let (wanted, least, step) = (i128::from(wanted), i128::from(least), i128::from(step));
    let above = wanted - least;
    let steps = above / step + i128::from(above % step != 0);
    Some(Quantity::from_integer(i64::try_from(least + steps * step).ok()?, Format::BinarySi))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn got(policy: Value, wanted: &str) -> Option<String> {
        let capacity = json!({"memory": {"value": "10Gi", "requestPolicy": policy}});
        let wanted = if wanted.is_empty() { Amounts::new() } else { amounts(&json!({ "memory": wanted })) };
        fitting(&capacity, &wanted, [None, None]).map(|all| all["memory"].to_string())
    }

    fn some(text: &str) -> Option<String> {
        Some(text.to_owned())
    }

    #[test]
    fn amounts_are_rounded_up_to_those_that_can_be_had() {
        assert_eq!(got(Value::Null, ""), some("10Gi"), "all of it");
        assert_eq!(got(Value::Null, "3Gi"), some("3Gi"));
        assert_eq!(got(Value::Null, "11Gi"), None);
        let range = json!({"default": "1Gi", "validRange": {"min": "1Gi", "max": "4Gi", "step": "2Gi"}});
        assert_eq!(got(range.clone(), ""), some("1Gi"));
        assert_eq!(got(range.clone(), "5Mi"), some("1Gi"));
        assert_eq!(got(range.clone(), "1025Mi"), some("3Gi"));
        assert_eq!(got(range.clone(), "3Gi"), some("3Gi"));
        assert_eq!(got(range, "3073Mi"), None, "the next would be more than the most");
        let open = json!({"default": "1Gi", "validRange": {"min": "1Gi"}});
        assert_eq!(got(open, "1500M"), some("1500M"));
        let values = json!({"default": "2Gi", "validValues": ["2Gi", "4Gi"]});
        assert_eq!(got(values.clone(), "1"), some("2Gi"));
        assert_eq!(got(values.clone(), "2049Mi"), some("4Gi"));
        assert_eq!(got(values, "5Gi"), None);
        let never = json!({"default": "1Gi", "validRange": {"min": "1Gi", "step": "0"}});
        assert_eq!(got(never, "2Gi"), None);
        let far = json!({"default": "1", "validRange": {"min": "0", "step": "9E"}});
        assert_eq!(got(far, "9.1E"), None, "more than can be counted");
    }

    #[test]
    fn what_others_take_is_not_left() {
        let capacity = json!({"memory": {"value": "4Gi"}, "cores": {"value": "2", "requestPolicy": {"default": "1"}}});
        let wanted = amounts(&json!({"memory": "2Gi"}));
        let first = fitting(&capacity, &wanted, [None, None]).expect("nobody has any");
        assert_eq!(first, amounts(&json!({"memory": "2Gi", "cores": "1"})));
        assert!(fitting(&capacity, &wanted, [Some(&first), None]).is_some());
        assert!(fitting(&capacity, &wanted, [Some(&first), Some(&first)]).is_none());
        assert!(fitting(&capacity, &amounts(&json!({"disk": "1"})), [None, None]).is_none(), "it has no disk");
    }
}
