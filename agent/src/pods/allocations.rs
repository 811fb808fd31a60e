//! The agent's memory of allocations: what each pod was allocated, what its containers were given, and how a resize goes.
//!
//! The first two are kept in `allocated_pods_state` and `actuated_pods_state` below the root directory, in the kubelet's
//! form (JSON text and its checksum), so that a restart of the agent neither forgets a refused resize nor repeats one.
//! A file that cannot be used is set aside; the pods' specs then count as allocated.

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use proto::api::core::v1::{Pod, ResourceRequirements};
use proto::apimachinery::pkg::apis::meta::v1::Time;
use serde_json::{Map, Value, json};
use tokio::sync::Notify;

use crate::metrics;
use crate::pod::allocation::Allocation;
use crate::pod::hash::fnv1a_32;
use crate::pod::spec::PodExt;
use crate::state_file::{self, Damaged};
use crate::status::conditions::{RESIZE_IN_PROGRESS, RESIZE_PENDING};

use super::resizes::{DEFERRED, INFEASIBLE};

const REQUIREMENTS: &str = "k8s.io.api.core.v1.ResourceRequirements";
const ALLOCATED: &str = "allocated_pods_state";
const ACTUATED: &str = "actuated_pods_state";

type Entries = BTreeMap<String, Allocation>;

/// A resize that the node has not agreed to.
#[derive(Debug, Clone, PartialEq)]
pub struct Pending {
    /// `Deferred` or `Infeasible`.
    pub reason: &'static str,
    pub message: String,
    pub generation: i64,
    pub since: Time,
}

/// A resize under way.
#[derive(Debug, Clone, PartialEq)]
pub struct InProgress {
    pub generation: i64,
    /// What went wrong last.
    pub error: Option<String>,
    pub since: Time,
}

#[derive(Default)]
struct Inner {
    allocated: Entries,
    actuated: Entries,
    pending: HashMap<String, Pending>,
    in_progress: HashMap<String, InProgress>,
}

/// Shared by manager and workers.
pub struct Allocations {
    root: PathBuf,
    inner: Mutex<Inner>,
    changed: Notify,
}

impl Inner {
    /// Brings the metrics of resizes up to date.
    fn count_resizes(&self) {
        let mut waiting: BTreeMap<String, f64> = BTreeMap::new();
        for pending in self.pending.values() {
            *waiting.entry(pending.reason.to_ascii_lowercase()).or_default() += 1.0;
        }
        metrics::PENDING_RESIZES.set_all(waiting.into_iter().map(|(reason, count)| (vec![reason], count)));
        let under_way = u64::try_from(self.in_progress.len()).unwrap_or(u64::MAX);
        metrics::RESIZES_UNDER_WAY.set(&[], metrics::page::to_float(under_way));
    }
}

