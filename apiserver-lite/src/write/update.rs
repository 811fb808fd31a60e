//! Replacing and patching objects: compute the new state from the stored one, commit if nothing came in between, try
//! again if something did and the client did not insist on a version.

use std::sync::Arc;

use proto::json::Known;
use serde_json::Value;

use super::meta::{self, text};
use super::options::{WriteOptions, invalid};
use super::turns::Attempts;
use super::{MODIFIED, commit, commit_error, create, pod_parts, strategy};
use crate::admission::{Call, Operation, Reservation};
use crate::apply::{self, Owners, Writer};
use crate::auth::{self, ClaimWrite};
use crate::patch::{self, Patch};
use crate::request::User;
use crate::resource::Resource;
use crate::server::ApiServer;
use crate::status::{ApiError, Cause, Result, quote};
use crate::store::{Change, CommitError, Expect, Key, ObjectRef, Text, Write};

/// What an update is about.
#[derive(Clone, Copy)]
pub struct Target<'a> {
    pub resource: &'a Resource,
    /// Empty, `status`, ...
    pub subresource: &'a str,
    pub namespace: &'a str,
    pub name: &'a str,
}

/// A patched object.
pub struct Patched {
    pub object: ObjectRef,
    /// An apply made the object.
    pub created: bool,
}

/// Replaces an object; true when it was created.
///
/// # Errors
/// 400, 404, 409 and 422 as upstream.
pub async fn put(
    server: &ApiServer,
    target: Target<'_>,
    mut value: Value,
    options: &WriteOptions,
    user: &User,
) -> Result<(ObjectRef, bool)> {
    let Target { resource, namespace, name, .. } = target;
    meta::settle_namespace(&mut value, namespace)?;
    meta::check_name(&value, name)?;
    let version = text(&value, "resourceVersion").to_owned();
    let uid = text(&value, "uid").to_owned();
    let Some(found) = server.store.get(&resource.storage, namespace, name) else {
        ApiError::no_key(name)?;
        // Upstream's store compares it before anybody says that there is nothing.
        if !uid.is_empty() {
            return Err(other_uid(target, &uid, ""));
        }
        if !target.subresource.is_empty() || !strategy::creates_on_update(resource) {
            return Err(ApiError::missing(&resource.group, &resource.plural, name));
        }
        // Which version it had does not matter, but it has to be one.
        parse_expected(&version)?;
        meta::metadata(&mut value).remove("resourceVersion");
        return Ok((create::create_at(server, target, value, options, user).await?, true));
    };
    if strategy::needs_version(resource) && (version.is_empty() || version == "0") {
        check_preconditions(target, &found, None, &uid)?;
        let cause = Cause {
            reason: "FieldValueInvalid".into(),
            message: "Invalid value: 0: must be specified for an update".into(),
            field: "metadata.resourceVersion".into(),
        };
        return Err(invalid(&resource.group, &resource.plural, name, vec![cause]));
    }
    create::to_stored_version(resource, &mut value);
    crate::defaults::apply(resource, &mut value);
    meta::dedup_owners(&mut value, false);
    let expected = parse_expected(&version)?;
    let attempts = match expected {
        // Who names a version has one: after a conflict the version is another one.
        Some(_) => Attempts::one(server, target),
        None => Attempts::new(server, target, options.until),
    };
    let object = replace_by(server, target, options, (owners_of(target), attempts), |old, _| {
        check_preconditions(target, old, expected, &uid)?;
        Ok(if expected.is_some() { std::mem::take(&mut value) } else { value.clone() })
    });
    Ok((object.await?, false))
}

pub(super) fn parse_expected(version: &str) -> Result<Option<u64>> {
    match version {
        "" | "0" => Ok(None),
        text => text.parse().map(Some).map_err(|_| {
            ApiError::bad_request(format!(
                "invalid resource version {}: strconv.ParseUint: parsing {}: invalid syntax",
                quote(text),
                quote(text)
            ))
        }),
    }
}

