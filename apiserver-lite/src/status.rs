//! Errors as the API shows them: every failure of a request ends here as a `metav1.Status`.
//!
//! The wording follows `k8s.io/apimachinery/pkg/api/errors`, because clients match on code, reason and text.

use std::collections::HashSet;

use serde_json::{Map, Value, json};

pub type Result<T, E = ApiError> = std::result::Result<T, E>;

/// A failed request: an HTTP code and the `Status` that explains it. Boxed, so that `Result` stays one word wide.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{}", .0.message)]
pub struct ApiError(Box<Status>);

#[derive(Debug, Clone, Default, PartialEq)]
pub struct Status {
    /// HTTP status code.
    pub code: u16,
    /// Machine readable word such as `NotFound`; empty for none.
    pub reason: &'static str,
    /// The word of a webhook where it is none of ours; empty else.
    pub foreign_reason: Box<str>,
    pub message: String,
    pub details: Option<Details>,
    /// Texts for `Warning` headers.
    pub warnings: Vec<String>,
    /// `metadata.continue`: the way on after a token that is too old.
    pub continue_token: String,
}

#[derive(Debug, Clone, Default, PartialEq)]
pub struct Details {
    pub name: String,
    pub group: String,
    /// The resource (`pods`) for most errors, the Kind (`Pod`) for Invalid.
    pub kind: String,
    pub uid: String,
    pub causes: Vec<Cause>,
    /// Zero for none; also sent as the `Retry-After` header.
    pub retry_after_seconds: u32,
}

#[derive(Debug, Clone, Default, PartialEq)]
pub struct Cause {
    pub reason: String,
    pub message: String,
    pub field: String,
}

impl ApiError {
    pub fn new(code: u16, reason: &'static str, message: impl Into<String>) -> Self {
        ApiError(Box::new(Status {
            code,
            reason,
            foreign_reason: Box::default(),
            message: message.into(),
            details: None,
            continue_token: String::new(),
            warnings: Vec::new(),
        }))
    }

    #[must_use]
    pub fn with_details(mut self, details: Details) -> Self {
        self.0.details = Some(details);
        self
    }

    #[must_use]
    pub fn with_continue(mut self, token: String) -> Self {
        self.0.continue_token = token;
        self
    }

    /// Adds a cause to the details.
    #[must_use]
    pub fn with_cause(mut self, reason: &str, message: &str, field: &str) -> Self {
        let cause = Cause { reason: reason.into(), message: message.into(), field: field.into() };
        self.0.details.get_or_insert_default().causes.push(cause);
        self
    }

    /// The same under a reason that somebody else chose.
    #[must_use]
    pub fn with_reason(mut self, reason: &str) -> Self {
        self.0.foreign_reason = reason.into();
        self
    }

    /// The same with other words.
    #[must_use]
    pub fn with_message(mut self, message: &str) -> Self {
        message.clone_into(&mut self.0.message);
        self
    }

    /// The same under another code and reason.
    #[must_use]
    pub fn as_kind(mut self, code: u16, reason: &'static str) -> Self {
        (self.0.code, self.0.reason) = (code, reason);
        self
    }

    /// Sends a `Warning` header along.
    pub fn warn(&mut self, text: String) {
        self.0.warnings.push(text);
    }

    /// Puts text before the message.
    pub fn prefix(&mut self, text: &str) {
        self.0.message.insert_str(0, text);
    }

    pub fn status(&self) -> &Status {
        &self.0
    }

    pub fn code(&self) -> u16 {
        self.0.code
    }

