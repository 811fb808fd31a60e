//! gRPC health probes: `grpc.health.v1.Health/Check` in plain text.

use std::time::Duration;

use tonic::codegen::http::uri::PathAndQuery;
use tonic::transport::Endpoint;
use tonic::{Code, Request};
use tonic_prost::ProstCodec;

use super::target::Target;

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
    let channel = match tokio::time::timeout(timeout, endpoint.connect()).await {
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
        Ok(Err(status)) => {
            return Err(match status.code() {
                Code::Unimplemented => format!(
                    "error: this server does not implement the grpc health protocol (grpc.health.v1.Health): {}",
                    status.message()
                ),
                Code::DeadlineExceeded | Code::Cancelled => {
                    format!("timeout: health rpc did not complete within {seconds}")
                }
                _ => format!("error: health rpc failed: {}", crate::cri::CriError::from(status)),
            });
        }
        Err(_) => return Err(format!("timeout: health rpc did not complete within {seconds}")),
    };
    match response.status {
        1 => Ok("service healthy".into()),
        other => Err(format!("service unhealthy (responded with {:?})", status_name(other))),
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
