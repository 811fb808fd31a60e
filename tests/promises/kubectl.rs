//! An unmodified kubectl works: the commands that people type on the first day.

use base64::Engine as _;
use serde_json::json;
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

#[test]
fn kubectl_explains_custom_kinds() {
    if std::process::Command::new("kubectl").arg("version").arg("--client").output().is_err() {
        tests::skipped("no kubectl on this machine (README.md says how to get it)");
        return;
    }
    let server = ApiServer::start("kubectl-explain", &["--controllers=-*"]).expect("the server starts");
    let run = |args: &[&str]| server.kubectl(args).unwrap_or_else(|error| panic!("{error:#}"));
    let inner = json!({"type": "object", "x-kubernetes-embedded-resource": true,
        "properties": {"size": {"type": "integer", "description": "How big it is."}}});
    let schema = json!({"type": "object", "properties": {"spec": {"type": "object", "properties": {"inner": inner}}}});
    let definition = json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": "owls.x.example.com"}, "spec": {"group": "x.example.com", "scope": "Namespaced",
            "names": {"plural": "owls", "kind": "Owl"},
            "versions": [{"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": schema}}]}});
    let file = server.dir.join("owls.json");
    std::fs::write(&file, definition.to_string()).expect("writable");
    run(&["apply", "-f", file.to_str().expect("the path is text")]);
    run(&["wait", "--for=condition=Established", "crd/owls.x.example.com", "--timeout=10s"]);
    // The newer document is read first, the older one where it is asked for.
    for output in ["plaintext", "plaintext-openapiv2"] {
        let kind = run(&["explain", "owl", "--output", output]);
        assert!(
            kind.contains("Group and version of this representation") && kind.contains("Standard metadata"),
            "{kind}"
        );
        let inner = run(&["explain", "owl.spec.inner", "--output", output]);
        assert!(inner.contains("How big it is.") && inner.contains("Standard metadata"), "{inner}");
        let required = inner.lines().filter(|line| line.contains("required")).count();
        assert_eq!(required, 2, "{inner}");
        let list = run(&["explain", "owl.metadata", "--output", output]);
        assert!(list.contains("generateName"), "{list}");
    }
}

/// A deployment whose pods no controller makes, so that its status is written by hand.
fn deployment(replicas: u32) -> String {
    let labels = json!({"app": "d"});
    json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "d", "labels": labels},
        "spec": {"replicas": replicas, "selector": {"matchLabels": labels}, "template": {"metadata": {"labels": labels},
            "spec": {"containers": [{"name": "c", "image": "localhost/busybox:1"}]}}}})
    .to_string()
}

