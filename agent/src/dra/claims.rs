//! Which ResourceClaims a pod and its containers mean, and whether the pod may use them. Pure.
//!
//! Followed: `k8s.io/dynamic-resource-allocation/resourceclaim`.

use std::collections::{BTreeMap, BTreeSet};

use proto::api::core::v1::{Container, Pod, PodResourceClaim};
use proto::api::resource::v1::ResourceClaim;

use crate::api;
use crate::pod::quantity::milli;
use crate::pod::spec::PodExt as _;

use super::checkpoint::{Claim, Driver};

/// A claim of a pod by the name of its object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Named {
    pub name: String,
    /// Made from a template: it must have been made for this very pod.
    pub generated: bool,
}

/// The claims of a pod; those for which nothing had to be made are left out.
///
/// # Errors
/// In the kubelet's words: a claim has not been made yet.
pub fn of_pod(pod: &Pod) -> Result<Vec<Named>, String> {
    let mut found = Vec::new();
    for claim in &pod.spec().resource_claims {
        found.extend(named(pod, claim)?);
    }
    if let Some(name) = extended(pod) {
        found.push(Named { name: name.to_owned(), generated: false });
    }
    Ok(found)
}

/// The claim that the scheduler made for extended resources, by name.
fn extended(pod: &Pod) -> Option<&str> {
    Some(pod.status.as_ref()?.extended_resource_claim_status.as_ref()?.resource_claim_name.as_str())
}

/// # Errors
/// As [`of_pod`].
pub fn named(pod: &Pod, claim: &PodResourceClaim) -> Result<Option<Named>, String> {
    if let Some(name) = &claim.resource_claim_name {
        return Ok(Some(Named { name: name.clone(), generated: false }));
    }
    let of = format!("pod \"{}/{}\"", pod.namespace(), pod.name());
    if claim.resource_claim_template_name.is_none() {
        return Err(format!("{of}, spec.resourceClaim {:?}: none of the supported fields are set", claim.name));
    }
    let statuses = pod.status.iter().flat_map(|s| &s.resource_claim_statuses);
    match statuses.into_iter().find(|s| s.name == claim.name) {
        Some(status) => Ok(status.resource_claim_name.clone().map(|name| Named { name, generated: true })),
        None => Err(format!("{of}: ResourceClaim not created yet")),
    }
}

/// Whether the pod may use the claim.
///
/// # Errors
/// In the kubelet's words.
pub fn check(pod: &Pod, named: &Named, claim: &ResourceClaim) -> Result<(), String> {
    if named.generated {
        let owners = claim.metadata.as_ref().map(|m| m.owner_references.as_slice()).unwrap_or_default();
        if !owners.iter().any(|o| o.controller == Some(true) && o.uid == pod.uid()) {
            return Err(format!(
                "ResourceClaim {}/{} was not created for pod {}/{} (pod is not owner)",
                api::Kind::namespace(claim),
                api::Kind::name(claim),
                pod.namespace(),
                pod.name()
            ));
        }
    }
    let reserved = claim.status.iter().flat_map(|s| &s.reserved_for);
    if !reserved.into_iter().any(|r| r.uid == pod.uid()) {
        return Err(format!(
            "pod {} ({}) is not allowed to use ResourceClaim {} ({})",
            pod.name(),
            pod.uid(),
            api::Kind::name(claim),
            api::Kind::uid(claim)
        ));
    }
    Ok(())
}

/// What is to be remembered of an allocated claim before any driver has been asked.
///
/// # Errors
/// It is not allocated.
pub fn new(claim: &ResourceClaim) -> Result<Claim, String> {
    let allocation = claim.status.as_ref().and_then(|s| s.allocation.as_ref());
    let allocation = allocation.ok_or_else(|| format!("ResourceClaim {}: not allocated", api::Kind::name(claim)))?;
    let results = allocation.devices.iter().flat_map(|d| &d.results);
    Ok(Claim {
        uid: api::Kind::uid(claim).to_owned(),
        name: api::Kind::name(claim).to_owned(),
        namespace: api::Kind::namespace(claim).to_owned(),
        pods: BTreeSet::new(),
        drivers: results.map(|r| (r.driver.clone(), Driver::default())).collect(),
    })
}

