//! Typed requests: one method per verb, errors as the server's Status.

use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::{Method, Request, Response, header};
use http_body_util::BodyExt;
use prost::Message;
use proto::apimachinery::pkg::apis::meta::v1::DeleteOptions;

use super::kind::{collection_path, escape};
use super::transport::chain;
use super::{ApiError, Body, ContentType, Kind, RateLimit, Transport, Watch, media};
use crate::metrics;

/// Answers beyond this are refused: a node's share of a cluster stays far below.
const MAX_ANSWER: usize = 256 * 1024 * 1024;
/// client-go tries a request this often when the server says when to come back.
const MAX_TRIES: u32 = 10;

#[derive(Debug, Clone)]
pub struct ClientOptions {
    pub content_type: ContentType,
    /// For everything but watches; covers the whole answer.
    pub timeout: Duration,
    /// Requests per second and burst; 0 means no limit.
    pub rate: (f64, u32),
}

impl Default for ClientOptions {
    fn default() -> Self {
        // kubeAPIQPS and kubeAPIBurst of the kubelet; its own requests have no timeout, ours must end.
        ClientOptions { content_type: ContentType::Protobuf, timeout: Duration::from_secs(60), rate: (50.0, 100) }
    }
}

/// What a list is narrowed to; empty fields are not sent.
#[derive(Debug, Clone, Default)]
pub struct ListOptions {
    pub field_selector: String,
    pub label_selector: String,
    /// `0` takes what the server has at hand; empty asks for the newest.
    pub resource_version: String,
    pub limit: u32,
    pub continue_token: String,
}

#[derive(Debug, Clone, Default)]
pub struct WatchOptions {
    pub field_selector: String,
    pub label_selector: String,
    pub resource_version: String,
    /// The server ends the watch after this; 0 leaves it to the server.
    pub timeout_seconds: u32,
}

#[derive(Debug, Clone)]
pub struct List<T> {
    pub items: Vec<T>,
    /// The version to watch from.
    pub resource_version: String,
    /// Not empty when `limit` cut the list.
    pub continue_token: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PatchType {
    StrategicMerge,
    Merge,
    Json,
}

/// A handle to one API server as one user; cheap to clone.
#[derive(Clone)]
pub struct Client {
    transport: Arc<dyn Transport>,
    content_type: ContentType,
    timeout: Duration,
    rate: Option<Arc<RateLimit>>,
}

impl Client {
    pub fn new(transport: Arc<dyn Transport>, options: &ClientOptions) -> Self {
        Client {
            transport,
            content_type: options.content_type,
            timeout: options.timeout,
            rate: RateLimit::new(options.rate.0, options.rate.1).map(Arc::new),
        }
    }

    /// The same connections with another timeout and no rate limit, as heartbeats need.
    pub fn for_heartbeats(&self, timeout: Duration) -> Self {
        metrics::REST_TRANSPORT_CALLS.inc(&["hit"]);
        Client { timeout, rate: None, ..self.clone() }
    }

    /// The same connections with a rate of its own; 0 a second means no limit.
    pub fn with_rate(&self, per_second: f64, burst: u32) -> Self {
        // client-go's burst where none is given.
        let burst = if burst == 0 { 10 } else { burst };
        metrics::REST_TRANSPORT_CALLS.inc(&["hit"]);
        Client { rate: RateLimit::new(per_second, burst).map(Arc::new), ..self.clone() }
    }

    pub fn content_type(&self) -> ContentType {
        self.content_type
    }

    /// Makes the next request connect anew, with the credentials as they are then.
    pub fn reconnect(&self) {
        self.transport.reconnect();
    }

    /// `namespace` is ignored for kinds without; the same holds for all methods.
    pub async fn get<T: Kind>(&self, namespace: &str, name: &str) -> Result<T, ApiError> {
        self.get_at(namespace, name, "").await
    }

    /// With version `0` the answer may come from the server's cache.
    pub async fn get_at<T: Kind>(&self, namespace: &str, name: &str, resource_version: &str) -> Result<T, ApiError> {
        let mut path = object_path::<T>(namespace, name, "");
        let mut query = Query::new(&mut path);
        query.push("resourceVersion", resource_version);
        self.exchange(Method::GET, &path, None, Bytes::new()).await
    }

