//! Deleting objects: at once, after a grace period, or once the finalizers are done.
//!
//! Follows `registry/generic/registry.Store.Delete` and `rest.BeforeDelete`: grace periods are the pods' alone and can
//! only be shortened; whatever a finalizer holds is marked and stays; a pod whose grace is over is marked first and
//! removed after, so that watchers see both.

use proto::time::Timestamp;
use serde_json::{Value, json};

use super::delete_options::DeleteOptions;
use super::meta;
use super::turns::Attempts;
use super::update::Target;
use super::{commit, commit_error, strategy};
use crate::admission::{Call, Operation};
use crate::http::{Accepted, Response, respond};
use crate::read::{self, Selector};
use crate::request::User;
use crate::resource::Resource;
use crate::server::{ApiServer, Request};
use crate::status::{ApiError, Result};
use crate::store::{Change, CommitError, Expect, Key, ObjectRef, Write};

/// DELETE of one object.
///
/// # Errors
/// As [`delete`].
pub(super) async fn handle(
    server: &ApiServer,
    mut request: Request,
    resource: &Resource,
    accepted: Accepted,
) -> Result<Response> {
    let options = DeleteOptions::of_request(&mut request).await?;
    let namespace = if resource.namespaced { request.info.namespace.clone() } else { String::new() };
    warn_of_orphans(resource, &options);
    let deleted = delete_as(server, &request.user, resource, &namespace, &request.info.name, &options).await?;
    match deleted {
        Deleted::Gone(object) if returns_status(resource) => Ok(gone_status(resource, &object, accepted)),
        Deleted::Gone(object) => read::object_response(server, 200, accepted, resource, &object, &request).await,
        Deleted::Waiting(object) => {
            // Only who asks in the old words hears that the object is not gone yet.
            let code = if options.orphan_dependents == Some(false) { 202 } else { 200 };
            read::object_response(server, code, accepted, resource, &object, &request).await
        }
    }
}

/// Whether the user may delete this very object, beyond what authorization knows. What is not there, or not what the
/// client means, nobody is asked about.
async fn admit(
    server: &ApiServer,
    user: &User,
    resource: &Resource,
    namespace: &str,
    name: &str,
    options: &DeleteOptions,
) -> Result<()> {
    let old = server.store.get(&resource.storage, namespace, name);
    let old = old.ok_or_else(|| ApiError::missing(&resource.group, &resource.plural, name))?;
    check_preconditions(resource, &old, options)?;
    let old = old.value();
    // Nor about what goes on all the same.
    if old["metadata"]["deletionTimestamp"].is_string() && plan(resource, &mut old.clone(), options) == Plan::Nothing {
        return Ok(());
    }
    let call = Call {
        server,
        user,
        operation: Operation::Delete,
        resource,
        subresource: "",
        namespace,
        name,
        old: Some(&old),
        dry_run: options.dry_run,
        said: &options.said(),
    };
    server.admission.delete(&call).await
}

/// Jobs leave their pods behind where the client says nothing, and people should know.
fn warn_of_orphans(resource: &Resource, options: &DeleteOptions) {
    let jobs = &*resource.group == "batch" && &*resource.plural == "jobs";
    if jobs && options.propagation.is_none() && options.orphan_dependents.is_none() {
        let text = "child pods are preserved by default when jobs are deleted; set propagationPolicy=Background to \
                    remove them or set propagationPolicy=Orphan to suppress this warning";
        crate::warning::add(text);
    }
}

