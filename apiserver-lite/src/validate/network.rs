//! Ingresses, network policies, endpoints and the addresses of services.

use serde_json::{Value, json};

use super::{has, ip, list, probe, selector, text, texts};
use crate::field_error::Report;
use crate::go_value::{Field, Shape, shown};
use crate::names;

pub fn endpoints(report: &mut Report, object: &Value) {
    report.each(object, "subsets", |r, subset| {
        if list(subset, "addresses").is_empty() && list(subset, "notReadyAddresses").is_empty() {
            r.required("must specify `addresses` or `notReadyAddresses`");
        }
        for name in ["addresses", "notReadyAddresses"] {
            r.each(subset, name, |r, address| {
                let ip_text = text(address, "ip");
                r.at("ip", |r| ip::check(r, ip_text));
                r.named(address, "hostname", names::dns_label);
                r.named(address, "nodeName", names::dns_subdomain);
                r.at("ip", |r| r.complaints(ip_text, ip::special(ip_text)));
            });
        }
        let several = list(subset, "ports").len() > 1;
        r.each(subset, "ports", |r, port| {
            if several {
                r.need(port, "name");
            }
            r.named(port, "name", names::dns_label);
            let number = port["port"].as_i64().unwrap_or(0);
            names::port(number).into_iter().for_each(|why| r.bad("port", number, why));
            r.choice(port, "protocol", &["SCTP", "TCP", "UDP"]);
            r.with(port, "appProtocol", qualified);
        });
    });
}

fn qualified(report: &mut Report, value: &Value) {
    let value = value.as_str().unwrap_or_default();
    report.complaints(value, names::qualified_name(value));
}

pub fn endpoint_slice(report: &mut Report, object: &Value) {
    let kind = text(object, "addressType");
    report.choice(object, "addressType", &["FQDN", "IPv4", "IPv6"]);
    let endpoints = list(object, "endpoints");
    if endpoints.len() > 1000 {
        report.at("endpoints", |r| r.too_many(endpoints.len(), 1000));
    } else {
        report.each(object, "endpoints", |r, endpoint| one_endpoint(r, endpoint, kind));
    }
    let ports = list(object, "ports");
    if ports.len() > 20000 {
        return report.at("ports", |r| r.too_many(ports.len(), 20000));
    }
    let mut seen: Vec<&str> = Vec::new();
    report.each(object, "ports", |r, port| {
        let name = text(port, "name");
        r.named(port, "name", names::dns_label);
        if seen.contains(&name) {
            r.at("name", |r| r.duplicate(name));
        } else {
            seen.push(name);
        }
        r.said_choice(port, "protocol", &["SCTP", "TCP", "UDP"]);
        r.between(port, "port", 1, 65535);
        r.with(port, "appProtocol", qualified);
    });
}

fn one_endpoint(report: &mut Report, endpoint: &Value, kind: &str) {
    let addresses = list(endpoint, "addresses");
    if addresses.is_empty() {
        report.miss("addresses", "must contain at least 1 address");
    } else if addresses.len() > 100 {
        report.at("addresses", |r| r.too_many(addresses.len(), 100));
    }
    report.each(endpoint, "addresses", |r, address| {
        let address = address.as_str().unwrap_or_default();
        let family = ip::parse(address).map(|a| if a.is_ipv4() { "IPv4" } else { "IPv6" });
        match kind {
            "IPv4" | "IPv6" => {
                ip::check(r, address);
                if family.is_some_and(|f| f != kind) {
                    r.invalid(address, format_args!("must be an {kind} address"));
                }
                r.complaints(address, ip::special(address));
            }
            "FQDN" => r.complaints(address, domain(address)),
            _ => {}
        }
    });
    let topology = &endpoint["deprecatedTopology"];
    report.at("deprecatedTopology", |r| super::meta::label_map(r, topology));
    report.named(endpoint, "nodeName", names::dns_subdomain);
    report.with(endpoint, "hostname", |r, name| {
        let name = name.as_str().unwrap_or_default();
        r.complaints(name, names::dns_label(name));
    });
    report.with(endpoint, "hints", |r, hints| {
        for (name, key) in [("forZones", "name"), ("forNodes", "name")] {
            let items = list(hints, name);
            if items.len() > 8 {
                return r.at(name, |r| r.too_many(items.len(), 8));
            }
            let mut seen: Vec<&str> = Vec::new();
            r.each(hints, name, |r, item| {
                let said = text(item, key);
                if seen.contains(&said) {
                    r.at(key, |r| r.duplicate(said));
                } else {
                    seen.push(said);
                }
                let rule = if name == "forZones" { names::label_value } else { names::dns_subdomain };
                r.at(key, |r| r.complaints(said, rule(said)));
            });
        }
    });
}

