//! From files and flags to the finished configuration.

use std::path::{Path, PathBuf};

use serde_json::Value;

use super::file::{self, API_VERSION, FileTree, KIND, Oddity};
use super::origins::{Origin, Origins};
use super::{Configuration, FeatureGates, Override, defaults, start, validation};

/// Where the configuration comes from.
#[derive(Debug, Clone, Default)]
pub struct Sources {
    /// `--config`
    pub file: Option<PathBuf>,
    /// `--config-dir`
    pub drop_ins: Option<PathBuf>,
    /// Flags, in the order given.
    pub flags: Vec<Override>,
    /// `--strict-config`: unknown and repeated fields are errors.
    pub strict: bool,
}

/// A configuration that passed validation.
#[derive(Debug, Clone)]
pub struct Loaded {
    pub config: Configuration,
    /// The same as a tree of `kubelet.config.k8s.io/v1beta1`, complete with what the agent itself does not use.
    pub document: Value,
    pub origins: Origins,
    /// Fields that no version of the configuration has, and repeated ones, with file and line: for the log.
    pub oddities: Vec<String>,
}

/// Why a configuration is refused; the operator's to mend, nothing was started. The texts hold the kubelet's key words.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    #[error(
        "failed to load kubelet config file, path: {path}, error: failed to load Kubelet config file {path}, error {reason}"
    )]
    File { path: PathBuf, reason: String },
    #[error(
        "failed to merge kubelet configs: failed to walk through kubelet dropin directory {folder:?}: failed to load \
         kubelet dropin file, path: {path}, {reason}"
    )]
    DropIn { folder: PathBuf, path: PathBuf, reason: String },
    #[error("failed to merge kubelet configs: failed to walk through kubelet dropin directory {folder:?}: {reason}")]
    DropInFolder { folder: PathBuf, reason: String },
    #[error("failed to merge kubelet configs: failed to unmarshal merged JSON into kubelet configuration: {0}")]
    Merged(String),
    #[error("failed to set feature gates from initial flags-based config: {0}")]
    Gates(String),
    #[error("initialize logging: {0}")]
    Logging(String),
    /// Every violation, in the order of the checks.
    #[error("failed to validate kubelet configuration, error: {}, path: &TypeMeta{{Kind:,APIVersion:,}}", aggregate(.0))]
    Invalid(Vec<String>),
    #[error("failed to construct kubelet dependencies: {0}")]
    Dependencies(String),
    /// What the kubelet finds out while it starts.
    #[error("failed to run Kubelet: {}", aggregate(.0))]
    Start(Vec<String>),
    #[error("the configuration has unknown or repeated fields, which --strict-config refuses: {}", .0.join(", "))]
    Strict(Vec<String>),
}

impl ConfigError {
    /// Whether it will be the same at the next start. A file that cannot be read now may come, and so may what the
    /// configuration asks of the machine.
    pub fn stays(&self) -> bool {
        match self {
            Self::File { path, .. } | Self::DropIn { path, .. } => std::fs::read(path).is_ok(),
            Self::DropInFolder { .. } | Self::Dependencies(_) | Self::Start(_) => false,
            Self::Merged(_) | Self::Gates(_) | Self::Logging(_) | Self::Invalid(_) | Self::Strict(_) => true,
        }
    }
}

/// As upstream lists several errors in one.
fn aggregate(errors: &[String]) -> String {
    match errors {
        [one] => one.clone(),
        many => format!("[{}]", many.join(", ")),
    }
}

/// Loads and checks the configuration.
///
/// # Errors
/// The first of [`all_problems`].
pub fn load(sources: &Sources) -> Result<Loaded, ConfigError> {
    let (loaded, mut problems) = all_problems(sources)?;
    if problems.is_empty() { Ok(loaded) } else { Err(problems.remove(0)) }
}

