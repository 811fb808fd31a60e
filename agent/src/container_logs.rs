//! Rotation of the logs that the runtime writes for containers.
//!
//! Every `containerLogMonitorInterval` the running containers are listed. A log that has reached `containerLogMaxSize` is
//! renamed to `N.log.YYYYMMDD-HHMMSS` (UTC) and the runtime is told to open a new one; the names sort by age. Rotated logs
//! but the newest are compressed (`.gz`), so that whoever reads the newest can finish; with the one being written there
//! are at most `containerLogMaxFiles`. A log that has vanished is opened anew.
//!
//! Every step can be broken off: what a killed agent leaves (`.tmp`, a log beside its `.gz`) goes with the next rotation,
//! and a rename that the runtime does not follow is taken back.
//!
//! Followed: `pkg/kubelet/logs/container_log_manager.go`.

use std::collections::HashMap;
use std::io;
use std::os::unix::fs::OpenOptionsExt as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use flate2::Compression;
use flate2::write::GzEncoder;
use futures_util::StreamExt as _;
use proto::cri::ContainerState;
use proto::quantity::Quantity;
use time::OffsetDateTime;
use time::format_description::FormatItem;
use time::macros::format_description;

use crate::config::Configuration;
use crate::cri::{CriClient, CriError};

const TIMESTAMP: &[FormatItem<'_>] = format_description!("[year][month][day]-[hour][minute][second]");
const COMPRESSED: &str = ".gz";
const TEMPORARY: &str = ".tmp";

/// When logs are rotated, and how many are kept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RotatePolicy {
    /// Bytes from which on a log is rotated; `None` for never.
    pub max_size: Option<u64>,
    /// Files of one container, the one being written included; at least 2.
    pub max_files: usize,
    /// Logs that are rotated at the same time.
    pub workers: usize,
    pub interval: Duration,
}

impl RotatePolicy {
    /// As configured; a negative size is never.
    pub fn of(config: &Configuration) -> Self {
        let count = |number: i32| usize::try_from(number).unwrap_or(0);
        Self {
            max_size: max_size(&config.container_log_max_size).ok().flatten(),
            max_files: count(config.container_log_max_files).max(2),
            workers: count(config.container_log_max_workers).max(1),
            interval: config.container_log_monitor_interval.get(),
        }
    }
}

/// `containerLogMaxSize` in bytes; `None` for a negative one, which means never.
///
/// # Errors
/// When it is no whole number of bytes.
pub fn max_size(text: &str) -> Result<Option<u64>, String> {
    let failed = |why: &str| format!("failed to parse container log max size {text:?}: {why}");
    let size: Quantity = text.parse().map_err(|e: proto::quantity::ParseError| failed(&e.to_string()))?;
    if size.milli_value() % 1000 != 0 {
        return Err(failed("invalid max log size"));
    }
    Ok(u64::try_from(size.value()).ok())
}

/// Why a log was not rotated; tried again at the next round.
#[derive(Debug, thiserror::Error)]
enum RotateError {
    #[error("{what} {path}: {source}")]
    File { what: &'static str, path: PathBuf, source: io::Error },
    #[error("failed to reopen the log of container {id}: {source}")]
    Reopen { id: String, source: CriError },
}

fn file(what: &'static str, path: &Path) -> impl FnOnce(io::Error) -> RotateError {
    move |source| RotateError::File { what, path: path.to_owned(), source }
}

/// Rotates until dropped.
pub async fn run(cri: CriClient, policy: RotatePolicy) {
    let Some(max_size) = policy.max_size else { return };
    let mut ticks = tokio::time::interval(policy.interval);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let mut paths = HashMap::new();
    loop {
        ticks.tick().await;
        paths = match running(&cri, paths).await {
            Ok(paths) => paths,
            Err(error) => {
                tracing::debug!(%error, "failed to list containers whose logs may be due");
                HashMap::new()
            }
        };
        let logs: Vec<_> = paths.iter().map(|(id, path)| (id.clone(), path.clone())).collect();
        let looked = tokio::task::spawn_blocking(move || due(logs, max_size)).await;
        let work = looked.unwrap_or_default().into_iter().map(|(id, path, state)| {
            let (cri, max_files) = (&cri, policy.max_files);
            async move {
                if let Err(error) = handle(cri, &id, &path, state, max_files).await {
                    tracing::warn!(%error, container = id, path = %path.display(), "failed to rotate a container's log");
                }
            }
        });
        futures_util::stream::iter(work).for_each_concurrent(policy.workers.max(1), |work| work).await;
    }
}

/// Log paths of the running containers by id; the runtime is asked only for those that are not in `known`.
async fn running(cri: &CriClient, mut known: HashMap<String, PathBuf>) -> Result<HashMap<String, PathBuf>, CriError> {
    let mut paths = HashMap::new();
    for container in cri.list_containers(None).await? {
        if container.state() != ContainerState::ContainerRunning {
            continue;
        }
        let path = match known.remove(&container.id) {
            Some(path) => path,
            // A container may go between the two questions.
            None => match cri.container_status(&container.id).await {
                Ok(status) if !status.log_path.is_empty() => PathBuf::from(status.log_path),
                Ok(_) => continue,
                Err(error) => {
                    tracing::debug!(%error, container = container.id, "failed to get the status of a container");
                    continue;
                }
            },
        };
        paths.insert(container.id, path);
    }
    Ok(paths)
}

/// What is to be done about a log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Due {
    Missing,
    Full,
}

