//! Deployments, replica sets, daemon sets, stateful sets, replication controllers and their revisions.

use serde_json::{Name, Value, json};

use super::{list, names_of, pod, selector, text};
use crate::field_error::{Report, Shown, go_struct, same};
use crate::names;

const MISMATCH: &str = "`selector` does not match template `labels`";

/// A count or a percentage, neither negative.
pub fn count_or_percent(report: &mut Report, value: &Value) {
    match value {
        Value::String(text) if percent(text).is_none() => {
            let why = "a valid percent string must be a numeric string followed by an ending '%' (e.g. '1%',  or '93%', \
                       regex used for validation is '[0-9]+%')";
            report.invalid(value, why);
        }
        Value::Number(number) if number.as_i64().is_some_and(|n| n < 0) => {
            report.invalid(value, "must be greater than or equal to 0");
        }
        _ => {}
    }
}

fn percent(text: &str) -> Option<u64> {
    let digits = text.strip_suffix('%').filter(|d| !d.is_empty() && d.bytes().all(|b| b.is_ascii_digit()))?;
    Some(digits.parse().unwrap_or(u64::MAX))
}

/// No more than all.
pub fn at_most_all(report: &mut Report, value: &Value) {
    if value.as_str().and_then(percent).is_some_and(|p| p > 100) {
        report.invalid(value, "must not be greater than 100%");
    }
}

/// The number that a count or percentage says; a text that is neither is nothing.
fn amount(value: &Value) -> i64 {
    match value {
        Value::String(text) => {
            percent(text).map_or_else(|| text.parse().unwrap_or(0), |p| i64::try_from(p).unwrap_or(i64::MAX))
        }
        other => other.as_i64().unwrap_or(0),
    }
}

/// The template of a workload whose pods run until they are stopped.
fn template(report: &mut Report, spec: &Value, kind: &str) {
    report.at("template", |r| pod::template(r, &spec["template"]));
    endless(report, spec, kind);
}

fn endless(report: &mut Report, spec: &Value, kind: &str) {
    let pod = &spec["template"]["spec"];
    report.down(&["template", "spec"], |r| {
        if text(pod, "restartPolicy") != "Always" {
            r.at("restartPolicy", |r| r.not_supported(text(pod, "restartPolicy"), &["Always"]));
        }
        let why = format!("activeDeadlineSeconds in {kind} is not Supported");
        r.forbid(pod, &["activeDeadlineSeconds"], &why);
    });
}

fn matching(report: &mut Report, spec: &Value) {
    let labels = &spec["template"]["metadata"]["labels"];
    if (spec["selector"].is_null() || !selector::is_empty(&spec["selector"]))
        && !selector::matches(&spec["selector"], labels)
    {
        report.down(&["template", "metadata", "labels"], |r| r.invalid(labels, MISMATCH));
    }
}

/// Selector and template of deployments and replica sets.
fn selected(report: &mut Report, spec: &Value) {
    let mut sound = true;
    report.at("selector", |r| sound = selector::required(r, &spec["selector"], "deployment"));
    if sound {
        matching(report, spec);
        template(report, spec, "ReplicaSet");
    } else {
        report.bad("selector", selector::shown(&spec["selector"]), "invalid label selector");
    }
}

pub fn deployment(report: &mut Report, spec: &Value) {
    report.not_negative(spec, "replicas");
    selected(report, spec);
    report.at("strategy", |r| deployment_strategy(r, &spec["strategy"]));
    report.not_negative(spec, "minReadySeconds");
    report.not_negative(spec, "revisionHistoryLimit");
    report.not_negative(spec, "progressDeadlineSeconds");
    if let Some(deadline) = spec["progressDeadlineSeconds"].as_i64()
        && deadline <= spec["minReadySeconds"].as_i64().unwrap_or(0)
    {
        report.bad("progressDeadlineSeconds", deadline, "must be greater than minReadySeconds");
    }
}

