//! The server's parts in one value, and the way of a request through them: who asks, may they, what do they get.

use std::net::IpAddr;
use std::panic::AssertUnwindSafe;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use futures_util::{FutureExt as _, future};
use http::header::{
    ACCEPT, CACHE_CONTROL, CONTENT_LENGTH, CONTENT_TYPE, EXPECT, HeaderMap, HeaderValue, RETRY_AFTER, USER_AGENT,
    WARNING,
};
use http_body_util::{BodyExt, Either, Empty};
use hyper::body::Incoming;
use tokio::sync::oneshot;
use tokio::time::{Instant, timeout, timeout_at};

pub use crate::admission::Admission;
use crate::audit::Trail;
use crate::auth::{Attributes, Authenticator, Authorizer, Impersonation, Shown};
pub use crate::flow::FlowControl;
use crate::http::{Accepted, Body, Peer, Response, SILENCE, Unread, cbor, for_error, negotiate, pretty, respond};
use crate::limits;
pub use crate::limits::{Limits, Shutdown};
use crate::metrics::Metrics;
pub use crate::quiet::Quiet;
use crate::request::{Query, RequestInfo, User};
use crate::resource::Resources;
pub use crate::service_ip::ServiceAllocator;
use crate::status::{ApiError, Result};
use crate::store::Store;
use crate::{discovery, health, metrics, openid, read, routing, status_pages, write};

/// Largest request body, as kube-apiserver has it.
const MAX_BODY: usize = 3 << 20;
/// Bytes beyond it that are read before the connection is given up.
const MAX_THROWN_AWAY: usize = 4 * MAX_BODY;
/// Time for the body of a request that has no end itself.
const LONGEST_BODY: Duration = Duration::from_secs(60);
/// How long a watch keeps its seats: it has no deadline, and one that is passed on begins when another server answers.
const LONGEST_BEGINNING: Duration = Duration::from_secs(5);

pub struct ApiServer {
    pub store: Store,
    pub resources: Resources,
    pub services: ServiceAllocator,
    pub authenticator: Authenticator,
    pub authorizer: Authorizer,
    pub impersonation: Impersonation,
    pub admission: Admission,
    /// Whose turn it is where several change one object.
    pub turns: write::Turns,
    /// What feature gates keep from being written.
    pub gated: crate::write::Gated,
    pub limits: Limits,
    /// None where `limits` alone say how much is done at once.
    pub flow: Option<FlowControl>,
    pub shutdown: Shutdown,
    pub quiet: Arc<Quiet>,
    pub kubelets: crate::proxy::KubeletClient,
    pub config: ServerConfig,
    pub metrics: Metrics,
    /// None when nobody wants to know.
    pub audit: Option<crate::audit::Auditor>,
    pub aggregated: crate::aggregate::Aggregated,
    pub components: crate::components::Components,
    /// Since when API documents are as they are.
    pub documents: crate::openapi::Times,
}

/// A body that is passed on.
pub type RequestBody = Either<Incoming, Empty<Bytes>>;

