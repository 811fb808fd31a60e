//! Credentials that a program gives: `exec` of a kubeconfig's user (`client.authentication.k8s.io/v1` and `v1beta1`).
//!
//! The program is run when credentials are first needed, when those it gave are over, and when the server refuses them. It
//! is told what it is for by the variable `KUBERNETES_EXEC_INFO` and answers on its standard output with a token, a
//! certificate with its key, or both. It runs once at a time, whoever waits for it, and to its end, also when who waited
//! has given up: a program that is slower than a request must come to its answer all the same.
//!
//! Followed: client-go `plugin/pkg/client/auth/exec`.

use std::io::IsTerminal as _;
use std::path::Path;
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use base64::Engine as _;
use http::HeaderValue;
use serde_json::{Value, json};
use tokio::process::Command;
use tokio::sync::{Mutex, OwnedMutexGuard};

use super::tls::Pem;
use crate::metrics;
use crate::program::{self, Ended, ProgramError};

const INFO: &str = "KUBERNETES_EXEC_INFO";
pub(super) const VERSIONS: [&str; 2] = ["client.authentication.k8s.io/v1", "client.authentication.k8s.io/v1beta1"];
/// Of a cluster's extensions, the one that is for the program.
const EXTENSION: &str = "client.authentication.k8s.io/exec";
/// One that hangs would keep the node away for good.
const LIMIT: Duration = Duration::from_secs(60);

/// Whether the program may ask a person.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Interactive {
    Never,
    IfAvailable,
    Always,
}

/// The program and what it is told.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Exec {
    version: String,
    command: String,
    arguments: Vec<String>,
    env: Vec<(String, String)>,
    install_hint: String,
    interactive: Interactive,
    /// The cluster, where the program is to know it, without its authority.
    cluster: Option<Value>,
    authority: Option<Pem>,
}

/// Without its environment and arguments, which may hold passwords.
impl std::fmt::Debug for Exec {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Exec { version, command, .. } = self;
        f.debug_struct("Exec").field("version", version).field("command", command).finish_non_exhaustive()
    }
}

/// What a user's `exec` lacks, in client-go's order and words.
pub(super) fn errors(user: &Value, name: &str) -> Vec<String> {
    let Some(exec) = user.get("exec").filter(|exec| exec.is_object()) else { return Vec::new() };
    let text = |key: &str| exec.get(key).and_then(Value::as_str).unwrap_or_default();
    let mut wrong = Vec::new();
    if user.get("auth-provider").is_some_and(|v| !v.is_null()) {
        wrong.push(format!("authProvider cannot be provided in combination with an exec plugin for {name}"));
    }
    let lacking = |what: &str| format!("{what} must be specified for {name} to use exec authentication plugin");
    for key in ["command", "apiVersion"] {
        if text(key).is_empty() {
            wrong.push(lacking(key));
        }
    }
    let unnamed = pairs(exec).filter(|(name, _)| name.is_empty());
    wrong.extend(unnamed.map(|_| lacking("env variable name")));
    match text("interactiveMode") {
        "Never" | "IfAvailable" | "Always" => {}
        "" if text("apiVersion") == VERSIONS[1] => {}
        "" => wrong.push(format!("interactiveMode must be specified for {name} to use exec authentication plugin")),
        other => wrong.push(format!("invalid interactiveMode for {name}: {other:?}")),
    }
    wrong
}

fn pairs(exec: &Value) -> impl Iterator<Item = (&str, &str)> {
    let list = exec.get("env").and_then(Value::as_array).into_iter().flatten();
    list.map(|entry| {
        let of = |key: &str| entry.get(key).and_then(Value::as_str).unwrap_or_default();
        (of("name"), of("value"))
    })
}

