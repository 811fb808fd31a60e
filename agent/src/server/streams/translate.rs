//! WebSocket clients in front of a runtime that speaks SPDY.
//!
//! Runtimes know the older channel protocols over WebSocket but not `v5.channel.k8s.io`, whose clients can close their
//! standard input, nor port-forwarding through a tunnel. Both end here: channels become SPDY streams, and a tunnel's
//! messages the bytes of a SPDY connection.
//!
//! Followed: apiserver `util/proxy` (`StreamTranslatorHandler`, `TunnelingHandler`).

use bytes::{Bytes, BytesMut};
use http::{Request, Response, StatusCode};
use hyper::body::Incoming;
use hyper_util::rt::TokioIo;
use serde_json::json;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::sync::mpsc;

use super::options::Options;
use super::upgrade::{self, StreamError};
use super::{spdy, websocket};
use crate::server::answers::Answer;

pub const CHANNELS: &str = "v5.channel.k8s.io";

/// Channels of the protocol, by number.
const STDIN: u8 = 0;
const STDOUT: u8 = 1;
const STDERR: u8 = 2;
const ERROR: u8 = 3;
const RESIZE: u8 = 4;
const CLOSE: u8 = 255;
/// Writes under way per direction; a slow reader holds up the other side, as it should.
const QUEUE: usize = 8;
const PIECE: usize = 32 * 1024;

/// Serves exec or attach to a client of [`CHANNELS`]. The upgrade comes first: what goes wrong with the runtime is told in
/// the channel of errors.
///
/// # Errors
/// A request without a key; the client is still waiting for an answer.
pub fn channels(url: &str, options: Options, mut request: Request<Incoming>) -> Result<Response<Answer>, StreamError> {
    let answer = websocket::accept(request.headers(), Some(CHANNELS))
        .ok_or_else(|| StreamError("the request has no WebSocket key".into()))?;
    let client = hyper::upgrade::on(&mut request);
    let url = url.to_owned();
    tokio::spawn(async move {
        let Ok(client) = client.await else { return };
        match upgrade::spdy(&url, "v4.channel.k8s.io").await {
            Ok(runtime) => run_channels(TokioIo::new(client), runtime, &options).await,
            Err(error) => refuse(TokioIo::new(client), &error.to_string()).await,
        }
    });
    Ok(answer)
}

/// Serves port-forwarding to a client that tunnels. The runtime comes first: until it has taken the connection everything
/// is told by an answer of HTTP, its own refusal as it is, and then what is wrong with the client's handshake.
///
/// # Errors
/// The runtime does not answer, or not in SPDY; the client is still waiting for an answer.
pub async fn tunnel(url: &str, mut request: Request<Incoming>) -> Result<Response<Answer>, StreamError> {
    let mut taken = upgrade::ask_for_spdy(url, request.headers(), websocket::tunneled(request.headers())).await?;
    if taken.status() != StatusCode::SWITCHING_PROTOCOLS {
        return Ok(upgrade::refusal(taken));
    }
    let told = |name: &str| taken.headers().get(name).and_then(|v| v.to_str().ok()).unwrap_or_default().trim();
    let speaks = told("upgrade").to_ascii_lowercase().contains("spdy/3.1");
    if !speaks || !told("connection").to_ascii_lowercase().contains("upgrade") {
        return Err(StreamError("unable to upgrade: missing upgrade headers in response".into()));
    }
    let chosen = websocket::tunneled(request.headers()).find(|protocol| *protocol == told(upgrade::PROTOCOL));
    if let Some(refused) = websocket::refuse_tunnel(request.method(), request.headers()) {
        return Ok(refused);
    }
    let chosen = chosen.map(|protocol| format!("{}{protocol}", websocket::TUNNEL));
    let answer = websocket::accept(request.headers(), chosen.as_deref())
        .ok_or_else(|| StreamError("the request has no WebSocket key".into()))?;
    let (runtime, client) = (hyper::upgrade::on(&mut taken), hyper::upgrade::on(&mut request));
    tokio::spawn(async move {
        if let (Ok(client), Ok(runtime)) = tokio::join!(client, runtime) {
            run_tunnel(TokioIo::new(client), TokioIo::new(runtime)).await;
        }
    });
    Ok(answer)
}

/// The numbers of the SPDY streams behind the channels.
struct Streams {
    by_channel: Vec<(u8, u32)>,
}

