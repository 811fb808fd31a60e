//! A built-in kind and a custom one of the same shape, and what ten thousand objects of each cost the same server.

use std::time::Duration;

use anyhow::{Result, ensure};
use http::Method;
use serde_json::{Value, json};

use crate::{Api, ApiServer, Clients, Connection};

/// One of two kinds that say the same.
pub struct Twin {
    pub name: &'static str,
    pub path: &'static str,
    /// None for a built-in kind.
    definition: Option<fn() -> Value>,
    object: fn(usize) -> Value,
}

/// What objects cost the server, each.
#[derive(Debug, Clone, Copy)]
pub struct Cost {
    pub create: Duration,
    pub patch: Duration,
    /// Of one list of all.
    pub list: Duration,
    /// Of an object in such a list, in JSON.
    pub listed_bytes: usize,
    /// Anonymous memory at rest, above that of the server without them.
    pub memory_bytes: f64,
}

const TIMES: u32 = 10;

/// A flat kind and one with lists and maps in each other, built-in and custom.
pub const PAIRS: [[Twin; 2]; 2] = [
    [
        Twin { name: "config map", path: "/api/v1/namespaces/default/configmaps", definition: None, object: flat },
        Twin {
            name: "its twin",
            path: "/apis/twins.example.com/v1/namespaces/default/flats",
            definition: Some(flats),
            object: flat,
        },
    ],
    [
        Twin {
            name: "network policy",
            path: "/apis/networking.k8s.io/v1/namespaces/default/networkpolicies",
            definition: None,
            object: deep,
        },
        Twin {
            name: "its twin",
            path: "/apis/twins.example.com/v1/namespaces/default/deeps",
            definition: Some(deeps),
            object: deep,
        },
    ],
];

fn flat(number: usize) -> Value {
    let text = "a line of a file of settings\n".repeat(8);
    json!({"metadata": {"name": format!("o{number}"), "labels": {"app": "twins"}},
        "data": {"one": text, "two": number.to_string(), "three": "3"}})
}

fn deep(number: usize) -> Value {
    let from = |app: &str| json!({"podSelector": {"matchLabels": {"app": app, "number": number.to_string()}}});
    let port = |port: u16| json!({"port": port, "protocol": "TCP"});
    let rule = |side: &str, one: u16| json!({side: [from("web"), from("jobs")], "ports": [port(one), port(one + 1)]});
    json!({"metadata": {"name": format!("o{number}"), "labels": {"app": "twins"}}, "spec": {
        "podSelector": {"matchLabels": {"app": "store"}},
        "policyTypes": ["Ingress", "Egress"],
        "ingress": [rule("from", 80), rule("from", 443)],
        "egress": [rule("to", 53)],
    }})
}

fn definition(plural: &str, kind: &str, properties: Value) -> Value {
    let schema = json!({"openAPIV3Schema": {"type": "object", "properties": properties}});
    json!({"metadata": {"name": format!("{plural}.twins.example.com")}, "spec": {
        "group": "twins.example.com", "scope": "Namespaced", "names": {"plural": plural, "kind": kind},
        "versions": [{"name": "v1", "served": true, "storage": true, "schema": schema}],
    }})
}

fn flats() -> Value {
    definition("flats", "Flat", json!({"data": {"type": "object", "additionalProperties": {"type": "string"}}}))
}

fn deeps() -> Value {
    let words = json!({"type": "object", "additionalProperties": {"type": "string"}});
    let selector = json!({"type": "object", "properties": {"matchLabels": words}});
    let peers = json!({"type": "array", "items": {"type": "object", "properties": {"podSelector": selector}}});
    let ports = json!({"type": "array", "items": {"type": "object", "properties": {
        "port": {"x-kubernetes-int-or-string": true},
        "protocol": {"type": "string", "default": "TCP", "enum": ["TCP", "UDP", "SCTP"]}}}});
    let rules =
        |side: &str| json!({"type": "array", "items": {"type": "object", "properties": {side: peers, "ports": ports}}});
    let spec = json!({"type": "object", "required": ["podSelector"], "properties": {
        "podSelector": selector, "policyTypes": {"type": "array", "items": {"type": "string"}},
        "ingress": rules("from"), "egress": rules("to")}});
    definition("deeps", "Deep", json!({"spec": spec}))
}

impl Twin {
    /// Starts a server and writes and reads so many objects of the kind, from so many clients.
    ///
    /// # Errors
    /// When the server answers otherwise than it should.
    pub async fn cost(&self, count: usize, clients: usize) -> Result<Cost> {
        let server = ApiServer::start("twins", &[])?;
        let api = Api::new(&server);
        if let Some(definition) = self.definition {
            let path = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
            let (code, said) = api.post(path, &definition()).await?;
            ensure!(code == 201, "{said}");
            api.until(self.path, |code, _| code == 200).await?;
        }
        let mut all = Clients::connect(&server, clients).await?;
        let empty = at_rest(&server).await?;
        let each = u32::try_from(count)?;
        let (path, object) = (self.path, self.object);
        let before = server.cpu_time()?;
        let create = move |n| (Method::POST, path.to_owned(), "application/json", object(n).to_string());
        all.send(count, 201, create).await?;
        let create = (server.cpu_time()? - before) / each;
        let full = at_rest(&server).await?;
        let before = server.cpu_time()?;
        let label = r#"{"metadata":{"labels":{"changed":"yes"}}}"#;
        let patch = move |n| (Method::PATCH, format!("{path}/o{n}"), "application/merge-patch+json", label.to_owned());
        all.send(count, 200, patch).await?;
        let patch = (server.cpu_time()? - before) / each;
        let mut connection = Connection::http1(&server).await?;
        let bytes = connection.call(Method::GET, path, "", "").await?.body().len();
        let before = server.cpu_time()?;
        for _ in 0..TIMES {
            let answer = connection.call(Method::GET, path, "", "").await?;
            ensure!(answer.status() == 200 && answer.body().len() == bytes, "the list is another one");
        }
        let list = (server.cpu_time()? - before) / TIMES;
        let memory_bytes = (full - empty) * 1024.0 * 1024.0 / f64::from(each);
        Ok(Cost { create, patch, list, listed_bytes: bytes / count, memory_bytes })
    }
}

/// The server's own memory in MiB once it has given back what it does not need.
async fn at_rest(server: &ApiServer) -> Result<f64> {
    tokio::time::sleep(Duration::from_secs(4)).await;
    crate::process::own_mib(server.pid())
}
