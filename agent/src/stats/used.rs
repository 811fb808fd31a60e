//! The few figures of `/metrics/resource`, which is scraped more often than any other page: read and handed on without the
//! times, names and rates of a [`super::Summary`].

use std::sync::Arc;

use super::cgroup::{Cgroup, Reading, Wanted};
use super::{PodFound, Pods};

/// What a cgroup has used and uses; `None` is what the kernel does not tell.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Use {
    pub cpu_nanos: Option<u64>,
    /// Bytes, like those below.
    pub working_set: Option<u64>,
    pub swap: Option<u64>,
    /// Of a container alone.
    pub swap_limit: Option<u64>,
}

/// What the node uses, and all pods with running containers.
#[derive(Debug, Default)]
pub struct Used {
    /// Something that is there could not be read.
    pub(super) failed: bool,
    pub(super) node: Use,
    pods: Arc<Pods>,
    /// In the order of `pods`.
    read: Vec<PodUse>,
}

/// A pod's own, and that of each of its containers in their order.
#[derive(Debug, Default)]
pub(super) struct PodUse {
    pub whole: Use,
    pub containers: Vec<Use>,
}

impl Used {
    /// Reads all of it, from several files of each cgroup: not for a thread that pods wait for.
    pub(super) fn read(pods: Arc<Pods>, root: &Cgroup) -> Self {
        let mut failed = false;
        let node = Use::read(root, Wanted::Use, &mut failed);
        let read = shown(&pods).map(|pod| PodUse::read(pod, &mut failed)).collect();
        Used { failed, node, pods, read }
    }

    pub(super) fn pods(&self) -> impl Iterator<Item = (&PodFound, &PodUse)> {
        shown(&self.pods).zip(&self.read)
    }
}

/// Upstream gathers pods from the statistics of their containers: one without any is not there.
fn shown(pods: &Pods) -> impl Iterator<Item = &PodFound> {
    pods.values().filter(|pod| !pod.containers.is_empty())
}

impl PodUse {
    fn read(pod: &PodFound, failed: &mut bool) -> Self {
        let of_container = |(_, found): &(String, _)| {
            let found: &Arc<super::Found> = found;
            Use::read(&found.cgroup, Wanted::UseAndLimit, failed)
        };
        let containers: Vec<Use> = pod.containers.iter().map(of_container).collect();
        let whole = match &pod.sandbox {
            Some(sandbox) => match &sandbox.around {
                Some(around) => Use::read(around, Wanted::Use, failed),
                // Without a cgroup around them, a pod uses what its parts use.
                None => {
                    containers.iter().fold(Use::read(&sandbox.cgroup, Wanted::Use, failed), |sum, part| sum.and(part))
                }
            },
            None => Use::default(),
        };
        PodUse { whole, containers }
    }
}

impl Use {
    fn read(cgroup: &Cgroup, wanted: Wanted, failed: &mut bool) -> Self {
        let used = Use::from(cgroup.read(wanted));
        *failed |= used.cpu_nanos.is_none() && used.working_set.is_none() && cgroup.exists();
        used
    }

    /// Of both together; nothing where one of them does not tell.
    fn and(self, other: &Self) -> Self {
        let sum = |a: Option<u64>, b: Option<u64>| Some(a?.saturating_add(b?));
        Use {
            cpu_nanos: sum(self.cpu_nanos, other.cpu_nanos),
            working_set: sum(self.working_set, other.working_set),
            swap: sum(self.swap, other.swap),
            swap_limit: None,
        }
    }
}

impl From<Reading> for Use {
    fn from(reading: Reading) -> Self {
        Use {
            cpu_nanos: reading.cpu_nanos,
            working_set: reading.working_set,
            swap: reading.swap_usage,
            // A limit that was lowered below what is in use counts as that much.
            swap_limit: reading.swap_limit.zip(reading.swap_usage).map(|(limit, used)| limit.max(used)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sum_of_what_is_not_told_is_not_told() {
        let part = |cpu, swap| Use { cpu_nanos: Some(cpu), working_set: Some(10), swap, swap_limit: Some(1) };
        let sum = part(1, Some(5)).and(&part(2, None));
        assert_eq!(sum, Use { cpu_nanos: Some(3), working_set: Some(20), swap: None, swap_limit: None });
        let over = Reading { swap_usage: Some(9), swap_limit: Some(4), ..Reading::default() };
        assert_eq!(Use::from(over).swap_limit, Some(9));
    }
}
