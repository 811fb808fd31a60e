//! What admission costs and what it refuses: the whole of it, by plugin, and by webhook.
//!
//! Plugins are told apart by their place in the chain, so that a write looks up no names; webhooks are what clients have
//! stored, and are looked up when they are called, which takes far longer.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use super::histogram::{Bounds, Histogram, Shown, Unit};
use super::page::{escaped, head};
use crate::admission::Operation;

const SECONDS: Bounds<6> = [
    (5_000_000, "0.005"),
    (25_000_000, "0.025"),
    (100_000_000, "0.1"),
    (500_000_000, "0.5"),
    (1_000_000_000, "1"),
    (2_500_000_000, "2.5"),
];

const WEBHOOK_SECONDS: Bounds<8> = [
    (5_000_000, "0.005"),
    (25_000_000, "0.025"),
    (100_000_000, "0.1"),
    (500_000_000, "0.5"),
    (1_000_000_000, "1"),
    (2_500_000_000, "2.5"),
    (10_000_000_000, "10"),
    (25_000_000_000, "25"),
];

/// A histogram: its name and what it says of itself.
struct Head {
    name: &'static str,
    help: &'static str,
}

const STEPS: Head = Head {
    name: "apiserver_admission_step_admission_duration_seconds",
    help: "[STABLE] Admission sub-step latency histogram in seconds, broken out for each operation and API resource and \
           step type (validate or admit).",
};

const PLUGINS: Head = Head {
    name: "apiserver_admission_controller_admission_duration_seconds",
    help: "[STABLE] Admission controller latency histogram in seconds, identified by name and broken out for each \
           operation and API resource and type (validate or admit).",
};

const WEBHOOKS: Head = Head {
    name: "apiserver_admission_webhook_admission_duration_seconds",
    help: "[STABLE] Admission webhook latency histogram in seconds, identified by name and broken out for each \
           operation and API resource and type (validate or admit).",
};

impl Head {
    fn write(&self, out: &mut String) {
        head(out, self.name, "histogram", self.help);
    }
}

/// Codes above are shown as this one: a webhook may answer with any number.
const HIGHEST_CODE: u16 = 600;

/// Which of the two passes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Type {
    Admit,
    Validate,
}

impl Type {
    fn of_step(self) -> &'static str {
        match self {
            Type::Admit => "admit",
            Type::Validate => "validate",
        }
    }

    /// Upstream has another word here.
    fn of_webhook(self) -> &'static str {
        match self {
            Type::Admit => "admit",
            Type::Validate => "validating",
        }
    }
}

const TYPES: [Type; 2] = [Type::Admit, Type::Validate];
const OPERATIONS: [Operation; 4] = [Operation::Create, Operation::Update, Operation::Delete, Operation::Connect];

/// By type, operation, and whether the request was rejected. Most combinations never happen.
#[derive(Debug, Default)]
struct Cells([[[OnceLock<Box<Histogram<6>>>; 2]; 4]; 2]);

impl Cells {
    fn took(&self, kind: Type, operation: Operation, rejected: bool, time: Duration) {
        let operation = match operation {
            Operation::Create => 0,
            Operation::Update => 1,
            Operation::Delete => 2,
            Operation::Connect => 3,
        };
        let kind = usize::from(kind == Type::Validate);
        self.0[kind][operation][usize::from(rejected)].get_or_init(Box::default).took(&SECONDS, time);
    }

    fn reset(&self) {
        self.0.iter().flatten().flatten().filter_map(OnceLock::get).for_each(|histogram| histogram.reset());
    }

    fn write(&self, out: &mut String, name: &str, plugin: &str) {
        for (kind, by_operation) in TYPES.iter().zip(&self.0) {
            for (operation, by_outcome) in OPERATIONS.iter().zip(by_operation) {
                for (rejected, cell) in [false, true].iter().zip(by_outcome) {
                    let Some(shown) = cell.get().map(|h| h.shown()).filter(|shown| shown.count > 0) else { continue };
                    let labels = format!(
                        "{plugin}operation=\"{}\",rejected=\"{rejected}\",type=\"{}\"",
                        operation.name(),
                        kind.of_step()
                    );
                    shown.write(out, name, &labels, &SECONDS, Unit::Seconds);
                }
            }
        }
    }
}

