//! Kinds that are questions: who is this token, may this user do that, give this account a token. Nothing is stored;
//! the answer is the object sent, with its status.

use serde_json::{Value, json};

use super::admit;
use super::options::{WriteOptions, invalid};
use super::update::Target;
use super::{decode, subresource};
use crate::admission::{Call, Operation};
use crate::apply::Writer;
use crate::auth::{Attributes, Rule, Rules};
use crate::http::{Accepted, Response};
use crate::request::{RequestInfo, User};
use crate::resource::Resource;
use crate::server::{ApiServer, Request};
use crate::status::{ApiError, Cause, Result};

const AUTHENTICATION: &str = "authentication.k8s.io";
const AUTHORIZATION: &str = "authorization.k8s.io";

/// Whether objects of a resource are answered here.
pub(super) fn is_review(resource: &Resource) -> bool {
    matches!(&*resource.group, AUTHENTICATION | AUTHORIZATION)
}

/// Whether what a request makes is answered and not stored: a review, or a token.
pub(super) fn is_answered(resource: &Resource, subresource: &str) -> bool {
    is_review(resource) || subresource == "token" && &*resource.plural == "serviceaccounts"
}

/// Answers a review.
///
/// # Errors
/// 400 and 422 as upstream.
pub(super) async fn handle(
    server: &ApiServer,
    mut request: Request,
    resource: &Resource,
    accepted: Accepted,
    options: &WriteOptions,
) -> Result<Response> {
    let body = request.body().await?;
    let mut value = decode::object(resource, request.content_type(), &body, options)?;
    if value["metadata"].is_null() {
        value["metadata"] = json!({});
    }
    let namespace = if resource.namespaced { request.info.namespace.clone() } else { String::new() };
    super::meta::settle_namespace(&mut value, &namespace)?;
    let name = super::meta::text(&value, "name").to_owned();
    let call = Call {
        server,
        user: &request.user,
        operation: Operation::Create,
        resource,
        subresource: "",
        namespace: &namespace,
        name: &name,
        old: None,
        dry_run: options.dry_run,
        said: &options.said,
    };
    server.admission.mutate(&call, &mut value).await?;
    if matches!(&*resource.kind, "SelfSubjectAccessReview" | "SubjectAccessReview" | "LocalSubjectAccessReview") {
        check(resource, &value, options)?;
    }
    if &*resource.kind == "LocalSubjectAccessReview" && namespace.is_empty() {
        // Upstream names the one that it misses.
        return Err(ApiError::bad_request("namespace is required on this type: "));
    }
    // Nothing is stored, so nothing is charged.
    server.admission.validate(&call, &value).await?.refund(server).await;
    match &*resource.kind {
        "SelfSubjectReview" => {
            value["metadata"] = json!({"creationTimestamp": proto::time::Timestamp::now().to_seconds_text()});
            value["status"] = json!({"userInfo": request.user.to_value()});
        }
        "TokenReview" => token_review(server, &mut value).await?,
        "SelfSubjectAccessReview" => {
            value["status"] = access(server, &request.user.clone(), &value["spec"]);
        }
        "SubjectAccessReview" | "LocalSubjectAccessReview" => {
            value["status"] = access(server, &user_of(&value["spec"]), &value["spec"]);
        }
        _ => {
            let namespace = value["spec"]["namespace"].as_str().unwrap_or_default().to_owned();
            if namespace.is_empty() {
                return Err(ApiError::bad_request("no namespace on request"));
            }
            value["status"] = rules(server, &request.user, &namespace);
            value["metadata"] = json!({});
            value["spec"] = json!({});
        }
    }
    let schema = (&*resource.group, &*resource.version, &*resource.kind);
    crate::read::answered_response(201, accepted, schema, value)
}

fn texts(value: &Value) -> Vec<String> {
    value.as_array().into_iter().flatten().filter_map(Value::as_str).map(Into::into).collect()
}

