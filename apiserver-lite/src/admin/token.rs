//! `apiserver-lite token`: bootstrap tokens on the running server.

use std::path::Path;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http::Method;
use http::header::{ACCEPT, CONTENT_TYPE, HeaderMap, HeaderValue};
use proto::time::Timestamp;
use ring::digest::{SHA256, digest};
use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject as _;
use serde_json::Value;
use x509_parser::prelude::{FromDer as _, X509Certificate};

use super::flags::{CreateArgs, TokenArgs, TokenCommand};
use super::{AdminError, say};
use crate::bootstrap_token::{BootstrapToken, Expiry, NAMESPACE, TYPE, USAGES, is_group, is_id, name_of, split};
use crate::outgoing::Client;

const PATIENCE: Duration = Duration::from_secs(30);

pub(super) async fn run(args: &TokenArgs) -> Result<(), AdminError> {
    let path = args.kubeconfig.clone().unwrap_or_else(|| args.data_dir.join("admin.conf"));
    match &args.command {
        TokenCommand::Create(create) => {
            // What is wrong with the command is said before anybody is asked.
            let token = wanted(create, Timestamp::now().seconds)?;
            Api::open(&path)?.create(create, &token).await
        }
        TokenCommand::List => Api::open(&path)?.list().await,
        TokenCommand::Delete(delete) => {
            let ids = delete.tokens.iter().map(|t| id_of(t)).collect::<Result<Vec<_>, _>>()?;
            let api = Api::open(&path)?;
            for id in ids {
                api.ask(Method::DELETE, &format!("{}/{}", secrets(), name_of(id)), Value::Null).await?;
                say(&format!("bootstrap token {id:?} deleted"))?;
            }
            Ok(())
        }
    }
}

fn usage(text: String) -> AdminError {
    AdminError::Usage(text)
}

fn id_of(text: &str) -> Result<&str, AdminError> {
    let id = split(text).map(|(id, _)| id).or_else(|| is_id(text).then_some(text));
    id.ok_or_else(|| usage(format!("{text:?} is neither a token nor a token's first six characters")))
}

/// The token that the flags ask for.
fn wanted(args: &CreateArgs, now: i64) -> Result<BootstrapToken, AdminError> {
    let (id, secret) = match &args.token {
        None => BootstrapToken::random(),
        Some(text) => {
            let parts = split(text).ok_or_else(|| {
                usage("a token is six lower case letters or digits, a dot, and sixteen more".to_owned())
            })?;
            (parts.0.to_owned(), parts.1.to_owned())
        }
    };
    let nanos = proto::duration::parse(&args.ttl).map_err(|e| usage(format!("--ttl: {e}")))?;
    let expiry = match nanos {
        0 => Expiry::Never,
        1_000_000_000.. => Expiry::At(now + nanos / 1_000_000_000),
        _ => return Err(usage("--ttl: must be 0, or one second or more".into())),
    };
    if let Some(bad) = args.usages.iter().find(|u| !USAGES.contains(&u.as_str())) {
        return Err(usage(format!("--usages: {bad:?} is none of {}", USAGES.join(", "))));
    }
    if let Some(bad) = args.groups.iter().find(|g| !is_group(g)) {
        return Err(usage(format!(
            "--groups: {bad:?} must be system:bootstrappers: and lower case letters, digits, - and :"
        )));
    }
    let has = |usage: &str| args.usages.iter().any(|u| u == usage);
    let authenticates = has("authentication");
    // `node-agent join` knows the server by what the token signs, and asks it for a certificate in the token's name.
    if args.print_join_command && !(authenticates && has("signing")) {
        return Err(usage(
            "--print-join-command: nobody joins with a token whose --usages lack authentication or signing".into(),
        ));
    }
    Ok(BootstrapToken {
        id,
        secret,
        description: args.description.clone(),
        expiry,
        usages: args.usages.clone(),
        // kubeadm: groups are of no use to who cannot log in, and the server refuses nothing.
        groups: if authenticates { args.groups.clone() } else { Vec::new() },
    })
}

