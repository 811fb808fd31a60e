//! `node-ipam-controller`: gives every node a part of the cluster's pod addresses (`spec.podCIDRs`).
//!
//! Runs with `--allocate-node-cidrs`. Parts are handed out in turn, so that one that was given back rests as long as
//! possible. Follows the range allocator of `pkg/controller/nodeipam/ipam`.

use std::collections::{BTreeSet, HashMap};
use std::time::Duration;

use serde_json::{Value, json};

use super::events::Recorder;
use super::feed::Change;
use super::ownership::done;
use super::queue::Queue;
use super::runner::Controller;
use crate::client::{Client, unchanged};
use crate::config::{Cidr, NodeCidrs};
use crate::status::Result;
use crate::store::ResourceId;

const NODES: &str = "nodes";

/// The parts of one range.
struct Pool {
    range: Cidr,
    /// Prefix length of a part.
    bits: u8,
    taken: BTreeSet<u32>,
    next: u32,
}

impl Pool {
    fn count(&self) -> u32 {
        1 << (self.bits - self.range.prefix())
    }

    /// Addresses of one part.
    fn step(&self) -> u128 {
        self.range.size() / u128::from(self.count())
    }

    fn part(&self, index: u32) -> String {
        format!("{}/{}", self.range.address(u128::from(index) * self.step()), self.bits)
    }

    /// The parts of this pool that a range touches, both ends included.
    fn touched(&self, text: &str) -> Option<(u32, u32)> {
        let other: Cidr = text.parse().ok()?;
        if other.is_ipv4() != self.range.is_ipv4() {
            return None;
        }
        if other.prefix() <= self.range.prefix() {
            return other.contains(self.range.address(0)).then(|| (0, self.count() - 1));
        }
        let offset = self.range.offset(other.address(0))?;
        let index = |offset: u128| u32::try_from(offset / self.step()).unwrap_or(u32::MAX).min(self.count() - 1);
        Some((index(offset), index(offset.saturating_add(other.size() - 1))))
    }

    fn take(&mut self, text: &str) {
        if let Some((first, last)) = self.touched(text) {
            self.taken.extend(first..=last);
        }
    }

    fn free(&mut self, text: &str) {
        if let Some((first, last)) = self.touched(text) {
            self.taken.retain(|index| !(first..=last).contains(index));
        }
    }

    fn allocate(&mut self) -> Option<String> {
        let count = self.count();
        let index = (0..count).map(|i| (self.next.wrapping_add(i)) % count).find(|i| !self.taken.contains(i))?;
        self.taken.insert(index);
        self.next = (index + 1) % count;
        Some(self.part(index))
    }
}

pub struct NodeIpam {
    client: Client,
    recorder: Recorder,
    pools: Vec<Pool>,
    /// What each node has.
    nodes: HashMap<Box<str>, Vec<String>>,
}

fn given(node: &Value) -> Vec<String> {
    node["spec"]["podCIDRs"].as_array().into_iter().flatten().filter_map(Value::as_str).map(Into::into).collect()
}

impl NodeIpam {
    pub fn new(client: Client, recorder: Recorder, ranges: &NodeCidrs, services: &[Cidr]) -> Self {
        let pool = |(range, bits): &(Cidr, u8)| Pool { range: *range, bits: *bits, taken: BTreeSet::new(), next: 0 };
        let mut pools: Vec<Pool> = ranges.0.iter().map(pool).collect();
        for pool in &mut pools {
            services.iter().for_each(|s| pool.take(&s.to_string()));
        }
        NodeIpam { client, recorder, pools, nodes: HashMap::new() }
    }
}

impl Controller for NodeIpam {
    const NAME: &'static str = "node-ipam-controller";
    type Key = Box<str>;

    fn watched(&self) -> Vec<ResourceId> {
        vec![NODES.into()]
    }

    fn observe(&mut self, change: Change<'_>, queue: &mut Queue<Box<str>>) {
        let name = &change.object.key.name;
        if change.deleted() {
            for part in self.nodes.remove(name).unwrap_or_default() {
                self.pools.iter_mut().for_each(|pool| pool.free(&part));
            }
            return;
        }
        // A node that has its part keeps it: most changes are heartbeats.
        if self.nodes.contains_key(name) {
            return;
        }
        let given = given(&change.object.value());
        if given.is_empty() {
            queue.add(name.clone());
            return;
        }
        for part in &given {
            self.pools.iter_mut().for_each(|pool| pool.take(part));
        }
        self.nodes.insert(name.clone(), given);
    }

    async fn sync(&mut self, name: &Box<str>) -> Result<Option<Duration>> {
        let Some(node) = self.client.get(NODES, "", name) else { return Ok(None) };
        if self.nodes.contains_key(name) || !given(&node.value()).is_empty() {
            return Ok(None);
        }
        let parts: Vec<Option<String>> = self.pools.iter_mut().map(Pool::allocate).collect();
        let Some(all) = parts.iter().cloned().collect::<Option<Vec<String>>>() else {
            for part in parts.iter().flatten() {
                self.pools.iter_mut().for_each(|pool| pool.free(part));
            }
            let message = format!("Node {name} status is now: CIDRNotAvailable");
            self.recorder.warn("cidrAllocator", ("Node", "v1", &node), "CIDRNotAvailable", message);
            return Ok(Some(Duration::from_secs(60)));
        };
        let written = self.client.update(NODES, "", name, |value| {
            if value["metadata"]["uid"] != *node.keys.uid || !given(value).is_empty() {
                return Err(unchanged());
            }
            value["spec"]["podCIDR"] = all.first().cloned().into();
            value["spec"]["podCIDRs"] = json!(all);
            Ok(())
        });
        let written = done(written.await.map(|_| ()));
        if matches!(written, Ok(true)) {
            self.nodes.insert(name.clone(), all);
        } else {
            for part in &all {
                self.pools.iter_mut().for_each(|pool| pool.free(part));
            }
        }
        written.map(|_| None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pool(range: &str, bits: u8) -> Pool {
        Pool { range: range.parse().expect("a range"), bits, taken: BTreeSet::new(), next: 0 }
    }

    #[test]
    fn parts_are_handed_out_in_turn_until_none_is_left() {
        let mut pool = pool("10.244.0.0/22", 24);
        pool.take("10.244.1.0/24");
        let got: Vec<_> = (0..4).map(|_| pool.allocate()).collect();
        let part = |n: u8| Some(format!("10.244.{n}.0/24"));
        assert_eq!(got, [part(0), part(2), part(3), None]);
        pool.free("10.244.2.0/24");
        assert_eq!(pool.allocate(), part(2));
    }

    #[test]
    fn ranges_of_other_sizes_take_all_parts_they_touch() {
        let mut six = pool("fd00::/62", 64);
        six.take("fd00:0:0:2::/63");
        assert_eq!(six.allocate().as_deref(), Some("fd00::/64"));
        assert_eq!((six.allocate().as_deref(), six.allocate()), (Some("fd00:0:0:1::/64"), None));
        let mut four = pool("10.0.0.0/16", 24);
        four.take("10.0.0.0/8");
        four.free("192.168.0.0/24");
        assert_eq!(four.allocate(), None);
    }
}
