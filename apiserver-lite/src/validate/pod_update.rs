//! What may change of a pod that exists: by its owner, and by its subresources.

use std::sync::LazyLock;

use proto::schema::{StructId, TypeSet};
use serde_json::{Map, Name, Value, json};

use super::shapes::{NODE_TERM, NODE_TERMS};
use super::{diff, list, meta, pod, scheduling, security, text};
use crate::apply::same_struct_but;
use crate::field_error::{Report, same, same_but_resources};
use crate::go_value::shown;

const UPDATABLE: &str = "`spec.containers[*].image`,`spec.initContainers[*].image`,`spec.activeDeadlineSeconds`,\
                         `spec.tolerations` (only additions to existing tolerations),\
                         `spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it was previously negative)";

const MIRROR: &str = "kubernetes.io/config.mirror";

/// A replaced pod.
pub fn update(report: &mut Report, new: &Value, old: &Value) {
    again(report, new, old, true);
    report.at("spec", |r| spec(r, &new["spec"], &old["spec"]));
}

/// The pod as a whole, as if it were new, and what its metadata may not change.
fn again(report: &mut Report, new: &Value, old: &Value, annotations: bool) {
    report.at("metadata", |r| {
        meta::update(r, "", &new["metadata"], &old["metadata"]);
        meta::check(r, "", "pods", &new["metadata"]);
    });
    pod::check(report, new);
    if annotations {
        annotation_updates(report, new, old);
    }
}

/// Annotations that say what a pod is cannot come, go or change.
pub(super) fn annotation_updates(report: &mut Report, new: &Value, old: &Value) {
    const APP_ARMOR: &str = "container.apparmor.security.beta.kubernetes.io/";
    let (has, had) = (&new["metadata"]["annotations"], &old["metadata"]["annotations"]);
    report.down(&["metadata", "annotations"], |r| {
        let mut fixed = |key: &str, verb: &str| {
            let what = match key {
                MIRROR => "mirror pod annotation",
                key if key.starts_with(APP_ARMOR) => "AppArmor annotations",
                _ => return,
            };
            r.key(key, |r| r.forbidden(&format!("may not {verb} {what}")));
        };
        for (key, value) in had.as_object().into_iter().flatten() {
            if has[key] != *value {
                fixed(key, "remove or update");
            }
        }
        for (key, _) in has.as_object().into_iter().flatten().filter(|(key, _)| had[*key].is_null()) {
            fixed(key, "add");
        }
        security::annotations(r, has, &new["spec"]);
    });
}

fn images(report: &mut Report, new: &Value, old: &Value, name: &str) -> bool {
    if list(new, name).len() != list(old, name).len() {
        report.refuse(name, "pod updates may not add or remove containers");
        return false;
    }
    report.each(new, name, |r, container| {
        r.need(container, "image");
        super::container::image_spaces(r, container);
    });
    true
}

fn spec(report: &mut Report, new: &Value, old: &Value) {
    if !images(report, new, old, "containers") || !images(report, new, old, "initContainers") {
        return;
    }
    match (new["activeDeadlineSeconds"].as_i64(), old["activeDeadlineSeconds"].as_i64()) {
        (Some(now), _) if !(0..=i64::from(i32::MAX)).contains(&now) => {
            return report.between(new, "activeDeadlineSeconds", 0, i64::from(i32::MAX));
        }
        (Some(now), Some(before)) if before < now => {
            return report.bad("activeDeadlineSeconds", now, "must be less than or equal to previous value");
        }
        (None, Some(_)) => {
            let why = "must not update from a positive integer to nil value";
            report.bad("activeDeadlineSeconds", &Value::Null, why);
        }
        _ => {}
    }
    tolerations(report, new, old);
    for (index, gate) in list(new, "schedulingGates").iter().enumerate() {
        if !list(old, "schedulingGates").contains(gate) {
            let why = format!("only deletion is allowed, but found new scheduling gate '{}'", text(gate, "name"));
            report.at("schedulingGates", |r| r.index(index, |r| r.refuse("name", &why)));
        }
    }
    if changed_within_rules(new, old) {
        return;
    }
    let mut changed = new.clone();
    for name in ["containers", "initContainers"] {
        let containers = changed[name].as_array_mut();
        for (container, before) in containers.into_iter().flatten().zip(list(old, name)) {
            container["image"] = before["image"].clone();
        }
        if changed[name].is_null() {
            remove(&mut changed, name);
        }
    }
    for name in ["activeDeadlineSeconds", "schedulingGates", "tolerations"] {
        restore(&mut changed, old, name);
    }
    let was_negative = old["terminationGracePeriodSeconds"].as_i64().is_some_and(|g| g < 0);
    if was_negative && changed["terminationGracePeriodSeconds"] == 1 {
        restore(&mut changed, old, "terminationGracePeriodSeconds");
    }
    if !list(old, "schedulingGates").is_empty() {
        gated(report, &mut changed, old);
    }
    if !same_but_resources(&without_empty(&changed), &without_empty(old)) {
        let text = diff::lines("core.PodSpec", &without_empty(old), &without_empty(&changed));
        report.forbidden(&format!("pod updates may not change fields other than {UPDATABLE}\n{text}"));
    }
}