/// A domain of at least two labels, with or without the last dot.
fn domain(text: &str) -> Vec<String> {
    let bare = text.strip_suffix('.').unwrap_or(text);
    let mut out = names::dns_subdomain(bare);
    if out.is_empty() && bare.split('.').count() < 2 {
        out.push("should be a domain with at least two segments separated by dots".into());
    }
    out
}

pub fn ingress(report: &mut Report, object: &Value) {
    let spec = &object["spec"];
    report.at("spec", |r| {
        if list(spec, "rules").is_empty() && !has(spec, "defaultBackend") {
            r.invalid(&spec["rules"], "either `defaultBackend` or `rules` must be specified");
        }
        r.with(spec, "defaultBackend", backend);
        r.each(spec, "rules", |r, rule| {
            let host = text(rule, "host");
            if !host.is_empty() {
                r.at("host", |r| {
                    if ip::parse(host).is_some() {
                        r.invalid(host, "must be a DNS name, not an IP address");
                    }
                    r.complaints(host, host_name(host));
                });
            }
            r.with(rule, "http", |r, http| {
                if list(http, "paths").is_empty() {
                    r.miss("paths", "");
                }
                r.each(http, "paths", path);
            });
        });
        r.each(spec, "tls", |r, tls| {
            r.each(tls, "hosts", |r, host| {
                let host = host.as_str().unwrap_or_default();
                r.complaints(host, host_name(host));
            });
            r.named(tls, "secretName", names::dns_subdomain);
        });
        r.with(spec, "ingressClassName", |r, class| {
            let class = class.as_str().unwrap_or_default();
            r.complaints(class, names::dns_subdomain(class));
        });
    });
}

/// A new ingress names its class once, or twice the same.
pub fn ingress_class_annotation(report: &mut Report, object: &Value) {
    const CLASS: &str = "kubernetes.io/ingress.class";
    let said = object["metadata"]["annotations"][CLASS].as_str();
    if let (Some(said), Some(class)) = (said, object["spec"]["ingressClassName"].as_str())
        && said != class
    {
        let why = "must match `ingressClassName` when both are specified";
        report.down(&["annotations", CLASS], |r| r.invalid(said, why));
    }
}

fn host_name(host: &str) -> Vec<String> {
    if host.contains('*') { names::wildcard_subdomain(host) } else { names::dns_subdomain(host) }
}

fn path(report: &mut Report, path: &Value) {
    let (kind, text_path) = (text(path, "pathType"), text(path, "path"));
    match kind {
        _ if !has(path, "pathType") => return report.miss("pathType", "pathType must be specified"),
        "Exact" | "Prefix" => report.at("path", |r| {
            if !text_path.starts_with('/') {
                r.invalid(text_path, "must be an absolute path");
            }
            for part in ["//", "/./", "/../", "%2f", "%2F"].into_iter().filter(|p| text_path.contains(p)) {
                r.invalid(text_path, format_args!("must not contain '{part}'"));
            }
            for end in ["/..", "/."].into_iter().filter(|e| text_path.ends_with(e)) {
                r.invalid(text_path, format_args!("cannot end with '{end}'"));
            }
        }),
        "ImplementationSpecific" => {
            if !text_path.is_empty() && !text_path.starts_with('/') {
                report.bad("path", text_path, "must be an absolute path");
            }
        }
        other => report.at("pathType", |r| r.not_supported(other, &["Exact", "ImplementationSpecific", "Prefix"])),
    }
    report.at("backend", |r| backend(r, &path["backend"]));
}

