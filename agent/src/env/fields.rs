//! `fieldRef` and `resourceFieldRef`: facts of a pod for its own containers.

use std::collections::BTreeMap;

use proto::api::core::v1::{Node, Pod, ResourceFieldSelector};
use proto::apimachinery::pkg::api::resource::Quantity;

use crate::pod::quantity::{milli, whole};
use crate::pod::spec::{PodExt, find_container};

use super::EnvContext;

/// The value of a field path.
///
/// # Errors
/// The path names nothing that can be had.
pub fn field_value(pod: &Pod, path: &str, context: &EnvContext<'_>) -> Result<String, String> {
    let first = |ips: &[String]| ips.first().cloned().unwrap_or_default();
    match path {
        // What it was called once.
        "spec.nodeName" | "spec.host" => Ok(context.node_name.to_owned()),
        "spec.serviceAccountName" => Ok(pod.spec().service_account_name.clone()),
        "status.hostIP" => Ok(first(context.host_ips)),
        "status.hostIPs" => Ok(context.host_ips.join(",")),
        "status.podIP" => Ok(first(context.pod_ips)),
        "status.podIPs" => Ok(context.pod_ips.join(",")),
        path => metadata_value(pod, path),
    }
}

/// The part of [`field_value`] that needs the object alone.
pub fn metadata_value(pod: &Pod, path: &str) -> Result<String, String> {
    let meta = pod.meta();
    match path {
        "metadata.name" => return Ok(meta.name.clone()),
        "metadata.namespace" => return Ok(meta.namespace.clone()),
        "metadata.uid" => return Ok(meta.uid.clone()),
        "metadata.labels" => return Ok(format_map(&meta.labels)),
        "metadata.annotations" => return Ok(format_map(&meta.annotations)),
        _ => {}
    }
    for (map, prefix) in [(&meta.annotations, "metadata.annotations['"), (&meta.labels, "metadata.labels['")] {
        if let Some(key) = path.strip_prefix(prefix).and_then(|p| p.strip_suffix("']")) {
            return Ok(map.get(key).cloned().unwrap_or_default());
        }
    }
    Err(format!("unsupported fieldPath: {path}"))
}

/// `key="value"` lines in key order, values quoted as Go quotes them.
fn format_map(map: &BTreeMap<String, String>) -> String {
    let lines: Vec<String> = map.iter().map(|(k, v)| format!("{k}={}", go_quote(v))).collect();
    lines.join("\n")
}

/// Text as Go prints it with `%q`.
pub(crate) fn go_quote(text: &str) -> String {
    use std::fmt::Write as _;
    let mut out = String::from("\"");
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\u{7}' => out.push_str("\\a"),
            '\u{8}' => out.push_str("\\b"),
            '\u{b}' => out.push_str("\\v"),
            '\u{c}' => out.push_str("\\f"),
            c if u32::from(c) < 0x20 || c == '\u{7f}' => {
                let _ = write!(out, "\\x{:02x}", u32::from(c));
            }
            c if is_printable(c) => out.push(c),
            c if u32::from(c) < 0x1_0000 => {
                let _ = write!(out, "\\u{:04x}", u32::from(c));
            }
            c => {
                let _ = write!(out, "\\U{:08x}", u32::from(c));
            }
        }
    }
    out.push('"');
    out
}

/// What Go calls printable: letters, marks, numbers, punctuation, symbols, and of all blanks the one of ASCII. The standard
/// library escapes the others too, and marks where a text begins with them.
fn is_printable(c: char) -> bool {
    c.is_ascii() || {
        let mut text = String::from("a");
        text.push(c);
        text.escape_debug().count() == 2
    }
}

/// What a container may use up to all that the node can give, unless it says less.
const OF_NODE: [&str; 3] = ["cpu", "memory", "ephemeral-storage"];

/// What can be given to a container that does not say what it may use.
#[derive(Clone, Copy)]
pub struct Left<'a> {
    node: &'a Node,
    /// The pod that as a whole may have less.
    pod: Option<&'a Pod>,
}

impl<'a> Left<'a> {
    /// All that the node can give.
    pub fn of(node: &'a Node) -> Self {
        Self { node, pod: None }
    }

    /// No more of it than the pod as a whole may have.
    pub fn to(pod: &'a Pod, node: &'a Node) -> Self {
        Self { node, pod: Some(pod) }
    }

    fn amount(self, resource: &str) -> Option<&'a Quantity> {
        let of_node = self.node.status.as_ref()?.allocatable.get(resource)?;
        let own =
            self.pod.filter(|_| matches!(resource, "cpu" | "memory")).and_then(|pod| pod.spec().resources.as_ref());
        let own = own.and_then(|own| own.limits.get(resource)).filter(|limit| milli(limit) != 0);
        Some(own.unwrap_or(of_node))
    }
}

