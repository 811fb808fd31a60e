//! Claims and volumes: which volume a claim can have, and `persistentvolume-binder-controller`, which binds the two.
//!
//! A binding is written in four steps, each of which can be repeated: the volume's reference to its claim, the volume's
//! phase, the claim's volume, the claim's phase. A volume that refers to a claim is that claim's, whatever comes between.

mod fit;
mod provision;

use std::sync::Arc;
use std::time::Duration;

use proto::quantity::Quantity;
use serde_json::{Value, json};

use self::provision::Capacities;
pub use self::provision::Provision;
use super::events::Recorder;
use super::feed::{Change, Feed};
use super::ownership::done;
use super::queue::Queue;
use super::runner::Controller;
use crate::admission::storage::{class_of, default_storage_class_name};
use crate::client::{Client, unchanged};
use crate::selectors::{LabelSelector, NodeTerm, node_terms};
use crate::status::{ApiError, Result, quote};
use crate::store::{Key, ObjectRef, ResourceId, Store};

const CLAIMS: &str = "persistentvolumeclaims";
const VOLUMES: &str = "persistentvolumes";
const CLASSES: &str = "storageclasses.storage.k8s.io";
const COMPONENT: &str = "persistentvolume-controller";
const COMPLETED: &str = "pv.kubernetes.io/bind-completed";
const BY_CONTROLLER: &str = "pv.kubernetes.io/bound-by-controller";
const SELECTED_NODE: &str = "volume.kubernetes.io/selected-node";
const PROVISIONERS: [&str; 2] =
    ["volume.kubernetes.io/storage-provisioner", "volume.beta.kubernetes.io/storage-provisioner"];
const NO_PROVISIONER: &str = "kubernetes.io/no-provisioner";
/// How long a pod waits for its volumes, as the scheduler's `bindTimeoutSeconds`.
const BIND_TIMEOUT: Duration = Duration::from_secs(600);

/// A volume that fits a claim.
#[derive(Debug)]
pub struct Lying {
    pub name: Box<str>,
    /// Where it lies; None for one that can be used everywhere.
    pub place: Option<Box<[NodeTerm]>>,
}

/// What an unbound claim could have.
#[derive(Debug)]
pub struct Candidates {
    /// The claim's name.
    pub claim: Box<str>,
    /// What the claim asks for.
    pub size: Quantity,
    /// The volumes that fit, the best first.
    pub lying: Vec<Lying>,
    /// Or one is made, where that can be done.
    pub made: Option<Provision>,
    /// The node that one is being made for already, and the only one then.
    pub promised: Option<Box<str>>,
}

/// What a claim of a pod gets on the pod's node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Choice {
    /// The claim's name.
    pub claim: Box<str>,
    /// A volume that is there; None for one that is made.
    pub volume: Option<Box<str>>,
}

/// What each of some unbound claims, told with their classes, could have. Volumes are read once for all of them.
pub fn candidates(store: &Store, claims: &[(Arc<Value>, Arc<Value>)]) -> Vec<Candidates> {
    if claims.is_empty() {
        return Vec::new();
    }
    let mut fitting: Vec<Vec<((bool, Quantity), Lying)>> = claims.iter().map(|_| Vec::new()).collect();
    let snapshot = store.snapshot(&VOLUMES.into());
    for volume in snapshot.range(None, None) {
        let value = volume.without_owners();
        for ((claim, _), fitting) in claims.iter().zip(&mut fitting) {
            if suits(volume, &value, claim) {
                let required = &value["spec"]["nodeAffinity"]["required"];
                let place = required.is_object().then(|| node_terms(required));
                fitting.push((rank(&value), Lying { name: volume.key.name.clone(), place }));
            }
        }
    }
    let capacities = Capacities::default();
    let mut out = Vec::new();
    for ((claim, class), mut fitting) in claims.iter().zip(fitting) {
        let provisions = class["provisioner"].as_str().is_some_and(|p| p != NO_PROVISIONER);
        let made = provisions.then(|| Provision::of(store, claim, class, &capacities));
        // Of a class that nobody makes volumes of, an earlier version named a node as well.
        let promised: Option<Box<str>> = promised(claim).filter(|_| provisions).map(Into::into);
        // One more volume would be lost when the one that is being made comes.
        fitting.retain(|_| promised.is_none());
        fitting.sort_by_key(|(rank, _)| *rank);
        out.push(Candidates {
            claim: claim["metadata"]["name"].as_str().unwrap_or_default().into(),
            size: wanted(claim),
            lying: fitting.into_iter().map(|(_, lying)| lying).collect(),
            made,
            promised,
        });
    }
    out
}

