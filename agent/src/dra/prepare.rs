//! Preparing the claims of a pod, and giving them back.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, PoisonError};

use proto::api::core::v1::Pod;
use proto::api::resource::v1::ResourceClaim;
use proto::dra;
use tokio::sync::OwnedMutexGuard;

use super::checkpoint::{self, Claim, Device};
use super::plugin::Plugin;
use super::{Dra, Key, Known, claims};
use crate::metrics;
use crate::pod::spec::PodExt as _;
use crate::state_file;

/// A driver of a claim that has to be prepared.
struct Wanted {
    plugin: Plugin,
    claim: dra::Claim,
    key: Key,
}

impl Dra {
    /// Has every claim of the pod prepared by its drivers. What is prepared already is not asked for again.
    ///
    /// # Errors
    /// In the kubelet's words; to be tried again. What was begun is given back by [`Dra::unprepare`].
    pub async fn prepare(&self, pod: &Pod) -> Result<(), String> {
        let begun = tokio::time::Instant::now();
        let outcome = self.prepare_all(pod).await;
        let failed = if outcome.is_err() { "true" } else { "false" };
        metrics::DRA_OPERATIONS.observe(&["PrepareResources", failed], begun.elapsed().as_secs_f64());
        outcome.map_err(|why| format!("prepare dynamic resources: {why}"))
    }

    async fn prepare_all(&self, pod: &Pod) -> Result<(), String> {
        let wanted = claims::of_pod(pod)?;
        if wanted.is_empty() {
            return Ok(());
        }
        let Some(client) = &self.client else { return Err("there is no API server to ask for ResourceClaims".into()) };
        // All is checked before anything is noted: a pod whose claims cannot be prepared at all must be able to go.
        let mut found = Vec::new();
        for named in wanted {
            let object: ResourceClaim = client
                .get(pod.namespace(), &named.name)
                .await
                .map_err(|e| format!("fetch ResourceClaim {}: {e}", named.name))?;
            claims::check(pod, &named, &object)?;
            let claim = claims::new(&object)?;
            let plugins = claim.drivers.keys().map(|driver| self.plugin(driver)).collect::<Result<Vec<_>, _>>()?;
            found.push((claim, plugins));
        }
        let keys = found.iter().map(|(claim, _)| (claim.namespace.clone(), claim.name.clone())).collect();
        let _turns = self.turns(&keys).await;
        let wanted = self.note(pod.uid(), found)?;
        self.save().await.map_err(|e| format!("checkpoint ResourceClaim cache: {e}"))?;
        let mut batches: BTreeMap<String, Vec<Wanted>> = BTreeMap::new();
        for wanted in wanted {
            batches.entry(wanted.plugin.driver.clone()).or_default().push(wanted);
        }
        for batch in batches.values() {
            self.prepare_batch(batch).await?;
        }
        for key in &keys {
            if let Some(known) = self.state().claims.get_mut(key) {
                known.prepared = true;
            }
        }
        self.save().await.map_err(|e| format!("checkpoint ResourceClaim state: {e}"))
    }

    /// Notes that the pod uses the claims; returns what is left to prepare.
    fn note(&self, uid: &str, found: Vec<(Claim, Vec<Plugin>)>) -> Result<Vec<Wanted>, String> {
        let mut state = self.state();
        let mut wanted = Vec::new();
        for (claim, plugins) in found {
            let key = (claim.namespace.clone(), claim.name.clone());
            let of_driver =
                dra::Claim { namespace: claim.namespace.clone(), uid: claim.uid.clone(), name: claim.name.clone() };
            let known = state.claims.entry(key.clone()).or_insert_with(|| Known { claim, prepared: false });
            if known.claim.uid != of_driver.uid {
                return Err(format!(
                    "old ResourceClaim with same name {} and different UID {} still exists (previous pod force-deleted?!)",
                    key.1, known.claim.uid
                ));
            }
            known.claim.pods.insert(uid.to_owned());
            // A pod may have a claim under two names.
            if !known.prepared && !wanted.iter().any(|w: &Wanted| w.key == key) {
                let each = |plugin| Wanted { plugin, claim: of_driver.clone(), key: key.clone() };
                wanted.extend(plugins.into_iter().map(each));
            }
        }
        self.count(&state);
        Ok(wanted)
    }

