//! Rows of the core group.

use serde_json::{Value, json};

use super::{Cells, Column, age, joined, or_none, pairs, since};

const TEXT: &str = "string";

pub(super) fn printer(plural: &str) -> Option<(&'static [Column], Cells)> {
    Some(match plural {
        "pods" => (
            &[
                Column("Ready", TEXT, 0),
                Column("Status", TEXT, 0),
                Column("Restarts", TEXT, 0),
                Column("Age", TEXT, 0),
                Column("IP", TEXT, 1),
                Column("Node", TEXT, 1),
                Column("Nominated Node", TEXT, 1),
                Column("Readiness Gates", TEXT, 1),
            ],
            pod,
        ),
        "nodes" => (
            &[
                Column("Status", TEXT, 0),
                Column("Roles", TEXT, 0),
                Column("Age", TEXT, 0),
                Column("Version", TEXT, 0),
                Column("Internal-IP", TEXT, 1),
                Column("External-IP", TEXT, 1),
                Column("OS-Image", TEXT, 1),
                Column("Kernel-Version", TEXT, 1),
                Column("Container-Runtime", TEXT, 1),
            ],
            node,
        ),
        "namespaces" => {
            (&[Column("Status", TEXT, 0), Column("Age", TEXT, 0)], |v| vec![v["status"]["phase"].clone(), age(v)])
        }
        "configmaps" => (&[Column("Data", TEXT, 0), Column("Age", TEXT, 0)], |v| {
            let count = |p: &str| v[p].as_object().map_or(0, serde_json::Map::len);
            vec![json!(count("data") + count("binaryData")), age(v)]
        }),
        "secrets" => (&[Column("Type", TEXT, 0), Column("Data", TEXT, 0), Column("Age", TEXT, 0)], |v| {
            vec![v["type"].clone(), json!(v["data"].as_object().map_or(0, serde_json::Map::len)), age(v)]
        }),
        "serviceaccounts" => (&[Column("Age", TEXT, 0)], |v| vec![age(v)]),
        "services" => (
            &[
                Column("Type", TEXT, 0),
                Column("Cluster-IP", TEXT, 0),
                Column("External-IP", TEXT, 0),
                Column("Port(s)", TEXT, 0),
                Column("Age", TEXT, 0),
                Column("Selector", TEXT, 1),
            ],
            service,
        ),
        "events" => (
            &[
                Column("Last Seen", TEXT, 0),
                Column("Type", TEXT, 0),
                Column("Reason", TEXT, 0),
                Column("Object", TEXT, 0),
                Column("Subobject", TEXT, 1),
                Column("Source", TEXT, 1),
                Column("Message", TEXT, 0),
                Column("First Seen", TEXT, 1),
                Column("Count", TEXT, 1),
                Column("Name", TEXT, 1),
            ],
            event,
        ),
        "replicationcontrollers" => super::apps::printer("replicasets")?,
        _ => return None,
    })
}

