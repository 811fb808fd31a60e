//! One file of the configuration: its text, its kind, its fields, and where in it something stands.

use std::path::Path;

use proto::schema::{StructId, Type, TypeSet};
use serde_json::Value;

use super::defaults;

pub(super) const API_VERSION: &str = "kubelet.config.k8s.io/v1beta1";
pub(super) const KIND: &str = "KubeletConfiguration";
/// Kinds that the kubelet's scheme knows besides the configuration.
const OTHER_KINDS: &[(&str, &str)] = &[
    ("kubelet.config.k8s.io/v1beta1", "SerializedNodeConfigSource"),
    ("kubelet.config.k8s.io/v1beta1", "CredentialProviderConfig"),
    ("kubelet.config.k8s.io/v1beta1", "ImagePullIntent"),
    ("kubelet.config.k8s.io/v1beta1", "ImagePulledRecord"),
    ("kubelet.config.k8s.io/v1alpha1", "CredentialProviderConfig"),
    ("kubelet.config.k8s.io/v1alpha1", "ImagePullIntent"),
    ("kubelet.config.k8s.io/v1alpha1", "ImagePulledRecord"),
    ("kubelet.config.k8s.io/v1", "CredentialProviderConfig"),
];

/// A field that the file repeats or that no version of the configuration has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Oddity {
    /// As the decoder says it: `unknown field "a.b"`, `key "maxPods" already set in map`.
    pub what: String,
    /// Dotted path of an unknown field; a repeated one's key.
    pub path: String,
    /// The first line is 1.
    pub line: Option<usize>,
    pub repeated: bool,
}

impl Oddity {
    /// `FILE:LINE: unknown field "a.b"`.
    pub(super) fn at(&self, file: &Path) -> String {
        match self.line {
            Some(line) => format!("{}:{line}: {}", file.display(), self.what),
            None => format!("{}: {}", file.display(), self.what),
        }
    }
}

/// A file as it was read.
pub(super) struct FileTree {
    /// As written, for merging.
    pub(super) tree: Value,
    pub(super) text: String,
    /// The decoder's own complaint about repeated keys: go-yaml's all in one, or one for each field of JSON.
    pub(super) duplicates: Option<String>,
}

/// What begins like an object of JSON is read as JSON, and refused where it is only YAML.
fn is_json(text: &[u8]) -> bool {
    String::from_utf8_lossy(text).trim_start().starts_with('{')
}

/// Separates complaints about fields of JSON.
const BETWEEN: &str = ", ";

/// Reads the text; the error is the kubelet's.
pub(super) fn read(path: &Path) -> Result<FileTree, String> {
    let shown = path.display();
    let text = std::fs::read(path).map_err(|e| {
        let call = if path.is_dir() { "read" } else { "open" };
        format!("failed to read kubelet config file {:?}, error: {call} {shown}: {}", shown.to_string(), reason(&e))
    })?;
    if text.is_empty() {
        return Err(format!("kubelet config file {:?} was empty", shown.to_string()));
    }
    if is_json(&text) {
        let parsed = proto::json::parse(&text)
            .map_err(|e| format!("failed to decode: couldn't get version/kind; json parse error: {e}"))?;
        let duplicates = Some(parsed.duplicates.join(BETWEEN)).filter(|text| !text.is_empty());
        return Ok(FileTree { tree: parsed.value, text: String::from_utf8_lossy(&text).into_owned(), duplicates });
    }
    let parsed = proto::yaml::read(&text).map_err(|e| format!("failed to decode: {e}"))?;
    Ok(FileTree {
        tree: parsed.value,
        text: String::from_utf8_lossy(&text).into_owned(),
        duplicates: parsed.duplicates.into_iter().next(),
    })
}

/// The system's word for an error, as Go writes it.
pub(super) fn reason(error: &std::io::Error) -> String {
    let text = error.to_string();
    let text = text.split(" (os error").next().unwrap_or_default();
    let mut letters = text.chars();
    letters.next().map(|first| first.to_lowercase().chain(letters).collect()).unwrap_or_default()
}

