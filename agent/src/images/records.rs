//! Pull records: which credentials an image was pulled with, so that nobody uses an image of somebody else's registry
//! only because it is on the node.
//!
//! Two folders of small files below `image_manager`: `pulling` has one per image that is being pulled, `pulled` one per
//! image that was. At a start, an image that is there and was still being pulled counts as pulled with nobody knows
//! what. With the gate `KubeletEnsureSecretPulledImages` off nothing is written and everything may be used.
//!
//! Followed: `pkg/kubelet/images/pullmanager`; file names and contents are the kubelet's.

use std::collections::{BTreeMap, HashMap};
use std::io::Write as _;
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use proto::cri;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::credentials::{Credential, Source, sha256};
use super::reference;
use crate::metrics;
use crate::state_file::{self, Damaged};

/// How a file that was set aside ends.
const ASIDE: &str = "corrupt";
const API_VERSION: &str = "kubelet.config.k8s.io/v1beta1";
const OLD_API_VERSION: &str = "kubelet.config.k8s.io/v1alpha1";
/// Beyond so many secrets a match writes no further one: namespaces come and go.
const MATCH_LIMIT: usize = 100;

/// Whose images have to be checked against the pod's credentials (`imagePullCredentialsVerificationPolicy`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verification {
    Never,
    /// Those that the agent pulled; what was there before may be used.
    NotPreloaded,
    /// All but these repositories, and what begins like these.
    NotAllowlisted {
        repositories: Vec<String>,
        prefixes: Vec<String>,
    },
    Always,
}

impl Verification {
    /// From the configuration, which has been checked.
    pub fn new(policy: &str, allowlist: &[String]) -> Self {
        match policy {
            "NeverVerify" => Self::Never,
            "AlwaysVerify" => Self::Always,
            "NeverVerifyAllowlistedImages" => {
                let (prefixes, repositories): (Vec<&String>, Vec<&String>) =
                    allowlist.iter().partition(|p| p.ends_with("/*"));
                let prefixes = prefixes.into_iter().map(|p| p.trim_end_matches('*').to_owned()).collect();
                Self::NotAllowlisted { repositories: repositories.into_iter().cloned().collect(), prefixes }
            }
            _ => Self::NotPreloaded,
        }
    }