/// The node that a volume is made for. A provisioner that cannot do it there takes the name away.
fn promised(claim: &Value) -> Option<&str> {
    claim["metadata"]["annotations"][SELECTED_NODE].as_str()
}

/// What a claim asks for.
fn wanted(claim: &Value) -> Quantity {
    amount(&claim["spec"]["resources"]["requests"]["storage"])
}

/// Which of the volumes that suit a claim is taken: the least, which is one reserved for it or the smallest.
fn rank(volume: &Value) -> (bool, Quantity) {
    (!volume["spec"]["claimRef"].is_object(), amount(&volume["spec"]["capacity"]["storage"]))
}

fn amount(value: &Value) -> Quantity {
    value.as_str().and_then(|t| t.parse().ok()).unwrap_or(Quantity::ZERO)
}

/// Whether a volume can be given to a claim: free or reserved for it, large enough, of its class and modes.
fn suits(volume: &ObjectRef, value: &Value, claim: &Value) -> bool {
    if volume.keys.deleting
        || !fit::is_large_enough(value, claim)
        || !fit::has_volume_mode(value, claim)
        || !fit::has_attributes_class(value, claim)
    {
        return false;
    }
    if value["spec"]["claimRef"].is_object() {
        return reserved(value, claim);
    }
    let selector = &claim["spec"]["selector"];
    value["status"]["phase"] == "Available"
        && fit::has_class(value, claim)
        && fit::has_access_modes(value, claim)
        && (!selector.is_object() || LabelSelector::parse(selector).matches(&volume.keys.labels))
}

/// The volume refers to this claim, by name at least.
fn reserved(volume: &Value, claim: &Value) -> bool {
    let reference = &volume["spec"]["claimRef"];
    let same = |key: &str| reference[key] == claim["metadata"][key];
    let uid = reference["uid"].as_str().unwrap_or_default();
    same("namespace") && same("name") && (uid.is_empty() || same("uid"))
}

/// The volume for a claim: one reserved for it, or the smallest that suits; `node` has to reach it.
fn choose(store: &Store, claim: &Value, node: Option<&ObjectRef>) -> Option<ObjectRef> {
    let snapshot = store.snapshot(&VOLUMES.into());
    let all = snapshot.range(None, None).map(|v| (v, v.without_owners()));
    let fitting = all.filter(|(v, value)| suits(v, value, claim));
    let reachable = fitting.filter(|(_, value)| node.is_none_or(|node| reaches(value, node)));
    reachable.min_by_key(|(_, value)| rank(value)).map(|(volume, _)| volume.clone())
}

/// Whether a volume can be used on a node.
fn reaches(volume: &Value, node: &ObjectRef) -> bool {
    let required = &volume["spec"]["nodeAffinity"]["required"];
    !required.is_object() || node_terms(required).iter().any(|t| t.matches(&node.keys.labels, &node.key.name))
}

/// The volume that a claim names: the one that it has, or is to have.
fn volume_of(claim: &Value) -> Option<&str> {
    claim["spec"]["volumeName"].as_str().filter(|name| !name.is_empty())
}

/// Whether a claim has the volume that it names.
pub fn is_bound(claim: &Value) -> bool {
    volume_of(claim).is_some() && !claim["metadata"]["annotations"][COMPLETED].is_null()
}

fn read_claim(client: &Client, namespace: &str, name: &str) -> Result<Value> {
    let claim = client.get(CLAIMS, namespace, name).ok_or_else(|| ApiError::not_found("", CLAIMS, name))?;
    Ok(claim.value())
}

