//! The parts of a pod that have subresources of their own: what else a client sends along is dropped.

use serde_json::Value;

/// Metadata that these subresources leave alone.
const KEPT: [&str; 4] = ["labels", "annotations", "finalizers", "ownerReferences"];

/// Takes the ephemeral containers and nothing else from what a client sent.
pub fn ephemeral_containers(new: &mut Value, old: &Value) {
    let wanted = new["spec"]["ephemeralContainers"].take();
    let mut spec = old["spec"].clone();
    if let Some(spec) = spec.as_object_mut() {
        match wanted {
            Value::Null => spec.remove("ephemeralContainers"),
            wanted => spec.insert("ephemeralContainers".into(), wanted),
        };
    }
    rest_of_the_old(new, old, spec);
}

/// Takes the resources of the pod as a whole, the containers' and how they are resized. Containers that are not the old
/// ones in the old order are left for validation to refuse.
pub fn resize(new: &mut Value, old: &Value) {
    const LISTS: [&str; 2] = ["containers", "initContainers"];
    let mut spec = old["spec"].clone();
    for list in LISTS {
        let wanted = new["spec"][list].as_array().map_or(&[][..], Vec::as_slice);
        let have = old["spec"][list].as_array().map_or(&[][..], Vec::as_slice);
        if wanted.len() != have.len() {
            return;
        }
        if wanted.iter().zip(have).any(|(new, old)| new["name"] != old["name"]) {
            spec[list] = new["spec"][list].clone();
            continue;
        }
        for (index, container) in wanted.iter().enumerate() {
            let Some(target) = spec[list][index].as_object_mut() else { continue };
            for key in ["resources", "resizePolicy"] {
                match container.get(key) {
                    Some(value) => target.insert(key.into(), value.clone()),
                    None => target.remove(key),
                };
            }
        }
    }
    set(&mut spec, "resources", new["spec"].get("resources"));
    rest_of_the_old(new, old, spec);
}

/// Has the pod as a whole keep its resources, where only its containers can be resized.
pub fn keep_resources(new: &mut Value, old: &Value) {
    set(&mut new["spec"], "resources", old["spec"].get("resources"));
}

fn set(object: &mut Value, key: &str, value: Option<&Value>) {
    match (object.as_object_mut(), value) {
        (Some(object), Some(value)) => drop(object.insert(key.into(), value.clone())),
        (Some(object), None) => drop(object.remove(key)),
        // What is no object is refused later.
        (None, _) => {}
    }
}

fn rest_of_the_old(new: &mut Value, old: &Value, spec: Value) {
    new["spec"] = spec;
    let Some(object) = new.as_object_mut() else { return };
    match old.get("status") {
        Some(status) => object.insert("status".into(), status.clone()),
        None => object.remove("status"),
    };
    let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut) else { return };
    for key in KEPT {
        match old["metadata"].get(key) {
            Some(value) => metadata.insert(key.into(), value.clone()),
            None => metadata.remove(key),
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn pod(image: &str, cpu: &str) -> Value {
        json!({"metadata": {"labels": {"a": image}}, "status": {"phase": "Running"}, "spec": {"containers":
            [{"name": "a", "image": image, "resources": {"requests": {"cpu": cpu}}}]}})
    }

    #[test]
    fn a_resize_takes_resources_alone() {
        let mut new = pod("2", "200m");
        resize(&mut new, &pod("1", "100m"));
        assert_eq!(new, pod("1", "200m"));
    }

    #[test]
    fn the_pod_as_a_whole_is_resized_too() {
        let whole = |pod: Value, resources: Value| {
            let mut pod = pod;
            pod["spec"]["resources"] = resources;
            pod
        };
        let (small, large) = (json!({"requests": {"cpu": "1"}}), json!({"requests": {"cpu": "2"}}));
        let mut new = whole(pod("2", "200m"), large.clone());
        resize(&mut new, &whole(pod("1", "100m"), small.clone()));
        assert_eq!(new, whole(pod("1", "200m"), large.clone()));
        keep_resources(&mut new, &whole(pod("1", "100m"), small.clone()));
        assert_eq!(new["spec"]["resources"], small);
        let mut new = pod("1", "100m");
        resize(&mut new, &whole(pod("1", "100m"), small));
        assert!(new["spec"].get("resources").is_none(), "validation refuses it");
    }

    #[test]
    fn a_resize_with_other_containers_is_left_to_validation() {
        let mut new = pod("2", "200m");
        new["spec"]["containers"] = json!([]);
        let sent = new.clone();
        resize(&mut new, &pod("1", "100m"));
        assert_eq!(new, sent);
    }

    #[test]
    fn ephemeral_containers_come_alone() {
        let mut new = pod("2", "200m");
        new["spec"]["ephemeralContainers"] = json!([{"name": "dbg"}]);
        ephemeral_containers(&mut new, &pod("1", "100m"));
        let mut wanted = pod("1", "100m");
        wanted["spec"]["ephemeralContainers"] = json!([{"name": "dbg"}]);
        assert_eq!(new, wanted);
    }
}
