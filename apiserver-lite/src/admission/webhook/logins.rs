//! Who the server is for webhooks: the users of the kubeconfig that a WebhookAdmissionConfiguration names, by the hosts
//! that they are for.
//!
//! A user is named after a host and port, `*.` and the end of one, or `*`; of port 443 nothing need be said. Where none is
//! for a host, the current context's user is. Tokens are read whenever a webhook is asked, certificates whenever a
//! connection is made: files may be written anew, and programs (`exec`) may say something else. Follows
//! `apiserver/pkg/util/webhook/authentication.go`.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http::header::{AUTHORIZATION, HeaderMap, HeaderName, HeaderValue};
use rustls_pki_types::PrivateKeyDer;
use rustls_pki_types::pem::PemObject as _;
use serde_json::Value;

use crate::outgoing::exec::{Credentials, Exec};
use crate::outgoing::{Identity, certificates_of};
use crate::status::quote;
use crate::tree::{list, text};

/// The users of a kubeconfig.
#[derive(Debug, Default)]
pub struct Logins {
    users: HashMap<String, Arc<Login>>,
    /// The current context's.
    usual: Option<Arc<Login>>,
}

/// What a user shows.
pub struct Login {
    /// The user's name in its file.
    pub name: String,
    token: Option<HeaderValue>,
    token_file: Option<PathBuf>,
    password: Option<HeaderValue>,
    certificate: Option<Shown>,
    exec: Option<Exec>,
    /// Whom the user speaks for.
    others: Vec<(HeaderName, HeaderValue)>,
}

/// A certificate and its key.
enum Shown {
    Files(PathBuf, PathBuf),
    Data(Vec<u8>, Vec<u8>),
}

/// Without what is secret.
impl std::fmt::Debug for Login {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Login").field("name", &self.name).finish_non_exhaustive()
    }
}

impl Logins {
    /// Reads the configuration of a plugin that calls webhooks, and the kubeconfig that it names.
    ///
    /// # Errors
    /// What is wrong with either.
    pub fn read(configuration: &Value) -> Result<Self, String> {
        match (text(configuration, "apiVersion"), text(configuration, "kind")) {
            ("apiserver.config.k8s.io/v1", "WebhookAdmissionConfiguration")
            | ("apiserver.config.k8s.io/v1alpha1", "WebhookAdmission") => {}
            _ => return Err("must be a WebhookAdmissionConfiguration of apiserver.config.k8s.io/v1".into()),
        }
        let file = text(configuration, "kubeConfigFile");
        if !Path::new(file).is_absolute() {
            return Err(format!("kubeConfigFile: Invalid value: {}: must be an absolute file path", quote(file)));
        }
        let wrong = |why: String| format!("{file}: {why}");
        let content = std::fs::read(file).map_err(|e| wrong(e.to_string()))?;
        let config = proto::yaml::read(&content).map_err(|e| wrong(e.to_string()))?.value;
        Self::parse(&config, Path::new(file).parent().unwrap_or(Path::new("/"))).map_err(wrong)
    }

    fn parse(config: &Value, folder: &Path) -> Result<Self, String> {
        let mut users = HashMap::new();
        for entry in list(config, "users") {
            let name = text(entry, "name");
            let login = Login::parse(name, &entry["user"], folder);
            let login = login.map_err(|why| format!("user {}: {why}", quote(name)))?;
            // Of two with one name the first counts.
            users.entry(name.to_owned()).or_insert_with(|| Arc::new(login));
        }
        let current = text(config, "current-context");
        let context = list(config, "contexts").find(|c| !current.is_empty() && text(c, "name") == current);
        let usual = context.and_then(|c| users.get(text(&c["context"], "user")).cloned());
        Ok(Logins { users, usual })
    }

    /// The user for a host and port; None to say nothing.
    pub fn of(&self, target: &str) -> Option<&Arc<Login>> {
        let plain = target.strip_suffix(":443");
        let named = [Some(target), plain].into_iter().flatten().find_map(|target| self.named(target));
        named.or_else(|| self.users.get("*")).or(self.usual.as_ref())
    }

