//! One metric: its name, meaning and series.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::ops::Deref;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Instant;

use proto::time::Timestamp;

/// Different label values of one family at most; beyond, nothing new is recorded.
const MAX_SERIES: usize = 2048;
/// Exponential buckets of one series at most; beyond, further ones are left to the count alone.
const MAX_NATIVE: usize = 160;
/// Eight buckets for each doubling: the resolution of client_golang's factor 1.1.
pub const NATIVE_SCHEMA: i32 = 3;
/// Observations this close to zero are in the bucket around it.
pub const NATIVE_ZERO: f64 = 2.938_735_877_055_719e-39;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Counter,
    Gauge,
    Histogram,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stability {
    Alpha,
    Beta,
    Internal,
    Stable,
}

impl Stability {
    pub const fn name(self) -> &'static str {
        match self {
            Stability::Alpha => "ALPHA",
            Stability::Beta => "BETA",
            Stability::Internal => "INTERNAL",
            Stability::Stable => "STABLE",
        }
    }
}

pub struct Family {
    pub name: &'static str,
    help: &'static str,
    kind: Kind,
    pub stability: Stability,
    labels: &'static [&'static str],
    /// Upper bounds without infinity.
    buckets: &'static [f64],
    /// The minor version that deprecated it.
    pub deprecated: Option<u32>,
    /// The series of a family without labels, made at its first use or scrape.
    sole: OnceLock<Series>,
    by_labels: Mutex<BTreeMap<Vec<String>, Arc<Series>>>,
}

#[derive(Default)]
struct Series {
    created: Option<Timestamp>,
    /// Bits of a float: the value, or the sum of a histogram.
    value: AtomicU64,
    /// Observations per bucket, the last one above all bounds.
    counts: Box<[AtomicU64]>,
    native: Mutex<Native>,
}

/// Exponential buckets by index.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Native {
    pub zero: u64,
    pub positive: BTreeMap<i32, u64>,
}

/// Numbers of a family at one moment.
#[derive(Debug, Clone)]
pub struct Snapshot {
    pub name: Cow<'static, str>,
    /// With its stability in brackets, where it has one.
    pub help: String,
    pub kind: Kind,
    pub samples: Vec<Sample>,
}

/// Names and values, in order. Shared: most things with labels have many samples.
#[derive(Debug, Clone, Default)]
pub struct Labels(Arc<Written>);

