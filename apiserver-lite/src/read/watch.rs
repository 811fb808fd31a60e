//! Watches: a stream of events from a cursor in the store's history.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::stream;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::options::{ListOptions, parse_version, reach};
use super::{Selector, chosen, convert, form, is_stored_form, table};
use crate::crd::Closing;
use crate::http::{Accepted, Body, Form, Media, Response, respond};
use crate::resource::{Resource, Verbs};
use crate::server::{ApiServer, Request};
use crate::status::{ApiError, Result};
use crate::store::{EventKind, EventRef, ObjectRef, Watcher};

/// How often a watch that wants bookmarks gets one when nothing happens.
const BOOKMARK_EVERY: Duration = Duration::from_secs(60);

/// Follows a collection.
///
/// # Errors
/// 400, 422, 406 before the stream begins; later ones are an ERROR event.
pub async fn watch(server: &Arc<ApiServer>, request: &Request, resource: &Arc<Resource>) -> Result<Response> {
    if !resource.verbs.contains(Verbs::WATCH) {
        return Err(not_watched(resource));
    }
    let accepted = request.accepted(true)?;
    let (info, query) = (&request.info, &request.query);
    let options = ListOptions::parse(query, true)?;
    let mut fields = query.get("fieldSelector").unwrap_or_default().to_owned();
    if !info.name.is_empty() && !info.named_by_selector {
        fields = super::selector::of_name(fields, &info.name)?;
    }
    let selector = Selector::parse(resource, query.get("labelSelector").unwrap_or_default(), &fields)?;
    let selector = selector.within(super::shard(server, query)?);
    let namespace = Some(info.namespace.clone()).filter(|n| resource.namespaced && !n.is_empty());
    parse_version(query.get("resourceVersion").unwrap_or_default(), true)?;

    let include = table::Include::parse(query)?;
    if accepted.form == Form::MetadataList {
        // Upstream opens the stream and ends it at the first event: one object is no list.
        return Ok(respond::with_type(200, accepted.media.stream_name(), Body::empty()));
    }

    let encoder = Encoder { accepted, resource: resource.clone(), selector, namespace, columns_sent: false, include };
    let mut ready = VecDeque::new();
    let started = start(server, &options, &encoder, &mut ready).await;
    let content_type = accepted.media.stream_name();
    let (watcher, sent) = match started {
        Ok(started) => started,
        Err(error) => {
            let body = Body::from(encoder.error(&error));
            return Ok(respond::with_type(200, content_type, body));
        }
    };
    // Between the shortest time and twice that, so that many clients do not come back together.
    let shortest = server.config.min_watch;
    let lifetime = options.timeout.unwrap_or_else(|| shortest + shortest.mul_f64(fraction()));
    let counted = server.metrics.watch(&encoder.resource);
    let closing = resource.definition.as_ref().and_then(|definition| definition.closing.clone());
    let state = State {
        watcher,
        encoder,
        counted,
        closing,
        closes: false,
        ready,
        events: Vec::new(),
        sent,
        server: server.clone(),
        bookmarks: options.bookmarks,
        next_bookmark: Instant::now() + BOOKMARK_EVERY,
        ends: Instant::now() + lifetime,
        over: false,
    };
    let stream = stream::unfold(state, |mut state| async move { state.next().await.map(|bytes| (bytes, state)) });
    Ok(respond::with_type(200, content_type, Body::stream(stream)))
}

/// What has a route for its list, which a watch is a part of, but cannot be followed.
fn not_watched(resource: &Resource) -> ApiError {
    ApiError::method_not_supported(&resource.group, &resource.plural, "watch")
}

/// A number between 0 and 1; only spreads reconnects, so the clock's low digits do.
fn fraction() -> f64 {
    f64::from(std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).map_or(0, |d| d.subsec_micros())) / 1e6
}

