//! Somebody else's word on who a token belongs to (TokenReview) and on what a user may do (SubjectAccessReview).
//!
//! Answers are kept for a while, by a digest of the question: a token is never held. A server that does not answer is
//! asked again a few times; a token then counts as unknown, and a question as one without opinion.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use http::header::CONTENT_TYPE;
use ring::digest::{SHA256, digest};
use serde_json::{Value, json};
use tokio::time::Instant;

use super::authorizer::{Attributes, Decision};
use crate::outgoing::{Answer, Client, OutgoingError};
use crate::request::User;

/// Time for one answer.
const PATIENCE: Duration = Duration::from_secs(30);
/// Questions asked before giving up, the pause after the first, and how much longer each next one is, as upstream.
const TRIES: u32 = 5;
const FIRST_PAUSE: Duration = Duration::from_millis(500);
const LONGER: f64 = 1.5;
/// Bytes of a refusal that are passed on.
const MOST_SHOWN: usize = 2048;
/// Answers kept at most; the oldest go first.
const KEPT: usize = 8192;

/// A review's question and what is made of its answers.
pub struct Reviewer {
    client: Client,
    /// `authentication.k8s.io/v1`, ...
    api_version: String,
    kind: &'static str,
    first_pause: Duration,
    kept: Mutex<HashMap<[u8; 32], (Instant, Value)>>,
}

impl Reviewer {
    pub fn new(client: Client, group: &str, version: &str, kind: &'static str) -> Self {
        let api_version = format!("{group}/{version}");
        Reviewer { client, api_version, kind, first_pause: FIRST_PAUSE, kept: Mutex::default() }
    }

    /// The same that asks again after another while.
    #[must_use]
    pub fn after(self, first_pause: Duration) -> Self {
        Reviewer { first_pause, ..self }
    }

    /// The status that a spec is answered with.
    ///
    /// # Errors
    /// When there is no answer.
    pub async fn ask(&self, spec: &Value, keep: impl Fn(&Value) -> Duration) -> Result<Value, OutgoingError> {
        let key = digest_of(spec);
        let kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner).get(&key).cloned();
        if let Some((until, status)) = kept
            && until > Instant::now()
        {
            return Ok(status);
        }
        let question = json!({"kind": self.kind, "apiVersion": self.api_version, "metadata": {}, "spec": spec});
        let status = self.persist(&question).await?;
        let time = keep(&status);
        if !time.is_zero() {
            self.remember(key, Instant::now() + time, status.clone());
        }
        Ok(status)
    }

    fn remember(&self, key: [u8; 32], until: Instant, status: Value) {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        if kept.len() >= KEPT {
            let now = Instant::now();
            kept.retain(|_, (until, _)| *until > now);
        }
        if kept.len() >= KEPT
            && let Some(first) = kept.iter().min_by_key(|(_, (until, _))| *until).map(|(key, _)| *key)
        {
            kept.remove(&first);
        }
        kept.insert(key, (until, status));
    }

    async fn persist(&self, question: &Value) -> Result<Value, OutgoingError> {
        let mut pause = self.first_pause;
        let mut tries = 0;
        loop {
            tries += 1;
            let (error, again) = match self.client.post(question, PATIENCE).await {
                Ok(answer) if (200..300).contains(&answer.code) => {
                    let status = status_in(&answer.body);
                    return status.map_err(|why| OutgoingError::Settings(format!("{}: {why}", self.client.url())));
                }
                Ok(answer) => (OutgoingError::Settings(refusal(&answer)), answer.code == 429 || answer.code >= 500),
                Err(error) => {
                    let again = !matches!(error, OutgoingError::Settings(_));
                    let (url, patience) = (self.client.url(), PATIENCE.as_secs());
                    (OutgoingError::Settings(format!("Post \"{url}?timeout={patience}s\": {error}")), again)
                }
            };
            if !again || tries == TRIES {
                return Err(error);
            }
            tracing::debug!(%error, "a webhook does not answer; trying again");
            tokio::time::sleep(pause).await;
            pause = pause.mul_f64(LONGER);
        }
    }
}

