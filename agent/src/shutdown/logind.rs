//! What systemd-logind is asked and tells over D-Bus, as org.freedesktop.login1(5) has it.

use std::io;
use std::path::Path;
use std::time::Duration;

use futures_util::{Stream, StreamExt as _};
use zbus::proxy::CacheProperties;
use zbus::zvariant::OwnedFd;
use zbus::{Connection, Proxy};

/// Where settings that the kubelet makes for logind lie.
const DROP_IN: &str = "/etc/systemd/logind.conf.d/99-kubelet.conf";
/// How often, and how long apart, logind is asked whether it has read its settings.
const ASKS: usize = 10;
const ASK_AGAIN: Duration = Duration::from_millis(200);

/// logind cannot be had, or does not do what it is asked. It may come back.
#[derive(Debug, thiserror::Error)]
pub enum LogindError {
    #[error("systemd-logind: {0}")]
    Bus(Box<zbus::Error>),
    #[error("{DROP_IN}: {0}")]
    Settings(io::Error),
}

impl From<zbus::Error> for LogindError {
    fn from(error: zbus::Error) -> Self {
        LogindError::Bus(Box::new(error))
    }
}

/// Holds up the shutdown until it is dropped, for as long as logind's settings allow.
#[expect(dead_code, reason = "the descriptor is held for its drop")]
pub struct Inhibitor(OwnedFd);

pub struct Logind {
    proxy: Proxy<'static>,
}

impl Logind {
    /// On the system's bus.
    pub async fn connect() -> Result<Self, LogindError> {
        let connection = Connection::system().await?;
        let proxy = zbus::proxy::Builder::new(&connection)
            .destination("org.freedesktop.login1")?
            .path("/org/freedesktop/login1")?
            .interface("org.freedesktop.login1.Manager")?
            .cache_properties(CacheProperties::No)
            .build()
            .await?;
        Ok(Logind { proxy })
    }

    /// How long one inhibitor can hold up a shutdown.
    pub async fn longest_delay(&self) -> Result<Duration, LogindError> {
        Ok(Duration::from_micros(self.proxy.get_property("InhibitDelayMaxUSec").await?))
    }

    /// Whether a shutdown is under way already.
    pub async fn is_preparing(&self) -> Result<bool, LogindError> {
        Ok(self.proxy.get_property("PreparingForShutdown").await?)
    }

    /// Takes part in shutdowns: they wait until the inhibitor is dropped.
    pub async fn inhibit(&self) -> Result<Inhibitor, LogindError> {
        let arguments = ("shutdown", "node-agent", "pods need time to end before the node shuts down", "delay");
        Ok(Inhibitor(self.proxy.call("Inhibit", &arguments).await?))
    }

    /// True for each shutdown that begins, false for one that is called off. Ends with the connection.
    pub async fn shutdowns(&self) -> Result<impl Stream<Item = bool> + use<>, LogindError> {
        let signals = self.proxy.receive_signal("PrepareForShutdown").await?;
        Ok(signals.filter_map(async |signal| signal.body().deserialize::<bool>().ok()))
    }

    /// Writes a longer delay into logind's settings and has it read them. Returns the delay that holds then.
    pub async fn lengthen_delay(&self, wanted: Duration) -> Result<Duration, LogindError> {
        let text =
            format!("# Set by node-agent for shutdownGracePeriod\n[Login]\nInhibitDelayMaxSec={}\n", wanted.as_secs());
        write(Path::new(DROP_IN), &text).map_err(LogindError::Settings)?;
        let systemd = Proxy::new(
            self.proxy.connection(),
            "org.freedesktop.systemd1",
            "/org/freedesktop/systemd1",
            "org.freedesktop.systemd1.Manager",
        )
        .await?;
        let hangup = nix::libc::SIGHUP;
        systemd.call::<_, _, ()>("KillUnit", &("systemd-logind.service", "all", hangup)).await?;
        // Nothing tells when a signal has been handled.
        let mut delay = self.longest_delay().await?;
        for _ in 0..ASKS {
            if delay >= wanted {
                break;
            }
            tokio::time::sleep(ASK_AGAIN).await;
            delay = self.longest_delay().await?;
        }
        Ok(delay)
    }
}

fn write(path: &Path, text: &str) -> io::Result<()> {
    if let Some(folder) = path.parent() {
        std::fs::create_dir_all(folder)?;
    }
    std::fs::write(path, text)
}
