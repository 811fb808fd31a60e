//! The command line.

use std::net::IpAddr;
use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};

use crate::admin::{BackupArgs, CheckArgs, RestoreArgs, TokenArgs};

/// A compact Kubernetes API server with its controllers and scheduler.
#[derive(Debug, Parser)]
#[command(name = "apiserver-lite", version, disable_help_subcommand = true)]
pub struct Cli {
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Runs the server.
    Serve(Box<ServeArgs>),
    /// Writes a kubeconfig with a client certificate of its own.
    Kubeconfig(KubeconfigArgs),
    Backup(BackupArgs),
    Restore(RestoreArgs),
    Check(CheckArgs),
    Token(TokenArgs),
}

/// Writes a kubeconfig with a client certificate of its own.
#[derive(Debug, Clone, Args)]
pub struct KubeconfigArgs {
    /// Folder of the server's state and keys.
    #[arg(long, default_value = "/var/lib/apiserver-lite")]
    pub data_dir: PathBuf,
    /// Folder of the keys, when not DATA_DIR/pki.
    #[arg(long)]
    pub cert_dir: Option<PathBuf>,
    /// Where clients find the server.
    #[arg(long, default_value = "https://127.0.0.1:6443")]
    pub server: String,
    /// Name of the user, such as system:node:NAME.
    #[arg(long)]
    pub user: String,
    /// Group of the user, such as system:nodes; may be given twice.
    #[arg(long = "group")]
    pub groups: Vec<String>,
    /// Days until the certificate expires.
    #[arg(long, default_value_t = 365, value_parser = clap::value_parser!(i64).range(1..=3650))]
    pub days: i64,
    /// File to write; standard output when missing.
    #[arg(long)]
    pub out: Option<PathBuf>,
}

/// Settings of `serve`, as given.
#[derive(Debug, Clone, Args)]
#[command(args_override_self = true)]
pub struct ServeArgs {
    /// Folder of the state and the keys.
    #[arg(long, default_value = "/var/lib/apiserver-lite")]
    pub data_dir: PathBuf,
    /// Settings file, under the flags' names: TOML with drop-ins in FILE.d, or YAML or JSON. When missing,
    /// /etc/orchestrator-lite/apiserver-lite.toml if there is one.
    #[arg(long)]
    pub config: Option<PathBuf>,
    /// Only check the settings and the files they name: say everything that is wrong, or that nothing is.
    #[arg(long)]
    pub check: bool,
    /// Address to listen on.
    #[arg(long, default_value = "0.0.0.0")]
    pub bind_address: IpAddr,
    /// Port to listen on.
    #[arg(long, default_value_t = 6443, value_parser = clap::value_parser!(u16).range(1..))]
    pub secure_port: u16,
    /// Address told to the members of the cluster; the bind address when missing.
    #[arg(long)]
    pub advertise_address: Option<IpAddr>,

    /// Folder of keys and certificates, when not DATA_DIR/pki.
    #[arg(long)]
    pub cert_dir: Option<PathBuf>,
    /// Serving certificate (PEM, with intermediates); made at the first start when missing.
    #[arg(long)]
    pub tls_cert_file: Option<PathBuf>,
    /// Key of the serving certificate.
    #[arg(long)]
    pub tls_private_key_file: Option<PathBuf>,
    /// More names and addresses for the serving certificate that is made here.
    #[arg(long, value_delimiter = ',')]
    pub tls_san: Vec<String>,
    /// Oldest TLS version spoken: VersionTLS12 or VersionTLS13.
    #[arg(long, default_value = "VersionTLS12", value_parser = ["VersionTLS12", "VersionTLS13"])]
    pub tls_min_version: String,

