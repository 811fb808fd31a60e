//! Taking volumes back: unpublish from the pod, unstage from the node when no pod has the volume any more.

use std::collections::HashMap;
use std::path::Path;
use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::future::join_all;
use futures_util::stream::FuturesUnordered;
use proto::csi::node_service_capability::rpc::Type as RpcType;
use proto::csi::{NodeUnpublishVolumeRequest, NodeUnstageVolumeRequest};
use tokio::time::Instant;

use crate::volumes::mount_table;

use super::data::{self, VolumeData};
use super::volumes::Volumes;

/// The kubelet's first and last wait between tries of the same step.
const FIRST_RETRY: Duration = Duration::from_millis(500);
const LAST_RETRY: Duration = Duration::from_secs(122);
/// So many volumes of one driver are unstaged at once that no pod has: after a start there may be hundreds.
const AT_ONCE: usize = 10;

impl Volumes {
    /// Takes all volumes of drivers from a pod. What lies on disk counts, not what this run of the agent knows.
    ///
    /// # Errors
    /// The first driver that does not do its part; the others' volumes are taken all the same. To be tried again.
    pub async fn tear_down(&self, uid: &str) -> Result<(), String> {
        self.deps.drivers.usages.forget(uid);
        let folders = data::entries(&self.places.of_pod(uid)).into_iter().map(async |folder| {
            let taken = self.take(uid, &folder).await;
            taken.map_err(|why| format!("UnmountVolume.TearDown failed for {}: {why}", folder.display()))
        });
        let links = data::entries(&self.places.devices_of_pod(uid)).into_iter().map(async |link| {
            let taken = self.take_block(uid, &link).await;
            taken.map_err(|why| format!("UnmapVolume failed for {}: {why}", link.display()))
        });
        // None waits for the answers that another's driver owes.
        let (folders, links) = tokio::join!(join_all(folders), join_all(links));
        folders.into_iter().chain(links).collect()
    }

    async fn take(&self, uid: &str, folder: &Path) -> Result<(), String> {
        let target = folder.join("mount");
        // Nothing was written: no driver was called for it. The rest is what any volume leaves behind.
        let Some(volume) = data::read(folder) else { return Ok(()) };
        let turn = self.turn(&volume.driver_name, &volume.volume_handle);
        let _turn = turn.lock().await;
        let driver = self.deps.drivers.get(&volume.driver_name).map_err(|e| e.to_string())?;
        let request = NodeUnpublishVolumeRequest {
            volume_id: volume.volume_handle.clone(),
            target_path: target.display().to_string(),
        };
        driver.unpublish(request).await.map_err(|e| e.to_string())?;
        // A driver that leaves its mount behind must not keep the pod, nor lose what is in it.
        mount_table::unmount_below(&target)?;
        data::gone(std::fs::remove_dir(&target), &target)?;
        let name = folder.file_name().and_then(|n| n.to_str()).unwrap_or_default();
        self.forget(uid, name);
        data::remove(folder)?;
        if volume.volume_lifecycle_mode != "Ephemeral" {
            let unstaged = self.unstage_unused(&volume).await;
            self.or_later(&volume, unstaged);
        }
        Ok(())
    }

    /// A pod is over once the volume is not its own any more; what fails after that is tried again by [`Self::sweep`], and
    /// until then the volume counts as used by the node.
    pub(super) fn or_later(&self, volume: &VolumeData, unstaged: Result<(), String>) {
        if let Err(why) = unstaged {
            cannot_unstage(volume, &why);
            self.left.notify_one();
        }
    }

