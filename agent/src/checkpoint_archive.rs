//! What is in a checkpoint's archive: `node-agent checkpoint inspect FILE.tar`.
//!
//! Reads the archive from its beginning to its end once. The descriptions are kept, the rest is only measured: no page
//! of memory is written to disk. An archive with a path that leads out of it is refused as a whole.
//!
//! Followed: CRIU's and checkpointctl's names (`config.dump`, `spec.dump`, `checkpoint/pages-*.img`, `rootfs-diff.tar`).

use std::collections::BTreeMap;
use std::io::Read;
use std::path::{Component, Path, PathBuf};

use serde::Serialize;
use serde_json::Value;

use crate::people::printable;

/// A description longer than this is none.
const MAX_DESCRIPTION: u64 = 16 << 20;
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
    let file = std::fs::File::open(path).map_err(|source| ArchiveError::Read { path: path.to_owned(), source })?;
    read(std::io::BufReader::new(file), path)
}

fn read(archive: impl Read, path: &Path) -> Result<Summary, ArchiveError> {
    let failed = |source| ArchiveError::Read { path: path.to_owned(), source };
    let mut archive = tar::Archive::new(archive);
    let mut summary = Summary::default();
    let (mut config, mut spec) = (None, None);
    for entry in archive.entries().map_err(failed)? {
        let mut entry = entry.map_err(failed)?;
        summary.entries += 1;
        if summary.entries > MAX_ENTRIES {
            return Err(ArchiveError::TooMany);
        }
        let name = entry.path().map_err(failed)?.into_owned();
        let shown = name.display().to_string();
        let depth = depth(&name).ok_or_else(|| ArchiveError::Escapes(shown.clone()))?;
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
        *summary.sizes.entry(kind).or_default() += size;
        let slot = match plain {
            "config.dump" => Some(("config.dump", &mut config)),
            "spec.dump" => Some(("spec.dump", &mut spec)),
            _ => None,
        };
        if let Some((name, slot)) = slot
            && size <= MAX_DESCRIPTION
        {
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
        let found = read(archive(&entries).as_slice(), Path::new("x")).unwrap();
        assert_eq!((found.container.as_str(), found.pod.as_str(), found.image.as_str()), ("main", "web", "busybox"));
        assert_eq!(found.command, ["sh", "-c", "x"]);
        assert_eq!((found.sizes["memory"], found.sizes["processState"], found.entries), (5, 1, 4));
        assert!(found.to_string().contains("Pod           ns1/web\n"));
    }

    #[test]
    fn paths_that_lead_out_are_refused() {
        for name in ["../x", "/etc/passwd", "a/../../x"] {
            let made = archive(&[("config.dump", CONFIG), (name, "")]);
            assert!(matches!(read(made.as_slice(), Path::new("x")), Err(ArchiveError::Escapes(n)) if n == name));
        }
        assert!(stays(Path::new("../b"), 1) && !stays(Path::new("../../b"), 1) && !stays(Path::new("/b"), 3));
    }

    #[test]
    fn what_is_no_checkpoint_is_said_to_be_none() {
        let read = |bytes: &[u8]| read(bytes, Path::new("x"));
        assert!(matches!(read(&archive(&[("a", "b")])), Err(ArchiveError::NotOne)));
        assert!(matches!(read(&archive(&[("config.dump", "{")])), Err(ArchiveError::Description { .. })));
        assert!(matches!(read(&[7; 700]), Err(ArchiveError::Read { .. })));
    }
}
