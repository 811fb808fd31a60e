//! What others ask about claims: the devices of a container, their health for a pod's status, and who has what for
//! PodResources.

use std::collections::BTreeSet;

use proto::api::core::v1::{Container, Pod, PodStatus, ResourceHealth, ResourceStatus};
use proto::cri;
use proto::pod_resources::{CdiDevice, ClaimResource, DynamicResource};

use super::checkpoint::{Claim, Device};
use super::{Dra, State, claims};
use crate::pod::spec::PodExt as _;

impl Device {
    /// Whether the device was prepared for a request; an empty one means all of the claim. A request may name the one of
    /// several alternatives that was chosen: `request/alternative`.
    fn serves(&self, request: &str) -> bool {
        let base = request.split('/').next().unwrap_or_default();
        let names = self.request_names.as_deref().unwrap_or_default();
        base.is_empty() || names.is_empty() || names.iter().any(|n| n == base)
    }

    fn cdi(&self) -> &[String] {
        self.cdi_devices.as_deref().unwrap_or_default()
    }
}

impl State {
    fn claim(&self, namespace: &str, name: &str) -> Option<&Claim> {
        self.claims.get(&(namespace.to_owned(), name.to_owned())).map(|known| &known.claim)
    }
}

impl Dra {
    /// What the runtime is to add to a container for its claims, by the names of the Container Device Interface.
    ///
    /// # Errors
    /// A claim is not prepared, or not known; the container may be tried again.
    pub fn container(&self, pod: &Pod, container: &Container) -> Result<Vec<cri::CdiDevice>, String> {
        let mut found: Vec<cri::CdiDevice> = Vec::new();
        let state = self.state();
        for (name, requests) in claims::of_container(pod, container)? {
            let namespace = pod.namespace();
            let claim = state.claim(namespace, &name).ok_or_else(|| {
                format!("internal error: unable to get claim info for ResourceClaim {name} in namespace {namespace}")
            })?;
            let devices = || claim.drivers.values().flat_map(|d| d.devices());
            for request in requests {
                for id in devices().filter(|d| d.serves(&request)).flat_map(Device::cdi) {
                    if !found.iter().any(|device| device.name == *id) {
                        found.push(cri::CdiDevice { name: id.clone() });
                    }
                }
            }
        }
        Ok(found)
    }

    /// Adds the health of the devices of claims to the pod's status.
    pub fn annotate(&self, pod: &Pod, status: &mut PodStatus) {
        if pod.spec().resource_claims.is_empty() {
            return;
        }
        let state = self.state();
        for of in &mut status.container_statuses {
            let Some(container) = pod.spec().containers.iter().find(|c| c.name == of.name) else { continue };
            for used in container.resources.iter().flat_map(|r| &r.claims) {
                let in_pod = pod.spec().resource_claims.iter().find(|c| c.name == used.name);
                let Some(Ok(Some(named))) = in_pod.map(|c| claims::named(pod, c)) else { continue };
                let Some(claim) = state.claim(pod.namespace(), &named.name) else { continue };
                let resources = state.health_of(claim, &used.request);
                if resources.is_empty() {
                    continue;
                }
                let name = match used.request.as_str() {
                    "" => format!("claim:{}", used.name),
                    request => format!("claim:{}/{request}", used.name),
                };
                of.allocated_resources_status.retain(|s| s.name != name);
                of.allocated_resources_status.push(ResourceStatus { name, resources });
            }
        }
    }

    /// The claims of a container with the devices in them.
    pub fn resources(&self, pod: &Pod, container: &Container) -> Vec<DynamicResource> {
        let state = self.state();
        let names = claims::of_container(pod, container).unwrap_or_default();
        let claims = names.keys().filter_map(|name| state.claim(pod.namespace(), name));
        claims.map(resource).collect()
    }
}

impl State {
    /// One entry for each device; of devices that share an id the first counts.
    fn health_of(&self, claim: &Claim, request: &str) -> Vec<ResourceHealth> {
        let (mut found, mut seen) = (Vec::new(), BTreeSet::new());
        for (driver, state) in &claim.drivers {
            for device in state.devices().iter().filter(|d| d.serves(request)) {
                let own = || format!("{driver}/{}/{}", device.pool_name, device.device_name);
                let id = device.cdi().first().cloned().unwrap_or_else(own);
                if !seen.insert(id.clone()) {
                    continue;
                }
                let (word, message) = self.healths.of(driver, &device.pool_name, &device.device_name);
                found.push(ResourceHealth {
                    resource_id: id,
                    health: word.to_owned(),
                    message: (!message.is_empty()).then(|| message.to_owned()),
                });
            }
        }
        found
    }
}

fn resource(claim: &Claim) -> DynamicResource {
    let of_driver = |(driver, state): (&String, &super::checkpoint::Driver)| {
        let of = |device: &Device| ClaimResource {
            cdi_devices: device.cdi().iter().map(|name| CdiDevice { name: name.clone() }).collect(),
            driver_name: driver.clone(),
            pool_name: device.pool_name.clone(),
            device_name: device.device_name.clone(),
            share_id: device.share_id.clone(),
        };
        state.devices().iter().map(of).collect::<Vec<_>>()
    };
    DynamicResource {
        claim_name: claim.name.clone(),
        claim_namespace: claim.namespace.clone(),
        claim_resources: claim.drivers.iter().flat_map(of_driver).collect(),
    }
}
