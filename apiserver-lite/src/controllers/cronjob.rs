//! `cronjob-controller`: makes jobs at the times of a schedule.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::FutureExt as _;
use proto::time::Timestamp;
use serde_json::{Value, json};

use super::events::Recorder;
use super::feed::Change;
use super::index::{Index, by_owner};
use super::job::finished;
use super::ownership::{self, CRON_JOB, JOB};
use super::pods::{controller_of, seconds};
use super::queue::Queue;
use super::runner::{Controller, Work};
use super::schedule::Schedule;
use crate::client::{Client, unchanged};
use crate::status::Result;
use crate::store::{Key, ObjectRef, ResourceId};
use crate::write::DeleteOptions;
use crate::zone::Zone;

const COMPONENT: &str = "cronjob-controller";
/// More missed times than this are not counted one by one.
const MANY_MISSED: usize = 100;

pub struct CronJobs {
    client: Client,
    recorder: Recorder,
    jobs: Index,
    owners: HashMap<Box<str>, Key>,
}

impl CronJobs {
    pub fn new(client: Client, recorder: Recorder) -> Self {
        CronJobs { client, recorder, jobs: Index::default(), owners: HashMap::new() }
    }
}

impl Controller for CronJobs {
    const NAME: &'static str = "cronjob-controller";
    type Key = Key;

    fn watched(&self) -> Vec<ResourceId> {
        [CRON_JOB.resource, JOB.resource].map(Into::into).into()
    }

    fn observe(&mut self, change: Change<'_>, queue: &mut Queue<Key>) {
        let object = change.object;
        if change.resource == 0 {
            match change.deleted() {
                true => drop(self.owners.remove(&object.keys.uid)),
                false => drop(self.owners.insert(object.keys.uid.clone(), object.key.clone())),
            }
            queue.add(object.key.clone());
        } else {
            self.jobs.observe(change, by_owner);
            let owners = object.keys.owners.iter().filter_map(|uid| self.owners.get(uid));
            owners.for_each(|key| queue.add(key.clone()));
        }
    }

    fn begin(&mut self, key: &Key) -> Option<Work> {
        let owner = self.client.get(CRON_JOB.resource, &key.namespace, &key.name).filter(|o| !o.keys.deleting)?;
        let mut hand = Self::new(self.client.clone(), self.recorder.clone());
        hand.jobs = self.jobs.part(&[&*owner.keys.uid], |_| true);
        Some(hand.work(owner).boxed())
    }
}

impl CronJobs {
    /// Work on a cron job, with the part of the state that was chosen for it as it is here.
    async fn work(self, object: ObjectRef) -> Result<Option<Duration>> {
        let value = object.value();
        let mut jobs: Vec<(ObjectRef, Value)> =
            self.jobs.get(&object.keys.uid).map(|j| (j.clone(), j.value())).collect();
        jobs.retain(|(_, job)| controller_of(job).is_some_and(|c| c.uid == object.keys.uid));
        self.note_finished(&object, &value, &jobs).await?;
        self.clean_up(&object, &value, &jobs).await;
        if value["spec"]["suspend"] == true {
            return Ok(None);
        }
        let text = value["spec"]["schedule"].as_str().unwrap_or_default();
        let zone = match value["spec"]["timeZone"].as_str() {
            None => Arc::new(Zone::utc()),
            Some(name) => match Zone::load(name) {
                Some(zone) => zone,
                None => {
                    let text =
                        format!("invalid timeZone: {}: {}", crate::status::quote(name), crate::zone::refusal(name));
                    self.recorder.warn(COMPONENT, CRON_JOB.about(&object), "UnknownTimeZone", text);
                    return Ok(None);
                }
            },
        };
        let Some(schedule) = Schedule::parse(text) else {
            let text = format!("unparseable schedule: {text}");
            self.recorder.warn(COMPONENT, CRON_JOB.about(&object), "UnparseableSchedule", text);
            return Ok(None);
        };
        let now = Timestamp::now().seconds;
        if let Some(due) = self.due(&object, &value, &schedule, &zone, now) {
            self.start(&object, &value, &jobs, (&zone, due)).await?;
        }
        let Some(next) = schedule.next(&zone, now) else { return Ok(None) };
        Ok(Some(Duration::from_secs((next - now).max(1).unsigned_abs())))
    }
}