    fn asks(&self, repository: &str, pulled_here: bool) -> bool {
        match self {
            Self::Never => false,
            Self::NotPreloaded => pulled_here,
            Self::NotAllowlisted { repositories, prefixes } => {
                !repositories.iter().any(|r| r == repository) && !prefixes.iter().any(|p| repository.starts_with(p))
            }
            Self::Always => true,
        }
    }
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Intent {
    kind: String,
    api_version: String,
    image: String,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Record {
    kind: String,
    api_version: String,
    last_updated_time: String,
    image_ref: String,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    credential_mapping: BTreeMap<String, Credentials>,
}

/// What an image was pulled with.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Credentials {
    #[serde(skip_serializing_if = "Vec::is_empty")]
    kubernetes_secrets: Vec<SecretRecord>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    kubernetes_service_accounts: Vec<AccountRecord>,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    node_pods_accessible: bool,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct SecretRecord {
    uid: String,
    namespace: String,
    name: String,
    credential_hash: String,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct AccountRecord {
    uid: String,
    namespace: String,
    name: String,
}

impl Credentials {
    fn of(source: &Source, hash: &str) -> Self {
        let (uid, namespace, name) = match source {
            Source::Node => return Credentials { node_pods_accessible: true, ..Self::default() },
            Source::Secret { uid, namespace, name } | Source::ServiceAccount { uid, namespace, name } => {
                (uid.clone(), namespace.clone(), name.clone())
            }
        };
        match source {
            Source::Secret { .. } => {
                let secret = SecretRecord { uid, namespace, name, credential_hash: hash.to_owned() };
                Credentials { kubernetes_secrets: vec![secret], ..Self::default() }
            }
            _ => Credentials {
                kubernetes_service_accounts: vec![AccountRecord { uid, namespace, name }],
                ..Self::default()
            },
        }
    }

    /// Takes in what a later pull was made with; tells whether that was news.
    fn merge(&mut self, new: Credentials) -> bool {
        if self.node_pods_accessible {
            return false;
        }
        if new.node_pods_accessible {
            // Whoever may use it anyhow needs no list.
            *self = new;
            return true;
        }
        let before = self.clone();
        for secret in new.kubernetes_secrets {
            self.kubernetes_secrets
                .retain(|s| (&s.uid, &s.namespace, &s.name) != (&secret.uid, &secret.namespace, &secret.name));
            self.kubernetes_secrets.push(secret);
        }
        self.kubernetes_secrets.sort_by(|a, b| {
            (&a.namespace, &a.name, &a.uid, &a.credential_hash).cmp(&(
                &b.namespace,
                &b.name,
                &b.uid,
                &b.credential_hash,
            ))
        });
        for account in new.kubernetes_service_accounts {
            if !self.kubernetes_service_accounts.contains(&account) {
                self.kubernetes_service_accounts.push(account);
            }
        }
        self.kubernetes_service_accounts
            .sort_by(|a, b| (&a.namespace, &a.name, &a.uid).cmp(&(&b.namespace, &b.name, &b.uid)));
        *self != before
    }
}

/// What a look at the records came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Checked {
    /// Nobody has to show anything for it.
    Allowed,
    /// The pod has what it was pulled with.
    Found,
    /// The registry has to say.
    Missing,
    Broken,
}

impl Checked {
    /// As the kubelet counts it.
    fn word(self) -> &'static str {
        match self {
            Self::Allowed => "credentialPolicyAllowed",
            Self::Found => "credentialRecordFound",
            Self::Missing => "mustAuthenticate",
            Self::Broken => "error",
        }
    }
}

/// The records of this node.
pub struct Records {
    pulling: PathBuf,
    pulled: PathBuf,
    verification: Verification,
    /// Pulls under way by image; also keeps the files to one writer.
    under_way: Mutex<HashMap<String, usize>>,
}

impl Records {
    /// Opens the folders below the root directory, and tells of files that had to be set aside. An image whose record is
    /// among them counts as pulled here, with nobody knows what.
    pub fn open(root_dir: &Path, verification: Verification, tell: impl Fn(&Damaged)) -> Self {
        let folder = root_dir.join("image_manager");
        let records = Records {
            pulling: folder.join("pulling"),
            pulled: folder.join("pulled"),
            verification,
            under_way: Mutex::default(),
        };
        for path in [&records.pulling, &records.pulled] {
            if let Err(error) = std::fs::DirBuilder::new().recursive(true).mode(0o700).create(path) {
                tracing::error!(%error, path = %path.display(), "pull records cannot be kept");
            }
        }
        let pulling = damaged::<Intent>(&records.pulling);
        for (path, why) in pulling.into_iter().chain(damaged::<Record>(&records.pulled)) {
            tell(&state_file::set_aside(&path, why));
        }
        records.count();
        records
    }

    fn turn(&self) -> MutexGuard<'_, HashMap<String, usize>> {
        self.under_way.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes over what an earlier agent left: pulls that got through count as pulled.
    pub fn take_up(&self, images: &[cri::Image]) {
        let _turn = self.turn();
        for (path, intent) in read_all::<Intent>(&self.pulling) {
            // The intent names it as the pod writes it, the runtime with its tag.
            let tagged = reference::with_default_tag(&intent.image).unwrap_or_default();
            let is_it = |name: &String| *name == intent.image || *name == tagged;
            let has = |image: &&cri::Image| image.repo_tags.iter().chain(&image.repo_digests).any(is_it);
            let Some(image) = images.iter().find(has) else { continue };
            match self.note(&intent.image, &image.id, None) {
                Ok(()) => remove(&path),
                Err(error) => tracing::warn!(%error, image = intent.image, "cannot write a pull record"),
            }
        }
    }

    /// A pull begins.
    ///
    /// # Errors
    /// The record cannot be written; the pull must not be made then.
    pub fn begin(&self, image: &str) -> std::io::Result<()> {
        let mut turn = self.turn();
        let intent =
            Intent { kind: "ImagePullIntent".into(), api_version: API_VERSION.into(), image: image.to_owned() };
        write(&self.pulling, image, &intent)?;
        *turn.entry(image.to_owned()).or_default() += 1;
        self.count();
        Ok(())
    }

