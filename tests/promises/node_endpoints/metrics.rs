//! Pages of metrics have the recorded families, with their types, stability, labels and buckets, and the recorded series.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use anyhow::{Context, Result};
use serde_json::Value;

use super::Recorded;

const PAGES: &[(&str, &str)] = &[
    ("metrics.json", "/metrics"),
    ("metrics-cadvisor.json", "/metrics/cadvisor"),
    ("metrics-probes.json", "/metrics/probes"),
    ("metrics-resource.json", "/metrics/resource"),
    ("metrics-slis.json", "/metrics/slis"),
];

/// Families that are left out, whose reasons docs/metrics.md tells.
const LEFT_OUT: &[&str] = &[
    "go_",
    "workqueue_",
    "apiserver_audit_",
    "apiserver_envelope_",
    "apiserver_storage_",
    "apiserver_validation_",
    "apiserver_webhooks_x509_",
    "aggregator_",
];

/// Families whose label values do not depend on what was asked of the node.
const SAME_VALUES: &[&str] = &["kubelet_working_pods", "registered_metrics_total", "kubelet_desired_pods"];

/// Labels that name something of the machine.
const OF_THE_MACHINE: &[&str] = &[
    "id",
    "name",
    "image",
    "interface",
    "device",
    "major",
    "minor",
    "boot_id",
    "machine_id",
    "system_uuid",
    "kernelVersion",
    "osVersion",
];

#[derive(Debug, Default)]
struct Family {
    kind: String,
    stability: Option<String>,
    labels: BTreeMap<String, BTreeSet<String>>,
    buckets: Vec<String>,
    timed: bool,
}

type Labels = BTreeMap<String, String>;

/// Name, labels, and whether there is a time, of a line that is no comment.
fn sample(line: &str) -> Option<(&str, Labels, bool)> {
    let end = line.find(['{', ' '])?;
    let (name, mut rest) = line.split_at(end);
    let mut labels = Labels::new();
    if let Some(inner) = rest.strip_prefix('{') {
        rest = inner;
        while !rest.starts_with('}') {
            let (key, value) = rest.trim_start_matches(',').split_once("=\"")?;
            let mut escaped = false;
            let end = value.find(|c: char| {
                let ends = c == '"' && !escaped;
                escaped = c == '\\' && !escaped;
                ends
            })?;
            labels.insert(key.to_owned(), value[..end].to_owned());
            rest = &value[end + 1..];
        }
    }
    Some((name, labels, rest.split_whitespace().filter(|word| *word != "}").count() > 1))
}

fn families(page: &str) -> BTreeMap<String, Family> {
    let mut found: BTreeMap<String, Family> = BTreeMap::new();
    for line in page.lines() {
        if let Some(rest) = line.strip_prefix("# HELP ") {
            let (name, help) = rest.split_once(' ').unwrap_or((rest, ""));
            let stability = help.strip_prefix('[').and_then(|h| h.split_once("] "));
            found.entry(name.to_owned()).or_default().stability = stability.map(|(word, _)| word.to_owned());
        } else if let Some((name, kind)) = line.strip_prefix("# TYPE ").and_then(|rest| rest.split_once(' ')) {
            found.entry(name.to_owned()).or_default().kind = kind.to_owned();
        } else if let Some((name, labels, timed)) = sample(line) {
            let ends = ["_bucket", "_sum", "_count"];
            let base = ends.into_iter().find_map(|e| name.strip_suffix(e)).filter(|_| !found.contains_key(name));
            let Some(family) = found.get_mut(base.unwrap_or(name)) else { continue };
            family.timed |= timed;
            for (key, value) in labels {
                if key == "le" {
                    if !family.buckets.contains(&value) {
                        family.buckets.push(value);
                    }
                } else {
                    family.labels.entry(key).or_default().insert(value);
                }
            }
        }
    }
    found
}

/// Whether this machine cannot have it: files of cgroup v2, pressure figures, and cgroups of pods are the recorded node's.
fn of_the_machine(name: &str) -> bool {
    let unified = Path::new("/sys/fs/cgroup/cgroup.controllers").exists();
    let pressure = unified && Path::new("/proc/pressure").exists();
    // Without block devices there are no figures of one.
    let of_devices =
        ["container_blkio_device_usage_total", "container_fs_reads_bytes_total", "container_fs_writes_bytes_total"];
    !pressure && name.starts_with("container_pressure_")
        || !unified && (name == "kubelet_cgroup_manager_duration_seconds" || of_devices.contains(&name))
}

