//! The members of an object in the order of their names.

use std::collections::BTreeMap;

use crate::name::{is_same, order};
use crate::{Name, Value};

/// Members that lie in one table at most. What is put between others moves those behind it, and to look for a name takes
/// longer the more there are; what comes from outside may have very many.
const FEW: usize = 32;

pub(crate) type Pair = (Name, Value);

#[derive(Clone)]
pub(crate) enum Table {
    /// Sorted by name, at most [`FEW`].
    Few(Vec<Pair>),
    /// More; or fewer, once there were more.
    Many(BTreeMap<Name, Value>),
}

pub(crate) use Table::{Few, Many};

/// Where a name stands in a sorted table, or would stand.
fn place(few: &[Pair], name: &str) -> Result<usize, usize> {
    match few.last() {
        // Names mostly come in order.
        Some((last, _)) if order(last, name).is_lt() => Err(few.len()),
        None => Err(0),
        _ => few.binary_search_by(|(other, _)| order(other, name)),
    }
}

/// Where a name stands. Texts of another length are passed over without a look at them.
#[inline]
fn found(few: &[Pair], name: &str) -> Option<usize> {
    few.iter().position(|(other, _)| is_same(other, name))
}

impl Table {
    pub const fn new() -> Self {
        Few(Vec::new())
    }

    /// One with room for so many members, as far as they may lie in one table.
    pub fn with_capacity(capacity: usize) -> Self {
        Few(Vec::with_capacity(capacity.min(FEW)))
    }

    /// One of members in any order, as long as it has to be, and whether a name came twice; then the later one counts.
    pub fn of(members: impl Iterator<Item = Pair>) -> (Self, bool) {
        let (least, most) = members.size_hint();
        let mut twice = false;
        if most.is_none_or(|most| most > FEW) {
            let mut table = Table::with_capacity(least);
            members.for_each(|(name, value)| twice |= table.insert(name, value).is_some());
            return (table, twice);
        }
        let mut few: Vec<Pair> = members.collect();
        few.sort_by(|(a, _), (b, _)| {
            let order = order(a, b);
            twice |= order.is_eq();
            order
        });
        if twice {
            // Those of one name are still in the order in which they came.
            few.reverse();
            few.dedup_by(|(a, _), (b, _)| a == b);
            few.reverse();
        }
        (Few(few), twice)
    }

    pub fn len(&self) -> usize {
        match self {
            Few(few) => few.len(),
            Many(many) => many.len(),
        }
    }

    pub fn find(&self, name: &str) -> Option<&Value> {
        match self {
            Few(few) => found(few, name).map(|at| &few[at].1),
            Many(many) => many.get(name),
        }
    }

    pub fn find_mut(&mut self, name: &str) -> Option<&mut Value> {
        match self {
            Few(few) => found(few, name).map(|at| &mut few[at].1),
            Many(many) => many.get_mut(name),
        }
    }

    pub fn find_pair(&self, name: &str) -> Option<(&Name, &Value)> {
        match self {
            Few(few) => found(few, name).map(|at| (&few[at].0, &few[at].1)),
            Many(many) => many.get_key_value(name),
        }
    }

    pub fn insert(&mut self, name: Name, value: Value) -> Option<Value> {
        match self {
            Few(few) => match place(few, &name) {
                Ok(at) => return Some(std::mem::replace(&mut few[at].1, value)),
                Err(at) if few.len() < FEW => few.insert(at, (name, value)),
                Err(_) => {
                    let mut many = many(few);
                    many.insert(name, value);
                    *self = Many(many);
                }
            },
            Many(many) => return many.insert(name, value),
        }
        None
    }

    /// The member of a name, made where there is none.
    pub fn member(&mut self, name: Name, make: impl FnOnce() -> Value) -> &mut Value {
        if let Few(few) = self
            && few.len() == FEW
            && found(few, &name).is_none()
        {
            *self = Many(many(few));
        }
        match self {
            Few(few) => {
                let at = place(few, &name).unwrap_or_else(|at| {
                    few.insert(at, (name, make()));
                    at
                });
                &mut few[at].1
            }
            Many(many) => many.entry(name).or_insert_with(make),
        }
    }

    pub fn take_out(&mut self, name: &str) -> Option<Pair> {
        match self {
            Few(few) => found(few, name).map(|at| few.remove(at)),
            Many(many) => many.remove_entry(name),
        }
    }

    pub fn retain(&mut self, mut keep: impl FnMut(&Name, &mut Value) -> bool) {
        match self {
            Few(few) => few.retain_mut(|(name, value)| keep(name, value)),
            Many(many) => many.retain(keep),
        }
    }
}

fn many(few: &mut Vec<Pair>) -> BTreeMap<Name, Value> {
    std::mem::take(few).into_iter().collect()
}

impl Default for Table {
    fn default() -> Self {
        Table::new()
    }
}
