//! What is said of definitions that are not sound.

use serde_json::{Value, json};

use super::check;

/// A definition of one version with a schema.
fn of(schema: &Value) -> Value {
    json!({
        "metadata": {"name": "foos.example.com"},
        "spec": {
            "group": "example.com", "scope": "Namespaced", "conversion": {"strategy": "None"},
            "names": {"plural": "foos", "singular": "foo", "kind": "Foo", "listKind": "FooList"},
            "versions": [{"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": schema}}],
        },
        "status": {"acceptedNames": {"plural": "", "kind": ""}, "storedVersions": ["v1"]},
    })
}

fn told(definition: &Value, old: Option<&Value>) -> Vec<String> {
    check(definition, old).into_iter().map(|cause| format!("{}: {}", cause.field, cause.message)).collect()
}

const ROOT: &str = "spec.validation.openAPIV3Schema";

#[test]
fn old_values_are_there_for_what_can_be_matched() {
    let rule = json!([{"rule": "self == oldSelf"}]);
    let text = json!({"type": "string", "x-kubernetes-validations": rule});
    let schema = |inner: Value| json!({"type": "object", "properties": {"p": inner}});
    for map in ["atomic", "granular"] {
        let map = json!({"type": "object", "x-kubernetes-map-type": map, "properties": {"a": text}});
        assert_eq!(told(&of(&schema(map)), None), [""; 0]);
    }
    let keyed = json!({"type": "object", "required": ["k"], "properties": {"k": text}});
    let keyed = json!({"type": "array", "maxItems": 9, "x-kubernetes-list-type": "map", "items": keyed,
        "x-kubernetes-list-map-keys": ["k"]});
    assert_eq!(told(&of(&schema(keyed)), None), [""; 0]);
    for list in [json!({"x-kubernetes-list-type": "atomic"}), json!({"x-kubernetes-list-type": "set"}), json!({})] {
        let mut list = list;
        list.as_object_mut()
            .expect("an object")
            .extend(json!({"type": "array", "maxItems": 9, "items": text}).as_object().expect("an object").clone());
        let at = format!("{ROOT}.properties[p]");
        let why = format!(
            "{at}.items.x-kubernetes-validations[0].rule: Invalid value: \"self == oldSelf\": oldSelf cannot be used on \
             the uncorrelatable portion of the schema within {at}"
        );
        assert_eq!(told(&of(&schema(list)), None), [why]);
    }
}

#[test]
fn rules_are_looked_at_wherever_their_schema_is_sound() {
    let schema = json!({"type": "object", "properties": {
        "bad": {"type": "array", "uniqueItems": true, "items": {"type": "string"},
            "x-kubernetes-validations": [{"rule": "nonsense"}]},
        "good": {"type": "string", "x-kubernetes-validations": [
            {"rule": "self.nope", "optionalOldSelf": true}, {"rule": "self == ''", "messageExpression": "1"}]},
    }});
    let fields: Vec<String> = check(&of(&schema), None).into_iter().map(|cause| cause.field).collect();
    let good = format!("{ROOT}.properties[good].x-kubernetes-validations");
    assert_eq!(
        fields,
        [
            format!("{ROOT}.properties[bad].uniqueItems"),
            format!("{good}[0].rule"),
            format!("{good}[0].optionalOldSelf"),
            format!("{good}[1].messageExpression"),
        ]
    );
}

#[test]
fn what_a_rule_says_is_named() {
    let rules = json!([{"rule": "true", "message": " "}, {"rule": "true", "message": "a\nb"},
        {"rule": "true", "message": "m", "fieldPath": " "}, {"rule": "true", "message": "m", "fieldPath": ".a\nb"}]);
    let schema = json!({"type": "object", "properties": {"a": {"type": "string"}}, "x-kubernetes-validations": rules});
    let at = format!("{ROOT}.x-kubernetes-validations");
    assert_eq!(
        told(&of(&schema), None),
        [
            format!("{at}[0].message: Invalid value: \" \": message must be non-empty if specified"),
            format!("{at}[1].message: Invalid value: \"a\\nb\": message must not contain line breaks"),
            format!("{at}[2].fieldPath: Invalid value: \" \": fieldPath must be non-empty if specified"),
            format!("{at}[2].fieldPath: Invalid value: \" \": fieldPath must be a valid path"),
            format!("{at}[3].fieldPath: Invalid value: \".a\\nb\": fieldPath must not contain line breaks"),
            format!("{at}[3].fieldPath: Invalid value: \".a\\nb\": fieldPath must be a valid path"),
        ]
    );
}

#[test]
fn a_dear_rule_stays_with_the_version_that_had_it() {
    let dear = json!({"type": "object", "properties": {"l": {"type": "array", "items": {"type": "string"},
        "x-kubernetes-validations": [{"rule": "self.all(a, self.all(b, a == b || a != b))"}]}}});
    let refused = |told: &[String]| told.iter().any(|why| why.contains("estimated rule cost exceeds budget"));
    let old = of(&dear);
    assert!(refused(&told(&old, None)));
    let mut same = old.clone();
    same["metadata"]["annotations"] = json!({"a": "b"});
    assert!(!refused(&told(&same, Some(&old))));
    let mut renamed = old.clone();
    renamed["spec"]["versions"][0]["name"] = "v2".into();
    renamed["status"]["storedVersions"] = json!(["v2"]);
    assert!(refused(&told(&renamed, Some(&old))));
}

