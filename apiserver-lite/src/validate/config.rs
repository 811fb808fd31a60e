//! ConfigMaps, Secrets and Namespaces.

use base64::Engine as _;
use serde_json::Value;

use super::{list, text};
use crate::field_error::{Report, same};
use crate::names;

/// All keys and values of one ConfigMap or Secret.
const MOST_BYTES: usize = 1 << 20;

fn keys(report: &mut Report, object: &Value, name: &str) {
    report.at(name, |r| {
        for (key, _) in object[name].as_object().into_iter().flatten() {
            r.key(key, |r| {
                r.complaints(key, names::config_key(key));
                if name == "data" && object["binaryData"].get(key).is_some() {
                    r.invalid(key.as_str(), "duplicate of key present in binaryData");
                }
            });
        }
    });
}

fn size(object: &Value, name: &str, packed: bool) -> usize {
    let texts = object[name].as_object().into_iter().flatten().filter_map(|(_, value)| value.as_str());
    texts
        .map(|t| if packed { t.len() / 4 * 3 - t.bytes().rev().take_while(|b| *b == b'=').count() } else { t.len() })
        .sum()
}

pub fn config_map(report: &mut Report, object: &Value) {
    keys(report, object, "data");
    keys(report, object, "binaryData");
    if size(object, "data", false) + size(object, "binaryData", true) > MOST_BYTES {
        report.too_long(MOST_BYTES);
    }
}

pub fn secret(report: &mut Report, object: &Value) {
    keys(report, object, "data");
    let data = &object["data"];
    if size(object, "data", true) > MOST_BYTES {
        report.at("data", |r| r.too_long(MOST_BYTES));
    }
    let need = |report: &mut Report, key: &str| report.at("data", |r| r.key(key, |r| r.required("")));
    let json = |report: &mut Report, key: &str| {
        let Some(packed) = data[key].as_str() else { return need(report, key) };
        let bytes = base64::engine::general_purpose::STANDARD.decode(packed).unwrap_or_default();
        let why = match proto::json::parse(&bytes) {
            Ok(parsed) if parsed.value.is_object() || parsed.value.is_null() => return,
            Ok(parsed) => {
                let what = crate::go_value::json_kind(&parsed.value);
                format!("json: cannot unmarshal {what} into Go value of type map[string]interface {{}}")
            }
            Err(error) => error.to_string(),
        };
        report.at("data", |r| r.key(key, |r| r.invalid("<secret contents redacted>", why)));
    };
    match text(object, "type") {
        "kubernetes.io/service-account-token" => {
            const ACCOUNT: &str = "kubernetes.io/service-account.name";
            if text(&object["metadata"]["annotations"], ACCOUNT).is_empty() {
                report.down(&["metadata", "annotations"], |r| r.key(ACCOUNT, |r| r.required("")));
            }
        }
        "kubernetes.io/dockercfg" => json(report, ".dockercfg"),
        "kubernetes.io/dockerconfigjson" => json(report, ".dockerconfigjson"),
        "kubernetes.io/basic-auth" if data["username"].is_null() && data["password"].is_null() => {
            need(report, "username");
            need(report, "password");
        }
        "kubernetes.io/ssh-auth" if text(data, "ssh-privatekey").is_empty() => need(report, "ssh-privatekey"),
        "kubernetes.io/tls" => {
            for key in ["tls.crt", "tls.key"].into_iter().filter(|key| data[*key].is_null()) {
                need(report, key);
            }
        }
        _ => {}
    }
}

/// What may not change: a secret's type, and everything once that was decided.
pub fn frozen(report: &mut Report, new: &Value, old: &Value, plural: &str) {
    let secret = plural == "secrets";
    if secret {
        report.immutable(new, old, "type");
    }
    if old["immutable"] != true {
        return;
    }
    let why = "field is immutable when `immutable` is set";
    if new["immutable"] != true {
        report.refuse("immutable", why);
    }
    let fields: &[&str] = if secret { &["data"] } else { &["data", "binaryData"] };
    for name in fields.iter().filter(|name| !same(&new[**name], &old[**name])) {
        report.refuse(name, why);
    }
}

fn finalizer(report: &mut Report, name: &str) {
    report.complaints(name, names::qualified_name(name));
    if !name.contains('/') && !["kubernetes", "orphan", "foregroundDeletion"].contains(&name) {
        report.invalid(name, "name is neither a standard finalizer name nor is it fully qualified");
    }
}

pub fn namespace(report: &mut Report, object: &Value) {
    for name in list(&object["spec"], "finalizers").iter().filter_map(Value::as_str) {
        report.down(&["spec", "finalizers"], |r| finalizer(r, name));
    }
}

/// The finalizers that a finalize request leaves.
pub fn namespace_finalizers(report: &mut Report, new: &Value) {
    report
        .at("spec", |r| r.each(&new["spec"], "finalizers", |r, name| finalizer(r, name.as_str().unwrap_or_default())));
}

pub fn namespace_status(report: &mut Report, new: &Value) {
    let deleting = !new["metadata"]["deletionTimestamp"].is_null();
    let phase = text(&new["status"], "phase");
    let (wanted, why) = if deleting {
        ("Terminating", "may only be 'Terminating' if `deletionTimestamp` is not empty")
    } else {
        ("Active", "may only be 'Active' if `deletionTimestamp` is empty")
    };
    if phase != wanted {
        report.down(&["status", "Phase"], |r| r.invalid(phase, why));
    }
}
