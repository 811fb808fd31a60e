//! `/flagz` and `/statusz`: pages for people; objects of `config.k8s.io` for programs that name group, version and kind.
//!
//! Followed: component-base `zpages`, apiserver's negotiation.

use std::collections::BTreeMap;
use std::sync::LazyLock;
use std::time::Instant;

use http::{HeaderMap, HeaderValue, Response, StatusCode, header};
use proto::time::Timestamp;
use serde_json::{Value, json};

use super::ServerDeps;
use super::answers::{Answer, bare, plain};
use crate::cli::{self, Flags};
use crate::node::KUBELET_VERSION;

/// When this process began to serve.
static STARTED: LazyLock<(Instant, Timestamp)> = LazyLock::new(|| (Instant::now(), Timestamp::now()));

const WARNING: &str = "Warning: This endpoint is not meant to be machine parseable, has no formatting compatibility \
                       guarantees and is for debugging purposes only.";
const REFUSAL: &str = "only the following media types are accepted: application/json, application/yaml, text/plain";
const GROUP: &str = "config.k8s.io";

/// Flags whose value in a kubelet, when nobody sets them, is not that of their kind. Most mean nothing here.
const UNSET_FLAGS: [(&str, &str); 32] = [
    ("application-metrics-count-limit", "100"),
    ("boot-id-file", "/proc/sys/kernel/random/boot_id"),
    ("container-hints", "/etc/cadvisor/container_hints.json"),
    ("containerd", "/run/containerd/containerd.sock"),
    ("containerd-namespace", "k8s.io"),
    ("enable-load-reader", "false"),
    ("event-storage-age-limit", "default=0"),
    ("event-storage-event-limit", "default=0"),
    ("experimental-allocatable-ignore-eviction", "false"),
    ("experimental-mounter-path", ""),
    ("global-housekeeping-interval", "1m0s"),
    ("housekeeping-interval", "10s"),
    ("log-cadvisor-usage", "false"),
    ("log-flush-frequency", "5s"),
    ("log-json-info-buffer-size", "0"),
    ("log-json-split-stream", "false"),
    ("log-text-info-buffer-size", "0"),
    ("log-text-split-stream", "false"),
    ("machine-id-file", "/etc/machine-id,/var/lib/dbus/machine-id"),
    ("max-housekeeping-interval", "15s"),
    ("maximum-dead-containers", "-1"),
    ("maximum-dead-containers-per-container", "1"),
    ("reserved-memory", ""),
    ("runonce", "false"),
    ("storage-driver-buffer-duration", "1m0s"),
    ("storage-driver-db", "cadvisor"),
    ("storage-driver-host", "localhost:8086"),
    ("storage-driver-password", "root"),
    ("storage-driver-secure", "false"),
    ("storage-driver-table", "stats"),
    ("storage-driver-user", "root"),
    ("vmodule", ""),
];
/// Flags that are read but that the kubelet does not show.
const UNSHOWN: [&str; 3] = ["iptables-drop-bit", "iptables-masquerade-bit", "show-hidden-metrics-for-version"];

/// Remembers the time of the start.
pub(super) fn start() {
    LazyLock::force(&STARTED);
}

pub(super) fn flagz(deps: &ServerDeps, headers: &HeaderMap) -> Response<Answer> {
    let flags = in_effect(&deps.document, &deps.flags);
    match choose(headers, "Flagz") {
        Some(Form::Text) => {
            let lines: String = flags.iter().map(|(name, value)| format!("{name}={value}\n")).collect();
            plain(StatusCode::OK, format!("\nkubelet flagz\n{WARNING}\n\n{lines}"))
        }
        Some(form) => object("flagz", "Flagz", form, [("flags", json!(flags))]),
        None => refused(headers),
    }
}

/// `paths` are those that it names.
pub(super) fn statusz(paths: &[&str], headers: &HeaderMap) -> Response<Answer> {
    let (since, at) = *STARTED;
    let up = since.elapsed().as_secs();
    let version = KUBELET_VERSION.trim_start_matches('v');
    let minor: Vec<&str> = version.splitn(3, '.').take(2).collect();
    let emulated = minor.join(".");
    match choose(headers, "Statusz") {
        Some(Form::Text) => plain(
            StatusCode::OK,
            format!(
                "\nkubelet statusz\n{WARNING}\n\nStarted:  {}\nUp:  {} hr {:02} min {:02} sec\nGo version:  \
                 none\nBinary version:  {version}\nEmulation version:  {emulated}\nPaths:  {}\n",
                at.to_seconds_text(),
                up / 3600,
                up / 60 % 60,
                up % 60,
                paths.join(" ")
            ),
        ),
        Some(form) => object(
            "statusz",
            "Statusz",
            form,
            [
                ("startTime", at.to_seconds_text().into()),
                ("uptimeSeconds", up.into()),
                ("goVersion", "none".into()),
                ("binaryVersion", version.into()),
                ("emulationVersion", emulated.as_str().into()),
                ("paths", json!(paths)),
            ],
        ),
        None => refused(headers),
    }
}

