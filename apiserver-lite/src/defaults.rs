//! What an object says without saying it: defaults of the kinds that the server's own parts rely on.
//!
//! Limits: the kinds below; others are stored as sent.

use serde_json::{Map, Value, json};

use crate::resource::Resource;

/// Sets a property that is absent.
fn default(map: &mut Map<String, Value>, key: &str, value: impl Into<Value>) {
    if map.get(key).is_none_or(Value::is_null) {
        map.insert(key.into(), value.into());
    }
}

/// Fills in the defaults of a kind.
pub fn apply(resource: &Resource, value: &mut Value) {
    match (&*resource.group, &*resource.plural) {
        ("", "pods") => {
            pod_spec(&mut value["spec"]);
            if let Some(spec) = value["spec"].as_object_mut() {
                default(spec, "enableServiceLinks", true);
            }
        }
        ("", "services") => service(&mut value["spec"]),
        ("", "secrets") => {
            if let Some(map) = value.as_object_mut() {
                default(map, "type", "Opaque");
            }
        }
        ("apps", "deployments") => {
            if let Some(spec) = value["spec"].as_object_mut() {
                default(spec, "replicas", 1);
                default(spec, "revisionHistoryLimit", 10);
                default(spec, "progressDeadlineSeconds", 600);
                strategy(spec);
            }
            pod_spec(&mut value["spec"]["template"]["spec"]);
        }
        ("apps", "replicasets") | ("", "replicationcontrollers") => {
            if let Some(spec) = value["spec"].as_object_mut() {
                default(spec, "replicas", 1);
            }
            pod_spec(&mut value["spec"]["template"]["spec"]);
        }
        ("apps", "daemonsets") => {
            if let Some(spec) = value["spec"].as_object_mut() {
                default(spec, "revisionHistoryLimit", 10);
                default(
                    spec,
                    "updateStrategy",
                    json!({"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": 1, "maxSurge": 0}}),
                );
            }
            pod_spec(&mut value["spec"]["template"]["spec"]);
        }
        ("apps", "statefulsets") => {
            if let Some(spec) = value["spec"].as_object_mut() {
                default(spec, "replicas", 1);
                default(spec, "podManagementPolicy", "OrderedReady");
                default(spec, "revisionHistoryLimit", 10);
                default(spec, "updateStrategy", json!({"type": "RollingUpdate", "rollingUpdate": {"partition": 0}}));
                default(
                    spec,
                    "persistentVolumeClaimRetentionPolicy",
                    json!({"whenDeleted": "Retain", "whenScaled": "Retain"}),
                );
            }
            pod_spec(&mut value["spec"]["template"]["spec"]);
        }
        ("batch", "jobs") => job_spec(&mut value["spec"]),
        ("batch", "cronjobs") => {
            if let Some(spec) = value["spec"].as_object_mut() {
                default(spec, "concurrencyPolicy", "Allow");
                default(spec, "suspend", false);
                default(spec, "successfulJobsHistoryLimit", 3);
                default(spec, "failedJobsHistoryLimit", 1);
            }
            // A job's own defaults wait until the job is made; its pods have theirs already.
            pod_spec(&mut value["spec"]["jobTemplate"]["spec"]["template"]["spec"]);
        }
        ("", "podtemplates") => pod_spec(&mut value["template"]["spec"]),
        ("rbac.authorization.k8s.io", "rolebindings" | "clusterrolebindings") => role_binding(value),
        ("networking.k8s.io", "networkpolicies") => network_policy(&mut value["spec"]),
        _ => {}
    }
}

fn job_spec(value: &mut Value) {
    if let Some(spec) = value.as_object_mut() {
        if spec.get("completions").is_none() && spec.get("parallelism").is_none() {
            spec.insert("completions".into(), 1.into());
        }
        default(spec, "parallelism", 1);
        default(spec, "backoffLimit", 6);
        default(spec, "completionMode", "NonIndexed");
        default(spec, "suspend", false);
        default(spec, "manualSelector", false);
        let replace = if spec.get("podFailurePolicy").is_some() { "Failed" } else { "TerminatingOrFailed" };
        default(spec, "podReplacementPolicy", replace);
    }
    pod_spec(&mut value["template"]["spec"]);
}

fn role_binding(value: &mut Value) {
    const GROUP: &str = "rbac.authorization.k8s.io";
    if let Some(reference) = value["roleRef"].as_object_mut() {
        default(reference, "apiGroup", GROUP);
    }
    for subject in value["subjects"].as_array_mut().into_iter().flatten().filter_map(Value::as_object_mut) {
        if matches!(subject.get("kind").and_then(Value::as_str), Some("User" | "Group")) {
            default(subject, "apiGroup", GROUP);
        }
    }
}

