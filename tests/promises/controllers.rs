//! Controllers and scheduler: what people ask for comes about, and what they delete goes. The node is an object only;
//! this test plays the agent, with kubectl.

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tests::ApiServer;

struct Cluster(ApiServer);

impl Cluster {
    fn start(name: &str) -> Option<Self> {
        Self::start_with(name, &[])
    }

    fn start_with(name: &str, args: &[&str]) -> Option<Self> {
        if std::process::Command::new("kubectl").arg("version").arg("--client").output().is_err() {
            tests::skipped("no kubectl on this machine (README.md says how to get it)");
            return None;
        }
        Some(Cluster(ApiServer::start(name, args).expect("the server starts")))
    }

    fn run(&self, args: &[&str]) -> String {
        self.0.kubectl(args).unwrap_or_else(|error| panic!("{error:#}\n{}", self.0.log()))
    }

    fn json(&self, args: &[&str]) -> Value {
        let args: Vec<&str> = args.iter().copied().chain(["-o", "json"]).collect();
        serde_json::from_str(&self.run(&args)).expect("kubectl prints JSON")
    }

    fn items(&self, args: &[&str]) -> Vec<Value> {
        self.json(args)["items"].as_array().cloned().unwrap_or_default()
    }

    fn apply(&self, object: &Value) {
        let path = self.0.dir.join("object.json");
        std::fs::write(&path, object.to_string()).expect("writable");
        self.run(&["create", "--validate=false", "-f", path.to_str().expect("text")]);
    }

