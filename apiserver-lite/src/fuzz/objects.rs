//! Bodies in each media type: what can be read can be written, and is the same when it is read again.

use proto::schema::{StructId, TypeSet};

use super::{JSON, feed, feed_part, same};
use crate::resource::Resources;
use crate::write::{WriteOptions, decode_object};

fn pod() -> (&'static TypeSet, StructId) {
    let set = TypeSet::built_in();
    (set, set.kind("", "v1", "Pod").expect("pods have a schema"))
}

#[test]
fn json_that_is_read_is_the_same_after_it_is_written() {
    feed("json", JSON, |input| {
        let Ok(parsed) = proto::json::parse(input) else { return };
        let mut text = Vec::new();
        proto::json::write_sorted(&parsed.value, &mut text);
        let again = proto::json::parse(&text).expect("what we write is JSON");
        assert!(same(&again.value, &parsed.value), "{}", String::from_utf8_lossy(&text));
        let indented = proto::json::parse(&proto::json::indent(&text)).expect("indented it still is");
        assert!(same(&indented.value, &parsed.value));
    });
}

#[test]
fn typed_objects_that_are_read_are_the_same_after_they_are_written() {
    let (set, id) = pod();
    feed("json", JSON, |input| {
        let Ok(decoded) = proto::json::decode(set, id, input) else { return };
        let mut text = Vec::new();
        proto::json::write(set, id, &decoded.value, &mut text);
        let again = proto::json::decode(set, id, &text).expect("what we write fits the schema");
        let mut twice = Vec::new();
        proto::json::write(set, id, &again.value, &mut twice);
        let tree = |text: &[u8]| proto::json::parse(text).expect("JSON").value;
        assert!(same(&tree(&twice), &tree(&text)), "{}", String::from_utf8_lossy(&text));
    });
}

#[test]
fn yaml_that_is_read_is_the_same_after_it_is_written() {
    let words = [
        "- ",
        ": ",
        "\n",
        "\n  ",
        "\t",
        "&x",
        "*x",
        "<<",
        "!!str ",
        "|",
        ">-",
        "'",
        "\"",
        "{",
        "}",
        "[",
        "]",
        "#",
        "---\n",
        "...",
        "?",
        "%YAML 1.1\n",
        "~",
        "0x",
        ".inf",
        "\u{0}",
        "\u{85}",
        "\r",
        "-0.0",
    ];
    feed("yaml", &words, |input| {
        let Ok(value) = proto::yaml::parse(input) else { return };
        let mut text = Vec::new();
        proto::yaml::write(&value, &mut text);
        let again = proto::yaml::parse(&text).expect("what we write is YAML");
        assert!(same(&again, &value), "{}", String::from_utf8_lossy(&text));
    });
}

#[test]
fn protobuf_that_is_read_is_the_same_after_it_is_written() {
    let (set, id) = pod();
    feed("protobuf", &["\u{8}", "\n", "\u{12}", "\u{1}", "\u{7f}", "\u{0}", "a", "\u{1a}\u{0}"], |input| {
        let Ok(value) = proto::protobuf::decode(set, id, input) else { return };
        let mut bytes = Vec::new();
        proto::protobuf::encode(set, id, &value, &mut bytes);
        let again = proto::protobuf::decode(set, id, &bytes).expect("what we write is protobuf");
        let mut twice = Vec::new();
        proto::protobuf::encode(set, id, &again, &mut twice);
        assert_eq!(twice, bytes);
    });
}

#[test]
fn cbor_that_is_read_is_the_same_after_it_is_written() {
    feed("cbor", &["\u{0}", "a", "b\u{1}", "\u{1}", "\u{18}", "\u{3b}", "\u{5f}", "\u{7f}"], |input| {
        let Ok(value) = proto::cbor::decode(input) else { return };
        let mut bytes = Vec::new();
        proto::cbor::encode(&value, &mut bytes);
        assert!(same(&proto::cbor::decode(&bytes).expect("what we write is CBOR"), &value));
        // This is what becomes of a body.
        drop(crate::http::cbor::body(input));
    });
}

#[test]
fn bodies_of_any_media_type_are_read_or_refused() {
    let resources = Resources::built_in();
    let kinds = [
        ("", "pods"),
        ("", "configmaps"),
        ("apps", "deployments"),
        ("apiextensions.k8s.io", "customresourcedefinitions"),
    ];
    let kinds = kinds.map(|(group, plural)| resources.lookup(group, "v1", plural).expect("is served"));
    let media = ["application/json", "application/yaml", "application/vnd.kubernetes.protobuf", "", "text/plain; a=b"];
    for parser in ["json", "yaml", "protobuf"] {
        feed_part(3, parser, JSON, |input| {
            // Which kind and media type it is depends on the input alone.
            let sum = input.iter().fold(0_usize, |sum, byte| sum.wrapping_mul(31).wrapping_add(usize::from(*byte)));
            let (kind, media) = (&kinds[sum % kinds.len()], media[sum / 7 % media.len()]);
            let read = decode_object(kind, media, input, &WriteOptions::default());
            if let Err(error) = read {
                assert!((400..500).contains(&error.code()), "{}", error.status().message);
            }
        });
    }
}
