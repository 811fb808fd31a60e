//! The `eviction` subresource of pods: a delete that disruption budgets have a say in.
//!
//! Follows `pkg/registry/core/pod/storage/eviction.go`. Pods that run nothing go without asking; the others need a
//! disruption from the one budget that covers them, which is taken from the budget before the pod is deleted.

use serde_json::{Value, json};
use tokio::time::Instant;

use super::admit;
use super::binding::set_condition;
use super::delete::{self, delete};
use super::delete_options::DeleteOptions;
use super::options::WriteOptions;
use super::subresource::{done, schema};
use super::update::{self, Target};
use super::{decode, meta};
use crate::http::{Accepted, Response};
use crate::resource::Resource;
use crate::selectors::LabelSelector;
use crate::server::{ApiServer, Request};
use crate::status::{ApiError, Result};
use crate::store::ObjectRef;

const EVICTION: (&str, &str, &str) = ("policy", "v1", "Eviction");
const REFUSED: &str = "Cannot evict pod as it would violate the pod's disruption budget.";
/// Disrupted pods that a budget remembers until its controller has seen them.
const MAX_DISRUPTED: usize = 2000;

/// Deletes a pod if its disruption budgets allow it.
///
/// # Errors
/// 400, 404, 409, 429 while a budget does not allow it, 500 for a pod with two budgets.
pub(super) async fn handle(
    server: &ApiServer,
    request: &mut Request,
    resource: &Resource,
    accepted: Accepted,
) -> Result<Response> {
    let options = WriteOptions::parse(request, resource)?;
    let body = request.body().await?;
    let (content_type, also) = (request.content_type(), &["policy/v1beta1"]);
    let mut eviction = decode::kind_of(&schema(EVICTION)?, EVICTION, also, content_type, &body, &options)?;
    let (namespace, name) = (request.info.namespace.clone(), request.info.name.clone());
    meta::settle_namespace(&mut eviction, &namespace)?;
    if meta::text(&eviction, "name") != name {
        return Err(ApiError::bad_request("name in URL does not match name in Eviction object"));
    }
    let target = Target { resource, subresource: "eviction", namespace: &namespace, name: &name };
    admit::posted(server, &options, target, &mut eviction).await?;
    let mut wanted = DeleteOptions::of(&eviction["deleteOptions"])?;
    wanted.dry_run |= options.dry_run;
    wanted.until = options.until;
    evict(server, resource, &namespace, &name, &wanted, &options).await?;
    Ok(done(accepted))
}

async fn evict(
    server: &ApiServer,
    resource: &Resource,
    namespace: &str,
    name: &str,
    wanted: &DeleteOptions,
    options: &WriteOptions,
) -> Result<()> {
    let find = || {
        let pod = server.store.get(&resource.storage, namespace, name);
        pod.ok_or_else(|| ApiError::missing("", "pods", name))
    };
    let mut pod = find()?;
    loop {
        let phase = pod.field("status.phase");
        let over = matches!(phase, "Succeeded" | "Failed") || pod.keys.deleting;
        // A pod that runs nothing disrupts nothing. One that is only starting must not have come up meanwhile.
        if !over && phase != "Pending" {
            return evict_running(server, resource, &pod, wanted, options).await;
        }
        let mut pinned = wanted.clone();
        if !over && pinned.revision.is_none() {
            pinned.revision = Some(pod.revision.to_string());
        }
        match remove(server, resource, &pod, &pinned, options).await {
            Err(error) if error.is_conflict() && wanted.revision.is_none() => {
                // Whoever means another pod is told so; who was only too slow tries again.
                let newest = find()?;
                let in_time = options.until.is_none_or(|until| Instant::now() < until);
                if newest.revision == pod.revision || !in_time {
                    return Err(error);
                }
                pod = newest;
            }
            result => return result,
        }
    }
}

