//! Finding out about the cluster, and whether to believe it.

use std::path::Path;
use std::time::Duration;

use bytes::Bytes;
use http::{Method, Request, StatusCode};
use http_body_util::{BodyExt as _, Limited};
use ring::digest::{SHA256, digest};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;
use serde_json::{Value, json};
use x509_parser::prelude::{FromDer as _, X509Certificate};

use super::JoinError;
use super::jws::Token;
use crate::api::{ApiError, HttpTransport, Kubeconfig, Transport as _};

const CLUSTER_INFO: &str = "/api/v1/namespaces/kube-public/configmaps/cluster-info";
const WHO_AM_I: &str = "/apis/authentication.k8s.io/v1/selfsubjectreviews";
/// A config map is smaller.
const MAX_ANSWER_BYTES: usize = 2 << 20;
const PATIENCE: Duration = Duration::from_secs(30);

/// A cluster that is to be believed.
#[derive(Debug)]
pub struct Cluster {
    pub server: String,
    /// PEM of the authority.
    pub authority: String,
    /// Hash of its key.
    pub hash: String,
    /// Who the token's bearer is there.
    pub user: String,
}

/// A URL of a server, without a slash at the end.
///
/// # Errors
/// Anything but `https://HOST[:PORT]`.
pub fn url(text: &str) -> Result<String, JoinError> {
    let wrong = || JoinError::Usage(format!("{text:?} is no server; it looks like https://HOST:6443"));
    let uri: http::Uri = text.parse().map_err(|_| wrong())?;
    if uri.scheme_str() != Some("https") || !uri.path().trim_end_matches('/').is_empty() || uri.query().is_some() {
        return Err(wrong());
    }
    let authority = uri.authority().filter(|a| !a.host().is_empty() && !a.as_str().contains('@')).ok_or_else(wrong)?;
    Ok(format!("https://{authority}"))
}

/// The digest in `sha256:HEX`.
///
/// # Errors
/// Any other form.
pub fn hash(text: &str) -> Result<[u8; 32], JoinError> {
    let wrong = || JoinError::Usage(format!("--ca-hash {text:?}: must be sha256: and 64 hexadecimal digits"));
    let digits = text.strip_prefix("sha256:").filter(|d| d.len() == 64 && d.is_ascii()).ok_or_else(wrong)?;
    let mut out = [0; 32];
    for (at, byte) in out.iter_mut().enumerate() {
        *byte = u8::from_str_radix(&digits[2 * at..2 * at + 2], 16).map_err(|_| wrong())?;
    }
    Ok(out)
}

fn shown(hash: &[u8]) -> String {
    format!("sha256:{}", hash.iter().map(|b| format!("{b:02x}")).collect::<String>())
}

/// Hashes of the public keys of all certificates of a PEM text.
fn key_hashes(pem: &[u8]) -> Vec<Vec<u8>> {
    let certificates = CertificateDer::pem_slice_iter(pem).filter_map(Result::ok);
    let hashes = certificates.filter_map(|der| {
        let (_, certificate) = X509Certificate::from_der(&der).ok()?;
        Some(digest(&SHA256, certificate.public_key().raw).as_ref().to_vec())
    });
    hashes.collect()
}

impl Cluster {
    /// Asks the server who it is and verifies the answer.
    ///
    /// # Errors
    /// When nobody answers, or somebody who is not to be believed.
    pub async fn discover(server: &str, token: &Token, wanted: &[[u8; 32]]) -> Result<Self, JoinError> {
        let unverified =
            ask(server, &json!({"insecure-skip-tls-verify": true}), None, Method::GET, CLUSTER_INFO).await?;
        let info = Info::of(server, &unverified)?;
        let found = key_hashes(info.authority.as_bytes());
        let Some(hash) = found.iter().find(|found| wanted.iter().any(|w| w.as_slice() == found.as_slice())) else {
            let found = found.first().map_or_else(|| "none".to_owned(), |h| shown(h));
            return Err(JoinError::OtherAuthority { server: server.into(), found });
        };
        let unknown = || JoinError::UnknownToken { server: server.into(), id: token.id().into() };
        let signature = unverified["data"][format!("jws-kubeconfig-{}", token.id())].as_str().ok_or_else(unknown)?;
        if !token.has_signed(&info.kubeconfig, signature) {
            return Err(JoinError::BadSignature(server.into()));
        }
        // From here on the server has to show a certificate of that authority, for the name that it was asked by.
        let trusted = json!({"certificate-authority-data": encoded(&info.authority)});
        let review = json!({"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"});
        let who = ask(server, &trusted, Some((token, &review)), Method::POST, WHO_AM_I).await?;
        let user = who["status"]["userInfo"]["username"].as_str().unwrap_or_default().to_owned();
        Ok(Cluster { server: server.into(), hash: shown(hash), authority: info.authority, user })
    }
}

pub(super) fn encoded(text: &str) -> String {
    use base64::Engine as _;
    base64::engine::general_purpose::STANDARD.encode(text)
}

/// What the config map says.
struct Info {
    kubeconfig: String,
    authority: String,
}

