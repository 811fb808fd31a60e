//! The OpenAPI documents are what generators of clients, the Python one among them, take for granted: names of operations
//! are unique, variables of paths are declared, references lead somewhere, and each operation says what it answers.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};
use tests::{Api, ApiServer};

const METHODS: [&str; 7] = ["get", "put", "post", "delete", "options", "head", "patch"];

/// Every reference inside of a value.
fn references<'v>(value: &'v Value, out: &mut BTreeSet<&'v str>) {
    match value {
        Value::Object(members) => {
            out.extend(value["$ref"].as_str());
            members.values().for_each(|member| references(member, out));
        }
        Value::Array(entries) => entries.iter().for_each(|entry| references(entry, out)),
        _ => {}
    }
}

/// A list of parameters, each by its place and name. References are followed.
fn parameters<'v>(document: &'v Value, list: &'v Value) -> BTreeSet<(&'v str, &'v str)> {
    let all: Vec<(&str, &str)> = list
        .as_array()
        .into_iter()
        .flatten()
        .map(|parameter| match parameter["$ref"].as_str().and_then(|place| place.strip_prefix('#')) {
            Some(place) => document.pointer(place).expect("a reference leads somewhere"),
            None => parameter,
        })
        .map(|parameter| {
            let text = |member: &str| parameter[member].as_str().unwrap_or_else(|| panic!("no {member}: {parameter}"));
            (text("in"), text("name"))
        })
        .collect();
    let once: BTreeSet<_> = all.iter().copied().collect();
    assert_eq!(once.len(), all.len(), "one of them is there twice: {list}");
    once
}

/// What stands in braces.
fn variables(path: &str) -> BTreeSet<&str> {
    path.split('{').skip(1).filter_map(|rest| rest.split_once('}')).map(|(name, _)| name).collect()
}

/// Checks a document; returns its operations by their names, with their paths and methods.
fn checked(name: &str, document: &Value) -> BTreeMap<String, String> {
    let mut wanted = BTreeSet::new();
    references(document, &mut wanted);
    for place in wanted {
        let found = place.strip_prefix('#').and_then(|place| document.pointer(place));
        assert!(found.is_some_and(Value::is_object), "{name}: {place} leads nowhere");
    }
    let mut operations = BTreeMap::new();
    for (path, item) in document["paths"].as_object().expect("paths") {
        let common = parameters(document, &item["parameters"]);
        for method in METHODS.iter().filter(|method| item[**method].is_object()) {
            let (operation, place) = (&item[*method], format!("{method} {path}"));
            let own = parameters(document, &operation["parameters"]);
            assert!(own.is_disjoint(&common), "{name}: {place} says twice what it is asked with");
            let of_path = common.union(&own).filter(|(place, _)| *place == "path").map(|(_, name)| *name);
            assert_eq!(of_path.collect::<BTreeSet<_>>(), variables(path), "{name}: {place}");
            let responses = operation["responses"].as_object().expect("responses");
            assert!(responses.contains_key("200") && responses.contains_key("401"), "{name}: {place}");
            assert!(responses.values().all(|response| response["description"].is_string()), "{name}: {place}");
            assert!(operation["tags"][0].is_string() && operation["description"].is_string(), "{name}: {place}");
            let id = operation["operationId"].as_str().unwrap_or_else(|| panic!("{name}: {place} has no name"));
            let earlier = operations.insert(id.to_owned(), place.clone());
            assert_eq!(earlier, None, "{name}: {place} is called {id} as well");
        }
    }
    operations
}

fn owls() -> Value {
    let schema = json!({"type": "object", "properties": {"spec": {"type": "object", "properties": {
        "replicas": {"type": "integer"}}}, "status": {"type": "object", "properties": {"replicas": {"type": "integer"}}}}});
    let scale = json!({"specReplicasPath": ".spec.replicas", "statusReplicasPath": ".status.replicas"});
    json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": "owls.x.example.com"}, "spec": {"group": "x.example.com", "scope": "Namespaced",
            "names": {"plural": "owls", "kind": "Owl"}, "versions": [{"name": "v1", "served": true, "storage": true,
                "schema": {"openAPIV3Schema": schema}, "subresources": {"status": {}, "scale": scale}}]}})
}

#[tokio::test(flavor = "multi_thread")]
async fn documents_are_what_generators_of_clients_take_for_granted() {
    let flags = ["--controllers=-*", "--scheduler=false"];
    let server = ApiServer::start("api-documents", &flags).expect("the server starts");
    let api = Api::new(&server);
    let (code, made) =
        api.post("/apis/apiextensions.k8s.io/v1/customresourcedefinitions", &owls()).await.expect("an answer");
    assert_eq!(code, 201, "{made}");
    let served = |code: u16, index: &Value| code == 200 && index["paths"]["apis/x.example.com/v1"].is_object();
    let index = api.until("/openapi/v3", served).await.expect("the custom group is told of");

    let (code, older) = api.get("/openapi/v2").await.expect("an answer");
    assert_eq!(code, 200);
    let all = checked("v2", &older);
    let mut newer = BTreeMap::new();
    for (key, said) in index["paths"].as_object().expect("an index") {
        let place = said["serverRelativeURL"].as_str().expect("where it is");
        let (code, document) = api.get(place).await.expect("an answer");
        assert_eq!(code, 200, "{key}: {document}");
        newer.append(&mut checked(key, &document));
    }
    assert_eq!(newer, all, "both formats tell of the same operations");
    assert!(!index["paths"]["apis/x.example.com"].is_object() && index["paths"]["apis/apps"].is_object());

    const POD: &str = "/api/v1/namespaces/{namespace}/pods/{name}";
    const OWL: &str = "/apis/x.example.com/v1/namespaces/{namespace}/owls/{name}";
    for (name, place) in [
        ("createCoreV1NamespacedPod", "post /api/v1/namespaces/{namespace}/pods".to_owned()),
        ("connectCoreV1GetNamespacedPodExec", format!("get {POD}/exec")),
        ("connectCoreV1HeadNamespacedPodProxyWithPath", format!("head {POD}/proxy/{{path}}")),
        ("patchCoreV1NamespacedPodResize", format!("patch {POD}/resize")),
        ("watchCoreV1PodListForAllNamespaces", "get /api/v1/watch/pods".to_owned()),
        ("getCodeVersion", "get /version/".to_owned()),
        ("readXExampleComV1NamespacedOwlScale", format!("get {OWL}/scale")),
        ("replaceXExampleComV1NamespacedOwlStatus", format!("put {OWL}/status")),
    ] {
        assert_eq!(all.get(name), Some(&place), "{name}");
    }
    let patch = &older["paths"][format!("{OWL}/scale").as_str()]["patch"];
    let media = ["application/json-patch+json", "application/merge-patch+json", "application/apply-patch+yaml"];
    assert_eq!(patch["consumes"], json!(media), "nothing custom has merge keys");
    assert_eq!(patch["responses"]["200"]["schema"]["$ref"], "#/definitions/io.k8s.api.autoscaling.v1.Scale");
}
