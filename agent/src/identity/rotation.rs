//! Keeping both certificates young.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use proto::api::core::v1::Node;
use tokio::sync::watch;
use tokio::time::Instant;

use super::request::{CLIENT, Prepared, Purpose, SERVING};
use super::store::{Store, Validity, is_for};
use super::{IdentityError, Serving, bootstrap};
use crate::api::{Client, Kind, Kubeconfig};
use crate::backoff::{Backoff, random_below};
use crate::metrics;

/// As long as the kubelet waits for one answer before it asks again.
const PATIENCE: Duration = Duration::from_secs(900);
/// A signer may date certificates back so far that each new one is due at once.
const LEAST: Duration = Duration::from_secs(5);
/// A certificate that is over ends the agent no sooner than this: the kubelet looks as often.
const LOOK_AGAIN: Duration = Duration::from_secs(10);

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

/// Somebody's wish for new certificates, whatever the age of those that are there.
#[derive(Debug, Default)]
pub struct Renewal(watch::Sender<()>);

impl Renewal {
    /// Both certificates are asked for now.
    pub fn ask(&self) {
        self.0.send_replace(());
    }

    /// Hears of every wish from now on.
    pub(super) fn wishes(&self) -> watch::Receiver<()> {
        self.0.subscribe()
    }
}

/// What the agent logs in with, and where the next certificate goes.
pub struct ClientLogin {
    /// The certificate folder.
    pub folder: PathBuf,
    pub kubeconfig: PathBuf,
    /// The bootstrap kubeconfig, for a certificate that is over.
    pub source: Option<PathBuf>,
}

impl ClientLogin {
    /// Whether the kubeconfig's user logs in by other means; a certificate left in the folder is not used then.
    fn is_without_certificate(&self) -> bool {
        Kubeconfig::load(&self.kubeconfig).is_ok_and(|config| config.certificate().is_none())
    }

    /// The certificate that is in use: the newest of the folder, or until there is one the kubeconfig's.
    fn current(&self, store: &Store) -> Option<Vec<u8>> {
        let own = || Kubeconfig::load(&self.kubeconfig).ok()?.certificate()?.ok();
        store
            .read()
            .filter(|pem| Validity::of(pem).is_some_and(|v| !v.is_over(now())))
            .or_else(own)
            .or_else(|| store.read())
    }
}

