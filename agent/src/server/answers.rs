//! The forms of answers: plain text, JSON, lists of pods.

use std::sync::Arc;

use bytes::Bytes;
use http::{HeaderValue, Method, Response, StatusCode, header};
use prost::Message;
use proto::api::core::v1::Pod;
use proto::schema::TypeSet;

use super::listen::full;

/// The body of an answer.
pub type Answer = http_body_util::combinators::UnsyncBoxBody<Bytes, Box<dyn std::error::Error + Send + Sync>>;

/// Plain text as Go's `http.Error` writes it, without the final newline.
pub fn text(code: StatusCode, body: impl Into<String>) -> Response<Answer> {
    let mut response = Response::new(full(body.into()));
    *response.status_mut() = code;
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    response
}

/// Text with a `Content-Type` alone, as the kubelet's own handlers write it.
pub fn plain(code: StatusCode, body: impl Into<String>) -> Response<Answer> {
    let mut response = text(code, body);
    response.headers_mut().remove(header::X_CONTENT_TYPE_OPTIONS);
    response
}

/// A body without any word of its type.
pub fn bare(code: StatusCode, body: impl Into<Bytes>) -> Response<Answer> {
    let mut response = Response::new(full(body));
    *response.status_mut() = code;
    response
}

/// Points elsewhere as Go's `http.Redirect` does, with a page for those who read it.
pub fn redirect(code: StatusCode, place: &str, method: &Method) -> Response<Answer> {
    let Ok(location) = HeaderValue::from_str(place) else {
        return text(StatusCode::BAD_REQUEST, "400 Bad Request\n");
    };
    let shown = place.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&#34;");
    let shown = shown.replace('\'', "&#39;");
    let reads = matches!(*method, Method::GET | Method::HEAD);
    let page = match reads {
        true => format!("<a href=\"{shown}\">{}</a>.\n\n", code.canonical_reason().unwrap_or_default()),
        false => String::new(),
    };
    let mut response = bare(code, page);
    response.headers_mut().insert(header::LOCATION, location);
    if reads {
        let html = HeaderValue::from_static("text/html; charset=utf-8");
        response.headers_mut().insert(header::CONTENT_TYPE, html);
    }
    response
}

pub fn json(body: Vec<u8>) -> Response<Answer> {
    let mut response = Response::new(full(body));
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

/// A `v1.PodList` in JSON.
pub fn pod_list<'a>(pods: impl Iterator<Item = &'a Arc<Pod>>) -> Vec<u8> {
    let set = TypeSet::built_in();
    let mut out = br#"{"kind":"PodList","apiVersion":"v1","metadata":{},"items":["#.to_vec();
    if let Some(id) = set.kind("", "v1", "Pod") {
        let mut first = true;
        for pod in pods {
            // The types come from the same declarations as the schema, so this always decodes.
            let Ok(tree) = proto::protobuf::decode(set, id, &pod.encode_to_vec()) else { continue };
            if !std::mem::take(&mut first) {
                out.push(b',');
            }
            proto::json::write(set, id, &tree, &mut out);
        }
    }
    out.extend_from_slice(b"]}\n");
    out
}
