//! A container as the runtime's `ContainerConfig`.

use proto::api::core::v1::{Container, Pod};
use proto::cri;

use super::expand::expand_text;
use super::hash::container_hash;
use super::labels;
use super::resources::{NodeResources, container_resources};
use super::security::{ImageUser, SecurityDefaults, container_context};
use super::spec::PodExt;

/// What the caller knows beyond the spec.
pub struct ContainerInputs<'a> {
    pub attempt: u32,
    /// The runtime's id of the image.
    pub image_id: String,
    pub image_user: ImageUser,
    pub envs: Vec<(String, Vec<u8>)>,
    pub mounts: Vec<cri::Mount>,
    pub devices: Vec<cri::Device>,
    pub cdi_devices: Vec<cri::CdiDevice>,
    /// From device plugins.
    pub annotations: Vec<(String, String)>,
    /// Container id that an ephemeral container joins.
    pub target: Option<String>,
    pub resources: &'a NodeResources,
    pub userns: Option<&'a cri::UserNamespace>,
    /// Whether the spec's own stop signal counts (`ContainerStopSignals`).
    pub stop_signals: bool,
    pub security: SecurityDefaults<'a>,
}

/// `None` when the value of a variable makes a command or an argument what is no text, which no runtime can be told.
pub fn container_config(pod: &Pod, container: &Container, inputs: ContainerInputs<'_>) -> Option<cri::ContainerConfig> {
    let variables = &inputs.envs;
    let expanded = |texts: &[String]| texts.iter().map(|t| expand_text(t, variables)).collect::<Option<Vec<_>>>();
    let context =
        container_context(pod, container, &inputs.image_user, inputs.target.as_deref(), inputs.userns, inputs.security);
    Some(cri::ContainerConfig {
        metadata: Some(cri::ContainerMetadata { name: container.name.clone(), attempt: inputs.attempt }),
        image: Some(cri::ImageSpec {
            image: inputs.image_id,
            user_specified_image: container.image.clone(),
            ..Default::default()
        }),
        command: expanded(&container.command)?,
        args: expanded(&container.args)?,
        working_dir: container.working_dir.clone(),
        mounts: inputs.mounts,
        devices: inputs.devices,
        cdi_devices: inputs.cdi_devices,
        labels: container_labels(pod, container),
        annotations: container_annotations(pod, container, inputs.attempt, inputs.annotations),
        log_path: format!("{}/{}.log", container.name, inputs.attempt),
        stdin: container.stdin,
        stdin_once: container.stdin_once,
        tty: container.tty,
        linux: Some(cri::LinuxContainerConfig {
            resources: Some(container_resources(pod, container, inputs.resources)),
            security_context: Some(context),
        }),
        windows: None,
        stop_signal: if inputs.stop_signals { stop_signal(container) } else { 0 },
        envs: inputs.envs.into_iter().map(|(key, value)| cri::KeyValue { key, value }).collect(),
    })
}

fn container_labels(pod: &Pod, container: &Container) -> std::collections::BTreeMap<String, String> {
    [
        (labels::POD_NAME.into(), pod.name().to_owned()),
        (labels::POD_NAMESPACE.into(), pod.namespace().to_owned()),
        (labels::POD_UID.into(), pod.uid().to_owned()),
        (labels::CONTAINER_NAME.into(), container.name.clone()),
    ]
    .into()
}