/// A pod's one word of status, worked out from its conditions and containers as `kubectl get` shows it.
fn pod(v: &Value) -> Vec<Value> {
    let (spec, status) = (&v["spec"], &v["status"]);
    let mut reason = status["reason"].as_str().or(status["phase"].as_str()).unwrap_or_default().to_owned();
    let list = |value: &'static str| status[value].as_array().map(Vec::as_slice).unwrap_or_default();
    let sidecar = |name: &Value| {
        spec["initContainers"]
            .as_array()
            .into_iter()
            .flatten()
            .any(|c| &c["name"] == name && c["restartPolicy"] == "Always")
    };
    let mut total = spec["containers"].as_array().map_or(0, Vec::len);
    total += spec["initContainers"].as_array().into_iter().flatten().filter(|c| c["restartPolicy"] == "Always").count();
    let (mut ready, mut restarts, mut last_restart) = (0, 0, String::new());
    if list("conditions").iter().any(|c| c["type"] == "PodScheduled" && c["reason"] == "SchedulingGated") {
        reason = "SchedulingGated".into();
    }
    let latest = |container: &Value, last: &mut String| {
        let time = container["lastState"]["terminated"]["finishedAt"].as_str().unwrap_or_default();
        if time > last.as_str() {
            *last = time.to_owned();
        }
    };
    let mut initializing = false;
    for (index, container) in list("initContainerStatuses").iter().enumerate() {
        restarts += container["restartCount"].as_i64().unwrap_or(0);
        latest(container, &mut last_restart);
        let (terminated, waiting) = (&container["state"]["terminated"], &container["state"]["waiting"]);
        if terminated["exitCode"] == 0 {
            continue;
        }
        if sidecar(&container["name"]) && container["started"] == true {
            if container["ready"] == true {
                ready += 1;
            }
            continue;
        }
        reason = match (ended(terminated), waiting["reason"].as_str()) {
            (Some(text), _) => format!("Init:{text}"),
            (None, Some(text)) if !text.is_empty() && text != "PodInitializing" => format!("Init:{text}"),
            _ => format!("Init:{index}/{}", spec["initContainers"].as_array().map_or(0, Vec::len)),
        };
        initializing = true;
        break;
    }
    let initialized = list("conditions").iter().any(|c| c["type"] == "Initialized" && c["status"] == "True");
    if !initializing || initialized {
        (restarts, last_restart) = sidecar_restarts(v);
        let mut running = false;
        for container in list("containerStatuses").iter().rev() {
            restarts += container["restartCount"].as_i64().unwrap_or(0);
            latest(container, &mut last_restart);
            let state = &container["state"];
            if let Some(text) = state["waiting"]["reason"].as_str().filter(|t| !t.is_empty()) {
                reason = text.into();
            } else if let Some(text) = ended(&state["terminated"]) {
                reason = text;
            } else if container["ready"] == true && state["running"].is_object() {
                running = true;
                ready += 1;
            }
        }
        if reason == "Completed" && running {
            let is_ready = list("conditions").iter().any(|c| c["type"] == "Ready" && c["status"] == "True");
            reason = if is_ready { "Running" } else { "NotReady" }.into();
        }
    }
    if v["metadata"]["deletionTimestamp"].is_string() {
        if status["reason"] == "NodeLost" {
            reason = "Unknown".into();
        } else if status["phase"] != "Succeeded" && status["phase"] != "Failed" {
            reason = "Terminating".into();
        }
    }
    let restarts = if restarts > 0 && !last_restart.is_empty() {
        format!("{restarts} ({} ago)", since(&last_restart.into()).as_str().unwrap_or_default())
    } else {
        restarts.to_string()
    };
    let gates = spec["readinessGates"].as_array().map_or(0, Vec::len);
    let open = spec["readinessGates"]
        .as_array()
        .into_iter()
        .flatten()
        .filter(|g| list("conditions").iter().any(|c| c["type"] == g["conditionType"] && c["status"] == "True"))
        .count();
    let gates: Value = if gates == 0 { "<none>".into() } else { format!("{open}/{gates}").into() };
    vec![
        format!("{ready}/{total}").into(),
        reason.into(),
        restarts.into(),
        age(v),
        or_none(&status["podIP"]),
        or_none(&spec["nodeName"]),
        or_none(&status["nominatedNodeName"]),
        gates,
    ]
}

/// Restarts of sidecars, which count with the containers once initialization is over, and the time of the last.
fn sidecar_restarts(v: &Value) -> (i64, String) {
    let (mut total, mut last) = (0, "");
    for container in v["status"]["initContainerStatuses"].as_array().into_iter().flatten() {
        let restartable = v["spec"]["initContainers"]
            .as_array()
            .into_iter()
            .flatten()
            .any(|c| c["name"] == container["name"] && c["restartPolicy"] == "Always");
        if restartable {
            total += container["restartCount"].as_i64().unwrap_or(0);
            last = last.max(container["lastState"]["terminated"]["finishedAt"].as_str().unwrap_or_default());
        }
    }
    (total, last.to_owned())
}

/// How a container ended, or None when it has not.
fn ended(terminated: &Value) -> Option<String> {
    if !terminated.is_object() {
        return None;
    }
    match (terminated["reason"].as_str(), terminated["signal"].as_i64()) {
        (Some(reason), _) if !reason.is_empty() => Some(reason.into()),
        (_, Some(signal)) if signal != 0 => Some(format!("Signal:{signal}")),
        _ => Some(format!("ExitCode:{}", terminated["exitCode"].as_i64().unwrap_or(0))),
    }
}

