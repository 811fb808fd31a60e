//! The schema table has the messages and fields that Kubernetes 1.36 publishes: numbers, names, types, list and map keys,
//! patch strategies, required fields. The published list lies beside the checkout and the test says so where it does not.

use std::collections::BTreeMap;

use proto::schema::{ListKind, Prop, Struct, Type, TypeId, TypeSet};
use serde_json::Value;

fn published() -> Option<Value> {
    let shared = std::env::var("ORCHESTRATOR_SHARED")
        .unwrap_or_else(|_| concat!(env!("CARGO_MANIFEST_DIR"), "/../../shared").into());
    let text = std::fs::read(format!("{shared}/facts/api-fields.json")).ok()?;
    Some(serde_json::from_slice(&text).expect("the list is JSON"))
}

/// `$ref` and `x-kubernetes-list-type` are `ref` and `xKubernetesListType` in protobuf.
fn plain(name: &str) -> String {
    name.chars().filter(char::is_ascii_alphanumeric).map(|c| c.to_ascii_lowercase()).collect()
}

/// Where the list says what JSON does not show.
const EXCEPTIONS: &[(&str, &str)] = &[
    // Inlined in the Go type as in v1, of which the list says so.
    ("k8s.io.api.networking.v1beta1.IngressRule", "ingressRuleValue"),
    // JSON shows what is inside.
    ("k8s.io.apiextensions_apiserver.pkg.apis.apiextensions.v1.JSON", "raw"),
    ("k8s.io.apimachinery.pkg.apis.meta.v1.FieldsV1", "Raw"),
    ("k8s.io.apimachinery.pkg.runtime.RawExtension", "raw"),
    // The envelope has no JSON at all.
    ("k8s.io.apimachinery.pkg.runtime.Unknown", "raw"),
    ("k8s.io.apimachinery.pkg.runtime.Unknown", "typeMeta"),
    // Its description has no fields; the Go type requires items as every list does.
    ("k8s.io.api.core.v1.List", "items"),
];

/// Messages that are only ever inlined. No description has them, so the list does not know what their lists are.
const INLINED: &[&str] = &["k8s.io.api.admissionregistration.v1.Rule", "k8s.io.api.core.v1.EphemeralContainerCommon"];

/// Messages around a list of strings, which JSON does without.
const WRAPPED: &[&str] = &[
    "k8s.io.api.authentication.v1.ExtraValue",
    "k8s.io.api.authorization.v1.ExtraValue",
    "k8s.io.api.certificates.v1.ExtraValue",
    "k8s.io.api.certificates.v1beta1.ExtraValue",
    "k8s.io.apimachinery.pkg.apis.meta.v1.Verbs",
];

/// A type as the list names it, without `repeated`.
fn type_name(set: &TypeSet, ty: TypeId) -> String {
    let text = str::to_owned;
    match set.ty(ty) {
        Type::String => text("string"),
        Type::Bytes => text("bytes"),
        Type::Bool => text("bool"),
        Type::Int32 => text("int32"),
        Type::Int64 => text("int64"),
        Type::Double => text("double"),
        Type::Quantity => text("k8s.io.apimachinery.pkg.api.resource.Quantity"),
        Type::Time => text("k8s.io.apimachinery.pkg.apis.meta.v1.Time"),
        Type::MicroTime => text("k8s.io.apimachinery.pkg.apis.meta.v1.MicroTime"),
        Type::Duration => text("k8s.io.apimachinery.pkg.apis.meta.v1.Duration"),
        Type::IntOrString => text("k8s.io.apimachinery.pkg.util.intstr.IntOrString"),
        Type::Raw => text("k8s.io.apimachinery.pkg.runtime.RawExtension"),
        Type::Fields => text("k8s.io.apimachinery.pkg.apis.meta.v1.FieldsV1"),
        Type::Json => text("k8s.io.apiextensions_apiserver.pkg.apis.apiextensions.v1.JSON"),
        Type::SchemaOrArray(_) => {
            text("k8s.io.apiextensions_apiserver.pkg.apis.apiextensions.v1.JSONSchemaPropsOrArray")
        }
        Type::SchemaOrBool(_) => text("k8s.io.apiextensions_apiserver.pkg.apis.apiextensions.v1.JSONSchemaPropsOrBool"),
        Type::SchemaOrStrings(_) => {
            text("k8s.io.apiextensions_apiserver.pkg.apis.apiextensions.v1.JSONSchemaPropsOrStringArray")
        }
        Type::Struct(id) | Type::AtomicStruct(id) => set.get(*id).name.to_string(),
        Type::List(list) if list.wrapped => text("wrapped list"),
        Type::List(list) => type_name(set, list.element),
        Type::Map(map) => format!("map<string,{}>", type_name(set, map.value)),
    }
}

