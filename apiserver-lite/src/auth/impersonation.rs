//! Acting as somebody else: the `Impersonate-*` headers, each of which the real user must be allowed.

use http::HeaderMap;

use super::authorizer::{Attributes, Authorizer, forbidden};
use crate::request::{RequestInfo, User, percent};
use crate::status::{ApiError, Result};

/// The user that a request wants to act as; None when it wants to act as itself.
///
/// # Errors
/// 400 for headers without a user name, 403 when that is not allowed.
pub fn impersonated(
    headers: &HeaderMap,
    user: &User,
    request: &RequestInfo,
    authorizer: &Authorizer,
) -> Result<Option<User>> {
    let text = |name: &str| headers.get(name).and_then(|v| v.to_str().ok()).unwrap_or_default().to_owned();
    let all = |name: &str| headers.get_all(name).iter().filter_map(|v| v.to_str().ok()).map(str::to_owned).collect();
    let name = text("impersonate-user");
    let uid = text("impersonate-uid");
    let mut groups: Vec<String> = all("impersonate-group");
    let mut extra: Vec<(String, Vec<String>)> = Vec::new();
    for key in headers.keys() {
        if let Some(field) = key.as_str().strip_prefix("impersonate-extra-") {
            extra.push((percent(field), all(key.as_str())));
        }
    }
    extra.sort();
    if name.is_empty() {
        if uid.is_empty() && groups.is_empty() && extra.is_empty() {
            return Ok(None);
        }
        return Err(ApiError::bad_request(format!(
            "requested {} without impersonating a user name",
            go_user(&uid, &groups, &extra)
        )));
    }
    let account = name.strip_prefix("system:serviceaccount:").and_then(|rest| rest.split_once(':'));
    let mut wanted: Vec<RequestInfo> = Vec::new();
    let info = |group: &str, resource: &str, subresource: &str, namespace: &str, name: &str| RequestInfo {
        is_resource: true,
        verb: "impersonate".into(),
        group: group.into(),
        version: "v1".into(),
        resource: resource.into(),
        subresource: subresource.into(),
        namespace: namespace.into(),
        name: name.into(),
        ..RequestInfo::default()
    };
    match account {
        Some((namespace, account)) => wanted.push(info("", "serviceaccounts", "", namespace, account)),
        None => wanted.push(info("", "users", "", "", &name)),
    }
    wanted.extend(groups.iter().map(|g| info("", "groups", "", "", g)));
    if !uid.is_empty() {
        wanted.push(info("authentication.k8s.io", "uids", "", "", &uid));
    }
    for (key, values) in &extra {
        wanted.extend(values.iter().map(|v| info("authentication.k8s.io", "userextras", key, "", v)));
    }
    let refused = wanted.iter().any(|w| !authorizer.decide(&Attributes { user, info: w }).allowed);
    if refused {
        // Since 1.35 the last question asked is whether this very request may be made on behalf of somebody.
        let asked = RequestInfo { verb: format!("impersonate-on:user-info:{}", request.verb), ..request.clone() };
        return Err(forbidden(&Attributes { user, info: &asked }, ""));
    }
    if groups.is_empty()
        && let Some((namespace, _)) = account
    {
        groups = vec!["system:serviceaccounts".into(), format!("system:serviceaccounts:{namespace}")];
    }
    let anonymous = name == "system:anonymous";
    let class = if anonymous { "system:unauthenticated" } else { "system:authenticated" };
    if !groups.iter().any(|g| g == "system:authenticated" || g == "system:unauthenticated") {
        groups.push(class.into());
    }
    Ok(Some(User { name, uid, groups, extra }))
}

/// A user as Go's `%#v` prints it.
fn go_user(uid: &str, groups: &[String], extra: &[(String, Vec<String>)]) -> String {
    let quoted = |list: &[String]| list.iter().map(|t| crate::status::quote(t)).collect::<Vec<_>>().join(", ");
    let groups = if groups.is_empty() { "[]string(nil)".into() } else { format!("[]string{{{}}}", quoted(groups)) };
    let extra = if extra.is_empty() {
        "map[string][]string(nil)".to_owned()
    } else {
        let pairs = extra.iter().map(|(k, v)| format!("{}:[]string{{{}}}", crate::status::quote(k), quoted(v)));
        format!("map[string][]string{{{}}}", pairs.collect::<Vec<_>>().join(", "))
    };
    let uid = crate::status::quote(uid);
    format!("&user.DefaultInfo{{Name:\"\", UID:{uid}, Groups:{groups}, Extra:{extra}}}")
}
