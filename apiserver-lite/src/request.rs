//! What a request asks for, read from its path and query: the input of authorization, audit and the handlers.

use serde_json::{Value, json};

/// Who asks. Filled by authentication, or by impersonation.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct User {
    pub name: String,
    pub uid: String,
    pub groups: Vec<String>,
    /// Sorted by key.
    pub extra: Vec<(String, Vec<String>)>,
}

impl User {
    /// One of the server's own parts; `system:masters` may do anything.
    pub fn system(name: &str) -> Self {
        User {
            name: name.into(),
            groups: vec!["system:masters".into(), "system:authenticated".into()],
            ..User::default()
        }
    }

    /// As UserInfo, the shape of reviews and audit events; what is empty is left out.
    pub fn to_value(&self) -> Value {
        let mut out = json!({});
        for (key, text) in [("username", &self.name), ("uid", &self.uid)] {
            if !text.is_empty() {
                out[key] = text.as_str().into();
            }
        }
        if !self.groups.is_empty() {
            out["groups"] = json!(self.groups);
        }
        for (key, values) in &self.extra {
            out["extra"][key] = json!(values);
        }
        out
    }

    pub fn in_group(&self, group: &str) -> bool {
        self.groups.iter().any(|g| g == group)
    }
}

/// Query parameters in order, decoded.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Query(Vec<(String, String)>);

impl Query {
    /// Reads what follows the `?`. Pairs that Go refuses (a `;`, a broken escape) are left out, as Go leaves them out.
    pub fn parse(text: &str) -> Self {
        let pairs = text.split('&').filter(|p| !p.is_empty() && !p.contains(';'));
        let pairs = pairs.map(|p| p.split_once('=').unwrap_or((p, "")));
        Query(pairs.filter_map(|(k, v)| Some((decode(k)?, decode(v)?))).collect())
    }

    /// The first value of a parameter.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.0.iter().find(|(k, _)| k == name).map(|(_, v)| v.as_str())
    }

    /// Every value of a parameter.
    pub fn all<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a str> {
        self.0.iter().filter(move |(k, _)| k == name).map(|(_, v)| v.as_str())
    }

    /// A boolean as upstream reads it: a parameter that is there is true unless it says `false` or `0`.
    pub fn flag(&self, name: &str) -> bool {
        self.get(name).is_some_and(|v| v != "0" && !v.eq_ignore_ascii_case("false"))
    }
}

fn decode(text: &str) -> Option<String> {
    if text.contains('+') { unescape(&text.replace('+', " ")) } else { unescape(text) }
}

/// Resolves `%xx`; None when an escape is broken.
fn unescape(text: &str) -> Option<String> {
    let mut out = Vec::with_capacity(text.len());
    let mut bytes = text.bytes();
    while let Some(byte) = bytes.next() {
        if byte == b'%' {
            let high = char::from(bytes.next()?).to_digit(16)?;
            let low = char::from(bytes.next()?).to_digit(16)?;
            out.push(u8::try_from(high * 16 + low).ok()?);
        } else {
            out.push(byte);
        }
    }
    Some(String::from_utf8_lossy(&out).into_owned())
}

/// Resolves `%xx`; text with a broken escape stays as it is.
pub fn percent(text: &str) -> String {
    unescape(text).unwrap_or_else(|| text.to_owned())
}

/// The parts of a path, after `k8s.io/apiserver/pkg/endpoints/request.RequestInfo`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RequestInfo {
    pub is_resource: bool,
    pub path: String,
    /// `get`, `list`, `watch`, `create`, `update`, `patch`, `delete`, `deletecollection`, or the lower-case HTTP method
    /// for paths that are no resource.
    pub verb: String,
    pub group: String,
    pub version: String,
    pub namespace: String,
    pub resource: String,
    pub subresource: String,
    pub name: String,
    /// The name is not in the path but a field selector's, which authorization treats alike.
    pub named_by_selector: bool,
    /// Path elements after the subresource, for the proxies.
    pub rest: Vec<String>,
    pub label_selector: String,
    pub field_selector: String,
}

impl RequestInfo {
    /// Reads the method, the path as sent (escapes in place) and the query.
    pub fn parse(method: &http::Method, path: &str, query: &Query) -> Self {
        let path = percent(path);
        // Escapes are resolved first: an escaped slash separates like a plain one, as upstream.
        let parts: Vec<&str> = path.trim_matches('/').split('/').collect();
        let info = RequestInfo::of_parts(method, &parts, query);
        RequestInfo { path, ..info }
    }

