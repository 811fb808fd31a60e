//! The schema: one description of every type, built-in and custom alike.
//!
//! A [`TypeSet`] holds types that refer to each other by index, so recursion costs nothing. The built-in set comes from
//! our `.proto` files (see `build.rs`); a CustomResourceDefinition compiles into a set of its own at run time. All
//! generic work reads this: strict decoding, defaulting, patches, server-side apply, pruning, transcoding, OpenAPI.
//!
//! A struct has two views. `props` is JSON: the properties in the order Kubernetes writes them, inlined structs spread
//! out. `wires` is protobuf: field numbers that point at properties, or at an inlined struct.

mod load;

use std::sync::{LazyLock, OnceLock};

use serde_json::{Name, is_same, know, slot};

/// Index of a [`Type`] in [`TypeSet::types`].
pub type TypeId = u32;
/// Index of a [`Struct`] in [`TypeSet::structs`].
pub type StructId = u32;

/// Types that refer to each other by index; immutable once built.
#[derive(Debug, Default)]
pub struct TypeSet {
    pub types: Vec<Type>,
    pub structs: Vec<Struct>,
    /// Sorted by group, version, kind.
    pub kinds: Vec<KindEntry>,
    /// From a CustomResourceDefinition: values are kept as sent, where Go types would leave empty ones out.
    pub custom: bool,
}

