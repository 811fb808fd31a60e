//! Conversion webhooks: servers that bring custom objects from one version into another.
//!
//! A definition with strategy `Webhook` names one. It is asked where an object at rest is read in another version, and
//! where one is written that was sent in another. While a request is worked on, the object is in the version of the
//! request; what lies in the store is in the version of storage, or in one that was that once. Objects of a list go in
//! one call. A webhook may change labels and annotations; all other metadata stays what it was.
//!
//! Follows `apiextensions-apiserver/pkg/apiserver/conversion/webhook_converter.go`.

use std::time::Duration;

use serde_json::{Map, Value, json};

use crate::admission::{Asker, Endpoint, Expected};
use crate::go_value::type_name;
use crate::resource::Resource;
use crate::server::ApiServer;
use crate::status::{ApiError, Result, quote};
use crate::store::ObjectRef;

/// Time that a webhook has.
const TIMEOUT: Duration = Duration::from_secs(30);
/// Objects that go in one call.
const BATCH: usize = 500;

/// The webhook of a definition.
#[derive(Debug)]
pub struct Converter {
    endpoint: Endpoint,
    /// Version of `ConversionReview` to send; None for none that we know.
    version: Option<&'static str>,
}

impl Converter {
    /// Reads `spec.conversion`; None for strategy `None`.
    pub fn new(conversion: &Value) -> Option<Self> {
        let webhook = Some(&conversion["webhook"]).filter(|_| conversion["strategy"] == "Webhook")?;
        let mut versions = webhook["conversionReviewVersions"].as_array().into_iter().flatten();
        let known = |version: &Value| ["v1", "v1beta1"].into_iter().find(|known| *version == **known);
        Some(Converter { endpoint: Endpoint::new(&webhook["clientConfig"]), version: versions.find_map(known) })
    }

    /// Brings objects of one kind into a version; all are in other versions.
    ///
    /// # Errors
    /// 500 without a reason for a call that failed, and for an answer that is not what was asked for.
    async fn convert(&self, server: &ApiServer, objects: Vec<Value>, to: &str) -> Result<Vec<Value>> {
        let Some(first) = objects.first() else { return Ok(objects) };
        let of = format!("{}, Kind={}", text(first, "apiVersion"), text(first, "kind"));
        let failed = |why: String| ApiError::new(500, "", why);
        let version = self.version.ok_or_else(|| failed("no supported conversion review versions".into()))?;
        let uid = crate::random::uuid();
        let mut out = Vec::with_capacity(objects.len());
        for batch in objects.chunks(BATCH) {
            let review = json!({
                "kind": "ConversionReview",
                "apiVersion": format!("apiextensions.k8s.io/{version}"),
                "request": {"uid": uid, "desiredAPIVersion": to, "objects": batch},
            });
            let mut body = Vec::new();
            proto::json::write_sorted(&review, &mut body);
            let answer = server.admission.clients().post(server, Asker::Conversion, &self.endpoint, body, TIMEOUT);
            let answer = answer.await;
            let answer = answer.map_err(|why| failed(format!("conversion webhook for {of} failed: {why}")))?;
            let review = answer.review(Expected::conversion(version));
            let converted = review.and_then(|review| converted(version, &uid, review));
            let converted = converted.map_err(|why| failed(format!("conversion webhook for {of} failed: {why}")))?;
            if converted.len() != batch.len() {
                let (got, wanted) = (converted.len(), batch.len());
                return Err(failed(format!("conversion webhook for {of} returned {got} objects, expected {wanted}")));
            }
            if let Some(nothing) = converted.iter().find(|object| text(object, "kind").is_empty()) {
                return Err(failed(format!("Object 'Kind' is missing in '{nothing}'")));
            }
            for (before, after) in batch.iter().zip(converted) {
                let after = settle(before, after, to);
                out.push(after.map_err(|why| failed(format!("conversion webhook for {of} returned {why}")))?);
            }
        }
        Ok(out)
    }
}

fn text<'v>(value: &'v Value, key: &str) -> &'v str {
    value[key].as_str().unwrap_or_default()
}

