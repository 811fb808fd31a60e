//! User namespaces of pods: which range of the node's ids each has, kept in `pods/UID/userns` over restarts.
//!
//! Ranges never overlap, and the first one begins where the node's own ids end. Only the sandbox's creation may take a
//! new range: files of the pod's volumes belong to it.
//!
//! Followed: `pkg/kubelet/userns`.

use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use proto::api::core::v1::{Node, Pod};
use proto::cri;
use serde_json::{Value, json};

use crate::pod::spec::PodExt;
use crate::state_file::{self, Damaged};

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
    /// Length of each range by its first host id; they never overlap.
    used: BTreeMap<u32, u32>,
}

impl UserNamespaces {
    /// Takes in what pods have from an earlier agent; tells of each record that had to be set aside.
    pub fn open(root: &Path, length: u32, mut tell: impl FnMut(&Damaged)) -> Self {
        let mut ranges = Ranges::default();
        for entry in std::fs::read_dir(root.join("pods")).into_iter().flatten().flatten() {
            let Some(uid) = entry.file_name().to_str().map(str::to_owned) else { continue };
            let path = entry.path().join("userns");
            let Ok(text) = std::fs::read(&path) else { continue };
            match range_of(&text).and_then(|(first, length)| ranges.take(&uid, first, length)) {
                Ok(()) => {}
                Err(why) => tell(&state_file::set_aside(&path, why)),
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
        state_file::write(&path, record.as_bytes())
            .map_err(|e| format!("failed to record the user namespace of a pod: {e}"))?;
        ranges.take(uid, first, self.length)?;
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
    /// Notes whose a range is; refuses one that another pod has, even in part.
    fn take(&mut self, uid: &str, first: u32, length: u32) -> Result<(), String> {
        if let Some(other) = self.overlapping(first, length) {
            return Err(format!("its ids from {first} on overlap those of another pod, from {other} on"));
        }
        self.pods.insert(uid.to_owned(), first);
        self.used.insert(first, length);
        Ok(())
    }

    /// Begin of a range that shares ids with this one.
    fn overlapping(&self, first: u32, length: u32) -> Option<u32> {
        let end = u64::from(first) + u64::from(length);
        let below = self.used.iter().take_while(|(begin, _)| u64::from(**begin) < end);
        below
            .last()
            .filter(|(begin, length)| u64::from(**begin) + u64::from(**length) > u64::from(first))
            .map(|(b, _)| *b)
    }

    fn free(&self, length: u32) -> Option<u32> {
        let mut first = length;
        loop {
            // A range ends within 32 bits.
            first.checked_add(length - 1)?;
            if self.overlapping(first, length).is_none() {
                return Some(first);
            }
            first = first.checked_add(length)?;
        }
    }
}

/// First host id and length by a record: one mapping, of users and groups alike, that begins at the container's root.
fn range_of(text: &[u8]) -> Result<(u32, u32), String> {
    let record: Value = serde_json::from_slice(text).map_err(|e| e.to_string())?;
    let mappings = |name: &str| record.get(name).and_then(Value::as_array).filter(|list| list.len() == 1);
    let (Some(users), Some(groups)) = (mappings("uidMappings"), mappings("gidMappings")) else {
        return Err("it has not one mapping of users and one of groups".into());
    };
    if users != groups {
        return Err("its mappings of users and groups differ".into());
    }
    let number = |name: &str| users[0].get(name).and_then(Value::as_u64).and_then(|n| u32::try_from(n).ok());
    match (number("hostId"), number("containerId"), number("length")) {
        (Some(first), Some(0), Some(length))
            if first >= IDS_PER_POD && first.checked_add(length.saturating_sub(1)).is_some() =>
        {
            Ok((first, length))
        }
        _ => Err("its mapping is none that a pod can have".into()),
    }
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
        let spaces = UserNamespaces::open(&root, IDS_PER_POD, |d| panic!("{d}"));
        assert_eq!((first(&spaces, "a"), first(&spaces, "b"), first(&spaces, "a")), (65_536, 131_072, 65_536));
        let spaces = UserNamespaces::open(&root, IDS_PER_POD, |d| panic!("{d}"));
        spaces.release("a");
        std::fs::create_dir_all(root.join("pods/c")).unwrap();
        assert_eq!((first(&spaces, "b"), first(&spaces, "c")), (131_072, 65_536));
        let _ = std::fs::remove_dir_all(&root);
    }

    #[test]
    fn damaged_records_are_set_aside_and_never_lead_to_the_nodes_own_ids() {
        let root = std::env::temp_dir().join(format!("userns-damaged-{}", std::process::id()));
        let record = |first: u64, length: u64| {
            let mapping = json!([{ "hostId": first, "containerId": 0, "length": length }]);
            json!({ "uidMappings": mapping, "gidMappings": mapping }).to_string()
        };
        let put = |uid: &str, text: &str| {
            std::fs::create_dir_all(root.join("pods").join(uid)).unwrap();
            std::fs::write(root.join("pods").join(uid).join("userns"), text).unwrap();
        };
        put("a", &record(131_072, 65_536));
        let damaged = [record(0, 65_536), record(1 << 32, 1), "{".into(), "{}".into(), String::new()];
        for (at, text) in damaged.iter().enumerate() {
            put(&format!("bad{at}"), text);
        }
        let mut told = 0;
        let spaces = UserNamespaces::open(&root, IDS_PER_POD, |_| told += 1);
        assert_eq!(told, damaged.len());
        assert!(root.join("pods/bad0/userns.corrupt").exists() && !root.join("pods/bad0/userns").exists());
        let taken = spaces.inner().take("other", 196_607, 65_536);
        assert!(taken.is_err_and(|why| why.contains("overlap those of another pod, from 131072 on")));
        // The ranges before and after the good pod's.
        assert_eq!((spaces.range("bad0"), spaces.range("bad1")), (Ok(65_536), Ok(196_608)));
        let _ = std::fs::remove_dir_all(&root);
    }

    #[test]
    fn the_runtime_must_be_able_to() {
        let spaces = UserNamespaces::open(Path::new("/nowhere"), IDS_PER_POD, |d| panic!("{d}"));
        let why = spaces.of(&pod("a"), "", &node(false)).unwrap_err();
        assert_eq!(why, "RuntimeClass handler \"\" does not support user namespaces");
        assert_eq!(spaces.of(&pod("a"), "x", &node(true)).unwrap_err(), "the handler \"x\" is not known");
        assert_eq!(spaces.of(&Pod::default(), "x", &node(true)), Ok(None));
    }
}
