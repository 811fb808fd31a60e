//! How full the volumes of drivers are, and whether they are well: asked of the drivers every so often, kept for whoever
//! wants to know.
//!
//! A driver that hangs or keeps no statistics costs nobody else anything; its volumes are absent then.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use proto::csi::node_service_capability::rpc::Type as RpcType;
use proto::csi::volume_usage::Unit;
use proto::csi::{NodeGetVolumeStatsRequest, VolumeCondition, VolumeUsage};
use tokio::sync::watch;
use tokio::task::JoinSet;

use super::Drivers;
use crate::metrics;

/// A volume that a pod has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Held {
    pub driver: String,
    pub handle: String,
    pub path: PathBuf,
    /// Empty for a volume that is not staged.
    pub staging: PathBuf,
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

    /// What is known of a pod's volumes, by name.
    pub fn of_pod(&self, uid: &str) -> Vec<(String, Usage)> {
        let told = self.told();
        let theirs = told.iter().filter(|((pod, _), _)| pod == uid);
        theirs.map(|((_, name), usage)| (name.clone(), usage.clone())).collect()
    }

    /// Asks the drivers every `period` until dropped; not at all for none, and not while there is nothing to ask for. Of the
    /// condition of volumes only where there is `tell` to tell of it (`CSIVolumeHealth`).
    pub async fn keep(&self, drivers: &Drivers, period: Duration, tell: Option<TellAbnormal>) {
        if period.is_zero() {
            return;
        }
        let mut held = self.held.subscribe();
        while held.wait_for(|all| !all.is_empty()).await.is_ok() {
            let volumes = held.borrow_and_update().clone();
            let mut asking = JoinSet::new();
            for (key, volume) in volumes.iter() {
                let (key, volume, driver) = (key.clone(), volume.clone(), drivers.get(&volume.driver));
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
            let _ = tokio::time::timeout(period, asked).await;
            let now = held.borrow().clone();
            fresh.retain(|key, _| now.contains_key(key));
            show(&fresh);
            if let Some(tell) = &tell {
                tell(abnormal(&fresh));
            }
            *self.told() = fresh;
            tokio::time::sleep(period).await;
        }
    }
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
    let capabilities = driver.capabilities().await.ok()?;
    if !capabilities.has(RpcType::GetVolumeStats) {
        return None;
    }
    let health = health && capabilities.has(RpcType::VolumeCondition);
    let labels = [volume.driver.as_str()];
    let request = NodeGetVolumeStatsRequest {
        volume_id: volume.handle,
        volume_path: volume.path.display().to_string(),
        staging_target_path: volume.staging.display().to_string(),
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
            tracing::debug!(%error, driver = volume.driver, "a driver does not tell how full a volume is");
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
fn show(usages: &BTreeMap<Key, Usage>) {
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
            .values()
            .filter_map(|u| {
                let (namespace, name) = u.claim.clone()?;
                Some((vec![namespace, name], metrics::page::to_float(of(u))))
            })
            .collect();
        family.set_all(series);
    }
    let health = usages.values().filter_map(|u| {
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
        let held =
            Held { driver: "d".into(), handle: "h".into(), path: "/p".into(), staging: PathBuf::new(), claim: None };
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
}