fn backend(report: &mut Report, backend: &Value) {
    match (has(backend, "resource"), has(backend, "service")) {
        (true, true) => report.invalid("", "cannot set both resource and service backends"),
        (true, false) => report.at("resource", |r| typed_reference(r, &backend["resource"])),
        (false, true) => {
            let service = &backend["service"];
            report.at("service", |r| r.need_named(service, "name", names::dns_label));
            let (name, number) = (text(&service["port"], "name"), service["port"]["number"].as_i64().unwrap_or(0));
            match (name.is_empty(), number) {
                (false, n) if n != 0 => report.invalid("", "cannot set both port name & port number"),
                (false, _) => report.down(&["service", "port", "name"], |r| r.complaints(name, names::port_name(name))),
                (true, 0) => report.required("port name or number is required"),
                (true, number) => report.down(&["service", "port", "number"], |r| {
                    names::port(number).into_iter().for_each(|why| r.invalid(number, why));
                }),
            }
        }
        (false, false) => report.invalid("", "resource or service backend is required"),
    }
}

fn typed_reference(report: &mut Report, reference: &Value) {
    report.with(reference, "apiGroup", |r, group| {
        let group = group.as_str().unwrap_or_default();
        r.complaints(group, names::dns_subdomain(group));
    });
    report.need_named(reference, "kind", names::path_segment);
    report.need_named(reference, "name", names::path_segment);
}

pub fn ingress_class(report: &mut Report, spec: &Value) {
    if report.need(spec, "controller") {
        let controller = text(spec, "controller");
        report.at("controller", |r| {
            if controller.len() > 250 {
                r.too_long(250);
            }
            r.complaints(controller, names::domain_prefixed_path(controller));
        });
    }
    report.with(spec, "parameters", |r, parameters| {
        typed_reference(r, parameters);
        match parameters.get("scope").and_then(Value::as_str) {
            None => r.miss("scope", ""),
            Some("Namespace") if !has(parameters, "namespace") => {
                r.miss("namespace", "`parameters.scope` is set to 'Namespace'");
            }
            Some("Namespace") => {
                let namespace = text(parameters, "namespace");
                r.at("namespace", |r| r.complaints(namespace, names::dns_label(namespace)));
            }
            Some("Cluster") => r.forbid(parameters, &["namespace"], "`parameters.scope` is set to 'Cluster'"),
            Some(other) => r.at("scope", |r| r.not_supported(other, &["Cluster", "Namespace"])),
        }
    });
}

pub fn policy(report: &mut Report, spec: &Value) {
    report.at("podSelector", |r| selector::check(r, &spec["podSelector"]));
    for (rules, peers) in [("ingress", "from"), ("egress", "to")] {
        report.each(spec, rules, |r, rule| {
            r.each(rule, "ports", policy_port);
            r.each(rule, peers, peer);
        });
    }
    let types = list(spec, "policyTypes");
    if types.len() > 2 {
        return report.bad("policyTypes", &spec["policyTypes"], "may not specify more than two policyTypes");
    }
    report.each(spec, "policyTypes", |r, kind| {
        let kind = kind.as_str().unwrap_or_default();
        if !["Ingress", "Egress"].contains(&kind) {
            r.not_supported(kind, &["Ingress", "Egress"]);
        }
    });
}

fn policy_port(report: &mut Report, port: &Value) {
    report.maybe_choice(port, "protocol", &["TCP", "UDP", "SCTP"]);
    let end = port["endPort"].as_i64();
    match &port["port"] {
        Value::Null => {
            if let Some(end) = end {
                report.bad("endPort", end, "may not be specified when `port` is not specified");
            }
        }
        Value::String(_) => {
            if let Some(end) = end {
                report.bad("endPort", end, "may not be specified when `port` is non-numeric");
            }
            report.at("port", |r| probe::port(r, &port["port"]));
        }
        number => {
            report.at("port", |r| probe::port(r, number));
            if let Some(end) = end {
                // Upstream shows the port that it is compared with.
                let first = number.as_i64().unwrap_or(0);
                if end < first {
                    report.bad("endPort", first, "must be greater than or equal to `port`");
                }
                report.between(port, "endPort", 1, 65535);
            }
        }
    }
}

