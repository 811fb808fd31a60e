//! What is written of which request: the rules of an audit policy, the first that fits decides.

use std::path::Path;

use serde_json::Value;

use crate::request::{RequestInfo, User};

/// How much of a request is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    None,
    Metadata,
    Request,
    RequestResponse,
}

impl Level {
    pub fn name(self) -> &'static str {
        match self {
            Level::None => "None",
            Level::Metadata => "Metadata",
            Level::Request => "Request",
            Level::RequestResponse => "RequestResponse",
        }
    }
}

/// When in a request's life something is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    RequestReceived,
    ResponseStarted,
    ResponseComplete,
    Panic,
}

impl Stage {
    const ALL: [Stage; 4] = [Stage::RequestReceived, Stage::ResponseStarted, Stage::ResponseComplete, Stage::Panic];

    pub fn name(self) -> &'static str {
        match self {
            Stage::RequestReceived => "RequestReceived",
            Stage::ResponseStarted => "ResponseStarted",
            Stage::ResponseComplete => "ResponseComplete",
            Stage::Panic => "Panic",
        }
    }
}

/// What a policy says about one request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Verdict {
    pub level: Level,
    pub omitted: Vec<Stage>,
    pub omit_managed_fields: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Resources {
    group: String,
    resources: Vec<String>,
    names: Vec<String>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Rule {
    verdict: Verdict,
    users: Vec<String>,
    groups: Vec<String>,
    verbs: Vec<String>,
    namespaces: Vec<String>,
    resources: Vec<Resources>,
    paths: Vec<String>,
}

/// The rules in order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Policy {
    rules: Vec<Rule>,
    /// For requests that no rule fits.
    otherwise: Verdict,
}

fn texts(value: &Value) -> Vec<String> {
    value.as_array().into_iter().flatten().filter_map(Value::as_str).map(Into::into).collect()
}

fn stages(value: &Value, field: &str) -> Result<Vec<Stage>, String> {
    let stage = |name: String| {
        let found = Stage::ALL.into_iter().find(|s| s.name() == name);
        found.ok_or_else(|| {
            let allowed = "RequestReceived,ResponseStarted,ResponseComplete,Panic";
            format!("{field}: Invalid value: {name:?}: allowed stages are {allowed}")
        })
    };
    texts(value).into_iter().map(stage).collect()
}

impl Policy {
    /// Reads a policy file.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn load(path: &Path) -> Result<Self, String> {
        let text = std::fs::read(path).map_err(|e| format!("{}: {e}", path.display()))?;
        let value = proto::yaml::read(&text).map_err(|e| format!("{}: {e}", path.display()))?.value;
        Self::parse(&value).map_err(|e| format!("{}: {e}", path.display()))
    }

    fn parse(value: &Value) -> Result<Self, String> {
        if value["apiVersion"] != "audit.k8s.io/v1" || value["kind"] != "Policy" {
            let said = |key: &str| value[key].as_str().unwrap_or_default().to_owned();
            return Err(format!("unknown group version field {}, Kind={} in policy", said("apiVersion"), said("kind")));
        }
        let omitted = stages(&value["omitStages"], "omitStages")?;
        let omit_managed_fields = value["omitManagedFields"] == true;
        let rules = value["rules"].as_array().map(Vec::as_slice).unwrap_or_default();
        if rules.is_empty() {
            return Err("loaded illegal policy with 0 rules".into());
        }
        let rules = rules.iter().enumerate().map(|(index, rule)| {
            let field = format!("rules[{index}]");
            let mut verdict = verdict(rule, &field)?;
            verdict.omitted.extend(&omitted);
            verdict.omit_managed_fields = rule["omitManagedFields"].as_bool().unwrap_or(omit_managed_fields);
            let paths = texts(&rule["nonResourceURLs"]);
            check_paths(&paths, &field)?;
            let resources = rule["resources"].as_array().into_iter().flatten().map(|r| Resources {
                group: r["group"].as_str().unwrap_or_default().into(),
                resources: texts(&r["resources"]),
                names: texts(&r["resourceNames"]),
            });
            let resources: Vec<Resources> = resources.collect();
            check_groups(&resources, &field)?;
            if resources.iter().any(|r| r.resources.is_empty() && !r.names.is_empty()) {
                return Err(format!(
                    "{field}.resources.resourceNames: using resourceNames requires at least one resource"
                ));
            }
            let namespaces = texts(&rule["namespaces"]);
            let regular = !resources.is_empty() || !namespaces.is_empty();
            if regular && !paths.is_empty() {
                return Err(format!(
                    "{field}.nonResourceURLs: rules cannot apply to both regular resources and non-resource URLs"
                ));
            }
            let (users, groups, verbs) = (texts(&rule["users"]), texts(&rule["userGroups"]), texts(&rule["verbs"]));
            Ok(Rule { verdict, users, groups, verbs, namespaces, resources, paths })
        });
        let otherwise = Verdict { level: Level::None, omitted: omitted.clone(), omit_managed_fields };
        Ok(Policy { rules: rules.collect::<Result<_, String>>()?, otherwise })
    }

    /// What is written of a request.
    pub fn verdict(&self, user: &User, info: &RequestInfo) -> &Verdict {
        self.rules.iter().find(|r| r.fits(user, info)).map_or(&self.otherwise, |r| &r.verdict)
    }
}

