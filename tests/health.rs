//! A server of the gRPC health protocol, in plain text on loopback, whose verdicts a test says.
//!
//! Like [`crate::runtime`] it speaks its one call by hand.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::Result;
use http_body_util::BodyExt;
use hyper::Request;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::net::TcpListener;

use crate::runtime::{Answer, answered};

/// What is said of one service.
#[derive(Debug, Clone, Copy)]
pub enum Verdict {
    Serving,
    NotServing,
    /// The code of gRPC and its message.
    Refused(u8, &'static str),
    /// No answer at all.
    Silence,
}

/// What Go's server says of a service that it was told nothing about: NotFound.
const UNKNOWN: Verdict = Verdict::Refused(5, "unknown service");

#[derive(Default)]
struct Said {
    verdicts: BTreeMap<String, Verdict>,
    /// Service and `user-agent` of each call.
    asked: Vec<(String, String)>,
}

/// Serves until it is dropped.
pub struct Health {
    pub port: u16,
    said: Arc<Mutex<Said>>,
    /// Its threads end with it.
    _runtime: tokio::runtime::Runtime,
}

impl Health {
    /// # Errors
    /// When no port can be had.
    pub fn start() -> Result<Self> {
        let said: Arc<Mutex<Said>> = Arc::default();
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
        let listener = runtime.block_on(TcpListener::bind(("127.0.0.1", 0)))?;
        let port = listener.local_addr()?.port();
        runtime.spawn(accept(listener, said.clone()));
        Ok(Health { port, said, _runtime: runtime })
    }

    /// From now on this is said of the service.
    pub fn say(&self, service: &str, verdict: Verdict) {
        let mut said = self.said.lock().unwrap_or_else(PoisonError::into_inner);
        said.verdicts.insert(service.to_owned(), verdict);
    }

    /// What the callers that asked for the service said of themselves.
    pub fn callers(&self, service: &str) -> Vec<String> {
        let said = self.said.lock().unwrap_or_else(PoisonError::into_inner);
        said.asked.iter().filter(|(asked, _)| asked == service).map(|(_, caller)| caller.clone()).collect()
    }
}

async fn accept(listener: TcpListener, said: Arc<Mutex<Said>>) {
    while let Ok((stream, _)) = listener.accept().await {
        let said = said.clone();
        tokio::spawn(async move {
            let server = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
            let service = service_fn(move |request| answer(request, said.clone()));
            // A client that goes away is the end of its connection, no fault.
            let _ = server.serve_connection(TokioIo::new(stream), service).await;
        });
    }
}

async fn answer(request: Request<Incoming>, said: Arc<Mutex<Said>>) -> Answer {
    let known = request.uri().path() == "/grpc.health.v1.Health/Check";
    let caller = request.headers().get("user-agent").and_then(|value| value.to_str().ok()).unwrap_or_default();
    let caller = caller.to_owned();
    let body = request.into_body().collect().await.map(|body| body.to_bytes()).unwrap_or_default();
    if !known {
        return answered(Err((12, "not implemented")));
    }
    // Five bytes before the message, whose only field is the service, shorter than 128 bytes; an empty one is left out.
    let service = String::from_utf8_lossy(body.get(7..).unwrap_or_default()).into_owned();
    let verdict = {
        let mut said = said.lock().unwrap_or_else(PoisonError::into_inner);
        said.asked.push((service.clone(), caller));
        said.verdicts.get(&service).copied().unwrap_or(UNKNOWN)
    };
    match verdict {
        // `HealthCheckResponse`: its only field is the status.
        Verdict::Serving => answered(Ok(&[8, 1])),
        Verdict::NotServing => answered(Ok(&[8, 2])),
        Verdict::Refused(code, message) => answered(Err((code, message))),
        Verdict::Silence => std::future::pending().await,
    }
}
