//! `/logs/?query=`: what services of the node logged, by the journal or from their files below the log folder.
//!
//! Followed: kubelet `kubelet_server_journal.go`. A query with a slash names one file; others name services, asked of
//! the journal first. Nothing reaches a command but words that are checked here.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use http::{HeaderMap, HeaderValue, Response, StatusCode, header};
use tokio::process::Command;

use super::answers::{Answer, bare, text};
use super::metrics_page::gzip;
use super::route::query_pairs;
use super::{node_logs, pattern};

/// For a query with all of its services.
const PATIENCE: Duration = Duration::from_secs(30);
const MAX_TAIL_LINES: i64 = 100_000;
const MAX_SERVICES: usize = 4;
const MAX_NAME: usize = 256;

#[derive(Debug, Default, PartialEq)]
struct Query {
    services: Vec<String>,
    files: Vec<String>,
    since: Option<String>,
    until: Option<String>,
    tail: Option<i64>,
    boot: Option<i64>,
    pattern: String,
}

/// Answers a query below `folder`; `None` when there is none.
pub(super) async fn serve(folder: &Path, path: &str, query: &str, headers: &HeaderMap) -> Option<Response<Answer>> {
    if !query_pairs(query).iter().any(|(key, _)| key == "query") {
        return None;
    }
    let query = match Query::of(query) {
        Ok(query) => query,
        Err(why) => return Some(text(StatusCode::BAD_REQUEST, format!("{why}\n"))),
    };
    if !path.is_empty() {
        return Some(text(StatusCode::NOT_ACCEPTABLE, "path not allowed in query mode\n"));
    }
    if let Err(why) = query.check(folder) {
        return Some(text(StatusCode::NOT_ACCEPTABLE, format!("{why}\n")));
    }
    if let [file] = query.files.as_slice() {
        return Some(node_logs::below(folder, file, "", headers).await);
    }
    let told = query.services_text(folder).await;
    // Upstream's writer of journals looks for this one word.
    let packed = headers.get(header::ACCEPT_ENCODING).is_some_and(|asked| asked == "gzip");
    let packed = if packed { tokio::task::block_in_place(|| gzip(&told)) } else { None };
    let is_packed = packed.is_some();
    let mut answer = bare(StatusCode::OK, packed.unwrap_or(told));
    if is_packed {
        answer.headers_mut().insert(header::CONTENT_ENCODING, HeaderValue::from_static("gzip"));
    }
    answer.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("text/plain;charset=UTF-8"));
    Some(answer)
}

fn invalid(field: &str, value: &str, why: &str) -> String {
    format!("{field}: Invalid value: {value}: {why}")
}

/// As Go prints several errors in one.
fn joined(errors: Vec<String>) -> Result<(), String> {
    match errors.as_slice() {
        [] => Ok(()),
        [one] => Err(one.clone()),
        many => Err(format!("[{}]", many.join(", "))),
    }
}

impl Query {
    fn of(text: &str) -> Result<Self, String> {
        let pairs = query_pairs(text);
        let first = |name: &str| pairs.iter().find(|(k, _)| k == name).map_or("", |(_, v)| v.as_str());
        let mut query = Query::default();
        let mut errors = Vec::new();
        let names: Vec<&String> = pairs.iter().filter(|(k, _)| k == "query").map(|(_, v)| v).collect();
        for name in &names {
            if name.contains(['/', '\\']) {
                query.files.push((*name).clone());
            } else if !name.trim().is_empty() {
                query.services.push((*name).clone());
            }
        }
        if !names.is_empty() && query.files.is_empty() && query.services.is_empty() {
            let given: Vec<String> = names.iter().map(|n| format!("{n:?}")).collect();
            errors.push(invalid("unit", &format!("[{}]", given.join(",")), "unit cannot be empty"));
        }
        let mut time = |name: &str| {
            let value = first(name);
            if value.is_empty() {
                return None;
            }
            if proto::time::parse_rfc3339(value).is_err() {
                errors.push(invalid(name, &format!("{value:?}"), "invalid time format"));
            }
            Some(value.to_owned())
        };
        (query.since, query.until) = (time("sinceTime"), time("untilTime"));
        let mut number = |name: &str| {
            let value = first(name);
            if value.is_empty() {
                return None;
            }
            let parsed = value.parse::<i64>();
            if let Err(error) = &parsed {
                let overflows =
                    matches!(error.kind(), std::num::IntErrorKind::PosOverflow | std::num::IntErrorKind::NegOverflow);
                let why = if overflows { "value out of range" } else { "invalid syntax" };
                let why = format!("strconv.Atoi: parsing {value:?}: {why}");
                errors.push(invalid(name, &format!("{value:?}"), &why));
            }
            parsed.ok()
        };
        (query.boot, query.tail) = (number("boot"), number("tailLines"));
        query.pattern = first("pattern").to_owned();
        joined(errors)?;
        Ok(query)
    }

