//! `node-agent config view`, `check` and `reference`: the merged configuration, who said what, and what is wrong.

use std::io::Write;
use std::path::Path;
use std::process::ExitCode;

use serde_json::Value;

use super::{CALLED_WRONGLY, Command, Flags};
use crate::config::{self, ConfigError, leaves};
use crate::daemon::wrong_at_start;
use crate::doctor;
use crate::settings::{OwnSettings, SettingsError};

/// Runs when the first argument is `config`; what follows the verb are the flags that the agent would be started with.
pub fn run(arguments: &[String]) -> Option<ExitCode> {
    let [first, rest @ ..] = arguments else { return None };
    if first != "config" {
        return None;
    }
    let (verb, rest) = match rest {
        [verb, rest @ ..] => (verb.as_str(), rest),
        [] => ("", rest),
    };
    if verb == "reference" {
        // A reader that closed its end has seen enough.
        let _ = std::io::stdout().write_all(config::reference().as_bytes());
        return Some(ExitCode::SUCCESS);
    }
    if !matches!(verb, "view" | "check") {
        eprintln!("Error: node-agent config takes view or check, then the agent's flags; or reference");
        return Some(ExitCode::from(CALLED_WRONGLY));
    }
    // What comes of the configuration is the same everywhere; whether the agent may start with it is not.
    let (machine, rest): (Vec<&String>, Vec<&String>) = rest.iter().partition(|word| *word == "--this-machine");
    if verb == "view" && !machine.is_empty() {
        eprintln!("Error: --this-machine is for config check");
        return Some(ExitCode::from(CALLED_WRONGLY));
    }
    let flags = match super::parse(rest.into_iter().cloned()) {
        Ok(Command::Run(flags)) => *flags,
        Ok(Command::Help | Command::Version { .. }) => {
            print!("{}", super::help());
            return Some(ExitCode::SUCCESS);
        }
        Err(error) => {
            eprintln!("Error: {error}");
            return Some(ExitCode::from(CALLED_WRONGLY));
        }
    };
    Some(if verb == "view" { view(&flags) } else { check(&flags, !machine.is_empty()) })
}

fn view(flags: &Flags) -> ExitCode {
    let (loaded, problems) = config::all_problems(&flags.sources);
    let Some(loaded) = loaded else { return tell(&[], &problems, &[]) };
    let (settings, wrong) = own(flags);
    let fields = leaves(&loaded.document);
    let fields =
        fields.into_iter().map(|(path, value)| (path.join("."), shown(value), loaded.origins.of(&path).to_string()));
    let rows: Vec<_> = fields.chain(settings).collect();
    let width = |column: fn(&(String, String, String)) -> usize| rows.iter().map(column).max().unwrap_or(0);
    let (first, second) = (width(|r| r.0.len()).min(60), width(|r| r.1.len()).min(40));
    let mut out = std::io::stdout().lock();
    for (path, value, origin) in &rows {
        // A reader that closed its end has seen enough.
        if writeln!(out, "{path:<first$}  {value:<second$}  {origin}").is_err() {
            break;
        }
    }
    tell(&loaded.oddities, &problems, &wrong)
}

/// The daemon's own settings as rows, and what is wrong with them.
fn own(flags: &Flags) -> (Vec<(String, String, String)>, Vec<SettingsError>) {
    match OwnSettings::load(flags.settings.as_deref()) {
        Ok(settings) => (settings.rows(), Vec::new()),
        Err(errors) => (Vec::new(), errors),
    }
}

fn tell(oddities: &[String], problems: &[impl std::fmt::Display], wrong: &[SettingsError]) -> ExitCode {
    for oddity in oddities {
        eprintln!("Warning: {oddity}");
    }
    for problem in problems {
        eprintln!("Error: {problem}");
    }
    for error in wrong {
        eprintln!("Error: {error}");
    }
    if problems.is_empty() && wrong.is_empty() { ExitCode::SUCCESS } else { ExitCode::from(1) }
}

fn shown(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

/// `machine`: also what the start would refuse on this machine.
fn check(flags: &Flags, machine: bool) -> ExitCode {
    let wrong = own(flags).1;
    let (loaded, problems) = config::all_problems(&flags.sources);
    // Loading stops at the first wrong type of a file; here all of them are told, with their places.
    for place in config::wrong_types(&flags.sources) {
        eprintln!("Error: {place}");
    }
    let mut lines: Vec<String> = problems.into_iter().flat_map(ConfigError::split).map(|p| p.to_string()).collect();
    let mut warnings = Vec::new();
    if let Some(loaded) = &loaded {
        lines.extend(wrong_at_start(flags, loaded).iter().map(ToString::to_string));
        lines.extend(doctor::refuse(Path::new("/"), &loaded.config).err().filter(|_| machine));
        for line in &mut lines {
            if let Some(place) = config::place(loaded, line) {
                line.push_str(&format!(" ({place})"));
            }
        }
        warnings.clone_from(&loaded.oddities);
        let idle = config::without_effect(loaded);
        let idle = idle
            .into_iter()
            .chain((!flags.silence_deprecations).then(|| loaded.deprecated.clone()).into_iter().flatten());
        warnings.extend(idle.map(|line| match config::place(loaded, &line) {
            Some(place) => format!("{line} ({place})"),
            None => line,
        }));
    }
    let code = tell(&warnings, &lines, &wrong);
    if code == ExitCode::SUCCESS {
        println!("the configuration is valid");
    }
    code
}
