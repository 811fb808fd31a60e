//! Spans for an OpenTelemetry collector (`tracing` of the configuration): each look at a pod, and each call of the runtime
//! in it, which is told of the span it belongs to.
//!
//! Without `tracing` nothing is made. Of all looks `samplingRatePerMillion` are told, and with one all that follows from
//! it; without a rate none is. Spans wait for the collector in a queue, and are lost when that is full: no pod waits.
//!
//! Followed: `component-base/tracing` and the spans of the kubelet.

mod otlp;

use std::path::PathBuf;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use ring::rand::{SecureRandom as _, SystemRandom};
use tokio::sync::mpsc;
use tonic::transport::{Channel, Endpoint};

use crate::config::Tracing;
use crate::sockets::UnixConnector;
use otlp::{ExportRequest, Resource, ResourceSpans, Scope, ScopeSpans, Span, Status};
pub use otlp::{KeyValue, attribute};

/// OpenTelemetry's own place.
const USUAL_ENDPOINT: &str = "localhost:4317";
/// Of OpenTelemetry's batches: spans that wait, spans of one request, and how long a request waits for more.
const QUEUE: usize = 2048;
const BATCH: usize = 512;
const DELAY: Duration = Duration::from_secs(5);
const TIMEOUT: Duration = Duration::from_secs(10);

/// What a span is about.
#[derive(Debug, Clone, Copy)]
pub enum Kind {
    /// Work of the agent itself.
    Internal = 1,
    /// A call of somebody else.
    Client = 3,
}

struct Tracer {
    per_million: u64,
    spans: mpsc::Sender<Span>,
}

static TRACER: OnceLock<Tracer> = OnceLock::new();

tokio::task_local! {
    static CURRENT: Option<Here>;
}

/// The span that somebody is in, and what went wrong there.
#[derive(Clone)]
struct Here {
    place: Place,
    error: Arc<OnceLock<String>>,
}

/// Where in a trace somebody is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Place {
    trace: [u8; 16],
    span: [u8; 8],
    sampled: bool,
}

impl Place {
    /// The next span below `parent`, or the first of a trace.
    fn below(parent: Option<Place>, per_million: u64) -> Option<Self> {
        let random = SystemRandom::new();
        let (mut trace, mut span) = ([0; 16], [0; 8]);
        random.fill(&mut span).ok()?;
        if let Some(parent) = parent {
            return Some(Place { span, ..parent });
        }
        random.fill(&mut trace).ok()?;
        Some(Place { trace, span, sampled: is_sampled(trace, per_million) })
    }

    /// W3C's `traceparent`.
    fn header(self) -> String {
        let hex = |bytes: &[u8]| bytes.iter().map(|b| format!("{b:02x}")).collect::<String>();
        format!("00-{}-{}-{:02x}", hex(&self.trace), hex(&self.span), u8::from(self.sampled))
    }
}

/// By the trace's id alone, so that everybody who goes by the same rate comes to the same.
fn is_sampled(trace: [u8; 16], per_million: u64) -> bool {
    let mut low = [0; 8];
    low.copy_from_slice(&trace[8..]);
    let bound = (1_u128 << 63) * u128::from(per_million) / 1_000_000;
    u128::from(u64::from_be_bytes(low) >> 1) < bound
}

/// Begins to make spans, and returns what sends them; None where none are wanted, or there is nowhere to send them.
pub fn start(config: Option<&Tracing>, host: &str) -> Option<impl Future<Output = ()> + Send + 'static> {
    let config = config?;
    let per_million = u64::try_from(config.sampling_rate_per_million?).ok().filter(|rate| *rate > 0)?;
    let endpoint = config.endpoint.as_deref().filter(|e| !e.is_empty()).unwrap_or(USUAL_ENDPOINT);
    let channel = match channel(endpoint) {
        Ok(channel) => channel,
        Err(error) => {
            tracing::warn!(%error, endpoint, "no spans are made: this is no place for them");
            return None;
        }
    };
    let (spans, queue) = mpsc::channel(QUEUE);
    if TRACER.set(Tracer { per_million, spans }).is_err() {
        tracing::debug!("spans are made already");
    }
    let resource = Resource { attributes: vec![attribute("service.name", "kubelet"), attribute("host.name", host)] };
    Some(send(channel, resource, queue))
}