    /// A node that says it is ready.
    fn node(&self, name: &str, cpu: &str) {
        self.apply(&json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name,
            "labels": {"kubernetes.io/hostname": name}}}));
        let now = "2026-01-01T00:00:00Z";
        let room = json!({"cpu": cpu, "memory": "8Gi", "pods": "110"});
        let status = json!({"status": {"allocatable": room, "capacity": room, "conditions": [{"type": "Ready",
            "status": "True", "reason": "KubeletReady", "lastHeartbeatTime": now, "lastTransitionTime": now}]}});
        self.run(&["patch", "node", name, "--subresource=status", "--type=merge", "-p", &status.to_string()]);
    }

    /// What an agent would do: start what is assigned, end what is deleted. Pods that run once succeed, but for the
    /// index of a job that an annotation names.
    fn play_agent(&self, namespace: &str) {
        // A node that says nothing for long is given up. There may be none yet.
        let now = proto::time::Timestamp::now().to_seconds_text();
        let beat = json!({"status": {"conditions": [{"type": "Ready", "lastHeartbeatTime": now}]}});
        for node in self.run(&["get", "nodes", "-o", "name"]).lines() {
            let _ = self.0.kubectl(&["patch", node, "--subresource=status", "-p", &beat.to_string()]);
        }
        for pod in self.items(&["get", "pods", "-n", namespace]) {
            let name = pod["metadata"]["name"].as_str().expect("pods have names");
            if pod["metadata"]["deletionTimestamp"].is_string() {
                // Someone else may have ended it.
                let _ = self.0.kubectl(&[
                    "delete",
                    "pod",
                    "-n",
                    namespace,
                    name,
                    "--force",
                    "--grace-period=0",
                    "--wait=false",
                ]);
            } else if pod["spec"]["nodeName"].is_string() && pod["status"]["phase"] == "Pending" {
                let once = pod["spec"]["restartPolicy"] == "Never";
                let annotations = &pod["metadata"]["annotations"];
                let fails = annotations["fails"].is_string()
                    && annotations["fails"] == annotations["batch.kubernetes.io/job-completion-index"];
                let phase = match once {
                    true if fails => "Failed",
                    true => "Succeeded",
                    false => "Running",
                };
                // When one stopped being ready would be when it ended.
                let since = if once { None } else { Some("2026-01-01T00:00:00Z") };
                let status = json!({"status": {"phase": phase,
                    "podIP": "10.1.0.7", "podIPs": [{"ip": "10.1.0.7"}], "conditions": [{"type": "Ready",
                    "status": if once { "False" } else { "True" }, "lastTransitionTime": since}]}});
                let patch = ["patch", "pod", "-n", namespace, name, "--subresource=status", "--type=merge", "-p"];
                let status = status.to_string();
                let _ = self.0.kubectl(&patch.into_iter().chain([&*status]).collect::<Vec<_>>());
            }
        }
    }

    /// Waits until something is so, playing the agent meanwhile.
    fn wait(&self, what: &str, namespace: &str, mut reached: impl FnMut(&Self) -> bool) {
        let begun = Instant::now();
        while !reached(self) {
            assert!(begun.elapsed() < Duration::from_secs(60), "never: {what}\n{}", self.0.log());
            self.play_agent(namespace);
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}

#[test]
fn deployments_roll_scale_and_go_with_all_they_made() {
    let Some(cluster) = Cluster::start("controllers-deployment") else { return };
    cluster.node("n1", "4");
    cluster.run(&["create", "deployment", "d", "--image=localhost/a:1", "--replicas=3"]);
    let ready = |c: &Cluster, count: i64| c.json(&["get", "deployment", "d"])["status"]["readyReplicas"] == count;
    cluster.wait("three pods are ready", "default", |c| ready(c, 3));
    cluster.run(&["rollout", "status", "deployment/d", "--timeout=10s"]);
    cluster.run(&["expose", "deployment", "d", "--port=80"]);
    cluster.run(&["set", "image", "deployment/d", "*=localhost/a:2"]);
    cluster.wait("only new pods are left", "default", |c| {
        let pods = c.items(&["get", "pods"]);
        pods.len() == 3 && pods.iter().all(|p| p["spec"]["containers"][0]["image"] == "localhost/a:2") && ready(c, 3)
    });
    cluster.wait("the rollout is complete", "default", |c| {
        let conditions = c.json(&["get", "deployment", "d"])["status"]["conditions"].to_string();
        conditions.contains("NewReplicaSetAvailable") && conditions.contains("MinimumReplicasAvailable")
    });
    assert!(cluster.run(&["rollout", "history", "deployment/d"]).contains('2'));
    cluster.wait("the service has endpoints", "default", |c| {
        let slices = c.items(&["get", "endpointslices", "-l", "kubernetes.io/service-name=d"]);
        slices.len() == 1 && slices[0]["endpoints"][0]["conditions"]["ready"] == true
    });
    cluster.run(&["rollout", "undo", "deployment/d"]);
    cluster.wait("the old version is back", "default", |c| {
        let pods = c.items(&["get", "pods"]);
        pods.len() == 3 && pods.iter().all(|p| p["spec"]["containers"][0]["image"] == "localhost/a:1")
    });
    cluster.run(&["scale", "deployment", "d", "--replicas=1"]);
    cluster.wait("one pod is left", "default", |c| c.items(&["get", "pods"]).len() == 1);
    cluster.run(&["delete", "deployment", "d", "--cascade=orphan"]);
    cluster.wait("replica sets are orphans", "default", |c| {
        let sets = c.items(&["get", "replicasets"]);
        sets.len() == 2 && sets.iter().all(|s| s["metadata"]["ownerReferences"].is_null())
    });
    cluster.run(&["create", "deployment", "d", "--image=localhost/a:1"]);
    cluster.wait("orphans are taken in", "default", |c| {
        c.items(&["get", "replicasets"]).iter().all(|s| s["metadata"]["ownerReferences"].is_array())
    });
    assert_eq!(cluster.items(&["get", "replicasets"]).len(), 2);
    cluster.run(&["delete", "deployment", "d", "--cascade=foreground", "--wait=false"]);
    cluster.wait("nothing is left", "default", |c| c.items(&["get", "deployments,replicasets,pods"]).is_empty());
}

/// A dependent of no namespace that names an owner in one was deleted, whatever became of the owner.
#[test]
fn an_owner_that_cannot_own_takes_nobody_with_it() {
    let Some(cluster) = Cluster::start("controllers-misplaced-owners") else { return };
    cluster.run(&["create", "namespace", "other"]);
    let uid = |c: &Cluster, args: &[&str]| c.json(args)["metadata"]["uid"].as_str().unwrap_or_default().to_owned();
    let owned = |kind: &str, name: &str, namespace: Option<&str>, owners: &Value| {
        let (api, body) = match kind {
            "PriorityClass" => ("scheduling.k8s.io/v1", json!({"value": 1})),
            _ => ("v1", json!({})),
        };
        let mut object = json!({"apiVersion": api, "kind": kind,
            "metadata": {"name": name, "ownerReferences": owners}});
        if let Some(namespace) = namespace {
            object["metadata"]["namespace"] = namespace.into();
        }
        for (key, value) in body.as_object().into_iter().flatten() {
            object[key] = value.clone();
        }
        object
    };
    for mode in ["background", "foreground", "orphan"] {
        cluster.run(&["create", "configmap", mode]);
        let owner = uid(&cluster, &["get", "configmap", mode]);
        let reference = json!([{"apiVersion": "v1", "kind": "ConfigMap", "name": mode, "uid": owner}]);
        cluster.apply(&owned("PriorityClass", mode, None, &reference));
        // In the owner's namespace, and in another where the owner is not.
        cluster.apply(&owned("Secret", mode, Some("default"), &reference));
        cluster.apply(&owned("Secret", mode, Some("other"), &reference));
        cluster.wait("the one elsewhere has no owner", "default", |c| {
            !c.items(&["get", "secrets", "-n", "other"]).iter().any(|s| s["metadata"]["name"] == mode)
        });
        let said = |c: &Cluster, namespace: &str, shown: &str| {
            let text = format!(
                "ownerRef [v1/ConfigMap, namespace: {shown}, name: {mode}, uid: {owner}] does not exist in namespace \
                 \"{shown}\""
            );
            c.items(&["get", "events", "-n", namespace]).iter().any(|e| {
                e["reason"] == "OwnerRefInvalidNamespace"
                    && e["type"] == "Warning"
                    && e["source"]["component"] == "garbage-collector-controller"
                    && e["involvedObject"]["name"] == mode
                    && e["message"] == *text
            })
        };
        cluster.wait("both are reported", "default", |c| said(c, "default", "") && said(c, "other", "other"));
        cluster.run(&["delete", "configmap", mode, &format!("--cascade={mode}")]);
        let left = json!(cluster.json(&["get", "priorityclass", mode])["metadata"]["ownerReferences"]);
        if mode == "orphan" {
            let secret = cluster.json(&["get", "secret", mode]);
            assert!(secret["metadata"]["ownerReferences"].is_null(), "{secret}");
            assert!(left.is_null(), "{left}");
        } else {
            cluster.wait("the one beside it goes", "default", |c| {
                !c.items(&["get", "secrets"]).iter().any(|s| s["metadata"]["name"] == mode)
            });
            assert_eq!(left[0]["uid"], *owner, "{left}");
        }
    }
    // What went before had time to be done about all of them.
    for mode in ["background", "foreground", "orphan"] {
        assert!(cluster.json(&["get", "priorityclass", mode])["metadata"]["deletionTimestamp"].is_null());
    }
    // One owner that is gone does not outvote one of whom nothing can be said.
    let gone = json!([
        {"apiVersion": "v1", "kind": "Node", "name": "no", "uid": "nobody"},
        {"apiVersion": "v1", "kind": "ConfigMap", "name": "no", "uid": "neither"}]);
    cluster.apply(&owned("PriorityClass", "between", None, &gone));
    cluster.apply(&owned("PriorityClass", "goes", None, &json!([gone[0]])));
    cluster.wait("the one without an owner goes", "default", |c| {
        !c.items(&["get", "priorityclasses"]).iter().any(|s| s["metadata"]["name"] == "goes")
    });
    assert_eq!(cluster.json(&["get", "priorityclass", "between"])["metadata"]["ownerReferences"], gone);
}

#[test]
fn a_namespace_goes_with_its_contents() {
    let Some(cluster) = Cluster::start("controllers-namespace") else { return };
    cluster.node("n1", "4");
    cluster.run(&["create", "namespace", "extra"]);
    cluster.run(&["-n", "extra", "create", "deployment", "d", "--image=localhost/a:1", "--replicas=2"]);
    cluster.run(&["-n", "extra", "create", "configmap", "held"]);
    let hold = r#"{"metadata":{"finalizers":["example.com/hold"]}}"#;
    cluster.run(&["-n", "extra", "patch", "configmap", "held", "--type=merge", "-p", hold]);
    cluster.wait("pods run", "extra", |c| {
        c.json(&["-n", "extra", "get", "deployment", "d"])["status"]["readyReplicas"] == 2
    });
    cluster.run(&["delete", "namespace", "extra", "--wait=false"]);
    cluster.wait("only what a finalizer holds is left", "extra", |c| {
        let status = c.json(&["get", "namespace", "extra"])["status"].to_string();
        status.contains("SomeFinalizersRemain") && status.contains("example.com/hold")
    });
    assert!(cluster.items(&["-n", "extra", "get", "pods,deployments,secrets,serviceaccounts"]).is_empty());
    cluster.run(&[
        "-n",
        "extra",
        "patch",
        "configmap",
        "held",
        "--type=merge",
        "-p",
        r#"{"metadata":{"finalizers":null}}"#,
    ]);
    cluster.wait("the namespace is gone", "extra", |c| !c.run(&["get", "namespaces"]).contains("extra"));
}

#[test]
fn pods_wait_for_room_and_the_more_important_make_it() {
    let Some(cluster) = Cluster::start("controllers-scheduler") else { return };
    let pod = |name: &str, cpu: &str, class: &str| {
        json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": {"priorityClassName": class,
            "terminationGracePeriodSeconds": 1,
            "containers": [{"name": "c", "image": "localhost/a:1", "resources": {"requests": {"cpu": cpu}}}]}})
    };
    for (name, value) in [("low", 1), ("high", 1000)] {
        cluster.apply(&json!({"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "value": value,
            "metadata": {"name": name}}));
    }
    cluster.apply(&pod("first", "3", "low"));
    let said = |c: &Cluster, name: &str| {
        let pod = c.json(&["get", "pod", name]);
        let conditions = pod["status"]["conditions"].as_array().cloned().unwrap_or_default();
        let condition = conditions.into_iter().find(|c| c["type"] == "PodScheduled").unwrap_or_default();
        condition["message"].as_str().unwrap_or_default().to_owned()
    };
    cluster.wait("there is no node", "none", |c| said(c, "first") == "no nodes available to schedule pods");
    cluster.node("n1", "4");
    cluster
        .wait("the first pod has a node", "default", |c| c.json(&["get", "pod", "first"])["spec"]["nodeName"] == "n1");
    cluster.apply(&pod("second", "3", "low"));
    cluster.wait("the second finds no room", "default", |c| {
        said(c, "second").starts_with("0/1 nodes are available: 1 Insufficient cpu. ")
    });
    cluster.apply(&pod("third", "3", "high"));
    cluster.wait("the third takes the first one's room", "default", |c| {
        c.json(&["get", "pod", "third"])["spec"]["nodeName"] == "n1"
    });
    assert!(cluster.0.kubectl(&["get", "pod", "first"]).is_err(), "the first pod had to go");
    cluster.run(&["cordon", "n1"]);
    cluster.wait("the node is tainted", "default", |c| {
        c.json(&["get", "node", "n1"])["spec"]["taints"].to_string().contains("node.kubernetes.io/unschedulable")
    });
    cluster.wait("nobody can go there", "default", |c| said(c, "second").contains("1 node(s) were unschedulable"));
    cluster.run(&["uncordon", "n1"]);
    cluster.run(&["delete", "pod", "third", "--wait=false"]);
    cluster
        .wait("the second has its turn", "default", |c| c.json(&["get", "pod", "second"])["spec"]["nodeName"] == "n1");
}

