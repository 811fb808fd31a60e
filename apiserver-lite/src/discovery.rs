//! Discovery: which groups, versions and resources are served, one document each or all in one.

use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use http::header::{CACHE_CONTROL, ETAG, HeaderValue, IF_NONE_MATCH, VARY};
use proto::schema::TypeSet;
use ring::digest::{SHA256, SHA512, digest};
use serde_json::{Value, json};

use crate::aggregate::Remote;
use crate::http::{Accepted, Media, Response, respond, route_accepts};
use crate::openid;
use crate::resource::{Resource, Set, Subresource};
use crate::server::{ApiServer, Request, wrong_method};
use crate::status::ApiError;

/// All that is served: here, and by the servers of aggregated APIs.
struct View<'a> {
    set: &'a Set,
    remotes: &'a [Arc<Remote>],
}

impl View<'_> {
    /// Groups in order, the core group first.
    fn groups(&self) -> Vec<&str> {
        let mut out = self.set.groups();
        let mut others: Vec<&Arc<Remote>> = self.remotes.iter().collect();
        others.sort_by_key(|r| -r.group_priority);
        for remote in others {
            if out.contains(&remote.group.as_str()) {
                continue;
            }
            let before = out.iter().position(|g| crate::bootstrap::priority(g) < remote.group_priority);
            out.insert(before.unwrap_or(out.len()), &remote.group);
        }
        out
    }

    /// Versions of a group in order of preference; empty for a group that is not served.
    fn versions(&self, group: &str) -> Vec<&str> {
        let mut out = self.set.versions(group);
        let mut others: Vec<&Arc<Remote>> = self.remotes.iter().filter(|r| r.group == group).collect();
        others.sort_by_key(|r| -r.version_priority);
        for remote in others {
            if !out.contains(&remote.version.as_str()) {
                out.push(&remote.version);
            }
        }
        out
    }

    fn remote(&self, group: &str, version: &str) -> Option<&Remote> {
        self.remotes.iter().find(|r| r.group == group && r.version == version).map(|r| &**r)
    }
}

/// Answers the paths of this module; None for others.
pub fn answer(server: &ApiServer, request: &Request) -> Option<Response> {
    let current = server.resources.current();
    let remotes = server.aggregated.all();
    let set = View { set: &current, remotes: &remotes };
    let path = request.info.path.as_str();
    if is_index(path) {
        let pretty = Accepted { pretty: true, ..Accepted::JSON };
        return Some(respond::json_bytes(200, pretty, text(&root_paths(&set))));
    }
    let parts: Vec<&str> = path.trim_end_matches('/').split('/').skip(1).collect();
    let document = match parts.as_slice() {
        ["api"] => legacy_versions(server),
        ["apis"] => groups(&set),
        ["api", "v1"] => resources(set.set, "", "v1"),
        ["apis", group] if !set.versions(group).is_empty() && !group.is_empty() => group_document(&set, group),
        ["apis", group, version] if set.versions(group).contains(version) && !group.is_empty() => {
            resources(set.set, group, version)
        }
        ["api", _] => return Some(failure(request, &unknown())),
        // Groups of custom resources and of other servers have nothing behind the router that could miss a version.
        ["apis", group, _] if !group.is_empty() && set.set.all().iter().any(|r| !r.custom && *r.group == **group) => {
            return Some(failure(request, &unknown()));
        }
        _ => return None,
    };
    let accept = request.accept();
    if is_route(&parts, set.set) {
        let routed =
            if request.method == http::Method::GET { route_accepts(&accept, false) } else { Err(wrong_method()) };
        if let Err(error) = routed {
            return Some(failure(request, &error));
        }
    }
    if matches!(parts.as_slice(), ["api"] | ["apis"])
        && let Some(media) = crate::http::aggregated(&accept)
    {
        let known = request.headers.get(IF_NONE_MATCH).map(HeaderValue::as_bytes);
        return Some(aggregated_document(&set, parts[0] == "api", media, known));
    }
    let kind = document["kind"].as_str().unwrap_or_default().to_owned();
    Some(match request.accepted(false) {
        Ok(accepted) => respond::built_in(200, accepted, ("", "v1", &kind), &document),
        Err(error) => failure(request, &error),
    })
}

