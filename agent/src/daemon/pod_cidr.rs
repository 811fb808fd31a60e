//! The addresses of this node's pods, told to the runtime: it makes the network's configuration of them where it is set up
//! so (containerd's `conf_template`).
//!
//! They are `podCIDR` where the agent runs alone, and the node's own when the control plane has given it some.

use std::sync::Arc;
use std::time::Duration;

use proto::api::core::v1::Node;
use proto::cri::{NetworkConfig, RuntimeConfig, UpdateRuntimeConfigRequest};
use tokio::sync::watch;

use crate::cri::CriClient;

/// A runtime that is down comes back.
const AGAIN: Duration = Duration::from_secs(10);

/// Tells the runtime whenever they change, until the node's task ends.
pub async fn tell(cri: CriClient, configured: String, mut node: watch::Receiver<Arc<Node>>) {
    let mut told = String::new();
    loop {
        let wanted = of_node(&node.borrow_and_update()).unwrap_or_else(|| configured.clone());
        if wanted != told && !wanted.is_empty() {
            let network_config = Some(NetworkConfig { pod_cidr: wanted.clone() });
            let request = UpdateRuntimeConfigRequest { runtime_config: Some(RuntimeConfig { network_config }) };
            match cri.update_runtime_config(request).await {
                Ok(_) => tracing::info!(pod_cidr = wanted, "told the runtime the addresses of pods"),
                Err(error) if error.is_unimplemented() => {
                    tracing::debug!("the runtime does not ask for the addresses of pods");
                }
                Err(error) => {
                    tracing::warn!(%error, pod_cidr = wanted, "cannot tell the runtime the addresses of pods");
                    tokio::time::sleep(AGAIN).await;
                    continue;
                }
            }
            told = wanted;
        }
        if node.changed().await.is_err() {
            return;
        }
    }
}

/// What the control plane has given the node, as the runtime takes it.
fn of_node(node: &Node) -> Option<String> {
    let spec = node.spec.as_ref()?;
    let all = if spec.pod_cid_rs.is_empty() { spec.pod_cidr.clone() } else { spec.pod_cid_rs.join(",") };
    (!all.is_empty()).then_some(all)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proto::api::core::v1::NodeSpec;

    #[test]
    fn both_families_are_told_in_one() {
        let node = |one: &str, all: &[&str]| Node {
            spec: Some(NodeSpec {
                pod_cidr: one.into(),
                pod_cid_rs: all.iter().map(ToString::to_string).collect(),
                ..NodeSpec::default()
            }),
            ..Node::default()
        };
        assert_eq!(
            of_node(&node("10.0.0.0/24", &["10.0.0.0/24", "fd00::/64"])).as_deref(),
            Some("10.0.0.0/24,fd00::/64")
        );
        assert_eq!(of_node(&node("10.0.0.0/24", &[])).as_deref(), Some("10.0.0.0/24"));
        assert_eq!(of_node(&Node::default()), None);
    }
}
