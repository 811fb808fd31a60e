//! Kinds that clients bring are served like the server's own.

use std::time::{Duration, Instant};

use http::Method;
use serde_json::{Value, json};
use tests::{Api, ApiServer, Connection, Hook};

const DEFINITIONS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
const JSON: &str = "application/json";

fn definition(plural: &str, kind: &str, versions: Value) -> Value {
    json!({"metadata": {"name": format!("{plural}.example.com")}, "spec": {
        "group": "example.com", "scope": "Namespaced", "versions": versions,
        "names": {"plural": plural, "singular": kind.to_lowercase(), "kind": kind},
    }})
}

async fn define(api: Api<'_>, definition: &Value) {
    let (code, said) = api.post(DEFINITIONS, definition).await.expect("an answer");
    assert_eq!(code, 201, "{said}");
    let name = definition["metadata"]["name"].as_str().expect("it has a name");
    let established = |_: u16, said: &Value| {
        let conditions = said["status"]["conditions"].as_array().into_iter().flatten();
        conditions.into_iter().any(|c| c["type"] == "Established" && c["status"] == "True")
    };
    api.until(&format!("{DEFINITIONS}/{name}"), established).await.expect("it is established");
}

fn widgets() -> Value {
    let spec = json!({"type": "object", "required": ["size"], "properties": {
        "size": {"type": "integer", "minimum": 1, "maximum": 9},
        "color": {"type": "string", "default": "red", "pattern": "^[a-z]{1,10}$"},
        "most": {"type": "integer"},
        "replicas": {"type": "integer"},
    }, "x-kubernetes-validations": [{"rule": "!has(self.most) || self.size <= self.most", "message": "size is at most most"}]});
    let status =
        json!({"type": "object", "properties": {"replicas": {"type": "integer"}, "phase": {"type": "string"}}});
    definition(
        "widgets",
        "Widget",
        json!([{
            "name": "v1", "served": true, "storage": true,
            "schema": {"openAPIV3Schema": {"type": "object", "properties": {"spec": spec, "status": status}}},
            "subresources": {"status": {}, "scale": {"specReplicasPath": ".spec.replicas", "statusReplicasPath": ".status.replicas"}},
            "additionalPrinterColumns": [{"name": "Size", "type": "integer", "jsonPath": ".spec.size"}],
            "selectableFields": [{"jsonPath": ".spec.color"}],
        }]),
    )
}

