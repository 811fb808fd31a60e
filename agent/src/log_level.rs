//! How much the agent logs: chosen at the start, changed while it runs by `/debug/flags/v` and by reading the files again.
//!
//! A verbosity is for all of the agent. Files of its source may be given levels of their own (`logging.vmodule`), which add
//! to what is logged anyway. The subscriber is the process's own, so the way to change it is too.

use std::sync::{Mutex, OnceLock, PoisonError};

use tracing::level_filters::LevelFilter;
use tracing::subscriber::Interest;
use tracing::{Metadata, Subscriber, span};
use tracing_subscriber::layer::{Context, Layer};
use tracing_subscriber::{EnvFilter, Registry};

use crate::config::Logging;
use crate::settings::OwnSettings;

type Change = Box<dyn Fn(LogFilter) -> Result<(), String> + Send + Sync>;

static CHANGE: OnceLock<Change> = OnceLock::new();
/// Of the configuration as it was last read; a change of the verbosity leaves them alone.
static FILES: Mutex<Vec<FileLevel>> = Mutex::new(Vec::new());

/// A pattern for names of source files, and what is logged of those that fit.
#[derive(Debug, Clone, PartialEq, Eq)]
struct FileLevel {
    pattern: String,
    level: LevelFilter,
}

/// What is logged.
pub struct LogFilter {
    general: EnvFilter,
    files: Vec<FileLevel>,
}

/// What a verbosity means for the agent's own lines.
fn level(verbosity: u32) -> LevelFilter {
    match verbosity {
        ..=1 => LevelFilter::INFO,
        2..=5 => LevelFilter::DEBUG,
        _ => LevelFilter::TRACE,
    }
}

/// The filter of a verbosity as the kubelet's `-v` counts it.
fn filter(verbosity: u32) -> EnvFilter {
    EnvFilter::new(match level(verbosity) {
        LevelFilter::TRACE => "agent=trace,debug",
        LevelFilter::DEBUG => "agent=debug,info",
        _ => "info",
    })
}

/// What is logged at the start: by `RUST_LOG`, else the daemon's own settings, else the verbosity.
pub fn initial(logging: &Logging, settings: &OwnSettings) -> LogFilter {
    let general = EnvFilter::try_from_default_env().unwrap_or_else(|_| chosen(logging, settings));
    with_files(general, logging)
}

fn chosen(logging: &Logging, settings: &OwnSettings) -> EnvFilter {
    let given = settings.log_filter.as_deref().and_then(|directives| EnvFilter::try_new(directives).ok());
    given.unwrap_or_else(|| filter(u32::try_from(logging.verbosity).unwrap_or(0)))
}

fn with_files(general: EnvFilter, logging: &Logging) -> LogFilter {
    let files = logging.vmodule.iter().map(|item| FileLevel {
        pattern: item.file_pattern.clone(),
        level: level(u32::try_from(item.verbosity).unwrap_or(0)),
    });
    let files: Vec<FileLevel> = files.collect();
    FILES.lock().unwrap_or_else(PoisonError::into_inner).clone_from(&files);
    LogFilter { general, files }
}

/// How the running subscriber takes a new filter. The first caller's way stays.
pub fn changes_by(change: impl Fn(LogFilter) -> Result<(), String> + Send + Sync + 'static) {
    if CHANGE.set(Box::new(change)).is_err() {
        tracing::debug!("the log's filter is changed by what was there first");
    }
}

/// By the files that were read again; whoever set `RUST_LOG` meant it for a look at the start.
///
/// # Errors
/// As [`set`].
pub fn set_by(logging: &Logging, settings: &OwnSettings) -> Result<(), String> {
    change(with_files(chosen(logging, settings), logging))
}

/// # Errors
/// Nothing can be changed, with the reason.
pub fn set(verbosity: u32) -> Result<(), String> {
    let files = FILES.lock().unwrap_or_else(PoisonError::into_inner).clone();
    change(LogFilter { general: filter(verbosity), files })
}

fn change(filter: LogFilter) -> Result<(), String> {
    match CHANGE.get() {
        Some(change) => change(filter),
        None => Err("the log cannot be changed while it runs".into()),
    }
}

impl LogFilter {
    /// Whether a file's own level lets a line through. Of patterns that fit the first counts, and names are those of the
    /// agent's own files: what it is made with logs by the general level.
    fn of_file(&self, metadata: &Metadata<'_>) -> bool {
        if self.files.is_empty() || !is_own(metadata.target()) {
            return false;
        }
        let Some(name) = metadata.file().map(module) else { return false };
        let own = self.files.iter().find(|f| fits(f.pattern.as_bytes(), name.as_bytes()));
        own.is_some_and(|f| f.level >= *metadata.level())
    }
}

/// Whether the agent's own source is where a line comes from.
fn is_own(target: &str) -> bool {
    let own = env!("CARGO_CRATE_NAME");
    target.strip_prefix(own).is_some_and(|rest| rest.is_empty() || rest.starts_with("::"))
}

/// The name that patterns are for: the file's own without `.rs`, of a `mod.rs` its folder's.
fn module(file: &str) -> &str {
    let path = file.strip_suffix(".rs").unwrap_or(file);
    let path = path.strip_suffix("/mod").unwrap_or(path);
    path.rsplit('/').next().unwrap_or(path)
}

