//! What the machine and its runtime make of the configuration, the process's own limits, and reading it again.

use std::time::Duration;

use serde_json::{Value, json};
use service::notify::{self, NotifyState};

use crate::cli::Flags;
use crate::config::{self, Configuration, FeatureGates, Loaded, Origin, leaves};
use crate::cri::CriClient;
use crate::images::providers::{self, Provider};
use crate::log_level;
use crate::pods::{IDS_PER_POD, UserIds};
use crate::settings::OwnSettings;

/// A runtime that does not answer in this time is asked again once pods start.
const PATIENCE: Duration = Duration::from_secs(2);

/// Fills in what only this machine knows; `/configz` shows it as the kubelet does.
pub fn apply(loaded: &mut Loaded, flags: &Flags) {
    let Loaded { config, document, origins, .. } = loaded;
    config.seccomp_default |= flags.seccomp_default;
    let no_files = config.tls_cert_file.as_os_str().is_empty() && config.tls_private_key_file.as_os_str().is_empty();
    if no_files && !config.server_tls_bootstrap {
        // The server makes these when they are not there.
        for (field, name) in [("tlsCertFile", "kubelet.crt"), ("tlsPrivateKeyFile", "kubelet.key")] {
            set(document, field, json!(flags.cert_dir.join(name)));
            origins.found(field);
        }
    }
    let reserved = config.reserved_cpus();
    if !reserved.is_empty() {
        // They take the place of the CPU that is reserved by amount.
        config.kube_reserved.remove("cpu");
        config.system_reserved.insert("cpu".into(), reserved.len().to_string());
        if let Some(map) = document.get_mut("kubeReserved").and_then(Value::as_object_mut) {
            map.remove("cpu");
        }
        // A map that nobody gave does not show, as upstream.
        if let Some(map) = document.get_mut("systemReserved").and_then(Value::as_object_mut) {
            map.insert("cpu".into(), json!(reserved.len().to_string()));
        }
    }
}

/// The programs that give credentials; both flags are to be given, or neither.
///
/// # Errors
/// The folder is not there, or the configuration is none.
pub fn credential_providers(flags: &Flags, gates: &FeatureGates) -> Result<Vec<Provider>, String> {
    let (file, folder) = (&flags.image_credential_provider_config, &flags.image_credential_provider_bin_dir);
    if file.is_none() && folder.is_none() {
        return Ok(Vec::new());
    }
    let folder = folder.as_deref().unwrap_or(std::path::Path::new(""));
    let tokens = gates.enabled("KubeletServiceAccountTokenForCredentialProviders");
    providers::load(file.as_deref().unwrap_or(std::path::Path::new("")), folder, tokens)
}

/// The runtime's cgroup driver wins over the configured one.
pub async fn ask_runtime(loaded: &mut Loaded, cri: &CriClient) {
    let asked = tokio::time::timeout(PATIENCE, cri.runtime_config(proto::cri::RuntimeConfigRequest {})).await;
    let Ok(Ok(answer)) = asked else { return };
    let driver = match answer.linux.map(|l| l.cgroup_driver()) {
        Some(proto::cri::CgroupDriver::Systemd) => "systemd",
        Some(proto::cri::CgroupDriver::Cgroupfs) => "cgroupfs",
        None => return,
    };
    loaded.config.cgroup_driver = driver.to_owned();
    set(&mut loaded.document, "cgroupDriver", json!(driver));
    loaded.origins.found("cgroupDriver");
}

fn set(document: &mut Value, field: &str, value: Value) {
    if let Some(map) = document.as_object_mut() {
        map.insert(field.into(), value);
    }
}

/// The ids that pods' user namespaces are made of.
///
/// # Errors
/// The kubelet's text on what is set apart for them; the operator's to mend.
pub async fn user_ids(config: &Configuration) -> Result<UserIds, String> {
    let wanted = config.user_namespaces.as_ref().and_then(|u| u.ids_per_pod);
    let per_pod = wanted.and_then(|ids| u32::try_from(ids).ok()).unwrap_or(IDS_PER_POD);
    let pods = u32::try_from(config.max_pods).unwrap_or(0);
    let asked = tokio::task::spawn_blocking(move || UserIds::of_node(per_pod, pods)).await;
    asked.unwrap_or_else(|e| Err(e.to_string()))
}

/// Open files and the kernel's choice of victims, as configured; what is not allowed is told and left.
pub fn limit_this_process(config: &Configuration) {
    use nix::sys::resource::{Resource, getrlimit, setrlimit};
    let wanted = u64::try_from(config.max_open_files).unwrap_or(0);
    if wanted > 0 {
        let hard = getrlimit(Resource::RLIMIT_NOFILE).map_or(wanted, |(_, hard)| hard);
        let set = setrlimit(Resource::RLIMIT_NOFILE, wanted, wanted)
            .or_else(|_| setrlimit(Resource::RLIMIT_NOFILE, wanted.min(hard), hard));
        if let Err(error) = set {
            tracing::warn!(%error, wanted, "cannot set the limit of open files");
        }
    }
    if let Err(error) = std::fs::write("/proc/self/oom_score_adj", config.oom_score_adj.to_string()) {
        tracing::info!(%error, wanted = config.oom_score_adj, "cannot set the agent's oom_score_adj");
    }
}

/// Reads the configuration again. The log's level takes effect; for the rest the agent says what waits for a restart.
/// Systemd is told only by an agent that is `ready`: RELOADING has to be followed by READY, which is not to be said of
/// one that still waits.
pub fn reload(flags: &Flags, running: &Loaded, ready: bool) {
    if ready {
        let now = NotifyState::monotonic_usec_now();
        let mut states = vec![NotifyState::Reloading];
        states.extend(now.ok());
        notify::tell(&states);
    }
    match (config::load(&flags.sources), OwnSettings::load(flags.settings.as_deref())) {
        (Ok(new), Ok(settings)) => {
            if let Err(error) = log_level::set_by(&new.config.logging, &settings) {
                tracing::warn!(error, "cannot change the log's level");
            }
            let waiting = changed(&running.document, &new.document, running);
            if waiting.is_empty() {
                tracing::info!("read the configuration again; nothing waits for a restart");
            } else {
                tracing::warn!(fields = waiting.join(", "), "read the configuration again; these wait for a restart");
            }
        }
        (Err(error), _) => tracing::error!(%error, "the new configuration is refused; the old one stays"),
        (_, Err(errors)) => {
            let errors: Vec<String> = errors.iter().map(ToString::to_string).collect();
            tracing::error!(errors = errors.join("; "), "the new settings are refused; the old ones stay");
        }
    }
    if ready {
        notify::tell(&[NotifyState::Ready]);
    }
}

/// Fields that differ and do not take effect at once.
fn changed(old: &Value, new: &Value, running: &Loaded) -> Vec<String> {
    let (old, new) = (leaves(old), leaves(new));
    let own =
        |path: &[String]| *running.origins.of(path) == Origin::Agent || path.first().is_some_and(|p| p == "logging");
    let mut fields: Vec<String> = old
        .iter()
        .filter(|(path, value)| !own(path) && new.iter().all(|(p, v)| p != path || v != value))
        .chain(new.iter().filter(|(path, _)| !own(path) && old.iter().all(|(p, _)| p != path)))
        .map(|(path, _)| path.join("."))
        .collect();
    fields.dedup();
    fields
}