fn deployment_strategy(report: &mut Report, strategy: &Value) {
    let rolling = &strategy["rollingUpdate"];
    match text(strategy, "type") {
        "Recreate" => {
            let why = "may not be specified when strategy `type` is 'Recreate'";
            report.forbid(strategy, &["rollingUpdate"], why);
        }
        "RollingUpdate" if rolling.is_null() => {
            report.miss("rollingUpdate", "this should be defaulted and never be nil");
        }
        "RollingUpdate" => report.at("rollingUpdate", |r| {
            let (unavailable, surge) = (&rolling["maxUnavailable"], &rolling["maxSurge"]);
            r.at("maxUnavailable", |r| count_or_percent(r, unavailable));
            r.at("maxSurge", |r| count_or_percent(r, surge));
            if amount(unavailable) == 0 && amount(surge) == 0 {
                r.bad("maxUnavailable", unavailable, "may not be 0 when `maxSurge` is 0");
            }
            r.at("maxUnavailable", |r| at_most_all(r, unavailable));
        }),
        _ => unknown_strategy(report, strategy, &["Recreate", "RollingUpdate"]),
    }
}

/// Upstream shows the whole strategy here, by its Go names.
fn unknown_strategy(report: &mut Report, strategy: &Value, known: &[&str]) {
    let shown = go_strategy(strategy).shown();
    let known: Vec<String> = known.iter().map(|k| crate::status::quote(k)).collect();
    report.unsupported(&shown, &known.join(", "));
}

fn go_strategy(strategy: &Value) -> crate::field_error::Raw {
    go_struct(&[("Type", &strategy["type"]), ("RollingUpdate", &strategy["rollingUpdate"])])
}

pub fn replica_set(report: &mut Report, spec: &Value) {
    report.not_negative(spec, "replicas");
    report.not_negative(spec, "minReadySeconds");
    selected(report, spec);
}

pub fn daemon_set(report: &mut Report, spec: &Value) {
    let chosen = &spec["selector"];
    let sound = report.sound(|r| r.at("selector", |r| selector::check(r, chosen)));
    let labels = &spec["template"]["metadata"]["labels"];
    if sound && !selector::matches(chosen, labels) {
        report.down(&["template", "metadata", "labels"], |r| r.invalid(labels, MISMATCH));
    }
    if !chosen.is_null() && selector::is_empty(chosen) {
        report.bad("selector", selector::shown(chosen), "empty selector is invalid for daemonset");
    }
    template(report, spec, "DaemonSet");
    report.not_negative(spec, "minReadySeconds");
    let strategy = &spec["updateStrategy"];
    report.at("updateStrategy", |r| match text(strategy, "type") {
        "OnDelete" => {}
        "RollingUpdate" if strategy["rollingUpdate"].is_null() => r.miss("rollingUpdate", ""),
        "RollingUpdate" => r.at("rollingUpdate", |r| {
            let rolling = &strategy["rollingUpdate"];
            let (unavailable, surge) = (&rolling["maxUnavailable"], &rolling["maxSurge"]);
            for check in [count_or_percent, at_most_all] {
                r.at("maxUnavailable", |r| check(r, unavailable));
                r.at("maxSurge", |r| check(r, surge));
            }
            match (amount(unavailable) != 0, amount(surge) != 0) {
                (true, true) => r.bad("maxSurge", surge, "may not be set when maxUnavailable is non-zero"),
                (false, false) => r.miss("maxUnavailable", "cannot be 0 when maxSurge is 0"),
                _ => {}
            }
        }),
        _ => unknown_strategy(r, strategy, &["RollingUpdate", "OnDelete"]),
    });
    report.not_negative(spec, "revisionHistoryLimit");
}

