//! User namespaces of pods: which range of the node's ids each has, kept in `pods/UID/userns` over restarts.
//!
//! Ranges never overlap, and are parts of what the node gives to pods ([`UserIds`]). Only the sandbox's creation may take a
//! new range: files of the pod's volumes belong to it. The range of a pod whose record is damaged is had from its sandbox;
//! until the runtime has said which it is, no new range is given to anybody.
//!
//! Followed: `pkg/kubelet/userns`.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use proto::api::core::v1::{Node, Pod};
use proto::cri;
use serde_json::{Value, json};

use crate::cri::{CriClient, CriError};
use crate::pod::spec::PodExt;
use crate::state_file::{self, Damaged};

use super::user_ids::{IDS_PER_POD, UserIds};

/// Ranges in use.
pub struct UserNamespaces {
    root: PathBuf,
    ids: UserIds,
    inner: Mutex<Ranges>,
}

#[derive(Default)]
struct Ranges {
    /// First host id of each pod's range.
    pods: HashMap<String, u32>,
    /// Length of each range by its first host id; they never overlap.
    used: BTreeMap<u32, u32>,
    /// Pods whose record is damaged: their sandboxes may have any range.
    unknown: BTreeSet<String>,
}

impl UserNamespaces {
    /// Takes in what pods have from an earlier agent; tells of each record that had to be set aside.
    pub fn open(root: &Path, ids: UserIds, mut tell: impl FnMut(&Damaged)) -> Self {
        let mut ranges = Ranges::default();
        for entry in std::fs::read_dir(root.join("pods")).into_iter().flatten().flatten() {
            let Some(uid) = entry.file_name().to_str().map(str::to_owned) else { continue };
            let path = entry.path().join("userns");
            let Ok(text) = std::fs::read(&path) else { continue };
            match range_of(&text).and_then(|(first, length)| ranges.take(&uid, first, length)) {
                Ok(()) => {}
                Err(why) => {
                    tell(&state_file::set_aside(&path, why));
                    ranges.unknown.insert(uid);
                }
            }
        }
        Self { root: root.to_owned(), ids, inner: Mutex::new(ranges) }
    }

    fn inner(&self) -> MutexGuard<'_, Ranges> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Learns from the runtime which ranges pods have whose records were damaged. Does nothing once all are known.
    ///
    /// # Errors
    /// The runtime does not answer; to be tried again before any range is given.
    pub async fn recover(&self, cri: &CriClient) -> Result<(), String> {
        while let Some(uid) = self.unknown() {
            let range =
                range_of_sandbox(cri, &uid).await.map_err(|e| format!("the user namespace of pod {uid}: {e}"))?;
            self.learn(&uid, range);
        }
        Ok(())
    }

    fn unknown(&self) -> Option<String> {
        self.inner().unknown.first().cloned()
    }

    /// Notes the range that the pod of a damaged record has; `None` when it has no sandbox.
    fn learn(&self, uid: &str, range: Option<(u32, u32)>) {
        let mut ranges = self.inner();
        // It may have been released meanwhile.
        if !ranges.unknown.remove(uid) {
            return;
        }
        let Some((first, length)) = range else { return };
        if let Err(why) = ranges.take(uid, first, length) {
            tracing::error!(pod = uid, why, "the user namespace of a pod is not its own");
            return;
        }
        match self.record(uid, first, length) {
            Ok(()) => {
                tracing::info!(pod = uid, first, length, "recovered the user namespace of a pod from its sandbox")
            }
            Err(error) => tracing::warn!(error, pod = uid, "recovered the user namespace of a pod"),
        }
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
        let found = handlers.into_iter().find(|h| h.name == handler);
        if found.and_then(|h| h.features.as_ref()?.user_namespaces) != Some(true) {
            let who = match handler {
                "" => "runtime".to_owned(),
                name => format!("RuntimeClass handler {name:?}"),
            };
            let why = if found.is_none() { format!(": the handler {handler:?} is not known") } else { String::new() };
            return Err(format!("can't set `spec.hostUsers: false`, {who} does not support user namespaces{why}"));
        }
        let first = self.range(pod.uid())?;
        let mapping = cri::IdMapping { host_id: first, container_id: 0, length: self.ids.per_pod };
        Ok(Some(cri::UserNamespace { mode: cri::NamespaceMode::Pod as i32, uids: vec![mapping], gids: vec![mapping] }))
    }

