//! Listening sockets that systemd made and handed over (`sd_listen_fds(3)`): clients may come before the agent does, and
//! wait while it restarts.
//!
//! They are told by their paths. What the agent does not listen on is left as it was handed over.

use std::os::fd::{FromRawFd as _, OwnedFd, RawFd};
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::sync::{Mutex, OnceLock, PoisonError};

use nix::fcntl::{FcntlArg, FdFlag, fcntl};

/// `SD_LISTEN_FDS_START`
const FIRST: RawFd = 3;

/// The socket at `path`, if it was handed over; once.
pub(super) fn take(path: &Path) -> Option<UnixListener> {
    static HANDED: OnceLock<Mutex<Vec<UnixListener>>> = OnceLock::new();
    let handed = HANDED.get_or_init(|| {
        let variable = |name: &str| std::env::var(name).unwrap_or_default();
        let count = count(&variable("LISTEN_PID"), &variable("LISTEN_FDS"), std::process::id());
        Mutex::new((FIRST..FIRST.saturating_add(count)).filter_map(adopt).collect())
    });
    let mut handed = handed.lock().unwrap_or_else(PoisonError::into_inner);
    let at = handed.iter().position(|socket| is_at(socket, path))?;
    Some(handed.swap_remove(at))
}

/// How many descriptors are for this process; those of a parent are not.
fn count(pid: &str, descriptors: &str, own: u32) -> RawFd {
    if pid.parse() == Ok(own) { descriptors.parse().ok().filter(|n| *n > 0).unwrap_or(0) } else { 0 }
}

fn is_at(socket: &UnixListener, path: &Path) -> bool {
    socket.local_addr().is_ok_and(|address| address.as_pathname() == Some(path))
}

/// Takes a descriptor for the agent's own; None where it is no listening unix socket.
#[allow(unsafe_code)]
fn adopt(descriptor: RawFd) -> Option<UnixListener> {
    // SAFETY: systemd has opened these descriptors for this process and nobody else here knows of them; each is taken
    // once. No safe call makes a descriptor that was inherited one's own.
    let owned = unsafe { OwnedFd::from_raw_fd(descriptor) };
    if let Err(error) = fcntl(&owned, FcntlArg::F_SETFD(FdFlag::FD_CLOEXEC)) {
        tracing::warn!(%error, descriptor, "what systemd handed over is not open");
        // There is nothing to close.
        std::mem::forget(owned);
        return None;
    }
    let socket = UnixListener::from(owned);
    match socket.local_addr().and_then(|_| socket.set_nonblocking(true)) {
        Ok(()) => Some(socket),
        Err(error) => {
            tracing::warn!(%error, descriptor, "what systemd handed over is no unix socket");
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::IntoRawFd as _;

    use super::*;

    #[test]
    fn what_is_handed_over_is_told_by_its_path() {
        let path = std::env::temp_dir().join(format!("handed-{}.sock", crate::backoff::random_below(u32::MAX)));
        let descriptor = UnixListener::bind(&path).expect("binds").into_raw_fd();
        let socket = adopt(descriptor).expect("a socket");
        assert!(is_at(&socket, &path) && !is_at(&socket, Path::new("/other.sock")));
        assert!(std::os::unix::net::UnixStream::connect(&path).is_ok(), "it listens");
        let udp = std::net::UdpSocket::bind("127.0.0.1:0").expect("binds").into_raw_fd();
        assert!(adopt(udp).is_none());
        assert!(take(&path).is_none(), "nothing was handed over to this process");
        std::fs::remove_file(path).expect("ours");
    }

    #[test]
    fn descriptors_of_somebody_else_are_left() {
        assert_eq!((count("7", "2", 7), count("8", "2", 7), count("", "2", 7)), (2, 0, 0));
        assert_eq!((count("7", "-1", 7), count("7", "many", 7)), (0, 0));
    }
}