fn node(v: &Value) -> Vec<Value> {
    let status = &v["status"];
    let ready = status["conditions"].as_array().into_iter().flatten().find(|c| c["type"] == "Ready");
    let mut state = match ready.and_then(|c| c["status"].as_str()) {
        Some("True") => "Ready",
        Some(_) => "NotReady",
        None => "Unknown",
    }
    .to_owned();
    if v["spec"]["unschedulable"] == true {
        state.push_str(",SchedulingDisabled");
    }
    let mut roles: Vec<&str> = v["metadata"]["labels"]
        .as_object()
        .into_iter()
        .flatten()
        .filter_map(|(key, value)| match key.strip_prefix("node-role.kubernetes.io/") {
            Some(role) if !role.is_empty() => Some(role),
            _ if key == "kubernetes.io/role" => value.as_str().filter(|r| !r.is_empty()),
            _ => None,
        })
        .collect();
    roles.sort_unstable();
    roles.dedup();
    let roles: Value = if roles.is_empty() { "<none>".into() } else { roles.join(",").into() };
    let address = |kind: &str| {
        let found = status["addresses"].as_array().into_iter().flatten().find(|a| a["type"] == kind);
        found.map_or("<none>".into(), |a| a["address"].clone())
    };
    let info = |key: &str| match status["nodeInfo"][key].as_str() {
        Some(text) if !text.is_empty() => text.into(),
        _ => Value::from("<unknown>"),
    };
    vec![
        state.into(),
        roles,
        age(v),
        status["nodeInfo"]["kubeletVersion"].as_str().unwrap_or_default().into(),
        address("InternalIP"),
        address("ExternalIP"),
        info("osImage"),
        kernel(&v["status"]["nodeInfo"]),
        info("containerRuntimeVersion"),
    ]
}

/// Version of the kernel, and the architecture where it is known.
fn kernel(info: &Value) -> Value {
    let part = |key: &str| info[key].as_str().unwrap_or_default();
    match (part("kernelVersion"), part("architecture")) {
        ("", _) => "<unknown>".into(),
        (version, "") => version.into(),
        (version, architecture) => format!("{version} ({architecture})").into(),
    }
}

fn service(v: &Value) -> Vec<Value> {
    let spec = &v["spec"];
    let kind = spec["type"].as_str().unwrap_or_default();
    let mut external = if kind == "LoadBalancer" { balancers(v) } else { Vec::new() };
    external.extend(spec["externalIPs"].as_array().into_iter().flatten().filter_map(Value::as_str));
    let external = match kind {
        "ExternalName" => spec["externalName"].as_str().unwrap_or_default().to_owned(),
        "LoadBalancer" if external.is_empty() => "<pending>".into(),
        // A bookmark's empty object has no type.
        "" => "<unknown>".into(),
        _ if external.is_empty() => "<none>".into(),
        _ => external.join(","),
    };
    let ports: Vec<String> = spec["ports"]
        .as_array()
        .into_iter()
        .flatten()
        .map(|p| {
            let node_port = p["nodePort"].as_i64().filter(|n| *n > 0).map(|n| format!(":{n}")).unwrap_or_default();
            format!("{}{node_port}/{}", p["port"], p["protocol"].as_str().unwrap_or("TCP"))
        })
        .collect();
    let ports: Value = if ports.is_empty() { "<none>".into() } else { ports.join(",").into() };
    vec![kind.into(), or_none(&spec["clusterIP"]), external.into(), ports, age(v), pairs(&spec["selector"])]
}

/// Addresses of the load balancers that lead to a service or ingress, sorted.
pub(super) fn balancers(v: &Value) -> Vec<&str> {
    let ingress = v["status"]["loadBalancer"]["ingress"].as_array().into_iter().flatten();
    let mut out: Vec<&str> = ingress
        .filter_map(|i| {
            let part = |key: &str| i[key].as_str().filter(|t| !t.is_empty());
            part("ip").or(part("hostname"))
        })
        .collect();
    out.sort_unstable();
    out.dedup();
    out
}

