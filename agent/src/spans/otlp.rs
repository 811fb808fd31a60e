//! What of OpenTelemetry's protocol is said here: spans, by gRPC.
//!
//! Field numbers are those of `opentelemetry/proto/{trace,common,resource}/v1`.

use http::uri::PathAndQuery;
use tonic::transport::Channel;
use tonic_prost::ProstCodec;

#[derive(Clone, PartialEq, prost::Message)]
pub struct ExportRequest {
    #[prost(message, repeated, tag = "1")]
    pub resource_spans: Vec<ResourceSpans>,
}

/// The collector's word on spans that it leaves out is not needed.
#[derive(Clone, PartialEq, prost::Message)]
pub struct ExportResponse {}

#[derive(Clone, PartialEq, prost::Message)]
pub struct ResourceSpans {
    #[prost(message, optional, tag = "1")]
    pub resource: Option<Resource>,
    #[prost(message, repeated, tag = "2")]
    pub scope_spans: Vec<ScopeSpans>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct Resource {
    #[prost(message, repeated, tag = "1")]
    pub attributes: Vec<KeyValue>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct ScopeSpans {
    #[prost(message, optional, tag = "1")]
    pub scope: Option<Scope>,
    #[prost(message, repeated, tag = "2")]
    pub spans: Vec<Span>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct Scope {
    #[prost(string, tag = "1")]
    pub name: String,
    #[prost(string, tag = "2")]
    pub version: String,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct Span {
    #[prost(bytes = "vec", tag = "1")]
    pub trace_id: Vec<u8>,
    #[prost(bytes = "vec", tag = "2")]
    pub span_id: Vec<u8>,
    #[prost(bytes = "vec", tag = "4")]
    pub parent_span_id: Vec<u8>,
    #[prost(string, tag = "5")]
    pub name: String,
    /// See [`super::Kind`].
    #[prost(int32, tag = "6")]
    pub kind: i32,
    #[prost(fixed64, tag = "7")]
    pub start_time_unix_nano: u64,
    #[prost(fixed64, tag = "8")]
    pub end_time_unix_nano: u64,
    #[prost(message, repeated, tag = "9")]
    pub attributes: Vec<KeyValue>,
    #[prost(message, optional, tag = "15")]
    pub status: Option<Status>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct Status {
    #[prost(string, tag = "2")]
    pub message: String,
    /// 2 is an error.
    #[prost(int32, tag = "3")]
    pub code: i32,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct KeyValue {
    #[prost(string, tag = "1")]
    pub key: String,
    #[prost(message, optional, tag = "2")]
    pub value: Option<AnyValue>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct AnyValue {
    /// The only kind of value here.
    #[prost(string, optional, tag = "1")]
    pub string_value: Option<String>,
}

/// A text under a key.
pub fn attribute(key: &str, value: &str) -> KeyValue {
    KeyValue { key: key.to_owned(), value: Some(AnyValue { string_value: Some(value.to_owned()) }) }
}

/// Sends spans to the collector.
///
/// # Errors
/// It is not there, or refuses; the spans are lost.
pub async fn export(channel: &Channel, request: ExportRequest) -> Result<(), tonic::Status> {
    const PATH: &str = "/opentelemetry.proto.collector.trace.v1.TraceService/Export";
    let mut client = tonic::client::Grpc::new(channel.clone());
    client.ready().await.map_err(|error| tonic::Status::unavailable(error.to_string()))?;
    let codec: ProstCodec<ExportRequest, ExportResponse> = ProstCodec::default();
    client.unary(tonic::Request::new(request), PathAndQuery::from_static(PATH), codec).await.map(drop)
}
