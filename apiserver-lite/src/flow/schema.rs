//! A FlowSchema made ready for matching: once when it changes, never for a request.

use std::sync::Arc;

use http::HeaderValue;
use serde_json::Value;

use super::counters::Counters;
use super::level::Level;
use crate::request::{RequestInfo, User};

/// What tells the flows of a schema apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Distinguisher {
    Nothing,
    User,
    Namespace,
}

/// A schema whose priority level exists.
pub struct Schema {
    pub name: Box<str>,
    /// Its uid as the header of an answer.
    pub uid: HeaderValue,
    pub level: Arc<Level>,
    pub counters: Arc<Counters>,
    pub precedence: i64,
    distinguisher: Distinguisher,
    rules: Vec<Rule>,
}

struct Rule {
    subjects: Vec<Subject>,
    resources: Vec<ResourceRule>,
    paths: Vec<PathRule>,
}

enum Subject {
    User(Names),
    Group(Names),
    /// A prefix of user names that ends with the namespace, and the account.
    Account(Box<str>, Names),
}

/// A list of names, or all.
struct Names(Option<Vec<Box<str>>>);

struct ResourceRule {
    verbs: Names,
    groups: Names,
    resources: Names,
    namespaces: Names,
    cluster: bool,
}

struct PathRule {
    verbs: Names,
    paths: Names,
}

impl Names {
    fn of(list: &Value) -> Self {
        let texts = list.as_array().into_iter().flatten().filter_map(Value::as_str);
        let names: Vec<Box<str>> = texts.map(Into::into).collect();
        Names((!names.iter().any(|n| **n == *"*")).then_some(names))
    }

    fn one(name: &Value) -> Self {
        let name = name.as_str().unwrap_or_default();
        Names((name != "*").then(|| vec![name.into()]))
    }

    fn fit(&self, name: &str) -> bool {
        self.0.as_ref().is_none_or(|names| names.iter().any(|n| **n == *name))
    }

    /// The name of a resource, with its subresource behind a slash where there is one.
    fn fit_resource(&self, resource: &str, subresource: &str) -> bool {
        if subresource.is_empty() {
            return self.fit(resource);
        }
        self.0.as_ref().is_none_or(|names| {
            names.iter().any(|n| n.split_once('/').is_some_and(|(r, s)| r == resource && s == subresource))
        })
    }

    /// A path, or the beginning of one.
    fn fit_path(&self, path: &str) -> bool {
        self.0.as_ref().is_none_or(|names| {
            names.iter().any(|n| match n.strip_suffix('*') {
                Some(begin) => path.starts_with(begin),
                None => **n == *path,
            })
        })
    }
}

impl Subject {
    fn of(subject: &Value) -> Option<Self> {
        Some(match subject["kind"].as_str()? {
            "User" => Subject::User(Names::one(&subject["user"]["name"])),
            "Group" => Subject::Group(Names::one(&subject["group"]["name"])),
            "ServiceAccount" => {
                let account = &subject["serviceAccount"];
                let namespace = account["namespace"].as_str().unwrap_or_default();
                Subject::Account(format!("system:serviceaccount:{namespace}:").into(), Names::one(&account["name"]))
            }
            _ => return None,
        })
    }

    fn fits(&self, user: &User) -> bool {
        match self {
            Subject::User(names) => names.fit(&user.name),
            Subject::Group(Names(None)) => true,
            Subject::Group(names) => user.groups.iter().any(|group| names.fit(group)),
            Subject::Account(begin, names) => user.name.strip_prefix(&**begin).is_some_and(|name| names.fit(name)),
        }
    }
}

impl Rule {
    fn of(rule: &Value) -> Self {
        let list = |name: &str| rule[name].as_array().into_iter().flatten();
        Rule {
            subjects: list("subjects").filter_map(Subject::of).collect(),
            resources: list("resourceRules")
                .map(|rule| ResourceRule {
                    verbs: Names::of(&rule["verbs"]),
                    groups: Names::of(&rule["apiGroups"]),
                    resources: Names::of(&rule["resources"]),
                    namespaces: Names::of(&rule["namespaces"]),
                    cluster: rule["clusterScope"] == true,
                })
                .collect(),
            paths: list("nonResourceRules")
                .map(|rule| PathRule { verbs: Names::of(&rule["verbs"]), paths: Names::of(&rule["nonResourceURLs"]) })
                .collect(),
        }
    }

    fn fits(&self, user: &User, info: &RequestInfo) -> bool {
        if !self.subjects.iter().any(|subject| subject.fits(user)) {
            return false;
        }
        if !info.is_resource {
            return self.paths.iter().any(|rule| rule.verbs.fit(&info.verb) && rule.paths.fit_path(&info.path));
        }
        self.resources.iter().any(|rule| {
            let place = if info.namespace.is_empty() { rule.cluster } else { rule.namespaces.fit(&info.namespace) };
            place
                && rule.verbs.fit(&info.verb)
                && rule.groups.fit(&info.group)
                && rule.resources.fit_resource(&info.resource, &info.subresource)
        })
    }
}

/// The priority level that a schema names.
pub fn level_of(schema: &Value) -> &str {
    schema["spec"]["priorityLevelConfiguration"]["name"].as_str().unwrap_or_default()
}

impl Schema {
    pub fn new(schema: &Value, level: Arc<Level>, counters: Arc<Counters>) -> Self {
        let (metadata, spec) = (&schema["metadata"], &schema["spec"]);
        let uid = metadata["uid"].as_str().unwrap_or_default();
        Schema {
            name: metadata["name"].as_str().unwrap_or_default().into(),
            uid: HeaderValue::from_str(uid).unwrap_or(HeaderValue::from_static("")),
            level,
            counters,
            precedence: spec["matchingPrecedence"].as_i64().unwrap_or(1000),
            distinguisher: match spec["distinguisherMethod"]["type"].as_str() {
                Some("ByUser") => Distinguisher::User,
                Some("ByNamespace") => Distinguisher::Namespace,
                _ => Distinguisher::Nothing,
            },
            rules: spec["rules"].as_array().into_iter().flatten().map(Rule::of).collect(),
        }
    }

    pub fn fits(&self, user: &User, info: &RequestInfo) -> bool {
        self.rules.iter().any(|rule| rule.fits(user, info))
    }

    /// What tells a request's flow from others of this schema.
    pub fn flow<'a>(&self, user: &'a User, info: &'a RequestInfo) -> &'a str {
        match self.distinguisher {
            Distinguisher::Nothing => "",
            Distinguisher::User => &user.name,
            Distinguisher::Namespace => &info.namespace,
        }
    }
}