impl CronJobs {
    /// The latest time of the schedule that has passed without a job, unless it is too late for it.
    fn due(&self, object: &ObjectRef, value: &Value, schedule: &Schedule, zone: &Zone, now: i64) -> Option<i64> {
        let mut earliest = seconds(&value["metadata"]["creationTimestamp"]);
        let last = seconds(&value["status"]["lastScheduleTime"]);
        if last > 0 {
            earliest = last;
        }
        let limit = value["spec"]["startingDeadlineSeconds"].as_i64();
        if let Some(limit) = limit {
            earliest = earliest.max(now - limit);
        }
        let (mut due, mut at, mut missed) = (None, earliest, 0_usize);
        while let Some(next) = schedule.next(zone, at).filter(|n| *n <= now) {
            due = Some(next);
            at = next;
            missed += 1;
            if missed > MANY_MISSED {
                let text = format!(
                    "too many missed start times: {missed}. Set or decrease .spec.startingDeadlineSeconds or check clock skew"
                );
                self.recorder.warn(COMPONENT, CRON_JOB.about(object), "TooManyMissedTimes", text);
                // The latest one, found from the end of the span in steps that grow.
                due = latest(schedule, zone, at, now).or(due);
                break;
            }
        }
        let due = due?;
        if limit.is_some_and(|l| due + l < now) {
            let text = format!("Missed scheduled time to start a job: {}", long_text_of(due));
            self.recorder.warn(COMPONENT, CRON_JOB.about(object), "MissSchedule", text);
            return None;
        }
        Some(due)
    }

    async fn start(
        &self,
        object: &ObjectRef,
        value: &Value,
        jobs: &[(ObjectRef, Value)],
        (zone, due): (&Zone, i64),
    ) -> Result<()> {
        let (key, about) = (&object.key, CRON_JOB.about(object));
        let name = format!("{}-{}", key.name, due / 60);
        if let Some(found) = self.client.get(JOB.resource, &key.namespace, &name) {
            return self.note_start(object, due, &found, &[]).await;
        }
        let started = started(value);
        let runs = |(job, value): &&(ObjectRef, Value)| finished(value).is_none() && started.contains(&&*job.keys.uid);
        let active: Vec<&ObjectRef> = jobs.iter().filter(runs).map(|(job, _)| job).collect();
        let mut replaced = Vec::new();
        match value["spec"]["concurrencyPolicy"].as_str() {
            Some("Forbid") if !active.is_empty() => {
                let text = "Not starting job because prior execution is running and concurrency policy is Forbid";
                self.recorder.say(COMPONENT, about, "JobAlreadyActive", text.into());
                return Ok(());
            }
            Some("Replace") => {
                for job in active {
                    self.remove(object, job).await?;
                    replaced.push(&*job.keys.uid);
                }
            }
            _ => {}
        }
        let template = &value["spec"]["jobTemplate"];
        let mut metadata = json!({"name": name, "ownerReferences": [CRON_JOB.reference(object)],
            "annotations": {"batch.kubernetes.io/cronjob-scheduled-timestamp": text_in(zone, due)}});
        if !template["metadata"]["labels"].is_null() {
            metadata["labels"] = template["metadata"]["labels"].clone();
        }
        for (name, text) in template["metadata"]["annotations"].as_object().into_iter().flatten() {
            metadata["annotations"][name] = text.clone();
        }
        let job = json!({"apiVersion": "batch/v1", "kind": "Job", "metadata": metadata, "spec": template["spec"]});
        match self.client.create(JOB.resource, &key.namespace, job).await {
            Ok(made) => {
                self.recorder.say(COMPONENT, about, "SuccessfulCreate", format!("Created job {name}"));
                self.note_start(object, due, &made, &replaced).await
            }
            // The next look finds it.
            Err(error) if error.is_already_exists() => Err(error),
            Err(error) if ownership::is_terminating(&error) => Ok(()),
            Err(error) => {
                self.recorder.warn(COMPONENT, about, "FailedCreate", format!("Error creating job: {error}"));
                Err(error)
            }
        }
    }

