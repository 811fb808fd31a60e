//! Signals: what ends the agent, what makes it read its configuration or renew its certificates.

use std::io;
use std::path::Path;

use tokio::signal::unix::{Signal, SignalKind, signal};

use super::lock;
use crate::file_watch::FileWatch;

/// Timers, limits, terminals, power: by default each of them would end the agent.
const IGNORED: &[i32] = &[
    libc::SIGUSR2,
    libc::SIGALRM,
    libc::SIGVTALRM,
    libc::SIGPROF,
    libc::SIGIO,
    libc::SIGPWR,
    libc::SIGXCPU,
    libc::SIGXFSZ,
];

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
    /// Takes the signals over. Those that mean nothing to the agent and would end it are ignored from here on, as by the
    /// kubelet; SIGQUIT and SIGABRT, which ask for a dump, end it.
    ///
    /// # Errors
    /// When the kernel does not let a signal be handled.
    pub fn new() -> io::Result<Self> {
        for number in IGNORED {
            // A signal that is handled does nothing by itself, and nobody reads from this handler.
            drop(signal(SignalKind::from_raw(*number))?);
        }
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