fn secrets() -> String {
    format!("/api/v1/namespaces/{NAMESPACE}/secrets")
}

/// The running server.
struct Api(Client);

impl Api {
    fn open(kubeconfig: &Path) -> Result<Self, AdminError> {
        Client::from_kubeconfig(kubeconfig).map(Api).map_err(AdminError::Settings)
    }

    async fn ask(&self, method: Method, path: &str, body: Value) -> Result<Value, AdminError> {
        let mut headers = HeaderMap::new();
        headers.insert(ACCEPT, HeaderValue::from_static("application/json"));
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        let bytes = if body.is_null() { Vec::new() } else { body.to_string().into_bytes() };
        let answer = self.0.send(method, path, headers, bytes.into(), PATIENCE).await;
        let answer = answer.map_err(|source| AdminError::NoServer { url: self.0.url(), source })?;
        let value: Value = serde_json::from_slice(&answer.body).unwrap_or_default();
        match answer.code {
            200..300 => Ok(value),
            code => {
                let said = value["message"].as_str().map(Into::into);
                Err(AdminError::Refused(said.unwrap_or_else(|| format!("the server answers {path} with {code}"))))
            }
        }
    }

    async fn create(&self, args: &CreateArgs, token: &BootstrapToken) -> Result<(), AdminError> {
        // Asked first: a token that nobody sees printed would be left behind.
        let join = match args.print_join_command {
            true => Some(self.join_command(args.server.as_deref(), &token.text()).await?),
            false => None,
        };
        self.ask(Method::POST, &secrets(), token.to_secret()).await?;
        say(&join.unwrap_or_else(|| token.text()))
    }

    async fn join_command(&self, server: Option<&str>, token: &str) -> Result<String, AdminError> {
        let none = |why: &str| AdminError::NoClusterInfo(why.into());
        let map = self.ask(Method::GET, "/api/v1/namespaces/kube-public/configmaps/cluster-info", Value::Null).await;
        let map = map.map_err(|error| match error {
            AdminError::Refused(said) => none(&format!("cannot be read ({said})")),
            other => other,
        })?;
        let text = map["data"]["kubeconfig"].as_str().ok_or_else(|| none("has no kubeconfig"))?;
        let config = proto::yaml::read(text.as_bytes()).map_err(|_| none("has a kubeconfig that is not YAML"))?.value;
        let cluster = &config["clusters"][0]["cluster"];
        let data = cluster["certificate-authority-data"].as_str().and_then(|t| STANDARD.decode(t).ok());
        let hash = data.as_deref().and_then(key_hash).ok_or_else(|| none("names no authority"))?;
        let server = server.or(cluster["server"].as_str()).ok_or_else(|| none("names no server"))?;
        Ok(format!("node-agent join {server} --token {token} --ca-hash {hash}"))
    }

    async fn list(&self) -> Result<(), AdminError> {
        let path = format!("{}?fieldSelector=type%3D{}", secrets(), TYPE.replace('/', "%2F"));
        let found = self.ask(Method::GET, &path, Value::Null).await?;
        let items = found["items"].as_array().into_iter().flatten();
        // The items of a list do not say their kind, and need not.
        let mut tokens: Vec<_> = items.filter_map(BootstrapToken::of).collect();
        tokens.sort_by(|a, b| a.id.cmp(&b.id));
        let now = Timestamp::now().seconds;
        table(&tokens, now).iter().try_for_each(|line| say(line))
    }
}

