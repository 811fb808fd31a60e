//! How full the volumes of drivers are, and whether they are well: asked of the drivers every so often, kept for whoever
//! wants to know. Claims on disks and shares that no driver has made are in the same metrics; of those the file system
//! tells, and who asks for the node's summary looks at it himself.
//!
//! A driver that hangs or keeps no statistics costs nobody else anything; its volumes are absent then. A file system that
//! hangs holds one thread, and what it said last goes on to hold.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::future::join_all;
use proto::csi::node_service_capability::rpc::Type as RpcType;
use proto::csi::volume_usage::Unit;
use proto::csi::{NodeGetVolumeStatsRequest, VolumeCondition, VolumeUsage};
use tokio::sync::watch;
use tokio::task::JoinSet;

use super::Drivers;
use crate::metrics;
use crate::node::Slow;

/// Who knows how full a volume is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Teller {
    Driver {
        driver: String,
        handle: String,
        /// Empty for a volume that is not staged.
        staging: PathBuf,
    },
    /// The one that is mounted at its path.
    FileSystem,
}

/// A volume that a pod has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Held {
    pub teller: Teller,
    pub path: PathBuf,
    /// Namespace and name.
    pub claim: Option<(String, String)>,
}

/// Bytes or inodes of a volume.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Amount {
    pub available: u64,
    pub total: u64,
    pub used: u64,
}

/// How full a volume is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Usage {
    pub claim: Option<(String, String)>,
    pub bytes: Amount,
    pub inodes: Amount,
    /// What the driver finds of its condition, where it looks and somebody wants to know.
    pub condition: Option<VolumeCondition>,
}

/// A volume that is not well: uid of the pod, the volume as the pod names it, and what the driver says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Abnormal {
    pub uid: String,
    pub volume: String,
    pub message: String,
}

/// Is told of volumes that are not well, as often as they are asked for.
pub type TellAbnormal = Box<dyn Fn(Vec<Abnormal>) + Send + Sync>;

/// Pod uid and volume, as the pod names it.
type Key = (String, String);

/// The volumes of pods, and what their drivers last said of them.
#[derive(Default)]
pub struct Usages {
    held: watch::Sender<Arc<BTreeMap<Key, Held>>>,
    told: Mutex<BTreeMap<Key, Usage>>,
}

impl Usages {
    fn told(&self) -> MutexGuard<'_, BTreeMap<Key, Usage>> {
        self.told.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A pod has a volume.
    pub fn note(&self, uid: &str, name: &str, held: Held) {
        let key = (uid.to_owned(), name.to_owned());
        self.held.send_if_modified(|all| {
            if all.get(&key) == Some(&held) {
                return false;
            }
            Arc::make_mut(all).insert(key, held);
            true
        });
    }

    /// A pod has no volumes any more.
    pub fn forget(&self, uid: &str) {
        self.held.send_if_modified(|all| {
            let known = all.keys().any(|(pod, _)| pod == uid);
            if known {
                Arc::make_mut(all).retain(|(pod, _), _| pod != uid);
            }
            known
        });
        self.told().retain(|(pod, _), _| pod != uid);
    }

    /// Those volumes of a pod of which the file system tells, by their places: what the pod calls them, and their claims.
    pub fn file_systems_of_pod(&self, uid: &str) -> BTreeMap<PathBuf, (String, Option<(String, String)>)> {
        let held = self.held.borrow();
        let theirs = held.iter().filter(|((pod, _), held)| pod == uid && held.teller == Teller::FileSystem);
        theirs.map(|((_, name), held)| (held.path.clone(), (name.clone(), held.claim.clone()))).collect()
    }

    /// What drivers told of a pod's volumes, by name.
    pub fn of_pod(&self, uid: &str) -> Vec<(String, Usage)> {
        let told = self.told();
        let theirs = told.iter().filter(|((pod, _), _)| pod == uid);
        theirs.map(|((_, name), usage)| (name.clone(), usage.clone())).collect()
    }

