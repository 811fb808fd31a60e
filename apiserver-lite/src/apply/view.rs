//! How server-side apply sees values: what a type means for ownership, and which members an object has.
//!
//! Go's structs hold fields that the tree leaves out, an empty struct for example; those count as present in objects of
//! the server ([`View::Stored`]) and not in what a client applies ([`View::Sent`]). Values without a schema, in custom
//! resources and raw extensions, are seen by their shape.

use std::borrow::Cow;

use proto::json::shown;
use proto::schema::{ListKind, Prop, Struct, Type, TypeId, TypeSet};
use serde_json::{Map, Value};

use super::element::Element;

/// A type in a set; None where the schema allows anything.
pub type Ty = Option<TypeId>;

/// What a type means for ownership.
#[derive(Debug, Clone, Copy)]
pub enum Shape<'s> {
    /// One value, owned as a whole: scalars, atomic lists, maps and structs. The type is kept for comparisons.
    Leaf,
    /// A list whose items are owned one by one.
    Items {
        keys: &'s [Box<str>],
        element: Ty,
    },
    Struct(&'s Struct),
    Map(Ty),
    /// An object is a map, anything else a leaf.
    Any,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum View {
    Stored,
    Sent,
}

/// A list item that has no place in its list, and why.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct BadItem(pub String);

/// A member of an object.
pub struct Member<'a> {
    pub name: &'a str,
    pub ty: Ty,
    pub left: Option<&'a Value>,
    pub right: Option<&'a Value>,
}

pub fn shape(set: &TypeSet, ty: Ty) -> Shape<'_> {
    let Some(ty) = ty else { return Shape::Any };
    match set.ty(ty) {
        Type::Struct(id) if !set.get(*id).atomic => Shape::Struct(set.get(*id)),
        Type::List(list) if list.kind != ListKind::Atomic && !list.wrapped => {
            Shape::Items { keys: &list.keys, element: Some(list.element) }
        }
        Type::Map(map) if !map.atomic => Shape::Map(Some(map.value)),
        Type::Raw
        | Type::Fields
        | Type::Json
        | Type::SchemaOrArray(_)
        | Type::SchemaOrBool(_)
        | Type::SchemaOrStrings(_) => Shape::Any,
        _ => Shape::Leaf,
    }
}

/// The value of a struct's property, as the view has it.
pub fn property<'a>(set: &'a TypeSet, view: View, prop: &'a Prop, map: &'a Map<String, Value>) -> Option<&'a Value> {
    match view {
        View::Stored => shown(set, prop, map.get(&*prop.name)),
        View::Sent => map.get(&*prop.name),
    }
}

/// Members of one or two structs side by side, by name.
pub fn struct_members<'a>(
    set: &'a TypeSet,
    view: View,
    shape: &'a Struct,
    left: Option<&'a Map<String, Value>>,
    right: Option<&'a Map<String, Value>>,
    mut visit: impl FnMut(Member<'a>) -> Result<(), BadItem>,
) -> Result<(), BadItem> {
    let value = |prop: &'a Prop, map: Option<&'a Map<String, Value>>| map.and_then(|m| property(set, view, prop, m));
    // What neither side spells out is the same on both; where one side is missing it has to be spelled out here.
    if view == View::Stored && !shape.open && (left.is_none() || right.is_none()) {
        let Some(only) = left.or(right) else { return Ok(()) };
        // Both are sorted by name, so they are gone through side by side.
        let mut members = only.iter().peekable();
        for prop in shape.sorted() {
            while members.next_if(|(name, _)| **name < prop.name).is_some() {}
            let found = members.next_if(|(name, _)| **name == prop.name).map(|(_, value)| value);
            if let Some(found) = shown(set, prop, found) {
                let (left, right) = if right.is_none() { (Some(found), None) } else { (None, Some(found)) };
                visit(Member { name: &prop.name, ty: Some(prop.ty), left, right })?;
            }
        }
        return Ok(());
    }
    map_members(left, right, |name, plain_left, plain_right| match shape.prop(name) {
        Some((_, prop)) => {
            let (left, right) = (value(prop, left), value(prop, right));
            if left.is_none() && right.is_none() {
                return Ok(());
            }
            visit(Member { name: &prop.name, ty: Some(prop.ty), left, right })
        }
        None => visit(Member { name, ty: None, left: plain_left, right: plain_right }),
    })
}