/// Waits for the time of the next certificate, but no less than `least`, or until somebody wants it now: then true.
pub(super) async fn due(
    current: Option<Vec<u8>>,
    file: &Path,
    least: Duration,
    wish: &mut watch::Receiver<()>,
) -> bool {
    let spread = f64::from(random_below(1000)) / 1000.0;
    let wait = wait(current.and_then(|pem| Validity::of(&pem)), now(), spread).max(least);
    tracing::info!(certificate = %file.display(), in_seconds = wait.as_secs(), "next certificate");
    tokio::select! {
        () = tokio::time::sleep(wait) => false,
        Ok(()) = wish.changed() => {
            tracing::info!(certificate = %file.display(), "renewed on request");
            true
        }
    }
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
/// asked for by the bootstrap kubeconfig, if there is one. Who logs in without a certificate keeps doing so.
///
/// # Errors
/// [`IdentityError::Over`]: nobody can ask for a new one any more. Else it goes on until it is dropped.
pub async fn keep_client(
    client: Client,
    login: ClientLogin,
    renewal: Arc<Renewal>,
    node: String,
) -> Result<(), IdentityError> {
    let store = Store::client(&login.folder);
    if login.is_without_certificate() || login.current(&store).is_none() {
        return Ok(());
    }
    let mut wish = renewal.wishes();
    let mut backoff = Backoff::new(Duration::from_secs(2), Duration::from_secs(128));
    let mut least = Duration::ZERO;
    // A wish holds until it is granted, whatever fails on the way.
    let mut wanted = false;
    // When the server first took this user for nobody.
    let mut nobody_since: Option<Instant> = None;
    metrics::CLIENT_RENEWAL_ERRORS.add(&[], 0.0);
    loop {
        if let Some(validity) = login.current(&store).and_then(|pem| Validity::of(&pem)) {
            metrics::client_certificate_expires(validity.not_after);
        }
        if !wanted {
            wanted = due(login.current(&store), &store.current(), least, &mut wish).await;
        }
        let over = login.current(&store).and_then(|pem| Validity::of(&pem)).is_some_and(|v| v.is_over(now()));
        let other = login.source.as_deref().filter(|_| over).and_then(|path| bootstrap::client(path).ok());
        match replace(other.as_ref().unwrap_or(&client), &store, &CLIENT, &node, &[]).await {
            Ok(_) => {
                tracing::info!("the client certificate was replaced");
                wanted = false;
                backoff.reset();
                least = LEAST;
                nobody_since = None;
                client.reconnect();
            }
            Err(error) => {
                metrics::CLIENT_RENEWAL_ERRORS.inc(&[]);
                tracing::warn!(%error, "cannot replace the client certificate");
                let still_over =
                    || login.current(&store).and_then(|pem| Validity::of(&pem)).is_some_and(|v| v.is_over(now()));
                match error {
                    IdentityError::Request(why)
                        if other.is_none() && why.came_from_a_working_server() && still_over() =>
                    {
                        if nobody_since.get_or_insert_with(Instant::now).elapsed() >= LOOK_AGAIN {
                            return Err(IdentityError::Over(why));
                        }
                    }
                    _ => nobody_since = None,
                }
                tokio::time::sleep(backoff.next_wait()).await;
            }
        }
    }
}

/// Gets and replaces the serving certificate until the task is dropped. It is for the name and the addresses that the node
/// has in its status, whoever put them there: it is asked for once there is an address, and anew when they change.
pub async fn keep_serving(
    client: Client,
    folder: PathBuf,
    serving: Arc<Serving>,
    renewal: Arc<Renewal>,
    (node, mut object): (String, watch::Receiver<Arc<Node>>),
) {
    let mut wish = renewal.wishes();
    let store = Store::serving(&folder);
    metrics::SERVER_RENEWAL_ERRORS.add(&[], 0.0);
    let current = store.current();
    let mut backoff = Backoff::new(Duration::from_secs(2), Duration::from_secs(128));
    let mut least = Duration::ZERO;
    // Until it is granted, as with the client certificate.
    let mut wanted = false;
    if let Some(pem) = store.read()
        && Validity::of(&pem).is_some_and(|v| !v.is_over(now()))
        && let Err(error) = serving.set(&pem, &pem)
    {
        tracing::warn!(error, certificate = %store.current().display(), "cannot serve with the kept certificate");
    }
    loop {
        let Ok(names) = object.wait_for(|o| names(&node, o).is_some()).await.map(|o| names(&node, &o)) else { return };
        let Some(names) = names else { continue };
        // Others may take the node's addresses away for a moment; that changes nothing.
        let others = |o: &Arc<Node>| self::names(&node, o).is_some_and(|now| now != names);
        let mut changes = object.clone();
        if !wanted && store.read().is_some_and(|pem| is_for(&pem, &names)) {
            tokio::select! {
                asked = due(store.read(), &current, least, &mut wish) => wanted = asked,
                _ = changes.wait_for(others) => continue,
            }
        }
        let before = store.read().and_then(|pem| Validity::of(&pem));
        let replaced = tokio::select! {
            replaced = replace(&client, &store, &SERVING, &node, &names) => replaced,
            _ = changes.wait_for(others) => continue,
        };
        match replaced {
            Ok(pem) => {
                wanted = false;
                least = LEAST;
                if let Some(lived) = before.and_then(|v| u64::try_from(now() - v.not_before).ok()) {
                    metrics::SERVER_ROTATION.observe(&[], metrics::page::to_float(lived));
                }
                match serving.set(pem.as_bytes(), pem.as_bytes()) {
                    Ok(()) => tracing::info!(names = names.join(" "), "serving with a new certificate"),
                    Err(error) => tracing::error!(error, "the issued serving certificate cannot be used"),
                }
                if is_for(pem.as_bytes(), &names) {
                    backoff.reset();
                } else {
                    tracing::warn!(names = names.join(" "), "the issued serving certificate is not for all names");
                    tokio::time::sleep(backoff.next_wait()).await;
                }
            }
            Err(error) => {
                metrics::SERVER_RENEWAL_ERRORS.inc(&[]);
                tracing::warn!(%error, "no serving certificate was issued");
                tokio::time::sleep(backoff.next_wait()).await;
            }
        }
    }
}

/// What the certificate is to be for: the node's name and its addresses. None before the API server has the node, and
/// while it has no address, as a signer approves nothing without one.
fn names(node: &str, object: &Node) -> Option<Vec<String>> {
    let status = object.status.as_ref().filter(|_| !object.uid().is_empty())?;
    let mut names = vec![node.to_owned()];
    for address in &status.addresses {
        if !address.address.is_empty() && !names.contains(&address.address) {
            names.push(address.address.clone());
        }
    }
    names.iter().any(|name| name.parse::<std::net::IpAddr>().is_ok()).then_some(names)
}

#[cfg(test)]
mod tests {
    use proto::api::core::v1::{NodeAddress, NodeStatus};
    use proto::apimachinery::pkg::apis::meta::v1::ObjectMeta;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_wish_is_no_later_than_the_time_and_is_not_lost() {
        let file = PathBuf::from("/nonexistent");
        let mut params = rcgen::CertificateParams::new(vec!["n".into()]).expect("a name");
        params.not_before = time::OffsetDateTime::now_utc();
        params.not_after = params.not_before + time::Duration::days(10);
        let key = rcgen::KeyPair::generate().expect("a key");
        let made = params.self_signed(&key).expect("made").pem().into_bytes();
        let renewal = Renewal::default();
        let mut wish = renewal.wishes();
        // While another certificate is on its way.
        renewal.ask();
        let began = Instant::now();
        assert!(due(Some(made.clone()), &file, Duration::ZERO, &mut wish).await, "it is wanted until it is there");
        assert!(began.elapsed() < Duration::from_secs(1));
        assert!(!due(Some(made), &file, Duration::ZERO, &mut wish).await);
        assert!(began.elapsed() > Duration::from_secs(3600), "one wish, one certificate");
    }

    /// A server that answers everything with one code.
    struct Answers(u16);

    impl crate::api::Transport for Answers {
        fn send<'a>(
            &'a self,
            _request: http::Request<bytes::Bytes>,
        ) -> std::pin::Pin<
            Box<dyn Future<Output = Result<http::Response<crate::api::Body>, crate::api::ApiError>> + Send + 'a>,
        > {
            use http_body_util::BodyExt as _;
            let body = http_body_util::Full::new(bytes::Bytes::new()).map_err(Into::into).boxed_unsync();
            let answer = http::Response::builder().status(self.0).body(body);
            Box::pin(std::future::ready(answer.map_err(|e| crate::api::ApiError::Malformed(e.to_string()))))
        }
    }

    /// The agent asked for ever, as a user that is nobody to the server.
    #[tokio::test(start_paused = true)]
    async fn a_certificate_that_is_over_and_cannot_be_replaced_ends_the_agent() {
        let folder = std::env::temp_dir().join(format!("node-agent-over-{}", random_below(u32::MAX)));
        let pair = |days: i64| {
            let mut params = rcgen::CertificateParams::new(vec!["n".into()]).expect("a name");
            params.not_before = time::OffsetDateTime::now_utc() - time::Duration::days(9);
            params.not_after = time::OffsetDateTime::now_utc() + time::Duration::days(days);
            let key = rcgen::KeyPair::generate().expect("a key");
            params.self_signed(&key).expect("made").pem() + &key.serialize_pem()
        };
        let store = Store::client(&folder);
        let kept = async |code: u16, kubeconfig: PathBuf| {
            let client = Client::new(Arc::new(Answers(code)), &crate::api::ClientOptions::default());
            let login = ClientLogin { folder: folder.clone(), kubeconfig, source: None };
            let kept = keep_client(client, login, Arc::new(Renewal::default()), "n".into());
            tokio::time::timeout(Duration::from_secs(600), kept).await
        };
        let ends =
            async |code| kept(code, "/nonexistent".into()).await.map(|ended| ended.expect_err("over").to_string());
        store.keep(&pair(1)).expect("kept");
        assert!(ends(401).await.is_err(), "it is still good");
        store.keep(&pair(-1)).expect("kept");
        assert!(ends(503).await.is_err(), "the server may come back");
        let told = ends(401).await.expect("ended");
        assert!(told.starts_with("the client certificate is over"), "{told}");
        // Left from an earlier login, it is nothing to who shows a token.
        let other = folder.join("kubeconfig");
        let text = r#"{"current-context":"c","contexts":[{"name":"c","context":{"cluster":"k","user":"u"}}],
            "clusters":[{"name":"k","cluster":{"server":"https://a"}}],"users":[{"name":"u","user":{"token":"t"}}]}"#;
        std::fs::write(&other, text).expect("writes");
        assert!(matches!(kept(403, other).await, Ok(Ok(()))));
        std::fs::remove_dir_all(folder).expect("removes");
    }

    #[test]
    fn a_certificate_is_replaced_in_the_last_third_of_its_life() {
        let validity = Some(Validity { not_before: 1000, not_after: 2000 });
        assert_eq!(wait(validity, 1000, 0.0), Duration::from_secs(700));
        assert_eq!(wait(validity, 1100, 1.0), Duration::from_secs(800));
        assert_eq!(wait(validity, 1950, 0.5), Duration::ZERO);
        assert_eq!(wait(None, 0, 0.0), Duration::ZERO);
    }

    #[test]
    fn a_serving_certificate_waits_for_an_address_and_has_them_all() {
        let address = |kind: &str, address: &str| NodeAddress { r#type: kind.into(), address: address.into() };
        let node = |uid: &str, addresses: Vec<NodeAddress>| Node {
            metadata: Some(ObjectMeta { uid: uid.into(), ..ObjectMeta::default() }),
            status: Some(NodeStatus { addresses, ..NodeStatus::default() }),
            ..Node::default()
        };
        let (internal, host) = (address("InternalIP", "10.0.2.15"), address("Hostname", "n"));
        assert_eq!(names("n", &node("", vec![internal.clone()])), None, "only this agent knows it");
        assert_eq!(names("n", &node("u", vec![host.clone()])), None, "the cloud controller has not come yet");
        let all = vec![internal, address("ExternalIP", "192.0.2.7"), address("ExternalDNS", "n.example"), host];
        let wanted = ["n", "10.0.2.15", "192.0.2.7", "n.example"].map(str::to_owned).to_vec();
        assert_eq!(names("n", &node("u", all)), Some(wanted.clone()));
        let made = rcgen::generate_simple_self_signed(wanted.clone()).expect("made").cert.pem();
        assert!(is_for(made.as_bytes(), &wanted) && is_for(made.as_bytes(), &wanted[..2]));
        assert!(!is_for(made.as_bytes(), &["10.0.2.16".to_owned()]) && !is_for(b"", &wanted));
    }
}
