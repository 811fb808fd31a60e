//! `node-agent config view` and `node-agent config check`: the merged configuration, who said what, and what is wrong.

use std::io::Write;
use std::process::ExitCode;

use serde_json::Value;

use super::{Command, Flags};
use crate::config::{self, leaves};

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
    if !matches!(verb, "view" | "check") {
        eprintln!("Error: node-agent config takes view or check, then the agent's flags");
        return Some(ExitCode::from(1));
    }
    let flags = match super::parse(rest.iter().cloned()) {
        Ok(Command::Run(flags)) => *flags,
        Ok(Command::Help | Command::Version) => {
            print!("{}", super::help());
            return Some(ExitCode::SUCCESS);
        }
        Err(error) => {
            eprintln!("Error: {error}");
            return Some(ExitCode::from(1));
        }
    };
    Some(if verb == "view" { view(&flags) } else { check(&flags) })
}

fn view(flags: &Flags) -> ExitCode {
    let (loaded, problems) = match config::all_problems(&flags.sources) {
        Ok(found) => found,
        Err(error) => {
            eprintln!("Error: {error}");
            return ExitCode::from(1);
        }
    };
    let rows: Vec<_> = leaves(&loaded.document)
        .into_iter()
        .map(|(path, value)| (path.join("."), shown(value), loaded.origins.of(&path).to_string()))
        .collect();
    let width = |column: fn(&(String, String, String)) -> usize| rows.iter().map(column).max().unwrap_or(0);
    let (first, second) = (width(|r| r.0.len()).min(60), width(|r| r.1.len()).min(40));
    let mut out = std::io::stdout().lock();
    for (path, value, origin) in &rows {
        // A reader that closed its end has seen enough.
        if writeln!(out, "{path:<first$}  {value:<second$}  {origin}").is_err() {
            break;
        }
    }
    for problem in &problems {
        eprintln!("Error: {problem}");
    }
    if problems.is_empty() { ExitCode::SUCCESS } else { ExitCode::from(1) }
}

fn shown(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

fn check(flags: &Flags) -> ExitCode {
    let (loaded, problems) = match config::all_problems(&flags.sources) {
        Ok(found) => found,
        Err(error) => {
            eprintln!("Error: {error}");
            return ExitCode::from(1);
        }
    };
    for oddity in &loaded.oddities {
        eprintln!("Warning: {oddity}");
    }
    for problem in &problems {
        eprintln!("Error: {problem}");
    }
    if problems.is_empty() {
        println!("the configuration is valid");
        return ExitCode::SUCCESS;
    }
    ExitCode::from(1)
}
