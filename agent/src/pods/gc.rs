//! Taking away what a pod left behind: dead containers, old sandboxes, logs, directories.

use std::path::Path;

use crate::pleg::observed::{ContainerRecord, Observed, RunState, Sandbox};
use crate::pod::sandbox_config::log_directory;
use crate::pod::spec::PodExt;

use super::Shared;
use super::start::log_link_name;

/// Removes dead containers beyond the newest and sandboxes that nothing lives in, while the pod goes on.
pub async fn prune(shared: &Shared, pod: &proto::api::core::v1::Pod, observed: &Observed) {
    let (containers, sandboxes) = superfluous(observed, shared.config.container_gc.kept_at_once());
    for container in containers {
        remove_container(shared, pod, &container.name, &container.id, Some(container.restart_count)).await;
    }
    for sandbox in sandboxes {
        remove_sandbox(shared, sandbox).await;
    }
}

/// What [`prune`] removes, where so many dead tries of each container are kept.
pub fn superfluous(observed: &Observed, kept: usize) -> (Vec<&ContainerRecord>, Vec<&Sandbox>) {
    let mut seen: std::collections::HashMap<&str, usize> = std::collections::HashMap::new();
    let (mut containers, mut kept_sandboxes) = (Vec::new(), Vec::new());
    for container in &observed.containers {
        let dead = seen.entry(&container.name).or_default();
        let is_dead = container.state == RunState::Exited;
        if is_dead && *dead >= kept {
            containers.push(container);
            continue;
        }
        *dead += usize::from(is_dead);
        kept_sandboxes.push(container.sandbox_id.as_str());
    }
    let old = observed.sandboxes.iter().skip(1).filter(|s| !s.ready && !kept_sandboxes.contains(&s.id.as_str()));
    (containers, old.collect())
}

/// Removes the init containers of an earlier sandbox, so that they run again in the next.
pub async fn purge_init(shared: &Shared, pod: &proto::api::core::v1::Pod, observed: &Observed) {
    for container in initialised_before(pod, observed) {
        remove_container(shared, pod, &container.name, &container.id, None).await;
    }
}

/// What [`purge_init`] removes.
pub fn initialised_before<'a>(
    pod: &'a proto::api::core::v1::Pod,
    observed: &'a Observed,
) -> impl Iterator<Item = &'a ContainerRecord> {
    let is_init = |name: &str| pod.spec().init_containers.iter().any(|c| c.name == name);
    observed.containers.iter().filter(move |c| is_init(&c.name) && c.state != RunState::Running)
}

/// Removes everything of a pod from the runtime, and its logs and directories. What fails is tried again by the next
/// pass of the manager, which finds the rest as an orphan.
pub async fn remove_all(shared: &Shared, pod: &proto::api::core::v1::Pod, observed: &Observed) {
    remove_from_runtime(shared, pod, observed).await;
    remove_dir(&log_directory(pod, &shared.config.pod_logs_dir));
    remove_dir(&shared.pod_dir(pod.uid()));
}

/// Removes the containers and sandboxes of a pod that has ended. What is gone already counts as removed;
/// whether all is.
pub async fn remove_from_runtime(shared: &Shared, pod: &proto::api::core::v1::Pod, observed: &Observed) -> bool {
    let mut gone = true;
    for container in &observed.containers {
        gone &= remove_container(shared, pod, &container.name, &container.id, None).await;
    }
    for sandbox in &observed.sandboxes {
        gone &= remove_sandbox(shared, sandbox).await;
    }
    gone
}

/// Removes a container; whether it is gone.
pub async fn remove_container(
    shared: &Shared,
    pod: &proto::api::core::v1::Pod,
    name: &str,
    id: &str,
    log_of: Option<u32>,
) -> bool {
    if let Err(error) = shared.cri.remove_container(id).await {
        tracing::warn!(%error, container = id, pod = pod.name(), "could not remove a container");
        return false;
    }
    if let Some(dir) = &shared.config.log_links_dir {
        remove_file(&dir.join(log_link_name(pod, name, id)));
    }
    if let Some(attempt) = log_of {
        let dir = log_directory(pod, &shared.config.pod_logs_dir);
        let log = crate::pleg::observed::container_log_path(&dir, name, attempt);
        if let Err(error) = crate::container_logs::remove(&log) {
            tracing::debug!(%error, path = %log.display(), "could not remove the logs of a container");
        }
    }
    true
}

/// Stops a sandbox that came after the end of its pod, and removes it unless something is in it that is kept; whether that
/// is done.
pub async fn end_sandbox(shared: &Shared, sandbox: &Sandbox, is_kept: bool) -> bool {
    match shared.cri.stop_pod_sandbox(&sandbox.id).await {
        Err(error) if !error.is_not_found() => {
            tracing::warn!(%error, sandbox = sandbox.id, "could not stop a sandbox");
            false
        }
        _ => is_kept || remove_sandbox(shared, sandbox).await,
    }
}

/// Whether it is gone.
async fn remove_sandbox(shared: &Shared, sandbox: &Sandbox) -> bool {
    let removed = shared.cri.remove_pod_sandbox(&sandbox.id).await;
    removed.inspect_err(|error| tracing::warn!(%error, sandbox = sandbox.id, "could not remove a sandbox")).is_ok()
}

fn remove_file(path: &Path) {
    if let Err(error) = std::fs::remove_file(path)
        && error.kind() != std::io::ErrorKind::NotFound
    {
        tracing::debug!(%error, path = %path.display(), "could not remove a file");
    }
}

fn remove_dir(path: &Path) {
    if let Err(error) = std::fs::remove_dir_all(path)
        && error.kind() != std::io::ErrorKind::NotFound
    {
        tracing::warn!(%error, path = %path.display(), "could not remove a directory");
    }
}