/// Has a pod's claims given the volumes that were chosen for its node, or has those made.
///
/// # Errors
/// When a claim or a volume is gone, or the volume is another claim's.
pub async fn give(client: &Client, namespace: &str, choices: &[Choice], node: &str) -> Result<()> {
    for Choice { claim: name, volume } in choices {
        let claim = read_claim(client, namespace, name)?;
        // It has what it names, or the binder is about to give it that.
        if volume_of(&claim).is_some() {
            continue;
        }
        if let Some(volume) = volume {
            let found = client.get(VOLUMES, "", volume).ok_or_else(|| ApiError::not_found("", VOLUMES, volume))?;
            // The binder does the rest, as for any volume that refers to a claim.
            refer(client, &found, &claim).await?;
            continue;
        }
        let written = client.update(CLAIMS, namespace, name, |value| {
            if promised(value) == Some(node) {
                return Err(unchanged());
            }
            value["metadata"]["annotations"][SELECTED_NODE] = node.into();
            Ok(())
        });
        done(written.await.map(|_| ()))?;
    }
    Ok(())
}

/// Waits until a pod's claims have what [`give`] gave them.
///
/// # Errors
/// When a claim is gone or is not bound after ten minutes, or what it is bound to cannot be used on the node.
pub async fn wait(client: &Client, namespace: &str, choices: &[Choice], node: &str) -> Result<()> {
    let read_node = || client.get("nodes", "", node).ok_or_else(|| ApiError::not_found("", "nodes", node));
    let failed = |why: String| ApiError::new(500, "", format!("binding volumes: {why}"));
    let mut feed = Feed::open(client.store(), &[CLAIMS.into()]);
    let all_bound = async {
        loop {
            let (mut waits, at) = (false, read_node()?);
            for Choice { claim: name, volume } in choices {
                let claim = read_claim(client, namespace, name)?;
                let (bound, named) = (is_bound(&claim), volume_of(&claim));
                // The provisioner's word that it cannot be done there: the pod is to go elsewhere.
                if volume.is_none() && named.is_none() && promised(&claim) != Some(node) {
                    return Err(failed(format!("provisioning failed for PVC {}", quote(name))));
                }
                let volume = named.and_then(|volume| client.get(VOLUMES, "", volume));
                // It may have been made elsewhere, or the node is no longer what it was.
                if let Some(volume) = volume.as_ref().filter(|volume| !reaches(&volume.without_owners(), &at)) {
                    let (volume, node) = (quote(&volume.key.name), quote(node));
                    let why = "no matching NodeSelectorTerms";
                    return Err(failed(format!("pv {volume} node affinity doesn't match node {node}: {why}")));
                }
                waits |= !bound || volume.is_none();
            }
            if !waits {
                return Ok(());
            }
            feed.changed().await;
            if feed.drain(|_| {}).is_err() {
                feed = Feed::open(client.store(), &[CLAIMS.into()]);
            }
        }
    };
    match tokio::time::timeout(BIND_TIMEOUT, all_bound).await {
        Ok(result) => result,
        Err(_) => Err(ApiError::new(504, "Timeout", "binding volumes: context deadline exceeded")),
    }
}

/// Gives a volume to a claim.
async fn refer(client: &Client, volume: &ObjectRef, claim: &Value) -> Result<()> {
    let written = client.update(VOLUMES, "", &volume.key.name, |value| {
        let before = value["spec"]["claimRef"].clone();
        if before.is_object() && !reserved(value, claim) {
            return Err(ApiError::conflict("", VOLUMES, &volume.key.name, "the volume is bound to another claim"));
        }
        if before["uid"] == claim["metadata"]["uid"] {
            return Err(unchanged());
        }
        let metadata = &claim["metadata"];
        value["spec"]["claimRef"] = json!({"kind": "PersistentVolumeClaim", "apiVersion": "v1",
            "namespace": metadata["namespace"], "name": metadata["name"], "uid": metadata["uid"],
            "resourceVersion": metadata["resourceVersion"]});
        if !before.is_object() {
            value["metadata"]["annotations"][BY_CONTROLLER] = "yes".into();
        }
        Ok(())
    });
    done(written.await.map(|_| ())).map(|_| ())
}

/// A claim or a volume that is to be looked at.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Work {
    Claim(Key),
    Volume(Box<str>),
}

pub struct Binder {
    client: Client,
    recorder: Recorder,
}

