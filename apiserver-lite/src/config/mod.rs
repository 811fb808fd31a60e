//! The command line, the configuration file, and what both come to.
//!
//! Flags keep kube-apiserver's names where they mean the same. Files hold the same settings under the flags' names
//! (`secure-port` or `securePort`): TOML with drop-ins, or what `--config` names; the command line wins. Everything is
//! checked before a port opens: [`Config::load`] either returns settings that fit together or says what is wrong.

mod controllers;
mod file;
mod flags;
mod gates;
mod network;
mod runtime;

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

pub use controllers::Controllers;
pub use flags::{Cli, Command, KubeconfigArgs, ServeArgs};
pub use gates::FeatureGates;
pub use network::{Cidr, NodeCidrs, PortRange};
pub use runtime::RuntimeConfig;
pub use service::settings::SettingsError;

use crate::admission::{Admission, Settings};

/// What is wrong with the settings. The operator has to correct them.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    #[error("--{flag}: {reason}")]
    Flag { flag: &'static str, reason: String },
    #[error("--config {}: {reason}", path.display())]
    File { path: PathBuf, reason: String },
    /// Everything that is wrong in the TOML files.
    #[error("{}", lines(.0))]
    Settings(Vec<SettingsError>),
    #[error("{0}")]
    CommandLine(#[from] clap::Error),
}

fn lines(errors: &[SettingsError]) -> String {
    errors.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n")
}

pub(crate) fn bad(flag: &'static str, reason: impl std::fmt::Display) -> ConfigError {
    ConfigError::Flag { flag, reason: reason.to_string() }
}

/// Ways to decide what a user may do, in the order they are asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AuthorizationMode {
    Node,
    Rbac,
    AlwaysAllow,
    AlwaysDeny,
    Webhook,
}

/// Checked settings of a server.
#[derive(Debug, Clone)]
pub struct Config {
    pub args: ServeArgs,
    pub service_cidrs: Vec<Cidr>,
    pub node_cidrs: NodeCidrs,
    pub node_ports: PortRange,
    pub authorization: Vec<AuthorizationMode>,
    pub controllers: Controllers,
    pub gates: FeatureGates,
    pub runtime: RuntimeConfig,
    pub event_ttl: Duration,
    /// How long the past is kept; zero for as long as there is room.
    pub past: Duration,
    /// Life of certificates that the signing controller gives.
    pub signing_duration: Duration,
    /// How long answers of the webhooks are good: whose token, allowed, refused.
    pub webhook_ttls: [Duration; 3],
    pub request_timeout: Duration,
    /// Seconds that a token of a service account is good for at most.
    pub longest_token: Option<i64>,
    pub issuers: Vec<String>,
    pub audiences: Vec<String>,
}

impl Config {
    /// Reads the configuration file, if one is named, and checks everything.
    ///
    /// # Errors
    /// The first setting that is wrong.
    pub fn load(args: ServeArgs) -> Result<Self, ConfigError> {
        let args = file::load(args)?;
        if args.tls_cert_file.is_some() != args.tls_private_key_file.is_some() {
            return Err(bad("tls-cert-file", "needs --tls-private-key-file, and the other way round"));
        }
        if args.proxy_client_cert_file.is_some() != args.proxy_client_key_file.is_some() {
            return Err(bad("proxy-client-cert-file", "needs --proxy-client-key-file, and the other way round"));
        }
        if args.kubelet_client_certificate.is_some() != args.kubelet_client_key.is_some() {
            return Err(bad("kubelet-client-certificate", "needs --kubelet-client-key, and the other way round"));
        }
        let service_cidrs = network::cidrs(&args.service_cluster_ip_range)?;
        let node_cidrs = NodeCidrs::of(&args)?;
        let node_ports = args.service_node_port_range.parse().map_err(|e: String| bad("service-node-port-range", e))?;
        let authorization = authorization(&args.authorization_mode)?;
        if authorization.contains(&AuthorizationMode::Webhook) != args.authorization_webhook_config_file.is_some() {
            return Err(bad(
                "authorization-webhook-config-file",
                "is for the authorization mode Webhook, which needs it",
            ));
        }
        let webhook_ttls = [
            duration_or_zero("authentication-token-webhook-cache-ttl", &args.authentication_token_webhook_cache_ttl)?,
            duration_or_zero(
                "authorization-webhook-cache-authorized-ttl",
                &args.authorization_webhook_cache_authorized_ttl,
            )?,
            duration_or_zero(
                "authorization-webhook-cache-unauthorized-ttl",
                &args.authorization_webhook_cache_unauthorized_ttl,
            )?,
        ];
        let controllers = Controllers::parse(&args.controllers)?;
        let gates = FeatureGates::parse(&args.feature_gates)?;
        admission(&args)?;
        let event_ttl = duration("event-ttl", &args.event_ttl)?;
        let past = duration_or_zero("etcd-compaction-interval", &args.etcd_compaction_interval)?;
        let signing_duration = duration("cluster-signing-duration", &args.cluster_signing_duration)?;
        let request_timeout = duration("request-timeout", &args.request_timeout)?;
        let longest_token = longest_token(args.service_account_max_token_expiration.as_deref())?;
        let runtime = RuntimeConfig::parse(&args.runtime_config)?;
        let issuers = issuers(&args)?;
        let audiences = if args.api_audiences.is_empty() { issuers[..1].to_vec() } else { args.api_audiences.clone() };
        Ok(Config {
            args,
            service_cidrs,
            node_cidrs,
            node_ports,
            authorization,
            controllers,
            gates,
            runtime,
            event_ttl,
            past,
            signing_duration,
            webhook_ttls,
            request_timeout,
            longest_token,
            issuers,
            audiences,
        })
    }

