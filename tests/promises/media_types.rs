//! Objects and watches in CBOR, behind its gate, and watches in protobuf, read here by the formats' own rules.

use http::{Method, Response};
use proto::cbor;
use proto::schema::TypeSet;
use serde_json::{Value, json};
use tests::{Api, ApiServer, Connection};

const MAPS: &str = "/api/v1/namespaces/default/configmaps";
const CBOR: &str = "application/cbor";
const SEQUENCE: &str = "application/cbor-seq";
const PROTOBUF: &str = "application/vnd.kubernetes.protobuf";
const OFF: [&str; 2] = ["--controllers=-*", "--scheduler=false"];
/// Every document of Kubernetes begins with the tag that says that it is CBOR.
const DESCRIBED: [u8; 3] = [0xd9, 0xd9, 0xf7];

type Answer = Response<bytes::Bytes>;

/// A request that speaks one media type.
async fn speak(server: &ApiServer, method: Method, path: &str, media: (&str, &str), body: Vec<u8>) -> Answer {
    let (sent, wanted) = media;
    let mut headers = vec![("accept", wanted)];
    if !sent.is_empty() {
        headers.push(("content-type", sent));
    }
    let mut connection = Connection::http1(server).await.expect("a connection");
    connection.with(method, path, &headers, body).await.expect("an answer")
}

fn media(answer: &Answer) -> &str {
    answer.headers().get("content-type").and_then(|value| value.to_str().ok()).unwrap_or_default()
}

fn packed(value: &Value) -> Vec<u8> {
    let mut out = Vec::new();
    cbor::encode(value, &mut out);
    out
}

/// The code and the document of an answer that must be CBOR.
fn document(answer: &Answer) -> (u16, Value) {
    let bytes = answer.body();
    assert_eq!(media(answer), CBOR, "{}", String::from_utf8_lossy(bytes));
    assert!(bytes.starts_with(&DESCRIBED), "{bytes:x?}");
    (answer.status().as_u16(), cbor::decode(bytes).expect("CBOR"))
}

fn map(name: &str, data: Value) -> Value {
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": data})
}

