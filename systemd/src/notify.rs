//! Words for systemd: sd_notify(3). Without `NOTIFY_SOCKET` nothing happens here.

use std::io::{Error, ErrorKind};
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::net::{SocketAddr, UnixDatagram};

pub use sd_notify::{NotifyState, watchdog_enabled};

/// Sends states to systemd, without waiting for it; a failure is logged, as nothing else can be done about it.
///
/// Systemd may be slow to read, and a queue that is full would stop whoever sends: a beat or a status line is left out
/// then, for another follows. What is said once waits in a thread of its own.
pub fn tell(states: &[NotifyState<'_>]) {
    let text: String = states.iter().map(|state| format!("{state}\n")).collect();
    let passing = |state: &NotifyState<'_>| matches!(state, NotifyState::Watchdog | NotifyState::Status(_));
    let sent = match send(&text, false) {
        Err(error) if error.kind() == ErrorKind::WouldBlock && states.iter().all(passing) => Ok(()),
        Err(error) if error.kind() == ErrorKind::WouldBlock => {
            std::thread::Builder::new().name("notify".into()).spawn(move || log(send(&text, true))).map(drop)
        }
        sent => sent,
    };
    log(sent);
}

/// The line that `systemctl status` shows.
pub fn status(text: &str) {
    tell(&[NotifyState::Status(text)]);
}

fn log(sent: Result<(), Error>) {
    if let Err(error) = sent {
        tracing::warn!(%error, "cannot tell systemd");
    }
}

/// Whether a service manager waits for our words.
pub fn is_listened_to() -> bool {
    std::env::var_os("NOTIFY_SOCKET").is_some_and(|name| !name.is_empty())
}

/// One datagram to `NOTIFY_SOCKET`, which is a path, or a name after `@`.
fn send(text: &str, wait: bool) -> Result<(), Error> {
    let Some(name) = std::env::var_os("NOTIFY_SOCKET").filter(|name| !name.is_empty()) else { return Ok(()) };
    let address = match name.as_bytes().strip_prefix(b"@") {
        Some(name) => SocketAddr::from_abstract_name(name)?,
        None => SocketAddr::from_pathname(&name)?,
    };
    let socket = UnixDatagram::unbound()?;
    socket.set_nonblocking(!wait)?;
    socket.send_to_addr(text.as_bytes(), &address).map(drop)
}
