//! `horizontal-pod-autoscaler-controller`: as many replicas of a workload as bring what its pods use to a target.
//!
//! Looks at each autoscaler every fifteen seconds and says in its conditions what it could do and what not. Follows
//! `pkg/controller/podautoscaler/horizontal.go`.
//!
//! What pods use comes from `metrics.k8s.io`, what else is measured from `custom.metrics.k8s.io` and
//! `external.metrics.k8s.io`: aggregated APIs all three, which somebody has to add.

mod custom;
mod limits;
mod metrics;
mod requests;
mod sources;
mod usage;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures_util::future::FutureExt as _;
use proto::time::Timestamp;
use serde_json::{Value, json};

pub(super) use self::custom::shown as go_selector;
use self::limits::History;
use self::usage::{Pod, Tolerance};
use super::events::{Recorder, Report, Reporter};
use super::feed::Change;
use super::ownership::{done, set_condition};
use super::pods::{condition, is_terminal, seconds};
use super::queue::Queue;
use super::runner::{Controller, Work};
use crate::client::{Client, unchanged};
use crate::resource::Resource;
use crate::status::Result;
use crate::store::{Key, ObjectRef, ResourceId};
use crate::tree::list;

const SCALERS: &str = "horizontalpodautoscalers.autoscaling";
const KIND: (&str, &str) = ("HorizontalPodAutoscaler", "autoscaling/v2");
const REPORTER: &str = "horizontal-pod-autoscaler";
/// As `--horizontal-pod-autoscaler-sync-period`.
const PERIOD: Duration = Duration::from_secs(15);
/// As `--horizontal-pod-autoscaler-cpu-initialization-period`, in seconds.
const CPU_BEGIN: i64 = 300;
/// As `--horizontal-pod-autoscaler-initial-readiness-delay`, in seconds.
const FIRST_READY: i64 = 30;

pub struct Autoscaler {
    client: Client,
    recorder: Recorder,
    /// Shared with the work that is under way.
    histories: HashMap<Key, Arc<Mutex<History>>>,
}

/// What keeps an autoscaler from its work: reason and message of the condition, and of the event.
struct Obstacle {
    reason: &'static str,
    message: String,
    error: String,
    /// The error as it is told of all metrics together.
    whole: String,
}

/// What a metric wants, and what the status shows of it.
struct Proposal {
    replicas: i64,
    name: String,
    shown: Value,
}

/// A workload's scale.
struct Scale {
    resource: String,
    /// As many as are wanted, and as there are.
    replicas: i64,
    running: i64,
    selector: String,
    tolerance: Tolerance,
}

/// What the autoscaler says of small differences, above and below its target.
fn tolerance(behavior: &Value) -> Tolerance {
    #[expect(clippy::cast_precision_loss, reason = "a share, in thousandths")]
    let share = |rules: &Value| metrics::thousandths(&rules["tolerance"]).map(|t| t as f64 / 1000.0);
    Tolerance {
        up: share(&behavior["scaleUp"]).unwrap_or(Tolerance::USUAL.up),
        down: share(&behavior["scaleDown"]).unwrap_or(Tolerance::USUAL.down),
    }
}

fn set(scaler: &mut Value, kind: &str, status: &str, reason: &str, message: &str) {
    set_condition(scaler, json!({"type": kind, "status": status, "reason": reason, "message": message}));
}

impl Autoscaler {
    pub fn new(client: Client, recorder: Recorder) -> Self {
        Autoscaler { client, recorder, histories: HashMap::new() }
    }

    fn warn(&self, scaler: &ObjectRef, reason: &'static str, message: String) {
        self.recorder.warn(REPORTER, (KIND.0, KIND.1, scaler), reason, message);
    }

