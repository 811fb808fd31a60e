//! How many pods of a kind each node has: counted once, then kept up pod by pod, since pods of one kind mostly come one
//! after another.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use super::pod::PodInfo;
use crate::selectors::LabelSelector;

/// Kinds that are kept up. Each costs a comparison for every pod that comes or goes.
const MOST: usize = 8;

/// Pods on each node, by its name; nodes without any may be missing.
pub type Counts = Arc<HashMap<Box<str>, i64>>;

#[derive(Debug)]
struct Kind {
    namespace: Box<str>,
    selector: LabelSelector,
    counts: Counts,
}

impl Kind {
    fn has(&self, pod: &PodInfo) -> bool {
        let object = &pod.object;
        object.key.namespace == self.namespace && !object.keys.deleting && self.selector.matches(&object.keys.labels)
    }
}

/// The kinds asked for last, the newest at the end.
#[derive(Debug, Default)]
pub struct Alike(VecDeque<Kind>);

impl Alike {
    /// The pods of a namespace that a selector fits; `pods` are all, with their nodes.
    pub fn counts<'a>(
        &mut self,
        namespace: &str,
        selector: &LabelSelector,
        pods: impl Iterator<Item = (&'a str, &'a Arc<PodInfo>)>,
    ) -> Counts {
        let known = self.0.iter().position(|k| *k.namespace == *namespace && k.selector == *selector);
        let kind = known.and_then(|at| self.0.remove(at)).unwrap_or_else(|| {
            let mut kind = Kind { namespace: namespace.into(), selector: selector.clone(), counts: Counts::default() };
            let mut counts: HashMap<Box<str>, i64> = HashMap::new();
            for (node, _) in pods.filter(|(_, pod)| kind.has(pod)) {
                *counts.entry(node.into()).or_default() += 1;
            }
            kind.counts = Arc::new(counts);
            kind
        });
        let counts = kind.counts.clone();
        self.0.push_back(kind);
        if self.0.len() > MOST {
            self.0.pop_front();
        }
        counts
    }

    /// A pod came to a node, or left it.
    pub fn change(&mut self, node: &str, pod: &PodInfo, by: i64) {
        for kind in self.0.iter_mut().filter(|kind| kind.has(pod)) {
            *Arc::make_mut(&mut kind.counts).entry(node.into()).or_default() += by;
        }
    }
}
