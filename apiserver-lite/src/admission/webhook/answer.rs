//! What a webhook answered, read as client-go reads it: by the type that is expected, with Go's words for what does not
//! fit.
//!
//! Used for `AdmissionReview` and `ConversionReview` alike. Beside JSON an answer may be YAML. An answer that says that
//! it is something else, such as a review in another version, is not taken for what was asked for. Follows
//! `client-go/rest/request.go` and the codecs that `apiserver/pkg/util/webhook/client.go` builds.

use serde_json::Value;

use crate::go_value::json_kind;
use crate::status::{ApiError, quote};

/// The scheme that upstream's clients of webhooks read by, as its complaints name it.
const SCHEME: &str = "pkg/util/webhook/client.go:69";
/// Kinds that every scheme has in the core version, and those of `apiextensions.k8s.io`, which share the client's.
const COMMON: [&str; 5] = ["Status", "APIVersions", "APIGroupList", "APIGroup", "APIResourceList"];
const EXTENSIONS: [&str; 2] = ["CustomResourceDefinition", "CustomResourceDefinitionList"];
/// Fields whose Go type has a name of its own: the struct that holds the field, the field, and its type.
const NAMED: [(&str, &str, &str); 9] = [
    ("AdmissionRequest", "uid", "types.UID"),
    ("AdmissionRequest", "operation", "v1.Operation"),
    ("AdmissionResponse", "uid", "types.UID"),
    ("AdmissionResponse", "patchType", "v1.PatchType"),
    ("ConversionRequest", "uid", "types.UID"),
    ("ConversionResponse", "uid", "types.UID"),
    ("Status", "reason", "v1.StatusReason"),
    ("StatusCause", "reason", "v1.CauseType"),
    ("StatusDetails", "uid", "types.UID"),
];

/// Types of the review's own package, which are named after its version.
const OWN: [&str; 8] = [
    "AdmissionRequest",
    "AdmissionResponse",
    "AdmissionReview",
    "ConversionRequest",
    "ConversionResponse",
    "ConversionReview",
    "Operation",
    "PatchType",
];

/// An answer over HTTP.
#[derive(Debug)]
pub struct Answer {
    pub code: u16,
    /// Empty where nothing was said.
    pub content_type: String,
    /// Seconds after which to ask again.
    pub retry_after: Option<u64>,
    pub body: bytes::Bytes,
}

/// What an answer has to be.
#[derive(Debug, Clone, Copy)]
pub struct Expected {
    pub group: &'static str,
    pub version: &'static str,
    pub kind: &'static str,
    /// Its type in the schema table; the versions of a review do not differ in what they hold.
    pub message: &'static str,
}

impl Expected {
    pub fn admission(version: &'static str) -> Self {
        let message = "k8s.io.api.admission.v1.AdmissionReview";
        Expected { group: "admission.k8s.io", version, kind: "AdmissionReview", message }
    }

    pub fn conversion(version: &'static str) -> Self {
        let message = "k8s.io.apiextensions_apiserver.pkg.apis.apiextensions.v1.ConversionReview";
        Expected { group: "apiextensions.k8s.io", version, kind: "ConversionReview", message }
    }

    /// Why a review that says something else of itself is not the one; None for the right one.
    pub fn complaint(&self, review: &Value) -> Option<String> {
        let text = |key: &str| review[key].as_str().unwrap_or_default();
        let (group, version) = match text("apiVersion").split_once('/') {
            Some((group, version)) => (group, version),
            None => ("", text("apiVersion")),
        };
        let got = (group, version, text("kind"));
        let Expected { group, version, kind, .. } = *self;
        let shown = |(group, version, kind): (&str, &str, &str)| format!("{group}/{version}, Kind={kind}");
        let expected = (group, version, kind);
        (got != expected).then(|| format!("expected webhook response of {}, got {}", shown(expected), shown(got)))
    }
}

