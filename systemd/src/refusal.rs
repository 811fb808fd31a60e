//! What a client hears whose first request on a connection cannot be read as HTTP/1.1: the words of Go's HTTP server.
//!
//! The HTTP library answers such a request by itself, with a status and nothing else. [`Refusing`] stands between it and
//! the connection: an error that is written before any request was handed on can only be that answer, and it is replaced
//! by one with a text. What the client still sends is then read for a moment, since a connection that closes on a client
//! that still sends takes the answer with it.
//!
//! Limits: later requests of a connection get the library's bare answer; so do requests over HTTP/2. A URL has at most
//! 65,534 bytes (Go takes what fits into the head of a request, 1 MiB).

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::Sleep;

/// How long a client that was refused may go on sending, as Go's server.
const LINGER: Duration = Duration::from_millis(500);
/// How an error begins that the library answers by itself.
const ERROR: &[u8] = b"HTTP/1.1 4";

/// A connection whose first request may be refused before anybody sees it.
pub struct Refusing<S> {
    inner: S,
    begun: Arc<AtomicBool>,
    /// What is left to be written of the answer that replaces the library's.
    answer: Option<Vec<u8>>,
    /// Runs from the end of the answer on.
    linger: Option<Pin<Box<Sleep>>>,
}

/// Tells the connection of its first request.
pub struct Serving(Arc<AtomicBool>);

impl Serving {
    /// A request was read; from here on, answers are the server's own.
    pub fn begun(&self) {
        self.0.store(true, Ordering::Release);
    }
}

impl<S> Refusing<S> {
    pub fn new(inner: S) -> (Self, Serving) {
        let begun = Arc::new(AtomicBool::new(false));
        (Refusing { inner, begun: begun.clone(), answer: None, linger: None }, Serving(begun))
    }

    fn has_begun(&self) -> bool {
        self.begun.load(Ordering::Acquire)
    }
}

/// The answer in place of one that begins with `bare`.
fn answer(bare: &[u8]) -> Vec<u8> {
    let line = bare.split(|b| *b == b'\r').next().unwrap_or_default();
    let status = String::from_utf8_lossy(line.strip_prefix(b"HTTP/1.1 ").unwrap_or_default());
    format!("HTTP/1.1 {status}\r\nContent-Type: text/plain; charset=utf-8\r\nConnection: close\r\n\r\n{status}")
        .into_bytes()
}

impl<S: AsyncRead + Unpin> AsyncRead for Refusing<S> {
    fn poll_read(self: Pin<&mut Self>, context: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().inner).poll_read(context, into)
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncWrite for Refusing<S> {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        if this.answer.is_none() && bytes.starts_with(ERROR) && !this.has_begun() {
            this.answer = Some(answer(bytes));
        }
        let Some(rest) = &mut this.answer else { return Pin::new(&mut this.inner).poll_write(context, bytes) };
        while !rest.is_empty() {
            let written = ready!(Pin::new(&mut this.inner).poll_write(context, rest))?;
            if written == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            rest.drain(..written);
        }
        Poll::Ready(Ok(bytes.len()))
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        if self.has_begun() {
            return Pin::new(&mut self.get_mut().inner).poll_write_vectored(context, slices);
        }
        let first = slices.iter().find(|slice| !slice.is_empty()).map_or(&[][..], |slice| slice);
        self.poll_write(context, first)
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().inner).poll_flush(context)
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if this.linger.is_none() {
            ready!(Pin::new(&mut this.inner).poll_shutdown(context))?;
            if this.answer.is_none() {
                return Poll::Ready(Ok(()));
            }
        }
        let linger = this.linger.get_or_insert_with(|| Box::pin(tokio::time::sleep(LINGER)));
        let mut space = [0; 4096];
        loop {
            if linger.as_mut().poll(context).is_ready() {
                return Poll::Ready(Ok(()));
            }
            let mut thrown_away = ReadBuf::new(&mut space);
            match ready!(Pin::new(&mut this.inner).poll_read(context, &mut thrown_away)) {
                Ok(()) if !thrown_away.filled().is_empty() => {}
                // The client has read its answer and closed, or is gone.
                Ok(()) | Err(_) => return Poll::Ready(Ok(())),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, duplex};

    use super::*;

    const BARE: &[u8] = b"HTTP/1.1 400 Bad Request\r\nconnection: close\r\ncontent-length: 0\r\n\r\n";

    async fn sent(begun: bool) -> String {
        let (ours, mut theirs) = duplex(64);
        let (mut stream, serving) = Refusing::new(ours);
        if begun {
            serving.begun();
        }
        let server = async {
            stream.write_all(BARE).await.expect("is written");
            stream.shutdown().await.expect("ends");
            drop(stream);
        };
        let client = async {
            let mut text = String::new();
            theirs.read_to_string(&mut text).await.expect("is read");
            drop(theirs);
            text
        };
        tokio::join!(server, client).1
    }

    #[tokio::test]
    async fn an_error_before_the_first_request_gets_a_text() {
        let text = "HTTP/1.1 400 Bad Request\r\nContent-Type: text/plain; charset=utf-8\r\nConnection: close\r\n\r\n\
            400 Bad Request";
        assert_eq!(sent(false).await, text);
        assert_eq!(sent(true).await.as_bytes(), BARE, "it is somebody's answer");
    }
}
