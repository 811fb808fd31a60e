//! systemd's journal, natively: each line with its priority, and every field of an event as a field of the entry.
//!
//! `MESSAGE` is the line as a person reads it, with the fields behind the words: `journalctl` shows nothing else, and a
//! warning without its cause helps nobody. The crate `tracing-journald` leaves the fields out of it, which is why this
//! one writes to the socket itself; it is the few lines of <https://systemd.io/JOURNAL_NATIVE_PROTOCOL/>. Entries that
//! do not fit into a datagram are shortened instead of being passed as a file.

use std::fmt::Write as _;
use std::os::unix::fs::MetadataExt as _;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};

use tracing::field::{Field, Visit};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::layer::Context;

/// Where journald listens.
pub const SOCKET: &str = "/run/systemd/journal/socket";
/// Longer values are cut; far below what a datagram holds on any kernel.
const LONGEST_VALUE: usize = 16 * 1024;
/// Names of fields that an event may not take: journald or this layer sets them.
const OURS: &[&str] = &["MESSAGE", "PRIORITY", "SYSLOG_IDENTIFIER", "TARGET", "CODE_FILE", "CODE_LINE"];

/// Whether standard error goes to the journal, by `JOURNAL_STREAM` (`DEVICE:INODE`, systemd.exec(5)). A program that
/// was started from a unit with its output elsewhere has the variable too, but for another file.
pub fn is_standard_error() -> bool {
    let Ok(stream) = std::env::var("JOURNAL_STREAM") else { return false };
    names(&stream, Path::new("/proc/self/fd/2"))
}

fn names(stream: &str, file: &Path) -> bool {
    let Some((device, inode)) = stream.split_once(':') else { return false };
    std::fs::metadata(file).is_ok_and(|m| Ok(m.dev()) == device.parse() && Ok(m.ino()) == inode.parse())
}

/// Writes events to the journal.
pub struct Journal {
    socket: UnixDatagram,
    path: PathBuf,
    identifier: String,
}

impl Journal {
    /// # Errors
    /// When there is no journal to write to.
    pub fn open(identifier: &str, path: &Path) -> std::io::Result<Self> {
        let socket = UnixDatagram::unbound()?;
        // Tells at once whether somebody listens. Not connected: journald may be restarted.
        UnixDatagram::unbound()?.connect(path)?;
        Ok(Journal { socket, path: path.to_owned(), identifier: identifier.to_owned() })
    }

    fn entry(&self, event: &Event<'_>) -> Vec<u8> {
        let mut fields = Fields::default();
        event.record(&mut fields);
        let metadata = event.metadata();
        let mut entry = Vec::with_capacity(512);
        put(&mut entry, "PRIORITY", priority(*metadata.level()));
        put(&mut entry, "SYSLOG_IDENTIFIER", &self.identifier);
        put(&mut entry, "TARGET", metadata.target());
        if let (Some(file), Some(line)) = (metadata.file(), metadata.line()) {
            put(&mut entry, "CODE_FILE", file);
            put(&mut entry, "CODE_LINE", &line.to_string());
        }
        for (name, value) in &fields.named {
            put(&mut entry, name, value);
        }
        put(&mut entry, "MESSAGE", &fields.line());
        entry
    }
}

impl<S: Subscriber> Layer<S> for Journal {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        if let Err(error) = self.socket.send_to(&self.entry(event), &self.path) {
            // Standard error leads to the journal as well, as long as one is there.
            eprintln!("cannot write to the journal: {error}");
        }
    }
}

/// syslog's number: 3 error, 4 warning, 6 info, 7 debug.
fn priority(level: Level) -> &'static str {
    match level {
        Level::ERROR => "3",
        Level::WARN => "4",
        Level::INFO => "6",
        Level::DEBUG | Level::TRACE => "7",
    }
}

#[derive(Default)]
struct Fields {
    message: String,
    /// Journal's name and value.
    named: Vec<(String, String)>,
    shown: String,
}

impl Fields {
    fn line(&self) -> String {
        format!("{}{}", self.message, self.shown)
    }

    fn add(&mut self, field: &Field, value: &str, shown: &str) {
        if field.name() == "message" {
            value.clone_into(&mut self.message);
            return;
        }
        // Writing to a string cannot fail.
        let _ = write!(self.shown, " {}={shown}", field.name());
        let name = journal_name(field.name());
        if !name.is_empty() {
            self.named.push((name, value.to_owned()));
        }
    }
}

