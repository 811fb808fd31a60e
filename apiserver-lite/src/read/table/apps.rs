//! Rows of workloads.

use proto::time::parse_rfc3339;
use serde_json::{Value, json};

use super::core::containers;
use super::{Cells, Column, age, human_duration, pairs, since};

const TEXT: &str = "string";
const NUMBER: &str = "integer";

pub(super) fn printer(plural: &str) -> Option<(&'static [Column], Cells)> {
    Some(match plural {
        "deployments" => (
            &[
                Column("Ready", TEXT, 0),
                Column("Up-to-date", TEXT, 0),
                Column("Available", TEXT, 0),
                Column("Age", TEXT, 0),
                Column("Containers", TEXT, 1),
                Column("Images", TEXT, 1),
                Column("Selector", TEXT, 1),
            ],
            |v| {
                let [names, images] = containers(&v["spec"]["template"]);
                let ready = format!("{}/{}", number(&v["status"]["readyReplicas"]), number(&v["spec"]["replicas"]));
                let status = |key: &str| json!(number(&v["status"][key]));
                vec![
                    ready.into(),
                    status("updatedReplicas"),
                    status("availableReplicas"),
                    age(v),
                    names,
                    images,
                    selector(v),
                ]
            },
        ),
        "replicasets" => (
            &[
                Column("Desired", NUMBER, 0),
                Column("Current", NUMBER, 0),
                Column("Ready", NUMBER, 0),
                Column("Age", TEXT, 0),
                Column("Containers", TEXT, 1),
                Column("Images", TEXT, 1),
                Column("Selector", TEXT, 1),
            ],
            |v| {
                let [names, images] = containers(&v["spec"]["template"]);
                let status = |key: &str| json!(number(&v["status"][key]));
                vec![
                    json!(number(&v["spec"]["replicas"])),
                    status("replicas"),
                    status("readyReplicas"),
                    age(v),
                    names,
                    images,
                    selector(v),
                ]
            },
        ),
        "statefulsets" => (
            &[
                Column("Ready", TEXT, 0),
                Column("Age", TEXT, 0),
                Column("Containers", TEXT, 1),
                Column("Images", TEXT, 1),
            ],
            |v| {
                let [names, images] = containers(&v["spec"]["template"]);
                let ready = format!("{}/{}", number(&v["status"]["readyReplicas"]), number(&v["spec"]["replicas"]));
                vec![ready.into(), age(v), names, images]
            },
        ),
        "daemonsets" => (
            &[
                Column("Desired", NUMBER, 0),
                Column("Current", NUMBER, 0),
                Column("Ready", NUMBER, 0),
                Column("Up-to-date", NUMBER, 0),
                Column("Available", NUMBER, 0),
                Column("Node Selector", TEXT, 0),
                Column("Age", TEXT, 0),
                Column("Containers", TEXT, 1),
                Column("Images", TEXT, 1),
                Column("Selector", TEXT, 1),
            ],
            |v| {
                let [names, images] = containers(&v["spec"]["template"]);
                let status = |key: &str| json!(number(&v["status"][key]));
                let mut out: Vec<Value> = [
                    "desiredNumberScheduled",
                    "currentNumberScheduled",
                    "numberReady",
                    "updatedNumberScheduled",
                    "numberAvailable",
                ]
                .into_iter()
                .map(status)
                .collect();
                out.extend([pairs(&v["spec"]["template"]["spec"]["nodeSelector"]), age(v), names, images, selector(v)]);
                out
            },
        ),
        "controllerrevisions" => {
            (&[Column("Controller", TEXT, 0), Column("Revision", TEXT, 0), Column("Age", TEXT, 0)], |v| {
                let owners = v["metadata"]["ownerReferences"].as_array();
                let owner = owners.into_iter().flatten().find(|o| o["controller"] == true);
                let name = owner.map_or("<none>".to_owned(), |o| {
                    let kind = o["kind"].as_str().unwrap_or_default().to_lowercase();
                    let group = o["apiVersion"]
                        .as_str()
                        .and_then(|a| a.split_once('/'))
                        .map_or(String::new(), |g| format!(".{}", g.0));
                    format!("{kind}{group}/{}", o["name"].as_str().unwrap_or_default())
                });
                vec![name.into(), json!(number(&v["revision"])), age(v)]
            })
        }
        "jobs" => (
            &[
                Column("Status", TEXT, 0),
                Column("Completions", TEXT, 0),
                Column("Duration", TEXT, 0),
                Column("Age", TEXT, 0),
                Column("Containers", TEXT, 1),
                Column("Images", TEXT, 1),
                Column("Selector", TEXT, 1),
            ],
            job,
        ),
        "cronjobs" => (
            &[
                Column("Schedule", TEXT, 0),
                Column("Timezone", TEXT, 0),
                Column("Suspend", "boolean", 0),
                Column("Active", NUMBER, 0),
                Column("Last Schedule", TEXT, 0),
                Column("Age", TEXT, 0),
                Column("Containers", TEXT, 1),
                Column("Images", TEXT, 1),
                Column("Selector", TEXT, 1),
            ],
            |v| {
                let (spec, template) = (&v["spec"], &v["spec"]["jobTemplate"]["spec"]);
                let [names, images] = containers(&template["template"]);
                let last = &v["status"]["lastScheduleTime"];
                let last = if last.is_string() { since(last) } else { "<none>".into() };
                let active = v["status"]["active"].as_array().map_or(0, Vec::len);
                let suspend = match spec["suspend"].as_bool() {
                    Some(true) => "True",
                    Some(false) => "False",
                    None => "<unset>",
                };
                vec![
                    spec["schedule"].clone(),
                    super::or_none(&spec["timeZone"]),
                    suspend.into(),
                    json!(active),
                    last,
                    age(v),
                    names,
                    images,
                    label_selector(&template["selector"]),
                ]
            },
        ),
        _ => return None,
    })
}

