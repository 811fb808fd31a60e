//! Nobody gives away more than they have, and a quota holds however many ask at once.

use std::sync::{Arc, OnceLock};

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD as BASE64URL;
use futures_util::future::join_all;
use rcgen::SigningKey as _;
use serde_json::{Value, json};
use tests::{Api, ApiServer, Connection, Hook};

const RBAC: &str = "/apis/rbac.authorization.k8s.io/v1";

#[tokio::test]
async fn rights_that_one_does_not_have_cannot_be_granted() {
    let server = ApiServer::start("escalation", &[]).expect("the server starts");
    let api = Api::new(&server);
    let rule = |group: &str, resource: &str, verbs: &[&str]| json!({"apiGroups": [group], "resources": [resource], "verbs": verbs});
    let rbac = rule("rbac.authorization.k8s.io", "*", &["create", "update", "patch", "get"]);
    let role = |name: &str, rules: Value| json!({"metadata": {"name": name}, "rules": rules});
    let grants = role("grants", json!([rbac, rule("", "configmaps", &["get"])]));
    let binding = |name: &str, role: &str, user: &str| {
        let of = |kind: &str, name: &str| json!({"apiGroup": "rbac.authorization.k8s.io", "kind": kind, "name": name});
        json!({"metadata": {"name": name}, "roleRef": of("ClusterRole", role), "subjects": [of("User", user)]})
    };
    let (roles, bindings) = (format!("{RBAC}/clusterroles"), format!("{RBAC}/clusterrolebindings"));
    assert_eq!(api.post(&roles, &grants).await.expect("an answer").0, 201);
    assert_eq!(api.post(&bindings, &binding("carol", "grants", "carol")).await.expect("an answer").0, 201);
    let carol = api.of("carol");

    let own = role("own", json!([rule("", "configmaps", &["get"])]));
    assert_eq!(carol.post(&roles, &own).await.expect("an answer").0, 201);
    let (code, said) =
        carol.post(&roles, &role("more", json!([rule("", "secrets", &["get"])]))).await.expect("an answer");
    let text = said["message"].as_str().unwrap_or_default();
    assert_eq!(code, 403, "{said}");
    assert!(text.contains("is attempting to grant RBAC permissions not currently held"), "{text}");
    let wider = json!({"rules": [rule("", "configmaps", &["get", "delete"])]});
    assert_eq!(carol.merge(&format!("{roles}/own"), &wider).await.expect("an answer").0, 403);
    assert_eq!(carol.post(&bindings, &binding("self", "own", "carol")).await.expect("an answer").0, 201);
    assert_eq!(carol.post(&bindings, &binding("root", "cluster-admin", "carol")).await.expect("an answer").0, 403);
    let (_, kept) = api.get(&format!("{roles}/own")).await.expect("an answer");
    assert_eq!(kept["rules"][0]["verbs"], json!(["get"]));
    assert_eq!(api.get(&format!("{bindings}/root")).await.expect("an answer").0, 404);
}

