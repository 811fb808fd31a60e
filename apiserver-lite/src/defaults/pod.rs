//! Pods, and what workloads make them from.

use proto::quantity::Quantity;
use serde_json::{Value, json};

use super::{Object, below, each, inside, made, set, set_absent, set_number, text};

/// A pod itself, which has more defaults than a template for one.
pub(super) fn pod(object: &mut Object) {
    if let Some(spec) = made(object, "spec") {
        for list in ["containers", "initContainers"] {
            each(spec, list).for_each(limits_are_requests);
        }
        of_the_whole(spec);
        set(spec, "enableServiceLinks", true);
        if spec.get("hostNetwork") == Some(&Value::Bool(true)) {
            for list in ["containers", "initContainers"] {
                each(spec, list).for_each(host_ports);
            }
        }
    }
    template(object);
    status(object);
}

/// What the status of a pod says.
pub(super) fn status(object: &mut Object) {
    if let Some(status) = inside(object, "status") {
        super::pair(status, "podIP", "podIPs", |ip| json!({"ip": ip}), |item| item["ip"].clone());
        super::pair(status, "hostIP", "hostIPs", |ip| json!({"ip": ip}), |item| item["ip"].clone());
    }
}

/// A template for pods.
pub(super) fn template(object: &mut Object) {
    let Some(spec) = made(object, "spec") else { return };
    set(spec, "dnsPolicy", "ClusterFirst");
    set(spec, "restartPolicy", "Always");
    made(spec, "securityContext");
    set(spec, "terminationGracePeriodSeconds", 30);
    set(spec, "schedulerName", "default-scheduler");
    // The second is the older name of the first.
    let account = [text(spec, "serviceAccountName"), text(spec, "serviceAccount")].into_iter().find(|a| !a.is_empty());
    if let Some(account) = account.map(Value::from) {
        spec.insert("serviceAccountName".into(), account.clone());
        spec.insert("serviceAccount".into(), account);
    }
    whole_millis_of(spec, &["overhead"]);
    if let Some(resources) = inside(spec, "resources") {
        whole_millis_of(resources, &["limits", "requests"]);
    }
    for list in ["initContainers", "containers", "ephemeralContainers"] {
        each(spec, list).for_each(container);
    }
    each(spec, "volumes").for_each(volume);
}

/// A limit without a request is also the request.
fn limits_are_requests(container: &mut Object) {
    let Some(resources) = inside(container, "resources") else { return };
    let Some(limits) = resources.get("limits").and_then(Value::as_object).filter(|l| !l.is_empty()).cloned() else {
        return;
    };
    let Some(requests) = made(resources, "requests") else { return };
    for (name, amount) in limits {
        set(requests, &name, amount);
    }
}

/// Limits and requests of a pod as a whole that says something of either. Of huge pages it may use what its containers
/// may; where it has limits it asks for what its containers ask for, else for its limits.
fn of_the_whole(spec: &mut Object) {
    let says = |kind: &str| spec.get("resources").is_some_and(|r| r[kind].as_object().is_some_and(|a| !a.is_empty()));
    if says("limits") || says("requests") {
        pages_of_the_whole(spec);
    }
    let limits = spec.get("resources").and_then(|r| r.get("limits")).and_then(Value::as_object).cloned();
    let Some(limits) = limits.filter(|l| !l.is_empty()) else { return };
    let of_containers = pod_requests(&Value::Object(spec.clone()));
    let Some(requests) = inside(spec, "resources").and_then(|r| made(r, "requests")) else { return };
    for (name, sum) in of_containers {
        if matches!(name.as_str(), "cpu" | "memory") {
            set(requests, &name, sum.to_string());
        }
    }
    for (name, amount) in limits.into_iter().filter(|(name, _)| is_of_pods(name)) {
        set(requests, &name, amount);
    }
}

