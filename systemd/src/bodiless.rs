//! Answers to `HEAD` over HTTP/2, which have no body.
//!
//! The HTTP library leaves it out over HTTP/1.1 by itself. Over HTTP/2 it sends what it is given, and clients take the
//! stream for broken: they hear not even the status.

use http::header::CONTENT_LENGTH;
use http::{HeaderValue, Method, Request, Response, Version};
use http_body::Body;

/// Whether the server has to leave out the body of the answer.
pub fn concerns<B>(request: &Request<B>) -> bool {
    *request.method() == Method::HEAD && request.version() == Version::HTTP_2
}

/// The answer with `empty` in place of its body, of which the length stays, where it is known.
pub fn answer<B: Body>(whole: Response<B>, empty: B) -> Response<B> {
    let length = whole.body().size_hint().exact();
    let mut bare = whole.map(|_| empty);
    if let Some(length) = length.filter(|length| *length > 0) {
        bare.headers_mut().entry(CONTENT_LENGTH).or_insert_with(|| HeaderValue::from(length));
    }
    bare
}

#[cfg(test)]
mod tests {
    use super::*;
    use http_body_util::Full;

    /// The body used to be sent, and clients reset the stream.
    #[test]
    fn the_length_stays_and_the_body_goes() {
        let of = |method: Method, version: Version| {
            let mut request = Request::new(());
            (*request.method_mut(), *request.version_mut()) = (method, version);
            concerns(&request)
        };
        assert!(of(Method::HEAD, Version::HTTP_2));
        assert!(!of(Method::GET, Version::HTTP_2) && !of(Method::HEAD, Version::HTTP_11));
        let full = |text: &'static str| Full::new(text.as_bytes());
        let bare = answer(Response::new(full("ok")), full(""));
        assert_eq!(bare.headers()[CONTENT_LENGTH], "2");
        assert!(bare.body().is_end_stream());
        assert!(answer(Response::new(full("")), full("")).headers().is_empty());
    }
}
