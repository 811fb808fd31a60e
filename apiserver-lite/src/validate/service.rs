//! Services: ports, addresses, traffic policies, and what may change of them.

use std::collections::HashSet;

use serde_json::{Value, json};

use super::{has, ip, list, meta, probe, text, texts};
use crate::field_error::{FieldError, Report, Rules, go_struct};
use crate::names;

const ONLY_BALANCED: &str = "may only be used when `type` is 'LoadBalancer'";

fn is_headless(spec: &Value) -> bool {
    texts(spec, "clusterIPs") == ["None"]
}

/// Reached from outside: by a port of the nodes, a load balancer, or external addresses.
pub fn is_external(spec: &Value) -> bool {
    let kind = text(spec, "type");
    ["LoadBalancer", "NodePort"].contains(&kind) || kind == "ClusterIP" && !list(spec, "externalIPs").is_empty()
}

/// The load balancer asks the nodes which of them have endpoints.
pub fn needs_health_check(spec: &Value) -> bool {
    text(spec, "type") == "LoadBalancer" && text(spec, "externalTrafficPolicy") == "Local"
}

pub fn check(report: &mut Report, object: &Value) {
    let spec = &object["spec"];
    let annotations = &object["metadata"]["annotations"];
    let (hints, mode) = ("service.kubernetes.io/topology-aware-hints", "service.kubernetes.io/topology-mode");
    if let (Some(hints_said), Some(mode_said)) = (annotations[hints].as_str(), annotations[mode].as_str())
        && hints_said != mode_said
    {
        let why = format!("must match annotations[{hints}] when both are specified");
        report.down(&["metadata", "annotations"], |r| r.key(mode, |r| r.invalid(mode_said, why)));
    }
    report.at("spec", |r| {
        let kind = text(spec, "type");
        let ports = list(spec, "ports");
        if ports.is_empty() && !is_headless(spec) && kind != "ExternalName" {
            r.miss("ports", "");
        }
        match kind {
            "LoadBalancer" | "NodePort" if is_headless(spec) => {
                let why = format!("may not be set to 'None' for {kind} services");
                r.at("clusterIPs", |r| r.index(0, |r| r.invalid("None", why)));
            }
            "ExternalName" => {
                let why = "may not be set for ExternalName services";
                for name in ["clusterIPs", "ipFamilies"] {
                    if !list(spec, name).is_empty() {
                        r.refuse(name, why);
                    }
                }
                r.forbid(spec, &["ipFamilyPolicy"], why);
                let name = text(spec, "externalName");
                let name = name.strip_suffix('.').unwrap_or(name);
                r.at("externalName", |r| match name {
                    "" => r.required(""),
                    name => r.complaints(name, names::dns_subdomain(name)),
                });
            }
            _ => {}
        }
        let mut seen = HashSet::new();
        r.each(spec, "ports", |r, port| one_port(r, port, ports.len() > 1, &mut seen));
        r.at("selector", |r| meta::label_map(r, &spec["selector"]));
        r.choice(spec, "sessionAffinity", &["ClientIP", "None"]);
        affinity(r, spec);
        addresses(r, spec);
        r.each(spec, "externalIPs", |r, address| {
            let address = address.as_str().unwrap_or_default();
            if ip::check(r, address) {
                r.complaints(address, ip::special(address));
            }
        });
        r.choice(spec, "type", &["ClusterIP", "ExternalName", "LoadBalancer", "NodePort"]);
        duplicates(r, spec);
    });
    source_ranges(report, object);
    report.at("spec", |r| {
        if has(spec, "allocateLoadBalancerNodePorts") && text(spec, "type") != "LoadBalancer" {
            r.refuse("allocateLoadBalancerNodePorts", ONLY_BALANCED);
        }
    });
    if text(spec, "type") == "LoadBalancer" && !has(spec, "allocateLoadBalancerNodePorts") {
        report.miss("allocateLoadBalancerNodePorts", "");
    }
    report.at("spec", |r| {
        balancer_class(r, spec);
        traffic(r, spec);
    });
}