async fn evict_running(
    server: &ApiServer,
    resource: &Resource,
    pod: &ObjectRef,
    wanted: &DeleteOptions,
    options: &WriteOptions,
) -> Result<()> {
    let Some(budget) = covering_budget(server, pod)? else {
        return remove(server, resource, pod, wanted, options).await;
    };
    let (tree, budget_tree) = (pod.value(), budget.value());
    if is_ready(&tree) || !spares_the_unhealthy(&budget_tree) {
        take_disruption(server, &budget, &pod.key.name, wanted).await?;
        return remove(server, resource, pod, wanted, options).await;
    }
    // It may go because it is not healthy, so it must not have become healthy since.
    let mut pinned = wanted.clone();
    pinned.revision = Some(pod.revision.to_string());
    match remove(server, resource, pod, &pinned, options).await {
        Err(error) if error.is_conflict() && wanted.revision.is_none() => Err(still_processed(&budget.key.name)),
        result => result,
    }
}

fn is_ready(pod: &Value) -> bool {
    let conditions = pod["status"]["conditions"].as_array();
    conditions.into_iter().flatten().any(|c| c["type"] == "Ready" && c["status"] == "True")
}

/// Whether a budget lets pods that are not ready go without a disruption.
fn spares_the_unhealthy(budget: &Value) -> bool {
    let healthy = |key: &str| budget["status"][key].as_i64().unwrap_or(0);
    budget["spec"]["unhealthyPodEvictionPolicy"] == "AlwaysAllow"
        || healthy("currentHealthy") >= healthy("desiredHealthy") && healthy("desiredHealthy") > 0
}

/// The budget that selects a pod.
fn covering_budget(server: &ApiServer, pod: &ObjectRef) -> Result<Option<ObjectRef>> {
    let snapshot = server.store.snapshot(&"poddisruptionbudgets.policy".into());
    let covers =
        |budget: &&ObjectRef| LabelSelector::parse(&budget.value()["spec"]["selector"]).matches(&pod.keys.labels);
    let mut covering = snapshot.range(Some(&pod.key.namespace), None).filter(covers);
    let first = covering.next().cloned();
    if covering.next().is_some() {
        let text = "This pod has more than one PodDisruptionBudget, which the eviction subresource does not support.";
        return Err(ApiError::new(500, "", text));
    }
    Ok(first)
}

fn refused(cause: &str, retry_after_seconds: u32) -> ApiError {
    ApiError::too_many_requests(REFUSED, retry_after_seconds).with_cause("DisruptionBudget", cause, "")
}

fn still_processed(budget: &str) -> ApiError {
    refused(&format!("The disruption budget {budget} is still being processed by the server."), 10)
}

/// Takes one disruption from a budget. Others take theirs at the same time: whoever drains a node evicts all of its pods
/// at once.
async fn take_disruption(server: &ApiServer, budget: &ObjectRef, pod: &str, wanted: &DeleteOptions) -> Result<()> {
    let resource = server.resources.lookup("policy", "v1", "poddisruptionbudgets");
    let resource = resource.ok_or_else(crate::server::unknown_path)?;
    let (namespace, name) = (&*budget.key.namespace, &*budget.key.name);
    let target = Target { resource: &resource, subresource: "status", namespace, name };
    let (dry_run, until) = (wanted.dry_run, wanted.until);
    let options = WriteOptions { manager: "kube-apiserver".into(), dry_run, until, ..WriteOptions::default() };
    let taken = update::update(server, target, &options, |_, tree| disrupted(tree, name, pod));
    taken.await.map(|_| ())
}

