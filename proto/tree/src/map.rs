//! An object: its members in the order of their names.

use std::fmt::{self, Debug, Formatter};
use std::hash::{Hash, Hasher};
use std::marker::PhantomData;
use std::ops::{Index, IndexMut};
use std::sync::Arc;

use crate::iter::{IntoIter, IntoValues, Iter, IterMut, Keys, Values, ValuesMut};
use crate::table::{Few, Pair, Table};
use crate::{Name, Value};

/// An object. There are only those with texts for names ([`Name`] is one) and trees for values; the parameters are there
/// so that it is spelled as the other crate spells it.
pub struct Map<K, V>(Members, PhantomData<fn() -> (K, V)>);

#[derive(Clone)]
enum Members {
    Own(Table),
    /// A table that copies have too. All objects below it are shared as well, so that to copy the table is to copy its
    /// texts and lists.
    Shared(Arc<Table>),
}

use Members::{Own, Shared};

impl Map<String, Value> {
    /// One without members; takes no memory.
    pub const fn new() -> Self {
        Map(Own(Table::new()), PhantomData)
    }

    /// One with room for so many members, as far as they may lie in one table.
    pub fn with_capacity(capacity: usize) -> Self {
        Map(Own(Table::with_capacity(capacity)), PhantomData)
    }

    /// One of members in any order; None where a name comes twice. Such a map is as long as it has to be.
    pub fn of(members: impl IntoIterator<Item = Pair>) -> Option<Self> {
        let (table, twice) = Table::of(members.into_iter());
        (!twice).then_some(Map(Own(table), PhantomData))
    }

    /// Lets copies of the object, and of all objects below it, be the same one until one of them is changed.
    pub fn share(&mut self) {
        if let Own(table) = &mut self.0
            && table.len() > 0
        {
            IterMut::of(table).for_each(|(_, value)| value.share());
            self.0 = Shared(Arc::new(std::mem::take(table)));
        }
    }

    /// Whether two are one, so that nothing in them needs to be compared. Two that are not may be equal.
    pub fn is(&self, other: &Self) -> bool {
        matches!((&self.0, &other.0), (Shared(mine), Shared(theirs)) if Arc::ptr_eq(mine, theirs))
    }

    #[inline]
    fn table(&self) -> &Table {
        match &self.0 {
            Own(table) => table,
            Shared(table) => table,
        }
    }

    /// The table, to be changed: a shared one is copied, but by the last who has it.
    #[inline]
    fn own(&mut self) -> &mut Table {
        if matches!(self.0, Shared(_)) {
            self.0 = Own(std::mem::take(self).into_table());
        }
        match &mut self.0 {
            Own(table) => table,
            Shared(_) => unreachable!("the line before made it the map's own"),
        }
    }

    fn into_table(self) -> Table {
        match self.0 {
            Own(table) => table,
            Shared(table) => Arc::unwrap_or_clone(table),
        }
    }

    pub fn len(&self) -> usize {
        self.table().len()
    }

    /// Whether the members lie in a tree of their own.
    #[cfg(test)]
    pub(crate) fn is_spread(&self) -> bool {
        !matches!(self.table(), Few(_))
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub fn clear(&mut self) {
        *self = Map::new();
    }

    #[inline]
    pub fn get<Q: AsRef<str> + ?Sized>(&self, name: &Q) -> Option<&Value> {
        self.table().find(name.as_ref())
    }

    #[inline]
    pub fn get_mut<Q: AsRef<str> + ?Sized>(&mut self, name: &Q) -> Option<&mut Value> {
        let name = name.as_ref();
        // Nobody copies a table for what is not in it.
        if self.is_shared_without(name) { None } else { self.own().find_mut(name) }
    }

    fn is_shared_without(&self, name: &str) -> bool {
        matches!(&self.0, Shared(table) if table.find(name).is_none())
    }

    pub fn get_key_value<Q: AsRef<str> + ?Sized>(&self, name: &Q) -> Option<(&Name, &Value)> {
        self.table().find_pair(name.as_ref())
    }

    #[inline]
    pub fn contains_key<Q: AsRef<str> + ?Sized>(&self, name: &Q) -> bool {
        self.get(name).is_some()
    }

    /// Sets a member; returns what it was before.
    pub fn insert(&mut self, name: Name, value: Value) -> Option<Value> {
        self.own().insert(name, value)
    }

    pub fn remove<Q: AsRef<str> + ?Sized>(&mut self, name: &Q) -> Option<Value> {
        self.remove_entry(name).map(|(_, value)| value)
    }

    pub fn remove_entry<Q: AsRef<str> + ?Sized>(&mut self, name: &Q) -> Option<Pair> {
        let name = name.as_ref();
        if self.is_shared_without(name) { None } else { self.own().take_out(name) }
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

    pub fn retain(&mut self, keep: impl FnMut(&Name, &mut Value) -> bool) {
        self.own().retain(keep);
    }

    #[inline]
    pub fn iter(&self) -> Iter<'_> {
        Iter::of(self.table())
    }

    pub fn iter_mut(&mut self) -> IterMut<'_> {
        IterMut::of(self.own())
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
        self.is(other)
            || match (self.table(), other.table()) {
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
        Map(Own(Table::of(members.into_iter().map(|(name, value)| (name.into(), value))).0), PhantomData)
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
        self.map.own().member(self.name, make)
    }
}

impl IntoIterator for Map<String, Value> {
    type Item = Pair;
    type IntoIter = IntoIter;

    fn into_iter(self) -> IntoIter {
        IntoIter::of(self.into_table())
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
