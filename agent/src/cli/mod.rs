//! The command line: the kubelet's flag names and meanings.
//!
//! Flags are read as pflag reads them: `--name=value`, `--name value`, `--switch`, underscores for dashes. Those that
//! mirror a configuration field become [`Override`]s, which win over file and drop-ins; the rest is [`Flags`].

mod flags;
mod labels;
mod values;
mod view;

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use serde_json::{Value, json};

use crate::config::{FeatureGates, Override, Sources, parse_ip};
use crate::pods::ContainerGc;
use crate::server::Retention;
use flags::{ADDED, CURRENT, Form, IN_THE_FILE, MIRRORS, OLD, OWN};
use values::{boolean, value};

pub use labels::name_errors;
pub use view::run as run_config_command;

/// Exit code of a command for people that is called wrongly (EX_USAGE).
pub const CALLED_WRONGLY: u8 = 64;

/// What the command line asks for.
#[derive(Debug)]
pub enum Command {
    Run(Box<Flags>),
    Help,
    /// `raw`: every part of it, for programs.
    Version {
        raw: bool,
    },
}

/// `--version=raw`.
const RAW: &str = "raw";

/// The version in all its parts, in the form in which Go prints such a structure.
pub fn raw_version() -> String {
    let full = crate::node::KUBELET_VERSION;
    let mut parts = full.trim_start_matches('v').split('.');
    let (major, minor) = (parts.next().unwrap_or_default(), parts.next().unwrap_or_default());
    let architecture = match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    };
    format!(
        "version.Info{{Major:{major:?}, Minor:{minor:?}, EmulationMajor:\"\", EmulationMinor:\"\", \
         MinCompatibilityMajor:\"\", MinCompatibilityMinor:\"\", GitVersion:{full:?}, GitCommit:\"\", \
         GitTreeState:\"\", BuildDate:\"\", GoVersion:\"\", Compiler:\"rustc\", Platform:\"linux/{architecture}\"}}"
    )
}

/// Settings that only flags have.
#[derive(Debug, Clone)]
pub struct Flags {
    pub sources: Sources,
    pub kubeconfig: Option<PathBuf>,
    pub bootstrap_kubeconfig: Option<PathBuf>,
    pub root_dir: PathBuf,
    pub cert_dir: PathBuf,
    pub hostname_override: String,
    /// Addresses of `--node-ip`: none, one, or one of each family.
    pub node_ip: Vec<std::net::IpAddr>,
    pub node_labels: BTreeMap<String, String>,
    /// `--cloud-provider=external`
    pub external_cloud: bool,
    pub lock_file: Option<PathBuf>,
    pub exit_on_lock_contention: bool,
    pub runtime_cgroups: String,
    /// `--minimum-container-ttl-duration`, `--maximum-dead-containers`, `-per-container`.
    pub container_gc: ContainerGc,
    /// `--checkpoint-max-count`, `-age`, `-bytes`.
    pub checkpoint_retention: Retention,
    pub image_credential_provider_config: Option<PathBuf>,
    pub image_credential_provider_bin_dir: Option<PathBuf>,
    /// `--seccomp-default`; the field of the configuration says the same.
    pub seccomp_default: bool,
    /// The suite's own settings file; None is the usual place, where it may be absent.
    pub settings: Option<PathBuf>,
    pub silence_deprecations: bool,
    /// What pods may have is reckoned without the thresholds of hard eviction.
    pub allocatable_ignores_eviction: bool,
    /// Flags as given, for `/flagz`, and the deprecated ones among them for the log.
    pub given: BTreeMap<String, String>,
    pub deprecated: Vec<&'static str>,
}

/// A command line that cannot be used; the text is for a person.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("{0}")]
pub struct UsageError(String);

