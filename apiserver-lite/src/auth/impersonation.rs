//! Acting as somebody else: the `Impersonate-*` headers.
//!
//! There are several ways to be allowed to, asked one after the other until one is open. The constrained ones (gate
//! `ConstrainedImpersonation`) take two rights: `impersonate-on:MODE:VERB` on what the request is about, and
//! `impersonate:MODE` on whom it wants to be. The last is the plain right to `impersonate`. Follows
//! `k8s.io/apiserver/pkg/endpoints/filters/impersonation`.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use http::HeaderMap;

use super::authorizer::{Attributes, Decision, forbidden};
use crate::names::{dns_label, dns_subdomain, domain_prefixed_path};
use crate::request::{RequestInfo, User, percent};
use crate::status::{ApiError, Result, aggregate, quote};

/// The group of what users are made of.
const AUTHENTICATION: &str = "authentication.k8s.io";
const AUTHENTICATED: &str = "system:authenticated";
const UNAUTHENTICATED: &str = "system:unauthenticated";
/// From so many groups or extra facts on, the right to all of them is asked for first.
const MANY: usize = 4;
/// Users whose way is remembered.
const REMEMBERED: usize = 10_000;

/// A way to be allowed to act as somebody else.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mode {
    /// The node that the pod of an account runs on.
    AssociatedNode,
    ArbitraryNode,
    ServiceAccount,
    /// Anybody who is neither node nor account.
    UserInfo,
    Legacy,
}

/// In the order they are asked.
const MODES: [Mode; 5] =
    [Mode::AssociatedNode, Mode::ArbitraryNode, Mode::ServiceAccount, Mode::UserInfo, Mode::Legacy];

/// Which ways there are, and by which of them users came through last.
#[derive(Debug, Default)]
pub struct Impersonation {
    constrained: bool,
    last: Mutex<HashMap<String, Mode>>,
}

/// Whom a request acts as.
#[derive(Debug, PartialEq, Eq)]
pub struct Impersonated {
    pub user: User,
    /// The right that let it, for the audit log; empty for the plain one.
    pub constraint: String,
}

impl Impersonation {
    /// `constrained` is the gate `ConstrainedImpersonation`.
    pub fn new(constrained: bool) -> Self {
        Impersonation { constrained, last: Mutex::default() }
    }

    /// The user that a request wants to act as; None when it wants to act as itself. `decide` says what is allowed.
    ///
    /// # Errors
    /// 400 for headers without a user name; 403 when that is not allowed, in the words of the first way that is about
    /// such users.
    pub fn user(
        &self,
        headers: &HeaderMap,
        user: &User,
        request: &RequestInfo,
        decide: &dyn Fn(&Attributes<'_>) -> Decision,
    ) -> Result<Option<Impersonated>> {
        let Some(wanted) = wanted(headers)? else { return Ok(None) };
        let attempt = Attempt { decide, user, request, wanted: &wanted };
        if !self.constrained {
            return attempt.as_whom(Mode::Legacy).map(Some);
        }
        let last = self.last.lock().unwrap_or_else(PoisonError::into_inner).get(&user.name).copied();
        let mut first = None;
        for mode in last.into_iter().chain(MODES.into_iter().filter(|mode| Some(*mode) != last)) {
            if !mode.is_about(&wanted, user) {
                continue;
            }
            match attempt.by(mode) {
                Ok(impersonated) => {
                    if last != Some(mode) {
                        self.remember(&user.name, mode);
                    }
                    return Ok(Some(impersonated));
                }
                Err(error) => first = first.or(Some(error)),
            }
        }
        Err(first.unwrap_or_else(|| ApiError::internal("all impersonation modes failed")))
    }

    fn remember(&self, name: &str, mode: Mode) {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        // It only saves questions: to begin anew costs each user one round.
        if last.len() >= REMEMBERED {
            last.clear();
        }
        last.insert(name.to_owned(), mode);
    }
}

/// What the headers say, word for word.
fn wanted(headers: &HeaderMap) -> Result<Option<User>> {
    let shown = |value: &http::HeaderValue| String::from_utf8_lossy(value.as_bytes()).into_owned();
    let text = |name: &str| headers.get(name).map(shown).unwrap_or_default();
    let all = |name: &str| headers.get_all(name).iter().map(shown).collect::<Vec<String>>();
    let mut extra: Vec<(String, Vec<String>)> = Vec::new();
    for key in headers.keys() {
        if let Some(field) = key.as_str().strip_prefix("impersonate-extra-") {
            let (field, values) = (percent(field), all(key.as_str()));
            match extra.iter_mut().find(|(known, _)| *known == field) {
                // The same key, escaped in another way.
                Some((_, known)) => known.extend(values),
                None => extra.push((field, values)),
            }
        }
    }
    extra.sort();
    let user =
        User { name: text("impersonate-user"), uid: text("impersonate-uid"), groups: all("impersonate-group"), extra };
    if !user.name.is_empty() {
        return Ok(Some(user));
    }
    if only_named(&user) {
        return Ok(None);
    }
    Err(ApiError::bad_request(format!("requested {} without impersonating a user name", go_user(&user))))
}

fn only_named(user: &User) -> bool {
    user.uid.is_empty() && user.groups.is_empty() && user.extra.is_empty()
}

/// The node that a user is.
fn node_of(name: &str) -> Option<&str> {
    name.strip_prefix("system:node:").filter(|node| dns_subdomain(node).is_empty())
}

/// Namespace and name of the account that a user is.
fn account_of(name: &str) -> Option<(&str, &str)> {
    let (namespace, account) = name.strip_prefix("system:serviceaccount:")?.split_once(':')?;
    (dns_label(namespace).is_empty() && dns_subdomain(account).is_empty()).then_some((namespace, account))
}

impl Mode {
    /// Empty for the plain one.
    fn name(self) -> &'static str {
        match self {
            Mode::AssociatedNode => "associated-node",
            Mode::ArbitraryNode => "arbitrary-node",
            Mode::ServiceAccount => "serviceaccount",
            Mode::UserInfo => "user-info",
            Mode::Legacy => "",
        }
    }

