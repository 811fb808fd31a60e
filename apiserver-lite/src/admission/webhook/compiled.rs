//! A webhook, ready to be asked.

use std::time::Duration;

use serde_json::Value;

use super::super::attributes::Attributes;
use super::super::matching::{Constraints, Matched};
use super::super::policy::{Conditions, Environment, Facts, Seen};
use super::super::subject::Subject;
use super::client::Endpoint;
use crate::resource::Resource;
use crate::status::{ApiError, Result};

/// Seconds that a webhook has when it does not say.
const TIMEOUT: u64 = 10;

pub struct Webhook {
    /// Tells webhooks apart, also those of one name.
    pub id: String,
    pub name: String,
    pub configuration: String,
    /// Version of its configuration.
    pub revision: u64,
    constraints: Constraints,
    conditions: Conditions,
    /// A call that fails counts against the request.
    pub fail: bool,
    pub timeout: Duration,
    /// May be asked about a dry run.
    pub dry_run: bool,
    /// Wants to see what others made of the object after it.
    pub again: bool,
    /// Version of `AdmissionReview` to send; None for none that we know.
    pub version: Option<&'static str>,
    pub endpoint: Endpoint,
}

impl Webhook {
    /// The webhooks of a configuration.
    pub fn all(configuration: &Value, revision: u64) -> Vec<Self> {
        let of = configuration["metadata"]["name"].as_str().unwrap_or_default();
        let hooks = configuration["webhooks"].as_array().into_iter().flatten();
        hooks.enumerate().map(|(index, hook)| Self::new(hook, of, index, revision)).collect()
    }

    fn new(hook: &Value, configuration: &str, index: usize, revision: u64) -> Self {
        let name = hook["name"].as_str().unwrap_or_default().to_owned();
        let environment = Environment { authorizer: true, ..Environment::default() };
        let mut versions = hook["admissionReviewVersions"].as_array().into_iter().flatten();
        Webhook {
            id: format!("{configuration}/{name}/{index}"),
            name,
            configuration: configuration.into(),
            revision,
            constraints: Constraints::of_webhook(hook),
            conditions: Conditions::compile(&hook["matchConditions"], &environment),
            fail: hook["failurePolicy"] != "Ignore",
            timeout: Duration::from_secs(hook["timeoutSeconds"].as_u64().unwrap_or(TIMEOUT)),
            dry_run: matches!(hook["sideEffects"].as_str(), Some("None" | "NoneOnDryRun")),
            again: hook["reinvocationPolicy"] == "IfNeeded",
            version: versions.find_map(|version| match version.as_str() {
                Some("v1") => Some("v1"),
                Some("v1beta1") => Some("v1beta1"),
                _ => None,
            }),
            endpoint: Endpoint::new(&hook["clientConfig"]),
        }
    }

    /// Whether it has to be asked, and in which version; None when it has not.
    ///
    /// # Errors
    /// 404 for a namespace that does not exist, 403 for a condition that cannot be evaluated, 500 for an object that
    /// cannot be converted for one.
    pub fn wants(&self, attributes: &Attributes<'_>, subject: &Subject<'_>) -> Result<Option<Matched>> {
        let Some(matched) = self.constraints.matches(attributes, subject.value())? else { return Ok(None) };
        if self.conditions.0.is_empty() {
            return Ok(Some(matched));
        }
        let resource = matched.resource(attributes);
        let uses = |name: &str| self.conditions.use_name(name);
        let request = uses("request").then(|| attributes.request(resource));
        let object = if uses("object") { shown(attributes, resource, subject)? } else { None };
        let seen = Seen {
            object,
            old: if uses("oldObject") { old(attributes, resource)? } else { None },
            request: request.as_ref(),
            ..Seen::default()
        };
        let facts = Facts::new(attributes, resource, &[], &seen);
        let held = self.conditions.hold(&facts, self.fail);
        drop(facts);
        match held {
            Ok(true) => Ok(Some(matched.clone())),
            Ok(false) => Ok(None),
            Err(why) => {
                let call = attributes.call;
                Err(ApiError::forbidden(&call.resource.group, &call.resource.plural, call.name, why))
            }
        }
    }
}

/// The object as a webhook is shown it.
///
/// # Errors
/// 500 when it cannot be converted, whatever the failure policy is.
pub fn shown<'s>(
    attributes: &Attributes<'_>,
    resource: &Resource,
    subject: &'s Subject<'_>,
) -> Result<Option<&'s Value>> {
    subject.shown(attributes, resource).map_err(unconverted)
}

/// The object before as a webhook is shown it.
///
/// # Errors
/// As [`shown`].
pub fn old<'s>(attributes: &'s Attributes<'_>, resource: &Resource) -> Result<Option<&'s Value>> {
    attributes.old(resource).map_err(unconverted)
}

fn unconverted(error: ApiError) -> ApiError {
    ApiError::internal(&error.status().message)
}
