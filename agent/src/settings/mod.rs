//! The daemon's own settings: what the kubelet's configuration has no word for. TOML, by default
//! `/etc/orchestrator-lite/node-agent.toml` and `node-agent.toml.d/*.toml` beside it; `--settings` names another file.
//!
//! Who asks: the binary before it starts anything, the reload on SIGHUP (the log's filter takes effect at once), and
//! `node-agent config`. A setting that nobody knows is refused with its file and line.

use std::path::{Path, PathBuf};
use std::time::Duration;

pub use service::settings::{Setting, Settings, SettingsError, Value, drop_in_folder};

/// Where settings are looked for when `--settings` names no file; it need not be there.
pub const USUAL_PLACE: &str = "/etc/orchestrator-lite/node-agent.toml";

/// How the log is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogFormat {
    /// As `logging.format` of the configuration says; instead of text, the journal where standard error leads there.
    Auto,
    Text,
    Json,
    Journal,
}

/// Checked settings, complete with the defaults.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OwnSettings {
    pub log_format: LogFormat,
    /// Directives of tracing (`agent=debug,info`); they win over the configuration's verbosity.
    pub log_filter: Option<String>,
    pub worker_threads: usize,
    pub drop_capabilities: bool,
    /// How long tasks that block may hold up the end of the process.
    pub stop_timeout: Duration,
    /// Where each of [`KNOWN`] comes from, in that order; None is the default.
    origins: Vec<Option<(PathBuf, usize)>>,
}

/// Every setting: key, default, what it does. The reference in `docs/` is made of it.
pub const KNOWN: &[(&str, &str, &str)] = &[
    (
        "log.format",
        "auto",
        "`auto`, `text`, `json` or `journal`. `auto` is `logging.format` of the configuration, and instead of text the \
         journal's own format where standard error leads to the journal",
    ),
    (
        "log.filter",
        "",
        "what is logged, as directives such as `agent=debug,info`; wins over `logging.verbosity`, and the variable \
         `RUST_LOG` wins over it. Empty: the verbosity decides. Read again on SIGHUP",
    ),
    (
        "service.worker_threads",
        "2",
        "threads that run the agent's tasks, 1 to 64; one more serves clients. With one only, whatever holds it holds \
         systemd's watchdog too",
    ),
    (
        "service.drop_capabilities",
        "true",
        "give up every capability that the agent does not need, and the way to new ones (docs/capabilities.md)",
    ),
    ("service.stop_timeout", "1s", "how long work that blocks may hold up the end of the process"),
];

impl OwnSettings {
    /// Reads and checks the file that `--settings` names, or the usual one.
    ///
    /// # Errors
    /// Everything that is wrong, each with file and line.
    pub fn load(named: Option<&Path>) -> Result<Self, Vec<SettingsError>> {
        let file = named.unwrap_or(Path::new(USUAL_PLACE));
        Self::from(Settings::load(file, named.is_some()).map_err(|error| vec![error])?)
    }

    fn from(mut settings: Settings) -> Result<Self, Vec<SettingsError>> {
        let mut out = OwnSettings {
            log_format: LogFormat::Auto,
            log_filter: None,
            worker_threads: 2,
            drop_capabilities: true,
            stop_timeout: Duration::from_secs(1),
            origins: Vec::new(),
        };
        let mut wrong = Vec::new();
        for (key, ..) in KNOWN {
            let setting = settings.take(key);
            if let Some(setting) = &setting
                && let Err(error) = out.set(setting)
            {
                wrong.push(error);
            }
            out.origins.push(setting.map(|s| (s.file, s.line)));
        }
        wrong.extend(settings.rest().map(|setting| setting.unknown()));
        if wrong.is_empty() { Ok(out) } else { Err(wrong) }
    }

