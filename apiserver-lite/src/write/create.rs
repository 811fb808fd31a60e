//! Creating objects.

use serde_json::Value;

use super::meta::{self, text};
use super::options::{WriteOptions, invalid};
use super::update::{self, Target};
use super::{commit_error, pod_words, put, rehearse, strategy};
use crate::admission::{Call, Operation, Reservation};
use crate::apply::{self, Owners, Writer};
use crate::auth::{self, Attributes, RbacWrite};
use crate::request::{RequestInfo, User};
use crate::resource::Resource;
use crate::server::ApiServer;
use crate::status::{ApiError, Cause, Details, Result};
use crate::store::{CommitError, Expect, Key, ObjectRef};

/// Characters that a generated name adds, and the longest stem before them.
const SUFFIX: usize = 5;
const MAX_STEM: usize = 63 - SUFFIX;
/// Names tried before a clash is reported.
const ATTEMPTS: usize = 8;

/// Creates an object from a decoded tree.
///
/// # Errors
/// 400, 403, 404 (namespace), 409 and 422 as upstream.
pub async fn create(
    server: &ApiServer,
    resource: &Resource,
    namespace: &str,
    value: Value,
    options: &WriteOptions,
    user: &User,
) -> Result<ObjectRef> {
    create_at(server, Target { resource, subresource: "", namespace, name: "" }, value, options, user).await
}

/// The same for a URL that has the name in it, as a PUT that creates.
pub(super) async fn create_at(
    server: &ApiServer,
    target: Target<'_>,
    mut value: Value,
    options: &WriteOptions,
    user: &User,
) -> Result<ObjectRef> {
    meta::settle_namespace(&mut value, target.namespace)?;
    place(server, target, value, options, user, true).await
}

/// Creates an object whose place is settled; without `tracked` it brings the owners of its fields.
pub(super) async fn place(
    server: &ApiServer,
    target: Target<'_>,
    mut value: Value,
    options: &WriteOptions,
    user: &User,
    tracked: bool,
) -> Result<ObjectRef> {
    let Target { resource, namespace, .. } = target;
    if resource.definition.as_ref().is_some_and(|d| d.terminating) {
        let why = "create not allowed while custom resource definition is terminating";
        return Err(ApiError::forbidden(&resource.group, &resource.plural, text(&value, "name"), why));
    }
    to_stored_version(resource, &mut value);
    let stem = text(&value, "generateName").to_owned();
    let generated = text(&value, "name").is_empty() && !stem.is_empty();
    crate::defaults::apply(resource, &mut value);
    // The store refuses versions, when nobody else has anything to refuse; a dry run does not come that far.
    let said = meta::metadata(&mut value).remove("resourceVersion").unwrap_or_default();
    let said = said.as_str().unwrap_or_default();
    let versioned = said.parse().is_ok_and(|version: u64| version != 0) && !options.dry_run;
    if tracked {
        meta::dedup_owners(&mut value, false);
    }
    // What admission adds has no owner.
    let writer = Writer { resource, subresource: "", manager: &options.manager };
    let owners = match tracked {
        true if update::hides_owners(server, resource) => Some(Owners::created(writer, &mut value)),
        true => {
            apply::created(writer, &mut value);
            None
        }
        false => None,
    };
    let name = text(&value, "name").to_owned();
    let call = Call {
        server,
        user,
        operation: Operation::Create,
        resource,
        subresource: "",
        namespace,
        name: &name,
        old: None,
        dry_run: options.dry_run,
        said: &options.said,
    };
    server.admission.mutate(&call, &mut value).await?;
    meta::dedup_owners(&mut value, true);
    // Policies and webhooks change what they like; where an object goes was authorized.
    meta::settle_namespace(&mut value, namespace)?;
    if !target.name.is_empty() {
        meta::check_name(&value, target.name)?;
    }
    check_escalation(server, target, user, &value, None)?;
    meta::begin(&mut value);
    let (mut allocation, mut reserved) = (None, Reservation::default());
    for attempt in 1..=ATTEMPTS {
        if generated {
            let end = stem.char_indices().nth(MAX_STEM).map_or(stem.len(), |(at, _)| at);
            meta::metadata(&mut value)
                .insert("name".into(), format!("{}{}", &stem[..end], crate::random::suffix(SUFFIX)).into());
        }
        if attempt == 1 {
            server.gated.drop_fields(resource, &mut value, None);
            strategy::prepare_create(resource, &mut value, user);
            if resource.group.is_empty() && &*resource.plural == "pods" {
                let warnings = pod_words::settle(&mut value, server.config.merges_spread);
                warnings.into_iter().for_each(crate::warning::add);
            }
            if is_service(resource) {
                allocation = Some(server.services.allocate(&server.store, &mut value, None)?);
            }
            validate(server, target, &value)?;
            authorize_name(server, target, user)?;
            // Who judges the object as it will be stored is told the name that it will have.
            let call = Call { name: text(&value, "name"), ..call };
            reserved = server.admission.validate(&call, &value).await?;
            if versioned {
                std::mem::take(&mut reserved).refund(server).await;
                return Err(ApiError::new(500, "", "resourceVersion should not be set on objects to be created"));
            }
        }
        let name = text(&value, "name").to_owned();
        // Only another name can make it go through at a second attempt.
        let body = if generated && attempt < ATTEMPTS { value.clone() } else { std::mem::take(&mut value) };
        let write = put(server, resource, Key::new(namespace, &name), Expect::Absent, body, owners.as_ref()).await?;
        if let Some(allocation) = &mut allocation {
            allocation.begin();
        }
        let committed = match options.dry_run {
            true => rehearse(server, write, said),
            false => server.store.commit(write).await,
        };
        let goes_on = generated && attempt < ATTEMPTS && matches!(committed, Err(CommitError::Exists(_)));
        if !goes_on && let Some(allocation) = allocation.take() {
            allocation.end(committed.is_ok() && !options.dry_run);
        }
        if committed.is_err() && !goes_on {
            std::mem::take(&mut reserved).refund(server).await;
        }
        match committed {
            Ok(object) => return Ok(object),
            Err(CommitError::Exists(_)) if goes_on => {}
            Err(CommitError::Exists(_)) if generated => return Err(clash(resource, &name)),
            Err(error) => return Err(commit_error(resource, &name, error)),
        }
    }
    Err(clash(resource, &stem))
}

