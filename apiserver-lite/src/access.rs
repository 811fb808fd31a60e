//! The gate before every handler: who asks, and may they. The server holds one implementation behind this trait.

use std::pin::Pin;

use crate::http::Peer;
use crate::request::{RequestInfo, User};
use crate::server::ApiServer;
use crate::status::{ApiError, Result, quote};

pub type Answer<'a, T> = Pin<Box<dyn Future<Output = Result<T>> + Send + 'a>>;

pub trait Access: Send + Sync {
    /// Who sends a request: by client certificate, by the `Authorization` header's value, or nobody.
    ///
    /// # Errors
    /// 401 for credentials that are not good.
    fn authenticate<'a>(
        &'a self,
        server: &'a ApiServer,
        peer: &'a Peer,
        authorization: Option<&'a str>,
    ) -> Answer<'a, User>;

    /// Whether a user may do what a request asks for.
    ///
    /// # Errors
    /// 403 with the reason.
    fn authorize<'a>(&'a self, server: &'a ApiServer, user: &'a User, info: &'a RequestInfo) -> Answer<'a, ()>;
}

/// The refusal of a request in upstream's words; `reason` may be empty.
pub fn forbidden(user: &User, info: &RequestInfo, reason: &str) -> ApiError {
    let why = |what: String| if reason.is_empty() { what } else { format!("{what}: {reason}") };
    let name = quote(&user.name);
    if !info.is_resource {
        return ApiError::forbidden(
            "",
            "",
            "",
            why(format!("User {name} cannot {} path {}", info.verb, quote(&info.path))),
        );
    }
    let resource = if info.subresource.is_empty() {
        info.resource.clone()
    } else {
        format!("{}/{}", info.resource, info.subresource)
    };
    let place = if info.namespace.is_empty() {
        "at the cluster scope".to_owned()
    } else {
        format!("in the namespace {}", quote(&info.namespace))
    };
    let what = format!(
        "User {name} cannot {} resource {} in API group {} {place}",
        info.verb,
        quote(&resource),
        quote(&info.group)
    );
    ApiError::forbidden(&info.group, &info.resource, &info.name, why(what))
}
