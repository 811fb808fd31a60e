//! `serve --check`: every file that the settings name is read as the server would read it, and everything that is wrong
//! is told at once. Nothing is written, and what the server makes itself when it starts is not asked for.

use std::path::Path;

use rustls::pki_types::PrivateKeyDer;
use rustls::sign::CertifiedKey;
use rustls_pki_types::pem::PemObject as _;

use super::{ServeError, certificates, proxy_headers, setting};
use crate::audit::Policy;
use crate::auth::{self, TokenFile};
use crate::config::Config;
use crate::outgoing::Client;

/// What is wrong with the files that the settings name; empty when nothing is.
pub fn check(config: &Config) -> Vec<ServeError> {
    let args = &config.args;
    let mut wrong = Vec::new();
    let mut note = |outcome: Result<(), ServeError>| wrong.extend(outcome.err());
    for (certificate, key, flags) in [
        (&args.tls_cert_file, &args.tls_private_key_file, ["tls-cert-file", "tls-private-key-file"]),
        (
            &args.proxy_client_cert_file,
            &args.proxy_client_key_file,
            ["proxy-client-cert-file", "proxy-client-key-file"],
        ),
        (
            &args.kubelet_client_certificate,
            &args.kubelet_client_key,
            ["kubelet-client-certificate", "kubelet-client-key"],
        ),
    ] {
        if let (Some(certificate), Some(key)) = (certificate, key) {
            pair(certificate, key, flags).into_iter().for_each(|problem| note(Err(problem)));
        }
    }
    for (flag, path) in [
        ("client-ca-file", &args.client_ca_file),
        ("requestheader-client-ca-file", &args.requestheader_client_ca_file),
        ("kubelet-certificate-authority", &args.kubelet_certificate_authority),
    ] {
        if let Some(path) = path {
            note(authority(flag, path));
        }
    }
    note(proxy_headers(args).map(drop));
    if let Some(path) = &args.token_auth_file {
        note(TokenFile::load(path).map(drop).map_err(|e| setting("token-auth-file", e)));
    }
    if let Some(path) = &args.service_account_signing_key_file {
        note(auth::Keys::load(path, &[]).map(drop).map_err(|e| setting("service-account-signing-key-file", e)));
    }
    for path in &args.service_account_key_file {
        note(auth::Keys::check(path).map_err(|e| setting("service-account-key-file", e)));
    }
    if let Some(path) = &args.authentication_config {
        let loaded = auth::Structured::load(path, &config.issuers).map(drop);
        note(loaded.map_err(|e| setting("authentication-config", e)));
    }
    if let Some(path) = &args.authorization_config {
        note(auth::Chain::load(path).map(drop).map_err(|e| setting("authorization-config", e)));
    }
    for (flag, path) in [
        ("authentication-token-webhook-config-file", &args.authentication_token_webhook_config_file),
        ("authorization-webhook-config-file", &args.authorization_webhook_config_file),
    ] {
        if let Some(path) = path {
            note(Client::from_kubeconfig(path).map(drop).map_err(|e| setting(flag, e)));
        }
    }
    if let Some(path) = &args.audit_policy_file {
        note(Policy::load(path).map(drop).map_err(|e| setting("audit-policy-file", e)));
    }
    if let Some(path) = args.audit_log_path.as_deref().filter(|path| *path != Path::new("-")) {
        note(audit_log(path));
    }
    wrong
}

/// A certificate and its key, and whether they belong together.
fn pair(certificate: &Path, key: &Path, [certificate_flag, key_flag]: [&'static str; 2]) -> Vec<ServeError> {
    let chain = certificates(certificate_flag, certificate);
    let key = PrivateKeyDer::from_pem_file(key).map_err(|e| setting(key_flag, format!("{}: {e}", key.display())));
    match (chain, key) {
        (Ok(chain), Ok(key)) => {
            let together = CertifiedKey::from_der(chain, key, &crate::http::provider());
            together.err().map(|e| setting(certificate_flag, e)).into_iter().collect()
        }
        (chain, key) => chain.err().into_iter().chain(key.err()).collect(),
    }
}

fn authority(flag: &'static str, path: &Path) -> Result<(), ServeError> {
    let all = certificates(flag, path)?;
    auth::ClientAuthorities::new(&all).map(drop).map_err(|e| setting(flag, format!("{}: {e}", path.display())))
}

/// The log is made when the server starts; its folder has to be there.
fn audit_log(path: &Path) -> Result<(), ServeError> {
    let wrong = |why: &dyn std::fmt::Display| setting("audit-log-path", format!("{}: {why}", path.display()));
    if path.is_dir() {
        return Err(wrong(&"is a folder"));
    }
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    match std::fs::metadata(folder) {
        Ok(found) if found.is_dir() => Ok(()),
        Ok(_) => Err(wrong(&"is in no folder")),
        Err(error) => Err(wrong(&error)),
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;
    use crate::config::{Cli, Command};

    fn flags_of(flags: &[String]) -> Vec<&'static str> {
        let all = ["apiserver-lite", "serve"].into_iter().chain(flags.iter().map(String::as_str));
        let Command::Serve(args) = Cli::try_parse_from(all).expect("flags").command else { panic!("serve") };
        let found = check(&Config::load(*args).expect("settings that fit together"));
        let flag = |error: &ServeError| match error {
            ServeError::Setting { flag, .. } => *flag,
            other => panic!("{other}"),
        };
        found.iter().map(flag).collect()
    }

    #[test]
    fn every_file_that_is_wrong_is_told() {
        let named = [
            "tls-cert-file",
            "tls-private-key-file",
            "proxy-client-cert-file",
            "proxy-client-key-file",
            "kubelet-client-certificate",
            "kubelet-client-key",
            "client-ca-file",
            "requestheader-client-ca-file",
            "kubelet-certificate-authority",
            "token-auth-file",
            "service-account-signing-key-file",
            "service-account-key-file",
            "authentication-config",
            "authentication-token-webhook-config-file",
            "authorization-webhook-config-file",
            "audit-policy-file",
            "audit-log-path",
        ];
        let mut flags: Vec<String> = named.iter().map(|flag| format!("--{flag}=/nowhere/at/all")).collect();
        flags.push("--authorization-mode=Webhook".into());
        assert_eq!(flags_of(&flags), named);
        assert_eq!(flags_of(&["--authorization-config=/nowhere/at/all".into()]), ["authorization-config"]);
        assert!(flags_of(&[]).is_empty(), "what the server makes itself is not missing");
    }

    #[test]
    fn a_certificate_has_its_own_key() {
        let dir = std::env::temp_dir().join(format!("serve-check-{}", crate::random::uuid()));
        let pki = crate::pki::Pki::ensure(&dir, &[], &[]).expect("made");
        let (one, other) = (pki.pair("apiserver"), pki.pair("front-proxy-client"));
        let flags = |key: &Path| {
            [
                format!("--tls-cert-file={}", one.certificate.display()),
                format!("--tls-private-key-file={}", key.display()),
                format!("--client-ca-file={}", pki.pair("ca").certificate.display()),
            ]
        };
        let (good, bad) = (flags_of(&flags(&one.key)), flags_of(&flags(&other.key)));
        let _ = std::fs::remove_dir_all(&dir);
        assert!(good.is_empty(), "{good:?}");
        assert_eq!(bad, ["tls-cert-file"]);
    }
}
