//! Histograms that many tasks observe into without a lock.

use std::fmt::Write as _;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Upper bounds of a histogram's buckets, in its own unit (nanoseconds or bytes), and as they are written.
pub type Bounds<const N: usize> = [(u64, &'static str); N];

/// What a histogram's numbers are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unit {
    /// Kept in nanoseconds, shown in seconds.
    Seconds,
    /// Or anything else that is written as it is kept.
    Bytes,
}

/// Counts of what was observed up to each bound.
#[derive(Debug)]
pub struct Histogram<const N: usize> {
    buckets: [AtomicU64; N],
    count: AtomicU64,
    sum: AtomicU64,
}

impl<const N: usize> Default for Histogram<N> {
    fn default() -> Self {
        Histogram {
            buckets: std::array::from_fn(|_| AtomicU64::new(0)),
            count: AtomicU64::new(0),
            sum: AtomicU64::new(0),
        }
    }
}

/// A moment's numbers of a histogram.
#[derive(Debug, Clone, Copy)]
pub struct Shown<const N: usize> {
    buckets: [u64; N],
    pub count: u64,
    sum: u64,
}

impl<const N: usize> Default for Shown<N> {
    fn default() -> Self {
        Shown { buckets: [0; N], count: 0, sum: 0 }
    }
}

impl<const N: usize> Histogram<N> {
    /// Takes in a number in the histogram's own unit.
    pub fn observe(&self, bounds: &Bounds<N>, number: u64) {
        if let Some(at) = bounds.iter().position(|(bound, _)| number <= *bound) {
            self.buckets[at].fetch_add(1, Ordering::Relaxed);
        }
        self.sum.fetch_add(number, Ordering::Relaxed);
        self.count.fetch_add(1, Ordering::Relaxed);
    }

    pub fn took(&self, bounds: &Bounds<N>, time: Duration) {
        self.observe(bounds, u64::try_from(time.as_nanos()).unwrap_or(u64::MAX));
    }

    /// Begins again. What is observed meanwhile may count in part.
    pub fn reset(&self) {
        self.buckets.iter().chain([&self.count, &self.sum]).for_each(|number| number.store(0, Ordering::Relaxed));
    }

    pub fn shown(&self) -> Shown<N> {
        Shown {
            buckets: std::array::from_fn(|at| self.buckets[at].load(Ordering::Relaxed)),
            count: self.count.load(Ordering::Relaxed),
            sum: self.sum.load(Ordering::Relaxed),
        }
    }
}

impl<const N: usize> Shown<N> {
    /// Both together, for series that differ in what is not shown.
    pub fn add(&mut self, other: &Self) {
        self.buckets.iter_mut().zip(other.buckets).for_each(|(a, b)| *a += b);
        self.count += other.count;
        self.sum += other.sum;
    }

    /// Writes the lines of one series; `labels` without braces, empty for none.
    pub fn write(&self, out: &mut String, name: &str, labels: &str, bounds: &Bounds<N>, unit: Unit) {
        let comma = if labels.is_empty() { "" } else { "," };
        let mut sum = 0;
        // Writing to a string does not fail.
        for ((_, bound), count) in bounds.iter().zip(self.buckets) {
            sum += count;
            let _ = writeln!(out, "{name}_bucket{{{labels}{comma}le=\"{bound}\"}} {sum}");
        }
        // Somebody may have observed between two of the loads: a bucket is never above what follows it.
        let count = self.count.max(sum);
        let _ = writeln!(out, "{name}_bucket{{{labels}{comma}le=\"+Inf\"}} {count}");
        let braced = if labels.is_empty() { String::new() } else { format!("{{{labels}}}") };
        let _ = match unit {
            Unit::Seconds => {
                writeln!(out, "{name}_sum{braced} {}", Duration::from_nanos(self.sum).as_secs_f64())
            }
            Unit::Bytes => writeln!(out, "{name}_sum{braced} {}", self.sum),
        };
        let _ = writeln!(out, "{name}_count{braced} {count}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_hold_all_below_their_bound() {
        const BOUNDS: Bounds<2> = [(5_000_000, "0.005"), (1_000_000_000, "1")];
        let histogram = Histogram::default();
        for millis in [5, 6, 2000] {
            histogram.took(&BOUNDS, Duration::from_millis(millis));
        }
        let mut out = String::new();
        histogram.shown().write(&mut out, "n", "a=\"b\"", &BOUNDS, Unit::Seconds);
        let lines = ["le=\"0.005\"} 1", "le=\"1\"} 2", "le=\"+Inf\"} 3", "n_sum{a=\"b\"} 2.011", "n_count{a=\"b\"} 3"];
        assert!(out.lines().zip(lines).all(|(line, end)| line.ends_with(end)), "{out}");
        assert_eq!(out.lines().count(), lines.len());
    }
}