#[test]
fn an_index_of_a_job_fails_for_itself() {
    let Some(cluster) = Cluster::start("controllers-indexes") else { return };
    cluster.node("n1", "8");
    let job = |name: &str, retries: i64, most: Option<i64>| {
        cluster.apply(&json!({"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": name}, "spec": {
            "completions": 3, "parallelism": 3, "completionMode": "Indexed", "suspend": false,
            "backoffLimitPerIndex": retries, "maxFailedIndexes": most,
            "template": {"metadata": {"annotations": {"fails": "1"}}, "spec": {"restartPolicy": "Never",
                "containers": [{"name": "c", "image": "localhost/a:1"}]}}}}));
    };
    let failed = |name: &str, reason: &str| {
        cluster.wait(&format!("{name} has failed: {reason}"), "default", |c| {
            let job = c.json(&["get", "job", name]);
            let conditions = job["status"]["conditions"].as_array().cloned().unwrap_or_default();
            conditions.iter().any(|c| c["type"] == "Failed" && c["reason"] == reason)
        });
        cluster.json(&["get", "job", name])["status"].take()
    };
    job("all", 1, None);
    let status = failed("all", "FailedIndexes");
    assert_eq!((&status["completedIndexes"], &status["failedIndexes"]), (&json!("0,2"), &json!("1")), "{status}");
    assert_eq!((&status["succeeded"], &status["failed"]), (&json!(2), &json!(2)), "one retry: {status}");
    let pods = cluster.items(&["get", "pods", "-l", "batch.kubernetes.io/job-completion-index=1"]);
    let mut counts: Vec<&Value> =
        pods.iter().map(|p| &p["metadata"]["annotations"]["batch.kubernetes.io/job-index-failure-count"]).collect();
    counts.sort_by_key(|c| c.to_string());
    assert_eq!(counts, [&json!("0"), &json!("1")]);
    assert!(pods.iter().all(|p| p["metadata"]["finalizers"].is_null()), "every pod is counted and free");
    // Whatever ends the job, the pod that waits for its index to be tried again is counted.
    cluster.apply(&json!({"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "late"}, "spec": {
        "completions": 2, "parallelism": 2, "completionMode": "Indexed", "backoffLimitPerIndex": 5,
        "template": {"metadata": {"annotations": {"fails": "1"}}, "spec": {
            "restartPolicy": "Never", "containers": [{"name": "c", "image": "localhost/a:1"}]}}}}));
    cluster.wait("one index is done, and one waits", "default", |c| {
        let pods = c.items(&["get", "pods", "-l", "job-name=late"]);
        let phases: Vec<&str> = pods.iter().filter_map(|p| p["status"]["phase"].as_str()).collect();
        phases.contains(&"Failed") && phases.contains(&"Succeeded")
    });
    cluster.run(&["patch", "job", "late", "-p", r#"{"spec":{"activeDeadlineSeconds":1}}"#]);
    failed("late", "DeadlineExceeded");
    let counted = |c: &Cluster| c.json(&["get", "job", "late"])["status"]["failed"] == 1;
    cluster.wait("the failed pod is counted", "default", counted);
    job("few", 0, Some(0));
    let status = failed("few", "MaxFailedIndexesExceeded");
    assert_eq!(status["failedIndexes"], "1", "{status}");
}

#[test]
fn what_a_node_out_of_service_had_is_let_go() {
    let Some(cluster) = Cluster::start("controllers-service") else { return };
    cluster.node("n1", "4");
    for name in ["early", "late"] {
        cluster
            .apply(&json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": {"nodeName": "n1",
            "containers": [{"name": "c", "image": "localhost/a:1"}]}}));
    }
    cluster.run(&["delete", "pod", "early", "--wait=false"]);
    cluster.run(&["taint", "node", "n1", "node.kubernetes.io/out-of-service=nodeshutdown:NoExecute"]);
    std::thread::sleep(Duration::from_secs(2));
    let is_there = |c: &Cluster, name: &str| c.0.kubectl(&["get", "pod", name]).is_ok();
    assert!(is_there(&cluster, "early"), "the node is ready, so it may still do its work");
    let down = json!({"status": {"conditions": [{"type": "Ready", "status": "False", "reason": "KubeletNotReady"}]}});
    cluster.run(&["patch", "node", "n1", "--subresource=status", "-p", &down.to_string()]);
    cluster.wait("the pod that was being deleted is gone", "none", |c| !is_there(c, "early"));
    // The taint evicts the other one; nobody plays the node, so only the collector can end it.
    cluster.wait("the evicted pod is gone too", "none", |c| !is_there(c, "late"));
}