    /// Asks one driver for all its claims.
    async fn prepare_batch(&self, batch: &[Wanted]) -> Result<(), String> {
        let Some(plugin) = batch.first().map(|wanted| &wanted.plugin) else { return Ok(()) };
        let asked: Vec<dra::Claim> = batch.iter().map(|wanted| wanted.claim.clone()).collect();
        let answer = plugin.prepare(asked).await.map_err(|e| format!("NodePrepareResources: {e}"))?;
        let count = answer.claims.len();
        for (uid, result) in answer.claims {
            let Some(wanted) = batch.iter().find(|wanted| wanted.claim.uid == uid) else {
                return Err(format!("NodePrepareResources returned result for unknown claim UID {uid}"));
            };
            if !result.error.is_empty() {
                let name = &wanted.claim.name;
                return Err(format!("NodePrepareResources failed for ResourceClaim {name}: {}", result.error));
            }
            let devices: Vec<Device> = result.devices.into_iter().map(device).collect();
            let mut state = self.state();
            if let Some(known) = state.claims.get_mut(&wanted.key) {
                let driver = known.claim.drivers.entry(plugin.driver.clone()).or_default();
                driver.devices = (!devices.is_empty()).then_some(devices);
            }
        }
        match batch.len().checked_sub(count) {
            Some(0) | None => Ok(()),
            Some(skipped) => Err(format!("NodePrepareResources skipped {skipped} ResourceClaims")),
        }
    }

    /// Gives back what a pod had. A claim that other pods use stays prepared. Does nothing for a pod without claims.
    ///
    /// # Errors
    /// In the kubelet's words; to be tried again before the pod may go.
    pub async fn unprepare(&self, uid: &str) -> Result<(), String> {
        let begun = tokio::time::Instant::now();
        let outcome = self.unprepare_all(uid).await;
        let failed = if outcome.is_err() { "true" } else { "false" };
        metrics::DRA_OPERATIONS.observe(&["UnprepareResources", failed], begun.elapsed().as_secs_f64());
        outcome.map_err(|why| format!("unprepare dynamic resources: {why}"))
    }

    async fn unprepare_all(&self, uid: &str) -> Result<(), String> {
        let keys: BTreeSet<Key> = {
            let state = self.state();
            state.claims.iter().filter(|(_, k)| k.claim.pods.contains(uid)).map(|(key, _)| key.clone()).collect()
        };
        if keys.is_empty() {
            return Ok(());
        }
        let _turns = self.turns(&keys).await;
        let mut batches: BTreeMap<String, Vec<dra::Claim>> = BTreeMap::new();
        let mut last = Vec::new();
        for key in keys {
            let mut state = self.state();
            let Some(known) = state.claims.get_mut(&key) else { continue };
            let claim = &mut known.claim;
            // It may have been given back while this waited its turn, and others may have it now.
            if !claim.pods.contains(uid) {
                continue;
            }
            if claim.pods.len() > 1 {
                claim.pods.remove(uid);
                continue;
            }
            // From here on drivers may have given it back, in whole or in part.
            known.prepared = false;
            let of_driver =
                dra::Claim { namespace: claim.namespace.clone(), uid: claim.uid.clone(), name: claim.name.clone() };
            for driver in claim.drivers.keys() {
                batches.entry(driver.clone()).or_default().push(of_driver.clone());
            }
            last.push(key);
        }
        for (driver, batch) in batches {
            self.unprepare_batch(&driver, batch).await?;
        }
        {
            let mut state = self.state();
            last.iter().for_each(|key| drop(state.claims.remove(key)));
            self.count(&state);
        }
        self.save().await.map_err(|e| format!("checkpoint ResourceClaim state: {e}"))
    }

    async fn unprepare_batch(&self, driver: &str, batch: Vec<dra::Claim>) -> Result<(), String> {
        let answer = self.plugin(driver)?.unprepare(batch.clone()).await;
        let answer = answer.map_err(|e| format!("NodeUnprepareResources: {e}"))?;
        for (uid, result) in &answer.claims {
            let Some(claim) = batch.iter().find(|claim| claim.uid == *uid) else {
                return Err(format!("NodeUnprepareResources returned result for unknown claim UID {uid}"));
            };
            if !result.error.is_empty() {
                let name = &claim.name;
                return Err(format!("NodeUnprepareResources failed for ResourceClaim {name}: {}", result.error));
            }
        }
        match batch.len().checked_sub(answer.claims.len()) {
            Some(0) | None => Ok(()),
            Some(skipped) => Err(format!("NodeUnprepareResources skipped {skipped} ResourceClaims")),
        }
    }

    /// Whether the pod has claims that were not given back.
    pub fn has(&self, uid: &str) -> bool {
        self.state().claims.values().any(|known| known.claim.pods.contains(uid))
    }

