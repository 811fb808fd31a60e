//! What went wrong in a call to the runtime.

use std::fmt;

use tonic::{Code, Status};

/// A failed CRI call: caused by the runtime or the host; retry unless `code` says the request itself is wrong.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CriError {
    /// gRPC code.
    pub code: Code,
    /// The runtime's own words, without the code.
    pub message: String,
}

impl CriError {
    pub(super) fn bad_endpoint(endpoint: &str) -> Self {
        let message = match endpoint.split_once("://") {
            Some(("tcp", _)) => "only support unix socket endpoint".to_owned(),
            Some((protocol, _)) if protocol != "unix" => format!("protocol {protocol:?} not supported: {endpoint}"),
            _ => format!("{endpoint:?} is not a unix socket endpoint"),
        };
        Self { code: Code::InvalidArgument, message }
    }

    pub fn internal(message: String) -> Self {
        Self { code: Code::Internal, message }
    }

    pub fn not_found(message: String) -> Self {
        Self { code: Code::NotFound, message }
    }

    /// An answer that lacks what it must hold.
    pub(super) fn incomplete(what: &str) -> Self {
        Self::internal(format!("the runtime's answer lacks {what}"))
    }

    /// Why an image was not pulled, as the kubelet's client says it: the runtime's own words alone where it names no code.
    pub fn of_pull(self) -> String {
        if self.code == Code::Unknown { self.message } else { self.to_string() }
    }

    pub fn is_not_found(&self) -> bool {
        self.code == Code::NotFound
    }

    pub fn is_unimplemented(&self) -> bool {
        self.code == Code::Unimplemented
    }

    pub fn is_unavailable(&self) -> bool {
        matches!(self.code, Code::Unavailable)
    }
}

impl From<Status> for CriError {
    fn from(status: Status) -> Self {
        // tonic reports its own deadline as Cancelled; Go says DeadlineExceeded.
        if status.code() == Code::Cancelled && status.message() == "Timeout expired" {
            return Self { code: Code::DeadlineExceeded, message: "context deadline exceeded".into() };
        }
        Self { code: status.code(), message: status.message().to_owned() }
    }
}

impl fmt::Display for CriError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "rpc error: code = {} desc = {}", go_name(self.code), self.message)
    }
}

impl std::error::Error for CriError {}

/// A code as Go's gRPC prints it.
pub fn go_name(code: Code) -> &'static str {
    match code {
        Code::Ok => "OK",
        Code::Cancelled => "Canceled",
        Code::Unknown => "Unknown",
        Code::InvalidArgument => "InvalidArgument",
        Code::DeadlineExceeded => "DeadlineExceeded",
        Code::NotFound => "NotFound",
        Code::AlreadyExists => "AlreadyExists",
        Code::PermissionDenied => "PermissionDenied",
        Code::ResourceExhausted => "ResourceExhausted",
        Code::FailedPrecondition => "FailedPrecondition",
        Code::Aborted => "Aborted",
        Code::OutOfRange => "OutOfRange",
        Code::Unimplemented => "Unimplemented",
        Code::Internal => "Internal",
        Code::Unavailable => "Unavailable",
        Code::DataLoss => "DataLoss",
        Code::Unauthenticated => "Unauthenticated",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn errors_read_like_go_grpc_errors() {
        let e = CriError::from(Status::unknown("no runtime"));
        assert_eq!(e.to_string(), "rpc error: code = Unknown desc = no runtime");
        // Where nobody listens.
        let client = crate::cri::CriClient::new("/nowhere.sock", None, std::time::Duration::from_secs(1)).unwrap();
        let why = client.version().await.unwrap_err().to_string();
        let want = "rpc error: code = Unavailable desc = connection error: desc = \"transport: Error while dialing: dial \
                    unix /nowhere.sock: connect: no such file or directory\"";
        assert_eq!(why, want);
        let pulled = |status| CriError::from(status).of_pull();
        assert_eq!(pulled(Status::unknown("no route")), "no route");
        assert_eq!(pulled(Status::not_found("x: not found")), "rpc error: code = NotFound desc = x: not found");
        assert_eq!(CriError::from(Status::cancelled("Timeout expired")).code, Code::DeadlineExceeded);
    }
}
