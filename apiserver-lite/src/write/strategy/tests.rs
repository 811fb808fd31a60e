//! What a write makes of objects of each kind.

use super::*;
use crate::field_error::Rules;
use crate::resource::Resources;

fn generation(group: &str, version: &str, plural: &str, old: Value, new: Value) -> Value {
    let resource = Resources::built_in().current().lookup(group, version, plural).expect("built in");
    let mut created = old;
    prepare_create(&resource, &mut created, &User::default());
    let mut changed = new;
    changed["metadata"] = created["metadata"].clone();
    prepare_update(&resource, "", &mut changed, &created);
    json!([created["metadata"]["generation"], changed["metadata"]["generation"]])
}

/// Some of these were overwritten by a PUT that named no version.
#[test]
fn what_no_put_overwrites_unseen_has_to_be_named_with_its_version() {
    use crate::config::{FeatureGates, RuntimeConfig};

    let (all, gates) = (RuntimeConfig::parse(&["api/all=true".into()]), ["AllAlpha=true", "AllBeta=true"]);
    let gates = FeatureGates::parse(&gates.map(Into::into)).expect("they are known");
    let resources = Resources::chosen(&all.expect("it is known"), &gates);
    for (group, version, plural, needed) in [
        ("certificates.k8s.io", "v1beta1", "clustertrustbundles", true),
        ("certificates.k8s.io", "v1beta1", "podcertificaterequests", true),
        ("certificates.k8s.io", "v1", "certificatesigningrequests", false),
        ("internal.apiserver.k8s.io", "v1alpha1", "storageversions", true),
        ("storagemigration.k8s.io", "v1beta1", "storageversionmigrations", true),
        ("", "v1", "configmaps", false),
    ] {
        let resource = resources.lookup(group, version, plural).expect("built in");
        assert_eq!(needs_version(&resource), needed, "{plural}");
    }
}

#[test]
fn changes_are_counted_by_the_kinds_that_count_them() {
    let class = |text: &str| json!({"metadata": {}, "value": 1, "description": text});
    let counted = generation("scheduling.k8s.io", "v1", "priorityclasses", class("a"), class("b"));
    assert_eq!(counted, json!([1, 1]));
    let driver = |on: bool| json!({"metadata": {}, "spec": {"requiresRepublish": on}});
    assert_eq!(generation("storage.k8s.io", "v1", "csidrivers", driver(false), driver(true)), json!([null, 1]));
    assert_eq!(generation("storage.k8s.io", "v1", "csidrivers", driver(true), driver(true)), json!([null, null]));
    let template = |name: &str| json!({"metadata": {}, "template": {"spec": {"nodeName": name}}});
    assert_eq!(generation("", "v1", "podtemplates", template("a"), template("b")), json!([1, 2]));
    let slice = |address: &str| json!({"metadata": {}, "addressType": "IPv4", "endpoints": [{"addresses": [address]}]});
    assert_eq!(
        generation("discovery.k8s.io", "v1", "endpointslices", slice("10.0.0.1"), slice("10.0.0.2")),
        json!([1, 2])
    );
}

/// The labels and the selector of a job that was copied were overwritten, and nobody heard of it.
#[test]
fn what_a_job_says_of_its_pods_stays_and_is_refused_where_it_is_about_another() {
    let resource = Resources::built_in().current().lookup("batch", "v1", "jobs").expect("built in");
    let told = |spec: Value| {
        let pod = json!({"restartPolicy": "Never", "containers": [{"name": "c", "image": "i"}]});
        let mut job = json!({"metadata": {"name": "new", "namespace": "n", "uid": "u2"}, "spec": spec});
        job["spec"]["template"]["spec"] = pod;
        crate::defaults::apply(&resource, &mut job);
        job_labels(&mut job);
        let complaints = crate::validate::create(&resource, &job, Rules::default());
        (job, complaints.into_iter().map(|c| c.field).collect::<Vec<_>>())
    };
    let (job, complaints) = told(json!({}));
    assert!(complaints.is_empty(), "{complaints:?}");
    let labels = &job["spec"]["template"]["metadata"]["labels"];
    assert_eq!((&labels["job-name"], &labels["batch.kubernetes.io/controller-uid"]), (&json!("new"), &json!("u2")));
    // As it would be without any, where it says the same.
    let same = json!({"selector": job["spec"]["selector"], "template": {"metadata": {"labels": labels}}});
    assert_eq!(told(same), (job.clone(), vec![]));
    let (own, complaints) = told(json!({"template": {"metadata": {"labels": {"job-name": "old"}}}}));
    assert_eq!(own["spec"]["template"]["metadata"]["labels"]["job-name"], "old");
    assert_eq!(complaints, ["spec.template.metadata.labels[job-name]"]);
    let wrong = json!({"matchLabels": {"batch.kubernetes.io/controller-uid": "u1"}});
    let (own, complaints) = told(json!({"selector": wrong}));
    assert_eq!(own["spec"]["selector"], wrong);
    assert!(complaints.contains(&"spec.selector".to_owned()), "{complaints:?}");
}

