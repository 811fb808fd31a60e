//! The certificate that the agent's server shows, replaceable while it serves.

use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock};

use nix::sys::inotify::AddWatchFlags;
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};

use crate::file_watch::FileWatch;

/// Empty until the first certificate is there; handshakes fail until then.
#[derive(Debug, Default)]
pub struct Serving(RwLock<Option<Arc<CertifiedKey>>>);

impl Serving {
    /// Shows another certificate from the next connection on.
    ///
    /// # Errors
    /// When the texts hold no certificate with its key; the old one stays.
    pub fn set(&self, certificate: &[u8], key: &[u8]) -> Result<(), String> {
        let made = Self::pair(certificate, key)?;
        if let Some((_, first)) = made.cert.first().and_then(|c| x509_parser::parse_x509_certificate(c).ok()) {
            crate::metrics::server_certificate_expires(first.validity().not_after.timestamp());
        }
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = Some(Arc::new(made));
        Ok(())
    }

    /// A certificate chain and its key, ready to be shown.
    ///
    /// # Errors
    /// When the texts hold no certificate with its key.
    pub fn pair(certificate: &[u8], key: &[u8]) -> Result<CertifiedKey, String> {
        let chain: Vec<_> = CertificateDer::pem_slice_iter(certificate).filter_map(Result::ok).collect();
        if chain.is_empty() {
            return Err("no certificate".into());
        }
        let key = PrivateKeyDer::from_pem_slice(key).map_err(|e| format!("private key: {e}"))?;
        let key = rustls::crypto::ring::sign::any_supported_type(&key).map_err(|e| format!("private key: {e}"))?;
        let made = CertifiedKey::new(chain, key);
        made.keys_match().map_err(|e| e.to_string())?;
        Ok(made)
    }
}

impl ResolvesServerCert for Serving {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        self.0.read().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// Shows what is in the files whenever they change, until the task is dropped. Folders are watched, as files are
/// replaced by renaming.
pub async fn follow_files(serving: Arc<Serving>, certificate: PathBuf, key: PathBuf) {
    let events = AddWatchFlags::IN_CLOSE_WRITE | AddWatchFlags::IN_MOVED_TO | AddWatchFlags::IN_CREATE;
    let folder = |path: &Path| path.parent().map_or_else(|| PathBuf::from("/"), Path::to_path_buf);
    let folders = [folder(&certificate), folder(&key)];
    let watch = match FileWatch::new(&[(&folders[0], events), (&folders[1], events)]) {
        Ok(watch) => watch,
        Err(error) => {
            tracing::warn!(%error, "cannot watch the serving certificate; a new one is taken at the next start");
            return;
        }
    };
    let read = || (std::fs::read(&certificate), std::fs::read(&key));
    let mut shown = read();
    loop {
        watch.changed().await;
        let now = read();
        let (Ok(new_certificate), Ok(new_key)) = &now else { continue };
        if matches!(&shown, (Ok(c), Ok(k)) if c == new_certificate && k == new_key) {
            continue;
        }
        match serving.set(new_certificate, new_key) {
            Ok(()) => tracing::info!(certificate = %certificate.display(), "serving with the new certificate"),
            // Halfway through a change, mostly: the other file follows.
            Err(error) => tracing::warn!(error, "the new serving certificate cannot be used yet"),
        }
        shown = now;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_certificate_without_its_key_is_refused() {
        let made = |name: &str| rcgen::generate_simple_self_signed(vec![name.into()]).expect("made");
        let (a, b) = (made("a"), made("b"));
        let serving = Serving::default();
        assert!(serving.set(a.cert.pem().as_bytes(), b.signing_key.serialize_pem().as_bytes()).is_err());
        assert!(serving.set(a.cert.pem().as_bytes(), a.signing_key.serialize_pem().as_bytes()).is_ok());
        assert!(serving.set(b"", b"").is_err());
    }
}
