//! Who writes an admission policy is told where its expressions do not fit the kinds that it is about.

use serde_json::{Value, json};
use tests::{Api, ApiServer};

const POLICIES: &str = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies";

fn policy(name: &str, expression: &str) -> Value {
    json!({"metadata": {"name": name}, "spec": {
        "matchConstraints": {"resourceRules": [
            {"apiGroups": ["apps"], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["deployments"]},
        ]},
        "validations": [{"expression": expression}],
    }})
}

#[tokio::test]
async fn the_status_of_a_policy_tells_what_does_not_fit() {
    let server = ApiServer::start("policy-types", &[]).expect("the server starts");
    let api = Api::new(&server);
    for (name, expression) in [("good", "object.spec.replicas > 1"), ("bad", "object.replicas > 1")] {
        assert_eq!(api.post(POLICIES, &policy(name, expression)).await.expect("an answer").0, 201);
    }
    let observed = |generation: i64| move |_, p: &Value| p["status"]["observedGeneration"] == generation;
    let (good, bad) = (format!("{POLICIES}/good"), format!("{POLICIES}/bad"));
    let found = api.until(&good, observed(1)).await.expect("it is looked at");
    assert_eq!(found["status"], json!({"observedGeneration": 1, "typeChecking": {}}));
    let found = api.until(&bad, observed(1)).await.expect("it is looked at");
    let warning = "apps/v1, Kind=Deployment: ERROR: <input>:1:7: undefined field 'replicas'\n \
                   | object.replicas > 1\n | ......^\n";
    let warnings = json!([{"fieldRef": "spec.validations[0].expression", "warning": warning}]);
    assert_eq!(found["status"], json!({"observedGeneration": 1, "typeChecking": {"expressionWarnings": warnings}}));

    let mended = json!({"spec": {"validations": [{"expression": "object.spec.replicas > 1"}]}});
    assert_eq!(api.merge(&bad, &mended).await.expect("an answer").0, 200);
    let found = api.until(&bad, observed(2)).await.expect("it is looked at again");
    assert_eq!(found["status"]["typeChecking"], json!({}));
}