impl Allocations {
    /// Reads what an earlier agent left; tells of each file that had to be set aside.
    pub fn open(root: &Path, mut tell: impl FnMut(&Damaged)) -> Self {
        let mut read = |name: &str| {
            let path = root.join(name);
            read(&path).unwrap_or_else(|why| {
                tell(&state_file::set_aside(&path, why));
                Entries::new()
            })
        };
        let inner = Inner { allocated: read(ALLOCATED), actuated: read(ACTUATED), ..Inner::default() };
        Self { root: root.to_owned(), inner: Mutex::new(inner), changed: Notify::new() }
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn allocated(&self, uid: &str) -> Option<Allocation> {
        self.inner().allocated.get(uid).cloned()
    }

    pub fn allocate(&self, uid: &str, allocation: Allocation) {
        self.inner().allocated.insert(uid.to_owned(), allocation);
        self.changed.notify_one();
    }

    /// What the container was given last, by this agent or one before it.
    pub fn given(&self, uid: &str, container: &str) -> Option<ResourceRequirements> {
        self.inner().actuated.get(uid)?.containers.get(container).cloned()
    }

    pub fn give(&self, uid: &str, container: &str, resources: ResourceRequirements) {
        let mut inner = self.inner();
        inner.actuated.entry(uid.to_owned()).or_default().containers.insert(container.to_owned(), resources);
        drop(inner);
        self.changed.notify_one();
    }

    /// The pod with what it and its containers were given last in place of what they want; `None` where that is the same.
    pub fn given_to(&self, pod: &Pod) -> Option<Pod> {
        let mut given = self.inner().actuated.get(pod.uid()).cloned()?;
        // An earlier agent made no note of it.
        if given.pod.is_none() {
            given.pod.clone_from(&pod.spec().resources);
        }
        given.applied_to(pod)
    }

    /// What the pod as a whole was given last.
    pub fn given_pod(&self, uid: &str) -> Option<ResourceRequirements> {
        self.inner().actuated.get(uid)?.pod.clone()
    }

    pub fn give_pod(&self, uid: &str, resources: Option<ResourceRequirements>) {
        self.inner().actuated.entry(uid.to_owned()).or_default().pod = resources;
        self.changed.notify_one();
    }

    pub fn pending(&self, uid: &str) -> Option<Pending> {
        self.inner().pending.get(uid).cloned()
    }

    /// Whether this says something new.
    pub fn set_pending(&self, uid: &str, mut pending: Pending) -> bool {
        let mut inner = self.inner();
        if let Some(before) = inner.pending.get(uid) {
            if before.reason == pending.reason {
                pending.since = before.since;
            }
            if *before == pending {
                return false;
            }
        }
        inner.pending.insert(uid.to_owned(), pending);
        inner.count_resizes();
        true
    }

    /// Takes over what an earlier agent told of a pod's resizes, so that it is not told again. Whether one waits for room
    /// that the spec still asks for: there is no looking for that before all pods are known.
    pub fn recall(&self, pod: &Pod) -> bool {
        let (uid, mut waits) = (pod.uid(), false);
        let mut inner = self.inner();
        for told in pod.status.iter().flat_map(|s| &s.conditions).filter(|c| c.status == "True") {
            let since = told.last_transition_time.unwrap_or_default();
            let (generation, message) = (told.observed_generation, told.message.clone());
            match told.r#type.as_str() {
                RESIZE_PENDING => {
                    let Some(reason) = [DEFERRED, INFEASIBLE].into_iter().find(|r| *r == told.reason) else { continue };
                    waits |= reason == DEFERRED && generation == pod.meta().generation;
                    let pending = Pending { reason, message, generation, since };
                    inner.pending.entry(uid.to_owned()).or_insert(pending);
                }
                RESIZE_IN_PROGRESS => {
                    let error = (told.reason == "Error").then_some(message);
                    inner.in_progress.entry(uid.to_owned()).or_insert(InProgress { generation, error, since });
                }
                _ => continue,
            }
            inner.count_resizes();
        }
        waits
    }

    pub fn clear_pending(&self, uid: &str) -> bool {
        let mut inner = self.inner();
        let was_there = inner.pending.remove(uid).is_some();
        if was_there {
            inner.count_resizes();
        }
        was_there
    }

    /// Uids of pods whose resize waits for room, longest first.
    pub fn deferred(&self) -> Vec<String> {
        let inner = self.inner();
        let mut waiting: Vec<_> = inner.pending.iter().filter(|(_, p)| p.reason == "Deferred").collect();
        waiting.sort_by_key(|(_, p)| (p.since.seconds, p.since.nanos));
        waiting.into_iter().map(|(uid, _)| uid.clone()).collect()
    }

    pub fn in_progress(&self, uid: &str) -> Option<InProgress> {
        self.inner().in_progress.get(uid).cloned()
    }

    /// A resize of that generation begins; errors of an earlier one are forgotten.
    pub fn begin(&self, uid: &str, generation: i64, since: Time) {
        let begun = InProgress { generation, error: None, since };
        let mut inner = self.inner();
        inner.in_progress.insert(uid.to_owned(), begun);
        inner.count_resizes();
    }

    /// Notes what went wrong; whether that is news.
    pub fn fail(&self, uid: &str, generation: i64, error: &str, now: Time) -> bool {
        let mut inner = self.inner();
        let at = InProgress { generation, error: None, since: now };
        if !inner.in_progress.contains_key(uid) {
            inner.in_progress.insert(uid.to_owned(), at.clone());
            inner.count_resizes();
        }
        let entry = inner.in_progress.entry(uid.to_owned()).or_insert(at);
        if entry.error.as_deref() == Some(error) {
            return false;
        }
        entry.error = Some(error.to_owned());
        entry.since = now;
        true
    }

    /// The resize that ends here, if there was one.
    pub fn finish(&self, uid: &str) -> Option<InProgress> {
        let mut inner = self.inner();
        let ended = inner.in_progress.remove(uid);
        if ended.is_some() {
            inner.count_resizes();
        }
        ended
    }

    /// The pod is gone.
    pub fn forget(&self, uid: &str) {
        let mut inner = self.inner();
        if inner.pending.remove(uid).is_some() | inner.in_progress.remove(uid).is_some() {
            inner.count_resizes();
        }
        let known = inner.allocated.remove(uid).is_some() | inner.actuated.remove(uid).is_some();
        drop(inner);
        if known {
            self.changed.notify_one();
        }
    }

