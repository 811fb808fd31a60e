//! One run of one probe.

use std::sync::Arc;
use std::time::Duration;

use proto::api::core::v1::{Container, Pod, Probe};
use tonic::Code;

use crate::cri::CriClient;
use crate::env::go_quote;
use crate::metrics;
use crate::pod::spec::{PodExt, find_container};

use super::ProbeKind;
use super::http::Get;
use super::target::{Target, http_target, resolve_port};
use super::{grpc, http, tcp};

/// `kube-probe/MAJOR.MINOR`, by which applications know a probe.
const USER_AGENT: &str = "kube-probe/1.36";
const MAX_OUTPUT_BYTES: usize = 10 * 1024;
/// Tries when a probe cannot be run at all.
const TRIES: usize = 3;

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    Success,
    /// Counts as success; told in an event.
    Warning(String),
    Failure(String),
    /// The probe itself could not be run; says nothing about the container.
    Unknown(String),
    /// The answer broke off; says nothing either, and is told as if it did.
    Broken(String),
}

/// Everything a run needs.
pub struct Job {
    pub pod: Arc<Pod>,
    pub container: String,
    pub container_id: String,
    pub kind: ProbeKind,
    pub ip: String,
    pub cri: CriClient,
}

impl Job {
    pub async fn run(self) -> Outcome {
        let (kind, pod) = (self.kind.word(), self.pod.clone());
        let labels = [self.container.as_str(), pod.namespace(), pod.name(), kind];
        let timer = metrics::PROBE_SECONDS.time(&labels);
        let outcome = self.tries().await;
        drop(timer);
        let result = match outcome {
            Outcome::Success | Outcome::Warning(_) => "successful",
            Outcome::Failure(_) => "failed",
            Outcome::Unknown(_) | Outcome::Broken(_) => "unknown",
        };
        let [container, namespace, name, kind] = labels;
        metrics::PROBE_RESULTS.inc(&[container, namespace, name, pod.uid(), kind, result]);
        outcome
    }

    async fn tries(&self) -> Outcome {
        let mut last = Outcome::Unknown("no such container".into());
        let Some((_, container)) = find_container(self.pod.spec(), &self.container) else { return last };
        let Some(probe) = self.kind.of(&container) else { return last };
        for _ in 0..TRIES {
            last = self.once(&container, probe).await;
            if !matches!(last, Outcome::Unknown(_) | Outcome::Broken(_)) {
                break;
            }
        }
        last
    }

    async fn once(&self, container: &Container, probe: &Probe) -> Outcome {
        let timeout = Duration::from_secs(u64::try_from(probe.timeout_seconds.max(1)).unwrap_or(1));
        let Some(handler) = &probe.handler else { return Outcome::Unknown("missing probe handler".into()) };
        if let Some(exec) = &handler.exec {
            return self.exec(&exec.command, container, timeout).await;
        }
        if let Some(action) = &handler.http_get {
            let target = match http_target(action, container, &self.ip) {
                Ok(target) => target,
                Err(why) => return Outcome::Unknown(why),
            };
            let get = Get {
                https: action.scheme.eq_ignore_ascii_case("https"),
                target,
                path: action.path.clone(),
                headers: action.http_headers.clone(),
                user_agent: USER_AGENT,
            };
            return match get.run(timeout).await {
                Ok(http::Answer { broken: Some(why), .. }) => Outcome::Broken(why),
                Ok(a) if (200..300).contains(&a.status) => Outcome::Success,
                // To another host, or nowhere.
                Ok(a) if (300..400).contains(&a.status) => {
                    Outcome::Warning(format!("Probe terminated redirects, Response body: {}", a.body))
                }
                Ok(a) => Outcome::Failure(format!("HTTP probe failed with statuscode: {}", a.status)),
                Err(why) => Outcome::Failure(why),
            };
        }
        if let Some(action) = &handler.tcp_socket {
            let port = action.port.as_ref().ok_or_else(|| "no port is given".to_owned());
            let port = match port.and_then(|p| resolve_port(p, container)) {
                Ok(port) => port,
                Err(why) => return Outcome::Unknown(why),
            };
            let host = if action.host.is_empty() { &self.ip } else { &action.host };
            return match tcp::dial(&Target { host: host.clone(), port }, timeout).await {
                Ok(_) => Outcome::Success,
                Err(why) => Outcome::Failure(why),
            };
        }
        if let Some(action) = &handler.grpc {
            let Ok(port) = u16::try_from(action.port) else { return Outcome::Unknown("invalid port".into()) };
            let target = Target { host: self.ip.clone(), port };
            let service = action.service.as_deref().unwrap_or("");
            return match grpc::check(&target, service, timeout, USER_AGENT).await {
                Ok(_) => Outcome::Success,
                Err(why) => Outcome::Failure(why),
            };
        }
        Outcome::Unknown(format!("missing probe handler for {}:{}", self.pod.described(), container.name))
    }

    async fn exec(&self, command: &[String], container: &Container, timeout: Duration) -> Outcome {
        let command = expanded(command, container);
        let line = command.join(" ");
        match self.cri.exec_sync(&self.container_id, command, timeout).await {
            Ok(answer) if answer.exit_code == 0 => Outcome::Success,
            Ok(answer) => {
                let mut output = answer.stdout;
                output.extend_from_slice(&answer.stderr);
                output.truncate(MAX_OUTPUT_BYTES);
                Outcome::Failure(String::from_utf8_lossy(&output).into_owned())
            }
            Err(e) if e.code == Code::DeadlineExceeded => {
                let timeout =
                    i64::try_from(timeout.as_nanos()).map_or_else(|_| format!("{timeout:?}"), proto::duration::format);
                Outcome::Failure(format!("command timed out: {} timed out after {timeout}", go_quote(&line)))
            }
            Err(e) => Outcome::Unknown(e.to_string()),
        }
    }
}

/// A command with the variables that the spec gives; those from elsewhere are not looked up and are empty.
fn expanded(command: &[String], container: &Container) -> Vec<String> {
    let variables: Vec<(String, String)> = container.env.iter().map(|e| (e.name.clone(), e.value.clone())).collect();
    // Of texts come texts.
    command.iter().map(|part| crate::pod::expand::expand_text(part, &variables).unwrap_or_default()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proto::api::core::v1::{EnvVar, EnvVarSource};

    #[test]
    fn commands_know_the_variables_of_the_spec() {
        let plain = EnvVar { name: "A".into(), value: "a".into(), ..Default::default() };
        let from = EnvVar { name: "B".into(), value_from: Some(EnvVarSource::default()), ..Default::default() };
        let container = Container { env: vec![plain, from], ..Default::default() };
        assert_eq!(expanded(&["<$(A)$(B)$(C)>".into()], &container), ["<a$(C)>"]);
    }
}