/// Most kinds answer with a Status when the object is gone; these with the object.
pub fn returns_status(resource: &Resource) -> bool {
    match &*resource.group {
        "" => !matches!(
            &*resource.plural,
            "namespaces"
                | "persistentvolumeclaims"
                | "persistentvolumes"
                | "pods"
                | "podtemplates"
                | "resourcequotas"
                | "serviceaccounts"
                | "services"
        ),
        "storage.k8s.io" => &*resource.plural == "csistoragecapacities",
        "resource.k8s.io" => false,
        _ => true,
    }
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

/// Deletes an object, or marks it as going away, for a user: whether he may is asked of admission.
///
/// # Errors
/// As [`delete`], and as the plugins, policies and webhooks.
pub async fn delete_as(
    server: &ApiServer,
    user: &User,
    resource: &Resource,
    namespace: &str,
    name: &str,
    options: &DeleteOptions,
) -> Result<Deleted> {
    strategy::check_delete(resource, name)?;
    admit(server, user, resource, namespace, name, options).await?;
    delete(server, resource, namespace, name, options).await
}

/// The same without asking admission: for what is not a user's own request, and for what was asked already.
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
    let place = || Key::new(namespace, name);
    // What this call itself marked: a precondition on the version was met by the state before.
    let mut marked: Option<ObjectRef> = None;
    let target = Target { resource, subresource: "", namespace, name };
    let mut attempts = Attempts::new(server, target, options.until);
    loop {
        let Some(old) = server.store.get(&resource.storage, namespace, name) else {
            return match marked {
                // Someone else finished what was begun here.
                Some(object) => Ok(Deleted::Gone(object)),
                None => Err(ApiError::missing(&resource.group, &resource.plural, name)),
            };
        };
        match &marked {
            Some(ours) if ours.keys.uid != old.keys.uid => return Ok(Deleted::Gone(ours.clone())),
            Some(ours) if ours.revision == old.revision => {}
            _ => check_preconditions(resource, &old, options)?,
        }
        may_go(resource, name)?;
        let mut value = old.value();
        let plan = plan(resource, &mut value, options);
        if plan == Plan::Nothing {
            return Ok(Deleted::Waiting(old));
        }
        // What goes at once needs nobody who converts it.
        if plan != Plan::Remove {
            crate::crd::check_served(resource, &old)?;
            crate::crd::restored(server, resource, &old, &mut value).await?;
        }
        let encoded = super::encoded(resource, &mut value, &old);
        let write = |change| Write {
            resource: resource.storage.clone(),
            key: place(),
            expect: Expect::Revision(old.revision),
            change,
        };
        let committed = match plan {
            Plan::Remove => commit(server, write(Change::Delete(encoded)), options.dry_run).await.map(Deleted::Gone),
            _ if encoded.json.is_at_version(old.revision, &old.json.bytes()) => Ok(Deleted::Waiting(old)),
            Plan::MarkAndRemove => {
                let last = encoded.again();
                match commit(server, write(Change::Put(encoded)), options.dry_run).await {
                    Ok(object) if options.dry_run => Ok(Deleted::Gone(object)),
                    Ok(object) => {
                        let remove = Write {
                            resource: resource.storage.clone(),
                            key: place(),
                            expect: Expect::Revision(object.revision),
                            change: Change::Delete(last),
                        };
                        marked = Some(object);
                        server.store.commit(remove).await.map(Deleted::Gone)
                    }
                    Err(error) => Err(error),
                }
            }
            _ => commit(server, write(Change::Put(encoded)), options.dry_run).await.map(Deleted::Waiting),
        };
        match committed {
            Ok(Deleted::Gone(object)) => {
                if super::create::is_service(resource) && !options.dry_run {
                    server.services.release_service(&object.value());
                }
                return Ok(Deleted::Gone(object));
            }
            Ok(waiting) => return Ok(waiting),
            // Who names a version, or finds nothing, hears at the next look what there is to hear.
            Err(CommitError::Missing) => {}
            Err(CommitError::Conflict(_)) if options.revision.is_some() || attempts.again().await => {}
            Err(error) => return Err(commit_error(resource, name, error)),
        }
    }
}

fn is_namespaces(resource: &Resource) -> bool {
    resource.group.is_empty() && &*resource.plural == "namespaces"
}

/// What a delete may ask of the object's identity and version.
///
/// # Errors
/// 409.
pub(super) fn check_preconditions(resource: &Resource, old: &ObjectRef, options: &DeleteOptions) -> Result<()> {
    let wanted = [("UID", options.uid.as_deref(), old.keys.uid.to_string(), "deleted and then recreated")];
    let version = [("ResourceVersion", options.revision.as_deref(), old.revision.to_string(), "modified")];
    for (what, said, have, happened) in wanted.into_iter().chain(version) {
        let Some(said) = said.filter(|s| *s != have) else { continue };
        let name = &old.key.name;
        if is_namespaces(resource) {
            let why = format!("Precondition failed: {what} in precondition: {said}, {what} in object meta: {have}");
            return Err(ApiError::conflict(&resource.group, &resource.plural, name, why));
        }
        // Upstream puts the Kind where the resource's name belongs.
        let why = format!(
            "the {what} in the precondition ({said}) does not match the {what} in record ({have}). The object might \
             have been {happened}"
        );
        return Err(ApiError::conflict(&resource.group, &resource.kind, name, why));
    }
    Ok(())
}