    /// Asks drivers and file systems every `period` until dropped; not at all for none, and not while there is nothing to ask
    /// for. Of the condition of volumes only where there is `tell` to tell of it (`CSIVolumeHealth`).
    pub async fn keep(&self, drivers: &Drivers, period: Duration, tell: Option<TellAbnormal>) {
        if period.is_zero() {
            return;
        }
        let mut held = self.held.subscribe();
        let mut file_systems = FileSystems::new();
        while held.wait_for(|all| !all.is_empty()).await.is_ok() {
            let volumes = held.borrow_and_update().clone();
            let mut asking = JoinSet::new();
            for (key, volume) in volumes.iter() {
                let Teller::Driver { driver, .. } = &volume.teller else { continue };
                let (key, volume, driver) = (key.clone(), volume.clone(), drivers.get(driver));
                let health = tell.is_some();
                asking.spawn(async move { Some((key, ask(driver.ok()?, volume, health).await?)) });
            }
            let mut fresh = BTreeMap::new();
            let asked = async {
                while let Some(answer) = asking.join_next().await {
                    fresh.extend(answer.ok().flatten());
                }
            };
            // Whoever has not answered by the next round is left out of this one.
            let asked = tokio::time::timeout(period, asked);
            let (_, of_file_systems) = tokio::join!(asked, look(&mut file_systems, &volumes));
            let now = held.borrow().clone();
            fresh.retain(|key, _| now.contains_key(key));
            let all = fresh.iter().chain(of_file_systems.iter().filter(|(key, _)| now.contains_key(*key)));
            show(all.map(|(_, usage)| usage));
            if let Some(tell) = &tell {
                tell(abnormal(&fresh));
            }
            *self.told() = fresh;
            tokio::time::sleep(period).await;
            if held.borrow().is_empty() {
                // Nobody is asked before there is a volume again, and what was told is over.
                show(std::iter::empty());
            }
        }
    }
}

/// Bytes and inodes of a file system.
type Amounts = (Amount, Amount);
/// The looks at file systems, by volume.
type FileSystems = BTreeMap<Key, Slow<Option<Amounts>>>;

/// Looks at those of the volumes of which the file system tells, all at once and for no longer than a moment.
async fn look(file_systems: &mut FileSystems, volumes: &BTreeMap<Key, Held>) -> BTreeMap<Key, Usage> {
    let wanted = |key: &Key| volumes.get(key).filter(|held| held.teller == Teller::FileSystem);
    file_systems.retain(|key, _| wanted(key).is_some());
    for key in volumes.keys().filter(|key| wanted(key).is_some()) {
        file_systems.entry(key.clone()).or_default();
    }
    let looks = file_systems.iter_mut().map(async |(key, slow)| {
        let held = wanted(key)?;
        let path = held.path.clone();
        let (bytes, inodes) = (*slow.ask(move || amounts(&path)).await?)?;
        Some((key.clone(), Usage { claim: held.claim.clone(), bytes, inodes, condition: None }))
    });
    join_all(looks).await.into_iter().flatten().collect()
}

/// What the file system at a path says. Blocks.
fn amounts(path: &Path) -> Option<Amounts> {
    let _timer = metrics::VOLUME_LOOKS.time(&["statfs"]);
    let found = nix::sys::statvfs::statvfs(path).ok()?;
    let bytes = |blocks: u64| blocks.saturating_mul(found.fragment_size());
    let used = |all: u64, free: u64| all.saturating_sub(free);
    Some((
        Amount {
            available: bytes(found.blocks_available()),
            total: bytes(found.blocks()),
            used: bytes(used(found.blocks(), found.blocks_free())),
        },
        Amount { available: found.files_free(), total: found.files(), used: used(found.files(), found.files_free()) },
    ))
}

fn abnormal(usages: &BTreeMap<Key, Usage>) -> Vec<Abnormal> {
    let found = usages.iter().filter_map(|((uid, volume), usage)| {
        let condition = usage.condition.as_ref().filter(|condition| condition.abnormal)?;
        Some(Abnormal { uid: uid.clone(), volume: volume.clone(), message: condition.message.clone() })
    });
    found.collect()
}

/// `None` where the driver does not tell. `health`: of the condition too.
async fn ask(driver: super::Driver, volume: Held, health: bool) -> Option<Usage> {
    let Teller::Driver { driver: name, handle, staging } = volume.teller else { return None };
    let capabilities = driver.capabilities().await.ok()?;
    if !capabilities.has(RpcType::GetVolumeStats) {
        return None;
    }
    let health = health && capabilities.has(RpcType::VolumeCondition);
    let labels = [name.as_str()];
    let request = NodeGetVolumeStatsRequest {
        volume_id: handle,
        volume_path: volume.path.display().to_string(),
        staging_target_path: staging.display().to_string(),
    };
    let timer = metrics::VOLUME_LOOKS.time(&labels);
    let answer = driver.stats(request).await;
    drop(timer);
    match answer {
        Ok(answer) => {
            let of = |unit: Unit| answer.usage.iter().find(|u| u.unit() == unit).map(amount).unwrap_or_default();
            let (bytes, inodes) = (of(Unit::Bytes), of(Unit::Inodes));
            // A driver that looks and says nothing has found nothing.
            let condition = health.then(|| answer.volume_condition.unwrap_or_default());
            Some(Usage { claim: volume.claim, bytes, inodes, condition })
        }
        Err(error) => {
            tracing::debug!(%error, driver = name, "a driver does not tell how full a volume is");
            None
        }
    }
}

