//! Small JSON questions to one server.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use http::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, HOST, HeaderMap, HeaderValue, USER_AGENT};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::client::conn::http1::SendRequest;
use serde_json::Value;

use super::exec::{Credentials, Exec, bearer};
use super::{Dialer, OutgoingError};
use crate::status::quote;

/// Idle connections that are kept.
const IDLE: usize = 4;
/// The longest answer that is read, in bytes: as many as a request to us may have.
const MAX_ANSWER: usize = 3 << 20;

/// What a server said.
#[derive(Debug, Clone)]
pub struct Answer {
    pub code: u16,
    pub headers: HeaderMap,
    pub body: Bytes,
}

/// Asks one server, at one path or below it.
pub struct Client {
    dialer: Dialer,
    /// Path of the URL, with its query.
    path: String,
    known_by: Option<KnownBy>,
    idle: Mutex<Vec<SendRequest<Full<Bytes>>>>,
}

/// What tells a server who asks, beside a certificate.
pub enum KnownBy {
    /// The whole header.
    Header(HeaderValue),
    File(TokenFile),
    /// Its token; a certificate is no use here.
    Program(Exec),
}

/// A file with a token, read for every question: it is written anew before it is old.
pub struct TokenFile {
    path: PathBuf,
    /// The last token that it had; while it is being written it may have none.
    last: Mutex<HeaderValue>,
}

impl TokenFile {
    /// # Errors
    /// When there is no token in it now.
    pub fn open(path: PathBuf) -> Result<Self, OutgoingError> {
        let last = token_in(&path, std::fs::read_to_string(&path)).map_err(OutgoingError::Settings)?;
        Ok(TokenFile { path, last: Mutex::new(last) })
    }

    async fn header(&self) -> HeaderValue {
        let read = tokio::fs::read_to_string(&self.path).await;
        let now = token_in(&self.path, read);
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        match now {
            Ok(header) => *last = header,
            Err(error) => tracing::warn!(error, "the token that a server is shown stays the one before"),
        }
        last.clone()
    }
}

fn token_in(path: &Path, read: std::io::Result<String>) -> Result<HeaderValue, String> {
    let shown = path.display().to_string();
    let read = read.map_err(|e| format!("{shown}: {e}"))?;
    match read.trim() {
        "" => Err(format!("read empty token from file {}", quote(&shown))),
        token => bearer(token).map_err(|why| format!("{shown}: {why}")),
    }
}

impl KnownBy {
    /// The header, and where it is a program's what that told.
    async fn header(&self) -> Result<(HeaderValue, Option<Arc<Credentials>>), OutgoingError> {
        match self {
            KnownBy::Header(header) => Ok((header.clone(), None)),
            KnownBy::File(file) => Ok((file.header().await, None)),
            KnownBy::Program(exec) => {
                let told = exec.credentials().await.map_err(OutgoingError::Settings)?;
                let header = told.token.clone().ok_or_else(|| {
                    let why =
                        "getting credentials: exec plugin returned a certificate, and only a token is of use here";
                    OutgoingError::Settings(why.into())
                })?;
                Ok((header, Some(told)))
            }
        }
    }
}

impl Client {
    pub fn new(dialer: Dialer, path: String, known_by: Option<KnownBy>) -> Self {
        Client { dialer, path, known_by, idle: Mutex::default() }
    }

    /// The URL, for messages.
    pub fn url(&self) -> String {
        let scheme = if self.dialer.tls.is_some() { "https" } else { "http" };
        format!("{scheme}://{}{}", self.dialer.authority(), self.path)
    }

    /// Posts a JSON object to the client's path.
    ///
    /// # Errors
    /// When there is no answer in time. An answer with an error code is none.
    pub async fn post(&self, value: &Value, patience: Duration) -> Result<Answer, OutgoingError> {
        let mut headers = HeaderMap::new();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        headers.insert(ACCEPT, HeaderValue::from_static("application/json, */*"));
        self.send(http::Method::POST, &self.path, headers, value.to_string().into(), patience).await
    }

    /// Sends a request to any path of the server.
    ///
    /// # Errors
    /// As [`Client::post`].
    pub async fn send(
        &self,
        method: http::Method,
        path: &str,
        mut headers: HeaderMap,
        body: Bytes,
        patience: Duration,
    ) -> Result<Answer, OutgoingError> {
        headers.insert(USER_AGENT, HeaderValue::from_static(concat!("apiserver-lite/", env!("CARGO_PKG_VERSION"))));
        if let Ok(host) = HeaderValue::from_str(&self.dialer.authority()) {
            headers.insert(HOST, host);
        }
        let mut request = http::Request::new(Full::new(body));
        *request.method_mut() = method;
        *request.uri_mut() = path.parse().map_err(|e| OutgoingError::Settings(format!("{path:?} is no path: {e}")))?;
        *request.headers_mut() = headers;
        tokio::time::timeout(patience, self.ask(request)).await.map_err(|_| OutgoingError::Timeout)?
    }

