//! What is counted of requests, one series for each combination of labels.
//!
//! A series exists only for resources that are served: names, groups and methods that a client makes up lead to none.
//! Finding a series takes a shared lock of the map; counting takes none. Follows `apiserver/pkg/endpoints/metrics`.

use std::collections::{BTreeMap, HashMap};
use std::fmt::Write as _;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::atomic::{AtomicI64, AtomicU16, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, PoisonError, RwLock};
use std::time::{Duration, Instant};

use super::histogram::{Bounds, Histogram, Shown, Unit};
use super::page::{escaped, head};
use crate::http::{Body, Response};
use crate::limits;
use crate::request::RequestInfo;
use crate::resource::Set;
use crate::server::Request;

/// As upstream, like all bounds here.
const SECONDS: Bounds<23> = [
    (5_000_000, "0.005"),
    (25_000_000, "0.025"),
    (50_000_000, "0.05"),
    (100_000_000, "0.1"),
    (200_000_000, "0.2"),
    (400_000_000, "0.4"),
    (600_000_000, "0.6"),
    (800_000_000, "0.8"),
    (1_000_000_000, "1"),
    (1_250_000_000, "1.25"),
    (1_500_000_000, "1.5"),
    (2_000_000_000, "2"),
    (3_000_000_000, "3"),
    (4_000_000_000, "4"),
    (5_000_000_000, "5"),
    (6_000_000_000, "6"),
    (8_000_000_000, "8"),
    (10_000_000_000, "10"),
    (15_000_000_000, "15"),
    (20_000_000_000, "20"),
    (30_000_000_000, "30"),
    (45_000_000_000, "45"),
    (60_000_000_000, "60"),
];

/// Those of what is promised: [`SECONDS`] but for the two shortest.
const PROMISED: Bounds<21> = {
    let mut bounds = [SECONDS[2]; 21];
    let mut at = 0;
    while at < bounds.len() {
        bounds[at] = SECONDS[at + 2];
        at += 1;
    }
    bounds
};

const BYTES: Bounds<7> = [
    (1_000, "1000"),
    (10_000, "10000"),
    (100_000, "100000"),
    (1_000_000, "1e+06"),
    (10_000_000, "1e+07"),
    (100_000_000, "1e+08"),
    (1_000_000_000, "1e+09"),
];

/// Codes that one series tells apart; more than any handler of ours answers with.
const CODES: usize = 24;

/// Counts for all codes that come when the places are taken: a backend behind a proxy may answer with any. No answer has
/// it.
const OTHER: u16 = 600;

/// Pages that are counted though they are no resource.
const PAGES: [&str; 3] = ["/healthz", "/livez", "/readyz"];

/// What became of a request that no handler has seen; an extension of its answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unhandled {
    /// Nobody who may ask for it: not counted.
    Refused,
    /// Sent away because there is too much to do: counted, without a duration.
    Dropped,
}

/// Labels of a request, but for the code.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Labels<'a> {
    verb: &'static str,
    dry_run: &'static str,
    group: &'a str,
    version: &'a str,
    resource: &'a str,
    subresource: &'a str,
    scope: &'static str,
    component: &'static str,
}

/// The texts of [`Labels`] that are the client's.
#[derive(Debug)]
struct Names {
    group: Box<str>,
    version: Box<str>,
    resource: Box<str>,
    subresource: Box<str>,
}

#[derive(Debug)]
struct Series {
    verb: &'static str,
    dry_run: &'static str,
    scope: &'static str,
    component: &'static str,
    names: Names,
    seconds: Histogram<23>,
    /// Without what was waited for others, and without streams.
    promised: Histogram<21>,
    bytes: Histogram<7>,
    /// HTTP codes and how often each was answered; 0 for a free place.
    codes: [(AtomicU16, AtomicU64); CODES],
    /// How many more were answered, with other codes.
    others: AtomicU64,
    /// Streams that are open.
    running: AtomicI64,
}

