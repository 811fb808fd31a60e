//! Lists of whole objects: a head, what is stored, and a tail.
//!
//! Such a list may be many megabytes. It is put together while the client takes it, so a slow client costs references to
//! the objects and no copy of them, and the memory of one chunk serves the next. How long it will be is known before,
//! because stored encodings are taken as they are. Objects that are stored in another version than they are served in
//! have to be converted first; their lists are made at once.

use http::header::HeaderValue;
use serde_json::Value;

use super::{Page, convert, form, is_stored_form};
use crate::http::{Accepted, Body, Media, Pieces, Response, respond};
use crate::resource::Resource;
use crate::server::{ApiServer, Request};
use crate::store::ObjectRef;

/// A page as a list in JSON, YAML or protobuf.
pub(super) async fn list(accepted: Accepted, resource: &Resource, page: &Page, metadata: &Value) -> Response {
    if accepted.media == Media::Protobuf && !resource.custom {
        return protobuf(resource, page, metadata);
    }
    let one_piece = accepted.pretty || accepted.media == Media::Yaml;
    let Frame { head, mut tail } = Frame::new(resource, metadata);
    if !one_piece {
        tail.push(b'\n');
    }
    let body = match page.objects.iter().all(|object| is_stored_form(resource, object)) {
        true => Body::Pieces(stored(head, page.objects.clone(), tail, resource.custom)),
        false => converted(head, resource, page, &tail).await.into(),
    };
    if one_piece {
        let all: Vec<u8> = match body.whole() {
            Body::Chunks(chunks) => chunks.into_iter().flatten().collect(),
            _ => Vec::new(),
        };
        return respond::json_bytes(200, accepted, all.into());
    }
    respond::with_type(200, Media::Json.name(), body)
}

/// What stands before and after the items.
struct Frame {
    head: Vec<u8>,
    tail: Vec<u8>,
}

impl Frame {
    fn new(resource: &Resource, metadata: &Value) -> Self {
        let named = |out: &mut Vec<u8>, key: &str, text: &str| {
            out.extend_from_slice(format!("\"{key}\":\"{text}\"").as_bytes());
        };
        let (mut head, mut tail) = (vec![b'{'], vec![b']']);
        if resource.custom {
            // Lists of unstructured objects have their keys in order, and spell an empty token out.
            let mut metadata = metadata.clone();
            if metadata["continue"].is_null() {
                metadata["continue"] = "".into();
            }
            named(&mut head, "apiVersion", &resource.api_version());
            tail.push(b',');
            named(&mut tail, "kind", &resource.list_kind);
            tail.extend_from_slice(b",\"metadata\":");
            proto::json::write_sorted(&metadata, &mut tail);
        } else {
            named(&mut head, "kind", &resource.list_kind);
            head.push(b',');
            named(&mut head, "apiVersion", &resource.api_version());
            head.extend_from_slice(b",\"metadata\":");
            form::write_list_meta(metadata, &mut head);
        }
        head.extend_from_slice(b",\"items\":[");
        tail.push(b'}');
        Frame { head, tail }
    }
}

/// A list of objects as they are stored. Items of built-in lists have no kind and version of their own.
fn stored(head: Vec<u8>, objects: Vec<ObjectRef>, tail: Vec<u8>, typed: bool) -> Pieces {
    let item = |object: &ObjectRef| if typed { object.json.len() } else { form::item_length(object) };
    let commas = objects.len().saturating_sub(1);
    let length = head.len() + objects.iter().map(item).sum::<usize>() + commas + tail.len();
    let (mut next, mut objects) = (Some(head), objects.into_iter());
    let mut first = true;
    Pieces::new(Some(length), move |out| {
        if let Some(head) = next.take() {
            out.extend_from_slice(&head);
            return true;
        }
        let Some(object) = objects.next() else {
            out.extend_from_slice(&tail);
            return false;
        };
        if !std::mem::take(&mut first) {
            out.push(b',');
        }
        match typed {
            true => object.json.append_from(0, out),
            false => form::append_item(&object, out),
        }
        true
    })
}

