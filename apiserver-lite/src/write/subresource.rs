//! Subresources that are stored with their object: status, scale, binding, eviction, approval, finalize, and the parts
//! of a pod that have their own.

use std::sync::{Arc, LazyLock};

use serde_json::{Value, json};

use super::admit::{self, Part};
use super::delete::delete;
use super::delete_options::DeleteOptions;
use super::options::WriteOptions;
use super::update::{self, Target};
use super::{applied, decode, meta};
use crate::apply::{self, Writer};
use crate::http::{Accepted, Response, respond};
use crate::patch::Patch;
use crate::read;
use crate::resource::{Resource, Schema, SchemaSet, Verbs};
use crate::server::{ApiServer, Request, unknown_path, wrong_method};
use crate::status::{ApiError, Result};

/// Routes a request for a subresource.
///
/// # Errors
/// Any Status.
pub(super) async fn handle(
    server: &Arc<ApiServer>,
    mut request: Request,
    resource: Arc<Resource>,
    accepted: Accepted,
) -> Result<Response> {
    let Some(subresource) = resource.subresource(&request.info.subresource) else { return Err(unknown_path()) };
    let verb = match request.info.verb.as_str() {
        "get" => Verbs::GET,
        "create" => Verbs::CREATE,
        "update" => Verbs::UPDATE,
        "patch" => Verbs::PATCH,
        "delete" => Verbs::DELETE,
        _ => return Err(wrong_method()),
    };
    if !subresource.verbs.contains(verb) {
        return Err(wrong_method());
    }
    match &*subresource.name {
        "status" | "approval" | "finalize" | "ephemeralcontainers" | "resize" => {
            part(server, request, &resource, accepted, verb).await
        }
        "scale" => scale(server, request, &resource, accepted, verb).await,
        "binding" => binding(server, &mut request, &resource, accepted).await,
        name if crate::proxy::is_proxied(name) => crate::proxy::handle(server, request, &resource).await,
        "token" => super::review::token(server, &mut request, &resource, accepted).await,
        "eviction" => eviction(server, &mut request, &resource, accepted).await,
        _ if server.store.get(&resource.storage, &request.info.namespace, &request.info.name).is_none() => {
            Err(ApiError::not_found(&resource.group, &resource.plural, &request.info.name))
        }
        _ => Err(ApiError::new(501, "NotImplemented", format!("{} is not available yet", request.info.subresource))),
    }
}

/// A subresource whose object is the resource itself.
async fn part(
    server: &ApiServer,
    mut request: Request,
    resource: &Resource,
    accepted: Accepted,
    verb: Verbs,
) -> Result<Response> {
    let namespace = if resource.namespaced { request.info.namespace.clone() } else { String::new() };
    if verb == Verbs::GET {
        return read::get(server, &request, resource).await;
    }
    let options = WriteOptions::parse(&request, resource)?;
    let body = request.body().await?;
    let (name, subresource) = (request.info.name.clone(), request.info.subresource.clone());
    let target = Target { resource, subresource: &subresource, namespace: &namespace, name: &name };
    let (object, warnings) = if verb == Verbs::PATCH {
        let patched = update::patch(server, target, request.content_type(), &body, &options, &request.user).await?;
        (patched.object, patched.warnings)
    } else {
        let decoded = decode::object(resource, request.content_type(), &body, &options)?;
        let (object, _) = update::put(server, target, decoded.value, &options, &request.user).await?;
        (object, decoded.warnings)
    };
    let mut response = read::object_response(200, accepted, resource, &object, &request)?;
    warnings.iter().for_each(|text| crate::server::warn(&mut response, text));
    Ok(response)
}

const SCALE: (&str, &str, &str) = ("autoscaling", "v1", "Scale");
/// The field of a workload that its Scale holds.
const REPLICAS: &[&str] = &["spec", "replicas"];

/// The Scale as a resource of its own, for the rules of field ownership.
static SCALE_RESOURCE: LazyLock<Resource> = LazyLock::new(|| {
    let id = proto::schema::TypeSet::built_in().kind(SCALE.0, SCALE.1, SCALE.2).unwrap_or_default();
    let schema = Schema { set: SchemaSet::BuiltIn, id };
    Resource {
        group: SCALE.0.into(),
        version: SCALE.1.into(),
        plural: "scales".into(),
        singular: "scale".into(),
        kind: SCALE.2.into(),
        list_kind: "".into(),
        namespaced: true,
        short_names: Vec::new(),
        categories: Vec::new(),
        verbs: Verbs::default(),
        subresources: Vec::new(),
        schema: schema.clone(),
        storage: "scales.autoscaling".into(),
        storage_version: "autoscaling/v1".into(),
        stored: schema,
        custom: false,
    }
});

