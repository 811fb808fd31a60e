//! An object: its members in the order of their names.

use std::collections::{BTreeMap, btree_map};
use std::fmt::{self, Debug, Formatter};
use std::hash::{Hash, Hasher};
use std::marker::PhantomData;
use std::ops::{Index, IndexMut};
use std::{slice, vec};

use crate::{Name, Value};

/// Members that lie in one table at most. What is put between others moves those behind it, and to look for a name takes
/// longer the more there are; what comes from outside may have very many.
const FEW: usize = 32;

/// An object. There are only those with texts for names ([`Name`] is one) and trees for values; the parameters are there
/// so that it is spelled as the other crate spells it.
pub struct Map<K, V>(Members, PhantomData<fn() -> (K, V)>);

#[derive(Clone)]
enum Members {
    /// Sorted by name, at most [`FEW`].
    Few(Vec<Pair>),
    /// More; or fewer, once there were more.
    Many(BTreeMap<Name, Value>),
}

use Members::{Few, Many};

type Pair = (Name, Value);

/// Where a name stands in a sorted table, or would stand.
fn place(few: &[Pair], name: &str) -> Result<usize, usize> {
    match few.last() {
        // Names mostly come in order.
        Some((last, _)) if last.as_str() < name => Err(few.len()),
        None => Err(0),
        _ => few.binary_search_by(|(other, _)| other.as_str().cmp(name)),
    }
}

/// Where a name stands. Texts of another length are passed over without a look at them.
#[inline]
fn found(few: &[Pair], name: &str) -> Option<usize> {
    few.iter().position(|(other, _)| other.as_str() == name)
}

fn many(few: Vec<Pair>) -> BTreeMap<Name, Value> {
    few.into_iter().collect()
}

impl Map<String, Value> {
    /// One without members; takes no memory.
    pub const fn new() -> Self {
        Map(Few(Vec::new()), PhantomData)
    }

    /// One with room for so many members, as far as they may lie in one table.
    pub fn with_capacity(capacity: usize) -> Self {
        Map(Few(Vec::with_capacity(capacity.min(FEW))), PhantomData)
    }

    pub fn len(&self) -> usize {
        match &self.0 {
            Few(few) => few.len(),
            Many(many) => many.len(),
        }
    }

    /// Whether the members lie in a tree of their own.
    #[cfg(test)]
    pub(crate) fn is_spread(&self) -> bool {
        matches!(self.0, Many(_))
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub fn clear(&mut self) {
        *self = Map::new();
    }

    #[inline]
    pub fn get<Q: AsRef<str> + ?Sized>(&self, name: &Q) -> Option<&Value> {
        self.find(name.as_ref())
    }

    fn find(&self, name: &str) -> Option<&Value> {
        match &self.0 {
            Few(few) => found(few, name).map(|at| &few[at].1),
            Many(many) => many.get(name),
        }
    }

    #[inline]
    pub fn get_mut<Q: AsRef<str> + ?Sized>(&mut self, name: &Q) -> Option<&mut Value> {
        self.find_mut(name.as_ref())
    }

    fn find_mut(&mut self, name: &str) -> Option<&mut Value> {
        match &mut self.0 {
            Few(few) => found(few, name).map(|at| &mut few[at].1),
            Many(many) => many.get_mut(name),
        }
    }

    pub fn get_key_value<Q: AsRef<str> + ?Sized>(&self, name: &Q) -> Option<(&Name, &Value)> {
        let name = name.as_ref();
        match &self.0 {
            Few(few) => found(few, name).map(|at| (&few[at].0, &few[at].1)),
            Many(many) => many.get_key_value(name),
        }
    }

    #[inline]
    pub fn contains_key<Q: AsRef<str> + ?Sized>(&self, name: &Q) -> bool {
        self.find(name.as_ref()).is_some()
    }

    /// Sets a member; returns what it was before.
    pub fn insert(&mut self, name: Name, value: Value) -> Option<Value> {
        match &mut self.0 {
            Few(few) => match place(few, &name) {
                Ok(at) => return Some(std::mem::replace(&mut few[at].1, value)),
                Err(at) if few.len() < FEW => few.insert(at, (name, value)),
                Err(_) => {
                    let mut many = many(std::mem::take(few));
                    many.insert(name, value);
                    self.0 = Many(many);
                }
            },
            Many(many) => return many.insert(name, value),
        }
        None
    }

    pub fn remove<Q: AsRef<str> + ?Sized>(&mut self, name: &Q) -> Option<Value> {
        self.take_out(name.as_ref()).map(|(_, value)| value)
    }

    pub fn remove_entry<Q: AsRef<str> + ?Sized>(&mut self, name: &Q) -> Option<(Name, Value)> {
        self.take_out(name.as_ref())
    }

    fn take_out(&mut self, name: &str) -> Option<(Name, Value)> {
        match &mut self.0 {
            Few(few) => found(few, name).map(|at| few.remove(at)),
            Many(many) => many.remove_entry(name),
        }
    }

    /// The place of a member that may be there.
    pub fn entry(&mut self, name: impl Into<Name>) -> Entry<'_> {
        Entry { map: self, name: name.into() }
    }

