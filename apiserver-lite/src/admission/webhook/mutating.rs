//! Mutating webhooks: asked one after the other, each about what the ones before made of the object.

use std::sync::Arc;
use std::time::Instant;

use serde_json::Value;

use super::super::attributes::Attributes;
use super::super::changes::{self, Rounds};
use super::super::subject::Subject;
use super::call::{self, Failed, Stage};
use super::client::Clients;
use super::compiled::{Webhook, shown};
use super::review::{Patch, Verdict};
use crate::go_value::json_kind;
use crate::metrics::{Outcome, Type, apart};
use crate::status::{ApiError, Result, quote};

/// Asks every webhook that is about a request; in the second round those that want to see the object again and have not
/// seen what was changed after them.
///
/// # Errors
/// A webhook's refusal, that it could not be asked, or that its patch does not apply.
pub async fn mutate(
    clients: &Clients,
    hooks: &[Arc<Webhook>],
    attributes: &Attributes<'_>,
    new: &mut Subject<'_>,
    rounds: &mut Rounds,
) -> Result<()> {
    if hooks.is_empty() || super::super::matching::is_exempt(attributes) {
        return Ok(());
    }
    rounds.begin(new.value());
    for (index, hook) in hooks.iter().enumerate() {
        let Some(matched) = hook.wants(attributes, new)? else { continue };
        if rounds.skips(&hook.id) {
            continue;
        }
        let resource = matched.resource(attributes);
        let object = shown(attributes, resource, new)?;
        let since = Instant::now();
        let asked = call::ask(clients, hook, attributes, &matched, object, true).await;
        let outcome = match asked {
            Ok(Verdict { patch: Some(patch), .. }) => {
                apply(hook, attributes, resource, object.cloned(), &patch).map(|patched| {
                    patched.is_some_and(|patched| {
                        note_patch(hook, rounds.number(), index, &patch.text);
                        new.set(patched)
                    })
                })
            }
            Ok(_) => Ok(false),
            Err(failed) => Err(failed),
        };
        let became = outcome.as_ref().err().map_or(Outcome::Allowed, Failed::outcome);
        let operation = attributes.call.operation;
        let took = since.elapsed();
        apart::waited(took);
        clients.counted().called(&hook.name, Type::Admit, operation, took, became, !hook.fail);
        note(hook, rounds.number(), index, matches!(outcome, Ok(true)));
        let changed = match outcome {
            Ok(changed) => changed,
            Err(Failed::Call { why, .. }) if !hook.fail => {
                tracing::warn!(webhook = %hook.name, configuration = %hook.configuration, why, "a webhook failed, open");
                let key =
                    format!("failed-open.mutation.webhook.admission.k8s.io/round_{}_index_{index}", rounds.number());
                super::super::note(&key, &hook.name);
                false
            }
            Err(failed) => return Err(failed.into_error(hook)),
        };
        rounds.ran(&hook.id, hook.again, changed);
    }
    rounds.end(new.value());
    Ok(())
}

/// The object, in the version that is stored, with a patch applied to the version that the webhook saw; None for a patch
/// without operations.
fn apply(
    hook: &Webhook,
    attributes: &Attributes<'_>,
    resource: &crate::resource::Resource,
    object: Option<Value>,
    patch: &Patch,
) -> std::result::Result<Option<Value>, Failed> {
    match patched(&hook.name, object, patch)? {
        Some(object) => changes::settle(attributes, resource, object, false).map(Some).map_err(Failed::Internal),
        None => Ok(None),
    }
}

