//! Address and port ranges.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, UdpSocket};
use std::str::FromStr;

use super::{ConfigError, ServeArgs, bad};

/// An address range: `10.0.0.0/24`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cidr {
    /// Its first address.
    base: IpAddr,
    bits: u8,
}

impl Cidr {
    fn width(self) -> u8 {
        if self.base.is_ipv4() { 32 } else { 128 }
    }

    pub fn is_ipv4(self) -> bool {
        self.base.is_ipv4()
    }

    pub fn prefix(self) -> u8 {
        self.bits
    }

    /// The number of addresses, network and broadcast included; the largest number when it does not fit.
    pub fn size(self) -> u128 {
        1u128.checked_shl(u32::from(self.width() - self.bits)).unwrap_or(u128::MAX)
    }

    /// The address at a distance from the first.
    pub fn address(self, offset: u128) -> IpAddr {
        match self.base {
            IpAddr::V4(base) => {
                let offset = u32::try_from(offset).unwrap_or(u32::MAX);
                IpAddr::V4(Ipv4Addr::from(u32::from(base).saturating_add(offset)))
            }
            IpAddr::V6(base) => IpAddr::V6(Ipv6Addr::from(u128::from(base).saturating_add(offset))),
        }
    }

    /// The distance of an address from the first; None outside of the range.
    pub fn offset(self, address: IpAddr) -> Option<u128> {
        let number = |a: IpAddr| match a {
            IpAddr::V4(a) => u128::from(u32::from(a)),
            IpAddr::V6(a) => u128::from(a),
        };
        self.contains(address).then(|| number(address) - number(self.base))
    }

    pub fn contains(self, address: IpAddr) -> bool {
        address.is_ipv4() == self.base.is_ipv4() && mask(address, self.bits) == self.base
    }
}

fn mask(address: IpAddr, bits: u8) -> IpAddr {
    match address {
        IpAddr::V4(a) => {
            let mask = u32::MAX.checked_shl(32 - u32::from(bits)).unwrap_or(0);
            IpAddr::V4(Ipv4Addr::from(u32::from(a) & mask))
        }
        IpAddr::V6(a) => {
            let mask = u128::MAX.checked_shl(128 - u32::from(bits)).unwrap_or(0);
            IpAddr::V6(Ipv6Addr::from(u128::from(a) & mask))
        }
    }
}

impl FromStr for Cidr {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("invalid CIDR address: {text}");
        let (address, bits) = text.split_once('/').ok_or_else(wrong)?;
        let address: IpAddr = address.parse().map_err(|_| wrong())?;
        let bits: u8 = bits.parse().map_err(|_| wrong())?;
        if bits > if address.is_ipv4() { 32 } else { 128 } {
            return Err(wrong());
        }
        Ok(Cidr { base: mask(address, bits), bits })
    }
}

impl std::fmt::Display for Cidr {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}", self.base, self.bits)
    }
}

/// The service ranges: one, or one of each family; not too small for the server's own service, not too large for the
/// allocation to make sense.
pub(super) fn cidrs(list: &[String]) -> Result<Vec<Cidr>, ConfigError> {
    let flag = "service-cluster-ip-range";
    let out = list.iter().map(|c| c.trim().parse::<Cidr>()).collect::<Result<Vec<_>, _>>().map_err(|e| bad(flag, e))?;
    match out.as_slice() {
        [] => return Err(bad(flag, "must contain at least one valid cidr")),
        [_] => {}
        [a, b] if a.is_ipv4() != b.is_ipv4() => {}
        [_, _] => return Err(bad(flag, "expects two IP families, not two of the same")),
        _ => return Err(bad(flag, "must not contain more than two entries")),
    }
    if let Some(small) = out.iter().find(|c| c.size() < 8) {
        return Err(bad(flag, format!("{small} must be at least 8 IP addresses")));
    }
    if let Some(large) = out.iter().find(|c| c.is_ipv4() && c.bits < 12 || !c.is_ipv4() && c.bits < 64) {
        return Err(bad(flag, format!("{large} is too large: at least /12 for IPv4 and /64 for IPv6")));
    }
    Ok(out)
}

/// Ranges of pod addresses with the prefix length of a node's part; empty when nodes get none from here.
#[derive(Debug, Clone, Default)]
pub struct NodeCidrs(pub Vec<(Cidr, u8)>);