/// Members of one or two maps side by side, by name.
pub fn map_members<'a>(
    left: Option<&'a Map<String, Value>>,
    right: Option<&'a Map<String, Value>>,
    mut visit: impl FnMut(&'a str, Option<&'a Value>, Option<&'a Value>) -> Result<(), BadItem>,
) -> Result<(), BadItem> {
    let (mut left, mut right) = (left.into_iter().flatten().peekable(), right.into_iter().flatten().peekable());
    loop {
        let order = match (left.peek(), right.peek()) {
            (None, None) => return Ok(()),
            (Some(_), None) => std::cmp::Ordering::Less,
            (None, Some(_)) => std::cmp::Ordering::Greater,
            (Some((a, _)), Some((b, _))) => a.cmp(b),
        };
        let mine = if order.is_le() { left.next() } else { None };
        let theirs = if order.is_ge() { right.next() } else { None };
        if let Some((name, _)) = mine.or(theirs) {
            visit(name, mine.map(|m| m.1), theirs.map(|t| t.1))?;
        }
    }
}

/// The element that stands for an item in its list.
///
/// # Errors
/// An item that is null, of the wrong shape or without any key.
pub fn item_element<'a>(
    set: &'a TypeSet,
    view: View,
    keys: &'a [Box<str>],
    element: Ty,
    item: &'a Value,
) -> Result<Element<'a>, BadItem> {
    let bad = |text: &str| Err(BadItem(text.into()));
    if keys.is_empty() {
        return match item {
            Value::Object(_) => bad("associative list without keys has an element that's a map type"),
            Value::Array(_) => bad("not supported: associative list with lists as elements"),
            Value::Null => bad("associative list without keys has an element that's an explicit null"),
            scalar => Ok(Element::Value(Cow::Borrowed(scalar))),
        };
    }
    let map = match item {
        Value::Object(map) => map,
        Value::Null => return bad("associative list with keys may not have a null element"),
        _ => return bad("associative list with keys may not have non-map elements"),
    };
    let shape = match element.map(|ty| set.ty(ty)) {
        Some(Type::Struct(id) | Type::AtomicStruct(id)) => Some(set.get(*id)),
        _ => None,
    };
    let mut found = Vec::with_capacity(keys.len());
    for key in keys {
        let prop = shape.and_then(|s| s.prop(key)).map(|(_, prop)| prop);
        let value = match prop {
            Some(prop) => property(set, view, prop, map).or_else(|| default(set, prop)),
            None => map.get(&**key),
        };
        if let Some(value) = value {
            found.push((Cow::Borrowed(&**key), Cow::Borrowed(value)));
        }
    }
    if found.is_empty() {
        let names: Vec<String> = keys.iter().map(|k| crate::status::quote(k)).collect();
        return Err(BadItem(format!(
            "associative list with keys has an element that omits all key fields [{}] (and doesn't have default values \
             for any key fields)",
            names.join(" ")
        )));
    }
    found.sort_by(|a, b| a.0.cmp(&b.0));
    Ok(Element::Keys(found.into()))
}

/// What a key is worth that an item leaves out: its default, or the zero of a field that is always there.
fn default<'a>(set: &'a TypeSet, prop: &'a Prop) -> Option<&'a Value> {
    let declared = prop.extra.as_ref().and_then(|e| e.default.as_ref());
    declared.or_else(|| if prop.pointer { None } else { shown(set, prop, None) }.filter(|v| !v.is_null()))
}