    fn verb(self) -> String {
        if self == Mode::Legacy { "impersonate".into() } else { format!("impersonate:{}", self.name()) }
    }

    fn is_about(self, wanted: &User, user: &User) -> bool {
        let node = node_of(&wanted.name);
        match self {
            Mode::AssociatedNode => {
                let of_node = |(key, values): &(String, Vec<String>)| {
                    key == "authentication.kubernetes.io/node-name"
                        && matches!(values.as_slice(), [only] if Some(only.as_str()) == node)
                };
                let here = node.is_some() && account_of(&user.name).is_some() && user.extra.iter().any(of_node);
                here && only_named(wanted)
            }
            Mode::ArbitraryNode => node.is_some() && only_named(wanted),
            Mode::ServiceAccount => account_of(&wanted.name).is_some() && only_named(wanted),
            Mode::UserInfo => node.is_none() && account_of(&wanted.name).is_none(),
            Mode::Legacy => true,
        }
    }
}

/// One request of one user to be another.
struct Attempt<'a> {
    decide: &'a dyn Fn(&Attributes<'_>) -> Decision,
    user: &'a User,
    request: &'a RequestInfo,
    wanted: &'a User,
}

impl Attempt<'_> {
    /// By a mode that is about such users.
    fn by(&self, mode: Mode) -> Result<Impersonated> {
        if mode == Mode::Legacy {
            return self.as_whom(mode);
        }
        if mode != Mode::AssociatedNode {
            return self.constrained(mode);
        }
        // Which pod on which node asks is not told: the right is one of the account, wherever it runs.
        let keys = self.user.extra.iter().map(|(key, _)| key.clone()).collect();
        let extra = vec![("authentication.kubernetes.io/associated-node-keys".to_owned(), keys)];
        let user = User { extra, ..self.user.clone() };
        Attempt { user: &user, ..*self }.constrained(mode)
    }

    fn constrained(&self, mode: Mode) -> Result<Impersonated> {
        let verb = format!("impersonate-on:{}:{}", mode.name(), self.request.verb);
        self.ask(&RequestInfo { verb, ..self.request.clone() })?;
        self.as_whom(mode)
    }

    /// Whether the user may be whom it wants to be; what the request is about is not asked.
    fn as_whom(&self, mode: Mode) -> Result<Impersonated> {
        let mut user = self.wanted.clone();
        self.name(mode, &mut user)?;
        if !user.uid.is_empty() {
            self.ask(&self.question(mode, AUTHENTICATION, "uids", &user.uid))?;
        }
        self.groups(mode)?;
        self.extra(mode)?;
        let anonymous = user.name == "system:anonymous";
        let group = if anonymous { UNAUTHENTICATED } else { AUTHENTICATED };
        if !user.in_group(group) && (anonymous || !user.in_group(UNAUTHENTICATED)) {
            user.groups.push(group.into());
        }
        let constraint = if mode == Mode::Legacy { String::new() } else { mode.verb() };
        Ok(Impersonated { user, constraint })
    }

    /// Asks for the name, and fills in the groups that come with it.
    fn name(&self, mode: Mode, user: &mut User) -> Result<()> {
        let group = if mode == Mode::Legacy { "" } else { AUTHENTICATION };
        let mut question = self.question(mode, group, "users", &self.wanted.name);
        if mode != Mode::Legacy
            && let Some(node) = node_of(&self.wanted.name)
        {
            question.resource = "nodes".into();
            question.name = if mode == Mode::AssociatedNode { "*" } else { node }.into();
            user.groups = vec!["system:nodes".into()];
        }
        if let Some((namespace, account)) = account_of(&self.wanted.name) {
            question.resource = "serviceaccounts".into();
            question.namespace = namespace.into();
            question.name = account.into();
            if user.groups.is_empty() {
                user.groups = vec!["system:serviceaccounts".into(), format!("system:serviceaccounts:{namespace}")];
            }
        }
        self.ask(&question)
    }

    fn groups(&self, mode: Mode) -> Result<()> {
        let groups = &self.wanted.groups;
        let api_group = if mode == Mode::Legacy { "" } else { AUTHENTICATION };
        let question = |name: &str| self.question(mode, api_group, "groups", name);
        if mode != Mode::Legacy {
            if groups.iter().any(String::is_empty) {
                return Err(self.refuse(&question(""), "impersonating the empty string group is not allowed"));
            }
            if self.wanted.in_group("system:masters") {
                let why = "impersonating the system:masters group is not allowed";
                return Err(self.refuse(&question("system:masters"), why));
            }
            if groups.len() >= MANY && self.ask(&question("*")).is_ok() {
                return Ok(());
            }
        }
        groups.iter().try_for_each(|group| self.ask(&question(group)))
    }

    fn extra(&self, mode: Mode) -> Result<()> {
        let extra = &self.wanted.extra;
        let question = |key: &str, value: &str| RequestInfo {
            subresource: key.into(),
            ..self.question(mode, AUTHENTICATION, "userextras", value)
        };
        if mode != Mode::Legacy {
            for (key, values) in extra {
                if let Some(why) = unfit(key, values) {
                    return Err(self.refuse(&question("", ""), &why));
                }
            }
            let values: usize = extra.iter().map(|(_, values)| values.len()).sum();
            if extra.len().max(values) >= MANY && self.ask(&question("*", "*")).is_ok() {
                return Ok(());
            }
        }
        for (key, values) in extra {
            values.iter().try_for_each(|value| self.ask(&question(key, value)))?;
        }
        Ok(())
    }

    fn question(&self, mode: Mode, group: &str, resource: &str, name: &str) -> RequestInfo {
        RequestInfo {
            is_resource: true,
            verb: mode.verb(),
            group: group.into(),
            version: "v1".into(),
            resource: resource.into(),
            name: name.into(),
            ..RequestInfo::default()
        }
    }

    fn ask(&self, info: &RequestInfo) -> Result<()> {
        let decision = (self.decide)(&Attributes { user: self.user, info });
        if decision.allowed { Ok(()) } else { Err(self.refuse(info, &decision.reason)) }
    }

    fn refuse(&self, info: &RequestInfo, why: &str) -> ApiError {
        forbidden(&Attributes { user: self.user, info }, why)
    }
}

