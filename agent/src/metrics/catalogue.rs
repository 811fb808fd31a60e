//! Every family by its static: name, stability, help, labels, bounds. In the kubelet's words, because dashboards and
//! alerts are written against them.

use super::{Family, Kind, Stability};

const NONE: &[f64] = &[];
/// client_golang's own.
const DEFAULT: &[f64] = &[0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0];
const POD_START: &[f64] = &[
    0.5, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0, 20.0, 30.0, 45.0, 60.0, 120.0, 180.0, 240.0, 300.0, 360.0, 480.0,
    600.0, 900.0, 1200.0, 1800.0, 2700.0, 3600.0,
];
const STATUS_SYNC: &[f64] = &[0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0, 20.0, 30.0, 45.0, 60.0];
/// Exponential from 5 ms by 2.5, 14 of them.
const RUNTIME: &[f64] = &[
    0.005,
    0.0125,
    0.03125,
    0.078_125,
    0.195_312_5,
    0.488_281_25,
    1.220_703_125,
    3.051_757_812_5,
    7.629_394_531_25,
    19.073_486_328_125,
    47.683_715_820_312_5,
    119.209_289_550_781_25,
    298.023_223_876_953_1,
    745.058_059_692_382_8,
];
/// Exponential from 0.05 ms by 2, 15 of them.
const ADMISSION_MS: &[f64] = &[0.05, 0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 12.8, 25.6, 51.2, 102.4, 204.8, 409.6, 819.2];
const REST: &[f64] = &[0.005, 0.025, 0.1, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 15.0, 30.0, 60.0];
const REST_BYTES: &[f64] =
    &[64.0, 256.0, 512.0, 1024.0, 4096.0, 16384.0, 65536.0, 262_144.0, 1_048_576.0, 4_194_304.0, 16_777_216.0];
/// Names are looked up in less than half a minute, or not at all.
const NAMES: &[f64] = &[0.005, 0.025, 0.1, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 15.0, 30.0];
const RESIZE_MS: &[f64] = &[
    10.0, 50.0, 100.0, 500.0, 1000.0, 2000.0, 5000.0, 10_000.0, 20_000.0, 30_000.0, 60_000.0, 120_000.0, 300_000.0,
    600_000.0,
];
const STORAGE: &[f64] = &[0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 15.0, 25.0, 50.0, 120.0, 300.0, 600.0];
const CERTIFICATE: &[f64] = &[
    0.0,
    1800.0,
    3600.0,
    7200.0,
    21600.0,
    43200.0,
    86400.0,
    172_800.0,
    345_600.0,
    604_800.0,
    2_592_000.0,
    7_776_000.0,
    15_552_000.0,
    31_104_000.0,
];
const IMAGE_PULL: &[f64] =
    &[1.0, 5.0, 10.0, 20.0, 30.0, 60.0, 120.0, 180.0, 240.0, 300.0, 600.0, 900.0, 1200.0, 1800.0, 2700.0, 3600.0];
/// Exponential from 0.1 s to 40 s, 15 of them.
const CLAIMS: &[f64] = &[
    0.1,
    0.153_412_740_463_439_1,
    0.235_354_689_365_025_24,
    0.361_064_078_764_099_46,
    0.553_918_298_061_075_2,
    0.849_781_240_983_936,
    1.303_672_689_737_678,
    1.999_999_999_999_999_3,
    3.068_254_809_268_780_5,
    4.707_093_787_300_502_5,
    7.221_281_575_281_985,
    11.078_365_961_221_499,
    16.995_624_819_678_714,
    26.073_453_794_753_54,
    39.999_999_999_999_97,
];
/// How long a certificate of an exec plugin lived: ten minutes to four years.
const PLUGIN_ROTATION: &[f64] = &[
    600.0,
    1800.0,
    3600.0,
    14400.0,
    86400.0,
    604_800.0,
    2_592_000.0,
    7_776_000.0,
    15_552_000.0,
    31_104_000.0,
    124_416_000.0,
];
/// How long a certificate lived: a minute to four years.
const ROTATION: &[f64] =
    &[60.0, 3600.0, 14400.0, 86400.0, 604_800.0, 2_592_000.0, 7_776_000.0, 15_552_000.0, 31_104_000.0, 124_416_000.0];
const AUTH: &[f64] = &[0.25, 0.5, 0.7, 1.0, 1.5, 3.0, 5.0, 10.0];

macro_rules! families {
    ($list:ident: $($id:ident = $kind:ident $stability:ident $name:literal $labels:expr, $buckets:expr, $help:literal;)*) => {
        $(
            #[doc = concat!("`", $name, "` ", $help)]
            pub static $id: Family =
                Family::new($name, Kind::$kind, Stability::$stability, $help, &$labels, $buckets, None);
        )*
        pub(super) static $list: &[&Family] = &[$(&$id),*];
    };
}