/// Reads the arguments after the program's name; a leading `run` is accepted.
///
/// # Errors
/// With pflag's words for unknown flags and values of the wrong form.
pub fn parse(arguments: impl IntoIterator<Item = String>) -> Result<Command, UsageError> {
    let mut arguments = arguments.into_iter().peekable();
    arguments.next_if(|a| a == "run");
    let mut line = Line::default();
    let mut positional = None;
    while let Some(argument) = arguments.next() {
        let read = match argument.strip_prefix("--") {
            Some("") => {
                positional = positional.or(arguments.next());
                break;
            }
            Some(flag) => line.long(flag, &mut arguments),
            None if argument.starts_with('-') && argument.len() > 1 => line.short(&argument[1..], &mut arguments),
            None => {
                positional.get_or_insert(argument);
                Ok(())
            }
        };
        read.map_err(|e| UsageError(format!("failed to parse kubelet flag: {e}")))?;
    }
    match positional.as_deref() {
        Some("help") => return Ok(Command::Help),
        Some(word) => return Err(UsageError(format!("unknown command {word}"))),
        None => {}
    }
    if line.is_on("help") {
        return Ok(Command::Help);
    }
    let raw = line.own.get("version").is_some_and(|text| text == RAW);
    if raw || line.is_on("version") {
        return Ok(Command::Version { raw });
    }
    line.finish().map(|flags| Command::Run(Box::new(flags)))
}

/// What has been read of the command line.
#[derive(Default)]
struct Line {
    own: BTreeMap<&'static str, String>,
    overrides: Vec<Override>,
    given: BTreeMap<String, String>,
    deprecated: Vec<&'static str>,
}

impl Line {
    /// `name=value`, or `name` with the value in the next word unless it is a switch.
    fn long(&mut self, flag: &str, rest: &mut impl Iterator<Item = String>) -> Result<(), String> {
        let (name, inline) = match flag.split_once('=') {
            Some((name, value)) => (name.replace('_', "-"), Some(value.to_owned())),
            None => (flag.replace('_', "-"), None),
        };
        let mirror = MIRRORS.iter().find(|m| m.0 == name);
        let own = OWN.iter().find(|o| o.0 == name);
        let form = match (mirror, own) {
            (Some(mirror), _) => mirror.2,
            (None, Some(own)) => own.1,
            (None, None) => return Err(format!("unknown flag: --{name}")),
        };
        let text = match (inline, form) {
            (Some(text), _) => text,
            (None, Form::Bool) => "true".into(),
            (None, _) => rest.next().ok_or_else(|| format!("flag needs an argument: --{name}"))?,
        };
        // The one switch with a third position.
        let form = if name == "version" && text == RAW { Form::Text } else { form };
        let parsed = value(form, &text).map_err(|e| {
            let shown = if name == "v" { "-v, --v".to_owned() } else { format!("--{name}") };
            format!("invalid argument {text:?} for {shown:?} flag: {e}")
        })?;
        if let Some(&(name, path, _)) = mirror {
            if form != Form::Address || !text.is_empty() {
                push(&mut self.overrides, path, name, form, parsed);
            }
            if !CURRENT.contains(&name) && !self.deprecated.contains(&name) {
                self.deprecated.push(name);
            }
        } else if let Some(&(name, ..)) = own {
            if OLD.iter().any(|(old, _)| *old == name) && !self.deprecated.contains(&name) {
                self.deprecated.push(name);
            }
            match self.own.get_mut(name) {
                Some(before) if form == Form::Map => {
                    before.push(',');
                    before.push_str(&text);
                }
                _ => {
                    self.own.insert(name, text.clone());
                }
            }
        }
        self.given.insert(name, text);
        Ok(())
    }

    /// `-h`, and `-v` with its level in the same word or the next.
    fn short(&mut self, flags: &str, rest: &mut impl Iterator<Item = String>) -> Result<(), String> {
        match flags.as_bytes() {
            [b'h'] => {
                self.own.insert("help", "true".into());
                Ok(())
            }
            [b'v'] => {
                let level = rest.next().ok_or("flag needs an argument: 'v' in -v")?;
                self.long(&format!("v={level}"), rest)
            }
            [b'v', ..] => self.long(&format!("v={}", flags[1..].trim_start_matches('=')), rest),
            _ => {
                let first: String = flags.chars().take(1).collect();
                Err(format!("unknown shorthand flag: '{first}' in -{flags}"))
            }
        }
    }

    fn is_on(&self, name: &str) -> bool {
        self.own.get(name).is_some_and(|v| boolean(v) == Ok(true))
    }