    pub fn address(&self) -> SocketAddr {
        SocketAddr::new(self.args.bind_address, self.args.secure_port)
    }

    /// Address under which the server is told to others: the advertised one, else the one it binds to, else loopback.
    pub fn advertised(&self) -> IpAddr {
        let bound = Some(self.args.bind_address).filter(|a| !a.is_unspecified());
        self.args.advertise_address.or(bound).unwrap_or_else(network::default_address)
    }

    /// Address that other machines may be sent to: never loopback, which is themselves there. None where there is none.
    pub fn reachable(&self) -> Option<IpAddr> {
        [self.advertised(), network::default_address()].into_iter().find(|a| !a.is_loopback())
    }

    /// `https://host:port` for programs on this machine.
    pub fn local_url(&self) -> String {
        let address = Some(self.args.bind_address).filter(|a| !a.is_unspecified());
        let address = address.unwrap_or(IpAddr::from([127, 0, 0, 1]));
        format!("https://{}", SocketAddr::new(address, self.args.secure_port))
    }

    /// `https://host:port` for programs on other machines; what is reached only from here when there is no network.
    pub fn advertised_url(&self) -> String {
        let here = self.args.bind_address.is_loopback();
        let address = self.reachable().filter(|_| !here).unwrap_or_else(|| self.advertised());
        format!("https://{}", SocketAddr::new(address, self.args.secure_port))
    }

    pub fn pki_folder(&self) -> PathBuf {
        self.args.cert_dir.clone().unwrap_or_else(|| self.args.data_dir.join("pki"))
    }
}

fn duration(flag: &'static str, text: &str) -> Result<Duration, ConfigError> {
    let nanos = proto::duration::parse(text).map_err(|e| bad(flag, e))?;
    let nanos = u64::try_from(nanos).ok().filter(|n| *n > 0).ok_or_else(|| bad(flag, "must be greater than zero"))?;
    Ok(Duration::from_nanos(nanos))
}

fn duration_or_zero(flag: &'static str, text: &str) -> Result<Duration, ConfigError> {
    let nanos = proto::duration::parse(text).map_err(|e| bad(flag, e))?;
    u64::try_from(nanos).map(Duration::from_nanos).map_err(|_| bad(flag, "must not be negative"))
}

/// The longest life of a token in seconds; None where it is not said, or zero.
fn longest_token(said: Option<&str>) -> Result<Option<i64>, ConfigError> {
    const FLAG: &str = "service-account-max-token-expiration";
    const BOUNDS: std::ops::RangeInclusive<u64> = 3600..=1 << 32;
    let Some(life) = said.map(|text| duration_or_zero(FLAG, text)).transpose()?.filter(|life| !life.is_zero()) else {
        return Ok(None);
    };
    let fits = BOUNDS.contains(&life.as_secs()) && life <= Duration::from_secs(*BOUNDS.end());
    match i64::try_from(life.as_secs()) {
        Ok(seconds) if fits => Ok(Some(seconds)),
        _ => Err(bad(FLAG, "must be between 1 hour and 2^32 seconds")),
    }
}

fn authorization(modes: &[String]) -> Result<Vec<AuthorizationMode>, ConfigError> {
    let flag = "authorization-mode";
    let mut out = Vec::new();
    for mode in modes {
        let mode = match mode.as_str() {
            "Node" => AuthorizationMode::Node,
            "RBAC" => AuthorizationMode::Rbac,
            "AlwaysAllow" => AuthorizationMode::AlwaysAllow,
            "AlwaysDeny" => AuthorizationMode::AlwaysDeny,
            "Webhook" => AuthorizationMode::Webhook,
            other => {
                return Err(bad(
                    flag,
                    format!("{other:?} is not a valid mode; there are Node, RBAC, Webhook, AlwaysAllow and AlwaysDeny"),
                ));
            }
        };
        if out.contains(&mode) {
            return Err(bad(flag, format!("{mode:?} is given more than once")));
        }
        out.push(mode);
    }
    if out.is_empty() { Err(bad(flag, "at least one mode must be given")) } else { Ok(out) }
}

