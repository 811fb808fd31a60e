//! RBAC policy rules: what one allows, and whether a set of them covers another.

use serde_json::{Value, json};

use super::authorizer::Attributes;

/// A `rbac.authorization.k8s.io/v1` PolicyRule.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Rule {
    pub verbs: Vec<String>,
    pub api_groups: Vec<String>,
    pub resources: Vec<String>,
    pub resource_names: Vec<String>,
    pub non_resource_urls: Vec<String>,
}

impl Rule {
    pub fn from_value(value: &Value) -> Self {
        let list = |key: &str| texts(&value[key]);
        Rule {
            verbs: list("verbs"),
            api_groups: list("apiGroups"),
            resources: list("resources"),
            resource_names: list("resourceNames"),
            non_resource_urls: list("nonResourceURLs"),
        }
    }

    /// The same as roles and answers have it: lists that are empty are left out.
    pub fn to_value(&self) -> Value {
        let mut out = json!({"verbs": self.verbs});
        let lists = [
            ("apiGroups", &self.api_groups),
            ("resources", &self.resources),
            ("resourceNames", &self.resource_names),
            ("nonResourceURLs", &self.non_resource_urls),
        ];
        for (name, list) in lists.into_iter().filter(|(_, list)| !list.is_empty()) {
            out[name] = json!(list);
        }
        out
    }

    /// The rules of a Role or ClusterRole.
    pub fn all_from(role: &Value) -> Vec<Self> {
        role["rules"].as_array().into_iter().flatten().map(Self::from_value).collect()
    }

    /// Whether the rule alone allows a request.
    pub fn allows(&self, request: &Attributes<'_>) -> bool {
        let info = request.info;
        if !holds(&self.verbs, &info.verb) {
            return false;
        }
        if !info.is_resource {
            return self.non_resource_urls.iter().any(|u| url_covers(u, &info.path));
        }
        holds(&self.api_groups, &info.group)
            && self.resources.iter().any(|r| resource_matches(r, &info.resource, &info.subresource))
            && (self.resource_names.is_empty() || self.resource_names.contains(&info.name))
    }

    /// The rule taken apart: one verb of one resource (or URL) each. Rules are compared like that, because several
    /// together may cover what none does alone.
    fn parts(&self) -> Vec<Rule> {
        let one = |text: &String| vec![text.clone()];
        let mut out = Vec::new();
        for group in &self.api_groups {
            for resource in &self.resources {
                for verb in &self.verbs {
                    let rule =
                        Rule { verbs: one(verb), api_groups: one(group), resources: one(resource), ..Rule::default() };
                    if self.resource_names.is_empty() {
                        out.push(rule);
                    } else {
                        out.extend(self.resource_names.iter().map(|n| Rule { resource_names: one(n), ..rule.clone() }));
                    }
                }
            }
        }
        for url in &self.non_resource_urls {
            for verb in &self.verbs {
                out.push(Rule { verbs: one(verb), non_resource_urls: one(url), ..Rule::default() });
            }
        }
        out
    }

    /// Whether everything that `part` (one verb, one resource) allows is allowed here.
    fn covers(&self, part: &Rule) -> bool {
        let has =
            |own: &[String], wanted: &[String]| own.iter().any(|o| o == "*") || wanted.iter().all(|w| own.contains(w));
        if !has(&self.verbs, &part.verbs) {
            return false;
        }
        if !part.non_resource_urls.is_empty() {
            return part.non_resource_urls.iter().all(|u| self.non_resource_urls.iter().any(|o| url_covers(o, u)));
        }
        let resources = self.resources.iter().any(|r| r == "*")
            || part.resources.iter().all(|wanted| {
                let any_parent = wanted.split_once('/').map(|(_, sub)| format!("*/{sub}"));
                self.resources.contains(wanted) || any_parent.is_some_and(|p| self.resources.contains(&p))
            });
        let names = self.resource_names.is_empty()
            || !part.resource_names.is_empty() && part.resource_names.iter().all(|n| self.resource_names.contains(n));
        has(&self.api_groups, &part.api_groups) && resources && names
    }

    /// What of `wanted` the rules in `held` do not cover, put together again as far as it goes.
    pub fn uncovered(held: &[Rule], wanted: &[Rule]) -> Vec<Rule> {
        let parts = wanted.iter().flat_map(Rule::parts);
        compact(parts.filter(|p| !held.iter().any(|h| h.covers(p))).collect())
    }

