//! Parameters of a policy: the objects that a binding refers to.

use serde_json::Value;

use super::super::attributes::Attributes;
use super::compiled::{Binding, Compiled};
use crate::resource::Resource;
use crate::store::ObjectRef;

/// Why there are no parameters.
pub enum Unbound {
    /// The policy's kind of parameters is not served.
    Policy(String),
    Binding(String),
}

/// One state of parameters after another, each of which is evaluated for itself; None for a policy without.
///
/// # Errors
/// When a kind is not known, or objects are missing that have to be there.
pub fn collect(
    attributes: &Attributes<'_>,
    policy: &Compiled,
    binding: &Binding,
) -> Result<Vec<Option<Value>>, Unbound> {
    let Some((api_version, kind)) = &policy.params else { return Ok(vec![None]) };
    let resource = find(attributes, api_version, kind)?;
    let Some(reference) = &binding.reference else { return Ok(vec![None]) };
    let refused = |why: &str| Unbound::Binding(why.into());
    let namespace = match (resource.namespaced, reference.namespace.as_str()) {
        (false, "") => "",
        (false, _) => {
            return Err(refused("paramRef.namespace must not be provided for a cluster-scoped `paramKind`"));
        }
        (true, "") if attributes.namespace.is_empty() => {
            let why = "cannot use namespaced paramRef in policy binding that matches cluster-scoped resources";
            return Err(refused(why));
        }
        (true, "") => attributes.namespace,
        (true, said) => said,
    };
    let store = &attributes.call.server.store;
    let found: Vec<ObjectRef> = match &reference.selector {
        None => store.get(&resource.storage, namespace, &reference.name).into_iter().collect(),
        Some(selector) => {
            let snapshot = store.snapshot(&resource.storage);
            let place = resource.namespaced.then_some(namespace);
            let all = snapshot.range(place, None).filter(|o| selector.is_empty() || selector.matches(&o.keys.labels));
            all.cloned().collect()
        }
    };
    if found.is_empty() && reference.deny {
        return Err(refused("no params found for policy binding with `Deny` parameterNotFoundAction"));
    }
    let tree = |object: &ObjectRef| {
        let mut stored = crate::crd::stored_value(&resource, object);
        let wanted = resource.api_version();
        let converted = crate::crd::to_version_now(attributes.call.server, &resource, &mut stored, &wanted);
        converted.map_err(|error| Unbound::Binding(error.status().message.clone()))?;
        let fits = stored["apiVersion"].as_str() == Some(&wanted);
        Ok(Some(if fits { stored } else { crate::read::convert(&resource, stored) }))
    };
    found.iter().map(tree).collect()
}

fn find(attributes: &Attributes<'_>, api_version: &str, kind: &str) -> Result<std::sync::Arc<Resource>, Unbound> {
    let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
    let found = attributes.call.server.resources.current().by_kind(group, version, kind);
    found.ok_or_else(|| {
        let shown = format!("{group}/{version}, Kind={kind}");
        Unbound::Policy(format!("failed to find resource referenced by paramKind: '{shown}'"))
    })
}
