//! The health of devices as drivers stream it, for the statuses of pods.
//!
//! A driver need not serve the stream. What it said last holds for as long as it asked for (half a minute by default);
//! then, and when the stream ends, the health of its devices is unknown.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Weak;
use std::time::Duration;

use proto::dra_health::dra_resource_health_client::DraResourceHealthClient;
use proto::dra_health::{DeviceHealth, HealthStatus, NodeWatchResourcesRequest};
use tokio::time::Instant;

use super::Dra;
use crate::sockets;

const DIAL_LIMIT: Duration = Duration::from_secs(10);
/// The kubelet's, between streams.
const AGAIN: Duration = Duration::from_secs(5);
const HOLDS: Duration = Duration::from_secs(30);
/// `ResourceHealthMessageMaxLength` of the API.
const MAX_MESSAGE_BYTES: usize = 1024;

/// Health of devices by driver, then pool and device.
#[derive(Debug, Default)]
pub struct Healths(BTreeMap<String, BTreeMap<(String, String), Health>>);

/// What a driver said of one device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Health {
    pub word: &'static str,
    pub message: String,
    holds: Duration,
    said: Instant,
}

impl Healths {
    /// What holds of a device now.
    pub fn of(&self, driver: &str, pool: &str, device: &str) -> (&'static str, &str) {
        let found = self.0.get(driver).and_then(|d| d.get(&(pool.to_owned(), device.to_owned())));
        match found.filter(|h| h.said.elapsed() <= h.holds) {
            Some(health) => (health.word, &health.message),
            None => ("Unknown", ""),
        }
    }

    /// Takes in a report; returns the devices, by pool and name, whose health is another than before.
    pub fn update(&mut self, driver: &str, report: Vec<DeviceHealth>) -> Vec<(String, String)> {
        let now = Instant::now();
        let known = self.0.entry(driver.to_owned()).or_default();
        let mut changed = Vec::new();
        for device in report {
            let health = Health {
                word: match HealthStatus::try_from(device.health) {
                    Ok(HealthStatus::Healthy) => "Healthy",
                    Ok(HealthStatus::Unhealthy) => "Unhealthy",
                    _ => "Unknown",
                },
                message: shortened(device.message),
                holds: match u64::try_from(device.health_check_timeout_seconds) {
                    Ok(seconds) if seconds > 0 => Duration::from_secs(seconds),
                    _ => HOLDS,
                },
                said: now,
            };
            let id = device.device.unwrap_or_default();
            let key = (id.pool_name, id.device_name);
            let same = known.get(&key).is_some_and(|h| {
                (h.word, &h.message, h.holds) == (health.word, &health.message, health.holds)
                    && h.said.elapsed() <= h.holds
            });
            if !same {
                changed.push(key.clone());
            }
            known.insert(key, health);
        }
        // What is not reported any more, and was long ago.
        let gone = known.iter().filter(|(_, h)| h.said != now && h.said.elapsed() > h.holds);
        let gone: Vec<_> = gone.map(|(key, _)| key.clone()).collect();
        for key in gone {
            known.remove(&key);
            changed.push(key);
        }
        changed
    }

    /// The driver's stream ended; returns the devices of which it had said something.
    pub fn forget(&mut self, driver: &str) -> Vec<(String, String)> {
        self.0.remove(driver).into_iter().flat_map(BTreeMap::into_keys).collect()
    }
}

fn shortened(mut message: String) -> String {
    if message.len() > MAX_MESSAGE_BYTES {
        let mut end = MAX_MESSAGE_BYTES - 3;
        while !message.is_char_boundary(end) {
            end -= 1;
        }
        message.truncate(end);
        message.push_str("...");
    }
    message
}

/// Follows a plugin's reports until dropped. One that makes none is asked again, as the kubelet does: it may begin to.
pub async fn follow(dra: Weak<Dra>, driver: String, endpoint: std::path::PathBuf) {
    loop {
        let outcome = stream(&dra, &driver, &endpoint).await;
        let Some(dra) = dra.upgrade() else { return };
        dra.health_ended(&driver);
        drop(dra);
        match outcome {
            Err(error) => tracing::debug!(%error, driver, "a driver does not tell the health of its devices"),
            Ok(()) => tracing::debug!(driver, "a driver ended its reports of health"),
        }
        tokio::time::sleep(AGAIN).await;
    }
}

async fn stream(dra: &Weak<Dra>, driver: &str, endpoint: &Path) -> Result<(), tonic::Status> {
    let channel = sockets::channel(endpoint, DIAL_LIMIT).await;
    let channel = channel.map_err(|e| tonic::Status::unavailable(e.to_string()))?;
    let mut client = DraResourceHealthClient::new(channel);
    let mut reports = client.node_watch_resources(NodeWatchResourcesRequest {}).await?.into_inner();
    while let Some(report) = reports.message().await? {
        let Some(dra) = dra.upgrade() else { break };
        dra.health_reported(driver, report.devices);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proto::dra_health::DeviceIdentifier;

    fn device(name: &str, health: HealthStatus, timeout: i64) -> DeviceHealth {
        DeviceHealth {
            device: Some(DeviceIdentifier { pool_name: "p".into(), device_name: name.into() }),
            health: health as i32,
            last_updated_time: 0,
            health_check_timeout_seconds: timeout,
            message: "m".into(),
        }
    }

    #[tokio::test(start_paused = true)]
    async fn health_holds_for_a_while_and_only_changes_are_told() {
        let mut healths = Healths::default();
        let report = || vec![device("a", HealthStatus::Healthy, 0), device("b", HealthStatus::Unhealthy, 100)];
        assert_eq!(healths.update("d", report()).len(), 2);
        assert!(healths.update("d", report()).is_empty());
        assert_eq!((healths.of("d", "p", "a").0, healths.of("d", "p", "b").0), ("Healthy", "Unhealthy"));
        tokio::time::advance(Duration::from_secs(31)).await;
        assert_eq!((healths.of("d", "p", "a").0, healths.of("d", "p", "b").0), ("Unknown", "Unhealthy"));
        let changed = healths.update("d", vec![device("b", HealthStatus::Unhealthy, 100)]);
        assert_eq!(changed, [("p".to_owned(), "a".to_owned())]);
        assert_eq!(healths.forget("d"), [("p".to_owned(), "b".to_owned())]);
        assert_eq!(healths.of("d", "p", "b"), ("Unknown", ""));
    }

    #[test]
    fn long_messages_are_cut_where_a_letter_ends() {
        let cut = shortened("\u{e9}".repeat(600));
        assert!(cut.len() <= MAX_MESSAGE_BYTES && cut.ends_with("..."), "{}", cut.len());
    }
}
