//! Keeping both certificates young.

use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use super::request::{CLIENT, Prepared, Purpose, SERVING};
use super::store::{Store, Validity};
use super::{IdentityError, Serving, bootstrap};
use crate::api::Client;
use crate::backoff::{Backoff, random_below};

/// As long as the kubelet waits for one answer before it asks again.
const PATIENCE: Duration = Duration::from_secs(900);
/// A signer may date certificates back so far that each new one is due at once.
const LEAST: Duration = Duration::from_secs(5);

pub(super) fn now() -> i64 {
    time::OffsetDateTime::now_utc().unix_timestamp()
}

/// Until a certificate is to be replaced: 70 to 90 % of its life, `spread` (0 to 1) says where between.
fn wait(validity: Option<Validity>, now: i64, spread: f64) -> Duration {
    let Some(validity) = validity else { return Duration::ZERO };
    #[expect(clippy::cast_precision_loss, reason = "seconds of a certificate's life are far below 2^52")]
    let life = (validity.not_after - validity.not_before).max(0) as f64;
    let used = life * (0.7 + 0.2 * spread);
    let since = u64::try_from(now - validity.not_before).unwrap_or(0);
    Duration::from_secs_f64(used).saturating_sub(Duration::from_secs(since))
}

/// Waits for the time of the next certificate, but no less than `least`.
async fn due(store: &Store, least: Duration) {
    let pem = store.read();
    let spread = f64::from(random_below(1000)) / 1000.0;
    let wait = wait(pem.and_then(|pem| Validity::of(&pem)), now(), spread).max(least);
    tracing::info!(certificate = %store.current().display(), in_seconds = wait.as_secs(), "next certificate");
    tokio::time::sleep(wait).await;
}

async fn replace(
    client: &Client,
    store: &Store,
    purpose: &Purpose,
    node: &str,
    names: &[String],
) -> Result<String, IdentityError> {
    let pem = Prepared::new(node, names)?.obtain(client, purpose, PATIENCE).await?;
    store.keep(&pem)?;
    Ok(pem)
}

/// Replaces the client certificate until the task is dropped; connections are made anew with it. One that is over is
/// asked for by the bootstrap kubeconfig, if there is one.
pub async fn keep_client(client: Client, folder: PathBuf, source: Option<PathBuf>, node: String) {
    let store = Store::client(&folder);
    let mut backoff = Backoff::new(Duration::from_secs(2), Duration::from_secs(128));
    let mut least = Duration::ZERO;
    loop {
        due(&store, least).await;
        let over = store.read().and_then(|pem| Validity::of(&pem)).is_some_and(|v| v.is_over(now()));
        let other = source.as_deref().filter(|_| over).and_then(|path| bootstrap::client(path).ok());
        match replace(other.as_ref().unwrap_or(&client), &store, &CLIENT, &node, &[]).await {
            Ok(_) => {
                tracing::info!("the client certificate was replaced");
                backoff.reset();
                least = LEAST;
                client.reconnect();
            }
            Err(error) => {
                tracing::warn!(%error, "cannot replace the client certificate");
                tokio::time::sleep(backoff.next_wait()).await;
            }
        }
    }
}

/// Gets and replaces the serving certificate until the task is dropped.
pub async fn keep_serving(
    client: Client,
    folder: PathBuf,
    serving: Arc<Serving>,
    node: String,
    addresses: Vec<IpAddr>,
) {
    let store = Store::serving(&folder);
    let names: Vec<String> = std::iter::once(node.clone()).chain(addresses.iter().map(ToString::to_string)).collect();
    let mut backoff = Backoff::new(Duration::from_secs(2), Duration::from_secs(128));
    let mut least = Duration::ZERO;
    if let Some(pem) = store.read()
        && Validity::of(&pem).is_some_and(|v| !v.is_over(now()))
        && let Err(error) = serving.set(&pem, &pem)
    {
        tracing::warn!(error, certificate = %store.current().display(), "cannot serve with the kept certificate");
    }
    loop {
        due(&store, least).await;
        match replace(&client, &store, &SERVING, &node, &names).await {
            Ok(pem) => {
                backoff.reset();
                least = LEAST;
                match serving.set(pem.as_bytes(), pem.as_bytes()) {
                    Ok(()) => tracing::info!("serving with a new certificate"),
                    Err(error) => tracing::error!(error, "the issued serving certificate cannot be used"),
                }
            }
            Err(error) => {
                tracing::warn!(%error, "no serving certificate was issued");
                tokio::time::sleep(backoff.next_wait()).await;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_certificate_is_replaced_in_the_last_third_of_its_life() {
        let validity = Some(Validity { not_before: 1000, not_after: 2000 });
        assert_eq!(wait(validity, 1000, 0.0), Duration::from_secs(700));
        assert_eq!(wait(validity, 1100, 1.0), Duration::from_secs(800));
        assert_eq!(wait(validity, 1950, 0.5), Duration::ZERO);
        assert_eq!(wait(None, 0, 0.0), Duration::ZERO);
    }
}
