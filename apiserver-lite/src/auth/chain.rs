//! Who is asked what users may do, and in which order, by a file (`--authorization-config`).
//!
//! The file is an `AuthorizationConfiguration` of `apiserver.config.k8s.io`. A webhook is asked only about requests for
//! which all its match conditions hold. Follows `apiserver/pkg/apis/apiserver/validation` and `kubeapiserver/authorizer`.

use std::path::Path;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use serde_json::Value;

use super::authorizer::{Attributes, Decision};
use super::config_file::{ConfigFile, FileError, list, text};
use super::webhook::{AccessWebhook, question};
use crate::cel::{self, Budget, Failure, Program, Type, Value as Seen};
use crate::config::AuthorizationMode;
use crate::outgoing::Client;

const KIND: &str = "AuthorizationConfiguration";
/// Steps that the conditions about one request may take together.
const BUDGET: u64 = 2_500_000;
/// Longest time that a webhook may be given, and conditions that it may have.
const LONGEST: Duration = Duration::from_secs(30);
const MOST_CONDITIONS: usize = 64;

/// One that is asked.
pub enum Link {
    Node,
    Rbac,
    AlwaysAllow,
    AlwaysDeny,
    Webhook(Box<Webhook>),
}

impl Link {
    /// The same as `--authorization-mode` has it.
    pub fn mode(&self) -> AuthorizationMode {
        match self {
            Link::AlwaysAllow => AuthorizationMode::AlwaysAllow,
            Link::AlwaysDeny => AuthorizationMode::AlwaysDeny,
            Link::Rbac => AuthorizationMode::Rbac,
            Link::Node => AuthorizationMode::Node,
            Link::Webhook(_) => AuthorizationMode::Webhook,
        }
    }
}

/// Who is asked, by the name that the file gives them.
pub type Links = Vec<(Box<str>, Link)>;

/// The file and what it says now.
pub struct Chain(ConfigFile<Links>);

impl Chain {
    /// # Errors
    /// When the file cannot be read, or with everything that is wrong in it.
    pub fn load(path: &Path) -> Result<Self, FileError> {
        ConfigFile::load(path, KIND, Box::new(parse)).map(Chain)
    }

    pub fn links(&self) -> Arc<Links> {
        self.0.state()
    }

    /// Takes changes of the file in; never returns.
    pub async fn follow(&self) {
        self.0.follow().await;
    }
}

/// A webhook with what it is asked about.
pub struct Webhook {
    webhook: AccessWebhook,
    conditions: Vec<(String, Program)>,
    /// A call that fails counts against the request.
    deny: bool,
    timeout: Duration,
}

/// The type of `request` in conditions.
static REQUEST: LazyLock<Type> = LazyLock::new(|| {
    let text = Type::Text;
    let requirement = Type::object(
        "kubernetes.SelectorRequirement",
        &[("key", text.clone()), ("operator", text.clone()), ("values", Type::list(text.clone()))],
    );
    let selector = Type::object("kubernetes.SelectorAttributes", &[("requirements", Type::list(requirement))]);
    let resource = Type::object(
        "kubernetes.ResourceAttributes",
        &[
            ("namespace", text.clone()),
            ("verb", text.clone()),
            ("group", text.clone()),
            ("version", text.clone()),
            ("resource", text.clone()),
            ("subresource", text.clone()),
            ("name", text.clone()),
            ("fieldSelector", selector.clone()),
            ("labelSelector", selector),
        ],
    );
    let other = Type::object("kubernetes.NonResourceAttributes", &[("path", text.clone()), ("verb", text.clone())]);
    let fields = [
        ("resourceAttributes", resource),
        ("nonResourceAttributes", other),
        ("user", text.clone()),
        ("groups", Type::list(text.clone())),
        ("extra", Type::map(Type::list(text.clone()))),
        ("uid", text),
    ];
    Type::object("kubernetes.SubjectAccessReviewSpec", &fields)
});