#[tokio::test]
async fn who_reads_pods_does_not_enter_them_and_a_token_is_for_the_account_it_names() {
    let server = ApiServer::start("entering", &["--controllers=-*"]).expect("the server starts");
    let api = Api::new(&server);
    let of = |kind: &str, name: &str| json!({"apiGroup": "rbac.authorization.k8s.io", "kind": kind, "name": name});
    let rule = json!({"apiGroups": [""], "resources": ["pods/exec", "pods/portforward"], "verbs": ["get"]});
    let role = json!({"metadata": {"name": "looks"}, "rules": [rule]});
    let binding =
        json!({"metadata": {"name": "bob"}, "roleRef": of("ClusterRole", "looks"), "subjects": [of("User", "bob")]});
    assert_eq!(api.post(&format!("{RBAC}/clusterroles"), &role).await.expect("an answer").0, 201);
    assert_eq!(api.post(&format!("{RBAC}/clusterrolebindings"), &binding).await.expect("an answer").0, 201);
    for part in ["exec", "portforward"] {
        let path = format!("/api/v1/namespaces/default/pods/p/{part}?command=sh");
        let (code, said) = api.of("bob").get(&path).await.expect("an answer");
        assert_eq!((code, said["reason"].as_str()), (403, Some("Forbidden")), "{said}");
        assert_eq!(api.get(&path).await.expect("an answer").0, 404, "who may create gets as far as the pod");
    }

    let account = json!({"metadata": {"name": "robot"}});
    assert_eq!(api.post("/api/v1/namespaces/default/serviceaccounts", &account).await.expect("an answer").0, 201);
    let path = "/api/v1/namespaces/default/serviceaccounts/robot/token";
    for (metadata, wanted) in [
        (json!({"name": "other"}), 422),
        (json!({"namespace": "other"}), 400),
        (json!({"uid": "other"}), 409),
        (json!({"name": "robot", "namespace": "default"}), 201),
    ] {
        let (code, said) = api.post(path, &json!({"metadata": metadata})).await.expect("an answer");
        assert_eq!(code, wanted, "{metadata}: {said}");
    }
    // How long it shall live is looked at when it is clear whose it shall be.
    let short = json!({"spec": {"expirationSeconds": 9}});
    assert_eq!(api.post(path, &short).await.expect("an answer").0, 422);
    assert_eq!(api.post(&path.replace("robot", "nobody"), &short).await.expect("an answer").0, 404);

    // What is wrong with a token is told to who may ask.
    let (_, made) = api.post(path, &json!({"spec": {"audiences": ["elsewhere"]}})).await.expect("an answer");
    let strange = made["status"]["token"].clone();
    let (_, made) = api.post(path, &json!({})).await.expect("an answer");
    let own = made["status"]["token"].clone();
    let gone = "/api/v1/namespaces/default/serviceaccounts/robot";
    let (code, said) = api.ask(http::Method::DELETE, gone, "application/json", &Value::Null).await.expect("an answer");
    assert_eq!(code, 200, "{said}");
    let reviewed = async |token: &Value| {
        let review = json!({"spec": {"token": token}});
        let (code, said) = api.post("/apis/authentication.k8s.io/v1/tokenreviews", &review).await.expect("an answer");
        assert_eq!(code, 201, "{said}");
        said["status"]["error"].as_str().unwrap_or_default().to_owned()
    };
    assert_eq!(reviewed(&json!("nonsense")).await, "invalid bearer token");
    assert_eq!(reviewed(&own).await, "[invalid bearer token, serviceaccounts \"robot\" not found]");
    let said = reviewed(&strange).await;
    let beginning = "[invalid bearer token, token audiences [\"elsewhere\"] is invalid for the target audiences [";
    assert!(said.starts_with(beginning), "{said}");
}

#[tokio::test]
async fn an_authorizer_that_does_not_answer_is_no_refusal() {
    let folder = std::env::temp_dir().join(format!("unanswered-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a folder");
    let file = folder.join("webhook.kubeconfig");
    let config = json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "c",
        "clusters": [{"name": "c", "cluster": {"server": "http://127.0.0.1:1/authorize"}}],
        "users": [{"name": "u", "user": {}}],
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
    });
    std::fs::write(&file, config.to_string()).expect("the file is written");
    let file = format!("--authorization-webhook-config-file={}", file.display());
    let server = ApiServer::start("unanswered", &["--controllers=-*", "--authorization-mode=RBAC,Webhook", &file]);
    let server = server.expect("the server starts");
    let api = Api::new(&server);
    let error = "Post \"http://127.0.0.1:1/authorize?timeout=30s\": dial tcp 127.0.0.1:1: connect: connection refused";
    let attributes = json!({"verb": "get", "resource": "secrets", "namespace": "default"});
    let review = json!({"spec": {"user": "jane", "resourceAttributes": attributes}});
    let (code, said) =
        api.post("/apis/authorization.k8s.io/v1/subjectaccessreviews", &review).await.expect("an answer");
    assert_eq!((code, &said["status"]), (201, &json!({"allowed": false, "evaluationError": error})), "{said}");
    let rules = json!({"spec": {"namespace": "default"}});
    let (_, said) = api.post("/apis/authorization.k8s.io/v1/selfsubjectrulesreviews", &rules).await.expect("an answer");
    assert_eq!(said["status"]["incomplete"], true, "{said}");
    let unsupported = "webhook authorizer does not support user rule resolution";
    assert_eq!(said["status"]["evaluationError"], unsupported, "{said}");
    assert_eq!(api.of("jane").get("/api/v1/namespaces/default/secrets").await.expect("an answer").0, 500);
    std::fs::remove_dir_all(&folder).expect("the folder goes");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_quota_of_ten_lets_exactly_ten_of_fifty_pass() {
    let server = ApiServer::start("quota", &[]).expect("the server starts");
    let api = Api::new(&server);
    let quota = json!({"metadata": {"name": "ten"}, "spec": {"hard": {"count/secrets": "10"}}});
    let path = "/api/v1/namespaces/narrow";
    let made = api.post("/api/v1/namespaces", &json!({"metadata": {"name": "narrow"}})).await.expect("an answer");
    assert_eq!(made.0, 201);
    assert_eq!(api.post(&format!("{path}/resourcequotas"), &quota).await.expect("an answer").0, 201);
    let quota = format!("{path}/resourcequotas/ten");
    api.until(&quota, |_, q| q["status"]["used"]["count/secrets"] == "0").await.expect("the quota is counted");

    let secrets = format!("{path}/secrets");
    let bodies: Vec<Value> = (0..50).map(|n| json!({"metadata": {"name": format!("s{n}")}})).collect();
    let answers = join_all(bodies.iter().map(|body| api.post(&secrets, body))).await;
    let codes: Vec<u16> = answers.into_iter().map(|answer| answer.expect("an answer").0).collect();
    assert_eq!(codes.iter().filter(|code| **code == 201).count(), 10, "{codes:?}");
    assert!(codes.iter().all(|code| matches!(code, 201 | 403)), "{codes:?}");
    let (_, list) = api.get(&secrets).await.expect("an answer");
    assert_eq!(list["items"].as_array().map(Vec::len), Some(10));
    let (_, said) = api.post(&secrets, &json!({"metadata": {"name": "late"}})).await.expect("an answer");
    let text = said["message"].as_str().unwrap_or_default();
    let wanted = "exceeded quota: ten, requested: count/secrets=1, used: count/secrets=10, limited: count/secrets=10";
    assert!(text.contains(wanted), "{text}");
}

