//! The fields of a service that belong together: what one says about the others, before anything is handed out.

use serde_json::{Value, json};

pub(super) fn text<'a>(spec: &'a Value, name: &str) -> &'a str {
    spec[name].as_str().unwrap_or_default()
}

pub(super) fn texts(spec: &Value, name: &str) -> Vec<String> {
    spec[name].as_array().into_iter().flatten().filter_map(Value::as_str).map(ToOwned::to_owned).collect()
}

fn remove(spec: &mut Value, name: &str) {
    if let Some(spec) = spec.as_object_mut() {
        spec.remove(name);
    }
}

fn needs_address(spec: &Value) -> bool {
    matches!(text(spec, "type"), "ClusterIP" | "NodePort" | "LoadBalancer")
}

/// Whether ports of nodes are handed out to a service that names none.
pub(super) fn gets_node_ports(spec: &Value) -> bool {
    match text(spec, "type") {
        "NodePort" => true,
        "LoadBalancer" => spec["allocateLoadBalancerNodePorts"] != false,
        _ => false,
    }
}

/// Whether a service may have ports of nodes.
pub(super) fn has_node_ports(spec: &Value) -> bool {
    matches!(text(spec, "type"), "NodePort" | "LoadBalancer")
}

/// Load balancers that spare nodes without endpoints have to ask each node for its health.
pub(super) fn needs_health_port(spec: &Value) -> bool {
    text(spec, "type") == "LoadBalancer" && text(spec, "externalTrafficPolicy") == "Local"
}

pub(super) fn health_port(spec: &Value) -> u64 {
    spec["healthCheckNodePort"].as_u64().unwrap_or(0)
}

pub(super) fn node_ports(spec: &Value) -> impl Iterator<Item = u64> {
    let ports = spec["ports"].as_array().into_iter().flatten();
    ports.filter_map(|p| p["nodePort"].as_u64()).filter(|p| *p > 0)
}

/// `clusterIP` is the first of `clusterIPs`; older clients know only the former.
pub(super) fn agree(new: &mut Value, old: Option<&Value>) {
    let (first, all) = (text(new, "clusterIP").to_owned(), texts(new, "clusterIPs"));
    let Some(old) = old else {
        if !first.is_empty() && all.is_empty() {
            new["clusterIPs"] = json!([first]);
        }
        return;
    };
    let before = texts(old, "clusterIPs");
    if !before.is_empty() && all.is_empty() && text(old, "clusterIP") == first {
        new["clusterIPs"] = json!(before);
    }
    if text(old, "clusterIP") != first && texts(new, "clusterIPs") == before {
        match first.is_empty() {
            true => remove(new, "clusterIPs"),
            false => new["clusterIPs"] = json!([first]),
        }
    }
}

/// A client that leaves out what was handed out means to keep it.
pub(super) fn keep(new: &mut Value, old: &Value) {
    if needs_address(old) && needs_address(new) {
        if text(new, "clusterIP").is_empty() {
            new["clusterIP"] = old["clusterIP"].clone();
        }
        if texts(new, "clusterIPs").is_empty() && new["clusterIP"] == old["clusterIP"] {
            new["clusterIPs"] = old["clusterIPs"].clone();
        }
    }
    if gets_node_ports(old) && gets_node_ports(new) {
        let before: Vec<u64> = node_ports(old).collect();
        let mut used: Vec<u64> = node_ports(new).filter(|p| before.contains(p)).collect();
        for port in new["ports"].as_array_mut().into_iter().flatten() {
            if port["nodePort"].as_u64().unwrap_or(0) != 0 {
                continue;
            }
            let mut was =
                old["ports"].as_array().into_iter().flatten().rev().filter(|p| text(p, "name") == text(port, "name"));
            let number = was.next().and_then(|p| p["nodePort"].as_u64()).filter(|n| *n > 0 && !used.contains(n));
            if let Some(number) = number {
                port["nodePort"] = number.into();
                used.push(number);
            }
        }
    }
    if needs_health_port(old) && needs_health_port(new) && health_port(new) == 0 {
        new["healthCheckNodePort"] = old["healthCheckNodePort"].clone();
    }
}