    /// To be called in the volume's turn.
    async fn unstage_unused(&self, volume: &VolumeData) -> Result<(), String> {
        let (name, handle) = (&volume.driver_name, &volume.volume_handle);
        if self.places.has_user(name, handle) {
            return Ok(());
        }
        let folder = self.places.staged(name, handle);
        if data::read(&folder).is_some() {
            let staging = folder.join("globalmount");
            let driver = self.deps.drivers.get(name).map_err(|e| e.to_string())?;
            if driver.capabilities().await.map_err(|e| e.to_string())?.has(RpcType::StageUnstageVolume) {
                let request = NodeUnstageVolumeRequest {
                    volume_id: handle.clone(),
                    staging_target_path: staging.display().to_string(),
                };
                driver.unstage(request).await.map_err(|e| format!("UnmountDevice failed: {e}"))?;
            }
            mount_table::unmount_below(&staging)?;
            data::gone(std::fs::remove_dir(&staging), &staging)?;
            data::remove(&folder)?;
        }
        self.note_unused(name, handle);
        Ok(())
    }

    /// Unstages what no pod has: what a driver refused to, or what an agent that was killed between the two steps left.
    /// Looks whenever a driver registers or a volume is left behind, and tries each volume again and again for as long as it
    /// fails. A driver that does not answer about some holds up no other driver's, and its own others only when there are many.
    /// Until dropped.
    pub async fn sweep(&self) {
        let mut arrivals = self.deps.drivers.arrivals();
        let mut tries = HashMap::new();
        let mut working = FuturesUnordered::new();
        self.look(&mut tries, Instant::now());
        loop {
            while let Some(staged) = next_due(&mut tries) {
                working.push(async move {
                    let unstaged = self.unstage_if_here(&staged).await;
                    (staged, unstaged)
                });
            }
            let next = startable(&tries).filter_map(|(_, again)| again.next).min();
            tokio::select! {
                arrived = arrivals.changed() => {
                    if arrived.is_err() {
                        return;
                    }
                    let now = Instant::now();
                    tries.values_mut().filter_map(|again: &mut Again| again.next.as_mut()).for_each(|next| *next = now);
                    self.look(&mut tries, now);
                }
                () = self.left.notified() => self.look(&mut tries, Instant::now() + FIRST_RETRY),
                Some((staged, unstaged)) = working.next() => {
                    if let Err(why) = &unstaged {
                        cannot_unstage(staged.volume(), why);
                    }
                    if let Some(again) = tries.get_mut(&staged)
                        && !again.is_due_after(unstaged.is_ok(), Instant::now())
                    {
                        tries.remove(&staged);
                    }
                }
                () = tokio::time::sleep_until(next.unwrap_or_else(Instant::now)), if next.is_some() => {}
            }
        }
    }

    /// Notes what lies on disk to be tried; what is known already keeps its time, and what is being tried is tried once more.
    fn look(&self, tries: &mut HashMap<Staged, Again>, first: Instant) {
        let files = self.places.all_staged().into_iter().map(|(_, volume)| Staged::Files(volume));
        let blocks = self.places.all_blocks().into_iter().map(|(name, volume)| Staged::Block(name, volume));
        for staged in files.chain(blocks) {
            let again = tries.entry(staged).or_insert_with(|| Again::at(first));
            again.once_more |= again.next.is_none();
        }
    }

    /// Of drivers that are not here nothing is unstaged: they are heard of when they come.
    async fn unstage_if_here(&self, staged: &Staged) -> Result<(), String> {
        let volume = staged.volume();
        if self.deps.drivers.get(&volume.driver_name).is_err() {
            return Ok(());
        }
        let turn = self.turn(&volume.driver_name, &volume.volume_handle);
        let _turn = turn.lock().await;
        match staged {
            Staged::Files(volume) => self.unstage_unused(volume).await,
            // The name may have become another volume's since it was read.
            Staged::Block(name, volume) if data::read(&self.places.block_data(name)).as_ref() != Some(volume) => Ok(()),
            Staged::Block(name, volume) => self.unstage_unused_block(name, volume).await,
        }
    }
}

/// What may be to be unstaged.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Staged {
    Files(VolumeData),
    /// By the name of the device's folder.
    Block(String, VolumeData),
}

impl Staged {
    fn volume(&self) -> &VolumeData {
        match self {
            Self::Files(volume) | Self::Block(_, volume) => volume,
        }
    }
}

/// When something is tried again, unless it is being tried; and how long after that if that fails.
#[derive(Debug)]
struct Again {
    next: Option<Instant>,
    wait: Duration,
    /// It was found, or left behind, while it was being tried: that may have come too early for it.
    once_more: bool,
}

