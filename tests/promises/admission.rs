//! Who writes is judged by the webhooks and policies of the cluster, and by nobody who was not asked for.

use base64::Engine as _;
use serde_json::{Value, json};
use tests::{Api, ApiServer, Hook};

const ADMISSION: &str = "/apis/admissionregistration.k8s.io/v1";
const CONFIG_MAPS: &str = "/api/v1/namespaces/default/configmaps";

/// What the test's webhook answers: by its path.
fn answer(path: &str, review: &Value) -> Value {
    if path == "/images" {
        let bad = review["spec"]["containers"].as_array().into_iter().flatten().any(|c| c["image"] == "bad");
        let status = json!({"allowed": !bad, "reason": if bad { "it is bad" } else { "" }});
        return json!({"kind": "ImageReview", "apiVersion": "imagepolicy.k8s.io/v1alpha1", "status": status});
    }
    let uid = &review["request"]["uid"];
    let object = &review["request"]["object"];
    let patch = |operations: Value| {
        let text = base64::engine::general_purpose::STANDARD.encode(operations.to_string());
        json!({"uid": uid, "allowed": true, "patchType": "JSONPatch", "patch": text})
    };
    let count = object["data"]["count"].as_str().and_then(|n| n.parse::<u32>().ok()).unwrap_or(0);
    let response = match path {
        "/count" => patch(json!([{"op": "add", "path": "/data/count", "value": (count + 1).to_string()}])),
        "/mark" if object["data"]["mark"].is_null() => {
            patch(json!([{"op": "add", "path": "/data/mark", "value": "yes"}]))
        }
        "/judge" if object["data"]["bad"].is_string() => {
            json!({"uid": uid, "allowed": false, "status": {"code": 422, "message": "no bad data"}})
        }
        "/move" => patch(json!([{"op": "replace", "path": "/metadata/namespace", "value": "kube-system"}])),
        "/keep" => json!({"uid": uid, "allowed": false, "status": {"code": 418, "message": "it stays"}}),
        "/word" => json!({"uid": uid, "allowed": "yes"}),
        "/strange" => json!({"uid": "another", "allowed": true}),
        "/limit" => patch(json!([{"op": "add", "path": "/spec/containers/0/resources/limits", "value": {"cpu": "1"}}])),
        "/target" if object["target"]["name"] == "later" => {
            patch(json!([{"op": "replace", "path": "/target/name", "value": "n"}]))
        }
        "/warn" => json!({"uid": uid, "allowed": true, "warnings": ["mind the gap"]}),
        _ => json!({"uid": uid, "allowed": true}),
    };
    json!({"kind": "AdmissionReview", "apiVersion": "admission.k8s.io/v1", "response": response})
}

/// A webhook for config maps whose name begins with `only`, or for all.
fn webhook(hook: &Hook, path: &str, only: &str) -> Value {
    let mut out = json!({
        "name": format!("{}.example.com", path.trim_start_matches('/')),
        "clientConfig": hook.client_config(path),
        "rules": [{"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE", "UPDATE"], "resources": ["configmaps"]}],
        "admissionReviewVersions": ["v1"],
        "sideEffects": "None",
    });
    if !only.is_empty() {
        let expression = format!("object.metadata.name.startsWith('{only}')");
        out["matchConditions"] = json!([{"name": "only", "expression": expression}]);
    }
    out
}

async fn create(api: Api<'_>, name: &str, data: Value) -> (u16, Value) {
    api.post(CONFIG_MAPS, &json!({"metadata": {"name": name}, "data": data})).await.expect("an answer")
}

fn message(said: &Value) -> &str {
    said["message"].as_str().unwrap_or_default()
}

