//! `volumeattributesclass-protection-controller`: a class of volume attributes stays while a claim or a volume names it.
//!
//! Follows `pkg/controller/volume/vacprotection`. Who uses a class is looked up when one is about to go, which is rare; a
//! claim or volume that lets go of a class wakes it.

use std::time::Duration;

use serde_json::Value;

use super::feed::Change;
use super::protection::hold;
use super::queue::Queue;
use super::runner::Controller;
use crate::client::Client;
use crate::status::Result;
use crate::store::{Key, ObjectRef, ResourceId};

const CLASSES: &str = "volumeattributesclasses.storage.k8s.io";
/// Kinds that name classes.
const USERS: [&str; 2] = ["persistentvolumeclaims", "persistentvolumes"];

/// The classes that a claim or a volume names.
fn classes_of(value: &Value) -> impl Iterator<Item = &str> {
    let status = &value["status"];
    let names = [
        &value["spec"]["volumeAttributesClassName"],
        &status["currentVolumeAttributesClassName"],
        &status["modifyVolumeStatus"]["targetVolumeAttributesClassName"],
    ];
    names.into_iter().filter_map(Value::as_str).filter(|name| !name.is_empty())
}

/// Whether an object may name a class, told without reading it.
fn may_use(object: &ObjectRef) -> bool {
    let word = b"olumeAttributesClassName";
    object.json.without_owners().windows(word.len()).any(|w| w == word)
}

/// Keeps classes that are named.
pub struct AttributeClasses {
    client: Client,
}

impl AttributeClasses {
    pub const FINALIZER: &str = "kubernetes.io/vac-protection";

    pub fn new(client: Client) -> Self {
        AttributeClasses { client }
    }

    fn is_used(&self, class: &str) -> bool {
        USERS.iter().any(|resource| {
            let snapshot = self.client.store().snapshot(&ResourceId::from(*resource));
            let mut users = snapshot.range(None, None).filter(|object| may_use(object));
            users.any(|object| classes_of(&object.without_owners()).any(|name| name == class))
        })
    }
}

impl Controller for AttributeClasses {
    const NAME: &'static str = "volumeattributesclass-protection-controller";
    type Key = Key;

    fn watched(&self) -> Vec<ResourceId> {
        [CLASSES, USERS[0], USERS[1]].map(Into::into).into()
    }

    fn observe(&mut self, change: Change<'_>, queue: &mut Queue<Key>) {
        if change.resource == 0 {
            if !change.deleted() {
                queue.add(change.object.key.clone());
            }
            return;
        }
        // What is there now keeps its classes; what was there may have let go of some.
        let before = change.previous.or(change.deleted().then_some(change.object));
        if let Some(before) = before.filter(|object| may_use(object)) {
            for class in classes_of(&before.without_owners()) {
                queue.add(Key::new("", class));
            }
        }
    }

    async fn sync(&mut self, key: &Key) -> Result<Option<Duration>> {
        let Some(class) = self.client.get(CLASSES, "", &key.name) else { return Ok(None) };
        let leaves = class.keys.deleting;
        if !leaves || !self.is_used(&key.name) {
            hold(&self.client, CLASSES, key, Self::FINALIZER, !leaves).await?;
        }
        Ok(None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_claim_holds_the_class_it_has_and_the_one_it_is_getting() {
        let claim = json!({"spec": {"volumeAttributesClassName": "gold"}, "status": {
            "currentVolumeAttributesClassName": "silver",
            "modifyVolumeStatus": {"targetVolumeAttributesClassName": "gold", "status": "Pending"}}});
        assert_eq!(classes_of(&claim).collect::<Vec<_>>(), ["gold", "silver", "gold"]);
        assert_eq!(classes_of(&json!({"spec": {"volumeAttributesClassName": ""}})).count(), 0);
    }
}
