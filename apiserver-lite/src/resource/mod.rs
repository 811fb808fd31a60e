//! What the server knows of each resource: its names, scope, verbs, subresources and schema.
//!
//! Built-in resources and custom resources are the same [`Resource`]; handlers take an `Arc<Resource>` and never ask
//! which of the two it is, except through its data.

mod devices;
pub mod fields;
mod registry;
pub mod table;
pub mod versions;

use std::sync::Arc;

use proto::schema::{StructId, TypeSet};

use crate::store::ResourceId;

pub use registry::{Resources, Set};

/// A small set of named flags in declaration order.
macro_rules! bitset {
    ($(#[$doc:meta])* pub struct $name:ident: $int:ty { $($flag:ident = $text:literal),* $(,)? }) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
        pub struct $name($int);

        impl $name {
            bitset!(@flags 0, $int, $($flag)*);
            const NAMES: &'static [&'static str] = &[$($text),*];

            pub const fn contains(self, other: Self) -> bool {
                self.0 & other.0 == other.0
            }

            #[must_use]
            pub const fn union(self, other: Self) -> Self {
                $name(self.0 | other.0)
            }

            pub fn names(self) -> impl Iterator<Item = &'static str> {
                Self::NAMES.iter().enumerate().filter(move |(i, _)| self.0 & (1 << i) != 0).map(|(_, n)| *n)
            }
        }
    };
    (@flags $at:expr, $int:ty, $flag:ident $($rest:ident)*) => {
        pub const $flag: Self = Self((1 as $int) << $at);
        bitset!(@flags $at + 1, $int, $($rest)*);
    };
    (@flags $at:expr, $int:ty,) => {};
}

#[derive(Debug)]
pub struct Resource {
    pub group: Box<str>,
    pub version: Box<str>,
    /// Lower-case plural, as in paths.
    pub plural: Box<str>,
    pub singular: Box<str>,
    pub kind: Box<str>,
    /// Kind of a list, such as `PodList`.
    pub list_kind: Box<str>,
    pub namespaced: bool,
    pub short_names: Vec<Box<str>>,
    pub categories: Vec<Box<str>>,
    pub verbs: Verbs,
    pub subresources: Vec<Subresource>,
    pub schema: Schema,
    /// Where objects are stored; versions of one resource, and `events` of both its groups, share it.
    pub storage: ResourceId,
    /// `group/version` of the objects at rest in `storage`, and their schema.
    pub storage_version: Box<str>,
    pub stored: Schema,
    /// What feature gates add to its defaults.
    pub defaults: Defaults,
    /// Made from a CustomResourceDefinition: objects are unstructured, JSON keys sorted.
    pub custom: bool,
    /// The version of the definition that a custom resource was made from.
    pub definition: Option<Arc<crate::crd::Definition>>,
}

/// Defaults that only some feature gates bring.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Defaults {
    /// `MaxUnavailableStatefulSet`: a rolling update has one pod less at a time.
    pub unavailable: bool,
}

/// A struct in a type set; custom resources bring a set of their own.
#[derive(Debug, Clone)]
pub struct Schema {
    pub set: SchemaSet,
    pub id: StructId,
}

#[derive(Debug, Clone)]
pub enum SchemaSet {
    BuiltIn,
    Custom(Arc<TypeSet>),
}

impl Schema {
    pub fn set(&self) -> &TypeSet {
        match &self.set {
            SchemaSet::BuiltIn => TypeSet::built_in(),
            SchemaSet::Custom(set) => set,
        }
    }
}

#[derive(Debug, Clone)]
pub struct Subresource {
    /// Last path element: `status`, `scale`, `log`, ...
    pub name: Box<str>,
    /// Group, version and kind of the subresource's own objects where they differ from the resource's.
    pub group: Box<str>,
    pub version: Box<str>,
    pub kind: Box<str>,
    pub verbs: Verbs,
}

bitset! {
    /// Verbs that a resource or subresource answers to.
    pub struct Verbs: u16 {
        CREATE = "create", DELETE = "delete", DELETE_COLLECTION = "deletecollection", GET = "get", LIST = "list",
        PATCH = "patch", UPDATE = "update", WATCH = "watch",
    }
}

/// Whether a group is one of the server's own.
pub fn is_built_in_group(group: &str) -> bool {
    TypeSet::built_in().kinds.iter().any(|kind| *kind.group == *group)
}

/// Whether a version of a group is one of the server's own, served or not.
pub fn is_built_in_version(group: &str, version: &str) -> bool {
    TypeSet::built_in().kinds.iter().any(|kind| *kind.group == *group && *kind.version == *version)
}

impl Resource {
    /// `v1` or `apps/v1`.
    pub fn api_version(&self) -> String {
        if self.group.is_empty() { self.version.to_string() } else { format!("{}/{}", self.group, self.version) }
    }

    /// Whether objects of this resource say that they are of a `group/version`.
    pub fn is_of(&self, api_version: &str) -> bool {
        let (group, version) = api_version.rsplit_once('/').unwrap_or(("", api_version));
        *self.group == *group && *self.version == *version
    }

    /// The struct of objects at rest, which is another than the served one's where a kind has several versions.
    pub fn storage_schema(&self) -> StructId {
        if self.custom || *self.storage_version == self.api_version() {
            return self.schema.id;
        }
        let (group, version) = self.storage_version.rsplit_once('/').unwrap_or(("", &self.storage_version));
        TypeSet::built_in().kind(group, version, &self.kind).unwrap_or(self.schema.id)
    }

    pub fn subresource(&self, name: &str) -> Option<&Subresource> {
        self.subresources.iter().find(|s| &*s.name == name)
    }
}

/// The Go package of a group's internal types, which error texts show.
pub fn go_package(group: &str) -> &str {
    match group.split('.').next().unwrap_or_default() {
        "" | "events" => "core",
        first => first,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_resource_is_of_its_own_version_and_of_no_other() {
        let all = table::built_in();
        let versions: std::collections::BTreeSet<String> = all.iter().map(Resource::api_version).collect();
        for resource in &all {
            let own = resource.api_version();
            assert!(versions.iter().all(|version| resource.is_of(version) == (*version == own)), "{own}");
        }
    }
}
