//! `/metrics/resource` in the Prometheus text format: families by name, series by labels.

use super::summary::{Summary, Usage};

/// Name, type, and help with its stability; the kubelet's words.
const FAMILIES: [(&str, &str, &str); 12] = [
    (
        "container_cpu_usage_seconds_total",
        "counter",
        "[STABLE] Cumulative cpu time consumed by the container in core-seconds",
    ),
    ("container_memory_working_set_bytes", "gauge", "[STABLE] Current working set of the container in bytes"),
    ("container_start_time_seconds", "gauge", "[STABLE] Start time of the container since unix epoch in seconds"),
    (
        "container_swap_limit_bytes",
        "gauge",
        "[ALPHA] Current amount of the container swap limit in bytes. Reported only on non-windows systems",
    ),
    (
        "container_swap_usage_bytes",
        "gauge",
        "[ALPHA] Current amount of the container swap usage in bytes. Reported only on non-windows systems",
    ),
    ("node_cpu_usage_seconds_total", "counter", "[STABLE] Cumulative cpu time consumed by the node in core-seconds"),
    ("node_memory_working_set_bytes", "gauge", "[STABLE] Current working set of the node in bytes"),
    (
        "node_swap_usage_bytes",
        "gauge",
        "[ALPHA] Current swap usage of the node in bytes. Reported only on non-windows systems",
    ),
    ("pod_cpu_usage_seconds_total", "counter", "[STABLE] Cumulative cpu time consumed by the pod in core-seconds"),
    ("pod_memory_working_set_bytes", "gauge", "[STABLE] Current working set of the pod in bytes"),
    (
        "pod_swap_usage_bytes",
        "gauge",
        "[ALPHA] Current amount of the pod swap usage in bytes. Reported only on non-windows systems",
    ),
    ("resource_scrape_error", "gauge", "[STABLE] 1 if there was an error while getting container metrics, 0 otherwise"),
];

/// The page. Without a summary it says only that there was an error. `now` is in milliseconds since 1970.
pub fn resource_metrics(summary: Option<&Summary>, now: i64) -> String {
    // Family, labels, value, whether it bears the time of its reading.
    let mut series: Vec<(&str, String, f64, bool)> = Vec::new();
    let failed = if summary.is_none() { 1.0 } else { 0.0 };
    series.push(("resource_scrape_error", String::new(), failed, false));
    if let Some(summary) = summary {
        add("node", &summary.node.usage, "", &mut series);
        for pod in &summary.pods {
            let of_pod = format!("namespace=\"{}\",pod=\"{}\"", pod.pod_ref.namespace, pod.pod_ref.name);
            add("pod", &pod.usage, &format!("{{{of_pod}}}"), &mut series);
            for container in &pod.containers {
                let labels = format!("{{container=\"{}\",{of_pod}}}", container.name);
                if container.started_nanos > 0 {
                    let seconds = to_float(container.started_nanos.unsigned_abs()) / 1e9;
                    series.push(("container_start_time_seconds", labels.clone(), seconds, false));
                }
                add("container", &container.usage, &labels, &mut series);
            }
        }
    }
    series.sort_by(|a, b| (a.0, &a.1).cmp(&(b.0, &b.1)));
    let mut page = String::new();
    for (name, kind, help) in FAMILIES {
        let mut lines = series.iter().filter(|s| s.0 == name).peekable();
        if lines.peek().is_some() {
            page.push_str(&format!("# HELP {name} {help}\n# TYPE {name} {kind}\n"));
        }
        for (_, labels, value, timed) in lines {
            let time = if *timed { format!(" {now}") } else { String::new() };
            page.push_str(&format!("{name}{labels} {}{time}\n", number(*value)));
        }
    }
    page
}

fn add(of: &str, usage: &Usage, labels: &str, series: &mut Vec<(&'static str, String, f64, bool)>) {
    let mut push = |rest: &str, value: Option<f64>| {
        let name = FAMILIES.iter().map(|f| f.0).find(|n| n.strip_prefix(of).is_some_and(|r| r == rest));
        if let (Some(name), Some(value)) = (name, value) {
            series.push((name, labels.to_owned(), value, true));
        }
    };
    push("_cpu_usage_seconds_total", usage.cpu.as_ref().map(|c| to_float(c.usage_core_nano_seconds) / 1e9));
    push("_memory_working_set_bytes", usage.memory.as_ref().and_then(|m| m.working_set_bytes).map(to_float));
    let swap = usage.swap.as_ref();
    push("_swap_usage_bytes", swap.map(|s| to_float(s.swap_usage_bytes)));
    let limit = swap.and_then(|s| Some(s.swap_available_bytes?.saturating_add(s.swap_usage_bytes)));
    push("_swap_limit_bytes", limit.map(to_float));
}

/// The nearest float; the text format has no other numbers.
fn to_float(value: u64) -> f64 {
    const HIGH: f64 = 4_294_967_296.0;
    let (high, low) = (value >> 32, value & 0xffff_ffff);
    f64::from(u32::try_from(high).unwrap_or(u32::MAX)) * HIGH + f64::from(u32::try_from(low).unwrap_or(u32::MAX))
}

/// As Go prints floats: an exponent from 21 digits before the point, or four zeros after it.
fn number(value: f64) -> String {
    if value != 0.0 && !(1e-4..1e21).contains(&value.abs()) {
        let text = format!("{value:e}");
        let (mantissa, exponent) = text.split_once('e').unwrap_or((&text, "0"));
        let exponent: i32 = exponent.parse().unwrap_or(0);
        let sign = if exponent < 0 { '-' } else { '+' };
        return format!("{mantissa}e{sign}{:02}", exponent.abs());
    }
    value.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_a_summary_there_is_only_the_error() {
        let page = resource_metrics(None, 5);
        assert_eq!(page.lines().last(), Some("resource_scrape_error 1"));
        assert_eq!(page.lines().count(), 3);
    }

    #[test]
    fn numbers_read_as_go_writes_them() {
        assert_eq!((number(0.0), number(1.5), number(123_456_789.0)), ("0".into(), "1.5".into(), "123456789".into()));
        assert_eq!(number(0.000_05), "5e-05");
        assert!((to_float(u64::MAX) - 1.844_674_407_370_955_2e19).abs() < 1.0);
    }
}
