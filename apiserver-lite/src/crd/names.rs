//! Which of the names that a definition asks for it gets, and the conditions that tell so.

use std::collections::BTreeSet;

use base64::Engine as _;
use proto::time::Timestamp;
use serde_json::{Value, json};

use crate::status::quote;

/// Names in use by other definitions of a group.
#[derive(Debug, Default)]
pub struct Taken {
    resources: BTreeSet<String>,
    kinds: BTreeSet<String>,
}

impl Taken {
    pub fn add(&mut self, definition: &Value) {
        let names = &definition["status"]["acceptedNames"];
        let text = |key: &str| names[key].as_str().filter(|n| !n.is_empty()).map(ToOwned::to_owned);
        self.resources.extend(text("plural"));
        self.resources.extend(text("singular"));
        self.resources.extend(texts(&names["shortNames"]).map(ToOwned::to_owned));
        self.kinds.extend(text("kind"));
        self.kinds.extend(text("listKind"));
    }
}

fn texts(value: &Value) -> impl Iterator<Item = &str> {
    value.as_array().into_iter().flatten().filter_map(Value::as_str)
}

/// The accepted names of a definition and its condition `NamesAccepted`, without a time.
pub fn accept(definition: &Value, taken: &Taken) -> (Value, Value) {
    let asked = &definition["spec"]["names"];
    let mut accepted = definition["status"]["acceptedNames"].clone();
    if !accepted.is_object() {
        accepted = json!({});
    }
    // The last conflict is the one that is told.
    let mut conflict: Option<(&str, String)> = None;
    let in_use = |name: &str| format!("{} is already in use", quote(name));
    for (key, reason, used) in [
        ("plural", "PluralConflict", &taken.resources),
        ("singular", "SingularConflict", &taken.resources),
        ("shortNames", "ShortNamesConflict", &taken.resources),
        ("kind", "KindConflict", &taken.kinds),
        ("listKind", "ListKindConflict", &taken.kinds),
    ] {
        let had: Vec<&str> = texts(&accepted[key]).chain(accepted[key].as_str()).collect();
        let clashes: Vec<String> = texts(&asked[key])
            .chain(asked[key].as_str())
            .filter(|name| !had.contains(name) && used.contains(*name))
            .map(in_use)
            .collect();
        if clashes.is_empty() {
            accepted[key] = asked[key].clone();
        } else {
            conflict = Some((reason, crate::status::aggregate(&clashes)));
        }
    }
    accepted["categories"] = asked["categories"].clone();
    if let Some(map) = accepted.as_object_mut() {
        map.retain(|_, value| !value.is_null());
    }
    let condition = match conflict {
        Some((reason, message)) => condition("NamesAccepted", "False", reason, &message),
        None => condition("NamesAccepted", "True", "NoConflicts", "no conflicts found"),
    };
    (accepted, condition)
}

/// The condition `Established` that goes with accepted or refused names; one that is true stays so.
pub fn established(definition: &Value, names: &Value) -> Value {
    if is_true(definition, "Established") {
        return find(definition, "Established").cloned().unwrap_or_default();
    }
    if names["status"] == "True" && !trusts(definition) {
        condition("Established", "False", "InvalidCABundle", "The conversion webhook CABundle is invalid")
    } else if names["status"] == "True" {
        condition("Established", "True", "InitialNamesAccepted", "the initial names have been accepted")
    } else {
        condition("Established", "False", "NotAccepted", "not all names are accepted")
    }
}

/// Whether the webhook that converts, if there is one, can be checked by the certificates given for it.
pub fn trusts(definition: &Value) -> bool {
    bundle(definition).is_none_or(|bundle| crate::validate::authorities(&bundle).is_ok())
}

/// The certificates by which the converting webhook is checked, where there are any.
fn bundle(definition: &Value) -> Option<Vec<u8>> {
    let packed = definition["spec"]["conversion"]["webhook"]["clientConfig"]["caBundle"].as_str()?;
    base64::engine::general_purpose::STANDARD.decode(packed).ok().filter(|bundle| !bundle.is_empty())
}

/// The condition about approval that definitions in Kubernetes' own groups have.
pub fn approval(definition: &Value) -> Option<Value> {
    let group = definition["spec"]["group"].as_str().unwrap_or_default();
    if !is_protected(group) {
        return None;
    }
    let (state, why) = approval_state(definition);
    let (status, reason) = match state {
        Approval::Approved => ("True", "ApprovedAnnotation"),
        Approval::Bypassed => ("False", "UnapprovedAnnotation"),
        Approval::Missing => ("False", "MissingAnnotation"),
        Approval::Invalid => ("False", "InvalidAnnotation"),
    };
    Some(condition("KubernetesAPIApprovalPolicyConformant", status, reason, &why))
}

