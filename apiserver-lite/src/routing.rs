//! Which methods exist at which paths, decided from the resource table before a handler runs.
//!
//! Upstream registers a route per resource and method; a path without any route is a 404, one without this method a
//! 405, a patch of a media type that is none a 415, and a client that accepts none of a route's media types gets a 406,
//! in that order.

use http::Method;

use crate::http::{Response, route_accepts};
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
    if matches!(info.subresource.as_str(), "proxy" | "exec" | "attach" | "portforward" | "log") {
        return Ok(());
    }
    // Custom resources are not behind the router that looks at `Accept` this way.
    if resource.custom { Ok(()) } else { route_accepts(&request.accept(), !named && request.method == Method::GET) }
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

/// The warning that every answer about a deprecated kind carries.
pub fn deprecation(resource: &Resource) -> Option<String> {
    if let Some(definition) = &resource.definition {
        return definition.warning.clone();
    }
    match (&*resource.group, &*resource.plural) {
        ("", "componentstatuses") => Some("v1 ComponentStatus is deprecated in v1.19+".into()),
        ("", "endpoints") => Some("v1 Endpoints is deprecated in v1.33+; use discovery.k8s.io/v1 EndpointSlice".into()),
        _ => None,
    }
}
