//! Nobody gives away rights that they do not have: the checks on writes of roles and bindings.
//!
//! A role may hold only rules that its writer holds, or the writer may `escalate` it; a binding may point only to a
//! role whose rules the writer holds, or that the writer may `bind`. Called by the write path after defaulting and
//! before validation, as `pkg/registry/rbac/*/policybased` upstream.

use serde_json::Value;

use super::authorizer::{Attributes, Authorizer};
use super::rbac::{GROUP, RoleRef};
use super::rule::Rule;
use crate::request::{RequestInfo, User};
use crate::status::{ApiError, Result, aggregate, quote};

/// A write of an object of the RBAC group.
#[derive(Debug, Clone, Copy)]
pub struct RbacWrite<'a> {
    pub user: &'a User,
    /// `roles`, `clusterroles`, `rolebindings` or `clusterrolebindings`.
    pub resource: &'a str,
    pub namespace: &'a str,
    /// Name in the URL; empty for a POST.
    pub name: &'a str,
}

impl Authorizer {
    /// Checks that a write of a role or binding gives away no more than its user has; `old` is None on create. Writes
    /// without a user are the server's own.
    ///
    /// # Errors
    /// 403, or 404 when a binding names a role that is not there and that the user may not bind unseen.
    pub fn check_escalation(&self, write: &RbacWrite<'_>, new: &Value, old: Option<&Value>) -> Result<()> {
        let user = write.user;
        if user.name.is_empty() || user.in_group("system:masters") {
            return Ok(());
        }
        if old.is_some_and(|old| only_collection_fields(new, old)) {
            return Ok(());
        }
        let name = new["metadata"]["name"].as_str().unwrap_or_default();
        let forbidden = |why: String| ApiError::forbidden(GROUP, write.resource, name, why);
        match write.resource {
            "roles" | "clusterroles" => {
                if self.may(write, "escalate", GROUP, write.resource, write.name) {
                    return Ok(());
                }
                self.confirm_held(write, &Rule::all_from(new)).map_err(forbidden)?;
                // An aggregation rule can gather anything.
                let aggregates = |v: &Value| {
                    v["aggregationRule"]["clusterRoleSelectors"]
                        .as_array()
                        .is_some_and(|selectors| !selectors.is_empty())
                };
                if (aggregates(new) || old.is_some_and(aggregates)) && self.confirm_held(write, &everything()).is_err()
                {
                    return Err(forbidden("must have cluster-admin privileges to use the aggregationRule".into()));
                }
                Ok(())
            }
            "rolebindings" | "clusterrolebindings" => {
                let role = RoleRef::from_value(&new["roleRef"]);
                let resource = match role.kind.as_str() {
                    "Role" => "roles",
                    "ClusterRole" => "clusterroles",
                    other => {
                        // Upstream looks for the role before the binding is checked, and hands on why it cannot.
                        return Err(ApiError::new(
                            500,
                            "",
                            format!("unsupported role reference kind: {}", quote(other)),
                        ));
                    }
                };
                if self.may(write, "bind", &role.group, resource, &role.name) {
                    return Ok(());
                }
                // The error speaks of what was asked for, not of what was looked up, as upstream's does.
                let rules = self.rbac().rules_of(&role, write.namespace);
                let rules = rules.map_err(|_| ApiError::not_found(GROUP, write.resource, &role.name))?;
                self.confirm_held(write, &rules).map_err(forbidden)
            }
            _ => Ok(()),
        }
    }

    /// Whether the user may use one of the verbs that exist for these checks.
    fn may(&self, write: &RbacWrite<'_>, verb: &str, group: &str, resource: &str, name: &str) -> bool {
        let info = RequestInfo {
            is_resource: true,
            verb: verb.into(),
            group: group.into(),
            version: "*".into(),
            namespace: write.namespace.into(),
            resource: resource.into(),
            name: name.into(),
            ..RequestInfo::default()
        };
        self.decide(&Attributes { user: write.user, info: &info }).allowed
    }

    /// Ok when the user holds every rule in `wanted`; else what is missing.
    fn confirm_held(&self, write: &RbacWrite<'_>, wanted: &[Rule]) -> Result<(), String> {
        let (held, complaints) = self.rbac().rules_for(write.user, write.namespace);
        let missing = Rule::uncovered(&held, wanted);
        if missing.is_empty() {
            return Ok(());
        }
        let groups: Vec<String> = write.user.groups.iter().map(|g| quote(g)).collect();
        let mut lines: Vec<String> = missing.iter().map(Rule::describe).collect();
        lines.sort();
        lines.dedup();
        let mut why = format!(
            "user {} (groups=[{}]) is attempting to grant RBAC permissions not currently held:\n{}",
            quote(&write.user.name),
            groups.join(" "),
            lines.join("\n")
        );
        if !complaints.is_empty() {
            why.push_str(&format!("; resolution errors: [{}]", aggregate(&complaints)));
        }
        Err(why)
    }
}

/// What a cluster administrator holds.
fn everything() -> [Rule; 2] {
    let all = || vec!["*".to_owned()];
    [
        Rule { verbs: all(), api_groups: all(), resources: all(), ..Rule::default() },
        Rule { verbs: all(), non_resource_urls: all(), ..Rule::default() },
    ]
}

/// Whether an update touches nothing but what the garbage collector has to write to let an object go.
fn only_collection_fields(new: &Value, old: &Value) -> bool {
    let rest = |value: &Value| {
        let mut value = value.clone();
        if let Some(metadata) = value["metadata"].as_object_mut() {
            for key in ["ownerReferences", "finalizers", "managedFields", "resourceVersion"] {
                metadata.remove(key);
            }
        }
        value
    };
    rest(new) == rest(old)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::config::{AuthorizationMode, FeatureGates};
    use crate::store::Store;

    #[test]
    fn a_binding_to_a_role_of_no_kind_is_refused_in_upstreams_words() {
        let gates = FeatureGates::parse(&[]).expect("none");
        let authorizer = Authorizer::new(vec![AuthorizationMode::Rbac], Store::open(None).expect("in memory"), &gates);
        let user = User { name: "bob".into(), ..User::default() };
        let write = RbacWrite { user: &user, resource: "rolebindings", namespace: "n", name: "" };
        let binding = json!({"metadata": {"name": "b"}, "roleRef": {"kind": "Foo", "name": "r"}});
        let error = authorizer.check_escalation(&write, &binding, None).expect_err("no such kind");
        let status = error.status();
        let said = (status.code, status.reason, &*status.message, status.details.is_none());
        assert_eq!(said, (500, "", "unsupported role reference kind: \"Foo\"", true));
    }

    #[test]
    fn the_garbage_collector_may_touch_what_it_needs_and_no_more() {
        let old = json!({"metadata": {"name": "a", "finalizers": ["x"], "resourceVersion": "3"}, "rules": []});
        let new = json!({"metadata": {"name": "a"}, "rules": []});
        assert!(only_collection_fields(&new, &old));
        let new = json!({"metadata": {"name": "a", "labels": {"a": "b"}}, "rules": []});
        assert!(!only_collection_fields(&new, &old));
    }
}
