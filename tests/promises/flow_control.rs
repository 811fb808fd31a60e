//! No client keeps the others from being served: requests are told apart by flow schemas, and a full level sends away.

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::Full;
use serde_json::{Value, json};
use tests::{Api, ApiServer, Connection};
use tokio::io::AsyncWriteExt as _;

const FLOW: &str = "/apis/flowcontrol.apiserver.k8s.io/v1";
const CONFIG_MAPS: &str = "/api/v1/namespaces/default/configmaps";

async fn get(server: &ApiServer, user: &str, path: &str) -> Response<Bytes> {
    let mut connection = Connection::http1(server).await.expect("connected");
    let mut request = Request::builder().uri(path).header("host", "127.0.0.1").header("accept", "application/json");
    if !user.is_empty() {
        request = request.header("impersonate-user", user);
    }
    connection.send(request.body(Full::default()).expect("a request")).await.expect("an answer")
}

fn header(answer: &Response<Bytes>, name: &str) -> String {
    answer.headers().get(name).and_then(|v| v.to_str().ok()).unwrap_or_default().to_owned()
}

async fn uid(api: Api<'_>, plural: &str, name: &str) -> String {
    let (code, object) = api.get(&format!("{FLOW}/{plural}/{name}")).await.expect("an answer");
    assert_eq!(code, 200, "{plural}/{name}: {object}");
    object["metadata"]["uid"].as_str().expect("has a uid").to_owned()
}

/// Lets `carol` do anything, on a level of her own.
async fn carol(api: Api<'_>, response: &Value) {
    let of = |kind: &str, name: &str| json!({"apiGroup": "rbac.authorization.k8s.io", "kind": kind, "name": name});
    let binding = json!({"metadata": {"name": "carol"}, "roleRef": of("ClusterRole", "cluster-admin"),
        "subjects": [of("User", "carol")]});
    let bindings = "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings";
    assert_eq!(api.post(bindings, &binding).await.expect("an answer").0, 201);
    let level = json!({"metadata": {"name": "narrow"}, "spec": {"type": "Limited", "limited": {
        "nominalConcurrencyShares": 0, "borrowingLimitPercent": 0, "limitResponse": response}}});
    let (code, said) = api.post(&format!("{FLOW}/prioritylevelconfigurations"), &level).await.expect("an answer");
    assert_eq!(code, 201, "{said}");
    let rule = json!({"verbs": ["*"], "apiGroups": ["*"], "resources": ["configmaps"], "namespaces": ["*"]});
    let schema = json!({"metadata": {"name": "carol"}, "spec": {
        "priorityLevelConfiguration": {"name": "narrow"}, "matchingPrecedence": 300,
        "rules": [{"subjects": [{"kind": "User", "user": {"name": "carol"}}], "resourceRules": [rule]}]}});
    assert_eq!(api.post(&format!("{FLOW}/flowschemas"), &schema).await.expect("an answer").0, 201);
    let found = |_, schema: &Value| schema["status"]["conditions"][0]["reason"] == "Found";
    api.until(&format!("{FLOW}/flowschemas/carol"), found).await.expect("the schema is taken in");
}

/// A write of carol's that is half sent, and so keeps its seat.
async fn half_sent(server: &ApiServer) -> impl tokio::io::AsyncWrite + Unpin {
    let mut stream = tests::raw::tls(server, b"http/1.1").await.expect("connected");
    let head = format!(
        "POST {CONFIG_MAPS} HTTP/1.1\r\nhost: x\r\nimpersonate-user: carol\r\ncontent-type: application/json\r\n\
         content-length: 100\r\n\r\n{{"
    );
    stream.write_all(head.as_bytes()).await.expect("sent");
    stream.flush().await.expect("sent");
    stream
}

async fn metric(server: &ApiServer, line: &str) -> Option<String> {
    let answer = get(server, "", "/metrics").await;
    let text = String::from_utf8_lossy(answer.body()).into_owned();
    text.lines().find_map(|l| l.strip_prefix(line)).map(|rest| rest.trim().to_owned())
}

