//! Validating webhooks: all that are about a request are asked at once, and the first that is against it names the
//! answer.

use std::sync::Arc;
use std::time::Instant;

use futures_util::future::join_all;

use super::super::attributes::Attributes;
use super::super::subject::Subject;
use super::call::{self, Failed};
use super::client::Clients;
use super::compiled::{Webhook, shown};
use crate::metrics::{Outcome, Type, apart};
use crate::status::Result;

/// # Errors
/// A webhook's refusal, or that it could not be asked.
pub async fn validate(
    clients: &Clients,
    hooks: &[Arc<Webhook>],
    attributes: &Attributes<'_>,
    subject: &Subject<'_>,
) -> Result<()> {
    if hooks.is_empty() || super::super::matching::is_exempt(attributes) {
        return Ok(());
    }
    let mut calls = Vec::new();
    for (index, hook) in hooks.iter().enumerate() {
        if let Some(matched) = hook.wants(attributes, subject)? {
            // Nobody is asked when one of them cannot be.
            let object = shown(attributes, matched.resource(attributes), subject)?;
            calls.push(async move {
                let since = Instant::now();
                let outcome = call::ask(clients, hook, attributes, &matched, object, false).await;
                let became = outcome.as_ref().err().map_or(Outcome::Allowed, Failed::outcome);
                let operation = attributes.call.operation;
                let took = since.elapsed();
                apart::waited_beside(took);
                clients.counted().called(&hook.name, Type::Validate, operation, took, became, !hook.fail);
                (index, hook, outcome)
            });
        }
    }
    for (index, hook, outcome) in join_all(calls).await {
        match outcome {
            Ok(_) => {}
            Err(Failed::Call { why, .. }) if !hook.fail => {
                tracing::warn!(webhook = %hook.name, configuration = %hook.configuration, why, "a webhook failed, open");
                let key = format!("failed-open.validating.webhook.admission.k8s.io/round_0_index_{index}");
                super::super::note(&key, &hook.name);
            }
            Err(failed) => return Err(failed.into_error(hook)),
        }
    }
    Ok(())
}
