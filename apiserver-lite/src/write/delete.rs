//! Deleting objects: at once, after a grace period, or once the finalizers are done.

use http::header::CONTENT_TYPE;
use proto::time::Timestamp;
use serde_json::{Value, json};

use super::decode;
use super::meta;
use super::options::{WriteOptions, invalid};
use super::{MODIFIED, commit, commit_error, strategy};
use crate::http::{Accepted, Response, respond};
use crate::read::{self, Selector};
use crate::resource::{Resource, Schema, SchemaSet};
use crate::server::{ApiServer, Request};
use crate::status::{ApiError, Cause, Result};
use crate::store::{Change, CommitError, Expect, Key, ObjectRef, Write};

/// What a delete asks for beside the object.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct DeleteOptions {
    pub grace_seconds: Option<i64>,
    pub uid: Option<String>,
    pub revision: Option<String>,
    /// `Background`, `Foreground` or `Orphan`.
    pub propagation: Option<String>,
    pub orphan_dependents: Option<bool>,
    pub dry_run: bool,
}

impl DeleteOptions {
    /// Reads the body, or the query where there is no body.
    fn parse(request: &Request, body: &[u8]) -> Result<Self> {
        let mut options = DeleteOptions { dry_run: request.query.get("dryRun").is_some(), ..DeleteOptions::default() };
        if body.is_empty() {
            let query = &request.query;
            if let Some(text) = query.get("gracePeriodSeconds") {
                let seconds = text.parse().map_err(|_| {
                    ApiError::bad_request(format!(
                        "strconv.ParseInt: parsing {}: invalid syntax",
                        crate::status::quote(text)
                    ))
                })?;
                options.grace_seconds = Some(seconds);
            }
            options.propagation = query.get("propagationPolicy").map(Into::into);
            options.orphan_dependents = query.get("orphanDependents").map(|_| query.flag("orphanDependents"));
        } else {
            let set = proto::schema::TypeSet::built_in();
            let id = set.struct_named("k8s.io.apimachinery.pkg.apis.meta.v1.DeleteOptions");
            let id = id.ok_or_else(|| ApiError::internal("DeleteOptions is not declared"))?;
            let schema = Schema { set: SchemaSet::BuiltIn, id };
            // Clients send it under meta.k8s.io/v1, the resource's own version, or v1.
            let text = String::from_utf8_lossy(body);
            let media = request.headers.get(CONTENT_TYPE).and_then(|v| v.to_str().ok()).unwrap_or_default();
            let value = if media.contains("protobuf") {
                let unknown = proto::protobuf::read_envelope(body).map_err(|e| ApiError::bad_request(e.to_string()))?;
                proto::protobuf::decode(set, id, unknown.raw).map_err(|e| ApiError::bad_request(e.to_string()))?
            } else {
                let mut value = match proto::json::parse(body) {
                    Ok(parsed) => parsed.value,
                    Err(error) => {
                        let shown: String = text.chars().take(30).collect();
                        return Err(ApiError::bad_request(format!(
                            "couldn't get version/kind; json parse error: {error} ({shown})"
                        )));
                    }
                };
                if let Some(object) = value.as_object_mut() {
                    object.remove("apiVersion");
                    object.remove("kind");
                }
                let body = value.to_string();
                let name = ("", "v1", "DeleteOptions");
                decode::kind(&schema, name, "application/json", body.as_bytes(), &WriteOptions::default())?.value
            };
            options.grace_seconds = value["gracePeriodSeconds"].as_i64();
            options.uid = value["preconditions"]["uid"].as_str().map(Into::into);
            options.revision = value["preconditions"]["resourceVersion"].as_str().map(Into::into);
            options.propagation = value["propagationPolicy"].as_str().map(Into::into);
            options.orphan_dependents = value["orphanDependents"].as_bool();
            options.dry_run |= value["dryRun"].as_array().is_some_and(|d| !d.is_empty());
        }
        options.check()?;
        Ok(options)
    }

