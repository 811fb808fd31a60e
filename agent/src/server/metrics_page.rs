//! Pages of metrics in the form that the scraper asks for.

use http::{HeaderMap, HeaderValue, Response, StatusCode, header};

use super::answers::{Answer, bare};
use crate::metrics::{Snapshot, page};

pub(super) fn answer(families: &[Snapshot], headers: &HeaderMap) -> Response<Answer> {
    let accept = headers.get(header::ACCEPT).and_then(|a| a.to_str().ok()).unwrap_or_default();
    let (body, form) = page::page(families, accept);
    let mut response = bare(StatusCode::OK, body);
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(form));
    response
}