/// Who creates through a URL that has the name in it needs the right to create besides that to update or patch.
fn authorize_name(server: &ApiServer, target: Target<'_>, user: &User) -> Result<()> {
    let Target { resource, namespace, name, .. } = target;
    if name.is_empty() || user.name.is_empty() {
        return Ok(());
    }
    let info = RequestInfo {
        is_resource: true,
        verb: "create".into(),
        group: resource.group.to_string(),
        version: resource.version.to_string(),
        resource: resource.plural.to_string(),
        namespace: namespace.into(),
        name: name.into(),
        ..RequestInfo::default()
    };
    let decision = server.authorizer.decide(&Attributes { user, info: &info });
    match decision {
        decision if decision.allowed => Ok(()),
        decision if !decision.error.is_empty() => Err(ApiError::internal(decision.error)),
        decision => Err(ApiError::forbidden(&resource.group, &resource.plural, name, decision.reason)),
    }
}

/// Roles and bindings give away no more than their writer has.
pub(super) fn check_escalation(
    server: &ApiServer,
    target: Target<'_>,
    user: &User,
    new: &Value,
    old: Option<&Value>,
) -> Result<()> {
    let Target { resource, namespace, name, .. } = target;
    if &*resource.group != "rbac.authorization.k8s.io" {
        return Ok(());
    }
    let write = RbacWrite { user, resource: &resource.plural, namespace, name };
    server.authorizer.check_escalation(&write, new, old)
}

pub(super) fn is_service(resource: &Resource) -> bool {
    resource.group.is_empty() && &*resource.plural == "services"
}

fn clash(resource: &Resource, name: &str) -> ApiError {
    let whole = crate::status::qualified(&resource.group, &resource.plural);
    let text =
        format!("{whole} \"{name}\" already exists, the server was not able to generate a unique name for the object");
    ApiError::new(409, "AlreadyExists", text).with_details(Details {
        name: name.into(),
        group: resource.group.to_string(),
        kind: resource.plural.to_string(),
        retry_after_seconds: 1,
        ..Details::default()
    })
}

/// Brings an object into the version it is stored in.
pub(crate) fn to_stored_version(resource: &Resource, value: &mut Value) {
    crate::resource::versions::to_stored(resource, value);
}

/// Checks a new object, and warns of what is unwise in it.
fn validate(server: &ApiServer, target: Target<'_>, value: &Value) -> Result<()> {
    let Target { resource, namespace, .. } = target;
    let complaints =
        crate::validate::create(resource, value, server.gated.rules_for(resource, server.config.rules, None));
    if let Some(definition) = &resource.definition {
        let of_metadata = complaints.into_iter().map(Into::into).collect();
        let causes = crate::crd::check_new(resource, definition, value, of_metadata);
        // A custom object is called what it says it is.
        return refused_as(resource, value["kind"].as_str().unwrap_or_default(), value, causes);
    }
    let mut causes: Vec<Cause> = Vec::new();
    if &*resource.group == "resource.k8s.io" {
        causes.extend(auth::new_claim(server, &resource.plural, namespace, value));
    }
    causes.extend(complaints.into_iter().map(Into::into));
    causes.extend(server.gated.complaints(resource, value, None).into_iter().map(Into::into));
    if crate::crd::is_definition(resource) {
        crate::crd::warn_of_formats(value, None);
        causes.extend(crate::crd::check_definition(value, None));
    }
    refused_as(resource, &resource.kind, value, causes)?;
    crate::validate::warnings(resource, value, None).into_iter().for_each(crate::warning::add);
    Ok(())
}