/// `*`, `?` and `[a-z]` as in the shell, `[^a-z]` for the rest of the letters.
fn fits(pattern: &[u8], name: &[u8]) -> bool {
    match (pattern, name) {
        ([], name) => name.is_empty(),
        ([b'*', rest @ ..], name) => (0..=name.len()).any(|at| fits(rest, &name[at..])),
        ([b'?', rest @ ..], [_, name @ ..]) => fits(rest, name),
        ([b'[', rest @ ..], [letter, name @ ..]) => {
            let Some(end) = rest.iter().position(|b| *b == b']') else { return false };
            let (set, rest) = (&rest[..end], &rest[end + 1..]);
            let (others, set) = set.strip_prefix(b"^").map_or((false, set), |set| (true, set));
            one_of(set, *letter) != others && fits(rest, name)
        }
        ([b'\\', own, rest @ ..] | [own, rest @ ..], [letter, name @ ..]) => own == letter && fits(rest, name),
        (_, []) => false,
    }
}

fn one_of(set: &[u8], letter: u8) -> bool {
    match set {
        [first, b'-', last, rest @ ..] => (*first..=*last).contains(&letter) || one_of(rest, letter),
        [own, rest @ ..] => *own == letter || one_of(rest, letter),
        [] => false,
    }
}

impl<S: Subscriber> Layer<S> for LogFilter {
    fn register_callsite(&self, metadata: &'static Metadata<'static>) -> Interest {
        if self.of_file(metadata) {
            return Interest::always();
        }
        Layer::<S>::register_callsite(&self.general, metadata)
    }

    fn enabled(&self, metadata: &Metadata<'_>, context: Context<'_, S>) -> bool {
        self.of_file(metadata) || Layer::<S>::enabled(&self.general, metadata, context)
    }

    fn max_level_hint(&self) -> Option<LevelFilter> {
        let general = Layer::<Registry>::max_level_hint(&self.general)?;
        Some(self.files.iter().map(|file| file.level).fold(general, LevelFilter::max))
    }

    fn on_new_span(&self, attributes: &span::Attributes<'_>, id: &span::Id, context: Context<'_, S>) {
        Layer::<S>::on_new_span(&self.general, attributes, id, context);
    }

    fn on_record(&self, id: &span::Id, values: &span::Record<'_>, context: Context<'_, S>) {
        Layer::<S>::on_record(&self.general, id, values, context);
    }

    fn on_enter(&self, id: &span::Id, context: Context<'_, S>) {
        Layer::<S>::on_enter(&self.general, id, context);
    }

    fn on_exit(&self, id: &span::Id, context: Context<'_, S>) {
        Layer::<S>::on_exit(&self.general, id, context);
    }

    fn on_close(&self, id: span::Id, context: Context<'_, S>) {
        Layer::<S>::on_close(&self.general, id, context);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use tracing_subscriber::layer::SubscriberExt as _;

    use super::*;

    #[test]
    fn patterns_are_for_names_of_modules() {
        assert_eq!(
            ["agent/src/pods/worker.rs", "agent/src/volumes/mod.rs", "worker.rs", "x"].map(module),
            ["worker", "volumes", "worker", "x"]
        );
        let fits = |pattern: &str, name: &str| super::fits(pattern.as_bytes(), name.as_bytes());
        for (pattern, name) in
            [("worker", "worker"), ("work*", "workers"), ("*", ""), ("*o*r", "worker"), ("w?rk[a-f]r", "worker")]
        {
            assert!(fits(pattern, name), "{pattern} {name}");
        }
        for (pattern, name) in
            [("work", "worker"), ("worker?", "worker"), ("w[^o]rker", "worker"), ("[", "a"), ("", "a"), ("a", "")]
        {
            assert!(!fits(pattern, name), "{pattern} {name}");
        }
    }

    /// Counts the lines that get through.
    struct Count(Arc<std::sync::atomic::AtomicUsize>);

    impl<S: Subscriber> Layer<S> for Count {
        fn on_event(&self, _event: &tracing::Event<'_>, _context: Context<'_, S>) {
            self.0.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        }
    }

    /// Levels of files were accepted and changed nothing.
    #[test]
    fn a_file_may_say_more_than_the_rest() {
        let lines = |files: &[(&str, u32)]| {
            let files = files.iter().map(|(p, v)| FileLevel { pattern: (*p).into(), level: level(*v) }).collect();
            let seen = Arc::default();
            let layers = tracing_subscriber::registry()
                .with(LogFilter { general: filter(0), files })
                .with(Count(Arc::clone(&seen)));
            tracing::subscriber::with_default(layers, || {
                tracing::info!("always");
                tracing::debug!("by 2");
                tracing::trace!("by 6");
                tracing::trace!(target: "h2::codec", "not its own");
                tracing::trace!(target: "agents", "not its own");
            });
            seen.load(std::sync::atomic::Ordering::Relaxed)
        };
        assert_eq!(lines(&[]), 1);
        assert_eq!(lines(&[("log_*", 4)]), 2);
        assert_eq!(lines(&[("log_level", 9), ("log_level", 0)]), 3);
        assert_eq!(lines(&[("log_level", 0), ("log_level", 9)]), 1, "the first that fits counts");
        assert_eq!(lines(&[("*", 9)]), 3, "libraries have no files here");
        assert_eq!(lines(&[("worker", 9)]), 1);
    }
}
