//! The same said in the same words: a server that answers in protobuf writes what is no pointer in Go even where it is
//! nothing, and knows no time below the second. Statuses of which one was made here and the other was read then differ though
//! they say the same, and to find that out by their JSON costs as much as the rest of what is done for a status.

use proto::api::core::v1::{ContainerState, ContainerStatus, PodCondition, PodStatus};
use proto::apimachinery::pkg::apis::meta::v1::Time;

/// Gives `wanted` the words of `shown` wherever both mean the same.
pub(super) fn adopt(shown: &PodStatus, wanted: &mut PodStatus) {
    for (shown, wanted) in shown.conditions.iter().zip(&mut wanted.conditions) {
        adopt_condition(shown, wanted);
    }
    let lists = [
        (&shown.init_container_statuses, &mut wanted.init_container_statuses),
        (&shown.container_statuses, &mut wanted.container_statuses),
        (&shown.ephemeral_container_statuses, &mut wanted.ephemeral_container_statuses),
    ];
    for (shown, wanted) in lists.into_iter().flat_map(|(shown, wanted)| shown.iter().zip(wanted)) {
        adopt_container(shown, wanted);
    }
}

fn adopt_condition(shown: &PodCondition, wanted: &mut PodCondition) {
    adopt_time(shown.last_probe_time, &mut wanted.last_probe_time);
    adopt_time(shown.last_transition_time, &mut wanted.last_transition_time);
}

fn adopt_container(shown: &ContainerStatus, wanted: &mut ContainerStatus) {
    for (shown, wanted) in [(&shown.state, &mut wanted.state), (&shown.last_state, &mut wanted.last_state)] {
        let none = |state: &Option<ContainerState>| state.as_ref().is_none_or(|s| *s == ContainerState::default());
        if none(shown) && none(wanted) {
            wanted.clone_from(shown);
        }
    }
}

/// No time is all zeros.
fn adopt_time(shown: Option<Time>, wanted: &mut Option<Time>) {
    if shown.unwrap_or_default().seconds == wanted.unwrap_or_default().seconds {
        *wanted = shown;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proto::api::core::v1::ContainerStateRunning;

    fn time(seconds: i64, nanos: i32) -> Option<Time> {
        Some(Time { seconds, nanos })
    }

    fn status(condition: PodCondition, container: ContainerStatus) -> PodStatus {
        let containers = vec![container];
        PodStatus {
            conditions: vec![condition],
            init_container_statuses: containers.clone(),
            container_statuses: containers.clone(),
            ephemeral_container_statuses: containers,
            ..Default::default()
        }
    }

    /// Each status was compared as JSON several times after it had been sent, as none was ever found to be what was stored.
    #[test]
    fn what_a_server_stores_is_what_was_sent() {
        let condition = |probed, since| PodCondition {
            r#type: "Ready".into(),
            last_probe_time: probed,
            last_transition_time: since,
            ..Default::default()
        };
        let container = |last: Option<ContainerState>| ContainerStatus { last_state: last, ..Default::default() };
        let stored = status(condition(time(0, 0), time(7, 0)), container(Some(ContainerState::default())));
        let mut sent = status(condition(None, time(7, 123)), container(None));
        adopt(&stored, &mut sent);
        assert_eq!(sent, stored);
        // The other way, too.
        let mut again = stored.clone();
        let made = status(condition(None, time(7, 0)), container(None));
        adopt(&made, &mut again);
        assert_eq!(again, made);
    }

    #[test]
    fn what_differs_stays_as_it_is_wanted() {
        let running = ContainerState { running: Some(ContainerStateRunning::default()), ..Default::default() };
        let of = |since, state: Option<&ContainerState>| {
            let condition = PodCondition { last_transition_time: since, ..Default::default() };
            status(condition, ContainerStatus { last_state: state.cloned(), ..Default::default() })
        };
        for (shown, wanted) in [
            (of(time(7, 0), None), of(time(8, 0), Some(&running))),
            (of(time(7, 0), Some(&running)), of(None, None)),
            (PodStatus::default(), of(time(8, 5), Some(&ContainerState::default()))),
        ] {
            let mut said = wanted.clone();
            adopt(&shown, &mut said);
            assert_eq!(said, wanted);
        }
    }
}
