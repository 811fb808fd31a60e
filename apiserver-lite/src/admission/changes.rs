//! What policies and webhooks make of an object, and who of them sees it again.
//!
//! When one of them changed the object, everything that completes objects runs once more: the server's own plugins, and
//! of policies and webhooks those that asked for it (`reinvocationPolicy: IfNeeded`) and ran before the change.

use serde_json::Value;

use super::attributes::Attributes;
use crate::resource::Resource;
use crate::status::{ApiError, Result};

/// Who has run, and who has to run again. One for policies, one for webhooks.
#[derive(Default)]
pub struct Rounds {
    round: usize,
    /// Ran in this round and want to see later changes.
    eager: Vec<String>,
    /// Have to run again.
    due: Vec<String>,
    /// The object as the last of them left it.
    last: Option<Value>,
    /// Something was changed.
    pub changed: bool,
}

impl Rounds {
    /// Begins the second round.
    pub fn again(&mut self) {
        self.round += 1;
    }

    pub fn number(&self) -> usize {
        self.round
    }

    pub fn begin(&mut self, object: Option<&Value>) {
        // What others changed since is news to everybody.
        if self.round > 0 && self.last.as_ref() != object {
            self.wake();
        }
    }

    fn wake(&mut self) {
        self.due.append(&mut self.eager);
    }

    /// In the second round only those run that are due.
    pub fn skips(&self, id: &str) -> bool {
        self.round > 0 && !self.due.iter().any(|due| due == id)
    }

    pub fn ran(&mut self, id: &str, eager: bool, changed: bool) {
        if changed {
            self.changed = true;
            self.wake();
        }
        if eager {
            self.eager.push(id.to_owned());
        }
    }

    pub fn end(&mut self, object: Option<&Value>) {
        // Only the second round looks at it.
        if self.round == 0 {
            self.last = object.cloned();
        }
    }
}

/// Makes an object of what somebody made of it: in the form and version that is stored, defaults filled in.
///
/// # Errors
/// 500 for what is no object of its kind any more, and with `strict` for fields that its kind has not.
pub fn settle(attributes: &Attributes<'_>, resource: &Resource, object: Value, strict: bool) -> Result<Value> {
    let call = attributes.call;
    if resource.custom {
        let fitted = crate::crd::conform(resource, object).map_err(ApiError::internal)?;
        let mut value = fitted.value;
        if let Some(definition) = &resource.definition {
            definition.default(resource, &mut value);
        }
        crate::crd::to_version_now(call.server, call.resource, &mut value, &call.resource.api_version())?;
        return Ok(stored(call.resource, value));
    }
    let kind = attributes.kind(resource);
    let set = proto::schema::TypeSet::built_in();
    let Some(id) = set.kind(&kind.group, &kind.version, &kind.kind) else { return Ok(object) };
    let decoded = proto::json::conform(set, id, &object).map_err(|e| ApiError::internal(e.to_string()))?;
    if strict && !decoded.strict.is_empty() {
        return Err(ApiError::internal(format!("strict decoding error: {}", decoded.strict.join(", "))));
    }
    let mut value = decoded.value;
    if *kind.kind != *resource.kind {
        value["kind"] = kind.kind.into();
        value["apiVersion"] =
            if kind.group.is_empty() { kind.version } else { format!("{}/{}", kind.group, kind.version) }.into();
        return Ok(value);
    }
    value["kind"] = kind.kind.into();
    value["apiVersion"] = resource.api_version().into();
    Ok(stored(call.resource, value))
}

fn stored(resource: &Resource, mut value: Value) -> Value {
    crate::write::to_stored_version(resource, &mut value);
    crate::defaults::apply(resource, &mut value);
    value
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn who_asked_for_it_sees_what_was_changed_after_it() {
        let mut rounds = Rounds::default();
        let (before, after) = (json!(1), json!(2));
        rounds.begin(Some(&before));
        rounds.ran("first", true, false);
        rounds.ran("changes", true, true);
        rounds.ran("last", false, false);
        rounds.end(Some(&after));
        rounds.again();
        rounds.begin(Some(&after));
        assert!(!rounds.skips("first"), "the change came after it");
        assert!(rounds.skips("changes"), "nothing changed after its own change");
        assert!(rounds.skips("last"), "it did not ask for it");
    }

    #[test]
    fn everybody_eager_sees_what_others_changed_between_rounds() {
        let mut rounds = Rounds::default();
        rounds.ran("a", true, false);
        rounds.end(Some(&json!(1)));
        rounds.again();
        rounds.begin(Some(&json!(2)));
        assert!(!rounds.skips("a"));
    }
}
