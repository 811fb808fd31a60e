//! Variables by which containers find services, in the form that Docker links had.

use std::sync::Arc;

use proto::api::core::v1::{Pod, Service};

use crate::pod::spec::PodExt;

const MASTER: &str = "kubernetes";

/// The master service is told to every pod, the others to pods of their namespace that want service links. One of the
/// master's name takes its place there.
pub fn variables(pod: &Pod, services: &[Arc<Service>]) -> Vec<(String, String)> {
    let links = pod.spec().enable_service_links.unwrap_or(true);
    let has_address = |service: &&Arc<Service>| {
        service.spec.as_ref().is_some_and(|spec| !spec.cluster_ip.is_empty() && spec.cluster_ip != "None")
    };
    let told: Vec<_> = services
        .iter()
        .filter(has_address)
        .filter_map(|service| Some((service, service.metadata.as_ref()?)))
        .map(|(service, meta)| (service, meta, links && meta.namespace == pod.namespace()))
        .collect();
    let replaced = told.iter().any(|(_, meta, own)| *own && meta.name == MASTER);
    let mut out = Vec::new();
    for (service, meta, own) in told {
        let master = meta.namespace == "default" && meta.name == MASTER;
        if own || master && !replaced {
            of_service(service, &meta.name, &mut out);
        }
    }
    out
}

fn of_service(service: &Service, name: &str, out: &mut Vec<(String, String)>) {
    let Some(spec) = &service.spec else { return };
    let ip = &spec.cluster_ip;
    let Some(first) = spec.ports.first() else { return };
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

#[cfg(test)]
mod tests {
    use super::*;
    use proto::api::core::v1::{PodSpec, ServicePort, ServiceSpec};

    fn service(namespace: &str, name: &str, ip: &str) -> Arc<Service> {
        let spec = ServiceSpec {
            cluster_ip: ip.into(),
            ports: vec![ServicePort { port: 80, ..Default::default() }],
            ..Default::default()
        };
        let mut service = Service { spec: Some(spec), ..Default::default() };
        let meta = service.metadata.get_or_insert_default();
        (meta.namespace, meta.name) = (namespace.into(), name.into());
        Arc::new(service)
    }

    #[test]
    fn a_service_of_the_masters_name_takes_its_place_where_it_is_told() {
        let hosts = |links, services: &[Arc<Service>]| {
            let spec = PodSpec { enable_service_links: Some(links), ..Default::default() };
            let mut pod = Pod { spec: Some(spec), ..Default::default() };
            pod.metadata.get_or_insert_default().namespace = "ns".into();
            let told = variables(&pod, services);
            let hosts = told.iter().filter(|(name, _)| name.ends_with("_SERVICE_HOST"));
            hosts.map(|(name, ip)| format!("{name}={ip}")).collect::<Vec<_>>().join(" ")
        };
        let master = service("default", "kubernetes", "10.0.0.1");
        let (own, headless) = (service("ns", "kubernetes", "10.0.0.2"), service("ns", "kubernetes", "None"));
        let others = [service("ns", "a-b", "10.0.0.3"), service("other", "c", "10.0.0.4")];
        for (order, wanted) in [
            (vec![master.clone(), own.clone()], "KUBERNETES_SERVICE_HOST=10.0.0.2"),
            (vec![own.clone(), master.clone()], "KUBERNETES_SERVICE_HOST=10.0.0.2"),
            (vec![headless, master.clone()], "KUBERNETES_SERVICE_HOST=10.0.0.1"),
        ] {
            assert_eq!(hosts(true, &order), wanted);
        }
        assert_eq!(hosts(false, &[master.clone(), own, others[0].clone()]), "KUBERNETES_SERVICE_HOST=10.0.0.1");
        let all = [master, others[0].clone(), others[1].clone()];
        assert_eq!(hosts(true, &all), "KUBERNETES_SERVICE_HOST=10.0.0.1 A_B_SERVICE_HOST=10.0.0.3");
    }
}