fn words(value: &Value) -> String {
    match value {
        Value::Array(items) => items.iter().filter_map(Value::as_str).collect::<Vec<_>>().join(","),
        other => other.as_str().unwrap_or_default().to_owned(),
    }
}

fn list_shape(set: &TypeSet, prop: &Prop) -> (bool, &'static str, String) {
    match set.ty(prop.ty) {
        Type::List(list) if !list.wrapped => {
            let kind = match list.kind {
                ListKind::Atomic => "",
                ListKind::Set => "set",
                ListKind::Map => "map",
            };
            (true, kind, list.keys.join(","))
        }
        _ => (false, "", String::new()),
    }
}

fn compare_field(set: &TypeSet, shape: &Struct, prop: &Prop, field: &Value) -> Vec<String> {
    let mut wrong = Vec::new();
    let mut same = |what: &str, ours: &str, theirs: &str| {
        if ours != theirs {
            wrong.push(format!("{}.{}: {what} is {ours:?}, published {theirs:?}", shape.name, prop.name));
        }
    };
    // A few protobuf names differ from JSON's in case; recorded objects hold JSON's.
    same("name", &plain(&prop.name), &plain(field["name"].as_str().unwrap_or_default()));
    let published = field["type"].as_str().unwrap_or_default().replace(", ", ",");
    let ours = type_name(set, prop.ty);
    same("type", &ours, &WRAPPED.iter().fold(published, |text, wrapped| text.replace(wrapped, "wrapped list")));
    let (repeated, kind, keys) = list_shape(set, prop);
    same("repeated", &repeated.to_string(), &field["repeated"].as_bool().unwrap_or_default().to_string());
    // A field that was not found in the descriptions has nothing of what they say; see the test below.
    if field["inOpenAPI"] == false || INLINED.contains(&&*shape.name) {
        return wrong;
    }
    let published_kind = words(&field["list-type"]);
    same("list type", kind, if published_kind == "atomic" { "" } else { &published_kind });
    same("list keys", &keys, &words(&field["list-map-keys"]));
    let patch = prop.extra.as_ref().map(|e| e.patch.to_string()).unwrap_or_default();
    same("patch strategy", &patch, &words(&field["patch-strategy"]));
    same("merge key", prop.merge_key().unwrap_or_default(), &words(&field["patch-merge-key"]));
    same("required", &prop.required.to_string(), &field["required"].as_bool().unwrap_or_default().to_string());
    let atomic = match set.ty(prop.ty) {
        Type::Map(map) => map.atomic,
        Type::AtomicStruct(_) => true,
        _ => false,
    };
    let published_atomic = field["map-type"].as_str() == Some("atomic");
    same("atomic map", &atomic.to_string(), &published_atomic.to_string());
    wrong
}

