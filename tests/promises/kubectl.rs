//! An unmodified kubectl works: the commands that people type on the first day.

use tests::ApiServer;

#[test]
fn kubectl_applies_edits_and_deletes() {
    if std::process::Command::new("kubectl").arg("version").arg("--client").output().is_err() {
        println!("skipped: no kubectl on this machine (README.md says how to get it)");
        return;
    }
    let server = ApiServer::start("kubectl", &[]).expect("the server starts");
    let run = |args: &[&str]| server.kubectl(args).unwrap_or_else(|error| panic!("{error:#}"));
    let fails = |args: &[&str]| server.kubectl(args).expect_err("this must fail").to_string();

    assert!(run(&["version"]).contains("Server Version: v1.36"));
    assert!(run(&["api-resources"]).contains("deployments"));
    assert!(run(&["get", "namespaces"]).contains("kube-system"));
    let example = tests::repository().join("docs/examples/first-pod.yaml");
    let example = example.to_str().expect("the path is text");
    // The published schema is not served yet, so kubectl is told not to ask for it.
    let apply = ["apply", "--validate=false", "-f", example];
    assert!(run(&apply).contains("pod/web created"));
    assert!(run(&apply).contains("configmap/greeting unchanged"));
    assert!(run(&["get", "pods", "-l", "app=web", "-o", "wide"]).contains("web"));
    assert!(run(&["describe", "pod", "web"]).contains("prepare"));
    assert!(run(&["label", "pod", "web", "tier=front"]).contains("labeled"));
    assert!(run(&["annotate", "pod", "web", "note=x"]).contains("annotated"));
    assert!(run(&["create", "deployment", "d", "--image=localhost/busybox:1"]).contains("created"));
    assert!(run(&["scale", "deployment", "d", "--replicas=3"]).contains("scaled"));
    assert_eq!(run(&["get", "deployment", "d", "-o", "jsonpath={.spec.replicas}"]), "3");
    assert!(run(&["set", "image", "deployment/d", "busybox=localhost/busybox:2"]).contains("updated"));
    assert!(run(&["auth", "can-i", "create", "pods"]).contains("yes"));
    assert!(run(&["create", "namespace", "extra"]).contains("created"));
    assert!(run(&["delete", "pod", "web", "--timeout=30s"]).contains("deleted"));
    assert!(fails(&["get", "pod", "web"]).contains("NotFound"));
    assert!(fails(&["create", "namespace", "extra"]).contains("AlreadyExists"));
}