    /// Authorities of client certificates (PEM); the cluster's own is used when missing.
    #[arg(long)]
    pub client_ca_file: Option<PathBuf>,
    /// Static tokens: lines of token,user,uid,"group1,group2".
    #[arg(long)]
    pub token_auth_file: Option<PathBuf>,
    /// Accept tokens of bootstrap.kubernetes.io/token secrets in kube-system.
    #[arg(long, default_value_t = true, num_args = 0..=1, default_missing_value = "true", require_equals = true, action = clap::ArgAction::Set)]
    pub enable_bootstrap_token_auth: bool,
    /// Serve requests without credentials as system:anonymous.
    #[arg(long, default_value_t = true, num_args = 0..=1, default_missing_value = "true", require_equals = true, action = clap::ArgAction::Set)]
    pub anonymous_auth: bool,
    /// Issuer of service account tokens; the first signs, all are accepted.
    #[arg(long, default_value = "https://kubernetes.default.svc.cluster.local")]
    pub service_account_issuer: Vec<String>,
    /// Keys that verify service account tokens (PEM); may be given several times.
    #[arg(long)]
    pub service_account_key_file: Vec<PathBuf>,
    /// Key that signs service account tokens (PEM).
    #[arg(long)]
    pub service_account_signing_key_file: Option<PathBuf>,
    /// URL of the key set in the OpenID discovery document.
    #[arg(long)]
    pub service_account_jwks_uri: Option<String>,
    /// Longest life of a service account token, such as 24h.
    #[arg(long)]
    pub service_account_max_token_expiration: Option<String>,
    /// Give tokens of pods a year, so that old clients that do not reload them go on.
    #[arg(long, default_value_t = true, num_args = 0..=1, default_missing_value = "true", require_equals = true, action = clap::ArgAction::Set)]
    pub service_account_extend_token_expiration: bool,
    /// Audiences of the API; the first issuer when missing.
    #[arg(long, value_delimiter = ',')]
    pub api_audiences: Vec<String>,
    /// Authorities of the front proxy's certificates (PEM); the cluster's own front proxy authority when missing.
    #[arg(long)]
    pub requestheader_client_ca_file: Option<PathBuf>,
    /// Common names the front proxy may have; any when empty.
    #[arg(long, value_delimiter = ',', default_value = "front-proxy-client")]
    pub requestheader_allowed_names: Vec<String>,
    /// Headers with the user's name.
    #[arg(long, value_delimiter = ',', default_value = "X-Remote-User")]
    pub requestheader_username_headers: Vec<String>,
    /// Headers with the user's uid.
    #[arg(long, value_delimiter = ',', default_value = "X-Remote-Uid")]
    pub requestheader_uid_headers: Vec<String>,
    /// Headers with the user's groups.
    #[arg(long, value_delimiter = ',', default_value = "X-Remote-Group")]
    pub requestheader_group_headers: Vec<String>,
    /// Prefixes of headers with extra facts of the user.
    #[arg(long, value_delimiter = ',', default_value = "X-Remote-Extra-")]
    pub requestheader_extra_headers_prefix: Vec<String>,
    /// Certificate shown to the servers of aggregated APIs; made here when missing.
    #[arg(long)]
    pub proxy_client_cert_file: Option<PathBuf>,
    /// Key of the certificate shown to the servers of aggregated APIs.
    #[arg(long)]
    pub proxy_client_key_file: Option<PathBuf>,
    /// Issuers of tokens and who may be anonymous (AuthenticationConfiguration); read again when it changes.
    #[arg(long)]
    pub authentication_config: Option<PathBuf>,
    /// Server to ask who a token belongs to (kubeconfig).
    #[arg(long)]
    pub authentication_token_webhook_config_file: Option<PathBuf>,
    /// Version of authentication.k8s.io that this server speaks.
    #[arg(long, default_value = "v1beta1", value_parser = ["v1", "v1beta1"])]
    pub authentication_token_webhook_version: String,
    /// How long its answers are good.
    #[arg(long, default_value = "2m0s")]
    pub authentication_token_webhook_cache_ttl: String,
    /// Server to ask what users may do (kubeconfig), for the mode Webhook.
    #[arg(long)]
    pub authorization_webhook_config_file: Option<PathBuf>,
    /// Version of authorization.k8s.io that this server speaks.
    #[arg(long, default_value = "v1beta1", value_parser = ["v1", "v1beta1"])]
    pub authorization_webhook_version: String,
    /// How long it is good that something is allowed.
    #[arg(long, default_value = "5m0s")]
    pub authorization_webhook_cache_authorized_ttl: String,
    /// How long it is good that something is not allowed.
    #[arg(long, default_value = "30s")]
    pub authorization_webhook_cache_unauthorized_ttl: String,
    /// Who is asked what users may do, in place of the modes (AuthorizationConfiguration); read again when it changes.
    #[arg(long, conflicts_with = "authorization_webhook_config_file")]
    pub authorization_config: Option<PathBuf>,
    /// Ways to decide what users may do: Node, RBAC, Webhook, AlwaysAllow, AlwaysDeny.
    #[arg(long, value_delimiter = ',', default_value = "Node,RBAC")]
    pub authorization_mode: Vec<String>,

