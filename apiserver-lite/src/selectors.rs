//! Label selectors and node selectors as objects carry them, parsed once and matched against the store's keys.

use std::sync::Arc;

use serde_json::Value;

/// Labels of an object, sorted by key.
pub type Labels = [(Arc<str>, Arc<str>)];

/// The value of a label.
pub fn label<'a>(labels: &'a Labels, key: &str) -> Option<&'a str> {
    let at = labels.binary_search_by(|(k, _)| (**k).cmp(key)).ok()?;
    Some(&labels[at].1)
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Operator {
    In,
    NotIn,
    Exists,
    Missing,
    Greater,
    Less,
    /// One that we do not know: matches nothing.
    Unknown,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Requirement {
    key: Box<str>,
    operator: Operator,
    values: Box<[Box<str>]>,
}

impl Requirement {
    /// The label has one value.
    pub fn equals(key: &str, value: &str) -> Self {
        Requirement { key: key.into(), operator: Operator::In, values: [value.into()].into() }
    }

    pub fn excludes(key: &str, value: &str) -> Self {
        Requirement { key: key.into(), operator: Operator::NotIn, values: [value.into()].into() }
    }

    fn parse(value: &Value) -> Self {
        let operator = match value["operator"].as_str() {
            Some("In") => Operator::In,
            Some("NotIn") => Operator::NotIn,
            Some("Exists") => Operator::Exists,
            Some("DoesNotExist") => Operator::Missing,
            Some("Gt") => Operator::Greater,
            Some("Lt") => Operator::Less,
            _ => Operator::Unknown,
        };
        let values = value["values"].as_array().into_iter().flatten();
        Requirement {
            key: value["key"].as_str().unwrap_or_default().into(),
            operator,
            values: values.filter_map(Value::as_str).map(Into::into).collect(),
        }
    }

    fn matches(&self, value: Option<&str>) -> bool {
        let listed = |value: &str| self.values.iter().any(|v| **v == *value);
        match (self.operator, value) {
            (Operator::In, Some(value)) => listed(value),
            (Operator::NotIn, Some(value)) => !listed(value),
            (Operator::NotIn | Operator::Missing, None) | (Operator::Exists, Some(_)) => true,
            (Operator::Greater | Operator::Less, Some(value)) => {
                let bound = self.values.first().and_then(|v| v.parse::<i64>().ok());
                match (value.parse::<i64>(), bound) {
                    (Ok(have), Some(bound)) if self.operator == Operator::Greater => have > bound,
                    (Ok(have), Some(bound)) => have < bound,
                    _ => false,
                }
            }
            _ => false,
        }
    }
}

/// A `metav1.LabelSelector`. Absent, it selects nothing; empty, everything.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct LabelSelector(Option<Box<[Requirement]>>);

impl LabelSelector {
    pub fn parse(value: &Value) -> Self {
        if !value.is_object() {
            return LabelSelector(None);
        }
        let labels = value["matchLabels"].as_object().into_iter().flatten();
        let labels = labels.filter_map(|(k, v)| Some(Requirement::equals(k, v.as_str()?)));
        let expressions = value["matchExpressions"].as_array().into_iter().flatten().map(Requirement::parse);
        LabelSelector(Some(labels.chain(expressions).collect()))
    }

    /// A plain map of labels, as services and replication controllers have it.
    pub fn from_map(value: &Value) -> Self {
        let Some(labels) = value.as_object().filter(|m| !m.is_empty()) else { return LabelSelector(None) };
        LabelSelector(Some(labels.iter().filter_map(|(k, v)| Some(Requirement::equals(k, v.as_str()?))).collect()))
    }

    /// One that everything matches.
    pub fn everything() -> Self {
        LabelSelector(Some(Box::default()))
    }

    /// Requires what another one requires as well.
    pub fn merge(&mut self, other: &LabelSelector) {
        self.and(other.0.iter().flatten().cloned().collect());
    }

    /// Requires more.
    pub fn and(&mut self, more: Vec<Requirement>) {
        if let Some(all) = self.0.take() {
            self.0 = Some(all.into_vec().into_iter().chain(more).collect());
        }
    }

    pub fn matches(&self, labels: &Labels) -> bool {
        self.0.as_ref().is_some_and(|all| all.iter().all(|r| r.matches(label(labels, &r.key))))
    }

    /// Selects everything or nothing; no sensible owner of anything.
    pub fn is_empty(&self) -> bool {
        self.0.as_ref().is_none_or(|all| all.is_empty())
    }

    pub fn selects_nothing(&self) -> bool {
        self.0.is_none()
    }
}

/// A selector as upstream writes it out: requirements sorted by key. Takes a `metav1.LabelSelector` or a plain map.
pub fn text(selector: &Value) -> String {
    let is_structured = |map: &serde_json::Map<String, Value>| {
        map.get("matchLabels").is_some_and(Value::is_object) || map.get("matchExpressions").is_some_and(Value::is_array)
    };
    let labels = match selector.as_object() {
        Some(map) if is_structured(map) => selector["matchLabels"].as_object(),
        plain => plain,
    };
    let labels = labels.into_iter().flatten();
    let mut parts: Vec<(&str, String)> =
        labels.map(|(key, value)| (key.as_str(), format!("{key}={}", value.as_str().unwrap_or_default()))).collect();
    for expression in selector["matchExpressions"].as_array().into_iter().flatten() {
        let key = expression["key"].as_str().unwrap_or_default();
        let mut values: Vec<&str> =
            expression["values"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
        values.sort_unstable();
        let values = values.join(",");
        parts.push((
            key,
            match expression["operator"].as_str() {
                Some("In") => format!("{key} in ({values})"),
                Some("NotIn") => format!("{key} notin ({values})"),
                Some("DoesNotExist") => format!("!{key}"),
                _ => key.to_owned(),
            },
        ));
    }
    parts.sort_by_key(|(key, _)| *key);
    parts.into_iter().map(|(_, text)| text).collect::<Vec<_>>().join(",")
}

/// A term of a `v1.NodeSelector`: labels and fields that a node has to have.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeTerm {
    labels: Box<[Requirement]>,
    fields: Box<[Requirement]>,
}

impl NodeTerm {
    pub fn parse(value: &Value) -> Self {
        let read = |key: &str| value[key].as_array().into_iter().flatten().map(Requirement::parse).collect();
        NodeTerm { labels: read("matchExpressions"), fields: read("matchFields") }
    }

    /// A term without content matches no node.
    pub fn matches(&self, labels: &Labels, name: &str) -> bool {
        if self.labels.is_empty() && self.fields.is_empty() {
            return false;
        }
        self.labels.iter().all(|r| r.matches(label(labels, &r.key)))
            && self.fields.iter().all(|r| r.matches((*r.key == *"metadata.name").then_some(name)))
    }
}

/// A `v1.NodeSelector`: one of its terms has to match.
pub fn node_terms(selector: &Value) -> Box<[NodeTerm]> {
    selector["nodeSelectorTerms"].as_array().into_iter().flatten().map(NodeTerm::parse).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn labels(pairs: &[(&str, &str)]) -> Vec<(Arc<str>, Arc<str>)> {
        pairs.iter().map(|(k, v)| ((*k).into(), (*v).into())).collect()
    }

    #[test]
    fn an_absent_selector_matches_nothing_and_an_empty_one_all() {
        assert!(!LabelSelector::parse(&Value::Null).matches(&labels(&[("a", "b")])));
        assert!(LabelSelector::parse(&json!({})).matches(&labels(&[("a", "b")])));
        assert!(!LabelSelector::from_map(&json!({})).matches(&[]));
    }

    #[test]
    fn expressions_treat_missing_labels_as_upstream() {
        let selector = |operator: &str| {
            LabelSelector::parse(&json!({"matchExpressions": [{"key": "a", "operator": operator, "values": ["b"]}]}))
        };
        let (b, c) = (labels(&[("a", "b")]), labels(&[("a", "c")]));
        assert!(selector("In").matches(&b) && !selector("In").matches(&c) && !selector("In").matches(&[]));
        assert!(!selector("NotIn").matches(&b) && selector("NotIn").matches(&c) && selector("NotIn").matches(&[]));
        assert!(selector("Exists").matches(&c) && !selector("Exists").matches(&[]));
        assert!(!selector("DoesNotExist").matches(&c) && selector("DoesNotExist").matches(&[]));
    }

    #[test]
    fn selectors_are_written_out_by_key() {
        let selector = json!({"matchLabels": {"b": "1"}, "matchExpressions": [
            {"key": "c", "operator": "DoesNotExist"}, {"key": "a", "operator": "In", "values": ["y", "x"]}]});
        assert_eq!(text(&selector), "a in (x,y),b=1,!c");
        assert_eq!(text(&json!({"app": "web"})), "app=web");
        assert_eq!(text(&Value::Null), "");
    }

    #[test]
    fn node_terms_compare_numbers_and_names() {
        let term = NodeTerm::parse(&json!({"matchExpressions": [{"key": "n", "operator": "Gt", "values": ["5"]}],
            "matchFields": [{"key": "metadata.name", "operator": "In", "values": ["x"]}]}));
        assert!(term.matches(&labels(&[("n", "6")]), "x"));
        assert!(!term.matches(&labels(&[("n", "5")]), "x"));
        assert!(!term.matches(&labels(&[("n", "6")]), "y"));
        assert!(!NodeTerm::parse(&json!({})).matches(&[], "x"));
    }
}
