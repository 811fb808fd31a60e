//! The kubeconfig file: which server, which trust, which credentials.
//!
//! Only what a node uses: the current context's cluster and user. File names in it are relative to the file itself.
//! Certificate, key and token files are read again when they are needed, so a rotation takes effect by itself.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use base64::Engine;
use http::HeaderValue;
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use serde_json::Value;
use tokio::sync::Mutex;
use tokio::time::Instant;

use super::tls::{Pem, beside, client_config};
use super::{ApiError, TlsError, server_name};
use crate::identity::Validity;

/// client-go trusts a token file this long before it reads it again.
const TOKEN_FILE_AGE: Duration = Duration::from_secs(60);

/// Why a kubeconfig cannot be used; the operator's to mend.
#[derive(Debug, thiserror::Error)]
pub enum KubeconfigError {
    #[error("cannot read kubeconfig {path}: {source}")]
    Read { path: PathBuf, source: std::io::Error },
    #[error("kubeconfig {path}: {reason}")]
    Syntax { path: PathBuf, reason: String },
    #[error("kubeconfig {path}: {field} names {name:?}, which is not in the file")]
    Missing { path: PathBuf, field: &'static str, name: String },
    #[error("kubeconfig {path}: {field} is not base64")]
    Base64 { path: PathBuf, field: &'static str },
    #[error("kubeconfig {path}: user {user:?} logs in by {method}, which the agent does not support")]
    Unsupported { path: PathBuf, user: String, method: &'static str },
}

/// The current context of a kubeconfig.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Kubeconfig {
    /// URL of the API server.
    pub server: String,
    /// Name that the server's certificate must have instead of the URL's host; empty for that host.
    pub tls_server_name: String,
    pub insecure: bool,
    pub(super) authority: Option<Pem>,
    pub(super) certificate: Option<Pem>,
    pub(super) key: Option<Pem>,
    pub(super) token: Option<Token>,
    /// See [`Kubeconfig::follow_rotated`].
    rotated: Option<PathBuf>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Token {
    Bearer(String),
    File(PathBuf),
    Basic(String, String),
}

impl Kubeconfig {
    /// The client certificate as it is now, in PEM; None when the user logs in by other means.
    pub fn certificate(&self) -> Option<Result<Vec<u8>, super::TlsError>> {
        self.certificate.as_ref().map(Pem::read)
    }

    /// Logs in with the certificate and key in the file `pair` instead of the user's certificate, from when the file is
    /// there and as long as its certificate is not over. Users who log in by other means stay as they are.
    pub fn follow_rotated(&mut self, pair: PathBuf) {
        self.rotated = self.certificate.is_some().then_some(pair);
    }

    /// Certificate and key to log in with now.
    fn identity(&self) -> Option<(Pem, Pem)> {
        if let Some(path) = &self.rotated
            && let Ok(pem) = std::fs::read(path)
            && Validity::of(&pem).is_some_and(|v| !v.is_over(time::OffsetDateTime::now_utc().unix_timestamp()))
        {
            return Some((Pem::Data(pem.clone()), Pem::Data(pem)));
        }
        let certificate = self.certificate.clone()?;
        let key = self.key.clone().unwrap_or_else(|| certificate.clone());
        Some((certificate, key))
    }

    /// Reads the file at `path`.
    ///
    /// # Errors
    /// See [`KubeconfigError`]; all name the file.
    pub fn load(path: &Path) -> Result<Self, KubeconfigError> {
        let text = std::fs::read(path).map_err(|source| KubeconfigError::Read { path: path.to_owned(), source })?;
        Self::parse(&text, path)
    }

    /// Reads the text of a kubeconfig; `path` is for errors and relative names.
    ///
    /// # Errors
    /// See [`KubeconfigError`].
    pub fn parse(text: &[u8], path: &Path) -> Result<Self, KubeconfigError> {
        let syntax = |reason: String| KubeconfigError::Syntax { path: path.to_owned(), reason };
        let document = crate::document::parse(text).map_err(|e| syntax(e.to_string()))?;
        if !document.is_object() {
            return Err(syntax("not a mapping".into()));
        }
        let missing = |field, name: &str| KubeconfigError::Missing { path: path.to_owned(), field, name: name.into() };
        let current = text_of(&document, "current-context");
        let context =
            named(&document, "contexts", current, "context").ok_or_else(|| missing("current-context", current))?;
        let cluster_name = text_of(context, "cluster");
        let cluster = named(&document, "clusters", cluster_name, "cluster")
            .ok_or_else(|| missing("the context's cluster", cluster_name))?;
        let user_name = text_of(context, "user");
        // A context may go without a user: anonymous.
        let user = match named(&document, "users", user_name, "user") {
            Some(user) => user,
            None if user_name.is_empty() => &Value::Null,
            None => return Err(missing("the context's user", user_name)),
        };
        for method in ["exec", "auth-provider"] {
            if user.get(method).is_some_and(|v| !v.is_null()) {
                return Err(KubeconfigError::Unsupported { path: path.to_owned(), user: user_name.into(), method });
            }
        }
        let folder = path.parent().unwrap_or(Path::new("."));
        let pem = |object: &Value, data: &'static str, file: &str| -> Result<Option<Pem>, KubeconfigError> {
            let embedded = text_of(object, data);
            if !embedded.is_empty() {
                let compact: String = embedded.split_whitespace().collect();
                return base64::engine::general_purpose::STANDARD
                    .decode(compact)
                    .map(|data| Some(Pem::Data(data)))
                    .map_err(|_| KubeconfigError::Base64 { path: path.to_owned(), field: data });
            }
            let file = text_of(object, file);
            Ok((!file.is_empty()).then(|| Pem::File(beside(folder, file))))
        };
        let server = text_of(cluster, "server").trim_end_matches('/');
        if server.is_empty() {
            return Err(syntax(format!("cluster {cluster_name:?} has no server")));
        }
        Ok(Kubeconfig {
            server: server.to_owned(),
            tls_server_name: text_of(cluster, "tls-server-name").to_owned(),
            insecure: cluster.get("insecure-skip-tls-verify").and_then(Value::as_bool).unwrap_or(false),
            authority: pem(cluster, "certificate-authority-data", "certificate-authority")?,
            certificate: pem(user, "client-certificate-data", "client-certificate")?,
            key: pem(user, "client-key-data", "client-key")?,
            token: token(user, folder),
            rotated: None,
        })
    }
}

fn token(user: &Value, folder: &Path) -> Option<Token> {
    // A file wins over a token in place, as it is the one that gets refreshed.
    let file = text_of(user, "tokenFile");
    if !file.is_empty() {
        return Some(Token::File(beside(folder, file)));
    }
    let bearer = text_of(user, "token");
    if !bearer.is_empty() {
        return Some(Token::Bearer(bearer.to_owned()));
    }
    let name = text_of(user, "username");
    (!name.is_empty()).then(|| Token::Basic(name.to_owned(), text_of(user, "password").to_owned()))
}

fn text_of<'a>(object: &'a Value, key: &str) -> &'a str {
    object.get(key).and_then(Value::as_str).unwrap_or("")
}

