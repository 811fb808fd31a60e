//! The running agent: builds every part from flags and configuration, starts them, and stops them on a signal.
//!
//! Order: watchdog, lock file, the machine's checks, folders, API client, runtime monitor, node, servers, pods, READY. A
//! signal ends it wherever in that order it is. Containers are left alone when the agent stops.

mod beforehand;
mod kernel;
mod lock;
mod machine_config;
mod memory;
mod own_cgroup;
mod pod_cidr;
mod pods_start;
mod progress;
mod signals;
mod systemd;

use std::io;
use std::net::IpAddr;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

pub use beforehand::wrong_at_start;
pub use progress::{Beat, Progress, hang_if_asked};
use signals::{Asked, Signals};

use proto::api::core::v1::{Node, ObjectReference};
use service::notify::{self, NotifyState};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;

use crate::api::{
    Client, ClientOptions, ContentType, HttpTransport, Kind, Kubeconfig, KubeconfigError, NoServer, TlsError, Transport,
};
use crate::cgroups;
use crate::cli::Flags;
use crate::config::{FeatureGates, Loaded};
use crate::container_logs::{self, RotatePolicy};
use crate::cri::{CriClient, CriError};
use crate::csi::Drivers;
use crate::device_plugins::{self, Devices};
use crate::dra::Dra;
use crate::events::{EventType, Recorder};
use crate::identity;
use crate::metrics;
use crate::node::{self, KUBELET_VERSION, Machine, Network, NodeDeps, NodeEvents, NodeNow, NodeSettings, NodeSignals};
use crate::node_api::NodeApi;
use crate::plugin_registry::Handlers;
use crate::pods_api::PodFeed;
use crate::resource_managers::{self, Managers, reconcile};
use crate::server::{self, ServerError};
use crate::state_file::{self, Damaged};
use crate::stats::{Stats, Walks};
use crate::{doctor, eviction, local_sockets, oom_watcher, plugin_registry, pods, shutdown, spans};

use pods_start::{PodParts, start_pods, unsigned};

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
    /// What the configuration does not put up with.
    #[error("{0}")]
    Machine(String),
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
    #[error("failed to create kubelet: {0}")]
    Objects(String),
    /// What is set apart for the pods' users cannot be used.
    #[error("failed to create kubelet: create user namespace manager: {0}")]
    UserNamespaces(String),
}

/// How long one round of each loop may take: its deadlines and tries in a row. Those of status and lease go by the
/// configuration: [`node::round_limit`].
const RUNTIME_LIMIT: Duration = Duration::from_secs(60);
/// Counting the files of pods may take its time, and so may the end of an evicted one.
const EVICTION_LIMIT: Duration = Duration::from_secs(600);
/// What READY waits for at most until the API server has the node.
const REGISTRATION: Duration = Duration::from_secs(15);
/// For so long the settings of an agent are served that cannot go on with them.
const SHOWN: Duration = Duration::from_secs(2);
/// Why the API server does not hear of the node before it was asked.
const NOT_HEARD: &str = "it has not answered yet";
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
    let (pods, pods_receiver) = watch::channel(None);
    let (ready, is_ready) = watch::channel(false);
    let mut tasks = JoinSet::new();
    if let Some(timeout) = watchdog {
        tasks.spawn(systemd::watchdog(timeout, progress.clone(), pods_receiver));
    }
    notify::status("starting");
    let _lock = match &flags.lock_file {
        Some(path) => match signals.unless_stopped(lock::take(path)).await {
            Some(taken) => Some(taken?),
            None => {
                stopping();
                return Ok(());
            }
        },
        None => None,
    };
    // From now on somebody may want it, however long the start takes.
    if let Some(path) = flags.lock_file.as_deref().filter(|_| flags.exit_on_lock_contention) {
        signals.leave_when_contended(path);
    }
    let renew = Arc::new(identity::Renewal::default());
    let (fatal, mut fatality) = mpsc::channel(1);
    let parts = Parts { tasks: &mut tasks, progress, pods, ready, renew: renew.clone(), fatal };
    let Some(started) = signals.unless_stopped(start(&flags, &mut loaded, &clients, parts)).await else {
        stopping();
        return Ok(());
    };
    let mut serving = started?;
    let mut outcome = Ok(());
    loop {
        let asked = tokio::select! {
            asked = signals.asked() => asked,
            Some(error) = fatality.recv() => {
                outcome = Err(error);
                break;
            }
        };
        match asked {
            Asked::Stop => break,
            Asked::Reload => machine_config::reload(&flags, &loaded, *is_ready.borrow()),
            Asked::Renew => {
                tracing::info!("asked for new certificates");
                renew.ask();
            }
        }
    }
    stopping();
    serving.abort_all();
    tasks.shutdown().await;
    device_plugins::leave(Path::new(device_plugins::FIXED), &flags.root_dir.join("device-plugins"));
    outcome
}

