//! User namespaces of pods: which range of the node's ids each has, kept in `pods/UID/userns` over restarts.
//!
//! Ranges never overlap, and the first one begins where the node's own ids end. Only the sandbox's creation may take a
//! new range: files of the pod's volumes belong to it.
//!
//! Followed: `pkg/kubelet/userns`.

use std::collections::{BTreeSet, HashMap};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use proto::api::core::v1::{Node, Pod};
use proto::cri;
use serde_json::{Value, json};

use crate::pod::spec::PodExt;

/// `idsPerPod` by default.
pub const IDS_PER_POD: u32 = 65_536;

/// Ranges in use.
pub struct UserNamespaces {
    root: PathBuf,
    length: u32,
    inner: Mutex<Ranges>,
}

#[derive(Default)]
struct Ranges {
    /// First host id of each pod's range.
    pods: HashMap<String, u32>,
    used: BTreeSet<u32>,
}

impl UserNamespaces {
    /// Takes in what pods have from an earlier agent.
    pub fn open(root: &Path, length: u32) -> Self {
        let mut ranges = Ranges::default();
        for entry in std::fs::read_dir(root.join("pods")).into_iter().flatten().flatten() {
            let Some(uid) = entry.file_name().to_str().map(str::to_owned) else { continue };
            match std::fs::read(entry.path().join("userns")).ok().map(|text| first_id(&text)) {
                Some(Some(first)) => ranges.take(&uid, first),
                Some(None) => tracing::warn!(uid, "the record of a pod's user namespace cannot be used"),
                None => {}
            }
        }
        Self { root: root.to_owned(), length: length.max(IDS_PER_POD), inner: Mutex::new(ranges) }
    }

    fn inner(&self) -> MutexGuard<'_, Ranges> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The pod's own namespace, `None` for a pod with the users of the node.
    ///
    /// # Errors
    /// The kubelet's text: the runtime cannot do it, or no range is left.
    pub fn of(&self, pod: &Pod, handler: &str, node: &Node) -> Result<Option<cri::UserNamespace>, String> {
        if pod.spec().host_users != Some(false) {
            return Ok(None);
        }
        let handlers = node.status.iter().flat_map(|s| &s.runtime_handlers);
        let Some(found) = handlers.into_iter().find(|h| h.name == handler) else {
            return Err(format!("the handler {handler:?} is not known"));
        };
        if found.features.as_ref().and_then(|f| f.user_namespaces) != Some(true) {
            return Err(format!("RuntimeClass handler {handler:?} does not support user namespaces"));
        }
        let first = self.range(pod.uid())?;
        let mapping = cri::IdMapping { host_id: first, container_id: 0, length: self.length };
        Ok(Some(cri::UserNamespace { mode: cri::NamespaceMode::Pod as i32, uids: vec![mapping], gids: vec![mapping] }))
    }

    fn range(&self, uid: &str) -> Result<u32, String> {
        let mut ranges = self.inner();
        if let Some(first) = ranges.pods.get(uid) {
            return Ok(*first);
        }
        let first = ranges.free(self.length).ok_or("could not find an empty slot to allocate a user namespace")?;
        let mapping = json!([{ "hostId": first, "containerId": 0, "length": self.length }]);
        let record = json!({ "uidMappings": mapping, "gidMappings": mapping }).to_string();
        let path = self.root.join("pods").join(uid).join("userns");
        let next = path.with_file_name(".userns");
        std::fs::write(&next, record)
            .and_then(|()| std::fs::rename(&next, &path))
            .map_err(|e| format!("failed to record the user namespace of a pod: {e}"))?;
        ranges.take(uid, first);
        Ok(first)
    }

    /// Gives a pod's range back; nothing of the pod may be left.
    pub fn release(&self, uid: &str) {
        let mut ranges = self.inner();
        if let Some(first) = ranges.pods.remove(uid) {
            ranges.used.remove(&first);
        }
    }
}

impl Ranges {
    fn take(&mut self, uid: &str, first: u32) {
        self.pods.insert(uid.to_owned(), first);
        self.used.insert(first);
    }

    fn free(&self, length: u32) -> Option<u32> {
        let mut first = length;
        loop {
            // A range ends within 32 bits.
            first.checked_add(length - 1)?;
            if !self.used.contains(&first) {
                return Some(first);
            }
            first = first.checked_add(length)?;
        }
    }
}

fn first_id(text: &[u8]) -> Option<u32> {
    let record: Value = serde_json::from_slice(text).ok()?;
    u32::try_from(record.get("uidMappings")?.get(0)?.get("hostId")?.as_u64()?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proto::api::core::v1::{NodeRuntimeHandler, NodeRuntimeHandlerFeatures, NodeStatus, PodSpec};

    fn pod(uid: &str) -> Pod {
        let mut pod =
            Pod { spec: Some(PodSpec { host_users: Some(false), ..Default::default() }), ..Default::default() };
        pod.metadata.get_or_insert_default().uid = uid.into();
        pod
    }

    fn node(able: bool) -> Node {
        let features = NodeRuntimeHandlerFeatures { user_namespaces: Some(able), ..Default::default() };
        let handler = NodeRuntimeHandler { name: String::new(), features: Some(features) };
        let status = NodeStatus { runtime_handlers: vec![handler], ..Default::default() };
        Node { status: Some(status), ..Default::default() }
    }

    #[test]
    fn ranges_are_kept_over_a_restart_and_given_back() {
        let root = std::env::temp_dir().join(format!("userns-{}", std::process::id()));
        for uid in ["a", "b"] {
            std::fs::create_dir_all(root.join("pods").join(uid)).unwrap();
        }
        let first = |spaces: &UserNamespaces, uid: &str| {
            spaces.of(&pod(uid), "", &node(true)).unwrap().unwrap().uids[0].host_id
        };
        let spaces = UserNamespaces::open(&root, IDS_PER_POD);
        assert_eq!((first(&spaces, "a"), first(&spaces, "b"), first(&spaces, "a")), (65_536, 131_072, 65_536));
        let spaces = UserNamespaces::open(&root, IDS_PER_POD);
        spaces.release("a");
        std::fs::create_dir_all(root.join("pods/c")).unwrap();
        assert_eq!((first(&spaces, "b"), first(&spaces, "c")), (131_072, 65_536));
        let _ = std::fs::remove_dir_all(&root);
    }

    #[test]
    fn the_runtime_must_be_able_to() {
        let spaces = UserNamespaces::open(Path::new("/nowhere"), IDS_PER_POD);
        let why = spaces.of(&pod("a"), "", &node(false)).unwrap_err();
        assert_eq!(why, "RuntimeClass handler \"\" does not support user namespaces");
        assert_eq!(spaces.of(&pod("a"), "x", &node(true)).unwrap_err(), "the handler \"x\" is not known");
        assert_eq!(spaces.of(&Pod::default(), "x", &node(true)), Ok(None));
    }
}
