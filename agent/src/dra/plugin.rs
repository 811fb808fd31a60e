//! One registered plugin of a driver: its calls, each with a limit.
//!
//! Both versions of the service have the same messages, so one set of types serves both.

use std::path::PathBuf;
use std::time::Duration;

use http::uri::PathAndQuery;
use proto::dra::{
    Claim, NodePrepareResourcesRequest, NodePrepareResourcesResponse, NodeUnprepareResourcesRequest,
    NodeUnprepareResourcesResponse,
};
use tonic::Status;
use tonic::client::Grpc;
use tonic_prost::ProstCodec;

use crate::cri::go_name;
use crate::device_plugins::described;
use crate::metrics;
use crate::sockets;

const DIAL_LIMIT: Duration = Duration::from_secs(10);
/// The kubelet's limit for one call.
const CALL_LIMIT: Duration = Duration::from_secs(45);

/// Version of the service, as plugins announce it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Version {
    V1,
    V1Beta1,
}

impl Version {
    /// Newest first.
    const ALL: [(Version, &'static str); 2] = [(Version::V1, "v1.DRAPlugin"), (Version::V1Beta1, "v1beta1.DRAPlugin")];

    /// The newest that the plugin serves.
    ///
    /// # Errors
    /// In the kubelet's words, when there is none.
    pub fn choose(services: &[String]) -> Result<Self, String> {
        if services.is_empty() {
            return Err("empty list of supported gRPC services (aka supported versions)".into());
        }
        let known = Self::ALL.into_iter().find(|(_, name)| services.iter().any(|s| s == name));
        known.map(|(version, _)| version).ok_or_else(|| {
            let quoted = |names: Vec<String>| names.iter().map(|n| format!("{n:?}")).collect::<Vec<_>>().join(" ");
            let own = Self::ALL.iter().map(|(_, name)| (*name).to_owned()).collect();
            format!(
                "none of services supported by the plugin ([{}]) are supported by the kubelet ([{}])",
                quoted(services.to_vec()),
                quoted(own)
            )
        })
    }

    fn paths(self) -> (&'static str, &'static str) {
        match self {
            Self::V1 => (
                "/k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin/NodePrepareResources",
                "/k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin/NodeUnprepareResources",
            ),
            Self::V1Beta1 => (
                "/k8s.io.kubelet.pkg.apis.dra.v1beta1.DRAPlugin/NodePrepareResources",
                "/k8s.io.kubelet.pkg.apis.dra.v1beta1.DRAPlugin/NodeUnprepareResources",
            ),
        }
    }
}

/// Where a plugin serves.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Plugin {
    pub driver: String,
    pub endpoint: PathBuf,
    pub version: Version,
}

impl Plugin {
    /// # Errors
    /// As Go's gRPC prints it.
    pub async fn prepare(&self, claims: Vec<Claim>) -> Result<NodePrepareResourcesResponse, String> {
        self.call(self.version.paths().0, NodePrepareResourcesRequest { claims }).await
    }

    /// # Errors
    /// As [`Plugin::prepare`].
    pub async fn unprepare(&self, claims: Vec<Claim>) -> Result<NodeUnprepareResourcesResponse, String> {
        self.call(self.version.paths().1, NodeUnprepareResourcesRequest { claims }).await
    }

    async fn call<Q, A>(&self, path: &'static str, request: Q) -> Result<A, String>
    where
        Q: prost::Message + Send + Sync + 'static,
        A: prost::Message + Default + Send + Sync + 'static,
    {
        let begun = tokio::time::Instant::now();
        let outcome = tokio::time::timeout(CALL_LIMIT, self.exchange(path, request)).await;
        let outcome = outcome.unwrap_or_else(|_| Err(Status::deadline_exceeded("context deadline exceeded")));
        let code = outcome.as_ref().err().map_or("OK", |status| go_name(status.code()));
        metrics::DRA_CALLS.observe(&[&self.driver, path, code], begun.elapsed().as_secs_f64());
        outcome.map_err(|status| described(&status))
    }

    async fn exchange<Q, A>(&self, path: &'static str, request: Q) -> Result<A, Status>
    where
        Q: prost::Message + Send + Sync + 'static,
        A: prost::Message + Default + Send + Sync + 'static,
    {
        let channel = sockets::channel(&self.endpoint, DIAL_LIMIT).await;
        let mut grpc = Grpc::new(channel.map_err(|e| Status::unavailable(e.to_string()))?);
        grpc.ready().await.map_err(|e| Status::unavailable(e.to_string()))?;
        let codec: ProstCodec<Q, A> = ProstCodec::default();
        grpc.unary(tonic::Request::new(request), PathAndQuery::from_static(path), codec)
            .await
            .map(tonic::Response::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_version_is_chosen_and_the_refusal_is_the_kubelets() {
        let choose = |names: &[&str]| Version::choose(&names.iter().map(|n| (*n).to_owned()).collect::<Vec<_>>());
        assert_eq!(choose(&["v1beta1.DRAPlugin", "v1.DRAPlugin"]), Ok(Version::V1));
        assert_eq!(choose(&["v1alpha1.DRAResourceHealth", "v1beta1.DRAPlugin"]), Ok(Version::V1Beta1));
        let want = "none of services supported by the plugin ([\"v2.DRAPlugin\"]) are supported by the kubelet \
                    ([\"v1.DRAPlugin\" \"v1beta1.DRAPlugin\"])";
        assert_eq!(choose(&["v2.DRAPlugin"]).unwrap_err(), want);
        assert!(choose(&[]).unwrap_err().starts_with("empty list of supported gRPC services"));
    }
}
