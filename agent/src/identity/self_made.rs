//! A serving certificate of the agent's own making, for nodes that are given none and ask nobody for one.
//!
//! `kubelet.crt` and `kubelet.key` in the certificate folder: made once, good for a year as the kubelet's, and made anew in
//! the last third of their life or when somebody asks for new certificates. Earlier agents made some that last for ever;
//! those stay until somebody asks. What an administrator or a kubelet put there is theirs: it is read again when it changes,
//! and never written.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use rcgen::{CertificateParams, DnType, ExtendedKeyUsagePurpose, KeyPair, KeyUsagePurpose};
use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject as _;
use time::OffsetDateTime;

use super::rotation::{Renewal, due};
use super::{IdentityError, RequestError, Serving, follow_files};
use crate::state_file;

/// The kubelet's.
const LIFE: time::Duration = time::Duration::days(365);
/// Clocks of clients may be late.
const BEFORE: time::Duration = time::Duration::hours(1);
/// The common name in certificates of earlier agents.
const FORMER: &str = "rcgen self signed cert";
/// After a certificate that could not be written.
const AGAIN: Duration = Duration::from_secs(60);

/// Where the certificate and its key are.
#[derive(Debug, Clone)]
pub struct SelfMade {
    folder: PathBuf,
}

impl SelfMade {
    pub fn at(folder: &Path) -> Self {
        SelfMade { folder: folder.to_owned() }
    }

    fn certificate(&self) -> PathBuf {
        self.folder.join("kubelet.crt")
    }

    fn key(&self) -> PathBuf {
        self.folder.join("kubelet.key")
    }

    /// Certificate and key, in PEM; made for these DNS names and addresses where there are none.
    ///
    /// # Errors
    /// When they cannot be made, written or read.
    pub fn get(&self, names: &[String]) -> Result<(Vec<u8>, Vec<u8>), IdentityError> {
        if !self.certificate().exists() || !self.key().exists() {
            self.make(names)?;
        }
        let read = |path: PathBuf| {
            let bytes = std::fs::read(&path);
            bytes.map_err(|source| IdentityError::Read { path, source })
        };
        let (certificate, key) = (read(self.certificate())?, read(self.key())?);
        // An end between the writing of the two leaves a pair that does not fit.
        if Serving::pair(&certificate, &key).is_err() && self.is_own() {
            self.make(names)?;
            return Ok((read(self.certificate())?, read(self.key())?));
        }
        Ok((certificate, key))
    }

    /// Whether the certificate that is there is one that an agent made: it names no other issuer, and as its subject what
    /// [`signed`] writes, or what agents wrote before.
    fn is_own(&self) -> bool {
        let Ok(pem) = std::fs::read(self.certificate()) else { return false };
        let Some(der) = CertificateDer::pem_slice_iter(&pem).find_map(Result::ok) else { return false };
        let Ok((_, certificate)) = x509_parser::parse_x509_certificate(&der) else { return false };
        let Some(name) = certificate.subject().iter_common_name().next().and_then(|name| name.as_str().ok()) else {
            return false;
        };
        let timed = name.rsplit_once('@').is_some_and(|(_, at)| at.parse::<i64>().is_ok());
        certificate.issuer().as_raw() == certificate.subject().as_raw() && (timed || name == FORMER)
    }

    /// Makes them anew.
    fn make(&self, names: &[String]) -> Result<(), IdentityError> {
        let (certificate, key) = signed(names, OffsetDateTime::now_utc())?;
        let refused = |path: PathBuf| move |source| IdentityError::Write { path, source };
        std::fs::create_dir_all(&self.folder).map_err(refused(self.folder.clone()))?;
        // The key first: whoever finds a new certificate finds its key.
        state_file::write(&self.key(), key.as_bytes()).map_err(refused(self.key()))?;
        state_file::write_as(&self.certificate(), certificate.as_bytes(), 0o644).map_err(refused(self.certificate()))
    }
}

fn signed(names: &[String], now: OffsetDateTime) -> Result<(String, String), RequestError> {
    let mut params = CertificateParams::new(names.to_vec())?;
    let host = names.first().map_or("node", String::as_str);
    params.distinguished_name.push(DnType::CommonName, format!("{host}@{}", now.unix_timestamp()));
    (params.not_before, params.not_after) = (now - BEFORE, now - BEFORE + LIFE);
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature, KeyUsagePurpose::KeyEncipherment];
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    let key = KeyPair::generate()?;
    Ok((params.self_signed(&key)?.pem(), key.serialize_pem()))
}

