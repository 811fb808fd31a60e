//! Names and amounts of resources: requests and limits of containers and pods, quotas, limit ranges, capacities.

use proto::quantity::Quantity;
use serde_json::Value;

use super::{list, text};
use crate::field_error::Report;
use crate::names;

/// A quantity of a normalised tree; nothing where there is none.
pub fn quantity(value: &Value) -> Option<Quantity> {
    value.as_str()?.parse().ok()
}

pub fn is_huge_page(name: &str) -> bool {
    name.starts_with("hugepages-")
}

/// Names without a domain, or with Kubernetes' own.
pub fn is_native(name: &str) -> bool {
    !name.contains('/') || name.contains("kubernetes.io/")
}

/// Names of somebody's domain, which nodes may offer besides their own resources.
pub fn is_extended(name: &str) -> bool {
    !is_native(name) && !name.starts_with("requests.") && names::qualified_name(&format!("requests.{name}")).is_empty()
}

/// A request may differ from its limit.
pub fn may_overcommit(name: &str) -> bool {
    is_native(name) && !is_huge_page(name)
}

fn is_whole(name: &str) -> bool {
    const COUNTED: [&str; 9] = [
        "pods",
        "resourcequotas",
        "services",
        "replicationcontrollers",
        "secrets",
        "configmaps",
        "persistentvolumeclaims",
        "services.nodeports",
        "services.loadbalancers",
    ];
    COUNTED.contains(&name) || is_extended(name)
}

fn is_container_standard(name: &str) -> bool {
    ["cpu", "memory", "ephemeral-storage"].contains(&name) || is_huge_page(name)
}

/// Resources that a quota may count without a domain.
pub fn is_quota_standard(name: &str) -> bool {
    const STANDARD: [&str; 19] = [
        "cpu",
        "memory",
        "ephemeral-storage",
        "requests.cpu",
        "requests.memory",
        "requests.storage",
        "requests.ephemeral-storage",
        "limits.cpu",
        "limits.memory",
        "limits.ephemeral-storage",
        "pods",
        "resourcequotas",
        "services",
        "replicationcontrollers",
        "secrets",
        "persistentvolumeclaims",
        "configmaps",
        "services.nodeports",
        "services.loadbalancers",
    ];
    STANDARD.contains(&name) || is_huge_page(name) || name.starts_with("requests.hugepages-")
}

fn is_standard(name: &str) -> bool {
    is_quota_standard(name) || name == "storage"
}

/// What is wrong with the name of any resource.
pub fn name(report: &mut Report, name: &str) {
    let complaints = names::qualified_name(name);
    if complaints.is_empty() && !name.contains('/') && !is_standard(name) {
        report.invalid(name, "must be a standard resource type or fully qualified");
    }
    report.complaints(name, complaints);
}

/// The name of a resource that a container may ask for.
pub fn container_name(report: &mut Report, resource: &str) {
    name(report, resource);
    if !resource.contains('/') {
        if !is_container_standard(resource) {
            report.invalid(resource, "must be a standard resource for containers");
        }
    } else if !is_native(resource) && !is_extended(resource) {
        report.invalid(resource, "doesn't follow extended resource name standard");
    }
}

/// The name of a resource that a pod as a whole may ask for.
fn pod_name(report: &mut Report, resource: &str) {
    if report.sound(|r| name(r, resource)) && !crate::defaults::is_of_pods(resource) {
        report.not_supported(resource, &["cpu", "hugepages-", "memory"]);
    }
}

/// The name of a resource that a quota may count.
pub fn quota_name(report: &mut Report, resource: &str) {
    name(report, resource);
    if !resource.contains('/') && !is_quota_standard(resource) {
        report.invalid(resource, "must be a standard resource for quota");
    }
}

/// An amount of a resource: never negative, and whole where the resource is counted.
pub fn amount(report: &mut Report, resource: &str, value: &Value) {
    let Some(quantity) = quantity(value) else { return };
    if quantity.sign() < 0 {
        report.invalid(value, "must be greater than or equal to 0");
    }
    if is_whole(resource) && !quantity.is_integer() {
        report.invalid(value, "must be an integer");
    }
}

/// An amount that has to be more than nothing.
pub fn positive(report: &mut Report, value: &Value) {
    if quantity(value).is_some_and(|q| q.sign() <= 0) {
        report.invalid(value, "must be greater than zero");
    }
}

