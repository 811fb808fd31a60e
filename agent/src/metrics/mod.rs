//! What the agent counts about itself, under the kubelet's names.
//!
//! A [`Family`] is a static with its series: recording one without labels is one atomic operation, one with labels a
//! short look-up before it. Nothing here ever waits for a scrape: a scrape copies numbers out ([`gather`]) and writes
//! them afterwards ([`page`]). These are figures of the process, so they are the process's own, like its log.
//!
//! Deprecated families are hidden one version after their deprecation, unless `--show-hidden-metrics-for-version` names
//! the version before this one. Followed: component-base `metrics`.

mod catalogue;
mod family;
mod node_start;
pub mod page;
mod process;
mod prototext;
mod wire;

use std::collections::BTreeMap;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};

pub use self::catalogue::*;
pub use self::family::{Family, Kind, Labels, Sample, Snapshot, Stability, Timer, Value};
pub use self::node_start::{node_is_ready, node_registers};
use crate::config::{FeatureGates, GATES, Stage};
use crate::node::KUBELET_VERSION;

/// The minor version whose metrics these are.
const MINOR: u32 = 36;

static SHOW_HIDDEN: AtomicBool = AtomicBool::new(false);
static NATIVE: AtomicBool = AtomicBool::new(false);
static GATES_SET: OnceLock<FeatureGates> = OnceLock::new();
/// When the serving certificate ends, in seconds since 1970; zero while there is none.
static SERVER_CERTIFICATE: AtomicI64 = AtomicI64::new(0);
/// The same of the certificate that the agent renews for itself as a client.
static CLIENT_CERTIFICATE: AtomicI64 = AtomicI64::new(0);
static PLUGIN_CERTIFICATE: AtomicI64 = AtomicI64::new(0);
/// How often the registry left a family out.
static HIDDEN: AtomicU64 = AtomicU64::new(0);

/// Whether `showHiddenMetricsForVersion` asks for metrics that are hidden in this version.
///
/// # Errors
/// It is neither empty nor the version before.
pub fn shows_hidden(version: &str) -> Result<bool, String> {
    let allowed = format!("1.{}", MINOR - 1);
    if version.is_empty() || version == allowed {
        return Ok(!version.is_empty());
    }
    Err(format!(
        "--show-hidden-metrics-for-version must be omitted or have the value '{allowed}'. Only the previous minor version \
         is allowed"
    ))
}

/// Settles what is shown; the first call counts. `shown` is `MAJOR.MINOR`, or empty.
///
/// # Errors
/// A version that is not the one before this.
pub fn start(gates: &FeatureGates, shown: &str) -> Result<(), String> {
    if shows_hidden(shown)? {
        SHOW_HIDDEN.store(true, Ordering::Relaxed);
    }
    NATIVE.store(gates.enabled("NativeHistograms"), Ordering::Relaxed);
    let _ = GATES_SET.set(gates.clone());
    let hidden = ALL.iter().filter(|f| is_hidden(f.deprecated)).count();
    HIDDEN.store(u64::try_from(hidden).unwrap_or(0), Ordering::Relaxed);
    process::start();
    Ok(())
}

/// Remembers when the serving certificate ends, in seconds since 1970.
pub fn server_certificate_expires(at: i64) {
    SERVER_CERTIFICATE.store(at, Ordering::Relaxed);
}

/// Remembers when the certificate ends by which the agent is a client, in seconds since 1970.
pub fn client_certificate_expires(at: i64) {
    CLIENT_CERTIFICATE.store(at, Ordering::Relaxed);
}

/// Remembers when the certificate ends that the program of a kubeconfig gave.
pub fn plugin_certificate_expires(at: i64) {
    PLUGIN_CERTIFICATE.store(at, Ordering::Relaxed);
}

/// Seconds until a certificate ends, below zero after that; None where there is none.
fn left(at: &AtomicI64) -> Option<f64> {
    let left = Some(at.load(Ordering::Relaxed)).filter(|at| *at != 0)? - proto::time::Timestamp::now().seconds;
    Some(if left < 0 { -1.0 } else { 1.0 } * page::to_float(left.unsigned_abs()))
}