/// What is to be sent. It is encoded when the connection takes it: a client that does not read holds references to
/// objects that are there anyway, not bytes of its own.
enum Next {
    Added(ObjectRef),
    Event(EventRef),
    Bookmark { revision: u64, initial_end: bool },
    Error(ApiError),
}

/// Positions the watch and finds what comes before the live events. Returns the watcher and the revision up to which
/// the client is informed.
async fn start(
    server: &ApiServer,
    options: &ListOptions,
    encoder: &Encoder,
    ready: &mut VecDeque<Next>,
) -> Result<(Watcher, u64)> {
    let store = &server.store;
    let storage = encoder.resource.storage.clone();
    // Without a version, or at version 0, a watch begins with what is there.
    let initial = options.send_initial_events.unwrap_or(matches!(options.revision, None | Some(0)));
    if !initial {
        let from = options.revision.filter(|v| *v > 0).unwrap_or_else(|| store.revision());
        // Nothing was ever seen of a kind before it was defined.
        if let Some(born) = encoder.resource.definition.as_ref().map(|d| d.born).filter(|born| from < *born) {
            return Err(ApiError::expired(format!("too old resource version: {from} ({born})")));
        }
        if from > store.revision() {
            // A version of the future: opens and stays silent until the store gets there.
            let watcher = store.watch(&storage, store.revision()).map_err(|e| ApiError::expired(e.to_string()))?;
            return Ok((watcher, from));
        }
        let watcher = store.watch(&storage, from).map_err(|e| ApiError::expired(e.to_string()))?;
        return Ok((watcher, from));
    }
    if let Some(version) = options.revision {
        reach(store, version).await?;
    }
    let snapshot = store.snapshot(&storage);
    let watcher = store.watch(&storage, snapshot.revision).map_err(|e| ApiError::expired(e.to_string()))?;
    let namespace = encoder.namespace.clone();
    if encoder.selector.looks_inside() {
        let all: Vec<ObjectRef> = snapshot.range(namespace.as_deref(), None).cloned().collect();
        let chosen = chosen::choose(server, &encoder.resource, &encoder.selector, &all).await?;
        ready.extend(chosen.into_iter().flatten().map(Next::Added));
    } else {
        let chosen = snapshot.range(namespace.as_deref(), None).filter(|object| encoder.selector.matches(object));
        ready.extend(chosen.cloned().map(Next::Added));
    }
    if options.bookmarks {
        ready.push_back(Next::Bookmark { revision: snapshot.revision, initial_end: true });
    }
    Ok((watcher, snapshot.revision))
}

struct State {
    watcher: Watcher,
    encoder: Encoder,
    counted: crate::metrics::Sent,
    /// Ends the stream when what it was begun for is served no more as it was.
    closing: Option<Closing>,
    /// All that happened before the definition changed is in `ready`.
    closes: bool,
    /// Not yet sent.
    ready: VecDeque<Next>,
    events: Vec<EventRef>,
    /// Revision up to which the client is informed.
    sent: u64,
    server: Arc<ApiServer>,
    bookmarks: bool,
    next_bookmark: Instant,
    ends: Instant,
    over: bool,
}

impl State {
    /// The next bytes; None ends the stream.
    async fn next(&mut self) -> Option<Bytes> {
        loop {
            if let Some(last) = self.closing.as_ref().and_then(Closing::last) {
                // What comes later may be of a version that this stream knows nothing of.
                if !std::mem::replace(&mut self.closes, true) {
                    self.take_until(last);
                }
                if self.ready.is_empty() {
                    ended(&mut self.closing).await;
                    return None;
                }
            }
            // One event at a time, so that each is a chunk of its own as clients get them upstream; the connection still
            // writes what is ready at once.
            if let Some(next) = self.ready.pop_front() {
                match self.encode(next).await {
                    Ok(Some(bytes)) => {
                        self.counted.add(1);
                        return Some(bytes);
                    }
                    Ok(None) => {}
                    Err(error) => self.fail(error),
                }
                continue;
            }
            if self.over {
                return None;
            }
            let wake = if self.bookmarks { self.next_bookmark.min(self.ends) } else { self.ends };
            tokio::select! {
                biased;
                // What came before that is still to be told.
                () = ended(&mut self.closing) => {}
                waited = self.watcher.next(&mut self.events) => self.take(waited.err()),
                () = tokio::time::sleep_until(wake) => {
                    if self.bookmarks {
                        self.bookmark();
                    }
                    self.over = Instant::now() >= self.ends;
                }
            }
        }
    }

