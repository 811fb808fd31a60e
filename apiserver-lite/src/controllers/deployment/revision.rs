//! Versions of a deployment's template: finding and making the replica set of the current one, numbering, and throwing
//! away what is too old to go back to.

use serde_json::{Map, Value, json};

use super::{COMPONENT, DEPLOYMENT, DESIRED, Deployments, HASH_LABEL, HISTORY, MAXIMUM, OWNER, REPLICA_SET, REVISION};
use super::{Set, Work, ownership, rollout};
use crate::controllers::pods::{condition, controller_of};
use crate::status::{ApiError, Result};
use crate::write::DeleteOptions;

/// Annotations of a deployment that are not handed down to its replica sets.
const OWN: &[&str] = &[
    "kubectl.kubernetes.io/last-applied-configuration",
    REVISION,
    HISTORY,
    DESIRED,
    MAXIMUM,
    "deprecated.deployment.rollback.to",
];

/// Whether two templates make the same pods; the label that tells versions apart does not count.
pub(super) fn same_template(a: &Value, b: &Value) -> bool {
    without_hash(a) == without_hash(b)
}

fn without_hash(template: &Value) -> Value {
    let mut out = template.clone();
    if let Some(metadata) = out["metadata"].as_object_mut() {
        metadata.remove("creationTimestamp");
        if let Some(labels) = metadata.get_mut("labels").and_then(Value::as_object_mut) {
            labels.remove(HASH_LABEL);
            if labels.is_empty() {
                metadata.remove("labels");
            }
        }
    }
    out
}

/// A short name of a template's content, made of letters that form no words. Not upstream's number for the same template:
/// that one depends on how Go prints structures.
pub(in crate::controllers) fn hash(template: &Value, collisions: i64) -> String {
    let mut text = Vec::new();
    proto::json::write_sorted(template, &mut text);
    if collisions > 0 {
        text.extend(collisions.to_le_bytes());
    }
    // FNV-1a.
    let sum = text.iter().fold(0x811c_9dc5_u32, |sum, byte| (sum ^ u32::from(*byte)).wrapping_mul(0x0100_0193));
    const LETTERS: &[u8; 27] = b"bcdfghjklmnpqrstvwxz2456789";
    sum.to_string().bytes().map(|digit| char::from(LETTERS[usize::from(digit) % 27])).collect()
}

fn revision_of(set: &Set) -> i64 {
    set.annotation(REVISION).parse().unwrap_or(0)
}

impl Deployments {
    /// Numbers the current version, and makes its replica set where `create` says so.
    pub(super) async fn number(&self, work: &mut Work, create: bool) -> Result<()> {
        let newest = work.old.iter().map(revision_of).max().unwrap_or(0);
        let next = newest + 1;
        match work.new.clone() {
            Some(set) => {
                let mut wanted = set.value.clone();
                self.annotate(work, &mut wanted, next);
                wanted["spec"]["minReadySeconds"] = work.value["spec"]["minReadySeconds"].clone();
                if wanted["metadata"]["annotations"] != set.value["metadata"]["annotations"]
                    || wanted["spec"]["minReadySeconds"] != set.value["spec"]["minReadySeconds"]
                {
                    let key = &set.object.key;
                    let written = self.client.update(REPLICA_SET.resource, &key.namespace, &key.name, |value| {
                        value["metadata"]["annotations"] = wanted["metadata"]["annotations"].clone();
                        value["spec"]["minReadySeconds"] = wanted["spec"]["minReadySeconds"].clone();
                        Ok(())
                    });
                    work.new = Some(Set::new(written.await?));
                }
                if !work.value["spec"]["progressDeadlineSeconds"].is_null()
                    && condition(&work.value, "Progressing").is_none()
                {
                    let text = format!("Found new replica set \"{}\"", set.object.key.name);
                    self.progress(work, "True", "FoundNewReplicaSet", &text).await?;
                }
            }
            None if create => self.make(work, next).await?,
            None => return Ok(()),
        }
        let Some(number) = work.new.as_ref().map(|s| s.annotation(REVISION).to_owned()) else { return Ok(()) };
        if work.value["metadata"]["annotations"][REVISION] != number.as_str() {
            let key = work.object.key.clone();
            // Through the status: a number given by us is no new generation of what the user wants.
            let written = self.client.update_status(DEPLOYMENT.resource, &key.namespace, &key.name, |value| {
                value["metadata"]["annotations"][REVISION] = number.as_str().into();
                Ok(())
            });
            work.object = written.await?;
            work.value = work.object.value();
        }
        Ok(())
    }

    /// Annotations that a replica set has from its deployment.
    fn annotate(&self, work: &Work, set: &mut Value, next: i64) {
        let handed = work.value["metadata"]["annotations"].as_object().cloned().unwrap_or_default();
        let mut annotations: Map<String, Value> =
            set["metadata"]["annotations"].as_object().cloned().unwrap_or_default();
        annotations.extend(handed.into_iter().filter(|(key, _)| !OWN.contains(&key.as_str())));
        let number: i64 = annotations.get(REVISION).and_then(Value::as_str).and_then(|t| t.parse().ok()).unwrap_or(0);
        if number < next {
            if number > 0 {
                let mut history: Vec<&str> =
                    annotations.get(HISTORY).and_then(Value::as_str).unwrap_or_default().split(',').collect();
                history.retain(|h| !h.is_empty());
                let number = number.to_string();
                history.push(&number);
                let history = history.join(",");
                annotations.insert(HISTORY.into(), history.into());
            }
            annotations.insert(REVISION.into(), next.to_string().into());
        }
        let (surge, wanted) = (work.slack().0, work.replicas());
        annotations.insert(DESIRED.into(), wanted.to_string().into());
        annotations.insert(MAXIMUM.into(), (wanted + surge).to_string().into());
        set["metadata"]["annotations"] = annotations.into();
    }

