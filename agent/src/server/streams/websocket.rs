//! WebSocket as its server: the handshake and the frames.
//!
//! Payloads are handed on as they come, in pieces, so that a message of any size needs no memory of its own.
//!
//! Followed: RFC 6455. Limits: no extensions.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::{BufMut, Bytes, BytesMut};
use http::{HeaderMap, HeaderValue, Method, Response, StatusCode, header};
use tokio::io::{AsyncRead, AsyncReadExt};

use super::super::answers::{Answer, bare, text};
use super::super::listen::full;

/// The only version of the protocol.
const VERSION: &str = "13";
const CONTINUATION: u8 = 0;
const TEXT: u8 = 1;
const BINARY: u8 = 2;
const CLOSE: u8 = 8;
const PING: u8 = 9;
const PONG: u8 = 10;
/// Control frames carry no more.
const MAX_CONTROL: u64 = 125;
const PIECE: usize = 32 * 1024;
/// Before the name of what is spoken in a tunnel, which ends as all names here do.
pub const TUNNEL: &str = "SPDY/3.1+";
const TUNNELED: &str = ".k8s.io";
/// Bytes of a client's key.
const KEY_BYTES: usize = 16;
/// Appended to the client's key before it is hashed.
const KEY_SUFFIX: &str = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11";

/// Whether the request asks for an upgrade to a WebSocket.
pub fn is_upgrade(headers: &HeaderMap) -> bool {
    proto::bearer::asks_for_websocket(texts(headers, header::CONNECTION), texts(headers, header::UPGRADE))
}

fn texts(headers: &HeaderMap, name: header::HeaderName) -> impl Iterator<Item = &str> {
    headers.get_all(name).into_iter().filter_map(|value| value.to_str().ok())
}

/// The subprotocols that the client offers.
fn offered(headers: &HeaderMap) -> impl Iterator<Item = &str> {
    texts(headers, header::SEC_WEBSOCKET_PROTOCOL).flat_map(|value| value.split(',')).map(str::trim)
}

/// Whether the client offers this subprotocol.
pub fn offers(headers: &HeaderMap, protocol: &str) -> bool {
    offered(headers).any(|word| word == protocol)
}

/// What the client would speak in a tunnel; nothing where it offers none.
pub fn tunneled(headers: &HeaderMap) -> impl Iterator<Item = &str> {
    offered(headers).filter(|word| word.ends_with(TUNNELED)).filter_map(|word| word.strip_prefix(TUNNEL))
}

/// What the handshake of a tunnel is refused with, once the other side stands. The kubelet has another library for these
/// than for channels: another order, other words.
pub fn refuse_tunnel(method: &Method, headers: &HeaderMap) -> Option<Response<Answer>> {
    let mut versions = texts(headers, header::SEC_WEBSOCKET_VERSION).flat_map(|value| value.split(','));
    let key = headers.get(header::SEC_WEBSOCKET_KEY).and_then(|key| STANDARD.decode(key.as_bytes()).ok());
    let code = if *method != Method::GET {
        StatusCode::METHOD_NOT_ALLOWED
    } else if !versions.any(|version| version.trim() == VERSION) || key.is_none_or(|key| key.len() != KEY_BYTES) {
        StatusCode::BAD_REQUEST
    } else {
        return None;
    };
    let mut refused = text(code, format!("{}\n", code.canonical_reason().unwrap_or_default()));
    refused.headers_mut().insert(header::SEC_WEBSOCKET_VERSION, HeaderValue::from_static(VERSION));
    Some(refused)
}

/// What a handshake is refused with that lacks something, before anybody is connected to.
pub fn refuse(method: &Method, headers: &HeaderMap) -> Option<Response<Answer>> {
    let (code, why) = if *method != Method::GET {
        (StatusCode::METHOD_NOT_ALLOWED, "bad method")
    } else if headers.get(header::SEC_WEBSOCKET_KEY).is_none_or(|key| key.is_empty() || key.to_str().is_err()) {
        (StatusCode::BAD_REQUEST, "mismatch challenge/response")
    } else if headers.get(header::SEC_WEBSOCKET_VERSION).is_none_or(|version| version != VERSION) {
        (StatusCode::BAD_REQUEST, "missing or bad WebSocket Version")
    } else {
        return None;
    };
    let mut refused = bare(code, why);
    refused.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
    refused.headers_mut().insert(header::SEC_WEBSOCKET_VERSION, HeaderValue::from_static(VERSION));
    Some(refused)
}

