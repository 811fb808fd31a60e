//! Jobs and cron jobs.

use std::collections::HashSet;

use serde_json::{Value, json};

use super::shapes::FAILURE_POLICY;
use super::workload::container_names;
use super::{cron, has, list, pod, selector, text};
use crate::field_error::{Report, same};
use crate::go_value::{Field, Shape, shown};
use crate::names;
use crate::status::quote;

const MOST_INDEXED: i64 = 100_000;
const MANY_COMPLETIONS: i64 = 100_000;
const MOST_FOR_MANY: i64 = 10_000;

/// A job: its generated selector, its spec, and the names of its pods.
pub fn job(report: &mut Report, object: &Value) {
    generated_selector(report, object);
    let spec = &object["spec"];
    report.at("spec", |r| whole_spec(r, spec));
    let completions = spec["completions"].as_i64().unwrap_or(0);
    if text(spec, "completionMode") == "Indexed" && completions > 0 {
        let name = text(&object["metadata"], "name");
        let last = format!("{name}-{}", completions - 1);
        if !names::dns_label(&last).is_empty() {
            let why = format!("will not able to create pod with invalid DNS label: {last}");
            report.at("metadata", |r| r.bad("name", name, why));
        }
    }
}

/// The spec of a job of its own, with the selector of its pods.
pub fn whole_spec(report: &mut Report, spec: &Value) {
    job_spec(report, spec);
    let chosen = &spec["selector"];
    let sound = report.sound(|r| {
        if chosen.is_null() {
            r.miss("selector", "");
        } else {
            r.at("selector", |r| selector::check(r, chosen));
        }
    });
    let labels = &spec["template"]["metadata"]["labels"];
    if (sound || chosen.is_null()) && !selector::matches(chosen, labels) {
        let why = "`selector` does not match template `labels`";
        report.down(&["template", "metadata", "labels"], |r| r.invalid(labels, why));
    }
}

/// Labels that the server gave the job's pods, and the selector made of them.
fn generated_selector(report: &mut Report, object: &Value) {
    let (metadata, spec) = (&object["metadata"], &object["spec"]);
    if spec["manualSelector"] == true || spec["selector"].is_null() {
        return;
    }
    let (uid, name) = (text(metadata, "uid"), text(metadata, "name"));
    if uid.is_empty() {
        report.at("metadata", |r| r.miss("uid", ""));
    }
    let labels = &spec["template"]["metadata"]["labels"];
    let expected = [
        ("controller-uid", uid),
        ("job-name", name),
        ("batch.kubernetes.io/controller-uid", uid),
        ("batch.kubernetes.io/job-name", name),
    ];
    report.down(&["spec", "template", "metadata", "labels"], |r| {
        for (key, value) in expected {
            let why = format!("must be '{value}'");
            match labels[key].as_str() {
                None => r.key(key, |r| r.required(&why)),
                Some(said) if said != value => r.key(key, |r| r.invalid(labels, why)),
                Some(_) => {}
            }
        }
    });
    let expected: Value = expected.iter().map(|(key, value)| ((*key).to_owned(), json!(value))).collect();
    if !selector::matches(&spec["selector"], &expected) {
        let shown = selector::shown(&spec["selector"]);
        report.at("spec", |r| r.bad("selector", shown, "`selector` not auto-generated"));
    }
}

