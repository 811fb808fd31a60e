//! When the last graceful shutdown began and ended, kept over it in `graceful_node_shutdown_state`.

use std::path::{Path, PathBuf};

use proto::time::{Timestamp, parse_rfc3339};
use serde_json::{Value, json};

use crate::metrics;
use crate::state_file::{self, Damaged};

const FILE: &str = "graceful_node_shutdown_state";
/// How Go writes a time that is not set.
const NEVER: &str = "0001-01-01T00:00:00Z";

pub struct State {
    path: PathBuf,
}

impl State {
    pub fn at(root_dir: &Path) -> Self {
        State { path: root_dir.join(FILE) }
    }

    /// Shows in the metrics what an earlier agent noted. Returns a file that had to be set aside.
    pub fn show(&self) -> Option<Damaged> {
        let text = match std::fs::read(&self.path) {
            Ok(text) => text,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return None,
            Err(error) => {
                tracing::warn!(%error, path = %self.path.display(), "cannot read a state file");
                return None;
            }
        };
        let Some((start, end)) = times(&text) else {
            return Some(state_file::set_aside(&self.path, "no times of a shutdown in it"));
        };
        metrics::GRACEFUL_SHUTDOWN_START.set(&[], seconds(start));
        metrics::GRACEFUL_SHUTDOWN_END.set(&[], seconds(end));
        None
    }

    /// Notes that a shutdown began, or came to its end.
    pub fn note(&self, start: Timestamp, end: Option<Timestamp>) {
        metrics::GRACEFUL_SHUTDOWN_START.set(&[], seconds(Some(start)));
        metrics::GRACEFUL_SHUTDOWN_END.set(&[], seconds(end));
        let end = end.map_or_else(|| NEVER.to_owned(), Timestamp::to_micros_text);
        let text = json!({"startTime": start.to_micros_text(), "endTime": end}).to_string();
        // Readable for all, as the kubelet has it.
        if let Err(error) = state_file::write_as(&self.path, text.as_bytes(), 0o644) {
            tracing::warn!(%error, path = %self.path.display(), "cannot write a state file");
        }
    }
}

fn times(text: &[u8]) -> Option<(Option<Timestamp>, Option<Timestamp>)> {
    let state: Value = serde_json::from_slice(text).ok()?;
    let time = |key: &str| {
        let text = state.get(key).and_then(Value::as_str).unwrap_or(NEVER);
        if text == NEVER { Some(None) } else { parse_rfc3339(text).ok().map(Some) }
    };
    Some((time("startTime")?, time("endTime")?))
}

#[expect(clippy::cast_precision_loss, reason = "seconds since 1970 fit")]
fn seconds(time: Option<Timestamp>) -> f64 {
    time.map_or(0.0, |t| t.seconds as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_noted_is_read_again_and_rubbish_is_not() {
        let dir = std::env::temp_dir().join(format!("node-agent-shutdown-{}", crate::backoff::random_below(u32::MAX)));
        std::fs::create_dir_all(&dir).unwrap();
        let (state, start) = (State::at(&dir), Timestamp { seconds: 1_700_000_000, nanos: 0 });
        let read = || times(&std::fs::read(dir.join(FILE)).unwrap());
        state.note(start, None);
        assert_eq!(read().map(|(s, e)| (s.map(|t| t.seconds), e.is_none())), Some((Some(start.seconds), true)));
        state.note(start, Some(Timestamp { seconds: start.seconds + 5, ..start }));
        assert_eq!(read().and_then(|(_, e)| e).map(|t| t.seconds), Some(start.seconds + 5));
        assert_eq!(state.show(), None);
        std::fs::write(dir.join(FILE), "{\"startTime\"").unwrap();
        let damaged = state.show().unwrap();
        assert_eq!(damaged.aside, Some(dir.join("graceful_node_shutdown_state.corrupt")));
        assert_eq!(state.show(), None, "it is out of the way");
        assert!(times(b"{\"startTime\": \"soon\"}").is_none() && times(b"").is_none());
        std::fs::remove_dir_all(dir).unwrap();
    }
}
