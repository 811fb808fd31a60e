//! The file systems of those volumes of pods that may hang: disks and shares that no driver tells of, and what
//! containers fill, where they may have mounted something themselves. One that hangs holds one thread and nobody else:
//! what was seen last goes on to hold.

use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};

use futures_util::future::join_all;
use tokio::sync::Mutex;

use super::summary::{Fs, disk};
use super::{Pods, volumes};
use crate::metrics;
use crate::node::Slow;

/// What was seen of a file system.
#[derive(Debug, Clone)]
pub(super) struct Look {
    pub fs: Fs,
    pub device: Option<u64>,
}

impl Look {
    /// Looks at the file system at a place. Blocks where that hangs.
    pub fn at(place: &Path) -> Option<Self> {
        // Of what is counted this is only a part.
        let _timer = (!volumes::is_empty_dir(place)).then(|| metrics::VOLUME_LOOKS.time(&["statfs"]));
        let fs = disk(place, &proto::time::Timestamp::now().to_seconds_text(), None)?;
        Some(Look { fs, device: volumes::device(place) })
    }
}

/// The looks at file systems, by place.
#[derive(Default)]
pub(super) struct FileSystems(Mutex<HashMap<PathBuf, Slow<Option<Look>>>>);

impl FileSystems {
    /// Those of the volumes of pods, by place; absent are those of which nothing was seen yet.
    pub async fn of_pods(&self, root_dir: &Path, pods: &Pods) -> HashMap<PathBuf, Look> {
        let folder = |uid: &String| root_dir.join("pods").join(uid).join("volumes");
        let folders: Vec<PathBuf> = pods.keys().map(folder).collect();
        let list = move || folders.iter().flat_map(|folder| volumes::that_may_hang(folder)).collect();
        let places: HashSet<PathBuf> = tokio::task::spawn_blocking(list).await.unwrap_or_default();
        self.ask(places, Look::at).await
    }

    /// Looks at all places at once, for no longer than a moment.
    async fn ask(&self, places: HashSet<PathBuf>, look: fn(&Path) -> Option<Look>) -> HashMap<PathBuf, Look> {
        let mut looks = self.0.lock().await;
        looks.retain(|place, _| places.contains(place));
        for place in places {
            looks.entry(place).or_default();
        }
        let asked = looks.iter_mut().map(async |(place, slow)| {
            let here = place.clone();
            let seen = slow.ask(move || look(&here)).await?.clone()?;
            Some((place.clone(), seen))
        });
        join_all(asked).await.into_iter().flatten().collect()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::time::{Duration, Instant};

    use super::*;

    /// The summary of the whole node waited for a share that did not answer, and each one that was asked for kept a
    /// thread.
    #[tokio::test]
    async fn a_file_system_that_hangs_keeps_its_last_figures_and_holds_no_other() {
        static HANGS: AtomicBool = AtomicBool::new(false);
        fn look(place: &Path) -> Option<Look> {
            while place.ends_with("share") && HANGS.load(Ordering::Relaxed) {
                std::thread::sleep(Duration::from_millis(5));
            }
            Look::at(Path::new("/"))
        }
        let file_systems = FileSystems::default();
        let places: HashSet<PathBuf> = ["/a/share", "/a/disk"].map(PathBuf::from).into();
        assert_eq!(file_systems.ask(places.clone(), look).await.len(), 2);
        HANGS.store(true, Ordering::Relaxed);
        let begun = Instant::now();
        for _ in 0..20 {
            assert_eq!(file_systems.ask(places.clone(), look).await.len(), 2, "what was seen last holds");
        }
        let fresh = [PathBuf::from("/b/share"), PathBuf::from("/b/disk")].into();
        let told = file_systems.ask(fresh, look).await;
        assert!(begun.elapsed() < Duration::from_secs(5), "nobody waits for it again");
        assert!(told.len() == 1 && told.contains_key(Path::new("/b/disk")));
        HANGS.store(false, Ordering::Relaxed);
    }
}