fn job_spec(report: &mut Report, spec: &Value) {
    for name in [
        "parallelism",
        "completions",
        "activeDeadlineSeconds",
        "backoffLimit",
        "ttlSecondsAfterFinished",
        "backoffLimitPerIndex",
        "maxFailedIndexes",
    ] {
        report.not_negative(spec, name);
    }
    let number = |name: &str| spec[name].as_i64();
    if has(spec, "maxFailedIndexes") && !has(spec, "backoffLimitPerIndex") {
        report.miss("backoffLimitPerIndex", "when maxFailedIndexes is specified");
    }
    report.with(spec, "managedBy", |r, manager| {
        let manager = manager.as_str().unwrap_or_default();
        r.complaints(manager, names::domain_prefixed_path(manager));
        if manager.len() > 63 {
            r.too_long(63);
        }
    });
    report.maybe_choice(spec, "completionMode", &["NonIndexed", "Indexed"]);
    match text(spec, "completionMode") {
        "Indexed" => indexed(report, spec),
        "" | "NonIndexed" => {
            for name in ["backoffLimitPerIndex", "maxFailedIndexes"] {
                if let Some(value) = number(name) {
                    report.bad(name, value, "requires indexed completion mode");
                }
            }
        }
        _ => {}
    }
    report.with(spec, "podFailurePolicy", |r, policy| failure_policy(r, policy, spec));
    report.with(spec, "successPolicy", |r, policy| {
        if text(spec, "completionMode") == "Indexed" {
            success_policy(r, policy, number("completions").unwrap_or(0));
        } else {
            r.invalid(shown(policy, &SUCCESS), "requires indexed completion mode");
        }
    });
    let replacements: &[&str] =
        if has(spec, "podFailurePolicy") { &["Failed"] } else { &["Failed", "TerminatingOrFailed"] };
    report.maybe_choice(spec, "podReplacementPolicy", replacements);
    report.at("template", |r| pod::template(r, &spec["template"]));
    report.down(&["template", "spec", "restartPolicy"], |r| match text(&spec["template"]["spec"], "restartPolicy") {
        "" | "Always" => r.required("valid values: \"OnFailure\", \"Never\""),
        "Never" => {}
        "OnFailure" if !has(spec, "podFailurePolicy") => {}
        said @ "OnFailure" => r.invalid(said, "only \"Never\" is supported when podFailurePolicy is specified"),
        other => r.not_supported(other, &["OnFailure", "Never"]),
    });
}

fn indexed(report: &mut Report, spec: &Value) {
    let number = |name: &str| spec[name].as_i64();
    let (completions, failed) = (number("completions"), number("maxFailedIndexes"));
    if completions.is_none() {
        report.miss("completions", "when completion mode is Indexed");
    }
    if let Some(parallel) = number("parallelism").filter(|p| *p > MOST_INDEXED) {
        let why = format!("must be less than or equal to {MOST_INDEXED} when completion mode is Indexed");
        report.bad("parallelism", parallel, why);
    }
    if let (Some(completions), Some(failed)) = (completions, failed)
        && failed > completions
    {
        report.bad("maxFailedIndexes", failed, "must be less than or equal to completions");
    }
    if let Some(failed) = failed.filter(|f| *f > MOST_INDEXED) {
        report.bad("maxFailedIndexes", failed, format_args!("must be less than or equal to {MOST_INDEXED}"));
    }
    if completions.is_none_or(|c| c <= MANY_COMPLETIONS) || !has(spec, "backoffLimitPerIndex") {
        return;
    }
    if failed.is_none() {
        let why = format!("must be specified when completions is above {MANY_COMPLETIONS}");
        report.miss("maxFailedIndexes", &why);
    }
    for name in ["parallelism", "maxFailedIndexes"] {
        if let Some(value) = number(name).filter(|n| *n > MOST_FOR_MANY) {
            let why = format!(
                "must be less than or equal to {MOST_FOR_MANY} when completions are above {MANY_COMPLETIONS} and used \
                 with backoff limit per index"
            );
            report.bad(name, value, why);
        }
    }
}

