//! A registry of images of its own: the part of the OCI distribution API that pulls need, over plain HTTP on loopback.
//!
//! It serves one image under every name below `open/`, `private/` (which wants a user), `late/` (which is not there until it
//! is let in), and `held/` (where each repository is answered only once it is let go), and counts what is asked for. Runtimes
//! find it by the `hosts.toml` of [`Registry::announce`].

use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Context, Result, ensure};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use http::{Method, Response, StatusCode};
use http_body_util::Full;
use hyper::Request;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::sync::watch;

/// The host in names of images; nothing resolves it but the runtime's configuration.
pub const HOST: &str = "registry.test";
pub const USER: &str = "puller";
pub const PASSWORD: &str = "secret word";

struct Served {
    /// The image's layout: blobs by digest.
    blobs: PathBuf,
    /// Digest of the manifest.
    manifest: String,
    late: AtomicBool,
    /// Requests for the manifest by repository.
    asked: Mutex<BTreeMap<String, usize>>,
    /// Repositories that were let go.
    free: watch::Sender<BTreeSet<String>>,
    held: Mutex<Held>,
}

/// Repositories that are asked for and not let go.
#[derive(Default)]
struct Held {
    now: BTreeSet<String>,
    /// The most that there were at once.
    most: usize,
}

/// Serves until it is dropped.
pub struct Registry {
    pub port: u16,
    served: Arc<Served>,
    /// Its threads end with it.
    _runtime: tokio::runtime::Runtime,
}

impl Registry {
    /// Serves the image of an OCI archive, which is unpacked below `folder`.
    ///
    /// # Errors
    /// When the archive is none, or no port can be had.
    pub fn start(archive: &Path, folder: &Path) -> Result<Self> {
        std::fs::create_dir_all(folder)?;
        let unpacked = Command::new("tar").arg("-C").arg(folder).arg("-xf").arg(archive).status()?;
        ensure!(unpacked.success(), "{} is no archive", archive.display());
        let index: Value = serde_json::from_slice(&std::fs::read(folder.join("index.json"))?)?;
        let manifest = index["manifests"][0]["digest"].as_str().context("a digest of a manifest")?.to_owned();
        let served = Arc::new(Served {
            blobs: folder.join("blobs/sha256"),
            manifest,
            late: AtomicBool::new(false),
            asked: Mutex::default(),
            free: watch::Sender::default(),
            held: Mutex::default(),
        });
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
        let listener = runtime.block_on(tokio::net::TcpListener::bind(("127.0.0.1", 0)))?;
        let port = listener.local_addr()?.port();
        let serving = served.clone();
        runtime.spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let served = serving.clone();
                let service = service_fn(move |request| {
                    let served = served.clone();
                    async move {
                        served.hold(&request).await;
                        Ok::<_, Infallible>(served.answer(&request))
                    }
                });
                tokio::spawn(async move {
                    // A client that goes away is the end of its connection, no fault.
                    let _ = hyper::server::conn::http1::Builder::new()
                        .serve_connection(TokioIo::new(stream), service)
                        .await;
                });
            }
        });
        Ok(Registry { port, served, _runtime: runtime })
    }

    /// Tells a runtime, by its folder of hosts, where [`HOST`] is.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn announce(&self, hosts: &Path) -> Result<()> {
        let (folder, address) = (hosts.join(HOST), format!("http://127.0.0.1:{}", self.port));
        std::fs::create_dir_all(&folder)?;
        let text = format!(
            "server = \"{address}\"\n\n[host.\"{address}\"]\n  capabilities = [\"pull\", \"resolve\"]\n  skip_verify = true\n"
        );
        std::fs::write(folder.join("hosts.toml"), text)?;
        Ok(())
    }

    /// What is below `late/` is there from now on.
    pub fn let_in(&self) {
        self.served.late.store(true, Ordering::Release);
    }

    /// A repository below `held/` is answered from now on.
    pub fn let_go(&self, repository: &str) {
        self.served.free.send_modify(|free| {
            free.insert(repository.to_owned());
        });
    }

    /// The repositories that are waited for.
    pub fn held(&self) -> BTreeSet<String> {
        self.served.held.lock().unwrap_or_else(PoisonError::into_inner).now.clone()
    }

    /// The most repositories that were waited for at once since this was asked last.
    pub fn most_held(&self) -> usize {
        std::mem::take(&mut self.served.held.lock().unwrap_or_else(PoisonError::into_inner).most)
    }

    /// How often the manifest of a repository was asked for.
    pub fn asked(&self, repository: &str) -> usize {
        self.served.asked.lock().unwrap_or_else(PoisonError::into_inner).get(repository).copied().unwrap_or(0)
    }
}

