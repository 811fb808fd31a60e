//! Settings in TOML: one file, then the `*.toml` of a folder of the same name with `.d` behind it.
//!
//! Drop-ins apply in lexical order of their names. A later scalar or list replaces an earlier one, tables are merged key
//! by key. TOML has no null: a setting is given back to its default by taking it out of the files.

use std::collections::BTreeMap;
use std::io;
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
    /// A float, a date or a table within a list: no setting takes these.
    Other,
}

/// Settings by key.
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
        DeValue::Integer(number) => {
            i64::from_str_radix(number.as_str(), number.radix()).map_or(Value::Other, Value::Integer)
        }
        DeValue::Float(_) | DeValue::Datetime(_) | DeValue::Table(_) => Value::Other,
        DeValue::Array(items) => Value::List(items.iter().map(|item| plain(item.get_ref())).collect()),
    }
}

/// `/etc/x.toml.d` for `/etc/x.toml`.
fn drop_in_folder(file: &Path) -> PathBuf {
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