/// Objects that are converted before others get their turn.
const AT_ONCE: usize = 64;

/// A list some of whose objects have to be brought into another version first.
async fn converted(mut out: Vec<u8>, resource: &Resource, page: &Page, tail: &[u8]) -> Vec<u8> {
    for (index, object) in page.objects.iter().enumerate() {
        if index > 0 {
            out.push(b',');
        }
        if index % AT_ONCE == AT_ONCE - 1 {
            tokio::task::yield_now().await;
        }
        if is_stored_form(resource, object) {
            match resource.custom {
                true => object.json.append_from(0, &mut out),
                false => form::append_item(object, &mut out),
            }
            continue;
        }
        if let Some(definition) = &resource.definition {
            definition.append(resource, object, &mut out);
            continue;
        }
        let mut value = convert(resource, object.value());
        form::strip_type(&mut value);
        proto::json::write(resource.schema.set(), resource.schema.id, &value, &mut out);
    }
    out.extend_from_slice(tail);
    out
}

/// An item of a list in protobuf.
enum Item {
    /// As it is stored. The message is made once and kept with the object, so what is gathered here is a reference.
    Stored(ObjectRef),
    /// Made of an object that is stored in another version.
    Made(Vec<u8>),
}

fn protobuf(resource: &Resource, page: &Page, metadata: &Value) -> Response {
    let item = |object: &ObjectRef| {
        if is_stored_form(resource, object) {
            return (object.message(&resource.stored).len(), Item::Stored(object.clone()));
        }
        let mut out = Vec::new();
        let value = convert(resource, object.value());
        proto::protobuf::encode(resource.schema.set(), resource.schema.id, &value, &mut out);
        (out.len(), Item::Made(out))
    };
    let items: Vec<(usize, Item)> = page.objects.iter().map(item).collect();
    let mut meta = Vec::new();
    let set = proto::schema::TypeSet::built_in();
    if let Some(id) = set.struct_named("k8s.io.apimachinery.pkg.apis.meta.v1.ListMeta") {
        proto::protobuf::encode(set, id, metadata, &mut meta);
    }
    let lengths = items.iter().map(|(length, _)| *length);
    let (before, behind) =
        proto::protobuf::list_frame(&resource.api_version(), &resource.list_kind, &meta, lengths.clone());
    let length = before.len() + lengths.map(proto::protobuf::item_length).sum::<usize>() + behind.len();
    let (mut before, mut items, stored) = (Some(before), items.into_iter(), resource.stored.clone());
    let pieces = Pieces::new(Some(length), move |out| {
        if let Some(before) = before.take() {
            out.extend_from_slice(&before);
            return true;
        }
        let Some((length, item)) = items.next() else {
            out.extend_from_slice(&behind);
            return false;
        };
        proto::protobuf::begin_item(length, out);
        match item {
            Item::Stored(object) => object.message(&stored).append_from(0, out),
            Item::Made(message) => out.extend_from_slice(&message),
        }
        true
    });
    respond::with_type(200, Media::Protobuf.name(), Body::Pieces(pieces))
}

/// Bodies above this size are compressed for clients that ask, as upstream does.
const GZIP_FROM: usize = 128 << 10;

/// Compresses a long answer with objects for a client that takes it so.
pub(super) fn gzip(server: &ApiServer, request: &Request, response: &mut Response) {
    if response.body().len() <= GZIP_FROM || !server.config.compresses {
        return;
    }
    let encodings = request.header(&http::header::ACCEPT_ENCODING);
    if !encodings.split(',').any(|e| e.trim() == "gzip") {
        return;
    }
    respond::gzip(response);
    response.headers_mut().insert(http::header::VARY, HeaderValue::from_static("Accept-Encoding"));
}
