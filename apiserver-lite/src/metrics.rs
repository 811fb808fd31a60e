//! `/metrics`: what the server counts, under upstream's names.
//!
//! A request costs one lock of a small map at its end. Sizes of collections and facts of the process are read when
//! somebody asks.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use crate::http::{Response, respond};
use crate::request::RequestInfo;
use crate::server::{ApiServer, Request};

/// Upper bounds in seconds of `apiserver_request_duration_seconds`, as upstream.
const BOUNDS: [f64; 23] = [
    0.005, 0.025, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 1.0, 1.25, 1.5, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0, 15.0, 20.0, 30.0,
    45.0, 60.0,
];

/// Labels of a request, but for the code.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Labels {
    verb: String,
    group: String,
    version: String,
    resource: String,
    subresource: String,
    scope: &'static str,
}

#[derive(Debug, Default)]
struct Durations {
    buckets: [u64; BOUNDS.len()],
    count: u64,
    seconds: f64,
    /// Requests by HTTP code.
    codes: BTreeMap<u16, u64>,
}

#[derive(Debug, Default)]
struct Counters {
    requests: Mutex<BTreeMap<Labels, Durations>>,
    /// Requests being served: those that read, those that change something.
    reading: AtomicI64,
    mutating: AtomicI64,
    /// Group, version, resource and subresource of deprecated things that somebody asked for.
    deprecated: Mutex<BTreeSet<[String; 4]>>,
}

/// The server's counters; clones share them.
#[derive(Debug, Clone, Default)]
pub struct Metrics(Arc<Counters>);

/// A request being served. Dropped without [`Served::end`] it only stops counting as in flight.
pub struct Served {
    counters: Arc<Counters>,
    labels: Option<Labels>,
    mutating: bool,
    since: Instant,
}

impl Metrics {
    /// Counts a request as in flight. Paths that are no resource are not told apart: a client can make up as many as it
    /// likes.
    pub fn begin(&self, info: &RequestInfo) -> Served {
        let mutating = !matches!(info.verb.as_str(), "get" | "list" | "watch" | "head" | "options");
        self.0.gauge(mutating).fetch_add(1, Ordering::Relaxed);
        let scope = match (info.namespace.is_empty(), info.name.is_empty()) {
            (_, false) => "resource",
            (false, true) => "namespace",
            (true, true) => "cluster",
        };
        let labels = info.is_resource.then(|| Labels {
            verb: info.verb.to_ascii_uppercase(),
            group: info.group.clone(),
            version: info.version.clone(),
            resource: info.resource.clone(),
            subresource: info.subresource.clone(),
            scope,
        });
        Served { counters: self.0.clone(), labels, mutating, since: Instant::now() }
    }
}

impl Metrics {
    /// Somebody asked for something that will go away.
    pub fn deprecated(&self, resource: &crate::resource::Resource, subresource: &str) {
        let labels = [&resource.group, &resource.version, &resource.plural].map(|t| t.to_string());
        let [group, version, plural] = labels;
        let mut all = self.0.deprecated.lock().unwrap_or_else(PoisonError::into_inner);
        all.insert([group, version, plural, subresource.to_owned()]);
    }
}

impl Counters {
    fn gauge(&self, mutating: bool) -> &AtomicI64 {
        if mutating { &self.mutating } else { &self.reading }
    }
}

impl Served {
    /// The answer is ready. For a watch this is when it starts.
    pub fn end(mut self, code: u16) {
        // Names that no resource has must not make the map grow.
        let Some(labels) = self.labels.take().filter(|_| code != 404 && code != 401 && code != 403) else { return };
        let seconds = self.since.elapsed().as_secs_f64();
        let mut requests = self.counters.requests.lock().unwrap_or_else(PoisonError::into_inner);
        let entry = requests.entry(labels).or_default();
        entry.count += 1;
        entry.seconds += seconds;
        *entry.codes.entry(code).or_default() += 1;
        if let Some(at) = BOUNDS.iter().position(|b| seconds <= *b) {
            entry.buckets[at] += 1;
        }
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        self.counters.gauge(self.mutating).fetch_sub(1, Ordering::Relaxed);
    }
}

/// Answers `/metrics` and `/metrics/slis`; None for other paths.
pub fn answer(server: &ApiServer, request: &Request) -> Option<Response> {
    let mut out = String::new();
    match request.info.path.as_str() {
        "/metrics" => {
            requests(&server.metrics.0, &mut out);
            deprecated(&server.metrics.0, &mut out);
            objects(server, &mut out);
            if let Some(flow) = &server.flow {
                crate::flow::metrics(flow, &mut out);
            }
            process(&mut out);
        }
        "/metrics/slis" => health_checks(server, &mut out),
        _ => return None,
    }
    Some(respond::bytes(200, "text/plain; version=0.0.4; charset=utf-8; escaping=underscores", out))
}