    fn finish(mut self) -> Result<Flags, UsageError> {
        let gates = self.overrides.iter().find(|o| o.path == "featureGates").map(|o| gates_of(&o.value));
        let gates = FeatureGates::new(gates.unwrap_or_default());
        if let Some(error) = gates.errors().into_iter().next() {
            return Err(UsageError(format!("failed to set feature gates from initial flags-based config: {error}")));
        }
        let exit_on_lock_contention = self.is_on("exit-on-lock-contention");
        let (strict, silent) = (self.is_on("strict-config"), self.is_on("silence-deprecations"));
        let seccomp_default = self.is_on("seccomp-default");
        let ignore_eviction = self.is_on("experimental-allocatable-ignore-eviction");
        let mut take = |name: &str| self.own.remove(name).unwrap_or_default();
        // Their forms have been checked; what is below zero sets no limit.
        let checkpoint_retention = Retention {
            count: take("checkpoint-max-count").parse().unwrap_or(0),
            bytes: take("checkpoint-max-bytes").parse().unwrap_or(0),
            age: proto::duration::parse(&take("checkpoint-max-age"))
                .ok()
                .and_then(|nanos| u64::try_from(nanos).ok())
                .map_or(Duration::ZERO, Duration::from_nanos),
        };
        let container_gc = container_gc(&mut take)?;
        let path = |text: String| (!text.is_empty()).then(|| PathBuf::from(text));
        let node_labels = labels::parse(&take("node-labels"))
            .map_err(|e| UsageError(format!("failed to validate kubelet flags: {e}")))?;
        let name = take("hostname-override");
        if !name.is_empty() && name.trim().is_empty() {
            return Err(UsageError("failed to run Kubelet: empty hostname is invalid".into()));
        }
        let cloud = take("cloud-provider");
        if !matches!(cloud.as_str(), "" | "external") {
            return Err(UsageError(format!(
                "unsupported value for --cloud-provider: {cloud:?}; use \"external\" or nothing"
            )));
        }
        let lock_file = path(take("lock-file"));
        if exit_on_lock_contention && lock_file.is_none() {
            return Err(UsageError(
                "failed to run Kubelet: cannot exit on lock file contention: no lock file specified".into(),
            ));
        }
        Ok(Flags {
            kubeconfig: path(take("kubeconfig")),
            bootstrap_kubeconfig: path(take("bootstrap-kubeconfig")),
            cert_dir: absolute("cert-dir", path(take("cert-dir")), "/var/lib/kubelet/pki")?,
            root_dir: absolute("root-dir", path(take("root-dir")), "/var/lib/kubelet")?,
            hostname_override: name.trim().to_lowercase(),
            node_ip: addresses(&take("node-ip"))?,
            node_labels,
            external_cloud: cloud == "external",
            lock_file,
            exit_on_lock_contention,
            runtime_cgroups: take("runtime-cgroups"),
            container_gc,
            checkpoint_retention,
            image_credential_provider_config: path(take("image-credential-provider-config")),
            image_credential_provider_bin_dir: path(take("image-credential-provider-bin-dir")),
            seccomp_default,
            settings: path(take("settings")),
            silence_deprecations: silent,
            allocatable_ignores_eviction: ignore_eviction,
            sources: Sources {
                file: path(take("config")),
                drop_ins: path(take("config-dir")),
                flags: self.overrides,
                strict,
                allocatable_ignores_eviction: ignore_eviction,
            },
            given: self.given,
            deprecated: self.deprecated,
        })
    }
}

/// What may stay of dead containers; the forms of its flags have been checked.
fn container_gc(take: &mut impl FnMut(&str) -> String) -> Result<ContainerGc, UsageError> {
    let usual = ContainerGc::default();
    let mut number = |name: &str, usual: i64| {
        let text = take(name);
        if text.is_empty() { usual } else { value(Form::Int, &text).ok().and_then(|n| n.as_i64()).unwrap_or(usual) }
    };
    let per_container = number("maximum-dead-containers-per-container", usual.per_container);
    let total = number("maximum-dead-containers", usual.total);
    let age = proto::duration::parse(&take("minimum-container-ttl-duration")).unwrap_or(0);
    let minimum_age = u64::try_from(age).map(Duration::from_nanos).map_err(|_| {
        let age = proto::duration::format(age);
        UsageError(format!(
            "failed to run Kubelet: failed to create kubelet: invalid minimum garbage collection age: {age}"
        ))
    })?;
    Ok(ContainerGc { minimum_age, per_container, total })
}

fn gates_of(value: &Value) -> BTreeMap<String, bool> {
    let map = value.as_object().into_iter().flatten();
    map.filter_map(|(name, on)| Some((name.to_string(), on.as_bool()?))).collect()
}