fn failure_policy(report: &mut Report, policy: &Value, spec: &Value) {
    let rules = list(policy, "rules");
    if rules.len() > 20 {
        report.at("rules", |r| r.too_many(rules.len(), 20));
    }
    let containers = container_names(&spec["template"]);
    report.each(policy, "rules", |r, rule| {
        const ACTIONS: [&str; 4] = ["Count", "FailIndex", "FailJob", "Ignore"];
        match text(rule, "action") {
            "" => r.miss("action", "valid values: [\"Count\" \"FailIndex\" \"FailJob\" \"Ignore\"]"),
            "FailIndex" if !has(spec, "backoffLimitPerIndex") => {
                r.bad("action", "FailIndex", "requires the backoffLimitPerIndex to be set");
            }
            _ => r.maybe_choice(rule, "action", &ACTIONS),
        }
        r.with(rule, "onExitCodes", |r, codes| exit_codes(r, codes, &containers));
        let conditions = list(rule, "onPodConditions");
        if conditions.len() > 20 {
            r.at("onPodConditions", |r| r.too_many(conditions.len(), 20));
        }
        r.each(rule, "onPodConditions", |r, condition| {
            let kind = text(condition, "type");
            r.at("type", |r| r.complaints(kind, names::qualified_name(kind)));
            match text(condition, "status") {
                "" => r.miss("status", "valid values: [\"False\" \"True\" \"Unknown\"]"),
                _ => r.maybe_choice(condition, "status", &["False", "True", "Unknown"]),
            }
        });
        match (has(rule, "onExitCodes"), !conditions.is_empty()) {
            (true, true) => r.wrong("specifying both OnExitCodes and OnPodConditions is not supported"),
            (false, false) => r.wrong("specifying one of OnExitCodes and OnPodConditions is required"),
            _ => {}
        }
    });
}

fn exit_codes(report: &mut Report, codes: &Value, containers: &[&str]) {
    match text(codes, "operator") {
        "" => report.miss("operator", "valid values: [\"In\" \"NotIn\"]"),
        _ => report.maybe_choice(codes, "operator", &["In", "NotIn"]),
    }
    if let Some(name) = codes["containerName"].as_str().filter(|n| !containers.contains(n)) {
        let why = "must be one of the container or initContainer names in the pod template";
        report.bad("containerName", name, why);
    }
    let values = list(codes, "values");
    if values.is_empty() {
        report.bad("values", &codes["values"], "at least one value is required");
    } else if values.len() > 255 {
        report.at("values", |r| r.too_many(values.len(), 255));
    }
    let mut seen = HashSet::new();
    report.items(codes, "values", |r, _, value| {
        if text(codes, "operator") == "In" && *value == 0 {
            r.invalid(value, "must not be 0 for the In operator");
        }
        if !seen.insert(value) {
            r.duplicate(value);
        }
    });
    if values.windows(2).any(|pair| pair[0].as_i64() > pair[1].as_i64()) {
        report.bad("values", &codes["values"], "must be ordered");
    }
}

const SUCCESS_RULE: Shape = Shape::Struct(&[
    Field("SucceededIndexes", "succeededIndexes", Shape::Pointer(&Shape::Text)),
    Field("SucceededCount", "succeededCount", Shape::Pointer(&Shape::Number)),
]);
const SUCCESS: Shape = Shape::Struct(&[Field("Rules", "rules", Shape::List(&SUCCESS_RULE))]);

fn success_policy(report: &mut Report, policy: &Value, completions: i64) {
    let rules = list(policy, "rules");
    if rules.is_empty() {
        report.miss("rules", "at least one rules must be specified when the successPolicy is specified");
    }
    if rules.len() > 20 {
        report.at("rules", |r| r.too_many(rules.len(), 20));
    }
    report.each(policy, "rules", |r, rule| {
        let (count, indexes) = (rule["succeededCount"].as_i64(), rule["succeededIndexes"].as_str());
        if count.is_none() && indexes.is_none() {
            r.required("at least one of succeededCount or succeededIndexes must be specified");
        }
        let mut total = 0;
        if let Some(text) = indexes {
            if text.len() > 64 << 10 {
                r.at("succeededIndexes", |r| r.too_long(64 << 10));
            }
            match index_count(text, completions) {
                Ok(found) => total = found,
                Err(why) => r.bad("succeededIndexes", text, format_args!("error parsing succeededIndexes: {why}")),
            }
        }
        r.not_negative(rule, "succeededCount");
        let Some(count) = count else { return };
        if count > completions {
            let why = format!("must be less than or equal to {completions} (the number of specified completions)");
            r.bad("succeededCount", count, why);
        }
        if indexes.is_some() && count > total {
            let why = format!(
                "must be less than or equal to {total} (the number of indexes in the specified succeededIndexes field)"
            );
            r.bad("succeededCount", count, why);
        }
    });
}