    /// An empty namespace lists all of them.
    pub async fn list<T: Kind>(&self, namespace: &str, options: &ListOptions) -> Result<List<T>, ApiError> {
        let mut path = collection_path::<T>(namespace);
        let mut query = Query::new(&mut path);
        query.push("fieldSelector", &options.field_selector);
        query.push("labelSelector", &options.label_selector);
        query.push("resourceVersion", &options.resource_version);
        query.push("continue", &options.continue_token);
        if options.limit > 0 {
            query.push("limit", &options.limit.to_string());
        }
        let (body, form) = self.call(Method::GET, &path, None, Bytes::new()).await?;
        let (meta, items) = media::decode_list::<T>(body, form)?;
        Ok(List { items, resource_version: meta.resource_version, continue_token: meta.r#continue })
    }

    /// Opens a watch with bookmarks. Returns when the server has accepted it.
    ///
    /// # Errors
    /// A refusal comes as [`ApiError::Status`]; one that comes later arrives as an event.
    pub async fn watch<T: Kind>(&self, namespace: &str, options: &WatchOptions) -> Result<Watch<T>, ApiError> {
        let mut path = collection_path::<T>(namespace);
        let mut query = Query::new(&mut path);
        query.push("watch", "true");
        query.push("allowWatchBookmarks", "true");
        query.push("fieldSelector", &options.field_selector);
        query.push("labelSelector", &options.label_selector);
        query.push("resourceVersion", &options.resource_version);
        if options.timeout_seconds > 0 {
            query.push("timeoutSeconds", &options.timeout_seconds.to_string());
        }
        self.pace(&[self.transport.host().as_str(), "GET"]).await;
        let request = self.request(Method::GET, &path, None, Bytes::new())?;
        let answer = tokio::time::timeout(self.timeout, self.transport.send(request))
            .await
            .map_err(|_| ApiError::Timeout(self.timeout))??;
        if !answer.status().is_success() {
            return Err(tokio::time::timeout(self.timeout, refusal(answer))
                .await
                .unwrap_or(ApiError::Timeout(self.timeout)));
        }
        let form = ContentType::of_answer(answer.headers().get(header::CONTENT_TYPE));
        Ok(Watch::new(answer.into_body(), form))
    }

    /// Creates the object in `namespace`; its own namespace may stay empty.
    pub async fn create<T: Kind>(&self, namespace: &str, object: &T) -> Result<T, ApiError> {
        let path = collection_path::<T>(namespace);
        let body = media::encode(object, self.content_type);
        self.exchange(Method::POST, &path, Some(self.content_type.media_type()), body).await
    }

    /// [`Client::create`] for whom it is enough that the object is made: the answer, which is the object once more, is not
    /// read.
    pub async fn submit<T: Kind>(&self, namespace: &str, object: &T) -> Result<(), ApiError> {
        let path = collection_path::<T>(namespace);
        let body = media::encode(object, self.content_type);
        self.call(Method::POST, &path, Some(self.content_type.media_type()), body).await.map(drop)
    }

    /// Posts to a subresource of the object `P/name`, such as the `token` of a service account.
    pub async fn create_subresource<P: Kind, T: Kind>(
        &self,
        namespace: &str,
        name: &str,
        subresource: &str,
        object: &T,
    ) -> Result<T, ApiError> {
        let path = object_path::<P>(namespace, name, subresource);
        let body = media::encode(object, self.content_type);
        self.exchange(Method::POST, &path, Some(self.content_type.media_type()), body).await
    }

    /// Replaces the object; its metadata names it. An empty `subresource` means the object itself.
    pub async fn update<T: Kind>(&self, subresource: &str, object: &T) -> Result<T, ApiError> {
        let path = object_path::<T>(object.namespace(), object.name(), subresource);
        let body = media::encode(object, self.content_type);
        self.exchange(Method::PUT, &path, Some(self.content_type.media_type()), body).await
    }

    /// `patch` is JSON. An empty `subresource` means the object itself.
    pub async fn patch<T: Kind>(
        &self,
        namespace: &str,
        name: &str,
        subresource: &str,
        kind: PatchType,
        patch: impl Into<Bytes>,
    ) -> Result<T, ApiError> {
        self.patch_for::<T, T>(namespace, name, subresource, kind, patch).await
    }

    /// [`Client::patch`] for whom a part of the object is enough: `A` is a message with those fields of `T`.
    pub async fn patch_for<T: Kind, A: Message + Default>(
        &self,
        namespace: &str,
        name: &str,
        subresource: &str,
        kind: PatchType,
        patch: impl Into<Bytes>,
    ) -> Result<A, ApiError> {
        let media_type = match kind {
            PatchType::StrategicMerge => "application/strategic-merge-patch+json",
            PatchType::Merge => "application/merge-patch+json",
            PatchType::Json => "application/json-patch+json",
        };
        let path = object_path::<T>(namespace, name, subresource);
        let (body, form) = self.call(Method::PATCH, &path, Some(media_type), patch.into()).await?;
        media::decode_part::<T, A>(body, form)
    }

    /// Asks for deletion. Success may mean that the object is gone or that its end has begun.
    pub async fn delete<T: Kind>(&self, namespace: &str, name: &str, options: &DeleteOptions) -> Result<(), ApiError> {
        let path = object_path::<T>(namespace, name, "");
        let body = media::encode_delete_options(options, self.content_type);
        self.call(Method::DELETE, &path, Some(self.content_type.media_type()), body).await.map(drop)
    }

    /// Deletes every object that a field selector names.
    pub async fn delete_selected<T: Kind>(&self, namespace: &str, field_selector: &str) -> Result<(), ApiError> {
        let mut path = collection_path::<T>(namespace);
        Query::new(&mut path).push("fieldSelector", field_selector);
        let body = media::encode_delete_options(&DeleteOptions::default(), self.content_type);
        self.call(Method::DELETE, &path, Some(self.content_type.media_type()), body).await.map(drop)
    }

    async fn exchange<T: Kind>(
        &self,
        method: Method,
        path: &str,
        media_type: Option<&'static str>,
        body: Bytes,
    ) -> Result<T, ApiError> {
        let (body, form) = self.call(method, path, media_type, body).await?;
        media::decode(body, form)
    }

    /// One request to its whole answer. A refusal that says when to come back is tried again at that time.
    async fn call(
        &self,
        method: Method,
        path: &str,
        media_type: Option<&'static str>,
        body: Bytes,
    ) -> Result<(Bytes, ContentType), ApiError> {
        let mut tries = 1;
        loop {
            let (host, verb) = (self.transport.host(), method.as_str());
            let labels = [host.as_str(), verb];
            self.pace(&labels).await;
            let request = self.request(method.clone(), path, media_type, body.clone())?;
            metrics::REST_REQUEST_BYTES.observe(&labels, size(body.len()));
            let timer = metrics::REST_SECONDS.time(&labels);
            let outcome = tokio::time::timeout(self.timeout, self.whole(request))
                .await
                .unwrap_or(Err((ApiError::Timeout(self.timeout), None)));
            drop(timer);
            let code = match &outcome {
                Ok((answer, _)) => {
                    metrics::REST_RESPONSE_BYTES.observe(&labels, size(answer.len()));
                    "200".to_owned()
                }
                Err((error, _)) if error.code() > 0 => error.code().to_string(),
                Err(_) => "<error>".to_owned(),
            };
            metrics::REST_REQUESTS.inc(&[&code, &host, verb]);
            match outcome {
                Ok(answer) => return Ok(answer),
                Err((error, Some(wait))) if tries < MAX_TRIES && error.is_retriable() => {
                    tracing::debug!(%error, path, tries, "the API server asks to come back later");
                    tries += 1;
                    tokio::time::sleep(wait).await;
                    metrics::REST_RETRIES.inc(&[&code, &host, verb]);
                }
                Err((error, _)) => return Err(error),
            }
        }
    }

    /// Waits for its turn and counts how long, by host and verb. Without a limit there is nothing to count, as in client-go.
    async fn pace(&self, labels: &[&str; 2]) {
        if let Some(rate) = &self.rate {
            let _waited = metrics::REST_LIMITER_SECONDS.time(labels);
            rate.wait().await;
        }
    }

    fn request(
        &self,
        method: Method,
        path: &str,
        media_type: Option<&'static str>,
        body: Bytes,
    ) -> Result<Request<Bytes>, ApiError> {
        let mut request =
            Request::builder().method(method).uri(path).header(header::ACCEPT, self.content_type.accept());
        if let Some(media_type) = media_type {
            request = request.header(header::CONTENT_TYPE, media_type);
        }
        request.body(body).map_err(|e| ApiError::Malformed(e.to_string()))
    }

    /// The second part of the error is the server's `Retry-After`.
    async fn whole(&self, request: Request<Bytes>) -> Result<(Bytes, ContentType), (ApiError, Option<Duration>)> {
        let answer = self.transport.send(request).await.map_err(|e| (e, None))?;
        if !answer.status().is_success() {
            let wait = answer.headers().get(header::RETRY_AFTER).and_then(|v| v.to_str().ok()?.parse().ok());
            return Err((refusal(answer).await, wait.map(Duration::from_secs)));
        }
        let form = ContentType::of_answer(answer.headers().get(header::CONTENT_TYPE));
        read(answer.into_body()).await.map(|body| (body, form)).map_err(|e| (e, None))
    }
}

fn size(bytes: usize) -> f64 {
    metrics::page::to_float(u64::try_from(bytes).unwrap_or(u64::MAX))
}

/// Read by hand: `Limited` needs a conversion of the error type that keeps callers' futures from being `Send`.
async fn read(mut body: Body) -> Result<Bytes, ApiError> {
    let mut first: Option<Bytes> = None;
    let mut rest = BytesMut::new();
    while let Some(frame) = body.frame().await {
        let Ok(data) = frame.map_err(|e| ApiError::Broken(chain(&*e)))?.into_data() else { continue };
        // Small answers come in one piece, which then needs no copy.
        match first.take() {
            None if rest.is_empty() => first = Some(data),
            None => rest.extend_from_slice(&data),
            Some(before) => {
                rest.extend_from_slice(&before);
                rest.extend_from_slice(&data);
            }
        }
        if rest.len() > MAX_ANSWER {
            return Err(ApiError::Malformed("an answer too large to take".into()));
        }
    }
    Ok(first.unwrap_or_else(|| rest.freeze()))
}

/// Turns an answer other than 2xx into the error it stands for.
async fn refusal(answer: Response<Body>) -> ApiError {
    let code = answer.status();
    let form = ContentType::of_answer(answer.headers().get(header::CONTENT_TYPE));
    let body = match read(answer.into_body()).await {
        Ok(body) => body,
        Err(error) => return error,
    };
    match media::decode_status(body.clone(), form) {
        Some(mut status) => {
            if status.code == 0 {
                status.code = i32::from(code.as_u16());
            }
            ApiError::Status(Box::new(status))
        }
        None => {
            let text = String::from_utf8_lossy(&body[..body.len().min(1024)]).trim().to_owned();
            let text = if text.is_empty() { code.to_string() } else { text };
            ApiError::from_code(code.as_u16(), text)
        }
    }
}

fn object_path<T: Kind>(namespace: &str, name: &str, subresource: &str) -> String {
    let mut path = collection_path::<T>(namespace);
    path.push('/');
    escape(name, &mut path);
    if !subresource.is_empty() {
        path.push('/');
        path.push_str(subresource);
    }
    path
}

struct Query<'a> {
    path: &'a mut String,
    separator: char,
}

impl<'a> Query<'a> {
    fn new(path: &'a mut String) -> Self {
        Query { path, separator: '?' }
    }

    fn push(&mut self, key: &str, value: &str) {
        if value.is_empty() {
            return;
        }
        self.path.push(self.separator);
        self.separator = '&';
        self.path.push_str(key);
        self.path.push('=');
        escape(value, self.path);
    }
}
