//! A node without an API server: there are no objects, and no services either.

use std::sync::Arc;

use proto::api::core::v1::{ConfigMap, Pod, Secret, Service};

use super::{Answer, ObjectError, Objects};
use crate::api::ApiError;

/// Objects of a node on its own. Static pods may refer to none, and services give no variables, as the kubelet has it.
pub struct NoObjects;

fn nobody<T>() -> Result<Arc<T>, ObjectError> {
    Err(ObjectError::Api(Arc::new(ApiError::Standalone)))
}

impl Objects for NoObjects {
    fn config_map<'a>(&'a self, _: &'a str, _: &'a str) -> Answer<'a, Result<Arc<ConfigMap>, ObjectError>> {
        Box::pin(std::future::ready(nobody()))
    }

    fn secret<'a>(&'a self, _: &'a str, _: &'a str) -> Answer<'a, Result<Arc<Secret>, ObjectError>> {
        Box::pin(std::future::ready(nobody()))
    }

    fn services<'a>(&'a self, _: &'a str) -> Answer<'a, Result<Vec<Arc<Service>>, ObjectError>> {
        Box::pin(std::future::ready(Ok(Vec::new())))
    }

    fn register(&self, _: &Pod) {}

    fn unregister(&self, _: &str) {}
}
