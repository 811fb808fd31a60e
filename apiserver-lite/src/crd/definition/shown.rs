//! Values of a definition as Go prints its internal types: every field by its Go name, absent ones included.

use serde_json::Value;

/// How a Go field of the internal types is written.
enum Kind {
    Text,
    /// A pointer to a scalar.
    Pointer,
    Flag,
    Json,
    Rules,
    Texts,
    Schema,
    Schemas,
    SchemaMap,
    SchemaOrArray,
    SchemaOrBool,
    Nothing,
}

const SCHEMA: &[(&str, &str, Kind)] = &[
    ("ID", "id", Kind::Text),
    ("Schema", "$schema", Kind::Text),
    ("Ref", "$ref", Kind::Pointer),
    ("Description", "description", Kind::Text),
    ("Type", "type", Kind::Text),
    ("Nullable", "nullable", Kind::Flag),
    ("Format", "format", Kind::Text),
    ("Title", "title", Kind::Text),
    ("Default", "default", Kind::Json),
    ("Maximum", "maximum", Kind::Pointer),
    ("ExclusiveMaximum", "exclusiveMaximum", Kind::Flag),
    ("Minimum", "minimum", Kind::Pointer),
    ("ExclusiveMinimum", "exclusiveMinimum", Kind::Flag),
    ("MaxLength", "maxLength", Kind::Pointer),
    ("MinLength", "minLength", Kind::Pointer),
    ("Pattern", "pattern", Kind::Text),
    ("MaxItems", "maxItems", Kind::Pointer),
    ("MinItems", "minItems", Kind::Pointer),
    ("UniqueItems", "uniqueItems", Kind::Flag),
    ("MultipleOf", "multipleOf", Kind::Pointer),
    ("Enum", "enum", Kind::Json),
    ("MaxProperties", "maxProperties", Kind::Pointer),
    ("MinProperties", "minProperties", Kind::Pointer),
    ("Required", "required", Kind::Texts),
    ("Items", "items", Kind::SchemaOrArray),
    ("AllOf", "allOf", Kind::Schemas),
    ("OneOf", "oneOf", Kind::Schemas),
    ("AnyOf", "anyOf", Kind::Schemas),
    ("Not", "not", Kind::Schema),
    ("Properties", "properties", Kind::SchemaMap),
    ("AdditionalProperties", "additionalProperties", Kind::SchemaOrBool),
    ("PatternProperties", "patternProperties", Kind::SchemaMap),
    ("Dependencies", "", Kind::Nothing),
    ("AdditionalItems", "additionalItems", Kind::SchemaOrBool),
    ("Definitions", "definitions", Kind::SchemaMap),
    ("ExternalDocs", "", Kind::Nothing),
    ("Example", "example", Kind::Json),
    ("XPreserveUnknownFields", "x-kubernetes-preserve-unknown-fields", Kind::Pointer),
    ("XEmbeddedResource", "x-kubernetes-embedded-resource", Kind::Flag),
    ("XIntOrString", "x-kubernetes-int-or-string", Kind::Flag),
    ("XListMapKeys", "x-kubernetes-list-map-keys", Kind::Texts),
    ("XListType", "x-kubernetes-list-type", Kind::Pointer),
    ("XMapType", "x-kubernetes-map-type", Kind::Pointer),
    ("XValidations", "x-kubernetes-validations", Kind::Rules),
];

fn json(value: &Value) -> String {
    let mut out = Vec::new();
    proto::json::write_sorted(value, &mut out);
    String::from_utf8(out).unwrap_or_default()
}

fn text(value: &Value) -> String {
    if value.is_string() { json(value) } else { "\"\"".into() }
}

fn list(value: &Value, one: impl Fn(&Value) -> String) -> String {
    match value.as_array() {
        // Go tells one without items from none at all.
        Some(items) => format!("[{}]", items.iter().map(one).collect::<Vec<_>>().join(",")),
        None => "null".into(),
    }
}

/// A schema.
pub fn schema(value: &Value) -> String {
    let fields: Vec<String> =
        SCHEMA.iter().map(|(go, key, kind)| format!("\"{go}\":{}", field(&value[*key], kind))).collect();
    format!("{{{}}}", fields.join(","))
}