async fn token_review(server: &ApiServer, value: &mut Value) -> Result<()> {
    let token = value["spec"]["token"].as_str().unwrap_or_default().to_owned();
    if token.is_empty() {
        return Err(ApiError::bad_request("token is required for TokenReview in authentication"));
    }
    let asked = texts(&value["spec"]["audiences"]);
    let audiences = if asked.is_empty() { server.authenticator.audiences().to_vec() } else { asked };
    value["status"] = match server.authenticator.token_user(&token, &audiences).await {
        Ok((user, meant)) => json!({"authenticated": true, "user": user.to_value(), "audiences": meant}),
        Err(errors) => json!({"user": {}, "error": refusal(errors)}),
    };
    Ok(())
}

/// What a review says of a token that nobody takes. First upstream asks who knows the server's own token, and that one
/// has the same to say of every other.
fn refusal(errors: Vec<String>) -> String {
    let all: Vec<String> = std::iter::once("invalid bearer token".to_owned()).chain(errors).collect();
    crate::status::aggregate(&all)
}

fn cause(field: &str, message: String) -> Cause {
    Cause { reason: "FieldValueInvalid".into(), message, field: field.into() }
}

/// Refuses a review that upstream's checks refuse.
fn check(resource: &Resource, value: &Value, options: &WriteOptions) -> Result<()> {
    let complaints = crate::validate::review(&resource.kind, value);
    if complaints.is_empty() {
        return Ok(());
    }
    // The metadata are shown with the owner that these fields would have.
    let mut tracked = value.clone();
    crate::apply::created(Writer { resource, subresource: "", manager: &options.manager }, &mut tracked);
    let complaints = crate::validate::review(&resource.kind, &tracked);
    Err(invalid(AUTHORIZATION, "", "", complaints.into_iter().map(Into::into).collect()))
}

fn user_of(spec: &Value) -> User {
    let text = |key: &str| spec[key].as_str().unwrap_or_default().to_owned();
    let extra = spec["extra"].as_object().into_iter().flatten();
    User {
        name: text("user"),
        uid: text("uid"),
        groups: texts(&spec["groups"]),
        extra: extra.map(|(key, values)| (key.to_ascii_lowercase(), texts(values))).collect(),
    }
}

/// A selector as the text that a request would have; what cannot be said so does not limit the request.
fn selector(said: &Value, by_label: bool) -> String {
    let requirements = said["requirements"].as_array().into_iter().flatten();
    let one = |requirement: &Value| {
        let key = requirement["key"].as_str()?;
        let values = texts(&requirement["values"]);
        match (requirement["operator"].as_str()?, by_label, values.as_slice()) {
            ("In", true, values) => Some(format!("{key} in ({})", values.join(","))),
            ("NotIn", true, values) => Some(format!("{key} notin ({})", values.join(","))),
            ("Exists", true, _) => Some(key.to_owned()),
            ("DoesNotExist", true, _) => Some(format!("!{key}")),
            ("In", false, [value]) => Some(format!("{key}={value}")),
            ("NotIn", false, [value]) => Some(format!("{key}!={value}")),
            _ => None,
        }
    };
    let requirements: Vec<String> = requirements.filter_map(one).collect();
    match said["rawSelector"].as_str() {
        Some(raw) if !raw.is_empty() => raw.to_owned(),
        _ => requirements.join(","),
    }
}

/// The status of an access review.
fn access(server: &ApiServer, user: &User, spec: &Value) -> Value {
    let attributes = &spec["resourceAttributes"];
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let info = if attributes.is_object() {
        RequestInfo {
            is_resource: true,
            verb: text(&attributes["verb"]),
            group: text(&attributes["group"]),
            version: text(&attributes["version"]),
            namespace: text(&attributes["namespace"]),
            resource: text(&attributes["resource"]),
            subresource: text(&attributes["subresource"]),
            name: text(&attributes["name"]),
            field_selector: selector(&attributes["fieldSelector"], false),
            label_selector: selector(&attributes["labelSelector"], true),
            ..RequestInfo::default()
        }
    } else {
        let other = &spec["nonResourceAttributes"];
        RequestInfo { path: text(&other["path"]), verb: text(&other["verb"]), ..RequestInfo::default() }
    };
    let decision = server.authorizer.decide(&Attributes { user, info: &info });
    let mut status = json!({"allowed": decision.allowed});
    if decision.denied {
        status["denied"] = true.into();
    }
    if !decision.reason.is_empty() {
        status["reason"] = decision.reason.into();
    }
    let mut errors: Vec<String> = Some(decision.error).filter(|error| !error.is_empty()).into_iter().collect();
    errors.extend(unread_selectors(attributes));
    if !errors.is_empty() {
        status["evaluationError"] = errors.join("; ").into();
    }
    status
}