impl Answer {
    /// Whether the server asks to be asked again later.
    pub fn wait_seconds(&self) -> Option<u64> {
        self.retry_after.filter(|_| self.code == 429 || self.code >= 500)
    }

    /// The code of an answer that is no success.
    pub fn error_code(&self) -> Option<u16> {
        (!(200..=206).contains(&self.code)).then_some(self.code)
    }

    /// The review that the answer is; what strictness would object to does not count.
    ///
    /// # Errors
    /// What an HTTP error, a `Status` or a body that is no such review is called.
    pub fn review(&self, expected: Expected) -> Result<Value, String> {
        if self.error_code().is_some() {
            return Err(failure_words(self.code, &self.content_type, &self.body));
        }
        if self.body.is_empty() {
            let content_type = if self.content_type.is_empty() { "application/json" } else { &self.content_type };
            let code = self.code;
            return Err(format!("0-length response with status code: {code} and content type: {content_type}"));
        }
        read(expected, &self.body)
    }
}

/// Bytes of a text that are passed on.
const MOST_SHOWN: usize = 2048;

/// The words for an answer that is no success: a `Status` speaks for itself, and of anything else only the beginning of
/// a text is passed on. An empty `content_type` is one that was not said.
pub fn failure_words(code: u16, content_type: &str, body: &[u8]) -> String {
    let status =
        Expected { group: "", version: "v1", kind: "Status", message: "k8s.io.apimachinery.pkg.apis.meta.v1.Status" };
    if let Ok(said) = read(status, body)
        && said["status"] == "Failure"
    {
        return said["message"].as_str().unwrap_or_default().to_owned();
    }
    let media = content_type.split(';').next().unwrap_or_default().trim();
    let is_text = media.is_empty() || media.get(..5).is_some_and(|start| start.eq_ignore_ascii_case("text/"));
    let shown = String::from_utf8_lossy(&body[..body.len().min(MOST_SHOWN)]);
    let said = if is_text { shown.trim() } else { "unknown" };
    ApiError::words_of_other_server(code, said).1
}

/// Reads a body by the expected type.
fn read(expected: Expected, body: &[u8]) -> Result<Value, String> {
    if body.iter().find(|byte| !byte.is_ascii_whitespace()) == Some(&b'{') {
        return typed(expected, body);
    }
    // Whatever does not look like JSON is tried as YAML, which most texts are.
    let read = proto::yaml::read(body).map_err(|error| error.to_string())?;
    let mut text = Vec::new();
    proto::json::write_sorted(&read.value, &mut text);
    typed(expected, &text)
}

fn typed(expected: Expected, text: &[u8]) -> Result<Value, String> {
    let (kind, api_version) = said_type(text)?;
    let (group, version) = match api_version.split_once('/') {
        Some((_, version)) if version.contains('/') => {
            return Err(format!("unexpected GroupVersion string: {api_version}"));
        }
        Some((group, version)) => (group, version),
        None => ("", api_version.as_str()),
    };
    let kind = if kind.is_empty() { expected.kind } else { &kind };
    let (group, version) = match (group, version) {
        ("", "") => (expected.group, expected.version),
        (group, "") if group == expected.group => (group, expected.version),
        other => other,
    };
    if (group, kind) == (expected.group, expected.kind)
        && let Some(version) = ["v1", "v1beta1"].into_iter().find(|known| *known == version)
    {
        // It is read as what it says it is before anyone sees that it is the other version.
        let value = conforming(Expected { version, ..expected }, text)?;
        if version != expected.version {
            return Err(no_conversion(version, expected));
        }
        return Ok(value);
    }
    let shared = (group, version) == ("", "v1") && COMMON.contains(&kind)
        || group == "apiextensions.k8s.io" && group == expected.group && version == "v1" && EXTENSIONS.contains(&kind);
    if shared {
        let name = format!("{version}.{kind}");
        let Expected { version, kind, .. } = expected;
        return Err(format!("converting ({name}) to ({version}.{kind}): unknown conversion"));
    }
    if kind.is_empty() || version.is_empty() {
        let what = if kind.is_empty() { "Kind" } else { "apiVersion" };
        return Err(format!("Object '{what}' is missing in '{}'", String::from_utf8_lossy(text)));
    }
    let full = if group.is_empty() { version.to_owned() } else { format!("{group}/{version}") };
    Err(format!("no kind {} is registered for version {} in scheme {}", quote(kind), quote(&full), quote(SCHEME)))
}

