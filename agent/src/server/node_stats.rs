//! `/stats/summary`, `/metrics/resource` and `/runningpods/`: what runs here and what it uses.

use http::{HeaderMap, Response, StatusCode};
use serde::Serialize;

use super::answers::{Answer, json, plain};
use super::metrics_page;
use super::route::parse_query;
use crate::clock::unix_nanos;
use crate::cri::CriError;
use crate::metrics::Snapshot;
use crate::stats::{RunningPod, Stats, resource_metrics};

pub(super) async fn summary(stats: &Stats, query: &str) -> Response<Answer> {
    let (pairs, mistake) = parse_query(query);
    if let Some(why) = mistake {
        return plain(StatusCode::INTERNAL_SERVER_ERROR, format!("Internal Error: parse form failed: {why}"));
    }
    // Said twice it does not count.
    let mut only = pairs.iter().filter(|(key, _)| key == "only_cpu_and_memory").map(|(_, value)| value == "true");
    match stats.summary(only.next() == Some(true) && only.next().is_none()).await {
        Ok(summary) => indented(&summary),
        Err(error) => failed(&error),
    }
}

/// Says in the page itself that the runtime could not be asked.
pub(super) async fn resource(stats: &Stats, headers: &HeaderMap) -> Response<Answer> {
    let summary = stats.resources().await;
    if let Err(error) = &summary {
        tracing::warn!(%error, "no statistics");
    }
    metrics_page::answer(&resource_metrics(summary.as_ref().ok(), unix_nanos() / 1_000_000), headers)
}

/// What cAdvisor tells of containers. With the runtime away only its error is there.
pub(super) async fn containers(stats: &Stats, headers: &HeaderMap) -> Response<Answer> {
    let families = match stats.containers(unix_nanos() / 1_000_000).await {
        Ok(families) => families,
        Err(error) => {
            tracing::warn!(%error, "no statistics of containers");
            let help = "1 if there was an error while getting container metrics, 0 otherwise";
            vec![Snapshot::gauge("container_scrape_error", help).with(&[], 1.0)]
        }
    };
    metrics_page::answer(&families, headers)
}

pub(super) async fn running_pods(stats: &Stats) -> Response<Answer> {
    #[derive(Serialize)]
    #[serde(rename_all = "camelCase")]
    struct PodList {
        kind: &'static str,
        api_version: &'static str,
        metadata: serde_json::Map<String, serde_json::Value>,
        items: Vec<RunningPod>,
    }
    match stats.running().await {
        Ok(items) => {
            let list = PodList { kind: "PodList", api_version: "v1", metadata: serde_json::Map::new(), items };
            serde_json::to_vec(&list).map_or_else(|e| plain(StatusCode::INTERNAL_SERVER_ERROR, e.to_string()), json)
        }
        Err(error) => failed(&error),
    }
}

fn failed(error: &CriError) -> Response<Answer> {
    plain(StatusCode::INTERNAL_SERVER_ERROR, error.to_string())
}

/// JSON as the kubelet's own handlers write it: for people to read.
fn indented(value: &impl Serialize) -> Response<Answer> {
    let mut out = Vec::new();
    let form = serde_json::ser::PrettyFormatter::with_indent(b" ");
    match value.serialize(&mut serde_json::Serializer::with_formatter(&mut out, form)) {
        Ok(()) => json(out),
        Err(error) => plain(StatusCode::INTERNAL_SERVER_ERROR, error.to_string()),
    }
}
