//! A webhook that does not let the server in, or that the server cannot trust, counts as its failure policy says, and the
//! client is told why in upstream's words.

use std::time::Duration;

use serde_json::{Value, json};
use tests::{Api, ApiServer, Hook};

const ADMISSION: &str = "/apis/admissionregistration.k8s.io/v1";
const CONFIG_MAPS: &str = "/api/v1/namespaces/default/configmaps";

fn allow(_path: &str, review: &Value) -> Value {
    let response = json!({"uid": review["request"]["uid"], "allowed": true});
    json!({"kind": "AdmissionReview", "apiVersion": "admission.k8s.io/v1", "response": response})
}

/// A webhook for the config maps whose names begin with a word, under this name.
fn webhook(name: &str, client: Value, policy: &str) -> Value {
    json!({
        "name": format!("{name}.example.com"), "clientConfig": client, "failurePolicy": policy,
        "rules": [{"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["configmaps"]}],
        "matchConditions": [{"name": "only", "expression": format!("object.metadata.name.startsWith('{name}-')")}],
        "admissionReviewVersions": ["v1"], "sideEffects": "None",
    })
}

/// Registers each client once for each policy, to change objects and to judge them.
async fn register(api: Api<'_>, clients: &[(&str, Value)]) {
    let of = |policy: &'static str| {
        let name = move |what: &str| format!("{what}-{}", policy.to_lowercase());
        clients.iter().map(move |(what, client)| webhook(&name(what), client.clone(), policy))
    };
    let hooks: Vec<Value> = of("Fail").chain(of("Ignore")).collect();
    for plural in ["mutatingwebhookconfigurations", "validatingwebhookconfigurations"] {
        let (code, said) = api
            .post(&format!("{ADMISSION}/{plural}"), &json!({"metadata": {"name": "w"}, "webhooks": hooks}))
            .await
            .expect("an answer");
        assert_eq!(code, 201, "{said}");
    }
}

async fn create(api: Api<'_>, name: &str) -> (u16, Value) {
    api.post(CONFIG_MAPS, &json!({"metadata": {"name": name}})).await.expect("an answer")
}

/// What a client hears that a webhook with policy Fail keeps out; with Ignore the object is made.
async fn told(api: Api<'_>, what: &str) -> String {
    let (code, said) = create(api, &format!("{what}-fail-a")).await;
    assert_eq!((code, &said["reason"]), (500, &json!("InternalError")), "{said}");
    assert_eq!(api.get(&format!("{CONFIG_MAPS}/{what}-fail-a")).await.expect("an answer").0, 404);
    let (ignored, made) = create(api, &format!("{what}-ignore-a")).await;
    assert_eq!(ignored, 201, "{made}");
    let before = format!(
        "Internal error occurred: failed calling webhook \"{what}-fail.example.com\": failed to call webhook: "
    );
    let message = said["message"].as_str().unwrap_or_default();
    message.strip_prefix(&before).unwrap_or_else(|| panic!("{message}")).to_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_webhook_that_asks_for_credentials_counts_by_its_policy() {
    let server = ApiServer::start("unwilling", &["--controllers=-*", "--scheduler=false"]).expect("the server starts");
    let api = Api::new(&server);
    let hook = Hook::start(allow).await.expect("the webhook starts");
    let answers = [
        ("unauthorized", 401, "the server has asked for the client to provide credentials"),
        ("forbidden", 403, "unknown"),
        ("missing", 404, "the server could not find the requested resource"),
        ("broken", 500, "an error on the server (\"unknown\") has prevented the request from succeeding"),
        ("away", 503, "the server is currently unable to handle the request"),
    ];
    let clients = answers.map(|(what, code, _)| (what, hook.client_config(&format!("/status/{code}"))));
    register(api, &clients).await;
    for (what, code, why) in answers {
        assert_eq!(told(api, what).await, why);
        // Who fails ends the request; who is passed over is asked to change the object and to judge it.
        assert_eq!(hook.seen(&format!("/status/{code}")).len(), 3, "{what}");
    }
    let mut connection = tests::Connection::http1(&server).await.expect("a connection");
    let page = connection.call(http::Method::GET, "/metrics", "", "").await.expect("an answer");
    let page = String::from_utf8_lossy(page.body()).into_owned();
    let open = |line: &&str| {
        line.starts_with("apiserver_admission_webhook_fail_open_count{")
            && line.contains("unauthorized-ignore.example.com")
    };
    assert_eq!(page.lines().filter(open).count(), 2, "as one that changes, and as one that judges:\n{page}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_webhook_that_cannot_be_trusted_counts_by_its_policy() {
    let server = ApiServer::start("untrusted", &["--controllers=-*", "--scheduler=false"]).expect("the server starts");
    let api = Api::new(&server);
    let hook = Hook::start(allow).await.expect("the webhook starts");
    let another = Hook::start(allow).await.expect("the webhook starts");
    let mut stranger = hook.client_config("/stranger");
    stranger["caBundle"] = another.client_config("/")["caBundle"].clone();
    // Without authorities the machine's are asked, who do not know it either.
    let mut unknown = hook.client_config("/unknown");
    unknown.as_object_mut().expect("an object").remove("caBundle");
    let port = hook.address().rsplit(':').next().expect("a port").to_owned();
    let mut misnamed = hook.client_config("/misnamed");
    misnamed["url"] = json!(format!("https://localhost:{port}/misnamed"));
    register(api, &[("stranger", stranger), ("unknown", unknown), ("misnamed", misnamed)]).await;
    let failed = |url: &str| format!("Post \"https://{url}?timeout=10s\": tls: failed to verify certificate: x509: ");
    for (what, host, why) in [
        ("stranger", "127.0.0.1", "certificate signed by unknown authority"),
        ("unknown", "127.0.0.1", "certificate signed by unknown authority"),
        ("misnamed", "localhost", "certificate is not valid for any names, but wanted to match localhost"),
    ] {
        let said = told(api, what).await;
        let before = failed(&format!("{host}:{port}/{what}"));
        assert!(said.strip_prefix(&before).is_some_and(|rest| rest.starts_with(why)), "{said}");
        assert!(hook.seen(&format!("/{what}")).is_empty(), "nothing was told to a stranger");
    }
    // One that is trusted again counts again, soon.
    let path = format!("{ADMISSION}/validatingwebhookconfigurations/w");
    for kind in ["validatingwebhookconfigurations", "mutatingwebhookconfigurations"] {
        let good = json!({"webhooks": [webhook("stranger-fail", hook.client_config("/stranger"), "Fail")]});
        let (code, said) =
            api.merge(&path.replace("validatingwebhookconfigurations", kind), &good).await.expect("an answer");
        assert_eq!(code, 200, "{said}");
    }
    let begun = std::time::Instant::now();
    while create(api, "stranger-fail-b").await.0 != 201 {
        assert!(begun.elapsed() < Duration::from_secs(20), "it is not trusted");
    }
    assert_eq!(hook.seen("/stranger").len(), 2);
}
