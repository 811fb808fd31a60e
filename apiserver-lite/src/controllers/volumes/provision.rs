//! Where a volume that is made on demand may lie: where its class allows it, and where the driver has room for it.

use std::cell::OnceCell;
use std::sync::Arc;

use serde_json::{Value, json};

use super::amount;
use crate::selectors::{LabelSelector, Labels, NodeTerm};
use crate::store::Store;

/// What drivers tell of their room, read once for all claims of a pod, if one of them has to know.
#[derive(Debug, Default)]
pub(super) struct Capacities(OnceCell<Vec<Arc<Value>>>);

impl Capacities {
    fn all(&self, store: &Store) -> &[Arc<Value>] {
        self.0.get_or_init(|| {
            let snapshot = store.snapshot(&"csistoragecapacities.storage.k8s.io".into());
            snapshot.range(None, None).map(|capacity| capacity.without_owners()).collect()
        })
    }
}

/// What a node has to be like for a volume to be made for it.
#[derive(Debug, Default)]
pub struct Provision {
    /// One of these, where there are any.
    allowed: Box<[NodeTerm]>,
    /// Nodes with a way to enough room; None where the driver does not tell of any.
    room: Option<Box<[LabelSelector]>>,
}

impl Provision {
    /// For a claim, by its class.
    pub(super) fn of(store: &Store, claim: &Value, class: &Value, capacities: &Capacities) -> Self {
        let allowed = class["allowedTopologies"].as_array().into_iter().flatten().map(topology);
        Provision { allowed: allowed.collect(), room: room(store, claim, class, capacities) }
    }

    pub fn is_allowed(&self, labels: &Labels, node: &str) -> bool {
        self.allowed.is_empty() || self.allowed.iter().any(|term| term.matches(labels, node))
    }

    pub fn has_room(&self, labels: &Labels) -> bool {
        self.room.as_ref().is_none_or(|all| all.iter().any(|selector| selector.matches(labels)))
    }
}

/// A term of a class's `allowedTopologies`: labels with the values that they may have; without any it matches no node.
fn topology(term: &Value) -> NodeTerm {
    let expressions = term["matchLabelExpressions"].as_array().into_iter().flatten();
    let expressions: Vec<Value> =
        expressions.map(|e| json!({"key": e["key"], "operator": "In", "values": e["values"]})).collect();
    NodeTerm::parse(&json!({"matchExpressions": expressions}))
}

/// The nodes that the driver has enough room for. Only drivers that say so tell how much they have.
fn room(store: &Store, claim: &Value, class: &Value, capacities: &Capacities) -> Option<Box<[LabelSelector]>> {
    let size = &claim["spec"]["resources"]["requests"]["storage"];
    let provisioner = class["provisioner"].as_str()?;
    let driver = store.get(&"csidrivers.storage.k8s.io".into(), "", provisioner)?;
    if size.is_null() || driver.without_owners()["spec"]["storageCapacity"] != true {
        return None;
    }
    let size = amount(size);
    let enough = capacities.all(store).iter().filter(|capacity| {
        // The largest volume is the more exact of the two.
        let told = [&capacity["maximumVolumeSize"], &capacity["capacity"]];
        let limit = told.into_iter().find(|limit| !limit.is_null());
        capacity["storageClassName"] == class["metadata"]["name"] && limit.is_some_and(|limit| amount(limit) >= size)
    });
    Some(enough.map(|capacity| LabelSelector::parse(&capacity["nodeTopology"])).collect())
}
