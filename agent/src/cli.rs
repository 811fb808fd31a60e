//! The command line: the kubelet's flag names and meanings.
//!
//! Flags are read as pflag reads them: `--name=value`, `--name value`, `--switch`, underscores for dashes. Those that
//! mirror a configuration field become [`Override`]s, which win over file and drop-ins; the rest is [`Flags`].

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde_json::{Map, Value, json};

use crate::config::{Override, Sources};

/// What the command line asks for.
#[derive(Debug)]
pub enum Command {
    Run(Box<Flags>),
    Help,
    Version,
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
    pub image_credential_provider_config: Option<PathBuf>,
    pub image_credential_provider_bin_dir: Option<PathBuf>,
    /// Flags as given, for `/flagz`, and the deprecated ones among them for the log.
    pub given: BTreeMap<String, String>,
    pub deprecated: Vec<&'static str>,
}

/// A command line that cannot be used; the text is for a person.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("{0}")]
pub struct UsageError(String);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Form {
    Text,
    Bool,
    Int,
    Duration,
    /// Comma separated; repeats add up.
    List,
    /// `a=b,c=d`; repeats add up.
    Map,
    /// `a<b,c<d`, as eviction thresholds are written.
    Thresholds,
    /// `a=true,b=false`, merged into what the file says.
    Gates,
    /// `key=value:Effect,...`
    Taints,
    /// `key:value`; repeats add up.
    Headers,
}

