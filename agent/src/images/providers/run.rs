//! One call of a credential provider: a request on its standard input, the answer on its standard output.

use std::collections::BTreeMap;
use std::process::Stdio;
use std::time::Duration;

use proto::cri::AuthConfig;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::process::Command;

use super::config::Provider;
use crate::metrics;
use crate::program::{self, ProgramError};

/// The kubelet's limit.
const LIMIT: Duration = Duration::from_secs(60);

/// What a program is asked.
pub struct Request<'a> {
    pub image: &'a str,
    pub token: Option<&'a str>,
    pub annotations: Option<&'a BTreeMap<String, String>>,
}

/// What it says.
#[derive(Debug)]
pub struct Answer {
    pub given: BTreeMap<String, AuthConfig>,
    pub cache_key: String,
    /// `None` leaves it to the configuration; zero is not to be remembered.
    pub cache: Option<Duration>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Response {
    kind: String,
    api_version: String,
    #[serde(default)]
    cache_key_type: String,
    #[serde(default)]
    cache_duration: Option<String>,
    #[serde(default)]
    auth: Option<BTreeMap<String, Login>>,
}

#[derive(Deserialize)]
struct Login {
    #[serde(default)]
    username: String,
    #[serde(default)]
    password: String,
}

fn request_text(provider: &Provider, request: &Request<'_>) -> String {
    let mut text = json!({
        "kind": "CredentialProviderRequest",
        "apiVersion": provider.api_version,
        "image": request.image,
    });
    if let Some(token) = request.token {
        text["serviceAccountToken"] = token.into();
    }
    if let Some(annotations) = request.annotations.filter(|a| !a.is_empty()) {
        text["serviceAccountAnnotations"] = json!(annotations);
    }
    format!("{text}\n")
}

/// Runs the program once; it is ended when it takes longer than a minute, or the pull is given up.
///
/// # Errors
/// It cannot be run, fails, or answers what is no answer. Never with what it said on its standard output: that may
/// be a secret.
pub async fn run(provider: &Provider, request: &Request<'_>) -> Result<Answer, String> {
    let labels = [provider.name.as_str()];
    let timer = metrics::CREDENTIAL_PROVIDER.time(&labels);
    let said = tokio::time::timeout(LIMIT, call(provider, request_text(provider, request))).await;
    drop(timer);
    let failed = |why: String| {
        metrics::CREDENTIAL_PROVIDER_ERRORS.inc(&[&provider.name]);
        format!("error execing credential provider plugin {} for image {}: {why}", provider.name, request.image)
    };
    let said = said.map_err(|_| failed("context deadline exceeded".into()))?.map_err(failed)?;
    answer(&provider.api_version, &said)
}

async fn call(provider: &Provider, text: String) -> Result<Vec<u8>, String> {
    let mut command = Command::new(&provider.program);
    command.args(&provider.args).envs(provider.env.iter().map(|v| (&v.name, &v.value))).stderr(Stdio::piped());
    let ended = program::run(command, Some(text)).await;
    let ended = ended.map_err(|(ProgramError::NotStarted(e) | ProgramError::Lost(e))| e.to_string())?;
    if !ended.status.success() {
        let how = ended.status.code().map_or_else(|| ended.status.to_string(), |code| format!("exit status {code}"));
        return Err(format!("{how}: {}", String::from_utf8_lossy(&ended.complaint)));
    }
    Ok(ended.said)
}

fn answer(version: &str, said: &[u8]) -> Result<Answer, String> {
    let undecodable = || "error decoding credential provider plugin response from stdout".to_owned();
    let tree: Value = serde_json::from_slice(said).map_err(|_| undecodable())?;
    let response: Response = serde_json::from_value(tree).map_err(|_| undecodable())?;
    if response.api_version != version {
        return Err(format!(
            "apiVersion from credential plugin response did not match expected apiVersion:{version}, actual \
             apiVersion:{}",
            response.api_version
        ));
    }
    if response.kind != "CredentialProviderResponse" {
        return Err(undecodable());
    }
    let cache = match response.cache_duration {
        None => None,
        Some(text) => {
            let nanos = proto::duration::parse(&text).map_err(|_| undecodable())?;
            Some(Duration::from_nanos(u64::try_from(nanos).unwrap_or(0)))
        }
    };
    let login = |l: Login| AuthConfig { username: l.username, password: l.password, ..AuthConfig::default() };
    let given = response.auth.into_iter().flatten().map(|(pattern, l)| (pattern, login(l))).collect();
    Ok(Answer { given, cache_key: response.cache_key_type, cache })
}
