//! PodTolerationRestriction: pods have the tolerations of their namespace besides their own, and none that it does not
//! allow. Follows `plugin/pkg/admission/podtolerationrestriction`.

use serde_json::{Value, json};

use super::{Call, Operation};
use crate::status::{ApiError, Result};
use crate::tree::{list, text};

const DEFAULTS: &str = "scheduler.alpha.kubernetes.io/defaultTolerations";
const ALLOWED: &str = "scheduler.alpha.kubernetes.io/tolerationsWhitelist";

fn concerns(call: &Call<'_>) -> bool {
    call.is("", "pods") && matches!(call.operation, Operation::Create | Operation::Update)
}

/// Tolerations that an annotation of the namespace lists; none where it has no such annotation.
fn of_namespace(call: &Call<'_>, annotation: &str) -> Result<Option<Vec<Value>>> {
    let found = call.server.store.get(&"namespaces".into(), "", call.namespace);
    let namespace = found.ok_or_else(|| ApiError::not_found("", "namespaces", call.namespace))?.without_owners();
    // An empty text is as good as no annotation.
    let said = namespace["metadata"]["annotations"][annotation].as_str().filter(|text| !text.is_empty());
    let Some(text) = said else { return Ok(None) };
    serde_json::from_str(text).map(Some).map_err(|error| ApiError::new(500, "", error.to_string()))
}

pub fn mutate(call: &Call<'_>, new: &mut Value) -> Result<()> {
    if !concerns(call) || !new["spec"].is_object() {
        return Ok(());
    }
    let mut all = Vec::new();
    if call.operation == Operation::Create {
        let cluster = &call.server.admission.settings().tolerations[0];
        all = of_namespace(call, DEFAULTS)?.unwrap_or_else(|| cluster.clone());
    }
    all.extend(list(&new["spec"], "tolerations").cloned());
    let mut all = merged(&all);
    if crate::defaults::qos_class(new) != "BestEffort" {
        let key = "node.kubernetes.io/memory-pressure";
        all.push(json!({"key": key, "operator": "Exists", "effect": "NoSchedule"}));
        all = merged(&all);
    }
    if !all.iter().eq(list(&new["spec"], "tolerations")) {
        new["spec"]["tolerations"] = all.into();
    }
    Ok(())
}

pub fn validate(call: &Call<'_>, new: &Value) -> Result<()> {
    if !concerns(call) || list(&new["spec"], "tolerations").next().is_none() {
        return Ok(());
    }
    let cluster = &call.server.admission.settings().tolerations[1];
    let allowed = of_namespace(call, ALLOWED)?.unwrap_or_else(|| cluster.clone());
    if !allowed.is_empty() && !are_allowed(list(&new["spec"], "tolerations"), &allowed) {
        let why = "pod tolerations (possibly merged with namespace default tolerations) conflict with its namespace \
                   whitelist";
        return Err(ApiError::new(500, "", why));
    }
    Ok(())
}

fn are_allowed<'a>(mut tolerations: impl Iterator<Item = &'a Value>, allowed: &[Value]) -> bool {
    tolerations.all(|toleration| allowed.iter().any(|by| covers(by, toleration)))
}

/// Without those that another makes superfluous; of equal ones the first stays.
fn merged(all: &[Value]) -> Vec<Value> {
    let mut out: Vec<Value> = Vec::new();
    for (at, toleration) in all.iter().enumerate() {
        let by_later = |later: &Value| later != toleration && covers(later, toleration);
        if !out.iter().any(|kept| covers(kept, toleration)) && !all[at + 1..].iter().any(by_later) {
            out.push(toleration.clone());
        }
    }
    out
}

/// Whether all that a toleration bears another bears too.
fn covers(wide: &Value, narrow: &Value) -> bool {
    if wide == narrow {
        return true;
    }
    let operator = |toleration: &Value| match text(toleration, "operator") {
        "" => "Equal".to_owned(),
        said => said.to_owned(),
    };
    let all_keys = text(wide, "key").is_empty() && operator(wide) == "Exists";
    let keys = text(wide, "key") == text(narrow, "key") || all_keys;
    let effects = matches!(text(wide, "effect"), "") || text(wide, "effect") == text(narrow, "effect");
    let lasts = match (text(wide, "effect"), wide["tolerationSeconds"].as_i64()) {
        ("NoExecute", Some(most)) => narrow["tolerationSeconds"].as_i64().is_some_and(|seconds| seconds <= most),
        _ => true,
    };
    keys && effects
        && lasts
        && match &*operator(wide) {
            "Exists" => true,
            "Equal" => operator(narrow) == "Equal" && text(wide, "value") == text(narrow, "value"),
            _ => false,
        }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(key: &str, operator: &str, value: &str, effect: &str) -> Value {
        json!({"key": key, "operator": operator, "value": value, "effect": effect})
    }

    #[test]
    fn what_another_covers_is_left_out() {
        let (one, two) = (of("a", "Equal", "1", "NoSchedule"), of("a", "Equal", "2", "NoSchedule"));
        let any = of("a", "Exists", "", "");
        assert_eq!(merged(&[one.clone(), two.clone(), one.clone()]), [one.clone(), two.clone()]);
        assert_eq!(merged(&[one.clone(), any.clone(), two.clone()]), std::slice::from_ref(&any));
        let everything = json!({"operator": "Exists"});
        assert!(covers(&everything, &any) && !covers(&any, &everything));
        let seconds = |seconds: i64| json!({"key": "a", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": seconds});
        assert!(covers(&seconds(5), &seconds(3)) && !covers(&seconds(3), &seconds(5)));
        assert!(!covers(&seconds(3), &json!({"key": "a", "operator": "Exists", "effect": "NoExecute"})));
    }

    #[test]
    fn only_what_is_covered_is_allowed() {
        let allowed = [of("a", "Exists", "", "NoSchedule")];
        assert!(are_allowed([of("a", "Equal", "1", "NoSchedule")].iter(), &allowed));
        assert!(!are_allowed([of("a", "Equal", "1", "NoExecute")].iter(), &allowed));
        assert!(!are_allowed([of("b", "Equal", "1", "NoSchedule")].iter(), &allowed));
    }
}
