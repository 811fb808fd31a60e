//! An autoscaler keeps its workload within its bounds and says what keeps it from more; pods get the claims they ask for.

use serde_json::{Value, json};
use tests::{Api, ApiServer};

const SCALERS: &str = "/apis/autoscaling/v2/namespaces/default/horizontalpodautoscalers";
const DEPLOYMENTS: &str = "/apis/apps/v1/namespaces/default/deployments";
const DEVICES: &str = "/apis/resource.k8s.io/v1/namespaces/default";

fn condition(object: &Value, kind: &str) -> Value {
    let all = object["status"]["conditions"].as_array().cloned().unwrap_or_default();
    all.into_iter().find(|c| c["type"] == kind).unwrap_or_default()
}

#[tokio::test]
async fn an_autoscaler_without_metrics_keeps_the_bounds_and_says_what_is_missing() {
    let server = ApiServer::start("autoscaling", &[]).expect("the server starts");
    let api = Api::new(&server);
    let labels = json!({"app": "a"});
    let deployment = json!({"metadata": {"name": "a"}, "spec": {"replicas": 1, "selector": {"matchLabels": labels},
        "template": {"metadata": {"labels": labels}, "spec": {"containers": [{"name": "c", "image": "i"}]}}}});
    assert_eq!(api.post(DEPLOYMENTS, &deployment).await.expect("an answer").0, 201);
    let scaler = |name: &str, target: &str| {
        json!({"metadata": {"name": name}, "spec": {"minReplicas": 2, "maxReplicas": 4,
            "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": target},
            "metrics": [{"type": "Resource", "resource": {"name": "cpu",
                "target": {"type": "Utilization", "averageUtilization": 50}}}]}})
    };
    assert_eq!(api.post(SCALERS, &scaler("a", "a")).await.expect("an answer").0, 201);
    api.until(&format!("{DEPLOYMENTS}/a"), |_, d| d["spec"]["replicas"] == 2).await.expect("no fewer than it may be");
    // What it says of the change itself holds only until it looks again.
    let scaled = |_, s: &Value| s["status"]["lastScaleTime"].is_string() && s["status"]["desiredReplicas"] == 2;
    let found = api.until(&format!("{SCALERS}/a"), scaled).await.expect("it says so");
    assert_eq!(condition(&found, "AbleToScale")["status"], "True");

    // A change makes it look again before its time.
    let wider = json!({"spec": {"maxReplicas": 5}});
    assert_eq!(api.merge(&format!("{SCALERS}/a"), &wider).await.expect("an answer").0, 200);
    let inactive = |_, s: &Value| condition(s, "ScalingActive")["status"] == "False";
    let found = api.until(&format!("{SCALERS}/a"), inactive).await.expect("there are no metrics");
    let active = condition(&found, "ScalingActive");
    assert_eq!(active["reason"], "FailedGetResourceMetric");
    assert_eq!(
        active["message"],
        "the HPA was unable to compute the replica count: failed to get cpu utilization: unable to get metrics for resource \
         cpu: unable to fetch metrics from resource metrics API: the server could not find the requested resource (get \
         pods.metrics.k8s.io)"
    );

    assert_eq!(api.post(SCALERS, &scaler("b", "missing")).await.expect("an answer").0, 201);
    let unable = |_, s: &Value| condition(s, "AbleToScale")["reason"] == "FailedGetScale";
    let found = api.until(&format!("{SCALERS}/b"), unable).await.expect("there is no such workload");
    assert_eq!(
        condition(&found, "AbleToScale")["message"],
        "the HPA controller was unable to get the target's current scale: deployments.apps \"missing\" not found"
    );
}

