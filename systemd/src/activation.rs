//! Listening sockets that systemd made and handed over (`sd_listen_fds(3)`): clients may come before the daemon does, and
//! wait while it restarts.
//!
//! They are told by their addresses. What the daemon does not listen on is left as it was handed over.

use std::net::{SocketAddr, TcpListener};
use std::os::fd::{AsFd as _, FromRawFd as _, OwnedFd, RawFd};
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::sync::{Mutex, OnceLock, PoisonError};

use nix::fcntl::{FcntlArg, FdFlag, OFlag, fcntl};
use nix::sys::socket::{getsockopt, sockopt};

/// `SD_LISTEN_FDS_START`
const FIRST: RawFd = 3;

enum Handed {
    Unix(UnixListener),
    Tcp(TcpListener),
}

/// The unix socket at `path`, if it was handed over; once. It does not block.
pub fn unix(path: &Path) -> Option<UnixListener> {
    match take(|handed| matches!(handed, Handed::Unix(socket) if is_at(socket, path)))? {
        Handed::Unix(socket) => Some(socket),
        Handed::Tcp(_) => None,
    }
}

/// The TCP socket at `address`, if it was handed over; once. It does not block. A socket of every address of one family
/// stands for every address of the other too: systemd listens on `[::]` for both where it is told a port alone.
pub fn tcp(address: SocketAddr) -> Option<TcpListener> {
    match take(|handed| matches!(handed, Handed::Tcp(socket) if serves(socket, address)))? {
        Handed::Tcp(socket) => Some(socket),
        Handed::Unix(_) => None,
    }
}

fn take(wanted: impl Fn(&Handed) -> bool) -> Option<Handed> {
    static HANDED: OnceLock<Mutex<Vec<Handed>>> = OnceLock::new();
    let handed = HANDED.get_or_init(|| {
        let variable = |name: &str| std::env::var(name).unwrap_or_default();
        let count = count(&variable("LISTEN_PID"), &variable("LISTEN_FDS"), std::process::id());
        Mutex::new((FIRST..FIRST.saturating_add(count)).filter_map(adopt).collect())
    });
    let mut handed = handed.lock().unwrap_or_else(PoisonError::into_inner);
    let at = handed.iter().position(wanted)?;
    Some(handed.swap_remove(at))
}

/// How many descriptors are for this process; those of a parent are not.
fn count(pid: &str, descriptors: &str, own: u32) -> RawFd {
    if pid.parse() == Ok(own) { descriptors.parse().ok().filter(|n| *n > 0).unwrap_or(0) } else { 0 }
}

fn is_at(socket: &UnixListener, path: &Path) -> bool {
    socket.local_addr().is_ok_and(|address| address.as_pathname() == Some(path))
}

fn serves(socket: &TcpListener, wanted: SocketAddr) -> bool {
    socket.local_addr().is_ok_and(|own| {
        let every = own.ip().is_unspecified() && wanted.ip().is_unspecified();
        own.port() == wanted.port() && (every || own.ip() == wanted.ip())
    })
}

/// Takes a descriptor for the daemon's own; None where it is no listening socket of a kind that daemons have.
#[allow(unsafe_code)]
fn adopt(descriptor: RawFd) -> Option<Handed> {
    // SAFETY: systemd has opened these descriptors for this process and nobody else here knows of them; each is taken
    // once. No safe call makes a descriptor that was inherited one's own.
    let owned = unsafe { OwnedFd::from_raw_fd(descriptor) };
    if let Err(error) = fcntl(&owned, FcntlArg::F_SETFD(FdFlag::FD_CLOEXEC)) {
        tracing::warn!(%error, descriptor, "what systemd handed over is not open");
        // There is nothing to close.
        std::mem::forget(owned);
        return None;
    }
    let handed = listener(owned);
    if handed.is_none() {
        tracing::warn!(descriptor, "what systemd handed over is no unix or TCP socket that listens");
    }
    handed
}

fn listener(owned: OwnedFd) -> Option<Handed> {
    getsockopt(&owned.as_fd(), sockopt::AcceptConn).ok().filter(|listens| *listens)?;
    let flags = OFlag::from_bits_retain(fcntl(&owned, FcntlArg::F_GETFL).ok()?);
    fcntl(&owned, FcntlArg::F_SETFL(flags | OFlag::O_NONBLOCK)).ok()?;
    let socket = UnixListener::from(owned);
    if socket.local_addr().is_ok() {
        return Some(Handed::Unix(socket));
    }
    let socket = TcpListener::from(OwnedFd::from(socket));
    socket.local_addr().is_ok().then_some(Handed::Tcp(socket))
}

#[cfg(test)]
mod tests {
    use std::net::{TcpStream, UdpSocket};
    use std::os::fd::IntoRawFd as _;
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn what_is_handed_over_is_told_by_its_address() {
        let path = std::env::temp_dir().join(format!("handed-{}.sock", std::process::id()));
        let _ = std::fs::remove_file(&path);
        let descriptor = UnixListener::bind(&path).expect("binds").into_raw_fd();
        let Some(Handed::Unix(socket)) = adopt(descriptor) else { panic!("a unix socket") };
        assert!(is_at(&socket, &path) && !is_at(&socket, Path::new("/other.sock")));
        assert!(UnixStream::connect(&path).is_ok(), "it listens");
        assert!(unix(&path).is_none(), "nothing was handed over to this process");
        std::fs::remove_file(path).expect("ours");

        let bound = TcpListener::bind("127.0.0.1:0").expect("binds");
        let address = bound.local_addr().expect("bound");
        let Some(Handed::Tcp(socket)) = adopt(bound.into_raw_fd()) else { panic!("a TCP socket") };
        assert!(TcpStream::connect(address).is_ok(), "it listens");
        let other = |text: &str| SocketAddr::new(text.parse().expect("an address"), address.port());
        assert!(serves(&socket, address) && !serves(&socket, other("127.0.0.2")) && !serves(&socket, other("0.0.0.0")));
        assert!(!serves(&socket, SocketAddr::new(address.ip(), 1)));
    }

    #[test]
    fn every_address_is_every_address() {
        let Ok(socket) = TcpListener::bind("[::]:0") else { return };
        let port = socket.local_addr().expect("bound").port();
        let wanted = |text: &str| SocketAddr::new(text.parse().expect("an address"), port);
        assert!(serves(&socket, wanted("0.0.0.0")) && serves(&socket, wanted("::")) && !serves(&socket, wanted("::1")));
    }

    #[test]
    fn what_does_not_listen_is_not_taken() {
        assert!(adopt(UdpSocket::bind("127.0.0.1:0").expect("binds").into_raw_fd()).is_none());
        assert!(adopt(UnixStream::pair().expect("a pair").0.into_raw_fd()).is_none());
    }

    #[test]
    fn descriptors_of_somebody_else_are_left() {
        assert_eq!((count("7", "2", 7), count("8", "2", 7), count("", "2", 7)), (2, 0, 0));
        assert_eq!((count("7", "-1", 7), count("7", "many", 7)), (0, 0));
    }
}