/// Addresses of the node. What is none is left out and told, as the kubelet does.
fn addresses(text: &str) -> Result<Vec<IpAddr>, UsageError> {
    let (mut found, mut wrong): (Vec<IpAddr>, Vec<&str>) = (Vec::new(), Vec::new());
    for part in text.split(',').map(str::trim).filter(|_| !text.is_empty()) {
        match parse_ip(part) {
            Some(address) => found.push(address),
            None => wrong.push(part),
        }
    }
    if !wrong.is_empty() {
        eprintln!("Could not parse some node IP(s), ignoring them: {wrong:?}");
    }
    let pair = found.len() == 2 && found[0].is_ipv4() != found[1].is_ipv4();
    if found.len() > 1 && !pair {
        return Err(UsageError(format!(
            "bad --node-ip {text:?}: must contain either a single IP or a dual-stack pair of IPs"
        )));
    }
    if pair && found.iter().any(IpAddr::is_unspecified) {
        return Err(UsageError(format!("bad --node-ip {text:?}: dual-stack node IP cannot include '0.0.0.0' or '::'")));
    }
    Ok(found)
}

/// Adds a setting; what may repeat extends what the same flag said before.
fn push(overrides: &mut Vec<Override>, path: &'static str, flag: &'static str, form: Form, value: Value) {
    if let Some(before) = overrides.iter_mut().find(|o| o.path == path) {
        match (&mut before.value, value) {
            (Value::Object(map), Value::Object(more)) if form == Form::Headers => {
                for (key, values) in more {
                    match (map.entry(key).or_insert_with(|| json!([])), values) {
                        (Value::Array(list), Value::Array(more)) => list.extend(more),
                        (slot, values) => *slot = values,
                    }
                }
            }
            (Value::Object(map), Value::Object(more)) => map.extend(more),
            (Value::Array(list), Value::Array(more)) if form != Form::Taints => list.extend(more),
            (slot, value) => *slot = value,
        }
        return;
    }
    overrides.push(Override { path, flag, value, merge: form == Form::Gates });
}

/// What to do instead of giving a deprecated flag, in upstream's words.
pub fn instead_of(flag: &str) -> &'static str {
    OLD.iter().find(|(old, _)| *old == flag).map_or(IN_THE_FILE, |(_, words)| words)
}

/// Names of all flags, sorted, for `/flagz`.
pub fn flag_names() -> Vec<&'static str> {
    let own = OWN.iter().map(|o| o.0).filter(|name| !ADDED.contains(name));
    let mut names: Vec<_> = MIRRORS.iter().map(|m| m.0).chain(own).collect();
    names.sort_unstable();
    names
}

/// What a flag that nobody has set says of itself, by what it takes.
pub fn unset(name: &str) -> &'static str {
    let mirror = MIRRORS.iter().find(|m| m.0 == name).map(|m| m.2);
    let form = mirror.or_else(|| OWN.iter().find(|o| o.0 == name).map(|o| o.1));
    match form {
        Some(Form::Bool) => "false",
        Some(Form::Int | Form::Long | Form::Verbosity | Form::Quantity) => "0",
        Some(Form::Duration) => "0s",
        Some(Form::List) => "[]",
        _ => "",
    }
}

/// The configuration field that a flag sets, as a path with dots.
pub fn mirrored_field(name: &str) -> Option<&'static str> {
    MIRRORS.iter().find(|m| m.0 == name).map(|m| m.1)
}

/// The flag that sets a field of the configuration.
pub fn flag_of_field(path: &str) -> Option<&'static str> {
    MIRRORS.iter().find(|m| m.1 == path).map(|m| m.0)
}

/// Flags that set no field of the configuration, and what each does.
pub fn own_flags() -> impl Iterator<Item = (&'static str, &'static str)> {
    OWN.iter().map(|o| (o.0, o.2))
}