/// The status of a review.
fn status_in(answer: &[u8]) -> Result<Value, String> {
    let mut review = proto::json::parse(answer).map_err(|e| e.to_string())?.value;
    if !review.is_object() {
        return Err("the answer is no object".into());
    }
    Ok(review.get_mut("status").map(Value::take).unwrap_or_default())
}

/// What is said of an answer that is no success. Whoever asks gets to see it, in logs it is one line per request.
fn refusal(answer: &Answer) -> String {
    let content_type = answer.headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let mut words = crate::admission::failure_words(answer.code, content_type, &answer.body);
    if let Some((end, _)) = words.char_indices().find(|(at, c)| at + c.len_utf8() > MOST_SHOWN) {
        words.truncate(end);
    }
    words
}

fn digest_of(spec: &Value) -> [u8; 32] {
    let mut text = Vec::new();
    proto::json::write_sorted(spec, &mut text);
    let mut out = [0; 32];
    out.copy_from_slice(digest(&SHA256, &text).as_ref());
    out
}

fn texts(value: &Value) -> Vec<String> {
    value.as_array().into_iter().flatten().filter_map(Value::as_str).map(Into::into).collect()
}

/// Asks who a token belongs to.
pub struct TokenWebhook {
    reviewer: Reviewer,
    ttl: Duration,
    /// Those that the API answers to.
    audiences: Vec<String>,
}

impl TokenWebhook {
    /// `version` of authentication.k8s.io is spoken; answers are good for `ttl`. Where one says nothing of audiences it
    /// is about `audiences`, which the API answers to.
    pub fn new(client: Client, version: &str, ttl: Duration, audiences: Vec<String>) -> Self {
        let reviewer = Reviewer::new(client, "authentication.k8s.io", version, "TokenReview");
        TokenWebhook { reviewer, ttl, audiences }
    }

    /// The user of a token that is meant for one of `audiences`, and which of them it is meant for; None where the
    /// webhook does not know.
    ///
    /// # Errors
    /// What the webhook has against the token, or why it could not be asked.
    pub async fn user(&self, token: &str, audiences: &[String]) -> Result<Option<(User, Vec<String>)>, String> {
        let mut spec = json!({"token": token});
        if !audiences.is_empty() {
            spec["audiences"] = json!(audiences);
        }
        let status = match self.reviewer.ask(&spec, |_| self.ttl).await {
            Ok(status) => status,
            Err(error) => {
                tracing::error!(%error, "failed to make webhook authenticator request");
                return Err(error.to_string());
            }
        };
        answer_of(&status, audiences, &self.audiences)
    }
}

/// What a TokenReview's status says to somebody who asked for `audiences`; `own` are the API's.
fn answer_of(status: &Value, audiences: &[String], own: &[String]) -> Result<Option<(User, Vec<String>)>, String> {
    // A server that does not know of audiences answers for the API's own.
    let said = texts(&status["audiences"]);
    let good_for: &[String] = if said.is_empty() { own } else { &said };
    let meant: Vec<String> = audiences.iter().filter(|a| good_for.contains(a)).cloned().collect();
    if meant.is_empty() && !audiences.is_empty() {
        return Ok(None);
    }
    match (status["authenticated"] == true, status["error"].as_str().unwrap_or_default()) {
        (true, _) => Ok(user_of(&status["user"]).map(|user| (user, meant))),
        (false, "") => Ok(None),
        (false, error) => Err(error.to_owned()),
    }
}

/// The user that a TokenReview names. Whoever has no name is the server itself.
fn user_of(user: &Value) -> Option<User> {
    user["username"].as_str().filter(|name| !name.is_empty())?;
    let mut extra: Vec<(String, Vec<String>)> =
        user["extra"].as_object().into_iter().flatten().map(|(k, v)| (k.to_string(), texts(v))).collect();
    extra.sort();
    let text = |key: &str| user[key].as_str().unwrap_or_default().to_owned();
    Some(User { name: text("username"), uid: text("uid"), groups: texts(&user["groups"]), extra })
}