    /// A member, null where it was not there before.
    pub(crate) fn member(&mut self, name: &str) -> &mut Value {
        // Looked for twice, but a name is made of text only where it is new.
        match self.contains_key(name) {
            true => self.get_mut(name).expect("it is there"),
            false => self.entry(name).or_insert(Value::Null),
        }
    }

    /// Takes over all members of another one.
    pub fn append(&mut self, other: &mut Self) {
        self.extend(std::mem::take(other));
    }

    pub fn retain(&mut self, mut keep: impl FnMut(&Name, &mut Value) -> bool) {
        match &mut self.0 {
            Few(few) => few.retain_mut(|(name, value)| keep(name, value)),
            Many(many) => many.retain(keep),
        }
    }

    #[inline]
    pub fn iter(&self) -> Iter<'_> {
        Iter(match &self.0 {
            Few(few) => Either::Few(few.iter()),
            Many(many) => Either::Many(many.iter()),
        })
    }

    pub fn iter_mut(&mut self) -> IterMut<'_> {
        IterMut(match &mut self.0 {
            Few(few) => Either::Few(few.iter_mut()),
            Many(many) => Either::Many(many.iter_mut()),
        })
    }

    pub fn keys(&self) -> Keys<'_> {
        Keys(self.iter())
    }

    pub fn values(&self) -> Values<'_> {
        Values(self.iter())
    }

    pub fn values_mut(&mut self) -> ValuesMut<'_> {
        ValuesMut(self.iter_mut())
    }

    pub fn into_values(self) -> IntoValues {
        IntoValues(self.into_iter())
    }
}

impl Clone for Map<String, Value> {
    fn clone(&self) -> Self {
        Map(self.0.clone(), PhantomData)
    }
}

impl Default for Map<String, Value> {
    fn default() -> Self {
        Map::new()
    }
}

impl PartialEq for Map<String, Value> {
    fn eq(&self, other: &Self) -> bool {
        match (&self.0, &other.0) {
            (Few(mine), Few(theirs)) => mine == theirs,
            _ => self.len() == other.len() && self.iter().eq(other),
        }
    }
}

impl Eq for Map<String, Value> {}

impl Hash for Map<String, Value> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_usize(self.len());
        self.iter().for_each(|member| member.hash(state));
    }
}

impl Debug for Map<String, Value> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self).finish()
    }
}

impl<Q: AsRef<str> + ?Sized> Index<&Q> for Map<String, Value> {
    type Output = Value;

    /// # Panics
    /// Where there is no such member.
    fn index(&self, name: &Q) -> &Value {
        self.get(name).expect("no entry found for key")
    }
}

impl<Q: AsRef<str> + ?Sized> IndexMut<&Q> for Map<String, Value> {
    fn index_mut(&mut self, name: &Q) -> &mut Value {
        self.get_mut(name).expect("no entry found for key")
    }
}

impl<K: Into<Name>> Extend<(K, Value)> for Map<String, Value> {
    fn extend<T: IntoIterator<Item = (K, Value)>>(&mut self, members: T) {
        members.into_iter().for_each(|(name, value)| drop(self.insert(name.into(), value)));
    }
}

impl<K: Into<Name>> FromIterator<(K, Value)> for Map<String, Value> {
    fn from_iter<T: IntoIterator<Item = (K, Value)>>(members: T) -> Self {
        let members = members.into_iter();
        let mut map = Map::with_capacity(members.size_hint().0);
        map.extend(members);
        map
    }
}

/// The place of a member that may be there.
pub struct Entry<'a> {
    map: &'a mut Map<String, Value>,
    name: Name,
}

impl<'a> Entry<'a> {
    pub fn key(&self) -> &Name {
        &self.name
    }

    /// Changes the member that is there.
    #[must_use]
    pub fn and_modify(self, change: impl FnOnce(&mut Value)) -> Self {
        if let Some(value) = self.map.get_mut(&self.name) {
            change(value);
        }
        self
    }

    /// The member, which is `value` where there was none.
    pub fn or_insert(self, value: Value) -> &'a mut Value {
        self.or_insert_with(|| value)
    }

    /// The same for a value that is made when it is needed.
    pub fn or_insert_with(self, make: impl FnOnce() -> Value) -> &'a mut Value {
        let Entry { map, name } = self;
        if let Few(few) = &map.0
            && few.len() == FEW
            && found(few, &name).is_none()
        {
            map.0 = match std::mem::take(map).0 {
                Few(few) => Many(many(few)),
                more => more,
            };
        }
        match &mut map.0 {
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
}