fn pages_of_the_whole(spec: &mut Object) {
    let pages = pod_limits(&Value::Object(spec.clone())).into_iter().filter(|(name, _)| name.starts_with("hugepages-"));
    let mut pages = pages.peekable();
    if pages.peek().is_none() {
        return;
    }
    let Some(limits) = inside(spec, "resources").and_then(|r| made(r, "limits")) else { return };
    for (name, sum) in pages {
        set(limits, &name, sum.to_string());
    }
}

fn host_ports(container: &mut Object) {
    for port in each(container, "ports") {
        if let Some(number) = port.get("containerPort").and_then(Value::as_i64) {
            set_number(port, "hostPort", number);
        }
    }
}

/// Whether an image stands for whatever is newest: tagged so, or neither tagged nor fixed by a digest. A text that
/// names no image does not.
fn is_latest(image: &str) -> bool {
    let (name, digest) = image.split_once('@').map_or((image, false), |(name, _)| (name, true));
    let last = name.rsplit('/').next().unwrap_or_default();
    let tag = last.split_once(':').map(|(_, tag)| tag);
    let path = &name[..name.len() - tag.map_or(0, |t| t.len() + 1)];
    // A first part with a dot, a port or capitals is the registry.
    let repository = match path.split_once('/') {
        Some((host, rest)) if host.contains(['.', ':']) || host == "localhost" || host.to_lowercase() != host => rest,
        _ => path,
    };
    let is_part = |part: &str| {
        let inside = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || matches!(b, b'.' | b'_' | b'-');
        let edge = |b: Option<u8>| b.is_some_and(|b| b.is_ascii_lowercase() || b.is_ascii_digit());
        part.bytes().all(inside) && edge(part.bytes().next()) && edge(part.bytes().last())
    };
    repository.split('/').all(is_part) && tag.map_or(!digest, |tag| tag == "latest")
}

fn pull_policy(image: &str) -> &'static str {
    if is_latest(image) { "Always" } else { "IfNotPresent" }
}

fn container(map: &mut Object) {
    let policy = pull_policy(text(map, "image"));
    set(map, "imagePullPolicy", policy);
    set(map, "terminationMessagePath", "/dev/termination-log");
    set(map, "terminationMessagePolicy", "File");
    each(map, "ports").for_each(|port| set(port, "protocol", "TCP"));
    for variable in each(map, "env") {
        match inside(variable, "valueFrom") {
            Some(source) => {
                references(source);
                if let Some(key) = inside(source, "fileKeyRef") {
                    set(key, "optional", false);
                }
            }
            None => drop(variable.remove("valueFrom")),
        }
    }
    for probe in ["livenessProbe", "readinessProbe", "startupProbe"] {
        if let Some(probe) = inside(map, probe) {
            set_number(probe, "timeoutSeconds", 1);
            set_number(probe, "periodSeconds", 10);
            set_number(probe, "successThreshold", 1);
            set_number(probe, "failureThreshold", 3);
            handler(probe);
        }
    }
    for hook in ["postStart", "preStop"] {
        if let Some(hook) = below(map, &["lifecycle", hook]) {
            handler(hook);
        }
    }
    if let Some(resources) = inside(map, "resources") {
        whole_millis_of(resources, &["limits", "requests"]);
    }
}

/// Amounts that are properties are rounded up to a thousandth.
pub(super) fn whole_millis_of(map: &mut Object, names: &[&str]) {
    for name in names {
        if let Some(amounts) = inside(map, name) {
            whole_millis(amounts);
        }
    }
}

fn whole_millis(amounts: &mut Object) {
    for (_, amount) in amounts.iter_mut() {
        let exact = amount.as_str().and_then(|t| t.parse::<Quantity>().ok());
        if let Some(exact) = exact {
            let rounded = Quantity::from_milli(exact.milli_value(), exact.format());
            if rounded > exact && exact.milli_value() < i64::MAX {
                *amount = rounded.to_string().into();
            }
        }
    }
}

