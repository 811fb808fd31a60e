//! The kubeconfig file: which server, which trust, which credentials.
//!
//! Only what a node uses: the current context's cluster and user. File names in it are relative to the file itself.
//! Certificate, key and token files are read again when they are needed, so a rotation takes effect by itself.

use std::path::{Path, PathBuf};

use base64::Engine;
use http::{HeaderName, HeaderValue};
use serde_json::Value;

use super::TlsError;
use super::exec_login::{self, Exec};
use super::impersonation::impersonation;
use super::proxy::{Proxy, without_login};
use super::tls::{Pem, beside};
use crate::identity::Validity;

/// Why a kubeconfig cannot be used; the operator's to mend. The words are client-go's, where it has some.
#[derive(Debug, thiserror::Error)]
pub enum KubeconfigError {
    #[error("invalid kubeconfig: stat {path}: {}", io_words(.source))]
    Read { path: PathBuf, source: std::io::Error },
    #[error("invalid kubeconfig: error loading config file {path:?}: {reason}")]
    Syntax { path: PathBuf, reason: String },
    #[error("invalid kubeconfig: context was not found for specified context: {0}")]
    NoContext(String),
    /// What is there contradicts itself, or something is not there.
    #[error("invalid kubeconfig: invalid configuration: {0}")]
    Invalid(String),
    #[error("invalid kubeconfig: open {path}: {}", io_words(.source))]
    TokenFile { path: PathBuf, source: std::io::Error },
    /// Providers that were compiled in are no more; `exec` has taken their place.
    #[error("invalid kubeconfig: no Auth Provider found for name {0:?}")]
    NoProvider(String),
    #[error("invalid kubeconfig: {0}")]
    Exec(String),
}

/// The kernel's word on a file, as Go writes it: without the number.
pub fn io_words(error: &std::io::Error) -> String {
    let number = error.raw_os_error().map(nix::errno::Errno::from_raw);
    number.map_or_else(|| error.to_string(), |errno| errno.desc().to_lowercase())
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
    /// A program that gives credentials; what stands in the kubeconfig wins over it.
    pub(super) exec: Option<Exec>,
    /// By which the server is reached; None asks the environment.
    proxy: Option<Proxy>,
    /// Headers that ask for the rights of another user.
    impersonation: Vec<(HeaderName, HeaderValue)>,
    /// See [`Kubeconfig::follow_rotated`].
    rotated: Option<PathBuf>,
    /// See [`Kubeconfig::await_certificate`].
    awaited: bool,
}

#[derive(Clone, PartialEq, Eq)]
pub(super) enum Token {
    Bearer(String),
    /// The file, and what holds while it cannot be read; empty for nothing.
    File(PathBuf, String),
    Basic(String, String),
}

