//! How fast the nodes of a zone may be emptied: the fewer of them are well, the more likely the fault is elsewhere.
//!
//! The numbers are the defaults of `--node-eviction-rate`, `--secondary-node-eviction-rate`,
//! `--large-cluster-size-threshold` and `--unhealthy-zone-threshold`.

use std::time::Duration;

use tokio::time::Instant;

use crate::store::ObjectRef;

/// Between two nodes of a zone that is well, or where no node is.
const NORMAL: Duration = Duration::from_secs(10);
/// Between two of a large zone that is disrupted in part; a smaller one stops.
const REDUCED: Duration = Duration::from_secs(100);
const LARGE: usize = 50;
/// Percent of nodes that are not ready from which on a zone is disrupted, and at least how many.
const DISRUPTED_PERCENT: usize = 55;
const DISRUPTED_LEAST: usize = 3;
/// When nodes are looked at again of which no more were emptied for a while, as `--node-monitor-period`.
pub const PERIOD: Duration = Duration::from_secs(5);

/// Region and zone of a node by its labels.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct Zone(Box<str>, Box<str>);

impl Zone {
    pub fn of(node: &ObjectRef) -> Self {
        let label = |key| node.label(key).unwrap_or_default().into();
        Zone(label("topology.kubernetes.io/region"), label("topology.kubernetes.io/zone"))
    }
}

/// When the next node of a zone may be emptied.
#[derive(Debug, Default)]
pub struct Pace {
    last: Option<Instant>,
}

impl Pace {
    /// Takes the turn of one node; `ready` and `others` are the nodes of the zone.
    ///
    /// # Errors
    /// How long to wait when it is not its turn.
    pub fn take(&mut self, now: Instant, ready: usize, others: usize) -> Result<(), Duration> {
        let interval = interval(ready, others).ok_or(PERIOD)?;
        match self.last.map(|last| (last + interval).saturating_duration_since(now)) {
            Some(left) if !left.is_zero() => Err(left),
            _ => {
                self.last = Some(now);
                Ok(())
            }
        }
    }
}

/// Time between two nodes; None when nothing is to be done to any.
fn interval(ready: usize, others: usize) -> Option<Duration> {
    let all = ready + others;
    let in_part = ready > 0 && others >= DISRUPTED_LEAST && others * 100 >= all * DISRUPTED_PERCENT;
    match in_part {
        false => Some(NORMAL),
        true => (all > LARGE).then_some(REDUCED),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_zone_that_is_disrupted_in_part_slows_down_or_stops() {
        assert_eq!(interval(3, 2), Some(NORMAL));
        assert_eq!(interval(1, 2), Some(NORMAL), "two are few");
        assert_eq!(interval(0, 9), Some(NORMAL), "another zone is well");
        assert_eq!(interval(2, 3), None);
        assert_eq!(interval(20, 40), Some(REDUCED));
    }

    #[tokio::test(start_paused = true)]
    async fn nodes_of_a_zone_are_emptied_one_after_the_other() {
        let (mut pace, now) = (Pace::default(), Instant::now());
        assert_eq!(pace.take(now, 5, 2), Ok(()));
        assert_eq!(pace.take(now, 5, 2), Err(NORMAL));
        let later = now + Duration::from_secs(4);
        assert_eq!(pace.take(later, 5, 2), Err(Duration::from_secs(6)));
        assert_eq!(pace.take(now + NORMAL, 5, 2), Ok(()));
        assert_eq!(pace.take(now + 9 * NORMAL, 2, 5), Err(PERIOD));
    }
}
