//! Addresses and address ranges, in the words of `k8s.io/apimachinery/pkg/util/validation/ip.go`.
//!
//! Go's lenient parser reads octets with leading zeros; the strict rules then refuse them with a text of their own.

use std::collections::HashSet;
use std::net::IpAddr;

use serde_json::Value;

use crate::field_error::Report;

/// The address of an interface with the length of its network, in the usual spelling.
pub fn interface(text: &str) -> Vec<String> {
    let Some((address, length)) = parse_range(text) else {
        return vec!["must be a valid address in CIDR form, (e.g. 10.9.8.7/24 or 2001:db8::1/64)".into()];
    };
    let usual = format!("{address}/{length}");
    if text == usual {
        Vec::new()
    } else {
        vec![format!("must be in canonical form ({})", crate::status::quote(&usual))]
    }
}

/// An address as Go's lenient parser reads it: leading zeros in IPv4 octets are decimal.
pub fn parse(text: &str) -> Option<IpAddr> {
    if let Ok(address) = text.parse() {
        return Some(address);
    }
    let parts: Vec<&str> = text.split('.').collect();
    let octet = |part: &&str| {
        let digits = !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit());
        digits.then(|| part.trim_start_matches('0')).and_then(|p| if p.is_empty() { Some(0) } else { p.parse().ok() })
    };
    let octets: Vec<u8> = parts.iter().filter_map(octet).collect();
    (parts.len() == 4).then(|| <[u8; 4]>::try_from(octets).ok()).flatten().map(IpAddr::from)
}

/// A range as Go's lenient parser reads it: the address as written, and the length of the prefix.
pub fn parse_range(text: &str) -> Option<(IpAddr, u8)> {
    let (address, length) = text.split_once('/')?;
    let address = parse(address)?;
    let digits = !length.is_empty() && length.len() < 4 && length.bytes().all(|b| b.is_ascii_digit());
    let length: u8 = digits.then(|| length.parse().ok()).flatten()?;
    (length <= if address.is_ipv4() { 32 } else { 128 }).then_some((address, length))
}

/// The address with the bits beyond the prefix cleared.
pub fn masked(address: IpAddr, length: u8) -> IpAddr {
    match address {
        IpAddr::V4(v4) => {
            IpAddr::from((u32::from(v4) & u32::MAX.checked_shl(32 - u32::from(length)).unwrap_or(0)).to_be_bytes())
        }
        IpAddr::V6(v6) => {
            IpAddr::from((u128::from(v6) & u128::MAX.checked_shl(128 - u32::from(length)).unwrap_or(0)).to_be_bytes())
        }
    }
}

/// Whether a range holds all of another one and more.
pub fn strictly_inside((outer, outer_length): (IpAddr, u8), (inner, inner_length): (IpAddr, u8)) -> bool {
    outer.is_ipv4() == inner.is_ipv4()
        && inner_length > outer_length
        && masked(inner, outer_length) == masked(outer, outer_length)
}

fn is_mapped(address: IpAddr) -> bool {
    matches!(address, IpAddr::V6(v6) if v6.to_ipv4_mapped().is_some())
}

/// Complains about an address in a field that has always been checked; true where there is nothing to complain about.
/// How the stored object spells it already is good enough, for what is one at all.
pub fn check(report: &mut Report, text: &str) -> bool {
    let freely = report.rules.spells_addresses_freely || report.kept.contains(text);
    let good = freely && parse(text).is_some();
    report.sound(|r| {
        if !good {
            r.complaints(text, complaints(text));
        }
    })
}

/// As [`check`], for a range.
pub fn check_range(report: &mut Report, text: &str) {
    let freely = report.rules.spells_addresses_freely || report.kept.contains(text);
    if !freely || parse_range(text).is_none() {
        report.complaints(text, range(text));
    }
}

/// Addresses and ranges of a stored object that would be refused in a new one, so that it can be written again as long as
/// it says the same.
pub fn kept(group: &str, plural: &str, new: &Value, old: &Value) -> HashSet<String> {
    let mut out = HashSet::new();
    // Lists that machines write stay as they are, or are right as a whole.
    let changed = match (group, plural) {
        ("", "endpoints") => new["subsets"] != old["subsets"],
        ("discovery.k8s.io", "endpointslices") => new["endpoints"] != old["endpoints"],
        _ => false,
    };
    if changed {
        return out;
    }
    for path in places(group, plural) {
        each_text(old, path, &mut |text| {
            // Ranges of load balancers may have blanks around them.
            let text = text.trim();
            let odd = if text.contains('/') { !range(text).is_empty() } else { !complaints(text).is_empty() };
            if odd {
                out.insert(text.to_owned());
            }
        });
    }
    out
}

