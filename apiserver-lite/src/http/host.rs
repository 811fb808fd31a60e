//! The `Host` of a request over HTTP/1.1, which Go's server asks for before anybody looks at the rest.

use http::header::{CONNECTION, HOST, HeaderValue};
use http::{Method, Request, Version};
use hyper::ext::ReasonPhrase;

use super::body::{Body, Response};
use super::respond::with_type;

/// Bytes that may be in a host and port besides letters and digits.
const OTHERS: &[u8] = b"!$%&'()*+,-.:;=[]_~";

/// The answer to a request without the one good host; none for others.
pub fn refuse<T>(request: &Request<T>) -> Option<Response> {
    let asked = request.version() == Version::HTTP_11 && request.method() != Method::CONNECT;
    let mut hosts = request.headers().get_all(HOST).into_iter();
    let why = match (hosts.next(), hosts.next()) {
        (None, _) if asked => "400 Bad Request: missing required Host header",
        (Some(_), Some(_)) => "400 Bad Request: too many Host headers",
        (Some(host), None) if !is_valid(host) => "400 Bad Request: malformed Host header",
        _ => return None,
    };
    let mut response =
        with_type(400, "text/plain; charset=utf-8", Body::from(bytes::Bytes::from_static(why.as_bytes())));
    response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
    if request.version() < Version::HTTP_2 {
        response.extensions_mut().insert(ReasonPhrase::from_static(&why.as_bytes()[4..]));
    } else {
        response.headers_mut().remove(CONNECTION);
    }
    Some(response)
}

fn is_valid(host: &HeaderValue) -> bool {
    host.as_bytes().iter().all(|byte| byte.is_ascii_alphanumeric() || OTHERS.contains(byte))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(version: Version, method: Method, hosts: &[&str]) -> Option<String> {
        let mut request = Request::builder().version(version).method(method).uri("/");
        for host in hosts {
            request = request.header(HOST, *host);
        }
        let response = refuse(&request.body(()).expect("a request"))?;
        let phrase = response.extensions().get::<ReasonPhrase>().expect("a reason").as_bytes().to_vec();
        Some(String::from_utf8(phrase).expect("text"))
    }

    #[test]
    fn a_request_has_one_good_host() {
        let of = |hosts: &[&str]| told(Version::HTTP_11, Method::GET, hosts);
        assert_eq!(of(&["[::1]:6443"]), None);
        assert_eq!(of(&[""]), None, "it is there");
        assert_eq!(of(&[]).as_deref(), Some("Bad Request: missing required Host header"));
        assert_eq!(of(&["a", "a"]).as_deref(), Some("Bad Request: too many Host headers"));
        assert_eq!(of(&["a/b"]).as_deref(), Some("Bad Request: malformed Host header"));
        assert_eq!(told(Version::HTTP_10, Method::GET, &[]), None);
        assert_eq!(told(Version::HTTP_11, Method::CONNECT, &[]), None);
        assert_eq!(told(Version::HTTP_2, Method::GET, &[]), None, "it has an authority");
    }
}
