//! The group without a name.

use serde_json::{Value, json};

use super::{Object, below, each, has, inside, made, pod, set, set_unsaid, text};

pub(super) fn apply(plural: &str, object: &mut Object) {
    match plural {
        "pods" => pod::pod(object),
        "podtemplates" => {
            if let Some(template) = made(object, "template") {
                pod::template(template);
            }
        }
        "replicationcontrollers" => replication_controller(object),
        "services" => service(object),
        "secrets" => {
            string_data(object);
            set(object, "type", "Opaque");
        }
        "endpoints" => {
            for subset in each(object, "subsets") {
                each(subset, "ports").for_each(|port| set(port, "protocol", "TCP"));
            }
        }
        "nodes" => node(object),
        "limitranges" => {
            if let Some(spec) = inside(object, "spec") {
                each(spec, "limits").for_each(limit);
            }
        }
        "resourcequotas" => {
            if let Some(spec) = inside(object, "spec") {
                pod::whole_millis_of(spec, &["hard"]);
            }
            if let Some(status) = inside(object, "status") {
                pod::whole_millis_of(status, &["hard", "used"]);
            }
        }
        "namespaces" => {
            phase(object, "Active");
            said_name(object);
        }
        "persistentvolumes" => {
            phase(object, "Pending");
            let Some(spec) = made(object, "spec") else { return };
            pod::whole_millis_of(spec, &["capacity"]);
            set(spec, "persistentVolumeReclaimPolicy", "Retain");
            set_unsaid(spec, "volumeMode", "Filesystem");
            pod::volume_source(spec);
        }
        "persistentvolumeclaims" => {
            phase(object, "Pending");
            let Some(spec) = made(object, "spec") else { return };
            claim(spec);
            if let Some(status) = inside(object, "status") {
                pod::whole_millis_of(status, &["capacity", "allocatedResources"]);
            }
        }
        _ => {}
    }
}

/// A secret's texts become data: they are only another way to write it.
fn string_data(object: &mut Object) {
    use base64::Engine as _;
    let Some(Value::Object(texts)) = object.remove("stringData") else { return };
    if texts.is_empty() {
        return;
    }
    let Some(data) = made(object, "data") else { return };
    for (key, text) in texts {
        let packed = base64::engine::general_purpose::STANDARD.encode(text.as_str().unwrap_or_default());
        data.insert(key, packed.into());
    }
}

/// A namespace can be selected by its name: the label always says it.
pub fn name_label(namespace: &mut Value) {
    if let Some(object) = namespace.as_object_mut() {
        said_name(object);
    }
}

fn said_name(namespace: &mut Object) {
    let Some(metadata) = inside(namespace, "metadata") else { return };
    // One that is called by a stem has no name yet.
    let Some(name) = metadata.get("name").filter(|name| name.as_str().is_some_and(|n| !n.is_empty())).cloned() else {
        return;
    };
    if let Some(labels) = made(metadata, "labels") {
        labels.insert("kubernetes.io/metadata.name".into(), name);
    }
}

/// Where an object of which nothing is known yet stands, also when a client takes that out of its status.
fn phase(object: &mut Object, first: &str) {
    if let Some(status) = made(object, "status") {
        set(status, "phase", first);
    }
}

pub(super) fn claim(spec: &mut Object) {
    set_unsaid(spec, "volumeMode", "Filesystem");
    if let Some(resources) = inside(spec, "resources") {
        pod::whole_millis_of(resources, &["limits", "requests"]);
    }
}

fn replication_controller(object: &mut Object) {
    let Some(spec) = made(object, "spec") else { return };
    set(spec, "replicas", 1);
    let Some(template) = inside(spec, "template") else { return };
    pod::template(template);
    let Some(labels) = super::template_labels(spec) else { return };
    if super::is_empty(spec, "selector") {
        spec.insert("selector".into(), labels.clone());
    }
    super::labels_like(object, labels);
}

