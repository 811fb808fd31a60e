//! A pod as the runtime's `PodSandboxConfig`.
//!
//! The same config goes with every container and pull of the pod, so it is built from the pod alone (and the node's
//! settings) and comes out equal each time.

use std::path::{Path, PathBuf};

use proto::api::core::v1::{Container, ContainerPort, Pod};
use proto::cri;

use super::labels;
use super::resources::{NodeResources, sandbox_overhead, sandbox_resources};
use super::security::sandbox_context;
use super::spec::PodExt;
use super::sysctl::dotted;

/// What the caller knows beyond the spec.
pub struct SandboxInputs<'a> {
    pub attempt: u32,
    pub dns: cri::DnsConfig,
    /// Empty for a pod that keeps the host's.
    pub hostname: String,
    pub pod_logs_dir: &'a Path,
    /// Empty in reduced mode, where the runtime chooses.
    pub cgroup_parent: String,
    pub resources: &'a NodeResources,
    pub userns: Option<&'a cri::UserNamespace>,
}

pub fn sandbox_config(pod: &Pod, inputs: SandboxInputs<'_>) -> cri::PodSandboxConfig {
    let meta = pod.meta();
    let mut pod_labels = meta.labels.clone();
    pod_labels.insert(labels::POD_NAME.into(), meta.name.clone());
    pod_labels.insert(labels::POD_NAMESPACE.into(), meta.namespace.clone());
    pod_labels.insert(labels::POD_UID.into(), meta.uid.clone());
    let sysctls = pod.spec().security_context.iter().flat_map(|s| &s.sysctls);
    cri::PodSandboxConfig {
        metadata: Some(cri::PodSandboxMetadata {
            name: meta.name.clone(),
            namespace: meta.namespace.clone(),
            uid: meta.uid.clone(),
            attempt: inputs.attempt,
        }),
        hostname: inputs.hostname,
        log_directory: log_directory(pod, inputs.pod_logs_dir).display().to_string(),
        dns_config: Some(inputs.dns),
        port_mappings: port_mappings(pod),
        labels: pod_labels,
        annotations: meta.annotations.clone(),
        linux: Some(cri::LinuxPodSandboxConfig {
            cgroup_parent: inputs.cgroup_parent,
            security_context: Some(sandbox_context(pod, inputs.userns)),
            // The runtime takes dots only.
            sysctls: sysctls.map(|s| (dotted(&s.name), s.value.clone())).collect(),
            overhead: Some(sandbox_overhead(pod, inputs.resources)),
            resources: Some(sandbox_resources(pod, inputs.resources)),
        }),
        windows: None,
    }
}

/// `DIR/NAMESPACE_NAME_UID`
pub fn log_directory(pod: &Pod, pod_logs_dir: &Path) -> PathBuf {
    pod_logs_dir.join(format!("{}_{}_{}", pod.namespace(), pod.name(), pod.uid()))
}

/// Of the regular containers alone, as the kubelet's: ports of sidecars are for their readers and for the scheduler.
fn port_mappings(pod: &Pod) -> Vec<cri::PortMapping> {
    pod.spec().containers.iter().flat_map(distinct_ports).map(port_mapping).collect()
}

/// The ports of a container, each once for every family of addresses: by its name, or without one by all that it says.
fn distinct_ports(container: &Container) -> impl Iterator<Item = &ContainerPort> {
    let mut seen = std::collections::HashSet::new();
    container.ports.iter().filter(move |port| {
        let family = match port.host_ip.as_str() {
            "" => "any",
            ip if ip.contains(':') => "v6",
            _ => "v4",
        };
        let all = (port.protocol.as_str(), port.host_ip.as_str(), port.container_port, port.host_port);
        seen.insert((family, port.name.as_str(), port.name.is_empty().then_some(all)))
    })
}

fn port_mapping(port: &ContainerPort) -> cri::PortMapping {
    let protocol = match port.protocol.as_str() {
        "UDP" => cri::Protocol::Udp,
        "SCTP" => cri::Protocol::Sctp,
        _ => cri::Protocol::Tcp,
    };
    cri::PortMapping {
        protocol: protocol as i32,
        container_port: port.container_port,
        host_port: port.host_port,
        host_ip: port.host_ip.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proto::api::core::v1::PodSpec;

    /// The kubelet maps none of a sidecar's, though the scheduler keeps its host ports free.
    #[test]
    fn ports_of_regular_containers_are_mapped_each_once() {
        let port = |name: &str, number: i32, host_ip: &str| ContainerPort {
            name: name.into(),
            container_port: number,
            host_port: number,
            host_ip: host_ip.into(),
            ..Default::default()
        };
        let container = |ports: Vec<ContainerPort>, policy: Option<&str>| Container {
            ports,
            restart_policy: policy.map(Into::into),
            ..Default::default()
        };
        let several =
            vec![port("web", 80, ""), port("web", 81, ""), port("", 82, ""), port("", 82, ""), port("", 82, "::1")];
        let spec = PodSpec {
            init_containers: vec![
                container(vec![port("", 70, "")], Some("Always")),
                container(vec![port("", 71, "")], None),
            ],
            containers: vec![container(several, None), container(vec![port("web", 83, "")], None)],
            ..Default::default()
        };
        let pod = Pod { spec: Some(spec), ..Default::default() };
        let mapped: Vec<i32> = port_mappings(&pod).iter().map(|m| m.host_port).collect();
        assert_eq!(mapped, [80, 82, 82, 83]);
    }
}
