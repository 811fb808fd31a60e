//! OwnerReferencesPermissionEnforcement: only who may delete an object may say whom it belongs to, and only who may
//! finalize an owner may make its deletion wait. Off by default, as upstream. Follows `plugin/pkg/admission/gc`.

use serde_json::Value;

use super::{Call, Operation};
use crate::auth::{Attributes, Decision};
use crate::request::RequestInfo;
use crate::status::Result;

fn owners(value: &Value) -> &[Value] {
    value["metadata"]["ownerReferences"].as_array().map_or(&[], Vec::as_slice)
}

pub fn validate(call: &Call<'_>, new: &Value) -> Result<()> {
    // Whoever binds a pod says nothing about its owners.
    if call.concerns("", "pods") && call.subresource == "binding" || call.user.name.is_empty() {
        return Ok(());
    }
    let before = call.old.map_or(&[][..], owners);
    if owners(new) == before {
        return Ok(());
    }
    let own = RequestInfo {
        is_resource: true,
        verb: "delete".into(),
        group: call.resource.group.to_string(),
        version: call.resource.version.to_string(),
        namespace: call.namespace.into(),
        resource: call.resource.plural.to_string(),
        subresource: call.subresource.into(),
        name: call.name.into(),
        ..RequestInfo::default()
    };
    let decision = decide(call, &own);
    if !decision.allowed {
        let why = format!("cannot set an ownerRef on a resource you can't delete: {}, <nil>", decision.reason);
        return Err(call.refuse(Some(new), why));
    }
    let blocked = |owner: &&Value| {
        let was = before.iter().find(|b| b["uid"] == owner["uid"]);
        owner["blockOwnerDeletion"] == true && was.is_none_or(|b| b["blockOwnerDeletion"] != true)
    };
    for owner in owners(new).iter().filter(blocked) {
        check_owner(call, new, owner)?;
    }
    Ok(())
}

fn check_owner(call: &Call<'_>, new: &Value, owner: &Value) -> Result<()> {
    let text = |key: &str| owner[key].as_str().unwrap_or_default();
    let (group, version) = text("apiVersion").split_once('/').unwrap_or(("", text("apiVersion")));
    let set = call.server.resources.current();
    let served = |r: &&std::sync::Arc<crate::resource::Resource>| {
        *r.group == *group && *r.version == *version && *r.kind == *text("kind")
    };
    let Some(resource) = set.all().iter().find(served) else {
        let why = format!(
            "cannot set blockOwnerDeletion in this case because cannot find RESTMapping for APIVersion {} Kind {}: no \
             matches for kind \"{}\" in version \"{}\"",
            text("apiVersion"),
            text("kind"),
            text("kind"),
            text("apiVersion")
        );
        return Err(call.refuse(Some(new), why));
    };
    let info = RequestInfo {
        is_resource: true,
        verb: "update".into(),
        group: group.into(),
        version: version.into(),
        namespace: if resource.namespaced { call.namespace.into() } else { String::new() },
        resource: resource.plural.to_string(),
        subresource: "finalizers".into(),
        name: text("name").into(),
        ..RequestInfo::default()
    };
    let decision = decide(call, &info);
    if decision.allowed {
        return Ok(());
    }
    let why = format!(
        "cannot set blockOwnerDeletion if an ownerReference refers to a resource you can't set finalizers on: {}, <nil>",
        decision.reason
    );
    Err(call.refuse(Some(new), why))
}

fn decide(call: &Call<'_>, info: &RequestInfo) -> Decision {
    debug_assert!(call.operation != Operation::Delete, "deletes say nothing about owners");
    call.server.authorizer.decide(&Attributes { user: call.user, info })
}
