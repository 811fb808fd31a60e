//! ServiceAccount: every pod runs as an account and finds the account's token where clients look for it. Follows
//! `plugin/pkg/admission/serviceaccount`.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};

use super::{Call, Operation, references};
use crate::status::{Result, quote};

/// Where a pod finds its service account's token, authority and namespace.
const TOKEN_PATH: &str = "/var/run/secrets/kubernetes.io/serviceaccount";
/// Lifetime of the token: an hour, and seven seconds that mark it as asked for by this plugin.
const TOKEN_SECONDS: i64 = 3607;

/// How long a pod waits for the account `default` of a new namespace, which a controller makes.
const PATIENCE: Duration = Duration::from_secs(1);

/// Whether the call makes a pod that needs an account.
fn makes_pod(call: &Call<'_>, new: &Value) -> bool {
    call.is("", "pods") && call.operation == Operation::Create && new["spec"].is_object() && !is_mirror(new)
}

fn is_mirror(pod: &Value) -> bool {
    !pod["metadata"]["annotations"]["kubernetes.io/config.mirror"].is_null()
}

fn account_name(pod: &Value) -> &str {
    pod["spec"]["serviceAccountName"].as_str().filter(|n| !n.is_empty()).unwrap_or("default")
}

/// Gives the account controller a moment when the pod of a new namespace is faster.
pub async fn wait_for_default(call: &Call<'_>, new: &Value) {
    if !makes_pod(call, new) || account_name(new) != "default" {
        return;
    }
    let store = &call.server.store;
    let there = || store.get(&"serviceaccounts".into(), call.namespace, "default").is_some();
    let mut revision = store.subscribe_revision();
    let waited = async { while !there() && revision.changed().await.is_ok() {} };
    // Late is like never: the plugin says so.
    let _ = tokio::time::timeout(PATIENCE, waited).await;
}

/// Gives a new pod its account and mounts the account's token, unless pod or account opt out.
pub fn mutate(call: &Call<'_>, new: &mut Value) -> Result<()> {
    if !makes_pod(call, new) {
        return validate(call, new);
    }
    let name = account_name(new).to_owned();
    new["spec"]["serviceAccountName"] = name.as_str().into();
    new["spec"]["serviceAccount"] = name.as_str().into();
    let account = find(call, new, &name)?;
    let wanted = new["spec"]["automountServiceAccountToken"].as_bool();
    if wanted.or(account["automountServiceAccountToken"].as_bool()).unwrap_or(true) {
        mount_token(new);
    }
    let secrets = &account["imagePullSecrets"];
    if new["spec"]["imagePullSecrets"].as_array().is_none_or(Vec::is_empty)
        && secrets.as_array().is_some_and(|s| !s.is_empty())
    {
        new["spec"]["imagePullSecrets"] = secrets.clone();
    }
    validate(call, new)
}

fn find(call: &Call<'_>, pod: &Value, name: &str) -> Result<Arc<Value>> {
    match call.server.store.get(&"serviceaccounts".into(), call.namespace, name) {
        Some(account) => Ok(account.kept()),
        None => {
            let (namespace, quoted) = (call.namespace, quote(name));
            let why = format!("error looking up service account {namespace}/{name}: serviceaccount {quoted} not found");
            Err(call.refuse(Some(pod), why))
        }
    }
}

