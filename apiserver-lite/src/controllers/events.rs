//! Events that controllers and the scheduler report: one task writes them, repeats only raise a count.
//!
//! What controllers say goes through the [`Correlator`], as upstream's recorder does it. The scheduler reports in the
//! newer form, which upstream neither combines nor limits.
//!
//! Reporting never waits: when a thousand events are in line, further ones are dropped and counted in the log.

use std::collections::{HashMap, VecDeque};

use proto::time::Timestamp;
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio::time::Instant;

use super::correlate::{Correlator, Said};
use crate::client::Client;
use crate::status::Result;
use crate::store::ObjectRef;

/// Events in line for the writer.
const LINE: usize = 1024;
/// Events of the scheduler whose repeats are still recognised.
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

/// What makes two events of the scheduler the same.
type Same = (String, &'static str, String);

struct Known {
    namespace: String,
    name: String,
}

async fn write_all(client: Client, mut line: mpsc::Receiver<Record>) {
    let mut correlator = Correlator::new();
    let mut series = Series::default();
    while let Some(record) = line.recv().await {
        let written = match record.report.reporter {
            Reporter::Controller(component) => of_controller(&client, &mut correlator, component, &record).await,
            Reporter::Scheduler => series.write(&client, record).await,
        };
        match written {
            Ok(()) => {}
            // The namespace goes away: nobody will read it.
            Err(error) if matches!(error.code(), 403 | 404) => {}
            Err(error) => tracing::warn!(%error, "an event is lost"),
        }
    }
}

/// Writes an event of a controller as far as the rules of client-go's recorder let it be written.
async fn of_controller(
    client: &Client,
    correlator: &mut Correlator,
    component: &'static str,
    record: &Record,
) -> Result<()> {
    let (about, report) = (&record.about, &record.report);
    let text = |key: &str| about[key].as_str().unwrap_or_default();
    let said = Said {
        component,
        object: [text("kind"), text("namespace"), text("name"), text("uid"), text("apiVersion")],
        field_path: text("fieldPath"),
        warning: report.warning,
        reason: report.reason,
        message: &report.message,
    };
    let now = Timestamp::now();
    let name = unique_name(about, &now);
    let Some(mut observed) = correlator.observe(&said, Instant::now(), name, now.to_seconds_text()) else {
        return Ok(());
    };
    truncate(&mut observed.message);
    let namespace = namespace_of(about);
    if observed.count > 1 {
        let counted = client.update("events", namespace, &observed.name, |event| {
            event["count"] = observed.count.into();
            event["lastTimestamp"] = now.to_seconds_text().into();
            event["message"] = observed.message.as_str().into();
            Ok(())
        });
        match counted.await {
            // It expired, or was never written: the count goes on in a new one.
            Err(error) if error.is_not_found() => {}
            done => return done.map(drop),
        }
    }
    let mut event = blank(record, &observed.name, &observed.message);
    event["source"] = json!({"component": component});
    event["reportingComponent"] = component.into();
    event["firstTimestamp"] = observed.first.into();
    event["lastTimestamp"] = now.to_seconds_text().into();
    event["count"] = observed.count.into();
    client.create("events", namespace, event).await.map(drop)
}

/// Events of the scheduler whose repeats are still recognised.
#[derive(Default)]
struct Series {
    known: HashMap<Same, Known>,
    order: VecDeque<Same>,
}

impl Series {
    async fn write(&mut self, client: &Client, mut record: Record) -> Result<()> {
        truncate(&mut record.report.message);
        let uid = record.about["uid"].as_str().unwrap_or_default().to_owned();
        let same = (uid, record.report.reason, record.report.message.clone());
        if let Some(known) = self.known.get(&same) {
            match repeat(client, known).await {
                Err(error) if error.is_not_found() => {}
                done => return done,
            }
        }
        let now = Timestamp::now();
        let mut event = blank(&record, &unique_name(&record.about, &now), &record.report.message);
        event["eventTime"] = now.to_micros_text().into();
        event["action"] = record.report.action.into();
        event["reportingComponent"] = "default-scheduler".into();
        event["reportingInstance"] = "default-scheduler".into();
        let object = client.create("events", namespace_of(&record.about), event).await?;
        let place = Known { namespace: object.key.namespace.to_string(), name: object.key.name.to_string() };
        if self.known.insert(same.clone(), place).is_none() {
            self.order.push_back(same);
        }
        if self.order.len() > REMEMBERED
            && let Some(oldest) = self.order.pop_front()
        {
            self.known.remove(&oldest);
        }
        Ok(())
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

/// Events about cluster-scoped objects lie in the default namespace.
fn namespace_of(about: &Value) -> &str {
    about["namespace"].as_str().unwrap_or("default")
}

fn unique_name(about: &Value, now: &Timestamp) -> String {
    let unique = now.seconds.wrapping_mul(1_000_000_000).wrapping_add(i64::from(now.nanos));
    format!("{}.{unique:x}", about["name"].as_str().unwrap_or_default())
}

/// An event without what only one of the two forms has.
fn blank(record: &Record, name: &str, message: &str) -> Value {
    let (about, report) = (&record.about, &record.report);
    let kind = if report.warning { "Warning" } else { "Normal" };
    json!({
        "apiVersion": "v1", "kind": "Event", "metadata": {"name": name, "namespace": namespace_of(about)},
        "involvedObject": about, "reason": report.reason, "message": message, "type": kind,
    })
}

async fn repeat(client: &Client, known: &Known) -> Result<()> {
    let now = Timestamp::now();
    let counted = client.update("events", &known.namespace, &known.name, |event| {
        let count = event["series"]["count"].as_i64().unwrap_or(1) + 1;
        event["series"] = json!({"count": count, "lastObservedTime": now.to_micros_text()});
        Ok(())
    });
    counted.await.map(drop)
}
