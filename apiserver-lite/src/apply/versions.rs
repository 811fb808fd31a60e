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

/// Brings a stored object into a version; None for a version that is not served.
pub fn at<'a>(resource: &'a Resource, api_version: &str, stored: &'a Value) -> Option<Versioned<'a>> {
    if api_version == &*resource.storage_version {
        let (set, id) = (resource.stored.set(), resource.stored.id);
        return Some(Versioned { set, id, value: Cow::Borrowed(stored) });
    }
    if resource.custom {
        // Versions of a custom kind differ in schema alone.
        let same = api_version.split_once('/').is_some_and(|(group, _)| group == &*resource.group);
        let (set, id) = (resource.schema.set(), resource.schema.id);
        return same.then(|| Versioned { set, id, value: Cow::Borrowed(stored) });
    }
    let convert = match api_version {
        "events.k8s.io/v1" => versions::event_to_new,
        "autoscaling/v1" => versions::autoscaler_to_v1,
        _ => return None,
    };
    let (group, version) = api_version.split_once('/')?;
    let set = TypeSet::built_in();
    let id = set.kind(group, version, &resource.kind)?;
    let mut value = stored.clone();
    convert(&mut value);
    Some(Versioned { set, id, value: Cow::Owned(value) })
}