/// The answer that completes the handshake, in which `protocol` is spoken; `None` when the request has no key.
pub fn accept(headers: &HeaderMap, protocol: Option<&str>) -> Option<Response<Answer>> {
    let key = headers.get(header::SEC_WEBSOCKET_KEY)?.to_str().ok()?;
    let hash =
        ring::digest::digest(&ring::digest::SHA1_FOR_LEGACY_USE_ONLY, format!("{}{KEY_SUFFIX}", key.trim()).as_bytes());
    let mut response = Response::new(full(Bytes::new()));
    *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
    let answer = response.headers_mut();
    answer.insert(header::UPGRADE, HeaderValue::from_static("websocket"));
    answer.insert(header::CONNECTION, HeaderValue::from_static("Upgrade"));
    answer.insert(header::SEC_WEBSOCKET_ACCEPT, HeaderValue::from_str(&STANDARD.encode(hash)).ok()?);
    if let Some(protocol) = protocol {
        answer.insert(header::SEC_WEBSOCKET_PROTOCOL, HeaderValue::from_str(protocol).ok()?);
    }
    Some(response)
}

/// Writes one unfragmented binary message, made of a prefix and the rest.
pub fn message(prefix: &[u8], payload: &[u8], out: &mut BytesMut) {
    head(BINARY, prefix.len() + payload.len(), out);
    out.put_slice(prefix);
    out.put_slice(payload);
}

/// Writes the frame that ends the connection without complaint.
pub fn close(out: &mut BytesMut) {
    head(CLOSE, 2, out);
    out.put_u16(1000);
}

pub fn pong(payload: &[u8], out: &mut BytesMut) {
    head(PONG, payload.len(), out);
    out.put_slice(payload);
}

fn head(kind: u8, length: usize, out: &mut BytesMut) {
    out.put_u8(0x80 | kind);
    match (u8::try_from(length), u16::try_from(length)) {
        (Ok(short), _) if short < 126 => out.put_u8(short),
        (_, Ok(middle)) => {
            out.put_u8(126);
            out.put_u16(middle);
        }
        _ => {
            out.put_u8(127);
            out.put_u64(length as u64);
        }
    }
}

/// What comes from the client.
#[derive(Debug, PartialEq, Eq)]
pub enum Event {
    /// Part of a message; `first` when a message begins with it.
    Piece {
        first: bool,
        bytes: Bytes,
    },
    Ping(Bytes),
    /// The connection is over, by a frame or without.
    Closed,
}

/// Reads events from a connection.
pub struct Decoder<R> {
    from: R,
    /// Bytes to come of the frame under way, its mask, and how far the mask has turned.
    frame: Option<(u64, [u8; 4], usize)>,
    /// No byte of the message has been handed on yet.
    first: bool,
}

impl<R: AsyncRead + Unpin> Decoder<R> {
    pub fn new(from: R) -> Self {
        Decoder { from, frame: None, first: true }
    }

    /// The next event; `Closed` for a connection that ended or makes no sense. Not cancel safe.
    pub async fn next(&mut self) -> Event {
        self.read().await.unwrap_or(Event::Closed)
    }

    async fn read(&mut self) -> std::io::Result<Event> {
        loop {
            if let Some((left, mask, turned)) = self.frame {
                if left == 0 {
                    self.frame = None;
                    continue;
                }
                let mut bytes = vec![0; usize::try_from(left).unwrap_or(PIECE).min(PIECE)];
                let count = self.from.read(&mut bytes).await?;
                if count == 0 {
                    return Ok(Event::Closed);
                }
                bytes.truncate(count);
                unmask(&mut bytes, mask, turned);
                self.frame = Some((left - count as u64, mask, turned + count));
                return Ok(Event::Piece { first: std::mem::take(&mut self.first), bytes: bytes.into() });
            }
            let (opening, sizes) = (self.from.read_u8().await?, self.from.read_u8().await?);
            let length = match sizes & 0x7f {
                126 => u64::from(self.from.read_u16().await?),
                127 => self.from.read_u64().await?,
                short => u64::from(short),
            };
            // Clients must mask, and nobody agreed on extensions.
            if sizes & 0x80 == 0 || opening & 0x70 != 0 {
                return Ok(Event::Closed);
            }
            let mut mask = [0; 4];
            self.from.read_exact(&mut mask).await?;
            match opening & 0x0f {
                kind @ (CONTINUATION | TEXT | BINARY) => {
                    self.first |= kind != CONTINUATION;
                    self.frame = Some((length, mask, 0));
                }
                kind @ (PING | PONG) if length <= MAX_CONTROL => {
                    let mut payload = vec![0; usize::try_from(length).unwrap_or(0)];
                    self.from.read_exact(&mut payload).await?;
                    unmask(&mut payload, mask, 0);
                    if kind == PING {
                        return Ok(Event::Ping(payload.into()));
                    }
                }
                _ => return Ok(Event::Closed),
            }
        }
    }
}