#[test]
fn labels_of_a_slice_are_part_of_what_is_wanted() {
    let (slices, deployments) = (("discovery.k8s.io", "endpointslices"), ("apps", "deployments"));
    let counted = |(group, plural): (&str, &str), old: Value, new: Value| {
        let resource = Resources::built_in().current().lookup(group, "v1", plural).expect("built in");
        let object = |metadata: &Value| json!({"metadata": metadata, "addressType": "IPv4", "endpoints": []});
        let (mut new, mut old) = (object(&new), object(&old));
        old["metadata"]["generation"] = 1.into();
        new["metadata"]["generation"] = 1.into();
        prepare_update(&resource, "", &mut new, &old);
        new["metadata"]["generation"].as_i64()
    };
    let labels = |name: &str| json!({"labels": {"kubernetes.io/service-name": name}});
    let notes = |text: &str| json!({"annotations": {"note": text}});
    assert_eq!(counted(slices, labels("a"), labels("b")), Some(2));
    assert_eq!(counted(slices, labels("a"), labels("a")), Some(1));
    assert_eq!(counted(slices, json!({}), json!({"labels": {}})), Some(1), "none and empty are the same");
    assert_eq!(counted(slices, notes("a"), notes("b")), Some(1));
    assert_eq!(counted(deployments, notes("a"), notes("b")), Some(2));
    assert_eq!(counted(deployments, labels("a"), labels("b")), Some(1));
}

fn prepared((group, plural): (&str, &str), subresource: &str, mut new: Value, old: &Value) -> Value {
    let resource = Resources::built_in().current().lookup(group, "v1", plural).expect("built in");
    prepare_update(&resource, subresource, &mut new, old);
    new
}

fn made((group, plural): (&str, &str), mut new: Value) -> Value {
    let resource = Resources::built_in().current().lookup(group, "v1", plural).expect("built in");
    prepare_create(&resource, &mut new, &User::default());
    new
}

#[test]
fn a_status_keeps_the_generation_it_was_of() {
    let pod = |status: Value| json!({"metadata": {}, "spec": {}, "status": status});
    let old = pod(json!({"observedGeneration": 2, "qosClass": "BestEffort", "conditions": [
        {"type": "Ready", "observedGeneration": 2}, {"type": "Ready", "observedGeneration": 1}]}));
    let new =
        pod(json!({"conditions": [{"type": "Ready"}, {"type": "Other"}, {"type": "Ready", "observedGeneration": 3}]}));
    let status = prepared(("", "pods"), "status", new, &old)["status"].take();
    assert_eq!(status["observedGeneration"], 2);
    let conditions = json!([{"type": "Ready", "observedGeneration": 2}, {"type": "Other"},
        {"type": "Ready", "observedGeneration": 3}]);
    assert_eq!(status["conditions"], conditions);
}

#[test]
fn a_volume_says_when_it_came_into_its_phase() {
    let volumes = ("", "persistentvolumes");
    let created = made(volumes, json!({"metadata": {}, "spec": {}}));
    assert_eq!(created["status"]["phase"], "Pending");
    assert!(created["status"]["lastPhaseTransitionTime"].is_string());
    let volume = |phase: &str, time: Value| json!({"metadata": {}, "spec": {}, "status": {"phase": phase, "lastPhaseTransitionTime": time}});
    let (first, second) = (json!("2020-01-01T00:00:00Z"), json!("2021-01-01T00:00:00Z"));
    let old = volume("Pending", first.clone());
    let time = |new: Value| prepared(volumes, "status", new, &old)["status"]["lastPhaseTransitionTime"].take();
    assert_eq!(time(volume("Pending", Value::Null)), first);
    assert_eq!(time(volume("Bound", second.clone())), second);
    for unsaid in [Value::Null, first.clone()] {
        let now = time(volume("Bound", unsaid));
        assert!(now.is_string() && now != first);
    }
}

#[test]
fn what_is_not_stored_of_an_object_is_left_out() {
    let account = json!({"metadata": {}, "secrets": [{"name": "a", "kind": "Secret", "uid": "u"}]});
    assert_eq!(made(("", "serviceaccounts"), account)["secrets"], json!([{"name": "a"}]));
    let slices = ("discovery.k8s.io", "endpointslices");
    let slice = |endpoint: Value| json!({"metadata": {}, "endpoints": [endpoint]});
    let topology = json!({"addresses": ["10.0.0.1"], "deprecatedTopology": {"kubernetes.io/hostname": "n"}});
    assert_eq!(made(slices, slice(topology.clone()))["endpoints"], json!([{"addresses": ["10.0.0.1"]}]));
    let mut moved = topology.clone();
    moved["addresses"] = json!(["10.0.0.2"]);
    let updated = prepared(slices, "", slice(moved), &slice(topology.clone()));
    assert_eq!(updated["endpoints"], json!([{"addresses": ["10.0.0.2"], "nodeName": "n"}]));
    let same = prepared(slices, "", slice(topology.clone()), &slice(topology.clone()));
    assert_eq!(same["endpoints"], json!([topology]));
}

