//! `resourcequota-controller`: counts what each quota limits, so that its status tells what is used.
//!
//! Admission raises the counts as objects are made; here they are counted afresh when objects go or a quota changes.

use std::collections::{BTreeMap, HashMap};
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use proto::quantity::{Format, Quantity};
use serde_json::{Map, Value};

use super::feed::Change;
use super::ownership;
use super::pods::is_terminal;
use super::queue::Queue;
use super::runner::Controller;
use crate::client::{Client, unchanged};
use crate::resource::{Resource, Set, Verbs};
use crate::status::Result;
use crate::store::{Key, ObjectRef, ResourceId};

const QUOTAS: &str = "resourcequotas";

pub struct Quotas {
    client: Client,
    set: Arc<Set>,
    resources: Vec<Arc<Resource>>,
    /// Quotas of each namespace.
    quotas: HashMap<Box<str>, BTreeMap<Key, ()>>,
}

impl Quotas {
    pub fn new(client: Client) -> Self {
        let set = client.server().resources.current();
        let mut resources: Vec<Arc<Resource>> = Vec::new();
        for resource in set.all() {
            let counted = resource.namespaced
                && resource.verbs.contains(Verbs::DELETE)
                && !matches!(&*resource.plural, "events" | "resourcequotas");
            if counted && !resources.iter().any(|r| r.storage == resource.storage) {
                resources.push(resource.clone());
            }
        }
        Quotas { client, set, resources, quotas: HashMap::new() }
    }

    /// What is used of each name that a quota limits; names that nobody counts are left out.
    fn usage(&self, namespace: &str, quota: &Value) -> Map<String, Value> {
        let hard = quota["spec"]["hard"].as_object().cloned().unwrap_or_default();
        let mut out = Map::new();
        let (mut pods, mut claims) = (None, None);
        let list = |resource: &str| -> Vec<Value> {
            let snapshot = self.client.store().snapshot(&resource.into());
            snapshot.range(Some(namespace), None).map(|o| o.value()).collect()
        };
        for name in hard.keys() {
            let count = |n: usize| Quantity::from_integer(i64::try_from(n).unwrap_or(i64::MAX), Format::DecimalSi);
            let used = if let Some(resource) = self.counted(name) {
                let snapshot = self.client.store().snapshot(&resource);
                Some(count(snapshot.range(Some(namespace), None).count()))
            } else if let Some(kind) = name.strip_prefix("services.") {
                let services = list("services");
                Some(count(services.iter().map(|s| service_count(s, kind)).sum()))
            } else if name == "requests.storage"
                || name.contains(".storageclass.storage.k8s.io/")
                || name == "persistentvolumeclaims"
            {
                let claims = claims.get_or_insert_with(|| list("persistentvolumeclaims"));
                Some(claims.iter().fold(Quantity::ZERO, |sum, claim| plus(sum, claim_amount(claim, name))))
            } else {
                let pods = pods.get_or_insert_with(|| {
                    let snapshot = self.client.store().snapshot(&"pods".into());
                    let living = snapshot.range(Some(namespace), None).filter(|p| !is_terminal(p));
                    living.map(|p| p.value()).filter(|p| in_scope(quota, p)).collect::<Vec<Value>>()
                });
                pod_resource(name).map(|what| pods.iter().fold(Quantity::ZERO, |sum, pod| plus(sum, what.of(pod))))
            };
            if let Some(used) = used {
                out.insert(name.clone(), used.to_string().into());
            }
        }
        out
    }

    /// The resource whose objects a name counts.
    fn counted(&self, name: &str) -> Option<ResourceId> {
        let name = match name {
            "services" | "secrets" | "configmaps" | "replicationcontrollers" => name,
            name => name.strip_prefix("count/")?,
        };
        self.resources.iter().find(|r| crate::status::qualified(&r.group, &r.plural) == name).map(|r| r.storage.clone())
    }
}

fn plus(mut sum: Quantity, more: Quantity) -> Quantity {
    sum.add(more);
    sum
}

fn quantity(value: &Value) -> Quantity {
    value.as_str().and_then(|t| Quantity::from_str(t).ok()).unwrap_or(Quantity::ZERO)
}

fn service_count(service: &Value, kind: &str) -> usize {
    let of_type = service["spec"]["type"].as_str().unwrap_or("ClusterIP");
    let ports = service["spec"]["ports"].as_array().map_or(0, Vec::len);
    match (kind, of_type) {
        ("loadbalancers", "LoadBalancer") => 1,
        ("nodeports", "NodePort") => ports,
        ("nodeports", "LoadBalancer") if service["spec"]["allocateLoadBalancerNodePorts"] != false => ports,
        _ => 0,
    }
}

