//! A priority level: what its configuration makes of it, and where its seats are counted.

use http::HeaderValue;
use serde_json::Value;

/// What a level's configuration says, read once.
#[derive(Debug, Clone, PartialEq)]
pub enum Kind {
    /// Its requests never wait and are not counted.
    Exempt,
    Limited(Limited),
}

#[derive(Debug, Clone, PartialEq)]
pub struct Limited {
    pub shares: u32,
    /// Per cent of its seats that others may have while it does not need them.
    pub lendable: u32,
    /// Per cent of its seats that it may have of others on top; None for any number.
    pub borrowing: Option<u32>,
    /// None where requests are sent away at once.
    pub queuing: Option<Queuing>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Queuing {
    pub queues: u32,
    /// Queues that a flow is dealt, to wait in the one of them with the least in it.
    pub hand: u32,
    /// Requests that may wait in a queue.
    pub length: u32,
}

/// A level as requests find it.
#[derive(Debug)]
pub struct Level {
    pub name: Box<str>,
    /// Its uid as the header of an answer.
    pub uid: HeaderValue,
    pub kind: Kind,
    /// Its place in the pool of seats; none for an exempt one.
    pub slot: Option<usize>,
    /// The most seats that one request takes.
    pub widest: u32,
}

/// The seats of a level.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Share {
    pub nominal: u32,
    /// What is left when all is lent that may be.
    pub min: u32,
    pub max: u32,
}

fn number(value: &Value, default: u32) -> u32 {
    value.as_u64().and_then(|n| u32::try_from(n).ok()).unwrap_or(default)
}

impl Kind {
    /// Reads a PriorityLevelConfiguration's specification.
    pub fn of(spec: &Value) -> Self {
        if spec["type"] == "Exempt" {
            return Kind::Exempt;
        }
        let limited = &spec["limited"];
        let queuing = &limited["limitResponse"]["queuing"];
        let queues = number(&queuing["queues"], 64).max(1);
        Kind::Limited(Limited {
            shares: number(&limited["nominalConcurrencyShares"], 30),
            lendable: number(&limited["lendablePercent"], 0).min(100),
            borrowing: limited["borrowingLimitPercent"].as_u64().and_then(|n| u32::try_from(n).ok()),
            queuing: (limited["limitResponse"]["type"] == "Queue").then(|| Queuing {
                queues,
                hand: number(&queuing["handSize"], 8).clamp(1, queues),
                length: number(&queuing["queueLengthLimit"], 50),
            }),
        })
    }

    /// Shares of the server's seats; for an exempt level they only make the others' smaller.
    pub fn shares(spec: &Value) -> u64 {
        let kind = if spec["type"] == "Exempt" { "exempt" } else { "limited" };
        let usual = if kind == "exempt" { 0 } else { 30 };
        spec[kind]["nominalConcurrencyShares"].as_u64().unwrap_or(usual)
    }
}

impl Limited {
    /// Its part of the server's seats, as upstream rounds it.
    pub fn share(&self, seats: u32, all_shares: u64) -> Share {
        let part = (u64::from(seats) * u64::from(self.shares)).div_ceil(all_shares.max(1));
        let nominal = u32::try_from(part).unwrap_or(u32::MAX);
        let percent = |of: u32| u32::try_from((u64::from(nominal) * u64::from(of) + 50) / 100).unwrap_or(u32::MAX);
        Share {
            nominal,
            min: nominal.saturating_sub(percent(self.lendable)),
            max: self.borrowing.map_or(seats.max(nominal), |of| nominal.saturating_add(percent(of))),
        }
    }

    /// The most seats that one request takes: a flow's whole hand of such must not fill the level.
    pub fn widest(&self, nominal: u32) -> u32 {
        let hand = self.queuing.map_or(1, |q| q.hand);
        nominal.div_ceil(hand).clamp(1, MOST_SEATS)
    }
}

/// The most seats of any request.
const MOST_SEATS: u32 = 10;

#[cfg(test)]
mod tests {
    use super::super::bootstrap;
    use super::*;

    #[test]
    fn seats_are_shared_as_upstream_shares_them() {
        let levels = bootstrap::levels();
        let all: u64 = levels.iter().map(|level| Kind::shares(&level["spec"])).sum();
        assert_eq!(all, 245);
        let share = |name: &str| {
            let level = levels.iter().find(|level| level["metadata"]["name"] == name).expect("is there");
            match Kind::of(&level["spec"]) {
                Kind::Limited(limited) => limited.share(600, all),
                Kind::Exempt => panic!("{name} is exempt"),
            }
        };
        assert_eq!(share("workload-low"), Share { nominal: 245, min: 24, max: 600 });
        assert_eq!(share("system"), Share { nominal: 74, min: 50, max: 600 });
        assert_eq!(share("catch-all"), Share { nominal: 13, min: 13, max: 600 });
    }

    #[test]
    fn what_may_be_borrowed_is_limited() {
        let spec = serde_json::json!({"type": "Limited", "limited": {"nominalConcurrencyShares": 10,
            "borrowingLimitPercent": 50, "limitResponse": {"type": "Reject"}}});
        let Kind::Limited(limited) = Kind::of(&spec) else { panic!("limited") };
        assert_eq!(limited.share(100, 100), Share { nominal: 10, min: 10, max: 15 });
        assert_eq!(limited.queuing, None);
    }
}
