//! Policies and webhooks that are in force, compiled once for every version of them.
//!
//! The store counts the changes of each collection. A write compares those counts with the ones that the last
//! compilation saw, which costs a few look-ups; only after a change something is read.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use arc_swap::ArcSwapOption;
use serde_json::Value;

use super::policy::{Binding, Compiled, Policy};
use super::webhook::Webhook;
use crate::server::ApiServer;
use crate::store::{ObjectRef, ResourceId};

/// Plurals of the collections that decide about requests.
const COLLECTIONS: [&str; 6] = [
    "validatingadmissionpolicies",
    "validatingadmissionpolicybindings",
    "mutatingwebhookconfigurations",
    "validatingwebhookconfigurations",
    "mutatingadmissionpolicies",
    "mutatingadmissionpolicybindings",
];

/// Keeps what is in force.
pub struct Hooks {
    resources: [ResourceId; COLLECTIONS.len()],
    current: ArcSwapOption<InForce>,
    /// Nothing is in force.
    pub asleep: AtomicBool,
}

#[derive(Default)]
pub struct InForce {
    changes: [u64; COLLECTIONS.len()],
    pub mutating: Vec<Policy>,
    pub validating: Vec<Policy>,
    pub mutating_webhooks: Vec<Arc<Webhook>>,
    pub validating_webhooks: Vec<Arc<Webhook>>,
}

impl InForce {
    /// Whether nobody changes objects.
    pub fn changes_nothing(&self) -> bool {
        self.mutating.is_empty() && self.mutating_webhooks.is_empty()
    }
}

impl Default for Hooks {
    fn default() -> Self {
        let resources =
            COLLECTIONS.map(|plural| ResourceId::from(format!("{plural}.admissionregistration.k8s.io").as_str()));
        Hooks { resources, current: ArcSwapOption::empty(), asleep: AtomicBool::new(false) }
    }
}

impl Hooks {
    /// What is in force now.
    pub fn current(&self, server: &ApiServer) -> Arc<InForce> {
        if self.asleep.load(Ordering::Relaxed) {
            return Arc::default();
        }
        let changes = server.store.changes(&self.resources);
        let last = self.current.load_full();
        if let Some(last) = last.as_ref().filter(|last| last.changes == changes) {
            return last.clone();
        }
        let fresh = Arc::new(self.compile(server, changes, last.as_deref()));
        self.current.store(Some(fresh.clone()));
        fresh
    }

    fn compile(&self, server: &ApiServer, changes: [u64; COLLECTIONS.len()], last: Option<&InForce>) -> InForce {
        let all = |index: usize| -> Vec<ObjectRef> {
            server.store.snapshot(&self.resources[index]).range(None, None).cloned().collect()
        };
        let nothing = InForce::default();
        let last = last.unwrap_or(&nothing);
        InForce {
            changes,
            mutating: policies(&all(4), &all(5), &last.mutating),
            validating: policies(&all(0), &all(1), &last.validating),
            mutating_webhooks: webhooks(&all(2), &last.mutating_webhooks),
            validating_webhooks: webhooks(&all(3), &last.validating_webhooks),
        }
    }
}

/// Webhooks in the order of their configurations' names.
fn webhooks(configurations: &[ObjectRef], before: &[Arc<Webhook>]) -> Vec<Arc<Webhook>> {
    let of = |configuration: &ObjectRef| -> Vec<Arc<Webhook>> {
        let same = |hook: &&Arc<Webhook>| {
            hook.configuration == *configuration.key.name && hook.revision == configuration.revision
        };
        let kept: Vec<Arc<Webhook>> = before.iter().filter(same).cloned().collect();
        if !kept.is_empty() {
            return kept;
        }
        Webhook::all(&configuration.value(), configuration.revision).into_iter().map(Arc::new).collect()
    };
    configurations.iter().flat_map(of).collect()
}

/// Policies that have a binding. What was compiled before and has not changed stays.
fn policies(policies: &[ObjectRef], bindings: &[ObjectRef], before: &[Policy]) -> Vec<Policy> {
    let bindings: Vec<Value> = bindings.iter().map(|binding| binding.value()).collect();
    let bound = |policy: &ObjectRef| {
        let of_policy = |b: &&Value| b["spec"]["policyName"].as_str() == Some(&*policy.key.name);
        let bindings: Vec<Binding> = bindings.iter().filter(of_policy).map(Binding::new).collect();
        if bindings.is_empty() {
            return None;
        }
        let kept =
            before.iter().find(|b| b.compiled.name == *policy.key.name && b.compiled.revision == policy.revision);
        let compiled = kept
            .map_or_else(|| Arc::new(Compiled::new(&policy.value(), policy.revision)), |kept| kept.compiled.clone());
        Some(Policy { compiled, bindings })
    };
    policies.iter().filter_map(bound).collect()
}