/// Checks what a pod refers to against its account.
pub fn validate(call: &Call<'_>, pod: &Value) -> Result<()> {
    if !call.concerns("", "pods") {
        return Ok(());
    }
    match (call.operation, call.subresource) {
        (Operation::Create, "") if is_mirror(pod) => mirror(call, pod),
        (Operation::Create, "") if pod["spec"].is_object() => {
            let name = pod["spec"]["serviceAccountName"].as_str().unwrap_or_default();
            if name.is_empty() {
                let pod_name = pod["metadata"]["name"].as_str().unwrap_or_default();
                let why = format!("no service account specified for pod {}/{pod_name}", call.namespace);
                return Err(call.refuse(Some(pod), why));
            }
            let account = find(call, pod, name)?;
            let lists = &[("initContainers", "init container"), ("containers", "container")];
            limit_secrets(&account, pod, lists, true).map_err(|why| call.refuse(Some(pod), why))
        }
        (Operation::Update, "ephemeralcontainers") => {
            let account = find(call, pod, account_name(pod))?;
            let lists = &[("ephemeralContainers", "ephemeral container")];
            limit_secrets(&account, pod, lists, false).map_err(|why| call.refuse(Some(pod), why))
        }
        _ => Ok(()),
    }
}

/// Mirror pods exist without the API: they may not need anything from it.
fn mirror(call: &Call<'_>, pod: &Value) -> Result<()> {
    if pod["spec"]["serviceAccountName"].as_str().is_some_and(|n| !n.is_empty()) {
        return Err(call.refuse(Some(pod), "a mirror pod may not reference service accounts"));
    }
    if !references::secrets(pod).is_empty() {
        return Err(call.refuse(Some(pod), "a mirror pod may not reference secrets"));
    }
    let projects_token = |volume: &Value| {
        let mut sources = volume["projected"]["sources"].as_array().into_iter().flatten();
        sources.any(|s| !s["serviceAccountToken"].is_null())
    };
    if pod["spec"]["volumes"].as_array().into_iter().flatten().any(projects_token) {
        return Err(call.refuse(Some(pod), "a mirror pod may not use ServiceAccountToken volume projections"));
    }
    Ok(())
}

/// An account may be told to let its pods use no secrets but those it lists.
fn limit_secrets(account: &Value, pod: &Value, lists: &[(&str, &str)], whole: bool) -> Result<(), String> {
    let enforced = account["metadata"]["annotations"]["kubernetes.io/enforce-mountable-secrets"].as_str();
    if !matches!(enforced, Some("1" | "t" | "T" | "TRUE" | "true" | "True")) {
        return Ok(());
    }
    let name = account["metadata"]["name"].as_str().unwrap_or_default();
    let listed = |list: &str, wanted: &Value| {
        account[list].as_array().into_iter().flatten().any(|s| s["name"] == *wanted) || wanted.is_null()
    };
    let shown = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let end = format!("is not allowed because service account {name} does not reference that secret");
    for volume in pod["spec"]["volumes"].as_array().into_iter().flatten().filter(|_| whole) {
        let secret = &volume["secret"]["secretName"];
        if !listed("secrets", secret) {
            return Err(format!("volume with secret.secretName=\"{}\" {end}", shown(secret)));
        }
    }
    for (list, what) in lists {
        for container in pod["spec"][*list].as_array().into_iter().flatten() {
            let start = format!("{what} {}", shown(&container["name"]));
            for variable in container["env"].as_array().into_iter().flatten() {
                let secret = &variable["valueFrom"]["secretKeyRef"]["name"];
                if !listed("secrets", secret) {
                    let variable = shown(&variable["name"]);
                    let secret = shown(secret);
                    return Err(format!(
                        "{start} with envVar {variable} referencing secret.secretName=\"{secret}\" {end}"
                    ));
                }
            }
            for source in container["envFrom"].as_array().into_iter().flatten() {
                let secret = &source["secretRef"]["name"];
                if !listed("secrets", secret) {
                    return Err(format!(
                        "{start} with envFrom referencing secret.secretName=\"{}\" {end}",
                        shown(secret)
                    ));
                }
            }
        }
    }
    for (at, pull) in pod["spec"]["imagePullSecrets"].as_array().into_iter().flatten().enumerate().filter(|_| whole) {
        if !listed("imagePullSecrets", &pull["name"]) {
            return Err(format!(
                "imagePullSecrets[{at}].name=\"{}\" is not allowed because service account {name} does not reference \
                 that imagePullSecret",
                shown(&pull["name"])
            ));
        }
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