/// Notes on selectors of a question that cannot be read as a whole: they limit it as far as they can be.
fn unread_selectors(attributes: &Value) -> Vec<String> {
    let complaint = |(field, by_label): (&str, bool)| {
        let said = &attributes[field];
        let raw = said["rawSelector"].as_str().unwrap_or_default();
        let requirements = said["requirements"].as_array().map_or(&[][..], Vec::as_slice);
        let unread = match (raw, by_label) {
            ("", _) => requirements.iter().filter(|one| !is_readable(one, by_label)).count(),
            (raw, true) => usize::from(crate::read::label_requirements(raw).is_empty()),
            (raw, false) => usize::from(crate::read::field_requirements(raw).is_empty()),
        };
        let partly = if raw.is_empty() && unread < requirements.len() { "partially " } else { "" };
        (unread > 0).then(|| format!("spec.resourceAttributes.{field} {partly}ignored due to parse error"))
    };
    [("fieldSelector", false), ("labelSelector", true)].into_iter().filter_map(complaint).collect()
}

/// Whether a requirement of a selector can be read; of fields one may ask for a single value.
fn is_readable(requirement: &Value, by_label: bool) -> bool {
    let values = requirement["values"].as_array().map_or(0, Vec::len);
    match (requirement["operator"].as_str().unwrap_or_default(), by_label) {
        ("In" | "NotIn", true) => values > 0,
        ("Exists" | "DoesNotExist", true) => values == 0,
        ("In" | "NotIn", false) => values == 1,
        _ => false,
    }
}

/// Everything that the authorizers tell of what a user may do in a namespace.
fn rules(server: &ApiServer, user: &User, namespace: &str) -> Value {
    let Rules { rules, incomplete, errors } = server.authorizer.rules_for(user, namespace);
    let (others, resources): (Vec<Rule>, Vec<Rule>) = rules.into_iter().partition(|rule| rule.resources.is_empty());
    let shown = |rules: Vec<Rule>| rules.iter().map(Rule::to_value).collect::<Vec<_>>();
    let (resources, others) = (shown(resources), shown(others));
    let mut status = json!({"resourceRules": resources, "nonResourceRules": others, "incomplete": incomplete});
    if !errors.is_empty() {
        status["evaluationError"] = crate::status::aggregate(&errors).into();
    }
    status
}

const MIN_SECONDS: i64 = 600;
const DEFAULT_SECONDS: i64 = 3600;
/// What a kubelet asks for; tokens of pods with exactly this life may live on, for clients that never read theirs anew.
const POD_SECONDS: i64 = 3607;
const EXTENDED_SECONDS: i64 = 365 * 24 * 3600;

