//! PodNodeSelector: pods of a namespace run on the nodes that it or the cluster names. Follows
//! `plugin/pkg/admission/podnodeselector`.

use std::collections::BTreeMap;

use serde_json::Value;

use super::{Call, Operation};
use crate::names;
use crate::status::{ApiError, Result};

const ANNOTATION: &str = "scheduler.alpha.kubernetes.io/node-selector";
/// Namespaces without a selector of their own have this one.
const DEFAULT: &str = "clusterDefaultNodeSelector";

type Labels = BTreeMap<String, String>;

/// Reads `key=value,key=value`.
///
/// # Errors
/// A part that is no label.
pub fn labels(selector: &str) -> std::result::Result<Labels, String> {
    let mut out = Labels::new();
    for part in selector.split(',').filter(|_| !selector.is_empty()) {
        let Some((key, value)) = part.split_once('=').filter(|(_, value)| !value.contains('=')) else {
            return Err(format!("invalid selector: {part}"));
        };
        let (key, value) = (key.trim(), value.trim());
        let complaints = [names::qualified_name(key), names::label_value(value)].concat();
        if !complaints.is_empty() {
            return Err(format!("invalid selector: {part}: {}", complaints.join("; ")));
        }
        out.insert(key.to_owned(), value.to_owned());
    }
    Ok(out)
}

fn concerns(call: &Call<'_>) -> bool {
    call.is("", "pods") && call.operation == Operation::Create
}

/// What the namespace's pods select.
fn of_namespace(call: &Call<'_>) -> Result<Labels> {
    let found = call.server.store.get(&"namespaces".into(), "", call.namespace);
    let namespace = found.ok_or_else(|| ApiError::not_found("", "namespaces", call.namespace))?.without_owners();
    let cluster = &call.server.admission.settings().node_selectors;
    let own = namespace["metadata"]["annotations"][ANNOTATION].as_str();
    let selector = own.or(cluster.get(DEFAULT).map(String::as_str)).unwrap_or_default();
    labels(selector).map_err(|why| ApiError::new(500, "", why))
}

fn conflicts(labels: &Labels, pod: &Value) -> bool {
    let selector = &pod["spec"]["nodeSelector"];
    labels.iter().any(|(key, value)| selector[key].as_str().is_some_and(|said| said != value))
}

fn refuse_conflicts(call: &Call<'_>, labels: &Labels, pod: &Value) -> Result<()> {
    match conflicts(labels, pod) {
        true => {
            let why = "pod node label selector conflicts with its namespace node label selector";
            Err(call.refuse(Some(pod), why))
        }
        false => Ok(()),
    }
}

pub fn mutate(call: &Call<'_>, new: &mut Value) -> Result<()> {
    if !concerns(call) || !new["spec"].is_object() {
        return Ok(());
    }
    let labels = of_namespace(call)?;
    refuse_conflicts(call, &labels, new)?;
    for (key, value) in labels {
        new["spec"]["nodeSelector"][key] = value.into();
    }
    Ok(())
}

pub fn validate(call: &Call<'_>, new: &Value) -> Result<()> {
    if !concerns(call) {
        return Ok(());
    }
    refuse_conflicts(call, &of_namespace(call)?, new)?;
    let allowed = call.server.admission.settings().node_selectors.get(call.namespace);
    let allowed = labels(allowed.map(String::as_str).unwrap_or_default()).map_err(|why| ApiError::new(500, "", why))?;
    match is_allowed(&allowed, new) {
        true => Ok(()),
        false => {
            let why = "pod node label selector labels conflict with its namespace whitelist";
            Err(call.refuse(Some(new), why))
        }
    }
}

/// A namespace for which nothing is said allows everything.
fn is_allowed(allowed: &Labels, pod: &Value) -> bool {
    let mut selector = pod["spec"]["nodeSelector"].as_object().into_iter().flatten();
    allowed.is_empty() || selector.all(|(key, value)| allowed.get(key.as_str()).is_some_and(|is| value == is.as_str()))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn selectors_are_labels() {
        let found = labels("a=b, example.com/c = d").expect("labels");
        assert_eq!(found, Labels::from([("a".into(), "b".into()), ("example.com/c".into(), "d".into())]));
        assert!(labels("").expect("nothing").is_empty());
        assert_eq!(labels("a"), Err("invalid selector: a".into()));
        assert!(labels("a==b").is_err() && labels("-=b").is_err());
    }

    #[test]
    fn pods_select_what_their_namespace_does_and_is_allowed() {
        let of = |selector: Value| json!({"spec": {"nodeSelector": selector}});
        let namespace = labels("zone=a").expect("labels");
        assert!(conflicts(&namespace, &of(json!({"zone": "b"}))));
        assert!(!conflicts(&namespace, &of(json!({"disk": "fast"}))) && !conflicts(&namespace, &of(Value::Null)));
        assert!(is_allowed(&Labels::new(), &of(json!({"disk": "fast"}))));
        assert!(is_allowed(&namespace, &of(json!({"zone": "a"}))) && is_allowed(&namespace, &of(Value::Null)));
        assert!(!is_allowed(&namespace, &of(json!({"disk": "fast"}))));
    }
}