pub(super) fn schema((group, version, kind): (&str, &str, &str)) -> Result<Schema> {
    let id = proto::schema::TypeSet::built_in().kind(group, version, kind);
    Ok(Schema { set: SchemaSet::BuiltIn, id: id.ok_or_else(|| ApiError::internal(format!("{kind} is not declared")))? })
}

/// The `Scale` of a workload.
fn scale_of(resource: &Resource, value: &Value) -> Value {
    let metadata = &value["metadata"];
    let selector = match &value["spec"]["selector"] {
        Value::Object(labels) if labels.contains_key("matchLabels") || labels.contains_key("matchExpressions") => {
            selector_text(&value["spec"]["selector"])
        }
        Value::Object(labels) => {
            labels.iter().map(|(k, v)| format!("{k}={}", v.as_str().unwrap_or_default())).collect::<Vec<_>>().join(",")
        }
        _ => String::new(),
    };
    let _ = resource;
    json!({
        "kind": "Scale", "apiVersion": "autoscaling/v1",
        "metadata": {"name": metadata["name"], "namespace": metadata["namespace"], "uid": metadata["uid"],
            "resourceVersion": metadata["resourceVersion"], "creationTimestamp": metadata["creationTimestamp"]},
        "spec": {"replicas": value["spec"]["replicas"].as_i64().unwrap_or(0)},
        "status": {"replicas": value["status"]["replicas"].as_i64().unwrap_or(0), "selector": selector},
    })
}

