//! What `log`, `exec`, `attach` and `portforward` ask for, as a kubelet's path.

use serde_json::Value;

use super::Target;
use super::target::kubelet;
use crate::server::{ApiServer, Request};
use crate::status::{ApiError, Cause, Details, Result};

fn find(server: &ApiServer, request: &Request) -> Result<Value> {
    let name = &request.info.name;
    let found = server.store.get(&"pods".into(), &request.info.namespace, name);
    found.map(|p| p.value()).ok_or_else(|| ApiError::missing("", "pods", name))
}

fn names<'a>(pod: &'a Value, list: &str) -> Vec<&'a str> {
    pod["spec"][list].as_array().into_iter().flatten().filter_map(|c| c["name"].as_str()).collect()
}

/// The container that is meant: the named one, or the only one.
fn container(pod: &Value, pod_name: &str, wanted: &str) -> Result<String> {
    let (regular, init, ephemeral) =
        (names(pod, "containers"), names(pod, "initContainers"), names(pod, "ephemeralContainers"));
    if !wanted.is_empty() {
        let known = [&regular, &init, &ephemeral].iter().any(|l| l.contains(&wanted));
        let wrong = || ApiError::bad_request(format!("container {wanted} is not valid for pod {pod_name}"));
        return if known { Ok(wanted.into()) } else { Err(wrong()) };
    }
    match regular.as_slice() {
        [one] => Ok((*one).into()),
        [] => Err(ApiError::bad_request(format!("a container name must be specified for pod {pod_name}"))),
        many => {
            let mut text =
                format!("a container name must be specified for pod {pod_name}, choose one of: [{}]", many.join(" "));
            for (list, kind) in [(init, "init"), (ephemeral, "ephemeral")] {
                if !list.is_empty() {
                    text.push_str(&format!(" or one of the {kind} containers: [{}]", list.join(" ")));
                }
            }
            Err(ApiError::bad_request(text))
        }
    }
}

fn node(pod: &Value) -> Option<&str> {
    pod["spec"]["nodeName"].as_str().filter(|n| !n.is_empty())
}

/// Joins parameters, escaped.
fn query(pairs: &[(&str, String)]) -> String {
    let mut out = String::new();
    for (key, value) in pairs {
        out.push(if out.is_empty() { '?' } else { '&' });
        out.push_str(key);
        out.push('=');
        out.push_str(&escape(value));
    }
    out
}

fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => out.push(char::from(byte)),
            _ => out.push_str(&format!("%{byte:02X}")),
        }
    }
    out
}

/// A number of the query.
fn number(request: &Request, name: &str) -> Result<Option<i64>> {
    let Some(text) = request.query.get(name).filter(|t| !t.is_empty()) else { return Ok(None) };
    let quoted = crate::status::quote(text);
    text.parse()
        .map(Some)
        .map_err(|_| ApiError::bad_request(format!("strconv.ParseInt: parsing {quoted}: invalid syntax")))
}

fn cause(reason: &str, message: String, field: &str) -> Cause {
    Cause { reason: reason.into(), message, field: field.into() }
}

/// What of a container's output can be asked for.
const STREAMS: [&str; 3] = ["All", "Stderr", "Stdout"];

/// The log of a container; None while the pod has no node.
pub(super) fn log(server: &ApiServer, request: &Request) -> Result<Option<Target>> {
    let name = &request.info.name;
    let (tail, limit, since) =
        (number(request, "tailLines")?, number(request, "limitBytes")?, number(request, "sinceSeconds")?);
    let since_time = request.query.get("sinceTime").filter(|t| !t.is_empty());
    if let Some(Err(error)) = since_time.map(proto::time::parse_rfc3339) {
        return Err(ApiError::bad_request(error.to_string()));
    }
    let mut causes = Vec::new();
    let mut check = |value: Option<i64>, least: i64, field: &str, what: &str| {
        if let Some(value) = value.filter(|v| *v < least) {
            causes.push(cause(
                "FieldValueInvalid",
                format!("Invalid value: {value}: must be greater than {what}"),
                field,
            ));
        }
    };
    check(tail, 0, "tailLines", "or equal to 0");
    check(limit, 1, "limitBytes", "0");
    if since.is_some() && since_time.is_some() {
        let text = "Forbidden: at most one of `sinceTime` or `sinceSeconds` may be specified";
        causes.push(cause("FieldValueForbidden", text.into(), ""));
    } else if let Some(value) = since.filter(|s| *s < 1) {
        let text = format!("Invalid value: {value}: must be greater than 0");
        causes.push(cause("FieldValueInvalid", text, "sinceSeconds"));
    }
    let stream = request.query.get("stream");
    match stream {
        // Absent is the same as all.
        Some(_) if !server.config.splits_logs => {
            causes.push(cause("FieldValueForbidden", "Forbidden: may not be specified".into(), "stream"));
        }
        Some(stream) if !STREAMS.contains(&stream) => {
            let known = STREAMS.map(crate::status::quote).join(", ");
            let text = format!("Unsupported value: {}: supported values: {known}", crate::status::quote(stream));
            causes.push(cause("FieldValueNotSupported", text, "stream"));
        }
        Some(stream) if stream != STREAMS[0] && tail.is_some() => {
            let text = "Forbidden: `tailLines` and specific `stream` are mutually exclusive for now";
            causes.push(cause("FieldValueForbidden", text.into(), ""));
        }
        _ => {}
    }
    if !causes.is_empty() {
        return Err(invalid(name, causes));
    }
    let pod = find(server, request)?;
    let container = container(&pod, name, request.query.get("container").unwrap_or_default())?;
    let Some(node) = node(&pod) else { return Ok(None) };
    let mut pairs: Vec<(&str, String)> = Vec::new();
    for flag in ["follow", "previous", "timestamps"] {
        if request.query.flag(flag) {
            pairs.push((flag, "true".into()));
        }
    }
    if let Some(stream) = stream.filter(|s| *s != STREAMS[0]) {
        pairs.push(("stream", stream.into()));
    }
    let numbers = [("sinceSeconds", since), ("tailLines", tail), ("limitBytes", limit)];
    pairs.extend(numbers.into_iter().filter_map(|(k, v)| Some((k, v?.to_string()))));
    if let Some(time) = since_time {
        pairs.push(("sinceTime", time.into()));
    }
    let path = format!("/containerLogs/{}/{name}/{container}{}", request.info.namespace, query(&pairs));
    let target = kubelet(server, request, node, path)?;
    // The client vouches for the kubelet whose certificate nobody here can check.
    let unverified = request.query.flag("insecureSkipTLSVerifyBackend");
    Ok(Some(Target { unverified, ..target }))
}