/// By the scheme, as gRPC names places: `dns:///host:port`, `unix:///path`, `unix-abstract:name`, or `host:port` alone.
fn channel(endpoint: &str) -> Result<Channel, tonic::transport::Error> {
    let socket = endpoint.strip_prefix("unix://").or_else(|| endpoint.strip_prefix("unix:"));
    // The kernel's mark of a name that is no file.
    let named = endpoint.strip_prefix("unix-abstract:").map(|name| format!("\0{}", name.trim_start_matches("//")));
    if let Some(path) = named.or(socket.map(str::to_owned)) {
        let local = Endpoint::from_static("http://localhost").timeout(TIMEOUT);
        return Ok(local.connect_with_connector_lazy(UnixConnector(PathBuf::from(path))));
    }
    let place = endpoint.strip_prefix("dns:").unwrap_or(endpoint).trim_start_matches('/');
    let place = place.rsplit('/').next().unwrap_or(place);
    let remote = Endpoint::try_from(format!("http://{place}"))?;
    Ok(remote.connect_timeout(TIMEOUT).timeout(TIMEOUT).connect_lazy())
}

async fn send(channel: Channel, resource: Resource, mut queue: mpsc::Receiver<Span>) {
    let mut failed = false;
    loop {
        let mut spans = Vec::new();
        if queue.recv_many(&mut spans, BATCH).await == 0 {
            return;
        }
        let more = async { while spans.len() < BATCH && queue.recv_many(&mut spans, BATCH).await > 0 {} };
        // The time is over, or there are enough.
        let _ = tokio::time::timeout(DELAY, more).await;
        let scope = Scope { name: "node-agent".into(), version: env!("CARGO_PKG_VERSION").into() };
        let scope_spans = vec![ScopeSpans { scope: Some(scope), spans }];
        let all = ResourceSpans { resource: Some(resource.clone()), scope_spans };
        let sent = otlp::export(&channel, ExportRequest { resource_spans: vec![all] }).await;
        match &sent {
            Err(error) if !failed => tracing::warn!(%error, "spans do not get to the collector"),
            Ok(()) if failed => tracing::info!("spans get to the collector again"),
            _ => {}
        }
        failed = sent.is_err();
    }
}

/// A span that is told when this goes, whether its work came to an end or was cut short.
struct Open {
    tracer: &'static Tracer,
    span: Span,
    error: Arc<OnceLock<String>>,
    done: bool,
}

impl Drop for Open {
    fn drop(&mut self) {
        let mut span = std::mem::take(&mut self.span);
        span.end_time_unix_nano = now();
        let cut_short = (!self.done).then(|| "context canceled".to_owned());
        let error = self.error.get().cloned().or(cut_short);
        span.status = error.map(|message| Status { message, code: 2 });
        // A full queue loses it.
        let _ = self.tracer.spans.try_send(span);
    }
}

/// Does the work as a span of its own, below the one that it is done in. `failed` says what went wrong, unless the work
/// itself has by [`fail`]. Work that is cut short is told as such.
pub async fn within<T>(
    name: impl FnOnce() -> String,
    kind: Kind,
    attributes: impl FnOnce() -> Vec<KeyValue>,
    failed: impl FnOnce(&T) -> Option<String>,
    work: impl Future<Output = T>,
) -> T {
    let parent = current();
    let begun = TRACER.get().and_then(|tracer| Some((tracer, Place::below(parent, tracer.per_million)?)));
    let here = begun.map(|(_, place)| Here { place, error: Arc::default() });
    let open = begun.zip(here.as_ref()).filter(|((_, place), _)| place.sampled).map(|((tracer, place), here)| {
        let span = Span {
            trace_id: place.trace.to_vec(),
            span_id: place.span.to_vec(),
            parent_span_id: parent.map_or_else(Vec::new, |parent| parent.span.to_vec()),
            name: name(),
            kind: kind as i32,
            start_time_unix_nano: now(),
            attributes: attributes(),
            ..Span::default()
        };
        Open { tracer, span, error: Arc::clone(&here.error), done: false }
    });
    let outcome = CURRENT.scope(here, work).await;
    if let Some(mut open) = open {
        open.done = true;
        if let Some(message) = failed(&outcome) {
            // What was said before stays.
            let _ = open.error.set(message);
        }
    }
    outcome
}

