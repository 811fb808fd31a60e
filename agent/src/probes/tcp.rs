//! TCP probes, and connection errors in Go's words.

use std::io;
use std::time::Duration;

use tokio::net::TcpStream;

use super::target::Target;

/// Connects; the error reads like Go's `net.OpError`.
pub async fn dial(target: &Target, timeout: Duration) -> Result<TcpStream, String> {
    match tokio::time::timeout(timeout, TcpStream::connect((target.host.as_str(), target.port))).await {
        Ok(Ok(stream)) => Ok(stream),
        Ok(Err(e)) => Err(format!("dial tcp {target}: {}", connect_error(&e))),
        Err(_) => Err(format!("dial tcp {target}: i/o timeout")),
    }
}

/// In Go's words.
pub(crate) fn connect_error(e: &io::Error) -> String {
    let words = match e.raw_os_error() {
        Some(libc::ENOENT) => "no such file or directory",
        Some(libc::ECONNREFUSED) => "connection refused",
        Some(libc::EHOSTUNREACH) => "no route to host",
        Some(libc::ENETUNREACH) => "network is unreachable",
        Some(libc::ECONNRESET) => "connection reset by peer",
        Some(libc::ETIMEDOUT) => "connection timed out",
        Some(libc::EADDRNOTAVAIL) => "cannot assign requested address",
        Some(libc::EACCES) => "permission denied",
        Some(libc::EPERM) => "operation not permitted",
        _ => return e.to_string(),
    };
    format!("connect: {words}")
}
