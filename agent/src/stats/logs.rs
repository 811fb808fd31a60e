//! What the logs of containers hold, for `/metrics`: looked at when somebody asks, and told again while it is fresh.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use proto::api::core::v1::Pod;

use super::disk_usage::Asker;
use super::{Stats, locked};
use crate::metrics::{self, page::to_float};
use crate::pod::sandbox_config::log_directory;
use crate::pod::spec::PodExt as _;

/// A scrape waits no longer than this for figures; it gets the last ones then, and the next scrape these.
const PATIENCE: Duration = Duration::from_millis(50);
/// No more than a hundredth of the time is spent looking.
const HOLDS: u32 = 100;

/// When the logs were last looked at, and how long that took.
#[derive(Debug, Default)]
pub(super) struct Looked {
    last: Mutex<Option<(Instant, Duration)>>,
    underway: AtomicBool,
}

/// Somebody is looking, until this is dropped.
struct Underway(Arc<Looked>);

impl Drop for Underway {
    fn drop(&mut self) {
        self.0.underway.store(false, Ordering::Relaxed);
    }
}

impl Looked {
    fn is_due(&self) -> bool {
        locked(&self.last).is_none_or(|(ended, took)| ended.elapsed() >= took.saturating_mul(HOLDS))
    }
}

impl Stats {
    /// Brings `kubelet_container_log_filesystem_used_bytes` up to date for the running containers of these pods.
    /// They are asked for only when it is time to look again.
    pub async fn count_logs(&self, pods: impl Future<Output = Vec<Arc<Pod>>>) {
        if !self.logs.is_due() {
            return;
        }
        let Ok(pods) = tokio::time::timeout(PATIENCE, pods).await else { return };
        if self.logs.underway.swap(true, Ordering::Relaxed) {
            return;
        }
        let folders: Vec<([String; 4], PathBuf)> =
            pods.iter().flat_map(|pod| folders(pod, &self.places.pod_logs_dir)).collect();
        let (places, underway) = (self.places.clone(), Underway(self.logs.clone()));
        // It goes on when the scraper does not wait for it: the next one does not begin anew then.
        let looking = tokio::task::spawn_blocking(move || {
            let (began, asker) = (Instant::now(), Asker::default());
            let given_up = asker.given_up();
            let held = |(labels, folder): ([String; 4], PathBuf)| {
                let held = places.walks.held(&folder, &given_up)?;
                Some((labels.to_vec(), to_float(held.bytes)))
            };
            metrics::LOG_BYTES.set_all(folders.into_iter().filter_map(held));
            *locked(&underway.0.last) = Some((Instant::now(), began.elapsed()));
        });
        let _ = tokio::time::timeout(PATIENCE, looking).await;
    }
}

/// The folders of the logs of a pod's running containers, by the values of their labels.
fn folders(pod: &Pod, logs: &std::path::Path) -> Vec<([String; 4], PathBuf)> {
    let Some(status) = &pod.status else { return Vec::new() };
    let all = status.init_container_statuses.iter().chain(&status.container_statuses);
    let running = all
        .chain(&status.ephemeral_container_statuses)
        .filter(|container| container.state.as_ref().is_some_and(|state| state.running.is_some()));
    let folder = log_directory(pod, logs);
    let of = |name: &String| {
        let labels = [name.as_str(), pod.namespace(), pod.name(), pod.uid()].map(str::to_owned);
        (labels, folder.join(name))
    };
    running.map(|container| of(&container.name)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proto::api::core::v1::{ContainerState, ContainerStateRunning, ContainerStatus, PodStatus};
    use proto::apimachinery::pkg::apis::meta::v1::ObjectMeta;

    #[test]
    fn logs_are_those_of_running_containers() {
        let running = ContainerState { running: Some(ContainerStateRunning::default()), ..Default::default() };
        let status = |name: &str, state| ContainerStatus { name: name.into(), state, ..Default::default() };
        let pod = Pod {
            metadata: Some(ObjectMeta {
                name: "p".into(),
                namespace: "ns".into(),
                uid: "u".into(),
                ..Default::default()
            }),
            status: Some(PodStatus {
                container_statuses: vec![status("main", Some(running.clone())), status("over", None)],
                init_container_statuses: vec![status("side", Some(running))],
                ..Default::default()
            }),
            ..Default::default()
        };
        let found = folders(&pod, std::path::Path::new("/logs"));
        let shown: Vec<(String, String)> =
            found.into_iter().map(|(labels, path)| (labels.join(" "), path.display().to_string())).collect();
        let want = [("side ns p u", "/logs/ns_p_u/side"), ("main ns p u", "/logs/ns_p_u/main")];
        assert_eq!(shown, want.map(|(labels, path)| (labels.to_owned(), path.to_owned())));
    }

    #[test]
    fn after_a_look_that_broke_off_the_next_one_looks() {
        let looked = Arc::new(Looked { underway: true.into(), ..Looked::default() });
        let underway = Underway(looked.clone());
        let broken = std::thread::spawn(move || {
            let _underway = underway;
            panic!("a fault while it looks");
        });
        assert!(broken.join().is_err());
        assert!(looked.is_due() && !looked.underway.load(Ordering::Relaxed));
    }

    #[test]
    fn logs_are_looked_at_again_after_a_hundred_times_as_long() {
        let looked = Looked::default();
        assert!(looked.is_due());
        *locked(&looked.last) = Some((Instant::now(), Duration::from_secs(1)));
        assert!(!looked.is_due());
        *locked(&looked.last) = Some((Instant::now(), Duration::ZERO));
        assert!(looked.is_due());
    }
}