    fn check(&self) -> Result<()> {
        let mut causes = Vec::new();
        let mut complain = |reason: &str, field: &str, message: String| {
            causes.push(Cause { reason: reason.into(), message, field: field.into() });
        };
        if self.propagation.is_some() && self.orphan_dependents.is_some() {
            let both = "Invalid value: orphanDependents and deletionPropagation cannot be both set";
            complain("FieldValueInvalid", "propagationPolicy", both.into());
        }
        if let Some(policy) = &self.propagation
            && !matches!(policy.as_str(), "Foreground" | "Background" | "Orphan")
        {
            let quoted = crate::status::quote(policy);
            let text =
                format!("Unsupported value: {quoted}: supported values: \"Background\", \"Foreground\", \"Orphan\"");
            complain("FieldValueNotSupported", "propagationPolicy", text);
        }
        if causes.is_empty() { Ok(()) } else { Err(invalid("meta.k8s.io", "DeleteOptions", "", causes)) }
    }
}

/// DELETE of one object.
///
/// # Errors
/// As [`delete`].
pub(super) async fn handle(
    server: &ApiServer,
    mut request: Request,
    resource: &Resource,
    accepted: Accepted,
    _options: &WriteOptions,
) -> Result<Response> {
    let body = request.body().await?;
    let options = DeleteOptions::parse(&request, &body)?;
    let namespace = if resource.namespaced { request.info.namespace.clone() } else { String::new() };
    let deleted = delete(server, resource, &namespace, &request.info.name, &options).await?;
    match deleted {
        Deleted::Gone(object) if returns_status(resource) => Ok(gone_status(resource, &object, accepted)),
        Deleted::Gone(object) | Deleted::Waiting(object) => {
            read::object_response(200, accepted, resource, &object, &request)
        }
    }
}

/// Most kinds answer with a Status when the object is gone; pods and a few others with the object.
fn returns_status(resource: &Resource) -> bool {
    !matches!(
        (&*resource.group, &*resource.plural),
        (
            "",
            "pods"
                | "services"
                | "serviceaccounts"
                | "persistentvolumes"
                | "persistentvolumeclaims"
                | "podtemplates"
                | "resourcequotas"
        ) | ("storage.k8s.io", _)
            | ("policy", "podsecuritypolicies")
    )
}

fn gone_status(resource: &Resource, object: &ObjectRef, accepted: Accepted) -> Response {
    let mut details = json!({"name": object.key.name, "kind": resource.plural, "uid": object.keys.uid});
    if !resource.group.is_empty() {
        details["group"] = json!(resource.group);
    }
    let status = json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "details": details});
    let accepted = Accepted { form: crate::http::Form::Whole, ..accepted };
    respond::built_in(200, accepted, ("", "v1", "Status"), &status)
}

/// How far a delete got.
pub enum Deleted {
    Gone(ObjectRef),
    /// Marked; a grace period or finalizers are left.
    Waiting(ObjectRef),
}

const ATTEMPTS: usize = 5;

/// Deletes an object, or marks it as going away.
///
/// # Errors
/// 404, 409 for preconditions, 403 where the object must stay.
pub async fn delete(
    server: &ApiServer,
    resource: &Resource,
    namespace: &str,
    name: &str,
    options: &DeleteOptions,
) -> Result<Deleted> {
    for attempt in 1.. {
        let Some(old) = server.store.get(&resource.storage, namespace, name) else {
            return Err(ApiError::not_found(&resource.group, &resource.plural, name));
        };
        check(resource, &old, options)?;
        let mut value = old.value();
        let plan = plan(resource, &mut value, options);
        let key = Key::new(namespace, name);
        let expect = Expect::Revision(old.revision);
        let mut write = super::put(resource, key, expect, value);
        let gone = plan == Plan::Remove;
        if plan == Plan::Nothing {
            return Ok(Deleted::Waiting(old));
        }
        if gone && let Change::Put(encoded) = write.change {
            write = Write { change: Change::Delete(encoded), ..write };
        }
        match commit(server, write, options.dry_run).await {
            Ok(object) if gone => {
                if super::create::is_service(resource) && !options.dry_run {
                    server.services.release_service(&object.value());
                }
                return Ok(Deleted::Gone(object));
            }
            Ok(object) => return Ok(Deleted::Waiting(object)),
            Err(CommitError::Conflict(_)) if attempt < ATTEMPTS => {}
            Err(error) => return Err(commit_error(resource, name, error)),
        }
    }
    Err(ApiError::conflict(&resource.group, &resource.plural, name, MODIFIED))
}