/// Flags that mirror a field: name, path, form. All are deprecated upstream in favour of the file.
const MIRRORS: &[(&str, &str, Form)] = &[
    ("address", "address", Form::Text),
    ("allowed-unsafe-sysctls", "allowedUnsafeSysctls", Form::List),
    ("anonymous-auth", "authentication.anonymous.enabled", Form::Bool),
    ("authentication-token-webhook", "authentication.webhook.enabled", Form::Bool),
    ("authentication-token-webhook-cache-ttl", "authentication.webhook.cacheTTL", Form::Duration),
    ("authorization-mode", "authorization.mode", Form::Text),
    ("authorization-webhook-cache-authorized-ttl", "authorization.webhook.cacheAuthorizedTTL", Form::Duration),
    ("authorization-webhook-cache-unauthorized-ttl", "authorization.webhook.cacheUnauthorizedTTL", Form::Duration),
    ("cgroup-driver", "cgroupDriver", Form::Text),
    ("cgroup-root", "cgroupRoot", Form::Text),
    ("cgroups-per-qos", "cgroupsPerQOS", Form::Bool),
    ("client-ca-file", "authentication.x509.clientCAFile", Form::Text),
    ("cluster-dns", "clusterDNS", Form::List),
    ("cluster-domain", "clusterDomain", Form::Text),
    ("container-log-max-files", "containerLogMaxFiles", Form::Int),
    ("container-log-max-size", "containerLogMaxSize", Form::Text),
    ("container-runtime-endpoint", "containerRuntimeEndpoint", Form::Text),
    ("contention-profiling", "enableContentionProfiling", Form::Bool),
    ("cpu-cfs-quota", "cpuCFSQuota", Form::Bool),
    ("cpu-cfs-quota-period", "cpuCFSQuotaPeriod", Form::Duration),
    ("cpu-manager-policy", "cpuManagerPolicy", Form::Text),
    ("cpu-manager-policy-options", "cpuManagerPolicyOptions", Form::Map),
    ("cpu-manager-reconcile-period", "cpuManagerReconcilePeriod", Form::Duration),
    ("enable-controller-attach-detach", "enableControllerAttachDetach", Form::Bool),
    ("enable-debugging-handlers", "enableDebuggingHandlers", Form::Bool),
    ("enable-server", "enableServer", Form::Bool),
    ("enforce-node-allocatable", "enforceNodeAllocatable", Form::List),
    ("event-burst", "eventBurst", Form::Int),
    ("event-qps", "eventRecordQPS", Form::Int),
    ("eviction-hard", "evictionHard", Form::Thresholds),
    ("eviction-max-pod-grace-period", "evictionMaxPodGracePeriod", Form::Int),
    ("eviction-minimum-reclaim", "evictionMinimumReclaim", Form::Map),
    ("eviction-pressure-transition-period", "evictionPressureTransitionPeriod", Form::Duration),
    ("eviction-soft", "evictionSoft", Form::Thresholds),
    ("eviction-soft-grace-period", "evictionSoftGracePeriod", Form::Map),
    ("fail-cgroupv1", "failCgroupV1", Form::Bool),
    ("fail-swap-on", "failSwapOn", Form::Bool),
    ("feature-gates", "featureGates", Form::Gates),
    ("file-check-frequency", "fileCheckFrequency", Form::Duration),
    ("hairpin-mode", "hairpinMode", Form::Text),
    ("healthz-bind-address", "healthzBindAddress", Form::Text),
    ("healthz-port", "healthzPort", Form::Int),
    ("http-check-frequency", "httpCheckFrequency", Form::Duration),
    ("image-gc-high-threshold", "imageGCHighThresholdPercent", Form::Int),
    ("image-gc-low-threshold", "imageGCLowThresholdPercent", Form::Int),
    ("image-service-endpoint", "imageServiceEndpoint", Form::Text),
    ("iptables-drop-bit", "iptablesDropBit", Form::Int),
    ("iptables-masquerade-bit", "iptablesMasqueradeBit", Form::Int),
    ("kernel-memcg-notification", "kernelMemcgNotification", Form::Bool),
    ("kube-api-burst", "kubeAPIBurst", Form::Int),
    ("kube-api-content-type", "contentType", Form::Text),
    ("kube-api-qps", "kubeAPIQPS", Form::Int),
    ("kube-reserved", "kubeReserved", Form::Map),
    ("kube-reserved-cgroup", "kubeReservedCgroup", Form::Text),
    ("kubelet-cgroups", "kubeletCgroups", Form::Text),
    ("local-storage-capacity-isolation", "localStorageCapacityIsolation", Form::Bool),
    ("logging-format", "logging.format", Form::Text),
    ("make-iptables-util-chains", "makeIPTablesUtilChains", Form::Bool),
    ("manifest-url", "staticPodURL", Form::Text),
    ("manifest-url-header", "staticPodURLHeader", Form::Headers),
    ("max-open-files", "maxOpenFiles", Form::Int),
    ("max-pods", "maxPods", Form::Int),
    ("memory-manager-policy", "memoryManagerPolicy", Form::Text),
    ("minimum-image-ttl-duration", "imageMinimumGCAge", Form::Duration),
    ("node-status-max-images", "nodeStatusMaxImages", Form::Int),
    ("node-status-update-frequency", "nodeStatusUpdateFrequency", Form::Duration),
    ("oom-score-adj", "oomScoreAdj", Form::Int),
    ("pod-cidr", "podCIDR", Form::Text),
    ("pod-manifest-path", "staticPodPath", Form::Text),
    ("pod-max-pids", "podPidsLimit", Form::Int),
    ("pods-per-core", "podsPerCore", Form::Int),
    ("port", "port", Form::Int),
    ("protect-kernel-defaults", "protectKernelDefaults", Form::Bool),
    ("provider-id", "providerID", Form::Text),
    ("qos-reserved", "qosReserved", Form::Map),
    ("read-only-port", "readOnlyPort", Form::Int),
    ("register-node", "registerNode", Form::Bool),
    ("register-with-taints", "registerWithTaints", Form::Taints),
    ("registry-burst", "registryBurst", Form::Int),
    ("registry-qps", "registryPullQPS", Form::Int),
    ("reserved-cpus", "reservedSystemCPUs", Form::Text),
    ("resolv-conf", "resolvConf", Form::Text),
    ("rotate-certificates", "rotateCertificates", Form::Bool),
    ("rotate-server-certificates", "serverTLSBootstrap", Form::Bool),
    ("runtime-request-timeout", "runtimeRequestTimeout", Form::Duration),
    ("seccomp-default", "seccompDefault", Form::Bool),
    ("serialize-image-pulls", "serializeImagePulls", Form::Bool),
    ("show-hidden-metrics-for-version", "showHiddenMetricsForVersion", Form::Text),
    ("streaming-connection-idle-timeout", "streamingConnectionIdleTimeout", Form::Duration),
    ("sync-frequency", "syncFrequency", Form::Duration),
    ("system-cgroups", "systemCgroups", Form::Text),
    ("system-reserved", "systemReserved", Form::Map),
    ("system-reserved-cgroup", "systemReservedCgroup", Form::Text),
    ("tls-cert-file", "tlsCertFile", Form::Text),
    ("tls-cipher-suites", "tlsCipherSuites", Form::List),
    ("tls-min-version", "tlsMinVersion", Form::Text),
    ("tls-private-key-file", "tlsPrivateKeyFile", Form::Text),
    ("topology-manager-policy", "topologyManagerPolicy", Form::Text),
    ("topology-manager-policy-options", "topologyManagerPolicyOptions", Form::Map),
    ("topology-manager-scope", "topologyManagerScope", Form::Text),
    ("v", "logging.verbosity", Form::Int),
    ("volume-plugin-dir", "volumePluginDir", Form::Text),
    ("volume-stats-agg-period", "volumeStatsAggPeriod", Form::Duration),
];

