//! What a delete asks for beside the object: grace, preconditions, propagation, dry run; from the body, or from the query
//! where there is no body.

use serde_json::Value;
use tokio::time::Instant;

use super::options::{check_dry_run, invalid};
use crate::http::{Media, body_media};
use crate::request::Query;
use crate::server::Request;
use crate::status::{ApiError, Cause, Result, quote};

#[derive(Debug, Clone, Default, PartialEq)]
pub struct DeleteOptions {
    pub grace_seconds: Option<i64>,
    pub uid: Option<String>,
    pub revision: Option<String>,
    /// `Background`, `Foreground` or `Orphan`.
    pub propagation: Option<String>,
    pub orphan_dependents: Option<bool>,
    pub dry_run: bool,
    /// When the answer has to be there; None for the server's own deletes.
    pub until: Option<Instant>,
}

impl DeleteOptions {
    /// Reads the options of a request: its body, or its query where there is no body; never both.
    ///
    /// # Errors
    /// 400 for text that is none, 413, 415 for a media type that is not known, 422 for values that are not allowed.
    pub async fn of_request(request: &mut Request) -> Result<Self> {
        let body = request.body().await?;
        let options = Self::parse(&request.query, request.content_type(), &body)?;
        Ok(DeleteOptions { until: request.deadline(), ..options })
    }

    /// The same of its parts.
    ///
    /// # Errors
    /// 400 for text that is none, 415 for a media type that is not known, 422 for values that are not allowed.
    fn parse(query: &Query, content_type: &str, body: &[u8]) -> Result<Self> {
        let (options, dry_runs) =
            if body.is_empty() { Self::from_query(query)? } else { Self::from_body(content_type, body)? };
        options.check(&dry_runs)?;
        Ok(DeleteOptions { dry_run: !dry_runs.is_empty(), ..options })
    }

    fn from_query(query: &Query) -> Result<(Self, Vec<String>)> {
        let grace_seconds = match query.get("gracePeriodSeconds") {
            None => None,
            Some(text) => Some(text.parse().map_err(|error: std::num::ParseIntError| {
                let why = match error.kind() {
                    std::num::IntErrorKind::PosOverflow | std::num::IntErrorKind::NegOverflow => "value out of range",
                    _ => "invalid syntax",
                };
                ApiError::bad_request(format!("strconv.ParseInt: parsing {}: {why}", quote(text)))
            })?),
        };
        // There are no preconditions to name in a query: what each holds stands by itself, and an empty one is none.
        let condition = |key: &str| query.get(key).filter(|said| !said.is_empty()).map(Into::into);
        let options = DeleteOptions {
            grace_seconds,
            uid: condition("uid"),
            revision: condition("resourceVersion"),
            propagation: query.get("propagationPolicy").map(Into::into),
            orphan_dependents: query.get("orphanDependents").map(|_| query.flag("orphanDependents")),
            dry_run: false,
            until: None,
        };
        Ok((options, query.all("dryRun").map(Into::into).collect()))
    }

    fn from_body(content_type: &str, body: &[u8]) -> Result<(Self, Vec<String>)> {
        let set = proto::schema::TypeSet::built_in();
        let id = set.struct_named("k8s.io.apimachinery.pkg.apis.meta.v1.DeleteOptions");
        let id = id.ok_or_else(|| ApiError::internal("DeleteOptions is not declared"))?;
        let bad = |error: &dyn std::fmt::Display| ApiError::bad_request(error.to_string());
        let (value, said) = match body_media(content_type)? {
            Media::Protobuf => {
                let unknown = proto::protobuf::read_envelope(body).map_err(|e| bad(&e))?;
                check_kind(unknown.kind, unknown.api_version)?;
                (proto::protobuf::decode(set, id, unknown.raw).map_err(|e| bad(&e))?, unknown.api_version.to_owned())
            }
            media => {
                let mut converted = Vec::new();
                let text = match media {
                    Media::Yaml => {
                        let tree = proto::yaml::parse(body).map_err(|e| bad(&e))?;
                        proto::json::write_sorted(&tree, &mut converted);
                        &converted[..]
                    }
                    _ => body,
                };
                let (kind, version) = super::decode::type_of(text).map_err(|e| bad(&e))?;
                check_kind(&kind, &version)?;
                let tree = proto::json::parse(text).map_err(|e| bad(&e))?.value;
                (proto::json::conform(set, id, &tree).map_err(|e| bad(&e))?.value, version)
            }
        };
        crate::audit::object(&Value::Null, || {
            let mut shown = value.clone();
            shown["kind"] = "DeleteOptions".into();
            shown["apiVersion"] = if said.is_empty() { "meta.k8s.io/v1".into() } else { said.into() };
            shown
        });
        Ok(Self::read(&value))
    }

    /// Reads options that are part of another object.
    ///
    /// # Errors
    /// 422 for values that are not allowed.
    pub fn of(value: &Value) -> Result<Self> {
        let (options, dry_runs) = Self::read(value);
        options.check(&dry_runs)?;
        Ok(DeleteOptions { dry_run: !dry_runs.is_empty(), ..options })
    }