/// Refuses to write an object that is another one than the client means; `have` is empty where there is none.
pub(super) fn other_uid(target: Target<'_>, uid: &str, have: &str) -> ApiError {
    let Target { resource, name, .. } = target;
    // Upstream shows its storage key here, and people search for this text.
    let key = storage_key(resource, target.namespace, name);
    let why = format!(
        "StorageError: invalid object, Code: 4, Key: {key}, ResourceVersion: 0, AdditionalErrorMsg: Precondition failed: \
         UID in precondition: {uid}, UID in object meta: {have}"
    );
    ApiError::conflict(&resource.group, &resource.plural, name, why)
}

/// Where upstream stores an object. Only what its extension servers keep has a group there, and some kinds have the name
/// that they had at first.
fn storage_key(resource: &Resource, namespace: &str, name: &str) -> String {
    let extension = matches!(&*resource.group, "apiextensions.k8s.io" | "apiregistration.k8s.io");
    let group = if resource.custom || extension { format!("{}/", resource.group) } else { String::new() };
    let kind = match (&*resource.group, &*resource.plural) {
        ("", "replicationcontrollers") => "controllers",
        ("", "endpoints") => "services/endpoints",
        ("", "nodes") => "minions",
        ("", "services") => "services/specs",
        ("networking.k8s.io", "ingresses") => "ingress",
        (_, plural) => plural,
    };
    let place = if namespace.is_empty() { String::new() } else { format!("{namespace}/") };
    format!("/registry/{group}{kind}/{place}{name}")
}

pub(super) fn check_preconditions(target: Target<'_>, old: &ObjectRef, version: Option<u64>, uid: &str) -> Result<()> {
    let Target { resource, name, .. } = target;
    if !uid.is_empty() && *old.keys.uid != *uid {
        return Err(other_uid(target, uid, &old.keys.uid));
    }
    match version {
        Some(version) if version != old.revision => {
            Err(ApiError::conflict(&resource.group, &resource.plural, name, MODIFIED))
        }
        _ => Ok(()),
    }
}

/// Replaces an object by what `change` makes of it and its tree, trying again while others write it too.
///
/// # Errors
/// What `change` says, 404, 409 when others were faster until the time was over, 422.
pub async fn update(
    server: &ApiServer,
    target: Target<'_>,
    options: &WriteOptions,
    change: impl FnMut(&ObjectRef, &Value) -> Result<Value>,
) -> Result<ObjectRef> {
    replace(server, target, options, owners_of(target), change).await
}

/// A binding and an eviction are requests of their own; what they change in a pod has no owner.
fn owners_of(target: Target<'_>) -> Tracking {
    match target.subresource {
        "binding" | "eviction" => Tracking::Untouched,
        _ => Tracking::Writer,
    }
}

/// What a change does to the owners of fields.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Tracking {
    /// Who writes owns what changes. The change leaves the list alone, or sets it without looking at it.
    Writer,
    /// The same for a change that looks at the list.
    Looking,
    /// They stay.
    Untouched,
    /// They are what the change says.
    Said,
}

/// Whether nobody but the server looks at the owners of fields while an object of a kind is written, so that they need
/// not be in its tree.
pub(super) fn hides_owners(server: &ApiServer, resource: &Resource) -> bool {
    !resource.custom && !server.admission.shows_owners(server)
}

/// The same, with what is known of the owners of fields.
pub(super) async fn replace(
    server: &ApiServer,
    target: Target<'_>,
    options: &WriteOptions,
    tracking: Tracking,
    change: impl FnMut(&ObjectRef, &Value) -> Result<Value>,
) -> Result<ObjectRef> {
    let attempts = Attempts::new(server, target, options.until);
    replace_by(server, target, options, (tracking, attempts), change).await
}

