//! `resourceclaim-controller`: makes the ResourceClaims that pods ask for by a template, says so in the pods' status, and
//! gives back what is reserved for pods that are over.
//!
//! Follows `pkg/controller/resourceclaim`. Devices themselves are handed out by a scheduler.

use std::time::Duration;

use serde_json::{Value, json};

use super::events::Recorder;
use super::feed::Change;
use super::ownership::{done, is_terminating};
use super::pods::{PodDigest, is_terminal};
use super::queue::Queue;
use super::runner::Controller;
use crate::client::{Client, unchanged};
use crate::status::{ApiError, Result};
use crate::store::{Key, ObjectRef, ResourceId};
use crate::tree::list;
use crate::write::DeleteOptions;

pub const CLAIMS: &str = "resourceclaims.resource.k8s.io";
const TEMPLATES: &str = "resourceclaimtemplates.resource.k8s.io";
/// Which of its pod's claims a claim is.
const CLAIM_NAME: &str = "resource.kubernetes.io/pod-claim-name";
/// Keeps a claim that has devices.
pub const FINALIZER: &str = "resource.kubernetes.io/delete-protection";

pub struct ResourceClaims {
    client: Client,
    recorder: Recorder,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Work {
    /// Claims are made for a pod.
    Pod(Key),
    /// A claim may be given back.
    Claim(Key),
}

/// Names of the claims of a pod that are known by now.
fn claims(pod: &Value) -> impl Iterator<Item = &str> {
    let own = list(&pod["spec"], "resourceClaims").chain(list(&pod["status"], "resourceClaimStatuses"));
    own.filter_map(|claim| claim["resourceClaimName"].as_str())
}

/// The name of the claim that a pod's status gives for one of its entries.
pub(super) fn told<'a>(pod: &'a Value, entry: &str) -> Option<&'a str> {
    list(&pod["status"], "resourceClaimStatuses").find(|s| s["name"] == entry)?["resourceClaimName"].as_str()
}

/// Whether a claim is reserved for more than those that keep it.
fn is_surplus(claim: &Value, kept: &[Value]) -> bool {
    list(&claim["status"], "reservedFor").count() > kept.len()
}

impl ResourceClaims {
    pub fn new(client: Client, recorder: Recorder) -> Self {
        ResourceClaims { client, recorder }
    }

    /// The claim of one of a pod's entries; made where there is none yet.
    async fn claim(&self, pod: &ObjectRef, entry: &str, template: &str) -> Result<String> {
        let snapshot = self.client.store().snapshot(&ResourceId::from(CLAIMS));
        let made = |claim: &&ObjectRef| {
            claim.keys.owners.contains(&pod.keys.uid)
                && claim.without_owners()["metadata"]["annotations"][CLAIM_NAME] == entry
        };
        if let Some(claim) = snapshot.range(Some(&pod.key.namespace), None).find(made) {
            return Ok(claim.key.name.to_string());
        }
        let found = self.client.get(TEMPLATES, &pod.key.namespace, template);
        let Some(found) = found else {
            let why = ApiError::not_found("resource.k8s.io", "resourceclaimtemplates", template);
            let why = format!("resource claim template {}: {}", crate::status::quote(template), why.status().message);
            return Err(ApiError::internal(why));
        };
        let template = found.without_owners();
        let wanted = &template["spec"]["metadata"];
        let mut annotations = wanted["annotations"].as_object().cloned().unwrap_or_default();
        annotations.insert(CLAIM_NAME.into(), entry.into());
        let mut claim = json!({
            "apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "spec": template["spec"]["spec"],
            "metadata": {
                "generateName": format!("{}-{entry}-", pod.key.name), "annotations": annotations,
                "ownerReferences": [{"apiVersion": "v1", "kind": "Pod", "name": pod.key.name, "uid": pod.keys.uid,
                    "controller": true, "blockOwnerDeletion": true}],
            },
        });
        if wanted["labels"].is_object() {
            claim["metadata"]["labels"] = wanted["labels"].clone();
        }
        let made = self.client.create(CLAIMS, &pod.key.namespace, claim).await?;
        Ok(made.key.name.to_string())
    }

    async fn pod(&self, key: &Key) -> Result<()> {
        let Some(pod) = self.client.get("pods", &key.namespace, &key.name) else { return Ok(()) };
        if pod.keys.deleting || is_terminal(&pod) {
            return Ok(());
        }
        let value = pod.without_owners();
        let mut found = Vec::new();
        for claim in list(&value["spec"], "resourceClaims") {
            let (Some(entry), Some(template)) = (claim["name"].as_str(), claim["resourceClaimTemplateName"].as_str())
            else {
                continue;
            };
            let known = told(&value, entry).filter(|name| self.client.get(CLAIMS, &key.namespace, name).is_some());
            if known.is_some() {
                continue;
            }
            match self.claim(&pod, entry, template).await {
                Ok(name) => found.push(json!({"name": entry, "resourceClaimName": name})),
                Err(error) if is_terminating(&error) => return Ok(()),
                Err(error) => {
                    let text = format!("PodResourceClaim {entry}: {}", error.status().message);
                    let about = ("Pod", "v1", &pod);
                    self.recorder.warn("resource_claim", about, "FailedResourceClaimCreation", text);
                    return Err(error);
                }
            }
        }
        if found.is_empty() {
            return Ok(());
        }
        let written = self.client.update_status("pods", &key.namespace, &key.name, |value| {
            if value["metadata"]["uid"] != *pod.keys.uid {
                return Err(unchanged());
            }
            let mut all: Vec<Value> = list(&value["status"], "resourceClaimStatuses").cloned().collect();
            all.retain(|status| found.iter().all(|new| new["name"] != status["name"]));
            all.extend(found.iter().cloned());
            value["status"]["resourceClaimStatuses"] = all.into();
            Ok(())
        });
        done(written.await.map(|_| ())).map(|_| ())
    }

