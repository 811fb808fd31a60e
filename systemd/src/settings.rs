//! Settings in TOML: one file, then the `*.toml` of a folder of the same name with `.d` behind it.
//!
//! Drop-ins apply in lexical order of their names. A later scalar or list replaces an earlier one, tables are merged key
//! by key. Each daemon takes the settings that it knows and refuses what is left, with file and line. TOML has no null:
//! a setting is given back to its default by taking it out of the files.

use std::collections::BTreeMap;
use std::io;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};

use toml::de::{DeTable, DeValue};

/// Why settings are refused; the operator's to mend. The text begins with the file and, where one is known, the line.
#[derive(Debug, thiserror::Error)]
pub enum SettingsError {
    #[error("{}: {source}", path.display())]
    Read { path: PathBuf, source: io::Error },
    #[error("{}:{line}: {reason}", path.display())]
    Refused { path: PathBuf, line: usize, reason: String },
}

/// One value and where it stands.
#[derive(Debug, Clone, PartialEq)]
pub struct Setting {
    /// Names of the tables and the key, with dots between.
    pub key: String,
    pub value: Value,
    pub file: PathBuf,
    /// The first is 1.
    pub line: usize,
}

#[derive(Debug, Clone, PartialEq)]
pub enum Value {
    Text(String),
    Integer(i64),
    Boolean(bool),
    List(Vec<Value>),
    /// A float, a date or a table within a list, as written: no setting takes these.
    Other(String),
}

/// Settings that nobody has taken yet, by key.
#[derive(Debug, Clone, Default)]
pub struct Settings(BTreeMap<String, Setting>);

impl Settings {
    /// Reads the file and its drop-ins. Neither has to be there, unless the file is `required`.
    ///
    /// # Errors
    /// A file that cannot be read or is no TOML.
    pub fn load(file: &Path, required: bool) -> Result<Self, SettingsError> {
        let mut settings = Settings::default();
        match std::fs::read_to_string(file) {
            Ok(text) => settings.add(file, &text)?,
            Err(error) if error.kind() == io::ErrorKind::NotFound && !required => {}
            Err(source) => return Err(SettingsError::Read { path: file.to_owned(), source }),
        }
        for path in drop_ins(&drop_in_folder(file))? {
            let text = std::fs::read_to_string(&path);
            let text = text.map_err(|source| SettingsError::Read { path: path.clone(), source })?;
            settings.add(&path, &text)?;
        }
        Ok(settings)
    }

    fn add(&mut self, file: &Path, text: &str) -> Result<(), SettingsError> {
        let line_at = |offset: usize| text.get(..offset).map_or(1, |before| before.matches('\n').count() + 1);
        let table = DeTable::parse(text).map_err(|error| SettingsError::Refused {
            path: file.to_owned(),
            line: error.span().map_or(1, |span| line_at(span.start)),
            reason: error.message().trim().replace('\n', ", "),
        })?;
        let mut found = Vec::new();
        leaves("", table.get_ref(), &mut found);
        for (key, value, offset) in found {
            let setting = Setting { key: key.clone(), value, file: file.to_owned(), line: line_at(offset) };
            self.0.insert(key, setting);
        }
        Ok(())
    }

    /// Takes a setting out, if there is one.
    pub fn take(&mut self, key: &str) -> Option<Setting> {
        self.0.remove(key)
    }

    /// What is left, in the order of the keys.
    pub fn rest(self) -> impl Iterator<Item = Setting> {
        self.0.into_values()
    }
}

impl Setting {
    /// An error that points at this setting.
    pub fn refuse(&self, reason: impl std::fmt::Display) -> SettingsError {
        let reason = format!("{}: {reason}", self.key);
        SettingsError::Refused { path: self.file.clone(), line: self.line, reason }
    }

    /// The error of a setting that nobody knows.
    pub fn unknown(&self) -> SettingsError {
        let reason = format!("unknown setting {:?}", self.key);
        SettingsError::Refused { path: self.file.clone(), line: self.line, reason }
    }

    /// # Errors
    /// When it is no text.
    pub fn text(&self) -> Result<&str, SettingsError> {
        match &self.value {
            Value::Text(text) => Ok(text),
            _ => Err(self.refuse("must be text in quotes")),
        }
    }

    /// # Errors
    /// When it is neither true nor false.
    pub fn boolean(&self) -> Result<bool, SettingsError> {
        match self.value {
            Value::Boolean(on) => Ok(on),
            _ => Err(self.refuse("must be true or false")),
        }
    }

    /// # Errors
    /// When it is no integer, or one that is out of the range.
    pub fn integer(&self, range: RangeInclusive<i64>) -> Result<i64, SettingsError> {
        match self.value {
            Value::Integer(number) if range.contains(&number) => Ok(number),
            _ => Err(self.refuse(format!("must be a number from {} to {}", range.start(), range.end()))),
        }
    }