/// The logs that something is to be done about. Blocks on the file system.
fn due(logs: Vec<(String, PathBuf)>, max_size: u64) -> Vec<(String, PathBuf, Due)> {
    let judged = logs.into_iter().filter_map(|(id, path)| {
        let due = match std::fs::metadata(&path) {
            Ok(found) => (found.len() >= max_size).then_some(Due::Full),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Some(Due::Missing),
            Err(error) => {
                tracing::warn!(%error, container = id, path = %path.display(), "failed to look at a container's log");
                None
            }
        };
        due.map(|due| (id, path, due))
    });
    judged.collect()
}

async fn handle(cri: &CriClient, id: &str, log: &Path, due: Due, max_files: usize) -> Result<(), RotateError> {
    let reopen = || async {
        let reopened = cri.reopen_container_log(id).await;
        reopened.map_err(|source| RotateError::Reopen { id: id.to_owned(), source })
    };
    if due == Due::Missing {
        return reopen().await;
    }
    let rotated = {
        let (path, now) = (log.to_owned(), OffsetDateTime::now_utc());
        let renamed = tokio::task::spawn_blocking(move || {
            tidy(&path, max_files)?;
            set_aside(&path, now)
        });
        renamed.await.map_err(|e| RotateError::File {
            what: "broke off rotating",
            path: log.to_owned(),
            source: io::Error::other(e),
        })??
    };
    if let Err(error) = reopen().await {
        // The runtime goes on writing to the old file: under its own name it is rotated at the next round.
        if let Err(error) = tokio::fs::rename(&rotated, log).await {
            tracing::error!(%error, container = id, path = %rotated.display(), "failed to give a log its name back");
        }
        return Err(error);
    }
    Ok(())
}

/// Removes the log of a container that is gone, with all that was rotated. What is not there is no error.
pub fn remove(log: &Path) -> io::Result<()> {
    for path in beside(log).or_else(not_found)?.iter().map(PathBuf::as_path).chain([log]) {
        std::fs::remove_file(path).or_else(not_found)?;
    }
    Ok(())
}

fn not_found<T: Default>(error: io::Error) -> io::Result<T> {
    if error.kind() == io::ErrorKind::NotFound { Ok(T::default()) } else { Err(error) }
}

/// Makes room among the rotated logs of one container and compresses them. Blocks on the file system.
fn tidy(log: &Path, max_files: usize) -> Result<(), RotateError> {
    let (mut rotated, unused) = in_use(beside(log).map_err(file("failed to list the logs of", log))?);
    for path in unused {
        std::fs::remove_file(&path).map_err(file("failed to remove the unused log", &path))?;
    }
    // Two more come: the one to be set aside now, and the one that the runtime opens.
    let excess = rotated.len().saturating_sub(max_files.saturating_sub(2));
    for path in rotated.drain(..excess) {
        std::fs::remove_file(&path).map_err(file("failed to remove the old log", &path))?;
    }
    for path in rotated.iter().filter(|path| !ends_with(path, COMPRESSED)) {
        compress(path).map_err(file("failed to compress the log", path))?;
    }
    Ok(())
}

/// The files `LOG.*` in the order of their names, which is that of their age.
fn beside(log: &Path) -> io::Result<Vec<PathBuf>> {
    let (Some(folder), Some(name)) = (log.parent(), log.file_name().and_then(|n| n.to_str())) else {
        return Ok(Vec::new());
    };
    let prefix = format!("{name}.");
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder)? {
        let entry = entry?;
        if entry.file_name().to_str().is_some_and(|name| name.starts_with(&prefix)) {
            found.push(entry.path());
        }
    }
    found.sort();
    Ok(found)
}

fn ends_with(path: &Path, suffix: &str) -> bool {
    path.to_str().is_some_and(|text| text.ends_with(suffix))
}

/// Parts logs in use from leftovers of a rotation that was broken off: temporary files, and logs that are compressed
/// already.
fn in_use(logs: Vec<PathBuf>) -> (Vec<PathBuf>, Vec<PathBuf>) {
    let compressed: Vec<PathBuf> = logs.iter().filter(|path| ends_with(path, COMPRESSED)).cloned().collect();
    logs.into_iter().partition(|path| {
        !ends_with(path, TEMPORARY)
            && (ends_with(path, COMPRESSED) || !compressed.contains(&with_suffix(path, COMPRESSED)))
    })
}

fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}