    fn range(&self, uid: &str) -> Result<u32, String> {
        let mut ranges = self.inner();
        if let Some(first) = ranges.pods.get(uid) {
            return Ok(*first);
        }
        if !ranges.unknown.is_empty() {
            return Err("the user namespaces of other pods are not known yet".into());
        }
        let first = ranges.free(self.ids).ok_or("could not find an empty slot to allocate a user namespace")?;
        self.record(uid, first, self.ids.per_pod)?;
        ranges.take(uid, first, self.ids.per_pod)?;
        Ok(first)
    }

    /// Writes down whose a range is, so that it is on the disk before anybody runs in it.
    fn record(&self, uid: &str, first: u32, length: u32) -> Result<(), String> {
        let mapping = json!([{ "hostId": first, "containerId": 0, "length": length }]);
        let record = json!({ "uidMappings": mapping, "gidMappings": mapping }).to_string();
        let path = self.root.join("pods").join(uid).join("userns");
        state_file::write(&path, record.as_bytes())
            .map_err(|e| format!("failed to record the user namespace of a pod: {e}"))
    }

    /// Gives a pod's range back; nothing of the pod may be left.
    pub fn release(&self, uid: &str) {
        let mut ranges = self.inner();
        ranges.unknown.remove(uid);
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

    fn free(&self, ids: UserIds) -> Option<u32> {
        let mut first = ids.first;
        let end = u64::from(ids.first) + u64::from(ids.length);
        loop {
            if u64::from(first) + u64::from(ids.per_pod) > end {
                return None;
            }
            if self.overlapping(first, ids.per_pod).is_none() {
                return Some(first);
            }
            first = first.checked_add(ids.per_pod)?;
        }
    }
}

/// First host id and length of the users of the pod's newest sandbox that has a namespace of its own.
async fn range_of_sandbox(cri: &CriClient, uid: &str) -> Result<Option<(u32, u32)>, CriError> {
    let mut sandboxes = cri.list_pod_sandboxes(Some(uid)).await?;
    sandboxes.sort_by_key(|s| std::cmp::Reverse(s.created_at));
    for sandbox in sandboxes {
        let answer = match cri.pod_sandbox_answer(&sandbox.id, true).await {
            Ok(answer) => answer,
            // It went since it was listed.
            Err(error) if error.is_not_found() => continue,
            Err(error) => return Err(error),
        };
        if let Some(range) = range_of_answer(&answer) {
            return Ok(Some(range));
        }
    }
    Ok(None)
}

/// By the status, or by the OCI configuration that runtimes add to it, of those that leave the namespace out.
fn range_of_answer(answer: &cri::PodSandboxStatusResponse) -> Option<(u32, u32)> {
    let options = answer.status.as_ref().and_then(|s| s.linux.as_ref()?.namespaces.as_ref()?.options.as_ref());
    let mapping = options.and_then(|o| o.userns_options.as_ref()?.uids.first());
    if let Some(mapping) = mapping.filter(|m| m.container_id == 0 && m.length > 0) {
        return Some((mapping.host_id, mapping.length));
    }
    let info: Value = serde_json::from_str(answer.info.get("info")?).ok()?;
    let mapping = info.get("runtimeSpec")?.get("linux")?.get("uidMappings")?.get(0)?;
    let number = |name: &str| mapping.get(name).and_then(Value::as_u64).and_then(|n| u32::try_from(n).ok());
    (number("containerID") == Some(0)).then_some((number("hostID")?, number("size")?))
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
        let spaces = UserNamespaces::open(&root, UserIds::all(IDS_PER_POD), |d| panic!("{d}"));
        assert_eq!((first(&spaces, "a"), first(&spaces, "b"), first(&spaces, "a")), (65_536, 131_072, 65_536));
        let spaces = UserNamespaces::open(&root, UserIds::all(IDS_PER_POD), |d| panic!("{d}"));
        spaces.release("a");
        std::fs::create_dir_all(root.join("pods/c")).unwrap();
        assert_eq!((first(&spaces, "b"), first(&spaces, "c")), (131_072, 65_536));
        let _ = std::fs::remove_dir_all(&root);
    }

