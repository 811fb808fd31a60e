//! Rows of kinds that show addresses, ports, quantities or metrics in one cell: endpoints, slices, quotas, autoscalers.

use serde_json::{Name, Value};

use super::{Cells, Column, age};

const TEXT: &str = "string";

pub(super) fn printer(group: &str, plural: &str) -> Option<(&'static [Column], Cells)> {
    Some(match (group, plural) {
        ("", "endpoints") => {
            (&[Column("Endpoints", TEXT, 0), Column("Age", TEXT, 0)], |v| vec![endpoints(&v["subsets"]), age(v)])
        }
        ("", "resourcequotas") => {
            (&[Column("Request", TEXT, 0), Column("Limit", TEXT, 0), Column("Age", TEXT, 0)], |v| {
                vec![quota(v, false), quota(v, true), age(v)]
            })
        }
        ("discovery.k8s.io", "endpointslices") => (
            &[
                Column("AddressType", TEXT, 0),
                Column("Ports", TEXT, 0),
                Column("Endpoints", TEXT, 0),
                Column("Age", TEXT, 0),
            ],
            |v| {
                let kind = v["addressType"].as_str().unwrap_or_default().into();
                vec![kind, slice_ports(&v["ports"]), slice_addresses(&v["endpoints"]), age(v)]
            },
        ),
        ("autoscaling", "horizontalpodautoscalers") => (
            &[
                Column("Reference", TEXT, 0),
                Column("Targets", TEXT, 0),
                Column("MinPods", TEXT, 0),
                Column("MaxPods", TEXT, 0),
                Column("Replicas", TEXT, 0),
                Column("Age", TEXT, 0),
            ],
            autoscaler,
        ),
        ("autoscaling", "scales") => {
            let columns = &[Column("Desired", "integer", 0), Column("Available", "integer", 0), Column("Age", TEXT, 0)];
            (columns, |v| vec![number(&v["spec"]["replicas"]), number(&v["status"]["replicas"]), age(v)])
        }
        _ => return None,
    })
}

fn number(value: &Value) -> Value {
    value.as_i64().unwrap_or(0).into()
}

/// The first items, and how many more there are.
pub(super) fn shortened(items: Vec<String>, shown: usize, separator: &str) -> Value {
    let more = items.len().saturating_sub(shown);
    let text = items.into_iter().take(shown).collect::<Vec<_>>().join(separator);
    if more > 0 { format!("{text} + {more} more...").into() } else { text.into() }
}

const SHOWN: usize = 3;

fn endpoints(subsets: &Value) -> Value {
    let Some(subsets) = subsets.as_array().filter(|s| !s.is_empty()) else { return "<none>".into() };
    let mut items = Vec::new();
    for subset in subsets {
        let addresses = || subset["addresses"].as_array().into_iter().flatten().filter_map(|a| a["ip"].as_str());
        match subset["ports"].as_array().filter(|p| !p.is_empty()) {
            None => items.extend(addresses().map(ToOwned::to_owned)),
            Some(ports) => {
                for port in ports {
                    items.extend(addresses().map(|ip| host_port(ip, port["port"].as_i64().unwrap_or(0))));
                }
            }
        }
    }
    shortened(items, SHOWN, ",")
}

fn host_port(ip: &str, port: i64) -> String {
    if ip.contains(':') { format!("[{ip}]:{port}") } else { format!("{ip}:{port}") }
}

fn slice_ports(ports: &Value) -> Value {
    let Some(ports) = ports.as_array().filter(|p| !p.is_empty()) else { return "<unset>".into() };
    let one = |port: &Value| match (port["port"].as_i64(), port["name"].as_str()) {
        (Some(number), _) => number.to_string(),
        (None, Some(name)) => name.to_owned(),
        (None, None) => "*".to_owned(),
    };
    or_unset(shortened(ports.iter().map(one).collect(), SHOWN, ","))
}

fn slice_addresses(endpoints: &Value) -> Value {
    let Some(endpoints) = endpoints.as_array().filter(|e| !e.is_empty()) else { return "<unset>".into() };
    let addresses = endpoints.iter().flat_map(|e| e["addresses"].as_array().into_iter().flatten());
    shortened(addresses.filter_map(|a| a.as_str().map(ToOwned::to_owned)).collect(), SHOWN, ",")
}

/// Names of ports may be empty, and then there may be nothing to show.
fn or_unset(text: Value) -> Value {
    if text == "" { "<unset>".into() } else { text }
}