/// What is wrong with an extra fact that a constrained mode is asked for.
fn unfit(key: &str, values: &[String]) -> Option<String> {
    if key.is_empty() {
        return Some("impersonating the empty string key in extra is not allowed".into());
    }
    let complaints = domain_prefixed_path(key);
    if !complaints.is_empty() {
        let told = |why: &String| format!("extra.key: Invalid value: {}: {why}", quote(key));
        let all = aggregate(&complaints.iter().map(told).collect::<Vec<_>>());
        return Some(format!("impersonating an invalid key in extra is not allowed: {all}"));
    }
    if key.chars().any(char::is_uppercase) {
        return Some(format!("impersonating a non-lowercase key in extra is not allowed: {}", quote(key)));
    }
    if values.is_empty() {
        return Some("impersonating empty values in extra is not allowed".into());
    }
    let empty = values.iter().any(String::is_empty);
    empty.then(|| "impersonating the empty string value in extra is not allowed".into())
}

/// A user without a name as Go's `%#v` prints it.
fn go_user(user: &User) -> String {
    let quoted = |list: &[String]| list.iter().map(|t| quote(t)).collect::<Vec<_>>().join(", ");
    let groups = match user.groups.as_slice() {
        [] => "[]string(nil)".to_owned(),
        groups => format!("[]string{{{}}}", quoted(groups)),
    };
    let extra = match user.extra.as_slice() {
        [] => "map[string][]string(nil)".to_owned(),
        extra => {
            let pairs = extra.iter().map(|(k, v)| format!("{}:[]string{{{}}}", quote(k), quoted(v)));
            format!("map[string][]string{{{}}}", pairs.collect::<Vec<_>>().join(", "))
        }
    };
    let uid = quote(&user.uid);
    format!("&user.DefaultInfo{{Name:\"\", UID:{uid}, Groups:{groups}, Extra:{extra}}}")
}

#[cfg(test)]
mod tests;