    /// Pods that are in the records, and are none any more by `known`.
    pub fn strangers(&self, known: impl Fn(&str) -> bool) -> BTreeSet<String> {
        let state = self.state();
        let all = state.claims.values().flat_map(|k| &k.claim.pods);
        all.filter(|uid| !known(uid)).cloned().collect()
    }

    /// Waits until nobody else works on any of the claims; always in the same order.
    async fn turns(&self, keys: &BTreeSet<Key>) -> Vec<OwnedMutexGuard<()>> {
        let mut held = Vec::new();
        for key in keys {
            let turn = {
                let mut turns = self.turns.lock().unwrap_or_else(PoisonError::into_inner);
                turns.retain(|_, turn| turn.strong_count() > 0);
                match turns.get(key).and_then(std::sync::Weak::upgrade) {
                    Some(turn) => turn,
                    None => {
                        let turn = Arc::new(tokio::sync::Mutex::default());
                        turns.insert(key.clone(), Arc::downgrade(&turn));
                        turn
                    }
                }
            };
            held.push(turn.lock_owned().await);
        }
        held
    }

    /// Writes what is known, before anybody relies on it.
    async fn save(&self) -> std::io::Result<()> {
        let writing = self.writing.clone().lock_owned().await;
        let claims = self.state().claims.values().map(|known| known.claim.clone()).collect();
        let text = checkpoint::encode(claims).map_err(std::io::Error::other)?;
        let path = self.root.join(checkpoint::FILE);
        // The write goes on when nobody waits for it any more, and so does its turn.
        let written = tokio::task::spawn_blocking(move || {
            let _writing = writing;
            state_file::write(&path, &text)
        });
        let written = written.await;
        written.unwrap_or_else(|broke| Err(std::io::Error::other(broke)))
    }
}

fn device(device: dra::Device) -> Device {
    let some = |list: Vec<String>| (!list.is_empty()).then_some(list);
    Device {
        pool_name: device.pool_name,
        device_name: device.device_name,
        share_id: device.share_id,
        request_names: some(device.request_names),
        cdi_devices: some(device.cdi_device_ids),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn claim(pods: &[&str]) -> Claim {
        Claim {
            uid: "u".into(),
            name: "c".into(),
            namespace: "ns".into(),
            pods: pods.iter().map(|uid| (*uid).to_owned()).collect(),
            drivers: BTreeMap::from([("d".to_owned(), checkpoint::Driver::default())]),
        }
    }

    fn open(name: &str) -> (Arc<Dra>, std::path::PathBuf) {
        let root = std::env::temp_dir().join(format!("dra-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&root).unwrap();
        (Dra::open(&root, None, "n", false, |d| panic!("{d}")), root)
    }

    #[tokio::test]
    async fn a_claim_under_two_names_is_asked_for_once() {
        let (dra, root) = open("names");
        let version = super::super::plugin::Version::V1;
        let plugin = || vec![Plugin { driver: "d".into(), endpoint: "/nowhere".into(), version }];
        let wanted = dra.note("a", vec![(claim(&[]), plugin()), (claim(&[]), plugin())]).unwrap_or_default();
        assert_eq!(wanted.len(), 1);
        assert!(dra.has("a"));
        let _ = std::fs::remove_dir_all(&root);
    }

    #[tokio::test]
    async fn a_claim_that_went_to_another_pod_meanwhile_stays_prepared() {
        let (dra, root) = open("turns");
        let key: Key = ("ns".into(), "c".into());
        dra.state().claims.insert(key.clone(), Known { claim: claim(&["a"]), prepared: true });
        assert!(dra.has("a") && !dra.has("b"));
        let turns = dra.turns(&BTreeSet::from([key.clone()])).await;
        let waiting = tokio::spawn({
            let dra = dra.clone();
            async move { dra.unprepare("a").await }
        });
        // It has looked for its claims, and waits.
        tokio::task::yield_now().await;
        dra.state().claims.insert(key.clone(), Known { claim: claim(&["b"]), prepared: true });
        drop(turns);
        assert_eq!(waiting.await.unwrap(), Ok(()));
        let prepared = dra.state().claims[&key].prepared;
        assert!(prepared && dra.has("b"));
        // Its own it cannot give back without the driver.
        assert!(dra.unprepare("b").await.is_err_and(|why| why.ends_with("DRA driver d is not registered")));
        assert!(dra.has("b"));
        let _ = std::fs::remove_dir_all(&root);
    }
}
