//! The forms of answers: plain text and JSON.

use bytes::Bytes;
use http::{HeaderValue, Method, Response, StatusCode, header};

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