/// The first and the last index of `3-5` or `3`.
fn interval(text: &str, completions: i64) -> Result<(i64, i64), String> {
    let index = |part: &str| {
        let number: i64 =
            part.parse().map_err(|_| format!("cannot convert string to integer for index: {}", quote(part)))?;
        if number >= completions { Err(format!("too large index: {}", quote(part))) } else { Ok(number) }
    };
    let parts: Vec<&str> = text.split('-').collect();
    if parts.len() > 2 {
        return Err(format!(
            "the fragment {} violates the requirement that an index interval can have at most two parts separated by \
             '-'",
            quote(text)
        ));
    }
    let first = index(parts[0])?;
    let end = parts.get(1).map_or(Ok(first), |part| index(part))?;
    if parts.len() == 2 && first >= end {
        return Err(format!("non-increasing order, previous: {first}, current: {end}"));
    }
    Ok((first, end))
}

/// How many indexes a text such as `1,3-5` names.
fn index_count(text: &str, completions: i64) -> Result<i64, String> {
    let (mut last, mut total) = (None, 0);
    for part in text.split(',').filter(|_| !text.is_empty()) {
        let (first, end) = interval(part, completions)?;
        if let Some(last) = last.filter(|last| *last >= first) {
            return Err(format!("non-increasing order, previous: {last}, current: {first}"));
        }
        total += end - first + 1;
        last = Some(end);
    }
    Ok(total)
}

/// Whether no pod of a job was made, or is left, from its template as it is: it is suspended, and either never began or
/// has come to rest.
fn is_at_rest(job: &Value) -> bool {
    let status = &job["status"];
    let suspended = || list(status, "conditions").iter().any(|c| c["type"] == "Suspended" && c["status"] == "True");
    job["spec"]["suspend"] == true
        && status["active"].as_i64().unwrap_or(0) == 0
        && (status["startTime"].is_null() || suspended())
}

/// What may change of a job's spec; at `spec`.
pub fn update(report: &mut Report, new: &Value, old: &Value) {
    let at_rest = is_at_rest(old);
    let (new, old) = (&new["spec"], &old["spec"]);
    let indexed = text(new, "completionMode") == "Indexed";
    if !indexed {
        report.immutable(new, old, "completions");
    } else if new["completions"] != old["completions"]
        && has(new, "completions")
        && new["completions"] != new["parallelism"]
    {
        let why = "can only be modified in tandem with spec.parallelism";
        report.bad("completions", &new["completions"], why);
    }
    if new["selector"] != old["selector"] {
        report.bad("selector", selector::shown(&new["selector"]), crate::field_error::IMMUTABLE);
    }
    let mut template = old["template"].clone();
    // Where the pods run and what they use may change then.
    if at_rest {
        let now = &new["template"]["spec"];
        for name in ["nodeSelector", "tolerations", "schedulingGates"] {
            copy(&mut template["spec"], now, name);
        }
        node_affinity(&mut template["spec"], now);
        for name in ["annotations", "labels"] {
            copy(&mut template["metadata"], &new["template"]["metadata"], name);
        }
        for name in ["containers", "initContainers"] {
            let was = template["spec"].get_mut(name).and_then(Value::as_array_mut);
            for (container, now) in was.into_iter().flatten().zip(list(now, name)) {
                copy(container, now, "resources");
            }
        }
    }
    if !same(&template, &new["template"]) {
        let shown = crate::go_schema::shown("k8s.io.api.core.v1.PodTemplateSpec", &new["template"]);
        report.bad("template", shown, crate::field_error::IMMUTABLE);
    }
    report.immutable(new, old, "completionMode");
    report.immutable_as(new, old, "podFailurePolicy", &FAILURE_POLICY);
    report.immutable(new, old, "backoffLimitPerIndex");
    report.immutable(new, old, "managedBy");
    report.immutable_as(new, old, "successPolicy", &Shape::Pointer(&SUCCESS));
}

/// Takes over what is said of nodes, and nothing else of an affinity.
fn node_affinity(to: &mut Value, from: &Value) {
    let now = &from["affinity"];
    let was = to.get("affinity").filter(|affinity| affinity.is_object()).cloned();
    let mut affinity = was.unwrap_or_else(|| json!({}));
    copy(&mut affinity, now, "nodeAffinity");
    let says_nothing = now.is_null() && same(&affinity, &Value::Null);
    copy(to, &if says_nothing { json!({}) } else { json!({"affinity": affinity}) }, "affinity");
}

