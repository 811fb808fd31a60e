//! What is in a checkpoint's archive: `node-agent checkpoint inspect FILE.tar`.
//!
//! The descriptions are kept, the rest is only measured: no page of memory is written to disk, or read into memory. Archives
//! come from anywhere, so whatever in one of them could lead out of it, or cost more than its size, refuses it as a whole:
//! paths and links, long names without end, holes, folders in folders without end. What a header says is believed as far as
//! the file goes.
//!
//! Followed: CRIU's and checkpointctl's names (`config.dump`, `spec.dump`, `checkpoint/pages-*.img`, `rootfs-diff.tar`).

use std::collections::BTreeMap;
use std::io::{Read, Seek};
use std::path::{Component, Path, PathBuf};

use serde::Serialize;
use serde_json::Value;

use crate::people::printable;

/// A description longer than this is none.
const MAX_DESCRIPTION: u64 = 4 << 20;
/// Names and other extensions of a header; file systems take names of a few thousand bytes.
const MAX_EXTENSION: u64 = 256 << 10;
/// Folders in folders; those of a checkpoint are two deep.
const MAX_DEPTH: i32 = 64;
/// Entries of an archive at most.
const MAX_ENTRIES: u64 = 1_000_000;

/// Why an archive cannot be read; its maker's fault unless `Read`.
#[derive(Debug, thiserror::Error)]
pub enum ArchiveError {
    /// What is wrong with a damaged archive is told with bytes of it.
    #[error("cannot read {path}: {}", printable(&source.to_string()))]
    Read { path: PathBuf, source: std::io::Error },
    #[error("refused: {0:?} leads out of the archive")]
    Escapes(String),
    #[error("refused: more than {MAX_ENTRIES} entries")]
    TooMany,
    #[error("refused: {0:?} is more than {MAX_DEPTH} folders deep")]
    TooDeep(String),
    /// Of a description or of a header's extension.
    #[error("refused: {name:?} has {bytes} bytes, more than {limit}")]
    TooLarge { name: String, bytes: u64, limit: u64 },
    /// Holes make a file of any size out of nothing; those who write checkpoints have none.
    #[error("refused: {0:?} is a sparse file")]
    Sparse(String),
    #[error("refused: {0:?} is longer than the archive")]
    Truncated(String),
    #[error("{0} is no regular file")]
    NoFile(PathBuf),
    #[error("{name} is no JSON: {}", printable(&source.to_string()))]
    Description { name: &'static str, source: serde_json::Error },
    #[error("no checkpoint of a container: config.dump and spec.dump are missing")]
    NotOne,
}

/// The archive in short.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Summary {
    pub container: String,
    pub pod: String,
    pub namespace: String,
    pub image: String,
    pub image_digest: String,
    pub id: String,
    pub runtime: String,
    pub created: String,
    pub checkpointed: String,
    pub command: Vec<String>,
    pub entries: u64,
    /// Bytes by what they are for: memory, root file system, process state, other.
    pub sizes: BTreeMap<&'static str, u64>,
    pub config: Value,
    pub spec: Value,
}

/// # Errors
/// See [`ArchiveError`].
pub fn inspect(path: &Path) -> Result<Summary, ArchiveError> {
    let failed = |source| ArchiveError::Read { path: path.to_owned(), source };
    // A pipe would keep whoever opens it waiting.
    let metadata = path.metadata().map_err(failed)?;
    if !metadata.is_file() {
        return Err(ArchiveError::NoFile(path.to_owned()));
    }
    read(std::io::BufReader::new(std::fs::File::open(path).map_err(failed)?), path)
}

