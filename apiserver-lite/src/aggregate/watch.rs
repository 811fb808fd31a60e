//! Follows the APIServices, and the services and endpoints behind them as long as there are any.

use std::sync::Arc;
use std::time::Duration;

use proto::time::Timestamp;
use serde_json::{Value, json};

use super::check::check;
use super::remote::{Remote, Unavailable};
use crate::server::ApiServer;
use crate::status::{ApiError, Result};
use crate::store::ResourceId;
use crate::write::{self, Target, WriteOptions};

const API_SERVICES: &str = "apiservices.apiregistration.k8s.io";
/// Time between two looks at servers that answer, and at first after one did not; it doubles up to the other.
const EVERY: Duration = Duration::from_secs(30);
const SOON: Duration = Duration::from_secs(1);
/// Least time between two looks, whatever happens.
const REST: Duration = Duration::from_millis(200);

/// Works until the runtime ends. A failed round is logged and tried again.
pub async fn run(server: Arc<ApiServer>) {
    let mut pause = SOON;
    loop {
        let store = &server.store;
        let from = store.revision();
        let watch = |name: &str| store.watch(&ResourceId::from(name), from).ok();
        let (Some(mut own), Some(mut services), Some(mut slices)) =
            (watch(API_SERVICES), watch("services"), watch("endpointslices.discovery.k8s.io"))
        else {
            continue;
        };
        let good = match round(&server).await {
            Ok(good) => good,
            Err(error) => {
                tracing::warn!(%error, "aggregated APIs are looked at again");
                false
            }
        };
        pause = if good { SOON } else { (pause * 2).min(EVERY) };
        let nobody = server.aggregated.all().is_empty();
        let mut events = Vec::new();
        if nobody && good {
            // A cursor that lagged behind is as good as an event.
            let _ = own.next(&mut events).await;
            continue;
        }
        let wait = if good { EVERY } else { pause };
        let (mut more, mut others) = (Vec::new(), Vec::new());
        tokio::select! {
            _ = own.next(&mut events) => {}
            _ = services.next(&mut more) => {}
            _ = slices.next(&mut others) => {}
            () = tokio::time::sleep(wait) => {}
        }
        tokio::time::sleep(REST).await;
    }
}

/// Looks at every aggregated API once; returns whether all of them answer and tell what they serve.
async fn round(server: &Arc<ApiServer>) -> Result<bool> {
    let snapshot = server.store.snapshot(&ResourceId::from(API_SERVICES));
    let objects: Vec<Value> = snapshot.range(None, None).map(|o| o.value()).collect();
    let objects: Vec<Value> = objects.into_iter().filter(|o| o["spec"]["service"].is_object()).collect();
    let known = server.aggregated.all();
    let looked_at = objects.iter().map(|value| async {
        let mut remote = Remote::read(&server.store, value, server.aggregated.identity())?;
        let before = known.iter().find(|r| r.name == remote.name);
        let outcome = check(&mut remote).await;
        let said = remote.resources.is_some();
        if !said && let Some(before) = before {
            // What it said last is still shown.
            remote.resources.clone_from(&before.resources);
        }
        if let Some(before) = before {
            let back = remote.available && !before.available;
            remote.documents = before.documents.next(&value["spec"], back);
        }
        Some((remote, outcome, said))
    });
    let looked_at: Vec<_> = futures_util::future::join_all(looked_at).await.into_iter().flatten().collect();
    let mut good = true;
    let mut remotes = Vec::with_capacity(looked_at.len());
    let mut told = Vec::with_capacity(looked_at.len());
    for (remote, outcome, said) in looked_at {
        good &= outcome.is_ok() && said;
        told.push((remote.name.clone(), outcome));
        remotes.push(Arc::new(remote));
    }
    server.aggregated.remotes.store(Arc::new(remotes));
    server.aggregated.changed.notify_one();
    for (name, outcome) in told {
        tell(server, &name, &outcome).await?;
    }
    Ok(good)
}

/// Writes the condition, unless it says so already.
async fn tell(server: &Arc<ApiServer>, name: &str, outcome: &Result<(), Unavailable>) -> Result<()> {
    let place = server.resources.lookup("apiregistration.k8s.io", "v1", "apiservices");
    let Some(resource) = place else { return Ok(()) };
    let (status, reason, message) = match outcome {
        Ok(()) => ("True", "Passed", "all checks passed"),
        Err(why) => ("False", why.reason, why.message.as_str()),
    };
    let options = WriteOptions { manager: "kube-apiserver".into(), ..WriteOptions::default() };
    let target = Target { resource: &resource, subresource: "status", namespace: "", name };
    let mut lost = false;
    let written = write::update(server, target, &options, |_, old| {
        let mut value = old.clone();
        let mut conditions = value["status"]["conditions"].as_array().cloned().unwrap_or_default();
        let before = conditions.iter().position(|c| c["type"] == "Available");
        let mut next = json!({"type": "Available", "status": status, "reason": reason, "message": message,
            "lastTransitionTime": Timestamp::now().to_seconds_text()});
        match before {
            Some(at) => {
                lost = conditions[at]["status"] == "True" && status == "False";
                if conditions[at]["status"] == status {
                    next["lastTransitionTime"] = conditions[at]["lastTransitionTime"].clone();
                }
                conditions[at] = next;
            }
            None => conditions.push(next),
        }
        value["status"]["conditions"] = conditions.into();
        Ok(value)
    });
    match written.await {
        Err(error) if !ApiError::is_not_found(&error) => Err(error),
        Ok(_) if lost => {
            server.metrics.lost(name, reason);
            Ok(())
        }
        _ => Ok(()),
    }
}
