//! Pods that were said to be about to go and are still there: what was said is taken back after two minutes.

use std::time::Duration;

use proto::time::Timestamp;
use serde_json::{Value, json};

use crate::client::{Client, unchanged};
use crate::controllers::ownership::done;
use crate::controllers::pods::{PodDigest, condition, is_active, seconds};
use crate::status::Result;
use crate::store::{Key, ObjectRef};

/// As `stalePodDisruptionTimeout`, in seconds.
const STALE: i64 = 120;

/// How long it takes until a living pod's `DisruptionTarget` counts for nothing; None for a pod that has none.
pub(super) fn stale_in(pod: &ObjectRef, now: i64) -> Option<Duration> {
    let since = PodDigest::of(pod).disrupted_since;
    (since > 0 && is_active(pod)).then(|| Duration::from_secs((since + STALE - now).max(0).unsigned_abs()))
}

/// Takes the condition back if its time is over; or when it will be.
pub(super) async fn sync(client: &Client, key: &Key) -> Result<Option<Duration>> {
    let Some(pod) = client.get("pods", &key.namespace, &key.name) else { return Ok(None) };
    let Some(left) = stale_in(&pod, Timestamp::now().seconds) else { return Ok(None) };
    if !left.is_zero() {
        return Ok(Some(left));
    }
    let written = client.update_status("pods", &key.namespace, &key.name, |value| {
        match value["metadata"]["uid"] == *pod.keys.uid && reset(value, Timestamp::now()) {
            true => Ok(()),
            false => Err(unchanged()),
        }
    });
    done(written.await.map(|_| ()))?;
    Ok(None)
}

/// Whether there was something to take back.
fn reset(pod: &mut Value, now: Timestamp) -> bool {
    let old = condition(pod, "DisruptionTarget").filter(|c| c["status"] == "True");
    if old.is_none_or(|old| now.seconds - seconds(&old["lastTransitionTime"]) < STALE) {
        return false;
    }
    let list = pod["status"]["conditions"].as_array_mut().into_iter().flatten();
    let reset = json!({"type": "DisruptionTarget", "status": "False", "lastProbeTime": null,
        "lastTransitionTime": now.to_seconds_text()});
    list.into_iter().filter(|c| c["type"] == "DisruptionTarget").for_each(|c| *c = reset.clone());
    true
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::controllers::disruption::tests::pod;

    fn marked(status: &str, reason: &str, phase: &str) -> ObjectRef {
        let target = json!({"type": "DisruptionTarget", "status": status, "reason": reason,
            "lastTransitionTime": "1970-01-01T00:10:00Z"});
        pod("p", json!({"status": {"phase": phase, "conditions": [target]}}))
    }

    #[test]
    fn what_was_said_of_a_living_pod_is_old_after_two_minutes() {
        let evicted = marked("True", "EvictionByEvictionAPI", "Running");
        assert_eq!(stale_in(&evicted, 620), Some(Duration::from_secs(100)));
        assert_eq!(stale_in(&evicted, 800), Some(Duration::ZERO));
        assert_eq!(stale_in(&marked("False", "", "Running"), 800), None);
        assert_eq!(stale_in(&marked("True", "TerminationByKubelet", "Running"), 800), None, "that one will go");
        assert_eq!(stale_in(&marked("True", "EvictionByEvictionAPI", "Failed"), 800), None);
    }

    #[test]
    fn the_condition_is_taken_back_with_its_reason() {
        let mut value = marked("True", "EvictionByEvictionAPI", "Running").value();
        let at = |seconds: i64| Timestamp { seconds, ..Timestamp::now() };
        assert!(!reset(&mut value, at(700)));
        assert!(reset(&mut value, at(720)));
        let now = condition(&value, "DisruptionTarget").expect("it stays");
        assert_eq!((&now["status"], &now["reason"]), (&json!("False"), &Value::Null));
        assert!(!reset(&mut value, at(900)));
    }
}
