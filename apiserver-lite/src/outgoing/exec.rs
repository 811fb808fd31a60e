//! Credentials that a program tells: the `exec` of a user in a kubeconfig.
//!
//! The program is run without input, is told in `KUBERNETES_EXEC_INFO` what is asked of it, and prints an ExecCredential
//! of `client.authentication.k8s.io`: a token, a certificate and its key, or both. What it said is good until it says, or
//! until the other side refuses it. Follows client-go's `plugin/pkg/client/auth/exec`.
//!
//! A run is nobody's own: it goes on when whoever asked first has given up, and what it says is there for the next.
//!
//! Limits: `provideClusterInfo` tells nothing, as the users here are for any host.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use http::header::HeaderValue;
use proto::time::{Timestamp, parse_rfc3339};
use serde_json::{Value, json};
use tokio::io::AsyncReadExt as _;
use tokio::process::Command;
use tokio::sync::Mutex;
use tokio::time::Instant;

use crate::status::quote;
use crate::tree::{list, text};

const GROUP: &str = "client.authentication.k8s.io";
/// Time that a program has; whoever waits for it has a limit of their own as well.
const PATIENCE: Duration = Duration::from_secs(60);
/// Most that a program may print, in bytes.
const PRINTED: usize = 1 << 20;
/// So long a failure is told again, lest everybody who waited for a run has one of their own.
const FAILED: Duration = Duration::from_secs(1);

/// A program, and what it said last.
pub struct Exec {
    program: Arc<Program>,
    last: Arc<std::sync::Mutex<Option<Last>>>,
    /// Held by the run that there is.
    running: Arc<Mutex<()>>,
}

struct Program {
    command: PathBuf,
    arguments: Vec<String>,
    environment: Vec<(String, String)>,
    /// `client.authentication.k8s.io/v1`, ...
    api_version: String,
    /// It has to talk to somebody, and nobody is here.
    interactive: bool,
}

/// What became of the last run.
enum Last {
    Said(Said),
    Failed(String, Instant),
}

struct Said {
    credentials: Arc<Credentials>,
    /// Seconds since 1970; None for ever.
    until: Option<i64>,
}

/// What a program told.
#[derive(Default)]
pub struct Credentials {
    pub token: Option<HeaderValue>,
    /// A certificate and its key, in PEM.
    pub certificate: Option<(Vec<u8>, Vec<u8>)>,
}

/// The header that shows a token.
///
/// # Errors
/// When it cannot stand in one.
pub fn bearer(token: &str) -> Result<HeaderValue, String> {
    let header = HeaderValue::from_str(&format!("Bearer {token}"));
    let mut header = header.map_err(|_| "the credentials cannot stand in a header".to_owned())?;
    header.set_sensitive(true);
    Ok(header)
}