fn certificates() -> impl Iterator<Item = Snapshot> {
    let help = "[ALPHA] Gauge of the shortest TTL (time-to-live) of the Kubelet's serving certificate. The value is in \
                seconds until certificate expiry (negative if already expired). If serving certificate is invalid or \
                unused, the value will be +INF.";
    let server = ("kubelet_certificate_manager_server_ttl_seconds", help, &SERVER_CERTIFICATE);
    let help = "[ALPHA] Gauge of the TTL (time-to-live) of the Kubelet's client certificate. The value is in seconds until \
                certificate expiry (negative if already expired). If client certificate is invalid or unused, the value \
                will be +INF.";
    let client = ("kubelet_certificate_manager_client_ttl_seconds", help, &CLIENT_CERTIFICATE);
    let shown = |(name, help, at)| Some(Snapshot::gauge(name, help).with(&[], left(at)?));
    [server, client].into_iter().filter_map(shown)
}

/// Without a program that gives a certificate none ever ends.
fn exec_plugins() -> Snapshot {
    Snapshot::gauge(
        "rest_client_exec_plugin_ttl_seconds",
        "[ALPHA] Gauge of the shortest TTL (time-to-live) of the client certificate(s) managed by the auth exec plugin. \
         The value is in seconds until certificate expiry (negative if already expired). If auth exec plugins are unused \
         or manage no TLS certificates, the value will be +INF.",
    )
    .with(&[], left(&PLUGIN_CERTIFICATE).unwrap_or(f64::INFINITY))
}

/// Whether exponential buckets are kept beside the fixed ones.
fn native() -> bool {
    NATIVE.load(Ordering::Relaxed)
}

/// Whether what a minor version deprecated is shown still.
pub fn shows_deprecated(minor: u32) -> bool {
    !is_hidden(Some(minor))
}

fn is_hidden(deprecated: Option<u32>) -> bool {
    deprecated.is_some_and(|minor| minor < MINOR) && !SHOW_HIDDEN.load(Ordering::Relaxed)
}

/// Everything of `/metrics`, sorted by name.
pub fn gather() -> Vec<Snapshot> {
    let shown = |family: &&&Family| {
        let waits = FROM_FIRST_USE.iter().any(|other| other.name == family.name);
        !is_hidden(family.deprecated) && (!waits || family.is_used())
    };
    let mut found: Vec<Snapshot> = ALL.iter().filter(shown).filter_map(|f| f.snapshot()).collect();
    found.extend(process::gather());
    found.extend(certificates());
    found.push(exec_plugins());
    found.push(build_info());
    found.extend(registry());
    if let Some(gates) = GATES_SET.get() {
        found.push(features(gates));
    }
    found.sort_by(|a, b| a.name.cmp(&b.name));
    found
}

/// The families of `/metrics/probes`.
pub fn gather_probes() -> Vec<Snapshot> {
    let mut found: Vec<Snapshot> = PROBES.iter().filter_map(|f| f.snapshot()).collect();
    found.extend(process::start_time());
    found
}

/// The families of `/metrics/slis`.
pub fn gather_slis() -> Vec<Snapshot> {
    let mut found: Vec<Snapshot> = SLIS.iter().filter_map(|f| f.snapshot()).collect();
    found.extend(process::start_time());
    found
}

/// Forgets what the health checks were, as a `DELETE` of `/metrics/slis` asks.
pub fn reset_slis() {
    for family in SLIS {
        family.reset();
    }
}