/// Replaces a log by its compressed form, which has the same mode.
fn compress(log: &Path) -> io::Result<()> {
    let temporary = with_suffix(log, TEMPORARY);
    let written = || -> io::Result<()> {
        let mut from = std::fs::File::open(log)?;
        let mode = from.metadata()?.permissions().mode() & 0o777;
        let to = std::fs::OpenOptions::new().create(true).write(true).truncate(true).mode(mode).open(&temporary)?;
        let mut encoder = GzEncoder::new(to, Compression::default());
        io::copy(&mut from, &mut encoder)?;
        encoder.finish()?;
        std::fs::rename(&temporary, with_suffix(log, COMPRESSED))
    };
    if let Err(error) = written() {
        // A full disk is better off without half a file; it is looked for again in any case.
        let _ = std::fs::remove_file(&temporary);
        return Err(error);
    }
    std::fs::remove_file(log)
}

/// Renames the log that is being written; the new name.
fn set_aside(log: &Path, now: OffsetDateTime) -> Result<PathBuf, RotateError> {
    // The format has no part that a date could lack.
    let rotated = with_suffix(log, &format!(".{}", now.format(TIMESTAMP).unwrap_or_default()));
    std::fs::rename(log, &rotated).map_err(file("failed to rotate the log", log))?;
    Ok(rotated)
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;

    use super::*;

    fn folder(name: &str) -> PathBuf {
        let dir = std::env::temp_dir().join(format!("container-logs-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&dir);
        std::fs::create_dir_all(&dir).unwrap();
        dir
    }

    fn names(dir: &Path) -> Vec<String> {
        let mut names: Vec<String> =
            std::fs::read_dir(dir).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    fn moment(text: &str) -> OffsetDateTime {
        time::PrimitiveDateTime::parse(text, TIMESTAMP).unwrap().assume_utc()
    }

    #[test]
    fn sizes_are_whole_bytes_and_negative_ones_turn_rotation_off() {
        assert_eq!(max_size("10Mi"), Ok(Some(10 << 20)));
        assert_eq!(max_size("-1"), Ok(None));
        assert_eq!(
            max_size("100m").unwrap_err(),
            "failed to parse container log max size \"100m\": invalid max log size"
        );
        assert!(max_size("ten").unwrap_err().starts_with("failed to parse container log max size \"ten\": "));
    }

    #[test]
    fn a_full_or_missing_log_is_due() {
        let dir = folder("due");
        std::fs::write(dir.join("small"), "x").unwrap();
        std::fs::write(dir.join("full"), "xxxx").unwrap();
        let logs = ["small", "full", "gone"].map(|name| (name.to_owned(), dir.join(name))).to_vec();
        let found: Vec<_> = due(logs, 4).into_iter().map(|(id, _, due)| (id, due)).collect();
        assert_eq!(found, [("full".to_owned(), Due::Full), ("gone".to_owned(), Due::Missing)]);
        std::fs::remove_dir_all(&dir).unwrap();
    }

    #[test]
    fn rotated_logs_are_compressed_and_the_oldest_go() {
        let dir = folder("rotate");
        let log = dir.join("0.log");
        for (round, at) in
            ["20260101-000000", "20260101-000010", "20260101-000020", "20260101-000030"].iter().enumerate()
        {
            std::fs::write(&log, format!("round {round}")).unwrap();
            tidy(&log, 4).unwrap();
            set_aside(&log, moment(at)).unwrap();
        }
        std::fs::write(&log, "now").unwrap();
        assert_eq!(
            names(&dir),
            ["0.log", "0.log.20260101-000010.gz", "0.log.20260101-000020.gz", "0.log.20260101-000030"],
            "four files, the newest of the rotated ones not compressed yet"
        );
        let mut text = String::new();
        let packed = std::fs::File::open(dir.join("0.log.20260101-000020.gz")).unwrap();
        flate2::read::GzDecoder::new(packed).read_to_string(&mut text).unwrap();
        assert_eq!(text, "round 2");
        std::fs::remove_dir_all(&dir).unwrap();
    }

    #[test]
    fn what_a_broken_off_rotation_left_goes() {
        let dir = folder("left");
        let log = dir.join("0.log");
        for name in ["0.log", "0.log.1", "0.log.1.gz", "0.log.2.tmp", "0.log.3", "0.logs", "1.log.1"] {
            std::fs::write(dir.join(name), name).unwrap();
        }
        tidy(&log, 9).unwrap();
        assert_eq!(names(&dir), ["0.log", "0.log.1.gz", "0.log.3.gz", "0.logs", "1.log.1"]);
        remove(&log).unwrap();
        assert_eq!(names(&dir), ["0.logs", "1.log.1"]);
        remove(&log).unwrap();
        std::fs::remove_dir_all(&dir).unwrap();
    }

    #[test]
    fn two_files_are_the_least() {
        let dir = folder("two");
        let log = dir.join("0.log");
        for name in ["0.log", "0.log.1", "0.log.2"] {
            std::fs::write(dir.join(name), name).unwrap();
        }
        tidy(&log, 2).unwrap();
        set_aside(&log, moment("20260101-000000")).unwrap();
        assert_eq!(names(&dir), ["0.log.20260101-000000"]);
        std::fs::remove_dir_all(&dir).unwrap();
    }
}