    /// A pull is over; `done` has the runtime's id of the image and what it was pulled with (`None` for no credentials).
    pub fn end(&self, image: &str, done: Option<(&str, Option<&Credential>)>) {
        let mut turn = self.turn();
        if let Some((id, credential)) = done {
            let used = match credential {
                Some(c) => Credentials::of(&c.source, &c.hash()),
                None => Credentials::of(&Source::Node, ""),
            };
            if let Err(error) = self.note(image, id, Some(used)) {
                // The intent stays, so that the image still counts as pulled here.
                tracing::error!(%error, image, "cannot write a pull record");
                return;
            }
        }
        let count = turn.entry(image.to_owned()).or_default();
        *count = count.saturating_sub(1);
        if *count == 0 {
            turn.remove(image);
            remove(&file(&self.pulling, image));
        }
        self.count();
    }

    /// Whether every pod may have an image that is on the node, whatever it has to show.
    pub fn is_open(&self, image: &str, id: &str) -> bool {
        let checked = self.check(image, id, &[]);
        let is_open = matches!(checked, Checked::Allowed | Checked::Found);
        if is_open {
            metrics::IMAGE_CHECKS.inc(&[checked.word()]);
        }
        is_open
    }

    /// Whether an image that is on the node has to be pulled, so that the registry says whether this pod may have it.
    pub fn must_pull(&self, image: &str, id: &str, credentials: &[Credential]) -> bool {
        let checked = self.check(image, id, credentials);
        metrics::IMAGE_CHECKS.inc(&[checked.word()]);
        !matches!(checked, Checked::Allowed | Checked::Found)
    }

    fn check(&self, image: &str, id: &str, credentials: &[Credential]) -> Checked {
        let turn = self.turn();
        let record: Option<Record> = match read(&file(&self.pulled, id)) {
            Ok(record) => record,
            Err(error) => {
                tracing::error!(%error, image, "a pull record cannot be read");
                return Checked::Broken;
            }
        };
        let files = [file(&self.pulled, id), file(&self.pulling, image)];
        let noted = |path: &PathBuf| path.exists() || path.with_extension(ASIDE).exists();
        let pulled_here = turn.contains_key(image) || files.iter().any(noted);
        let Some(repository) = repository(image) else { return Checked::Broken };
        if !self.verification.asks(&repository, pulled_here) {
            return Checked::Allowed;
        }
        let known = record.as_ref().and_then(|r| r.credential_mapping.get(&repository));
        let Some(known) = known else { return Checked::Missing };
        if known.node_pods_accessible {
            return Checked::Found;
        }
        for credential in credentials {
            let hash = credential.hash();
            let Some((same_place, same_hash)) = known.matches(credential, &hash) else { continue };
            if same_place != same_hash && known.kubernetes_secrets.len() < MATCH_LIMIT {
                let used = Credentials::of(&credential.source, &hash);
                if let Err(error) = self.note(image, id, Some(used)) {
                    tracing::error!(%error, image, "cannot write a pull record");
                }
            }
            return Checked::Found;
        }
        Checked::Missing
    }

    /// Counts the files. What is in memory is what is on disk: there is no cache that could be full.
    fn count(&self) {
        let files = |folder: &Path| f64::from(u32::try_from(paths(folder).count()).unwrap_or(u32::MAX));
        metrics::PULL_INTENTS.set(&[], files(&self.pulling));
        metrics::PULLED_RECORDS.set(&[], files(&self.pulled));
        metrics::PULL_INTENTS_IN_MEMORY.set(&[], 0.0);
        metrics::PULLED_RECORDS_IN_MEMORY.set(&[], 0.0);
    }

    /// Forgets images that the runtime does not have any more. `since` is when the list was begun, as RFC 3339 text: later
    /// records stay.
    pub fn prune(&self, ids: &[&str], since: &str) {
        let _turn = self.turn();
        for (path, record) in read_all::<Record>(&self.pulled) {
            if record.last_updated_time.as_str() < since && !ids.contains(&record.image_ref.as_str()) {
                remove(&path);
            }
        }
        self.count();
    }