/// What the program does besides running pods; each but `config` and `doctor` has a `--help` of its own.
const COMMANDS: &[(&str, &str)] = &[
    ("status", "the node at a glance: conditions, pressure, pods in trouble"),
    ("top", "who uses the node's resources, and who waits for them"),
    ("pods", "the pods of the node as the agent knows them"),
    ("pods stop", "end all containers and unmount the pods' volumes, without the agent"),
    ("join https://HOST:6443", "make this machine a node of a cluster"),
    ("config view|check [flags]", "the merged configuration with its origins; everything that is wrong with it"),
    ("config check --this-machine", "the same, and whether the agent would start here"),
    ("config reference", "every field and its default"),
    ("doctor [flags]", "whether this machine can be a node"),
    ("checkpoint inspect FILE", "what the checkpoint of a container holds"),
    ("runtime version", "whether the container runtime answers"),
    ("version", "versions of Kubernetes and of this program"),
    ("help", "this text"),
];

/// The text of `--help`.
pub fn help() -> String {
    let mut text = String::from(
        "node-agent runs the pods of this node over the Container Runtime Interface.\n\nUsage:\n  node-agent [run] \
         [flags]\n\nCommands:\n",
    );
    for (command, what) in COMMANDS {
        text.push_str(&format!("  node-agent {command:<36} {what}\n"));
    }
    text.push_str(
        "\nExit codes: 0 stopped on request, 1 refused or failed at start, 2 fault of the program; 64 from a command \
         that is called wrongly.\n\nFlags:\n",
    );
    for (name, form, what) in OWN {
        let argument = if *form == Form::Bool { "" } else { " VALUE" };
        text.push_str(&format!("  --{:<46} {what}\n", format!("{name}{argument}")));
    }
    text.push_str("\nFlags that set a field of the configuration (better set in the file):\n");
    for (name, path, _) in MIRRORS {
        text.push_str(&format!("  --{name:<46} {path}\n"));
    }
    text
}