/// Without tokens and passwords.
impl std::fmt::Debug for Token {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Token::Bearer(_) => f.debug_tuple("Bearer").finish_non_exhaustive(),
            Token::File(path, _) => f.debug_tuple("File").field(path).finish_non_exhaustive(),
            Token::Basic(name, _) => f.debug_tuple("Basic").field(name).finish_non_exhaustive(),
        }
    }
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

    /// Logs in with the certificate and key that will be in the file `pair`. Until there is one that is not over, no connection
    /// is made: a server would take this user for nobody.
    pub fn await_certificate(&mut self, pair: PathBuf) {
        (self.certificate, self.key) = (Some(Pem::File(pair.clone())), Some(Pem::File(pair)));
        self.awaited = true;
    }

    pub(super) fn has_certificate(&self) -> bool {
        self.certificate.is_some()
    }

    /// Whether the certificate may still be on its way.
    pub(super) fn is_awaited(&self) -> bool {
        self.awaited
    }

    /// Headers that ask for the rights of another user.
    pub(super) fn impersonation(&self) -> &[(HeaderName, HeaderValue)] {
        &self.impersonation
    }

    /// The proxy by which the server is reached, if any. The environment's is left out where it is none, as Go does.
    ///
    /// # Errors
    /// The server has no URL.
    pub fn proxy(&self) -> Result<Option<Proxy>, TlsError> {
        self.proxy_in(|name| std::env::var(name).ok())
    }

    fn proxy_in(&self, env: impl Fn(&str) -> Option<String>) -> Result<Option<Proxy>, TlsError> {
        if let Some(proxy) = &self.proxy {
            return Ok(Some(proxy.clone()));
        }
        let server = self.server.parse().map_err(|_| TlsError::Server(self.server.clone()))?;
        Ok(Proxy::of_environment(&server, env).unwrap_or_else(|error| {
            tracing::warn!(error, server = self.server, "connecting without the proxy of the environment");
            None
        }))
    }

    /// Certificate and key to log in with now.
    pub(super) fn identity(&self) -> Option<(Pem, Pem)> {
        if let Some(path) = &self.rotated
            && let Ok(pem) = std::fs::read(path)
            && lasts(&pem)
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
        if !document.is_object() && !document.is_null() {
            return Err(syntax("not a mapping".into()));
        }
        let current = text_of(&document, "current-context");
        let context = match named(&document, "contexts", current, "context") {
            Some(context) => context,
            None if current.is_empty() => &Value::Null,
            None => return Err(KubeconfigError::NoContext(current.into())),
        };
        // A context may go without a user, or name one that is not there: anonymous. A cluster it needs.
        let (cluster_name, user_name) = (text_of(context, "cluster"), text_of(context, "user"));
        let cluster = named(&document, "clusters", cluster_name, "cluster").unwrap_or(&Value::Null);
        let user = named(&document, "users", user_name, "user").unwrap_or(&Value::Null);
        let read = Read { path, folder: path.parent().unwrap_or(Path::new(".")) };
        let (authority, certificate, key) = (
            read.pem(cluster, "certificate-authority-data", "certificate-authority")?,
            read.pem(user, "client-certificate-data", "client-certificate")?,
            read.pem(user, "client-key-data", "client-key")?,
        );
        let mut wrong = user_errors(user, user_name, (&certificate, &key));
        if cluster.as_object().is_none_or(serde_json::Map::is_empty) {
            if wrong.is_empty() {
                wrong.push(NOTHING.into());
            } else {
                wrong.push("cluster has no server defined".into());
            }
        } else {
            wrong.extend(cluster_errors(cluster, cluster_name, authority.as_ref()));
        }
        match wrong.as_slice() {
            [] => {}
            [one] => return Err(KubeconfigError::Invalid(one.clone())),
            many => return Err(KubeconfigError::Invalid(format!("[{}]", many.join(", ")))),
        }
        if let Some(provider) = user.get("auth-provider").filter(|v| !v.is_null()) {
            return Err(KubeconfigError::NoProvider(text_of(provider, "name").into()));
        }
        let authority = authority.map(|given| given.pem);
        let exec = Exec::of(user, cluster, authority.as_ref(), read.folder).map_err(KubeconfigError::Exec)?;
        let proxy = Some(text_of(cluster, "proxy-url")).filter(|url| !url.is_empty());
        Ok(Kubeconfig {
            server: text_of(cluster, "server").trim_end_matches('/').to_owned(),
            tls_server_name: text_of(cluster, "tls-server-name").to_owned(),
            insecure: cluster.get("insecure-skip-tls-verify").and_then(Value::as_bool).unwrap_or(false),
            authority,
            certificate: certificate.map(|given| given.pem),
            key: key.map(|given| given.pem),
            token: read.token(user)?,
            exec,
            // It has been looked at.
            proxy: proxy.and_then(|url| Proxy::parse(url).ok()),
            impersonation: impersonation(user).map_err(KubeconfigError::Invalid)?,
            rotated: None,
            awaited: false,
        })
    }
}

/// client-go's word for a context that leads nowhere.
const NOTHING: &str = "no configuration has been provided, try setting KUBERNETES_MASTER environment variable";

/// A certificate or key, and whether it stands in the kubeconfig although it names a file, too.
struct Given {
    pem: Pem,
    twice: bool,
    /// As the kubeconfig names it, absolute.
    file: PathBuf,
}

