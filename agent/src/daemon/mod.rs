//! The running agent: builds every part from flags and configuration, starts them, and stops them on a signal.
//!
//! Order: watchdog, lock file, folders, API client, runtime monitor, node, servers, pods, READY. Containers are left alone
//! when the agent stops.

mod lock;
mod machine_config;
mod memory;
mod progress;
mod signals;
mod systemd;

use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

pub use progress::{Beat, Progress, hang_if_asked};
use signals::{Asked, Signals};

use proto::api::core::v1::{Node, ObjectReference};
use service::notify::{self, NotifyState};
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::api::{
    Client, ClientOptions, ContentType, HttpTransport, Kind, Kubeconfig, KubeconfigError, NoServer, TlsError, Transport,
};
use crate::cgroups::{self, Cgroups};
use crate::cli::Flags;
use crate::config::{Configuration, FeatureGates, Loaded};
use crate::container_logs::{self, RotatePolicy};
use crate::cri::{CriClient, CriError};
use crate::csi::Drivers;
use crate::csi::volumes::CsiDeps;
use crate::device_plugins::Devices;
use crate::dns_hosts::NodeDns;
use crate::dra::Dra;
use crate::events::{EventType, Recorder};
use crate::identity;
use crate::images::providers::{Provider, Providers};
use crate::images::puller::PullDeps;
use crate::images::records::{Records, Verification};
use crate::metrics;
use crate::node::{
    self, KUBELET_VERSION, Machine, Network, NodeDeps, NodeEvents, NodeSettings, NodeSignals, RuntimeState,
};
use crate::node_api::NodeApi;
use crate::objects::{ApiObjects, ApiTokens, NoObjects, Objects, Strategy};
use crate::plugin_registry::Handlers;
use crate::pod::memory_qos::MemoryQos;
use crate::pod::resources::NodeResources;
use crate::pods_api::PodFeed;
use crate::resource_managers::{self, Managers, reconcile};
use crate::server::{self, ServerError};
use crate::sources::url::StaticPodUrl;
use crate::state_file::{self, Damaged};
use crate::stats::Stats;
use crate::{eviction, local_sockets, oom_watcher, plugin_registry, pods, shutdown, volumes};