/// Whether nothing is another than it was but what may always change. Most updates are of this sort, and it is seen
/// without a copy; what is told apart here is looked at again with more patience.
fn changed_within_rules(new: &Value, old: &Value) -> bool {
    const FREE: &[&str] = &["containers", "initContainers", "activeDeadlineSeconds", "schedulingGates", "tolerations"];
    let set = TypeSet::built_in();
    static TYPES: LazyLock<[Option<StructId>; 2]> = LazyLock::new(|| {
        ["k8s.io.api.core.v1.PodSpec", "k8s.io.api.core.v1.Container"].map(|t| TypeSet::built_in().struct_named(t))
    });
    let [spec, container] = *TYPES;
    let same = |id: Option<StructId>, but: &[&str], new: &Value, old: &Value| {
        let parts = id.zip(new.as_object()).zip(old.as_object());
        parts.is_some_and(|((id, new), old)| same_struct_but(set, id, but, new, old))
    };
    let containers = |name: &str| {
        let (new, old) = (list(new, name), list(old, name));
        new.len() == old.len() && new.iter().zip(old).all(|(new, old)| same(container, &["image"], new, old))
    };
    same(spec, FREE, new, old) && containers("containers") && containers("initContainers")
}

fn remove(object: &mut Value, name: &str) {
    if let Some(map) = object.as_object_mut() {
        map.remove(name);
    }
}

fn restore(object: &mut Value, old: &Value, name: &str) {
    match old.get(name) {
        Some(value) => object[name] = value.clone(),
        None => remove(object, name),
    }
}

/// Empty lists and objects are the same as absent ones, at any depth but for objects that mean something by being there.
fn without_empty(spec: &Value) -> Value {
    let map: Map<String, Value> = spec
        .as_object()
        .into_iter()
        .flatten()
        .filter(|(key, value)| !value.is_null() && (!same(value, &Value::Null) || *key == "securityContext"))
        .map(|(key, value)| (key.clone(), value.clone()))
        .collect();
    Value::Object(map)
}

/// Tolerations may be added; of those that were there only the seconds may change.
fn tolerations(report: &mut Report, new: &Value, old: &Value) {
    let kept = list(old, "tolerations").iter().all(|before| {
        list(new, "tolerations").iter().any(|now| {
            let mut before = before.clone();
            restore(&mut before, now, "tolerationSeconds");
            before == *now
        })
    });
    if kept {
        scheduling::tolerations(report, new);
    } else {
        report.refuse("tolerations", "existing toleration can not be modified except its tolerationSeconds");
    }
}

/// While gates hold a pod back, where it may run can be narrowed.
fn gated(report: &mut Report, changed: &mut Value, old: &Value) {
    let (now, before) = (&changed["nodeSelector"], &old["nodeSelector"]);
    if !same(now, before) {
        if before.as_object().into_iter().flatten().any(|(key, value)| now[key] != *value) {
            let why = "only additions to spec.nodeSelector are allowed (no mutations or deletions)";
            report.bad("nodeSelector", now, why);
        }
        restore(changed, old, "nodeSelector");
    }
    let required = "requiredDuringSchedulingIgnoredDuringExecution";
    let (now, before) = (changed["affinity"]["nodeAffinity"].clone(), &old["affinity"]["nodeAffinity"]);
    if now == *before {
        if !changed["affinity"].is_object() || same(&changed["affinity"], &Value::Null) {
            restore(changed, old, "affinity");
        }
        return;
    }
    let (terms, were) = (list(&now[required], "nodeSelectorTerms"), list(&before[required], "nodeSelectorTerms"));
    report.down(&["affinity", "nodeAffinity", required, "nodeSelectorTerms"], |r| {
        if !were.is_empty() && were.len() != terms.len() {
            let why = "no additions/deletions to non-empty NodeSelectorTerms list are allowed";
            return r.invalid(shown(&json!(terms), &NODE_TERMS), why);
        }
        for (index, (term, was)) in terms.iter().zip(were).enumerate() {
            let grown = |name: &str| list(term, name).starts_with(list(was, name));
            let nothing = list(was, "matchExpressions").is_empty() && list(was, "matchFields").is_empty();
            if !grown("matchExpressions") || !grown("matchFields") || nothing && term != was {
                r.index(index, |r| {
                    r.invalid(shown(term, &NODE_TERM), "only additions are allowed (no mutations or deletions)")
                });
            }
        }
    });
    if before.is_null() {
        if let Some(affinity) = changed["affinity"].as_object_mut() {
            affinity.remove("nodeAffinity");
            if affinity.is_empty() {
                restore(changed, old, "affinity");
            }
        }
    } else {
        changed["affinity"]["nodeAffinity"] = before.clone();
    }
}

