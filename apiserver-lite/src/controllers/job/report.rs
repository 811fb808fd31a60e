//! A job's status, and the events of its end.

use std::collections::BTreeMap;

use proto::time::Timestamp;
use serde_json::{Value, json};

use super::super::ownership::{self, JOB};
use super::super::pods::{PodDigest, is_active, is_terminal};
use super::indexes::format_indexes;
use super::view::View;
use super::{COMPONENT, Jobs};
use crate::client::unchanged;
use crate::status::Result;
use crate::store::ObjectRef;

impl Jobs {
    /// Writes what was seen; `end` is how the job ends, once its last pods are gone.
    pub(super) async fn write(&self, view: &View, end: Option<(bool, String, String)>) -> Result<()> {
        let key = &view.object.key;
        // Fresh states: pods were deleted or made since the view was taken.
        let now: Vec<ObjectRef> =
            view.pods.iter().filter_map(|p| self.client.get("pods", &p.key.namespace, &p.key.name)).collect();
        let active = now.iter().filter(|p| is_active(p));
        let ready = active.clone().filter(|p| PodDigest::of(p).ready).count();
        let active = active.count();
        let terminating = now.iter().filter(|p| p.keys.deleting && !is_terminal(p)).count();
        let settled = active == 0 && terminating == 0 && view.new_failed.is_empty() && view.new_succeeded.is_empty();
        let (mut ended, mut turned) = (None, None);
        let written = self.client.update_status(JOB.resource, &key.namespace, &key.name, |value| {
            if value["metadata"]["uid"] != *view.object.keys.uid {
                return Err(unchanged());
            }
            let time = Timestamp::now().to_seconds_text();
            let status = &mut value["status"];
            if status["startTime"].is_null() && !view.suspended() {
                status["startTime"] = time.as_str().into();
            }
            let numbers = BTreeMap::from([
                ("active", i64::try_from(active).unwrap_or(0)),
                ("succeeded", view.succeeded),
                ("failed", view.failed),
            ]);
            for (name, number) in numbers {
                match (number, status.as_object_mut()) {
                    (0, Some(map)) => drop(map.remove(name)),
                    (number, _) => status[name] = number.into(),
                }
            }
            status["ready"] = ready.into();
            status["terminating"] = terminating.into();
            let mut uncounted = json!({});
            for (name, list) in [("succeeded", &view.new_succeeded), ("failed", &view.new_failed)] {
                if !list.is_empty() {
                    uncounted[name] = list.iter().map(|uid| Value::from(&**uid)).collect();
                }
            }
            status["uncountedTerminatedPods"] = uncounted;
            let completed = format_indexes(&view.completed_indexes);
            match (&*completed, status.as_object_mut()) {
                ("", Some(map)) => drop(map.remove("completedIndexes")),
                _ => status["completedIndexes"] = completed.into(),
            }
            if let Some(failed) = view.failed_indexes() {
                status["failedIndexes"] = format_indexes(failed).into();
            }
            let mut condition = |kind: &str, status: &str, reason: &str, message: &str| {
                let condition =
                    json!({"type": kind, "status": status, "reason": reason, "message": message, "lastProbeTime": time});
                ownership::set_condition(value, condition)
            };
            match &end {
                Some((ok, reason, message)) => {
                    condition(if *ok { "SuccessCriteriaMet" } else { "FailureTarget" }, "True", reason, message);
                    if settled {
                        condition(if *ok { "Complete" } else { "Failed" }, "True", reason, message);
                        ended = Some((*ok, reason.clone(), message.clone()));
                        if *ok {
                            value["status"]["completionTime"] = time.into();
                        }
                    }
                }
                None if view.suspended() => {
                    if condition("Suspended", "True", "JobSuspended", "Job suspended") {
                        turned = Some(("Suspended", "Job suspended"));
                    }
                    drop(value["status"].as_object_mut().and_then(|s| s.remove("startTime")));
                }
                None if super::super::pods::condition(value, "Suspended").is_some_and(|c| c["status"] == "True") => {
                    let resumed = json!({"type": "Suspended", "status": "False", "reason": "JobResumed",
                        "message": "Job resumed", "lastProbeTime": time});
                    ownership::set_condition(value, resumed);
                    value["status"]["startTime"] = time.into();
                    turned = Some(("Resumed", "Job resumed"));
                }
                None => {}
            }
            Ok(())
        });
        if !ownership::done(written.await.map(|_| ()))? {
            return Ok(());
        }
        let about = JOB.about(&view.object);
        if let Some((reason, message)) = turned {
            self.recorder.say(COMPONENT, about, reason, message.into());
        }
        match ended {
            Some((true, ..)) => self.recorder.say(COMPONENT, about, "Completed", "Job completed".into()),
            Some((false, reason, message)) => {
                let known = ["DeadlineExceeded", "PodFailurePolicy", "MaxFailedIndexesExceeded", "FailedIndexes"];
                let reason = known.into_iter().find(|k| *k == reason).unwrap_or("BackoffLimitExceeded");
                self.recorder.warn(COMPONENT, about, reason, message);
            }
            None => {}
        }
        Ok(())
    }
}
