//! `ListOptions` of a request, checked as upstream does.

use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde_json::{Value, json};

use crate::request::Query;
use crate::status::{ApiError, Cause, Details, Result, quote};
use crate::store::{Key, Store};

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Match {
    #[default]
    Unset,
    NotOlderThan,
    Exact,
}

#[derive(Debug, Clone, Default, PartialEq)]
pub struct ListOptions {
    /// None when the parameter is empty or missing.
    pub revision: Option<u64>,
    pub revision_match: Match,
    pub limit: usize,
    pub continue_token: String,
    pub timeout: Option<Duration>,
    pub bookmarks: bool,
    pub send_initial_events: Option<bool>,
}

/// More seconds than this are as good as none: a century, which any clock can count.
const LONGEST_TIMEOUT: u64 = 100 * 366 * 24 * 3600;

/// How long a read waits for a version that the server has not reached yet, as upstream's watch cache.
pub const VERSION_PATIENCE: Duration = Duration::from_secs(3);

impl ListOptions {
    /// Reads and checks the options of a list, or of a watch.
    ///
    /// # Errors
    /// 400 for values that do not parse, 422 for combinations that are not allowed.
    pub fn parse(query: &Query, is_watch: bool) -> Result<Self> {
        let text = |name: &str| query.get(name).unwrap_or_default();
        let mut options = ListOptions {
            continue_token: text("continue").into(),
            bookmarks: query.flag("allowWatchBookmarks"),
            ..ListOptions::default()
        };
        if let Some(limit) = query.get("limit") {
            let limit: i64 = integer(limit)?;
            options.limit = usize::try_from(limit).unwrap_or(0);
        }
        if let Some(seconds) = query.get("timeoutSeconds") {
            let seconds: i64 = integer(seconds)?;
            // A time before now is over at once; none at all is the server's to choose.
            let bounded = u64::try_from(seconds).unwrap_or(0).min(LONGEST_TIMEOUT);
            options.timeout = (seconds != 0).then(|| Duration::from_secs(bounded));
        }
        if query.get("sendInitialEvents").is_some() {
            options.send_initial_events = Some(query.flag("sendInitialEvents"));
        }
        let matching = text("resourceVersionMatch");
        options.revision_match = match matching {
            "NotOlderThan" => Match::NotOlderThan,
            "Exact" => Match::Exact,
            _ => Match::Unset,
        };
        let version = text("resourceVersion");
        let complaints = if is_watch { options.check_watch(matching) } else { options.check_list(version, matching) };
        if !complaints.is_empty() {
            return Err(invalid(complaints));
        }
        options.revision = parse_version(version, is_watch)?;
        Ok(options)
    }

    /// Complaints about the options of a watch, in upstream's order.
    fn check_watch(&self, matching: &str) -> Vec<Cause> {
        let mut out = Vec::new();
        if self.send_initial_events.is_some() && self.revision_match != Match::NotOlderThan {
            out.push(forbidden(MATCH, "sendInitialEvents requires setting resourceVersionMatch to NotOlderThan"));
        }
        if !matching.is_empty() {
            if self.send_initial_events.is_none() {
                out.push(forbidden(
                    MATCH,
                    "resourceVersionMatch is forbidden for watch unless sendInitialEvents is provided",
                ));
            }
            if self.revision_match != Match::NotOlderThan {
                out.push(unsupported_match(matching, "\"NotOlderThan\""));
            }
        }
        if !self.continue_token.is_empty() {
            out.push(forbidden(MATCH, "resourceVersionMatch is forbidden when continue is provided"));
        }
        out
    }

    /// Complaints about the options of a list, in upstream's order.
    fn check_list(&self, version: &str, matching: &str) -> Vec<Cause> {
        let mut out = Vec::new();
        if !matching.is_empty() {
            if version.is_empty() {
                out.push(forbidden(MATCH, "resourceVersionMatch is forbidden unless resourceVersion is provided"));
            }
            if !self.continue_token.is_empty() {
                out.push(forbidden(MATCH, "resourceVersionMatch is forbidden when continue is provided"));
            }
            match self.revision_match {
                Match::Unset => out.push(unsupported_match(matching, "\"Exact\", \"NotOlderThan\", \"\"")),
                Match::Exact if version == "0" => {
                    out.push(forbidden(MATCH, "resourceVersionMatch \"exact\" is forbidden for resourceVersion \"0\""))
                }
                _ => {}
            }
        }
        if self.send_initial_events.is_some() {
            out.push(forbidden("sendInitialEvents", "sendInitialEvents is forbidden for list"));
        }
        out
    }
}

const MATCH: &str = "resourceVersionMatch";

fn forbidden(field: &str, text: &str) -> Cause {
    complaint("FieldValueForbidden", field, format!("Forbidden: {text}"))
}

fn unsupported_match(value: &str, supported: &str) -> Cause {
    let text = format!("Unsupported value: {}: supported values: {supported}", quote(value));
    complaint("FieldValueNotSupported", MATCH, text)
}

/// A number as Go's `strconv.ParseInt` reads it.
fn integer(text: &str) -> Result<i64> {
    use std::num::IntErrorKind::{NegOverflow, PosOverflow};
    text.parse().map_err(|error: std::num::ParseIntError| {
        let why = match error.kind() {
            PosOverflow | NegOverflow => "value out of range",
            _ => "invalid syntax",
        };
        ApiError::bad_request(format!("strconv.ParseInt: parsing {}: {why}", quote(text)))
    })
}

