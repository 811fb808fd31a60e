//! `AdmissionReview`: what a webhook is sent, and what its answer means.

use base64::Engine as _;
use serde_json::{Value, json};

use super::super::attributes::Attributes;
use super::answer::Expected;
use crate::resource::Resource;
use crate::status::{ApiError, quote};

/// What a webhook says.
pub struct Verdict {
    pub allowed: bool,
    /// What to do to the object.
    pub patch: Option<Patch>,
    /// `status` of a refusal.
    pub result: Value,
    pub warnings: Vec<String>,
    pub notes: Vec<(String, String)>,
}

/// A change of the object.
pub struct Patch {
    /// What it calls itself.
    pub kind: String,
    /// Operations, if it is a JSON patch.
    pub text: Vec<u8>,
}

/// The body of a call; `object` and `old` in the version that the webhook wants.
pub fn request(
    version: &str,
    uid: &str,
    attributes: &Attributes<'_>,
    matched: &Resource,
    object: Option<&Value>,
    old: Option<&Value>,
) -> Vec<u8> {
    let mut request = attributes.request(matched);
    request["uid"] = uid.into();
    request["object"] = object.cloned().unwrap_or(Value::Null);
    request["oldObject"] = old.cloned().unwrap_or(Value::Null);
    let api_version = format!("admission.k8s.io/{version}");
    let review = json!({"kind": "AdmissionReview", "apiVersion": api_version, "request": request});
    let mut out = Vec::new();
    proto::json::write_sorted(&review, &mut out);
    out
}

/// Reads an answer, which has the form of a review.
///
/// # Errors
/// What is wrong with it.
pub fn verdict(version: &'static str, uid: &str, mutating: bool, review: &Value) -> Result<Verdict, String> {
    let response = &review["response"];
    if !response.is_object() {
        return Err("webhook response was absent".into());
    }
    let said = response["patch"].as_str().unwrap_or_default();
    // What is no base64 was refused when the answer was read.
    let text = base64::engine::general_purpose::STANDARD.decode(said).unwrap_or_default();
    let mut kind = response["patchType"].as_str();
    if version == "v1" {
        let said = response["uid"].as_str().unwrap_or_default();
        if said != uid {
            return Err(format!("expected response.uid={}, got {}", quote(uid), quote(said)));
        }
        if let Some(complaint) = Expected::admission(version).complaint(review) {
            return Err(complaint);
        }
        let why = match (mutating, text.is_empty(), kind) {
            (true, false, None) => "webhook returned response.patch but not response.patchType",
            (true, true, Some(_)) => "webhook returned response.patchType but not response.patch",
            (true, false, Some("")) => "webhook returned invalid response.patchType of \"\"",
            (false, false, _) => "validating webhook may not return response.patch",
            (false, _, Some(_)) => "validating webhook may not return response.patchType",
            _ => "",
        };
        if !why.is_empty() {
            return Err(why.into());
        }
    } else {
        // The older version did not look at the type.
        kind = Some("JSONPatch");
    }
    let warnings = response["warnings"].as_array().into_iter().flatten();
    let notes = response["auditAnnotations"].as_object().into_iter().flatten();
    let patch = (mutating && !text.is_empty()).then(|| Patch { kind: kind.unwrap_or_default().to_owned(), text });
    Ok(Verdict {
        allowed: response["allowed"] == true,
        patch,
        result: response["status"].clone(),
        warnings: warnings.filter_map(Value::as_str).map(Into::into).collect(),
        notes: notes.filter_map(|(key, value)| Some((key.to_string(), value.as_str()?.to_owned()))).collect(),
    })
}

/// A refusal as the client gets it: the webhook's own status, made to be a failure.
pub fn refusal(name: &str, result: &Value) -> ApiError {
    let denied = format!("admission webhook {} denied the request", quote(name));
    let text = |field: &str| result[field].as_str().filter(|text| !text.is_empty());
    let message = match (text("message"), text("reason")) {
        (Some(said), _) | (None, Some(said)) => format!("{denied}: {said}"),
        (None, None) => format!("{denied} without explanation"),
    };
    let code =
        result["code"].as_u64().and_then(|code| u16::try_from(code).ok()).filter(|code| (400..600).contains(code));
    let mut error = ApiError::new(code.unwrap_or(400), "", message);
    if let Some(reason) = text("reason") {
        error = error.with_reason(reason);
    }
    match result["details"].as_object() {
        Some(_) => error.with_details(crate::status::Details::from_value(&result["details"])),
        None => error,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn complaint(mutating: bool, review: &Value) -> String {
        verdict("v1", "u", mutating, review).err().unwrap_or_default()
    }

    #[test]
    fn answers_that_do_not_fit_are_told_apart() {
        for (mutating, response, why) in [
            (true, json!({"uid": "x"}), "expected response.uid=\"u\", got \"x\""),
            (true, json!({"uid": "u", "patch": "W10="}), "webhook returned response.patch but not response.patchType"),
            (
                true,
                json!({"uid": "u", "patchType": "JSONPatch"}),
                "webhook returned response.patchType but not response.patch",
            ),
            (
                true,
                json!({"uid": "u", "patch": "W10=", "patchType": ""}),
                "webhook returned invalid response.patchType of \"\"",
            ),
            (false, json!({"uid": "u", "patch": "W10="}), "validating webhook may not return response.patch"),
            (
                false,
                json!({"uid": "u", "patchType": "JSONPatch"}),
                "validating webhook may not return response.patchType",
            ),
            (false, Value::Null, "webhook response was absent"),
        ] {
            let review = json!({"kind": "AdmissionReview", "apiVersion": "admission.k8s.io/v1", "response": response});
            assert_eq!(complaint(mutating, &review), why);
        }
        let bare = json!({"response": {"uid": "u", "allowed": true}});
        let why = "expected webhook response of admission.k8s.io/v1, Kind=AdmissionReview, got /, Kind=";
        assert_eq!(complaint(true, &bare), why);
        assert!(verdict("v1beta1", "u", true, &bare).is_ok_and(|verdict| verdict.allowed));
    }

    #[test]
    fn another_type_of_patch_is_kept_until_it_is_needed() {
        let mut review = json!({
            "kind": "AdmissionReview", "apiVersion": "admission.k8s.io/v1",
            "response": {"uid": "u", "allowed": true, "patch": "W10=", "patchType": "Full"},
        });
        let kind = |version, review: &Value| verdict(version, "u", true, review).ok()?.patch.map(|patch| patch.kind);
        assert_eq!(kind("v1", &review).as_deref(), Some("Full"));
        assert_eq!(kind("v1beta1", &review).as_deref(), Some("JSONPatch"));
        review["response"]["patchType"] = "JSONPatch".into();
        assert_eq!(kind("v1", &review).as_deref(), Some("JSONPatch"));
    }

    #[test]
    fn a_refusal_is_a_failure_whatever_the_webhook_says() {
        let error = refusal("w.x.y", &json!({"code": 200, "status": "Success"}));
        assert_eq!(error.to_value()["message"], "admission webhook \"w.x.y\" denied the request without explanation");
        assert_eq!((error.code(), &error.to_value()["status"]), (400, &json!("Failure")));
        let error = refusal("w.x.y", &json!({"code": 418, "reason": "Teapot", "details": {"name": "n"}}));
        let shown = error.to_value();
        assert_eq!(shown["reason"], "Teapot");
        assert_eq!(shown["message"], "admission webhook \"w.x.y\" denied the request: Teapot");
        assert_eq!((&shown["code"], &shown["details"]["name"]), (&json!(418), &json!("n")));
    }
}
