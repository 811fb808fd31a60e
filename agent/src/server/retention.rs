//! How many checkpoints of one container stay: the newest ones, as far as count, age and bytes allow.
//!
//! Applied after each new archive. The one just made always stays, and nothing is touched that is not named as the agent
//! names its archives.

use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

/// Zero is no limit.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Retention {
    pub count: usize,
    pub age: Duration,
    pub bytes: u64,
}

/// An archive of one container.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Archive {
    path: PathBuf,
    /// As in its name, which sorts by time.
    taken: String,
    modified: SystemTime,
    bytes: u64,
}

impl Retention {
    /// Removes what `prefix` has too much of in `folder`; returns what was removed.
    ///
    /// # Errors
    /// The folder cannot be read. An archive that cannot be removed is left.
    pub fn apply(&self, folder: &Path, prefix: &str, now: SystemTime) -> std::io::Result<Vec<PathBuf>> {
        if *self == Retention::default() {
            return Ok(Vec::new());
        }
        let surplus = self.surplus(archives(folder, prefix)?, now);
        Ok(surplus.into_iter().filter(|path| std::fs::remove_file(path).is_ok()).collect())
    }

    fn surplus(&self, mut all: Vec<Archive>, now: SystemTime) -> Vec<PathBuf> {
        all.sort_by(|a, b| (&b.taken, b.modified).cmp(&(&a.taken, a.modified)));
        let (mut kept, mut bytes) = (0_usize, 0_u64);
        let mut surplus = Vec::new();
        for archive in all {
            let age = now.duration_since(archive.modified).unwrap_or_default();
            let too_many = self.count > 0 && kept >= self.count;
            let too_old = !self.age.is_zero() && age > self.age;
            let too_big = self.bytes > 0 && bytes.saturating_add(archive.bytes) > self.bytes;
            if kept > 0 && (too_many || too_old || too_big) {
                surplus.push(archive.path);
                continue;
            }
            kept += 1;
            bytes = bytes.saturating_add(archive.bytes);
        }
        surplus
    }
}

fn archives(folder: &Path, prefix: &str) -> std::io::Result<Vec<Archive>> {
    let mut found = Vec::new();
    for entry in folder.read_dir()? {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        let Some(taken) = name.strip_prefix(prefix).and_then(|rest| rest.strip_suffix(".tar")) else { continue };
        // Another container's name may begin like this one's; what follows is a time or not ours.
        if proto::time::parse_rfc3339(taken).is_err() {
            continue;
        }
        let metadata = entry.metadata()?;
        if metadata.is_file() {
            let modified = metadata.modified()?;
            found.push(Archive { path: entry.path(), taken: taken.to_owned(), modified, bytes: metadata.len() });
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn left(retention: Retention, sizes: &[(&str, usize)]) -> Vec<String> {
        let random = crate::backoff::random_below(u32::MAX);
        let folder = std::env::temp_dir().join(format!("node-agent-checkpoints-{random}"));
        std::fs::create_dir_all(&folder).unwrap();
        for (name, size) in sizes {
            std::fs::write(folder.join(name), vec![0; *size]).unwrap();
        }
        retention.apply(&folder, "checkpoint-p_ns-c-", SystemTime::now()).unwrap();
        let mut names: Vec<String> =
            folder.read_dir().unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
        names.sort_unstable();
        std::fs::remove_dir_all(folder).unwrap();
        names
    }

    const THREE: [(&str, usize); 3] = [
        ("checkpoint-p_ns-c-2026-01-01T00:00:00Z.tar", 10),
        ("checkpoint-p_ns-c-2026-01-02T00:00:00Z.tar", 10),
        ("checkpoint-p_ns-c-2026-01-03T00:00:00Z.tar", 10),
    ];

    #[test]
    fn the_newest_stay_within_count_and_bytes() {
        assert_eq!(left(Retention::default(), &THREE).len(), 3);
        assert_eq!(left(Retention { count: 2, ..Retention::default() }, &THREE), [THREE[1].0, THREE[2].0]);
        assert_eq!(left(Retention { bytes: 15, ..Retention::default() }, &THREE), [THREE[2].0]);
        assert_eq!(left(Retention { bytes: 1, ..Retention::default() }, &THREE), [THREE[2].0]);
    }

    #[test]
    fn other_containers_and_other_files_are_left_alone() {
        let others = [
            ("checkpoint-p_ns-c-d-2026-01-01T00:00:00Z.tar", 1),
            ("checkpoint-p_ns-c-notes.tar", 1),
            ("checkpoint-p_ns-c-2026-01-01T00:00:00Z.tar", 1),
            ("checkpoint-p_ns-c-2026-01-02T00:00:00Z.tar", 1),
        ];
        assert_eq!(left(Retention { count: 1, ..Retention::default() }, &others).len(), 3);
    }

    #[test]
    fn the_last_one_stays_however_old() {
        let old = Archive {
            path: "a".into(),
            taken: "2020-01-01T00:00:00Z".into(),
            modified: SystemTime::UNIX_EPOCH,
            bytes: 5,
        };
        let older = Archive { path: "b".into(), taken: "2019-01-01T00:00:00Z".into(), ..old.clone() };
        let retention = Retention { age: Duration::from_secs(60), ..Retention::default() };
        assert_eq!(retention.surplus(vec![older, old], SystemTime::now()), [PathBuf::from("b")]);
    }
}
