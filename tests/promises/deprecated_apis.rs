//! Who uses an API that will go away hears so with every answer, and the operator finds it in the metrics and the audit log.

use std::time::{Duration, Instant};

use http::Method;
use serde_json::{Value, json};
use tests::{Api, ApiServer, Connection};

const CLAIMS: &str = "/apis/resource.k8s.io/v1beta1/namespaces/default/resourceclaims";
const GAUGE: &str = "apiserver_requested_deprecated_apis{";

/// The code of an answer, and what it warns of.
async fn warned(server: &ApiServer, method: Method, path: &str, body: &Value) -> (u16, Vec<String>) {
    let headers = [("content-type", "application/json"), ("accept", "application/json")];
    let body = if body.is_null() { String::new() } else { body.to_string() };
    let mut connection = Connection::http1(server).await.expect("a connection");
    let answer = connection.with(method, path, &headers, body).await.expect("an answer");
    let all = answer.headers().get_all("warning").iter().filter_map(|value| value.to_str().ok());
    (answer.status().as_u16(), all.map(str::to_owned).collect())
}

/// Lines of the gauge.
async fn gauge(server: &ApiServer) -> Vec<String> {
    let mut connection = Connection::http1(server).await.expect("a connection");
    let page = connection.call(Method::GET, "/metrics", "", "").await.expect("an answer");
    let page = String::from_utf8_lossy(page.body()).into_owned();
    page.lines().filter(|line| line.starts_with(GAUGE)).map(str::to_owned).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_deprecated_version_is_warned_of_counted_and_noted() {
    let folder = tests::scratch("deprecated-audit").expect("a folder");
    let policy = folder.join("policy.yaml");
    std::fs::write(
        &policy,
        "apiVersion: audit.k8s.io/v1\nkind: Policy\nomitStages: [RequestReceived]\nrules: [{level: Metadata}]\n",
    )
    .expect("writable");
    let log = folder.join("audit.log");
    let flags = [
        "--controllers=-*".to_owned(),
        "--scheduler=false".to_owned(),
        "--runtime-config=resource.k8s.io/v1beta1=true".to_owned(),
        format!("--audit-policy-file={}", policy.display()),
        format!("--audit-log-path={}", log.display()),
    ];
    let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
    let server = ApiServer::start("deprecated", &flags).expect("the server starts");
    let api = Api::new(&server);
    assert_eq!(gauge(&server).await, Vec::<String>::new(), "nobody has asked yet");

    // Reads, writes, watches and errors alike.
    let warning = r#"299 - "resource.k8s.io/v1beta1 ResourceClaim is deprecated in v1.35+, unavailable in v1.38+""#;
    let claim =
        json!({"metadata": {"name": "c"}, "spec": {"devices": {"requests": [{"name": "r", "deviceClassName": "d"}]}}});
    for (method, path, body, code) in [
        (Method::POST, CLAIMS.to_owned(), claim, 201),
        (Method::GET, CLAIMS.to_owned(), Value::Null, 200),
        (Method::GET, format!("{CLAIMS}/c"), Value::Null, 200),
        (Method::GET, format!("{CLAIMS}/none"), Value::Null, 404),
        (Method::GET, format!("{CLAIMS}?watch=1&timeoutSeconds=1"), Value::Null, 200),
        (Method::GET, format!("{CLAIMS}/c/status"), Value::Null, 200),
        (Method::DELETE, format!("{CLAIMS}/c"), Value::Null, 200),
    ] {
        assert_eq!(
            warned(&server, method.clone(), &path, &body).await,
            (code, vec![warning.to_owned()]),
            "{method} {path}"
        );
    }
    let endpoints = r#"299 - "v1 Endpoints is deprecated in v1.33+; use discovery.k8s.io/v1 EndpointSlice""#;
    let of = "/api/v1/namespaces/default/endpoints";
    assert_eq!(warned(&server, Method::GET, of, &Value::Null).await, (200, vec![endpoints.to_owned()]));
    let same = CLAIMS.replace("v1beta1", "v1");
    assert_eq!(warned(&server, Method::GET, &same, &Value::Null).await, (200, Vec::new()), "the version that stays");
    assert_eq!(warned(&server, Method::GET, "/api/v1/nodes", &Value::Null).await, (200, Vec::new()));

    // A custom resource's version, in its definition's words or in the usual ones.
    let schema = json!({"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}});
    let version = |name: &str, more: Value| {
        let mut out = json!({"name": name, "served": true, "storage": name == "v1", "schema": schema});
        for (key, value) in more.as_object().into_iter().flatten() {
            out[key] = value.clone();
        }
        out
    };
    let versions = [
        version("v1", json!({})),
        version("v1beta1", json!({"deprecated": true})),
        version("v1alpha1", json!({"deprecated": true, "deprecationWarning": "please go on to v1"})),
    ];
    let definition = json!({"metadata": {"name": "jars.example.com"}, "spec": {"group": "example.com", "scope": "Namespaced",
        "names": {"plural": "jars", "kind": "Jar"}, "versions": versions}});
    let definitions = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
    let (code, said) = api.post(definitions, &definition).await.expect("an answer");
    assert_eq!(code, 201, "{said}");
    let jars = |version: &str| format!("/apis/example.com/{version}/namespaces/default/jars");
    api.until(&jars("v1"), |code, _| code == 200).await.expect("it is served");
    for (version, said) in [
        ("v1", None),
        ("v1beta1", Some(r#"299 - "example.com/v1beta1 Jar is deprecated; use example.com/v1 Jar""#)),
        ("v1alpha1", Some(r#"299 - "please go on to v1""#)),
    ] {
        let said: Vec<String> = said.into_iter().map(str::to_owned).collect();
        assert_eq!(warned(&server, Method::GET, &jars(version), &Value::Null).await, (200, said), "{version}");
    }

    let mut wanted: Vec<String> = [
        ("", "", "endpoints", "", "v1"),
        ("example.com", "", "jars", "", "v1alpha1"),
        ("example.com", "", "jars", "", "v1beta1"),
        ("resource.k8s.io", "1.38", "resourceclaims", "", "v1beta1"),
        ("resource.k8s.io", "1.38", "resourceclaims", "status", "v1beta1"),
    ]
    .into_iter()
    .map(|(group, removed, resource, subresource, version)| {
        format!(
            "{GAUGE}group=\"{group}\",removed_release=\"{removed}\",resource=\"{resource}\",\
             subresource=\"{subresource}\",version=\"{version}\"}} 1"
        )
    })
    .collect();
    wanted.sort();
    let mut counted = gauge(&server).await;
    counted.sort();
    assert_eq!(counted, wanted);

    let about = |events: &[Value], path: &str| -> Vec<Value> {
        let of = |event: &&Value| event["requestURI"].as_str().is_some_and(|uri| uri.split('?').next() == Some(path));
        events.iter().filter(of).map(|event| event["annotations"].clone()).collect()
    };
    // Lines are written when requests have ended.
    let begun = Instant::now();
    let events = loop {
        let text = std::fs::read_to_string(&log).unwrap_or_default();
        let events: Vec<Value> = text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
        if about(&events, &jars("v1alpha1")).len() == 1 {
            break events;
        }
        assert!(begun.elapsed() < Duration::from_secs(20), "{text}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    };
    let noted = |event: &Value| (event["k8s.io/deprecated"].clone(), event["k8s.io/removed-release"].clone());
    for (path, expected) in [
        (CLAIMS, (json!("true"), json!("1.38"))),
        (of, (json!("true"), Value::Null)),
        (&*jars("v1alpha1"), (json!("true"), Value::Null)),
        (&*same, (Value::Null, Value::Null)),
        ("/api/v1/nodes", (Value::Null, Value::Null)),
    ] {
        let found = about(&events, path);
        assert!(!found.is_empty() && found.iter().all(|event| noted(event) == expected), "{path}: {found:?}");
    }
}
