//! What a manifest may ask for of the node's resources: their names, and how requests and limits go together.
//!
//! That an amount is one and is not negative is among [`super::rules`], which calls this.
//!
//! Followed: `ValidateContainerResources`, `validatePodResources`.

use proto::quantity::Quantity;
use serde_json::Value;

use super::rules::{list, qualified_name, quantity};

/// What is wrong with the resources of the pod and of its containers, each entry with its path.
pub fn broken(spec: &Value, found: &mut Vec<String>) {
    of_one("spec.resources", &spec["resources"], pod_name, found);
    for kind in ["initContainers", "containers"] {
        for (i, container) in list(spec, kind).iter().enumerate() {
            of_one(&format!("spec.{kind}[{i}].resources"), &container["resources"], container_name, found);
        }
    }
}

fn of_one(path: &str, resources: &Value, complaint: fn(&str) -> Option<String>, found: &mut Vec<String>) {
    let (mut pages, mut compute) = (false, false);
    for kind in ["limits", "requests"] {
        for (name, value) in resources[kind].as_object().into_iter().flatten() {
            let at = format!("{path}.{kind}[{name}]");
            found.extend(complaint(name).map(|why| format!("{at}: {why}")));
            pages |= is_huge_page(name);
            compute |= matches!(name.as_str(), "cpu" | "memory");
            let Some(amount) = quantity(value) else { continue };
            let mut bad = |at: &str, why: String| found.push(format!("{at}: Invalid value: {value}: {why}"));
            if is_extended(name) && !amount.is_integer() {
                bad(&at, "must be an integer".into());
            }
            if is_huge_page(name) && !is_multiple(name, &amount) {
                bad(&at, format!("{amount} is not positive integer multiple of {name}"));
            }
            if kind != "requests" {
                continue;
            }
            match quantity(&resources["limits"][name]) {
                Some(limit) if amount != limit && !may_overcommit(name) => {
                    bad(&format!("{path}.requests"), format!("must be equal to {name} limit of {limit}"));
                }
                Some(limit) if amount > limit => {
                    bad(&format!("{path}.requests"), format!("must be less than or equal to {name} limit of {limit}"));
                }
                None if !may_overcommit(name) => {
                    let why = "Limit must be set for non overcommitable resources";
                    found.push(format!("{path}.limits: Required value: {why}"));
                }
                _ => {}
            }
        }
    }
    if pages && !compute {
        found.push(format!("{path}: Forbidden: HugePages require cpu or memory"));
    }
}

fn is_huge_page(name: &str) -> bool {
    name.starts_with("hugepages-")
}

/// Names without a domain, or with Kubernetes' own.
fn is_native(name: &str) -> bool {
    !name.contains('/') || name.contains("kubernetes.io/")
}

/// Names of somebody's domain, which plugins of devices have.
fn is_extended(name: &str) -> bool {
    !is_native(name) && !name.starts_with("requests.") && qualified_name(&format!("requests.{name}")).is_none()
}

/// A request may differ from its limit.
fn may_overcommit(name: &str) -> bool {
    is_native(name) && !is_huge_page(name)
}

fn is_multiple(name: &str, amount: &Quantity) -> bool {
    let size = name.strip_prefix("hugepages-").and_then(|size| size.parse::<Quantity>().ok());
    size.is_some_and(|size| size.value() > 0 && amount.value() % size.value() == 0)
}

fn container_name(name: &str) -> Option<String> {
    let standard = matches!(name, "cpu" | "memory" | "ephemeral-storage") || is_huge_page(name);
    let invalid = |why: &str| Some(format!("Invalid value: {name:?}: {why}"));
    match qualified_name(name) {
        Some(why) => invalid(why),
        None if !name.contains('/') && !standard => invalid("must be a standard resource for containers"),
        None if name.contains('/') && !is_native(name) && !is_extended(name) => {
            invalid("doesn't follow extended resource name standard")
        }
        None => None,
    }
}

fn pod_name(name: &str) -> Option<String> {
    let known = matches!(name, "cpu" | "memory") || is_huge_page(name);
    let supported = "supported values: \"cpu\", \"hugepages-\", \"memory\"";
    (!known).then(|| format!("Unsupported value: {name:?}: {supported}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(spec: &str) -> Vec<String> {
        let mut found = Vec::new();
        broken(&proto::yaml::parse(spec.as_bytes()).unwrap(), &mut found);
        found
    }

    #[test]
    fn amounts_go_together_as_the_api_server_has_them() {
        let path = "spec.containers[0].resources";
        for (resources, wanted) in [
            (
                "{limits: {cpu: 1}, requests: {cpu: 1001m}}",
                format!("{path}.requests: Invalid value: \"1001m\": must be less than or equal to cpu limit of 1"),
            ),
            (
                "{limits: {a.b/c: 2}, requests: {a.b/c: 1}}",
                format!("{path}.requests: Invalid value: 1: must be equal to a.b/c limit of 2"),
            ),
            (
                "{requests: {a.b/c: 1}}",
                format!("{path}.limits: Required value: Limit must be set for non overcommitable resources"),
            ),
            ("{limits: {a.b/c: 500m}}", format!("{path}.limits[a.b/c]: Invalid value: \"500m\": must be an integer")),
            (
                "{limits: {gpu: 1}}",
                format!("{path}.limits[gpu]: Invalid value: \"gpu\": must be a standard resource for containers"),
            ),
            ("{limits: {hugepages-2Mi: 4Mi}}", format!("{path}: Forbidden: HugePages require cpu or memory")),
            (
                "{limits: {cpu: 1, hugepages-2Mi: 3Mi}}",
                format!(
                    "{path}.limits[hugepages-2Mi]: Invalid value: \"3Mi\": 3Mi is not positive integer multiple of \
                     hugepages-2Mi"
                ),
            ),
        ] {
            assert_eq!(told(&format!("containers: [{{resources: {resources}}}]")), [wanted]);
        }
        assert_eq!(
            told("resources: {limits: {ephemeral-storage: 1}}"),
            ["spec.resources.limits[ephemeral-storage]: Unsupported value: \"ephemeral-storage\": supported values: \
                 \"cpu\", \"hugepages-\", \"memory\""]
        );
    }

    #[test]
    fn what_may_be_asked_for_is_taken() {
        for resources in [
            "{limits: {cpu: 1, memory: 1Gi, ephemeral-storage: 1Gi, a.b/c: 2}, requests: {cpu: 100m, memory: 1Gi}}",
            "{limits: {memory: 1Gi, hugepages-2Mi: 4Mi}, requests: {hugepages-2Mi: 4Mi}}",
            "{requests: {cpu: 0.5}}",
        ] {
            assert_eq!(told(&format!("initContainers: [{{resources: {resources}}}]")), [""; 0], "{resources}");
        }
        assert_eq!(told("resources: {limits: {cpu: 1}, requests: {cpu: 1}}"), [""; 0]);
    }
}
