//! `apiserver-lite serve`: from checked settings to a running server and back to nothing.
//!
//! Order of start: keys, store, the objects every cluster has, the port, READY. Order of stop: the port closes, running
//! requests finish, the store writes what it took in.

mod check;
mod keys;

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use rustls::ServerConfig as TlsConfig;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls_pki_types::pem::PemObject as _;
use service::activation;
use service::notify::{self, NotifyState};
use tokio::net::{TcpListener, TcpSocket};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;

pub use check::check;

use crate::aggregate::Aggregated;
use crate::audit::{Auditor, Log, LogOptions, Policy};
use crate::auth::{
    self, AccessWebhook, Authenticator, AuthenticatorOptions, Authorizer, ClientAuthorities, FrontProxy, Impersonation,
    ProxyHeaders, TokenFile, TokenWebhook,
};
use crate::bootstrap::Authorities;
use crate::config::{Config, ServeArgs};
use crate::kubeconfig;
use crate::outgoing::Client;
use crate::pki::{self, Leaf, Pair, Pki};
use crate::proxy::{KubeletClient, KubeletFiles};
use crate::resource::Resources;
use crate::server::{ApiServer, FlowControl, Limits, ServerConfig, ServiceAllocator, Shutdown};
use crate::store::{OpenError, Store};