/// Mirrors that upstream does not call deprecated.
const CURRENT: &[&str] = &["v", "logging-format", "feature-gates", "seccomp-default"];

/// Flags of the agent itself.
const OWN: &[(&str, Form, &str)] = &[
    (
        "bootstrap-kubeconfig",
        Form::Text,
        "kubeconfig to ask for a client certificate with, when --kubeconfig is absent",
    ),
    ("cert-dir", Form::Text, "folder of the certificates (/var/lib/kubelet/pki)"),
    ("cloud-provider", Form::Text, "external, or empty"),
    ("config", Form::Text, "configuration file"),
    ("config-dir", Form::Text, "folder of drop-ins, *.conf"),
    ("exit-on-lock-contention", Form::Bool, "end when someone else wants the lock file"),
    ("help", Form::Bool, "show this text"),
    ("hostname-override", Form::Text, "name of the node instead of the host's"),
    ("housekeeping-interval", Form::Duration, "accepted for compatibility"),
    ("image-credential-provider-bin-dir", Form::Text, "folder of the credential provider plugins"),
    ("image-credential-provider-config", Form::Text, "configuration of the credential provider plugins"),
    ("kubeconfig", Form::Text, "how to reach the API server; without it the agent runs static pods only"),
    ("lock-file", Form::Text, "file that one agent at a time may hold"),
    ("maximum-dead-containers", Form::Int, "accepted for compatibility"),
    ("maximum-dead-containers-per-container", Form::Int, "accepted for compatibility"),
    ("minimum-container-ttl-duration", Form::Duration, "accepted for compatibility"),
    ("node-ip", Form::Text, "address of the node, or one of each family"),
    ("node-labels", Form::Map, "labels to register the node with"),
    ("root-dir", Form::Text, "folder of the agent's state (/var/lib/kubelet)"),
    ("runtime-cgroups", Form::Text, "cgroup of the runtime, for its statistics"),
    ("version", Form::Bool, "show the version"),
];

