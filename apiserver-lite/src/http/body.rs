//! Response bodies: nothing, bytes, a list of ready-made slices, something long that is put together while it is sent, or
//! a stream that ends when it likes.

use std::collections::VecDeque;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use futures_util::{Stream, StreamExt as _};
use http_body::{Frame, SizeHint};

pub type Response = http::Response<Body>;

pub enum Body {
    /// Slices in order; the length is known.
    Chunks(VecDeque<Bytes>),
    /// Made chunk by chunk while the client takes them, so that a long answer is never in memory as a whole.
    Pieces(Pieces),
    Stream(Pin<Box<dyn Stream<Item = Result<Bytes, Broken>> + Send>>),
}

/// An answer that is passed on ended before it was complete. The client's connection is cut, so that it does not take
/// the part for the whole.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Broken {
    #[error("the other side ended in the middle of its answer")]
    Theirs,
    #[error("the answer was not complete within the allotted timeout")]
    Late,
}

impl Body {
    pub fn empty() -> Self {
        Body::Chunks(VecDeque::new())
    }

    pub fn stream(stream: impl Stream<Item = Bytes> + Send + 'static) -> Self {
        Body::passed_on(stream.map(Ok))
    }

    /// A stream that somebody else may break off.
    pub fn passed_on(stream: impl Stream<Item = Result<Bytes, Broken>> + Send + 'static) -> Self {
        Body::Stream(Box::pin(stream))
    }

    /// The same, but a stream ends when `end` comes true.
    #[must_use]
    pub fn until(self, end: impl Future<Output = ()> + Send + 'static) -> Self {
        match self {
            Body::Stream(stream) => Body::passed_on(stream.take_until(Box::pin(end))),
            other => other,
        }
    }

    /// The same, with something that is dropped with the stream, at its end or before.
    #[must_use]
    pub fn holding(self, held: impl Send + 'static) -> Self {
        match self {
            Body::Stream(stream) => Body::passed_on(stream.map(move |bytes| {
                let _ = &held;
                bytes
            })),
            other => other,
        }
    }

    /// Bytes that are known now; zero for a stream.
    pub fn len(&self) -> usize {
        match self {
            Body::Chunks(chunks) => chunks.iter().map(Bytes::len).sum(),
            Body::Pieces(pieces) => pieces.left.unwrap_or(0),
            Body::Stream(_) => 0,
        }
    }

