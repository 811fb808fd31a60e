//! What others ask about devices: the node's amounts, a container's settings, the health in a pod's status, and who has
//! what for PodResources.

use std::collections::BTreeMap;

use proto::api::core::v1::{Container, Pod, PodStatus, ResourceHealth, ResourceStatus};
use proto::cri;

use crate::pod::spec::PodExt as _;

use super::endpoint::described;
use super::{Devices, NO_NODE};

/// What a container's configuration gets from plugins.
#[derive(Debug, Default, PartialEq)]
pub struct ContainerDevices {
    pub envs: Vec<(String, String)>,
    pub mounts: Vec<cri::Mount>,
    pub devices: Vec<cri::Device>,
    pub cdi_devices: Vec<cri::CdiDevice>,
    pub annotations: Vec<(String, String)>,
}

/// One device and where it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AssignedDevice {
    pub resource: String,
    pub id: String,
    /// `None` when the plugin did not say.
    pub nodes: Option<Vec<i64>>,
}

impl Devices {
    /// Capacity and allocatable by resource; zero of what is gone.
    pub fn amounts(&self) -> BTreeMap<String, (usize, usize)> {
        let state = self.state();
        let gone = state.gone.iter().map(|name| (name.clone(), (0, 0)));
        gone.chain(state.resources.iter().map(|(name, r)| (name.clone(), (r.devices.len(), r.healthy().len()))))
            .collect()
    }

    /// Tells plugins that want to know that the container is about to start, and gathers what it needs from them.
    ///
    /// # Errors
    /// When a plugin refuses; the container may be tried again.
    pub async fn container(&self, pod: &Pod, container: &Container) -> Result<ContainerDevices, String> {
        let uid = pod.uid();
        let mut calls = Vec::new();
        let mut found = ContainerDevices::default();
        {
            let state = self.state();
            let Some(assigned) = state.pods.get(uid).and_then(|c| c.get(&container.name)) else { return Ok(found) };
            for (resource, assigned) in assigned {
                if let Some(known) = state.resources.get(resource)
                    && known.options.pre_start_required
                {
                    let endpoint = known.endpoint.clone();
                    let endpoint = endpoint
                        .ok_or_else(|| format!("endpoint not found in cache for a registered resource: {resource}"))?;
                    calls.push((endpoint, assigned.ids()));
                }
                found.add(&assigned.response);
            }
        }
        for (endpoint, ids) in calls {
            let answer = endpoint.pre_start(ids.into_iter().collect()).await;
            answer.map_err(|e| format!("device plugin PreStartContainer rpc failed with err: {}", described(&e)))?;
        }
        Ok(found)
    }

    /// Writes the health of the pod's devices into its status: what their plugin said last. That it is away, or has not come
    /// back since the agent started, says nothing about the devices that the pod has.
    pub fn annotate(&self, uid: &str, status: &mut PodStatus) {
        let state = self.state();
        let Some(containers) = state.pods.get(uid) else { return };
        for container in &mut status.container_statuses {
            let Some(assigned) = containers.get(&container.name) else { continue };
            let health = |resource: &str, id: &str| {
                let known = state.resources.get(resource).and_then(|r| r.devices.get(id));
                if known.is_none_or(|device| device.healthy) { "Healthy" } else { "Unhealthy" }
            };
            let of = |(resource, assigned): (&String, &super::Assigned)| ResourceStatus {
                name: resource.clone(),
                resources: assigned
                    .ids()
                    .into_iter()
                    .map(|id| ResourceHealth {
                        health: health(resource, &id).into(),
                        resource_id: id,
                        ..Default::default()
                    })
                    .collect(),
            };
            container.allocated_resources_status = assigned.iter().map(of).collect();
        }
    }

    /// The devices of a container, by resource and id.
    pub fn assigned(&self, uid: &str, container: &str) -> Vec<AssignedDevice> {
        let state = self.state();
        let Some(assigned) = state.pods.get(uid).and_then(|c| c.get(container)) else { return Vec::new() };
        let mut found = Vec::new();
        for (resource, assigned) in assigned {
            for id in assigned.ids() {
                let nodes = assigned.by_node.iter().filter(|(n, ids)| **n != NO_NODE && ids.contains(&id));
                let nodes: Vec<i64> = nodes.map(|(n, _)| *n).collect();
                let nodes = (!nodes.is_empty()).then_some(nodes);
                found.push(AssignedDevice { resource: resource.clone(), id, nodes });
            }
        }
        found
    }

    /// The healthy devices, given or not.
    pub fn allocatable(&self) -> Vec<AssignedDevice> {
        let state = self.state();
        let mut found = Vec::new();
        for (name, resource) in &state.resources {
            for id in resource.healthy() {
                let nodes = resource.devices.get(&id).and_then(|d| d.nodes.clone());
                found.push(AssignedDevice { resource: name.clone(), id, nodes });
            }
        }
        found
    }
}

impl ContainerDevices {
    fn add(&mut self, response: &proto::device_plugin::ContainerAllocateResponse) {
        // Of two plugins that set one variable or mount one path the first counts.
        for (name, value) in &response.envs {
            if !self.envs.iter().any(|(n, _)| n == name) {
                self.envs.push((name.clone(), value.clone()));
            }
        }
        for mount in &response.mounts {
            if !self.mounts.iter().any(|m| m.container_path == mount.container_path) {
                self.mounts.push(cri::Mount {
                    container_path: mount.container_path.clone(),
                    host_path: mount.host_path.clone(),
                    readonly: mount.read_only,
                    ..Default::default()
                });
            }
        }
        for device in &response.devices {
            if !self.devices.iter().any(|d| d.container_path == device.container_path) {
                self.devices.push(cri::Device {
                    container_path: device.container_path.clone(),
                    host_path: device.host_path.clone(),
                    permissions: device.permissions.clone(),
                });
            }
        }
        for (name, value) in &response.annotations {
            if !self.annotations.iter().any(|(n, _)| n == name) {
                self.annotations.push((name.clone(), value.clone()));
            }
        }
        for device in &response.cdi_devices {
            if !self.cdi_devices.iter().any(|d| d.name == device.name) {
                self.cdi_devices.push(cri::CdiDevice { name: device.name.clone() });
            }
        }
    }
}
