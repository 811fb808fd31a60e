//! Certificates that change while the server runs: the files that flags name are looked at each minute, and our own are
//! issued anew before they expire. Connections that are there go on with what they were shown; whom their clients' own
//! certificates name is looked at with each request.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use ring::digest::{Context, Digest, SHA256};
use rustls::ServerConfig as TlsConfig;

use super::{
    ServeError, authorities, certificates, client_authority, ensure_pki, kubelet_files, proxy_authority, serving_pair,
    tls,
};
use crate::bootstrap::Kept;
use crate::config::Config;
use crate::pki::Pki;
use crate::server::ApiServer;

/// How often files are looked at, as upstream does it. They are mounted often, and replaced by links that no watch of the
/// file sees.
const LOOK_AGAIN: Duration = Duration::from_secs(60);
/// Looks between two tries to renew what is ours: half a day, for certificates that are renewed months before their end.
const LOOKS_TO_RENEW: u32 = 720;

pub struct Keys {
    pub config: Arc<Config>,
    pub pki: Pki,
    pub server: Arc<ApiServer>,
    /// What new connections get.
    pub listener: Arc<ArcSwap<TlsConfig>>,
    /// What the cluster is told of whom the server believes.
    pub kept: Kept,
}

impl Keys {
    /// Takes changes in; never returns.
    pub async fn follow(self) {
        let keys = Arc::new(self);
        let (mut seen, mut looks, mut untold) = (None, 0, false);
        loop {
            let looked = keys.clone();
            let renews = looks == LOOKS_TO_RENEW;
            looks = if renews { 0 } else { looks + 1 };
            // A look that ended in a panic is made again.
            let look = tokio::task::spawn_blocking(move || looked.look(seen, renews)).await;
            let (held, taken_up) = look.unwrap_or((seen, false));
            seen = held;
            untold = (untold || taken_up) && !keys.tell_others().await;
            tokio::time::sleep(LOOK_AGAIN).await;
        }
    }

    /// Tells whom the server believes by now to those who look for it in the cluster; whether they know.
    async fn tell_others(&self) -> bool {
        let told = match authorities(&self.config, &self.pki) {
            Ok(authorities) => self.kept.tell(&self.server, &self.config, &authorities).await,
            // Gone since the look, which comes again.
            Err(_) => return false,
        };
        told.inspect_err(|error| tracing::error!(%error, "whom the server believes is told once more later")).is_ok()
    }

    /// One look at the files; gives what they held, and whether something new was taken up.
    fn look(&self, seen: Option<[u8; 32]>, renews: bool) -> (Option<[u8; 32]>, bool) {
        if renews && let Err(error) = ensure_pki(&self.config) {
            tracing::error!(%error, "certificates of the cluster's own cannot be renewed");
        }
        let held = self.held();
        if seen.is_none_or(|seen| seen == held) {
            return (Some(held), false);
        }
        let taken_up = self.take_up();
        match &taken_up {
            Ok(()) => tracing::info!("certificates and authorities were read again"),
            Err(error) => tracing::error!(%error, "certificates and authorities stay as they were"),
        }
        (Some(held), taken_up.is_ok())
    }

    fn files(&self) -> Vec<PathBuf> {
        let (serving, kubelet) = (serving_pair(&self.config, &self.pki), kubelet_files(&self.config, &self.pki));
        let mut files = vec![serving.certificate, serving.key, kubelet.certificate, kubelet.key];
        files.extend(kubelet.authority);
        files.extend([client_authority(&self.config, &self.pki), proxy_authority(&self.config, &self.pki)]);
        files
    }

    /// A digest of all files. One that cannot be read counts as empty: it may be on its way.
    fn held(&self) -> [u8; 32] {
        let mut all = Context::new(&SHA256);
        for file in self.files() {
            let bytes = std::fs::read(file).unwrap_or_default();
            all.update(&bytes.len().to_be_bytes());
            all.update(&bytes);
        }
        let digest: Digest = all.finish();
        digest.as_ref().try_into().unwrap_or_default()
    }