impl Exec {
    /// Of a user whose `exec` has no [`errors`]; None where there is none.
    ///
    /// # Errors
    /// A version of the exchange that nobody here speaks.
    pub(super) fn of(
        user: &Value,
        cluster: &Value,
        authority: Option<&Pem>,
        folder: &Path,
    ) -> Result<Option<Self>, String> {
        let Some(exec) = user.get("exec").filter(|exec| exec.is_object()) else { return Ok(None) };
        let text = |key: &str| exec.get(key).and_then(Value::as_str).unwrap_or_default().to_owned();
        let version = text("apiVersion");
        if !VERSIONS.contains(&version.as_str()) {
            return Err(format!("exec plugin: invalid apiVersion {version:?}"));
        }
        let command = text("command");
        // A bare name is looked for in PATH.
        let command =
            if command.contains('/') { folder.join(&command).to_string_lossy().into_owned() } else { command };
        let arguments = exec.get("args").and_then(Value::as_array).into_iter().flatten();
        Ok(Some(Exec {
            version,
            command,
            arguments: arguments.filter_map(Value::as_str).map(str::to_owned).collect(),
            env: pairs(exec).map(|(name, value)| (name.to_owned(), value.to_owned())).collect(),
            install_hint: text("installHint"),
            interactive: match text("interactiveMode").as_str() {
                "Never" => Interactive::Never,
                "Always" => Interactive::Always,
                _ => Interactive::IfAvailable,
            },
            cluster: exec.get("provideClusterInfo").and_then(Value::as_bool).unwrap_or(false).then(|| told(cluster)),
            authority: authority.cloned(),
        }))
    }

    /// What the program is told.
    fn info(&self, interactive: bool) -> Result<String, String> {
        let mut spec = json!({ "interactive": interactive });
        if let Some(cluster) = &self.cluster {
            let mut cluster = cluster.clone();
            if let Some(authority) = &self.authority {
                let pem = authority.read().map_err(|e| e.to_string())?;
                cluster["certificate-authority-data"] = base64::engine::general_purpose::STANDARD.encode(pem).into();
            }
            spec["cluster"] = cluster;
        }
        Ok(json!({"kind": "ExecCredential", "apiVersion": self.version, "spec": spec}).to_string())
    }

    /// Runs the program once.
    async fn run(&self) -> Result<Given, String> {
        let terminal = std::io::stdin().is_terminal();
        let interactive = match self.interactive {
            Interactive::Never => false,
            Interactive::IfAvailable => terminal,
            Interactive::Always if terminal => true,
            Interactive::Always => {
                return Err("exec plugin cannot support interactive mode: standard input is not a terminal".into());
            }
        };
        let mut command = Command::new(&self.command);
        command
            .args(&self.arguments)
            .envs(self.env.iter().map(|(name, value)| (name, value)))
            .env(INFO, self.info(interactive)?)
            .stdin(if interactive { Stdio::inherit() } else { Stdio::null() });
        let ran = tokio::time::timeout(LIMIT, program::run(command, None)).await;
        let (status, code) = call_status(ran.as_ref().ok());
        metrics::REST_PLUGIN_CALLS.inc(&[status, &code.to_string()]);
        let Ok(ended) = ran else {
            return Err(format!("exec: executable {} takes too long", self.command));
        };
        let ended = ended.map_err(|error| match error {
            ProgramError::NotStarted(error) => self.not_run(&error),
            ProgramError::Lost(error) => format!("exec: {error}"),
        })?;
        if !ended.status.success() {
            let code = ended.status.code().unwrap_or(-1);
            return Err(format!("exec: executable {} failed with exit code {code}", self.command));
        }
        given(&ended.said, &self.version)
    }

    fn not_run(&self, error: &std::io::Error) -> String {
        if error.kind() != std::io::ErrorKind::NotFound {
            return format!("exec: {}: {error}", self.command);
        }
        let hint = match self.install_hint.trim() {
            "" => String::new(),
            hint => format!("; {hint}"),
        };
        format!("exec: executable {} not found{hint}", self.command)
    }
}

/// How a call ended, and its code, as client-go counts it; None for one that took too long, and was killed.
fn call_status(ran: Option<&Result<Ended, ProgramError>>) -> (&'static str, i32) {
    match ran {
        Some(Ok(ended)) if ended.status.success() => ("no_error", 0),
        Some(Ok(ended)) => ("plugin_execution_error", ended.status.code().unwrap_or(-1)),
        None => ("plugin_execution_error", -1),
        Some(Err(ProgramError::NotStarted(_))) => ("plugin_not_found_error", 1),
        Some(Err(ProgramError::Lost(_))) => ("client_internal_error", 1),
    }
}

/// A cluster as the program is told of it.
fn told(cluster: &Value) -> Value {
    let mut told = serde_json::Map::new();
    for key in ["server", "tls-server-name", "insecure-skip-tls-verify", "proxy-url", "disable-compression"] {
        match cluster.get(key) {
            None | Some(Value::Null | Value::Bool(false)) => {}
            Some(Value::String(text)) if text.is_empty() => {}
            Some(value) => drop(told.insert(key.into(), value.clone())),
        }
    }
    let extensions = cluster.get("extensions").and_then(Value::as_array).into_iter().flatten();
    let mut for_it = extensions.filter(|e| e.get("name").and_then(Value::as_str) == Some(EXTENSION));
    if let Some(extension) = for_it.next().and_then(|e| e.get("extension")) {
        told.insert("config".into(), extension.clone());
    }
    Value::Object(told)
}