pub fn stateful_set(report: &mut Report, spec: &Value) {
    match text(spec, "podManagementPolicy") {
        "" => report.miss("podManagementPolicy", ""),
        "OrderedReady" | "Parallel" => {}
        other => report.bad("podManagementPolicy", other, "must be 'OrderedReady' or 'Parallel'"),
    }
    let strategy = &spec["updateStrategy"];
    let rolling = &strategy["rollingUpdate"];
    report.at("updateStrategy", |r| match text(strategy, "type") {
        "" => r.required(""),
        "OnDelete" => {
            if !rolling.is_null() {
                let shown = go_struct(&[
                    ("Partition", &json!(amount(&rolling["partition"]))),
                    ("MaxUnavailable", &rolling["maxUnavailable"]),
                ]);
                r.bad("rollingUpdate", shown, "only allowed for updateStrategy 'RollingUpdate'");
            }
        }
        "RollingUpdate" => r.with(strategy, "rollingUpdate", |r, rolling| {
            r.not_negative(rolling, "partition");
            r.with(rolling, "maxUnavailable", |r, unavailable| {
                count_or_percent(r, unavailable);
                if amount(unavailable) == 0 {
                    r.invalid(unavailable, "cannot be 0");
                }
                at_most_all(r, unavailable);
            });
        }),
        _ => r.invalid(go_strategy(strategy), "must be 'RollingUpdate' or 'OnDelete'"),
    });
    report.with(spec, "persistentVolumeClaimRetentionPolicy", |r, policy| {
        for name in ["whenDeleted", "whenScaled"] {
            let said = text(policy, name);
            if !["Retain", "Delete"].contains(&said) {
                r.at(name, |r| r.not_supported(said, &["Retain", "Delete"]));
            }
        }
    });
    report.not_negative(spec, "replicas");
    report.not_negative(spec, "minReadySeconds");
    report.with(spec, "ordinals", |r, ordinals| r.not_negative(ordinals, "start"));
    let mut sound = true;
    report.at("selector", |r| sound = selector::required(r, &spec["selector"], "statefulset"));
    if sound {
        matching(report, spec);
        report.at("template", |r| pod::template(r, &with_claims(spec)));
    } else {
        report.bad("selector", selector::shown(&spec["selector"]), "");
    }
    endless(report, spec, "StatefulSet");
    report.named(spec, "serviceName", names::dns_label);
}

/// The template as its pods will be: every claim template is a volume of its name.
fn with_claims(spec: &Value) -> Value {
    let mut template = spec["template"].clone();
    let claims = list(spec, "volumeClaimTemplates").iter().map(|claim| text(&claim["metadata"], "name"));
    let claims: Vec<&str> = claims.collect();
    let mut volumes: Vec<Value> = list(&spec["template"]["spec"], "volumes")
        .iter()
        .filter(|v| !claims.contains(&text(v, "name")))
        .cloned()
        .collect();
    volumes.extend(claims.iter().map(|name| json!({"name": name, "persistentVolumeClaim": {"claimName": name}})));
    if !volumes.is_empty() {
        template["spec"]["volumes"] = Value::Array(volumes);
    }
    template
}

/// Of a stateful set only a few fields may change.
pub fn stateful_set_update(report: &mut Report, new: &Value, old: &Value) {
    const FREE: [&str; 7] = [
        "replicas",
        "ordinals",
        "template",
        "updateStrategy",
        "revisionHistoryLimit",
        "persistentVolumeClaimRetentionPolicy",
        "minReadySeconds",
    ];
    let fixed = |spec: &Value| -> Vec<(Name, Value)> {
        let fields = spec.as_object().into_iter().flatten();
        let fixed = fields.filter(|(key, value)| !FREE.contains(&key.as_str()) && !same(value, &Value::Null));
        fixed.map(|(key, value)| (key.clone(), value.clone())).collect()
    };
    if fixed(&new["spec"]) != fixed(&old["spec"]) {
        let why = "updates to statefulset spec for fields other than 'replicas', 'ordinals', 'template', \
                   'updateStrategy', 'revisionHistoryLimit', 'persistentVolumeClaimRetentionPolicy' and \
                   'minReadySeconds' are forbidden";
        report.refuse("spec", why);
    }
}

/// The selector of a workload is for ever.
pub fn selector_fixed(report: &mut Report, new: &Value, old: &Value) {
    let (now, before) = (&new["spec"]["selector"], &old["spec"]["selector"]);
    if now != before {
        report.at("spec", |r| r.bad("selector", selector::shown(now), crate::field_error::IMMUTABLE));
    }
}

