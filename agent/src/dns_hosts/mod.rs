//! Names: host name, `/etc/hosts` and resolver of a pod.

use proto::api::core::v1::Pod;
use proto::cri;

use crate::pod::spec::PodExt;

/// What the node knows of DNS.
#[derive(Debug, Clone, Default)]
pub struct NodeDns {
    pub cluster_dns: Vec<String>,
    pub cluster_domain: String,
    pub resolv_conf: std::path::PathBuf,
}

/// The resolver of a pod.
pub fn dns_config(pod: &Pod, node: &NodeDns) -> cri::DnsConfig {
    let domain = &node.cluster_domain;
    let searches = [format!("{}.svc.{domain}", pod.namespace()), format!("svc.{domain}"), domain.clone()];
    cri::DnsConfig { servers: node.cluster_dns.clone(), searches: searches.into(), options: vec!["ndots:5".into()] }
}

/// The text of `/etc/hosts`.
pub fn etc_hosts(pod: &Pod, ips: &[String]) -> String {
    let mut text = String::from("# Kubernetes-managed hosts file.\n127.0.0.1\tlocalhost\n");
    for ip in ips {
        text.push_str(&format!("{ip}\t{}\n", hostname(pod)));
    }
    text
}

/// The host name of a pod.
pub fn hostname(pod: &Pod) -> String {
    let spec = pod.spec();
    let name = if spec.hostname.is_empty() { pod.name() } else { &spec.hostname };
    name.chars().take(63).collect()
}