/// A token of claims, signed for ES256.
fn token(key: &rcgen::KeyPair, claims: &Value) -> String {
    let part = |value: &Value| BASE64URL.encode(value.to_string());
    let signed = format!("{}.{}", part(&json!({"alg": "ES256", "kid": "k"})), part(claims));
    // Two numbers in ASN.1, of which tokens have the 32 bytes each.
    let der = key.sign(signed.as_bytes()).expect("signed");
    let first = usize::from(der[3]);
    let number = |bytes: &[u8]| {
        let digits = &bytes[bytes.len().saturating_sub(32)..];
        [vec![0; 32 - digits.len()], digits.to_vec()].concat()
    };
    let both = [number(&der[4..4 + first]), number(&der[6 + first..])].concat();
    format!("{signed}.{}", BASE64URL.encode(both))
}

/// The code of a GET without a certificate, and the name that the server knows the caller by.
async fn called(server: &ApiServer, path: &str, bearer: &str) -> u16 {
    let mut connection = Connection::bare(server).await.expect("a connection");
    let mut request = http::Request::get(path).header("host", "127.0.0.1");
    if !bearer.is_empty() {
        request = request.header("authorization", format!("Bearer {bearer}"));
    }
    let answer = connection.send(request.body(Default::default()).expect("a request")).await.expect("an answer");
    answer.status().as_u16()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_says_whose_tokens_count_and_who_decides() {
    let key = rcgen::KeyPair::generate().expect("a key");
    let point = key.public_key_raw();
    let (x, y) = (BASE64URL.encode(&point[1..33]), BASE64URL.encode(&point[33..65]));
    let keys =
        json!({"keys": [{"kty": "EC", "crv": "P-256", "kid": "k", "use": "sig", "alg": "ES256", "x": x, "y": y}]});
    let url: Arc<OnceLock<String>> = Arc::default();
    let known = url.clone();
    let hook = Hook::start(move |path, _| match path {
        "/keys" => keys.clone(),
        _ => {
            let url = known.get().cloned().unwrap_or_default();
            json!({"issuer": url, "jwks_uri": format!("{url}/keys")})
        }
    });
    let hook = hook.await.expect("the issuer starts");
    let issuer = url.get_or_init(|| hook.client_config("")["url"].as_str().unwrap_or_default().to_owned()).clone();
    let authority = base64::engine::general_purpose::STANDARD
        .decode(hook.client_config("")["caBundle"].as_str().unwrap_or_default())
        .expect("base64");
    let folder = tests::scratch("structured").expect("a folder");
    let file = |name: &str, value: Value| {
        let path = folder.join(name);
        std::fs::write(&path, value.to_string()).expect("writable");
        path.display().to_string()
    };
    let authentication = file(
        "authentication.yaml",
        json!({
            "apiVersion": "apiserver.config.k8s.io/v1", "kind": "AuthenticationConfiguration",
            "anonymous": {"enabled": true, "conditions": [{"path": "/livez"}]},
            "jwt": [{
                "issuer": {"url": issuer, "audiences": ["cluster"], "certificateAuthority": String::from_utf8_lossy(&authority)},
                "claimValidationRules": [{"expression": "claims.team == 'a'", "message": "wrong team"}],
                "claimMappings": {"username": {"expression": "'out:' + claims.sub"}, "groups": {"claim": "roles", "prefix": "out:"}},
            }],
        }),
    );
    let authorization = file(
        "authorization.yaml",
        json!({
            "apiVersion": "apiserver.config.k8s.io/v1", "kind": "AuthorizationConfiguration",
            "authorizers": [{"type": "RBAC", "name": "rbac"}],
        }),
    );
    let flags =
        [format!("--authentication-config={authentication}"), format!("--authorization-config={authorization}")];
    let server = ApiServer::start("structured", &[&flags[0], &flags[1]]).expect("the server starts");
    let api = Api::new(&server);
    assert_eq!(called(&server, "/livez", "").await, 200);
    assert_eq!(called(&server, "/readyz", "").await, 401, "anonymous requests are for one path");

    let role = json!({"metadata": {"name": "reads"}, "rules": [{"apiGroups": [""], "resources": ["configmaps"], "verbs": ["list"]}]});
    let binding = json!({"metadata": {"name": "reads"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "reads"},
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "Group", "name": "out:readers"}]});
    assert_eq!(api.post(&format!("{RBAC}/clusterroles"), &role).await.expect("an answer").0, 201);
    assert_eq!(api.post(&format!("{RBAC}/clusterrolebindings"), &binding).await.expect("an answer").0, 201);
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).expect("after 1970").as_secs();
    let claims = |roles: Value, team: &str, audience: &str, ends: u64| json!({"iss": issuer, "sub": "jane", "aud": audience, "exp": ends, "roles": roles, "team": team});
    let list = "/api/v1/namespaces/default/configmaps";
    let good = token(&key, &claims(json!(["readers"]), "a", "cluster", now + 600));
    assert_eq!(called(&server, list, &good).await, 200);
    for (claims, code, why) in [
        (claims(json!(["writers"]), "a", "cluster", now + 600), 403, "a group without rights"),
        (claims(json!(["readers"]), "b", "cluster", now + 600), 401, "a rule that does not hold"),
        (claims(json!(["readers"]), "a", "other", now + 600), 401, "meant for somebody else"),
        (claims(json!(["readers"]), "a", "cluster", now - 1), 401, "no longer good"),
    ] {
        assert_eq!(called(&server, list, &token(&key, &claims)).await, code, "{why}");
    }
    let forged = rcgen::KeyPair::generate().expect("a key");
    let claims = claims(json!(["readers"]), "a", "cluster", now + 600);
    assert_eq!(called(&server, list, &token(&forged, &claims)).await, 401, "signed by somebody else");
}

