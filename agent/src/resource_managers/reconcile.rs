//! Keeping running containers on the CPUs that they have: those on the shared ones follow what others take or give back.
//!
//! A change is followed at once; `cpuManagerReconcilePeriod` catches what failed, and containers of an earlier agent.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use proto::cri::{ContainerState, LinuxContainerResources, UpdateContainerResourcesRequest};

use super::{CpuSet, Managers};
use crate::cri::{CriClient, CriError};
use crate::pod::labels;

/// Runs until dropped; ends at once where CPUs are not managed.
pub async fn reconcile(managers: Arc<Managers>, cri: CriClient, period: Duration) {
    if managers.cpus.is_none() {
        return;
    }
    let mut ticks = tokio::time::interval(period.max(Duration::from_secs(1)));
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            _ = ticks.tick() => {}
            () = managers.changed.notified() => {}
        }
        if let Err(error) = managers.follow(&cri).await {
            tracing::debug!(%error, "could not list the containers whose CPUs may have changed");
        }
    }
}

impl Managers {
    /// Gives every running container the CPUs that it is to have, unless it has them.
    async fn follow(&self, cri: &CriClient) -> Result<(), CriError> {
        let before: HashSet<String> = self.applied().keys().cloned().collect();
        let mut alive: HashMap<String, CpuSet> = HashMap::new();
        for container in cri.list_containers(None).await? {
            let label = |name: &str| container.labels.get(name).map(String::as_str);
            let (Some(uid), Some(name)) = (label(labels::POD_UID), label(labels::CONTAINER_NAME)) else { continue };
            let has = self.applied().remove(&container.id);
            if container.state() != ContainerState::ContainerRunning {
                // One that is only made keeps what it was made with; it is looked at again once it runs.
                if let Some(has) = has.filter(|_| container.state() == ContainerState::ContainerCreated) {
                    alive.insert(container.id, has);
                }
                continue;
            }
            let wanted = self.cpus_of(uid, name);
            if wanted.is_empty() {
                tracing::warn!(pod = uid, container = name, "no CPUs are left for a container");
                continue;
            }
            if has.as_ref() != Some(&wanted) {
                let linux = LinuxContainerResources { cpuset_cpus: wanted.to_string(), ..Default::default() };
                let container_id = container.id.clone();
                let request =
                    UpdateContainerResourcesRequest { container_id, linux: Some(linux), ..Default::default() };
                if let Err(error) = cri.update_container_resources(request).await {
                    tracing::warn!(%error, pod = uid, container = name, cpus = %wanted, "could not move a container to its CPUs");
                    continue;
                }
            }
            alive.insert(container.id, wanted);
        }
        // Containers that were made meanwhile are not in the list; others that are not in it are gone.
        let mut applied = self.applied();
        alive.extend(applied.drain().filter(|(id, _)| !before.contains(id)));
        *applied = alive;
        Ok(())
    }
}