/// The image of a static pod, whose node reads it from a file and not from here.
fn is_mirror(pod: &Value) -> bool {
    !pod["metadata"]["annotations"][MIRROR].is_null()
}

/// Ephemeral containers may be added, nothing else.
pub fn ephemeral(report: &mut Report, new: &Value, old: &Value) {
    if is_mirror(old) {
        return report.forbidden("static pods do not support ephemeral containers");
    }
    again(report, new, old, true);
    report.down(&["spec", "ephemeralContainers"], |r| {
        for before in list(&old["spec"], "ephemeralContainers") {
            let name = text(before, "name");
            let now = list(&new["spec"], "ephemeralContainers").iter().find(|c| text(c, "name") == name);
            match now {
                None => r.forbidden(&format!("existing ephemeral containers \"{name}\" may not be removed\n")),
                Some(now) if now != before => {
                    let text = diff::lines("core.EphemeralContainer", before, now);
                    r.forbidden(&format!("existing ephemeral containers \"{name}\" may not be changed\n{text}"));
                }
                Some(_) => {}
            }
        }
    });
}

/// The amounts of CPU and memory of running containers.
pub fn resize(report: &mut Report, new: &Value, old: &Value) {
    if is_mirror(old) {
        return report.forbidden("static pods cannot be resized");
    }
    if old["spec"]["os"]["name"] == "windows" {
        return report.forbidden("windows pods cannot be resized");
    }
    again(report, new, old, false);
    let (spec, was) = (&new["spec"], &old["spec"]);
    report.at("spec", |r| {
        if crate::defaults::qos_class(old) != crate::defaults::qos_class(new) {
            let class = text(&new["status"], "qosClass");
            r.invalid(class, "Pod QOS Class may not change as a result of resizing");
        }
        let running = |c: &&Value| c["state"]["running"].is_object();
        let status = list(&old["status"], "containerStatuses").iter().find(running);
        if status.is_some_and(|c| c["resources"].is_null()) {
            r.forbidden("Pod running on node without support for resize");
        }
        resized_whole(r, spec, was);
        if !r.sound(|r| in_order(r, spec, was)) {
            return;
        }
        let pairs = |name: &str| list(spec, name).iter().zip(list(was, name)).enumerate().collect::<Vec<_>>();
        for name in ["initContainers", "containers"] {
            for (index, (now, before)) in pairs(name) {
                r.at(name, |r| r.index(index, |r| r.at("resources", |r| resized(r, now, before, ""))));
            }
        }
        for (_, (now, before)) in pairs("containers") {
            if masked(now, before) != *before {
                r.forbidden("only cpu and memory resources are mutable");
            }
        }
        for (index, (now, before)) in pairs("initContainers") {
            r.at("initContainers", |r| r.index(index, |r| init_container(r, now, before)));
        }
        let rest = masked_whole(spec, was);
        if r.errors.is_empty() && !same_but_resources(&without_empty(&rest), &without_empty(was)) {
            r.forbidden("only cpu and memory resources are mutable");
        }
    });
}

/// Containers stay the ones that they were, each in its place: what changed of them is found by the place.
fn in_order(report: &mut Report, spec: &Value, was: &Value) {
    for name in ["containers", "initContainers"] {
        let (now, before) = (list(spec, name), list(was, name));
        if now.len() != before.len() {
            report.refuse(name, &format!("{name} may not be added or removed on resize"));
            continue;
        }
        let renamed = |(_, (now, before)): &(usize, (&Value, &Value))| text(now, "name") != text(before, "name");
        for (index, _) in now.iter().zip(before).enumerate().filter(renamed) {
            let why = format!("{name} may not be renamed or reordered on resize");
            report.at(name, |r| r.index(index, |r| r.refuse("name", &why)));
        }
    }
}

