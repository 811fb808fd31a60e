//! The audit log: who asked for what, when, and what came of it, as `audit.k8s.io/v1` events.
//!
//! A request that the policy is interested in has a [`Trail`]. Whatever works on the request may add annotations to it,
//! however deep it is; the bodies are kept only at the levels that ask for them. Nothing is spent on other requests.

mod log;
mod policy;
mod shown;

use std::cell::RefCell;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use http::header::{CONTENT_TYPE, HeaderMap, USER_AGENT};
use proto::time::Timestamp;
use serde_json::{Map, Value, json};

pub use log::{Log, LogOptions};
pub use policy::{Level, Policy, Stage};

use crate::http::{Body, Peer, Response};
use crate::metrics::Joined;
use crate::request::{RequestInfo, User};
use crate::status::ApiError;
use policy::Verdict;

/// Longest user agent that is written, in bytes.
const MAX_AGENT: usize = 1024;

tokio::task_local! {
    static CURRENT: Option<Trail>;
    static EARLY: RefCell<Map<String, Value>>;
}

/// Finds out who sends a request; what is annotated meanwhile goes into the event that begins with it. Pinned by the
/// caller as in [`within`].
pub async fn early<T>(work: Pin<&mut impl Future<Output = T>>) -> T {
    EARLY.scope(RefCell::default(), work).await
}

/// What was annotated before there was an event.
fn annotated_early() -> Map<String, Value> {
    EARLY.try_with(RefCell::take).unwrap_or_default()
}

/// Adds an annotation to the event of the request that is being worked on.
pub fn annotate(key: &str, value: &str) {
    if EARLY.try_with(|all| all.borrow_mut().insert(key.into(), value.into())).is_ok() {
        return;
    }
    // No request, or nobody who wants to know.
    let _ = CURRENT.try_with(|trail| trail.as_ref().inspect(|t| t.annotate(key, value)).is_some());
}

/// Whether there is an event that somebody wants annotated.
pub fn is_on() -> bool {
    CURRENT.try_with(Option::is_some).unwrap_or(false)
}

/// Tells the event of the request that is being worked on what object came with it: what it says of itself, and at the
/// levels that ask for it the whole as `shown`.
pub fn object(object: &Value, shown: impl FnOnce() -> Value) {
    let _ = CURRENT.try_with(|trail| trail.as_ref().inspect(|t| t.request_object(object, shown)).is_some());
}

/// Whether somebody wants to know what is sent with the request that is being worked on.
pub fn wants_requests() -> bool {
    CURRENT.try_with(|trail| trail.as_ref().is_some_and(|t| t.inner.verdict.level >= Level::Request)).unwrap_or(false)
}

/// Runs the work on a request. Pinned by the caller: an `async fn` keeps two copies of what it is given.
pub async fn within<T>(trail: Option<Trail>, work: Pin<&mut impl Future<Output = T>>) -> T {
    CURRENT.scope(trail, work).await
}

/// What is audited, and where it goes.
pub struct Auditor {
    policy: Policy,
    log: Arc<Log>,
}

impl Auditor {
    pub fn new(policy: Policy, log: Log) -> Self {
        Auditor { policy, log: Arc::new(log) }
    }

    /// The trail of a request, which has just come in; None when nothing is written of it.
    pub fn begin(
        &self,
        id: &str,
        user: &User,
        info: &RequestInfo,
        uri: &http::Uri,
        headers: &HeaderMap,
        peer: &Peer,
    ) -> Option<Trail> {
        let verdict = self.policy.verdict(user, info).clone();
        if verdict.level == Level::None {
            return None;
        }
        let event = Event {
            head: head(verdict.level, id, user, info, uri, headers, peer),
            received: Timestamp::now(),
            annotations: annotated_early(),
            ..Event::default()
        };
        let trail = Trail::new(verdict, &self.log, event);
        trail.inner.write(Stage::RequestReceived);
        Some(trail)
    }

