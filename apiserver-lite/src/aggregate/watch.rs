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

/// Takes in the APIServices as they are. From then on requests for them are passed on, or told that nobody is there;
/// what their servers said last stays until they are looked at again.
pub fn take_in(server: &ApiServer) {
    let snapshot = server.store.snapshot(&ResourceId::from(API_SERVICES));
    let known = server.aggregated.all();
    let read = |value: Value| {
        let mut remote = Remote::read(&server.store, &value, server.aggregated.identity())?;
        if let Some(before) = known.iter().find(|r| r.name == remote.name) {
            remote.available = before.available;
            remote.resources.clone_from(&before.resources);
            remote.documents = before.documents.next(&value["spec"]);
        }
        Some(Arc::new(remote))
    };
    // Most are served here; the others need our certificate, which is read for each.
    let values = snapshot.range(None, None).map(|o| o.value()).filter(|v| v["spec"]["service"].is_object());
    server.aggregated.remotes.store(Arc::new(values.filter_map(read).collect()));
    server.aggregated.changed.notify_one();
}

/// Looks at every aggregated API once; returns whether all of them answer and tell what they serve.
async fn round(server: &Arc<ApiServer>) -> Result<bool> {
    take_in(server);
    let remotes = server.aggregated.all();
    let looks = remotes.iter().map(|remote| look(server, remote));
    let all = futures_util::future::join_all(looks).await;
    all.into_iter().try_fold(true, |good, one| Ok(good && one?))
}

/// Looks at one of them, and tells at once what it found: no other one's server is waited for.
async fn look(server: &Arc<ApiServer>, remote: &Arc<Remote>) -> Result<bool> {
    let found = check(remote).await;
    let good = found.outcome.is_ok() && found.resources.is_some();
    server.aggregated.renew(remote, remote.after(found.outcome.is_ok(), found.resources));
    tell(server, &remote.name, &found.outcome).await?;
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client::Client;

    fn api_service(name: &str) -> Value {
        json!({"apiVersion": "apiregistration.k8s.io/v1", "kind": "APIService",
            "metadata": {"name": format!("v1.{name}")},
            "spec": {"group": name, "version": "v1", "groupPriorityMinimum": 100, "versionPriority": 100,
                "insecureSkipTLSVerify": true, "service": {"namespace": "default", "name": name}}})
    }

    /// A restarted server knew of no aggregated API until the slowest of their servers had been asked.
    #[tokio::test]
    async fn what_is_aggregated_is_known_before_its_servers_were_asked() {
        let server = crate::serve::testing::server().await;
        let client = Client::new(server.clone(), "system:apiserver", "test");
        for name in ["one.example", "two.example"] {
            client.create(API_SERVICES, "", api_service(name)).await.expect("an APIService");
        }
        let set = |status: &'static str| {
            client.update_status(API_SERVICES, "", "v1.one.example", move |value| {
                value["status"]["conditions"] = json!([{"type": "Available", "status": status, "reason": "Passed",
                    "message": "all checks passed", "lastTransitionTime": "2026-01-01T00:00:00Z"}]);
                Ok(())
            })
        };
        set("True").await.expect("written");
        let of = |name: &str| server.aggregated.of_path(&format!("/apis/{name}/v1/things")).expect("known");
        assert!(server.aggregated.all().is_empty());
        take_in(&server);
        assert!(of("one.example").available, "as it was before");
        assert!(!of("two.example").available, "never looked at");

        let said = json!({"resources": []});
        let (one, two) = (of("one.example"), of("two.example"));
        server.aggregated.renew(&one, one.after(false, None));
        server.aggregated.renew(&two, two.after(true, Some(said.clone())));
        assert!(!of("one.example").available && of("two.example").available, "each for itself");
        assert!(!Arc::ptr_eq(&two.documents, &of("two.example").documents), "it is there again");
        take_in(&server);
        let (one, two) = (of("one.example"), of("two.example"));
        assert_eq!((one.available, two.available), (false, true), "what was seen last counts");
        assert_eq!(two.resources.as_ref(), Some(&said));
        assert_eq!(two.after(false, None).resources.as_ref(), Some(&said), "shown while it is away");

        assert!(!round(&server).await.expect("told"), "there are no such services");
        let told = client.get(API_SERVICES, "", "v1.two.example").expect("it is there").value();
        assert_eq!(told["status"]["conditions"][0]["reason"], "ServiceNotFound");
        assert!(!of("two.example").available);
        client.delete(API_SERVICES, "", "v1.one.example", &Default::default()).await.expect("deleted");
        take_in(&server);
        assert!(server.aggregated.of_path("/apis/one.example/v1").is_none());
    }
}
