//! What this server asks of itself. A webhook at its own service is one of its own paths, and so a part of an aggregated
//! API: the server behind that is asked at once, as upstream's loopback client is passed on to it.

use std::time::Duration;

use bytes::Bytes;
use http::header::{ACCEPT, CONTENT_TYPE, HeaderMap, HeaderValue};

use super::name_user;
use crate::outgoing::{Answer, Client};
use crate::request::User;
use crate::server::ApiServer;

/// The name of upstream's loopback client.
const USER: &str = "system:apiserver";
/// Longer than anybody waits: who asks gives up earlier.
const PATIENCE: Duration = Duration::from_secs(60);

/// Posts a body to a path of this server, with its query, as the server itself. Nothing is at a path that no aggregated
/// API has.
pub async fn post(server: &ApiServer, target: &str, body: Bytes) -> Answer {
    let path = target.split('?').next().unwrap_or_default();
    let Some(remote) = server.aggregated.of_path(path) else { return text(404, "404 page not found\n".into()) };
    let dialer = remote.dialer.as_ref().ok().filter(|_| remote.available);
    let Some(dialer) = dialer else { return text(503, "service unavailable\n".into()) };
    let mut headers = HeaderMap::new();
    headers.insert(ACCEPT, HeaderValue::from_static("application/json, */*"));
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    name_user(&mut headers, &User::system(USER));
    let client = Client::new(dialer.clone(), String::new(), None);
    let answer = client.send(http::Method::POST, target, headers, body, PATIENCE).await;
    answer.unwrap_or_else(|error| text(503, format!("error trying to reach service: {error}\n")))
}

fn text(code: u16, said: String) -> Answer {
    let mut headers = HeaderMap::new();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
    Answer { code, headers, body: said.into() }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use serde_json::json;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    use super::super::documents::Documents;
    use super::*;
    use crate::admission::{Asker, Endpoint};
    use crate::aggregate::Remote;
    use crate::outgoing::Dialer;

    /// It was called by nobody, over the network, and refused that.
    #[tokio::test]
    async fn a_webhook_that_is_an_aggregated_api_is_called_by_the_server_itself() {
        let listener = tokio::net::TcpListener::bind(("127.0.0.1", 0)).await.expect("a port");
        let port = listener.local_addr().expect("its address").port();
        let asked = tokio::spawn(async move {
            let (mut tcp, _) = listener.accept().await.expect("a connection");
            let mut head = Vec::new();
            while !head.ends_with(b"{}") {
                assert!(tcp.read_buf(&mut head).await.expect("a request") > 0, "it ends early");
            }
            tcp.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}").await.expect("it is told");
            String::from_utf8(head).expect("a text").to_lowercase()
        });
        let server = crate::serve::testing::server().await;
        let dialer = || Dialer { host: "127.0.0.1".into(), port, tls: None, name: "hook.default.svc".into() };
        let remote = Remote {
            name: "v1.admission.x.io".into(),
            group: "admission.x.io".into(),
            version: "v1".into(),
            group_priority: 0,
            version_priority: 0,
            dialer: Ok(dialer()),
            checker: Ok(dialer()),
            available: true,
            resources: None,
            documents: Arc::new(Documents::of(&json!({}))),
        };
        server.aggregated.remotes.store(Arc::new(vec![Arc::new(remote)]));
        let post = async |path: &str| {
            let service = json!({"namespace": "default", "name": "kubernetes", "path": path});
            let endpoint = Endpoint::new(&json!({"service": service}));
            let clients = server.admission.clients();
            let answer = clients.post(&server, Asker::Validating, &endpoint, b"{}".to_vec(), Duration::from_secs(5));
            answer.await.expect("an answer").code
        };
        assert_eq!(post("/apis/admission.x.io/v1/reviews").await, 200);
        let asked = asked.await.expect("it was asked");
        assert!(asked.starts_with("post /apis/admission.x.io/v1/reviews?timeout=5s http/1.1\r\n"), "{asked}");
        assert!(asked.contains("\r\nx-remote-user: system:apiserver\r\n"), "{asked}");
        assert!(asked.contains("\r\nx-remote-group: system:masters\r\n"), "{asked}");
        assert_eq!(post("/apis/other.x.io/v1/reviews").await, 404, "nobody else is asked");
    }
}