impl Given {
    /// What keeps the named file from being read; a file that is not used must be there all the same.
    fn unreadable(&self) -> Option<String> {
        let file = Some(&self.file).filter(|file| !file.as_os_str().is_empty())?;
        let error = std::fs::File::open(file).err()?;
        Some(format!("open {}: {}", file.display(), io_words(&error)))
    }
}

/// Reads parts of one file.
struct Read<'a> {
    path: &'a Path,
    folder: &'a Path,
}

impl Read<'_> {
    /// What is in place wins over a file.
    fn pem(&self, object: &Value, data: &str, file: &str) -> Result<Option<Given>, KubeconfigError> {
        let file = text_of(object, file);
        let path = if file.is_empty() { PathBuf::new() } else { beside(self.folder, file) };
        let embedded = text_of(object, data);
        if embedded.is_empty() {
            return Ok((!file.is_empty()).then(|| Given { pem: Pem::File(path.clone()), twice: false, file: path }));
        }
        let compact: String = embedded.split_whitespace().collect();
        let decoded = base64::engine::general_purpose::STANDARD.decode(compact).map_err(|error| {
            let at = match error {
                base64::DecodeError::InvalidByte(at, _) | base64::DecodeError::InvalidLastSymbol(at, _) => at,
                base64::DecodeError::InvalidLength(at) => at,
                base64::DecodeError::InvalidPadding => embedded.len(),
            };
            let reason = format!("{data}: illegal base64 data at input byte {at}");
            KubeconfigError::Syntax { path: self.path.to_owned(), reason }
        })?;
        Ok(Some(Given { pem: Pem::Data(decoded), twice: !file.is_empty(), file: path }))
    }

    /// A file wins over a token in place, as it is the one that gets refreshed; while it cannot be read, that token holds.
    fn token(&self, user: &Value) -> Result<Option<Token>, KubeconfigError> {
        let (file, bearer) = (text_of(user, "tokenFile"), text_of(user, "token"));
        if !file.is_empty() {
            let path = beside(self.folder, file);
            if bearer.is_empty()
                && let Err(source) = std::fs::read(&path)
            {
                return Err(KubeconfigError::TokenFile { path, source });
            }
            return Ok(Some(Token::File(path, bearer.to_owned())));
        }
        if !bearer.is_empty() {
            return Ok(Some(Token::Bearer(bearer.to_owned())));
        }
        let name = text_of(user, "username");
        Ok((!name.is_empty()).then(|| Token::Basic(name.to_owned(), text_of(user, "password").to_owned())))
    }
}

/// What of a cluster cannot be meant, in client-go's order and words.
fn cluster_errors(cluster: &Value, name: &str, authority: Option<&Given>) -> Vec<String> {
    let mut wrong = Vec::new();
    if text_of(cluster, "server").is_empty() {
        wrong.push(match name {
            "" => "default cluster has no server defined".to_owned(),
            name => format!("no server found for cluster {name:?}"),
        });
    }
    let proxy = text_of(cluster, "proxy-url");
    if !proxy.is_empty()
        && let Err(reason) = Proxy::parse(proxy)
    {
        let proxy = without_login(proxy);
        wrong.push(format!("invalid 'proxy-url' {proxy:?} for cluster {name:?}: {reason}"));
    }
    let Some(given) = authority else { return wrong };
    if given.twice {
        wrong.push(format!(
            "certificate-authority-data and certificate-authority are both specified for {name}. \
             certificate-authority-data will override."
        ));
    }
    if let Some(reason) = given.unreadable() {
        let file = given.file.display();
        wrong.push(format!("unable to read certificate-authority {file} for {name} due to {reason}"));
    }
    if cluster.get("insecure-skip-tls-verify").and_then(Value::as_bool) == Some(true) {
        wrong.push("specifying a root certificates file with the insecure flag is not allowed".into());
    }
    wrong
}

