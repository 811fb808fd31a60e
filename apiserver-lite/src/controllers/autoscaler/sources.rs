//! What one metric of an autoscaler wants, by its kind.

use serde_json::{Value, json};

use super::usage::{self, Outcome, Target};
use super::{Autoscaler, Obstacle, Proposal, Scale, custom, metrics, milli};
use crate::controllers::pods::condition;
use crate::store::{Key, ResourceId};

type Wanted = std::result::Result<Proposal, Obstacle>;

impl Obstacle {
    fn new(reason: &'static str, error: String, whole: &str) -> Self {
        let message = format!("the HPA was unable to compute the replica count: {error}");
        Obstacle { reason, message, whole: format!("failed to get {whole} metric value: {error}"), error }
    }
}

impl Autoscaler {
    /// What one metric of an autoscaler wants.
    pub(super) async fn metric(&self, key: &Key, metric: &Value, scale: &Scale) -> Wanted {
        match metric["type"].as_str().unwrap_or_default() {
            "Resource" => {
                let kinds = ("resource", "resource", "FailedGetResourceMetric");
                self.resource(key, &metric["resource"], scale, kinds).await
            }
            "ContainerResource" => {
                let kinds = ("containerResource", "container", "FailedGetContainerResourceMetric");
                self.resource(key, &metric["containerResource"], scale, kinds).await
            }
            "Pods" => self.of_pods(key, &metric["pods"], scale).await,
            "Object" => self.of_object(key, &metric["object"], scale).await,
            "External" => self.external(key, &metric["external"], scale).await,
            other => {
                let error = format!("unknown metric source type {}", crate::status::quote(other));
                let message = format!("the HPA was unable to compute the replica count: {error}");
                Err(Obstacle { reason: "InvalidMetricSourceType", message, whole: error.clone(), error })
            }
        }
    }