/// Settings that handlers need.
#[derive(Debug, Clone)]
pub struct ServerConfig {
    /// `host:port` that discovery tells clients.
    pub advertised: String,
    /// Where the keys of service account tokens are found.
    pub keys_url: String,
    /// Shortest lifetime of a watch that asks for none (`--min-request-timeout`).
    pub min_watch: Duration,
    /// Clients may speak CBOR (gate `CBORServingAndStorage`).
    pub cbor: bool,
    /// Lists and watches may ask for a part (gate `ShardedListAndWatch`).
    pub sharded: bool,
    /// Parts of a claim's status take rights of their own (gate `DRAResourceClaimGranularStatusAuthorization`).
    pub granular_claims: bool,
    /// Label keys of topology spread become requirements (gate `MatchLabelKeysInPodTopologySpreadSelectorMerge`).
    pub merges_spread: bool,
    /// A pod as a whole can be resized (gate `InPlacePodLevelResourcesVerticalScaling`).
    pub resizes_pods: bool,
    /// Whether long answers are compressed for clients that ask (gate `APIResponseCompression`).
    pub compresses: bool,
    /// What a node says that it can do counts when its pods change (gate `NodeDeclaredFeatures`).
    pub nodes_declare_features: bool,
    /// What gates make of the rules that objects have to keep.
    pub rules: crate::field_error::Rules,
    /// Whoever enters a pod needs the right to create, whatever the method (gate
    /// `AuthorizePodWebsocketUpgradeCreatePermission`).
    pub connects_by_create: bool,
    /// A token is refused to an account of another uid (gate `TokenRequestServiceAccountUIDValidation`).
    pub checks_account_uid: bool,
    /// Seconds that a token of a service account is good for at most (`--service-account-max-token-expiration`).
    pub longest_token: Option<i64>,
    /// Tokens of pods are good for longer than they say (`--service-account-extend-token-expiration`).
    pub extends_tokens: bool,
    /// Nodes get tokens only for audiences that their pods name (gate `ServiceAccountNodeAudienceRestriction`).
    pub restricts_audiences: bool,
    /// A pod that is bound is no longer expected anywhere (gate `ClearingNominatedNodeNameAfterBinding`).
    pub clears_nomination: bool,
    /// Logs can be asked for by stream (gate `PodLogsQuerySplitStreams`).
    pub splits_logs: bool,
    /// Name and value of each flag, for `/flagz`; no secrets.
    pub flags: Vec<(&'static str, String)>,
}

/// A request after authentication.
pub struct Request {
    pub method: http::Method,
    pub info: RequestInfo,
    pub query: Query,
    pub headers: HeaderMap,
    pub user: User,
    /// Path and query as sent.
    pub uri: http::Uri,
    /// Where the connection comes from; None for what this server asks itself.
    pub client_address: Option<IpAddr>,
    /// The connection, for subresources that take it over.
    pub upgrade: Option<hyper::upgrade::OnUpgrade>,
    /// When the answer has to be there; None without end.
    deadline: Option<Instant>,
    /// Ends when nobody waits for the answer any more.
    client: Option<oneshot::Receiver<()>>,
    body: Unread,
    /// What the audit log is told of it.
    trail: Option<Trail>,
    /// What the client speaks CBOR for.
    cbor: cbor::Spoken,
    /// See [`Request::for_error`].
    errors: OnceLock<Accepted>,
}

impl Request {
    /// Reads what a request asks for; nobody is known yet.
    fn new(request: http::Request<Incoming>) -> Self {
        let (mut head, body) = request.into_parts();
        let upgrade = head.extensions.remove();
        let body = Unread::new(body, &head.headers);
        let query = Query::parse(head.uri.query().unwrap_or_default());
        let info = RequestInfo::parse(&head.method, head.uri.path(), &query);
        Request {
            method: head.method,
            info,
            query,
            headers: head.headers,
            user: User::default(),
            uri: head.uri,
            client_address: None,
            upgrade,
            deadline: None,
            client: None,
            body,
            trail: None,
            cbor: cbor::Spoken::default(),
            errors: OnceLock::new(),
        }
    }

    /// The host that the client asked, with the port if it said one.
    pub fn asked_host(&self) -> Option<&str> {
        let told = self.uri.authority().map(http::uri::Authority::as_str);
        told.or_else(|| self.headers.get(http::header::HOST)?.to_str().ok()).filter(|host| !host.is_empty())
    }

    pub fn header(&self, name: &http::HeaderName) -> &str {
        self.headers.get(name).and_then(|v| v.to_str().ok()).unwrap_or_default()
    }

    /// Every `Accept` header as one list.
    pub fn accept(&self) -> String {
        let all: Vec<&str> = self.headers.get_all(ACCEPT).iter().filter_map(|v| v.to_str().ok()).collect();
        all.join(",")
    }

    pub fn content_type(&self) -> &str {
        self.header(&CONTENT_TYPE)
    }

    pub fn user_agent(&self) -> &str {
        self.header(&USER_AGENT)
    }

    pub fn pretty(&self) -> bool {
        pretty(self.query.get("pretty"), self.user_agent())
    }

    /// What the client accepts; `forms` when Table and the metadata forms are to be had.
    ///
    /// # Errors
    /// 406.
    pub fn accepted(&self, forms: bool) -> Result<Accepted> {
        negotiate(&self.accept(), forms, self.info.verb == "watch", self.pretty())
    }

    /// What the client accepts of a kind that has the metadata forms but no Table: clauses that ask for one are passed
    /// over.
    ///
    /// # Errors
    /// 406.
    pub fn accepted_without_tables(&self) -> Result<Accepted> {
        let all = self.accept();
        let is_table = |clause: &&str| clause.split(';').any(|parameter| parameter.trim() == "as=Table");
        let others: Vec<&str> = all.split(',').filter(|clause| !is_table(clause)).collect();
        if others.is_empty() {
            return self.accepted(false);
        }
        negotiate(&others.join(","), true, false, self.pretty())
    }