/// The requests of a server.
#[derive(Debug, Default)]
pub struct Requests {
    /// By the hash of the labels.
    series: RwLock<HashMap<u64, Vec<Arc<Series>>>>,
    reading: AtomicI64,
    mutating: AtomicI64,
}

/// A request being served. Dropped without [`Served::end`] it only stops counting as in flight.
pub struct Served {
    requests: Arc<Requests>,
    series: Option<Arc<Series>>,
    /// Whether it may change something; None for one that goes on without end, which is not in flight.
    mutating: Option<bool>,
    since: Instant,
}

/// Counts a request when it is dropped: right away, or with the stream that answers it.
struct End {
    series: Arc<Series>,
    code: u16,
    since: Instant,
    runs: bool,
    /// How long others were waited for; None for a kind of request that goes on without end.
    apart: Option<Duration>,
}

/// The client's connection joined with another one: on the answer that says so, and wherever bytes are copied. The
/// request runs until the last of these is dropped.
#[derive(Clone, Default)]
pub struct Joined(Arc<Held>);

/// What is dropped when the connections part.
#[derive(Default)]
struct Held {
    counted: OnceLock<End>,
    /// Somebody else's.
    other: OnceLock<Box<dyn Send + Sync>>,
}

impl Joined {
    /// Keeps something until the connections part; the first that is given.
    pub fn hold(&self, other: impl Send + Sync + 'static) {
        let _ = self.0.other.set(Box::new(other));
    }
}

fn verb(request: &Request) -> &'static str {
    let info = &request.info;
    let connects = ["log", "exec", "portforward", "attach", "proxy"].contains(&info.subresource.as_str());
    match (request.method.as_str(), info.verb.as_str()) {
        _ if info.is_resource && connects => "CONNECT",
        ("GET", "watch") => "WATCH",
        ("GET" | "HEAD", "list") => "LIST",
        ("GET" | "HEAD", _) => "GET",
        ("PATCH", _) if request.content_type() == "application/apply-patch+yaml" => "APPLY",
        ("PATCH", _) => "PATCH",
        ("POST", _) => "POST",
        ("PUT", _) => "PUT",
        // Of a collection too: the scope tells them apart.
        ("DELETE", _) => "DELETE",
        // So that methods that somebody makes up do not become series.
        _ => "other",
    }
}

fn scope(info: &RequestInfo) -> &'static str {
    let named = !info.name.is_empty() && !info.named_by_selector;
    match info.verb.as_str() {
        _ if !info.is_resource => "",
        "create" => "resource",
        _ if named => "resource",
        _ if !info.namespace.is_empty() => "namespace",
        _ => "cluster",
    }
}

fn dry_run(request: &Request) -> &'static str {
    let mut said = request.query.all("dryRun").peekable();
    if said.peek().is_none() {
        return "";
    }
    if said.all(|value| value == "All") { "All" } else { "invalid" }
}

impl<'a> Labels<'a> {
    /// None for what is not counted whatever comes of it.
    fn of(request: &'a Request) -> Option<Self> {
        let info = &request.info;
        let page = PAGES.contains(&info.path.as_str());
        if !info.is_resource && !page {
            return None;
        }
        Some(Labels {
            verb: verb(request),
            dry_run: dry_run(request),
            group: &info.group,
            version: &info.version,
            resource: &info.resource,
            subresource: if page { &info.path } else { &info.subresource },
            scope: scope(info),
            component: if page { "" } else { "apiserver" },
        })
    }

    fn hash(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        Hash::hash(self, &mut hasher);
        hasher.finish()
    }

    /// Whether somebody serves it.
    fn is_known(&self, set: &Set) -> bool {
        if self.component.is_empty() {
            return true;
        }
        let found = set.lookup(self.group, self.version, self.resource);
        found.is_some_and(|r| self.subresource.is_empty() || r.subresource(self.subresource).is_some())
    }
}

