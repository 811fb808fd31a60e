//! The words of an eviction, and what its event carries for programs.
//!
//! Followed: `evictionMessage` of `pkg/kubelet/eviction/helpers.go`, down to the space at the end.

use std::collections::BTreeMap;

use proto::api::core::v1::{Container, Pod};
use proto::quantity::{Format, Quantity};

use super::pressure::{Observations, told};
use super::usage::{PodUsage, signed};
use crate::config::Threshold;
use crate::pod::spec::PodExt;

pub struct Told {
    pub message: String,
    pub annotations: BTreeMap<String, String>,
}

/// What is said of a pod that goes for `resource`. `due` are all thresholds that are acted on.
pub fn tell(
    resource: &str,
    pod: &Pod,
    usage: Option<&PodUsage>,
    due: &[Threshold],
    observations: &Observations,
) -> Told {
    let mut message = format!("The node was low on resource: {resource}. ");
    let met = due.iter().filter(|t| t.signal.resource() == resource);
    let mut seen = met.filter_map(|t| observations.get(&t.signal).map(|o| (t, o)));
    if let Some((threshold, seen)) = seen.next() {
        let (quantity, available) = (told(threshold.value, seen.capacity), seen.told(threshold.signal));
        message.push_str(&format!("Threshold quantity: {quantity}, available: {available}. "));
    }
    let mut annotations = BTreeMap::new();
    let Some(usage) = usage else { return Told { message, annotations } };
    let larger = |kind: &str, name: &str, used: &Quantity, request: &Quantity| {
        format!("{kind} {name} was using {used}, request is {request}, has larger consumption of {resource}. ")
    };
    let whole = pod.spec().resources.as_ref().and_then(|r| r.requests.get(resource));
    if let Some(request) = whole.filter(|_| resource == "memory") {
        let used = bytes(usage.memory);
        message.push_str(&larger("Pod", pod.name(), &used, &parsed(&request.string)));
        annotations.insert("offending_pod".into(), pod.name().to_owned());
        annotations.insert("offending_pod_usage".into(), used.to_string());
    }
    let (mut names, mut amounts) = (Vec::new(), Vec::new());
    for container in pod.spec().containers.iter().chain(&pod.spec().init_containers) {
        let Some(used) = used_by(container, resource, usage) else { continue };
        let request = container.resources.as_ref().and_then(|r| r.requests.get(resource));
        let request = request.map_or_else(Quantity::default, |q| parsed(&q.string));
        if used <= request.value() {
            continue;
        }
        let used = bytes(used);
        message.push_str(&larger("Container", &container.name, &used, &request));
        names.push(container.name.clone());
        amounts.push(used.to_string());
    }
    annotations.insert("offending_containers".into(), names.join(","));
    annotations.insert("offending_containers_usage".into(), amounts.join(","));
    annotations.insert("starved_resource".into(), resource.to_owned());
    Told { message, annotations }
}

fn used_by(container: &Container, resource: &str, usage: &PodUsage) -> Option<i64> {
    match resource {
        "memory" => usage.container_memory.get(&container.name).copied(),
        "ephemeral-storage" => {
            let storage = usage.container_storage(&container.name)?;
            Some(signed(storage.root?.bytes.saturating_add(storage.logs?.bytes)))
        }
        _ => None,
    }
}

fn bytes(count: i64) -> Quantity {
    Quantity::from_integer(count, Format::BinarySi)
}

fn parsed(text: &str) -> Quantity {
    text.parse().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::super::pressure::Observation;
    use super::*;
    use crate::config::{Signal, ThresholdValue};
    use proto::api::core::v1::PodSpec;

    #[test]
    fn the_message_names_resource_threshold_and_big_consumers() {
        let container = |name: &str| Container { name: name.into(), ..Default::default() };
        let spec = PodSpec { containers: vec![container("big"), container("gone")], ..Default::default() };
        let pod = Pod { spec: Some(spec), ..Default::default() };
        let usage = PodUsage { container_memory: [("big".to_owned(), 3 << 20)].into(), ..PodUsage::default() };
        let threshold = Threshold {
            signal: Signal::MemoryAvailable,
            value: ThresholdValue::Share(0.1),
            grace: None,
            minimum_reclaim: None,
        };
        let seen = [(Signal::MemoryAvailable, Observation { available: 1 << 20, capacity: 100 << 20 })].into();
        let told = tell("memory", &pod, Some(&usage), &[threshold], &seen);
        assert_eq!(
            told.message,
            "The node was low on resource: memory. Threshold quantity: 10Mi, available: 1Mi. Container big was using \
             3Mi, request is 0, has larger consumption of memory. "
        );
        let said = |key: &str| told.annotations.get(key).map(String::as_str);
        assert_eq!(said("offending_containers"), Some("big"));
        assert_eq!(said("offending_containers_usage"), Some("3Mi"));
        assert_eq!(said("starved_resource"), Some("memory"));
        let unknown = tell("pids", &pod, None, &[], &Observations::new());
        assert_eq!((unknown.message.as_str(), unknown.annotations.len()), ("The node was low on resource: pids. ", 0));
    }
}