#[test]
fn kubectl_applies_on_the_server_and_follows_a_rollout() {
    if std::process::Command::new("kubectl").arg("version").arg("--client").output().is_err() {
        tests::skipped("no kubectl on this machine (README.md says how to get it)");
        return;
    }
    let server = ApiServer::start("kubectl-apply", &["--controllers=*,-deployment"]).expect("the server starts");
    let run = |args: &[&str]| server.kubectl(args).unwrap_or_else(|error| panic!("{error:#}"));
    let fails = |args: &[&str]| server.kubectl(args).expect_err("this must fail").to_string();
    let file = |name: &str, text: String| {
        let path = server.dir.join(name);
        std::fs::write(&path, text).expect("writable");
        path.to_str().expect("the path is text").to_owned()
    };
    let (two, five) = (file("two.json", deployment(2)), file("five.json", deployment(5)));

    assert!(run(&["apply", "--server-side", "-f", &two]).contains("deployment.apps/d serverside-applied"));
    let other = ["apply", "--server-side", "--field-manager=other", "-f", &five];
    let refused = fails(&other);
    assert!(refused.contains("conflict with \"kubectl\"") && refused.contains(".spec.replicas"), "{refused}");
    assert!(run(&[&other[..], &["--force-conflicts"]].concat()).contains("serverside-applied"));
    let owners = run(&[
        "get",
        "deployment",
        "d",
        "--show-managed-fields",
        "-o",
        "jsonpath={.metadata.managedFields[*].manager}",
    ]);
    assert_eq!(owners, "kubectl other");
    let differs = fails(&["diff", "--server-side", "--force-conflicts", "-f", &two]);
    assert!(differs.contains("replicas: 5") && differs.contains("replicas: 2"), "{differs}");
    // From one side to the other: what was applied on the client's side is taken over.
    let map = |value: &str| {
        let map = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "m"}, "data": {"k": value}});
        file(&format!("{value}.json"), map.to_string())
    };
    assert!(run(&["apply", "-f", &map("one")]).contains("created"));
    assert!(run(&["apply", "--server-side", "-f", &map("another")]).contains("serverside-applied"));
    assert_eq!(run(&["get", "configmap", "m", "-o", "jsonpath={.data.k}"]), "another");

    // An editor is a program that changes a file; what it changed is sent as a patch.
    let edited = std::process::Command::new("kubectl")
        .arg("--kubeconfig")
        .arg(server.kubeconfig())
        .args(["edit", "deployment", "d"])
        .env("KUBE_EDITOR", "sed -i s/replicas:.5/replicas:\\ 3/")
        .output()
        .expect("kubectl runs");
    assert!(edited.status.success(), "{}", String::from_utf8_lossy(&edited.stderr));
    assert_eq!(run(&["get", "deployment", "d", "-o", "jsonpath={.spec.replicas}"]), "3");
    let strategic = r#"{"spec":{"template":{"spec":{"containers":[{"name":"c","image":"localhost/busybox:2"}]}}}}"#;
    assert!(run(&["patch", "deployment", "d", "-p", strategic]).contains("patched"));
    assert!(run(&["patch", "deployment", "d", "-p", strategic]).contains("patched (no change)"));
    assert!(run(&["get", "deployment", "d", "-o", "yaml"]).contains("image: localhost/busybox:2"));
    assert!(run(&["get", "deployments", "-o", "wide"]).contains("localhost/busybox:2"));
    let columns = "custom-columns=NAME:.metadata.name,IMAGE:.spec.template.spec.containers[0].image";
    assert!(run(&["get", "deployments", "-o", columns]).contains("localhost/busybox:2"));
    assert!(run(&["get", "all"]).contains("deployment.apps/d"));

    let status = ["rollout", "status", "deployment/d"];
    assert!(run(&[&status[..], &["--watch=false"]].concat()).contains("Waiting for deployment"));
    assert!(fails(&["wait", "--for=condition=Available", "deployment/d", "--timeout=1s"]).contains("timed out"));
    // The watch is open when the last change comes.
    let followed = std::thread::scope(|scope| {
        let follower = scope.spawn(|| server.kubectl(&[&status[..], &["--timeout=60s"]].concat()));
        let generation = run(&["get", "deployment", "d", "-o", "jsonpath={.metadata.generation}"]);
        for done in 0..=3 {
            let available = json!([{"type": "Available", "status": if done == 3 { "True" } else { "False" }}]);
            let status = json!({"status": {"observedGeneration": generation.parse::<u64>().expect("a number"),
                "replicas": 3, "updatedReplicas": 3, "readyReplicas": done, "availableReplicas": done,
                "conditions": available}});
            let patch = ["patch", "deployment", "d", "--subresource=status", "--type=merge", "-p", &status.to_string()];
            assert!(run(&patch).contains("patched"));
        }
        follower.join().expect("no panic")
    });
    let followed = followed.unwrap_or_else(|error| panic!("{error:#}"));
    assert!(followed.contains("successfully rolled out"), "{followed}");
    assert!(run(&["wait", "--for=condition=Available", "deployment/d", "--timeout=10s"]).contains("met"));
    assert!(run(&["rollout", "restart", "deployment/d"]).contains("restarted"));
    assert!(run(&["label", "deployment", "d", "app-"]).contains("unlabeled"));
    assert!(run(&["annotate", "--overwrite", "deployment", "d", "note=y"]).contains("annotated"));
    assert!(run(&["explain", "deployment.spec.strategy", "--api-version=apps/v1"]).contains("rollingUpdate"));
    assert!(run(&["autoscale", "deployment", "d", "--max=3"]).contains("autoscaled"));
    assert!(run(&["expose", "deployment", "d", "--port=80"]).contains("exposed"));
}