    /// # Errors
    /// When it is none of these words.
    pub fn one_of<'a>(&self, words: &[&'a str]) -> Result<&'a str, SettingsError> {
        let text = self.text()?;
        let word = words.iter().find(|word| **word == text);
        word.copied().ok_or_else(|| self.refuse(format!("must be one of {}, not {text:?}", words.join(", "))))
    }
}

fn leaves(above: &str, table: &DeTable<'_>, out: &mut Vec<(String, Value, usize)>) {
    for (name, value) in table {
        let key = if above.is_empty() { name.get_ref().to_string() } else { format!("{above}.{}", name.get_ref()) };
        match value.get_ref() {
            DeValue::Table(inner) if !inner.is_empty() => leaves(&key, inner, out),
            // An empty table says nothing.
            DeValue::Table(_) => {}
            other => out.push((key, plain(other), name.span().start)),
        }
    }
}

fn plain(value: &DeValue<'_>) -> Value {
    match value {
        DeValue::String(text) => Value::Text(text.to_string()),
        DeValue::Boolean(on) => Value::Boolean(*on),
        DeValue::Integer(number) => match i64::from_str_radix(number.as_str(), number.radix()) {
            Ok(number) => Value::Integer(number),
            Err(_) => Value::Other(number.to_string()),
        },
        DeValue::Float(number) => Value::Other(number.to_string()),
        DeValue::Datetime(when) => Value::Other(when.to_string()),
        DeValue::Array(items) => Value::List(items.iter().map(|item| plain(item.get_ref())).collect()),
        DeValue::Table(_) => Value::Other("a table".into()),
    }
}

/// `/etc/x.toml.d` for `/etc/x.toml`.
pub fn drop_in_folder(file: &Path) -> PathBuf {
    let mut name = file.as_os_str().to_owned();
    name.push(".d");
    name.into()
}

fn drop_ins(folder: &Path) -> Result<Vec<PathBuf>, SettingsError> {
    let refuse = |source| SettingsError::Read { path: folder.to_owned(), source };
    let entries = match std::fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(refuse(error)),
    };
    let mut found = Vec::new();
    for entry in entries {
        let path = entry.map_err(refuse)?.path();
        if path.extension().is_some_and(|extension| extension == "toml") {
            found.push(path);
        }
    }
    found.sort();
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn folder(name: &str, files: &[(&str, &str)]) -> PathBuf {
        let folder = std::env::temp_dir().join(format!("settings-{name}-{}", std::process::id()));
        for (name, text) in files {
            let path = folder.join(name);
            std::fs::create_dir_all(path.parent().expect("has a parent")).expect("creates");
            std::fs::write(path, text).expect("writes");
        }
        folder
    }

    #[test]
    fn later_files_win_and_tables_are_merged() {
        let dir = folder(
            "merge",
            &[
                ("a.toml", "# ours\nlist = [1, 2]\n[log]\nformat = \"json\"\nlevel = 1\n"),
                ("a.toml.d/10.toml", "list = [3]\n"),
                ("a.toml.d/20.toml", "log.level = 0x2\n\n[log.more]\non = true\n"),
                ("a.toml.d/99.conf", "not read"),
            ],
        );
        let mut settings = Settings::load(&dir.join("a.toml"), true).expect("fine");
        assert_eq!(settings.take("list").expect("there").value, Value::List(vec![Value::Integer(3)]));
        let format = settings.take("log.format").expect("there");
        assert_eq!((format.text().expect("text"), format.line), ("json", 4));
        let level = settings.take("log.level").expect("there");
        assert_eq!((level.integer(0..=10).expect("in range"), level.line), (2, 1));
        assert_eq!(level.file, dir.join("a.toml.d/20.toml"));
        assert!(
            level
                .integer(3..=10)
                .expect_err("out of range")
                .to_string()
                .ends_with("20.toml:1: log.level: must be a number from 3 to 10")
        );
        let rest: Vec<_> = settings.rest().map(|s| (s.unknown().to_string(), s.boolean().ok())).collect();
        let expected = format!("{}/a.toml.d/20.toml:4: unknown setting \"log.more.on\"", dir.display());
        assert_eq!(rest, [(expected, Some(true))]);
        std::fs::remove_dir_all(dir).expect("removes");
    }

    #[test]
    fn what_is_no_toml_is_refused_with_its_line() {
        let dir = folder("bad", &[("a.toml", "[log]\nformat = json\n"), ("b.toml", "a = 1\na = 2\n")]);
        let error = |name: &str| Settings::load(&dir.join(name), false).expect_err("refused").to_string();
        assert!(error("a.toml").contains("a.toml:2: "), "{}", error("a.toml"));
        assert!(error("b.toml").contains("b.toml:2: "), "{}", error("b.toml"));
        assert!(Settings::load(&dir.join("none.toml"), false).expect("fine").rest().next().is_none());
        assert!(Settings::load(&dir.join("none.toml"), true).is_err());
        std::fs::remove_dir_all(dir).expect("removes");
    }
}