/// Gives an account a token.
///
/// # Errors
/// 400, 404, 409 and 422 as upstream.
pub(super) async fn token(
    server: &ApiServer,
    request: &mut Request,
    resource: &Resource,
    accepted: Accepted,
) -> Result<Response> {
    let options = WriteOptions::parse(request, resource)?;
    let body = request.body().await?;
    let kind = (AUTHENTICATION, "v1", "TokenRequest");
    let mut value = decode::kind(&subresource::schema(kind)?, kind, request.content_type(), &body, &options)?;
    super::meta::settle_namespace(&mut value, &request.info.namespace)?;
    let (namespace, name) = (request.info.namespace.clone(), request.info.name.clone());
    let target = Target { resource, subresource: "token", namespace: &namespace, name: &name };
    admit::complete(server, &options, target, &mut value).await?;
    let said = |key: &str| super::meta::text(&value, key).to_owned();
    let (said_name, said_uid) = (said("name"), said("uid"));
    if !said_name.is_empty() && said_name != name {
        let why = "must match the service account name if specified";
        let message = format!("Invalid value: {}: {why}", crate::status::quote(&said_name));
        return Err(invalid(AUTHENTICATION, "TokenRequest", &name, vec![cause("metadata.name", message)]));
    }
    let account = server.store.get(&resource.storage, &namespace, &name);
    let account = account.ok_or_else(|| ApiError::missing("", "serviceaccounts", &name))?;
    if server.config.checks_account_uid && !said_uid.is_empty() && *account.keys.uid != *said_uid {
        let why = format!(
            "the UID in the token request ({said_uid}) does not match the UID of the service account ({})",
            account.keys.uid
        );
        return Err(ApiError::conflict(AUTHENTICATION, "TokenRequest", &name, why));
    }
    let seconds = value["spec"]["expirationSeconds"].as_i64().unwrap_or(DEFAULT_SECONDS);
    let complaint = if seconds < MIN_SECONDS {
        Some("may not specify a duration less than 10 minutes")
    } else if seconds > 1 << 32 {
        Some("may not specify a duration larger than 2^32 seconds")
    } else {
        None
    };
    if let Some(text) = complaint {
        let message = format!("Invalid value: {seconds}: {text}");
        return Err(invalid(AUTHENTICATION, "TokenRequest", "", vec![cause("spec.expirationSeconds", message)]));
    }
    let accounts = server.authenticator.accounts();
    let accounts = accounts.ok_or_else(|| ApiError::internal("this server issues no tokens"))?;
    let asked = texts(&value["spec"]["audiences"]);
    let audiences = if asked.is_empty() { accounts.audiences.clone() } else { asked };
    // Who judges the request sees what will be issued.
    settle(&mut value, &namespace, &name, &account.keys.uid);
    value["spec"]["audiences"] = json!(audiences);
    value["spec"]["expirationSeconds"] = seconds.into();
    admit::judge(server, &options, target, &value).await?;
    let bound = bound(server, &value["spec"]["boundObjectRef"], &namespace, &name)?;
    let seconds = shortened(seconds, server.config.longest_token);
    value["spec"]["expirationSeconds"] = seconds.into();
    let now = time::OffsetDateTime::now_utc();
    let start = now.unix_timestamp();
    let for_api = audiences.iter().all(|a| accounts.audiences.contains(a));
    let of_pod = for_api && bound.first().is_some_and(|(kind, _)| *kind == "pod");
    let extend = server.config.extends_tokens && of_pod && seconds == POD_SECONDS;
    let (expires, warn) =
        if extend { (start + EXTENDED_SECONDS, Some(start + seconds)) } else { (start + seconds, None) };
    let token = accounts.issue(&account, &audiences, &bound, (start, expires), warn).map_err(ApiError::internal)?;
    let reported = time::OffsetDateTime::from_unix_timestamp(start + seconds).unwrap_or(now);
    let reported = reported.format(&time::format_description::well_known::Rfc3339).map_err(ApiError::internal)?;
    value["status"] = json!({"token": token, "expirationTimestamp": reported});
    crate::read::answered_response(201, accepted, kind, value)
}

/// The seconds that a token gets of those that were asked for; who gets less is warned.
fn shortened(seconds: i64, longest: Option<i64>) -> i64 {
    match longest.filter(|longest| *longest < seconds) {
        Some(longest) => {
            crate::warning::add(format!("requested expiration of {seconds} seconds shortened to {longest} seconds"));
            longest
        }
        None => seconds,
    }
}

/// Says in a request for a token whose it will be. What else its metadata say is kept, for those who judge it; what a
/// client says of the answer is not.
fn settle(value: &mut Value, namespace: &str, name: &str, uid: &str) {
    if !value["metadata"].is_object() {
        value["metadata"] = json!({});
    }
    let metadata = &mut value["metadata"];
    metadata["name"] = name.into();
    metadata["namespace"] = namespace.into();
    metadata["uid"] = uid.into();
    metadata["creationTimestamp"] = proto::time::Timestamp::now().to_seconds_text().into();
    value.as_object_mut().and_then(|request| request.remove("status"));
}

/// A group and version as Go prints them before a kind.
fn kind_of(version: &str) -> String {
    if version.contains('/') { version.to_owned() } else { format!("/{version}") }
}

