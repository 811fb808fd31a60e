//! CBOR at the edge of the server, behind the gate `CBORServingAndStorage`.
//!
//! A client that speaks CBOR is served as one that speaks JSON: its `Accept` and `Content-Type` are rewritten when the
//! request comes in, its body when it is read, and the answer when it goes out. The rest of the server knows nothing of
//! it; trees are the same in both.

use bytes::Bytes;
use futures_util::StreamExt as _;
use http::header::{ACCEPT, CONTENT_LENGTH, CONTENT_TYPE, HeaderMap, HeaderValue};
use serde_json::Value;

use super::{Body, Response};
use crate::status::{ApiError, Result};

/// What of a request is CBOR.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Spoken {
    /// The body, which is read as JSON from here on.
    pub body: bool,
    /// The answer that the client wants.
    pub answer: bool,
}

fn media(text: &str) -> &str {
    text.split(';').next().unwrap_or_default().trim()
}

/// Takes CBOR out of a request's headers.
pub fn settle(headers: &mut HeaderMap) -> Spoken {
    let mut spoken = Spoken::default();
    let instead = match headers.get(CONTENT_TYPE).and_then(|v| v.to_str().ok()).map(media) {
        Some("application/cbor") => Some("application/json"),
        // JSON is YAML.
        Some("application/apply-patch+cbor") => Some("application/apply-patch+yaml"),
        _ => None,
    };
    if let Some(instead) = instead {
        spoken.body = true;
        headers.insert(CONTENT_TYPE, HeaderValue::from_static(instead));
    }
    let accept: Vec<&str> = headers.get_all(ACCEPT).iter().filter_map(|v| v.to_str().ok()).collect();
    let accept = accept.join(",");
    if !accept.contains("cbor") {
        return spoken;
    }
    let clauses: Vec<&str> = accept.split(',').map(str::trim).collect();
    let is_cbor = |clause: &str| matches!(media(clause), "application/cbor" | "application/cbor-seq");
    let quality = |clause: &str| {
        let said = clause.split(';').filter_map(|p| p.trim().strip_prefix("q=")).next();
        said.map_or(1.0, |q| q.trim().parse::<f32>().unwrap_or(0.0))
    };
    let known = |clause: &str| is_cbor(clause) || media(clause) == "*/*" || media(clause).starts_with("application/");
    // The best clause decides; of equals a named type comes before `*/*`, then the first.
    let rank = |clause: &str| (quality(clause), media(clause) != "*/*");
    let mut best: Option<&str> = None;
    for clause in clauses.iter().copied().filter(|c| known(c)) {
        if best.is_none_or(|b| rank(clause) > rank(b)) {
            best = Some(clause);
        }
    }
    spoken.answer = best.is_some_and(is_cbor);
    let kept: Vec<String> = clauses
        .iter()
        .filter(|c| spoken.answer == is_cbor(c))
        .map(|c| if is_cbor(c) { c.replacen(media(c), "application/json", 1) } else { (*c).to_owned() })
        .collect();
    if let Ok(value) = HeaderValue::from_str(&kept.join(",")) {
        headers.insert(ACCEPT, value);
    }
    spoken
}

/// A CBOR body as JSON.
///
/// # Errors
/// 400 for bytes that are no CBOR.
pub fn body(bytes: &[u8]) -> Result<Bytes> {
    if bytes.is_empty() {
        return Ok(Bytes::new());
    }
    let value = proto::cbor::decode(bytes);
    let value = value.map_err(|e| ApiError::bad_request(format!("the body of the request is no CBOR: {e}")))?;
    let mut out = Vec::with_capacity(bytes.len() * 2);
    proto::json::write_sorted(&value, &mut out);
    Ok(out.into())
}

fn encoded(json: &[u8]) -> Option<Bytes> {
    let value = proto::json::parse(json).ok()?.value;
    let mut out = Vec::with_capacity(json.len());
    proto::cbor::encode(&value, &mut out);
    Some(out.into())
}

/// One event of a watch: both the event and the object in it are documents.
fn event(line: &[u8]) -> Option<Bytes> {
    let value = proto::json::parse(line).ok()?.value;
    let mut out = proto::cbor::SELF_DESCRIBED.to_vec();
    let kind = value["type"].as_str().unwrap_or_default();
    // A map of two; the shorter key comes first.
    out.extend_from_slice(b"\xa2\x44type");
    let mut text = Vec::new();
    proto::cbor::encode(&Value::from(kind), &mut text);
    out.extend_from_slice(&text[proto::cbor::SELF_DESCRIBED.len()..]);
    out.extend_from_slice(b"\x46object");
    proto::cbor::encode(&value["object"], &mut out);
    Some(out.into())
}

/// A JSON answer as CBOR; others stay as they are.
pub fn answer(response: Response) -> Response {
    let is_json = response.headers().get(CONTENT_TYPE).is_some_and(|t| t.as_bytes().starts_with(b"application/json"));
    if !is_json || response.headers().contains_key(http::header::CONTENT_ENCODING) {
        return response;
    }
    let (mut head, body) = response.into_parts();
    head.headers.remove(CONTENT_LENGTH);
    let (body, content_type) = match body.whole() {
        Body::Chunks(chunks) => {
            let all: Vec<u8> = chunks.into_iter().flatten().collect();
            match encoded(&all) {
                Some(bytes) => (Body::from(bytes), "application/cbor"),
                None => (Body::from(all), "application/json"),
            }
        }
        // Each chunk of a watch is an event.
        Body::Stream(stream) => {
            let events = stream.filter_map(|line| async move { line.map(|line| event(&line)).transpose() });
            (Body::passed_on(events), "application/cbor-seq")
        }
        pieces @ Body::Pieces(_) => (pieces, "application/json"),
    };
    head.headers.insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    Response::from_parts(head, body)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn accept(text: &'static str) -> (bool, String) {
        let mut headers = HeaderMap::new();
        headers.insert(ACCEPT, HeaderValue::from_static(text));
        let spoken = settle(&mut headers);
        (spoken.answer, headers[ACCEPT].to_str().expect("text").to_owned())
    }

    #[test]
    fn the_best_clause_decides() {
        assert_eq!(accept("application/cbor"), (true, "application/json".into()));
        assert_eq!(accept("application/cbor;q=0.5, application/json"), (false, "application/json".into()));
        assert!(accept("application/cbor;as=Table;v=v1;g=meta.k8s.io,*/*").0);
        assert!(!accept("application/json, application/cbor").0);
        assert_eq!(accept("*/*"), (false, "*/*".into()));
    }

    #[test]
    fn an_event_is_a_document_with_a_document_in_it() {
        let bytes = event(b"{\"type\":\"ADDED\",\"object\":{\"kind\":\"Pod\"}}\n").expect("JSON");
        assert_eq!(proto::cbor::decode(&bytes), Ok(json!({"type": "ADDED", "object": {"kind": "Pod"}})));
        assert_eq!(bytes.windows(3).filter(|w| *w == proto::cbor::SELF_DESCRIBED).count(), 2);
    }
}
