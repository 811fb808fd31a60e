//! The running agent: builds every part from flags and configuration, starts them, and stops them on a signal.
//!
//! Order: lock file, folders, serving certificate, API client, runtime monitor, node, servers, pods. Containers are left
//! alone when the agent stops.

use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use proto::api::core::v1::{Node, ObjectReference};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::api::{
    Client, ClientOptions, ContentType, HttpTransport, Kubeconfig, KubeconfigError, NoServer, TlsError, Transport,
};
use crate::cgroups::{self, Cgroups};
use crate::cli::Flags;
use crate::config::{FeatureGates, Loaded};
use crate::cri::{CriClient, CriError};
use crate::dns_hosts::NodeDns;
use crate::events::{EventType, Recorder};
use crate::file_watch::FileWatch;
use crate::node::{
    self, KUBELET_VERSION, Machine, Network, NodeDeps, NodeEvents, NodeSettings, NodeSignals, RuntimeState,
};
use crate::objects::{ApiObjects, ApiTokens, Strategy};
use crate::pod::resources::NodeResources;
use crate::server::{self, ServerError};
use crate::{pods, volumes};

/// Why the agent could not start; the operator's to mend.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    #[error(transparent)]
    Kubeconfig(#[from] KubeconfigError),
    #[error(transparent)]
    Tls(#[from] TlsError),
    #[error("container runtime: {0}")]
    Runtime(#[from] CriError),
    #[error(transparent)]
    Server(#[from] ServerError),
    #[error(transparent)]
    Cgroups(#[from] cgroups::StartError),
    #[error("{what} {path}: {source}")]
    File { what: &'static str, path: PathBuf, source: io::Error },
    #[error("signals: {0}")]
    Signals(io::Error),
    #[error("the node has no name: {0}")]
    Name(String),
}

/// Runs until a signal or a lost lock asks to stop.
///
/// # Errors
/// See [`StartError`]; nothing keeps running.
pub async fn run(flags: Flags, loaded: Loaded) -> Result<(), StartError> {
    let mut stop = Stop::new()?;
    let _lock = match &flags.lock_file {
        Some(path) => Some(lock(path).await?),
        None => None,
    };
    let config = Arc::new(loaded.config.clone());
    let gates = FeatureGates::new(config.feature_gates.clone());
    let name = node_name(&flags)?;
    folders(&flags.root_dir, &config.pod_logs_dir)?;
    let client = client(&flags, &loaded)?;
    let cri = CriClient::new(
        &config.container_runtime_endpoint,
        Some(config.image_service_endpoint.as_str()).filter(|e| !e.is_empty()),
        config.runtime_request_timeout.get(),
    )?;
    let machine = Arc::new(Machine::read(Path::new("/")));
    let settings = NodeSettings {
        name: name.clone(),
        config: config.clone(),
        gates,
        labels: flags.node_labels.clone(),
        external_cloud: flags.external_cloud,
        given_addresses: flags.node_ip.clone(),
        machine: machine.clone(),
        root_dir: flags.root_dir.clone(),
    };
    let addresses = node::choose_addresses(&flags.node_ip, &name, &Network::look(&name).await);
    let (node_sender, node_receiver) = watch::channel(Arc::new(node::local_node(&settings, &addresses)));
    let (runtime_sender, runtime) = watch::channel(Arc::new(node::unknown_runtime()));
    let (_signal_sender, signals) = watch::channel(NodeSignals::default());
    let mut tasks = JoinSet::new();
    tasks.spawn(node::monitor_runtime(cri.clone(), runtime_sender));
    let (recorder, sender) = Recorder::new(client.clone(), &name);
    tasks.spawn(sender);
    let standalone = flags.kubeconfig.is_none();
    if !standalone {
        tasks.spawn(node::run(NodeDeps {
            settings: settings.clone(),
            client: client.clone(),
            cri: cri.clone(),
            addresses: addresses.clone(),
            runtime: runtime.clone(),
            signals,
            node: node_sender,
            events: node_events(&recorder, &name),
        }));
    }
    let (pods_sender, pods_receiver) = watch::channel(None);
    let mut serving = server::start(server::ServerDeps {
        config: config.clone(),
        gates: settings.gates.clone(),
        document: loaded.document.clone(),
        flags: flags.clone(),
        node: name.clone(),
        addresses: addresses.clone(),
        client: client.clone(),
        cri: cri.clone(),
        pods: pods_receiver,
    })
    .await?;
    tell_systemd(&[sd_notify::NotifyState::Ready]);
    tracing::info!(node = %name, version = KUBELET_VERSION, "node agent is up");
    if let Some(interval) = sd_notify::watchdog_enabled().filter(|i| !i.is_zero()) {
        tasks.spawn(watchdog(interval / 2));
    }
    let deps = PodParts { flags: &flags, settings: &settings, client, cri, standalone };
    let starting = start_pods(deps, runtime, node_receiver);
    tokio::select! {
        handle = starting => match handle {
            Ok(handle) => { pods_sender.send_replace(Some(handle)); }
            Err(error) => {
                serving.abort_all();
                return Err(error.into());
            }
        },
        () = stop.asked(flags.lock_file.as_deref().filter(|_| flags.exit_on_lock_contention)) => {
            serving.abort_all();
            return Ok(());
        }
    }
    stop.asked(flags.lock_file.as_deref().filter(|_| flags.exit_on_lock_contention)).await;
    tell_systemd(&[sd_notify::NotifyState::Stopping]);
    tracing::info!("stopping; containers go on");
    serving.abort_all();
    tasks.shutdown().await;
    Ok(())
}

struct PodParts<'a> {
    flags: &'a Flags,
    settings: &'a NodeSettings,
    client: Client,
    cri: CriClient,
    standalone: bool,
}

/// Starts the pods once the runtime has said its name, which container ids carry.
async fn start_pods(
    parts: PodParts<'_>,
    mut runtime: watch::Receiver<Arc<RuntimeState>>,
    node: watch::Receiver<Arc<Node>>,
) -> Result<pods::Handle, cgroups::StartError> {
    let up = runtime.wait_for(|r| r.version.contains("://") && !r.version.ends_with("://Unknown")).await;
    let runtime_name = match up {
        Ok(state) => state.version.split("://").next().unwrap_or_default().to_owned(),
        Err(_) => String::new(),
    };
    let config = &parts.settings.config;
    let strategy =
        if config.config_map_and_secret_change_detection_strategy == "Watch" { Strategy::Watch } else { Strategy::Get };
    let objects = Arc::new(ApiObjects::new(parts.client.clone(), strategy));
    let machine = &parts.settings.machine;
    let megabytes = |bytes: u64| match bytes {
        b if b >= 1 << 30 => format!("{}GB", b >> 30),
        b => format!("{}MB", b >> 20),
    };
    let parallel = if config.serialize_image_pulls {
        1
    } else {
        usize::try_from(config.max_parallel_image_pulls.unwrap_or(0)).ok().filter(|n| *n > 0).unwrap_or(usize::MAX >> 4)
    };
    let resources = NodeResources {
        memory_bytes: i64::try_from(machine.memory_bytes).unwrap_or(i64::MAX),
        enforce_quota: config.cpu_cfs_quota,
        period_micros: config.cpu_cfs_quota_period.nanos / 1000,
        hugepage_sizes: machine.huge_pages.iter().map(|p| megabytes(p.page_bytes)).collect(),
        limited_swap: config.memory_swap.swap_behavior == "LimitedSwap",
        single_process_oom_kill: config.single_process_oom_kill,
        cgroup_v2: Path::new(cgroups::MOUNT).join("cgroup.controllers").exists(),
        swap_bytes: i64::try_from(machine.swap_bytes).unwrap_or(i64::MAX),
    };
    let cgroups = start_cgroups(parts.settings, &parts.cri, &resources).await?;
    Ok(pods::Manager::start(pods::Deps {
        config: pods::Config {
            node_name: parts.settings.name.clone(),
            root_dir: parts.flags.root_dir.clone(),
            pod_logs_dir: config.pod_logs_dir.clone(),
            log_links_dir: Some("/var/log/containers".into()),
            standalone: parts.standalone,
            static_pod_path: Some(config.static_pod_path.clone()).filter(|p| !p.as_os_str().is_empty()),
            file_check_frequency: config.file_check_frequency.get(),
            sync_frequency: config.sync_frequency.get(),
            crash_loop_max: config
                .crash_loop_back_off
                .max_container_restart_period
                .map_or(Duration::from_secs(300), crate::config::GoDuration::get),
            max_parallel_pulls: parallel,
            seccomp_default: config.seccomp_default,
            ids_per_pod: config
                .user_namespaces
                .as_ref()
                .and_then(|u| u.ids_per_pod)
                .and_then(|ids| u32::try_from(ids).ok())
                .unwrap_or(65_536),
            allowed_unsafe_sysctls: config.allowed_unsafe_sysctls.clone(),
            resources,
            dns: NodeDns {
                cluster_dns: config.cluster_dns.clone(),
                cluster_domain: config.cluster_domain.clone(),
                resolv_conf: PathBuf::from(&config.resolv_conf),
            },
        },
        volumes: Arc::new(volumes::Manager::new(volumes::VolumeDeps {
            root_dir: parts.flags.root_dir.clone(),
            objects: objects.clone(),
            tokens: Arc::new(ApiTokens::new(parts.client.clone())),
            claims: Arc::new(parts.client.clone()),
            node: node.clone(),
        })),
        cri: parts.cri,
        cgroups: Arc::new(cgroups),
        runtime_name,
        client: parts.client,
        objects,
        node,
    }))
}

async fn start_cgroups(
    settings: &NodeSettings,
    cri: &CriClient,
    resources: &NodeResources,
) -> Result<Cgroups, cgroups::StartError> {
    let config = &settings.config;
    if !config.cgroups_per_qos {
        return Ok(Cgroups::reduced(config));
    }
    let capacity = node::capacity(&settings.machine, None, config);
    let enforced = config.enforce_node_allocatable.iter().any(|e| e == "pods");
    let left = if enforced { node::unreserved(&capacity, config) } else { capacity };
    let reserved = |list: &std::collections::BTreeMap<String, String>| {
        list.get("pid").and_then(|count| count.parse::<i64>().ok()).filter(|_| enforced).unwrap_or(0)
    };
    let pids = cgroups::process_limit(Path::new("/proc"))
        .map(|all| all - reserved(&config.system_reserved) - reserved(&config.kube_reserved));
    let made = cgroups::Settings {
        mount: cgroups::MOUNT.into(),
        driver: cgroups::driver(cri, config).await,
        root: config.cgroup_root.clone(),
        node: resources.clone(),
        pod_pids_limit: config.pod_pids_limit,
    };
    Cgroups::start(made, &left, pids).await
}

fn node_name(flags: &Flags) -> Result<String, StartError> {
    if !flags.hostname_override.is_empty() {
        return Ok(flags.hostname_override.clone());
    }
    let name = nix::unistd::gethostname().map_err(|e| StartError::Name(e.to_string()))?;
    match name.to_string_lossy().trim().to_lowercase() {
        name if name.is_empty() => Err(StartError::Name("the host's name is empty".into())),
        name => Ok(name),
    }
}

fn client(flags: &Flags, loaded: &Loaded) -> Result<Client, StartError> {
    let config = &loaded.config;
    let transport: Arc<dyn Transport> = match &flags.kubeconfig {
        Some(path) => {
            let agent = format!("node-agent/{KUBELET_VERSION} (linux/{})", std::env::consts::ARCH);
            Arc::new(HttpTransport::new(&Kubeconfig::load(path)?, &agent)?)
        }
        None => Arc::new(NoServer),
    };
    let options = ClientOptions {
        content_type: ContentType::from_media_type(&config.content_type),
        rate: (f64::from(config.kube_api_qps), u32::try_from(config.kube_api_burst).unwrap_or(0)),
        ..ClientOptions::default()
    };
    Ok(Client::new(transport, &options))
}

fn folders(root: &Path, logs: &Path) -> Result<(), StartError> {
    for path in [
        root.to_owned(),
        root.join("pods"),
        root.join("plugins"),
        root.join("plugins_registry"),
        root.join("pod-resources"),
        logs.to_owned(),
    ] {
        std::fs::DirBuilder::new().recursive(true).mode(0o750).create(&path).map_err(|source| StartError::File {
            what: "cannot make folder",
            path,
            source,
        })?;
    }
    Ok(())
}

/// Waits for the lock; two agents on one root folder would fight over the same pods.
async fn lock(path: &Path) -> Result<nix::fcntl::Flock<std::fs::File>, StartError> {
    use std::os::unix::fs::OpenOptionsExt;
    let refused = |source: io::Error| StartError::File { what: "cannot lock", path: path.to_owned(), source };
    let file =
        std::fs::OpenOptions::new().create(true).truncate(false).write(true).mode(0o600).open(path).map_err(refused)?;
    let locked = tokio::task::spawn_blocking(move || {
        nix::fcntl::Flock::lock(file, nix::fcntl::FlockArg::LockExclusive).map_err(|(_, e)| io::Error::from(e))
    });
    locked.await.map_err(|e| refused(io::Error::other(e)))?.map_err(refused)
}

/// Signals that end the agent.
struct Stop {
    terminate: tokio::signal::unix::Signal,
    interrupt: tokio::signal::unix::Signal,
}

impl Stop {
    fn new() -> Result<Self, StartError> {
        Ok(Stop {
            terminate: signal(SignalKind::terminate()).map_err(StartError::Signals)?,
            interrupt: signal(SignalKind::interrupt()).map_err(StartError::Signals)?,
        })
    }

    /// Returns when the agent is to stop: a signal, or someone else opening `contended`.
    async fn asked(&mut self, contended: Option<&Path>) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
            () = opened_by_another(contended) => {}
        }
    }
}

/// Returns when another process opens or deletes the file; never without a file, or where it cannot be watched.
async fn opened_by_another(path: Option<&Path>) {
    use nix::sys::inotify::AddWatchFlags;
    let events = AddWatchFlags::IN_OPEN | AddWatchFlags::IN_DELETE_SELF;
    match path.and_then(|path| FileWatch::new(&[(path, events)]).ok()) {
        Some(watch) => watch.changed().await,
        None => std::future::pending().await,
    }
}

fn node_events(recorder: &Recorder, name: &str) -> NodeEvents {
    let recorder = recorder.clone();
    // The kubelet uses the node's name as its uid here, and tools look for that.
    let object = ObjectReference {
        kind: "Node".into(),
        name: name.to_owned(),
        api_version: "v1".into(),
        ..ObjectReference::default()
    };
    Arc::new(move |kind, reason, message| {
        let kind = if kind == "Warning" { EventType::Warning } else { EventType::Normal };
        recorder.event(object.clone(), kind, reason, message);
    })
}

async fn watchdog(interval: Duration) {
    loop {
        tell_systemd(&[sd_notify::NotifyState::Watchdog]);
        tokio::time::sleep(interval).await;
    }
}

fn tell_systemd(state: &[sd_notify::NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(state) {
        tracing::warn!(%error, "cannot tell systemd");
    }
}
