//! Sentences about types and fields, for `kubectl explain`.
//!
//! They stand in a text file of their own, in words of this project; fields that say nothing there are told by their
//! name alone, as `metadata` or `selector` mean the same everywhere.

use std::collections::HashMap;
use std::sync::OnceLock;

pub(super) const TEXT: &str = include_str!("descriptions.txt");
/// The entry whose fields count for every type.
const ANY: &str = "*";
/// What a type is that nobody describes and that is called a list.
const LIST: &str = "Objects of one kind, or a part of them.";

#[derive(Default)]
struct Entry {
    text: &'static str,
    /// Another entry whose fields this type has too.
    like: Option<&'static str>,
    fields: HashMap<&'static str, &'static str>,
}

fn entries() -> &'static HashMap<&'static str, Entry> {
    static ENTRIES: OnceLock<HashMap<&'static str, Entry>> = OnceLock::new();
    ENTRIES.get_or_init(|| parse(TEXT))
}

fn parse(text: &'static str) -> HashMap<&'static str, Entry> {
    let mut out: HashMap<&'static str, Entry> = HashMap::new();
    let mut name = ANY;
    for line in text.lines().filter(|l| !l.starts_with('#')) {
        let Some((key, said)) = line.split_once(':') else { continue };
        let said = said.trim();
        match key.strip_prefix("  ") {
            Some(field) => drop(out.entry(name).or_default().fields.insert(field, said)),
            None => {
                let (own, like) = key.split_once(" as ").map_or((key, None), |(own, like)| (own, Some(like)));
                name = own;
                let entry = out.entry(own).or_default();
                (entry.text, entry.like) = (said, like);
            }
        }
    }
    out
}

/// The entry of a type; of those that fit the end of its name (`v1.Event` and `Event`) the longest.
fn entry(type_name: &str) -> Option<&'static Entry> {
    let starts = type_name.match_indices('.').map(|(at, _)| at + 1);
    std::iter::once(0).chain(starts).find_map(|at| entries().get(&type_name[at..]))
}

/// What a type is, by its protobuf name.
pub(super) fn of_type(name: &str) -> Option<&'static str> {
    entry(name).map(|e| e.text).or_else(|| name.ends_with("List").then_some(LIST))
}

/// What a field of a type is.
pub(super) fn of_field(type_name: &str, field: &str) -> Option<&'static str> {
    let own = entry(type_name);
    let like = own.and_then(|e| e.like).and_then(|like| entries().get(like));
    let places = own.into_iter().chain(like).chain(entries().get(ANY));
    places.into_iter().find_map(|e| e.fields.get(field)).copied()
}

#[cfg(test)]
mod tests {
    use proto::schema::{Type, TypeSet};

    use super::*;

    /// `kubectl explain hpa.spec.metrics.resource` said nothing.
    #[test]
    fn every_type_and_every_field_of_a_served_kind_is_described() {
        let set = TypeSet::built_in();
        let resources = crate::resource::Resources::built_in().current();
        let served = resources.all().iter().filter(|r| &*r.version == "v1" || &*r.version == "v2");
        let mut waiting: Vec<_> = served.map(|r| r.schema.id).collect();
        let (mut seen, mut silent) = (std::collections::HashSet::new(), Vec::new());
        while let Some(id) = waiting.pop() {
            let own = set.get(id);
            if !seen.insert(&*own.name) {
                continue;
            }
            if of_type(&own.name).is_none() {
                silent.push(own.name.to_string());
            }
            for prop in &own.props {
                if of_field(&own.name, &prop.name).is_none() {
                    silent.push(format!("{}.{}", own.name, prop.name));
                }
                waiting.extend(inner(set, set.ty(prop.ty)));
            }
        }
        assert!(silent.is_empty(), "{silent:?}");
    }

    /// The struct that a type is, or is made of.
    fn inner(set: &TypeSet, ty: &Type) -> Option<proto::schema::StructId> {
        match ty {
            Type::Struct(id) | Type::AtomicStruct(id) => Some(*id),
            Type::List(list) => inner(set, set.ty(list.element)),
            _ => None,
        }
    }

    #[test]
    fn nothing_is_described_that_is_not_there() {
        let set = TypeSet::built_in();
        for (name, entry) in entries().iter().filter(|(name, _)| **name != ANY) {
            let types: Vec<_> = set
                .structs
                .iter()
                .filter(|t| t.name.strip_suffix(name).is_some_and(|rest| rest.is_empty() || rest.ends_with('.')))
                .collect();
            assert!(!types.is_empty(), "no type {name}");
            for field in entry.fields.keys() {
                let there = types.iter().any(|t| t.props.iter().any(|p| &*p.name == *field));
                assert!(there, "{name} has no field {field}");
            }
        }
    }

    /// `kubectl explain` shows what a field is and then what its type is: the same sentence twice.
    #[test]
    fn a_field_says_something_else_than_its_type() {
        let set = TypeSet::built_in();
        let mut doubled = Vec::new();
        for owner in &set.structs {
            for prop in &owner.props {
                let Some(id) = inner(set, set.ty(prop.ty)) else { continue };
                let said = of_field(&owner.name, &prop.name);
                if said.is_some() && said == of_type(&set.get(id).name) {
                    doubled.push(format!("{}.{}", owner.name, prop.name));
                }
            }
        }
        assert!(doubled.is_empty(), "{doubled:?}");
    }

    #[test]
    fn a_type_may_be_like_another() {
        let image = of_field("k8s.io.api.core.v1.EphemeralContainer", "image");
        assert_eq!(image, of_field("k8s.io.api.core.v1.Container", "image"));
        assert_eq!(of_field("k8s.io.api.apps.v1.Deployment", "spec"), Some("What is wanted."));
        assert_eq!(of_field("k8s.io.api.apps.v1.Deployment", "nothing"), None);
    }
}