/// The chain as a whole and its plugins, by their place in it.
#[derive(Debug)]
pub struct Steps {
    whole: Cells,
    plugins: Vec<(&'static str, Cells)>,
}

impl Steps {
    pub fn new(names: impl Iterator<Item = &'static str>) -> Self {
        Steps { whole: Cells::default(), plugins: names.map(|name| (name, Cells::default())).collect() }
    }

    /// Begins again.
    pub fn reset(&self) {
        self.whole.reset();
        self.plugins.iter().for_each(|(_, cells)| cells.reset());
    }

    /// One pass of the whole chain.
    pub fn step(&self, kind: Type, operation: Operation, rejected: bool, time: Duration) {
        self.whole.took(kind, operation, rejected, time);
    }

    /// One plugin in one pass.
    pub fn plugin(&self, place: usize, kind: Type, operation: Operation, rejected: bool, time: Duration) {
        if let Some((_, cells)) = self.plugins.get(place) {
            cells.took(kind, operation, rejected, time);
        }
    }

    pub fn write(&self, out: &mut String) {
        STEPS.write(out);
        self.whole.write(out, STEPS.name, "");
        PLUGINS.write(out);
        for (plugin, cells) in &self.plugins {
            cells.write(out, PLUGINS.name, &format!("name=\"{plugin}\","));
        }
    }
}

/// What became of the call of a webhook.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    Allowed,
    /// The webhook's own refusal, with its code.
    Refused(u16),
    /// The call came to nothing, with the code that this has upstream.
    Failed(u16),
    /// The server's own error, before the call or with what it was answered.
    Internal,
}

impl Outcome {
    fn code(self) -> u16 {
        match self {
            Outcome::Allowed => 200,
            Outcome::Refused(code) | Outcome::Failed(code) => code.min(HIGHEST_CODE),
            Outcome::Internal => 0,
        }
    }

    fn error_type(self) -> Option<&'static str> {
        match self {
            Outcome::Allowed => None,
            Outcome::Refused(_) => Some("no_error"),
            Outcome::Failed(_) => Some("calling_webhook_error"),
            Outcome::Internal => Some("apiserver_internal_error"),
        }
    }
}

/// By labels as they are written.
#[derive(Debug, Default)]
struct Calls {
    seconds: BTreeMap<String, Arc<Histogram<8>>>,
    requests: BTreeMap<String, u64>,
    rejections: BTreeMap<String, u64>,
    failed_open: BTreeMap<String, u64>,
}

/// The calls of webhooks.
#[derive(Debug, Default)]
pub struct Webhooks(Mutex<Calls>);

