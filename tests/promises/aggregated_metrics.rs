//! A server of metrics behind APIServices: requests are passed on in the user's name, and an autoscaler follows what it says.

use std::io::BufRead as _;
use std::process::{Child, Command, Stdio};

use anyhow::{Context as _, Result};
use base64::Engine as _;
use serde_json::{Value, json};
use tests::{Api, ApiServer};

const DEPLOYMENTS: &str = "/apis/apps/v1/namespaces/default/deployments";
const SERVICES: &str = "/apis/apiregistration.k8s.io/v1/apiservices";
const SCALERS: &str = "/apis/autoscaling/v2/namespaces/default/horizontalpodautoscalers";
const PODS: &str = "/api/v1/namespaces/default/pods";

/// A running server of metrics; ended with the test.
struct Metrics {
    child: Child,
    port: u16,
    bundle: String,
}

impl Drop for Metrics {
    fn drop(&mut self) {
        // Gone already is fine.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn start(server: &ApiServer, python: std::path::PathBuf) -> Result<Metrics> {
    let made = rcgen::generate_simple_self_signed(vec!["metrics.default.svc".to_owned()])?;
    std::fs::write(server.dir.join("server.crt"), made.cert.pem())?;
    std::fs::write(server.dir.join("server.key"), made.signing_key.serialize_pem())?;
    std::fs::copy(server.dir.join("pki/front-proxy-ca.crt"), server.dir.join("front.crt"))?;
    std::fs::write(server.dir.join("pods.json"), "[]")?;
    let script = tests::repository().join("tests/python/metrics_server.py");
    let mut child = Command::new(python).arg(script).arg(&server.dir).stdout(Stdio::piped()).spawn()?;
    let mut line = String::new();
    std::io::BufReader::new(child.stdout.take().context("its output")?).read_line(&mut line)?;
    let bundle = base64::engine::general_purpose::STANDARD.encode(made.cert.pem());
    Ok(Metrics { child, port: line.trim().parse().context("a port")?, bundle })
}

fn condition(object: &Value, kind: &str) -> Value {
    let all = object["status"]["conditions"].as_array().cloned().unwrap_or_default();
    all.into_iter().find(|c| c["type"] == kind).unwrap_or_default()
}

/// Registers the three APIs of metrics at one server.
async fn register(api: Api<'_>, metrics: &Metrics) -> Result<()> {
    // An address of this machine is no endpoint that anybody may name; a name is.
    let service =
        json!({"metadata": {"name": "metrics"}, "spec": {"type": "ExternalName", "externalName": "localhost"}});
    assert_eq!(api.post("/api/v1/namespaces/default/services", &service).await?.0, 201);
    for (group, version) in
        [("metrics.k8s.io", "v1beta1"), ("custom.metrics.k8s.io", "v1beta2"), ("external.metrics.k8s.io", "v1beta1")]
    {
        let name = format!("{version}.{group}");
        let service = json!({"namespace": "default", "name": "metrics", "port": metrics.port});
        let object = json!({"metadata": {"name": name}, "spec": {"group": group, "version": version, "service": service,
            "caBundle": metrics.bundle, "groupPriorityMinimum": 100, "versionPriority": 100}});
        let (code, said) = api.post(SERVICES, &object).await?;
        assert_eq!(code, 201, "{said}");
        let available = |_, s: &Value| condition(s, "Available")["status"] == "True";
        api.until(&format!("{SERVICES}/{name}"), available).await?;
    }
    Ok(())
}

#[tokio::test]
async fn autoscalers_follow_every_kind_of_metric_of_an_aggregated_server() -> Result<()> {
    let Some(python) = tests::python("ssl") else {
        tests::skipped("make test prepares .test/venv with Python");
        return Ok(());
    };
    let server = ApiServer::start("aggregated", &[])?;
    let api = Api::new(&server);
    let metrics = start(&server, python)?;
    register(api, &metrics).await?;

    // Discovery shows what the other server serves; a request arrives in the name of who sent it.
    let (_, groups) = api.get("/apis").await?;
    let groups = groups["groups"].as_array().cloned().unwrap_or_default();
    assert!(groups.iter().any(|g| g["name"] == "custom.metrics.k8s.io"));
    let (code, list) =
        api.get("/apis/external.metrics.k8s.io/v1beta1/namespaces/default/queue?labelSelector=queue%3Dworker").await?;
    assert_eq!((code, &list["kind"]), (200, &json!("ExternalMetricValueList")));
    let (code, said) = api.get("/apis/custom.metrics.k8s.io/v1beta2/namespaces/default/pods/*/nothing").await?;
    assert_eq!((code, &said["message"]), (404, &json!("the server could not find the metric nothing")));
    let log = std::fs::read_to_string(server.dir.join("requests.log"))?;
    let own =
        "front-proxy-client kubernetes-admin ['system:masters', 'system:authenticated'] /apis/external.metrics.k8s.io/";
    assert!(log.contains(own), "{log}");
    // A watch is passed on event by event.
    let path = "/apis/external.metrics.k8s.io/v1beta1/namespaces/default/queue?watch=1";
    let mut connection = tests::Connection::http1(&server).await?;
    let answer = connection.call(http::Method::GET, path, "", "").await?;
    assert_eq!(answer.body().split(|b| *b == b'\n').filter(|line| !line.is_empty()).count(), 2);

    let labels = json!({"app": "a"});
    let deployment = json!({"metadata": {"name": "a"}, "spec": {"replicas": 2, "selector": {"matchLabels": labels},
        "template": {"metadata": {"labels": labels}, "spec": {"containers": [{"name": "c", "image": "i"}]}}}});
    assert_eq!(api.post(DEPLOYMENTS, &deployment).await?.0, 201);
    let both = |_, list: &Value| list["items"].as_array().is_some_and(|items| items.len() == 2);
    let pods = api.until(PODS, both).await?;
    let names: Vec<&str> =
        pods["items"].as_array().into_iter().flatten().filter_map(|p| p["metadata"]["name"].as_str()).collect();
    let long_ago = "2026-01-01T00:00:00Z";
    for name in &names {
        let ready = json!({"type": "Ready", "status": "True", "lastTransitionTime": long_ago});
        let status = json!({"status": {"phase": "Running", "startTime": long_ago, "conditions": [ready]}});
        assert_eq!(api.merge(&format!("{PODS}/{name}/status"), &status).await?.0, 200);
    }
    std::fs::write(server.dir.join("pods.json"), json!(names).to_string())?;
    let there = |_, d: &Value| d["status"]["replicas"] == 2 && d["status"]["readyReplicas"] == 2;
    api.until(&format!("{DEPLOYMENTS}/a"), there).await?;

    let queue = json!({"name": "queue", "selector": {"matchLabels": {"queue": "worker"}}});
    let web = json!({"apiVersion": "v1", "kind": "Service", "name": "web"});
    let scaler = |name: &str, metrics: Value| {
        json!({"metadata": {"name": name}, "spec": {"minReplicas": 1, "maxReplicas": 9, "metrics": metrics,
            "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "a"}}})
    };
    let wanted = json!([
        {"type": "Resource", "resource": {"name": "cpu", "target": {"type": "AverageValue", "averageValue": "100m"}}},
        {"type": "Pods", "pods": {"metric": {"name": "requests"}, "target": {"type": "AverageValue", "averageValue": "10"}}},
        {"type": "Object", "object": {"metric": {"name": "hits"}, "describedObject": web, "target": {"type": "Value", "value": "10"}}},
        {"type": "External", "external": {"metric": queue, "target": {"type": "AverageValue", "averageValue": "30"}}},
    ]);
    let (code, said) = api.post(SCALERS, &scaler("a", wanted)).await?;
    assert_eq!(code, 201, "{said}");
    api.until(&format!("{DEPLOYMENTS}/a"), |_, d| d["spec"]["replicas"] == 3).await?;
    let scaled = |_, s: &Value| s["status"]["desiredReplicas"] == 3 && s["status"]["currentMetrics"].is_array();
    let found = api.until(&format!("{SCALERS}/a"), scaled).await?;
    let shown = json!([
        {"type": "Resource", "resource": {"name": "cpu", "current": {"averageValue": "100m"}}},
        {"type": "Pods", "pods": {"metric": {"name": "requests"}, "current": {"averageValue": "10"}}},
        {"type": "Object", "object": {"metric": {"name": "hits"}, "describedObject": web, "current": {"value": "10500m"}}},
        {"type": "External", "external": {"metric": queue, "current": {"averageValue": "45"}}},
    ]);
    assert_eq!(found["status"]["currentMetrics"], shown, "{found}");
    let own = "the HPA was able to successfully calculate a replica count from external metric queue(&LabelSelector{MatchLabels:\
        map[string]string{queue: worker,},MatchExpressions:[]LabelSelectorRequirement{},})";
    assert_eq!(condition(&found, "ScalingActive")["message"], own);
    let log = std::fs::read_to_string(server.dir.join("requests.log"))?;
    assert!(log.contains("front-proxy-client system:serviceaccount:kube-system:horizontal-pod-autoscaler"), "{log}");

    let other = json!([{"type": "Object", "object": {"metric": {"name": "none"}, "describedObject": web,
        "target": {"type": "Value", "value": "10"}}}]);
    let (code, said) = api.post(SCALERS, &scaler("b", other)).await?;
    assert_eq!(code, 201, "{said}");
    let inactive = |_, s: &Value| condition(s, "ScalingActive")["status"] == "False";
    let found = api.until(&format!("{SCALERS}/b"), inactive).await?;
    let active = condition(&found, "ScalingActive");
    assert_eq!(active["reason"], "FailedGetObjectMetric");
    assert_eq!(
        active["message"],
        "the HPA was unable to compute the replica count: unable to get metric none: Service on default web/unable to fetch \
         metrics from custom metrics API: the server could not find the metric none"
    );
    Ok(())
}
