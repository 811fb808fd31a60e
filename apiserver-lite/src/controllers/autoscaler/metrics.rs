//! What pods use, as the resource metrics API tells it (`metrics.k8s.io`, an aggregated API).

use std::collections::HashMap;

use proto::quantity::Quantity;
use proto::time::parse_rfc3339;
use serde_json::Value;

use crate::server::ApiServer;
use crate::tree::{list, text};

/// Whom the APIs of metrics are asked as.
pub const USER: &str = "system:serviceaccount:kube-system:horizontal-pod-autoscaler";

/// Use of one resource by pods, in thousandths.
#[derive(Debug, Default)]
pub struct Used {
    pub pods: HashMap<String, i64>,
    /// When it was measured and over how long, in seconds.
    pub times: HashMap<String, (i64, i64)>,
}

/// An amount in thousandths.
pub fn thousandths(value: &Value) -> Option<i64> {
    let text = match value {
        Value::String(text) => text.clone(),
        Value::Number(number) => number.to_string(),
        _ => return None,
    };
    text.parse::<Quantity>().ok().map(|quantity| quantity.milli_value())
}

/// What the pods that a selector fits use of a resource, all containers together or one of them.
///
/// # Errors
/// Why that is not to be had, in upstream's words.
pub async fn used(
    server: &ApiServer,
    namespace: &str,
    selector: &str,
    resource: &str,
    container: Option<&str>,
) -> Result<Used, String> {
    let path = format!("/apis/metrics.k8s.io/v1beta1/namespaces/{namespace}/pods");
    let unable = |why: &str| format!("unable to fetch metrics from resource metrics API: {why}");
    let query = format!("{path}?labelSelector={}", escaped(selector));
    let answer = crate::aggregate::ask(server, &path, &query, USER).await.map_err(|why| {
        unable(
            &why.unwrap_or_else(|| "the server could not find the requested resource (get pods.metrics.k8s.io)".into()),
        )
    })?;
    let items = answer["items"].as_array().map(Vec::as_slice).unwrap_or_default();
    if items.is_empty() {
        return Err("no metrics returned from resource metrics API".into());
    }
    told(items, resource, container)
}

/// What the items of a list say.
///
/// # Errors
/// When one of them says nothing of the container that is asked for.
fn told(items: &[Value], resource: &str, container: Option<&str>) -> Result<Used, String> {
    let mut out = Used::default();
    for item in items {
        let Some(name) = item["metadata"]["name"].as_str() else { continue };
        let parts: Vec<&Value> = match container {
            None => list(item, "containers").collect(),
            Some(wanted) => {
                let part = list(item, "containers").find(|c| c["name"] == wanted);
                let namespace = text(&item["metadata"], "namespace");
                vec![part.ok_or_else(|| {
                    let why = format!("container {wanted} not present in metrics for pod {namespace}/{name}");
                    format!("failed to get container metrics: {why}")
                })?]
            }
        };
        // A pod of which one part is not known is not known, and neither is one without parts.
        let add = |sum: i64, part: &&Value| Some(sum.saturating_add(thousandths(&part["usage"][resource])?));
        let sum = parts.iter().try_fold(0_i64, add).filter(|_| !parts.is_empty());
        if let Some(sum) = sum {
            out.pods.insert(name.into(), sum);
            let at = item["timestamp"].as_str().and_then(|t| parse_rfc3339(t).ok()).map_or(0, |t| t.seconds);
            let window = item["window"].as_str().and_then(|w| proto::duration::parse(w).ok()).unwrap_or(0);
            out.times.insert(name.into(), (at, window / 1_000_000_000));
        }
    }
    Ok(out)
}

/// Text for a path or a query.
pub fn escaped(text: &str) -> String {
    let plain = |b: u8| b.is_ascii_alphanumeric() || b"-._~".contains(&b);
    text.bytes().map(|b| if plain(b) { char::from(b).to_string() } else { format!("%{b:02X}") }).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn item(name: &str, containers: Value) -> Value {
        json!({"metadata": {"name": name, "namespace": "n"}, "containers": containers})
    }

    /// A container or a pod that nothing was measured of counted as one that uses nothing, and the workload shrank.
    #[test]
    fn what_was_not_measured_is_not_known() {
        let cpu = |name: &str, amount: &str| json!({"name": name, "usage": {"cpu": amount}});
        let both = item("both", json!([cpu("main", "100m"), cpu("side", "50m")]));
        let items = [both.clone(), item("none", json!([])), item("half", json!([cpu("main", "1"), {"name": "side"}]))];
        assert_eq!(told(&items, "cpu", None).expect("it says").pods, HashMap::from([("both".to_owned(), 150)]));
        let items = [both.clone(), item("half", json!([{"name": "side", "usage": {"memory": "1Mi"}}]))];
        assert_eq!(told(&items, "cpu", Some("side")).expect("it says").pods, HashMap::from([("both".to_owned(), 50)]));
        let why = told(&[both, item("other", json!([cpu("main", "1")]))], "cpu", Some("side")).map(|used| used.pods);
        let expected = "failed to get container metrics: container side not present in metrics for pod n/other";
        assert_eq!(why, Err(expected.to_owned()));
    }
}
