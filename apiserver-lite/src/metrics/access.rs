//! Who asked, and what the authorizers said.
//!
//! Names of users are told apart only as far as upstream does: anybody may come with any name.

use std::fmt::Write as _;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{PoisonError, RwLock};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use super::histogram::{Bounds, Histogram, Unit};
use super::page::head;
use crate::auth::Decision;

/// From a millisecond, each twice the one before, as upstream.
const SECONDS: Bounds<15> = [
    (1_000_000, "0.001"),
    (2_000_000, "0.002"),
    (4_000_000, "0.004"),
    (8_000_000, "0.008"),
    (16_000_000, "0.016"),
    (32_000_000, "0.032"),
    (64_000_000, "0.064"),
    (128_000_000, "0.128"),
    (256_000_000, "0.256"),
    (512_000_000, "0.512"),
    (1_024_000_000, "1.024"),
    (2_048_000_000, "2.048"),
    (4_096_000_000, "4.096"),
    (8_192_000_000, "8.192"),
    (16_384_000_000, "16.384"),
];

/// What is left of a certificate's life, in seconds.
const LEFT: Bounds<14> = [
    (0, "0"),
    (1_800, "1800"),
    (3_600, "3600"),
    (7_200, "7200"),
    (21_600, "21600"),
    (43_200, "43200"),
    (86_400, "86400"),
    (172_800, "172800"),
    (345_600, "345600"),
    (604_800, "604800"),
    (2_592_000, "2.592e+06"),
    (7_776_000, "7.776e+06"),
    (15_552_000, "1.5552e+07"),
    (31_104_000, "3.1104e+07"),
];

/// Names that upstream shows as they are.
const SHOWN: [&str; 5] = ["admin", "client", "kube_proxy", "kubelet", "system:serviceaccount:kube-system:default"];

/// What comes after them.
const OTHERS: [&str; 2] = ["email_id", "other"];

/// How an attempt to say who one is ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Attempt {
    Success,
    /// Nothing was shown, and nobody may be anonymous.
    Failure,
    /// What was shown is not believed.
    Error,
}

const ATTEMPTS: [&str; 3] = ["success", "failure", "error"];
const DECISIONS: [&str; 4] = ["allowed", "denied", "no-opinion", "error"];

#[derive(Debug, Default)]
pub struct Access {
    users: [AtomicU64; SHOWN.len() + OTHERS.len()],
    attempts: [Histogram<15>; ATTEMPTS.len()],
    decisions: [Histogram<15>; DECISIONS.len()],
    /// Seconds left of certificates that clients came with.
    left: Histogram<14>,
}

fn place_of(user: &str) -> usize {
    match SHOWN.iter().position(|shown| *shown == user) {
        Some(at) => at,
        // Probably an address.
        None if user.contains('@') => SHOWN.len(),
        None => SHOWN.len() + 1,
    }
}

impl Access {
    /// Begins again.
    pub fn reset(&self) {
        self.users.iter().for_each(|count| count.store(0, Ordering::Relaxed));
        self.attempts.iter().chain(&self.decisions).for_each(Histogram::reset);
        self.left.reset();
    }