impl Webhooks {
    /// Begins again.
    pub fn reset(&self) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Calls::default();
    }

    /// A call that took some time; `open` when its failure lets the request pass.
    pub fn called(&self, name: &str, kind: Type, operation: Operation, time: Duration, outcome: Outcome, open: bool) {
        let (name, kind, operation) = (escaped(name), kind.of_webhook(), operation.name());
        let open = open && matches!(outcome, Outcome::Failed(_));
        let rejected = outcome != Outcome::Allowed && !open;
        let code = outcome.code();
        let labels = format!("name=\"{name}\",operation=\"{operation}\",rejected=\"{rejected}\",type=\"{kind}\"");
        let mut calls = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        *calls.requests.entry(format!("code=\"{code}\",{labels}")).or_default() += 1;
        calls.seconds.entry(labels).or_default().took(&WEBHOOK_SECONDS, time);
        if open {
            *calls.failed_open.entry(format!("name=\"{name}\",type=\"{kind}\"")).or_default() += 1;
        }
        if let Some(error) = outcome.error_type().filter(|_| rejected) {
            let labels = format!(
                "error_type=\"{error}\",name=\"{name}\",operation=\"{operation}\",rejection_code=\"{code}\",\
                 type=\"{kind}\""
            );
            *calls.rejections.entry(labels).or_default() += 1;
        }
    }

    pub fn write(&self, out: &mut String) {
        let calls = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        WEBHOOKS.write(out);
        for (labels, histogram) in &calls.seconds {
            let shown: Shown<8> = histogram.shown();
            shown.write(out, WEBHOOKS.name, labels, &WEBHOOK_SECONDS, Unit::Seconds);
        }
        let counters = [
            (
                "apiserver_admission_webhook_request_total",
                "[ALPHA] Admission webhook request total, identified by name and broken out for each admission type \
                 (validating or mutating) and operation. Additional labels specify whether the request was rejected or \
                 not and an HTTP status code. Codes greater than 600 are truncated to 600, to keep the metrics \
                 cardinality bounded.",
                &calls.requests,
            ),
            (
                "apiserver_admission_webhook_rejection_count",
                "[ALPHA] Admission webhook rejection count, identified by name and broken out for each admission type \
                 (validating or admit) and operation. Additional labels specify an error type (calling_webhook_error or \
                 apiserver_internal_error if an error occurred; no_error otherwise) and optionally a non-zero rejection \
                 code if the webhook rejects the request with an HTTP status code (honored by the apiserver when the \
                 code is greater or equal to 400). Codes greater than 600 are truncated to 600, to keep the metrics \
                 cardinality bounded.",
                &calls.rejections,
            ),
            (
                "apiserver_admission_webhook_fail_open_count",
                "[ALPHA] Admission webhook fail open count, identified by name and broken out for each admission type \
                 (validating or admit).",
                &calls.failed_open,
            ),
        ];
        for (name, help, all) in counters {
            head(out, name, "counter", help);
            for (labels, count) in all {
                let _ = writeln!(out, "{name}{{{labels}}} {count}");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_webhook_that_fails_open_rejects_nothing() {
        let webhooks = Webhooks::default();
        let call = |outcome, open| {
            webhooks.called("w\"", Type::Validate, Operation::Create, Duration::ZERO, outcome, open);
        };
        call(Outcome::Failed(503), true);
        call(Outcome::Refused(403), true);
        call(Outcome::Refused(9999), false);
        call(Outcome::Allowed, false);
        call(Outcome::Internal, true);
        let mut out = String::new();
        webhooks.write(&mut out);
        let of = "name=\"w\\\"\",operation=\"CREATE\"";
        for line in [
            "apiserver_admission_webhook_fail_open_count{name=\"w\\\"\",type=\"validating\"} 1".to_owned(),
            format!(
                "apiserver_admission_webhook_request_total{{code=\"503\",{of},rejected=\"false\",type=\"validating\"}} 1"
            ),
            format!(
                "apiserver_admission_webhook_request_total{{code=\"600\",{of},rejected=\"true\",type=\"validating\"}} 1"
            ),
            format!(
                "apiserver_admission_webhook_rejection_count{{error_type=\"no_error\",{of},rejection_code=\"403\",\
                 type=\"validating\"}} 1"
            ),
            // It does not fail open.
            format!(
                "apiserver_admission_webhook_rejection_count{{error_type=\"apiserver_internal_error\",{of},\
                 rejection_code=\"0\",type=\"validating\"}} 1"
            ),
        ] {
            assert!(out.lines().any(|l| l == line), "{line}\n{out}");
        }
        assert!(!out.contains("rejection_code=\"503\""), "{out}");
    }

    #[test]
    fn only_what_happened_is_shown() {
        let steps = Steps::new(["A", "B"].into_iter());
        steps.step(Type::Admit, Operation::Create, false, Duration::from_millis(1));
        steps.plugin(1, Type::Validate, Operation::Update, true, Duration::from_millis(1));
        let mut out = String::new();
        steps.write(&mut out);
        let counts: Vec<&str> = out.lines().filter(|l| l.contains("_count")).collect();
        let expected = [
            "apiserver_admission_step_admission_duration_seconds_count\
             {operation=\"CREATE\",rejected=\"false\",type=\"admit\"} 1",
            "apiserver_admission_controller_admission_duration_seconds_count\
             {name=\"B\",operation=\"UPDATE\",rejected=\"true\",type=\"validate\"} 1",
        ];
        assert_eq!(counts, expected);
    }
}
