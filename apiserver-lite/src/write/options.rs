//! Options that every write takes: dry run, field manager, field validation.

use serde_json::Value;
use tokio::time::Instant;

use crate::request::User;
use crate::resource::Resource;
use crate::server::Request;
use crate::status::{ApiError, Cause, Details, Result, is_printed, quote};

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum FieldValidation {
    Ignore,
    #[default]
    Warn,
    Strict,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct WriteOptions {
    pub dry_run: bool,
    /// Name that managed fields are kept under.
    pub manager: String,
    pub validation: FieldValidation,
    pub force: bool,
    /// Who asks; without a name for the server's own writes.
    pub user: User,
    /// `create`, `update` or `patch`; empty for the server's own writes.
    pub verb: String,
    /// When the answer has to be there; None for the server's own writes.
    pub until: Option<Instant>,
    /// Field manager and validation, as the client said them.
    pub said: Vec<(&'static str, Value)>,
}

impl WriteOptions {
    /// Reads the options of a request.
    ///
    /// # Errors
    /// 422 for values that are not allowed.
    pub fn parse(request: &Request, _resource: &Resource) -> Result<Self> {
        let query = &request.query;
        let kind = match request.info.verb.as_str() {
            "create" => "CreateOptions",
            "update" => "UpdateOptions",
            "patch" => "PatchOptions",
            _ => "DeleteOptions",
        };
        let mut causes = Vec::new();
        let manager = query.get("fieldManager").unwrap_or_default();
        if kind == "PatchOptions" {
            let applies = request.content_type().split(';').next().is_some_and(|m| m.trim() == super::applied::MEDIA);
            if applies && manager.is_empty() {
                causes.push(Cause {
                    reason: "FieldValueRequired".into(),
                    message: "Required value: is required for apply patch".into(),
                    field: "fieldManager".into(),
                });
            } else if !applies && query.get("force").is_some() {
                causes.push(Cause {
                    reason: "FieldValueForbidden".into(),
                    message: "Forbidden: may not be specified for non-apply patch".into(),
                    field: "force".into(),
                });
            }
        }
        causes.extend(check_dry_run(query.all("dryRun")));
        let dry_run = query.get("dryRun").is_some();
        if manager.len() > MAX_MANAGER {
            causes.push(Cause {
                reason: "FieldValueTooLong".into(),
                message: "Too long: may not be more than 128 bytes".into(),
                field: "fieldManager".into(),
            });
        }
        for (at, character) in manager.char_indices().filter(|(_, c)| !is_printed(*c)) {
            let code = u32::from(character);
            let quoted = quote(manager);
            causes.push(Cause {
                reason: "FieldValueInvalid".into(),
                message: format!("Invalid value: {quoted}: invalid character U+{code:04X} (at position {at})"),
                field: "fieldManager".into(),
            });
        }
        let validation = match query.get("fieldValidation").unwrap_or_default() {
            "" | "Warn" => FieldValidation::Warn,
            "Strict" => FieldValidation::Strict,
            "Ignore" => FieldValidation::Ignore,
            other => {
                causes.push(Cause {
                    reason: "FieldValueNotSupported".into(),
                    message: format!(
                        "Unsupported value: {}: supported values: \"\", \"Ignore\", \"Strict\", \"Warn\"",
                        quote(other)
                    ),
                    field: "fieldValidation".into(),
                });
                FieldValidation::Warn
            }
        };
        if !causes.is_empty() {
            return Err(invalid("meta.k8s.io", kind, "", causes));
        }
        let manager = if manager.is_empty() { default_manager(request.user_agent()) } else { manager.to_owned() };
        let said = ["fieldManager", "fieldValidation"].into_iter();
        let said = said.filter_map(|key| query.get(key).filter(|text| !text.is_empty()).map(|text| (key, text.into())));
        let said = said.collect();
        let (user, verb) = (request.user.clone(), request.info.verb.clone());
        let (force, until) = (query.flag("force"), request.deadline());
        Ok(WriteOptions { dry_run, manager, validation, force, user, verb, until, said })
    }
}

/// `dryRun` may only say `All`.
pub(super) fn check_dry_run<'a>(said: impl Iterator<Item = &'a str>) -> Option<Cause> {
    let said: Vec<&str> = said.collect();
    if said.iter().all(|d| *d == "All") {
        return None;
    }
    let shown: Vec<String> = said.iter().map(|d| quote(d)).collect();
    Some(Cause {
        reason: "FieldValueNotSupported".into(),
        message: format!("Unsupported value: [{}]: supported values: \"All\"", shown.join(",")),
        field: "dryRun".into(),
    })
}

/// Bytes that a manager's name may have.
const MAX_MANAGER: usize = 128;

/// The program's name from its user agent, as far as it prints and fits.
fn default_manager(agent: &str) -> String {
    let mut name = String::new();
    for character in agent.split('/').next().unwrap_or_default().chars().filter(|c| is_printed(*c)) {
        if name.len() + character.len_utf8() > MAX_MANAGER {
            break;
        }
        name.push(character);
    }
    name
}

/// A 422 with its causes; the message lists them as upstream does.
pub fn invalid(group: &str, kind: &str, name: &str, causes: Vec<Cause>) -> ApiError {
    let text = |cause: &Cause| match &*cause.field {
        "" => cause.message.clone(),
        field => format!("{field}: {}", cause.message),
    };
    let all = crate::status::aggregate(&causes.iter().map(text).collect::<Vec<_>>());
    ApiError::new(
        422,
        "Invalid",
        format!("{} {} is invalid: {all}", crate::status::qualified(group, kind), quote(name)),
    )
    .with_details(Details {
        name: name.into(),
        group: group.into(),
        kind: kind.into(),
        causes,
        ..Details::default()
    })
}