#[tokio::test(flavor = "multi_thread")]
async fn webhooks_are_told_who_asks() {
    let hook = Hook::start(answer).await.expect("the webhook starts");
    let folder = std::env::temp_dir().join(format!("webhook-users-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a folder");
    let write = |name: &str, content: &Value| {
        let path = folder.join(name);
        std::fs::write(&path, content.to_string()).expect("a file");
        path.display().to_string()
    };
    let coded = |pem: &str| base64::engine::general_purpose::STANDARD.encode(pem);
    let (certificate, key) = hook.login();
    let plugin = |name: &str, file: String| {
        json!({"name": name, "configuration": {"apiVersion": "apiserver.config.k8s.io/v1",
            "kind": "WebhookAdmissionConfiguration", "kubeConfigFile": file}})
    };
    let by_token = json!({"users": [{"name": hook.address(), "user": {"token": "secret"}},
        {"name": "*", "user": {"token": "wrong"}}]});
    let by_certificate = json!({"users": [{"name": "*",
        "user": {"client-certificate-data": coded(certificate), "client-key-data": coded(key)}}]});
    let configuration = json!({"apiVersion": "apiserver.config.k8s.io/v1", "kind": "AdmissionConfiguration", "plugins": [
        plugin("ValidatingAdmissionWebhook", write("token", &by_token)),
        plugin("MutatingAdmissionWebhook", write("certificate", &by_certificate)),
    ]});
    let flag = format!("--admission-control-config-file={}", write("admission", &configuration));
    let server = ApiServer::start("webhook-users", &["--controllers=-*", &flag]).expect("the server starts");
    let api = Api::new(&server);
    for (kind, path) in [("validatingwebhookconfigurations", "/judge"), ("mutatingwebhookconfigurations", "/mark")] {
        let hooks = json!({"metadata": {"name": "w"}, "webhooks": [webhook(&hook, path, "")]});
        let (code, said) = api.post(&format!("{ADMISSION}/{kind}"), &hooks).await.expect("an answer");
        assert_eq!(code, 201, "{said}");
    }
    let (code, said) = create(api, "a", json!({"a": "b"})).await;
    assert_eq!(code, 201, "{said}");
    assert_eq!(hook.callers("/judge"), [("Bearer secret".to_owned(), false)]);
    assert_eq!(hook.callers("/mark"), [(String::new(), true)]);
    std::fs::remove_dir_all(&folder).expect("removed");
}

/// A kubeconfig may name a program that tells a token; and images of pods may be judged by somebody else.
#[tokio::test(flavor = "multi_thread")]
async fn a_program_tells_who_asks_and_images_are_judged() {
    let hook = Hook::start(answer).await.expect("the webhook starts");
    let folder = std::env::temp_dir().join(format!("webhook-programs-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a folder");
    let write = |name: &str, content: &Value| {
        let path = folder.join(name);
        std::fs::write(&path, content.to_string()).expect("a file");
        path.display().to_string()
    };
    let told =
        json!({"kind": "ExecCredential", "apiVersion": "client.authentication.k8s.io/v1", "status": {"token": "told"}});
    let program = json!({"apiVersion": "client.authentication.k8s.io/v1", "command": "cat",
        "args": [write("told", &told)], "interactiveMode": "Never"});
    let users = write("users", &json!({"users": [{"name": "*", "user": {"exec": program}}]}));
    let bundle = hook.client_config("")["caBundle"].clone();
    let server = format!("https://{}/images", hook.address());
    let images = json!({
        "clusters": [{"name": "a", "cluster": {"server": server, "certificate-authority-data": bundle}}],
        "contexts": [{"name": "a", "context": {"cluster": "a", "user": "u"}}],
        "current-context": "a",
        "users": [{"name": "u", "user": {"token": "secret"}}],
    });
    let configuration = json!({"apiVersion": "apiserver.config.k8s.io/v1", "kind": "AdmissionConfiguration", "plugins": [
        {"name": "ValidatingAdmissionWebhook", "configuration": {"apiVersion": "apiserver.config.k8s.io/v1",
            "kind": "WebhookAdmissionConfiguration", "kubeConfigFile": users}},
        {"name": "ImagePolicyWebhook",
            "configuration": {"imagePolicy": {"kubeConfigFile": write("images", &images), "allowTTL": 60}}},
    ]});
    let flag = format!("--admission-control-config-file={}", write("admission", &configuration));
    let flags = ["--controllers=-*", "--enable-admission-plugins=ImagePolicyWebhook", &flag];
    let server = ApiServer::start("webhook-programs", &flags).expect("the server starts");
    let api = Api::new(&server);
    let hooks = json!({"metadata": {"name": "w"}, "webhooks": [webhook(&hook, "/judge", "")]});
    let (code, said) =
        api.post(&format!("{ADMISSION}/validatingwebhookconfigurations"), &hooks).await.expect("an answer");
    assert_eq!(code, 201, "{said}");
    let (code, said) = create(api, "a", json!({"a": "b"})).await;
    assert_eq!(code, 201, "{said}");
    assert_eq!(hook.callers("/judge"), [("Bearer told".to_owned(), false)]);

    let account = json!({"metadata": {"name": "default"}});
    api.post("/api/v1/namespaces/default/serviceaccounts", &account).await.expect("an answer");
    let pod = async |name: &str, image: &str| {
        let pod = json!({"metadata": {"name": name}, "spec": {"containers": [{"name": "c", "image": image}]}});
        api.post("/api/v1/namespaces/default/pods", &pod).await.expect("an answer")
    };
    for name in ["one", "two"] {
        let (code, said) = pod(name, "good").await;
        assert_eq!(code, 201, "{said}");
    }
    assert_eq!(hook.callers("/images"), [("Bearer secret".to_owned(), false)], "an answer is kept");
    let (code, said) = pod("three", "bad").await;
    assert_eq!(code, 403, "{said}");
    let why = "pods \"three\" is forbidden: image policy webhook backend denied one or more images: it is bad";
    assert_eq!(message(&said), why);
    std::fs::remove_dir_all(&folder).expect("removed");
}

#[tokio::test(flavor = "multi_thread")]
async fn webhooks_change_and_refuse_what_they_are_asked_about() {
    let server = ApiServer::start("webhooks", &["--controllers=-*"]).expect("the server starts");
    let hook = Hook::start(answer).await.expect("the webhook starts");
    let api = Api::new(&server);
    let with = |mut hook: Value, key: &str, value: Value| {
        hook[key] = value;
        hook
    };
    let mutating = json!({"metadata": {"name": "m"}, "webhooks": [
        with(webhook(&hook, "/count", "a"), "reinvocationPolicy", json!("IfNeeded")),
        webhook(&hook, "/mark", "a"),
    ]});
    let validating = json!({"metadata": {"name": "v"}, "webhooks": [
        webhook(&hook, "/judge", ""),
        with(with(webhook(&hook, "/slow", "slow"), "timeoutSeconds", json!(1)), "failurePolicy", json!("Fail")),
        with(webhook(&hook, "/gone", "ignored"), "failurePolicy", json!("Ignore")),
        with(webhook(&hook, "/effects", "effects"), "sideEffects", json!("NoneOnDryRun")),
    ]});
    let closed = json!({"url": "https://127.0.0.1:1/gone"});
    let validating = {
        let mut all = validating;
        all["webhooks"][2]["clientConfig"] = closed.clone();
        let mut failing = with(webhook(&hook, "/closed", "failing"), "clientConfig", closed);
        failing["failurePolicy"] = json!("Fail");
        all["webhooks"].as_array_mut().expect("a list").push(failing);
        all
    };
    for (plural, body) in [("mutatingwebhookconfigurations", mutating), ("validatingwebhookconfigurations", validating)]
    {
        let (code, said) = api.post(&format!("{ADMISSION}/{plural}"), &body).await.expect("an answer");
        assert_eq!(code, 201, "{said}");
    }

    // The second webhook's change is shown to the first once more, and that one's own to nobody.
    let (code, made) = create(api, "a1", json!({"k": "v"})).await;
    assert_eq!((code, &made["data"]), (201, &json!({"k": "v", "mark": "yes", "count": "2"})), "{made}");
    let (code, made) = create(api, "b1", json!({"k": "v"})).await;
    assert_eq!((code, &made["data"]), (201, &json!({"k": "v"})), "no condition held: {made}");
    assert_eq!(hook.seen("/count").len(), 2);

    let (code, said) = create(api, "b2", json!({"bad": "x"})).await;
    assert_eq!(code, 422, "{said}");
    assert_eq!(message(&said), "admission webhook \"judge.example.com\" denied the request: no bad data");
    let seen = hook.seen("/judge").pop().expect("it was asked");
    assert_eq!(seen["request"]["operation"], "CREATE");
    assert_eq!(seen["request"]["userInfo"]["username"], "kubernetes-admin");

    let begun = std::time::Instant::now();
    let (code, said) = create(api, "slow", json!({})).await;
    assert_eq!(code, 500, "{said}");
    assert!(message(&said).contains("failed calling webhook \"slow.example.com\""), "{said}");
    assert!(message(&said).ends_with("context deadline exceeded"), "{said}");
    assert!(begun.elapsed() < std::time::Duration::from_secs(10));
    assert_eq!(create(api, "ignored", json!({})).await.0, 201);
    let (code, said) = create(api, "failing", json!({})).await;
    assert!(code == 500 && message(&said).contains("connection refused"), "{said}");

    // A dry run is told to the webhook, and leaves nothing behind.
    let dry = format!("{CONFIG_MAPS}?dryRun=All");
    let (code, _) = api.post(&dry, &json!({"metadata": {"name": "effects"}})).await.expect("an answer");
    assert_eq!(code, 201);
    assert_eq!(hook.seen("/effects").pop().expect("it was asked")["request"]["dryRun"], true);
    assert_eq!(api.get(&format!("{CONFIG_MAPS}/effects")).await.expect("an answer").0, 404);
}

#[tokio::test(flavor = "multi_thread")]
async fn nobody_moves_an_object_and_what_is_not_there_is_not_judged() {
    let server = ApiServer::start("moved", &["--controllers=-*"]).expect("the server starts");
    let hook = Hook::start(answer).await.expect("the webhook starts");
    let api = Api::new(&server);
    let moving = json!({"metadata": {"name": "m"}, "webhooks": [webhook(&hook, "/move", "moved")]});
    register(api, "mutatingwebhookconfigurations", moving).await;
    let (mut keep, mut asked) = (webhook(&hook, "/keep", ""), webhook(&hook, "/asked", ""));
    keep["rules"][0]["operations"] = json!(["DELETE"]);
    asked["rules"][0]["apiGroups"] = json!(["authorization.k8s.io"]);
    asked["rules"][0]["resources"] = json!(["*"]);
    register(api, "validatingwebhookconfigurations", json!({"metadata": {"name": "v"}, "webhooks": [keep, asked]}))
        .await;

    let (code, said) = create(api, "moved", json!({})).await;
    let why = "the namespace of the provided object does not match the namespace sent on the request";
    assert_eq!((code, message(&said)), (400, why), "{said}");
    assert_eq!(api.get("/api/v1/namespaces/kube-system/configmaps/moved").await.expect("an answer").0, 404);

    let delete = async |name: &str, options: Value| {
        let path = format!("{CONFIG_MAPS}/{name}");
        api.ask(http::Method::DELETE, &path, "application/json", &options).await.expect("an answer")
    };
    assert_eq!(create(api, "stays", json!({})).await.0, 201);
    assert_eq!(delete("none", Value::Null).await.0, 404);
    assert_eq!(delete("stays", json!({"preconditions": {"uid": "another"}})).await.0, 409);
    assert!(hook.seen("/keep").is_empty(), "there was nothing to judge");
    let (code, said) = delete("stays", json!({"propagationPolicy": "Background"})).await;
    assert_eq!(code, 418, "{said}");
    let seen = hook.seen("/keep").pop().expect("it was asked");
    let options = json!({"kind": "DeleteOptions", "apiVersion": "meta.k8s.io/v1", "propagationPolicy": "Background"});
    assert_eq!((&seen["request"]["options"], &seen["request"]["name"]), (&options, &json!("stays")));

    let review = json!({"spec": {"nonResourceAttributes": {"path": "/", "verb": "get"}}});
    let (code, said) = api
        .post("/apis/authorization.k8s.io/v1/selfsubjectaccessreviews?fieldManager=me", &review)
        .await
        .expect("an answer");
    assert_eq!((code, &said["status"]["allowed"]), (201, &json!(true)), "{said}");
    let seen = hook.seen("/asked").pop().expect("it was asked");
    assert_eq!(seen["request"]["resource"]["resource"], "selfsubjectaccessreviews");
    assert_eq!(seen["request"]["options"]["fieldManager"], "me");
}

async fn register(api: Api<'_>, plural: &str, body: Value) {
    let (code, said) = api.post(&format!("{ADMISSION}/{plural}"), &body).await.expect("an answer");
    assert_eq!(code, 201, "{said}");
}

#[tokio::test(flavor = "multi_thread")]
async fn policies_judge_and_change_by_their_parameters() {
    let server = ApiServer::start("policies", &["--controllers=-*"]).expect("the server starts");
    let api = Api::new(&server);
    let constraints = json!({"resourceRules": [
        {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE", "UPDATE"], "resources": ["configmaps"]}]});
    let conditions = json!([{"name": "not-limits", "expression": "object.metadata.name != 'limits'"}]);
    let params = json!({"apiVersion": "v1", "kind": "ConfigMap"});
    let policy = json!({"metadata": {"name": "size"}, "spec": {
        "paramKind": params, "matchConstraints": constraints, "matchConditions": conditions,
        "variables": [{"name": "most", "expression": "int(params.data.most)"}],
        "validations": [{
            "expression": "!has(object.data) || object.data.size() <= variables.most",
            "messageExpression": "'at most ' + string(variables.most) + ' entries'",
        }],
    }});
    let bound_to = |params: &str| {
        let reference = json!({"name": params, "namespace": "default", "parameterNotFoundAction": "Deny"});
        json!({"metadata": {"name": "size"},
            "spec": {"policyName": "size", "paramRef": reference, "validationActions": ["Deny"]}})
    };
    let mutation = json!({"patchType": "ApplyConfiguration", "applyConfiguration": {
        "expression": "Object{metadata: Object.metadata{labels: {'owner': request.userInfo.username}}}"}});
    let mutating = json!({"metadata": {"name": "owner"}, "spec": {
        "matchConstraints": constraints, "matchConditions": conditions, "reinvocationPolicy": "Never",
        "mutations": [mutation]}});
    register(api, "validatingadmissionpolicies", policy).await;
    // Missing parameters are noticed before match conditions, so what is to be the parameters has to be there first.
    assert_eq!(create(api, "limits", json!({"most": "1"})).await.0, 201);
    register(api, "validatingadmissionpolicybindings", bound_to("none")).await;
    register(api, "mutatingadmissionpolicies", mutating).await;
    let binding = json!({"metadata": {"name": "owner"}, "spec": {"policyName": "owner"}});
    register(api, "mutatingadmissionpolicybindings", binding).await;

    let (code, said) = create(api, "early", json!({})).await;
    assert_eq!(code, 422, "{said}");
    assert!(
        message(&said).contains("no params found for policy binding with `Deny` parameterNotFoundAction"),
        "{said}"
    );
    let patch = json!({"spec": {"paramRef": {"name": "limits"}}});
    let changed = api.merge(&format!("{ADMISSION}/validatingadmissionpolicybindings/size"), &patch).await;
    assert_eq!(changed.expect("an answer").0, 200);
    let (code, made) = create(api, "small", json!({"a": "1"})).await;
    assert_eq!((code, &made["metadata"]["labels"]["owner"]), (201, &json!("kubernetes-admin")), "{made}");
    let (code, said) = create(api, "large", json!({"a": "1", "b": "2"})).await;
    assert_eq!(code, 422, "{said}");
    let wanted = "ValidatingAdmissionPolicy 'size' with binding 'size' denied request: at most 1 entries";
    assert!(message(&said).ends_with(wanted), "{said}");
    // Parameters count as they are when the request comes.
    let more = json!({"data": {"most": "2"}});
    assert_eq!(api.merge(&format!("{CONFIG_MAPS}/limits"), &more).await.expect("an answer").0, 200);
    assert_eq!(create(api, "large", json!({"a": "1", "b": "2"})).await.0, 201);
}

#[tokio::test(flavor = "multi_thread")]
async fn scales_and_connections_are_judged_too() {
    let server = ApiServer::start("subresources", &["--controllers=-*"]).expect("the server starts");
    let api = Api::new(&server);
    let policy = |name: &str, group: &str, resource: &str, operation: &str, expression: &str| {
        let rule =
            json!({"apiGroups": [group], "apiVersions": ["*"], "operations": [operation], "resources": [resource]});
        json!({"metadata": {"name": name}, "spec": {
            "matchConstraints": {"resourceRules": [rule]},
            "validations": [{"expression": expression, "reason": "Forbidden", "message": "not so much"}],
        }})
    };
    let rules = [
        policy("scale", "apps", "deployments/scale", "UPDATE", "object.spec.replicas <= oldObject.spec.replicas + 2"),
        policy("exec", "", "pods/exec", "CONNECT", "!has(object.tty) && object.command[0] == 'ls'"),
        policy("token", "", "serviceaccounts/token", "CREATE", "object.spec.audiences.size() == 1"),
    ];
    for rule in rules {
        let name = rule["metadata"]["name"].clone();
        register(api, "validatingadmissionpolicies", rule).await;
        let spec = json!({"policyName": name, "validationActions": ["Deny"]});
        register(api, "validatingadmissionpolicybindings", json!({"metadata": {"name": name}, "spec": spec})).await;
    }
    let container = json!({"name": "a", "image": "b"});
    let template = json!({"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [container]}});
    let spec = json!({"replicas": 1, "selector": {"matchLabels": {"a": "b"}}, "template": template});
    let deployments = "/apis/apps/v1/namespaces/default/deployments";
    let made = api.post(deployments, &json!({"metadata": {"name": "d"}, "spec": spec})).await.expect("an answer");
    assert_eq!(made.0, 201, "{}", made.1);
    let scale = format!("{deployments}/d/scale");
    let (code, said) = api.merge(&scale, &json!({"spec": {"replicas": 9}})).await.expect("an answer");
    assert!(code == 403 && message(&said).ends_with("denied request: not so much"), "{said}");
    assert_eq!(api.merge(&scale, &json!({"spec": {"replicas": 3}})).await.expect("an answer").0, 200);

    // Who judges a request for a token sees whom it will be for.
    let accounts = "/api/v1/namespaces/default/serviceaccounts";
    assert_eq!(api.post(accounts, &json!({"metadata": {"name": "robot"}})).await.expect("an answer").0, 201);
    for (spec, code) in [(json!({}), 201), (json!({"audiences": ["a", "b"]}), 403)] {
        let asked = api.post(&format!("{accounts}/robot/token"), &json!({"spec": spec})).await.expect("an answer");
        assert_eq!(asked.0, code, "{}", asked.1);
    }

    let exec = "/api/v1/namespaces/default/pods/p/exec?command=";
    for (command, code) in [("sh", 403), ("ls&tty=true", 403), ("ls", 404)] {
        let (found, said) = api.post(&format!("{exec}{command}"), &Value::Null).await.expect("an answer");
        assert_eq!(found, code, "{command}: {said}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_webhook_answers_is_read_by_its_type() {
    let server = ApiServer::start("answers", &["--controllers=-*"]).expect("the server starts");
    let hook = Hook::start(answer).await.expect("the webhook starts");
    let api = Api::new(&server);
    let webhooks = [webhook(&hook, "/word", "word"), webhook(&hook, "/strange", "strange")];
    register(api, "validatingwebhookconfigurations", json!({"metadata": {"name": "v"}, "webhooks": webhooks})).await;
    let failed = async |name: &str| {
        let (code, said) = create(api, name, json!({})).await;
        let failed = format!("Internal error occurred: failed calling webhook \"{name}.example.com\": ");
        assert_eq!(code, 500, "{said}");
        message(&said).strip_prefix(&failed).unwrap_or_else(|| panic!("{said}")).to_owned()
    };
    let why = "failed to call webhook: json: cannot unmarshal string into Go struct field \
               AdmissionResponse.response.allowed of type bool";
    assert_eq!(failed("word").await, why);
    let said = failed("strange").await;
    let wanted = "received invalid webhook response: expected response.uid=\"";
    assert!(said.starts_with(wanted) && said.ends_with(", got \"another\""), "{said}");

    // A certificate that is not the one of the configuration.
    let mut strange = webhook(&hook, "/other", "other");
    let another = Hook::start(answer).await.expect("the webhook starts");
    strange["clientConfig"]["caBundle"] = another.client_config("/")["caBundle"].clone();
    register(api, "mutatingwebhookconfigurations", json!({"metadata": {"name": "m"}, "webhooks": [strange]})).await;
    let said = failed("other").await;
    let url = hook.client_config("/other")["url"].as_str().expect("a URL").to_owned();
    let wanted =
        format!("failed to call webhook: Post \"{url}?timeout=10s\": tls: failed to verify certificate: x509: ");
    assert!(said.starts_with(&wanted) && said.contains("signed by unknown authority"), "{said}");
}

#[tokio::test(flavor = "multi_thread")]
async fn objects_are_judged_as_go_writes_them_and_bindings_by_their_path() {
    let server = ApiServer::start("spelled", &["--controllers=-*", "--scheduler=false"]).expect("the server starts");
    let hook = Hook::start(answer).await.expect("the webhook starts");
    let api = Api::new(&server);
    let of = |path: &str, resources: Value, condition: &str| {
        let mut out = webhook(&hook, path, "");
        out["rules"][0]["resources"] = resources;
        out["matchConditions"] = json!([{"name": "c", "expression": condition}]);
        out
    };
    let limit = of("/limit", json!(["pods"]), "has(object.status) && oldObject == null && request.name == 'p'");
    let target = of("/target", json!(["bindings", "pods/binding"]), "object.kind == 'Binding'");
    register(api, "mutatingwebhookconfigurations", json!({"metadata": {"name": "m"}, "webhooks": [limit, target]}))
        .await;

    let pods = "/api/v1/namespaces/default/pods";
    let account = json!({"metadata": {"name": "default"}});
    let (code, said) = api.post("/api/v1/namespaces/default/serviceaccounts", &account).await.expect("an answer");
    assert!(matches!(code, 201 | 409), "{said}");
    let pod = json!({"metadata": {"name": "p"}, "spec": {"containers": [{"name": "c", "image": "i"}]}});
    let (code, said) = api.post(pods, &pod).await.expect("an answer");
    assert_eq!((code, &said["spec"]["containers"][0]["resources"]["limits"]["cpu"]), (201, &json!("1")), "{said}");

    let binding = json!({"metadata": {"name": "p"}, "target": {"kind": "Node", "name": "later"}});
    let (code, said) = api.post("/api/v1/namespaces/default/bindings", &binding).await.expect("an answer");
    assert_eq!(code, 201, "{said}");
    let seen = hook.seen("/target").pop().expect("it was asked");
    assert_eq!(seen["request"]["resource"]["resource"], "bindings");
    assert!(seen["request"]["subResource"].is_null() && seen["request"]["name"] == "p", "{seen}");
    let (_, said) = api.get(&format!("{pods}/p")).await.expect("an answer");
    assert_eq!(said["spec"]["nodeName"], "n", "what the webhook made of it");
    let (code, _) = api.post(&format!("{pods}/p/binding"), &binding).await.expect("an answer");
    assert_eq!(code, 409);
    let seen = hook.seen("/target").pop().expect("it was asked");
    assert_eq!(
        (&seen["request"]["resource"]["resource"], &seen["request"]["subResource"]),
        (&json!("pods"), &json!("binding"))
    );
}