fn peer(report: &mut Report, peer: &Value) {
    for name in ["podSelector", "namespaceSelector"] {
        report.with(peer, name, selector::check);
    }
    report.with(peer, "ipBlock", |r, block| {
        if !r.need(block, "cidr") {
            return;
        }
        let range = text(block, "cidr");
        r.at("cidr", |r| ip::check_range(r, range));
        let Some(outer) = ip::parse_range(range) else { return };
        r.each(block, "except", |r, except| {
            let except = except.as_str().unwrap_or_default();
            ip::check_range(r, except);
            if ip::parse_range(except).is_some_and(|inner| !ip::strictly_inside(outer, inner)) {
                r.invalid(except, "must be a strict subset of `cidr`");
            }
        });
    });
    let others = has(peer, "podSelector") || has(peer, "namespaceSelector");
    match (has(peer, "ipBlock"), others) {
        (false, false) => report.required("must specify a peer"),
        (true, true) => report.forbidden("may not specify both ipBlock and another peer"),
        _ => {}
    }
}

pub fn ip_address(report: &mut Report, spec: &Value) {
    let Some(parent) = spec.get("parentRef").filter(|p| p.is_object()) else {
        return report.miss("parentRef", "");
    };
    report.at("parentRef", |r| {
        r.named(parent, "group", names::dns_subdomain);
        r.need_named(parent, "resource", names::path_segment);
        r.need_named(parent, "name", names::path_segment);
        r.named(parent, "namespace", names::path_segment);
    });
}

const PARENT: Shape = Shape::Struct(&[
    Field("Group", "group", Shape::Text),
    Field("Resource", "resource", Shape::Text),
    Field("Namespace", "namespace", Shape::Text),
    Field("Name", "name", Shape::Text),
]);

pub fn ip_address_update(report: &mut Report, new: &Value, old: &Value) {
    let (now, before) = (&new["spec"]["parentRef"], &old["spec"]["parentRef"]);
    if !crate::field_error::same(now, before) {
        let shown = shown(now, &Shape::Pointer(&PARENT));
        report.at("spec", |r| r.bad("parentRef", shown, crate::field_error::IMMUTABLE));
    }
}

pub fn service_ranges(report: &mut Report, spec: &Value) {
    let ranges = texts(spec, "cidrs");
    match ranges.len() {
        0 => return report.miss("cidrs", "at least one CIDR required"),
        1 | 2 => {}
        _ => return report.bad("cidrs", &json!({"CIDRs": ranges}), "may only hold up to 2 values"),
    }
    report.each(spec, "cidrs", |r, range| {
        let range = range.as_str().unwrap_or_default();
        r.complaints(range, ip::strict_range(range));
    });
    let known = ranges.iter().all(|r| ip::parse_range(r).is_some());
    if ranges.len() == 2 && known && !ip::is_dual_stack(ranges.iter().copied()) {
        let why = "may specify no more than one IP for each IP family, i.e 192.168.0.0/24 and 2001:db8::/64";
        report.bad("cidrs", &spec["cidrs"], why);
    }
}

pub fn service_ranges_update(report: &mut Report, new: &Value, old: &Value) {
    let (now, before) = (texts(&new["spec"], "cidrs"), texts(&old["spec"], "cidrs"));
    let why = crate::field_error::IMMUTABLE;
    report.at("spec", |r| {
        let same_length = now.len() == before.len();
        if !same_length && (before.len(), now.len()) != (1, 2) {
            return r.bad("cidrs", &new["spec"]["cidrs"], why);
        }
        for (index, (now, before)) in now.iter().zip(&before).enumerate() {
            if now != before {
                r.at("cidrs", |r| r.index(index, |r| r.invalid(*now, why)));
            }
        }
        if !same_length {
            service_ranges(r, &new["spec"]);
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_of_ports_that_ends_too_early_is_told_by_where_it_begins() {
        let port = json!({"protocol": "TCP", "port": 80, "endPort": 79});
        assert_eq!(
            Report::told(|r| policy_port(r, &port)),
            ["endPort: Invalid value: 80: must be greater than or equal to `port`"]
        );
    }
}
