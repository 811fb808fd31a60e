//! A [`Client`] from a kubeconfig file, as the flags of webhooks take it.

use std::path::{Path, PathBuf};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http::Uri;
use http::header::HeaderValue;
use rustls_pki_types::PrivateKeyDer;
use rustls_pki_types::pem::PemObject as _;
use serde_json::Value;

use super::client::TokenFile;
use super::exec::{Exec, bearer};
use super::{Client, Dialer, Identity, KnownBy, OutgoingError, Trust, certificates, certificates_of, identity, tls};

impl Client {
    /// Reads the current context of a kubeconfig. Files that it names are looked for beside it.
    ///
    /// # Errors
    /// What is missing or wrong.
    pub fn from_kubeconfig(path: &Path) -> Result<Self, OutgoingError> {
        let wrong = |why: String| OutgoingError::Settings(format!("{}: {why}", path.display()));
        let text = std::fs::read(path).map_err(|e| wrong(e.to_string()))?;
        let config = proto::yaml::read(&text).map_err(|e| wrong(e.to_string()))?.value;
        let folder = path.parent().unwrap_or(Path::new(""));
        parse(&config, folder).map_err(|error| match error {
            OutgoingError::Settings(why) => wrong(why),
            other => other,
        })
    }
}

fn settings(why: impl Into<String>) -> OutgoingError {
    OutgoingError::Settings(why.into())
}

/// The entry of a name in one of the lists.
fn named<'a>(config: &'a Value, list: &str, key: &str, name: &str) -> Option<&'a Value> {
    let entries = config[list].as_array()?;
    // A file with one entry needs no names.
    let found = entries.iter().find(|e| e["name"] == name).or_else(|| entries.first().filter(|_| entries.len() == 1));
    found.map(|e| &e[key])
}

