//! Sums of resources: what a pod's containers ask for together.

use std::collections::BTreeMap;

use proto::quantity::Quantity;
use serde_json::Value;

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

/// `requests` or `limits` of a whole pod, with its overhead.
pub fn of_pod(pod: &Value, part: &str) -> Resources {
    let mut total = without_overhead(pod, part);
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
    let spec = &pod["spec"];
    let list = |name: &str| spec[name].as_array().into_iter().flatten();
    let mut total = Resources::new();
    for container in list("containers") {
        add(&mut total, &parse(&container["resources"][part]));
    }
    let (mut sidecars, mut peak) = (Resources::new(), Resources::new());
    for container in list("initContainers") {
        let mut own = parse(&container["resources"][part]);
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
    for (name, quantity) in parse(&spec["resources"][part]) {
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
}