fn copy(to: &mut Value, from: &Value, name: &str) {
    match from.get(name) {
        Some(value) => to[name] = value.clone(),
        None => drop(to.as_object_mut().and_then(|map| map.remove(name))),
    }
}

/// A job's status: counts, and conditions that agree with them.
pub fn status(report: &mut Report, new: &Value, old: &Value) {
    let (status, was) = (&new["status"], &old["status"]);
    let is = |status: &Value, kind: &str| {
        list(status, "conditions").iter().any(|c| text(c, "type") == kind && text(c, "status") == "True")
    };
    let (complete, failed) = (is(status, "Complete"), is(status, "Failed"));
    let (target, success) = (is(status, "FailureTarget"), is(status, "SuccessCriteriaMet"));
    report.at("status", |r| {
        for name in ["active", "succeeded", "failed", "ready", "terminating"] {
            r.not_negative(status, name);
        }
        let uncounted = &status["uncountedTerminatedPods"];
        r.at("uncountedTerminatedPods", |r| uncounted_pods(r, uncounted));
        let both = |r: &mut Report, wrong: bool, why: &str| {
            if wrong {
                r.at("conditions", |r| r.wrong(why));
            }
        };
        both(r, complete && failed, "cannot set Complete=True and Failed=true conditions");
        both(r, complete && target, "cannot set Complete=True and FailureTarget=true conditions");
        let ended = &status["completionTime"];
        if !ended.is_null() && !complete {
            r.bad("completionTime", ended, "cannot set completionTime when there is no Complete=True condition");
        }
        if ended.is_null() && complete {
            r.miss("completionTime", "completionTime is required for Complete jobs");
        }
        if text(status, "completionTime") < text(status, "startTime") && !ended.is_null() {
            r.bad("completionTime", ended, "must be equal to or after `startTime`");
        }
        both(r, failed && !target, "cannot set Failed=True condition without the FailureTarget=true condition");
        both(
            r,
            complete && !success,
            "cannot set Complete=True condition without the SuccessCriteriaMet=true condition",
        );
        let finished = complete || failed;
        let count = |name: &str| status[name].as_i64().unwrap_or(0);
        if finished && count("active") > 0 {
            r.bad("active", count("active"), "active>0 is invalid for finished job");
        }
        if finished && status["startTime"].is_null() {
            r.miss("startTime", "startTime is required for finished job");
        }
        if finished && !(list(uncounted, "failed").is_empty() && list(uncounted, "succeeded").is_empty()) {
            let why = "must be empty for finished job";
            r.bad("uncountedTerminatedPods", shown(uncounted, &UNCOUNTED), why);
        }
        finished_indexes(r, new, was);
        if finished && count("terminating") > 0 {
            r.bad("terminating", count("terminating"), "terminating>0 is invalid for finished job");
        }
        if has(status, "ready") && count("ready") > count("active") {
            r.bad("ready", count("ready"), "cannot set more ready pods than active");
        }
        both(r, success && failed, "cannot set SuccessCriteriaMet=True and Failed=true conditions");
        both(r, success && target, "cannot set SuccessCriteriaMet=True and FailureTarget=true conditions");
        for kind in ["Failed", "Complete", "FailureTarget"] {
            let why = format!("cannot disable the terminal {kind}=True condition");
            both(r, is(was, kind) && !is(status, kind), &why);
        }
        // Indexes that count no more when a job is made smaller are taken off.
        let shrinks = text(&new["spec"], "completionMode") == "Indexed"
            && new["spec"]["completions"] == new["spec"]["parallelism"];
        for name in ["failed", "succeeded"] {
            if count(name) < was[name].as_i64().unwrap_or(0) && (name == "failed" || !shrinks) {
                r.bad(name, count(name), format_args!("cannot decrease the {name} counter"));
            }
        }
        if !ended.is_null() && !was["completionTime"].is_null() && *ended != was["completionTime"] {
            r.bad("completionTime", ended, crate::field_error::IMMUTABLE);
        }
        if !was["startTime"].is_null() && was["startTime"] != status["startTime"] && new["spec"]["suspend"] != true {
            r.miss("startTime", "startTime cannot be removed for unsuspended job");
        }
        both(r, is(was, "SuccessCriteriaMet") && !success, "cannot disable the SuccessCriteriaMet=True condition");
    });
}

