//! What aggregated servers tell of their schemas.
//!
//! They are asked in a task of its own and at a pace of its own: at once when an APIService is new or changed or its
//! server is there again, and then every minute, as upstream. Whether a server is available does not wait for it. One
//! server is asked once for all of its group versions.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwapOption;
use bytes::Bytes;
use futures_util::future::join_all;
use http::header::{ACCEPT, ETAG, HeaderMap, HeaderValue, IF_NONE_MATCH};
use ring::digest::{SHA256, digest};
use serde_json::Value;
use tokio::time::Instant;

use super::name_user;
use super::older::Older;
use super::remote::Remote;
use crate::outgoing::{Answer, Client, Dialer};
use crate::request::User;
use crate::server::ApiServer;

/// Time for one answer, as upstream.
const PATIENCE: Duration = Duration::from_secs(5);
/// Time between two questions, and at first after one that had no answer; it doubles up to the other.
const EVERY: Duration = Duration::from_secs(60);
const SOON: Duration = Duration::from_secs(1);

/// What a server told last of one group version. A new one takes its place when there is a reason to ask at once.
#[derive(Debug, Default)]
pub struct Documents {
    /// Of the APIService.
    spec: Value,
    /// Keys of the server's OpenAPI index for the version, with where each is.
    index: ArcSwapOption<Value>,
    /// The version's part of the older document.
    older: ArcSwapOption<Older>,
}

impl Documents {
    /// Those of an APIService of which nothing is known yet, by its spec.
    pub fn of(spec: &Value) -> Self {
        Documents { spec: spec.clone(), ..Documents::default() }
    }

    /// Those of the same APIService as it is now. What one server told is not what another one serves.
    pub fn next(self: &Arc<Self>, spec: &Value) -> Arc<Self> {
        if self.spec == *spec { self.clone() } else { self.renewed(spec) }
    }

    /// The same, asked for at once: their server was away.
    pub fn again(&self) -> Arc<Self> {
        self.renewed(&self.spec)
    }

    fn renewed(&self, spec: &Value) -> Arc<Self> {
        let next = Documents::of(spec);
        if ["service", "group", "version"].iter().all(|key| self.spec[key] == spec[key]) {
            next.index.store(self.index.load_full());
            next.older.store(self.older.load_full());
        }
        Arc::new(next)
    }

    pub fn index(&self) -> Option<Arc<Value>> {
        self.index.load_full()
    }

    pub fn older(&self) -> Option<Arc<Older>> {
        self.older.load_full()
    }

    /// Equal for those of one server, whom we trust for one reason.
    fn server(&self) -> String {
        let [service, bundle, any] = ["service", "caBundle", "insecureSkipTLSVerify"].map(|key| &self.spec[key]);
        format!("{service} {bundle} {any}")
    }

    /// `apis/GROUP/VERSION`
    fn key(&self) -> String {
        let text = |key: &str| self.spec[key].as_str().unwrap_or_default();
        format!("apis/{}/{}", text("group"), text("version"))
    }
}

/// When a server was asked for a group version's documents.
struct Asked {
    documents: Arc<Documents>,
    again: Instant,
    failures: u32,
}