    pub fn reason(&self) -> &'static str {
        self.0.reason
    }

    pub fn is_not_found(&self) -> bool {
        self.0.reason == "NotFound"
    }

    pub fn is_conflict(&self) -> bool {
        self.0.reason == "Conflict"
    }

    pub fn is_already_exists(&self) -> bool {
        self.0.reason == "AlreadyExists"
    }

    pub fn bad_request(message: impl Into<String>) -> Self {
        Self::new(400, "BadRequest", message)
    }

    pub fn internal(message: impl std::fmt::Display) -> Self {
        let text = message.to_string();
        Self::new(500, "InternalError", format!("Internal error occurred: {text}"))
            .with_details(Details { causes: vec![Cause { message: text, ..Cause::default() }], ..Details::default() })
    }

    pub fn not_found(group: &str, resource: &str, name: &str) -> Self {
        Self::new(404, "NotFound", format!("{} {} not found", qualified(group, resource), quote(name)))
            .with_details(named(group, resource, name))
    }

    /// Nothing is stored under a name that a URL has: 404, or 400 for a name that nothing can be stored under.
    pub fn missing(group: &str, resource: &str, name: &str) -> Self {
        Self::no_key(name).err().unwrap_or_else(|| Self::not_found(group, resource, name))
    }

    /// A name becomes a part of the key that an object is stored under, whatever kind it is of.
    ///
    /// # Errors
    /// 400 for one that cannot.
    pub fn no_key(name: &str) -> Result<()> {
        if name.is_empty() {
            return Err(Self::bad_request("Name parameter required."));
        }
        match crate::names::path_segment(name) {
            why if why.is_empty() => Ok(()),
            why => Err(Self::bad_request(format!("Name parameter invalid: {}: {}", quote(name), why.join(";")))),
        }
    }

    pub fn already_exists(group: &str, resource: &str, name: &str) -> Self {
        Self::new(409, "AlreadyExists", format!("{} {} already exists", qualified(group, resource), quote(name)))
            .with_details(named(group, resource, name))
    }

    pub fn conflict(group: &str, resource: &str, name: &str, why: impl std::fmt::Display) -> Self {
        let resource_name = qualified(group, resource);
        Self::new(409, "Conflict", format!("Operation cannot be fulfilled on {resource_name} {}: {why}", quote(name)))
            .with_details(named(group, resource, name))
    }

    /// `why` as RBAC, NodeRestriction or an admission plugin words it.
    pub fn forbidden(group: &str, resource: &str, name: &str, why: impl std::fmt::Display) -> Self {
        let resource_name = qualified(group, resource);
        let message = match (resource.is_empty(), name.is_empty()) {
            (true, _) => format!("forbidden: {why}"),
            (false, true) => format!("{resource_name} is forbidden: {why}"),
            (false, false) => format!("{resource_name} {} is forbidden: {why}", quote(name)),
        };
        Self::new(403, "Forbidden", message).with_details(named(group, resource, name))
    }

    pub fn unauthorized() -> Self {
        Self::new(401, "Unauthorized", "Unauthorized")
    }

    pub fn method_not_supported(group: &str, resource: &str, verb: &str) -> Self {
        Self::new(
            405,
            "MethodNotAllowed",
            format!("{verb} is not supported on resources of kind \"{}\"", qualified(group, resource)),
        )
        .with_details(named(group, resource, ""))
    }

    pub fn too_many_requests(message: impl Into<String>, retry_after_seconds: u32) -> Self {
        Self::new(429, "TooManyRequests", message).with_details(Details { retry_after_seconds, ..Details::default() })
    }

    /// A version older than the history kept.
    pub fn expired(message: impl Into<String>) -> Self {
        Self::new(410, "Expired", message)
    }

    pub fn service_unavailable(message: impl Into<String>) -> Self {
        Self::new(503, "ServiceUnavailable", message)
    }

    /// What another server's bare status code means to our client, in client-go's words.
    pub fn from_other_server(code: u16, group: &str, resource: &str, name: &str, said: &str) -> Self {
        let (reason, text) = Self::words_of_other_server(code, said);
        let message = format!("{text} ( {} {name})", qualified(group, resource));
        let details =
            Details { name: name.to_owned(), group: group.to_owned(), kind: resource.to_owned(), ..Details::default() };
        Self::new(code, reason, message).with_details(details)
    }

    /// Reason and words that client-go has for a bare status code; `said` is the text of the answer, or `unknown`.
    pub fn words_of_other_server(code: u16, said: &str) -> (&'static str, String) {
        match code {
            400 => ("BadRequest", "the server rejected our request for an unknown reason".to_owned()),
            422 => ("Invalid", "the server rejected our request due to an error in our request".to_owned()),
            401 => ("Unauthorized", "the server has asked for the client to provide credentials".to_owned()),
            403 => ("Forbidden", said.to_owned()),
            404 => ("NotFound", "the server could not find the requested resource".to_owned()),
            405 => ("MethodNotAllowed", "the server does not allow this method on the requested resource".to_owned()),
            406 if said.is_empty() || said == "unknown" => (
                "NotAcceptable",
                "the server was unable to respond with a content type that the client supports".to_owned(),
            ),
            406 => ("NotAcceptable", said.to_owned()),
            415 => ("UnsupportedMediaType", said.to_owned()),
            409 => ("Conflict", "the server reported a conflict".to_owned()),
            429 => (
                "TooManyRequests",
                "the server has received too many requests and has asked us to try again later".to_owned(),
            ),
            503 => ("ServiceUnavailable", "the server is currently unable to handle the request".to_owned()),
            504 => (
                "Timeout",
                "the server was unable to return a response in the time allotted, but may still be processing the request"
                    .to_owned(),
            ),
            500.. => (
                "InternalError",
                format!("an error on the server ({}) has prevented the request from succeeding", quote(said)),
            ),
            _ => ("", format!("the server responded with the status code {code} but did not return more information")),
        }
    }

    /// The `Status` object in the order Kubernetes writes its fields.
    pub fn to_value(&self) -> Value {
        let status = &*self.0;
        let mut object = Map::new();
        object.insert("kind".into(), json!("Status"));
        object.insert("apiVersion".into(), json!("v1"));
        let token = Some(&status.continue_token).filter(|t| !t.is_empty());
        object.insert("metadata".into(), token.map_or_else(|| json!({}), |t| json!({"continue": t})));
        object.insert("status".into(), json!("Failure"));
        object.insert("message".into(), json!(status.message));
        let reason = if status.foreign_reason.is_empty() { status.reason } else { &status.foreign_reason };
        if !reason.is_empty() {
            object.insert("reason".into(), json!(reason));
        }
        if let Some(details) = &status.details {
            object.insert("details".into(), details.to_value());
        }
        object.insert("code".into(), json!(status.code));
        Value::Object(object)
    }
}