const UNCOUNTED: Shape = Shape::Struct(&[
    Field("Succeeded", "succeeded", Shape::List(&Shape::Text)),
    Field("Failed", "failed", Shape::List(&Shape::Text)),
]);

/// Pods that ended, each named once.
fn uncounted_pods(report: &mut Report, pods: &Value) {
    let mut seen = HashSet::new();
    for name in ["succeeded", "failed"] {
        report.each(pods, name, |r, pod| match pod.as_str().unwrap_or_default() {
            "" => r.invalid("", "must not be empty"),
            pod if !seen.insert(pod) => r.duplicate(pod),
            _ => {}
        });
    }
}

/// The indexes that are done with, where they change; at `status`.
fn finished_indexes(report: &mut Report, job: &Value, was: &Value) {
    let (spec, status) = (&job["spec"], &job["status"]);
    let (completed, failed) = (text(status, "completedIndexes"), status["failedIndexes"].as_str());
    let completed_changed = completed != text(was, "completedIndexes");
    let failed_changed = failed != was["failedIndexes"].as_str();
    let completions = spec["completions"].as_i64();
    let per_index = has(spec, "backoffLimitPerIndex");
    if let Some(Err(why)) = completions.filter(|_| completed_changed).map(|most| index_count(completed, most)) {
        report.bad("completedIndexes", completed, format_args!("error parsing completedIndexes: {why}"));
    }
    let parsed = failed.zip(completions).filter(|_| failed_changed && per_index);
    if let Some((failed, Err(why))) = parsed.map(|(failed, most)| (failed, index_count(failed, most))) {
        report.bad("failedIndexes", failed, format_args!("error parsing failedIndexes: {why}"));
    }
    if completed_changed && !completed.is_empty() && text(spec, "completionMode") != "Indexed" {
        let why = "cannot set non-empty completedIndexes when non-indexed completion mode";
        report.bad("completedIndexes", completed, why);
    }
    let Some(failed) = failed else { return };
    if failed_changed && !per_index {
        report.bad("failedIndexes", failed, "cannot set non-null failedIndexes when backoffLimitPerIndex is null");
    }
    let both = completions.filter(|_| completed_changed || failed_changed);
    if let Some(index) = both.and_then(|most| first_in_both(completed, failed, most)) {
        let why = format!("failedIndexes and completedIndexes overlap at index: {index}");
        report.bad("failedIndexes", failed, why);
    }
}

/// The first index that is in two lists. What cannot be read is in none.
fn first_in_both(one: &str, other: &str, completions: i64) -> Option<i64> {
    let intervals = |text: &str| -> Vec<(i64, i64)> {
        text.split(',').filter(|_| !text.is_empty()).filter_map(|part| interval(part, completions).ok()).collect()
    };
    let (one, other) = (intervals(one), intervals(other));
    let (mut one, mut other) = (one.iter().peekable(), other.iter().peekable());
    while let (Some(a), Some(b)) = (one.peek(), other.peek()) {
        if a.0 <= b.1 && b.0 <= a.1 {
            return Some(a.0.max(b.0));
        }
        if a.0 <= b.0 {
            one.next()
        } else {
            other.next()
        };
    }
    None
}

/// A cron job's name leaves room for what its jobs add.
pub fn cron_job_name(report: &mut Report, object: &Value) {
    let name = text(&object["metadata"], "name");
    if name.len() > 52 {
        report.at("metadata", |r| r.bad("name", name, "must be no more than 52 characters"));
    }
}