/// An object with a patch applied; None for a patch without operations.
fn patched(webhook: &str, object: Option<Value>, patch: &Patch) -> std::result::Result<Option<Value>, Failed> {
    let senseless = |why: String| Failed::Call { stage: Stage::Answer, why };
    let undecodable =
        |why: &dyn std::fmt::Display| senseless(format!("received undecodable patch in webhook response: {why}"));
    let operations = proto::json::parse(&patch.text).map_err(|e| undecodable(&e))?.value;
    if let Some(why) = no_operations(&operations) {
        return Err(undecodable(&why));
    }
    let operations = crate::patch::Operations::parse(operations).map_err(|e| undecodable(&e.status().message))?;
    if operations.is_empty() {
        return Ok(None);
    }
    let Some(mut object) = object else {
        let why = format!(
            "admission webhook {} attempted to modify the object, which is not supported for this operation",
            quote(webhook)
        );
        return Err(Failed::Internal(ApiError::internal(why)));
    };
    if patch.kind != "JSONPatch" {
        return Err(senseless(format!("unsupported patch type {}", quote(&patch.kind))));
    }
    operations.apply(&mut object).map_err(|refused| Failed::Internal(ApiError::internal(refused.why)))?;
    Ok(Some(object))
}

/// Why a document is no list of operations, in the words of upstream's library.
fn no_operations(patch: &Value) -> Option<String> {
    let (wrong, wanted) = match patch {
        Value::Array(list) => {
            let wrong = list.iter().find(|item| !item.is_object() && !item.is_null());
            (wrong?, "jsonpatch.Operation")
        }
        Value::Null => return None,
        other => (other, "jsonpatch.Patch"),
    };
    Some(format!("json: cannot unmarshal {} into Go value of type {wanted}", json_kind(wrong)))
}

/// The beginning of a note, in the order of upstream's.
fn named(hook: &Webhook) -> String {
    let text = |text: &str| Value::from(text).to_string();
    format!("\"configuration\":{},\"webhook\":{}", text(&hook.configuration), text(&hook.name))
}

fn note(hook: &Webhook, round: usize, index: usize, mutated: bool) {
    let key = format!("mutation.webhook.admission.k8s.io/round_{round}_index_{index}");
    super::super::note(&key, &format!("{{{},\"mutated\":{mutated}}}", named(hook)));
}

/// Notes a patch where requests are logged as a whole.
fn note_patch(hook: &Webhook, round: usize, index: usize, patch: &[u8]) {
    if !crate::audit::wants_requests() {
        return;
    }
    let key = format!("patch.webhook.admission.k8s.io/round_{round}_index_{index}");
    let operations = proto::json::parse(patch).map(|parsed| parsed.value).unwrap_or_default();
    super::super::note(&key, &format!("{{{},\"patch\":{operations},\"patchType\":\"JSONPatch\"}}", named(hook)));
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn patched_with(object: Option<Value>, kind: &str, text: &str) -> std::result::Result<Option<Value>, Failed> {
        patched("w", object, &Patch { kind: kind.into(), text: text.into() })
    }

    #[test]
    fn a_patch_that_makes_no_sense_is_a_call_that_failed() {
        let object = || Some(json!({"a": 1}));
        let add = r#"[{"op":"add","path":"/b","value":2}]"#;
        for (kind, text, wanted) in [
            ("JSONPatch", "{", "received undecodable patch in webhook response: "),
            ("JSONPatch", "{}", "received undecodable patch in webhook response: "),
            ("JSONPatch", "[1]", "received undecodable patch in webhook response: "),
            ("Other", add, "unsupported patch type \"Other\""),
        ] {
            let failed = patched_with(object(), kind, text).expect_err(text);
            assert_eq!(failed.outcome(), Outcome::Failed(503), "{text}");
            assert!(matches!(&failed, Failed::Call { why, .. } if why.starts_with(wanted)), "{failed:?}");
        }
        assert_eq!(patched_with(object(), "JSONPatch", add).expect("a patch"), Some(json!({"a": 1, "b": 2})));
        assert_eq!(patched_with(None, "JSONPatch", "[]").expect("no operations"), None);
    }

    #[test]
    fn a_patch_that_does_not_apply_is_the_servers_own_error() {
        let remove = r#"[{"op":"remove","path":"/b"}]"#;
        for object in [None, Some(json!({"a": 1}))] {
            let failed = patched_with(object, "JSONPatch", remove).expect_err("nothing to remove");
            assert_eq!(failed.outcome(), Outcome::Internal, "{failed:?}");
            assert!(matches!(failed, Failed::Internal(error) if error.code() == 500));
        }
    }
}