impl Info {
    fn of(server: &str, map: &Value) -> Result<Self, JoinError> {
        use base64::Engine as _;
        let refused = |reason: &str| JoinError::Refused { server: server.into(), reason: reason.into() };
        let kubeconfig = map["data"]["kubeconfig"].as_str();
        let kubeconfig = kubeconfig.ok_or_else(|| refused("has a cluster-info without a kubeconfig"))?;
        let tree = crate::document::parse(kubeconfig.as_bytes());
        let tree = tree.map_err(|_| refused("has a cluster-info whose kubeconfig is not YAML"))?;
        let data = tree["clusters"][0]["cluster"]["certificate-authority-data"].as_str();
        let pem = data.and_then(|d| base64::engine::general_purpose::STANDARD.decode(d).ok());
        let authority = pem.and_then(|p| String::from_utf8(p).ok());
        let authority = authority.ok_or_else(|| refused("has a cluster-info without an authority"))?;
        Ok(Info { kubeconfig: kubeconfig.to_owned(), authority })
    }
}

/// One request and its JSON answer. `cluster` is how a kubeconfig says whom to trust.
async fn ask(
    server: &str,
    cluster: &Value,
    as_token: Option<(&Token, &Value)>,
    method: Method,
    path: &str,
) -> Result<Value, JoinError> {
    let refused = |reason: String| JoinError::Refused { server: server.into(), reason };
    let unreachable = |e: ApiError| JoinError::Unreachable { server: server.into(), reason: e.to_string() };
    let token = as_token.map(|(token, _)| token.bearer());
    let text = super::files::kubeconfig(server, cluster, token).to_string();
    let config = Kubeconfig::parse(text.as_bytes(), Path::new("join")).map_err(|e| refused(e.to_string()))?;
    let agent = format!("node-agent/{}", crate::node::KUBELET_VERSION);
    let transport = HttpTransport::new(&config, &agent).map_err(|e| refused(e.to_string()))?;
    let body = as_token.map(|(_, body)| Bytes::from(body.to_string())).unwrap_or_default();
    let request = Request::builder().method(method).uri(path);
    let request = request.header("accept", "application/json").header("content-type", "application/json").body(body);
    let request = request.map_err(|e| refused(e.to_string()))?;
    let answered = tokio::time::timeout(PATIENCE, async {
        let answer = transport.send(request).await.map_err(unreachable)?;
        let code = answer.status();
        let body = Limited::new(answer.into_body(), MAX_ANSWER_BYTES).collect().await;
        Ok::<_, JoinError>((code, body.map_err(|e| refused(format!("breaks off: {e}")))?.to_bytes()))
    });
    let (code, body) = answered.await.map_err(|_| refused("does not answer in time".into()))??;
    let value: Value = serde_json::from_slice(&body).unwrap_or_default();
    let said = value["message"].as_str().unwrap_or("nothing more");
    match (code, as_token) {
        (code, _) if code.is_success() => Ok(value),
        (StatusCode::UNAUTHORIZED, Some((token, _))) => {
            Err(JoinError::UnknownToken { server: server.into(), id: token.id().into() })
        }
        (StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN | StatusCode::NOT_FOUND, None) => {
            Err(refused(format!("does not tell who it is ({code}: {said}): nodes cannot join by tokens there")))
        }
        (code, _) => Err(refused(format!("answers {path} with {code}: {said}"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn servers_and_hashes_have_a_form() {
        assert_eq!(url("https://10.0.0.1:6443/").ok().as_deref(), Some("https://10.0.0.1:6443"));
        assert_eq!(url("https://[::1]:6443").ok().as_deref(), Some("https://[::1]:6443"));
        for bad in ["10.0.0.1:6443", "http://a", "https://", "https://a/b", "https://u@a", "https://a?b", ""] {
            assert!(url(bad).is_err(), "{bad}");
        }
        let text = format!("sha256:{}", "0f".repeat(32));
        assert_eq!(hash(&text).map(|h| shown(&h)).ok(), Some(text));
        for bad in
            ["sha256:", "0f", "sha256:zz", &format!("sha256:{}", "é".repeat(32)), &format!("md5:{}", "0".repeat(64))]
        {
            assert!(hash(bad).is_err(), "{bad}");
        }
    }

    /// As `openssl x509 -pubkey | openssl pkey -pubin -outform der | openssl dgst -sha256` has it.
    #[test]
    fn the_hash_is_of_the_public_key_alone() {
        let key = rcgen::KeyPair::generate().expect("a key");
        let pem = |name: &str| {
            let params = rcgen::CertificateParams::new(vec![name.to_owned()]).expect("a name");
            params.self_signed(&key).expect("signed").pem()
        };
        let of = |pem: &str| key_hashes(pem.as_bytes());
        assert_eq!(of(&pem("a")), of(&pem("b")), "a renewed certificate keeps its hash");
        let spki = rcgen::PublicKeyData::subject_public_key_info(&key);
        assert_eq!(of(&pem("a")), [digest(&SHA256, &spki).as_ref().to_vec()]);
        assert!(of("nothing").is_empty());
    }

    #[test]
    fn a_cluster_info_without_an_authority_is_refused() {
        assert!(Info::of("https://a", &json!({})).is_err());
        assert!(Info::of("https://a", &json!({"data": {"kubeconfig": "clusters: []"}})).is_err());
        let config = format!("clusters: [{{cluster: {{certificate-authority-data: {}}}}}]", encoded("pem"));
        let info = Info::of("https://a", &json!({"data": {"kubeconfig": config}})).expect("fine");
        assert_eq!(info.authority, "pem");
    }
}
