//! JSON trees as requests make and drop them, thousands in a second.
//!
//! The crates of this workspace have this one under the name `serde_json` (see the workspace's `Cargo.toml`), and it has
//! what they use of the other: reading and writing of text is the other's, and so are its names, so that whoever knows
//! them knows these. What differs is how an object lies in memory ([`Map`]): as a table that is as long as the object
//! is, and not as nodes with room for eleven members each, of which most objects have three. A name is looked for by
//! its length first, so that few others are looked at. Names are shared ([`Name`]), and objects can be ([`Map::share`]): a copy
//! of such a tree is as large as what is changed in it.
//!
//! Whatever can be told of two trees is the same with both: members come in the order of their names, and of two of one
//! name the later one counts.

mod from;
mod iter;
#[doc(hidden)]
pub mod literal;
mod map;
mod name;
mod place;
mod table;
mod text;
pub mod value;

pub use iter::{IntoIter, IntoValues, Iter, IterMut, Keys, Values, ValuesMut};
pub use map::{Entry, Map};
pub use name::{Name, is_same, know, slot};
pub use place::Place;
pub use real::{
    Deserializer, Error, Number, Serializer, from_reader, from_slice, from_str, ser, to_string, to_string_pretty,
    to_vec, to_vec_pretty, to_writer,
};
pub use text::{from_value, to_value};
pub use value::Value;

#[cfg(test)]
mod tests;
