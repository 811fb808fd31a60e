//! What is shown in an event, byte by byte as upstream writes it: members of its types in the order of Go's structs,
//! what a client sent as JSON as it was sent.
//!
//! Readers of the log parse it, but those that compare, sign or count it see its bytes.

use proto::schema::TypeSet;
use serde_json::Value;

/// Members of a `user` or `impersonatedUser`.
pub(super) const USER: &[&str] = &["username", "uid", "groups", "extra"];
/// Members of an `objectRef`.
pub(super) const OBJECT: &[&str] =
    &["resource", "namespace", "name", "uid", "apiGroup", "apiVersion", "resourceVersion", "subresource"];

/// The members of `value` that are among `names`, in that order.
pub(super) fn ordered(value: &Value, names: &[&str]) -> Vec<u8> {
    let mut out = vec![b'{'];
    for name in names {
        let Some(member) = value.get(*name) else { continue };
        if out.len() > 1 {
            out.push(b',');
        }
        proto::json::write_string(name, &mut out);
        out.push(b':');
        proto::json::write_sorted(member, &mut out);
    }
    out.push(b'}');
    out
}

/// What has no order of its own.
pub(super) fn sorted(value: &Value) -> Vec<u8> {
    let mut out = Vec::new();
    proto::json::write_sorted(value, &mut out);
    out
}

/// An object in the order of its type; one of a client's own type has its members sorted.
pub(super) fn object(value: &Value) -> Vec<u8> {
    let text = |key: &str| value[key].as_str().unwrap_or_default();
    let (group, version) = text("apiVersion").rsplit_once('/').unwrap_or(("", text("apiVersion")));
    of_kind(value, group, version, text("kind"))
}

/// A `metav1.Status` without what it says of itself.
pub(super) fn status(value: &Value) -> Vec<u8> {
    of_kind(value, "", "v1", "Status")
}

fn of_kind(value: &Value, group: &str, version: &str, kind: &str) -> Vec<u8> {
    let set = TypeSet::built_in();
    let Some(id) = set.kind(group, version, kind) else { return sorted(value) };
    let mut out = Vec::with_capacity(1024);
    proto::json::write(set, id, value, &mut out);
    out
}

/// JSON without spaces between its parts, and safe inside of HTML as everything that Go writes. The text is known to be
/// JSON.
pub(super) fn compact(text: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(text.len());
    let (mut in_string, mut escaped) = (false, false);
    let mut at = 0;
    while let Some(&byte) = text.get(at) {
        at += 1;
        if !in_string {
            in_string = byte == b'"';
            if !byte.is_ascii_whitespace() {
                out.push(byte);
            }
            continue;
        }
        in_string = escaped || byte != b'"';
        escaped = !escaped && byte == b'\\';
        match byte {
            b'<' => out.extend_from_slice(b"\\u003c"),
            b'>' => out.extend_from_slice(b"\\u003e"),
            b'&' => out.extend_from_slice(b"\\u0026"),
            // U+2028 and U+2029, which end a line in scripts.
            0xe2 if matches!(text.get(at..at + 2), Some([0x80, 0xa8 | 0xa9])) => {
                out.extend_from_slice(if text[at + 1] == 0xa8 { b"\\u2028" } else { b"\\u2029" });
                at += 2;
            }
            _ => out.push(byte),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn text(bytes: Vec<u8>) -> String {
        String::from_utf8(bytes).expect("JSON is UTF-8")
    }

    #[test]
    fn objects_are_in_the_order_of_their_types() {
        let pod = json!({"spec": {"containers": [{"name": "c", "image": "i"}]}, "metadata": {"uid": "u", "name": "p"},
            "kind": "Pod", "apiVersion": "v1"});
        let shown = text(object(&pod));
        assert!(shown.starts_with(r#"{"kind":"Pod","apiVersion":"v1","metadata":{"name":"p","uid":"u"}"#), "{shown}");
        let own = json!({"kind": "Own", "b": 1, "a": 2, "apiVersion": "example.com/v1"});
        assert_eq!(text(object(&own)), r#"{"a":2,"apiVersion":"example.com/v1","b":1,"kind":"Own"}"#);
        let refusal = json!({"code": 404, "details": {"kind": "pods", "name": "p"}, "message": "m", "metadata": {},
            "reason": "NotFound", "status": "Failure"});
        assert_eq!(
            text(status(&refusal)),
            r#"{"metadata":{},"status":"Failure","message":"m","reason":"NotFound","details":{"name":"p","kind":"pods"},"code":404}"#
        );
        let user = json!({"groups": ["g"], "username": "u", "extra": {"b": ["1"], "a": []}});
        assert_eq!(text(ordered(&user, USER)), r#"{"username":"u","groups":["g"],"extra":{"a":[],"b":["1"]}}"#);
    }

    #[test]
    fn a_patch_is_shown_as_it_was_sent_but_for_spaces() {
        let patch = "{\n \"z\" : \"a \\\" < b\u{2028}\", \"a\": [ 1, {} ] }";
        assert_eq!(text(compact(patch.as_bytes())), r#"{"z":"a \" \u003c b\u2028","a":[1,{}]}"#);
        assert_eq!(text(compact(br#"["\\", "&" ]"#)), r#"["\\","\u0026"]"#);
    }
}
