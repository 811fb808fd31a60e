//! Which methods exist at which paths, decided from the resource table before a handler runs.
//!
//! Upstream registers a route per resource and method; a path without any route is a 404, one without this method a
//! 405, a patch of a media type that is none a 415, and a client that accepts none of a route's media types gets a 406,
//! in that order.

use http::Method;

use crate::http::{Response, route_accepts};
use crate::request::RequestInfo;
use crate::resource::{Resource, Verbs};
use crate::server::{Request, not_served, unknown_path, wrong_method};
use crate::status::{ApiError, Details, Result};

/// Checks path, method and media types of a request for a known resource.
///
/// # Errors
/// 404, 405, 406, 415.
pub fn check(request: &Request, resource: &Resource) -> Result<()> {
    let info = &request.info;
    let named = !info.name.is_empty() && !info.named_by_selector;
    let in_namespace = info.path.contains("/namespaces/") && &*resource.plural != "namespaces";
    if !resource.namespaced && in_namespace || resource.namespaced && !in_namespace && named {
        return Err(unknown_path());
    }
    let in_path = matches!(info.verb.as_str(), "watch" | "proxy") && is_special(&info.path, &info.version);
    let methods = if in_path {
        if info.verb != "watch" || !resource.verbs.contains(Verbs::WATCH) || !info.subresource.is_empty() {
            return Err(unknown_path());
        }
        vec![Method::GET]
    } else if !info.subresource.is_empty() {
        let found = resource.subresource(&info.subresource).ok_or_else(unknown_path)?;
        if !info.rest.iter().all(String::is_empty) && &*found.name != "proxy" {
            return Err(unknown_path());
        }
        let mut all = methods(found.verbs, true);
        if found.verbs.contains(Verbs::CREATE) {
            all.push(Method::POST);
        }
        if &*found.name == "proxy" {
            all.extend([Method::HEAD, Method::OPTIONS]);
        }
        all
    } else if named {
        methods(resource.verbs, true)
    } else if resource.namespaced && !in_namespace {
        // Across all namespaces there is nothing but reading.
        methods(resource.verbs, false).into_iter().filter(|m| m == Method::GET).collect()
    } else {
        methods(resource.verbs, false)
    };
    if methods.is_empty() {
        return Err(unknown_path());
    }
    if !methods.contains(&request.method) {
        return Err(wrong_method());
    }
    if request.method == Method::PATCH && !resource.custom {
        let media = crate::patch::media(request.content_type());
        if !PATCHES.contains(&media) {
            return Err(unsupported_media());
        }
    }
    // Proxies and streams produce whatever the other side does.
    let is_passed_on = matches!(info.subresource.as_str(), "proxy" | "exec" | "attach" | "portforward" | "log");
    // Custom resources are not behind the router that looks at `Accept` this way.
    if !is_passed_on && !resource.custom {
        route_accepts(&request.accept(), !named && request.method == Method::GET)?;
    }
    // A watch takes the name for a selector.
    if in_path { Ok(()) } else { place(info, resource) }
}

/// Refuses what has a name but an empty namespace, as in `/api/v1/namespaces//pods/a`: it could be found nowhere, and
/// nothing may be written there.
fn place(info: &RequestInfo, resource: &Resource) -> Result<()> {
    let named = !info.name.is_empty() && !info.named_by_selector;
    match resource.namespaced && named && info.namespace.is_empty() {
        true => Err(ApiError::bad_request("Namespace parameter required.")),
        false => Ok(()),
    }
}

/// The same for a custom resource, whose paths are decided by its definition: what it does not have is answered as
/// if the path did not exist.
///
/// # Errors
/// 404 for an unknown subresource, 405.
pub fn custom(request: &Request, resource: &Resource) -> Result<Option<Response>> {
    let info = &request.info;
    let anywhere = matches!(info.verb.as_str(), "list" | "watch");
    if resource.namespaced == info.namespace.is_empty() && !(resource.namespaced && anywhere) {
        return Ok(Some(not_served()));
    }
    if !info.subresource.is_empty() && resource.subresource(&info.subresource).is_none() {
        return Err(ApiError::not_found(&resource.group, &resource.plural, &info.name));
    }
    match check(request, resource) {
        Err(error) if error.code() == 405 => {
            Err(ApiError::method_not_supported(&resource.group, &resource.plural, &info.verb))
        }
        Err(error) if error.code() == 404 => Ok(Some(not_served())),
        checked => checked.map(|()| None),
    }
}

/// Media types that the routes of patches take.
const PATCHES: [&str; 4] = [
    "application/json-patch+json",
    "application/merge-patch+json",
    "application/strategic-merge-patch+json",
    "application/apply-patch+yaml",
];

/// The router's words for a body of the wrong type.
pub fn unsupported_media() -> ApiError {
    ApiError::new(415, "UnsupportedMediaType", "415: Unsupported Media Type").with_details(Details::default())
}

/// The verb stands in the path: `/api/v1/watch/pods`.
fn is_special(path: &str, version: &str) -> bool {
    let after = path.split('/').skip_while(|p| *p != version).nth(1);
    matches!(after, Some("watch" | "proxy"))
}

/// The methods of a resource's items or collection, or of a subresource.
fn methods(verbs: Verbs, item: bool) -> Vec<Method> {
    let table: &[(Verbs, Method)] = if item {
        &[
            (Verbs::GET, Method::GET),
            (Verbs::UPDATE, Method::PUT),
            (Verbs::PATCH, Method::PATCH),
            (Verbs::DELETE, Method::DELETE),
        ]
    } else {
        &[(Verbs::LIST, Method::GET), (Verbs::CREATE, Method::POST), (Verbs::DELETE_COLLECTION, Method::DELETE)]
    };
    table.iter().filter(|(verb, _)| verbs.contains(*verb)).map(|(_, method)| method.clone()).collect()
}