#[test]
fn a_status_takes_the_labels_along_or_leaves_them() {
    let object = |label: &str| json!({"metadata": {"labels": {"a": label}}, "spec": {}, "status": {}});
    for (kind, left) in [
        (("networking.k8s.io", "ingresses"), false),
        (("apiextensions.k8s.io", "customresourcedefinitions"), false),
        (("networking.k8s.io", "servicecidrs"), true),
        (("apiregistration.k8s.io", "apiservices"), true),
        (("admissionregistration.k8s.io", "validatingadmissionpolicies"), true),
        (("flowcontrol.apiserver.k8s.io", "flowschemas"), true),
        (("apps", "deployments"), true),
    ] {
        let label = prepared(kind, "status", object("new"), &object("old"))["metadata"]["labels"]["a"].take();
        assert_eq!(label, if left { "old" } else { "new" }, "{kind:?}");
    }
}

#[test]
fn a_signer_leaves_decisions_as_they_are() {
    let requests = ("certificates.k8s.io", "certificatesigningrequests");
    let request = |conditions: Value| json!({"metadata": {}, "spec": {}, "status": {"conditions": conditions}});
    let condition = |kind: &str, message: &str| json!({"type": kind, "status": "True", "message": message, "lastUpdateTime": "t", "lastTransitionTime": "t"});
    let old = request(json!([condition("Approved", "a")]));
    let written = |conditions: Value| {
        let mut new = prepared(requests, "status", request(conditions), &old);
        let messages = new["status"]["conditions"].take();
        messages.as_array().into_iter().flatten().map(|c| c["message"].clone()).collect::<Vec<_>>()
    };
    assert_eq!(written(json!([condition("Failed", "f"), condition("Approved", "b")])), ["f", "a"]);
    assert_eq!(written(json!([])), [json!(null); 0], "that is for the validation");
    assert_eq!(written(json!([condition("Denied", "d"), condition("Approved", "b")])), ["d", "a"]);
}

#[test]
fn a_limit_range_needs_no_name() {
    let named = |metadata: Value| made(("", "limitranges"), json!({"metadata": metadata}))["metadata"]["name"].take();
    assert_eq!(named(json!({})).as_str().map(str::len), Some(36));
    assert_eq!(named(json!({"name": "a"})), "a");
}

#[test]
fn a_range_of_services_is_written_whole() {
    let ranges = ("networking.k8s.io", "servicecidrs");
    let range = |reason: &str| json!({"metadata": {}, "spec": {}, "status": {"conditions": [{"reason": reason}]}});
    assert_eq!(made(ranges, range("a"))["status"], range("a")["status"]);
    assert_eq!(prepared(ranges, "", range("b"), &range("a"))["status"], range("b")["status"]);
}

#[test]
fn priority_classes_of_the_system_stay() {
    let classes =
        Resources::built_in().current().lookup("scheduling.k8s.io", "v1", "priorityclasses").expect("built in");
    let refused = check_delete(&classes, "system-node-critical").expect_err("refused");
    assert_eq!(
        refused.to_string(),
        "priorityclasses.scheduling.k8s.io \"system-node-critical\" is forbidden: \
         this is a system priority class and cannot be deleted"
    );
    assert!(check_delete(&classes, "mine").is_ok());
}

#[test]
fn a_service_that_is_served_here_is_available_at_once() {
    let services = ("apiregistration.k8s.io", "apiservices");
    let local = made(services, json!({"metadata": {}, "spec": {"group": "g", "version": "v1"}}));
    assert_eq!(local["status"]["conditions"].as_array().map(Vec::len), Some(1));
    assert_eq!(local.pointer("/status/conditions/0/reason"), Some(&json!("Local")));
    let remote = made(services, json!({"metadata": {}, "spec": {"service": {"name": "s"}}}));
    assert_eq!(remote.get("status"), None);
}

#[test]
fn devices_that_are_given_back_are_not_spoken_of() {
    let device = |name: &str| json!({"driver": "gpu", "pool": "p", "device": name});
    let claim = |allocated: &[&str], told: &[&str]| {
        let all = |names: &[&str]| names.iter().map(|n| device(n)).collect::<Vec<_>>();
        json!({"metadata": {}, "spec": {}, "status": {
            "allocation": {"devices": {"results": all(allocated)}}, "devices": all(told)}})
    };
    let of = |new: Value, old: Value| prepared(("resource.k8s.io", "resourceclaims"), "status", new, &old);
    let left = of(claim(&["a"], &["a", "b"]), claim(&["a", "b"], &["a", "b"]));
    assert_eq!(left["status"]["devices"], json!([device("a")]));
    assert!(of(claim(&[], &["a"]), claim(&["a"], &["a"]))["status"].get("devices").is_none());
    assert_eq!(of(claim(&[], &["x"]), claim(&["a"], &[]))["status"]["devices"], json!([device("x")]));
}

#[test]
fn empty_members_that_are_always_there_are_no_change() {
    let pod = |container: Value| json!({"metadata": {}, "spec": {"containers": [container]}});
    let (with, without) = (pod(json!({"name": "a", "resources": {}})), pod(json!({"name": "a"})));
    assert_eq!(generation("", "v1", "pods", with, without), json!([1, 1]));
}