#[test]
fn unknown_fields_are_kept_by_schemas_alone() {
    let mut definition = of(&json!({"type": "object", "properties": {"a": {"type": "string", "default": "x"}}}));
    definition["spec"]["preserveUnknownFields"] = true.into();
    definition["spec"]["conversion"] = json!({"strategy": "Webhook", "webhook": {"conversionReviewVersions": ["v1"],
        "clientConfig": {"url": "https://example.com/convert"}}});
    assert_eq!(
        told(&definition, None),
        [
            "spec.preserveUnknownFields: Invalid value: true: must be false in order to use defaults in the schema",
            "spec.conversion.strategy: Invalid value: \"Webhook\": must be None if spec.preserveUnknownFields is true",
            "spec.preserveUnknownFields: Invalid value: true: cannot set to true, set \
             x-kubernetes-preserve-unknown-fields to true in spec.versions[*].schema instead",
        ]
    );
}

#[test]
fn selectable_fields_are_paths_without_brackets() {
    let schema = json!({"type": "object", "properties": {"a": {"type": "string"}, "o": {"type": "object"}}});
    let mut definition = of(&schema);
    let paths = [".a", ".a", ".o", ".metadata.name", "['a']", "a", ".x", ""];
    definition["spec"]["versions"][0]["selectableFields"] =
        paths.iter().map(|path| json!({"jsonPath": path})).collect::<Vec<_>>().into();
    let at = |index: usize| format!("spec.selectableFields[{index}].jsonPath");
    let invalid = |index: usize, why: &str| format!("{}: Invalid value: \"{}\": {why}", at(index), paths[index]);
    assert_eq!(
        told(&definition, None),
        [
            format!("{}: Duplicate value: \".a\"", at(1)),
            invalid(
                2,
                "must point to a field of type string, boolean or integer. Enum string fields and strings with formats \
                 are allowed."
            ),
            invalid(3, "is an invalid path: does not refer to a valid field"),
            invalid(4, "is an invalid path: array notation is not allowed"),
            invalid(5, "is an invalid path: expected [ or . but got: a"),
            invalid(6, "is an invalid path: does not refer to a valid field"),
            format!("{}: Required value", at(7)),
        ]
    );
}

#[test]
fn defaults_fit_metadata_and_rules() {
    let grown = json!([{"rule": "self > oldSelf.orValue(5)", "optionalOldSelf": true, "message": "must grow"}]);
    let embedded = |name: Value| {
        json!({"type": "object", "x-kubernetes-embedded-resource": true, "properties": {
            "metadata": {"type": "object", "properties": {"name": name}}, "spec": {"type": "string"}}})
    };
    let schema = json!({"type": "object", "properties": {
        "e": embedded(json!({"type": "string", "default": "a/b"})),
        "f": embedded(json!({"type": "string", "default": "fine"})),
        "n": {"type": "integer", "default": 7, "x-kubernetes-validations": grown},
        "o": {"type": "object", "x-kubernetes-embedded-resource": true, "x-kubernetes-preserve-unknown-fields": true,
            "default": {"kind": "K", "apiVersion": "v1", "metadata": {"name": 1}}},
        "p": {"type": "object", "x-kubernetes-embedded-resource": true, "x-kubernetes-preserve-unknown-fields": true,
            "default": {"apiVersion": "v1"}},
    }});
    let told = told(&of(&schema), None);
    assert_eq!(told.len(), 4, "{told:#?}");
    let at = |name: &str| format!("{ROOT}.properties[{name}]");
    let in_meta = format!(
        "{}.properties[metadata].properties[name].default: Invalid value: \"a/b\": must result in valid metadata: \
         metadata.name: Invalid value: \"a/b\": ",
        at("e")
    );
    assert!(told[0].starts_with(&in_meta), "{told:#?}");
    // It would have to be more than it is itself.
    assert_eq!(told[1], format!("{}.default: Invalid value: 7: must grow", at("n")));
    assert!(told[2].starts_with(&format!("{}.default.metadata: Invalid value: ", at("o"))), "{told:#?}");
    assert_eq!(told[3], format!("{}.default.kind: Required value", at("p")));
}

#[test]
fn no_versions_are_shown_as_they_were_said() {
    let mut definition = of(&json!({"type": "object"}));
    definition["status"]["storedVersions"] = json!(["v1"]);
    for (said, shown) in [(json!([]), "[]"), (Value::Null, "null")] {
        definition["spec"]["versions"] = said;
        let why =
            format!("spec.versions: Invalid value: {shown}: must have exactly one version marked as storage version");
        assert!(told(&definition, None).contains(&why), "{:?}", told(&definition, None));
    }
}