impl Binder {
    pub fn new(client: Client, recorder: Recorder) -> Self {
        Binder { client, recorder }
    }
}

impl Controller for Binder {
    const NAME: &'static str = "persistentvolume-binder-controller";
    type Key = Work;

    fn watched(&self) -> Vec<ResourceId> {
        [CLAIMS, VOLUMES, CLASSES].map(Into::into).into()
    }

    fn observe(&mut self, change: Change<'_>, queue: &mut Queue<Work>) {
        let key = &change.object.key;
        match change.resource {
            0 => {
                queue.add(Work::Claim(key.clone()));
                if let Some(volume) = change.object.value()["spec"]["volumeName"].as_str().filter(|v| !v.is_empty()) {
                    queue.add(Work::Volume(volume.into()));
                }
            }
            1 => {
                queue.add(Work::Volume(key.name.clone()));
                let value = change.object.value();
                let reference = &value["spec"]["claimRef"];
                if reference.is_object() {
                    let text = |key: &str| reference[key].as_str().unwrap_or_default();
                    queue.add(Work::Claim(Key::new(text("namespace"), text("name"))));
                } else if value["status"]["phase"] == "Available" {
                    self.queue_pending(queue);
                }
            }
            _ => self.queue_pending(queue),
        }
    }

    async fn sync(&mut self, work: &Work) -> Result<Option<Duration>> {
        match work {
            Work::Claim(key) => self.sync_claim(key).await?,
            Work::Volume(name) => self.sync_volume(name).await?,
        }
        Ok(None)
    }
}

impl Binder {
    fn queue_pending(&self, queue: &mut Queue<Work>) {
        let claims = self.client.store().snapshot(&CLAIMS.into());
        for claim in claims.range(None, None).filter(|c| !c.keys.deleting) {
            if claim.value()["status"]["phase"] == "Pending" {
                queue.add(Work::Claim(claim.key.clone()));
            }
        }
    }

    async fn sync_claim(&self, key: &Key) -> Result<()> {
        let Some(claim) = self.client.get(CLAIMS, &key.namespace, &key.name) else { return Ok(()) };
        let value = claim.value();
        let name = volume_of(&value);
        if !value["metadata"]["annotations"][COMPLETED].is_null() {
            return self.sync_bound(&claim, &value, name).await;
        }
        let Some(name) = name else { return self.find(key, &claim, &value).await };
        let Some(volume) = self.client.get(VOLUMES, "", name) else { return self.unbound(key, "Pending").await };
        let volume_value = volume.value();
        if reserved(&volume_value, &value) {
            return self.bind(&volume, &claim, &value).await;
        }
        if volume_value["spec"]["claimRef"].is_object() {
            let text = format!("volume {} already bound to a different claim.", quote(name));
            self.warn(&claim, "FailedBinding", text);
        } else if let Some(why) = fit::mismatch(&volume, &volume_value, &value) {
            let text = format!("Cannot bind to requested volume {}: {why}", quote(name));
            self.warn(&claim, "VolumeMismatch", text);
        } else {
            return self.bind(&volume, &claim, &value).await;
        }
        self.unbound(key, "Pending").await
    }

    /// Looks after a claim that was bound before: it has its volume, or has lost it.
    async fn sync_bound(&self, claim: &ObjectRef, value: &Value, name: Option<&str>) -> Result<()> {
        let volume = name.and_then(|name| self.client.get(VOLUMES, "", name));
        let (reason, text) = match (name, volume) {
            (None, _) => {
                ("ClaimLost", "Bound claim has lost reference to PersistentVolume. Data on the volume is lost!")
            }
            (Some(_), None) => ("ClaimLost", "Bound claim has lost its PersistentVolume. Data on the volume is lost!"),
            (Some(_), Some(volume)) => {
                let reference = volume.value()["spec"]["claimRef"].clone();
                if !reference.is_object() || reference["uid"] == *claim.keys.uid {
                    return self.bind(&volume, claim, value).await;
                }
                ("ClaimMisbound", "Two claims are bound to the same volume, this one is bound incorrectly")
            }
        };
        if value["status"]["phase"] != "Lost" {
            self.unbound(&claim.key, "Lost").await?;
            self.warn(claim, reason, text.into());
        }
        Ok(())
    }

