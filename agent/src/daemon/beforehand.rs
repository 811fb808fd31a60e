//! What keeps the agent from starting and is known from flags and files alone: no port, no runtime, no server is asked.
//!
//! The start refuses by it before it makes anything, and `config check` tells all of it: one list, so that the two agree.

use std::path::Path;

use super::{StartError, machine_config};
use crate::api::{HttpTransport, Kubeconfig};
use crate::cli::Flags;
use crate::config::{Configuration, FeatureGates, Loaded};
use crate::cri::CriClient;
use crate::identity::{self, Serving, Store};
use crate::objects::Strategy;
use crate::resource_managers::{Managers, Settings};
use crate::server::{ClientAuthorities, ServerError};

/// Everything that the start would refuse, in its order. Empty: it gets as far as the machine lets it.
pub fn wrong_at_start(flags: &Flags, loaded: &Loaded) -> Vec<StartError> {
    let config = &loaded.config;
    let gates = FeatureGates::new(config.feature_gates.clone());
    let mut wrong = Vec::new();
    match &flags.kubeconfig {
        None => {
            if config.authentication.webhook.enabled {
                wrong.push(StartError::NoClient("authentication"));
            }
            if config.authorization.mode == "Webhook" {
                wrong.push(StartError::NoClient("authorization"));
            }
        }
        Some(path) => {
            let rotated = config.rotate_certificates.then(|| Store::client(&flags.cert_dir));
            wrong.extend(login(path, flags.bootstrap_kubeconfig.as_deref(), rotated.as_ref()).err());
            wrong.extend(Strategy::of(config).err().map(StartError::Objects));
        }
    }
    wrong.extend(
        CriClient::check(&config.container_runtime_endpoint, &config.image_service_endpoint)
            .err()
            .map(StartError::Runtime),
    );
    let of_managers = Settings::of(config, &gates, &flags.root_dir);
    wrong.extend(Managers::check(&of_managers).err().map(StartError::Managers));
    wrong.extend(machine_config::credential_providers(flags, &gates).err().map(StartError::CredentialProviders));
    if config.enable_server {
        wrong.extend(serving(config).err().map(|why| StartError::Server(ServerError::Certificate(why))));
        let authorities = &config.authentication.x509.client_ca_file;
        if !authorities.as_os_str().is_empty() {
            wrong.extend(ClientAuthorities::read(authorities).err().map(StartError::Server));
        }
    }
    wrong
}

/// A kubeconfig that can be used, or one to get it with. A pair in `rotated` takes the place of the kubeconfig's.
fn login(path: &Path, bootstrap: Option<&Path>, rotated: Option<&Store>) -> Result<(), StartError> {
    match bootstrap {
        Some(_) if identity::is_usable(path, rotated) => {}
        Some(source) => return Ok(identity::can_bootstrap(source)?),
        None => {}
    }
    let mut kubeconfig = Kubeconfig::load(path)?;
    if let Some(pair) = rotated {
        kubeconfig.follow_rotated(pair.current());
    }
    HttpTransport::new(&kubeconfig, "node-agent")?;
    Ok(())
}

/// Certificate and key that somebody else made.
fn serving(config: &Configuration) -> Result<(), String> {
    let (certificate, key) = (&config.tls_cert_file, &config.tls_private_key_file);
    match (certificate.as_os_str().is_empty(), key.as_os_str().is_empty()) {
        _ if config.server_tls_bootstrap => Ok(()),
        (false, false) => {
            let read = |path: &Path| std::fs::read(path).map_err(|e| format!("cannot read {}: {e}", path.display()));
            let pair = Serving::pair(&read(certificate)?, &read(key)?);
            pair.map(drop)
                .map_err(|e| format!("tlsCertFile {}, tlsPrivateKeyFile {}: {e}", certificate.display(), key.display()))
        }
        // One alone is none: the agent makes its own, as a kubelet that is given one goes on.
        (true, _) | (_, true) => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::{Command, parse};
    use crate::config;

    fn wrong(arguments: &[&str]) -> Vec<String> {
        let Ok(Command::Run(flags)) = parse(arguments.iter().map(ToString::to_string)) else { panic!("{arguments:?}") };
        let loaded = config::load(&flags.sources).expect("valid values");
        wrong_at_start(&flags, &loaded).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn what_the_start_refuses_is_known_before() {
        assert_eq!(wrong(&[]), Vec::<String>::new());
        for (flag, words) in [
            ("--kubeconfig=/nonexistent.conf", "invalid kubeconfig: stat /nonexistent.conf: no such file or directory"),
            ("--authorization-mode=Webhook", "no client provided, cannot use webhook authorization"),
            ("--authentication-token-webhook", "no client provided, cannot use webhook authentication"),
            ("--client-ca-file=/nonexistent.crt", "/nonexistent.crt"),
            ("--container-runtime-endpoint=ftp://x", "ftp://x"),
            ("--image-credential-provider-bin-dir=/nonexistent", ""),
            ("--image-credential-provider-config=/nonexistent.yaml", ""),
        ] {
            let found = wrong(&[flag]);
            assert!(found.len() == 1 && found[0].contains(words), "{flag}: {found:?}");
        }
        let all = wrong(&["--authorization-mode=Webhook", "--tls-cert-file=/a", "--tls-private-key-file=/b"]);
        assert_eq!(all.len(), 2, "{all:?}");
        let found = wrong(&["--kubeconfig=/nonexistent.conf", "--bootstrap-kubeconfig=/neither.conf"]);
        assert!(found.len() == 1 && found[0].contains("/neither.conf"), "{found:?}");
    }
}