/// What the health pages say, for those who compute availability from it.
fn health_checks(server: &ApiServer, out: &mut String) {
    let name = "kubernetes_healthcheck";
    head(out, name, "gauge", "[STABLE] This metric records the result of a single healthcheck.");
    for page in ["healthz", "livez", "readyz"] {
        for (check, good) in crate::health::checks(server, page) {
            let _ = writeln!(out, "{name}{{name=\"{check}\",type=\"{page}\"}} {}", u8::from(good));
        }
    }
}

fn head(out: &mut String, name: &str, kind: &str, help: &str) {
    // Writing to a string does not fail.
    let _ = writeln!(out, "# HELP {name} {help}\n# TYPE {name} {kind}");
}

fn requests(counters: &Counters, out: &mut String) {
    let name = "apiserver_current_inflight_requests";
    head(out, name, "gauge", "Requests being served, by kind.");
    for (kind, mutating) in [("mutating", true), ("readOnly", false)] {
        let count = counters.gauge(mutating).load(Ordering::Relaxed);
        let _ = writeln!(out, "{name}{{request_kind=\"{kind}\"}} {count}");
    }
    let requests = counters.requests.lock().unwrap_or_else(PoisonError::into_inner);
    let name = "apiserver_request_duration_seconds";
    head(out, name, "histogram", "Time until the answer to a request was ready.");
    for (labels, durations) in requests.iter() {
        let labels = text(labels);
        let mut sum = 0;
        for (bound, count) in BOUNDS.iter().zip(durations.buckets) {
            sum += count;
            let _ = writeln!(out, "{name}_bucket{{{labels},le=\"{bound}\"}} {sum}");
        }
        let _ = writeln!(out, "{name}_bucket{{{labels},le=\"+Inf\"}} {}", durations.count);
        let _ =
            writeln!(out, "{name}_sum{{{labels}}} {}\n{name}_count{{{labels}}} {}", durations.seconds, durations.count);
    }
    let name = "apiserver_request_total";
    head(out, name, "counter", "Requests answered, by HTTP code.");
    for (labels, durations) in requests.iter() {
        let labels = text(labels);
        for (code, count) in &durations.codes {
            let _ = writeln!(out, "{name}{{code=\"{code}\",{labels}}} {count}");
        }
    }
}

fn deprecated(counters: &Counters, out: &mut String) {
    let name = "apiserver_requested_deprecated_apis";
    head(
        out,
        name,
        "gauge",
        "[STABLE] Gauge of deprecated APIs that have been requested, broken out by API group, version, resource, \
         subresource, and removed_release.",
    );
    let all = counters.deprecated.lock().unwrap_or_else(PoisonError::into_inner);
    for [group, version, resource, subresource] in all.iter() {
        let _ = writeln!(
            out,
            "{name}{{group=\"{group}\",removed_release=\"\",resource=\"{resource}\",subresource=\"{subresource}\",\
             version=\"{version}\"}} 1"
        );
    }
}

fn text(labels: &Labels) -> String {
    let Labels { verb, group, version, resource, subresource, scope } = labels;
    format!(
        "component=\"apiserver\",group=\"{group}\",resource=\"{resource}\",scope=\"{scope}\",\
         subresource=\"{subresource}\",verb=\"{verb}\",version=\"{version}\""
    )
}

fn objects(server: &ApiServer, out: &mut String) {
    let name = "apiserver_storage_objects";
    head(out, name, "gauge", "Stored objects, by resource.");
    let mut seen = BTreeSet::new();
    for resource in server.resources.current().all() {
        if resource.verbs.contains(crate::resource::Verbs::WATCH) && seen.insert(resource.storage.clone()) {
            let count = server.store.snapshot(&resource.storage).len();
            let _ = writeln!(out, "{name}{{resource=\"{}\"}} {count}", resource.storage.0);
        }
    }
}

/// Facts of the process from /proc; left out where they cannot be read.
fn process(out: &mut String) {
    if let Some(bytes) = service::memory::resident_bytes() {
        let name = "process_resident_memory_bytes";
        head(out, name, "gauge", "Resident memory.");
        let _ = writeln!(out, "{name} {bytes}");
    }
    if let Ok(files) = std::fs::read_dir("/proc/self/fd") {
        let name = "process_open_fds";
        head(out, name, "gauge", "Open file descriptors.");
        let _ = writeln!(out, "{name} {}", files.count());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_in_flight_until_it_ends_and_counted_once() {
        let metrics = Metrics::default();
        let info =
            RequestInfo { is_resource: true, verb: "create".into(), resource: "pods".into(), ..Default::default() };
        let served = metrics.begin(&info);
        assert_eq!(metrics.0.mutating.load(Ordering::Relaxed), 1);
        served.end(201);
        assert_eq!(metrics.0.mutating.load(Ordering::Relaxed), 0);
        let mut out = String::new();
        requests(&metrics.0, &mut out);
        assert!(out.contains("code=\"201\""), "{out}");
    }
}