#[test]
fn messages_and_fields_are_as_published() {
    let Some(published) = published() else {
        println!("skipped: no published list of fields beside the checkout");
        return;
    };
    let set = TypeSet::built_in();
    let ours: BTreeMap<&str, &Struct> = set.structs.iter().map(|s| (&*s.name, s)).collect();
    let (mut wrong, mut fields) = (Vec::new(), 0);
    for message in published["messages"].as_array().expect("a list of messages") {
        let name = message["proto"].as_str().expect("a message has a name");
        let Some(shape) = ours.get(name) else {
            wrong.push(format!("{name} is not declared"));
            continue;
        };
        // Options and watch events are served in every group; the table names kinds of one group only.
        let kinds = message["gvk"].as_array().filter(|kinds| kinds.len() == 1);
        for gvk in kinds.into_iter().flatten() {
            let part = |at: usize| gvk[at].as_str().unwrap_or_default();
            let found = set.kind(part(0), part(1), part(2)).map(|id| &*set.get(id).name);
            if found != Some(name) {
                wrong.push(format!("{name}: kind {gvk} is {found:?}"));
            }
        }
        let theirs = message["fields"].as_array().expect("a list of fields");
        for field in theirs {
            if EXCEPTIONS.contains(&(name, field["name"].as_str().unwrap_or_default())) {
                continue;
            }
            fields += 1;
            let number = field["number"].as_u64().expect("a field has a number");
            let Some(wire) = shape.wires.iter().find(|w| u64::from(w.number) == number) else {
                wrong.push(format!("{name}: no field {number} ({})", field["name"]));
                continue;
            };
            match wire.inline {
                Some(inner) => {
                    if field["type"].as_str() != Some(&*set.get(inner).name)
                        || field["inOpenAPI"].as_bool() != Some(false)
                    {
                        wrong.push(format!(
                            "{name}: field {number} is inlined {}, published {field}",
                            set.get(inner).name
                        ));
                    }
                }
                None => wrong.extend(compare_field(set, shape, &shape.props[usize::from(wire.prop)], field)),
            }
        }
        let extra =
            shape.wires.iter().filter(|w| !theirs.iter().any(|f| f["number"].as_u64() == Some(w.number.into())));
        wrong.extend(extra.map(|w| format!("{name}: field {} is not published", w.number)));
    }
    println!("{fields} fields compared");
    assert!(wrong.is_empty(), "{}:\n{}", wrong.len(), wrong[..wrong.len().min(60)].join("\n"));
}

#[test]
fn what_no_description_says_is_declared_all_the_same() {
    let set = TypeSet::built_in();
    let shape = |name: &str| set.get(set.struct_named(name).expect("declared"));
    let of = |shape: &Struct, name: &str| {
        let (_, prop) = shape.prop(name).expect("declared");
        let patch = prop.extra.as_ref().map(|e| e.patch.to_string()).unwrap_or_default();
        let (_, kind, keys) = list_shape(set, prop);
        (kind, keys, patch, prop.merge_key().map(str::to_owned), prop.required)
    };
    let by = |key: &str| ("map", key.to_owned(), "merge".to_owned(), Some(key.to_owned()), false);
    for kind in ["MutatingWebhookConfiguration", "ValidatingWebhookConfiguration"] {
        assert_eq!(of(shape(&format!("k8s.io.api.admissionregistration.v1.{kind}")), "webhooks"), by("name"), "{kind}");
    }
    for name in ["name", "expression"] {
        assert!(of(shape("k8s.io.api.admissionregistration.v1.Variable"), name).4, "{name}");
    }
    let schema = shape("k8s.io.apiextensions_apiserver.pkg.apis.apiextensions.v1.JSONSchemaProps");
    assert_eq!(of(schema, "x-kubernetes-validations"), by("rule"));
    let (container, ephemeral) =
        (shape("k8s.io.api.core.v1.Container"), shape("k8s.io.api.core.v1.EphemeralContainer"));
    for prop in container.props.iter().filter(|prop| ephemeral.prop(&prop.name).is_some()) {
        assert_eq!(of(ephemeral, &prop.name), of(container, &prop.name), "{}", &*prop.name);
    }
}