#[tokio::test(flavor = "multi_thread")]
async fn objects_are_written_and_read_in_cbor() {
    let flags = [OFF[0], OFF[1], "--feature-gates=CBORServingAndStorage=true"];
    let server = ApiServer::start("cbor", &flags).expect("the server starts");
    let api = Api::new(&server);
    let ask = async |method: Method, path: &str, sent: &str, body: &Value| {
        let body = if body.is_null() { Vec::new() } else { packed(body) };
        document(&speak(&server, method, path, (sent, CBOR), body).await)
    };
    let (code, made) = ask(Method::POST, MAPS, CBOR, &map("a", json!({"k": "v"}))).await;
    assert_eq!((code, &made["kind"], &made["data"]), (201, &json!("ConfigMap"), &json!({"k": "v"})), "{made}");
    let (_, same) = api.get(&format!("{MAPS}/a")).await.expect("an answer");
    assert_eq!(made, same, "what is read as JSON");
    let (code, list) = ask(Method::GET, MAPS, "", &Value::Null).await;
    assert_eq!((code, &list["kind"], &list["items"][0]["data"]), (200, &json!("ConfigMapList"), &json!({"k": "v"})));

    // An apply has a media type of its own.
    let path = format!("{MAPS}/b?fieldManager=me");
    let (code, applied) = ask(Method::PATCH, &path, "application/apply-patch+cbor", &map("b", json!({"n": "1"}))).await;
    assert_eq!((code, &applied["data"]), (201, &json!({"n": "1"})), "{applied}");
    let owned = &applied["metadata"]["managedFields"][0];
    assert_eq!((&owned["manager"], &owned["operation"]), (&json!("me"), &json!("Apply")));
    assert_eq!(owned["fieldsV1"]["f:data"]["f:n"], json!({}), "{owned}");
    // Metadata alone, and options of a delete.
    let accept = "application/cbor;as=PartialObjectMetadata;g=meta.k8s.io;v=v1";
    let (_, part) = document(&speak(&server, Method::GET, &format!("{MAPS}/b"), ("", accept), Vec::new()).await);
    assert_eq!((&part["kind"], &part["metadata"]["name"]), (&json!("PartialObjectMetadata"), &json!("b")));
    assert!(part["data"].is_null(), "{part}");
    let options = json!({"kind": "DeleteOptions", "apiVersion": "v1", "preconditions": {"uid": "another"}});
    let (code, said) = ask(Method::DELETE, &format!("{MAPS}/b"), CBOR, &options).await;
    assert_eq!((code, &said["reason"]), (409, &json!("Conflict")), "{said}");

    // Errors are documents too, whatever was wrong.
    let (code, said) = ask(Method::GET, &format!("{MAPS}/none"), "", &Value::Null).await;
    assert_eq!((code, &said["kind"], &said["reason"]), (404, &json!("Status"), &json!("NotFound")), "{said}");
    let broken = speak(&server, Method::POST, MAPS, (CBOR, CBOR), vec![0xd9, 0xd9, 0xf7, 0xbf, 0x41]).await;
    assert_eq!(document(&broken).0, 400);

    // A custom resource knows it as well as a built-in one.
    let schema = json!({"type": "object", "properties": {"size": {"type": "integer"}}});
    let definition = json!({"metadata": {"name": "boxes.example.com"}, "spec": {
        "group": "example.com", "scope": "Namespaced", "names": {"plural": "boxes", "kind": "Box"},
        "versions": [{"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": schema}}]}});
    let definitions = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
    let (code, said) = api.post(definitions, &definition).await.expect("an answer");
    assert_eq!(code, 201, "{said}");
    let boxes = "/apis/example.com/v1/namespaces/default/boxes";
    api.until(boxes, |code, _| code == 200).await.expect("it is served");
    let object = json!({"apiVersion": "example.com/v1", "kind": "Box", "metadata": {"name": "a"}, "size": 70_000});
    let (code, made) = ask(Method::POST, boxes, CBOR, &object).await;
    assert_eq!((code, &made["size"]), (201, &json!(70_000)), "{made}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_watch_in_cbor_is_a_sequence_of_events() {
    let flags = [OFF[0], OFF[1], "--feature-gates=CBORServingAndStorage=true"];
    let server = ApiServer::start("cbor-watch", &flags).expect("the server starts");
    let api = Api::new(&server);
    assert_eq!(api.post(MAPS, &map("a", json!({"k": "v"}))).await.expect("an answer").0, 201);
    assert_eq!(api.post(MAPS, &map("b", json!({}))).await.expect("an answer").0, 201);
    let initial = "sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true";
    let path = format!("{MAPS}?watch=1&timeoutSeconds=1&{initial}");
    // Who asks for one document gets a sequence as well.
    for accept in [SEQUENCE, CBOR] {
        let answer = speak(&server, Method::GET, &path, ("", accept), Vec::new()).await;
        assert_eq!((answer.status().as_u16(), media(&answer)), (200, SEQUENCE), "{accept}");
        let (mut rest, mut events) = (&answer.body()[..], Vec::new());
        while !rest.is_empty() {
            assert!(rest.starts_with(&DESCRIBED), "{rest:x?}");
            let (event, length) = cbor::decode_prefix(rest).expect("CBOR");
            events.push(event);
            rest = &rest[length..];
        }
        let told: Vec<(&Value, &Value)> =
            events.iter().map(|e| (&e["type"], &e["object"]["metadata"]["name"])).collect();
        let (added, bookmark) = (json!("ADDED"), json!("BOOKMARK"));
        // What the server itself writes meanwhile may bring another bookmark at the end.
        assert_eq!(
            told.get(..3).unwrap_or_default(),
            [(&added, &json!("a")), (&added, &json!("b")), (&bookmark, &Value::Null)]
        );
        assert_eq!(events[0]["object"]["data"], json!({"k": "v"}));
        assert_eq!(events[2]["object"]["metadata"]["annotations"]["k8s.io/initial-events-end"], "true");
    }
}