    #[test]
    fn pods_get_ids_only_of_what_the_node_gives_them() {
        let root = std::env::temp_dir().join(format!("userns-given-{}", std::process::id()));
        for uid in ["a", "b", "c"] {
            std::fs::create_dir_all(root.join("pods").join(uid)).unwrap();
        }
        let ids = UserIds { first: 196_608, length: 131_072, per_pod: 65_536 };
        let spaces = UserNamespaces::open(&root, ids, |d| panic!("{d}"));
        let first = |uid: &str| spaces.of(&pod(uid), "", &node(true)).map(|space| space.unwrap().uids[0].host_id);
        assert_eq!((first("a"), first("b")), (Ok(196_608), Ok(262_144)));
        assert_eq!(first("c"), Err("could not find an empty slot to allocate a user namespace".into()));
        spaces.release("a");
        assert_eq!(first("c"), Ok(196_608));
        let _ = std::fs::remove_dir_all(&root);
    }

    #[test]
    fn the_runtime_must_be_able_to() {
        let spaces = UserNamespaces::open(Path::new("/nowhere"), UserIds::all(IDS_PER_POD), |d| panic!("{d}"));
        let why = |handler: &str, node: &Node| spaces.of(&pod("a"), handler, node).unwrap_err();
        let not = "can't set `spec.hostUsers: false`,";
        let nobody = Node::default();
        assert_eq!(
            why("", &nobody),
            format!("{not} runtime does not support user namespaces: the handler \"\" is not known")
        );
        assert_eq!(why("", &node(false)), format!("{not} runtime does not support user namespaces"));
        assert_eq!(
            why("crun", &node(true)),
            format!(
                "{not} RuntimeClass handler \"crun\" does not support user namespaces: the handler \"crun\" is not known"
            )
        );
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
        let spaces = UserNamespaces::open(&root, UserIds::all(IDS_PER_POD), |_| told += 1);
        assert_eq!(told, damaged.len());
        assert!(root.join("pods/bad0/userns.corrupt").exists() && !root.join("pods/bad0/userns").exists());
        let taken = spaces.inner().take("other", 196_607, 65_536);
        assert!(taken.is_err_and(|why| why.contains("overlap those of another pod, from 131072 on")));
        // What runs has the ranges before and after the good pod's; nobody gets one before that is known.
        assert!(spaces.range("new").is_err());
        spaces.learn("bad0", Some((65_536, 65_536)));
        spaces.learn("bad1", None);
        spaces.learn("bad2", Some((131_072, 65_536)));
        spaces.release("bad3");
        assert_eq!(spaces.unknown().as_deref(), Some("bad4"));
        assert!(spaces.range("new").is_err());
        spaces.learn("bad4", Some((196_608, 65_536)));
        std::fs::create_dir_all(root.join("pods/new")).unwrap();
        assert_eq!((spaces.range("bad0"), spaces.range("new")), (Ok(65_536), Ok(262_144)));
        let spaces = UserNamespaces::open(&root, UserIds::all(IDS_PER_POD), |d| panic!("{d}"));
        assert_eq!((spaces.range("bad0"), spaces.range("bad4")), (Ok(65_536), Ok(196_608)));
        let _ = std::fs::remove_dir_all(&root);
    }

    #[test]
    fn a_sandbox_tells_its_range_in_its_status_or_its_configuration() {
        let mapping = cri::IdMapping { host_id: 131_072, container_id: 0, length: 65_536 };
        let namespace = cri::UserNamespace { mode: cri::NamespaceMode::Pod as i32, uids: vec![mapping], gids: vec![] };
        let options = cri::NamespaceOption { userns_options: Some(namespace), ..Default::default() };
        let linux = cri::LinuxPodSandboxStatus { namespaces: Some(cri::Namespace { options: Some(options) }) };
        let status = cri::PodSandboxStatus { linux: Some(linux), ..Default::default() };
        let mut answer = cri::PodSandboxStatusResponse { status: Some(status), ..Default::default() };
        assert_eq!(range_of_answer(&answer), Some((131_072, 65_536)));
        answer.status = Some(cri::PodSandboxStatus::default());
        assert_eq!(range_of_answer(&answer), None);
        let info =
            json!({"runtimeSpec": {"linux": {"uidMappings": [{"containerID": 0, "hostID": 65_536, "size": 65_536}]}}});
        answer.info.insert("info".into(), info.to_string());
        assert_eq!(range_of_answer(&answer), Some((65_536, 65_536)));
    }
}
