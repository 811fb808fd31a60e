//! `/stats/summary`, `/metrics/resource` and `/runningpods/`: what runs here and what it uses.

use http::{HeaderMap, Request, Response, StatusCode};
use hyper::body::Incoming;
use serde::Serialize;

use super::answers::{Answer, json, plain};
use super::forms::Form;
use super::metrics_page;
use crate::clock::unix_nanos;
use crate::cri::CriError;
use crate::metrics::Snapshot;
use crate::stats::{RunningPod, SCRAPE_ERROR, Stats, resource_metrics};

pub(super) async fn summary(stats: &Stats, mut request: Request<Incoming>) -> Response<Answer> {
    let form = Form::read(&mut request).await;
    if let Some(why) = &form.mistake {
        return plain(StatusCode::INTERNAL_SERVER_ERROR, format!("Internal Error: parse form failed: {why}"));
    }
    // Said twice it does not count.
    let mut only = form.all("only_cpu_and_memory").map(|value| value == "true");
    match stats.summary(only.next() == Some(true) && only.next().is_none()).await {
        Ok(summary) => indented(&summary),
        Err(error) => failed(&error),
    }
}

/// Says in the page itself that the runtime could not be asked.
pub(super) async fn resource(stats: &Stats, headers: &HeaderMap) -> Response<Answer> {
    let used = stats.used().await;
    if let Err(error) = &used {
        tracing::warn!(%error, "no statistics");
    }
    metrics_page::answer(&resource_metrics(used.as_ref().ok(), unix_nanos() / 1_000_000), headers)
}

/// What cAdvisor tells of containers. With the runtime away only its error is there.
pub(super) async fn containers(stats: &Stats, headers: &HeaderMap) -> Response<Answer> {
    let families = match stats.containers(unix_nanos() / 1_000_000).await {
        Ok(families) => families,
        Err(error) => {
            tracing::warn!(%error, "no statistics of containers");
            vec![Snapshot::gauge(SCRAPE_ERROR.0, SCRAPE_ERROR.1).with(&[], 1.0)]
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