#[derive(Debug, Default)]
struct Written {
    pairs: Box<[(&'static str, String)]>,
    /// As the text format has them, once somebody has written them who is not the only one to have them.
    text: OnceLock<Box<str>>,
}

impl Labels {
    /// In the text format from the brace on, which is not closed yet; nothing for no labels.
    pub fn write(&self, page: &mut String) {
        // What has only one sample is written once, and not kept.
        if Arc::strong_count(&self.0) == 1 && self.0.text.get().is_none() {
            return super::page::labels(&self.0.pairs, page);
        }
        page.push_str(self.0.text.get_or_init(|| {
            let mut text = String::new();
            super::page::labels(&self.0.pairs, &mut text);
            text.into()
        }));
    }
}

impl Deref for Labels {
    type Target = [(&'static str, String)];

    fn deref(&self) -> &Self::Target {
        &self.0.pairs
    }
}

impl FromIterator<(&'static str, String)> for Labels {
    fn from_iter<T: IntoIterator<Item = (&'static str, String)>>(pairs: T) -> Self {
        Labels(Arc::new(Written { pairs: pairs.into_iter().collect(), text: OnceLock::new() }))
    }
}

impl From<Vec<(&'static str, String)>> for Labels {
    fn from(pairs: Vec<(&'static str, String)>) -> Self {
        pairs.into_iter().collect()
    }
}

impl<const N: usize> From<[(&'static str, String); N]> for Labels {
    fn from(pairs: [(&'static str, String); N]) -> Self {
        pairs.into_iter().collect()
    }
}

#[derive(Debug, Clone)]
pub struct Sample {
    pub labels: Labels,
    pub value: Value,
    /// Milliseconds since 1970, of readings that are not of now.
    pub time: Option<i64>,
    /// Since when counters and histograms of this process count.
    pub created: Option<Timestamp>,
}

#[derive(Debug, Clone)]
pub enum Value {
    Number(f64),
    /// Upper bound and observations up to it; the last bound is infinite.
    Histogram {
        buckets: Vec<(f64, u64)>,
        sum: f64,
        native: Option<Native>,
    },
}

impl Family {
    pub const fn new(
        name: &'static str,
        kind: Kind,
        stability: Stability,
        help: &'static str,
        labels: &'static [&'static str],
        buckets: &'static [f64],
        deprecated: Option<u32>,
    ) -> Self {
        Family {
            name,
            help,
            kind,
            stability,
            labels,
            buckets,
            deprecated,
            sole: OnceLock::new(),
            by_labels: Mutex::new(BTreeMap::new()),
        }
    }

    fn series(&self) -> Series {
        let counts = match self.kind {
            Kind::Histogram => (0..=self.buckets.len()).map(|_| AtomicU64::new(0)).collect(),
            Kind::Counter | Kind::Gauge => Box::default(),
        };
        let created = (self.kind != Kind::Gauge).then(Timestamp::now);
        Series { created, counts, ..Series::default() }
    }

    /// Does something with the series of these label values, in the order of the labels' names.
    fn on(&self, values: &[&str], act: impl FnOnce(&Series)) {
        if self.labels.is_empty() {
            return act(self.sole.get_or_init(|| self.series()));
        }
        let found = {
            let mut table = self.by_labels.lock().unwrap_or_else(PoisonError::into_inner);
            let known = table.iter().find(|(key, _)| key.iter().eq(values.iter())).map(|(_, series)| series.clone());
            match known {
                Some(series) => series,
                None if table.len() >= MAX_SERIES || values.len() != self.labels.len() => return,
                None => {
                    let series = Arc::new(self.series());
                    table.insert(values.iter().map(|v| (*v).to_owned()).collect(), series.clone());
                    series
                }
            }
        };
        act(&found);
    }

    pub fn inc(&self, values: &[&str]) {
        self.add(values, 1.0);
    }

    pub fn add(&self, values: &[&str], amount: f64) {
        self.on(values, |series| series.add(amount));
    }

    pub fn set(&self, values: &[&str], to: f64) {
        self.on(values, |series| series.value.store(to.to_bits(), Ordering::Relaxed));
    }

    /// Replaces all series, for gauges whose label values come and go.
    pub fn set_all(&self, all: impl IntoIterator<Item = (Vec<String>, f64)>) {
        let fresh = all.into_iter().map(|(values, to)| {
            let series = self.series();
            series.value.store(to.to_bits(), Ordering::Relaxed);
            (values, Arc::new(series))
        });
        let fresh = fresh.take(MAX_SERIES).collect();
        *self.by_labels.lock().unwrap_or_else(PoisonError::into_inner) = fresh;
    }

    pub fn observe(&self, values: &[&str], what: f64) {
        let at = self.buckets.partition_point(|bound| *bound < what);
        self.on(values, |series| {
            series.add(what);
            if let Some(count) = series.counts.get(at) {
                count.fetch_add(1, Ordering::Relaxed);
            }
            if super::native() {
                series.native.lock().unwrap_or_else(PoisonError::into_inner).observe(what);
            }
        });
    }

    /// A clock whose time is observed when it is dropped.
    pub fn time<'a>(&'static self, values: &'a [&'a str]) -> Timer<'a> {
        Timer { family: self, values, since: Instant::now() }
    }

    /// Forgets the series of these label values.
    pub fn remove(&self, values: &[&str]) {
        let mut table = self.by_labels.lock().unwrap_or_else(PoisonError::into_inner);
        table.retain(|key, _| !key.iter().eq(values.iter()));
    }

    /// Whether something has been recorded.
    pub fn is_used(&self) -> bool {
        self.sole.get().is_some() || !self.by_labels.lock().unwrap_or_else(PoisonError::into_inner).is_empty()
    }

    pub fn reset(&self) {
        self.by_labels.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }

    /// `None` for a family with labels that nothing has used.
    pub fn snapshot(&self) -> Option<Snapshot> {
        let samples: Vec<Sample> = if self.labels.is_empty() {
            let series = self.sole.get_or_init(|| self.series());
            let (value, created) = (self.value(series), series.created);
            vec![Sample { labels: Labels::default(), value, time: None, created }]
        } else {
            // Only the list is made under the lock; the numbers are read after it.
            let table = self.by_labels.lock().unwrap_or_else(PoisonError::into_inner);
            let all: Vec<(Vec<String>, Arc<Series>)> = table.iter().map(|(k, s)| (k.clone(), s.clone())).collect();
            drop(table);
            let sample = |(values, series): (Vec<String>, Arc<Series>)| Sample {
                labels: self.labels.iter().copied().zip(values).collect(),
                value: self.value(&series),
                time: None,
                created: series.created,
            };
            all.into_iter().map(sample).collect()
        };
        let help = format!("[{}] {}{}", self.stability.name(), self.deprecation(), self.help);
        (!samples.is_empty()).then(|| Snapshot { name: self.name.into(), help, kind: self.kind, samples })
    }

    fn deprecation(&self) -> String {
        self.deprecated.map(|minor| format!("(Deprecated since 1.{minor}.0) ")).unwrap_or_default()
    }

    fn value(&self, series: &Series) -> Value {
        let number = f64::from_bits(series.value.load(Ordering::Relaxed));
        if self.kind != Kind::Histogram {
            return Value::Number(number);
        }
        let mut sum = 0;
        let bounds = self.buckets.iter().copied().chain([f64::INFINITY]);
        let buckets = bounds.zip(&series.counts).map(|(bound, count)| {
            sum += count.load(Ordering::Relaxed);
            (bound, sum)
        });
        let buckets = buckets.collect();
        let native = super::native().then(|| series.native.lock().unwrap_or_else(PoisonError::into_inner).clone());
        Value::Histogram { buckets, sum: number, native }
    }
}

impl Series {
    fn add(&self, amount: f64) {
        let more = |bits| Some((f64::from_bits(bits) + amount).to_bits());
        // The closure never refuses, so neither does this.
        let _ = self.value.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more);
    }
}

impl Native {
    fn observe(&mut self, what: f64) {
        if what.abs() <= NATIVE_ZERO {
            self.zero += 1;
            return;
        }
        if !what.is_finite() || what < 0.0 {
            return;
        }
        let index = (what.log2() * f64::from(1 << NATIVE_SCHEMA)).ceil();
        // Logarithms of finite floats are small.
        #[expect(clippy::cast_possible_truncation, reason = "between -8600 and 8200")]
        let index = index as i32;
        if self.positive.len() < MAX_NATIVE || self.positive.contains_key(&index) {
            *self.positive.entry(index).or_default() += 1;
        }
    }
}

/// Observes the seconds from its making to its end.
pub struct Timer<'a> {
    family: &'static Family,
    values: &'a [&'a str],
    since: Instant,
}

impl Drop for Timer<'_> {
    fn drop(&mut self) {
        self.family.observe(self.values, self.since.elapsed().as_secs_f64());
    }
}

