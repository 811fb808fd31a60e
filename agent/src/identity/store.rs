//! Certificates on disk, as the kubelet keeps them.

use std::net::IpAddr;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject;
use x509_parser::extensions::GeneralName;

use super::IdentityError;
use crate::state_file;

/// Life of a certificate, in seconds since 1970.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Validity {
    pub not_before: i64,
    pub not_after: i64,
}

impl Validity {
    /// Of the first certificate in a PEM text.
    pub fn of(pem: &[u8]) -> Option<Self> {
        Self::of_der(&CertificateDer::pem_slice_iter(pem).find_map(Result::ok)?)
    }

    /// Of one certificate.
    pub fn of_der(der: &[u8]) -> Option<Self> {
        let (_, certificate) = x509_parser::parse_x509_certificate(der).ok()?;
        let validity = certificate.validity();
        Some(Validity { not_before: validity.not_before.timestamp(), not_after: validity.not_after.timestamp() })
    }

    pub fn is_over(&self, now: i64) -> bool {
        now >= self.not_after
    }
}

/// Whether the first certificate in a PEM text is for all these DNS names and addresses.
pub fn is_for(pem: &[u8], names: &[String]) -> bool {
    let Some(der) = CertificateDer::pem_slice_iter(pem).find_map(Result::ok) else { return false };
    let Ok((_, certificate)) = x509_parser::parse_x509_certificate(&der) else { return false };
    let Ok(Some(alternatives)) = certificate.subject_alternative_name() else { return false };
    let held = &alternatives.value.general_names;
    names.iter().all(|name| match name.parse::<IpAddr>() {
        Ok(address) => {
            let octets = match address {
                IpAddr::V4(v4) => v4.octets().to_vec(),
                IpAddr::V6(v6) => v6.octets().to_vec(),
            };
            held.iter().any(|held| matches!(held, GeneralName::IPAddress(own) if *own == octets))
        }
        Err(_) => held.iter().any(|held| matches!(held, GeneralName::DNSName(own) if own == name)),
    })
}

/// `kubelet-client` or `kubelet-server` in the certificate folder.
#[derive(Debug, Clone)]
pub struct Store {
    folder: PathBuf,
    prefix: &'static str,
}

impl Store {
    pub fn client(folder: &Path) -> Self {
        Store { folder: folder.to_owned(), prefix: "kubelet-client" }
    }

    pub fn serving(folder: &Path) -> Self {
        Store { folder: folder.to_owned(), prefix: "kubelet-server" }
    }

    /// The link to the newest certificate and key.
    pub fn current(&self) -> PathBuf {
        self.folder.join(format!("{}-current.pem", self.prefix))
    }

    /// Certificate and key that are in use; None when there are none.
    pub fn read(&self) -> Option<Vec<u8>> {
        std::fs::read(self.current()).ok()
    }

    /// Where the key is that a certificate has been asked for, until it is there. The kubelet's place.
    pub fn key_in_waiting(&self) -> PathBuf {
        self.folder.join(format!("{}.key.tmp", self.prefix))
    }

    /// Keeps that key, for a restart that happens while the answer is waited for.
    ///
    /// # Errors
    /// When the folder cannot be written.
    pub fn keep_key(&self, pem: &str) -> Result<(), IdentityError> {
        let path = self.key_in_waiting();
        let refused = |source| IdentityError::Write { path: path.clone(), source };
        std::fs::DirBuilder::new().recursive(true).mode(0o755).create(&self.folder).map_err(refused)?;
        state_file::write(&path, pem.as_bytes()).map_err(refused)
    }

    /// Keeps a new certificate with its key and moves the link; a crash leaves the old one in place.
    ///
    /// # Errors
    /// When the folder cannot be written.
    pub fn keep(&self, pem: &str) -> Result<(), IdentityError> {
        let now = time::OffsetDateTime::now_utc();
        let stamp = format!(
            "{:04}-{:02}-{:02}-{:02}-{:02}-{:02}",
            now.year(),
            u8::from(now.month()),
            now.day(),
            now.hour(),
            now.minute(),
            now.second()
        );
        let file = self.folder.join(format!("{}-{stamp}.pem", self.prefix));
        let refused = |path: &Path| {
            let path = path.to_owned();
            move |source| IdentityError::Write { path, source }
        };
        std::fs::DirBuilder::new().recursive(true).mode(0o755).create(&self.folder).map_err(refused(&self.folder))?;
        state_file::write(&file, pem.as_bytes()).map_err(refused(&file))?;
        let link = self.folder.join(format!("{}-updated.pem", self.prefix));
        // Left over from a crash.
        let _ = std::fs::remove_file(&link);
        std::os::unix::fs::symlink(&file, &link).map_err(refused(&link))?;
        std::fs::rename(&link, self.current()).map_err(refused(&self.current()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_link_moves_to_what_was_kept_last() {
        let folder = std::env::temp_dir().join(format!("node-agent-pki-{}", crate::backoff::random_below(u32::MAX)));
        let store = Store::client(&folder);
        assert!(store.read().is_none());
        store.keep("one").expect("kept");
        store.keep("two").expect("kept");
        assert_eq!(store.read().as_deref(), Some(b"two".as_slice()));
        assert!(std::fs::symlink_metadata(store.current()).expect("a link").file_type().is_symlink());
        std::fs::remove_dir_all(folder).expect("removes");
    }

    #[test]
    fn the_validity_is_the_certificates() {
        let made = rcgen::generate_simple_self_signed(vec!["n".into()]).expect("made");
        let validity = Validity::of(made.cert.pem().as_bytes()).expect("read");
        assert!(validity.not_before < validity.not_after && !validity.is_over(validity.not_before));
        assert_eq!(Validity::of(b"nothing"), None);
    }
}