    /// Forgets pods of an earlier agent that are none any more.
    pub fn keep_only(&self, known: impl Fn(&str) -> bool) {
        let mut inner = self.inner();
        let before = inner.allocated.len() + inner.actuated.len();
        inner.allocated.retain(|uid, _| known(uid));
        inner.actuated.retain(|uid, _| known(uid));
        let after = inner.allocated.len() + inner.actuated.len();
        drop(inner);
        if before != after {
            self.changed.notify_one();
        }
    }

    /// Writes changes until dropped; several that come together are written once.
    pub async fn keep_written(self: Arc<Self>) {
        let mut written = (None, None);
        loop {
            self.changed.notified().await;
            let (allocated, actuated) = {
                let inner = self.inner();
                (encode(&inner.allocated), encode(&inner.actuated))
            };
            for (name, text, before) in [(ALLOCATED, allocated, &mut written.0), (ACTUATED, actuated, &mut written.1)] {
                if before.as_ref() == Some(&text) {
                    continue;
                }
                let (path, content) = (self.root.join(name), text.clone());
                match tokio::task::spawn_blocking(move || state_file::write(&path, content.as_bytes())).await {
                    Ok(Ok(())) => *before = Some(text),
                    Ok(Err(error)) => tracing::warn!(%error, name, "could not write a state file"),
                    Err(error) => tracing::warn!(%error, name, "could not write a state file"),
                }
            }
        }
    }
}

fn encode(entries: &Entries) -> String {
    let mut map = Map::new();
    for (uid, allocation) in entries {
        let containers: Map<String, Value> = allocation
            .containers
            .iter()
            .map(|(name, own)| (name.clone(), crate::wire_json::to_value(REQUIREMENTS, own)))
            .collect();
        let mut entry = json!({ "ContainerResources": containers });
        if let Some(whole) = &allocation.pod {
            entry["PodLevelResources"] = crate::wire_json::to_value(REQUIREMENTS, whole);
        }
        map.insert(uid.clone(), entry);
    }
    let data = json!({ "entries": map }).to_string();
    let checksum = checksum(&data);
    json!({ "data": data, "checksum": checksum }).to_string()
}

/// FNV-1a of the text as Go's spew prints it.
fn checksum(data: &str) -> u32 {
    fnv1a_32(format!("(string){data}").as_bytes())
}

fn read(path: &Path) -> Result<Entries, String> {
    let text = match std::fs::read_to_string(path) {
        Ok(text) => text,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Entries::new()),
        Err(e) => return Err(e.to_string()),
    };
    decode(&text)
}

