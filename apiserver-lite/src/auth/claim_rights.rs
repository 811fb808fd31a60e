//! Who may write what of a ResourceClaim: access to devices as an administrator is for marked namespaces, and each part of
//! a claim's status is for those who answer for it.
//!
//! Called by the write path beside validation, whose complaints these join. Follows `pkg/registry/resource` upstream: what
//! has been allocated and who it is reserved for takes the right to write `resourceclaims/binding`, what a driver says of
//! its devices the right to write `resourceclaims/driver` under the driver's name.

use std::collections::BTreeSet;

use serde_json::Value;

use super::authorizer::{Attributes, forbidden};
use crate::field_error::same;
use crate::request::{RequestInfo, User};
use crate::server::ApiServer;
use crate::status::{ApiError, Cause};
use crate::tree::list;

const GROUP: &str = "resource.k8s.io";
const CLAIMS: &str = "resourceclaims";
/// Marks namespaces whose claims may ask for devices that others use.
const ADMIN_LABEL: &str = "resource.kubernetes.io/admin-access";
/// Extra fact of an account whose token is bound to a node.
const NODE_NAME: &str = "authentication.kubernetes.io/node-name";

/// A write of a claim or a template for one.
#[derive(Clone, Copy)]
pub struct ClaimWrite<'a> {
    /// Without a name for the server's own writes.
    pub user: &'a User,
    /// `update` or `patch`.
    pub verb: &'a str,
    pub namespace: &'a str,
}

fn refused(field: &str, why: &str) -> Cause {
    Cause { reason: "FieldValueForbidden".into(), message: format!("Forbidden: {why}"), field: field.into() }
}

/// What is wrong with a new claim or template that asks for devices as an administrator.
pub fn new_claim(server: &ApiServer, plural: &str, namespace: &str, value: &Value) -> Option<Cause> {
    let spec = match plural {
        CLAIMS => &value["spec"],
        "resourceclaimtemplates" => &value["spec"]["spec"],
        _ => return None,
    };
    let at = list(&spec["devices"], "requests").position(|request| request["exactly"]["adminAccess"] == true)?;
    not_marked(server, namespace, &format!("spec.devices.requests[{at}].adminAccess"))
}

/// What is wrong with a claim's new status.
pub fn new_status(server: &ApiServer, write: &ClaimWrite<'_>, new: &Value, old: &Value) -> Vec<Cause> {
    let (new, old) = (&new["status"], &old["status"]);
    let admin = |status: &Value| {
        list(&status["allocation"]["devices"], "results").position(|result| result["adminAccess"] == true)
    };
    let asked = admin(new).filter(|_| admin(old).is_none());
    let mut causes: Vec<Cause> = asked
        .and_then(|at| {
            not_marked(server, write.namespace, &format!("status.allocation.devices.results[{at}].adminAccess"))
        })
        .into_iter()
        .collect();
    if server.config.granular_claims && !write.user.name.is_empty() {
        let may = |info: &RequestInfo| {
            let request = Attributes { user: write.user, info };
            let decision = server.authorizer.decide(&request);
            if decision.allowed { Ok(()) } else { Err(forbidden(&request, &decision.reason)) }
        };
        causes.extend(parts(write, new, old, may));
    }
    causes
}

fn not_marked(server: &ApiServer, namespace: &str, field: &str) -> Option<Cause> {
    let Some(found) = server.store.get(&"namespaces".into(), "", namespace) else {
        let why = ApiError::not_found("", "namespaces", namespace);
        let why = format!("Internal error: could not retrieve namespace to verify admin access: {why}");
        return Some(Cause { reason: "InternalError".into(), message: why, field: field.into() });
    };
    if crate::selectors::label(&found.keys.labels, ADMIN_LABEL) == Some("true") {
        return None;
    }
    let why = format!("admin access to devices requires the `{ADMIN_LABEL}: true` label on the containing namespace");
    Some(refused(field, &why))
}