#[tokio::test]
async fn without_its_gate_nobody_is_served_cbor() {
    let server = ApiServer::start("no-cbor", &OFF).expect("the server starts");
    for (path, accept) in [(MAPS, CBOR), (MAPS, SEQUENCE), (&*format!("{MAPS}?watch=1&timeoutSeconds=1"), SEQUENCE)] {
        let answer = speak(&server, Method::GET, path, ("", accept), Vec::new()).await;
        assert_eq!(answer.status(), 406, "{path} {accept}");
        let both = speak(&server, Method::GET, path, ("", &format!("{accept},application/json")), Vec::new()).await;
        assert_eq!((both.status().as_u16(), media(&both)), (200, "application/json"), "who takes JSON too gets that");
    }
    let body = packed(&map("a", json!({})));
    let answer = speak(&server, Method::POST, MAPS, (CBOR, "application/json"), body.clone()).await;
    let said: Value = serde_json::from_slice(answer.body()).expect("JSON");
    assert_eq!((answer.status().as_u16(), &said["reason"]), (415, &json!("UnsupportedMediaType")), "{said}");
    let path = format!("{MAPS}/a?fieldManager=me");
    let apply = ("application/apply-patch+cbor", "application/json");
    assert_eq!(speak(&server, Method::PATCH, &path, apply, body).await.status(), 415);
}

/// A field of a message: its number, and its bytes.
fn field(bytes: &[u8]) -> (u8, &[u8], &[u8]) {
    let (key, rest) = bytes.split_first().expect("a key");
    assert_eq!(key & 7, 2, "fields of events have lengths");
    let (mut length, mut at) = (0, 0);
    loop {
        length |= usize::from(rest[at] & 0x7f) << (7 * at);
        at += 1;
        if rest[at - 1] < 0x80 {
            break;
        }
    }
    let (field, rest) = rest[at..].split_at(length);
    (key >> 3, field, rest)
}

/// Events of a watch in protobuf: four bytes of length, then a `WatchEvent` whose object is in an envelope of its own.
fn events(bytes: &[u8]) -> Vec<(String, Value)> {
    let (mut rest, mut out) = (bytes, Vec::new());
    while !rest.is_empty() {
        let (length, more) = rest.split_first_chunk::<4>().expect("a length");
        let (event, more) = more.split_at(u32::from_be_bytes(*length).try_into().expect("it fits"));
        rest = more;
        let (number, kind, event) = field(event);
        assert_eq!(number, 1, "the type comes first");
        let (number, extension, end) = field(event);
        assert!(number == 2 && end.is_empty());
        let (number, object, end) = field(extension);
        assert!(number == 1 && end.is_empty() && object.starts_with(b"k8s\0"), "{object:x?}");
        let envelope = proto::protobuf::read_envelope(object).expect("an envelope");
        let set = TypeSet::built_in();
        let (group, version) = envelope.api_version.rsplit_once('/').unwrap_or(("", envelope.api_version));
        let id = match envelope.kind {
            "PartialObjectMetadata" => {
                set.struct_named("k8s.io.apimachinery.pkg.apis.meta.v1.PartialObjectMetadata").expect("it is known")
            }
            kind => set.kind(group, version, kind).expect("a known kind"),
        };
        let mut value = proto::protobuf::decode(set, id, envelope.raw).expect("an object");
        value["kind"] = envelope.kind.into();
        out.push((String::from_utf8_lossy(kind).into_owned(), value));
    }
    out
}

