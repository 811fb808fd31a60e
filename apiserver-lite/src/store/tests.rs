use std::path::Path;

use super::*;
use proto::json::Slotted;

fn encoded(text: &str) -> Encoded {
    let json = format!(r#"{{"metadata":{{"resourceVersion":""}},"text":"{text}"}}"#);
    let offset = json.find(r#"""}"#).expect("the version's place") + 1;
    Encoded { json: Slotted { json: json.into_bytes(), offset }, keys: Keys::default(), tree: None }
}

fn put(name: &str, text: &str, expect: Expect) -> Write {
    Write { resource: "things".into(), key: Key::new("ns", name), expect, change: Change::Put(encoded(text)) }
}

fn things() -> ResourceId {
    "things".into()
}

/// Every promise holds in memory and on disk.
async fn both(test: impl AsyncFn(Store)) {
    test(Store::open(None).expect("memory opens")).await;
    let folder = Folder::new();
    test(Store::open(Some(folder.0.clone())).expect("an empty folder opens")).await;
}

#[test]
fn a_rehearsed_object_has_no_version_but_what_its_sender_said() {
    let shown = |said: &str| encoded("a").unsaved(Key::new("ns", "a"), said).value()["metadata"].take();
    assert_eq!(shown(""), serde_json::json!({}));
    assert_eq!(shown("17"), serde_json::json!({"resourceVersion": "17"}));
}

struct Folder(PathBuf);

impl Folder {
    fn new() -> Self {
        static COUNT: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("store-test-{}-{count}", std::process::id()));
        std::fs::create_dir_all(&path).expect("a temporary folder");
        Folder(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[tokio::test]
async fn preconditions_are_checked_against_the_newest_state() {
    both(async |store| {
        let first = store.commit(put("a", "1", Expect::Absent)).await.expect("created");
        assert_eq!(first.revision, 2);
        assert_eq!(&first.json.bytes()[..], br#"{"metadata":{"resourceVersion":"2"},"text":"1"}"#);
        assert!(matches!(store.commit(put("a", "1", Expect::Absent)).await, Err(CommitError::Exists(_))));
        assert!(matches!(store.commit(put("b", "1", Expect::Present)).await, Err(CommitError::Missing)));
        let second = store.commit(put("a", "2", Expect::Revision(2))).await.expect("updated");
        assert_eq!(second.revision, 3);
        assert!(matches!(store.commit(put("a", "3", Expect::Revision(2))).await, Err(CommitError::Conflict(o)) if o.revision == 3));
        assert_eq!(store.revision(), 3);
    })
    .await;
}

#[tokio::test]
async fn old_snapshots_stay_readable_and_watches_start_anywhere_in_history() {
    both(async |store| {
        for name in ["a", "b", "c"] {
            store.commit(put(name, "1", Expect::Absent)).await.expect("created");
        }
        let delete = Write {
            resource: things(),
            key: Key::new("ns", "b"),
            expect: Expect::Present,
            change: Change::Delete(encoded("1")),
        };
        store.commit(delete).await.expect("deleted");
        let names = |s: &Snapshot| s.range(Some("ns"), None).map(|o| o.key.name.to_string()).collect::<Vec<_>>();
        assert_eq!(names(&store.snapshot(&things())), ["a", "c"]);
        assert_eq!(names(&store.snapshot_at(&things(), 4).expect("known")), ["a", "b", "c"]);
        assert_eq!(names(&store.snapshot_at(&things(), 2).expect("known")), ["a"]);
        assert!(store.snapshot_at(&things(), 0).is_err());
        let after = Key::new("ns", "a");
        assert_eq!(store.snapshot(&things()).range(None, Some(&after)).count(), 1);
        assert_eq!(store.snapshot(&things()).range(Some("other"), None).count(), 0);
        let mut watcher = store.watch(&things(), 3).expect("known");
        let mut events = Vec::new();
        watcher.next(&mut events).await.expect("events");
        let seen: Vec<_> = events.iter().map(|e| (e.kind, e.revision, e.object.key.name.to_string())).collect();
        assert_eq!(seen, [(EventKind::Added, 4, "c".into()), (EventKind::Deleted, 5, "b".into())]);
        assert_eq!(events[1].object.revision, 5);
        assert!(store.watch(&things(), 0).is_err());
    })
    .await;
}

#[tokio::test]
async fn a_changed_object_stands_where_the_one_before_stood() {
    let folder = Folder::new();
    let look = |snapshot: Snapshot| -> Vec<(String, u64)> {
        snapshot.range(None, None).map(|o| (o.key.name.to_string(), o.revision)).collect()
    };
    let first = vec![("a".to_owned(), 2), ("b".to_owned(), 3)];
    let then = vec![("a".to_owned(), 4), ("b".to_owned(), 3)];
    {
        let store = Store::open(Some(folder.0.clone())).expect("an empty folder opens");
        for (name, expect) in [("a", Expect::Absent), ("b", Expect::Absent), ("a", Expect::Revision(2))] {
            store.commit(put(name, "1", expect)).await.expect("written");
        }
        assert_eq!(look(store.snapshot(&things())), then);
        assert_eq!(look(store.snapshot_at(&things(), 3).expect("known")), first);
    }
    let store = open_again(&folder.0).await;
    assert_eq!(look(store.snapshot(&things())), then);
}

#[tokio::test]
async fn a_watcher_waits_for_what_comes() {
    both(async |store| {
        let mut watcher = store.watch(&things(), store.revision()).expect("now is known");
        let waiting = tokio::spawn(async move {
            let mut events = Vec::new();
            watcher.next(&mut events).await.expect("an event");
            events.len()
        });
        store.commit(put("a", "1", Expect::Absent)).await.expect("created");
        assert_eq!(waiting.await.expect("no panic"), 1);
    })
    .await;
}

#[tokio::test]
async fn a_watcher_that_falls_behind_is_told() {
    let store = Store::open(None).expect("memory opens");
    let mut watcher = store.watch(&things(), 1).expect("now is known");
    store.commit(put("a", "0", Expect::Absent)).await.expect("created");
    for _ in 0..16_400 {
        store.commit(put("a", "1", Expect::Present)).await.expect("updated");
    }
    assert!(watcher.next(&mut Vec::new()).await.is_err());
}

#[tokio::test]
async fn everything_acknowledged_is_there_after_opening_again() {
    let folder = Folder::new();
    let store = Store::open(Some(folder.0.clone())).expect("opens");
    let mut tasks = tokio::task::JoinSet::new();
    for task in 0..16 {
        let store = store.clone();
        tasks.spawn(async move {
            for number in 0..20 {
                store.commit(put(&format!("{task}-{number}"), "x", Expect::Absent)).await.expect("created");
            }
        });
    }
    tasks.join_all().await;
    drop(store);
    let store = open_again(&folder.0).await;
    assert_eq!((store.snapshot(&things()).len(), store.revision()), (320, 321));
    assert!(matches!(Store::open(Some(folder.0.clone())), Err(OpenError::Locked(_))));
}

/// The writer lets go of the folder shortly after the last handle is dropped.
async fn open_again(folder: &std::path::Path) -> Store {
    opened_again(folder).await.expect("opens again")
}

/// What comes of opening a folder whose last store may have been dropped a moment ago: its writer lets go of it then.
async fn opened_again(folder: &std::path::Path) -> Result<Store, OpenError> {
    for _ in 0..1000 {
        match Store::open(Some(folder.into())) {
            Err(OpenError::Locked(_)) => tokio::time::sleep(Duration::from_millis(2)).await,
            other => return other,
        }
    }
    panic!("the folder stays locked");
}

#[tokio::test]
async fn a_torn_tail_loses_only_what_was_not_acknowledged_and_damage_is_refused() {
    let folder = Folder::new();
    let store = Store::open(Some(folder.0.clone())).expect("opens");
    store.commit(put("a", "1", Expect::Absent)).await.expect("created");
    let log = folder.0.join("0.log");
    let first = std::fs::metadata(&log).expect("the log").len();
    store.commit(put("b", "2", Expect::Absent)).await.expect("created");
    drop(store);
    drop(open_again(&folder.0).await);
    let whole = std::fs::read(&log).expect("the log");
    let first = usize::try_from(first).expect("small");
    for cut in first..=whole.len() {
        let copy = Folder::new();
        std::fs::write(copy.0.join("0.log"), &whole[..cut]).expect("writable");
        let store = Store::open(Some(copy.0.clone())).expect("a torn tail opens");
        let expected = if cut == whole.len() { 2 } else { 1 };
        assert_eq!(store.snapshot(&things()).len(), expected, "cut at {cut}");
        let next = store.commit(put("c", "3", Expect::Absent)).await.expect("writable again");
        assert_eq!(next.revision, expected as u64 + 2);
    }
    let mut damaged = whole;
    damaged[first / 2] ^= 1;
    std::fs::write(&log, &damaged).expect("writable");
    loop {
        match Store::open(Some(folder.0.clone())) {
            Err(OpenError::Locked(_)) => tokio::time::sleep(Duration::from_millis(2)).await,
            Err(OpenError::Damaged { .. }) => break,
            other => panic!("damage in the middle opened: {:?}", other.err()),
        }
    }
}

#[tokio::test]
async fn snapshots_replace_the_log() {
    let folder = Folder::new();
    let store = Store::open(Some(folder.0.clone())).expect("opens");
    let big = "x".repeat(1 << 20);
    store.commit(put("a", &big, Expect::Absent)).await.expect("created");
    for _ in 0..20 {
        store.commit(put("a", &big, Expect::Present)).await.expect("updated");
    }
    let snapshot = folder.0.join("1.snap");
    for _ in 0..1000 {
        if snapshot.exists() && !folder.0.join("0.log").exists() {
            break;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert!(snapshot.exists() && !folder.0.join("0.log").exists());
    drop(store);
    let store = open_again(&folder.0).await;
    assert_eq!(store.get(&things(), "ns", "a").map(|o| o.revision), Some(22));
    assert_eq!(store.revision(), 22);
}

#[tokio::test]
async fn a_lost_snapshot_or_segment_does_not_open_as_an_emptier_store() {
    let folder = Folder::new();
    std::fs::create_dir_all(&folder.0).expect("writable");
    std::fs::write(folder.0.join("3.log"), b"").expect("writable");
    let missing = |found: Result<Store, OpenError>| match found {
        Err(OpenError::Missing(path)) => path.file_name().map(|n| n.to_string_lossy().into_owned()),
        other => panic!("opened without its beginning: {:?}", other.err()),
    };
    assert_eq!(missing(Store::open(Some(folder.0.clone()))).as_deref(), Some("0.log"));
    std::fs::rename(folder.0.join("3.log"), folder.0.join("0.log")).expect("writable");
    std::fs::write(folder.0.join("2.log"), b"").expect("writable");
    assert_eq!(missing(Store::open(Some(folder.0.clone()))).as_deref(), Some("1.log"));
}

#[tokio::test]
async fn a_snapshot_or_segment_that_was_cut_between_frames_is_damaged() {
    let folder = Folder::new();
    let store = Store::open(Some(folder.0.clone())).expect("opens");
    let big = "x".repeat(3 << 19);
    for number in 0..12 {
        store.commit(put(&number.to_string(), &big, Expect::Absent)).await.expect("created");
    }
    let snapshot = folder.0.join("1.snap");
    for _ in 0..1000 {
        if snapshot.exists() && !folder.0.join("0.log").exists() {
            break;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    drop(store);
    drop(open_again(&folder.0).await);
    let whole = std::fs::read(&snapshot).expect("the snapshot");
    let mut ends = Vec::new();
    let mut at = 0;
    while let frame::Next::Frame(_, length) = frame::next(&whole[at..]) {
        ends.push(at);
        at += length;
    }
    assert!(ends.len() > 5, "the snapshot has many frames");
    for cut in ends {
        std::fs::write(&snapshot, &whole[..cut]).expect("writable");
        assert!(matches!(opened_again(&folder.0).await, Err(OpenError::Damaged { .. })), "cut at {cut}");
    }
    std::fs::write(&snapshot, &whole).expect("writable");
    // A segment in the middle that lost its end, as if the next one had been begun after it was whole.
    let mut head = frame::Writer::new();
    head.revision(100);
    std::fs::write(folder.0.join("2.log"), head.finish()).expect("writable");
    assert!(matches!(opened_again(&folder.0).await, Err(OpenError::Damaged { .. })));
}

#[tokio::test]
async fn history_ages_though_nothing_is_written() {
    let limits = Limits { age: Duration::from_millis(40), ..Limits::default() };
    let store = Store::open_with(None, limits).expect("memory opens");
    store.commit(put("a", "1", Expect::Absent)).await.expect("created");
    assert!(store.watch(&things(), 1).is_ok() && store.snapshot_at(&things(), 1).is_ok());
    for _ in 0..1000 {
        if store.watch(&things(), 1).is_err() {
            break;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert!(store.watch(&things(), 1).is_err() && store.snapshot_at(&things(), 1).is_err());
    assert!(store.watch(&things(), 2).is_ok(), "now is never too old");
    assert_eq!(store.snapshot_at(&things(), 2).map(|s| s.len()), Ok(1));
}

/// A collection that is not written keeps its history, and was read at a version of any age.
#[tokio::test]
async fn a_version_expires_in_every_collection_at_once() {
    let limits = Limits { age: Duration::from_millis(40), ..Limits::default() };
    let store = Store::open_with(None, limits).expect("memory opens");
    store.commit(put("a", "1", Expect::Absent)).await.expect("created");
    assert!(store.snapshot_at(&things(), 2).is_ok());
    for others in ["others", "more"] {
        let write = Write { resource: others.into(), ..put("a", "1", Expect::Absent) };
        store.commit(write).await.expect("created");
    }
    while store.snapshot_at(&things(), 3).is_ok() {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    for of in ["things", "others", "never written"] {
        let known = [2, 3, 4].map(|revision| store.snapshot_at(&of.into(), revision).is_ok());
        assert_eq!(known, [false, false, true], "{of}: the store's newest version is never too old");
    }
    assert!(store.watch(&things(), 2).is_ok(), "watches go on from their own collection's past");
}

#[tokio::test]
async fn an_image_of_a_running_store_makes_a_store_with_the_same_objects() {
    let folder = Folder::new();
    let store = Store::open(Some(folder.0.clone())).expect("opens");
    for name in ["a", "b", "c"] {
        store.commit(put(name, "1", Expect::Absent)).await.expect("created");
    }
    let gone = Change::Delete(encoded("1"));
    let gone = Write { resource: things(), key: Key::new("ns", "b"), expect: Expect::Present, change: gone };
    store.commit(gone).await.expect("deleted");
    let image = Image::read(&folder.0).expect("readable beside the server");
    assert_eq!((image.revision, image.len(), image.unfinished), (5, 2, 0));
    let bytes = image.snapshot();
    let copy = Image::of_snapshot(Path::new("copy"), &bytes).expect("whole");
    let elsewhere = Folder::new();
    copy.write(&elsewhere.0, 1005).expect("written");
    let restored = Store::open(Some(elsewhere.0.clone())).expect("opens");
    assert_eq!(restored.revision(), 1005);
    assert_eq!(restored.get(&things(), "ns", "c").map(|o| o.revision), Some(4));
    assert!(restored.get(&things(), "ns", "b").is_none());
    assert!(restored.watch(&things(), 5).is_err(), "who watched the old store has to list again");
    let next = restored.commit(put("b", "2", Expect::Absent)).await.expect("created");
    assert_eq!(next.revision, 1006);
    for at in [0, 20, bytes.len() / 2, bytes.len() - 1] {
        let mut bad = bytes.clone();
        bad[at] ^= 1;
        assert!(Image::of_snapshot(Path::new("copy"), &bad).is_err(), "byte {at} is not checked");
    }
    assert!(Image::of_snapshot(Path::new("copy"), &bytes[..bytes.len() - 20]).is_err());
}

#[tokio::test]
async fn an_image_while_segments_are_replaced_has_everything_acknowledged() {
    let folder = Folder::new();
    let store = Store::open(Some(folder.0.clone())).expect("opens");
    let big = "x".repeat(1 << 20);
    for number in 0..40_u64 {
        let name = format!("n{number}");
        store.commit(put(&name, &big, Expect::Absent)).await.expect("created");
        let path = folder.0.clone();
        let image = tokio::task::spawn_blocking(move || Image::read(&path)).await.expect("no panic").expect("readable");
        assert!(image.revision >= number + 2, "{} after {number}", image.revision);
        store.commit(put(&name, "small", Expect::Present)).await.expect("updated");
        store.commit(put(&name, "x", Expect::Present)).await.expect("updated");
    }
}