/// A group, version and kind and the struct it names.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct KindEntry {
    pub group: Box<str>,
    pub version: Box<str>,
    pub kind: Box<str>,
    pub id: StructId,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Type {
    String,
    /// Base64 text in JSON.
    Bytes,
    Bool,
    Int32,
    Int64,
    Double,
    /// `resource.Quantity`: text in JSON (a bare number is accepted), canonical form when written.
    Quantity,
    /// Seconds precision RFC 3339 in UTC, or null.
    Time,
    /// Microseconds precision RFC 3339 in UTC, or null.
    MicroTime,
    /// Go duration text, such as `1m30s`.
    Duration,
    IntOrString,
    /// `runtime.RawExtension`: any JSON value; protobuf holds the JSON text.
    Raw,
    /// `metav1.FieldsV1`: a JSON object; protobuf holds the JSON text.
    Fields,
    /// Any JSON value; in protobuf a message with the JSON text in field 1.
    Json,
    /// Apiextensions unions: one schema (field 1 in protobuf) or ... field 2.
    SchemaOrArray(StructId),
    SchemaOrBool(StructId),
    SchemaOrStrings(StructId),
    Struct(StructId),
    /// A struct that server-side apply treats as one value at this place.
    AtomicStruct(StructId),
    List(ListType),
    Map(MapType),
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListType {
    pub element: TypeId,
    pub kind: ListKind,
    /// For [`ListKind::Map`] only, in declared order.
    pub keys: Box<[Box<str>]>,
    /// In protobuf the list is a message with the items in field 1 (`Verbs`, `ExtraValue`).
    pub wrapped: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ListKind {
    Atomic,
    Set,
    Map,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MapType {
    pub value: TypeId,
    pub atomic: bool,
}

#[derive(Debug, Default)]
pub struct Struct {
    /// Full protobuf name, such as `k8s.io.api.core.v1.Pod`.
    pub name: Box<str>,
    pub props: Vec<Prop>,
    /// Positions in `props`, sorted by JSON name.
    by_name: Vec<u16>,
    /// Positions in `props` plus one, zero for none, found by a hash of the name and looking on from there. A power of
    /// two in number, at most half of them taken.
    slots: Box<[u16]>,
    /// In ascending field number, the order in which protobuf is written.
    pub wires: Vec<Wire>,
    /// Field number of each property in the message that holds it, inlined or not; 0 where protobuf has none.
    pub(crate) numbers: Box<[u32]>,
    /// A bit for each property, of the first 64, that JSON spells out even where it is absent. Told by the first writer.
    pub(crate) spelled_out: OnceLock<u64>,
    pub unions: Vec<Union>,
    /// Server-side apply treats the whole struct as one value.
    pub atomic: bool,
    /// Has `kind` and `apiVersion` as its first two properties.
    pub typed: bool,
    /// Properties that `props` does not name are kept (`x-kubernetes-preserve-unknown-fields`).
    pub open: bool,
}

/// One JSON property.
#[derive(Debug)]
pub struct Prop {
    pub name: Name,
    pub ty: TypeId,
    /// A Go pointer: may be absent. Without it a scalar that is absent means zero and a struct is always there.
    pub pointer: bool,
    /// Written even when empty (no `omitempty`); empty slices, maps and pointers are then written as null.
    pub always: bool,
    /// A non-pointer struct or time that is left out when it is zero (`omitzero`).
    pub omit_zero: bool,
    /// Listed as required in the published schema.
    pub required: bool,
    pub immutable: bool,
    /// Facts that few properties have.
    pub extra: Option<Box<PropExtra>>,
}

#[derive(Debug, Default)]
pub struct PropExtra {
    /// Strategic merge patch directives: `merge`, `replace`, `retainKeys`, comma separated.
    pub patch: Box<str>,
    pub merge_key: Box<str>,
    pub format: Box<str>,
    pub default: Option<serde_json::Value>,
    pub enumeration: Vec<Box<str>>,
}

/// One protobuf field of a struct.
#[derive(Debug, Clone, Copy)]
pub struct Wire {
    pub number: u32,
    /// Position in `props`; for an inlined struct, of its first property.
    pub prop: u16,
    /// The field is a message whose properties lie in this struct's own `props`, from `prop` on.
    pub inline: Option<StructId>,
}

/// Sibling properties of which at most one is set.
#[derive(Debug)]
pub struct Union {
    pub discriminator: Option<Box<str>>,
    pub members: Vec<Box<str>>,
}

static BUILT_IN: LazyLock<TypeSet> = LazyLock::new(|| {
    let set = load::parse(include_str!(concat!(env!("OUT_DIR"), "/schema.txt")));
    know(set.structs.iter().flat_map(|shape| &shape.props).filter_map(|prop| prop.name.as_fixed()));
    set
});

impl TypeSet {
    /// Every type of the built-in API groups.
    pub fn built_in() -> &'static TypeSet {
        &BUILT_IN
    }

    pub fn is_custom(&self) -> bool {
        self.custom
    }

    pub fn ty(&self, id: TypeId) -> &Type {
        &self.types[id as usize]
    }

    pub fn get(&self, id: StructId) -> &Struct {
        &self.structs[id as usize]
    }

    /// The struct of a kind, or None when the set does not know it.
    pub fn kind(&self, group: &str, version: &str, kind: &str) -> Option<StructId> {
        self.kinds
            .binary_search_by(|k| (&*k.group, &*k.version, &*k.kind).cmp(&(group, version, kind)))
            .ok()
            .map(|at| self.kinds[at].id)
    }

    /// The struct with a full protobuf name; a scan, for set-up code only.
    pub fn struct_named(&self, name: &str) -> Option<StructId> {
        let at = self.structs.iter().position(|s| &*s.name == name)?;
        u32::try_from(at).ok()
    }
}

impl Struct {
    /// The property with a JSON name and its position in `props`.
    pub fn prop(&self, name: &str) -> Option<(usize, &Prop)> {
        let mask = self.slots.len().checked_sub(1)?;
        let mut at = slot(name) & mask;
        loop {
            let index = usize::from(self.slots[at]).checked_sub(1)?;
            let prop = &self.props[index];
            if is_same(&prop.name, name) {
                return Some((index, prop));
            }
            at = (at + 1) & mask;
        }
    }

    /// The properties sorted by JSON name.
    pub fn sorted(&self) -> impl Iterator<Item = &Prop> {
        self.by_name.iter().map(|&at| &self.props[usize::from(at)])
    }

    /// Sorts the name index and the wire fields; call once after `props` and `wires` are filled.
    pub fn index(&mut self) {
        let count = u16::try_from(self.props.len()).unwrap_or(u16::MAX);
        self.by_name = (0..count).collect();
        let props = &self.props;
        self.by_name.sort_by(|&a, &b| props[usize::from(a)].name.cmp(&props[usize::from(b)].name));
        self.wires.sort_by_key(|w| w.number);
        let mut slots = vec![0u16; (props.len() * 2).next_power_of_two()];
        let mask = slots.len() - 1;
        for (number, prop) in (1..u16::MAX).zip(props) {
            let mut at = slot(&prop.name) & mask;
            while slots[at] != 0 {
                at = (at + 1) & mask;
            }
            slots[at] = number;
        }
        self.slots = slots.into();
    }
}

impl Prop {
    pub fn merge_key(&self) -> Option<&str> {
        self.extra.as_ref().map(|e| &*e.merge_key).filter(|k| !k.is_empty())
    }

    /// Whether the strategic merge patch directives name `strategy`.
    pub fn has_patch_strategy(&self, strategy: &str) -> bool {
        self.extra.as_ref().is_some_and(|e| e.patch.split(',').any(|s| s == strategy))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pod_is_a_kind_with_its_type_properties_first() {
        let set = TypeSet::built_in();
        let pod = set.get(set.kind("", "v1", "Pod").expect("v1 Pod is built in"));
        let names: Vec<_> = pod.props.iter().map(|p| &*p.name).collect();
        assert_eq!(names, ["kind", "apiVersion", "metadata", "spec", "status"]);
        assert_eq!(pod.wires.iter().map(|w| w.number).collect::<Vec<_>>(), [1, 2, 3]);
    }

    #[test]
    fn every_property_is_found_by_its_name_and_no_other_name_is() {
        let set = TypeSet::built_in();
        for shape in &set.structs {
            for (index, prop) in shape.props.iter().enumerate() {
                assert_eq!(shape.prop(&prop.name).map(|(at, _)| at), Some(index), "{}.{}", shape.name, prop.name);
                assert!(shape.prop(&format!("{}x", prop.name)).is_none());
            }
            assert!(shape.prop("").is_none());
        }
        assert!(Struct::default().prop("a").is_none());
    }

    #[test]
    fn inlined_structs_are_spread_out_in_json_and_nested_in_protobuf() {
        let set = TypeSet::built_in();
        let volume = set.get(set.struct_named("k8s.io.api.core.v1.Volume").expect("Volume is built in"));
        let (at, prop) = volume.prop("hostPath").expect("volume sources are inlined");
        assert!(prop.pointer && at > 0);
        assert!(volume.wires[1].inline.is_some());
    }

    #[test]
    fn container_ports_are_a_map_list_with_two_keys_and_one_merge_key() {
        let set = TypeSet::built_in();
        let container = set.get(set.struct_named("k8s.io.api.core.v1.Container").expect("Container is built in"));
        let (_, ports) = container.prop("ports").expect("containers have ports");
        let Type::List(list) = set.ty(ports.ty) else { panic!("ports is a list") };
        assert_eq!(list.kind, ListKind::Map);
        assert_eq!(list.keys.iter().map(|k| &**k).collect::<Vec<_>>(), ["containerPort", "protocol"]);
        assert_eq!(ports.merge_key(), Some("containerPort"));
    }
}
