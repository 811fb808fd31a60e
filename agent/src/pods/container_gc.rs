//! Dead containers beyond what the operator lets the node keep, over all pods.
//!
//! Workers keep the tries of their own containers to their number as they come. What is left is this module's: a number
//! for the whole node, none at all for a container, and an age below which nothing is taken. Containers of pods that are
//! gone are their workers' to remove, whatever the policy.
//!
//! Followed: `pkg/kubelet/kuberuntime/kuberuntime_gc.go`.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use proto::api::core::v1::Pod;
use proto::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use proto::cri;

use crate::pod::labels::{self, PodRef};

use super::{Shared, gc};

/// Between looks, as the kubelet.
const PERIOD: Duration = Duration::from_secs(60);

/// What may stay of dead containers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ContainerGc {
    /// Younger ones stay.
    pub minimum_age: Duration,
    /// Of each container; below zero means any number.
    pub per_container: i64,
    /// Of all together; below zero means any number.
    pub total: i64,
}

impl Default for ContainerGc {
    fn default() -> Self {
        ContainerGc { minimum_age: Duration::ZERO, per_container: 1, total: -1 }
    }
}

impl ContainerGc {
    /// Dead tries of a container that stay while its pod goes on: one at least, for its last state and log.
    pub(super) fn kept_at_once(&self) -> usize {
        usize::try_from(self.per_container).unwrap_or(0).max(1)
    }

    /// Whether workers leave anything to do.
    fn has_work(&self) -> bool {
        self.per_container == 0 || self.total >= 0
    }
}

/// A dead container.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Dead<'a> {
    pod: PodRef<'a>,
    name: &'a str,
    id: &'a str,
    attempt: u32,
    created_at: i64,
}

/// Looks for dead containers now and then until dropped; returns where there is nothing to look for.
pub(super) async fn run(shared: Arc<Shared>) {
    let policy = &shared.config.container_gc;
    if !policy.has_work() {
        return;
    }
    let mut ticks = tokio::time::interval(PERIOD);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        let listed = match shared.cri.list_containers(None).await {
            Ok(listed) => listed,
            Err(error) => {
                tracing::warn!(%error, "cannot look for dead containers");
                continue;
            }
        };
        let now = time::OffsetDateTime::now_utc().unix_timestamp_nanos();
        let newest = now.saturating_sub(i128::try_from(policy.minimum_age.as_nanos()).unwrap_or(i128::MAX));
        let dead = listed.iter().filter_map(dead).filter(|dead| i128::from(dead.created_at) <= newest);
        for container in superfluous(dead.collect(), policy) {
            let metadata = ObjectMeta {
                uid: container.pod.uid.to_owned(),
                name: container.pod.name.to_owned(),
                namespace: container.pod.namespace.to_owned(),
                ..ObjectMeta::default()
            };
            let pod = Pod { metadata: Some(metadata), ..Pod::default() };
            gc::remove_container(&shared, &pod, container.name, container.id, Some(container.attempt)).await;
        }
    }
}

fn dead(container: &cri::Container) -> Option<Dead<'_>> {
    let metadata = container.metadata.as_ref()?;
    let exited = container.state == cri::ContainerState::ContainerExited as i32;
    let pod = labels::owner(&container.labels).filter(|_| exited)?;
    Some(Dead {
        pod,
        name: &metadata.name,
        id: &container.id,
        attempt: metadata.attempt,
        created_at: container.created_at,
    })
}

/// What the policy does not leave, the oldest first in each container.
fn superfluous<'a>(dead: Vec<Dead<'a>>, policy: &ContainerGc) -> Vec<Dead<'a>> {
    let mut units: BTreeMap<(&str, &str), Vec<Dead<'a>>> = BTreeMap::new();
    for container in dead {
        units.entry((container.pod.uid, container.name)).or_default().push(container);
    }
    units.values_mut().for_each(|unit| newest_first(unit));
    let mut gone = Vec::new();
    let mut keep = |units: &mut BTreeMap<_, Vec<Dead<'a>>>, most: usize| {
        for unit in units.values_mut() {
            gone.extend(unit.drain(most.min(unit.len())..).rev());
        }
    };
    if let Ok(most) = usize::try_from(policy.per_container) {
        keep(&mut units, most);
    }
    let Ok(total) = usize::try_from(policy.total) else { return gone };
    let count = |units: &BTreeMap<_, Vec<_>>| units.values().map(Vec::len).sum::<usize>();
    if count(&units) > total {
        // As many for each container, but one at least.
        let share = total / units.len().max(1);
        keep(&mut units, share.max(1));
        let mut left: Vec<Dead<'a>> = units.into_values().flatten().collect();
        newest_first(&mut left);
        gone.extend(left.drain(total.min(left.len())..).rev());
    }
    gone
}

