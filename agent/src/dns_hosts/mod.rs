//! Names: host name, `/etc/hosts` and resolver of a pod.
//!
//! Followed: `pkg/kubelet/network/dns`, `kubelet_pods.go`.

use std::path::{Path, PathBuf};

use proto::api::core::v1::Pod;
use proto::cri;

use crate::pod::spec::PodExt;

const MAX_SERVERS: usize = 3;
const MAX_SEARCHES: usize = 32;
const MAX_SEARCH_BYTES: usize = 2048;
/// Longest name the kernel takes.
const MAX_HOSTNAME_BYTES: usize = 63;

/// What the node knows of DNS.
#[derive(Debug, Clone, Default)]
pub struct NodeDns {
    pub cluster_dns: Vec<String>,
    pub cluster_domain: String,
    /// Empty for none.
    pub resolv_conf: PathBuf,
}

/// The resolver of a pod.
pub fn dns_config(pod: &Pod, node: &NodeDns) -> cri::DnsConfig {
    let spec = pod.spec();
    let cluster = match spec.dns_policy.as_str() {
        "None" => None,
        "Default" => Some(false),
        "ClusterFirstWithHostNet" => Some(true),
        _ => Some(!spec.host_network),
    };
    let mut config = match cluster {
        None => cri::DnsConfig::default(),
        Some(true) if !node.cluster_dns.is_empty() => cluster_first(pod, node),
        // Without a cluster resolver the node's own is the best there is.
        Some(_) => host_config(&node.resolv_conf),
    };
    if let Some(own) = &spec.dns_config {
        add_new(&mut config.servers, &own.nameservers);
        add_new(&mut config.searches, &own.searches);
        for option in &own.options {
            let text = match option.value.as_deref() {
                Some(value) if !value.is_empty() => format!("{}:{value}", option.name),
                _ => option.name.clone(),
            };
            let named = |o: &String| o.split(':').next() == Some(option.name.as_str());
            match config.options.iter_mut().find(|o| named(o)) {
                Some(slot) => *slot = text,
                None => config.options.push(text),
            }
        }
    }
    limit(&mut config);
    config
}

fn cluster_first(pod: &Pod, node: &NodeDns) -> cri::DnsConfig {
    let mut searches = Vec::new();
    let domain = &node.cluster_domain;
    if !domain.is_empty() {
        searches = vec![format!("{}.svc.{domain}", pod.namespace()), format!("svc.{domain}"), domain.clone()];
    }
    add_new(&mut searches, &host_config(&node.resolv_conf).searches);
    cri::DnsConfig { servers: node.cluster_dns.clone(), searches, options: vec!["ndots:5".into()] }
}

fn add_new(list: &mut Vec<String>, more: &[String]) {
    for item in more {
        if !list.contains(item) {
            list.push(item.clone());
        }
    }
}

fn limit(config: &mut cri::DnsConfig) {
    config.servers.truncate(MAX_SERVERS);
    config.searches.truncate(MAX_SEARCHES);
    let mut length = 0;
    config.searches.retain(|search| {
        length += search.len() + 1;
        length <= MAX_SEARCH_BYTES + 1
    });
}

fn host_config(path: &Path) -> cri::DnsConfig {
    if path.as_os_str().is_empty() {
        return cri::DnsConfig { servers: vec!["127.0.0.1".into()], searches: vec![".".into()], options: vec![] };
    }
    match std::fs::read_to_string(path) {
        Ok(text) => parse_resolv_conf(&text),
        Err(error) => {
            tracing::warn!(%error, path = %path.display(), "cannot read the node's resolver configuration");
            cri::DnsConfig::default()
        }
    }
}

fn parse_resolv_conf(text: &str) -> cri::DnsConfig {
    let mut config = cri::DnsConfig::default();
    for line in text.lines() {
        let mut words = line.split_whitespace();
        let keyword = words.next().unwrap_or("");
        let rest = words.map(str::to_owned);
        match keyword {
            "nameserver" => config.servers.extend(rest.take(1)),
            // The last one counts; a final dot says what is known anyway.
            "search" => {
                config.searches = rest.map(|s| if s == "." { s } else { s.trim_end_matches('.').to_owned() }).collect();
            }
            "options" => config.options = rest.collect(),
            _ => {}
        }
    }
    config
}

