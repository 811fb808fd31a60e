//! One certificate signing request: made, sent, waited for.

use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use proto::api::certificates::v1::{CertificateSigningRequest, CertificateSigningRequestSpec};
use rcgen::{CertificateParams, DistinguishedName, DnType, KeyPair, PublicKeyData};

use crate::api::{ApiError, Client, Kind, WatchEvent, WatchOptions};
use crate::backoff::Backoff;

/// Why no certificate came.
#[derive(Debug, thiserror::Error)]
pub enum RequestError {
    #[error("cannot make a key and a request: {0}")]
    Make(#[from] rcgen::Error),
    #[error("cannot send the certificate signing request: {0}")]
    Send(ApiError),
    #[error("certificate signing request {name} was {what}: {why}")]
    Refused { name: String, what: &'static str, why: String },
    /// Somebody deleted it; nobody will answer.
    #[error("certificate signing request {0} was deleted before it was answered")]
    Gone(String),
    #[error("certificate signing request {0} was not answered in time; approve it with kubectl certificate approve")]
    TooLate(String),
}

impl RequestError {
    /// Whether the server answered what shows that it works, and that the asker is nobody to it.
    pub(super) fn came_from_a_working_server(&self) -> bool {
        matches!(self, RequestError::Send(error) if matches!(error.code(), 401 | 403 | 404))
    }
}

/// What a certificate is for.
pub(super) struct Purpose {
    pub(super) signer: &'static str,
    pub(super) usages: &'static [&'static str],
}

pub(super) const CLIENT: Purpose =
    Purpose { signer: "kubernetes.io/kube-apiserver-client-kubelet", usages: &["digital signature", "client auth"] };
pub(super) const SERVING: Purpose =
    Purpose { signer: "kubernetes.io/kubelet-serving", usages: &["digital signature", "server auth"] };

/// A key and its request.
pub(super) struct Prepared {
    key: KeyPair,
    request: String,
    common_name: String,
}

impl Prepared {
    /// For `system:node:NAME` in `system:nodes`; `names` are DNS names and IP addresses.
    pub(super) fn new(node: &str, names: &[String]) -> Result<Self, RequestError> {
        Self::with_key(KeyPair::generate()?, node, names)
    }

    /// The same with a key that is there.
    pub(super) fn with_key(key: KeyPair, node: &str, names: &[String]) -> Result<Self, RequestError> {
        let mut params = CertificateParams::new(names.to_vec())?;
        let common_name = format!("system:node:{node}");
        params.distinguished_name = DistinguishedName::new();
        params.distinguished_name.push(DnType::OrganizationName, ORGANIZATION);
        params.distinguished_name.push(DnType::CommonName, common_name.as_str());
        let request = params.serialize_request(&key)?.pem()?;
        Ok(Prepared { key, request, common_name })
    }

    /// A name that is the same for the same key, so that a restart does not ask twice.
    fn digest(&self, purpose: &Purpose) -> String {
        let mut text = String::new();
        let mut write = |data: &[u8]| {
            text.push_str(&URL_SAFE_NO_PAD.encode(data));
            text.push('|');
        };
        write(&self.key.subject_public_key_info());
        write(self.common_name.as_bytes());
        write(ORGANIZATION.as_bytes());
        purpose.usages.iter().for_each(|usage| write(usage.as_bytes()));
        let hash = ring::digest::digest(&ring::digest::SHA512_256, text.as_bytes());
        format!("node-csr-{}", URL_SAFE_NO_PAD.encode(hash))
    }

    /// Sends the request and waits for the certificate: PEM of certificates, then the key.
    pub(super) async fn obtain(
        self,
        client: &Client,
        purpose: &Purpose,
        patience: Duration,
    ) -> Result<String, RequestError> {
        let mut object = CertificateSigningRequest {
            spec: Some(CertificateSigningRequestSpec {
                request: self.request.clone().into_bytes().into(),
                signer_name: purpose.signer.to_owned(),
                usages: purpose.usages.iter().map(|u| (*u).to_owned()).collect(),
                ..CertificateSigningRequestSpec::default()
            }),
            ..CertificateSigningRequest::default()
        };
        let name = self.digest(purpose);
        object.metadata_mut().name.clone_from(&name);
        match client.create("", &object).await {
            Ok(_) => tracing::info!(%name, signer = purpose.signer, "asked for a certificate"),
            // The name is the key's, so the request is the same.
            Err(error) if error.is_already_exists() => {
                tracing::info!(%name, "this certificate was asked for before; waiting for the answer");
            }
            Err(error) => return Err(RequestError::Send(error)),
        }
        let certificate = tokio::time::timeout(patience, issued(client, &name))
            .await
            .map_err(|_| RequestError::TooLate(name.clone()))??;
        Ok(format!("{}{}", certificate, self.key.serialize_pem()))
    }
}

const ORGANIZATION: &str = "system:nodes";

/// Follows the request until it is answered.
async fn issued(client: &Client, name: &str) -> Result<String, RequestError> {
    let mut backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(30));
    loop {
        match follow(client, name).await {
            Ok(Some(certificate)) => return Ok(certificate),
            Ok(None) => {}
            Err(Followed::Refused(error)) => return Err(error),
            Err(Followed::Api(error)) => tracing::warn!(%error, name, "cannot follow the certificate signing request"),
        }
        tokio::time::sleep(backoff.next_wait()).await;
    }
}