fn stopping() {
    notify::tell(&[NotifyState::Stopping, NotifyState::Status("stopping; containers go on")]);
    tracing::info!("stopping; containers go on");
}

/// What is there before anything is started.
struct Parts<'a> {
    tasks: &'a mut JoinSet<()>,
    progress: Progress,
    pods: watch::Sender<Option<pods::Handle>>,
    /// Becomes true with READY.
    ready: watch::Sender<bool>,
    /// Tells those who keep certificates that new ones are wanted.
    renew: Arc<identity::Renewal>,
    /// Takes what ends the agent after it began to serve.
    fatal: mpsc::Sender<StartError>,
}

/// Builds and starts every part; returns what serves clients.
async fn start(
    flags: &Flags,
    loaded: &mut Loaded,
    clients: &tokio::runtime::Handle,
    Parts { tasks, progress, pods: pods_sender, ready, renew, fatal }: Parts<'_>,
) -> Result<JoinSet<()>, StartError> {
    let pods_receiver = pods_sender.subscribe();
    let standalone = flags.kubeconfig.is_none();
    if let Some(error) = wrong_at_start(flags, loaded).into_iter().next() {
        return Err(error);
    }
    let gates = FeatureGates::new(loaded.config.feature_gates.clone());
    let providers = machine_config::credential_providers(flags, &gates).map_err(StartError::CredentialProviders)?;
    doctor::refuse(Path::new("/"), &loaded.config).map_err(StartError::Machine)?;
    kernel::tune(Path::new(kernel::SYSCTLS), loaded.config.protect_kernel_defaults).map_err(StartError::Machine)?;
    machine_config::apply(loaded, flags);
    machine_config::limit_this_process(&loaded.config);
    doctor::log_machine(Path::new("/"), &loaded.config);
    let name = node_name(flags)?;
    folders(&flags.root_dir, &loaded.config.pod_logs_dir)?;
    let first = FirstCertificate::wanted(flags, loaded.config.rotate_certificates);
    let client = client(flags, loaded, first.as_ref())?;
    let cri = CriClient::new(
        &loaded.config.container_runtime_endpoint,
        Some(loaded.config.image_service_endpoint.as_str()).filter(|e| !e.is_empty()),
        loaded.config.runtime_request_timeout.get(),
    )?;
    let client_for_certificates = client.clone();
    machine_config::ask_runtime(loaded, &cri).await;
    if loaded.config.cgroups_per_qos {
        let driver = cgroups::Driver::named(&loaded.config.cgroup_driver);
        cgroups::check_root(Path::new(cgroups::MOUNT), &loaded.config.cgroup_root, driver)
            .map_err(StartError::Machine)?;
    }
    let config = Arc::new(loaded.config.clone());
    if let Some(sending) = spans::start(config.tracing.as_ref(), &name) {
        tasks.spawn(sending);
    }
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
        allocatable_ignores_eviction: flags.allocatable_ignores_eviction,
    };
    let network = Network::look(&name).await;
    let addresses = match node::choose_addresses(&flags.node_ip, &name, &network, settings.is_local()) {
        Ok(addresses) => addresses,
        // It may come to be right: an interface that is not up yet.
        Err(why) => {
            tracing::error!("the node has no address: {why}");
            Vec::new()
        }
    };
    let (node_sender, node_receiver) = watch::channel(Arc::new(node::local_node(&settings, &addresses)));
    let (node_heard, node_hears) = watch::channel(false);
    let (runtime_sender, runtime) = watch::channel(Arc::new(node::unknown_runtime()));
    let csi_node = (!standalone).then(|| node::NO_CSI_NODE.to_owned());
    let (signal_sender, node_signals) = watch::channel(NodeSignals { csi_node, ..NodeSignals::default() });
    let (volumes_heard, heard) = watch::channel(0);
    let (reach, reached) = watch::channel((!standalone).then(|| NOT_HEARD.to_owned()));
    tasks.spawn(node::monitor_runtime(cri.clone(), runtime_sender, progress.register("runtime", RUNTIME_LIMIT)));
    tasks.spawn(container_logs::run(cri.clone(), RotatePolicy::of(&config)));
    tasks.spawn(pod_cidr::tell(cri.clone(), config.pod_cidr.clone(), node_receiver.clone()));
    if !config.kubelet_cgroups.is_empty() {
        own_cgroup::enter(Path::new(cgroups::MOUNT), &config.kubelet_cgroups);
    }
    // Events have a rate of their own, so that a flood of them holds up nothing else.
    let events_client = client.with_rate(f64::from(config.event_record_qps), unsigned(config.event_burst));
    let (recorder, sender) = Recorder::new(events_client, &name);
    tasks.spawn(sender);
    let feed = Arc::new(PodFeed::default());
    let events = node_events(&recorder, &name);
    let damaged = |file: &Damaged| events("Warning", state_file::EVENT, file.to_string());
    let devices = Devices::new(flags.root_dir.join("device-plugins"), feed.clone(), damaged);
    let drivers = Arc::new(Drivers::default());
    let registry_client = (!standalone).then(|| client.clone());
    let with_health = settings.gates.enabled("ResourceHealthStatus");
    let dra = Dra::open(&flags.root_dir, registry_client.clone(), &name, with_health, damaged);
    let walks = Arc::new(Walks::default());
    let stats = || {
        let folders = (flags.root_dir.clone(), config.pod_logs_dir.clone());
        Stats::new(cri.clone(), &name, folders, config.cgroups_per_qos, drivers.clone(), walks.clone())
    };
    let node_now = NodeNow {
        settings: settings.clone(),
        node: node_receiver.clone(),
        runtime: runtime.clone(),
        signals: node_signals,
        devices: devices.clone(),
    };
    let node_api = NodeApi::new(node_now, reached.clone(), pods_receiver.clone(), stats());
    let user_ids = machine_config::user_ids(&config).await.map_err(StartError::UserNamespaces)?;
    let of_managers = resource_managers::Settings::of(&config, &settings.gates, &flags.root_dir);
    let managers = Managers::open(&of_managers).await.map_err(StartError::Managers)?;
    tasks.spawn(reconcile(managers.clone(), cri.clone(), config.cpu_manager_reconcile_period.get()));
    let sockets = (&mut *tasks, clients);
    local_sockets::start(sockets, &flags.root_dir, &settings.gates, &feed, (&devices, &managers, &dra), node_api);
    events("Normal", "Starting", "Starting kubelet.".to_owned());
    if crate::volumes::memory_may_be_swapped(&flags.root_dir) {
        let message = "The tmpfs noswap option is not supported. Memory-backed volumes (e.g. secrets, emptyDirs, etc.) \
                       might be swapped to disk and should no longer be considered secure.";
        events("Warning", "PossibleMemoryBackedVolumesOnDisk", message.to_owned());
    }
    tasks.spawn(oom_watcher::run(events.clone()));
    tasks.spawn(node::tell_uncollected(runtime.clone(), events.clone()));
    let eviction_stats = stats();
    tasks.spawn(node::run(NodeDeps {
        settings: settings.clone(),
        client: client.clone(),
        cri: cri.clone(),
        addresses: addresses.clone(),
        runtime: runtime.clone(),
        signals: signal_sender.clone(),
        reach,
        node: node_sender,
        heard: node_heard,
        volumes_heard,
        events: events.clone(),
        status_beat: progress.register("node status", node::round_limit(&config)),
        lease_beat: progress.register("lease", node::round_limit(&config)),
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
        devices: devices.clone(),
        stats: Arc::new(stats()),
        pods: pods_receiver.clone(),
    };
    // The ports belong to the threads that serve them, from the first on.
    let starting = clients.spawn(server::start(server));
    let serving = starting.await.map_err(|broke| StartError::Server(ServerError::Broke(broke)))??;
    device_plugins::lead(Path::new(device_plugins::FIXED), &flags.root_dir.join("device-plugins"));
    let certificates = (&client_for_certificates, &renew);
    let asks = first.is_some();
    let known = (name.as_str(), addresses.as_slice(), &node_receiver);
    keep_certificates((tasks, fatal.clone()), flags, loaded, certificates, (certificate, first), known);
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
            node_heard: node_hears,
            events,
            feed,
            devices,
            dra,
            managers,
            drivers,
            volumes_heard: heard,
            providers,
            user_ids,
        };
        let node = node_receiver.clone();
        async move {
            if let Some(why) = parts.settings.over_reserved() {
                notify::status(&format!("takes no pods: {why}"));
                // Whoever looks for the reason finds the settings served for a moment, as the kubelet does it.
                tokio::time::sleep(SHOWN).await;
                // The agent may stop by itself meanwhile.
                let _ = fatal.send(StartError::Machine(why)).await;
                return;
            }
            notify::status("waiting for the container runtime");
            let Some(handle) = start_pods(parts, runtime, node.clone(), signal_sender).await else { return };
            pods_sender.send_replace(Some(handle.clone()));
            let up = async {
                if !standalone {
                    notify::status(if asks { "asking for a client certificate" } else { "registering the node" });
                    if !registered(node, &reached).await {
                        // The agent stops.
                        return;
                    }
                }
                // Before systemd hears of it: who asks to reload after READY gets the whole of it.
                ready.send_replace(true);
                notify::tell(&[NotifyState::Ready]);
                tracing::info!(node = %name, "the node takes pods");
                follow_pods(name, pods_receiver, reached).await;
            };
            // Neither pressure nor a shutdown waits for the control plane.
            let shutdown = shutdown::run(shutdown, handle.clone());
            tokio::join!(up, eviction::run(eviction, handle), shutdown, memory::keep_small());
        }
    };
    tasks.spawn(starting);
    Ok(serving)
}