impl Streams {
    /// Opens what the runtime waits for.
    fn open(options: &Options, out: &mut BytesMut) -> Self {
        let mut encoder = spdy::Encoder::default();
        let wanted = [
            (ERROR, "error", true),
            (STDIN, "stdin", options.stdin),
            (STDOUT, "stdout", options.stdout),
            (STDERR, "stderr", options.stderr),
            (RESIZE, "resize", options.tty),
        ];
        let wanted = wanted.into_iter().filter(|(_, _, on)| *on);
        Streams {
            by_channel: wanted.map(|(channel, kind, _)| (channel, encoder.open("streamtype", kind, out))).collect(),
        }
    }

    fn stream(&self, channel: u8) -> Option<u32> {
        self.by_channel.iter().find(|(c, _)| *c == channel).map(|(_, s)| *s)
    }

    fn channel(&self, stream: u32) -> Option<u8> {
        self.by_channel.iter().find(|(_, s)| *s == stream).map(|(c, _)| *c)
    }
}

async fn run_channels<C, R>(client: C, runtime: R, options: &Options)
where
    C: AsyncRead + AsyncWrite + Send + 'static,
    R: AsyncRead + AsyncWrite + Send + 'static,
{
    let (client_in, client_out) = tokio::io::split(client);
    let (runtime_in, runtime_out) = tokio::io::split(runtime);
    let (to_client, client_queue) = mpsc::channel(QUEUE);
    let (to_runtime, runtime_queue) = mpsc::channel(QUEUE);
    let mut opening = BytesMut::new();
    let streams = Streams::open(options, &mut opening);
    let writing = tokio::spawn(write_all(client_queue, client_out));
    tokio::spawn(write_all(runtime_queue, runtime_out));
    if to_runtime.send(opening.freeze()).await.is_err() {
        return;
    }
    let inward = from_client(websocket::Decoder::new(client_in), &streams, to_client.clone(), to_runtime.clone());
    let outward = from_runtime(spdy::Decoder::new(runtime_in), &streams, to_client.clone(), to_runtime);
    tokio::select! {
        // The client has gone; dropping the connection tells the runtime.
        () = inward => {}
        () = outward => {
            let mut last = BytesMut::new();
            websocket::close(&mut last);
            let _ = to_client.send(last.freeze()).await;
        }
    }
    drop(to_client);
    // What is queued still goes out.
    let _ = writing.await;
}

/// Writes what comes until all senders have gone, then closes.
async fn write_all(mut queue: mpsc::Receiver<Bytes>, mut to: impl AsyncWrite + Unpin) {
    while let Some(bytes) = queue.recv().await {
        if to.write_all(&bytes).await.is_err() || to.flush().await.is_err() {
            return;
        }
    }
    let _ = to.shutdown().await;
}

async fn from_client<C: AsyncRead + Unpin>(
    mut client: websocket::Decoder<C>,
    streams: &Streams,
    to_client: mpsc::Sender<Bytes>,
    to_runtime: mpsc::Sender<Bytes>,
) {
    let mut channel = STDIN;
    loop {
        let mut out = BytesMut::new();
        match client.next().await {
            websocket::Event::Closed => return,
            websocket::Event::Ping(payload) => {
                websocket::pong(&payload, &mut out);
                // While the way is full there is no need to show life.
                let _ = to_client.try_send(out.freeze());
                continue;
            }
            websocket::Event::Piece { first, bytes } => {
                let mut payload = bytes.as_ref();
                if first && let Some((number, rest)) = payload.split_first() {
                    (channel, payload) = (*number, rest);
                }
                // Two bytes, which may come apart: this one and the channel to close.
                if channel == CLOSE
                    && let Some(closed) = payload.first()
                {
                    if let Some(stream) = streams.stream(*closed) {
                        spdy::data(stream, &[], true, &mut out);
                    }
                } else if let Some(stream) = streams.stream(channel).filter(|_| matches!(channel, STDIN | RESIZE)) {
                    spdy::data(stream, payload, false, &mut out);
                }
            }
        }
        if !out.is_empty() && to_runtime.send(out.freeze()).await.is_err() {
            return;
        }
    }
}