#[test]
fn pods_with_claims_go_where_their_devices_are() {
    let Some(cluster) = Cluster::start("controllers-claims") else { return };
    cluster.node("n1", "4");
    cluster.node("n2", "4");
    cluster.apply(&json!({"apiVersion": "resource.k8s.io/v1", "kind": "DeviceClass", "metadata": {"name": "gpu"},
        "spec": {"selectors": [{"cel": {"expression": "device.driver == 'gpu.example.com'"}}],
            "config": [{"opaque": {"driver": "gpu.example.com", "parameters": {"kind": "Settings"}}}]}}));
    let device = |name: &str, model: &str, memory: &str, board: i64| {
        json!({"name": name, "capacity": {"memory": {"value": memory}},
            "attributes": {"model": {"string": model}, "board": {"int": board}}})
    };
    let slice = |node: &str, devices: Value| {
        cluster.apply(&json!({"apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice", "metadata": {"name": node},
            "spec": {"driver": "gpu.example.com", "nodeName": node, "devices": devices,
                "pool": {"name": node, "generation": 1, "resourceSliceCount": 1}}}));
    };
    slice("n1", json!([device("a", "small", "4Gi", 1), device("b", "small", "4Gi", 2)]));
    slice(
        "n2",
        json!([device("a", "large", "40Gi", 1), device("b", "large", "40Gi", 2), device("c", "large", "40Gi", 2)]),
    );
    let pod = |name: &str, claim: Value| {
        let template = format!("{name}-template");
        cluster.apply(&json!({"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaimTemplate",
            "metadata": {"name": template}, "spec": {"spec": {"devices": claim}}}));
        cluster.apply(&json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": {
            "resourceClaims": [{"name": "gpus", "resourceClaimTemplateName": template}],
            "containers": [{"name": "c", "image": "localhost/a:1", "resources": {"claims": [{"name": "gpus"}]}}]}}));
    };
    let exactly = |count: i64, expression: &str| {
        json!([{"name": "g", "exactly": {"deviceClassName": "gpu", "count": count,
            "selectors": [{"cel": {"expression": expression}}]}}])
    };
    let placed = |name: &str, node: &str| {
        cluster.wait(&format!("{name} is on {node}"), "none", |c| {
            c.json(&["get", "pod", name])["spec"]["nodeName"] == node
        });
        let claims = cluster.items(&["get", "resourceclaims"]);
        let claim = claims.into_iter().find(|c| c["metadata"]["ownerReferences"][0]["name"] == name);
        let claim = claim.expect("the pod has a claim");
        assert_eq!(claim["status"]["reservedFor"][0]["name"], name, "{claim}");
        let allocation = &claim["status"]["allocation"];
        assert_eq!(allocation["devices"]["config"][0]["source"], "FromClass", "{claim}");
        assert_eq!(
            allocation["nodeSelector"]["nodeSelectorTerms"][0]["matchFields"][0]["values"],
            json!([node]),
            "{claim}"
        );
        let results = allocation["devices"]["results"].as_array().cloned().unwrap_or_default();
        let names = results.iter().map(|r| r["device"].as_str().unwrap_or_default().to_owned());
        names.collect::<Vec<_>>()
    };
    let large = "device.capacity['gpu.example.com'].memory.compareTo(quantity('10Gi')) >= 0";
    let small = "device.attributes['gpu.example.com'].model == 'small'";
    // The first two of the large ones are on different boards.
    pod("pair", json!({"requests": exactly(2, large), "constraints": [{"matchAttribute": "gpu.example.com/board"}]}));
    assert_eq!(placed("pair", "n2"), ["b", "c"]);
    let either = json!([{"name": "g", "firstAvailable": [
        {"name": "two", "deviceClassName": "gpu", "count": 2, "selectors": [{"cel": {"expression": large}}]},
        {"name": "one", "deviceClassName": "gpu", "count": 1, "selectors": [{"cel": {"expression": large}}]},
    ]}]);
    pod("either", json!({"requests": either}));
    assert_eq!(placed("either", "n2"), ["a"]);
    pod(
        "all",
        json!({"requests": [{"name": "g", "exactly": {"deviceClassName": "gpu", "allocationMode": "All",
        "selectors": [{"cel": {"expression": small}}]}}]}),
    );
    assert_eq!(placed("all", "n1"), ["a", "b"]);
    pod("late", json!({"requests": exactly(1, small)}));
    cluster.wait("no device is left", "none", |c| {
        c.json(&["get", "pod", "late"])["status"].to_string().contains("2 cannot allocate all claims")
    });
    cluster.run(&["delete", "pod", "all", "--wait=false"]);
    cluster.wait("the pod that had them is gone", "default", |c| c.0.kubectl(&["get", "pod", "all"]).is_err());
    assert_eq!(placed("late", "n1"), ["a"]);
}

