//! What a job's failure policy says of a pod that failed.

use serde_json::Value;

use super::super::pods::condition;
use crate::store::ObjectRef;

#[derive(Debug, PartialEq)]
pub enum Action {
    FailJob,
    FailIndex,
    Ignore,
    Count,
}

#[derive(Debug, PartialEq)]
pub struct Rule {
    pub action: Action,
    pub message: String,
}

/// The first rule of a job that a failed pod matches.
pub fn of(job: &Value, pod: &ObjectRef) -> Option<Rule> {
    let rules = job["spec"]["podFailurePolicy"]["rules"].as_array()?;
    let value = pod.without_owners();
    let place = format!("{}/{}", pod.key.namespace, pod.key.name);
    for (at, rule) in rules.iter().enumerate() {
        let Some(what) = rule_matches(rule, &value) else { continue };
        let action = match rule["action"].as_str() {
            Some("FailJob") => Action::FailJob,
            Some("FailIndex") => Action::FailIndex,
            Some("Ignore") => Action::Ignore,
            _ => Action::Count,
        };
        let word = rule["action"].as_str().unwrap_or_default();
        let message = match what {
            Match::Exit { container, code } => format!(
                "Container {container} for pod {place} failed with exit code {code} matching {word} rule at index {at}"
            ),
            Match::Condition(kind) => {
                format!("Pod {place} has condition {kind} matching {word} rule at index {at}")
            }
        };
        return Some(Rule { action, message });
    }
    None
}

enum Match {
    Exit { container: String, code: i64 },
    Condition(String),
}

fn rule_matches(rule: &Value, pod: &Value) -> Option<Match> {
    let exit = &rule["onExitCodes"];
    if exit.is_object() {
        let statuses = ["containerStatuses", "initContainerStatuses"].into_iter();
        let statuses = statuses.flat_map(|list| pod["status"][list].as_array().into_iter().flatten());
        for status in statuses {
            let wanted = exit["containerName"].as_str();
            let Some(code) = status["state"]["terminated"]["exitCode"].as_i64().filter(|c| *c != 0) else { continue };
            let listed = exit["values"].as_array().is_some_and(|v| v.iter().any(|v| v.as_i64() == Some(code)));
            let fits = if exit["operator"] == "NotIn" { !listed } else { listed };
            if fits && wanted.is_none_or(|w| status["name"] == w) {
                let container = status["name"].as_str().unwrap_or_default().to_owned();
                return Some(Match::Exit { container, code });
            }
        }
    }
    let patterns = rule["onPodConditions"].as_array().into_iter().flatten();
    for pattern in patterns {
        let kind = pattern["type"].as_str().unwrap_or_default();
        let status = pattern["status"].as_str().unwrap_or("True");
        if condition(pod, kind).is_some_and(|c| c["status"] == status) {
            return Some(Match::Condition(kind.into()));
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn failure_rules_look_at_exit_codes_and_conditions() {
        let pod = json!({"status": {"containerStatuses": [{"name": "main", "state": {"terminated": {"exitCode": 42}}}],
            "conditions": [{"type": "DisruptionTarget", "status": "True"}]}});
        let exit = |operator: &str, values: Value| json!({"onExitCodes": {"operator": operator, "values": values}});
        assert!(rule_matches(&exit("In", json!([42])), &pod).is_some());
        assert!(rule_matches(&exit("NotIn", json!([42])), &pod).is_none());
        assert!(rule_matches(&exit("NotIn", json!([1])), &pod).is_some());
        let disrupted = json!({"onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]});
        assert!(rule_matches(&disrupted, &pod).is_some());
    }
    /// Of two containers that fit, the message named the one for initialization.
    #[test]
    fn containers_are_looked_at_before_those_for_initialization() {
        let status = |name: &str| json!([{"name": name, "state": {"terminated": {"exitCode": 42}}}]);
        let pod = json!({"status": {"initContainerStatuses": status("init"), "containerStatuses": status("main")}});
        let found = rule_matches(&json!({"onExitCodes": {"operator": "In", "values": [42]}}), &pod);
        assert!(matches!(found, Some(Match::Exit { container, .. }) if container == "main"));
    }
}