fn named<'a>(document: &'a Value, list: &str, name: &str, field: &str) -> Option<&'a Value> {
    let entries = document.get(list)?.as_array()?;
    entries.iter().find(|e| text_of(e, "name") == name)?.get(field)
}

/// TLS settings and the text of the files that they were built from.
type BuiltTls = (Vec<Vec<u8>>, Arc<ClientConfig>);

/// The credentials of a kubeconfig, ready for use.
pub struct Login {
    config: Kubeconfig,
    token: Mutex<Option<(HeaderValue, Instant)>>,
    tls: std::sync::Mutex<Option<BuiltTls>>,
}

impl Login {
    pub(super) fn new(config: &Kubeconfig) -> Result<Self, TlsError> {
        Ok(Login { config: config.clone(), token: Mutex::new(None), tls: std::sync::Mutex::new(None) })
    }

    /// The `Authorization` header, or None where a certificate does it.
    pub(super) async fn authorization(&self) -> Result<Option<HeaderValue>, ApiError> {
        let Some(token) = &self.config.token else { return Ok(None) };
        let mut kept = self.token.lock().await;
        if let Some((value, read)) = kept.as_ref()
            && (!matches!(token, Token::File(_)) || read.elapsed() < TOKEN_FILE_AGE)
        {
            return Ok(Some(value.clone()));
        }
        let text = match token {
            Token::Bearer(token) => format!("Bearer {token}"),
            Token::Basic(name, password) => {
                format!("Basic {}", base64::engine::general_purpose::STANDARD.encode(format!("{name}:{password}")))
            }
            Token::File(path) => match (tokio::fs::read_to_string(path).await, kept.as_ref()) {
                (Ok(text), _) => format!("Bearer {}", text.trim()),
                // A file that is gone for a moment does not end a login that worked.
                (Err(error), Some((value, _))) => {
                    tracing::warn!(path = %path.display(), %error, "cannot read the token file again");
                    return Ok(Some(value.clone()));
                }
                (Err(error), None) => {
                    return Err(ApiError::Credentials(format!("cannot read {}: {error}", path.display())));
                }
            },
        };
        let mut value = HeaderValue::from_str(&text)
            .map_err(|_| ApiError::Credentials("the token holds characters that a header cannot".into()))?;
        value.set_sensitive(true);
        *kept = Some((value.clone(), Instant::now()));
        Ok(Some(value))
    }

