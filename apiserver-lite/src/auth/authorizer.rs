//! The chain of authorizers.

use std::future::Future;
use std::sync::Arc;

use super::chain::{Chain, Link};
use super::node::NodeAuthorizer;
use super::rbac::Rbac;
use super::rule::Rule;
use super::webhook::AccessWebhook;
use crate::config::{AuthorizationMode, FeatureGates};
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
    /// What kept an authorizer from its answer; empty for nothing.
    pub error: String,
}

/// What users may do in a namespace, as far as it can be told.
#[derive(Debug, Default, PartialEq)]
pub struct Rules {
    pub rules: Vec<Rule>,
    /// There may be more.
    pub incomplete: bool,
    pub errors: Vec<String>,
}

impl Decision {
    pub fn allow(reason: impl Into<String>) -> Self {
        Decision { allowed: true, denied: false, reason: reason.into(), error: String::new() }
    }

    pub fn deny(reason: impl Into<String>) -> Self {
        Decision { allowed: false, denied: true, reason: reason.into(), error: String::new() }
    }

    pub fn no_opinion(reason: impl Into<String>) -> Self {
        Decision { allowed: false, denied: false, reason: reason.into(), error: String::new() }
    }

    /// The decision of an authorizer that could not be asked.
    pub fn failed(error: impl Into<String>) -> Self {
        Decision { error: error.into(), ..Decision::no_opinion("") }
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
    pub fn new(modes: Vec<AuthorizationMode>, store: Store, gates: &FeatureGates) -> Self {
        Authorizer {
            modes,
            rbac: Rbac::new(store.clone()),
            node: NodeAuthorizer::new(store, gates),
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
            Some(chain) => chain.links().iter().any(|(_, link)| matches!(link, Link::Rbac)),
            None => self.modes.contains(&AuthorizationMode::Rbac),
        }
    }

    /// Asks one authorizer after the other until one allows or denies.
    pub fn decide(&self, request: &Attributes<'_>) -> Decision {
        if request.user.in_group("system:masters") {
            return Decision::allow("");
        }
        match &self.chain {
            Some(chain) => first(chain.links().iter().map(|(name, link)| self.by_link(name, link, request))),
            None => first(self.modes.iter().map(|mode| self.by_mode(mode, request))),
        }
    }

    /// What each kind of authorizer has decided.
    pub fn decisions(&self) -> &Decisions {
        &self.decisions
    }

    /// What all authorizers that can tell say a user may do in a namespace.
    pub fn rules_for(&self, user: &User, namespace: &str) -> Rules {
        let mut out = Rules::default();
        match &self.chain {
            Some(chain) => {
                chain.links().iter().for_each(|(_, link)| self.rules_by(&link.mode(), user, namespace, &mut out));
            }
            None => self.modes.iter().for_each(|mode| self.rules_by(mode, user, namespace, &mut out)),
        }
        out
    }

    fn rules_by(&self, mode: &AuthorizationMode, user: &User, namespace: &str, out: &mut Rules) {
        let unsupported = match mode {
            AuthorizationMode::AlwaysAllow => {
                let all = || vec!["*".to_owned()];
                out.rules.push(Rule { verbs: all(), api_groups: all(), resources: all(), ..Rule::default() });
                out.rules.push(Rule { verbs: all(), non_resource_urls: all(), ..Rule::default() });
                return;
            }
            AuthorizationMode::AlwaysDeny => return,
            AuthorizationMode::Rbac => {
                let (rules, missing) = self.rbac.rules_for(user, namespace);
                out.rules.extend(rules);
                if !missing.is_empty() {
                    out.errors.push(crate::status::aggregate(&missing));
                }
                return;
            }
            AuthorizationMode::Node if !user.in_group("system:nodes") => return,
            AuthorizationMode::Node => "node",
            AuthorizationMode::Webhook => "webhook",
        };
        out.incomplete = true;
        out.errors.push(format!("{unsupported} authorizer does not support user rule resolution"));
    }

    fn by_mode(&self, mode: &AuthorizationMode, request: &Attributes<'_>) -> Decision {
        let (kind, decision) = self.told_by_mode(mode, request);
        self.decisions.count(kind, None, &decision);
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

    fn by_link(&self, name: &str, link: &Link, request: &Attributes<'_>) -> Decision {
        let (kind, decision) = match link {
            Link::Webhook(webhook) => ("Webhook", wait(webhook.authorize(request))),
            own => self.told_by_mode(&own.mode(), request),
        };
        self.decisions.count(kind, Some(name), &decision);
        decision
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
    let (mut reasons, mut errors) = (Vec::new(), Vec::new());
    for decision in decisions {
        if decision.allowed || decision.denied {
            return decision;
        }
        if !decision.reason.is_empty() {
            reasons.push(decision.reason);
        }
        if !decision.error.is_empty() {
            errors.push(decision.error);
        }
    }
    let error = if errors.is_empty() { String::new() } else { crate::status::aggregate(&errors) };
    Decision { error, ..Decision::no_opinion(reasons.join("\n")) }
}

/// The answer to a request that nobody allowed since somebody could not be asked: text for people, as upstream's.
pub fn unanswered(target: &str, error: &str) -> String {
    escape(&format!("Internal Server Error: {}: {error}\n", quote(target)))
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_nobody_allows_tells_who_could_not_be_asked() {
        let none = || Decision::no_opinion("");
        let failed = |why: &str| Decision::failed(why);
        assert_eq!(first([none(), failed("a")].into_iter()).error, "a");
        assert_eq!(first([failed("a"), failed("b"), failed("a")].into_iter()).error, "[a, b]");
        let allowed = first([failed("a"), Decision::allow("yes")].into_iter());
        assert_eq!((allowed.allowed, allowed.error.as_str()), (true, ""));
        let denied = Decision { denied: true, ..failed("a") };
        assert_eq!(first([denied.clone(), Decision::allow("")].into_iter()), denied);
        assert_eq!(unanswered("/a?b=<c>&d", "e"), "Internal Server Error: \"/a?b=&lt;c&gt;&amp;d\": e\n");
    }

    #[test]
    fn rules_are_those_of_all_who_can_tell() {
        let modes = vec![AuthorizationMode::Node, AuthorizationMode::Webhook, AuthorizationMode::AlwaysAllow];
        let authorizer =
            Authorizer::new(modes, Store::open(None).expect("in memory"), &FeatureGates::parse(&[]).expect("none"));
        let node = User { name: "n".into(), groups: vec!["system:nodes".into()], ..User::default() };
        let rules = authorizer.rules_for(&node, "default");
        assert!(rules.incomplete);
        assert_eq!(
            crate::status::aggregate(&rules.errors),
            "[node authorizer does not support user rule resolution, webhook authorizer does not support user rule \
             resolution]"
        );
        assert_eq!(rules.rules.len(), 2);
        assert_eq!(authorizer.rules_for(&User::default(), "").errors.len(), 1);
    }
}