fn handler(map: &mut Object) {
    if let Some(get) = inside(map, "httpGet") {
        set(get, "path", "/");
        set(get, "scheme", "HTTP");
    }
    if let Some(call) = inside(map, "grpc") {
        set(call, "service", "");
    }
}

/// References to fields of the pod.
fn references(source: &mut Object) {
    if let Some(reference) = inside(source, "fieldRef") {
        set(reference, "apiVersion", "v1");
    }
    if let Some(reference) = inside(source, "resourceFieldRef") {
        set(reference, "divisor", "0");
    }
}

/// Sources that volumes of pods and persistent volumes share.
pub(super) fn volume_source(map: &mut Object) {
    const TEXTS: [(&str, &[(&str, &str)]); 5] = [
        ("hostPath", &[("type", "")]),
        ("iscsi", &[("iscsiInterface", "default")]),
        ("rbd", &[("pool", "rbd"), ("user", "admin"), ("keyring", "/etc/ceph/keyring")]),
        ("azureDisk", &[("cachingMode", "ReadWrite"), ("kind", "Shared"), ("fsType", "ext4")]),
        ("scaleIO", &[("storageMode", "ThinProvisioned"), ("fsType", "xfs")]),
    ];
    for (source, fields) in TEXTS {
        if let Some(source) = inside(map, source) {
            fields.iter().for_each(|(key, text)| set(source, key, *text));
        }
    }
    if let Some(disk) = inside(map, "azureDisk") {
        set(disk, "readOnly", false);
    }
}

fn volume(map: &mut Object) {
    // A volume without a source is an empty folder.
    if map.iter().all(|(key, value)| key == "name" || value.is_null()) {
        map.insert("emptyDir".into(), json!({}));
    }
    volume_source(map);
    for source in ["secret", "configMap", "downwardAPI", "projected"] {
        if let Some(source) = inside(map, source) {
            set(source, "defaultMode", 0o644);
        }
    }
    if let Some(downward) = inside(map, "downwardAPI") {
        each(downward, "items").for_each(references);
    }
    if let Some(image) = inside(map, "image") {
        let policy = pull_policy(text(image, "reference"));
        set(image, "pullPolicy", policy);
    }
    if let Some(claim) = below(map, &["ephemeral", "volumeClaimTemplate", "spec"]) {
        super::core::claim(claim);
    }
    let Some(projected) = inside(map, "projected") else { return };
    for source in each(projected, "sources") {
        if let Some(token) = inside(source, "serviceAccountToken") {
            set_absent(token, "expirationSeconds", 3600);
        }
        if let Some(certificate) = inside(source, "podCertificate") {
            set_absent(certificate, "maxExpirationSeconds", 86_400);
        }
        if let Some(downward) = inside(source, "downwardAPI") {
            each(downward, "items").for_each(references);
        }
    }
}

/// A claim made from a template inside another object.
pub(super) fn embedded_claim(claim: &mut Object) {
    set(claim, "apiVersion", "v1");
    set(claim, "kind", "PersistentVolumeClaim");
    if let Some(spec) = made(claim, "spec") {
        super::core::claim(spec);
    }
    if let Some(status) = made(claim, "status") {
        set(status, "phase", "Pending");
    }
}

/// Whether a resource can be asked for by a pod as a whole.
pub fn is_of_pods(name: &str) -> bool {
    matches!(name, "cpu" | "memory") || name.starts_with("hugepages-")
}

