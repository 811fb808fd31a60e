//! Applies a configuration to an object.

use proto::schema::{StructId, TypeSet};
use serde_json::{Map, Value};

use super::compare::{compare, same_struct};
use super::conflict::{self, Conflict};
use super::managed::{Entries, Entry, Operation};
use super::prune::prune;
use super::reconcile::reconcile;
use super::reset::Reset;
use super::track::{self, UNTRACKED, Writer};
use super::{check, collect, last_applied, merge, versions};
use crate::status::{ApiError, Result};

/// Who owns what an object held before anybody applied anything.
const BEFORE: &str = "before-first-apply";
/// The manager whose objects may have been applied by the client before.
const KUBECTL: &str = "kubectl";

/// An object and its type.
struct Typed<'a> {
    set: &'a TypeSet,
    id: StructId,
    value: &'a Value,
}

/// Why a configuration was not applied.
enum Refused<'a> {
    Conflicts(Vec<Conflict<'a>>),
    Error(ApiError),
}

impl From<ApiError> for Refused<'_> {
    fn from(error: ApiError) -> Self {
        Refused::Error(error)
    }
}

impl From<super::view::BadItem> for Refused<'_> {
    fn from(error: super::view::BadItem) -> Self {
        Refused::Error(untyped(error))
    }
}

fn untyped(text: impl std::fmt::Display) -> ApiError {
    ApiError::new(500, "", text.to_string())
}

/// Merges a configuration into an object, both in the version that the resource serves. None for `live` stands for an
/// object that is to be created. The result has its owners in it; it is not defaulted.
///
/// # Errors
/// 400 for a configuration of another kind, 409 for fields of others, 500 for one that the schema does not allow.
pub fn apply(writer: Writer<'_>, live: Option<&Value>, config: &Value, force: bool) -> Result<Value> {
    let resource = writer.resource;
    let nothing = Value::Object(Map::new());
    let stored = live.unwrap_or(&nothing);
    let version = resource.api_version();
    let (mut here, set, id) = match versions::at(resource, &version, stored) {
        Some(here) => (here.value.into_owned(), here.set, here.id),
        None => return Err(ApiError::internal(format!("{version} is not known"))),
    };
    let listed = track::take(&mut here);
    let entries = Entries::read(&listed).map_err(|e| untyped(format_args!("failed to decode managed fields: {e}")))?;
    check_kind(writer, config)?;
    let Some(members) = config.as_object() else { return Err(ApiError::bad_request("an object is expected")) };
    let mut entries = entries;
    // The schemas of built-in kinds are the program's.
    if resource.custom {
        reconcile(resource, &mut entries);
    }
    if entries.0.is_empty() {
        before_first(writer, &Typed { set, id, value: &here }, &mut entries)?;
    }
    if config["metadata"]["managedFields"].is_array() {
        return Err(ApiError::bad_request("metadata.managedFields must be nil"));
    }
    if let Some(complaints) = check::complaints(set, set.get(id), members) {
        let text = format!("failed to create typed patch object ({}): {complaints}", shown(writer, config));
        return Err(untyped(text));
    }
    let live = Typed { set, id, value: &here };
    let applied = match attempt(writer, &live, config, entries.clone(), force) {
        Err(Refused::Conflicts(conflicts)) if writer.manager == KUBECTL => {
            match last_applied::excuse(writer, set, id, &here, conflicts) {
                Ok(()) => attempt(writer, &live, config, entries, true),
                Err(left) => Err(Refused::Conflicts(left)),
            }
        }
        done => done,
    };
    let (mut value, owners) = match applied {
        Ok(done) => done,
        Err(Refused::Error(error)) => return Err(error),
        Err(Refused::Conflicts(conflicts)) => return Err(conflict::error(conflicts)),
    };
    if writer.manager == KUBECTL {
        last_applied::renew(&mut value, config);
    }
    track::put(&mut value, owners);
    Ok(value)
}

/// Kind and namespace/name of a configuration, for messages.
fn shown(writer: Writer<'_>, config: &Value) -> String {
    let resource = writer.resource;
    let text = |key: &str| config["metadata"][key].as_str().unwrap_or_default();
    format!("{}/{}; {}/{}, Kind={}", text("namespace"), text("name"), resource.group, resource.version, resource.kind)
}