impl FileTree {
    fn word(&self, key: &str) -> &str {
        self.tree.get(key).and_then(Value::as_str).unwrap_or("")
    }

    /// `apiVersion`, `kind`.
    pub(super) fn kind(&self) -> (&str, &str) {
        (self.word("apiVersion"), self.word("kind"))
    }

    /// Whether the main file is a configuration at all.
    pub(super) fn check_kind(&self) -> Result<(), String> {
        if !self.tree.is_object() {
            let found = match &self.tree {
                Value::Array(_) => "array",
                Value::String(_) => "string",
                Value::Number(_) => "number",
                Value::Bool(_) => "bool",
                Value::Null | Value::Object(_) => return Err(self.missing("Kind")),
            };
            return Err(format!(
                "failed to decode: couldn't get version/kind; json parse error: json: cannot unmarshal {found} into Go \
                 value of type struct {{ APIVersion string \"json:\\\"apiVersion,omitempty\\\"\"; Kind string \
                 \"json:\\\"kind,omitempty\\\"\" }}"
            ));
        }
        let (version, kind) = self.kind();
        if kind.is_empty() {
            return Err(self.missing("Kind"));
        }
        if version.is_empty() {
            return Err(self.missing("apiVersion"));
        }
        if OTHER_KINDS.contains(&(version, kind)) {
            return Err(format!(
                "failed to cast object to KubeletConfiguration, unexpected type: {version}, Kind={kind}"
            ));
        }
        if (version, kind) != (API_VERSION, KIND) {
            return Err(format!(
                "failed to decode: no kind {kind:?} is registered for version {version:?} in scheme \
                 \"pkg/kubelet/apis/config/scheme/scheme.go:33\""
            ));
        }
        Ok(())
    }

    fn missing(&self, what: &str) -> String {
        format!("failed to decode: Object '{what}' is missing in '{}'", self.text)
    }

    /// The fields in normal form, and what is odd in the file.
    pub(super) fn fields(&self) -> Result<(Value, Vec<Oddity>), String> {
        let (value, strict) = conform(&self.tree)?;
        let mut oddities: Vec<_> = strict
            .into_iter()
            .map(|what| {
                let path = what.split('"').nth(1).unwrap_or_default().to_owned();
                let line = line_of(&self.text, &path);
                Oddity { what, path, line, repeated: false }
            })
            .collect();
        oddities.extend(self.repeated());
        Ok((value, oddities))
    }

    /// Keys that a map has twice.
    pub(super) fn repeated(&self) -> Vec<Oddity> {
        if is_json(self.text.as_bytes()) {
            let fields = self.duplicates.iter().flat_map(|text| text.split(BETWEEN));
            let told = fields.map(|what| {
                let path = what.split('"').nth(1).unwrap_or_default().to_owned();
                let line = line_of(&self.text, &path);
                Oddity { what: what.to_owned(), path, line, repeated: true }
            });
            return told.collect();
        }
        let lines = self.duplicates.iter().flat_map(|text| text.lines().skip(1));
        lines
            .map(|line| {
                let (at, what) =
                    line.trim().strip_prefix("line ").and_then(|l| l.split_once(": ")).unwrap_or(("", line));
                Oddity {
                    what: what.trim().to_owned(),
                    path: what.split('"').nth(1).unwrap_or_default().to_owned(),
                    line: at.parse().ok(),
                    repeated: true,
                }
            })
            .collect()
    }
}

pub(super) fn schema() -> (&'static TypeSet, Option<StructId>) {
    let set = TypeSet::built_in();
    (set, set.kind("kubelet.config.k8s.io", "v1beta1", KIND))
}

/// Empty lists and maps that say "none" where absence means the default.
const MEANT_EMPTY: &[&str] = &["enforceNodeAllocatable", "evictionHard", "systemReserved"];

fn is_empty(value: &Value) -> bool {
    match value {
        Value::Array(list) => list.is_empty(),
        Value::Object(map) => map.is_empty(),
        _ => false,
    }
}

