//! Signals: what ends the agent, what makes it read its configuration again, and what it does not mind.

use std::io;
use std::path::Path;

use tokio::signal::unix::{Signal, SignalKind, signal};

use super::lock;

/// What someone wants of the agent.
pub enum Asked {
    Stop,
    Reload,
}

/// All signals that are not left to their default.
pub struct Signals {
    terminate: Signal,
    interrupt: Signal,
    hangup: Signal,
    user: Signal,
}

impl Signals {
    pub fn new() -> io::Result<Self> {
        Ok(Signals {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
            hangup: signal(SignalKind::hangup())?,
            user: signal(SignalKind::user_defined1())?,
        })
    }

    /// The next wish: a signal, or someone else opening the lock file.
    pub async fn asked(&mut self, contended: Option<&Path>) -> Asked {
        loop {
            tokio::select! {
                _ = self.terminate.recv() => return Asked::Stop,
                _ = self.interrupt.recv() => return Asked::Stop,
                _ = self.hangup.recv() => return Asked::Reload,
                // Without a meaning, and no reason to die.
                _ = self.user.recv() => {}
                () = lock::contended(contended) => return Asked::Stop,
            }
        }
    }
}