impl NodeCidrs {
    /// From `--allocate-node-cidrs`, `--cluster-cidr` and the mask sizes, in the order of kube-controller-manager's flags.
    pub(super) fn of(args: &ServeArgs) -> Result<Self, ConfigError> {
        if !args.allocate_node_cidrs {
            return Ok(NodeCidrs::default());
        }
        let flag = "cluster-cidr";
        if args.cluster_cidr.is_empty() {
            return Err(bad(flag, "must be given with --allocate-node-cidrs"));
        }
        let mut out: Vec<(Cidr, u8)> = Vec::new();
        for text in &args.cluster_cidr {
            let range: Cidr = text.trim().parse().map_err(|e: String| bad(flag, e))?;
            if out.len() == 2 || out.iter().any(|(other, _)| other.is_ipv4() == range.is_ipv4()) {
                return Err(bad(flag, "expects one range, or one of each IP family"));
            }
            let (own, usual) =
                if range.is_ipv4() { (args.node_cidr_mask_size_ipv4, 24) } else { (args.node_cidr_mask_size_ipv6, 64) };
            let bits = own.or(args.node_cidr_mask_size).unwrap_or(usual);
            if bits < range.bits || bits > range.width() {
                let why = format!("{bits} does not fit into {range}");
                return Err(bad("node-cidr-mask-size", why));
            }
            if bits - range.bits > 16 {
                return Err(bad(
                    "node-cidr-mask-size",
                    format!("{range} has too many parts of size /{bits}: more than 65536"),
                ));
            }
            out.push((range, bits));
        }
        Ok(NodeCidrs(out))
    }
}

/// A range of ports, both ends included.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PortRange {
    pub first: u16,
    pub last: u16,
}

impl FromStr for PortRange {
    type Err = String;

    /// `30000-32767`, `30000+100` (that many more) or one port.
    fn from_str(text: &str) -> Result<Self, String> {
        let text = text.trim();
        let port = |t: &str| t.trim().parse::<u16>().map_err(|_| format!("{t:?} is not a port"));
        let (first, last) = if let Some((first, last)) = text.split_once('-') {
            (port(first)?, port(last)?)
        } else if let Some((first, more)) = text.split_once('+') {
            let first = port(first)?;
            (first, first.checked_add(port(more)?).ok_or("the range ends after port 65535")?)
        } else {
            (port(text)?, port(text)?)
        };
        if first == 0 {
            return Err("port 0 cannot be part of the range".into());
        }
        if last < first {
            Err(format!("the range {text} ends before it starts"))
        } else {
            Ok(PortRange { first, last })
        }
    }
}

/// The address other machines would see us by: that of the interface with the default route. Nothing is sent.
pub(super) fn default_address() -> IpAddr {
    let loopback = IpAddr::from([127, 0, 0, 1]);
    let Ok(socket) = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)) else { return loopback };
    // Any address outside does: connecting a datagram socket only picks the route.
    let routed = socket.connect((Ipv4Addr::new(192, 0, 2, 1), 9)).and_then(|()| socket.local_addr());
    routed.map(|a| a.ip()).ok().filter(|a| !a.is_unspecified()).unwrap_or(loopback)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_know_their_addresses() {
        let cidr: Cidr = "10.1.2.3/16".parse().expect("a range");
        assert_eq!(cidr.to_string(), "10.1.0.0/16");
        assert_eq!(cidr.address(258), IpAddr::from([10, 1, 1, 2]));
        assert_eq!(cidr.size(), 65_536);
        assert!(cidr.contains(IpAddr::from([10, 1, 255, 255])) && !cidr.contains(IpAddr::from([10, 2, 0, 0])));
        let six: Cidr = "fd00::/108".parse().expect("a range");
        assert_eq!(six.address(1).to_string(), "fd00::1");
        assert!("10.0.0.0/33".parse::<Cidr>().is_err());
    }

    #[test]
    fn port_ranges_have_three_forms() {
        let range = |t: &str| t.parse::<PortRange>().map(|r| (r.first, r.last));
        assert_eq!(range("100-200"), Ok((100, 200)));
        assert_eq!(range("100+5"), Ok((100, 105)));
        assert_eq!(range("100"), Ok((100, 100)));
        assert!(range("0-5").is_err() && range("5-4").is_err() && range("65535+1").is_err());
    }
}
