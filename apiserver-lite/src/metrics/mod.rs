//! `/metrics`: what the server counts, under upstream's names.
//!
//! Counting takes no lock that others hold for long: series are found under a shared one and counted in atomics. Sizes of
//! collections and facts of the process are read when somebody asks.

mod access;
mod admission;
pub mod apart;
mod facts;
mod histogram;
mod page;
mod process;
mod requests;
mod scheduling;
mod watches;

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::sync::{Arc, Mutex, PoisonError};

pub use access::{Access, Attempt, Decisions};
pub use admission::{Outcome, Steps, Type, Webhooks};
pub use requests::{Joined, Served, Unhandled};
pub use scheduling::{Scheduling, Waited};
pub use watches::Sent;

use page::{escaped, head};

use crate::http::{Body, Response, respond};
use crate::resource::Set;
use crate::server::{ApiServer, Request};

#[derive(Debug, Default)]
struct Counters {
    requests: Arc<requests::Requests>,
    watches: watches::Watches,
    access: Access,
    scheduling: Scheduling,
    health: facts::Checks,
    lost: facts::Losses,
    /// Group, release without it, resource, subresource and version of deprecated things that somebody asked for.
    deprecated: Mutex<BTreeSet<[String; 5]>>,
}

/// The server's counters; clones share them.
#[derive(Debug, Clone, Default)]
pub struct Metrics(Arc<Counters>);

impl Metrics {
    /// Takes note of a request; `set` is asked only for what was never counted before. Paths that are no resource are
    /// not told apart: a client can make up as many as it likes.
    pub fn begin(&self, request: &Request, set: impl FnOnce() -> Arc<Set>) -> Served {
        self.0.requests.begin(request, set)
    }

    /// Who asks, and whether that is allowed.
    pub fn access(&self) -> &Access {
        &self.0.access
    }

    /// A check of health was looked at.
    pub fn checked(&self, page: &'static str, check: &'static str, good: bool) {
        self.0.health.count((page, check, good));
    }

    /// An aggregated API was there and is not any more.
    pub fn lost(&self, service: &str, reason: &'static str) {
        self.0.lost.count((service.to_owned(), reason));
    }

    /// What the scheduler waits for.
    pub fn scheduling(&self) -> &Scheduling {
        &self.0.scheduling
    }

    /// Counts the events that a watch of a resource sends.
    pub fn watch(&self, resource: &crate::resource::Resource) -> Sent {
        self.0.watches.sent(resource)
    }
}

impl Metrics {
    /// Somebody asked for something that will go away: in release `removed`, where that is known.
    pub fn deprecated(&self, resource: &crate::resource::Resource, subresource: &str, removed: &str) {
        let labels = [&*resource.group, removed, &*resource.plural, subresource, &*resource.version];
        let mut all = self.0.deprecated.lock().unwrap_or_else(PoisonError::into_inner);
        all.insert(labels.map(ToOwned::to_owned));
    }
}

/// Answers `/metrics` and `/metrics/slis`; None for other paths. A DELETE of either begins anew, any other method reads.
pub fn answer(server: &ApiServer, request: &Request) -> Option<Response> {
    let mut out = String::new();
    if request.method == http::Method::DELETE {
        match request.info.path.as_str() {
            "/metrics" => reset(server),
            // What else is there is looked up when it is asked for.
            "/metrics/slis" => server.metrics.0.health.reset(),
            _ => return None,
        }
        return Some(respond::with_type(200, "text/plain; charset=utf-8", Body::from("metrics reset\n")));
    }
    match request.info.path.as_str() {
        "/metrics" => {
            server.metrics.0.requests.write(&mut out);
            server.metrics.0.watches.write(&mut out);
            server.metrics.0.access.write(&mut out);
            server.metrics.0.scheduling.write(&mut out);
            server.authorizer.decisions().write(&mut out);
            server.admission.metrics(&mut out);
            deprecated(&server.metrics.0, &mut out);
            objects(server, &mut out);
            store_size(server, &mut out);
            if let Some(flow) = &server.flow {
                crate::flow::metrics(flow, &mut out);
            }
            facts::api_services(server, &server.metrics.0.lost, &mut out);
            facts::build(&mut out);
            process::write(&mut out);
        }
        "/metrics/slis" => facts::health_checks(server, &server.metrics.0.health, &mut out),
        _ => return None,
    }
    Some(respond::bytes(200, "text/plain; version=0.0.4; charset=utf-8; escaping=underscores", out))
}

/// Counts from zero. What is going on, what there is, and the times of flow control stay as they are.
fn reset(server: &ApiServer) {
    let counters = &server.metrics.0;
    counters.requests.reset();
    counters.watches.reset();
    counters.access.reset();
    counters.scheduling.reset();
    counters.lost.reset();
    counters.deprecated.lock().unwrap_or_else(PoisonError::into_inner).clear();
    server.authorizer.decisions().reset();
    server.admission.reset_metrics();
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
    for labels in all.iter() {
        let [group, removed, resource, subresource, version] = labels.each_ref().map(|label| escaped(label));
        let _ = writeln!(
            out,
            "{name}{{group=\"{group}\",removed_release=\"{removed}\",resource=\"{resource}\",\
             subresource=\"{subresource}\",version=\"{version}\"}} 1"
        );
    }
}

fn objects(server: &ApiServer, out: &mut String) {
    let name = "apiserver_storage_objects";
    head(
        out,
        name,
        "gauge",
        "[STABLE] Number of stored objects at the time of last check split by kind. In case of a fetching error, the \
         value will be -1.",
    );
    let mut seen = BTreeSet::new();
    for resource in server.resources.current().all() {
        if resource.verbs.contains(crate::resource::Verbs::WATCH) && seen.insert(resource.storage.clone()) {
            let count = server.store.snapshot(&resource.storage).len();
            let _ = writeln!(out, "{name}{{resource=\"{}\"}} {count}", escaped(&resource.storage.0));
        }
    }
}

/// What the store takes on disk; left out where it is in memory alone.
fn store_size(server: &ApiServer, out: &mut String) {
    let Some(bytes) = server.store.bytes_on_disk() else { return };
    let name = "apiserver_storage_size_bytes";
    head(out, name, "gauge", "[STABLE] Size of the storage database file physically allocated in bytes.");
    let _ = writeln!(out, "{name}{{storage_cluster_id=\"etcd-0\"}} {bytes}");
}