    async fn make(&self, work: &mut Work, next: i64) -> Result<()> {
        let collisions = work.value["status"]["collisionCount"].as_i64().unwrap_or(0);
        let template = &work.value["spec"]["template"];
        let hash = hash(template, collisions);
        let name = format!("{}-{hash}", work.object.key.name);
        let mut template = template.clone();
        template["metadata"]["labels"][HASH_LABEL] = hash.as_str().into();
        let mut selector = work.value["spec"]["selector"].clone();
        selector["matchLabels"][HASH_LABEL] = hash.as_str().into();
        let replicas = rollout::size_of_new(work);
        let mut set = json!({
            "apiVersion": "apps/v1", "kind": "ReplicaSet",
            "metadata": {"name": name, "labels": template["metadata"]["labels"],
                "ownerReferences": [OWNER.reference(&work.object)]},
            "spec": {"replicas": replicas, "selector": selector, "template": template},
        });
        if !work.value["spec"]["minReadySeconds"].is_null() {
            set["spec"]["minReadySeconds"] = work.value["spec"]["minReadySeconds"].clone();
        }
        self.annotate(work, &mut set, next);
        let about = DEPLOYMENT.about(&work.object);
        match self.client.create(REPLICA_SET.resource, &work.object.key.namespace, set).await {
            Ok(made) => {
                if replicas > 0 {
                    let text = format!("Scaled up replica set {name} from 0 to {replicas}");
                    self.recorder.say(COMPONENT, about, "ScalingReplicaSet", text);
                }
                work.new = Some(Set::new(made));
                let text = format!("Created new replica set \"{name}\"");
                self.progress(work, "True", "NewReplicaSetCreated", &text).await
            }
            Err(error) if error.is_already_exists() => self.collide(work, &name, error).await,
            Err(error) => {
                let text = format!("Failed to create new replica set \"{name}\": {error}");
                self.progress(work, "False", "ReplicaSetCreateError", &text).await?;
                self.recorder.warn(COMPONENT, about, "ReplicaSetCreateError", text);
                Err(error)
            }
        }
    }

    /// The name is taken: by ourselves a moment ago, or by a template with the same hash.
    async fn collide(&self, work: &mut Work, name: &str, error: ApiError) -> Result<()> {
        let key = &work.object.key;
        if let Some(set) = self.client.get(REPLICA_SET.resource, &key.namespace, name).map(Set::new) {
            let ours = controller_of(&set.value).is_some_and(|c| c.uid == work.object.keys.uid);
            if ours && same_template(&set.value["spec"]["template"], &work.value["spec"]["template"]) {
                work.new = Some(set);
                return Ok(());
            }
        }
        let counted = self.client.update_status(DEPLOYMENT.resource, &key.namespace, &key.name, |value| {
            let count = value["status"]["collisionCount"].as_i64().unwrap_or(0);
            value["status"]["collisionCount"] = (count + 1).into();
            Ok(())
        });
        ownership::done(counted.await.map(|_| ()))?;
        Err(error)
    }

    /// Deletes the oldest replica sets that nobody will go back to.
    pub(super) async fn clean_up(&self, work: &Work) -> Result<()> {
        let limit = &work.value["spec"]["revisionHistoryLimit"];
        let Some(limit) = limit.as_i64().filter(|l| *l != i64::from(i32::MAX)) else { return Ok(()) };
        let idle = |s: &&Set| {
            s.replicas() == 0
                && s.status("replicas") == 0
                && s.value["metadata"]["generation"].as_i64() <= s.value["status"]["observedGeneration"].as_i64()
                && !s.object.keys.deleting
        };
        let surplus = work.old.len().saturating_sub(usize::try_from(limit).unwrap_or(usize::MAX));
        let mut old: Vec<&Set> = work.old.iter().collect();
        old.sort_by_key(|s| revision_of(s));
        for set in old.into_iter().take(surplus).filter(idle) {
            let options = DeleteOptions { propagation: Some("Background".into()), ..DeleteOptions::default() };
            self.client.delete_object(REPLICA_SET.resource, &set.object, options).await?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn templates_are_compared_without_the_hash_label() {
        let plain = json!({"metadata": {"labels": {"app": "a"}}, "spec": {"x": 1}});
        let mut labeled = plain.clone();
        labeled["metadata"]["labels"][HASH_LABEL] = "xyz".into();
        assert!(same_template(&plain, &labeled));
        labeled["spec"]["x"] = 2.into();
        assert!(!same_template(&plain, &labeled));
    }

    #[test]
    fn a_collision_changes_the_hash() {
        let template = json!({"spec": {"x": 1}});
        assert_eq!(hash(&template, 0), hash(&template, 0));
        assert_ne!(hash(&template, 0), hash(&template, 1));
        assert!(hash(&template, 0).chars().all(|c| !"aeiou0123".contains(c)));
    }
}
