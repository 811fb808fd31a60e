//! The events of one watch, read frame by frame: length-prefixed protobuf or one JSON document per line.

use std::marker::PhantomData;

use bytes::{Buf, Bytes, BytesMut};
use http_body_util::BodyExt;
use prost::Message;
use proto::apimachinery::pkg::apis::meta::v1::{Status, WatchEvent as RawEvent};

use super::transport::chain;
use super::{ApiError, Body, ContentType, Kind, media};

/// A frame beyond this is an error: the server sends no object that large.
const MAX_FRAME: usize = 64 * 1024 * 1024;

#[derive(Debug, Clone)]
pub enum WatchEvent<T> {
    Added(T),
    Modified(T),
    /// The last state of the object, with the version of its deletion.
    Deleted(T),
    /// Nothing else happened up to this version.
    Bookmark(String),
    /// The server ends the watch, mostly because the version is too old (410).
    Error(Box<Status>),
}

/// An open watch; dropping it ends it.
pub struct Watch<T> {
    body: Body,
    buffer: BytesMut,
    form: ContentType,
    kind: PhantomData<fn() -> T>,
}

impl<T: Kind> Watch<T> {
    pub(super) fn new(body: Body, form: ContentType) -> Self {
        Watch { body, buffer: BytesMut::new(), form, kind: PhantomData }
    }

    /// The next event; None when the server closed the watch in good order. Cancel safe.
    ///
    /// # Errors
    /// [`ApiError::Broken`] when the connection is lost, [`ApiError::Malformed`] for a frame that is no event; the watch
    /// is over in both cases.
    pub async fn next(&mut self) -> Result<Option<WatchEvent<T>>, ApiError> {
        loop {
            if let Some(frame) = self.take_frame()? {
                return event(frame, self.form).map(Some);
            }
            match self.body.frame().await {
                Some(Ok(frame)) => {
                    if let Ok(data) = frame.into_data() {
                        self.buffer.extend_from_slice(&data);
                    }
                }
                Some(Err(error)) => return Err(ApiError::Broken(chain(&*error))),
                None if self.buffer.iter().all(u8::is_ascii_whitespace) => return Ok(None),
                None => return Err(ApiError::Broken("the watch ended inside an event".into())),
            }
        }
    }

    fn take_frame(&mut self) -> Result<Option<Bytes>, ApiError> {
        let frame = match self.form {
            ContentType::Protobuf => {
                let Some(prefix) = self.buffer.first_chunk::<4>() else { return Ok(None) };
                let length = u32::from_be_bytes(*prefix) as usize;
                if length > MAX_FRAME {
                    return Err(ApiError::Malformed(format!("a watch frame of {length} bytes")));
                }
                if self.buffer.len() < 4 + length {
                    return Ok(None);
                }
                self.buffer.advance(4);
                self.buffer.split_to(length).freeze()
            }
            ContentType::Json => {
                while self.buffer.first().is_some_and(u8::is_ascii_whitespace) {
                    self.buffer.advance(1);
                }
                match self.buffer.iter().position(|b| *b == b'\n') {
                    Some(end) => self.buffer.split_to(end + 1).freeze(),
                    None if self.buffer.len() > MAX_FRAME => {
                        return Err(ApiError::Malformed("an endless watch event".into()));
                    }
                    None => return Ok(None),
                }
            }
        };
        // An idle watch holds no buffer, and one large list does not keep its buffer.
        if self.buffer.is_empty() {
            self.buffer = BytesMut::new();
        }
        Ok(Some(frame))
    }
}