/// What of a user cannot be meant, in client-go's order and words.
fn user_errors(user: &Value, name: &str, (certificate, key): (&Option<Given>, &Option<Given>)) -> Vec<String> {
    let mut wrong = Vec::new();
    let mut methods = Vec::new();
    if !text_of(user, "token").is_empty() {
        methods.push("token");
    }
    if !text_of(user, "username").is_empty() || !text_of(user, "password").is_empty() {
        methods.push("basicAuth");
    }
    if let Some(certificate) = certificate {
        if certificate.twice {
            wrong.push(format!(
                "client-cert-data and client-cert are both specified for {name}. client-cert-data will override."
            ));
        }
        match key {
            Some(key) if key.twice => wrong.push(format!(
                "client-key-data and client-key are both specified for {name}; client-key-data will override"
            )),
            Some(_) => {}
            None => wrong.push(format!(
                "client-key-data or client-key must be specified for {name} to use the clientCert authentication method."
            )),
        }
        for (what, given) in [("client-cert", Some(certificate)), ("client-key", key.as_ref())] {
            if let Some((given, reason)) = given.and_then(|given| Some((given, given.unreadable()?))) {
                wrong.push(format!("unable to read {what} {} for {name} due to {reason}", given.file.display()));
            }
        }
    }
    wrong.extend(exec_login::errors(user, name));
    let of_somebody = ["as-uid", "as-groups", "as-user-extra"].iter().any(|key| match user.get(*key) {
        Some(Value::String(text)) => !text.is_empty(),
        Some(Value::Array(list)) => !list.is_empty(),
        Some(Value::Object(map)) => !map.is_empty(),
        _ => false,
    });
    if methods.len() > 1 {
        let found = methods.join(" ");
        wrong.push(format!(
            "more than one authentication method found for {name}; found [{found}], only one is allowed"
        ));
    }
    if of_somebody && text_of(user, "as").is_empty() {
        wrong.push(format!("requesting uid, groups or user-extra for {name} without impersonating a user"));
    }
    wrong
}

/// Whether there is a certificate in a PEM text that is not over.
pub(super) fn lasts(pem: &[u8]) -> bool {
    Validity::of(pem).is_some_and(|v| !v.is_over(time::OffsetDateTime::now_utc().unix_timestamp()))
}

fn text_of<'a>(object: &'a Value, key: &str) -> &'a str {
    object.get(key).and_then(Value::as_str).unwrap_or("")
}

