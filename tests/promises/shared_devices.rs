//! Devices that several claims share, and those that are made ready before their pod is bound: what the scheduler writes
//! into claims, and what it waits for. Nodes and drivers are played by the test.

use anyhow::Result;
use http::Method;
use serde_json::{Value, json};
use tests::{Api, ApiServer};

const RESOURCE: &str = "/apis/resource.k8s.io/v1";
const CLAIMS: &str = "/apis/resource.k8s.io/v1/namespaces/default/resourceclaims";
const PODS: &str = "/api/v1/namespaces/default/pods";

async fn made(api: Api<'_>, path: &str, body: Value) {
    let (code, object) = api.post(path, &body).await.expect("an answer");
    assert_eq!(code, 201, "{object}");
}

async fn ready_node(api: Api<'_>, name: &str) -> Result<()> {
    made(api, "/api/v1/nodes", json!({"metadata": {"name": name}})).await;
    let room = json!({"cpu": "4", "memory": "8Gi", "pods": "20"});
    let ready = json!({"type": "Ready", "status": "True", "reason": "Test", "message": "",
        "lastHeartbeatTime": "2100-01-01T00:00:00Z", "lastTransitionTime": "2026-01-01T00:00:00Z"});
    let status = json!({"status": {"capacity": room, "allocatable": room, "conditions": [ready]}});
    assert_eq!(api.merge(&format!("/api/v1/nodes/{name}/status"), &status).await?.0, 200);
    Ok(())
}

async fn slice(api: Api<'_>, pool: &str, device: Value) {
    let pool = json!({"name": pool, "generation": 1, "resourceSliceCount": 1});
    let spec = json!({"driver": "d.example.com", "allNodes": true, "pool": pool, "devices": [device]});
    let name = &spec["pool"]["name"];
    made(api, &format!("{RESOURCE}/resourceslices"), json!({"metadata": {"name": name}, "spec": spec})).await;
}

/// A claim and a pod that uses it.
async fn ask(api: Api<'_>, name: &str, exactly: Value) {
    let mut exactly = exactly;
    exactly["deviceClassName"] = "things".into();
    let requests = json!([{"name": "r", "exactly": exactly}]);
    made(api, CLAIMS, json!({"metadata": {"name": name}, "spec": {"devices": {"requests": requests}}})).await;
    made(
        api,
        PODS,
        json!({"metadata": {"name": name}, "spec": {
            "terminationGracePeriodSeconds": 0, "tolerations": [{"operator": "Exists"}],
            "resourceClaims": [{"name": "c", "resourceClaimName": name}],
            "containers": [{"name": "main", "image": "i", "resources": {"claims": [{"name": "c"}]}}]}}),
    )
    .await;
}

async fn bound(api: Api<'_>, pod: &str) -> Result<String> {
    let pod = api.until(&format!("{PODS}/{pod}"), |_, pod| pod["spec"]["nodeName"].is_string()).await?;
    Ok(pod["spec"]["nodeName"].as_str().unwrap_or_default().to_owned())
}

fn result(claim: &Value) -> &Value {
    &claim["status"]["allocation"]["devices"]["results"][0]
}

async fn allocated(api: Api<'_>, claim: &str) -> Result<Value> {
    api.until(&format!("{CLAIMS}/{claim}"), |_, claim| result(claim).is_object()).await
}

