//! A document as upstream serves it, by Go's `http.ServeContent`: conditions by its tag and its time, and parts of it.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::SystemTime;

use bytes::Bytes;
use http::header::{ACCEPT_RANGES, CONTENT_RANGE, CONTENT_TYPE, HeaderName, HeaderValue, LAST_MODIFIED, RANGE, VARY};
use http::{HeaderMap, Method};
use service::content_ranges::{self, Range, RangeError, Version, Wanted};

use super::{empty, tag};
use crate::http::{Response, respond};
use crate::server::Request;

/// Documents whose times are known at most: far more than there are groups, unless clients define and drop them for
/// ever. Then all are new once more.
const MOST: usize = 4096;

/// Since when documents are as they are: since they were first asked for in that form.
#[derive(Default)]
pub struct Times(Mutex<HashMap<Box<str>, Known>>);

/// What a document was made of when it was asked for last, and since when.
struct Known {
    hash: Box<str>,
    since: u64,
}

impl Times {
    /// In seconds since 1970.
    fn since(&self, content: Content<'_>, now: u64) -> u64 {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match all.get(content.name) {
            Some(Known { hash, since }) if **hash == *content.hash => *since,
            _ => {
                if all.len() >= MOST {
                    all.clear();
                }
                all.insert(content.name.into(), Known { hash: content.hash.into(), since: now });
                now
            }
        }
    }
}

/// What a document is: its name among all, what it is made of, its form.
#[derive(Clone, Copy)]
pub struct Content<'a> {
    pub name: &'a str,
    pub hash: &'a str,
    pub media: &'static str,
}

/// A document, put together only when the client has not got it yet.
pub fn serve(times: &Times, content: Content<'_>, request: &Request, body: impl FnOnce() -> Vec<u8>) -> Response {
    let modified = times.since(content, content_ranges::seconds(SystemTime::now()).unwrap_or_default());
    let reading = matches!(request.method, Method::GET | Method::HEAD);
    answer(&request.headers, reading, content, modified, body)
}

fn answer(
    headers: &HeaderMap,
    reading: bool,
    content: Content<'_>,
    modified: u64,
    body: impl FnOnce() -> Vec<u8>,
) -> Response {
    let Content { hash, media, .. } = content;
    let version = Version { tag: Some(hash), modified: Some(modified) };
    let mut response = match content_ranges::wanted(headers, reading, version) {
        // Its tag says enough.
        Wanted::NotModified => return tag(empty(304), hash),
        Wanted::PreconditionFailed => respond::bytes(412, media, Vec::new()),
        Wanted::Content { ranges } => {
            let asked = headers.get(RANGE).and_then(|v| v.to_str().ok()).filter(|_| ranges).unwrap_or_default();
            let body = Bytes::from(body());
            let size = body.len() as u64;
            match content_ranges::ranges(asked, size) {
                Ok(ranges) => part(&ranges, media, body),
                Err(error) => return refused(error, size),
            }
        }
    };
    let date = content_ranges::http_date(modified).unwrap_or_default();
    set(&mut response, LAST_MODIFIED, &date);
    tag(response, hash)
}

/// There is no such part; nothing is told of the document's version.
fn refused(error: RangeError, size: u64) -> Response {
    let mut refused = respond::text(416, error.words());
    refused.headers_mut().insert(VARY, HeaderValue::from_static("Accept"));
    if error == RangeError::NoOverlap {
        set(&mut refused, CONTENT_RANGE, &format!("bytes */{size}"));
    }
    refused
}

/// Some ranges of a document; all of it where there are none.
fn part(ranges: &[Range], media: &'static str, body: Bytes) -> Response {
    let size = body.len() as u64;
    let slice = |range: &Range| {
        let at = |place: u64| usize::try_from(place).unwrap_or(usize::MAX).min(body.len());
        body.slice(at(range.start)..at(range.start + range.length))
    };
    let mut response = match ranges {
        [] => respond::bytes(200, media, body),
        [one] => {
            let mut response = respond::bytes(206, media, slice(one));
            set(&mut response, CONTENT_RANGE, &one.placed(size));
            response
        }
        many => {
            let boundary = crate::random::suffix(60);
            let mut parts = Vec::new();
            for range in many {
                let line = if parts.is_empty() { "" } else { "\r\n" };
                let place = range.placed(size);
                let head = format!("{line}--{boundary}\r\nContent-Range: {place}\r\nContent-Type: {media}\r\n\r\n");
                parts.extend_from_slice(head.as_bytes());
                parts.extend_from_slice(&slice(range));
            }
            parts.extend_from_slice(format!("\r\n--{boundary}--\r\n").as_bytes());
            let mut response = respond::bytes(206, media, parts);
            set(&mut response, CONTENT_TYPE, &format!("multipart/byteranges; boundary={boundary}"));
            response
        }
    };
    response.headers_mut().insert(ACCEPT_RANGES, HeaderValue::from_static("bytes"));
    response
}