fn amount(usage: &VolumeUsage) -> Amount {
    let positive = |n: i64| u64::try_from(n).unwrap_or(0);
    Amount { available: positive(usage.available), total: positive(usage.total), used: positive(usage.used) }
}

/// What a family shows of a volume.
type Of = fn(&Usage) -> u64;

/// `kubelet_volume_stats_*`, of volumes with a claim.
fn show<'a>(usages: impl Iterator<Item = &'a Usage> + Clone) {
    let families: [(&metrics::Family, Of); 6] = [
        (&metrics::VOLUME_CAPACITY, |u| u.bytes.total),
        (&metrics::VOLUME_AVAILABLE, |u| u.bytes.available),
        (&metrics::VOLUME_USED, |u| u.bytes.used),
        (&metrics::VOLUME_INODES, |u| u.inodes.total),
        (&metrics::VOLUME_INODES_FREE, |u| u.inodes.available),
        (&metrics::VOLUME_INODES_USED, |u| u.inodes.used),
    ];
    for (family, of) in families {
        // A claim of several pods counts once.
        let series: BTreeMap<Vec<String>, f64> = usages
            .clone()
            .filter_map(|u| {
                let (namespace, name) = u.claim.clone()?;
                Some((vec![namespace, name], metrics::page::to_float(of(u))))
            })
            .collect();
        family.set_all(series);
    }
    let health = usages.filter_map(|u| {
        let (namespace, name) = u.claim.clone()?;
        Some((vec![namespace, name], f64::from(u8::from(u.condition.as_ref()?.abnormal))))
    });
    metrics::VOLUME_ABNORMAL.set_all(health.collect::<BTreeMap<Vec<String>, f64>>());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_pod_had_goes_with_it() {
        let usages = Usages::default();
        let teller = Teller::Driver { driver: "d".into(), handle: "h".into(), staging: PathBuf::new() };
        let held = Held { teller, path: "/p".into(), claim: None };
        usages.note("u1", "v", held.clone());
        usages.note("u2", "v", held);
        let bytes = Amount { used: 1, ..Amount::default() };
        let usage = Usage { claim: None, bytes, inodes: Amount::default(), condition: None };
        usages.told().insert(("u1".into(), "v".into()), usage.clone());
        assert_eq!(usages.of_pod("u1"), [("v".to_owned(), usage)]);
        usages.forget("u1");
        assert!(usages.of_pod("u1").is_empty());
        assert_eq!(usages.held.borrow().len(), 1);
    }

    #[test]
    fn less_than_nothing_is_nothing() {
        let usage = VolumeUsage { available: -1, total: 5, used: 2, unit: 1 };
        assert_eq!(amount(&usage), Amount { available: 0, total: 5, used: 2 });
    }

    /// Only claims on volumes of drivers were in the metrics.
    #[tokio::test]
    async fn claims_on_file_systems_are_in_the_metrics_and_who_wants_to_know_more_looks_himself() {
        let usages = Usages::default();
        let path = std::env::temp_dir();
        let claim = Some(("ns".to_owned(), "disk".to_owned()));
        let held = |path: &Path| Held { teller: Teller::FileSystem, path: path.to_owned(), claim: claim.clone() };
        usages.note("u1", "data", held(&path));
        usages.note("u1", "gone", held(Path::new("/no/such/place")));
        let drivers = Drivers::default();
        let keeping = usages.keep(&drivers, Duration::from_millis(20), None);
        let shown = async |is_shown: bool| {
            while metrics::VOLUME_CAPACITY.is_used() != is_shown {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        let mut keeping = Box::pin(keeping);
        tokio::select! {
            () = &mut keeping => unreachable!("it is kept for as long as there are volumes"),
            () = shown(true) => {}
        }
        let shown_page = metrics::VOLUME_CAPACITY.snapshot().into_iter().collect::<Vec<_>>();
        let page = String::from_utf8(metrics::page::page(&shown_page, "").0).unwrap();
        let total = amounts(&path).unwrap().0.total;
        assert!(page.contains("{namespace=\"ns\",persistentvolumeclaim=\"disk\"} "), "{page}");
        assert!(total > 0 && page.contains(&metrics::page::number(metrics::page::to_float(total))), "{page}");
        assert!(usages.of_pod("u1").is_empty(), "no driver told of it");
        let places = usages.file_systems_of_pod("u1");
        assert_eq!(places[&path], ("data".to_owned(), claim.clone()));
        usages.forget("u1");
        assert!(usages.file_systems_of_pod("u1").is_empty());
        tokio::select! {
            () = keeping => unreachable!("it waits for volumes"),
            () = shown(false) => {}
        }
    }
}