/// Works until the runtime ends.
pub async fn run(server: Arc<ApiServer>) {
    let mut asked: HashMap<String, Asked> = HashMap::new();
    loop {
        let remotes = server.aggregated.all();
        asked.retain(|name, _| remotes.iter().any(|remote| remote.name == *name));
        let mut servers: BTreeMap<String, Vec<&Remote>> = BTreeMap::new();
        for remote in remotes.iter().filter(|remote| remote.available && remote.dialer.is_ok()) {
            servers.entry(remote.documents.server()).or_default().push(remote);
        }
        let now = Instant::now();
        // None for what was never asked for.
        let again = |remote: &Remote| {
            asked.get(&remote.name).filter(|a| Arc::ptr_eq(&a.documents, &remote.documents)).map(|a| a.again)
        };
        let due = |remotes: &Vec<&Remote>| remotes.iter().any(|r| again(r).is_none_or(|again| again <= now));
        let next = servers.values().flatten().filter_map(|remote| again(remote)).min();
        let questions = servers.values().filter(|remotes| due(remotes)).map(|remotes| async move {
            let parts: Vec<&Documents> = remotes.iter().map(|remote| &*remote.documents).collect();
            let good = match remotes.first().and_then(|remote| remote.dialer.as_ref().ok()) {
                Some(dialer) => ask(dialer, &parts).await,
                None => false,
            };
            (remotes, good)
        });
        let answered = join_all(questions).await;
        if answered.is_empty() {
            match next {
                Some(next) => {
                    let _ = tokio::time::timeout_at(next, server.aggregated.changed.notified()).await;
                }
                None => server.aggregated.changed.notified().await,
            }
            continue;
        }
        for (remotes, good) in answered {
            for remote in remotes {
                let before = asked.get(&remote.name).map_or(0, |asked| asked.failures);
                let failures = if good { 0 } else { before.saturating_add(1) };
                let again = Instant::now() + pause(failures);
                asked.insert(remote.name.clone(), Asked { documents: remote.documents.clone(), again, failures });
            }
        }
    }
}

/// Time until the next question after some that had no answer.
fn pause(failures: u32) -> Duration {
    match failures {
        0 => EVERY,
        more => SOON.saturating_mul(1 << (more - 1).min(16)).min(EVERY),
    }
}

/// Asks one server for what it has about some of its group versions; returns whether it answered.
async fn ask(dialer: &Dialer, parts: &[&Documents]) -> bool {
    let tag = known(parts).map(|older| older.tag.clone()).unwrap_or_default();
    let (index, older) = tokio::join!(get(dialer, "/openapi/v3", ""), get(dialer, "/openapi/v2", &tag));
    let index = index.is_some_and(|answer| take_index(parts, answer.code, &answer.body));
    let older = older.is_some_and(|answer| {
        let tag = answer.headers.get(ETAG).and_then(|tag| tag.to_str().ok()).unwrap_or_default();
        take_older(parts, answer.code, tag, &answer.body)
    });
    index && older
}

/// What all of them know of the older document, if that is the same state of it.
fn known(parts: &[&Documents]) -> Option<Arc<Older>> {
    let first = parts.first()?.older()?;
    let same = |part: &&Documents| part.older().is_some_and(|older| older.mark == first.mark && older.tag == first.tag);
    parts.iter().all(same).then_some(first)
}

/// Takes the answer about the index; returns whether it is one. Not every server has the document: without it there are
/// no schemas to show.
fn take_index(parts: &[&Documents], code: u16, body: &[u8]) -> bool {
    let index = match code {
        200 => match proto::json::parse(body) {
            Ok(parsed) => parsed.value,
            Err(_) => return false,
        },
        404 | 406 => Value::Null,
        _ => return false,
    };
    for part in parts {
        let place = &index["paths"][part.key()];
        part.index.store(place.is_object().then(|| Arc::new(place.clone())));
    }
    true
}

/// The same about the older document. One that is known already is not read again, also where it has no tag.
fn take_older(parts: &[&Documents], code: u16, tag: &str, body: &[u8]) -> bool {
    match code {
        200 => {}
        304 => return true,
        404 | 406 => {
            parts.iter().for_each(|part| part.older.store(None));
            return true;
        }
        _ => return false,
    }
    let mark: String = digest(&SHA256, body).as_ref().iter().map(|byte| format!("{byte:02X}")).collect();
    if known(parts).is_some_and(|older| older.mark == mark) {
        return true;
    }
    let Ok(parsed) = proto::json::parse(body) else { return false };
    for part in parts {
        let below = format!("/{}", part.key());
        part.older.store(Some(Arc::new(Older::of(&below, tag.to_owned(), mark.clone(), &parsed.value))));
    }
    true
}