fn service(object: &mut Object) {
    let Some(spec) = made(object, "spec") else { return };
    set(spec, "sessionAffinity", "None");
    match text(spec, "sessionAffinity") {
        "None" => drop(spec.remove("sessionAffinityConfig")),
        "ClientIP" => {
            if let Some(address) = made(spec, "sessionAffinityConfig").and_then(|c| made(c, "clientIP")) {
                set(address, "timeoutSeconds", 10_800);
            }
        }
        _ => {}
    }
    set(spec, "type", "ClusterIP");
    for port in each(spec, "ports") {
        set(port, "protocol", "TCP");
        let number = port.get("port").cloned().unwrap_or(json!(0));
        if port.get("targetPort").is_none_or(|t| t.is_null() || t == 0 || t == "") {
            port.insert("targetPort".into(), number);
        }
    }
    let kind = text(spec, "type").to_owned();
    let external = spec.get("externalIPs").and_then(Value::as_array).is_some_and(|l| !l.is_empty());
    if matches!(&*kind, "NodePort" | "LoadBalancer") || kind == "ClusterIP" && external {
        set(spec, "externalTrafficPolicy", "Cluster");
    }
    if matches!(&*kind, "NodePort" | "LoadBalancer" | "ClusterIP") && !has(spec, "internalTrafficPolicy") {
        spec.insert("internalTrafficPolicy".into(), "Cluster".into());
    }
    if kind == "LoadBalancer" {
        set(spec, "allocateLoadBalancerNodePorts", true);
        if let Some(balancer) = below(object, &["status", "loadBalancer"]) {
            for ingress in each(balancer, "ingress").filter(|i| has(i, "ip")) {
                set_unsaid(ingress, "ipMode", "VIP");
            }
        }
    }
}

fn node(object: &mut Object) {
    if let Some(spec) = inside(object, "spec") {
        super::pair(spec, "podCIDR", "podCIDRs", |range| range, Value::clone);
    }
    let Some(status) = inside(object, "status") else { return };
    pod::whole_millis_of(status, &["capacity", "allocatable"]);
    if let (false, Some(capacity)) = (has(status, "allocatable"), status.get("capacity").cloned()) {
        status.insert("allocatable".into(), capacity);
    }
}

