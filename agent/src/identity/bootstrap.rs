//! The first client certificate, by a bootstrap token.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use rcgen::KeyPair;
use serde_json::{Value, json};

use super::request::{CLIENT, Prepared, RequestError};
use super::store::{Store, Validity};
use super::{IdentityError, rotation};
use crate::api::{Client, ClientOptions, HttpTransport, Kubeconfig};
use crate::backoff::Backoff;

/// Approval may be a person's.
const PATIENCE: Duration = Duration::from_secs(3600);

/// Between tries; as long as for the certificates that follow.
const FIRST_WAIT: Duration = Duration::from_secs(2);
const LAST_WAIT: Duration = Duration::from_secs(128);

/// The login that [`bootstrap`] ends with, before its certificate is there: the cluster of `source`, and the place where the
/// certificate will be. Connections are refused until then.
///
/// # Errors
/// When the bootstrap kubeconfig cannot be used.
pub fn login_to_come(source: &Path, folder: &Path) -> Result<Kubeconfig, IdentityError> {
    let bad = |reason: String| IdentityError::Bootstrap { path: source.to_owned(), reason };
    let store = Store::client(folder);
    let mut tree = kubeconfig(&cluster_of(source)?, &store);
    // A certificate that is named has to be there.
    tree["users"] = json!([]);
    let mut text = Vec::new();
    proto::yaml::write(&tree, &mut text);
    let mut login = Kubeconfig::parse(&text, source).map_err(|e| bad(e.to_string()))?;
    login.await_certificate(store.current());
    Ok(login)
}

/// Puts the first certificate into the folder: asks for one as the user of `source`, however often it takes. A request that is
/// refused, fails or is deleted is made anew after a while.
pub async fn bootstrap(source: &Path, folder: &Path, node: &str) {
    let mut backoff = Backoff::new(FIRST_WAIT, LAST_WAIT);
    while let Err(error) = attempt(source, folder, node).await {
        let wait = backoff.next_wait();
        tracing::error!(%error, ?wait, "no client certificate yet; asking again");
        tokio::time::sleep(wait).await;
    }
}

/// Makes the kubeconfig at `target`, with the cluster of `source` and the certificate that [`bootstrap`] put into the folder,
/// however often it takes: the certificate is there, and is not asked for again. The next start logs in with it.
pub async fn write_login(target: &Path, source: &Path, folder: &Path) {
    let (store, mut backoff) = (Store::client(folder), Backoff::new(FIRST_WAIT, LAST_WAIT));
    while let Err(error) = write(target, source, &store) {
        let wait = backoff.next_wait();
        tracing::error!(%error, ?wait, "no kubeconfig for the client certificate yet; writing it again");
        tokio::time::sleep(wait).await;
    }
    let waiting = store.key_in_waiting();
    // Without a kubeconfig the next start would have asked again, with the same key.
    if let Err(error) = std::fs::remove_file(&waiting)
        && error.kind() != std::io::ErrorKind::NotFound
    {
        tracing::warn!(%error, path = %waiting.display(), "cannot remove the key of a request that was granted");
    }
}

/// The cluster that a bootstrap kubeconfig is for.
fn cluster_of(source: &Path) -> Result<Value, IdentityError> {
    let bad = |reason: String| IdentityError::Bootstrap { path: source.to_owned(), reason };
    let text = std::fs::read(source).map_err(|e| bad(e.to_string()))?;
    let tree = proto::yaml::parse(&text).map_err(|e| bad(e.to_string()))?;
    cluster(&tree, source).ok_or_else(|| bad("the current context has no cluster".into()))
}

async fn attempt(source: &Path, folder: &Path, node: &str) -> Result<(), IdentityError> {
    let store = Store::client(folder);
    let bad = |reason: String| IdentityError::Bootstrap { path: source.to_owned(), reason };
    let client = client(source).map_err(bad)?;
    tracing::info!(source = %source.display(), "asking for the node's first client certificate");
    let answer = Prepared::with_key(key(&store)?, node, &[])?.obtain(&client, &CLIENT, PATIENCE).await;
    let pem = answer.inspect_err(|error| forget_refused(&store, error))?;
    store.keep(&pem)
}