/// A spec with the amounts that it and its containers had, to see whether anything else changed.
fn masked_whole(now: &Value, before: &Value) -> Value {
    let mut whole = masked(now, before);
    for name in ["containers", "initContainers"] {
        let containers = whole.get_mut(name).and_then(Value::as_array_mut).into_iter().flatten();
        for (container, before) in containers.zip(list(before, name)) {
            *container = masked(container, before);
        }
    }
    whole
}

/// `level` comes before the complaint.
fn resized(report: &mut Report, now: &Value, before: &Value, level: &str) {
    for kind in ["requests", "limits"] {
        let gone = |(name, _): (&Name, &Value)| now["resources"][kind][name].is_null();
        if before["resources"][kind].as_object().into_iter().flatten().any(gone) {
            report.refuse(kind, &format!("{level}resource {kind} cannot be removed"));
        }
    }
}

/// The resources of the pod as a whole.
fn resized_whole(report: &mut Report, spec: &Value, was: &Value) {
    let is_set =
        |spec: &Value| ["requests", "limits"].iter().any(|kind| !same(&spec["resources"][*kind], &Value::Null));
    if !is_set(spec) && !is_set(was) {
        return;
    }
    if was["resources"].is_object() && !spec["resources"].is_object() {
        return report.refuse("resources", "pod-level resources cannot be removed");
    }
    report.at("resources", |r| resized(r, spec, was, "pod-level "));
    let (now, before) = (json!({"resources": spec["resources"]}), json!({"resources": was["resources"]}));
    let (now, before) = (&masked(&now, &before)["resources"], &before["resources"]);
    if now != before && !(same(now, &Value::Null) && same(before, &Value::Null)) {
        report.forbidden("only cpu and memory resources are mutable at pod-level");
    }
}

/// One that ends before others start is resized as long as that does not start it again.
fn init_container(report: &mut Report, now: &Value, before: &Value) {
    if masked(now, before) != *before {
        report.forbidden("only cpu and memory resources for init or sidecar containers are mutable");
    }
    let restarts = |policy: &Value| policy["restartPolicy"] == "RestartContainer";
    if now != before && now["restartPolicy"] != "Always" && list(before, "resizePolicy").iter().any(restarts) {
        let why = "non-sidecar init containers with a resize policy of RestartContainer cannot be resized";
        report.forbidden(why);
    }
}