/// All complaints about an object at once; a custom one goes by the kind that it says it is.
pub(super) fn refused_as(resource: &Resource, kind: &str, value: &Value, causes: Vec<Cause>) -> Result<()> {
    if causes.is_empty() {
        return Ok(());
    }
    // Events are those of the nameless group, by whatever name they came.
    let group = if &*resource.plural == "events" && !resource.custom { "" } else { &*resource.group };
    Err(invalid(group, kind, text(value, "name"), causes))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// The fields that each manager of an object owns.
    fn owners(object: &ObjectRef) -> Vec<Value> {
        let entries = object.value()["metadata"]["managedFields"].take();
        entries.as_array().into_iter().flatten().map(|entry| entry["fieldsV1"].clone()).collect()
    }

    /// What a client says in other words was not its own, and a patch of it made it nobody's.
    #[tokio::test]
    async fn who_writes_an_object_owns_what_its_words_come_to() {
        let server = crate::serve::testing::server().await;
        let (options, user) = (WriteOptions { manager: "m".into(), ..WriteOptions::default() }, User::default());
        let resource = |group: &str, plural: &str| server.resources.lookup(group, "v1", plural).expect("built in");
        let secrets = resource("", "secrets");
        let secret = |name: &str| {
            json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name},
                "stringData": {"a": "b"}})
        };
        let made = create(&server, &secrets, "default", secret("a"), &options, &user).await.expect("it is new");
        let owned = json!({"f:data": {".": {}, "f:a": {}}, "f:type": {}});
        assert_eq!(owners(&made), [owned]);
        let target = Target { resource: &secrets, subresource: "", namespace: "default", name: "a" };
        let body = br#"{"stringData": {"c": "d"}}"#;
        let patched = update::patch(&server, target, "application/merge-patch+json", body, &options, &user).await;
        let patched = patched.expect("it is there").object;
        assert_eq!(patched.value()["data"], json!({"a": "Yg==", "c": "ZA=="}));
        assert_eq!(owners(&patched), [json!({"f:data": {".": {}, "f:a": {}, "f:c": {}}, "f:type": {}})]);
        // Who applies owns what was applied, by the names that it had there.
        let target = Target { name: "b", ..target };
        let (media, config) = ("application/apply-patch+yaml", secret("b").to_string());
        let applied = update::patch(&server, target, media, config.as_bytes(), &options, &user).await;
        let applied = applied.expect("it is new").object;
        assert_eq!(applied.value()["data"], json!({"a": "Yg=="}));
        assert_eq!(owners(&applied), [json!({"f:stringData": {"f:a": {}}})]);

        let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "n"}});
        let made = create(&server, &resource("", "namespaces"), "", namespace, &options, &user).await;
        let label = json!({"f:metadata": {"f:labels": {".": {}, "f:kubernetes.io/metadata.name": {}}}});
        assert_eq!(owners(&made.expect("it is new")), [label]);

        let containers = json!([{"name": "c", "image": "i"}]);
        let template = json!({"metadata": {"labels": {"team": "a"}},
            "spec": {"restartPolicy": "Never", "containers": containers}});
        let job = json!({"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "j"},
            "spec": {"template": template}});
        let made = create(&server, &resource("batch", "jobs"), "default", job, &options, &user).await;
        let made = made.expect("it is new");
        // A job is found by what its pods are found by; what is made up for it is nobody's.
        let labels = made.value()["metadata"]["labels"].take();
        assert_eq!((&labels["team"], &labels["job-name"]), (&"a".into(), &"j".into()));
        assert_eq!(owners(&made)[0]["f:metadata"], json!({"f:labels": {".": {}, "f:team": {}}}));
    }

    #[tokio::test]
    async fn a_namespace_with_a_generated_name_has_its_label() {
        let server = crate::serve::testing::server().await;
        let namespaces = server.resources.lookup("", "v1", "namespaces").expect("built in");
        let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"generateName": "n-"}});
        let made = create(&server, &namespaces, "", namespace, &WriteOptions::default(), &User::default()).await;
        let made = made.expect("it is new").value();
        assert_eq!(made["metadata"]["labels"]["kubernetes.io/metadata.name"], made["metadata"]["name"]);
    }
}
