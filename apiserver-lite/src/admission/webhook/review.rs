//! `AdmissionReview`: what a webhook is sent, and what its answer means.

use base64::Engine as _;
use serde_json::{Value, json};

use super::super::attributes::Attributes;
use crate::resource::Resource;
use crate::status::{ApiError, quote};

/// What a webhook says.
pub struct Verdict {
    pub allowed: bool,
    /// Operations of a JSON patch.
    pub patch: Option<Vec<u8>>,
    /// `status` of a refusal.
    pub result: Value,
    pub warnings: Vec<String>,
    pub notes: Vec<(String, String)>,
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

/// Reads an answer.
///
/// # Errors
/// What is wrong with it.
pub fn verdict(version: &str, uid: &str, mutating: bool, body: &[u8]) -> Result<Verdict, String> {
    let failed = |why: String| format!("failed to call webhook: {why}");
    let invalid = |why: String| format!("received invalid webhook response: {why}");
    let review = proto::json::parse(body)
        .map_err(|e| failed(format!("couldn't get version/kind; json parse error: {e}")))?
        .value;
    let response = &review["response"];
    if !response.is_object() {
        return Err(invalid("webhook response was absent".into()));
    }
    let text = |value: &Value, name: &str| value[name].as_str().unwrap_or_default().to_owned();
    let patch = match &response["patch"] {
        Value::Null => None,
        Value::String(said) if said.is_empty() => None,
        Value::String(said) => {
            let bytes = base64::engine::general_purpose::STANDARD.decode(said);
            Some(bytes.map_err(|e| failed(format!("illegal base64 data in response.patch: {e}")))?)
        }
        _ => return Err(failed("json: cannot unmarshal response.patch into Go value of type []uint8".into())),
    };
    let patch_type = response["patchType"].as_str();
    if version == "v1" {
        let said = text(response, "uid");
        if said != uid {
            return Err(invalid(format!("expected response.uid={}, got {}", quote(uid), quote(&said))));
        }
        let (api_version, kind) = (text(&review, "apiVersion"), text(&review, "kind"));
        if (api_version.as_str(), kind.as_str()) != ("admission.k8s.io/v1", "AdmissionReview") {
            let shown = if api_version.contains('/') { api_version } else { format!("/{api_version}") };
            let why = format!(
                "expected webhook response of admission.k8s.io/v1, Kind=AdmissionReview, got {shown}, Kind={kind}"
            );
            return Err(invalid(why));
        }
        let why = match (mutating, patch.is_some(), patch_type) {
            (true, true, None) => "webhook returned response.patch but not response.patchType".to_owned(),
            (true, false, Some(_)) => "webhook returned response.patchType but not response.patch".to_owned(),
            (true, true, Some("")) => "webhook returned invalid response.patchType of \"\"".to_owned(),
            (false, true, _) => "validating webhook may not return response.patch".to_owned(),
            (false, _, Some(_)) => "validating webhook may not return response.patchType".to_owned(),
            _ => String::new(),
        };
        if !why.is_empty() {
            return Err(invalid(why));
        }
        if let Some(other) = patch_type.filter(|kind| mutating && *kind != "JSONPatch") {
            return Err(format!("unsupported patch type {}", quote(other)));
        }
    }
    let texts = |value: &Value| -> Vec<String> {
        value.as_array().into_iter().flatten().filter_map(Value::as_str).map(Into::into).collect()
    };
    let notes = response["auditAnnotations"].as_object().into_iter().flatten();
    Ok(Verdict {
        allowed: response["allowed"] == true,
        patch: patch.filter(|_| mutating),
        result: response["status"].clone(),
        warnings: texts(&response["warnings"]),
        notes: notes.filter_map(|(key, value)| Some((key.clone(), value.as_str()?.to_owned()))).collect(),
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

    fn answer(response: Value) -> Vec<u8> {
        let review = json!({"kind": "AdmissionReview", "apiVersion": "admission.k8s.io/v1", "response": response});
        review.to_string().into_bytes()
    }

    fn complaint(mutating: bool, body: &[u8]) -> String {
        verdict("v1", "u", mutating, body).err().unwrap_or_default()
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
            (false, json!({"uid": "u", "patch": "W10="}), "validating webhook may not return response.patch"),
            (
                false,
                json!({"uid": "u", "patchType": "JSONPatch"}),
                "validating webhook may not return response.patchType",
            ),
            (false, Value::Null, "webhook response was absent"),
        ] {
            assert_eq!(complaint(mutating, &answer(response)), format!("received invalid webhook response: {why}"));
        }
        let bare = json!({"response": {"uid": "u", "allowed": true}}).to_string();
        let why = "received invalid webhook response: expected webhook response of admission.k8s.io/v1, \
                   Kind=AdmissionReview, got /, Kind=";
        assert_eq!(complaint(true, bare.as_bytes()), why);
        assert!(complaint(true, b"<html>").starts_with("failed to call webhook: couldn't get version/kind"));
        assert!(verdict("v1beta1", "u", true, bare.as_bytes()).is_ok_and(|verdict| verdict.allowed));
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
