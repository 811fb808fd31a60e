//! What a new pod says in one place and means in another too: keys of labels become requirements of selectors, and
//! annotations of old become fields.
//!
//! Follows `mutatePodAffinity`, `mutateTopologySpreadConstraints` and `applyAppArmorVersionSkew` of upstream's strategy.
//! It is done once, when a pod is made: validation and every scheduler see the outcome.

use serde_json::{Value, json};

use super::strategy::items;

const APP_ARMOR: &str = "container.apparmor.security.beta.kubernetes.io/";
/// Longest name of a profile on a node, in bytes.
const MAX_PROFILE: usize = 4095;

/// Settles a new pod; `spread` tells whether constraints of topology spread take part. Returns warnings.
pub fn settle(pod: &mut Value, spread: bool) -> Vec<String> {
    label_keys(pod, spread);
    app_armor(pod)
}

fn label_keys(pod: &mut Value, spread: bool) {
    let labels = pod["metadata"]["labels"].take();
    if let Some(spec) = pod.get_mut("spec") {
        for kind in ["podAffinity", "podAntiAffinity"] {
            let Some(affinity) = spec.pointer_mut(&format!("/affinity/{kind}")) else { continue };
            for term in items(affinity, "requiredDuringSchedulingIgnoredDuringExecution") {
                merge(term, &labels);
            }
            for weighted in items(affinity, "preferredDuringSchedulingIgnoredDuringExecution") {
                if let Some(term) = weighted.get_mut("podAffinityTerm") {
                    merge(term, &labels);
                }
            }
        }
        if spread {
            items(spec, "topologySpreadConstraints").for_each(|constraint| merge(constraint, &labels));
        }
    }
    if !labels.is_null() {
        pod["metadata"]["labels"] = labels;
    } else if let Some(metadata) = pod.get_mut("metadata").and_then(Value::as_object_mut) {
        metadata.remove("labels");
    }
}

/// Adds what the keys of a term ask for to its selector; without a selector it selects nothing, and that is left so.
fn merge(term: &mut Value, labels: &Value) {
    if !term["labelSelector"].is_object() {
        return;
    }
    let mut more = Vec::new();
    for (name, operator) in [("matchLabelKeys", "In"), ("mismatchLabelKeys", "NotIn")] {
        for key in term[name].as_array().into_iter().flatten().filter_map(Value::as_str) {
            if let Some(value) = labels.get(key) {
                more.push(json!({"key": key, "operator": operator, "values": [value]}));
            }
        }
    }
    if more.is_empty() {
        return;
    }
    match &mut term["labelSelector"]["matchExpressions"] {
        Value::Array(expressions) => expressions.extend(more),
        none => *none = more.into(),
    }
}

/// Gives containers the profile that an annotation names and no field does.
fn app_armor(pod: &mut Value) -> Vec<String> {
    let annotations = pod["metadata"]["annotations"].as_object();
    let named = annotations.is_some_and(|all| all.keys().any(|key| key.starts_with(APP_ARMOR)));
    if !named || pod["spec"]["os"]["name"] == "windows" {
        return Vec::new();
    }
    let annotations = pod["metadata"]["annotations"].clone();
    let of_pod = pod["spec"]["securityContext"]["appArmorProfile"].clone();
    let mut warnings = Vec::new();
    let Some(spec) = pod.get_mut("spec") else { return warnings };
    for list in ["initContainers", "containers", "ephemeralContainers"] {
        for container in items(spec, list) {
            let key = format!("{APP_ARMOR}{}", container["name"].as_str().unwrap_or_default());
            let Some(said) = annotations[&key].as_str() else { continue };
            if container["securityContext"]["appArmorProfile"].is_object() {
                continue;
            }
            let profile = profile(said);
            // What the pod says anyway needs no word of its own, and no warning.
            if profile.as_ref() == Some(&of_pod) {
                continue;
            }
            if let Some(profile) = profile {
                container["securityContext"]["appArmorProfile"] = profile;
            }
            warnings.push(format!(
                "metadata.annotations[{key}]: deprecated since v1.30; use the \"appArmorProfile\" field instead"
            ));
        }
    }
    warnings
}