/// A budget with one disruption less.
fn disrupted(budget: &Value, name: &str, pod: &str) -> Result<Value> {
    let status = &budget["status"];
    let number = |key: &str| status[key].as_i64().unwrap_or(0);
    if number("observedGeneration") < budget["metadata"]["generation"].as_i64().unwrap_or(0) {
        return Err(still_processed(name));
    }
    let forbidden = |why: &str| ApiError::forbidden("policy", "poddisruptionbudget", name, why);
    let allowed = number("disruptionsAllowed");
    if allowed < 0 {
        return Err(forbidden("pdb disruptions allowed is negative"));
    }
    if status["disruptedPods"].as_object().is_some_and(|pods| pods.len() > MAX_DISRUPTED) {
        let why = "DisruptedPods map too big - too many evictions not confirmed by PDB controller";
        return Err(forbidden(why));
    }
    if allowed == 0 {
        return Err(refused(&why_none_is_left(status, name), 0));
    }
    let mut value = budget.clone();
    let status = &mut value["status"];
    status["disruptionsAllowed"] = (allowed - 1).into();
    if allowed == 1 {
        no_more_allowed(status);
    }
    status["disruptedPods"][pod] = proto::time::Timestamp::now().to_seconds_text().into();
    Ok(value)
}

fn why_none_is_left(status: &Value, name: &str) -> String {
    let number = |key: &str| status[key].as_i64().unwrap_or(0);
    let mut conditions = status["conditions"].as_array().into_iter().flatten();
    let condition = conditions.find(|c| c["type"] == "DisruptionAllowed");
    let text = |key: &str| condition.and_then(|c| c[key].as_str()).unwrap_or_default();
    let explained = text("status") == "False" && !text("message").is_empty();
    // The numbers mean nothing when they could not be computed.
    if explained && text("reason") == "SyncFailed" {
        let why = text("message");
        return format!(
            "The disruption budget {name} does not allow evicting pods currently because it failed sync: {why}"
        );
    }
    let (desired, current) = (number("desiredHealthy"), number("currentHealthy"));
    if current <= desired {
        return format!("The disruption budget {name} needs {desired} healthy pods and has {current} currently");
    }
    if explained {
        let (reason, message) = (text("reason"), text("message"));
        return format!("The disruption budget {name} does not allow evicting pods currently ({reason}): {message}");
    }
    format!("The disruption budget {name} does not allow evicting pods currently")
}

fn no_more_allowed(status: &mut Value) {
    let now = proto::time::Timestamp::now().to_seconds_text();
    let mut condition = json!({"type": "DisruptionAllowed", "status": "False", "reason": "InsufficientPods",
        "message": "", "lastTransitionTime": now});
    if let Some(generation) = status["observedGeneration"].as_i64().filter(|g| *g > 0) {
        condition["observedGeneration"] = generation.into();
    }
    if !status["conditions"].is_array() {
        status["conditions"] = json!([]);
    }
    let Some(conditions) = status["conditions"].as_array_mut() else { return };
    match conditions.iter_mut().find(|c| c["type"] == "DisruptionAllowed") {
        Some(found) => {
            if found["status"] == "False" {
                condition["lastTransitionTime"] = found["lastTransitionTime"].clone();
            }
            *found = condition;
        }
        None => conditions.push(condition),
    }
}