fn failure(request: &Request, error: &ApiError) -> Response {
    respond::error(error, request.for_error())
}

/// Whether a path is that of the list of paths, which answers any method.
fn is_index(path: &str) -> bool {
    matches!(path, "/" | "/index.html")
}

/// Whether a document lies behind the router, which knows methods and media types. Upstream its other documents have
/// handlers of their own that look at neither: the lists of groups, and whatever is told of custom resources.
fn is_route(parts: &[&str], set: &Set) -> bool {
    match parts {
        ["apis"] => false,
        ["apis", group] => *group == "apiregistration.k8s.io",
        ["apis", group, version] => {
            set.all().iter().any(|r| !r.custom && *r.group == **group && *r.version == **version)
        }
        _ => true,
    }
}

fn unknown() -> ApiError {
    crate::server::unknown_path()
}

fn text(value: &Value) -> bytes::Bytes {
    let mut out = Vec::new();
    proto::json::write_sorted(value, &mut out);
    out.into()
}

fn root_paths(set: &View<'_>) -> Value {
    let mut paths = vec!["/api".to_owned(), "/api/v1".into(), "/apis".into(), "/apis/".into()];
    for group in set.groups().into_iter().filter(|g| !g.is_empty()) {
        paths.push(format!("/apis/{group}"));
        paths.extend(set.versions(group).into_iter().map(|v| format!("/apis/{group}/{v}")));
    }
    const OTHERS: [&str; 13] = [
        openid::CONFIGURATION,
        "/flagz",
        "/healthz",
        "/livez",
        "/metrics",
        "/metrics/slis",
        "/openapi/v2",
        "/openapi/v3",
        "/openapi/v3/",
        openid::KEYS,
        "/readyz",
        "/statusz",
        "/version",
    ];
    paths.extend(OTHERS.map(Into::into));
    paths.sort();
    json!({"paths": paths})
}

fn legacy_versions(server: &ApiServer) -> Value {
    json!({"kind": "APIVersions", "versions": ["v1"],
        "serverAddressByClientCIDRs": [{"clientCIDR": "0.0.0.0/0", "serverAddress": server.config.advertised}]})
}

fn group_value(set: &View<'_>, group: &str) -> Value {
    let versions: Vec<Value> = set
        .versions(group)
        .into_iter()
        .map(|v| json!({"groupVersion": format!("{group}/{v}"), "version": v}))
        .collect();
    json!({"name": group, "versions": versions, "preferredVersion": versions.first()})
}

fn group_document(set: &View<'_>, group: &str) -> Value {
    let mut document = group_value(set, group);
    document["kind"] = "APIGroup".into();
    document["apiVersion"] = "v1".into();
    document
}

fn groups(set: &View<'_>) -> Value {
    let groups: Vec<Value> = set.groups().into_iter().filter(|g| !g.is_empty()).map(|g| group_value(set, g)).collect();
    json!({"kind": "APIGroupList", "apiVersion": "v1", "groups": groups})
}

fn resources(set: &Set, group: &str, version: &str) -> Value {
    let mut list: Vec<Value> = Vec::new();
    for resource in set.all().iter().filter(|r| *r.group == *group && *r.version == *version) {
        let mut entry = json!({
            "name": resource.plural, "singularName": resource.singular, "namespaced": resource.namespaced,
            "kind": resource.kind, "verbs": verbs(resource),
        });
        if !resource.short_names.is_empty() {
            entry["shortNames"] = json!(resource.short_names);
        }
        if !resource.categories.is_empty() {
            entry["categories"] = json!(resource.categories);
        }
        if let Some(hash) = storage_hash(resource) {
            entry["storageVersionHash"] = hash.into();
        }
        list.push(entry);
        list.extend(resource.subresources.iter().map(|s| subresource(resource, s)));
    }
    // Built-in ones stand in the order of their paths. A custom one has its status before its scale, as its definition.
    let custom = set.all().iter().any(|r| r.custom && *r.group == *group);
    let place = |entry: &Value| {
        let name = entry["name"].as_str().unwrap_or_default();
        if custom { name.split('/').next().unwrap_or_default().to_owned() } else { name.to_owned() }
    };
    list.sort_by_key(place);
    let group_version = if group.is_empty() { version.to_owned() } else { format!("{group}/{version}") };
    let mut document = json!({"kind": "APIResourceList", "groupVersion": group_version, "resources": list});
    if !group.is_empty() {
        document["apiVersion"] = "v1".into();
    }
    document
}

