//! Devices that somebody makes ready once a pod is to go to their node (`bindingConditions` of a device, `conditions` in the
//! status of its claim): the pod is bound when all are, and tries again elsewhere when one cannot be or takes too long.
//!
//! Follows the scheduler's plugin for dynamic resources before it binds, but looks when a claim changes instead of every
//! five seconds.

use std::time::Duration;

use proto::time::{Timestamp, parse_rfc3339};
use serde_json::Value;
use tokio::time::Instant;

use crate::client::Client;
use crate::controllers::feed::Feed;
use crate::controllers::resource_claims::CLAIMS;
use crate::status::{ApiError, Result, quote};
use crate::store::ObjectRef;
use crate::tree::{list, text};

/// How long devices may take to get ready, as upstream.
const TIMEOUT: Duration = Duration::from_secs(600);

/// How the devices of a claim are.
#[derive(Debug, PartialEq)]
pub enum Readiness {
    /// There is nothing to wait for (any more).
    Ready,
    Waiting,
    /// One cannot be made ready, with what is said of it.
    Failed(String),
}

/// What an allocation gave away that has to be made ready.
fn conditional(claim: &Value) -> impl Iterator<Item = &Value> {
    let results = list(&claim["status"]["allocation"]["devices"], "results");
    results.filter(|result| list(result, "bindingConditions").next().is_some())
}

pub fn has_conditions(claim: &Value) -> bool {
    conditional(claim).next().is_some()
}

/// Whose devices have to be made ready.
pub fn drivers(claim: &Value) -> Vec<String> {
    conditional(claim).map(|result| text(result, "driver").to_owned()).collect()
}

/// Whether a wait ended because it took too long.
pub fn is_timeout(error: &ApiError) -> bool {
    error.status().message.ends_with("binding timeout")
}

pub fn readiness(claim: &Value) -> Readiness {
    for result in conditional(claim) {
        let same = |device: &&Value| {
            ["driver", "pool", "device", "shareID"].iter().all(|part| text(device, part) == text(result, part))
        };
        let Some(device) = list(&claim["status"], "devices").find(same) else { return Readiness::Waiting };
        let met = |kind: &Value| list(device, "conditions").find(|c| c["type"] == *kind && c["status"] == "True");
        if let Some(failure) = list(result, "bindingFailureConditions").find_map(met) {
            let (reason, message) = (text(failure, "reason"), quote(text(failure, "message")));
            let name = text(&claim["metadata"], "name");
            return Readiness::Failed(format!("claim {name} binding failed: reason={reason}, message={message}"));
        }
        if !list(result, "bindingConditions").all(|kind| met(kind).is_some()) {
            return Readiness::Waiting;
        }
    }
    Readiness::Ready
}

/// How long a claim's devices may still take; none for claims that say nothing of when they got them.
fn time_left(claim: &Value, now: Timestamp) -> Option<Duration> {
    let since = parse_rfc3339(claim["status"]["allocation"]["allocationTimestamp"].as_str()?).ok()?;
    let passed = u64::try_from(now.seconds.saturating_sub(since.seconds)).unwrap_or(0);
    Some(TIMEOUT.saturating_sub(Duration::from_secs(passed)))
}

/// Whether a pod should look for other devices than these.
pub fn are_given_up(claim: &Value) -> bool {
    match readiness(claim) {
        Readiness::Ready => false,
        Readiness::Waiting => time_left(claim, Timestamp::now()) == Some(Duration::ZERO),
        Readiness::Failed(_) => true,
    }
}

