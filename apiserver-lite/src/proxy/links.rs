//! Links of a proxied server to itself: where it sends a client, and what its pages point to. They are led back through the
//! proxy, as the server does not know that it is behind one.
//!
//! Followed: apimachinery `util/proxy` (`Transport`).

use http::header::{HeaderMap, HeaderValue, LOCATION};

use super::Target;
use super::target::beyond;
use crate::go_url::{self, Url};
use crate::server::Request;

const FORWARDED_URI: &str = "x-forwarded-uri";
/// What a server allows other sites is not for it to allow here.
const CORS: [&str; 4] = [
    "access-control-allow-credentials",
    "access-control-allow-headers",
    "access-control-allow-methods",
    "access-control-allow-origin",
];

/// How a link has to be written to lead through the proxy.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Links {
    /// The path of the proxy, in front of the server's own paths.
    prefix: String,
    /// The server's own host, as we call it.
    server: String,
    /// The host that the client asked, which the server has been told.
    asked: String,
}

impl Links {
    /// None where an answer is passed on as it is.
    pub fn of(request: &Request, target: &Target, asked: &str) -> Option<Self> {
        let info = &request.info;
        if info.subresource != "proxy" {
            return None;
        }
        let namespace =
            if info.namespace.is_empty() { String::new() } else { format!("namespaces/{}/", info.namespace) };
        let prefix = format!("/api/v1/{namespace}{}/{}/proxy", info.resource, info.name);
        Some(Links { prefix, server: target.authority(), asked: asked.to_owned() })
    }

    /// Where a client goes that asks for the proxy alone: to the server's root, from where relative links lead on. None for
    /// whoever asks for more, or does not just read.
    pub fn root(request: &Request) -> Option<String> {
        let reads = matches!(request.method, http::Method::GET | http::Method::HEAD);
        if !reads || request.info.subresource != "proxy" || !beyond(request).is_empty() {
            return None;
        }
        let query = request.uri.query().filter(|query| !query.is_empty());
        Some(format!("{}/{}", request.uri.path(), query.map_or_else(String::new, |query| format!("?{query}"))))
    }

    /// Tells the server by which path it was asked. `path` is its own, with the query.
    pub fn tell(&self, path: &str, headers: &mut HeaderMap) {
        let path = path.split('?').next().unwrap_or_default();
        let uri = joined(&self.prefix, &go_url::decoded_path(path).unwrap_or_else(|| path.to_owned()));
        match HeaderValue::from_bytes(uri.as_bytes()) {
            Ok(value) => drop(headers.insert(FORWARDED_URI, value)),
            // Nor is the client's own word the truth.
            Err(_) => drop(headers.remove(FORWARDED_URI)),
        }
    }

    /// Mends the head of an answer.
    pub fn mend(&self, headers: &mut HeaderMap) {
        CORS.iter().for_each(|name| drop(headers.remove(*name)));
        let place = headers.get(LOCATION).and_then(|place| place.to_str().ok()).filter(|place| !place.is_empty());
        if let Some(Ok(place)) = place.map(|place| HeaderValue::from_str(&self.led(place))) {
            headers.insert(LOCATION, place);
        }
    }

    /// The link that leads to the same place through the proxy. Relative links do so anyway, those to other servers need not,
    /// and what is no link stays what it is.
    pub fn led(&self, link: &str) -> String {
        let Ok(url) = Url::parse(link) else { return link.to_owned() };
        let elsewhere = !url.host.is_empty() && url.host != self.server && url.host != self.asked;
        if elsewhere || !url.path.starts_with('/') {
            return link.to_owned();
        }
        let mut out = String::new();
        // The client's own name for this place is good as it is.
        if !url.host.is_empty() && url.host == self.asked {
            if !url.scheme.is_empty() {
                out.push_str(&format!("{}:", url.scheme));
            }
            out.push_str(&format!("//{}{}", url.user.map_or_else(String::new, |user| format!("{user}@")), url.host));
        }
        match url.path.starts_with(&self.prefix) {
            true => out.push_str(&url.path),
            false => out.push_str(&joined(&self.prefix, &url.path)),
        }
        if !url.query.is_empty() {
            out.push_str(&format!("?{}", url.query));
        }
        if let Some((_, fragment)) = link.split_once('#').filter(|(_, fragment)| !fragment.is_empty()) {
            out.push_str(&format!("#{fragment}"));
        }
        out
    }
}

/// Both paths as one in its shortest form; a slash at the end stays.
fn joined(prefix: &str, path: &str) -> String {
    let mut kept: Vec<&str> = Vec::new();
    for segment in prefix.split('/').chain(path.split('/')) {
        match segment {
            "" | "." => {}
            ".." => drop(kept.pop()),
            name => kept.push(name),
        }
    }
    let slash = if path.ends_with('/') && !kept.is_empty() { "/" } else { "" };
    format!("/{}{slash}", kept.join("/"))
}

#[cfg(test)]
mod tests {
    use http::header::HeaderName;

    use super::*;

    fn links() -> Links {
        Links {
            prefix: "/api/v1/namespaces/n/pods/p/proxy".into(),
            server: "10.0.0.1:80".into(),
            asked: "api:6443".into(),
        }
    }

    #[test]
    fn links_to_the_server_itself_lead_through_the_proxy() {
        const HERE: &str = "/api/v1/namespaces/n/pods/p/proxy";
        let links = links();
        for (link, after) in [
            ("/login?next=%2F#top", "/login?next=%2F#top"),
            ("/", "/"),
            ("/a/../b//c/", "/b/c/"),
            ("http://10.0.0.1:80/x", "/x"),
            ("//10.0.0.1:80/x", "/x"),
            ("/a%20b", "/a%20b"),
        ] {
            assert_eq!(links.led(link), format!("{HERE}{after}"), "{link}");
        }
        // The client's own name for this server stays.
        assert_eq!(links.led("https://api:6443/x/"), format!("https://api:6443{HERE}/x/"));
        let through = format!("{HERE}/x");
        assert_eq!(links.led(&through), through);
        for other in [
            "x/y",
            "../x",
            "",
            "?a=b",
            "#top",
            "http://10.0.0.1/x",
            "https://example.com/x",
            "http://10.0.0.1:80",
            "mailto:a@b",
            "http://[::1",
        ] {
            assert_eq!(links.led(other), other);
        }
    }

    #[test]
    fn the_server_is_told_the_whole_path_and_its_word_for_other_sites_is_dropped() {
        let mut headers =
            HeaderMap::from_iter([(HeaderName::from_static(FORWARDED_URI), HeaderValue::from_static("/lies"))]);
        let mut told = |path: &str| {
            links().tell(path, &mut headers);
            headers.get(FORWARDED_URI).map(|value| String::from_utf8_lossy(value.as_bytes()).into_owned())
        };
        let uri = |rest: &str| Some(format!("/api/v1/namespaces/n/pods/p/proxy{rest}"));
        assert_eq!(told("/a%20b/./c?d=e"), uri("/a b/c"));
        assert_eq!(told("/a/?b"), uri("/a/"));
        assert_eq!(told("/a%0Ab"), None);
        let mut headers = HeaderMap::from_iter([
            (LOCATION, HeaderValue::from_static("/x")),
            (HeaderName::from_static("access-control-allow-origin"), HeaderValue::from_static("*")),
        ]);
        links().mend(&mut headers);
        let mended =
            HeaderMap::from_iter([(LOCATION, HeaderValue::from_static("/api/v1/namespaces/n/pods/p/proxy/x"))]);
        assert_eq!(headers, mended);
    }
}
