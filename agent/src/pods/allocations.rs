//! The agent's memory of allocations: what each pod was allocated, what its containers were given, and how a resize goes.
//!
//! The first two are kept in `allocated_pods_state` and `actuated_pods_state` below the root directory, in the kubelet's
//! form (JSON text and its checksum), so that a restart of the agent neither forgets a refused resize nor repeats one.
//! A file that cannot be used is set aside; the pods' specs then count as allocated.
//!
//! A change is written at once when nothing was written for a fifth of a second, and then, like all that have come
//! meanwhile, when that has passed; what changes an amount that was noted before, as resizes do, waits for nothing. So what
//! an agent that is killed may have failed to note are pods that came less than a fifth of a second before, amid others.
//! Their specs count as allocated then, which is what they were allocated; a container that was started and not noted has
//! what its pod was allocated. Pods that had gone in that time are forgotten by the next agent's first sweep.

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use proto::api::core::v1::{Pod, ResourceRequirements};
use proto::apimachinery::pkg::apis::meta::v1::Time;
use serde_json::{Map, Value, json};
use tokio::sync::Notify;
use tokio::time::Instant;

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

/// Files are not written more often than this, but for resizes.
const PACE: Duration = Duration::from_millis(200);

type Entries = BTreeMap<String, Allocation>;

/// What one file says.
#[derive(Default)]
struct Table {
    entries: Entries,
    /// The entries as they are written, as far as they have not changed since.
    texts: HashMap<String, String>,
    /// The file says something else.
    changed: bool,
}

impl Table {
    fn get(&self, uid: &str) -> Option<&Allocation> {
        self.entries.get(uid)
    }

    fn touch(&mut self, uid: &str) {
        self.texts.remove(uid);
        self.changed = true;
    }

    fn remove(&mut self, uid: &str) {
        if self.entries.remove(uid).is_some() {
            self.touch(uid);
        }
    }

    fn keep_only(&mut self, known: impl Fn(&str) -> bool) {
        let before = self.entries.len();
        self.entries.retain(|uid, _| known(uid));
        self.texts.retain(|uid, _| known(uid));
        self.changed |= self.entries.len() != before;
    }

    /// The text of the file, if it is not what was last taken.
    fn take_changed(&mut self) -> Option<String> {
        std::mem::take(&mut self.changed).then(|| encode(&self.entries, &mut self.texts))
    }
}

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
    allocated: Table,
    actuated: Table,
    pending: HashMap<String, Pending>,
    in_progress: HashMap<String, InProgress>,
}

/// Shared by manager and workers.
pub struct Allocations {
    root: PathBuf,
    inner: Mutex<Inner>,
    changed: Notify,
    /// What changed cannot wait.
    urgent: Notify,
    /// Held while the files are written: what is written last is what was so last.
    writing: Mutex<()>,
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
        let (allocated, mut actuated) = (read(ALLOCATED), read(ACTUATED));
        // An agent that was killed may have started a container and not noted it. It was given what was allocated.
        for (uid, allocation) in &allocated {
            let given = actuated.entry(uid.clone()).or_default();
            for (name, own) in &allocation.containers {
                given.containers.entry(name.clone()).or_insert_with(|| own.clone());
            }
            if given.pod.is_none() {
                given.pod.clone_from(&allocation.pod);
            }
        }
        let table = |entries| Table { entries, ..Table::default() };
        let inner = Inner { allocated: table(allocated), actuated: table(actuated), ..Inner::default() };
        Self {
            root: root.to_owned(),
            inner: Mutex::new(inner),
            changed: Notify::new(),
            urgent: Notify::new(),
            writing: Mutex::default(),
        }
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn allocated(&self, uid: &str) -> Option<Allocation> {
        self.inner().allocated.get(uid).cloned()
    }

    /// The pod with what it is allocated in place of what it wants; `None` where that is the same.
    pub fn allocated_to(&self, pod: &Pod) -> Option<Pod> {
        // The pod is copied after the lock is given back: it is larger by far than what it is allocated.
        let allocated = self.allocated(pod.uid())?;
        allocated.applied_to(pod)
    }

    pub fn allocate(&self, uid: &str, allocation: Allocation) {
        let mut inner = self.inner();
        let before = inner.allocated.get(uid);
        let (same, is_new) = (before == Some(&allocation), before.is_none());
        if same {
            return;
        }
        inner.allocated.entries.insert(uid.to_owned(), allocation);
        inner.allocated.touch(uid);
        drop(inner);
        self.tell(is_new);
    }

    /// Allocates what a resize asks for. Where nobody has noted what the pod as a whole was given, it was what it had been
    /// allocated, or nothing: with no note of it, it would pass for resized.
    pub fn resize(&self, uid: &str, allocation: Allocation) {
        if allocation.pod.is_some() && self.given_pod(uid).is_none() {
            let had = self.allocated(uid).and_then(|before| before.pod).unwrap_or_default();
            self.give_pod(uid, Some(had));
        }
        self.allocate(uid, allocation);
    }

