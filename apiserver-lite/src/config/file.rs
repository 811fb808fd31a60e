//! The configuration file: settings under the flags' names in camel case, turned into flags in front of those given.

use std::ffi::OsString;
use std::path::Path;

use clap::{CommandFactory as _, FromArgMatches as _};
use serde_json::Value;

use super::ConfigError;
use super::flags::{Cli, Command, ServeArgs};

/// Reads the file and lays the command line of this process over it.
pub(super) fn load(path: &Path, _given: &ServeArgs) -> Result<ServeArgs, ConfigError> {
    let text = std::fs::read(path).map_err(|e| ConfigError::File { path: path.into(), reason: e.to_string() })?;
    merge(path, &text, std::env::args_os().skip_while(|a| a != "serve").skip(1))
}

fn merge(path: &Path, text: &[u8], given: impl Iterator<Item = OsString>) -> Result<ServeArgs, ConfigError> {
    let wrong = |reason: String| ConfigError::File { path: path.into(), reason };
    let value = parse(text).map_err(wrong)?;
    let Value::Object(settings) = value else {
        return Err(wrong("must be a map of settings".into()));
    };
    let mut args: Vec<OsString> = vec!["apiserver-lite".into(), "serve".into()];
    for (key, value) in &settings {
        if matches!(key.as_str(), "kind" | "apiVersion") {
            continue;
        }
        if matches!(key.as_str(), "config" | "check") {
            return Err(wrong(format!("{key} is for the command line only")));
        }
        let flag = kebab(key);
        let known = Cli::command()
            .find_subcommand("serve")
            .is_some_and(|c| c.get_arguments().any(|a| a.get_long() == Some(&flag)));
        if !known {
            return Err(wrong(format!("unknown setting {key:?}")));
        }
        let text = flag_value(value)
            .ok_or_else(|| wrong(format!("{key}: must be text, a number, a boolean or a list of them")))?;
        args.push(format!("--{flag}={text}").into());
    }
    args.extend(given);
    let matches = Cli::command().try_get_matches_from(args)?;
    match Cli::from_arg_matches(&matches)?.command {
        Command::Serve(args) => Ok(*args),
        _ => Err(wrong("is for the serve command only".into())),
    }
}

fn parse(text: &[u8]) -> Result<Value, String> {
    if text.trim_ascii_start().first() == Some(&b'{') {
        return proto::json::parse(text).map(|p| p.value).map_err(|e| e.to_string());
    }
    flat_yaml(&String::from_utf8_lossy(text))
}

/// `key: value` lines and lists of plain values: all that the settings need.
fn flat_yaml(text: &str) -> Result<Value, String> {
    let mut out = serde_json::Map::new();
    let mut last: Option<String> = None;
    for (number, line) in text.lines().enumerate() {
        let line = line.split(" #").next().unwrap_or_default().trim_end();
        if line.trim().is_empty() || line.trim_start().starts_with('#') || line == "---" {
            continue;
        }
        let plain = |t: &str| Value::from(t.trim().trim_matches(|c| c == '"' || c == '\''));
        if let Some(item) = line.trim_start().strip_prefix("- ") {
            let list = last.as_ref().and_then(|k| out.get_mut(k));
            match list {
                Some(Value::Array(list)) => list.push(plain(item)),
                Some(slot @ Value::Null) => *slot = Value::Array(vec![plain(item)]),
                _ => return Err(format!("line {}: an item of no list", number + 1)),
            }
            continue;
        }
        let (key, value) = line.split_once(':').ok_or_else(|| format!("line {}: not a setting", number + 1))?;
        if key.starts_with(' ') {
            return Err(format!("line {}: settings are not nested", number + 1));
        }
        let value = if value.trim().is_empty() { Value::Null } else { plain(value) };
        if out.insert(key.trim().into(), value).is_some() {
            return Err(format!("line {}: {key} is set twice", number + 1));
        }
        last = Some(key.trim().into());
    }
    Ok(Value::Object(out))
}

fn flag_value(value: &Value) -> Option<String> {
    match value {
        Value::String(text) => Some(text.clone()),
        Value::Bool(b) => Some(b.to_string()),
        Value::Number(n) => Some(n.to_string()),
        Value::Array(items) => Some(items.iter().map(flag_value).collect::<Option<Vec<_>>>()?.join(",")),
        Value::Null | Value::Object(_) => None,
    }
}

/// `clientCAFile` and `clientCaFile` become `client-ca-file`.
fn kebab(key: &str) -> String {
    let mut out = String::with_capacity(key.len() + 4);
    let chars: Vec<char> = key.chars().collect();
    for (at, &c) in chars.iter().enumerate() {
        if c.is_ascii_uppercase() && at > 0 {
            let before = chars[at - 1].is_ascii_lowercase();
            let after = chars.get(at + 1).is_some_and(char::is_ascii_lowercase);
            if before || after {
                out.push('-');
            }
        }
        out.push(c.to_ascii_lowercase());
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn merged(text: &str, given: &[&str]) -> Result<ServeArgs, ConfigError> {
        merge(Path::new("test.yaml"), text.as_bytes(), given.iter().map(Into::into))
    }

    #[test]
    fn the_command_line_wins_over_the_file() {
        let text =
            "# ours\nsecurePort: 7443\nclientCAFile: /ca\nscheduler: false\nauthorizationMode:\n- Node\n- RBAC\n";
        let args = merged(text, &["--secure-port=8443"]).expect("fine");
        assert_eq!((args.secure_port, args.scheduler), (8443, false));
        assert_eq!(args.client_ca_file.as_deref(), Some(Path::new("/ca")));
        assert_eq!(args.authorization_mode, ["Node", "RBAC"]);
        assert_eq!(merged("{\"tlsSan\": [\"a\", \"b\"]}", &[]).expect("fine").tls_san, ["a", "b"]);
    }

    #[test]
    fn unknown_settings_are_refused() {
        let message = merged("securePrt: 1\n", &[]).expect_err("a typo").to_string();
        assert!(message.contains("unknown setting \"securePrt\""), "{message}");
        assert!(merged("config: /x\n", &[]).is_err());
    }
}
