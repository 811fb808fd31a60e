//! Who is classified how, by the schemas that every cluster has and by others.

use serde_json::json;

use super::bootstrap;
use super::pool::Pool;
use super::table::Table;
use crate::request::{Query, RequestInfo, User};
use crate::resource::Resources;
use crate::store::{Expect, Key, ResourceId, Store, Write, encode};

fn user(name: &str, groups: &[&str]) -> User {
    User { name: name.into(), groups: groups.iter().map(|g| (*g).into()).collect(), ..User::default() }
}

fn info(method: &str, path: &str) -> RequestInfo {
    RequestInfo::parse(&method.parse().expect("a method"), path, &Query::default())
}

/// A store with the server's own objects, and others.
async fn store(others: &[(&str, serde_json::Value)]) -> Store {
    let store = Store::open(None).expect("in memory");
    let resources = Resources::built_in();
    let own = bootstrap::levels().into_iter().map(|l| ("prioritylevelconfigurations", l));
    let own = own.chain(bootstrap::schemas().into_iter().map(|s| ("flowschemas", s)));
    for (plural, mut object) in own.chain(others.iter().cloned()) {
        let resource = resources.lookup(bootstrap::GROUP, "v1", plural).expect("is served");
        let name = object["metadata"]["name"].as_str().expect("has a name").to_owned();
        object["metadata"]["uid"] = format!("uid-of-{name}").into();
        let encoded = encode(&resource, &mut object, Vec::new(), None);
        let write = Write {
            resource: ResourceId::from(&*resource.storage.0),
            key: Key::new("", &name),
            expect: Expect::Absent,
            change: crate::store::Change::Put(encoded),
        };
        store.commit(write).await.expect("is written");
    }
    store
}

fn read(store: &Store) -> Table {
    Table::read(store, &Pool::default(), 600, None)
}

#[tokio::test]
async fn requests_are_classified_as_upstream_classifies_them() {
    let table = read(&store(&[]).await);
    let everybody = "system:authenticated";
    let nodes = ["system:nodes", everybody];
    let account = "system:serviceaccount:kube-system:coredns";
    let accounts = ["system:serviceaccounts", everybody];
    let lease = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/n";
    for (user, method, path, schema, level) in [
        (user("a", &["system:masters", everybody]), "GET", "/api/v1/pods", "exempt", "exempt"),
        (user("system:anonymous", &["system:unauthenticated"]), "GET", "/livez", "probes", "exempt"),
        (user("system:anonymous", &["system:unauthenticated"]), "GET", "/api", "global-default", "global-default"),
        (user("system:kube-scheduler", &[everybody]), "PUT", lease, "system-leader-election", "leader-election"),
        (user("system:kube-scheduler", &[everybody]), "DELETE", lease, "kube-scheduler", "workload-high"),
        (user("system:node:n", &nodes), "PUT", lease, "system-node-high", "node-high"),
        (user("system:node:n", &nodes), "PATCH", "/api/v1/nodes/n/status", "system-node-high", "node-high"),
        (user("system:node:n", &nodes), "GET", "/api/v1/nodes/n/proxy", "system-nodes", "system"),
        (user("system:node:n", &nodes), "GET", "/api/v1/pods", "system-nodes", "system"),
        (user(account, &accounts), "GET", "/api/v1/pods", "kube-system-service-accounts", "workload-high"),
        (
            user("system:serviceaccount:a:b", &accounts),
            "GET",
            "/api/v1/namespaces/a/pods",
            "service-accounts",
            "workload-low",
        ),
        (user("nobody", &[]), "GET", "/api/v1/pods", "catch-all", "catch-all"),
    ] {
        let found = table.classify(&user, &info(method, path));
        assert_eq!((&*found.name, &*found.level.name), (schema, level), "{} {method} {path}", user.name);
        assert_eq!(found.uid.to_str().ok(), Some(format!("uid-of-{schema}").as_str()));
        assert_eq!(found.level.uid.to_str().ok(), Some(format!("uid-of-{level}").as_str()));
    }
}

#[tokio::test]
async fn a_schema_without_its_level_is_passed_over_and_flows_are_told_apart() {
    let rules = json!([{
        "subjects": [{"kind": "User", "user": {"name": "jane"}}],
        "resourceRules": [{"verbs": ["list"], "apiGroups": [""], "resources": ["pods"], "namespaces": ["a"]}],
        "nonResourceRules": [{"verbs": ["get"], "nonResourceURLs": ["/logs/*"]}],
    }]);
    let schema = |name: &str, level: &str| {
        json!({"metadata": {"name": name}, "spec": {"matchingPrecedence": 50, "rules": rules,
            "priorityLevelConfiguration": {"name": level}, "distinguisherMethod": {"type": "ByNamespace"}}})
    };
    let others = [("flowschemas", schema("a-lost", "no-such-level")), ("flowschemas", schema("b-own", "system"))];
    let table = read(&store(&others).await);
    let jane = user("jane", &["system:authenticated"]);
    let of = |method: &str, path: &str| table.classify(&jane, &info(method, path)).name.to_string();
    assert_eq!(of("GET", "/api/v1/namespaces/a/pods"), "b-own");
    assert_eq!(of("GET", "/logs/kube"), "b-own");
    for (method, path) in [
        ("GET", "/api/v1/namespaces/b/pods"),
        ("GET", "/api/v1/pods"),
        ("GET", "/api/v1/namespaces/a/pods/x"),
        ("POST", "/logs/kube"),
    ] {
        assert_eq!(of(method, path), "global-default", "{method} {path}");
    }
    let asked = info("GET", "/api/v1/namespaces/a/pods");
    assert_eq!(table.classify(&jane, &asked).flow(&jane, &asked), "a");
}

#[test]
fn without_any_object_the_mandatory_ones_are_there() {
    let table = read(&Store::open(None).expect("in memory"));
    let names: Vec<&str> = table.schemas.iter().map(|s| &*s.name).collect();
    assert_eq!(names, ["exempt", "catch-all"]);
}

#[test]
fn a_ticket_gives_its_seat_back_once() {
    use std::sync::atomic::Ordering::Relaxed;

    use super::pool::{Answer, Shown};
    use crate::flow::Ticket;

    let pool = Pool::default();
    let table = Table::read(&Store::open(None).expect("in memory"), &pool, 600, None);
    let schema = table.classify(&user("nobody", &[]), &info("GET", "/api/v1/pods")).clone();
    let slot = schema.level.slot.expect("is limited");
    let Answer::Seated(held) = pool.ask(slot, 1, || -> Shown { unreachable!("it need not wait") }) else {
        panic!("there are seats")
    };
    let mut ticket = Ticket::new(schema.clone(), 1, std::time::Duration::ZERO, Some(held));
    let running = || (pool.view(slot).in_use, schema.counters.executing.load(Relaxed));
    assert_eq!(running(), (1, 1));
    ticket.let_go();
    assert_eq!(running(), (0, 0));
    drop(ticket);
    assert_eq!(running(), (0, 0));
}
