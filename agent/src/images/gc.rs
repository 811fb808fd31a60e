//! Images that nobody uses any more: removed by age, and by last use when their file system fills up.
//!
//! Every five minutes the runtime's images and containers are compared. An image that a container has, dead or alive, is
//! in use, whether it runs it or has it as a volume; pinned ones are never touched. Past the high threshold images go,
//! longest unused first, until the low one is reached.
//!
//! Followed: `pkg/kubelet/images/image_gc_manager.go`.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use proto::cri;
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;

use super::records::Records as PullRecords;
use crate::cri::{CriClient, CriError};
use crate::metrics;
use crate::node::NodeEvents;

const PERIOD: Duration = Duration::from_secs(300);

/// When images go.
#[derive(Debug, Clone)]
pub struct ImageGc {
    /// Percent of the file system in use; 100 for never.
    pub high: u8,
    pub low: u8,
    /// Younger ones stay in any case.
    pub minimum_age: Duration,
    /// Unused for so long they go in any case; zero for no such limit.
    pub maximum_age: Duration,
}

#[derive(Debug, Clone)]
struct Record {
    detected: Instant,
    used: Option<Instant>,
    bytes: u64,
    pinned: bool,
}

type Records = HashMap<String, Record>;

/// The images that are volumes of a container, by the container's id. The runtime is asked once: they stay the same.
type Mounted = HashMap<String, Vec<String>>;

/// Why images could not be collected; told in the kubelet's words.
#[derive(Debug, thiserror::Error)]
enum GcError {
    #[error(transparent)]
    Runtime(#[from] CriError),
    #[error("invalid capacity 0 on image filesystem")]
    NoCapacity,
    #[error("wanted to free {wanted} bytes, but freed {freed} bytes space with errors in image deletion: {why}")]
    NotRemoved { wanted: u64, freed: u64, why: String },
    #[error(
        "Insufficient free disk space on the node's image filesystem ({percent}% of {} used). Failed to free sufficient \
         space by deleting unused images (freed {freed} bytes). Investigate disk usage, as it could be used by active \
         images, logs, volumes, or other data.", size(*.capacity)
    )]
    NotEnough { percent: u64, capacity: u64, freed: u64 },
}

impl GcError {
    /// The reason of the event that there is about it, beside that about failures in a row.
    fn reason(&self) -> Option<&'static str> {
        match self {
            GcError::NoCapacity => Some("InvalidDiskCapacity"),
            GcError::NotEnough { .. } => Some("FreeDiskSpaceFailed"),
            GcError::Runtime(_) | GcError::NotRemoved { .. } => None,
        }
    }
}

/// Bytes for people: `26.4 GiB`.
fn size(bytes: u64) -> String {
    #[expect(clippy::cast_precision_loss, reason = "one digit is shown")]
    let mut amount = bytes as f64;
    let mut units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"].iter();
    let mut unit = units.next().copied().unwrap_or_default();
    while amount >= 1024.0
        && let Some(next) = units.next()
    {
        amount /= 1024.0;
        unit = next;
    }
    format!("{amount:.1} {unit}")
}

/// Looks for unused images until dropped. A demand has all of them removed that are old enough, and is answered then.
/// Pull records are kept to the images that are there. `events` are the node's.
pub async fn run(
    cri: CriClient,
    settings: ImageGc,
    pulls: Option<Arc<PullRecords>>,
    mut demands: mpsc::Receiver<oneshot::Sender<()>>,
    events: NodeEvents,
) {
    if let Some(pulls) = &pulls {
        match cri.list_images(cri::ListImagesRequest::default()).await {
            Ok(found) => pulls.take_up(&found.images),
            Err(error) => tracing::warn!(%error, "cannot tell which pulls of an earlier agent got through"),
        }
    }
    let collects = settings.high < 100 || !settings.maximum_age.is_zero();
    let (mut records, mut mounted, begun) = (Records::new(), Mounted::new(), Instant::now());
    let mut ticks = tokio::time::interval(PERIOD);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    // One failure may be that of a runtime that only starts.
    let mut failed = false;
    loop {
        let demand = tokio::select! {
            _ = ticks.tick() => None,
            demand = demands.recv() => match demand {
                Some(demand) => Some(demand),
                None => return,
            },
        };
        let (now, since) = (Instant::now(), proto::time::Timestamp::now().to_seconds_text());
        let result = match look(&cri, &mut records, &mut mounted, now).await {
            Ok(()) => {
                let result = match &demand {
                    Some(_) => remove_unused(&cri, &settings, &mut records, now).await,
                    None if collects => pass(&cri, &settings, &mut records, (begun, now)).await,
                    // How old an image is must be known when somebody demands room.
                    None => Ok(()),
                };
                // What images there are is known now, whether or not some of them could go.
                if let Some(pulls) = &pulls {
                    pulls.prune(&records.keys().map(String::as_str).collect::<Vec<_>>(), &since);
                }
                result
            }
            Err(error) => Err(error.into()),
        };
        if let Some(demand) = demand {
            // Whoever asked may have gone.
            let _ = demand.send(());
        }
        match result {
            Err(error) => {
                tracing::warn!(%error, again = failed, "image garbage collection failed");
                if let Some(reason) = error.reason() {
                    events("Warning", reason, error.to_string());
                }
                if std::mem::replace(&mut failed, true) {
                    events("Warning", "ImageGCFailed", error.to_string());
                }
            }
            Ok(()) => failed = false,
        }
    }
}

