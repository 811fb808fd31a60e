//! What is looked up when somebody asks, and what is counted seldom: checks of health, aggregated APIs, the build.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::{Mutex, PoisonError};

use super::page::{escaped, head};
use crate::server::ApiServer;
use crate::store::ResourceId;

/// How often something seldom happened, by labels.
#[derive(Debug)]
pub struct Tally<K>(Mutex<BTreeMap<K, u64>>);

impl<K> Default for Tally<K> {
    fn default() -> Self {
        Tally(Mutex::default())
    }
}

impl<K: Ord + Clone> Tally<K> {
    pub fn count(&self, key: K) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner).entry(key).or_default() += 1;
    }

    pub fn reset(&self) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }

    fn all(&self) -> BTreeMap<K, u64> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// Page, check and whether it passed.
pub type Checks = Tally<(&'static str, &'static str, bool)>;

/// What the health pages say, for those who compute availability from it, and how often they said it.
pub fn health_checks(server: &ApiServer, counted: &Checks, out: &mut String) {
    let name = "kubernetes_healthcheck";
    head(out, name, "gauge", "[STABLE] This metric records the result of a single healthcheck.");
    for page in ["healthz", "livez", "readyz"] {
        for (check, good) in crate::health::checks(server, page) {
            let _ = writeln!(out, "{name}{{name=\"{check}\",type=\"{page}\"}} {}", u8::from(good));
        }
    }
    let name = "kubernetes_healthchecks_total";
    head(out, name, "counter", "[STABLE] This metric records the results of all healthcheck.");
    for ((page, check, good), count) in counted.all() {
        let status = if good { "success" } else { "error" };
        let _ = writeln!(out, "{name}{{name=\"{check}\",status=\"{status}\",type=\"{page}\"}} {count}");
    }
}

/// Name of an aggregated API, and why it could not be had.
pub type Losses = Tally<(String, &'static str)>;

/// Which APIs cannot be had, and how often each was lost.
pub fn api_services(server: &ApiServer, lost: &Losses, out: &mut String) {
    let name = "aggregator_unavailable_apiservice";
    let help = "[ALPHA] Gauge of APIServices which are marked as unavailable broken down by APIService name.";
    head(out, name, "gauge", help);
    let snapshot = server.store.snapshot(&ResourceId::from("apiservices.apiregistration.k8s.io"));
    for service in snapshot.range(None, None) {
        let value = service.without_owners();
        let conditions = value["status"]["conditions"].as_array().into_iter().flatten();
        let away = conditions.into_iter().any(|c| c["type"] == "Available" && c["status"] == "False");
        let _ = writeln!(out, "{name}{{name=\"{}\"}} {}", escaped(&service.key.name), u8::from(away));
    }
    let name = "aggregator_unavailable_apiservice_total";
    let help =
        "[ALPHA] Counter of APIServices which are marked as unavailable broken down by APIService name and reason.";
    head(out, name, "counter", help);
    for ((service, reason), count) in lost.all() {
        let _ = writeln!(out, "{name}{{name=\"{}\",reason=\"{reason}\"}} {count}", escaped(&service));
    }
}

/// Which version this is.
pub fn build(out: &mut String) {
    let name = "kubernetes_build_info";
    head(
        out,
        name,
        "gauge",
        "[ALPHA] A metric with a constant '1' value labeled by major, minor, git version, git commit, git tree state, \
         build date, Go version, and compiler from which Kubernetes was built, and platform on which it is running.",
    );
    let facts = crate::health::build();
    let labels = [
        ("build_date", "buildDate"),
        ("compiler", "compiler"),
        ("git_commit", "gitCommit"),
        ("git_tree_state", "gitTreeState"),
        ("git_version", "gitVersion"),
        ("go_version", "goVersion"),
        ("major", "major"),
        ("minor", "minor"),
        ("platform", "platform"),
    ];
    let labels =
        labels.map(|(label, fact)| format!("{label}=\"{}\"", escaped(facts[fact].as_str().unwrap_or_default())));
    let _ = writeln!(out, "{name}{{{}}} 1", labels.join(","));
}
