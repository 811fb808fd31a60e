//! An unmodified kubectl works: the commands that people type on the first day.

use tests::ApiServer;

#[test]
fn kubectl_applies_edits_and_deletes() {
    if std::process::Command::new("kubectl").arg("version").arg("--client").output().is_err() {
        tests::skipped("no kubectl on this machine (README.md says how to get it)");
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
    let apply = ["apply", "-f", example];
    let version = || run(&["get", "pod", "web", "-o", "jsonpath={.metadata.resourceVersion}"]);
    assert!(run(&apply).contains("pod/web created"));
    let before = version();
    // kubectl sends the order of a pod's lists even where it changes nothing; then nothing must be written.
    assert!(run(&apply).contains("configmap/greeting unchanged"));
    assert_eq!(version(), before);
    assert_eq!(run(&["diff", "-f", example]), "");
    assert!(run(&["explain", "pod.spec.containers"]).contains("livenessProbe"));
    let wrong = server.dir.join("wrong.json");
    let pod = r#"{"apiVersion":"v1","kind":"Pod","metadata":{"name":"wrong"},
        "spec":{"containers":[{"name":"a","image":"b","imagee":"c"}]}}"#;
    std::fs::write(&wrong, pod).expect("writable");
    let wrong = ["create", "-f", wrong.to_str().expect("the path is text")];
    assert!(fails(&wrong).contains("unknown field \"spec.containers[0].imagee\""));
    // What admission added to a pod may not be taken away again, so only the config map can be replaced by its file.
    let refused = fails(&["replace", "-f", example]);
    assert!(refused.contains("configmap/greeting replaced") && refused.contains("pod updates may not change fields"));
    assert!(run(&["wait", "--for=jsonpath={.spec.restartPolicy}=Always", "pod/web", "--timeout=10s"]).contains("met"));
    assert!(run(&["get", "pods", "-l", "app=web", "-o", "wide"]).contains("web"));
    assert!(run(&["describe", "pod", "web"]).contains("prepare"));
    assert!(run(&["label", "pod", "web", "tier=front"]).contains("labeled"));
    assert!(run(&["annotate", "pod", "web", "note=x"]).contains("annotated"));
    assert!(run(&["create", "deployment", "d", "--image=localhost/busybox:1"]).contains("created"));
    assert!(run(&["scale", "deployment", "d", "--replicas=3"]).contains("scaled"));
    assert_eq!(run(&["get", "deployment", "d", "-o", "jsonpath={.spec.replicas}"]), "3");
    assert!(run(&["set", "image", "deployment/d", "busybox=localhost/busybox:2"]).contains("updated"));
    let test = r#"[{"op":"test","path":"/spec/replicas","value":7}]"#;
    assert!(fails(&["patch", "deployment", "d", "--type=json", "-p", test]).contains("error in our request"));
    assert!(run(&["create", "pdb", "p", "--selector=app=d", "--min-available=1"]).contains("created"));
    assert!(run(&["get", "pdb", "p"]).contains("ALLOWED DISRUPTIONS"));
    assert!(run(&["auth", "can-i", "create", "pods"]).contains("yes"));
    assert!(run(&["create", "namespace", "extra"]).contains("created"));
    assert!(run(&["delete", "pod", "web", "--timeout=30s"]).contains("deleted"));
    assert!(fails(&["get", "pod", "web"]).contains("NotFound"));
    assert!(fails(&["create", "namespace", "extra"]).contains("AlreadyExists"));
}
