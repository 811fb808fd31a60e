//! exec, attach and port-forward: the runtime names a streaming server on this host, and the upgraded connection is
//! carried to it byte for byte.

use bytes::Bytes;
use http::{HeaderMap, Request, Response, StatusCode, Uri, header};
use http_body_util::{BodyExt, Empty};
use hyper::body::Incoming;
use hyper_util::rt::TokioIo;
use proto::cri;
use tokio::net::TcpStream;

use super::answers::{Answer, plain};
use super::listen::full;
use super::route::{Target, query_pairs};
use crate::pods::{FindError, Handle};

/// Ports of one request at most; each is a pair of streams.
const MAX_PORTS: usize = 1024;

struct Options {
    stdin: bool,
    stdout: bool,
    stderr: bool,
    tty: bool,
    command: Vec<String>,
}

impl Options {
    fn of(query: &str) -> Result<Self, &'static str> {
        let mut options = Options { stdin: false, stdout: false, stderr: false, tty: false, command: Vec::new() };
        for (key, value) in query_pairs(query) {
            let on = value == "1" || value == "true";
            match key.as_str() {
                "input" => options.stdin = on,
                "output" => options.stdout = on,
                "error" => options.stderr = on,
                "tty" => options.tty = on,
                "command" => options.command.push(value),
                _ => {}
            }
        }
        // A terminal has one output stream.
        options.stderr &= !options.tty;
        if !options.stdin && !options.stdout && !options.stderr {
            return Err("you must specify at least 1 of stdin, stdout, stderr");
        }
        Ok(options)
    }
}

pub(super) async fn exec(pods: &Handle, target: &Target, request: Request<Incoming>) -> Response<Answer> {
    let options = match Options::of(request.uri().query().unwrap_or("")) {
        Ok(options) => options,
        Err(why) => return plain(StatusCode::BAD_REQUEST, why),
    };
    let url = async {
        let pod = pods.find(&target.namespace, &target.pod, target.uid.as_deref()).await?;
        let container = pods.running(&pod, &target.container).await?;
        pods.exec(cri::ExecRequest {
            container_id: container.id,
            cmd: options.command,
            tty: options.tty,
            stdin: options.stdin,
            stdout: options.stdout,
            stderr: options.stderr,
        })
        .await
    };
    carry(url.await, request).await
}

pub(super) async fn attach(pods: &Handle, target: &Target, request: Request<Incoming>) -> Response<Answer> {
    let options = match Options::of(request.uri().query().unwrap_or("")) {
        Ok(options) => options,
        Err(why) => return plain(StatusCode::BAD_REQUEST, why),
    };
    let url = async {
        let pod = pods.find(&target.namespace, &target.pod, target.uid.as_deref()).await?;
        let container = pods.running(&pod, &target.container).await?;
        // Whether there is a terminal is the container's to say.
        pods.attach(cri::AttachRequest {
            container_id: container.id,
            stdin: options.stdin,
            tty: container.tty,
            stdout: options.stdout,
            stderr: options.stderr && !container.tty,
        })
        .await
    };
    carry(url.await, request).await
}

pub(super) async fn port_forward(pods: &Handle, target: &Target, request: Request<Incoming>) -> Response<Answer> {
    let mut port = Vec::new();
    for (key, value) in query_pairs(request.uri().query().unwrap_or("")) {
        if key != "port" {
            continue;
        }
        for word in value.split(',') {
            match word.parse::<u16>() {
                Ok(number) if number > 0 && port.len() < MAX_PORTS => port.push(i32::from(number)),
                _ => return plain(StatusCode::BAD_REQUEST, format!("invalid port {word:?}")),
            }
        }
    }
    let url = async {
        let pod = pods.find(&target.namespace, &target.pod, target.uid.as_deref()).await?;
        let sandbox = pods.sandbox(&pod).await?;
        pods.port_forward(cri::PortForwardRequest { pod_sandbox_id: sandbox, port }).await
    };
    carry(url.await, request).await
}

async fn carry(url: Result<String, FindError>, request: Request<Incoming>) -> Response<Answer> {
    let url = match url {
        Ok(url) => url,
        Err(error @ (FindError::NoPod(_) | FindError::NoContainer(_))) => {
            return plain(StatusCode::NOT_FOUND, error.to_string());
        }
        Err(error) => return plain(StatusCode::INTERNAL_SERVER_ERROR, error.to_string()),
    };
    match proxy(&url, request).await {
        Ok(response) => response,
        Err(why) => plain(StatusCode::BAD_GATEWAY, format!("the runtime's streaming server: {why}")),
    }
}

async fn proxy(url: &str, mut request: Request<Incoming>) -> Result<Response<Answer>, String> {
    let uri: Uri = url.parse().map_err(|_| format!("{url:?} is no URL"))?;
    let (host, port) = (uri.host().ok_or("its URL has no host")?.to_owned(), uri.port_u16().unwrap_or(80));
    let tcp = TcpStream::connect((host.trim_matches(['[', ']']), port)).await.map_err(|e| e.to_string())?;
    let (mut sender, connection) =
        hyper::client::conn::http1::handshake(TokioIo::new(tcp)).await.map_err(|e| e.to_string())?;
    tokio::spawn(async move {
        if let Err(error) = connection.with_upgrades().await {
            tracing::debug!(%error, "stream to the runtime ended");
        }
    });
    let mut onward = Request::new(Empty::<Bytes>::new());
    *onward.method_mut() = request.method().clone();
    *onward.uri_mut() = uri.path_and_query().map_or("/", |p| p.as_str()).parse().map_err(|_| "its URL has no path")?;
    *onward.headers_mut() = forwarded(request.headers());
    if let Some(authority) = uri.authority()
        && let Ok(value) = authority.as_str().parse()
    {
        onward.headers_mut().insert(header::HOST, value);
    }
    let answer = sender.send_request(onward).await.map_err(|e| e.to_string())?;
    let (parts, body) = answer.into_parts();
    if parts.status != StatusCode::SWITCHING_PROTOCOLS {
        return Ok(Response::from_parts(parts, body.map_err(Into::into).boxed_unsync()));
    }
    let mut answer = Response::from_parts(parts, body);
    let there = hyper::upgrade::on(&mut answer);
    let here = hyper::upgrade::on(&mut request);
    tokio::spawn(async move {
        if let (Ok(here), Ok(there)) = tokio::join!(here, there) {
            let (mut here, mut there) = (TokioIo::new(here), TokioIo::new(there));
            // Either side ends the session; how it ended is between the two.
            let _ = tokio::io::copy_bidirectional(&mut here, &mut there).await;
        }
    });
    let (parts, _) = answer.into_parts();
    Ok(Response::from_parts(parts, full(Bytes::new())))
}

/// The caller's headers without its credentials, which are none of the runtime's business.
fn forwarded(headers: &HeaderMap) -> HeaderMap {
    let mut headers = headers.clone();
    headers.remove(header::AUTHORIZATION);
    headers.remove(header::CONTENT_LENGTH);
    headers
}
