//! `/pods`: a `v1.PodList` in JSON.
//!
//! The JSON of a pod is made once for each of its states and kept while somebody asks again and again: to make it is nearly
//! all that such a page costs.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use proto::api::core::v1::{Pod, PodStatus};
use proto::schema::TypeSet;
use tokio::time::Instant;

use crate::pod::spec::PodExt as _;
use crate::pods_api;

/// What nobody has asked for so long is forgotten.
const FORGOTTEN: Duration = Duration::from_secs(120);

/// A pod and its newest status, where the agent has made one.
pub type Known = (Arc<Pod>, Option<Arc<PodStatus>>);

/// The JSON of one state.
struct Written {
    of: Known,
    json: Vec<u8>,
}

impl Written {
    /// Whether these are the very objects that it was made of, which do not change.
    fn is_of(&self, (pod, status): &Known) -> bool {
        let same_status = match (&self.of.1, status) {
            (Some(ours), Some(theirs)) => Arc::ptr_eq(ours, theirs),
            (None, None) => true,
            _ => false,
        };
        same_status && Arc::ptr_eq(&self.of.0, pod)
    }
}

#[derive(Default)]
struct Kept {
    /// By uid.
    pods: HashMap<String, Written>,
    /// When somebody asked last, as long as something is kept.
    asked: Option<Instant>,
}

/// What is kept of the page. Clones share it.
#[derive(Clone, Default)]
pub struct PodPage(Arc<Mutex<Kept>>);

impl PodPage {
    fn kept(&self) -> MutexGuard<'_, Kept> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The page. What was kept of other pods is gone after it.
    pub fn write(&self, pods: Vec<Known>) -> Vec<u8> {
        let set = TypeSet::built_in();
        let mut out = br#"{"kind":"PodList","apiVersion":"v1","metadata":{},"items":["#.to_vec();
        // Who asks at the same moment makes his own.
        let mut before = std::mem::take(&mut self.kept().pods);
        out.reserve(before.values().map(|written| written.json.len() + 1).sum());
        let mut after = HashMap::with_capacity(pods.len());
        let mut first = true;
        for known in pods {
            let uid = known.0.uid().to_owned();
            let Some(written) = before.remove(&uid).filter(|kept| kept.is_of(&known)).or_else(|| made(set, known))
            else {
                continue;
            };
            if !std::mem::take(&mut first) {
                out.push(b',');
            }
            out.extend_from_slice(&written.json);
            after.insert(uid, written);
        }
        out.extend_from_slice(b"]}\n");
        let is_new = {
            let mut kept = self.kept();
            kept.pods = after;
            kept.asked.replace(Instant::now()).is_none()
        };
        if is_new {
            self.forget_later();
        }
        out
    }

    fn forget_later(&self) {
        let page = self.clone();
        tokio::spawn(async move {
            loop {
                let end = {
                    let mut kept = page.kept();
                    match kept.asked.map(|asked| asked + FORGOTTEN) {
                        Some(end) if end > Instant::now() => end,
                        _ => {
                            *kept = Kept::default();
                            return;
                        }
                    }
                };
                tokio::time::sleep_until(end).await;
            }
        });
    }
}

/// The types come from the same declarations as the schema, so this always succeeds.
fn made(set: &TypeSet, of: Known) -> Option<Written> {
    let id = set.kind("", "v1", "Pod")?;
    let tree = proto::protobuf::decode(set, id, &pods_api::encode(&of.0, of.1.as_deref())).ok()?;
    let mut json = Vec::new();
    proto::json::write(set, id, &tree, &mut json);
    json.shrink_to_fit();
    Some(Written { of, json })
}

#[cfg(test)]
mod tests {
    use proto::apimachinery::pkg::apis::meta::v1::ObjectMeta;

    use super::*;

    fn pod(name: &str) -> Arc<Pod> {
        let metadata = ObjectMeta { name: name.into(), uid: format!("uid-{name}"), ..ObjectMeta::default() };
        let status = PodStatus { phase: "Unknown".into(), ..PodStatus::default() };
        Arc::new(Pod { metadata: Some(metadata), status: Some(status), ..Pod::default() })
    }

    fn status(phase: &str) -> Arc<PodStatus> {
        Arc::new(PodStatus { phase: phase.into(), ..PodStatus::default() })
    }

    /// Names and phases on the page.
    fn shown(page: &PodPage, pods: &[Known]) -> Vec<(String, String)> {
        let list: serde_json::Value = serde_json::from_slice(&page.write(pods.to_vec())).unwrap();
        assert_eq!((list["kind"].as_str(), list["apiVersion"].as_str()), (Some("PodList"), Some("v1")));
        let text = |value: &serde_json::Value| value.as_str().unwrap_or_default().to_owned();
        let items = list["items"].as_array().unwrap().iter();
        items.map(|item| (text(&item["metadata"]["name"]), text(&item["status"]["phase"]))).collect()
    }

    #[tokio::test(start_paused = true)]
    async fn a_pod_is_written_again_when_it_or_its_status_is_another() {
        let page = PodPage::default();
        let (a, b) = (pod("a"), pod("b"));
        let want = |pairs: &[(&str, &str)]| -> Vec<(String, String)> {
            pairs.iter().map(|(name, phase)| ((*name).to_owned(), (*phase).to_owned())).collect()
        };
        let running = status("Running");
        let known = [(a.clone(), Some(running.clone())), (b.clone(), None)];
        assert_eq!(shown(&page, &known), want(&[("a", "Running"), ("b", "Unknown")]));
        let written = |name: &str| page.kept().pods.get(&format!("uid-{name}")).map(|w| w.json.as_ptr());
        let before = (written("a"), written("b"));
        assert_eq!(shown(&page, &known), want(&[("a", "Running"), ("b", "Unknown")]));
        assert_eq!((written("a"), written("b")), before, "nothing was written again");
        // The same object with another status, a first status, and another object of the same name.
        let known = [(a, Some(status("Failed"))), (b.clone(), Some(status("Pending")))];
        assert_eq!(shown(&page, &known), want(&[("a", "Failed"), ("b", "Pending")]));
        let known = [(b, None), (pod("a"), Some(running))];
        assert_eq!(shown(&page, &known), want(&[("b", "Unknown"), ("a", "Running")]));
        assert_eq!(shown(&page, &known[..1]), want(&[("b", "Unknown")]));
        assert_eq!(written("a"), None, "it is gone");
        assert_eq!(shown(&page, &[]), []);
    }

    #[tokio::test(start_paused = true)]
    async fn what_nobody_asks_for_is_forgotten() {
        let page = PodPage::default();
        let known = vec![(pod("a"), None)];
        page.write(known.clone());
        tokio::time::sleep(FORGOTTEN / 2).await;
        page.write(known.clone());
        tokio::time::sleep(FORGOTTEN * 3 / 4).await;
        assert_eq!(page.kept().pods.len(), 1);
        tokio::time::sleep(FORGOTTEN / 2).await;
        assert!(page.kept().pods.is_empty() && page.kept().asked.is_none());
        page.write(known);
        assert_eq!(page.kept().pods.len(), 1);
        tokio::time::sleep(FORGOTTEN * 2).await;
        assert!(page.kept().pods.is_empty());
    }
}