/// What is said of a kind that will go away.
#[derive(Debug, PartialEq)]
pub struct Deprecation {
    /// The warning that every answer about it carries.
    pub text: String,
    /// The first release without it, such as `1.38`; empty where none is known.
    pub removed: String,
}

/// Group, version and kind (`*` for all) of what is not served unless asked for, the minor release that deprecated it,
/// and the first one without it: three releases each after the one before, where nothing else was said.
const LIFECYCLES: [(&str, &str, &str, u32, u32); 13] = [
    ("admissionregistration.k8s.io", "v1alpha1", "*", 35, 38),
    ("certificates.k8s.io", "v1alpha1", "ClusterTrustBundle", 34, 37),
    ("certificates.k8s.io", "v1beta1", "ClusterTrustBundle", 36, 39),
    ("coordination.k8s.io", "v1alpha2", "*", 35, 38),
    ("coordination.k8s.io", "v1beta1", "*", 36, 39),
    ("networking.k8s.io", "v1beta1", "*", 34, 37),
    ("resource.k8s.io", "v1beta1", "*", 35, 38),
    ("resource.k8s.io", "v1alpha3", "DeviceTaintRule", 36, 39),
    ("resource.k8s.io", "v1beta2", "DeviceClass", 36, 39),
    ("resource.k8s.io", "v1beta2", "ResourceClaim", 36, 39),
    ("resource.k8s.io", "v1beta2", "ResourceClaimTemplate", 36, 39),
    ("resource.k8s.io", "v1beta2", "ResourceSlice", 36, 39),
    ("storage.k8s.io", "v1beta1", "*", 34, 37),
];

/// Whether a kind is deprecated, and what to say of it.
pub fn deprecation(resource: &Resource) -> Option<Deprecation> {
    let unbound = |text: String| Deprecation { text, removed: String::new() };
    if let Some(definition) = &resource.definition {
        return definition.warning.clone().map(unbound);
    }
    let (group, version, kind) = (&*resource.group, &*resource.version, &*resource.kind);
    match (group, version, &*resource.plural) {
        ("", _, "componentstatuses") => return Some(unbound("v1 ComponentStatus is deprecated in v1.19+".into())),
        ("", _, "endpoints") => {
            let text = "v1 Endpoints is deprecated in v1.33+; use discovery.k8s.io/v1 EndpointSlice";
            return Some(unbound(text.into()));
        }
        _ => {}
    }
    let known = |(g, v, k, ..): &&(&str, &str, &str, u32, u32)| *g == group && *v == version && [kind, "*"].contains(k);
    LIFECYCLES.iter().find(known).map(|(.., deprecated, removed)| Deprecation {
        text: format!("{group}/{version} {kind} is deprecated in v1.{deprecated}+, unavailable in v1.{removed}+"),
        removed: format!("1.{removed}"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_at_an_empty_namespace() {
        let refused = |method: &Method, path: &str, plural: &str| {
            let info = RequestInfo::parse(method, path, &crate::request::Query::default());
            let kind = crate::resource::Resources::built_in().lookup("", "v1", plural).expect("built in");
            assert_eq!(info.resource, plural);
            place(&info, &kind).err().map(|error| (error.code(), error.status().message.clone()))
        };
        let told = Some((400, "Namespace parameter required.".to_owned()));
        for method in [Method::GET, Method::PUT, Method::PATCH, Method::DELETE] {
            assert_eq!(refused(&method, "/api/v1/namespaces//configmaps/x", "configmaps"), told, "{method}");
        }
        assert_eq!(refused(&Method::GET, "/api/v1/namespaces//pods/x/log", "pods"), told);
        assert_eq!(refused(&Method::GET, "/api/v1/namespaces//pods", "pods"), None, "a list is of all");
        assert_eq!(refused(&Method::GET, "/api/v1/namespaces/a/pods/x", "pods"), None);
        assert_eq!(refused(&Method::GET, "/api/v1/nodes/x", "nodes"), None);
    }

    #[test]
    fn what_was_switched_on_says_when_it_goes() {
        let all: Vec<Resource> = crate::resource::table::optional().into_iter().map(|(_, resource)| resource).collect();
        let told = |group: &str, version: &str, plural: &str| {
            let found = all.iter().find(|r| (&*r.group, &*r.version, &*r.plural) == (group, version, plural));
            deprecation(found.expect("it can be served")).map(|told| (told.text, told.removed))
        };
        let text = "resource.k8s.io/v1beta1 ResourceClaim is deprecated in v1.35+, unavailable in v1.38+";
        let expected = Some((text.to_owned(), "1.38".to_owned()));
        assert_eq!(told("resource.k8s.io", "v1beta1", "resourceclaims"), expected);
        let text = "certificates.k8s.io/v1alpha1 ClusterTrustBundle is deprecated in v1.34+, unavailable in v1.37+";
        assert_eq!(told("certificates.k8s.io", "v1alpha1", "clustertrustbundles"), Some((text.into(), "1.37".into())));
        assert_eq!(told("resource.k8s.io", "v1beta2", "devicetaintrules"), None, "it came with this release");
        assert_eq!(told("admissionregistration.k8s.io", "v1beta1", "mutatingadmissionpolicies"), None);
    }
}