/// A tree in normal form with the decoder's remarks. Null where a duration must stand is refused, as Go reads it there.
pub(super) fn conform(tree: &Value) -> Result<(Value, Vec<String>), String> {
    let (set, Some(id)) = schema() else { return Err("the schema lacks the configuration".into()) };
    let (flush, rest) = flush_number(tree)?;
    let tree = rest.as_ref().unwrap_or(tree);
    let filled = has_null_element(tree).then(|| {
        let mut filled = tree.clone();
        fill_elements(set, id, &mut filled);
        filled
    });
    let tree = filled.as_ref().unwrap_or(tree);
    durations(set, id, tree, "")?;
    let decoded = proto::json::conform(set, id, tree).map_err(|e| e.to_string())?;
    let mut value = decoded.value;
    // The normal form has no empty lists and maps.
    for name in MEANT_EMPTY {
        if let Some(empty) = tree.get(name).filter(|v| is_empty(v)) {
            defaults::set(&mut value, name, empty.clone());
        }
    }
    let reserved = tree.get("reservedMemory").and_then(Value::as_array).into_iter().flatten();
    for (at, node) in reserved.enumerate() {
        if let Some(slot) = value.pointer_mut(&format!("/reservedMemory/{at}")).and_then(Value::as_object_mut)
            && let Some(limits) = node.get("limits").filter(|l| l.is_object())
        {
            slot.entry("limits").or_insert_with(|| limits.clone());
        }
    }
    if let Some(nanos) = flush {
        defaults::set(&mut value, FLUSH, nanos.into());
    }
    Ok((value, decoded.strict))
}

/// Whether a list somewhere in the tree has a null.
fn has_null_element(tree: &Value) -> bool {
    match tree {
        Value::Array(list) => list.iter().any(|element| element.is_null() || has_null_element(element)),
        Value::Object(map) => map.values().any(has_null_element),
        _ => false,
    }
}

/// A null in a list is the zero of what the list holds: Go makes the element first and then reads nothing into it.
fn fill_elements(set: &TypeSet, id: StructId, tree: &mut Value) {
    let Some(fields) = set.structs.get(id as usize) else { return };
    for prop in &fields.props {
        if let (Some(ty), Some(value)) = (set.types.get(prop.ty as usize), tree.get_mut(&*prop.name)) {
            fill(set, ty, value);
        }
    }
}

fn fill(set: &TypeSet, ty: &Type, value: &mut Value) {
    match (ty, value) {
        (Type::Struct(id) | Type::AtomicStruct(id), value) => fill_elements(set, *id, value),
        (Type::List(list), Value::Array(elements)) => {
            let Some(element) = set.types.get(list.element as usize) else { return };
            for value in elements {
                if value.is_null() {
                    *value = zero(element);
                }
                fill(set, element, value);
            }
        }
        (Type::Map(map), Value::Object(entries)) => {
            let Some(ty) = set.types.get(map.value as usize) else { return };
            entries.values_mut().for_each(|value| fill(set, ty, value));
        }
        _ => {}
    }
}

/// Of types that have none in JSON, null stays.
fn zero(ty: &Type) -> Value {
    match ty {
        Type::String => "".into(),
        Type::Bool => false.into(),
        Type::Int32 | Type::Int64 => 0.into(),
        Type::Struct(_) | Type::AtomicStruct(_) => Value::Object(serde_json::Map::new()),
        _ => Value::Null,
    }
}

const FLUSH: &str = "logging.flushFrequency";

/// The one duration that may also be a number, of nanoseconds, and then stays one: older versions had it so. With it comes
/// the tree without it. Zero and null are as if nothing were said.
fn flush_number(tree: &Value) -> Result<(Option<i64>, Option<Value>), String> {
    let given = tree.pointer("/logging/flushFrequency").filter(|value| !value.is_string());
    let Some(given) = given else { return Ok((None, None)) };
    let found = match given {
        Value::Null => None,
        Value::Number(number) if number.is_i64() => number.as_i64().filter(|nanos| *nanos != 0),
        other => {
            let kind = match other {
                Value::Number(number) => format!("number {number}"),
                Value::Bool(_) => "bool".to_owned(),
                Value::Array(_) => "array".to_owned(),
                _ => "object".to_owned(),
            };
            let text = other.to_string();
            return Err(format!(
                "invalid duration {text:?}: json: cannot unmarshal {kind} into Go value of type time.Duration"
            ));
        }
    };
    let mut rest = tree.clone();
    if let Some(logging) = rest.get_mut("logging").and_then(Value::as_object_mut) {
        logging.remove("flushFrequency");
    }
    Ok((found, Some(rest)))
}