pub fn cron_job(report: &mut Report, spec: &Value) {
    if report.need(spec, "schedule") {
        let schedule = text(spec, "schedule");
        report.at("schedule", |r| {
            if let Err(why) = cron::check(schedule) {
                r.invalid(schedule, why);
            }
            if schedule.contains("TZ") {
                r.invalid(schedule, "cannot use TZ or CRON_TZ in schedule, use timeZone field instead");
            }
        });
    }
    report.not_negative(spec, "startingDeadlineSeconds");
    report.with(spec, "timeZone", |r, zone| {
        let zone = zone.as_str().unwrap_or_default();
        if zone.is_empty() {
            return r.invalid(zone, "timeZone must be nil or non-empty string");
        }
        if zone.eq_ignore_ascii_case("local") {
            let why = "timeZone must be an explicit time zone as defined in https://www.iana.org/time-zones";
            r.invalid(zone, why);
        }
        // Spelled so, it is a zone to whoever looks it up, though not one to name.
        if zone != "Local" && !cron::is_zone(zone) {
            r.invalid(zone, crate::zone::refusal(zone));
        }
    });
    report.choice(spec, "concurrencyPolicy", &["Allow", "Forbid", "Replace"]);
    let job = &spec["jobTemplate"]["spec"];
    report.down(&["jobTemplate", "spec"], |r| {
        job_spec(r, job);
        if has(job, "selector") {
            r.bad("selector", selector::shown(&job["selector"]), "`selector` will be auto-generated");
        }
        if job["manualSelector"] == true {
            r.at("manualSelector", |r| r.unsupported("true", "\"nil\", \"false\""));
        }
    });
    report.not_negative(spec, "successfulJobsHistoryLimit");
    report.not_negative(spec, "failedJobsHistoryLimit");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn index_lists_rise_and_stay_below_the_completions() {
        assert_eq!(index_count("", 5), Ok(0));
        assert_eq!(index_count("0,2-4", 5), Ok(4));
        assert_eq!(index_count("2,1", 5).unwrap_err(), "non-increasing order, previous: 2, current: 1");
        assert_eq!(index_count("5", 5).unwrap_err(), "too large index: \"5\"");
    }

    /// What a suspended job may change: where its pods run and what they use, once none of them is left.
    #[test]
    fn a_suspended_job_changes_where_its_pods_run_and_nothing_else() {
        let job = |status: Value| {
            let pod = json!({"containers": [{"name": "c", "image": "i"}], "affinity": {"podAffinity": {"a": 1}}});
            json!({"spec": {"suspend": true, "template": {"metadata": {"labels": {"a": "b"}}, "spec": pod}},
                "status": status})
        };
        let refused = |status: &Value, change: &dyn Fn(&mut Value)| {
            let (old, mut new) = (job(status.clone()), job(status.clone()));
            change(&mut new["spec"]["template"]);
            let told = Report::told(|r| r.at("spec", |r| update(r, &new, &old)));
            assert!(told.iter().all(|t| t.starts_with("spec.template: Invalid value: ")), "{told:?}");
            !told.is_empty()
        };
        let allowed: [&dyn Fn(&mut Value); 4] = [
            &|template| template["spec"]["nodeSelector"] = json!({"a": "b"}),
            &|template| template["metadata"]["labels"]["c"] = "d".into(),
            &|template| template["spec"]["affinity"]["nodeAffinity"] = json!({"a": 1}),
            &|template| template["spec"]["containers"][0]["resources"] = json!({"requests": {"cpu": "1"}}),
        ];
        let suspended = json!([{"type": "Suspended", "status": "True"}]);
        let resumed = json!([{"type": "Suspended", "status": "False"}]);
        for (status, at_rest) in [
            (json!({}), true),
            (json!({"active": 1}), false),
            (json!({"startTime": "t"}), false),
            (json!({"startTime": "t", "conditions": resumed}), false),
            (json!({"startTime": "t", "conditions": suspended}), true),
            (json!({"startTime": "t", "conditions": suspended, "active": 1}), false),
        ] {
            for change in allowed {
                assert_eq!(refused(&status, change), !at_rest, "{status}");
            }
        }
        let never: [&dyn Fn(&mut Value); 5] = [
            &|template| template["spec"]["initContainers"] = json!([{"name": "i", "image": "i"}]),
            &|template| template["spec"]["containers"][0]["image"] = "other".into(),
            &|template| template["spec"]["affinity"]["podAffinity"]["a"] = 2.into(),
            &|template| drop(template["spec"].as_object_mut().and_then(|spec| spec.remove("affinity"))),
            &|template| template["spec"]["priority"] = 5.into(),
        ];
        for change in never {
            assert!(refused(&json!({}), change));
        }
    }

    #[test]
    fn what_is_said_of_nodes_comes_and_goes_with_an_affinity() {
        let settled = |was: Value, now: Value| {
            let mut spec = was;
            node_affinity(&mut spec, &now);
            same(&spec, &now)
        };
        let of_nodes = json!({"affinity": {"nodeAffinity": {"a": 1}}});
        let of_both = json!({"affinity": {"nodeAffinity": {"a": 1}, "podAffinity": {"a": 1}}});
        let of_pods = json!({"affinity": {"podAffinity": {"a": 1}}});
        assert!(settled(json!({}), of_nodes.clone()) && settled(of_nodes.clone(), json!({})));
        assert!(settled(of_pods.clone(), of_both.clone()) && settled(of_both.clone(), of_pods.clone()));
        assert!(!settled(of_pods.clone(), json!({})) && !settled(of_both, json!({})));
        assert!(!settled(json!({}), of_pods.clone()) && !settled(of_nodes, of_pods));
    }

    #[test]
    fn a_zone_is_told_of_once_where_it_can_be_looked_up() {
        let told = |zone: &str| {
            let spec = json!({"schedule": "* * * * *", "timeZone": zone});
            let found = Report::told(|r| cron_job(r, &spec)).into_iter();
            found.filter(|told| told.contains("timeZone")).count()
        };
        assert_eq!((told("Local"), told("local"), told("Nowhere/At-All"), told("Etc/UTC")), (1, 2, 1, 0));
    }

    #[test]
    fn indexes_and_pods_that_ended_are_told_once() {
        let told = |spec: Value, now: Value, was: Value| {
            Report::told(|r| status(r, &json!({"spec": spec, "status": now}), &json!({"status": was})))
        };
        let indexed = json!({"completions": 5, "completionMode": "Indexed", "backoffLimitPerIndex": 1});
        let now = json!({"completedIndexes": "0-2,9", "failedIndexes": "2-3"});
        assert_eq!(
            told(indexed.clone(), now.clone(), json!({})),
            [
                "status.completedIndexes: Invalid value: \"0-2,9\": error parsing completedIndexes: too large index: \"9\"",
                "status.failedIndexes: Invalid value: \"2-3\": failedIndexes and completedIndexes overlap at index: 2",
            ]
        );
        assert!(told(indexed, now.clone(), now).is_empty(), "what was there before may stay");
        assert_eq!(
            told(json!({"completions": 5}), json!({"completedIndexes": "1", "failedIndexes": ""}), json!({})),
            [
                "status.completedIndexes: Invalid value: \"1\": cannot set non-empty completedIndexes when non-indexed \
                 completion mode",
                "status.failedIndexes: Invalid value: \"\": cannot set non-null failedIndexes when backoffLimitPerIndex \
                 is null",
            ]
        );
        let fewer =
            |spec: Value| told(spec, json!({"succeeded": 1, "failed": 1}), json!({"succeeded": 2, "failed": 2}));
        let failed = "status.failed: Invalid value: 1: cannot decrease the failed counter";
        let succeeded = "status.succeeded: Invalid value: 1: cannot decrease the succeeded counter";
        let counts = json!({"completions": 5, "parallelism": 5});
        assert_eq!(fewer(counts), [failed, succeeded]);
        let elastic =
            |parallelism: i64| json!({"completions": 5, "parallelism": parallelism, "completionMode": "Indexed"});
        assert_eq!((fewer(elastic(4)).len(), fewer(elastic(5))), (2, vec![failed.to_owned()]));
        let pods = json!({"uncountedTerminatedPods": {"succeeded": ["a", ""], "failed": ["a"]}});
        assert_eq!(
            told(json!({}), pods, json!({})),
            [
                "status.uncountedTerminatedPods.succeeded[1]: Invalid value: \"\": must not be empty",
                "status.uncountedTerminatedPods.failed[0]: Duplicate value: \"a\"",
            ]
        );
    }
}
