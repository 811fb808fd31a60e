//! gRPC health probes: `grpc.health.v1.Health/Check` in plain text.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use http::Uri;
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tonic::codegen::Service;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::transport::Endpoint;
use tonic::{Code, Request};
use tonic_prost::ProstCodec;

use super::heard::{Beginning, Heard};
use super::target::Target;
use super::tcp;

#[derive(Clone, PartialEq, prost::Message)]
struct HealthCheckRequest {
    #[prost(string, tag = "1")]
    service: String,
}

#[derive(Clone, PartialEq, prost::Message)]
struct HealthCheckResponse {
    #[prost(int32, tag = "1")]
    status: i32,
}

/// Asks once; `Err` holds the reason of the failure in the kubelet's words.
pub async fn check(target: &Target, service: &str, timeout: Duration, user_agent: &str) -> Result<String, String> {
    let seconds = format!("{}s", timeout.as_secs());
    let unreachable =
        || format!("timeout: failed to connect service \"{target}\" within {seconds}: context deadline exceeded");
    let begun = tokio::time::Instant::now();
    let endpoint = Endpoint::try_from(format!("http://{target}")).map_err(|e| e.to_string())?;
    let endpoint = endpoint.user_agent(user_agent.to_owned()).map_err(|e| e.to_string())?;
    let heard = Beginning::default();
    let connector = Connector { target: target.clone(), timeout, heard: heard.clone() };
    let channel = match tokio::time::timeout(timeout, endpoint.connect_with_connector(connector)).await {
        Ok(Ok(channel)) => channel,
        _ => return Err(unreachable()),
    };
    let mut client = tonic::client::Grpc::new(channel);
    client.ready().await.map_err(|_| unreachable())?;
    let mut request = Request::new(HealthCheckRequest { service: service.to_owned() });
    let left = timeout.saturating_sub(begun.elapsed());
    request.set_timeout(left);
    let codec: ProstCodec<HealthCheckRequest, HealthCheckResponse> = ProstCodec::default();
    let call = client.unary(request, PathAndQuery::from_static("/grpc.health.v1.Health/Check"), codec);
    let response = match tokio::time::timeout(left, call).await {
        Ok(Ok(response)) => response.into_inner(),
        // What does not speak the protocol at all is as if it were not there. The library's own limit has a cause as well.
        Ok(Err(status)) if status.code() != Code::Cancelled && std::error::Error::source(&status).is_some() => {
            return Err(unreachable());
        }
        Ok(Err(_)) | Err(_) if heard.is_empty() => return Err(unreachable()),
        Ok(Err(status)) => {
            return Err(match status.code() {
                Code::Unimplemented => format!(
                    "error: this server does not implement the grpc health protocol (grpc.health.v1.Health): {}",
                    status.message()
                ),
                Code::DeadlineExceeded | Code::Cancelled => {
                    format!("timeout: health rpc did not complete within {seconds}")
                }
                _ => format!("error: health rpc probe failed: {}", crate::cri::CriError::from(status)),
            });
        }
        Err(_) => return Err(format!("timeout: health rpc did not complete within {seconds}")),
    };
    match response.status {
        1 => Ok("service healthy".into()),
        other => Err(format!("service unhealthy (responded with {:?})", status_name(other))),
    }
}

/// Dials the target and notes what comes back.
struct Connector {
    target: Target,
    timeout: Duration,
    heard: Beginning,
}

impl Service<Uri> for Connector {
    type Response = TokioIo<Heard<TcpStream>>;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = io::Result<Self::Response>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Uri) -> Self::Future {
        let (target, timeout, heard) = (self.target.clone(), self.timeout, self.heard.clone());
        Box::pin(async move {
            let stream = tcp::dial(&target, timeout).await.map_err(io::Error::other)?;
            Ok(TokioIo::new(Heard::new(stream, heard)))
        })
    }
}

fn status_name(status: i32) -> &'static str {
    match status {
        0 => "UNKNOWN",
        1 => "SERVING",
        2 => "NOT_SERVING",
        3 => "SERVICE_UNKNOWN",
        _ => "INVALID",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::AsyncWriteExt as _;

    /// The verdict on a port where each connection gets these words and stays open.
    async fn verdict(said: &'static [u8]) -> String {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let server = tokio::spawn(async move {
            let mut open = Vec::new();
            loop {
                let (mut stream, _) = listener.accept().await.unwrap();
                stream.write_all(said).await.unwrap();
                open.push(stream);
            }
        });
        let target = Target { host: "127.0.0.1".into(), port };
        let why = check(&target, "", Duration::from_secs(1), "kube-probe/1.36").await.unwrap_err();
        server.abort();
        why.replace(&port.to_string(), "PORT")
    }

    #[tokio::test]
    async fn a_port_that_speaks_something_else_is_no_server() {
        let told = "timeout: failed to connect service \"127.0.0.1:PORT\" within 1s: context deadline exceeded";
        assert_eq!(verdict(b"").await, told);
        assert_eq!(verdict(b"HTTP/1.1 400 Bad Request\r\n\r\n").await, told);
    }

    #[tokio::test]
    async fn a_server_that_speaks_and_does_not_answer_is_late() {
        // Empty settings, as every HTTP/2 server begins.
        let settings = b"\0\0\0\x04\0\0\0\0\0";
        assert_eq!(verdict(settings).await, "timeout: health rpc did not complete within 1s");
    }
}
