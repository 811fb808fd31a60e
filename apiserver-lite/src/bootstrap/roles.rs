//! The roles and bindings of every cluster, from the table in `roles.txt`.

use serde_json::{Value, json};

use crate::config::FeatureGates;

const TABLE: &str = include_str!("roles.txt");
pub(super) const GROUP: &str = "rbac.authorization.k8s.io";
const READ: &[&str] = &["get", "list", "watch"];
const WRITE: &[&str] = &["create", "delete", "deletecollection", "patch", "update"];

/// A cluster role of the table.
struct Role {
    name: &'static str,
    /// Roles whose rules it joins: `view` of `aggregate-to-view`.
    part_of: Vec<&'static str>,
    joins: Option<&'static str>,
    rules: Vec<Value>,
}

fn list(text: &str) -> Vec<String> {
    let mut out: Vec<String> = text.split(',').map(Into::into).collect();
    out.sort();
    out
}

fn verbs(text: &str) -> Vec<String> {
    let mut out: Vec<String> = match text {
        "R" => READ.iter().map(|v| (*v).into()).collect(),
        "W" => WRITE.iter().map(|v| (*v).into()).collect(),
        "RW" => READ.iter().chain(WRITE).map(|v| (*v).into()).collect(),
        text => list(text),
    };
    out.sort();
    out
}

fn rule(line: &str) -> Value {
    if line == "@events" {
        return json!({"apiGroups": ["", "events.k8s.io"], "resources": ["events"], "verbs": ["create", "patch", "update"]});
    }
    let words: Vec<&str> = line.split(' ').collect();
    let word = |at: usize| words.get(at).copied().unwrap_or_default();
    if word(1) == "@" {
        return json!({"verbs": verbs(word(0)), "nonResourceURLs": list(word(2))});
    }
    let mut groups: Vec<String> =
        list(word(1)).into_iter().map(|g| if g == "core" { String::new() } else { g }).collect();
    groups.sort();
    let mut out = json!({"verbs": verbs(word(0)), "apiGroups": groups, "resources": list(word(2))});
    if words.len() > 3 {
        out["resourceNames"] = list(word(3)).into();
    }
    out
}

/// The roles of the table; what ends with `?Gate`, a rule or a whole role, counts where that gate is on.
fn table(gates: &FeatureGates) -> Vec<Role> {
    let mut out: Vec<Role> = Vec::new();
    let mut skipped = false;
    for line in TABLE.lines().filter(|l| !l.starts_with('#')) {
        let (line, on) = match line.split_once(" ?") {
            Some((line, gate)) => (line, gates.enabled(gate)),
            None => (line, true),
        };
        if let Some(head) = line.strip_prefix("= ") {
            skipped = !on;
            if on {
                let mut words = head.split(' ');
                let name = words.next().unwrap_or_default();
                let part_of = words.filter_map(|w| w.strip_prefix("to-")).collect();
                out.push(Role { name, part_of, joins: None, rules: Vec::new() });
            }
        } else if let Some(role) = out.last_mut().filter(|_| on && !skipped) {
            match line.strip_prefix("+ ") {
                Some(joined) => role.joins = Some(joined),
                None => role.rules.push(rule(line)),
            }
        }
    }
    out
}

fn metadata(name: &str) -> Value {
    json!({
        "name": name,
        "labels": {"kubernetes.io/bootstrapping": "rbac-defaults"},
        "annotations": {"rbac.authorization.kubernetes.io/autoupdate": "true"},
    })
}

/// Rules of a role whose label says that it is part of another.
fn joined(all: &[Role], joins: &str) -> Vec<Value> {
    let mut out: Vec<Value> = Vec::new();
    let mut parts: Vec<&Role> = all.iter().filter(|r| r.part_of.contains(&joins)).collect();
    parts.sort_by_key(|r| r.name);
    for part in parts {
        let rules = part.joins.map_or_else(|| part.rules.clone(), |j| joined(all, j));
        for rule in rules {
            if !out.contains(&rule) {
                out.push(rule);
            }
        }
    }
    out
}

/// The cluster roles. `aggregate` fills in the rules of those that are put together from others, which is else the
/// work of a controller.
pub fn cluster_roles(aggregate: bool, gates: &FeatureGates) -> Vec<Value> {
    let all = table(gates);
    let mut out = Vec::with_capacity(all.len());
    for role in &all {
        let mut value = json!({
            "kind": "ClusterRole", "apiVersion": format!("{GROUP}/v1"), "metadata": metadata(role.name), "rules": role.rules,
        });
        for part in &role.part_of {
            value["metadata"]["labels"][format!("{GROUP}/aggregate-to-{part}")] = "true".into();
        }
        if let Some(joins) = role.joins {
            let label = format!("{GROUP}/aggregate-to-{joins}");
            value["aggregationRule"] = json!({"clusterRoleSelectors": [{"matchLabels": {label: "true"}}]});
            value["rules"] = if aggregate { joined(&all, joins).into() } else { Value::Null };
        }
        out.push(value);
    }
    out
}

