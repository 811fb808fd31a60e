//! Logs of pods that nobody knows, and links to logs that are gone.
//!
//! A pod's worker takes its logs away; of a pod that went while no agent was there, or that has nothing left in the runtime,
//! nobody would. Once a minute the folder of logs is read, when every source has spoken, and links are looked at. An entry
//! that is not named as the logs of a pod are is not the agent's, and stays.
//!
//! Followed: `evictPodLogsDirectories` of `pkg/kubelet/kuberuntime/kuberuntime_gc.go`.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use proto::cri::ContainerState;

use crate::cri::CriClient;

use super::manager::Manager;

/// Containers can be asked for by as few characters of their ids.
const SHORTEST_ID: usize = 6;

impl Manager {
    /// Takes away what is there of pods that no source knows and the runtime has nothing of.
    pub(super) fn sweep_logs(&mut self) {
        let Some(runtime) = self.runtime.as_ref().filter(|_| self.sources_ready()) else { return };
        if self.log_sweep.as_ref().is_some_and(|sweep| !sweep.is_finished()) {
            return;
        }
        let is_known = |uid: &str| {
            let pods = self.pods.contains_key(uid) || self.orphans.contains_key(uid);
            pods || runtime.iter().any(|found| found.uid == uid)
        };
        // Here, where no pod can come in meanwhile whose folder would be seen and its uid not.
        let folders = folders_of_strangers(&self.shared.config.pod_logs_dir, is_known);
        let shared = self.shared.clone();
        self.log_sweep = Some(tokio::spawn(async move {
            let removed = tokio::task::spawn_blocking(move || folders.iter().for_each(|folder| remove(folder))).await;
            if let Err(error) = removed {
                tracing::error!(%error, "removing logs of pods that are gone broke off");
            }
            if let Some(dir) = shared.config.log_links_dir.clone() {
                remove_dead_links(dir, &shared.cri).await;
            }
        }));
    }
}

/// The folders `NAMESPACE_NAME_UID` whose uid is not known.
fn folders_of_strangers(dir: &Path, is_known: impl Fn(&str) -> bool) -> Vec<PathBuf> {
    let Ok(entries) = std::fs::read_dir(dir) else { return Vec::new() };
    let is_strange = |entry: &std::fs::DirEntry| {
        let name = entry.file_name();
        let mut parts = name.to_str().unwrap_or("").split('_');
        match (parts.next(), parts.next(), parts.next(), parts.next()) {
            (Some(_), Some(_), Some(uid), None) => !uid.is_empty() && !is_known(uid),
            _ => false,
        }
    };
    let is_folder = |entry: &std::fs::DirEntry| entry.file_type().is_ok_and(|kind| kind.is_dir());
    entries.flatten().filter(|entry| is_folder(entry) && is_strange(entry)).map(|entry| entry.path()).collect()
}

fn remove(folder: &Path) {
    match std::fs::remove_dir_all(folder) {
        Err(error) if error.kind() != ErrorKind::NotFound => {
            tracing::error!(%error, folder = %folder.display(), "failed to remove the logs of a pod that is gone");
        }
        _ => tracing::info!(folder = %folder.display(), "removed the logs of a pod that is gone"),
    }
}

async fn remove_dead_links(dir: PathBuf, cri: &CriClient) {
    let links = tokio::task::spawn_blocking(move || dead_links(&dir)).await.unwrap_or_default();
    for link in links {
        // While a log is rotated it is not there for a moment; its container lives.
        if let Some(id) = container_of(&link) {
            match cri.container_status(id).await {
                Ok(status) if status.state() != ContainerState::ContainerExited => continue,
                Err(error) if !error.is_not_found() => {
                    tracing::debug!(%error, link = %link.display(), "cannot ask for the container of a dead link");
                    continue;
                }
                _ => {}
            }
        }
        if let Err(error) = std::fs::remove_file(&link) {
            tracing::debug!(%error, link = %link.display(), "could not remove a dead link to a log");
        }
    }
}

/// Links to logs that are not there.
fn dead_links(dir: &Path) -> Vec<PathBuf> {
    let Ok(entries) = std::fs::read_dir(dir) else { return Vec::new() };
    let paths = entries.flatten().map(|entry| entry.path());
    let is_log = |path: &PathBuf| path.extension().is_some_and(|extension| extension == "log");
    let is_gone = |path: &PathBuf| std::fs::metadata(path).is_err_and(|error| error.kind() == ErrorKind::NotFound);
    paths.filter(is_log).filter(is_gone).collect()
}

/// The container that a link is named for.
fn container_of(link: &Path) -> Option<&str> {
    let (_, id) = link.file_stem()?.to_str()?.rsplit_once('-')?;
    (id.len() >= SHORTEST_ID).then_some(id)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// They stayed for ever when their pod was deleted while the agent was down.
    #[test]
    fn logs_of_strangers_and_links_to_nothing_are_found() {
        let dir = std::env::temp_dir().join(format!("log-sweep-{}", std::process::id()));
        let (logs, links) = (dir.join("pods"), dir.join("containers"));
        std::fs::create_dir_all(&links).unwrap();
        for folder in ["ns_a_uid-a/c", "ns_b_uid-b/c", "other", "ns_uid", "a_b_c_d", "ns_a_"] {
            std::fs::create_dir_all(logs.join(folder)).unwrap();
        }
        std::fs::write(logs.join("ns_f_uid-f"), "").unwrap();
        let found = folders_of_strangers(&logs, |uid| uid == "uid-a");
        assert_eq!(found, [logs.join("ns_b_uid-b")]);

        std::fs::write(logs.join("ns_a_uid-a/c/0.log"), "").unwrap();
        let link = |name: &str, to: &str| std::os::unix::fs::symlink(logs.join(to), links.join(name)).unwrap();
        link("a_ns_c-0123456789.log", "ns_a_uid-a/c/0.log");
        link("b_ns_c-d-abcdef0123.log", "ns_b_uid-b/c/0.log");
        link("b_ns_c.txt", "nothing");
        let dead = dead_links(&links);
        assert_eq!(dead, [links.join("b_ns_c-d-abcdef0123.log")]);
        assert_eq!(container_of(&dead[0]), Some("abcdef0123"));
        assert_eq!(container_of(Path::new("/x/b_ns_c-abc.log")), None);
        remove(&found[0]);
        assert!(!found[0].exists());
        std::fs::remove_dir_all(&dir).unwrap();
    }
}
