//! `/metrics/resource`: what node, pods and containers use, in few stable families.

use super::used::{Use, Used};
use crate::metrics::page::to_float;
use crate::metrics::{Kind, Labels, Sample, Snapshot, Value, shows_deprecated};

/// Whose a family is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Of {
    Container,
    Node,
    Pod,
    Page,
}

/// The figures of one of them.
struct Row {
    labels: Labels,
    used: Use,
    /// Nanoseconds since 1970, of containers.
    started_at: i64,
    failed: bool,
}

impl Row {
    fn cpu(&self) -> Option<f64> {
        self.used.cpu_nanos.map(|nanos| to_float(nanos) / 1e9)
    }

    fn working_set(&self) -> Option<f64> {
        self.used.working_set.map(to_float)
    }

    fn swap(&self) -> Option<f64> {
        self.used.swap.map(to_float)
    }

    fn swap_limit(&self) -> Option<f64> {
        self.used.swap_limit.map(to_float)
    }

    fn started(&self) -> Option<f64> {
        (self.started_at > 0).then(|| to_float(self.started_at.unsigned_abs()) / 1e9)
    }

    fn failed(&self) -> Option<f64> {
        Some(if self.failed { 1.0 } else { 0.0 })
    }
}

/// Name, type, help with its stability (the kubelet's words), whose it is, and the figure.
type Family = (&'static str, Kind, &'static str, Of, fn(&Row) -> Option<f64>);

const FAMILIES: [Family; 13] = [
    (
        "container_cpu_usage_seconds_total",
        Kind::Counter,
        "[STABLE] Cumulative cpu time consumed by the container in core-seconds",
        Of::Container,
        Row::cpu,
    ),
    (
        "container_memory_working_set_bytes",
        Kind::Gauge,
        "[STABLE] Current working set of the container in bytes",
        Of::Container,
        Row::working_set,
    ),
    (
        "container_start_time_seconds",
        Kind::Gauge,
        "[STABLE] Start time of the container since unix epoch in seconds",
        Of::Container,
        Row::started,
    ),
    (
        "container_swap_limit_bytes",
        Kind::Gauge,
        "[ALPHA] Current amount of the container swap limit in bytes. Reported only on non-windows systems",
        Of::Container,
        Row::swap_limit,
    ),
    (
        "container_swap_usage_bytes",
        Kind::Gauge,
        "[ALPHA] Current amount of the container swap usage in bytes. Reported only on non-windows systems",
        Of::Container,
        Row::swap,
    ),
    (
        "node_cpu_usage_seconds_total",
        Kind::Counter,
        "[STABLE] Cumulative cpu time consumed by the node in core-seconds",
        Of::Node,
        Row::cpu,
    ),
    (
        "node_memory_working_set_bytes",
        Kind::Gauge,
        "[STABLE] Current working set of the node in bytes",
        Of::Node,
        Row::working_set,
    ),
    (
        "node_swap_usage_bytes",
        Kind::Gauge,
        "[ALPHA] Current swap usage of the node in bytes. Reported only on non-windows systems",
        Of::Node,
        Row::swap,
    ),
    (
        "pod_cpu_usage_seconds_total",
        Kind::Counter,
        "[STABLE] Cumulative cpu time consumed by the pod in core-seconds",
        Of::Pod,
        Row::cpu,
    ),
    (
        "pod_memory_working_set_bytes",
        Kind::Gauge,
        "[STABLE] Current working set of the pod in bytes",
        Of::Pod,
        Row::working_set,
    ),
    (
        "pod_swap_usage_bytes",
        Kind::Gauge,
        "[ALPHA] Current amount of the pod swap usage in bytes. Reported only on non-windows systems",
        Of::Pod,
        Row::swap,
    ),
    (
        "resource_scrape_error",
        Kind::Gauge,
        "[STABLE] 1 if there was an error while getting container metrics, 0 otherwise",
        Of::Page,
        Row::failed,
    ),
    (
        "scrape_error",
        Kind::Gauge,
        "[ALPHA] (Deprecated since 1.29.0) 1 if there was an error while getting container metrics, 0 otherwise",
        Of::Page,
        Row::failed,
    ),
];

/// The minor version that deprecated `scrape_error`.
const SCRAPE_ERROR_SINCE: u32 = 29;

