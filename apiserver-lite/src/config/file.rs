//! Settings from files: the flags' names in camel case, turned into flags in front of those given.
//!
//! TOML by default: `/etc/orchestrator-lite/apiserver-lite.toml` and `apiserver-lite.toml.d/*.toml` beside it, both of
//! which may be absent. `--config` names another TOML file (with its own `.d`), or one of YAML or JSON. What the command
//! line says wins, lists as a whole.

use std::ffi::OsString;
use std::path::Path;

use clap::parser::ValueSource;
use clap::{ArgMatches, CommandFactory as _, FromArgMatches as _};
use serde_json::Value;
use service::settings::{Setting, Settings, SettingsError, Value as Toml};

use super::ConfigError;
use super::flags::{Cli, Command, ServeArgs};

/// Read when no other file is named; it need not be there.
const USUAL_PLACE: &str = "/etc/orchestrator-lite/apiserver-lite.toml";

/// Where packages had the settings before.
const FORMER_PLACE: &str = "/etc/orchestrator-lite/apiserver-lite.yaml";

/// A flag and its values, several for a list.
type Flag = (String, Vec<String>);

/// Reads the files and lays the command line of this process over them.
pub(super) fn load(args: ServeArgs) -> Result<ServeArgs, ConfigError> {
    let flags = match &args.config {
        Some(path) if path.extension().is_none_or(|e| e != "toml") => document(path)?,
        Some(path) => toml_flags(Settings::load(path, true))?,
        None => {
            refuse_former(Path::new(FORMER_PLACE))?;
            toml_flags(Settings::load(Path::new(USUAL_PLACE), false))?
        }
    };
    if flags.is_empty() {
        return Ok(args);
    }
    merge(flags, std::env::args_os().skip_while(|a| a != "serve").skip(1).collect())
}

/// What somebody set in the file that was read before is not to get lost without a word.
fn refuse_former(path: &Path) -> Result<(), ConfigError> {
    let text = std::fs::read_to_string(path).unwrap_or_default();
    let mut lines = text.lines().map(str::trim);
    if lines.all(|line| line.is_empty() || line.starts_with('#') || line == "---") {
        return Ok(());
    }
    let reason = format!("is not read any more unless it is named; move its settings to {USUAL_PLACE}");
    Err(ConfigError::File { path: path.into(), reason })
}

/// Every setting as a flag that is known and takes the value.
fn toml_flags(settings: Result<Settings, SettingsError>) -> Result<Vec<Flag>, ConfigError> {
    let settings = settings.map_err(|error| ConfigError::Settings(vec![error]))?;
    let (mut flags, mut wrong): (Vec<Flag>, _) = (Vec::new(), Vec::new());
    for setting in settings.rest() {
        match flag_of(&setting) {
            // The same setting by two spellings.
            Ok(flag) if flags.iter().any(|f| f.0 == flag.0) => wrong.push(setting.refuse("is set twice")),
            Ok(flag) => flags.push(flag),
            Err(error) => wrong.push(error),
        }
    }
    if wrong.is_empty() { Ok(flags) } else { Err(ConfigError::Settings(wrong)) }
}

fn flag_of(setting: &Setting) -> Result<Flag, SettingsError> {
    let flag = kebab(&setting.key);
    if matches!(flag.as_str(), "config" | "check") || !known(&flag) {
        return Err(setting.unknown());
    }
    let plain = |value: &Toml| match value {
        Toml::Text(text) => Some(text.clone()),
        Toml::Boolean(on) => Some(on.to_string()),
        Toml::Integer(number) => Some(number.to_string()),
        Toml::List(_) | Toml::Other(_) => None,
    };
    let values = match &setting.value {
        Toml::List(items) => items.iter().map(plain).collect(),
        one => plain(one).map(|text| vec![text]),
    };
    let values = values.ok_or_else(|| setting.refuse("must be text, a number, a boolean or a list of them"))?;
    // Told now, while the line is known.
    let flag = (flag, values);
    match matches(written(std::slice::from_ref(&flag))) {
        Ok(_) => Ok(flag),
        Err(error) => {
            let text = error.to_string();
            let first = text.lines().next().unwrap_or_default();
            Err(setting.refuse(first.trim_start_matches("error: ")))
        }
    }
}

fn known(flag: &str) -> bool {
    let command = Cli::command();
    command.find_subcommand("serve").is_some_and(|c| c.get_arguments().any(|a| a.get_long() == Some(flag)))
}

fn written(flags: &[Flag]) -> impl Iterator<Item = OsString> {
    flags.iter().flat_map(|(flag, values)| values.iter().map(move |value| format!("--{flag}={value}").into()))
}

fn matches(arguments: impl Iterator<Item = OsString>) -> Result<ArgMatches, clap::Error> {
    Cli::command().try_get_matches_from(["apiserver-lite".into(), "serve".into()].into_iter().chain(arguments))
}