fn named<'a>(document: &'a Value, list: &str, name: &str, field: &str) -> Option<&'a Value> {
    let entries = document.get(list)?.as_array()?;
    entries.iter().find(|e| text_of(e, "name") == name)?.get(field)
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// A folder with a kubeconfig's files; gone with the value.
    pub(in crate::api) struct Folder(pub PathBuf);

    impl Folder {
        pub fn new() -> Self {
            let name = format!("node-agent-kubeconfig-{}", crate::backoff::random_below(u32::MAX));
            let folder = Folder(std::env::temp_dir().join(name));
            std::fs::create_dir_all(folder.0.join("pki")).expect("a folder");
            for name in ["pki/ca.crt", "k.pem", "t"] {
                std::fs::write(folder.0.join(name), "x").expect("writes");
            }
            folder
        }

        pub fn parse(&self, text: &str) -> Result<Kubeconfig, KubeconfigError> {
            Kubeconfig::parse(text.as_bytes(), &self.0.join("kubeconfig"))
        }

        /// What is said of a cluster and a user.
        fn refused(&self, cluster: &str, user: &str) -> String {
            let text = format!(
                r#"{{"current-context":"c","contexts":[{{"name":"c","context":{{"cluster":"k","user":"u"}}}}],
                "clusters":[{{"name":"k","cluster":{cluster}}}],"users":[{{"name":"u","user":{user}}}]}}"#
            );
            self.parse(&text).map(|_| String::new()).unwrap_or_else(|error| error.to_string())
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            // Left for the system to clear away.
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    pub(in crate::api) const TEXT: &str = r#"{"apiVersion":"v1","kind":"Config","current-context":"c",
        "contexts":[{"name":"c","context":{"cluster":"k","user":"u"}}],
        "clusters":[{"name":"k","cluster":{"server":"https://127.0.0.1:6443/","certificate-authority":"pki/ca.crt"}}],
        "users":[{"name":"u","user":{"client-certificate-data":"YQ==","client-key":"k.pem","tokenFile":"t"}}]}"#;

    #[test]
    fn what_is_printed_of_a_kubeconfig_holds_no_secret() {
        let folder = Folder::new();
        let exec = r#"{"exec":{"apiVersion":"client.authentication.k8s.io/v1","command":"sh","args":["-p","secret"],
            "env":[{"name":"A","value":"secret"}],"interactiveMode":"Never"}}"#;
        for user in [
            r#"{"token":"secret"}"#,
            r#"{"token":"secret","tokenFile":"t"}"#,
            r#"{"username":"u","password":"secret"}"#,
            r#"{"client-certificate-data":"c2VjcmV0","client-key-data":"c2VjcmV0"}"#,
            exec,
        ] {
            let cluster = r#"{"server":"https://a","proxy-url":"http://u:secret@p"}"#;
            let text = format!(
                r#"{{"current-context":"c","contexts":[{{"name":"c","context":{{"cluster":"k","user":"u"}}}}],
                "clusters":[{{"name":"k","cluster":{cluster}}}],"users":[{{"name":"u","user":{user}}}]}}"#
            );
            let printed = format!("{:?}", folder.parse(&text).expect("valid"));
            // As text, and as the bytes of one.
            assert!(!printed.contains("secret") && !printed.contains("115, 101, 99"), "{printed}");
            assert!(printed.contains("https://a"), "{printed}");
        }
    }

    #[test]
    fn names_are_relative_to_the_file_and_data_is_decoded() {
        let folder = Folder::new();
        let config = folder.parse(TEXT).expect("valid");
        assert_eq!(config.server, "https://127.0.0.1:6443");
        assert_eq!(config.authority, Some(Pem::File(folder.0.join("pki/ca.crt"))));
        assert_eq!(config.certificate, Some(Pem::Data(b"a".to_vec())));
        assert_eq!(config.key, Some(Pem::File(folder.0.join("k.pem"))));
        assert_eq!(config.token, Some(Token::File(folder.0.join("t"), String::new())));
    }

    /// Two ways to say one thing went by silently, and a file that was not there showed at the first connection.
    #[test]
    fn what_contradicts_itself_or_is_not_there_is_refused_in_client_gos_words() {
        let folder = Folder::new();
        let said = |cluster: &str, user: &str| {
            let text = folder.refused(cluster, user).replace(&folder.0.display().to_string(), "$D");
            text.strip_prefix("invalid kubeconfig: invalid configuration: ").map_or(text.clone(), str::to_owned)
        };
        let server = r#"{"server":"https://a"}"#;
        assert_eq!(said(server, "{}"), "");
        assert_eq!(said("{}", "{}"), NOTHING);
        assert_eq!(said(r#"{"tls-server-name":"x"}"#, "{}"), r#"no server found for cluster "k""#);
        let both = r#"{"server":"https://a","certificate-authority":"pki/ca.crt","certificate-authority-data":"YQ=="}"#;
        let words = "certificate-authority-data and certificate-authority are both specified for k. \
                     certificate-authority-data will override.";
        assert_eq!(said(both, "{}"), words);
        assert_eq!(
            said(r#"{"server":"https://a","certificate-authority":"no.crt"}"#, "{}"),
            "unable to read certificate-authority $D/no.crt for k due to open $D/no.crt: no such file or directory"
        );
        assert_eq!(
            said(
                r#"{"server":"https://a","insecure-skip-tls-verify":true,"certificate-authority":"pki/ca.crt"}"#,
                "{}"
            ),
            "specifying a root certificates file with the insecure flag is not allowed"
        );
        assert_eq!(
            said(server, r#"{"client-certificate":"k.pem"}"#),
            "client-key-data or client-key must be specified for u to use the clientCert authentication method."
        );
        assert_eq!(
            said(server, r#"{"token":"t","username":"n","client-certificate-data":"YQ==","client-key":"no"}"#),
            "[unable to read client-key $D/no for u due to open $D/no: no such file or directory, more than one \
             authentication method found for u; found [token basicAuth], only one is allowed]"
        );
        assert_eq!(
            said(r#"{"server":"https://a","proxy-url":"ftp://p"}"#, "{}"),
            r#"invalid 'proxy-url' "ftp://p" for cluster "k": unsupported scheme "ftp", must be http, https, or socks5"#
        );
        assert_eq!(said(r#"{"server":"https://a","proxy-url":"http://p"}"#, "{}"), "");
        assert_eq!(
            said(r#"{"server":"https://a","proxy-url":"http://u:pw@p:x"}"#, "{}"),
            r#"invalid 'proxy-url' "http://xxxxx@p:x" for cluster "k": could not parse: http://xxxxx@p:x"#
        );
        assert_eq!(
            said(server, r#"{"exec":{"command":"x"}}"#),
            "[apiVersion must be specified for u to use exec authentication plugin, interactiveMode must be specified for u \
             to use exec authentication plugin]"
        );
        let exec = r#"{"exec":{"command":"x","apiVersion":"client.authentication.k8s.io/v1beta1"}}"#;
        assert_eq!(said(server, exec), "");
        assert_eq!(
            said(server, r#"{"as-groups":["g"]}"#),
            "requesting uid, groups or user-extra for u without impersonating a user"
        );
        assert_eq!(
            said(server, r#"{"auth-provider":{"name":"gcp"}}"#),
            "invalid kubeconfig: no Auth Provider found for name \"gcp\""
        );
        assert_eq!(said(server, r#"{"tokenFile":"no"}"#), "invalid kubeconfig: open $D/no: no such file or directory");
        assert_eq!(said(server, r#"{"tokenFile":"no","token":"instead"}"#), "");
        assert!(
            said(r#"{"server":"https://a","certificate-authority-data":"%"}"#, "{}").contains("illegal base64 data")
        );
    }

    /// Whoever asked for the rights of somebody else got his own.
    /// An agent with such an environment did not start.
    #[test]
    fn a_proxy_of_the_environment_that_is_none_is_left_out() {
        let config = Kubeconfig { server: "https://a".into(), ..Folder::new().parse(TEXT).expect("valid") };
        let used = |url: &str| {
            let found = config.proxy_in(|name| (name == "HTTPS_PROXY").then(|| url.to_owned())).expect("no mistake");
            found.map(|proxy| proxy.place().1)
        };
        assert_eq!(["http://p:", " p:3128 "].map(used), [Some(80), Some(3128)]);
        assert_eq!(["socks4://p", "http://u:p@", "http://p:port"].map(used), [None; 3]);
    }

    /// A certificate with its key that is over so many days from now.
    pub(in crate::api) fn made(days: i64) -> String {
        let mut params = rcgen::CertificateParams::new(vec!["n".into()]).expect("a name");
        params.not_after = time::OffsetDateTime::now_utc() + time::Duration::days(days);
        let key = rcgen::KeyPair::generate().expect("a key");
        params.self_signed(&key).expect("made").pem() + &key.serialize_pem()
    }

    /// What was renewed into the certificate folder was never used where the kubeconfig has its certificate inside.
    #[test]
    fn a_renewed_pair_takes_the_place_of_the_one_in_the_file() {
        let file = std::env::temp_dir().join(format!("rotated-{}.pem", std::process::id()));
        let folder = Folder::new();
        let text = TEXT.replace(r#""client-key":"k.pem""#, r#""client-key-data":"YQ==""#);
        let mut config = folder.parse(&text).expect("valid");
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
    fn a_missing_context_is_named_and_without_one_there_is_nothing() {
        let folder = Folder::new();
        let current = |name: &str| {
            let text = TEXT.replace(r#""current-context":"c""#, &format!(r#""current-context":"{name}""#));
            folder.parse(&text).expect_err("no such context").to_string()
        };
        assert_eq!(current("x"), "invalid kubeconfig: context was not found for specified context: x");
        assert_eq!(current(""), format!("invalid kubeconfig: invalid configuration: {NOTHING}"));
        let missing = Kubeconfig::load(Path::new("/none.conf")).expect_err("no file").to_string();
        assert_eq!(missing, "invalid kubeconfig: stat /none.conf: no such file or directory");
    }
}