/// A request or limit in units of the divisor, rounded up. A limit that is not set, or zero, is what is `left`.
///
/// # Errors
/// No such container or resource.
pub fn container_resource(
    pod: &Pod,
    selector: &ResourceFieldSelector,
    own_name: &str,
    left: Left<'_>,
) -> Result<String, String> {
    let name = if selector.container_name.is_empty() { own_name } else { &selector.container_name };
    let Some((_, container)) = find_container(pod.spec(), name) else {
        return Err(format!("container {name} not found"));
    };
    let Some((list, resource)) = selector.resource.split_once('.') else {
        return Err(format!("unsupported container resource : {}", selector.resource));
    };
    let requirements = container.resources.as_ref();
    let given = match list {
        "limits" => {
            let own = requirements.and_then(|r| r.limits.get(resource));
            match OF_NODE.contains(&resource) && own.is_none_or(|limit| milli(limit) == 0) {
                true => left.amount(resource).or(own),
                false => own,
            }
        }
        "requests" => requirements.and_then(|r| r.requests.get(resource)),
        _ => return Err(format!("unsupported container resource : {}", selector.resource)),
    };
    let Some(given) = given else { return Ok("0".into()) };
    let divisor = selector.divisor.clone().filter(|d| milli(d) > 0);
    let value = if resource == "cpu" {
        divide_up(milli(given), divisor.as_ref().map_or(1000, milli))
    } else {
        divide_up(whole(given), divisor.as_ref().map_or(1, whole).max(1))
    };
    Ok(value.to_string())
}

fn divide_up(value: i64, divisor: i64) -> i64 {
    value / divisor + i64::from(value % divisor > 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proto::apimachinery::pkg::apis::meta::v1::ObjectMeta;

    #[test]
    fn labels_are_had_one_by_one_or_together() {
        let labels = [("a".to_owned(), "x\"y\n".to_owned()), ("b/c".to_owned(), "z".to_owned())].into();
        let pod = Pod { metadata: Some(ObjectMeta { labels, ..Default::default() }), ..Default::default() };
        assert_eq!(metadata_value(&pod, "metadata.labels['b/c']").unwrap(), "z");
        assert_eq!(metadata_value(&pod, "metadata.labels").unwrap(), "a=\"x\\\"y\\n\"\nb/c=\"z\"");
        assert!(metadata_value(&pod, "spec.x").is_err());
    }

    #[test]
    fn what_nobody_can_see_is_escaped() {
        let blanks = "é\u{301}\u{a0}\u{200b}\u{2028}x\u{85}\u{1}\u{1f600}\u{e0001}";
        assert_eq!(go_quote(blanks), "\"é\u{301}\\u00a0\\u200b\\u2028x\\u0085\\x01\u{1f600}\\U000e0001\"");
    }

    #[test]
    fn limits_that_are_none_are_those_of_the_node() {
        use proto::api::core::v1::{Container, NodeStatus, PodSpec, ResourceRequirements};
        let list = |list: &[(&str, &str)]| {
            list.iter().map(|(k, v)| ((*k).to_owned(), Quantity { string: (*v).into() })).collect::<BTreeMap<_, _>>()
        };
        let limits = list(&[("cpu", "0"), ("hugepages-2Mi", "0"), ("memory", "1Mi")]);
        let container = Container {
            name: "c".into(),
            resources: Some(ResourceRequirements { limits, ..Default::default() }),
            ..Default::default()
        };
        let pod =
            Pod { spec: Some(PodSpec { containers: vec![container], ..Default::default() }), ..Default::default() };
        let allocatable = list(&[
            ("cpu", "2"),
            ("memory", "4Gi"),
            ("hugepages-2Mi", "8Mi"),
            ("ephemeral-storage", "9"),
            ("x/y", "3"),
        ]);
        let node = Node { status: Some(NodeStatus { allocatable, ..Default::default() }), ..Default::default() };
        let value = |resource: &str| {
            let selector = ResourceFieldSelector { resource: format!("limits.{resource}"), ..Default::default() };
            container_resource(&pod, &selector, "c", Left::of(&node)).unwrap()
        };
        let found = ["cpu", "memory", "ephemeral-storage", "hugepages-2Mi", "x/y"].map(value);
        assert_eq!(found, ["2", "1048576", "9", "0", "0"]);

        let limits = list(&[("cpu", "1"), ("memory", "2Gi"), ("hugepages-2Mi", "4Mi")]);
        let resources = Some(ResourceRequirements { limits, ..Default::default() });
        let whole = Pod { spec: Some(PodSpec { resources, ..Default::default() }), ..Default::default() };
        let left = |pod| ["cpu", "memory", "hugepages-2Mi"].map(|name| Left::to(pod, &node).amount(name).unwrap());
        assert_eq!(left(&whole).map(|amount| amount.string.as_str()), ["1", "2Gi", "8Mi"]);
        assert_eq!(left(&pod).map(|amount| amount.string.as_str()), ["2", "4Gi", "8Mi"]);
        assert!(Left::to(&whole, &Node::default()).amount("cpu").is_none());
    }

    #[test]
    fn amounts_are_rounded_up() {
        assert_eq!(divide_up(1500, 1000), 2);
        assert_eq!(divide_up(15, 1), 15);
    }
}
