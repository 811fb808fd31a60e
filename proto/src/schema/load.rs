//! Reads the table that `build.rs` wrote. The text is ours and part of the binary, so a bad line is a bug in the build
//! and panics on first use; `tests` of the parent module read the whole table.

use serde_json::Name;

use super::{
    KindEntry, ListKind, ListType, MapType, Prop, PropExtra, Struct, StructId, Type, TypeId, TypeSet, Union, Wire,
};

pub(super) fn parse(text: &'static str) -> TypeSet {
    let mut set = TypeSet::default();
    let mut forms: Vec<&str> = Vec::new();
    for line in text.lines() {
        let columns: Vec<&str> = line.split('\t').collect();
        match columns[0] {
            "T" => set.types.push(parse_type(&columns[1..])),
            "S" => {
                forms.push(columns[2]);
                set.structs.push(Struct {
                    name: columns[1].into(),
                    atomic: columns[3] == "1",
                    typed: columns[4] == "1",
                    ..Struct::default()
                });
            }
            "K" => set.kinds.push(KindEntry {
                group: columns[1].into(),
                version: columns[2].into(),
                kind: columns[3].into(),
                id: number(columns[4]),
            }),
            tag => {
                let current = set.structs.last_mut().expect("a struct comes before its parts");
                match tag {
                    "P" => current.props.push(parse_prop(&columns[1..])),
                    "W" => current.wires.push(parse_wire(&columns[1..])),
                    "U" => current.unions.push(Union {
                        discriminator: Some(columns[1]).filter(|d| !d.is_empty()).map(Into::into),
                        members: columns[2].split(',').map(Into::into).collect(),
                    }),
                    _ => panic!("schema line {line:?}"),
                }
            }
        }
    }
    give_json_forms(&mut set, &forms);
    set.structs.iter_mut().for_each(Struct::index);
    for id in 0..set.structs.len() {
        let mut numbers = vec![0; set.structs[id].props.len()];
        number_props(&set, id, 0, &mut numbers);
        set.structs[id].numbers = numbers.into();
    }
    set.kinds.sort();
    set
}

/// Notes the field numbers of a struct's properties, which start at `base`.
fn number_props(set: &TypeSet, id: usize, base: usize, numbers: &mut [u32]) {
    for wire in &set.structs[id].wires {
        let at = base + usize::from(wire.prop);
        match wire.inline {
            Some(inner) => number_props(set, inner as usize, at, numbers),
            None => numbers[at] = wire.number,
        }
    }
}

/// Replaces references to structs that JSON writes as something else (Quantity, Time, ...) by the type that says so.
fn give_json_forms(set: &mut TypeSet, forms: &[&str]) {
    let schema = set.struct_named("k8s.io.apiextensions_apiserver.pkg.apis.apiextensions.v1.JSONSchemaProps");
    let schema = schema.expect("JSONSchemaProps is declared");
    let string = set.types.iter().position(|t| *t == Type::String).expect("some field is a string");
    let string = TypeId::try_from(string).expect("the table is small");
    for ty in &mut set.types {
        let Type::Struct(id) = ty else { continue };
        *ty = match forms[*id as usize] {
            "-" => continue,
            "quantity" => Type::Quantity,
            "time" => Type::Time,
            "micro-time" => Type::MicroTime,
            "duration" => Type::Duration,
            "int-or-string" => Type::IntOrString,
            "raw-extension" => Type::Raw,
            "fields-v1" => Type::Fields,
            "json" => Type::Json,
            "schema-or-array" => Type::SchemaOrArray(schema),
            "schema-or-bool" => Type::SchemaOrBool(schema),
            "schema-or-strings" => Type::SchemaOrStrings(schema),
            "list" => {
                Type::List(ListType { element: string, kind: ListKind::Atomic, keys: Box::default(), wrapped: true })
            }
            form => panic!("unknown JSON form {form}"),
        };
    }
}

fn number<T: std::str::FromStr>(text: &str) -> T {
    text.parse().ok().unwrap_or_else(|| panic!("schema number {text:?}"))
}

fn parse_type(columns: &[&str]) -> Type {
    match columns[0] {
        "string" => Type::String,
        "bytes" => Type::Bytes,
        "bool" => Type::Bool,
        "int32" => Type::Int32,
        "int64" => Type::Int64,
        "double" => Type::Double,
        "struct" => Type::Struct(number::<StructId>(columns[1])),
        "atomic-struct" => Type::AtomicStruct(number::<StructId>(columns[1])),
        "list" => Type::List(ListType {
            element: number(columns[1]),
            kind: match columns[2] {
                "set" => ListKind::Set,
                "map" => ListKind::Map,
                _ => ListKind::Atomic,
            },
            keys: columns[3].split(',').filter(|k| !k.is_empty()).map(Into::into).collect(),
            wrapped: false,
        }),
        "map" => Type::Map(MapType { value: number(columns[1]), atomic: columns[2] == "atomic" }),
        other => panic!("schema type {other:?}"),
    }
}

fn parse_prop(columns: &[&'static str]) -> Prop {
    let flag = |letter| columns[2].contains(letter);
    let (patch, merge_key, format, default, enums) = (columns[3], columns[4], columns[5], columns[6], columns[7]);
    let plain = columns[3..].iter().all(|c| c.is_empty());
    Prop {
        name: Name::fixed(columns[0]),
        ty: number(columns[1]),
        pointer: flag('p'),
        always: flag('a'),
        omit_zero: flag('z'),
        required: flag('r'),
        immutable: flag('i'),
        extra: (!plain).then(|| {
            Box::new(PropExtra {
                patch: patch.into(),
                merge_key: merge_key.into(),
                format: format.into(),
                default: (!default.is_empty()).then(|| serde_json::from_str(default).expect("a default is JSON")),
                enumeration: enums.split(',').filter(|e| !e.is_empty()).map(Into::into).collect(),
            })
        }),
    }
}

fn parse_wire(columns: &[&str]) -> Wire {
    Wire {
        number: number(columns[0]),
        prop: number(columns[1]),
        inline: (columns[2] != "-").then(|| number(columns[2])),
    }
}
