//! From files and flags to the finished configuration.

use std::path::{Path, PathBuf};

use proto::schema::{StructId, TypeSet};
use serde_json::Value;

use super::{Configuration, Override, defaults, validation};

const API_VERSION: &str = "kubelet.config.k8s.io/v1beta1";
const KIND: &str = "KubeletConfiguration";

/// Where the configuration comes from.
#[derive(Debug, Clone, Default)]
pub struct Sources {
    /// `--config`
    pub file: Option<PathBuf>,
    /// `--config-dir`
    pub drop_ins: Option<PathBuf>,
    /// Flags, in the order given.
    pub flags: Vec<Override>,
}

/// A configuration that passed validation.
#[derive(Debug, Clone)]
pub struct Loaded {
    pub config: Configuration,
    /// The same as a tree of `kubelet.config.k8s.io/v1beta1`, complete with what the agent itself does not use.
    pub document: Value,
    /// Fields that no version of the configuration has, and repeated ones: for the log.
    pub warnings: Vec<String>,
}

/// Why a configuration is refused; the operator's to mend, nothing was started. The texts hold the kubelet's key words.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    #[error(
        "failed to load kubelet config file, path: {path}, error: failed to load Kubelet config file {path}, error {reason}"
    )]
    File { path: PathBuf, reason: String },
    #[error("failed to merge kubelet configs: failed to load kubelet dropin file, path: {path}, error: {reason}")]
    DropIn { path: PathBuf, reason: String },
    #[error("failed to merge kubelet configs: failed to walk through kubelet dropin directory {path}: {reason}")]
    DropInFolder { path: PathBuf, reason: String },
    #[error("failed to decode the merged configuration: {0}")]
    Merged(String),
    /// Every violation, in the order of the checks.
    #[error("failed to validate kubelet configuration, error: {}", .0.join(", "))]
    Invalid(Vec<String>),
}

/// Loads and checks the configuration.
///
/// # Errors
/// See [`ConfigError`]. Unknown and repeated fields are no error but [`Loaded::warnings`], as in the kubelet.
pub fn load(sources: &Sources) -> Result<Loaded, ConfigError> {
    let mut warnings = Vec::new();
    let mut document = Value::Object(serde_json::Map::new());
    if let Some(path) = &sources.file {
        let refuse = |reason| ConfigError::File { path: path.clone(), reason };
        let text = std::fs::read(path).map_err(|e| {
            refuse(format!("failed to read kubelet config file {:?}, error: open {0}: {e}", path.display()))
        })?;
        if text.is_empty() {
            return Err(refuse(format!("kubelet config file {:?} was empty", path.display())));
        }
        document = decode(&text, &mut warnings).map_err(|e| refuse(format!("failed to decode: {e}")))?;
        resolve_paths(&mut document, path.parent().unwrap_or(Path::new("/")));
        defaults::apply_eviction(&mut document);
        defaults::apply(&mut document);
    } else {
        defaults::apply_legacy(&mut document);
        defaults::apply(&mut document);
    }
    if let Some(folder) = &sources.drop_ins {
        for path in drop_ins(folder)? {
            let refuse = |reason| ConfigError::DropIn { path: path.clone(), reason };
            let text = std::fs::read(&path).map_err(|e| refuse(e.to_string()))?;
            if text.is_empty() {
                return Err(refuse(format!("kubelet config file {:?} was empty", path.display())));
            }
            let patch = crate::document::parse(&text).map_err(|e| refuse(e.to_string()))?;
            decode(&text, &mut warnings).map_err(&refuse)?;
            merge(&mut document, patch);
        }
        // A null or zero in a drop-in asks for the default.
        document = conform(&document, &mut Vec::new()).map_err(ConfigError::Merged)?;
        defaults::apply(&mut document);
    }
    for flag in &sources.flags {
        apply_flag(&mut document, flag);
    }
    document = conform(&document, &mut Vec::new()).map_err(ConfigError::Merged)?;
    let config: Configuration = Configuration::read(&document).map_err(|e| ConfigError::Merged(e.to_string()))?;
    let errors = validation::check(&config);
    if !errors.is_empty() {
        return Err(ConfigError::Invalid(errors));
    }
    Ok(Loaded { config, document, warnings })
}

