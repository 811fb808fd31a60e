//! What a request to the API can end in.

use proto::apimachinery::pkg::apis::meta::v1::Status;

/// Why a request failed. `Status` is the server's own word; the others mean that no usable answer came.
#[derive(Debug, thiserror::Error)]
pub enum ApiError {
    /// The server refused; see [`ApiError::code`] and [`ApiError::reason`]. Retrying helps only where
    /// [`ApiError::is_retriable`] says so.
    #[error("{}", .0.message)]
    Status(Box<Status>),
    /// No connection could be made; a retry may help.
    #[error("cannot reach the API server: {0}")]
    Connect(String),
    /// The connection broke before the answer was complete. A write may or may not have happened.
    #[error("the connection to the API server broke: {0}")]
    Broken(String),
    #[error("the API server did not answer within {0:?}")]
    Timeout(std::time::Duration),
    /// The answer is not what the API serves for this request; a retry does not help.
    #[error("unusable answer from the API server: {0}")]
    Malformed(String),
    /// The credentials cannot be read (token file, key file); a retry helps once they are mended.
    #[error("cannot log in to the API server: {0}")]
    Credentials(String),
    /// The agent runs without an API server.
    #[error("no API server is configured")]
    Standalone,
}

impl ApiError {
    /// The HTTP code, 0 when the server did not answer.
    pub fn code(&self) -> i32 {
        match self {
            ApiError::Status(status) => status.code,
            _ => 0,
        }
    }

    /// The `StatusReason`, such as `NotFound`; empty when the server did not answer.
    pub fn reason(&self) -> &str {
        match self {
            ApiError::Status(status) => &status.reason,
            _ => "",
        }
    }

    pub fn is_not_found(&self) -> bool {
        self.code() == 404
    }

    /// The object exists already (409 `AlreadyExists`).
    pub fn is_already_exists(&self) -> bool {
        self.reason() == "AlreadyExists"
    }

    /// The object changed meanwhile, or a precondition does not hold (409 `Conflict`).
    pub fn is_conflict(&self) -> bool {
        self.reason() == "Conflict"
    }

    pub fn is_forbidden(&self) -> bool {
        self.code() == 403
    }

    /// The version asked for is gone: list again (410).
    pub fn is_expired(&self) -> bool {
        self.code() == 410
    }

    /// Whether the same request may succeed later: no answer, overload, or a server fault.
    pub fn is_retriable(&self) -> bool {
        match self {
            ApiError::Status(status) => status.code == 429 || status.code >= 500,
            ApiError::Malformed(_) | ApiError::Standalone => false,
            _ => true,
        }
    }

    /// How long the server asks to wait before a retry.
    pub fn retry_after(&self) -> Option<std::time::Duration> {
        let ApiError::Status(status) = self else { return None };
        let seconds = status.details.as_ref()?.retry_after_seconds;
        u64::try_from(seconds).ok().filter(|s| *s > 0).map(std::time::Duration::from_secs)
    }

    /// An answer without a readable Status body.
    pub(super) fn from_code(code: u16, message: String) -> ApiError {
        let reason = match code {
            400 => "BadRequest",
            401 => "Unauthorized",
            403 => "Forbidden",
            404 => "NotFound",
            405 => "MethodNotAllowed",
            409 => "Conflict",
            410 => "Expired",
            422 => "Invalid",
            429 => "TooManyRequests",
            500 => "InternalError",
            503 => "ServiceUnavailable",
            504 => "Timeout",
            _ => "Unknown",
        };
        ApiError::Status(Box::new(Status {
            status: "Failure".into(),
            message,
            reason: reason.into(),
            code: i32::from(code),
            ..Status::default()
        }))
    }
}