/// Asks what a user may do.
pub struct AccessWebhook {
    reviewer: Reviewer,
    allowed_ttl: Duration,
    refused_ttl: Duration,
}

/// Larger questions are not kept: a client must not fill the memory.
const MAX_KEPT: usize = 10_000;

impl AccessWebhook {
    /// `version` of authorization.k8s.io is spoken; answers are good for the times given.
    pub fn new(client: Client, version: &str, allowed_ttl: Duration, refused_ttl: Duration) -> Self {
        let reviewer = Reviewer::new(client, "authorization.k8s.io", version, "SubjectAccessReview");
        AccessWebhook { reviewer, allowed_ttl, refused_ttl }
    }

    pub async fn authorize(&self, request: &Attributes<'_>) -> Decision {
        self.ask(request).await.unwrap_or_else(|error| {
            tracing::error!(%error, "failed to make webhook authorizer request");
            Decision::failed(error.to_string())
        })
    }

    /// # Errors
    /// When there is no answer.
    pub async fn ask(&self, request: &Attributes<'_>) -> Result<Decision, OutgoingError> {
        let spec = question(request);
        let small = request.info.path.len() + request.info.name.len() + request.info.label_selector.len() < MAX_KEPT;
        let keep = |status: &Value| match status["allowed"] == true {
            _ if !small => Duration::ZERO,
            true => self.allowed_ttl,
            false => self.refused_ttl,
        };
        self.reviewer.ask(&spec, keep).await.map(|status| decision(&status))
    }
}

fn decision(status: &Value) -> Decision {
    let reason = status["reason"].as_str().unwrap_or_default();
    match (status["allowed"] == true, status["denied"] == true) {
        (_, true) => Decision::deny(reason),
        (true, false) => Decision::allow(reason),
        (false, false) => Decision::no_opinion(reason),
    }
}

