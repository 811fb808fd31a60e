//! Names: host name, `/etc/hosts` and resolver of a pod.
//!
//! Followed: `pkg/kubelet/network/dns`, `kubelet_pods.go`.

use std::net::IpAddr;
use std::path::{Path, PathBuf};

use proto::api::core::v1::Pod;
use proto::cri;

use crate::config::parse_ip;
use crate::pod::spec::PodExt;

const MAX_SERVERS: usize = 3;
const MAX_SEARCHES: usize = 32;
const MAX_SEARCH_BYTES: usize = 2048;
/// Longer domains make some C libraries abort.
const MAX_DOMAIN_BYTES: usize = 253;
/// Longest single label.
const MAX_HOSTNAME_BYTES: usize = 63;
/// Longest name that the kernel takes for a host.
const MAX_KERNEL_BYTES: usize = 64;

/// What the node knows of DNS.
#[derive(Debug, Clone, Default)]
pub struct NodeDns {
    pub cluster_dns: Vec<String>,
    pub cluster_domain: String,
    /// Empty for none.
    pub resolv_conf: PathBuf,
    /// Where a pod asks that is to have the node's resolver when there is none; see [`local_servers`].
    pub local_servers: Vec<String>,
}

/// The node itself, in the families of the addresses that it was told to have: a C library without a server asks there
/// too, and a runtime that is told of none would take the machine's own file.
pub fn local_servers(node_ips: &[IpAddr]) -> Vec<String> {
    let own = |ip: &IpAddr| if ip.is_ipv6() { "::1" } else { "127.0.0.1" }.to_owned();
    match node_ips {
        [] => vec!["127.0.0.1".to_owned()],
        some => some.iter().map(own).collect(),
    }
}

/// The servers of `clusterDNS`, written as addresses are. What is no address would make a pod's resolver useless, and is
/// left out and told.
pub fn cluster_servers(configured: &[String]) -> Vec<String> {
    let address = |text: &String| {
        let address = parse_ip(text);
        if address.is_none() {
            tracing::warn!(entry = text, "Invalid clusterDNS IP: left out");
        }
        address.map(|address| address.to_canonical().to_string())
    };
    configured.iter().filter_map(address).collect()
}

/// Something that a pod's resolver lacks; told as an event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Trouble {
    pub reason: &'static str,
    pub message: String,
    /// What is told of the node besides, where it is the node's.
    pub of_node: Option<String>,
}

/// The resolver of a pod, and what had to be left out of it.
///
/// # Errors
/// The node's own cannot be read: as the kubelet has it, no pod starts then, whatever its policy. Go's words.
pub fn dns_config(pod: &Pod, node: &NodeDns) -> Result<(cri::DnsConfig, Vec<Trouble>), String> {
    let mut troubles = Vec::new();
    let spec = pod.spec();
    let host = host_config(&node.resolv_conf)?;
    let cluster = match spec.dns_policy.as_str() {
        "None" => None,
        "Default" => Some(false),
        "ClusterFirstWithHostNet" => Some(true),
        _ => Some(!spec.host_network),
    };
    let mut config = match cluster {
        None => cri::DnsConfig::default(),
        Some(true) if !node.cluster_dns.is_empty() => cluster_first(pod, node, &host),
        // Without a cluster resolver the node's own is the best there is.
        Some(wanted) => {
            if wanted {
                let lacking = "kubelet does not have ClusterDNS IP configured and cannot create Pod using \
                               \"ClusterFirst\" policy. Falling back to \"Default\" policy.";
                let message = format!("pod: {:?}. {lacking}", pod.described());
                troubles.push(Trouble { reason: "MissingClusterDNS", message, of_node: Some(lacking.to_owned()) });
            }
            match node.resolv_conf.as_os_str().is_empty() {
                true => cri::DnsConfig {
                    servers: node.local_servers.clone(),
                    searches: vec![".".into()],
                    ..Default::default()
                },
                false => host,
            }
        }
    };
    if let Some(own) = &spec.dns_config {
        add_new(&mut config.servers, &own.nameservers);
        add_new(&mut config.searches, &own.searches);
        for option in &own.options {
            let text = match option.value.as_deref() {
                Some(value) if !value.is_empty() => format!("{}:{value}", option.name),
                _ => option.name.clone(),
            };
            put_option(&mut config.options, text);
        }
    }
    limit(&mut config, &mut troubles);
    Ok((config, troubles))
}

