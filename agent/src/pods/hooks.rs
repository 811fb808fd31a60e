//! Lifecycle hooks: postStart and preStop.

use std::time::Duration;

use proto::api::core::v1::{Container, LifecycleHandler, Pod};

use crate::metrics;
use crate::pod::spec::PodExt;
use crate::probes::http::Get;
use crate::probes::{Target, resolve_port};

use super::Shared;

const USER_AGENT: &str = "kube-lifecycle/1.36";
/// HTTP hooks have no limit of their own in the API; the kubelet's client waits this long.
const HTTP_TIMEOUT: Duration = Duration::from_secs(30);

/// Runs a hook to its end. Dropping the future gives it up.
///
/// # Errors
/// What went wrong, for the log; events carry fixed texts.
pub async fn run(
    shared: &Shared,
    pod: &Pod,
    container: &Container,
    container_id: &str,
    ip: &str,
    hook: &LifecycleHandler,
) -> Result<(), String> {
    if let Some(exec) = &hook.exec {
        let answer = shared.cri.exec_sync(container_id, exec.command.clone(), Duration::ZERO).await;
        return match answer {
            Ok(a) if a.exit_code == 0 => Ok(()),
            Ok(a) => {
                let output = [a.stdout, a.stderr].concat();
                let output = String::from_utf8_lossy(&output).into_owned();
                Err(format!("command '{}' exited with {}: {output}", exec.command.join(" "), a.exit_code))
            }
            Err(e) => Err(e.to_string()),
        };
    }
    if let Some(action) = &hook.http_get {
        return http(shared, pod, container, ip, action).await;
    }
    if let Some(sleep) = &hook.sleep {
        tokio::time::sleep(Duration::from_secs(u64::try_from(sleep.seconds).unwrap_or(0))).await;
        return Ok(());
    }
    Err("invalid handler".into())
}

async fn http(
    shared: &Shared,
    pod: &Pod,
    container: &Container,
    ip: &str,
    action: &proto::api::core::v1::HttpGetAction,
) -> Result<(), String> {
    let port = match &action.port {
        Some(p) if p.r#type == 0 || !p.str_val.is_empty() => resolve_port(p, container)?,
        _ => 80,
    };
    let host = if action.host.is_empty() { ip } else { &action.host };
    if host.is_empty() {
        return Err("failed to find networking container".into());
    }
    let mut get = Get {
        https: action.scheme.eq_ignore_ascii_case("https"),
        target: Target { host: host.to_owned(), port },
        path: action.path.clone(),
        headers: action.http_headers.clone(),
        user_agent: USER_AGENT,
    };
    match get.run(HTTP_TIMEOUT).await {
        Ok(_) => Ok(()),
        Err(why) if get.https && why.contains("server gave HTTP response to HTTPS client") => {
            // Old hooks said HTTPS and were called in plain text; go on calling them so, without their secrets.
            get.https = false;
            get.headers.retain(|h| !h.name.eq_ignore_ascii_case("authorization"));
            let message =
                format!("request to HTTPS lifecycle hook {} got HTTP response, retry with HTTP succeeded", get.url());
            get.run(HTTP_TIMEOUT).await.map(|_| {
                let kind = crate::events::EventType::Warning;
                metrics::LIFECYCLE_HTTP_FALLBACKS.inc(&[]);
                shared.recorder.container(pod, &container.name, kind, "LifecycleHTTPFallback", message);
            })
        }
        Err(why) => Err(format!("{why} (pod {})", pod.described())),
    }
}