/// Removes every image that may go, as [`look`] has found them at `now`.
async fn remove_unused(
    cri: &CriClient,
    settings: &ImageGc,
    records: &mut Records,
    now: Instant,
) -> Result<(), GcError> {
    let (mut freed, mut why) = (0_u64, None);
    for id in by_last_use(records, now, settings) {
        let bytes = records.get(&id).map_or(0, |r| r.bytes);
        match remove(cri, records, &id, "space").await {
            Ok(()) => freed = freed.saturating_add(bytes),
            Err(error) => why = Some(error.to_string()),
        }
    }
    // As much as there is, which the kubelet writes as the largest number of bytes.
    why.map_or(Ok(()), |why| Err(GcError::NotRemoved { wanted: i64::MAX.unsigned_abs(), freed, why }))
}

/// Takes in what images there are and which are used.
async fn look(cri: &CriClient, records: &mut Records, mounted: &mut Mounted, now: Instant) -> Result<(), CriError> {
    let images = cri.list_images(cri::ListImagesRequest::default()).await?.images;
    let containers = cri.list_containers(None).await?;
    for id in unknown(mounted, &containers) {
        match cri.container_status(&id).await {
            Ok(status) => drop(mounted.insert(id, volumes(status))),
            // It has gone since.
            Err(error) if error.is_not_found() => {}
            // It may have any of them.
            Err(error) => return Err(error),
        }
    }
    let sandbox = sandbox_image(&cri.status(cri::StatusRequest { verbose: true }).await?);
    let mut in_use = used(&containers, mounted);
    in_use.extend(sandbox.as_deref());
    note(records, &images, &in_use, now);
    Ok(())
}

/// What containers run, and have as volumes.
fn used<'a>(containers: &'a [cri::Container], mounted: &'a Mounted) -> HashSet<&'a str> {
    let run = containers.iter().flat_map(|c| [c.image_ref.as_str(), c.image_id.as_str()]);
    run.chain(mounted.values().flatten().map(String::as_str)).collect()
}

/// The containers of which it is not known what images they have as volumes; those that are no more are forgotten.
fn unknown(mounted: &mut Mounted, containers: &[cri::Container]) -> Vec<String> {
    let there: HashSet<&str> = containers.iter().map(|c| c.id.as_str()).collect();
    mounted.retain(|id, _| there.contains(id.as_str()));
    there.into_iter().filter(|id| !mounted.contains_key(*id)).map(str::to_owned).collect()
}

fn volumes(status: cri::ContainerStatus) -> Vec<String> {
    status.mounts.into_iter().filter_map(|mount| Some(mount.image?.image)).collect()
}

/// Removes images that are too old, and as many as the disk asks for, as [`look`] has found them at `now`. This agent watches
/// since `begun`.
async fn pass(
    cri: &CriClient,
    settings: &ImageGc,
    records: &mut Records,
    (begun, now): (Instant, Instant),
) -> Result<(), GcError> {
    // What this agent has not watched for so long may have been used before it began.
    if !settings.maximum_age.is_zero() && begun.elapsed() > settings.maximum_age {
        for id in too_old(records, now, settings) {
            // Told in the log; the next pass tries again.
            let _ = remove(cri, records, &id, "age").await;
        }
    }
    let Some((capacity, available)) = file_system(cri).await? else { return Ok(()) };
    if capacity == 0 {
        return Err(GcError::NoCapacity);
    }
    let Some(wanted) = to_free(capacity, available, settings) else { return Ok(()) };
    let (mut freed, mut why) = (0_u64, None);
    for id in by_last_use(records, now, settings) {
        if freed >= wanted {
            return Ok(());
        }
        let bytes = records.get(&id).map_or(0, |r| r.bytes);
        match remove(cri, records, &id, "space").await {
            Ok(()) => freed = freed.saturating_add(bytes),
            Err(error) => why = Some(error.to_string()),
        }
    }
    match why {
        Some(why) => Err(GcError::NotRemoved { wanted, freed, why }),
        None if freed < wanted => {
            Err(GcError::NotEnough { percent: used_percent(capacity, available), capacity, freed })
        }
        None => Ok(()),
    }
}