#[test]
fn kubectl_deletes_with_what_belongs_to_it_and_hands_out_access() {
    if std::process::Command::new("kubectl").arg("version").arg("--client").output().is_err() {
        tests::skipped("no kubectl on this machine (README.md says how to get it)");
        return;
    }
    let server = ApiServer::start("kubectl-delete", &[]).expect("the server starts");
    let run = |args: &[&str]| server.kubectl(args).unwrap_or_else(|error| panic!("{error:#}"));
    let until = |args: &[&str], wanted: &dyn Fn(&str) -> bool| {
        let begun = std::time::Instant::now();
        loop {
            let said = run(args);
            if wanted(&said) {
                return said;
            }
            assert!(begun.elapsed().as_secs() < 30, "{args:?}: {said}");
            std::thread::sleep(std::time::Duration::from_millis(100));
        }
    };
    let pods = ["get", "pods", "-o", "name"];
    let owned = ["get", "pods", "-o", "jsonpath={.items[*].metadata.ownerReferences[*].kind}"];
    for (cascade, left) in [("background", 0), ("foreground", 0), ("orphan", 2)] {
        assert!(run(&["create", "deployment", "d", "--image=localhost/busybox:1", "--replicas=2"]).contains("created"));
        until(&owned, &|said| said == "ReplicaSet ReplicaSet");
        let sets = run(&["get", "replicasets", "-o", "name"]);
        let flag = format!("--cascade={cascade}");
        // With its own set, so that the pods are what is left.
        assert!(run(&["delete", "deployment", "d", "--cascade=orphan", "--timeout=30s"]).contains("deleted"));
        assert!(run(&["delete", sets.trim(), &flag, "--timeout=30s"]).contains("deleted"));
        let found = until(&pods, &|said| said.lines().count() == left);
        if left > 0 {
            until(&owned, &str::is_empty);
            let names: Vec<&str> = found.lines().collect();
            assert!(run(&[&["delete", "--now"], &names[..]].concat()).contains("deleted"));
        }
    }
    let events = until(&["events", "--types=Normal"], &|said| said.contains("SuccessfulCreate"));
    assert!(events.contains("ReplicaSet/d-"), "{events}");
    assert!(run(&["get", "events", "--field-selector=reason=SuccessfulCreate"]).contains("Created pod: d-"));

    let token = run(&["create", "token", "default", "--duration=20m", "--audience=me"]);
    assert_eq!(token.trim().split('.').count(), 3, "{token}");
    let token = run(&["create", "token", "default"]);
    let whoami = ["auth", "whoami", "-o", "jsonpath={.status.userInfo.username}", "--token", token.trim()];
    // The administrator's certificate would win over it.
    let bare = server.dir.join("bare.conf");
    let text = std::fs::read_to_string(server.kubeconfig()).expect("readable");
    let text: Vec<&str> = text.lines().filter(|line| !line.contains("client-")).collect();
    std::fs::write(&bare, text.join("\n")).expect("writable");
    let said =
        std::process::Command::new("kubectl").arg("--kubeconfig").arg(&bare).args(whoami).output().expect("runs");
    let name = "system:serviceaccount:default:default";
    assert_eq!(String::from_utf8_lossy(&said.stdout), name, "{}", String::from_utf8_lossy(&said.stderr));
    assert!(
        run(&["create", "rolebinding", "r", "--clusterrole=view", "--serviceaccount=default:default"])
            .contains("created")
    );
    let may = |verb: &str| server.kubectl(&["auth", "can-i", verb, "pods", "--as", name]);
    assert!(may("list").is_ok_and(|said| said.contains("yes")) && may("create").is_err());
    assert!(run(&["auth", "can-i", "--list", "--as", name]).contains("pods"));

    let key = rcgen::KeyPair::generate().expect("a key");
    let mut params = rcgen::CertificateParams::default();
    params.distinguished_name.push(rcgen::DnType::CommonName, "jane");
    let request = params.serialize_request(&key).and_then(|request| request.pem()).expect("a request");
    let request = base64::engine::general_purpose::STANDARD.encode(request);
    let request = json!({"apiVersion": "certificates.k8s.io/v1", "kind": "CertificateSigningRequest",
        "metadata": {"name": "jane"}, "spec": {"request": request, "usages": ["client auth"],
            "signerName": "kubernetes.io/kube-apiserver-client"}});
    server.create(&request).unwrap_or_else(|error| panic!("{error:#}"));
    assert!(run(&["get", "csr"]).contains("Pending"));
    assert!(run(&["certificate", "approve", "jane"]).contains("approved"));
    until(&["get", "csr", "jane", "-o", "jsonpath={.status.certificate}"], &|said| !said.is_empty());
    assert!(run(&["get", "csr"]).contains("Approved,Issued"));
}