    fn set(&mut self, setting: &Setting) -> Result<(), SettingsError> {
        match setting.key.as_str() {
            "log.format" => {
                self.log_format = match setting.one_of(&["auto", "text", "json", "journal"])? {
                    "text" => LogFormat::Text,
                    "json" => LogFormat::Json,
                    "journal" => LogFormat::Journal,
                    _ => LogFormat::Auto,
                };
            }
            "log.filter" => {
                let text = setting.text()?;
                tracing_subscriber::EnvFilter::try_new(text).map_err(|e| setting.refuse(e))?;
                self.log_filter = Some(text.to_owned()).filter(|t| !t.is_empty());
            }
            "service.worker_threads" => {
                self.worker_threads = usize::try_from(setting.integer(1..=64)?).unwrap_or(2);
            }
            "service.drop_capabilities" => self.drop_capabilities = setting.boolean()?,
            "service.stop_timeout" => {
                let nanos = proto::duration::parse(setting.text()?).map_err(|e| setting.refuse(e))?;
                let nanos = u64::try_from(nanos).map_err(|_| setting.refuse("must not be negative"))?;
                self.stop_timeout = Duration::from_nanos(nanos);
            }
            _ => return Err(setting.unknown()),
        }
        Ok(())
    }

    /// Rows for people: key, value, where it comes from.
    pub fn rows(&self) -> Vec<(String, String, String)> {
        let format = match self.log_format {
            LogFormat::Auto => "auto",
            LogFormat::Text => "text",
            LogFormat::Json => "json",
            LogFormat::Journal => "journal",
        };
        let nanos = i64::try_from(self.stop_timeout.as_nanos()).unwrap_or(i64::MAX);
        let values = [
            format.to_owned(),
            self.log_filter.clone().unwrap_or_default(),
            self.worker_threads.to_string(),
            self.drop_capabilities.to_string(),
            proto::duration::format(nanos),
        ];
        let from = |origin: &Option<(PathBuf, usize)>| match origin {
            Some((file, line)) => format!("{}:{line}", file.display()),
            None => "default".to_owned(),
        };
        let rows = KNOWN.iter().zip(values).zip(&self.origins);
        rows.map(|(((key, ..), value), origin)| ((*key).to_owned(), value, from(origin))).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn load(text: &str) -> Result<OwnSettings, Vec<String>> {
        let file = std::env::temp_dir().join(format!("own-{}.toml", crate::backoff::random_below(u32::MAX)));
        std::fs::write(&file, text).expect("writes");
        let loaded = OwnSettings::load(Some(&file));
        std::fs::remove_file(&file).expect("removes");
        loaded.map_err(|errors| errors.iter().map(ToString::to_string).collect())
    }

    #[test]
    fn every_setting_is_read_and_shown_with_its_origin() {
        let text = "[log]\nformat = \"journal\"\nfilter = \"agent=debug,info\"\n[service]\nworker_threads = 4\n\
                    drop_capabilities = false\nstop_timeout = \"3s\"\n";
        let settings = load(text).expect("fine");
        assert_eq!((settings.log_format, settings.worker_threads), (LogFormat::Journal, 4));
        let values: Vec<_> = settings.rows().into_iter().map(|(_, value, _)| value).collect();
        assert_eq!(values, ["journal", "agent=debug,info", "4", "false", "3s"]);
        assert!(settings.rows().iter().all(|(.., origin)| origin.contains(".toml:")));
        let defaults: Vec<_> = load("").expect("fine").rows();
        assert!(defaults.iter().zip(KNOWN).all(|(row, known)| row.1 == known.1), "{defaults:?}");
    }

    #[test]
    fn all_that_is_wrong_is_told_with_its_line() {
        let errors =
            load("[log]\nformat = \"xml\"\nlevel = 3\n[service]\nworker_threads = 0\nstop_timeout = \"soon\"\n")
                .expect_err("refused");
        let ends = |line: &str| errors.iter().any(|e| e.contains(line));
        assert!(ends(".toml:2: log.format: must be one of auto, text, json, journal, not \"xml\""), "{errors:?}");
        assert!(ends(".toml:3: unknown setting \"log.level\""), "{errors:?}");
        assert!(ends(".toml:5: service.worker_threads: must be a number from 1 to 64"), "{errors:?}");
        assert!(ends(".toml:6: service.stop_timeout: "), "{errors:?}");
        assert!(OwnSettings::load(Some(Path::new("/nonexistent.toml"))).is_err());
    }
}
