//! What the decoder tells about bad objects, in Go's words.

use super::{decode, parse};
use crate::schema::TypeSet;

fn told(kind: &str, group: &str, text: &str) -> String {
    let set = TypeSet::built_in();
    let id = set.kind(group, "v1", kind).expect("built in");
    match decode(set, id, text.as_bytes()) {
        Ok(decoded) => decoded.strict.join(", "),
        Err(error) => error.to_string(),
    }
}

#[test]
fn wrong_types_are_told_with_struct_path_and_type() {
    for (kind, group, text, expected) in [
        (
            "Deployment",
            "apps",
            r#"{"spec":{"replicas":"3"}}"#,
            "json: cannot unmarshal string into Go struct field DeploymentSpec.spec.replicas of type int32",
        ),
        (
            "Deployment",
            "apps",
            r#"{"spec":{"replicas":3000000000}}"#,
            "json: cannot unmarshal number 3000000000 into Go struct field DeploymentSpec.spec.replicas of type int32",
        ),
        (
            "Deployment",
            "apps",
            r#"{"spec":{"replicas":1.5}}"#,
            "json: cannot unmarshal number 1.5 into Go struct field DeploymentSpec.spec.replicas of type int32",
        ),
        (
            "ConfigMap",
            "",
            r#"{"data":{"k":1}}"#,
            "json: cannot unmarshal number into Go struct field ConfigMap.data of type string",
        ),
        (
            "ConfigMap",
            "",
            r#"{"metadata":{"labels":"a"}}"#,
            "json: cannot unmarshal string into Go struct field ObjectMeta.metadata.labels of type map[string]string",
        ),
        (
            "Pod",
            "",
            r#"{"spec":{"containers":[{"ports":[{"containerPort":"x"}]}]}}"#,
            "json: cannot unmarshal string into Go struct field ContainerPort.spec.containers.ports.containerPort of type int32",
        ),
        ("Pod", "", r#"{"spec":7}"#, "json: cannot unmarshal number into Go struct field Pod.spec of type v1.PodSpec"),
        ("Pod", "", "[]", "json: cannot unmarshal array into Go value of type v1.Pod"),
        ("Secret", "", r#"{"data":{"k":"?"}}"#, "illegal base64 data at input byte 0"),
    ] {
        assert_eq!(told(kind, group, text), expected, "{text}");
    }
}

#[test]
fn unknown_and_duplicate_fields_are_told_in_order() {
    let text = r#"{"metadata":{"name":"a","x":1,"name":"b"},"spec":{"containers":[{"prots":[],"ports":[{"port":1}]}]},"zzz":{}}"#;
    let expected = concat!(
        r#"unknown field "metadata.x", duplicate field "metadata.name", unknown field "spec.containers[0].prots", "#,
        r#"unknown field "spec.containers[0].ports[0].port", unknown field "zzz""#
    );
    assert_eq!(told("Pod", "", text), expected);
    assert_eq!(
        told("ConfigMap", "", r#"{"data":{"k":"1","k":"2"},"Data":{}}"#),
        r#"duplicate field "data.k", unknown field "Data""#
    );
}

#[test]
fn broken_text_is_told_before_wrong_types() {
    for (text, expected) in [
        ("", "unexpected end of JSON input"),
        ("{", "unexpected end of JSON input"),
        (r#"{"a":1,}"#, "invalid character '}' looking for beginning of object key string"),
        ("nope", "invalid character 'o' in literal null (expecting 'u')"),
        ("{} {}", "invalid character '{' after top-level value"),
        (r#"{"a" 1}"#, "invalid character '1' after object key"),
        ("[1 2]", "invalid character '2' after array element"),
        (r#"{"a":1 "b"}"#, "invalid character '\"' after object key:value pair"),
        ("01", "invalid character '1' after top-level value"),
        ("-", "unexpected end of JSON input"),
        ("1.x", "invalid character 'x' after decimal point in numeric literal"),
        ("\"\u{1}\"", r"invalid character '\x01' in string literal"),
        (r#""\q""#, "invalid character 'q' in string escape code"),
        ("[,1]", "invalid character ',' looking for beginning of value"),
    ] {
        assert_eq!(parse(text.as_bytes()).map(|p| p.value).map_err(|e| e.to_string()), Err(expected.into()), "{text}");
    }
    let text = r#"{"spec":7,}"#;
    assert_eq!(told("Pod", "", text), "invalid character '}' looking for beginning of object key string");
}

#[test]
fn bad_text_becomes_replacement_characters() {
    let parsed = parse(b"[\"a\xffb\", \"\\ud800x\", \"\\ud83d\\ude00\", \"\\u00e9\\/\"]").expect("JSON");
    assert_eq!(parsed.value, serde_json::json!(["a\u{fffd}b", "\u{fffd}x", "\u{1f600}", "\u{e9}/"]));
}

/// Go tells a list without items from none at all, and two fields mean something by it.
#[test]
fn an_empty_list_stays_where_it_is_something_said() {
    let set = TypeSet::built_in();
    let id = set.kind("autoscaling", "v2", "HorizontalPodAutoscaler").expect("built in");
    let text = r#"{"metadata":{"managedFields":[],"finalizers":[]},
        "spec":{"metrics":[],"behavior":{"scaleUp":{"policies":[]},"scaleDown":{"policies":null}}}}"#;
    let value = decode(set, id, text.as_bytes()).expect("an autoscaler").value;
    let behavior = serde_json::json!({"scaleUp": {"policies": []}, "scaleDown": {}});
    assert_eq!(value["spec"], serde_json::json!({"behavior": behavior}));
    assert_eq!(value["metadata"], serde_json::json!({"managedFields": []}));
}

/// What Go holds for a null among the items of a list; a custom resource keeps it.
#[test]
fn nothing_among_the_items_of_a_list_is_their_zero() {
    let set = TypeSet::built_in();
    let decoded = |kind: (&str, &str, &str), text: &str| {
        let id = set.kind(kind.0, kind.1, kind.2).expect("built in");
        decode(set, id, text.as_bytes()).expect("an object").value
    };
    let text =
        r#"{"metadata":{"finalizers":[null]},"spec":{"containers":[null,{"command":["a",null]}],"volumes":null}}"#;
    let pod = decoded(("", "v1", "Pod"), text);
    assert_eq!(pod["metadata"], serde_json::json!({"finalizers": [""]}));
    assert_eq!(pod["spec"], serde_json::json!({"containers": [{}, {"command": ["a", ""]}]}));
    let text =
        r#"{"spec":{"versions":[{"schema":{"openAPIV3Schema":{"items":[null],"enum":[null],"required":[null]}}}]}}"#;
    let definition = decoded(("apiextensions.k8s.io", "v1", "CustomResourceDefinition"), text);
    let schema = serde_json::json!({"items": [{}], "enum": [null], "required": [""]});
    assert_eq!(definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"], schema);
}
