//! Types as OpenAPI schemas, with the extensions that Kubernetes clients read.

use std::collections::BTreeMap;

use proto::schema::{ListKind, Prop, StructId, Type, TypeId, TypeSet};
use serde_json::{Map, Value, json};

use super::routes::{Route, capital};
use super::{Format, custom, descriptions, everywhere};
use crate::resource::{Resource, SchemaSet};

/// Schemas that a document refers to.
pub(super) struct Schemas {
    format: Format,
    done: BTreeMap<String, Value>,
    waiting: Vec<StructId>,
}

/// `k8s.io.api.core.v1.Pod` as `io.k8s.api.core.v1.Pod`.
fn public_name(name: &str) -> String {
    name.strip_prefix("k8s.io.").map_or_else(|| name.to_owned(), |rest| format!("io.k8s.{}", rest.replace('_', "-")))
}

/// A type of `meta/v1`.
pub(super) fn meta_type(name: &str) -> Option<StructId> {
    TypeSet::built_in().struct_named(&format!("k8s.io.apimachinery.pkg.apis.meta.v1.{name}"))
}

impl Schemas {
    pub fn new(format: Format) -> Self {
        Schemas { format, done: BTreeMap::new(), waiting: Vec::new() }
    }

    /// A reference to the schema of a resource's kind.
    pub fn of(&mut self, resource: &Resource) -> Value {
        match &resource.schema.set {
            SchemaSet::BuiltIn => self.reference(resource.schema.id),
            SchemaSet::Custom(_) => {
                let name = custom::name(resource, &resource.kind);
                if !self.done.contains_key(&name) {
                    let schema = custom::kind(resource, self.format, &self.meta("ObjectMeta"));
                    self.done.insert(name.clone(), schema);
                }
                self.format.reference(&name)
            }
        }
    }

    /// A reference to the schema of what is sent and answered at a path: the resource's, or its subresource's own.
    pub fn of_route(&mut self, route: &Route<'_>) -> Value {
        let (group, version, kind) = route.kind();
        let own = route.sub.and_then(|_| TypeSet::built_in().kind(group, version, kind));
        match own {
            Some(id) => self.reference(id),
            None => self.of(route.resource),
        }
    }

    /// A reference to a schema that is of no type of the API.
    pub fn own(&mut self, name: &str, schema: Value) -> Value {
        self.done.insert(name.to_owned(), schema);
        self.format.reference(name)
    }

    /// A reference to the schema of a list of a resource's objects.
    pub fn list_of(&mut self, resource: &Resource) -> Value {
        match &resource.schema.set {
            SchemaSet::BuiltIn => {
                let set = TypeSet::built_in();
                let list = set.kind(&resource.group, &resource.version, &resource.list_kind);
                self.reference(list.unwrap_or(resource.schema.id))
            }
            SchemaSet::Custom(_) => {
                let name = custom::name(resource, &resource.list_kind);
                let (item, meta) = (self.of(resource), self.meta("ListMeta"));
                self.done.insert(name.clone(), custom::list(resource, self.format, &item, &meta));
                self.format.reference(&name)
            }
        }
    }

    /// A reference to a type of `meta/v1`, such as `Status`.
    pub fn meta(&mut self, name: &str) -> Value {
        let public = format!("io.k8s.apimachinery.pkg.apis.meta.v1.{name}");
        if !self.done.contains_key(&public)
            && let Some(id) = meta_type(name)
        {
            return self.reference(id);
        }
        self.format.reference(&public)
    }

    fn reference(&mut self, id: StructId) -> Value {
        let name = public_name(&TypeSet::built_in().get(id).name);
        if !self.done.contains_key(&name) {
            self.done.insert(name.clone(), Value::Null);
            self.waiting.push(id);
        }
        self.format.reference(&name)
    }

    /// Every schema that was referred to, and those that they refer to.
    pub fn finish(mut self) -> Value {
        while let Some(id) = self.waiting.pop() {
            let schema = self.structure(id);
            self.done.insert(public_name(&TypeSet::built_in().get(id).name), schema);
        }
        self.done.into_iter().collect::<Map<_, _>>().into()
    }