#[tokio::test(flavor = "multi_thread")]
async fn custom_objects_follow_their_definition() {
    let server = ApiServer::start("widgets", &["--controllers=-*"]).expect("the server starts");
    let api = Api::new(&server);
    define(api, &widgets()).await;
    let all = "/apis/example.com/v1/namespaces/default/widgets";
    let widget = |name: &str, spec: Value| json!({"apiVersion": "example.com/v1", "kind": "Widget", "metadata": {"name": name}, "spec": spec});
    let post = async |name: &str, spec: Value| api.post(all, &widget(name, spec)).await.expect("an answer");

    // Pruned, with defaults.
    let (code, made) = post("a", json!({"size": 3, "extra": true})).await;
    assert_eq!((code, &made["spec"]), (201, &json!({"size": 3, "color": "red"})), "{made}");
    let (_, blue) = post("b", json!({"size": 4, "color": "blue"})).await;
    assert_eq!(blue["metadata"]["generation"], 1);

    // A body that is no object is refused in the words that built-in kinds have.
    let (code, said) = api.post(all, &json!([])).await.expect("an answer");
    assert_eq!((code, said["reason"].as_str()), (400, Some("BadRequest")), "{said}");
    let message = said["message"].as_str().unwrap_or_default();
    assert!(message.contains("json: cannot unmarshal array into Go value of type struct {"), "{said}");
    // A request without a body, which is what null stands for here.
    let (code, said) = api.post(all, &Value::Null).await.expect("an answer");
    let message = said["message"].as_str().unwrap_or_default();
    assert_eq!((code, said["reason"].as_str()), (400, Some("BadRequest")), "{said}");
    assert!(message.contains("couldn't get version/kind; json parse error: unexpected end of JSON input"), "{said}");

    for (spec, why) in [
        (json!({"size": 10}), "spec.size in body should be less than or equal to 9"),
        (json!({"size": "big"}), "spec.size in body must be of type integer: \"string\""),
        (json!({}), "spec.size: Required value"),
        (json!({"size": 1, "color": "RED"}), "spec.color in body should match '^[a-z]{1,10}$'"),
        (json!({"size": 5, "most": 4}), "size is at most most"),
    ] {
        let (code, said) = post("bad", spec).await;
        let text = said["message"].as_str().unwrap_or_default();
        assert!(code == 422 && text.contains(why), "{why}: {said}");
    }

    // A narrower schema spares values that stay as they are.
    let narrower = json!([{"op": "replace", "path": "/spec/versions/0/schema/openAPIV3Schema/properties/spec/properties/size/maximum", "value": 3}]);
    let path = format!("{DEFINITIONS}/widgets.example.com");
    let patched = api.ask(Method::PATCH, &path, "application/json-patch+json", &narrower).await.expect("an answer");
    assert_eq!(patched.0, 200, "{}", patched.1);
    let begun = Instant::now();
    while post("probe", json!({"size": 4})).await.0 != 422 {
        assert!(begun.elapsed() < Duration::from_secs(20), "the new schema counts");
        let _ = api.ask(Method::DELETE, &format!("{all}/probe"), JSON, &Value::Null).await.expect("an answer");
    }
    let (code, said) = api.merge(&format!("{all}/b"), &json!({"spec": {"most": 4}})).await.expect("an answer");
    assert_eq!(code, 200, "{said}");
    assert_eq!(
        api.merge(&format!("{all}/b"), &json!({"spec": {"size": 5, "most": 9}})).await.expect("an answer").0,
        422
    );

    // Status and scale are written apart.
    let status = json!({"status": {"replicas": 2, "phase": "on"}, "spec": {"size": 1}});
    let (_, said) = api.merge(&format!("{all}/a/status"), &status).await.expect("an answer");
    assert_eq!((&said["spec"]["size"], &said["status"]["phase"]), (&json!(3), &json!("on")), "{said}");
    let (code, scale) =
        api.merge(&format!("{all}/a/scale"), &json!({"spec": {"replicas": 7}})).await.expect("an answer");
    assert_eq!((code, &scale["kind"], &scale["status"]["replicas"]), (200, &json!("Scale"), &json!(2)), "{scale}");
    // A number that an object does not say is missed, and one that is none is the object's fault.
    let of_b = format!("{all}/b/scale");
    let (code, said) = api.get(&of_b).await.expect("an answer");
    assert!(
        code == 500 && said["message"].as_str().is_some_and(|m| m.ends_with("\".spec.replicas\" does not exist")),
        "{said}"
    );
    let (code, said) = api.merge(&of_b, &json!({"metadata": {}})).await.expect("an answer");
    assert_eq!((code, &said["message"]), (400, &json!("the spec replicas field \".spec.replicas\" cannot be empty")));
    let (code, said) = api.merge(&of_b, &json!({"spec": {"replicas": -1}})).await.expect("an answer");
    assert_eq!((code, &said["details"]["kind"]), (422, &json!("Widget")), "{said}");
    assert_eq!(said["details"]["causes"][0]["field"], ".spec.replicas", "{said}");
    let (_, said) = api.get(&format!("{all}/a")).await.expect("an answer");
    assert_eq!(said["spec"]["replicas"], 7);

    // Columns, and fields to select by.
    let (_, list) = api.get(&format!("{all}?fieldSelector=spec.color%3Dblue")).await.expect("an answer");
    let names: Vec<&Value> = list["items"].as_array().into_iter().flatten().map(|w| &w["metadata"]["name"]).collect();
    assert_eq!(names, ["b"]);
    let request = http::Request::get(all).header("host", "127.0.0.1");
    let request = request.header("accept", "application/json;as=Table;v=v1;g=meta.k8s.io");
    let mut connection = Connection::http1(&server).await.expect("a connection");
    let answer = connection.send(request.body(Default::default()).expect("a request")).await.expect("an answer");
    let table: Value = serde_json::from_slice(answer.body()).expect("JSON");
    let columns: Vec<&Value> =
        table["columnDefinitions"].as_array().into_iter().flatten().map(|c| &c["name"]).collect();
    assert_eq!(columns, ["Name", "Size"]);
    assert_eq!(table["rows"][0]["cells"], json!(["a", 3]));
}