/// Waits for the API server to have the node, but not for long: the node's own pods do without. False when the agent stops.
async fn registered(mut node: watch::Receiver<Arc<Node>>, reached: &watch::Receiver<Option<String>>) -> bool {
    match tokio::time::timeout(REGISTRATION, node.wait_for(|n| !n.uid().is_empty())).await {
        Ok(seen) => seen.is_ok(),
        Err(_) => {
            let trouble = reached.borrow().clone().unwrap_or_default();
            tracing::warn!(trouble, "the API server does not have the node yet; going on without");
            true
        }
    }
}

/// The login of a node that has to ask for its first client certificate.
struct FirstCertificate {
    target: PathBuf,
    source: PathBuf,
}

impl FirstCertificate {
    /// None where the kubeconfig can be used as it is, or there is nothing to ask with.
    fn wanted(flags: &Flags, rotates: bool) -> Option<Self> {
        let (target, source) = (flags.kubeconfig.clone()?, flags.bootstrap_kubeconfig.clone()?);
        let store = rotates.then(|| identity::Store::client(&flags.cert_dir));
        (!identity::is_usable(&target, store.as_ref())).then_some(FirstCertificate { target, source })
    }
}

/// Starts what gets the first certificate and keeps both young, as far as the configuration asks for it.
fn keep_certificates(
    (tasks, fatal): (&mut JoinSet<()>, mpsc::Sender<StartError>),
    flags: &Flags,
    loaded: &Loaded,
    (client, renew): (&Client, &Arc<identity::Renewal>),
    (serving, first): (Arc<identity::Serving>, Option<FirstCertificate>),
    (name, addresses, node): (&str, &[IpAddr], &watch::Receiver<Arc<Node>>),
) {
    let (config, folder) = (&loaded.config, flags.cert_dir.clone());
    let standalone = flags.kubeconfig.is_none();
    if let Some(kubeconfig) = flags.kubeconfig.clone() {
        let login =
            identity::ClientLogin { folder: folder.clone(), kubeconfig, source: flags.bootstrap_kubeconfig.clone() };
        let (client, renew, name) = (client.clone(), renew.clone(), name.to_owned());
        let rotates = config.rotate_certificates;
        tasks.spawn(async move {
            let folder = login.folder.clone();
            if let Some(FirstCertificate { source, .. }) = &first {
                identity::bootstrap(source, &folder, &name).await;
                tracing::info!("the node has its first client certificate");
                client.reconnect();
            }
            let writing = async {
                if let Some(FirstCertificate { target, source }) = &first {
                    identity::write_login(target, source, &folder).await;
                }
            };
            // A certificate ages whether or not the kubeconfig can be written.
            let keeping = async {
                if rotates && let Err(error) = identity::keep_client(client, login, renew, name).await {
                    // The agent may stop by itself meanwhile.
                    let _ = fatal.send(StartError::Identity(error)).await;
                }
            };
            tokio::join!(writing, keeping);
        });
    }
    let gates = FeatureGates::new(config.feature_gates.clone());
    let follows = gates.enabled("ReloadKubeletServerCertificateFile");
    if config.server_tls_bootstrap {
        if !standalone {
            let (name, node) = (name.to_owned(), node.clone());
            tasks.spawn(identity::keep_serving(client.clone(), folder, serving, renew.clone(), (name, node)));
        }
    } else if !config.tls_cert_file.as_os_str().is_empty() && !config.tls_private_key_file.as_os_str().is_empty() {
        let (certificate, key) = (config.tls_cert_file.clone(), config.tls_private_key_file.clone());
        if follows {
            tasks.spawn(identity::follow_files(serving, certificate, key));
        }
    } else if config.enable_server {
        let names = server::certificate_names(name, addresses);
        tasks.spawn(identity::keep_self_made((serving, folder), names, renew.clone(), follows));
    }
}

