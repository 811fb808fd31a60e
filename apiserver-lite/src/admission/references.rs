//! What a pod refers to in its namespace, wherever in its spec.

use serde_json::Value;

fn items<'a>(value: &'a Value, key: &str) -> impl Iterator<Item = &'a Value> {
    value[key].as_array().into_iter().flatten()
}

fn containers(pod: &Value) -> impl Iterator<Item = &Value> {
    ["initContainers", "containers", "ephemeralContainers"].into_iter().flat_map(|list| items(&pod["spec"], list))
}

/// Collects names from containers' environments and projected volumes.
fn collect<'a>(pod: &'a Value, env: &str, env_from: &str, projected: &str) -> Vec<&'a str> {
    let mut found: Vec<&Value> = Vec::new();
    for container in containers(pod) {
        found.extend(items(container, "env").map(|e| &e["valueFrom"][env]["name"]));
        found.extend(items(container, "envFrom").map(|e| &e[env_from]["name"]));
    }
    for volume in items(&pod["spec"], "volumes") {
        found.extend(items(&volume["projected"], "sources").map(|s| &s[projected]["name"]));
    }
    found.into_iter().filter_map(Value::as_str).collect()
}

/// Names of the secrets a pod refers to.
pub fn secrets(pod: &Value) -> Vec<&str> {
    /// Volume sources and where their secret's name lies.
    const SOURCES: [(&str, &[&str]); 10] = [
        ("secret", &["secretName"]),
        ("azureFile", &["secretName"]),
        ("cephfs", &["secretRef", "name"]),
        ("cinder", &["secretRef", "name"]),
        ("flexVolume", &["secretRef", "name"]),
        ("rbd", &["secretRef", "name"]),
        ("scaleIO", &["secretRef", "name"]),
        ("iscsi", &["secretRef", "name"]),
        ("storageos", &["secretRef", "name"]),
        ("csi", &["nodePublishSecretRef", "name"]),
    ];
    let mut found = collect(pod, "secretKeyRef", "secretRef", "secret");
    found.extend(items(&pod["spec"], "imagePullSecrets").filter_map(|s| s["name"].as_str()));
    for volume in items(&pod["spec"], "volumes") {
        for (source, path) in SOURCES {
            let at = path.iter().fold(&volume[source], |at, key| &at[*key]);
            found.extend(at.as_str());
        }
    }
    found
}

/// Names of the config maps a pod refers to.
pub fn config_maps(pod: &Value) -> Vec<&str> {
    let mut found = collect(pod, "configMapKeyRef", "configMapRef", "configMap");
    found.extend(items(&pod["spec"], "volumes").filter_map(|v| v["configMap"]["name"].as_str()));
    found
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn references_are_found_in_environments_volumes_and_pull_secrets() {
        let pod = json!({"spec": {
            "imagePullSecrets": [{"name": "pull"}],
            "initContainers": [{"envFrom": [{"secretRef": {"name": "a"}}, {"configMapRef": {"name": "m"}}]}],
            "containers": [{"env": [{"valueFrom": {"secretKeyRef": {"name": "b"}}}, {"value": "x"}]}],
            "volumes": [
                {"secret": {"secretName": "c"}},
                {"csi": {"nodePublishSecretRef": {"name": "d"}}},
                {"projected": {"sources": [{"secret": {"name": "e"}}, {"configMap": {"name": "n"}}]}},
            ],
        }});
        let mut found = secrets(&pod);
        found.sort_unstable();
        assert_eq!(found, ["a", "b", "c", "d", "e", "pull"]);
        assert_eq!(config_maps(&pod), ["m", "n"]);
    }
}