/// The objects of an answer.
fn converted(version: &'static str, uid: &str, mut review: Value) -> Result<Vec<Value>, String> {
    let strict = version == "v1";
    if let Some(complaint) = Expected::conversion(version).complaint(&review).filter(|_| strict) {
        return Err(complaint);
    }
    let response = &mut review["response"];
    if !response.is_object() {
        return Err("no response provided".into());
    }
    if strict && response["uid"] != uid {
        return Err(format!("expected response.uid={}, got {}", quote(uid), quote(text(response, "uid"))));
    }
    let (status, message) = (text(&response["result"], "status"), text(&response["result"], "message"));
    if status != "Success" {
        return Err(match message {
            "" if strict => format!("response.result.status was '{status}', not 'Success'"),
            message => message.to_owned(),
        });
    }
    match response["convertedObjects"].take() {
        Value::Array(objects) => Ok(objects),
        _ => Ok(Vec::new()),
    }
}

/// Checks one converted object and gives it the metadata that it had. To upstream each is the first of a call of its own.
fn settle(before: &Value, mut after: Value, to: &str) -> Result<Value, String> {
    let object = |why: String| format!("invalid object at index 0: {why}");
    let (version, kind) = (text(&after, "apiVersion"), text(&after, "kind"));
    if version != to {
        return Err(object(format!("invalid groupVersion (expected {to}, received {version})")));
    }
    if kind != text(before, "kind") {
        return Err(object(format!("invalid kind (expected {}, received {kind})", text(before, "kind"))));
    }
    for (key, shown) in [("name", "name"), ("namespace", "namespace"), ("uid", "UID")] {
        let (had, has) = (text(&before["metadata"], key), text(&after["metadata"], key));
        if had != has {
            return Err(format!("invalid object: must have the same {shown}: {had} != {has}"));
        }
    }
    let Value::Object(said) = after["metadata"].take() else {
        return Err("invalid metadata: missing metadata in converted object".into());
    };
    after["metadata"] = restored(&before["metadata"], &said).map_err(|why| format!("invalid metadata: {why}"))?;
    Ok(after)
}

/// Metadata as it was, with labels and annotations as they are said to be now.
fn restored(before: &Value, said: &Map<String, Value>) -> Result<Value, String> {
    let mut metadata = before.as_object().cloned().unwrap_or_default();
    let mut changed = false;
    for key in ["labels", "annotations"] {
        match said.get(key) {
            None | Some(Value::Null) => {
                metadata.remove(key);
            }
            Some(Value::Object(map)) => {
                if let Some((name, value)) = map.iter().find(|(_, value)| !value.is_string()) {
                    let of = type_name(value);
                    return Err(format!("metadata.{key}[{name}] must be a string, but is {of} in converted object"));
                }
                changed |= before[key] != said[key];
                metadata.insert(key.into(), said[key].clone());
            }
            Some(other) => {
                return Err(format!("invalid metadata.{key} of type {} in converted object", type_name(other)));
            }
        }
    }
    let metadata = Value::Object(metadata);
    if changed {
        let errors = crate::validate::embedded_metadata(&metadata);
        // Of annotations nothing is said before the labels are right, and then under a name of upstream's own.
        for (field, shown) in [("metadata.labels", "metadata.labels"), ("metadata.annotations", "metadata.annotation")]
        {
            let of_field = errors.iter().filter(|error| error.field.starts_with(field));
            let all: Vec<String> = of_field.map(|error| format!("{shown}: {}", error.message)).collect();
            if !all.is_empty() {
                return Err(crate::status::aggregate(&all));
            }
        }
    }
    Ok(metadata)
}

/// The webhook that objects of a resource need to come into a version, and whether this one is in another.
fn needed<'r>(resource: &'r Resource, said: &str, to: &str) -> Option<&'r Converter> {
    resource.definition.as_ref().and_then(|d| d.converter.as_ref()).filter(|_| said != to)
}

/// An object in a version, by the webhook where there is one.
///
/// # Errors
/// As [`served`].
pub async fn to_version(server: &ApiServer, resource: &Resource, value: &mut Value, to: &str) -> Result<()> {
    let Some(converter) = needed(resource, text(value, "apiVersion"), to) else { return Ok(()) };
    let converted = converter.convert(server, vec![value.take()], to).await?;
    *value = converted.into_iter().next().unwrap_or_default();
    Ok(())
}

/// The same from the middle of plain code: the runtime moves other work off this thread meanwhile.
///
/// # Errors
/// As [`served`].
pub fn to_version_now(server: &ApiServer, resource: &Resource, value: &mut Value, to: &str) -> Result<()> {
    if needed(resource, text(value, "apiVersion"), to).is_none() {
        return Ok(());
    }
    let done = crate::wait_for(to_version(server, resource, value, to));
    done.unwrap_or_else(|| Err(ApiError::internal("a conversion webhook cannot be called from here")))
}