/// The object a token shall be bound to, as claims; a pod brings its node along.
fn bound(server: &ApiServer, wanted: &Value, namespace: &str, account: &str) -> Result<Vec<(&'static str, Value)>> {
    if !wanted.is_object() {
        return Ok(Vec::new());
    }
    let text = |key: &str| wanted[key].as_str().unwrap_or_default();
    let version = text("apiVersion");
    // The group counts, whatever the version.
    let (key, plural, place) = match (version.contains('/'), text("kind")) {
        (false, "Pod") => ("pod", "pods", namespace),
        (false, "Secret") => ("secret", "secrets", namespace),
        (false, "Node") => ("node", "nodes", ""),
        (_, kind) => {
            // A kind of the nameless group has no version in these words.
            let text = format!("cannot bind token for serviceaccount to type {}, Kind={kind}", kind_of(version));
            return Err(ApiError::bad_request(text));
        }
    };
    let name = text("name");
    let found = server.store.get(&plural.into(), place, name).ok_or_else(|| ApiError::missing("", plural, name))?;
    let uid = text("uid");
    if !uid.is_empty() && *found.keys.uid != *uid {
        let why = format!(
            "the UID in the bound object reference ({uid}) does not match the UID in record. The object might have \
             been deleted and then recreated"
        );
        // Its kind is told here where others tell the resource.
        return Err(ApiError::conflict("", text("kind"), name, why));
    }
    let claim = |name: &str, uid: &str| json!({"name": name, "uid": uid});
    let mut out = vec![(key, claim(name, &found.keys.uid))];
    if key == "pod" {
        let pod = found.value();
        if pod["spec"]["serviceAccountName"] != account {
            return Err(ApiError::bad_request(format!(
                "cannot bind token for serviceaccount {} to pod running with different serviceaccount name.",
                crate::status::quote(account)
            )));
        }
        let node = pod["spec"]["nodeName"].as_str().unwrap_or_default();
        if let Some(found) = server.store.get(&"nodes".into(), "", node) {
            out.push(("node", claim(node, &found.keys.uid)));
        }
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_begins_with_what_all_say() {
        let said = |errors: &[&str]| refusal(errors.iter().map(|error| (*error).to_owned()).collect());
        assert_eq!(said(&[]), "invalid bearer token");
        assert_eq!(said(&["invalid bearer token"]), "invalid bearer token");
        assert_eq!(said(&["it expired", "nobody knows it"]), "[invalid bearer token, it expired, nobody knows it]");
    }

    /// A token lived for as long as it was asked for, whatever the server was told.
    #[tokio::test]
    async fn a_token_lives_no_longer_than_the_server_lets_it() {
        let asked = |seconds: i64, longest: Option<i64>| async move {
            let work = std::pin::pin!(async { shortened(seconds, longest) });
            crate::warning::collect(work).await
        };
        assert_eq!(asked(7200, None).await, (7200, vec![]));
        assert_eq!(asked(7200, Some(7200)).await, (7200, vec![]));
        let told = "requested expiration of 7201 seconds shortened to 7200 seconds".to_owned();
        assert_eq!(asked(7201, Some(7200)).await, (7200, vec![told]));
    }

    #[test]
    fn a_request_for_a_token_keeps_its_labels_and_loses_its_status() {
        let mut request = json!({
            "metadata": {"labels": {"a": "b"}, "annotations": {"c": "d"}, "creationTimestamp": null},
            "spec": {"audiences": ["e"]}, "status": {"token": "made up"},
        });
        settle(&mut request, "n", "robot", "u");
        assert!(request["metadata"]["creationTimestamp"].is_string());
        request["metadata"]["creationTimestamp"].take();
        let metadata = json!({
            "name": "robot", "namespace": "n", "uid": "u", "creationTimestamp": null,
            "labels": {"a": "b"}, "annotations": {"c": "d"},
        });
        assert_eq!(request, json!({"metadata": metadata, "spec": {"audiences": ["e"]}}));
        let mut bare = json!({});
        settle(&mut bare, "n", "robot", "u");
        assert_eq!(bare["metadata"]["name"], "robot");
    }
}