/// The rules that nodes have beside what their pods need.
pub fn node_rules(gates: &FeatureGates) -> Vec<Value> {
    table(gates).into_iter().find(|r| r.name == "system:node").map(|r| r.rules).unwrap_or_default()
}

pub(super) fn group(name: &str) -> Value {
    json!({"kind": "Group", "apiGroup": GROUP, "name": name})
}

pub(super) fn user(name: &str) -> Value {
    json!({"kind": "User", "apiGroup": GROUP, "name": name})
}

fn account(name: &str) -> Value {
    json!({"kind": "ServiceAccount", "name": name, "namespace": "kube-system"})
}

fn binding(kind: &str, name: &str, role_kind: &str, role: &str, subjects: Vec<Value>) -> Value {
    let mut out = json!({
        "kind": kind, "apiVersion": format!("{GROUP}/v1"), "metadata": metadata(name),
        "roleRef": {"apiGroup": GROUP, "kind": role_kind, "name": role},
    });
    if !subjects.is_empty() {
        out["subjects"] = subjects.into();
    }
    out
}

pub fn cluster_role_bindings(gates: &FeatureGates) -> Vec<Value> {
    let (all, nobody) = ("system:authenticated", "system:unauthenticated");
    let fixed = [
        ("cluster-admin", vec![group("system:masters")]),
        ("system:monitoring", vec![group("system:monitoring")]),
        ("system:discovery", vec![group(all)]),
        ("system:basic-user", vec![group(all)]),
        ("system:public-info-viewer", vec![group(all), group(nobody)]),
        ("system:node-proxier", vec![user("system:kube-proxy")]),
        ("system:kube-controller-manager", vec![user("system:kube-controller-manager")]),
        ("system:kube-dns", vec![account("kube-dns")]),
        ("system:kube-scheduler", vec![user("system:kube-scheduler")]),
        ("system:volume-scheduler", vec![user("system:kube-scheduler")]),
        ("system:service-account-issuer-discovery", vec![group("system:serviceaccounts")]),
        ("system:cluster-trust-bundle-discovery", vec![group("system:serviceaccounts")]),
        // Nodes are the Node authorizer's business; the binding stays for clusters that still want it.
        ("system:node", vec![]),
    ];
    let roles = table(gates);
    let controllers = roles.iter().filter_map(|role| Some((role.name, role.name.strip_prefix("system:controller:")?)));
    fixed
        .into_iter()
        .filter(|(name, _)| roles.iter().any(|role| role.name == *name))
        .chain(controllers.map(|(role, name)| (role, vec![account(name)])))
        .map(|(name, subjects)| binding("ClusterRoleBinding", name, "ClusterRole", name, subjects))
        .collect()
}

/// Roles in the system's namespaces: namespace and object.
pub fn roles() -> Vec<(&'static str, Value)> {
    let leader = |name: &str| {
        vec![
            "watch core configmaps".to_owned(),
            format!("get,update core configmaps {name}"),
            "create,get,list,update,watch coordination.k8s.io leases".into(),
            "create,get,list,update,watch coordination.k8s.io leasecandidates".into(),
        ]
    };
    let lines = |text: &[&str]| text.iter().map(|t| (*t).to_owned()).collect::<Vec<_>>();
    let all = [
        (
            "kube-public",
            "system:controller:bootstrap-signer",
            lines(&["R core configmaps", "update core configmaps cluster-info", "@events"]),
        ),
        (
            "kube-system",
            "extension-apiserver-authentication-reader",
            lines(&["R core configmaps extension-apiserver-authentication"]),
        ),
        ("kube-system", "system:controller:bootstrap-signer", lines(&["R core secrets"])),
        ("kube-system", "system:controller:cloud-provider", lines(&["create,get,list,watch core configmaps"])),
        ("kube-system", "system:controller:token-cleaner", lines(&["delete,get,list,watch core secrets", "@events"])),
        ("kube-system", "system::leader-locking-kube-controller-manager", leader("kube-controller-manager")),
        ("kube-system", "system::leader-locking-kube-scheduler", leader("kube-scheduler")),
    ];
    all.into_iter()
        .map(|(namespace, name, lines)| {
            let rules: Vec<Value> = lines.iter().map(|l| rule(l)).collect();
            let role = json!({"kind": "Role", "apiVersion": format!("{GROUP}/v1"), "metadata": metadata(name), "rules": rules});
            (namespace, role)
        })
        .collect()
}