fn set(response: &mut Response, name: HeaderName, text: &str) {
    if let Ok(value) = HeaderValue::from_str(text) {
        response.headers_mut().insert(name, value);
    }
}

#[cfg(test)]
mod tests {
    use http::header::ETAG;

    use super::*;
    use crate::http::Body;

    const MEDIA: &str = "application/json";

    /// Code, body and some headers of what is answered to one header.
    fn answered(name: HeaderName, value: &str) -> (u16, String, Vec<String>) {
        let headers = HeaderMap::from_iter([(name, HeaderValue::from_str(value).expect("a header"))]);
        let content = Content { name: "n", hash: "A", media: MEDIA };
        let response = answer(&headers, true, content, 1_700_000_000, || b"0123456789".to_vec());
        let (head, body) = response.into_parts();
        let shown = [ETAG, LAST_MODIFIED, ACCEPT_RANGES, CONTENT_RANGE, CONTENT_TYPE];
        let text = |name| head.headers.get(name).and_then(|v| v.to_str().ok()).unwrap_or("-").to_owned();
        let Body::Chunks(chunks) = body.whole() else { panic!("a stream") };
        let body = String::from_utf8(chunks.into_iter().flatten().collect()).expect("text");
        (head.status.as_u16(), body, shown.into_iter().map(text).collect())
    }

    #[test]
    fn parts_are_sent_where_parts_are_asked_for() {
        const DATE: &str = "Tue, 14 Nov 2023 22:13:20 GMT";
        let of = |asked: &str| answered(RANGE, asked);
        assert_eq!(
            of("bytes=0-3"),
            (206, "0123".into(), ["\"A\"", DATE, "bytes", "bytes 0-3/10", MEDIA].map(Into::into).into())
        );
        assert_eq!(
            of("bytes=0-,0-"),
            (200, "0123456789".into(), ["\"A\"", DATE, "bytes", "-", MEDIA].map(Into::into).into())
        );
        let text = "text/plain; charset=utf-8";
        let words = "invalid range: failed to overlap\n";
        assert_eq!(of("bytes=10-"), (416, words.into(), ["-", "-", "-", "bytes */10", text].map(Into::into).into()));
        assert_eq!(of("lines=1"), (416, "invalid range\n".into(), ["-", "-", "-", "-", text].map(Into::into).into()));
        let (code, body, headers) = of("bytes=0-1,8-");
        let boundary = headers[4].strip_prefix("multipart/byteranges; boundary=").expect("several parts");
        let part = |range: &str, text: &str| {
            format!("--{boundary}\r\nContent-Range: bytes {range}/10\r\nContent-Type: {MEDIA}\r\n\r\n{text}\r\n")
        };
        assert_eq!((code, body), (206, format!("{}{}--{boundary}--\r\n", part("0-1", "01"), part("8-9", "89"))));
        assert_eq!(answered(http::header::IF_MODIFIED_SINCE, DATE).0, 304);
        let not_modified = answered(http::header::IF_NONE_MATCH, "\"A\"");
        assert_eq!(not_modified, (304, String::new(), ["\"A\"", "-", "-", "-", "-"].map(Into::into).into()));
        assert_eq!(answered(http::header::IF_MATCH, "\"B\"").0, 412);
    }

    #[test]
    fn a_document_is_as_old_as_its_hash() {
        let times = Times::default();
        let at = |name, hash, now| times.since(Content { name, hash, media: MEDIA }, now);
        assert_eq!((at("a", "1", 5), at("a", "1", 9), at("b", "1", 9)), (5, 5, 9));
        assert_eq!((at("a", "2", 20), at("a", "2", 30)), (20, 20));
    }
}