#[tokio::test]
async fn a_pod_gets_the_claim_that_its_template_describes() {
    let server = ApiServer::start("claims", &["--scheduler=false"]).expect("the server starts");
    let api = Api::new(&server);
    let request = json!({"name": "r", "exactly": {"deviceClassName": "example.org"}});
    let template = json!({"metadata": {"name": "t"}, "spec": {"metadata": {"labels": {"team": "a"}},
        "spec": {"devices": {"requests": [request]}}}});
    let pod = json!({"metadata": {"name": "p"}, "spec": {
        "resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": "t"}],
        "containers": [{"name": "c", "image": "i", "resources": {"claims": [{"name": "gpu"}]}}]}});
    let pods = "/api/v1/namespaces/default/pods";
    let account = "/api/v1/namespaces/default/serviceaccounts/default";
    api.until(account, |code, _| code == 200).await.expect("the namespace is ready");
    // The pod may come first.
    let (code, made) = api.post(pods, &pod).await.expect("an answer");
    assert_eq!(code, 201, "{made}");
    let (code, said) = api.post(&format!("{DEVICES}/resourceclaimtemplates"), &template).await.expect("an answer");
    assert_eq!(code, 201, "{said}");
    let told = |_, p: &Value| p["status"]["resourceClaimStatuses"][0]["name"] == "gpu";
    let pod = api.until(&format!("{pods}/p"), told).await.expect("a claim is made");
    let name = pod["status"]["resourceClaimStatuses"][0]["resourceClaimName"].as_str().unwrap_or_default().to_owned();
    assert!(name.starts_with("p-gpu-"), "{name}");
    let (_, claim) = api.get(&format!("{DEVICES}/resourceclaims/{name}")).await.expect("an answer");
    assert_eq!(claim["metadata"]["annotations"], json!({"resource.kubernetes.io/pod-claim-name": "gpu"}));
    assert_eq!(claim["metadata"]["labels"], json!({"team": "a"}));
    assert_eq!(claim["metadata"]["ownerReferences"][0]["uid"], made["metadata"]["uid"]);

    // It goes when the pod is over, though the pod is still there.
    let over = json!({"status": {"phase": "Succeeded"}});
    assert_eq!(api.merge(&format!("{pods}/p/status"), &over).await.expect("an answer").0, 200);
    let claims = format!("{DEVICES}/resourceclaims");
    api.until(&claims, |_, list| list["items"] == json!([])).await.expect("the claim goes");
}

#[tokio::test]
async fn claims_are_given_back_when_their_last_pod_is_over_and_not_before_they_have_one() {
    let server = ApiServer::start("give-back", &["--scheduler=false"]).expect("the server starts");
    let api = Api::new(&server);
    let (claims, pods) = (format!("{DEVICES}/resourceclaims"), "/api/v1/namespaces/default/pods");
    api.until("/api/v1/namespaces/default/serviceaccounts/default", |code, _| code == 200).await.expect("is made");
    let pod = json!({"metadata": {"name": "p"}, "spec": {
        "resourceClaims": [{"name": "gpu", "resourceClaimName": "used"}],
        "containers": [{"name": "c", "image": "i", "resources": {"claims": [{"name": "gpu"}]}}]}});
    let (code, pod) = api.post(pods, &pod).await.expect("an answer");
    assert_eq!(code, 201, "{pod}");
    let user = json!({"resource": "pods", "name": "p", "uid": pod["metadata"]["uid"]});
    // As a scheduler does it: first the finalizer, then the devices, then the pod.
    for name in ["waiting", "used"] {
        let request = json!({"name": "r", "exactly": {"deviceClassName": "example.org"}});
        let claim = json!({"metadata": {"name": name, "finalizers": ["resource.kubernetes.io/delete-protection"]},
            "spec": {"devices": {"requests": [request]}}});
        let (code, said) = api.post(&claims, &claim).await.expect("an answer");
        assert_eq!(code, 201, "{said}");
        let device = json!({"request": "r", "driver": "example.org", "pool": "p", "device": "d"});
        let mut status = json!({"status": {"allocation": {"devices": {"results": [device]}}}});
        let path = format!("{claims}/{name}/status");
        let (code, said) = api.merge(&path, &status).await.expect("an answer");
        assert_eq!(code, 200, "{said}");
        if name == "used" {
            status["status"]["reservedFor"] = json!([user]);
            let (code, said) = api.merge(&path, &status).await.expect("an answer");
            assert_eq!(code, 200, "{said}");
        }
    }
    let over = json!({"status": {"phase": "Succeeded"}});
    assert_eq!(api.merge(&format!("{pods}/p/status"), &over).await.expect("an answer").0, 200);
    let free = |_, claim: &Value| claim["metadata"]["finalizers"].is_null();
    let used = api.until(&format!("{claims}/used"), free).await.expect("it is given back");
    assert!(used["status"]["allocation"].is_null() && used["status"]["reservedFor"].is_null(), "{used}");
    // It came first, so it has been looked at as well.
    let (_, waiting) = api.get(&format!("{claims}/waiting")).await.expect("an answer");
    assert!(waiting["status"]["allocation"].is_object() && waiting["metadata"]["finalizers"].is_array(), "{waiting}");
}