/// What upstream 1.36 still keeps in an older version than is served; the hash tells clients of that.
const STORED_OLDER: [(&str, &str, &str); 4] = [
    ("admissionregistration.k8s.io", "mutatingadmissionpolicies", "v1beta1"),
    ("admissionregistration.k8s.io", "mutatingadmissionpolicybindings", "v1beta1"),
    ("apiextensions.k8s.io", "customresourcedefinitions", "v1beta1"),
    ("resource.k8s.io", "devicetaintrules", "v1alpha3"),
];

/// Kinds that are only answered, never stored, have no hash.
fn storage_hash(resource: &Resource) -> Option<String> {
    if !resource.verbs.contains(crate::resource::Verbs::WATCH) {
        return None;
    }
    let (group, own) = resource.storage_version.rsplit_once('/').unwrap_or(("", &resource.storage_version));
    let older = STORED_OLDER.iter().find(|(of, plural, _)| (*of, *plural) == (group, &*resource.plural));
    let version = older.map_or(own, |(_, _, version)| version);
    let sum = digest(&SHA256, format!("{group}/{version}/{}", resource.kind).as_bytes());
    Some(BASE64.encode(&sum.as_ref()[..8]))
}

/// Custom resources tell their verbs in another order.
fn verbs(resource: &Resource) -> Vec<&'static str> {
    match &resource.definition {
        Some(definition) if definition.terminating => vec!["delete", "deletecollection", "get", "list", "watch"],
        Some(_) => vec!["delete", "deletecollection", "get", "list", "patch", "create", "update", "watch"],
        None => resource.verbs.names().collect(),
    }
}

fn subresource(resource: &Resource, sub: &Subresource) -> Value {
    let mut entry = json!({
        "name": format!("{}/{}", resource.plural, sub.name), "singularName": "", "namespaced": resource.namespaced,
        "kind": sub.kind, "verbs": sub.verbs.names().collect::<Vec<_>>(),
    });
    if !sub.version.is_empty() {
        entry["group"] = json!(sub.group);
        entry["version"] = json!(sub.version);
    }
    entry
}

/// The document of all groups, or of the core one, for a client that has got the version `known` of it.
fn aggregated_document(set: &View<'_>, core: bool, media: Media, known: Option<&[u8]>) -> Response {
    let groups = set.groups().into_iter().filter(|g| g.is_empty() == core);
    let items: Vec<Value> = groups.map(|g| aggregated_group(set, g)).collect();
    let document = json!({"kind": "APIGroupDiscoveryList", "apiVersion": "apidiscovery.k8s.io/v2", "metadata": {}, "items": items});
    // In every form it has the same tag: caches are told of the form by `Vary`.
    let json = text(&document);
    let hash = digest(&SHA512, &json);
    let tag = format!("\"{}\"", hash.as_ref().iter().map(|b| format!("{b:02X}")).collect::<String>());
    let mut response = if known == Some(tag.as_bytes()) {
        let mut response = Response::new(crate::http::Body::empty());
        *response.status_mut() = http::StatusCode::NOT_MODIFIED;
        response
    } else {
        in_form(media, &document, json)
    };
    let headers = response.headers_mut();
    if let Ok(tag) = HeaderValue::from_str(&tag) {
        headers.insert(ETAG, tag);
    }
    headers.insert(VARY, HeaderValue::from_static("Accept"));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("public"));
    response
}