impl Snapshot {
    fn of(name: &'static str, help: &str, kind: Kind) -> Self {
        Snapshot { name: name.into(), help: help.to_owned(), kind, samples: Vec::new() }
    }

    pub fn gauge(name: &'static str, help: &str) -> Self {
        Self::of(name, help, Kind::Gauge)
    }

    pub fn counter(name: &'static str, help: &str) -> Self {
        Self::of(name, help, Kind::Counter)
    }

    #[must_use]
    pub fn with(mut self, labels: &[(&'static str, &str)], value: f64) -> Self {
        let labels = labels.iter().map(|(name, value)| (*name, (*value).to_owned())).collect();
        self.samples.push(Sample { labels, value: Value::Number(value), time: None, created: None });
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    static COUNTED: Family = Family::new("counted", Kind::Counter, Stability::Alpha, "c", &["a"], &[], None);
    static TIMED: Family = Family::new("timed", Kind::Histogram, Stability::Beta, "t", &[], &[1.0, 2.0], Some(35));

    #[test]
    fn a_family_with_labels_shows_once_it_is_used() {
        assert!(COUNTED.snapshot().is_none());
        COUNTED.inc(&["x"]);
        COUNTED.add(&["x"], 2.0);
        COUNTED.inc(&["too", "many"]);
        let shown = COUNTED.snapshot().unwrap();
        assert_eq!(shown.samples.len(), 1);
        assert!(matches!(shown.samples[0].value, Value::Number(n) if n == 3.0));
        assert_eq!(shown.samples[0].labels[..], [("a", "x".to_owned())]);
        // Scrapers take a count that begins anew for one only where they are told since when it counts.
        let created = shown.samples[0].created.unwrap().seconds;
        assert!((0..60).contains(&(Timestamp::now().seconds - created)));
    }

    #[test]
    fn bounds_belong_to_their_bucket() {
        for what in [0.5, 1.0, 1.5, 9.0] {
            TIMED.observe(&[], what);
        }
        let shown = TIMED.snapshot().unwrap();
        assert_eq!(shown.help, "[BETA] (Deprecated since 1.35.0) t");
        let Value::Histogram { buckets, sum, .. } = &shown.samples[0].value else { panic!("a histogram") };
        assert_eq!(*buckets, [(1.0, 2), (2.0, 3), (f64::INFINITY, 4)]);
        assert!((sum - 12.0).abs() < 1e-9);
    }

    #[test]
    fn exponential_buckets_hold_their_upper_bound() {
        let mut native = Native::default();
        for what in [0.0, 1.0, 2.0, 2.1, f64::NAN] {
            native.observe(what);
        }
        assert_eq!(native.zero, 1);
        assert_eq!(native.positive, BTreeMap::from([(0, 1), (8, 1), (9, 1)]));
    }
}
