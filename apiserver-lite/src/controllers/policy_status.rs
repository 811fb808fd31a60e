//! `validatingadmissionpolicy-status-controller`: says in the status of each policy which of its expressions do not fit
//! the types that its rules name.
//!
//! Follows `pkg/controller/validatingadmissionpolicystatus`. A policy is looked at once for each generation; kinds that
//! are defined later do not change what is said.

use std::time::Duration;

use serde_json::{Value, json};

use super::feed::Change;
use super::ownership::done;
use super::queue::Queue;
use super::runner::Controller;
use crate::admission::policy::type_warnings;
use crate::client::{Client, unchanged};
use crate::status::Result;
use crate::store::ResourceId;

const POLICIES: &str = "validatingadmissionpolicies.admissionregistration.k8s.io";
/// As field managers are named.
const MANAGER: &str = "validatingadmissionpolicy-status";

pub struct PolicyStatus(Client);

impl PolicyStatus {
    pub fn new(client: Client) -> Self {
        PolicyStatus(client.named(MANAGER))
    }
}

fn is_observed(policy: &Value) -> bool {
    let number = |value: &Value| value.as_i64().unwrap_or(0);
    number(&policy["metadata"]["generation"]) <= number(&policy["status"]["observedGeneration"])
}

impl Controller for PolicyStatus {
    const NAME: &'static str = "validatingadmissionpolicy-status-controller";
    type Key = Box<str>;

    fn watched(&self) -> Vec<ResourceId> {
        vec![POLICIES.into()]
    }

    fn observe(&mut self, change: Change<'_>, queue: &mut Queue<Box<str>>) {
        if !change.deleted() {
            queue.add(change.object.key.name.clone());
        }
    }

    async fn sync(&mut self, name: &Box<str>) -> Result<Option<Duration>> {
        let Some(policy) = self.0.get(POLICIES, "", name) else { return Ok(None) };
        let policy = policy.without_owners();
        if is_observed(&policy) {
            return Ok(None);
        }
        let warnings = type_warnings(&policy, &self.0.server().resources.current());
        let warnings: Vec<Value> =
            warnings.into_iter().map(|(path, text)| json!({"fieldRef": path, "warning": text})).collect();
        let generation = &policy["metadata"]["generation"];
        let written = self.0.update_status(POLICIES, "", name, |value| {
            // Another state of it comes up by itself.
            if value["metadata"]["generation"] != *generation || is_observed(value) {
                return Err(unchanged());
            }
            value["status"]["observedGeneration"] = generation.clone();
            value["status"]["typeChecking"] =
                if warnings.is_empty() { json!({}) } else { json!({"expressionWarnings": warnings}) };
            Ok(())
        });
        done(written.await.map(|_| ()))?;
        Ok(None)
    }
}
