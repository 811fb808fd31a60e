//! What no source knows: pods in the runtime, folders and cgroups on this machine. All of it is ended and taken away, once
//! every source has spoken.

use std::collections::HashSet;
use std::sync::Arc;

use proto::api::core::v1::Pod;
use proto::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use crate::metrics;
use crate::pleg::RuntimePod;

use super::mailbox::Mailbox;
use super::manager::Manager;
use super::worker::{Begin, Worker};

impl Manager {
    /// Ends what the runtime has of pods that no source knows, and removes directories of such pods.
    pub(super) fn end_orphans(&mut self) {
        if !self.sources_ready() {
            return;
        }
        let Some(runtime) = self.runtime.clone() else { return };
        for found in &runtime {
            if self.pods.contains_key(&found.uid) || self.orphans.contains_key(&found.uid) {
                continue;
            }
            tracing::info!(pod = found.name, namespace = found.namespace, "ending a pod that no source knows");
            let metadata = ObjectMeta {
                uid: found.uid.clone(),
                name: found.name.clone(),
                namespace: found.namespace.clone(),
                ..Default::default()
            };
            let pod = Arc::new(Pod { metadata: Some(metadata), ..Default::default() });
            let mailbox = Arc::new(Mailbox::default());
            let worker = Worker::new(self.shared.clone(), mailbox.clone(), pod, Begin::Orphan);
            self.spawn(found.uid.clone(), worker);
            metrics::ORPHANED_RUNTIME_PODS.inc(&[]);
            self.orphans.insert(found.uid.clone(), mailbox);
        }
        self.end_orphan_dirs(&runtime);
        self.end_orphan_cgroups(&runtime);
    }

    /// Removes cgroups and allocations that an earlier agent left. Those of this one go with their pods, so once is enough.
    fn end_orphan_cgroups(&mut self, runtime: &[RuntimePod]) {
        if std::mem::replace(&mut self.cgroups_swept, true) {
            return;
        }
        self.shared.allocations.keep_only(|uid| self.pods.contains_key(uid));
        let known =
            self.pods.keys().chain(self.orphans.keys()).chain(runtime.iter().map(|p| &p.uid)).cloned().collect();
        // A pod without a worker is over, or never began.
        self.shared.managers.keep_only(|uid| self.pods.get(uid).is_some_and(|entry| entry.mailbox.is_some()));
        let cgroups = self.shared.cgroups.clone();
        tokio::spawn(async move { cgroups.remove_orphans(&known).await });
    }

    /// Gauges tell of the folders that the sweep before this one began to take away.
    fn end_orphan_dirs(&mut self, runtime: &[RuntimePod]) {
        let mut ownerless = HashSet::new();
        let Ok(entries) = std::fs::read_dir(self.shared.config.root_dir.join("pods")) else { return };
        for entry in entries.flatten() {
            // Beside the pods' folders lies the socket of the Pods API.
            if !entry.file_type().is_ok_and(|t| t.is_dir()) {
                continue;
            }
            let Some(uid) = entry.file_name().to_str().map(str::to_owned) else { continue };
            if self.pods.contains_key(&uid) {
                continue;
            }
            ownerless.insert(uid.clone());
            if self.orphans.contains_key(&uid) || runtime.iter().any(|p| p.uid == uid) {
                continue;
            }
            // The same worker that ends orphans takes volumes down before it removes the directory.
            let metadata = ObjectMeta { uid: uid.clone(), ..Default::default() };
            let pod = Arc::new(Pod { metadata: Some(metadata), ..Default::default() });
            let mailbox = Arc::new(Mailbox::default());
            let worker = Worker::new(self.shared.clone(), mailbox.clone(), pod, Begin::Orphan);
            self.spawn(uid.clone(), worker);
            self.orphans.insert(uid, mailbox);
        }
        let left = self.ownerless.intersection(&ownerless).count();
        let as_gauge = |count: usize| f64::from(u32::try_from(count).unwrap_or(u32::MAX));
        metrics::ORPHANS_CLEANED.set(&[], as_gauge(self.ownerless.len() - left));
        metrics::ORPHANS_LEFT.set(&[], as_gauge(left));
        self.ownerless = ownerless;
    }
}