/// The aggregated document, whose JSON is known, as a media type whose name tells what is in it.
fn in_form(media: Media, document: &Value, json: bytes::Bytes) -> Response {
    const TYPE: &str = "k8s.io.api.apidiscovery.v2.APIGroupDiscoveryList";
    let set = TypeSet::built_in();
    let mut response = match (media, set.struct_named(TYPE)) {
        (Media::Protobuf, Some(id)) => {
            let (version, kind) = ("apidiscovery.k8s.io/v2", "APIGroupDiscoveryList");
            let body = proto::protobuf::encode_enveloped(set, id, document, version, kind);
            respond::bytes(200, media.name(), body)
        }
        _ => respond::json_bytes(200, Accepted { media, ..Accepted::JSON }, json),
    };
    let told = format!("{};g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList", media.name());
    if let Ok(told) = HeaderValue::from_str(&told) {
        response.headers_mut().insert(http::header::CONTENT_TYPE, told);
    }
    response
}

fn aggregated_group(set: &View<'_>, group: &str) -> Value {
    let versions: Vec<Value> = set
        .versions(group)
        .into_iter()
        .map(|version| {
            if let Some(remote) = set.remote(group, version) {
                return remote_version(remote);
            }
            let mut resources: Vec<&std::sync::Arc<Resource>> =
                set.set.all().iter().filter(|r| *r.group == *group && *r.version == *version).collect();
            resources.sort_by(|a, b| a.plural.cmp(&b.plural));
            let resources: Vec<Value> = resources.into_iter().map(|r| aggregated_resource(r)).collect();
            json!({"version": version, "resources": resources, "freshness": "Current"})
        })
        .collect();
    let metadata = if group.is_empty() { json!({}) } else { json!({"name": group}) };
    json!({"metadata": metadata, "versions": versions})
}

/// What a server of an aggregated API said last, in the form of the aggregated document.
fn remote_version(remote: &Remote) -> Value {
    let listed: &[Value] =
        remote.resources.as_ref().and_then(|r| r["resources"].as_array()).map(Vec::as_slice).unwrap_or_default();
    let name = |entry: &Value| entry["name"].as_str().unwrap_or_default().to_owned();
    let kind = |entry: &Value| {
        let or = |key: &str, own: &str| entry[key].as_str().filter(|t| !t.is_empty()).unwrap_or(own).to_owned();
        json!({"group": or("group", &remote.group), "version": or("version", &remote.version), "kind": entry["kind"]})
    };
    let resources = listed.iter().filter(|e| !name(e).contains('/')).map(|entry| {
        let plural = name(entry);
        let mut out = json!({
            "resource": plural, "responseKind": kind(entry), "singularResource": entry["singularName"],
            "scope": if entry["namespaced"] == true { "Namespaced" } else { "Cluster" }, "verbs": entry["verbs"],
        });
        for key in ["shortNames", "categories"] {
            if entry[key].is_array() {
                out[key] = entry[key].clone();
            }
        }
        let subresources: Vec<Value> = listed
            .iter()
            .filter_map(|e| {
                let sub = name(e);
                let sub = sub.strip_prefix(&plural)?.strip_prefix('/')?;
                Some(json!({"subresource": sub, "responseKind": kind(e), "verbs": e["verbs"]}))
            })
            .collect();
        if !subresources.is_empty() {
            out["subresources"] = subresources.into();
        }
        out
    });
    let is_current = remote.available && remote.resources.is_some();
    let freshness = if is_current { "Current" } else { "Stale" };
    json!({"version": remote.version, "resources": resources.collect::<Vec<_>>(), "freshness": freshness})
}

