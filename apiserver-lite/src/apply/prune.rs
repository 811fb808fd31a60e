//! Takes back what a manager applied before and does not apply any more, unless somebody else owns it.

use std::borrow::Cow;

use serde_json::Value;

use super::collect::{fields, with_parents};
use super::managed::Entry;
use super::merge::remove;
use super::set::Set;
use super::versions::between;
use super::view::BadItem;
use crate::resource::Resource;

/// The merged object without the fields that `last` had and nobody has now. `merged` is in the version of `own`.
///
/// # Errors
/// A list item without its keys.
pub fn prune(
    resource: &Resource,
    merged: Value,
    own: &Entry<'_>,
    others: &[Entry<'_>],
    last: Option<&Entry<'_>>,
) -> Result<Value, BadItem> {
    let Some(last) = last.filter(|l| !l.set().is_empty()) else { return Ok(merged) };
    let version = &*own.api_version;
    let Some(then) = between(resource, version, &last.api_version, &merged) else { return Ok(merged) };
    let applied = with_parents(then.set, then.id, &last.set());
    let mut pruned = then.value.clone().into_owned();
    remove(then.set, then.id, &mut pruned, &applied);

    // What anybody owns now comes back, in each version by itself.
    let mut owners: Vec<(&str, Set<'_>)> = vec![(&*last.api_version, Set::new())];
    for entry in others.iter().chain([own]) {
        match owners.iter_mut().find(|(v, _)| *v == &*entry.api_version) {
            Some((_, all)) => *all = all.union(&entry.set()),
            None => owners.push((&*entry.api_version, entry.set().into_owned())),
        }
    }
    let mut at = &*last.api_version;
    let mut whole = then.value.clone().into_owned();
    for (theirs, owned) in owners {
        let (Some(all), Some(left)) = (between(resource, at, theirs, &whole), between(resource, at, theirs, &pruned))
        else {
            continue;
        };
        let back = {
            let kept = with_parents(left.set, left.id, &fields(left.set, left.id, &left.value)?);
            let owned = with_parents(all.set, all.id, &owned);
            let mentioned = fields(all.set, all.id, &all.value)?;
            let gone = with_parents(all.set, all.id, &mentioned).difference(&kept).difference(&owned);
            let mut back = all.value.clone().into_owned();
            remove(all.set, all.id, &mut back, &gone);
            back
        };
        whole = all.value.into_owned();
        pruned = back;
        at = theirs;
    }

    // Of what is missing now, only that goes which this manager had.
    let Some(left) = between(resource, at, &last.api_version, &pruned) else { return Ok(merged) };
    let kept = with_parents(left.set, left.id, &fields(left.set, left.id, &left.value)?);
    let mentioned = with_parents(then.set, then.id, &fields(then.set, then.id, &then.value)?);
    let gone = mentioned.difference(&kept).intersection(&applied);
    let mut result = then.value.clone().into_owned();
    remove(then.set, then.id, &mut result, &gone);
    if &*last.api_version == version {
        return Ok(result);
    }
    let back = between(resource, &last.api_version, version, &result).map(|v| match v.value {
        Cow::Owned(value) => value,
        Cow::Borrowed(value) => value.clone(),
    });
    Ok(back.unwrap_or(merged))
}