    /// Looks for a volume for a claim without one.
    async fn find(&self, key: &Key, claim: &ObjectRef, value: &Value) -> Result<()> {
        if claim.keys.deleting {
            return Ok(());
        }
        let class_name = class_of(value).unwrap_or_default();
        let class = self.client.get(CLASSES, "", class_name).map(|c| c.value());
        let waits = class.as_ref().is_some_and(|c| c["volumeBindingMode"] == "WaitForFirstConsumer");
        let makes = class.as_ref().is_some_and(|c| c["provisioner"] != NO_PROVISIONER);
        let selected = promised(value).filter(|_| makes);
        let volume =
            choose(self.client.store(), value, selected.and_then(|n| self.client.get("nodes", "", n)).as_ref());
        let ours = volume.as_ref().is_some_and(|v| v.value()["spec"]["claimRef"].is_object());
        if let Some(volume) = volume.filter(|_| ours || !waits) {
            return self.bind(&volume, claim, value).await;
        }
        if self.give_class(key, value).await? {
            return Ok(());
        }
        self.unbound(key, "Pending").await?;
        if waits && selected.is_none() {
            let text = "waiting for first consumer to be created before binding";
            self.say(claim, "WaitForFirstConsumer", text.into());
            return Ok(());
        }
        let provisioner = class.as_ref().and_then(|c| c["provisioner"].as_str()).filter(|p| *p != NO_PROVISIONER);
        let Some(provisioner) = provisioner else {
            let text = match class_name {
                "" => "no persistent volumes available for this claim and no storage class is set".to_owned(),
                name if class.is_none() => {
                    format!("storageclass.storage.k8s.io {} not found", quote(name))
                }
                _ => "no persistent volumes available for this claim".to_owned(),
            };
            let reason = if class_name.is_empty() || class.is_some() { "FailedBinding" } else { "ProvisioningFailed" };
            match reason {
                "FailedBinding" => self.say(claim, reason, text),
                _ => self.warn(claim, "ProvisioningFailed", text),
            }
            return Ok(());
        };
        let written = self.client.update(CLAIMS, &key.namespace, &key.name, |value| {
            let annotations = &mut value["metadata"]["annotations"];
            if PROVISIONERS.iter().all(|p| annotations[*p] == provisioner) {
                return Err(unchanged());
            }
            for name in PROVISIONERS {
                annotations[name] = provisioner.into();
            }
            Ok(())
        });
        done(written.await.map(|_| ()))?;
        let text = format!(
            "Waiting for a volume to be created either by the external provisioner '{provisioner}' or manually by the \
             system administrator. If volume creation is delayed, please verify that the provisioner is running and \
             correctly registered."
        );
        self.say(claim, "ExternalProvisioning", text);
        Ok(())
    }

    /// Gives a claim that was made before there was a default class that class; whether it did, and the claim is looked at
    /// once more for it.
    async fn give_class(&self, key: &Key, value: &Value) -> Result<bool> {
        if class_of(value).is_some() {
            return Ok(false);
        }
        let Some(class) = default_storage_class_name(self.client.store()) else { return Ok(false) };
        let written = self.client.update(CLAIMS, &key.namespace, &key.name, |value| {
            if class_of(value).is_some() {
                return Err(unchanged());
            }
            value["spec"]["storageClassName"] = class.as_str().into();
            Ok(())
        });
        done(written.await.map(|_| ())).map(|_| true)
    }

    async fn bind(&self, volume: &ObjectRef, claim: &ObjectRef, value: &Value) -> Result<()> {
        refer(&self.client, volume, value).await?;
        self.set_phase(volume, "Bound", "").await?;
        let key = &claim.key;
        let written = self.client.update(CLAIMS, &key.namespace, &key.name, |value| {
            if value["metadata"]["uid"] != *claim.keys.uid {
                return Err(unchanged());
            }
            if value["spec"]["volumeName"].as_str().unwrap_or_default().is_empty() {
                value["spec"]["volumeName"] = volume.key.name.to_string().into();
                value["metadata"]["annotations"][BY_CONTROLLER] = "yes".into();
            }
            value["metadata"]["annotations"][COMPLETED] = "yes".into();
            Ok(())
        });
        done(written.await.map(|_| ()))?;
        let offer = volume.value()["spec"].clone();
        let written = self.client.update_status(CLAIMS, &key.namespace, &key.name, |value| {
            fit::show(&offer, &mut value["status"]);
            Ok(())
        });
        done(written.await.map(|_| ())).map(|_| ())
    }

