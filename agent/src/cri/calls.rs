//! The CRI calls, one method each, with the kubelet's deadlines.

use std::time::Duration;

use proto::cri;
use tonic::{Request, Streaming};

use super::{CriClient, CriError};
use crate::{metrics, spans};

pub(super) type Result<T> = std::result::Result<T, CriError>;

pub(super) fn within<T>(message: T, timeout: Duration) -> Request<T> {
    let mut request = traced(message);
    request.set_timeout(timeout);
    request
}

/// A request without a limit of its own; the runtime is told what span it belongs to.
fn traced<T>(message: T) -> Request<T> {
    let mut request = Request::new(message);
    if let Some(parent) = spans::parent().and_then(|parent| parent.parse().ok()) {
        request.metadata_mut().insert("traceparent", parent);
    }
    request
}

/// The CRI's name of a call, with its service, as spans have it.
fn method(operation: &str) -> String {
    let whole = match operation {
        "update_container" => "update_container_resources".to_owned(),
        other => other.replace("podsandbox", "pod_sandbox"),
    };
    let service = if whole.contains("image") { "ImageService" } else { "RuntimeService" };
    let words = whole.split('_').map(|word| {
        let (first, rest) = word.split_at(word.len().min(1));
        first.to_uppercase() + rest
    });
    format!("runtime.v1.{service}/{}", words.collect::<String>())
}

