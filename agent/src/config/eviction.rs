//! Eviction thresholds: their text and what it means.
//!
//! Follows the kubelet's `eviction/helpers.go` in what is accepted and in the words of what is not.

use std::collections::BTreeMap;
use std::time::Duration;

use proto::quantity::Quantity;

use super::Configuration;

/// What a threshold watches.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Signal {
    MemoryAvailable,
    NodefsAvailable,
    NodefsInodesFree,
    ImagefsAvailable,
    ImagefsInodesFree,
    ContainerfsAvailable,
    ContainerfsInodesFree,
    AllocatableMemoryAvailable,
    PidAvailable,
}

const SIGNALS: &[(&str, Signal)] = &[
    ("memory.available", Signal::MemoryAvailable),
    ("nodefs.available", Signal::NodefsAvailable),
    ("nodefs.inodesFree", Signal::NodefsInodesFree),
    ("imagefs.available", Signal::ImagefsAvailable),
    ("imagefs.inodesFree", Signal::ImagefsInodesFree),
    ("containerfs.available", Signal::ContainerfsAvailable),
    ("containerfs.inodesFree", Signal::ContainerfsInodesFree),
    ("allocatableMemory.available", Signal::AllocatableMemoryAvailable),
    ("pid.available", Signal::PidAvailable),
];

impl Signal {
    /// As configurations and events write it.
    pub fn name(self) -> &'static str {
        SIGNALS.iter().find(|(_, signal)| *signal == self).map_or("", |(name, _)| name)
    }

    fn parse(name: &str) -> Result<Self, String> {
        let found = SIGNALS.iter().find(|(known, _)| *known == name);
        found.map(|(_, signal)| *signal).ok_or_else(|| format!("unsupported eviction signal {name}"))
    }
}

/// An amount, or a share of the capacity (0.1 is 10 %).
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum ThresholdValue {
    Amount(Quantity),
    Share(f32),
}

impl ThresholdValue {
    /// As a number of units of the capacity, cut as Go cuts.
    pub fn of(self, capacity: i64) -> i64 {
        match self {
            ThresholdValue::Amount(amount) => amount.value(),
            #[expect(clippy::cast_possible_truncation, clippy::cast_precision_loss, reason = "what Go does")]
            ThresholdValue::Share(share) => (capacity as f64 * f64::from(share)) as i64,
        }
    }
}

/// Below this, pods are evicted; none without a grace period, others after the signal was below for that long.
#[derive(Debug, Clone, PartialEq)]
pub struct Threshold {
    pub signal: Signal,
    pub value: ThresholdValue,
    /// None is a hard threshold.
    pub grace: Option<Duration>,
    /// How much above the threshold eviction goes on.
    pub minimum_reclaim: Option<ThresholdValue>,
}

/// The thresholds of a configuration, hard ones first.
///
/// # Errors
/// The first that cannot be meant, in the kubelet's words.
pub fn thresholds(config: &Configuration) -> Result<Vec<Threshold>, String> {
    let mut all = statements(&config.eviction_hard)?;
    let mut soft = statements(&config.eviction_soft)?;
    let graces = config.eviction_soft_grace_period.iter().map(|(name, text)| grace_period(name, text));
    let graces: BTreeMap<Signal, Duration> = graces.collect::<Result<_, _>>()?;
    let reclaims = config.eviction_minimum_reclaim.iter().map(|(name, text)| minimum_reclaim(name, text));
    let reclaims: BTreeMap<Signal, ThresholdValue> = reclaims.collect::<Result<_, _>>()?;
    for threshold in &mut soft {
        let grace = graces.get(&threshold.signal).ok_or_else(|| without_grace(threshold.signal))?;
        threshold.grace = Some(*grace);
    }
    all.append(&mut soft);
    for threshold in &mut all {
        threshold.minimum_reclaim = reclaims.get(&threshold.signal).copied();
    }
    if !config.allocatable_ignores_eviction && config.enforce_node_allocatable.iter().any(|e| e == "pods") {
        // The limit of all pods together is watched like the node's memory.
        let hard = all.iter().filter(|t| t.signal == Signal::MemoryAvailable && t.grace.is_none());
        let copies = hard.map(|t| Threshold { signal: Signal::AllocatableMemoryAvailable, ..t.clone() });
        let copies: Vec<Threshold> = copies.collect();
        all.extend(copies);
    }
    Ok(all)
}

/// The hard ones as what pods do not get of the node. What cannot be meant is left out; it was refused before.
pub(super) fn kept_from_pods(config: &Configuration) -> impl Iterator<Item = Threshold> {
    let counted = config.eviction_hard.iter().filter(|_| !config.allocatable_ignores_eviction);
    counted.filter_map(|(name, text)| statement(name, text).ok().flatten())
}

fn statements(list: &BTreeMap<String, String>) -> Result<Vec<Threshold>, String> {
    list.iter().filter_map(|(name, text)| statement(name, text).transpose()).collect()
}