/// What differs from the recorded pages.
pub fn compare(recorded: &Recorded) -> Result<Vec<String>> {
    let mut wrong = Vec::new();
    for (file, path) in PAGES {
        let (want, have) = (recorded.file(file)?, families(&recorded.page(path)?));
        for (name, want) in want.as_object().context("families")? {
            if LEFT_OUT.iter().any(|begin| name.starts_with(begin)) || of_the_machine(name) {
                continue;
            }
            match have.get(name.as_str()) {
                None if appears_later(name) => {}
                None => wrong.push(format!("{path} has no {name}")),
                Some(have) => wrong.extend(differs(name, want, have).map(|what| format!("{path} {name}: {what}"))),
            }
        }
    }
    wrong.extend(series(recorded, "metrics-resource.txt", "/metrics/resource")?);
    wrong.extend(series(recorded, "metrics-cadvisor-web-and-root.txt", "/metrics/cadvisor")?);
    wrong.extend(flags(recorded)?);
    Ok(wrong)
}

/// Families that show with the first use, of something that a test of this length does not use.
fn appears_later(name: &str) -> bool {
    ["dra_", "kubelet_device_plugin_", "kubelet_pod_resources_"].iter().any(|begin| name.starts_with(begin))
}

fn differs(name: &str, want: &Value, have: &Family) -> Option<String> {
    let labels = want["labels"].as_object()?;
    let names: Vec<&str> = labels.keys().map(|name| &**name).collect();
    if want["type"].as_str() != Some(have.kind.as_str()) || want["stability"].as_str() != have.stability.as_deref() {
        return Some(format!("{} {:?} instead of {} {}", have.kind, have.stability, want["type"], want["stability"]));
    }
    if !names.iter().eq(have.labels.keys()) {
        return Some(format!("labels {:?} instead of {names:?}", have.labels.keys()));
    }
    if want["timestamps"].as_bool().unwrap_or(false) != have.timed {
        return Some(format!("times: {} instead of {}", have.timed, want["timestamps"]));
    }
    if let Some(buckets) = want["buckets"].as_array()
        && !buckets.iter().filter_map(Value::as_str).eq(have.buckets.iter())
    {
        return Some(format!("buckets {:?} instead of {buckets:?}", have.buckets));
    }
    let other = labels.iter().find(|(label, values)| {
        let values = values.as_array().map(|all| all.iter().filter_map(Value::as_str).collect::<BTreeSet<_>>());
        values.is_some_and(|values| !values.iter().eq(have.labels[label.as_str()].iter()))
    });
    let (label, values) = other.filter(|_| SAME_VALUES.contains(&name))?;
    Some(format!("{label} is {:?} instead of {values}", have.labels[label.as_str()]))
}

/// What tells series apart, without what the machine names: whose it is, its name, its labels.
fn kinds(page: &str) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for (name, labels, timed) in page.lines().filter(|l| !l.starts_with('#')).filter_map(sample) {
        let root = labels.get("id").is_some_and(|id| id == "/");
        let shown = labels.iter().map(|(key, value)| match OF_THE_MACHINE.contains(&key.as_str()) {
            true => key.clone(),
            false => format!("{key}={value}"),
        });
        let shown: Vec<String> = shown.collect();
        found.insert(format!("{name} {}{} {timed}", if root { "of the root " } else { "" }, shown.join(",")));
    }
    found
}

/// Every recorded line has one like it.
fn series(recorded: &Recorded, file: &str, path: &str) -> Result<Vec<String>> {
    let unified = Path::new("/sys/fs/cgroup/cgroup.controllers").exists();
    let want = std::fs::read_to_string(recorded.recordings.join(file))?;
    let (want, have) = (kinds(&want), kinds(&recorded.page(path)?));
    let explained = |line: &str| {
        let name = line.split(' ').next().unwrap_or_default();
        // Containers without a limit of memory have none of swap on cgroup v1, and pods of this node have no quota.
        let limits = !unified && (name == "container_swap_limit_bytes" || name == "container_spec_cpu_quota");
        let of_pod =
            line.contains("container=,") && line.contains("namespace=ns1") && name.starts_with("container_cpu_cfs_");
        of_the_machine(name) || limits || !unified && of_pod
    };
    let missing = want.difference(&have).filter(|line| !explained(line)).map(|line| format!("{path} misses {line}"));
    let beyond = have.difference(&want).filter(|line| {
        let known = want.iter().any(|w| w.split(' ').next() == line.split(' ').next());
        file == "metrics-resource.txt" && known
    });
    let beyond: Vec<String> = beyond.map(|line| format!("{path} has {line} too")).collect();
    Ok(missing.chain(beyond).collect())
}

/// Every recorded flag is shown.
fn flags(recorded: &Recorded) -> Result<Vec<String>> {
    let (want, page) = (recorded.file("flagz-names.json")?, recorded.page("/flagz")?);
    let have: BTreeSet<&str> = page.lines().filter_map(|line| Some(line.split_once('=')?.0)).collect();
    let names = want.as_array().context("names")?.iter().filter_map(Value::as_str);
    Ok(names.filter(|name| !have.contains(name)).map(|name| format!("/flagz has no {name}")).collect())
}