    /// # Errors
    /// When a webhook cannot convert an object into the version that is watched.
    async fn encode(&mut self, next: Next) -> Result<Option<Bytes>> {
        Ok(match next {
            Next::Added(object) => {
                let object = crate::crd::served_one(&self.server, &self.encoder.resource, &object).await?;
                Some(self.encoder.object("ADDED", &object))
            }
            Next::Event(event) => {
                let encoder = &mut self.encoder;
                let Some((seen, object)) = encoder.seen(&self.server, &event).await? else { return Ok(None) };
                let bytes = match encoder.is_converted() {
                    true => {
                        let object = crate::crd::served_one(&self.server, &encoder.resource, &object).await?;
                        encoder.object(TYPES[seen], &object)
                    }
                    false => encoder.event(seen, &object, &event),
                };
                self.sent = event.revision;
                Some(bytes)
            }
            Next::Bookmark { revision, initial_end } => Some(self.encoder.bookmark(revision, initial_end)),
            Next::Error(error) => Some(self.encoder.error(&error)),
        })
    }

    /// Ends the stream with an error, before anything that is still to be sent.
    fn fail(&mut self, error: ApiError) {
        self.ready.clear();
        self.ready.push_back(Next::Error(error));
        self.over = true;
    }

    fn take(&mut self, expired: Option<crate::store::Expired>) {
        // Events up to here were in the initial state, or are before the version of the future that was asked for.
        let sent = self.sent;
        self.ready.extend(self.events.drain(..).filter(|e| e.revision > sent).map(Next::Event));
        if let Some(expired) = expired {
            self.ready.push_back(Next::Error(ApiError::expired(expired.to_string())));
            self.over = true;
        }
    }

    /// Takes what happened up to a revision, and drops what is later.
    fn take_until(&mut self, last: u64) {
        // Behind the history there is nothing more to be had: the client hears of that when it comes back.
        while let Ok(true) = self.watcher.ready(&mut self.events) {
            self.take(None);
        }
        self.ready.retain(|next| match next {
            Next::Event(event) => event.revision <= last,
            Next::Added(object) => object.revision <= last,
            Next::Bookmark { revision, .. } => *revision <= last,
            Next::Error(_) => true,
        });
    }

    fn bookmark(&mut self) {
        self.next_bookmark = Instant::now() + BOOKMARK_EVERY;
        let mut revision = self.server.store.revision();
        // It promises that all up to its version came before it, and watchers are told of a change a moment after the
        // store's version has moved on: what is there by now goes first.
        loop {
            match self.watcher.ready(&mut self.events) {
                Ok(true) => {
                    revision = revision.max(self.events.last().map_or(0, |event| event.revision));
                    self.take(None);
                }
                Ok(false) => break,
                Err(expired) => return self.take(Some(expired)),
            }
        }
        if revision > self.sent {
            self.sent = revision;
            self.ready.push_back(Next::Bookmark { revision, initial_end: false });
        }
    }
}

/// Waits until what is followed is served no more as it was; without end for what stays.
async fn ended(closing: &mut Option<Closing>) {
    match closing {
        Some(closing) => closing.ended().await,
        None => std::future::pending().await,
    }
}

struct Encoder {
    accepted: Accepted,
    resource: Arc<Resource>,
    selector: Selector,
    namespace: Option<String>,
    columns_sent: bool,
    include: table::Include,
}

