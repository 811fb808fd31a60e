//! Which nodes a selector names: labels and the node's name.
//!
//! Followed: `component-helpers/scheduling/corev1/nodeaffinity`.

use std::collections::BTreeMap;

use proto::api::core::v1::{Node, NodeSelectorRequirement, NodeSelectorTerm, Pod};

use super::spec::PodExt;

/// Whether the node is one that the pod's selector and required affinity allow.
pub fn matches_node(pod: &Pod, node: &Node) -> bool {
    let spec = pod.spec();
    let empty = BTreeMap::new();
    let labels = node.metadata.as_ref().map_or(&empty, |m| &m.labels);
    if !spec.node_selector.iter().all(|(k, v)| labels.get(k) == Some(v)) {
        return false;
    }
    let affinity = spec.affinity.as_ref().and_then(|a| a.node_affinity.as_ref());
    let Some(required) = affinity.and_then(|a| a.required_during_scheduling_ignored_during_execution.as_ref()) else {
        return true;
    };
    let name = node.metadata.as_ref().map_or("", |m| &m.name);
    required.node_selector_terms.iter().any(|term| matches_term(term, labels, name))
}

/// Whether the node is one that the term names.
pub fn matches_term(term: &NodeSelectorTerm, labels: &BTreeMap<String, String>, node_name: &str) -> bool {
    // A term that asks nothing matches nothing.
    if term.match_expressions.is_empty() && term.match_fields.is_empty() {
        return false;
    }
    term.match_expressions.iter().all(|r| matches_requirement(r, labels.get(&r.key).map(String::as_str)))
        && term.match_fields.iter().all(|r| matches_requirement(r, (r.key == "metadata.name").then_some(node_name)))
}

fn matches_requirement(requirement: &NodeSelectorRequirement, value: Option<&str>) -> bool {
    let listed = |v: &str| requirement.values.iter().any(|w| w == v);
    let compared = || {
        let (have, want): (i64, i64) = (value?.parse().ok()?, requirement.values.first()?.parse().ok()?);
        Some(have.cmp(&want))
    };
    match requirement.operator.as_str() {
        "In" => value.is_some_and(listed),
        "NotIn" => !value.is_some_and(listed),
        "Exists" => value.is_some(),
        "DoesNotExist" => value.is_none(),
        "Gt" => compared() == Some(std::cmp::Ordering::Greater),
        "Lt" => compared() == Some(std::cmp::Ordering::Less),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_compared_and_a_missing_label_is_not_in_any_list() {
        let r = |operator: &str, value: &str| NodeSelectorRequirement {
            key: "a".into(),
            operator: operator.into(),
            values: vec![value.into()],
        };
        assert!(matches_requirement(&r("Gt", "4"), Some("5")));
        assert!(!matches_requirement(&r("Lt", "4"), Some("5")));
        assert!(matches_requirement(&r("NotIn", "4"), None));
    }

    #[test]
    fn a_term_that_asks_nothing_matches_nothing() {
        assert!(!matches_term(&NodeSelectorTerm::default(), &BTreeMap::new(), "n"));
        let by_name =
            NodeSelectorRequirement { key: "metadata.name".into(), operator: "In".into(), values: vec!["n".into()] };
        let term = NodeSelectorTerm { match_fields: vec![by_name], ..Default::default() };
        assert!(matches_term(&term, &BTreeMap::new(), "n") && !matches_term(&term, &BTreeMap::new(), "m"));
    }
}