/// Keeps systemd's status line true to the number of pods, and to whether the API server hears of them.
async fn follow_pods(
    name: String,
    pods: watch::Receiver<Option<pods::Handle>>,
    mut reached: watch::Receiver<Option<String>>,
) {
    let mut said = String::new();
    loop {
        let handle = pods.borrow().clone();
        if let Some(handle) = handle {
            let count = handle.count().await;
            let trouble = reached.borrow_and_update().clone();
            let alone = trouble.map(|why| format!(", without the API server: {why}")).unwrap_or_default();
            let line = format!("node {name} is up with {count} pods{alone}");
            if said != line {
                notify::status(&line);
                said = line;
            }
        }
        tokio::select! {
            () = tokio::time::sleep(STATUS_LINE) => {}
            Ok(()) = reached.changed() => {}
        }
    }
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

fn client(flags: &Flags, loaded: &Loaded, first: Option<&FirstCertificate>) -> Result<Client, StartError> {
    let config = &loaded.config;
    let transport: Arc<dyn Transport> = match &flags.kubeconfig {
        Some(path) => {
            let agent = format!("node-agent/{KUBELET_VERSION} (linux/{})", std::env::consts::ARCH);
            let kubeconfig = match first {
                Some(first) => identity::login_to_come(&first.source, &flags.cert_dir)?,
                None => {
                    let mut kubeconfig = Kubeconfig::load(path)?;
                    if config.rotate_certificates {
                        kubeconfig.follow_rotated(identity::Store::client(&flags.cert_dir).current());
                    }
                    kubeconfig
                }
            };
            Arc::new(HttpTransport::new(&kubeconfig, &agent)?)
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