/// The `spec` of a SubjectAccessReview.
pub fn question(request: &Attributes<'_>) -> Value {
    let (user, info) = (request.user, request.info);
    let mut spec = json!({});
    let fill = |place: &mut Value, pairs: &[(&str, &str)]| {
        for (key, text) in pairs.iter().filter(|(_, t)| !t.is_empty()) {
            place[*key] = (*text).into();
        }
    };
    fill(&mut spec, &[("user", &user.name), ("uid", &user.uid)]);
    if !user.groups.is_empty() {
        spec["groups"] = json!(user.groups);
    }
    for (key, values) in &user.extra {
        spec["extra"][key] = json!(values);
    }
    if !info.is_resource {
        spec["nonResourceAttributes"] = json!({"path": info.path, "verb": info.verb});
        return spec;
    }
    let mut of = json!({});
    fill(
        &mut of,
        &[
            ("namespace", &info.namespace),
            ("verb", &info.verb),
            ("group", &info.group),
            ("version", &info.version),
            ("resource", &info.resource),
            ("subresource", &info.subresource),
            ("name", &info.name),
        ],
    );
    let fields = crate::read::field_requirements(&info.field_selector);
    let labels = crate::read::label_requirements(&info.label_selector);
    for (key, list) in [("fieldSelector", fields), ("labelSelector", labels)] {
        if !list.is_empty() {
            of[key] = json!({"requirements": list});
        }
    }
    spec["resourceAttributes"] = of;
    spec
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::request::RequestInfo;

    #[test]
    fn an_answer_is_a_user_only_when_it_is_for_us() {
        let ours = vec!["api".to_owned()];
        let answer = |status: Value| answer_of(&status, &ours, &ours);
        let status = json!({"authenticated": true, "audiences": ["api", "other"],
            "user": {"username": "jane", "groups": ["g"], "extra": {"k": ["v"]}}});
        let (user, meant) = answer(status).expect("an answer").expect("a user");
        assert_eq!((user.name.as_str(), user.groups, meant), ("jane", vec!["g".to_owned()], ours.clone()));
        let jane = json!({"username": "jane"});
        for status in [
            json!({"authenticated": true, "audiences": ["other"], "user": jane}),
            json!({"authenticated": true, "user": {}}),
            json!({"authenticated": false, "user": jane}),
        ] {
            assert_eq!(answer(status), Ok(None));
        }
        assert_eq!(answer(json!({"error": "expired"})), Err("expired".to_owned()));
    }

    /// A webhook that knows of no audiences vouched for a token before whomever one asked about.
    #[test]
    fn an_answer_that_names_no_audience_is_about_the_apis_own() {
        let list = |all: &[&str]| all.iter().map(|a| (*a).to_owned()).collect::<Vec<_>>();
        let own = list(&["api", "https://api"]);
        let status = json!({"authenticated": true, "user": {"username": "jane"}});
        let meant = |asked: &[&str]| {
            let answer = answer_of(&status, &list(asked), &own).expect("an answer");
            answer.map(|(user, meant)| (user.name, meant))
        };
        assert_eq!(meant(&["vault"]), None);
        assert_eq!(meant(&["vault", "api"]), Some(("jane".to_owned(), list(&["api"]))));
        assert_eq!(meant(&[]), Some(("jane".to_owned(), Vec::new())));
    }

    #[test]
    fn an_answer_that_is_no_review_is_told_of() {
        for answer in ["[]", "\"x\"", "1", "null", "true"] {
            assert_eq!(status_in(answer.as_bytes()), Err("the answer is no object".to_owned()), "{answer}");
        }
        assert!(status_in(b"<html>").is_err());
        assert_eq!(status_in(b"{}"), Ok(Value::Null));
        assert_eq!(status_in(br#"{"status": {"allowed": true}}"#), Ok(json!({"allowed": true})));
    }

    #[test]
    fn of_a_page_of_errors_only_the_beginning_is_passed_on() {
        let said = |code: u16, content_type: &'static str, body: &str| {
            let headers = [(CONTENT_TYPE, http::HeaderValue::from_static(content_type))].into_iter().collect();
            refusal(&Answer { code, headers, body: bytes::Bytes::copy_from_slice(body.as_bytes()) })
        };
        assert_eq!(said(403, "text/plain; charset=utf-8", " go away\n"), "go away");
        assert_eq!(said(403, "application/octet-stream", "secret"), "unknown");
        let status = |message: &str| {
            json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "message": message}).to_string()
        };
        assert_eq!(said(500, "application/json", &status("mine")), "mine");
        let page = "\u{20ac}".repeat(1 << 20);
        for (content_type, body) in [("text/html", page.clone()), ("application/json", status(&page))] {
            let words = said(500, content_type, &body);
            assert!((1000..=MOST_SHOWN).contains(&words.len()), "{}", words.len());
        }
    }

    #[test]
    fn a_question_holds_what_is_asked_for() {
        let user = User { name: "jane".into(), ..User::default() };
        let info = RequestInfo {
            is_resource: true,
            verb: "list".into(),
            version: "v1".into(),
            resource: "pods".into(),
            label_selector: "a in (b,c),!d".into(),
            field_selector: "spec.nodeName=n".into(),
            ..RequestInfo::default()
        };
        let spec = question(&Attributes { user: &user, info: &info });
        assert_eq!(
            spec,
            json!({"user": "jane", "resourceAttributes": {"verb": "list", "version": "v1", "resource": "pods",
                "fieldSelector": {"requirements": [{"key": "spec.nodeName", "operator": "In", "values": ["n"]}]},
                "labelSelector": {"requirements": [{"key": "a", "operator": "In", "values": ["b", "c"]},
                    {"key": "d", "operator": "DoesNotExist"}]}}})
        );
        assert!(decision(&json!({"allowed": true, "denied": true})).denied);
    }
}