/// Marks the pod as disrupted, then deletes it.
async fn remove(
    server: &ApiServer,
    resource: &Resource,
    pod: &ObjectRef,
    wanted: &DeleteOptions,
    options: &WriteOptions,
) -> Result<()> {
    let (namespace, name) = (&*pod.key.namespace, &*pod.key.name);
    let mut wanted = wanted.clone();
    if !wanted.dry_run {
        let target = Target { resource, subresource: "eviction", namespace, name };
        let marked = update::update(server, target, options, |old, tree| {
            delete::check_preconditions(resource, old, &wanted)?;
            let mut value = tree.clone();
            let condition = json!({"type": "DisruptionTarget", "status": "True", "reason": "EvictionByEvictionAPI",
                "message": "Eviction API: evicting"});
            set_condition(&mut value, condition);
            Ok(value)
        });
        let marked = marked.await?;
        if wanted.revision.is_some() {
            wanted.revision = Some(marked.revision.to_string());
        }
    }
    delete(server, resource, namespace, name, &wanted).await.map(|_| ())
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering;

    use futures_util::future::join_all;

    use super::*;
    use crate::client::Client;

    /// Whoever drains a node evicts all of its pods at once, and gives up when one of them is refused for good.
    #[tokio::test]
    async fn evictions_at_once_each_take_a_disruption_while_there_are_some() {
        let server = crate::serve::testing::server().await;
        let client = Client::new(server.clone(), "system:apiserver", "test");
        let names: Vec<String> = (0..10).map(|number| format!("p{number}")).collect();
        for name in &names {
            let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "labels": {"a": "b"}},
                "spec": {"nodeName": "n", "containers": [{"name": "c", "image": "i"}]}});
            client.create("pods", "default", pod).await.expect("a good pod");
            let runs = client.update_status("pods", "default", name, |pod| {
                pod["status"]["phase"] = "Running".into();
                set_condition(pod, json!({"type": "Ready", "status": "True"}));
                Ok(())
            });
            runs.await.expect("a good status");
        }
        let budgets = "poddisruptionbudgets.policy";
        let budget = json!({"apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": {"name": "b"},
            "spec": {"minAvailable": 1, "selector": {"matchLabels": {"a": "b"}}}});
        client.create(budgets, "default", budget).await.expect("a good budget");
        let allowed = client.update_status(budgets, "default", "b", |budget| {
            budget["status"] = json!({"observedGeneration": budget["metadata"]["generation"], "disruptionsAllowed": 9,
                "currentHealthy": 10, "desiredHealthy": 1, "expectedPods": 10});
            Ok(())
        });
        allowed.await.expect("a good status");
        let resource = server.resources.lookup("", "v1", "pods").expect("built in");
        let (wanted, options) = (DeleteOptions::default(), WriteOptions::default());
        server.store.slowness.store(20, Ordering::Relaxed);
        let evicted =
            join_all(names.iter().map(|name| evict(&server, &resource, "default", name, &wanted, &options))).await;
        let refused: Vec<ApiError> = evicted.into_iter().filter_map(Result::err).collect();
        assert!(refused.len() == 1 && refused[0].code() == 429, "{refused:?}");
        let left = client.get(budgets, "default", "b").expect("it is there").value();
        assert_eq!(left["status"]["disruptionsAllowed"], 0);
        assert_eq!(left["status"]["disruptedPods"].as_object().map(|pods| pods.len()), Some(9));
    }

    fn budget(status: Value) -> Value {
        json!({"metadata": {"generation": 1}, "status": status})
    }

    #[test]
    fn a_budget_gives_away_what_it_has_and_says_when_it_is_empty() {
        let left =
            disrupted(&budget(json!({"observedGeneration": 1, "disruptionsAllowed": 1})), "b", "p").expect("allowed");
        assert_eq!(left["status"]["disruptionsAllowed"], 0);
        assert_eq!(left["status"]["conditions"][0]["reason"], "InsufficientPods");
        assert!(left["status"]["disruptedPods"]["p"].is_string());
        let refused = disrupted(&left, "b", "q").expect_err("empty");
        assert_eq!(refused.code(), 429);
    }

    #[test]
    fn a_budget_that_was_not_looked_at_yet_is_asked_again_later() {
        let error = disrupted(&budget(json!({"disruptionsAllowed": 5})), "b", "p").expect_err("too early");
        assert_eq!(error.status().details.as_ref().map(|d| d.retry_after_seconds), Some(10));
    }

    #[test]
    fn the_reason_of_a_refusal_names_what_is_wrong() {
        let condition = |reason: &str| json!([{"type": "DisruptionAllowed", "status": "False", "reason": reason, "message": "why"}]);
        for (status, text) in [
            (json!({"desiredHealthy": 2, "currentHealthy": 1}), "needs 2 healthy pods and has 1 currently"),
            (json!({"conditions": condition("SyncFailed")}), "because it failed sync: why"),
            (json!({"currentHealthy": 2, "conditions": condition("Other")}), "evicting pods currently (Other): why"),
            (json!({"currentHealthy": 2}), "does not allow evicting pods currently"),
        ] {
            let why = why_none_is_left(&status, "b");
            assert!(why.ends_with(text), "{why}");
        }
    }
}
