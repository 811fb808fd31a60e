//! Nobody gives away more than they have, and a quota holds however many ask at once.

use futures_util::future::join_all;
use serde_json::{Value, json};
use tests::{Api, ApiServer};

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
    let (code, said) = carol.post(&roles, &role("more", json!([rule("", "secrets", &["get"])]))).await.expect("an answer");
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