/// Leaves out the fields at the top whose values do not fit.
pub(super) fn keep_fitting(tree: &mut Value) {
    if let Some(map) = tree.as_object_mut() {
        map.retain(|name, value| {
            let alone = Value::Object(serde_json::Map::from_iter([(name.clone(), value.clone())]));
            conform(&alone).is_ok()
        });
    }
}

/// Go reads durations as text, and says where it does not find any; null stands for no text where nothing may be absent.
fn durations(set: &TypeSet, id: StructId, tree: &Value, above: &str) -> Result<(), String> {
    let Some(fields) = set.structs.get(id as usize) else { return Ok(()) };
    for prop in &fields.props {
        let Some(value) = tree.get(&*prop.name) else { continue };
        let path = format!("{above}{}", prop.name);
        match set.types.get(prop.ty as usize) {
            Some(Type::Duration) => {
                let found = match value {
                    Value::Null if !prop.pointer => return Err("time: invalid duration \"\"".into()),
                    Value::Null | Value::String(_) => continue,
                    Value::Number(_) => "number",
                    Value::Bool(_) => "bool",
                    Value::Array(_) => "array",
                    Value::Object(_) => "object",
                };
                let holder = fields.name.rsplit('.').next().unwrap_or_default();
                return Err(format!(
                    "json: cannot unmarshal {found} into Go struct field {holder}.{path} of type string"
                ));
            }
            Some(Type::Struct(inner)) if value.is_object() => durations(set, *inner, value, &format!("{path}."))?,
            _ => {}
        }
    }
    Ok(())
}

/// Where a dotted path stands: each name is looked for as a key after the one that holds it.
pub(super) fn line_of(text: &str, path: &str) -> Option<usize> {
    let keys: Vec<_> = path.split('.').map(|name| name.split('[').next().unwrap_or(name)).collect();
    line_of_keys(text, &keys)
}

/// The same for keys that may have dots.
pub(super) fn line_of_keys(text: &str, keys: &[impl AsRef<str>]) -> Option<usize> {
    let mut from = 0;
    for (depth, name) in keys.iter().enumerate() {
        from = key_after(text, from, name.as_ref(), depth == 0)? + 1;
    }
    Some(text[..from.saturating_sub(1)].matches('\n').count() + 1)
}