/// Reads the arguments after the program's name; a leading `run` is accepted.
///
/// # Errors
/// With pflag's words for unknown flags and values of the wrong form.
pub fn parse(arguments: impl IntoIterator<Item = String>) -> Result<Command, UsageError> {
    let mut arguments = arguments.into_iter().peekable();
    if arguments.peek().is_some_and(|a| a == "run") {
        arguments.next();
    }
    let mut own: BTreeMap<&'static str, String> = BTreeMap::new();
    let mut overrides: Vec<Override> = Vec::new();
    let mut given = BTreeMap::new();
    let mut deprecated = Vec::new();
    while let Some(argument) = arguments.next() {
        let Some(flag) = argument.strip_prefix("--").filter(|f| !f.is_empty()) else {
            match argument.as_str() {
                "-h" => return Ok(Command::Help),
                "-v" => match arguments.next() {
                    Some(level) => {
                        let value = value(Form::Int, &level).map_err(|e| invalid("v", &level, &e))?;
                        push(&mut overrides, "logging.verbosity", Form::Int, value);
                        continue;
                    }
                    None => return Err(UsageError("flag needs an argument: 'v' in -v".into())),
                },
                _ => {}
            }
            if let Some(level) = argument.strip_prefix("-v=") {
                let value = value(Form::Int, level).map_err(|e| invalid("v", level, &e))?;
                push(&mut overrides, "logging.verbosity", Form::Int, value);
                continue;
            }
            if argument.starts_with('-') && argument.len() > 1 {
                return Err(UsageError(format!("unknown shorthand flag: {:?} in {argument}", &argument[1..2])));
            }
            return Err(UsageError(format!("unknown command {argument}")));
        };
        let (name, inline) = match flag.split_once('=') {
            Some((name, value)) => (name.replace('_', "-"), Some(value.to_owned())),
            None => (flag.replace('_', "-"), None),
        };
        let mirror = MIRRORS.iter().find(|m| m.0 == name);
        let own_flag = OWN.iter().find(|o| o.0 == name);
        let form = match (mirror, own_flag) {
            (Some(mirror), _) => mirror.2,
            (None, Some(own)) => own.1,
            (None, None) => return Err(UsageError(format!("unknown flag: --{name}"))),
        };
        let text = match (inline, form) {
            (Some(text), _) => text,
            (None, Form::Bool) => "true".into(),
            (None, _) => arguments.next().ok_or_else(|| UsageError(format!("flag needs an argument: --{name}")))?,
        };
        let parsed = value(form, &text).map_err(|e| invalid(&name, &text, &e))?;
        given.insert(name.clone(), text.clone());
        if let Some(mirror) = mirror {
            push(&mut overrides, mirror.1, form, parsed);
            if !CURRENT.contains(&mirror.0) && !deprecated.contains(&mirror.0) {
                deprecated.push(mirror.0);
            }
        } else if let Some(flag) = own_flag {
            match own.get_mut(flag.0) {
                Some(before) if form == Form::Map => {
                    before.push(',');
                    before.push_str(&text);
                }
                _ => {
                    own.insert(flag.0, text);
                }
            }
        }
    }
    if own.get("help").is_some_and(|v| v != "false") {
        return Ok(Command::Help);
    }
    if own.get("version").is_some_and(|v| v != "false") {
        return Ok(Command::Version);
    }
    finish(own, overrides, given, deprecated).map(|flags| Command::Run(Box::new(flags)))
}

fn finish(
    mut own: BTreeMap<&'static str, String>,
    flags: Vec<Override>,
    given: BTreeMap<String, String>,
    deprecated: Vec<&'static str>,
) -> Result<Flags, UsageError> {
    let mut take = |name: &str| own.remove(name).unwrap_or_default();
    let path = |text: String| (!text.is_empty()).then(|| PathBuf::from(text));
    let root_dir = path(take("root-dir")).unwrap_or_else(|| "/var/lib/kubelet".into());
    let cloud = take("cloud-provider");
    if !matches!(cloud.as_str(), "" | "external") {
        return Err(UsageError(format!(
            "unsupported value for --cloud-provider: {cloud:?}; use \"external\" or nothing"
        )));
    }
    let lock_file = path(take("lock-file"));
    let exit_on_lock_contention = take("exit-on-lock-contention") == "true";
    if exit_on_lock_contention && lock_file.is_none() {
        return Err(UsageError("cannot exit on lock file contention: no lock file specified".into()));
    }
    let mut node_labels = BTreeMap::new();
    for pair in take("node-labels").split(',').filter(|p| !p.is_empty()) {
        let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
        node_labels.insert(key.trim().to_owned(), value.trim().to_owned());
    }
    let restricted: Vec<_> = node_labels.keys().filter(|k| !label_allowed(k)).cloned().collect();
    if !restricted.is_empty() {
        return Err(UsageError(format!(
            "unknown 'kubernetes.io' or 'k8s.io' labels specified with --node-labels: [{}]\n--node-labels in the \
             'kubernetes.io' namespace must begin with an allowed prefix (kubelet.kubernetes.io, node.kubernetes.io) \
             or be in the specifically allowed set",
            restricted.join(" ")
        )));
    }
    Ok(Flags {
        sources: Sources { file: path(take("config")), drop_ins: path(take("config-dir")), flags },
        kubeconfig: path(take("kubeconfig")),
        bootstrap_kubeconfig: path(take("bootstrap-kubeconfig")),
        cert_dir: path(take("cert-dir")).unwrap_or_else(|| "/var/lib/kubelet/pki".into()),
        root_dir,
        hostname_override: take("hostname-override").trim().to_lowercase(),
        node_ip: addresses(&take("node-ip"))?,
        node_labels,
        external_cloud: cloud == "external",
        lock_file,
        exit_on_lock_contention,
        runtime_cgroups: take("runtime-cgroups"),
        image_credential_provider_config: path(take("image-credential-provider-config")),
        image_credential_provider_bin_dir: path(take("image-credential-provider-bin-dir")),
        given,
        deprecated,
    })
}

