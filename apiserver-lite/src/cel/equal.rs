//! Equality of values, under a budget: values share their parts, and walked as trees they may be larger than anything.

use std::collections::{HashMap, HashSet};

use super::eval::{Budget, Failure};
use super::ordered::{self, Key};
use super::types::Order;
use super::value::Value;

/// Parts of values that are compared for the price of a step.
pub const PARTS: usize = 10;
/// Bytes, of a text within a value too, that count as one part.
const BYTES: usize = 100;

/// Whether two values are equal; numbers of different types are when they are the same number. `paid` are the parts that
/// whoever asks has paid for already.
///
/// # Errors
/// When that takes more steps than are left.
pub fn equal(a: &Value<'_>, b: &Value<'_>, paid: usize, budget: &mut Budget) -> Result<bool, Failure> {
    Walk { free: paid, due: 0, budget }.same(a, b)
}

/// Where a value first is in a list; as [`equal`].
///
/// # Errors
/// As [`equal`].
pub fn position<'a>(
    items: impl IntoIterator<Item = Value<'a>>,
    one: &Value<'_>,
    paid: usize,
    budget: &mut Budget,
) -> Result<Option<usize>, Failure> {
    let mut walk = Walk { free: paid, due: 0, budget };
    for (at, item) in items.into_iter().enumerate() {
        if walk.same(&item, one)? {
            return Ok(Some(at));
        }
    }
    Ok(None)
}

struct Walk<'b> {
    /// Parts that are paid for.
    free: usize,
    /// Parts that are not, fewer than a step is worth.
    due: usize,
    budget: &'b mut Budget,
}

impl Walk<'_> {
    fn look(&mut self, parts: usize) -> Result<(), Failure> {
        let over = parts.saturating_sub(self.free);
        self.free = self.free.saturating_sub(parts);
        self.due = self.due.saturating_add(over);
        let steps = self.due / PARTS;
        self.due %= PARTS;
        if steps > 0 { self.budget.spend(steps) } else { Ok(()) }
    }

    fn same(&mut self, a: &Value<'_>, b: &Value<'_>) -> Result<bool, Failure> {
        // Bytes may have been decoded to be compared.
        self.look(1 + a.decoded().max(b.decoded()) / BYTES)?;
        match (a, b) {
            (Value::Optional(Some(a)), Value::Optional(Some(b))) => self.same(a, b),
            (Value::Made(a, _), Value::Made(b, _)) if a != b => Ok(false),
            (a, b) if a.is_list() && b.is_list() => self.lists(a, b),
            (a, b) if a.is_map() && b.is_map() => self.maps(a, b),
            (Value::Text(a), Value::Text(b)) if a.len() == b.len() => {
                self.look(a.len() / BYTES)?;
                Ok(**a == **b)
            }
            (a, b) => Ok(a.is_same(b)),
        }
    }

    fn lists(&mut self, a: &Value<'_>, b: &Value<'_>) -> Result<bool, Failure> {
        if a.count() != b.count() {
            return Ok(false);
        }
        match ordered::order(a) {
            Order::Said => {}
            Order::Set => return self.sets(a, b),
            Order::Keys(names) => return self.keyed(a, b, names),
        }
        for (a, b) in a.walk().into_iter().flatten().zip(b.walk().into_iter().flatten()) {
            if !self.same(&a, &b)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Lists of the same length of which the first is a set.
    fn sets(&mut self, a: &Value<'_>, b: &Value<'_>) -> Result<bool, Failure> {
        let (mut known, mut others) = (HashSet::new(), Vec::new());
        for item in a.walk().into_iter().flatten() {
            self.look(1)?;
            if let Some(key) = Key::of(&item) {
                known.insert(key);
            } else {
                others.push(item);
            }
        }
        for item in b.walk().into_iter().flatten() {
            self.look(1)?;
            let mut found = Key::of(&item).is_some_and(|key| known.contains(&key));
            for other in &others {
                found = found || self.same(other, &item)?;
            }
            if !found {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Lists of the same length of which the first has keys.
    fn keyed(&mut self, a: &Value<'_>, b: &Value<'_>, names: &[Box<str>]) -> Result<bool, Failure> {
        let mut known = HashMap::new();
        for item in a.walk().into_iter().flatten() {
            self.look(names.len())?;
            if let Some(keys) = Key::all(&item, names) {
                known.insert(keys, item);
            }
        }
        for item in b.walk().into_iter().flatten() {
            self.look(names.len())?;
            let Some(same) = Key::all(&item, names).and_then(|keys| known.get(&keys)) else { return Ok(false) };
            if !self.same(same, &item)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn maps(&mut self, a: &Value<'_>, b: &Value<'_>) -> Result<bool, Failure> {
        if a.count() != b.count() {
            return Ok(false);
        }
        for key in a.walk().into_iter().flatten() {
            self.look(a.effort() + b.effort())?;
            let same = match (a.entry(&key), b.entry(&key)) {
                (Some(a), Some(b)) => self.same(&a, &b)?,
                // Fields that the schema does not know are not compared.
                (None, None) => true,
                _ => false,
            };
            if !same {
                return Ok(false);
            }
        }
        Ok(true)
    }
}