    /// The same with all of it in memory, for those who look at an answer before it is sent.
    #[must_use]
    pub fn whole(self) -> Self {
        match self {
            Body::Pieces(mut pieces) => Body::Chunks(std::iter::from_fn(|| pieces.next()).collect()),
            other => other,
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

/// Appends the next piece; false when there was none left.
type Append = Box<dyn FnMut(&mut Vec<u8>) -> bool + Send>;

/// A long body of many small pieces, put together to chunks of a size that TLS and the kernel like: a record holds
/// 16 KiB, and each chunk is looked at several times on its way.
pub struct Pieces {
    append: Append,
    /// Bytes that are still to come; None where nobody knows, which is so of compressed ones.
    left: Option<usize>,
    ended: bool,
}

/// Large enough that the cost of a chunk does not count, small enough that it stays in the processor's cache and its
/// memory is used again by the next.
const CHUNK: usize = 64 << 10;

impl Pieces {
    /// `append` adds the next piece to what it is given, and says false when there was none left. `length` is that of all
    /// pieces together where it is known; it has to be right.
    pub fn new(length: Option<usize>, append: impl FnMut(&mut Vec<u8>) -> bool + Send + 'static) -> Self {
        Pieces { append: Box::new(append), left: length, ended: length == Some(0) }
    }

    fn next(&mut self) -> Option<Bytes> {
        if self.ended {
            return None;
        }
        let room = CHUNK + CHUNK / 4;
        let mut chunk = Vec::with_capacity(self.left.map_or(room, |left| left.min(room)));
        while chunk.len() < CHUNK && !self.ended {
            self.ended = !(self.append)(&mut chunk);
        }
        if let Some(left) = &mut self.left {
            *left = left.saturating_sub(chunk.len());
            self.ended |= *left == 0;
        }
        (!chunk.is_empty()).then(|| chunk.into())
    }

    /// Bytes that are still to come, where somebody knows.
    pub fn length(&self) -> Option<usize> {
        self.left
    }

    /// The same, with somebody who is told how many bytes there were in all once the last is made.
    #[must_use]
    pub fn telling(mut self, tell: impl FnOnce(u64) + Send + 'static) -> Self {
        let (mut tell, mut sum) = (Some(tell), 0);
        Pieces::new(self.left, move |out| {
            let more = self.next().is_some_and(|chunk| {
                sum += chunk.len() as u64;
                out.extend_from_slice(&chunk);
                true
            });
            if !more && let Some(tell) = tell.take() {
                tell(sum);
            }
            more
        })
    }

    /// The same compressed, as fast as it goes: clients are near.
    #[must_use]
    pub fn gzipped(mut self) -> Self {
        let mut encoder = Some(flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::new(1)));
        Pieces::new(None, move |out| {
            use std::io::Write as _;
            let Some(deflate) = &mut encoder else { return false };
            // Writing to memory does not fail.
            if let Some(chunk) = self.next() {
                let _ = deflate.write_all(&chunk);
                out.append(deflate.get_mut());
                return true;
            }
            out.extend_from_slice(&encoder.take().and_then(|e| e.finish().ok()).unwrap_or_default());
            false
        })
    }
}

impl From<VecDeque<Bytes>> for Pieces {
    fn from(mut chunks: VecDeque<Bytes>) -> Self {
        Pieces::new(Some(chunks.iter().map(Bytes::len).sum()), move |out| {
            let chunk = chunks.pop_front();
            chunk.inspect(|c| out.extend_from_slice(c)).is_some()
        })
    }
}

impl http_body::Body for Body {
    type Data = Bytes;
    type Error = Broken;

    fn poll_frame(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Broken>>> {
        match self.get_mut() {
            Body::Chunks(chunks) => Poll::Ready(chunks.pop_front().map(|b| Ok(Frame::data(b)))),
            Body::Pieces(pieces) => Poll::Ready(pieces.next().map(|b| Ok(Frame::data(b)))),
            Body::Stream(stream) => stream.as_mut().poll_next(context).map(|next| next.map(|b| b.map(Frame::data))),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Body::Chunks(chunks) => chunks.is_empty(),
            Body::Pieces(pieces) => pieces.ended,
            Body::Stream(_) => false,
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Body::Chunks(_) | Body::Pieces(Pieces { left: Some(_), .. }) => SizeHint::with_exact(self.len() as u64),
            Body::Pieces(_) | Body::Stream(_) => SizeHint::default(),
        }
    }
}

#[cfg(test)]
mod tests {
    use http_body::Body as _;

    use super::*;

    fn sent(mut body: Body) -> Vec<Bytes> {
        let mut context = Context::from_waker(std::task::Waker::noop());
        let mut all = Vec::new();
        while let Poll::Ready(Some(Ok(frame))) = Pin::new(&mut body).poll_frame(&mut context) {
            all.extend(frame.into_data());
        }
        assert!(body.is_end_stream());
        all
    }

    fn counted(count: usize, size: usize, length: Option<usize>) -> Pieces {
        let mut left = count;
        Pieces::new(length, move |out| {
            let some = left > 0;
            left = left.saturating_sub(1);
            out.extend(std::iter::repeat_n(b'a', if some { size } else { 0 }));
            some
        })
    }

    #[test]
    fn pieces_become_chunks_of_their_size_and_the_length_is_told_before() {
        let pieces = Body::Pieces(counted(100, 2000, Some(200_000)));
        assert_eq!(pieces.size_hint().exact(), Some(200_000));
        let chunks = sent(pieces);
        assert_eq!(chunks.iter().map(Bytes::len).sum::<usize>(), 200_000);
        assert!(chunks[0].len() >= CHUNK && chunks.len() == 4, "{}", chunks.len());
        assert!(sent(Body::Pieces(counted(0, 0, Some(0)))).is_empty());
        assert_eq!(Body::Pieces(counted(3, 5, None)).whole().len(), 15);
    }

    #[test]
    fn who_wants_to_know_is_told_how_long_an_answer_was() {
        let (tell, told) = std::sync::mpsc::channel();
        let pieces = counted(100, 2000, None).gzipped().telling(move |sum| tell.send(sum).expect("somebody listens"));
        let sent = sent(Body::Pieces(pieces)).iter().map(|b| b.len() as u64).sum::<u64>();
        assert_eq!(told.try_iter().collect::<Vec<_>>(), [sent]);
    }

    #[test]
    fn compressed_pieces_come_back_as_they_were() {
        use std::io::Read as _;
        for count in [0, 1, 100] {
            let packed: Vec<u8> = sent(Body::Pieces(counted(count, 2000, None).gzipped())).concat();
            let mut plain = Vec::new();
            flate2::read::GzDecoder::new(&packed[..]).read_to_end(&mut plain).expect("gzip");
            assert_eq!(plain.len(), count * 2000);
        }
    }
}
