//! Lets in clients whose `:authority` is the path of the socket with `%2F` for slashes.
//!
//! gRPC's C core (Python, C++, Ruby) sends that for unix sockets; Go takes it, while our HTTP/2 library holds a percent
//! sign for malformed and resets the stream. Such clients write the name and the value as plain literals, so the sign can
//! be replaced on its way in without a change of length; compression refers to what was replaced from then on. Only
//! header frames are looked at, and in them only the value after the name.

use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

const PREFACE: usize = 24;
const FRAME_HEADER: usize = 9;
const HEADERS: u8 = 1;
const CONTINUATION: u8 = 9;
/// Length and text of the literal name.
const NAME: &[u8] = b"\x0a:authority";

/// A connection with the sign replaced in what is read.
pub struct Forgiving<S> {
    inner: S,
    filter: Filter,
}

impl<S> Forgiving<S> {
    pub fn new(inner: S) -> Self {
        Self { inner, filter: Filter { place: Place::Preface(PREFACE), search: Search::Name(0) } }
    }
}

struct Filter {
    place: Place,
    search: Search,
}

enum Place {
    Preface(usize),
    Header([u8; FRAME_HEADER], usize),
    Payload { left: u32, headers: bool },
}

enum Search {
    /// So many bytes of the name have been seen.
    Name(usize),
    Length,
    /// Value so far, shift of the next seven bits.
    LongLength(u32, u32),
    Value(u32),
}

impl Filter {
    fn pass(&mut self, bytes: &mut [u8]) {
        for byte in bytes {
            match &mut self.place {
                Place::Preface(left) => {
                    *left -= 1;
                    if *left == 0 {
                        self.place = Place::Header([0; FRAME_HEADER], 0);
                    }
                }
                Place::Header(header, have) => {
                    header[*have] = *byte;
                    *have += 1;
                    if *have == FRAME_HEADER {
                        let left = u32::from_be_bytes([0, header[0], header[1], header[2]]);
                        let headers = matches!(header[3], HEADERS | CONTINUATION);
                        if header[3] == HEADERS {
                            self.search = Search::Name(0);
                        }
                        self.place = Self::payload(left, headers);
                    }
                }
                Place::Payload { left, headers } => {
                    *left -= 1;
                    let (left, headers) = (*left, *headers);
                    if headers {
                        self.look(byte);
                    }
                    self.place = Self::payload(left, headers);
                }
            }
        }
    }

    fn payload(left: u32, headers: bool) -> Place {
        if left == 0 { Place::Header([0; FRAME_HEADER], 0) } else { Place::Payload { left, headers } }
    }

    fn look(&mut self, byte: &mut u8) {
        self.search = match self.search {
            Search::Name(seen) if NAME[seen] == *byte && seen + 1 == NAME.len() => Search::Length,
            Search::Name(seen) if NAME[seen] == *byte => Search::Name(seen + 1),
            Search::Name(_) => Search::Name(usize::from(NAME[0] == *byte)),
            // A value in Huffman's code has no sign to find.
            Search::Length if *byte >= 0x80 || *byte == 0 => Search::Name(0),
            Search::Length if *byte == 0x7f => Search::LongLength(0x7f, 0),
            Search::Length => Search::Value(u32::from(*byte)),
            Search::LongLength(_, shift) if shift > 14 => Search::Name(0),
            Search::LongLength(value, shift) => {
                let value = value + (u32::from(*byte & 0x7f) << shift);
                if *byte & 0x80 == 0 { Search::Value(value) } else { Search::LongLength(value, shift + 7) }
            }
            Search::Value(left) => {
                if *byte == b'%' {
                    *byte = b'-';
                }
                if left == 1 { Search::Name(0) } else { Search::Value(left - 1) }
            }
        };
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Forgiving<S> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<std::io::Result<()>> {
        let before = buf.filled().len();
        let this = &mut *self;
        let ready = Pin::new(&mut this.inner).poll_read(cx, buf);
        if ready.is_ready() {
            this.filter.pass(&mut buf.filled_mut()[before..]);
        }
        ready
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Forgiving<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<std::io::Result<usize>> {
        Pin::new(&mut self.inner).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.inner).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.inner).poll_shutdown(cx)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[std::io::IoSlice<'_>],
    ) -> Poll<std::io::Result<usize>> {
        Pin::new(&mut self.inner).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(kind: u8, payload: &[u8]) -> Vec<u8> {
        let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
        [&length[1..], &[kind, 4, 0, 0, 0, 1], payload].concat()
    }

    #[test]
    fn only_the_authority_in_header_frames_loses_its_signs_however_the_bytes_arrive() {
        let headers = b"@\x05:path\x06/a%2Fb@\x0a:authority\x0ctmp%2Fa.sock\x83";
        let long = [b"@\x0a:authority\x7f\x49".as_slice(), &[b'%'; 200], b"%"].concat();
        let data = b"\x0a:authority\x03a%b";
        let input =
            [b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec(), frame(1, headers), frame(0, data), frame(1, &long)].concat();
        let want_headers = b"@\x05:path\x06/a%2Fb@\x0a:authority\x0ctmp-2Fa.sock\x83";
        let want_long = [b"@\x0a:authority\x7f\x49".as_slice(), &[b'-'; 200], b"%"].concat();
        let want = [
            b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec(),
            frame(1, want_headers),
            frame(0, data),
            frame(1, &want_long),
        ]
        .concat();
        for size in [1, 2, 7, 1000] {
            let mut got = input.clone();
            let mut stream = Forgiving::new(());
            got.chunks_mut(size).for_each(|chunk| stream.filter.pass(chunk));
            assert_eq!(got, want, "{size}");
        }
    }
}
