//! What the server does to objects beside checking them: rights to parts of a claim, fields whose gate is off, and what
//! it fills in, keeps and refuses to delete.

use http::Method;
use serde_json::{Value, json};
use tests::{Api, ApiServer};

const RESOURCE: &str = "/apis/resource.k8s.io/v1/namespaces/lab";
const RBAC: &str = "/apis/rbac.authorization.k8s.io/v1";

async fn made(api: Api<'_>, path: &str, body: Value) -> Value {
    let (code, object) = api.post(path, &body).await.expect("an answer");
    assert_eq!(code, 201, "{object}");
    object
}

async fn deleted(api: Api<'_>, path: &str) -> (u16, Value) {
    api.ask(Method::DELETE, path, "", &Value::Null).await.expect("an answer")
}

fn role(name: &str, subresource: &str, verbs: &[&str], names: &[&str]) -> Value {
    json!({"metadata": {"name": name}, "rules": [{"apiGroups": ["resource.k8s.io"],
        "resources": [format!("resourceclaims/{subresource}")], "verbs": verbs, "resourceNames": names}]})
}

#[tokio::test]
async fn each_part_of_a_claim_takes_a_right_of_its_own() {
    let server = ApiServer::start("claim-rights", &[]).expect("the server starts");
    let api = Api::new(&server);
    made(api, "/api/v1/namespaces", json!({"metadata": {"name": "lab"}})).await;
    let claim = |name: &str, admin: bool| {
        let exactly = json!({"deviceClassName": "gpu", "adminAccess": admin});
        json!({"metadata": {"name": name}, "spec": {"devices": {"requests": [{"name": "a", "exactly": exactly}]}}})
    };
    let claims = format!("{RESOURCE}/resourceclaims");
    let (code, said) = api.post(&claims, &claim("watcher", true)).await.expect("an answer");
    let text = said["details"]["causes"][0]["message"].as_str().unwrap_or_default();
    assert_eq!((code, &said["details"]["causes"][0]["field"]), (422, &json!("spec.devices.requests[0].adminAccess")));
    assert!(
        text.ends_with("requires the `resource.kubernetes.io/admin-access: true` label on the containing namespace")
    );
    let marked = json!({"metadata": {"labels": {"resource.kubernetes.io/admin-access": "true"}}});
    assert_eq!(api.merge("/api/v1/namespaces/lab", &marked).await.expect("an answer").0, 200);
    made(api, &claims, claim("watcher", true)).await;

    made(api, &claims, claim("plain", false)).await;
    let bind = |role: &str| {
        let of = |kind: &str, name: &str| json!({"apiGroup": "rbac.authorization.k8s.io", "kind": kind, "name": name});
        json!({"metadata": {"name": role}, "roleRef": of("ClusterRole", role), "subjects": [of("User", "dora")]})
    };
    let grant = async |role: Value| {
        let name = role["metadata"]["name"].as_str().unwrap_or_default().to_owned();
        made(api, &format!("{RBAC}/clusterroles"), role).await;
        made(api, &format!("{RBAC}/clusterrolebindings"), bind(&name)).await;
    };
    grant(role("writes", "status", &["patch"], &[])).await;
    let dora = api.of("dora");
    let status = format!("{claims}/plain/status");
    let result = json!({"request": "a", "driver": "gpu.example.com", "pool": "p", "device": "d"});
    let allocated = json!({"status": {"allocation": {"devices": {"results": [result]}}}});
    let (code, said) = dora.merge(&status, &allocated).await.expect("an answer");
    let text = said["message"].as_str().unwrap_or_default();
    assert_eq!(code, 422, "{said}");
    assert!(text.contains("requires resource=\"resourceclaims/binding\", verb=\"patch\" permission"), "{text}");
    grant(role("binds", "binding", &["patch"], &[])).await;
    let (code, said) = dora.merge(&status, &allocated).await.expect("an answer");
    assert_eq!(code, 200, "{said}");

    let device = json!({"driver": "gpu.example.com", "pool": "p", "device": "d", "data": {"a": 1}});
    let told = json!({"status": {"devices": [device]}});
    let (code, said) = dora.merge(&status, &told).await.expect("an answer");
    assert_eq!((code, &said["details"]["causes"][0]["field"]), (422, &json!("status.devices")), "{said}");
    grant(role("speaks", "driver", &["arbitrary-node:patch"], &["gpu.example.com"])).await;
    let (code, said) = dora.merge(&status, &told).await.expect("an answer");
    assert_eq!(code, 200, "{said}");
    // What is given back is not spoken of any more.
    let freed = json!({"status": {"allocation": null}});
    let (code, said) = dora.merge(&status, &freed).await.expect("an answer");
    assert_eq!((code, &said["status"]["devices"]), (200, &Value::Null), "{said}");
}