    /// Writes of a request that nobody known has sent; `error` is its answer.
    pub fn refused(
        &self,
        error: &ApiError,
        id: &str,
        info: &RequestInfo,
        uri: &http::Uri,
        headers: &HeaderMap,
        peer: &Peer,
    ) {
        let user = User::default();
        let verdict = self.policy.verdict(&user, info).clone();
        if verdict.level == Level::None {
            return;
        }
        let answer = error.to_value();
        let event = Event {
            head: head(verdict.level, id, &user, info, uri, headers, peer),
            received: Timestamp::now(),
            status: Some(status_of(&answer, error.code())),
            response: (verdict.level == Level::RequestResponse).then(|| shown::object(&answer)),
            annotations: annotated_early(),
            ..Event::default()
        };
        // The answer is all there is of it: neither its arrival nor its end is written.
        Trail::new(verdict, &self.log, event).inner.end(Stage::ResponseStarted);
    }
}

/// What is known when a request comes in.
fn head(
    level: Level,
    id: &str,
    user: &User,
    info: &RequestInfo,
    uri: &http::Uri,
    headers: &HeaderMap,
    peer: &Peer,
) -> Map<String, Value> {
    let mut head = Map::new();
    head.insert("kind".into(), "Event".into());
    head.insert("apiVersion".into(), "audit.k8s.io/v1".into());
    head.insert("level".into(), level.name().into());
    head.insert("auditID".into(), id.into());
    head.insert("requestURI".into(), uri.path_and_query().map_or(uri.path(), |p| p.as_str()).into());
    head.insert("verb".into(), info.verb.as_str().into());
    head.insert("user".into(), user.to_value());
    head.insert("sourceIPs".into(), sources(headers, peer).into());
    let agent = headers.get(USER_AGENT).and_then(|v| v.to_str().ok()).unwrap_or_default();
    if agent.len() > MAX_AGENT {
        head.insert("userAgent".into(), format!("{}...TRUNCATED", &agent[..MAX_AGENT]).into());
    } else if !agent.is_empty() {
        head.insert("userAgent".into(), agent.into());
    }
    if info.is_resource {
        let mut object = Map::new();
        for (key, text) in [
            ("resource", &info.resource),
            ("namespace", &info.namespace),
            ("name", &info.name),
            ("apiGroup", &info.group),
            ("apiVersion", &info.version),
            ("subresource", &info.subresource),
        ] {
            if !text.is_empty() {
                object.insert(key.into(), text.as_str().into());
            }
        }
        head.insert("objectRef".into(), object.into());
    }
    head
}

/// Addresses that a request came through, the first is where it began: what proxies say, then the connection's own.
fn sources(headers: &HeaderMap, peer: &Peer) -> Vec<String> {
    let text = |name: &str| headers.get(name).and_then(|v| v.to_str().ok()).unwrap_or_default();
    let is_address = |t: &str| t.parse::<std::net::IpAddr>().is_ok();
    let mut out: Vec<String> =
        text("x-forwarded-for").split(',').map(str::trim).filter(|t| is_address(t)).map(Into::into).collect();
    let real = text("x-real-ip").trim();
    if is_address(real) && !out.iter().any(|a| a == real) {
        out.push(real.to_owned());
    }
    let own = peer.address.ip().to_string();
    if out.last() != Some(&own) {
        out.push(own);
    }
    out
}

#[derive(Debug, Default)]
struct Event {
    head: Map<String, Value>,
    received: Timestamp,
    impersonated: Option<Value>,
    /// `authenticationMetadata`.
    metadata: Option<Value>,
    /// As JSON, like the answer.
    request: Option<Vec<u8>>,
    response: Option<Vec<u8>>,
    /// `metav1.Status`, with the code at least.
    status: Option<Value>,
    annotations: Map<String, Value>,
}

struct Inner {
    verdict: Verdict,
    log: Arc<Log>,
    event: Mutex<Event>,
    /// The last stage is written.
    ended: AtomicBool,
}