#[test]
fn jobs_daemons_and_stateful_sets_run() {
    let Some(cluster) = Cluster::start("controllers-workloads") else { return };
    cluster.node("n1", "8");
    cluster.node("n2", "8");
    let template = |labels: Value, restart: &str| {
        json!({"metadata": {"labels": labels}, "spec": {"restartPolicy": restart,
            "containers": [{"name": "c", "image": "localhost/a:1"}]}})
    };
    cluster.apply(&json!({"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "j"},
        "spec": {"completions": 3, "parallelism": 2, "completionMode": "Indexed", "template": template(json!({}), "Never")}}));
    cluster.wait("the job is complete", "default", |c| {
        let status = &c.json(&["get", "job", "j"])["status"];
        status["succeeded"] == 3 && status["completedIndexes"] == "0-2" && status["completionTime"].is_string()
    });
    let held = cluster.items(&["get", "pods"]).iter().any(|p| p["metadata"]["finalizers"].is_array());
    assert!(!held, "every pod is counted and free");
    cluster.apply(&json!({"apiVersion": "batch/v1", "kind": "CronJob", "metadata": {"name": "c"},
        "spec": {"schedule": "@every 1s", "jobTemplate": {"spec": {"template": template(json!({}), "Never")}}}}));
    cluster.wait("the cron job makes jobs", "default", |c| {
        c.items(&["get", "jobs"]).iter().any(|j| j["metadata"]["ownerReferences"][0]["kind"] == "CronJob")
    });
    cluster.run(&["delete", "cronjob", "c"]);
    cluster.run(&["delete", "job", "j"]);
    let labels = json!({"app": "ds"});
    cluster.apply(&json!({"apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": {"name": "ds"},
        "spec": {"selector": {"matchLabels": labels}, "template": template(labels, "Always")}}));
    cluster.wait("each node has its daemon", "default", |c| {
        let status = &c.json(&["get", "daemonset", "ds"])["status"];
        status["numberReady"] == 2 && status["desiredNumberScheduled"] == 2
    });
    let mut nodes: Vec<String> =
        cluster.items(&["get", "pods", "-l", "app=ds"]).iter().map(|p| p["spec"]["nodeName"].to_string()).collect();
    nodes.sort();
    assert_eq!(nodes, ["\"n1\"", "\"n2\""]);
    let labels = json!({"app": "sts"});
    cluster.apply(&json!({"apiVersion": "apps/v1", "kind": "StatefulSet", "metadata": {"name": "sts"},
        "spec": {"replicas": 3, "serviceName": "sts", "selector": {"matchLabels": labels},
            "template": template(labels, "Always")}}));
    cluster.wait("three pods in order", "default", |c| {
        c.json(&["get", "statefulset", "sts"])["status"]["readyReplicas"] == 3
    });
    let pods = cluster.items(&["get", "pods", "-l", "app=sts", "--sort-by=.metadata.creationTimestamp"]);
    let names: Vec<&str> = pods.iter().filter_map(|p| p["metadata"]["name"].as_str()).collect();
    assert_eq!(names, ["sts-0", "sts-1", "sts-2"]);
    cluster.run(&["set", "image", "statefulset/sts", "c=localhost/a:2"]);
    cluster.wait("all are replaced", "default", |c| {
        let pods = c.items(&["get", "pods", "-l", "app=sts"]);
        pods.len() == 3 && pods.iter().all(|p| p["spec"]["containers"][0]["image"] == "localhost/a:2")
    });
    // A set that is made once more, for what cannot be changed of it, takes over what the first one left behind as it is.
    let uids = |c: &Cluster| {
        let pods = c.items(&["get", "pods", "-l", "app in (ds,sts)", "--sort-by=.metadata.name"]);
        pods.iter().map(|p| p["metadata"]["uid"].to_string()).collect::<Vec<_>>()
    };
    let (before, revisions) = (uids(&cluster), cluster.items(&["get", "controllerrevisions"]).len());
    let sets = ["daemonset/ds", "statefulset/sts"].map(|set| {
        let mut object = cluster.json(&["get", set]);
        object.as_object_mut().expect("an object").remove("status");
        object["metadata"] = json!({"name": object["metadata"]["name"]});
        object
    });
    cluster.run(&["delete", "daemonset/ds", "statefulset/sts", "--cascade=orphan"]);
    sets.iter().for_each(|set| cluster.apply(set));
    cluster.wait("orphans are taken in", "default", |c| {
        let objects = c.items(&["get", "pods,controllerrevisions"]);
        let owned = objects.iter().all(|o| o["metadata"]["ownerReferences"].is_array());
        let numbers = |set: &str| c.json(&["get", set])["status"].take();
        owned
            && numbers("daemonset/ds")["updatedNumberScheduled"] == 2
            && numbers("statefulset/sts")["updatedReplicas"] == 3
    });
    assert_eq!(uids(&cluster), before, "nothing is restarted");
    assert_eq!(cluster.items(&["get", "controllerrevisions"]).len(), revisions);
    cluster.run(&["delete", "daemonset,statefulset", "--all", "--wait=false"]);
    cluster.wait("nothing is left", "default", |c| c.items(&["get", "pods,controllerrevisions"]).is_empty());
}

