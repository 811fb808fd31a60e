//! Variables by which containers find services, in the form that Docker links had.

use std::sync::Arc;

use proto::api::core::v1::{Pod, Service};

use crate::pod::spec::PodExt;

/// The master service is told to every pod, the others to pods of their namespace that want service links.
pub fn variables(pod: &Pod, services: &[Arc<Service>]) -> Vec<(String, String)> {
    let links = pod.spec().enable_service_links.unwrap_or(true);
    let mut out = Vec::new();
    for service in services {
        let Some(meta) = &service.metadata else { continue };
        let master = meta.namespace == "default" && meta.name == "kubernetes";
        if master || links && meta.namespace == pod.namespace() {
            of_service(service, &meta.name, &mut out);
        }
    }
    out
}

fn of_service(service: &Service, name: &str, out: &mut Vec<(String, String)>) {
    let Some(spec) = &service.spec else { return };
    let ip = &spec.cluster_ip;
    // Headless services have no address to tell.
    let Some(first) = spec.ports.first().filter(|_| !ip.is_empty() && ip != "None") else { return };
    let prefix = name.to_uppercase().replace('-', "_");
    let joined = |port: i32| if ip.contains(':') { format!("[{ip}]:{port}") } else { format!("{ip}:{port}") };
    out.push((format!("{prefix}_SERVICE_HOST"), ip.clone()));
    out.push((format!("{prefix}_SERVICE_PORT"), first.port.to_string()));
    for port in spec.ports.iter().filter(|p| !p.name.is_empty()) {
        let name = port.name.to_uppercase().replace('-', "_");
        out.push((format!("{prefix}_SERVICE_PORT_{name}"), port.port.to_string()));
    }
    for (i, port) in spec.ports.iter().enumerate() {
        let protocol = if port.protocol.is_empty() { "tcp".to_owned() } else { port.protocol.to_lowercase() };
        let url = format!("{protocol}://{}", joined(port.port));
        if i == 0 {
            out.push((format!("{prefix}_PORT"), url.clone()));
        }
        let own = format!("{prefix}_PORT_{}_{}", port.port, protocol.to_uppercase());
        out.push((own.clone(), url));
        out.push((format!("{own}_PROTO"), protocol));
        out.push((format!("{own}_PORT"), port.port.to_string()));
        out.push((format!("{own}_ADDR"), ip.clone()));
    }
}