async fn replace_by(
    server: &ApiServer,
    target: Target<'_>,
    options: &WriteOptions,
    (tracking, mut attempts): (Tracking, Attempts<'_>),
    mut change: impl FnMut(&ObjectRef, &Value) -> Result<Value>,
) -> Result<ObjectRef> {
    let Target { resource, subresource, namespace, name } = target;
    loop {
        let Some(old) = server.store.get(&resource.storage, namespace, name) else {
            return Err(ApiError::missing(&resource.group, &resource.plural, name));
        };
        crate::crd::check_served(resource, &old)?;
        let apart = matches!(tracking, Tracking::Writer | Tracking::Untouched) && hides_owners(server, resource);
        let old_value = match apart {
            true => old.to_change(),
            false => Arc::new(crate::crd::worked_on(server, resource, &old).await?),
        };
        let old_text = old.json.bytes();
        let old_owners = &old_text[old.json.owners()];
        let mut new = change(&old, &old_value)?;
        let writer = Writer { resource, subresource, manager: &options.manager };
        let mut owners = None;
        match tracking {
            Tracking::Writer if apart => {
                owners = Some(Owners::updated(writer, old_owners, &old_value, &mut new));
            }
            Tracking::Untouched if apart => owners = Some(Owners::unchanged(old_owners)),
            Tracking::Writer | Tracking::Looking => apply::updated(writer, &old_value, &mut new),
            Tracking::Untouched | Tracking::Said => {}
        }
        let call = Call {
            server,
            user: &options.user,
            operation: Operation::Update,
            resource,
            subresource,
            namespace,
            name,
            old: Some(&old_value),
            dry_run: options.dry_run,
            said: &options.said,
        };
        // What is sent to these is not the object itself; their handlers ask for themselves.
        let whole = !matches!(subresource, "scale" | "binding" | "eviction");
        if subresource == "scale" {
            super::scale::admit(&call, &mut new).await?;
        }
        if whole {
            server.admission.mutate(&call, &mut new).await?;
            meta::dedup_owners(&mut new, true);
            meta::settle_namespace(&mut new, namespace)?;
        }
        create::check_escalation(server, target, &options.user, &new, Some(&old_value))?;
        meta::keep_server_fields(&mut new, &old_value);
        server.gated.drop_fields(resource, &mut new, Some(&old_value));
        if subresource == "resize" && !server.config.resizes_pods {
            pod_parts::keep_resources(&mut new, &old_value);
        }
        strategy::prepare_update(resource, subresource, &mut new, &old_value);
        let service = create::is_service(resource) && subresource.is_empty();
        let mut allocation = match service {
            true => Some(server.services.allocate(&server.store, &mut new, Some(&old_value))?),
            false => None,
        };
        if !matches!(subresource, "binding" | "eviction") {
            validate(server, target, options, &new, &old_value)?;
        }
        let reserved = match whole {
            true => {
                // Who looks at it is told which one it replaces.
                meta::metadata(&mut new).insert("resourceVersion".into(), old.revision.to_string().into());
                let reserved = server.admission.validate(&call, &new).await?;
                meta::metadata(&mut new).remove("resourceVersion");
                reserved
            }
            false => Reservation::default(),
        };
        match &mut owners {
            Some(owners) => owners.keep_times(resource, &new, &old_value),
            None => apply::keep_times(resource, &mut new, &old_value),
        }
        let known = same_spec(resource, &old.json, &old_value, &new);
        let encoded = super::converted(server, resource, &mut new, owners.as_ref(), known).await?;
        let write = |change| Write {
            resource: resource.storage.clone(),
            key: Key::new(namespace, name),
            expect: Expect::Revision(old.revision),
            change,
        };
        if let Some(allocation) = &mut allocation {
            allocation.begin();
        }
        let lets_go = lets_go(resource, &new, &old_value);
        let committed = if lets_go {
            // Who takes the last finalizer off gets the object as it would have become, under the version it had.
            let last = encoded.again();
            let gone = commit(server, write(Change::Delete(encoded)), options.dry_run).await;
            gone.map(|object| last.as_of(object.key.clone(), old.revision))
        } else if encoded.json.is_at_version(old.revision, &old_text) {
            // Nothing changed: no new version, no event.
            if let Some(allocation) = allocation {
                allocation.end(false);
            }
            return Ok(old);
        } else {
            commit(server, write(Change::Put(encoded.with_tree(new))), options.dry_run).await
        };
        if committed.is_err() {
            reserved.refund(server).await;
        }
        let stored = committed.is_ok() && !options.dry_run;
        if let Some(allocation) = allocation {
            allocation.end(stored);
        }
        if service && lets_go && stored {
            server.services.release_service(&old_value);
        }
        match committed {
            Ok(object) => return Ok(object),
            // What was charged and handed out for this attempt was given back.
            Err(CommitError::Conflict(_)) if attempts.again().await => {}
            Err(error) => return Err(commit_error(resource, name, error)),
        }
    }
}

/// The text of the spec, where a write left it the same tree: a write of a status does. It is as whoever stored it wrote
/// it, in the order of the schema, so that there is none of a custom resource.
fn same_spec<'a>(resource: &Resource, old: &'a Text, before: &Value, after: &Value) -> Option<Known<'a>> {
    const NAME: &str = "spec";
    if resource.custom {
        return None;
    }
    let is = before[NAME].as_object()?.is(after[NAME].as_object()?) && before["apiVersion"] == after["apiVersion"];
    Some((NAME, old.spec_text().filter(|_| is)?))
}