/// Objects at rest in the version that a resource serves, for reading: those that a webhook has to convert are
/// converted, the others stay what they are.
///
/// # Errors
/// 500 without a reason when the webhook fails.
pub async fn served(server: &ApiServer, resource: &Resource, objects: Vec<ObjectRef>) -> Result<Vec<ObjectRef>> {
    let Some(definition) = resource.definition.as_ref().filter(|d| d.converter.is_some()) else { return Ok(objects) };
    let to = resource.api_version();
    let (mut places, mut values) = (Vec::new(), Vec::new());
    for (place, object) in objects.iter().enumerate().filter(|(_, object)| !definition.is_current(object)) {
        let value = object.value();
        if text(&value, "apiVersion") != to {
            places.push(place);
            values.push(value);
        }
    }
    let Some(converter) = definition.converter.as_ref().filter(|_| !values.is_empty()) else { return Ok(objects) };
    let mut objects = objects;
    let converted = converter.convert(server, values, &to).await?;
    for (place, value) in places.into_iter().zip(converted) {
        let mut json = Vec::new();
        proto::json::write_sorted(&value, &mut json);
        objects[place] = objects[place].with_json(json);
    }
    Ok(objects)
}

/// One object as [`served`] has it.
///
/// # Errors
/// As [`served`].
pub async fn served_one(server: &ApiServer, resource: &Resource, object: &ObjectRef) -> Result<ObjectRef> {
    Ok(served(server, resource, vec![object.clone()]).await?.pop().unwrap_or_else(|| object.clone()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn object(version: &str, metadata: Value) -> Value {
        json!({"apiVersion": format!("g.io/{version}"), "kind": "Foo", "metadata": metadata, "spec": {}})
    }

    #[test]
    fn answers_have_to_be_for_the_question() {
        let answer = |value: Value| converted("v1", "u", value);
        let review = |response: Value| json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": "ConversionReview", "response": response});
        let good = json!({"uid": "u", "result": {"status": "Success"}, "convertedObjects": [{}]});
        assert_eq!(answer(review(good)), Ok(vec![json!({})]));
        for (value, why) in [
            (
                json!({"kind": "X"}),
                "expected webhook response of apiextensions.k8s.io/v1, Kind=ConversionReview, got /, Kind=X",
            ),
            (review(Value::Null), "no response provided"),
            (review(json!({"uid": "v"})), "expected response.uid=\"u\", got \"v\""),
            (review(json!({"uid": "u", "result": {"status": "Failure", "message": "no"}})), "no"),
            (review(json!({"uid": "u", "result": {}})), "response.result.status was '', not 'Success'"),
        ] {
            assert_eq!(answer(value), Err(why.to_owned()));
        }
    }

    #[test]
    fn a_webhook_changes_labels_and_annotations_and_no_other_metadata() {
        let before = object("v1", json!({"name": "a", "uid": "1", "generation": 4, "labels": {"a": "b"}}));
        let after = object("v2", json!({"name": "a", "uid": "1", "generation": 9, "annotations": {"k": "v"}}));
        let settled = settle(&before, after, "g.io/v2").expect("is fine");
        assert_eq!(settled["metadata"], json!({"name": "a", "uid": "1", "generation": 4, "annotations": {"k": "v"}}));
        for (after, why) in [
            (
                object("v1", json!({})),
                "invalid object at index 0: invalid groupVersion (expected g.io/v2, received g.io/v1)",
            ),
            (object("v2", json!({"name": "b", "uid": "1"})), "invalid object: must have the same name: a != b"),
            (object("v2", json!({"name": "a", "uid": "2"})), "invalid object: must have the same UID: 1 != 2"),
            (
                object("v2", json!({"name": "a", "uid": "1", "labels": {"a": 1}})),
                "invalid metadata: metadata.labels[a] must be a string, but is int64 in converted object",
            ),
        ] {
            assert_eq!(settle(&before, after, "g.io/v2"), Err(why.to_owned()));
        }
        let bad = object("v2", json!({"name": "a", "uid": "1", "labels": {"a": "b c"}}));
        assert!(
            settle(&before, bad, "g.io/v2")
                .is_err_and(|why| why.starts_with("invalid metadata: metadata.labels: Invalid"))
        );
        let bad = object("v2", json!({"name": "a", "uid": "1", "annotations": {"a b": ""}}));
        assert!(
            settle(&before, bad, "g.io/v2")
                .is_err_and(|why| why.starts_with("invalid metadata: metadata.annotation: Invalid"))
        );
    }
}