/// The families. Without readings they say only that there was an error. `now` is in milliseconds since 1970.
pub fn resource_metrics(used: Option<&Used>, now: i64) -> Vec<Snapshot> {
    let whole = |used| Row { labels: Labels::default(), used, started_at: 0, failed: false };
    let page = [Row { failed: used.is_none_or(|used| used.failed), ..whole(Use::default()) }];
    let node: Vec<Row> = used.iter().map(|used| whole(used.node)).collect();
    let (mut pods, mut containers) = (Vec::new(), Vec::new());
    for (pod, read) in used.into_iter().flat_map(Used::pods) {
        if let Some(sandbox) = &pod.sandbox {
            pods.push(Row { labels: pod.labels_of(sandbox, None), ..whole(read.whole) });
        }
        containers.extend(pod.containers.iter().zip(&read.containers).map(|((name, found), read)| Row {
            labels: pod.labels_of(found, Some(name)),
            started_at: found.started_at,
            ..whole(*read)
        }));
    }
    for rows in [&mut pods, &mut containers] {
        rows.sort_by(|a, b| a.labels.cmp(&b.labels));
    }
    let family = |(name, kind, help, of, figure): Family| {
        let rows = match of {
            Of::Container => &containers[..],
            Of::Node => &node,
            Of::Pod => &pods,
            Of::Page if name == "scrape_error" && !shows_deprecated(SCRAPE_ERROR_SINCE) => &[],
            Of::Page => &page,
        };
        // What does not change with each reading bears no time.
        let time = (of != Of::Page && name != "container_start_time_seconds").then_some(now);
        let sample = |row: &Row| {
            let value = Value::Number(figure(row)?);
            Some(Sample { labels: row.labels.clone(), value, time, created: None })
        };
        Snapshot { name: name.into(), help: help.to_owned(), kind, samples: rows.iter().filter_map(sample).collect() }
    };
    FAMILIES.into_iter().map(family).collect()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::sync::Arc;

    use super::*;
    use crate::metrics::page;
    use crate::stats::cgroup::Cgroup;
    use crate::stats::{Found, PodFound};

    #[test]
    fn without_readings_there_is_only_the_error() {
        let families = resource_metrics(None, 5);
        let used: Vec<&Snapshot> = families.iter().filter(|f| !f.samples.is_empty()).collect();
        assert_eq!(used.len(), 1);
        assert_eq!(used[0].name, "resource_scrape_error");
        assert!(matches!(used[0].samples[0].value, Value::Number(n) if n == 1.0));
    }

    fn found(started_at: i64) -> Arc<Found> {
        // Of no controller: it tells nothing.
        let cgroup = Cgroup::default();
        let (id, image) = (String::new(), String::new());
        Arc::new(Found { id, image, pid: 1, cgroup, around: None, started_at, labels: std::sync::OnceLock::new() })
    }

    #[test]
    fn rows_are_in_the_order_of_their_labels_and_keep_them() {
        let pod = |name: &str, containers: &[&str]| PodFound {
            name: name.to_owned(),
            namespace: "n".into(),
            created_at: 0,
            sandbox: Some(found(0)),
            containers: containers.iter().map(|name| ((*name).to_owned(), found(2_500_000_000))).collect(),
        };
        let pods = BTreeMap::from([
            ("1".to_owned(), pod("z", &["b", "a"])),
            ("2".to_owned(), pod("y", &["a"])),
            ("3".to_owned(), pod("without", &[])),
        ]);
        let used = Used::read(Arc::new(pods), &Cgroup::default());
        let times = |families: &[Snapshot]| {
            let (text, _) = page::page(families, "");
            let text = String::from_utf8(text).unwrap();
            let rows = text.lines().filter_map(|line| line.strip_prefix("container_start_time_seconds"));
            rows.map(str::to_owned).collect::<Vec<_>>()
        };
        let first = resource_metrics(Some(&used), 5);
        let want = [("a", "y"), ("a", "z"), ("b", "z")];
        let want = want.map(|(c, p)| format!("{{container=\"{c}\",namespace=\"n\",pod=\"{p}\"}} 2.5"));
        assert_eq!(times(&first), want);
        let second = resource_metrics(Some(&used), 6);
        assert_eq!(times(&second), want);
        let row = |families: &[Snapshot]| families[2].samples[1].labels.as_ptr();
        assert_eq!(row(&first), row(&second), "names are written once for a container");
    }
}
