//! Signals: what ends the agent, what makes it read its configuration or renew its certificates.

use std::io;
use std::path::Path;

use tokio::signal::unix::{Signal, SignalKind, signal};

use super::lock;
use crate::file_watch::FileWatch;

/// What someone wants of the agent.
pub enum Asked {
    Stop,
    Reload,
    /// New certificates, whatever the age of those that are there.
    Renew,
}

/// All signals that are not left to their default, and the wish of others for the lock file.
pub struct Signals {
    terminate: Signal,
    interrupt: Signal,
    hangup: Signal,
    user: Signal,
    lock: Option<FileWatch>,
    /// Asked for while the agent started; what it reads then may be old by the end.
    reload: bool,
}

impl Signals {
    pub fn new() -> io::Result<Self> {
        Ok(Signals {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
            hangup: signal(SignalKind::hangup())?,
            user: signal(SignalKind::user_defined1())?,
            lock: None,
            reload: false,
        })
    }

    /// From now on, someone else who opens or deletes the lock file asks to stop.
    pub fn leave_when_contended(&mut self, path: &Path) {
        self.lock = lock::contention(path);
    }

    /// The next wish.
    pub async fn asked(&mut self) -> Asked {
        if std::mem::take(&mut self.reload) {
            return Asked::Reload;
        }
        tokio::select! {
            _ = self.terminate.recv() => Asked::Stop,
            _ = self.interrupt.recv() => Asked::Stop,
            _ = self.hangup.recv() => Asked::Reload,
            _ = self.user.recv() => Asked::Renew,
            () = contended(self.lock.as_ref()) => {
                tracing::info!("another process wants the lock file; leaving");
                Asked::Stop
            }
        }
    }

    /// What comes of the work; None, and its end, when somebody asks to stop first. A wish to reload waits for its end.
    pub async fn unless_stopped<T>(&mut self, work: impl Future<Output = T>) -> Option<T> {
        let mut work = std::pin::pin!(work);
        let mut reload = false;
        let outcome = loop {
            tokio::select! {
                done = &mut work => break Some(done),
                asked = self.asked() => match asked {
                    Asked::Stop => break None,
                    Asked::Reload => reload = true,
                    // The start asks for those that it needs.
                    Asked::Renew => {}
                },
            }
        };
        self.reload |= reload;
        outcome
    }
}

async fn contended(lock: Option<&FileWatch>) {
    match lock {
        Some(watch) => watch.changed().await,
        None => std::future::pending().await,
    }
}
