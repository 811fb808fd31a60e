//! What makes pods and decides how many: apps, batch and autoscaling.

use serde_json::{Value, json};

use super::{Object, each, has, inside, made, pod, set, set_unsaid};
use crate::resource::Defaults;

pub(super) fn apply(plural: &str, object: &mut Object, gated: Defaults) {
    if plural == "daemonsets"
        && let Some(annotations) = made(object, "metadata").and_then(|m| made(m, "annotations"))
    {
        // A field of no version that is served; writes count it.
        set(annotations, "deprecated.daemonset.template.generation", "0");
    }
    if plural == "controllerrevisions" {
        // All that it has is data of others, and no specification.
        return;
    }
    let Some(spec) = made(object, "spec") else { return };
    match plural {
        "deployments" => {
            set(spec, "replicas", 1);
            if let Some(strategy) = made(spec, "strategy") {
                set(strategy, "type", "RollingUpdate");
                rolling(strategy, &[("maxUnavailable", json!("25%")), ("maxSurge", json!("25%"))]);
            }
            set(spec, "revisionHistoryLimit", 10);
            set(spec, "progressDeadlineSeconds", 600);
            template(spec);
        }
        "replicasets" => {
            set(spec, "replicas", 1);
            template(spec);
        }
        "daemonsets" => {
            if let Some(strategy) = made(spec, "updateStrategy") {
                set(strategy, "type", "RollingUpdate");
                rolling(strategy, &[("maxUnavailable", json!(1)), ("maxSurge", json!(0))]);
            }
            set(spec, "revisionHistoryLimit", 10);
            template(spec);
        }
        "statefulsets" => stateful_set(spec, gated),
        "jobs" => {
            job(spec);
            if let Some(labels) = super::template_labels(spec) {
                super::labels_like(object, labels);
            }
        }
        "cronjobs" => {
            set(spec, "concurrencyPolicy", "Allow");
            set(spec, "suspend", false);
            set(spec, "successfulJobsHistoryLimit", 3);
            set(spec, "failedJobsHistoryLimit", 1);
            // A job's own defaults wait until the job is made; its pods have theirs already.
            if let Some(job) = made(spec, "jobTemplate").and_then(|t| made(t, "spec")) {
                template(job);
                failure_patterns(job);
            }
        }
        "horizontalpodautoscalers" => autoscaler(spec),
        _ => {}
    }
}

fn template(spec: &mut Object) {
    if let Some(template) = made(spec, "template") {
        pod::template(template);
    }
}

/// Bounds of a rolling update, for a strategy that is one.
fn rolling(strategy: &mut Object, bounds: &[(&str, Value)]) {
    if strategy.get("type").is_some_and(|t| t == "RollingUpdate")
        && let Some(rolling) = made(strategy, "rollingUpdate")
    {
        bounds.iter().for_each(|(key, value)| set_unsaid(rolling, key, value.clone()));
    }
}

fn stateful_set(spec: &mut Object, gated: Defaults) {
    set(spec, "podManagementPolicy", "OrderedReady");
    if let Some(strategy) = made(spec, "updateStrategy") {
        let said = has(strategy, "type");
        set(strategy, "type", "RollingUpdate");
        // One that is named has bounds only where it says so.
        if !said || has(strategy, "rollingUpdate") {
            rolling(strategy, &[("partition", json!(0))]);
            if gated.unavailable {
                rolling(strategy, &[("maxUnavailable", json!(1))]);
            }
        }
    }
    if let Some(policy) = made(spec, "persistentVolumeClaimRetentionPolicy") {
        set(policy, "whenDeleted", "Retain");
        set(policy, "whenScaled", "Retain");
    }
    set(spec, "replicas", 1);
    set(spec, "revisionHistoryLimit", 10);
    template(spec);
    each(spec, "volumeClaimTemplates").for_each(pod::embedded_claim);
}

fn job(spec: &mut Object) {
    if !has(spec, "completions") && !has(spec, "parallelism") {
        set(spec, "completions", 1);
    }
    set(spec, "parallelism", 1);
    let retries = if has(spec, "backoffLimitPerIndex") { i32::MAX } else { 6 };
    set(spec, "backoffLimit", retries);
    set_unsaid(spec, "completionMode", "NonIndexed");
    set(spec, "suspend", false);
    set(spec, "manualSelector", false);
    let replace = if has(spec, "podFailurePolicy") { "Failed" } else { "TerminatingOrFailed" };
    set_unsaid(spec, "podReplacementPolicy", replace);
    failure_patterns(spec);
    template(spec);
}

fn failure_patterns(job: &mut Object) {
    let Some(policy) = inside(job, "podFailurePolicy") else { return };
    for rule in each(policy, "rules") {
        each(rule, "onPodConditions").for_each(|pattern| set(pattern, "status", "True"));
    }
}

fn autoscaler(spec: &mut Object) {
    set(spec, "minReplicas", 1);
    if spec.get("metrics").and_then(Value::as_array).is_none_or(Vec::is_empty) {
        let target = json!({"type": "Utilization", "averageUtilization": 80});
        spec.insert("metrics".into(), json!([{"type": "Resource", "resource": {"name": "cpu", "target": target}}]));
    }
    let Some(behavior) = inside(spec, "behavior") else { return };
    let percent = json!({"type": "Percent", "value": 100, "periodSeconds": 15});
    if let Some(up) = made(behavior, "scaleUp") {
        set(up, "stabilizationWindowSeconds", 0);
        set_unsaid(up, "selectPolicy", "Max");
        policies(up, json!([{"type": "Pods", "value": 4, "periodSeconds": 15}, percent]));
    }
    if let Some(down) = made(behavior, "scaleDown") {
        set_unsaid(down, "selectPolicy", "Max");
        policies(down, json!([percent]));
    }
}