/// A few objects no one may delete.
fn may_go(resource: &Resource, name: &str) -> Result<()> {
    if is_namespaces(resource) && matches!(name, "default" | "kube-system" | "kube-public") {
        return Err(ApiError::forbidden("", "namespaces", name, "this namespace may not be deleted"));
    }
    Ok(())
}

#[derive(Debug, PartialEq)]
enum Plan {
    Remove,
    /// The marked state is written, then removed.
    MarkAndRemove,
    Mark,
    Nothing,
}

/// Marks the tree as being deleted where it cannot go at once, and says what to do.
fn plan(resource: &Resource, value: &mut Value, options: &DeleteOptions) -> Plan {
    if is_namespaces(resource) {
        return plan_namespace(value, options);
    }
    if crate::crd::is_definition(resource) && crate::crd::begin_delete(value) {
        return Plan::Mark;
    }
    let grace = match strategy::default_grace(resource, value) {
        None => None,
        Some(default) => match shorten_or_begin(value, options, default) {
            Grace::Pending => return Plan::Nothing,
            Grace::Over => None,
            Grace::Set(seconds) => Some(seconds),
        },
    };
    propagate(resource, value, options);
    let held = value["metadata"]["finalizers"].as_array().is_some_and(|f| !f.is_empty());
    match grace {
        Some(0) if !held => Plan::MarkAndRemove,
        Some(_) => Plan::Mark,
        None if held => {
            mark(value);
            Plan::Mark
        }
        None => Plan::Remove,
    }
}

/// A namespace goes when it is empty, not after a time.
fn plan_namespace(value: &mut Value, options: &DeleteOptions) -> Plan {
    if value["metadata"]["deletionTimestamp"].is_string() {
        let some = |part: &str| value[part]["finalizers"].as_array().is_some_and(|f| !f.is_empty());
        return if some("spec") || some("metadata") { Plan::Nothing } else { Plan::Remove };
    }
    let metadata = meta::metadata(value);
    metadata.insert("deletionTimestamp".into(), Timestamp::now().to_seconds_text().into());
    if options.orphan_dependents == Some(false)
        && let Some(list) = metadata.get_mut("finalizers").and_then(Value::as_array_mut)
    {
        list.retain(|f| f != ORPHAN);
    }
    value["status"]["phase"] = "Terminating".into();
    Plan::Mark
}

/// What became of a pod's grace period.
enum Grace {
    /// Runs already, and no shorter one was asked for.
    Pending,
    /// Was zero before.
    Over,
    Set(i64),
}

fn shorten_or_begin(value: &mut Value, options: &DeleteOptions, default: i64) -> Grace {
    // A negative period means the shortest.
    let asked = options.grace_seconds.map(|s| if s < 0 { 1 } else { s });
    let now = Timestamp::now();
    let before = value["metadata"]["deletionTimestamp"].as_str().map(ToOwned::to_owned);
    let Some(before) = before else {
        let seconds = if wound_down(value) { 0 } else { asked.unwrap_or(default).max(if default < 0 { 1 } else { 0 }) };
        set_deletion(value, now.seconds.saturating_add(seconds), seconds);
        raise_generation(value);
        return Grace::Set(seconds);
    };
    let running = match value["metadata"]["deletionGracePeriodSeconds"].as_i64() {
        None | Some(0) => return Grace::Over,
        Some(seconds) => seconds.max(1),
    };
    let Some(asked) = asked.filter(|a| *a < running) else { return Grace::Pending };
    let began = proto::time::parse_rfc3339(&before).map_or(now.seconds, |t| t.seconds) - running;
    let end = began.saturating_add(asked);
    if end >= now.seconds {
        set_deletion(value, end, asked);
        return Grace::Set(asked);
    }
    // The shorter period is over already. Unless it is none at all, whoever winds the pod down still has the last word.
    let seconds = asked.min(1);
    set_deletion(value, now.seconds, seconds);
    Grace::Set(seconds)
}

/// A pod that no node has taken, or that is over, has nothing to wind down.
fn wound_down(pod: &Value) -> bool {
    pod["spec"]["nodeName"].as_str().unwrap_or_default().is_empty()
        || matches!(pod["status"]["phase"].as_str(), Some("Succeeded" | "Failed"))
}

