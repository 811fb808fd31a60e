//! Connections whose other side is gone without a word.
//!
//! The kernel asks quiet peers whether they are still there and gives up on data that nobody acknowledges. Without it a
//! watch to a machine that lost its power would stay open for hours.

use std::os::fd::AsRawFd as _;

use libc::{c_int, c_void, socklen_t};
use tokio::net::TcpStream;

/// Seconds of silence before the peer is asked, between questions, and how many may stay unanswered.
const IDLE: c_int = 30;
const INTERVAL: c_int = 10;
const QUESTIONS: c_int = 3;
/// Milliseconds that sent data may stay unacknowledged.
const UNACKNOWLEDGED: c_int = 60_000;

/// Switches the checks on. A socket that cannot have them works all the same.
pub fn watch_over(stream: &TcpStream) {
    let options = [
        (libc::SOL_SOCKET, libc::SO_KEEPALIVE, 1),
        (libc::IPPROTO_TCP, libc::TCP_KEEPIDLE, IDLE),
        (libc::IPPROTO_TCP, libc::TCP_KEEPINTVL, INTERVAL),
        (libc::IPPROTO_TCP, libc::TCP_KEEPCNT, QUESTIONS),
        (libc::IPPROTO_TCP, libc::TCP_USER_TIMEOUT, UNACKNOWLEDGED),
    ];
    for (level, name, value) in options {
        if let Err(error) = set(stream, level, name, value) {
            tracing::debug!(%error, option = name, "a socket option cannot be set");
        }
    }
}

#[expect(unsafe_code, reason = "the standard library cannot set these socket options")]
fn set(stream: &TcpStream, level: c_int, name: c_int, value: c_int) -> std::io::Result<()> {
    let size = size_of::<c_int>() as socklen_t;
    let pointer = std::ptr::from_ref(&value).cast::<c_void>();
    // SAFETY: the descriptor is open as long as `stream` is borrowed; `pointer` is a c_int that lives through the call,
    // `size` is its size, and the kernel only reads it.
    let done = unsafe { libc::setsockopt(stream.as_raw_fd(), level, name, pointer, size) };
    if done == 0 { Ok(()) } else { Err(std::io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn sockets_take_the_options() {
        let listener = tokio::net::TcpListener::bind(("127.0.0.1", 0)).await.expect("a port");
        let stream = TcpStream::connect(listener.local_addr().expect("its address")).await.expect("our listener");
        set(&stream, libc::IPPROTO_TCP, libc::TCP_USER_TIMEOUT, UNACKNOWLEDGED).expect("Linux has it");
        assert!(set(&stream, libc::IPPROTO_TCP, -1, 0).is_err());
    }
}
