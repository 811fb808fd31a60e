//! Owners whose fields were named by an older schema: who owned parts of what is one value by now owns it as a whole.
//!
//! The other way round nothing is done: what was one value and has parts by now is owned as it was. Followed:
//! structured-merge-diff `typed/reconcile_schema.go`.

use proto::schema::{ListKind, Type, TypeId, TypeSet};

use super::element::Element;
use super::managed::Entries;
use super::set::{Node, Set};
use super::versions;
use super::view::{Shape, Ty, shape};
use crate::resource::Resource;

/// Brings the sets of all owners to the schema as it is. Owners in versions that are not served are left alone.
pub fn reconcile(resource: &Resource, entries: &mut Entries<'_>) {
    for entry in &mut entries.0 {
        let Some((types, id)) = versions::typed(resource, &entry.api_version) else { continue };
        let changed = level(types, Shape::Struct(types.get(id)), &entry.set());
        if let Some(set) = changed {
            entry.set_fields(set);
        }
    }
}

/// The paths below a value of some shape; None where they stay as they are.
fn level<'a>(types: &TypeSet, shape: Shape<'_>, owned: &Set<'a>) -> Option<Set<'a>> {
    let of_name = |element: &Element<'_>| match (element, shape) {
        (Element::Name(name), Shape::Struct(shape)) => shape.prop(name).map(|(_, prop)| prop.ty),
        (Element::Name(_), Shape::Map(value)) => value,
        (Element::Keys(_) | Element::Value(_), Shape::Items { element, .. }) => element,
        _ => None,
    };
    let nodes = owned.nodes();
    let mut out: Option<Set<'a>> = None;
    for (at, node) in nodes.iter().enumerate() {
        let changed = deeper(types, of_name(&node.element), node);
        if changed.is_some() && out.is_none() {
            let mut begun = Set::new();
            nodes[..at].iter().cloned().for_each(|same| begun.push(same.element, same.member, same.children));
            out = Some(begun);
        }
        if let Some(out) = &mut out {
            let node = changed.unwrap_or_else(|| node.clone());
            out.push(node.element, node.member, node.children);
        }
    }
    out
}

fn deeper<'a>(types: &TypeSet, ty: Ty, node: &Node<'a>) -> Option<Node<'a>> {
    if node.children.is_empty() {
        return None;
    }
    let ty = ty?;
    if is_one_value(types, ty) {
        return Some(Node { element: node.element.clone(), member: true, children: Set::new() });
    }
    let children = level(types, shape(types, Some(ty)), &node.children)?;
    Some(Node { children, ..node.clone() })
}

/// Whether a value of a type could have parts, and is owned as one.
fn is_one_value(types: &TypeSet, ty: TypeId) -> bool {
    match types.ty(ty) {
        Type::AtomicStruct(_) => true,
        Type::Struct(id) => types.get(*id).atomic,
        Type::List(list) => list.kind == ListKind::Atomic && !list.wrapped,
        Type::Map(map) => map.atomic,
        _ => false,
    }
}