fn newest_first(containers: &mut [Dead<'_>]) {
    containers.sort_by_key(|c| std::cmp::Reverse((c.attempt, c.created_at)));
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Containers `NAME.ATTEMPT` of pod `u`, made in the order of the list.
    fn left(ids: &[&'static str], per_container: i64, total: i64) -> Vec<&'static str> {
        let pod = PodRef { uid: "u", name: "p", namespace: "n" };
        let made = ids.iter().zip(1..).map(|(id, created_at)| {
            let (name, attempt) = id.split_once('.').expect("two parts");
            Dead { pod, name, id, attempt: attempt.parse().expect("a number"), created_at }
        });
        let policy = ContainerGc { per_container, total, ..ContainerGc::default() };
        let gone = superfluous(made.collect(), &policy);
        ids.iter().copied().filter(|id| gone.iter().all(|dead| dead.id != *id)).collect()
    }

    #[test]
    fn the_newest_stay_as_many_as_are_let() {
        let all = ["a.0", "b.0", "a.1", "a.2", "b.1", "c.0"];
        for (per_container, total, wanted) in [
            (-1, -1, &all[..]),
            (1, -1, &["a.2", "b.1", "c.0"]),
            (2, -1, &["b.0", "a.1", "a.2", "b.1", "c.0"]),
            (0, -1, &[]),
            (-1, 6, &all[..]),
            // One for each container.
            (-1, 5, &["a.2", "b.1", "c.0"]),
            (-1, 3, &["a.2", "b.1", "c.0"]),
            // The fewest tries go first.
            (1, 2, &["a.2", "b.1"]),
            (-1, 0, &[]),
        ] {
            assert_eq!(left(&all, per_container, total), wanted, "{per_container} {total}");
        }
        assert_eq!(left(&[], 0, 0), Vec::<&str>::new());
    }

    #[test]
    fn workers_keep_one_at_least_and_leave_the_rest() {
        let policy = |per_container, total| ContainerGc { per_container, total, ..ContainerGc::default() };
        let of = |policy: ContainerGc| (policy.kept_at_once(), policy.has_work());
        assert_eq!(of(ContainerGc::default()), (1, false));
        assert_eq!((of(policy(0, -1)), of(policy(3, -1)), of(policy(-1, -1))), ((1, true), (3, false), (1, false)));
        assert_eq!(of(policy(1, 0)), (1, true));
    }

    #[test]
    fn only_dead_containers_of_pods_count() {
        let container = |state: cri::ContainerState, labelled: bool| {
            let labels = [(labels::POD_UID, "u"), (labels::POD_NAME, "p"), (labels::POD_NAMESPACE, "n")];
            let labels = labels.map(|(k, v)| (k.to_owned(), v.to_owned()));
            cri::Container {
                id: "i".into(),
                metadata: Some(cri::ContainerMetadata { name: "c".into(), attempt: 2 }),
                state: state as i32,
                labels: if labelled { labels.into() } else { Default::default() },
                ..cri::Container::default()
            }
        };
        let found = container(cri::ContainerState::ContainerExited, true);
        assert_eq!(dead(&found).map(|dead| (dead.pod.uid, dead.name, dead.attempt)), Some(("u", "c", 2)));
        assert_eq!(dead(&container(cri::ContainerState::ContainerExited, false)), None);
        for state in [cri::ContainerState::ContainerRunning, cri::ContainerState::ContainerCreated] {
            assert_eq!(dead(&container(state, true)), None);
        }
    }
}