fn issuers(args: &ServeArgs) -> Result<Vec<String>, ConfigError> {
    let flag = "service-account-issuer";
    for issuer in &args.service_account_issuer {
        // Upstream accepts any text without a colon, else it must be a URL.
        if issuer.is_empty() || issuer.contains(':') && !issuer.contains("://") {
            return Err(bad(flag, format!("{issuer:?} is not a URL")));
        }
    }
    Ok(args.service_account_issuer.clone())
}

/// The admission plugins that the flags ask for, with what they are told.
///
/// # Errors
/// When a flag or the file is wrong.
pub fn admission(args: &ServeArgs) -> Result<Admission, ConfigError> {
    let settings = match &args.admission_control_config_file {
        Some(path) => Settings::load(path).map_err(|e| bad("admission-control-config-file", e))?,
        None => Settings::default(),
    };
    let (enable, disable) = (&args.enable_admission_plugins, &args.disable_admission_plugins);
    Admission::new(enable, disable, settings).map_err(|e| bad(e.flag, e))
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;

    fn load(flags: &[&str]) -> Result<Config, ConfigError> {
        let all = ["apiserver-lite", "serve"].iter().chain(flags);
        match Cli::try_parse_from(all)?.command {
            Command::Serve(args) => Config::load(*args),
            other => panic!("not serve: {other:?}"),
        }
    }

    #[test]
    fn defaults_fit_together() {
        let config = load(&[]).expect("defaults are fine");
        assert_eq!(config.args.data_dir, PathBuf::from("/var/lib/apiserver-lite"));
        assert_eq!(config.address().port(), 6443);
        assert_eq!(config.authorization, [AuthorizationMode::Node, AuthorizationMode::Rbac]);
        assert!(config.args.scheduler && config.controllers.enabled("namespace-controller"));
        assert_eq!(config.service_cidrs[0].address(1), IpAddr::from([10, 96, 0, 1]));
    }

    #[test]
    fn wrong_settings_name_their_flag() {
        for (flags, flag) in [
            (&["--authorization-mode=Magic"][..], "authorization-mode"),
            (&["--service-cluster-ip-range=10.0.0.1"], "service-cluster-ip-range"),
            (&["--service-node-port-range=9-1"], "service-node-port-range"),
            (&["--allocate-node-cidrs"], "cluster-cidr"),
            (&["--allocate-node-cidrs", "--cluster-cidr=10.0.0.0/8,10.1.0.0/16"], "cluster-cidr"),
            (
                &["--allocate-node-cidrs", "--cluster-cidr=10.0.0.0/8", "--node-cidr-mask-size=25"],
                "node-cidr-mask-size",
            ),
            (&["--event-ttl=soon"], "event-ttl"),
            (&["--etcd-compaction-interval=-1s"], "etcd-compaction-interval"),
            (&["--service-account-max-token-expiration=59m"], "service-account-max-token-expiration"),
            (&["--service-account-max-token-expiration=4294967297s"], "service-account-max-token-expiration"),
            (&["--tls-cert-file=/x"], "tls-cert-file"),
            (&["--controllers=*,nonsense"], "controllers"),
            (&["--feature-gates=WatchList=maybe"], "feature-gates"),
            (&["--disable-admission-plugins=Nonsense"], "disable-admission-plugins"),
        ] {
            let message = load(flags).expect_err("wrong").to_string();
            assert!(message.starts_with(&format!("--{flag}: ")), "{message}");
        }
    }

    /// Nobody read it, and tokens lived for as long as they were asked for.
    #[test]
    fn the_longest_life_of_a_token_is_read() {
        let longest = |flags: &[&str]| load(flags).expect("fine").longest_token;
        assert_eq!(longest(&[]), None);
        assert_eq!(longest(&["--service-account-max-token-expiration=0s"]), None);
        assert_eq!(longest(&["--service-account-max-token-expiration=24h"]), Some(86_400));
        assert_eq!(longest(&["--service-account-max-token-expiration=4294967296s"]), Some(1 << 32));
    }

    #[test]
    fn booleans_take_a_value_or_none() {
        assert!(!load(&["--scheduler=false"]).expect("fine").args.scheduler);
        assert!(load(&["--scheduler"]).expect("fine").args.scheduler);
        assert!(load(&["--scheduler=perhaps"]).is_err());
    }
}
