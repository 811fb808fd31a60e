//! The strategic merge patch that turns one pod status into another.
//!
//! Lists with a merge key (conditions, addresses) are patched entry by entry, with an order directive, so that what
//! others wrote meanwhile stays; every other list is replaced whole; maps are patched key by key.

use proto::api::core::v1::PodStatus;
use serde_json::{Map, Value};

const STATUS: &str = "k8s.io.api.core.v1.PodStatus";

/// Lists of a pod status that merge, with their keys.
const MERGED: [(&str, &str); 4] =
    [("conditions", "type"), ("podIPs", "ip"), ("hostIPs", "ip"), ("resourceClaimStatuses", "name")];

/// The patch of `pods/status`, or `None` when nothing differs. The uid makes it fail on a pod of the same name.
pub fn status_patch(uid: &str, old: &PodStatus, new: &PodStatus) -> Option<Vec<u8>> {
    let old = crate::wire_json::to_value(STATUS, old);
    let new = crate::wire_json::to_value(STATUS, new);
    let changes = diff_object(&old, &new, true);
    if changes.is_empty() {
        return None;
    }
    // `json!` would copy the changes.
    let patch = object([("metadata", object([("uid", uid.into())])), ("status", changes.into())]);
    Some(patch.to_string().into_bytes())
}

fn object<const N: usize>(members: [(&str, Value); N]) -> Value {
    let mut map = Map::new();
    for (name, value) in members {
        map.insert(name.into(), value);
    }
    map.into()
}

fn diff_object(old: &Value, new: &Value, top: bool) -> Map<String, Value> {
    let empty = Map::new();
    let (old, new) = (old.as_object().unwrap_or(&empty), new.as_object().unwrap_or(&empty));
    let mut out = Map::new();
    for (name, value) in new {
        let before = old.get(name).unwrap_or(&Value::Null);
        if alike(before, value) || began_in_1970(name, old, new) {
            continue;
        }
        let key = MERGED.iter().find(|(list, _)| top && list == name).map(|(_, key)| *key);
        match (key, before, value) {
            (Some(key), _, Value::Array(items)) => diff_list(name, key, before, items, &mut out),
            (None, Value::Object(_), Value::Object(_)) => {
                out.insert(name.clone(), Value::Object(diff_object(before, value, false)));
            }
            _ => {
                out.insert(name.clone(), value.clone());
            }
        }
    }
    for name in old.keys().filter(|name| !new.contains_key(*name)) {
        out.insert(name.clone(), Value::Null);
    }
    out
}

/// Whether a patch from one to the other would say nothing.
fn alike(old: &Value, new: &Value) -> bool {
    match (old, new) {
        (Value::Object(old), Value::Object(new)) => {
            old.keys().all(|name| new.contains_key(name))
                && new.iter().all(|(name, value)| {
                    alike(old.get(name).unwrap_or(&Value::Null), value) || began_in_1970(name, old, new)
                })
        }
        (Value::Array(old), Value::Array(new)) => {
            old.len() == new.len() && old.iter().zip(new).all(|(old, new)| alike(old, new))
        }
        _ => old == new,
    }
}

/// Whether this is a time of 1970 (see `containers::time`) of the container that the other state is of, which has none. Whoever
/// sends such a time finds none when it reads what was stored: its message is all zeros, like that of no time. It is not sent
/// again, or there would be no end to it.
fn began_in_1970(name: &str, old: &Map<String, Value>, new: &Map<String, Value>) -> bool {
    matches!(name, "startedAt" | "finishedAt")
        && new.get(name).is_some_and(|time| time == "1970-01-01T00:00:00Z")
        && old.get(name).is_none_or(Value::is_null)
        && old.get("containerID").is_some_and(|id| new.get("containerID") == Some(id))
}