fn huge_pages(report: &mut Report, resource: &str, value: &Value) {
    let size = resource.strip_prefix("hugepages-").and_then(|s| s.parse::<Quantity>().ok());
    let (Some(size), Some(quantity)) = (size, quantity(value)) else { return };
    if size.value() <= 0 || quantity.value() % size.value() != 0 {
        report.invalid(value, format_args!("{quantity} is not positive integer multiple of {resource}"));
    }
}

/// Whether requests and limits are a container's or a pod's.
#[derive(Clone, Copy, PartialEq)]
pub enum Owner {
    Container,
    Pod,
}

/// Requests, limits and claims, as they stand in a `resources`.
pub fn requirements(report: &mut Report, resources: &Value, owner: Owner, claims: &[&str]) {
    let check_name = if owner == Owner::Pod { pod_name } else { container_name };
    let (mut pages, mut compute) = (false, false);
    let limits = &resources["limits"];
    for kind in ["limits", "requests"] {
        for (name, value) in resources[kind].as_object().into_iter().flatten() {
            report.at(kind, |r| {
                r.key(name, |r| {
                    check_name(r, name);
                    amount(r, name, value);
                });
                if kind == "requests" {
                    request(r, name, value, limits);
                }
            });
            if kind == "requests" && limits[name].is_null() && !may_overcommit(name) {
                report.miss("limits", "Limit must be set for non overcommitable resources");
            }
            if is_huge_page(name) {
                pages = true;
                report.at(kind, |r| r.key(name, |r| huge_pages(r, name, value)));
            }
            compute |= name == "cpu" || name == "memory";
        }
    }
    if pages && !compute {
        report.forbidden("HugePages require cpu or memory");
    }
    if owner == Owner::Container {
        claim_names(report, resources, claims);
    }
}

fn request(report: &mut Report, name: &str, value: &Value, limits: &Value) {
    let (Some(request), Some(limit)) = (quantity(value), quantity(&limits[name])) else { return };
    if request != limit && !may_overcommit(name) {
        report.invalid(value, format_args!("must be equal to {name} limit of {limit}"));
    } else if request > limit {
        report.invalid(value, format_args!("must be less than or equal to {name} limit of {limit}"));
    }
}

fn claim_names(report: &mut Report, resources: &Value, known: &[&str]) {
    let mut seen: Vec<String> = Vec::new();
    report.each(resources, "claims", |r, claim| {
        let (name, request) = (text(claim, "name"), text(claim, "request"));
        if name.is_empty() {
            return r.required("");
        }
        if seen.iter().any(|s| s == name) {
            r.duplicate(name);
        } else {
            r.named(claim, "request", names::dns_label);
            let key = if request.is_empty() { name.to_owned() } else { format!("{name}/{request}") };
            if seen.contains(&key) {
                r.duplicate(key.as_str());
            } else if request.is_empty() {
                let again = seen.iter().filter(|s| s.split_once('/').is_some_and(|(n, _)| n == name)).count();
                (0..again).for_each(|_| r.duplicate(name));
            }
            seen.push(key);
        }
        if !known.contains(&name) {
            let mut sorted = known.to_vec();
            sorted.sort_unstable();
            let rest = if known.is_empty() { " which is empty".into() } else { format!(": {}", sorted.join(", ")) };
            r.not_found_because(name, &format!("must be one of the names in pod.spec.resourceClaims{rest}"));
        }
    });
}

