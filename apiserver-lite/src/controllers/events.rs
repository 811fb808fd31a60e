//! Events that controllers and the scheduler report: one task writes them, repeats only raise a count.
//!
//! Reporting never waits: when a thousand events are in line, further ones are dropped and counted in the log.

use std::collections::{HashMap, VecDeque};

use proto::time::Timestamp;
use serde_json::{Value, json};
use tokio::sync::mpsc;

use crate::client::Client;
use crate::status::Result;
use crate::store::ObjectRef;

/// Events in line for the writer.
const LINE: usize = 1024;
/// Events whose repeats are still recognised.
const REMEMBERED: usize = 1024;
/// Longest message, as upstream's validation has it.
const LONGEST: usize = 1024;

/// Who reports, and in which of the two forms of events.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Reporter {
    /// A controller: `source.component`, first and last time, a count.
    Controller(&'static str),
    /// The scheduler: `reportingController`, an action, a series.
    Scheduler,
}

#[derive(Debug, Clone)]
pub struct Report {
    pub reporter: Reporter,
    pub warning: bool,
    pub reason: &'static str,
    /// What was done, for the newer form.
    pub action: &'static str,
    pub message: String,
}

struct Record {
    about: Value,
    report: Report,
}

/// A handle to the writer of events.
#[derive(Clone)]
pub struct Recorder(mpsc::Sender<Record>);

impl Recorder {
    pub fn start(client: Client) -> Self {
        let (sender, receiver) = mpsc::channel(LINE);
        tokio::spawn(write_all(client, receiver));
        Recorder(sender)
    }

    pub fn report(&self, kind: &str, api_version: &str, object: &ObjectRef, report: Report) {
        let mut about = json!({"kind": kind, "name": object.key.name, "uid": object.keys.uid,
            "apiVersion": api_version, "resourceVersion": object.revision.to_string()});
        if !object.key.namespace.is_empty() {
            about["namespace"] = json!(object.key.namespace);
        }
        self.line(about, report);
    }

    /// An event of a controller about an object.
    pub fn say(&self, who: &'static str, object: (&str, &str, &ObjectRef), reason: &'static str, message: String) {
        let (kind, api_version, object) = object;
        let report = Report { reporter: Reporter::Controller(who), warning: false, reason, action: "", message };
        self.report(kind, api_version, object, report);
    }

    /// A warning of a controller about an object.
    pub fn warn(&self, who: &'static str, object: (&str, &str, &ObjectRef), reason: &'static str, message: String) {
        let (kind, api_version, object) = object;
        let report = Report { reporter: Reporter::Controller(who), warning: true, reason, action: "", message };
        self.report(kind, api_version, object, report);
    }
}

impl Recorder {
    /// A warning of a controller about what a reference names, with no version of it.
    pub fn warn_of(&self, who: &'static str, about: Value, reason: &'static str, message: String) {
        let report = Report { reporter: Reporter::Controller(who), warning: true, reason, action: "", message };
        self.line(about, report);
    }

    fn line(&self, about: Value, report: Report) {
        if self.0.try_send(Record { about, report }).is_err() {
            tracing::warn!("an event is dropped: too many in line");
        }
    }
}

/// What makes two events the same.
type Same = (String, &'static str, Reporter, String);

struct Known {
    namespace: String,
    name: String,
}

async fn write_all(client: Client, mut line: mpsc::Receiver<Record>) {
    let mut known: HashMap<Same, Known> = HashMap::new();
    let mut order: VecDeque<Same> = VecDeque::new();
    while let Some(mut record) = line.recv().await {
        truncate(&mut record.report.message);
        let uid = record.about["uid"].as_str().unwrap_or_default().to_owned();
        let same = (uid, record.report.reason, record.report.reporter, record.report.message.clone());
        if let Some(known) = known.get(&same) {
            match repeat(&client, known, record.report.reporter).await {
                Ok(()) => continue,
                Err(error) if error.is_not_found() => {}
                Err(error) => {
                    tracing::debug!(%error, "an event's repeat is not counted");
                    continue;
                }
            }
        }
        match create(&client, &record).await {
            Ok(object) => {
                let place = Known { namespace: object.key.namespace.to_string(), name: object.key.name.to_string() };
                if known.insert(same.clone(), place).is_none() {
                    order.push_back(same);
                }
                if order.len() > REMEMBERED
                    && let Some(oldest) = order.pop_front()
                {
                    known.remove(&oldest);
                }
            }
            // The namespace goes away: nobody will read it.
            Err(error) if matches!(error.code(), 403 | 404) => {}
            Err(error) => tracing::warn!(%error, "an event is lost"),
        }
    }
}

fn truncate(message: &mut String) {
    if message.len() > LONGEST {
        let mut end = LONGEST - 3;
        while !message.is_char_boundary(end) {
            end -= 1;
        }
        message.truncate(end);
        message.push_str("...");
    }
}

async fn create(client: &Client, record: &Record) -> Result<ObjectRef> {
    let (about, report) = (&record.about, &record.report);
    // Events about cluster-scoped objects lie in the default namespace.
    let namespace = about["namespace"].as_str().unwrap_or("default");
    let now = Timestamp::now();
    let unique = now.seconds.wrapping_mul(1_000_000_000).wrapping_add(i64::from(now.nanos));
    let name = format!("{}.{unique:x}", about["name"].as_str().unwrap_or_default());
    let kind = if report.warning { "Warning" } else { "Normal" };
    let mut event = json!({
        "apiVersion": "v1", "kind": "Event", "metadata": {"name": name, "namespace": namespace},
        "involvedObject": about, "reason": report.reason, "message": report.message, "type": kind,
    });
    match report.reporter {
        Reporter::Controller(component) => {
            let text = now.to_seconds_text();
            event["source"] = json!({"component": component});
            event["reportingComponent"] = component.into();
            event["firstTimestamp"] = text.as_str().into();
            event["lastTimestamp"] = text.into();
            event["count"] = 1.into();
        }
        Reporter::Scheduler => {
            event["eventTime"] = now.to_micros_text().into();
            event["action"] = report.action.into();
            event["reportingComponent"] = "default-scheduler".into();
            event["reportingInstance"] = "default-scheduler".into();
        }
    }
    client.create("events", namespace, event).await
}

async fn repeat(client: &Client, known: &Known, reporter: Reporter) -> Result<()> {
    let now = Timestamp::now();
    let counted = client.update("events", &known.namespace, &known.name, |event| {
        match reporter {
            Reporter::Controller(_) => {
                event["count"] = (event["count"].as_i64().unwrap_or(1) + 1).into();
                event["lastTimestamp"] = now.to_seconds_text().into();
            }
            Reporter::Scheduler => {
                let count = event["series"]["count"].as_i64().unwrap_or(1) + 1;
                event["series"] = json!({"count": count, "lastObservedTime": now.to_micros_text()});
            }
        }
        Ok(())
    });
    counted.await.map(|_| ())
}