/// A list without items is no list that was left out: it stays, and is refused.
fn policies(rules: &mut Object, default: Value) {
    if rules.get("policies").is_none_or(Value::is_null) {
        rules.insert("policies".into(), default);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn defaulted(plural: &str, spec: Value) -> Value {
        let mut value = json!({"spec": spec});
        apply(plural, value.as_object_mut().unwrap(), Defaults::default());
        value["spec"].take()
    }

    #[test]
    fn a_strategy_has_bounds_only_when_it_rolls() {
        let strategy = |s: Value| defaulted("deployments", json!({"strategy": s}))["strategy"].take();
        assert_eq!(strategy(json!({"type": "Recreate"})), json!({"type": "Recreate"}));
        let bounds = json!({"maxSurge": 1, "maxUnavailable": "25%"});
        assert_eq!(
            strategy(json!({"rollingUpdate": {"maxSurge": 1}})),
            json!({"type": "RollingUpdate", "rollingUpdate": bounds})
        );
        let named = defaulted("statefulsets", json!({"updateStrategy": {"type": "RollingUpdate"}}));
        assert_eq!(named["updateStrategy"], json!({"type": "RollingUpdate"}));
    }

    /// They came only when the job was stored, and then with those that its pods get on the way.
    #[test]
    fn a_job_without_labels_has_those_of_its_template_at_once() {
        let labels = |own: Value, of_pods: Value| {
            let mut job = json!({"metadata": {"labels": own}, "spec": {"template": {"metadata": {"labels": of_pods}}}});
            apply("jobs", job.as_object_mut().unwrap(), Defaults::default());
            job["metadata"]["labels"].take()
        };
        let team = json!({"team": "a"});
        assert_eq!(labels(Value::Null, team.clone()), team);
        assert_eq!(labels(json!({}), team.clone()), team);
        assert_eq!(labels(json!({"own": "b"}), team), json!({"own": "b"}));
        assert_eq!(labels(Value::Null, json!({})), Value::Null);
    }

    #[test]
    fn a_rolling_set_lacks_one_pod_where_a_gate_lets_it_lack_more() {
        let rolled = |strategy: Value| {
            let mut value = json!({"spec": {"updateStrategy": strategy}});
            apply("statefulsets", value.as_object_mut().unwrap(), Defaults { unavailable: true });
            value["spec"]["updateStrategy"]["rollingUpdate"].take()
        };
        assert_eq!(rolled(json!({})), json!({"partition": 0, "maxUnavailable": 1}));
        assert_eq!(rolled(json!({"rollingUpdate": {"maxUnavailable": "30%"}}))["maxUnavailable"], "30%");
        assert_eq!(rolled(json!({"type": "RollingUpdate"})), Value::Null, "bounds only where it says so");
        assert_eq!(rolled(json!({"type": "OnDelete"})), Value::Null);
        assert_eq!(defaulted("statefulsets", json!({}))["updateStrategy"]["rollingUpdate"], json!({"partition": 0}));
    }

    #[test]
    fn a_revision_says_what_it_said() {
        let revision = json!({"metadata": {"name": "a"}, "data": {"spec": {"empty": {}}}, "revision": 1});
        let mut done = revision.clone();
        apply("controllerrevisions", done.as_object_mut().expect("an object"), Defaults::default());
        assert_eq!(done, revision);
    }

    #[test]
    fn a_job_of_no_size_runs_once() {
        let done = defaulted(
            "jobs",
            json!({"backoffLimitPerIndex": 1,
            "podFailurePolicy": {"rules": [{"onPodConditions": [{"type": "DisruptionTarget"}]}]}}),
        );
        assert_eq!((&done["completions"], &done["parallelism"]), (&json!(1), &json!(1)));
        assert_eq!(done["backoffLimit"], i32::MAX);
        assert_eq!(done["podReplacementPolicy"], "Failed");
        assert_eq!(done["podFailurePolicy"]["rules"][0]["onPodConditions"][0]["status"], "True");
        assert_eq!(defaulted("jobs", json!({"parallelism": 3}))["completions"], Value::Null);
    }

    #[test]
    fn an_autoscaler_without_metrics_watches_the_cpu() {
        let done = defaulted(
            "horizontalpodautoscalers",
            json!({"behavior": {"scaleDown": {"stabilizationWindowSeconds": 60}}}),
        );
        assert_eq!(done["metrics"][0]["resource"]["target"]["averageUtilization"], 80);
        assert_eq!(done["behavior"]["scaleUp"]["policies"].as_array().map(Vec::len), Some(2));
        assert_eq!(done["behavior"]["scaleDown"]["stabilizationWindowSeconds"], 60);
        assert_eq!(done["behavior"]["scaleDown"]["policies"].as_array().map(Vec::len), Some(1));
        let none = json!({"scaleUp": {"policies": []}});
        let said = defaulted("horizontalpodautoscalers", json!({"behavior": none}));
        assert_eq!(said["behavior"]["scaleUp"]["policies"], json!([]), "it was said, and is refused");
    }
}