/// A folder that others are told of: the runtime, which mounts from the root directory, and a kubeconfig in another folder,
/// which names the certificates, do not know the agent's working directory.
fn absolute(flag: &str, given: Option<PathBuf>, usual: &str) -> Result<PathBuf, UsageError> {
    let dir = given.unwrap_or_else(|| usual.into());
    std::path::absolute(&dir)
        .map_err(|error| UsageError(format!("cannot make --{flag} {} absolute: {error}", dir.display())))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(arguments: &[&str]) -> Flags {
        match parse(arguments.iter().map(ToString::to_string)) {
            Ok(Command::Run(flags)) => *flags,
            other => panic!("{other:?}"),
        }
    }

    fn error(arguments: &[&str]) -> String {
        parse(arguments.iter().map(ToString::to_string)).expect_err("refused").to_string()
    }

    #[test]
    fn the_version_has_a_long_form_for_programs() {
        let parsed = |flag: &str| parse([flag.to_owned()]);
        assert!(matches!(parsed("--version"), Ok(Command::Version { raw: false })));
        assert!(matches!(parsed("--version=raw"), Ok(Command::Version { raw: true })));
        assert!(matches!(parsed("--version=false"), Ok(Command::Run(_))));
        assert!(parsed("--version=cooked").is_err());
        assert!(raw_version().starts_with("version.Info{Major:\"1\", Minor:\"36\", "), "{}", raw_version());
        assert!(raw_version().contains("GitVersion:\"v1.36.2\""));
    }

    #[test]
    fn flags_come_with_equals_sign_or_as_two_words() {
        let flags =
            run(&["run", "--kubeconfig", "/k", "--max_pods=5", "--serialize-image-pulls=false", "--fail-swap-on"]);
        assert_eq!(flags.kubeconfig, Some("/k".into()));
        let values: Vec<_> = flags.sources.flags.iter().map(|f| (f.path, f.value.clone())).collect();
        assert_eq!(values, [("maxPods", json!(5)), ("serializeImagePulls", json!(false)), ("failSwapOn", json!(true))]);
        assert_eq!(flags.deprecated, ["max-pods", "serialize-image-pulls", "fail-swap-on"]);
    }

    #[test]
    fn repeated_maps_and_headers_add_up() {
        let flags = run(&[
            "--system-reserved=cpu=1",
            "--system-reserved=memory=1Mi",
            "--manifest-url-header=a:b,a:c",
            "--eviction-hard=memory.available<1Mi",
            "--register-with-taints=z:NoExecute",
            "--register-with-taints=a=b:NoSchedule,c:NoExecute",
        ]);
        let values: Vec<_> = flags.sources.flags.iter().map(|f| f.value.clone()).collect();
        assert_eq!(
            values,
            [
                json!({"cpu": "1", "memory": "1Mi"}),
                json!({"a": ["b", "c"]}),
                json!({"memory.available": "1Mi"}),
                json!([{"key": "a", "value": "b", "effect": "NoSchedule"}, {"key": "c", "effect": "NoExecute"}]),
            ]
        );
    }

    /// Containers of a relative root directory failed: the runtime took its paths from its own working directory. The link and
    /// the kubeconfig of a relative certificate folder pointed nowhere.
    #[test]
    fn relative_directories_are_made_absolute() {
        let here = std::env::current_dir().expect("there is a working directory");
        assert_eq!(run(&["--root-dir=r2/kubelet"]).root_dir, here.join("r2/kubelet"));
        assert_eq!(run(&["--root-dir", "/r2"]).root_dir, std::path::PathBuf::from("/r2"));
        assert_eq!(run(&[]).root_dir, std::path::PathBuf::from("/var/lib/kubelet"));
        assert_eq!(run(&["--cert-dir=pki"]).cert_dir, here.join("pki"));
        assert_eq!(run(&[]).cert_dir, std::path::PathBuf::from("/var/lib/kubelet/pki"));
    }

    #[test]
    fn dead_containers_are_kept_as_asked() {
        assert_eq!(run(&[]).container_gc, ContainerGc::default());
        let asked = run(&[
            "--maximum-dead-containers=0x10",
            "--maximum-dead-containers-per-container=-1",
            "--minimum-container-ttl-duration=1m",
        ]);
        let wanted = ContainerGc { minimum_age: Duration::from_secs(60), per_container: -1, total: 16 };
        assert_eq!(asked.container_gc, wanted);
        assert!(asked.deprecated.contains(&"maximum-dead-containers"));
        assert!(
            error(&["--minimum-container-ttl-duration=-1s"]).ends_with("invalid minimum garbage collection age: -1s")
        );
    }

    #[test]
    fn addresses_of_the_node_are_one_or_a_pair() {
        let of = |text: &str| run(&["--node-ip", text]).node_ip.iter().map(ToString::to_string).collect::<Vec<_>>();
        assert_eq!(of(" 192.000.002.010 , fd00::1"), ["192.0.2.10", "fd00::1"]);
        assert_eq!(of("here,10.0.0.1"), ["10.0.0.1"], "what is none is left out");
        assert_eq!((of(""), of("0.0.0.0")), (vec![], vec!["0.0.0.0".to_owned()]));
        assert!(error(&["--node-ip=10.0.0.1,10.0.0.2"]).contains("a dual-stack pair of IPs"));
        assert!(error(&["--node-ip=0.0.0.0,::"]).contains("dual-stack node IP cannot include '0.0.0.0' or '::'"));
    }

    #[test]
    fn an_address_is_one_or_stays_as_it_was() {
        assert!(run(&["--address="]).sources.flags.is_empty());
        assert_eq!(run(&["--address=127.000.0.1"]).sources.flags[0].value, json!("127.000.0.1"));
        assert_eq!(
            error(&["--healthz-bind-address=localhost"]),
            "failed to parse kubelet flag: invalid argument \"localhost\" for \"--healthz-bind-address\" flag: \
             \"localhost\" is not a valid IP address"
        );
        assert!(error(&["--hostname-override= "]).ends_with("empty hostname is invalid"));
    }

    #[test]
    fn mistakes_are_named() {
        assert_eq!(error(&["--nope"]), "failed to parse kubelet flag: unknown flag: --nope");
        assert_eq!(error(&["extra"]), "unknown command extra");
        assert!(error(&["--port"]).ends_with("flag needs an argument: --port"));
        assert!(error(&["--port=x"]).contains("invalid argument \"x\" for \"--port\" flag: strconv.ParseInt"));
        assert!(error(&["--node-labels=a=b c"]).contains("'b c' - a valid label must be"));
        assert!(error(&["--feature-gates=SidecarContainers=false"]).contains("locked to true"));
        assert!(error(&["--node-labels=foo.kubernetes.io/a=b"]).contains("--node-labels"));
        assert!(error(&["--exit-on-lock-contention"]).contains("no lock file"));
        assert_eq!(run(&["--node-labels=a=b,node.kubernetes.io/x=y"]).node_labels.len(), 2);
    }
}
