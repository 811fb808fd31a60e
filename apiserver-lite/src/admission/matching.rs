//! Which requests a policy, a binding or a webhook is about: rules, exceptions and selectors.
//!
//! Follows `apiserver/pkg/admission/plugin/policy/matching` and `webhook/predicates`. Rules are asked first, since they
//! are what rules most requests out; complaints of selectors only count when a rule fits.

use std::sync::Arc;

use serde_json::Value;

use super::Operation;
use super::attributes::{Attributes, labels_of};
use crate::resource::Resource;
use crate::selectors::LabelSelector;
use crate::status::{ApiError, Result};

/// A resource whose version fits a rule.
#[derive(Clone)]
pub enum Matched {
    /// The one that the request names.
    Own,
    /// Another version of it.
    Other(Arc<Resource>),
}

impl Matched {
    pub fn resource<'a>(&'a self, attributes: &Attributes<'a>) -> &'a Resource {
        match self {
            Matched::Own => attributes.call.resource,
            Matched::Other(other) => other,
        }
    }
}

/// `MatchResources`, or what a webhook has of it.
pub struct Constraints {
    rules: Vec<Rule>,
    excluded: Vec<Rule>,
    /// No rules: every request.
    everything: bool,
    /// Rules for one version mean all versions.
    equivalent: bool,
    /// None where everything is selected.
    namespaces: Option<LabelSelector>,
    objects: Option<LabelSelector>,
}

struct Rule {
    operations: Vec<Box<str>>,
    groups: Vec<Box<str>>,
    versions: Vec<Box<str>>,
    /// Resource and subresource.
    resources: Vec<(Box<str>, Box<str>)>,
    scope: Scope,
    /// Names of objects; none for all.
    names: Vec<Box<str>>,
}

#[derive(PartialEq)]
enum Scope {
    All,
    Namespaced,
    Cluster,
}

fn texts(value: &Value) -> Vec<Box<str>> {
    value.as_array().into_iter().flatten().filter_map(Value::as_str).map(Into::into).collect()
}

fn holds(list: &[Box<str>], wanted: &str) -> bool {
    list.iter().any(|item| **item == *"*" || **item == *wanted)
}

impl Rule {
    fn parse(value: &Value) -> Self {
        let split = |text: Box<str>| match text.split_once('/') {
            Some((resource, part)) => (resource.into(), part.into()),
            None => (text, "".into()),
        };
        Rule {
            operations: texts(&value["operations"]),
            groups: texts(&value["apiGroups"]),
            versions: texts(&value["apiVersions"]),
            resources: texts(&value["resources"]).into_iter().map(split).collect(),
            scope: match value["scope"].as_str() {
                Some("Namespaced") => Scope::Namespaced,
                Some("Cluster") => Scope::Cluster,
                _ => Scope::All,
            },
            names: texts(&value["resourceNames"]),
        }
    }

    fn fits(&self, attributes: &Attributes<'_>, resource: &Resource) -> bool {
        let call = attributes.call;
        let part = |have: &str| have == "*" || have == call.subresource;
        let in_namespace = || !attributes.is_namespace() && !attributes.namespace.is_empty();
        holds(&self.operations, call.operation.name())
            && holds(&self.groups, &resource.group)
            && holds(&self.versions, &resource.version)
            && self.resources.iter().any(|(name, sub)| (**name == *"*" || *name == resource.plural) && part(sub))
            && (self.scope == Scope::All || (self.scope == Scope::Namespaced) == in_namespace())
            && (self.names.is_empty() || self.names.iter().any(|name| **name == *call.name))
    }
}

fn selector(value: &Value) -> Option<LabelSelector> {
    Some(LabelSelector::parse(value)).filter(|selector| !selector.is_empty())
}

impl Constraints {
    /// Of a policy or binding; absent, everything.
    pub fn of_policy(value: &Value) -> Self {
        Constraints {
            everything: value["resourceRules"].as_array().is_none_or(Vec::is_empty),
            ..Self::parse(value, "resourceRules")
        }
    }

    /// Of a webhook.
    pub fn of_webhook(value: &Value) -> Self {
        Self::parse(value, "rules")
    }

