//! What `join` leaves in the agent's folder.

use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use super::JoinError;
use super::discovery::{Cluster, encoded};
use super::jws::Token;

/// What the agent makes of it; that it is there means that the machine has joined.
pub const KUBECONFIG: &str = "node-agent.kubeconfig";
pub const BOOTSTRAP: &str = "bootstrap.kubeconfig";
pub const DROP_INS: &str = "node-agent.conf.d";
const CONFIG: &str = "node-agent.yaml";
const AUTHORITY: &str = "ca.crt";
/// Early, so that what an operator adds wins.
const DROP_IN: &str = "10-join.conf";

/// What was written, in order, and the main configuration file, which may have been there.
pub struct Written {
    pub paths: Vec<PathBuf>,
    pub config: PathBuf,
}

/// A kubeconfig with one cluster; `cluster` says whom to trust.
pub fn kubeconfig(server: &str, cluster: &Value, token: Option<&str>) -> Value {
    let mut cluster = cluster.clone();
    cluster["server"] = server.into();
    let user = token.map_or_else(|| json!({}), |token| json!({"token": token}));
    json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "join",
        "clusters": [{"name": "cluster", "cluster": cluster}],
        "contexts": [{"name": "join", "context": {"cluster": "cluster", "user": "join"}}],
        "users": [{"name": "join", "user": user}],
    })
}

fn header() -> Value {
    json!({"apiVersion": "kubelet.config.k8s.io/v1beta1", "kind": "KubeletConfiguration"})
}

/// Writes what the agent needs to ask for its certificate, into an absolute `folder`. What an operator wrote is left as it
/// is.
///
/// # Errors
/// When the folder does not let us.
pub fn write(folder: &Path, cluster: &Cluster, token: &Token, endpoint: Option<&str>) -> Result<Written, JoinError> {
    let drop_ins = folder.join(DROP_INS);
    std::fs::create_dir_all(&drop_ins).map_err(|source| JoinError::Write { path: drop_ins.clone(), source })?;
    let authority = folder.join(AUTHORITY);
    let mut drop_in = header();
    drop_in["authentication"] = json!({"x509": {"clientCAFile": authority}});
    // The certificate that the token gets is over some day, and the token long before.
    drop_in["rotateCertificates"] = true.into();
    if let Some(endpoint) = endpoint {
        drop_in["containerRuntimeEndpoint"] = endpoint.into();
    }
    let trusted = json!({"certificate-authority-data": encoded(&cluster.authority)});
    let bootstrap = kubeconfig(&cluster.server, &trusted, Some(token.bearer()));
    let yaml = |value: &Value| {
        let mut out = Vec::new();
        proto::yaml::write(value, &mut out);
        out
    };
    let config = folder.join(CONFIG);
    let mut files = vec![
        (authority, cluster.authority.clone().into_bytes(), 0o644),
        (drop_ins.join(DROP_IN), yaml(&drop_in), 0o644),
        (folder.join(BOOTSTRAP), yaml(&bootstrap), 0o600),
    ];
    if !config.exists() {
        files.insert(0, (config.clone(), yaml(&header()), 0o644));
    }
    let mut paths = Vec::new();
    for (path, text, mode) in files {
        replace(&path, &text, mode).map_err(|source| JoinError::Write { path: path.clone(), source })?;
        paths.push(path);
    }
    Ok(Written { paths, config })
}

/// Writes a file as a whole, with its mode from the first byte on.
fn replace(path: &Path, text: &[u8], mode: u32) -> std::io::Result<()> {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let unfinished = path.with_file_name(format!(".{name}.{}.tmp", std::process::id()));
    let mut file = std::fs::OpenOptions::new().create_new(true).write(true).mode(mode).open(&unfinished)?;
    let written = file.write_all(text).and_then(|()| file.sync_all()).and_then(|()| std::fs::rename(&unfinished, path));
    if written.is_err() {
        // The next attempt has another process id and does not need its place.
        let _ = std::fs::remove_file(&unfinished);
    }
    written
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;
    use crate::api::Kubeconfig;

    #[test]
    fn the_packaged_configuration_is_valid_and_keeps_the_identity() {
        let package =
            concat!(env!("CARGO_MANIFEST_DIR"), "/../packaging/package/node-agent/files/etc/orchestrator-lite");
        let file = Path::new(package).join(CONFIG);
        let loaded = crate::config::load(&crate::config::Sources { file: Some(file), ..Default::default() });
        let loaded = loaded.expect("a valid configuration");
        assert!(loaded.config.rotate_certificates && loaded.oddities.is_empty() && loaded.deprecated.is_empty());
        assert_eq!(crate::config::without_effect(&loaded), Vec::<String>::new());
    }

    #[test]
    fn the_files_are_what_the_agent_reads_and_an_operators_config_stays() {
        let folder = std::env::temp_dir().join(format!("join-{}", crate::backoff::random_below(u32::MAX)));
        let cluster = Cluster {
            server: "https://a:6443".into(),
            authority: "pem".into(),
            hash: "sha256:".into(),
            user: "system:bootstrap:abcdef".into(),
        };
        let token = Token::parse("abcdef.0123456789abcdef").expect("a token");
        let written = write(&folder, &cluster, &token, Some("unix:///run/x.sock")).expect("written");
        assert_eq!(written.paths.len(), 4);
        let secret = folder.join(BOOTSTRAP);
        let read = Kubeconfig::load(&secret).expect("a kubeconfig");
        assert_eq!(read.server, "https://a:6443");
        assert_eq!(std::fs::metadata(&secret).expect("there").permissions().mode() & 0o777, 0o600);
        let sources = crate::config::Sources {
            file: Some(written.config.clone()),
            drop_ins: Some(folder.join(DROP_INS)),
            ..Default::default()
        };
        let loaded = crate::config::load(&sources).expect("a valid configuration");
        assert_eq!(loaded.config.container_runtime_endpoint, "unix:///run/x.sock");
        assert!(loaded.config.rotate_certificates, "the identity would end with its first certificate");
        std::fs::write(&written.config, "kind: mine").expect("writable");
        let again = write(&folder, &cluster, &token, None).expect("written");
        assert_eq!(again.paths.len(), 3);
        assert_eq!(std::fs::read_to_string(&written.config).expect("there"), "kind: mine");
        std::fs::remove_dir_all(folder).expect("ours");
    }
}
