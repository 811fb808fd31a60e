//! Whether what a manifest says of its nodes can be read: the node affinity, by which this node lets the pod in or not.
//!
//! Told as upstream's `ValidateNodeSelectorTerm` and `ValidateNodeFieldSelectorRequirement` tell it, path by path. What binds
//! pods to other pods is not looked at: nothing here reads it.

use serde_json::Value;

use super::rules::{label_value, list, qualified_name, subdomain, text};

/// Adds what is wrong in a pod's `spec`.
pub fn broken(spec: &Value, found: &mut Vec<String>) {
    const PATH: &str = "spec.affinity.nodeAffinity";
    let affinity = &spec["affinity"]["nodeAffinity"];
    let required = "requiredDuringSchedulingIgnoredDuringExecution";
    if let Some(selector) = affinity.get(required).filter(|selector| !selector.is_null()) {
        let path = format!("{PATH}.{required}.nodeSelectorTerms");
        let terms = list(selector, "nodeSelectorTerms");
        if terms.is_empty() {
            found.push(format!("{path}: Required value: must have at least one node selector term"));
        }
        for (i, one) in terms.iter().enumerate() {
            term(&format!("{path}[{i}]"), one, label_value, found);
        }
    }
    let preferred = "preferredDuringSchedulingIgnoredDuringExecution";
    for (i, one) in list(affinity, preferred).iter().enumerate() {
        let path = format!("{PATH}.{preferred}[{i}]");
        let weight = one["weight"].as_i64().unwrap_or(0);
        if !(1..=100).contains(&weight) {
            found.push(format!("{path}.weight: Invalid value: {weight}: must be in the range 1-100"));
        }
        // Values that are no labels were always accepted here.
        term(&format!("{path}.preference"), &one["preference"], |_| None, found);
    }
}

/// What is wrong with a value, where anything is.
type Wrong = fn(&str) -> Option<&'static str>;

fn term(path: &str, term: &Value, value: Wrong, found: &mut Vec<String>) {
    for (i, one) in list(term, "matchExpressions").iter().enumerate() {
        expression(&format!("{path}.matchExpressions[{i}]"), one, value, found);
    }
    for (i, one) in list(term, "matchFields").iter().enumerate() {
        field(&format!("{path}.matchFields[{i}]"), one, found);
    }
}

fn expression(path: &str, asked: &Value, value: Wrong, found: &mut Vec<String>) {
    let (operator, values) = (text(asked, "operator"), list(asked, "values"));
    match operator {
        "In" | "NotIn" if values.is_empty() => {
            found.push(format!("{path}.values: Required value: must be specified when `operator` is 'In' or 'NotIn'"));
        }
        "Exists" | "DoesNotExist" if !values.is_empty() => {
            let why = "may not be specified when `operator` is 'Exists' or 'DoesNotExist'";
            found.push(format!("{path}.values: Forbidden: {why}"));
        }
        "Gt" | "Lt" if values.len() != 1 => {
            let why = "must be specified single value when `operator` is 'Lt' or 'Gt'";
            found.push(format!("{path}.values: Required value: {why}"));
        }
        "In" | "NotIn" | "Exists" | "DoesNotExist" | "Gt" | "Lt" => {}
        _ => found.push(format!("{path}.operator: Invalid value: {operator:?}: not a valid selector operator")),
    }
    let key = text(asked, "key");
    if let Some(why) = qualified_name(key) {
        found.push(format!("{path}.key: Invalid value: {key:?}: {why}"));
    }
    told(path, values, value, found);
}

fn field(path: &str, asked: &Value, found: &mut Vec<String>) {
    let (operator, values) = (text(asked, "operator"), list(asked, "values"));
    match operator {
        "In" | "NotIn" if values.len() != 1 => {
            let why = "must be only one value when `operator` is 'In' or 'NotIn' for node field selector";
            found.push(format!("{path}.values: Required value: {why}"));
        }
        "In" | "NotIn" => {}
        _ => found.push(format!("{path}.operator: Invalid value: {operator:?}: not a valid selector operator")),
    }
    match text(asked, "key") {
        "metadata.name" => told(path, values, subdomain, found),
        key => found.push(format!("{path}.key: Invalid value: {key:?}: not a valid field selector key")),
    }
}