/// What a range for containers leaves open: the default limit is the most, the default request the default limit, and
/// without one the least.
fn limit(limit: &mut Object) {
    pod::whole_millis_of(limit, &["max", "min", "default", "defaultRequest", "maxLimitRequestRatio"]);
    if text(limit, "type") != "Container" {
        return;
    }
    for (from, to) in [("max", "default"), ("default", "defaultRequest"), ("min", "defaultRequest")] {
        let amounts = limit.get(from).and_then(Value::as_object).filter(|a| !a.is_empty()).cloned();
        let Some(amounts) = amounts else { continue };
        let Some(target) = made(limit, to) else { continue };
        for (name, amount) in amounts {
            set(target, &name, amount);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn defaulted(plural: &str, mut value: Value) -> Value {
        apply(plural, value.as_object_mut().unwrap());
        value
    }

    #[test]
    fn a_limit_range_for_containers_completes_itself() {
        let limits = json!([{"type": "Container", "max": {"cpu": "2"}, "min": {"memory": "1Mi"}}, {"type": "Pod", "max": {"cpu": "2"}}]);
        let done = defaulted("limitranges", json!({"spec": {"limits": limits}}));
        assert_eq!(done["spec"]["limits"][0]["default"], json!({"cpu": "2"}));
        assert_eq!(done["spec"]["limits"][0]["defaultRequest"], json!({"cpu": "2", "memory": "1Mi"}));
        assert_eq!(done["spec"]["limits"][1], json!({"type": "Pod", "max": {"cpu": "2"}}));
    }

    #[test]
    fn amounts_are_whole_thousandths() {
        let tiny = json!({"cpu": "100u"});
        let quota = defaulted("resourcequotas", json!({"spec": {"hard": tiny}}));
        assert_eq!(quota["spec"]["hard"], json!({"cpu": "1m"}));
        for (plural, key) in [
            ("resourcequotas", "hard"),
            ("resourcequotas", "used"),
            ("persistentvolumeclaims", "capacity"),
            ("persistentvolumeclaims", "allocatedResources"),
        ] {
            let done = defaulted(plural, json!({"spec": {}, "status": {key: tiny}}));
            assert_eq!(done["status"][key], json!({"cpu": "1m"}), "{plural} {key}");
        }
        let claim =
            defaulted("persistentvolumeclaims", json!({"spec": {"resources": {"requests": {"storage": "1500u"}}}}));
        assert_eq!(claim["spec"]["resources"]["requests"], json!({"storage": "2m"}));
        let pod =
            defaulted("pods", json!({"spec": {"overhead": tiny, "resources": {"limits": tiny}, "containers": []}}));
        assert_eq!(
            (&pod["spec"]["overhead"]["cpu"], &pod["spec"]["resources"]["limits"]["cpu"]),
            (&json!("1m"), &json!("1m"))
        );
    }

    /// They became data only when the object was stored, so that nobody owned it and no webhook saw it.
    #[test]
    fn texts_of_a_secret_are_its_data_at_once() {
        let said = json!({"data": {"a": "YQ==", "b": "Yg=="}, "stringData": {"b": "plain", "c": ""}});
        let done = defaulted("secrets", said);
        assert_eq!(done, json!({"data": {"a": "YQ==", "b": "cGxhaW4=", "c": ""}, "type": "Opaque"}));
        for nothing in [json!({"stringData": {}}), json!({"stringData": null}), json!({})] {
            assert_eq!(defaulted("secrets", nothing), json!({"type": "Opaque"}));
        }
    }

    /// The label came only when the object was stored, and nobody owned it.
    #[test]
    fn a_namespace_says_its_name_in_a_label_at_once() {
        const KEY: &str = "kubernetes.io/metadata.name";
        let labels = |metadata: Value| defaulted("namespaces", json!({"metadata": metadata}))["metadata"].take();
        assert_eq!(labels(json!({"name": "a"}))["labels"], json!({KEY: "a"}));
        let said = json!({"name": "a", "labels": {KEY: "b", "team": "c"}});
        assert_eq!(labels(said)["labels"], json!({KEY: "a", "team": "c"}));
        assert_eq!(labels(json!({"generateName": "a"})), json!({"generateName": "a"}));
    }

    #[test]
    fn what_has_a_phase_is_never_without() {
        for (plural, first) in
            [("namespaces", "Active"), ("persistentvolumes", "Pending"), ("persistentvolumeclaims", "Pending")]
        {
            for status in [json!(null), json!({}), json!({"phase": ""}), json!({"phase": null})] {
                let done = defaulted(plural, json!({"spec": {}, "status": status}));
                assert_eq!(done["status"], json!({"phase": first}), "{plural}");
            }
            let done = defaulted(plural, json!({"spec": {}, "status": {"phase": "Other"}}));
            assert_eq!(done["status"]["phase"], "Other", "{plural}");
        }
    }

    #[test]
    fn a_service_says_how_traffic_reaches_it() {
        let done = defaulted(
            "services",
            json!({"spec": {"externalIPs": ["1.2.3.4"], "ports": [{"port": 80}],
            "sessionAffinityConfig": {"clientIP": {}}}}),
        );
        let spec = json!({"type": "ClusterIP", "sessionAffinity": "None", "externalTrafficPolicy": "Cluster",
            "internalTrafficPolicy": "Cluster", "externalIPs": ["1.2.3.4"],
            "ports": [{"port": 80, "targetPort": 80, "protocol": "TCP"}]});
        assert_eq!(done["spec"], spec);
        let done = defaulted("services", json!({"spec": {"type": "ExternalName", "externalName": "a"}}));
        assert_eq!(done["spec"], json!({"type": "ExternalName", "externalName": "a", "sessionAffinity": "None"}));
    }

    #[test]
    fn a_replication_controller_selects_what_it_makes() {
        let template = json!({"metadata": {"labels": {"a": "b"}}, "spec": {}});
        let done = defaulted("replicationcontrollers", json!({"spec": {"template": template}}));
        assert_eq!(done["spec"]["selector"], json!({"a": "b"}));
        assert_eq!(done["metadata"]["labels"], json!({"a": "b"}));
        assert_eq!(done["spec"]["replicas"], 1);
    }
}
