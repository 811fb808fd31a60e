//! A page on its way through the proxy: read as a whole, unpacked, its links led through the proxy, packed again. One that is
//! too long for that is passed on as it is.

use std::io::{Read, Write as _};

use bytes::{Bytes, BytesMut};
use flate2::Compression;
use flate2::read::{DeflateDecoder, MultiGzDecoder};
use flate2::write::{DeflateEncoder, GzEncoder};
use futures_util::{StreamExt as _, stream};
use http::header::{CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE, HeaderMap, LOCATION};
use http::{Method, StatusCode};
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use tokio::sync::Semaphore;
use tokio::time::{Instant, timeout_at};

use super::links::Links;
use super::{Sender, Until, html, streamed};
use crate::http::{Body, Response};
use crate::status::{ApiError, Result};

/// Pages are rarely a tenth as long; packed or not.
const MAX_PAGE: usize = 4 << 20;
/// A page of nothing but short links grows by the path of the proxy in each.
const MAX_MENDED: usize = 4 * MAX_PAGE;
/// So many are unpacked and mended at once, each of which takes a core and some [`MAX_MENDED`].
static TURNS: Semaphore = Semaphore::const_new(2);

#[derive(Debug, Clone, Copy, PartialEq)]
enum Packing {
    None,
    Gzip,
    /// Without the frame of zlib, as Go has it.
    Deflate,
}

impl Packing {
    /// How the page of an answer is packed; None for what is no page, or one that cannot be unpacked.
    fn of(headers: &HeaderMap) -> Option<Self> {
        let text = |name| headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default();
        if !text(LOCATION).is_empty() || text(CONTENT_TYPE).split(';').next().unwrap_or_default().trim() != "text/html"
        {
            return None;
        }
        match text(CONTENT_ENCODING) {
            "" => Some(Packing::None),
            "gzip" => Some(Packing::Gzip),
            "deflate" => Some(Packing::Deflate),
            _ => None,
        }
    }

    fn unpacked(self, page: &[u8]) -> Option<Vec<u8>> {
        let read = |from: &mut dyn Read| {
            let mut out = Vec::new();
            from.take(MAX_PAGE as u64 + 1).read_to_end(&mut out).ok().filter(|length| *length <= MAX_PAGE)?;
            Some(out)
        };
        match self {
            Packing::None => Some(page.to_vec()),
            Packing::Gzip => read(&mut MultiGzDecoder::new(page)),
            Packing::Deflate => read(&mut DeflateDecoder::new(page)),
        }
    }

    fn packed(self, page: Vec<u8>) -> Option<Vec<u8>> {
        match self {
            Packing::None => Some(page),
            Packing::Gzip => {
                let mut out = GzEncoder::new(Vec::new(), Compression::default());
                out.write_all(&page).and_then(|()| out.finish()).ok()
            }
            Packing::Deflate => {
                let mut out = DeflateEncoder::new(Vec::new(), Compression::default());
                out.write_all(&page).and_then(|()| out.finish()).ok()
            }
        }
    }
}

/// What came of an answer's body in the time that it had.
enum Reading {
    Whole(Bytes),
    /// The beginning of a long one.
    Part(Bytes),
}

/// Passes an answer on with its links mended.
///
/// # Errors
/// 503 where a page breaks off, 504 where it takes too long; what is no page is cut instead.
pub(super) async fn answer(
    links: &Links,
    method: &Method,
    mut head: http::response::Parts,
    mut body: Incoming,
    sender: Sender,
    deadline: Option<Instant>,
) -> Result<Response> {
    let until = Until::Complete(deadline);
    let bodiless = *method == Method::HEAD || matches!(head.status, StatusCode::NO_CONTENT | StatusCode::NOT_MODIFIED);
    let packing = Packing::of(&head.headers).filter(|_| !bodiless);
    links.mend(&mut head.headers);
    let Some(packing) = packing else { return Ok(streamed(head, body, sender, until)) };
    let reading = read(&mut body);
    let read = match deadline {
        Some(at) => timeout_at(at, reading).await.map_err(|_| crate::limits::timed_out())?,
        None => reading.await,
    };
    match read? {
        Reading::Whole(page) => {
            let links = links.clone();
            let work = move || {
                let plain = packing.unpacked(&page);
                let mended = plain.and_then(|plain| html::rewritten(&plain, |link| links.led(link), MAX_MENDED));
                // What does not unpack, or is too much then, stays as it came.
                mended.and_then(|plain| packing.packed(plain)).map_or(page, Bytes::from)
            };
            let _turn = TURNS.acquire().await.map_err(|e| ApiError::internal(e.to_string()))?;
            let page = tokio::task::spawn_blocking(work).await.map_err(|e| ApiError::internal(e.to_string()))?;
            head.headers.remove(CONTENT_LENGTH);
            let response = streamed(head, body, sender, until);
            Ok(response.map(|_| Body::from(page)))
        }
        Reading::Part(begin) => {
            let response = streamed(head, body, sender, until);
            Ok(response.map(|rest| match rest {
                Body::Stream(rest) => Body::passed_on(stream::once(std::future::ready(Ok(begin))).chain(rest)),
                other => other,
            }))
        }
    }
}

/// Reads a body to its end, or until it is too long.
async fn read(body: &mut Incoming) -> Result<Reading> {
    // In one piece: a server may send it byte by byte.
    let mut page = BytesMut::new();
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|e| ApiError::service_unavailable(format!("error trying to reach service: {e}")))?;
        let Ok(data) = frame.into_data() else { continue };
        page.extend_from_slice(&data);
        if page.len() > MAX_PAGE {
            return Ok(Reading::Part(page.freeze()));
        }
    }
    Ok(Reading::Whole(page.freeze()))
}

#[cfg(test)]
mod tests {
    use http::header::{HeaderName, HeaderValue};

    use super::*;

    #[test]
    fn pages_are_known_by_their_type_and_stay_what_they_are_when_packed_again() {
        let of = |all: &[(HeaderName, &'static str)]| {
            let all = all.iter().map(|(name, value)| (name.clone(), HeaderValue::from_static(value)));
            Packing::of(&all.collect())
        };
        let html = (CONTENT_TYPE, "text/html; charset=utf-8");
        assert_eq!(of(std::slice::from_ref(&html)), Some(Packing::None));
        assert_eq!(of(&[html.clone(), (CONTENT_ENCODING, "gzip")]), Some(Packing::Gzip));
        assert_eq!(of(&[html.clone(), (CONTENT_ENCODING, "br")]), None);
        assert_eq!(of(&[html, (LOCATION, "/x")]), None);
        assert_eq!((of(&[(CONTENT_TYPE, "text/htmlx")]), of(&[])), (None, None));
        for packing in [Packing::None, Packing::Gzip, Packing::Deflate] {
            let packed = packing.packed(b"<a href=\"/x\">".to_vec()).expect("packs");
            assert_eq!(packing.unpacked(&packed).as_deref(), Some(&b"<a href=\"/x\">"[..]));
        }
        let long = Packing::Gzip.packed(vec![0; MAX_PAGE + 1]).expect("packs");
        assert_eq!(Packing::Gzip.unpacked(&long), None);
        assert_eq!(Packing::Gzip.unpacked(b"rubbish"), None);
    }
}
