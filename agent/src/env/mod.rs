//! The environment of a container.

use proto::api::core::v1::{Container, Pod, Service};

use crate::objects::Objects;
use crate::pod::expand::expand;
use crate::pod::spec::PodExt;

/// What the environment takes from outside the spec.
pub struct EnvContext<'a> {
    pub pod_ips: &'a [String],
    pub host_ips: &'a [String],
    pub node_name: &'a str,
    pub services: &'a [std::sync::Arc<Service>],
}

/// Why a variable has no value; the text is the waiting message.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{0}")]
pub struct EnvError(pub String);

/// All variables in order; `$(VAR)` sees earlier ones.
pub async fn container_env(
    pod: &Pod,
    container: &Container,
    context: &EnvContext<'_>,
    _objects: &dyn Objects,
) -> Result<Vec<(String, String)>, EnvError> {
    let mut out: Vec<(String, String)> = Vec::new();
    for variable in &container.env {
        let value = match variable.value_from.as_ref().and_then(|f| f.field_ref.as_ref()) {
            None => expand(&variable.value, &out),
            Some(field) => match field.field_path.as_str() {
                "metadata.name" => pod.name().to_owned(),
                "metadata.namespace" => pod.namespace().to_owned(),
                "metadata.uid" => pod.uid().to_owned(),
                "spec.nodeName" => context.node_name.to_owned(),
                "status.podIP" => context.pod_ips.first().cloned().unwrap_or_default(),
                "status.hostIP" => context.host_ips.first().cloned().unwrap_or_default(),
                other => return Err(EnvError(format!("unsupported fieldPath: {other}"))),
            },
        };
        out.push((variable.name.clone(), value));
    }
    Ok(out)
}
