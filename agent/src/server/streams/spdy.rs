//! SPDY/3.1 as its client: as much of it as a container runtime's streaming server needs to be spoken to.
//!
//! Streams are opened here only, and what their replies say is not needed, so header blocks are never read. Those sent
//! are zlib streams of stored blocks, without the protocol's dictionary, which readers of zlib take as well. There is no
//! flow control between the two: neither side's implementation has any.
//!
//! Followed: SPDY protocol draft 3.1; `moby/spdystream`.

use bytes::{BufMut, Bytes, BytesMut};
use tokio::io::{AsyncRead, AsyncReadExt};

const VERSION: u16 = 0x8003;
const SYN_STREAM: u16 = 1;
const RST_STREAM: u16 = 3;
const PING: u16 = 6;
const GO_AWAY: u16 = 7;
const FIN: u8 = 1;
/// Control frames are small; one beyond this is a broken peer.
const MAX_CONTROL: usize = 64 * 1024;
/// Data is passed on in pieces of this size at most.
const PIECE: usize = 32 * 1024;

/// Writes frames: the state of the header compression and the next stream's number.
#[derive(Default)]
pub struct Encoder {
    opened: u32,
}

impl Encoder {
    /// A frame that opens a stream with one header; returns the stream's number.
    pub fn open(&mut self, name: &str, value: &str, out: &mut BytesMut) -> u32 {
        let id = self.opened * 2 + 1;
        let mut block = BytesMut::new();
        block.put_u32(1);
        for text in [name, value] {
            block.put_u32(u32::try_from(text.len()).unwrap_or(0));
            block.put_slice(text.as_bytes());
        }
        let mut packed = BytesMut::new();
        if self.opened == 0 {
            packed.put_slice(&[0x78, 0x01]);
        }
        let length = u16::try_from(block.len()).unwrap_or(0);
        packed.put_u8(0);
        packed.put_u16_le(length);
        packed.put_u16_le(!length);
        packed.put_slice(&block);
        // An empty block makes the reader hand out what came before.
        packed.put_slice(&[0, 0, 0, 0xff, 0xff]);
        control(SYN_STREAM, 10 + packed.len(), out);
        out.put_u32(id);
        out.put_u32(0);
        out.put_u16(0);
        out.put_slice(&packed);
        self.opened += 1;
        id
    }
}

fn control(kind: u16, length: usize, out: &mut BytesMut) {
    out.put_u16(VERSION);
    out.put_u16(kind);
    // No flags: the top byte of the length's word.
    out.put_u32(u32::try_from(length).unwrap_or(0));
}

/// A frame of data; `last` closes this side of the stream.
pub fn data(id: u32, payload: &[u8], last: bool, out: &mut BytesMut) {
    for piece in payload.chunks(PIECE) {
        out.put_u32(id);
        out.put_u32(u32::try_from(piece.len()).unwrap_or(0));
        out.put_slice(piece);
    }
    if last {
        out.put_u32(id);
        out.put_u32(u32::from(FIN) << 24);
    }
}

/// The answer to a ping.
pub fn pong(id: u32, out: &mut BytesMut) {
    control(PING, 4, out);
    out.put_u32(id);
}

/// What comes from the other side.
#[derive(Debug, PartialEq, Eq)]
pub enum Event {
    Data {
        stream: u32,
        bytes: Bytes,
    },
    /// The other side sends no more on this stream.
    End(u32),
    Ping(u32),
    /// The connection is over.
    Closed,
}

/// Reads events from a connection.
pub struct Decoder<R> {
    from: R,
    /// Stream, bytes to come and whether they are the last, of the frame under way.
    frame: Option<(u32, usize, bool)>,
}

impl<R: AsyncRead + Unpin> Decoder<R> {
    pub fn new(from: R) -> Self {
        Decoder { from, frame: None }
    }

    /// The next event; `Closed` for a connection that ended or makes no sense. Not cancel safe.
    pub async fn next(&mut self) -> Event {
        self.read().await.unwrap_or(Event::Closed)
    }

    async fn read(&mut self) -> std::io::Result<Event> {
        loop {
            if let Some((stream, left, last)) = self.frame {
                if left == 0 {
                    self.frame = None;
                    if last {
                        return Ok(Event::End(stream));
                    }
                    continue;
                }
                let mut bytes = vec![0; left.min(PIECE)];
                let count = self.from.read(&mut bytes).await?;
                if count == 0 {
                    return Ok(Event::Closed);
                }
                bytes.truncate(count);
                self.frame = Some((stream, left - count, last));
                return Ok(Event::Data { stream, bytes: bytes.into() });
            }
            let (first, second) = (self.from.read_u32().await?, self.from.read_u32().await?);
            let [flags, a, b, c] = second.to_be_bytes();
            let length = usize::try_from(u32::from_be_bytes([0, a, b, c])).unwrap_or(usize::MAX);
            if first >> 31 == 0 {
                self.frame = Some((first, length, flags & FIN != 0));
                continue;
            }
            if length > MAX_CONTROL {
                return Ok(Event::Closed);
            }
            let mut body = vec![0; length];
            self.from.read_exact(&mut body).await?;
            let number = body.first_chunk::<4>().map(|n| u32::from_be_bytes(*n) & 0x7fff_ffff);
            match (u16::try_from(first & 0xffff).unwrap_or(0), number) {
                (RST_STREAM, Some(stream)) => return Ok(Event::End(stream)),
                (PING, Some(id)) => return Ok(Event::Ping(id)),
                (GO_AWAY, _) => return Ok(Event::Closed),
                // Replies, settings, windows: nothing to do.
                _ => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn streams_are_opened_by_stored_blocks_of_one_zlib_stream() {
        let (mut encoder, mut out) = (Encoder::default(), BytesMut::new());
        assert_eq!(encoder.open("streamtype", "error", &mut out), 1);
        let first = out.split();
        assert_eq!(first[..8], [0x80, 3, 0, 1, 0, 0, 0, u8::try_from(first.len() - 8).unwrap()]);
        assert_eq!(first[8..18], [0, 0, 0, 1, 0, 0, 0, 0, 0, 0]);
        let mut raw = Vec::new();
        assert_eq!(encoder.open("streamtype", "stdout", &mut out), 3);
        // What any inflater makes of both header blocks together.
        for block in [&first[20..], &out[18..]] {
            let length = usize::from(u16::from_le_bytes([block[1], block[2]]));
            raw.extend_from_slice(&block[5..5 + length]);
            assert_eq!(block[5 + length..], [0, 0, 0, 0xff, 0xff]);
        }
        assert_eq!(raw, b"\0\0\0\x01\0\0\0\nstreamtype\0\0\0\x05error\0\0\0\x01\0\0\0\nstreamtype\0\0\0\x06stdout");
    }

    #[tokio::test]
    async fn frames_are_told_apart() {
        let mut wire = BytesMut::new();
        data(3, b"out", true, &mut wire);
        pong(7, &mut wire);
        control(2, 6, &mut wire);
        wire.put_slice(&[0; 6]);
        control(RST_STREAM, 8, &mut wire);
        wire.put_u64(5 << 32);
        let wire = wire.freeze();
        let mut decoder = Decoder::new(wire.as_ref());
        let mut events = Vec::new();
        loop {
            match decoder.next().await {
                Event::Closed => break,
                event => events.push(event),
            }
        }
        let out = Event::Data { stream: 3, bytes: Bytes::from_static(b"out") };
        assert_eq!(events, [out, Event::End(3), Event::Ping(7), Event::End(5)]);
    }
}
