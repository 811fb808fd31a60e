//! The schema of a custom resource as a type table, which server-side apply and the owners of fields work with.

use proto::schema::{ListKind, ListType as List, MapType, Prop, PropExtra, Struct, StructId, Type, TypeId, TypeSet};

use super::prune::OBJECT_META;
use super::schema::{Additional, ListType, Schema};
use crate::resource::{Schema as Shape, SchemaSet};

/// The type table of one version's schema.
pub fn table(schema: &Schema, kind: &str) -> Shape {
    let mut builder = Builder { set: TypeSet { custom: true, ..TypeSet::default() }, copied: Vec::new() };
    let id = builder.root(schema, kind);
    Shape { set: SchemaSet::Custom(builder.set.into()), id }
}

struct Builder {
    set: TypeSet,
    /// Built-in structs that were copied, and where to.
    copied: Vec<(StructId, StructId)>,
}

fn position(length: usize) -> u32 {
    // A definition is at most a few megabytes of text, each type of it several bytes.
    u32::try_from(length).unwrap_or(u32::MAX)
}

fn prop(name: &str, ty: TypeId, default: Option<&serde_json::Value>) -> Prop {
    Prop {
        name: name.into(),
        ty,
        pointer: true,
        always: false,
        omit_zero: false,
        required: false,
        immutable: false,
        extra: default.map(|d| Box::new(PropExtra { default: Some(d.clone()), ..PropExtra::default() })),
    }
}

impl Builder {
    fn ty(&mut self, ty: Type) -> TypeId {
        if let Some(at) = self.set.types.iter().position(|t| *t == ty) {
            return position(at);
        }
        self.set.types.push(ty);
        position(self.set.types.len() - 1)
    }

    fn structure(&mut self, mut structure: Struct) -> StructId {
        structure.index();
        self.set.structs.push(structure);
        position(self.set.structs.len() - 1)
    }

    fn root(&mut self, schema: &Schema, kind: &str) -> StructId {
        let structure = self.members(schema, true, schema.preserve, kind);
        self.structure(structure)
    }

    /// An object's properties; those that every object with kind and version has come first.
    fn members(&mut self, schema: &Schema, embedded: bool, open: bool, name: &str) -> Struct {
        let mut props = Vec::with_capacity(schema.properties.len() + 3);
        if embedded {
            let text = self.ty(Type::String);
            props.push(prop("kind", text, None));
            props.push(prop("apiVersion", text, None));
            if let Some(metadata) = self.metadata() {
                props.push(prop("metadata", metadata, None));
            }
        }
        for (key, member) in &schema.properties {
            if embedded && matches!(&**key, "kind" | "apiVersion" | "metadata") {
                continue;
            }
            let ty = self.value(member, open);
            props.push(prop(key, ty, member.default.as_ref()));
        }
        let mut structure = Struct::default();
        structure.name = name.into();
        structure.props = props;
        (structure.atomic, structure.typed, structure.open) = (schema.atomic, embedded, open);
        structure
    }

    /// The type of a value. `open` when something above keeps unknown fields.
    fn value(&mut self, schema: &Schema, open: bool) -> TypeId {
        let open = open || schema.preserve;
        if schema.int_or_string {
            return self.ty(Type::IntOrString);
        }
        let ty = match &*schema.ty {
            "string" => Type::String,
            "integer" => Type::Int64,
            "number" => Type::Double,
            "boolean" => Type::Bool,
            "array" => {
                let Some(items) = &schema.items else { return self.ty(Type::Json) };
                let element = self.value(items, open);
                let kind = match schema.list {
                    ListType::Unsaid | ListType::Atomic => ListKind::Atomic,
                    ListType::Set => ListKind::Set,
                    ListType::Map => ListKind::Map,
                };
                Type::List(List { element, kind, keys: schema.list_keys.clone().into(), wrapped: false })
            }
            "object" => match schema.additional.as_deref() {
                Some(Additional::Values(values)) if schema.properties.is_empty() => {
                    let value = self.value(values, open);
                    Type::Map(MapType { value, atomic: schema.atomic })
                }
                Some(Additional::Allowed(true)) if schema.properties.is_empty() => {
                    let value = self.ty(Type::Json);
                    Type::Map(MapType { value, atomic: schema.atomic })
                }
                _ => {
                    let structure = self.members(schema, schema.embedded, open, "");
                    Type::Struct(self.structure(structure))
                }
            },
            _ => Type::Json,
        };
        self.ty(ty)
    }

    fn metadata(&mut self) -> Option<TypeId> {
        let id = (*OBJECT_META)?;
        let id = self.copy_struct(id);
        Some(self.ty(Type::Struct(id)))
    }

    /// Takes a built-in struct over, with all that it refers to.
    fn copy_struct(&mut self, id: StructId) -> StructId {
        if let Some((_, copy)) = self.copied.iter().find(|(from, _)| *from == id) {
            return *copy;
        }
        let from = TypeSet::built_in().get(id);
        let mut empty = Struct::default();
        empty.name = from.name.clone();
        (empty.atomic, empty.typed, empty.open) = (from.atomic, from.typed, from.open);
        let copy = self.structure(empty);
        self.copied.push((id, copy));
        let props: Vec<Prop> =
            from.props.iter().map(|p| Prop { always: p.always, ..prop(&p.name, self.copy_type(p.ty), None) }).collect();
        let structure = &mut self.set.structs[copy as usize];
        structure.props = props;
        structure.index();
        copy
    }

    fn copy_type(&mut self, id: TypeId) -> TypeId {
        let ty = match TypeSet::built_in().ty(id) {
            Type::Struct(id) => Type::Struct(self.copy_struct(*id)),
            Type::AtomicStruct(id) => Type::AtomicStruct(self.copy_struct(*id)),
            Type::List(list) => Type::List(List { element: self.copy_type(list.element), ..list.clone() }),
            Type::Map(map) => Type::Map(MapType { value: self.copy_type(map.value), atomic: map.atomic }),
            other => other.clone(),
        };
        self.ty(ty)
    }
}
