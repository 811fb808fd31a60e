//! The patch formats: JSON Patch (RFC 6902), JSON Merge Patch (RFC 7396) and strategic merge by the schema table.
//!
//! A [`Patch`] is read once and applied to the object as often as others get in between. The result is conformed to the
//! schema; what strict field validation objects to is an error, a warning or nothing, as the client asked.

mod json_patch;
mod restore;
mod shown;
mod strategic;

use proto::json::DecodeError;
use serde_json::{Map, Value};

use crate::resource::{Resource, Schema};
use crate::status::{ApiError, Cause, Result, quote};
use crate::write::FieldValidation;

/// A patch that was read.
#[derive(Debug)]
pub struct Patch {
    format: Format,
    /// What strict validation objects to in the text of the patch itself.
    strict: Vec<String>,
}

#[derive(Debug)]
enum Format {
    Json(Vec<json_patch::Operation>),
    Merge(Value),
    Strategic(Value),
}

/// An object after a patch, and what the client should be warned of.
#[derive(Debug)]
pub struct Patched {
    pub value: Value,
    pub warnings: Vec<String>,
}

/// Operations of a JSON patch that is no request's body: a webhook's or a policy's.
pub struct Operations(Vec<json_patch::Operation>);

impl Operations {
    /// # Errors
    /// 400 for what is no list of operations.
    pub fn parse(patch: Value) -> Result<Self> {
        json_patch::parse(patch, &mut Vec::new()).map(Operations)
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Applies them in order.
    ///
    /// # Errors
    /// The first that cannot be applied; the value is changed in part then.
    pub fn apply(&self, value: &mut Value) -> std::result::Result<(), NotApplied> {
        for operation in &self.0 {
            let refused = |_| NotApplied { test: operation.is_test(), why: operation.complaint() };
            json_patch::apply(value, std::slice::from_ref(operation)).map_err(refused)?;
        }
        Ok(())
    }
}

/// An operation that cannot be applied.
#[derive(Debug)]
pub struct NotApplied {
    /// It is a test that did not hold.
    pub test: bool,
    pub why: String,
}

/// Media type of a content type header.
pub fn media(content_type: &str) -> &str {
    content_type.split(';').next().unwrap_or_default().trim()
}

impl Patch {
    /// Reads a patch of a media type; None for a media type that is none of a patch.
    ///
    /// # Errors
    /// 400 for text that is no patch, 413 for too many operations.
    pub fn parse(media: &str, body: &[u8], validation: FieldValidation) -> Result<Option<Self>> {
        let strategic = media == "application/strategic-merge-patch+json";
        if !strategic && !matches!(media, "application/json-patch+json" | "application/merge-patch+json") {
            return Ok(None);
        }
        let parsed = proto::json::parse(body).map_err(|error| match strategic {
            true => ApiError::bad_request(error.to_string()),
            false => ApiError::bad_request(format!("error decoding patch: {error}")),
        })?;
        let mut strict = parsed.duplicates;
        let object = |value: Value| match value {
            Value::Null => Ok(Value::Object(Map::new())),
            Value::Object(_) => Ok(value),
            other if strategic => {
                Err(ApiError::bad_request(mismatch(&other, "Go value of type map[string]interface {}")))
            }
            other => Err(wrong_type(&other, "Go value of type map[string]interface {}")),
        };
        let format = match media {
            "application/json-patch+json" => Format::Json(json_patch::parse(parsed.value, &mut strict)?),
            "application/merge-patch+json" => Format::Merge(object(parsed.value)?),
            _ => Format::Strategic(object(parsed.value)?),
        };
        if validation == FieldValidation::Ignore {
            strict.clear();
        }
        Ok(Some(Patch { format, strict }))
    }

    /// Whether the patch neither looks at `metadata.managedFields` nor writes them.
    pub fn leaves_owners(&self) -> bool {
        let object = match &self.format {
            Format::Json(operations) => return operations.iter().all(json_patch::Operation::leaves_owners),
            Format::Merge(patch) | Format::Strategic(patch) => patch,
        };
        let Some(members) = object.as_object() else { return false };
        let plain = !members.keys().any(|key| key.starts_with('$'));
        plain
            && match members.get("metadata") {
                None => true,
                Some(Value::Object(metadata)) => {
                    !metadata.keys().any(|key| key == "managedFields" || key.starts_with('$'))
                }
                Some(_) => false,
            }
    }