/// Requests and limits of a pod as a whole, which bound those of its containers.
pub fn pod_level(report: &mut Report, spec: &Value) {
    report.with(spec, "resources", |r, resources| {
        if spec["os"]["name"] == "windows" {
            return r.forbidden("may not be set for a windows pod");
        }
        r.forbid(resources, &["claims"], "claims cannot be set for Resources at pod-level");
        requirements(r, resources, Owner::Pod, &[]);
        // Of what a pod as a whole cannot have, its containers may have what they like.
        let of_pods = |(name, _): &(String, Quantity)| crate::defaults::is_of_pods(name);
        for (name, sum) in crate::defaults::pod_requests(spec).into_iter().filter(of_pods) {
            let have = quantity(&resources["requests"][&name]).unwrap_or_default();
            if sum > have {
                let why = format!("must be greater than or equal to aggregate container requests of {sum}");
                r.at("requests", |r| r.key(&name, |r| r.invalid(have.to_string().as_str(), why)));
            }
        }
        // A limit of huge pages is what is asked for of them.
        for (name, sum) in crate::defaults::pod_limits(spec).into_iter().filter(|(name, _)| is_huge_page(name)) {
            let Some(have) = quantity(&resources["limits"][&name]).filter(|have| sum > *have) else { continue };
            let why = format!("must be greater than or equal to aggregate container limits of {sum}");
            r.at("limits", |r| r.key(&name, |r| r.invalid(have.to_string().as_str(), why)));
        }
        for (index, container) in list(spec, "containers").iter().enumerate() {
            for (name, value) in container["resources"]["limits"].as_object().into_iter().flatten() {
                let (Some(limit), Some(pod)) = (quantity(value), quantity(&resources["limits"][name])) else {
                    continue;
                };
                if limit > pod {
                    let why = format!("must be less than or equal to pod limits of {pod}");
                    r.at("containers", |r| r.index(index, |r| r.key(name, |r| r.bad("limits", value, why))));
                }
            }
        }
    });
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn texts(resources: &Value) -> Vec<String> {
        Report::told(|r| r.at("r", |r| requirements(r, resources, Owner::Container, &["gpu"])))
    }

    #[test]
    fn requests_stay_within_limits() {
        let found = texts(&json!({"limits": {"cpu": "1"}, "requests": {"cpu": "2", "memory": "1Gi"}}));
        assert_eq!(found, ["r.requests: Invalid value: \"2\": must be less than or equal to cpu limit of 1"]);
    }

    #[test]
    fn devices_are_whole_and_limited() {
        let found = texts(&json!({"limits": {"example.com/gpu": "500m"}, "requests": {"example.com/fpga": "1"}}));
        assert_eq!(
            found,
            [
                "r.limits[example.com/gpu]: Invalid value: \"500m\": must be an integer",
                "r.limits: Required value: Limit must be set for non overcommitable resources",
            ]
        );
    }

    /// A pod as a whole was refused when a container asked for a device or for room on the disk.
    #[test]
    fn a_pod_as_a_whole_covers_what_it_can_have() {
        let told = |whole: Value, container: Value| {
            let spec = json!({"resources": whole, "containers": [{"name": "c", "resources": container}]});
            Report::told(|r| pod_level(r, &spec))
        };
        let others = json!({"example.com/gpu": "1", "ephemeral-storage": "1Gi", "cpu": "1"});
        let cpu = |amount: &str| json!({"requests": {"cpu": amount}});
        assert_eq!(told(cpu("1"), json!({"requests": others, "limits": others})), [""; 0]);
        let less = "resources.requests[cpu]: Invalid value: \"500m\": must be greater than or equal to aggregate \
                    container requests of 1";
        assert_eq!(told(cpu("500m"), json!({"requests": others})), [less]);
        let pages = |amount: &str| json!({"cpu": "1", "hugepages-2Mi": amount});
        let (few, many) = (pages("2Mi"), pages("4Mi"));
        let asked = "resources.requests[hugepages-2Mi]: Invalid value: \"2Mi\": must be greater than or equal to \
                     aggregate container requests of 4Mi";
        let used = "resources.limits[hugepages-2Mi]: Invalid value: \"2Mi\": must be greater than or equal to \
                    aggregate container limits of 4Mi";
        let found = told(json!({"requests": few, "limits": few}), json!({"requests": many, "limits": many}));
        assert_eq!(found[..2], [asked, used]);
        assert_eq!(found.len(), 3, "and one container alone has more than the pod: {found:?}");
    }

    #[test]
    fn a_windows_pod_has_no_resources_as_a_whole() {
        let spec = json!({"os": {"name": "windows"}, "resources": {"requests": {"cpu": "-1"}}});
        let told = Report::told(|r| pod_level(r, &spec));
        assert_eq!(told, ["resources: Forbidden: may not be set for a windows pod"]);
    }

    #[test]
    fn claims_are_those_of_the_pod() {
        let found = texts(&json!({"claims": [{"name": "gpu"}, {"name": "gpu"}, {"name": "net"}]}));
        assert_eq!(
            found,
            [
                "r.claims[1]: Duplicate value: \"gpu\"",
                "r.claims[2]: Not found: \"net\": must be one of the names in pod.spec.resourceClaims: gpu",
            ]
        );
    }
}