fn check(resource: &Resource, old: &ObjectRef, options: &DeleteOptions) -> Result<()> {
    let name = &old.key.name;
    if let Some(uid) = options.uid.as_deref().filter(|u| **u != *old.keys.uid) {
        let why = format!(
            "the UID in the precondition ({uid}) does not match the UID in record ({}). The object might have been deleted and then recreated",
            old.keys.uid
        );
        return Err(ApiError::conflict(&resource.group, &resource.plural, name, why));
    }
    if let Some(version) = options.revision.as_deref().filter(|v| *v != old.revision.to_string()) {
        let why = format!(
            "the ResourceVersion in the precondition ({version}) does not match the ResourceVersion in record ({}). The object might have been modified",
            old.revision
        );
        return Err(ApiError::conflict(&resource.group, &resource.plural, name, why));
    }
    if &*resource.plural == "namespaces" && matches!(&**name, "default" | "kube-system" | "kube-public") {
        let why = "this namespace may not be deleted";
        return Err(ApiError::forbidden("", "namespaces", name, why));
    }
    Ok(())
}

#[derive(Debug, PartialEq)]
enum Plan {
    Remove,
    Mark,
    Nothing,
}

/// Marks the tree as being deleted where it cannot go at once, and says what to do.
fn plan(resource: &Resource, value: &mut Value, options: &DeleteOptions) -> Plan {
    let deleting = value["metadata"]["deletionTimestamp"].is_string();
    propagate(value, options, deleting);
    let finalizers = value["metadata"]["finalizers"].as_array().is_some_and(|f| !f.is_empty())
        || &*resource.plural == "namespaces" && value["spec"]["finalizers"].as_array().is_some_and(|f| !f.is_empty());
    let grace = grace_seconds(resource, value, options);
    if grace == 0 && !finalizers {
        return Plan::Remove;
    }
    if deleting {
        let before = value["metadata"]["deletionGracePeriodSeconds"].as_i64().unwrap_or(0);
        if grace >= before {
            return Plan::Nothing;
        }
        // A shorter grace period takes effect from now on.
        set_deletion(value, grace);
        return Plan::Mark;
    }
    set_deletion(value, grace);
    if resource.group.is_empty() && &*resource.plural == "namespaces" {
        // They go when they are empty, not after a time.
        meta::metadata(value).remove("deletionGracePeriodSeconds");
        value["status"]["phase"] = "Terminating".into();
    }
    if value["metadata"]["generation"].as_i64().is_some_and(|g| g > 0) {
        let generation = value["metadata"]["generation"].as_i64().unwrap_or(0) + 1;
        value["metadata"]["generation"] = generation.into();
    }
    Plan::Mark
}

fn set_deletion(value: &mut Value, grace: i64) {
    let metadata = meta::metadata(value);
    let now = Timestamp::now();
    let then = Timestamp { seconds: now.seconds.saturating_add(grace), ..now };
    metadata.insert("deletionTimestamp".into(), then.to_seconds_text().into());
    metadata.insert("deletionGracePeriodSeconds".into(), grace.into());
}