fn addresses(text: &str) -> Result<Vec<std::net::IpAddr>, UsageError> {
    let mut found: Vec<std::net::IpAddr> = Vec::new();
    for part in text.split(',').map(str::trim).filter(|p| !p.is_empty()) {
        found.push(part.parse().map_err(|_| UsageError(format!("bad --node-ip {text:?}: {part:?} is no IP address")))?);
    }
    let pair = found.len() == 2 && found[0].is_ipv4() != found[1].is_ipv4();
    if found.len() > 1 && !pair {
        return Err(UsageError(format!(
            "bad --node-ip {text:?}; must contain either a single IP or a dual-stack pair of IPs"
        )));
    }
    Ok(found)
}

/// Labels that a node may give itself in the reserved namespaces.
const OWN_LABELS: &[&str] = &[
    "kubernetes.io/hostname",
    "kubernetes.io/os",
    "kubernetes.io/arch",
    "beta.kubernetes.io/os",
    "beta.kubernetes.io/arch",
    "beta.kubernetes.io/instance-type",
    "node.kubernetes.io/instance-type",
    "failure-domain.beta.kubernetes.io/zone",
    "failure-domain.beta.kubernetes.io/region",
    "failure-domain.kubernetes.io/zone",
    "failure-domain.kubernetes.io/region",
    "topology.kubernetes.io/zone",
    "topology.kubernetes.io/region",
    "node.kubernetes.io/windows-build",
];

fn label_allowed(key: &str) -> bool {
    let Some((prefix, _)) = key.split_once('/') else { return true };
    let within = |domain: &str| prefix == domain || prefix.strip_suffix(domain).is_some_and(|p| p.ends_with('.'));
    if !within("kubernetes.io") && !within("k8s.io") {
        return true;
    }
    OWN_LABELS.contains(&key) || within("kubelet.kubernetes.io") || within("node.kubernetes.io")
}

fn invalid(name: &str, text: &str, reason: &str) -> UsageError {
    UsageError(format!("invalid argument {text:?} for \"--{name}\" flag: {reason}"))
}

/// Adds a setting; what may repeat extends what the same flag said before.
fn push(overrides: &mut Vec<Override>, path: &'static str, form: Form, value: Value) {
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
            (Value::Array(list), Value::Array(more)) => list.extend(more),
            (slot, value) => *slot = value,
        }
        return;
    }
    overrides.push(Override { path, value, merge: form == Form::Gates });
}

