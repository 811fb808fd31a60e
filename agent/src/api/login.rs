//! Credentials of a kubeconfig in use: the header, the certificate, the program that gives them.
//!
//! A token file is read again when it has aged, certificate files for each new connection, and the program is run when
//! the server takes what it gave for nobody's. Who asks is the transport, for every request and connection.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use base64::Engine as _;
use http::{HeaderName, HeaderValue};
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use tokio::sync::Mutex;
use tokio::time::Instant;

use super::exec_login::{ExecLogin, Given as Issued};
use super::kubeconfig::{Token, lasts};
use super::tls::{Pem, client_config};
use super::{ApiError, Kubeconfig, TlsError, server_name};
use crate::identity::Validity;
use crate::metrics;

/// client-go trusts a token file this long before it reads it again.
const TOKEN_FILE_AGE: Duration = Duration::from_secs(60);

/// Tells the metrics of a certificate that a program gave in place of another.
fn count_certificate(old: Option<&(Pem, Pem)>, new: Option<&(Pem, Pem)>) {
    let validity = |pair: Option<&(Pem, Pem)>| Validity::of(&pair?.0.read().ok()?);
    if let Some(old) = validity(old) {
        let lived = time::OffsetDateTime::now_utc().unix_timestamp() - old.not_before;
        metrics::REST_PLUGIN_ROTATION.observe(&[], metrics::page::to_float(u64::try_from(lived).unwrap_or(0)));
    }
    metrics::plugin_certificate_expires(validity(new).map_or(0, |new| new.not_after));
}

/// TLS settings and the text of the files that they were built from.
type BuiltTls = (Vec<Vec<u8>>, Arc<ClientConfig>);

/// The credentials of a kubeconfig, ready for use.
pub struct Login {
    config: Kubeconfig,
    token: Mutex<Option<(HeaderValue, Instant)>>,
    tls: std::sync::Mutex<Option<BuiltTls>>,
    /// A certificate that was asked for is there; it is not looked for again.
    come: AtomicBool,
    exec: Option<ExecLogin>,
    /// The certificate and key that the program gave last.
    issued: std::sync::Mutex<Option<(Pem, Pem)>>,
}

/// What a request is sent with.
#[derive(Default)]
pub(super) struct Shown {
    /// `Authorization`; None where a certificate does it.
    pub header: Option<HeaderValue>,
    /// What the program gave, where there is one.
    issued: Option<Arc<Issued>>,
    /// The certificate is another one than before: connections are to be made anew.
    pub changed: bool,
}

impl Login {
    pub(super) fn new(config: &Kubeconfig) -> Result<Self, TlsError> {
        Ok(Login {
            config: config.clone(),
            token: Mutex::new(None),
            tls: std::sync::Mutex::new(None),
            come: AtomicBool::new(!config.is_awaited()),
            exec: config.exec.clone().map(ExecLogin::new),
            issued: std::sync::Mutex::new(None),
        })
    }

    /// Headers of every request: whose rights it asks for.
    pub(super) fn impersonation(&self) -> &[(HeaderName, HeaderValue)] {
        self.config.impersonation()
    }

    /// What to send the next request with. May run the program that gives credentials.
    pub(super) async fn show(&self) -> Result<Shown, ApiError> {
        let header = self.authorization().await?;
        let Some(exec) = self.exec.as_ref().filter(|_| header.is_none() && !self.config.has_certificate()) else {
            return Ok(Shown { header, ..Shown::default() });
        };
        let issued =
            exec.credentials().await.map_err(|why| ApiError::Credentials(format!("getting credentials: {why}")))?;
        let mut kept = self.issued.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let changed = *kept != issued.pair;
        if changed {
            let old = std::mem::replace(&mut *kept, issued.pair.clone());
            count_certificate(old.as_ref(), issued.pair.as_ref());
        }
        Ok(Shown { header: issued.token.clone(), issued: Some(issued.clone()), changed })
    }

    /// The server took what was shown for nobody's. Of a program new credentials are got, for the next request.
    pub(super) async fn refused(&self, shown: &Shown) {
        if let (Some(exec), Some(issued)) = (&self.exec, &shown.issued)
            && let Err(error) = exec.refused(issued).await
        {
            tracing::error!(error, "refreshing credentials");
        }
    }