/// Waits until the devices of a pod's claims are ready.
///
/// # Errors
/// When one cannot be made ready or takes too long, or pod or claim go.
pub async fn wait(client: &Client, pod: &ObjectRef, claims: &[&ObjectRef]) -> Result<()> {
    let failed = |why: String| ApiError::new(500, "", format!("running PreBind plugin \"DynamicResources\": {why}"));
    let latest = Instant::now() + TIMEOUT;
    let mut feed = Feed::open(client.store(), &[CLAIMS.into()]);
    loop {
        if feed.drain(|_| {}).is_err() {
            feed = Feed::open(client.store(), &[CLAIMS.into()]);
            continue;
        }
        let now = client.get("pods", &pod.key.namespace, &pod.key.name);
        if now.is_none_or(|now| now.keys.uid != pod.keys.uid || now.keys.deleting) {
            return Err(failed(format!("pod {} is going away", pod.key.name)));
        }
        let (mut until, mut slow) = (latest, None);
        for claim in claims {
            let name = &claim.key.name;
            let now = client.get(CLAIMS, &claim.key.namespace, name).filter(|now| now.keys.uid == claim.keys.uid);
            let now = now.ok_or_else(|| failed(format!("resourceclaim {} not found", quote(name))))?.without_owners();
            match readiness(&now) {
                Readiness::Failed(why) => return Err(failed(why)),
                Readiness::Ready => {}
                Readiness::Waiting => match time_left(&now, Timestamp::now()) {
                    Some(Duration::ZERO) => return Err(failed(format!("claim {name} binding timeout"))),
                    left => {
                        until = until.min(left.map_or(latest, |left| Instant::now() + left));
                        slow = Some(name);
                    }
                },
            }
        }
        if slow.is_none() {
            return Ok(());
        }
        if tokio::time::timeout_at(until, feed.changed()).await.is_err() && until >= latest {
            return Err(failed("device binding timeout".into()));
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn claim(conditions: &[(&str, &str)]) -> Value {
        let conditions: Vec<Value> = conditions
            .iter()
            .map(|(kind, status)| json!({"type": kind, "status": status, "reason": "Why", "message": "a \"b\""}))
            .collect();
        let result = json!({"driver": "d", "pool": "p", "device": "x", "bindingConditions": ["a/ready", "b"],
            "bindingFailureConditions": ["failed"]});
        let plain = json!({"driver": "d", "pool": "p", "device": "y"});
        json!({"metadata": {"name": "c"}, "status": {
            "allocation": {"allocationTimestamp": "2026-01-01T00:00:00Z", "devices": {"results": [plain, result]}},
            "devices": [{"driver": "d", "pool": "p", "device": "x", "conditions": conditions}]}})
    }

    #[test]
    fn devices_are_ready_when_all_that_they_wait_for_is_true() {
        assert_eq!(readiness(&claim(&[])), Readiness::Waiting);
        assert_eq!(readiness(&claim(&[("a/ready", "True"), ("b", "False")])), Readiness::Waiting);
        assert_eq!(readiness(&claim(&[("a/ready", "True"), ("b", "True"), ("failed", "False")])), Readiness::Ready);
        let why = "claim c binding failed: reason=Why, message=\"a \\\"b\\\"\"";
        let failed = claim(&[("a/ready", "True"), ("b", "True"), ("failed", "True")]);
        assert_eq!(readiness(&failed), Readiness::Failed(why.into()));
        assert!(are_given_up(&failed));
        let mut untold = claim(&[("a/ready", "True"), ("b", "True")]);
        untold["status"]["devices"][0]["device"] = "y".into();
        assert_eq!(readiness(&untold), Readiness::Waiting);
        assert!(has_conditions(&untold) && !has_conditions(&json!({"status": {"allocation": {}}})));
        assert_eq!(readiness(&json!({})), Readiness::Ready);
    }

    #[test]
    fn devices_have_ten_minutes_from_when_they_were_given() {
        let at = |text: &str| parse_rfc3339(text).expect("a time");
        let claim = claim(&[]);
        assert_eq!(time_left(&claim, at("2026-01-01T00:09:00Z")), Some(Duration::from_secs(60)));
        assert_eq!(time_left(&claim, at("2026-01-01T00:10:00Z")), Some(Duration::ZERO));
        assert_eq!(time_left(&claim, at("2025-12-31T00:00:00Z")), Some(TIMEOUT), "clocks differ");
        assert_eq!(time_left(&json!({}), at("2026-01-01T00:00:00Z")), None);
        assert!(are_given_up(&claim), "it was long ago");
    }
}
