//! Who is asked about whom: the reviews behind requests, and tokens in the place of certificates.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use super::Recorded;

/// The reviews that the node has asked for, as the API server's audit log has them.
fn reviews(recorded: &Recorded) -> Result<Vec<Value>> {
    let log = std::fs::read_to_string(&recorded.audit).unwrap_or_default();
    let mut found = Vec::new();
    for line in log.lines().filter(|line| line.ends_with('}')) {
        let event: Value = serde_json::from_str(line)?;
        if event["objectRef"]["resource"] == "subjectaccessreviews" {
            found.push(event["requestObject"]["spec"].clone());
        }
    }
    Ok(found)
}

/// Replays `authorization.json` and `bearer-tokens.json`; returns what differs.
pub fn compare(recorded: &Recorded) -> Result<Vec<String>> {
    let mut wrong = attributes(recorded)?;
    wrong.extend(tokens(recorded)?);
    Ok(wrong)
}

fn attributes(recorded: &Recorded) -> Result<Vec<String>> {
    let mut wrong = Vec::new();
    let wanted = recorded.file("authorization.json")?;
    let requests = wanted["requests"].as_array().context("requests")?;
    ensure!(!requests.is_empty(), "no requests");
    let groups = &wanted["reviewSpec"]["groups"];
    let before = reviews(recorded)?.len();
    let mut expected: Vec<(String, &Value)> = Vec::new();
    for request in requests {
        let (method, path) =
            (request["method"].as_str().context("a method")?, request["path"].as_str().context("a path")?);
        let (status, body) = recorded.ask("teams", method, path, &[])?;
        if request["status"] != status {
            wrong.push(format!("{method} {path}: {status} instead of {}", request["status"]));
        }
        let text = request["body"].as_str().map(|text| text.replace("USER", "teams"));
        if method != "HEAD" && text.is_some_and(|text| text != body) {
            wrong.push(format!("{method} {path}: {body:?} instead of {}", request["body"]));
        }
        let reviews = request["reviews"].as_array().context("reviews")?;
        expected.extend(reviews.iter().map(|review| (format!("{method} {path}"), review)));
    }
    // The log is written a moment after the answer.
    let begun = Instant::now();
    let asked = loop {
        let asked = reviews(recorded)?.split_off(before);
        if asked.len() >= expected.len() || begun.elapsed() > Duration::from_secs(5) {
            break asked;
        }
        std::thread::sleep(Duration::from_millis(50));
    };
    if asked.len() != expected.len() {
        wrong.push(format!("{} reviews instead of {}", asked.len(), expected.len()));
    }
    for ((request, want), have) in expected.iter().zip(&asked) {
        let credential = have["extra"]["authentication.kubernetes.io/credential-id"][0].as_str().unwrap_or_default();
        if have["resourceAttributes"] != **want
            || have["user"] != "teams"
            || have["groups"] != *groups
            || !credential.starts_with("X509SHA256=")
        {
            wrong.push(format!("{request}: the review was {have} instead of one of {want} for groups {groups}"));
        }
    }
    Ok(wrong)
}

fn tokens(recorded: &Recorded) -> Result<Vec<String>> {
    let kubectl = |args: &[&str]| recorded.server.kubectl(args);
    kubectl(&["create", "serviceaccount", "caller", "-n", "ns1"])?;
    kubectl(&["create", "clusterrolebinding", "caller", "--clusterrole=ep-reader", "--serviceaccount=ns1:caller"])?;
    let token = |more: &[&str]| -> Result<String> {
        let said = kubectl(&[&["create", "token", "caller", "-n", "ns1"][..], more].concat())?;
        Ok(format!("Authorization: Bearer {}", said.trim()))
    };
    let (good, other) = (token(&[])?, token(&["--audience", "somebody-else"])?);
    let in_query = format!("/pods?access_token={}", good.rsplit(' ').next().unwrap_or_default());
    let mut wrong = Vec::new();
    for case in recorded.file("bearer-tokens.json")?.as_array().context("cases")? {
        let name = case["name"].as_str().context("a name")?;
        let header = case["headers"]["Authorization"].as_str().map(|value| format!("Authorization: {value}"));
        let (user, path, header) = match name {
            "service account token" => ("", "/pods", Some(good.clone())),
            "token of another audience" => ("", "/pods", Some(other.clone())),
            "token in the query" => ("", in_query.as_str(), None),
            "certificate without rights and a good token" => ("nobody", "/pods", Some(good.clone())),
            // That a silent API server is waited for is a test of its own time.
            _ if name.starts_with("API server does not answer") => continue,
            _ => ("", case["path"].as_str().context("a path")?, header),
        };
        let header: Vec<&str> = header.iter().flat_map(|header| ["-H", header.as_str()]).collect();
        let (status, body) = recorded.ask(user, "GET", path, &header)?;
        let text = case["answer"]["text"].as_str();
        if case["answer"]["status"] != status || text.is_some_and(|text| body.trim_end() != text) {
            wrong.push(format!("{name}: {status} {body:?} instead of {}", case["answer"]));
        }
    }
    Ok(wrong)
}
