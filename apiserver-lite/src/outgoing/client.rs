//! Small JSON questions to one server.

use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use http::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, HOST, HeaderMap, HeaderValue, USER_AGENT};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::client::conn::http1::SendRequest;
use serde_json::Value;

use super::exec::{Exec, bearer};
use super::{Dialer, OutgoingError};

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
    /// A token, read for every question: it is written anew before it is old.
    File(PathBuf),
    /// Its token; a certificate is no use here.
    Program(Exec),
}

impl KnownBy {
    async fn header(&self) -> Result<Option<HeaderValue>, OutgoingError> {
        match self {
            KnownBy::Header(header) => Ok(Some(header.clone())),
            KnownBy::File(path) => {
                let token = tokio::fs::read_to_string(path).await;
                let token = token.map_err(|e| OutgoingError::Settings(format!("{}: {e}", path.display())))?;
                bearer(token.trim()).map(Some).map_err(OutgoingError::Settings)
            }
            KnownBy::Program(exec) => {
                let told = exec.credentials().await.map_err(OutgoingError::Settings)?;
                Ok(told.token.clone())
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
        let header = match &self.known_by {
            Some(known_by) => known_by.header().await?,
            None => None,
        };
        if let Some(header) = header {
            headers.insert(AUTHORIZATION, header);
        }
        let mut request = http::Request::new(Full::new(body));
        *request.method_mut() = method;
        *request.uri_mut() = path.parse().map_err(|e| OutgoingError::Settings(format!("{path:?} is no path: {e}")))?;
        *request.headers_mut() = headers;
        let answer = tokio::time::timeout(patience, self.exchange(request)).await;
        let answer = answer.map_err(|_| OutgoingError::Timeout)??;
        if let (401, Some(KnownBy::Program(exec))) = (answer.code, &self.known_by) {
            exec.refused().await;
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
