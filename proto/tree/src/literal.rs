//! Trees spelled out in code.

use serde::Serialize;

use crate::{Name, Value};

/// A tree as JSON spells it. Values may be expressions that can be written as JSON, names of members expressions of text,
/// in parentheses where a colon is in them.
#[macro_export]
macro_rules! json {
    ($($tokens:tt)+) => { $crate::json_tree!($($tokens)+) };
}

#[doc(hidden)]
#[macro_export]
macro_rules! json_tree {
    (null) => { $crate::Value::Null };
    ([]) => { $crate::Value::Array(::std::vec::Vec::new()) };
    ([ $($items:tt)+ ]) => {{
        let mut items = $crate::literal::no_items();
        $crate::json_items!(items; $($items)+);
        $crate::Value::Array(items)
    }};
    ({}) => { $crate::Value::Object($crate::Map::new()) };
    ({ $($members:tt)+ }) => {{
        let mut members = $crate::Map::new();
        $crate::json_members!(members; () $($members)+);
        $crate::Value::Object(members)
    }};
    ($other:expr) => {{
        #[allow(unused_imports, reason = "which of them is meant depends on the expression's type")]
        use $crate::literal::{Copied as _, Written as _};
        (&$crate::literal::Spelled(&$other)).tree()
    }};
}

/// Items up to the end of a list.
#[doc(hidden)]
#[macro_export]
macro_rules! json_items {
    ($list:ident;) => {};
    ($list:ident; null $(, $($rest:tt)*)?) => {
        $list.push($crate::Value::Null);
        $($crate::json_items!($list; $($rest)*);)?
    };
    ($list:ident; [ $($inner:tt)* ] $(, $($rest:tt)*)?) => {
        $list.push($crate::json_tree!([ $($inner)* ]));
        $($crate::json_items!($list; $($rest)*);)?
    };
    ($list:ident; { $($inner:tt)* } $(, $($rest:tt)*)?) => {
        $list.push($crate::json_tree!({ $($inner)* }));
        $($crate::json_items!($list; $($rest)*);)?
    };
    ($list:ident; $item:expr $(, $($rest:tt)*)?) => {
        $list.push($crate::json_tree!($item));
        $($crate::json_items!($list; $($rest)*);)?
    };
}

/// Members up to the end of an object; in parentheses what was read of a name so far.
#[doc(hidden)]
#[macro_export]
macro_rules! json_members {
    ($map:ident; ()) => {};
    ($map:ident; ($($name:tt)+) : null $(, $($rest:tt)*)?) => {
        let _ = $map.insert(($($name)+).into(), $crate::Value::Null);
        $($crate::json_members!($map; () $($rest)*);)?
    };
    ($map:ident; ($($name:tt)+) : [ $($inner:tt)* ] $(, $($rest:tt)*)?) => {
        let _ = $map.insert(($($name)+).into(), $crate::json_tree!([ $($inner)* ]));
        $($crate::json_members!($map; () $($rest)*);)?
    };
    ($map:ident; ($($name:tt)+) : { $($inner:tt)* } $(, $($rest:tt)*)?) => {
        let _ = $map.insert(($($name)+).into(), $crate::json_tree!({ $($inner)* }));
        $($crate::json_members!($map; () $($rest)*);)?
    };
    ($map:ident; ($($name:tt)+) : $value:expr $(, $($rest:tt)*)?) => {
        let _ = $map.insert(($($name)+).into(), $crate::json_tree!($value));
        $($crate::json_members!($map; () $($rest)*);)?
    };
    ($map:ident; ($($name:tt)*) $next:tt $($rest:tt)*) => {
        $crate::json_members!($map; ($($name)* $next) $($rest)*);
    };
}

/// What a list begins as.
#[doc(hidden)]
pub const fn no_items() -> Vec<Value> {
    Vec::new()
}

/// An expression in a tree that is spelled out. What is one already, or a text, is copied; anything else is written.
#[doc(hidden)]
pub struct Spelled<'a, T: ?Sized>(pub &'a T);

impl<T: ?Sized> Clone for Spelled<'_, T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T: ?Sized> Copy for Spelled<'_, T> {}

#[doc(hidden)]
pub trait Copied {
    fn tree(self) -> Value;
}

impl Copied for &Spelled<'_, Value> {
    fn tree(self) -> Value {
        self.0.clone()
    }
}

impl Copied for &Spelled<'_, &Value> {
    fn tree(self) -> Value {
        (*self.0).clone()
    }
}

impl Copied for &Spelled<'_, String> {
    fn tree(self) -> Value {
        self.0.as_str().into()
    }
}

impl Copied for &Spelled<'_, Name> {
    fn tree(self) -> Value {
        self.0.into()
    }
}

impl Copied for &Spelled<'_, &str> {
    fn tree(self) -> Value {
        (*self.0).into()
    }
}

impl Copied for &Spelled<'_, str> {
    fn tree(self) -> Value {
        self.0.into()
    }
}

#[doc(hidden)]
pub trait Written {
    fn tree(self) -> Value;
}

impl<T: Serialize + ?Sized> Written for Spelled<'_, T> {
    fn tree(self) -> Value {
        crate::to_value(self.0).expect("it can be written as JSON")
    }
}