/// Whether an update takes off the last thing that held an object that is being deleted.
fn lets_go(resource: &Resource, new: &Value, old: &Value) -> bool {
    let metadata = &old["metadata"];
    metadata["deletionTimestamp"].is_string()
        && metadata["deletionGracePeriodSeconds"].as_i64().unwrap_or(0) == 0
        && !has_finalizers(resource, new)
}

/// Whether anybody still has to finish something before the object may go. Namespaces have a list of their own besides.
fn has_finalizers(resource: &Resource, value: &Value) -> bool {
    let some = |part: &str| value[part]["finalizers"].as_array().is_some_and(|f| !f.is_empty());
    some("metadata") || resource.group.is_empty() && &*resource.plural == "namespaces" && some("spec")
}

/// Checks a replacement, and warns of what is unwise in it.
fn validate(server: &ApiServer, target: Target<'_>, options: &WriteOptions, new: &Value, old: &Value) -> Result<()> {
    let Target { resource, subresource, namespace, .. } = target;
    let mut causes: Vec<Cause> = Vec::new();
    if (&*resource.group, &*resource.plural, subresource) == ("resource.k8s.io", "resourceclaims", "status") {
        let write = ClaimWrite { user: &options.user, verb: &options.verb, namespace };
        causes.extend(auth::new_status(server, &write, new, old));
    }
    let rules = server.gated.rules_for(resource, server.config.rules, Some(old));
    let complaints = crate::validate::update(resource, subresource, new, old, rules);
    causes.extend(complaints.into_iter().map(Into::into));
    causes.extend(server.gated.complaints(resource, new, Some(old)).into_iter().map(Into::into));
    if let Some(definition) = &resource.definition {
        causes.extend(crate::crd::check_update(resource, definition, subresource, new, old));
    } else if crate::crd::is_definition(resource) {
        crate::crd::warn_of_formats(new, Some(old));
        causes.extend(crate::crd::check_definition(new, Some(old)));
    }
    create::refused_as(resource, &resource.kind, old, causes)?;
    let unwise = match subresource {
        "status" => crate::validate::of_status(resource, new),
        _ => crate::validate::warnings(resource, new, Some(old)),
    };
    unwise.into_iter().for_each(crate::warning::add);
    Ok(())
}