    /// The form of an error; found out once.
    pub fn for_error(&self) -> Accepted {
        *self.errors.get_or_init(|| for_error(&self.accept(), self.pretty()))
    }

    /// When the answer has to be there; None without end.
    pub fn deadline(&self) -> Option<Instant> {
        self.deadline
    }

    /// Waits until nobody waits for the answer any more; only the first to ask is told.
    pub fn client_gone(&mut self) -> impl Future<Output = ()> + Send + use<> {
        let client = self.client.take();
        async move {
            match client {
                Some(client) => drop(client.await),
                None => std::future::pending().await,
            }
        }
    }

    /// The body as it comes in; once.
    pub fn take_body(&mut self) -> RequestBody {
        self.body.take().map_or_else(|| Either::Right(Empty::new()), Either::Left)
    }

    /// The whole body.
    ///
    /// # Errors
    /// 413 when it is too long, 400 when the connection breaks.
    pub async fn body(&mut self) -> Result<Bytes> {
        let too_large =
            || ApiError::new(413, "RequestEntityTooLarge", format!("Request entity too large: limit is {MAX_BODY}"));
        let said: Option<usize> =
            self.headers.get(CONTENT_LENGTH).and_then(|v| v.to_str().ok()).and_then(|v| v.parse().ok());
        let refused = said.is_some_and(|s| s > MAX_BODY);
        let Some(mut incoming) = self.body.take() else { return Ok(Bytes::new()) };
        if refused && self.headers.contains_key(EXPECT) {
            return Err(too_large());
        }
        let mut out = BytesMut::with_capacity(said.filter(|_| !refused).unwrap_or(0));
        // What is refused is read on for a while and thrown away: a connection that closes on a client that still sends
        // takes the answer with it.
        let mut thrown_away = 0;
        // A client that sends slowly does not keep us longer than it may.
        let deadline = self.deadline.unwrap_or_else(|| Instant::now() + LONGEST_BODY);
        let mut next = async |refused: bool| {
            if refused {
                // A client that is silent has noticed or waits for the answer.
                let silent = (Instant::now() + SILENCE).min(deadline);
                return Ok(timeout_at(silent, incoming.frame()).await.unwrap_or(None));
            }
            timeout_at(deadline, incoming.frame()).await.map_err(|_| limits::timed_out())
        };
        while let Some(frame) = next(refused || thrown_away > 0).await? {
            let frame = frame.map_err(|error| ApiError::bad_request(error.to_string()))?;
            if let Ok(data) = frame.into_data() {
                if refused || thrown_away > 0 || out.len() + data.len() > MAX_BODY {
                    out.clear();
                    thrown_away += data.len();
                    if thrown_away > MAX_THROWN_AWAY {
                        return Err(too_large());
                    }
                    continue;
                }
                out.extend_from_slice(&data);
            }
        }
        if refused || thrown_away > 0 {
            return Err(too_large());
        }
        let mut body = out.freeze();
        if self.cbor.body {
            body = cbor::body(&body)?;
        }
        if let Some(trail) = &self.trail {
            trail.request_body(&self.info, self.content_type(), &body);
        }
        Ok(body)
    }
}

impl ApiServer {
    /// Answers a request in the time it has; a panic becomes a 500.
    pub async fn answer(self: &Arc<Self>, request: http::Request<Incoming>, peer: &Arc<Peer>) -> Response {
        // In a box: it is handed on from one future to the next, and each has room for what it is handed.
        let mut request = Box::new(Request::new(request));
        request.client_address = Some(peer.address.ip());
        if self.config.cbor {
            request.cbor = cbor::settle(&mut request.headers);
        }
        let speaks_cbor = request.cbor.answer;
        let audit_id = match request.headers.get("audit-id").filter(|id| !id.is_empty()) {
            Some(id) => id.clone(),
            None => HeaderValue::from_str(&crate::random::uuid()).unwrap_or(HeaderValue::from_static("")),
        };
        let mut response = match self.limits.time(&request.info, &request.query) {
            Ok(time) => self.answer_within(time, request, peer, &audit_id).await,
            Err(error) => failure(&error, &request),
        };
        if speaks_cbor {
            response = cbor::answer(response);
        }
        let headers = response.headers_mut();
        if !headers.contains_key(CACHE_CONTROL) {
            headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-cache, private"));
        }
        headers.insert("audit-id", audit_id);
        response
    }