/// As the kubelet rounds it: what is available is rounded down.
fn used_percent(capacity: u64, available: u64) -> u64 {
    let left = u128::from(available) * 100 / u128::from(capacity.max(1));
    100_u64.saturating_sub(u64::try_from(left).unwrap_or(100))
}

/// The image of which the runtime makes sandboxes, as containerd tells it among its settings. Its first versions do not
/// pin that image, and no container names it.
fn sandbox_image(status: &cri::StatusResponse) -> Option<String> {
    let settings: serde_json::Value = serde_json::from_str(status.info.get("config")?).ok()?;
    settings["sandboxImage"].as_str().map(Into::into)
}

/// Takes in what the runtime has; what it has no more is forgotten.
fn note(records: &mut Records, images: &[cri::Image], in_use: &HashSet<&str>, now: Instant) {
    for image in images {
        let record =
            records.entry(image.id.clone()).or_insert(Record { detected: now, used: None, bytes: 0, pinned: false });
        let names = image.repo_tags.iter().chain(&image.repo_digests).map(String::as_str);
        if names.chain([image.id.as_str()]).any(|name| in_use.contains(name)) {
            record.used = Some(now);
        }
        (record.bytes, record.pinned) = (image.size, image.pinned);
    }
    let present: HashSet<&str> = images.iter().map(|i| i.id.as_str()).collect();
    records.retain(|id, _| present.contains(id.as_str()));
}

/// Images that may go now, longest unused first; of those never used, the one seen first.
fn by_last_use(records: &Records, now: Instant, settings: &ImageGc) -> Vec<String> {
    let free = |r: &Record| !r.pinned && r.used != Some(now) && now.duration_since(r.detected) >= settings.minimum_age;
    let mut found: Vec<_> = records.iter().filter(|(_, r)| free(r)).collect();
    found.sort_by_key(|(id, r)| (r.used, r.detected, (*id).clone()));
    found.into_iter().map(|(id, _)| id.clone()).collect()
}

fn too_old(records: &Records, now: Instant, settings: &ImageGc) -> Vec<String> {
    let unused = |r: &Record| now.duration_since(r.used.unwrap_or(r.detected)) > settings.maximum_age;
    let mut found = by_last_use(records, now, settings);
    found.retain(|id| records.get(id).is_some_and(unused));
    found
}

/// Bytes to free, when the file system is fuller than the high threshold.
fn to_free(capacity: u64, available: u64, settings: &ImageGc) -> Option<u64> {
    if capacity == 0 || settings.high >= 100 {
        return None;
    }
    let percent = |share: u8| u64::try_from(u128::from(capacity) * u128::from(share) / 100).unwrap_or(u64::MAX);
    let used = capacity.saturating_sub(available.min(capacity));
    (used >= percent(settings.high)).then(|| used.saturating_sub(percent(settings.low)))
}

/// Size and free bytes of the file system that holds the images; `None` where the runtime does not tell which it is.
async fn file_system(cri: &CriClient) -> Result<Option<(u64, u64)>, CriError> {
    let answer = cri.image_fs_info(cri::ImageFsInfoRequest {}).await?;
    let mountpoint = answer.image_filesystems.into_iter().find_map(|f| f.fs_id).map(|id| id.mountpoint);
    let Some(path) = mountpoint.filter(|path| !path.is_empty()) else { return Ok(None) };
    match nix::sys::statvfs::statvfs(path.as_str()) {
        Ok(found) => {
            let block = found.fragment_size();
            Ok(Some((found.blocks().saturating_mul(block), found.blocks_available().saturating_mul(block))))
        }
        Err(error) => {
            tracing::warn!(%error, path, "cannot see how full the file system of images is");
            Ok(None)
        }
    }
}