    fn structure(&mut self, id: StructId) -> Value {
        let set = TypeSet::built_in();
        let structure = set.get(id);
        let mut properties = Map::new();
        for prop in &structure.props {
            properties.insert(prop.name.clone(), self.property(&structure.name, prop));
        }
        let mut out = json!({"type": "object"});
        if let Some(text) = descriptions::of_type(&structure.name) {
            out["description"] = text.into();
        }
        if !properties.is_empty() {
            out["properties"] = properties.into();
        }
        let required: Vec<&str> = structure.props.iter().filter(|p| p.required).map(|p| &*p.name).collect();
        if !required.is_empty() {
            out["required"] = json!(required);
        }
        if structure.atomic {
            out["x-kubernetes-map-type"] = "atomic".into();
        }
        let unions: Vec<Value> = structure
            .unions
            .iter()
            .map(|u| json!({"discriminator": u.discriminator, "fields-to-discriminateBy": members(&u.members)}))
            .collect();
        if !unions.is_empty() && structure.unions.iter().all(|u| u.discriminator.is_some()) {
            out["x-kubernetes-unions"] = unions.into();
        }
        let own = set.kinds.iter().filter(|k| k.id == id);
        let own = own.map(|k| json!({"group": &*k.group, "version": &*k.version, "kind": &*k.kind}));
        let kinds = everywhere::kinds(&structure.name).unwrap_or_else(|| own.collect());
        if !kinds.is_empty() {
            out["x-kubernetes-group-version-kind"] = kinds.into();
        }
        out
    }

    fn property(&mut self, owner: &str, prop: &Prop) -> Value {
        let mut out = self.ty(prop.ty);
        let mut extensions = Map::new();
        if let Some(text) = descriptions::of_field(owner, &prop.name) {
            extensions.insert("description".into(), text.into());
        }
        if let Type::List(list) = TypeSet::built_in().ty(prop.ty) {
            let kind = match list.kind {
                ListKind::Atomic => "atomic",
                ListKind::Set => "set",
                ListKind::Map => "map",
            };
            extensions.insert("x-kubernetes-list-type".into(), kind.into());
            if !list.keys.is_empty() {
                let keys: Vec<&str> = list.keys.iter().map(|k| &**k).collect();
                extensions.insert("x-kubernetes-list-map-keys".into(), json!(keys));
            }
        }
        if let Some(extra) = &prop.extra {
            if !extra.patch.is_empty() {
                extensions.insert("x-kubernetes-patch-strategy".into(), (&*extra.patch).into());
            }
            if !extra.merge_key.is_empty() {
                extensions.insert("x-kubernetes-patch-merge-key".into(), (&*extra.merge_key).into());
            }
            // Readers of the older format stumble over defaults: there are none in it.
            if let Some(default) = extra.default.as_ref().filter(|_| self.format == Format::V3) {
                extensions.insert("default".into(), default.clone());
            }
            if !extra.format.is_empty() {
                extensions.insert("format".into(), (&*extra.format).into());
            }
            if !extra.enumeration.is_empty() {
                let values: Vec<&str> = extra.enumeration.iter().map(|e| &**e).collect();
                extensions.insert("enum".into(), json!(values));
            }
        }
        if extensions.is_empty() {
            return out;
        }
        if out.get("$ref").is_some() && self.format == Format::V3 {
            // Nothing beside a `$ref` counts.
            out = json!({"allOf": [out]});
        }
        if let Value::Object(map) = &mut out {
            map.extend(extensions);
        }
        out
    }

    fn ty(&mut self, id: TypeId) -> Value {
        let ty = TypeSet::built_in().ty(id);
        match leaf_name(ty) {
            Some(name) => {
                if !self.done.contains_key(&public_name(name)) {
                    let mut schema = self.inline(id);
                    if let Some(text) = descriptions::of_type(name) {
                        schema["description"] = text.into();
                    }
                    self.done.insert(public_name(name), schema);
                }
                self.format.reference(&public_name(name))
            }
            None => self.inline(id),
        }
    }

    fn inline(&mut self, id: TypeId) -> Value {
        let choice = |types: &[&str], format: Option<&str>| {
            let mut out = json!({"oneOf": types.iter().map(|t| json!({"type": t})).collect::<Vec<_>>()});
            if let Some(format) = format {
                out["format"] = format.into();
            }
            out
        };
        match (TypeSet::built_in().ty(id), self.format) {
            (Type::String | Type::Duration, _) => json!({"type": "string"}),
            (Type::Bytes, _) => json!({"type": "string", "format": "byte"}),
            (Type::Bool, _) => json!({"type": "boolean"}),
            (Type::Int32, _) => json!({"type": "integer", "format": "int32"}),
            (Type::Int64, _) => json!({"type": "integer", "format": "int64"}),
            (Type::Double, _) => json!({"type": "number", "format": "double"}),
            (Type::Time | Type::MicroTime, _) => json!({"type": "string", "format": "date-time"}),
            (Type::Quantity, Format::V2) => json!({"type": "string"}),
            (Type::Quantity, Format::V3) => choice(&["string", "number"], None),
            (Type::IntOrString, Format::V2) => json!({"type": "string", "format": "int-or-string"}),
            (Type::IntOrString, Format::V3) => choice(&["integer", "string"], Some("int-or-string")),
            (Type::Raw | Type::Fields, _) => json!({"type": "object"}),
            (Type::Json | Type::SchemaOrArray(_) | Type::SchemaOrBool(_) | Type::SchemaOrStrings(_), _) => json!({}),
            (Type::Struct(id) | Type::AtomicStruct(id), _) => self.reference(*id),
            (Type::List(list), _) => json!({"type": "array", "items": self.ty(list.element)}),
            (Type::Map(map), _) => json!({"type": "object", "additionalProperties": self.ty(map.value)}),
        }
    }
}