impl Series {
    fn new(labels: &Labels<'_>) -> Self {
        let Labels { verb, dry_run, group, version, resource, subresource, scope, component } = *labels;
        Series {
            verb,
            dry_run,
            scope,
            component,
            names: Names {
                group: group.into(),
                version: version.into(),
                resource: resource.into(),
                subresource: subresource.into(),
            },
            seconds: Histogram::default(),
            promised: Histogram::default(),
            bytes: Histogram::default(),
            codes: std::array::from_fn(|_| Default::default()),
            others: AtomicU64::new(0),
            running: AtomicI64::new(0),
        }
    }

    fn labels(&self) -> Labels<'_> {
        let Names { group, version, resource, subresource } = &self.names;
        let Series { verb, dry_run, scope, component, .. } = *self;
        Labels { verb, dry_run, group, version, resource, subresource, scope, component }
    }

    fn count(&self, code: u16) {
        for (place, count) in &self.codes {
            let free = place.compare_exchange(0, code, Ordering::Relaxed, Ordering::Relaxed);
            if free.is_ok() || free == Err(code) {
                count.fetch_add(1, Ordering::Relaxed);
                return;
            }
        }
        self.others.fetch_add(1, Ordering::Relaxed);
    }

    fn reset(&self) {
        self.seconds.reset();
        self.promised.reset();
        self.bytes.reset();
        // Which place is whose stays as it is.
        let counts = self.codes.iter().map(|(_, count)| count).chain([&self.others]);
        counts.for_each(|count| count.store(0, Ordering::Relaxed));
    }

    /// Codes and how often each was answered.
    fn counted(&self) -> impl Iterator<Item = (u16, u64)> {
        let own = self.codes.iter().map(|(code, count)| (code.load(Ordering::Relaxed), count.load(Ordering::Relaxed)));
        own.chain([(OTHER, self.others.load(Ordering::Relaxed))]).filter(|(_, count)| *count > 0)
    }
}

impl Drop for End {
    fn drop(&mut self) {
        if self.runs {
            self.series.running.fetch_sub(1, Ordering::Relaxed);
        }
        self.series.count(self.code);
        let took = self.since.elapsed();
        self.series.seconds.took(&SECONDS, took);
        if let Some(apart) = self.apart {
            self.series.promised.took(&PROMISED, took.saturating_sub(apart));
        }
    }
}

impl Requests {
    fn gauge(&self, mutating: bool) -> &AtomicI64 {
        if mutating { &self.mutating } else { &self.reading }
    }

    fn find(&self, labels: &Labels<'_>, set: impl FnOnce() -> Arc<Set>) -> Option<Arc<Series>> {
        let hash = labels.hash();
        let same = |all: &Vec<Arc<Series>>| all.iter().find(|s| s.labels() == *labels).cloned();
        let found = self.series.read().unwrap_or_else(PoisonError::into_inner).get(&hash).and_then(same);
        if found.is_some() {
            return found;
        }
        if !labels.is_known(&set()) {
            return None;
        }
        let mut all = self.series.write().unwrap_or_else(PoisonError::into_inner);
        let all = all.entry(hash).or_default();
        // Somebody may have been faster.
        Some(same(all).unwrap_or_else(|| {
            let new = Arc::new(Series::new(labels));
            all.push(new.clone());
            new
        }))
    }

    /// Takes note of a request; `set` is asked only for what was never counted before.
    pub fn begin(self: &Arc<Self>, request: &Request, set: impl FnOnce() -> Arc<Set>) -> Served {
        let info = &request.info;
        let endless = limits::is_long_running(info);
        let mutating =
            (!endless).then_some(!matches!(info.verb.as_str(), "get" | "list" | "watch" | "head" | "options"));
        if let Some(mutating) = mutating {
            self.gauge(mutating).fetch_add(1, Ordering::Relaxed);
        }
        let series = Labels::of(request).and_then(|labels| self.find(&labels, set));
        Served { requests: self.clone(), series, mutating, since: Instant::now() }
    }

    /// Forgets what was served; what is being served stays.
    pub fn reset(&self) {
        let mut map = self.series.write().unwrap_or_else(PoisonError::into_inner);
        map.retain(|_, all| {
            // One that somebody holds will be added to.
            all.retain(|series| series.running.load(Ordering::Relaxed) > 0 || Arc::strong_count(series) > 1);
            all.iter().for_each(|series| series.reset());
            !all.is_empty()
        });
    }

