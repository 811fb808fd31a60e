//! The start of the pods: everything that needs the runtime's name and the node's cgroups.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use proto::api::core::v1::Node;
use service::notify;
use tokio::sync::watch;

use crate::api::Client;
use crate::cgroups::{self, Cgroups};
use crate::cli::Flags;
use crate::config::{Configuration, FeatureGates};
use crate::cri::CriClient;
use crate::csi::usage::TellAbnormal;
use crate::csi::volumes::CsiDeps;
use crate::csi::{Drivers, Reported};
use crate::device_plugins::Devices;
use crate::dns_hosts::{NodeDns, cluster_servers, local_servers};
use crate::dra::Dra;
use crate::images::node_credentials::NodeCredentials;
use crate::images::providers::{Provider, Providers};
use crate::images::puller::PullDeps;
use crate::images::records::{Records, Verification};
use crate::node::{self, NodeEvents, NodeSettings, NodeSignals, RuntimeState};
use crate::objects::{self, ApiObjects, ApiTokens, NoObjects, Objects, Strategy};
use crate::pod::memory_qos::MemoryQos;
use crate::pod::resources::NodeResources;
use crate::pods_api::PodFeed;
use crate::resource_managers::Managers;
use crate::sources::url::StaticPodUrl;
use crate::state_file::{self, Damaged};
use crate::{doctor, pods, volumes};

/// Cgroups that cannot be made now are tried again; what lacks may come.
const CGROUPS_AGAIN: Duration = Duration::from_secs(10);

/// What pods are made with.
pub struct PodParts {
    pub flags: Flags,
    pub settings: NodeSettings,
    pub client: Client,
    pub cri: CriClient,
    pub standalone: bool,
    /// Whether the API server has said what it has of the node.
    pub node_heard: watch::Receiver<bool>,
    pub feed: Arc<PodFeed>,
    pub devices: Arc<Devices>,
    pub dra: Arc<Dra>,
    pub managers: Arc<Managers>,
    pub drivers: Arc<Drivers>,
    pub volumes_heard: watch::Receiver<u64>,
    pub providers: Vec<Provider>,
    pub events: NodeEvents,
    pub user_ids: pods::UserIds,
}