/// Event types as clients see them, in the order of the shared frames.
const TYPES: [&str; 3] = ["ADDED", "MODIFIED", "DELETED"];

impl Encoder {
    /// Whether a webhook converts what is watched.
    fn is_converted(&self) -> bool {
        self.resource.definition.as_ref().is_some_and(|definition| definition.is_converted())
    }

    /// What an event is to this watcher (a place in [`TYPES`]), and of which object; None when it does not concern it.
    ///
    /// # Errors
    /// As [`chosen::choose`].
    async fn seen(&self, server: &ApiServer, event: &EventRef) -> Result<Option<(usize, ObjectRef)>> {
        let key = &event.object.key;
        if self.namespace.as_ref().is_some_and(|n| **n != *key.namespace) {
            return Ok(None);
        }
        let gone = event.kind == EventKind::Deleted;
        let seen = match (self.chooses(server, event.previous.as_ref()).await?, gone) {
            (true, true) => 2,
            (false, true) => return Ok(None),
            (before, false) => match (before, self.chooses(server, Some(&event.object)).await?) {
                (false, true) => 0,
                (true, true) => 1,
                (true, false) => 2,
                (false, false) => return Ok(None),
            },
        };
        if seen == 2 && !gone {
            // It left the selection: the object as it was, with the version of the change.
            let previous = event.previous.as_ref();
            return Ok(previous.map(|previous| (2, previous.at_revision(event.revision))));
        }
        Ok(Some((seen, event.object.clone())))
    }

    async fn chooses(&self, server: &ApiServer, object: Option<&ObjectRef>) -> Result<bool> {
        let Some(object) = object else { return Ok(false) };
        if !self.selector.looks_inside() {
            return Ok(self.selector.matches(object));
        }
        let chosen = chosen::choose(server, &self.resource, &self.selector, std::slice::from_ref(object)).await?;
        Ok(chosen.iter().any(Option::is_some))
    }

    /// The bytes of an event, which is `seen` as one of an object.
    fn event(&mut self, seen: usize, object: &ObjectRef, event: &EventRef) -> Bytes {
        let as_stored = self.accepted.form == Form::Whole && is_stored_form(&self.resource, object);
        if !Arc::ptr_eq(object, &event.object) || !as_stored {
            return self.object(TYPES[seen], object);
        }
        let media =
            if self.accepted.media == Media::Protobuf && !self.resource.custom { Media::Protobuf } else { Media::Json };
        let slot = seen + if media == Media::Protobuf { TYPES.len() } else { 0 };
        event.frame(slot, || frame(media, TYPES[seen], &stored(media, &self.resource, object)))
    }

    /// One object as an event of a type.
    fn object(&mut self, kind: &str, object: &ObjectRef) -> Bytes {
        let media = self.accepted.media;
        let body: Bytes = match self.accepted.form {
            Form::Whole if is_stored_form(&self.resource, object) => stored(media, &self.resource, object),
            Form::Whole => match &self.resource.definition {
                Some(definition) => {
                    let mut out = Vec::with_capacity(object.json.len());
                    definition.append(&self.resource, object, &mut out);
                    out.into()
                }
                None => tree(media, &self.resource, &convert(&self.resource, object.value())),
            },
            Form::Metadata | Form::MetadataList => {
                form::metadata_bytes(media, &form::metadata_tree(self.accepted, object.value())).into()
            }
            Form::Table => {
                let first = !std::mem::replace(&mut self.columns_sent, true);
                let value = convert(&self.resource, object.value());
                table::event(self.accepted, &self.resource, value, first, self.include).into()
            }
        };
        frame(media, kind, &body)
    }