#[tokio::test]
async fn fields_without_their_gate_go_and_new_pods_say_what_they_mean() {
    let server = ApiServer::start("gated", &["--scheduler=false"]).expect("the server starts");
    let api = Api::new(&server);
    let pods = "/api/v1/namespaces/default/pods";
    let container = json!({"name": "c", "image": "i", "lifecycle": {"stopSignal": "SIGUSR1"}});
    let term = json!({"topologyKey": "zone", "matchLabelKeys": ["app"], "labelSelector": {}});
    let pod = json!({"metadata": {"name": "p", "labels": {"app": "web"}}, "spec": {
        "containers": [container], "os": {"name": "linux"}, "schedulingGroup": {"podGroupName": "g"},
        "affinity": {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}}});
    let pod = made(api, pods, pod).await;
    assert_eq!(pod["spec"]["schedulingGroup"], Value::Null);
    assert_eq!(pod["spec"]["containers"][0]["lifecycle"], Value::Null);
    let term = &pod["spec"]["affinity"]["podAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"][0];
    let wanted = json!({"matchExpressions": [{"key": "app", "operator": "In", "values": ["web"]}]});
    assert_eq!(term["labelSelector"], wanted);
    let toleration = json!({"key": "k", "operator": "Lt", "value": "1"});
    let picky = json!({"metadata": {"name": "q"}, "spec": {
        "containers": [{"name": "c", "image": "i"}], "tolerations": [toleration]}});
    let (code, said) = api.post(pods, &picky).await.expect("an answer");
    assert_eq!((code, &said["details"]["causes"][0]["field"]), (422, &json!("spec.tolerations[0].operator")), "{said}");

    let priorities = "/apis/scheduling.k8s.io/v1/priorityclasses/system-node-critical";
    let (code, said) = deleted(api, priorities).await;
    assert_eq!(code, 403, "{said}");
    let classes = "/apis/storage.k8s.io/v1/volumeattributesclasses";
    let class = json!({"metadata": {"name": "gold"}, "driverName": "d.example.com", "parameters": {"iops": "1"}});
    let class = made(api, classes, class).await;
    assert_eq!(class["metadata"]["finalizers"], json!(["kubernetes.io/vac-protection"]));
    let claims = "/api/v1/namespaces/default/persistentvolumeclaims";
    let claim = json!({"metadata": {"name": "c"}, "spec": {"accessModes": ["ReadWriteOnce"],
        "volumeAttributesClassName": "gold", "resources": {"requests": {"storage": "1Gi"}}}});
    made(api, claims, claim).await;
    let gold = format!("{classes}/gold");
    assert_eq!(deleted(api, &gold).await.0, 200);
    let (code, held) = api.get(&gold).await.expect("an answer");
    assert_eq!((code, held["metadata"]["deletionTimestamp"].is_string()), (200, true));
    assert_eq!(deleted(api, &format!("{claims}/c")).await.0, 200);
    api.until(&gold, |code, _| code == 404).await.expect("the class goes with its last user");
}

#[tokio::test]
async fn what_is_not_there_is_answered_before_what_is_wrong_with_the_request() {
    let server = ApiServer::start("missing", &[]).expect("the server starts");
    let api = Api::new(&server);
    const MAPS: &str = "/api/v1/namespaces/default/configmaps";
    let told = async |method: Method, path: &str, media: &str, body: Value| {
        let (code, said) = api.ask(method, path, media, &body).await.expect("an answer");
        (code, said["message"].as_str().unwrap_or_default().to_owned())
    };
    let (json_patch, strategic) = ("application/json-patch+json", "application/strategic-merge-patch+json");
    // A patch is read when there is something to patch.
    let unread = told(Method::PATCH, &format!("{MAPS}/none"), json_patch, json!({})).await;
    assert_eq!(unread, (404, "configmaps \"none\" not found".to_owned()));
    let unfit = told(Method::GET, &format!("{MAPS}/a%25b"), "", Value::Null).await;
    assert_eq!(unfit, (400, "Name parameter invalid: \"a%b\": may not contain '%'".to_owned()));

    made(api, MAPS, json!({"metadata": {"name": "a", "resourceVersion": "0"}})).await;
    let versioned = json!({"metadata": {"name": "b", "resourceVersion": "5"}});
    let refused = told(Method::POST, MAPS, "application/json", versioned.clone()).await;
    assert_eq!(refused, (500, "resourceVersion should not be set on objects to be created".to_owned()));
    assert_eq!(told(Method::POST, &format!("{MAPS}?dryRun=All"), "application/json", versioned).await.0, 201);
    assert_eq!(told(Method::PATCH, &format!("{MAPS}/a"), json_patch, json!({})).await.0, 400);
    assert_eq!(told(Method::PATCH, &format!("{MAPS}/a"), strategic, json!({"kind": "Other"})).await.0, 200);

    const LEASES: &str = "/apis/coordination.k8s.io/v1/namespaces/default/leases";
    let lease = |metadata: Value| json!({"metadata": metadata, "spec": {}});
    let put = async |name: &str, metadata: Value| {
        told(Method::PUT, &format!("{LEASES}/{name}"), "application/json", lease(metadata)).await
    };
    assert_eq!(put("l", json!({"name": "l", "resourceVersion": "7"})).await.0, 201, "it is made anew");
    let (code, why) = put("m", json!({"name": "m", "uid": "u"})).await;
    assert!(code == 409 && why.contains("Key: /registry/leases/default/m, "), "{why}");
    let unnamed = put("l", json!({})).await;
    let why = "the name of the object (l based on URL) was undeterminable: name must be provided";
    assert_eq!(unnamed, (400, why.to_owned()));
}
