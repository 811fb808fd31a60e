//! A machine that has nothing but a bootstrap token is let in by it, as long as the token is good and for what it is for.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use http::Method;
use serde_json::{Value, json};
use tests::{Api, ApiServer, Connection};

const SECRETS: &str = "/api/v1/namespaces/kube-system/secrets";
const REVIEW: &str = "/apis/authentication.k8s.io/v1/selfsubjectreviews";
const ID: &str = "abcdef";
const TOKEN: &str = "abcdef.0123456789abcdef";
const KUBEADM: &str = "system:bootstrappers:kubeadm:default-node-token";
const OFF: [&str; 2] = ["--controllers=-*", "--scheduler=false"];

/// The secret that `kubeadm token create` makes.
fn secret() -> Value {
    json!({
        "apiVersion": "v1", "kind": "Secret", "type": "bootstrap.kubernetes.io/token",
        "metadata": {"name": format!("bootstrap-token-{ID}")},
        "stringData": {
            "token-id": ID, "token-secret": "0123456789abcdef", "description": "for a test",
            "usage-bootstrap-authentication": "true", "usage-bootstrap-signing": "true", "auth-extra-groups": KUBEADM,
        },
    })
}

/// The same with other data; null takes an entry out.
fn with(changes: Value) -> Value {
    let mut out = secret();
    for (key, value) in changes.as_object().expect("an object") {
        match value {
            Value::Null => drop(out["stringData"].as_object_mut().expect("an object").remove(key)),
            value => out["stringData"][key] = value.clone(),
        }
    }
    out
}

/// A request with a bearer token and nothing else.
async fn ask(server: &ApiServer, method: Method, path: &str, bearer: &str, body: &Value) -> (u16, Value) {
    let mut connection = Connection::bare(server).await.expect("a connection");
    let bearer = format!("Bearer {bearer}");
    let headers = [("authorization", &*bearer), ("content-type", "application/json"), ("accept", "application/json")];
    let body = if body.is_null() { String::new() } else { body.to_string() };
    let answer = connection.with(method, path, &headers, body).await.expect("an answer");
    (answer.status().as_u16(), serde_json::from_slice(answer.body()).unwrap_or_default())
}

/// Whom the server takes a caller for.
async fn known(server: &ApiServer, bearer: &str) -> (u16, Value) {
    let (code, said) = ask(server, Method::POST, REVIEW, bearer, &json!({})).await;
    (code, if code == 201 { said["status"]["userInfo"].clone() } else { said })
}

/// Puts a secret in place of the one that is there.
async fn keep(api: Api<'_>, path: &str, secret: &Value) {
    let name = format!("{path}/bootstrap-token-{ID}");
    let gone = api.ask(Method::DELETE, &name, "application/json", &Value::Null).await.expect("an answer");
    assert!(matches!(gone.0, 200 | 404), "{}", gone.1);
    let (code, said) = api.post(path, secret).await.expect("an answer");
    assert_eq!(code, 201, "{said}");
}

