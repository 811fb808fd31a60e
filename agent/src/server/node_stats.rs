//! `/stats/summary`, `/metrics/resource` and `/runningpods/`: what runs here and what it uses.

use std::collections::HashMap;
use std::sync::Arc;

use http::{HeaderMap, Request, Response, StatusCode};
use hyper::body::Incoming;
use proto::api::core::v1::Pod;
use proto::time::Timestamp;
use serde::Serialize;

use super::answers::{Answer, json, plain};
use super::forms::Form;
use super::metrics_page;
use crate::clock::unix_nanos;
use crate::cri::CriError;
use crate::metrics::Snapshot;
use crate::pod::spec::PodExt as _;
use crate::pods::Handle;
use crate::stats::{PodStats, RunningPod, SCRAPE_ERROR, Stats, resource_metrics};

/// `pods` is `None` before the runtime's first word, when nobody knows of pods.
pub(super) async fn summary(stats: &Stats, pods: Option<&Handle>, mut request: Request<Incoming>) -> Response<Answer> {
    let form = Form::read(&mut request).await;
    if let Some(why) = &form.mistake {
        return plain(StatusCode::INTERNAL_SERVER_ERROR, format!("Internal Error: parse form failed: {why}"));
    }
    // Said twice it does not count.
    let mut only = form.all("only_cpu_and_memory").map(|value| value == "true");
    match stats.summary(only.next() == Some(true) && only.next().is_none()).await {
        Ok(mut summary) => {
            if let Some(pods) = pods {
                begin_with_statuses(&mut summary.pods, &pods.pods().await);
            }
            indented(&summary)
        }
        Err(error) => failed(&error),
    }
}

/// A pod began when the agent first knew of it, which is what its status says, and not when its sandbox did: that may be
/// its third. What has no such time is not shown, as upstream does it: leftovers of pods that nobody knows.
fn begin_with_statuses(shown: &mut Vec<PodStats>, pods: &[Arc<Pod>]) {
    let begun = |pod: &Pod| {
        let time = pod.status.as_ref()?.start_time.as_ref()?;
        Some(Timestamp { seconds: time.seconds, nanos: 0 }.to_seconds_text())
    };
    let begun: HashMap<&str, String> = pods.iter().filter_map(|pod| Some((pod.uid(), begun(pod)?))).collect();
    shown.retain_mut(|pod| match begun.get(pod.pod_ref.uid.as_str()) {
        Some(time) => {
            pod.start_time.clone_from(time);
            true
        }
        None => false,
    });
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

#[cfg(test)]
mod tests {
    use proto::api::core::v1::PodStatus;
    use proto::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};

    use super::*;
    use crate::stats::{PodRef, Usage};

    /// A pod used to begin with its sandbox, and leftovers of pods that are gone were shown.
    #[test]
    fn a_pod_begins_with_its_status_and_leftovers_are_not_shown() {
        let found = |uid: &str| PodStats {
            pod_ref: PodRef { name: uid.into(), namespace: "n".into(), uid: uid.into() },
            start_time: "2026-01-01T00:00:09Z".into(),
            containers: Vec::new(),
            usage: Usage::default(),
            network: None,
            volumes: Vec::new(),
            ephemeral_storage: None,
            processes: None,
        };
        let known = |uid: &str, start_time: Option<Time>| {
            Arc::new(Pod {
                metadata: Some(ObjectMeta { uid: uid.into(), ..ObjectMeta::default() }),
                status: Some(PodStatus { start_time, ..PodStatus::default() }),
                ..Pod::default()
            })
        };
        let pods = [known("begun", Some(Time { seconds: 1_767_225_600, nanos: 0 })), known("refused", None)];
        let mut shown: Vec<PodStats> = ["begun", "refused", "unknown"].map(found).into();
        begin_with_statuses(&mut shown, &pods);
        let shown: Vec<_> = shown.iter().map(|pod| (pod.pod_ref.uid.as_str(), pod.start_time.as_str())).collect();
        assert_eq!(shown, [("begun", "2026-01-01T00:00:00Z")]);
    }
}