fn event<T: Kind>(frame: Bytes, form: ContentType) -> Result<WatchEvent<T>, ApiError> {
    let (word, object) = match form {
        ContentType::Protobuf => {
            let raw = RawEvent::decode(frame).map_err(|e| ApiError::Malformed(e.to_string()))?;
            (raw.r#type, raw.object.unwrap_or_default().raw)
        }
        ContentType::Json => {
            #[derive(serde::Deserialize)]
            struct Line<'a> {
                r#type: String,
                #[serde(borrow)]
                object: &'a serde_json::value::RawValue,
            }
            let line: Line<'_> = serde_json::from_slice(&frame).map_err(|e| ApiError::Malformed(e.to_string()))?;
            (line.r#type, frame.slice_ref(line.object.get().as_bytes()))
        }
    };
    match word.as_str() {
        "ADDED" => media::decode(object, form).map(WatchEvent::Added),
        "MODIFIED" => media::decode(object, form).map(WatchEvent::Modified),
        "DELETED" => media::decode(object, form).map(WatchEvent::Deleted),
        "BOOKMARK" => media::decode::<T>(object, form).map(|o| WatchEvent::Bookmark(o.resource_version().to_owned())),
        "ERROR" => match media::decode_status(object, form) {
            Some(status) => Ok(WatchEvent::Error(Box::new(status))),
            None => Err(ApiError::Malformed("an error event without a Status".into())),
        },
        other => Err(ApiError::Malformed(format!("a watch event of type {other:?}"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use http_body_util::StreamBody;
    use hyper::body::Frame;
    use proto::api::core::v1::Pod;

    fn watch(form: ContentType, chunks: Vec<Bytes>) -> Watch<Pod> {
        let frames = chunks.into_iter().map(|c| Ok(Frame::data(c)));
        Watch::new(StreamBody::new(futures_util::stream::iter(frames)).boxed_unsync(), form)
    }

    #[tokio::test]
    async fn events_are_whole_however_the_bytes_are_cut() {
        let text = concat!(
            r#"{"type":"ADDED","object":{"kind":"Pod","apiVersion":"v1","metadata":{"name":"a"}}}"#,
            "\n",
            r#"{"type":"BOOKMARK","object":{"kind":"Pod","apiVersion":"v1","metadata":{"resourceVersion":"9"}}}"#,
            "\n",
            r#"{"type":"ERROR","object":{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure","reason":"Expired","code":410}}"#,
            "\n"
        );
        let chunks = text.as_bytes().chunks(7).map(Bytes::copy_from_slice).collect();
        let mut watch = watch(ContentType::Json, chunks);
        assert!(matches!(watch.next().await, Ok(Some(WatchEvent::Added(pod))) if pod.name() == "a"));
        assert!(matches!(watch.next().await, Ok(Some(WatchEvent::Bookmark(v))) if v == "9"));
        assert!(matches!(watch.next().await, Ok(Some(WatchEvent::Error(s))) if s.code == 410));
        assert!(matches!(watch.next().await, Ok(None)));
    }

    #[tokio::test]
    async fn protobuf_frames_carry_enveloped_objects() {
        let mut pod = Pod::default();
        pod.metadata_mut().name = "a".into();
        let object = media::encode(&pod, ContentType::Protobuf);
        let raw = RawEvent {
            r#type: "MODIFIED".into(),
            object: Some(proto::apimachinery::pkg::runtime::RawExtension { raw: object }),
        }
        .encode_to_vec();
        let mut bytes = u32::try_from(raw.len()).expect("small").to_be_bytes().to_vec();
        bytes.extend(raw);
        let mut watch = watch(ContentType::Protobuf, bytes.chunks(3).map(Bytes::copy_from_slice).collect());
        assert!(matches!(watch.next().await, Ok(Some(WatchEvent::Modified(pod))) if pod.name() == "a"));
        assert!(matches!(watch.next().await, Ok(None)));
    }

    #[tokio::test]
    async fn a_cut_or_absurd_frame_is_an_error() {
        let mut cut = watch(ContentType::Protobuf, vec![Bytes::from_static(&[0, 0, 0, 9, 1])]);
        assert!(matches!(cut.next().await, Err(ApiError::Broken(_))));
        let mut huge = watch(ContentType::Protobuf, vec![Bytes::from_static(&[255, 0, 0, 9, 1])]);
        assert!(matches!(huge.next().await, Err(ApiError::Malformed(_))));
    }
}
