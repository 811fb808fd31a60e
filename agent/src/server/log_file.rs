//! Reading a container's log from the file that the runtime writes, in lines of [`super::log_line`].
//!
//! A [`LogFile`] is a position in one log. It blocks on the file system, so its user moves it to a thread for each step
//! and takes it back. When the log is rotated, the old file is read to its end before the new one is begun. That end is
//! there when the runtime has closed it: runtimes make the new file first, and what they have read from the container goes
//! to the old one until they change over. So who follows waits for that, for as long as [`PATIENCE`].
//!
//! Limits: who is so slow that two files were rotated since, of which the older is compressed already, misses that one.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::os::fd::AsRawFd as _;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use proto::time::Timestamp;
use tokio::time::Instant;

use super::log_line::{Form, Line, write_time};

const CHUNK: usize = 64 * 1024;
/// A line beyond this is passed on in pieces.
const MAX_LINE: usize = 1024 * 1024;
/// A runtime changes from one file to the next within this, also on a machine that is busy; where it is not known whether
/// it has, within the second.
const PATIENCE: Duration = Duration::from_secs(10);
const UNKNOWING: Duration = Duration::from_secs(1);
/// So much of what is no log is told.
const SHOWN: usize = 1024;

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
    /// More is waited for when the end is reached.
    pub follow: bool,
}

/// What a step found.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// Text to pass on; may be empty when nothing of what was read is wanted.
    Text(Vec<u8>),
    /// Nothing more for now.
    End,
    /// The same, but there is a new file, and only the runtime's last word to the old one is missing.
    Soon,
    /// As much as was asked for.
    Enough,
}

/// See the module's documentation.
pub(super) struct LogFile {
    path: PathBuf,
    file: File,
    /// Read, but not passed on yet: the beginning of a line.
    pending: Vec<u8>,
    chunk: Vec<u8>,
    /// The rotation of this log was seen; what is left of the old file comes first.
    next: Option<Next>,
    writer: Writer,
}

/// What follows the file that is open.
struct Next {
    file: File,
    /// How long the runtime may go on with the old one.
    until: Instant,
    /// It does not, and nobody asks again.
    closed: bool,
}

/// Whether the runtime has closed a log that was rotated, by the name that it has now; none where nobody can know.
pub(super) type IsClosed<'a> = Option<&'a dyn Fn(&OsStr) -> bool>;

/// Chooses lines and puts them in the form of the answer.
struct Writer {
    wanted: Wanted,
    /// Known from the first line on.
    form: Option<Form>,
    /// Bytes that may still be passed on.
    bytes_left: u64,
    lines_left: u64,
    /// The next text begins a line of the answer.
    new_line: bool,
    /// In the middle of a line that is too long to be kept; what is left of it is passed on, or left out.
    inside: Option<Inside>,
}

#[derive(Clone, Copy)]
struct Inside {
    shown: bool,
    partial: bool,
}

impl LogFile {
    /// # Errors
    /// When the log cannot be opened or read; [`io::ErrorKind::InvalidData`] with the kubelet's words when it is not there.
    pub fn open(path: PathBuf, wanted: Wanted) -> io::Result<Self> {
        let mut file = File::open(&path).map_err(|error| unopened(&path, error))?;
        if let Some(lines) = wanted.tail {
            seek_to_tail(&mut file, lines)?;
        }
        let writer = Writer {
            bytes_left: wanted.limit.unwrap_or(u64::MAX),
            lines_left: wanted.tail.filter(|_| !wanted.follow).unwrap_or(u64::MAX),
            wanted,
            form: None,
            new_line: true,
            inside: None,
        };
        Ok(Self { path, file, pending: Vec::new(), chunk: vec![0; CHUNK], next: None, writer })
    }

