//! Objects of the API that pods refer to: config maps, secrets, services and service account tokens.
//!
//! [`Objects`] and [`Tokens`] are what volumes, environment and image pulls ask; [`ApiObjects`] and [`ApiTokens`] answer
//! from the API server, [`NoObjects`] where there is none. Nothing is kept that no pod refers to.

mod cache;
mod none;
pub mod references;
mod tokens;

use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use proto::api::certificates::v1beta1::ClusterTrustBundle;
use proto::api::core::v1::{ConfigMap, Pod, Secret, Service};

use crate::api::ApiError;

pub use cache::{ApiObjects, Strategy, kept_for};
pub use none::NoObjects;
pub use tokens::ApiTokens;

/// Trust bundles by name.
pub type TrustBundles = BTreeMap<String, Arc<ClusterTrustBundle>>;

/// A future behind a trait object.
pub type Answer<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// Why an object cannot be had. The text is what events and waiting messages show.
#[derive(Debug, Clone, thiserror::Error)]
pub enum ObjectError {
    /// There is no such object; it may come later.
    #[error("{kind} \"{name}\" not found")]
    NotFound { kind: &'static str, name: String },
    /// The list of services has not come yet.
    #[error("services have not yet been read at least once, cannot construct envvars")]
    NotSynced,
    /// The list of trust bundles has not come yet.
    #[error("ClusterTrustBundle informer has not yet synced")]
    NoBundlesYet,
    /// There is no API server, or `ClusterTrustBundleProjection` is off; the kubelet has the same words for both.
    #[error("ClusterTrustBundle projection is not supported in static kubelet mode")]
    NoBundles,
    /// The API server could not be asked, or refused.
    #[error("{0}")]
    Api(Arc<ApiError>),
}

impl ObjectError {
    pub fn is_not_found(&self) -> bool {
        matches!(self, ObjectError::NotFound { .. })
    }
}

/// Config maps, secrets and services, as new as the API server's word has reached us.
pub trait Objects: Send + Sync + 'static {
    fn config_map<'a>(&'a self, namespace: &'a str, name: &'a str) -> Answer<'a, Result<Arc<ConfigMap>, ObjectError>>;
    fn secret<'a>(&'a self, namespace: &'a str, name: &'a str) -> Answer<'a, Result<Arc<Secret>, ObjectError>>;
    /// The services that give environment variables to pods of a namespace: its own, and `default/kubernetes`.
    fn services<'a>(&'a self, namespace: &'a str) -> Answer<'a, Result<Vec<Arc<Service>>, ObjectError>>;
    /// Those of [`Objects::services`] that are known by now; nothing is waited for.
    fn known_services(&self, _namespace: &str) -> Vec<Arc<Service>> {
        Vec::new()
    }
    /// All trust bundles of the cluster, by name.
    fn trust_bundles(&self) -> Answer<'_, Result<TrustBundles, ObjectError>> {
        Box::pin(std::future::ready(Err(ObjectError::NoBundles)))
    }
    /// Starts to keep what the pod refers to; a second call with a changed pod adjusts.
    fn register(&self, pod: &Pod);
    /// Ends what [`Objects::register`] began.
    fn unregister(&self, pod_uid: &str);
}

/// What a service account token is asked for.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TokenQuery {
    pub namespace: String,
    pub service_account: String,
    /// Empty means the API server's own audience.
    pub audience: String,
    pub expiration: Duration,
    /// The pod that the token is bound to.
    pub pod_name: String,
    pub pod_uid: String,
}

/// A token as the API server gave it.
#[derive(Clone, PartialEq, Eq)]
pub struct Issued {
    pub token: String,
    pub expires: SystemTime,
}

/// Without the token.
impl std::fmt::Debug for Issued {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Issued").field("expires", &self.expires).finish_non_exhaustive()
    }
}

/// Bound service account tokens, refreshed before they run out.
pub trait Tokens: Send + Sync + 'static {
    /// A token that is good for at least a fifth of its life, or a day less than that for long ones.
    fn issued<'a>(&'a self, query: &'a TokenQuery) -> Answer<'a, Result<Issued, ObjectError>>;
    /// Drops the tokens of a pod that is gone.
    fn forget(&self, pod_uid: &str);
}