    fn named(&self, target: &str) -> Option<&Arc<Login>> {
        let ends = target.match_indices('.').map(|(at, _)| format!("*{}", &target[at..]));
        self.users.get(target).or_else(|| ends.into_iter().find_map(|end| self.users.get(&end)))
    }
}

impl Login {
    fn parse(name: &str, user: &Value, folder: &Path) -> Result<Self, String> {
        if user["auth-provider"].is_object() {
            return Err("auth provider not supported".into());
        }
        let said = |key: &str| Some(text(user, key)).filter(|said| !said.is_empty());
        let file = |key: &str| said(key).map(|path| folder.join(path));
        let data = |key: &str| -> Result<Option<Vec<u8>>, String> {
            said(key).map(|data| STANDARD.decode(data).map_err(|e| format!("{key}: {e}"))).transpose()
        };
        let secret = |value: String| {
            let mut header =
                HeaderValue::from_str(&value).map_err(|_| "the credentials cannot stand in a header".to_owned())?;
            header.set_sensitive(true);
            Ok::<_, String>(header)
        };
        let token = said("token").map(|token| secret(format!("Bearer {token}"))).transpose()?;
        let token_file = file("tokenFile");
        let password = match (said("username"), said("password")) {
            (None, None) => None,
            (name, password) => {
                let pair = format!("{}:{}", name.unwrap_or_default(), password.unwrap_or_default());
                Some(secret(format!("Basic {}", STANDARD.encode(pair)))?)
            }
        };
        if password.is_some() && (token.is_some() || token_file.is_some()) {
            return Err("username/password or bearer token may be set, but not both".into());
        }
        let certificate = match (data("client-certificate-data")?, data("client-key-data")?) {
            (Some(certificate), Some(key)) => Some(Shown::Data(certificate, key)),
            (None, None) => match (file("client-certificate"), file("client-key")) {
                (Some(certificate), Some(key)) => Some(Shown::Files(certificate, key)),
                (None, None) => None,
                _ => return Err("client-certificate and client-key have to be given together".into()),
            },
            _ => return Err("client-certificate-data and client-key-data have to be given together".into()),
        };
        let exec = &user["exec"];
        let exec = if exec.is_object() { Some(Exec::parse(name, exec, folder)?) } else { None };
        let others = others(user)?;
        // What cannot be read at all is told now.
        let now = match &certificate {
            None => None,
            Some(Shown::Data(certificate, key)) => Some((certificate.clone(), key.clone())),
            Some(Shown::Files(certificate, key)) => Some((read(certificate)?, read(key)?)),
        };
        now.map(identity).transpose()?;
        Ok(Login { name: name.into(), token, token_file, password, certificate, exec, others })
    }

    /// The certificate that connections show and its key, in PEM, as they are now.
    ///
    /// # Errors
    /// When they cannot be read, or a program does not tell them.
    pub async fn certificate(&self) -> Result<Option<Pem>, String> {
        let file = async |path: &Path| tokio::fs::read(path).await.map_err(|e| unread(path, &e));
        match (&self.certificate, &self.exec) {
            (Some(Shown::Files(certificate, key)), _) => Ok(Some((file(certificate).await?, file(key).await?))),
            (Some(Shown::Data(certificate, key)), _) => Ok(Some((certificate.clone(), key.clone()))),
            (None, Some(exec)) => Ok(exec.credentials().await?.certificate.clone()),
            (None, None) => Ok(None),
        }
    }

    /// What a program told was not good enough: it is asked anew.
    pub fn refused(&self, shown: &Arc<Credentials>) {
        if let Some(exec) = &self.exec {
            exec.refused(shown);
        }
    }

    /// Adds to the headers of a request who asks. A token's file counts before the token that is written beside it.
    /// Where a program tells it, that is returned.
    ///
    /// # Errors
    /// When a program should tell it and does not.
    pub async fn sign(&self, headers: &mut HeaderMap) -> Result<Option<Arc<Credentials>>, String> {
        for (name, value) in &self.others {
            headers.append(name, value.clone());
        }
        let of_file = match &self.token_file {
            Some(path) => tokio::fs::read_to_string(path).await.ok(),
            None => None,
        };
        let of_file = of_file.map(|token| token.trim().to_owned()).filter(|token| !token.is_empty());
        let of_file = of_file.and_then(|token| HeaderValue::from_str(&format!("Bearer {token}")).ok());
        if let Some(mut shown) = of_file.or_else(|| self.token.clone()).or_else(|| self.password.clone()) {
            shown.set_sensitive(true);
            headers.insert(AUTHORIZATION, shown);
            return Ok(None);
        }
        let Some(exec) = &self.exec else { return Ok(None) };
        let told = exec.credentials().await?;
        if let Some(token) = &told.token {
            headers.insert(AUTHORIZATION, token.clone());
        }
        Ok(Some(told))
    }
}