impl Again {
    fn at(first: Instant) -> Self {
        Self { next: Some(first), wait: FIRST_RETRY, once_more: false }
    }

    /// Whether it is to be tried again after a try that ended now.
    fn is_due_after(&mut self, done: bool, now: Instant) -> bool {
        if done && !std::mem::take(&mut self.once_more) {
            return false;
        }
        if done {
            self.wait = FIRST_RETRY;
        }
        self.once_more = false;
        self.next = Some(now + self.wait);
        self.wait = (self.wait * 2).min(LAST_RETRY);
        true
    }
}

/// What may be tried, now or later: what waits for its time, unless its driver has enough to do.
fn startable(tries: &HashMap<Staged, Again>) -> impl Iterator<Item = (&Staged, &Again)> {
    let mut busy: HashMap<&str, usize> = HashMap::new();
    for (staged, _) in tries.iter().filter(|(_, again)| again.next.is_none()) {
        *busy.entry(&staged.volume().driver_name).or_default() += 1;
    }
    let has_room = move |staged: &Staged| busy.get(&*staged.volume().driver_name).is_none_or(|count| *count < AT_ONCE);
    tries.iter().filter(move |(staged, again)| again.next.is_some() && has_room(staged))
}

/// The next to be tried now.
fn next_due(tries: &mut HashMap<Staged, Again>) -> Option<Staged> {
    let now = Instant::now();
    let due = startable(tries).filter(|(_, again)| again.next.is_some_and(|next| next <= now));
    let staged = due.min_by_key(|(_, again)| again.next)?.0.clone();
    if let Some(again) = tries.get_mut(&staged) {
        again.next = None;
    }
    Some(staged)
}

fn cannot_unstage(volume: &VolumeData, why: &str) {
    let (driver, handle) = (&volume.driver_name, &volume.volume_handle);
    tracing::warn!(why, driver, handle, "cannot unstage a volume that no pod has; trying again");
}

#[cfg(test)]
mod tests {
    use super::*;

    fn staged(driver: &str, handle: &str) -> Staged {
        Staged::Files(VolumeData { driver_name: driver.into(), volume_handle: handle.into(), ..VolumeData::default() })
    }

    /// After a start all that was left was asked of a driver at once, however much that was.
    #[tokio::test(start_paused = true)]
    async fn a_driver_has_so_much_to_do_at_once_and_holds_up_no_other() {
        let mut tries = HashMap::new();
        for number in 0..3 * AT_ONCE {
            tries.insert(staged("busy", &number.to_string()), Again::at(Instant::now()));
        }
        let taken = |tries: &mut HashMap<_, _>| std::iter::from_fn(|| next_due(tries)).collect::<Vec<_>>();
        let first = taken(&mut tries);
        assert_eq!(first.len(), AT_ONCE);
        assert_eq!(startable(&tries).count(), 0, "there is nothing to wait for but the driver");
        tries.insert(staged("other", "a"), Again::at(Instant::now()));
        assert_eq!(taken(&mut tries), [staged("other", "a")]);
        tries.remove(&first[0]);
        assert_eq!((taken(&mut tries).len(), startable(&tries).count()), (1, 0));
    }

    /// A volume that was left behind while it was being looked at was forgotten with that look, which had still found a pod
    /// that had it.
    #[tokio::test(start_paused = true)]
    async fn what_is_left_while_it_is_tried_is_tried_once_more() {
        let now = Instant::now();
        let mut again = Again::at(now);
        assert!(!again.is_due_after(true, now));
        (again.next, again.once_more) = (None, true);
        assert!(again.is_due_after(true, now) && again.next == Some(now + FIRST_RETRY));
        assert!(!again.is_due_after(true, now), "it was tried once more");
        let mut again = Again::at(now);
        assert!(again.is_due_after(false, now) && again.is_due_after(false, now));
        assert_eq!(again.next, Some(now + 2 * FIRST_RETRY));
    }
}