fn grace_seconds(resource: &Resource, value: &Value, options: &DeleteOptions) -> i64 {
    let Some(default) = strategy::default_grace(resource, value) else { return 0 };
    // A pod that no node has taken, or that is over, has nothing to wind down.
    let unassigned = value["spec"]["nodeName"].as_str().unwrap_or_default().is_empty();
    let over = matches!(value["status"]["phase"].as_str(), Some("Succeeded" | "Failed"));
    if unassigned || over {
        return 0;
    }
    match options.grace_seconds {
        Some(seconds) if seconds < 0 => 1,
        Some(seconds) => seconds,
        None => default,
    }
}

/// Finalizers that make the garbage collector wait for dependents, or let them go.
fn propagate(value: &mut Value, options: &DeleteOptions, deleting: bool) {
    const FOREGROUND: &str = "foregroundDeletion";
    const ORPHAN: &str = "orphan";
    let policy = match (options.propagation.as_deref(), options.orphan_dependents) {
        (Some(policy), _) => policy,
        (None, Some(true)) => "Orphan",
        (None, Some(false)) => "Background",
        (None, None) => return,
    };
    if deleting && policy == "Background" {
        return;
    }
    let wanted = match policy {
        "Foreground" => Some(FOREGROUND),
        "Orphan" => Some(ORPHAN),
        _ => None,
    };
    let metadata = meta::metadata(value);
    let mut list: Vec<Value> = metadata.get("finalizers").and_then(Value::as_array).cloned().unwrap_or_default();
    list.retain(|f| f != FOREGROUND && f != ORPHAN || wanted.is_some_and(|w| f == w));
    if let Some(wanted) = wanted
        && !list.iter().any(|f| f == wanted)
    {
        list.push(wanted.into());
    }
    if list.is_empty() {
        metadata.remove("finalizers");
    } else {
        metadata.insert("finalizers".into(), list.into());
    }
}

/// DELETE of a collection: everything that the selectors choose; the answer is the list as it was.
///
/// # Errors
/// As a list, and as [`delete`] for the first object that cannot be deleted.
pub(super) async fn collection(
    server: &ApiServer,
    mut request: Request,
    resource: &Resource,
    accepted: Accepted,
    _options: &WriteOptions,
) -> Result<Response> {
    let body = request.body().await?;
    let options = DeleteOptions::parse(&request, &body)?;
    let query = &request.query;
    read::ListOptions::parse(query, false)?;
    let labels = query.get("labelSelector").unwrap_or_default();
    let selector = Selector::parse(resource, labels, query.get("fieldSelector").unwrap_or_default())?;
    let namespace = Some(request.info.namespace.as_str()).filter(|n| resource.namespaced && !n.is_empty());
    let snapshot = server.store.snapshot(&resource.storage);
    let chosen: Vec<ObjectRef> = snapshot.range(namespace, None).filter(|o| selector.matches(o)).cloned().collect();
    for object in &chosen {
        let one = DeleteOptions { uid: Some(object.keys.uid.to_string()), ..options.clone() };
        match delete(server, resource, &object.key.namespace, &object.key.name, &one).await {
            Ok(_) => {}
            // Someone else was faster.
            Err(error) if error.is_not_found() || error.is_conflict() => {}
            Err(error) => return Err(error),
        }
    }
    let metadata = json!({"resourceVersion": server.store.revision().to_string()});
    let mut items: Vec<Value> = chosen.iter().map(|o| read::convert(resource, o.value())).collect();
    if !resource.custom {
        for item in &mut items {
            if let Some(object) = item.as_object_mut() {
                object.remove("kind");
                object.remove("apiVersion");
            }
        }
    }
    let list =
        json!({"kind": resource.list_kind, "apiVersion": resource.api_version(), "metadata": metadata, "items": items});
    let accepted = Accepted { form: crate::http::Form::Whole, ..accepted };
    Ok(respond::built_in(200, accepted, (&resource.group, &resource.version, &resource.list_kind), &list))
}