fn told(path: &str, values: &[Value], wrong: Wrong, found: &mut Vec<String>) {
    for (i, value) in values.iter().enumerate() {
        let value = value.as_str().unwrap_or("");
        if let Some(why) = wrong(value) {
            found.push(format!("{path}.values[{i}]: Invalid value: {value:?}: {why}"));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(affinity: &str) -> Vec<String> {
        let text = format!("affinity: {{nodeAffinity: {{{affinity}}}}}\n");
        let mut found = Vec::new();
        broken(&proto::yaml::parse(text.as_bytes()).unwrap(), &mut found);
        found
    }

    #[test]
    fn what_names_nodes_is_fine() {
        let every = "{key: a, operator: In, values: [b, '']}, {key: x.y/a, operator: NotIn, values: [b]}, \
                     {key: a, operator: Exists}, {key: a, operator: DoesNotExist}, {key: a, operator: Gt, values: ['1']}, \
                     {key: a, operator: Lt, values: ['2']}";
        let field = "{key: metadata.name, operator: In, values: [node-1]}";
        let terms = format!("{{matchExpressions: [{every}]}}, {{matchFields: [{field}]}}, {{}}");
        let whole = format!(
            "requiredDuringSchedulingIgnoredDuringExecution: {{nodeSelectorTerms: [{terms}]}}, \
             preferredDuringSchedulingIgnoredDuringExecution: [{{weight: 1, preference: {{matchExpressions: [{every}]}}}}]"
        );
        assert_eq!(of(&whole), [""; 0]);
        assert_eq!(of(""), [""; 0]);
        let mut found = Vec::new();
        broken(&serde_json::json!({"affinity": "none"}), &mut found);
        assert_eq!(found, [""; 0], "what has the wrong type is told elsewhere");
    }

    /// A pod whose wish cannot be read was refused for not matching this node, and its author not told of the mistake.
    #[test]
    fn what_names_no_node_is_told_by_its_path() {
        let path = "spec.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms";
        let required = |terms: &str| {
            of(&format!("requiredDuringSchedulingIgnoredDuringExecution: {{nodeSelectorTerms: [{terms}]}}")).join("; ")
        };
        assert_eq!(required(""), format!("{path}: Required value: must have at least one node selector term"));
        for (asked, wanted) in [
            ("key: a, operator: In", ".values: Required value: must be specified when `operator` is 'In' or 'NotIn'"),
            (
                "key: a, operator: Exists, values: [b]",
                ".values: Forbidden: may not be specified when `operator` is 'Exists' or 'DoesNotExist'",
            ),
            (
                "key: a, operator: Gt, values: ['1', '2']",
                ".values: Required value: must be specified single value when `operator` is 'Lt' or 'Gt'",
            ),
            (
                "key: a, operator: Like, values: [b]",
                ".operator: Invalid value: \"Like\": not a valid selector operator",
            ),
        ] {
            let told = required(&format!("{{matchExpressions: [{{{asked}}}]}}"));
            assert_eq!(told, format!("{path}[0].matchExpressions[0]{wanted}"));
        }
        let told = required("{matchExpressions: [{key: a b, operator: In, values: ['-']}]}");
        assert!(told.contains("[0].key: Invalid value: \"a b\": name part must consist of"), "{told}");
        assert!(
            told.contains("[0].values[0]: Invalid value: \"-\": a valid label must be an empty string or"),
            "{told}"
        );
        let told = required("{matchFields: [{key: metadata.uid, operator: In, values: [a, b]}]}");
        let field = format!("{path}[0].matchFields[0]");
        let many = "must be only one value when `operator` is 'In' or 'NotIn' for node field selector";
        assert_eq!(
            told,
            format!(
                "{field}.values: Required value: {many}; {field}.key: Invalid value: \"metadata.uid\": not a valid field \
                 selector key"
            )
        );
        let odd = "{weight: 1, preference: {matchExpressions: [{key: a, operator: In, values: ['-1']}]}}";
        assert_eq!(of(&format!("preferredDuringSchedulingIgnoredDuringExecution: [{odd}]")), [""; 0]);
        let preferred = of("preferredDuringSchedulingIgnoredDuringExecution: [{weight: 101}]");
        assert_eq!(
            preferred,
            [
                "spec.affinity.nodeAffinity.preferredDuringSchedulingIgnoredDuringExecution[0].weight: Invalid value: 101: \
              must be in the range 1-100"
            ]
        );
    }
}