/// Reviews are not stored and have no rows: a Table of one is not to be had, its metadata are.
#[tokio::test]
async fn reviews_are_answered_whole_or_as_their_metadata() {
    let server = ApiServer::start("review-forms", &[]).expect("the server starts");
    let spec = json!({"resourceAttributes": {"verb": "get", "resource": "pods"}});
    let review = json!({"spec": spec}).to_string();
    let ask_at = async |path: &str, accept: &str| {
        let request = http::Request::post(path);
        let request = request.header("host", "127.0.0.1").header("content-type", "application/json");
        let request = request.header("accept", accept).body(http_body_util::Full::new(review.clone().into()));
        let mut connection = Connection::http1(&server).await.expect("a connection");
        let answer = connection.send(request.expect("a request")).await.expect("an answer");
        (answer.status().as_u16(), serde_json::from_slice::<Value>(answer.body()).unwrap_or_default())
    };
    let ask = async |accept: &str| ask_at("/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", accept).await;
    let table = "application/json;as=Table;v=v1;g=meta.k8s.io";
    assert_eq!(ask(table).await.0, 406);
    assert_eq!(ask_at("/api/v1/namespaces/default/serviceaccounts/default/token", table).await.0, 406);
    let (code, whole) = ask(&format!("{table},application/json")).await;
    assert_eq!(
        (code, &whole["kind"], &whole["status"]["allowed"]),
        (201, &json!("SelfSubjectAccessReview"), &json!(true))
    );
    let (code, part) = ask("application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io").await;
    assert_eq!(code, 201, "{part}");
    assert_eq!((&part["kind"], &part["apiVersion"]), (&json!("PartialObjectMetadata"), &json!("meta.k8s.io/v1")));
    assert!(part["metadata"].is_object(), "{part}");
    assert!(part["spec"].is_null() && part["status"].is_null(), "{part}");
    assert_eq!(ask("application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io").await.0, 406);
}

