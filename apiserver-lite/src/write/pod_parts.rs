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

/// Takes the resources of the pod as a whole, the containers' and how they are resized. Of containers that are not the
/// old ones in the old order the lists stay as they were sent, and nothing else does: validation refuses them.
pub fn resize(new: &mut Value, old: &Value) {
    const LISTS: [&str; 2] = ["containers", "initContainers"];
    let mut spec = old["spec"].clone();
    for list in LISTS {
        let wanted = new["spec"][list].as_array().map_or(&[][..], Vec::as_slice);
        let have = old["spec"][list].as_array().map_or(&[][..], Vec::as_slice);
        if wanted.len() != have.len() || wanted.iter().zip(have).any(|(new, old)| new["name"] != old["name"]) {
            set(&mut spec, list, new["spec"].get(list));
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

    /// The whole object stayed as it was sent then, with its labels, its status and all of its spec.
    #[test]
    fn a_resize_with_other_containers_leaves_their_lists_alone_to_validation() {
        for list in ["containers", "initContainers"] {
            let mut new = pod("2", "200m");
            new["spec"]["hostPID"] = true.into();
            new["spec"]["nodeName"] = "other".into();
            new["spec"]["containers"][0]["image"] = "1".into();
            let others = json!([{"name": "a", "image": "2"}, {"name": "b", "image": "2"}]);
            new["spec"][list] = others.clone();
            resize(&mut new, &pod("1", "100m"));
            let mut wanted = pod("1", if list == "containers" { "100m" } else { "200m" });
            wanted["spec"][list] = others;
            assert_eq!(new, wanted, "{list}");
        }
        let mut new = pod("2", "200m");
        new["spec"]["containers"] = json!([]);
        resize(&mut new, &pod("1", "100m"));
        let mut wanted = pod("1", "100m");
        wanted["spec"]["containers"] = json!([]);
        assert_eq!(new, wanted);
    }

    /// A PUT of one more container went through there, and whatever else came with it.
    #[tokio::test]
    async fn a_resize_adds_no_container_to_a_pod_that_runs() {
        use super::super::{Target, WriteOptions, create, update};
        use crate::request::User;

        let server = crate::serve::testing::server().await;
        let pods = server.resources.lookup("", "v1", "pods").expect("built in");
        let (options, user) = (WriteOptions::default(), User::default());
        let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a"}, "spec": {"containers":
            [{"name": "a", "image": "i", "resources": {"requests": {"cpu": "1"}}}]}});
        let made = create(&server, &pods, "default", pod, &options, &user).await.expect("it is new").value();
        let target = Target { resource: &pods, subresource: "resize", namespace: "default", name: "a" };
        let mut sent = made.clone();
        sent["spec"]["hostPID"] = true.into();
        sent["metadata"]["labels"] = json!({"own": "b"});
        sent["spec"]["containers"][0]["resources"]["requests"]["cpu"] = "2".into();
        let mut more = sent.clone();
        let host = json!({"name": "b", "image": "j", "securityContext": {"privileged": true}});
        more["spec"]["containers"].as_array_mut().expect("a list").push(host);
        let refused = update::put(&server, target, more, &options, &user).await.expect_err("refused");
        assert_eq!(refused.code(), 422);
        let why = "spec.containers: Forbidden: containers may not be added or removed on resize";
        assert!(refused.status().message.contains(why), "{refused}");
        let stored = || server.store.get(&pods.storage, "default", "a").expect("the pod").value();
        assert_eq!(stored(), made);
        // Without one, nothing but what may be resized is taken.
        assert!(update::put(&server, target, sent, &options, &user).await.is_ok());
        let resized = stored();
        assert_eq!(resized["spec"]["containers"][0]["resources"]["requests"]["cpu"], "2");
        assert!(resized["spec"].get("hostPID").is_none() && resized["metadata"].get("labels").is_none(), "{resized}");
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