    fn has_options(&self) -> bool {
        self.since.is_some()
            || self.until.is_some()
            || self.tail.is_some()
            || self.boot.is_some()
            || !self.pattern.is_empty()
    }

    fn check(&self, folder: &Path) -> Result<(), String> {
        let mut errors = Vec::new();
        for name in &self.services {
            let fits = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '@');
            if name.len() > MAX_NAME {
                errors.push(invalid("query", &format!("{name:?}"), "length must be less than 100"));
            } else if !name.chars().all(fits) {
                errors.push(invalid("query", &format!("{name:?}"), "input contains unsupported characters"));
            }
        }
        if self.services.len() > MAX_SERVICES {
            let count = self.services.len();
            errors.push(format!("query: Too many: {count}: must have at most {MAX_SERVICES} items"));
        }
        let files = || {
            let names: Vec<String> = self.files.iter().map(|f| format!("{f:?}")).collect();
            format!("[{}]", names.join(","))
        };
        match (self.files.as_slice(), self.services.as_slice()) {
            ([], []) => errors.push("query: Required value: cannot be empty with options".into()),
            ([_, ..], [_, ..]) => {
                let both = format!("[{}], [{}]", self.files.join(" "), self.services.join(" "));
                errors.push(invalid("query", &format!("{both:?}"), "cannot specify a file and service"));
            }
            ([_, _, ..], []) => errors.push(invalid("query", &files(), "cannot specify more than one file")),
            ([_], []) if self.has_options() => {
                errors.push(invalid("query", &files(), "cannot specify file with options"));
            }
            ([file], []) => {
                if let Err(why) = node_logs::inside(folder, file) {
                    errors.push(invalid("query", &files(), &format!("statat {file}: {why}")));
                }
            }
            ([], [_, ..]) => {}
        }
        let moment = |text: &Option<String>| text.as_deref().and_then(|t| proto::time::parse_rfc3339(t).ok());
        if let (Some(since), Some(until)) = (moment(&self.since), moment(&self.until))
            && (since.seconds, since.nanos) > (until.seconds, until.nanos)
        {
            let value = format!("{:?}", self.until.as_deref().unwrap_or_default());
            errors.push(invalid("untilTime", &value, "must be after `sinceTime`"));
        }
        if let Some(boot) = self.boot.filter(|b| *b > 0) {
            errors.push(invalid("boot", &boot.to_string(), "must be less than 1"));
        }
        if let Some(tail) = self.tail.filter(|t| !(0..=MAX_TAIL_LINES).contains(t)) {
            let why = format!("must be between 0 and {MAX_TAIL_LINES}, inclusive");
            errors.push(invalid("tailLines", &tail.to_string(), &why));
        }
        if let Err(why) = pattern::check(&self.pattern) {
            errors.push(invalid("pattern", &format!("{:?}", self.pattern), &why));
        }
        joined(errors)
    }

    async fn services_text(&self, folder: &Path) -> Vec<u8> {
        let mut out = Vec::new();
        let found = tokio::time::timeout(PATIENCE, async {
            let (mut native, mut files) = (Vec::new(), Vec::new());
            for service in &self.services {
                if logs_to_journal(service).await {
                    native.push(service.as_str())
                } else {
                    files.push(service.as_str())
                }
            }
            if !native.is_empty() {
                out.extend(self.journal(&native).await);
            }
            if !files.is_empty() && self.has_options() {
                let text = format!(
                    "\noptions present and query resolved to log files for [{}]\ntry without specifying options\n",
                    files.join(" ")
                );
                out.extend(text.into_bytes());
                return;
            }
            for service in files {
                out.extend(service_file(folder, service).await);
            }
        });
        if found.await.is_err() {
            out.extend_from_slice(b"\ncontext error: context deadline exceeded\n");
        }
        out
    }

    async fn journal(&self, services: &[&str]) -> Vec<u8> {
        let mut command = Command::new("journalctl");
        command.args(["--utc", "--no-pager", "--output=short-precise"]);
        // Of any zone; the journal's own tool knows only its own and this one.
        let local = |text: &str| match proto::time::parse_rfc3339(text) {
            Ok(time) => time.to_seconds_text().replace('T', " ").replace('Z', " UTC"),
            Err(_) => text.to_owned(),
        };
        if let Some(since) = &self.since {
            command.arg(format!("--since={}", local(since)));
        }
        if let Some(until) = &self.until {
            command.arg(format!("--until={}", local(until)));
        }
        if let Some(lines) = self.tail {
            command.args(["--pager-end".to_owned(), format!("--lines={lines}")]);
        }
        for service in services {
            command.arg(format!("--unit={service}"));
        }
        if !self.pattern.is_empty() {
            command.args([format!("--grep={}", self.pattern), "--case-sensitive=false".to_owned()]);
        }
        command.arg("--boot").arg(self.boot.unwrap_or(0).to_string());
        match command.stdin(Stdio::null()).kill_on_drop(true).output().await {
            Ok(output) => [output.stdout, output.stderr].concat(),
            Err(_) => b"\nerror: journal output not available\n".to_vec(),
        }
    }
}