fn parse(config: &Value, folder: &Path) -> Result<Client, OutgoingError> {
    let text = |value: &Value, key: &str| value[key].as_str().unwrap_or_default().to_owned();
    let file = |value: &Value, key: &str| -> Option<PathBuf> {
        value[key].as_str().filter(|t| !t.is_empty()).map(|t| folder.join(t))
    };
    let data = |value: &Value, key: &str| -> Result<Option<Vec<u8>>, OutgoingError> {
        let Some(text) = value[key].as_str().filter(|t| !t.is_empty()) else { return Ok(None) };
        STANDARD.decode(text).map(Some).map_err(|e| settings(format!("{key}: {e}")))
    };
    let context = named(config, "contexts", "context", &text(config, "current-context"));
    let name = |key: &str| context.map(|c| text(c, key)).unwrap_or_default();
    let cluster = named(config, "clusters", "cluster", &name("cluster"))
        .ok_or_else(|| settings("invalid configuration: no cluster has been provided"))?;
    let user = named(config, "users", "user", &name("user")).unwrap_or(&Value::Null);

    let uri: Uri = text(cluster, "server").parse().map_err(|e| settings(format!("server: {e}")))?;
    let host = uri.host().ok_or_else(|| settings("server: no host"))?;
    let host = host.trim_start_matches('[').trim_end_matches(']').to_owned();
    let secure = match uri.scheme_str() {
        Some("https") => true,
        Some("http") => false,
        other => return Err(settings(format!("server: scheme {} is not supported", other.unwrap_or("none")))),
    };
    let trust = if cluster["insecure-skip-tls-verify"] == true {
        Trust::Anything
    } else if let Some(pem) = data(cluster, "certificate-authority-data")? {
        Trust::Certificates(certificates_of(&pem)?)
    } else if let Some(path) = file(cluster, "certificate-authority") {
        Trust::Certificates(certificates(&path)?)
    } else {
        Trust::System
    };
    let shown: Option<Identity> = match (data(user, "client-certificate-data")?, data(user, "client-key-data")?) {
        (Some(certificate), Some(key)) => {
            let key = PrivateKeyDer::from_pem_slice(&key).map_err(|e| settings(format!("client-key-data: {e}")))?;
            Some((certificates_of(&certificate)?, key))
        }
        _ => match (file(user, "client-certificate"), file(user, "client-key")) {
            (Some(certificate), Some(key)) => Some(identity(&certificate, &key)?),
            _ => None,
        },
    };
    let (token, account, exec) = (text(user, "token"), text(user, "username"), &user["exec"]);
    let known_by = if let Some(path) = file(user, "tokenFile") {
        // What cannot be read at all is told now.
        Some(KnownBy::File(TokenFile::open(path)?))
    } else if !token.is_empty() {
        Some(KnownBy::Header(bearer(&token).map_err(settings)?))
    } else if !account.is_empty() {
        let pair = format!("Basic {}", STANDARD.encode(format!("{account}:{}", text(user, "password"))));
        let header = HeaderValue::from_str(&pair).map_err(|_| settings("the credentials cannot stand in a header"))?;
        Some(KnownBy::Header(header))
    } else if exec.is_object() {
        Some(KnownBy::Program(Exec::parse(&name("user"), exec, folder).map_err(settings)?))
    } else {
        None
    };
    let server_name = Some(text(cluster, "tls-server-name")).filter(|n| !n.is_empty()).unwrap_or_else(|| host.clone());
    let dialer = Dialer {
        port: uri.port_u16().unwrap_or(if secure { 443 } else { 80 }),
        host,
        tls: if secure { Some(tls(trust, shown)?) } else { None },
        name: server_name,
    };
    let path = uri.path_and_query().map_or("/", |p| p.as_str());
    Ok(Client::new(dialer, path.to_owned(), known_by))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_current_context_is_used_and_mistakes_are_named() {
        let config = json!({
            "clusters": [{"name": "a", "cluster": {"server": "http://a.example/x"}},
                {"name": "b", "cluster": {"server": "http://b.example:8080/authorize?v=1"}}],
            "contexts": [{"name": "c", "context": {"cluster": "b", "user": "u"}}],
            "current-context": "c",
            "users": [{"name": "u", "user": {"token": "t"}}],
        });
        let client = parse(&config, Path::new("")).expect("a client");
        assert_eq!(client.url(), "http://b.example:8080/authorize?v=1");
        for wrong in [
            json!({}),
            json!({"clusters": [{"name": "a", "cluster": {"server": "ftp://a"}}]}),
            json!({"clusters": [{"name": "a", "cluster": {"server": "https://a", "certificate-authority-data": "!"}}]}),
            json!({"clusters": [{"name": "a", "cluster": {"server": "http://a"}}],
                "users": [{"name": "u", "user": {"exec": {"command": "x"}}}]}),
        ] {
            assert!(parse(&wrong, Path::new("")).is_err(), "{wrong}");
        }
    }

    /// A token's file is written anew while the server runs, and a program may tell another token.
    #[tokio::test]
    async fn who_asks_is_told_as_the_file_says_now() {
        use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

        let folder = std::env::temp_dir().join(format!("kubeconfig-users-{}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("a folder");
        let listener = tokio::net::TcpListener::bind(("127.0.0.1", 0)).await.expect("a port");
        let port = listener.local_addr().expect("its address").port();
        let (told, mut heard) = tokio::sync::mpsc::unbounded_channel();
        tokio::spawn(async move {
            while let Ok((mut tcp, _)) = listener.accept().await {
                let mut head = vec![0; 4096];
                let length = tcp.read(&mut head).await.unwrap_or_default();
                let text = String::from_utf8_lossy(&head[..length]).into_owned();
                let shown = text.lines().find_map(|l| l.strip_prefix("authorization: ")).unwrap_or_default().to_owned();
                let _ = told.send(shown);
                let _ = tcp.write_all(b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 2\r\n\r\n{}").await;
            }
        });
        let client = |user: Value| {
            let config = json!({"clusters": [{"name": "a", "cluster": {"server": format!("http://127.0.0.1:{port}")}}],
                "users": [{"name": "u", "user": user}]});
            parse(&config, &folder).expect("a client")
        };
        let patience = std::time::Duration::from_secs(5);
        std::fs::write(folder.join("token"), "one\n").expect("a file");
        let by_file = client(json!({"tokenFile": "token"}));
        by_file.post(&json!({}), patience).await.expect("an answer");
        std::fs::write(folder.join("token"), "two\n").expect("a file");
        by_file.post(&json!({}), patience).await.expect("an answer");
        // While it is being written there is nothing in it, or it is not there.
        std::fs::write(folder.join("token"), "\n").expect("a file");
        by_file.post(&json!({}), patience).await.expect("an answer");
        let config = json!({"clusters": [{"name": "a", "cluster": {"server": "http://a.example"}}],
            "users": [{"name": "u", "user": {"tokenFile": "token"}}]});
        let told = parse(&config, &folder).err().expect("no token").to_string();
        assert!(told.starts_with("read empty token from file "), "{told}");
        std::fs::remove_file(folder.join("token")).expect("removed");
        by_file.post(&json!({}), patience).await.expect("an answer");
        let said =
            r#"{"kind":"ExecCredential","apiVersion":"client.authentication.k8s.io/v1","status":{"token":"three"}}"#;
        let exec = json!({"command": "echo", "args": [said], "apiVersion": "client.authentication.k8s.io/v1",
            "interactiveMode": "Never"});
        client(json!({"exec": exec})).post(&json!({}), patience).await.expect("an answer");
        for token in ["one", "two", "two", "two", "three"] {
            assert_eq!(heard.recv().await, Some(format!("Bearer {token}")));
        }
        std::fs::remove_dir_all(&folder).expect("removed");
    }
}
