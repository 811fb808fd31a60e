//! One call of a webhook: from an object to a verdict.

use serde_json::Value;

use super::super::attributes::Attributes;
use super::super::matching::Matched;
use super::answer::Expected;
use super::client::Clients;
use super::compiled::Webhook;
use super::review::{self, Verdict};
use crate::metrics::Outcome;
use crate::status::{ApiError, quote};

/// Why a webhook did not let a request pass.
pub enum Failed {
    /// The call came to nothing; the webhook's failure policy says what that means.
    Call(String),
    /// The answer to the client.
    Refused(ApiError),
}

impl Failed {
    /// What the metrics say of it, with the codes that upstream gives each stage of a call.
    pub fn outcome(&self) -> Outcome {
        match self {
            Failed::Call(why) if why.starts_with("could not get REST client") => Outcome::Failed(500),
            Failed::Call(why) if why.starts_with("could not create admission objects") => Outcome::Failed(400),
            Failed::Call(why) if why.starts_with("received undecodable patch") => Outcome::Internal,
            Failed::Call(_) => Outcome::Failed(503),
            Failed::Refused(error) => Outcome::Refused(error.code()),
        }
    }

    /// What the client hears of a call that came to nothing.
    pub fn into_error(self, hook: &Webhook) -> ApiError {
        match self {
            Failed::Call(why) => ApiError::internal(format!("failed calling webhook {}: {why}", quote(&hook.name))),
            Failed::Refused(error) => error,
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
        return Err(Failed::Refused(ApiError::bad_request(why)));
    }
    let Some(version) = hook.version else {
        let why = "could not create admission objects: webhook does not accept known AdmissionReview versions (v1, \
                   v1beta1)";
        return Err(Failed::Call(why.into()));
    };
    let uid = crate::random::uuid();
    let resource = matched.resource(attributes);
    let old = call.old.map(|value| attributes.spelled_out(value, resource));
    let body = review::request(version, &uid, attributes, resource, object, old.as_ref());
    let answer = clients.post(call.server, &hook.endpoint, body, hook.timeout).await;
    let answer = answer.map_err(|why| match why.starts_with("could not get REST client") {
        true => Failed::Call(why),
        false => Failed::Call(format!("failed to call webhook: {why}")),
    })?;
    let review = answer.review(Expected::admission(version));
    let review = review.map_err(|why| Failed::Call(format!("failed to call webhook: {why}")))?;
    let verdict = review::verdict(version, &uid, mutating, &review);
    let verdict = verdict.map_err(|why| Failed::Call(format!("received invalid webhook response: {why}")))?;
    for warning in &verdict.warnings {
        crate::warning::add(warning.clone());
    }
    for (key, value) in &verdict.notes {
        super::super::note(&format!("{}/{key}", hook.name), value);
    }
    if verdict.allowed {
        return Ok(verdict);
    }
    Err(Failed::Refused(review::refusal(&hook.name, &verdict.result)))
}