    async fn answer_within(
        self: &Arc<Self>,
        time: Option<Duration>,
        mut request: Box<Request>,
        peer: &Arc<Peer>,
        audit_id: &HeaderValue,
    ) -> Response {
        request.deadline = time.map(|t| Instant::now() + t);
        let (deadline, errors) = (request.deadline, request.for_error());
        // Dropped with this, whether it has an answer or a client that went away.
        let (_waits, client) = oneshot::channel();
        request.client = Some(client);
        let endless = limits::is_long_running(&request.info);
        let busy = (!endless).then(|| self.quiet.busy());
        let (server, peer, id) = (self.clone(), peer.clone(), audit_id.clone());
        let trail: Arc<OnceLock<Trail>> = Arc::default();
        let begun = trail.clone();
        let short = request.info.is_resource && matches!(request.info.verb.as_str(), "get" | "list") && !endless;
        // Whoever gives less time than it takes to begin hears so, and nothing is begun.
        if deadline.is_some_and(|at| at <= Instant::now()) {
            return respond::error(&limits::timed_out(), errors);
        }
        // In a box: a future is moved several times, and this one has those of all verbs in it. What is audited hears
        // of the answer in here, where nobody needs to wait for it. No panic ends the connection.
        let work = Box::pin(async move {
            let _busy = busy;
            let routed = std::pin::pin!(server.route(request, &peer, &id, &begun));
            match (AssertUnwindSafe(routed).catch_unwind().await, begun.get()) {
                (Ok(response), Some(trail)) => trail.answered(response, endless),
                (Ok(response), None) => response,
                (Err(panic), trail) => failed(crate::panic_text(&*panic), trail),
            }
        });
        // What only reads may end with its client. Anything else is a task of its own: neither a client that goes away
        // nor a deadline can cancel a write half way through its bookkeeping.
        let task = match short {
            true => future::Either::Left(work.map(Ok)),
            false => future::Either::Right(tokio::spawn(work)),
        };
        let answered = match deadline {
            Some(at) => match timeout_at(at, task).await {
                Ok(answered) => answered,
                Err(_) => {
                    let response = respond::error(&limits::timed_out(), errors);
                    // What goes on tells itself how it ended.
                    return match trail.get().filter(|_| short) {
                        Some(trail) => trail.answered(response, endless),
                        None => response,
                    };
                }
            },
            None => task.await,
        };
        let mut response = answered.unwrap_or_else(|error| failed(&error.to_string(), trail.get()));
        if endless && let Body::Stream(_) = response.body() {
            response = response.map(|body| body.until(self.shutdown.begun()));
        }
        response
    }

    async fn route(
        self: Arc<Self>,
        mut request: Box<Request>,
        peer: &Peer,
        id: &HeaderValue,
        begun: &OnceLock<Trail>,
    ) -> Response {
        let served = self.metrics.begin(&request, || self.resources.current());
        let shown = self.authenticator.shown(&peer.certificates);
        let is_passed_over = self.authenticator.passes_over_token(&shown, &request.headers);
        let (identified, warnings) = {
            let asked = std::pin::pin!(self.identify(&mut request, &shown, peer, id, begun));
            crate::warning::collect(std::pin::pin!(crate::audit::early(asked))).await
        };
        let (mut response, apart) = match identified {
            Ok(()) => {
                let served = std::pin::pin!(self.serve(request));
                let served = std::pin::pin!(crate::audit::within(begun.get().cloned(), served));
                crate::metrics::apart::counted(served).await
            }
            Err(error) => (refused(&error, &request), Duration::ZERO),
        };
        warnings.iter().for_each(|text| warn(&mut response, text));
        if is_passed_over {
            warn(&mut response, EXTRA_SPACE);
        }
        served.end(response, apart)
    }

    /// Answers a request of somebody known.
    async fn serve(self: &Arc<Self>, mut request: Box<Request>) -> Response {
        let Some(flow) = self.flow.as_ref().filter(|_| limits::has_flow(&request.info)) else {
            let Some(_place) = self.limits.place(&request.info, &request.user).await else { return too_many(1) };
            return self.authorized(request).await;
        };
        match flow.admit(self, &mut request).await {
            Ok(mut ticket) => {
                let begins = request.info.verb == "watch";
                let mut answer = std::pin::pin!(self.authorized(request));
                let mut response = match begins {
                    true => match timeout(LONGEST_BEGINNING, answer.as_mut()).await {
                        Ok(response) => response,
                        Err(_) => {
                            ticket.let_go();
                            answer.await
                        }
                    },
                    false => answer.await,
                };
                ticket.tell(response.headers_mut());
                response
            }
            Err(rejected) => {
                let mut response = too_many(rejected.retry_after);
                rejected.tell(response.headers_mut());
                response
            }
        }
    }

