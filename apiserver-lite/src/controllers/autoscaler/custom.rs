//! What aggregated APIs measure beside CPU and memory: of pods and other objects (`custom.metrics.k8s.io`), and of things
//! outside the cluster (`external.metrics.k8s.io`). Follows `pkg/controller/podautoscaler/metrics/client.go`.

use proto::time::parse_rfc3339;
use serde_json::Value;

use super::metrics::{USER, Used, escaped, thousandths};
use crate::aggregate::ask;
use crate::selectors;
use crate::server::ApiServer;

/// Served versions of the API for objects, the preferred one first; both write the same but for the metric's name.
const CUSTOM: [&str; 2] = ["/apis/custom.metrics.k8s.io/v1beta2", "/apis/custom.metrics.k8s.io/v1beta1"];
const EXTERNAL: &str = "/apis/external.metrics.k8s.io/v1beta1";

fn name(metric: &Value) -> &str {
    metric["name"].as_str().unwrap_or_default()
}

fn items(list: &Value) -> &[Value] {
    list["items"].as_array().map(Vec::as_slice).unwrap_or_default()
}

/// Asks for values below the API's path.
async fn custom(server: &ApiServer, path: &str, parameters: &[(&str, String)]) -> Result<Value, String> {
    let parameters = parameters.iter().filter(|(_, value)| !value.is_empty());
    let parameters: Vec<String> = parameters.map(|(key, value)| format!("{key}={}", escaped(value))).collect();
    for api in CUSTOM {
        let query = format!("{api}{path}?{}", parameters.join("&"));
        match ask(server, api, query.trim_end_matches('?'), USER).await {
            Ok(list) => return Ok(list),
            Err(Some(why)) => return Err(unable("custom", &why)),
            // Nobody serves this version.
            Err(None) => {}
        }
    }
    Err(unable("custom", "no custom metrics API (custom.metrics.k8s.io) registered"))
}

fn unable(api: &str, why: &str) -> String {
    format!("unable to fetch metrics from {api} metrics API: {why}")
}

/// A metric's value for each pod that a selector fits.
///
/// # Errors
/// Why that is not to be had, in upstream's words.
pub async fn of_pods(server: &ApiServer, namespace: &str, selector: &str, metric: &Value) -> Result<Used, String> {
    let path = format!("/namespaces/{namespace}/pods/*/{}", escaped(name(metric)));
    let labels = selectors::text(&metric["selector"]);
    let list = custom(server, &path, &[("labelSelector", selector.into()), ("metricLabelSelector", labels)]).await?;
    if items(&list).is_empty() {
        return Err("no metrics returned from custom metrics API".into());
    }
    let mut out = Used::default();
    for item in items(&list) {
        let pod = item["describedObject"]["name"].as_str();
        if let (Some(pod), Some(value)) = (pod, thousandths(&item["value"])) {
            out.pods.insert(pod.into(), value);
            let at = item["timestamp"].as_str().and_then(|t| parse_rfc3339(t).ok()).map_or(0, |t| t.seconds);
            out.times.insert(pod.into(), (at, item["windowSeconds"].as_i64().unwrap_or(60)));
        }
    }
    Ok(out)
}

/// A metric's value for one object, in thousandths; the object is a `CrossVersionObjectReference`.
///
/// # Errors
/// As [`of_pods`].
pub async fn of_object(server: &ApiServer, namespace: &str, object: &Value, metric: &Value) -> Result<i64, String> {
    let text = |key: &str| object[key].as_str().unwrap_or_default();
    let (group, version) = text("apiVersion").split_once('/').unwrap_or(("", text("apiVersion")));
    let path = if (group, text("kind")) == ("", "Namespace") {
        // The namespace is the scaler's own, whatever the reference says: it must not lead out of it.
        format!("/namespaces/{namespace}/metrics")
    } else {
        let found = server.resources.current().by_kind(group, version, text("kind"));
        let found = found.ok_or_else(|| {
            let kind = text("kind");
            unable("custom", &format!("no matches for kind {} in version {}", quoted(kind), quoted(text("apiVersion"))))
        })?;
        let place = if group.is_empty() { found.plural.to_string() } else { format!("{}.{group}", found.plural) };
        format!("/namespaces/{namespace}/{place}/{}", escaped(text("name")))
    };
    let path = format!("{path}/{}", escaped(name(metric)));
    let list = custom(server, &path, &[("metricLabelSelector", selectors::text(&metric["selector"]))]).await?;
    match items(&list) {
        [one] => thousandths(&one["value"]).ok_or_else(|| unable("custom", "the value is no quantity")),
        many => {
            let why =
                format!("the custom metrics API server returned {} results when we asked for exactly one", many.len());
            Err(unable("custom", &why))
        }
    }
}

fn quoted(text: &str) -> String {
    crate::status::quote(text)
}

/// The sum of all series of an external metric, in thousandths.
///
/// # Errors
/// As [`of_pods`].
pub async fn external(server: &ApiServer, namespace: &str, metric: &Value) -> Result<i64, String> {
    let labels = selectors::text(&metric["selector"]);
    let mut query = format!("{EXTERNAL}/namespaces/{namespace}/{}", escaped(name(metric)));
    if !labels.is_empty() {
        query = format!("{query}?labelSelector={}", escaped(&labels));
    }
    let list = ask(server, EXTERNAL, &query, USER).await.map_err(|why| {
        let missing = || {
            format!("the server could not find the requested resource (get {}.external.metrics.k8s.io)", name(metric))
        };
        unable("external", &why.unwrap_or_else(missing))
    })?;
    if items(&list).is_empty() {
        return Err("no metrics returned from external metrics API".into());
    }
    Ok(items(&list).iter().filter_map(|item| thousandths(&item["value"])).fold(0, i64::saturating_add))
}

/// A label selector as Go prints a pointer to one.
pub fn shown(selector: &Value) -> String {
    let Some(selector) = selector.as_object() else { return "nil".into() };
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let labels = selector.get("matchLabels").and_then(Value::as_object).into_iter().flatten();
    // Sorted, as the map of the decoded object is.
    let mut labels: Vec<String> = labels.map(|(key, value)| format!("{key}: {},", text(value))).collect();
    labels.sort();
    let expressions = selector.get("matchExpressions").and_then(Value::as_array).into_iter().flatten();
    let expressions: String = expressions
        .map(|e| {
            let values: Vec<String> = e["values"].as_array().into_iter().flatten().map(text).collect();
            let (key, operator) = (text(&e["key"]), text(&e["operator"]));
            format!("LabelSelectorRequirement{{Key:{key},Operator:{operator},Values:[{}],}},", values.join(" "))
        })
        .collect();
    let labels = labels.concat();
    format!(
        "&LabelSelector{{MatchLabels:map[string]string{{{labels}}},MatchExpressions:[]LabelSelectorRequirement{{{expressions}}},}}"
    )
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn selectors_are_shown_as_go_prints_them() {
        assert_eq!(shown(&Value::Null), "nil");
        let selector = json!({"matchLabels": {"queue": "worker"}, "matchExpressions": [
            {"key": "a", "operator": "In", "values": ["x", "y"]}]});
        let text = "&LabelSelector{MatchLabels:map[string]string{queue: worker,},MatchExpressions:\
            []LabelSelectorRequirement{LabelSelectorRequirement{Key:a,Operator:In,Values:[x y],},},}";
        assert_eq!(shown(&selector), text);
    }
}