fn write(target: &Path, source: &Path, store: &Store) -> Result<(), IdentityError> {
    let mut out = Vec::new();
    proto::yaml::write(&kubeconfig(&cluster_of(source)?, store), &mut out);
    if let Some(parent) = target.parent() {
        std::fs::create_dir_all(parent).map_err(|source| IdentityError::Write { path: parent.to_owned(), source })?;
    }
    crate::state_file::write(target, &out).map_err(|source| IdentityError::Write { path: target.to_owned(), source })
}

/// The key of a request that an earlier start has made and not seen answered, or a new one, which is kept: a restart must
/// not leave one more request behind.
fn key(store: &Store) -> Result<KeyPair, IdentityError> {
    let kept = std::fs::read_to_string(store.key_in_waiting()).ok();
    if let Some(key) = kept.and_then(|pem| KeyPair::from_pem(&pem).ok()) {
        return Ok(key);
    }
    let key = KeyPair::generate().map_err(RequestError::from)?;
    store.keep_key(&key.serialize_pem())?;
    Ok(key)
}

/// Takes away the key of a request that was refused: the same key makes the same request, which stays refused.
fn forget_refused(store: &Store, error: &RequestError) {
    let path = store.key_in_waiting();
    if matches!(error, RequestError::Refused { .. } | RequestError::Gone(_))
        && let Err(error) = std::fs::remove_file(&path)
    {
        tracing::warn!(%error, path = %path.display(), "cannot remove the key of a refused request");
    }
}

/// A client as the user of a kubeconfig.
pub(super) fn client(path: &Path) -> Result<Client, String> {
    let config = Kubeconfig::load(path).map_err(|e| e.to_string())?;
    let agent = format!("node-agent/{}", crate::node::KUBELET_VERSION);
    let transport = HttpTransport::new(&config, &agent).map_err(|e| e.to_string())?;
    Ok(Client::new(Arc::new(transport), &ClientOptions::default()))
}

/// Whether a certificate can be asked for as the user of the kubeconfig; nobody is asked.
///
/// # Errors
/// It cannot be read, or says nothing that could be used.
pub fn can_bootstrap(source: &Path) -> Result<(), IdentityError> {
    client(source).map(drop).map_err(|reason| IdentityError::Bootstrap { path: source.to_owned(), reason })
}

/// Whether a kubeconfig can be read, and a certificate in it, or the one in `rotated` that is used in its place, is not over.
pub fn is_usable(path: &Path, rotated: Option<&Store>) -> bool {
    let Ok(config) = Kubeconfig::load(path) else { return false };
    let Some(own) = config.certificate() else { return true };
    let lasts = |pem: Vec<u8>| Validity::of(&pem).is_some_and(|v| !v.is_over(rotation::now()));
    own.is_ok_and(lasts) || rotated.and_then(Store::read).is_some_and(lasts)
}

/// The cluster of the current context; a relative path in it is made absolute, as it will stand in another file.
fn cluster(tree: &Value, source: &Path) -> Option<Value> {
    let named = |list: &str, name: &str, field: &str| -> Option<Value> {
        let entries = tree.get(list)?.as_array()?;
        entries.iter().find(|e| e.get("name").and_then(Value::as_str) == Some(name))?.get(field).cloned()
    };
    let context = named("contexts", tree.get("current-context")?.as_str()?, "context")?;
    let mut cluster = named("clusters", context.get("cluster")?.as_str()?, "cluster")?;
    if let Some(file) = cluster.get_mut("certificate-authority")
        && let Some(text) = file.as_str().filter(|t| !t.is_empty())
    {
        let path = source.parent().unwrap_or(Path::new("/")).join(text);
        *file = json!(std::path::absolute(&path).unwrap_or(path));
    }
    Some(cluster)
}