fn verdict(rule: &Value, field: &str) -> Result<Verdict, String> {
    let level = match rule["level"].as_str().unwrap_or_default() {
        "None" => Level::None,
        "Metadata" => Level::Metadata,
        "Request" => Level::Request,
        "RequestResponse" => Level::RequestResponse,
        "" => return Err(format!("{field}.level: Required value")),
        other => {
            let known = r#""None", "Metadata", "Request", "RequestResponse""#;
            return Err(format!("{field}.level: Unsupported value: {other:?}: supported values: {known}"));
        }
    };
    let omitted = stages(&rule["omitStages"], &format!("{field}.omitStages"))?;
    Ok(Verdict { level, omitted, omit_managed_fields: false })
}

/// A group is named in full and without a version; the core group by nothing.
fn check_groups(resources: &[Resources], field: &str) -> Result<(), String> {
    for group in resources.iter().map(|r| &r.group).filter(|group| !group.is_empty()) {
        let complaints = crate::names::dns_subdomain(group);
        if !complaints.is_empty() {
            return Err(format!("{field}.resources.group: Invalid value: {group:?}: {}", complaints.join(",")));
        }
    }
    Ok(())
}

fn check_paths(paths: &[String], field: &str) -> Result<(), String> {
    for (index, path) in paths.iter().enumerate().filter(|(_, p)| *p != "*") {
        let place = format!("{field}.nonResourceURLs[{index}]: Invalid value: {path:?}");
        if !path.starts_with('/') {
            return Err(format!("{place}: non-resource URL rules must begin with a '/' character"));
        }
        if path.find('*').is_some_and(|at| at + 1 < path.len()) {
            return Err(format!("{place}: non-resource URL wildcards '*' must be the final character of the rule"));
        }
    }
    Ok(())
}

impl Rule {
    fn fits(&self, user: &User, info: &RequestInfo) -> bool {
        let among = |list: &[String], text: &str| list.is_empty() || list.iter().any(|t| t == text);
        if !among(&self.users, &user.name)
            || !(self.groups.is_empty() || self.groups.iter().any(|g| user.in_group(g)))
            || !among(&self.verbs, &info.verb)
        {
            return false;
        }
        if !self.namespaces.is_empty() || !self.resources.is_empty() {
            return info.is_resource
                && among(&self.namespaces, &info.namespace)
                && (self.resources.is_empty() || self.resources.iter().any(|r| r.fits(info)));
        }
        let path_fits = |spec: &String| {
            spec == "*" || *spec == info.path || spec.strip_suffix('*').is_some_and(|p| info.path.starts_with(p))
        };
        self.paths.is_empty() || !info.is_resource && self.paths.iter().any(path_fits)
    }
}