fn cluster_first(pod: &Pod, node: &NodeDns, host: &cri::DnsConfig) -> cri::DnsConfig {
    let mut searches = Vec::new();
    let domain = &node.cluster_domain;
    if !domain.is_empty() {
        searches = vec![format!("{}.svc.{domain}", pod.namespace()), format!("svc.{domain}"), domain.clone()];
    }
    add_new(&mut searches, &host.searches);
    cri::DnsConfig { servers: node.cluster_dns.clone(), searches, options: vec!["ndots:5".into()] }
}

/// Adds an option in place of one with its name.
fn put_option(options: &mut Vec<String>, option: String) {
    let name = |option: &str| option.split(':').next().unwrap_or_default().to_owned();
    match options.iter_mut().find(|known| name(known) == name(&option)) {
        Some(slot) => *slot = option,
        None => options.push(option),
    }
}

fn add_new(list: &mut Vec<String>, more: &[String]) {
    for item in more {
        if !list.contains(item) {
            list.push(item.clone());
        }
    }
}

/// Cuts a resolver to what the C library takes.
fn limit(config: &mut cri::DnsConfig, troubles: &mut Vec<Trouble>) {
    let mut forming = |message: String| troubles.push(Trouble { reason: "DNSConfigForming", message, of_node: None });
    if config.servers.len() > MAX_SERVERS {
        config.servers.truncate(MAX_SERVERS);
        forming(format!(
            "Nameserver limits were exceeded, some nameservers have been omitted, the applied nameserver line is: {}",
            config.servers.join(" ")
        ));
    }
    let before = config.searches.len();
    config.searches.truncate(MAX_SEARCHES);
    config.searches.retain(|search| search.len() <= MAX_DOMAIN_BYTES);
    while config.searches.join(" ").len() > MAX_SEARCH_BYTES {
        config.searches.pop();
    }
    if config.searches.len() < before {
        forming(format!(
            "Search Line limits were exceeded, some search paths have been omitted, the applied search line is: {}",
            config.searches.join(" ")
        ));
    }
}

fn host_config(path: &Path) -> Result<cri::DnsConfig, String> {
    if path.as_os_str().is_empty() {
        return Ok(cri::DnsConfig::default());
    }
    Ok(parse_resolv_conf(&String::from_utf8_lossy(&read(path)?)))
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
            // Of several lines all count, and of options with one name the last.
            "options" => rest.for_each(|option| put_option(&mut config.options, option)),
            _ => {}
        }
    }
    config
}

/// The content of `/etc/hosts`. A pod on the host's network gets the node's, byte for byte, marked as managed.
///
/// # Errors
/// The node's cannot be read.
pub fn etc_hosts(pod: &Pod, ips: &[String], node: &NodeDns) -> Result<Vec<u8>, String> {
    hosts_beside(Path::new("/etc/hosts"), pod, ips, node)
}