    fn bookmark(&mut self, revision: u64, initial_end: bool) -> Bytes {
        let mut metadata = json!({"resourceVersion": revision.to_string()});
        if initial_end {
            metadata["annotations"] = json!({"k8s.io/initial-events-end": "true"});
        }
        let (kind, version) = match self.accepted.form {
            Form::Metadata | Form::MetadataList => {
                ("PartialObjectMetadata".to_owned(), format!("meta.k8s.io/{}", self.accepted.form_version))
            }
            _ => (self.resource.kind.to_string(), self.resource.api_version()),
        };
        let value = json!({"kind": kind, "apiVersion": version, "metadata": metadata});
        let media = self.accepted.media;
        let body: Bytes = match self.accepted.form {
            Form::Whole => tree(media, &self.resource, &value),
            Form::Metadata | Form::MetadataList => form::metadata_bytes(media, &value).into(),
            Form::Table => {
                let first = !std::mem::replace(&mut self.columns_sent, true);
                table::event(self.accepted, &self.resource, value, first, self.include).into()
            }
        };
        frame(media, "BOOKMARK", &body)
    }

    fn error(&self, error: &ApiError) -> Bytes {
        let media = self.accepted.media;
        let value = error.to_value();
        let set = proto::schema::TypeSet::built_in();
        let mut body = Vec::new();
        if let Some(id) = set.kind("", "v1", "Status") {
            match media {
                Media::Protobuf => body = proto::protobuf::encode_enveloped(set, id, &value, "v1", "Status"),
                _ => proto::json::write(set, id, &value, &mut body),
            }
        }
        frame(media, "ERROR", &body)
    }
}

fn stored(media: Media, resource: &Resource, object: &ObjectRef) -> Bytes {
    if media == Media::Protobuf && !resource.custom { object.protobuf(resource) } else { object.json.bytes() }
}

fn tree(media: Media, resource: &Resource, value: &Value) -> Bytes {
    let mut out = Vec::new();
    if resource.custom {
        proto::json::write_sorted(value, &mut out);
    } else if media == Media::Protobuf {
        let text = |key: &str| value[key].as_str().unwrap_or_default();
        out = proto::protobuf::encode_enveloped(
            resource.schema.set(),
            resource.schema.id,
            value,
            text("apiVersion"),
            text("kind"),
        );
    } else {
        proto::json::write(resource.schema.set(), resource.schema.id, value, &mut out);
    }
    out.into()
}

