//! Ways through the members of an object.

use std::collections::btree_map;
use std::{slice, vec};

use crate::table::{Few, Many, Pair, Table};
use crate::{Name, Value};

/// What goes through a table, or through what holds many.
#[derive(Debug, Clone)]
pub(crate) enum Either<F, M> {
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

impl<'a> Iter<'a> {
    #[inline]
    pub(crate) fn of(table: &'a Table) -> Self {
        Iter(match table {
            Few(few) => Either::Few(few.iter()),
            Many(many) => Either::Many(many.iter()),
        })
    }
}

impl<'a> IterMut<'a> {
    pub(crate) fn of(table: &'a mut Table) -> Self {
        IterMut(match table {
            Few(few) => Either::Few(few.iter_mut()),
            Many(many) => Either::Many(many.iter_mut()),
        })
    }
}

/// Members, taken out.
#[derive(Debug)]
pub struct IntoIter(Either<vec::IntoIter<Pair>, btree_map::IntoIter<Name, Value>>);

impl IntoIter {
    pub(crate) fn of(table: Table) -> Self {
        IntoIter(match table {
            Few(few) => Either::Few(few.into_iter()),
            Many(many) => Either::Many(many.into_iter()),
        })
    }
}

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
        pub struct $name$(<$life>)?(pub(crate) $whole);

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
