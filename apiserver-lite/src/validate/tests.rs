//! What is told of an update as a whole: which checks run, how often, and what counts as no change.

use serde_json::{Value, json};

use super::update;
use crate::field_error::Rules;
use crate::resource::Resources;

/// Complaints about a change, each with its field before it.
fn told(kind: (&str, &str, &str), new: &Value, old: &Value) -> Vec<String> {
    let resource = Resources::built_in().lookup(kind.0, kind.1, kind.2).expect("a built-in kind");
    let found = update(&resource, "", new, old, Rules::default());
    found.into_iter().map(|e| format!("{}: {}", e.field, e.message)).collect()
}

#[test]
fn what_comes_back_as_it_was_read_is_no_change() {
    let pods = |container: Value| json!({"spec": {"containers": [container]}});
    let (short, long) = (pods(json!({"name": "a"})), pods(json!({"name": "a", "resources": {}})));
    let pairs = [
        (("apps", "v1", "statefulsets"), json!({"replicas": 1}), json!({"replicas": 1, "serviceName": ""})),
        (("batch", "v1", "jobs"), json!({"template": short}), json!({"template": long})),
        (("resource.k8s.io", "v1", "resourceclaims"), json!({}), json!({"devices": {}})),
        (
            ("resource.k8s.io", "v1", "resourceclaimtemplates"),
            json!({"spec": {}}),
            json!({"metadata": {}, "spec": {"devices": {}}}),
        ),
        (("", "v1", "persistentvolumes"), json!({"iscsi": {"iqn": "a"}}), json!({"iscsi": {"iqn": "a", "lun": 0}})),
    ];
    let changes = |told: Vec<String>| -> Vec<String> {
        told.into_iter().filter(|t| ["immutable", "forbidden", "Forbidden"].iter().any(|w| t.contains(w))).collect()
    };
    for (kind, stored, sent) in pairs {
        let object = |spec: &Value| json!({"metadata": {"name": "a"}, "spec": spec});
        for (new, old) in [(&sent, &stored), (&stored, &sent)] {
            assert_eq!(changes(told(kind, &object(new), &object(old))), [""; 0], "{kind:?}");
        }
    }
    let job = |name: &str| json!({"metadata": {"name": "a"}, "spec": {"template": pods(json!({"name": name}))}});
    let found = changes(told(("batch", "v1", "jobs"), &job("b"), &job("a")));
    assert!(found.len() == 1 && found[0].starts_with("spec.template: "), "a change is one: {found:?}");
}

#[test]
fn metadata_is_checked_as_often_as_upstream_does() {
    let object = json!({"metadata": {"name": "a", "labels": {"a": "-"}}, "spec": {}});
    for (kind, times) in [
        (("apps", "v1", "replicasets"), 4),
        (("apps", "v1", "deployments"), 3),
        (("batch", "v1", "jobs"), 4),
        (("", "v1", "replicationcontrollers"), 4),
        (("", "v1", "namespaces"), 4),
        (("", "v1", "nodes"), 4),
        (("", "v1", "persistentvolumeclaims"), 5),
        (("", "v1", "limitranges"), 3),
        (("storage.k8s.io", "v1", "storageclasses"), 4),
        (("node.k8s.io", "v1", "runtimeclasses"), 4),
        (("storage.k8s.io", "v1", "csidrivers"), 3),
        (("networking.k8s.io", "v1", "servicecidrs"), 4),
    ] {
        let labels = told(kind, &object, &object).into_iter().filter(|t| t.starts_with("metadata.labels: ")).count();
        assert_eq!(labels, times, "{kind:?}");
    }
}

#[test]
fn only_some_groups_refuse_finalizers_without_a_domain() {
    let object = json!({"metadata": {"name": "a", "finalizers": ["plain"]}, "spec": {}});
    let count = |kind: (&str, &str, &str)| {
        let complaints = told(kind, &object, &object).into_iter();
        complaints.filter(|t| t.starts_with("metadata.finalizers[0]: ")).count()
    };
    assert_eq!(count(("", "v1", "configmaps")), 2);
    for kind in [
        ("coordination.k8s.io", "v1", "leases"),
        ("admissionregistration.k8s.io", "v1", "validatingwebhookconfigurations"),
        ("apiregistration.k8s.io", "v1", "apiservices"),
    ] {
        assert_eq!(count(kind), 0, "{kind:?}");
    }
}

#[test]
fn a_changed_object_has_to_be_right_as_a_whole() {
    let node = |ranges: Value| json!({"metadata": {"name": "a"}, "spec": {"podCIDRs": ranges}});
    let found = told(("", "v1", "nodes"), &node(json!(["x"])), &node(json!([])));
    assert!(found.iter().any(|t| t.starts_with("spec.podCIDRs[0]: Invalid value: \"x\"")), "{found:?}");
    let class = |topologies: Value| {
        json!({"metadata": {"name": "a"}, "provisioner": "a.b/c", "volumeBindingMode": "Immediate",
            "allowedTopologies": topologies})
    };
    let address = |parent: Value| json!({"metadata": {"name": "10.0.0.1"}, "spec": {"parentRef": parent}});
    let found = told(("networking.k8s.io", "v1", "ipaddresses"), &address(json!({})), &address(json!({})));
    assert_eq!(found, ["spec.parentRef.resource: Required value", "spec.parentRef.name: Required value"]);
    let terms = json!([{"matchLabelExpressions": [{"key": "-", "values": []}]}]);
    let found = told(("storage.k8s.io", "v1", "storageclasses"), &class(terms), &class(Value::Null));
    assert_eq!(found.len(), 2, "{found:?}");
}

#[test]
fn the_class_of_an_ingress_is_compared_when_it_is_made() {
    let ingress = json!({
        "metadata": {"name": "a", "generation": 1, "annotations": {"kubernetes.io/ingress.class": "x"}},
        "spec": {"ingressClassName": "y", "defaultBackend": {"service": {"name": "s", "port": {"number": 80}}}},
    });
    let resource = Resources::built_in().lookup("networking.k8s.io", "v1", "ingresses").expect("a built-in kind");
    assert_eq!(super::create(&resource, &ingress, Rules::default()).len(), 1);
    assert_eq!(told(("networking.k8s.io", "v1", "ingresses"), &ingress, &ingress), [""; 0]);
}
