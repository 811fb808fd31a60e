//! What machines need that join by a bootstrap token: where the cluster is, and the right to ask for a certificate.
//!
//! The same rights as kubeadm gives, for the same group of tokens. Nobody is granted them unless a token is made.

use serde_json::{Value, json};

use super::roles::{GROUP, group, user};
use crate::bootstrap_token::NODE_GROUP;

/// Who may do what, all of them cluster role bindings: name, role, group.
const BINDINGS: [(&str, &str, &str); 3] = [
    ("orchestrator-lite:node-bootstrapper", "system:node-bootstrapper", NODE_GROUP),
    (
        "orchestrator-lite:approve-first-certificate",
        "system:certificates.k8s.io:certificatesigningrequests:nodeclient",
        NODE_GROUP,
    ),
    (
        "orchestrator-lite:approve-own-certificate",
        "system:certificates.k8s.io:certificatesigningrequests:selfnodeclient",
        "system:nodes",
    ),
];
const READER: &str = "orchestrator-lite:cluster-info";

pub(super) fn cluster_role_bindings() -> impl Iterator<Item = Value> {
    BINDINGS.into_iter().map(|(name, role, to)| {
        json!({
            "kind": "ClusterRoleBinding", "apiVersion": format!("{GROUP}/v1"), "metadata": {"name": name},
            "roleRef": {"apiGroup": GROUP, "kind": "ClusterRole", "name": role}, "subjects": [group(to)],
        })
    })
}

/// Lets everybody read `cluster-info`, as who joins has no name yet: role and binding in kube-public.
pub(super) fn reader() -> [Value; 2] {
    let role = json!({
        "kind": "Role", "apiVersion": format!("{GROUP}/v1"), "metadata": {"name": READER},
        "rules": [{"apiGroups": [""], "resources": ["configmaps"], "resourceNames": ["cluster-info"], "verbs": ["get"]}],
    });
    let binding = json!({
        "kind": "RoleBinding", "apiVersion": format!("{GROUP}/v1"), "metadata": {"name": READER},
        "roleRef": {"apiGroup": GROUP, "kind": "Role", "name": READER}, "subjects": [user("system:anonymous")],
    });
    [role, binding]
}

/// `kube-public/cluster-info`: a kubeconfig with the server and its authority, and no user.
pub(super) fn cluster_info(server: &str, authority: &str) -> Value {
    json!({
        "kind": "ConfigMap", "apiVersion": "v1", "metadata": {"name": "cluster-info", "namespace": "kube-public"},
        "data": {"kubeconfig": crate::kubeconfig::anonymous(server, authority)},
    })
}