    /// Reads on; `closed` counts for who follows.
    ///
    /// # Errors
    /// When the log cannot be read; [`io::ErrorKind::InvalidData`] when it is no log of a container.
    pub fn step(&mut self, closed: IsClosed<'_>) -> io::Result<Step> {
        if self.writer.bytes_left == 0 || self.writer.lines_left == 0 {
            return Ok(Step::Enough);
        }
        let mut count = self.file.read(&mut self.chunk)?;
        if count == 0 {
            if self.next.is_none() {
                let Some(file) = rotated(&self.path, &self.file) else { return self.last_words() };
                // Of a file that was not rotated, but removed, nothing is heard.
                let is_heard_of = closed.is_some() && name_now(&self.file).as_deref() != self.path.file_name();
                let patience = if is_heard_of { PATIENCE } else { UNKNOWING };
                self.next = Some(Next { file, until: Instant::now() + patience, closed: false });
            }
            if self.writer.wanted.follow && self.is_still_written(closed) {
                return Ok(Step::Soon);
            }
            // Lines may have come between the end that was seen and the close.
            count = self.file.read(&mut self.chunk)?;
            if count == 0 {
                if let Some(next) = self.next.take() {
                    self.file = next.file;
                    // The end of a line that was never written.
                    self.pending.clear();
                    self.writer.inside = None;
                }
                return Ok(Step::Text(Vec::new()));
            }
        }
        self.pending.extend_from_slice(&self.chunk[..count]);
        let mut out = Vec::with_capacity(count);
        let mut start = 0;
        while let Some(end) = self.pending[start..].iter().position(|b| *b == b'\n') {
            self.writer.line(&self.pending[start..=start + end], &mut out)?;
            start += end + 1;
        }
        self.pending.drain(..start);
        if self.pending.len() > MAX_LINE || self.writer.inside.is_some() {
            self.writer.part(&self.pending, &mut out)?;
            self.pending.clear();
        }
        Ok(Step::Text(self.writer.cut(out)))
    }

    /// Whether lines may still come to the file that was rotated.
    fn is_still_written(&mut self, closed: IsClosed<'_>) -> bool {
        let Some(next) = &mut self.next else { return false };
        let is_closed = || closed.is_some_and(|closed| name_now(&self.file).is_some_and(|name| closed(&name)));
        next.closed = next.closed || Instant::now() >= next.until || is_closed();
        !next.closed
    }

    /// The end; before it what was written of a line that nobody waits for the rest of.
    fn last_words(&mut self) -> io::Result<Step> {
        if self.pending.is_empty() || self.writer.wanted.follow {
            return Ok(Step::End);
        }
        let mut out = Vec::new();
        self.writer.line(&std::mem::take(&mut self.pending), &mut out)?;
        Ok(Step::Text(self.writer.cut(out)))
    }
}

impl Writer {
    fn form(&mut self, line: &[u8]) -> io::Result<Form> {
        if self.form.is_none() {
            self.form = Form::of(line);
        }
        self.form.ok_or_else(|| {
            let line = String::from_utf8_lossy(&line[..line.len().min(SHOWN)]);
            let why = format!("failed to get parse function: unsupported log format: {line:?}");
            io::Error::new(io::ErrorKind::InvalidData, why)
        })
    }

    /// Appends a line, or the rest of one; its newline included.
    fn line(&mut self, line: &[u8], out: &mut Vec<u8>) -> io::Result<()> {
        if let Some(inside) = self.inside.take() {
            let rest = if inside.partial { line.strip_suffix(b"\n").unwrap_or(line) } else { line };
            if inside.shown {
                out.extend_from_slice(rest);
            }
            self.new_line = !inside.partial;
            return Ok(());
        }
        if self.lines_left == 0 {
            return Ok(());
        }
        let form = self.form(line)?;
        // What does not fit the others is left out.
        if let Some(line) = form.parse(line) {
            self.begin(&line, out);
            self.lines_left -= 1;
            self.new_line = line.text.last().is_none_or(|b| *b == b'\n');
        }
        Ok(())
    }

    /// Appends the beginning of a line that is too long to be waited for, or the middle of one.
    fn part(&mut self, text: &[u8], out: &mut Vec<u8>) -> io::Result<()> {
        if let Some(inside) = self.inside {
            if inside.shown {
                out.extend_from_slice(text);
            }
            return Ok(());
        }
        if self.lines_left == 0 {
            return Ok(());
        }
        let form = self.form(text)?;
        self.inside = Some(match form.parse(text) {
            Some(line) => {
                self.lines_left -= 1;
                Inside { shown: self.begin(&line, out), partial: line.partial }
            }
            None => Inside { shown: false, partial: !self.new_line },
        });
        Ok(())
    }

    /// Appends what is there of a line; `false` when it is not wanted.
    fn begin(&self, line: &Line<'_>, out: &mut Vec<u8>) -> bool {
        let wanted = &self.wanted;
        if wanted.stream.is_some_and(|stream| stream != line.stream)
            || wanted.since.is_some_and(|since| line.at < since)
        {
            return false;
        }
        if wanted.timestamps && self.new_line {
            write_time(&line.time, out);
            out.push(b' ');
        }
        out.extend_from_slice(&line.text);
        true
    }

