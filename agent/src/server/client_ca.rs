//! `clientCAFile`: whose client certificates name users, and which certificate a connection has shown.
//!
//! The handshake asks for a certificate and takes any whose key the other side holds; whether an authority that is trusted
//! now stands behind it is looked at with each request, so that an unknown one gets a 401 instead of a broken connection,
//! and a change of the file counts at once, also for connections that are open.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use nix::sys::inotify::AddWatchFlags;
use rustls::server::WebPkiClientVerifier;
use rustls::server::danger::ClientCertVerifier;
use rustls_pki_types::{CertificateDer, UnixTime};

use super::ServerError;
use crate::api::trust_roots;
use crate::file_watch::FileWatch;
use crate::identity::Validity;

/// The authorities in the file as they are now.
pub struct ClientAuthorities {
    file: PathBuf,
    known: RwLock<Known>,
}

struct Known {
    pem: Vec<u8>,
    verifier: Arc<dyn ClientCertVerifier>,
    /// Counts the changes.
    version: u64,
}

/// The certificates that a client has shown on a connection; its own comes first.
pub struct ShownCertificate {
    chain: Vec<CertificateDer<'static>>,
    validity: Option<Validity>,
    /// Whether authorities of this version vouched for it.
    judged: Mutex<Option<(u64, bool)>>,
}

impl ShownCertificate {
    /// None for an empty chain.
    pub fn new(chain: &[CertificateDer<'_>]) -> Option<Self> {
        let first = chain.first()?;
        let validity = Validity::of_der(first);
        let chain = chain.iter().map(|c| c.clone().into_owned()).collect();
        Some(ShownCertificate { chain, validity, judged: Mutex::new(None) })
    }

    pub fn der(&self) -> &[u8] {
        self.chain.first().map_or(&[], |first| first)
    }
}

impl ClientAuthorities {
    /// # Errors
    /// The file cannot be read, or has no certificate.
    pub fn read(file: &Path) -> Result<Self, ServerError> {
        let bad = |e: String| ServerError::ClientCa(format!("{}: {e}", file.display()));
        let pem = std::fs::read(file).map_err(|e| bad(e.to_string()))?;
        let verifier = verifier(&pem, file).map_err(bad)?;
        Ok(ClientAuthorities { file: file.to_owned(), known: RwLock::new(Known { pem, verifier, version: 0 }) })
    }

    /// Whether one of the authorities has made the certificate, and its time is now.
    pub fn vouch(&self, shown: &ShownCertificate) -> bool {
        let now = UnixTime::now();
        let seconds = i64::try_from(now.as_secs()).unwrap_or(i64::MAX);
        if shown.validity.is_none_or(|v| seconds < v.not_before || v.is_over(seconds)) {
            return false;
        }
        let (verifier, version) = {
            let known = self.known.read().unwrap_or_else(PoisonError::into_inner);
            (known.verifier.clone(), known.version)
        };
        let mut judged = shown.judged.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, good)) = judged.filter(|(of, _)| *of == version) {
            return good;
        }
        let Some((first, others)) = shown.chain.split_first() else { return false };
        let verified = verifier.verify_client_cert(first, others, now);
        if let Err(error) = &verified {
            tracing::debug!(%error, "a client certificate is of no authority that is trusted");
        }
        *judged = Some((version, verified.is_ok()));
        verified.is_ok()
    }

    /// Takes what is in the file now; true when that is something else. What cannot be used leaves the old ones.
    fn reload(&self) -> Result<bool, String> {
        let pem = std::fs::read(&self.file).map_err(|e| e.to_string())?;
        let mut known = self.known.write().unwrap_or_else(PoisonError::into_inner);
        if known.pem == pem {
            return Ok(false);
        }
        let verifier = verifier(&pem, &self.file)?;
        *known = Known { pem, verifier, version: known.version + 1 };
        Ok(true)
    }

    /// Follows the file until the task is dropped. Its folder is watched, as files are replaced by renaming.
    pub async fn follow(self: Arc<Self>) {
        let events = AddWatchFlags::IN_CLOSE_WRITE | AddWatchFlags::IN_MOVED_TO | AddWatchFlags::IN_CREATE;
        let folder = self.file.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let watch = match FileWatch::new(&[(folder, events)]) {
            Ok(watch) => watch,
            Err(error) => {
                tracing::warn!(%error, file = %self.file.display(), "cannot watch clientCAFile; it is read at the next start");
                return;
            }
        };
        loop {
            // First of all what changed since the start read the file and before the watch began.
            match self.reload() {
                Ok(true) => tracing::info!(file = %self.file.display(), "took the new client authorities"),
                Ok(false) => {}
                Err(error) => {
                    tracing::warn!(error, file = %self.file.display(), "the client authorities stay as they were")
                }
            }
            watch.changed().await;
        }
    }
}

fn verifier(pem: &[u8], file: &Path) -> Result<Arc<dyn ClientCertVerifier>, String> {
    let roots = trust_roots(pem, &file.display().to_string()).map_err(|e| e.to_string())?;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let built = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider).build();
    built.map_err(|e| e.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use rcgen::{BasicConstraints, CertificateParams, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair};

    /// The authority's PEM and a client certificate of it.
    fn made() -> (String, ShownCertificate) {
        let mut authority = CertificateParams::new(Vec::new()).expect("no names");
        authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().expect("a key");
        let pem = authority.self_signed(&key).expect("made").pem();
        let mut client = CertificateParams::new(vec!["c".into()]).expect("a name");
        client.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        let issuer = Issuer::new(authority, key);
        let client = client.signed_by(&KeyPair::generate().expect("a key"), &issuer).expect("made");
        (pem, ShownCertificate::new(&[client.der().clone()]).expect("one"))
    }

    #[test]
    fn authorities_count_as_they_are_in_the_file() {
        let ((one, of_one), (two, of_two)) = (made(), made());
        let file = std::env::temp_dir().join(format!("client-ca-{}.crt", std::process::id()));
        std::fs::write(&file, &one).expect("writes");
        let authorities = ClientAuthorities::read(&file).expect("read");
        assert!(authorities.vouch(&of_one) && authorities.vouch(&of_one) && !authorities.vouch(&of_two));
        std::fs::write(&file, "rubbish").expect("writes");
        assert!(authorities.reload().is_err() && authorities.vouch(&of_one), "the old ones stay");
        std::fs::write(&file, &two).expect("writes");
        assert_eq!(authorities.reload(), Ok(true));
        assert!(!authorities.vouch(&of_one) && authorities.vouch(&of_two));
        assert_eq!(authorities.reload(), Ok(false));
        std::fs::remove_file(file).expect("ours");
    }

    #[tokio::test]
    async fn what_changed_before_the_file_is_watched_counts() {
        let ((one, of_one), (two, of_two)) = (made(), made());
        let file = std::env::temp_dir().join(format!("client-ca-early-{}.crt", std::process::id()));
        std::fs::write(&file, &one).expect("writes");
        let authorities = Arc::new(ClientAuthorities::read(&file).expect("read"));
        std::fs::write(&file, &two).expect("writes");
        let followed = tokio::time::timeout(std::time::Duration::from_millis(50), authorities.clone().follow()).await;
        assert!(followed.is_err(), "it goes on");
        assert!(!authorities.vouch(&of_one) && authorities.vouch(&of_two));
        std::fs::remove_file(file).expect("ours");
    }
}