/// Looks at the headers alone, before anything that they announce is read.
fn check(archive: &mut (impl Read + Seek), path: &Path) -> Result<(), ArchiveError> {
    let failed = |source| ArchiveError::Read { path: path.to_owned(), source };
    let length = archive.seek(std::io::SeekFrom::End(0)).map_err(failed)?;
    archive.rewind().map_err(failed)?;
    let mut archive = tar::Archive::new(archive);
    let mut entries = 0_u64;
    for entry in archive.entries_with_seek().map_err(failed)?.raw(true) {
        let mut entry = entry.map_err(failed)?;
        entries += 1;
        // Each entry may have extensions of two kinds before it.
        if entries > MAX_ENTRIES.saturating_mul(3) {
            return Err(ArchiveError::TooMany);
        }
        let name = || String::from_utf8_lossy(&entry.header().path_bytes()).into_owned();
        let (kind, bytes) = (entry.header().entry_type(), entry.size());
        if entry.raw_file_position().checked_add(bytes).is_none_or(|end| end > length) {
            return Err(ArchiveError::Truncated(name()));
        }
        if kind.is_gnu_sparse() {
            return Err(ArchiveError::Sparse(name()));
        }
        let extends = kind.is_gnu_longname()
            || kind.is_gnu_longlink()
            || kind.is_pax_local_extensions()
            || kind.is_pax_global_extensions();
        if extends && bytes > MAX_EXTENSION {
            return Err(ArchiveError::TooLarge { name: name(), bytes, limit: MAX_EXTENSION });
        }
        if kind.is_pax_local_extensions() || kind.is_pax_global_extensions() {
            let shown = name();
            let mut text = Vec::new();
            entry.read_to_end(&mut text).map_err(failed)?;
            if text.windows(SPARSE_KEY.len()).any(|window| window == SPARSE_KEY) {
                return Err(ArchiveError::Sparse(shown));
            }
        }
    }
    Ok(())
}

/// With what the newer way of writing holes begins.
const SPARSE_KEY: &[u8] = b" GNU.sparse.";

fn read(mut archive: impl Read + Seek, path: &Path) -> Result<Summary, ArchiveError> {
    let failed = |source| ArchiveError::Read { path: path.to_owned(), source };
    check(&mut archive, path)?;
    archive.rewind().map_err(failed)?;
    let mut archive = tar::Archive::new(archive);
    let mut summary = Summary::default();
    let (mut config, mut spec) = (None, None);
    for entry in archive.entries_with_seek().map_err(failed)? {
        let mut entry = entry.map_err(failed)?;
        summary.entries += 1;
        if summary.entries > MAX_ENTRIES {
            return Err(ArchiveError::TooMany);
        }
        let name = entry.path().map_err(failed)?.into_owned();
        let shown = name.display().to_string();
        let depth = depth(&name).ok_or_else(|| ArchiveError::Escapes(shown.clone()))?;
        if depth > MAX_DEPTH {
            return Err(ArchiveError::TooDeep(shown));
        }
        if let Some(target) = entry.link_name().map_err(failed)? {
            // A hard link is named from the archive's root, a symbolic one from its own folder.
            let from = if entry.header().entry_type().is_symlink() { depth - 1 } else { 0 };
            stays(&target, from).then_some(()).ok_or_else(|| ArchiveError::Escapes(shown.clone()))?;
        }
        // What extended headers say counts, as it does for what is read.
        let size = entry.size();
        let plain = shown.trim_start_matches("./");
        let kind = match plain {
            name if name.starts_with("checkpoint/pages-") => "memory",
            name if name.starts_with("checkpoint/") => "processState",
            "rootfs-diff.tar" | "rootfs.diff" | "deleted.files" => "rootFileSystem",
            _ => "other",
        };
        let sum = summary.sizes.entry(kind).or_default();
        *sum = sum.saturating_add(size);
        let slot = match plain {
            "config.dump" => Some(("config.dump", &mut config)),
            "spec.dump" => Some(("spec.dump", &mut spec)),
            _ => None,
        };
        if let Some((name, slot)) = slot {
            if size > MAX_DESCRIPTION {
                return Err(ArchiveError::TooLarge { name: name.into(), bytes: size, limit: MAX_DESCRIPTION });
            }
            let mut text = Vec::new();
            entry.read_to_end(&mut text).map_err(failed)?;
            *slot = Some(
                serde_json::from_slice::<Value>(&text).map_err(|source| ArchiveError::Description { name, source })?,
            );
        }
    }
    if config.is_none() && spec.is_none() {
        return Err(ArchiveError::NotOne);
    }
    (summary.config, summary.spec) = (config.unwrap_or_default(), spec.unwrap_or_default());
    describe(&mut summary);
    Ok(summary)
}