/// A certificate and its key in PEM.
pub type Pem = (Vec<u8>, Vec<u8>);

/// The same as TLS takes them.
///
/// # Errors
/// When they are none.
pub fn identity((certificate, key): Pem) -> Result<Identity, String> {
    let key = PrivateKeyDer::from_pem_slice(&key).map_err(|e| format!("client-key-data: {e}"))?;
    Ok((certificates_of(&certificate).map_err(|e| e.to_string())?, key))
}

fn read(path: &Path) -> Result<Vec<u8>, String> {
    std::fs::read(path).map_err(|e| unread(path, &e))
}

fn unread(path: &Path, error: &std::io::Error) -> String {
    format!("{}: {error}", path.display())
}

/// Headers by which a user speaks for another.
fn others(user: &Value) -> Result<Vec<(HeaderName, HeaderValue)>, String> {
    if text(user, "as").is_empty() {
        return Ok(Vec::new());
    }
    let mut said: Vec<(String, &str)> = vec![("impersonate-user".into(), text(user, "as"))];
    said.extend(Some(text(user, "as-uid")).filter(|uid| !uid.is_empty()).map(|uid| ("impersonate-uid".into(), uid)));
    said.extend(list(user, "as-groups").filter_map(Value::as_str).map(|group| ("impersonate-group".into(), group)));
    for (key, values) in user["as-user-extra"].as_object().into_iter().flatten() {
        let escaped: String = key.bytes().map(escaped).collect();
        let values = values.as_array().into_iter().flatten().filter_map(Value::as_str);
        said.extend(values.map(|value| (format!("impersonate-extra-{escaped}"), value)));
    }
    let wrong = |key: &str| format!("{key} cannot stand in a header");
    said.into_iter()
        .map(|(key, value)| {
            let name = HeaderName::from_bytes(key.as_bytes()).map_err(|_| wrong(&key))?;
            Ok((name, HeaderValue::from_str(value).map_err(|_| wrong(&key))?))
        })
        .collect()
}

