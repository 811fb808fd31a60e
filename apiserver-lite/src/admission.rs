//! Built-in admission: what a cluster adds to an object, or refuses, beyond what the object itself says.
//!
//! Here: ServiceAccount, Priority and DefaultTolerationSeconds, all on creation of pods.

use serde_json::{Value, json};

use crate::resource::Resource;
use crate::server::ApiServer;
use crate::status::{ApiError, Result, quote};

/// Where a pod finds its service account's token, authority and namespace.
const TOKEN_PATH: &str = "/var/run/secrets/kubernetes.io/serviceaccount";
/// Lifetime of the token: an hour, and seven seconds that mark it as asked for by this plugin.
const TOKEN_SECONDS: i64 = 3607;

/// Completes a new object or refuses it.
///
/// # Errors
/// 403 with the plugin's reason.
pub fn on_create(server: &ApiServer, resource: &Resource, namespace: &str, value: &mut Value) -> Result<()> {
    if !resource.group.is_empty() || &*resource.plural != "pods" || !value["spec"].is_object() {
        return Ok(());
    }
    let mirror = !value["metadata"]["annotations"]["kubernetes.io/config.mirror"].is_null();
    service_account(server, namespace, value, mirror)?;
    priority(server, value)?;
    tolerations(value);
    Ok(())
}

fn refuse(value: &Value, why: String) -> ApiError {
    ApiError::forbidden("", "pods", value["metadata"]["name"].as_str().unwrap_or_default(), why)
}

/// Gives the pod its account and mounts the account's token, unless pod or account opt out.
fn service_account(server: &ApiServer, namespace: &str, value: &mut Value, mirror: bool) -> Result<()> {
    if mirror {
        if value["spec"]["serviceAccountName"].as_str().is_some_and(|n| !n.is_empty()) {
            return Err(refuse(value, "a mirror pod may not reference service accounts".into()));
        }
        return Ok(());
    }
    let name = match value["spec"]["serviceAccountName"].as_str() {
        Some(name) if !name.is_empty() => name.to_owned(),
        _ => "default".to_owned(),
    };
    value["spec"]["serviceAccountName"] = name.as_str().into();
    value["spec"]["serviceAccount"] = name.as_str().into();
    let Some(account) = server.store.get(&"serviceaccounts".into(), namespace, &name) else {
        let why =
            format!("error looking up service account {namespace}/{name}: serviceaccount {} not found", quote(&name));
        return Err(refuse(value, why));
    };
    let account = account.value();
    let wanted = value["spec"]["automountServiceAccountToken"].as_bool();
    if wanted.or(account["automountServiceAccountToken"].as_bool()).unwrap_or(true) {
        mount_token(value);
    }
    let secrets = &account["imagePullSecrets"];
    if value["spec"]["imagePullSecrets"].as_array().is_none_or(Vec::is_empty)
        && secrets.as_array().is_some_and(|s| !s.is_empty())
    {
        value["spec"]["imagePullSecrets"] = secrets.clone();
    }
    Ok(())
}

fn mount_token(value: &mut Value) {
    let has_mount = |container: &Value| {
        container["volumeMounts"].as_array().into_iter().flatten().any(|m| m["mountPath"] == TOKEN_PATH)
    };
    let existing = value["spec"]["volumes"]
        .as_array()
        .into_iter()
        .flatten()
        .find_map(|v| v["name"].as_str().filter(|n| n.starts_with("kube-api-access-")).map(ToOwned::to_owned));
    let name = existing.clone().unwrap_or_else(|| format!("kube-api-access-{}", crate::random::suffix(5)));
    let mut mounted = false;
    for list in ["initContainers", "containers"] {
        for container in value["spec"].get_mut(list).and_then(Value::as_array_mut).into_iter().flatten() {
            if has_mount(container) {
                continue;
            }
            let mount = json!({"name": name, "readOnly": true, "mountPath": TOKEN_PATH});
            match container.get_mut("volumeMounts").and_then(Value::as_array_mut) {
                Some(mounts) => mounts.push(mount),
                None => container["volumeMounts"] = json!([mount]),
            }
            mounted = true;
        }
    }
    if !mounted || existing.is_some() {
        return;
    }
    let volume = json!({"name": name, "projected": {"defaultMode": 420, "sources": [
        {"serviceAccountToken": {"expirationSeconds": TOKEN_SECONDS, "path": "token"}},
        {"configMap": {"name": "kube-root-ca.crt", "items": [{"key": "ca.crt", "path": "ca.crt"}]}},
        {"downwardAPI": {"items": [{"path": "namespace", "fieldRef": {"apiVersion": "v1", "fieldPath": "metadata.namespace"}}]}},
    ]}});
    match value["spec"].get_mut("volumes").and_then(Value::as_array_mut) {
        Some(volumes) => volumes.push(volume),
        None => value["spec"]["volumes"] = json!([volume]),
    }
}

/// Resolves the priority class; the classes of the system are known without an object.
fn priority(server: &ApiServer, value: &mut Value) -> Result<()> {
    let classes = "priorityclasses.scheduling.k8s.io".into();
    let name = value["spec"]["priorityClassName"].as_str().unwrap_or_default().to_owned();
    let (class, number, policy) = if name.is_empty() {
        let snapshot = server.store.snapshot(&classes);
        let default = snapshot.range(None, None).map(|o| o.value()).filter(|c| c["globalDefault"] == true);
        match default.min_by_key(|c| c["value"].as_i64().unwrap_or(0)) {
            Some(class) => (
                class["metadata"]["name"].as_str().unwrap_or_default().to_owned(),
                class["value"].as_i64().unwrap_or(0),
                class["preemptionPolicy"].clone(),
            ),
            None => (String::new(), 0, Value::Null),
        }
    } else {
        match (name.as_str(), server.store.get(&classes, "", &name)) {
            (_, Some(class)) => {
                let class = class.value();
                (name, class["value"].as_i64().unwrap_or(0), class["preemptionPolicy"].clone())
            }
            ("system-node-critical", None) => (name, 2_000_001_000, Value::Null),
            ("system-cluster-critical", None) => (name, 2_000_000_000, Value::Null),
            _ => return Err(refuse(value, format!("no PriorityClass with name {name} was found"))),
        }
    };
    if value["spec"]["priority"].as_i64().is_some_and(|p| p != number) {
        let why = format!(
            "the integer value of priority ({}) must not be provided in pod spec; priority admission controller computed {number} from the given PriorityClass name",
            value["spec"]["priority"]
        );
        return Err(refuse(value, why));
    }
    if !class.is_empty() {
        value["spec"]["priorityClassName"] = class.into();
    }
    value["spec"]["priority"] = number.into();
    if value["spec"]["preemptionPolicy"].is_null() {
        value["spec"]["preemptionPolicy"] = if policy.is_string() { policy } else { "PreemptLowerPriority".into() };
    }
    Ok(())
}

/// A node that goes away keeps its pods for five minutes, unless they say otherwise.
fn tolerations(value: &mut Value) {
    if !value["spec"]["tolerations"].is_array() {
        value["spec"]["tolerations"] = json!([]);
    }
    let Some(list) = value["spec"]["tolerations"].as_array_mut() else { return };
    for key in ["node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"] {
        let covered = list.iter().any(|t| {
            let key_fits = t["key"] == key || t["key"].as_str().unwrap_or_default().is_empty();
            key_fits && (t["effect"] == "NoExecute" || t["effect"].as_str().unwrap_or_default().is_empty())
        });
        if !covered {
            list.push(json!({"key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300}));
        }
    }
}