/// What goes through a table, or through what holds many.
#[derive(Debug, Clone)]
enum Either<F, M> {
    Few(F),
    Many(M),
}

macro_rules! through {
    ($(#[$doc:meta])* $name:ident$(<$life:lifetime>)?: $few:ty, $many:ty => $item:ty, $split:expr) => {
        $(#[$doc])*
        pub struct $name$(<$life>)?(Either<$few, $many>);

        impl$(<$life>)? Iterator for $name$(<$life>)? {
            type Item = $item;

            #[inline]
            fn next(&mut self) -> Option<$item> {
                match &mut self.0 {
                    Either::Few(few) => few.next().map($split),
                    Either::Many(many) => many.next(),
                }
            }

            fn size_hint(&self) -> (usize, Option<usize>) {
                match &self.0 {
                    Either::Few(few) => few.size_hint(),
                    Either::Many(many) => many.size_hint(),
                }
            }
        }

        impl$(<$life>)? DoubleEndedIterator for $name$(<$life>)? {
            fn next_back(&mut self) -> Option<$item> {
                match &mut self.0 {
                    Either::Few(few) => few.next_back().map($split),
                    Either::Many(many) => many.next_back(),
                }
            }
        }

        impl$(<$life>)? ExactSizeIterator for $name$(<$life>)? {}
    };
}

through! {
    /// Names and values, in order.
    #[derive(Debug, Clone)]
    Iter<'a>: slice::Iter<'a, Pair>, btree_map::Iter<'a, Name, Value> => (&'a Name, &'a Value), |(name, value)| (name, value)
}

through! {
    /// Names, and values that can be changed.
    #[derive(Debug)]
    IterMut<'a>: slice::IterMut<'a, Pair>, btree_map::IterMut<'a, Name, Value> => (&'a Name, &'a mut Value), |(name, value)| (&*name, value)
}

/// Members, taken out.
#[derive(Debug)]
pub struct IntoIter(Either<vec::IntoIter<Pair>, btree_map::IntoIter<Name, Value>>);

impl Iterator for IntoIter {
    type Item = Pair;

    fn next(&mut self) -> Option<Pair> {
        match &mut self.0 {
            Either::Few(few) => few.next(),
            Either::Many(many) => many.next(),
        }
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        match &self.0 {
            Either::Few(few) => few.size_hint(),
            Either::Many(many) => many.size_hint(),
        }
    }
}

impl DoubleEndedIterator for IntoIter {
    fn next_back(&mut self) -> Option<Pair> {
        match &mut self.0 {
            Either::Few(few) => few.next_back(),
            Either::Many(many) => many.next_back(),
        }
    }
}

impl ExactSizeIterator for IntoIter {}

macro_rules! part {
    ($(#[$doc:meta])* $name:ident$(<$life:lifetime>)?: $whole:ty => $item:ty, $part:expr) => {
        $(#[$doc])*
        pub struct $name$(<$life>)?($whole);

        impl$(<$life>)? Iterator for $name$(<$life>)? {
            type Item = $item;

            #[inline]
            fn next(&mut self) -> Option<$item> {
                self.0.next().map($part)
            }

            fn size_hint(&self) -> (usize, Option<usize>) {
                self.0.size_hint()
            }
        }

        impl$(<$life>)? DoubleEndedIterator for $name$(<$life>)? {
            fn next_back(&mut self) -> Option<$item> {
                self.0.next_back().map($part)
            }
        }

        impl$(<$life>)? ExactSizeIterator for $name$(<$life>)? {}
    };
}

part! {
    /// Names, in order.
    #[derive(Debug, Clone)]
    Keys<'a>: Iter<'a> => &'a Name, |member| member.0
}

part! {
    /// Values, in the order of their names.
    #[derive(Debug, Clone)]
    Values<'a>: Iter<'a> => &'a Value, |member| member.1
}

part! {
    /// The same, to be changed.
    #[derive(Debug)]
    ValuesMut<'a>: IterMut<'a> => &'a mut Value, |member| member.1
}

part! {
    /// The same, taken out.
    #[derive(Debug)]
    IntoValues: IntoIter => Value, |member| member.1
}

impl IntoIterator for Map<String, Value> {
    type Item = Pair;
    type IntoIter = IntoIter;

    fn into_iter(self) -> IntoIter {
        IntoIter(match self.0 {
            Few(few) => Either::Few(few.into_iter()),
            Many(many) => Either::Many(many.into_iter()),
        })
    }
}

impl<'a> IntoIterator for &'a Map<String, Value> {
    type Item = (&'a Name, &'a Value);
    type IntoIter = Iter<'a>;

    fn into_iter(self) -> Iter<'a> {
        self.iter()
    }
}

impl<'a> IntoIterator for &'a mut Map<String, Value> {
    type Item = (&'a Name, &'a mut Value);
    type IntoIter = IterMut<'a>;

    fn into_iter(self) -> IterMut<'a> {
        self.iter_mut()
    }
}