/// Loads the configuration and lists everything that is wrong with its values.
///
/// # Errors
/// When the files cannot be read or merged, so that there are no values to look at. Unknown and repeated fields are no
/// error but [`Loaded::oddities`], as in the kubelet, unless the sources ask for strictness.
pub fn all_problems(sources: &Sources) -> Result<(Loaded, Vec<ConfigError>), ConfigError> {
    let mut origins = Origins::default();
    let mut oddities = Vec::new();
    let flag_gates = FeatureGates::from_tree(
        sources.flags.iter().find(|f| f.path == "featureGates").map_or(&Value::Null, |f| &f.value),
    );
    let mut document = Value::Object(serde_json::Map::new());
    if let Some(path) = &sources.file {
        let path = std::path::absolute(path).unwrap_or_else(|_| path.clone());
        document = main_file(&path, &flag_gates, &mut origins, &mut oddities)
            .map_err(|reason| ConfigError::File { path: path.clone(), reason })?;
    } else {
        defaults::apply(&mut document, &flag_gates);
        defaults::apply_legacy(&mut document);
    }
    if let Some(folder) = &sources.drop_ins {
        merge_drop_ins(&mut document, folder, &mut origins, &mut oddities)?;
        unseen_log_options(&mut document);
        // A null or zero in a drop-in asks for the default.
        document = file::conform(&document).map_err(ConfigError::Merged)?.0;
        defaults::apply(&mut document, &flag_gates);
    }
    for flag in &sources.flags {
        apply_flag(&mut document, flag);
        origins.mark_at(flag.path, &flag.value, !flag.merge, &Origin::Flag(flag.flag));
    }
    document = file::conform(&document).map_err(ConfigError::Merged)?.0;
    defaults::set(&mut document, "apiVersion", API_VERSION.into());
    defaults::set(&mut document, "kind", KIND.into());
    let config = Configuration::read(&document).map_err(|e| ConfigError::Merged(e.to_string()))?;
    let mut problems = Vec::new();
    if sources.strict && !oddities.is_empty() {
        problems.push(ConfigError::Strict(oddities.clone()));
    }
    let gates = FeatureGates::new(config.feature_gates.clone());
    problems.extend(gates.errors().into_iter().next().map(ConfigError::Gates));
    problems.extend(validation::logging(&config, &gates).into_iter().next().map(ConfigError::Logging));
    let invalid = validation::check(&config, &gates);
    if !invalid.is_empty() {
        problems.push(ConfigError::Invalid(invalid));
    }
    problems.extend(start::dependencies(&config).into_iter().next().map(ConfigError::Dependencies));
    let start = start::check(&config, &gates);
    if !start.is_empty() {
        problems.push(ConfigError::Start(start));
    }
    Ok((Loaded { config, document, origins, oddities }, problems))
}

impl Configuration {
    pub(super) fn read(document: &Value) -> Result<Self, serde_json::Error> {
        serde::Deserialize::deserialize(document)
    }
}

fn main_file(
    path: &Path,
    flag_gates: &FeatureGates,
    origins: &mut Origins,
    oddities: &mut Vec<String>,
) -> Result<Value, String> {
    let file = file::read(path)?;
    file.check_kind()?;
    let (mut document, odd) = file.fields().map_err(|e| format!("failed to decode: {e}"))?;
    oddities.extend(odd.iter().map(|o| o.at(path)));
    origins.mark(&document, &Origin::File(path.to_owned()));
    // Upstream fills in defaults under the gates of this file, and stops when those do not fit together.
    let gates = FeatureGates::from_tree(document.get("featureGates").unwrap_or(&Value::Null));
    if let Some(error) = flag_gates.with(&gates).errors().into_iter().next() {
        return Err(format!(
            "failed to merge global and in-flight KubeletConfiguration while setting defaults, error: {error}"
        ));
    }
    unseen_log_options(&mut document);
    resolve_paths(&mut document, path.parent().unwrap_or(Path::new("/")));
    defaults::apply_eviction(&mut document);
    defaults::apply(&mut document, flag_gates);
    Ok(document)
}

/// Upstream's decoder does not see these two in a file, only as flags; accepted, and without effect.
fn unseen_log_options(document: &mut Value) {
    for format in ["text", "json"] {
        if let Some(options) =
            document.pointer_mut(&format!("/logging/options/{format}")).and_then(Value::as_object_mut)
        {
            options.remove("splitStream");
            options.remove("infoBufferSize");
        }
    }
}

fn merge_drop_ins(
    document: &mut Value,
    folder: &Path,
    origins: &mut Origins,
    oddities: &mut Vec<String>,
) -> Result<(), ConfigError> {
    for path in drop_ins(folder, folder)? {
        let refuse = |reason| ConfigError::DropIn { folder: folder.to_owned(), path: path.clone(), reason };
        let file = read_drop_in(&path).map_err(refuse)?;
        oddities.extend(unknown_fields(&file).iter().map(|o| o.at(&path)));
        origins.mark(&file.tree, &Origin::File(path.clone()));
        merge(document, file.tree);
    }
    Ok(())
}

/// A drop-in is read without a schema: repeated keys are refused, the fields' types are looked at after the merge.
fn read_drop_in(path: &Path) -> Result<FileTree, String> {
    let file = file::read(path).map_err(|e| format!("error: {}", e.trim_start_matches("failed to decode: ")))?;
    if let Some(duplicates) = &file.duplicates {
        return Err(format!("error: strict decoding error: {duplicates}"));
    }
    if !file.tree.is_object() {
        return Err("error: the document is no object".into());
    }
    let (version, kind) = file.kind();
    if kind.is_empty() {
        return Err(format!("error: Object 'Kind' is missing in '{}'", file.text));
    }
    if (version, kind) != (API_VERSION, KIND) {
        return Err(format!("unknown apiVersion/kind: {version}, Kind={kind}"));
    }
    Ok(file)
}