    fn target(&self, namespace: &str, spec: &Value) -> std::result::Result<Scale, String> {
        let text = |name: &str| spec["scaleTargetRef"][name].as_str().unwrap_or_default();
        let (group, version) = text("apiVersion").split_once('/').unwrap_or(("", text("apiVersion")));
        let set = self.client.server().resources.current();
        let scaled = |r: &&Arc<Resource>| r.subresource("scale").is_some();
        // A version that is no longer served stands for those that are.
        let any = || set.all().iter().find(|r| *r.group == *group && *r.kind == *text("kind") && scaled(r)).cloned();
        let found = set.by_kind(group, version, text("kind")).or_else(any);
        let resource = found.as_ref().filter(scaled).ok_or_else(|| {
            let kind = text("kind");
            format!("no matches for kind {} in group {}", crate::status::quote(kind), crate::status::quote(group))
        })?;
        let object = self.client.get(&resource.storage.0, namespace, text("name")).ok_or_else(|| {
            crate::status::ApiError::not_found(&resource.group, &resource.plural, text("name")).status().message.clone()
        })?;
        let own = resource.definition.as_ref().and_then(|d| d.scale.as_ref());
        let scale =
            crate::write::scale_of(own, &object.without_owners()).map_err(|error| error.status().message.clone())?;
        Ok(Scale {
            resource: resource.storage.0.to_string(),
            replicas: scale["spec"]["replicas"].as_i64().unwrap_or(0),
            running: scale["status"]["replicas"].as_i64().unwrap_or(0),
            selector: scale["status"]["selector"].as_str().unwrap_or_default().to_owned(),
            tolerance: tolerance(&spec["behavior"]),
        })
    }

    async fn rescale(&self, key: &Key, scale: &Scale, reference: &Value, replicas: i64) -> Result<()> {
        let resource = self.client.resource(&scale.resource)?;
        let own = resource.definition.as_ref().and_then(|d| d.scale.as_ref());
        let name = reference["name"].as_str().unwrap_or_default();
        let written = self.client.update_part(&scale.resource, "scale", &key.namespace, name, |value| {
            match own {
                Some(own) => own.set(value, replicas)?,
                None => value["spec"]["replicas"] = replicas.into(),
            }
            Ok(())
        });
        written.await.map(|_| ())
    }

    /// The pods that a selector fits, with what they use of a resource and ask for.
    fn pods(
        &self,
        namespace: &str,
        selector: &str,
        (resource, container): (&str, Option<&str>),
        used: &metrics::Used,
        percent: bool,
    ) -> std::result::Result<Vec<Pod>, String> {
        let pods = self.client.resource("pods").map_err(|e| e.to_string())?;
        let selector = crate::read::Selector::parse(&pods, selector, "").map_err(|e| e.to_string())?;
        let now = Timestamp::now().seconds;
        let mut out = Vec::new();
        for pod in self.client.store().snapshot(&ResourceId::from("pods")).range(Some(namespace), None) {
            if !selector.matches(pod) || is_terminal(pod) || pod.keys.deleting {
                continue;
            }
            let value = pod.without_owners();
            // An average of amounts asks for nothing.
            let requested = match percent {
                true => requests::of(&value, resource, container)?,
                false => 0,
            };
            let used_now = used.pods.get(&*pod.key.name).copied();
            let unready = value["status"]["phase"] == "Pending"
                || resource == "cpu" && used_now.is_some() && begins(&value, used.times.get(&*pod.key.name), now);
            out.push(Pod { used: used_now, requested, unready });
        }
        Ok(out)
    }