/// `Guaranteed`, `Burstable` or `BestEffort`: from the requests and limits of a pod as a whole where it has any, else from
/// those of its containers.
pub fn qos_class(pod: &Value) -> &'static str {
    let spec = &pod["spec"];
    let containers =
        ["containers", "initContainers"].into_iter().flat_map(|l| spec[l].as_array().into_iter().flatten());
    let has =
        |kind: &str| spec["resources"][kind].as_object().is_some_and(|all| all.keys().any(|name| is_of_pods(name)));
    let whole = (has("requests") || has("limits")).then_some(spec);
    let counted = containers.filter(|_| whole.is_none()).chain(whole);
    let (mut any, mut guaranteed) = (false, true);
    for container in counted {
        for resource in ["cpu", "memory"] {
            let amount = |kind: &str| {
                let text = container["resources"][kind][resource].as_str()?;
                text.parse::<proto::quantity::Quantity>().ok().filter(|q| !q.is_zero())
            };
            let (limit, request) = (amount("limits"), amount("requests"));
            any |= limit.is_some() || request.is_some();
            guaranteed &= limit.is_some() && request.is_none_or(|r| Some(r) == limit);
        }
    }
    match (any, guaranteed) {
        (false, _) => "BestEffort",
        (true, true) => "Guaranteed",
        (true, false) => "Burstable",
    }
}

/// Amounts by resource.
type Amounts = Vec<(String, Quantity)>;

/// What a pod's containers ask for together, by resource. Init containers run one after the other and before the rest,
/// so only the largest counts; those that restart run beside all that follow.
pub fn pod_requests(spec: &Value) -> Amounts {
    of_containers(spec, "requests")
}

/// What a pod's containers may use together, counted the same way.
pub fn pod_limits(spec: &Value) -> Amounts {
    of_containers(spec, "limits")
}

fn of_containers(spec: &Value, kind: &str) -> Amounts {
    let mut total = Amounts::new();
    let amounts = |container: &Value| -> Amounts {
        let map = container["resources"][kind].as_object().into_iter().flatten();
        map.filter_map(|(name, amount)| Some((name.to_string(), amount.as_str()?.parse().ok()?))).collect()
    };
    let add = |to: &mut Amounts, more: &[(String, Quantity)]| {
        for (name, amount) in more {
            match to.iter_mut().find(|(n, _)| n == name) {
                Some((_, sum)) => sum.add(*amount),
                None => to.push((name.clone(), *amount)),
            }
        }
    };
    for container in spec["containers"].as_array().into_iter().flatten() {
        add(&mut total, &amounts(container));
    }
    let (mut sidecars, mut peak) = (Amounts::new(), Amounts::new());
    for container in spec["initContainers"].as_array().into_iter().flatten() {
        let own = amounts(container);
        let mut here = sidecars.clone();
        add(&mut here, &own);
        if container["restartPolicy"] == "Always" {
            add(&mut total, &own);
            sidecars = here.clone();
        }
        for (name, amount) in here {
            match peak.iter_mut().find(|(n, _)| *n == name) {
                Some((_, most)) => *most = amount.max(*most),
                None => peak.push((name, amount)),
            }
        }
    }
    for (name, amount) in peak {
        match total.iter_mut().find(|(n, _)| *n == name) {
            Some((_, sum)) => *sum = amount.max(*sum),
            None => total.push((name, amount)),
        }
    }
    total
}

#[cfg(test)]
mod tests {
    use super::*;

    fn defaulted(spec: Value, whole: fn(&mut Object)) -> Value {
        let mut object = json!({"spec": spec});
        whole(object.as_object_mut().unwrap());
        object["spec"].take()
    }

    #[test]
    fn a_pod_has_defaults_that_its_template_has_not() {
        let spec = json!({"hostNetwork": true, "containers": [{"name": "c", "image": "nginx:1",
            "resources": {"limits": {"cpu": "1"}}, "ports": [{"containerPort": 80}]}, null]});
        let pod = defaulted(spec.clone(), pod);
        assert_eq!(pod["enableServiceLinks"], true);
        assert_eq!(pod["containers"][0]["resources"]["requests"], json!({"cpu": "1"}));
        assert_eq!(pod["containers"][0]["ports"], json!([{"containerPort": 80, "hostPort": 80, "protocol": "TCP"}]));
        assert_eq!(pod["containers"][1]["terminationMessagePolicy"], "File");
        let template = defaulted(spec, template);
        assert_eq!(template["enableServiceLinks"], Value::Null);
        assert_eq!(template["containers"][0]["resources"]["requests"], Value::Null);
        assert_eq!(template["containers"][0]["ports"], json!([{"containerPort": 80, "protocol": "TCP"}]));
    }

