//! `/statusz` and `/flagz`: a page for people, and the same as an object for programs that name its version.

use std::fmt::Write as _;
use std::sync::LazyLock;
use std::time::Instant;

use bytes::Bytes;
use proto::time::Timestamp;
use serde_json::{Value, json};

use crate::http::{Accepted, Media, Response, respond};
use crate::server::{ApiServer, Request, warn};
use crate::status::ApiError;

/// When the server started.
static STARTED: LazyLock<(Instant, Timestamp)> = LazyLock::new(|| (Instant::now(), Timestamp::now()));

const WARNING: &str = "Warning: This endpoint is not meant to be machine parseable, has no formatting compatibility \
                       guarantees and is for debugging purposes only.";
const PATHS: [&str; 7] = ["/flagz", "/healthz", "/livez", "/metrics", "/readyz", "/statusz", "/version"];

/// Remembers the time of the start.
pub fn start() {
    LazyLock::force(&STARTED);
}

/// Answers the paths of this module; None for others.
pub fn answer(server: &ApiServer, request: &Request) -> Option<Response> {
    let (page, kind) = match request.info.path.as_str() {
        "/statusz" => ("statusz", "Statusz"),
        "/flagz" => ("flagz", "Flagz"),
        _ => return None,
    };
    Some(match choose(&request.accept(), kind) {
        Some(Choice::Text) => {
            let body = if kind == "Statusz" { status_text() } else { flag_text(server) };
            respond::text(200, format!("\napiserver {page}\n{WARNING}\n{body}"))
        }
        Some(Choice::Object { media, version }) => object(server, page, kind, media, version),
        None => {
            let text = "only the following media types are accepted: application/json, application/yaml, text/plain";
            respond::error(&ApiError::new(406, "NotAcceptable", text), request.for_error())
        }
    })
}

enum Choice {
    Text,
    Object { media: Media, version: &'static str },
}

/// The first clause of `Accept` that can be met. Objects are given only to clients that name group, version and kind.
fn choose(accept: &str, kind: &str) -> Option<Choice> {
    if accept.is_empty() {
        return Some(Choice::Text);
    }
    accept.split(',').find_map(|clause| {
        let mut parts = clause.split(';').map(str::trim);
        let media = parts.next()?;
        let parameters: Vec<(&str, &str)> = parts.filter_map(|p| p.split_once('=')).collect();
        let get = |name: &str| parameters.iter().find(|(n, _)| *n == name).map(|(_, v)| *v);
        let converts = ["as", "g", "v"].into_iter().any(|n| get(n).is_some());
        let media = match media {
            "text/plain" | "text/*" | "*/*" if !converts => return Some(Choice::Text),
            "application/json" | "application/*" | "*/*" => Media::Json,
            "application/yaml" => Media::Yaml,
            _ => return None,
        };
        let version = match get("v")? {
            "v1beta1" => "v1beta1",
            "v1alpha1" => "v1alpha1",
            _ => return None,
        };
        let named = get("as") == Some(kind) && get("g") == Some("config.k8s.io");
        named.then_some(Choice::Object { media, version })
    })
}

fn object(server: &ApiServer, page: &str, kind: &str, media: Media, version: &str) -> Response {
    let (since, at) = *STARTED;
    let mut value =
        json!({"kind": kind, "apiVersion": format!("config.k8s.io/{version}"), "metadata": {"name": "apiserver"}});
    if kind == "Statusz" {
        value["startTime"] = at.to_seconds_text().into();
        value["uptimeSeconds"] = since.elapsed().as_secs().into();
        value["goVersion"] = "none".into();
        value["binaryVersion"] = "1.36.2".into();
        value["emulationVersion"] = "1.36".into();
        value["paths"] = json!(PATHS);
    } else {
        let flags = server.config.flags.iter().map(|(n, v)| ((*n).to_owned(), Value::from(v.as_str())));
        value["flags"] = Value::Object(flags.collect());
    }
    let mut json = Vec::new();
    proto::json::write_sorted(&value, &mut json);
    let mut response = respond::json_bytes(200, Accepted { media, ..Accepted::JSON }, Bytes::from(json));
    let content_type = format!("{};g=config.k8s.io;v={version};as={kind}", media.name());
    if let Ok(value) = http::HeaderValue::from_str(&content_type) {
        response.headers_mut().insert(http::header::CONTENT_TYPE, value);
    }
    if version == "v1alpha1" {
        warn(&mut response, &format!("This version of the {page} endpoint is deprecated. Please use a newer version."));
    }
    response
}

fn status_text() -> String {
    let (since, at) = *STARTED;
    let up = since.elapsed().as_secs();
    format!(
        "\nStarted: {}\nUp: {} hr {:02} min {:02} sec\nGo version: none\nBinary version: 1.36.2\nEmulation version: \
         1.36\nPaths: {}\n",
        at.to_seconds_text(),
        up / 3600,
        up / 60 % 60,
        up % 60,
        PATHS.join(" ")
    )
}

fn flag_text(server: &ApiServer) -> String {
    let mut out = String::new();
    for (name, value) in &server.config.flags {
        // Writing to a string does not fail.
        let _ = writeln!(out, "{name}={value}");
    }
    out
}