/// Where objects of a kind have addresses and ranges that have always been checked.
fn places(group: &str, plural: &str) -> &'static [&'static str] {
    match (group, plural) {
        ("", "pods") => {
            &["spec.dnsConfig.nameservers[]", "spec.hostAliases[].ip", "status.podIPs[].ip", "status.hostIPs[].ip"]
        }
        ("", "podtemplates") => &["template.spec.dnsConfig.nameservers[]", "template.spec.hostAliases[].ip"],
        ("", "replicationcontrollers")
        | ("apps", "deployments" | "replicasets" | "daemonsets" | "statefulsets")
        | ("batch", "jobs") => &["spec.template.spec.dnsConfig.nameservers[]", "spec.template.spec.hostAliases[].ip"],
        ("batch", "cronjobs") => &[
            "spec.jobTemplate.spec.template.spec.dnsConfig.nameservers[]",
            "spec.jobTemplate.spec.template.spec.hostAliases[].ip",
        ],
        ("", "services") => &[
            "spec.clusterIPs[]",
            "spec.externalIPs[]",
            "spec.loadBalancerSourceRanges[]",
            "status.loadBalancer.ingress[].ip",
        ],
        ("", "nodes") => &["spec.podCIDRs[]"],
        ("", "endpoints") => &["subsets[].addresses[].ip", "subsets[].notReadyAddresses[].ip"],
        ("discovery.k8s.io", "endpointslices") => &["endpoints[].addresses[]"],
        ("networking.k8s.io", "ingresses") => &["status.loadBalancer.ingress[].ip"],
        ("networking.k8s.io", "networkpolicies") => &[
            "spec.ingress[].from[].ipBlock.cidr",
            "spec.ingress[].from[].ipBlock.except[]",
            "spec.egress[].to[].ipBlock.cidr",
            "spec.egress[].to[].ipBlock.except[]",
        ],
        _ => &[],
    }
}

/// Calls `look` with each text at a path; `[]` stands for every item of a list.
fn each_text(value: &Value, path: &str, look: &mut dyn FnMut(&str)) {
    let (name, rest) = path.split_once('.').unwrap_or((path, ""));
    let next = |value: &Value, look: &mut dyn FnMut(&str)| match (value, rest) {
        (Value::String(text), "") => look(text),
        (_, "") => {}
        (value, rest) => each_text(value, rest, look),
    };
    match name.strip_suffix("[]") {
        Some(name) => value[name].as_array().into_iter().flatten().for_each(|item| next(item, look)),
        None => next(&value[name], look),
    }
}

/// What is wrong with an address in a field that has always been checked.
pub fn complaints(text: &str) -> Vec<String> {
    let Some(address) = parse(text) else {
        return vec!["must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)".into()];
    };
    let mut out = Vec::new();
    if text.parse::<IpAddr>().is_err() {
        out.push("must not have leading 0s".into());
    }
    if is_mapped(address) {
        out.push("must not be an IPv4-mapped IPv6 address".into());
    }
    out
}

/// As [`complaints`], for newer fields, which take the canonical form only.
pub fn strict(text: &str) -> Vec<String> {
    let out = complaints(text);
    match parse(text) {
        Some(address) if out.is_empty() && address.to_string() != text => {
            vec![format!("must be in canonical form (\"{address}\")")]
        }
        _ => out,
    }
}

/// What is wrong with a range in a field that has always been checked.
pub fn range(text: &str) -> Vec<String> {
    let Some((address, length)) = parse_range(text) else {
        return vec!["must be a valid CIDR value, (e.g. 10.9.8.0/24 or 2001:db8::/64)".into()];
    };
    let (written, digits) = text.split_once('/').unwrap_or((text, ""));
    if written.parse::<IpAddr>().is_err() || digits.len() > 1 && digits.starts_with('0') {
        return vec!["must not have leading 0s in IP or prefix length".into()];
    }
    if is_mapped(address) {
        return vec!["must not have an IPv4-mapped IPv6 address".into()];
    }
    if masked(address, length) != address {
        return vec!["must not have bits set beyond the prefix length".into()];
    }
    Vec::new()
}

/// As [`range`], canonical form only.
pub fn strict_range(text: &str) -> Vec<String> {
    let out = range(text);
    match parse_range(text) {
        Some((address, length)) if out.is_empty() && format!("{address}/{length}") != text => {
            vec![format!("must be in canonical form (\"{address}/{length}\")")]
        }
        _ => out,
    }
}

