//! Memory that is reserved for the pods of a QoS class against those of the classes below (`qosReserved`, gate
//! `QOSReserved`).
//!
//! Followed: `setMemoryReserve` of the kubelet's QoS container manager.

use std::collections::BTreeMap;

/// How much of the memory that pods ask for others may not have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MemoryReserved {
    /// 0 to 100.
    pub percent: i64,
    /// What pods may have of the node.
    pub allocatable_bytes: i64,
}

impl MemoryReserved {
    /// Of `qosReserved`; None where memory is not in it, or pods may have none.
    pub fn of(list: &BTreeMap<String, String>, allocatable_bytes: i64) -> Option<Self> {
        let percent = list.get("memory")?.strip_suffix('%')?.parse().ok()?;
        (allocatable_bytes > 0).then_some(MemoryReserved { percent, allocatable_bytes })
    }

    /// What the Burstable and the BestEffort tier may have while pods of the two upper classes ask for so many bytes.
    pub(super) fn left(self, guaranteed: i64, burstable: i64) -> [i64; 2] {
        let share = |bytes: i64| i64::try_from(i128::from(bytes) * i128::from(self.percent) / 100).unwrap_or(i64::MAX);
        let for_burstable = self.allocatable_bytes.saturating_sub(share(guaranteed));
        let for_best_effort = for_burstable.saturating_sub(share(burstable));
        [for_burstable.max(0), for_best_effort.max(0)]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lower_classes_have_what_the_upper_ones_leave() {
        let of = |text: &str| MemoryReserved::of(&[("memory".to_owned(), text.to_owned())].into(), 1000);
        let left = |text: &str| of(text).expect("reserved").left(300, 500);
        assert_eq!(left("100%"), [700, 200]);
        assert_eq!(left("50%"), [850, 600]);
        assert_eq!(left("0%"), [1000, 1000]);
        assert_eq!(of("100%").expect("reserved").left(2000, 1), [0, 0], "more is asked for than there is");
        assert_eq!((of("x"), MemoryReserved::of(&BTreeMap::new(), 1000)), (None, None));
    }
}