fn field(value: &Value, kind: &Kind) -> String {
    match kind {
        Kind::Text => text(value),
        Kind::Flag => (*value == true).to_string(),
        Kind::Pointer | Kind::Json => json(value),
        Kind::Texts => list(value, json),
        Kind::Rules => list(value, rule),
        Kind::Schema if value.is_object() => schema(value),
        Kind::Schemas => list(value, schema),
        Kind::SchemaMap => match value.as_object() {
            Some(map) if !map.is_empty() => {
                let members: Vec<String> =
                    map.iter().map(|(k, v)| format!("{}:{}", json(&k.as_str().into()), schema(v))).collect();
                format!("{{{}}}", members.join(","))
            }
            _ => "null".into(),
        },
        Kind::SchemaOrArray => match value {
            Value::Object(_) => format!("{{\"Schema\":{},\"JSONSchemas\":null}}", schema(value)),
            Value::Array(_) => format!("{{\"Schema\":null,\"JSONSchemas\":{}}}", list(value, schema)),
            _ => "null".into(),
        },
        Kind::SchemaOrBool => match value {
            Value::Object(_) => format!("{{\"Allows\":true,\"Schema\":{}}}", schema(value)),
            Value::Bool(allows) => format!("{{\"Allows\":{allows},\"Schema\":null}}"),
            _ => "null".into(),
        },
        Kind::Schema | Kind::Nothing => "null".into(),
    }
}

/// One of `x-kubernetes-validations`.
pub fn rule(value: &Value) -> String {
    format!(
        "{{\"Rule\":{},\"Message\":{},\"MessageExpression\":{},\"Reason\":{},\"FieldPath\":{},\"OptionalOldSelf\":{}}}",
        text(&value["rule"]),
        text(&value["message"]),
        text(&value["messageExpression"]),
        json(&value["reason"]),
        text(&value["fieldPath"]),
        json(&value["optionalOldSelf"]),
    )
}

fn subresources(value: &Value) -> String {
    if !value.is_object() {
        return "null".into();
    }
    let status = if value["status"].is_object() { "{}" } else { "null" };
    let scale = &value["scale"];
    let scale = if scale.is_object() {
        format!(
            "{{\"SpecReplicasPath\":{},\"StatusReplicasPath\":{},\"LabelSelectorPath\":{}}}",
            text(&scale["specReplicasPath"]),
            text(&scale["statusReplicasPath"]),
            json(&scale["labelSelectorPath"])
        )
    } else {
        "null".into()
    };
    format!("{{\"Status\":{status},\"Scale\":{scale}}}")
}

fn column(value: &Value) -> String {
    format!(
        "{{\"Name\":{},\"Type\":{},\"Format\":{},\"Description\":{},\"Priority\":{},\"JSONPath\":{}}}",
        text(&value["name"]),
        text(&value["type"]),
        text(&value["format"]),
        text(&value["description"]),
        value["priority"].as_i64().unwrap_or(0),
        text(&value["jsonPath"])
    )
}

/// The versions of a definition, without what stands beside them.
pub fn versions(value: &Value) -> String {
    list(value, |version| {
        let validation = match &version["schema"] {
            Value::Object(said) => match said.get("openAPIV3Schema") {
                Some(inner) => format!("{{\"OpenAPIV3Schema\":{}}}", schema(inner)),
                None => "{\"OpenAPIV3Schema\":null}".into(),
            },
            _ => "null".into(),
        };
        format!(
            "{{\"Name\":{},\"Served\":{},\"Storage\":{},\"Deprecated\":{},\"DeprecationWarning\":{},\"Schema\":{validation},\
             \"Subresources\":{},\"AdditionalPrinterColumns\":{},\"SelectableFields\":{}}}",
            text(&version["name"]),
            version["served"] == true,
            version["storage"] == true,
            version["deprecated"] == true,
            json(&version["deprecationWarning"]),
            subresources(&version["subresources"]),
            list(&version["additionalPrinterColumns"], column),
            list(&version["selectableFields"], |f| format!("{{\"JSONPath\":{}}}", text(&f["jsonPath"]))),
        )
    })
}