/// The profile that an annotation stands for; None where it stands for none that is valid.
fn profile(said: &str) -> Option<Value> {
    match said {
        "unconfined" => Some(json!({"type": "Unconfined"})),
        "runtime/default" => Some(json!({"type": "RuntimeDefault"})),
        _ => {
            let name = said.strip_prefix("localhost/")?;
            let valid = !name.is_empty() && name.trim() == name && name.len() <= MAX_PROFILE;
            valid.then(|| json!({"type": "Localhost", "localhostProfile": name}))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_of_labels_become_requirements() {
        let term = |name: &str| json!({"topologyKey": "zone", name: ["app", "tier"], "labelSelector": {"matchLabels": {"a": "b"}}});
        let mut pod = json!({"metadata": {"labels": {"app": "web"}}, "spec": {
            "affinity": {
                "podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term("matchLabelKeys")]},
                "podAntiAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [
                    {"weight": 1, "podAffinityTerm": term("mismatchLabelKeys")}]}},
            "topologySpreadConstraints": [
                term("matchLabelKeys"), {"topologyKey": "host", "matchLabelKeys": ["app"]}]}});
        assert!(settle(&mut pod, true).is_empty());
        let merged = |operator: &str| {
            json!({"matchLabels": {"a": "b"},
                "matchExpressions": [{"key": "app", "operator": operator, "values": ["web"]}]})
        };
        let affinity = &pod["spec"]["affinity"];
        assert_eq!(
            affinity["podAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"][0]["labelSelector"],
            merged("In")
        );
        let weighted = &affinity["podAntiAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"][0];
        assert_eq!(weighted["podAffinityTerm"]["labelSelector"], merged("NotIn"));
        assert_eq!(pod["spec"]["topologySpreadConstraints"][0]["labelSelector"], merged("In"));
        assert!(pod["spec"]["topologySpreadConstraints"][1].get("labelSelector").is_none(), "it selects nothing");
        assert_eq!(pod["metadata"]["labels"], json!({"app": "web"}));
    }

    #[test]
    fn a_spread_is_merged_only_where_its_gate_is_on() {
        let constraint = json!({"matchLabelKeys": ["app"], "labelSelector": {}});
        let pod = json!({"metadata": {"labels": {"app": "web"}}, "spec": {"topologySpreadConstraints": [constraint]}});
        let (mut off, mut on) = (pod.clone(), pod.clone());
        settle(&mut off, false);
        assert_eq!(off, pod);
        settle(&mut on, true);
        assert_ne!(on, pod);
        let mut bare = json!({"metadata": {"name": "a"}, "spec": {}});
        settle(&mut bare, true);
        assert_eq!(bare, json!({"metadata": {"name": "a"}, "spec": {}}));
    }

    #[test]
    fn annotated_profiles_become_fields_with_a_warning() {
        let key = |name: &str| format!("{APP_ARMOR}{name}");
        let mut pod = json!({"metadata": {"annotations": {
                key("a"): "localhost/p", key("b"): "runtime/default", key("c"): "unconfined", key("d"): "nonsense"}},
            "spec": {"securityContext": {"appArmorProfile": {"type": "RuntimeDefault"}}, "containers": [
                {"name": "a"}, {"name": "b"}, {"name": "d"},
                {"name": "c", "securityContext": {"appArmorProfile": {"type": "Unconfined"}}}]}});
        let warnings = settle(&mut pod, true);
        let wanted = ["a", "d"].map(|name| {
            format!(
                "metadata.annotations[{}]: deprecated since v1.30; use the \"appArmorProfile\" field instead",
                key(name)
            )
        });
        assert_eq!(warnings, wanted);
        let containers = &pod["spec"]["containers"];
        assert_eq!(
            containers[0]["securityContext"]["appArmorProfile"],
            json!({"type": "Localhost", "localhostProfile": "p"})
        );
        assert!(containers[1].get("securityContext").is_none(), "the pod says the same");
        assert!(containers[2].get("securityContext").is_none());
    }
}