fn diff_list(name: &str, key: &str, old: &Value, new: &[Value], out: &mut Map<String, Value>) {
    let none = Vec::new();
    let old = old.as_array().unwrap_or(&none);
    let same_key = |a: &Value, b: &Value| a.get(key) == b.get(key);
    let mut items = Vec::new();
    for item in new {
        match old.iter().find(|o| same_key(o, item)) {
            Some(before) if alike(before, item) => {}
            Some(before) => {
                let mut changed = diff_object(before, item, false);
                if let Some(id) = item.get(key) {
                    changed.insert(key.into(), id.clone());
                }
                items.push(Value::Object(changed));
            }
            None => items.push(item.clone()),
        }
    }
    for gone in old.iter().filter(|o| !new.iter().any(|n| same_key(n, o))) {
        let mut item = Map::new();
        item.insert("$patch".into(), "delete".into());
        item.insert(key.into(), gone.get(key).cloned().unwrap_or_default());
        items.push(Value::Object(item));
    }
    let order: Vec<Value> = new.iter().filter_map(|item| Some(object([(key, item.get(key)?.clone())]))).collect();
    out.insert(format!("$setElementOrder/{name}").into(), Value::Array(order));
    if !items.is_empty() {
        out.insert(name.into(), Value::Array(items));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proto::api::core::v1::{PodCondition, PodIp};
    use serde_json::json;

    fn condition(kind: &str, status: &str) -> PodCondition {
        PodCondition { r#type: kind.into(), status: status.into(), ..Default::default() }
    }

    #[test]
    fn only_what_changed_is_sent_and_nothing_for_no_change() {
        let old = PodStatus {
            phase: "Pending".into(),
            reason: "x".into(),
            conditions: vec![condition("Ready", "False"), condition("PodScheduled", "True")],
            ..Default::default()
        };
        assert_eq!(status_patch("u", &old, &old), None);
        let mut new = old.clone();
        new.phase = "Running".into();
        new.reason = String::new();
        new.conditions[0].status = "True".into();
        new.pod_i_ps = vec![PodIp { ip: "10.0.0.1".into() }];
        let patch: Value = serde_json::from_slice(&status_patch("u", &old, &new).unwrap()).unwrap();
        assert_eq!(
            patch,
            json!({"metadata": {"uid": "u"}, "status": {
                "phase": "Running",
                "reason": null,
                "$setElementOrder/conditions": [{"type": "Ready"}, {"type": "PodScheduled"}],
                "conditions": [{"type": "Ready", "status": "True"}],
                "$setElementOrder/podIPs": [{"ip": "10.0.0.1"}],
                "podIPs": [{"ip": "10.0.0.1"}],
            }})
        );
    }

    #[test]
    fn a_container_that_never_began_is_told_of_once() {
        use prost::Message as _;
        use proto::api::core::v1::{ContainerState, ContainerStateTerminated, ContainerStatus};
        use proto::apimachinery::pkg::apis::meta::v1::Time;
        let ended = |id: &str, nanos| {
            let terminated = ContainerStateTerminated {
                exit_code: 128,
                container_id: id.into(),
                started_at: Some(Time { seconds: 0, nanos }),
                finished_at: Some(Time { seconds: 7, nanos: 0 }),
                ..Default::default()
            };
            let state = ContainerState { terminated: Some(terminated), ..Default::default() };
            let status = ContainerStatus { name: "c".into(), last_state: Some(state), ..Default::default() };
            PodStatus { container_statuses: vec![status], ..Default::default() }
        };
        let sent = ended("a", 1);
        let patch: Value = serde_json::from_slice(&status_patch("u", &PodStatus::default(), &sent).unwrap()).unwrap();
        let told = &patch["status"]["containerStatuses"][0]["lastState"]["terminated"];
        assert_eq!(told["startedAt"], "1970-01-01T00:00:00Z");
        // As a server has it in protobuf: all zeros, but there.
        let mut stored = sent.clone();
        let terminated = stored.container_statuses[0].last_state.as_mut().and_then(|s| s.terminated.as_mut());
        terminated.unwrap().started_at = Some(Time::decode(&[0x08, 0, 0x10, 0][..]).unwrap());
        assert_eq!(status_patch("u", &stored, &sent), None);
        // With other news it is part of the whole list again.
        let mut more = sent.clone();
        more.container_statuses[0].restart_count = 1;
        let patch: Value = serde_json::from_slice(&status_patch("u", &stored, &more).unwrap()).unwrap();
        let told = &patch["status"]["containerStatuses"][0]["lastState"]["terminated"];
        assert_eq!(told["startedAt"], "1970-01-01T00:00:00Z");
        // Another container's is news.
        assert!(status_patch("u", &ended("b", 0), &sent).is_some());
    }

    #[test]
    fn an_entry_that_is_gone_is_deleted_by_key() {
        let old = PodStatus { conditions: vec![condition("PodResizePending", "True")], ..Default::default() };
        let patch: Value = serde_json::from_slice(&status_patch("u", &old, &PodStatus::default()).unwrap()).unwrap();
        assert!(patch["status"].get("conditions").is_some_and(|c| c.is_null() || c[0]["$patch"] == "delete"));
    }
}
