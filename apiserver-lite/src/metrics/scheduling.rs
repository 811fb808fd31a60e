//! What the scheduler waits for: devices that have to be made ready before a pod is bound.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use super::histogram::{Bounds, Histogram, Unit};
use super::page::{escaped, head};

/// From a tenth of a second, each twice the one before, as upstream.
const SECONDS: Bounds<14> = [
    (100_000_000, "0.1"),
    (200_000_000, "0.2"),
    (400_000_000, "0.4"),
    (800_000_000, "0.8"),
    (1_600_000_000, "1.6"),
    (3_200_000_000, "3.2"),
    (6_400_000_000, "6.4"),
    (12_800_000_000, "12.8"),
    (25_600_000_000, "25.6"),
    (51_200_000_000, "51.2"),
    (102_400_000_000, "102.4"),
    (204_800_000_000, "204.8"),
    (409_600_000_000, "409.6"),
    (819_200_000_000, "819.2"),
];

/// The scheduler's one profile.
const PROFILE: &str = "default-scheduler";

/// How a wait ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Waited {
    Success,
    Failure,
    Timeout,
}

impl Waited {
    fn name(self) -> &'static str {
        match self {
            Waited::Success => "success",
            Waited::Failure => "failure",
            Waited::Timeout => "timeout",
        }
    }
}

/// By driver and end. There is one lock for an attempt that takes seconds.
#[derive(Debug, Default)]
pub struct Scheduling(Mutex<BTreeMap<(String, Waited), Histogram<14>>>);

impl Scheduling {
    /// An attempt that waited for devices of some drivers.
    pub fn waited<'d>(&self, drivers: impl Iterator<Item = &'d str>, ended: Waited, time: Duration) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        for driver in drivers {
            all.entry((driver.to_owned(), ended)).or_default().took(&SECONDS, time);
        }
    }

    /// Begins again.
    pub fn reset(&self) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }

    pub fn write(&self, out: &mut String) {
        let all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let labels = |(driver, ended): &(String, Waited)| {
            format!("driver=\"{}\",profile=\"{PROFILE}\",status=\"{}\"", escaped(driver), ended.name())
        };
        let name = "scheduler_dra_bindingconditions_allocations_total";
        head(
            out,
            name,
            "counter",
            "[ALPHA] Number of allocations using devices with BindingConditions, counted per driver per scheduling \
             attempt",
        );
        for (key, histogram) in all.iter() {
            let _ = writeln!(out, "{name}{{{}}} {}", labels(key), histogram.shown().count);
        }
        let name = "scheduler_dra_bindingconditions_wait_duration_seconds";
        head(
            out,
            name,
            "histogram",
            "[ALPHA] Time in seconds spent waiting for BindingConditions to be satisfied during PreBind.",
        );
        for (key, histogram) in all.iter() {
            histogram.shown().write(out, name, &labels(key), &SECONDS, Unit::Seconds);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_attempt_counts_once_for_each_driver() {
        let scheduling = Scheduling::default();
        scheduling.waited(["a", "b"].into_iter(), Waited::Success, Duration::from_secs(1));
        scheduling.waited(["a"].into_iter(), Waited::Timeout, Duration::from_secs(600));
        let mut out = String::new();
        scheduling.write(&mut out);
        for line in [
            "scheduler_dra_bindingconditions_allocations_total\
             {driver=\"a\",profile=\"default-scheduler\",status=\"success\"} 1",
            "scheduler_dra_bindingconditions_allocations_total\
             {driver=\"a\",profile=\"default-scheduler\",status=\"timeout\"} 1",
            "scheduler_dra_bindingconditions_wait_duration_seconds_sum\
             {driver=\"b\",profile=\"default-scheduler\",status=\"success\"} 1",
        ] {
            assert!(out.lines().any(|l| l == line), "{line}\n{out}");
        }
    }
}