    /// What all metrics want together, and what the status shows of them.
    async fn metrics(
        &self,
        scaler: &ObjectRef,
        value: &Value,
        scale: &Scale,
    ) -> std::result::Result<(Proposal, Vec<Value>), (Obstacle, Vec<Value>)> {
        if scale.selector.is_empty() {
            let text = "selector is required";
            self.warn(scaler, "SelectorRequired", text.into());
            let message = "the HPA target's scale is missing a selector".to_owned();
            let obstacle = Obstacle { reason: "InvalidSelector", message, error: text.into(), whole: text.into() };
            return Err((obstacle, Vec::new()));
        }
        let (mut best, mut first, mut shown, mut invalid): (Option<Proposal>, Option<Obstacle>, _, _) =
            (None, None, Vec::new(), 0);
        for metric in list(&value["spec"], "metrics") {
            match self.metric(&scaler.key, metric, scale).await {
                Ok(proposal) => {
                    shown.push(proposal.shown.clone());
                    if best.as_ref().is_none_or(|best| proposal.replicas > best.replicas) {
                        best = Some(proposal);
                    }
                }
                Err(obstacle) => {
                    invalid += 1;
                    // Each metric has its place, of what kind it is says only one that was found.
                    shown.push(json!({"type": ""}));
                    self.warn(scaler, obstacle.reason, obstacle.error.clone());
                    first = first.or(Some(obstacle));
                }
            }
        }
        match (best, first) {
            // With a part of the metrics one may go up, never down.
            (Some(best), None) => Ok((best, shown)),
            (Some(best), Some(_)) if best.replicas >= scale.replicas => Ok((best, shown)),
            (_, Some(first)) => {
                let all = list(&value["spec"], "metrics").count();
                let error =
                    format!("invalid metrics ({invalid} invalid out of {all}), first error is: {}", first.whole);
                Err((Obstacle { error, ..first }, shown))
            }
            (None, None) => {
                let error = "no metrics".to_owned();
                let (message, whole) = (error.clone(), error.clone());
                Err((Obstacle { reason: "InvalidMetricSourceType", message, error, whole }, shown))
            }
        }
    }

    /// Looks at one autoscaler: what its status is to be, and the new scale where there is one.
    async fn look(&self, scaler: &ObjectRef, value: &Value, history: &Mutex<History>) -> Value {
        let history = || history.lock().unwrap_or_else(PoisonError::into_inner);
        let mut out = value.clone();
        let (key, spec) = (&scaler.key, &value["spec"]);
        let reference = &spec["scaleTargetRef"];
        out["status"]["observedGeneration"] = value["metadata"]["generation"].clone();
        let scale = match self.target(&key.namespace, spec) {
            Ok(scale) => scale,
            Err(why) => {
                self.warn(scaler, "FailedGetScale", why.clone());
                let text = format!("the HPA controller was unable to get the target's current scale: {why}");
                set(&mut out, "AbleToScale", "False", "FailedGetScale", &text);
                return out;
            }
        };
        let found = "the HPA controller was able to get the target's current scale";
        set(&mut out, "AbleToScale", "True", "SucceededGetScale", found);
        let current = scale.replicas;
        history().begin(current);
        out["status"]["currentReplicas"] = current.into();
        let max = spec["maxReplicas"].as_i64().unwrap_or(1);
        let min = spec["minReplicas"].as_i64().unwrap_or(1);
        let mut reason = String::new();
        let desired = if current == 0 && min != 0 {
            let text = "scaling is disabled since the replica count of the target is zero";
            set(&mut out, "ScalingActive", "False", "ScalingDisabled", text);
            0
        } else if current > max {
            reason = "Current number of replicas above Spec.MaxReplicas".into();
            max
        } else if current < min {
            reason = "Current number of replicas below Spec.MinReplicas".into();
            min
        } else {
            let (proposal, shown) = match self.metrics(scaler, value, &scale).await {
                Ok(found) => found,
                Err((obstacle, shown)) => {
                    set(&mut out, "ScalingActive", "False", obstacle.reason, &obstacle.message);
                    out["status"]["currentMetrics"] = shown.into();
                    self.warn(scaler, "FailedComputeMetricsReplicas", obstacle.error);
                    return out;
                }
            };
            let text = format!("the HPA was able to successfully calculate a replica count from {}", proposal.name);
            set(&mut out, "ScalingActive", "True", "ValidMetricFound", &text);
            out["status"]["currentMetrics"] = shown.into();
            let limited = history().limit(&spec["behavior"], current, proposal.replicas, (min, max));
            set(&mut out, "AbleToScale", "True", limited.able.0, limited.able.1);
            let (status, why) = match limited.limited {
                Some(why) => ("True", why),
                None => ("False", ("DesiredWithinRange", "the desired count is within the acceptable range")),
            };
            set(&mut out, "ScalingLimited", status, why.0, why.1);
            reason = match limited.replicas > current {
                true => format!("{} above target", proposal.name),
                false => "All metrics below target".into(),
            };
            limited.replicas
        };
        out["status"]["desiredReplicas"] = desired.into();
        if desired == current {
            return out;
        }
        match self.rescale(key, &scale, reference, desired).await {
            Ok(()) => {
                history().scaled(&spec["behavior"], current, desired);
                let text = format!("the HPA controller was able to update the target scale to {desired}");
                set(&mut out, "AbleToScale", "True", "SucceededRescale", &text);
                out["status"]["lastScaleTime"] = Timestamp::now().to_seconds_text().into();
                let message = format!("New size: {desired}; reason: {reason}");
                let reporter = Reporter::Controller(REPORTER);
                let report = Report { reporter, warning: false, reason: "SuccessfulRescale", action: "", message };
                self.recorder.report(KIND.0, KIND.1, scaler, report);
            }
            Err(error) => {
                let why = &error.status().message;
                let message = format!("New size: {desired}; reason: {reason}; error: {why}");
                self.warn(scaler, "FailedRescale", message);
                let text = format!("the HPA controller was unable to update the target scale: {why}");
                set(&mut out, "AbleToScale", "False", "FailedUpdateScale", &text);
                out["status"]["desiredReplicas"] = current.into();
            }
        }
        out
    }
}