impl Webhook {
    pub async fn authorize(&self, request: &Attributes<'_>) -> Decision {
        match self.concerns(&question(request)) {
            Ok(true) => {}
            Ok(false) => return Decision::no_opinion(""),
            Err(error) => return self.failed(&error),
        }
        match tokio::time::timeout(self.timeout, self.webhook.ask(request)).await {
            Ok(Ok(decision)) => decision,
            Ok(Err(error)) => self.failed(&error.to_string()),
            Err(_) => self.failed("context deadline exceeded"),
        }
    }

    fn failed(&self, error: &str) -> Decision {
        tracing::error!(%error, "failed to make webhook authorizer request");
        Decision { denied: self.deny, ..Decision::failed(error) }
    }

    /// Whether all conditions hold. One that does not settles it, whatever others come to.
    ///
    /// # Errors
    /// The first condition that cannot be evaluated.
    fn concerns(&self, spec: &Value) -> Result<bool, String> {
        let mut budget = Budget::new(BUDGET);
        let mut failed = None;
        for (text, program) in &self.conditions {
            match program.eval(&[("request", Seen::of(spec, &REQUEST))], &mut budget) {
                Ok(Seen::Bool(true)) => {}
                Ok(_) => return Ok(false),
                Err(Failure::Error(why)) => {
                    _ = failed.get_or_insert(format!("expression '{text}' resulted in error: {why}"))
                }
                Err(Failure::OverBudget) => _ = failed.get_or_insert(format!("expression '{text}' is too costly")),
            }
        }
        failed.map_or(Ok(true), Err)
    }
}

fn parse(value: &Value, errors: &mut Vec<String>) -> Links {
    let mut links = Vec::new();
    let mut names: Vec<&str> = Vec::new();
    let mut kinds: Vec<&str> = Vec::new();
    let all = list(value, "authorizers");
    if all.is_empty() {
        errors.push("authorizers: Required value: at least one authorization mode must be defined".to_owned());
    }
    for (index, said) in all.iter().enumerate() {
        let at = format!("authorizers[{index}]");
        let (kind, name) = (text(said, "type"), text(said, "name"));
        match name {
            "" => errors.push(format!("{at}.name: Required value")),
            name if names.contains(&name) => errors.push(format!("{at}.name: Duplicate value: {name:?}")),
            name => {
                let complaints = crate::names::dns_subdomain(name);
                errors.extend(
                    complaints
                        .into_iter()
                        .map(|why| format!("{at}.name: Invalid value: {name:?}: authorizer name is invalid: {why}")),
                );
            }
        }
        names.push(name);
        if kind != "Webhook" && kinds.contains(&kind) {
            errors.push(format!("{at}.type: Duplicate value: {kind:?}"));
        }
        kinds.push(kind);
        if kind != "Webhook" && !said["webhook"].is_null() {
            errors.push(format!("{at}.webhook: Invalid value: \"non-null\": may only be specified when type=Webhook"));
        }
        let link = match kind {
            "Node" => Some(Link::Node),
            "RBAC" => Some(Link::Rbac),
            "AlwaysAllow" => Some(Link::AlwaysAllow),
            "AlwaysDeny" => Some(Link::AlwaysDeny),
            "Webhook" => {
                webhook(&said["webhook"], &format!("{at}.webhook"), errors).map(|w| Link::Webhook(Box::new(w)))
            }
            "" => {
                errors.push(format!("{at}.type: Required value"));
                None
            }
            other => {
                errors.push(format!(
                    "{at}.type: Unsupported value: {other:?}: supported values: \"AlwaysAllow\", \"AlwaysDeny\", \"Node\", \
                     \"RBAC\", \"Webhook\""
                ));
                None
            }
        };
        links.extend(link.map(|link| (name.into(), link)));
    }
    links
}

