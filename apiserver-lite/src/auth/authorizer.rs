//! The chain of authorizers.

use std::future::Future;
use std::sync::Arc;

use super::chain::{Chain, Link};
use super::node::NodeAuthorizer;
use super::rbac::Rbac;
use super::webhook::AccessWebhook;
use crate::config::AuthorizationMode;
use crate::metrics::Decisions;
use crate::request::{RequestInfo, User};
use crate::status::{ApiError, quote};
use crate::store::Store;

/// What a user wants to do.
#[derive(Debug, Clone, Copy)]
pub struct Attributes<'a> {
    pub user: &'a User,
    pub info: &'a RequestInfo,
}

/// An answer, and the reason that is shown to people.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Decision {
    pub allowed: bool,
    /// Nobody further down the chain is asked; only ever with `allowed` false.
    pub denied: bool,
    pub reason: String,
}

impl Decision {
    pub fn allow(reason: impl Into<String>) -> Self {
        Decision { allowed: true, denied: false, reason: reason.into() }
    }

    pub fn deny(reason: impl Into<String>) -> Self {
        Decision { allowed: false, denied: true, reason: reason.into() }
    }

    pub fn no_opinion(reason: impl Into<String>) -> Self {
        Decision { allowed: false, denied: false, reason: reason.into() }
    }
}

pub struct Authorizer {
    modes: Vec<AuthorizationMode>,
    rbac: Rbac,
    node: NodeAuthorizer,
    webhook: Option<AccessWebhook>,
    /// Says who is asked, in place of the modes.
    chain: Option<Arc<Chain>>,
    decisions: Decisions,
}

impl Authorizer {
    pub fn new(modes: Vec<AuthorizationMode>, store: Store) -> Self {
        Authorizer {
            modes,
            rbac: Rbac::new(store.clone()),
            node: NodeAuthorizer::new(store),
            webhook: None,
            chain: None,
            decisions: Decisions::default(),
        }
    }

    /// The same with a server to ask where the modes say `Webhook`.
    #[must_use]
    pub fn with_webhook(self, webhook: Option<AccessWebhook>) -> Self {
        Authorizer { webhook, ..self }
    }

    /// The same with a file that says who is asked.
    #[must_use]
    pub fn with_chain(self, chain: Option<Arc<Chain>>) -> Self {
        Authorizer { chain, ..self }
    }

    pub fn rbac(&self) -> &Rbac {
        &self.rbac
    }

    pub fn uses_rbac(&self) -> bool {
        match &self.chain {
            Some(chain) => chain.links().iter().any(|link| matches!(link, Link::Rbac)),
            None => self.modes.contains(&AuthorizationMode::Rbac),
        }
    }

    /// Asks one authorizer after the other until one allows or denies.
    pub fn decide(&self, request: &Attributes<'_>) -> Decision {
        if request.user.in_group("system:masters") {
            return Decision::allow("");
        }
        match &self.chain {
            Some(chain) => first(chain.links().iter().map(|link| self.by_link(link, request))),
            None => first(self.modes.iter().map(|mode| self.by_mode(mode, request))),
        }
    }

    /// What each kind of authorizer has decided.
    pub fn decisions(&self) -> &Decisions {
        &self.decisions
    }

    fn by_mode(&self, mode: &AuthorizationMode, request: &Attributes<'_>) -> Decision {
        let (kind, decision) = self.told_by_mode(mode, request);
        self.decisions.count(kind, &decision);
        decision
    }

    fn told_by_mode(&self, mode: &AuthorizationMode, request: &Attributes<'_>) -> (&'static str, Decision) {
        match mode {
            AuthorizationMode::AlwaysAllow => ("AlwaysAllow", Decision::allow("")),
            AuthorizationMode::AlwaysDeny => ("AlwaysDeny", Decision::no_opinion("Everything is forbidden.")),
            AuthorizationMode::Rbac => ("RBAC", self.rbac.authorize(request)),
            AuthorizationMode::Node => ("Node", self.node.authorize(request)),
            AuthorizationMode::Webhook => match &self.webhook {
                Some(webhook) => ("Webhook", wait(webhook.authorize(request))),
                None => ("Webhook", Decision::no_opinion("")),
            },
        }
    }

    fn by_link(&self, link: &Link, request: &Attributes<'_>) -> Decision {
        match link {
            Link::AlwaysAllow => self.by_mode(&AuthorizationMode::AlwaysAllow, request),
            Link::AlwaysDeny => self.by_mode(&AuthorizationMode::AlwaysDeny, request),
            Link::Rbac => self.by_mode(&AuthorizationMode::Rbac, request),
            Link::Node => self.by_mode(&AuthorizationMode::Node, request),
            Link::Webhook(webhook) => {
                let decision = wait(webhook.authorize(request));
                self.decisions.count("Webhook", &decision);
                decision
            }
        }
    }
}

/// Waits for a webhook. Questions are asked from the middle of plain code, so this holds the thread; the runtime moves
/// other work off it meanwhile, and most answers are remembered.
fn wait(answer: impl Future<Output = Decision>) -> Decision {
    crate::wait_for(answer).unwrap_or_else(|| {
        tracing::error!("the authorization webhook cannot be asked from here; this is a bug");
        Decision::no_opinion("")
    })
}

/// The first of some decisions that allows or denies.
fn first(decisions: impl Iterator<Item = Decision>) -> Decision {
    let mut reasons = Vec::new();
    for decision in decisions {
        if decision.allowed || decision.denied {
            return decision;
        }
        if !decision.reason.is_empty() {
            reasons.push(decision.reason);
        }
    }
    Decision::no_opinion(reasons.join("\n"))
}

/// The 403 for a request that nobody allowed.
pub fn forbidden(request: &Attributes<'_>, reason: &str) -> ApiError {
    let info = request.info;
    let mut why = cannot(request);
    if !reason.is_empty() {
        why.push_str(": ");
        why.push_str(reason);
    }
    ApiError::forbidden(&info.group, &info.resource, &info.name, escape(&why))
}

/// `User "u" cannot get resource "pods/log" in API group "" in the namespace "n"`.
fn cannot(request: &Attributes<'_>) -> String {
    let info = request.info;
    let user = quote(&request.user.name);
    if !info.is_resource {
        return format!("User {user} cannot {} path {}", info.verb, quote(&info.path));
    }
    let mut resource = info.resource.clone();
    if !info.subresource.is_empty() {
        resource = format!("{resource}/{}", info.subresource);
    }
    let (resource, group) = (quote(&resource), quote(&info.group));
    let place = match info.namespace.as_str() {
        "" => "at the cluster scope".to_owned(),
        namespace => format!("in the namespace {}", quote(namespace)),
    };
    format!("User {user} cannot {} resource {resource} in API group {group} {place}", info.verb)
}

/// Names come from the request; a browser must not take them for markup.
fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}