    /// `user` of a success.
    pub fn authenticated(&self, attempt: Attempt, user: Option<&str>, took: Duration) {
        let at = match attempt {
            Attempt::Success => 0,
            Attempt::Failure => 1,
            Attempt::Error => 2,
        };
        self.attempts[at].took(&SECONDS, took);
        if let Some(user) = user {
            self.users[place_of(user)].fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Somebody came with a certificate that is good until then, in seconds since 1970.
    pub fn certificate(&self, until: i64) {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |now| now.as_secs());
        // Of one whose time is over nothing is left.
        self.left.observe(&LEFT, u64::try_from(until).unwrap_or(0).saturating_sub(now));
    }

    /// The answer to a request; questions that come up on its way do not count here.
    pub fn authorized(&self, decision: &Decision, took: Duration) {
        let at = match (decision.allowed, decision.denied) {
            (true, _) => 0,
            // Who could not be asked might have said something else.
            (false, _) if !decision.error.is_empty() => 3,
            (false, true) => 1,
            (false, false) => 2,
        };
        self.decisions[at].took(&SECONDS, took);
    }

    pub fn write(&self, out: &mut String) {
        let name = "authenticated_user_requests";
        head(out, name, "counter", "[ALPHA] Counter of authenticated requests broken out by username.");
        for (user, count) in SHOWN.iter().chain(&OTHERS).zip(&self.users) {
            let count = count.load(Ordering::Relaxed);
            if count > 0 {
                let _ = writeln!(out, "{name}{{username=\"{user}\"}} {count}");
            }
        }
        let name = "apiserver_client_certificate_expiration_seconds";
        let help = "[ALPHA] Distribution of the remaining lifetime on the certificate used to authenticate a request.";
        head(out, name, "histogram", help);
        // Whole seconds are written as they are.
        self.left.shown().write(out, name, "", &LEFT, Unit::Bytes);
        let help = "[ALPHA] Counter of authenticated attempts.";
        attempts(out, "authentication", help, "Authentication", &ATTEMPTS, &self.attempts);
        let help = "[ALPHA] Counter of authorization attempts broken down by result. It can be either 'allowed', \
                    'denied', 'no-opinion' or 'error'.";
        attempts(out, "authorization", help, "Authorization", &DECISIONS, &self.decisions);
    }
}

/// How many there were, and how long they took, by result.
fn attempts<const N: usize>(
    out: &mut String,
    what: &str,
    help: &str,
    shown: &str,
    results: &[&str; N],
    all: &[Histogram<15>; N],
) {
    let total = match what {
        "authentication" => "authentication_attempts",
        _ => "authorization_attempts_total",
    };
    head(out, total, "counter", help);
    let all = all.each_ref().map(Histogram::shown);
    for (result, shown) in results.iter().zip(&all).filter(|(_, shown)| shown.count > 0) {
        let _ = writeln!(out, "{total}{{result=\"{result}\"}} {}", shown.count);
    }
    let name = format!("{what}_duration_seconds");
    head(out, &name, "histogram", &format!("[ALPHA] {shown} duration in seconds broken out by result."));
    for (result, shown) in results.iter().zip(&all).filter(|(_, shown)| shown.count > 0) {
        shown.write(out, &name, &format!("result=\"{result}\""), &SECONDS, Unit::Seconds);
    }
}

/// Decisions of one authorizer: how often it allowed, and denied.
#[derive(Debug)]
struct Decided {
    kind: &'static str,
    name: Box<str>,
    counts: [AtomicU64; 2],
}

/// Decisions of each authorizer that ended the search; having no opinion is none.
#[derive(Debug, Default)]
pub struct Decisions(RwLock<Vec<Decided>>);

/// What an authorizer is called that no file names.
fn usual_name(kind: &'static str) -> &'static str {
    match kind {
        "AlwaysAllow" => "alwaysallow",
        "AlwaysDeny" => "alwaysdeny",
        "Node" => "node",
        "RBAC" => "rbac",
        "Webhook" => "default",
        other => other,
    }
}

impl Decisions {
    /// Begins again.
    pub fn reset(&self) {
        self.0.write().unwrap_or_else(PoisonError::into_inner).clear();
    }

    /// `kind` of authorizer as configurations spell it, and its name where one gives it any.
    pub fn count(&self, kind: &'static str, name: Option<&str>, decision: &Decision) {
        if !decision.allowed && !decision.denied {
            return;
        }
        let name = name.unwrap_or_else(|| usual_name(kind));
        let count = |all: &[Decided]| {
            let found = all.iter().find(|known| known.kind == kind && *known.name == *name);
            found.map(|known| known.counts[usize::from(decision.denied)].fetch_add(1, Ordering::Relaxed)).is_some()
        };
        if !count(&self.0.read().unwrap_or_else(PoisonError::into_inner)) {
            let mut all = self.0.write().unwrap_or_else(PoisonError::into_inner);
            if !count(&all) {
                all.push(Decided { kind, name: name.into(), counts: Default::default() });
                count(&all);
            }
        }
    }

    pub fn write(&self, out: &mut String) {
        let name = "apiserver_authorization_decisions_total";
        head(
            out,
            name,
            "counter",
            "[ALPHA] Total number of terminal decisions made by an authorizer split by authorizer type, name, and \
             decision.",
        );
        for Decided { kind, name: called, counts } in self.0.read().unwrap_or_else(PoisonError::into_inner).iter() {
            for (decision, count) in ["allowed", "denied"].iter().zip(counts) {
                let count = count.load(Ordering::Relaxed);
                if count > 0 {
                    let _ =
                        writeln!(out, "{name}{{decision=\"{decision}\",name=\"{called}\",type=\"{kind}\"}} {count}");
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn made_up_users_are_one_series() {
        let access = Access::default();
        for user in ["admin", "a@b", "c@d", "system:node:a", "e\"} 1\nf"] {
            access.authenticated(Attempt::Success, Some(user), Duration::from_millis(1));
        }
        access.authenticated(Attempt::Error, None, Duration::ZERO);
        let mut out = String::new();
        access.write(&mut out);
        for line in [
            "authenticated_user_requests{username=\"admin\"} 1",
            "authenticated_user_requests{username=\"email_id\"} 2",
            "authenticated_user_requests{username=\"other\"} 2",
            "authentication_attempts{result=\"success\"} 5",
            "authentication_attempts{result=\"error\"} 1",
        ] {
            assert!(out.lines().any(|l| l == line), "{line}\n{out}");
        }
    }

    #[test]
    fn a_decision_that_nobody_could_make_is_an_error_unless_somebody_allows() {
        let access = Access::default();
        let failed = |decision: Decision| Decision { error: "no answer".into(), ..decision };
        for decision in [
            Decision::allow(""),
            failed(Decision::allow("")),
            Decision::deny(""),
            failed(Decision::deny("")),
            Decision::no_opinion(""),
            failed(Decision::no_opinion("")),
            Decision::failed("no answer"),
        ] {
            access.authorized(&decision, Duration::ZERO);
        }
        let mut out = String::new();
        access.write(&mut out);
        for (result, count) in [("allowed", 2), ("denied", 1), ("no-opinion", 1), ("error", 3)] {
            let line = format!("authorization_attempts_total{{result=\"{result}\"}} {count}");
            assert!(out.lines().any(|l| l == line), "{line}\n{out}");
        }
    }

    #[test]
    fn only_decisions_that_end_the_search_count() {
        let decisions = Decisions::default();
        decisions.count("Node", None, &Decision::no_opinion(""));
        decisions.count("RBAC", None, &Decision::allow(""));
        for name in [None, Some("a"), Some("a"), Some("b")] {
            decisions.count("Webhook", name, &Decision::deny(""));
        }
        let mut out = String::new();
        decisions.write(&mut out);
        let lines: Vec<_> =
            out.lines().filter_map(|l| l.strip_prefix("apiserver_authorization_decisions_total")).collect();
        let expected = [
            r#"{decision="allowed",name="rbac",type="RBAC"} 1"#,
            r#"{decision="denied",name="default",type="Webhook"} 1"#,
            r#"{decision="denied",name="a",type="Webhook"} 2"#,
            r#"{decision="denied",name="b",type="Webhook"} 1"#,
        ];
        assert_eq!(lines, expected);
    }
}
