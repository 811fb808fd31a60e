//! A CRI runtime that answers but is never ready: enough for an agent to start, and no container ever runs.
//!
//! It speaks just the two calls that an agent makes before it starts pods, by hand, so that no runtime has to be
//! installed. Everything else is Unimplemented, which the agent has to bear from old runtimes as well.

use std::convert::Infallible;
use std::path::Path;

use anyhow::Result;
use bytes::{BufMut, Bytes, BytesMut};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::net::UnixListener;

/// Serves on a Unix socket until the task is dropped.
///
/// # Errors
/// When the socket cannot be made.
pub async fn serve(socket: &Path) -> Result<()> {
    let listener = UnixListener::bind(socket)?;
    loop {
        let (stream, _) = listener.accept().await?;
        tokio::spawn(async move {
            let server = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
            // An agent that goes away is the end of its connection, no fault.
            let _ = server.serve_connection(TokioIo::new(stream), service_fn(answer)).await;
        });
    }
}

/// What a handler of gRPC calls returns.
pub(crate) type Answer = Result<Response<UnsyncBoxBody<Bytes, Infallible>>, http::Error>;

async fn answer(request: Request<Incoming>) -> Answer {
    let message = match request.uri().path() {
        "/runtime.v1.RuntimeService/Version" => Some(version()),
        "/runtime.v1.RuntimeService/Status" => Some(status()),
        _ => None,
    };
    let _ = request.into_body().collect().await;
    answered(message.as_deref().ok_or((12, "not implemented")))
}

/// The answer to one gRPC call: a message, or a code and what is said with it.
pub(crate) fn answered(outcome: Result<&[u8], (u8, &str)>) -> Answer {
    let response = Response::builder().header("content-type", "application/grpc");
    let message = match outcome {
        Ok(message) => message,
        Err((code, why)) => {
            let body = http_body_util::Empty::new().boxed_unsync();
            return response.header("grpc-status", code.to_string()).header("grpc-message", why).body(body);
        }
    };
    let mut framed = BytesMut::new();
    framed.put_u8(0);
    framed.put_u32(u32::try_from(message.len()).unwrap_or(u32::MAX));
    framed.put_slice(message);
    let mut trailers = http::HeaderMap::new();
    trailers.insert("grpc-status", http::HeaderValue::from_static("0"));
    let frames = [Ok(Frame::data(framed.freeze())), Ok(Frame::trailers(trailers))];
    response.body(StreamBody::new(futures_util::stream::iter(frames)).boxed_unsync())
}

/// `VersionResponse`: version, runtime name, runtime version, runtime API version.
fn version() -> Vec<u8> {
    let mut out = Vec::new();
    for (number, text) in [(1, "0.1.0"), (2, "fake"), (3, "1.0.0"), (4, "v1")] {
        field(number, text.as_bytes(), &mut out);
    }
    out
}

/// `StatusResponse` with two conditions, both false.
fn status() -> Vec<u8> {
    let mut status = Vec::new();
    for kind in ["RuntimeReady", "NetworkReady"] {
        let mut condition = Vec::new();
        field(1, kind.as_bytes(), &mut condition);
        field(3, b"NeverReady", &mut condition);
        field(4, b"this runtime is never ready", &mut condition);
        field(1, &condition, &mut status);
    }
    let mut out = Vec::new();
    field(1, &status, &mut out);
    out
}

/// A length-delimited protobuf field shorter than 128 bytes, or up to 16 KiB with a second length byte.
fn field(number: u8, content: &[u8], out: &mut Vec<u8>) {
    out.push(number << 3 | 2);
    let length = content.len();
    if length < 128 {
        out.push(u8::try_from(length).unwrap_or(0));
    } else {
        out.push(u8::try_from(length & 0x7f).unwrap_or(0) | 0x80);
        out.push(u8::try_from(length >> 7).unwrap_or(0));
    }
    out.extend_from_slice(content);
}