/// Credentials of the program.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Given {
    pub token: Option<HeaderValue>,
    /// Certificate and key.
    pub pair: Option<(Pem, Pem)>,
    /// Seconds since 1970.
    expires: Option<i64>,
}

impl Given {
    fn is_over(&self, now: i64) -> bool {
        self.expires.is_some_and(|at| now > at)
    }
}

/// Reads the program's answer. An error never repeats it: it may be a secret.
fn given(said: &[u8], version: &str) -> Result<Given, String> {
    let undecodable = |why: &str| format!("decoding stdout: {why}");
    let tree: Value = crate::document::parse(said).map_err(|_| undecodable("it is neither JSON nor YAML"))?;
    let text = |object: &Value, key: &str| object.get(key).and_then(Value::as_str).unwrap_or_default().to_owned();
    if text(&tree, "kind") != "ExecCredential" {
        return Err(undecodable("it is no ExecCredential"));
    }
    let returned = text(&tree, "apiVersion");
    if returned != version {
        return Err(format!(
            "exec plugin is configured to use API version {version}, plugin returned version {returned}"
        ));
    }
    let status = tree.get("status").filter(|s| s.is_object()).ok_or("exec plugin didn't return a status field")?;
    let [token, certificate, key] = ["token", "clientCertificateData", "clientKeyData"].map(|key| text(status, key));
    let pair = match (certificate.is_empty(), key.is_empty()) {
        (true, true) if token.is_empty() => return Err("exec plugin didn't return a token or cert/key pair".into()),
        (true, true) => None,
        (false, false) => Some((Pem::Data(certificate.into_bytes()), Pem::Data(key.into_bytes()))),
        _ => return Err("exec plugin returned only certificate or key, not both".into()),
    };
    if let Some((certificate, key)) = &pair {
        super::tls::read_identity(certificate, key)
            .map_err(|error| format!("failed parsing client key/certificate: {error}"))?;
    }
    let expires = match text(status, "expirationTimestamp") {
        at if at.is_empty() => None,
        at => {
            let parsed = time::OffsetDateTime::parse(&at, &time::format_description::well_known::Rfc3339);
            Some(parsed.map_err(|_| undecodable("expirationTimestamp is no time"))?.unix_timestamp())
        }
    };
    let token = match token.as_str() {
        "" => None,
        token => {
            let mut value = HeaderValue::from_str(&format!("Bearer {token}"))
                .map_err(|_| "the token holds characters that a header cannot")?;
            value.set_sensitive(true);
            Some(value)
        }
    };
    Ok(Given { token, pair, expires })
}

/// The program's credentials as they are now.
pub(super) struct ExecLogin {
    exec: Arc<Exec>,
    kept: Arc<Mutex<Option<Arc<Given>>>>,
}

impl ExecLogin {
    pub(super) fn new(exec: Exec) -> Self {
        ExecLogin { exec: Arc::new(exec), kept: Arc::default() }
    }

    /// What is to be shown now; runs the program where nothing is there, or what is there is over.
    ///
    /// # Errors
    /// The program cannot be run, fails, or answers what is no answer.
    pub(super) async fn credentials(&self) -> Result<Arc<Given>, String> {
        let kept = self.kept.clone().lock_owned().await;
        let now = time::OffsetDateTime::now_utc().unix_timestamp();
        match kept.as_ref().filter(|given| !given.is_over(now)) {
            Some(given) => Ok(given.clone()),
            None => self.renew(kept).await,
        }
    }

    /// The server takes `shown` for nobody's: new ones are got, unless somebody has before.
    ///
    /// # Errors
    /// As [`ExecLogin::credentials`].
    pub(super) async fn refused(&self, shown: &Arc<Given>) -> Result<(), String> {
        let kept = self.kept.clone().lock_owned().await;
        if kept.as_ref().is_some_and(|given| !Arc::ptr_eq(given, shown)) {
            return Ok(());
        }
        self.renew(kept).await.map(drop)
    }

