//! Warnings about services, addresses and ranges of them.

use serde_json::Value;

use super::super::{has, ip, list, text, texts};
use super::Found;
use crate::status::quote;

/// Whether a label says that one of the controllers writes the object.
fn is_managed(object: &Value, label: &str, by: &[&str]) -> bool {
    by.contains(&text(&object["metadata"]["labels"], label))
}

impl Found {
    pub(super) fn service(&mut self, object: &Value) {
        let (spec, annotations) = (&object["spec"], &object["metadata"]["annotations"]);
        const HINTS: &str = "service.kubernetes.io/topology-aware-hints";
        if has(annotations, HINTS) {
            let new = "service.kubernetes.io/topology-mode";
            self.0.push(format!("annotation {HINTS} is deprecated, please use {new} instead"));
        }
        let (kind, external) = (text(spec, "type"), texts(spec, "externalIPs"));
        let headless = kind == "ClusterIP" && spec["clusterIP"] == "None";
        if !matches!(text(spec, "clusterIP"), "" | "None") {
            for (index, address) in texts(spec, "clusterIPs").into_iter().enumerate() {
                self.address(&format!("spec.clusterIPs[{index}]"), address);
            }
        }
        if headless {
            let set = [
                ("loadBalancerIP", !text(spec, "loadBalancerIP").is_empty()),
                ("externalIPs", !external.is_empty()),
                ("SessionAffinity", spec["sessionAffinity"] != "None"),
            ];
            for (name, _) in set.into_iter().filter(|(_, set)| *set) {
                self.0.push(format!("spec.{name} is ignored for headless services"));
            }
        }
        for (index, address) in external.iter().enumerate() {
            self.address(&format!("spec.externalIPs[{index}]"), address);
        }
        if !external.is_empty() && !headless && kind != "ExternalName" {
            self.0.push("spec.externalIPs is deprecated and may no longer be implemented in some clusters".into());
        }
        self.address("spec.loadBalancerIP", text(spec, "loadBalancerIP"));
        for (index, range) in texts(spec, "loadBalancerSourceRanges").into_iter().enumerate() {
            self.range(&format!("spec.loadBalancerSourceRanges[{index}]"), range);
        }
        if kind == "ExternalName" && !external.is_empty() {
            self.0.push("spec.externalIPs is ignored when spec.type is \"ExternalName\"".into());
        }
        if kind != "ExternalName" && !text(spec, "externalName").is_empty() {
            self.0.push("spec.externalName is ignored when spec.type is not \"ExternalName\"".into());
        }
        if spec["trafficDistribution"] == "PreferClose" {
            self.add("spec.trafficDistribution", "\"PreferClose\" is deprecated; use \"PreferSameZone\"");
        }
    }

    /// What the controllers write is right.
    pub(super) fn endpoints(&mut self, object: &Value) {
        if is_managed(object, "endpoints.kubernetes.io/managed-by", &["endpoint-controller"]) {
            return;
        }
        for (at, subset) in list(object, "subsets").iter().enumerate() {
            for name in ["addresses", "notReadyAddresses"] {
                for (index, address) in list(subset, name).iter().enumerate() {
                    self.address(&format!("subsets[{at}].{name}[{index}].ip"), text(address, "ip"));
                }
            }
        }
    }

    pub(super) fn endpoint_slice(&mut self, object: &Value, created: bool) {
        if created && object["addressType"] == "FQDN" {
            self.add("spec.addressType", "FQDN endpoints are deprecated");
        }
        const CONTROLLERS: [&str; 2] = ["endpointslice-controller.k8s.io", "endpointslicemirroring-controller.k8s.io"];
        if is_managed(object, "endpointslice.kubernetes.io/managed-by", &CONTROLLERS) {
            return;
        }
        for (at, endpoint) in list(object, "endpoints").iter().enumerate() {
            for (index, address) in texts(endpoint, "addresses").into_iter().enumerate() {
                self.address(&format!("endpoints[{at}].addresses[{index}]"), address);
            }
        }
    }

    /// An address that is not written as everybody would.
    pub(super) fn address(&mut self, path: &str, address: &str) {
        let Some(plain) = ip::parse(address) else { return };
        let text = plain.to_canonical().to_string();
        match address.parse::<std::net::IpAddr>() {
            Ok(std::net::IpAddr::V6(strict)) if strict.to_ipv4_mapped().is_none() => {
                if text != address {
                    let (address, text) = (quote(address), quote(&text));
                    let why = format!("IPv6 address {address} should be in RFC 5952 canonical format ({text})");
                    self.add(path, why);
                }
            }
            Ok(std::net::IpAddr::V4(_)) => {}
            _ => self.nonstandard(path, "IP address", address, &text),
        }
    }

    pub(super) fn nonstandard(&mut self, path: &str, what: &str, value: &str, text: &str) {
        let why = format!(
            "non-standard {what} {} will be considered invalid in a future Kubernetes release: use {}",
            quote(value),
            quote(text)
        );
        self.add(path, why);
    }

    /// A range that is not written as everybody would, or that has more bits than it uses.
    pub(super) fn range(&mut self, path: &str, range: &str) {
        let Some((address, bits)) = range.split_once('/') else { return };
        let Some((written, length)) = ip::parse_range(range) else { return };
        let plain = written.to_canonical();
        let mapped = plain != written;
        let length = if mapped { length.saturating_sub(96) } else { length };
        let most = if plain.is_ipv4() { 32 } else { 128 };
        let masked = ip::masked(plain, length);
        let strict = address.parse::<std::net::IpAddr>().is_ok() && (bits == "0" || !bits.starts_with('0'));
        if mapped || !strict {
            self.nonstandard(path, "CIDR value", range, &format!("{masked}/{length}"));
        } else if masked != plain {
            let why = format!(
                "CIDR value {} is ambiguous in this context (should be \"{masked}/{length}\" or \"{plain}/{most}\"?)",
                quote(range)
            );
            self.add(path, why);
        } else if !plain.is_ipv4() && format!("{plain}/{length}") != range {
            let why = format!(
                "IPv6 CIDR value {} should be in RFC 5952 canonical format (\"{plain}/{length}\")",
                quote(range)
            );
            self.add(path, why);
        }
    }
}