#[tokio::test(flavor = "multi_thread")]
async fn a_watch_in_protobuf_tells_what_one_in_json_tells() {
    let server = ApiServer::start("protobuf-watch", &OFF).expect("the server starts");
    let api = Api::new(&server);
    let (_, made) = api.post(MAPS, &map("a", json!({"k": "v"}))).await.expect("an answer");
    let first = made["metadata"]["resourceVersion"].as_str().expect("a version").to_owned();
    assert_eq!(api.post(MAPS, &map("b", json!({"k": "w"}))).await.expect("an answer").0, 201);
    let patch = json!({"data": {"k": "x"}, "metadata": {"labels": {"l": "1"}}});
    assert_eq!(api.merge(&format!("{MAPS}/a"), &patch).await.expect("an answer").0, 200);
    let gone = api.ask(Method::DELETE, &format!("{MAPS}/a"), "application/json", &Value::Null).await;
    assert_eq!(gone.expect("an answer").0, 200);
    let initial = "sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true";
    for query in
        [format!("resourceVersion={first}"), initial.to_owned(), format!("resourceVersion={first}&labelSelector=l")]
    {
        let path = format!("{MAPS}?watch=1&timeoutSeconds=1&{query}");
        let answer = speak(&server, Method::GET, &path, ("", PROTOBUF), Vec::new()).await;
        assert_eq!(media(&answer), format!("{PROTOBUF};stream=watch"));
        let told = events(answer.body());
        let plain = speak(&server, Method::GET, &path, ("", "application/json"), Vec::new()).await;
        let lines = plain.body().split(|b| *b == b'\n').filter(|line| !line.is_empty());
        let mut same: Vec<(String, Value)> = Vec::new();
        for line in lines {
            let event: Value = serde_json::from_slice(line).expect("JSON");
            let mut object = event["object"].clone();
            object.as_object_mut().expect("an object").remove("apiVersion");
            same.push((event["type"].as_str().expect("a type").to_owned(), object));
        }
        assert!(!told.is_empty() && told.len() == same.len(), "{query}");
        for ((kind, object), (other, plain)) in told.iter().zip(&same) {
            assert_eq!(kind, other, "{query}");
            for part in [
                "/kind",
                "/data",
                "/metadata/name",
                "/metadata/uid",
                "/metadata/resourceVersion",
                "/metadata/annotations",
            ] {
                let empty = |value: Option<&Value>| value.filter(|v| !v.is_null() && **v != json!("")).cloned();
                assert_eq!(empty(object.pointer(part)), empty(plain.pointer(part)), "{query} {part}");
            }
        }
    }
    let kinds = |told: &[(String, Value)]| told.iter().map(|(kind, _)| kind.clone()).collect::<Vec<_>>();
    let all = format!("{MAPS}?watch=1&timeoutSeconds=1&resourceVersion={first}");
    let answer = speak(&server, Method::GET, &all, ("", PROTOBUF), Vec::new()).await;
    assert_eq!(kinds(&events(answer.body())), ["ADDED", "MODIFIED", "DELETED"]);

    // An error is an event; so are the metadata of an object. Tables are not to be had.
    let future = format!(
        "{MAPS}?watch=1&timeoutSeconds=9&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&resourceVersion=999999"
    );
    let answer = speak(&server, Method::GET, &future, ("", PROTOBUF), Vec::new()).await;
    let told = events(answer.body());
    assert_eq!((kinds(&told), &told[0].1["code"]), (vec!["ERROR".to_owned()], &json!(504)));
    let accept = format!("{PROTOBUF};as=PartialObjectMetadata;g=meta.k8s.io;v=v1");
    let answer = speak(&server, Method::GET, &all, ("", &accept), Vec::new()).await;
    let told = events(answer.body());
    assert_eq!(kinds(&told), ["ADDED", "MODIFIED", "DELETED"]);
    assert!(told.iter().all(|(_, object)| object["kind"] == "PartialObjectMetadata" && object["data"].is_null()));
    let accept = format!("{PROTOBUF};as=Table;g=meta.k8s.io;v=v1");
    assert_eq!(speak(&server, Method::GET, &all, ("", &accept), Vec::new()).await.status(), 406);
}