fn invalid(name: &str, causes: Vec<Cause>) -> ApiError {
    // What is wrong with options as a whole has an empty field, and still the colon after it.
    let all: Vec<String> = causes.iter().map(|c| format!("{}: {}", c.field, c.message)).collect();
    let list = if let [one] = all.as_slice() { one.clone() } else { format!("[{}]", all.join(", ")) };
    let message = format!("PodLogOptions {} is invalid: {list}", crate::status::quote(name));
    ApiError::new(422, "Invalid", message).with_details(Details {
        name: name.into(),
        kind: "PodLogOptions".into(),
        causes,
        ..Details::default()
    })
}

fn unassigned(name: &str) -> ApiError {
    ApiError::bad_request(format!("pod {name} does not have a host assigned"))
}

/// A process in a container, new (`exec`) or its first (`attach`).
pub(super) fn exec(server: &ApiServer, request: &Request) -> Result<Target> {
    let name = &request.info.name;
    let pod = find(server, request)?;
    let container = container(&pod, name, request.query.get("container").unwrap_or_default())?;
    let node = node(&pod).ok_or_else(|| unassigned(name))?;
    let mut pairs: Vec<(&str, String)> = Vec::new();
    for (ours, theirs) in [("stdin", "input"), ("stdout", "output"), ("stderr", "error"), ("tty", "tty")] {
        if request.query.flag(ours) {
            pairs.push((theirs, "1".into()));
        }
    }
    pairs.extend(request.query.all("command").map(|c| ("command", c.to_owned())));
    let subresource = &request.info.subresource;
    let path = format!("/{subresource}/{}/{name}/{container}{}", request.info.namespace, query(&pairs));
    streamed(server, request, node, path)
}

pub(super) fn port_forward(server: &ApiServer, request: &Request) -> Result<Target> {
    let name = &request.info.name;
    let pod = find(server, request)?;
    let node = node(&pod).ok_or_else(|| unassigned(name))?;
    let ports: Vec<(&str, String)> = request.query.all("ports").map(|p| ("port", p.to_owned())).collect();
    let path = format!("/portForward/{}/{name}{}", request.info.namespace, query(&ports));
    streamed(server, request, node, path)
}

/// A kubelet that the connection goes on to: one that is there, and by a client that wants to go on.
fn streamed(server: &ApiServer, request: &Request, node: &str, path: String) -> Result<Target> {
    let target = kubelet(server, request, node, path)?;
    match request.headers.contains_key(http::header::UPGRADE) {
        true => Ok(target),
        false => Err(ApiError::bad_request("Upgrade request required")),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_container_is_named_unless_there_is_one() {
        let pod = json!({"spec": {"containers": [{"name": "a"}, {"name": "b"}], "initContainers": [{"name": "i"}]}});
        assert_eq!(container(&pod, "p", "i").expect("known"), "i");
        let text = container(&pod, "p", "").expect_err("two").to_string();
        assert_eq!(
            text,
            "a container name must be specified for pod p, choose one of: [a b] or one of the init containers: [i]"
        );
        assert_eq!(container(&pod, "p", "x").expect_err("none").to_string(), "container x is not valid for pod p");
        assert_eq!(query(&[("command", "a b".into()), ("tty", "1".into())]), "?command=a%20b&tty=1");
    }

    #[test]
    fn complaints_about_all_options_have_an_empty_field() {
        let why = "Forbidden: at most one of `sinceTime` or `sinceSeconds` may be specified";
        let text = invalid("p", vec![cause("FieldValueForbidden", why.into(), "")]).to_string();
        assert_eq!(text, format!("PodLogOptions \"p\" is invalid: : {why}"));
    }
}
