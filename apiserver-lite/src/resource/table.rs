//! The built-in resources, read from `table.txt`, and those that are off unless asked for, from `optional.txt`.
//!
//! One line each, columns by spaces: group (`-` for core), version, plural, singular, kind, scope (`N` or `C`), verbs,
//! short names, categories, then the subresources as `name:[group/version/]Kind:verbs`. Verbs are letters: Create,
//! Delete, X deletecollection, Get, List, Patch, Update, Watch. The order of groups and versions is that of discovery.
//! A line of `optional.txt` has the feature gate that it needs in front, `-` for none. Alpha and beta versions stand
//! after the others of their group; the first line of a resource is the version it is stored in.

use proto::schema::TypeSet;

use super::{Resource, Schema, SchemaSet, Subresource, Verbs};

/// Every built-in resource, in discovery order.
///
/// # Panics
/// When a line is malformed or names a kind that the schema lacks; both are part of the binary and a test reads them.
pub fn built_in() -> Vec<Resource> {
    include_str!("table.txt").lines().map(parse).collect()
}

/// The resources that are off by default, each with the feature gate that it needs.
///
/// # Panics
/// As [`built_in`].
pub fn optional() -> Vec<(Option<&'static str>, Resource)> {
    let mut first: Vec<(Box<str>, Box<str>, Box<str>)> =
        built_in().into_iter().map(|r| (r.group, r.plural, r.storage_version)).collect();
    let lines = include_str!("optional.txt").lines().map(|line| line.split_once(' ').expect("a gate and a resource"));
    lines
        .map(|(gate, line)| {
            let mut resource = parse(line);
            match first.iter().find(|(group, plural, _)| (group, plural) == (&resource.group, &resource.plural)) {
                Some((_, _, stored)) => {
                    let version = stored.rsplit('/').next().unwrap_or_default();
                    if let Some(id) = TypeSet::built_in().kind(&resource.group, version, &resource.kind) {
                        resource.stored = Schema { set: SchemaSet::BuiltIn, id };
                    }
                    resource.storage_version.clone_from(stored);
                }
                None => first.push((resource.group.clone(), resource.plural.clone(), resource.storage_version.clone())),
            }
            (Some(gate).filter(|g| *g != "-"), resource)
        })
        .collect()
}

fn parse(line: &str) -> Resource {
    let mut columns = line.split(' ');
    let mut column = || columns.next().expect("a resource has nine columns");
    let group = dash(column());
    let (version, plural, singular, kind) = (column(), column(), column(), column());
    let namespaced = column() == "N";
    let (verb_letters, short_names, categories) = (column(), column(), column());
    let id = TypeSet::built_in()
        .kind(group, version, kind)
        .unwrap_or_else(|| panic!("no schema for {group}/{version} {kind}"));
    // Both versions of a kind lie in one place, in the version that upstream stores.
    let (storage, storage_version) = match (group, plural) {
        ("events.k8s.io", "events") => ("events".to_owned(), "v1".to_owned()),
        ("autoscaling", _) => ("horizontalpodautoscalers.autoscaling".to_owned(), "autoscaling/v2".to_owned()),
        ("", _) => (plural.to_owned(), version.to_owned()),
        _ => (format!("{plural}.{group}"), format!("{group}/{version}")),
    };
    let (stored_group, stored_version) = storage_version.rsplit_once('/').unwrap_or(("", &storage_version));
    let stored = TypeSet::built_in().kind(stored_group, stored_version, kind).unwrap_or(id);
    Resource {
        stored: Schema { set: SchemaSet::BuiltIn, id: stored },
        group: group.into(),
        version: version.into(),
        plural: plural.into(),
        singular: singular.into(),
        kind: kind.into(),
        list_kind: format!("{kind}List").into(),
        namespaced,
        short_names: list(short_names),
        categories: list(categories),
        verbs: verbs(verb_letters),
        subresources: columns.map(subresource).collect(),
        schema: Schema { set: SchemaSet::BuiltIn, id },
        storage: storage.as_str().into(),
        storage_version: storage_version.into(),
        custom: false,
        definition: None,
        defaults: super::Defaults::default(),
    }
}

fn dash(text: &str) -> &str {
    if text == "-" { "" } else { text }
}

fn list(text: &str) -> Vec<Box<str>> {
    dash(text).split(',').filter(|t| !t.is_empty()).map(Into::into).collect()
}

fn verbs(letters: &str) -> Verbs {
    letters.chars().fold(Verbs::default(), |verbs, letter| {
        verbs.union(match letter {
            'C' => Verbs::CREATE,
            'D' => Verbs::DELETE,
            'X' => Verbs::DELETE_COLLECTION,
            'G' => Verbs::GET,
            'L' => Verbs::LIST,
            'P' => Verbs::PATCH,
            'U' => Verbs::UPDATE,
            'W' => Verbs::WATCH,
            other => panic!("verb {other}"),
        })
    })
}

fn subresource(text: &str) -> Subresource {
    let mut parts = text.split(':');
    let mut part = || parts.next().expect("a subresource has three parts");
    let (name, kind, letters) = (part(), part(), part());
    let mut kind = kind.rsplit('/');
    let (kind, version, group) =
        (kind.next().unwrap_or_default(), kind.next().unwrap_or_default(), kind.next().unwrap_or_default());
    Subresource {
        name: name.into(),
        group: group.into(),
        version: version.into(),
        kind: kind.into(),
        verbs: verbs(letters),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_line_of_the_table_is_a_resource_with_a_schema() {
        let all = built_in();
        assert!(all.len() > 60);
        let pods = all.iter().find(|r| &*r.plural == "pods").expect("pods are built in");
        assert!(pods.namespaced && pods.verbs.contains(Verbs::WATCH));
        let optional = optional();
        let slices = optional.iter().find(|(_, r)| &*r.plural == "resourceslices").expect("in its older versions");
        assert_eq!((&*slices.1.version, &*slices.1.storage_version), ("v1beta2", "resource.k8s.io/v1"));
        assert_eq!(pods.subresource("eviction").map(|s| (&*s.group, &*s.kind)), Some(("policy", "Eviction")));
    }
}
