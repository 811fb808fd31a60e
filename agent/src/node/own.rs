//! This node's object as others write it: a watch of one name.
//!
//! [`follow`] goes on whatever the reports of the status wait for: what others write is in the node that pods are judged by
//! as soon as it is heard of. The keeper of the status gets a hint, and looks whether there is something to answer.

use std::sync::Arc;

use proto::api::core::v1::Node;
use tokio::sync::{Notify, watch};

use crate::api::{Change, Client, Kind, Reflector};

/// What the watch said last.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Seen {
    /// Somebody wrote what is now the newest known node.
    Written,
    /// Somebody deleted it.
    Gone,
}

/// Who hears of what the watch brings.
pub struct Listeners {
    /// Gets the node.
    pub node: watch::Sender<Arc<Node>>,
    /// Becomes true with the first answer, also when there is no node.
    pub heard: watch::Sender<bool>,
    pub seen: watch::Sender<Seen>,
}

/// Hands on what the watch of the node's own object brings, for ever. The watch is broken as soon as the API server is gone,
/// which `silence` hears of.
pub async fn follow(client: Client, name: &str, to: Listeners, silence: Arc<Notify>) {
    let Listeners { node: held, heard, seen } = to;
    let mut reflector: Reflector<Node> = Reflector::new(client, "", &format!("metadata.name={name}")).telling(silence);
    loop {
        let said = match reflector.next().await {
            Change::Applied(node) => publish(&held, node).then_some(Seen::Written),
            Change::Listed(nodes) => match nodes.into_iter().next() {
                Some(node) => publish(&held, node).then_some(Seen::Written),
                None => Some(Seen::Gone),
            },
            // The end of one that has been replaced since is no news.
            Change::Deleted(node) => (node.uid() == held.borrow().uid()).then_some(Seen::Gone),
        };
        // After the node is held: who waits for this looks at it then.
        heard.send_if_modified(|heard| !std::mem::replace(heard, true));
        if let Some(said) = said {
            seen.send_replace(said);
        }
    }
}

/// Waits until it is known what the API server has of this node, and be it nothing. `heard` is that of [`Listeners`]; a node
/// that was registered meanwhile does as well.
pub async fn is_known(mut node: watch::Receiver<Arc<Node>>, mut heard: watch::Receiver<bool>) {
    // They fail when the agent stops.
    tokio::select! {
        _ = node.wait_for(|node| !node.uid().is_empty()) => {}
        _ = heard.wait_for(|heard| *heard) => {}
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
    use std::pin::Pin;
    use std::time::Duration;

    use bytes::Bytes;
    use http::{Request, Response, header};
    use http_body_util::{BodyExt as _, Full};
    use proto::apimachinery::pkg::apis::meta::v1::ObjectMeta;

    use super::*;
    use crate::api::{ApiError, Body, ClientOptions, Transport};

    /// A server that lists these nodes, and breaks off every watch.
    struct Server(&'static str);

    impl Transport for Server {
        fn send<'a>(
            &'a self,
            request: Request<Bytes>,
        ) -> Pin<Box<dyn Future<Output = Result<Response<Body>, ApiError>> + Send + 'a>> {
            let watches = request.uri().query().is_some_and(|query| query.contains("watch="));
            let list = format!(
                r#"{{"kind":"NodeList","apiVersion":"v1","metadata":{{"resourceVersion":"7"}},"items":[{}]}}"#,
                self.0
            );
            let answer = match watches {
                true => Err(ApiError::Connect("refused".into())),
                false => Response::builder()
                    .header(header::CONTENT_TYPE, "application/json")
                    .body(Full::new(Bytes::from(list)).map_err(Into::into).boxed_unsync())
                    .map_err(|e| ApiError::Malformed(e.to_string())),
            };
            Box::pin(std::future::ready(answer))
        }
    }

    /// The node as it is known when the first answer is there.
    async fn first_known(nodes: &'static str) -> Option<Arc<Node>> {
        let (node, held) = watch::channel(Arc::new(Node::default()));
        let (heard, hears) = watch::channel(false);
        let (seen, _seen) = watch::channel(Seen::Written);
        let client = Client::new(Arc::new(Server(nodes)), &ClientOptions::default());
        let known = is_known(held.clone(), hears);
        let follows = follow(client, "n", Listeners { node, heard, seen }, Arc::default());
        let known = async {
            tokio::select! {
                () = known => {}
                () = follows => {}
            }
        };
        tokio::time::timeout(Duration::from_secs(1), known).await.ok()?;
        Some(held.borrow().clone())
    }

    #[tokio::test(start_paused = true)]
    async fn a_node_is_known_when_the_server_has_said_what_it_has() {
        let known = first_known(r#"{"metadata":{"name":"n","uid":"u","labels":{"disk":"fast"}}}"#).await.unwrap();
        assert_eq!(known.metadata.as_ref().unwrap().labels["disk"], "fast");
        // One that nobody registers may never be there, and its pods are not to wait for it.
        assert!(first_known("").await.is_some());
    }

    #[tokio::test(start_paused = true)]
    async fn a_node_is_known_once_it_is_registered_and_not_before() {
        let (held, node) = watch::channel(Arc::new(Node::default()));
        let (_heard, heard) = watch::channel(false);
        let mut known = Box::pin(is_known(node, heard));
        assert!(tokio::time::timeout(Duration::from_secs(60), &mut known).await.is_err());
        held.send_replace(Arc::new(self::node("a", "1")));
        tokio::time::timeout(Duration::from_secs(1), known).await.unwrap();
    }

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