/// How deep a path is below the archive's root; `None` when it leaves it.
fn depth(path: &Path) -> Option<i32> {
    let mut depth = 0;
    for part in path.components() {
        match part {
            Component::Normal(_) => depth += 1,
            Component::CurDir => {}
            Component::ParentDir => depth -= 1,
            Component::RootDir | Component::Prefix(_) => return None,
        }
        if depth < 0 {
            return None;
        }
    }
    Some(depth)
}

/// Whether a link's target stays in the archive when it is followed from a folder that deep.
fn stays(target: &Path, from: i32) -> bool {
    let mut depth = from;
    target.components().all(|part| {
        match part {
            Component::Normal(_) => depth += 1,
            Component::CurDir => {}
            Component::ParentDir => depth -= 1,
            Component::RootDir | Component::Prefix(_) => return false,
        }
        depth >= 0
    })
}

fn describe(summary: &mut Summary) {
    let text = |value: &Value, keys: &[&str]| {
        let found = keys.iter().find_map(|key| value.get(*key)?.as_str());
        found.unwrap_or_default().to_owned()
    };
    let note = |names: &[&str]| text(summary.spec.get("annotations").unwrap_or(&Value::Null), names);
    let container = note(&["io.kubernetes.cri.container-name", "io.kubernetes.container.name"]);
    let (pod, namespace) = (
        note(&["io.kubernetes.cri.sandbox-name", "io.kubernetes.pod.name"]),
        note(&["io.kubernetes.cri.sandbox-namespace", "io.kubernetes.pod.namespace"]),
    );
    let words = summary.spec.pointer("/process/args").and_then(Value::as_array);
    let command = words.into_iter().flatten().filter_map(|w| w.as_str().map(str::to_owned)).collect();
    let config = &summary.config;
    (summary.image, summary.image_digest) =
        (text(config, &["rootfsImageName", "rootfsImage"]), text(config, &["rootfsImageRef"]));
    (summary.id, summary.runtime) = (text(config, &["id"]), text(config, &["runtime"]));
    (summary.created, summary.checkpointed) = (text(config, &["createdTime"]), text(config, &["checkpointedTime"]));
    summary.container = if container.is_empty() { text(&summary.config, &["name"]) } else { container };
    (summary.pod, summary.namespace, summary.command) = (pod, namespace, command);
}