fn aggregated_resource(resource: &Resource) -> Value {
    let kind = |group: &str, version: &str, kind: &str| json!({"group": group, "version": version, "kind": kind});
    // Built-in kinds leave group and version empty: they are those of the document.
    let own = if resource.custom {
        kind(&resource.group, &resource.version, &resource.kind)
    } else {
        kind("", "", &resource.kind)
    };
    let mut entry = json!({
        "resource": resource.plural, "responseKind": own, "singularResource": resource.singular,
        "scope": if resource.namespaced { "Namespaced" } else { "Cluster" },
        "verbs": verbs(resource),
    });
    if !resource.short_names.is_empty() {
        entry["shortNames"] = json!(resource.short_names);
    }
    if !resource.categories.is_empty() {
        entry["categories"] = json!(resource.categories);
    }
    if !resource.subresources.is_empty() {
        let subresources = resource.subresources.iter().map(|s| {
            let own = resource.custom && s.version.is_empty();
            let (group, version) = if own { (&resource.group, &resource.version) } else { (&s.group, &s.version) };
            json!({"subresource": s.name, "responseKind": kind(group, version, &s.kind), "verbs": s.verbs.names().collect::<Vec<_>>()})
        });
        entry["subresources"] = subresources.collect();
    }
    entry
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::resource::Resources;

    fn sent(response: Response) -> Vec<u8> {
        match response.into_body() {
            crate::http::Body::Chunks(chunks) => chunks.into_iter().flatten().collect(),
            _ => panic!("known bytes"),
        }
    }

    #[test]
    fn the_aggregated_document_is_what_its_content_type_says() {
        let current = Resources::built_in().current();
        let set = View { set: &current, remotes: &[] };
        let json = aggregated_document(&set, false, Media::Json, None);
        let tag = json.headers()[ETAG].clone();
        let expected: Value = serde_json::from_slice(&sent(json)).expect("JSON");
        for media in [Media::Yaml, Media::Protobuf] {
            let response = aggregated_document(&set, false, media, None);
            let told = format!("{};g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList", media.name());
            assert_eq!(response.headers()[http::header::CONTENT_TYPE], told);
            assert_eq!(response.headers()[ETAG], tag, "one version in all forms");
            let body = sent(response);
            if media == Media::Protobuf {
                assert!(body.starts_with(b"k8s\0\x0a"));
                let names = ["APIGroupDiscoveryList", "apidiscovery.k8s.io/v2", "deployments", "replicasets", "deploy"];
                for name in names {
                    assert!(body.windows(name.len()).any(|part| part == name.as_bytes()), "{name}");
                }
            } else {
                let text = String::from_utf8(body).expect("text");
                assert!(text.starts_with("apiVersion: apidiscovery.k8s.io/v2\nitems:\n"), "{}", &text[..80]);
            }
        }
        assert_eq!(expected["kind"], "APIGroupDiscoveryList");
        let again = aggregated_document(&set, false, Media::Protobuf, Some(tag.as_bytes()));
        assert_eq!(again.status(), 304);
    }

    #[test]
    fn lists_of_groups_have_no_route() {
        let set = Resources::built_in().current();
        for (path, expected) in [
            ("/apis", false),
            ("/apis/batch", false),
            ("/apis/apiregistration.k8s.io", true),
            ("/apis/batch/v1", true),
            ("/api", true),
            ("/api/v1", true),
        ] {
            let parts: Vec<&str> = path.split('/').skip(1).collect();
            assert_eq!(is_route(&parts, &set), expected, "{path}");
        }
        assert!(is_index("/") && is_index("/index.html"));
        assert!(!is_index("//") && !is_index("/index.html/"));
    }

    #[test]
    fn a_hash_tells_the_version_that_upstream_stores() {
        let set = Resources::built_in().current();
        for (group, version, plural, hash) in [
            ("", "v1", "pods", Some("xPOwRZ+Yhw8=")),
            ("", "v1", "bindings", None),
            ("apiextensions.k8s.io", "v1", "customresourcedefinitions", Some("jfWCUB31mvA=")),
            ("admissionregistration.k8s.io", "v1", "mutatingadmissionpolicies", Some("LYmCf+UMVdg=")),
            ("admissionregistration.k8s.io", "v1", "validatingadmissionpolicies", Some("6OxvlMmQ6is=")),
            ("discovery.k8s.io", "v1", "endpointslices", Some("qgS0xkrxYAI=")),
            ("autoscaling", "v1", "horizontalpodautoscalers", Some("qwQve8ut294=")),
            ("resource.k8s.io", "v1", "resourceclaims", Some("wgAZaHcZxUg=")),
        ] {
            let resource = set.lookup(group, version, plural).expect("served");
            assert_eq!(storage_hash(&resource).as_deref(), hash, "{plural}");
        }
    }
}
