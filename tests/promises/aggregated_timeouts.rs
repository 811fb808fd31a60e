//! The time that a request may take (`--request-timeout`) and requests that are passed on to the server of an aggregated
//! API: ordinary ones have it, watches do not.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use base64::Engine as _;
use http::Method;
use rustls_pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
use serde_json::{Value, json};
use tests::{Api, ApiServer, Connection};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;

const API: &str = "/apis/slow.example.com/v1";
/// What a request may take, and what the other server takes for the second half of an answer.
const LIMIT: &str = "--request-timeout=2s";
const PAUSE: Duration = Duration::from_secs(5);

/// Reads a request and answers it by its path.
async fn answer(acceptor: TlsAcceptor, tcp: TcpStream) -> Result<()> {
    let mut stream = acceptor.accept(tcp).await?;
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await?);
    }
    let head = String::from_utf8(head)?;
    let target = head.split(' ').nth(1).context("a target")?;
    let begin = "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\nconnection: close\r\n";
    let halves = |first: &str, second: &str| {
        let chunk = |text: &str| format!("{:x}\r\n{text}\r\n", text.len());
        (format!("{begin}transfer-encoding: chunked\r\n\r\n{}", chunk(first)), format!("{}0\r\n\r\n", chunk(second)))
    };
    let (first, second) = match target {
        API => {
            let list = json!({"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": "slow.example.com/v1",
                "resources": []})
            .to_string();
            (format!("{begin}content-length: {}\r\n\r\n{list}", list.len()), String::new())
        }
        "/apis/slow.example.com/v1/things?watch=1" => halves("{\"type\":\"ADDED\"}\n", "{\"type\":\"DELETED\"}\n"),
        "/apis/slow.example.com/v1/things" => halves("{\"items\":", "[]}"),
        "/apis/slow.example.com/v1/things/cut" => (halves("{\"items\":", "").0, "not the size of a chunk\r\n".into()),
        "/apis/slow.example.com/v1/things/moved" => {
            let moved = "HTTP/1.1 302 Found\r\nlocation: https://elsewhere.example.com/\r\nconnection: close\r\n";
            (format!("{moved}content-length: 0\r\n\r\n"), String::new())
        }
        "/openapi/v2" => {
            let schema = json!({"$ref": "#/definitions/com.example.slow.Thing"});
            let item = json!({"get": {"responses": {"200": {"description": "OK", "schema": schema}}}});
            let document = json!({"swagger": "2.0", "paths": {"/apis/slow.example.com/v1/things": item},
                "definitions": {"com.example.slow.Thing": {"type": "object"}}})
            .to_string();
            (format!("{begin}content-length: {}\r\n\r\n{document}", document.len()), String::new())
        }
        "/apis/slow.example.com/v1/things/silent" => (String::new(), format!("{begin}content-length: 0\r\n\r\n")),
        _ => ("HTTP/1.1 404 Not Found\r\nconnection: close\r\ncontent-length: 0\r\n\r\n".into(), String::new()),
    };
    stream.write_all(first.as_bytes()).await?;
    stream.flush().await?;
    if !second.is_empty() {
        if !target.ends_with("/cut") {
            tokio::time::sleep(PAUSE).await;
        }
        stream.write_all(second.as_bytes()).await?;
    }
    Ok(stream.shutdown().await?)
}

/// Starts the other server; its port and the certificate to trust.
async fn other_server() -> Result<(u16, String)> {
    let made = rcgen::generate_simple_self_signed(vec!["slow.default.svc".to_owned()])?;
    let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(made.signing_key.serialize_der()));
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_no_client_auth()
        .with_single_cert(vec![made.cert.der().clone()], key)?;
    let acceptor = TlsAcceptor::from(Arc::new(config));
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let port = listener.local_addr()?.port();
    tokio::spawn(async move {
        while let Ok((tcp, _)) = listener.accept().await {
            // A client that goes away in the middle is part of the test.
            tokio::spawn(answer(acceptor.clone(), tcp));
        }
    });
    Ok((port, made.cert.pem()))
}

#[tokio::test]
async fn watches_of_aggregated_apis_outlive_the_time_that_other_requests_have() -> Result<()> {
    let server = ApiServer::start("aggregated-timeouts", &[LIMIT])?;
    let api = Api::new(&server);
    let (port, pem) = other_server().await?;
    let service = json!({"metadata": {"name": "slow"}, "spec": {"type": "ExternalName", "externalName": "localhost"}});
    assert_eq!(api.post("/api/v1/namespaces/default/services", &service).await?.0, 201);
    let bundle = base64::engine::general_purpose::STANDARD.encode(pem);
    let object = json!({"metadata": {"name": "v1.slow.example.com"}, "spec": {"group": "slow.example.com", "version": "v1",
        "service": {"namespace": "default", "name": "slow", "port": port}, "caBundle": bundle,
        "groupPriorityMinimum": 100, "versionPriority": 100}});
    let services = "/apis/apiregistration.k8s.io/v1/apiservices";
    let (code, said) = api.post(services, &object).await?;
    assert_eq!(code, 201, "{said}");
    let available = |_, s: &Value| s["status"]["conditions"][0]["status"] == "True";
    api.until(&format!("{services}/v1.slow.example.com"), available).await?;

    // Nobody is sent on with what is meant for this server, and its kinds stand in the document of all.
    let (code, said) = api.get(&format!("{API}/things/moved")).await?;
    assert_eq!(code, 502, "{said}");
    // It is asked for after the server is known to be there.
    let told = |_, d: &Value| d["definitions"]["com.example.slow.Thing"].is_object();
    let document = api.until("/openapi/v2", told).await?;
    assert!(document["paths"]["/apis/slow.example.com/v1/things"].is_object());
    assert!(document["definitions"]["io.k8s.api.core.v1.Pod"].is_object());

    let ask = async |path: &str| {
        let begun = Instant::now();
        let answer = Connection::http1(&server).await?.call(Method::GET, &format!("{API}{path}"), "", "").await;
        anyhow::Ok((answer, begun.elapsed()))
    };
    let (watch, list, silent, cut) =
        tokio::join!(ask("/things?watch=1"), ask("/things"), ask("/things/silent"), ask("/things/cut"));
    // A watch goes on as long as both sides like.
    let (answer, took) = watch?;
    assert_eq!(answer?.body(), "{\"type\":\"ADDED\"}\n{\"type\":\"DELETED\"}\n");
    assert!(took >= PAUSE, "{took:?}");
    // Half an answer is none: the connection is cut when the time is over.
    let (answer, took) = list?;
    assert!(answer.is_err(), "{answer:?}");
    assert!(took < PAUSE, "{took:?}");
    let (answer, took) = silent?;
    let answer = answer?;
    assert_eq!(answer.status(), 504, "{answer:?}");
    assert!(took < PAUSE, "{took:?}");
    let (answer, _) = cut?;
    assert!(answer.is_err(), "an answer that broke off is passed on as if it were whole: {answer:?}");
    Ok(())
}