fn event(v: &Value) -> Vec<Value> {
    let part = |value: &Value, key: &str| value[key].as_str().unwrap_or_default().to_owned();
    let either = |one: String, other: String| if one.is_empty() { other } else { one };
    let first = if v["firstTimestamp"].is_string() { &v["firstTimestamp"] } else { &v["eventTime"] };
    let series = &v["series"];
    let (last, count) = if series.is_object() {
        (&series["lastObservedTime"], series["count"].as_i64().unwrap_or(0))
    } else {
        let last = if v["lastTimestamp"].is_string() { &v["lastTimestamp"] } else { first };
        (last, v["count"].as_i64().filter(|c| *c != 0).unwrap_or(1))
    };
    let object = &v["involvedObject"];
    let mut about = part(object, "kind").to_lowercase();
    let name = part(object, "name");
    if !name.is_empty() {
        about = format!("{about}/{name}");
    }
    let component = either(part(&v["source"], "component"), part(v, "reportingComponent"));
    let instance = either(part(&v["source"], "host"), part(v, "reportingInstance"));
    let source = if instance.is_empty() { component } else { format!("{component}, {instance}") };
    vec![
        since(last),
        v["type"].clone(),
        v["reason"].clone(),
        about.into(),
        part(object, "fieldPath").into(),
        source.into(),
        part(v, "message").trim().into(),
        since(first),
        count.into(),
        v["metadata"]["name"].clone(),
    ]
}

/// Names and images of a template's containers.
pub(super) fn containers(template: &Value) -> [Value; 2] {
    let containers = &template["spec"]["containers"];
    [joined(containers, "name"), joined(containers, "image")]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(v: Value) -> (String, String) {
        let cells = pod(&v);
        let text = |at: usize| cells[at].as_str().unwrap_or_default().to_owned();
        (text(1), text(2))
    }

    #[test]
    fn a_pod_that_ended_is_not_terminating() {
        let of = |phase: &str| json!({"metadata": {"deletionTimestamp": "2020-01-01T00:00:00Z"}, "status": {"phase": phase}});
        assert_eq!(status(of("Running")).0, "Terminating");
        assert_eq!(status(of("Succeeded")).0, "Succeeded");
        let mut lost = of("Running");
        lost["status"]["reason"] = "NodeLost".into();
        assert_eq!(status(lost).0, "Unknown");
    }

    #[test]
    fn restarts_of_sidecars_count_and_those_of_others_do_not() {
        let ended = json!({"terminated": {"exitCode": 0, "reason": "Completed"}});
        let v = json!({
            "spec": {"initContainers": [{"name": "setup"}, {"name": "proxy", "restartPolicy": "Always"}]},
            "status": {"phase": "Running", "initContainerStatuses": [
                {"name": "setup", "restartCount": 3, "state": ended},
                {"name": "proxy", "restartCount": 2, "started": true, "state": {"running": {}},
                    "lastState": {"terminated": {"exitCode": 1, "finishedAt": "2000-01-01T00:00:00Z"}}},
            ], "containerStatuses": [{"name": "app", "restartCount": 1, "state": {"running": {}}}]},
        });
        assert!(status(v).1.starts_with("3 ("), "two of the sidecar and one of the container");
    }

    #[test]
    fn external_addresses_are_sorted_and_those_of_balancers_for_balancers_only() {
        let mut v = json!({"spec": {"type": "LoadBalancer", "externalIPs": ["9.9.9.9"]},
            "status": {"loadBalancer": {"ingress": [{"ip": "3.3.3.3"}, {"hostname": "a.example"}, {"ip": "1.1.1.1"}]}}});
        assert_eq!(service(&v)[2], "1.1.1.1,3.3.3.3,a.example,9.9.9.9");
        v["spec"]["type"] = "NodePort".into();
        assert_eq!(service(&v)[2], "9.9.9.9");
    }

    #[test]
    fn an_event_names_its_reporter() {
        let cells = event(&json!({"reportingComponent": "kubelet", "reportingInstance": "node-1",
            "involvedObject": {"kind": "Pod"}, "series": {"count": 4, "lastObservedTime": "2000-01-01T00:00:00.000000Z"}}));
        assert_eq!((&cells[3], &cells[5], &cells[8]), (&json!("pod"), &json!("kubelet, node-1"), &json!(4)));
    }
}
