//! What roles and bindings of an older store lack of those of today.
//!
//! At every start the system's roles and bindings get back what is missing: rules, subjects, labels. Nothing is taken
//! away but an aggregation rule where none belongs, so what an operator added stays; the annotation `rbac.authorization.kubernetes.io/autoupdate: "false"` keeps
//! an object as it is. Follows `pkg/registry/rbac/reconciliation`.

use serde_json::{Map, Value};

use crate::auth::Rule;

const AUTO_UPDATE: &str = "rbac.authorization.kubernetes.io/autoupdate";

/// What is to be done with an object that is there.
#[derive(Debug, PartialEq)]
pub(super) enum Step {
    Keep,
    /// It becomes this.
    Write(Value),
    /// Its role cannot be changed: it has to go before the right one can be made.
    MakeAnew,
}

/// Compares a role or binding with what it should be at least.
pub(super) fn step(wanted: &Value, have: &Value) -> Step {
    let says = |object: &Value, what: &str| object["metadata"]["annotations"][AUTO_UPDATE] == what;
    if !says(wanted, "true") || says(have, "false") {
        return Step::Keep;
    }
    if wanted["roleRef"] != have["roleRef"] {
        return Step::MakeAnew;
    }
    let mut value = have.clone();
    for key in ["labels", "annotations"] {
        let said = value["metadata"][key].as_object().cloned().unwrap_or_default();
        let mut all: Map<String, Value> = wanted["metadata"][key].as_object().cloned().unwrap_or_default();
        all.extend(said);
        if !all.is_empty() {
            value["metadata"][key] = all.into();
        }
    }
    // Rules that are put together from those of others follow them, also when they lose some.
    if !wanted["aggregationRule"].is_object() {
        // A role that has rules of its own alone takes none from others, whoever said so.
        if let Some(role) = value.as_object_mut() {
            role.remove("aggregationRule");
        }
        let missing = Rule::uncovered(&Rule::all_from(have), &Rule::all_from(wanted));
        extend(&mut value, "/rules", missing.iter().map(Rule::to_value).collect());
    }
    for path in ["/aggregationRule/clusterRoleSelectors", "/subjects"] {
        extend(&mut value, path, lacking(wanted.pointer(path), have.pointer(path)));
    }
    if value == *have { Step::Keep } else { Step::Write(value) }
}

/// Items of one list that another has not.
fn lacking(wanted: Option<&Value>, have: Option<&Value>) -> Vec<Value> {
    let items = |list: Option<&Value>| list.and_then(Value::as_array).cloned().unwrap_or_default();
    let have = items(have);
    items(wanted).into_iter().filter(|item| !have.contains(item)).collect()
}

/// Adds to the list at a path, which may not be there yet.
fn extend(value: &mut Value, path: &str, more: Vec<Value>) {
    if more.is_empty() {
        return;
    }
    let list = path.split('/').skip(1).fold(value, |at, key| &mut at[key]);
    match list.as_array_mut() {
        Some(list) => list.extend(more),
        None => *list = more.into(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn role(rules: Value) -> Value {
        json!({"metadata": {"name": "r", "labels": {"a": "b"}, "annotations": {AUTO_UPDATE: "true"}}, "rules": rules})
    }

    fn pods(verbs: &[&str]) -> Value {
        json!({"apiGroups": [""], "resources": ["pods"], "verbs": verbs})
    }

    #[test]
    fn a_role_gets_the_rules_that_it_lacks_and_keeps_those_of_its_own() {
        let own = json!({"apiGroups": ["x"], "resources": ["y"], "verbs": ["get"]});
        let have = role(json!([pods(&["get"]), own]));
        let Step::Write(value) = step(&role(json!([pods(&["get", "watch"])])), &have) else { panic!("not completed") };
        assert_eq!(value["rules"], json!([pods(&["get"]), own, pods(&["watch"])]));
        assert_eq!(step(&role(json!([pods(&["get"])])), &have), Step::Keep);
    }

    #[test]
    fn rules_that_are_joined_come_from_the_roles_that_have_them_alone() {
        let joined = |rules: Value| {
            let mut role = role(rules);
            role["aggregationRule"] = json!({"clusterRoleSelectors": [{"matchLabels": {"e": "f"}}]});
            role
        };
        assert_eq!(step(&joined(json!([pods(&["get", "delete"])])), &joined(json!([pods(&["get"])]))), Step::Keep);
    }

    #[test]
    fn a_role_with_rules_of_its_own_takes_none_from_others() {
        let mut have = role(json!([pods(&["get"])]));
        have["aggregationRule"] = json!({"clusterRoleSelectors": [{"matchLabels": {"e": "f"}}]});
        let wanted = role(json!([pods(&["get"])]));
        assert_eq!(step(&wanted, &have), Step::Write(wanted.clone()));
    }

    #[test]
    fn what_is_not_to_be_updated_stays_as_it_is() {
        let mut have = role(json!([]));
        have["metadata"]["annotations"][AUTO_UPDATE] = "false".into();
        assert_eq!(step(&role(json!([pods(&["get"])])), &have), Step::Keep);
    }

    #[test]
    fn labels_selectors_and_subjects_come_back_and_an_operators_win() {
        let wanted = json!({
            "metadata": {"labels": {"a": "b", "c": "d"}, "annotations": {AUTO_UPDATE: "true"}}, "subjects": [{"name": "x"}],
            "aggregationRule": {"clusterRoleSelectors": [{"matchLabels": {"e": "f"}}]},
        });
        let have = json!({"metadata": {"labels": {"a": "own"}}, "subjects": [{"name": "y"}]});
        let Step::Write(value) = step(&wanted, &have) else { panic!("not completed") };
        assert_eq!(value["metadata"]["labels"], json!({"a": "own", "c": "d"}));
        assert_eq!(value["subjects"], json!([{"name": "y"}, {"name": "x"}]));
        assert_eq!(value["aggregationRule"], wanted["aggregationRule"]);
        assert_eq!(step(&wanted, &value), Step::Keep);
    }

    #[test]
    fn a_binding_to_another_role_is_made_anew() {
        let metadata = json!({"annotations": {AUTO_UPDATE: "true"}});
        let binding = |role: &str| json!({"metadata": metadata, "roleRef": {"name": role}});
        assert_eq!(step(&binding("a"), &binding("b")), Step::MakeAnew);
        assert_eq!(step(&binding("a"), &binding("a")), Step::Keep);
    }
}