/// The parts of a status that somebody changed without the right to; `may` says whether a request would be allowed.
fn parts(
    write: &ClaimWrite<'_>,
    new: &Value,
    old: &Value,
    may: impl Fn(&RequestInfo) -> Result<(), ApiError>,
) -> Vec<Cause> {
    let request = |verb: &str, subresource: &str, namespace: &str, name: &str| RequestInfo {
        is_resource: true,
        verb: verb.into(),
        group: GROUP.into(),
        version: "*".into(),
        namespace: namespace.into(),
        resource: CLAIMS.into(),
        subresource: subresource.into(),
        name: name.into(),
        ..RequestInfo::default()
    };
    let mut causes = Vec::new();
    // An allocation of nothing is one.
    let bound = new["allocation"] == old["allocation"] && same(&new["reservedFor"], &old["reservedFor"]);
    if !bound && let Err(why) = may(&request(write.verb, "binding", "", "")) {
        let why = format!(
            "changing status.allocation or status.reservedFor requires resource=\"resourceclaims/binding\", \
             verb=\"{}\" permission: {why}",
            write.verb
        );
        causes.push(refused("status", &why));
    }
    let mut verbs = vec![format!("arbitrary-node:{}", write.verb)];
    if on_node(write.user, allocated_node(&new["allocation"])) {
        verbs.insert(0, format!("associated-node:{}", write.verb));
    }
    for driver in changed_drivers(new, old) {
        let tried = verbs.iter().map(|verb| may(&request(verb, "driver", write.namespace, &driver)));
        let refusals: Vec<ApiError> = tried.map_while(Result::err).collect();
        // One of them is enough.
        if refusals.len() == verbs.len()
            && let Some(why) = refusals.first()
        {
            let why = format!(
                "changing status.devices requires resource=\"resourceclaims/driver\", verb=\"[{}]\" permission: {why}",
                verbs.join(" ")
            );
            causes.push(refused("status.devices", &why));
        }
    }
    causes
}

/// Drivers of devices that came, went or say something else, sorted.
fn changed_drivers(new: &Value, old: &Value) -> BTreeSet<String> {
    let key = |device: &Value| ["driver", "pool", "device", "shareID"].map(|name| device[name].clone());
    let missing = |from: &Value, of: &Value| -> Vec<String> {
        let gone = list(from, "devices").filter(|d| !list(of, "devices").any(|o| key(o) == key(d) && o == *d));
        gone.filter_map(|d| d["driver"].as_str().map(Into::into)).collect()
    };
    missing(new, old).into_iter().chain(missing(old, new)).collect()
}

/// The node that an allocation is for, where it is for a single one.
fn allocated_node(allocation: &Value) -> Option<&str> {
    fn only<'v>(object: &'v Value, name: &str) -> Option<&'v Value> {
        match object[name].as_array().map(Vec::as_slice) {
            Some([one]) => Some(one),
            _ => None,
        }
    }
    let term = only(&allocation["nodeSelector"], "nodeSelectorTerms")?;
    let field = only(term, "matchFields").filter(|_| list(term, "matchExpressions").next().is_none())?;
    if field["key"] != "metadata.name" || field["operator"] != "In" {
        return None;
    }
    only(field, "values")?.as_str().filter(|node| !node.is_empty())
}