#[test]
fn secrets_get_tokens_that_live_as_long_as_their_account() {
    let Some(cluster) = Cluster::start("controllers-tokens") else { return };
    let named = |account: &str| json!({"kubernetes.io/service-account.name": account});
    cluster.run(&["create", "serviceaccount", "robot"]);
    for (secret, account) in [("of-robot", "robot"), ("of-nobody", "nobody")] {
        cluster.apply(&json!({"apiVersion": "v1", "kind": "Secret", "type": "kubernetes.io/service-account-token",
            "metadata": {"name": secret, "annotations": named(account)}}));
    }
    cluster.wait("the token is there and what has no account goes", "default", |c| {
        let names = c.run(&["get", "secrets", "-o", "name"]);
        names.trim() == "secret/of-robot" && c.json(&["get", "secret", "of-robot"])["data"]["token"].is_string()
    });
    let token = cluster.run(&["get", "secret", "of-robot", "-o", "go-template={{.data.token | base64decode}}"]);
    let review = json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", "spec": {"token": token}});
    let path = cluster.0.dir.join("review.json");
    std::fs::write(&path, review.to_string()).expect("writable");
    let status = |c: &Cluster| {
        let answer = c.json(&["create", "-f", path.to_str().expect("text")]);
        (answer["status"]["authenticated"] == true, answer["status"]["user"]["username"].clone())
    };
    assert_eq!(status(&cluster), (true, json!("system:serviceaccount:default:robot")));
    cluster.wait("its use is noted", "default", |c| {
        c.json(&["get", "secret", "of-robot"])["metadata"]["labels"]["kubernetes.io/legacy-token-last-used"].is_string()
    });
    let invalid = "kubernetes.io/legacy-token-invalid-since";
    cluster.run(&["label", "secret", "of-robot", &format!("{invalid}=2024-01-01")]);
    assert!(!status(&cluster).0, "a token that is marked invalid is none");
    cluster.run(&["label", "secret", "of-robot", &format!("{invalid}-")]);
    assert!(status(&cluster).0, "it is one again without the mark");
    cluster.run(&["delete", "serviceaccount", "robot"]);
    assert!(!status(&cluster).0, "the token ends with its account");
    cluster.wait("the secret goes too", "default", |c| c.items(&["get", "secrets"]).is_empty());
}