fn decode(text: &str) -> Result<Entries, String> {
    let file: Value = serde_json::from_str(text).map_err(|e| e.to_string())?;
    let data = file.get("data").and_then(Value::as_str).ok_or("no data")?;
    if file.get("checksum").and_then(Value::as_u64) != Some(u64::from(checksum(data))) {
        return Err("the checksum does not fit".into());
    }
    let data: Value = serde_json::from_str(data).map_err(|e| e.to_string())?;
    let requirements = |value: &Value| {
        crate::wire_json::from_value::<ResourceRequirements>(REQUIREMENTS, value).map_err(|e| e.to_string())
    };
    let mut entries = Entries::new();
    for (uid, entry) in data.get("entries").and_then(Value::as_object).into_iter().flatten() {
        let mut allocation = Allocation::default();
        for (name, own) in entry.get("ContainerResources").and_then(Value::as_object).into_iter().flatten() {
            allocation.containers.insert(name.clone(), requirements(own)?);
        }
        if let Some(whole) = entry.get("PodLevelResources").filter(|v| !v.is_null()) {
            allocation.pod = Some(requirements(whole)?);
        }
        entries.insert(uid.clone(), allocation);
    }
    Ok(entries)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proto::api::core::v1::{PodCondition, PodStatus};
    use proto::apimachinery::pkg::api::resource::Quantity;

    fn entries() -> Entries {
        let list = [("cpu", "1Ki"), ("memory", "1Ki")];
        let requests = list.map(|(k, v)| (k.to_owned(), Quantity { string: v.to_owned() })).into();
        let own = ResourceRequirements { requests, ..Default::default() };
        let allocation = Allocation { containers: [("container1".to_owned(), own)].into(), pod: None };
        [("pod1".to_owned(), allocation)].into()
    }

    /// The kubelet's own checksum of this very content.
    #[test]
    fn the_file_is_the_kubelets() {
        let text = encode(&entries());
        let file: Value = serde_json::from_str(&text).unwrap();
        let data =
            r#"{"entries":{"pod1":{"ContainerResources":{"container1":{"requests":{"cpu":"1Ki","memory":"1Ki"}}}}}}"#;
        assert_eq!(file["data"], data);
        assert_eq!(file["checksum"], 1_178_570_812);
        assert_eq!(decode(&text).unwrap().keys().collect::<Vec<_>>(), ["pod1"]);
    }

    #[test]
    fn a_changed_file_is_not_believed() {
        let text = encode(&entries()).replace("1Ki", "2Ki");
        assert_eq!(decode(&text).unwrap_err(), "the checksum does not fit");
        assert!(decode("{").is_err());
    }

    #[test]
    fn damaged_files_are_set_aside_one_by_one() {
        let dir = std::env::temp_dir().join(format!("allocations-damaged-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let whole = encode(&entries());
        for text in [whole.replace("1Ki", "2Ki"), whole[..whole.len() / 2].to_owned(), String::new(), "[]".into()] {
            std::fs::write(dir.join(ALLOCATED), &text).unwrap();
            std::fs::write(dir.join(ACTUATED), &whole).unwrap();
            let mut told = Vec::new();
            let state = Allocations::open(&dir, |damaged| told.push(damaged.path.clone()));
            assert_eq!(told, [dir.join(ALLOCATED)]);
            assert!(state.allocated("pod1").is_none() && state.given("pod1", "container1").is_some());
            assert_eq!(std::fs::read_to_string(dir.join("allocated_pods_state.corrupt")).unwrap(), text);
        }
        std::fs::write(dir.join(ALLOCATED), [0xff, 0xfe]).unwrap();
        let mut told = 0;
        Allocations::open(&dir, |_| told += 1);
        assert_eq!(told, 1);
        std::fs::remove_dir_all(&dir).unwrap();
    }

    #[test]
    fn a_refusal_is_news_once_and_the_longest_wait_comes_first() {
        let dir = std::env::temp_dir().join(format!("allocations-{}", std::process::id()));
        let state = Allocations::open(&dir, |d| panic!("{d}"));
        let refusal = |reason, seconds| Pending {
            reason,
            message: "no room".into(),
            generation: 2,
            since: Time { seconds, nanos: 0 },
        };
        assert!(state.set_pending("b", refusal("Deferred", 2)));
        assert!(state.set_pending("a", refusal("Deferred", 1)));
        assert!(!state.set_pending("a", refusal("Deferred", 3)));
        assert!(state.set_pending("c", refusal("Infeasible", 0)));
        assert_eq!(state.deferred(), ["a", "b"]);
        assert!(state.fail("a", 2, "x", Time::default()) && !state.fail("a", 2, "x", Time::default()));
        state.forget("a");
        assert_eq!(state.deferred(), ["b"]);
        assert!(state.finish("a").is_none());
    }

    /// Every start of the agent told of each resize that waits anew, and since then.
    #[test]
    fn what_an_earlier_agent_told_is_no_news() {
        let dir = std::env::temp_dir().join(format!("recalled-{}", std::process::id()));
        let condition = |kind: &str, reason: &str, generation| PodCondition {
            r#type: kind.into(),
            status: "True".into(),
            reason: reason.into(),
            message: "no room".into(),
            observed_generation: generation,
            last_transition_time: Some(Time { seconds: 7, nanos: 0 }),
            ..Default::default()
        };
        let now = Time { seconds: 9, nanos: 1 };
        for (reason, generation, waits, news) in
            [("Deferred", 2, true, false), ("Deferred", 1, false, true), ("Infeasible", 2, false, false)]
        {
            let state = Allocations::open(&dir, |d| panic!("{d}"));
            let conditions =
                vec![condition(RESIZE_PENDING, reason, generation), condition(RESIZE_IN_PROGRESS, "Error", 2)];
            let status = PodStatus { conditions, ..Default::default() };
            let mut pod = Pod { status: Some(status), ..Default::default() };
            let meta = pod.metadata.get_or_insert_default();
            (meta.uid, meta.generation) = ("a".into(), 2);
            assert_eq!(state.recall(&pod), waits);
            let again = Pending { reason, message: "no room".into(), generation: 2, since: now };
            assert_eq!(state.set_pending("a", again), news);
            assert_eq!(state.pending("a").map(|p| p.since.seconds), Some(7));
            assert!(!state.fail("a", 2, "no room", now), "it was told of the error too");
        }
        assert!(!Allocations::open(&dir, |d| panic!("{d}")).recall(&Pod::default()));
    }
}
