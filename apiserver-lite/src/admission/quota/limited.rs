//! What may be used only where a quota covers it: `limitedResources` of the plugin's configuration. Without it, what no
//! quota limits is free.

use std::collections::BTreeSet;

use serde_json::Value;

use super::Counter;
use crate::resource::Resource;
use crate::tree::{list, text};

/// A resource whose use needs a quota.
#[derive(Debug)]
pub struct Limited {
    group: String,
    plural: String,
    /// Parts of the names of what is used, as quotas call it.
    contains: Vec<String>,
    /// Scopes of quotas: objects that fall into one need a quota of it.
    scopes: Vec<Value>,
}

impl Limited {
    /// Reads a ResourceQuotaConfiguration, or a Configuration of the older group.
    ///
    /// # Errors
    /// When it is neither, or does not say what is limited.
    pub fn read(configuration: &Value) -> Result<Vec<Self>, String> {
        match (text(configuration, "apiVersion"), text(configuration, "kind")) {
            ("apiserver.config.k8s.io/v1", "ResourceQuotaConfiguration")
            | ("resourcequota.admission.k8s.io/v1beta1" | "resourcequota.admission.k8s.io/v1alpha1", "Configuration") =>
                {}
            _ => return Err("must be a ResourceQuotaConfiguration of apiserver.config.k8s.io/v1".into()),
        }
        let one = |(at, limited): (usize, &Value)| {
            let plural = text(limited, "resource").to_owned();
            if plural.is_empty() {
                return Err(format!("limitedResources[{at}].resource: Required value"));
            }
            let contains = list(limited, "matchContains").filter_map(Value::as_str).map(Into::into).collect();
            let scopes = list(limited, "matchScopes").cloned().collect();
            Ok(Limited { group: text(limited, "apiGroup").into(), plural, contains, scopes })
        };
        list(configuration, "limitedResources").enumerate().map(one).collect()
    }

    pub fn is_of(&self, resource: &Resource) -> bool {
        *self.group == *resource.group && *self.plural == *resource.plural
    }
}

/// What no quota covers.
#[derive(Debug, PartialEq, thiserror::Error)]
pub enum Uncovered {
    #[error("insufficient quota to consume: {0}")]
    Use(String),
    /// Upstream tells this as an error of its own, and not as a refusal.
    #[error("insufficient quota to match these scopes: [{0}]")]
    Scopes(String),
}

/// Checks that quotas cover what an object uses of limited resources; `covered` is what those limit that are about it.
///
/// # Errors
/// What no quota covers.
pub fn check<'a>(
    limited: impl Iterator<Item = &'a Limited> + Clone,
    counter: &Counter,
    object: &Value,
    quotas: &[Value],
    covered: &BTreeSet<String>,
) -> Result<(), Uncovered> {
    let used = counter.usage(object);
    let used = used.iter().filter(|(_, quantity)| quantity.sign() > 0).map(|(name, _)| name.as_str());
    let is_limited = |name: &str| limited.clone().any(|l| l.contains.iter().any(|part| name.contains(part.as_str())));
    let bare: Vec<&str> = used.filter(|name| is_limited(name) && !covered.contains(*name)).collect();
    if !bare.is_empty() {
        return Err(Uncovered::Use(bare.join(",")));
    }
    let has = |scope: &&Value| quotas.iter().any(|quota| counter.falls_into(quota, text(scope, "scopeName"), object));
    let fits = |scope: &&Value| counter.in_scope(text(scope, "scopeName"), Some(scope), object);
    let missing: Vec<String> =
        limited.flat_map(|l| &l.scopes).filter(fits).filter(|scope| !has(scope)).map(shown).collect();
    if missing.is_empty() {
        return Ok(());
    }
    Err(Uncovered::Scopes(missing.join(" ")))
}

/// `{PriorityClass In [a b]}`, as Go prints it.
fn shown(scope: &Value) -> String {
    let values: Vec<&str> = list(scope, "values").filter_map(Value::as_str).collect();
    format!("{{{} {} [{}]}}", text(scope, "scopeName"), text(scope, "operator"), values.join(" "))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn limited(resource: Value) -> Vec<Limited> {
        Limited::read(&json!({"apiVersion": "apiserver.config.k8s.io/v1", "kind": "ResourceQuotaConfiguration",
            "limitedResources": [resource]}))
        .expect("good")
    }

    #[test]
    fn what_is_limited_needs_a_quota_that_covers_it() {
        let all = limited(json!({"resource": "persistentvolumeclaims", "matchContains": ["gold."]}));
        let claim =
            |class: &str| json!({"spec": {"storageClassName": class, "resources": {"requests": {"storage": "1Gi"}}}});
        let ask = |class: &str, covered: &[&str]| {
            let covered = covered.iter().map(|name| (*name).to_owned()).collect();
            check(all.iter(), &Counter::Claims, &claim(class), &[], &covered).map_err(|why| why.to_string())
        };
        assert_eq!(ask("silver", &[]), Ok(()));
        let names = [
            "gold.storageclass.storage.k8s.io/persistentvolumeclaims",
            "gold.storageclass.storage.k8s.io/requests.storage",
        ];
        assert_eq!(ask("gold", &names), Ok(()));
        assert_eq!(ask("gold", &names[..1]), Err(format!("insufficient quota to consume: {}", names[1])));
    }

    #[test]
    fn a_scope_that_is_limited_needs_a_quota_of_it() {
        let scope = json!({"scopeName": "PriorityClass", "operator": "In", "values": ["high", "higher"]});
        let all = limited(json!({"resource": "pods", "matchScopes": [scope]}));
        let quota = json!({"spec": {"scopeSelector": {"matchExpressions": [scope]}}});
        let ask = |class: &str, quotas: &[Value]| {
            let pod = json!({"spec": {"priorityClassName": class}});
            let checked = check(all.iter(), &Counter::Pods, &pod, quotas, &BTreeSet::new());
            checked.map_err(|why| why.to_string())
        };
        assert_eq!(ask("low", &[]), Ok(()));
        assert_eq!(ask("high", &[quota]), Ok(()));
        let why = "insufficient quota to match these scopes: [{PriorityClass In [high higher]}]";
        assert_eq!(ask("high", &[json!({"spec": {}})]), Err(why.into()));
    }

    #[test]
    fn only_its_own_configuration_is_read() {
        for (configuration, why) in [
            (json!({"kind": "ResourceQuotaConfiguration"}), "must be a ResourceQuotaConfiguration"),
            (
                json!({"kind": "Configuration", "apiVersion": "resourcequota.admission.k8s.io/v1beta1", "limitedResources": [{}]}),
                "limitedResources[0].resource: Required value",
            ),
        ] {
            assert!(Limited::read(&configuration).expect_err("wrong").contains(why));
        }
    }
}
