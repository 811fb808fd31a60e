//! Which addresses the node has: given, or found as the kubelet finds them.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, ToSocketAddrs as _};

/// An address of an interface.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InterfaceAddress {
    pub interface: String,
    pub up: bool,
    pub address: IpAddr,
}

/// What address selection looks at.
#[derive(Debug, Clone, Default)]
pub struct Network {
    pub interfaces: Vec<InterfaceAddress>,
    /// Interfaces with a default route, best first.
    pub default_routes: Vec<String>,
    /// What the node's name resolves to.
    pub resolved: Vec<IpAddr>,
}

impl Network {
    /// Looks at the host; resolving the name may wait for DNS, but not longer than two seconds.
    pub async fn look(name: &str) -> Self {
        let lookup = tokio::net::lookup_host((name.to_owned(), 0));
        let resolved = match tokio::time::timeout(std::time::Duration::from_secs(2), lookup).await {
            Ok(Ok(found)) => found.map(|a| a.ip()).collect(),
            _ => Vec::new(),
        };
        Network::with(resolved)
    }

    /// The host's own with this answer of the name service.
    pub fn with(resolved: Vec<IpAddr>) -> Self {
        Network { interfaces: interfaces(), default_routes: default_routes(), resolved }
    }
}

/// What the name resolves to, nothing when it does not. Blocks for as long as the name service takes.
pub fn resolve(name: &str) -> Vec<IpAddr> {
    (name, 0).to_socket_addrs().into_iter().flatten().map(|address| address.ip()).collect()
}

/// Whether the choice depends on what the name resolves to.
pub fn asks_names(given: &[IpAddr], name: &str) -> bool {
    given.iter().all(IpAddr::is_unspecified) && name.parse::<IpAddr>().is_err()
}

/// The node's addresses, the first one its primary: those given; the name if it is an address; what the name resolves to
/// if that is ours; the address of the interface with the default route. A machine without any of these is reachable
/// from itself at least. One that `is_local`, because nobody else can reach its agent, may be given a loopback address.
///
/// # Errors
/// In the kubelet's words, when one that was given is not of this host or cannot be a node's. An interface that comes up
/// later mends that.
pub fn choose(given: &[IpAddr], name: &str, network: &Network, is_local: bool) -> Result<Vec<IpAddr>, String> {
    for (address, which) in given.iter().zip(["nodeIP", "secondaryNodeIP"]).filter(|(a, _)| !a.is_unspecified()) {
        validate(*address, network, is_local).map_err(|why| format!("failed to validate {which}: {why}"))?;
    }
    let specified: Vec<_> = given.iter().copied().filter(|a| !a.is_unspecified()).collect();
    if !specified.is_empty() {
        return Ok(specified);
    }
    if let Ok(address) = name.parse::<IpAddr>() {
        return Ok(vec![address]);
    }
    let prefer_v6 = given.iter().any(IpAddr::is_ipv6);
    let mut candidates = well_founded(network);
    candidates.extend(up(network).map(|i| i.address).filter(is_usable));
    let best = candidates.iter().find(|a| a.is_ipv6() == prefer_v6).or(candidates.first());
    Ok(vec![match best {
        Some(address) => *address,
        None if prefer_v6 => IpAddr::V6(Ipv6Addr::LOCALHOST),
        None => IpAddr::V4(Ipv4Addr::LOCALHOST),
    }])
}

/// What [`choose`] says, for a node that has addresses already: while neither the name nor a default route tells which is
/// the node's, as when a route is gone for a moment, they stay. Loopback, which is the lack of any, gives way.
///
/// # Errors
/// As [`choose`].
pub fn follow(
    kept: Option<&[IpAddr]>,
    given: &[IpAddr],
    name: &str,
    network: &Network,
    is_local: bool,
) -> Result<Vec<IpAddr>, String> {
    let found = choose(given, name, network, is_local)?;
    let founded = well_founded(network);
    let guessed = asks_names(given, name) && !found.iter().any(|a| founded.contains(a));
    let kept = kept.filter(|kept| guessed && kept.iter().any(|a| !a.is_loopback()));
    Ok(kept.map_or(found, <[IpAddr]>::to_vec))
}

/// The host's addresses that the name resolves to, then those of the interfaces with a default route.
fn well_founded(network: &Network) -> Vec<IpAddr> {
    let is_own = |a: &IpAddr| network.interfaces.iter().any(|i| i.address == *a);
    let mut found: Vec<IpAddr> = network.resolved.iter().copied().filter(|a| is_usable(a) && is_own(a)).collect();
    for route in &network.default_routes {
        found.extend(up(network).filter(|i| i.interface == *route).map(|i| i.address).filter(is_usable));
    }
    found
}

fn up(network: &Network) -> impl Iterator<Item = &InterfaceAddress> {
    network.interfaces.iter().filter(|i| i.up)
}

fn is_usable(address: &IpAddr) -> bool {
    !address.is_loopback() && !address.is_multicast() && !address.is_unspecified() && !is_link_local(address)
}

/// Whether others can reach the node by an address.
fn validate(address: IpAddr, network: &Network, is_local: bool) -> Result<(), String> {
    let not = |what| Err(format!("nodeIP can't be {what}"));
    match address {
        a if a.is_loopback() && is_local => Ok(()),
        a if a.is_loopback() => not("loopback address"),
        a if a.is_multicast() => not("a multicast address"),
        a if is_link_local(&a) => not("a link-local unicast address"),
        a if network.interfaces.iter().any(|i| i.address == a) => Ok(()),
        a => Err(format!("node IP: {:?} not found in the host's network interfaces", a.to_string())),
    }
}

fn is_link_local(address: &IpAddr) -> bool {
    match address {
        IpAddr::V4(a) => a.is_link_local(),
        IpAddr::V6(a) => a.is_unicast_link_local(),
    }
}

