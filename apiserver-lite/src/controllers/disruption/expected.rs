//! How many pods the owners of a budget's pods expect, and how many of them have to be healthy.
//!
//! Follows `getExpectedPodCount` of `pkg/controller/disruption/disruption.go`: of a budget that speaks in shares or of what
//! may be missing, every pod that has an owner has to have one with a size, or nothing is known at all.

use std::collections::{HashMap, HashSet};

use serde_json::Value;

use crate::client::Client;
use crate::controllers::ownership::number_or_percent;
use crate::controllers::pods::{PodDigest, controller_of};
use crate::status::quote;
use crate::store::ObjectRef;

/// An owner of pods, by its uid, and the pods it is to have.
pub(super) type Sized = (Box<str>, i64);

#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Needs {
    pub expected: i64,
    pub healthy: i64,
    /// Pods that nobody owns were left out of the count.
    pub unmanaged: bool,
}

impl Needs {
    /// What a budget's spec makes of its pods; `find` looks up the owner of one.
    ///
    /// # Errors
    /// Why that cannot be said, in upstream's words.
    pub fn of(
        spec: &Value,
        pods: &[ObjectRef],
        find: impl Fn(&ObjectRef) -> Result<Option<Sized>, String>,
    ) -> Result<Self, String> {
        if !spec["maxUnavailable"].is_null() {
            let (expected, unmanaged) = sizes(pods, find)?;
            let unavailable = number_or_percent(&spec["maxUnavailable"], expected, true);
            return Ok(Needs { expected, healthy: (expected - unavailable).max(0), unmanaged });
        }
        if let minimum @ Value::String(_) = &spec["minAvailable"] {
            let (expected, unmanaged) = sizes(pods, find)?;
            return Ok(Needs { expected, healthy: number_or_percent(minimum, expected, true), unmanaged });
        }
        let expected = i64::try_from(pods.len()).unwrap_or(i64::MAX);
        Ok(Needs { expected, healthy: spec["minAvailable"].as_i64().unwrap_or(1), unmanaged: false })
    }
}

/// The sizes of all owners together, and whether there are pods without one.
fn sizes(
    pods: &[ObjectRef],
    find: impl Fn(&ObjectRef) -> Result<Option<Sized>, String>,
) -> Result<(i64, bool), String> {
    let (mut sizes, mut seen, mut unmanaged) = (HashMap::new(), HashSet::new(), false);
    for pod in pods {
        let digest = PodDigest::of(pod);
        let Some(owner) = &digest.controller else {
            unmanaged = true;
            continue;
        };
        if !seen.insert(owner.uid.clone()) {
            continue;
        }
        // Replica sets of one deployment count once, as that deployment.
        let (uid, size) = find(pod)?.ok_or_else(|| format!("found no controllers for pod {}", quote(&pod.key.name)))?;
        sizes.insert(uid, size);
    }
    Ok((sizes.values().copied().fold(0, i64::saturating_add), unmanaged))
}

/// The owner of a pod with the size it is to have: a deployment where that is above a replica set, else whatever has a
/// scale, custom resources included.
///
/// # Errors
/// When the owner is of a kind that nobody serves, or that has no scale.
pub(super) fn owner(client: &Client, pod: &ObjectRef) -> Result<Option<Sized>, String> {
    let value = pod.without_owners();
    let owners = value["metadata"]["ownerReferences"].as_array().into_iter().flatten();
    let Some(reference) = owners.into_iter().find(|o| o["controller"] == true) else { return Ok(None) };
    let text = |key: &str| reference[key].as_str().unwrap_or_default();
    let (api_version, kind) = (text("apiVersion"), text("kind"));
    let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
    let set = client.server().resources.current();
    // A version that is no longer served stands for those that are.
    let any = || set.all().iter().find(|r| *r.group == *group && *r.kind == *kind).cloned();
    let resource = set
        .by_kind(group, version, kind)
        .or_else(any)
        .ok_or_else(|| format!("no matches for kind {} in version {}", quote(kind), quote(api_version)))?;
    if resource.subresource("scale").is_none() {
        return Err(format!("{} does not implement the scale subresource", resource.storage.0));
    }
    let found = client.get(&resource.storage.0, &pod.key.namespace, text("name"));
    let Some(found) = found.filter(|o| *o.keys.uid == *text("uid")) else { return Ok(None) };
    let value = found.without_owners();
    if &*resource.storage.0 == "replicasets.apps"
        && let Some(above) = controller_of(&value).filter(|c| &*c.kind == "Deployment")
        && let Some(deployment) = client.get("deployments.apps", &pod.key.namespace, &above.name)
        && deployment.keys.uid == above.uid
    {
        let size = deployment.without_owners()["spec"]["replicas"].as_i64().unwrap_or(1);
        return Ok(Some((above.uid, size)));
    }
    let own = resource.definition.as_ref().and_then(|d| d.scale.as_ref());
    let scale = crate::write::scale_of(own, &value).map_err(|error| error.status().message.clone())?;
    Ok(Some((found.keys.uid.clone(), scale["spec"]["replicas"].as_i64().unwrap_or(0))))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::controllers::disruption::tests::pod;

    fn owned(name: &str, owner: &str) -> ObjectRef {
        let owner = json!({"apiVersion": "v1", "kind": "X", "name": owner, "uid": owner, "controller": true});
        pod(name, json!({"metadata": {"ownerReferences": [owner]}}))
    }

    fn needs(spec: &Value, pods: &[ObjectRef], owners: &[(&str, i64)]) -> Result<Needs, String> {
        Needs::of(spec, pods, |pod| {
            let digest = PodDigest::of(pod);
            let uid = digest.controller.as_ref().map_or("", |c| &*c.uid);
            match uid {
                "job" => Err("jobs.batch does not implement the scale subresource".into()),
                uid => Ok(owners.iter().find(|(name, _)| *name == uid).map(|(name, size)| ((*name).into(), *size))),
            }
        })
    }

    /// Such a budget allowed nothing and did not say why.
    #[test]
    fn an_owner_without_a_size_makes_shares_unknown_but_not_numbers() {
        let pods = [owned("a", "set"), owned("b", "job")];
        let sizes = [("set", 4)];
        let share = json!({"minAvailable": "50%"});
        let why = "jobs.batch does not implement the scale subresource".to_owned();
        assert_eq!(needs(&share, &pods, &sizes), Err(why.clone()));
        assert_eq!(needs(&json!({"maxUnavailable": 1}), &pods, &sizes), Err(why));
        let all = Needs { expected: 2, healthy: 1, unmanaged: false };
        assert_eq!(needs(&json!({"minAvailable": 1}), &pods, &sizes), Ok(all));
        let gone = Err("found no controllers for pod \"a\"".to_owned());
        assert_eq!(needs(&share, &[owned("a", "gone")], &sizes), gone);
    }

    #[test]
    fn owners_count_once_and_pods_without_one_are_told_of() {
        let pods = [owned("a", "set"), owned("b", "set"), owned("c", "other")];
        let sizes = [("set", 4), ("other", 3)];
        let share = json!({"minAvailable": "50%"});
        assert_eq!(needs(&share, &pods, &sizes), Ok(Needs { expected: 7, healthy: 4, unmanaged: false }));
        let bare = [pod("x", json!({})), owned("a", "set")];
        let missing = json!({"maxUnavailable": 1});
        assert_eq!(needs(&missing, &bare, &sizes), Ok(Needs { expected: 4, healthy: 3, unmanaged: true }));
    }
}
