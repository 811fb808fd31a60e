//! The smallest storage driver that is one: a volume is a folder of the driver's own, staged and published by bind
//! mounts. It registers with the agent by a socket in `plugins_registry` and writes down what it is asked.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Context, Result};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use proto::csi::node_server::{Node, NodeServer};
use proto::csi::node_service_capability::rpc::Type as RpcType;
use proto::csi::node_service_capability::{Rpc, Type};
use proto::csi::*;
use proto::plugin_registration::registration_server::{Registration, RegistrationServer};
use proto::plugin_registration::{InfoRequest, PluginInfo, RegistrationStatus, RegistrationStatusResponse};
use tokio::net::UnixListener;
use tonic::codegen::Service as _;
use tonic::{Request, Response, Status};

/// The name by which volumes ask for it.
pub const DRIVER: &str = "folder.example.com";

/// What the driver knows.
pub struct Driver {
    /// Volumes by handle.
    folders: PathBuf,
    node: String,
    calls: Mutex<Vec<String>>,
    /// Mount points that exist by its doing, and how many mounts are on each.
    mounts: Mutex<HashMap<String, u32>>,
}

/// A driver that serves; it ends when this is dropped, and what it mounted goes with it.
pub struct Running {
    pub driver: Arc<Driver>,
    socket: PathBuf,
    runtime: Option<tokio::runtime::Runtime>,
}

impl Driver {
    fn note(&self, call: &str, path: &str) {
        self.calls.lock().unwrap_or_else(PoisonError::into_inner).push(format!("{call} {path}"));
    }

    /// Every call so far: its name and its target.
    pub fn calls(&self) -> Vec<String> {
        self.calls.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Where the files of a volume lie.
    pub fn folder(&self, handle: &str) -> PathBuf {
        self.folders.join(handle)
    }

    /// Mounts of its doing that are still there.
    pub fn mounted(&self) -> usize {
        self.mounts.lock().unwrap_or_else(PoisonError::into_inner).len()
    }

    /// Binds once; asked again for what is there, it has nothing to do.
    fn bind(&self, from: &Path, to: &str) -> Result<(), Status> {
        let mut mounts = self.mounts.lock().unwrap_or_else(PoisonError::into_inner);
        if mounts.contains_key(to) {
            return Ok(());
        }
        std::fs::create_dir_all(from)?;
        std::fs::create_dir_all(to)?;
        mount(Some(from), to, None::<&str>, MsFlags::MS_BIND, None::<&str>)
            .map_err(|e| Status::internal(format!("bind {}: {e}", from.display())))?;
        mounts.insert(to.to_owned(), 1);
        Ok(())
    }

    fn release(&self, from: &str) -> Result<(), Status> {
        let mut mounts = self.mounts.lock().unwrap_or_else(PoisonError::into_inner);
        if mounts.remove(from).is_some() {
            umount2(from, MntFlags::empty()).map_err(|e| Status::internal(format!("unmount {from}: {e}")))?;
        }
        Ok(())
    }
}

#[tonic::async_trait]
impl Node for Driver {
    async fn node_stage_volume(
        &self,
        request: Request<NodeStageVolumeRequest>,
    ) -> Result<Response<NodeStageVolumeResponse>, Status> {
        let request = request.into_inner();
        self.note("stage", &request.staging_target_path);
        self.bind(&self.folder(&request.volume_id), &request.staging_target_path)?;
        Ok(Response::new(NodeStageVolumeResponse {}))
    }

    async fn node_unstage_volume(
        &self,
        request: Request<NodeUnstageVolumeRequest>,
    ) -> Result<Response<NodeUnstageVolumeResponse>, Status> {
        let path = request.into_inner().staging_target_path;
        self.note("unstage", &path);
        self.release(&path)?;
        Ok(Response::new(NodeUnstageVolumeResponse {}))
    }

    async fn node_publish_volume(
        &self,
        request: Request<NodePublishVolumeRequest>,
    ) -> Result<Response<NodePublishVolumeResponse>, Status> {
        let request = request.into_inner();
        self.note("publish", &request.target_path);
        self.bind(Path::new(&request.staging_target_path), &request.target_path)?;
        Ok(Response::new(NodePublishVolumeResponse {}))
    }

