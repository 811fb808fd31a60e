//! One call of a webhook: from an object to a verdict.

use serde_json::Value;

use super::super::attributes::Attributes;
use super::super::matching::Matched;
use super::answer::Expected;
use super::client::{Asker, Clients, Unanswered};
use super::compiled::{Webhook, old};
use super::review::{self, Verdict};
use crate::metrics::Outcome;
use crate::status::{ApiError, quote};

/// Why a webhook did not let a request pass.
#[derive(Debug)]
pub enum Failed {
    /// The call came to nothing; the webhook's failure policy says what that means.
    Call { stage: Stage, why: String },
    /// The webhook's own refusal.
    Refused(ApiError),
    /// What the server itself could not do or may not ask, whatever the failure policy is.
    Internal(ApiError),
}

/// How far a call came that came to nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    /// There is no question that the webhook would understand.
    Question,
    /// It cannot be asked with its settings.
    Settings,
    /// It was asked; with the code of its answer, where that is an error.
    Asked(Option<u16>),
    /// Its answer, or the patch in it, makes no sense.
    Answer,
}

impl Failed {
    /// What the metrics say of it, with the codes that upstream gives each stage of a call.
    pub fn outcome(&self) -> Outcome {
        match self {
            Failed::Call { stage, .. } => Outcome::Failed(match stage {
                Stage::Question => 400,
                Stage::Settings => 500,
                Stage::Asked(Some(code)) => *code,
                Stage::Asked(None) | Stage::Answer => 503,
            }),
            Failed::Refused(error) => Outcome::Refused(error.code()),
            Failed::Internal(_) => Outcome::Internal,
        }
    }

    /// What the client hears of a call that came to nothing.
    pub fn into_error(self, hook: &Webhook) -> ApiError {
        match self {
            Failed::Call { why, .. } => {
                ApiError::internal(format!("failed calling webhook {}: {why}", quote(&hook.name)))
            }
            Failed::Refused(error) | Failed::Internal(error) => error,
        }
    }
}

impl From<Unanswered> for Failed {
    fn from(unanswered: Unanswered) -> Self {
        match &unanswered {
            Unanswered::Settings(_) => Failed::Call { stage: Stage::Settings, why: unanswered.to_string() },
            Unanswered::Call(why) => {
                Failed::Call { stage: Stage::Asked(None), why: format!("failed to call webhook: {why}") }
            }
        }
    }
}

/// Asks a webhook about an object in the version that it wants; warnings and notes are passed on.
///
/// # Errors
/// A call that failed, or a refusal.
pub async fn ask(
    clients: &Clients,
    hook: &Webhook,
    attributes: &Attributes<'_>,
    matched: &Matched,
    object: Option<&Value>,
    mutating: bool,
) -> Result<Verdict, Failed> {
    let call = attributes.call;
    if call.dry_run && !hook.dry_run {
        let why = format!("admission webhook {} does not support dry run", quote(&hook.name));
        return Err(Failed::Internal(ApiError::bad_request(why)));
    }
    let Some(version) = hook.version else {
        let why = "could not create admission objects: webhook does not accept known AdmissionReview versions (v1, \
                   v1beta1)";
        return Err(Failed::Call { stage: Stage::Question, why: why.into() });
    };
    let uid = crate::random::uuid();
    let resource = matched.resource(attributes);
    let old = old(attributes, resource).map_err(Failed::Internal)?;
    let body = review::request(version, &uid, attributes, resource, object, old);
    let asker = if mutating { Asker::Mutating } else { Asker::Validating };
    let answer = clients.post(call.server, asker, &hook.endpoint, body, hook.timeout).await?;
    let review = answer.review(Expected::admission(version)).map_err(|why| Failed::Call {
        stage: Stage::Asked(answer.error_code()),
        why: format!("failed to call webhook: {why}"),
    })?;
    let verdict = review::verdict(version, &uid, mutating, &review).map_err(|why| Failed::Call {
        stage: Stage::Answer,
        why: format!("received invalid webhook response: {why}"),
    })?;
    for warning in &verdict.warnings {
        crate::warning::add(warning.clone());
    }
    for (key, value) in &verdict.notes {
        let key = format!("{}/{key}", hook.name);
        if is_note(&key) {
            super::super::note(&key, value);
        } else {
            tracing::warn!(webhook = hook.name, key, "a webhook's annotation of the audit event has no valid key");
        }
    }
    if verdict.allowed {
        return Ok(verdict);
    }
    Err(Failed::Refused(review::refusal(&hook.name, &verdict.result)))
}

/// Whether admission may write an annotation of this key into an audit event: its writer's name, `/`, and a name.
fn is_note(key: &str) -> bool {
    key.contains('/') && crate::names::qualified_name(key).is_empty()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_annotation_of_the_audit_event_has_a_qualified_name() {
        assert!(is_note("w.x.io/a") && is_note("w.x.io/A_b.c-d"));
        for bad in ["w.x.io/a b", "w.x.io/", "w.x.io/a/b", "w.x.io/-a", "a"] {
            assert!(!is_note(bad), "{bad}");
        }
    }

    #[test]
    fn every_stage_of_a_call_is_counted_with_its_code() {
        let stage = |stage| Failed::Call { stage, why: String::new() };
        for (failed, outcome) in [
            (stage(Stage::Question), Outcome::Failed(400)),
            (Unanswered::Settings("x".into()).into(), Outcome::Failed(500)),
            (Unanswered::Call("EOF".into()).into(), Outcome::Failed(503)),
            (stage(Stage::Asked(Some(404))), Outcome::Failed(404)),
            (stage(Stage::Answer), Outcome::Failed(503)),
            (Failed::Refused(ApiError::new(403, "", "no")), Outcome::Refused(403)),
            (Failed::Internal(ApiError::bad_request("no dry run")), Outcome::Internal),
        ] {
            assert_eq!(failed.outcome(), outcome, "{failed:?}");
        }
    }

    #[test]
    fn what_was_not_answered_says_how_far_it_came() {
        let why = |unanswered: Unanswered| match unanswered.into() {
            Failed::Call { why, .. } => why,
            other => format!("{other:?}"),
        };
        assert_eq!(why(Unanswered::Settings("no PEM".into())), "could not get REST client: no PEM");
        assert_eq!(why(Unanswered::Call("Post: EOF".into())), "failed to call webhook: Post: EOF");
    }
}