/// Bindings in the system's namespaces.
pub fn role_bindings() -> Vec<(&'static str, Value)> {
    let reader = "system::extension-apiserver-authentication-reader";
    let manager = || vec![user("system:kube-controller-manager"), account("kube-controller-manager")];
    let scheduler = || vec![user("system:kube-scheduler"), account("kube-scheduler")];
    let same = |name: &'static str, subjects| (name, name, subjects);
    let all = [
        ("kube-public", same("system:controller:bootstrap-signer", vec![account("bootstrap-signer")])),
        (
            "kube-system",
            (
                reader,
                "extension-apiserver-authentication-reader",
                vec![user("system:kube-controller-manager"), user("system:kube-scheduler")],
            ),
        ),
        ("kube-system", same("system:controller:bootstrap-signer", vec![account("bootstrap-signer")])),
        ("kube-system", same("system:controller:cloud-provider", vec![account("cloud-provider")])),
        ("kube-system", same("system:controller:token-cleaner", vec![account("token-cleaner")])),
        ("kube-system", same("system::leader-locking-kube-controller-manager", manager())),
        ("kube-system", same("system::leader-locking-kube-scheduler", scheduler())),
    ];
    all.into_iter()
        .map(|(namespace, (name, role, subjects))| (namespace, binding("RoleBinding", name, "Role", role, subjects)))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gates(list: &[&str]) -> FeatureGates {
        let list: Vec<String> = list.iter().map(|e| (*e).into()).collect();
        FeatureGates::parse(&list).expect("gates")
    }

    #[test]
    fn view_is_part_of_edit_and_edit_of_admin() {
        let roles = cluster_roles(true, &gates(&[]));
        let rules = |name: &str| {
            let role = roles.iter().find(|r| r["metadata"]["name"] == name).expect("in the table");
            role["rules"].as_array().expect("has rules").clone()
        };
        assert!(rules("view").iter().all(|r| rules("edit").contains(r)));
        assert!(rules("edit").iter().all(|r| rules("admin").contains(r)));
        assert!(rules("admin").len() > rules("edit").len() && rules("edit").len() > rules("view").len());
    }

    #[test]
    fn every_binding_names_a_role() {
        let roles = cluster_roles(false, &gates(&[]));
        for binding in cluster_role_bindings(&gates(&[])) {
            assert!(roles.iter().any(|r| r["metadata"]["name"] == binding["roleRef"]["name"]), "{binding}");
        }
        assert!(node_rules(&gates(&[])).len() > 15);
    }

    #[test]
    fn a_gate_adds_its_rule() {
        let bundles = |rules: Vec<Value>| rules.into_iter().find(|r| r["resources"][0] == "clustertrustbundles");
        assert_eq!(bundles(node_rules(&gates(&[]))), None);
        let rule = bundles(node_rules(&gates(&["ClusterTrustBundle=true"]))).expect("a rule");
        assert_eq!(rule["verbs"], json!(["get", "list", "watch"]));
    }

    /// Reflectors ask for both at once, and fall back to lists where they may not watch.
    #[test]
    fn controllers_watch_what_they_list() {
        const LISTS_ALONE: [&str; 1] = ["system:controller:storage-version-migrator-controller"];
        let has = |rule: &Value, verb: &str| rule["verbs"].as_array().is_some_and(|v| v.contains(&verb.into()));
        for role in cluster_roles(false, &gates(&["AllAlpha=true", "AllBeta=true"])) {
            let name = role["metadata"]["name"].as_str().unwrap_or_default();
            for rule in role["rules"].as_array().into_iter().flatten().filter(|_| !LISTS_ALONE.contains(&name)) {
                assert!(!has(rule, "list") || has(rule, "watch"), "{name}: {rule}");
            }
        }
    }

    #[test]
    fn a_gate_adds_its_role_and_binding() {
        const ROLE: &str = "system:cluster-trust-bundle-discovery";
        for (on, list) in [(false, &[][..]), (true, &["ClusterTrustBundle=true"])] {
            let gates = gates(list);
            for objects in [cluster_roles(true, &gates), cluster_role_bindings(&gates)] {
                assert_eq!(objects.iter().any(|o| o["metadata"]["name"] == ROLE), on);
            }
        }
    }
}