    /// There is something to write; what `may_wait` is a pod that comes or goes.
    fn tell(&self, may_wait: bool) {
        if !may_wait {
            self.urgent.notify_one();
        }
        self.changed.notify_one();
    }

    /// What the container was given last, by this agent or one before it.
    pub fn given(&self, uid: &str, container: &str) -> Option<ResourceRequirements> {
        self.inner().actuated.get(uid)?.containers.get(container).cloned()
    }

    pub fn give(&self, uid: &str, container: &str, resources: ResourceRequirements) {
        let mut inner = self.inner();
        let given = inner.actuated.entries.entry(uid.to_owned()).or_default();
        let before = given.containers.insert(container.to_owned(), resources);
        if before.as_ref() == given.containers.get(container) {
            return;
        }
        inner.actuated.touch(uid);
        drop(inner);
        self.tell(before.is_none());
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
        let mut inner = self.inner();
        let given = inner.actuated.entries.entry(uid.to_owned()).or_default();
        let before = std::mem::replace(&mut given.pod, resources);
        if before == given.pod {
            return;
        }
        inner.actuated.touch(uid);
        drop(inner);
        self.tell(before.is_none());
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
        inner.allocated.remove(uid);
        inner.actuated.remove(uid);
        self.tell_of(inner);
    }

    /// Forgets pods of an earlier agent that are none any more.
    pub fn keep_only(&self, known: impl Fn(&str) -> bool) {
        let mut inner = self.inner();
        inner.allocated.keep_only(&known);
        inner.actuated.keep_only(&known);
        self.tell_of(inner);
    }

    /// Pods may have gone.
    fn tell_of(&self, inner: MutexGuard<'_, Inner>) {
        let changed = inner.allocated.changed || inner.actuated.changed;
        drop(inner);
        if changed {
            self.tell(true);
        }
    }

    /// Writes changes until dropped, and then what is left; several that come together are written once.
    pub async fn keep_written(self: Arc<Self>) {
        let _at_the_end = WritesAtTheEnd(self.clone());
        let mut due = Instant::now();
        loop {
            self.changed.notified().await;
            tokio::select! {
                () = tokio::time::sleep_until(due) => {}
                () = self.urgent.notified() => {}
            }
            let state = self.clone();
            if let Err(error) = tokio::task::spawn_blocking(move || state.write()).await {
                tracing::warn!(%error, "could not write the state of allocations");
            }
            due = Instant::now() + PACE;
        }
    }

    /// Writes what has changed, and returns when the disk has it. What cannot be written is tried again with the next
    /// change.
    pub fn write(&self) {
        let _turn = self.writing.lock().unwrap_or_else(PoisonError::into_inner);
        let (allocated, actuated) = {
            let mut inner = self.inner();
            (inner.allocated.take_changed(), inner.actuated.take_changed())
        };
        // What a pod has been given first: where nothing says so, it counts as what it was allocated.
        for (name, text) in [(ACTUATED, actuated), (ALLOCATED, allocated)] {
            let Some(text) = text else { continue };
            if let Err(error) = state_file::write(&self.root.join(name), text.as_bytes()) {
                tracing::warn!(%error, name, "could not write a state file");
                let mut inner = self.inner();
                inner.allocated.changed = true;
                inner.actuated.changed |= name == ACTUATED;
                break;
            }
        }
    }
}

/// The agent may stop before the time for the next write has come.
struct WritesAtTheEnd(Arc<Allocations>);

impl Drop for WritesAtTheEnd {
    fn drop(&mut self) {
        self.0.write();
    }
}

/// The text of a file. `texts` are its entries as they were written before, and after this as they are.
fn encode(entries: &Entries, texts: &mut HashMap<String, String>) -> String {
    let mut data = String::from("{\"entries\":{");
    for (place, (uid, allocation)) in entries.iter().enumerate() {
        let text = match texts.get(uid) {
            Some(text) => text,
            None => texts.entry(uid.clone()).or_insert_with(|| encode_entry(allocation)),
        };
        if place > 0 {
            data.push(',');
        }
        data.push_str(&Value::from(uid.as_str()).to_string());
        data.push(':');
        data.push_str(text);
    }
    data.push_str("}}");
    let checksum = checksum(&data);
    json!({ "data": data, "checksum": checksum }).to_string()
}

fn encode_entry(allocation: &Allocation) -> String {
    let containers: Map<String, Value> = allocation
        .containers
        .iter()
        .map(|(name, own)| (name.clone(), crate::wire_json::to_value(REQUIREMENTS, own)))
        .collect();
    let mut entry = json!({ "ContainerResources": containers });
    if let Some(whole) = &allocation.pod {
        entry["PodLevelResources"] = crate::wire_json::to_value(REQUIREMENTS, whole);
    }
    entry.to_string()
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
            allocation.containers.insert(name.to_string(), requirements(own)?);
        }
        if let Some(whole) = entry.get("PodLevelResources").filter(|v| !v.is_null()) {
            allocation.pod = Some(requirements(whole)?);
        }
        entries.insert(uid.to_string(), allocation);
    }
    Ok(entries)
}

#[cfg(test)]
mod tests;