fn seconds_from_now(seconds: i64) -> String {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970").as_secs();
    let at = i64::try_from(now).expect("it fits") + seconds;
    proto::time::Timestamp { seconds: at, nanos: 0 }.to_seconds_text()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_bootstrap_token_lets_its_holder_ask_for_a_certificate() {
    let server = ApiServer::start("bootstrap-token", &OFF).expect("the server starts");
    let api = Api::new(&server);
    assert_eq!(known(&server, TOKEN).await.0, 401, "it is not there yet");
    keep(api, SECRETS, &secret()).await;
    let (code, user) = known(&server, TOKEN).await;
    assert_eq!((code, &user["username"]), (201, &json!("system:bootstrap:abcdef")), "{user}");
    let groups: Vec<&str> = user["groups"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    for group in ["system:bootstrappers", KUBEADM, "system:authenticated"] {
        assert!(groups.contains(&group), "{group}: {user}");
    }

    // What a node asks for when it joins, and not more.
    let key = rcgen::KeyPair::generate().expect("a key");
    let mut params = rcgen::CertificateParams::new(Vec::new()).expect("no names");
    params.distinguished_name.push(rcgen::DnType::OrganizationName, "system:nodes");
    params.distinguished_name.push(rcgen::DnType::CommonName, "system:node:n");
    let request = params.serialize_request(&key).expect("a request").pem().expect("PEM");
    let request = json!({"metadata": {"name": "n"}, "spec": {
        "request": base64::Engine::encode(&base64::engine::general_purpose::STANDARD, request),
        "signerName": "kubernetes.io/kube-apiserver-client-kubelet", "usages": ["digital signature", "client auth"]}});
    let requests = "/apis/certificates.k8s.io/v1/certificatesigningrequests";
    let (code, made) = ask(&server, Method::POST, requests, TOKEN, &request).await;
    assert_eq!((code, &made["spec"]["username"]), (201, &json!("system:bootstrap:abcdef")), "{made}");
    let (code, said) = ask(&server, Method::GET, SECRETS, TOKEN, &Value::Null).await;
    assert_eq!(code, 403, "{said}");
    let text = said["message"].as_str().unwrap_or_default();
    assert!(text.starts_with("secrets is forbidden: User \"system:bootstrap:abcdef\" cannot list resource"), "{text}");
    // Who asks about the token hears the same.
    let review = json!({"spec": {"token": TOKEN}});
    let (_, said) = api.post("/apis/authentication.k8s.io/v1/tokenreviews", &review).await.expect("an answer");
    assert_eq!(said["status"]["user"]["username"], "system:bootstrap:abcdef", "{said}");

    for wrong in ["abcdef.0123456789abcdeg", "abcdeg.0123456789abcdef", "abcdef", "abcdef.", "abcdef.0123456789abcdef0"]
    {
        assert_eq!(known(&server, wrong).await.0, 401, "{wrong}");
    }
    let name = format!("{SECRETS}/bootstrap-token-{ID}");
    let gone = api.ask(Method::DELETE, &name, "application/json", &Value::Null).await.expect("an answer");
    assert_eq!(gone.0, 200, "{}", gone.1);
    assert_eq!(known(&server, TOKEN).await.0, 401, "it is gone");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_bootstrap_token_is_good_for_its_time_and_its_use() {
    let server = ApiServer::start("bootstrap-use", &OFF).expect("the server starts");
    let api = Api::new(&server);
    for (changes, code, why) in [
        (json!({"usage-bootstrap-authentication": null}), 401, "it is for signing alone"),
        (json!({"usage-bootstrap-authentication": "yes"}), 401, "the word is true"),
        (json!({"usage-bootstrap-signing": null}), 201, "signing is another matter"),
        (json!({"expiration": seconds_from_now(3600)}), 201, "it has an hour"),
        (json!({"expiration": seconds_from_now(-1)}), 401, "it is over"),
        (json!({"token-id": "ghijkl"}), 401, "it is not the one of its name"),
        (json!({"auth-extra-groups": null}), 201, "it needs no group"),
    ] {
        keep(api, SECRETS, &with(changes.clone())).await;
        let (found, said) = known(&server, TOKEN).await;
        assert_eq!(found, code, "{why}: {changes} {said}");
    }
    // Of another type, and in another namespace, it is a secret as any.
    let mut opaque = secret();
    opaque["type"] = json!("Opaque");
    keep(api, SECRETS, &opaque).await;
    assert_eq!(known(&server, TOKEN).await.0, 401);
    let elsewhere = SECRETS.replace("kube-system", "default");
    keep(api, &elsewhere, &secret()).await;
    assert_eq!(known(&server, TOKEN).await.0, 401);

    // It ends while it is used.
    keep(api, SECRETS, &with(json!({"expiration": seconds_from_now(3)}))).await;
    assert_eq!(known(&server, TOKEN).await.0, 201);
    let begun = std::time::Instant::now();
    while known(&server, TOKEN).await.0 == 201 {
        assert!(begun.elapsed() < Duration::from_secs(30), "it does not end");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn bootstrap_tokens_may_be_switched_off() {
    let flags = [OFF[0], OFF[1], "--enable-bootstrap-token-auth=false"];
    let server = ApiServer::start("no-bootstrap", &flags).expect("the server starts");
    keep(Api::new(&server), SECRETS, &secret()).await;
    assert_eq!(known(&server, TOKEN).await.0, 401);
}
