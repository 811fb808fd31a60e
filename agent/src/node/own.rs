//! This node's object as others write it: a watch of one name.
//!
//! [`follow`] goes on whatever the reports of the status wait for: what others write is in the node that pods are judged by
//! as soon as it is heard of. The keeper of the status gets a hint, and looks whether there is something to answer.

use std::sync::Arc;

use proto::api::core::v1::Node;
use tokio::sync::{Notify, watch};

use super::NodeDeps;
use crate::api::{Change, Kind, Reflector};

/// What the watch said last.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Seen {
    /// Somebody wrote what is now the newest known node.
    Written,
    /// Somebody deleted it.
    Gone,
}

/// Hands on what the watch of the node's own object brings, for ever. The watch is broken as soon as the API server is gone,
/// which `silence` hears of.
pub async fn follow(deps: &NodeDeps, seen: watch::Sender<Seen>, silence: Arc<Notify>) {
    let by_name = format!("metadata.name={}", deps.settings.name);
    let mut reflector: Reflector<Node> = Reflector::new(deps.client.clone(), "", &by_name).telling(silence);
    loop {
        let said = match reflector.next().await {
            Change::Applied(node) => publish(&deps.node, node).then_some(Seen::Written),
            Change::Listed(nodes) => match nodes.into_iter().next() {
                Some(node) => publish(&deps.node, node).then_some(Seen::Written),
                None => Some(Seen::Gone),
            },
            // The end of one that has been replaced since is no news.
            Change::Deleted(node) => (node.uid() == deps.node.borrow().uid()).then_some(Seen::Gone),
        };
        if let Some(said) = said {
            seen.send_replace(said);
        }
    }
}

/// Whether the node was newer than what was held, and is held now.
pub fn publish(to: &watch::Sender<Arc<Node>>, node: Node) -> bool {
    to.send_if_modified(|held| {
        let newer = is_newer(&node, held);
        if newer {
            *held = Arc::new(node);
        }
        newer
    })
}

/// Takes the API server's answer to a write that was sent while `before` was held. As long as nothing else came, it is what
/// follows, also when its version is smaller: a store that was restored counts anew from where its copy ended.
pub fn take_answer(to: &watch::Sender<Arc<Node>>, answer: Node, before: &Arc<Node>) {
    to.send_if_modified(|held| {
        let follows = Arc::ptr_eq(held, before) && answer.resource_version() != held.resource_version();
        let newer = follows || is_newer(&answer, held);
        if newer {
            *held = Arc::new(answer);
        }
        newer
    });
}

/// Whether `new` was written after `held`. Versions of one store are numbers that grow; another object of the same name
/// is always newer, and so is a version that is no number.
fn is_newer(new: &Node, held: &Node) -> bool {
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

    #[test]
    fn only_news_is_handed_on() {
        let (to, mut news) = watch::channel(Arc::new(node("a", "9")));
        news.mark_unchanged();
        assert!(!publish(&to, node("a", "8")));
        assert!(!news.has_changed().unwrap());
        assert!(publish(&to, node("a", "10")));
        assert_eq!(news.borrow().resource_version(), "10");
    }

    #[test]
    fn an_answer_is_taken_from_a_restored_store_but_not_after_something_later() {
        let (to, news) = watch::channel(Arc::new(node("a", "100")));
        let before = news.borrow().clone();
        take_answer(&to, node("a", "50"), &before);
        assert_eq!(news.borrow().resource_version(), "50");
        let before = news.borrow().clone();
        assert!(publish(&to, node("a", "52")), "the watch goes on from there");
        take_answer(&to, node("a", "51"), &before);
        assert_eq!(news.borrow().resource_version(), "52");
    }
}