impl Inner {
    fn with<T>(&self, change: impl FnOnce(&mut Event) -> T) -> T {
        change(&mut self.event.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn write(&self, stage: Stage) {
        if self.verdict.omitted.contains(&stage) {
            return;
        }
        let mut line = self.with(|event| event.line(stage));
        line.push(b'\n');
        self.log.write(&line);
    }

    /// Writes the last stage, once.
    fn end(&self, stage: Stage) {
        if !self.ended.swap(true, Ordering::Relaxed) {
            self.write(stage);
        }
    }
}

/// Whoever asked went away, and nobody works on an answer any more: that is written of every request that has begun, in
/// upstream's words where there is no answer.
impl Drop for Inner {
    fn drop(&mut self) {
        let early = || json!({"metadata": {}, "status": "Success", "message": "Connection closed early", "code": 200});
        self.with(|event| {
            event.status.get_or_insert_with(early);
        });
        self.end(Stage::ResponseComplete);
    }
}

/// What is written of one request; clones are the same trail.
#[derive(Clone)]
pub struct Trail {
    inner: Arc<Inner>,
}

impl Trail {
    fn new(verdict: Verdict, log: &Arc<Log>, event: Event) -> Self {
        let (log, event, ended) = (log.clone(), Mutex::new(event), AtomicBool::new(false));
        Trail { inner: Arc::new(Inner { verdict, log, event, ended }) }
    }

    fn with<T>(&self, change: impl FnOnce(&mut Event) -> T) -> T {
        self.inner.with(change)
    }

    /// The first word on a key stays.
    pub fn annotate(&self, key: &str, value: &str) {
        self.with(|event| {
            event.annotations.entry(key).or_insert_with(|| value.into());
        });
    }

    /// `constraint` is the right that allowed it; empty for the plain one.
    pub fn impersonated(&self, user: &User, constraint: &str) {
        self.with(|event| {
            event.impersonated = Some(user.to_value());
            event.metadata = (!constraint.is_empty()).then(|| json!({"impersonationConstraint": constraint}));
        });
    }

    /// What came with the request, decoded.
    fn request_object(&self, object: &Value, complete: impl FnOnce() -> Value) {
        let metadata = &object["metadata"];
        let whole = (self.inner.verdict.level >= Level::Request).then(|| {
            let mut whole = complete();
            if self.inner.verdict.omit_managed_fields {
                without_managed_fields(&mut whole);
            }
            shown::object(&whole)
        });
        self.with(|event| {
            if let Some(Value::Object(about)) = event.head.get_mut("objectRef") {
                for key in ["namespace", "name", "uid", "resourceVersion"] {
                    if let Some(text) = metadata[key].as_str().filter(|text| !text.is_empty()) {
                        about.entry(key).or_insert_with(|| text.into());
                    }
                }
            }
            event.request = whole;
        });
    }

    /// Keeps a patch where the level asks for it. Objects are kept once they are decoded.
    pub fn request_body(&self, info: &RequestInfo, content_type: &str, body: &Bytes) {
        if self.inner.verdict.level < Level::Request || info.verb != "patch" {
            return;
        }
        let object = self.object(content_type, body);
        // Whatever its owners of fields: it is no object yet.
        let shown = object.map(|object| match media(content_type) {
            kind if kind.ends_with("json") => shown::compact(body),
            _ => shown::object(&object),
        });
        self.with(|event| event.request = shown);
    }

    /// A body as a tree; patches and answers alike.
    fn object(&self, content_type: &str, body: &[u8]) -> Option<Value> {
        let mut value = match media(content_type) {
            "application/vnd.kubernetes.protobuf" => {
                let unknown = proto::protobuf::read_envelope(body).ok()?;
                let set = proto::schema::TypeSet::built_in();
                let (group, version) = unknown.api_version.rsplit_once('/').unwrap_or(("", unknown.api_version));
                let id = set.kind(group, version, unknown.kind)?;
                let mut value = proto::protobuf::decode(set, id, unknown.raw).ok()?;
                value["kind"] = unknown.kind.into();
                value["apiVersion"] = unknown.api_version.into();
                value
            }
            "application/yaml" | "application/apply-patch+yaml" => proto::yaml::read(body).ok()?.value,
            _ => proto::json::parse(body).ok()?.value,
        };
        if self.inner.verdict.omit_managed_fields {
            without_managed_fields(&mut value);
        }
        Some(value)
    }

    /// The answer is ready. A stream goes on, as do connections that are joined: their end is written when it is there.
    pub fn answered(&self, response: Response, long_running: bool) -> Response {
        let code = response.status().as_u16();
        let content_type =
            response.headers().get(CONTENT_TYPE).and_then(|v| v.to_str().ok()).unwrap_or_default().to_owned();
        let failed = code >= 400;
        let wants_object = self.inner.verdict.level == Level::RequestResponse;
        let (mut object, mut shown) = (None, None);
        let readable = !response.headers().contains_key(http::header::CONTENT_ENCODING);
        let looked_at = readable && (failed || wants_object || is_status(response.body()));
        let response = if looked_at { response.map(Body::whole) } else { response };
        if let Body::Chunks(chunks) = response.body()
            && looked_at
        {
            let all: Vec<u8> = chunks.iter().flatten().copied().collect();
            object = self.object(&content_type, &all).filter(Value::is_object);
            // The answer has the order of its types already.
            let as_is = media(&content_type) == "application/json" && !self.inner.verdict.omit_managed_fields;
            shown = object.as_ref().filter(|_| wants_object).map(|object| match as_is {
                true => shown::compact(&all),
                false => shown::object(object),
            });
        }
        let status = match object.as_ref().filter(|o| o["kind"] == "Status") {
            Some(status) => status_of(status, code),
            None => json!({"metadata": {}, "code": code}),
        };
        self.with(|event| {
            event.status = Some(status);
            event.response = shown;
        });
        if long_running {
            self.inner.write(Stage::ResponseStarted);
        }
        let end = End(self.clone());
        if let Some(joined) = response.extensions().get::<Joined>() {
            joined.hold(end);
            return response;
        }
        match response.body() {
            Body::Stream(_) => response.map(|body| body.holding(end)),
            Body::Chunks(_) | Body::Pieces(_) => response,
        }
    }

    /// A handler failed.
    pub fn panicked(&self) {
        let status = json!({"metadata": {}, "status": "Failure", "reason": "InternalError", "code": 500,
            "message": "APIServer panic'd"});
        self.with(|event| event.status = Some(status));
        self.inner.end(Stage::Panic);
    }
}

/// As much of a Status as is written of an answer.
fn status_of(answer: &Value, code: u16) -> Value {
    let mut status = json!({"metadata": {}, "code": code});
    for key in ["status", "message", "reason", "details"] {
        if let Some(value) = answer.get(key) {
            status[key] = value.clone();
        }
    }
    status
}

/// Whether a body begins as a Status does, in JSON or in an envelope.
fn is_status(body: &Body) -> bool {
    const ENVELOPE: &[u8] = b"k8s\0\n\x0c\n\x02v1\x12\x06Status";
    let Body::Chunks(chunks) = body else { return false };
    let begins = chunks.iter().flatten().take(ENVELOPE.len()).copied().collect::<Vec<u8>>();
    begins.starts_with(b"{\"kind\":\"Status\"") || begins == ENVELOPE
}

/// Writes the end of an answer when it is dropped: with the stream, or with the connections that were joined.
struct End(Trail);

impl Drop for End {
    fn drop(&mut self) {
        self.0.inner.end(Stage::ResponseComplete);
    }
}

impl Event {
    /// The event as JSON, properties in the order of Go's struct.
    fn line(&self, stage: Stage) -> Vec<u8> {
        let mut out = Vec::with_capacity(1024);
        let mut member = |key: &str, json: Option<&[u8]>| {
            let Some(json) = json else { return };
            out.push(if out.is_empty() { b'{' } else { b',' });
            proto::json::write_string(key, &mut out);
            out.push(b':');
            out.extend_from_slice(json);
        };
        let time = |at: Timestamp| shown::sorted(&at.to_micros_text().into());
        let head = |key: &str| self.head.get(key).map(shown::sorted);
        let user = |user: &Value| shown::ordered(user, shown::USER);
        for key in ["kind", "apiVersion", "level", "auditID"] {
            member(key, head(key).as_deref());
        }
        member("stage", Some(&shown::sorted(&stage.name().into())));
        for key in ["requestURI", "verb"] {
            member(key, head(key).as_deref());
        }
        member("user", self.head.get("user").map(user).as_deref());
        member("impersonatedUser", self.impersonated.as_ref().map(user).as_deref());
        member("authenticationMetadata", self.metadata.as_ref().map(shown::sorted).as_deref());
        for key in ["sourceIPs", "userAgent"] {
            member(key, head(key).as_deref());
        }
        let object = self.head.get("objectRef").map(|object| shown::ordered(object, shown::OBJECT));
        member("objectRef", object.as_deref());
        member("responseStatus", self.status.as_ref().map(shown::status).as_deref());
        member("requestObject", self.request.as_deref());
        member("responseObject", self.response.as_deref());
        member("requestReceivedTimestamp", Some(&time(self.received)));
        member("stageTimestamp", Some(&time(Timestamp::now())));
        let annotations = (!self.annotations.is_empty()).then(|| shown::sorted(&self.annotations.clone().into()));
        member("annotations", annotations.as_deref());
        out.push(b'}');
        out
    }
}

/// A content type without its parameters.
fn media(content_type: &str) -> &str {
    content_type.split(';').next().unwrap_or_default().trim()
}

fn without_managed_fields(value: &mut Value) {
    if let Some(metadata) = value.get_mut("metadata").and_then(Value::as_object_mut) {
        metadata.remove("managedFields");
    }
    if let Some(Value::Array(items)) = value.get_mut("items") {
        items.iter_mut().for_each(without_managed_fields);
    }
    if let Some(Value::Array(rows)) = value.get_mut("rows") {
        rows.iter_mut().filter_map(|r| r.get_mut("object")).for_each(without_managed_fields);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn auditor(path: &std::path::Path, level: &str) -> Auditor {
        let policy = format!("apiVersion: audit.k8s.io/v1\nkind: Policy\nrules:\n- level: {level}\n");
        let file = path.with_extension("yaml");
        std::fs::write(&file, policy).expect("a folder that can be written");
        let policy = Policy::load(&file).expect("a policy");
        std::fs::remove_file(&file).expect("ours");
        let options = LogOptions { path: path.into(), max_age_days: 0, max_backups: 0, max_size_megabytes: 0 };
        Auditor::new(policy, Log::open(options).expect("a file"))
    }

    fn lines(path: &std::path::Path) -> Vec<Value> {
        let text = std::fs::read_to_string(path).expect("the file");
        text.lines().map(|l| serde_json::from_str(l).expect("JSON")).collect()
    }

    #[tokio::test]
    async fn a_request_leaves_what_its_level_asks_for() {
        let path = std::env::temp_dir().join(format!("audit-{}.log", crate::random::uuid()));
        let peer = Peer { address: ([127, 0, 0, 1], 9).into(), certificates: Default::default() };
        let info = RequestInfo {
            is_resource: true,
            verb: "create".into(),
            resource: "pods".into(),
            version: "v1".into(),
            ..RequestInfo::default()
        };
        let user = User { name: "jane".into(), ..User::default() };
        let uri: http::Uri = "/api/v1/pods?x=1".parse().expect("a URI");
        let auditor = auditor(&path, "RequestResponse");
        let trail = auditor.begin("id-1", &user, &info, &uri, &HeaderMap::new(), &peer).expect("audited");
        within(Some(trail.clone()), std::pin::pin!(async { annotate("a/b", "c") })).await;
        trail.request_body(&info, "application/json", &Bytes::from_static(b"not yet decoded"));
        let sent = json!({"metadata": {"name": "p", "managedFields": []}});
        within(Some(trail.clone()), std::pin::pin!(async { object(&sent, || sent.clone()) })).await;
        trail.impersonated(&User { name: "joe".into(), ..User::default() }, "impersonate:user-info");
        let mut response = Response::new(Body::from("{\"kind\":\"Status\",\"code\":409}"));
        *response.status_mut() = http::StatusCode::CONFLICT;
        response.headers_mut().insert(CONTENT_TYPE, http::HeaderValue::from_static("application/json"));
        let _ = trail.answered(response, false);
        let all = lines(&path);
        let text = std::fs::read_to_string(&path).expect("the file");
        let last = text.lines().last().expect("two lines").to_owned();
        std::fs::remove_file(&path).expect("ours");
        assert_eq!(all.len(), 2);
        assert_eq!((&all[0]["stage"], &all[1]["stage"]), (&json!("RequestReceived"), &json!("ResponseComplete")));
        assert_eq!(all[1]["requestURI"], "/api/v1/pods?x=1");
        assert_eq!(all[1]["responseStatus"]["code"], 409);
        assert_eq!(all[1]["requestObject"], sent);
        assert_eq!(all[1]["objectRef"], json!({"apiVersion": "v1", "name": "p", "resource": "pods"}));
        assert_eq!(all[1]["impersonatedUser"], json!({"username": "joe"}));
        assert_eq!(all[1]["authenticationMetadata"], json!({"impersonationConstraint": "impersonate:user-info"}));
        assert_eq!(all[1]["responseObject"]["kind"], "Status");
        assert_eq!(all[1]["annotations"], json!({"a/b": "c"}));
        assert_eq!(all[1]["sourceIPs"], json!(["127.0.0.1"]));
        let parts = [
            r#""user":{"username":"jane"}"#,
            r#""objectRef":{"resource":"pods","name":"p","apiVersion":"v1"},"responseStatus":{"metadata":{},"code":409}"#,
            r#","requestObject":{"metadata":{"managedFields":[],"name":"p"}}"#,
            r#","responseObject":{"kind":"Status","code":409},"requestReceivedTimestamp":"#,
            r#","annotations":{"a/b":"c"}}"#,
        ];
        let places = parts.map(|part| last.find(part));
        assert!(places.is_sorted() && !places.contains(&None), "{last}");
    }

    #[tokio::test]
    async fn a_status_is_written_of_success_too_and_a_patch_as_it_was_sent() {
        let path = std::env::temp_dir().join(format!("audit-{}.log", crate::random::uuid()));
        let peer = Peer { address: ([127, 0, 0, 1], 9).into(), certificates: Default::default() };
        let info = RequestInfo { is_resource: true, verb: "patch".into(), ..RequestInfo::default() };
        let uri: http::Uri = "/x".parse().expect("a URI");
        for level in ["Request", "Metadata"] {
            let auditor = auditor(&path, level);
            let trail = auditor.begin("id", &User::default(), &info, &uri, &HeaderMap::new(), &peer).expect("audited");
            trail.request_body(&info, "application/merge-patch+json", &Bytes::from_static(b"{\"a\":1}"));
            let body = "{\"kind\":\"Status\",\"apiVersion\":\"v1\",\"metadata\":{},\"status\":\"Success\"}";
            let mut response = Response::new(Body::from(body));
            response.headers_mut().insert(CONTENT_TYPE, http::HeaderValue::from_static("application/json"));
            let _ = trail.answered(response, false);
        }
        let all = lines(&path);
        std::fs::remove_file(&path).expect("ours");
        for line in [&all[1], &all[3]] {
            assert_eq!(line["responseStatus"], json!({"metadata": {}, "status": "Success", "code": 200}));
            assert!(line.get("responseObject").is_none());
        }
        assert_eq!((&all[1]["requestObject"], all[3].get("requestObject")), (&json!({"a": 1}), None));
    }

    #[test]
    fn who_is_not_known_leaves_one_event() {
        let path = std::env::temp_dir().join(format!("audit-{}.log", crate::random::uuid()));
        let peer = Peer { address: ([127, 0, 0, 1], 9).into(), certificates: Default::default() };
        let auditor = auditor(&path, "Metadata");
        let uri: http::Uri = "/x".parse().expect("a URI");
        auditor.refused(&ApiError::unauthorized(), "id", &RequestInfo::default(), &uri, &HeaderMap::new(), &peer);
        let all = lines(&path);
        std::fs::remove_file(&path).expect("ours");
        assert_eq!(all.len(), 1);
        assert_eq!((&all[0]["stage"], &all[0]["user"]), (&json!("ResponseStarted"), &json!({})));
        let status = json!({"metadata": {}, "status": "Failure", "message": "Unauthorized", "reason": "Unauthorized",
            "code": 401});
        assert_eq!(all[0]["responseStatus"], status);
    }

    #[tokio::test]
    async fn a_stream_is_complete_when_it_ends() {
        let path = std::env::temp_dir().join(format!("audit-{}.log", crate::random::uuid()));
        let peer = Peer { address: ([127, 0, 0, 1], 9).into(), certificates: Default::default() };
        let auditor = auditor(&path, "Metadata");
        let uri: http::Uri = "/x".parse().expect("a URI");
        let trail = auditor.begin("id", &User::default(), &RequestInfo::default(), &uri, &HeaderMap::new(), &peer);
        let stream = Body::stream(futures_util::stream::empty());
        let response = trail.expect("audited").answered(Response::new(stream), true);
        assert_eq!(lines(&path).len(), 2, "received and started");
        drop(response);
        let all = lines(&path);
        std::fs::remove_file(&path).expect("ours");
        assert_eq!(all[2]["stage"], "ResponseComplete");
    }

    /// Of a request whose client hung up nothing was written but that it had come.
    #[test]
    fn a_request_that_is_given_up_has_an_end() {
        let path = std::env::temp_dir().join(format!("audit-{}.log", crate::random::uuid()));
        let peer = Peer { address: ([127, 0, 0, 1], 9).into(), certificates: Default::default() };
        let auditor = auditor(&path, "Metadata");
        let uri: http::Uri = "/x".parse().expect("a URI");
        let begin = || auditor.begin("id", &User::default(), &RequestInfo::default(), &uri, &HeaderMap::new(), &peer);
        let trail = begin().expect("audited");
        drop(trail.clone());
        assert_eq!(lines(&path).len(), 1, "somebody works on it");
        drop(trail);
        let trail = begin().expect("audited");
        trail.panicked();
        drop(trail);
        let all = lines(&path);
        std::fs::remove_file(&path).expect("ours");
        let stages: Vec<&Value> = all.iter().map(|line| &line["stage"]).collect();
        assert_eq!(stages, ["RequestReceived", "ResponseComplete", "RequestReceived", "Panic"]);
        let early = json!({"metadata": {}, "status": "Success", "message": "Connection closed early", "code": 200});
        assert_eq!(all[1]["responseStatus"], early);
    }

    /// That somebody had left a container was written when they entered it.
    #[tokio::test]
    async fn connections_that_are_joined_are_complete_when_they_part() {
        let path = std::env::temp_dir().join(format!("audit-{}.log", crate::random::uuid()));
        let peer = Peer { address: ([127, 0, 0, 1], 9).into(), certificates: Default::default() };
        let auditor = auditor(&path, "Metadata");
        let uri: http::Uri = "/x".parse().expect("a URI");
        let trail = auditor.begin("id", &User::default(), &RequestInfo::default(), &uri, &HeaderMap::new(), &peer);
        let joined = Joined::default();
        let mut response = Response::new(Body::empty());
        *response.status_mut() = http::StatusCode::SWITCHING_PROTOCOLS;
        response.extensions_mut().insert(joined.clone());
        drop(trail.expect("audited").answered(response, true));
        assert_eq!(lines(&path).len(), 2, "received and started");
        drop(joined);
        let all = lines(&path);
        std::fs::remove_file(&path).expect("ours");
        assert_eq!((&all[2]["stage"], &all[2]["responseStatus"]["code"]), (&json!("ResponseComplete"), &json!(101)));
    }
}