/// Groups that only Kubernetes itself brings out.
pub fn is_protected(group: &str) -> bool {
    ["k8s.io", "kubernetes.io"]
        .iter()
        .any(|own| group.strip_suffix(own).is_some_and(|before| before.is_empty() || before.ends_with('.')))
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Approval {
    Approved,
    Bypassed,
    Missing,
    Invalid,
}

pub const APPROVAL: &str = "api-approved.kubernetes.io";

/// Whether the annotation says that the API was approved, and the words for it.
pub fn approval_state(definition: &Value) -> (Approval, String) {
    let said = definition["metadata"]["annotations"][APPROVAL].as_str().unwrap_or_default();
    let see = "see https://github.com/kubernetes/enhancements/pull/1111";
    let is_url = said.split_once("://").is_some_and(|(scheme, rest)| !scheme.is_empty() && !rest.starts_with('/'));
    if said.is_empty() {
        (Approval::Missing, format!("protected groups must have approval annotation \"{APPROVAL}\", {see}"))
    } else if said.starts_with("unapproved") {
        (Approval::Bypassed, format!("not approved: {}", quote(said)))
    } else if is_url && super::formats::fits("uri", said) {
        (Approval::Approved, format!("approved in {said}"))
    } else {
        let why = format!(
            "protected groups must have approval annotation \"{APPROVAL}\" with either a URL or a reason starting with \
             \"unapproved\", {see}"
        );
        (Approval::Invalid, why)
    }
}

/// A condition without a time.
pub fn condition(ty: &str, status: &str, reason: &str, message: &str) -> Value {
    json!({"type": ty, "status": status, "reason": reason, "message": message})
}

pub fn find<'a>(definition: &'a Value, ty: &str) -> Option<&'a Value> {
    definition["status"]["conditions"].as_array()?.iter().find(|c| c["type"] == ty)
}

pub fn is_true(definition: &Value, ty: &str) -> bool {
    find(definition, ty).is_some_and(|c| c["status"] == "True")
}

/// Sets a condition; the time changes with the status alone.
pub fn set(definition: &mut Value, mut new: Value) {
    let now = Timestamp::now().to_seconds_text();
    let old = find(definition, new["type"].as_str().unwrap_or_default()).cloned();
    new["lastTransitionTime"] = match &old {
        Some(old) if old["status"] == new["status"] && old["lastTransitionTime"].is_string() => {
            old["lastTransitionTime"].clone()
        }
        _ => now.into(),
    };
    let conditions = &mut definition["status"]["conditions"];
    if !conditions.is_array() {
        *conditions = json!([]);
    }
    let Some(list) = conditions.as_array_mut() else { return };
    match list.iter_mut().find(|c| c["type"] == new["type"]) {
        Some(place) => *place = new,
        None => list.push(new),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_that_another_definition_has_is_refused() {
        let other = json!({"status": {"acceptedNames": {"plural": "foos", "singular": "foo", "shortNames": ["f"], "kind": "Foo"}}});
        let mut taken = Taken::default();
        taken.add(&other);
        let mut definition = json!({"spec": {"names": {"plural": "bars", "singular": "bar", "shortNames": ["f", "b"], "kind": "Bar", "listKind": "BarList"}}});
        let (names, condition) = accept(&definition, &taken);
        assert_eq!(condition["reason"], "ShortNamesConflict");
        assert_eq!(condition["message"], "\"f\" is already in use");
        assert_eq!(names, json!({"plural": "bars", "singular": "bar", "kind": "Bar", "listKind": "BarList"}));
        assert_eq!(established(&definition, &condition)["reason"], "NotAccepted");
        definition["spec"]["names"]["shortNames"] = json!(["b"]);
        let (names, condition) = accept(&definition, &taken);
        assert_eq!((condition["status"].as_str(), &names["shortNames"]), (Some("True"), &json!(["b"])));
    }

    #[test]
    fn a_converting_webhook_that_cannot_be_trusted_holds_a_definition_back() {
        let of = |bundle: &str| {
            let webhook = json!({"clientConfig": {"caBundle": bundle}});
            json!({"spec": {"conversion": {"strategy": "Webhook", "webhook": webhook}}})
        };
        let accepted = condition("NamesAccepted", "True", "NoConflicts", "");
        let state = established(&of("Cg=="), &accepted);
        assert_eq!((&state["status"], &state["reason"]), (&json!("False"), &json!("InvalidCABundle")));
        assert_eq!(established(&of(""), &accepted)["status"], "True");
    }

    #[test]
    fn groups_of_kubernetes_need_an_approval() {
        let definition = |annotation: &str| json!({"spec": {"group": "x.k8s.io"}, "metadata": {"annotations": {APPROVAL: annotation}}});
        let state = |annotation: &str| approval_state(&definition(annotation)).0;
        assert_eq!(state(""), Approval::Missing);
        assert_eq!(state("https://github.com/kubernetes/enhancements/pull/1"), Approval::Approved);
        assert_eq!(state("unapproved, testing"), Approval::Bypassed);
        assert_eq!(state("yes"), Approval::Invalid);
        assert!(is_protected("k8s.io") && is_protected("a.kubernetes.io") && !is_protected("notk8s.io"));
    }
}