families! { ALL:
    NODE_NAME = Gauge Alpha "kubelet_node_name" ["node"], NONE, "The node's name. The count is always 1.";
    POD_WORKER = Histogram Alpha "kubelet_pod_worker_duration_seconds" ["operation_type"], DEFAULT, "Duration in seconds to sync a single pod. Broken down by operation type: create, update, or sync";
    POD_START_SECONDS = Histogram Alpha "kubelet_pod_start_duration_seconds" [], POD_START, "Duration in seconds from kubelet seeing a pod for the first time to the pod starting to run";
    POD_START_SLI = Histogram Alpha "kubelet_pod_start_sli_duration_seconds" [], POD_START, "Duration in seconds to start a pod, excluding time to pull images and run init containers, measured from pod creation timestamp to when all its containers are reported as started and observed via watch";
    POD_START_TOTAL = Histogram Alpha "kubelet_pod_start_total_duration_seconds" [], POD_START, "Duration in seconds to start a pod since creation, including time to pull images and run init containers, measured from pod creation timestamp to when all its containers are reported as started and observed via watch";
    FIRST_NETWORK_POD = Gauge Internal "kubelet_first_network_pod_start_sli_duration_seconds" [], NONE, "Duration in seconds to start the first network pod, excluding time to pull images and run init containers, measured from pod creation timestamp to when all its containers are reported as started and observed via watch";
    CONTAINERS_PER_POD = Histogram Alpha "kubelet_containers_per_pod_count" [], &[1.0, 2.0, 4.0, 8.0, 16.0], "The number of containers per pod.";
    POD_WORKER_START = Histogram Alpha "kubelet_pod_worker_start_duration_seconds" [], DEFAULT, "Duration in seconds from kubelet seeing a pod to starting a worker.";
    POD_STATUS_SYNC = Histogram Alpha "kubelet_pod_status_sync_duration_seconds" [], STATUS_SYNC, "Duration in seconds to sync a pod status update. Measures time from detection of a change to pod status until the API is successfully updated for that pod, even if multiple intevening changes to pod status occur.";
    CGROUP_MANAGER = Histogram Alpha "kubelet_cgroup_manager_duration_seconds" ["operation_type"], DEFAULT, "Duration in seconds for cgroup manager operations. Broken down by method.";
    CGROUP_VERSION = Gauge Alpha "kubelet_cgroup_version" [], NONE, "cgroup version on the hosts.";
    MEMORY_MIN = Gauge Alpha "kubelet_memory_qos_node_memory_min_bytes" [], NONE, "Total cgroup v2 memory.min in bytes for Guaranteed pods. This memory is hard-reserved and never reclaimed by the kernel.";
    MEMORY_LOW = Gauge Alpha "kubelet_memory_qos_node_memory_low_bytes" [], NONE, "Total cgroup v2 memory.low in bytes for Burstable pods. This memory is soft-reserved and may be reclaimed under extreme pressure.";
    PLEG_RELIST = Histogram Alpha "kubelet_pleg_relist_duration_seconds" [], DEFAULT, "Duration in seconds for relisting pods in PLEG.";
    PLEG_POD_RELIST = Histogram Alpha "kubelet_pleg_pod_relist_duration_seconds" [], DEFAULT, "Duration in seconds for relisting a single pod in PLEG.";
    PLEG_INTERVAL = Histogram Alpha "kubelet_pleg_relist_interval_seconds" [], DEFAULT, "Interval in seconds between relisting in PLEG.";
    PLEG_LAST_SEEN = Gauge Alpha "kubelet_pleg_last_seen_seconds" [], NONE, "Timestamp in seconds when PLEG was last seen active.";
    PLEG_DISCARD_EVENTS = Counter Alpha "kubelet_pleg_discard_events" [], NONE, "The number of discard events in PLEG.";
    EVENTED_PLEG_ERRORS = Counter Alpha "kubelet_evented_pleg_connection_error_count" [], NONE, "The number of errors encountered during the establishment of streaming connection with the CRI runtime.";
    EVENTED_PLEG_CONNECTIONS = Counter Alpha "kubelet_evented_pleg_connection_success_count" [], NONE, "The number of times a streaming client was obtained to receive CRI Events.";
    EVENTED_PLEG_LATENCY = Histogram Alpha "kubelet_evented_pleg_connection_latency_seconds" [], DEFAULT, "The latency of streaming connection with the CRI runtime, measured in seconds.";
    RUNTIME_OPERATIONS = Counter Alpha "kubelet_runtime_operations_total" ["operation_type"], NONE, "Cumulative number of runtime operations by operation type.";
    RUNTIME_OPERATIONS_SECONDS = Histogram Alpha "kubelet_runtime_operations_duration_seconds" ["operation_type"], RUNTIME, "Duration in seconds of runtime operations. Broken down by operation type.";
    RUNTIME_OPERATIONS_ERRORS = Counter Alpha "kubelet_runtime_operations_errors_total" ["operation_type"], NONE, "Cumulative number of runtime operation errors by operation type.";
    RUN_PODSANDBOX = Histogram Alpha "kubelet_run_podsandbox_duration_seconds" ["runtime_handler"], DEFAULT, "Duration in seconds of the run_podsandbox operations. Broken down by RuntimeClass.Handler.";
    RUN_PODSANDBOX_ERRORS = Counter Alpha "kubelet_run_podsandbox_errors_total" ["runtime_handler"], NONE, "Cumulative number of the run_podsandbox operation errors by RuntimeClass.Handler.";
    EVICTIONS = Counter Alpha "kubelet_evictions" ["eviction_signal"], NONE, "Cumulative number of pod evictions by eviction signal";
    EVICTION_STATS_AGE = Histogram Alpha "kubelet_eviction_stats_age_seconds" ["eviction_signal"], DEFAULT, "Time between when stats are collected, and when pod is evicted based on those stats by eviction signal";
    PREEMPTIONS = Counter Alpha "kubelet_preemptions" ["preemption_signal"], NONE, "Cumulative number of pod preemptions by preemption resource";
    ADMISSION_REJECTIONS = Counter Alpha "kubelet_admission_rejections_total" ["reason"], NONE, "Cumulative number pod admission rejections by the Kubelet.";
    DEVICE_PLUGIN_REGISTRATIONS = Counter Alpha "kubelet_device_plugin_registration_total" ["resource_name"], NONE, "Cumulative number of device plugin registrations. Broken down by resource name.";
    DEVICE_PLUGIN_ALLOCATION = Histogram Alpha "kubelet_device_plugin_alloc_duration_seconds" ["resource_name"], DEFAULT, "Duration in seconds to serve a device plugin Allocation request. Broken down by resource name.";
    DRA_OPERATIONS = Histogram Alpha "dra_operations_duration_seconds" ["operation_name", "is_error"], CLAIMS, "Latency histogram in seconds for the duration of handling all ResourceClaims referenced by a pod when the pod starts or stops. Identified by the name of the operation (PrepareResources or UnprepareResources) and separated by the success of the operation. The number of failed operations is provided through the histogram's overall count.";
    DRA_CALLS = Histogram Alpha "dra_grpc_operations_duration_seconds" ["driver_name", "method_name", "grpc_status_code"], CLAIMS, "Duration in seconds of the DRA gRPC operations";
    DRA_CLAIMS = Gauge Alpha "dra_resource_claims_in_use" ["driver_name"], NONE, "The number of ResourceClaims that are currently in use on the node, by driver name (driver_name label value) and across all drivers (special value <any> for driver_name). Note that the sum of all by-driver counts is not the total number of in-use ResourceClaims because the same ResourceClaim might use devices from different drivers. Instead, use the count for the <any> driver_name.";
    CPU_PINNING = Counter Alpha "kubelet_cpu_manager_pinning_requests_total" [], NONE, "The number of cpu core allocations which required pinning.";
    CPU_PINNING_ERRORS = Counter Alpha "kubelet_cpu_manager_pinning_errors_total" [], NONE, "The number of cpu core allocations which required pinning failed.";
    CPU_SHARED_POOL = Gauge Alpha "kubelet_cpu_manager_shared_pool_size_millicores" [], NONE, "The size of the shared CPU pool for non-guaranteed QoS pods, in millicores.";
    CPU_EXCLUSIVE = Gauge Alpha "kubelet_cpu_manager_exclusive_cpu_allocation_count" [], NONE, "The total number of CPUs exclusively allocated to containers running on this node";
    CPU_PER_NODE = Gauge Alpha "kubelet_cpu_manager_allocation_per_numa" ["numa_node"], NONE, "Number of CPUs allocated per NUMA node";
    MEMORY_PINNING = Counter Alpha "kubelet_memory_manager_pinning_requests_total" [], NONE, "The number of memory pages allocations which required pinning.";
    MEMORY_PINNING_ERRORS = Counter Alpha "kubelet_memory_manager_pinning_errors_total" [], NONE, "The number of memory pages allocations which required pinning that failed.";
    RESOURCE_ALLOCATIONS = Counter Alpha "resource_manager_allocations_total" ["resource_name", "source"], NONE, "Number of exclusive resource allocations performed by a resource manager.";
    RESOURCE_ALLOCATION_ERRORS = Counter Alpha "resource_manager_allocation_errors_total" ["resource_name", "source"], NONE, "Number of errors encountered during exclusive resource allocation.";
    RESOURCE_ASSIGNMENTS = Counter Alpha "resource_manager_container_assignments" ["assignment_type", "resource_name"], NONE, "Number of containers with a specific type of resource assignment.";
    TOPOLOGY_REQUESTS = Counter Alpha "kubelet_topology_manager_admission_requests_total" [], NONE, "The number of admission requests where resources have to be aligned.";
    TOPOLOGY_ERRORS = Counter Alpha "kubelet_topology_manager_admission_errors_total" [], NONE, "The number of admission request failures where resources could not be aligned.";
    TOPOLOGY_MS = Histogram Alpha "kubelet_topology_manager_admission_duration_ms" [], ADMISSION_MS, "Duration in milliseconds to serve a pod admission request.";
    ALIGNED = Counter Alpha "kubelet_container_aligned_compute_resources_count" ["boundary", "scope"], NONE, "Cumulative number of aligned compute resources allocated to containers by alignment type.";
    ALIGNED_FAILURES = Counter Alpha "kubelet_container_aligned_compute_resources_failure_count" ["boundary", "scope"], NONE, "Cumulative number of failures to allocate aligned compute resources to containers by alignment type.";
    POD_RESOURCES_REQUESTS = Counter Alpha "kubelet_pod_resources_endpoint_requests_total" ["server_api_version"], NONE, "Cumulative number of requests to the PodResource endpoint. Broken down by server api version.";
    POD_RESOURCES_LIST = Counter Alpha "kubelet_pod_resources_endpoint_requests_list" ["server_api_version"], NONE, "Number of requests to the PodResource List endpoint. Broken down by server api version.";
    POD_RESOURCES_ALLOCATABLE = Counter Alpha "kubelet_pod_resources_endpoint_requests_get_allocatable" ["server_api_version"], NONE, "Number of requests to the PodResource GetAllocatableResources endpoint. Broken down by server api version.";
    POD_RESOURCES_GET = Counter Alpha "kubelet_pod_resources_endpoint_requests_get" ["server_api_version"], NONE, "Number of requests to the PodResource Get endpoint. Broken down by server api version.";
    POD_RESOURCES_LIST_ERRORS = Counter Alpha "kubelet_pod_resources_endpoint_errors_list" ["server_api_version"], NONE, "Number of requests to the PodResource List endpoint which returned error. Broken down by server api version.";
    POD_RESOURCES_ALLOCATABLE_ERRORS = Counter Alpha "kubelet_pod_resources_endpoint_errors_get_allocatable" ["server_api_version"], NONE, "Number of requests to the PodResource GetAllocatableResources endpoint which returned error. Broken down by server api version.";
    POD_RESOURCES_GET_ERRORS = Counter Alpha "kubelet_pod_resources_endpoint_errors_get" ["server_api_version"], NONE, "Number of requests to the PodResource Get endpoint which returned error. Broken down by server api version.";
    POD_WATCH_DROPPED = Counter Alpha "kubelet_pod_watch_events_dropped_total" [], NONE, "Cumulative number of pod watch events dropped.";
    RUNNING_PODS = Gauge Alpha "kubelet_running_pods" [], NONE, "Number of pods that have a running pod sandbox";
    RUNNING_CONTAINERS = Gauge Alpha "kubelet_running_containers" ["container_state"], NONE, "Number of containers currently running";
    DESIRED_PODS = Gauge Alpha "kubelet_desired_pods" ["static"], NONE, "The number of pods the kubelet is being instructed to run. static is true if the pod is not from the apiserver.";
    ACTIVE_PODS = Gauge Alpha "kubelet_active_pods" ["static"], NONE, "The number of pods the kubelet considers active and which are being considered when admitting new pods. static is true if the pod is not from the apiserver.";
    MIRROR_PODS = Gauge Alpha "kubelet_mirror_pods" [], NONE, "The number of mirror pods the kubelet will try to create (one per admitted static pod)";
    WORKING_PODS = Gauge Alpha "kubelet_working_pods" ["config", "lifecycle", "static"], NONE, "Number of pods the kubelet is actually running, broken down by lifecycle phase, whether the pod is desired, orphaned, or runtime only (also orphaned), and whether the pod is static. An orphaned pod has been removed from local configuration or force deleted in the API and consumes resources that are not otherwise visible.";
    ORPHANED_RUNTIME_PODS = Counter Alpha "kubelet_orphaned_runtime_pods_total" [], NONE, "Number of pods that have been detected in the container runtime without being already known to the pod worker. This typically indicates the kubelet was restarted while a pod was force deleted in the API or in the local configuration, which is unusual.";
    ORPHANS_CLEANED = Gauge Alpha "kubelet_orphan_pod_cleaned_volumes" [], NONE, "The total number of orphaned Pods whose volumes were cleaned in the last periodic sweep.";
    ORPHANS_LEFT = Gauge Alpha "kubelet_orphan_pod_cleaned_volumes_errors" [], NONE, "The number of orphaned Pods whose volumes failed to be cleaned in the last periodic sweep.";
    RESTARTED_PODS = Counter Alpha "kubelet_restarted_pods_total" ["static"], NONE, "Number of pods that have been restarted because they were deleted and recreated with the same UID while the kubelet was watching them (common for static pods, extremely uncommon for API pods)";
    PENDING_RESIZES = Gauge Alpha "kubelet_pod_pending_resizes" ["reason"], NONE, "Number of pending resizes for pods.";
    RESIZES_UNDER_WAY = Gauge Alpha "kubelet_pod_in_progress_resizes" [], NONE, "Number of in-progress resizes for pods.";
    INFEASIBLE_RESIZES = Counter Alpha "kubelet_pod_infeasible_resizes_total" ["reason_detail"], NONE, "Number of infeasible resizes for pods.";
    DEFERRED_RESIZES_ACCEPTED = Counter Alpha "kubelet_pod_deferred_accepted_resizes_total" ["retry_trigger"], NONE, "Cumulative number of resizes that were accepted after being deferred.";
    REQUESTED_RESIZES = Counter Alpha "kubelet_container_requested_resizes_total" ["operation", "requirement", "resource"], NONE, "Number of requested resizes, counted at the container level. Different resources on the same container are counted separately. The 'requirement' label refers to 'memory' or 'limits'; the 'operation' label can be one of 'add', 'remove', 'increase' or 'decrease'.";
    RESIZE_MILLISECONDS = Histogram Alpha "kubelet_pod_resize_duration_milliseconds" ["success"], RESIZE_MS, "Duration in milliseconds to actuate a pod resize";
    STARTED_PODS = Counter Alpha "kubelet_started_pods_total" [], NONE, "Cumulative number of pods started";
    STARTED_PODS_ERRORS = Counter Alpha "kubelet_started_pods_errors_total" [], NONE, "Cumulative number of errors when starting pods";
    STARTED_CONTAINERS = Counter Alpha "kubelet_started_containers_total" ["container_type"], NONE, "Cumulative number of containers started";
    STARTED_CONTAINERS_ERRORS = Counter Alpha "kubelet_started_containers_errors_total" ["code", "container_type"], NONE, "Cumulative number of errors when starting containers";
    MANAGED_EPHEMERAL_CONTAINERS = Gauge Alpha "kubelet_managed_ephemeral_containers" [], NONE, "Current number of ephemeral containers in pods managed by this kubelet.";
    GRACEFUL_SHUTDOWN_START = Gauge Alpha "kubelet_graceful_shutdown_start_time_seconds" [], NONE, "Last graceful shutdown start time since unix epoch in seconds";
    GRACEFUL_SHUTDOWN_END = Gauge Alpha "kubelet_graceful_shutdown_end_time_seconds" [], NONE, "Last graceful shutdown end time since unix epoch in seconds";
    LIFECYCLE_HTTP_FALLBACKS = Counter Alpha "kubelet_lifecycle_handler_http_fallbacks_total" [], NONE, "The number of times lifecycle handlers successfully fell back to http from https.";
    NODE_STARTUP = Gauge Alpha "kubelet_node_startup_duration_seconds" [], NONE, "Duration in seconds of node startup in total.";
    NODE_STARTUP_PRE_AGENT = Gauge Alpha "kubelet_node_startup_pre_kubelet_duration_seconds" [], NONE, "Duration in seconds of node startup before kubelet starts.";
    NODE_STARTUP_PRE_REGISTRATION = Gauge Alpha "kubelet_node_startup_pre_registration_duration_seconds" [], NONE, "Duration in seconds of node startup before registration.";
    NODE_STARTUP_REGISTRATION = Gauge Alpha "kubelet_node_startup_registration_duration_seconds" [], NONE, "Duration in seconds of node startup during registration.";
    NODE_STARTUP_POST_REGISTRATION = Gauge Alpha "kubelet_node_startup_post_registration_duration_seconds" [], NONE, "Duration in seconds of node startup after registration.";
    IMAGES_COLLECTED = Counter Alpha "kubelet_image_garbage_collected_total" ["reason"], NONE, "Total number of images garbage collected by the kubelet, whether through disk usage or image age.";
    IMAGE_VOLUMES_REQUESTED = Counter Beta "kubelet_image_volume_requested_total" [], NONE, "Number of requested image volumes.";
    IMAGE_VOLUMES_MOUNTED = Counter Beta "kubelet_image_volume_mounted_succeed_total" [], NONE, "Number of successful image volume mounts.";
    IMAGE_VOLUMES_FAILED = Counter Beta "kubelet_image_volume_mounted_errors_total" [], NONE, "Number of failed image volume mounts.";
    CREDENTIAL_PROVIDER = Histogram Alpha "kubelet_credential_provider_plugin_duration" ["plugin_name"], DEFAULT, "Duration of execution in seconds for credential provider plugin";
    CREDENTIAL_PROVIDER_ERRORS = Counter Alpha "kubelet_credential_provider_plugin_errors_total" ["plugin_name"], NONE, "Number of errors from credential provider plugin";
    CREDENTIAL_PROVIDER_CONFIG = Gauge Alpha "kubelet_credential_provider_config_info" ["hash"], NONE, "Information about the last applied credential provider configuration with hash as label";
    IMAGE_CHECKS = Counter Alpha "kubelet_imagemanager_image_mustpull_checks_total" ["result"], NONE, "Counter for how many times kubelet checked whether credentials need to be re-verified to access an image";
    PULL_INTENTS = Gauge Alpha "kubelet_imagemanager_ondisk_pullintents" [], NONE, "Number of ImagePullIntents stored on disk.";
    PULLED_RECORDS = Gauge Alpha "kubelet_imagemanager_ondisk_pulledrecords" [], NONE, "Number of ImagePulledRecords stored on disk.";
    PULL_INTENTS_IN_MEMORY = Gauge Alpha "kubelet_imagemanager_inmemory_pullintents_usage_percent" [], NONE, "The ImagePullIntents in-memory cache usage in percent.";
    PULLED_RECORDS_IN_MEMORY = Gauge Alpha "kubelet_imagemanager_inmemory_pulledrecords_usage_percent" [], NONE, "The ImagePulledRecords in-memory cache usage in percent.";
    USERNS_PODS = Counter Alpha "kubelet_started_user_namespaced_pods_total" [], NONE, "Cumulative number of pods with user namespaces started. This metric will only be collected on Linux.";
    USERNS_PODS_ERRORS = Counter Alpha "kubelet_started_user_namespaced_pods_errors_total" [], NONE, "Cumulative number of errors when starting pods with user namespaces. This metric will only be collected on Linux.";
    TERMINATED_CONTAINERS = Counter Alpha "kubelet_terminated_containers_total" ["container_type", "exit_code", "reason"], NONE, "Cumulative number of container terminations.";
    SLEEP_CUT_SHORT = Counter Alpha "kubelet_sleep_action_terminated_early_total" [], NONE, "The number of times lifecycle sleep handler got terminated before it finishes";
    IMAGE_REQUESTS = Counter Alpha "kubelet_image_manager_ensure_image_requests_total" ["present_locally", "pull_policy", "pull_required"], NONE, "Number of ensure-image requests processed by the kubelet.";
    IMAGE_PULL_SECONDS = Histogram Alpha "kubelet_image_pull_duration_seconds" ["image_size_in_bytes"], IMAGE_PULL, "Duration in seconds to pull an image.";
    HTTP_REQUESTS = Counter Alpha "kubelet_http_requests_total" ["long_running", "method", "path", "server_type"], NONE, "Number of the http requests received since the server started";
    HTTP_REQUESTS_SECONDS = Histogram Alpha "kubelet_http_requests_duration_seconds" ["long_running", "method", "path", "server_type"], DEFAULT, "Duration in seconds to serve http requests";
    HTTP_INFLIGHT = Gauge Alpha "kubelet_http_inflight_requests" ["long_running", "method", "path", "server_type"], NONE, "Number of the inflight http requests";
    WEBSOCKET_STREAMING = Counter Alpha "kubelet_websocket_streaming_requests_total" ["subresource"], NONE, "Total number of WebSocket streaming requests (exec/attach/portforward) received by the kubelet.";
    METRICS_PROVIDER = Gauge Alpha "kubelet_metrics_provider" ["provider"], NONE, "Metrics provider used by kubelet to collect container stats. Values can be 'cadvisor' and 'cri'";
    STORAGE_OPERATION = Histogram Alpha "storage_operation_duration_seconds" ["migrated", "operation_name", "status", "volume_plugin"], STORAGE, "Storage operation duration";
    VOLUME_AVAILABLE = Gauge Alpha "kubelet_volume_stats_available_bytes" ["namespace", "persistentvolumeclaim"], NONE, "Number of available bytes in the volume";
    VOLUME_CAPACITY = Gauge Alpha "kubelet_volume_stats_capacity_bytes" ["namespace", "persistentvolumeclaim"], NONE, "Capacity in bytes of the volume";
    VOLUME_ABNORMAL = Gauge Alpha "kubelet_volume_stats_health_status_abnormal" ["namespace", "persistentvolumeclaim"], NONE, "Abnormal volume health status. The count is either 1 or 0. 1 indicates the volume is unhealthy, 0 indicates volume is healthy";
    VOLUME_INODES = Gauge Alpha "kubelet_volume_stats_inodes" ["namespace", "persistentvolumeclaim"], NONE, "Maximum number of inodes in the volume";
    VOLUME_INODES_FREE = Gauge Alpha "kubelet_volume_stats_inodes_free" ["namespace", "persistentvolumeclaim"], NONE, "Number of free inodes in the volume";
    VOLUME_INODES_USED = Gauge Alpha "kubelet_volume_stats_inodes_used" ["namespace", "persistentvolumeclaim"], NONE, "Number of used inodes in the volume";
    VOLUME_USED = Gauge Alpha "kubelet_volume_stats_used_bytes" ["namespace", "persistentvolumeclaim"], NONE, "Number of used bytes in the volume";
    VOLUME_LOOKS = Histogram Alpha "kubelet_volume_metric_collection_duration_seconds" ["metric_source"], DEFAULT, "Duration in seconds to calculate volume stats";
    CSI_CALLS = Histogram Alpha "csi_operations_seconds" ["driver_name", "grpc_status_code", "method_name", "migrated"], STORAGE, "Container Storage Interface operation duration with gRPC error code status total";
    PLUGINS = Gauge Alpha "plugin_manager_total_plugins" ["socket_path", "state"], NONE, "Number of plugins in Plugin Manager";
    LOG_BYTES = Gauge Alpha "kubelet_container_log_filesystem_used_bytes" ["container", "namespace", "pod", "uid"], NONE, "Bytes used by the container's logs on the filesystem.";
    RECONSTRUCTED_VOLUMES = Counter Alpha "reconstruct_volume_operations_total" [], NONE, "The number of volumes that were attempted to be reconstructed from the operating system during kubelet startup. This includes both successful and failed reconstruction.";
    RECONSTRUCTION_ERRORS = Counter Alpha "reconstruct_volume_operations_errors_total" [], NONE, "The number of volumes that failed reconstruction from the operating system during kubelet startup.";
    FORCE_CLEANED_VOLUMES = Counter Alpha "force_cleaned_failed_volume_operations_total" [], NONE, "The number of volumes that were force cleaned after their reconstruction failed during kubelet startup. This includes both successful and failed cleanups.";
    FORCE_CLEAN_ERRORS = Counter Alpha "force_cleaned_failed_volume_operation_errors_total" [], NONE, "The number of volumes that failed force cleanup after their reconstruction failed during kubelet startup.";
    VOLUMES = Gauge Alpha "volume_manager_total_volumes" ["plugin_name", "state"], NONE, "Number of volumes in Volume Manager";
    REST_REQUESTS = Counter Alpha "rest_client_requests_total" ["code", "host", "method"], NONE, "Number of HTTP requests, partitioned by status code, method, and host.";
    REST_SECONDS = Histogram Alpha "rest_client_request_duration_seconds" ["host", "verb"], REST, "Request latency in seconds. Broken down by verb, and host.";
    REST_LIMITER_SECONDS = Histogram Alpha "rest_client_rate_limiter_duration_seconds" ["host", "verb"], REST, "Client side rate limiter latency in seconds. Broken down by verb, and host.";
    REST_REQUEST_BYTES = Histogram Alpha "rest_client_request_size_bytes" ["host", "verb"], REST_BYTES, "Request size in bytes. Broken down by verb and host.";
    REST_RESPONSE_BYTES = Histogram Alpha "rest_client_response_size_bytes" ["host", "verb"], REST_BYTES, "Response size in bytes. Broken down by verb and host.";
    REST_RETRIES = Counter Alpha "rest_client_request_retries_total" ["code", "host", "verb"], NONE, "Number of request retries, partitioned by status code, verb, and host.";
    REST_NAMES_SECONDS = Histogram Alpha "rest_client_dns_resolution_duration_seconds" ["host"], NAMES, "DNS resolver latency in seconds. Broken down by host.";
    REST_TRANSPORTS = Gauge Alpha "rest_client_transport_cache_entries" [], NONE, "Number of transport entries in the internal cache.";
    REST_TRANSPORT_CALLS = Counter Alpha "rest_client_transport_create_calls_total" ["result"], NONE, "Number of calls to get a new transport, partitioned by the result of the operation hit: obtained from the cache, miss: created and added to the cache, miss-gc: recreated and added back to the cache after being garbage collected, uncacheable: created and not cached";
    REST_TRANSPORTS_DROPPED = Counter Alpha "rest_client_transport_cache_gc_calls_total" ["result"], NONE, "Number of times a GC cleanup attempts to delete a transport cache entry, partitioned by the result: deleted, skipped";
    REST_ROTATIONS_ENDED = Counter Alpha "rest_client_transport_cert_rotation_gc_calls_total" [], NONE, "Number of times a cert rotation goroutine cancel func is called via GC cleanup of the associated transport";
    REST_PLUGIN_CALLS = Counter Alpha "rest_client_exec_plugin_call_total" ["call_status", "code"], NONE, "Number of calls to an exec plugin, partitioned by the type of event encountered (no_error, plugin_execution_error, plugin_not_found_error, client_internal_error) and an optional exit code. The exit code will be set to 0 if and only if the plugin call was successful.";
    REST_PLUGIN_ROTATION = Histogram Alpha "rest_client_exec_plugin_certificate_rotation_age" [], PLUGIN_ROTATION, "Histogram of the number of seconds the last auth exec plugin client certificate lived before being rotated. If auth exec plugin client certificates are unused, histogram will contain no data.";
    CLIENT_CERTIFICATES = Histogram Alpha "apiserver_client_certificate_expiration_seconds" [], CERTIFICATE, "Distribution of the remaining lifetime on the certificate used to authenticate a request.";
    RUNTIME_LOSING_SUPPORT = Gauge Alpha "kubelet_cri_losing_support" ["version"], NONE, "the Kubernetes version that the currently running CRI implementation will lose support on if not upgraded.";
    CLIENT_RENEWAL_ERRORS = Counter Alpha "kubelet_certificate_manager_client_expiration_renew_errors" [], NONE, "Counter of certificate renewal errors.";
    SERVER_RENEWAL_ERRORS = Counter Alpha "kubelet_server_expiration_renew_errors" [], NONE, "Counter of certificate renewal errors.";
    SERVER_ROTATION = Histogram Alpha "kubelet_certificate_manager_server_rotation_seconds" [], ROTATION, "Histogram of the number of seconds the previous certificate lived before being rotated.";
    TOKEN_CACHE_ACTIVE = Gauge Alpha "authentication_token_cache_active_fetch_count" ["status"], NONE, "";
    TOKEN_CACHE_FETCHES = Counter Alpha "authentication_token_cache_fetch_total" ["status"], NONE, "";
    TOKEN_CACHE_SECONDS = Histogram Alpha "authentication_token_cache_request_duration_seconds" ["status"], DEFAULT, "";
    TOKEN_CACHE_REQUESTS = Counter Alpha "authentication_token_cache_request_total" ["status"], NONE, "";
    AUTHN_REQUESTS = Counter Alpha "apiserver_delegated_authn_request_total" ["code"], NONE, "Number of HTTP requests partitioned by status code.";
    AUTHN_SECONDS = Histogram Alpha "apiserver_delegated_authn_request_duration_seconds" ["code"], AUTH, "Request latency in seconds. Broken down by status code.";
    AUTHZ_REQUESTS = Counter Alpha "apiserver_delegated_authz_request_total" ["code"], NONE, "Number of HTTP requests partitioned by status code.";
    AUTHZ_SECONDS = Histogram Alpha "apiserver_delegated_authz_request_duration_seconds" ["code"], AUTH, "Request latency in seconds. Broken down by status code.";
}