    fn parse(value: &Value, rules: &str) -> Self {
        let list = |name: &str| value[name].as_array().into_iter().flatten().map(Rule::parse).collect();
        Constraints {
            rules: list(rules),
            excluded: list("excludeResourceRules"),
            everything: false,
            equivalent: value["matchPolicy"] != "Exact",
            namespaces: selector(&value["namespaceSelector"]),
            objects: selector(&value["objectSelector"]),
        }
    }

    fn find(&self, rules: &[Rule], attributes: &Attributes<'_>) -> Option<Matched> {
        if rules.iter().any(|rule| rule.fits(attributes, attributes.call.resource)) {
            return Some(Matched::Own);
        }
        if !self.equivalent || rules.is_empty() {
            return None;
        }
        let fits = |rule: &Rule| attributes.siblings().iter().find(|other| rule.fits(attributes, other));
        rules.iter().find_map(fits).map(|other| Matched::Other(other.clone()))
    }

    /// The resource in whose version the object is wanted; None for a request that is not meant.
    ///
    /// # Errors
    /// 404 for a namespace that does not exist.
    pub fn matches(&self, attributes: &Attributes<'_>, new: Option<&Value>) -> Result<Option<Matched>> {
        let matched = match self.everything {
            true => Some(Matched::Own),
            false => self.find(&self.rules, attributes),
        };
        let Some(matched) = matched else { return Ok(None) };
        if self.find(&self.excluded, attributes).is_some() {
            return Ok(None);
        }
        if let Some(selector) = &self.objects {
            // The options of a connection have no metadata, and what has none fits no selector, whatever that asks for.
            let has_labels = attributes.call.operation != Operation::Connect;
            let fits = |object: Option<&Value>| {
                object.is_some_and(|object| has_labels && selector.matches(&labels_of(object)))
            };
            if !fits(new) && !fits(attributes.call.old) {
                return Ok(None);
            }
        }
        if let Some(selector) = &self.namespaces
            && (!attributes.namespace.is_empty() || attributes.is_namespace())
        {
            let Some(labels) = attributes.namespace_labels(new) else {
                return Err(ApiError::not_found("", "namespaces", attributes.namespace));
            };
            if !selector.matches(&labels) {
                return Ok(None);
            }
        }
        Ok(Some(matched))
    }
}

/// Whether a request is about what decides about requests, which must stay within reach.
pub fn is_exempt(attributes: &Attributes<'_>) -> bool {
    &*attributes.call.resource.group == "admissionregistration.k8s.io"
}

impl Operation {
    /// Whether the request brings no object.
    pub fn is_delete(self) -> bool {
        self == Operation::Delete
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::admission::Call;
    use crate::request::User;

    fn rule(operation: &str, resource: &str) -> Value {
        json!({"apiGroups": [""], "apiVersions": ["v1"], "operations": [operation], "resources": [resource]})
    }

    fn selected(operator: &str, values: &[&str]) -> Value {
        json!({"matchExpressions": [{"key": "a", "operator": operator, "values": values}]})
    }

    /// Options of a connection, which no label is missing from, were selected by the labels that they do not have.
    #[tokio::test]
    async fn no_object_selector_is_about_a_connection() {
        let server = crate::serve::testing::server().await;
        let pods = server.resources.lookup("", "v1", "pods").expect("built in");
        let rules = json!([rule("CONNECT", "pods/exec"), rule("CREATE", "pods")]);
        let user = User::default();
        let matches = |operation: Operation, subresource: &str, object: &Value, selector: &Value| {
            let call = Call {
                server: &server,
                user: &user,
                operation,
                resource: &pods,
                subresource,
                namespace: "default",
                name: "p",
                old: None,
                dry_run: false,
                said: &[],
            };
            let constraints = Constraints::of_webhook(&json!({"rules": rules, "objectSelector": selector}));
            let attributes = Attributes::new(&call, Some(object));
            constraints.matches(&attributes, Some(object)).expect("no namespace is asked for").is_some()
        };
        let options = json!({"apiVersion": "v1", "kind": "PodExecOptions", "command": ["c"]});
        let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}});
        for selector in [selected("DoesNotExist", &[]), selected("NotIn", &["b"])] {
            assert!(!matches(Operation::Connect, "exec", &options, &selector), "{selector}");
            assert!(matches(Operation::Create, "", &pod, &selector), "{selector}");
        }
        assert!(matches(Operation::Connect, "exec", &options, &json!({})), "an empty one is about everything");
    }
}