/// Waits until a metric has a value.
async fn until(server: &ApiServer, line: &str, wanted: &str) {
    for _ in 0..500 {
        if metric(server, line).await.as_deref() == Some(wanted) {
            return;
        }
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
    panic!("{line} is {:?} and never {wanted}", metric(server, line).await);
}

#[tokio::test]
async fn every_answer_says_how_its_request_was_classified() {
    let server = ApiServer::start("flow-headers", &[]).expect("the server starts");
    let api = Api::new(&server);
    let expected = [
        ("", "/api/v1/nodes", "exempt", "exempt"),
        ("jane", "/readyz", "probes", "exempt"),
        ("jane", "/api/v1/nodes", "global-default", "global-default"),
        ("jane", "/no/such/path", "global-default", "global-default"),
        ("system:kube-scheduler", "/api/v1/pods", "kube-scheduler", "workload-high"),
        ("system:serviceaccount:kube-system:a", "/api/v1/pods", "kube-system-service-accounts", "workload-high"),
        ("system:serviceaccount:default:a", "/api/v1/pods", "service-accounts", "workload-low"),
    ];
    for (user, path, schema, level) in expected {
        let answer = get(&server, user, path).await;
        let shown = format!("{user} {path}: {}", answer.status());
        assert_eq!(header(&answer, "x-kubernetes-pf-flowschema-uid"), uid(api, "flowschemas", schema).await, "{shown}");
        let level = uid(api, "prioritylevelconfigurations", level).await;
        assert_eq!(header(&answer, "x-kubernetes-pf-prioritylevel-uid"), level, "{shown}");
    }
    let dump = get(&server, "", "/debug/api_priority_and_fairness/dump_priority_levels").await;
    let text = String::from_utf8_lossy(dump.body()).into_owned();
    assert!(text.starts_with("PriorityLevelName, ActiveQueues, IsIdle, IsQuiescing, "), "{text}");
    assert_eq!(text.lines().count(), 9, "{text}");
}

#[tokio::test]
async fn what_the_server_needs_itself_is_put_right_again() {
    let server = ApiServer::start("flow-keeper", &[]).expect("the server starts");
    let api = Api::new(&server);
    let level = format!("{FLOW}/prioritylevelconfigurations/workload-low");
    let wider = json!({"spec": {"limited": {"nominalConcurrencyShares": 7}}});
    assert_eq!(api.merge(&level, &wider).await.expect("an answer").0, 200);
    let shares = |wanted: i64| move |_, l: &Value| l["spec"]["limited"]["nominalConcurrencyShares"] == wanted;
    api.until(&level, shares(100)).await.expect("a suggestion is kept as it is");
    // Until its owner says otherwise.
    let own =
        json!({"metadata": {"annotations": {"apf.kubernetes.io/autoupdate-spec": "false"}}, "spec": wider["spec"]});
    assert_eq!(api.merge(&level, &own).await.expect("an answer").0, 200);
    let gone = api.ask(http::Method::DELETE, &format!("{FLOW}/flowschemas/catch-all"), "", &Value::Null).await;
    assert_eq!(gone.expect("an answer").0, 200);
    api.until(&format!("{FLOW}/flowschemas/catch-all"), |code, _| code == 200).await.expect("it comes back");
    assert_eq!(api.get(&level).await.expect("an answer").1["spec"]["limited"]["nominalConcurrencyShares"], 7);

    let lost = json!({"metadata": {"name": "lost"}, "spec": {"priorityLevelConfiguration": {"name": "nowhere"},
        "rules": [{"subjects": [{"kind": "Group", "group": {"name": "*"}}],
            "nonResourceRules": [{"verbs": ["*"], "nonResourceURLs": ["*"]}]}]}});
    assert_eq!(api.post(&format!("{FLOW}/flowschemas"), &lost).await.expect("an answer").0, 201);
    let dangles = |_, schema: &Value| {
        let condition = &schema["status"]["conditions"][0];
        condition["type"] == "Dangling" && condition["status"] == "True" && condition["reason"] == "NotFound"
    };
    let schema = api.until(&format!("{FLOW}/flowschemas/lost"), dangles).await.expect("its level is missing");
    assert_eq!(
        schema["status"]["conditions"][0]["message"],
        "This FlowSchema references the PriorityLevelConfiguration object named \"nowhere\" but there is no such object"
    );
}

#[tokio::test]
async fn a_full_level_sends_away_and_nobody_else_notices() {
    let server = ApiServer::start("flow-full", &[]).expect("the server starts");
    let api = Api::new(&server);
    carol(api, &json!({"type": "Reject"})).await;
    assert_eq!(get(&server, "carol", CONFIG_MAPS).await.status(), 200);
    let held = half_sent(&server).await;
    let executing = "apiserver_flowcontrol_current_executing_requests{flow_schema=\"carol\",priority_level=\"narrow\"}";
    until(&server, executing, "1").await;
    let answer = get(&server, "carol", CONFIG_MAPS).await;
    assert_eq!(answer.status(), 429);
    assert_eq!(header(&answer, "retry-after"), "1");
    assert_eq!(header(&answer, "x-kubernetes-pf-flowschema-uid"), uid(api, "flowschemas", "carol").await);
    assert_eq!(&answer.body()[..], b"Too many requests, please try again later.\n");
    assert_eq!(get(&server, "jane", "/readyz").await.status(), 200, "others are served");
    assert_eq!(get(&server, "", CONFIG_MAPS).await.status(), 200);
    let rejected = "apiserver_flowcontrol_rejected_requests_total{flow_schema=\"carol\",priority_level=\"narrow\",\
                    reason=\"concurrency-limit\"}";
    assert_eq!(metric(&server, rejected).await.as_deref(), Some("1"));
    drop(held);
    until(&server, executing, "0").await;
    assert_eq!(get(&server, "carol", CONFIG_MAPS).await.status(), 200);
}

#[tokio::test]
async fn who_finds_a_place_in_a_queue_waits_for_a_seat() {
    let server = ApiServer::start("flow-queue", &[]).expect("the server starts");
    let api = Api::new(&server);
    let queuing = json!({"queues": 1, "handSize": 1, "queueLengthLimit": 1});
    carol(api, &json!({"type": "Queue", "queuing": queuing})).await;
    let held = half_sent(&server).await;
    until(
        &server,
        "apiserver_flowcontrol_current_executing_requests{flow_schema=\"carol\",priority_level=\"narrow\"}",
        "1",
    )
    .await;
    let waits = get(&server, "carol", CONFIG_MAPS);
    let rest = async {
        let waiting = "apiserver_flowcontrol_current_inqueue_requests{flow_schema=\"carol\",priority_level=\"narrow\"}";
        until(&server, waiting, "1").await;
        assert_eq!(get(&server, "carol", CONFIG_MAPS).await.status(), 429, "the queue is full");
        let dump = get(&server, "", "/debug/api_priority_and_fairness/dump_requests?includeRequestDetails=1").await;
        let text = String::from_utf8_lossy(dump.body()).into_owned();
        assert!(text.lines().any(|l| l.starts_with("narrow,") && l.ends_with(CONFIG_MAPS)), "{text}");
        drop(held);
    };
    let (answer, ()) = tokio::join!(waits, rest);
    assert_eq!(answer.status(), 200, "it was served when there was a seat");
}
