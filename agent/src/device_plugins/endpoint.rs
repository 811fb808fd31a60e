//! One registered plugin: its calls, each with a limit, and the stream of its devices.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use proto::device_plugin::device_plugin_client::DevicePluginClient;
use proto::device_plugin::{
    AllocateRequest, ContainerAllocateRequest, ContainerAllocateResponse, ContainerPreferredAllocationRequest,
    DevicePluginOptions, Empty, ListAndWatchResponse, PreStartContainerRequest, PreferredAllocationRequest,
};
use tokio::sync::Notify;
use tokio::time::Instant;
use tonic::Status;
use tonic::transport::Channel;

use crate::cri::go_name;
use crate::sockets;

use super::Device;

/// The kubelet dials a plugin for so long.
const DIAL_LIMIT: Duration = Duration::from_secs(10);
const DIAL_RETRY: Duration = Duration::from_millis(500);
/// For questions that a plugin answers from memory.
const CALL_LIMIT: Duration = Duration::from_secs(30);
/// The kubelet waits for ever; a plugin may well reset hardware here.
const ALLOCATE_LIMIT: Duration = Duration::from_secs(120);

/// What a plugin says within this time counts as said at once: the last of it is what it has.
pub(super) const MOMENT: Duration = Duration::from_millis(200);
/// Messages that are read of one moment at most; whoever says more is heard as slowly.
const HEARD: usize = 64;

/// A connected plugin.
pub struct Endpoint {
    client: DevicePluginClient<Channel>,
    /// Where it listens.
    pub socket: PathBuf,
    left: Notify,
}

impl Endpoint {
    /// Connects; a plugin that registers before it listens gets its time.
    ///
    /// # Errors
    /// In the words of the kubelet.
    pub async fn dial(socket: &Path) -> Result<Self, String> {
        let dialling = async {
            loop {
                match sockets::channel(socket, DIAL_LIMIT).await {
                    Ok(channel) => return channel,
                    Err(error) => tracing::debug!(%error, socket = %socket.display(), "cannot dial a device plugin"),
                }
                tokio::time::sleep(DIAL_RETRY).await;
            }
        };
        let channel = tokio::time::timeout(DIAL_LIMIT, dialling).await;
        let channel = channel.map_err(|_| "failed to dial device plugin: context deadline exceeded".to_owned())?;
        Ok(Self { client: DevicePluginClient::new(channel), socket: socket.to_owned(), left: Notify::new() })
    }

    /// Ends the stream of a plugin whose place another has taken.
    pub fn leave(&self) {
        self.left.notify_one();
    }

    pub async fn options(&self) -> Result<DevicePluginOptions, Status> {
        let mut client = self.client.clone();
        within(CALL_LIMIT, client.get_device_plugin_options(Empty {})).await
    }

    pub async fn watch(&self) -> Result<tonic::Streaming<ListAndWatchResponse>, Status> {
        self.client.clone().list_and_watch(Empty {}).await.map(tonic::Response::into_inner)
    }

    pub async fn preferred(
        &self,
        available: Vec<String>,
        must_include: Vec<String>,
        size: usize,
    ) -> Result<Vec<String>, Status> {
        let request = ContainerPreferredAllocationRequest {
            available_device_i_ds: available,
            must_include_device_i_ds: must_include,
            allocation_size: i32::try_from(size).unwrap_or(i32::MAX),
        };
        let request = PreferredAllocationRequest { container_requests: vec![request] };
        let mut client = self.client.clone();
        let answer = within(CALL_LIMIT, client.get_preferred_allocation(request)).await?;
        Ok(answer.container_responses.into_iter().next().map(|r| r.device_i_ds).unwrap_or_default())
    }

    pub async fn allocate(&self, ids: Vec<String>) -> Result<ContainerAllocateResponse, Status> {
        let request = AllocateRequest { container_requests: vec![ContainerAllocateRequest { devices_ids: ids }] };
        let mut client = self.client.clone();
        let answer = within(ALLOCATE_LIMIT, client.allocate(request)).await?;
        // Of several the first counts, as with the kubelet: one was asked for.
        let first = answer.container_responses.into_iter().next();
        first.ok_or_else(|| Status::unknown("no containers return in allocation response"))
    }

    pub async fn pre_start(&self, ids: Vec<String>) -> Result<(), Status> {
        let mut client = self.client.clone();
        let request = PreStartContainerRequest { devices_ids: ids };
        within(CALL_LIMIT, client.pre_start_container(request)).await.map(|_| ())
    }
}

async fn within<T>(
    limit: Duration,
    call: impl Future<Output = Result<tonic::Response<T>, Status>>,
) -> Result<T, Status> {
    match tokio::time::timeout(limit, call).await {
        Ok(answer) => answer.map(tonic::Response::into_inner),
        Err(_) => Err(Status::deadline_exceeded("context deadline exceeded")),
    }
}

/// An error as Go's gRPC prints it; users see it in events.
pub fn described(status: &Status) -> String {
    format!("rpc error: code = {} desc = {}", go_name(status.code()), status.message())
}

/// The devices of a message; of two with one id the last counts, and those without an id are nothing.
pub fn devices(message: ListAndWatchResponse) -> BTreeMap<String, Device> {
    let named = message.devices.into_iter().filter(|d| !d.id.is_empty());
    named
        .map(|d| {
            let nodes = d.topology.map(|t| t.nodes.into_iter().map(|n| n.id).collect());
            (d.id, Device { healthy: d.health == "Healthy", nodes })
        })
        .collect()
}

/// Follows a plugin's devices until it ends, answers garbage, or another takes its place.
pub async fn follow(devices_of: Arc<super::Devices>, resource: String, endpoint: Arc<Endpoint>) {
    tokio::select! {
        () = hear(&devices_of, &resource, &endpoint) => devices_of.stopped(&resource, &endpoint),
        () = endpoint.left.notified() => tracing::info!(resource, "a device plugin has made place for another"),
    }
}

/// Takes what the plugin says: the first word at once, and of all that comes in a moment after it the last.
async fn hear(devices_of: &super::Devices, resource: &str, endpoint: &Arc<Endpoint>) {
    let mut stream = match endpoint.watch().await {
        Ok(stream) => stream,
        Err(error) => return tracing::warn!(%error, resource, "a device plugin does not tell its devices"),
    };
    while let Some(message) = next(&mut stream, resource).await {
        devices_of.update(resource, endpoint, devices(message));
        let until = Instant::now() + MOMENT;
        let (mut last, mut over) = (None, false);
        for _ in 0..HEARD {
            match tokio::time::timeout_at(until, next(&mut stream, resource)).await {
                Ok(Some(message)) => last = Some(message),
                Ok(None) => over = true,
                Err(_) => {}
            }
            if over || Instant::now() >= until {
                break;
            }
        }
        if let Some(message) = last {
            devices_of.update(resource, endpoint, devices(message));
        }
        if over {
            return;
        }
        tokio::time::sleep_until(until).await;
    }
}

/// `None` at the end of the stream, however it came. Cancel safe.
async fn next(stream: &mut tonic::Streaming<ListAndWatchResponse>, resource: &str) -> Option<ListAndWatchResponse> {
    stream.message().await.unwrap_or_else(|error| {
        tracing::debug!(%error, resource, "the stream of a device plugin broke");
        None
    })
}