/// A server's answer at a path, unless it is what a tag stands for; None when there is none.
async fn get(dialer: &Dialer, path: &str, tag: &str) -> Option<Answer> {
    let mut headers = HeaderMap::new();
    headers.insert(ACCEPT, HeaderValue::from_static("application/json"));
    if let Some(tag) = HeaderValue::from_str(tag).ok().filter(|tag| !tag.is_empty()) {
        headers.insert(IF_NONE_MATCH, tag);
    }
    name_user(&mut headers, &User::system("system:aggregator"));
    let client = Client::new(dialer.clone(), String::new(), None);
    client.send(http::Method::GET, path, headers, Bytes::new(), PATIENCE).await.ok()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn spec(version: &str, service: &str) -> Value {
        json!({"group": "g", "version": version, "service": {"namespace": "n", "name": service}})
    }

    fn document(text: &str) -> Vec<u8> {
        json!({"paths": {"/apis/g/v1/things": {"x-said": text}}, "definitions": {}}).to_string().into_bytes()
    }

    #[test]
    fn a_document_that_is_known_is_not_taken_again() {
        let (one, two) = (Documents::of(&spec("v1", "s")), Documents::of(&spec("v2", "s")));
        let parts = [&one, &two];
        assert!(take_older(&parts, 200, "\"a\"", &document("a")));
        let (first, second) = (one.older().expect("told"), two.older().expect("told, with nothing in it"));
        assert_ne!(first, second);
        // Replicas may each have a tag of their own.
        assert!(take_older(&parts, 200, "\"b\"", &document("a")));
        assert!(Arc::ptr_eq(&first, &one.older().expect("still")), "the same document under another tag");
        assert!(take_older(&parts, 304, "", b""));
        assert!(Arc::ptr_eq(&first, &one.older().expect("still")));
        assert!(take_older(&parts, 200, "", &document("b")));
        assert_ne!(*first, *one.older().expect("another"));
        // A version that comes later has to be told too.
        let three = Documents::of(&spec("v3", "s"));
        assert!(known(&[&one, &two]).is_some() && known(&[&one, &three]).is_none());
    }

    #[test]
    fn what_is_no_longer_there_is_forgotten_and_what_has_no_answer_is_kept() {
        let one = Documents::of(&spec("v1", "s"));
        assert!(take_older(&[&one], 200, "", &document("a")));
        let index = json!({"paths": {"apis/g/v1": {"serverRelativeURL": "/here"}}}).to_string();
        assert!(take_index(&[&one], 200, index.as_bytes()));
        assert_eq!(one.index().as_deref(), Some(&json!({"serverRelativeURL": "/here"})));
        assert!(!take_older(&[&one], 503, "", b"") && !take_index(&[&one], 503, b""));
        assert!(!take_older(&[&one], 200, "", b"{") && !take_index(&[&one], 200, b"{"));
        assert!(one.older().is_some() && one.index().is_some());
        assert!(take_older(&[&one], 404, "", b"") && take_index(&[&one], 404, b""));
        assert!(one.older().is_none() && one.index().is_none());
    }

    #[test]
    fn another_server_has_other_documents() {
        let one = Arc::new(Documents::of(&spec("v1", "s")));
        assert!(take_older(&[&one], 200, "", &document("a")));
        assert!(Arc::ptr_eq(&one, &one.next(&spec("v1", "s"))));
        let back = one.again();
        assert!(!Arc::ptr_eq(&one, &back), "asked at once");
        assert_eq!(back.older(), one.older(), "shown until it answers");
        let mut trusted = spec("v1", "s");
        trusted["caBundle"] = "QQ==".into();
        assert_eq!(one.next(&trusted).older(), one.older());
        assert_eq!(one.next(&spec("v1", "other")).older(), None);
    }

    #[test]
    fn who_does_not_answer_is_asked_less_and_less() {
        assert_eq!([0, 1, 2, 6, 7, u32::MAX].map(|n| pause(n).as_secs()), [60, 1, 2, 32, 60, 60]);
    }
}