impl Details {
    /// Reads details that somebody else wrote.
    pub fn from_value(value: &Value) -> Self {
        let text = |value: &Value, name: &str| value[name].as_str().unwrap_or_default().to_owned();
        let causes = value["causes"].as_array().into_iter().flatten();
        Details {
            name: text(value, "name"),
            group: text(value, "group"),
            kind: text(value, "kind"),
            uid: text(value, "uid"),
            causes: causes
                .map(|cause| Cause {
                    reason: text(cause, "reason"),
                    message: text(cause, "message"),
                    field: text(cause, "field"),
                })
                .collect(),
            retry_after_seconds: value["retryAfterSeconds"].as_u64().and_then(|s| u32::try_from(s).ok()).unwrap_or(0),
        }
    }

    fn to_value(&self) -> Value {
        let mut object = Map::new();
        for (name, text) in [("name", &self.name), ("group", &self.group), ("kind", &self.kind), ("uid", &self.uid)] {
            if !text.is_empty() {
                object.insert(name.into(), json!(text));
            }
        }
        if !self.causes.is_empty() {
            object.insert("causes".into(), self.causes.iter().map(Cause::to_value).collect());
        }
        if self.retry_after_seconds > 0 {
            object.insert("retryAfterSeconds".into(), json!(self.retry_after_seconds));
        }
        Value::Object(object)
    }
}

