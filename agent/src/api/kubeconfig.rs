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
        let mut files = Vec::new();
        for pem in [&config.authority, &config.certificate, &config.key] {
            files.push(pem.as_ref().map_or(Ok(Vec::new()), Pem::read)?);
        }
        let mut kept = self.tls.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        if let Some((seen, tls)) = kept.as_ref()
            && *seen == files
        {
            return Ok(tls.clone());
        }
        let identity = match (&config.certificate, &config.key) {
            (Some(certificate), Some(key)) => Some((certificate, key)),
            (Some(certificate), None) => Some((certificate, certificate)),
            _ => None,
        };
        let tls = Arc::new(client_config(config.authority.as_ref(), config.insecure, identity)?);
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

    #[test]
    fn a_missing_context_is_named() {
        let text = TEXT.replace(r#""current-context":"c""#, r#""current-context":"x""#);
        let error = Kubeconfig::parse(text.as_bytes(), Path::new("k")).expect_err("no such context");
        assert_eq!(error.to_string(), r#"kubeconfig k: current-context names "x", which is not in the file"#);
    }
}
