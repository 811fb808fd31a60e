//! Lifecycle hooks: postStart and preStop.

use std::time::Duration;

use proto::api::core::v1::{Container, LifecycleHandler, Pod};

use crate::metrics;
use crate::pod::spec::PodExt;
use crate::probes::http::Get;
use crate::probes::{Target, resolve_port};

use super::Shared;

const USER_AGENT: &str = "kube-lifecycle/1.36";
/// HTTP hooks have no limit of their own: whoever waits for a hook has one, or waits.
const NO_LIMIT: Duration = Duration::MAX;
/// Bytes of each of a failed hook's outputs that are told.
const MOST_TOLD: usize = 4 << 10;

/// What of a hook's output is told: it goes into the pod's status, which the API server takes up to a size only.
fn beginning(output: &[u8]) -> &[u8] {
    &output[..output.len().min(MOST_TOLD)]
}

/// Runs a hook to its end. Dropping the future gives it up.
///
/// # Errors
/// What went wrong in the kubelet's words, as a container that waits shows it; events carry fixed texts.
pub async fn run(
    shared: &Shared,
    pod: &Pod,
    container: &Container,
    container_id: &str,
    ip: &str,
    hook: &LifecycleHandler,
) -> Result<(), String> {
    let whose = || format!("for Container {:?} in Pod {:?} failed - error: ", container.name, pod.described());
    if let Some(exec) = &hook.exec {
        let failed = |error: String, output: &[u8]| {
            let (command, output) = (exec.command.join(" "), crate::env::go_quote(&String::from_utf8_lossy(output)));
            format!("Exec lifecycle hook ([{command}]) {}{error}, message: {output}", whose())
        };
        let answer = shared.cri.exec_sync(container_id, exec.command.clone(), Duration::ZERO).await;
        // It may have ended the container, or the container it.
        shared.nudge.pod();
        return match answer {
            Ok(a) if a.exit_code == 0 => Ok(()),
            Ok(a) => {
                let (stdout, stderr) = (beginning(&a.stdout), beginning(&a.stderr));
                let output = [stdout, stderr].concat();
                let stderr = String::from_utf8_lossy(stderr);
                let error = format!("command '{}' exited with {}: {stderr}", exec.command.join(" "), a.exit_code);
                Err(failed(error, &output))
            }
            Err(e) => Err(failed(e.to_string(), b"")),
        };
    }
    if let Some(action) = &hook.http_get {
        let answer = http(shared, pod, container, ip, action).await;
        return answer.map_err(|why| format!("HTTP lifecycle hook ({}) {}{why}", action.path, whose()));
    }
    if let Some(sleep) = &hook.sleep {
        tokio::time::sleep(Duration::from_secs(u64::try_from(sleep.seconds).unwrap_or(0))).await;
        return Ok(());
    }
    Err(format!("Cannot run handler: invalid handler: {}", shown(hook)))
}

/// A hook that nobody runs, as Go prints it: an empty one, or the TCP connection that is of older versions.
fn shown(hook: &LifecycleHandler) -> String {
    let socket = hook.tcp_socket.as_ref().map_or_else(
        || "nil".to_owned(),
        |socket| {
            let port = socket.port.clone().unwrap_or_default();
            let port = format!("{{{} {} {}}}", port.r#type, port.int_val, port.str_val);
            format!("&TCPSocketAction{{Port:{port},Host:{},}}", socket.host)
        },
    );
    format!("&LifecycleHandler{{Exec:nil,HTTPGet:nil,TCPSocket:{socket},Sleep:nil,}}")
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
    match get.run(NO_LIMIT).await {
        Ok(_) => Ok(()),
        Err(why) if get.https && why.contains("server gave HTTP response to HTTPS client") => {
            // Old hooks said HTTPS and were called in plain text; go on calling them so, without their secrets.
            get.https = false;
            get.headers.retain(|h| !h.name.eq_ignore_ascii_case("authorization"));
            let message =
                format!("request to HTTPS lifecycle hook {} got HTTP response, retry with HTTP succeeded", get.target);
            match get.run(NO_LIMIT).await {
                Ok(_) => {
                    let kind = crate::events::EventType::Warning;
                    metrics::LIFECYCLE_HTTP_FALLBACKS.inc(&[]);
                    shared.recorder.pod(pod, kind, "LifecycleHTTPFallback", message);
                    Ok(())
                }
                // It is the first try that failed.
                Err(_) => Err(why),
            }
        }
        Err(why) => Err(why),
    }
}

#[cfg(test)]
mod tests {
    use proto::api::core::v1::TcpSocketAction;
    use proto::apimachinery::pkg::util::intstr::IntOrString;

    use super::*;

    #[test]
    fn hooks_that_nobody_runs_are_told_as_go_prints_them() {
        let hook = |r#type, int_val, name: &str, host: &str| {
            let port = IntOrString { r#type, int_val, str_val: name.into() };
            let socket = TcpSocketAction { port: Some(port), host: host.into() };
            shown(&LifecycleHandler { tcp_socket: Some(socket), ..Default::default() })
        };
        let told = |socket: &str| format!("&LifecycleHandler{{Exec:nil,HTTPGet:nil,TCPSocket:{socket},Sleep:nil,}}");
        assert_eq!(hook(0, 80, "", ""), told("&TCPSocketAction{Port:{0 80 },Host:,}"));
        assert_eq!(hook(1, 0, "web", "a"), told("&TCPSocketAction{Port:{1 0 web},Host:a,}"));
        assert_eq!(shown(&LifecycleHandler::default()), told("nil"));
    }
}