    async fn node_unpublish_volume(
        &self,
        request: Request<NodeUnpublishVolumeRequest>,
    ) -> Result<Response<NodeUnpublishVolumeResponse>, Status> {
        let path = request.into_inner().target_path;
        self.note("unpublish", &path);
        self.release(&path)?;
        Ok(Response::new(NodeUnpublishVolumeResponse {}))
    }

    async fn node_get_volume_stats(
        &self,
        _: Request<NodeGetVolumeStatsRequest>,
    ) -> Result<Response<NodeGetVolumeStatsResponse>, Status> {
        Err(Status::unimplemented("it keeps no statistics"))
    }

    async fn node_expand_volume(
        &self,
        _: Request<NodeExpandVolumeRequest>,
    ) -> Result<Response<NodeExpandVolumeResponse>, Status> {
        Err(Status::unimplemented("a folder has no size"))
    }

    async fn node_get_capabilities(
        &self,
        _: Request<NodeGetCapabilitiesRequest>,
    ) -> Result<Response<NodeGetCapabilitiesResponse>, Status> {
        let rpc = Rpc { r#type: RpcType::StageUnstageVolume.into() };
        let capabilities = vec![NodeServiceCapability { r#type: Some(Type::Rpc(rpc)) }];
        Ok(Response::new(NodeGetCapabilitiesResponse { capabilities }))
    }

    async fn node_get_info(&self, _: Request<NodeGetInfoRequest>) -> Result<Response<NodeGetInfoResponse>, Status> {
        let segments = [("topology.folder.example.com/node".to_owned(), self.node.clone())].into();
        Ok(Response::new(NodeGetInfoResponse {
            node_id: format!("id-of-{}", self.node),
            max_volumes_per_node: 5,
            accessible_topology: Some(Topology { segments }),
        }))
    }
}

struct Announcement;

#[tonic::async_trait]
impl Registration for Announcement {
    async fn get_info(&self, _: Request<InfoRequest>) -> Result<Response<PluginInfo>, Status> {
        Ok(Response::new(PluginInfo {
            r#type: "CSIPlugin".into(),
            name: DRIVER.into(),
            endpoint: String::new(),
            supported_versions: vec!["1.0.0".into()],
        }))
    }

    async fn notify_registration_status(
        &self,
        request: Request<RegistrationStatus>,
    ) -> Result<Response<RegistrationStatusResponse>, Status> {
        let said = request.into_inner();
        if !said.plugin_registered {
            println!("the driver is refused: {}", said.error);
        }
        Ok(Response::new(RegistrationStatusResponse {}))
    }
}

impl Running {
    /// Serves in `registry`, the agent's `plugins_registry`; volumes lie in `folders`.
    ///
    /// # Errors
    /// When the socket cannot be made.
    pub fn start(registry: &Path, folders: &Path, node: &str) -> Result<Self> {
        let driver = Arc::new(Driver {
            folders: folders.to_owned(),
            node: node.to_owned(),
            calls: Mutex::default(),
            mounts: Mutex::default(),
        });
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
        let socket = registry.join("folder.sock");
        let _inside = runtime.enter();
        let listener = UnixListener::bind(&socket).with_context(|| format!("listening on {}", socket.display()))?;
        runtime.spawn(serve(listener, driver.clone()));
        Ok(Running { driver, socket, runtime: Some(runtime) })
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.socket);
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
        for path in self.driver.mounts.lock().unwrap_or_else(PoisonError::into_inner).keys() {
            let _ = umount2(path.as_str(), MntFlags::MNT_DETACH);
        }
    }
}

async fn serve(listener: UnixListener, driver: Arc<Driver>) {
    let announcement = Arc::new(Announcement);
    while let Ok((stream, _)) = listener.accept().await {
        let (driver, announcement) = (driver.clone(), announcement.clone());
        tokio::spawn(async move {
            let service = service_fn(move |request: http::Request<Incoming>| {
                let mut node = NodeServer::from_arc(driver.clone());
                let mut registration = RegistrationServer::from_arc(announcement.clone());
                let request = request.map(tonic::body::Body::new);
                async move {
                    match request.uri().path().starts_with("/csi.v1.Node/") {
                        true => node.call(request).await,
                        false => registration.call(request).await,
                    }
                }
            });
            let server = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
            // An agent that goes away is the end of its connection, no fault.
            let _ = server.serve_connection(TokioIo::new(stream), service).await;
        });
    }
}
