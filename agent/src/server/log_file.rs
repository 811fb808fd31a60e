//! Reading a container's log from the file that the runtime writes: `RFC3339Nano stdout|stderr P|F text` per line.
//!
//! A [`LogFile`] is a position in one log. It blocks on the file system, so its user moves it to a thread for each step
//! and takes it back. When the log is rotated, the old file is read to its end before the new one is begun.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use proto::time::{Timestamp, parse_rfc3339};

const CHUNK: usize = 64 * 1024;
/// A line beyond this is passed on in pieces.
const MAX_LINE: usize = 1024 * 1024;

/// Which lines of a log are wanted, and in which form.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Wanted {
    pub timestamps: bool,
    /// Lines from the end; of the file that is being written alone.
    pub tail: Option<u64>,
    /// Bytes of the answer.
    pub limit: Option<u64>,
    /// Lines before this are left out.
    pub since: Option<Timestamp>,
    /// `stdout` or `stderr` alone.
    pub stream: Option<&'static str>,
}

/// What a step found.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// Text to pass on; may be empty when nothing of what was read is wanted.
    Text(Vec<u8>),
    /// Nothing more for now.
    End,
    /// As much as was asked for.
    Enough,
}

/// See the module's documentation.
pub(super) struct LogFile {
    path: PathBuf,
    file: File,
    wanted: Wanted,
    /// Read, but not passed on yet: the beginning of a line.
    pending: Vec<u8>,
    chunk: Vec<u8>,
    /// Bytes that may still be passed on.
    left: u64,
    /// The rotation of this log was seen; what is left of the old file comes first.
    next: Option<File>,
}

impl LogFile {
    /// # Errors
    /// When the log cannot be opened or read.
    pub fn open(path: PathBuf, wanted: Wanted) -> io::Result<Self> {
        let mut file = File::open(&path)?;
        if let Some(lines) = wanted.tail {
            seek_to_tail(&mut file, lines)?;
        }
        let left = wanted.limit.unwrap_or(u64::MAX);
        Ok(Self { path, file, wanted, pending: Vec::new(), chunk: vec![0; CHUNK], left, next: None })
    }

    /// Reads on.
    ///
    /// # Errors
    /// When the log cannot be read.
    pub fn step(&mut self) -> io::Result<Step> {
        if self.left == 0 {
            return Ok(Step::Enough);
        }
        let mut count = self.file.read(&mut self.chunk)?;
        if count == 0 {
            if self.next.is_none() {
                self.next = rotated(&self.path, &self.file);
                if self.next.is_none() {
                    return Ok(Step::End);
                }
                // Lines may have come between the end that was seen and the rotation.
                count = self.file.read(&mut self.chunk)?;
            }
            if count == 0 {
                if let Some(next) = self.next.take() {
                    self.file = next;
                }
                return Ok(Step::Text(Vec::new()));
            }
        }
        self.pending.extend_from_slice(&self.chunk[..count]);
        let mut out = Vec::with_capacity(count);
        let mut start = 0;
        while let Some(end) = self.pending[start..].iter().position(|b| *b == b'\n') {
            write_line(&self.pending[start..start + end], &self.wanted, &mut out);
            start += end + 1;
        }
        self.pending.drain(..start);
        if self.pending.len() > MAX_LINE {
            write_line(&self.pending, &self.wanted, &mut out);
            self.pending.clear();
        }
        out.truncate(usize::try_from(self.left).unwrap_or(usize::MAX));
        self.left = self.left.saturating_sub(out.len() as u64);
        Ok(Step::Text(out))
    }
}

/// Appends the text of a CRI log line, unless it is not wanted.
fn write_line(line: &[u8], wanted: &Wanted, out: &mut Vec<u8>) {
    let mut fields = line.splitn(4, |b| *b == b' ');
    let (Some(time), Some(stream), Some(tag)) = (fields.next(), fields.next(), fields.next()) else { return };
    let text = fields.next().unwrap_or_default();
    if wanted.stream.is_some_and(|wanted| wanted.as_bytes() != stream) {
        return;
    }
    if let Some(since) = wanted.since {
        let at = std::str::from_utf8(time).ok().and_then(|t| parse_rfc3339(t).ok());
        if at.is_none_or(|at| at < since) {
            return;
        }
    }
    if wanted.timestamps {
        out.extend_from_slice(time);
        out.push(b' ');
    }
    out.extend_from_slice(text);
    if tag.first() != Some(&b'P') {
        out.push(b'\n');
    }
}