    /// Whether a claim is still reserved for somebody.
    fn is_reserved(&self, namespace: &str, consumer: &Value) -> bool {
        let group = consumer["apiGroup"].as_str().unwrap_or_default();
        if !group.is_empty() || consumer["resource"] != "pods" {
            // Who else may use claims gives them back itself.
            return true;
        }
        let pod = self.client.get("pods", namespace, consumer["name"].as_str().unwrap_or_default());
        pod.is_some_and(|pod| {
            let gone = is_terminal(&pod) || pod.keys.deleting && pod.field("spec.nodeName").is_empty();
            consumer["uid"] == *pod.keys.uid && !gone
        })
    }

    /// Gives back what is reserved for pods that are over. The devices go with the last of them, or with the claim: a
    /// scheduler gives a claim its finalizer and its devices before it reserves it, and that is no business of ours.
    async fn give_back(&self, key: &Key) -> Result<()> {
        let Some(claim) = self.client.get(CLAIMS, &key.namespace, &key.name) else { return Ok(()) };
        let reserved = |value: &Value| -> Vec<Value> {
            let all = list(&value["status"], "reservedFor");
            all.filter(|consumer| self.is_reserved(&key.namespace, consumer)).cloned().collect()
        };
        let value = claim.without_owners();
        let guarded = |value: &Value| list(&value["metadata"], "finalizers").any(|f| f == FINALIZER);
        let free = reserved(&value).is_empty();
        let surplus = is_surplus(&value, &reserved(&value));
        let deleting = claim.keys.deleting;
        let mut version = value["metadata"]["resourceVersion"].clone();
        if surplus || deleting && free && guarded(&value) && value["status"]["allocation"].is_object() {
            let written = self.client.update_status(CLAIMS, &key.namespace, &key.name, |value| {
                let kept = reserved(value);
                if !is_surplus(value, &kept) && !deleting {
                    return Err(unchanged());
                }
                let guarded = guarded(value);
                let Some(status) = value["status"].as_object_mut() else { return Err(unchanged()) };
                if kept.is_empty() {
                    status.remove("reservedFor");
                    if guarded {
                        status.remove("allocation");
                    }
                } else {
                    status.insert("reservedFor".into(), kept.into());
                }
                Ok(())
            });
            let written =
                written.await.map(|claim| version = claim.without_owners()["metadata"]["resourceVersion"].clone());
            done(written)?;
        }
        if free && (surplus || deleting) {
            let written = self.client.update(CLAIMS, &key.namespace, &key.name, |value| {
                // Since then a scheduler may have begun to allocate it again.
                let same = deleting || value["metadata"]["resourceVersion"] == version;
                if !same || !guarded(value) || value["status"]["allocation"].is_object() {
                    return Err(unchanged());
                }
                if let Some(all) = value["metadata"]["finalizers"].as_array_mut() {
                    all.retain(|finalizer| finalizer != FINALIZER);
                }
                Ok(())
            });
            done(written.await.map(|_| ()))?;
        }
        // A claim that was made for a pod goes when the pod is over, and not only with it.
        let owner = list(&value["metadata"], "ownerReferences").find(|o| o["controller"] == true && o["kind"] == "Pod");
        let over = owner.and_then(|owner| {
            let pod = self.client.get("pods", &key.namespace, owner["name"].as_str()?)?;
            Some(owner["uid"] == *pod.keys.uid && is_terminal(&pod))
        });
        if over == Some(true) && free && !claim.keys.deleting {
            self.client.delete_object(CLAIMS, &claim, DeleteOptions::default()).await?;
        }
        Ok(())
    }
}

impl Controller for ResourceClaims {
    const NAME: &'static str = "resourceclaim-controller";
    type Key = Work;

    fn watched(&self) -> Vec<ResourceId> {
        vec!["pods".into(), CLAIMS.into()]
    }

    fn observe(&mut self, change: Change<'_>, queue: &mut Queue<Work>) {
        let object = change.object;
        if change.resource == 1 {
            if !change.deleted() {
                queue.add(Work::Claim(object.key.clone()));
            }
            return;
        }
        if !PodDigest::of(object).asks_devices {
            return;
        }
        if !change.deleted() && !is_terminal(object) {
            return queue.add(Work::Pod(object.key.clone()));
        }
        for name in claims(&object.without_owners()) {
            queue.add(Work::Claim(Key::new(&object.key.namespace, name)));
        }
    }

    async fn sync(&mut self, work: &Work) -> Result<Option<Duration>> {
        match work {
            Work::Pod(key) => self.pod(key).await?,
            Work::Claim(key) => self.give_back(key).await?,
        }
        Ok(None)
    }
}