    #[test]
    fn images_without_tag_or_digest_are_pulled_always() {
        let newest = ["nginx", "nginx:latest", "a.b:5000/c/d", "nginx:latest@sha256:00", "Host/nginx"];
        let fixed = ["nginx:1", "nginx@sha256:00", "", "Nginx/x y", "a.b:5000/c:v1", "a//b"];
        assert_eq!(newest.map(is_latest), [true; 5]);
        assert_eq!(fixed.map(is_latest), [false; 6]);
    }

    #[test]
    fn a_pod_as_a_whole_asks_for_what_its_containers_ask_for() {
        let of = |cpu: &str| json!({"name": "c", "resources": {"requests": {"cpu": cpu}}});
        let spec = json!({"resources": {"limits": {"cpu": "4", "memory": "1Gi"}},
            "initContainers": [of("3")], "containers": [of("1"), of("500m")]});
        assert_eq!(defaulted(spec, pod)["resources"]["requests"], json!({"cpu": "3", "memory": "1Gi"}));
    }

    /// Such a pod was refused, since as a whole it asked for no huge pages.
    #[test]
    fn a_pod_as_a_whole_has_the_huge_pages_of_its_containers() {
        let of = |pages: &str| json!({"name": "c", "resources": {"limits": {"hugepages-2Mi": pages, "cpu": "1"}}});
        let whole = |resources: Value| {
            let spec = json!({"resources": resources, "containers": [of("2Mi"), of("4Mi")]});
            defaulted(spec, pod)["resources"].take()
        };
        let pages = json!({"hugepages-2Mi": "6Mi"});
        let asked = json!({"cpu": "3", "hugepages-2Mi": "6Mi"});
        assert_eq!(whole(json!({"requests": {"cpu": "3"}})), json!({"limits": pages, "requests": asked}));
        assert_eq!(whole(json!({})), json!({}));
        let more = whole(json!({"limits": {"hugepages-2Mi": "8Mi"}}));
        assert_eq!(more["limits"], json!({"hugepages-2Mi": "8Mi"}));
        assert_eq!(more["requests"], json!({"cpu": "2", "hugepages-2Mi": "8Mi"}));
    }

    #[test]
    fn what_a_pod_asks_for_as_a_whole_decides_its_class() {
        let class = |whole: Value, container: Value| {
            qos_class(&json!({"spec": {"resources": whole, "containers": [{"name": "c", "resources": container}]}}))
        };
        let both = json!({"limits": {"cpu": "1", "memory": "1Gi"}, "requests": {"cpu": "1", "memory": "1Gi"}});
        assert_eq!(class(both.clone(), json!({})), "Guaranteed");
        assert_eq!(class(json!({"requests": {"cpu": "1"}}), both.clone()), "Burstable");
        assert_eq!(class(json!({"limits": {"hugepages-2Mi": "2Mi"}}), both.clone()), "BestEffort");
        assert_eq!(class(json!({}), both), "Guaranteed");
        assert_eq!(class(json!({}), json!({})), "BestEffort");
    }

    #[test]
    fn a_volume_without_source_is_an_empty_folder() {
        let spec = json!({"containers": [], "volumes": [{"name": "a"}, {"name": "b", "iscsi": {}},
            {"name": "c", "ephemeral": {"volumeClaimTemplate": {"spec": {}}}}]});
        let volumes = defaulted(spec, template)["volumes"].take();
        assert_eq!(volumes[0], json!({"name": "a", "emptyDir": {}}));
        assert_eq!(volumes[1]["iscsi"], json!({"iscsiInterface": "default"}));
        assert_eq!(volumes[2]["ephemeral"]["volumeClaimTemplate"]["spec"], json!({"volumeMode": "Filesystem"}));
    }
}