impl Configuration {
    fn read(document: &Value) -> Result<Self, serde_json::Error> {
        serde::Deserialize::deserialize(document)
    }
}

fn schema() -> (&'static TypeSet, Option<StructId>) {
    let set = TypeSet::built_in();
    (set, set.kind("kubelet.config.k8s.io", "v1beta1", KIND))
}

/// Reads one file: its version and kind, then its fields with Go's complaints about their types.
fn decode(text: &[u8], warnings: &mut Vec<String>) -> Result<Value, String> {
    let tree = crate::document::parse(text).map_err(|e| e.to_string())?;
    let word = |key: &str| tree.get(key).and_then(Value::as_str).unwrap_or("");
    let (version, kind) = (word("apiVersion"), word("kind"));
    if kind.is_empty() {
        return Err(format!("Object 'Kind' is missing in '{}'", String::from_utf8_lossy(&text[..text.len().min(200)])));
    }
    if version.is_empty() {
        return Err(format!(
            "Object 'apiVersion' is missing in '{}'",
            String::from_utf8_lossy(&text[..text.len().min(200)])
        ));
    }
    if version != API_VERSION || kind != KIND {
        return Err(format!("no kind {kind:?} is registered for version {version:?} in the kubelet's scheme"));
    }
    conform(&tree, warnings)
}

fn conform(tree: &Value, warnings: &mut Vec<String>) -> Result<Value, String> {
    let (set, Some(id)) = schema() else { return Err("the schema lacks the configuration".into()) };
    let decoded = proto::json::conform(set, id, tree).map_err(|e| e.to_string())?;
    warnings.extend(decoded.strict);
    let mut value = decoded.value;
    // The normal form has no empty lists and maps, but here they say "none" where absence means the default.
    for name in ["enforceNodeAllocatable", "evictionHard"] {
        if let Some(empty) = tree.get(name).filter(|v| is_empty(v)) {
            defaults::set(&mut value, name, empty.clone());
        }
    }
    Ok(value)
}

fn is_empty(value: &Value) -> bool {
    value.as_array().is_some_and(Vec::is_empty) || value.as_object().is_some_and(serde_json::Map::is_empty)
}

/// The fields that name files; in the main file they are relative to it.
const PATHS: &[&str] =
    &["staticPodPath", "tlsCertFile", "tlsPrivateKeyFile", "authentication.x509.clientCAFile", "resolvConf"];

fn resolve_paths(document: &mut Value, folder: &Path) {
    for path in PATHS {
        let mut at = Some(&mut *document);
        for name in path.split('.') {
            at = at.and_then(|v| v.get_mut(name));
        }
        let Some(value) = at else { continue };
        if let Some(text) = value.as_str()
            && !text.is_empty()
            && !text.starts_with('/')
        {
            *value = Value::String(folder.join(text).to_string_lossy().into_owned());
        }
    }
}

/// All `*.conf` files below the folder, in lexical order of the walk.
fn drop_ins(folder: &Path) -> Result<Vec<PathBuf>, ConfigError> {
    let refuse =
        |path: &Path, e: std::io::Error| ConfigError::DropInFolder { path: path.to_owned(), reason: e.to_string() };
    let mut found = Vec::new();
    let mut entries: Vec<_> =
        std::fs::read_dir(folder).and_then(Iterator::collect::<Result<Vec<_>, _>>).map_err(|e| refuse(folder, e))?;
    entries.sort_by_key(std::fs::DirEntry::file_name);
    for entry in entries {
        let path = entry.path();
        if entry.file_type().map_err(|e| refuse(&path, e))?.is_dir() {
            found.extend(drop_ins(&path)?);
        } else if path.extension().is_some_and(|e| e == "conf") {
            found.push(path);
        }
    }
    Ok(found)
}