/// Every flag by name, as it is in effect.
fn in_effect(document: &Value, own: &Flags) -> BTreeMap<&'static str, String> {
    let mut flags: BTreeMap<&'static str, String> =
        UNSET_FLAGS.iter().map(|(name, value)| (*name, (*value).to_owned())).collect();
    for name in cli::flag_names().into_iter().filter(|name| !UNSHOWN.contains(name)) {
        let set = match (cli::mirrored_field(name), name) {
            (Some(path), _) => {
                let found = path.split('.').try_fold(document, |at, field| at.get(field));
                found.filter(|value| !value.is_null()).map(|value| as_flag(name, value))
            }
            (None, "cert-dir") => Some(own.cert_dir.display().to_string()),
            (None, "root-dir") => Some(own.root_dir.display().to_string()),
            (None, _) => own.given.get(name).cloned(),
        };
        let value = set.or_else(|| flags.get(name).cloned()).unwrap_or_else(|| cli::unset(name).to_owned());
        flags.insert(name, value);
    }
    flags
}

/// A field of the configuration as the flag that mirrors it writes it.
fn as_flag(name: &str, value: &Value) -> String {
    let sign = if name.starts_with("eviction-hard") || name.starts_with("eviction-soft") && !name.ends_with("period") {
        '<'
    } else {
        '='
    };
    match value {
        Value::String(text) => text.clone(),
        Value::Null => String::new(),
        Value::Array(list) => {
            let words: Vec<String> = list.iter().map(|item| as_flag(name, item)).collect();
            format!("[{}]", words.join(","))
        }
        Value::Object(map) => {
            let words: Vec<String> = map.iter().map(|(k, v)| format!("{k}{sign}{}", as_flag(name, v))).collect();
            words.join(",")
        }
        other => other.to_string(),
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Form {
    Text,
    Json(&'static str),
    Yaml(&'static str),
}

/// One range of an `Accept` header.
struct Clause<'a> {
    media: &'a str,
    parameters: Vec<(&'a str, &'a str)>,
}

impl Clause<'_> {
    fn get(&self, name: &str) -> Option<&str> {
        self.parameters.iter().find(|(n, _)| *n == name).map(|(_, value)| *value)
    }

    /// Whether it asks for a kind of its own.
    fn converts(&self) -> bool {
        ["as", "g", "v"].into_iter().any(|name| self.get(name).is_some())
    }
}

/// The clauses, those of higher weight first and named types before wildcards.
fn clauses(accept: &str) -> Vec<Clause<'_>> {
    let mut found: Vec<(f64, usize, Clause<'_>)> = accept
        .split(',')
        .map(|clause| {
            let mut parts = clause.split(';').map(str::trim);
            let media = parts.next().unwrap_or_default();
            let parameters: Vec<(&str, &str)> = parts.filter_map(|p| p.split_once('=')).collect();
            let clause = Clause { media, parameters };
            let weight = clause.get("q").and_then(|q| q.parse().ok()).unwrap_or(1.0);
            (weight, media.matches('*').count(), clause)
        })
        .collect();
    found.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
    found.into_iter().map(|(.., clause)| clause).collect()
}

/// The best clause of `Accept` that can be met.
fn choose(headers: &HeaderMap, kind: &str) -> Option<Form> {
    let accept = headers.get(header::ACCEPT).and_then(|a| a.to_str().ok()).unwrap_or_default();
    if accept.is_empty() {
        return Some(Form::Text);
    }
    clauses(accept).iter().find_map(|clause| {
        if !clause.converts() {
            return matches!(clause.media, "text/plain" | "text/*" | "*/*").then_some(Form::Text);
        }
        let version = ["v1beta1", "v1alpha1"].into_iter().find(|v| clause.get("v") == Some(v))?;
        (clause.get("as") == Some(kind) && clause.get("g") == Some(GROUP)).then_some(())?;
        match clause.media {
            "application/json" | "application/*" | "*/*" => Some(Form::Json(version)),
            "application/yaml" => Some(Form::Yaml(version)),
            _ => None,
        }
    })
}

fn object<const N: usize>(page: &str, kind: &str, form: Form, fields: [(&str, Value); N]) -> Response<Answer> {
    let (media, version) = match form {
        Form::Yaml(version) => ("application/yaml", version),
        Form::Json(version) => ("application/json", version),
        Form::Text => ("application/json", "v1beta1"),
    };
    let mut value = json!({
        "kind": kind, "apiVersion": format!("{GROUP}/{version}"), "metadata": {"name": "kubelet"},
    });
    for (name, content) in fields {
        value[name] = content;
    }
    let mut response = encoded(StatusCode::OK, &value, media);
    let headers = response.headers_mut();
    if let Ok(content_type) = HeaderValue::from_str(&format!("{media};g={GROUP};v={version};as={kind}")) {
        headers.insert(header::CONTENT_TYPE, content_type);
    }
    let warning = format!("299 - \"This version of the {page} endpoint is deprecated. Please use a newer version.\"");
    if let (Ok(warning), "v1alpha1") = (HeaderValue::from_str(&warning), version) {
        headers.insert(header::WARNING, warning);
    }
    response
}

fn encoded(code: StatusCode, value: &Value, media: &'static str) -> Response<Answer> {
    let mut out = Vec::new();
    if media == "application/yaml" {
        proto::yaml::write(value, &mut out);
    } else {
        proto::json::write_sorted(value, &mut out);
        out.push(b'\n');
    }
    let mut response = bare(code, out);
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(media));
    response
}

/// Says so in the form that the client would read, as far as it names one.
fn refused(headers: &HeaderMap) -> Response<Answer> {
    let accept = headers.get(header::ACCEPT).and_then(|a| a.to_str().ok()).unwrap_or_default();
    let readable = clauses(accept).into_iter().filter(|c| !c.converts()).find_map(|c| match c.media {
        "application/yaml" => Some("application/yaml"),
        "application/json" | "application/*" | "*/*" => Some("application/json"),
        _ => None,
    });
    let status = json!({
        "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "message": REFUSAL,
        "reason": "NotAcceptable", "code": 406,
    });
    encoded(StatusCode::NOT_ACCEPTABLE, &status, readable.unwrap_or("application/json"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn objects_are_for_those_who_name_group_version_and_kind() {
        let of = |accept: &'static str| {
            choose(&HeaderMap::from_iter([(header::ACCEPT, HeaderValue::from_static(accept))]), "Flagz")
        };
        assert_eq!(choose(&HeaderMap::new(), "Flagz"), Some(Form::Text));
        assert_eq!(of("application/json"), None);
        assert_eq!(of("application/json;as=Flagz;v=v1beta1"), None);
        assert_eq!(of("application/json;as=Statusz;v=v1beta1;g=config.k8s.io"), None);
        assert_eq!(of("application/yaml;as=Flagz;v=v1alpha1;g=config.k8s.io"), Some(Form::Yaml("v1alpha1")));
        assert_eq!(
            of("text/plain;q=0.5, application/json;as=Flagz;v=v1beta1;g=config.k8s.io"),
            Some(Form::Json("v1beta1"))
        );
        assert_eq!(of("image/png, text/plain;q=0.1"), Some(Form::Text));
    }

    /// Flags that nobody had set used to have no value at all.
    #[test]
    fn flags_that_nobody_sets_have_the_value_of_their_kind() {
        let line = ["--storage-driver-user=me", "--lock-file=/l"].map(str::to_owned);
        let Ok(cli::Command::Run(own)) = cli::parse(line) else { panic!("a good command line") };
        let shown = in_effect(&json!({"maxPods": 7, "clusterDNS": ["1.2.3.4", "1.2.3.5"]}), &own);
        for (name, value) in [
            ("max-pods", "7"),
            ("cluster-dns", "[1.2.3.4,1.2.3.5]"),
            ("allowed-unsafe-sysctls", "[]"),
            ("contention-profiling", "false"),
            ("cluster-domain", ""),
            ("v", "0"),
            ("lock-file", "/l"),
            ("storage-driver-user", "me"),
            ("storage-driver-db", "cadvisor"),
            ("housekeeping-interval", "10s"),
            ("minimum-container-ttl-duration", "0s"),
            ("exit-on-lock-contention", "false"),
        ] {
            assert_eq!(shown[name], value, "{name}");
        }
        assert!(!shown.contains_key("iptables-drop-bit"));
    }
}