fn one_port<'a>(report: &mut Report, port: &'a Value, named: bool, seen: &mut HashSet<&'a str>) {
    let name = text(port, "name");
    if named && name.is_empty() {
        report.miss("name", "");
    } else if !name.is_empty() {
        report.named(port, "name", names::dns_label);
        if !seen.insert(name) {
            report.at("name", |r| r.duplicate(name));
        }
    }
    let number = port["port"].as_i64().unwrap_or(0);
    names::port(number).into_iter().for_each(|why| report.bad("port", number, why));
    report.choice(port, "protocol", &["SCTP", "TCP", "UDP"]);
    report.at("targetPort", |r| probe::port(r, &port["targetPort"]));
    report.with(port, "appProtocol", |r, protocol| {
        let protocol = protocol.as_str().unwrap_or_default();
        r.complaints(protocol, names::qualified_name(protocol));
    });
}

fn affinity(report: &mut Report, spec: &Value) {
    match text(spec, "sessionAffinity") {
        "ClientIP" => {
            let why = "when session affinity type is ClientIP";
            let config = &spec["sessionAffinityConfig"];
            let seconds = &config["clientIP"]["timeoutSeconds"];
            let path = ["sessionAffinityConfig", "clientIP", "timeoutSeconds"];
            let missing = [config, &config["clientIP"], seconds].iter().position(|v| v.is_null());
            match missing {
                Some(depth) => report.down(&path[..=depth], |r| r.required(why)),
                None => {
                    let seconds = seconds.as_i64().unwrap_or(0);
                    if !(1..=86400).contains(&seconds) {
                        let why = "must be greater than 0 and less than 86400";
                        report.down(&path, |r| r.invalid(seconds, why));
                    }
                }
            }
        }
        "None" => {
            report.forbid(spec, &["sessionAffinityConfig"], "must not be set when session affinity is None");
        }
        _ => {}
    }
}

/// Cluster addresses, families and policy of a service; asked for before any are handed out, too. `old` is the spec of
/// the stored service.
pub fn cluster_ips(spec: &Value, old: Option<&Value>, rules: Rules) -> Vec<FieldError> {
    let mut report = Report::by(rules);
    report.kept = old.map(|old| texts(old, "clusterIPs").into_iter().map(Into::into).collect()).unwrap_or_default();
    report.at("spec", |r| addresses(r, spec));
    report.errors
}

fn addresses(report: &mut Report, spec: &Value) {
    if text(spec, "type") == "ExternalName" {
        return;
    }
    let (first, all, families) = (text(spec, "clusterIP"), texts(spec, "clusterIPs"), texts(spec, "ipFamilies"));
    let shown = json!(all);
    if !first.is_empty() {
        match all.first() {
            None => report.miss("clusterIPs", ""),
            Some(said) if *said != first => report.bad("clusterIPs", &shown, "first value must match `clusterIP`"),
            Some(_) => {}
        }
    } else if !all.is_empty() {
        report.bad("clusterIPs", &shown, "must be empty when `clusterIP` is not specified");
    }
    for (index, family) in families.iter().enumerate() {
        report.at("ipFamilies", |r| {
            r.index(index, |r| {
                if !["IPv4", "IPv6"].contains(family) {
                    r.not_supported(family, &["IPv4", "IPv6"]);
                }
                if families[..index].contains(family) {
                    r.duplicate(*family);
                }
            });
        });
    }
    report.maybe_choice(spec, "ipFamilyPolicy", &["PreferDualStack", "RequireDualStack", "SingleStack"]);
    let sound = report.sound(|report| {
        for (index, address) in all.iter().enumerate() {
            if index == 0 && *address == "None" {
                if all.len() > 1 {
                    report.bad("clusterIPs", &shown, "'None' must be the first and only value");
                }
                continue;
            }
            report.at("clusterIPs", |r| r.index(index, |r| ip::check(r, address)));
        }
    });
    if all.len() > 2 {
        report.bad("clusterIPs", &shown, "may only hold up to 2 values");
    }
    if !sound {
        return;
    }
    if all.len() > 1 && !ip::is_dual_stack(all.iter().copied()) {
        report.bad("clusterIPs", &shown, "may specify no more than one IP for each IP family");
    }
    if is_headless(spec) {
        return;
    }
    for (index, (address, family)) in all.iter().zip(&families).enumerate() {
        let is_v6 = ip::parse(address).is_some_and(|a| a.is_ipv6());
        if ["IPv4", "IPv6"].contains(family) && is_v6 != (*family == "IPv6") {
            let why = format!("expected an {family} value as indicated by `ipFamilies[{index}]`");
            report.at("clusterIPs", |r| r.index(index, |r| r.invalid(*address, why)));
        }
    }
}

