//! Events that controllers and the scheduler report: one task writes them, repeats only raise a count.
//!
//! What controllers say goes through the [`Correlator`], as upstream's recorder does it. The scheduler reports in the
//! newer form, whose repeats are a [`Series`].
//!
//! Reporting never waits: when a thousand events are in line, further ones are dropped and counted in the log.

use proto::time::Timestamp;
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio::time::Instant;

use super::correlate::{Correlator, Digest, Said};
use super::series::Series;
use crate::client::Client;
use crate::status::Result;
use crate::store::ObjectRef;
use crate::write::Target;

/// Events in line for the writer.
const LINE: usize = 1024;
/// Who reports as the scheduler.
const SCHEDULER: &str = "default-scheduler";
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

impl Reporter {
    /// What stands at the end of a message that was cut.
    fn ellipsis(self) -> &'static str {
        match self {
            Reporter::Controller(_) => "...",
            Reporter::Scheduler => " ...",
        }
    }
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
    /// What else it is about, for the newer form.
    related: Option<Value>,
    /// Its message is no longer than that of an event may be.
    report: Report,
    /// Of the message as it was.
    digest: Digest,
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
        self.line(reference(kind, api_version, object), None, report);
    }

    /// An event of the scheduler about a pod that has to do with another one.
    pub fn report_related(&self, pod: &ObjectRef, other: &ObjectRef, report: Report) {
        self.line(reference("Pod", "v1", pod), Some(reference("Pod", "v1", other)), report);
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
        self.line(about, None, report);
    }

    fn line(&self, about: Value, related: Option<Value>, mut report: Report) {
        let digest = Digest::of(&report.message);
        truncate(&mut report.message, report.reporter.ellipsis());
        if self.0.try_send(Record { about, related, report, digest }).is_err() {
            tracing::warn!("an event is dropped: too many in line");
        }
    }
}

async fn write_all(client: Client, mut line: mpsc::Receiver<Record>) {
    let mut correlator = Correlator::new();
    let (mut series, mut ready) = (Series::default(), Vec::new());
    loop {
        let due = series.due();
        let timer = async {
            match due {
                Some(due) => tokio::time::sleep_until(due).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            record = line.recv() => match record {
                None => return,
                Some(record) => match record.report.reporter {
                    Reporter::Controller(component) => {
                        told(of_controller(&client, &mut correlator, component, &record).await);
                    }
                    Reporter::Scheduler => {
                        let time = Timestamp::now();
                        series.observe(of_scheduler(&record, &time), time, Instant::now(), &mut ready);
                    }
                },
            },
            () = timer => series.work(Instant::now(), &mut ready),
        }
        for event in ready.drain(..) {
            told(write_newer(&client, event).await);
        }
    }
}

fn told(written: Result<()>) {
    match written {
        Ok(()) => {}
        // The namespace goes away: nobody will read it.
        Err(error) if matches!(error.code(), 403 | 404) => {}
        Err(error) => tracing::warn!(%error, "an event is lost"),
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
        digest: record.digest,
    };
    let now = Timestamp::now();
    let name = unique_name(about, &now);
    let Some(mut observed) = correlator.observe(&said, Instant::now(), name, now.to_seconds_text()) else {
        return Ok(());
    };
    truncate(&mut observed.message, record.report.reporter.ellipsis());
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

/// An event of the scheduler that happens for the first time.
fn of_scheduler(record: &Record, now: &Timestamp) -> Value {
    let mut event = blank(record, &unique_name(&record.about, now), &record.report.message);
    event["eventTime"] = now.to_micros_text().into();
    event["action"] = record.report.action.into();
    event["reportingComponent"] = SCHEDULER.into();
    event["reportingInstance"] = format!("{SCHEDULER}-{}", crate::pki::hostname()).into();
    if let Some(related) = &record.related {
        event["related"] = related.clone();
    }
    event
}

/// Writes an event of the newer form: a new one, or the series of one that is there. The scheduler speaks
/// `events.k8s.io/v1`, which shows in who owns which fields, and in what webhooks are told.
async fn write_newer(client: &Client, event: Value) -> Result<()> {
    let text = |key: &str| event["metadata"][key].as_str().unwrap_or_default();
    let newer = client.server().resources.lookup("events.k8s.io", "v1", "events");
    let resource = newer.map_or_else(|| client.resource("events"), Ok)?;
    if event["series"].is_object() {
        let (namespace, name) = (text("namespace"), text("name"));
        let target = Target { resource: &resource, subresource: "", namespace, name };
        let counted = client.update_as(target, |stored| {
            stored["series"] = event["series"].clone();
            Ok(())
        });
        match counted.await {
            // It expired, or was never written: the series goes on in a new one.
            Err(error) if error.is_not_found() => {}
            done => return done.map(drop),
        }
    }
    let namespace = text("namespace").to_owned();
    client.create_as(&resource, &namespace, event).await.map(drop)
}

/// Cuts a message that is longer than an event's may be.
fn truncate(message: &mut String, ellipsis: &str) {
    if message.len() > LONGEST {
        let mut end = LONGEST - ellipsis.len();
        while !message.is_char_boundary(end) {
            end -= 1;
        }
        message.truncate(end);
        message.push_str(ellipsis);
    }
}

fn reference(kind: &str, api_version: &str, object: &ObjectRef) -> Value {
    let mut about = json!({"kind": kind, "name": object.key.name, "uid": object.keys.uid,
        "apiVersion": api_version, "resourceVersion": object.revision.to_string()});
    if !object.key.namespace.is_empty() {
        about["namespace"] = json!(object.key.namespace);
    }
    about
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_messages_end_as_their_reporters_end_them() {
        let cut = |text: &str, reporter: Reporter| {
            let mut text = text.to_owned();
            truncate(&mut text, reporter.ellipsis());
            text
        };
        let controller = Reporter::Controller("c");
        assert_eq!(cut(&"x".repeat(1024), controller), "x".repeat(1024));
        assert_eq!(cut(&"x".repeat(1025), controller), format!("{}...", "x".repeat(1021)));
        assert_eq!(cut(&"x".repeat(9999), Reporter::Scheduler), format!("{} ...", "x".repeat(1020)));
        assert_eq!(cut(&"é".repeat(999), controller), format!("{}...", "é".repeat(510)));
        // Cut before it is combined with others and after is as cut once.
        let (long, prefix) = ("x".repeat(5000), "(combined from similar events): ");
        let whole = cut(&format!("{prefix}{long}"), controller);
        assert_eq!(cut(&format!("{prefix}{}", cut(&long, controller)), controller), whole);
    }
}
