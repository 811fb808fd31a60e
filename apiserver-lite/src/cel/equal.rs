//! Equality of values, under a budget: values share their parts, and walked as trees they may be larger than anything.

use super::eval::{Budget, Failure};
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
        for (a, b) in a.walk().into_iter().flatten().zip(b.walk().into_iter().flatten()) {
            if !self.same(&a, &b)? {
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
