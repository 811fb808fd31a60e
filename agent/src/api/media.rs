//! The two wire forms of an object: protobuf in the envelope, and JSON by way of the schema table.

use std::sync::LazyLock;

use bytes::Bytes;
use prost::Message;
use proto::apimachinery::pkg::apis::meta::v1::{DeleteOptions, ListMeta, Status};
use proto::apimachinery::pkg::runtime::Unknown;
use proto::schema::{StructId, TypeSet};

use super::{ApiError, Kind};

const MAGIC: &[u8] = b"k8s\0";

/// What requests and answers are written in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ContentType {
    #[default]
    Protobuf,
    Json,
}

impl ContentType {
    /// Reads `contentType` of the configuration; anything but a protobuf name means JSON, as every server has that.
    pub fn from_media_type(text: &str) -> Self {
        match text {
            proto::protobuf::MEDIA_TYPE | proto::protobuf::MEDIA_TYPE_ALIAS => ContentType::Protobuf,
            _ => ContentType::Json,
        }
    }

    pub fn media_type(self) -> &'static str {
        match self {
            ContentType::Protobuf => proto::protobuf::MEDIA_TYPE,
            ContentType::Json => "application/json",
        }
    }

    /// The `Accept` header: errors and kinds without protobuf may still come as JSON.
    pub fn accept(self) -> &'static str {
        match self {
            ContentType::Protobuf => "application/vnd.kubernetes.protobuf,application/json",
            ContentType::Json => "application/json",
        }
    }

    /// The form of an answer, by its `Content-Type`.
    pub(super) fn of_answer(header: Option<&http::HeaderValue>) -> Self {
        match header.and_then(|h| h.to_str().ok()) {
            Some(text) => Self::from_media_type(text.split(';').next().unwrap_or("").trim()),
            None => ContentType::Json,
        }
    }
}

/// The list forms of all kinds share this shape in protobuf.
#[derive(Clone, PartialEq, Message)]
pub(super) struct RawList {
    #[prost(message, optional, tag = "1")]
    pub metadata: Option<ListMeta>,
    #[prost(bytes = "bytes", repeated, tag = "2")]
    pub items: Vec<Bytes>,
}

pub(super) fn encode<T: Kind>(object: &T, form: ContentType) -> Bytes {
    encode_as(object, T::GROUP, T::VERSION, T::KIND, form)
}

fn encode_as<M: Message>(object: &M, group: &str, version: &str, kind: &str, form: ContentType) -> Bytes {
    encode_struct(object, TypeSet::built_in().kind(group, version, kind), group, version, kind, form)
}

/// Options of a deletion, which are no kind of any group.
pub(super) fn encode_delete_options(options: &DeleteOptions, form: ContentType) -> Bytes {
    static ID: LazyLock<Option<StructId>> =
        LazyLock::new(|| TypeSet::built_in().struct_named("k8s.io.apimachinery.pkg.apis.meta.v1.DeleteOptions"));
    encode_struct(options, *ID, "", "v1", "DeleteOptions", form)
}

fn encode_struct<M: Message>(
    object: &M,
    id: Option<StructId>,
    group: &str,
    version: &str,
    kind: &str,
    form: ContentType,
) -> Bytes {
    let api_version = if group.is_empty() { version.to_owned() } else { format!("{group}/{version}") };
    let raw = object.encode_to_vec();
    let mut out = Vec::with_capacity(raw.len() + 64);
    match form {
        ContentType::Protobuf => proto::protobuf::write_envelope(&api_version, kind, &raw, &mut out),
        ContentType::Json => {
            let set = TypeSet::built_in();
            // The types are generated from the same declarations as the table, so neither step can fail.
            if let Some(id) = id
                && let Ok(mut value) = proto::protobuf::decode(set, id, &raw)
            {
                if let Some(map) = value.as_object_mut() {
                    map.insert("kind".into(), kind.into());
                    map.insert("apiVersion".into(), api_version.into());
                }
                proto::json::write(set, id, &value, &mut out);
            }
        }
    }
    out.into()
}

pub(super) fn decode<T: Kind>(body: Bytes, form: ContentType) -> Result<T, ApiError> {
    decode_part::<T, T>(body, form)
}

/// Those fields of a `T` that the message `A` has.
pub(super) fn decode_part<T: Kind, A: Message + Default>(body: Bytes, form: ContentType) -> Result<A, ApiError> {
    decode_as(body, T::GROUP, T::VERSION, T::KIND, form)
}

fn decode_as<M: Message + Default>(
    body: Bytes,
    group: &str,
    version: &str,
    kind: &str,
    form: ContentType,
) -> Result<M, ApiError> {
    let raw = match form {
        ContentType::Protobuf => open_envelope(body)?.raw,
        ContentType::Json => {
            let id = TypeSet::built_in()
                .kind(group, version, kind)
                .ok_or_else(|| ApiError::Malformed(format!("no schema of {kind}")))?;
            json_to_protobuf(id, &body)?
        }
    };
    M::decode(raw).map_err(malformed)
}