fn interfaces() -> Vec<InterfaceAddress> {
    let Ok(all) = nix::ifaddrs::getifaddrs() else { return Vec::new() };
    all.filter_map(|i| {
        let address = i.address?;
        let ip = match (address.as_sockaddr_in(), address.as_sockaddr_in6()) {
            (Some(v4), _) => IpAddr::V4(v4.ip()),
            (None, Some(v6)) => IpAddr::V6(v6.ip()),
            (None, None) => return None,
        };
        let up = i.flags.contains(nix::net::if_::InterfaceFlags::IFF_UP);
        Some(InterfaceAddress { interface: i.interface_name, up, address: ip })
    })
    .collect()
}

fn default_routes() -> Vec<String> {
    let mut found = Vec::new();
    for (path, columns) in [("/proc/net/route", (0, 1)), ("/proc/net/ipv6_route", (9, 0))] {
        let text = std::fs::read_to_string(path).unwrap_or_default();
        for line in text.lines() {
            // Of a host with many pods nearly all routes are others.
            let word = |at| line.split_whitespace().nth(at);
            if !word(columns.1).is_some_and(|target| target.bytes().all(|b| b == b'0')) {
                continue;
            }
            let Some(interface) = word(columns.0) else { continue };
            if interface != "lo" && !found.iter().any(|f| f == interface) {
                found.push(interface.to_owned());
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn network() -> Network {
        let at = |interface: &str, address: &str| InterfaceAddress {
            interface: interface.into(),
            up: interface != "eth1",
            address: address.parse().expect("an address"),
        };
        Network {
            interfaces: vec![
                at("lo", "127.0.0.1"),
                at("cni0", "10.88.0.1"),
                at("eth1", "10.7.7.7"),
                at("eth0", "fe80::1"),
                at("eth0", "10.0.2.15"),
                at("eth0", "2001:db8::2"),
            ],
            default_routes: vec!["eth0".into()],
            resolved: vec!["127.0.1.1".parse().expect("an address")],
        }
    }

    fn chosen(given: &[&str], name: &str, network: &Network) -> String {
        let given: Vec<_> = given.iter().map(|g| g.parse().expect("an address")).collect();
        choose(&given, name, network, false).expect("an address")[0].to_string()
    }

    #[test]
    fn the_default_route_decides_when_nothing_is_given() {
        assert_eq!(chosen(&[], "node-a", &network()), "10.0.2.15");
        assert_eq!(chosen(&["::"], "node-a", &network()), "2001:db8::2");
        assert_eq!(chosen(&["10.7.7.7"], "node-a", &network()), "10.7.7.7");
        assert_eq!(chosen(&[], "192.0.2.7", &network()), "192.0.2.7");
    }

    #[test]
    fn a_name_that_resolves_to_an_own_address_wins_over_routes() {
        let network = Network { resolved: vec!["10.88.0.1".parse().expect("an address")], ..network() };
        assert_eq!(chosen(&[], "node-a", &network), "10.88.0.1");
    }

    #[test]
    fn an_address_that_is_given_must_be_the_hosts_and_reach_it() {
        let refused = |given: &[&str], is_local| {
            let given: Vec<_> = given.iter().map(|g| g.parse().expect("an address")).collect();
            choose(&given, "node-a", &network(), is_local).err().unwrap_or_default()
        };
        for (given, words) in [
            ("127.0.0.1", "nodeIP can't be loopback address"),
            ("::1", "nodeIP can't be loopback address"),
            ("224.0.0.1", "nodeIP can't be a multicast address"),
            ("169.254.0.9", "nodeIP can't be a link-local unicast address"),
            ("fe80::1", "nodeIP can't be a link-local unicast address"),
            ("10.9.9.9", "node IP: \"10.9.9.9\" not found in the host's network interfaces"),
        ] {
            assert_eq!(refused(&[given], false), format!("failed to validate nodeIP: {words}"));
            let both = refused(&["10.0.2.15", given], false);
            assert_eq!(both, format!("failed to validate secondaryNodeIP: {words}"));
        }
        assert_eq!(refused(&["127.0.0.1"], true), "", "an agent that only this machine reaches");
        assert_eq!(refused(&["10.0.2.15", "2001:db8::2"], false), "");
    }

    #[test]
    fn a_default_route_that_is_gone_for_a_moment_changes_nothing() {
        let at = |text: &str| vec![text.parse::<IpAddr>().expect("an address")];
        let (own, bridge) = (at("10.0.2.15"), at("10.88.0.1"));
        let follow = |kept: &[IpAddr], given: &[IpAddr], network: &Network| {
            follow(Some(kept), given, "node-a", network, false).expect("an address")
        };
        let cut = Network { default_routes: Vec::new(), ..network() };
        assert_eq!(choose(&[], "node-a", &cut, false), Ok(bridge.clone()), "all that is known at a start");
        assert_eq!(follow(&own, &[], &cut), own);
        assert_eq!(follow(&own, &at("0.0.0.0"), &cut), own);
        assert_eq!(follow(&own, &[], &Network::default()), own);
        assert_eq!(follow(&at("127.0.0.1"), &[], &cut), bridge, "loopback is no address to keep");
        assert_eq!(follow(&bridge, &[], &network()), own, "the route is back");
        assert_eq!(follow(&own, &at("10.7.7.7"), &cut), at("10.7.7.7"));
        let named = Network { resolved: bridge.clone(), ..cut };
        assert_eq!(follow(&own, &[], &named), bridge);
    }

    #[test]
    fn without_any_network_the_node_is_on_loopback() {
        assert_eq!(chosen(&[], "node-a", &Network::default()), "127.0.0.1");
    }
}
