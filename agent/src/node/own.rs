//! This node's object as others write it: a watch of one name.

use proto::api::core::v1::Node;

use super::NodeDeps;
use crate::api::{Change, Kind, Reflector};

/// Follows the node's own object; silent without an API server.
pub struct OwnNode(Option<Reflector<Node>>);

impl OwnNode {
    pub fn new(deps: &NodeDeps) -> Self {
        let by_name = format!("metadata.name={}", deps.settings.name);
        OwnNode((!deps.standalone).then(|| Reflector::new(deps.client.clone(), "", &by_name)))
    }

    /// The next thing that happened to the object. Cancel safe.
    pub async fn next(&mut self) -> Change<Node> {
        match &mut self.0 {
            Some(reflector) => reflector.next().await,
            None => std::future::pending().await,
        }
    }
}

/// Whether `new` was written after `held`. Versions of one store are numbers that grow; another object of the same name
/// is always newer, and so is a version that is no number.
pub fn is_newer(new: &Node, held: &Node) -> bool {
    match (new.resource_version().parse::<u64>(), held.resource_version().parse::<u64>()) {
        (Ok(new_version), Ok(held_version)) if new.uid() == held.uid() => new_version > held_version,
        _ => true,
    }
}

#[cfg(test)]
mod tests {
    use proto::apimachinery::pkg::apis::meta::v1::ObjectMeta;

    use super::*;

    fn node(uid: &str, version: &str) -> Node {
        let metadata = ObjectMeta { uid: uid.into(), resource_version: version.into(), ..ObjectMeta::default() };
        Node { metadata: Some(metadata), ..Node::default() }
    }

    #[test]
    fn the_watch_never_takes_the_node_back() {
        assert!(is_newer(&node("a", "10"), &node("a", "9")));
        assert!(!is_newer(&node("a", "9"), &node("a", "9")), "an echo of this agent's own write");
        assert!(!is_newer(&node("a", "9"), &node("a", "10")));
        assert!(is_newer(&node("b", "2"), &node("a", "10")), "registered again in a restored store");
        assert!(is_newer(&node("a", "2"), &Node::default()), "nothing was known");
    }
}
