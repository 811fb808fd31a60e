//! Which labels a node may give itself, and whether they are labels at all.

use std::collections::BTreeMap;

/// Labels that a node may give itself in the reserved namespaces, sorted.
const OWN_LABELS: &[&str] = &[
    "beta.kubernetes.io/arch",
    "beta.kubernetes.io/instance-type",
    "beta.kubernetes.io/os",
    "failure-domain.beta.kubernetes.io/region",
    "failure-domain.beta.kubernetes.io/zone",
    "kubernetes.io/arch",
    "kubernetes.io/hostname",
    "kubernetes.io/os",
    "node.kubernetes.io/instance-type",
    "topology.kubernetes.io/region",
    "topology.kubernetes.io/zone",
];

/// Reads `a=b,c=d` and checks it.
///
/// # Errors
/// With the kubelet's words.
pub(super) fn parse(text: &str) -> Result<BTreeMap<String, String>, String> {
    let mut labels = BTreeMap::new();
    for pair in text.split(',').filter(|p| !p.is_empty()) {
        let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
        labels.insert(key.trim().to_owned(), value.trim().to_owned());
    }
    let restricted: Vec<_> = labels.keys().filter(|k| !allowed(k)).map(String::as_str).collect();
    if !restricted.is_empty() {
        return Err(format!(
            "unknown 'kubernetes.io' or 'k8s.io' labels specified with --node-labels: [{}]\n--node-labels in the \
             'kubernetes.io' namespace must begin with an allowed prefix (kubelet.kubernetes.io, node.kubernetes.io) \
             or be in the specifically allowed set ({})",
            restricted.join(" "),
            OWN_LABELS.join(", ")
        ));
    }
    let mut errors = Vec::new();
    for (key, value) in &labels {
        errors.extend(name_errors(key).into_iter().map(|e| format!("'{key}' - {e}")));
        errors.extend(value_errors(value).into_iter().map(|e| format!("'{value}' - {e}")));
    }
    if errors.is_empty() { Ok(labels) } else { Err(format!("invalid node labels: {}", errors.join("; "))) }
}

fn allowed(key: &str) -> bool {
    let Some((prefix, _)) = key.split_once('/') else { return true };
    let within = |domain: &str| prefix == domain || prefix.strip_suffix(domain).is_some_and(|p| p.ends_with('.'));
    if !within("kubernetes.io") && !within("k8s.io") {
        return true;
    }
    OWN_LABELS.contains(&key) || within("kubelet.kubernetes.io") || within("node.kubernetes.io")
}

/// What keeps a text from being the key of a label or taint; upstream's words.
pub fn name_errors(key: &str) -> Vec<String> {
    let mut errors = Vec::new();
    let (prefix, name) = match key.split_once('/') {
        Some((_, rest)) if rest.contains('/') => {
            return vec![
                "a qualified name must consist of alphanumeric characters, '-', '_' or '.', and must start and end \
                 with an alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for \
                 validation is '([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]') with an optional DNS subdomain prefix and \
                 '/' (e.g. 'example.com/MyName')"
                    .into(),
            ];
        }
        Some((prefix, name)) => (Some(prefix), name),
        None => (None, key),
    };
    if let Some(prefix) = prefix {
        let label = |l: &str| is_word(l, |b| b.is_ascii_lowercase() || b.is_ascii_digit(), |b| b == b'-');
        if prefix.is_empty() {
            errors.push("prefix part must be non-empty".into());
        } else if prefix.len() > 253 || !prefix.split('.').all(label) {
            errors.push(
                "prefix part a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' \
                 or '.', and must start and end with an alphanumeric character (e.g. 'example.com', regex used for \
                 validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')"
                    .into(),
            );
        }
    }
    if name.is_empty() {
        errors.push("name part must be non-empty".into());
    } else if name.len() > 63 {
        errors.push("name part must be no more than 63 bytes".into());
    }
    if !is_word(name, |b| b.is_ascii_alphanumeric(), |b| matches!(b, b'-' | b'_' | b'.')) {
        errors.push(
            "name part must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an \
             alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is \
             '([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')"
                .into(),
        );
    }
    errors
}

pub(super) fn value_errors(value: &str) -> Vec<String> {
    let mut errors = Vec::new();
    if value.len() > 63 {
        errors.push("must be no more than 63 bytes".into());
    }
    if !value.is_empty() && !is_word(value, |b| b.is_ascii_alphanumeric(), |b| matches!(b, b'-' | b'_' | b'.')) {
        errors.push(
            "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and must \
             start and end with an alphanumeric character (e.g. 'MyValue',  or 'my_value',  or '12345', regex used \
             for validation is '(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?')"
                .into(),
        );
    }
    errors
}

/// Starts and ends with `edge`, with `edge` or `inner` between.
fn is_word(text: &str, edge: impl Fn(u8) -> bool, inner: impl Fn(u8) -> bool) -> bool {
    let bytes = text.as_bytes();
    let (Some(first), Some(last)) = (bytes.first(), bytes.last()) else { return false };
    edge(*first) && edge(*last) && bytes.iter().all(|b| edge(*b) || inner(*b))
}