/// Whether a user is a service account whose token was made for a pod on a node.
fn on_node(user: &User, node: Option<&str>) -> bool {
    let account = user.name.strip_prefix("system:serviceaccount:").and_then(|rest| rest.split_once(':'));
    let is_account = account.is_some_and(|(namespace, name)| !namespace.is_empty() && !name.is_empty());
    let fact = user.extra.iter().find(|(key, _)| key == NODE_NAME).map(|(_, values)| values.as_slice());
    match (fact, node) {
        (Some([said]), Some(node)) => is_account && said == node,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn complaints(user: &User, new: Value, old: Value, allowed: &[(&str, &str, &str)]) -> Vec<String> {
        let write = ClaimWrite { user, verb: "update", namespace: "n" };
        let may = |info: &RequestInfo| {
            let holds = |(verb, part, name): &(&str, &str, &str)| {
                info.verb == *verb && info.subresource == *part && (name.is_empty() || info.name == *name)
            };
            match allowed.iter().any(holds) {
                true => Ok(()),
                false => Err(forbidden(&Attributes { user, info }, "")),
            }
        };
        parts(&write, &new, &old, may).into_iter().map(|c| format!("{}: {}", c.field, c.message)).collect()
    }

    fn devices(driver: &str, data: i64) -> Value {
        json!([{"driver": driver, "pool": "p", "device": "d", "data": data}])
    }

    fn local() -> Value {
        json!({"nodeSelector": {"nodeSelectorTerms": [
            {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n1"]}]}]}})
    }

    #[test]
    fn what_is_allocated_takes_the_right_to_bind() {
        let user = User { name: "u".into(), ..User::default() };
        let new = json!({"reservedFor": [{"name": "p"}]});
        let said = complaints(&user, new.clone(), json!({}), &[]);
        assert_eq!(
            said,
            ["status: Forbidden: changing status.allocation or status.reservedFor requires \
              resource=\"resourceclaims/binding\", verb=\"update\" permission: resourceclaims.resource.k8s.io is \
              forbidden: User \"u\" cannot update resource \"resourceclaims/binding\" in API group \
              \"resource.k8s.io\" at the cluster scope"]
        );
        assert!(complaints(&user, new, json!({}), &[("update", "binding", "")]).is_empty());
        assert_eq!(complaints(&user, json!({"allocation": {}}), json!({}), &[]).len(), 1, "an allocation of nothing");
        assert!(
            complaints(&user, json!({"reservedFor": []}), json!({}), &[]).is_empty(),
            "none and empty are the same"
        );
    }

    #[test]
    fn a_driver_speaks_for_its_own_devices() {
        let user = User { name: "u".into(), ..User::default() };
        let status = |driver: &str, data| json!({"devices": devices(driver, data)});
        let allowed = [("arbitrary-node:update", "driver", "gpu")];
        assert!(complaints(&user, status("gpu", 2), status("gpu", 1), &allowed).is_empty());
        assert!(complaints(&user, status("nic", 1), status("nic", 1), &[]).is_empty(), "nothing changed");
        let said = complaints(&user, status("nic", 1), json!({}), &allowed);
        assert!(
            said[0].contains("verb=\"[arbitrary-node:update]\" permission: resourceclaims.resource.k8s.io \"nic\"")
        );
        // Devices that go are said as well.
        assert_eq!(complaints(&user, json!({}), status("nic", 1), &allowed).len(), 1);
        // Whose token is for another node may not speak for this one.
        assert_eq!(
            complaints(&user, status("gpu", 1), json!({}), &[("associated-node:update", "driver", "gpu")]).len(),
            1
        );
    }

    #[test]
    fn an_account_of_the_allocated_node_may_speak_for_it() {
        let account = |node: &str| User {
            name: "system:serviceaccount:ns:driver".into(),
            extra: vec![(NODE_NAME.into(), vec![node.into()])],
            ..User::default()
        };
        let status = |data| json!({"allocation": local(), "devices": devices("gpu", data)});
        let allowed = [("associated-node:update", "driver", "gpu")];
        assert!(complaints(&account("n1"), status(2), status(1), &allowed).is_empty());
        let said = complaints(&account("n2"), status(2), status(1), &allowed);
        assert!(said[0].contains("verb=\"[arbitrary-node:update]\""));
        let said = complaints(&account("n1"), status(2), status(1), &[]);
        assert!(said[0].contains("verb=\"[associated-node:update arbitrary-node:update]\""));
    }
}