fn number(value: &Value) -> i64 {
    value.as_i64().unwrap_or(0)
}

/// The selector of a workload; replication controllers have plain labels.
fn selector(v: &Value) -> Value {
    label_selector(&v["spec"]["selector"])
}

fn label_selector(selector: &Value) -> Value {
    match crate::selectors::text(selector) {
        text if text.is_empty() => "<none>".into(),
        text => text.into(),
    }
}

fn job(v: &Value) -> Vec<Value> {
    let (spec, status) = (&v["spec"], &v["status"]);
    let [names, images] = containers(&spec["template"]);
    let succeeded = number(&status["succeeded"]);
    let completions = match (spec["completions"].as_i64(), spec["parallelism"].as_i64()) {
        (Some(wanted), _) => format!("{succeeded}/{wanted}"),
        (None, Some(parallel)) if parallel > 1 => format!("{succeeded}/1 of {parallel}"),
        _ => format!("{succeeded}/1"),
    };
    let condition = |kind: &str| {
        status["conditions"].as_array().into_iter().flatten().any(|c| c["type"] == kind && c["status"] == "True")
    };
    let state = if condition("Complete") {
        "Complete"
    } else if condition("Failed") {
        "Failed"
    } else if v["metadata"]["deletionTimestamp"].is_string() {
        "Terminating"
    } else if condition("Suspended") {
        "Suspended"
    } else if condition("FailureTarget") {
        "FailureTarget"
    } else if condition("SuccessCriteriaMet") {
        "SuccessCriteriaMet"
    } else {
        "Running"
    };
    let seconds = |key: &str| status[key].as_str().and_then(|t| parse_rfc3339(t).ok()).map(|t| t.seconds);
    let duration: Value = match (seconds("startTime"), seconds("completionTime")) {
        (Some(start), Some(end)) => human_duration(end - start).into(),
        (Some(_), None) => since(&status["startTime"]),
        _ => "".into(),
    };
    vec![state.into(), completions.into(), duration, age(v), names, images, label_selector(&spec["selector"])]
}