/// Why the server does not start, or stopped.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The operator has to correct a file named by a flag; nothing was changed yet.
    #[error("--{flag}: {reason}")]
    Setting { flag: &'static str, reason: String },
    #[error(transparent)]
    Pki(#[from] pki::PkiError),
    #[error("the store does not open: {0}")]
    Store(#[from] OpenError),
    #[error("cannot listen on {address}: {source}")]
    Listen { address: std::net::SocketAddr, source: std::io::Error },
    #[error("cannot make the objects that every cluster has: {0}")]
    Bootstrap(crate::status::ApiError),
    #[error("signals cannot be received: {0}")]
    Signals(std::io::Error),
    #[error(transparent)]
    Tls(#[from] rustls::Error),
}

/// Connections that may wait to be accepted.
const BACKLOG: u32 = 1024;

fn setting(flag: &'static str, reason: impl std::fmt::Display) -> ServeError {
    ServeError::Setting { flag, reason: reason.to_string() }
}

/// Runs a server until SIGTERM or SIGINT.
///
/// # Errors
/// When it cannot start.
pub async fn run(config: Config) -> Result<(), ServeError> {
    let mut terminate = signal(SignalKind::terminate()).map_err(ServeError::Signals)?;
    let mut interrupt = signal(SignalKind::interrupt()).map_err(ServeError::Signals)?;
    let config = Arc::new(config);
    let tokens = match &config.args.token_auth_file {
        Some(path) => TokenFile::load(path).map_err(|e| setting("token-auth-file", e))?,
        None => TokenFile::default(),
    };
    // The port and the store are had before anything is written: a start that fails must not change the files of the
    // server that has them.
    let address = config.address();
    let refused = |source| ServeError::Listen { address, source };
    let port = Port::of(address).map_err(refused)?;
    pki::private_folder(&config.args.data_dir)?;
    let store = Store::open_keeping(Some(config.args.data_dir.join("store")), config.past)?;
    let pki = ensure_pki(&config)?;
    let tls = Arc::new(ArcSwap::new(tls(&config, &pki)?));
    let server = assemble(&config, &pki, store, tokens)?;
    crate::status_pages::start();
    crate::watchdog::start(&server.store);
    tokio::spawn(server.quiet.clone().keep(server.store.subscribe_revision()));
    let authorities = authorities(&config, &pki)?;
    crate::bootstrap::ensure(&server, &config, &authorities).await.map_err(ServeError::Bootstrap)?;
    let kept = crate::bootstrap::keep(&server, &config, &authorities);
    if let Some(flow) = &server.flow {
        flow.read(&server.store);
        tokio::spawn(crate::flow::run(server.clone()));
    }
    // Kinds that clients defined are served from the first request on.
    let (ready, defined) = tokio::sync::oneshot::channel();
    tokio::spawn(crate::crd::run(server.clone(), ready));
    let _ = defined.await;
    // So are those of other servers, or the answer is that nobody is there.
    crate::aggregate::take_in(&server);
    tokio::spawn(crate::aggregate::run(server.clone()));
    tokio::spawn(auth::label_used(server.clone()));
    let others = config.controllers.enabled("service-cidr-controller");
    tokio::spawn(crate::service_ip::run(server.clone(), others));
    if config.gates.enabled("APIServerIdentity") {
        tokio::spawn(crate::bootstrap::identity::run(server.clone()));
    }
    crate::controllers::start(&server, &config, pki.authority()?);
    let listener = port.listen().map_err(refused)?;
    tracing::info!(%address, kubeconfig = %config.args.data_dir.join("admin.conf").display(), "serving");
    let (stop, stopped) = watch::channel(false);
    let serving = tokio::spawn(crate::http::serve(listener, tls.clone(), server.clone(), stopped));
    tokio::spawn(keys::Keys { config, pki, server, listener: tls, kept }.follow());
    notify::tell(&[NotifyState::Ready]);
    tokio::select! {
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
    tracing::info!("stopping");
    notify::tell(&[NotifyState::Stopping]);
    let _ = stop.send(true);
    if let Err(error) = serving.await {
        tracing::error!(%error, "the listener failed; this is a bug");
    }
    Ok(())
}

/// The server as the configuration says, with nothing running yet.
fn assemble(config: &Config, pki: &Pki, store: Store, tokens: TokenFile) -> Result<Arc<ApiServer>, ServeError> {
    let advertised = SocketAddr::new(config.advertised(), config.args.secure_port).to_string();
    let structured = structured(config)?;
    Ok(Arc::new(ApiServer {
        authenticator: Authenticator::new(AuthenticatorOptions {
            anonymous: config.args.anonymous_auth,
            tokens,
            bootstrap_tokens: config.args.enable_bootstrap_token_auth,
            accounts: Some(accounts(config, pki, store.clone())?),
            clients: Some(clients(config, pki)?),
            certificate_uids: config.gates.enabled("AllowParsingUserUIDFromCertAuth"),
            front_proxy: Some(front_proxy(config, pki)?),
            webhook: token_webhook(config)?,
            structured: structured.clone(),
        }),
        authorizer: Authorizer::new(config.authorization.clone(), store.clone(), &config.gates)
            .with_webhook(access_webhook(config)?)
            .with_chain(chain(config)?),
        impersonation: Impersonation::new(config.gates.enabled("ConstrainedImpersonation")),
        admission: crate::config::admission(&config.args).map_err(|e| setting("enable-admission-plugins", e))?,
        turns: crate::write::Turns::default(),
        gated: crate::write::Gated::new(&config.gates),
        limits: Limits::new(
            config.args.max_requests_inflight,
            config.args.max_mutating_requests_inflight,
            config.request_timeout,
        ),
        flow: flow(config, &store),
        shutdown: Shutdown::default(),
        quiet: Arc::default(),
        kubelets: kubelets(config, pki)?,
        resources: Resources::chosen(&config.runtime, &config.gates),
        services: ServiceAllocator::new(config.service_cidrs.clone(), config.node_ports).by(rules(config)),
        config: ServerConfig {
            keys_url: match &config.args.service_account_jwks_uri {
                Some(url) => url.clone(),
                None => format!("https://{advertised}{}", crate::openid::KEYS),
            },
            advertised,
            cbor: config.gates.enabled("CBORServingAndStorage"),
            sharded: config.gates.enabled("ShardedListAndWatch"),
            merges_spread: ["MatchLabelKeysInPodTopologySpread", "MatchLabelKeysInPodTopologySpreadSelectorMerge"]
                .iter()
                .all(|gate| config.gates.enabled(gate)),
            granular_claims: config.gates.enabled("DRAResourceClaimGranularStatusAuthorization"),
            resizes_pods: config.gates.enabled("InPlacePodLevelResourcesVerticalScaling"),
            compresses: config.gates.enabled("APIResponseCompression"),
            nodes_declare_features: config.gates.enabled("NodeDeclaredFeatures"),
            rules: rules(config),
            connects_by_create: config.gates.enabled("AuthorizePodWebsocketUpgradeCreatePermission"),
            checks_account_uid: config.gates.enabled("TokenRequestServiceAccountUIDValidation"),
            longest_token: config.longest_token,
            extends_tokens: config.args.service_account_extend_token_expiration,
            restricts_audiences: config.gates.enabled("ServiceAccountNodeAudienceRestriction"),
            clears_nomination: config.gates.enabled("ClearingNominatedNodeNameAfterBinding"),
            splits_logs: config.gates.enabled("PodLogsQuerySplitStreams"),
            min_watch: Duration::from_secs(config.args.min_request_timeout),
            flags: vec![
                ("anonymous-auth", config.args.anonymous_auth.to_string()),
                ("authorization-mode", config.args.authorization_mode.join(",")),
                ("bind-address", config.args.bind_address.to_string()),
                ("data-dir", config.args.data_dir.display().to_string()),
                ("secure-port", config.args.secure_port.to_string()),
                ("service-cluster-ip-range", config.args.service_cluster_ip_range.join(",")),
                ("service-node-port-range", config.args.service_node_port_range.clone()),
            ],
        },
        metrics: crate::metrics::Metrics::default(),
        audit: auditor(config)?,
        aggregated: aggregated(config, pki),
        components: Default::default(),
        documents: Default::default(),
        store,
    }))
}

/// What feature gates make of the rules for objects.
fn rules(config: &Config) -> crate::field_error::Rules {
    crate::field_error::Rules {
        scales_to_zero: config.gates.enabled("HPAScaleToZero"),
        compares_tolerations: config.gates.enabled("TaintTolerationComparisonOperators"),
        spells_addresses_freely: !config.gates.enabled("StrictIPCIDRValidation"),
    }
}

/// How clients share the server; None where nothing limits them, or only their number.
fn flow(config: &Config, store: &Store) -> Option<FlowControl> {
    let seats = config.args.max_requests_inflight.saturating_add(config.args.max_mutating_requests_inflight);
    let seats = u32::try_from(seats).unwrap_or(u32::MAX);
    let wanted = config.args.enable_priority_and_fairness && seats > 0;
    wanted.then(|| FlowControl::new(store, seats, config.request_timeout))
}

/// The port, not yet open: a connection is refused until everything that a request needs is there.
enum Port {
    Own(TcpSocket),
    /// Made by systemd: whose connections wait from the boot on, and while one server follows another.
    Handed(std::net::TcpListener),
}

impl Port {
    fn of(address: SocketAddr) -> std::io::Result<Self> {
        if let Some(handed) = activation::tcp(address) {
            return Ok(Port::Handed(handed));
        }
        let socket = if address.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
        // As the standard library does it: connections of the server before this one may linger.
        socket.set_reuseaddr(true)?;
        socket.bind(address)?;
        Ok(Port::Own(socket))
    }

    fn listen(self) -> std::io::Result<TcpListener> {
        match self {
            Port::Own(socket) => socket.listen(BACKLOG),
            Port::Handed(listener) => TcpListener::from_std(listener),
        }
    }
}

/// Makes or renews the cluster's keys, and the administrator's kubeconfig.
fn ensure_pki(config: &Config) -> Result<Pki, ServeError> {
    let service = config.service_cidrs.first().map_or(std::net::IpAddr::from([10, 0, 0, 1]), |c| c.address(1));
    let (names, addresses) =
        pki::serving_names(service, config.args.bind_address, Some(config.advertised()), &config.args.tls_san);
    let pki = Pki::ensure(&config.pki_folder(), &names, &addresses)?;
    let admin = Leaf::client("kubernetes-admin", &["system:masters"]);
    kubeconfig::ensure(&config.args.data_dir.join("admin.conf"), &config.local_url(), &pki.authority()?, &admin)?;
    Ok(pki)
}

/// Who signs and checks service account tokens.
fn accounts(config: &Config, pki: &Pki, store: Store) -> Result<auth::ServiceAccountTokens, ServeError> {
    let own = pki.service_account_key();
    let signing = config.args.service_account_signing_key_file.as_ref().unwrap_or(&own);
    let keys = auth::Keys::load(signing, &config.args.service_account_key_file)
        .map_err(|e| setting("service-account-signing-key-file", e))?;
    let (issuers, audiences) = (config.issuers.clone(), config.audiences.clone());
    Ok(auth::ServiceAccountTokens { keys, issuers, audiences, store, used: auth::SecretUse::default() })
}

/// Whose client certificates name users.
fn clients(config: &Config, pki: &Pki) -> Result<ClientAuthorities, ServeError> {
    let path = client_authority(config, pki);
    let wrong = |e| setting("client-ca-file", format!("{}: {e}", path.display()));
    ClientAuthorities::new(&certificates("client-ca-file", &path)?).map_err(wrong)
}

fn client_authority(config: &Config, pki: &Pki) -> PathBuf {
    config.args.client_ca_file.clone().unwrap_or(pki.pair("ca").certificate)
}

fn proxy_authority(config: &Config, pki: &Pki) -> PathBuf {
    config.args.requestheader_client_ca_file.clone().unwrap_or(pki.pair("front-proxy-ca").certificate)
}

fn authorities(config: &Config, pki: &Pki) -> Result<Authorities, ServeError> {
    let read = |flag, path: PathBuf| {
        std::fs::read_to_string(&path).map_err(|e| setting(flag, format!("{}: {e}", path.display())))
    };
    Ok(Authorities {
        clients: read("client-ca-file", client_authority(config, pki))?,
        front_proxy: read("requestheader-client-ca-file", proxy_authority(config, pki))?,
        serving: match config.args.tls_cert_file {
            None => Some(pki.authority()?.pem().to_owned()),
            Some(_) => None,
        },
    })
}

/// What the servers of aggregated APIs are shown.
fn aggregated(config: &Config, pki: &Pki) -> Aggregated {
    let own = pki.pair("front-proxy-client");
    let (certificate, key) = (&config.args.proxy_client_cert_file, &config.args.proxy_client_key_file);
    Aggregated::new(certificate.clone().unwrap_or(own.certificate), key.clone().unwrap_or(own.key))
}

/// Which proxies may name users.
fn front_proxy(config: &Config, pki: &Pki) -> Result<FrontProxy, ServeError> {
    let (args, flag) = (&config.args, "requestheader-client-ca-file");
    let path = proxy_authority(config, pki);
    let authorities = ClientAuthorities::new(&certificates(flag, &path)?);
    Ok(FrontProxy {
        authorities: authorities.map_err(|e| setting(flag, format!("{}: {e}", path.display())))?,
        allowed_names: args.requestheader_allowed_names.iter().filter(|n| !n.is_empty()).cloned().collect(),
        headers: proxy_headers(args)?,
    })
}

/// Which headers such proxies name them in.
fn proxy_headers(args: &ServeArgs) -> Result<ProxyHeaders, ServeError> {
    let headers = ProxyHeaders::new(
        &args.requestheader_username_headers,
        &args.requestheader_uid_headers,
        &args.requestheader_group_headers,
        &args.requestheader_extra_headers_prefix,
    );
    headers.map_err(|e| setting("requestheader-username-headers", e))
}

/// The audit log, when there are both a policy and a place for it.
fn auditor(config: &Config) -> Result<Option<Auditor>, ServeError> {
    let args = &config.args;
    let (Some(policy), Some(path)) = (&args.audit_policy_file, &args.audit_log_path) else { return Ok(None) };
    let policy = Policy::load(policy).map_err(|e| setting("audit-policy-file", e))?;
    let options = LogOptions {
        path: path.clone(),
        max_age_days: args.audit_log_maxage,
        max_backups: args.audit_log_maxbackup,
        max_size_megabytes: args.audit_log_maxsize,
    };
    let log = Log::open(options).map_err(|e| setting("audit-log-path", format!("{}: {e}", path.display())))?;
    Ok(Some(Auditor::new(policy, log)))
}

/// Issuers of tokens, and who may be anonymous; the file is followed from now on.
fn structured(config: &Config) -> Result<Option<Arc<auth::Structured>>, ServeError> {
    let Some(path) = &config.args.authentication_config else { return Ok(None) };
    let file = auth::Structured::load(path, &config.issuers).map_err(|e| setting("authentication-config", e))?;
    let file = Arc::new(file);
    let followed = file.clone();
    tokio::spawn(async move { followed.follow().await });
    Ok(Some(file))
}

/// Who is asked what users may do; the file is followed from now on.
fn chain(config: &Config) -> Result<Option<Arc<auth::Chain>>, ServeError> {
    let Some(path) = &config.args.authorization_config else { return Ok(None) };
    let chain = Arc::new(auth::Chain::load(path).map_err(|e| setting("authorization-config", e))?);
    let followed = chain.clone();
    tokio::spawn(async move { followed.follow().await });
    Ok(Some(chain))
}

fn token_webhook(config: &Config) -> Result<Option<TokenWebhook>, ServeError> {
    let Some(path) = &config.args.authentication_token_webhook_config_file else { return Ok(None) };
    let client = Client::from_kubeconfig(path).map_err(|e| setting("authentication-token-webhook-config-file", e))?;
    let version = &config.args.authentication_token_webhook_version;
    Ok(Some(TokenWebhook::new(client, version, config.webhook_ttls[0], config.audiences.clone())))
}

fn access_webhook(config: &Config) -> Result<Option<AccessWebhook>, ServeError> {
    let Some(path) = &config.args.authorization_webhook_config_file else { return Ok(None) };
    let client = Client::from_kubeconfig(path).map_err(|e| setting("authorization-webhook-config-file", e))?;
    let [_, allowed, refused] = config.webhook_ttls;
    Ok(Some(AccessWebhook::new(client, &config.args.authorization_webhook_version, allowed, refused)))
}

/// Our side of connections to kubelets.
fn kubelets(config: &Config, pki: &Pki) -> Result<KubeletClient, ServeError> {
    KubeletClient::new(kubelet_files(config, pki), config.args.kubelet_preferred_address_types.clone())
        .map_err(|e| setting("kubelet-client-certificate", e))
}

fn kubelet_files(config: &Config, pki: &Pki) -> KubeletFiles {
    let (own, args) = (pki.pair("apiserver-kubelet-client"), &config.args);
    KubeletFiles {
        certificate: args.kubelet_client_certificate.clone().unwrap_or(own.certificate),
        key: args.kubelet_client_key.clone().unwrap_or(own.key),
        authority: args.kubelet_certificate_authority.clone(),
    }
}

/// What the server shows its clients.
fn serving_pair(config: &Config, pki: &Pki) -> Pair {
    let own = pki.pair("apiserver");
    Pair {
        certificate: config.args.tls_cert_file.clone().unwrap_or(own.certificate),
        key: config.args.tls_private_key_file.clone().unwrap_or(own.key),
    }
}

/// The listener's side of TLS: our certificate, and whose certificates we take for users.
fn tls(config: &Config, pki: &Pki) -> Result<Arc<TlsConfig>, ServeError> {
    let Pair { certificate, key } = serving_pair(config, pki);
    let chain = certificates("tls-cert-file", &certificate)?;
    let key = PrivateKeyDer::from_pem_file(&key)
        .map_err(|e| setting("tls-private-key-file", format!("{}: {e}", key.display())))?;
    // What each certificate is good for is looked at afterwards.
    let mut authorities = certificates("client-ca-file", &client_authority(config, pki))?;
    authorities.extend(certificates("requestheader-client-ca-file", &proxy_authority(config, pki))?);
    let verifier = auth::any_client(&authorities).map_err(|e| setting("client-ca-file", e))?;
    let versions: &[_] = match config.args.tls_min_version.as_str() {
        "VersionTLS13" => &[&rustls::version::TLS13],
        _ => &[&rustls::version::TLS13, &rustls::version::TLS12],
    };
    let provider = Arc::new(crate::http::provider());
    let mut tls = TlsConfig::builder_with_provider(provider)
        .with_protocol_versions(versions)?
        .with_client_cert_verifier(verifier)
        .with_single_cert(chain, key)
        .map_err(|e| setting("tls-cert-file", e))?;
    tls.ignore_client_order = true;
    tls.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(Arc::new(tls))
}

/// Every certificate of a PEM file, at least one.
fn certificates(flag: &'static str, path: &Path) -> Result<Vec<CertificateDer<'static>>, ServeError> {
    let wrong = |reason: String| setting(flag, format!("{}: {reason}", path.display()));
    let all: Vec<_> = CertificateDer::pem_file_iter(path)
        .map_err(|e| wrong(e.to_string()))?
        .collect::<Result<_, _>>()
        .map_err(|e| wrong(e.to_string()))?;
    if all.is_empty() { Err(wrong("holds no certificate".into())) } else { Ok(all) }
}

/// Writes a kubeconfig for a user, or returns its text when there is no file to write.
///
/// # Errors
/// When there are no keys yet, or the file cannot be written.
pub fn write_kubeconfig(args: &crate::config::KubeconfigArgs) -> Result<Option<String>, pki::PkiError> {
    let folder: PathBuf = args.cert_dir.clone().unwrap_or_else(|| args.data_dir.join("pki"));
    let authority = pki::Authority::existing(&folder)?;
    let groups: Vec<&str> = args.groups.iter().map(String::as_str).collect();
    let leaf = Leaf { life: time::Duration::days(args.days), ..Leaf::client(&args.user, &groups) };
    let (certificate, key) = authority.issue(&leaf)?;
    let text = kubeconfig::Kubeconfig {
        server: &args.server,
        authority: authority.pem(),
        certificate: &certificate,
        key: &key,
        user: &args.user,
    }
    .to_text();
    match &args.out {
        Some(path) => pki::write_private(path, &text).map(|()| None),
        None => Ok(Some(text)),
    }
}

#[cfg(test)]
pub mod testing {
    use super::*;

    /// A server with nothing in its memory but a namespace `default`; it listens nowhere and nothing else runs.
    pub async fn server() -> Arc<ApiServer> {
        use clap::Parser as _;

        let folder = std::env::temp_dir().join(format!("server-{}", crate::random::uuid()));
        let place = folder.to_string_lossy().into_owned();
        let given = ["apiserver-lite", "serve", "--data-dir", &place, "--disable-admission-plugins", "ServiceAccount"];
        let crate::config::Command::Serve(args) = crate::config::Cli::parse_from(given).command else {
            panic!("it serves");
        };
        let config = Config::load(*args).expect("the flags are right");
        pki::private_folder(&folder).expect("a folder");
        let pki = ensure_pki(&config).expect("keys");
        let server =
            assemble(&config, &pki, Store::open(None).expect("memory opens"), TokenFile::default()).expect("a server");
        std::fs::remove_dir_all(&folder).expect("the folder goes");
        let client = crate::client::Client::new(server.clone(), "system:apiserver", "test");
        let namespace = serde_json::json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "default"}});
        client.create("namespaces", "", namespace).await.expect("a namespace");
        server
    }
}
