//! Revisions of a workload's template, kept as ControllerRevisions: which is the current one, and which are too old to keep.

use serde_json::{Value, json};

use super::ownership::{self, OwnerKind};
use super::pods::controller_of;
use crate::client::Client;
use crate::selectors::LabelSelector;
use crate::status::Result;
use crate::store::ObjectRef;
use crate::write::DeleteOptions;

pub const REVISIONS: &str = "controllerrevisions.apps";
pub const HASH_LABEL: &str = "controller-revision-hash";

/// A stored revision.
#[derive(Debug, Clone)]
pub struct Revision {
    pub object: ObjectRef,
    pub number: i64,
    /// The patch that brings the template back.
    pub data: Value,
}

impl Revision {
    fn read(object: &ObjectRef) -> Self {
        let value = object.value();
        Revision {
            object: object.clone(),
            number: value["revision"].as_i64().unwrap_or(0),
            data: value["data"].clone(),
        }
    }

    pub fn name(&self) -> &str {
        &self.object.key.name
    }

    /// What pods of this revision are labelled with.
    pub fn hash(&self) -> &str {
        self.object.label(HASH_LABEL).unwrap_or_default()
    }

    /// The template that it stands for.
    pub fn template(&self) -> Value {
        let mut template = self.data["spec"]["template"].clone();
        if let Some(map) = template.as_object_mut() {
            map.remove("$patch");
        }
        template
    }
}

/// The revisions of a workload, oldest first.
pub fn list(client: &Client, owner: &ObjectRef) -> Vec<Revision> {
    let snapshot = client.store().snapshot(&REVISIONS.into());
    let mine = snapshot.range(Some(&owner.key.namespace), None).filter(|r| {
        r.keys.owners.contains(&owner.keys.uid) && controller_of(&r.value()).is_some_and(|c| c.uid == owner.keys.uid)
    });
    let mut out: Vec<Revision> = mine.map(Revision::read).collect();
    out.sort_by(|a, b| (a.number, a.name()).cmp(&(b.number, b.name())));
    out
}

/// The revisions of a workload, those that match and have no owner taken in: what an earlier one of its name left behind,
/// whose pods are taken in as well.
///
/// # Errors
/// As an update.
pub async fn claim(
    client: &Client,
    kind: OwnerKind,
    owner: &ObjectRef,
    selector: &LabelSelector,
) -> Result<Vec<Revision>> {
    let snapshot = client.store().snapshot(&REVISIONS.into());
    let orphans = snapshot.range(Some(&owner.key.namespace), None).filter(|revision| {
        !owner.keys.deleting
            && !revision.keys.deleting
            && !revision.keys.owners.contains(&owner.keys.uid)
            && selector.matches(&revision.keys.labels)
            && controller_of(&revision.value()).is_none()
    });
    for orphan in orphans {
        ownership::adopt(client, kind, owner, REVISIONS, orphan).await?;
    }
    Ok(list(client, owner))
}

/// The revision of the current template, made or brought to the front where need be.
///
/// # Errors
/// As a write.
pub async fn current(
    client: &Client,
    kind: OwnerKind,
    owner: &ObjectRef,
    value: &Value,
    revisions: &mut Vec<Revision>,
) -> Result<Revision> {
    let mut template = value["spec"]["template"].clone();
    template["$patch"] = "replace".into();
    let data = json!({"spec": {"template": template}});
    let next = revisions.last().map_or(1, |r| r.number + 1);
    if let Some(at) = revisions.iter().rposition(|r| r.data == data) {
        if at + 1 == revisions.len() {
            return Ok(revisions[at].clone());
        }
        // Gone back to: it is the newest again.
        let key = &revisions[at].object.key;
        let written = client.update(REVISIONS, &key.namespace, &key.name, |value| {
            value["revision"] = next.into();
            Ok(())
        });
        let revision = Revision::read(&written.await?);
        revisions.remove(at);
        revisions.push(revision.clone());
        return Ok(revision);
    }
    let mut collisions = value["status"]["collisionCount"].as_i64().unwrap_or(0);
    loop {
        let hash = super::deployment::hash(&data, collisions);
        let name = format!("{}-{hash}", owner.key.name);
        let mut labels = value["spec"]["template"]["metadata"]["labels"].clone();
        labels[HASH_LABEL] = hash.as_str().into();
        let revision = json!({"apiVersion": "apps/v1", "kind": "ControllerRevision", "data": data, "revision": next,
            "metadata": {"name": name, "labels": labels, "ownerReferences": [kind.reference(owner)]}});
        match client.create(REVISIONS, &owner.key.namespace, revision).await {
            Err(error) if error.is_already_exists() => {
                let taken = client.get(REVISIONS, &owner.key.namespace, &name).map(|o| Revision::read(&o));
                match taken {
                    Some(taken) if taken.data == data && taken.object.keys.owners.contains(&owner.keys.uid) => {
                        return Ok(taken);
                    }
                    _ if collisions > 16 => return Err(error),
                    _ => collisions += 1,
                }
            }
            made => {
                let revision = Revision::read(&made?);
                revisions.push(revision.clone());
                return Ok(revision);
            }
        }
    }
}

/// Deletes the oldest revisions that no pod and nobody else needs.
///
/// # Errors
/// As a delete.
pub async fn clean_up(client: &Client, value: &Value, revisions: &[Revision], used: &[&str]) -> Result<()> {
    let limit = value["spec"]["revisionHistoryLimit"].as_i64().unwrap_or(10);
    let limit = usize::try_from(limit).unwrap_or(usize::MAX);
    let unused: Vec<&Revision> =
        revisions.iter().filter(|r| !used.contains(&r.name()) && !used.contains(&r.hash())).collect();
    for old in unused.iter().take(unused.len().saturating_sub(limit)) {
        client.delete_object(REVISIONS, &old.object, DeleteOptions::default()).await?;
    }
    Ok(())
}

/// Pods of a workload: owned ones that match, and orphans taken in.
///
/// # Errors
/// As an update.
pub async fn claim_pods(
    client: &Client,
    kind: OwnerKind,
    owner: &ObjectRef,
    selector: &LabelSelector,
    pods: &super::index::Index,
    fits: impl Fn(&ObjectRef) -> bool,
) -> Result<Vec<ObjectRef>> {
    let mut mine = Vec::new();
    for pod in pods.get(&owner.keys.uid) {
        let digest = super::pods::PodDigest::of(pod);
        if digest.controller.as_ref().is_none_or(|c| c.uid != owner.keys.uid) {
            continue;
        }
        if selector.matches(&pod.keys.labels) && fits(pod) {
            mine.push(pod.clone());
        } else if !owner.keys.deleting {
            ownership::release(client, owner, "pods", pod).await?;
        }
    }
    if owner.keys.deleting {
        return Ok(mine);
    }
    let orphans = pods.get("").filter(|p| p.key.namespace == owner.key.namespace && super::pods::is_active(p));
    for orphan in orphans.filter(|p| selector.matches(&p.keys.labels) && fits(p)) {
        if ownership::adopt(client, kind, owner, "pods", orphan).await? {
            mine.push(orphan.clone());
        }
    }
    Ok(mine)
}