    async fn resource(
        &self,
        key: &Key,
        source: &Value,
        scale: &Scale,
        (kind, word, reason): (&str, &str, &'static str),
    ) -> Wanted {
        let name = source["name"].as_str().unwrap_or_default();
        let container = source["container"].as_str();
        let of = container.map(|container| format!(" of container {container}")).unwrap_or_default();
        let target = &source["target"];
        let percent = target["averageUtilization"].as_i64();
        let average = metrics::thousandths(&target["averageValue"]);
        let wanted = percent.map(Target::Utilization).or(average.map(Target::Average));
        let measured = match percent {
            Some(_) => format!("{name} utilization"),
            None => format!("{name} usage"),
        };
        let whole = match word {
            "resource" => format!("{name} resource"),
            other => format!("{name} {other}"),
        };
        let fail = |why: String| Obstacle::new(reason, format!("failed to get {measured}: {why}"), &whole);
        let Some(wanted) = wanted else {
            return Err(fail(
                "invalid resource metric source: neither an average utilization nor an average value target was set"
                    .into(),
            ));
        };
        let server = self.client.server();
        let used = metrics::used(server, &key.namespace, &scale.selector, name, container).await;
        let used = used.map_err(|why| fail(format!("unable to get metrics for resource {name}: {why}")))?;
        let asked = (name, container);
        let pods = self.pods(&key.namespace, &scale.selector, asked, &used, percent.is_some()).map_err(fail)?;
        let Outcome { replicas, utilization, average } =
            usage::replicas(&pods, scale.replicas, wanted, scale.tolerance).map_err(|why| fail(why.into()))?;
        let mut current = json!({"averageValue": milli(average)});
        if let Some(utilization) = utilization {
            current["averageUtilization"] = utilization.into();
        }
        let mut shown = json!({"name": name, "current": current});
        if let Some(container) = container {
            shown["container"] = container.into();
        }
        let suffix = if percent.is_some() { " utilization (percentage of request)" } else { "" };
        let kind_word = if container.is_some() { "container resource" } else { "resource" };
        let shown_type = if container.is_some() { "ContainerResource" } else { "Resource" };
        Ok(Proposal {
            replicas,
            name: format!("{name} {kind_word}{suffix}{of}"),
            shown: json!({"type": shown_type, kind: shown}),
        })
    }

    /// The average over the target's pods of what each is measured at.
    async fn of_pods(&self, key: &Key, source: &Value, scale: &Scale) -> Wanted {
        let fail = |error: String| Obstacle::new("FailedGetPodsMetric", error, "pods");
        let name = source["metric"]["name"].as_str().unwrap_or_default();
        let server = self.client.server();
        let used = custom::of_pods(server, &key.namespace, &scale.selector, &source["metric"]).await;
        let used = used.map_err(|why| fail(format!("unable to get metric {name}: {why}")))?;
        let wanted = metrics::thousandths(&source["target"]["averageValue"]).unwrap_or(0);
        let pods = self.pods(&key.namespace, &scale.selector, ("", None), &used, false).map_err(fail)?;
        let outcome = usage::replicas(&pods, scale.replicas, Target::Average(wanted), scale.tolerance);
        let outcome = outcome.map_err(|why| fail(why.into()))?;
        let current = json!({"averageValue": milli(outcome.average)});
        let shown = json!({"type": "Pods", "pods": {"metric": source["metric"], "current": current}});
        Ok(Proposal { replicas: outcome.replicas, name: format!("pods metric {name}"), shown })
    }

    async fn of_object(&self, key: &Key, source: &Value, scale: &Scale) -> Wanted {
        let fail = |error: String| Obstacle::new("FailedGetObjectMetric", error, "object");
        let (metric, object) = (&source["metric"], &source["describedObject"]);
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let (name, kind) = (text(&metric["name"]), text(&object["kind"]));
        let measured = custom::of_object(self.client.server(), &key.namespace, object, metric).await;
        // Upstream's words, in upstream's order.
        let measured = measured.map_err(|why| {
            fail(format!("unable to get metric {name}: {kind} on {} {}/{why}", key.namespace, text(&object["name"])))
        })?;
        let (replicas, current) = self.whole(key, measured, &source["target"], scale).map_err(fail)?;
        let name = match source["target"]["type"] == "AverageValue" {
            true => format!("external metric {name}({})", custom::shown(&metric["selector"])),
            false => format!("{kind} metric {name}"),
        };
        let shown = json!({"metric": metric, "describedObject": object, "current": current});
        Ok(Proposal { replicas, name, shown: json!({"type": "Object", "object": shown}) })
    }

    async fn external(&self, key: &Key, source: &Value, scale: &Scale) -> Wanted {
        let metric = &source["metric"];
        let (name, selector) = (metric["name"].as_str().unwrap_or_default(), custom::shown(&metric["selector"]));
        let whole = format!("{name} external");
        let fail = |error: String| {
            Obstacle::new("FailedGetExternalMetric", format!("failed to get {name} external metric: {error}"), &whole)
        };
        let measured = custom::external(self.client.server(), &key.namespace, metric).await;
        let measured = measured
            .map_err(|why| fail(format!("unable to get external metric {}/{name}/{selector}: {why}", key.namespace)))?;
        let (replicas, current) = self.whole(key, measured, &source["target"], scale).map_err(fail)?;
        let shown = json!({"type": "External", "external": {"metric": metric, "current": current}});
        Ok(Proposal { replicas, name: format!("external metric {name}({selector})"), shown })
    }

    /// What a value that belongs to all replicas together wants, and how it is shown.
    fn whole(
        &self,
        key: &Key,
        measured: i64,
        target: &Value,
        scale: &Scale,
    ) -> std::result::Result<(i64, Value), String> {
        if let Some(wanted) = metrics::thousandths(&target["averageValue"]) {
            let replicas = usage::shared(measured, wanted, scale.running, scale.tolerance);
            let each = usage::divided(measured, scale.running);
            return Ok((replicas, json!({"averageValue": milli(each)})));
        }
        let Some(wanted) = metrics::thousandths(&target["value"]) else {
            return Err("invalid metric source: neither a value target nor an average value target was set".into());
        };
        let ready = self.ready(&key.namespace, &scale.selector)?;
        let replicas = usage::proportional(measured, wanted, scale.replicas, ready, scale.tolerance);
        Ok((replicas, json!({"value": milli(measured)})))
    }

    /// How many of the pods that a selector fits are ready.
    fn ready(&self, namespace: &str, selector: &str) -> std::result::Result<i64, String> {
        let pods = self.client.resource("pods").map_err(|e| e.to_string())?;
        let selector = crate::read::Selector::parse(&pods, selector, "").map_err(|e| e.to_string())?;
        let (mut all, mut ready) = (0, 0);
        for pod in self.client.store().snapshot(&ResourceId::from("pods")).range(Some(namespace), None) {
            if selector.matches(pod) {
                let value = pod.without_owners();
                let is_ready = condition(&value, "Ready").is_some_and(|c| c["status"] == "True");
                (all, ready) = (all + 1, ready + i64::from(value["status"]["phase"] == "Running" && is_ready));
            }
        }
        match all {
            0 => {
                Err("unable to calculate ready pods: no pods returned by selector while calculating replica count"
                    .into())
            }
            _ => Ok(ready),
        }
    }
}