impl std::fmt::Display for Summary {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let lines = [
            ("Container", self.container.clone()),
            ("Pod", format!("{}/{}", self.namespace, self.pod)),
            ("Image", self.image.clone()),
            ("Digest", self.image_digest.clone()),
            ("ID", self.id.clone()),
            ("Runtime", self.runtime.clone()),
            ("Created", self.created.clone()),
            ("Checkpointed", self.checkpointed.clone()),
            ("Command", self.command.join(" ")),
            ("Entries", self.entries.to_string()),
        ];
        for (name, value) in lines.iter().filter(|(_, value)| !value.is_empty() && value != "/") {
            writeln!(out, "{name:<13} {}", printable(value))?;
        }
        for (name, bytes) in &self.sizes {
            writeln!(out, "{:<13} {bytes} bytes {name}", "Size")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn archive(entries: &[(&str, &str)]) -> Vec<u8> {
        let mut builder = tar::Builder::new(Vec::new());
        for (name, content) in entries {
            let mut header = tar::Header::new_gnu();
            // Written as bytes: the builder itself refuses the paths that are to be refused here.
            header.as_gnu_mut().unwrap().name[..name.len()].copy_from_slice(name.as_bytes());
            header.set_size(content.len() as u64);
            header.set_mode(0o600);
            header.set_entry_type(tar::EntryType::Regular);
            header.set_cksum();
            builder.append(&header, content.as_bytes()).unwrap();
        }
        builder.into_inner().unwrap()
    }

    fn of(archive: Vec<u8>) -> Result<Summary, ArchiveError> {
        read(std::io::Cursor::new(archive), Path::new("x"))
    }

    const SPEC: &str = r#"{"process":{"args":["sh","-c","x"]},"annotations":{"io.kubernetes.cri.container-name":"main","io.kubernetes.cri.sandbox-name":"web","io.kubernetes.cri.sandbox-namespace":"ns1"}}"#;
    const CONFIG: &str = r#"{"id":"abc","rootfsImageName":"busybox","runtime":"runc"}"#;

    #[test]
    fn the_container_its_image_and_sizes_are_told() {
        let entries = [
            ("config.dump", CONFIG),
            ("spec.dump", SPEC),
            ("checkpoint/pages-1.img", "12345"),
            ("checkpoint/core.img", "1"),
        ];
        let found = of(archive(&entries)).unwrap();
        assert_eq!((found.container.as_str(), found.pod.as_str(), found.image.as_str()), ("main", "web", "busybox"));
        assert_eq!(found.command, ["sh", "-c", "x"]);
        assert_eq!((found.sizes["memory"], found.sizes["processState"], found.entries), (5, 1, 4));
        assert!(found.to_string().contains("Pod           ns1/web\n"));
    }

    #[test]
    fn paths_that_lead_out_are_refused() {
        for name in ["../x", "/etc/passwd", "a/../../x"] {
            let made = archive(&[("config.dump", CONFIG), (name, "")]);
            assert!(matches!(of(made), Err(ArchiveError::Escapes(n)) if n == name));
        }
        assert!(stays(Path::new("../b"), 1) && !stays(Path::new("../../b"), 1) && !stays(Path::new("/b"), 3));
    }

    #[test]
    fn what_is_no_checkpoint_is_said_to_be_none() {
        assert!(matches!(of(archive(&[("a", "b")])), Err(ArchiveError::NotOne)));
        assert!(matches!(of(archive(&[("config.dump", "{")])), Err(ArchiveError::Description { .. })));
        assert!(matches!(of(vec![7; 700]), Err(ArchiveError::Read { .. })));
    }

    /// One header, with what it says of itself, and some bytes after it.
    fn one(name: &str, kind: tar::EntryType, size: u64, content: &[u8]) -> Vec<u8> {
        let mut header = tar::Header::new_gnu();
        header.as_gnu_mut().unwrap().name[..name.len()].copy_from_slice(name.as_bytes());
        header.set_size(size);
        header.set_entry_type(kind);
        header.set_cksum();
        let mut out = header.as_bytes().to_vec();
        out.extend_from_slice(content);
        out.resize(out.len().div_ceil(512) * 512, 0);
        out
    }

    /// A long name used to be read into memory whatever its length, and sizes were added up until they overflowed.
    #[test]
    fn what_costs_more_than_it_says_is_refused() {
        use tar::EntryType;
        let refused = |bytes: Vec<u8>| of(bytes).unwrap_err().to_string();
        let long = vec![b'a'; 300 << 10];
        for kind in [EntryType::GNULongName, EntryType::GNULongLink, EntryType::XHeader, EntryType::XGlobalHeader] {
            let why = refused(one("long", kind, long.len() as u64, &long));
            assert!(why.starts_with("refused: \"long\" has 307200 bytes"), "{why}");
        }
        let huge = refused(one("checkpoint/pages-1.img", EntryType::Regular, u64::MAX / 2, b"x"));
        assert_eq!(huge, "refused: \"checkpoint/pages-1.img\" is longer than the archive");
        let sparse = "refused: \"s\" is a sparse file";
        assert_eq!(refused(one("s", EntryType::GNUSparse, 0, b"")), sparse);
        let pax = b"22 GNU.sparse.major=1\n";
        assert_eq!(refused(one("s", EntryType::XHeader, pax.len() as u64, pax)), sparse);
        let spec = vec![b' '; 5 << 20];
        let why = refused(one("spec.dump", EntryType::Regular, spec.len() as u64, &spec));
        assert!(why.starts_with("refused: \"spec.dump\" has 5242880 bytes"), "{why}");
        let nested = "[".repeat(100_000);
        assert!(matches!(of(archive(&[("config.dump", &nested)])), Err(ArchiveError::Description { .. })));
    }

    #[test]
    fn folders_in_folders_end_somewhere() {
        let mut builder = tar::Builder::new(Vec::new());
        let mut header = tar::Header::new_gnu();
        header.set_size(0);
        builder.append_data(&mut header, "a/".repeat(70), [].as_slice()).unwrap();
        assert!(matches!(of(builder.into_inner().unwrap()), Err(ArchiveError::TooDeep(_))));
        assert!(matches!(inspect(Path::new("/dev/null")), Err(ArchiveError::NoFile(_))));
    }
}