pub(super) fn decode_list<T: Kind>(body: Bytes, form: ContentType) -> Result<(ListMeta, Vec<T>), ApiError> {
    let list: RawList = decode_as(body, T::GROUP, T::VERSION, &format!("{}List", T::KIND), form)?;
    let items = list.items.into_iter().map(T::decode).collect::<Result<_, _>>().map_err(malformed)?;
    Ok((list.metadata.unwrap_or_default(), items))
}

/// Takes a message out of its envelope without copying it.
pub(super) fn open_envelope(body: Bytes) -> Result<Unknown, ApiError> {
    if !body.starts_with(MAGIC) {
        return Err(ApiError::Malformed("the protobuf envelope is missing".into()));
    }
    Unknown::decode(body.slice(MAGIC.len()..)).map_err(malformed)
}

/// The API version and kind that an object says it has.
pub(super) fn type_of(body: &Bytes, form: ContentType) -> Result<(String, String), ApiError> {
    match form {
        ContentType::Protobuf => {
            let meta = open_envelope(body.clone())?.type_meta.unwrap_or_default();
            Ok((meta.api_version, meta.kind))
        }
        ContentType::Json => {
            #[derive(serde::Deserialize)]
            struct TypeMeta {
                #[serde(rename = "apiVersion", default)]
                api_version: String,
                #[serde(default)]
                kind: String,
            }
            let meta: TypeMeta = serde_json::from_slice(body).map_err(|e| ApiError::Malformed(e.to_string()))?;
            Ok((meta.api_version, meta.kind))
        }
    }
}

/// Reads a `Status`, the form of every refusal.
pub(super) fn decode_status(body: Bytes, form: ContentType) -> Option<Status> {
    let (_, kind) = type_of(&body, form).ok()?;
    if kind != "Status" {
        return None;
    }
    match form {
        ContentType::Protobuf => Status::decode(open_envelope(body).ok()?.raw).ok(),
        ContentType::Json => {
            let id = TypeSet::built_in().struct_named("k8s.io.apimachinery.pkg.apis.meta.v1.Status")?;
            Status::decode(json_to_protobuf(id, &body).ok()?).ok()
        }
    }
}

fn json_to_protobuf(id: StructId, body: &[u8]) -> Result<Bytes, ApiError> {
    let set = TypeSet::built_in();
    let decoded = proto::json::decode(set, id, body).map_err(|e| ApiError::Malformed(e.to_string()))?;
    let mut raw = Vec::with_capacity(body.len());
    proto::protobuf::encode(set, id, &decoded.value, &mut raw);
    Ok(raw.into())
}

fn malformed(error: prost::DecodeError) -> ApiError {
    ApiError::Malformed(error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proto::api::core::v1::Node;

    #[test]
    fn an_object_survives_both_forms() {
        let mut node = Node::default();
        node.metadata_mut().name = "a".into();
        node.metadata_mut().labels.insert("k".into(), "v".into());
        for form in [ContentType::Protobuf, ContentType::Json] {
            let bytes = encode(&node, form);
            assert_eq!(type_of(&bytes, form).expect("typed"), ("v1".into(), "Node".into()));
            let back: Node = decode(bytes, form).expect("decodes");
            assert_eq!((back.name(), back.metadata().map(|m| m.labels.len())), ("a", Some(1)));
        }
    }

    /// Deleting for good was once sent without a body in JSON, and pods stayed.
    #[test]
    fn options_of_a_deletion_are_sent_in_json_too() {
        let options = DeleteOptions { grace_period_seconds: Some(0), ..DeleteOptions::default() };
        let body = encode_delete_options(&options, ContentType::Json);
        let value: serde_json::Value = serde_json::from_slice(&body).expect("it is JSON");
        assert_eq!(value["gracePeriodSeconds"], 0);
    }

    #[test]
    fn bytes_without_the_magic_are_refused() {
        assert!(matches!(
            decode::<Node>(Bytes::from_static(b"k9s\0"), ContentType::Protobuf),
            Err(ApiError::Malformed(_))
        ));
    }

    #[test]
    fn a_list_in_json_gives_its_items_and_version() {
        let text = br#"{"kind":"NodeList","apiVersion":"v1","metadata":{"resourceVersion":"7"},"items":[{"metadata":{"name":"a"}},{"metadata":{"name":"b"}}]}"#;
        let (meta, items) = decode_list::<Node>(Bytes::from_static(text), ContentType::Json).expect("decodes");
        assert_eq!(meta.resource_version, "7");
        assert_eq!(items.iter().map(Kind::name).collect::<Vec<_>>(), ["a", "b"]);
    }
}
