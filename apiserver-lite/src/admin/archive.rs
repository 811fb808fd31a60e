//! The file that `backup` writes: a gzipped tar archive, so that any system can look into it.
//!
//! Members in this order: `backup.json` (form, revision, and the SHA-256 of each further member), `store.snap` (a snapshot
//! in the store's own form, with checksums of its own), and `pki/NAME` for each key and certificate.

use std::collections::BTreeMap;
use std::io::{Read as _, Write};
use std::path::Path;

use flate2::Compression;
use flate2::read::GzDecoder;
use flate2::write::GzEncoder;
use ring::digest::{SHA256, digest};
use serde::{Deserialize, Serialize};

use super::AdminError;

const FORM: &str = "apiserver-lite-backup/1";
const HEAD: &str = "backup.json";
const STORE: &str = "store.snap";
/// Authorities and the key of service account tokens: what cannot be made anew without every client noticing.
pub const KEYS: [&str; 6] = ["ca.crt", "ca.key", "front-proxy-ca.crt", "front-proxy-ca.key", "sa.key", "sa.pub"];

#[derive(Serialize, Deserialize)]
struct Head {
    form: String,
    /// When it was made, RFC 3339.
    made: String,
    revision: u64,
    objects: usize,
    /// Hexadecimal SHA-256 of each member.
    sha256: BTreeMap<String, String>,
}

/// What a backup holds.
#[derive(Debug)]
pub struct Archive {
    pub made: String,
    pub revision: u64,
    pub objects: usize,
    pub snapshot: Vec<u8>,
    /// By name of [`KEYS`].
    pub keys: BTreeMap<String, Vec<u8>>,
}

fn sum(bytes: &[u8]) -> String {
    digest(&SHA256, bytes).as_ref().iter().map(|b| format!("{b:02x}")).collect()
}

impl Archive {
    /// Writes the archive and hands back what it was written to.
    pub fn write<W: Write>(&self, out: W) -> std::io::Result<W> {
        let mut members = vec![(STORE.to_owned(), self.snapshot.as_slice())];
        members.extend(self.keys.iter().map(|(name, bytes)| (format!("pki/{name}"), bytes.as_slice())));
        let head = Head {
            form: FORM.into(),
            made: self.made.clone(),
            revision: self.revision,
            objects: self.objects,
            sha256: members.iter().map(|(name, bytes)| (name.clone(), sum(bytes))).collect(),
        };
        let head = serde_json::to_vec_pretty(&head)?;
        let mut tar = tar::Builder::new(GzEncoder::new(out, Compression::default()));
        for (name, bytes) in
            std::iter::once((HEAD, head.as_slice())).chain(members.iter().map(|(n, b)| (n.as_str(), *b)))
        {
            let mut header = tar::Header::new_gnu();
            header.set_size(bytes.len() as u64);
            header.set_mode(0o600);
            tar.append_data(&mut header, name, bytes)?;
        }
        tar.into_inner()?.finish()
    }

    /// Reads an archive and verifies the sums.
    ///
    /// # Errors
    /// What is not as written.
    pub fn read(path: &Path) -> Result<Self, AdminError> {
        let io = |source| AdminError::Io { path: path.into(), source };
        let foreign =
            |reason: &dyn std::fmt::Display| AdminError::NoBackup { path: path.into(), reason: reason.to_string() };
        let bad = |reason: String| AdminError::BadBackup { path: path.into(), reason };
        let file = std::io::BufReader::new(std::fs::File::open(path).map_err(io)?);
        let mut tar = tar::Archive::new(GzDecoder::new(file));
        let mut head: Option<Head> = None;
        let mut members: BTreeMap<String, Vec<u8>> = BTreeMap::new();
        let known = |name: &str| name == STORE || name.strip_prefix("pki/").is_some_and(|key| KEYS.contains(&key));
        for entry in tar.entries().map_err(|e| foreign(&e))? {
            // What comes after our head was ours once.
            let wrong = |e: std::io::Error| if head.is_none() { foreign(&e) } else { bad(e.to_string()) };
            let mut entry = entry.map_err(wrong)?;
            let name = entry.path().map_err(wrong)?.to_string_lossy().into_owned();
            if head.is_none() && name != HEAD {
                return Err(foreign(&format!("it begins with {name}")));
            }
            let mut bytes = Vec::new();
            entry.read_to_end(&mut bytes).map_err(wrong)?;
            if head.is_none() {
                let read: Head = serde_json::from_slice(&bytes).map_err(|e| foreign(&e))?;
                if read.form != FORM {
                    return Err(foreign(&format!("the form {:?} is not known here", read.form)));
                }
                head = Some(read);
            } else if known(&name) {
                members.insert(name, bytes);
            } else {
                return Err(bad(format!("{name} does not belong there")));
            }
        }
        let head = head.ok_or_else(|| foreign(&"it is empty"))?;
        // The end of the compressed stream carries a sum of its own, which is looked at only when it is reached.
        std::io::copy(&mut tar.into_inner(), &mut std::io::sink()).map_err(|e| bad(e.to_string()))?;
        if let Some(lost) = head.sha256.keys().find(|name| !members.contains_key(*name)) {
            return Err(bad(format!("{lost} is missing")));
        }
        if let Some((name, _)) = members.iter().find(|(name, bytes)| head.sha256.get(*name) != Some(&sum(bytes))) {
            return Err(bad(format!("{name} is not what was written")));
        }
        let snapshot = members.remove(STORE).ok_or_else(|| bad(format!("{STORE} is missing")))?;
        let keys = members.into_iter().filter_map(|(name, bytes)| Some((name.strip_prefix("pki/")?.to_owned(), bytes)));
        Ok(Archive { made: head.made, revision: head.revision, objects: head.objects, snapshot, keys: keys.collect() })
    }
}