    /// The TLS settings with the certificate files as they are now; built anew only when they changed.
    pub(super) fn tls(&self) -> Result<Arc<ClientConfig>, TlsError> {
        let config = &self.config;
        let identity = config.identity();
        let (certificate, key) = identity.as_ref().map_or((None, None), |(c, k)| (Some(c), Some(k)));
        let mut files = Vec::new();
        for pem in [config.authority.as_ref(), certificate, key] {
            files.push(pem.map_or(Ok(Vec::new()), Pem::read)?);
        }
        let mut kept = self.tls.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        if let Some((seen, tls)) = kept.as_ref()
            && *seen == files
        {
            return Ok(tls.clone());
        }
        let tls = Arc::new(client_config(config.authority.as_ref(), config.insecure, certificate.zip(key))?);
        *kept = Some((files, tls.clone()));
        Ok(tls)
    }

    pub(super) fn server_name(&self, host: &str) -> Result<ServerName<'static>, TlsError> {
        match self.config.tls_server_name.as_str() {
            "" => server_name(host),
            name => server_name(name),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = r#"{"apiVersion":"v1","kind":"Config","current-context":"c",
        "contexts":[{"name":"c","context":{"cluster":"k","user":"u"}}],
        "clusters":[{"name":"k","cluster":{"server":"https://127.0.0.1:6443/","certificate-authority":"pki/ca.crt"}}],
        "users":[{"name":"u","user":{"client-certificate-data":"YQ==","client-key":"/k.pem","tokenFile":"t"}}]}"#;

    #[test]
    fn names_are_relative_to_the_file_and_data_is_decoded() {
        let config = Kubeconfig::parse(TEXT.as_bytes(), Path::new("/etc/node/kubeconfig")).expect("valid");
        assert_eq!(config.server, "https://127.0.0.1:6443");
        assert_eq!(config.authority, Some(Pem::File("/etc/node/pki/ca.crt".into())));
        assert_eq!(config.certificate, Some(Pem::Data(b"a".to_vec())));
        assert_eq!(config.key, Some(Pem::File("/k.pem".into())));
        assert_eq!(config.token, Some(Token::File("/etc/node/t".into())));
    }

    /// What was renewed into the certificate folder was never used where the kubeconfig has its certificate inside.
    #[test]
    fn a_renewed_pair_takes_the_place_of_the_one_in_the_file() {
        let made = |days: i64| {
            let mut params = rcgen::CertificateParams::new(vec!["n".into()]).expect("a name");
            params.not_after = time::OffsetDateTime::now_utc() + time::Duration::days(days);
            let key = rcgen::KeyPair::generate().expect("a key");
            params.self_signed(&key).expect("made").pem() + &key.serialize_pem()
        };
        let file = std::env::temp_dir().join(format!("rotated-{}.pem", std::process::id()));
        let text = TEXT.replace("\"/k.pem\"", "\"\"");
        let mut config = Kubeconfig::parse(text.as_bytes(), Path::new("/k")).expect("valid");
        config.follow_rotated(file.clone());
        let own = Pem::Data(b"a".to_vec());
        assert_eq!(config.identity(), Some((own.clone(), own.clone())));
        let pair = made(5);
        std::fs::write(&file, &pair).expect("writes");
        assert_eq!(config.identity().expect("a pair").0, Pem::Data(pair.into_bytes()));
        std::fs::write(&file, made(-1)).expect("writes");
        assert_eq!(config.identity().expect("its own").0, own, "one that is over is no use");
        std::fs::remove_file(file).expect("ours");
        let mut token = Kubeconfig { certificate: None, ..config };
        token.follow_rotated("/x".into());
        assert_eq!((token.identity(), token.rotated), (None, None));
    }

    #[test]
    fn a_missing_context_is_named() {
        let text = TEXT.replace(r#""current-context":"c""#, r#""current-context":"x""#);
        let error = Kubeconfig::parse(text.as_bytes(), Path::new("k")).expect_err("no such context");
        assert_eq!(error.to_string(), r#"kubeconfig k: current-context names "x", which is not in the file"#);
    }
}