/// Why the agent could not start; the operator's to mend.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    #[error(transparent)]
    Kubeconfig(#[from] KubeconfigError),
    #[error(transparent)]
    Tls(#[from] TlsError),
    #[error(transparent)]
    Identity(#[from] identity::IdentityError),
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
    #[error("{0}")]
    Metrics(String),
    /// What is written of before does not fit, or the machine does not.
    #[error("{0}")]
    Managers(String),
    #[error("the node has no name: {0}")]
    Name(String),
    /// `WATCHDOG_USEC` cannot be kept.
    #[error("{0}")]
    Watchdog(String),
    #[error("failed to register CRI auth plugins: {0}")]
    CredentialProviders(String),
    /// Standalone mode has nobody to ask.
    #[error("no client provided, cannot use webhook {0}")]
    NoClient(&'static str),
}

/// How long one round of each loop may take: its deadlines and tries in a row.
const STATUS_LIMIT: Duration = Duration::from_secs(120);
const LEASE_LIMIT: Duration = Duration::from_secs(120);
const RUNTIME_LIMIT: Duration = Duration::from_secs(60);
/// Counting the files of pods may take its time, and so may the end of an evicted one.
const EVICTION_LIMIT: Duration = Duration::from_secs(600);
/// Cgroups that cannot be made now are tried again; what lacks may come.
const CGROUPS_AGAIN: Duration = Duration::from_secs(10);
/// The status line of systemd follows the pods this often.
const STATUS_LINE: Duration = Duration::from_secs(10);

/// Runs until a signal or a lost lock asks to stop. Clients are served by the runtime of `clients`.
///
/// # Errors
/// See [`StartError`]; nothing keeps running.
pub async fn run(flags: Flags, mut loaded: Loaded, clients: tokio::runtime::Handle) -> Result<(), StartError> {
    let mut signals = Signals::new().map_err(StartError::Signals)?;
    let watchdog = systemd::own_watchdog().map_err(StartError::Watchdog)?;
    let progress = Progress::default();
    let (pods_sender, pods_receiver) = watch::channel(None);
    let mut tasks = JoinSet::new();
    if let Some(timeout) = watchdog {
        tasks.spawn(systemd::watchdog(timeout, progress.clone(), pods_receiver.clone()));
    }
    notify::status("starting");
    let _lock = match &flags.lock_file {
        Some(path) => Some(lock::take(path).await?),
        None => None,
    };
    let standalone = flags.kubeconfig.is_none();
    if standalone && loaded.config.authentication.webhook.enabled {
        return Err(StartError::NoClient("authentication"));
    }
    if standalone && loaded.config.authorization.mode == "Webhook" {
        return Err(StartError::NoClient("authorization"));
    }
    let gates = FeatureGates::new(loaded.config.feature_gates.clone());
    let providers = machine_config::credential_providers(&flags, &gates).map_err(StartError::CredentialProviders)?;
    machine_config::apply(&mut loaded, &flags);
    machine_config::limit_this_process(&loaded.config);
    let name = node_name(&flags)?;
    folders(&flags.root_dir, &loaded.config.pod_logs_dir)?;
    if let (Some(target), Some(source)) = (&flags.kubeconfig, &flags.bootstrap_kubeconfig) {
        notify::status("asking for a client certificate");
        identity::bootstrap(target, source, &flags.cert_dir, &name).await?;
    }
    let client = client(&flags, &loaded)?;
    let cri = CriClient::new(
        &loaded.config.container_runtime_endpoint,
        Some(loaded.config.image_service_endpoint.as_str()).filter(|e| !e.is_empty()),
        loaded.config.runtime_request_timeout.get(),
    )?;
    let client_for_certificates = client.clone();
    machine_config::ask_runtime(&mut loaded, &cri).await;
    let config = Arc::new(loaded.config.clone());
    metrics::start(&gates, &config.show_hidden_metrics_for_version).map_err(StartError::Metrics)?;
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
    let (signal_sender, node_signals) = watch::channel(NodeSignals::default());
    tasks.spawn(node::monitor_runtime(cri.clone(), runtime_sender, progress.register("runtime", RUNTIME_LIMIT)));
    tasks.spawn(container_logs::run(cri.clone(), RotatePolicy::of(&config)));
    let (recorder, sender) = Recorder::new(client.clone(), &name);
    tasks.spawn(sender);
    let feed = Arc::new(PodFeed::default());
    let events = node_events(&recorder, &name);
    let damaged = |file: &Damaged| events("Warning", state_file::EVENT, file.to_string());
    let devices = Devices::new(flags.root_dir.join("device-plugins"), feed.clone(), damaged);
    let drivers = Arc::new(Drivers::default());
    let registry_client = (!standalone).then(|| client.clone());
    let with_health = settings.gates.enabled("ResourceHealthStatus");
    let dra = Dra::open(&flags.root_dir, registry_client.clone(), &name, with_health, damaged);
    let stats = || {
        let folders = (flags.root_dir.clone(), config.pod_logs_dir.clone());
        Stats::new(cri.clone(), &name, folders, config.cgroups_per_qos, drivers.clone())
    };
    let node_api = NodeApi::new(node_receiver.clone(), stats());
    let of_managers = resource_managers::Settings::of(&config, &settings.gates, &flags.root_dir);
    let managers = Managers::open(&of_managers).await.map_err(StartError::Managers)?;
    tasks.spawn(reconcile(managers.clone(), cri.clone(), config.cpu_manager_reconcile_period.get()));
    let sockets = (&mut tasks, &clients);
    local_sockets::start(sockets, &flags.root_dir, &settings.gates, &feed, (&devices, &managers, &dra), node_api);
    events("Normal", "Starting", "Starting kubelet.".to_owned());
    tasks.spawn(oom_watcher::run(events.clone()));
    let eviction_stats = stats();
    tasks.spawn(node::run(NodeDeps {
        settings: settings.clone(),
        client: client.clone(),
        cri: cri.clone(),
        addresses: addresses.clone(),
        runtime: runtime.clone(),
        signals: node_signals,
        node: node_sender,
        events: events.clone(),
        status_beat: progress.register("node status", STATUS_LIMIT),
        lease_beat: progress.register("lease", LEASE_LIMIT),
        devices: devices.clone(),
        standalone,
    }));
    let plugged = (devices.clone(), drivers.clone(), dra.clone());
    let registrars = Handlers::new(plugged, registry_client, name.clone());
    tasks.spawn(plugin_registry::start(flags.root_dir.join("plugins_registry"), registrars));
    let certificate = Arc::new(identity::Serving::default());
    let server = server::ServerDeps {
        serving: certificate.clone(),
        config: config.clone(),
        gates: settings.gates.clone(),
        document: loaded.document.clone(),
        flags: flags.clone(),
        node: name.clone(),
        addresses: addresses.clone(),
        client: client.clone(),
        cri: cri.clone(),
        drivers: drivers.clone(),
        pods: pods_receiver.clone(),
    };
    // The ports belong to the threads that serve them, from the first on.
    let starting = clients.spawn(server::start(server));
    let mut serving = starting.await.map_err(|broke| StartError::Server(ServerError::Broke(broke)))??;
    keep_certificates(&mut tasks, &flags, &loaded, &client_for_certificates, certificate, (&name, &addresses));
    tracing::info!(node = %name, version = KUBELET_VERSION, "serving; waiting for the runtime");
    let starting = {
        let eviction = eviction::EvictionDeps {
            config: config.clone(),
            root_dir: flags.root_dir.clone(),
            stats: eviction_stats,
            signals: signal_sender.clone(),
            events: events.clone(),
            recorder,
            beat: progress.register("eviction", EVICTION_LIMIT),
        };
        let shutdown = shutdown::ShutdownDeps {
            config: config.clone(),
            gates: settings.gates.clone(),
            root_dir: flags.root_dir.clone(),
            signals: signal_sender.clone(),
            events: events.clone(),
        };
        let parts = PodParts {
            flags: flags.clone(),
            settings: settings.clone(),
            client,
            cri,
            standalone,
            events,
            feed,
            devices,
            dra,
            managers,
            drivers,
            providers,
        };
        let node = node_receiver.clone();
        async move {
            notify::status("waiting for the container runtime");
            let handle = start_pods(parts, runtime, node.clone(), signal_sender).await;
            pods_sender.send_replace(Some(handle.clone()));
            if !standalone {
                notify::status("registering the node");
                let mut node = node;
                // The sender is gone only when the agent stops.
                let _ = node.wait_for(|n| !n.uid().is_empty()).await;
            }
            notify::tell(&[NotifyState::Ready]);
            tracing::info!(node = %name, "the node takes pods");
            let shutdown = shutdown::run(shutdown, handle.clone());
            tokio::join!(
                follow_pods(name, pods_receiver),
                eviction::run(eviction, handle),
                shutdown,
                memory::keep_small()
            );
        }
    };
    tasks.spawn(starting);
    let contended = flags.lock_file.as_deref().filter(|_| flags.exit_on_lock_contention);
    loop {
        match signals.asked(contended).await {
            Asked::Stop => break,
            Asked::Reload => machine_config::reload(&flags, &loaded),
        }
    }
    notify::tell(&[NotifyState::Stopping, NotifyState::Status("stopping; containers go on")]);
    tracing::info!("stopping; containers go on");
    serving.abort_all();
    tasks.shutdown().await;
    Ok(())
}

/// Starts what keeps both certificates young, as far as the configuration asks for it.
fn keep_certificates(
    tasks: &mut JoinSet<()>,
    flags: &Flags,
    loaded: &Loaded,
    client: &Client,
    serving: Arc<identity::Serving>,
    (name, addresses): (&str, &[std::net::IpAddr]),
) {
    let (config, folder) = (&loaded.config, flags.cert_dir.clone());
    let standalone = flags.kubeconfig.is_none();
    let has_own = identity::Store::client(&folder).read().is_some();
    if config.rotate_certificates && !standalone && has_own {
        let source = flags.bootstrap_kubeconfig.clone();
        tasks.spawn(identity::keep_client(client.clone(), folder.clone(), source, name.to_owned()));
    }
    if config.server_tls_bootstrap {
        if !standalone {
            let (name, addresses) = (name.to_owned(), addresses.to_vec());
            tasks.spawn(identity::keep_serving(client.clone(), folder, serving, name, addresses));
        }
    } else if !config.tls_cert_file.as_os_str().is_empty() && !config.tls_private_key_file.as_os_str().is_empty() {
        let (certificate, key) = (config.tls_cert_file.clone(), config.tls_private_key_file.clone());
        tasks.spawn(identity::follow_files(serving, certificate, key));
    }
}

/// Keeps systemd's status line true to the number of pods.
async fn follow_pods(name: String, pods: watch::Receiver<Option<pods::Handle>>) {
    let mut said = None;
    loop {
        let handle = pods.borrow().clone();
        if let Some(handle) = handle {
            let count = handle.pods().await.len();
            if said != Some(count) {
                notify::status(&format!("node {name} is up with {count} pods"));
                said = Some(count);
            }
        }
        tokio::time::sleep(STATUS_LINE).await;
    }
}

struct PodParts {
    flags: Flags,
    settings: NodeSettings,
    client: Client,
    cri: CriClient,
    standalone: bool,
    feed: Arc<PodFeed>,
    devices: Arc<Devices>,
    dra: Arc<Dra>,
    managers: Arc<Managers>,
    drivers: Arc<Drivers>,
    providers: Vec<Provider>,
    events: NodeEvents,
}

/// Starts the pods once the runtime has said its name, which container ids carry.
async fn start_pods(
    parts: PodParts,
    mut runtime: watch::Receiver<Arc<RuntimeState>>,
    node: watch::Receiver<Arc<Node>>,
    node_signals: watch::Sender<NodeSignals>,
) -> pods::Handle {
    let up = runtime.wait_for(|r| r.version.contains("://") && !r.version.ends_with("://Unknown")).await;
    let up = up.map(|state| state.version.split("://").next().unwrap_or_default().to_owned());
    let runtime_name = up.unwrap_or_default();
    let config = &parts.settings.config;
    let strategy =
        if config.config_map_and_secret_change_detection_strategy == "Watch" { Strategy::Watch } else { Strategy::Get };
    let objects: Arc<dyn Objects> =
        if parts.standalone { Arc::new(NoObjects) } else { Arc::new(ApiObjects::new(parts.client.clone(), strategy)) };
    let tokens = Arc::new(ApiTokens::new(parts.client.clone()));
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
    let cgroup_v2 = Path::new(cgroups::MOUNT).join("cgroup.controllers").exists();
    let resources = NodeResources {
        memory_bytes: i64::try_from(machine.memory_bytes).unwrap_or(i64::MAX),
        enforce_quota: config.cpu_cfs_quota,
        period_micros: config.cpu_cfs_quota_period.nanos / 1000,
        hugepage_sizes: machine.huge_pages.iter().map(|p| megabytes(p.page_bytes)).collect(),
        limited_swap: config.memory_swap.swap_behavior == "LimitedSwap",
        single_process_oom_kill: config.single_process_oom_kill,
        cgroup_v2,
        memory_qos: (cgroup_v2 && parts.settings.gates.enabled("MemoryQoS")).then(|| memory_qos(&parts.settings)),
        swap_bytes: i64::try_from(machine.swap_bytes).unwrap_or(i64::MAX),
    };
    let cgroups = loop {
        match start_cgroups(&parts.settings, &parts.cri, &resources).await {
            Ok(cgroups) => {
                if config.cgroups_per_qos && config.enforce_node_allocatable.iter().any(|e| e == "pods") {
                    let message = "Updated Node Allocatable limit across pods".to_owned();
                    (parts.events)("Normal", "NodeAllocatableEnforced", message);
                }
                break cgroups;
            }
            Err(error) => {
                tracing::error!(%error, "pods cannot have cgroups; the node takes none");
                notify::status(&format!("takes no pods: {error}"));
                node_signals.send_modify(|s| s.not_ready = vec![error.to_string()]);
                tokio::time::sleep(CGROUPS_AGAIN).await;
            }
        }
    };
    node_signals.send_modify(|s| s.not_ready.clear());
    let volumes = Arc::new(volumes::Manager::new(volumes::VolumeDeps {
        root_dir: parts.flags.root_dir.clone(),
        objects: objects.clone(),
        tokens: tokens.clone(),
        claims: Arc::new(parts.client.clone()),
        node: node.clone(),
        csi: CsiDeps {
            root_dir: parts.flags.root_dir.clone(),
            node: parts.settings.name.clone(),
            drivers: parts.drivers.clone(),
            in_use: {
                let signals = node_signals.clone();
                Box::new(move |names| signals.send_modify(|s| s.volumes_in_use = names))
            },
        },
    }));
    tokio::spawn({
        let volumes = volumes.clone();
        async move { volumes.sweep().await }
    });
    let (drivers, period) = (parts.drivers, config.volume_stats_agg_period.get());
    tokio::spawn(async move { drivers.usages.keep(&drivers, period).await });
    pods::Manager::start(pods::Deps {
        config: pods::Config {
            node_name: parts.settings.name.clone(),
            root_dir: parts.flags.root_dir.clone(),
            pod_logs_dir: config.pod_logs_dir.clone(),
            log_links_dir: Some("/var/log/containers".into()),
            standalone: parts.standalone,
            static_pod_path: Some(config.static_pod_path.clone()).filter(|p| !p.as_os_str().is_empty()),
            file_check_frequency: config.file_check_frequency.get(),
            static_pod_url: Some(&config.static_pod_url).filter(|url| !url.is_empty()).map(|url| StaticPodUrl {
                url: url.clone(),
                headers: config.static_pod_url_header.clone(),
                every: config.http_check_frequency.get(),
            }),
            sync_frequency: config.sync_frequency.get(),
            crash_loop_max: config
                .crash_loop_back_off
                .max_container_restart_period
                .map_or(Duration::from_secs(300), crate::config::GoDuration::get),
            image_gc: crate::images::gc::ImageGc {
                high: percent(config.image_gc_high_threshold_percent),
                low: percent(config.image_gc_low_threshold_percent),
                minimum_age: config.image_minimum_gc_age.get(),
                maximum_age: config.image_maximum_gc_age.get(),
            },
            seccomp_default: config.seccomp_default,
            device_health: parts.settings.gates.enabled("ResourceHealthStatus"),
            device_health_messages: parts.settings.gates.enabled("ResourceHealthStatusMessage"),
            ids_per_pod: config
                .user_namespaces
                .as_ref()
                .and_then(|u| u.ids_per_pod)
                .and_then(|ids| u32::try_from(ids).ok())
                .unwrap_or(65_536),
            allowed_unsafe_sysctls: config.allowed_unsafe_sysctls.clone(),
            resources,
            fixed_resources: fixed_resources(config, &parts.settings.gates),
            dns: NodeDns {
                cluster_dns: config.cluster_dns.clone(),
                cluster_domain: config.cluster_domain.clone(),
                resolv_conf: PathBuf::from(&config.resolv_conf),
            },
        },
        volumes,
        pulls: PullDeps {
            parallel,
            rate: (unsigned(config.registry_pull_qps), unsigned(config.registry_burst)),
            records: parts.settings.gates.enabled("KubeletEnsureSecretPulledImages").then(|| {
                let policy = &config.image_pull_credentials_verification_policy;
                let verification = Verification::new(policy, &config.preloaded_images_verification_allowlist);
                Arc::new(Records::open(&parts.flags.root_dir, verification))
            }),
            providers: Providers::new(parts.providers, parts.client.clone(), tokens),
        },
        cri: parts.cri,
        cgroups: Arc::new(cgroups),
        runtime_name,
        client: parts.client,
        objects,
        node,
        feed: parts.feed,
        devices: parts.devices,
        dra: parts.dra,
        signals: node_signals.subscribe(),
        runtime,
        managers: parts.managers,
        node_events: parts.events,
    })
}

fn memory_qos(settings: &NodeSettings) -> MemoryQos {
    let (_, allocatable) = settings.resources();
    MemoryQos {
        // The default of the configuration.
        factor: settings.config.memory_throttling_factor.unwrap_or(0.9),
        tiered: settings.config.memory_reservation_policy == "TieredReservation",
        allocatable_bytes: allocatable.get("memory").map_or(0, proto::quantity::Quantity::value),
        page_bytes: page_bytes(Path::new("/proc/self/smaps")).unwrap_or(4096),
    }
}

/// The kernel's page size by the first mapping of this process.
fn page_bytes(smaps: &Path) -> Option<i64> {
    let text = std::fs::read_to_string(smaps).ok()?;
    let kilobytes = text.lines().find_map(|line| line.strip_prefix("KernelPageSize:")?.trim().strip_suffix(" kB"))?;
    Some(kilobytes.parse::<i64>().ok()? * 1024)
}

/// What a resize may not change because a static policy has given it out.
fn fixed_resources(config: &Configuration, gates: &FeatureGates) -> Vec<(&'static str, &'static str, &'static str)> {
    let cpu = config.cpu_manager_policy == "static" && !gates.enabled("InPlacePodVerticalScalingExclusiveCPUs");
    let memory = config.memory_manager_policy == "Static" && !gates.enabled("InPlacePodVerticalScalingExclusiveMemory");
    let fixed = [(cpu, ("cpu", "CPU", "static")), (memory, ("memory", "Memory", "Static"))];
    fixed.into_iter().filter(|(on, _)| *on).map(|(_, entry)| entry).collect()
}

fn unsigned(value: i32) -> u32 {
    u32::try_from(value).unwrap_or(0)
}

fn percent(value: i32) -> u8 {
    u8::try_from(value.clamp(0, 100)).unwrap_or(100)
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

fn node_events(recorder: &Recorder, name: &str) -> NodeEvents {
    let recorder = recorder.clone();
    // Without a uid, as the kubelet of 1.36 sends them: the node may not be registered yet.
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
