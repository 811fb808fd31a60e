//! Files of `apiserver.config.k8s.io` that say who is who and who may what: read at the start, and again when they
//! change. A new state that is wrong is told in the log, and the old one stays.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use serde_json::Value;

/// How often a file is looked at. Such files are mounted, and replaced by links that no watch of the file sees.
const LOOK_AGAIN: Duration = Duration::from_secs(10);

/// Why a file is of no use. The operator has to correct it.
#[derive(Debug, thiserror::Error)]
#[error("{}: {reason}", path.display())]
pub struct FileError {
    path: PathBuf,
    reason: String,
}

/// Makes a state of the document, or tells everything that is wrong in it.
type Parse<T> = Box<dyn Fn(&Value, &mut Vec<String>) -> T + Send + Sync>;

/// A file and what it says now.
pub struct ConfigFile<T> {
    path: PathBuf,
    kind: &'static str,
    parse: Parse<T>,
    state: ArcSwap<T>,
}

impl<T: Send + Sync> ConfigFile<T> {
    /// Reads a file whose document must be of this kind.
    ///
    /// # Errors
    /// When the file cannot be read, or with everything that is wrong in it.
    pub fn load(path: &Path, kind: &'static str, parse: Parse<T>) -> Result<Self, FileError> {
        let wrong = |reason: String| FileError { path: path.into(), reason };
        let text = std::fs::read(path).map_err(|e| wrong(e.to_string()))?;
        let state = read(&text, kind, &parse).map_err(wrong)?;
        Ok(ConfigFile { path: path.into(), kind, parse, state: ArcSwap::from_pointee(state) })
    }

    pub fn state(&self) -> Arc<T> {
        self.state.load_full()
    }

    /// Takes changes of the file in; never returns.
    pub async fn follow(&self) {
        let mut last = tokio::fs::read(&self.path).await.unwrap_or_default();
        loop {
            tokio::time::sleep(LOOK_AGAIN).await;
            let Ok(text) = tokio::fs::read(&self.path).await else { continue };
            if text == last {
                continue;
            }
            let path = self.path.display();
            match read(&text, self.kind, &self.parse) {
                Ok(state) => {
                    tracing::info!(%path, kind = self.kind, "the configuration was read again");
                    self.state.store(Arc::new(state));
                }
                Err(error) => tracing::error!(%path, kind = self.kind, %error, "the configuration stays as it was"),
            }
            last = text;
        }
    }
}

/// The state of a document of this kind; every complaint in one text.
pub(super) fn read<T>(file: &[u8], kind: &str, parse: impl Fn(&Value, &mut Vec<String>) -> T) -> Result<T, String> {
    let value = proto::yaml::read(file).map_err(|e| e.to_string())?.value;
    let (found, group) = (text(&value, "kind"), text(&value, "apiVersion"));
    let version = group.strip_prefix("apiserver.config.k8s.io/").unwrap_or_default();
    if found != kind || !matches!(version, "v1" | "v1beta1" | "v1alpha1") {
        return Err(format!("expected {kind} of apiserver.config.k8s.io/v1, got {group}, Kind={found}"));
    }
    let mut errors = Vec::new();
    let state = parse(&value, &mut errors);
    if errors.is_empty() { Ok(state) } else { Err(errors.join(", ")) }
}

/// A member's text, empty where it has none.
pub(super) fn text<'v>(value: &'v Value, key: &str) -> &'v str {
    value[key].as_str().unwrap_or_default()
}

/// A member's items, none where it is no list.
pub(super) fn list<'v>(value: &'v Value, key: &str) -> &'v [Value] {
    value[key].as_array().map_or(&[], Vec::as_slice)
}

/// Members that a part of the file may have; others are a mistake that would go unnoticed.
pub(super) fn known(value: &Value, path: &str, names: &[&str], errors: &mut Vec<String>) {
    for key in value.as_object().into_iter().flat_map(|map| map.keys()) {
        if !names.contains(&key.as_str()) {
            let whole = if path.is_empty() { key.to_string() } else { format!("{path}.{key}") };
            errors.push(format!("strict decoding error: unknown field {whole:?}"));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_change_is_taken_in_and_a_wrong_one_is_not() {
        let path = std::env::temp_dir().join(format!("config-file-{}", crate::random::uuid()));
        let write = |number: &str| {
            let text = format!("apiVersion: apiserver.config.k8s.io/v1\nkind: Test\nnumber: {number}\n");
            std::fs::write(&path, text).expect("writable");
        };
        let parse = |value: &Value, errors: &mut Vec<String>| {
            known(value, "", &["apiVersion", "kind", "number"], errors);
            value["number"].as_i64().unwrap_or_else(|| {
                errors.push("number: Required value".into());
                0
            })
        };
        write("1");
        let file = Arc::new(ConfigFile::load(&path, "Test", Box::new(parse)).expect("it is fine"));
        let other = ConfigFile::load(&path, "Other", Box::new(parse)).map(|_| ()).expect_err("another kind");
        assert!(
            other
                .to_string()
                .ends_with("expected Other of apiserver.config.k8s.io/v1, got apiserver.config.k8s.io/v1, Kind=Test")
        );
        let followed = file.clone();
        let task = tokio::spawn(async move { followed.follow().await });
        for (written, expected) in [("2", 2), ("x", 2), ("3\nmore: 1", 2), ("4", 4)] {
            // The first look has to be over before the file changes.
            tokio::time::sleep(LOOK_AGAIN / 2).await;
            write(written);
            for _ in 0..100 {
                tokio::time::sleep(LOOK_AGAIN).await;
                if *file.state() == expected {
                    break;
                }
            }
            assert_eq!(*file.state(), expected, "after {written}");
        }
        task.abort();
        std::fs::remove_file(&path).expect("ours");
    }
}