impl Served {
    /// Returns once the repository may be answered.
    async fn hold(&self, request: &Request<Incoming>) {
        let path = request.uri().path().trim_start_matches("/v2/");
        let Some((repository, ..)) = parts(path).filter(|(name, ..)| name.starts_with("held/")) else { return };
        let mut free = self.free.subscribe();
        if free.borrow().contains(repository) {
            return;
        }
        {
            let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
            held.now.insert(repository.to_owned());
            held.most = held.most.max(held.now.len());
        }
        // The sender lives as long as the server.
        let _ = free.wait_for(|free| free.contains(repository)).await;
        self.held.lock().unwrap_or_else(PoisonError::into_inner).now.remove(repository);
    }

    fn answer(&self, request: &Request<Incoming>) -> Response<Full<Bytes>> {
        let path = request.uri().path().trim_start_matches("/v2/");
        let Some((repository, kind, name)) = parts(path) else { return refused(StatusCode::OK, "{}") };
        if kind == "manifests" {
            let mut asked = self.asked.lock().unwrap_or_else(PoisonError::into_inner);
            *asked.entry(repository.to_owned()).or_default() += 1;
        }
        if repository.starts_with("private/") || repository.starts_with("plugin/") {
            let wanted = format!("Basic {}", STANDARD.encode(format!("{USER}:{PASSWORD}")));
            let given = request.headers().get("authorization").and_then(|value| value.to_str().ok());
            if given != Some(wanted.as_str()) {
                let mut answer = refused(StatusCode::UNAUTHORIZED, &error("UNAUTHORIZED"));
                let how = http::HeaderValue::from_static("Basic realm=\"registry\"");
                answer.headers_mut().insert("www-authenticate", how);
                return answer;
            }
        }
        if repository.starts_with("late/") && !self.late.load(Ordering::Acquire) {
            return refused(StatusCode::NOT_FOUND, &error("MANIFEST_UNKNOWN"));
        }
        let (digest, media) = match kind {
            "manifests" if name.starts_with("sha256:") => (name, "application/vnd.oci.image.manifest.v1+json"),
            "manifests" => (self.manifest.as_str(), "application/vnd.oci.image.manifest.v1+json"),
            _ => (name, "application/octet-stream"),
        };
        let file = digest.strip_prefix("sha256:").filter(|hex| hex.chars().all(|c| c.is_ascii_hexdigit()));
        let Some(Ok(content)) = file.map(|file| std::fs::read(self.blobs.join(file))) else {
            return refused(StatusCode::NOT_FOUND, &error("BLOB_UNKNOWN"));
        };
        let length = content.len();
        let body = if request.method() == Method::HEAD { Bytes::new() } else { content.into() };
        let answer = Response::builder()
            .header("content-type", media)
            .header("content-length", length)
            .header("docker-content-digest", digest)
            .body(Full::new(body));
        answer.unwrap_or_else(|error| refused(StatusCode::INTERNAL_SERVER_ERROR, &error.to_string()))
    }
}

/// Repository, `manifests` or `blobs`, and tag or digest.
fn parts(path: &str) -> Option<(&str, &str, &str)> {
    let (rest, name) = path.rsplit_once('/')?;
    let (repository, kind) = rest.rsplit_once('/')?;
    matches!(kind, "manifests" | "blobs").then_some((repository, kind, name))
}

fn error(code: &str) -> String {
    serde_json::json!({"errors": [{"code": code, "message": code.to_lowercase()}]}).to_string()
}

fn refused(status: StatusCode, text: &str) -> Response<Full<Bytes>> {
    let mut answer = Response::new(Full::new(Bytes::copy_from_slice(text.as_bytes())));
    *answer.status_mut() = status;
    answer
}