/// The kubelet's word for a call, where it is not the CRI's.
fn operation(call: &'static str) -> &'static str {
    match call {
        "update_container_resources" => "update_container",
        "update_pod_sandbox_resources" => "update_podsandbox",
        call => call,
    }
}

/// Counts a call, its time and its failure.
pub(super) async fn counted<T>(operation: &str, call: impl Future<Output = Result<T>>) -> Result<T> {
    let labels = [operation];
    metrics::RUNTIME_OPERATIONS.inc(&labels);
    let timer = metrics::RUNTIME_OPERATIONS_SECONDS.time(&labels);
    let failed = |outcome: &Result<T>| outcome.as_ref().err().map(ToString::to_string);
    let attributes = || vec![spans::attribute("rpc.system", "grpc")];
    let outcome = spans::within(|| method(operation), spans::Kind::Client, attributes, failed, call).await;
    drop(timer);
    if outcome.is_err() {
        metrics::RUNTIME_OPERATIONS_ERRORS.inc(&labels);
    }
    outcome
}

macro_rules! plain {
    ($(#[$doc:meta])* $name:ident($request:ident) -> $response:ident on $service:ident) => {
        $(#[$doc])*
        pub async fn $name(&self, request: cri::$request) -> Result<cri::$response> {
            counted(operation(stringify!($name)), async {
                let mut service = self.$service.clone();
                Ok(service.$name(within(request, self.timeout)).await?.into_inner())
            })
            .await
        }
    };
}

impl CriClient {
    /// Name and versions of the runtime; the request names the kubelet's CRI API version.
    pub async fn version(&self) -> Result<cri::VersionResponse> {
        counted("version", async {
            let mut service = self.runtime.clone();
            let request = cri::VersionRequest { version: "0.1.0".into() };
            Ok(service.version(within(request, self.timeout)).await?.into_inner())
        })
        .await
    }

    plain!(
        /// Conditions (`RuntimeReady`, `NetworkReady`), handlers and features.
        status(StatusRequest) -> StatusResponse on runtime);
    plain!(
        /// What the runtime wants the kubelet to use (cgroup driver).
        runtime_config(RuntimeConfigRequest) -> RuntimeConfigResponse on runtime);
    plain!(update_runtime_config(UpdateRuntimeConfigRequest) -> UpdateRuntimeConfigResponse on runtime);
    plain!(update_container_resources(UpdateContainerResourcesRequest) -> UpdateContainerResourcesResponse on runtime);
    plain!(update_pod_sandbox_resources(UpdatePodSandboxResourcesRequest) -> UpdatePodSandboxResourcesResponse on runtime);
    plain!(
        /// URL of a streaming server that runs the command.
        exec(ExecRequest) -> ExecResponse on runtime);
    plain!(attach(AttachRequest) -> AttachResponse on runtime);
    plain!(port_forward(PortForwardRequest) -> PortForwardResponse on runtime);
    plain!(create_container(CreateContainerRequest) -> CreateContainerResponse on runtime);
    plain!(container_stats(ContainerStatsRequest) -> ContainerStatsResponse on runtime);
    plain!(list_container_stats(ListContainerStatsRequest) -> ListContainerStatsResponse on runtime);
    plain!(list_images(ListImagesRequest) -> ListImagesResponse on images);
    plain!(image_fs_info(ImageFsInfoRequest) -> ImageFsInfoResponse on images);

    /// Memory takes its time to be written: `limit` is the caller's.
    pub async fn checkpoint_container(&self, request: cri::CheckpointContainerRequest, limit: Duration) -> Result<()> {
        counted("checkpoint_container", async {
            let mut service = self.runtime.clone();
            service.checkpoint_container(within(request, limit)).await?;
            Ok(())
        })
        .await
    }

    pub async fn run_pod_sandbox(&self, config: cri::PodSandboxConfig, runtime_handler: String) -> Result<String> {
        let _moving = self.moves.moving();
        counted("run_podsandbox", async {
            let mut service = self.runtime.clone();
            // Network plugins may take their time: the kubelet doubles the deadline here.
            let request = within(cri::RunPodSandboxRequest { config: Some(config), runtime_handler }, self.timeout * 2);
            let id = service.run_pod_sandbox(request).await?.into_inner().pod_sandbox_id;
            if id.is_empty() { Err(CriError::incomplete("the sandbox id")) } else { Ok(id) }
        })
        .await
    }

    pub async fn stop_pod_sandbox(&self, id: &str) -> Result<()> {
        let _moving = self.moves.moving();
        counted("stop_podsandbox", async {
            let mut service = self.runtime.clone();
            let request = cri::StopPodSandboxRequest { pod_sandbox_id: id.into() };
            service.stop_pod_sandbox(within(request, self.timeout)).await?;
            Ok(())
        })
        .await
    }

    /// Removes a sandbox; one that is already gone counts as removed.
    pub async fn remove_pod_sandbox(&self, id: &str) -> Result<()> {
        let _moving = self.moves.moving();
        counted("remove_podsandbox", async {
            let mut service = self.runtime.clone();
            let request = cri::RemovePodSandboxRequest { pod_sandbox_id: id.into() };
            gone_is_fine(service.remove_pod_sandbox(within(request, self.timeout)).await)
        })
        .await
    }

    pub async fn pod_sandbox_status(&self, id: &str) -> Result<cri::PodSandboxStatus> {
        let answer = self.pod_sandbox_answer(id, false).await?;
        answer.status.ok_or_else(|| CriError::incomplete("the sandbox status"))
    }

    /// With what only this runtime knows of a sandbox, in its own form, when `verbose`.
    pub async fn pod_sandbox_answer(&self, id: &str, verbose: bool) -> Result<cri::PodSandboxStatusResponse> {
        counted("podsandbox_status", async {
            let mut service = self.runtime.clone();
            let request = cri::PodSandboxStatusRequest { pod_sandbox_id: id.into(), verbose };
            Ok(service.pod_sandbox_status(within(request, self.timeout)).await?.into_inner())
        })
        .await
    }

    /// The runtime's own extra information about a sandbox.
    pub async fn pod_sandbox_info(&self, id: &str) -> Result<std::collections::BTreeMap<String, String>> {
        counted("podsandbox_status", async {
            let mut service = self.runtime.clone();
            let request = cri::PodSandboxStatusRequest { pod_sandbox_id: id.into(), verbose: true };
            Ok(service.pod_sandbox_status(within(request, self.timeout)).await?.into_inner().info)
        })
        .await
    }

    /// Sandboxes of one pod, or of all with `None`.
    pub async fn list_pod_sandboxes(&self, pod_uid: Option<&str>) -> Result<Vec<cri::PodSandbox>> {
        counted("list_podsandbox", async {
            let mut service = self.runtime.clone();
            let filter =
                pod_uid.map(|uid| cri::PodSandboxFilter { label_selector: uid_label(uid), ..Default::default() });
            let request = within(cri::ListPodSandboxRequest { filter }, self.timeout);
            Ok(service.list_pod_sandbox(request).await?.into_inner().items)
        })
        .await
    }

    /// Containers of one pod, or of all with `None`.
    pub async fn list_containers(&self, pod_uid: Option<&str>) -> Result<Vec<cri::Container>> {
        counted("list_containers", async {
            let mut service = self.runtime.clone();
            let filter =
                pod_uid.map(|uid| cri::ContainerFilter { label_selector: uid_label(uid), ..Default::default() });
            let request = within(cri::ListContainersRequest { filter }, self.timeout);
            Ok(service.list_containers(request).await?.into_inner().containers)
        })
        .await
    }

    pub async fn container_status(&self, id: &str) -> Result<cri::ContainerStatus> {
        self.container_status_verbose(id, false)
            .await?
            .status
            .ok_or_else(|| CriError::incomplete("the container status"))
    }

    /// The status with the runtime's own extra information when `verbose`.
    pub async fn container_status_verbose(&self, id: &str, verbose: bool) -> Result<cri::ContainerStatusResponse> {
        counted("container_status", async {
            let mut service = self.runtime.clone();
            let request = cri::ContainerStatusRequest { container_id: id.into(), verbose };
            Ok(service.container_status(within(request, self.timeout)).await?.into_inner())
        })
        .await
    }

    pub async fn start_container(&self, id: &str) -> Result<()> {
        let _moving = self.moves.moving();
        counted("start_container", async {
            let mut service = self.runtime.clone();
            let request = cri::StartContainerRequest { container_id: id.into() };
            service.start_container(within(request, self.timeout)).await?;
            Ok(())
        })
        .await
    }

    /// Stops a container within `grace_seconds`; one that is already gone counts as stopped.
    pub async fn stop_container(&self, id: &str, grace_seconds: i64) -> Result<()> {
        let _moving = self.moves.moving();
        counted("stop_container", async {
            let mut service = self.runtime.clone();
            let deadline = self.timeout + Duration::from_secs(grace_seconds.max(0).unsigned_abs());
            let request = cri::StopContainerRequest { container_id: id.into(), timeout: grace_seconds };
            gone_is_fine(service.stop_container(within(request, deadline)).await)
        })
        .await
    }

    /// Removes a container; one that is already gone counts as removed.
    pub async fn remove_container(&self, id: &str) -> Result<()> {
        let _moving = self.moves.moving();
        counted("remove_container", async {
            let mut service = self.runtime.clone();
            let request = cri::RemoveContainerRequest { container_id: id.into() };
            gone_is_fine(service.remove_container(within(request, self.timeout)).await)
        })
        .await
    }

    pub async fn reopen_container_log(&self, id: &str) -> Result<()> {
        counted("reopen_container_log", async {
            let mut service = self.runtime.clone();
            let request = cri::ReopenContainerLogRequest { container_id: id.into() };
            service.reopen_container_log(within(request, self.timeout)).await?;
            Ok(())
        })
        .await
    }

    /// Runs a command to its end. `timeout` is the runtime's limit (zero: none), in whole seconds on the wire.
    pub async fn exec_sync(&self, id: &str, cmd: Vec<String>, timeout: Duration) -> Result<cri::ExecSyncResponse> {
        counted("exec_sync", async {
            let mut service = self.runtime.clone();
            let seconds = i64::try_from(timeout.as_secs()).unwrap_or(i64::MAX);
            let mut request = traced(cri::ExecSyncRequest { container_id: id.into(), cmd, timeout: seconds });
            // Without a limit the caller's cancellation is the only bound, as in the kubelet.
            if !timeout.is_zero() {
                request.set_timeout(timeout + self.timeout);
            }
            Ok(service.exec_sync(request).await?.into_inner())
        })
        .await
    }

    /// The image if it is present.
    pub async fn image_status(&self, image: cri::ImageSpec) -> Result<Option<cri::Image>> {
        counted("image_status", async {
            let mut service = self.images.clone();
            let request = cri::ImageStatusRequest { image: Some(image), verbose: false };
            let found = service.image_status(within(request, self.timeout)).await?.into_inner().image;
            match found {
                Some(image) if image.id.is_empty() => Err(CriError::incomplete("the image id")),
                found => Ok(found),
            }
        })
        .await
    }

    /// Pulls an image and returns its reference. Dropping the future cancels the pull.
    pub async fn pull_image(&self, request: cri::PullImageRequest) -> Result<String> {
        counted("pull_image", async {
            let mut service = self.images.clone();
            let reference = service.pull_image(traced(request)).await?.into_inner().image_ref;
            if reference.is_empty() { Err(CriError::incomplete("the image reference")) } else { Ok(reference) }
        })
        .await
    }

    pub async fn remove_image(&self, image: cri::ImageSpec) -> Result<()> {
        counted("remove_image", async {
            let mut service = self.images.clone();
            gone_is_fine(
                service.remove_image(within(cri::RemoveImageRequest { image: Some(image) }, self.timeout)).await,
            )
        })
        .await
    }

    /// The stream of container events; older runtimes answer `Unimplemented`.
    pub async fn container_events(&self) -> Result<Streaming<cri::ContainerEventResponse>> {
        counted("container_events", async {
            let mut service = self.runtime.clone();
            Ok(service.get_container_events(traced(cri::GetEventsRequest {})).await?.into_inner())
        })
        .await
    }
}

fn uid_label(uid: &str) -> std::collections::BTreeMap<String, String> {
    [(crate::pod::labels::POD_UID.to_owned(), uid.to_owned())].into()
}

fn gone_is_fine<T>(answer: std::result::Result<tonic::Response<T>, tonic::Status>) -> Result<()> {
    match answer.map_err(CriError::from) {
        Err(e) if !e.is_not_found() => Err(e),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    /// Commands and pulls were spans that the runtime did not hear of.
    #[tokio::test]
    async fn the_runtime_is_told_of_the_span_with_a_limit_and_without() {
        let told = || {
            let limited = super::within((), std::time::Duration::from_secs(1));
            let of = |request: tonic::Request<()>| request.metadata().get("traceparent").is_some();
            [of(limited), of(super::traced(()))]
        };
        assert_eq!(told(), [false; 2]);
        assert_eq!(crate::spans::in_a_span(async { told() }).await, [true; 2]);
    }

    #[test]
    fn spans_have_the_cris_names() {
        for (operation, name) in [
            ("run_podsandbox", "runtime.v1.RuntimeService/RunPodSandbox"),
            ("podsandbox_status", "runtime.v1.RuntimeService/PodSandboxStatus"),
            ("update_container", "runtime.v1.RuntimeService/UpdateContainerResources"),
            ("list_containers", "runtime.v1.RuntimeService/ListContainers"),
            ("pull_image", "runtime.v1.ImageService/PullImage"),
        ] {
            assert_eq!(super::method(operation), name);
        }
    }
}