fn check_kind(writer: Writer<'_>, config: &Value) -> Result<()> {
    let resource = writer.resource;
    let kind = config["kind"].as_str().unwrap_or_default();
    let api_version = config["apiVersion"].as_str().unwrap_or_default();
    if kind == &*resource.kind && api_version == resource.api_version() {
        return Ok(());
    }
    let parts: Vec<&str> = api_version.split('/').collect();
    let said = match parts[..] {
        ["" | "/"] => format!("/, Kind={kind}"),
        [version] => format!("/{version}, Kind={kind}"),
        [group, version] => format!("{group}/{version}, Kind={kind}"),
        _ => "/, Kind=".into(),
    };
    Err(ApiError::bad_request(format!("invalid object type: {said}")))
}

/// Gives what an object without owners holds to one of its own.
fn before_first<'a>(writer: Writer<'a>, live: &Typed<'a>, entries: &mut Entries<'a>) -> Result<()> {
    static NOTHING: std::sync::LazyLock<Value> = std::sync::LazyLock::new(|| Value::Object(Map::new()));
    let changes = compare(live.set, live.id, &NOTHING, live.value).map_err(untyped)?;
    let held = Reset::of(writer.resource, writer.subresource).filter(changes.changed).minus(&UNTRACKED);
    if !held.is_empty() {
        let mut entry = Writer { manager: BEFORE, ..writer }.entry(Operation::Update);
        entry.time = Some(track::now());
        entry.set_fields(held);
        entries.0.push(entry);
    }
    Ok(())
}

/// The object after an apply and its owners. It is the live one when nothing changes.
fn attempt<'a>(
    writer: Writer<'a>,
    live: &Typed<'a>,
    config: &'a Value,
    entries: Entries<'a>,
    force: bool,
) -> std::result::Result<(Value, Option<Value>), Refused<'a>> {
    let Typed { set, id, value: before } = *live;
    let version = writer.resource.api_version();
    let reset = Reset::of(writer.resource, writer.subresource);
    let mut merged = before.clone();
    merge::merge(set, id, &mut merged, config).map_err(|e| untyped(format_args!("failed to merge config: {e}")))?;
    let mut own = writer.entry(Operation::Apply);
    own.set_fields(reset.filter(collect::fields(set, id, config)?));
    let mut others = entries;
    let last = others.find(&own).map(|at| others.0.swap_remove(at));
    let now = prune(writer.resource, merged, &own, &others.0, last.as_ref())?;
    // A version of an owner that is not served any more is no version to compare in; such owners are forgotten.
    let mut kept = Vec::with_capacity(others.0.len() + 1);
    let mut conflicts = Vec::new();
    let mut groups: Vec<(String, Vec<Entry<'a>>)> = Vec::new();
    for entry in others.0 {
        match groups.iter_mut().find(|(v, _)| *v == *entry.api_version) {
            Some((_, group)) => group.push(entry),
            None => groups.push((entry.api_version.clone().into_owned(), vec![entry])),
        }
    }
    for (theirs, group) in groups {
        let (old, new) = if theirs == version {
            (None, None)
        } else {
            let resource = writer.resource;
            let old = versions::between(resource, &version, &theirs, before);
            match (old, versions::between(resource, &version, &theirs, &now)) {
                (Some(old), Some(new)) => (Some(old), Some(new)),
                _ => continue,
            }
        };
        let (set, id) = new.as_ref().map_or((set, id), |n| (n.set, n.id));
        let old = old.as_ref().map_or(before, |o| &*o.value);
        let new = new.as_ref().map_or(&now, |n| &*n.value);
        let changes = compare(set, id, old, new)?.filter(|s| reset.filter(s));
        for mut entry in group {
            let taken = entry.set().intersection(&changes.changed);
            if !taken.is_empty() || entry.set().overlaps(&changes.removed) {
                entry.set_fields(entry.set().difference(&changes.touched()));
            }
            if !taken.is_empty() {
                conflicts.push(Conflict::new(&entry, taken));
            }
            if !entry.set().is_empty() {
                kept.push(entry);
            }
        }
    }
    if !force && !conflicts.is_empty() {
        return Err(Refused::Conflicts(conflicts));
    }
    let equal = match (before.as_object(), now.as_object()) {
        (Some(before), Some(now)) => same_struct(set, id, before, now),
        _ => false,
    };
    own.time = if equal { last.and_then(|l| l.time) } else { Some(track::now()) };
    let fields = own.set().difference(&UNTRACKED);
    if !fields.is_empty() {
        own.set_fields(fields);
        kept.push(own);
    }
    let owners = Entries(kept).to_value();
    Ok((if equal { before.clone() } else { now }, owners))
}
