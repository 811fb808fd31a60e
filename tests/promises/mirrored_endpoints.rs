//! Endpoints that somebody writes by hand are found by those who read slices alone.

use http::Method;
use serde_json::{Value, json};
use tests::{Api, ApiServer};

const ENDPOINTS: &str = "/api/v1/namespaces/default/endpoints";
const SLICES: &str =
    "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices?labelSelector=kubernetes.io%2Fservice-name%3Ddb";

fn items(list: &Value) -> Vec<Value> {
    list["items"].as_array().cloned().unwrap_or_default()
}

fn addresses(slice: &Value) -> Vec<(&str, bool)> {
    let all = slice["endpoints"].as_array().into_iter().flatten();
    all.filter_map(|e| Some((e["addresses"][0].as_str()?, e["conditions"]["ready"].as_bool()?))).collect()
}

#[tokio::test]
async fn endpoints_of_a_service_without_a_selector_are_mirrored() {
    let server = ApiServer::start("mirroring", &[]).expect("the server starts");
    let api = Api::new(&server);
    let service = json!({"metadata": {"name": "db"}, "spec": {"ports": [{"port": 5432}]}});
    assert_eq!(api.post("/api/v1/namespaces/default/services", &service).await.expect("an answer").0, 201);
    let endpoints = json!({"metadata": {"name": "db", "labels": {"team": "a"}, "annotations": {"note": "b"}}, "subsets": [
        {"addresses": [{"ip": "192.0.2.2"}, {"ip": "192.0.2.1"}], "notReadyAddresses": [{"ip": "192.0.2.3"}],
         "ports": [{"name": "sql", "port": 5432}]},
    ]});
    let (code, made) = api.post(ENDPOINTS, &endpoints).await.expect("an answer");
    assert_eq!(code, 201, "{made}");
    let list = api.until(SLICES, |_, list| items(list).len() == 1).await.expect("a slice is made");
    let slice = &items(&list)[0];
    assert_eq!(addresses(slice), [("192.0.2.1", true), ("192.0.2.2", true), ("192.0.2.3", false)]);
    assert_eq!(slice["ports"], json!([{"name": "sql", "port": 5432, "protocol": "TCP"}]));
    assert_eq!(slice["addressType"], "IPv4");
    let metadata = &slice["metadata"];
    assert!(metadata["name"].as_str().is_some_and(|name| name.starts_with("db-")), "{slice}");
    assert_eq!(
        metadata["labels"],
        json!({"team": "a", "kubernetes.io/service-name": "db",
            "endpointslice.kubernetes.io/managed-by": "endpointslicemirroring-controller.k8s.io"})
    );
    assert_eq!(metadata["annotations"], json!({"note": "b"}));
    let owner = &metadata["ownerReferences"][0];
    assert_eq!((&owner["kind"], &owner["uid"]), (&json!("Endpoints"), &made["metadata"]["uid"]));

    let fewer = json!({"subsets": [{"addresses": [{"ip": "192.0.2.9"}], "ports": [{"name": "sql", "port": 5432}]}]});
    assert_eq!(api.merge(&format!("{ENDPOINTS}/db"), &fewer).await.expect("an answer").0, 200);
    let changed = |_, list: &Value| items(list).first().is_some_and(|s| addresses(s) == [("192.0.2.9", true)]);
    let list = api.until(SLICES, changed).await.expect("it follows");
    assert_eq!(items(&list)[0]["metadata"]["uid"], metadata["uid"], "the slice stays");

    let skip = json!({"metadata": {"labels": {"endpointslice.kubernetes.io/skip-mirror": "true"}}});
    assert_eq!(api.merge(&format!("{ENDPOINTS}/db"), &skip).await.expect("an answer").0, 200);
    api.until(SLICES, |_, list| items(list).is_empty()).await.expect("it is not wanted any more");
    let again = json!({"metadata": {"labels": {"endpointslice.kubernetes.io/skip-mirror": null}}});
    assert_eq!(api.merge(&format!("{ENDPOINTS}/db"), &again).await.expect("an answer").0, 200);
    api.until(SLICES, |_, list| items(list).len() == 1).await.expect("it is wanted again");
    let gone = api.ask(Method::DELETE, &format!("{ENDPOINTS}/db"), "", &Value::Null).await.expect("an answer");
    assert_eq!(gone.0, 200);
    api.until(SLICES, |_, list| items(list).is_empty()).await.expect("it goes with its Endpoints");
}