/// A byte as it may stand in the name of a header.
fn escaped(byte: u8) -> String {
    let fits = byte.is_ascii_alphanumeric() || b"!#$&'*+-.^_`|~".contains(&byte);
    if fits { char::from(byte).to_string() } else { format!("%{byte:02X}") }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn parse(users: &Value, current: &str) -> Result<Logins, String> {
        let config = json!({"users": users, "current-context": current,
            "contexts": [{"name": "c", "context": {"user": "usual"}}]});
        Logins::parse(&config, Path::new("/nowhere"))
    }

    #[test]
    fn a_user_is_found_by_host_then_by_its_ends() {
        let names = ["a.n.svc:8443", "a.n.svc", "*.n.svc", "*.svc:8443", "*.example.com", "usual"];
        let users: Vec<Value> = names.iter().map(|name| json!({"name": name, "user": {"token": "t"}})).collect();
        let logins = parse(&json!(users), "c").expect("users");
        let of = |target: &str| logins.of(target).map(|login| login.name.clone()).unwrap_or_default();
        for (target, name) in [
            ("a.n.svc:8443", "a.n.svc:8443"),
            ("a.n.svc:443", "a.n.svc"),
            ("b.n.svc:443", "*.n.svc"),
            ("b.n.svc:8443", "*.svc:8443"),
            ("x.y.example.com:443", "*.example.com"),
            ("x.y.example.com:1", "usual"),
            ("example.com:443", "usual"),
        ] {
            assert_eq!(of(target), name, "{target}");
        }
        assert!(parse(&json!([{"name": "a", "user": {}}]), "c").expect("users").of("b:443").is_none());
        let star = parse(&json!([{"name": "*", "user": {}}, {"name": "usual", "user": {}}]), "c").expect("users");
        assert_eq!(star.of("b:443").map(|login| &*login.name), Some("*"));
    }

    #[tokio::test]
    async fn requests_say_who_asks() {
        let folder = std::env::temp_dir().join(format!("webhook-logins-{}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("a folder");
        std::fs::write(folder.join("token"), "new\n").expect("a file");
        let shown = async |user: Value| {
            let login = Login::parse("u", &user, &folder).expect("a user");
            let mut headers = HeaderMap::new();
            login.sign(&mut headers).await.expect("nothing is told by a program");
            let text = |value: &HeaderValue| value.to_str().expect("text").to_owned();
            let mut all: Vec<String> = headers.iter().map(|(name, value)| format!("{name}: {}", text(value))).collect();
            all.sort();
            all
        };
        assert_eq!(shown(json!({"token": "t"})).await, ["authorization: Bearer t"]);
        assert_eq!(shown(json!({"token": "t", "tokenFile": "token"})).await, ["authorization: Bearer new"]);
        assert_eq!(shown(json!({"token": "t", "tokenFile": "none"})).await, ["authorization: Bearer t"]);
        assert_eq!(shown(json!({"username": "a", "password": "b"})).await, ["authorization: Basic YTpi"]);
        let other = json!({"as": "x", "as-uid": "1", "as-groups": ["g", "h"], "as-user-extra": {"a/b": ["c"]}});
        let all = ["extra-a%2Fb: c", "group: g", "group: h", "uid: 1", "user: x"].map(|h| format!("impersonate-{h}"));
        assert_eq!(shown(other).await, all.map(|h| h.replace("%2F", "%2f")));
        assert!(shown(json!({})).await.is_empty());
        std::fs::remove_dir_all(&folder).expect("removed");
    }

    #[tokio::test]
    async fn a_certificate_is_the_one_that_its_files_have_now() {
        let folder = std::env::temp_dir().join(format!("webhook-certificates-{}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("a folder");
        let write = || {
            let key = rcgen::KeyPair::generate().expect("a key");
            let certificate = rcgen::CertificateParams::default().self_signed(&key).expect("a certificate");
            let both = certificate.pem() + &key.serialize_pem();
            std::fs::write(folder.join("both.pem"), both).expect("a file");
        };
        write();
        let files = json!({"client-certificate": "both.pem", "client-key": "both.pem"});
        let login = Login::parse("u", &files, &folder).expect("a user");
        let first = login.certificate().await.expect("files");
        assert!(first.clone().map(identity).is_some_and(|read| read.is_ok()));
        write();
        assert_ne!(login.certificate().await.expect("files"), first);
        std::fs::remove_dir_all(&folder).expect("removed");
        assert!(login.certificate().await.is_err());
    }

    #[test]
    fn what_cannot_be_used_is_told_at_the_start() {
        for (user, why) in [
            (json!({"exec": {"command": "x"}}), "user \"u\": apiVersion must be specified for u"),
            (json!({"auth-provider": {}}), "auth provider not supported"),
            (json!({"token": "t", "username": "u"}), "but not both"),
            (json!({"token": "a\nb"}), "cannot stand in a header"),
            (json!({"client-key": "k"}), "have to be given together"),
            (json!({"client-certificate": "c", "client-key": "k"}), "/nowhere/"),
            (json!({"client-certificate-data": "!", "client-key-data": "!"}), "client-certificate-data: "),
        ] {
            let error = parse(&json!([{"name": "u", "user": user}]), "").expect_err(why);
            assert!(error.contains(why), "{error}");
        }
        let read = |version: &str, file: &str| {
            let configuration = json!({"apiVersion": format!("apiserver.config.k8s.io/{version}"),
                "kind": "WebhookAdmissionConfiguration", "kubeConfigFile": file});
            Logins::read(&configuration).expect_err("wrong")
        };
        assert_eq!(read("v1", "a"), "kubeConfigFile: Invalid value: \"a\": must be an absolute file path");
        assert!(read("v1", "/nowhere/at/all").starts_with("/nowhere/at/all: No such file"));
        assert!(read("v2", "/").starts_with("must be a WebhookAdmissionConfiguration"));
    }
}
