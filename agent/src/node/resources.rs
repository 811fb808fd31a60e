//! Capacity and allocatable: what the node has, and what of it pods may have.

use std::collections::BTreeMap;

use proto::quantity::{Format, Quantity};

use super::Machine;
use crate::config::Configuration;

/// Resource name to quantity.
pub type Resources = BTreeMap<String, Quantity>;

/// What the node has. `storage_bytes` is the size of the file system of the root folder, None when it is unknown.
pub fn capacity(machine: &Machine, storage_bytes: Option<u64>, config: &Configuration) -> Resources {
    let mut found = Resources::new();
    found.insert("cpu".into(), Quantity::from_integer(machine.cpus.into(), Format::DecimalSi));
    found.insert("memory".into(), bytes(machine.memory_bytes));
    let mut pods = i64::from(config.max_pods);
    if config.pods_per_core > 0 {
        pods = pods.min(i64::from(config.pods_per_core) * i64::from(machine.cpus));
    }
    found.insert("pods".into(), Quantity::from_integer(pods, Format::DecimalSi));
    if config.local_storage_capacity_isolation
        && let Some(storage) = storage_bytes
    {
        found.insert("ephemeral-storage".into(), bytes(storage));
    }
    for pages in &machine.huge_pages {
        let size = bytes(pages.page_bytes);
        found.insert(format!("hugepages-{size}"), bytes(pages.page_bytes * pages.pages));
    }
    found
}

/// Capacity less what is reserved; may be below zero.
pub fn unreserved(capacity: &Resources, config: &Configuration) -> Resources {
    let mut left = capacity.clone();
    for reserved in [&config.system_reserved, &config.kube_reserved] {
        for (name, amount) in reserved {
            if let (Some(have), Ok(amount)) = (left.get_mut(name), amount.parse::<Quantity>()) {
                have.subtract(amount);
            }
        }
    }
    left
}

/// What of the machine is reserved beyond what there is, in the kubelet's words; None when all of it is there.
/// `storage_bytes` as in [`capacity`]. What hard eviction keeps counts as reserved.
pub fn over_reserved(machine: &Machine, storage_bytes: Option<u64>, config: &Configuration) -> Option<String> {
    let mut found = capacity(machine, storage_bytes, config);
    // How many pods there may be is nothing that is reserved.
    found.remove("pods");
    let mut wrong = Vec::new();
    for (name, all) in &found {
        let mut reserved = Quantity::from_integer(0, all.format());
        let amounts = [&config.system_reserved, &config.kube_reserved].into_iter().filter_map(|list| list.get(name));
        let amounts = amounts.filter_map(|amount| amount.parse::<Quantity>().ok());
        amounts.chain(evicted(name, all, config)).for_each(|amount| reserved.add(amount));
        if reserved > *all {
            let (reserved, all) = (go_value(&reserved, false), go_value(all, name == "cpu"));
            wrong.push(format!(
                "Resource {name:?} has a reservation of {reserved} but capacity of {all}. Expected capacity >= reservation."
            ));
        }
    }
    (!wrong.is_empty()).then(|| format!("invalid Node Allocatable configuration. {}", wrong.join(" ")))
}

/// What hard eviction keeps of a resource.
fn evicted(name: &str, all: &Quantity, config: &Configuration) -> Option<Quantity> {
    let thresholds = [("memory.available", "memory"), ("nodefs.available", "ephemeral-storage")];
    let (signal, _) = thresholds.into_iter().find(|(_, resource)| *resource == name)?;
    threshold_of(config.eviction_hard.get(signal)?, all)
}

/// As Go prints the struct of a quantity: number and scale, no decimal, no text, format. CPUs are counted in thousandths by
/// the machine, and so are amounts that are no whole number.
fn go_value(quantity: &Quantity, in_thousandths: bool) -> String {
    let format = match quantity.format() {
        Format::BinarySi => "BinarySI",
        Format::DecimalSi => "DecimalSI",
        Format::DecimalExponent => "DecimalExponent",
    };
    match in_thousandths || !quantity.is_integer() {
        true => format!("{{{{{} -3}} {{<nil>}}  {format}}}", quantity.milli_value()),
        false => format!("{{{{{} 0}} {{<nil>}}  {format}}}", quantity.value()),
    }
}

/// Capacity less what is reserved and, unless that is not wanted, less the hard eviction thresholds; never below zero.
pub fn allocatable(capacity: &Resources, config: &Configuration, less_eviction: bool) -> Resources {
    let mut left = unreserved(capacity, config);
    for (name, have) in left.iter_mut().filter(|_| less_eviction) {
        if let Some(amount) = capacity.get(name).and_then(|all| evicted(name, all, config)) {
            have.subtract(amount);
        }
    }
    let huge: Vec<Quantity> =
        capacity.iter().filter(|(name, _)| name.starts_with("hugepages-")).map(|(_, q)| *q).collect();
    if let Some(memory) = left.get_mut("memory") {
        for pages in huge {
            memory.subtract(pages);
        }
    }
    for amount in left.values_mut() {
        if amount.sign() < 0 {
            *amount = Quantity::from_integer(0, amount.format());
        }
    }
    left
}

