//! kubeconfig files with embedded credentials: `DIR/admin.conf` and the ones the operator asks for.

use std::path::Path;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use crate::pki::{self, Authority, Leaf, PkiError};

/// A kubeconfig with one cluster and one user.
#[derive(Debug, Clone)]
pub struct Kubeconfig<'a> {
    /// `https://host:port`.
    pub server: &'a str,
    /// Certificates and key as PEM.
    pub authority: &'a str,
    pub certificate: &'a str,
    pub key: &'a str,
    pub user: &'a str,
}

impl Kubeconfig<'_> {
    /// The file's text.
    pub fn to_text(&self) -> String {
        let encode = |pem: &str| STANDARD.encode(pem);
        // JSON strings are YAML strings.
        let quoted = |text: &str| serde_json::Value::from(text).to_string();
        let (server, user) = (quoted(self.server), quoted(self.user));
        let context = quoted(&format!("{}@kubernetes", self.user));
        format!(
            "apiVersion: v1\nkind: Config\nclusters:\n- name: kubernetes\n  cluster:\n    server: {server}\n    \
             certificate-authority-data: {}\nusers:\n- name: {user}\n  user:\n    client-certificate-data: {}\n    \
             client-key-data: {}\ncontexts:\n- name: {context}\n  context:\n    cluster: kubernetes\n    user: {user}\n\
             current-context: {context}\npreferences: {{}}\n",
            encode(self.authority),
            encode(self.certificate),
            encode(self.key),
        )
    }
}

/// A kubeconfig that says where the cluster is and whom to believe, without a user.
pub fn anonymous(server: &str, authority: &str) -> String {
    format!(
        "apiVersion: v1\nkind: Config\nclusters:\n- name: \"\"\n  cluster:\n    certificate-authority-data: {}\n    \
         server: {}\ncontexts: []\ncurrent-context: \"\"\npreferences: {{}}\nusers: []\n",
        STANDARD.encode(authority),
        serde_json::Value::from(server),
    )
}

/// Writes a kubeconfig with a certificate of its own, unless the one in place still does.
///
/// # Errors
/// When the certificate cannot be issued or the file not be written.
pub fn ensure(path: &Path, server: &str, authority: &Authority, leaf: &Leaf) -> Result<(), PkiError> {
    pki::tighten(path)?;
    if let Some(text) = pki::read(path)? {
        let embedded = |key: &str| {
            let line = text.lines().find_map(|l| l.trim().strip_prefix(key))?;
            String::from_utf8(STANDARD.decode(line.trim()).ok()?).ok()
        };
        let same_server =
            text.lines().any(|l| l.trim().strip_prefix("server: ").is_some_and(|s| s.trim_matches('"') == server));
        let same_authority = embedded("certificate-authority-data:").is_some_and(|a| a == authority.pem());
        let good = embedded("client-certificate-data:").is_some_and(|c| authority.still_good(&c, leaf));
        if same_server && same_authority && good {
            return Ok(());
        }
    }
    let (certificate, key) = authority.issue(leaf)?;
    let kubeconfig = Kubeconfig {
        server,
        authority: authority.pem(),
        certificate: &certificate,
        key: &key,
        user: &leaf.common_name,
    };
    pki::write_private(path, &kubeconfig.to_text())
}