/// `why` is `age` or `space`.
async fn remove(cri: &CriClient, records: &mut Records, id: &str, why: &str) -> Result<(), CriError> {
    let image = cri::ImageSpec { image: id.to_owned(), ..Default::default() };
    match cri.remove_image(image).await {
        Ok(()) => {
            tracing::info!(image = id, "removed an image that nobody uses");
            records.remove(id);
            metrics::IMAGES_COLLECTED.inc(&[why]);
            Ok(())
        }
        Err(error) => {
            tracing::warn!(%error, image = id, "cannot remove an image");
            Err(error)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_image_of_sandboxes_is_found_in_the_runtimes_settings() {
        let told = |text: &str| cri::StatusResponse {
            info: [("config".to_owned(), text.to_owned())].into(),
            ..cri::StatusResponse::default()
        };
        let image = sandbox_image(&told(r#"{"sandboxImage": "registry.k8s.io/pause:3.10", "other": 1}"#));
        assert_eq!(image.as_deref(), Some("registry.k8s.io/pause:3.10"));
        assert_eq!(sandbox_image(&told("{")), None);
        assert_eq!(sandbox_image(&cri::StatusResponse::default()), None);
    }

    const SETTINGS: ImageGc =
        ImageGc { high: 85, low: 80, minimum_age: Duration::from_secs(120), maximum_age: Duration::from_secs(3600) };

    fn image(id: &str, pinned: bool) -> cri::Image {
        let repo_tags = vec![format!("{id}:tag")];
        cri::Image { id: id.into(), repo_tags, size: 10, pinned, ..Default::default() }
    }

    #[test]
    fn the_longest_unused_goes_first_and_what_is_used_or_pinned_stays() {
        let (mut records, start) = (Records::new(), Instant::now());
        let images = [image("a", false), image("b", false), image("c", true), image("d", false)];
        note(&mut records, &images, &["b:tag"].into(), start);
        assert!(by_last_use(&records, start, &SETTINGS).is_empty(), "all are too young");
        let later = start + Duration::from_secs(300);
        note(&mut records, &images, &["d"].into(), later);
        assert_eq!(by_last_use(&records, later, &SETTINGS), ["a", "b"]);
        assert!(too_old(&records, later, &SETTINGS).is_empty());
        let much_later = start + Duration::from_secs(3601);
        note(&mut records, &images[..2], &HashSet::new(), much_later);
        assert_eq!(too_old(&records, much_later, &SETTINGS), ["a", "b"]);
        assert_eq!(records.len(), 2);
    }

    /// An image that was a volume alone was removed from under its containers.
    #[test]
    fn an_image_that_is_a_volume_is_used_as_long_as_its_container_is_there() {
        let container = |id: &str| cri::Container { id: id.into(), image_ref: "a".into(), ..Default::default() };
        let containers = [container("1"), container("2")];
        let mut mounted = Mounted::new();
        let mut asked = unknown(&mut mounted, &containers);
        asked.sort();
        assert_eq!(asked, ["1", "2"]);
        let volume = cri::ImageSpec { image: "v".into(), ..Default::default() };
        let of_image = cri::Mount { image: Some(volume), ..Default::default() };
        let mounts = vec![cri::Mount { host_path: "/x".into(), ..Default::default() }, of_image];
        mounted.insert("1".into(), volumes(cri::ContainerStatus { mounts, ..Default::default() }));
        mounted.insert("2".into(), volumes(cri::ContainerStatus::default()));
        assert!(unknown(&mut mounted, &containers).is_empty(), "they are asked for once");

        let (mut records, start) = (Records::new(), Instant::now());
        let images = ["a", "v", "w"].map(|id| image(id, false));
        note(&mut records, &images, &used(&containers, &mounted), start);
        let later = start + Duration::from_secs(300);
        note(&mut records, &images, &used(&containers, &mounted), later);
        assert_eq!(by_last_use(&records, later, &SETTINGS), ["w"]);
        assert!(unknown(&mut mounted, &containers[1..]).is_empty());
        assert!(!used(&containers[1..], &mounted).contains("v"));
    }

    #[test]
    fn what_is_told_of_a_full_disk_is_for_people() {
        let full = GcError::NotEnough { percent: used_percent(100, 12), capacity: 28_346_784_154, freed: 385_820_817 };
        let words = "Insufficient free disk space on the node's image filesystem (88% of 26.4 GiB used). Failed to free \
                     sufficient space by deleting unused images (freed 385820817 bytes). Investigate disk usage, as it \
                     could be used by active images, logs, volumes, or other data.";
        assert_eq!((full.to_string().as_str(), full.reason()), (words, Some("FreeDiskSpaceFailed")));
        assert_eq!(GcError::NoCapacity.to_string(), "invalid capacity 0 on image filesystem");
        assert_eq!(size(512), "512.0 B");
    }

    #[test]
    fn as_much_is_freed_as_the_low_threshold_asks() {
        assert_eq!(to_free(1000, 200, &SETTINGS), None);
        assert_eq!(to_free(1000, 150, &SETTINGS), Some(50));
        assert_eq!(to_free(1000, 0, &SETTINGS), Some(200));
        assert_eq!(to_free(0, 0, &SETTINGS), None);
        assert_eq!(to_free(1000, 0, &ImageGc { high: 100, ..SETTINGS }), None);
    }
}
