//! The socket at which plugins register, and what a registration must be like.

use std::future::Future;
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use http::Request;
use hyper::body::Incoming;
use proto::device_plugin::registration_server::{Registration, RegistrationServer};
use proto::device_plugin::{Empty, RegisterRequest};
use tonic::codegen::Service as _;
use tonic::{Response, Status};

use crate::metrics;
use crate::sockets::{Reply, bind, serve, unimplemented};

use super::endpoint::{Endpoint, described, follow};
use super::{Devices, Resource, checkpoint};

const SERVICE: &str = "v1beta1.Registration";
const SUPPORTED: &str = "v1beta1";

/// A registration that is refused; the plugin's to mend. The texts are the kubelet's.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RegisterError {
    #[error("requested API version {0:?} is not supported by kubelet. Supported version is [\"v1beta1\"]")]
    Version(String),
    #[error("the ResourceName {0:?} is invalid")]
    ResourceName(String),
    #[error("{0}")]
    Dial(String),
    #[error("failed to get device plugin options: {0}")]
    Options(String),
}

/// Empties the folder, which tells plugins to register again, and serves until dropped.
///
/// # Errors
/// When the folder or the socket cannot be made.
pub fn start(devices: Arc<Devices>) -> std::io::Result<impl Future<Output = ()> + use<>> {
    std::fs::create_dir_all(&devices.dir)?;
    for entry in std::fs::read_dir(&devices.dir)?.flatten() {
        let is_dir = entry.file_type().is_ok_and(|t| t.is_dir());
        // A damaged checkpoint that was set aside is for a person to look at.
        let kept = entry.file_name().to_string_lossy().starts_with(checkpoint::FILE);
        if is_dir || kept {
            continue;
        }
        if let Err(error) = std::fs::remove_file(entry.path()) {
            tracing::warn!(%error, path = %entry.path().display(), "a stale socket stays");
        }
    }
    let listener = bind(&devices.dir.join("kubelet.sock"), 0o755)?;
    devices.serves.store(true, Ordering::Relaxed);
    let server = RegistrationServer::new(Registrar(devices)).max_decoding_message_size(64 << 10);
    Ok(serve(listener, move |request| answer(server.clone(), request)))
}

async fn answer(mut server: RegistrationServer<Registrar>, request: Request<Incoming>) -> Reply {
    if request.uri().path() != "/v1beta1.Registration/Register" {
        return unimplemented(request.uri().path(), &[SERVICE]);
    }
    match server.call(request).await {
        Ok(reply) => reply,
        Err(never) => match never {},
    }
}

struct Registrar(Arc<Devices>);

#[tonic::async_trait]
impl Registration for Registrar {
    async fn register(&self, request: tonic::Request<RegisterRequest>) -> Result<Response<Empty>, Status> {
        let request = request.into_inner();
        metrics::DEVICE_PLUGIN_REGISTRATIONS.inc(&[&request.resource_name]);
        let socket = below(&self.0.dir, &request.endpoint);
        let registered = match check(&request.resource_name, &request.version) {
            Ok(()) => self.0.register(&request.resource_name, socket).await,
            Err(error) => Err(error),
        };
        match registered {
            Ok(()) => Ok(Response::new(Empty {})),
            Err(error) => {
                tracing::info!(%error, resource = request.resource_name, "refused a device plugin");
                Err(Status::unknown(error.to_string()))
            }
        }
    }
}

/// Whether a plugin of this version may give this resource.
///
/// # Errors
/// See [`RegisterError`].
fn check(resource: &str, version: &str) -> Result<(), RegisterError> {
    if version != SUPPORTED {
        return Err(RegisterError::Version(version.to_owned()));
    }
    if is_extended(resource) { Ok(()) } else { Err(RegisterError::ResourceName(resource.to_owned())) }
}

/// The same of a plugin that comes by way of `plugins_registry` and tells all its versions.
///
/// # Errors
/// In the kubelet's words, which are others there.
pub fn validate(resource: &str, versions: &[String]) -> Result<(), String> {
    if !versions.iter().any(|v| v == SUPPORTED) {
        let told = versions.join(" ");
        return Err(format!("manager version, {SUPPORTED}, is not among plugin supported versions [{told}]"));
    }
    check(resource, SUPPORTED).map_err(|why| format!("invalid name of device plugin socket: {why}"))
}

/// A name below a folder, wherever it means to lead.
fn below(folder: &Path, name: &str) -> PathBuf {
    let mut path = folder.to_owned();
    for part in Path::new(name).components() {
        match part {
            Component::Normal(part) => path.push(part),
            Component::ParentDir if path != folder => drop(path.pop()),
            _ => {}
        }
    }
    path
}