fn hosts_beside(of_node: &Path, pod: &Pod, ips: &[String], node: &NodeDns) -> Result<Vec<u8>, String> {
    let spec = pod.spec();
    let mut content = Vec::new();
    let mut text = String::new();
    if spec.host_network {
        content.extend_from_slice(b"# Kubernetes-managed hosts file (host network).\n");
        content.extend(read(of_node)?);
    } else {
        text.push_str(
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
    content.extend_from_slice(text.as_bytes());
    Ok(content)
}

/// A file of the node's, or Go's words.
fn read(path: &Path) -> Result<Vec<u8>, String> {
    std::fs::read(path).map_err(|error| format!("open {}: {}", path.display(), crate::api::io_words(&error)))
}

/// The host name that a pod has in a network of its own.
///
/// # Errors
/// The full name is wanted and longer than the kernel takes.
pub fn hostname(pod: &Pod, node: &NodeDns) -> Result<String, String> {
    match fqdn(pod, node).filter(|_| pod.spec().set_hostname_as_fqdn == Some(true)) {
        Some(full) if full.len() > MAX_KERNEL_BYTES => Err(format!(
            "failed to construct FQDN from pod hostname and cluster domain, FQDN {full} is too long \
             ({MAX_KERNEL_BYTES} characters is the max, {} characters requested)",
            full.len()
        )),
        Some(full) => Ok(full),
        None => Ok(short_name(pod)),
    }
}

fn short_name(pod: &Pod) -> String {
    let spec = pod.spec();
    let given = spec.hostname_override.as_ref().filter(|h| !h.is_empty());
    let name = given.unwrap_or(if spec.hostname.is_empty() { &pod.meta().name } else { &spec.hostname });
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

    /// A resolver was written with what is no address.
    #[test]
    fn servers_of_the_cluster_are_addresses() {
        let configured = ["dns.cluster", "010.96.0.10", "", "FD00::A", "10.0.0.1:53"].map(str::to_owned);
        assert_eq!(cluster_servers(&configured), ["10.96.0.10", "fd00::a"]);
    }

    #[test]
    fn own_settings_are_merged_into_those_of_the_node() {
        let host = parse_resolv_conf("nameserver 192.0.2.53\nsearch node.example.\noptions timeout:1\n# x\n");
        assert_eq!(host.searches, ["node.example"]);
        let several = parse_resolv_conf("options timeout:1 rotate\noptions timeout:3 edns0\n");
        assert_eq!(several.options, ["timeout:3", "rotate", "edns0"]);
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
        let (config, troubles) = dns_config(&pod, &NodeDns::default()).unwrap();
        assert!(troubles.is_empty());
        assert_eq!(config.options, ["ndots:2", "edns0"]);
        assert_eq!((config.servers.len(), config.searches.len()), (1, 1));
    }

    #[test]
    fn a_host_name_fits_a_label_and_the_full_one_the_kernel() {
        let named = |spec: PodSpec| {
            let mut pod = Pod { spec: Some(spec), ..Default::default() };
            pod.metadata.get_or_insert_default().namespace = "ns".into();
            hostname(&pod, &NodeDns { cluster_domain: "d".into(), ..NodeDns::default() })
        };
        let given = Some(format!("{}-b", "a".repeat(62)));
        assert_eq!(named(PodSpec { hostname_override: given, ..Default::default() }), Ok("a".repeat(62)));
        let full = |name: &str| PodSpec {
            hostname: name.into(),
            subdomain: "s".into(),
            set_hostname_as_fqdn: Some(true),
            ..Default::default()
        };
        assert_eq!(named(full("a")), Ok("a.s.ns.svc.d".into()));
        assert_eq!(named(full(&"a".repeat(53))).map(|name| name.len()), Ok(64));
        let why = named(full(&"a".repeat(54))).unwrap_err();
        assert!(why.ends_with(".s.ns.svc.d is too long (64 characters is the max, 65 characters requested)"), "{why}");
    }

    /// Pods were started without the names of their node.
    #[test]
    fn no_pod_has_a_resolver_when_that_of_the_node_cannot_be_read() {
        let node = NodeDns { resolv_conf: "/nonexistent/resolv.conf".into(), ..NodeDns::default() };
        for policy in ["Default", "ClusterFirst", "None"] {
            let pod =
                Pod { spec: Some(PodSpec { dns_policy: policy.into(), ..Default::default() }), ..Default::default() };
            let why = dns_config(&pod, &node).unwrap_err();
            assert_eq!(why, "open /nonexistent/resolv.conf: no such file or directory");
        }
    }

    /// The root as a search domain got into the pods of the cluster's resolver too.
    #[test]
    fn without_a_resolver_of_the_node_a_pod_asks_the_node_itself() {
        let ips = |list: &[&str]| list.iter().map(|ip| ip.parse().unwrap()).collect::<Vec<IpAddr>>();
        assert_eq!(local_servers(&[]), ["127.0.0.1"]);
        assert_eq!(local_servers(&ips(&["fd00::1"])), ["::1"]);
        assert_eq!(local_servers(&ips(&["192.0.2.1", "::"])), ["127.0.0.1", "::1"]);
        let node = NodeDns {
            cluster_dns: vec!["10.96.0.10".into()],
            cluster_domain: "c.local".into(),
            local_servers: vec!["::1".into()],
            ..Default::default()
        };
        let of = |policy: &str| {
            let spec = PodSpec { dns_policy: policy.into(), ..Default::default() };
            let mut pod = Pod { spec: Some(spec), ..Default::default() };
            pod.metadata.get_or_insert_default().namespace = "ns".into();
            let config = dns_config(&pod, &node).unwrap().0;
            (config.servers.join(" "), config.searches.join(" "))
        };
        assert_eq!(of("Default"), ("::1".into(), ".".into()));
        assert_eq!(of("ClusterFirst"), ("10.96.0.10".into(), "ns.svc.c.local svc.c.local c.local".into()));
    }

    #[test]
    fn a_subdomain_makes_a_full_name() {
        let mut pod = Pod::default();
        pod.metadata.get_or_insert_default().namespace = "ns".into();
        let spec = pod.spec.get_or_insert_default();
        spec.hostname = "web-0".into();
        spec.subdomain = "web".into();
        let node = NodeDns { cluster_domain: "cluster.local".into(), ..Default::default() };
        assert_eq!(hostname(&pod, &node).unwrap(), "web-0");
        pod.spec.as_mut().unwrap().set_hostname_as_fqdn = Some(true);
        assert_eq!(hostname(&pod, &node).unwrap(), "web-0.web.ns.svc.cluster.local");
        let hosts = String::from_utf8(etc_hosts(&pod, &["1.2.3.4".into()], &node).unwrap()).unwrap();
        assert!(hosts.contains("1.2.3.4\tweb-0.web.ns.svc.cluster.local\tweb-0\n"), "{hosts}");
    }

    /// One byte that is no text cost a pod all names of its node, and so did a file that could not be read.
    #[test]
    fn a_pod_on_the_nodes_network_has_the_nodes_hosts_or_none() {
        use proto::api::core::v1::HostAlias;
        let host_aliases = vec![HostAlias { ip: "10.0.0.1".into(), hostnames: vec!["a".into(), "b".into()] }];
        let spec = PodSpec { host_network: true, host_aliases, ..Default::default() };
        let pod = Pod { spec: Some(spec), ..Default::default() };
        let path = std::env::temp_dir().join(format!("hosts-of-the-node-{}", std::process::id()));
        std::fs::write(&path, b"127.0.0.1\tlocalhost # caf\xe9\n").unwrap();
        let content = hosts_beside(&path, &pod, &[], &NodeDns::default()).unwrap();
        let wanted = b"# Kubernetes-managed hosts file (host network).\n127.0.0.1\tlocalhost # caf\xe9\n\n\
                       # Entries added by HostAliases.\n10.0.0.1\ta\tb\n";
        assert_eq!(content, wanted);
        std::fs::remove_file(&path).unwrap();
        let why = hosts_beside(&path, &pod, &[], &NodeDns::default()).unwrap_err();
        assert_eq!(why, format!("open {}: no such file or directory", path.display()));
    }

    #[test]
    fn what_is_beyond_the_limits_is_left_out_and_told() {
        let many = |n: usize| (0..n).map(|i| format!("s{i}")).collect::<Vec<_>>();
        let own = PodDnsConfig { nameservers: many(4), searches: many(40), ..Default::default() };
        let spec = PodSpec { dns_policy: "None".into(), dns_config: Some(own), ..Default::default() };
        let pod = Pod { spec: Some(spec), ..Default::default() };
        let (config, troubles) = dns_config(&pod, &NodeDns::default()).unwrap();
        assert_eq!((config.servers.len(), config.searches.len()), (3, 32));
        assert!(troubles[0].message.ends_with("the applied nameserver line is: s0 s1 s2"));
        assert_eq!((troubles.len(), troubles[1].reason), (2, "DNSConfigForming"));
    }

    #[test]
    fn a_full_name_must_fit_the_kernel() {
        let mut pod = Pod::default();
        let spec = pod.spec.get_or_insert_default();
        spec.hostname = "h".repeat(60);
        spec.subdomain = "web".into();
        spec.set_hostname_as_fqdn = Some(true);
        assert!(hostname(&pod, &NodeDns::default()).unwrap_err().contains("(64 characters is the max,"));
    }
}