    /// Says who asks, which may take its time as well, and asks.
    async fn ask(&self, mut request: http::Request<Full<Bytes>>) -> Result<Answer, OutgoingError> {
        let Some(known_by) = &self.known_by else { return self.exchange(request).await };
        let (header, told) = known_by.header().await?;
        request.headers_mut().insert(AUTHORIZATION, header);
        let answer = self.exchange(request).await?;
        if let (401, KnownBy::Program(exec), Some(told)) = (answer.code, known_by, &told) {
            exec.refused(told);
        }
        Ok(answer)
    }

    async fn exchange(&self, request: http::Request<Full<Bytes>>) -> Result<Answer, OutgoingError> {
        let (mut sender, used) = match self.take() {
            Some(sender) => (sender, true),
            None => (self.dialer.connect().await?, false),
        };
        let answered = sender.send_request(request.clone()).await;
        let response = match answered {
            // The other side had closed it already; nothing was done.
            Err(error) if used && (error.is_closed() || error.is_canceled() || error.is_incomplete_message()) => {
                sender = self.dialer.connect().await?;
                sender.send_request(request).await?
            }
            answered => answered?,
        };
        let (head, body) = response.into_parts();
        let body = Limited::new(body, MAX_ANSWER).collect().await;
        let body = body.map_err(|e| OutgoingError::Settings(format!("the answer cannot be read: {e}")))?.to_bytes();
        self.keep(sender);
        Ok(Answer { code: head.status.as_u16(), headers: head.headers, body })
    }

    fn take(&self) -> Option<SendRequest<Full<Bytes>>> {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        while let Some(sender) = idle.pop() {
            if !sender.is_closed() {
                return Some(sender);
            }
        }
        None
    }

    fn keep(&self, sender: SendRequest<Full<Bytes>>) {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        if idle.len() < IDLE && !sender.is_closed() {
            idle.push(sender);
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    use super::*;

    fn program(script: &str) -> Client {
        let exec = serde_json::json!({"command": "sh", "args": ["-c", script], "interactiveMode": "Never",
            "apiVersion": "client.authentication.k8s.io/v1"});
        let exec = Exec::parse("u", &exec, Path::new("/")).expect("a program");
        let dialer = Dialer { host: "127.0.0.1".into(), port: 1, tls: None, name: "127.0.0.1".into() };
        Client::new(dialer, "/".into(), Some(KnownBy::Program(exec)))
    }

    #[tokio::test]
    async fn nobody_is_asked_by_nobody_and_a_program_is_part_of_the_wait() {
        let value = serde_json::json!({});
        let slow = program("exec sleep 20");
        let late = slow.post(&value, Duration::from_millis(100));
        let late = tokio::time::timeout(Duration::from_secs(10), late).await.expect("in time");
        assert!(matches!(late, Err(OutgoingError::Timeout)), "{late:?}");
        let pair = "echo '{\"kind\":\"ExecCredential\",\"apiVersion\":\"client.authentication.k8s.io/v1\",\"status\":\
                    {\"clientKeyData\":\"k\",\"clientCertificateData\":\"c\"}}'";
        let told = program(pair).post(&value, Duration::from_secs(20)).await.expect_err("no token").to_string();
        assert!(told.contains("only a token is of use here"), "{told}");
    }

    #[tokio::test]
    async fn a_connection_that_was_closed_meanwhile_is_opened_again() {
        let listener = tokio::net::TcpListener::bind(("127.0.0.1", 0)).await.expect("a port");
        let port = listener.local_addr().expect("its address").port();
        tokio::spawn(async move {
            loop {
                let (mut tcp, _) = listener.accept().await.expect("a connection");
                let mut head = vec![0; 4096];
                let _ = tcp.read(&mut head).await;
                // Says that the connection stays open and closes it all the same.
                let _ = tcp.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}").await;
            }
        });
        let dialer = Dialer { host: "127.0.0.1".into(), port, tls: None, name: "127.0.0.1".into() };
        let client = Client::new(dialer, "/".into(), None);
        for _ in 0..5 {
            let answer = client.post(&serde_json::json!({}), Duration::from_secs(5)).await.expect("an answer");
            assert_eq!((answer.code, &answer.body[..]), (200, &b"{}"[..]));
        }
    }
}
