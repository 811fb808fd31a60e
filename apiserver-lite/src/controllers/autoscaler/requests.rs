//! What pods ask for, which a percentage is a part of. Follows `calculateRequests` of `replica_calculator.go`.

use serde_json::Value;

use super::metrics::thousandths;
use crate::tree::{list, text};

/// What a pod, or one container of it, asks for of a resource, in thousandths.
///
/// # Errors
/// Upstream's words where somebody who counts asks for nothing.
pub(super) fn of(pod: &Value, resource: &str, container: Option<&str>) -> Result<i64, String> {
    let name = text(&pod["metadata"], "name");
    let whole = pod["spec"]["resources"]["requests"].as_object();
    if container.is_none() && whole.is_some_and(|requests| !requests.is_empty()) {
        let requested = crate::scheduler::requested(pod, resource);
        return requested.ok_or_else(|| format!("missing pod-level request for {resource} in Pod {name}"));
    }
    // Sidecars run beside the others and use as they do.
    let sidecars = list(&pod["spec"], "initContainers").filter(|c| c["restartPolicy"] == "Always");
    let mut sum = 0_i64;
    let mut found = false;
    for part in list(&pod["spec"], "containers").chain(sidecars) {
        let own = text(part, "name");
        if container.is_some_and(|wanted| wanted != own) {
            continue;
        }
        let amount = thousandths(&part["resources"]["requests"][resource])
            .ok_or_else(|| format!("missing request for {resource} in container {own} of Pod {name}"))?;
        sum = sum.saturating_add(amount);
        found = true;
    }
    match container {
        Some(wanted) if !found => Err(format!("container {wanted} not found in Pod {name}")),
        _ => Ok(sum),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn pod() -> Value {
        let part = |name: &str, cpu: &str| json!({"name": name, "resources": {"requests": {"cpu": cpu}}});
        let mut sidecar = part("side", "50m");
        sidecar["restartPolicy"] = "Always".into();
        json!({"metadata": {"name": "p"}, "spec": {"containers": [part("main", "100m")],
            "initContainers": [part("first", "2"), sidecar]}})
    }

    /// What sidecars use was measured as part of requests that left them out.
    #[test]
    fn sidecars_count_and_init_containers_do_not() {
        assert_eq!(of(&pod(), "cpu", None), Ok(150));
        assert_eq!(of(&pod(), "cpu", Some("side")), Ok(50));
        assert_eq!(of(&pod(), "cpu", Some("first")), Err("container first not found in Pod p".into()));
        let mut silent = pod();
        silent["spec"]["initContainers"][1]["resources"] = json!({});
        assert_eq!(of(&silent, "cpu", None), Err("missing request for cpu in container side of Pod p".into()));
        assert_eq!(of(&silent, "cpu", Some("main")), Ok(100));
    }

    #[test]
    fn what_the_pod_asks_for_as_a_whole_goes_first() {
        let mut whole = pod();
        whole["spec"]["resources"] = json!({"requests": {"cpu": "3"}});
        assert_eq!(of(&whole, "cpu", None), Ok(3000));
        assert_eq!(of(&whole, "cpu", Some("main")), Ok(100));
        assert_eq!(of(&whole, "memory", None), Err("missing pod-level request for memory in Pod p".into()));
    }
}