fn container_annotations(
    pod: &Pod,
    container: &Container,
    attempt: u32,
    extra: Vec<(String, String)>,
) -> std::collections::BTreeMap<String, String> {
    let mut out: std::collections::BTreeMap<String, String> = extra.into_iter().collect();
    let mut put = |key: &str, value: String| out.insert(key.to_owned(), value);
    put(labels::HASH, container_hash(container));
    put(labels::RESTART_COUNT, attempt.to_string());
    put(labels::TERMINATION_MESSAGE_PATH, container.termination_message_path.clone());
    put(labels::TERMINATION_MESSAGE_POLICY, container.termination_message_policy.clone());
    if let Some(grace) = pod.meta().deletion_grace_period_seconds {
        put(labels::DELETION_GRACE_PERIOD, grace.to_string());
    }
    if let Some(grace) = pod.spec().termination_grace_period_seconds {
        put(labels::TERMINATION_GRACE_PERIOD, grace.to_string());
    }
    if let Some(hook) = container.lifecycle.as_ref().and_then(|l| l.pre_stop.as_ref()) {
        put(labels::PRE_STOP_HANDLER, crate::wire_json::to_json("k8s.io.api.core.v1.LifecycleHandler", hook));
    }
    if !container.ports.is_empty() {
        let ports: Vec<String> =
            container.ports.iter().map(|p| crate::wire_json::to_json("k8s.io.api.core.v1.ContainerPort", p)).collect();
        put(labels::PORTS, format!("[{}]", ports.join(",")));
    }
    out
}

/// The signal of the spec as the runtime numbers it; zero leaves it to the image. The CRI has words where the API's names of
/// real-time signals have signs.
fn stop_signal(container: &Container) -> i32 {
    let name = container.lifecycle.as_ref().and_then(|l| l.stop_signal.as_deref()).unwrap_or("");
    let name = name.replace("RTMIN+", "RTMINPLUS").replace("RTMAX-", "RTMAXMINUS");
    cri::Signal::from_str_name(&name).map_or(0, |s| s as i32)
}

/// The runtime's number of a stop signal as the API names it; `None` where the runtime does not tell one.
pub fn signal_name(number: i32) -> Option<String> {
    let signal = cri::Signal::try_from(number).ok().filter(|s| *s != cri::Signal::RuntimeDefault)?;
    Some(signal.as_str_name().replace("RTMINPLUS", "RTMIN+").replace("RTMAXMINUS", "RTMAX-"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proto::api::core::v1::Lifecycle;

    #[test]
    fn signals_are_those_of_the_runtime() {
        let number = |name: &str| {
            let lifecycle = Lifecycle { stop_signal: Some(name.into()), ..Default::default() };
            stop_signal(&Container { lifecycle: Some(lifecycle), ..Default::default() })
        };
        assert_eq!(number("SIGTERM"), cri::Signal::Sigterm as i32);
        assert_eq!(number("SIGRTMIN"), cri::Signal::Sigrtmin as i32);
        assert_eq!(number("SIGRTMIN+3"), cri::Signal::Sigrtminplus3 as i32);
        assert_eq!(number("SIGRTMAX-14"), cri::Signal::Sigrtmaxminus14 as i32);
        assert_eq!(stop_signal(&Container::default()), 0);
        for name in ["SIGTERM", "SIGRTMIN", "SIGRTMIN+3", "SIGRTMAX-14", "SIGRTMAX"] {
            assert_eq!(signal_name(number(name)).as_deref(), Some(name));
        }
        assert_eq!([signal_name(0), signal_name(-1), signal_name(99)], [None, None, None]);
    }

    #[test]
    fn the_spec_s_stop_signal_is_passed_on_only_with_its_gate() {
        let lifecycle = Lifecycle { stop_signal: Some("SIGUSR1".into()), ..Default::default() };
        let container = Container { name: "a".into(), lifecycle: Some(lifecycle), ..Default::default() };
        let resources = NodeResources::default();
        let passed = |stop_signals| {
            let inputs = ContainerInputs {
                attempt: 0,
                image_id: String::new(),
                image_user: ImageUser::Uid(0),
                envs: vec![],
                mounts: vec![],
                devices: vec![],
                cdi_devices: vec![],
                annotations: vec![],
                target: None,
                resources: &resources,
                userns: None,
                stop_signals,
                security: SecurityDefaults { seccomp_dir: std::path::Path::new("/"), seccomp_default: false },
            };
            container_config(&Pod::default(), &container, inputs).unwrap().stop_signal
        };
        assert_eq!(passed(true), cri::Signal::Sigusr1 as i32);
        assert_eq!(passed(false), cri::Signal::RuntimeDefault as i32);
    }
}