fn value(form: Form, text: &str) -> Result<Value, String> {
    let parts = || text.split(',').map(str::trim).filter(|p| !p.is_empty());
    Ok(match form {
        Form::Text => json!(text),
        Form::Bool => json!(boolean(text)?),
        Form::Int => {
            json!(text.parse::<i64>().map_err(|_| format!("strconv.ParseInt: parsing {text:?}: invalid syntax"))?)
        }
        Form::Duration => {
            let nanos = proto::duration::parse(text).map_err(|e| e.to_string())?;
            json!(proto::duration::format(nanos))
        }
        Form::List => Value::Array(parts().map(|p| json!(p)).collect()),
        Form::Map => Value::Object(pairs(parts(), '=')?),
        Form::Thresholds => Value::Object(pairs(parts(), '<')?),
        Form::Gates => {
            let mut gates = Map::new();
            for (name, word) in pairs(parts(), '=')? {
                let word = word.as_str().unwrap_or("").to_owned();
                let on = boolean(&word).map_err(|e| format!("invalid value of {name}={word}, err: {e}"))?;
                gates.insert(name, json!(on));
            }
            Value::Object(gates)
        }
        Form::Taints => Value::Array(parts().map(taint).collect::<Result<_, _>>()?),
        Form::Headers => {
            let mut headers = Map::new();
            for pair in parts() {
                let (name, content) = pair.split_once(':').ok_or("expected name:value")?;
                if let Value::Array(list) = headers.entry(name.trim()).or_insert_with(|| json!([])) {
                    list.push(json!(content.trim()));
                }
            }
            Value::Object(headers)
        }
    })
}

fn boolean(text: &str) -> Result<bool, String> {
    match text {
        "1" | "t" | "T" | "true" | "TRUE" | "True" => Ok(true),
        "0" | "f" | "F" | "false" | "FALSE" | "False" => Ok(false),
        _ => Err(format!("strconv.ParseBool: parsing {text:?}: invalid syntax")),
    }
}

fn pairs<'a>(parts: impl Iterator<Item = &'a str>, separator: char) -> Result<Map<String, Value>, String> {
    let mut map = Map::new();
    for part in parts {
        let (key, value) =
            part.split_once(separator).ok_or_else(|| format!("malformed pair, expect string{separator}string"))?;
        map.insert(key.trim().to_owned(), json!(value.trim()));
    }
    Ok(map)
}

fn taint(text: &str) -> Result<Value, String> {
    let (left, effect) = text.rsplit_once(':').ok_or_else(|| format!("invalid taint spec: {text}"))?;
    if !matches!(effect, "NoSchedule" | "PreferNoSchedule" | "NoExecute") {
        return Err(format!("invalid taint effect: {effect}, unsupported taint effect"));
    }
    let (key, value) = left.split_once('=').unwrap_or((left, ""));
    let mut taint = Map::from_iter([("key".to_owned(), json!(key)), ("effect".to_owned(), json!(effect))]);
    if !value.is_empty() {
        taint.insert("value".into(), json!(value));
    }
    Ok(Value::Object(taint))
}

/// Names of all flags, sorted, for `/flagz`.
pub fn flag_names() -> Vec<&'static str> {
    let mut names: Vec<_> = MIRRORS.iter().map(|m| m.0).chain(OWN.iter().map(|o| o.0)).collect();
    names.sort_unstable();
    names
}

/// The configuration field that a flag sets, as a path with dots.
pub fn mirrored_field(name: &str) -> Option<&'static str> {
    MIRRORS.iter().find(|m| m.0 == name).map(|m| m.1)
}

/// The text of `--help`.
pub fn help() -> String {
    let mut text = String::from(
        "node-agent runs the pods of this node over the Container Runtime Interface.\n\nUsage:\n  node-agent [run] \
         [flags]\n  node-agent runtime version\n  node-agent pods stop\n\nFlags:\n",
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

    #[test]
    fn mistakes_are_named() {
        assert_eq!(error(&["--nope"]), "unknown flag: --nope");
        assert_eq!(error(&["extra"]), "unknown command extra");
        assert_eq!(error(&["--port"]), "flag needs an argument: --port");
        assert!(error(&["--port=x"]).starts_with("invalid argument \"x\" for \"--port\" flag"));
        assert!(error(&["--node-labels=foo.kubernetes.io/a=b"]).contains("--node-labels"));
        assert!(error(&["--exit-on-lock-contention"]).contains("no lock file"));
        assert_eq!(run(&["--node-labels=a=b,node.kubernetes.io/x=y"]).node_labels.len(), 2);
    }
}