impl Visit for Fields {
    fn record_str(&mut self, field: &Field, value: &str) {
        self.add(field, value, &format!("{value:?}"));
    }

    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        let text = format!("{value:?}");
        self.add(field, &text, &text);
    }
}

/// Capitals, digits and underscores, beginning with a letter, not one of those that the journal keeps for itself.
fn journal_name(name: &str) -> String {
    let upper = name.trim_start_matches("r#").to_ascii_uppercase();
    let clean: String =
        upper.chars().map(|c| if c.is_ascii_uppercase() || c.is_ascii_digit() { c } else { '_' }).collect();
    let clean = clean.trim_start_matches(|c: char| !c.is_ascii_uppercase());
    let clean: String = clean.chars().take(64).collect();
    if OURS.contains(&clean.as_str()) { format!("FIELD_{clean}") } else { clean }
}

/// `NAME=value`, or with the value's length in front where it has line breaks.
fn put(entry: &mut Vec<u8>, name: &str, value: &str) {
    let mut end = value.len().min(LONGEST_VALUE);
    while !value.is_char_boundary(end) {
        end -= 1;
    }
    let value = &value.as_bytes()[..end];
    entry.extend_from_slice(name.as_bytes());
    if value.contains(&b'\n') {
        entry.push(b'\n');
        entry.extend_from_slice(&(value.len() as u64).to_le_bytes());
    } else {
        entry.push(b'=');
    }
    entry.extend_from_slice(value);
    entry.push(b'\n');
}

#[cfg(test)]
mod tests {
    use super::*;
    use tracing_subscriber::layer::SubscriberExt as _;

    fn said(act: impl FnOnce()) -> String {
        let path =
            std::env::temp_dir().join(format!("journal-{}-{:?}", std::process::id(), std::thread::current().id()));
        let _ = std::fs::remove_file(&path);
        let socket = UnixDatagram::bind(&path).expect("binds");
        let journal = Journal::open("node-agent", &path).expect("opens");
        tracing::subscriber::with_default(tracing_subscriber::registry().with(journal), act);
        let mut buffer = vec![0; 256 * 1024];
        let length = socket.recv(&mut buffer).expect("an entry");
        std::fs::remove_file(&path).expect("removes");
        String::from_utf8_lossy(&buffer[..length]).into_owned()
    }

    #[test]
    fn an_entry_has_priority_fields_and_a_line_for_people() {
        let entry = said(|| tracing::warn!(pod = "web", count = 3, some = ?Some(1), "cannot start"));
        for line in ["PRIORITY=4", "SYSLOG_IDENTIFIER=node-agent", "POD=web", "COUNT=3", "SOME=Some(1)"] {
            assert!(entry.lines().any(|l| l == line), "{line} in {entry}");
        }
        assert!(entry.ends_with("MESSAGE=cannot start pod=\"web\" count=3 some=Some(1)\n"), "{entry}");
    }

    #[test]
    fn line_breaks_take_the_binary_form_and_long_values_are_cut() {
        let entry = said(|| tracing::error!(priority = "mine", "a\nb"));
        assert!(entry.contains("MESSAGE\n\u{13}\0\0\0\0\0\0\0a\nb priority=\"mine\"\n"), "{entry:?}");
        assert!(entry.contains("FIELD_PRIORITY=mine\n"), "{entry:?}");
        let long = "ü".repeat(LONGEST_VALUE);
        let entry = said(|| tracing::info!("{long}"));
        assert!(entry.len() < LONGEST_VALUE + 1024 && !entry.contains('\u{fffd}'));
    }

    #[test]
    fn standard_error_is_the_journals_only_when_it_is_that_file() {
        let file = std::env::temp_dir().join(format!("stream-{}", std::process::id()));
        std::fs::write(&file, "").expect("writes");
        let known = std::fs::metadata(&file).expect("is there");
        assert!(names(&format!("{}:{}", known.dev(), known.ino()), &file));
        assert!(!names(&format!("{}:{}", known.dev(), known.ino() + 1), &file) && !names("x", &file));
        std::fs::remove_file(file).expect("removes");
    }
}