fn selector_text(selector: &Value) -> String {
    let mut parts: Vec<String> = Vec::new();
    for (key, value) in selector["matchLabels"].as_object().into_iter().flatten() {
        parts.push(format!("{key}={}", value.as_str().unwrap_or_default()));
    }
    for expression in selector["matchExpressions"].as_array().into_iter().flatten() {
        let key = expression["key"].as_str().unwrap_or_default();
        let mut values: Vec<&str> =
            expression["values"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
        values.sort_unstable();
        parts.push(match expression["operator"].as_str() {
            Some("In") => format!("{key} in ({})", values.join(",")),
            Some("NotIn") => format!("{key} notin ({})", values.join(",")),
            Some("DoesNotExist") => format!("!{key}"),
            _ => key.to_owned(),
        });
    }
    parts.sort();
    parts.join(",")
}

async fn scale(
    server: &ApiServer,
    mut request: Request,
    resource: &Resource,
    accepted: Accepted,
    verb: Verbs,
) -> Result<Response> {
    let (namespace, name) = (request.info.namespace.clone(), request.info.name.clone());
    let accepted = Accepted { form: crate::http::Form::Whole, ..accepted };
    let answer = |value: &Value| Ok(respond::built_in(200, accepted, SCALE, &scale_of(resource, value)));
    if verb == Verbs::GET {
        let found = server.store.get(&resource.storage, &namespace, &name);
        let found = found.ok_or_else(|| ApiError::not_found(&resource.group, &resource.plural, &name))?;
        return answer(&found.value());
    }
    let options = WriteOptions::parse(&request, resource)?;
    let body = request.body().await?;
    let content_type = request.content_type().to_owned();
    let schema = schema(SCALE)?;
    enum Sent {
        Whole(Value),
        Patch(Patch),
        Applied(Value),
    }
    let sent = match verb {
        Verbs::UPDATE => Sent::Whole(decode::kind(&schema, SCALE, &content_type, &body, &options)?.value),
        _ if crate::patch::media(&content_type) == applied::MEDIA => Sent::Applied(applied::read(&body)?),
        _ => match Patch::parse(crate::patch::media(&content_type), &body, options.validation)? {
            Some(patch) => Sent::Patch(patch),
            None => return Err(crate::routing::unsupported_media()),
        },
    };
    let target = Target { resource, subresource: "scale", namespace: &namespace, name: &name };
    let writer = Writer { resource: &SCALE_RESOURCE, subresource: "scale", manager: &options.manager };
    let object = update::replace(server, target, &options, false, |old, tree| {
        let mut value = tree.clone();
        let mut before = scale_of(resource, &value);
        let owners = &tree["metadata"]["managedFields"];
        let api_version = resource.api_version();
        if let Some(of_scale) = apply::scale::of_scale(owners, &api_version, REPLICAS) {
            before["metadata"]["managedFields"] = of_scale;
        }
        let scale = match &sent {
            Sent::Applied(config) => {
                let merged = apply::apply(writer, Some(&before), config, options.force)?;
                let conformed = proto::json::conform(schema.set(), schema.id, &merged);
                conformed.map_err(|e| ApiError::new(500, "", e.to_string()))?.value
            }
            Sent::Whole(scale) => {
                let mut scale = scale.clone();
                apply::updated(writer, &before, &mut scale);
                scale
            }
            Sent::Patch(patch) => {
                let json = || {
                    let mut out = Vec::new();
                    proto::json::write(schema.set(), schema.id, &before, &mut out);
                    out
                };
                let mut scale = patch.apply(&schema, SCALE, before.clone(), json, options.validation)?.value;
                apply::updated(writer, &before, &mut scale);
                scale
            }
        };
        let version = meta::text(&scale, "resourceVersion");
        if !version.is_empty() && version != old.revision.to_string() {
            return Err(ApiError::conflict(&resource.group, &resource.plural, &name, super::MODIFIED));
        }
        let replicas = scale["spec"]["replicas"].as_i64().unwrap_or(0);
        if replicas < 0 {
            let cause = crate::status::Cause {
                reason: "FieldValueInvalid".into(),
                message: format!("Invalid value: {replicas}: must be greater than or equal to 0"),
                field: "spec.replicas".into(),
            };
            return Err(super::options::invalid("autoscaling", "Scale", &name, vec![cause]));
        }
        value["spec"]["replicas"] = replicas.into();
        let owners = apply::scale::of_workload(owners, &scale["metadata"]["managedFields"], &api_version, REPLICAS);
        apply::put(&mut value, owners);
        Ok(value)
    })
    .await?;
    answer(&object.value())
}

fn created() -> Value {
    json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": 201})
}

/// Assigns a pod to a node.
async fn binding(
    server: &ApiServer,
    request: &mut Request,
    resource: &Resource,
    accepted: Accepted,
) -> Result<Response> {
    let options = WriteOptions::parse(request, resource)?;
    let body = request.body().await?;
    let name = ("", "v1", "Binding");
    let binding = decode::kind(&schema(name)?, name, request.content_type(), &body, &options)?.value;
    bind(server, resource, &request.info.namespace, &request.info.name, &binding, &options).await?;
    Ok(respond::built_in(201, accepted, ("", "v1", "Status"), &created()))
}

/// Writes the node of a binding into its pod.
///
/// # Errors
/// 404, 409 when the pod has a node or is going away.
pub async fn bind(
    server: &ApiServer,
    resource: &Resource,
    namespace: &str,
    name: &str,
    binding: &Value,
    options: &WriteOptions,
) -> Result<()> {
    let node = binding["target"]["name"].as_str().unwrap_or_default().to_owned();
    if node.is_empty() {
        let cause = crate::status::Cause {
            reason: "FieldValueRequired".into(),
            message: "Required value".into(),
            field: "target.name".into(),
        };
        return Err(super::options::invalid("", "Binding", name, vec![cause]));
    }
    let mut binding = binding.clone();
    let part = Part { resource, subresource: "binding", namespace, name };
    admit::posted(server, &options.user, part, &mut binding, options.dry_run).await?;
    let binding = &binding;
    let target = Target { resource, subresource: "binding", namespace, name };
    let conflict = |why: String| ApiError::conflict("", "pods/binding", name, why);
    update::update(server, target, options, |old, tree| {
        let mut value = tree.clone();
        let uid = meta::text(binding, "uid");
        if !uid.is_empty() && *old.keys.uid != *uid {
            let why = format!("Precondition failed: UID in precondition: {uid}, UID in object meta: {}", old.keys.uid);
            return Err(conflict(why));
        }
        if old.keys.deleting {
            return Err(conflict(format!("pod {name} is being deleted, cannot be assigned to a host")));
        }
        if let Some(taken) = value["spec"]["nodeName"].as_str().filter(|n| !n.is_empty()) {
            return Err(conflict(format!("pod {name} is already assigned to node {}", crate::status::quote(taken))));
        }
        value["spec"]["nodeName"] = node.as_str().into();
        for (key, text) in binding["metadata"]["annotations"].as_object().into_iter().flatten() {
            value["metadata"]["annotations"][key] = text.clone();
        }
        for (key, text) in binding["metadata"]["labels"].as_object().into_iter().flatten() {
            if value["metadata"]["labels"][key].is_null() {
                value["metadata"]["labels"][key] = text.clone();
            }
        }
        let now = proto::time::Timestamp::now().to_seconds_text();
        let scheduled =
            json!({"type": "PodScheduled", "status": "True", "lastProbeTime": null, "lastTransitionTime": now});
        if !value["status"]["conditions"].is_array() {
            value["status"]["conditions"] = json!([]);
        }
        if let Some(conditions) = value["status"]["conditions"].as_array_mut() {
            match conditions.iter_mut().find(|c| c["type"] == "PodScheduled") {
                Some(condition) if condition["status"] == "True" => {}
                Some(condition) => *condition = scheduled,
                None => conditions.push(scheduled),
            }
        }
        Ok(value)
    })
    .await
    .map(|_| ())
}

/// Deletes a pod if its disruption budgets allow it.
async fn eviction(
    server: &ApiServer,
    request: &mut Request,
    resource: &Resource,
    accepted: Accepted,
) -> Result<Response> {
    let options = WriteOptions::parse(request, resource)?;
    let body = request.body().await?;
    let name = ("policy", "v1", "Eviction");
    let mut eviction = decode::kind(&schema(name)?, name, request.content_type(), &body, &options)?.value;
    let (namespace, pod) = (request.info.namespace.clone(), request.info.name.clone());
    let part = Part { resource, subresource: "eviction", namespace: &namespace, name: &pod };
    admit::posted(server, &options.user, part, &mut eviction, options.dry_run).await?;
    let found = server.store.get(&resource.storage, &namespace, &pod);
    let found = found.ok_or_else(|| ApiError::not_found("", "pods", &pod))?;
    allow_disruption(server, &namespace, &found).await?;
    let wanted = &eviction["deleteOptions"];
    let delete_options = DeleteOptions {
        grace_seconds: wanted["gracePeriodSeconds"].as_i64(),
        uid: wanted["preconditions"]["uid"].as_str().map(Into::into),
        revision: wanted["preconditions"]["resourceVersion"].as_str().map(Into::into),
        propagation: wanted["propagationPolicy"].as_str().map(Into::into),
        dry_run: options.dry_run,
        ..DeleteOptions::default()
    };
    delete(server, resource, &namespace, &pod, &delete_options).await?;
    Ok(respond::built_in(201, accepted, ("", "v1", "Status"), &created()))
}

/// Takes one disruption from the budget that covers a pod.
async fn allow_disruption(server: &ApiServer, namespace: &str, pod: &crate::store::ObjectRef) -> Result<()> {
    let Some(budgets) = server.resources.lookup("policy", "v1", "poddisruptionbudgets") else { return Ok(()) };
    let phase = pod.field("status.phase");
    if matches!(phase, "Pending" | "Succeeded" | "Failed") || pod.keys.deleting {
        return Ok(());
    }
    let snapshot = server.store.snapshot(&budgets.storage);
    let mut covering = Vec::new();
    for budget in snapshot.range(Some(namespace), None) {
        let value = budget.value();
        let selector = selector_text(&value["spec"]["selector"]);
        let matches = !value["spec"]["selector"].is_null()
            && read::Selector::parse(&budgets, &selector, "").is_ok_and(|s| s.matches(pod));
        if matches {
            covering.push((budget.clone(), value));
        }
    }
    let Some((budget, value)) = covering.first() else { return Ok(()) };
    if covering.len() > 1 {
        return Err(ApiError::new(
            500,
            "InternalError",
            "This pod has more than one PodDisruptionBudget, which the eviction subresource does not support.",
        ));
    }
    if value["status"]["disruptionsAllowed"].as_i64().unwrap_or(0) <= 0 {
        let error = ApiError::too_many_requests("Cannot evict pod as it would violate the pod's disruption budget.", 0);
        let text = format!(
            "The disruption budget {} needs {} healthy pods and has {} currently",
            budget.key.name,
            value["status"]["desiredHealthy"].as_i64().unwrap_or(0),
            value["status"]["currentHealthy"].as_i64().unwrap_or(0)
        );
        return Err(error.with_cause("DisruptionBudget", &text, ""));
    }
    let (namespace, name) = (budget.key.namespace.to_string(), budget.key.name.to_string());
    let target = Target { resource: &budgets, subresource: "status", namespace: &namespace, name: &name };
    let pod_name = pod.key.name.to_string();
    update::update(server, target, &WriteOptions::default(), |_, tree| {
        let mut value = tree.clone();
        let left = value["status"]["disruptionsAllowed"].as_i64().unwrap_or(0);
        if left <= 0 {
            return Err(ApiError::too_many_requests(
                "Cannot evict pod as it would violate the pod's disruption budget.",
                0,
            ));
        }
        value["status"]["disruptionsAllowed"] = (left - 1).into();
        value["status"]["disruptedPods"][&pod_name] = proto::time::Timestamp::now().to_seconds_text().into();
        Ok(value)
    })
    .await
    .map(|_| ())
}
