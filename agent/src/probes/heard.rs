//! A connection that remembers the first bytes it brought: whether the other side ever spoke, and in what words.
//!
//! What comes is not heard before something was said: a server that answers before it is asked would be told off by the
//! client's library, and has answered all the same.

use std::io::Result;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Waker};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// More than that of a line is not quoted.
const MAX_BYTES: usize = 256;

/// The beginning of what a connection brought.
#[derive(Debug, Clone, Default)]
pub struct Beginning(Arc<Mutex<Vec<u8>>>);

impl Beginning {
    pub fn is_empty(&self) -> bool {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).is_empty()
    }

    /// Its first line, without the end.
    pub fn line(&self) -> String {
        let bytes = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let line = bytes.split(|b| *b == b'\n').next().unwrap_or_default();
        String::from_utf8_lossy(line.strip_suffix(b"\r").unwrap_or(line)).into_owned()
    }

    fn add(&self, bytes: &[u8]) {
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let room = MAX_BYTES.saturating_sub(kept.len());
        kept.extend(bytes.iter().take(room));
    }
}

pub struct Heard<S> {
    stream: S,
    beginning: Beginning,
    /// Whether anything has been written.
    spoken: bool,
    /// Who wants to read and has to wait until something is.
    listener: Option<Waker>,
}

impl<S> Heard<S> {
    pub fn new(stream: S, beginning: Beginning) -> Self {
        Self { stream, beginning, spoken: false, listener: None }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Heard<S> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<Result<()>> {
        if !self.spoken {
            self.listener = Some(cx.waker().clone());
            return Poll::Pending;
        }
        let before = buf.filled().len();
        let read = Pin::new(&mut self.stream).poll_read(cx, buf);
        if let Some(new) = buf.filled().get(before..).filter(|new| !new.is_empty()) {
            self.beginning.add(new);
        }
        read
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Heard<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(cx, buf);
        if written.is_ready() && !self.spoken {
            self.spoken = true;
            self.listener.take().into_iter().for_each(Waker::wake);
        }
        written
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