fn set_deletion(value: &mut Value, at_seconds: i64, grace: i64) {
    let metadata = meta::metadata(value);
    let at = Timestamp { seconds: at_seconds, ..Timestamp::now() };
    metadata.insert("deletionTimestamp".into(), at.to_seconds_text().into());
    metadata.insert("deletionGracePeriodSeconds".into(), grace.into());
}

fn raise_generation(value: &mut Value) {
    if let Some(generation) = value["metadata"]["generation"].as_i64().filter(|g| *g > 0) {
        value["metadata"]["generation"] = (generation + 1).into();
    }
}

/// Marks what only finalizers hold.
fn mark(value: &mut Value) {
    let now = Timestamp::now();
    let at = match value["metadata"]["deletionTimestamp"].as_str() {
        Some(text) => proto::time::parse_rfc3339(text).map_or(now.seconds, |t| t.seconds.min(now.seconds)),
        None => {
            raise_generation(value);
            now.seconds
        }
    };
    set_deletion(value, at, 0);
}

const FOREGROUND: &str = "foregroundDeletion";
const ORPHAN: &str = "orphan";

/// Sets the finalizer that makes the garbage collector wait for dependents, or let them go. What the client says comes
/// before what the object has, and that before the kind's default.
fn propagate(resource: &Resource, value: &mut Value, options: &DeleteOptions) {
    let metadata = meta::metadata(value);
    let list = metadata.get("finalizers").and_then(Value::as_array);
    let found = list.into_iter().flatten().find(|f| *f == ORPHAN || *f == FOREGROUND).and_then(Value::as_str);
    let wanted = match (strategy::orphans(resource), options.orphan_dependents, options.propagation.as_deref()) {
        // Events own nothing and take part in no collection.
        (None, ..) => None,
        (_, Some(true), _) | (_, None, Some("Orphan")) => Some(ORPHAN),
        (_, None, Some("Foreground")) => Some(FOREGROUND),
        (_, Some(false), _) | (_, None, Some(_)) => None,
        (Some(by_default), None, None) => match found {
            Some(FOREGROUND) => Some(FOREGROUND),
            Some(_) => Some(ORPHAN),
            None => by_default.then_some(ORPHAN),
        },
    };
    let is_ours = |f: &Value| f == ORPHAN || f == FOREGROUND;
    let kept = list.map_or(&[][..], Vec::as_slice);
    let same = match wanted {
        Some(wanted) => kept.iter().filter(|f| is_ours(f)).all(|f| f == wanted) && kept.iter().any(|f| f == wanted),
        None => !kept.iter().any(is_ours),
    };
    if same {
        return;
    }
    let mut fresh: Vec<Value> = kept.iter().filter(|f| !is_ours(f)).cloned().collect();
    fresh.extend(wanted.map(Value::from));
    if fresh.is_empty() {
        metadata.remove("finalizers");
    } else {
        metadata.insert("finalizers".into(), fresh.into());
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
) -> Result<Response> {
    let list_options = read::ListOptions::parse(&request.query, false)?;
    let query = &request.query;
    let labels = query.get("labelSelector").unwrap_or_default();
    let selector = Selector::parse(resource, labels, query.get("fieldSelector").unwrap_or_default())?;
    let options = DeleteOptions::of_request(&mut request).await?;
    warn_of_orphans(resource, &options);
    let page = read::page_of(server, &request, resource, &list_options, &selector).await?;
    // Across all namespaces nothing is deleted, and an empty one in the path is no way to it.
    if resource.namespaced && request.info.namespace.is_empty() && !page.objects.is_empty() {
        return Err(ApiError::bad_request("Namespace parameter required."));
    }
    for object in &page.objects {
        let (namespace, name) = (&*object.key.namespace, &*object.key.name);
        // Each is looked up again: whoever was faster, or made a new one of the same name, is not in the way.
        let deleted = match admit(server, &request.user, resource, namespace, name, &options).await {
            Ok(()) => delete(server, resource, namespace, name, &options).await.map(drop),
            Err(error) => Err(error),
        };
        match deleted {
            Ok(_) => {}
            Err(error) if error.is_not_found() => {}
            Err(error) => return Err(error),
        }
    }
    read::list_response(server, accepted, resource, page, &request).await
}