/// The command line on top of the files.
fn merge(mut flags: Vec<Flag>, given: Vec<OsString>) -> Result<ServeArgs, ConfigError> {
    let alone = matches(given.iter().cloned())?;
    let alone = alone.subcommand_matches("serve");
    // Lists would add up otherwise.
    flags.retain(|(flag, _)| {
        let id = if flag == "v" { "verbosity".to_owned() } else { flag.replace('-', "_") };
        alone.and_then(|m| m.value_source(&id)) != Some(ValueSource::CommandLine)
    });
    let arguments: Vec<OsString> = written(&flags).chain(given).collect();
    match Cli::from_arg_matches(&matches(arguments.into_iter())?)?.command {
        Command::Serve(args) => Ok(*args),
        _ => Err(super::bad("config", "is for the serve command only")),
    }
}

/// The settings of a YAML or JSON file.
fn document(path: &Path) -> Result<Vec<Flag>, ConfigError> {
    let text = std::fs::read(path).map_err(|e| ConfigError::File { path: path.into(), reason: e.to_string() })?;
    flags_in(path, &text)
}

fn flags_in(path: &Path, text: &[u8]) -> Result<Vec<Flag>, ConfigError> {
    let wrong = |reason: String| ConfigError::File { path: path.into(), reason };
    let Value::Object(settings) = parse(text).map_err(wrong)? else {
        return Err(wrong("must be a map of settings".into()));
    };
    let mut flags = Vec::new();
    for (key, value) in settings.iter().filter(|(key, _)| !matches!(key.as_str(), "kind" | "apiVersion")) {
        if matches!(key.as_str(), "config" | "check") {
            return Err(wrong(format!("{key} is for the command line only")));
        }
        let flag = kebab(key);
        if !known(&flag) {
            return Err(wrong(format!("unknown setting {key:?}")));
        }
        let values = match value {
            Value::Array(items) => items.iter().map(flag_value).collect(),
            one => flag_value(one).map(|text| vec![text]),
        };
        let values =
            values.ok_or_else(|| wrong(format!("{key}: must be text, a number, a boolean or a list of them")))?;
        flags.push((flag, values));
    }
    Ok(flags)
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
        Value::Array(_) | Value::Null | Value::Object(_) => None,
    }
}

/// `clientCAFile`, `clientCaFile` and `client_ca_file` become `client-ca-file`.
fn kebab(key: &str) -> String {
    let key = key.replace('_', "-");
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
        merge(flags_in(Path::new("test.yaml"), text.as_bytes())?, given.iter().map(Into::into).collect())
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

    fn from_toml(files: &[(&str, &str)], given: &[&str]) -> Result<ServeArgs, String> {
        let name = format!("apiserver-settings-{}-{:?}", std::process::id(), std::thread::current().id());
        let dir = std::env::temp_dir().join(name);
        for (name, text) in files {
            let path = dir.join(name);
            std::fs::create_dir_all(path.parent().expect("has a parent")).expect("creates");
            std::fs::write(path, text).expect("writes");
        }
        let flags = toml_flags(Settings::load(&dir.join("a.toml"), true));
        std::fs::remove_dir_all(&dir).expect("removes");
        let merged = flags.and_then(|flags| merge(flags, given.iter().map(Into::into).collect()));
        merged.map_err(|e| e.to_string().replace(&dir.display().to_string(), ""))
    }

    #[test]
    fn toml_and_its_drop_ins_are_overruled_by_the_command_line_list_by_list() {
        let files = [
            (
                "a.toml",
                "secure-port = 7443\nclient_ca_file = \"/ca\"\nauthorizationMode = [\"Node\", \"RBAC\"]\nv = 3\n",
            ),
            ("a.toml.d/10.toml", "secure-port = 8443\nserviceAccountIssuer = [\"https://a\", \"https://b\"]\n"),
        ];
        let args = from_toml(&files, &[]).expect("fine");
        assert_eq!((args.secure_port, args.verbosity), (8443, 3));
        assert_eq!(args.client_ca_file.as_deref(), Some(Path::new("/ca")));
        assert_eq!(args.authorization_mode, ["Node", "RBAC"]);
        assert_eq!(args.service_account_issuer, ["https://a", "https://b"]);
        let given = ["--authorization-mode=AlwaysAllow", "--secure-port", "9443", "-v5", "--service-account-issuer=c"];
        let args = from_toml(&files, &given).expect("fine");
        assert_eq!((args.secure_port, args.verbosity), (9443, 5));
        assert_eq!(args.authorization_mode, ["AlwaysAllow"]);
        assert_eq!(args.service_account_issuer, ["c"]);
    }

    #[test]
    fn toml_that_fits_no_flag_is_refused_with_file_and_line() {
        let text = "securePort = \"https\"\n\n[log]\nlevel = 1\n";
        let error = from_toml(&[("a.toml", text)], &[]).expect_err("refused");
        assert!(error.contains("/a.toml:4: unknown setting \"log.level\""), "{error}");
        assert!(error.contains("/a.toml:1: securePort: invalid value 'https' for '--secure-port"), "{error}");
        let error = from_toml(&[("a.toml", "v = 1\nconfig = \"b\"\n")], &[]).expect_err("refused");
        assert_eq!(error, "/a.toml:2: unknown setting \"config\"");
        let error = from_toml(&[("a.toml", "tlsSan = []\ntls-san = [\"a\"]\n")], &[]).expect_err("refused");
        assert!(error.contains("is set twice"), "{error}");
    }
}