#[test]
fn nodes_get_their_part_of_the_pod_addresses() {
    let args = ["--allocate-node-cidrs", "--cluster-cidr=10.244.0.0/23,fd00::/56"];
    let Some(cluster) = Cluster::start_with("controllers-cidrs", &args) else { return };
    let parts = |c: &Cluster, node: &str| c.json(&["get", "node", node])["spec"]["podCIDRs"].clone();
    cluster.node("n1", "1");
    cluster.wait("the first part", "default", |c| parts(c, "n1") == json!(["10.244.0.0/24", "fd00::/64"]));
    cluster.node("n2", "1");
    cluster.wait("the second part", "default", |c| parts(c, "n2") == json!(["10.244.1.0/24", "fd00:0:0:1::/64"]));
    cluster.node("n3", "1");
    cluster.wait("no more parts", "default", |c| {
        c.items(&["get", "events", "-A"]).iter().any(|e| e["reason"] == "CIDRNotAvailable")
    });
    assert!(parts(&cluster, "n3").is_null());
}

/// Whoever makes nodes for pods that wait took one for a pod that had a place already, whose volume was being made.
#[test]
fn a_pod_whose_volume_is_being_made_tells_where_it_is_expected() {
    let Some(cluster) = Cluster::start("controllers-expected") else { return };
    cluster.node("n1", "4");
    cluster.apply(&json!({"apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "metadata": {"name": "slow"},
        "provisioner": "slow.example.com", "volumeBindingMode": "WaitForFirstConsumer"}));
    cluster.apply(&json!({"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "c"}, "spec": {
        "accessModes": ["ReadWriteOnce"], "storageClassName": "slow", "resources": {"requests": {"storage": "1Gi"}}}}));
    cluster.apply(&json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": {
        "containers": [{"name": "c", "image": "localhost/a:1"}],
        "volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "c"}}]}}));
    cluster.wait("it is expected on the node", "default", |c| {
        c.json(&["get", "pod", "p"])["status"]["nominatedNodeName"] == "n1"
    });
    assert!(cluster.json(&["get", "pod", "p"])["spec"]["nodeName"].is_null());
    cluster.apply(&json!({"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": "made"}, "spec": {
        "capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"], "storageClassName": "slow",
        "claimRef": {"namespace": "default", "name": "c"}, "hostPath": {"path": "/nowhere"}}}));
    cluster.wait("it is bound", "default", |c| c.json(&["get", "pod", "p"])["spec"]["nodeName"] == "n1");
    assert!(cluster.json(&["get", "pod", "p"])["status"]["nominatedNodeName"].is_null());
}

