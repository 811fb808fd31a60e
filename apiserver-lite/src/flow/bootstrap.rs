//! The flow schemas and priority levels that every cluster has.
//!
//! Those named `exempt` and `catch-all` are mandatory: they are as they are here, always. The others are suggestions,
//! kept up to date until somebody takes the annotation away that says so. Follows
//! `k8s.io/apiserver/pkg/apis/flowcontrol/bootstrap`.

use serde_json::{Value, json};

pub const GROUP: &str = "flowcontrol.apiserver.k8s.io";
/// Who makes these objects, as field managers are named.
pub const PRODUCER: &str = "api-priority-and-fairness-config-producer-v1";
/// While this is `true` the server keeps the specification as it is here.
pub const AUTO_UPDATE: &str = "apf.kubernetes.io/autoupdate-spec";
pub const EXEMPT: &str = "exempt";
pub const CATCH_ALL: &str = "catch-all";

/// Name, shares, percentage of seats it lends; queues, hand and length of a queue.
const LEVELS: [(&str, u32, u32, [u32; 3]); 6] = [
    ("system", 30, 33, [64, 6, 50]),
    ("node-high", 40, 25, [64, 6, 50]),
    ("leader-election", 10, 0, [16, 4, 50]),
    ("workload-high", 40, 50, [128, 6, 50]),
    ("workload-low", 100, 90, [128, 6, 50]),
    ("global-default", 20, 50, [128, 6, 50]),
];

/// Whether an object of this name is kept as it is here whatever anybody says.
pub fn is_mandatory(name: &str) -> bool {
    matches!(name, EXEMPT | CATCH_ALL)
}

/// What the mandatory schema or level of this name has to be.
pub fn mandatory(level: bool, name: &str) -> Option<Value> {
    let all = if !is_mandatory(name) {
        return None;
    } else if level {
        levels()
    } else {
        schemas()
    };
    all.into_iter().find(|object| object["metadata"]["name"] == name)
}

pub fn levels() -> Vec<Value> {
    let level = |name: &str, spec: Value| {
        json!({
            "kind": "PriorityLevelConfiguration", "apiVersion": format!("{GROUP}/v1"),
            "metadata": {"name": name, "annotations": {AUTO_UPDATE: "true"}}, "spec": spec,
        })
    };
    let none = json!({"nominalConcurrencyShares": 0, "lendablePercent": 0});
    let mut all = vec![
        level(EXEMPT, json!({"type": "Exempt", "exempt": none})),
        level(
            CATCH_ALL,
            json!({"type": "Limited", "limited": {
                "nominalConcurrencyShares": 5, "lendablePercent": 0, "limitResponse": {"type": "Reject"},
            }}),
        ),
    ];
    all.extend(LEVELS.iter().map(|(name, shares, lendable, [queues, hand, length])| {
        let queuing = json!({"queues": queues, "handSize": hand, "queueLengthLimit": length});
        let limited = json!({
            "nominalConcurrencyShares": shares, "lendablePercent": lendable,
            "limitResponse": {"type": "Queue", "queuing": queuing},
        });
        level(name, json!({"type": "Limited", "limited": limited}))
    }));
    all
}

fn groups(names: &[&str]) -> Value {
    names.iter().map(|name| json!({"kind": "Group", "group": {"name": name}})).collect()
}

fn user(name: &str) -> Value {
    json!({"kind": "User", "user": {"name": name}})
}

fn system_accounts() -> Value {
    json!({"kind": "ServiceAccount", "serviceAccount": {"name": "*", "namespace": "kube-system"}})
}

/// Anything that these subjects ask for.
fn everything(subjects: &Value) -> Value {
    json!([{
        "subjects": subjects,
        "resourceRules": [{
            "verbs": ["*"], "apiGroups": ["*"], "resources": ["*"], "clusterScope": true, "namespaces": ["*"],
        }],
        "nonResourceRules": [{"verbs": ["*"], "nonResourceURLs": ["*"]}],
    }])
}

pub fn schemas() -> Vec<Value> {
    const EVERYBODY: [&str; 2] = ["system:unauthenticated", "system:authenticated"];
    let schema = |name: &str, level: &str, precedence: u32, distinguisher: &str, rules: Value| {
        let mut spec = json!({
            "priorityLevelConfiguration": {"name": level}, "matchingPrecedence": precedence, "rules": rules,
        });
        if !distinguisher.is_empty() {
            spec["distinguisherMethod"] = json!({"type": distinguisher});
        }
        json!({
            "kind": "FlowSchema", "apiVersion": format!("{GROUP}/v1"),
            "metadata": {"name": name, "annotations": {AUTO_UPDATE: "true"}}, "spec": spec,
        })
    };
    let leases = |verbs: Value| json!({"verbs": verbs, "apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "namespaces": ["*"]});
    let probes = json!([{
        "subjects": groups(&EVERYBODY),
        "nonResourceRules": [{"verbs": ["get"], "nonResourceURLs": ["/healthz", "/readyz", "/livez"]}],
    }]);
    let election = json!([{
        "subjects": [user("system:kube-controller-manager"), user("system:kube-scheduler"), system_accounts()],
        "resourceRules": [leases(json!(["get", "create", "update"]))],
    }]);
    let nodes = json!([{
        "subjects": groups(&["system:nodes"]),
        "resourceRules": [
            {
                "verbs": ["*"], "apiGroups": [""], "resources": ["nodes", "nodes/status"], "clusterScope": true,
                "namespaces": ["*"],
            },
            leases(json!(["*"])),
        ],
    }]);
    let one = |subject: Value| everything(&json!([subject]));
    vec![
        schema(EXEMPT, EXEMPT, 1, "", everything(&groups(&["system:masters"]))),
        schema(CATCH_ALL, CATCH_ALL, 10000, "ByUser", everything(&groups(&EVERYBODY))),
        schema("system-nodes", "system", 500, "ByUser", everything(&groups(&["system:nodes"]))),
        schema("system-node-high", "node-high", 400, "ByUser", nodes),
        schema("probes", EXEMPT, 2, "", probes),
        schema("system-leader-election", "leader-election", 100, "ByUser", election),
        schema(
            "kube-controller-manager",
            "workload-high",
            800,
            "ByNamespace",
            one(user("system:kube-controller-manager")),
        ),
        schema("kube-scheduler", "workload-high", 800, "ByNamespace", one(user("system:kube-scheduler"))),
        schema("kube-system-service-accounts", "workload-high", 900, "ByNamespace", one(system_accounts())),
        schema("service-accounts", "workload-low", 9000, "ByUser", everything(&groups(&["system:serviceaccounts"]))),
        schema("global-default", "global-default", 9900, "ByUser", everything(&groups(&EVERYBODY))),
    ]
}