/// Makes the certificate in the folder anew in time, and when somebody asks, until the task is dropped. It is for these
/// names. A certificate of somebody else's making is followed if `follows`, else it stays what it was at the start.
pub async fn keep_self_made(
    (serving, folder): (Arc<Serving>, PathBuf),
    names: Vec<String>,
    renewal: Arc<Renewal>,
    follows: bool,
) {
    let mut wish = renewal.wishes();
    let files = SelfMade::at(&folder);
    loop {
        if files.is_own() {
            due(std::fs::read(files.certificate()).ok(), &files.certificate(), Duration::ZERO, &mut wish).await;
        }
        // Asked again: somebody may have put another one there meanwhile.
        if !files.is_own() && !follows {
            return;
        }
        if !files.is_own() {
            if let Ok((certificate, key)) = files.get(&names)
                && let Err(error) = serving.set(&certificate, &key)
            {
                tracing::warn!(error, certificate = %files.certificate().display(), "the serving certificate cannot be used");
            }
            return follow_files(serving, files.certificate(), files.key()).await;
        }
        let made = files.make(&names).and_then(|()| files.get(&names));
        let shown = made.map_err(|e| e.to_string()).and_then(|(certificate, key)| serving.set(&certificate, &key));
        match shown {
            Ok(()) => tracing::info!(names = names.join(" "), "serving with a new certificate of the agent's own"),
            Err(error) => {
                tracing::error!(error, "cannot make the serving certificate anew");
                tokio::time::sleep(AGAIN).await;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::Validity;
    use super::*;

    fn folder(name: &str) -> PathBuf {
        std::env::temp_dir().join(format!("node-agent-{name}-{}", crate::backoff::random_below(u32::MAX)))
    }

    /// It was good until the year 4096.
    #[test]
    fn a_certificate_of_ones_own_lasts_a_year_and_is_kept() {
        let folder = folder("self");
        let files = SelfMade::at(&folder);
        let names = ["n".to_owned(), "10.0.2.15".to_owned()];
        let (certificate, key) = files.get(&names).expect("made");
        let validity = Validity::of(&certificate).expect("a certificate");
        assert_eq!(validity.not_after - validity.not_before, 365 * 86_400);
        assert!(super::super::store::is_for(&certificate, &names));
        Serving::pair(&certificate, &key).expect("they belong together");
        assert!(files.is_own());
        assert_eq!(files.get(&names).expect("kept").0, certificate);
        std::fs::write(files.key(), KeyPair::generate().expect("a key").serialize_pem()).expect("writes");
        let (again, key) = files.get(&names).expect("made anew");
        assert_ne!(again, certificate);
        Serving::pair(&again, &key).expect("they belong together");
        std::fs::remove_dir_all(folder).expect("removes");
    }

    /// It was overwritten in the last third of its life, and its key with it.
    #[tokio::test]
    async fn one_of_somebody_else_is_never_written() {
        let folder = folder("theirs");
        std::fs::create_dir_all(&folder).expect("a folder");
        let mut params = CertificateParams::new(vec!["n".to_owned()]).expect("a name");
        params.distinguished_name.push(DnType::CommonName, "n.example");
        let now = OffsetDateTime::now_utc();
        (params.not_before, params.not_after) = (now - LIFE, now + BEFORE);
        let key = KeyPair::generate().expect("a key");
        let theirs = params.self_signed(&key).expect("signed").pem();
        std::fs::write(folder.join("kubelet.crt"), &theirs).expect("writes");
        std::fs::write(folder.join("kubelet.key"), key.serialize_pem()).expect("writes");
        assert!(!SelfMade::at(&folder).is_own());
        let (renewal, serving) = (Arc::new(Renewal::default()), Arc::new(Serving::default()));
        let keep =
            |follows| keep_self_made((serving.clone(), folder.clone()), vec!["n".to_owned()], renewal.clone(), follows);
        // Nor is it looked after where files are not followed.
        keep(false).await;
        let kept = tokio::spawn(keep(true));
        renewal.ask();
        tokio::time::sleep(Duration::from_millis(200)).await;
        assert_eq!(std::fs::read_to_string(folder.join("kubelet.crt")).expect("there"), theirs);
        kept.abort();
        std::fs::remove_dir_all(folder).expect("removes");
    }

    #[tokio::test]
    async fn one_that_lasts_for_ever_is_kept_until_somebody_asks() {
        let folder = folder("old");
        std::fs::create_dir_all(&folder).expect("a folder");
        let old = rcgen::generate_simple_self_signed(vec!["n".to_owned()]).expect("made");
        std::fs::write(folder.join("kubelet.crt"), old.cert.pem()).expect("writes");
        std::fs::write(folder.join("kubelet.key"), old.signing_key.serialize_pem()).expect("writes");
        let (renewal, serving) = (Arc::new(Renewal::default()), Arc::new(Serving::default()));
        let kept = tokio::spawn(keep_self_made((serving, folder.clone()), vec!["n".to_owned()], renewal.clone(), true));
        tokio::time::sleep(Duration::from_millis(100)).await;
        let read = || std::fs::read_to_string(folder.join("kubelet.crt")).expect("there");
        assert_eq!(read(), old.cert.pem());
        renewal.ask();
        while read() == old.cert.pem() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        kept.abort();
        std::fs::remove_dir_all(folder).expect("removes");
    }
}