families! { PROBES:
    PROBE_RESULTS = Counter Beta "prober_probe_total" ["container", "namespace", "pod", "pod_uid", "probe_type", "result"], NONE, "Cumulative number of a liveness, readiness or startup probe for a container by result.";
    PROBE_SECONDS = Histogram Alpha "prober_probe_duration_seconds" ["container", "namespace", "pod", "probe_type"], DEFAULT, "Duration in seconds for a probe response.";
}

families! { SLIS:
    HEALTH = Gauge Stable "kubernetes_healthcheck" ["name", "type"], NONE, "This metric records the result of a single healthcheck.";
    HEALTH_CHECKS = Counter Stable "kubernetes_healthchecks_total" ["name", "status", "type"], NONE, "This metric records the results of all healthcheck.";
    OWN_HEALTH = Gauge Alpha "orchestrator_healthcheck" ["name", "type"], NONE, "Result of a health check of this agent.";
    OWN_HEALTH_CHECKS = Counter Alpha "orchestrator_healthchecks_total" ["name", "status", "type"], NONE, "Results of all health checks of this agent.";
}

/// Of something that an agent may be configured without: they show from their first use on, as those with labels do.
pub(super) static FROM_FIRST_USE: [&Family; 5] =
    [&CLIENT_RENEWAL_ERRORS, &SERVER_RENEWAL_ERRORS, &SERVER_ROTATION, &MEMORY_MIN, &MEMORY_LOW];