impl Exec {
    /// Reads the `exec` of a user; a command with a path is looked for beside its file.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn parse(user: &str, exec: &Value, folder: &Path) -> Result<Self, String> {
        let lacks = |what: &str| Err(format!("{what} must be specified for {user} to use exec authentication plugin"));
        let (command, api_version) = (text(exec, "command"), text(exec, "apiVersion"));
        if command.is_empty() {
            return lacks("command");
        }
        if api_version.is_empty() {
            return lacks("apiVersion");
        }
        if ![format!("{GROUP}/v1"), format!("{GROUP}/v1beta1")].contains(&api_version.to_owned()) {
            return Err(format!("exec plugin: invalid apiVersion {}", quote(api_version)));
        }
        match text(exec, "interactiveMode") {
            "" if api_version.ends_with("/v1") => return lacks("interactiveMode"),
            "" | "Never" | "IfAvailable" | "Always" => {}
            other => return Err(format!("invalid interactiveMode for {user}: {}", quote(other))),
        }
        let mut environment = Vec::new();
        for variable in list(exec, "env") {
            if text(variable, "name").is_empty() {
                return Err(format!(
                    "env variable name must be specified for {user} to use exec authentication plugin"
                ));
            }
            environment.push((text(variable, "name").to_owned(), text(variable, "value").to_owned()));
        }
        let beside = command.contains('/');
        let program = Program {
            command: if beside { folder.join(command) } else { command.into() },
            arguments: list(exec, "args").filter_map(Value::as_str).map(Into::into).collect(),
            environment,
            api_version: api_version.to_owned(),
            interactive: text(exec, "interactiveMode") == "Always",
        };
        Ok(Exec { program: Arc::new(program), last: Arc::default(), running: Arc::default() })
    }

    /// What the program says, or said and has not taken back. Those who ask at once wait for one run.
    ///
    /// # Errors
    /// Why there is nothing to show.
    pub async fn credentials(&self) -> Result<Arc<Credentials>, String> {
        if let Some(known) = self.known() {
            return known;
        }
        let running = self.running.clone().lock_owned().await;
        if let Some(known) = self.known() {
            return known;
        }
        let (program, last) = (self.program.clone(), self.last.clone());
        let run = tokio::spawn(async move {
            let said = program.run().await.map_err(|why| format!("getting credentials: {why}"));
            let outcome = said.as_ref().map(|said| said.credentials.clone()).map_err(String::clone);
            let now = match said {
                Ok(said) => Last::Said(said),
                Err(why) => Last::Failed(why, Instant::now()),
            };
            *last.lock().unwrap_or_else(PoisonError::into_inner) = Some(now);
            // Those who wait look at what there is, so it has to be there before.
            drop(running);
            outcome
        });
        run.await.unwrap_or_else(|error| Err(format!("getting credentials: {error}")))
    }

    /// What need not be asked for.
    fn known(&self) -> Option<Result<Arc<Credentials>, String>> {
        let last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        match last.as_ref()? {
            Last::Said(said) if said.until.is_none_or(|until| Timestamp::now().seconds < until) => {
                Some(Ok(said.credentials.clone()))
            }
            Last::Failed(why, at) if at.elapsed() < FAILED => Some(Err(why.clone())),
            _ => None,
        }
    }

    /// The other side refused what was shown: the next one to ask gets it anew, unless that was done meanwhile.
    pub fn refused(&self, shown: &Arc<Credentials>) {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        if matches!(&*last, Some(Last::Said(said)) if Arc::ptr_eq(&said.credentials, shown)) {
            *last = None;
        }
    }
}