    /// One line as upstream's complaint has it: `{APIGroups:[""], Resources:["pods"], Verbs:["get"]}`.
    pub fn describe(&self) -> String {
        let mut out = Vec::new();
        let lists = [
            ("APIGroups", &self.api_groups),
            ("Resources", &self.resources),
            ("ResourceNames", &self.resource_names),
            ("NonResourceURLs", &self.non_resource_urls),
            ("Verbs", &self.verbs),
        ];
        for (name, list) in lists.into_iter().filter(|(_, l)| !l.is_empty()) {
            let quoted: Vec<String> = list.iter().map(|t| crate::status::quote(t)).collect();
            out.push(format!("{name}:[{}]", quoted.join(" ")));
        }
        format!("{{{}}}", out.join(", "))
    }
}

/// Joins the verbs of parts that are otherwise the same, those of URLs excepted; sorted by what upstream sorts by, its
/// text.
fn compact(parts: Vec<Rule>) -> Vec<Rule> {
    let mut out: Vec<Rule> = Vec::new();
    for part in parts {
        let same = |o: &Rule| {
            part.non_resource_urls.is_empty()
                && (&o.api_groups, &o.resources, &o.resource_names)
                    == (&part.api_groups, &part.resources, &part.resource_names)
        };
        match out.iter_mut().find(|o| same(o)) {
            Some(rule) => {
                rule.verbs.extend(part.verbs.into_iter().filter(|v| !rule.verbs.contains(v)).collect::<Vec<_>>())
            }
            None => out.push(part),
        }
    }
    out.sort_by_cached_key(Rule::describe);
    out
}

fn texts(value: &Value) -> Vec<String> {
    value.as_array().into_iter().flatten().filter_map(Value::as_str).map(Into::into).collect()
}

fn holds(list: &[String], wanted: &str) -> bool {
    list.iter().any(|l| l == "*" || l == wanted)
}

/// `*`, `pods`, `pods/log` or `*/log`.
fn resource_matches(rule: &str, resource: &str, subresource: &str) -> bool {
    if rule == "*" {
        return true;
    }
    match rule.split_once('/') {
        None => subresource.is_empty() && rule == resource,
        Some((parent, sub)) => !subresource.is_empty() && sub == subresource && (parent == "*" || parent == resource),
    }
}

/// `*`, a path, or a prefix that ends in `*`.
fn url_covers(rule: &str, path: &str) -> bool {
    rule == "*" || rule == path || rule.strip_suffix('*').is_some_and(|prefix| path.starts_with(prefix))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rules(value: Value) -> Vec<Rule> {
        Rule::all_from(&json!({ "rules": value }))
    }

    #[test]
    fn several_rules_together_cover_one() {
        let held = rules(json!([
            {"apiGroups": [""], "resources": ["pods"], "verbs": ["get"]},
            {"apiGroups": ["*"], "resources": ["*/log", "secrets"], "verbs": ["*"]},
        ]));
        let wanted = rules(json!([{"apiGroups": [""], "resources": ["pods", "pods/log"], "verbs": ["get"]}]));
        assert!(Rule::uncovered(&held, &wanted).is_empty());
        let more = rules(json!([{"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "delete"]}]));
        let missing: Vec<_> = Rule::uncovered(&held, &more).iter().map(Rule::describe).collect();
        assert_eq!(missing, [r#"{APIGroups:[""], Resources:["pods"], Verbs:["delete"]}"#]);
    }

    #[test]
    fn verbs_are_told_together_for_a_resource_and_one_by_one_for_a_url() {
        let wanted = rules(json!([
            {"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list"]},
            {"nonResourceURLs": ["/a"], "verbs": ["put", "get"]},
        ]));
        let missing: Vec<_> = Rule::uncovered(&[], &wanted).iter().map(Rule::describe).collect();
        let expected = [
            r#"{APIGroups:[""], Resources:["pods"], Verbs:["get" "list"]}"#,
            r#"{NonResourceURLs:["/a"], Verbs:["get"]}"#,
            r#"{NonResourceURLs:["/a"], Verbs:["put"]}"#,
        ];
        assert_eq!(missing, expected);
    }

    #[test]
    fn a_rule_for_names_does_not_cover_all_names() {
        let held =
            rules(json!([{"apiGroups": [""], "resources": ["secrets"], "resourceNames": ["a"], "verbs": ["get"]}]));
        let all = rules(json!([{"apiGroups": [""], "resources": ["secrets"], "verbs": ["get"]}]));
        assert_eq!(Rule::uncovered(&held, &all).len(), 1);
        assert!(Rule::uncovered(&held, &held).is_empty());
    }

    #[test]
    fn urls_match_whole_or_by_prefix() {
        assert!(url_covers("/healthz", "/healthz") && !url_covers("/healthz", "/healthz/x"));
        assert!(url_covers("/healthz/*", "/healthz/x") && url_covers("*", "/"));
        assert!(url_covers("/a/*", "/a/*"));
    }
}
