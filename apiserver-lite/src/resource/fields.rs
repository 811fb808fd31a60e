//! Selectable fields beyond name and namespace, by resource at rest.

use serde_json::Value;

use super::Resource;

/// Selectable fields of core events.
const EVENT_FIELDS: &[&str] = &[
    "involvedObject.apiVersion",
    "involvedObject.fieldPath",
    "involvedObject.kind",
    "involvedObject.name",
    "involvedObject.namespace",
    "involvedObject.resourceVersion",
    "involvedObject.uid",
    "reason",
    "reportingComponent",
    "source",
    "type",
];

/// Paths that a field selector may name for a resource, besides `metadata.name` and `metadata.namespace`.
pub fn selectable(resource: &Resource) -> &'static [&'static str] {
    match (&*resource.group, &*resource.plural) {
        ("", "pods") => &[
            "spec.hostNetwork",
            "spec.nodeName",
            "spec.restartPolicy",
            "spec.schedulerName",
            "spec.serviceAccountName",
            "status.nominatedNodeName",
            "status.phase",
            "status.podIP",
            "status.podIPs",
        ],
        ("", "nodes") => &["spec.unschedulable"],
        ("", "namespaces") => &["status.phase"],
        ("", "secrets") => &["type"],
        ("", "services") => &["spec.clusterIP", "spec.type"],
        ("", "replicationcontrollers") => &["status.replicas"],
        ("apps", "replicasets") => &["status.replicas"],
        ("", "events") => EVENT_FIELDS,
        ("batch", "jobs") => &["status.successful"],
        ("certificates.k8s.io", "podcertificaterequests") => &["spec.nodeName", "spec.podName", "spec.signerName"],
        ("certificates.k8s.io", _) => &["spec.signerName"],
        ("resource.k8s.io", "resourceslices") => &["spec.driver", "spec.nodeName"],
        _ => &[],
    }
}

/// Names of event fields in events.k8s.io/v1 that the stored form has under another name, or under the same.
const NEW_EVENT_FIELDS: &[(&str, &str)] = &[
    ("reason", "reason"),
    ("regarding.apiVersion", "involvedObject.apiVersion"),
    ("regarding.fieldPath", "involvedObject.fieldPath"),
    ("regarding.kind", "involvedObject.kind"),
    ("regarding.name", "involvedObject.name"),
    ("regarding.namespace", "involvedObject.namespace"),
    ("regarding.resourceVersion", "involvedObject.resourceVersion"),
    ("regarding.uid", "involvedObject.uid"),
    ("reportingController", "reportingComponent"),
    ("type", "type"),
];

/// The path under which a field that a selector names is stored; None for one that the resource does not select by.
pub fn stored_path<'a>(resource: &Resource, path: &'a str) -> Option<&'a str> {
    let place = (&*resource.group, &*resource.plural);
    match path {
        "metadata.name" => return Some(path),
        // Kinds with rules of their own name what they know, and these have no namespace.
        "metadata.namespace" => {
            let unknown = matches!(
                place,
                ("", "nodes" | "namespaces") | ("certificates.k8s.io", _) | ("resource.k8s.io", "resourceslices")
            );
            return (!unknown).then_some(path);
        }
        // What the first clients called it.
        "spec.host" if place == ("", "pods") => return Some("spec.nodeName"),
        _ => {}
    }
    if place == ("events.k8s.io", "events") {
        return NEW_EVENT_FIELDS.iter().find(|(new, _)| *new == path).map(|(_, stored)| *stored);
    }
    selectable(resource).contains(&path).then_some(path)
}

/// The values of an object's selectable fields, as selectors compare them.
pub fn of<'a>(resource: &'a Resource, object: &Value) -> Vec<(&'a str, String)> {
    if let Some(definition) = &resource.definition {
        return definition.fields(object);
    }
    // Events of both groups are stored as core events.
    let stored = if &*resource.plural == "events" { EVENT_FIELDS } else { selectable(resource) };
    stored.iter().map(|path| (*path, value(object, path))).collect()
}

fn value(object: &Value, path: &str) -> String {
    let at = |path: &str| path.split('.').fold(object, |value, part| &value[part]);
    match (path, at(path)) {
        // An event's source is the component; older events carry it in another field.
        ("source", source) => {
            let component = source["component"].as_str().unwrap_or_default();
            if component.is_empty() {
                object["reportingComponent"].as_str().unwrap_or_default().to_owned()
            } else {
                component.to_owned()
            }
        }
        (_, Value::String(text)) => text.clone(),
        (_, Value::Bool(truth)) => truth.to_string(),
        (_, Value::Number(number)) => number.to_string(),
        ("spec.unschedulable" | "spec.hostNetwork", _) => "false".into(),
        ("status.replicas" | "status.successful", _) => "0".into(),
        ("status.podIPs", Value::Array(ips)) => {
            ips.iter().filter_map(|ip| ip["ip"].as_str()).collect::<Vec<_>>().join(",")
        }
        _ => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::resource::Resources;

    #[test]
    fn fields_are_found_under_the_names_of_each_version() {
        let of = |group: &str, plural: &str| Resources::built_in().lookup(group, "v1", plural).expect("it is served");
        assert_eq!(stored_path(&of("events.k8s.io", "events"), "regarding.name"), Some("involvedObject.name"));
        assert_eq!(stored_path(&of("events.k8s.io", "events"), "involvedObject.name"), None);
        assert_eq!(stored_path(&of("", "events"), "involvedObject.name"), Some("involvedObject.name"));
        assert_eq!(stored_path(&of("", "pods"), "spec.host"), Some("spec.nodeName"));
        assert_eq!(stored_path(&of("", "nodes"), "metadata.namespace"), None);
        assert_eq!(stored_path(&of("", "configmaps"), "metadata.namespace"), Some("metadata.namespace"));
    }
}
