//! Response bodies: nothing, bytes, a list of ready-made slices, or a stream that ends when it likes.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use futures_util::{Stream, StreamExt as _};
use http_body::{Frame, SizeHint};

pub type Response = http::Response<Body>;

pub enum Body {
    /// Slices in order; the length is known.
    Chunks(VecDeque<Bytes>),
    Stream(Pin<Box<dyn Stream<Item = Bytes> + Send>>),
}

impl Body {
    pub fn empty() -> Self {
        Body::Chunks(VecDeque::new())
    }

    pub fn stream(stream: impl Stream<Item = Bytes> + Send + 'static) -> Self {
        Body::Stream(Box::pin(stream))
    }

    /// The same, but a stream ends when `end` comes true.
    #[must_use]
    pub fn until(self, end: impl Future<Output = ()> + Send + 'static) -> Self {
        match self {
            Body::Stream(stream) => Body::stream(stream.take_until(Box::pin(end))),
            chunks => chunks,
        }
    }

    /// The same, with something that is dropped with the stream, at its end or before.
    #[must_use]
    pub fn holding(self, held: impl Send + 'static) -> Self {
        match self {
            Body::Stream(stream) => Body::stream(stream.map(move |bytes| {
                let _ = &held;
                bytes
            })),
            chunks => chunks,
        }
    }

    /// Bytes that are known now; zero for a stream.
    pub fn len(&self) -> usize {
        match self {
            Body::Chunks(chunks) => chunks.iter().map(Bytes::len).sum(),
            Body::Stream(_) => 0,
        }
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl<T: Into<Bytes>> From<T> for Body {
    fn from(bytes: T) -> Self {
        Body::Chunks([bytes.into()].into())
    }
}

/// A long body of many small pieces, put together to chunks of a size that TLS and the kernel like: a record holds
/// 16 KiB, and each chunk is looked at several times on its way.
#[derive(Default)]
pub struct Gathered {
    full: VecDeque<Bytes>,
    last: Vec<u8>,
}

const CHUNK: usize = 64 << 10;

impl Gathered {
    /// Where the next piece goes.
    pub fn last(&mut self) -> &mut Vec<u8> {
        if self.last.len() >= CHUNK {
            let next = Vec::with_capacity(CHUNK + CHUNK / 4);
            self.full.push_back(std::mem::replace(&mut self.last, next).into());
        }
        &mut self.last
    }

    pub fn chunks(mut self) -> VecDeque<Bytes> {
        self.full.push_back(self.last.into());
        self.full
    }
}

impl http_body::Body for Body {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        match self.get_mut() {
            Body::Chunks(chunks) => Poll::Ready(chunks.pop_front().map(|b| Ok(Frame::data(b)))),
            Body::Stream(stream) => stream.as_mut().poll_next(context).map(|next| next.map(|b| Ok(Frame::data(b)))),
        }
    }

    fn is_end_stream(&self) -> bool {
        matches!(self, Body::Chunks(chunks) if chunks.is_empty())
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Body::Chunks(_) => SizeHint::with_exact(self.len() as u64),
            Body::Stream(_) => SizeHint::default(),
        }
    }
}