/// A version names its one field `color`, the other `colour`; label `no` makes it fail.
fn convert(_path: &str, review: &Value) -> Value {
    let request = &review["request"];
    let objects = request["objects"].as_array().cloned().unwrap_or_default();
    let to = &request["desiredAPIVersion"];
    let refused = objects.iter().any(|o| o["metadata"]["labels"]["no"].is_string());
    let converted: Vec<Value> = objects
        .into_iter()
        .map(|mut object| {
            let (from, into) = if *to == "example.com/v2" { ("color", "colour") } else { ("colour", "color") };
            if let Some(value) = object["spec"].as_object_mut().and_then(|spec| spec.remove(from)) {
                object["spec"][into] = value;
            }
            object["apiVersion"] = to.clone();
            object["metadata"]["annotations"]["converted"] = to.clone();
            object["metadata"]["generation"] = 77.into();
            object
        })
        .collect();
    let result =
        if refused { json!({"status": "Failure", "message": "not this one"}) } else { json!({"status": "Success"}) };
    json!({"kind": "ConversionReview", "apiVersion": "apiextensions.k8s.io/v1",
        "response": {"uid": request["uid"], "result": result, "convertedObjects": converted}})
}

#[tokio::test(flavor = "multi_thread")]
async fn a_webhook_converts_between_versions() {
    let server = ApiServer::start("conversion", &["--controllers=-*"]).expect("the server starts");
    let hook = Hook::start(convert).await.expect("the webhook starts");
    let api = Api::new(&server);
    let version = |name: &str, field: &str, storage: bool| {
        let spec = json!({"type": "object", "properties": {field: {"type": "string"}}});
        let schema = json!({"type": "object", "properties": {"spec": spec}});
        json!({"name": name, "served": true, "storage": storage, "schema": {"openAPIV3Schema": schema}})
    };
    let versions = json!([version("v1", "color", true), version("v2", "colour", false)]);
    let mut definition = definition("paints", "Paint", versions);
    let webhook = json!({"conversionReviewVersions": ["v1"], "clientConfig": hook.client_config("/convert")});
    definition["spec"]["conversion"] = json!({"strategy": "Webhook", "webhook": webhook});
    define(api, &definition).await;
    let at = |version: &str| format!("/apis/example.com/{version}/namespaces/default/paints");
    let paint = |name: &str, version: &str, spec: Value| json!({"apiVersion": format!("example.com/{version}"), "kind": "Paint", "metadata": {"name": name}, "spec": spec});

    // Written in one version, stored in the other, read in both.
    let (code, made) = api.post(&at("v2"), &paint("a", "v2", json!({"colour": "red"}))).await.expect("an answer");
    assert_eq!(
        (code, &made["apiVersion"], &made["spec"]),
        (201, &json!("example.com/v2"), &json!({"colour": "red"})),
        "{made}"
    );
    assert_eq!(made["metadata"]["generation"], 1, "a webhook has no say in this");
    let calls = hook.seen("/convert").len();
    let (_, stored) = api.get(&format!("{}/a", at("v1"))).await.expect("an answer");
    assert_eq!(
        (&stored["spec"], &stored["metadata"]["annotations"]["converted"]),
        (&json!({"color": "red"}), &json!("example.com/v1"))
    );
    assert_eq!(hook.seen("/convert").len(), calls, "what is stored so is read without the webhook");

    // Objects of a list go in one call.
    for name in ["b", "c"] {
        assert_eq!(api.post(&at("v1"), &paint(name, "v1", json!({"color": "blue"}))).await.expect("an answer").0, 201);
    }
    let calls = hook.seen("/convert").len();
    let (_, list) = api.get(&at("v2")).await.expect("an answer");
    let colours: Vec<&Value> = list["items"].as_array().into_iter().flatten().map(|p| &p["spec"]["colour"]).collect();
    assert_eq!(colours, ["red", "blue", "blue"], "{list}");
    assert_eq!(hook.seen("/convert").len(), calls + 1);

    // A patch is made in the version that is asked for.
    let patch = json!({"spec": {"colour": "green"}});
    let (code, said) = api.merge(&format!("{}/b", at("v2")), &patch).await.expect("an answer");
    assert_eq!((code, &said["spec"]), (200, &json!({"colour": "green"})), "{said}");
    let (_, stored) = api.get(&format!("{}/b", at("v1"))).await.expect("an answer");
    assert_eq!(stored["spec"], json!({"color": "green"}));

    // Watches see events in their version.
    let path = format!("{}?watch=true&timeoutSeconds=1&resourceVersion=0", at("v2"));
    let mut connection = Connection::http1(&server).await.expect("a connection");
    let answer = connection.call(Method::GET, &path, "", "").await.expect("an answer");
    let events: Vec<Value> =
        answer.body().split(|b| *b == b'\n').filter_map(|line| serde_json::from_slice(line).ok()).collect();
    let seen: Vec<&Value> = events.iter().map(|event| &event["object"]["spec"]["colour"]).collect();
    assert_eq!(seen, ["red", "green", "blue"], "{events:?}");

    // What cannot be converted is told in upstream's words.
    let mut refused = paint("d", "v2", json!({"colour": "red"}));
    refused["metadata"]["labels"] = json!({"no": "x"});
    let (code, said) = api.post(&at("v2"), &refused).await.expect("an answer");
    let wanted = "conversion webhook for example.com/v2, Kind=Paint failed: not this one";
    assert_eq!((code, said["message"].as_str()), (500, Some(wanted)), "{said}");
}