    /// Notes a job in place of those that it replaced.
    async fn note_start(&self, object: &ObjectRef, due: i64, job: &ObjectRef, replaced: &[&str]) -> Result<()> {
        let at = |status: &mut Value| status["lastScheduleTime"] = text_of(due).into();
        self.write_status(object, (Some(job), replaced), at).await
    }

    /// Notes which jobs still run, and the last success.
    async fn note_finished(&self, object: &ObjectRef, value: &Value, jobs: &[(ObjectRef, Value)]) -> Result<()> {
        let (started, about) = (started(value), CRON_JOB.about(object));
        for (job, job_value) in jobs {
            let name = &job.key.name;
            match (started.contains(&&*job.keys.uid), finished(job_value)) {
                (true, Some(ok)) => {
                    let status = if ok { "Complete" } else { "Failed" };
                    let text = format!("Saw completed job: {name}, condition: {status}");
                    self.recorder.say(COMPONENT, about, "SawCompletedJob", text);
                }
                (false, None) => {
                    let text = format!("Saw a job that the controller did not create or forgot: {name}");
                    self.recorder.warn(COMPONENT, about, "UnexpectedJob", text);
                }
                _ => {}
            }
        }
        let successes = jobs.iter().filter(|(_, j)| finished(j) == Some(true));
        let last = successes.map(|(_, j)| seconds(&j["status"]["completionTime"])).max().unwrap_or(0);
        self.write_status(object, (None, &[]), |status| {
            if last > seconds(&status["lastSuccessfulTime"]) {
                status["lastSuccessfulTime"] = text_of(last).into();
            }
        })
        .await
    }

    /// A job of the status as it is now.
    fn found(&self, object: &ObjectRef, reference: &Value) -> Option<ObjectRef> {
        let name = reference["name"].as_str().unwrap_or_default();
        let found = self.client.get(JOB.resource, &object.key.namespace, name);
        found.filter(|job| reference["uid"] == *job.keys.uid)
    }

    /// Writes a status whose active jobs are those that are under way of the ones that were started, with one more, and
    /// without those that it replaced.
    async fn write_status(
        &self,
        object: &ObjectRef,
        (started, replaced): (Option<&ObjectRef>, &[&str]),
        change: impl Fn(&mut Value) + Send + Sync,
    ) -> Result<()> {
        let key = &object.key;
        let started = started.filter(|job| controller_of(&job.value()).is_some_and(|c| c.uid == object.keys.uid));
        let mut missing = Vec::new();
        let written = self.client.update_status(CRON_JOB.resource, &key.namespace, &key.name, |value| {
            if value["metadata"]["uid"] != *object.keys.uid {
                return Err(unchanged());
            }
            missing.clear();
            let mut active = Vec::new();
            let listed = value["status"]["active"].as_array().into_iter().flatten();
            for job in listed.filter(|job| job["uid"].as_str().is_some_and(|uid| !replaced.contains(&uid))) {
                match self.found(object, job) {
                    None => missing.push(job["name"].as_str().unwrap_or_default().to_owned()),
                    Some(found) if finished(&found.value()).is_none() => active.push(job.clone()),
                    Some(_) => {}
                }
            }
            if let Some(job) = started.filter(|job| !active.iter().any(|known| known["uid"] == *job.keys.uid)) {
                active.push(json!({"apiVersion": "batch/v1", "kind": "Job", "name": job.key.name,
                    "namespace": job.key.namespace, "uid": job.keys.uid,
                    "resourceVersion": job.revision.to_string()}));
            }
            if !value["status"].is_object() {
                value["status"] = json!({});
            }
            change(&mut value["status"]);
            match active.is_empty() {
                true => drop(value["status"].as_object_mut().and_then(|s| s.remove("active"))),
                false => value["status"]["active"] = active.into(),
            }
            Ok(())
        });
        if ownership::done(written.await.map(|_| ()))? {
            for name in missing {
                let text = format!("Active job went missing: {name}");
                self.recorder.say(COMPONENT, CRON_JOB.about(object), "MissingJob", text);
            }
        }
        Ok(())
    }