    /// Address ranges of services, at most one per family. Many tools and manifests assume addresses in the default.
    #[arg(long, value_delimiter = ',', default_value = "10.96.0.0/16")]
    pub service_cluster_ip_range: Vec<String>,
    /// Give every node a part of the pod addresses.
    #[arg(long, default_value_t = false, num_args = 0..=1, default_missing_value = "true", require_equals = true, action = clap::ArgAction::Set)]
    pub allocate_node_cidrs: bool,
    /// Address ranges of pods, at most one per family.
    #[arg(long, value_delimiter = ',')]
    pub cluster_cidr: Vec<String>,
    /// Prefix length of a node's part; 24 for IPv4 and 64 for IPv6 when missing.
    #[arg(long)]
    pub node_cidr_mask_size: Option<u8>,
    /// Prefix length of a node's IPv4 part.
    #[arg(long)]
    pub node_cidr_mask_size_ipv4: Option<u8>,
    /// Prefix length of a node's IPv6 part.
    #[arg(long)]
    pub node_cidr_mask_size_ipv6: Option<u8>,
    /// Port range of NodePort services.
    #[arg(long, default_value = "30000-32767")]
    pub service_node_port_range: String,
    /// Client certificate shown to kubelets.
    #[arg(long)]
    pub kubelet_client_certificate: Option<PathBuf>,
    /// Key of the client certificate shown to kubelets.
    #[arg(long)]
    pub kubelet_client_key: Option<PathBuf>,
    /// Authorities of kubelets' serving certificates; not checked when missing, as upstream.
    #[arg(long)]
    pub kubelet_certificate_authority: Option<PathBuf>,
    /// Kinds of node addresses to reach kubelets by, best first.
    #[arg(long, value_delimiter = ',', default_value = "Hostname,InternalDNS,InternalIP,ExternalDNS,ExternalIP")]
    pub kubelet_preferred_address_types: Vec<String>,

    /// Controllers to run: * for all, NAME or -NAME for one.
    #[arg(long, value_delimiter = ',', default_value = "*", allow_hyphen_values = true)]
    pub controllers: Vec<String>,
    /// Life of certificates that are asked for; requests may ask for less, down to ten minutes.
    #[arg(long, default_value = "8760h0m0s")]
    pub cluster_signing_duration: String,
    /// Run the scheduler.
    #[arg(long, default_value_t = true, num_args = 0..=1, default_missing_value = "true", require_equals = true, action = clap::ArgAction::Set)]
    pub scheduler: bool,
    /// Features to switch: NAME=true or NAME=false.
    #[arg(long, value_delimiter = ',')]
    pub feature_gates: Vec<String>,
    /// API versions to switch: GROUP/VERSION=true, api/all=false, ...
    #[arg(long, value_delimiter = ',')]
    pub runtime_config: Vec<String>,
    /// Admission plugins to add.
    #[arg(long, value_delimiter = ',')]
    pub enable_admission_plugins: Vec<String>,
    /// Admission plugins to leave out.
    #[arg(long, value_delimiter = ',')]
    pub disable_admission_plugins: Vec<String>,
    /// What admission plugins are told (apiserver.config.k8s.io/v1 AdmissionConfiguration): EventRateLimit,
    /// PodNodeSelector, PodTolerationRestriction.
    #[arg(long)]
    pub admission_control_config_file: Option<PathBuf>,

    /// What is written to the audit log of which request (audit.k8s.io/v1 Policy); nothing when missing.
    #[arg(long)]
    pub audit_policy_file: Option<PathBuf>,
    /// File of the audit log; - for standard output.
    #[arg(long)]
    pub audit_log_path: Option<PathBuf>,
    /// Days that old audit logs are kept; 0 for ever.
    #[arg(long, default_value_t = 0)]
    pub audit_log_maxage: u64,
    /// Old audit logs that are kept; 0 for all.
    #[arg(long, default_value_t = 0)]
    pub audit_log_maxbackup: usize,
    /// Megabytes at which an audit log is set aside; 0 for 100.
    #[arg(long, default_value_t = 0)]
    pub audit_log_maxsize: u64,

    /// Requests that change nothing, at the same time; 0 for no limit.
    #[arg(long, default_value_t = 400)]
    pub max_requests_inflight: usize,
    /// Requests that change something, at the same time; 0 for no limit.
    #[arg(long, default_value_t = 200)]
    pub max_mutating_requests_inflight: usize,
    /// Share both between clients by FlowSchemas and PriorityLevelConfigurations.
    #[arg(long, default_value_t = true, num_args = 0..=1, default_missing_value = "true", require_equals = true, action = clap::ArgAction::Set)]
    pub enable_priority_and_fairness: bool,
    /// Time for a request that does not stream.
    #[arg(long, default_value = "1m0s")]
    pub request_timeout: String,
    /// Shortest time of a watch that does not say, in seconds.
    #[arg(long, default_value_t = 1800)]
    pub min_request_timeout: u64,
    /// How long events are kept.
    #[arg(long, default_value = "1h0m0s")]
    pub event_ttl: String,
    /// How long what was is kept, for pages, watches and lists at older versions; 0 for as long as there is room.
    #[arg(long, default_value = "5m0s")]
    pub etcd_compaction_interval: String,

    /// Verbosity of the log, 0 to 10.
    #[arg(short = 'v', long = "v", default_value_t = 0, value_parser = clap::value_parser!(u8).range(0..=10))]
    pub verbosity: u8,
    /// text or json.
    #[arg(long, default_value = "text", value_parser = ["text", "json"])]
    pub logging_format: String,
}