/// A deletion marked objects as they had been stored, and with their new revision they passed for converted: no version
/// could write them any more, and their definition never went away.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_being_deleted_is_stored_in_the_version_of_storage() {
    let server = ApiServer::start("marked", &[]).expect("the server starts");
    let api = Api::new(&server);
    let hook = Hook::start(convert).await.expect("the webhook starts");
    let version = |name: &str, field: &str, storage: bool| {
        let spec = json!({"type": "object", "properties": {field: {"type": "string"}}});
        let schema = json!({"type": "object", "properties": {"spec": spec}});
        json!({"name": name, "served": true, "storage": storage, "schema": {"openAPIV3Schema": schema}})
    };
    let webhook = json!({"strategy": "Webhook", "webhook":
        {"conversionReviewVersions": ["v1"], "clientConfig": hook.client_config("/convert")}});
    for (plural, kind, field, conversion) in
        [("pens", "Pen", "color", json!({"strategy": "None"})), ("inks", "Ink", "colour", webhook)]
    {
        let versions = |first: bool| json!([version("v1", "color", first), version("v2", field, !first)]);
        let mut wanted = definition(plural, kind, versions(true));
        wanted["spec"]["conversion"] = conversion;
        define(api, &wanted).await;
        let at = |version: &str, name: &str| format!("/apis/example.com/{version}/namespaces/default/{plural}{name}");
        let held = json!({"apiVersion": "example.com/v1", "kind": kind, "spec": {"color": "red"},
            "metadata": {"name": "a", "finalizers": ["example.com/held"]}});
        for name in ["a", "b"] {
            let mut held = held.clone();
            held["metadata"]["name"] = name.into();
            let (code, said) = api.post(&at("v1", ""), &held).await.expect("an answer");
            assert_eq!(code, 201, "{said}");
        }

        // Storage goes on in the other version.
        let place = format!("{DEFINITIONS}/{plural}.example.com");
        let (code, said) = api.merge(&place, &json!({"spec": {"versions": versions(false)}})).await.expect("an answer");
        assert_eq!(code, 200, "{said}");
        let read = |_: u16, said: &Value| said["spec"][field] == "red";
        api.until(&at("v2", "/a"), read).await.expect("it is read in the new version");

        // One is deleted by itself, the other with its definition.
        let (code, said) = api.ask(Method::DELETE, &at("v2", "/a"), "", &Value::Null).await.expect("an answer");
        assert_eq!((code, &said["apiVersion"], &said["spec"][field]), (200, &json!("example.com/v2"), &json!("red")));
        let (_, said) = api.get(&at("v2", "/a")).await.expect("an answer");
        assert_eq!((&said["apiVersion"], &said["spec"][field]), (&json!("example.com/v2"), &json!("red")), "{said}");
        let (code, said) = api.ask(Method::DELETE, &place, "", &Value::Null).await.expect("an answer");
        assert_eq!(code, 200, "{said}");
        let marked = |_: u16, said: &Value| said["metadata"]["deletionTimestamp"].is_string();
        api.until(&at("v2", "/b"), marked).await.expect("it is marked");
        for name in ["/a", "/b"] {
            let free = json!({"metadata": {"finalizers": null}});
            let (code, said) = api.merge(&at("v2", name), &free).await.expect("an answer");
            assert_eq!(code, 200, "{said}");
        }
        api.until(&place, |code, _| code == 404).await.expect("the definition goes");
    }
}
