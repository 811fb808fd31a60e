//! LimitRanger: fills in what a namespace's limit ranges default and holds pods and claims to their bounds. Follows
//! `plugin/pkg/admission/limitranger`.

use std::collections::BTreeMap;
use std::sync::Arc;

use proto::quantity::Quantity;
use serde_json::{Map, Value, json};

use super::resources::{self, Resources};
use super::{Call, Operation};
use crate::status::Result;

const ANNOTATION: &str = "kubernetes.io/limit-ranger";

/// The namespace's limit ranges, by name.
fn limit_ranges(call: &Call<'_>) -> Vec<Arc<Value>> {
    let snapshot = call.server.store.snapshot(&"limitranges".into());
    snapshot.range(Some(call.namespace), None).map(|o| o.kept()).collect()
}

fn limits(range: &Value) -> impl Iterator<Item = &Value> {
    range["spec"]["limits"].as_array().into_iter().flatten()
}

/// Whether a call is about what is limited. Of a pod's resources nothing changes after its creation, unless it is resized;
/// what is going away is let go.
fn is_limited(call: &Call<'_>, new: &Value) -> bool {
    let deleting = |object: &Value| !object["metadata"]["deletionTimestamp"].is_null();
    let limited = match call.subresource {
        "" if call.operation == Operation::Create => call.concerns("", "pods"),
        "resize" => call.concerns("", "pods") && call.operation == Operation::Update,
        _ => false,
    };
    (limited || call.is("", "persistentvolumeclaims")) && !deleting(new) && !call.old.is_some_and(deleting)
}

pub fn mutate(call: &Call<'_>, new: &mut Value) -> Result<()> {
    if !is_limited(call, new) || !call.concerns("", "pods") {
        return Ok(());
    }
    for range in limit_ranges(call) {
        let (mut defaults, mut default_requests) = (Map::new(), Map::new());
        for limit in limits(&range).filter(|l| l["type"] == "Container") {
            defaults.extend(limit["default"].as_object().cloned().unwrap_or_default());
            default_requests.extend(limit["defaultRequest"].as_object().cloned().unwrap_or_default());
        }
        let mut filled = Vec::new();
        for (list, what) in [("containers", "container"), ("initContainers", "init container")] {
            for container in new["spec"].get_mut(list).and_then(Value::as_array_mut).into_iter().flatten() {
                let name = container["name"].as_str().unwrap_or_default().to_owned();
                for (part, defaults) in [("requests", &default_requests), ("limits", &defaults)] {
                    let set = fill(container, part, defaults);
                    if !set.is_empty() {
                        let part = part.trim_end_matches('s');
                        filled.push(format!("{} {part} for {what} {name}", set.join(", ")));
                    }
                }
            }
        }
        if !filled.is_empty() {
            let text = format!("LimitRanger plugin set: {}", filled.join("; "));
            new["metadata"]["annotations"][ANNOTATION] = text.into();
        }
    }
    Ok(())
}

/// Sets what a container leaves open; returns the names of what was set.
fn fill(container: &mut Value, part: &str, defaults: &Map<String, Value>) -> Vec<String> {
    let mut set: Vec<String> = Vec::new();
    for (name, quantity) in defaults {
        if container["resources"][part][name].is_null() {
            if !container["resources"].is_object() {
                container["resources"] = json!({});
            }
            container["resources"][part][name] = quantity.clone();
            set.push(name.to_string());
        }
    }
    set.sort();
    set
}

pub fn validate(call: &Call<'_>, new: &Value) -> Result<()> {
    if !is_limited(call, new) {
        return Ok(());
    }
    let pod = call.concerns("", "pods");
    for range in limit_ranges(call) {
        let complaints = if pod { check_pod(&range, new) } else { check_claim(&range, new) };
        if !complaints.is_empty() {
            return Err(call.refuse(Some(new), crate::status::aggregate(&complaints)));
        }
    }
    Ok(())
}

fn check_pod(range: &Value, pod: &Value) -> Vec<String> {
    let mut complaints = Vec::new();
    for limit in limits(range) {
        match limit["type"].as_str() {
            Some("Container") => {
                let lists = ["containers", "initContainers"].map(|list| &pod["spec"][list]);
                for container in lists.into_iter().filter_map(Value::as_array).flatten() {
                    let part = |name: &str| resources::parse(&container["resources"][name]);
                    check(limit, &part("requests"), &part("limits"), &mut complaints);
                }
            }
            Some("Pod") => {
                let (requests, limits) =
                    (resources::without_overhead(pod, "requests"), resources::without_overhead(pod, "limits"));
                check(limit, &requests, &limits, &mut complaints);
            }
            _ => {}
        }
    }
    complaints
}

fn check_claim(range: &Value, claim: &Value) -> Vec<String> {
    let mut complaints = Vec::new();
    let requests = resources::parse(&claim["spec"]["resources"]["requests"]);
    for limit in limits(range).filter(|l| l["type"] == "PersistentVolumeClaim") {
        for (name, bound) in resources::parse(&limit["min"]) {
            complaints.extend(Bound { limit, name: &name, bound }.min(&requests, &Resources::new()));
        }
        for (name, bound) in resources::parse(&limit["max"]) {
            complaints.extend(Bound { limit, name: &name, bound }.max_request(&requests));
        }
    }
    complaints
}