/// Everything that cannot be meant in the hard thresholds.
pub(super) fn wrong_hard(config: &Configuration) -> Vec<String> {
    config.eviction_hard.iter().filter_map(|(name, text)| statement(name, text).err()).collect()
}

/// Everything that cannot be meant in the rest: soft thresholds, their grace periods, what to reclaim.
pub(super) fn wrong_soft(config: &Configuration) -> Vec<String> {
    let soft = config.eviction_soft.iter().filter_map(|(name, text)| statement(name, text).err());
    let graces = config.eviction_soft_grace_period.iter().filter_map(|(name, text)| grace_period(name, text).err());
    let reclaims = config.eviction_minimum_reclaim.iter().filter_map(|(name, text)| minimum_reclaim(name, text).err());
    let alone = config.eviction_soft.iter().filter_map(|(name, text)| {
        let meant = statement(name, text).ok().flatten()?;
        (!config.eviction_soft_grace_period.contains_key(name)).then(|| without_grace(meant.signal))
    });
    soft.chain(graces).chain(reclaims).chain(alone).collect()
}

fn without_grace(signal: Signal) -> String {
    format!("grace period must be specified for the soft eviction threshold {}", signal.name())
}

/// One threshold; None where it switches its signal off.
fn statement(name: &str, text: &str) -> Result<Option<Threshold>, String> {
    let signal = Signal::parse(name)?;
    let value = match text.strip_suffix('%') {
        // Switched off.
        Some("0" | "100") => return Ok(None),
        Some(_) => {
            let share = percentage(text)?;
            if share < 0.0 {
                return Err(format!("eviction percentage threshold {name} must be >= 0%: {text}"));
            }
            if share > 1.0 {
                return Err(format!("eviction percentage threshold {name} must be <= 100%: {text}"));
            }
            ThresholdValue::Share(share)
        }
        None => {
            let amount: Quantity = text.parse().map_err(|e: proto::quantity::ParseError| e.to_string())?;
            if amount.sign() <= 0 {
                return Err(format!("eviction threshold {name} must be positive: {amount}"));
            }
            ThresholdValue::Amount(amount)
        }
    };
    Ok(Some(Threshold { signal, value, grace: None, minimum_reclaim: None }))
}

fn grace_period(name: &str, text: &str) -> Result<(Signal, Duration), String> {
    let signal = Signal::parse(name)?;
    let nanos = proto::duration::parse(text).map_err(|e| e.to_string())?;
    let nanos = u64::try_from(nanos)
        .map_err(|_| format!("invalid eviction grace period specified: {text} must be a positive value"))?;
    Ok((signal, Duration::from_nanos(nanos)))
}

fn minimum_reclaim(name: &str, text: &str) -> Result<(Signal, ThresholdValue), String> {
    let signal = Signal::parse(name)?;
    let value = if text.ends_with('%') {
        let share = percentage(text)?;
        if share <= 0.0 {
            return Err(format!("eviction percentage minimum reclaim {name} must be positive: {text}"));
        }
        ThresholdValue::Share(share)
    } else {
        let amount: Quantity = text.parse().map_err(|e: proto::quantity::ParseError| e.to_string())?;
        if amount.sign() < 0 {
            return Err(format!("negative eviction minimum reclaim specified for {name}"));
        }
        ThresholdValue::Amount(amount)
    };
    Ok((signal, value))
}

fn percentage(text: &str) -> Result<f32, String> {
    let number = text.trim_end_matches('%');
    let parsed: f32 = number.parse().map_err(|_| format!("strconv.ParseFloat: parsing {number:?}: invalid syntax"))?;
    Ok(parsed / 100.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(entries: &[(&str, &str)]) -> BTreeMap<String, String> {
        entries.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect()
    }

    #[test]
    fn shares_and_amounts_are_read_and_the_ends_switch_off() {
        let list = map(&[("memory.available", "100Mi"), ("nodefs.available", "10%"), ("pid.available", "0%")]);
        let found = statements(&list).expect("valid");
        assert_eq!(found.len(), 2);
        assert_eq!(found[0].value.of(1 << 40), 100 << 20);
        assert_eq!(found[1].value.of(1000), 100);
    }

    #[test]
    fn what_cannot_be_meant_is_told_in_the_kubelets_words() {
        let error = |key: &str, value: &str| statements(&map(&[(key, value)])).expect_err("refused");
        assert_eq!(error("memory.avail", "1Mi"), "unsupported eviction signal memory.avail");
        assert_eq!(
            error("memory.available", "-1%"),
            "eviction percentage threshold memory.available must be >= 0%: -1%"
        );
        assert_eq!(error("memory.available", "-5Mi"), "eviction threshold memory.available must be positive: -5Mi");
        let soft = Configuration { eviction_soft: map(&[("memory.available", "1Mi")]), ..Configuration::default() };
        assert!(thresholds(&soft).expect_err("refused").contains("grace period must be specified"));
    }
}