    fn of_parts(method: &http::Method, parts: &[&str], query: &Query) -> Self {
        let mut info = RequestInfo { verb: method.as_str().to_ascii_lowercase(), ..RequestInfo::default() };
        let (prefix, mut rest) = match parts.split_first() {
            Some((prefix, rest)) if parts.len() >= 3 => (*prefix, rest),
            _ => return info,
        };
        match prefix {
            "api" => {}
            "apis" if rest.len() >= 3 => {
                info.group = rest[0].into();
                rest = &rest[1..];
            }
            _ => return info,
        }
        info.is_resource = true;
        info.version = rest[0].into();
        rest = &rest[1..];
        info.verb = match *method {
            http::Method::POST => "create",
            http::Method::GET | http::Method::HEAD => "get",
            http::Method::PUT => "update",
            http::Method::PATCH => "patch",
            http::Method::DELETE => "delete",
            _ => "",
        }
        .into();
        if rest.len() > 1 && matches!(rest[0], "watch" | "proxy") {
            info.verb = rest[0].into();
            rest = &rest[1..];
        }
        if rest[0] == "namespaces" && rest.len() > 1 {
            info.namespace = rest[1].into();
            if rest.len() > 2 && !matches!(rest[2], "status" | "finalize") {
                rest = &rest[2..];
            }
        }
        info.resource = rest[0].into();
        if let Some(name) = rest.get(1) {
            info.name = (*name).into();
        }
        if let Some(subresource) = rest.get(2).filter(|_| info.verb != "proxy") {
            info.subresource = (*subresource).into();
            info.rest = rest[3..].iter().map(|&part| part.into()).collect();
        }
        info.selectors(query);
        info
    }

    fn selectors(&mut self, query: &Query) {
        if self.name.is_empty() {
            if self.verb == "get" {
                self.verb = if query.flag("watch") { "watch" } else { "list" }.into();
            } else if self.verb == "delete" {
                self.verb = "deletecollection".into();
            }
        }
        if !matches!(self.verb.as_str(), "list" | "watch" | "deletecollection") {
            return;
        }
        self.label_selector = query.get("labelSelector").unwrap_or_default().into();
        self.field_selector = query.get("fieldSelector").unwrap_or_default().into();
        // A selector for one name lets rules that list names apply.
        if self.name.is_empty()
            && let Some(name) = crate::read::exact_name(&self.field_selector)
        {
            self.name = name;
            self.named_by_selector = true;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::Method;

    fn info(method: Method, path: &str, query: &str) -> (String, String, String, String, String) {
        let info = RequestInfo::parse(&method, path, &Query::parse(query));
        (info.verb, info.namespace, info.resource, info.name, info.subresource)
    }

    fn parts(
        verb: &str,
        namespace: &str,
        resource: &str,
        name: &str,
        subresource: &str,
    ) -> (String, String, String, String, String) {
        (verb.into(), namespace.into(), resource.into(), name.into(), subresource.into())
    }

    #[test]
    fn paths_name_verbs_and_resources() {
        assert_eq!(info(Method::GET, "/api/v1/pods", ""), parts("list", "", "pods", "", ""));
        assert_eq!(info(Method::GET, "/api/v1/pods", "watch=1"), parts("watch", "", "pods", "", ""));
        assert_eq!(info(Method::GET, "/api/v1/namespaces/a/pods/b/log", ""), parts("get", "a", "pods", "b", "log"));
        assert_eq!(
            info(Method::PUT, "/api/v1/namespaces/a/status", ""),
            parts("update", "a", "namespaces", "a", "status")
        );
        assert_eq!(info(Method::GET, "/api/v1/namespaces/a", ""), parts("get", "a", "namespaces", "a", ""));
        assert_eq!(
            info(Method::DELETE, "/apis/apps/v1/namespaces/a/deployments", ""),
            parts("deletecollection", "a", "deployments", "", "")
        );
        assert!(!RequestInfo::parse(&Method::GET, "/apis/apps/v1", &Query::default()).is_resource);
        let one = RequestInfo::parse(&Method::GET, "/api/v1/pods", &Query::parse("fieldSelector=metadata.name%3Da"));
        assert_eq!((one.verb.as_str(), one.name.as_str()), ("list", "a"));
    }
}