fn claim_amount(claim: &Value, name: &str) -> Quantity {
    let storage = quantity(&claim["spec"]["resources"]["requests"]["storage"]);
    let one = Quantity::from_integer(1, Format::DecimalSi);
    match name.split_once(".storageclass.storage.k8s.io/") {
        Some((class, _)) if claim["spec"]["storageClassName"] != class => Quantity::ZERO,
        Some((_, "requests.storage")) => storage,
        Some((_, "persistentvolumeclaims")) => one,
        None if name == "requests.storage" => storage,
        None => one,
        _ => Quantity::ZERO,
    }
}

/// What a name counts of pods.
enum PodResource<'a> {
    Pods,
    Requests(&'a str),
    Limits(&'a str),
}

fn pod_resource(name: &str) -> Option<PodResource<'_>> {
    match name {
        "pods" => Some(PodResource::Pods),
        "cpu" | "memory" | "ephemeral-storage" => Some(PodResource::Requests(name)),
        _ if name.starts_with("hugepages-") => Some(PodResource::Requests(name)),
        _ => match name.split_once('.') {
            Some(("requests", what)) => Some(PodResource::Requests(what)),
            Some(("limits", what)) => Some(PodResource::Limits(what)),
            _ => None,
        },
    }
}

impl PodResource<'_> {
    fn of(&self, pod: &Value) -> Quantity {
        let (list, name) = match self {
            PodResource::Pods => return Quantity::from_integer(1, Format::DecimalSi),
            PodResource::Requests(name) => ("requests", *name),
            PodResource::Limits(name) => ("limits", *name),
        };
        let spec = &pod["spec"];
        let of_pod = &spec["resources"][list][name];
        let overhead = quantity(&spec["overhead"][name]);
        if of_pod.is_string() {
            return plus(quantity(of_pod), overhead);
        }
        let amount = |container: &Value| quantity(&container["resources"][list][name]);
        let containers = spec["containers"].as_array().into_iter().flatten();
        let mut together = containers.fold(Quantity::ZERO, |sum, c| plus(sum, amount(c)));
        let (mut sidecars, mut in_turn) = (Quantity::ZERO, Quantity::ZERO);
        for container in spec["initContainers"].as_array().into_iter().flatten() {
            let needs = if container["restartPolicy"] == "Always" {
                together = plus(together, amount(container));
                sidecars = plus(sidecars, amount(container));
                sidecars
            } else {
                plus(amount(container), sidecars)
            };
            in_turn = in_turn.max(needs);
        }
        plus(together.max(in_turn), overhead)
    }
}