fn kubeconfig(cluster: &Value, store: &Store) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "default-cluster", "cluster": cluster}],
        "contexts": [{
            "name": "default-context",
            "context": {"cluster": "default-cluster", "namespace": "default", "user": "default-auth"},
        }],
        "current-context": "default-context",
        "users": [{
            "name": "default-auth",
            "user": {"client-certificate": store.current(), "client-key": store.current()},
        }],
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_restart_asks_again_with_the_same_key() {
        use std::os::unix::fs::PermissionsExt as _;
        let folder = std::env::temp_dir().join(format!("node-agent-key-{}", crate::backoff::random_below(u32::MAX)));
        let store = Store::client(&folder);
        let first = key(&store).expect("a key").serialize_pem();
        assert_eq!(key(&store).expect("a key").serialize_pem(), first);
        let path = folder.join("kubelet-client.key.tmp");
        assert_eq!(std::fs::metadata(&path).expect("kept").permissions().mode() & 0o777, 0o600);
        std::fs::write(&path, "half of a key").expect("damaged");
        let second = key(&store).expect("another key").serialize_pem();
        assert_ne!(second, first);
        assert_eq!(key(&store).expect("a key").serialize_pem(), second);
        std::fs::remove_dir_all(folder).expect("removes");
    }

    #[test]
    fn the_new_kubeconfig_has_the_old_cluster_and_the_new_certificate() {
        let tree = json!({
            "current-context": "c",
            "contexts": [{"name": "c", "context": {"cluster": "k", "user": "u"}}],
            "clusters": [{"name": "k", "cluster": {"server": "https://a:1", "certificate-authority": "ca.crt"}}],
        });
        let cluster = cluster(&tree, Path::new("/etc/x/boot.conf")).expect("found");
        assert_eq!(cluster["certificate-authority"], "/etc/x/ca.crt");
        let folder = std::env::temp_dir().join(format!("node-agent-new-{}", crate::backoff::random_below(u32::MAX)));
        let store = Store::client(&folder);
        store.keep("certificate and key").expect("kept");
        let cluster = json!({"server": cluster["server"], "certificate-authority": store.current()});
        let made = kubeconfig(&cluster, &store);
        assert_eq!(made["users"][0]["user"]["client-key"], json!(store.current()));
        let mut text = Vec::new();
        proto::yaml::write(&made, &mut text);
        let read = Kubeconfig::parse(&text, Path::new("/etc/k.conf")).expect("a kubeconfig");
        assert_eq!(read.server, "https://a:1");
        std::fs::remove_dir_all(folder).expect("removes");
        assert!(!is_usable(Path::new("/nonexistent"), None));
    }

    #[test]
    fn a_login_to_come_is_there_before_its_certificate() {
        let folder = std::env::temp_dir().join(format!("node-agent-come-{}", crate::backoff::random_below(u32::MAX)));
        std::fs::create_dir_all(&folder).expect("a folder");
        let source = folder.join("boot.conf");
        assert!(login_to_come(&source, &folder).is_err(), "nothing to ask with");
        let text = json!({
            "current-context": "c",
            "contexts": [{"name": "c", "context": {"cluster": "k", "user": "u"}}],
            "clusters": [{"name": "k", "cluster": {"server": "https://a:1", "insecure-skip-tls-verify": true}}],
            "users": [{"name": "u", "user": {"token": "secret.token"}}],
        });
        std::fs::write(&source, text.to_string()).expect("writes");
        let login = login_to_come(&source, &folder).expect("a login");
        assert_eq!(login.server, "https://a:1");
        HttpTransport::new(&login, "test").expect("a transport whose certificate may come");
        assert!(login.certificate().expect("it will have one").is_err(), "there is none yet");
        std::fs::remove_dir_all(folder).expect("removes");
    }

    /// Each time it could not be written, a certificate was asked for once more, and kept.
    #[tokio::test(start_paused = true)]
    async fn what_cannot_be_written_yet_is_written_later() {
        let folder = std::env::temp_dir().join(format!("node-agent-late-{}", crate::backoff::random_below(u32::MAX)));
        let (store, blocked) = (Store::client(&folder.join("pki")), folder.join("etc"));
        let kept = key(&store).expect("a key").serialize_pem();
        let (source, target) = (folder.join("boot.conf"), blocked.join("k.conf"));
        let text = json!({
            "current-context": "c",
            "contexts": [{"name": "c", "context": {"cluster": "k", "user": "u"}}],
            "clusters": [{"name": "k", "cluster": {"server": "https://a:1"}}],
        });
        std::fs::write(&source, text.to_string()).expect("writes");
        std::fs::write(&blocked, "no folder").expect("writes");
        store.keep("certificate and key").expect("kept");
        let pki = folder.join("pki");
        let mut writing = std::pin::pin!(write_login(&target, &source, &pki));
        assert!(tokio::time::timeout(LAST_WAIT * 3, &mut writing).await.is_err(), "it cannot be written");
        assert_eq!(key(&store).expect("a key").serialize_pem(), kept, "a restart asks with the same key");
        std::fs::remove_file(&blocked).expect("ours");
        writing.await;
        assert_eq!(Kubeconfig::load(&target).expect("a kubeconfig").server, "https://a:1");
        assert!(!store.key_in_waiting().exists());
        let names = pki.read_dir().expect("a folder").flatten().filter(|entry| entry.path().is_file()).count();
        assert_eq!(names, 2, "one pair and the link to it");
        std::fs::remove_dir_all(folder).expect("removes");
    }

    #[test]
    fn only_a_refused_request_takes_its_key_along() {
        let folder = std::env::temp_dir().join(format!("node-agent-no-{}", crate::backoff::random_below(u32::MAX)));
        let store = Store::client(&folder);
        let first = key(&store).expect("a key").serialize_pem();
        forget_refused(&store, &RequestError::TooLate("csr".into()));
        assert_eq!(key(&store).expect("a key").serialize_pem(), first, "it may be answered yet");
        forget_refused(&store, &RequestError::Refused { name: "csr".into(), what: "denied", why: String::new() });
        assert_ne!(key(&store).expect("another key").serialize_pem(), first);
        std::fs::remove_dir_all(folder).expect("removes");
    }

    #[test]
    fn a_rotated_pair_makes_up_for_a_certificate_that_is_over() {
        let made = |days: i64| {
            let mut params = rcgen::CertificateParams::new(vec!["n".into()]).expect("a name");
            params.not_after = time::OffsetDateTime::now_utc() + time::Duration::days(days);
            let key = KeyPair::generate().expect("a key");
            params.self_signed(&key).expect("made").pem() + &key.serialize_pem()
        };
        let folder = std::env::temp_dir().join(format!("node-agent-old-{}", crate::backoff::random_below(u32::MAX)));
        let store = Store::client(&folder.join("pki"));
        let (target, own) = (folder.join("k.conf"), folder.join("own.pem"));
        std::fs::create_dir_all(&folder).expect("a folder");
        let text = json!({
            "current-context": "c",
            "contexts": [{"name": "c", "context": {"cluster": "k", "user": "u"}}],
            "clusters": [{"name": "k", "cluster": {"server": "https://a:1"}}],
            "users": [{"name": "u", "user": {"client-certificate": own, "client-key": own}}],
        });
        std::fs::write(&target, text.to_string()).expect("writes");
        std::fs::write(&own, made(1)).expect("writes");
        assert!(is_usable(&target, None) && is_usable(&target, Some(&store)));
        std::fs::write(&own, made(-1)).expect("writes");
        assert!(!is_usable(&target, None) && !is_usable(&target, Some(&store)));
        store.keep(&made(1)).expect("kept");
        assert!(is_usable(&target, Some(&store)) && !is_usable(&target, None), "who does not rotate does not use it");
        store.keep(&made(-1)).expect("kept");
        assert!(!is_usable(&target, Some(&store)));
        std::fs::remove_dir_all(folder).expect("removes");
    }
}