/// A container with the amounts that it had, to see what else changed.
fn masked(now: &Value, before: &Value) -> Value {
    let mut now = now.clone();
    for kind in ["limits", "requests"] {
        for name in ["cpu", "memory"] {
            let had = &before["resources"][kind][name];
            if had.is_null() {
                let resources = now.get_mut("resources").and_then(|all| all.get_mut(kind));
                if let Some(map) = resources.and_then(Value::as_object_mut) {
                    map.remove(name);
                    if map.is_empty() && before["resources"][kind].is_null() {
                        remove(&mut now["resources"], kind);
                    }
                }
            } else {
                now["resources"][kind][name] = had.clone();
            }
        }
    }
    restore(&mut now, before, "resizePolicy");
    now
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    /// What a pod with some resources is told that shall have others.
    fn resize_told(of: impl Fn(&Value) -> Value, before: Value, now: Value) -> Vec<String> {
        let (was, spec) = (of(&before), of(&now));
        let mut report = Report::default();
        resized_whole(&mut report, &spec, &was);
        for (now, before) in list(&spec, "initContainers").iter().zip(list(&was, "initContainers")) {
            init_container(&mut report, now, before);
        }
        report.errors.into_iter().map(|e| format!("{}: {}", e.field, e.message)).collect()
    }

    #[test]
    fn the_cpu_and_memory_of_a_whole_pod_may_change() {
        let of = |resources: &Value| json!({ "resources": resources });
        let cpu = |cpu: &str| json!({"requests": {"cpu": cpu}, "limits": {"memory": "1Gi"}});
        assert!(resize_told(of, cpu("1"), cpu("2")).is_empty());
        assert!(resize_told(of, Value::Null, cpu("2")).is_empty(), "it may get some");
        assert_eq!(
            resize_told(of, cpu("1"), Value::Null),
            ["resources: Forbidden: pod-level resources cannot be removed"]
        );
        assert_eq!(
            resize_told(of, cpu("1"), json!({"requests": {"cpu": "1"}})),
            ["resources.limits: Forbidden: pod-level resource limits cannot be removed"]
        );
        let pages = json!({"requests": {"cpu": "1", "hugepages-2Mi": "2Mi"}, "limits": {"memory": "1Gi"}});
        let told = resize_told(of, cpu("1"), pages);
        assert_eq!(told.len(), 1, "{told:?}");
        assert!(told[0].ends_with("Forbidden: only cpu and memory resources are mutable at pod-level"), "{told:?}");
    }

    #[test]
    fn init_containers_are_resized_unless_that_starts_them_again() {
        let of = |policy: &'static str| {
            move |cpu: &Value| {
                let policies = json!([{"resourceName": "cpu", "restartPolicy": policy}]);
                let resources = json!({"requests": {"cpu": cpu}});
                json!({"initContainers": [{"name": "i", "resources": resources, "resizePolicy": policies}]})
            }
        };
        assert!(resize_told(of("NotRequired"), json!("1"), json!("2")).is_empty());
        assert_eq!(resize_told(of("RestartContainer"), json!("1"), json!("2")).len(), 1);
        assert!(resize_told(of("RestartContainer"), json!("1"), json!("1")).is_empty());
        let plain = json!({"name": "c"});
        assert_eq!(masked(&plain, &plain), plain, "one without resources");
    }

    /// Added or removed containers were not looked at, and so was what else changed with them.
    #[test]
    fn a_resize_is_told_of_every_other_change() {
        let pod = |images: &[(&str, &str)], cpu: &str| {
            let of = |(name, image): &(&str, &str)| {
                json!({"name": name, "image": image, "imagePullPolicy": "Always", "terminationMessagePolicy": "File",
                    "resources": {"requests": {"cpu": cpu}}})
            };
            let containers: Vec<Value> = images.iter().map(of).collect();
            json!({"metadata": {"name": "a", "namespace": "n", "resourceVersion": "1"}, "spec": {
                "containers": containers, "restartPolicy": "Always", "dnsPolicy": "ClusterFirst",
                "terminationGracePeriodSeconds": 30, "securityContext": {}, "schedulerName": "default-scheduler"}})
        };
        let pods = crate::resource::Resources::built_in().lookup("", "v1", "pods").expect("built in");
        let told = |new: &Value, old: &Value| {
            let all = crate::validate::update(&pods, "resize", new, old, crate::field_error::Rules::default());
            all.into_iter().map(|e| format!("{}: {}", e.field, e.message)).collect::<Vec<_>>()
        };
        let old = pod(&[("a", "i"), ("b", "i")], "1");
        assert_eq!(told(&pod(&[("a", "i"), ("b", "i")], "2"), &old), [""; 0]);
        let number = "spec.containers: Forbidden: containers may not be added or removed on resize";
        assert_eq!(told(&pod(&[("a", "i")], "2"), &old), [number]);
        assert_eq!(told(&pod(&[("a", "i"), ("b", "i"), ("c", "i")], "2"), &old), [number]);
        let mut added = pod(&[("a", "i"), ("b", "i")], "2");
        added["spec"]["initContainers"] = added["spec"]["containers"].clone();
        added["spec"]["initContainers"][0]["name"] = "c".into();
        added["spec"]["initContainers"][1]["name"] = "d".into();
        let why = "spec.initContainers: Forbidden: initContainers may not be added or removed on resize";
        assert_eq!(told(&added, &old), [why]);
        let order = |index: usize| {
            format!("spec.containers[{index}].name: Forbidden: containers may not be renamed or reordered on resize")
        };
        assert_eq!(told(&pod(&[("b", "i"), ("a", "i")], "2"), &old), [order(0), order(1)]);
        let other = "spec: Forbidden: only cpu and memory resources are mutable";
        assert_eq!(told(&pod(&[("a", "j"), ("b", "i")], "2"), &old), [other]);
        let mut host = pod(&[("a", "i"), ("b", "i")], "2");
        host["spec"]["hostPID"] = true.into();
        assert_eq!(told(&host, &old), [other]);
    }

    #[test]
    fn mirrors_and_windows_take_no_part_in_changes_of_containers() {
        let told = |check: fn(&mut Report, &Value, &Value), old: Value| {
            let mut report = Report::default();
            check(&mut report, &old, &old);
            let first = report.errors.into_iter().next().map(|e| (e.field, e.message)).unwrap();
            assert_eq!(first.0, "[]");
            first.1
        };
        let mirror = json!({"metadata": {"annotations": {MIRROR: "x"}}});
        assert_eq!(told(ephemeral, mirror.clone()), "Forbidden: static pods do not support ephemeral containers");
        assert_eq!(told(resize, mirror), "Forbidden: static pods cannot be resized");
        assert_eq!(
            told(resize, json!({"spec": {"os": {"name": "windows"}}})),
            "Forbidden: windows pods cannot be resized"
        );
    }
}