/// Lines of columns as wide as they need to be.
fn table(tokens: &[BootstrapToken], now: i64) -> Vec<String> {
    let head = ["TOKEN", "TTL", "EXPIRES", "USAGES", "DESCRIPTION", "EXTRA GROUPS"].map(str::to_owned);
    let mut rows = vec![head];
    for token in tokens {
        let or_none = |text: String| if text.is_empty() { "<none>".to_owned() } else { text };
        let expires = match token.expiry {
            Expiry::Never => "<never>".into(),
            Expiry::At(seconds) => Timestamp { seconds, nanos: 0 }.to_seconds_text(),
            Expiry::Unreadable => "<invalid>".into(),
        };
        let left = match token.left(now) {
            None => "<forever>".into(),
            Some(left) => proto::duration::format(left.saturating_mul(1_000_000_000)),
        };
        rows.push([
            token.text(),
            left,
            expires,
            or_none(token.usages.join(",")),
            or_none(token.description.clone()),
            or_none(token.groups.join(",")),
        ]);
    }
    let width = |column: usize| rows.iter().map(|r| r[column].chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..6).map(width).collect();
    let line = |row: &[String; 6]| {
        let cells: Vec<String> = row.iter().zip(&widths).map(|(cell, width)| format!("{cell:<width$}")).collect();
        cells.join("   ").trim_end().to_owned()
    };
    rows.iter().map(line).collect()
}

/// kubeadm's `discovery-token-ca-cert-hash` of the first certificate of a PEM text.
fn key_hash(pem: &[u8]) -> Option<String> {
    let der = CertificateDer::from_pem_slice(pem).ok()?;
    let (_, certificate) = X509Certificate::from_der(&der).ok()?;
    let sum = digest(&SHA256, certificate.public_key().raw);
    Some(format!("sha256:{}", sum.as_ref().iter().map(|b| format!("{b:02x}")).collect::<String>()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn args(token: Option<&str>, ttl: &str) -> CreateArgs {
        CreateArgs {
            token: token.map(Into::into),
            ttl: ttl.into(),
            print_join_command: false,
            server: None,
            description: String::new(),
            groups: vec![crate::bootstrap_token::NODE_GROUP.into()],
            usages: vec!["authentication".into(), "signing".into()],
        }
    }

    #[test]
    fn flags_are_checked_before_the_server_is_asked() {
        let made = wanted(&args(Some("abcdef.0123456789abcdef"), "2h"), 1000).expect("fine");
        assert_eq!((made.text().as_str(), made.expiry), ("abcdef.0123456789abcdef", Expiry::At(8200)));
        assert_eq!(wanted(&args(None, "0"), 0).expect("fine").expiry, Expiry::Never);
        assert_ne!(wanted(&args(None, "1h"), 0).expect("fine").id, wanted(&args(None, "1h"), 0).expect("fine").id);
        for (token, ttl) in [(Some("short"), "1h"), (None, "-1h"), (None, "soon"), (None, "1ms")] {
            assert_eq!(wanted(&args(token, ttl), 0).expect_err("wrong").code(), 64, "{token:?} {ttl}");
        }
        let mut wrong = args(None, "1h");
        wrong.groups = vec!["system:masters".into()];
        assert!(wanted(&wrong, 0).is_err());
        wrong = args(None, "1h");
        wrong.usages = vec!["signing".into()];
        assert!(wanted(&wrong, 0).expect("fine").groups.is_empty());
        wrong.print_join_command = true;
        assert_eq!(wanted(&wrong, 0).expect_err("nobody joins with it").code(), 64);
        wrong.print_join_command = false;
        wrong.usages = vec!["everything".into()];
        assert!(wanted(&wrong, 0).is_err());
        assert_eq!((id_of("abcdef").ok(), id_of("abcdef.0123456789abcdef").ok()), (Some("abcdef"), Some("abcdef")));
        assert!(id_of("../admin").is_err());
    }

    #[test]
    fn columns_stand_under_their_heads() {
        let mut token = wanted(&args(Some("abcdef.0123456789abcdef"), "2h"), 1000).expect("fine");
        token.description = "for the two in the cellar".into();
        let lines = table(&[token], 1000);
        assert_eq!(lines[0].find("EXPIRES"), lines[1].find("1970-"));
        assert_eq!(lines[0].find("EXTRA"), lines[1].find("system:bootstrappers:"));
        assert!(lines[1].contains("2h0m0s"));
    }
}