/// Addresses that mean something else on every node are no endpoints.
pub fn special(text: &str) -> Vec<String> {
    let Some(address) = parse(text) else { return vec!["must be a valid IP address".into()] };
    let (local, multicast) = match address {
        IpAddr::V4(v4) => (v4.is_link_local(), v4.octets()[..3] == [224, 0, 0]),
        IpAddr::V6(v6) => (v6.segments()[0] & 0xffc0 == 0xfe80, v6.segments()[0] & 0xff0f == 0xff02),
    };
    [
        (address.is_unspecified(), format!("may not be unspecified ({text})")),
        (address.is_loopback(), "may not be in the loopback range (127.0.0.0/8, ::1/128)".into()),
        (local, "may not be in the link-local range (169.254.0.0/16, fe80::/10)".into()),
        (multicast, "may not be in the link-local multicast range (224.0.0.0/24, ff02::/10)".into()),
    ]
    .into_iter()
    .filter_map(|(is, why)| is.then_some(why))
    .collect()
}

/// One address of each family.
pub fn is_dual_stack<'a>(texts: impl Iterator<Item = &'a str>) -> bool {
    let addresses: Vec<IpAddr> = texts.filter_map(|t| parse(t.split('/').next().unwrap_or_default())).collect();
    addresses.iter().any(IpAddr::is_ipv4) && addresses.iter().any(IpAddr::is_ipv6)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_judged_as_go_judges_them() {
        assert!(complaints("10.0.0.1").is_empty() && complaints("FE80::1").is_empty());
        assert_eq!(complaints("010.0.0.1"), ["must not have leading 0s"]);
        assert_eq!(complaints("::ffff:1.2.3.4"), ["must not be an IPv4-mapped IPv6 address"]);
        assert_eq!(strict("FE80::1"), ["must be in canonical form (\"fe80::1\")"]);
        assert_eq!(special("127.0.0.1").len(), 1);
    }

    #[test]
    fn what_is_stored_already_may_stay_as_it_is_spelled() {
        let service = |addresses: Value| serde_json::json!({"spec": {"externalIPs": addresses}});
        let old = service(serde_json::json!(["010.0.0.1", "10.0.0.2", "x"]));
        let kept_of = |group: &str, plural: &str, new: &Value, old: &Value| {
            let mut all: Vec<String> = kept(group, plural, new, old).into_iter().collect();
            all.sort_unstable();
            all
        };
        assert_eq!(kept_of("", "services", &old, &old), ["010.0.0.1", "x"]);
        let policy = serde_json::json!({"spec": {"egress": [{"to": [
            {"ipBlock": {"cidr": "10.0.0.1/8", "except": ["10.1.0.0/016", "10.2.0.0/16"]}}]}]}});
        assert_eq!(kept_of("networking.k8s.io", "networkpolicies", &policy, &policy), ["10.0.0.1/8", "10.1.0.0/016"]);
        let slice = |zone: &str| serde_json::json!({"endpoints": [{"addresses": ["01.2.3.4"], "zone": zone}]});
        assert_eq!(kept_of("discovery.k8s.io", "endpointslices", &slice("a"), &slice("a")), ["01.2.3.4"]);
        assert_eq!(kept_of("discovery.k8s.io", "endpointslices", &slice("b"), &slice("a")), [""; 0]);
        let told = |kept: &[&str], freely: bool| {
            let rules = crate::field_error::Rules { spells_addresses_freely: freely, ..Default::default() };
            let mut report = Report::by(rules);
            report.kept = kept.iter().map(|k| (*k).to_owned()).collect();
            check(&mut report, "010.0.0.1");
            check(&mut report, "x");
            check_range(&mut report, "10.0.0.1/8");
            report.errors.len()
        };
        assert_eq!((told(&[], false), told(&["010.0.0.1", "10.0.0.1/8"], false), told(&[], true)), (3, 1, 1));
        // A range that is stored makes no address good, nor does what is neither.
        assert_eq!(told(&["010.0.0.1", "10.0.0.1/8", "x"], false), 1);
        let mut report = Report::default();
        report.kept = ["10.0.0.1/8".to_owned()].into();
        assert!(!check(&mut report, "10.0.0.1/8"));
    }

    #[test]
    fn ranges_end_where_their_prefix_ends() {
        assert!(range("10.0.0.0/8").is_empty() && range("::/0").is_empty());
        assert_eq!(range("10.0.0.1/8"), ["must not have bits set beyond the prefix length"]);
        assert_eq!(range("10.0.0.0/08"), ["must not have leading 0s in IP or prefix length"]);
        assert_eq!(range("10.0.0.0/33").len(), 1);
        let range = |text| parse_range(text).unwrap();
        assert!(strictly_inside(range("10.0.0.0/8"), range("10.1.0.0/16")));
        assert!(!strictly_inside(range("10.0.0.0/8"), range("10.0.0.0/8")));
    }
}