/// An amount of thousandths as a quantity.
fn milli(amount: i64) -> String {
    if amount % 1000 == 0 { (amount / 1000).to_string() } else { format!("{amount}m") }
}

/// Whether a pod's use of the CPU is that of its beginning, which says little about what it will be.
fn begins(pod: &Value, measured: Option<&(i64, i64)>, now: i64) -> bool {
    let started = seconds(&pod["status"]["startTime"]);
    let Some(ready) = condition(pod, "Ready").filter(|_| started > 0) else { return true };
    let since = seconds(&ready["lastTransitionTime"]);
    if started + CPU_BEGIN > now {
        // Ready is not enough: what was measured has to begin after that.
        return ready["status"] != "True" || measured.is_some_and(|(at, window)| *at < since + window);
    }
    ready["status"] != "True" && started + FIRST_READY > since
}

impl Controller for Autoscaler {
    const NAME: &'static str = "horizontal-pod-autoscaler-controller";
    type Key = Key;

    fn watched(&self) -> Vec<ResourceId> {
        vec![SCALERS.into()]
    }

    fn observe(&mut self, change: Change<'_>, queue: &mut Queue<Key>) {
        let key = &change.object.key;
        if change.deleted() {
            self.histories.remove(key);
            return;
        }
        let spec = |object: &ObjectRef| object.without_owners()["spec"].clone();
        if change.previous.is_none_or(|old| spec(old) != spec(change.object)) {
            queue.add(key.clone());
        }
    }

    fn begin(&mut self, key: &Key) -> Option<Work> {
        let scaler = self.client.get(SCALERS, &key.namespace, &key.name).filter(|o| !o.keys.deleting)?;
        let history = self.histories.entry(key.clone()).or_default().clone();
        let hand = Self::new(self.client.clone(), self.recorder.clone());
        Some(hand.work(scaler, history).boxed())
    }
}

impl Autoscaler {
    /// Work on an autoscaler, with what is remembered of it. Whom it asks for metrics may take its time.
    async fn work(self, scaler: ObjectRef, history: Arc<Mutex<History>>) -> Result<Option<Duration>> {
        let value = scaler.without_owners();
        let wanted = self.look(&scaler, &value, &history).await;
        let key = &scaler.key;
        let written = self.client.update_status(SCALERS, &key.namespace, &key.name, |value| {
            if value["metadata"]["uid"] != *scaler.keys.uid || value["status"] == wanted["status"] {
                return Err(unchanged());
            }
            value["status"] = wanted["status"].clone();
            Ok(())
        });
        done(written.await.map(|_| ()))?;
        Ok(Some(PERIOD))
    }
}

#[cfg(test)]
mod tests;