enum Followed {
    Refused(RequestError),
    Api(ApiError),
}

/// One look and one watch; None when the watch ends without an answer.
async fn follow(client: &Client, name: &str) -> Result<Option<String>, Followed> {
    let gone = || Followed::Refused(RequestError::Gone(name.to_owned()));
    let now: CertificateSigningRequest = match client.get("", name).await {
        Err(error) if error.is_not_found() => return Err(gone()),
        answer => answer.map_err(Followed::Api)?,
    };
    if let Some(certificate) = answer(&now).map_err(Followed::Refused)? {
        return Ok(Some(certificate));
    }
    let version = now.metadata().map(|m| m.resource_version.clone()).unwrap_or_default();
    let options = WatchOptions {
        field_selector: format!("metadata.name={name}"),
        resource_version: version,
        ..WatchOptions::default()
    };
    let mut watch = client.watch::<CertificateSigningRequest>("", &options).await.map_err(Followed::Api)?;
    while let Some(event) = watch.next().await.map_err(Followed::Api)? {
        match event {
            WatchEvent::Added(request) | WatchEvent::Modified(request) => {
                if let Some(certificate) = answer(&request).map_err(Followed::Refused)? {
                    return Ok(Some(certificate));
                }
            }
            // What was answered is deleted after a while; the answer may have come with the last state.
            WatchEvent::Deleted(request) => {
                return answer(&request).map_err(Followed::Refused)?.map(Some).ok_or_else(gone);
            }
            WatchEvent::Bookmark(_) | WatchEvent::Error(_) => {}
        }
    }
    Ok(None)
}

/// The certificate, nothing yet, or the refusal.
fn answer(request: &CertificateSigningRequest) -> Result<Option<String>, RequestError> {
    let Some(status) = &request.status else { return Ok(None) };
    for condition in &status.conditions {
        let what = match condition.r#type.as_str() {
            "Denied" => "denied",
            "Failed" => "not signed",
            _ => continue,
        };
        let name = request.metadata().map(|m| m.name.clone()).unwrap_or_default();
        return Err(RequestError::Refused { name, what, why: format!("{} {}", condition.reason, condition.message) });
    }
    Ok((!status.certificate.is_empty()).then(|| String::from_utf8_lossy(&status.certificate).into_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proto::api::certificates::v1::{CertificateSigningRequestCondition, CertificateSigningRequestStatus};

    #[test]
    fn a_request_is_named_by_its_key_and_purpose() {
        let prepared = Prepared::new("n", &[]).expect("a key");
        assert!(prepared.request.starts_with("-----BEGIN CERTIFICATE REQUEST-----"));
        assert_eq!(prepared.digest(&CLIENT), prepared.digest(&CLIENT));
        assert_ne!(prepared.digest(&CLIENT), prepared.digest(&SERVING));
        assert_eq!(prepared.digest(&CLIENT).len(), "node-csr-".len() + 43);
    }

    #[test]
    fn a_denial_is_final_and_silence_is_not() {
        let mut request = CertificateSigningRequest::default();
        assert!(answer(&request).expect("open").is_none());
        let mut status = CertificateSigningRequestStatus { certificate: b"pem".to_vec().into(), ..Default::default() };
        request.status = Some(status.clone());
        assert_eq!(answer(&request).expect("issued").as_deref(), Some("pem"));
        status.conditions = vec![CertificateSigningRequestCondition { r#type: "Denied".into(), ..Default::default() }];
        request.status = Some(status);
        assert!(answer(&request).is_err());
    }
}