/// Says what went wrong in the span that this is called in; the first word stays.
pub fn fail(why: impl FnOnce() -> String) {
    let tell = |here: &Option<Here>| {
        if let Some(here) = here.as_ref().filter(|here| here.place.sampled) {
            here.error.get_or_init(why);
        }
    };
    // Outside of all spans nobody asks.
    let _ = CURRENT.try_with(tell);
}

/// The work as a part of the span that this is called in, for a task of its own.
pub fn inherit<F: Future>(work: F) -> impl Future<Output = F::Output> {
    let here = CURRENT.try_with(Clone::clone).ok().flatten();
    CURRENT.scope(here, work)
}

/// The work as if it were done in the first span of a trace.
#[cfg(test)]
pub fn in_a_span<F: Future>(work: F) -> impl Future<Output = F::Output> {
    let place = Place { trace: [0xab; 16], span: [1; 8], sampled: true };
    CURRENT.scope(Some(Here { place, error: Arc::default() }), work)
}

/// What a server that is called now is told: the span that the call is made in.
pub fn parent() -> Option<String> {
    current().map(Place::header)
}

fn current() -> Option<Place> {
    CURRENT.try_with(|here| here.as_ref().map(|here| here.place)).ok().flatten()
}

fn now() -> u64 {
    u64::try_from(time::OffsetDateTime::now_utc().unix_timestamp_nanos()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use prost::Message as _;
    use tokio::io::AsyncReadExt as _;

    use super::*;

    #[test]
    fn as_many_traces_are_told_as_the_rate_says() {
        let trace = |low: u64| {
            let mut id = [0; 16];
            id[8..].copy_from_slice(&low.to_be_bytes());
            id
        };
        assert!(!is_sampled(trace(0), 0) && is_sampled(trace(0), 1));
        assert!(is_sampled(trace(u64::MAX), 1_000_000));
        assert!(is_sampled(trace(u64::MAX / 2), 500_001) && !is_sampled(trace(u64::MAX / 2 + 2), 500_000));
    }

    #[test]
    fn a_place_is_told_in_w3cs_form_and_goes_down_with_its_trace() {
        let top = Place { trace: [0xab; 16], span: [1; 8], sampled: true };
        assert_eq!(top.header(), "00-abababababababababababababababab-0101010101010101-01");
        let below = Place::below(Some(top), 0).expect("random");
        assert!(below.trace == top.trace && below.sampled && below.span != top.span);
        assert!(!Place::below(None, 0).expect("random").sampled);
        assert_eq!(parent(), None);
    }

    #[tokio::test]
    async fn endpoints_are_those_of_grpc() {
        for good in ["localhost:4317", "dns:///collector:4317", "dns://8.8.8.8/collector:4317", "unix:///run/otel.sock"]
        {
            assert!(channel(good).is_ok(), "{good}");
        }
        assert!(channel("a b").is_err());
        let of = |endpoint: &str, sampling_rate_per_million| {
            let config = Tracing { endpoint: Some(endpoint.into()), sampling_rate_per_million };
            start(Some(&config), "n").is_some()
        };
        assert!(start(None, "n").is_none() && !of("a b", Some(1)));
        assert!(!of("localhost:1", None) && !of("localhost:1", Some(0)), "nothing is sampled");
    }

    /// Nothing else in this process makes spans: the only test that starts a tracer.
    #[tokio::test]
    async fn spans_of_a_call_are_below_that_of_the_pod_and_get_to_the_collector() {
        let socket = std::env::temp_dir().join(format!("otel-{}.sock", crate::backoff::random_below(u32::MAX)));
        let listener = tokio::net::UnixListener::bind(&socket).expect("binds");
        let config = Tracing {
            endpoint: Some(format!("unix://{}", socket.display())),
            sampling_rate_per_million: Some(1_000_000),
        };
        let sending = start(Some(&config), "host-a").expect("spans are wanted");
        tokio::spawn(sending);
        let call = async {
            let told = parent();
            let call =
                async { parent().filter(|own| Some(own) != told.as_ref()).map(|_| ()).ok_or("no place of its own") };
            within(|| "Call".into(), Kind::Client, Vec::new, |o: &Result<(), &str>| o.err().map(str::to_owned), call)
                .await
        };
        let plain = |name: &'static str| {
            move |work: std::pin::Pin<Box<dyn Future<Output = ()> + Send>>| {
                within(move || name.to_owned(), Kind::Internal, Vec::new, |()| None, work)
            }
        };
        let work = async {
            call.await.expect("done");
            tokio::spawn(inherit(plain("Apart")(Box::pin(async {})))).await.expect("done");
            let endless = plain("Cut")(Box::pin(std::future::pending()));
            tokio::time::timeout(Duration::ZERO, endless).await.expect_err("cut short");
            fail(|| "too bad".to_owned());
            fail(|| "even worse".to_owned());
        };
        let attributes = || vec![attribute("k8s.pod.uid", "u")];
        within(|| "syncPod".into(), Kind::Internal, attributes, |()| Some("last".to_owned()), work).await;
        // One request of HTTP/2: its data is in frames of the first stream.
        let (mut stream, _) = listener.accept().await.expect("accepts");
        let request = request(&mut stream).await;
        let all = &request.resource_spans[0];
        assert_eq!(all.resource.as_ref().expect("one").attributes[1], attribute("host.name", "host-a"));
        let [call, apart, cut, pod] = &all.scope_spans[0].spans[..] else { panic!("{request:?}") };
        assert_eq!((call.name.as_str(), pod.name.as_str(), call.kind), ("Call", "syncPod", 3));
        assert_eq!((&call.parent_span_id, &call.trace_id), (&pod.span_id, &pod.trace_id));
        assert_eq!(pod.status.as_ref().map(|s| (s.message.as_str(), s.code)), Some(("too bad", 2)));
        assert_eq!((apart.name.as_str(), cut.name.as_str()), ("Apart", "Cut"));
        for below in [apart, cut] {
            assert_eq!((&below.parent_span_id, &below.trace_id), (&pod.span_id, &pod.trace_id), "{}", below.name);
        }
        assert_eq!(cut.status.as_ref().map(|s| (s.message.as_str(), s.code)), Some(("context canceled", 2)));
        assert!(call.status.is_none() && apart.status.is_none() && pod.attributes == attributes());
        assert!(pod.start_time_unix_nano <= call.start_time_unix_nano);
        std::fs::remove_file(socket).expect("ours");
    }

    /// Reads the frames of a request to its last; says nothing but the settings.
    async fn request(stream: &mut tokio::net::UnixStream) -> ExportRequest {
        use tokio::io::AsyncWriteExt as _;
        const SETTINGS: [u8; 9] = [0, 0, 0, 4, 0, 0, 0, 0, 0];
        stream.write_all(&SETTINGS).await.expect("writes");
        let mut preface = [0; 24];
        stream.read_exact(&mut preface).await.expect("reads");
        let mut data = Vec::new();
        loop {
            let mut head = [0; 9];
            stream.read_exact(&mut head).await.expect("reads");
            let mut body = vec![0; usize::from(head[1]) << 8 | usize::from(head[2])];
            stream.read_exact(&mut body).await.expect("reads");
            if head[3] == 0 {
                data.extend(body);
                if head[4] & 1 == 1 {
                    // Behind a byte for compression and four for the length.
                    return ExportRequest::decode(&data[5..]).expect("a request");
                }
            }
        }
    }
}