/// Whether the journal has anything of a service.
async fn logs_to_journal(service: &str) -> bool {
    let mut command = Command::new("journalctl");
    command.args(["--no-pager", "--output=short", "--lines=1"]).arg(format!("--unit={service}"));
    match command.stdin(Stdio::null()).kill_on_drop(true).output().await {
        Ok(output) if output.status.success() => !String::from_utf8_lossy(&output.stdout).contains("-- No entries --"),
        _ => false,
    }
}

/// The file of a service by the names that such files have.
async fn service_file(folder: &Path, service: &str) -> Vec<u8> {
    let missing = || format!("\nlog not found for {service}\n").into_bytes();
    for name in [service.to_owned(), format!("{service}.log"), format!("{service}/{service}.log")] {
        let Ok(path) = node_logs::inside(folder, &name) else { continue };
        match read(path).await {
            Ok(Some(content)) => return content,
            Ok(None) => {}
            Err(error) => return format!("\nerror getting log for {service}: {error}\n").into_bytes(),
        }
    }
    missing()
}

/// The content of a file; `None` for a folder or nothing.
async fn read(path: PathBuf) -> std::io::Result<Option<Vec<u8>>> {
    match tokio::fs::metadata(&path).await {
        Ok(metadata) if metadata.is_dir() => Ok(None),
        Ok(_) => tokio::fs::read(&path).await.map(Some),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn why(query: &str) -> String {
        match Query::of(query).map(|q| q.check(Path::new("/nonexistent"))) {
            Ok(Ok(())) => String::new(),
            Ok(Err(why)) | Err(why) => why,
        }
    }

    #[test]
    fn mistakes_are_named_in_the_kubelets_words() {
        assert_eq!(why("query="), "unit: Invalid value: [\"\"]: unit cannot be empty");
        assert_eq!(
            why("query=a&tailLines=x"),
            "tailLines: Invalid value: \"x\": strconv.Atoi: parsing \"x\": invalid syntax"
        );
        assert_eq!(
            why("query=a&tailLines=-1"),
            "tailLines: Invalid value: -1: must be between 0 and 100000, inclusive"
        );
        assert_eq!(why("query=a&boot=1"), "boot: Invalid value: 1: must be less than 1");
        assert_eq!(why("query=a&sinceTime=x"), "sinceTime: Invalid value: \"x\": invalid time format");
        assert_eq!(why("query=a%24"), "query: Invalid value: \"a$\": input contains unsupported characters");
        assert_eq!(
            why("query=a&pattern=%5B"),
            "pattern: Invalid value: \"[\": error parsing regexp: missing closing ]: `[`"
        );
        assert_eq!(why("query=a&pattern=oom%7C%5Bkill%5D"), "");
        assert!(why("query=..%2Fshadow").ends_with("path escapes from parent"));
        assert_eq!(why("query=a&query=b"), "");
    }
}
