//! The file that audit events go to, one JSON object a line, set aside when it grows.

use std::fs::{File, OpenOptions};
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, SystemTime};

/// Settings of the file, zero for no limit.
#[derive(Debug, Clone)]
pub struct LogOptions {
    /// `-` is standard output.
    pub path: PathBuf,
    pub max_age_days: u64,
    pub max_backups: usize,
    pub max_size_megabytes: u64,
}

/// Size at which a file without a limit of its own is set aside, in megabytes, as upstream.
const DEFAULT_SIZE: u64 = 100;

pub struct Log {
    options: LogOptions,
    /// None for standard output.
    file: Option<Mutex<(File, u64)>>,
}

impl Log {
    /// Opens the file, which only its owner may read.
    ///
    /// # Errors
    /// When it cannot be opened.
    pub fn open(options: LogOptions) -> std::io::Result<Self> {
        if options.path == Path::new("-") {
            return Ok(Log { options, file: None });
        }
        if let Some(folder) = options.path.parent().filter(|f| !f.as_os_str().is_empty()) {
            std::fs::create_dir_all(folder)?;
        }
        let file = open(&options.path)?;
        Ok(Log { options, file: Some(Mutex::new(file)) })
    }

    /// Appends a line. What cannot be written is logged, and the request goes on: an answer is worth more than its
    /// trace.
    pub fn write(&self, line: &[u8]) {
        let written = match &self.file {
            None => std::io::stdout().lock().write_all(line),
            Some(file) => self.append(&mut file.lock().unwrap_or_else(PoisonError::into_inner), line),
        };
        if let Err(error) = written {
            tracing::error!(path = %self.options.path.display(), %error, "an audit event is lost");
        }
    }

    fn append(&self, (file, size): &mut (File, u64), line: &[u8]) -> std::io::Result<()> {
        let limit = match self.options.max_size_megabytes {
            0 => DEFAULT_SIZE,
            megabytes => megabytes,
        };
        if *size > 0 && *size + line.len() as u64 > limit << 20 {
            std::fs::rename(&self.options.path, self.backup_name())?;
            (*file, *size) = open(&self.options.path)?;
            self.prune();
        }
        file.write_all(line)?;
        *size += line.len() as u64;
        Ok(())
    }

    /// `audit-2026-01-02T15-04-05.000.log`.
    fn backup_name(&self) -> PathBuf {
        let (stem, extension) = self.parts();
        let now = proto::time::Timestamp::now();
        let text = now.to_seconds_text();
        let text = text.trim_end_matches('Z').replace(':', "-");
        self.options.path.with_file_name(format!("{stem}-{text}.{:03}{extension}", now.nanos / 1_000_000))
    }

    fn parts(&self) -> (String, String) {
        let part = |text: Option<&std::ffi::OsStr>| text.map(|t| t.to_string_lossy().into_owned());
        let extension = part(self.options.path.extension()).map(|e| format!(".{e}")).unwrap_or_default();
        (part(self.options.path.file_stem()).unwrap_or_default(), extension)
    }

    /// Removes what is too much or too old. Names sort by time.
    fn prune(&self) {
        let (stem, extension) = self.parts();
        let folder = self.options.path.parent().filter(|f| !f.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let Ok(entries) = std::fs::read_dir(folder) else { return };
        let ours = |name: &str| {
            name.strip_prefix(&format!("{stem}-")).and_then(|n| n.strip_suffix(&extension)).is_some_and(|middle| {
                middle.len() == "2026-01-02T15-04-05.000".len() && middle.starts_with(|c: char| c.is_ascii_digit())
            })
        };
        let mut backups: Vec<PathBuf> = entries
            .filter_map(|e| Some(e.ok()?.path()))
            .filter(|p| p.file_name().is_some_and(|n| ours(&n.to_string_lossy())))
            .collect();
        backups.sort();
        backups.reverse();
        let oldest = SystemTime::now().checked_sub(Duration::from_secs(self.options.max_age_days * 86_400));
        for (index, path) in backups.iter().enumerate() {
            let too_many = self.options.max_backups > 0 && index >= self.options.max_backups;
            let modified = std::fs::metadata(path).and_then(|m| m.modified()).ok();
            let too_old = self.options.max_age_days > 0 && modified.zip(oldest).is_some_and(|(m, oldest)| m < oldest);
            if (too_many || too_old)
                && let Err(error) = std::fs::remove_file(path)
            {
                tracing::warn!(path = %path.display(), %error, "an old audit log cannot be removed");
            }
        }
    }
}

fn open(path: &Path) -> std::io::Result<(File, u64)> {
    let file = OpenOptions::new().create(true).append(true).mode(0o600).open(path)?;
    let size = file.metadata()?.len();
    Ok((file, size))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_file_is_set_aside_and_the_oldest_are_removed() {
        let folder = std::env::temp_dir().join(format!("audit-log-{}", crate::random::uuid()));
        let options =
            LogOptions { path: folder.join("audit.log"), max_age_days: 0, max_backups: 2, max_size_megabytes: 1 };
        let log = Log::open(options).expect("a folder that can be written");
        let line = vec![b'x'; 700 << 10];
        for _ in 0..5 {
            log.write(&line);
            // Names hold milliseconds.
            std::thread::sleep(Duration::from_millis(2));
        }
        let count = std::fs::read_dir(&folder).expect("the folder").count();
        std::fs::remove_dir_all(&folder).expect("ours");
        assert_eq!(count, 3, "the file and two before it");
    }
}
