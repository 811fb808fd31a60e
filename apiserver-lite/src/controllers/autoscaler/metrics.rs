//! What pods use, as the resource metrics API tells it (`metrics.k8s.io`, an aggregated API).

use std::collections::HashMap;

use proto::quantity::Quantity;
use proto::time::parse_rfc3339;
use serde_json::Value;

use crate::server::ApiServer;

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
    let list = crate::aggregate::ask(server, &path, &query, USER).await.map_err(|why| {
        unable(
            &why.unwrap_or_else(|| "the server could not find the requested resource (get pods.metrics.k8s.io)".into()),
        )
    })?;
    let items = list["items"].as_array().map(Vec::as_slice).unwrap_or_default();
    if items.is_empty() {
        return Err("no metrics returned from resource metrics API".into());
    }
    let mut out = Used::default();
    for item in items {
        let Some(name) = item["metadata"]["name"].as_str() else { continue };
        let containers = item["containers"].as_array().into_iter().flatten();
        let mut chosen = containers.filter(|c| container.is_none_or(|name| c["name"] == name));
        // A pod of which one part is not known is not known.
        let sum = chosen.try_fold(0_i64, |sum, c| Some(sum.saturating_add(thousandths(&c["usage"][resource])?)));
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