    /// Deletes the oldest of too many jobs that are over. One that has to stay is told of, and keeps nothing else from
    /// being done.
    async fn clean_up(&self, object: &ObjectRef, value: &Value, jobs: &[(ObjectRef, Value)]) {
        for (ok, limit) in [(true, "successfulJobsHistoryLimit"), (false, "failedJobsHistoryLimit")] {
            let default = if ok { 3 } else { 1 };
            let keep = usize::try_from(value["spec"][limit].as_i64().unwrap_or(default)).unwrap_or(0);
            let mut over: Vec<&(ObjectRef, Value)> = jobs.iter().filter(|(_, j)| finished(j) == Some(ok)).collect();
            over.sort_by_key(|(o, j)| (seconds(&j["status"]["startTime"]), o.key.name.clone()));
            for (job, _) in over.iter().take(over.len().saturating_sub(keep)) {
                if let Err(error) = self.remove(object, job).await {
                    let text = format!("Deleted job: {error}");
                    self.recorder.warn(COMPONENT, CRON_JOB.about(object), "FailedDelete", text);
                }
            }
        }
    }

    async fn remove(&self, object: &ObjectRef, job: &ObjectRef) -> Result<()> {
        let options = DeleteOptions { propagation: Some("Background".into()), ..DeleteOptions::default() };
        self.client.delete_object(JOB.resource, job, options).await?;
        self.recorder.say(
            COMPONENT,
            CRON_JOB.about(object),
            "SuccessfulDelete",
            format!("Deleted job {}", job.key.name),
        );
        Ok(())
    }
}

/// The jobs that the controller started itself and has not seen the end of, by their uids: whoever makes another one in
/// its name looks after it.
fn started(value: &Value) -> Vec<&str> {
    value["status"]["active"].as_array().into_iter().flatten().filter_map(|job| job["uid"].as_str()).collect()
}

fn text_of(seconds: i64) -> String {
    Timestamp { seconds, nanos: 0 }.to_seconds_text()
}

/// RFC 3339 by the clocks of a zone.
fn text_in(zone: &Zone, seconds: i64) -> String {
    let offset = zone.offset(seconds);
    if offset == 0 {
        return text_of(seconds);
    }
    let (sign, minutes) = (if offset < 0 { '-' } else { '+' }, offset.abs() / 60);
    let local = text_of(seconds + offset);
    format!("{}{sign}{:02}:{:02}", local.trim_end_matches('Z'), minutes / 60, minutes % 60)
}

/// `Mon, 02 Jan 2006 15:04:05 +0000`.
fn long_text_of(seconds: i64) -> String {
    const DAYS: [&str; 7] = ["Thu", "Fri", "Sat", "Sun", "Mon", "Tue", "Wed"];
    const MONTHS: [&str; 12] = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
    let text = text_of(seconds);
    let (date, time) = text.split_once('T').unwrap_or((&text, ""));
    let mut date = date.rsplitn(3, '-');
    let (day, month) = (date.next().unwrap_or_default(), date.next().and_then(|m| m.parse::<usize>().ok()));
    let month = month.and_then(|m| MONTHS.get(m.saturating_sub(1))).unwrap_or(&"");
    let weekday = usize::try_from(seconds.div_euclid(86_400).rem_euclid(7)).unwrap_or(0);
    let year = date.next().unwrap_or_default();
    format!("{}, {day} {month} {year} {} +0000", DAYS[weekday], time.trim_end_matches('Z'))
}

/// The last time of a schedule in a long span.
fn latest(schedule: &Schedule, zone: &Zone, from: i64, to: i64) -> Option<i64> {
    let mut step = 60;
    while to - step > from {
        if let Some(mut at) = schedule.next(zone, to - step).filter(|n| *n <= to) {
            while let Some(next) = schedule.next(zone, at).filter(|n| *n <= to) {
                at = next;
            }
            return Some(at);
        }
        step *= 2;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_told_in_the_zone_of_the_schedule_and_at_length() {
        // 2026-01-31T23:59:30Z, a Saturday.
        let at = 1_769_903_970;
        assert_eq!(text_in(&Zone::utc(), at), "2026-01-31T23:59:30Z");
        if let Some(tokyo) = Zone::load("Asia/Tokyo") {
            assert_eq!(text_in(&tokyo, at), "2026-02-01T08:59:30+09:00");
        }
        assert_eq!(long_text_of(at), "Sat, 31 Jan 2026 23:59:30 +0000");
    }
}