fn duplicates(report: &mut Report, spec: &Value) {
    if text(spec, "type") == "ClusterIP" {
        report.each(spec, "ports", |r, port| {
            if port["nodePort"].as_i64().unwrap_or(0) != 0 {
                r.refuse("nodePort", "may not be used when `type` is 'ClusterIP'");
            }
        });
    }
    for name in ["nodePort", "port"] {
        let mut seen = HashSet::new();
        report.items(spec, "ports", |r, _, port| {
            let (protocol, number) = (text(port, "protocol"), port[name].as_i64().unwrap_or(0));
            let again = !seen.insert((protocol, number));
            if name == "nodePort" && number != 0 && again {
                r.at("nodePort", |r| r.duplicate(number));
            } else if name == "port" && again {
                r.duplicate(go_struct(&[
                    ("Name", &json!("")),
                    ("Protocol", &json!(protocol)),
                    ("AppProtocol", &Value::Null),
                    ("Port", &json!(number)),
                    ("TargetPort", &json!(0)),
                    ("NodePort", &json!(0)),
                ]));
            }
        });
    }
}

fn source_ranges(report: &mut Report, object: &Value) {
    const KEY: &str = "service.beta.kubernetes.io/load-balancer-source-ranges";
    let spec = &object["spec"];
    let balanced = text(spec, "type") == "LoadBalancer";
    let ranges = texts(spec, "loadBalancerSourceRanges");
    if !ranges.is_empty() {
        report.down(&["spec", "LoadBalancerSourceRanges"], |r| {
            if !balanced {
                r.forbidden(ONLY_BALANCED);
            }
            for (index, range) in ranges.iter().enumerate() {
                r.index(index, |r| ip::check_range(r, range.trim()));
            }
        });
    } else if let Some(said) = object["metadata"]["annotations"][KEY].as_str() {
        report.down(&["metadata", "annotations"], |r| {
            r.key(KEY, |r| {
                if !balanced {
                    r.forbidden(ONLY_BALANCED);
                }
                for range in said.trim().split(',').map(str::trim).filter(|_| !said.trim().is_empty()) {
                    ip::check_range(r, range);
                }
            });
        });
    }
}

fn balancer_class(report: &mut Report, spec: &Value) {
    report.with(spec, "loadBalancerClass", |r, class| {
        let class = class.as_str().unwrap_or_default();
        if text(spec, "type") == "LoadBalancer" {
            r.complaints(class, names::qualified_name(class));
        } else {
            r.forbidden(ONLY_BALANCED);
        }
    });
}

fn traffic(report: &mut Report, spec: &Value) {
    let policy = text(spec, "externalTrafficPolicy");
    if is_external(spec) {
        report.choice(spec, "externalTrafficPolicy", &["Cluster", "Local"]);
    } else if !policy.is_empty() {
        report.bad("externalTrafficPolicy", policy, "may only be set for externally-accessible services");
    }
    let port = spec["healthCheckNodePort"].as_i64().unwrap_or(0);
    if !needs_health_check(spec) {
        if port != 0 {
            let why = "may only be set when `type` is 'LoadBalancer' and `externalTrafficPolicy` is 'Local'";
            report.bad("healthCheckNodePort", port, why);
        }
    } else if port == 0 {
        report.miss("healthCheckNodePort", "");
    } else {
        report.between(spec, "healthCheckNodePort", 1, 65535);
    }
    if !has(spec, "internalTrafficPolicy") && ["NodePort", "LoadBalancer", "ClusterIP"].contains(&text(spec, "type")) {
        report.miss("internalTrafficPolicy", "");
    }
    report.maybe_choice(spec, "internalTrafficPolicy", &["Cluster", "Local"]);
    report.maybe_choice(spec, "trafficDistribution", &["PreferClose", "PreferSameNode", "PreferSameZone"]);
}

/// What may change of a service that exists: its addresses only come and go as families do.
pub fn update(report: &mut Report, new: &Value, old: &Value) {
    let (now, before) = (&new["spec"], &old["spec"]);
    report.at("spec", |r| {
        if text(now, "type") != "ExternalName" && text(before, "type") != "ExternalName" {
            let headless = (is_headless(now), is_headless(before));
            if headless != (true, true) {
                released(r, now, before, "clusterIPs", "clusterIP");
            }
            if headless == (false, false) {
                released(r, now, before, "ipFamilies", "ipFamily");
            }
        }
        let both = text(now, "type") == "LoadBalancer" && text(before, "type") == "LoadBalancer";
        if both && now["loadBalancerClass"] != before["loadBalancerClass"] {
            r.bad("loadBalancerClass", &now["loadBalancerClass"], "may not change once set");
        }
        balancer_class(r, now);
        let checked = needs_health_check(now) && needs_health_check(before);
        if checked && now["healthCheckNodePort"] != before["healthCheckNodePort"] {
            r.refuse("healthCheckNodePort", "field is immutable");
        }
    });
}