    async fn sync_volume(&self, name: &str) -> Result<()> {
        let Some(volume) = self.client.get(VOLUMES, "", name) else { return Ok(()) };
        let value = volume.value();
        let reference = &value["spec"]["claimRef"];
        let uid = reference["uid"].as_str().unwrap_or_default();
        if uid.is_empty() {
            return self.set_phase(&volume, "Available", "").await.map(|_| ());
        }
        let text = |key: &str| reference[key].as_str().unwrap_or_default();
        let claim = self.client.get(CLAIMS, text("namespace"), text("name")).filter(|c| *c.keys.uid == *uid);
        let Some(claim) = claim else { return self.reclaim(&volume, &value).await };
        match claim.value()["spec"]["volumeName"].as_str().unwrap_or_default() {
            // Bound in one direction: the claim's turn makes it whole.
            "" => Ok(()),
            own if own == name => self.set_phase(&volume, "Bound", "").await.map(|_| ()),
            // It was made for a claim that got another one.
            _ if fit::is_made_to_go(&value) => self.reclaim(&volume, &value).await,
            _ => {
                let written = self.client.update(VOLUMES, "", name, |now| {
                    match now["spec"]["claimRef"]["uid"] == *claim.keys.uid {
                        true => fit::unbind(now),
                        false => return Err(unchanged()),
                    }
                    Ok(())
                });
                done(written.await.map(|_| ())).map(|_| ())
            }
        }
    }

    /// Does with a volume whose claim is gone what its policy says.
    async fn reclaim(&self, volume: &ObjectRef, value: &Value) -> Result<()> {
        // That something went wrong stays to be seen.
        if value["status"]["phase"] != "Failed" {
            self.set_phase(volume, "Released", "").await?;
        }
        let Some((reason, text)) = fit::reclaim_failure(&volume.key.name, value) else { return Ok(()) };
        if self.set_phase(volume, "Failed", &text).await? {
            self.recorder.warn(COMPONENT, ("PersistentVolume", "v1", volume), reason, text);
        }
        Ok(())
    }

    /// The phase of a claim that has no volume, and so none of its modes and sizes.
    async fn unbound(&self, key: &Key, phase: &str) -> Result<()> {
        let written = self.client.update_status(CLAIMS, &key.namespace, &key.name, |value| {
            let status = &mut value["status"];
            if status["phase"] == phase && status["accessModes"].is_null() && status["capacity"].is_null() {
                return Err(unchanged());
            }
            status["phase"] = phase.into();
            if let Some(status) = status.as_object_mut() {
                for name in ["accessModes", "capacity", "currentVolumeAttributesClassName"] {
                    status.remove(name);
                }
            }
            Ok(())
        });
        done(written.await.map(|_| ())).map(|_| ())
    }

    /// The phase of a volume, and why; whether it was another before.
    async fn set_phase(&self, volume: &ObjectRef, phase: &str, message: &str) -> Result<bool> {
        let written = self.client.update_status(VOLUMES, "", &volume.key.name, |value| {
            let status = &mut value["status"];
            if status["phase"] == phase {
                return Err(unchanged());
            }
            status["phase"] = phase.into();
            match (message, status.as_object_mut()) {
                ("", Some(status)) => drop(status.remove("message")),
                (text, _) => status["message"] = text.into(),
            }
            Ok(())
        });
        done(written.await.map(|_| ()))
    }

    fn say(&self, claim: &ObjectRef, reason: &'static str, text: String) {
        self.recorder.say(COMPONENT, ("PersistentVolumeClaim", "v1", claim), reason, text);
    }

    fn warn(&self, claim: &ObjectRef, reason: &'static str, text: String) {
        self.recorder.warn(COMPONENT, ("PersistentVolumeClaim", "v1", claim), reason, text);
    }
}

#[cfg(test)]
mod tests;