/// `name: used/hard` of every resource that is limited, or of the others.
fn quota(v: &Value, limits: bool) -> Value {
    let status = &v["status"];
    let of_column = |(name, _): &(&Name, &Value)| name.starts_with("limits.") == limits;
    let hard = status["hard"].as_object().into_iter().flatten().filter(of_column);
    let shown = |value: &Value| value.as_str().unwrap_or("0").to_owned();
    let parts: Vec<String> =
        hard.map(|(name, hard)| format!("{name}: {}/{}", shown(&status["used"][name]), shown(hard))).collect();
    parts.join(", ").into()
}

fn autoscaler(v: &Value) -> Vec<Value> {
    let (spec, status) = (&v["spec"], &v["status"]);
    let part = |key: &str| spec["scaleTargetRef"][key].as_str().unwrap_or_default();
    vec![
        format!("{}/{}", part("kind"), part("name")).into(),
        metrics(&spec["metrics"], &status["currentMetrics"]),
        spec["minReplicas"].as_i64().map_or("<unset>".into(), |n| n.to_string().into()),
        number(&spec["maxReplicas"]),
        number(&status["currentReplicas"]),
        age(v),
    ]
}

const METRICS_SHOWN: usize = 2;

fn metrics(specs: &Value, statuses: &Value) -> Value {
    let Some(specs) = specs.as_array().filter(|s| !s.is_empty()) else { return "<none>".into() };
    let items = specs.iter().enumerate().map(|(index, spec)| metric(spec, &statuses[index])).collect();
    shortened(items, METRICS_SHOWN, ", ")
}

fn metric(spec: &Value, status: &Value) -> String {
    const KINDS: [(&str, &str); 5] = [
        ("External", "external"),
        ("Pods", "pods"),
        ("Object", "object"),
        ("Resource", "resource"),
        ("ContainerResource", "containerResource"),
    ];
    let Some((_, member)) = KINDS.into_iter().find(|(kind, _)| spec["type"] == *kind) else {
        return "<unknown type>".into();
    };
    let (wanted, current) = (&spec[member]["target"], &status[member]["current"]);
    let text = |value: &Value| value.as_str().map_or("<unknown>".to_owned(), ToOwned::to_owned);
    let averages = wanted["averageValue"].is_string();
    if member == "resource" || member == "containerResource" {
        let name = spec[member]["name"].as_str().unwrap_or_default();
        if averages {
            return format!("{name}: {}/{}", text(&current["averageValue"]), text(&wanted["averageValue"]));
        }
        let percent = |value: &Value, absent: &str| value.as_i64().map_or(absent.to_owned(), |n| format!("{n}%"));
        let (have, target) = (&current["averageUtilization"], &wanted["averageUtilization"]);
        return format!("{name}: {}/{}", percent(have, "<unknown>"), percent(target, "<auto>"));
    }
    match (averages, member) {
        (true, "pods") => format!("{}/{}", text(&current["averageValue"]), text(&wanted["averageValue"])),
        (true, _) => format!("{}/{} (avg)", text(&current["averageValue"]), text(&wanted["averageValue"])),
        (false, _) => format!("{}/{}", text(&current["value"]), text(&wanted["value"])),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn endpoints_show_three_and_count_the_rest() {
        let ips: Vec<Value> =
            ["10.0.0.1", "10.0.0.2", "10.0.0.3", "fd00::1"].iter().map(|ip| json!({"ip": ip})).collect();
        let one = json!([{"addresses": &ips[3..], "ports": [{"port": 80}]}]);
        assert_eq!(endpoints(&one), "[fd00::1]:80");
        assert_eq!(endpoints(&json!([{"addresses": ips}])), "10.0.0.1,10.0.0.2,10.0.0.3 + 1 more...");
        assert_eq!(endpoints(&Value::Null), "<none>");
    }

    #[test]
    fn a_slice_whose_ports_have_nothing_to_show_has_none() {
        assert_eq!(slice_ports(&json!([{"name": ""}])), "<unset>");
        assert_eq!(slice_ports(&json!([{"name": ""}, {"port": 3}])), ",3");
    }

    #[test]
    fn a_quota_has_limits_in_a_column_of_their_own() {
        let v = json!({"status": {"hard": {"limits.cpu": "2", "pods": "4"}, "used": {"pods": "1"}}});
        assert_eq!((quota(&v, false), quota(&v, true)), ("pods: 1/4".into(), "limits.cpu: 0/2".into()));
    }

    #[test]
    fn metrics_show_what_is_and_what_should_be() {
        let cpu = json!({"type": "Resource", "resource": {"name": "cpu", "target": {"averageUtilization": 80}}});
        let now = json!({"resource": {"current": {"averageUtilization": 50}}});
        assert_eq!(metric(&cpu, &now), "cpu: 50%/80%");
        assert_eq!(
            metrics(&json!([cpu.clone(), cpu.clone(), cpu]), &Value::Null),
            "cpu: <unknown>/80%, cpu: <unknown>/80% + 1 more..."
        );
    }
}