/// A claim of before stayed without a volume for good, and a pod waited ten minutes for one that nobody makes.
#[test]
fn claims_get_a_class_that_comes_later_and_nodes_where_it_can_make_volumes() {
    let Some(cluster) = Cluster::start("controllers-classes") else { return };
    cluster.node("n1", "4");
    cluster.apply(&json!({"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "c"}, "spec": {
        "accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}}));
    let claim = |c: &Cluster| c.json(&["get", "pvc", "c"]);
    cluster.wait("the claim waits", "default", |c| claim(c)["status"]["phase"] == "Pending");
    assert!(claim(&cluster)["spec"]["storageClassName"].is_null());
    cluster.apply(&json!({"apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "metadata": {"name": "slow",
        "annotations": {"storageclass.kubernetes.io/is-default-class": "true"}},
        "provisioner": "slow.example.com", "volumeBindingMode": "WaitForFirstConsumer"}));
    cluster.wait("it has the class", "default", |c| claim(c)["spec"]["storageClassName"] == "slow");
    cluster.apply(&json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": {
        "containers": [{"name": "c", "image": "localhost/a:1"}],
        "volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "c"}}]}}));
    const NODE: &str = "volume.kubernetes.io/selected-node";
    cluster.wait("a node is chosen", "default", |c| claim(c)["metadata"]["annotations"][NODE] == "n1");
    // What a provisioner does that cannot make the volume there.
    cluster.run(&["annotate", "pvc", "c", "volume.kubernetes.io/selected-node-"]);
    cluster.wait("the pod is told", "default", |c| {
        let condition = c.json(&["get", "pod", "p"])["status"]["conditions"][0]["message"].take();
        condition.as_str().is_some_and(|text| text.contains("provisioning failed for PVC"))
    });
    cluster.wait("it is tried again", "default", |c| claim(c)["metadata"]["annotations"][NODE] == "n1");
}

#[test]
fn controllers_scheduler_and_store_tell_how_they_are() {
    let Some(cluster) = Cluster::start("component-statuses") else { return };
    let all = cluster.items(&["get", "componentstatuses"]);
    let told: Vec<_> = all.iter().map(|part| (part["metadata"]["name"].clone(), part["conditions"].clone())).collect();
    let well = json!([{"type": "Healthy", "status": "True", "message": "ok"}]);
    assert_eq!(told, ["controller-manager", "etcd-0", "scheduler"].map(|name| (json!(name), well.clone())));
}

#[test]
fn a_range_of_service_addresses_stays_while_one_of_them_is_used() {
    let Some(cluster) = Cluster::start("service-ranges") else { return };
    let range = |part: &str| cluster.json(&["get", "servicecidr", "more"])[part].clone();
    let ready = || range("status")["conditions"][0].clone();
    cluster.apply(&json!({"apiVersion": "networking.k8s.io/v1", "kind": "ServiceCIDR", "metadata": {"name": "more"},
        "spec": {"cidrs": ["10.77.0.0/24"]}, "status": {"conditions": [{"type": "Ready", "status": "False",
        "reason": "Copied", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z"}]}}));
    cluster.wait("the range is ready", "default", |_| ready()["status"] == "True");
    assert_eq!(range("metadata")["finalizers"], json!(["networking.k8s.io/service-cidr-finalizer"]));
    assert_eq!(ready()["message"], "Kubernetes Service CIDR is ready");
    let owners =
        cluster.json(&["get", "servicecidr", "kubernetes", "--show-managed-fields"])["metadata"]["managedFields"]
            .take();
    let said = |o: &&Value| (&o["operation"], &o["subresource"]) == (&json!("Apply"), &json!("status"));
    let speaker = owners.as_array().into_iter().flatten().find(said).expect("the condition is applied");
    assert_eq!(speaker["manager"], "service-cidr-controller", "{owners}");
    let service = |name: &str, address: &str| {
        let spec = json!({"clusterIP": address, "ports": [{"port": 80}]});
        json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": name}, "spec": spec})
    };
    cluster.apply(&service("one", "10.77.0.5"));
    cluster.run(&["delete", "servicecidr", "more", "--wait=false"]);
    cluster.wait("the range tells why it stays", "default", |_| ready()["reason"] == "Terminating");
    let refused = cluster.0.create(&service("two", "10.77.0.6")).expect_err("the range is going").to_string();
    assert!(refused.contains("10.77.0.6"), "{refused}");
    cluster.run(&["delete", "service", "one"]);
    cluster.wait("the range goes", "default", |_| cluster.0.get("servicecidr", "more").is_err());
}

/// Each try names another pod. Where that was written into the status, the write was the next try's reason: thousands a
/// second, with an event of each.
#[test]
fn a_set_whose_pods_are_refused_waits_longer_and_longer() {
    let Some(cluster) = Cluster::start("refused-pods") else { return };
    cluster.run(&["create", "quota", "none", "--hard=pods=0"]);
    cluster.wait("the quota counts", "default", |c| c.json(&["get", "quota", "none"])["status"]["hard"].is_object());
    cluster.run(&["create", "deployment", "d", "--image=localhost/a:1", "--replicas=3"]);
    let failure = |what: &str| {
        let items = cluster.items(&["get", what]);
        let conditions = items.first().and_then(|set| set["status"]["conditions"].as_array().cloned());
        conditions.into_iter().flatten().find(|c| c["type"] == "ReplicaFailure")
    };
    cluster.wait("the deployment tells", "default", |_| failure("deployments").is_some());
    let told = failure("replicasets").expect("the set told the deployment");
    assert_eq!((&told["status"], &told["reason"]), (&json!("True"), &json!("FailedCreate")));
    let version = || {
        let list: Value = serde_json::from_str(&cluster.run(&["get", "--raw", "/api/v1/nodes"])).expect("a list");
        list["metadata"]["resourceVersion"].as_str().and_then(|v| v.parse::<u64>().ok()).expect("a version")
    };
    let before = version();
    std::thread::sleep(Duration::from_secs(3));
    assert!(version() - before < 60, "{} changes in three seconds", version() - before);
    assert_eq!(failure("replicasets"), Some(told));
    cluster.run(&["delete", "quota", "none"]);
    cluster.run(&["annotate", "replicaset", "--all", "again=now"]);
    cluster.wait("they come", "default", |c| c.items(&["get", "pods"]).len() == 3 && failure("replicasets").is_none());
}

/// The scheduler's events came through core/v1 once, whose field names stood in what it owns of them.
#[test]
fn the_scheduler_tells_its_events_in_the_newer_form() {
    let Some(cluster) = Cluster::start("controllers-scheduler-events") else { return };
    cluster.run(&["run", "p", "--image=localhost/a:1"]);
    let scheduled = |c: &Cluster, resource: &str| {
        let reason = ["get", resource, "--field-selector=reason=FailedScheduling", "--show-managed-fields"];
        c.items(&reason).into_iter().next()
    };
    cluster.wait("the scheduler complains", "default", |c| scheduled(c, "events.v1.events.k8s.io").is_some());
    let newer = scheduled(&cluster, "events.v1.events.k8s.io").expect("it is there");
    assert_eq!(newer["apiVersion"], "events.k8s.io/v1");
    assert_eq!((&newer["action"], &newer["type"]), (&json!("Scheduling"), &json!("Warning")));
    assert_eq!(newer["reportingController"], "default-scheduler");
    assert_eq!(newer["regarding"]["name"], "p");
    assert_eq!(newer["eventTime"].as_str().map(str::len), Some("2026-01-01T00:00:00.000000Z".len()), "{newer}");
    let owned = &newer["metadata"]["managedFields"][0];
    assert_eq!((&owned["manager"], &owned["apiVersion"]), (&json!("kube-scheduler"), &json!("events.k8s.io/v1")));
    assert!(owned["fieldsV1"]["f:note"].is_object() && owned["fieldsV1"]["f:regarding"].is_object(), "{owned}");
    let older = scheduled(&cluster, "events.v1.").expect("it is there");
    assert_eq!((&older["apiVersion"], &older["message"]), (&json!("v1"), &newer["note"]));
    assert_eq!((&older["source"], &older["firstTimestamp"]), (&json!({}), &Value::Null));
    assert_eq!((&older["reportingComponent"], older.get("count")), (&json!("default-scheduler"), None));
}
