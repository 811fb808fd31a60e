//! `/metrics/resource`: what node, pods and containers use, in few stable families.

use super::used::{Use, Used};
use crate::metrics::page::to_float;
use crate::metrics::{Kind, Labels, Sample, Snapshot, Value, shows_deprecated};

/// Name, type, and help with its stability; the kubelet's words.
const FAMILIES: [(&str, Kind, &str); 13] = [
    (
        "container_cpu_usage_seconds_total",
        Kind::Counter,
        "[STABLE] Cumulative cpu time consumed by the container in core-seconds",
    ),
    ("container_memory_working_set_bytes", Kind::Gauge, "[STABLE] Current working set of the container in bytes"),
    ("container_start_time_seconds", Kind::Gauge, "[STABLE] Start time of the container since unix epoch in seconds"),
    (
        "container_swap_limit_bytes",
        Kind::Gauge,
        "[ALPHA] Current amount of the container swap limit in bytes. Reported only on non-windows systems",
    ),
    (
        "container_swap_usage_bytes",
        Kind::Gauge,
        "[ALPHA] Current amount of the container swap usage in bytes. Reported only on non-windows systems",
    ),
    (
        "node_cpu_usage_seconds_total",
        Kind::Counter,
        "[STABLE] Cumulative cpu time consumed by the node in core-seconds",
    ),
    ("node_memory_working_set_bytes", Kind::Gauge, "[STABLE] Current working set of the node in bytes"),
    (
        "node_swap_usage_bytes",
        Kind::Gauge,
        "[ALPHA] Current swap usage of the node in bytes. Reported only on non-windows systems",
    ),
    ("pod_cpu_usage_seconds_total", Kind::Counter, "[STABLE] Cumulative cpu time consumed by the pod in core-seconds"),
    ("pod_memory_working_set_bytes", Kind::Gauge, "[STABLE] Current working set of the pod in bytes"),
    (
        "pod_swap_usage_bytes",
        Kind::Gauge,
        "[ALPHA] Current amount of the pod swap usage in bytes. Reported only on non-windows systems",
    ),
    (
        "resource_scrape_error",
        Kind::Gauge,
        "[STABLE] 1 if there was an error while getting container metrics, 0 otherwise",
    ),
    (
        "scrape_error",
        Kind::Gauge,
        "[ALPHA] (Deprecated since 1.29.0) 1 if there was an error while getting container metrics, 0 otherwise",
    ),
];

struct Collector {
    families: Vec<Snapshot>,
    /// Milliseconds since 1970.
    now: i64,
}

/// The minor version that deprecated `scrape_error`.
const SCRAPE_ERROR_SINCE: u32 = 29;

/// The families. Without readings they say only that there was an error. `now` is in milliseconds since 1970.
pub fn resource_metrics(used: Option<&Used>, now: i64) -> Vec<Snapshot> {
    let family = |(name, kind, help): (&'static str, Kind, &str)| Snapshot {
        name: name.into(),
        help: help.to_owned(),
        kind,
        samples: Vec::new(),
    };
    let mut out = Collector { families: FAMILIES.into_iter().map(family).collect(), now };
    let failed = if used.is_none_or(|used| used.failed) { 1.0 } else { 0.0 };
    out.add("", "resource_scrape_error", Labels::default(), failed, false);
    if shows_deprecated(SCRAPE_ERROR_SINCE) {
        out.add("", "scrape_error", Labels::default(), failed, false);
    }
    if let Some(used) = used {
        out.used("node", &used.node, &Labels::default());
        for (pod, read) in used.pods() {
            let of_pod = [("namespace", pod.namespace.clone()), ("pod", pod.name.clone())];
            out.used("pod", &read.whole, &of_pod.clone().into());
            for ((name, found), read) in pod.containers.iter().zip(&read.containers) {
                let [namespace, pod_name] = of_pod.clone();
                let labels: Labels = [("container", name.clone()), namespace, pod_name].into();
                if found.started_at > 0 {
                    let seconds = to_float(found.started_at.unsigned_abs()) / 1e9;
                    out.add("container", "_start_time_seconds", labels.clone(), seconds, false);
                }
                out.used("container", read, &labels);
            }
        }
    }
    for family in &mut out.families {
        family.samples.sort_by(|a, b| a.labels.cmp(&b.labels));
    }
    out.families
}

impl Collector {
    /// `timed` samples bear the time of their reading.
    fn add(&mut self, of: &str, rest: &str, labels: Labels, value: f64, timed: bool) {
        let time = timed.then_some(self.now);
        if let Some(family) = self.families.iter_mut().find(|f| f.name.strip_prefix(of) == Some(rest)) {
            family.samples.push(Sample { labels, value: Value::Number(value), time, created: None });
        }
    }

    fn used(&mut self, of: &str, used: &Use, labels: &Labels) {
        let mut push = |rest: &str, value: Option<f64>| {
            if let Some(value) = value {
                self.add(of, rest, labels.clone(), value, true);
            }
        };
        push("_cpu_usage_seconds_total", used.cpu_nanos.map(|nanos| to_float(nanos) / 1e9));
        push("_memory_working_set_bytes", used.working_set.map(to_float));
        push("_swap_usage_bytes", used.swap.map(to_float));
        push("_swap_limit_bytes", used.swap_limit.map(to_float));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_readings_there_is_only_the_error() {
        let families = resource_metrics(None, 5);
        let used: Vec<&Snapshot> = families.iter().filter(|f| !f.samples.is_empty()).collect();
        assert_eq!(used.len(), 1);
        assert_eq!(used[0].name, "resource_scrape_error");
        assert!(matches!(used[0].samples[0].value, Value::Number(n) if n == 1.0));
    }
}