/// A resource outside `kubernetes.io` whose quota name would be a qualified name too.
fn is_extended(name: &str) -> bool {
    let Some((domain, rest)) = name.split_once('/') else { return false };
    // Anywhere in it, as upstream looks for it.
    let native = name.contains("kubernetes.io/");
    let label = |l: &str| {
        !l.is_empty()
            && l.len() <= 63
            && l.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-')
            && !l.starts_with('-')
            && !l.ends_with('-')
    };
    let edge = |b: Option<&u8>| b.is_some_and(u8::is_ascii_alphanumeric);
    let bytes = rest.as_bytes();
    let named = bytes.len() <= 63
        && edge(bytes.first())
        && edge(bytes.last())
        && bytes.iter().all(|b| b.is_ascii_alphanumeric() || b"-_.".contains(b));
    // Quotas write `requests.` before it, and that must still fit.
    !native
        && !name.starts_with("requests.")
        && domain.len() + "requests.".len() <= 253
        && domain.split('.').all(label)
        && named
}

impl Devices {
    /// Connects a plugin and follows it. One that was there before is left, and hears no more of this agent.
    ///
    /// # Errors
    /// When it cannot be reached or does not tell its options.
    pub async fn register(self: &Arc<Self>, resource: &str, socket: PathBuf) -> Result<(), RegisterError> {
        let endpoint = Endpoint::dial(&socket).await.map_err(RegisterError::Dial)?;
        let options = endpoint.options().await.map_err(|e| RegisterError::Options(described(&e)))?;
        let endpoint = Arc::new(endpoint);
        {
            let mut state = self.state();
            state.gone.remove(resource);
            let known = state.resources.entry(resource.to_owned()).or_default();
            let devices = std::mem::take(&mut known.devices);
            known.endpoint.iter().for_each(|before| before.leave());
            *known = Resource {
                devices,
                endpoint: Some(endpoint.clone()),
                told: false,
                options,
                stopped: None,
                turn: known.turn.clone(),
            };
        }
        tracing::info!(resource, socket = %socket.display(), "a device plugin registered");
        tokio::spawn(follow(self.clone(), resource.to_owned(), endpoint));
        Ok(())
    }

    /// A plugin that came by way of `plugins_registry` has taken its socket away.
    /// Another that has taken its place stays.
    pub fn unregister(self: &Arc<Self>, resource: &str, socket: &Path) {
        let endpoint = self.state().resources.get(resource).and_then(|r| r.endpoint.clone());
        if let Some(endpoint) = endpoint.filter(|e| e.socket == socket) {
            endpoint.leave();
            self.stopped(resource, &endpoint);
        }
    }

    /// The folder of plugins' sockets.
    pub fn dir(&self) -> &Path {
        &self.dir
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusals_have_the_texts_of_the_kubelet() {
        let refused = |resource: &str, version: &str| check(resource, version).unwrap_err().to_string();
        let want = "requested API version \"v1alpha\" is not supported by kubelet. Supported version is [\"v1beta1\"]";
        assert_eq!(refused("example.com/x", "v1alpha"), want);
        for bad in [
            "x",
            "requests.example.com/x",
            "kubernetes.io/x",
            "a.kubernetes.io/x",
            "/x",
            "example.com/",
            "Ex.com/x",
            "a/b/c",
        ] {
            assert_eq!(refused(bad, "v1beta1"), format!("the ResourceName {bad:?} is invalid"));
        }
        assert_eq!(check("example.com/GPU_a.1", "v1beta1"), Ok(()));
    }

    /// They used to be told what those are told that register at the socket of device plugins.
    #[test]
    fn plugins_of_the_registry_are_refused_in_words_of_their_own() {
        let of = |resource: &str, versions: &[&str]| {
            let versions: Vec<String> = versions.iter().map(|v| (*v).to_owned()).collect();
            validate(resource, &versions)
        };
        let version = "manager version, v1beta1, is not among plugin supported versions [v1 v1alpha]";
        assert_eq!(of("example.com/x", &["v1", "v1alpha"]), Err(version.into()));
        assert_eq!(of("x", &[]), Err("manager version, v1beta1, is not among plugin supported versions []".into()));
        let name = "invalid name of device plugin socket: the ResourceName \"x\" is invalid";
        assert_eq!(of("x", &["v1beta1"]), Err(name.into()));
        assert_eq!(of("example.com/x", &["v1alpha", "v1beta1"]), Ok(()));
    }
}