fn unknown_fields(file: &FileTree) -> Vec<Oddity> {
    // Wrong types are the merge's to tell.
    file.fields().map(|(_, odd)| odd).unwrap_or_default()
}

/// The fields that name files; in the main file they are relative to it.
const PATHS: &[&str] = &[
    "staticPodPath",
    "tlsCertFile",
    "tlsPrivateKeyFile",
    "authentication.x509.clientCAFile",
    "resolvConf",
    "podLogsDir",
];

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
            *value = Value::String(clean(&folder.join(text)));
        }
    }
}

/// Without `.`, `..` and doubled slashes, as Go joins paths.
fn clean(path: &Path) -> String {
    let mut out = PathBuf::new();
    for part in path.components() {
        match part {
            std::path::Component::CurDir => {}
            std::path::Component::ParentDir => {
                out.pop();
            }
            part => out.push(part),
        }
    }
    out.to_string_lossy().into_owned()
}

/// All `*.conf` files below the folder, in lexical order of the walk. A file in the folder's place is one file to look
/// at.
pub(super) fn drop_ins(top: &Path, at: &Path) -> Result<Vec<PathBuf>, ConfigError> {
    let refuse = |call: &str, path: &Path, e: &std::io::Error| ConfigError::DropInFolder {
        folder: top.to_owned(),
        reason: format!("{call} {}: {}", path.display(), file::reason(e)),
    };
    let kind = std::fs::symlink_metadata(at).map_err(|e| refuse("lstat", at, &e))?.file_type();
    if !kind.is_dir() {
        // A link to a folder is no folder to Go's walk.
        let conf = at.file_name().is_some_and(|n| n.to_string_lossy().ends_with(".conf"));
        return Ok(if conf { vec![at.to_owned()] } else { Vec::new() });
    }
    let mut entries: Vec<_> =
        std::fs::read_dir(at).and_then(Iterator::collect::<Result<Vec<_>, _>>).map_err(|e| refuse("open", at, &e))?;
    entries.sort_by_key(std::fs::DirEntry::file_name);
    let mut found = Vec::new();
    for entry in entries {
        found.extend(drop_ins(top, &entry.path())?);
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
        let mut sources = Sources {
            file: Some(dir.join("config.json")),
            drop_ins: Some(dir.join("d")),
            flags: Vec::new(),
            strict: false,
        };
        let loaded = load(&sources).expect("valid");
        assert_eq!((loaded.config.max_pods, loaded.config.port), (3, 10250));
        assert_eq!(loaded.config.static_pod_path, dir.join("pods"));
        assert_eq!(loaded.config.system_reserved.len(), 2);
        assert_eq!(loaded.config.eviction_hard.len(), 5);
        sources.flags.push(Override { path: "maxPods", flag: "max-pods", value: json!(7), merge: false });
        let loaded = load(&sources).expect("valid");
        assert_eq!(loaded.config.max_pods, 7);
        let origin = |path: &[&str]| {
            let path: Vec<_> = path.iter().map(|p| (*p).to_owned()).collect();
            loaded.origins.of(&path).clone()
        };
        assert_eq!(origin(&["maxPods"]), Origin::Flag("max-pods"));
        assert_eq!(origin(&["systemReserved", "memory"]), Origin::File(dir.join("d/10-a.conf")));
        assert_eq!(origin(&["systemReserved", "cpu"]), Origin::File(dir.join("config.json")));
        assert_eq!(origin(&["syncFrequency"]), Origin::Default);
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
        let loaded = load(&at("odd")).expect("lenient");
        assert_eq!(loaded.oddities.len(), 1);
        assert!(loaded.oddities[0].ends_with(r#"odd:1: unknown field "maxPodz""#), "{:?}", loaded.oddities);
        let strict = load(&Sources { strict: true, ..at("odd") }).expect_err("strict").to_string();
        assert!(strict.contains(r#"odd:1: unknown field "maxPodz""#), "{strict}");
        std::fs::remove_dir_all(dir).expect("removes");
    }

    #[test]
    fn a_repeated_key_in_a_drop_in_is_refused_and_every_problem_is_told() {
        let dir = folder(&[(
            "d/1.conf",
            "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\nmaxPods: 1\nmaxPods: 2\n",
        )]);
        let error = load(&Sources { drop_ins: Some(dir.join("d")), ..Sources::default() }).expect_err("refused");
        assert!(error.to_string().contains("line 4: key \"maxPods\" already set in map"), "{error}");
        std::fs::remove_dir_all(dir).expect("removes");
    }
}
