//! The configuration as the agent's code reads it: every field that something here uses, typed.
//!
//! It is read from the finished document (file, drop-ins, flags, defaults), whose form the schema table has checked.
//! What nothing uses yet stays in the document and shows in `/configz`.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Deserializer};

/// `kubelet.config.k8s.io/v1beta1`, all defaults filled in.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Configuration {
    pub enable_server: bool,
    pub static_pod_path: PathBuf,
    pub pod_logs_dir: PathBuf,
    pub sync_frequency: GoDuration,
    pub file_check_frequency: GoDuration,
    pub http_check_frequency: GoDuration,
    #[serde(rename = "staticPodURL")]
    pub static_pod_url: String,
    #[serde(rename = "staticPodURLHeader", deserialize_with = "lists")]
    pub static_pod_url_header: BTreeMap<String, Vec<String>>,
    pub address: String,
    pub port: i32,
    pub read_only_port: i32,
    pub tls_cert_file: PathBuf,
    pub tls_private_key_file: PathBuf,
    pub tls_cipher_suites: Vec<String>,
    pub tls_min_version: String,
    pub tls_curve_preferences: Vec<i32>,
    pub rotate_certificates: bool,
    #[serde(rename = "serverTLSBootstrap")]
    pub server_tls_bootstrap: bool,
    pub authentication: Authentication,
    pub authorization: Authorization,
    #[serde(rename = "registryPullQPS")]
    pub registry_pull_qps: i32,
    pub registry_burst: i32,
    #[serde(rename = "eventRecordQPS")]
    pub event_record_qps: i32,
    pub event_burst: i32,
    pub enable_debugging_handlers: bool,
    pub enable_contention_profiling: bool,
    pub healthz_port: i32,
    pub healthz_bind_address: String,
    pub oom_score_adj: i32,
    pub cluster_domain: String,
    #[serde(rename = "clusterDNS")]
    pub cluster_dns: Vec<String>,
    pub streaming_connection_idle_timeout: GoDuration,
    pub node_status_update_frequency: GoDuration,
    pub node_status_report_frequency: GoDuration,
    pub node_lease_duration_seconds: i32,
    #[serde(rename = "imageMinimumGCAge")]
    pub image_minimum_gc_age: GoDuration,
    #[serde(rename = "imageMaximumGCAge")]
    pub image_maximum_gc_age: GoDuration,
    #[serde(rename = "imageGCHighThresholdPercent")]
    pub image_gc_high_threshold_percent: i32,
    #[serde(rename = "imageGCLowThresholdPercent")]
    pub image_gc_low_threshold_percent: i32,
    pub cgroup_root: String,
    #[serde(rename = "cgroupsPerQOS")]
    pub cgroups_per_qos: bool,
    pub cgroup_driver: String,
    pub system_cgroups: String,
    pub kubelet_cgroups: String,
    pub cpu_manager_policy: String,
    pub cpu_manager_policy_options: BTreeMap<String, String>,
    pub cpu_manager_reconcile_period: GoDuration,
    pub memory_manager_policy: String,
    pub topology_manager_policy: String,
    pub topology_manager_scope: String,
    pub topology_manager_policy_options: BTreeMap<String, String>,
    pub qos_reserved: BTreeMap<String, String>,
    pub reserved_memory: Vec<ReservedMemory>,
    #[serde(rename = "singleProcessOOMKill")]
    pub single_process_oom_kill: Option<bool>,
    pub runtime_request_timeout: GoDuration,
    pub hairpin_mode: String,
    pub max_pods: i32,
    pub pods_per_core: i32,
    #[serde(rename = "podCIDR")]
    pub pod_cidr: String,
    pub pod_pids_limit: i64,
    pub resolv_conf: String,
    pub run_once: bool,
    #[serde(rename = "cpuCFSQuota")]
    pub cpu_cfs_quota: bool,
    #[serde(rename = "cpuCFSQuotaPeriod")]
    pub cpu_cfs_quota_period: GoDuration,
    pub node_status_max_images: i32,
    pub max_open_files: i64,
    pub content_type: String,
    #[serde(rename = "kubeAPIQPS")]
    pub kube_api_qps: i32,
    #[serde(rename = "kubeAPIBurst")]
    pub kube_api_burst: i32,
    pub serialize_image_pulls: bool,
    pub max_parallel_image_pulls: Option<i32>,
    pub eviction_hard: BTreeMap<String, String>,
    pub eviction_soft: BTreeMap<String, String>,
    pub eviction_soft_grace_period: BTreeMap<String, String>,
    pub eviction_minimum_reclaim: BTreeMap<String, String>,
    pub eviction_pressure_transition_period: GoDuration,
    pub eviction_max_pod_grace_period: i32,
    pub enable_controller_attach_detach: bool,
    pub protect_kernel_defaults: bool,
    #[serde(rename = "iptablesMasqueradeBit")]
    pub iptables_masquerade_bit: i32,
    #[serde(rename = "iptablesDropBit")]
    pub iptables_drop_bit: i32,
    pub feature_gates: BTreeMap<String, bool>,
    pub fail_swap_on: bool,
    pub memory_swap: MemorySwap,
    pub container_log_max_size: String,
    pub container_log_max_files: i32,
    pub container_log_max_workers: i32,
    pub container_log_monitor_interval: GoDuration,
    pub config_map_and_secret_change_detection_strategy: String,
    pub system_reserved: BTreeMap<String, String>,
    pub kube_reserved: BTreeMap<String, String>,
    #[serde(rename = "reservedSystemCPUs")]
    pub reserved_system_cpus: String,
    pub system_reserved_cgroup: String,
    pub kube_reserved_cgroup: String,
    pub enforce_node_allocatable: Vec<String>,
    pub allowed_unsafe_sysctls: Vec<String>,
    pub volume_plugin_dir: PathBuf,
    #[serde(rename = "providerID")]
    pub provider_id: String,
    pub logging: Logging,
    pub enable_system_log_handler: bool,
    pub enable_system_log_query: bool,
    pub shutdown_grace_period: GoDuration,
    pub shutdown_grace_period_critical_pods: GoDuration,
    pub shutdown_grace_period_by_pod_priority: Vec<ShutdownGracePeriod>,
    pub crash_loop_back_off: CrashLoopBackOff,
    pub enable_profiling_handler: bool,
    pub enable_debug_flags_handler: bool,
    pub seccomp_default: bool,
    pub memory_throttling_factor: Option<f64>,
    pub memory_reservation_policy: String,
    pub register_with_taints: Vec<Taint>,
    pub register_node: bool,
    pub tracing: Option<Tracing>,
    pub show_hidden_metrics_for_version: String,
    pub volume_stats_agg_period: GoDuration,
    pub local_storage_capacity_isolation: bool,
    pub container_runtime_endpoint: String,
    pub image_service_endpoint: String,
    #[serde(rename = "failCgroupV1")]
    pub fail_cgroup_v1: bool,
    pub user_namespaces: Option<UserNamespaces>,
    pub image_pull_credentials_verification_policy: String,
    pub preloaded_images_verification_allowlist: Vec<String>,
    /// From a flag: hard eviction thresholds are not taken from what pods may have.
    #[serde(skip)]
    pub allocatable_ignores_eviction: bool,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Authentication {
    pub x509: X509,
    pub webhook: WebhookAuthentication,
    pub anonymous: Enabled,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct X509 {
    #[serde(rename = "clientCAFile")]
    pub client_ca_file: PathBuf,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct WebhookAuthentication {
    pub enabled: bool,
    #[serde(rename = "cacheTTL")]
    pub cache_ttl: GoDuration,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct Enabled {
    pub enabled: bool,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct Authorization {
    pub mode: String,
    pub webhook: WebhookAuthorization,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct WebhookAuthorization {
    #[serde(rename = "cacheAuthorizedTTL")]
    pub cache_authorized_ttl: GoDuration,
    #[serde(rename = "cacheUnauthorizedTTL")]
    pub cache_unauthorized_ttl: GoDuration,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct MemorySwap {
    pub swap_behavior: String,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct CrashLoopBackOff {
    pub max_container_restart_period: Option<GoDuration>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ShutdownGracePeriod {
    pub priority: i32,
    pub shutdown_grace_period_seconds: i64,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct UserNamespaces {
    pub ids_per_pod: Option<i64>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Logging {
    pub format: String,
    pub flush_frequency: FlushFrequency,
    pub verbosity: i64,
    pub vmodule: Vec<VModule>,
    pub options: LoggingOptions,
}

/// A duration that may also be written as a number of nanoseconds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct FlushFrequency {
    pub nanos: i64,
    pub is_number: bool,
}

/// As it stands in JSON.
impl std::fmt::Display for FlushFrequency {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.is_number { write!(f, "{}", self.nanos) } else { write!(f, "\"{}\"", GoDuration { nanos: self.nanos }) }
    }
}

impl<'de> Deserialize<'de> for FlushFrequency {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Either {
            Number(i64),
            Text(GoDuration),
        }
        Ok(match Either::deserialize(deserializer)? {
            Either::Number(nanos) => FlushFrequency { nanos, is_number: true },
            Either::Text(GoDuration { nanos }) => FlushFrequency { nanos, is_number: false },
        })
    }
}

/// Lists by name, of which one may be null: it is empty then.
fn lists<'de, D: Deserializer<'de>>(deserializer: D) -> Result<BTreeMap<String, Vec<String>>, D::Error> {
    let lists = BTreeMap::<String, Option<Vec<String>>>::deserialize(deserializer)?;
    Ok(lists.into_iter().map(|(name, list)| (name, list.unwrap_or_default())).collect())
}

/// A level for the files that a pattern matches.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct VModule {
    pub file_pattern: String,
    pub verbosity: i64,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct LoggingOptions {
    pub text: OutputRouting,
    pub json: OutputRouting,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct OutputRouting {
    pub split_stream: bool,
    pub info_buffer_size: String,
}

/// Spans to an OpenTelemetry collector.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Tracing {
    pub endpoint: Option<String>,
    pub sampling_rate_per_million: Option<i32>,
}

/// Memory of a NUMA node that pods do not get; kinds are `memory` and `hugepages-SIZE`.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ReservedMemory {
    pub numa_node: i32,
    pub limits: BTreeMap<String, String>,
}

#[derive(Debug, Clone, Default, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "camelCase", default)]
pub struct Taint {
    pub key: String,
    pub value: String,
    pub effect: String,
    pub time_added: Option<String>,
}

/// A duration as Go writes it (`1m30s`); may be negative in a configuration that validation then refuses.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct GoDuration {
    pub nanos: i64,
}

impl GoDuration {
    /// Negative durations become zero.
    pub fn get(self) -> Duration {
        Duration::from_nanos(u64::try_from(self.nanos).unwrap_or(0))
    }
}

impl std::fmt::Display for GoDuration {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&proto::duration::format(self.nanos))
    }
}

impl<'de> Deserialize<'de> for GoDuration {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = <std::borrow::Cow<'de, str>>::deserialize(deserializer)?;
        let nanos = proto::duration::parse(&text).map_err(serde::de::Error::custom)?;
        Ok(GoDuration { nanos })
    }
}