/// RFC 7386.
fn merge(target: &mut Value, patch: Value) {
    let Value::Object(patch) = patch else {
        *target = patch;
        return;
    };
    if !target.is_object() {
        *target = Value::Object(serde_json::Map::new());
    }
    let Some(map) = target.as_object_mut() else { return };
    for (key, value) in patch {
        if value.is_null() {
            map.remove(&key);
        } else {
            merge(map.entry(key).or_insert(Value::Null), value);
        }
    }
}

fn apply_flag(document: &mut Value, flag: &Override) {
    match (&flag.value, flag.merge) {
        (Value::Object(entries), true) => {
            if let Some(map) = defaults::object_at(document, flag.path) {
                map.extend(entries.clone());
            }
        }
        (value, _) => defaults::set(document, flag.path, value.clone()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn folder(files: &[(&str, &str)]) -> PathBuf {
        let folder = std::env::temp_dir().join(format!("node-agent-config-{}", crate::backoff::random_below(u32::MAX)));
        for (name, text) in files {
            let path = folder.join(name);
            std::fs::create_dir_all(path.parent().expect("has a parent")).expect("creates");
            std::fs::write(path, text).expect("writes");
        }
        folder
    }

    const HEAD: &str = r#""apiVersion":"kubelet.config.k8s.io/v1beta1","kind":"KubeletConfiguration""#;

    #[test]
    fn drop_ins_apply_in_order_and_flags_win() {
        let dir = folder(&[
            (
                "config.json",
                &format!(r#"{{{HEAD},"maxPods":1,"staticPodPath":"pods","systemReserved":{{"cpu":"1"}}}}"#),
            ),
            ("d/10-a.conf", &format!(r#"{{{HEAD},"maxPods":2,"systemReserved":{{"memory":"1Mi"}}}}"#)),
            ("d/20/x.conf", &format!(r#"{{{HEAD},"maxPods":3,"port":0}}"#)),
            ("d/90.json", "not read"),
        ]);
        let mut sources =
            Sources { file: Some(dir.join("config.json")), drop_ins: Some(dir.join("d")), flags: Vec::new() };
        let loaded = load(&sources).expect("valid");
        assert_eq!((loaded.config.max_pods, loaded.config.port), (3, 10250));
        assert_eq!(loaded.config.static_pod_path, dir.join("pods"));
        assert_eq!(loaded.config.system_reserved.len(), 2);
        assert_eq!(loaded.config.eviction_hard.len(), 5);
        sources.flags.push(Override { path: "maxPods", value: json!(7), merge: false });
        assert_eq!(load(&sources).expect("valid").config.max_pods, 7);
        std::fs::remove_dir_all(dir).expect("removes");
    }

    #[test]
    fn without_a_file_the_legacy_defaults_hold() {
        let loaded = load(&Sources::default()).expect("valid");
        assert!(loaded.config.authentication.anonymous.enabled && loaded.config.eviction_hard.is_empty());
        assert_eq!((loaded.config.authorization.mode.as_str(), loaded.config.read_only_port), ("AlwaysAllow", 10255));
    }

    #[test]
    fn a_wrong_type_is_refused_with_the_field_and_an_unknown_field_warns() {
        let dir = folder(&[
            ("bad", &format!(r#"{{{HEAD},"enableServer":1}}"#)),
            ("odd", &format!(r#"{{{HEAD},"maxPodz":1}}"#)),
        ]);
        let at = |name: &str| Sources { file: Some(dir.join(name)), ..Sources::default() };
        let error = load(&at("bad")).expect_err("wrong type").to_string();
        assert!(
            error.ends_with(
                "json: cannot unmarshal number into Go struct field KubeletConfiguration.enableServer of type bool"
            ),
            "{error}"
        );
        assert_eq!(load(&at("odd")).expect("lenient").warnings, [r#"unknown field "maxPodz""#]);
        std::fs::remove_dir_all(dir).expect("removes");
    }
}