fn no_conversion(from: &str, expected: Expected) -> String {
    let Expected { version, kind, .. } = expected;
    format!("converting ({from}.{kind}) to ({version}.{kind}): unknown conversion")
}

/// Kind and version that a text names.
fn said_type(text: &[u8]) -> Result<(String, String), String> {
    let failed = |why: &dyn std::fmt::Display| format!("couldn't get version/kind; json parse error: {why}");
    let members = proto::json::parse_members(text, &["kind", "apiVersion"]).map_err(|e| failed(&e))?;
    let Value::Object(members) = &members else {
        if members.is_null() {
            return Ok(Default::default());
        }
        let what = json_kind(&members);
        return Err(failed(&format!(
            "json: cannot unmarshal {what} into Go value of type {}",
            crate::go_value::TYPE_META
        )));
    };
    let member = |key: &str| match members.get(key) {
        None | Some(Value::Null) => Ok(String::new()),
        Some(Value::String(text)) => Ok(text.clone()),
        Some(other) => {
            let what = json_kind(other);
            Err(failed(&format!("json: cannot unmarshal {what} into Go struct field .{key} of type string")))
        }
    };
    Ok((member("kind")?, member("apiVersion")?))
}

fn conforming(expected: Expected, text: &[u8]) -> Result<Value, String> {
    let set = proto::schema::TypeSet::built_in();
    let id = set.struct_named(expected.message).ok_or_else(|| format!("no type {}", expected.message))?;
    proto::json::decode(set, id, text).map(|decoded| decoded.value).map_err(|e| go_types(&e.to_string(), expected))
}