    /// Answers a request that has its place, if its user may ask for it.
    async fn authorized(self: &Arc<Self>, request: Box<Request>) -> Response {
        let since = std::time::Instant::now();
        let decision = self.authorizer.decide(&Attributes { user: &request.user, info: &request.info });
        self.metrics.access().authorized(&decision, since.elapsed());
        if !decision.allowed && !decision.error.is_empty() {
            crate::audit::annotate("authorization.k8s.io/reason", "internal error");
            let target = request.uri.path_and_query().map_or(request.uri.path(), |target| target.as_str());
            return undecided(target, &decision.error);
        }
        let word = if decision.allowed { "allow" } else { "forbid" };
        crate::audit::annotate("authorization.k8s.io/decision", word);
        crate::audit::annotate("authorization.k8s.io/reason", &decision.reason);
        if !decision.allowed {
            let attributes = Attributes { user: &request.user, info: &request.info };
            return refused(&crate::auth::forbidden(&attributes, &decision.reason), &request);
        }
        let answer = std::pin::pin!(self.dispatch(request));
        let (mut response, warnings) = crate::warning::collect(answer).await;
        warnings.iter().for_each(|text| warn(&mut response, text));
        crate::warning::limit(response.headers_mut());
        response
    }

    /// Finds out who asks, and as whom.
    async fn identify(
        &self,
        request: &mut Request,
        shown: &Shown,
        peer: &Peer,
        id: &HeaderValue,
        begun: &OnceLock<Trail>,
    ) -> Result<()> {
        let id = id.to_str().unwrap_or_default();
        let since = std::time::Instant::now();
        let user = self.authenticator.authenticate(shown, &mut request.headers, &request.info.path).await;
        let attempt = match &user {
            Ok(_) => metrics::Attempt::Success,
            Err(_) if self.authenticator.shows_something(shown, &request.headers) => metrics::Attempt::Error,
            Err(_) => metrics::Attempt::Failure,
        };
        if let Some(until) = shown.until {
            self.metrics.access().certificate(until);
        }
        let name = user.as_ref().ok().map(|user| user.name.as_str());
        self.metrics.access().authenticated(attempt, name, since.elapsed());
        request.user = match (user, &self.audit) {
            (Err(error), Some(auditor)) => {
                auditor.refused(&error, id, &request.info, &request.uri, &request.headers, peer);
                return Err(error);
            }
            (user, _) => user?,
        };
        if let Some(auditor) = &self.audit {
            request.trail = auditor.begin(id, &request.user, &request.info, &request.uri, &request.headers, peer);
            if let Some(trail) = &request.trail {
                // Only this request sets it.
                let _ = begun.set(trail.clone());
            }
        }
        let (headers, info) = (&request.headers, &request.info);
        let decide = |asked: &Attributes<'_>| self.authorizer.decide(asked);
        if let Some(impersonated) = self.impersonation.user(headers, &request.user, info, &decide)? {
            if let Some(trail) = &request.trail {
                trail.impersonated(&impersonated.user, &impersonated.constraint);
            }
            request.user = impersonated.user;
        }
        Ok(())
    }

    async fn dispatch(self: &Arc<Self>, request: Box<Request>) -> Response {
        if let Some(remote) = self.aggregated.of_path(&request.info.path) {
            return Box::pin(crate::aggregate::forward(*request, &remote)).await;
        }
        if !request.info.is_resource {
            let answer = health::answer(self, &request)
                .or_else(|| metrics::answer(self, &request))
                .or_else(|| status_pages::answer(self, &request))
                .or_else(|| crate::flow::answer(self, &request))
                .or_else(|| crate::openapi::answer(self, &request))
                .or_else(|| openid::answer(self, &request))
                .or_else(|| discovery::answer(self, &request));
            return match answer {
                Some(response) => response,
                None => not_served(),
            };
        }
        let errors = request.for_error();
        match self.resource_request(request).await {
            Ok(response) => response,
            Err(error) => respond::error(&error, errors),
        }
    }