/// The name under which a type without members of its own is found, where it has one: `kubectl explain` shows it.
fn leaf_name(ty: &Type) -> Option<&'static str> {
    Some(match ty {
        Type::Quantity => "k8s.io.apimachinery.pkg.api.resource.Quantity",
        Type::IntOrString => "k8s.io.apimachinery.pkg.util.intstr.IntOrString",
        Type::Time => "k8s.io.apimachinery.pkg.apis.meta.v1.Time",
        Type::MicroTime => "k8s.io.apimachinery.pkg.apis.meta.v1.MicroTime",
        Type::Duration => "k8s.io.apimachinery.pkg.apis.meta.v1.Duration",
        Type::Fields => "k8s.io.apimachinery.pkg.apis.meta.v1.FieldsV1",
        Type::Raw => "k8s.io.apimachinery.pkg.runtime.RawExtension",
        // Nothing can be said about these but what they are for; a schema that is empty is none to `kubectl explain`.
        Type::Json => "k8s.io.apiextensions_apiserver.pkg.apis.apiextensions.v1.JSON",
        Type::SchemaOrArray(_) => "k8s.io.apiextensions_apiserver.pkg.apis.apiextensions.v1.JSONSchemaPropsOrArray",
        Type::SchemaOrBool(_) => "k8s.io.apiextensions_apiserver.pkg.apis.apiextensions.v1.JSONSchemaPropsOrBool",
        Type::SchemaOrStrings(_) => {
            "k8s.io.apiextensions_apiserver.pkg.apis.apiextensions.v1.JSONSchemaPropsOrStringArray"
        }
        _ => return None,
    })
}

fn members(members: &[Box<str>]) -> Value {
    members.iter().map(|m| (m.to_string(), Value::from(capital(m)))).collect::<Map<_, _>>().into()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(format: Format) -> Value {
        let set = TypeSet::built_in();
        let mut schemas = Schemas::new(format);
        for kind in ["Pod", "Service"] {
            schemas.reference(set.kind("", "v1", kind).expect("built in"));
        }
        schemas.finish()
    }

    /// Every schema inside of one, by its path.
    fn empties(path: &str, schema: &Value, out: &mut Vec<String>) {
        let Some(members) = schema.as_object() else { return };
        if members.is_empty() {
            out.push(path.to_owned());
        }
        for (name, property) in schema["properties"].as_object().into_iter().flatten() {
            empties(&format!("{path}.{name}"), property, out);
        }
        for key in ["items", "additionalProperties"] {
            empties(&format!("{path}.{key}"), &schema[key], out);
        }
    }

    #[test]
    fn no_schema_says_nothing() {
        let set = TypeSet::built_in();
        for format in [Format::V2, Format::V3] {
            let mut schemas = Schemas::new(format);
            set.kinds.iter().for_each(|kind| drop(schemas.reference(kind.id)));
            let mut out = Vec::new();
            for (name, schema) in schemas.finish().as_object().expect("schemas") {
                empties(name, schema, &mut out);
            }
            assert_eq!(out, Vec::<String>::new());
        }
    }

    #[test]
    fn amounts_and_ports_go_by_the_names_of_their_types() {
        const QUANTITY: &str = "io.k8s.apimachinery.pkg.api.resource.Quantity";
        const CHOICE: &str = "io.k8s.apimachinery.pkg.util.intstr.IntOrString";
        for (format, place) in [(Format::V2, "#/definitions"), (Format::V3, "#/components/schemas")] {
            let all = all(format);
            let limits = &all["io.k8s.api.core.v1.ResourceRequirements"]["properties"]["limits"];
            assert_eq!(limits["additionalProperties"], json!({"$ref": format!("{place}/{QUANTITY}")}));
            let port = &all["io.k8s.api.core.v1.ServicePort"]["properties"]["targetPort"];
            let reference = if format == Format::V3 { &port["allOf"][0] } else { port };
            assert_eq!(reference["$ref"], format!("{place}/{CHOICE}"));
            assert!(all[QUANTITY]["description"].is_string() && all[CHOICE]["format"] == "int-or-string");
        }
        assert_eq!(all(Format::V2)[QUANTITY]["type"], "string");
        assert_eq!(all(Format::V3)[QUANTITY]["oneOf"], json!([{"type": "string"}, {"type": "number"}]));
    }
}
