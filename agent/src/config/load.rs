//! From files and flags to the finished configuration.

use std::path::{Path, PathBuf};

use serde_json::Value;

use super::file::{self, API_VERSION, FileTree, KIND, Oddity};
use super::origins::{Origin, Origins};
use super::{Configuration, FeatureGates, Override, defaults, fold, start, validation};

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
    /// `--experimental-allocatable-ignore-eviction`
    pub allocatable_ignores_eviction: bool,
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
    /// What will go in a later version, for the log.
    pub deprecated: Vec<String>,
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
    /// The same, one for each violation, so that a person sees them line by line.
    pub fn split(self) -> Vec<Self> {
        match self {
            Self::Invalid(all) => all.into_iter().map(|one| Self::Invalid(vec![one])).collect(),
            Self::Start(all) => all.into_iter().map(|one| Self::Start(vec![one])).collect(),
            one => vec![one],
        }
    }

    /// Whether it will be the same at the next start. A file that cannot be read now may come.
    pub fn stays(&self) -> bool {
        match self {
            Self::File { path, .. } | Self::DropIn { path, .. } => std::fs::read(path).is_ok(),
            Self::DropInFolder { .. } => false,
            Self::Merged(_)
            | Self::Gates(_)
            | Self::Logging(_)
            | Self::Invalid(_)
            | Self::Strict(_)
            | Self::Dependencies(_)
            | Self::Start(_) => true,
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
    match all_problems(sources) {
        (Some(loaded), problems) if problems.is_empty() => Ok(loaded),
        (_, mut problems) => Err(problems.remove(0)),
    }
}

/// Loads the configuration and lists everything that is wrong with it: what cannot be read first, as the kubelet stops
/// there, then the values of what could be read. What does not fit its field is left out before the values are looked at.
///
/// None for the configuration only comes with a problem: nothing of the main file can be used. Unknown and repeated fields
/// are no problem but [`Loaded::oddities`], as in the kubelet, unless the sources ask for strictness.
pub fn all_problems(sources: &Sources) -> (Option<Loaded>, Vec<ConfigError>) {
    let mut load = Load::default();
    let loaded = load.all(sources);
    (loaded, load.problems)
}

/// What comes up on the way.
#[derive(Default)]
struct Load {
    origins: Origins,
    oddities: Vec<String>,
    problems: Vec<ConfigError>,
    /// Of gates, as they were told with the file that has them.
    told: Vec<String>,
}

impl Load {
    fn all(&mut self, sources: &Sources) -> Option<Loaded> {
        let flag_gates = FeatureGates::from_tree(
            sources.flags.iter().find(|f| f.path == "featureGates").map_or(&Value::Null, |f| &f.value),
        );
        let mut document = Value::Object(serde_json::Map::new());
        let mut usable = true;
        if let Some(path) = &sources.file {
            let path = std::path::absolute(path).unwrap_or_else(|_| path.clone());
            match self.main_file(&path, &flag_gates) {
                Ok(read) => document = read,
                Err(reason) => {
                    self.problems.push(ConfigError::File { path, reason });
                    usable = false;
                }
            }
        } else {
            // The defaults are there before a flag is read; what a gate from a flag does not go with stays.
            defaults::apply(&mut document, &FeatureGates::default());
            defaults::apply_legacy(&mut document);
        }
        if let Some(folder) = &sources.drop_ins {
            self.merge_drop_ins(&mut document, folder);
            fold::any_case(&mut document);
            unseen_log_options(&mut document);
            // A null or zero in a drop-in asks for the default.
            document = self.conform(document);
            defaults::apply(&mut document, &flag_gates);
        }
        if !usable {
            return None;
        }
        for flag in &sources.flags {
            apply_flag(&mut document, flag);
            self.origins.mark_at(flag.path, &flag.value, !flag.merge, &Origin::Flag(flag.flag));
        }
        document = self.conform(document);
        defaults::set(&mut document, "apiVersion", API_VERSION.into());
        defaults::set(&mut document, "kind", KIND.into());
        let config = match Configuration::read(&document) {
            Ok(config) => {
                Configuration { allocatable_ignores_eviction: sources.allocatable_ignores_eviction, ..config }
            }
            Err(error) => {
                self.problems.push(ConfigError::Merged(error.to_string()));
                return None;
            }
        };
        self.values(sources, &config);
        let (origins, oddities) = (std::mem::take(&mut self.origins), std::mem::take(&mut self.oddities));
        let deprecated = FeatureGates::new(config.feature_gates.clone()).deprecated();
        Some(Loaded { config, document, origins, oddities, deprecated })
    }

    /// What is wrong with the values, in the kubelet's order.
    fn values(&mut self, sources: &Sources, config: &Configuration) {
        if sources.strict && !self.oddities.is_empty() {
            self.problems.push(ConfigError::Strict(self.oddities.clone()));
        }
        let gates = FeatureGates::new(config.feature_gates.clone());
        let untold = gates.errors().into_iter().filter(|error| !self.told.contains(error));
        self.problems.extend(untold.map(ConfigError::Gates));
        self.problems.extend(validation::logging(config, &gates).into_iter().map(ConfigError::Logging));
        let invalid = validation::check(config, &gates);
        if !invalid.is_empty() {
            self.problems.push(ConfigError::Invalid(invalid));
        }
        self.problems.extend(start::dependencies(config).into_iter().map(ConfigError::Dependencies));
        let start = start::check(config, &gates);
        if !start.is_empty() {
            self.problems.push(ConfigError::Start(start));
        }
    }

    /// The normal form of what was merged, without what does not fit.
    fn conform(&mut self, mut document: Value) -> Value {
        if let Err(reason) = file::conform(&document) {
            self.problems.push(ConfigError::Merged(reason));
            file::keep_fitting(&mut document);
        }
        file::conform(&document).map_or(document, |(value, _)| value)
    }

    /// # Errors
    /// When nothing of the file can be used.
    fn main_file(&mut self, path: &Path, flag_gates: &FeatureGates) -> Result<Value, String> {
        let mut file = file::read(path)?;
        file.check_kind()?;
        let refuse = |reason| ConfigError::File { path: path.to_owned(), reason };
        let (mut document, odd) = match file.fields() {
            Ok(fields) => fields,
            Err(error) => {
                self.problems.push(refuse(format!("failed to decode: {error}")));
                file::keep_fitting(&mut file.tree);
                file.fields()?
            }
        };
        self.oddities.extend(odd.iter().map(|o| o.at(path)));
        self.origins.mark(&document, &Origin::File(path.to_owned()));
        // Upstream fills in defaults under the gates of this file, and stops when those do not fit together.
        let gates = FeatureGates::from_tree(document.get("featureGates").unwrap_or(&Value::Null));
        for error in flag_gates.with(&gates).errors() {
            self.problems.push(refuse(format!(
                "failed to merge global and in-flight KubeletConfiguration while setting defaults, error: {error}"
            )));
            self.told.push(error);
        }
        unseen_log_options(&mut document);
        resolve_paths(&mut document, path.parent().unwrap_or(Path::new("/")));
        defaults::apply_eviction(&mut document);
        defaults::apply(&mut document, flag_gates);
        Ok(document)
    }

    /// Merges what can be read; the rest is told.
    fn merge_drop_ins(&mut self, document: &mut Value, folder: &Path) {
        let paths = match drop_ins(folder, folder) {
            Ok(paths) => paths,
            Err(error) => return self.problems.push(error),
        };
        for path in paths {
            match read_drop_in(&path) {
                Ok(file) => {
                    self.oddities.extend(unknown_fields(&file).iter().map(|o| o.at(&path)));
                    self.origins.mark(&file.tree, &Origin::File(path.clone()));
                    merge(document, file.tree);
                }
                Err(reason) => {
                    self.problems.push(ConfigError::DropIn { folder: folder.to_owned(), path, reason });
                }
            }
        }
    }
}

impl Configuration {
    pub(super) fn read(document: &Value) -> Result<Self, serde_json::Error> {
        serde_json::from_value(document.clone())
    }
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
            *value = Value::String(clean(&folder.join(text).to_string_lossy()));
        }
    }
}