/// Patches an object in any of the formats.
///
/// # Errors
/// 400, 404, 409, 415, 422 as upstream.
pub async fn patch(
    server: &ApiServer,
    target: Target<'_>,
    content_type: &str,
    body: &[u8],
    options: &WriteOptions,
    _user: &User,
) -> Result<Patched> {
    let resource = target.resource;
    let media = patch::media(content_type);
    if media == super::applied::MEDIA {
        return super::applied::apply(server, target, body, options).await;
    }
    let known = !resource.custom || is_for_custom(media);
    let Some(patch) = Some(media).filter(|_| known).and_then(|m| Patch::parse(m, body, options.validation).transpose())
    else {
        return Err(unsupported_media());
    };
    // Nobody reads a patch that has nothing to change.
    let patch = patch.map_err(|error| match server.store.get(&resource.storage, target.namespace, target.name) {
        Some(_) => error,
        None => ApiError::missing(&resource.group, &resource.plural, target.name),
    })?;
    // The owners of fields are most of an object's tree, and a patch that leaves them alone need not carry them.
    let without_owners = patch.leaves_owners();
    let tracking = if without_owners { Tracking::Writer } else { Tracking::Looking };
    let object = replace(server, target, options, tracking, |old, tree| {
        let at_rest = tree;
        // What was stored by the definition as it is now needs nothing done to it.
        let current = resource.definition.as_ref().is_some_and(|definition| definition.is_current(old));
        let served = |tree: Value| if current { tree } else { crate::read::convert(resource, tree) };
        let same_version = *resource.storage_version == resource.api_version();
        let json = || match same_version {
            true => old.json.bytes().to_vec(),
            false => {
                let (mut out, served) = (Vec::new(), served(tree.clone()));
                match resource.custom {
                    true => proto::json::write_sorted(&served, &mut out),
                    false => proto::json::write(resource.schema.set(), resource.schema.id, &served, &mut out),
                }
                out
            }
        };
        let kind = (&*resource.group, &*resource.version, &*resource.kind);
        let apply = |tree: Value| match resource.custom {
            true => patch.apply_custom(resource, served(tree), json, options.validation),
            false => patch.apply(
                &resource.schema,
                kind,
                served(tree),
                // One at rest may still have the version that was stored before an upgrade.
                (at_rest["apiVersion"] == *resource.api_version()).then_some(at_rest),
                json,
                options.validation,
            ),
        };
        let lean = if without_owners { apply(meta::without_owners(tree)).ok() } else { None };
        // An error may show the whole object.
        let whole = || if resource.custom { tree.clone() } else { old.value() };
        let patched = lean.map_or_else(|| apply(whole()), Ok)?;
        patched.warnings.into_iter().for_each(crate::warning::add);
        let mut value = patched.value;
        meta::settle_namespace(&mut value, target.namespace)?;
        meta::check_name(&value, target.name)?;
        let expected = parse_expected(text(&value, "resourceVersion"))?;
        check_preconditions(target, old, expected, "")?;
        if !is_misnamed(resource, &value) {
            create::to_stored_version(resource, &mut value);
        } else if value["apiVersion"] == *resource.storage_version {
            // Nobody could tell it from one that was brought to that version.
            return Err(crate::crd::misnamed(resource, target.name, &value));
        }
        match target.subresource {
            "status" => crate::defaults::apply_to_status(resource, &mut value, tree),
            _ => crate::defaults::apply(resource, &mut value),
        }
        Ok(value)
    })
    .await?;
    Ok(Patched { object, created: false })
}

/// Whether a patch gave a custom object another apiVersion, which it then keeps, to be refused for it.
fn is_misnamed(resource: &Resource, value: &Value) -> bool {
    let said = value["apiVersion"].as_str().unwrap_or_default();
    resource.custom && !said.is_empty() && said != resource.api_version()
}

/// Whether custom resources take patches of a media type; there are no directives in their schemas.
pub(super) fn is_for_custom(media: &str) -> bool {
    matches!(media, "application/json-patch+json" | "application/merge-patch+json")
}