/// The claims that a container uses by the names of their objects, and the requests in each; an empty one means all.
///
/// # Errors
/// As [`of_pod`].
pub fn of_container(pod: &Pod, container: &Container) -> Result<BTreeMap<String, Vec<String>>, String> {
    let mut found: BTreeMap<String, Vec<String>> = BTreeMap::new();
    let resources = container.resources.as_ref();
    for claim in &pod.spec().resource_claims {
        let own = resources.iter().flat_map(|r| &r.claims).filter(|c| c.name == claim.name);
        let requests: Vec<String> = own.map(|c| c.request.clone()).collect();
        if requests.is_empty() {
            continue;
        }
        if let Some(named) = named(pod, claim)? {
            found.entry(named.name).or_default().extend(requests);
        }
    }
    let status = pod.status.as_ref().and_then(|s| s.extended_resource_claim_status.as_ref());
    for mapping in status.iter().flat_map(|s| &s.request_mappings).filter(|m| m.container_name == container.name) {
        let asked = resources.and_then(|r| r.requests.get(&mapping.resource_name)).is_some_and(|q| milli(q) != 0);
        if let Some(name) = extended(pod).filter(|_| asked) {
            found.entry(name.to_owned()).or_default().push(mapping.request_name.clone());
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proto::api::core::v1::{PodResourceClaimStatus, ResourceRequirements};
    use proto::api::resource::v1::{
        AllocationResult, DeviceAllocationResult, DeviceRequestAllocationResult, ResourceClaimConsumerReference,
        ResourceClaimStatus,
    };
    use proto::apimachinery::pkg::apis::meta::v1::OwnerReference;

    fn pod() -> Pod {
        let mut pod = Pod::default();
        let meta = pod.metadata.get_or_insert_default();
        (meta.name, meta.namespace, meta.uid) = ("p".into(), "ns".into(), "u".into());
        let claim = |name: &str, own: Option<&str>, template: Option<&str>| PodResourceClaim {
            name: name.into(),
            resource_claim_name: own.map(Into::into),
            resource_claim_template_name: template.map(Into::into),
        };
        pod.spec.get_or_insert_default().resource_claims =
            vec![claim("a", Some("shared"), None), claim("b", None, Some("t")), claim("c", None, Some("t"))];
        pod
    }

    fn with_statuses(mut pod: Pod) -> Pod {
        let status = |name: &str, made: Option<&str>| PodResourceClaimStatus {
            name: name.into(),
            resource_claim_name: made.map(Into::into),
        };
        pod.status.get_or_insert_default().resource_claim_statuses =
            vec![status("b", Some("p-b-x1")), status("c", None)];
        pod
    }

    #[test]
    fn generated_names_come_from_the_status() {
        assert_eq!(of_pod(&pod()).unwrap_err(), "pod \"ns/p\": ResourceClaim not created yet");
        let found = of_pod(&with_statuses(pod())).unwrap();
        let want = [("shared", false), ("p-b-x1", true)];
        assert_eq!(found.iter().map(|n| (n.name.as_str(), n.generated)).collect::<Vec<_>>(), want);
    }

    #[test]
    fn a_container_has_the_requests_that_it_names() {
        let use_of = |name: &str, request: &str| proto::api::core::v1::ResourceClaim {
            name: name.into(),
            request: request.into(),
        };
        let claims = vec![use_of("b", "gpu"), use_of("b", "nic"), use_of("a", "")];
        let resources = Some(ResourceRequirements { claims, ..Default::default() });
        let container = Container { name: "m".into(), resources, ..Default::default() };
        let found = of_container(&with_statuses(pod()), &container).unwrap();
        assert_eq!(found["p-b-x1"], ["gpu", "nic"]);
        assert_eq!(found["shared"], [""]);
        assert_eq!(of_container(&with_statuses(pod()), &Container::default()).unwrap().len(), 0);
    }

    #[test]
    fn a_pod_uses_only_what_is_reserved_for_it_and_made_for_it() {
        let mut claim = ResourceClaim::default();
        claim.metadata.get_or_insert_default().name = "x".into();
        let named = |generated| Named { name: "x".into(), generated };
        assert!(check(&pod(), &named(false), &claim).unwrap_err().contains("is not allowed to use ResourceClaim x"));
        let reserved = ResourceClaimConsumerReference { uid: "u".into(), ..Default::default() };
        claim.status = Some(ResourceClaimStatus { reserved_for: vec![reserved], ..Default::default() });
        assert_eq!(check(&pod(), &named(false), &claim), Ok(()));
        assert!(check(&pod(), &named(true), &claim).unwrap_err().ends_with("(pod is not owner)"));
        let owner = OwnerReference { uid: "u".into(), controller: Some(true), ..Default::default() };
        claim.metadata.get_or_insert_default().owner_references.push(owner);
        assert_eq!(check(&pod(), &named(true), &claim), Ok(()));

        assert_eq!(new(&claim).unwrap_err(), "ResourceClaim x: not allocated");
        let result = |driver: &str| DeviceRequestAllocationResult { driver: driver.into(), ..Default::default() };
        let devices = DeviceAllocationResult { results: vec![result("d"), result("e"), result("d")], config: vec![] };
        if let Some(status) = &mut claim.status {
            status.allocation = Some(AllocationResult { devices: Some(devices), ..Default::default() });
        }
        assert_eq!(new(&claim).unwrap().drivers.keys().collect::<Vec<_>>(), ["d", "e"]);
    }
}