/// Offset of a key; `top` asks for one that no block indents.
fn key_after(text: &str, from: usize, name: &str, top: bool) -> Option<usize> {
    let flow = text.trim_start().starts_with('{');
    for (at, _) in text.get(from..)?.match_indices(name) {
        let at = from + at;
        let (before, after) = (&text[..at], &text[at + name.len()..]);
        let quoted = before.ends_with(['"', '\'']);
        let after = if quoted { after.get(1..).unwrap_or("") } else { after };
        let before = if quoted { &before[..before.len() - 1] } else { before };
        let starts = before.is_empty() || before.ends_with(|c: char| c.is_whitespace() || matches!(c, '{' | ','));
        let indented = !flow && before.ends_with([' ', '\t']);
        if starts && after.trim_start_matches([' ', '\t']).starts_with(':') && !(top && indented) {
            return Some(at);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Settings that were written for older versions were refused.
    #[test]
    fn how_often_the_log_is_flushed_may_be_a_number() {
        let of = |value: Value| {
            let read = conform(&serde_json::json!({"logging": {"flushFrequency": value, "verbosity": 1}}));
            read.map(|(tree, _)| tree["logging"]["flushFrequency"].clone())
        };
        assert_eq!(of(5_000_000_000_i64.into()), Ok(5_000_000_000_i64.into()));
        assert_eq!(of("5000ms".into()), Ok("5s".into()));
        assert_eq!((of(0.into()), of(Value::Null)), (Ok(Value::Null), Ok(Value::Null)));
        for (bad, kind) in [(Value::from(1.5), "number 1.5"), (true.into(), "bool")] {
            let text = bad.to_string();
            assert_eq!(
                of(bad),
                Err(format!(
                    "invalid duration {text:?}: json: cannot unmarshal {kind} into Go value of type time.Duration"
                ))
            );
        }
    }

    /// Commas too many and what came after the object were taken for granted.
    #[test]
    fn what_begins_like_json_is_json() {
        let dir = std::env::temp_dir().join(format!("config-json-{}", crate::backoff::random_below(u32::MAX)));
        std::fs::create_dir_all(&dir).expect("creates");
        let path = dir.join("f");
        let of = |text: &str| {
            std::fs::write(&path, text).expect("writes");
            read(&path)
        };
        let refused = |text: &str| {
            let error = of(text).map(drop).expect_err("refused");
            error.strip_prefix("failed to decode: couldn't get version/kind; json parse error: ").map(str::to_owned)
        };
        for (text, why) in [
            (r#"{"a":1,}"#, "invalid character '}' looking for beginning of object key string"),
            ("\n {a: 1}", "invalid character 'a' looking for beginning of object key string"),
            (r#"{"a":1} x"#, "invalid character 'x' after top-level value"),
        ] {
            assert_eq!(refused(text).as_deref(), Some(why), "{text:?}");
        }
        let file = of(r#"{"a":1,"b":{"c":1,"c":2},"a":2}"#).expect("reads");
        assert_eq!(file.tree, serde_json::json!({"a": 2, "b": {"c": 2}}));
        let repeated: Vec<_> = file.repeated().into_iter().map(|odd| (odd.what, odd.path, odd.line)).collect();
        assert_eq!(
            repeated,
            [
                (r#"duplicate field "b.c""#.to_owned(), "b.c".to_owned(), Some(1)),
                (r#"duplicate field "a""#.to_owned(), "a".to_owned(), Some(1)),
            ]
        );
        std::fs::remove_dir_all(dir).expect("removes");
    }

    /// Such a list was refused, with words that named no field.
    #[test]
    fn a_null_in_a_list_is_the_zero_of_what_it_holds() {
        let read = |tree: Value| {
            let (document, _) = conform(&tree).expect("fits");
            (super::super::Configuration::read(&document).expect("fits"), document)
        };
        let (config, document) = read(serde_json::json!({
            "clusterDNS": [null, "10.0.0.1"], "tlsCurvePreferences": [null], "registerWithTaints": [null],
            "shutdownGracePeriodByPodPriority": [null], "logging": {"vmodule": [null]},
            "staticPodURLHeader": {"a": [null], "b": null},
        }));
        assert_eq!(document["clusterDNS"], serde_json::json!(["", "10.0.0.1"]));
        assert_eq!(config.cluster_dns, ["", "10.0.0.1"]);
        assert_eq!(config.tls_curve_preferences, [0]);
        assert_eq!(config.register_with_taints, [super::super::Taint::default()]);
        assert_eq!((config.shutdown_grace_period_by_pod_priority.len(), config.logging.vmodule.len()), (1, 1));
        let headers = &config.static_pod_url_header;
        assert_eq!((headers["a"].as_slice(), headers["b"].len()), (&[String::new()][..], 0));
    }

    #[test]
    fn a_path_is_found_in_its_own_block() {
        let text = "kind: X\nmaxPods: 1\nauthentication:\n  webhook:\n    enable: 1\nenable: 2\n";
        assert_eq!(line_of(text, "authentication.webhook.enable"), Some(5));
        assert_eq!(line_of(text, "enable"), Some(6));
        assert_eq!(line_of(text, "missing"), None);
        assert_eq!(line_of("{\"a\": 1,\n \"b\": {\"c\": 2}}", "b.c"), Some(2));
    }
}