#[tokio::test]
async fn a_certificate_that_does_not_verify_is_no_broken_connection() {
    use rcgen::{CertificateParams, DnType, ExtendedKeyUsagePurpose, Issuer, KeyPair, date_time_ymd};

    let server = ApiServer::start("bad-certificates", &["--controllers=-*"]).expect("the server starts");
    let api = Api::new(&server);
    let account = "/api/v1/namespaces/default/serviceaccounts";
    assert_eq!(api.post(account, &json!({"metadata": {"name": "robot"}})).await.expect("an answer").0, 201);
    let (code, made) = api.post(&format!("{account}/robot/token"), &json!({})).await.expect("an answer");
    assert_eq!(code, 201, "{made}");
    let bearer = format!("Bearer {}", made["status"]["token"].as_str().expect("a token"));

    let read = |name: &str| std::fs::read_to_string(server.dir.join("pki").join(name)).expect("it is there");
    let key = KeyPair::from_pem(&read("ca.key")).expect("a key");
    let known = Issuer::from_ca_cert_pem(&read("ca.crt"), key).expect("an authority");
    let strange = {
        let key = KeyPair::generate().expect("a key");
        Issuer::new(CertificateParams::new(vec!["stranger".to_owned()]).expect("a name"), key)
    };
    let issued = |by: &Issuer<'_, KeyPair>, usage, end| {
        let key = KeyPair::generate().expect("a key");
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, "jane");
        params.extended_key_usages = vec![usage];
        params.not_after = date_time_ymd(end, 1, 1);
        (params.signed_by(&key, by).expect("a certificate").pem(), key.serialize_pem())
    };
    let asked = async |(certificate, key): &(String, String), path: &str, headers: &[(&str, &str)]| {
        let mut connection = Connection::showing(&server, certificate, key).await.expect("a handshake");
        let answer = connection.with(http::Method::GET, path, headers, "").await.expect("an answer");
        (answer.status().as_u16(), String::from_utf8_lossy(answer.body()).into_owned())
    };
    let good = issued(&known, ExtendedKeyUsagePurpose::ClientAuth, 2100);
    let (code, said) = asked(&good, "/api", &[]).await;
    assert_eq!(code, 200, "{said}");
    for (what, login) in [
        ("expired", issued(&known, ExtendedKeyUsagePurpose::ClientAuth, 2001)),
        ("of a stranger", issued(&strange, ExtendedKeyUsagePurpose::ClientAuth, 2100)),
        ("for servers", issued(&known, ExtendedKeyUsagePurpose::ServerAuth, 2100)),
    ] {
        for path in ["/api", "/livez"] {
            let (code, said) = asked(&login, path, &[]).await;
            assert_eq!(code, 401, "{what}: {path}: {said}");
            assert!(said.contains("\"reason\":\"Unauthorized\""), "{what}: {path}: {said}");
            let (code, said) = asked(&login, path, &[("authorization", &bearer)]).await;
            assert_eq!(code, 200, "{what} with a token: {path}: {said}");
        }
    }
    // Whose certificate it is has to be proven still.
    let another = issued(&known, ExtendedKeyUsagePurpose::ClientAuth, 2100);
    assert!(Connection::showing(&server, &good.0, &another.1).await.is_err(), "the key is another's");
}