/// Puts the file where its last `lines` lines begin.
fn seek_to_tail(file: &mut File, lines: u64) -> io::Result<()> {
    let mut end = file.seek(SeekFrom::End(0))?;
    if lines == 0 {
        return Ok(());
    }
    let mut found = 0;
    let mut chunk = vec![0; CHUNK];
    let mut last = true;
    while end > 0 {
        let start = end.saturating_sub(CHUNK as u64);
        let length = usize::try_from(end - start).unwrap_or(CHUNK);
        file.seek(SeekFrom::Start(start))?;
        file.read_exact(&mut chunk[..length])?;
        for at in (0..length).rev() {
            // The newline that ends the file begins no line.
            if chunk[at] == b'\n' && !std::mem::take(&mut last) {
                found += 1;
                if found == lines {
                    file.seek(SeekFrom::Start(start + at as u64 + 1))?;
                    return Ok(());
                }
            }
            last = false;
        }
        end = start;
    }
    file.seek(SeekFrom::Start(0))?;
    Ok(())
}

/// The file that is now at the path, when it is another one. Between the rename and the runtime's new file there is none.
fn rotated(path: &Path, open: &File) -> Option<File> {
    use std::os::unix::fs::MetadataExt;
    let (now, then) = (std::fs::metadata(path).ok()?, open.metadata().ok()?);
    if (now.dev(), now.ino()) == (then.dev(), then.ino()) {
        return None;
    }
    File::open(path).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scratch(name: &str) -> PathBuf {
        std::env::temp_dir().join(format!("log-file-{name}-{}", std::process::id()))
    }

    fn text(log: &mut LogFile) -> String {
        let mut all = Vec::new();
        loop {
            match log.step().unwrap() {
                Step::Text(piece) => all.extend(piece),
                Step::End | Step::Enough => return String::from_utf8(all).unwrap(),
            }
        }
    }

    #[test]
    fn partial_lines_are_joined_and_old_ones_left_out() {
        let mut out = Vec::new();
        let wanted = Wanted { since: Some(Timestamp { seconds: 1_577_836_800, nanos: 1 }), ..Wanted::default() };
        for line in [
            "2019-01-01T00:00:00.5Z stdout F old",
            "2020-01-01T00:00:00Z stdout F too old by a nanosecond",
            "2020-01-01T00:00:00.5Z stdout P one ",
            "2020-01-01T00:00:01Z stdout F line",
            "rubbish",
        ] {
            write_line(line.as_bytes(), &wanted, &mut out);
        }
        assert_eq!(String::from_utf8_lossy(&out), "one line\n");
    }

    #[test]
    fn the_tail_of_a_file_is_found_from_its_end() {
        let path = scratch("tail");
        std::fs::write(&path, "a\nb\nc\n").unwrap();
        let tail = |lines| {
            let mut file = File::open(&path).unwrap();
            seek_to_tail(&mut file, lines).unwrap();
            let mut text = String::new();
            file.read_to_string(&mut text).unwrap();
            text
        };
        assert_eq!((tail(2).as_str(), tail(9).as_str(), tail(0).as_str()), ("b\nc\n", "a\nb\nc\n", ""));
        std::fs::remove_file(path).unwrap();
    }

    /// Lines that were written after the reader had seen the end, and before it saw the rotation, used to be lost.
    #[test]
    fn nothing_is_lost_over_a_rotation() {
        use std::io::Write as _;
        let path = scratch("rotated");
        let line = |word: &str| format!("2020-01-01T00:00:01Z stdout F {word}\n");
        let mut old = File::create(&path).unwrap();
        old.write_all(line("one").as_bytes()).unwrap();
        let mut log = LogFile::open(path.clone(), Wanted::default()).unwrap();
        assert_eq!(text(&mut log), "one\n");
        let aside = path.with_extension("old");
        std::fs::rename(&path, &aside).unwrap();
        old.write_all(line("two").as_bytes()).unwrap();
        assert_eq!(text(&mut log), "two\n", "the runtime has not followed yet");
        old.write_all(line("three").as_bytes()).unwrap();
        std::fs::write(&path, line("four")).unwrap();
        assert_eq!(text(&mut log), "three\nfour\n");
        std::fs::remove_file(path).unwrap();
        std::fs::remove_file(aside).unwrap();
    }

    #[test]
    fn no_more_bytes_than_asked_for() {
        let path = scratch("limit");
        std::fs::write(&path, "2020-01-01T00:00:01Z stdout F 12345\n").unwrap();
        let mut log = LogFile::open(path.clone(), Wanted { limit: Some(3), ..Wanted::default() }).unwrap();
        assert_eq!(text(&mut log), "123");
        assert_eq!(log.step().unwrap(), Step::Enough);
        std::fs::remove_file(path).unwrap();
    }
}