fn build_info() -> Snapshot {
    let version = KUBELET_VERSION.trim_start_matches('v');
    let mut parts = version.split('.');
    let (major, minor) = (parts.next().unwrap_or_default(), parts.next().unwrap_or_default());
    let platform = format!("linux/{}", architecture());
    let labels = [
        ("build_date", ""),
        ("compiler", "rustc"),
        ("git_commit", ""),
        ("git_tree_state", ""),
        ("git_version", KUBELET_VERSION),
        ("go_version", "none"),
        ("major", major),
        ("minor", minor),
        ("platform", platform.as_str()),
    ];
    Snapshot::gauge(
        "kubernetes_build_info",
        "[BETA] A metric with a constant '1' value labeled by major, minor, git version, git commit, git tree state, \
         build date, Go version, and compiler from which Kubernetes was built, and platform on which it is running.",
    )
    .with(&labels, 1.0)
}

/// As Go names it.
fn architecture() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}

fn features(gates: &FeatureGates) -> Snapshot {
    let mut family = Snapshot::gauge(
        "kubernetes_feature_enabled",
        "[BETA] This metric records the data about the stage and enablement of a k8s feature.",
    );
    for (name, stage, _) in GATES {
        let stage = match stage {
            Stage::Alpha => "ALPHA",
            Stage::Beta => "BETA",
            Stage::Ga => "",
            Stage::Deprecated => "DEPRECATED",
        };
        family = family.with(&[("name", name), ("stage", stage)], if gates.enabled(name) { 1.0 } else { 0.0 });
    }
    family
}

/// What the registry says about itself.
fn registry() -> [Snapshot; 3] {
    let mut registered = Snapshot::counter(
        "registered_metrics_total",
        "[BETA] The count of registered metrics broken by stability level and deprecation version.",
    );
    // What is not in a table: the start of the process, on each of three pages; the build, the gates, the registry's own
    // three; the times to live of three certificates.
    let others = [(Stability::Stable, 3), (Stability::Beta, 5), (Stability::Alpha, 3)];
    let mut counts: BTreeMap<(&str, Option<u32>), u64> = BTreeMap::new();
    for (level, count) in others {
        counts.insert((level.name(), None), count);
    }
    for family in ALL.iter().chain(PROBES).chain(SLIS) {
        *counts.entry((family.stability.name(), family.deprecated)).or_default() += 1;
    }
    for ((level, version), count) in counts {
        let text = version.map(|minor| format!("1.{minor}.0")).unwrap_or_default();
        let labels = [("deprecated_version", text.as_str()), ("stability_level", level)];
        registered = registered.with(&labels, page::to_float(count));
    }
    let hidden = page::to_float(HIDDEN.load(Ordering::Relaxed));
    [
        registered,
        Snapshot::counter("hidden_metrics_total", "[BETA] The count of hidden metrics.").with(&[], hidden),
        Snapshot::counter("disabled_metrics_total", "[BETA] The count of disabled metrics.").with(&[], 0.0),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_families_are_unique_and_sorted_pages_follow() {
        let mut names: Vec<&str> = ALL.iter().chain(PROBES).chain(SLIS).map(|f| f.name).collect();
        let all = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), all);
        let gathered = gather();
        assert!(gathered.windows(2).all(|w| w[0].name < w[1].name));
    }

    /// Counters of renewals used to be absent, and would be a zero where nothing is ever renewed.
    #[test]
    fn what_may_never_happen_shows_once_it_has() {
        let shows = |name: &str| gather().iter().any(|f| f.name == name);
        let (ttl, errors) = (
            "kubelet_certificate_manager_client_ttl_seconds",
            "kubelet_certificate_manager_client_expiration_renew_errors",
        );
        assert!(!shows(ttl) && !shows(errors));
        client_certificate_expires(1);
        CLIENT_RENEWAL_ERRORS.add(&[], 0.0);
        assert!(shows(ttl) && shows(errors));
    }

    #[test]
    fn deprecated_families_are_hidden_from_the_next_version_on() {
        assert!(!is_hidden(None));
        assert!(!is_hidden(Some(MINOR)));
        assert!(is_hidden(Some(MINOR - 1)));
        assert!(start(&FeatureGates::default(), "1.30").is_err());
        assert!(start(&FeatureGates::default(), "soon").is_err());
    }
}