/// A node sees and asks for the certificates of its own pods, and of no others.
#[tokio::test]
async fn a_node_gets_certificates_for_pods_that_it_runs() {
    const REQUESTS: &str = "/apis/certificates.k8s.io/v1beta1/namespaces/default/podcertificaterequests";
    let settings = [
        "--controllers=-*,serviceaccount-controller",
        "--scheduler=false",
        "--enable-admission-plugins=NodeRestriction",
        "--feature-gates=PodCertificateRequest=true",
        "--runtime-config=certificates.k8s.io/v1beta1=true",
    ];
    let server = ApiServer::start("pod-certificates", &settings).expect("the server starts");
    let api = Api::new(&server);
    let as_node = async |node: &str, method: http::Method, path: &str, body: &Value| -> (u16, Value) {
        let mut connection = Connection::http1(&server).await.expect("a connection");
        let sent: bytes::Bytes = if body.is_null() { bytes::Bytes::new() } else { body.to_string().into() };
        let request = http::Request::builder().method(method).uri(path).header("host", "127.0.0.1");
        let request = request.header("accept", "application/json").header("content-type", "application/json");
        let request = request.header("impersonate-user", format!("system:node:{node}"));
        let request = request.header("impersonate-group", "system:nodes");
        let request = request.header("impersonate-group", "system:authenticated");
        let request = request.body(http_body_util::Full::new(sent)).expect("a request");
        let answer = connection.send(request).await.expect("an answer");
        (answer.status().as_u16(), serde_json::from_slice(answer.body()).unwrap_or_default())
    };
    let uid = |object: &Value| object["metadata"]["uid"].clone();
    let made = async |path: &str, object: Value| -> Value {
        let (code, made) = api.post(path, &object).await.expect("an answer");
        assert_eq!(code, 201, "{made}");
        made
    };
    let node = made("/api/v1/nodes", json!({"metadata": {"name": "n"}})).await;
    let account = made("/api/v1/namespaces/default/serviceaccounts", json!({"metadata": {"name": "robot"}})).await;
    let pod = json!({"metadata": {"name": "p"}, "spec": {"nodeName": "n", "serviceAccountName": "robot",
        "containers": [{"name": "c", "image": "localhost/i"}]}});
    let pod = made("/api/v1/namespaces/default/pods", pod).await;
    let key = rcgen::KeyPair::generate().expect("a key");
    let stub = rcgen::CertificateParams::default().serialize_request(&key).expect("a request");
    let request = json!({"metadata": {"name": "r"}, "spec": {"signerName": "example.com/s", "podName": "p",
        "podUID": uid(&pod), "serviceAccountName": "robot", "serviceAccountUID": uid(&account), "nodeName": "n",
        "nodeUID": uid(&node), "maxExpirationSeconds": 86400,
        "stubPKCS10Request": base64::engine::general_purpose::STANDARD.encode(stub.der())}});
    let post = http::Method::POST;
    let get = http::Method::GET;
    for (field, value, code, why) in [
        ("nodeName", "m", 403, "PodCertificateRequest.Spec.NodeName=\"m\", which is not the requesting node \"n\""),
        ("nodeUID", "x", 500, "PodCertificateRequest for pod \"default/p\" names node UID \"x\", inconsistent"),
        (
            "podName",
            "q",
            500,
            "while retrieving pod \"default/q\" named in the PodCertificateRequest: pod \"q\" not found",
        ),
        ("podUID", "x", 500, "PodCertificateRequest for pod \"default/p\" contains pod UID (\"x\") which differs from"),
        (
            "serviceAccountName",
            "default",
            403,
            "contains serviceAccountName (\"default\") that differs from running pod (\"robot\")",
        ),
        (
            "serviceAccountUID",
            "x",
            500,
            "names service account UID \"x\", which differs from the running service account",
        ),
    ] {
        let mut wrong = request.clone();
        wrong["spec"][field] = value.into();
        let (found, said) = as_node("n", post.clone(), REQUESTS, &wrong).await;
        let text = said["message"].as_str().unwrap_or_default();
        assert!(found == code && text.contains(why), "{field}: {said}");
    }
    let (code, said) = as_node("n", post.clone(), REQUESTS, &request).await;
    assert_eq!(code, 201, "{said}");
    let (one, mine) = (format!("{REQUESTS}/r"), format!("{REQUESTS}?fieldSelector=spec.nodeName%3Dn"));
    for (node, path, wanted) in
        [("n", &*one, 200), ("n", &*mine, 200), ("n", REQUESTS, 403), ("m", &*one, 403), ("m", &*mine, 403)]
    {
        let (code, said) = as_node(node, get.clone(), path, &Value::Null).await;
        assert_eq!(code, wanted, "{node} {path}: {said}");
    }
    let (code, _) = as_node("n", http::Method::DELETE, &one, &Value::Null).await;
    assert_eq!(code, 403);
}