    async fn renew(&self, mut kept: OwnedMutexGuard<Option<Arc<Given>>>) -> Result<Arc<Given>, String> {
        let exec = self.exec.clone();
        // Goes on when nobody waits any more.
        let run = tokio::spawn(async move {
            let given = exec.run().await?;
            Ok(kept.insert(Arc::new(given)).clone())
        });
        run.await.unwrap_or_else(|broke| Err(format!("exec: {broke}")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn exec(user: &Value, cluster: &Value) -> Exec {
        Exec::of(&json!({ "exec": user }), cluster, None, Path::new("/etc/k")).expect("known").expect("a program")
    }

    /// `sh -c SCRIPT`.
    fn script(text: &str, more: &Value) -> ExecLogin {
        let mut user =
            json!({"apiVersion": VERSIONS[0], "command": "sh", "args": ["-c", text], "interactiveMode": "Never"});
        if let (Some(user), Some(more)) = (user.as_object_mut(), more.as_object()) {
            user.extend(more.clone());
        }
        ExecLogin::new(exec(&user, &json!({"server": "https://a"})))
    }

    #[test]
    fn what_lacks_is_told_in_client_gos_words() {
        let of = |exec: Value| errors(&json!({ "exec": exec }), "u");
        let lacks = |what: &str| format!("{what} must be specified for u to use exec authentication plugin");
        assert_eq!(of(json!({})), [lacks("command"), lacks("apiVersion"), lacks("interactiveMode")]);
        let v1 =
            json!({"command": "c", "apiVersion": VERSIONS[0], "interactiveMode": "Sometimes", "env": [{"value": "v"}]});
        assert_eq!(of(v1), [lacks("env variable name"), "invalid interactiveMode for u: \"Sometimes\"".to_owned()]);
        assert_eq!(of(json!({"command": "c", "apiVersion": VERSIONS[1]})), Vec::<String>::new());
        assert_eq!(errors(&json!({"token": "t"}), "u"), Vec::<String>::new());
        let old = json!({"exec": {"command": "c", "apiVersion": "client.authentication.k8s.io/v1alpha1"}});
        let told = Exec::of(&old, &Value::Null, None, Path::new("/")).expect_err("refused");
        assert_eq!(told, "exec plugin: invalid apiVersion \"client.authentication.k8s.io/v1alpha1\"");
    }

    #[test]
    fn the_program_is_told_of_the_cluster_where_it_is_to_be() {
        let cluster = json!({
            "server": "https://a", "tls-server-name": "n", "insecure-skip-tls-verify": false, "proxy-url": "",
            "certificate-authority": "ca.crt",
            "extensions": [{"name": "other", "extension": 1}, {"name": EXTENSION, "extension": {"x": "y"}}],
        });
        let user = json!({"apiVersion": VERSIONS[1], "command": "bin/p", "provideClusterInfo": true});
        let mut program = exec(&user, &cluster);
        assert_eq!(program.command, "/etc/k/bin/p");
        program.authority = Some(Pem::Data(b"ca".to_vec()));
        let told: Value = serde_json::from_str(&program.info(false).expect("told")).expect("JSON");
        let known = json!({
            "server": "https://a", "tls-server-name": "n", "certificate-authority-data": "Y2E=", "config": {"x": "y"},
        });
        let wanted = json!({"kind": "ExecCredential", "apiVersion": VERSIONS[1], "spec": {
            "interactive": false, "cluster": known,
        }});
        assert_eq!(told, wanted);
        let plain = exec(&json!({"apiVersion": VERSIONS[0], "command": "p"}), &cluster);
        assert_eq!((plain.command.as_str(), plain.cluster), ("p", None));
    }

    #[test]
    fn answers_are_read_and_others_refused() {
        let of = |status: Value| {
            let answer = json!({"kind": "ExecCredential", "apiVersion": VERSIONS[0], "status": status});
            given(answer.to_string().as_bytes(), VERSIONS[0])
        };
        let token = of(json!({"token": "t", "expirationTimestamp": "1970-01-01T00:01:00Z"})).expect("credentials");
        assert_eq!(token.token.as_ref().map(HeaderValue::as_bytes), Some(&b"Bearer t"[..]));
        assert!(!token.is_over(60) && token.is_over(61));
        let made = rcgen::generate_simple_self_signed(vec!["n".into()]).expect("made");
        let (certificate, key) = (made.cert.pem(), made.signing_key.serialize_pem());
        let pair = of(json!({"clientCertificateData": certificate, "clientKeyData": key})).expect("credentials");
        assert!(pair.pair.is_some() && pair.token.is_none() && !pair.is_over(i64::MAX));
        for (status, words) in [
            (Value::Null, "exec plugin didn't return a status field"),
            (json!({}), "exec plugin didn't return a token or cert/key pair"),
            (json!({"clientKeyData": "k"}), "exec plugin returned only certificate or key, not both"),
            (json!({"clientKeyData": "k", "clientCertificateData": "c"}), "failed parsing client key/certificate: "),
            (json!({"token": "t", "expirationTimestamp": "soon"}), "decoding stdout: "),
            (json!({"token": "a\nb"}), "the token holds characters"),
        ] {
            let told = of(status).expect_err("refused");
            assert!(told.starts_with(words), "{told}");
        }
        let other = format!(r#"{{"kind": "ExecCredential", "apiVersion": "{}"}}"#, VERSIONS[1]);
        assert!(given(other.as_bytes(), VERSIONS[0]).expect_err("refused").contains("plugin returned version"));
        assert!(given(b"secret", VERSIONS[0]).is_err_and(|told| !told.contains("secret")));
    }

    #[tokio::test]
    async fn a_program_runs_anew_when_its_answer_is_over_or_refused() {
        let count = std::env::temp_dir().join(format!("exec-login-{}", crate::backoff::random_below(u32::MAX)));
        let text = r#"echo run >> "$COUNT"; t=$(wc -l < "$COUNT")
            case "$KUBERNETES_EXEC_INFO" in *'"interactive":false'*) ;; *) exit 7 ;; esac
            echo "{\"apiVersion\": \"client.authentication.k8s.io/v1\", \"kind\": \"ExecCredential\",
                \"status\": {\"token\": \"t$t\", \"expirationTimestamp\": \"$UNTIL\"}}""#;
        let login = |until: &str| {
            let env = [("COUNT", count.display().to_string()), ("UNTIL", until.to_owned())];
            script(text, &json!({"env": env.map(|(name, value)| json!({"name": name, "value": value}))}))
        };
        let shown = |given: &Given| given.token.as_ref().and_then(|t| t.to_str().ok()).map(str::to_owned);
        let lasting = login("2999-01-01T00:00:00Z");
        let first = lasting.credentials().await.expect("credentials");
        assert_eq!(shown(&first).as_deref(), Some("Bearer t1"));
        assert!(Arc::ptr_eq(&first, &lasting.credentials().await.expect("credentials")), "it lasts");
        lasting.refused(&first).await.expect("renewed");
        lasting.refused(&first).await.expect("somebody was faster");
        assert_eq!(shown(&lasting.credentials().await.expect("credentials")).as_deref(), Some("Bearer t2"));
        let over = login("2001-01-01T00:00:00Z");
        for wanted in ["Bearer t3", "Bearer t4"] {
            assert_eq!(shown(&over.credentials().await.expect("credentials")).as_deref(), Some(wanted));
        }
        std::fs::remove_file(count).expect("ours");
    }

    #[tokio::test]
    async fn calls_are_counted_by_their_end() {
        let of = async |text: &str| {
            let mut words = text.split(' ');
            let mut command = Command::new(words.next().expect("a word"));
            command.args(words);
            call_status(Some(&program::run(command, None).await))
        };
        assert_eq!(of("true").await, ("no_error", 0));
        assert_eq!(of("cat /no/such/file").await, ("plugin_execution_error", 1));
        assert_eq!(of("/no/such/program").await, ("plugin_not_found_error", 1));
        assert_eq!(of("/dev/null").await, ("plugin_not_found_error", 1), "nobody may run it");
        assert_eq!(call_status(None), ("plugin_execution_error", -1));
        let lost = Err(ProgramError::Lost(std::io::ErrorKind::BrokenPipe.into()));
        assert_eq!(call_status(Some(&lost)), ("client_internal_error", 1));
        script("exit 77", &json!({})).credentials().await.expect_err("refused");
        assert!(metrics::REST_PLUGIN_CALLS.is_used());
    }

    #[tokio::test]
    async fn a_program_that_fails_is_named() {
        let told = async |login: ExecLogin| login.credentials().await.expect_err("refused");
        assert_eq!(told(script("exit 3", &json!({}))).await, "exec: executable sh failed with exit code 3");
        let missing = script("", &json!({"command": "no-such-program", "installHint": "get it at example.com"}));
        assert_eq!(told(missing).await, "exec: executable no-such-program not found; get it at example.com");
        let asks = script("", &json!({"interactiveMode": "Always"}));
        if !std::io::stdin().is_terminal() {
            let words = "exec plugin cannot support interactive mode: standard input is not a terminal";
            assert_eq!(told(asks).await, words);
        }
    }
}
