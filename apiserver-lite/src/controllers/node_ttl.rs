//! `ttl-controller`: notes on every node how many seconds its kubelet may go on with the config maps and secrets that it has
//! read (`node.alpha.kubernetes.io/ttl`), by the number of nodes.
//!
//! Follows `pkg/controller/ttl`.

use std::collections::BTreeSet;
use std::time::Duration;

use serde_json::Value;

use super::feed::Change;
use super::ownership::done;
use super::queue::Queue;
use super::runner::Controller;
use crate::client::{Client, unchanged};
use crate::status::Result;
use crate::store::ResourceId;

const NODES: &str = "nodes";
const NOTE: &str = "node.alpha.kubernetes.io/ttl";

/// Fewest and most nodes of each step, and its seconds. They overlap, so that one node that comes and goes changes nothing.
const STEPS: [(usize, usize, &str); 6] = [
    (0, 100, "0"),
    (90, 500, "15"),
    (450, 1000, "30"),
    (900, 2000, "60"),
    (1800, 10_000, "300"),
    (9000, usize::MAX, "600"),
];

pub struct NodeTtl {
    client: Client,
    nodes: BTreeSet<Box<str>>,
    step: usize,
}

impl NodeTtl {
    pub fn new(client: Client) -> Self {
        NodeTtl { client, nodes: BTreeSet::new(), step: 0 }
    }

    fn seconds(&self) -> &'static str {
        STEPS[self.step].2
    }
}

/// The step for so many nodes, coming from another one.
fn step(now: usize, nodes: usize) -> usize {
    let (fewest, most, _) = STEPS[now];
    if nodes > most {
        (now + 1).min(STEPS.len() - 1)
    } else if nodes < fewest {
        now.saturating_sub(1)
    } else {
        now
    }
}

fn noted(node: &Value) -> &Value {
    &node["metadata"]["annotations"][NOTE]
}

impl Controller for NodeTtl {
    const NAME: &'static str = "ttl-controller";
    type Key = Box<str>;

    fn watched(&self) -> Vec<ResourceId> {
        vec![NODES.into()]
    }

    fn observe(&mut self, change: Change<'_>, queue: &mut Queue<Box<str>>) {
        let name = &change.object.key.name;
        let other = if change.deleted() { self.nodes.remove(name) } else { self.nodes.insert(name.clone()) };
        let next = step(self.step, self.nodes.len());
        if other && next != self.step {
            self.step = next;
            self.nodes.iter().for_each(|node| queue.add(node.clone()));
        }
        // Heartbeats are leases: a node itself changes once in minutes.
        if !change.deleted() && *noted(&change.object.without_owners()) != self.seconds() {
            queue.add(name.clone());
        }
    }

    async fn sync(&mut self, name: &Box<str>) -> Result<Option<Duration>> {
        let seconds = self.seconds();
        let written = self.client.update(NODES, "", name, |value| {
            if *noted(value) == seconds {
                return Err(unchanged());
            }
            value["metadata"]["annotations"][NOTE] = seconds.into();
            Ok(())
        });
        done(written.await.map(|_| ())).map(|_| None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_is_left_where_the_next_one_has_begun_for_good() {
        assert_eq!([step(0, 1), step(0, 100), step(0, 101)], [0, 0, 1]);
        assert_eq!([step(1, 95), step(1, 89), step(1, 501)], [1, 0, 2]);
        assert_eq!([step(5, 100_000), step(5, 8999)], [5, 4]);
    }
}