impl Cause {
    fn to_value(&self) -> Value {
        let mut object = Map::new();
        for (name, text) in [("reason", &self.reason), ("message", &self.message), ("field", &self.field)] {
            if !text.is_empty() {
                object.insert(name.into(), json!(text));
            }
        }
        Value::Object(object)
    }
}

/// `pods`, or `deployments.apps` where there is a group.
pub fn qualified(group: &str, resource: &str) -> String {
    if group.is_empty() { resource.to_owned() } else { format!("{resource}.{group}") }
}

/// Text in double quotes as Go's `%q` prints it.
pub fn quote(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + 2);
    out.push('"');
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\u{7}' => out.push_str("\\a"),
            '\u{8}' => out.push_str("\\b"),
            '\u{c}' => out.push_str("\\f"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\u{b}' => out.push_str("\\v"),
            ' '..='~' => out.push(c),
            c if c.is_ascii() => out.push_str(&format!("\\x{:02x}", u32::from(c))),
            c if is_seen(c) => out.push(c),
            c if u32::from(c) < 0x1_0000 => out.push_str(&format!("\\u{:04x}", u32::from(c))),
            c => out.push_str(&format!("\\U{:08x}", u32::from(c))),
        }
    }
    out.push('"');
    out
}

/// Whether Go prints a character as it is (`unicode.IsPrint`): of all spaces, only the usual one.
pub fn is_printed(c: char) -> bool {
    if c.is_ascii() { matches!(c, ' '..='~') } else { is_seen(c) }
}

/// Whether a letter beyond ASCII is printed as it is: neither a space nor something that controls or means nothing.
fn is_seen(c: char) -> bool {
    // Behind another letter, marks that change it are left as they are.
    let mut pair = [b'a'; 5];
    let length = c.encode_utf8(&mut pair[1..]).len();
    std::str::from_utf8(&pair[..=length]).is_ok_and(|pair| pair.escape_debug().count() == 2)
}

fn named(group: &str, resource: &str, name: &str) -> Details {
    Details { name: name.into(), group: group.into(), kind: resource.into(), ..Details::default() }
}

/// Several complaints as Go's aggregate prints them.
pub fn aggregate(complaints: &[String]) -> String {
    let mut seen = HashSet::new();
    let unique: Vec<&str> = complaints.iter().map(String::as_str).filter(|complaint| seen.insert(*complaint)).collect();
    match unique.as_slice() {
        [one] => (*one).to_owned(),
        many => format!("[{}]", many.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_quoted_as_go_quotes_them() {
        for (text, quoted) in [
            ("a\"b\\c", r#""a\"b\\c""#),
            ("\u{7}\u{8}\u{c}\n\r\t\u{b}\u{1}\u{7f}", r#""\a\b\f\n\r\t\v\x01\x7f""#),
            ("\u{85}\u{a0}\u{200b}\u{3000}\u{feff}", r#""\u0085\u00a0\u200b\u3000\ufeff""#),
            ("\u{e9} \u{4e2d} \u{1f600} e\u{301}", "\"\u{e9} \u{4e2d} \u{1f600} e\u{301}\""),
            ("\u{e000}\u{e0001}", r#""\ue000\U000e0001""#),
        ] {
            assert_eq!(quote(text), quoted);
        }
    }

    #[test]
    fn nothing_is_stored_under_a_name_that_no_key_can_have() {
        let told = |name: &str| {
            let error = ApiError::missing("apps", "deployments", name);
            (error.code(), error.status().message.clone())
        };
        assert_eq!(told("a"), (404, "deployments.apps \"a\" not found".to_owned()));
        assert_eq!(told(""), (400, "Name parameter required.".to_owned()));
        assert_eq!(
            told("a%/b"),
            (400, "Name parameter invalid: \"a%/b\": may not contain '/';may not contain '%'".to_owned())
        );
        assert_eq!(told(".."), (400, "Name parameter invalid: \"..\": may not be '..'".to_owned()));
        assert!(ApiError::no_key("A b").is_ok());
    }
}
