//! How many pods there are, as metrics.

use std::collections::BTreeMap;

use crate::metrics;
use crate::pod::spec::PodExt;

use super::manager::{Entry, Manager};

impl Manager {
    /// Sets the numbers anew.
    pub(super) fn count(&self) {
        let number = |count: usize| f64::from(u32::try_from(count).unwrap_or(u32::MAX));
        let is_static = |entry: &&Entry| entry.source.is_static();
        let wanted = || self.pods.values().filter(|e| !e.removed);
        let working = || wanted().filter(|e| e.mailbox.is_some());
        for (word, statics) in [("", false), ("true", true)] {
            metrics::DESIRED_PODS.set(&[word], number(wanted().filter(|e| is_static(e) == statics).count()));
            metrics::ACTIVE_PODS.set(&[word], number(working().filter(|e| is_static(e) == statics).count()));
        }
        let ephemeral = wanted().map(|e| e.pod.spec().ephemeral_containers.len()).sum();
        metrics::MANAGED_EPHEMERAL_CONTAINERS.set(&[], number(ephemeral));
        metrics::MIRROR_PODS.set(&[], number(self.mirrors.len()));
        // All kinds are there from the start, with zeros, as dashboards that add them up want.
        let mut kinds: BTreeMap<[&str; 3], usize> = BTreeMap::new();
        for lifecycle in ["sync", "terminating", "terminated"] {
            for labels in
                [["desired", ""], ["desired", "true"], ["orphan", ""], ["orphan", "true"], ["runtime_only", "unknown"]]
            {
                kinds.insert([labels[0], lifecycle, labels[1]], 0);
            }
        }
        for entry in self.pods.values() {
            let config = if entry.removed { "orphan" } else { "desired" };
            let lifecycle = match (entry.mailbox.is_some(), entry.removed || entry.pod.is_deleted()) {
                (false, _) => "terminated",
                (true, true) => "terminating",
                (true, false) => "sync",
            };
            let word = if is_static(&entry) { "true" } else { "" };
            *kinds.entry([config, lifecycle, word]).or_default() += 1;
        }
        kinds.insert(["runtime_only", "terminating", "unknown"], self.orphans.len());
        let kinds = kinds.into_iter().map(|(labels, count)| (labels.map(str::to_owned).to_vec(), number(count)));
        metrics::WORKING_PODS.set_all(kinds);
    }
}