/// An event around an object: a line of JSON, or a length-delimited message.
fn frame(media: Media, kind: &str, object: &[u8]) -> Bytes {
    if media == Media::Protobuf {
        return proto::protobuf::watch_frame(kind, object).into();
    }
    let mut out = Vec::with_capacity(object.len() + 40);
    out.extend_from_slice(b"{\"type\":\"");
    out.extend_from_slice(kind.as_bytes());
    out.extend_from_slice(b"\",\"object\":");
    out.extend_from_slice(object);
    out.extend_from_slice(b"}\n");
    out.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_followed_is_named() {
        let kind = crate::resource::Resources::built_in().lookup("", "v1", "componentstatuses").expect("built in");
        let error = not_watched(&kind);
        assert_eq!(error.code(), 405);
        assert_eq!(error.status().message, "watch is not supported on resources of kind \"componentstatuses\"");
    }

    /// A watch of all that a field selector chooses from now on.
    fn following(server: &Arc<ApiServer>, resource: &Arc<Resource>, fields: &str, closing: Option<Closing>) -> State {
        let selector = Selector::parse(resource, "", fields).expect("a selector");
        let (accepted, include) = (Accepted::JSON, table::Include::Metadata);
        let encoder =
            Encoder { accepted, resource: resource.clone(), selector, namespace: None, columns_sent: false, include };
        let sent = server.store.revision();
        State {
            watcher: server.store.watch(&resource.storage, sent).expect("it is known"),
            encoder,
            counted: server.metrics.watch(resource),
            closing,
            closes: false,
            ready: VecDeque::new(),
            events: Vec::new(),
            sent,
            server: server.clone(),
            bookmarks: true,
            next_bookmark: Instant::now() + BOOKMARK_EVERY,
            ends: Instant::now() + BOOKMARK_EVERY,
            over: false,
        }
    }

    async fn told(state: &mut State) -> Value {
        serde_json::from_slice(&state.next().await.expect("it goes on")).expect("an event")
    }

    /// A bookmark that came between a write and the word of it told of the write's version: the event was left out.
    #[tokio::test]
    async fn a_bookmark_comes_after_all_that_it_speaks_of() {
        let server = crate::serve::testing::server().await;
        let resource = server.resources.lookup("", "v1", "configmaps").expect("built in");
        let mut state = following(&server, &resource, "", None);
        let client = crate::client::Client::new(server.clone(), "somebody", "test");
        let map = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "m"}});
        let made = client.create("configmaps", "default", map).await.expect("a map");
        state.bookmark();
        let (event, bookmark) = (told(&mut state).await, told(&mut state).await);
        assert_eq!((&event["type"], &event["object"]["metadata"]["name"]), (&"ADDED".into(), &"m".into()));
        assert_eq!(bookmark["type"], "BOOKMARK");
        let version = bookmark["object"]["metadata"]["resourceVersion"].as_str().and_then(|v| v.parse::<u64>().ok());
        assert!(version.is_some_and(|version| version >= made.revision));
    }

    /// Watches of a custom kind went on with its definition as it was when they began.
    #[tokio::test]
    async fn a_watch_ends_where_what_it_follows_is_served_in_another_way() {
        let server = crate::serve::testing::server().await;
        let resource = server.resources.lookup("", "v1", "configmaps").expect("built in");
        let keeper = crate::crd::Keeper::default();
        let mut state = following(&server, &resource, "", Some(keeper.closing()));
        let client = crate::client::Client::new(server.clone(), "somebody", "test");
        let map = |name: &str| json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}});
        client.create("configmaps", "default", map("before")).await.expect("a map");
        assert_eq!(told(&mut state).await["object"]["metadata"]["name"], "before");
        let last = client.create("configmaps", "default", map("last")).await.expect("a map");
        keeper.begin(last.revision);
        client.create("configmaps", "default", map("after")).await.expect("a map");
        assert_eq!(told(&mut state).await["object"]["metadata"]["name"], "last");
        let nothing = tokio::time::timeout(Duration::from_millis(20), state.next()).await;
        assert!(nothing.is_err(), "the next state is not served yet");
        drop(keeper);
        assert_eq!(state.next().await, None);
        let keeper = crate::crd::Keeper::default();
        let mut waits = following(&server, &resource, "", Some(keeper.closing()));
        let ends = async {
            let last = client.create("configmaps", "default", map("at-once")).await.expect("a map");
            keeper.begin(last.revision);
            drop(keeper);
        };
        let (event, ()) = tokio::join!(told(&mut waits), ends);
        assert_eq!((&event["object"]["metadata"]["name"], waits.next().await), (&"at-once".into(), None));
        let mut idle = following(&server, &resource, "", Some(crate::crd::Keeper::default().closing()));
        assert_eq!(idle.next().await, None, "who comes too late comes again");
    }

    /// A write through a version that does not let clients select by a field was told as if the object had gone, and one of
    /// an object that was older than the field's place in the definition as if it had come.
    #[tokio::test]
    async fn an_object_stays_selected_whoever_writes_it() {
        let server = crate::serve::testing::server().await;
        let [plain, _, selects] = crate::crd::samples::colors();
        let red = crate::crd::samples::color("a", "red");
        crate::crd::samples::create(&server, &plain, red).await;
        let mut state = following(&server, &selects, "spec.color=red", None);
        for (resource, label) in [(&plain, "x"), (&selects, "y"), (&plain, "z")] {
            crate::crd::samples::label(&server, resource, "a", label).await;
            let event = told(&mut state).await;
            assert_eq!((&event["type"], &event["object"]["apiVersion"]), (&"MODIFIED".into(), &"g.io/v2".into()));
            assert_eq!(event["object"]["metadata"]["labels"]["l"], label);
        }
    }
}