/// A complaint with the Go types as they are named upstream.
fn go_types(complaint: &str, expected: Expected) -> String {
    let Some((what, place)) = complaint.split_once(" into Go struct field ") else { return complaint.to_owned() };
    let Some((field, ty)) = place.split_once(" of type ") else { return complaint.to_owned() };
    let owner = field.split('.').next().unwrap_or_default();
    let last = field.rsplit('.').next().unwrap_or_default();
    let named = NAMED.iter().find(|(of, name, _)| *of == owner && *name == last).map(|(_, _, ty)| *ty);
    let ty = named.filter(|_| ty == "string").unwrap_or(ty);
    let ty = match ty.strip_prefix("v1.") {
        Some(name) if OWN.contains(&name) => format!("{}.{name}", expected.version),
        _ => ty.to_owned(),
    };
    format!("{what} into Go struct field {field} of type {ty}")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn answer(code: u16, content_type: &str, body: &str) -> Answer {
        let body = bytes::Bytes::copy_from_slice(body.as_bytes());
        Answer { code, content_type: content_type.into(), retry_after: None, body }
    }

    fn complaint(version: &'static str, body: &str) -> String {
        answer(200, "", body).review(Expected::admission(version)).err().unwrap_or_default()
    }

    #[test]
    fn values_of_other_types_are_refused_in_gos_words() {
        let field = |what: &str, field: &str, ty: &str| {
            format!("json: cannot unmarshal {what} into Go struct field {field} of type {ty}")
        };
        for (response, why) in [
            (json!({"allowed": "yes"}), field("string", "AdmissionResponse.response.allowed", "bool")),
            (json!({"uid": 7}), field("number", "AdmissionResponse.response.uid", "types.UID")),
            (json!({"patch": {}}), field("object", "AdmissionResponse.response.patch", "[]uint8")),
            (json!({"patch": "W1"}), "illegal base64 data at input byte 0".to_owned()),
            (json!({"patchType": true}), field("bool", "AdmissionResponse.response.patchType", "v1.PatchType")),
            (json!({"warnings": "w"}), field("string", "AdmissionResponse.response.warnings", "[]string")),
            (json!({"warnings": [1]}), field("number", "AdmissionResponse.response.warnings", "string")),
            (
                json!({"auditAnnotations": []}),
                field("array", "AdmissionResponse.response.auditAnnotations", "map[string]string"),
            ),
            (json!({"status": {"code": "4"}}), field("string", "Status.response.status.code", "int32")),
            (json!({"status": {"code": 4.5}}), field("number 4.5", "Status.response.status.code", "int32")),
            (json!({"status": {"reason": 1}}), field("number", "Status.response.status.reason", "v1.StatusReason")),
            (json!("no"), field("string", "AdmissionReview.response", "v1.AdmissionResponse")),
        ] {
            assert_eq!(complaint("v1", &json!({"response": response}).to_string()), why);
        }
        let beta = complaint("v1beta1", r#"{"response":[]}"#);
        assert_eq!(beta, field("array", "AdmissionReview.response", "v1beta1.AdmissionResponse"));
    }

    #[test]
    fn what_is_no_review_is_told_by_what_it_says_it_is() {
        let of = |api_version: &str, kind: &str| json!({"apiVersion": api_version, "kind": kind}).to_string();
        for (body, why) in [
            (of("admission.k8s.io/v1beta1", "AdmissionReview"), "converting (v1beta1.AdmissionReview) to (v1.AdmissionReview): unknown conversion".to_owned()),
            (of("v1", "Status"), "converting (v1.Status) to (v1.AdmissionReview): unknown conversion".to_owned()),
            (of("a/b/c", "AdmissionReview"), "unexpected GroupVersion string: a/b/c".to_owned()),
            (of("v1", "Pod"), format!("no kind \"Pod\" is registered for version \"v1\" in scheme \"{SCHEME}\"")),
            ("<html>".to_owned(), format!("couldn't get version/kind; json parse error: json: cannot unmarshal string into Go value of type {}", crate::go_value::TYPE_META)),
            ("{".to_owned(), "couldn't get version/kind; json parse error: unexpected end of JSON input".to_owned()),
            (r#"{"kind":1}"#.to_owned(), "couldn't get version/kind; json parse error: json: cannot unmarshal number into Go struct field .kind of type string".to_owned()),
            (String::new(), "0-length response with status code: 200 and content type: application/json".to_owned()),
        ] {
            assert_eq!(complaint("v1", &body), why);
        }
        let yaml =
            answer(200, "application/yaml", "response: {uid: u, allowed: true}").review(Expected::admission("v1"));
        assert_eq!(yaml, Ok(json!({"response": {"uid": "u", "allowed": true}})));
    }

    #[test]
    fn http_errors_have_client_gos_words() {
        let said = |code: u16, content_type: &str, body: &str| {
            answer(code, content_type, body).review(Expected::admission("v1")).expect_err("an error")
        };
        assert_eq!(said(404, "text/plain", "404 page not found"), "the server could not find the requested resource");
        assert_eq!(said(403, "text/plain; charset=utf-8", " go away\n"), "go away");
        assert_eq!(said(403, "application/json", "{}"), "unknown");
        assert_eq!(said(406, "", ""), "the server was unable to respond with a content type that the client supports");
        assert_eq!(said(415, "", "only words"), "only words");
        let more = "the server responded with the status code 413 but did not return more information";
        assert_eq!(said(413, "", "too much"), more);
        let own = r#"{"kind":"Status","apiVersion":"v1","status":"Failure","message":"mine"}"#;
        assert_eq!(said(500, "application/json", own), "mine");
        let shown = "an error on the server (\"oh \\\"no\\\"\") has prevented the request from succeeding";
        assert_eq!(said(500, "text/plain", "oh \"no\""), shown);
        assert_eq!(said(302, "", "x"), more.replace("413", "302"));
    }
}