/// A change of type takes along what only the old type has, unless the client set it anew.
pub(super) fn drop_for_type(new: &mut Value, old: &Value) {
    let mut gone: Vec<&str> = Vec::new();
    let same = |new: &Value, name: &str| crate::field_error::same(&new[name], &old[name]);
    let lost = |needs: fn(&Value) -> bool| needs(old) && !needs(new);
    if lost(needs_address) {
        if same(new, "clusterIP") && same(new, "clusterIPs") {
            gone.extend(["clusterIP", "clusterIPs"]);
        }
        let with = ["ipFamilies", "ipFamilyPolicy", "internalTrafficPolicy"];
        gone.extend(with.into_iter().filter(|name| same(new, name)));
    }
    let sorted = |spec: &Value| {
        let mut ports: Vec<u64> = node_ports(spec).collect();
        ports.sort_unstable();
        ports
    };
    let clear_ports = lost(gets_node_ports) && sorted(new) == sorted(old);
    if lost(needs_health_port) && same(new, "healthCheckNodePort") {
        gone.push("healthCheckNodePort");
    }
    if lost(|spec| text(spec, "type") == "LoadBalancer") {
        let with = ["allocateLoadBalancerNodePorts", "loadBalancerClass"];
        gone.extend(with.into_iter().filter(|name| same(new, name)));
    }
    let external = |spec: &Value| has_node_ports(spec) || needs_address(spec) && !texts(spec, "externalIPs").is_empty();
    if external(old) && !external(new) && same(new, "externalTrafficPolicy") {
        gone.push("externalTrafficPolicy");
    }
    gone.into_iter().for_each(|name| remove(new, name));
    if clear_ports {
        new["ports"].as_array_mut().into_iter().flatten().for_each(|port| remove(port, "nodePort"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_handed_out_stays_unless_the_type_has_no_use_for_it() {
        let old = json!({"type": "NodePort", "clusterIP": "10.0.0.9", "clusterIPs": ["10.0.0.9"],
            "externalTrafficPolicy": "Cluster", "internalTrafficPolicy": "Cluster",
            "ipFamilies": ["IPv4"], "ports": [{"name": "a", "port": 1, "nodePort": 30001}]});
        let mut new = json!({"type": "NodePort", "ports": [{"name": "a", "port": 2}, {"name": "b", "port": 3}]});
        keep(&mut new, &old);
        assert_eq!((&new["clusterIP"], &new["clusterIPs"]), (&json!("10.0.0.9"), &json!(["10.0.0.9"])));
        assert_eq!((&new["ports"][0]["nodePort"], &new["ports"][1]["nodePort"]), (&json!(30001), &Value::Null));
        let mut new = old.clone();
        new["type"] = "ExternalName".into();
        drop_for_type(&mut new, &old);
        assert_eq!(new, json!({"type": "ExternalName", "ports": [{"name": "a", "port": 1}]}));
        let mut new = old.clone();
        new["type"] = "ClusterIP".into();
        new["ports"][0]["nodePort"] = 30002.into();
        drop_for_type(&mut new, &old);
        // It was set anew, so validation has to say that it may not be.
        assert_eq!(new["ports"][0]["nodePort"], 30002);
        assert_eq!(new["externalTrafficPolicy"], Value::Null);
    }

    #[test]
    fn old_clients_know_one_address() {
        let mut new = json!({"clusterIP": "None"});
        agree(&mut new, None);
        assert_eq!(new["clusterIPs"], json!(["None"]));
        let old = json!({"clusterIP": "10.0.0.1", "clusterIPs": ["10.0.0.1"]});
        let mut new = json!({"clusterIP": "10.0.0.2", "clusterIPs": ["10.0.0.1"]});
        agree(&mut new, Some(&old));
        assert_eq!(new["clusterIPs"], json!(["10.0.0.2"]));
    }
}