fn network_policy(value: &mut Value) {
    let Some(spec) = value.as_object_mut() else { return };
    for rules in ["ingress", "egress"] {
        for rule in spec.get_mut(rules).and_then(Value::as_array_mut).into_iter().flatten() {
            for port in rule.get_mut("ports").and_then(Value::as_array_mut).into_iter().flatten() {
                if let Some(port) = port.as_object_mut() {
                    default(port, "protocol", "TCP");
                }
            }
        }
    }
    let egress = spec.get("egress").and_then(Value::as_array).is_some_and(|e| !e.is_empty());
    default(spec, "policyTypes", if egress { json!(["Ingress", "Egress"]) } else { json!(["Ingress"]) });
}

fn strategy(spec: &mut Map<String, Value>) {
    let strategy = spec.entry("strategy").or_insert_with(|| json!({}));
    if let Some(map) = strategy.as_object_mut() {
        default(map, "type", "RollingUpdate");
        if map["type"] == "RollingUpdate" {
            let rolling = map.entry("rollingUpdate").or_insert_with(|| json!({}));
            if let Some(rolling) = rolling.as_object_mut() {
                default(rolling, "maxUnavailable", "25%");
                default(rolling, "maxSurge", "25%");
            }
        }
    }
}

fn service(value: &mut Value) {
    let Some(spec) = value.as_object_mut() else { return };
    default(spec, "type", "ClusterIP");
    default(spec, "sessionAffinity", "None");
    if spec["type"] != "ExternalName" {
        default(spec, "internalTrafficPolicy", "Cluster");
    }
    if spec["sessionAffinity"] == "ClientIP" {
        default(spec, "sessionAffinityConfig", json!({"clientIP": {"timeoutSeconds": 10800}}));
    }
    if matches!(spec["type"].as_str(), Some("NodePort" | "LoadBalancer")) {
        default(spec, "externalTrafficPolicy", "Cluster");
    }
    if spec["type"] == "LoadBalancer" {
        default(spec, "allocateLoadBalancerNodePorts", true);
    }
    for port in
        spec.get_mut("ports").and_then(Value::as_array_mut).into_iter().flatten().filter_map(Value::as_object_mut)
    {
        default(port, "protocol", "TCP");
        let target = port.get("port").cloned().unwrap_or_default();
        if port.get("targetPort").is_none_or(|t| t == 0 || t == "") {
            port.insert("targetPort".into(), target);
        }
    }
}

/// The defaults of a pod or of a workload's template.
fn pod_spec(value: &mut Value) {
    let Some(spec) = value.as_object_mut() else { return };
    default(spec, "dnsPolicy", "ClusterFirst");
    default(spec, "restartPolicy", "Always");
    default(spec, "schedulerName", "default-scheduler");
    default(spec, "securityContext", json!({}));
    default(spec, "terminationGracePeriodSeconds", 30);
    let host_network = spec.get("hostNetwork") == Some(&Value::Bool(true));
    if let Some(account) = spec.get("serviceAccountName").cloned().filter(|a| a != "") {
        default(spec, "serviceAccount", account);
    } else if let Some(account) = spec.get("serviceAccount").cloned().filter(|a| a != "") {
        spec.insert("serviceAccountName".into(), account);
    }
    for list in ["initContainers", "containers", "ephemeralContainers"] {
        for item in spec.get_mut(list).and_then(Value::as_array_mut).into_iter().flatten() {
            container(item, host_network);
        }
    }
    for item in spec.get_mut("volumes").and_then(Value::as_array_mut).into_iter().flatten() {
        volume(item);
    }
}