fn released(report: &mut Report, new: &Value, old: &Value, name: &str, one: &str) {
    let (now, before) = (texts(new, name), texts(old, name));
    let shown = json!(now);
    let changed = |report: &mut Report, index: usize| {
        report.at(name, |r| r.index(index, |r| r.invalid(&shown, "may not change once set")));
    };
    if now.len() == before.len() {
        for index in (0..now.len()).filter(|i| now[*i] != before[*i]) {
            // Upstream counts addresses, and names the first family only.
            changed(report, if name == "clusterIPs" { index } else { 0 });
        }
        return;
    }
    if now.is_empty() {
        let why = format!("primary {one} can not be unset");
        report.at(name, |r| r.index(0, |r| r.invalid(&shown, why)));
    }
    if let (Some(first), Some(was)) = (now.first(), before.first())
        && first != was
    {
        // Of families upstream shows the addresses here.
        let shown = if name == "ipFamilies" { json!(texts(new, "clusterIPs")) } else { shown.clone() };
        report.at(name, |r| r.index(0, |r| r.invalid(&shown, "may not change once set")));
    }
    if now.len() == 1 && before.len() > 1 && text(new, "ipFamilyPolicy") != "SingleStack" {
        let why = format!("must be set to 'SingleStack' when releasing the secondary {one}");
        report.bad("ipFamilyPolicy", &new["ipFamilyPolicy"], why);
    }
}

pub fn status(report: &mut Report, new: &Value) {
    let balanced = text(&new["spec"], "type") == "LoadBalancer";
    report.down(&["status", "loadBalancer"], |r| {
        let status = &new["status"]["loadBalancer"];
        if !balanced && !list(status, "ingress").is_empty() {
            r.refuse("ingress", "may only be used when `spec.type` is 'LoadBalancer'");
        } else {
            load_balancer(r, status, true);
        }
    });
}

/// Where a load balancer can be reached.
pub fn load_balancer(report: &mut Report, status: &Value, modes: bool) {
    report.each(status, "ingress", |r, ingress| {
        let (address, host) = (text(ingress, "ip"), text(ingress, "hostname"));
        if !address.is_empty() {
            r.at("ip", |r| ip::check(r, address));
        }
        match ingress.get("ipMode").and_then(Value::as_str).filter(|_| modes) {
            None if modes && !address.is_empty() => r.miss("ipMode", "must be specified when `ip` is set"),
            None => {}
            Some(_) if address.is_empty() => r.refuse("ipMode", "may not be specified when `ip` is not set"),
            Some(_) => r.maybe_choice(ingress, "ipMode", &["Proxy", "VIP"]),
        }
        if !host.is_empty() {
            r.at("hostname", |r| {
                r.complaints(host, names::dns_subdomain(host));
                if ip::parse(host).is_some() {
                    r.invalid(host, "must be a DNS name, not an IP address");
                }
            });
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_load_balancer_may_open_the_port_of_kubelets() {
        let told = |kind: &str, port: i64| {
            let port = json!({"port": port, "targetPort": 80, "protocol": "TCP"});
            let spec = json!({"type": kind, "ports": [port], "sessionAffinity": "None", "clusterIP": "10.0.0.1",
                "clusterIPs": ["10.0.0.1"], "internalTrafficPolicy": "Cluster", "externalTrafficPolicy": "Cluster",
                "allocateLoadBalancerNodePorts": true});
            let all = Report::told(|r| check(r, &json!({"metadata": {}, "spec": spec})));
            all.into_iter().filter(|told| told.starts_with("spec.ports")).collect::<Vec<_>>()
        };
        for kind in ["LoadBalancer", "NodePort"] {
            assert_eq!(told(kind, 10_250), [""; 0], "{kind}");
        }
        assert_eq!(
            told("LoadBalancer", 0),
            ["spec.ports[0].port: Invalid value: 0: must be between 1 and 65535, inclusive"]
        );
    }
}