/// The text of `/etc/hosts`. A pod on the host's network gets the node's, marked as managed.
pub fn etc_hosts(pod: &Pod, ips: &[String], node: &NodeDns) -> String {
    let spec = pod.spec();
    let mut text;
    if spec.host_network {
        text = String::from("# Kubernetes-managed hosts file (host network).\n");
        text.push_str(&std::fs::read_to_string("/etc/hosts").unwrap_or_default());
    } else {
        text = String::from(
            "# Kubernetes-managed hosts file.\n127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost ip6-loopback\n\
             fe00::0\tip6-localnet\nfe00::0\tip6-mcastprefix\nfe00::1\tip6-allnodes\nfe00::2\tip6-allrouters\n",
        );
        let short = short_name(pod);
        for ip in ips {
            match fqdn(pod, node) {
                Some(full) => text.push_str(&format!("{ip}\t{full}\t{short}\n")),
                None => text.push_str(&format!("{ip}\t{short}\n")),
            }
        }
    }
    if !spec.host_aliases.is_empty() {
        text.push_str("\n# Entries added by HostAliases.\n");
        for alias in &spec.host_aliases {
            text.push_str(&format!("{}\t{}\n", alias.ip, alias.hostnames.join("\t")));
        }
    }
    text
}

/// The host name that the sandbox gets.
pub fn hostname(pod: &Pod, node: &NodeDns) -> String {
    if let Some(given) = pod.spec().hostname_override.as_ref().filter(|h| !h.is_empty()) {
        return given.clone();
    }
    match fqdn(pod, node) {
        Some(full) if pod.spec().set_hostname_as_fqdn == Some(true) => full,
        _ => short_name(pod),
    }
}

fn short_name(pod: &Pod) -> String {
    let spec = pod.spec();
    if let Some(given) = spec.hostname_override.as_ref().filter(|h| !h.is_empty()) {
        return given.clone();
    }
    let name = if spec.hostname.is_empty() { pod.name() } else { &spec.hostname };
    let cut: String = name.chars().take(MAX_HOSTNAME_BYTES).collect();
    cut.trim_end_matches(['-', '.']).to_owned()
}

/// With a subdomain a pod has a name in the cluster.
fn fqdn(pod: &Pod, node: &NodeDns) -> Option<String> {
    let sub = &pod.spec().subdomain;
    let named = !sub.is_empty() && pod.spec().hostname_override.as_ref().is_none_or(String::is_empty);
    named.then(|| format!("{}.{sub}.{}.svc.{}", short_name(pod), pod.namespace(), node.cluster_domain))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proto::api::core::v1::{PodDnsConfig, PodDnsConfigOption, PodSpec};

    #[test]
    fn own_settings_are_merged_into_those_of_the_node() {
        let host = parse_resolv_conf("nameserver 192.0.2.53\nsearch node.example.\noptions timeout:1\n# x\n");
        assert_eq!(host.searches, ["node.example"]);
        let own = PodDnsConfig {
            nameservers: vec!["192.0.2.1".into()],
            searches: vec!["one.example".into()],
            options: vec![
                PodDnsConfigOption { name: "ndots".into(), value: Some("2".into()) },
                PodDnsConfigOption { name: "edns0".into(), value: None },
            ],
        };
        let spec = PodSpec { dns_policy: "None".into(), dns_config: Some(own), ..Default::default() };
        let pod = Pod { spec: Some(spec), ..Default::default() };
        let config = dns_config(&pod, &NodeDns::default());
        assert_eq!(config.options, ["ndots:2", "edns0"]);
        assert_eq!((config.servers.len(), config.searches.len()), (1, 1));
    }

    #[test]
    fn a_subdomain_makes_a_full_name() {
        let mut pod = Pod::default();
        pod.metadata.get_or_insert_default().namespace = "ns".into();
        let spec = pod.spec.get_or_insert_default();
        spec.hostname = "web-0".into();
        spec.subdomain = "web".into();
        let node = NodeDns { cluster_domain: "cluster.local".into(), ..Default::default() };
        assert_eq!(hostname(&pod, &node), "web-0");
        pod.spec.as_mut().unwrap().set_hostname_as_fqdn = Some(true);
        assert_eq!(hostname(&pod, &node), "web-0.web.ns.svc.cluster.local");
        assert!(
            etc_hosts(&pod, &["1.2.3.4".into()], &node).contains("1.2.3.4\tweb-0.web.ns.svc.cluster.local\tweb-0\n")
        );
    }
}