    fn read(value: &Value) -> (Self, Vec<String>) {
        let text = |value: &Value| value.as_str().map(Into::into);
        let options = DeleteOptions {
            grace_seconds: value["gracePeriodSeconds"].as_i64(),
            uid: text(&value["preconditions"]["uid"]),
            revision: text(&value["preconditions"]["resourceVersion"]),
            propagation: text(&value["propagationPolicy"]),
            orphan_dependents: value["orphanDependents"].as_bool(),
            dry_run: false,
            until: None,
        };
        let dry_runs = value["dryRun"].as_array().into_iter().flatten().filter_map(text).collect();
        (options, dry_runs)
    }

    /// What the client said beside the dry run, as members of the object.
    pub fn said(&self) -> Vec<(&'static str, Value)> {
        let text = |said: &Option<String>| said.as_deref().map(Value::from);
        let mut preconditions = serde_json::Map::new();
        for (key, value) in [("uid", text(&self.uid)), ("resourceVersion", text(&self.revision))] {
            preconditions.extend(value.map(|value| (key.to_owned(), value)));
        }
        let all = [
            ("gracePeriodSeconds", self.grace_seconds.map(Value::from)),
            (
                "preconditions",
                Some(Value::from(preconditions)).filter(|_| self.uid.is_some() || self.revision.is_some()),
            ),
            ("orphanDependents", self.orphan_dependents.map(Value::from)),
            ("propagationPolicy", text(&self.propagation)),
        ];
        all.into_iter().filter_map(|(key, value)| Some((key, value?))).collect()
    }

    fn check(&self, dry_runs: &[String]) -> Result<()> {
        let mut causes = Vec::new();
        let mut complain = |reason: &str, message: String| {
            causes.push(Cause { reason: reason.into(), message, field: "propagationPolicy".into() });
        };
        if let (Some(policy), Some(_)) = (&self.propagation, self.orphan_dependents) {
            let why = "orphanDependents and deletionPropagation cannot be both set";
            complain("FieldValueInvalid", format!("Invalid value: {}: {why}", quote(policy)));
        }
        if let Some(policy) = &self.propagation
            && !matches!(policy.as_str(), "Foreground" | "Background" | "Orphan")
        {
            let supported = "supported values: \"Foreground\", \"Background\", \"Orphan\", \"nil\"";
            complain("FieldValueNotSupported", format!("Unsupported value: {}: {supported}", quote(policy)));
        }
        causes.extend(check_dry_run(dry_runs.iter().map(String::as_str)));
        if causes.is_empty() { Ok(()) } else { Err(invalid("meta.k8s.io", "DeleteOptions", "", causes)) }
    }
}

/// Clients send delete options under `meta.k8s.io/v1`, `v1` or the group of what they delete; only the kind counts.
fn check_kind(kind: &str, api_version: &str) -> Result<()> {
    if kind.is_empty() || kind == "DeleteOptions" {
        return Ok(());
    }
    let version = if api_version.is_empty() { "meta.k8s.io/v1" } else { api_version };
    Err(ApiError::bad_request(format!(
        "no kind {} is registered for version {} in scheme \"k8s.io/apimachinery/pkg/apis/meta/internalversion/scheme/register.go:29\"",
        quote(kind),
        quote(version)
    )))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_body_says_what_it_is_before_it_is_read() {
        let told = |media: &str, body: &str| {
            let read = DeleteOptions::from_body(media, body.as_bytes());
            read.err().map_or_else(String::new, |error| error.status().message.clone())
        };
        let (json, yaml) = ("application/json", "application/yaml");
        assert_eq!(told(json, r#"{"apiVersion":"a/b/c"}"#), "unexpected GroupVersion string: a/b/c");
        let array = "couldn't get version/kind; json parse error: json: cannot unmarshal array into Go value of type ";
        assert!(told(json, "[1]").starts_with(array), "{}", told(json, "[1]"));
        assert!(told(yaml, "- a").starts_with(array), "{}", told(yaml, "- a"));
        assert!(told(json, "{").starts_with("couldn't get version/kind; json parse error: "));
        assert_eq!(told(json, r#"{"apiVersion":"apps/v1","kind":"DeleteOptions","gracePeriodSeconds":1}"#), "");
        assert_eq!(told(yaml, "gracePeriodSeconds: 1"), "");
    }

    #[test]
    fn a_query_has_preconditions_where_there_is_no_body() {
        let parse = |query: &str, body: &str| {
            DeleteOptions::parse(&Query::parse(query), "application/json", body.as_bytes()).expect("allowed")
        };
        let asked = parse("uid=u&resourceVersion=5", "");
        assert_eq!((asked.uid.as_deref(), asked.revision.as_deref()), (Some("u"), Some("5")));
        assert_eq!(parse("uid=&resourceVersion=", ""), DeleteOptions::default());
        assert_eq!(parse("uid=u", "{}"), DeleteOptions::default(), "never both");
    }

    #[test]
    fn what_was_said_is_told_and_nothing_else() {
        assert!(DeleteOptions::default().said().is_empty());
        let sent = json!({"gracePeriodSeconds": 0, "preconditions": {"uid": "u"}, "propagationPolicy": "Orphan"});
        let options = DeleteOptions::of(&sent).expect("allowed");
        let said: serde_json::Map<String, Value> =
            options.said().into_iter().map(|(key, value)| (key.to_owned(), value)).collect();
        assert_eq!(Value::from(said), sent);
    }
}