    pub fn write(&self, out: &mut String) {
        let name = "apiserver_current_inflight_requests";
        head(
            out,
            name,
            "gauge",
            "[STABLE] Maximal number of currently used inflight request limit of this apiserver per request kind in \
             last second.",
        );
        for (kind, mutating) in [("mutating", true), ("readOnly", false)] {
            let count = self.gauge(mutating).load(Ordering::Relaxed);
            let _ = writeln!(out, "{name}{{request_kind=\"{kind}\"}} {count}");
        }
        let map = self.series.read().unwrap_or_else(PoisonError::into_inner);
        let mut all: Vec<&Arc<Series>> = map.values().flatten().collect();
        all.sort_by(|a, b| a.labels().cmp(&b.labels()));
        totals(&all, out);
        promises(&all, out);
        streams(&all, out);
        sizes(&all, out);
    }
}

fn totals(all: &[&Arc<Series>], out: &mut String) {
    let name = "apiserver_request_duration_seconds";
    head(
        out,
        name,
        "histogram",
        "[STABLE] Response latency distribution in seconds for each verb, dry run value, group, version, resource, \
         subresource, scope and component.",
    );
    for series in all {
        let shown = series.seconds.shown();
        if shown.count > 0 {
            shown.write(out, name, &series.labels().text(true), &SECONDS, Unit::Seconds);
        }
    }
    let name = "apiserver_request_total";
    head(
        out,
        name,
        "counter",
        "[STABLE] Counter of apiserver requests broken out for each verb, dry run value, group, version, resource, \
         scope, component, and HTTP response code.",
    );
    for series in all {
        let labels = series.labels().text(true);
        for (code, count) in series.counted() {
            let _ = writeln!(out, "{name}{{code=\"{code}\",{labels}}} {count}");
        }
    }
}

fn promises(all: &[&Arc<Series>], out: &mut String) {
    let name = "apiserver_request_sli_duration_seconds";
    head(
        out,
        name,
        "histogram",
        "[ALPHA] Response latency distribution (not counting webhook duration and priority & fairness queue wait times) \
         in seconds for each verb, group, version, resource, subresource, scope and component.",
    );
    let mut times: BTreeMap<String, Shown<21>> = BTreeMap::new();
    for series in all {
        let shown = series.promised.shown();
        if shown.count > 0 {
            times.entry(series.labels().text(false)).or_default().add(&shown);
        }
    }
    for (labels, shown) in times {
        shown.write(out, name, &labels, &PROMISED, Unit::Seconds);
    }
}

fn streams(all: &[&Arc<Series>], out: &mut String) {
    let name = "apiserver_longrunning_requests";
    head(
        out,
        name,
        "gauge",
        "[STABLE] Gauge of all active long-running apiserver requests broken out by verb, group, version, resource, \
         scope and component. Not all requests are tracked this way.",
    );
    let mut running: BTreeMap<String, i64> = BTreeMap::new();
    for series in all.iter().filter(|s| matches!(s.verb, "WATCH" | "CONNECT")) {
        *running.entry(series.labels().text(false)).or_default() += series.running.load(Ordering::Relaxed);
    }
    for (labels, count) in running {
        let _ = writeln!(out, "{name}{{{labels}}} {count}");
    }
}

fn sizes(all: &[&Arc<Series>], out: &mut String) {
    let name = "apiserver_response_sizes";
    head(
        out,
        name,
        "histogram",
        "[STABLE] Response size distribution in bytes for each group, version, verb, resource, subresource, scope and \
         component.",
    );
    let mut sizes: BTreeMap<String, Shown<7>> = BTreeMap::new();
    for series in all {
        let shown = series.bytes.shown();
        if shown.count > 0 {
            sizes.entry(series.labels().text(false)).or_default().add(&shown);
        }
    }
    for (labels, shown) in sizes {
        shown.write(out, name, &labels, &BYTES, Unit::Bytes);
    }
}