fn unmask(bytes: &mut [u8], mask: [u8; 4], turned: usize) {
    for (byte, key) in bytes.iter_mut().zip(mask.iter().cycle().skip(turned % 4)) {
        *byte ^= key;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_handshake_proves_that_the_key_was_read() {
        let mut headers = HeaderMap::new();
        headers.insert(header::CONNECTION, HeaderValue::from_static("keep-alive, Upgrade"));
        headers.insert(header::UPGRADE, HeaderValue::from_static("websocket"));
        headers.insert(header::SEC_WEBSOCKET_KEY, HeaderValue::from_static("dGhlIHNhbXBsZSBub25jZQ=="));
        headers
            .insert(header::SEC_WEBSOCKET_PROTOCOL, HeaderValue::from_static("v5.channel.k8s.io, v4.channel.k8s.io"));
        assert!(is_upgrade(&headers) && offers(&headers, "v4.channel.k8s.io") && !offers(&headers, "v3"));
        let answer = accept(&headers, Some("v5.channel.k8s.io")).unwrap();
        // The example of the RFC.
        assert_eq!(answer.headers()[header::SEC_WEBSOCKET_ACCEPT], "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=");
    }

    #[tokio::test]
    async fn fragments_keep_their_message_and_pings_come_between() {
        let mask = [1, 2, 3, 4];
        let mut wire = BytesMut::new();
        for (opening, payload) in [(0x02, "abcde"), (0x89, "?"), (0x80, "f"), (0x82, "g"), (0x88, "")] {
            wire.put_u8(opening);
            wire.put_u8(0x80 | u8::try_from(payload.len()).unwrap());
            wire.put_slice(&mask);
            let mut payload = payload.as_bytes().to_vec();
            unmask(&mut payload, mask, 0);
            wire.put_slice(&payload);
        }
        let wire = wire.freeze();
        let mut decoder = Decoder::new(wire.as_ref());
        let piece = |first, text: &'static str| Event::Piece { first, bytes: Bytes::from_static(text.as_bytes()) };
        assert_eq!(decoder.next().await, piece(true, "abcde"));
        assert_eq!(decoder.next().await, Event::Ping(Bytes::from_static(b"?")));
        assert_eq!(decoder.next().await, piece(false, "f"));
        assert_eq!(decoder.next().await, piece(true, "g"));
        assert_eq!(decoder.next().await, Event::Closed);
    }

    #[test]
    fn lengths_take_the_shortest_form() {
        let size = |length: usize| {
            let mut out = BytesMut::new();
            head(BINARY, length, &mut out);
            out.len()
        };
        assert_eq!((size(125), size(126), size(65535), size(65536)), (2, 4, 4, 10));
    }

    #[test]
    fn a_handshake_that_lacks_something_is_refused() {
        let code = |method: Method, key: &'static str, version: &'static str| {
            let mut headers = HeaderMap::new();
            headers.insert(header::SEC_WEBSOCKET_KEY, HeaderValue::from_static(key));
            headers.insert(header::SEC_WEBSOCKET_VERSION, HeaderValue::from_static(version));
            refuse(&method, &headers).map(|r| r.status().as_u16())
        };
        assert_eq!(code(Method::GET, "abc", "13"), None);
        assert_eq!(code(Method::POST, "abc", "13"), Some(405));
        assert_eq!(code(Method::GET, "", "13"), Some(400));
        assert_eq!(code(Method::GET, "abc", "8"), Some(400));
        assert_eq!(refuse(&Method::GET, &HeaderMap::new()).map(|r| r.status().as_u16()), Some(400));
    }

    #[test]
    fn a_tunnel_is_known_by_its_prefix_and_its_handshake_by_key_and_version() {
        let with = |protocols: &'static str, key: &'static str| {
            HeaderMap::from_iter([
                (header::SEC_WEBSOCKET_PROTOCOL, HeaderValue::from_static(protocols)),
                (header::SEC_WEBSOCKET_KEY, HeaderValue::from_static(key)),
                (header::SEC_WEBSOCKET_VERSION, HeaderValue::from_static("12, 13")),
            ])
        };
        let good = "dGhlIHNhbXBsZSBub25jZQ==";
        let offer = with("v4.channel.k8s.io, SPDY/3.1+portforward.k8s.io,SPDY/3.1+x.k8s.io, SPDY/3.1+x", good);
        assert_eq!(tunneled(&offer).collect::<Vec<_>>(), ["portforward.k8s.io", "x.k8s.io"]);
        assert!(tunneled(&with("portforward.k8s.io", good)).next().is_none());
        let code = |method, headers: &HeaderMap| refuse_tunnel(&method, headers).map(|r| r.status().as_u16());
        assert_eq!((code(Method::GET, &offer), code(Method::POST, &offer)), (None, Some(405)));
        for key in ["", "abc", "dGhlIHNhbXBsZQ=="] {
            assert_eq!(code(Method::GET, &with("", key)), Some(400), "{key}");
        }
    }
}