    /// To be called in turn.
    fn note(&self, image: &str, id: &str, used: Option<Credentials>) -> std::io::Result<()> {
        let repository = repository(image)
            .ok_or_else(|| std::io::Error::new(std::io::ErrorKind::InvalidInput, "the image has no proper name"))?;
        let path = file(&self.pulled, id);
        let old: Option<Record> = read(&path).unwrap_or_default();
        let is_new = old.is_none();
        let mut record = old.unwrap_or_else(|| Record {
            kind: "ImagePulledRecord".into(),
            api_version: API_VERSION.into(),
            last_updated_time: String::new(),
            image_ref: id.to_owned(),
            credential_mapping: BTreeMap::new(),
        });
        let changed = match used {
            None => false,
            Some(used) => match record.credential_mapping.get_mut(&repository) {
                Some(known) => known.merge(used),
                None => {
                    record.credential_mapping.insert(repository, used);
                    true
                }
            },
        };
        if !is_new && !changed {
            return Ok(());
        }
        record.api_version = API_VERSION.into();
        record.last_updated_time = proto::time::Timestamp::now().to_seconds_text();
        write(&self.pulled, id, &record)
    }
}

impl Credentials {
    /// Whether this is known by its place, and by what it is; `None` when by neither.
    fn matches(&self, credential: &Credential, hash: &str) -> Option<(bool, bool)> {
        match &credential.source {
            Source::Node => None,
            Source::Secret { uid, namespace, name } => self.kubernetes_secrets.iter().find_map(|known| {
                let place = (&known.uid, &known.namespace, &known.name) == (uid, namespace, name);
                let same = !known.credential_hash.is_empty() && known.credential_hash == hash;
                (place || same).then_some((place, same))
            }),
            Source::ServiceAccount { uid, namespace, name } => self
                .kubernetes_service_accounts
                .iter()
                .any(|known| (&known.uid, &known.namespace, &known.name) == (uid, namespace, name))
                .then_some((true, true)),
        }
    }
}

/// The image without tag and digest, in full.
fn repository(image: &str) -> Option<String> {
    reference::parse(image).ok().map(|name| format!("{}/{}", name.domain, name.path))
}

fn file(folder: &Path, key: &str) -> PathBuf {
    folder.join(format!("sha256-{}", sha256(key.as_bytes())))
}

fn write(folder: &Path, key: &str, value: &impl Serialize) -> std::io::Result<()> {
    let path = file(folder, key);
    let temporary = path.with_extension("tmp");
    let mut options = std::fs::OpenOptions::new();
    let mut out = options.write(true).create(true).truncate(true).mode(0o600).open(&temporary)?;
    out.write_all(&serde_json::to_vec(value)?)?;
    out.write_all(b"\n")?;
    out.sync_all()?;
    std::fs::rename(&temporary, path)
}

/// `None` when there is no such file; one that is not understood is an error.
fn read<T: serde::de::DeserializeOwned>(path: &Path) -> std::io::Result<Option<T>> {
    let text = match std::fs::read(path) {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    let tree: Value = serde_json::from_slice(&text)?;
    let version = tree["apiVersion"].as_str().unwrap_or_default();
    if version != API_VERSION && version != OLD_API_VERSION {
        let why = format!("{} is of version {version:?}", path.display());
        return Err(std::io::Error::new(std::io::ErrorKind::InvalidData, why));
    }
    Ok(Some(serde_json::from_value(tree)?))
}

/// The records in a folder, without those that are being written.
fn paths(folder: &Path) -> impl Iterator<Item = PathBuf> {
    let all = folder.read_dir().into_iter().flatten().flatten().map(|e| e.path());
    all.filter(|p| p.extension().is_none())
}

fn read_all<T: serde::de::DeserializeOwned>(folder: &Path) -> Vec<(PathBuf, T)> {
    paths(folder).filter_map(|path| read(&path).ok().flatten().map(|value| (path, value))).collect()
}

/// Files that are no records, and why.
fn damaged<T: serde::de::DeserializeOwned>(folder: &Path) -> Vec<(PathBuf, std::io::Error)> {
    let wrong = paths(folder).filter_map(|path| read::<T>(&path).err().map(|why| (path, why)));
    // What the disk does not give now is not damaged.
    wrong.filter(|(_, why)| why.kind() == std::io::ErrorKind::InvalidData || why.get_ref().is_some()).collect()
}

fn remove(path: &Path) {
    if let Err(error) = std::fs::remove_file(path)
        && error.kind() != std::io::ErrorKind::NotFound
    {
        tracing::warn!(%error, path = %path.display(), "cannot remove a pull record");
    }
}

#[cfg(test)]
mod tests;