impl Labels<'_> {
    /// As the page has them.
    fn text(&self, dry_run: bool) -> String {
        let Labels { verb, group, version, resource, subresource, scope, component, .. } = self;
        let [group, version, resource, subresource] = [group, version, resource, subresource].map(|t| escaped(t));
        let said = if dry_run { format!("dry_run=\"{}\",", self.dry_run) } else { String::new() };
        format!(
            "component=\"{component}\",{said}group=\"{group}\",resource=\"{resource}\",scope=\"{scope}\",\
             subresource=\"{subresource}\",verb=\"{verb}\",version=\"{version}\""
        )
    }
}

impl Served {
    /// The answer is ready, for which others were waited for so long. A stream counts as running until its end, and its
    /// time until then.
    pub fn end(mut self, response: Response, apart: Duration) -> Response {
        let Some(series) = self.series.take() else { return response };
        let code = response.status().as_u16();
        match response.extensions().get::<Unhandled>() {
            Some(Unhandled::Refused) => return response,
            Some(Unhandled::Dropped) => {
                series.count(code);
                return response;
            }
            // No handler has such a method.
            None if code == 405 => return response,
            None => {}
        }
        let joined = response.extensions().get::<Joined>().cloned();
        let runs = self.mutating.is_none() && (joined.is_some() || matches!(response.body(), Body::Stream(_)));
        if runs {
            series.running.fetch_add(1, Ordering::Relaxed);
        }
        let reads = matches!(series.verb, "GET" | "LIST") && !series.component.is_empty();
        let apart = self.mutating.map(|_| apart);
        let end = End { series: series.clone(), code, since: self.since, runs, apart };
        if let Some(joined) = joined {
            // There is one answer, so nobody was faster.
            let _ = joined.0.counted.set(end);
            return response;
        }
        response.map(|body| {
            let body = if reads { sized(body, series) } else { body };
            match &body {
                Body::Stream(_) => body.holding(end),
                _ => body,
            }
        })
    }
}

/// Takes note of how long a body is: now, or when its last piece is made.
fn sized(body: Body, series: Arc<Series>) -> Body {
    match body {
        Body::Pieces(pieces) if pieces.length().is_none() => {
            Body::Pieces(pieces.telling(move |bytes| series.bytes.observe(&BYTES, bytes)))
        }
        body => {
            if !matches!(body, Body::Stream(_)) {
                series.bytes.observe(&BYTES, body.len() as u64);
            }
            body
        }
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        if let Some(mutating) = self.mutating {
            self.requests.gauge(mutating).fetch_sub(1, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn proxied() -> Series {
        Series::new(&Labels {
            verb: "CONNECT",
            dry_run: "",
            group: "",
            version: "v1",
            resource: "pods",
            subresource: "proxy",
            scope: "resource",
            component: "apiserver",
        })
    }

    #[test]
    fn connections_that_are_joined_run_until_they_end() {
        let series = Arc::new(proxied());
        let served =
            Served { requests: Arc::default(), series: Some(series.clone()), mutating: None, since: Instant::now() };
        let joined = Joined::default();
        let mut response = Response::new(Body::empty());
        *response.status_mut() = http::StatusCode::SWITCHING_PROTOCOLS;
        response.extensions_mut().insert(joined.clone());
        drop(served.end(response, Duration::ZERO));
        assert_eq!((series.running.load(Ordering::Relaxed), series.counted().count()), (1, 0));
        drop(joined);
        assert_eq!(series.running.load(Ordering::Relaxed), 0);
        assert_eq!(series.counted().collect::<Vec<_>>(), [(101, 1)]);
    }

    #[test]
    fn codes_that_find_no_place_are_counted_together() {
        let series = proxied();
        (300..330).for_each(|code| series.count(code));
        series.count(300);
        let counted: Vec<_> = series.counted().collect();
        assert_eq!(counted.len(), CODES + 1);
        assert_eq!(counted.iter().map(|(_, count)| count).sum::<u64>(), 31);
        assert_eq!(counted.first(), Some(&(300, 2)));
        assert_eq!(counted.last(), Some(&(OTHER, 6)));
    }
}