impl Resources {
    fn fits(&self, info: &RequestInfo) -> bool {
        if self.group != info.group {
            return false;
        }
        if self.resources.is_empty() {
            return true;
        }
        let whole = match info.subresource.as_str() {
            "" => info.resource.clone(),
            sub => format!("{}/{sub}", info.resource),
        };
        (self.names.is_empty() || self.names.contains(&info.name))
            && self.resources.iter().any(|wanted| {
                wanted == "*"
                    || *wanted == whole
                    || !info.subresource.is_empty() && wanted.strip_prefix("*/") == Some(info.subresource.as_str())
                    || wanted.strip_suffix("/*") == Some(info.resource.as_str())
            })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn policy(rules: Value) -> Result<Policy, String> {
        let value = json!({"apiVersion": "audit.k8s.io/v1", "kind": "Policy", "omitStages": ["RequestReceived"], "rules": rules});
        Policy::parse(&value)
    }

    fn info(verb: &str, resource: &str, subresource: &str) -> RequestInfo {
        RequestInfo {
            is_resource: true,
            verb: verb.into(),
            resource: resource.into(),
            subresource: subresource.into(),
            ..RequestInfo::default()
        }
    }

    #[test]
    fn the_first_rule_that_fits_decides() {
        let policy = policy(json!([
            {"level": "None", "users": ["system:kube-proxy"], "verbs": ["watch"]},
            {"level": "None", "nonResourceURLs": ["/healthz*", "/version"]},
            {"level": "Request", "resources": [{"group": "", "resources": ["pods/*", "*/status"]}]},
            {"level": "RequestResponse", "resources": [{"group": "", "resources": ["pods"]}], "omitStages": ["Panic"]},
            {"level": "Metadata"},
        ]))
        .expect("a policy");
        let level =
            |user: &str, info: &RequestInfo| policy.verdict(&User { name: user.into(), ..User::default() }, info).level;
        assert_eq!(level("system:kube-proxy", &info("watch", "services", "")), Level::None);
        assert_eq!(level("jane", &info("watch", "services", "")), Level::Metadata);
        assert_eq!(level("jane", &info("get", "pods", "log")), Level::Request);
        assert_eq!(level("jane", &info("update", "nodes", "status")), Level::Request);
        assert_eq!(level("jane", &info("create", "pods", "")), Level::Request, "pods/* holds pods too, as upstream");
        let path = |path: &str| RequestInfo { path: path.into(), verb: "get".into(), ..RequestInfo::default() };
        assert_eq!(level("jane", &path("/healthz/etcd")), Level::None);
        assert_eq!(level("jane", &path("/versions")), Level::Metadata);
    }

    #[test]
    fn wrong_policies_say_what_is_wrong() {
        for (rules, text) in [
            (json!([]), "0 rules"),
            (json!([{}]), "rules[0].level: Required"),
            (json!([{"level": "All"}]), "Unsupported value: \"All\""),
            (json!([{"level": "None", "omitStages": ["x"]}]), "allowed stages"),
            (json!([{"level": "None", "nonResourceURLs": ["x"]}]), "must begin"),
            (json!([{"level": "None", "nonResourceURLs": ["/x"], "namespaces": ["a"]}]), "both"),
            (
                json!([{"level": "None", "resources": [{"group": "*"}]}]),
                "rules[0].resources.group: Invalid value: \"*\"",
            ),
            (json!([{"level": "None", "resources": [{"group": "apps/v1"}]}]), "a lowercase RFC 1123 subdomain"),
        ] {
            let error = policy(rules).expect_err(text);
            assert!(error.contains(text), "{error}");
        }
    }
}