    /// The `Authorization` header, or None where a certificate does it.
    async fn authorization(&self) -> Result<Option<HeaderValue>, ApiError> {
        let Some(token) = &self.config.token else { return Ok(None) };
        let mut kept = self.token.lock().await;
        if let Some((value, read)) = kept.as_ref()
            && (!matches!(token, Token::File(..)) || read.elapsed() < TOKEN_FILE_AGE)
        {
            return Ok(Some(value.clone()));
        }
        let text = match token {
            Token::Bearer(token) => format!("Bearer {token}"),
            Token::Basic(name, password) => {
                format!("Basic {}", base64::engine::general_purpose::STANDARD.encode(format!("{name}:{password}")))
            }
            Token::File(path, instead) => match (tokio::fs::read_to_string(path).await, kept.as_ref()) {
                (Ok(text), _) if !text.trim().is_empty() => format!("Bearer {}", text.trim()),
                (Ok(_), _) if !instead.is_empty() => format!("Bearer {instead}"),
                (Ok(_), Some((value, _))) => return Ok(Some(value.clone())),
                (Ok(_), None) => {
                    return Err(ApiError::Credentials(format!("read empty token from file {:?}", path.display())));
                }
                // A file that is gone for a moment does not end a login that worked.
                (Err(error), Some((value, _))) => {
                    tracing::warn!(path = %path.display(), %error, "cannot read the token file again");
                    return Ok(Some(value.clone()));
                }
                (Err(_), None) if !instead.is_empty() => format!("Bearer {instead}"),
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

    /// Whether a certificate that was asked for has not come yet. One that is over, or cannot be read, is not the one.
    pub(super) fn is_waiting(&self) -> bool {
        if self.come.load(Ordering::Relaxed) {
            return false;
        }
        let come = self.config.certificate().is_none_or(|pem| pem.is_ok_and(|pem| lasts(&pem)));
        self.come.store(come, Ordering::Relaxed);
        !come
    }

    /// The TLS settings with the certificate files as they are now; built anew only when they changed.
    pub(super) fn tls(&self) -> Result<Arc<ClientConfig>, TlsError> {
        let config = &self.config;
        let issued = || self.issued.lock().unwrap_or_else(std::sync::PoisonError::into_inner).clone();
        let identity = config.identity().or_else(issued);
        let (certificate, key) = identity.as_ref().map_or((None, None), |(c, k)| (Some(c), Some(k)));
        if self.is_waiting() {
            return Err(TlsError::Awaited);
        }
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
    use super::super::kubeconfig::tests::{Folder, TEXT, made};
    use super::*;

    #[tokio::test]
    async fn a_token_holds_while_its_file_cannot_be_read() {
        let folder = Folder::new();
        let login = |user: &str| {
            let text = TEXT.replace(r#""tokenFile":"t""#, user);
            Login::new(&folder.parse(&text).expect("valid")).expect("a login")
        };
        let shown = async |login: Login| login.authorization().await.expect("a token").expect("a header");
        assert_eq!(shown(login(r#""tokenFile":"t","token":"instead""#)).await, "Bearer x");
        assert_eq!(shown(login(r#""tokenFile":"no","token":"instead""#)).await, "Bearer instead");
    }

    /// One that was left from earlier and is over was logged in with, until the new one was there.
    #[test]
    fn a_certificate_that_is_over_is_not_the_one_waited_for() {
        let folder = Folder::new();
        let pair = folder.0.join("pair.pem");
        let mut config = folder.parse(&TEXT.replace(",\"certificate-authority\":\"pki/ca.crt\"", "")).expect("valid");
        config.insecure = true;
        assert!(!Login::new(&config).expect("a login").is_waiting(), "its own is taken as it is");
        config.await_certificate(pair.clone());
        let login = Login::new(&config).expect("a login");
        for old in [None, Some("half of a certi".to_owned()), Some(made(-1))] {
            old.into_iter().for_each(|text| std::fs::write(&pair, text).expect("writes"));
            assert!(login.is_waiting() && matches!(login.tls(), Err(TlsError::Awaited)));
        }
        std::fs::write(&pair, made(1)).expect("writes");
        assert!(!login.is_waiting() && login.tls().is_ok());
        // From then on it is like any other: what becomes of it shows when it is used.
        std::fs::remove_file(&pair).expect("ours");
        assert!(!login.is_waiting() && matches!(login.tls(), Err(TlsError::Read { .. })));
    }
}