    async fn resource_request(self: &Arc<Self>, mut request: Box<Request>) -> Result<Response> {
        let set = self.resources.current();
        // A group is never empty in a path; such paths are those of no group.
        let info = &request.info;
        let malformed = info.path.starts_with("//") || info.path.starts_with("/apis/") && info.group.is_empty();
        let Some(resource) = set.lookup(&info.group, &info.version, &info.resource).filter(|_| !malformed) else {
            // Groups of custom resources have no routes but those of their resources.
            if malformed || set.all().iter().all(|r| r.custom || *r.group != *info.group) {
                return Ok(not_served());
            }
            return Err(unknown_path());
        };
        if resource.custom {
            if let Some(answer) = routing::custom(&request, &resource)? {
                return Ok(answer);
            }
            crate::crd::settle_accept(&mut request)?;
        } else {
            routing::check(&request, &resource)?;
        }
        let info = &request.info;
        let subresource = info.subresource.clone();
        let mut response = if info.subresource.is_empty() && matches!(info.verb.as_str(), "get" | "list" | "watch") {
            match info.verb.as_str() {
                "get" => read::get(self, &request, &resource).await,
                "list" => read::list(self, &request, &resource).await,
                _ => read::watch(self, &request, &resource).await,
            }
        } else {
            // The largest of all, and reads should not carry its room.
            Box::pin(write::handle(self, request, resource.clone())).await
        };
        if let Some(routing::Deprecation { text, removed }) = routing::deprecation(&resource) {
            crate::audit::annotate("k8s.io/deprecated", "true");
            if !removed.is_empty() {
                crate::audit::annotate("k8s.io/removed-release", &removed);
            }
            self.metrics.deprecated(&resource, &subresource, &removed);
            match &mut response {
                Ok(response) => warn(response, &text),
                Err(error) => error.warn(text),
            }
        }
        response
    }
}

/// What a client hears whose token is one space too late.
const EXTRA_SPACE: &str =
    "the provided Authorization header contains extra space before the bearer token, and is ignored";

/// The answer to a client that should come back later, in so many seconds.
fn too_many(seconds: u64) -> Response {
    let mut response = respond::text(429, limits::TOO_MANY);
    response.extensions_mut().insert(metrics::Unhandled::Dropped);
    response.headers_mut().insert(RETRY_AFTER, HeaderValue::from(seconds));
    response
}

/// Path of no group: a plain text 404.
pub fn not_served() -> Response {
    respond::text(404, "404 page not found\n")
}

/// Unknown path inside a served group.
pub fn unknown_path() -> ApiError {
    ApiError::new(404, "NotFound", "the server could not find the requested resource")
        .with_details(crate::status::Details::default())
}

/// Known path, wrong method.
pub fn wrong_method() -> ApiError {
    ApiError::new(405, "MethodNotAllowed", "the server does not allow this method on the requested resource")
        .with_details(crate::status::Details::default())
}

/// The answer where a handler failed.
fn failed(error: &str, trail: Option<&Trail>) -> Response {
    tracing::error!(error, "a handler failed; this is a bug");
    if let Some(trail) = trail {
        trail.panicked();
    }
    let text = "This request caused apiserver to panic. Look in the logs for details.";
    respond::error(&ApiError::new(500, "", text), Accepted::JSON)
}

fn failure(error: &ApiError, request: &Request) -> Response {
    respond::error(error, request.for_error())
}

/// The answer to somebody who is not known, or may not do this: no handler hears of it.
fn refused(error: &ApiError, request: &Request) -> Response {
    let mut response = failure(error, request);
    response.extensions_mut().insert(metrics::Unhandled::Refused);
    response
}

/// The answer where those who decide could not be asked: no handler hears of it either.
fn undecided(target: &str, error: &str) -> Response {
    let mut response = respond::text(500, crate::auth::unanswered(target, error));
    response.extensions_mut().insert(metrics::Unhandled::Refused);
    response
}

/// Adds a `Warning` header as clients show it to people. A text that fits into no header, or says nothing, is left out.
pub fn warn(response: &mut Response, text: &str) {
    if text.is_empty() || text.chars().any(char::is_control) {
        return;
    }
    let escaped = text.replace('\\', "\\\\").replace('"', "\\\"");
    if let Ok(value) = HeaderValue::from_str(&format!("299 - \"{escaped}\"")) {
        response.headers_mut().append(WARNING, value);
    }
}

#[cfg(test)]
mod tests;