/// Whether a quota's scopes take in a pod.
fn in_scope(quota: &Value, pod: &Value) -> bool {
    let plain = quota["spec"]["scopes"].as_array().into_iter().flatten().filter_map(Value::as_str);
    let plain_fit = plain.into_iter().all(|scope| scope_matches(scope, "Exists", &[], pod));
    let selected = quota["spec"]["scopeSelector"]["matchExpressions"].as_array().into_iter().flatten();
    plain_fit
        && selected.into_iter().all(|e| {
            let values: Vec<&str> = e["values"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
            let text = |key: &str| e[key].as_str().unwrap_or_default();
            scope_matches(text("scopeName"), text("operator"), &values, pod)
        })
}

fn scope_matches(scope: &str, operator: &str, values: &[&str], pod: &Value) -> bool {
    let spec = &pod["spec"];
    let best_effort = pod["status"]["qosClass"] == "BestEffort";
    let terminating = spec["activeDeadlineSeconds"].as_i64().is_some_and(|s| s >= 0);
    let class = spec["priorityClassName"].as_str().unwrap_or_default();
    match scope {
        "BestEffort" => best_effort,
        "NotBestEffort" => !best_effort,
        "Terminating" => terminating,
        "NotTerminating" => !terminating,
        "PriorityClass" => match operator {
            "In" => values.contains(&class),
            "NotIn" => !values.contains(&class),
            "DoesNotExist" => class.is_empty(),
            _ => !class.is_empty(),
        },
        "CrossNamespacePodAffinity" => crosses_namespaces(spec),
        _ => false,
    }
}

fn crosses_namespaces(spec: &Value) -> bool {
    let foreign = |term: &Value| {
        term["namespaces"].as_array().is_some_and(|n| !n.is_empty()) || term["namespaceSelector"].is_object()
    };
    ["podAffinity", "podAntiAffinity"].iter().any(|kind| {
        let affinity = &spec["affinity"][kind];
        let required = affinity["requiredDuringSchedulingIgnoredDuringExecution"].as_array().into_iter().flatten();
        let preferred = affinity["preferredDuringSchedulingIgnoredDuringExecution"].as_array().into_iter().flatten();
        required.chain(preferred.map(|p| &p["podAffinityTerm"])).any(foreign)
    })
}

impl Controller for Quotas {
    const NAME: &'static str = "resourcequota-controller";
    type Key = Key;

    fn watched(&self) -> Vec<ResourceId> {
        let counted = self.resources.iter().map(|r| r.storage.clone());
        std::iter::once(ResourceId::from(QUOTAS)).chain(counted).collect()
    }

    fn stale(&self) -> bool {
        !Arc::ptr_eq(&self.set, &self.client.server().resources.current())
    }

    fn observe(&mut self, change: Change<'_>, queue: &mut Queue<Key>) {
        let (object, key) = (change.object, &change.object.key);
        if change.resource == 0 {
            let there = self.quotas.entry(key.namespace.clone()).or_default();
            match change.deleted() {
                true => drop(there.remove(key)),
                false => drop(there.insert(key.clone(), ())),
            }
            if there.is_empty() {
                self.quotas.remove(&key.namespace);
            }
            let limits = |o: &ObjectRef| {
                let value = o.value();
                (value["spec"].clone(), value["status"]["hard"].clone())
            };
            if !change.deleted() && change.previous.is_none_or(|old| limits(old) != limits(object)) {
                queue.add(key.clone());
            }
            return;
        }
        // What comes is counted by admission; what goes, or ends, is counted here. New objects too, a little later: they
        // may have come past a quota that was not there yet.
        let Some(quotas) = self.quotas.get(&key.namespace) else { return };
        let ended = change.previous.is_some_and(|old| !is_terminal(old)) && is_terminal(object);
        for quota in quotas.keys() {
            match change.deleted() || ended {
                true => queue.add(quota.clone()),
                false if change.previous.is_none() => queue.add_after(quota.clone(), Duration::from_millis(200)),
                false => {}
            }
        }
    }

    async fn sync(&mut self, key: &Key) -> Result<Option<Duration>> {
        let Some(quota) = self.client.get(QUOTAS, &key.namespace, &key.name) else { return Ok(None) };
        // What is charged and not stored yet would be missed.
        let _counting = self.client.server().admission.recount(&key.namespace).await;
        let written = self.client.update_status(QUOTAS, &key.namespace, &key.name, |value| {
            let used = self.usage(&key.namespace, value);
            let hard = value["spec"]["hard"].clone();
            let same = value["status"]["hard"] == hard && value["status"]["used"].as_object() == Some(&used);
            if value["metadata"]["uid"] != *quota.keys.uid || same {
                return Err(unchanged());
            }
            value["status"] = serde_json::json!({"hard": hard, "used": used});
            Ok(())
        });
        ownership::done(written.await.map(|_| ()))?;
        Ok(None)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn pods_count_by_requests_limits_and_number() {
        let pod = json!({"spec": {"containers": [
            {"resources": {"requests": {"cpu": "100m"}, "limits": {"cpu": "1", "memory": "1Gi"}}},
            {"resources": {"requests": {"cpu": "200m"}}}], "initContainers": [{"resources": {"requests": {"cpu": "250m"}}}]}});
        let used = |name: &str| pod_resource(name).expect("it is counted").of(&pod).to_string();
        assert_eq!(used("cpu"), "300m");
        assert_eq!(used("requests.cpu"), "300m");
        assert_eq!(used("limits.memory"), "1Gi");
        assert_eq!(used("pods"), "1");
        assert!(pod_resource("gold").is_none());
    }

    #[test]
    fn scopes_take_in_some_pods_only() {
        let pod = json!({"spec": {"priorityClassName": "high"}, "status": {"qosClass": "BestEffort"}});
        let quota = |scope: &str| json!({"spec": {"scopes": [scope]}});
        assert!(in_scope(&quota("BestEffort"), &pod) && !in_scope(&quota("NotBestEffort"), &pod));
        assert!(in_scope(&quota("NotTerminating"), &pod) && !in_scope(&quota("Terminating"), &pod));
        let selected = json!({"spec": {"scopeSelector": {"matchExpressions": [
            {"scopeName": "PriorityClass", "operator": "In", "values": ["high"]}]}}});
        assert!(in_scope(&selected, &pod));
    }
}