/// Starts the pods once the runtime has said its name, which container ids carry. None when the agent stops before that.
pub async fn start_pods(
    parts: PodParts,
    mut runtime: watch::Receiver<Arc<RuntimeState>>,
    node: watch::Receiver<Arc<Node>>,
    node_signals: watch::Sender<NodeSignals>,
) -> Option<pods::Handle> {
    let up = runtime.wait_for(|r| r.version.contains("://") && !r.version.ends_with("://Unknown")).await;
    // Nobody asks the runtime any more.
    let up = up.ok()?.clone();
    let runtime_name = up.version.split("://").next().unwrap_or_default().to_owned();
    doctor::log_runtime(&up.version, &up.handlers);
    let config = &parts.settings.config;
    let objects: Arc<dyn Objects> = match Strategy::of(config) {
        Ok(strategy) if !parts.standalone => {
            let node = node.clone();
            let age = move || objects::kept_for(&node.borrow());
            let trust_bundles = parts.settings.gates.enabled("ClusterTrustBundleProjection");
            let objects = ApiObjects::new(parts.client.clone(), strategy).keeping_for(age);
            Arc::new(objects.with_trust_bundles(trust_bundles))
        }
        // Without an API server nobody asks which.
        _ => Arc::new(NoObjects),
    };
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
        swap_controller: cgroups::counts_swap(),
        single_process_oom_kill: config.single_process_oom_kill,
        cgroup_v2,
        memory_qos: (cgroup_v2 && parts.settings.gates.enabled("MemoryQoS")).then(|| memory_qos(&parts.settings)),
        swap_bytes: i64::try_from(machine.swap_bytes).unwrap_or(i64::MAX),
    };
    let cgroups = loop {
        match start_cgroups(&parts.settings, &parts.cri, &resources).await {
            Ok((cgroups, limited)) => {
                for message in limited {
                    (parts.events)("Normal", "NodeAllocatableEnforced", message);
                }
                break cgroups;
            }
            Err(error) => {
                tracing::error!(%error, "pods cannot have cgroups; the node takes none");
                if matches!(error, cgroups::StartError::Reserved { .. }) {
                    (parts.events)("Warning", "FailedNodeAllocatableEnforcement", error.to_string());
                }
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
                Box::new(move |volumes| signals.send_modify(|s| s.volumes_in_use = volumes))
            },
            // Where no controller attaches, nobody writes down what is attached.
            reported: config
                .enable_controller_attach_detach
                .then(|| Reported { heard: parts.volumes_heard, node: node.clone() }),
        },
    }));
    tokio::spawn({
        let volumes = volumes.clone();
        async move { volumes.sweep().await }
    });
    let (drivers, period) = (parts.drivers, config.volume_stats_agg_period.get());
    let health = parts.settings.gates.enabled("CSIVolumeHealth");
    let handle = pods::Manager::start(pods::Deps {
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
            static_pods_may_reference: !parts.settings.gates.enabled("PreventStaticPodAPIReferences"),
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
            container_gc: parts.flags.container_gc.clone(),
            seccomp_default: config.seccomp_default,
            device_health: parts.settings.gates.enabled("ResourceHealthStatus"),
            device_health_messages: parts.settings.gates.enabled("ResourceHealthStatusMessage"),
            stop_signals: parts.settings.gates.enabled("ContainerStopSignals"),
            user_ids: parts.user_ids,
            features: pods::PodFeatures::of(&parts.settings.gates),
            allowed_unsafe_sysctls: config.allowed_unsafe_sysctls.clone(),
            resources,
            fixed_resources: fixed_resources(config, &parts.settings.gates),
            dns: NodeDns {
                cluster_dns: cluster_servers(&config.cluster_dns),
                cluster_domain: config.cluster_domain.clone(),
                resolv_conf: PathBuf::from(&config.resolv_conf),
                local_servers: local_servers(&parts.flags.node_ip),
            },
        },
        volumes,
        pulls: PullDeps {
            parallel,
            rate: (unsigned(config.registry_pull_qps), unsigned(config.registry_burst)),
            records: parts.settings.gates.enabled("KubeletEnsureSecretPulledImages").then(|| {
                let policy = &config.image_pull_credentials_verification_policy;
                let verification = Verification::new(policy, &config.preloaded_images_verification_allowlist);
                let tell = |file: &Damaged| (parts.events)("Warning", state_file::EVENT, file.to_string());
                Arc::new(Records::open(&parts.flags.root_dir, verification, tell))
            }),
            node_credentials: NodeCredentials::new(&parts.flags.root_dir),
            providers: Providers::new(parts.providers, parts.client.clone(), tokens),
        },
        cri: parts.cri,
        cgroups: Arc::new(cgroups),
        runtime_name,
        client: parts.client,
        objects,
        node,
        node_heard: parts.node_heard,
        feed: parts.feed,
        devices: parts.devices,
        dra: parts.dra,
        signals: node_signals.subscribe(),
        runtime,
        managers: parts.managers,
        node_events: parts.events,
    });
    let tell: Option<TellAbnormal> = health.then(|| {
        let pods = handle.clone();
        Box::new(move |found| pods.tell_abnormal(found)) as TellAbnormal
    });
    tokio::spawn(async move { drivers.usages.keep(&drivers, period, tell).await });
    Some(handle)
}

fn memory_qos(settings: &NodeSettings) -> MemoryQos {
    MemoryQos {
        // The default of the configuration.
        factor: settings.config.memory_throttling_factor.unwrap_or(0.9),
        tiered: settings.config.memory_reservation_policy == "TieredReservation",
        allocatable_bytes: allocatable_memory(settings),
        page_bytes: page_bytes(Path::new("/proc/self/smaps")).unwrap_or(4096),
    }
}

/// Bytes that pods may have of the node.
fn allocatable_memory(settings: &NodeSettings) -> i64 {
    settings.resources().1.get("memory").map_or(0, proto::quantity::Quantity::value)
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

pub(super) fn unsigned(value: i32) -> u32 {
    u32::try_from(value).unwrap_or(0)
}

fn percent(value: i32) -> u8 {
    u8::try_from(value.clamp(0, 100)).unwrap_or(100)
}

/// The cgroups, and what was limited in words for events.
async fn start_cgroups(
    settings: &NodeSettings,
    cri: &CriClient,
    resources: &NodeResources,
) -> Result<(Cgroups, Vec<String>), cgroups::StartError> {
    let config = &settings.config;
    if !config.cgroups_per_qos {
        return Ok((Cgroups::reduced(config), Vec::new()));
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
        memory_reserved: settings
            .gates
            .enabled("QOSReserved")
            .then(|| cgroups::MemoryReserved::of(&config.qos_reserved, allocatable_memory(settings)))
            .flatten(),
    };
    let cgroups = Cgroups::start(made, &left, pids).await?;
    let pods = enforced.then(|| "Updated Node Allocatable limit across pods".to_owned());
    let reserved = cgroups.enforce_reserved(config).await?;
    Ok((cgroups, pods.into_iter().chain(reserved).collect()))
}
