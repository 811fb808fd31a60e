//! EventRateLimit: so many events in a while for all, for each namespace, each user, or each source and object. Follows
//! `plugin/pkg/admission/eventratelimit`.
//!
//! Each limit has buckets of tokens that fill by and by; those used longest ago give way when there are too many.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Mutex, PoisonError};

use serde_json::Value;
use tokio::time::Instant;

use super::Call;
use crate::field_error::Report;
use crate::status::{ApiError, Result};
use crate::tree::{list, text};

/// Buckets of a limit that says nothing of them.
const BUCKETS: usize = 4096;
/// Characters by which sources and objects are told apart; clients write them, and each bucket keeps its own.
const LONGEST_KEY: usize = 2048;
const KINDS: [&str; 4] = ["Namespace", "Server", "SourceAndObject", "User"];

#[derive(Debug, Default)]
pub struct EventRates(Vec<Limit>);

#[derive(Debug)]
struct Limit {
    kind: &'static str,
    /// Tokens that come in a second, and that a full bucket has.
    rate: f64,
    burst: f64,
    most: usize,
    buckets: Mutex<Buckets>,
}

#[derive(Debug, Default)]
struct Buckets {
    all: HashMap<Box<str>, Bucket>,
    /// Their keys by when they were used last.
    order: BTreeMap<u64, Box<str>>,
    uses: u64,
}

#[derive(Debug)]
struct Bucket {
    tokens: f64,
    filled: Instant,
    used: u64,
}

impl EventRates {
    /// Reads a configuration.
    ///
    /// # Errors
    /// What is wrong with it, in upstream's words.
    pub fn read(configuration: &Value) -> std::result::Result<Self, String> {
        let mut limits = Vec::new();
        let told = Report::told(|report| {
            if list(configuration, "limits").next().is_none() {
                report.bad("limits", &configuration["limits"], "must not be empty");
            }
            report.each(configuration, "limits", |report, limit| {
                let number = |name: &str| limit[name].as_i64().unwrap_or(0);
                let kind = KINDS.into_iter().find(|kind| *kind == text(limit, "type"));
                if kind.is_none() {
                    report.at("type", |r| r.not_supported(text(limit, "type"), &KINDS));
                }
                for name in ["burst", "qps"] {
                    if number(name) <= 0 {
                        report.bad(name, number(name), "must be positive");
                    }
                }
                if kind != Some("Server") && number("cacheSize") < 0 {
                    report.bad("cacheSize", number("cacheSize"), "must not be negative");
                }
                let most = usize::try_from(number("cacheSize")).ok().filter(|most| *most > 0).unwrap_or(BUCKETS);
                let (rate, burst) = (number("qps") as f64, number("burst") as f64);
                limits.extend(kind.map(|kind| Limit { kind, rate, burst, most, buckets: Mutex::default() }));
            });
        });
        if told.is_empty() { Ok(EventRates(limits)) } else { Err(told.join(", ")) }
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl Limit {
    /// Takes a token; false when there is none.
    fn accepts(&self, key: &str, now: Instant) -> bool {
        let key = key.char_indices().nth(LONGEST_KEY).map_or(key, |(end, _)| &key[..end]);
        let mut buckets = self.buckets.lock().unwrap_or_else(PoisonError::into_inner);
        let Buckets { all, order, uses } = &mut *buckets;
        *uses += 1;
        if !all.contains_key(key)
            && all.len() >= self.most
            && let Some((_, oldest)) = order.pop_first()
        {
            all.remove(&oldest);
        }
        let fresh = || Bucket { tokens: self.burst, filled: now, used: 0 };
        let bucket = all.entry(key.into()).or_insert_with(fresh);
        order.remove(&bucket.used);
        bucket.used = *uses;
        order.insert(*uses, key.into());
        let passed = now.saturating_duration_since(bucket.filled).as_secs_f64();
        bucket.tokens = (bucket.tokens + passed * self.rate).min(self.burst);
        bucket.filled = now;
        let accepted = bucket.tokens >= 1.0;
        bucket.tokens -= f64::from(u8::from(accepted));
        accepted
    }
}

/// Whose events share a bucket.
fn key(kind: &str, call: &Call<'_>, event: &Value) -> String {
    match kind {
        "Namespace" => call.namespace.into(),
        "User" => call.user.name.clone(),
        "SourceAndObject" => {
            let (source, object) = (&event["source"], &event["involvedObject"]);
            let source = ["component", "host"].map(|name| text(source, name));
            let object = ["kind", "namespace", "name", "uid", "apiVersion"].map(|name| text(object, name));
            source.concat() + &object.concat()
        }
        _ => String::new(),
    }
}

pub fn validate(call: &Call<'_>, new: &Value) -> Result<()> {
    if !call.concerns("", "events") {
        return Ok(());
    }
    let mut refused = Ok(());
    // Every limit counts the event, also when another refuses it.
    for limit in &call.server.admission.settings().event_rates.0 {
        let key = key(limit.kind, call, new);
        if !limit.accepts(&key, Instant::now()) {
            let message = format!("Too many requests: limit reached on type {} for key {key}", limit.kind);
            refused = Err(ApiError::new(429, "TooManyRequests", message));
        }
    }
    refused
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use serde_json::json;

    use super::*;

    #[test]
    fn buckets_fill_with_time_and_the_oldest_gives_way() {
        let limits = json!({"limits": [{"type": "User", "qps": 2, "burst": 2, "cacheSize": 2}]});
        let limit = &EventRates::read(&limits).expect("good").0[0];
        let start = Instant::now();
        let after = |millis| start + Duration::from_millis(millis);
        let accepted = |key, millis| limit.accepts(key, after(millis));
        assert_eq!([accepted("a", 0), accepted("a", 0), accepted("a", 0)], [true, true, false]);
        assert!(accepted("b", 0), "another has its own");
        assert!(!accepted("a", 400) && accepted("a", 500) && !accepted("a", 600));
        assert!(accepted("c", 600), "b gives way");
        assert!(!accepted("a", 600), "it was used after b");
        assert!(accepted("b", 600) && accepted("b", 600) && !accepted("b", 600), "it begins anew");
    }

    #[test]
    fn limits_have_a_kind_and_amounts() {
        let told = |limits: Value| EventRates::read(&json!({ "limits": limits })).expect_err("wrong");
        assert_eq!(told(json!([])), "limits: Invalid value: []: must not be empty");
        let told = told(json!([{"type": "All", "qps": 0, "burst": 1, "cacheSize": -1}]));
        assert!(told.contains("limits[0].type: Unsupported value: \"All\""), "{told}");
        assert!(told.contains("limits[0].qps: Invalid value: 0: must be positive"), "{told}");
        assert!(told.contains("limits[0].cacheSize: Invalid value: -1: must not be negative"), "{told}");
    }
}