/// Without `.`, `..` and doubled slashes, as Go's `path.Clean` has it.
pub(super) fn clean(path: &str) -> String {
    let rooted = path.starts_with('/');
    let mut parts: Vec<&str> = Vec::new();
    for part in path.split('/') {
        match part {
            "" | "." => {}
            ".." if parts.last().is_some_and(|last| *last != "..") => drop(parts.pop()),
            ".." if rooted => {}
            part => parts.push(part),
        }
    }
    match (rooted, parts.is_empty()) {
        (false, true) => ".".to_owned(),
        (rooted, _) => format!("{}{}", if rooted { "/" } else { "" }, parts.join("/")),
    }
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

    #[test]
    fn paths_are_cleaned_as_go_does_it() {
        for (path, clean_one) in
            [("/a/b", "/a/b"), ("/a/./b/../c//d/", "/a/c/d"), ("/..", "/"), ("../a/..", ".."), ("a/..", "."), ("", ".")]
        {
            assert_eq!(clean(path), clean_one, "{path}");
        }
    }

    /// Gates from flags shaped the defaults of an agent without a file, which has them before it reads its flags.
    #[test]
    fn defaults_without_a_file_do_not_know_the_gates_of_flags() {
        let refused = |gate: &str| {
            let value = json!({gate: false});
            let flags = vec![Override { path: "featureGates", flag: "feature-gates", value, merge: true }];
            load(&Sources { flags, ..Sources::default() }).expect_err("refused").to_string()
        };
        assert!(refused("KubeletCrashLoopBackOffMax").contains("MaxContainerRestartPeriod must not be set"));
        let told = refused("KubeletEnsureSecretPulledImages");
        assert!(told.contains("`imagePullCredentialsVerificationPolicy` must not be set"), "{told}");
        assert!(refused("AllBeta").contains("must not be set"));
    }

    #[test]
    fn names_of_fields_in_drop_ins_may_be_in_any_case() {
        let dir = folder(&[
            ("main", &format!(r#"{{{HEAD},"maxPods":42,"PodsPerCore":3}}"#)),
            ("d/1.conf", &format!(r#"{{{HEAD},"maxpods":5,"Authentication":{{"WEBHOOK":{{"cachettl":"7s"}}}}}}"#)),
        ]);
        let sources = Sources { file: Some(dir.join("main")), drop_ins: Some(dir.join("d")), ..Sources::default() };
        let loaded = load(&sources).expect("valid");
        assert_eq!((loaded.config.max_pods, loaded.config.pods_per_core), (5, 0));
        let webhook = &loaded.config.authentication.webhook;
        assert!(webhook.enabled && webhook.cache_ttl.nanos == 7_000_000_000, "{webhook:?}");
        std::fs::remove_dir_all(dir).expect("removes");
    }

    #[test]
    fn an_empty_list_of_the_main_file_stays_unless_a_drop_in_says_otherwise() {
        let dir = folder(&[
            ("main", &format!(r#"{{{HEAD},"enforceNodeAllocatable":[],"cgroupsPerQOS":false}}"#)),
            ("d/1.conf", &format!("{{{HEAD}}}")),
            ("e/1.conf", &format!(r#"{{{HEAD},"enforceNodeAllocatable":["pods"],"cgroupsPerQOS":true}}"#)),
        ]);
        let of = |drop_ins: Option<&str>| {
            let (file, drop_ins) = (Some(dir.join("main")), drop_ins.map(|name| dir.join(name)));
            let loaded = load(&Sources { file, drop_ins, ..Sources::default() });
            loaded.expect("valid").config.enforce_node_allocatable
        };
        assert_eq!(of(None), Vec::<String>::new());
        assert_eq!(of(Some("d")), Vec::<String>::new());
        assert_eq!(of(Some("e")), ["pods"]);
        std::fs::remove_dir_all(dir).expect("removes");
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
            Sources { file: Some(dir.join("config.json")), drop_ins: Some(dir.join("d")), ..Sources::default() };
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

    /// One unknown gate hid all other gates, one broken drop-in the other ones, and one wrong type every value.
    #[test]
    fn nothing_that_is_wrong_hides_what_else_is() {
        let head = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n";
        let dir = folder(&[
            (
                "main",
                &format!(
                    "{head}maxPods: many\nport: 70000\nfeatureGates: {{NoGate: true, SidecarContainers: false, NoOther: \
                     true}}\nlogging: {{format: xml, flushFrequency: 0s, verbosity: -1}}\ntlsCipherSuites: [A, B]\n\
                     evictionHard: {{a.b: 1Mi, memory.available: -1Mi}}\nkubeReserved: {{gpu: \"1\", disk: \"2\"}}\n"
                ),
            ),
            ("d/1.conf", "kind: [\n"),
            ("d/2.conf", &format!("{head}a: 1\na: 2\n")),
            ("d/3.conf", "kind: Pod\napiVersion: v1\n"),
            ("d/4.conf", &format!("{head}syncFrequency: soon\npodsPerCore: -1\n")),
        ]);
        let sources = Sources { file: Some(dir.join("main")), drop_ins: Some(dir.join("d")), ..Sources::default() };
        let (loaded, problems) = all_problems(&sources);
        assert_eq!(loaded.map(|l| l.config.max_pods), Some(110));
        let problems: Vec<String> = problems.into_iter().flat_map(ConfigError::split).map(|p| p.to_string()).collect();
        for words in [
            "KubeletConfiguration.maxPods of type int32",
            "unrecognized feature gate: NoGate",
            "unrecognized feature gate: NoOther",
            "cannot set feature gate SidecarContainers",
            "1.conf, ",
            "2.conf, ",
            "3.conf, ",
            "soon",
            "port (--port) 70000",
            "podsPerCore",
            "logging.format",
            "logging.verbosity",
            "Cipher suite A",
            "Cipher suite B",
            "unsupported eviction signal a.b",
            "eviction threshold memory.available must be positive",
            "cannot reserve \"gpu\"",
            "cannot reserve \"disk\"",
        ] {
            assert_eq!(problems.iter().filter(|p| p.contains(words)).count(), 1, "{words}: {problems:#?}");
        }
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
