//! What volumes cost, in the kubelet's metrics: how long one took to be made and to be taken away, and how many there are
//! by plugin, of those that pods want and of those that they have.
//!
//! Making a volume is asked for again and again while its pod runs; it is counted until it has worked once.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use proto::api::core::v1::{PersistentVolumeSource, VolumeSource};

use crate::metrics;

const UNMOUNT: &str = "volume_unmount";
const MOUNT: &str = "volume_mount";

/// Plugin and whether the pod has it, by volume of a pod.
type Known = HashMap<String, HashMap<String, (&'static str, bool)>>;

/// See the module's documentation.
#[derive(Default)]
pub struct Counted(Mutex<Known>);

impl Counted {
    fn known(&self) -> MutexGuard<'_, Known> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A pod's volume was made, or could not be.
    pub fn made(&self, pod: &str, volume: &str, plugin: &'static str, worked: bool, took: Duration) {
        let mut known = self.known();
        let of_pod = match known.get_mut(pod) {
            Some(of_pod) => of_pod,
            None => known.entry(pod.to_owned()).or_default(),
        };
        match of_pod.get(volume) {
            // It has it already: this was a look at it.
            Some((_, true)) => return,
            Some((before, false)) if *before == plugin && !worked => {}
            _ => {
                of_pod.insert(volume.to_owned(), (plugin, worked));
                show(&known);
            }
        }
        observe(MOUNT, plugin, worked, took);
    }

    /// All volumes of a pod were taken away, or could not be.
    pub fn removed(&self, pod: &str, worked: bool, took: Duration) {
        let mut known = self.known();
        let Some(of_pod) = known.get(pod) else { return };
        of_pod.values().filter(|(_, has)| *has).for_each(|(plugin, _)| observe(UNMOUNT, plugin, worked, took));
        if worked {
            known.remove(pod);
            show(&known);
        }
    }
}

fn observe(operation: &str, plugin: &str, worked: bool, took: Duration) {
    let status = if worked { "success" } else { "fail-unknown" };
    metrics::STORAGE_OPERATION.observe(&["false", operation, status, plugin], took.as_secs_f64());
}

fn show(known: &Known) {
    let mut counts: BTreeMap<(&'static str, &'static str), u32> = BTreeMap::new();
    for (plugin, has) in known.values().flat_map(HashMap::values) {
        *counts.entry((plugin, "desired_state_of_world")).or_default() += 1;
        if *has {
            *counts.entry((plugin, "actual_state_of_world")).or_default() += 1;
        }
    }
    let counts = counts.into_iter().map(|((plugin, state), n)| (vec![plugin.to_owned(), state.to_owned()], n.into()));
    metrics::VOLUMES.set_all(counts);
}

/// The kubelet's name of what makes a volume of a pod.
pub fn plugin_of(source: &VolumeSource) -> &'static str {
    let all = [
        (source.host_path.is_some(), "kubernetes.io/host-path"),
        (source.image.is_some(), "kubernetes.io/image"),
        (source.config_map.is_some(), "kubernetes.io/configmap"),
        (source.secret.is_some(), "kubernetes.io/secret"),
        (source.downward_api.is_some(), "kubernetes.io/downward-api"),
        (source.projected.is_some(), "kubernetes.io/projected"),
        (source.nfs.is_some(), "kubernetes.io/nfs"),
        (source.iscsi.is_some(), "kubernetes.io/iscsi"),
        (source.csi.is_some(), "kubernetes.io/csi"),
    ];
    all.into_iter().find(|(is, _)| *is).map_or("kubernetes.io/empty-dir", |(_, name)| name)
}

/// The same of a volume behind a claim.
pub fn plugin_of_claimed(source: &PersistentVolumeSource) -> &'static str {
    let all = [
        (source.host_path.is_some(), "kubernetes.io/host-path"),
        (source.local.is_some(), "kubernetes.io/local-volume"),
        (source.nfs.is_some(), "kubernetes.io/nfs"),
        (source.iscsi.is_some(), "kubernetes.io/iscsi"),
    ];
    all.into_iter().find(|(is, _)| *is).map_or("kubernetes.io/csi", |(_, name)| name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_volume_counts_once_until_it_is_taken_away() {
        let counted = Counted::default();
        let second = Duration::from_secs(1);
        let of = |counted: &Counted| counted.known().get("p").and_then(|v| v.get("v").copied());
        counted.made("p", "v", "kubernetes.io/nfs", false, second);
        assert_eq!(of(&counted), Some(("kubernetes.io/nfs", false)));
        counted.made("p", "v", "kubernetes.io/nfs", true, second);
        counted.made("p", "v", "kubernetes.io/nfs", false, second);
        assert_eq!(of(&counted), Some(("kubernetes.io/nfs", true)), "a later look takes nothing away");
        counted.removed("p", false, second);
        assert!(of(&counted).is_some());
        counted.removed("p", true, second);
        assert_eq!(of(&counted), None);
    }
}