pub fn replication_controller(report: &mut Report, spec: &Value) {
    report.not_negative(spec, "minReadySeconds");
    let chosen = &spec["selector"];
    if same(chosen, &Value::Null) {
        report.miss("selector", "");
    }
    report.not_negative(spec, "replicas");
    if spec["template"].is_null() {
        return report.miss("template", "");
    }
    let labels = &spec["template"]["metadata"]["labels"];
    if chosen.as_object().into_iter().flatten().any(|(key, value)| labels[key] != *value) {
        report.down(&["template", "metadata", "labels"], |r| r.invalid(labels, MISMATCH));
    }
    template(report, spec, "ReplicationController");
}

pub fn revision(report: &mut Report, object: &Value) {
    if object["data"].is_null() {
        report.miss("data", "data is mandatory");
    }
    report.not_negative(object, "revision");
}

/// Counts in a workload's status fit together.
pub fn status(report: &mut Report, plural: &str, new: &Value, old: &Value) {
    let (counted, bounded): (&[&str], &[&str]) = match plural {
        "deployments" => (
            &[
                "observedGeneration",
                "replicas",
                "updatedReplicas",
                "readyReplicas",
                "availableReplicas",
                "unavailableReplicas",
                "terminatingReplicas",
                "collisionCount",
            ],
            &["updatedReplicas", "readyReplicas", "availableReplicas"],
        ),
        "statefulsets" => (
            &[
                "replicas",
                "readyReplicas",
                "currentReplicas",
                "updatedReplicas",
                "availableReplicas",
                "observedGeneration",
                "collisionCount",
            ],
            &["readyReplicas", "currentReplicas", "updatedReplicas", "availableReplicas"],
        ),
        "daemonsets" => (
            &[
                "currentNumberScheduled",
                "numberMisscheduled",
                "desiredNumberScheduled",
                "numberReady",
                "observedGeneration",
                "updatedNumberScheduled",
                "numberAvailable",
                "numberUnavailable",
                "collisionCount",
            ],
            &[],
        ),
        "replicasets" | "replicationcontrollers" => (
            &[
                "replicas",
                "fullyLabeledReplicas",
                "readyReplicas",
                "availableReplicas",
                "observedGeneration",
                "terminatingReplicas",
            ],
            &["fullyLabeledReplicas", "readyReplicas", "availableReplicas"],
        ),
        _ => return,
    };
    let status = &new["status"];
    let number = |name: &str| status[name].as_i64().unwrap_or(0);
    report.at("status", |r| {
        counted.iter().for_each(|name| r.not_negative(status, name));
        for name in bounded.iter().filter(|name| number(name) > number("replicas")) {
            r.bad(name, number(name), "cannot be greater than status.replicas");
        }
        if bounded.contains(&"availableReplicas") && number("availableReplicas") > number("readyReplicas") {
            let than = if plural == "statefulsets" { "status.readyReplicas" } else { "readyReplicas" };
            r.bad("availableReplicas", number("availableReplicas"), format_args!("cannot be greater than {than}"));
        }
        if counted.contains(&"collisionCount")
            && old["status"]["collisionCount"].as_i64().is_some_and(|before| number("collisionCount") < before)
        {
            r.bad("collisionCount", number("collisionCount"), "cannot be decremented");
        }
    });
}

/// Names of the containers that run or prepare a template's pods.
pub fn container_names(template: &Value) -> Vec<&str> {
    let mut all = names_of(&template["spec"], "containers");
    all.extend(names_of(&template["spec"], "initContainers"));
    all
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn pods_that_are_going_away_are_not_fewer_than_none() {
        for (plural, last) in [("deployments", "unavailableReplicas"), ("replicasets", "observedGeneration")] {
            let new = json!({"status": {"terminatingReplicas": -1, last: -1}});
            let told = Report::told(|r| status(r, plural, &new, &json!({})));
            let negative = |name: &str| format!("status.{name}: Invalid value: -1: must be greater than or equal to 0");
            assert_eq!(told, [negative(last), negative("terminatingReplicas")]);
        }
    }
}