/// A threshold as an amount: a quantity, or a percentage of `all`.
fn threshold_of(threshold: &str, all: &Quantity) -> Option<Quantity> {
    // These two switch a signal off.
    if matches!(threshold, "0%" | "100%") {
        return None;
    }
    match threshold.strip_suffix('%') {
        // Go computes with a 32-bit float and cuts; the sum must come out the same.
        Some(percent) => {
            let share = percent.parse::<f32>().ok()? / 100.0;
            #[expect(clippy::cast_possible_truncation, reason = "cutting is what Go does")]
            let amount = (all.value() as f64 * f64::from(share)) as i64;
            Some(Quantity::from_integer(amount, Format::BinarySi))
        }
        None => threshold.parse().ok(),
    }
}

/// A number of things.
pub fn count(number: usize) -> Quantity {
    Quantity::from_integer(i64::try_from(number).unwrap_or(i64::MAX), Format::DecimalSi)
}

fn bytes(count: u64) -> Quantity {
    Quantity::from_integer(i64::try_from(count).unwrap_or(i64::MAX), Format::BinarySi)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::node::HugePages;

    /// Such a node ran, with nothing allocatable.
    #[test]
    fn more_cannot_be_reserved_than_there_is() {
        let machine = Machine { cpus: 2, memory_bytes: 1_003_839_488, ..Machine::default() };
        let config = |cpu: &str, memory: &str| Configuration {
            system_reserved: [("cpu".to_owned(), cpu.to_owned())].into(),
            kube_reserved: [("memory".to_owned(), memory.to_owned()), ("pid".to_owned(), "1000000".to_owned())].into(),
            eviction_hard: [("memory.available".to_owned(), "100Mi".to_owned())].into(),
            ..Configuration::default()
        };
        assert_eq!(over_reserved(&machine, None, &config("2", "850Mi")), None);
        let with_eviction = over_reserved(&machine, None, &config("2", "900Mi")).expect("100 MiB are kept free");
        assert!(with_eviction.contains("\"memory\" has a reservation of {{1048576000 0}"), "{with_eviction}");
        assert_eq!(
            over_reserved(&machine, None, &config("2500m", "2Gi")).as_deref(),
            Some(
                "invalid Node Allocatable configuration. Resource \"cpu\" has a reservation of {{2500 -3} {<nil>}  \
                 DecimalSI} but capacity of {{2000 -3} {<nil>}  DecimalSI}. Expected capacity >= reservation. Resource \
                 \"memory\" has a reservation of {{2252341248 0} {<nil>}  BinarySI} but capacity of {{1003839488 0} \
                 {<nil>}  BinarySI}. Expected capacity >= reservation."
            )
        );
    }

    /// The figures of a recorded node.
    #[test]
    fn allocatable_is_capacity_less_hard_eviction() {
        let machine = Machine {
            cpus: 2,
            memory_bytes: 4_016_548 * 1024,
            huge_pages: vec![HugePages { page_bytes: 2 << 20, pages: 0 }, HugePages { page_bytes: 1 << 30, pages: 0 }],
            ..Machine::default()
        };
        let config = Configuration {
            max_pods: 110,
            local_storage_capacity_isolation: true,
            eviction_hard: [("memory.available", "100Mi"), ("nodefs.available", "10%")]
                .map(|(k, v)| (k.to_owned(), v.to_owned()))
                .into(),
            ..Configuration::default()
        };
        let capacity = capacity(&machine, Some(8_154_588 * 1024), &config);
        let texts = |r: &Resources| r.iter().map(|(k, v)| format!("{k}={v}")).collect::<Vec<_>>();
        assert_eq!(
            texts(&capacity),
            [
                "cpu=2",
                "ephemeral-storage=8154588Ki",
                "hugepages-1Gi=0",
                "hugepages-2Mi=0",
                "memory=4016548Ki",
                "pods=110"
            ]
        );
        assert_eq!(
            texts(&allocatable(&capacity, &config, true)),
            [
                "cpu=2",
                "ephemeral-storage=7515268289",
                "hugepages-1Gi=0",
                "hugepages-2Mi=0",
                "memory=3914148Ki",
                "pods=110"
            ]
        );
    }

    /// They used to take everything away.
    #[test]
    fn thresholds_that_are_switched_off_take_nothing() {
        let machine = Machine { cpus: 1, memory_bytes: 4096, ..Machine::default() };
        for off in ["0%", "100%"] {
            let hard = [("memory.available".to_owned(), off.to_owned())].into();
            let config = Configuration { eviction_hard: hard, ..Configuration::default() };
            let capacity = capacity(&machine, None, &config);
            assert_eq!(allocatable(&capacity, &config, true)["memory"].value(), 4096, "{off}");
        }
        let hard = [("memory.available".to_owned(), "1Ki".to_owned())].into();
        let config = Configuration { eviction_hard: hard, ..Configuration::default() };
        let capacity = capacity(&machine, None, &config);
        let left = |less| allocatable(&capacity, &config, less)["memory"].value();
        assert_eq!((left(true), left(false)), (3072, 4096), "a flag leaves them out of account");
    }

    #[test]
    fn reservations_never_go_below_zero() {
        let machine = Machine { cpus: 1, memory_bytes: 1024, ..Machine::default() };
        let config = Configuration {
            max_pods: 5,
            system_reserved: [("cpu".to_owned(), "200m".to_owned()), ("memory".to_owned(), "1Gi".to_owned())].into(),
            ..Configuration::default()
        };
        let left = allocatable(&capacity(&machine, None, &config), &config, true);
        assert_eq!((left["cpu"].to_string().as_str(), left["memory"].to_string().as_str()), ("800m", "0"));
    }
}