    fn merge(&self, schema: &Schema, value: &mut Value) -> Result<()> {
        match &self.format {
            Format::Json(operations) => json_patch::apply(value, operations).map_err(|_| rejected())?,
            Format::Merge(patch) => apply_merge(value, patch),
            Format::Strategic(patch) => {
                strategic::apply(schema.set(), schema.id, value, patch.as_object().unwrap_or(&Map::new()))?;
            }
        }
        Ok(())
    }

    /// Applies the patch to a custom object; what it says to be afterwards is validation's business.
    ///
    /// # Errors
    /// As [`Patch::apply`].
    pub fn apply_custom(
        &self,
        resource: &Resource,
        mut value: Value,
        json: impl FnOnce() -> Vec<u8>,
        validation: FieldValidation,
    ) -> Result<Patched> {
        self.merge(&resource.schema, &mut value)?;
        let shown = value.clone();
        let refuse = |why: String| Err(invalid_patch(&shown::document(&json(), &shown, &self.format), &why));
        let fitted = match crate::crd::conform(resource, value) {
            Ok(fitted) => fitted,
            Err(error) => return refuse(error),
        };
        let complaints: Vec<String> = self.strict.iter().cloned().chain(fitted.strict).collect();
        match validation {
            FieldValidation::Strict if !complaints.is_empty() => {
                refuse(format!("strict decoding error: {}", complaints.join(", ")))
            }
            FieldValidation::Warn => Ok(Patched { value: fitted.value, warnings: complaints }),
            _ => Ok(Patched { value: fitted.value, warnings: Vec::new() }),
        }
    }

