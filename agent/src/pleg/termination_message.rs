//! What a container left as its last words: the termination message file, or the end of its log.
//!
//! Limits are the kubelet's: 4096 bytes of the file; 2048 bytes or 80 lines of the log. Read from the end.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::Path;

use proto::cri;

use crate::pod::labels;

const MAX_FILE_BYTES: u64 = 4096;
const MAX_LOG_BYTES: usize = 2048;
const MAX_LOG_LINES: usize = 80;
/// How much of the end of a log is looked at: CRI log lines carry a prefix of some 45 bytes.
const LOG_TAIL_BYTES: u64 = 64 * 1024;

/// The message of an exited container: the runtime's, then the container's.
pub fn read(status: &cri::ContainerStatus) -> String {
    let annotation = |key: &str| status.annotations.get(key).map_or("", String::as_str);
    let path = annotation(labels::TERMINATION_MESSAGE_PATH);
    let may_fall_back = annotation(labels::TERMINATION_MESSAGE_POLICY) == "FallbackToLogsOnError"
        && status.exit_code != 0
        && status.reason != "ContainerCannotRun";
    let place = crate::pod::container_path::absolute(path);
    let mount = status.mounts.iter().find(|m| !path.is_empty() && m.container_path == place);
    let mut own = match mount {
        Some(mount) => match tail(Path::new(&mount.host_path), MAX_FILE_BYTES) {
            Ok(bytes) => String::from_utf8_lossy(&bytes).into_owned(),
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => String::new(),
            Err(e) => format!("Error on reading termination log {}: {e}", mount.host_path),
        },
        None => String::new(),
    };
    if own.is_empty() && may_fall_back && !status.log_path.is_empty() {
        own = log_tail(Path::new(&status.log_path));
    }
    match (status.message.is_empty(), own.is_empty()) {
        (_, true) => status.message.clone(),
        (true, false) => own,
        (false, false) => format!("{}: {own}", status.message),
    }
}

fn tail(path: &Path, limit: u64) -> std::io::Result<Vec<u8>> {
    let mut file = File::open(path)?;
    let length = file.metadata()?.len();
    if length > limit {
        file.seek(SeekFrom::Start(length - limit))?;
    }
    let mut bytes = Vec::new();
    file.take(limit).read_to_end(&mut bytes)?;
    Ok(bytes)
}

fn log_tail(path: &Path) -> String {
    let Ok(bytes) = tail(path, LOG_TAIL_BYTES) else { return String::new() };
    let text = String::from_utf8_lossy(&bytes);
    let lines: Vec<&str> = text.lines().filter(|l| !l.is_empty()).collect();
    let first = lines.len().saturating_sub(MAX_LOG_LINES);
    let mut out = String::new();
    for line in &lines[first..] {
        // "TIME STREAM TAG text"; a partial line (P) has no newline of its own.
        let mut parts = line.splitn(4, ' ');
        let (Some(_), Some(_), Some(tag), content) = (parts.next(), parts.next(), parts.next(), parts.next()) else {
            continue;
        };
        out.push_str(content.unwrap_or(""));
        if !tag.starts_with('P') {
            out.push('\n');
        }
    }
    if out.len() > MAX_LOG_BYTES {
        let mut start = out.len() - MAX_LOG_BYTES;
        while !out.is_char_boundary(start) {
            start += 1;
        }
        out.drain(..start);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn exited(policy: &str, exit_code: i32, file: &str, log: &str) -> (tempdir::Dir, cri::ContainerStatus) {
        let dir = tempdir::Dir::new();
        std::fs::write(dir.0.join("message"), file).unwrap();
        std::fs::write(dir.0.join("log"), log).unwrap();
        let status = cri::ContainerStatus {
            exit_code,
            annotations: [
                (labels::TERMINATION_MESSAGE_PATH.to_owned(), "/t".to_owned()),
                (labels::TERMINATION_MESSAGE_POLICY.to_owned(), policy.to_owned()),
            ]
            .into(),
            mounts: vec![cri::Mount {
                container_path: "/t".into(),
                host_path: dir.0.join("message").display().to_string(),
                ..Default::default()
            }],
            log_path: dir.0.join("log").display().to_string(),
            ..Default::default()
        };
        (dir, status)
    }

    mod tempdir {
        pub struct Dir(pub std::path::PathBuf);
        impl Dir {
            pub fn new() -> Self {
                use std::sync::atomic::{AtomicU32, Ordering};
                static NEXT: AtomicU32 = AtomicU32::new(0);
                let n = NEXT.fetch_add(1, Ordering::Relaxed);
                let path = std::env::temp_dir().join(format!("termination-message-{}-{n}", std::process::id()));
                std::fs::create_dir_all(&path).unwrap();
                Self(path)
            }
        }
        impl Drop for Dir {
            fn drop(&mut self) {
                let _ = std::fs::remove_dir_all(&self.0);
            }
        }
    }

    #[test]
    fn the_file_wins_and_only_its_end_counts() {
        let (_dir, status) = exited("File", 1, &"x".repeat(5000), "");
        assert_eq!(read(&status).len(), 4096);
    }

    /// Such a file was mounted nowhere sensible, and its message was lost.
    #[test]
    fn the_file_may_be_named_in_any_way() {
        for path in ["t", "/t/", "//t", "/x/../t"] {
            let (_dir, mut status) = exited("File", 1, "why", "");
            status.annotations.insert(labels::TERMINATION_MESSAGE_PATH.to_owned(), path.to_owned());
            assert_eq!(read(&status), "why", "{path}");
        }
    }

    #[test]
    fn the_log_is_read_only_after_an_error_and_only_when_asked() {
        let log =
            "2024-01-01T00:00:00Z stdout F one\n2024-01-01T00:00:01Z stderr P tw\n2024-01-01T00:00:01Z stderr F o\n";
        let (_dir, status) = exited("FallbackToLogsOnError", 2, "", log);
        assert_eq!(read(&status), "one\ntwo\n");
        let (_dir, status) = exited("FallbackToLogsOnError", 0, "", log);
        assert_eq!(read(&status), "");
        let (_dir, status) = exited("File", 2, "", log);
        assert_eq!(read(&status), "");
    }
}