/// What is said where no router has looked at the media type before: for custom resources.
pub(super) fn unsupported_media() -> ApiError {
    let text = "the body of the request was in an unknown format - accepted media types include: \
                application/json-patch+json, application/merge-patch+json, application/apply-patch+yaml";
    ApiError::new(415, "UnsupportedMediaType", text)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use futures_util::future::join_all;
    use serde_json::json;

    use super::*;
    use crate::client::Client;
    use crate::resource::Resources;
    use crate::write::{DeleteOptions, delete};

    /// A server with a slow disk and a Secret `a` that somebody still has something to do for, and the Secret's resource.
    async fn contended() -> (Arc<ApiServer>, Arc<Resource>) {
        let server = crate::serve::testing::server().await;
        let client = Client::new(server.clone(), "system:apiserver", "test");
        let secret = json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "a", "finalizers": ["a.b/c"]}});
        client.create("secrets", "default", secret).await.expect("a good secret");
        server.store.slowness.store(5, Ordering::Relaxed);
        let resource = server.resources.lookup("", "v1", "secrets").expect("built in");
        (server, resource)
    }

    /// Of thirty that came at once twenty were refused, though none of them named a version.
    #[tokio::test]
    async fn writes_that_name_no_version_all_go_through_at_once() {
        let (server, resource) = contended().await;
        let target = Target { resource: &resource, subresource: "", namespace: "default", name: "a" };
        let options = WriteOptions::default();
        let patched = join_all((0..100).map(async |number| {
            let body = json!({"metadata": {"labels": {(format!("l{number}")): "v"}}}).to_string();
            let media = "application/merge-patch+json";
            patch(&server, target, media, body.as_bytes(), &options, &options.user).await.map(drop)
        }));
        let refused: Vec<_> = patched.await.into_iter().filter_map(Result::err).collect();
        assert!(refused.is_empty(), "{refused:?}");
        let stored = server.store.get(&resource.storage, "default", "a").expect("it is there");
        assert_eq!(stored.value()["metadata"]["labels"].as_object().map(|labels| labels.len()), Some(100));
        let delete_options = DeleteOptions::default();
        let deletes = join_all((0..5).map(async |_| {
            let deleted = delete(&server, &resource, "default", "a", &delete_options).await;
            deleted.map(drop)
        }));
        let updates = join_all((0..50).map(async |number| {
            let label = format!("l{number}");
            let change = |_: &ObjectRef, tree: &Value| {
                let mut value = tree.clone();
                value["metadata"]["labels"][&label] = "w".into();
                Ok(value)
            };
            update(&server, target, &options, change).await.map(drop)
        }));
        let (deletes, updates) = tokio::join!(deletes, updates);
        let refused: Vec<_> = deletes.into_iter().chain(updates).filter_map(Result::err).collect();
        assert!(refused.is_empty(), "{refused:?}");
    }

    #[tokio::test]
    async fn many_writers_of_one_object_take_few_attempts() {
        let (server, resource) = contended().await;
        let target = Target { resource: &resource, subresource: "", namespace: "default", name: "a" };
        let (options, tried) = (WriteOptions::default(), AtomicUsize::new(0));
        let writers = 100;
        let updated = join_all((0..writers).map(async |number| {
            let change = |_: &ObjectRef, tree: &Value| {
                tried.fetch_add(1, Ordering::Relaxed);
                let mut value = tree.clone();
                value["metadata"]["labels"][format!("l{number}")] = "v".into();
                Ok(value)
            };
            update(&server, target, &options, change).await
        }));
        assert!(updated.await.iter().all(Result::is_ok));
        // Two each, and some more where the machine stood still for so long that they lost patience.
        let tried = tried.into_inner();
        assert!(tried < 4 * writers, "{tried}");
    }

    #[tokio::test]
    async fn of_writers_that_name_one_version_one_goes_through() {
        let (server, resource) = contended().await;
        let target = Target { resource: &resource, subresource: "", namespace: "default", name: "a" };
        let options = WriteOptions::default();
        let stored = server.store.get(&resource.storage, "default", "a").expect("it is there");
        let written = join_all((0..10).map(async |number| {
            let mut value = stored.value();
            value["metadata"]["labels"][format!("l{number}")] = "v".into();
            put(&server, target, value, &options, &options.user).await
        }));
        let refused: Vec<_> = written.await.into_iter().filter_map(Result::err).collect();
        assert!(refused.len() == 9 && refused.iter().all(ApiError::is_conflict), "{refused:?}");
    }

    #[test]
    fn a_custom_object_of_another_version_is_refused_for_it() {
        let definition = json!({"metadata": {"name": "foos.g.io"}, "spec": {
            "group": "g.io", "scope": "Namespaced", "names": {"plural": "foos", "kind": "Foo"},
            "versions": [{"name": "v1", "served": true, "storage": true,
                "schema": {"openAPIV3Schema": {"type": "object"}}}]}, "status": {
            "acceptedNames": {"plural": "foos", "kind": "Foo"}, "storedVersions": ["v1"]}});
        let custom = crate::crd::resources(&definition, 0, None).pop().expect("one version is served");
        let pods = Resources::built_in().current().lookup("", "v1", "pods").expect("built in");
        for (said, refused) in [("g.io/v1", false), ("", false), ("v9", true), ("g.io/v2", true), ("a/b/c", true)] {
            let value = json!({"apiVersion": said, "kind": "Foo", "metadata": {"name": "a"}});
            assert_eq!(is_misnamed(&custom, &value), refused, "{said}");
            assert!(!is_misnamed(&pods, &value), "{said}");
        }
    }

    /// A patch of a version that is not stored could name the stored one, and was taken for an object of it.
    #[test]
    fn a_custom_object_of_the_stored_version_is_refused_where_another_was_asked_for() {
        let version = |name: &str, storage: bool| json!({"name": name, "served": true, "storage": storage, "schema": {"openAPIV3Schema": {"type": "object"}}});
        let definition = json!({"metadata": {"name": "foos.g.io"}, "spec": {
            "group": "g.io", "scope": "Namespaced", "names": {"plural": "foos", "kind": "Foo"},
            "versions": [version("v1", true), version("v2", false)]}, "status": {
            "acceptedNames": {"plural": "foos", "kind": "Foo"}, "storedVersions": ["v1"]}});
        let all = crate::crd::resources(&definition, 0, None);
        let asked = all.iter().find(|r| &*r.version == "v2").expect("both are served");
        let value = json!({"apiVersion": "g.io/v1", "kind": "Foo", "metadata": {"name": "a"}});
        assert!(is_misnamed(asked, &value) && value["apiVersion"] == *asked.storage_version);
        let error = crate::crd::misnamed(asked, "a", &value);
        assert_eq!(error.code(), 422);
        let told = r#"Foo.g.io "a" is invalid: apiVersion: Invalid value: "g.io/v1": must be g.io/v2"#;
        assert_eq!(error.status().message, told);
    }

    #[test]
    fn a_spec_keeps_its_text_only_where_nothing_touched_it() {
        let resource = Resources::built_in().current().lookup("", "v1", "pods").expect("built in");
        let args = "a".repeat(1000);
        let mut before = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"namespace": "n", "name": "a"},
            "spec": {"containers": [{"name": "c", "image": "i", "args": [args]}], "nodeName": "m"},
            "status": {"phase": "Pending"}});
        let mut text = Vec::new();
        proto::json::write(resource.schema.set(), resource.schema.id, &before, &mut text);
        let old = Text::written(text, &Text::default());
        if let Some(spec) = before["spec"].as_object_mut() {
            spec.share();
        }
        let known = |change: &dyn Fn(&mut Value)| {
            let mut after = before.clone();
            change(&mut after);
            same_spec(&resource, &old, &before, &after).map(|(name, text)| format!("{name} {text}"))
        };
        let text = known(&|after| after["status"]["phase"] = "Running".into()).expect("it is the same");
        assert!(text.starts_with("spec {") && text.contains("nodeName"), "{text}");
        assert_eq!(known(&|after| after["spec"]["containers"][0]["image"] = "other".into()), None);
        assert_eq!(known(&|after| after["spec"]["nodeName"] = "m".into()), None, "what was touched is written anew");
        assert_eq!(known(&|after| after["apiVersion"] = "v2".into()), None);
        assert_eq!(known(&|after| after["spec"] = json!({})), None);
    }

    #[test]
    fn who_means_another_object_is_told_where_it_would_be_stored() {
        let key = |group: &str, plural: &str, namespace: &str| {
            let resource = Resources::built_in().current().lookup(group, "v1", plural).expect("built in");
            storage_key(&resource, namespace, "a")
        };
        assert_eq!(key("apps", "deployments", "n"), "/registry/deployments/n/a");
        assert_eq!(key("", "services", "n"), "/registry/services/specs/n/a");
        assert_eq!(key("networking.k8s.io", "ingresses", "n"), "/registry/ingress/n/a");
        assert_eq!(key("", "nodes", ""), "/registry/minions/a");
        assert_eq!(key("apiregistration.k8s.io", "apiservices", ""), "/registry/apiregistration.k8s.io/apiservices/a");
        let leases = Resources::built_in().current().lookup("coordination.k8s.io", "v1", "leases").expect("built in");
        let target = Target { resource: &leases, subresource: "", namespace: "n", name: "a" };
        let told = other_uid(target, "u", "").status().message.clone();
        assert!(
            told.ends_with(
                "Key: /registry/leases/n/a, ResourceVersion: 0, AdditionalErrorMsg: Precondition failed: UID \
            in precondition: u, UID in object meta: "
            ),
            "{told}"
        );
    }
}