    fn cut(&mut self, mut out: Vec<u8>) -> Vec<u8> {
        out.truncate(usize::try_from(self.bytes_left).unwrap_or(usize::MAX));
        self.bytes_left = self.bytes_left.saturating_sub(out.len() as u64);
        out
    }
}

/// The kubelet follows the links of a path first, step by step, and tells where that ends.
fn unopened(path: &Path, error: io::Error) -> io::Error {
    if error.kind() != io::ErrorKind::NotFound {
        return error;
    }
    let mut steps: Vec<&Path> = path.ancestors().collect();
    steps.reverse();
    let missing = steps.into_iter().find(|step| step.symlink_metadata().is_err()).unwrap_or(path);
    let (shown, missing) = (path.display().to_string(), missing.display());
    let why = format!("failed to try resolving symlinks in path {shown:?}: lstat {missing}: no such file or directory");
    io::Error::new(io::ErrorKind::InvalidData, why)
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

/// The name of an open file, which changes when the log is rotated.
fn name_now(open: &File) -> Option<OsString> {
    let path = std::fs::read_link(format!("/proc/self/fd/{}", open.as_raw_fd())).ok()?;
    let name = path.file_name()?;
    // One that was compressed meanwhile has none any more.
    Some(OsStr::from_bytes(name.as_bytes().strip_suffix(b" (deleted)").unwrap_or(name.as_bytes())).to_owned())
}

/// The log that was rotated first after the open one, if it was, and is not compressed.
fn rotated_next(path: &Path, open: &File) -> Option<File> {
    let (folder, own) = (path.parent()?, name_now(open)?);
    let mut log = path.file_name()?.to_owned();
    log.push(".");
    if !own.as_bytes().starts_with(log.as_bytes()) {
        return None;
    }
    let names = std::fs::read_dir(folder).ok()?.flatten().map(|entry| entry.file_name());
    let later = names.filter(|name| {
        let bytes = name.as_bytes();
        let plain = !bytes.ends_with(b".gz") && !bytes.ends_with(b".tmp");
        plain && bytes.starts_with(log.as_bytes()) && *name > own
    });
    File::open(folder.join(later.min()?)).ok()
}

/// The file that follows the open one, when that is not at the path any more: the next that was rotated, or the one that is
/// there now. Between the rename and the runtime's new file there is none.
fn rotated(path: &Path, open: &File) -> Option<File> {
    use std::os::unix::fs::MetadataExt;
    let (now, then) = (std::fs::metadata(path).ok()?, open.metadata().ok()?);
    if (now.dev(), now.ino()) == (then.dev(), then.ino()) {
        return None;
    }
    rotated_next(path, open).or_else(|| File::open(path).ok())
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
            match log.step(None).unwrap() {
                Step::Text(piece) => all.extend(piece),
                Step::End | Step::Soon | Step::Enough => return String::from_utf8(all).unwrap(),
            }
        }
    }

    /// The answer for a file of these lines.
    fn answer(name: &str, content: &[u8], wanted: Wanted) -> String {
        let path = scratch(name);
        std::fs::write(&path, content).unwrap();
        let mut log = LogFile::open(path.clone(), wanted).unwrap();
        let all = text(&mut log);
        std::fs::remove_file(path).unwrap();
        all
    }

    #[test]
    fn partial_lines_are_joined_and_old_ones_left_out() {
        let lines = "2019-01-01T00:00:00.5Z stdout F old\n2020-01-01T00:00:00Z stdout F too old by a nanosecond\n\
                     2020-01-01T00:00:00.5Z stdout P one \n2020-01-01T00:00:01Z stdout F line\nrubbish\n";
        let since = Some(Timestamp { seconds: 1_577_836_800, nanos: 1 });
        let wanted = Wanted { since, ..Wanted::default() };
        assert_eq!(answer("joined", lines.as_bytes(), wanted.clone()), "one line\n");
        let wanted = Wanted { timestamps: true, ..wanted };
        assert_eq!(answer("stamped", lines.as_bytes(), wanted), "2020-01-01T00:00:00.500000000Z one line\n");
    }

    #[test]
    fn a_last_line_without_an_end_is_told_unless_more_may_come() {
        let lines = b"2020-01-01T00:00:00Z stdout F one\n2020-01-01T00:00:00Z stdout F tw";
        assert_eq!(answer("open-end", lines, Wanted::default()), "one\ntw");
        assert_eq!(answer("open-end-f", lines, Wanted { follow: true, ..Wanted::default() }), "one\n");
        let docker = br#"{"log":"one\n","stream":"stdout","time":"2020-01-01T00:00:00Z"}"#;
        assert_eq!(answer("docker", docker, Wanted::default()), "one\n");
    }

    #[test]
    fn what_is_no_log_is_an_error() {
        let path = scratch("no-log");
        std::fs::write(&path, "hello\n").unwrap();
        let error = LogFile::open(path.clone(), Wanted::default()).unwrap().step(None).unwrap_err();
        assert_eq!(error.to_string(), r#"failed to get parse function: unsupported log format: "hello\n""#);
        std::fs::remove_file(path).unwrap();
    }

    #[test]
    fn of_a_log_that_is_gone_it_is_told_what_is_missing() {
        let folder = scratch("gone");
        std::fs::create_dir_all(&folder).unwrap();
        let path = folder.join("c/0.log");
        let error = LogFile::open(path.clone(), Wanted::default()).err().expect("nothing is there");
        let (shown, missing) = (path.display(), folder.join("c"));
        let missing = missing.display();
        assert_eq!(
            error.to_string(),
            format!("failed to try resolving symlinks in path \"{shown}\": lstat {missing}: no such file or directory")
        );
        std::fs::remove_dir_all(folder).unwrap();
    }

    /// A line of more than can be kept used to be cut in two, and its rest taken for a line of its own.
    #[test]
    fn a_line_of_any_length_is_one_line() {
        let long = "x".repeat(3 * MAX_LINE + 7);
        for (tag, end) in [("F", "\n"), ("P", "")] {
            let content = format!("2020-01-01T00:00:00Z stdout {tag} {long}\n2020-01-01T00:00:01Z stdout F y\n");
            let wanted = Wanted { timestamps: true, ..Wanted::default() };
            let second = if end.is_empty() { "y\n" } else { "2020-01-01T00:00:01.000000000Z y\n" };
            let expected = format!("2020-01-01T00:00:00.000000000Z {long}{end}{second}");
            assert!(answer("long", content.as_bytes(), wanted) == expected, "{tag}");
        }
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

    /// The runtime makes the new file before it leaves the old one. What it wrote there in between was lost to who followed,
    /// most of all on a machine that was busy.
    #[test]
    fn the_old_file_is_followed_until_the_runtime_has_closed_it() {
        use std::io::Write as _;
        let folder = scratch("closed");
        std::fs::create_dir_all(&folder).unwrap();
        let path = folder.join("0.log");
        let line = |word: &str| format!("2020-01-01T00:00:01Z stdout F {word}\n");
        let mut old = File::create(&path).unwrap();
        old.write_all(line("one").as_bytes()).unwrap();
        let follow = Wanted { follow: true, ..Wanted::default() };
        let mut log = LogFile::open(path.clone(), follow).unwrap();
        let mut read = |closed: &dyn Fn(&OsStr) -> bool| {
            let mut all = Vec::new();
            loop {
                match log.step(Some(closed)).unwrap() {
                    Step::Text(piece) => all.extend(piece),
                    end => return (String::from_utf8(all).unwrap(), end),
                }
            }
        };
        let aside = folder.join("0.log.20260101-000000");
        let closed = |name: &OsStr| name == "0.log.20260101-000000";
        assert_eq!(read(&closed), ("one\n".into(), Step::End));
        std::fs::rename(&path, &aside).unwrap();
        std::fs::write(&path, line("three")).unwrap();
        assert_eq!(read(&|_| false), (String::new(), Step::Soon));
        old.write_all(line("two").as_bytes()).unwrap();
        assert_eq!(read(&|_| false), ("two\n".into(), Step::Soon));
        // Two more rotations before it is looked at again, and the first file is compressed.
        let second = folder.join("0.log.20260101-000010");
        std::fs::rename(&path, &second).unwrap();
        std::fs::remove_file(&aside).unwrap();
        std::fs::write(folder.join("0.log.20260101-000000.gz"), "").unwrap();
        std::fs::write(&path, line("four")).unwrap();
        assert_eq!(read(&|name| closed(name) || name == "0.log.20260101-000010"), ("three\nfour\n".into(), Step::End));
        std::fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn no_more_bytes_than_asked_for() {
        let path = scratch("limit");
        std::fs::write(&path, "2020-01-01T00:00:01Z stdout F 12345\n").unwrap();
        let mut log = LogFile::open(path.clone(), Wanted { limit: Some(3), ..Wanted::default() }).unwrap();
        assert_eq!(text(&mut log), "123");
        assert_eq!(log.step(None).unwrap(), Step::Enough);
        std::fs::remove_file(path).unwrap();
    }
}