/// Ends when every stream that the runtime writes to has ended, or the connection has.
async fn from_runtime<R: AsyncRead + Unpin>(
    mut runtime: spdy::Decoder<R>,
    streams: &Streams,
    to_client: mpsc::Sender<Bytes>,
    to_runtime: mpsc::Sender<Bytes>,
) {
    let mut open: Vec<u32> = [ERROR, STDOUT, STDERR].into_iter().filter_map(|c| streams.stream(c)).collect();
    while !open.is_empty() {
        let mut out = BytesMut::new();
        match runtime.next().await {
            spdy::Event::Data { stream, bytes } => {
                if let Some(channel) = streams.channel(stream) {
                    websocket::message(&[channel], &bytes, &mut out);
                }
            }
            spdy::Event::End(stream) => open.retain(|s| *s != stream),
            spdy::Event::Ping(id) => {
                spdy::pong(id, &mut out);
                let _ = to_runtime.try_send(out.split().freeze());
            }
            spdy::Event::Closed => {
                if streams.stream(ERROR).is_some_and(|s| open.contains(&s)) {
                    websocket::message(&[ERROR], broken_off().as_bytes(), &mut out);
                }
                open.clear();
            }
        }
        if !out.is_empty() && to_client.send(out.freeze()).await.is_err() {
            return;
        }
    }
}

/// The status of a command whose end nobody knows.
fn broken_off() -> String {
    internal_error("error executing command in container: the runtime closed the connection")
}

/// A status in the API's words for what went wrong here.
fn internal_error(why: &str) -> String {
    json!({"metadata": {}, "status": "Failure", "message": format!("Internal error occurred: {why}"),
        "reason": "InternalError", "details": {"causes": [{"message": why}]}, "code": 500})
    .to_string()
}

/// Tells a client that it gets no streams, and ends.
async fn refuse(mut client: impl AsyncWrite + Unpin, why: &str) {
    let mut out = BytesMut::new();
    websocket::message(&[ERROR], internal_error(why).as_bytes(), &mut out);
    websocket::close(&mut out);
    if client.write_all(&out).await.is_ok() {
        // A client that has gone needs no goodbye.
        let _ = client.shutdown().await;
    }
}

async fn run_tunnel<C, R>(client: C, runtime: R)
where
    C: AsyncRead + AsyncWrite + Send + 'static,
    R: AsyncRead + AsyncWrite + Send + 'static,
{
    let (client_in, client_out) = tokio::io::split(client);
    let (mut runtime_in, mut runtime_out) = tokio::io::split(runtime);
    let (to_client, queue) = mpsc::channel(QUEUE);
    let writing = tokio::spawn(write_all(queue, client_out));
    let answers = to_client.clone();
    let inward = async {
        let mut client = websocket::Decoder::new(client_in);
        loop {
            match client.next().await {
                websocket::Event::Closed => return,
                websocket::Event::Ping(payload) => {
                    let mut out = BytesMut::new();
                    websocket::pong(&payload, &mut out);
                    let _ = answers.try_send(out.freeze());
                }
                websocket::Event::Piece { bytes, .. } => {
                    if runtime_out.write_all(&bytes).await.is_err() || runtime_out.flush().await.is_err() {
                        return;
                    }
                }
            }
        }
    };
    let outward = async {
        let mut piece = vec![0; PIECE];
        while let Ok(count @ 1..) = runtime_in.read(&mut piece).await {
            let mut out = BytesMut::new();
            websocket::message(&[], &piece[..count], &mut out);
            if to_client.send(out.freeze()).await.is_err() {
                return;
            }
        }
        let mut last = BytesMut::new();
        websocket::close(&mut last);
        let _ = to_client.send(last.freeze()).await;
    };
    tokio::select! {
        () = inward => {}
        () = outward => {}
    }
    drop((to_client, answers));
    let _ = writing.await;
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The client used to get an answer of HTTP instead of an upgrade when the runtime's server was away.
    #[tokio::test]
    async fn a_runtime_out_of_reach_is_told_in_the_channel_of_errors() {
        let (mut client, server) = tokio::io::duplex(4096);
        refuse(server, "dial: no").await;
        let mut wire = Vec::new();
        client.read_to_end(&mut wire).await.unwrap();
        let length = usize::from(u16::from_be_bytes([wire[2], wire[3]]));
        assert_eq!((wire[0], wire[1], wire[4]), (0x82, 126, ERROR));
        let status: serde_json::Value = serde_json::from_slice(&wire[5..4 + length]).unwrap();
        assert_eq!(status["message"], "Internal error occurred: dial: no");
        assert_eq!((&status["code"], &status["details"]["causes"][0]["message"]), (&json!(500), &json!("dial: no")));
        assert_eq!(wire[4 + length..], [0x88, 2, 0x03, 0xe8]);
    }
}