impl Program {
    async fn run(&self) -> Result<Said, String> {
        if self.interactive {
            return Err("exec plugin cannot support interactive mode: standard input is not a terminal".into());
        }
        let asked = json!({"kind": "ExecCredential", "apiVersion": self.api_version, "spec": {"interactive": false}});
        let mut command = Command::new(&self.command);
        command.args(&self.arguments).envs(self.environment.iter().map(|(name, value)| (name, value)));
        command.env("KUBERNETES_EXEC_INFO", asked.to_string());
        // Whichever way this ends, the program does as well.
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::inherit()).kill_on_drop(true);
        let shown = self.command.display();
        let mut child = command.spawn().map_err(|error| match error.kind() {
            std::io::ErrorKind::NotFound => format!("exec: executable {shown} not found"),
            _ => format!("exec: {error}"),
        })?;
        let done = async {
            let failed = |error: std::io::Error| format!("exec: {error}");
            let mut printed = Vec::new();
            if let Some(stdout) = child.stdout.take() {
                stdout.take(PRINTED as u64 + 1).read_to_end(&mut printed).await.map_err(failed)?;
            }
            if printed.len() > PRINTED {
                return Err(format!("exec: executable {shown} prints more than {PRINTED} bytes"));
            }
            Ok((child.wait().await.map_err(failed)?, printed))
        };
        let done = tokio::time::timeout(PATIENCE, done).await;
        let (status, printed) = done.map_err(|_| format!("exec: executable {shown} did not end in time"))??;
        match status.code() {
            Some(0) => {}
            Some(code) => return Err(format!("exec: executable {shown} failed with exit code {code}")),
            None => return Err(format!("exec: executable {shown} was ended by a signal")),
        }
        self.read(&printed)
    }

    /// What the program printed.
    fn read(&self, printed: &[u8]) -> Result<Said, String> {
        let read = proto::json::parse(printed).map_err(|e| format!("decoding stdout: {e}"))?.value;
        if text(&read, "apiVersion") != self.api_version || text(&read, "kind") != "ExecCredential" {
            let (wanted, said) = (&self.api_version, text(&read, "apiVersion"));
            return Err(format!(
                "exec plugin is configured to use API version {wanted}, plugin returned version {said}"
            ));
        }
        let status = &read["status"];
        if !status.is_object() {
            return Err("exec plugin didn't return a status field".into());
        }
        let [token, certificate, key] =
            ["token", "clientCertificateData", "clientKeyData"].map(|key| text(status, key));
        if token.is_empty() && certificate.is_empty() && key.is_empty() {
            return Err("exec plugin didn't return a token or cert/key pair".into());
        }
        if certificate.is_empty() != key.is_empty() {
            return Err("exec plugin returned only certificate or key, not both".into());
        }
        let credentials = Credentials {
            token: if token.is_empty() { None } else { Some(bearer(token)?) },
            certificate: (!key.is_empty()).then(|| (certificate.into(), key.into())),
        };
        let until = match text(status, "expirationTimestamp") {
            "" => None,
            time => Some(parse_rfc3339(time).map_err(|e| format!("decoding stdout: {e}"))?.seconds),
        };
        Ok(Said { credentials: Arc::new(credentials), until })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn exec(script: &str) -> Exec {
        let said = json!({"command": "sh", "args": ["-c", script], "apiVersion": format!("{GROUP}/v1"),
            "interactiveMode": "Never", "env": [{"name": "EXTRA", "value": "x"}]});
        Exec::parse("u", &said, Path::new("/")).expect("a program")
    }

    #[tokio::test]
    async fn a_program_tells_a_token_once_until_it_is_refused_or_old() {
        let folder = std::env::temp_dir().join(format!("exec-credentials-{}", crate::random::uuid()));
        std::fs::create_dir_all(&folder).expect("a folder");
        let count = folder.join("count");
        let print = |rest: &str| {
            format!(
                "echo x >>{}; printf '{{\"kind\":\"ExecCredential\",\"apiVersion\":\"{GROUP}/v1\",\"status\":{{\"token\":\
                 \"t-%s-%s\"{rest}}}}}' \"$EXTRA\" \"$(echo \"$KUBERNETES_EXEC_INFO\" | grep -c interactive.:false)\"",
                count.display()
            )
        };
        let runs = || std::fs::read_to_string(&count).unwrap_or_default().lines().count();
        let program = exec(&print(""));
        for _ in 0..2 {
            let told = program.credentials().await.expect("a token");
            assert_eq!(told.token.as_ref().and_then(|t| t.to_str().ok()), Some("Bearer t-x-1"));
        }
        assert_eq!(runs(), 1);
        let first = program.credentials().await.expect("a token");
        program.refused(&first);
        program.credentials().await.expect("a token");
        assert_eq!(runs(), 2);
        program.refused(&first);
        program.credentials().await.expect("a token");
        assert_eq!(runs(), 2, "others were there already");
        let old = exec(&print(",\"expirationTimestamp\":\"2020-01-01T00:00:00Z\""));
        old.credentials().await.expect("a token");
        old.credentials().await.expect("a token");
        assert_eq!(runs(), 4);
        std::fs::remove_dir_all(&folder).expect("ours");
    }

    /// One that is slower than those who ask are patient is not run for each of them.
    #[tokio::test]
    async fn a_run_goes_on_without_who_asked_for_it() {
        let folder = std::env::temp_dir().join(format!("exec-slow-{}", crate::random::uuid()));
        std::fs::create_dir_all(&folder).expect("a folder");
        let count = folder.join("count");
        let runs = || std::fs::read_to_string(&count).unwrap_or_default().lines().count();
        let said =
            format!("{{\"kind\":\"ExecCredential\",\"apiVersion\":\"{GROUP}/v1\",\"status\":{{\"token\":\"t\"}}}}");
        let slow = exec(&format!("echo x >>{}; sleep 1; echo '{said}'", count.display()));
        let hasty = tokio::time::timeout(Duration::from_millis(100), slow.credentials()).await;
        assert!(hasty.is_err(), "it is not that fast");
        slow.credentials().await.expect("a token");
        assert_eq!(runs(), 1);

        let failing = exec(&format!("echo x >>{}; sleep 0.1; exit 3", count.display()));
        let (first, second) = tokio::join!(failing.credentials(), failing.credentials());
        assert!(first.is_err() && second.is_err());
        assert_eq!(runs(), 2, "one failure is told to both");
        std::fs::remove_dir_all(&folder).expect("ours");
    }

    #[tokio::test]
    async fn a_program_that_prints_without_end_is_stopped() {
        let told = tokio::time::timeout(Duration::from_secs(20), exec("yes").credentials()).await.expect("soon");
        let told = told.err().expect("too much");
        assert_eq!(told, "getting credentials: exec: executable sh prints more than 1048576 bytes");
    }

    /// The server starts all the same: nobody may ever be asked.
    #[tokio::test]
    async fn a_program_that_wants_to_talk_fails_when_it_is_asked() {
        let said = json!({"command": "true", "apiVersion": format!("{GROUP}/v1"), "interactiveMode": "Always"});
        let told = Exec::parse("u", &said, Path::new("/")).expect("a program").credentials().await;
        let why = "exec plugin cannot support interactive mode: standard input is not a terminal";
        assert_eq!(told.err().expect("nobody to talk to"), format!("getting credentials: {why}"));
    }

    #[tokio::test]
    async fn a_program_that_tells_nothing_is_told_of() {
        let of = |status: &str| {
            format!("echo '{{\"kind\":\"ExecCredential\",\"apiVersion\":\"{GROUP}/v1\",\"status\":{status}}}'")
        };
        for (script, why) in [
            ("exit 3".to_owned(), "exec: executable sh failed with exit code 3"),
            ("echo no".into(), "decoding stdout: "),
            ("echo {}".into(), "exec plugin is configured to use API version"),
            (of("null"), "exec plugin didn't return a status field"),
            (of("{}"), "exec plugin didn't return a token or cert/key pair"),
            (of("{\"clientKeyData\":\"k\"}"), "exec plugin returned only certificate or key, not both"),
        ] {
            let told = exec(&script).credentials().await.err().expect("nothing to show");
            assert!(told.starts_with(&format!("getting credentials: {why}")), "{script}: {told}");
        }
        let pair = exec(&of("{\"clientKeyData\":\"k\",\"clientCertificateData\":\"c\"}")).credentials().await;
        assert_eq!(pair.expect("a pair").certificate, Some((b"c".to_vec(), b"k".to_vec())));
        let none = json!({"command": "./none", "apiVersion": format!("{GROUP}/v1beta1")});
        let none = Exec::parse("u", &none, Path::new("/nowhere")).expect("a program");
        let told = none.credentials().await.err().expect("no program");
        assert_eq!(told, "getting credentials: exec: executable /nowhere/./none not found");
    }

    #[test]
    fn a_program_has_a_command_and_a_version() {
        let told = |exec: Value| Exec::parse("u", &exec, Path::new("/")).err().expect("wrong");
        for (exec, why) in [
            (json!({}), "command must be specified for u to use exec authentication plugin"),
            (json!({"command": "x"}), "apiVersion must be specified for u to use exec authentication plugin"),
            (json!({"command": "x", "apiVersion": "v1"}), "exec plugin: invalid apiVersion \"v1\""),
            (
                json!({"command": "x", "apiVersion": format!("{GROUP}/v1")}),
                "interactiveMode must be specified for u to use exec authentication plugin",
            ),
            (
                json!({"command": "x", "apiVersion": format!("{GROUP}/v1"), "interactiveMode": "Now"}),
                "invalid interactiveMode for u: \"Now\"",
            ),
        ] {
            assert_eq!(told(exec), why);
        }
    }
}
