//! What a driver is told besides the volume: the pod, tokens of its service account, secrets.

use std::collections::BTreeMap;
use std::time::{Duration, UNIX_EPOCH};

use proto::api::core::v1::Pod;
use proto::api::storage::v1::CsiDriverSpec;
use serde_json::{Value, json};

use crate::objects::{Objects, TokenQuery, Tokens};
use crate::pod::expand::NOT_TEXT;
use crate::pod::spec::PodExt;

use super::wanted::SecretName;

const TOKENS: &str = "csi.storage.k8s.io/serviceAccount.tokens";
/// As long as the API server gives a token without being asked.
const TOKEN_SECONDS: u64 = 3600;

/// The pod, for drivers with `podInfoOnMount`.
pub fn pod_info(pod: &Pod, inline: bool) -> BTreeMap<String, String> {
    let pairs = [
        ("pod.name", pod.name()),
        ("pod.namespace", pod.namespace()),
        ("pod.uid", pod.uid()),
        ("serviceAccount.name", pod.spec().service_account_name.as_str()),
        ("ephemeral", if inline { "true" } else { "false" }),
    ];
    pairs.into_iter().map(|(key, value)| (format!("csi.storage.k8s.io/{key}"), value.to_owned())).collect()
}

/// The data of a secret.
///
/// # Errors
/// The secret is not there, or has what is no text: a driver cannot be told of it.
pub async fn secret(objects: &dyn Objects, name: &Option<SecretName>) -> Result<BTreeMap<String, String>, String> {
    let Some((namespace, name)) = name else { return Ok(BTreeMap::new()) };
    let found = objects.secret(namespace, name).await.map_err(|e| {
        format!("fetching NodePublishSecretRef {namespace}/{name} failed: failed to find the secret {name} in the namespace {namespace} with error: {e}")
    })?;
    let text = |value: &[u8]| {
        String::from_utf8(value.to_vec()).map_err(|_| format!("rpc error: code = Internal desc = {NOT_TEXT}"))
    };
    found.data.iter().map(|(key, value)| Ok((key.clone(), text(value)?))).collect()
}

/// The tokens that the driver asks for, as the pair that goes into its context or its secrets.
///
/// # Errors
/// A token cannot be had.
pub async fn tokens(
    tokens: &dyn Tokens,
    pod: &Pod,
    driver: &CsiDriverSpec,
) -> Result<Option<(String, String)>, String> {
    if driver.token_requests.is_empty() {
        return Ok(None);
    }
    let mut map = serde_json::Map::new();
    for request in &driver.token_requests {
        let seconds = request.expiration_seconds.and_then(|s| u64::try_from(s).ok()).unwrap_or(TOKEN_SECONDS);
        let query = TokenQuery {
            namespace: pod.namespace().into(),
            service_account: pod.spec().service_account_name.clone(),
            audience: request.audience.clone(),
            expiration: Duration::from_secs(seconds),
            pod_name: pod.name().into(),
            pod_uid: pod.uid().into(),
        };
        let issued = tokens.issued(&query).await.map_err(|e| format!("failed to fetch service account tokens: {e}"))?;
        let until = issued.expires.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        let until = proto::time::Timestamp { seconds: i64::try_from(until).unwrap_or(i64::MAX), nanos: 0 };
        let entry = json!({"token": issued.token, "expirationTimestamp": until.to_seconds_text()});
        map.insert(request.audience.as_str().into(), entry);
    }
    Ok(Some((TOKENS.to_owned(), Value::Object(map).to_string())))
}

#[cfg(test)]
mod tests {
    use proto::api::core::v1::{ConfigMap, Secret, Service};
    use std::sync::Arc;

    use super::*;
    use crate::objects::{Answer, ObjectError};

    /// Has one secret for all who ask.
    struct OneSecret(Arc<Secret>);

    impl Objects for OneSecret {
        fn config_map<'a>(&'a self, _: &'a str, _: &'a str) -> Answer<'a, Result<Arc<ConfigMap>, ObjectError>> {
            Box::pin(std::future::pending())
        }
        fn secret<'a>(&'a self, _: &'a str, _: &'a str) -> Answer<'a, Result<Arc<Secret>, ObjectError>> {
            Box::pin(std::future::ready(Ok(self.0.clone())))
        }
        fn services<'a>(&'a self, _: &'a str) -> Answer<'a, Result<Vec<Arc<Service>>, ObjectError>> {
            Box::pin(std::future::pending())
        }
        fn register(&self, _: &Pod) {}
        fn unregister(&self, _: &str) {}
    }

    /// Drivers were given other words than the secret's, and might have refused a key or made another one of it.
    #[tokio::test]
    async fn a_secret_that_is_no_text_is_given_to_no_driver() {
        let of = async |value: &[u8]| {
            let data = [("k".to_owned(), value.to_vec().into())].into();
            let objects = OneSecret(Arc::new(Secret { data, ..Default::default() }));
            secret(&objects, &Some(("ns".into(), "s".into()))).await
        };
        assert_eq!(of(b"v").await, Ok([("k".to_owned(), "v".to_owned())].into()));
        let why = "rpc error: code = Internal desc = grpc: error while marshaling: string field contains invalid UTF-8";
        assert_eq!(of(b"v\xff").await, Err(why.into()));
    }

    #[test]
    fn a_driver_hears_of_the_pod_in_the_kubelets_words() {
        let info = pod_info(&Pod::default(), true);
        assert_eq!(info.get("csi.storage.k8s.io/ephemeral").map(String::as_str), Some("true"));
        assert_eq!(info.len(), 5);
    }
}
