//! Objects in the version that an owner's fields are named in, where a kind is served in several.

use std::borrow::Cow;

use proto::schema::{StructId, TypeSet};
use serde_json::Value;

use crate::resource::{Resource, versions};

/// An object in some version, with its type.
pub struct Versioned<'a> {
    pub set: &'a TypeSet,
    pub id: StructId,
    pub value: Cow<'a, Value>,
}

/// The type of a resource's objects in a version.
pub fn typed<'a>(resource: &'a Resource, api_version: &str) -> Option<(&'a TypeSet, StructId)> {
    if api_version == &*resource.storage_version {
        return Some((resource.stored.set(), resource.stored.id));
    }
    let (group, version) = api_version.split_once('/')?;
    if resource.custom {
        // Versions of a custom kind differ in schema alone.
        return (group == &*resource.group).then(|| (resource.schema.set(), resource.schema.id));
    }
    let set = TypeSet::built_in();
    (group == &*resource.group || api_version == "events.k8s.io/v1").then_some(())?;
    Some((set, set.kind(group, version, &resource.kind)?))
}

/// Brings a stored object into a version; None for a version that is not served.
pub fn at<'a>(resource: &'a Resource, api_version: &str, stored: &'a Value) -> Option<Versioned<'a>> {
    between(resource, &resource.storage_version, api_version, stored)
}

/// Brings an object from one version into another; None for a version that is not served.
pub fn between<'a>(resource: &'a Resource, from: &str, to: &str, value: &'a Value) -> Option<Versioned<'a>> {
    let (set, id) = typed(resource, to)?;
    if from == to || resource.custom {
        return Some(Versioned { set, id, value: Cow::Borrowed(value) });
    }
    let mut value = value.clone();
    match from {
        "events.k8s.io/v1" => versions::event_to_old(&mut value),
        "autoscaling/v1" => versions::autoscaler_to_v2(&mut value),
        "resource.k8s.io/v1beta1" => versions::devices_from_v1beta1(&mut value),
        _ => {}
    }
    match to {
        "events.k8s.io/v1" => versions::event_to_new(&mut value),
        "autoscaling/v1" => versions::autoscaler_to_v1(&mut value),
        "resource.k8s.io/v1beta1" => versions::devices_to_v1beta1(&mut value),
        _ => {}
    }
    if let Some(said) = value.get_mut("apiVersion") {
        *said = to.into();
    }
    Some(Versioned { set, id, value: Cow::Owned(value) })
}
