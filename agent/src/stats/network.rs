//! Counters of network interfaces, from a process's own view of them.

use serde::Serialize;

/// Devices that only connect others, or nothing.
const IGNORED: [&str; 4] = ["lo", "veth", "docker", "nerdctl"];
const DEFAULT: &str = "eth0";

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Interface {
    pub name: String,
    pub rx_bytes: u64,
    pub rx_errors: u64,
    pub tx_bytes: u64,
    pub tx_errors: u64,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Network {
    pub time: String,
    /// The default interface, when there is one.
    #[serde(flatten)]
    pub default: Option<Interface>,
    pub interfaces: Vec<Interface>,
}

/// The interfaces that a process sees; `None` when it has gone or there are none.
pub fn read(process: &str, time: &str) -> Option<Network> {
    let interfaces = parse(&std::fs::read_to_string(format!("/proc/{process}/net/dev")).ok()?);
    let default = interfaces.iter().find(|i| i.name == DEFAULT).cloned();
    (!interfaces.is_empty()).then(|| Network { time: time.to_owned(), default, interfaces })
}

/// Bytes, packets, errors and drops each way.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Counters {
    pub name: String,
    pub received: [u64; 4],
    pub sent: [u64; 4],
}

/// All counters of the interfaces that a process sees.
pub fn counters(process: &str) -> Vec<Counters> {
    let text = std::fs::read_to_string(format!("/proc/{process}/net/dev")).unwrap_or_default();
    let interface = |line: &str| {
        let (name, numbers) = line.split_once(':')?;
        let numbers: Vec<u64> = numbers.split_whitespace().filter_map(|n| n.parse().ok()).collect();
        let name = name.trim();
        (!IGNORED.iter().any(|prefix| name.starts_with(prefix))).then_some(())?;
        let four = |from: usize| <[u64; 4]>::try_from(numbers.get(from..from + 4)?).ok();
        Some(Counters { name: name.to_owned(), received: four(0)?, sent: four(8)? })
    };
    text.lines().skip(2).filter_map(interface).collect()
}

/// `NAME: RX_BYTES PACKETS ERRORS ... TX_BYTES PACKETS ERRORS ...`, eight numbers each way, after two lines of heads.
fn parse(text: &str) -> Vec<Interface> {
    let interface = |line: &str| {
        let (name, numbers) = line.split_once(':')?;
        let numbers: Vec<u64> = numbers.split_whitespace().filter_map(|n| n.parse().ok()).collect();
        let name = name.trim();
        let shown = !IGNORED.iter().any(|prefix| name.starts_with(prefix));
        shown.then_some(())?;
        Some(Interface {
            name: name.to_owned(),
            rx_bytes: *numbers.first()?,
            rx_errors: *numbers.get(2)?,
            tx_bytes: *numbers.get(8)?,
            tx_errors: *numbers.get(10)?,
        })
    };
    text.lines().skip(2).filter_map(interface).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loopback_and_cables_between_namespaces_are_left_out() {
        let text = "Inter-| Receive\n face |bytes\n    lo: 1 1 1 0 0 0 0 0 1 1 1 0 0 0 0 0\n  eth0: 10 2 3 0 0 0 0 0 20 4 5 0 0 0 0 0\nveth1: 1 1 1 0 0 0 0 0 1 1 1 0 0 0 0 0\n";
        let got = parse(text);
        let want = Interface { name: "eth0".into(), rx_bytes: 10, rx_errors: 3, tx_bytes: 20, tx_errors: 5 };
        assert_eq!(got, [want]);
    }
}