    /// Reads everything first: where one file is wrong, all stays as it was.
    ///
    /// # Errors
    /// What is wrong with the first such file.
    fn take_up(&self) -> Result<(), ServeError> {
        let listener = tls(&self.config, &self.pki)?;
        let clients = certificates("client-ca-file", &client_authority(&self.config, &self.pki))?;
        let proxies = certificates("requestheader-client-ca-file", &proxy_authority(&self.config, &self.pki))?;
        self.server.kubelets.read_again().map_err(|e| super::setting("kubelet-client-certificate", e))?;
        self.server.authenticator.trust(&clients, &proxies).map_err(|e| super::setting("client-ca-file", e))?;
        self.listener.store(listener);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;
    use rustls_pki_types::CertificateDer;
    use rustls_pki_types::pem::PemObject as _;

    use super::*;
    use crate::auth::{Certificates, TokenFile};
    use crate::config::{Cli, Command};
    use crate::pki::{Leaf, private_folder};
    use crate::store::Store;

    #[tokio::test]
    async fn authorities_and_certificates_are_taken_up_whole_or_not_at_all() {
        let folder = std::env::temp_dir().join(format!("serve-keys-{}", crate::random::uuid()));
        private_folder(&folder).expect("a folder");
        let other = Pki::ensure(&folder.join("other"), &[], &[]).expect("keys");
        let one = Pki::ensure(&folder.join("one"), &[], &[]).expect("keys");
        let named = folder.join("clients.crt");
        std::fs::copy(one.pair("ca").certificate, &named).expect("copied");
        let flags = [format!("--data-dir={}", folder.display()), format!("--client-ca-file={}", named.display())];
        let all = ["apiserver-lite", "serve"].into_iter().chain(flags.iter().map(String::as_str));
        let Command::Serve(args) = Cli::try_parse_from(all).expect("flags").command else { panic!("serve") };
        let config = Arc::new(Config::load(*args).expect("the flags are right"));
        let pki = ensure_pki(&config).expect("keys");
        let store = Store::open(None).expect("memory opens");
        let server = super::super::assemble(&config, &pki, store, TokenFile::default()).expect("a server");
        let listener = Arc::new(ArcSwap::new(tls(&config, &pki).expect("certificates")));
        let kept = crate::bootstrap::keep(&server, &config, &authorities(&config, &pki).expect("authorities"));
        let keys = Keys { config, pki, server, listener, kept };

        let user = |pki: &Pki| {
            let authority = pki.authority().expect("an authority");
            let (certificate, _) = authority.issue(&Leaf::client("ann", &[])).expect("a certificate");
            let shown = CertificateDer::from_pem_slice(certificate.as_bytes()).expect("a certificate");
            let shown = keys.server.authenticator.shown(&Certificates::new(vec![shown]));
            shown.user.as_ref().map(|user| user.name.clone())
        };
        let served = || keys.listener.load_full();
        let (first, before) = (keys.look(None, false), served());
        let seen = first.0;
        assert_eq!((user(&one).as_deref(), user(&other)), (Some("ann"), None));
        assert_eq!(keys.look(seen, false), (seen, false));
        assert!(Arc::ptr_eq(&served(), &before), "nothing has changed");

        std::fs::write(&named, "nothing of use").expect("written");
        let (seen, taken_up) = keys.look(seen, false);
        assert!(!taken_up);
        assert_eq!((user(&one).as_deref(), user(&other)), (Some("ann"), None), "a broken file changes nothing");

        std::fs::copy(other.pair("ca").certificate, &named).expect("copied");
        let (seen, taken_up) = keys.look(seen, false);
        assert!(taken_up);
        assert_eq!((user(&one), user(&other).as_deref()), (None, Some("ann")));

        let (own, before) = (keys.pki.pair("apiserver"), served());
        std::fs::remove_file(&own.certificate).expect("removed");
        keys.look(seen, true);
        assert!(own.certificate.is_file() && !Arc::ptr_eq(&served(), &before), "a new one is made and shown");
        std::fs::remove_dir_all(&folder).expect("the folder goes");
    }
}