    /// Applies the patch to an object of a kind, whose JSON is `json` (asked for only when an error shows it). What the
    /// result shares with `like`, an object of the kind at rest, is in its normal form already.
    ///
    /// # Errors
    /// 400, 422 and 500, as upstream for each mistake.
    pub fn apply(
        &self,
        schema: &Schema,
        (group, version, kind): (&str, &str, &str),
        mut value: Value,
        like: Option<&Value>,
        json: impl FnOnce() -> Vec<u8>,
        validation: FieldValidation,
    ) -> Result<Patched> {
        let (set, id) = (schema.set(), schema.id);
        self.merge(schema, &mut value)?;
        let refuse = |value: &Value, why: String| {
            let shown = match &self.format {
                Format::Strategic(patch) => strategic::shown(patch.as_object().unwrap_or(&Map::new())),
                other => shown::document(&json(), value, other),
            };
            Err(invalid_patch(&shown, &why))
        };
        // A strategic patch is put into an object of the kind that was there, and what it calls itself is not looked at.
        let strategic = matches!(self.format, Format::Strategic(_));
        if let Some(why) = foreign(&value, group, version, kind).filter(|_| !strategic) {
            return refuse(&value, why);
        }
        // Most patches leave the object in its normal form, but for what an object at rest spells out, and it need not be
        // written and read again to get there. A complaint shows it as it was.
        let (conformed, unknown) = if self.strict.is_empty() && proto::json::settle(set, id, &mut value, like) {
            (None, Vec::new())
        } else {
            match proto::json::conform(set, id, &value) {
                Ok(decoded) => (Some(decoded.value), decoded.strict),
                Err(DecodeError::Syntax(error)) => return refuse(&value, error.to_string()),
                Err(DecodeError::Type(error)) => {
                    let in_other_words = if strategic { restore::complaint(set, id, &value) } else { None };
                    return refuse(&value, in_other_words.unwrap_or(error));
                }
            }
        };
        let complaints: Vec<String> = self.strict.iter().cloned().chain(unknown).collect();
        let warnings = match validation {
            FieldValidation::Strict if !complaints.is_empty() => {
                return refuse(&value, format!("strict decoding error: {}", complaints.join(", ")));
            }
            FieldValidation::Warn => complaints,
            _ => Vec::new(),
        };
        let mut value = conformed.unwrap_or(value);
        value["kind"] = kind.into();
        value["apiVersion"] = qualified_version(group, version).into();
        Ok(Patched { value, warnings })
    }
}

fn qualified_version(group: &str, version: &str) -> String {
    if group.is_empty() { version.to_owned() } else { format!("{group}/{version}") }
}

/// Why a patched document is no object of the kind that it was: patches can change what it says it is.
fn foreign(value: &Value, group: &str, version: &str, kind: &str) -> Option<String> {
    let said_kind = value["kind"].as_str().filter(|k| !k.is_empty()).unwrap_or(kind);
    let ours = qualified_version(group, version);
    let said_version = value["apiVersion"].as_str().filter(|v| !v.is_empty()).unwrap_or(&ours);
    if said_kind == kind && *said_version == ours {
        return None;
    }
    if said_version.matches('/').count() > 1 {
        return Some(format!("unexpected GroupVersion string: {said_version}"));
    }
    let set = proto::schema::TypeSet::built_in();
    let (said_group, short) = said_version.rsplit_once('/').unwrap_or(("", said_version));
    let Some(id) = set.kind(said_group, short, said_kind) else {
        return Some(crate::write::not_registered(said_kind, said_version));
    };
    // It is read as what it says it is before anyone sees that it is something else.
    match proto::json::conform(set, id, value) {
        Err(error) => Some(error.to_string()),
        Ok(_) => Some(crate::write::no_conversion(said_version, said_kind, group, kind)),
    }
}

/// What a client hears whose operations do not apply.
fn rejected() -> ApiError {
    let text = "the server rejected our request due to an error in our request";
    ApiError::new(422, "Invalid", text).with_details(crate::status::Details::default())
}

/// A result that is no object of the kind; upstream names neither kind nor object.
fn invalid_patch(shown: &str, why: &str) -> ApiError {
    let message = format!("Invalid value: {}: {why}", quote(shown));
    let cause = Cause { reason: "FieldValueInvalid".into(), message, field: "patch".into() };
    crate::write::invalid("", "", "", vec![cause])
}

fn mismatch(value: &Value, wanted: &str) -> String {
    let what = crate::go_value::json_kind(value);
    format!("json: cannot unmarshal {what} into {wanted}")
}

fn wrong_type(value: &Value, wanted: &str) -> ApiError {
    ApiError::bad_request(format!("error decoding patch: {}", mismatch(value, wanted)))
}

/// A value as Go prints it with `%v`.
fn go_print(value: &Value) -> String {
    match value {
        Value::Null => "<nil>".into(),
        Value::String(text) => text.clone(),
        Value::Array(items) => format!("[{}]", items.iter().map(go_print).collect::<Vec<_>>().join(" ")),
        Value::Object(members) => {
            let members: Vec<String> = members.iter().map(|(k, v)| format!("{k}:{}", go_print(v))).collect();
            format!("map[{}]", members.join(" "))
        }
        other => other.to_string(),
    }
}

/// Applies a JSON Merge Patch: null removes, objects merge, everything else replaces.
pub(crate) fn apply_merge(target: &mut Value, patch: &Value) {
    let Value::Object(patch) = patch else {
        target.clone_from(patch);
        return;
    };
    if !target.is_object() {
        *target = Value::Object(Map::new());
    }
    let Value::Object(object) = target else { return };
    for (key, value) in patch {
        if value.is_null() {
            object.remove(key);
        } else {
            apply_merge(object.entry(key.as_str()).or_insert(Value::Null), value);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn merge_patches_follow_the_rfc() {
        for (target, patch, result) in [
            (json!({"a": "b"}), json!({"a": "c"}), json!({"a": "c"})),
            (json!({"a": "b", "b": "c"}), json!({"a": null}), json!({"b": "c"})),
            (json!({"a": ["b"]}), json!({"a": "c"}), json!({"a": "c"})),
            (json!({"a": {"b": "c"}}), json!({"a": {"b": "d", "c": null}}), json!({"a": {"b": "d"}})),
            (json!(["a"]), json!({"a": {"b": null}}), json!({"a": {}})),
        ] {
            let mut value = target;
            apply_merge(&mut value, &patch);
            assert_eq!(value, result);
        }
    }

    fn tried(media: &str, patch: &str, validation: FieldValidation) -> Result<Patched> {
        let set = proto::schema::TypeSet::built_in();
        let id = set.kind("", "v1", "ConfigMap").expect("built in");
        let schema = Schema { set: crate::resource::SchemaSet::BuiltIn, id };
        let json =
            br#"{"kind":"ConfigMap","apiVersion":"v1","metadata":{"name":"a","namespace":"b"},"data":{"k":"v"}}"#;
        let value = proto::json::parse(json).expect("JSON").value;
        let patch = Patch::parse(media, patch.as_bytes(), validation)?.expect("a patch");
        patch.apply(&schema, ("", "v1", "ConfigMap"), value, None, || json.to_vec(), validation)
    }

    #[test]
    fn errors_show_the_patched_document_as_the_patch_library_writes_it() {
        let error = tried("application/merge-patch+json", r#"{"data":{"z":5}}"#, FieldValidation::Warn);
        let text = error.expect_err("refused").status().message.clone();
        let shown = r#"{\"apiVersion\":\"v1\",\"data\":{\"k\":\"v\",\"z\":5},\"kind\":\"ConfigMap\",\"metadata\":{\"name\":\"a\",\"namespace\":\"b\"}}"#;
        let why = "json: cannot unmarshal number into Go struct field ConfigMap.data of type string";
        assert_eq!(text, format!(" \"\" is invalid: patch: Invalid value: \"{shown}\": {why}"));
    }

    #[test]
    fn unknown_and_duplicate_fields_are_errors_warnings_or_nothing() {
        let patch = r#"{"nope":1,"data":{"z":"1","z":"2"}}"#;
        let complaints = [r#"duplicate field "data.z""#, r#"unknown field "nope""#];
        let media = "application/merge-patch+json";
        assert_eq!(tried(media, patch, FieldValidation::Warn).expect("applies").warnings, complaints);
        assert!(tried(media, patch, FieldValidation::Ignore).expect("applies").warnings.is_empty());
        let error = tried(media, patch, FieldValidation::Strict).expect_err("refused");
        assert!(error.status().message.ends_with(&format!("strict decoding error: {}", complaints.join(", "))));
    }

    #[test]
    fn patches_that_may_touch_owners_are_told_from_those_that_do_not() {
        let leaves = |media: &str, patch: &str| {
            let media = format!("application/{media}+json");
            let patch = Patch::parse(&media, patch.as_bytes(), FieldValidation::Warn).expect("a patch");
            patch.expect("known").leaves_owners()
        };
        for patch in [r#"{}"#, r#"{"status":{"phase":"x"}}"#, r#"{"metadata":{"labels":{"$a":"b"}}}"#] {
            assert!(leaves("merge-patch", patch) && leaves("strategic-merge-patch", patch), "{patch}");
        }
        for patch in
            [r#"{"metadata":null}"#, r#"{"metadata":{"managedFields":[]}}"#, r#"{"metadata":{"$patch":"replace"}}"#]
        {
            assert!(!leaves("merge-patch", patch) && !leaves("strategic-merge-patch", patch), "{patch}");
        }
        let operation = |op: &str, path: &str, from: &str| {
            let patch = format!(r#"[{{"op":"{op}","path":"{path}","from":"{from}","value":1}}]"#);
            leaves("json-patch", &patch)
        };
        assert!(operation("add", "/metadata/labels/a", "") && operation("copy", "/spec/a", "/spec/b"));
        for (op, path, from) in [
            ("test", "/metadata", ""),
            ("replace", "", ""),
            ("remove", "/metadata/managedFields", ""),
            ("add", "x/metadata/managedFields/0", ""),
            ("copy", "/spec/a", "/metadata"),
            ("move", "/spec/a", ""),
            ("add", "/meta~0data/managedFields", ""),
        ] {
            assert!(!operation(op, path, from), "{op} {path} {from}");
        }
    }

    #[test]
    fn a_patch_cannot_make_another_kind_of_it() {
        let patch = r#"[{"op":"replace","path":"/kind","value":"Frob"}]"#;
        let error = tried("application/json-patch+json", patch, FieldValidation::Warn).expect_err("refused");
        assert!(error.status().message.contains("no kind \"Frob\" is registered for version \"v1\" in scheme"));
        let patch = r#"{"kind":"Frob","apiVersion":"v9","data":{"z":"1"}}"#;
        let strategic = tried("application/strategic-merge-patch+json", patch, FieldValidation::Warn).expect("applies");
        assert_eq!(strategic.value["kind"], "ConfigMap");
        assert_eq!((&strategic.value["apiVersion"], &strategic.value["data"]["z"]), (&json!("v1"), &json!("1")));
    }
}