/// Reads a webhook; None where something of it is wrong.
fn webhook(said: &Value, at: &str, errors: &mut Vec<String>) -> Option<Webhook> {
    let before = errors.len();
    if !said.is_object() {
        errors.push(format!("{at}: Required value: required when type=Webhook"));
        return None;
    }
    let mut duration = |key: &str, usual: u64| match said[key].as_str() {
        None => Duration::from_secs(usual),
        Some(text) => {
            match proto::duration::parse(text).ok().and_then(|nanos| u64::try_from(nanos).ok()).filter(|n| *n > 0) {
                Some(nanos) => Duration::from_nanos(nanos),
                None => {
                    errors.push(format!("{at}.{key}: Invalid value: {text:?}: must be > 0s"));
                    Duration::ZERO
                }
            }
        }
    };
    let (allowed, refused) = (duration("authorizedTTL", 300), duration("unauthorizedTTL", 30));
    let timeout = duration("timeout", 0);
    if said["timeout"].is_null() {
        errors.push(format!("{at}.timeout: Required value"));
    } else if timeout > LONGEST {
        errors.push(format!("{at}.timeout: Invalid value: {}: must be <= 30s", said["timeout"]));
    }
    let mut choice = |key: &str, supported: &[&str]| {
        let value = text(said, key).to_owned();
        if value.is_empty() {
            errors.push(format!("{at}.{key}: Required value"));
        } else if !supported.contains(&value.as_str()) {
            errors.push(format!("{at}.{key}: Unsupported value: {value:?}: supported values: {supported:?}"));
        }
        value
    };
    let version = choice("subjectAccessReviewVersion", &["v1", "v1beta1"]);
    let deny = choice("failurePolicy", &["NoOpinion", "Deny"]) == "Deny";
    let conditions = list(said, "matchConditions");
    if !conditions.is_empty() {
        choice("matchConditionSubjectAccessReviewVersion", &["v1"]);
    }
    if conditions.len() > MOST_CONDITIONS {
        errors.push(format!(
            "{at}.matchConditions: Too many: {}: must have at most {MOST_CONDITIONS} items",
            conditions.len()
        ));
    }
    let mut programs: Vec<(String, Program)> = Vec::new();
    for (index, condition) in conditions.iter().enumerate() {
        let (expression, place) = (text(condition, "expression"), format!("{at}.matchConditions[{index}].expression"));
        if expression.is_empty() {
            errors.push(format!("{place}: Required value"));
            continue;
        }
        if programs.iter().any(|(other, _)| other == expression) {
            errors.push(format!("{place}: Duplicate value: {expression:?}"));
        }
        match cel::compile(expression, &[("request", REQUEST.clone())]) {
            Ok(program) if program.output == Type::Bool => programs.push((expression.to_owned(), program)),
            Ok(_) => errors.push(format!("{place}: Invalid value: {expression:?}: must evaluate to bool")),
            Err(why) => errors.push(format!("{place}: Invalid value: {expression:?}: compilation failed: {why}")),
        }
    }
    let connection = &said["connectionInfo"];
    let client = match text(connection, "type") {
        "KubeConfigFile" => match text(connection, "kubeConfigFile") {
            "" => Err(format!("{at}.connectionInfo.kubeConfigFile: Required value")),
            path => Client::from_kubeconfig(Path::new(path))
                .map_err(|e| format!("{at}.connectionInfo.kubeConfigFile: Invalid value: {path:?}: {e}")),
        },
        "" => Err(format!("{at}.connectionInfo.type: Required value")),
        // The server is no pod, which alone has such a configuration.
        other => {
            Err(format!("{at}.connectionInfo.type: Unsupported value: {other:?}: supported values: \"KubeConfigFile\""))
        }
    };
    let client = client.map_err(|why| errors.push(why)).ok();
    let kept = |key: &str, time: Duration| if said[key] == false { Duration::ZERO } else { time };
    let (allowed, refused) = (kept("cacheAuthorizedRequests", allowed), kept("cacheUnauthorizedRequests", refused));
    let client = client.filter(|_| errors.len() == before)?;
    Some(Webhook {
        webhook: AccessWebhook::new(client, &version, allowed, refused),
        conditions: programs,
        deny,
        timeout,
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn read(authorizers: Value) -> Result<Links, String> {
        let file = json!({"apiVersion": "apiserver.config.k8s.io/v1", "kind": "AuthorizationConfiguration", "authorizers": authorizers});
        super::super::config_file::read(file.to_string().as_bytes(), KIND, parse)
    }

    fn hook(kubeconfig: &Path, conditions: Value) -> Value {
        json!({"type": "Webhook", "name": "w", "webhook": {
            "timeout": "3s", "subjectAccessReviewVersion": "v1", "matchConditionSubjectAccessReviewVersion": "v1",
            "failurePolicy": "Deny", "matchConditions": conditions,
            "connectionInfo": {"type": "KubeConfigFile", "kubeConfigFile": kubeconfig},
        }})
    }

    #[test]
    fn everything_that_is_wrong_is_told() {
        assert_eq!(read(json!([{"type": "Node", "name": "n"}, {"type": "RBAC", "name": "r"}])).map(|l| l.len()), Ok(2));
        let wrong = json!([{"type": "RBAC", "name": "r"}, {"type": "RBAC", "name": "r"}, {"type": "ABAC"},
            {"type": "Webhook", "name": "w", "webhook": {"timeout": "31s", "failurePolicy": "Maybe"}}]);
        let said = read(wrong).map(|_| ()).expect_err("it is wrong");
        for why in [
            "authorizers[1].name: Duplicate value: \"r\"",
            "authorizers[1].type: Duplicate value: \"RBAC\"",
            "authorizers[2].name: Required value",
            "authorizers[2].type: Unsupported value: \"ABAC\"",
            "authorizers[3].webhook.timeout: Invalid value: \"31s\": must be <= 30s",
            "authorizers[3].webhook.subjectAccessReviewVersion: Required value",
            "authorizers[3].webhook.failurePolicy: Unsupported value: \"Maybe\"",
            "authorizers[3].webhook.connectionInfo.type: Required value",
        ] {
            assert!(said.contains(why), "{why} is not in {said}");
        }
    }

    #[tokio::test]
    async fn a_webhook_is_asked_only_where_its_conditions_hold() {
        let path = std::env::temp_dir().join(format!("chain-{}", crate::random::uuid()));
        // Nobody listens there, which the failure policy turns into a refusal of what is asked.
        let config = json!({"clusters": [{"name": "c", "cluster": {"server": "http://127.0.0.1:1/"}}]});
        std::fs::write(&path, config.to_string()).expect("writable");
        let conditions = json!([{"expression": "has(request.resourceAttributes)"},
            {"expression": "request.resourceAttributes.resource == 'secrets'"}]);
        let links = read(json!([hook(&path, conditions)])).expect("it is fine");
        let Some((_, Link::Webhook(webhook))) = links.first() else { panic!("a webhook") };
        assert_eq!(webhook.concerns(&json!({"resourceAttributes": {"resource": "secrets"}})), Ok(true));
        assert_eq!(webhook.concerns(&json!({"resourceAttributes": {"resource": "pods"}})), Ok(false));
        assert_eq!(webhook.concerns(&json!({"nonResourceAttributes": {"path": "/"}})), Ok(false));
        let user = crate::request::User::default();
        let ask = |resource: &str| crate::request::RequestInfo {
            is_resource: true,
            resource: resource.into(),
            ..Default::default()
        };
        let (pods, secrets) = (ask("pods"), ask("secrets"));
        assert_eq!(webhook.authorize(&Attributes { user: &user, info: &pods }).await, Decision::no_opinion(""));
        assert!(webhook.authorize(&Attributes { user: &user, info: &secrets }).await.denied);
        let wrong = read(json!([hook(&path, json!([{"expression": "request.usr == 'x'"}]))]));
        assert!(wrong.is_err_and(|why| why.contains("undefined field 'usr'")));
        std::fs::remove_file(&path).expect("ours");
    }
}