#[tokio::test]
async fn a_device_is_shared_until_its_capacity_is_used_up() -> Result<()> {
    let server = ApiServer::start("shared-devices", &[])?;
    let api = Api::new(&server);
    ready_node(api, "one").await?;
    made(api, &format!("{RESOURCE}/deviceclasses"), json!({"metadata": {"name": "things"}, "spec": {}})).await;
    let policy = json!({"default": "2Gi", "validRange": {"min": "2Gi", "step": "2Gi"}});
    let memory = json!({"memory": {"value": "10Gi", "requestPolicy": policy}});
    slice(api, "p", json!({"name": "card", "allowMultipleAllocations": true, "capacity": memory})).await;
    let amount = |text: &str| json!({"capacity": {"requests": {"memory": text}}});
    ask(api, "first", amount("3Gi")).await;
    bound(api, "first").await?;
    ask(api, "second", amount("6Gi")).await;
    bound(api, "second").await?;
    let (first, second) = (allocated(api, "first").await?, allocated(api, "second").await?);
    assert_eq!(result(&first)["consumedCapacity"], json!({"memory": "4Gi"}), "rounded up");
    assert_eq!(result(&second)["consumedCapacity"], json!({"memory": "6Gi"}));
    let shares = [&result(&first)["shareID"], &result(&second)["shareID"]];
    assert!(shares.iter().all(|share| share.as_str().is_some_and(|s| s.len() == 36)) && shares[0] != shares[1]);
    // Nothing is left for a third, until the first goes.
    ask(api, "third", amount("1")).await;
    let waits = |_, pod: &Value| pod.to_string().contains("cannot allocate all claims");
    api.until(&format!("{PODS}/third"), waits).await?;
    api.ask(Method::DELETE, &format!("{PODS}/first"), "", &Value::Null).await?;
    bound(api, "third").await?;
    assert_eq!(result(&allocated(api, "third").await?)["consumedCapacity"], json!({"memory": "2Gi"}));
    Ok(())
}

#[tokio::test]
async fn a_pod_is_bound_when_its_device_is_ready_and_tries_again_when_it_cannot_be() -> Result<()> {
    let server = ApiServer::start("device-conditions", &[])?;
    let api = Api::new(&server);
    ready_node(api, "one").await?;
    made(api, &format!("{RESOURCE}/deviceclasses"), json!({"metadata": {"name": "things"}, "spec": {}})).await;
    let card = json!({"name": "card", "bindsToNode": true, "bindingConditions": ["ready"],
        "bindingFailureConditions": ["broken"]});
    slice(api, "p", card).await;
    ask(api, "a", json!({})).await;
    let claim = allocated(api, "a").await?;
    assert_eq!(result(&claim)["bindingConditions"], json!(["ready"]));
    assert_eq!(result(&claim)["bindingFailureConditions"], json!(["broken"]));
    let allocation = &claim["status"]["allocation"];
    assert!(allocation["allocationTimestamp"].is_string(), "{allocation}");
    let field = &allocation["nodeSelector"]["nodeSelectorTerms"][0]["matchFields"][0];
    assert_eq!(field["values"], json!(["one"]), "it binds to the node");
    let tell = async |kind: &str| {
        let condition = json!({"type": kind, "status": "True", "reason": "Told", "message": "so it is",
            "lastTransitionTime": "2026-01-01T00:00:00Z"});
        let device = json!({"driver": "d.example.com", "pool": "p", "device": "card", "conditions": [condition]});
        let told = api.merge(&format!("{CLAIMS}/a/status"), &json!({"status": {"devices": [device]}})).await?;
        assert_eq!(told.0, 200, "{}", told.1);
        anyhow::Ok(())
    };
    tell("broken").await?;
    let why = "running PreBind plugin \"DynamicResources\": claim a binding failed: reason=Told, message=\"so it is\"";
    let failed = |_, pod: &Value| pod["status"]["conditions"][0]["message"] == why;
    api.until(&format!("{PODS}/a"), failed).await?;
    // It is given the device once more, which nobody has said anything of.
    let again = |_, claim: &Value| result(claim).is_object() && claim["status"]["devices"].is_null();
    api.until(&format!("{CLAIMS}/a"), again).await?;
    let (_, pod) = api.get(&format!("{PODS}/a")).await?;
    assert!(pod["spec"]["nodeName"].is_null(), "{pod}");
    tell("ready").await?;
    assert_eq!(bound(api, "a").await?, "one");
    let (_, events) = api.get("/api/v1/namespaces/default/events").await?;
    let text = events.to_string();
    assert!(text.contains("waiting for binding conditions for device on node one"), "{text}");
    Ok(())
}