fn container(value: &mut Value, host_network: bool) {
    let Some(map) = value.as_object_mut() else { return };
    default(map, "terminationMessagePath", "/dev/termination-log");
    default(map, "terminationMessagePolicy", "File");
    let image = map.get("image").and_then(Value::as_str).unwrap_or_default();
    let name = image.rsplit('/').next().unwrap_or_default();
    let latest = !name.contains('@') && name.split_once(':').is_none_or(|(_, tag)| tag == "latest");
    default(map, "imagePullPolicy", if latest { "Always" } else { "IfNotPresent" });
    for port in
        map.get_mut("ports").and_then(Value::as_array_mut).into_iter().flatten().filter_map(Value::as_object_mut)
    {
        default(port, "protocol", "TCP");
        if host_network {
            let number = port.get("containerPort").cloned().unwrap_or_default();
            default(port, "hostPort", number);
        }
    }
    for variable in map.get_mut("env").and_then(Value::as_array_mut).into_iter().flatten() {
        if let Some(reference) = variable["valueFrom"].get_mut("fieldRef").and_then(Value::as_object_mut) {
            default(reference, "apiVersion", "v1");
        }
        if let Some(reference) = variable["valueFrom"].get_mut("resourceFieldRef").and_then(Value::as_object_mut) {
            default(reference, "divisor", "0");
        }
        if variable["valueFrom"].is_null()
            && let Some(variable) = variable.as_object_mut()
        {
            variable.remove("valueFrom");
        }
    }
    for probe in ["livenessProbe", "readinessProbe", "startupProbe"] {
        if let Some(probe) = map.get_mut(probe).and_then(Value::as_object_mut) {
            default(probe, "timeoutSeconds", 1);
            default(probe, "periodSeconds", 10);
            default(probe, "successThreshold", 1);
            default(probe, "failureThreshold", 3);
            handler(probe);
        }
    }
    if let Some(lifecycle) = map.get_mut("lifecycle").and_then(Value::as_object_mut) {
        for hook in ["postStart", "preStop"] {
            if let Some(hook) = lifecycle.get_mut(hook).and_then(Value::as_object_mut) {
                handler(hook);
            }
        }
    }
    limits_are_requests(map);
}

fn handler(map: &mut Map<String, Value>) {
    if let Some(get) = map.get_mut("httpGet").and_then(Value::as_object_mut) {
        default(get, "path", "/");
        default(get, "scheme", "HTTP");
    }
    if let Some(call) = map.get_mut("grpc").and_then(Value::as_object_mut) {
        default(call, "service", "");
    }
}

/// A limit without a request is also the request.
fn limits_are_requests(map: &mut Map<String, Value>) {
    let Some(resources) = map.get_mut("resources").and_then(Value::as_object_mut) else { return };
    let Some(limits) = resources.get("limits").and_then(Value::as_object).filter(|l| !l.is_empty()).cloned() else {
        return;
    };
    let requests = resources.entry("requests").or_insert_with(|| json!({}));
    if let Some(requests) = requests.as_object_mut() {
        for (name, amount) in limits {
            default(requests, &name, amount);
        }
    }
}

fn volume(value: &mut Value) {
    let Some(map) = value.as_object_mut() else { return };
    // A volume without a source is an empty folder.
    if map.keys().all(|k| k == "name") {
        map.insert("emptyDir".into(), json!({}));
    }
    for source in ["secret", "configMap", "downwardAPI", "projected"] {
        if let Some(source) = map.get_mut(source).and_then(Value::as_object_mut) {
            default(source, "defaultMode", 0o644);
        }
    }
    let field_refs = |items: Option<&mut Value>| {
        for item in items.and_then(Value::as_array_mut).into_iter().flatten() {
            if let Some(reference) = item.get_mut("fieldRef").and_then(Value::as_object_mut) {
                default(reference, "apiVersion", "v1");
            }
            if let Some(reference) = item.get_mut("resourceFieldRef").and_then(Value::as_object_mut) {
                default(reference, "divisor", "0");
            }
        }
    };
    if let Some(downward) = map.get_mut("downwardAPI") {
        field_refs(downward.get_mut("items"));
    }
    if let Some(path) = map.get_mut("hostPath").and_then(Value::as_object_mut) {
        default(path, "type", "");
    }
    let sources = map.get_mut("projected").and_then(|p| p.get_mut("sources")).and_then(Value::as_array_mut);
    for source in sources.into_iter().flatten() {
        if let Some(token) = source.get_mut("serviceAccountToken").and_then(Value::as_object_mut) {
            default(token, "expirationSeconds", 3600);
        }
        if let Some(downward) = source.get_mut("downwardAPI") {
            field_refs(downward.get_mut("items"));
        }
    }
}

/// `Guaranteed`, `Burstable` or `BestEffort`, from the requests and limits of a pod's containers.
pub fn qos_class(pod: &Value) -> &'static str {
    let spec = &pod["spec"];
    let containers =
        ["containers", "initContainers"].into_iter().flat_map(|l| spec[l].as_array().into_iter().flatten());
    let (mut any, mut guaranteed) = (false, true);
    for container in containers {
        for resource in ["cpu", "memory"] {
            let amount = |kind: &str| {
                let text = container["resources"][kind][resource].as_str()?;
                text.parse::<proto::quantity::Quantity>().ok().filter(|q| !q.is_zero())
            };
            let (limit, request) = (amount("limits"), amount("requests"));
            any |= limit.is_some() || request.is_some();
            guaranteed &= limit.is_some() && request.is_none_or(|r| Some(r) == limit);
        }
    }
    match (any, guaranteed) {
        (false, _) => "BestEffort",
        (true, true) => "Guaranteed",
        (true, false) => "Burstable",
    }
}