fn check(limit: &Value, requests: &Resources, limits: &Resources, complaints: &mut Vec<String>) {
    for (name, bound) in resources::parse(&limit["min"]) {
        complaints.extend(Bound { limit, name: &name, bound }.min(requests, limits));
    }
    for (name, bound) in resources::parse(&limit["max"]) {
        complaints.extend(Bound { limit, name: &name, bound }.max(requests, limits));
    }
    for (name, bound) in resources::parse(&limit["maxLimitRequestRatio"]) {
        complaints.extend(Bound { limit, name: &name, bound }.ratio(requests, limits));
    }
}

/// One bound of a limit range; each method returns a complaint.
struct Bound<'a> {
    limit: &'a Value,
    name: &'a str,
    bound: Quantity,
}

impl Bound<'_> {
    /// `minimum cpu usage per Container is 50m`.
    fn start(&self, word: &str) -> String {
        let kind = self.limit["type"].as_str().unwrap_or_default();
        format!("{word} {} usage per {kind} is {}", self.name, self.bound)
    }

    fn min(&self, requests: &Resources, limits: &Resources) -> Option<String> {
        let Some(request) = requests.get(self.name) else {
            return Some(format!("{}.  No request is specified", self.start("minimum")));
        };
        if *request < self.bound {
            return Some(format!("{}, but request is {request}", self.start("minimum")));
        }
        let limit = limits.get(self.name).filter(|l| **l < self.bound)?;
        Some(format!("{}, but limit is {limit}", self.start("minimum")))
    }

    fn max(&self, requests: &Resources, limits: &Resources) -> Option<String> {
        let Some(limit) = limits.get(self.name) else {
            return Some(format!("{}.  No limit is specified", self.start("maximum")));
        };
        if *limit > self.bound {
            return Some(format!("{}, but limit is {limit}", self.start("maximum")));
        }
        let request = requests.get(self.name).filter(|r| **r > self.bound)?;
        Some(format!("{}, but request is {request}", self.start("maximum")))
    }

    fn max_request(&self, requests: &Resources) -> Option<String> {
        let Some(request) = requests.get(self.name) else {
            return Some(format!("{}.  No request is specified", self.start("maximum")));
        };
        (*request > self.bound).then(|| format!("{}, but request is {request}", self.start("maximum")))
    }

    fn ratio(&self, requests: &Resources, limits: &Resources) -> Option<String> {
        let kind = self.limit["type"].as_str().unwrap_or_default();
        let start = format!("{} max limit to request ratio per {kind} is {}", self.name, self.bound);
        let given = |from: &BTreeMap<String, Quantity>| from.get(self.name).copied().filter(|q| !q.is_zero());
        let Some(request) = given(requests) else {
            return Some(format!("{start}, but no request is specified or request is 0"));
        };
        let Some(limit) = given(limits) else {
            return Some(format!("{start}, but no limit is specified or limit is 0"));
        };
        let ratio = limit.milli_value() as f64 / request.milli_value() as f64;
        let most = self.bound.milli_value() as f64;
        (ratio * 1000.0 > most).then(|| format!("{start}, but provided ratio is {ratio:.6}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bounds_complain_in_upstreams_words() {
        let range = json!({"spec": {"limits": [{"type": "Container", "min": {"cpu": "50m"}, "max": {"cpu": "2"},
            "maxLimitRequestRatio": {"cpu": "10"}}]}});
        let complaints = |resources: Value| {
            check_pod(&range, &json!({"spec": {"containers": [{"name": "a", "resources": resources}]}}))
        };
        assert_eq!(complaints(json!({"requests": {"cpu": "1"}, "limits": {"cpu": "1"}})), [] as [&str; 0]);
        assert_eq!(
            complaints(json!({"requests": {"cpu": "10m"}, "limits": {"cpu": "4"}})),
            [
                "minimum cpu usage per Container is 50m, but request is 10m",
                "maximum cpu usage per Container is 2, but limit is 4",
                "cpu max limit to request ratio per Container is 10, but provided ratio is 400.000000",
            ]
        );
        assert_eq!(
            complaints(json!({})),
            [
                "minimum cpu usage per Container is 50m.  No request is specified",
                "maximum cpu usage per Container is 2.  No limit is specified",
                "cpu max limit to request ratio per Container is 10, but no request is specified or request is 0",
            ]
        );
    }

    #[test]
    fn the_overhead_of_a_runtime_is_nobodys_usage() {
        let range = json!({"spec": {"limits": [{"type": "Pod", "max": {"cpu": "1"}}]}});
        let container = json!({"resources": {"requests": {"cpu": "1"}, "limits": {"cpu": "1"}}});
        let pod = json!({"spec": {"containers": [container], "overhead": {"cpu": "250m"}}});
        assert!(check_pod(&range, &pod).is_empty());
    }

    #[test]
    fn defaults_fill_only_what_is_open() {
        let mut container = json!({"name": "a", "resources": {"limits": {"memory": "1Gi"}}});
        let defaults = json!({"memory": "128Mi", "cpu": "500m"});
        let set = fill(&mut container, "limits", defaults.as_object().expect("a map"));
        assert_eq!(set, ["cpu"]);
        assert_eq!(container["resources"]["limits"], json!({"memory": "1Gi", "cpu": "500m"}));
    }
}