fn complaint(reason: &str, field: &str, message: String) -> Cause {
    Cause { reason: reason.into(), message, field: field.into() }
}

fn invalid(causes: Vec<Cause>) -> ApiError {
    let texts: Vec<String> = causes.iter().map(|c| format!("{}: {}", c.field, c.message)).collect();
    let all = if texts.len() == 1 { texts[0].clone() } else { format!("[{}]", texts.join(", ")) };
    ApiError::new(422, "Invalid", format!("ListOptions.meta.k8s.io \"\" is invalid: {all}")).with_details(Details {
        group: "meta.k8s.io".into(),
        kind: "ListOptions".into(),
        causes,
        ..Details::default()
    })
}

/// A version parameter; None for empty. Text that is no number is a 400 on lists and, as upstream has it, a 500 without
/// a reason on gets and watches.
pub fn parse_version(text: &str, plain_error: bool) -> Result<Option<u64>> {
    if text.is_empty() {
        return Ok(None);
    }
    let why = match text.parse::<u64>() {
        Ok(version) => return Ok(Some(version)),
        Err(error) if *error.kind() == std::num::IntErrorKind::PosOverflow => "value out of range",
        Err(_) => "invalid syntax",
    };
    let parse = format!("strconv.ParseUint: parsing {}: {why}", quote(text));
    let field = format!("resourceVersion: Invalid value: {}: {parse}", quote(text));
    Err(if plain_error {
        ApiError::new(500, "", field)
    } else {
        ApiError::bad_request(format!("invalid resource version: {field}"))
    })
}

/// Waits until the store has reached a version.
///
/// # Errors
/// 504 when it does not within [`VERSION_PATIENCE`].
pub async fn reach(store: &Store, version: u64) -> Result<()> {
    if store.revision() >= version || store.wait_for(version, VERSION_PATIENCE).await {
        return Ok(());
    }
    Err(too_large(version, store.revision()))
}

/// A version of the future.
pub fn too_large(version: u64, current: u64) -> ApiError {
    ApiError::new(504, "Timeout", format!("Timeout: Too large resource version: {version}, current: {current}"))
        .with_details(Details {
            causes: vec![Cause {
                reason: "ResourceVersionTooLarge".into(),
                message: "Too large resource version".into(),
                ..Cause::default()
            }],
            retry_after_seconds: 1,
            ..Details::default()
        })
}

/// Where the next page starts: after a key, at a revision (None: at the newest).
#[derive(Debug, Clone, PartialEq)]
pub struct Token {
    pub revision: Option<u64>,
    pub after: Key,
}

impl Token {
    pub fn encode(&self) -> String {
        let rv = self.revision.map_or(Value::from(-1), Value::from);
        let key = if self.after.namespace.is_empty() {
            self.after.name.to_string()
        } else {
            format!("{}/{}", self.after.namespace, self.after.name)
        };
        URL_SAFE_NO_PAD.encode(json!({"v": "meta.k8s.io/v1", "rv": rv, "start": key + "\0"}).to_string())
    }

    /// # Errors
    /// 400 for a token that is not ours. `base` is the namespace of the list.
    pub fn decode(text: &str, base: &str, namespaced: bool) -> Result<Self> {
        let bad = |why: String| ApiError::bad_request(format!("invalid continue token: {why}"));
        let bytes = proto::go_base64::url_unpadded(text)
            .map_err(|at| bad(format!("continue key is not valid: illegal base64 data at input byte {at}")))?;
        let value = proto::json::parse(&bytes).map_err(|e| bad(format!("continue key is not valid: {e}")))?.value;
        if value["v"] != "meta.k8s.io/v1" {
            return Err(bad(format!(
                "continue key is not valid: server does not recognize this encoded version {}",
                value["v"].as_str().unwrap_or_default()
            )));
        }
        let revision = value["rv"].as_i64().unwrap_or(0);
        if revision == 0 {
            return Err(bad(
                "continue key is not valid: incorrect encoded start resourceVersion (version meta.k8s.io/v1)".into(),
            ));
        }
        let start = value["start"].as_str().unwrap_or_default();
        if start.is_empty() {
            return Err(bad("continue key is not valid: encoded start key empty (version meta.k8s.io/v1)".into()));
        }
        // A key below the collection, with or without the slash before it; anything that would lead out of it is refused.
        let inside = start.strip_prefix('/').unwrap_or(start).trim_end_matches('\0');
        if inside.split('/').any(|part| matches!(part, "" | "." | "..")) {
            return Err(bad(format!("continue key is not valid: {start}")));
        }
        let start = inside;
        let after = match start.split_once('/') {
            Some((namespace, name)) => Key::new(namespace, name),
            None if namespaced => Key::new(base, start),
            None => Key::new("", start),
        };
        Ok(Token { revision: u64::try_from(revision).ok(), after })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A watch for longer than any clock counts ended in a panic.
    #[test]
    fn a_time_without_end_is_one_that_can_be_waited_for() {
        let query = Query::parse("timeoutSeconds=9223372036854775807");
        let options = ListOptions::parse(&query, true).expect("it is a number");
        let ends = options.timeout.and_then(|time| std::time::Instant::now().checked_add(time));
        assert!(ends.is_some());
    }
}
