//! Lists whose items are told apart by something else than their places: those of type `set` and `map` of a schema.
//!
//! Follows `UnstructuredToVal` of `apiserver/pkg/cel/common`: such lists are equal in any order, and put together they
//! keep the items of the first and take in what is new of the second. What is made of them is a list like any other.
//! Limit: only lists that are members of objects, or what a rule is about itself, are known to be such.

use std::collections::{HashMap, HashSet};

use super::equal;
use super::eval::{Budget, Failure};
use super::types::Order;
use super::value::Value;

/// A value without parts, to be found again.
#[derive(Debug, PartialEq, Eq, Hash)]
pub enum Key {
    Missing,
    Bool(bool),
    Int(i64),
    Double(u64),
    Text(String),
}

impl Key {
    /// None for what has parts.
    pub fn of(value: &Value<'_>) -> Option<Self> {
        Some(match value {
            Value::Bool(truth) => Key::Bool(*truth),
            Value::Int(number) => Key::Int(*number),
            Value::Double(number) => Key::Double(number.to_bits()),
            Value::Text(text) => Key::Text(text.to_string()),
            _ => return None,
        })
    }

    /// The keys of an item of a list of type `map`; None for what is no such item.
    pub fn all(item: &Value<'_>, names: &[Box<str>]) -> Option<Vec<Self>> {
        let key = |name: &str| match item.entry(&Value::text(name)) {
            None | Some(Value::Null) => Some(Key::Missing),
            Some(value) => Key::of(&value),
        };
        if item.is_map() { names.iter().map(|name| key(name)).collect() } else { None }
    }
}

/// How the items of a list are told apart.
pub fn order<'a>(list: &Value<'a>) -> &'a Order {
    match list {
        Value::Items(_, _, order) => order,
        _ => &super::types::IN_ORDER,
    }
}

/// Two lists in one, as the order of the first has it. Both are paid for.
///
/// # Errors
/// When the budget is used up.
pub fn joined<'a>(
    order: &Order,
    mut first: Vec<Value<'a>>,
    second: Vec<Value<'a>>,
    budget: &mut Budget,
) -> Result<Value<'a>, Failure> {
    match order {
        Order::Said => first.extend(second),
        Order::Set => {
            let mut known: HashSet<Key> = first.iter().filter_map(Key::of).collect();
            for item in second {
                let new = match Key::of(&item) {
                    Some(key) => known.insert(key),
                    None => equal::position(first.iter().cloned(), &item, 0, budget)?.is_none(),
                };
                if new {
                    first.push(item);
                }
            }
        }
        Order::Keys(names) => {
            let places = first.iter().enumerate().filter_map(|(at, item)| Some((Key::all(item, names)?, at)));
            let places: HashMap<Vec<Key>, usize> = places.collect();
            for item in second {
                match Key::all(&item, names).and_then(|keys| places.get(&keys)) {
                    Some(at) => first[*at] = item,
                    None => first.push(item),
                }
            }
        }
    }
    Ok(Value::list(first))
}
