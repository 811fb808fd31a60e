//! Sums of resources: what a pod's containers ask for together, and what they have while they are resized.

use std::collections::BTreeMap;

use proto::quantity::Quantity;
use serde_json::Value;

use crate::controllers::pods::condition;

/// Quantities by the resource's name.
pub type Resources = BTreeMap<String, Quantity>;

/// Reads a resource list; what does not parse was refused before and is left out.
pub fn parse(list: &Value) -> Resources {
    let pairs = list.as_object().into_iter().flatten();
    pairs.filter_map(|(name, text)| Some((name.to_string(), text.as_str()?.parse().ok()?))).collect()
}

pub fn add(sum: &mut Resources, more: &Resources) {
    for (name, quantity) in more {
        match sum.get_mut(name) {
            Some(total) => total.add(*quantity),
            None => drop(sum.insert(name.clone(), *quantity)),
        }
    }
}

fn raise(to: &mut Resources, at_least: &Resources) {
    for (name, quantity) in at_least {
        if to.get(name).is_none_or(|have| have < quantity) {
            to.insert(name.clone(), *quantity);
        }
    }
}

/// Whether a pod's node will never give it what its spec asks for by now: it keeps what it has.
pub fn is_resize_infeasible(pod: &Value) -> bool {
    condition(pod, "PodResizePending").is_some_and(|pending| pending["reason"] == "Infeasible")
}

/// `requests` or `limits` of a whole pod, with its overhead.
pub fn of_pod(pod: &Value, part: &str) -> Resources {
    with_overhead(pod, part, without_overhead(pod, part))
}

/// The same while the pod is resized: the larger of what it has and what it is to have.
pub fn held_by_pod(pod: &Value, part: &str) -> Resources {
    let infeasible = is_resize_infeasible(pod);
    let held = |spec: &Value, status: &Value| {
        let asked = parse(&spec["resources"][part]);
        if !status["resources"].is_object() {
            return asked;
        }
        let mut out = if infeasible { Resources::new() } else { asked };
        raise(&mut out, &parse(&status["resources"][part]));
        if part == "requests" {
            raise(&mut out, &parse(&status["allocatedResources"]));
        }
        out
    };
    let statuses = ["containerStatuses", "initContainerStatuses"];
    let statuses = statuses.into_iter().flat_map(|list| pod["status"][list].as_array().into_iter().flatten());
    let of_container = |container: &Value| {
        let mut statuses = statuses.clone();
        held(container, statuses.find(|s| s["name"] == container["name"]).unwrap_or(&Value::Null))
    };
    let mut of_whole = held(&pod["spec"], &pod["status"]);
    // The status tells what the pod has of everything, its spec what counts for it as a whole.
    of_whole.retain(|name, _| !pod["spec"]["resources"][part][name].is_null());
    with_overhead(pod, part, sum(pod, of_container, of_whole))
}

fn with_overhead(pod: &Value, part: &str, mut total: Resources) -> Resources {
    let mut overhead = parse(&pod["spec"]["overhead"]);
    if part == "limits" {
        // What has no limit gets none by its overhead.
        overhead.retain(|name, _| total.get(name).is_some_and(|q| !q.is_zero()));
    }
    add(&mut total, &overhead);
    total
}

/// Containers and sidecars run together, each init container runs beside the sidecars before it; what the pod says for
/// itself counts instead.
pub fn without_overhead(pod: &Value, part: &str) -> Resources {
    let asked = |of: &Value| parse(&of["resources"][part]);
    sum(pod, asked, asked(&pod["spec"]))
}

fn sum(pod: &Value, of_container: impl Fn(&Value) -> Resources, of_whole: Resources) -> Resources {
    let spec = &pod["spec"];
    let list = |name: &str| spec[name].as_array().into_iter().flatten();
    let mut total = Resources::new();
    for container in list("containers") {
        add(&mut total, &of_container(container));
    }
    let (mut sidecars, mut peak) = (Resources::new(), Resources::new());
    for container in list("initContainers") {
        let mut own = of_container(container);
        if container["restartPolicy"] == "Always" {
            add(&mut total, &own);
            add(&mut sidecars, &own);
            own.clone_from(&sidecars);
        } else {
            add(&mut own, &sidecars);
        }
        raise(&mut peak, &own);
    }
    raise(&mut total, &peak);
    for (name, quantity) in of_whole {
        if matches!(name.as_str(), "cpu" | "memory") || name.starts_with("hugepages-") {
            total.insert(name, quantity);
        }
    }
    total
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_pod_needs_what_its_hungriest_moment_needs() {
        let asks = |cpu: &str| json!({"requests": {"cpu": cpu}});
        let pod = json!({"spec": {
            "containers": [{"resources": asks("100m")}, {"resources": asks("200m")}],
            "initContainers": [
                {"resources": asks("50m"), "restartPolicy": "Always"},
                {"resources": asks("1")},
            ],
            "overhead": {"cpu": "10m", "memory": "1Mi"},
        }});
        let requests = of_pod(&pod, "requests");
        assert_eq!(requests["cpu"].to_string(), "1060m");
        assert_eq!(requests["memory"].to_string(), "1Mi");
        assert!(of_pod(&pod, "limits").is_empty());
    }

    #[test]
    fn a_pod_holds_what_it_has_until_it_has_less_and_what_it_cannot_get_it_does_not_hold() {
        let cpu = |amount: &str| json!({"requests": {"cpu": amount}, "limits": {"cpu": amount}});
        let pod = |asked: &str, has: &str, reason: &str| {
            let status = json!({"name": "c", "resources": cpu(has), "allocatedResources": {"cpu": has}});
            json!({"spec": {"containers": [{"name": "c", "resources": cpu(asked)}, {"name": "d", "resources": cpu("1")}],
                    "overhead": {"cpu": "1"}},
                "status": {"containerStatuses": [status], "conditions": [{"type": "PodResizePending", "reason": reason}]}})
        };
        let held = |pod: &Value| ["requests", "limits"].map(|part| held_by_pod(pod, part)["cpu"].to_string());
        assert_eq!(held(&pod("4", "2", "Deferred")), ["6", "6"]);
        assert_eq!(held(&pod("1", "2", "Deferred")), ["4", "4"]);
        assert_eq!(held(&pod("4", "2", "Infeasible")), ["4", "4"]);
        let mut whole = pod("4", "2", "Infeasible");
        whole["spec"]["resources"] = cpu("9");
        assert_eq!(held(&whole), ["10", "10"], "nothing is told of the pod as a whole");
        whole["status"]["resources"] = json!({"requests": {"cpu": "5", "memory": "1Gi"}, "limits": {"cpu": "7"}});
        assert_eq!(held(&whole), ["6", "8"]);
        assert!(!held_by_pod(&whole, "requests").contains_key("memory"));
    }
}
