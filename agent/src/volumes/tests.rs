//! Volumes in a temporary root directory, with objects from memory. What mounts is left out without the right to.

use std::collections::BTreeMap;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use proto::api::core::v1::{
    ConfigMap, ConfigMapVolumeSource, Container, EmptyDirVolumeSource, HostPathVolumeSource, KeyToPath,
    LocalObjectReference, LocalVolumeSource, Node, NodeSelector, NodeSelectorRequirement, NodeSelectorTerm,
    ObjectReference, PersistentVolume, PersistentVolumeClaim, PersistentVolumeClaimSpec, PersistentVolumeClaimStatus,
    PersistentVolumeClaimVolumeSource, PersistentVolumeSource, PersistentVolumeSpec, Pod, PodSecurityContext, PodSpec,
    ProjectedVolumeSource, Secret, SecretVolumeSource, Service, ServiceAccountTokenProjection, Volume, VolumeMount,
    VolumeNodeAffinity, VolumeProjection, VolumeSource,
};
use proto::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use tokio::sync::watch;

use super::*;
use crate::objects::{Answer, Issued, ObjectError, TokenQuery};

/// A directory that goes away with the test, mounts first.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Scratch {
        let path = std::env::temp_dir().join(format!("volumes-{name}-{}", std::process::id()));
        let _ = mount_table::unmount_below(&path);
        let _ = std::fs::remove_dir_all(&path);
        std::fs::create_dir_all(&path).expect("a temporary directory");
        Scratch(path)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = mount_table::unmount_below(&self.0);
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[derive(Default)]
struct Memory {
    config_maps: Mutex<BTreeMap<String, Arc<ConfigMap>>>,
    secrets: Mutex<BTreeMap<String, Arc<Secret>>>,
    /// What the claim `disk` is bound to.
    disk: Mutex<PersistentVolume>,
}

impl Memory {
    fn put(&self, name: &str, data: &[(&str, &str)]) {
        let data = data.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
        let map = Arc::new(ConfigMap { data, ..Default::default() });
        self.config_maps.lock().expect("no panic while held").insert(name.into(), map);
    }
}

fn missing(kind: &'static str, name: &str) -> ObjectError {
    ObjectError::NotFound { kind, name: name.into() }
}

impl Objects for Memory {
    fn config_map<'a>(&'a self, _: &'a str, name: &'a str) -> Answer<'a, Result<Arc<ConfigMap>, ObjectError>> {
        let found = self.config_maps.lock().expect("no panic while held").get(name).cloned();
        Box::pin(std::future::ready(found.ok_or_else(|| missing("configmap", name))))
    }
    fn secret<'a>(&'a self, _: &'a str, name: &'a str) -> Answer<'a, Result<Arc<Secret>, ObjectError>> {
        let found = self.secrets.lock().expect("no panic while held").get(name).cloned();
        Box::pin(std::future::ready(found.ok_or_else(|| missing("secret", name))))
    }
    fn services<'a>(&'a self, _: &'a str) -> Answer<'a, Result<Vec<Arc<Service>>, ObjectError>> {
        Box::pin(std::future::ready(Ok(Vec::new())))
    }
    fn register(&self, _: &Pod) {}
    fn unregister(&self, _: &str) {}
}

impl claims::Claims for Memory {
    fn claim<'a>(
        &'a self,
        _: &'a str,
        name: &'a str,
    ) -> claims::Found<'a, proto::api::core::v1::PersistentVolumeClaim> {
        if name == "unanswered" {
            return Box::pin(std::future::pending());
        }
        if name == "disk" {
            let claim = proto::api::core::v1::PersistentVolumeClaim {
                metadata: Some(ObjectMeta { name: name.into(), namespace: "ns".into(), ..Default::default() }),
                spec: Some(PersistentVolumeClaimSpec { volume_name: "pv".into(), ..Default::default() }),
                status: Some(PersistentVolumeClaimStatus { phase: "Bound".into(), ..Default::default() }),
            };
            return Box::pin(std::future::ready(Ok(claim)));
        }
        Box::pin(std::future::ready(Err(crate::api::ApiError::Standalone)))
    }
    fn volume<'a>(&'a self, _: &'a str) -> claims::Found<'a, PersistentVolume> {
        Box::pin(std::future::ready(Ok(self.disk.lock().expect("no panic while held").clone())))
    }
}

impl Tokens for Memory {
    fn issued<'a>(&'a self, query: &'a TokenQuery) -> Answer<'a, Result<Issued, ObjectError>> {
        let token = format!("token for {}", query.audience);
        Box::pin(std::future::ready(Ok(Issued { token, expires: std::time::UNIX_EPOCH })))
    }
    fn forget(&self, _: &str) {}
}

fn manager(root: &Path, objects: &Arc<Memory>) -> Manager {
    manager_with(root, objects, Arc::default())
}

fn manager_with(root: &Path, objects: &Arc<Memory>, drivers: Arc<crate::csi::Drivers>) -> Manager {
    let node = watch::channel(Arc::new(Node::default())).1;
    manager_at(root, objects, (objects.clone(), drivers), node)
}

fn manager_at(
    root: &Path,
    objects: &Arc<Memory>,
    (claims, drivers): (Arc<dyn claims::Claims>, Arc<crate::csi::Drivers>),
    node: watch::Receiver<Arc<Node>>,
) -> Manager {
    Manager::new(VolumeDeps {
        root_dir: root.into(),
        objects: objects.clone(),
        tokens: objects.clone(),
        claims,
        node,
        csi: CsiDeps { root_dir: root.into(), node: "n".into(), drivers, in_use: Box::new(|_| {}), reported: None },
    })
}

/// A pod whose container mounts all its volumes.
fn pod(volumes: Vec<(&str, VolumeSource)>) -> Pod {
    let mounts = volumes.iter().map(|(name, _)| VolumeMount { name: (*name).into(), ..Default::default() });
    let main = Container { name: "main".into(), volume_mounts: mounts.collect(), ..Default::default() };
    let volumes = volumes.into_iter().map(|(name, source)| Volume { name: name.into(), volume_source: Some(source) });
    Pod {
        metadata: Some(ObjectMeta {
            name: "p".into(),
            uid: "u1".into(),
            labels: [("l".to_owned(), "v".to_owned())].into(),
            ..Default::default()
        }),
        spec: Some(PodSpec { volumes: volumes.collect(), containers: vec![main], ..Default::default() }),
        ..Default::default()
    }
}

/// All volumes, as fresh as they can be.
async fn set_up(manager: &Manager, pod: &Pod) -> Result<PodVolumes, Vec<VolumeError>> {
    manager.setup(pod, &mut Told::default()).await
}

/// The only thing that is told of volumes that cannot be had.
async fn told(manager: &Manager, pod: &Pod) -> String {
    let errors = set_up(manager, pod).await.expect_err("not all can be had");
    assert_eq!(errors.len(), 1, "{errors:?}");
    errors[0].to_string()
}

fn config_map(name: &str, mode: i32, items: &[(&str, &str, Option<i32>)], optional: bool) -> VolumeSource {
    let items =
        items.iter().map(|(key, path, mode)| KeyToPath { key: (*key).into(), path: (*path).into(), mode: *mode });
    VolumeSource {
        config_map: Some(ConfigMapVolumeSource {
            local_object_reference: Some(LocalObjectReference { name: name.into() }),
            items: items.collect(),
            default_mode: Some(mode),
            optional: Some(optional),
        }),
        ..Default::default()
    }
}

fn mode(path: &Path) -> u32 {
    std::fs::metadata(path).expect("it exists").mode() & 0o7777
}

/// Whether this process may mount, by trying.
fn may_mount(scratch: &Scratch) -> bool {
    let place = scratch.0.join("try");
    std::fs::create_dir_all(&place).expect("a directory");
    let made = empty_dir::mount_memory(&place, Some(4096)).is_ok();
    if !made {
        println!("skipped: no right to mount");
    }
    made
}

#[tokio::test]
async fn config_maps_appear_at_once_and_follow_changes() {
    let scratch = Scratch::new("config-map");
    let objects = Arc::new(Memory::default());
    let manager = manager(&scratch.0, &objects);
    let all = pod(vec![
        ("all", config_map("cm", 0o644, &[], false)),
        ("some", config_map("cm", 0o400, &[("a", "deep/er/a", None), ("b", "b", Some(0o777))], false)),
    ]);
    let errors: Vec<String> =
        set_up(&manager, &all).await.expect_err("the map is not there").iter().map(ToString::to_string).collect();
    let missing = |volume| format!("MountVolume.SetUp failed for volume {volume:?} : configmap \"cm\" not found");
    assert_eq!(errors, [missing("all"), missing("some")], "each mount tells of itself");

    objects.put("cm", &[("a", "alpha"), ("b", "beta")]);
    let made = set_up(&manager, &all).await.expect("volumes");
    let path = &made["all"].host_path;
    assert_eq!(*path, scratch.0.join("pods/u1/volumes/kubernetes.io~configmap/all"));
    assert!(made["all"].read_only);
    assert_eq!(mode(path), 0o777);
    assert_eq!(std::fs::read_link(path.join("a")).expect("a link"), Path::new("..data/a"));
    assert_eq!(mode(&path.join("..data/")), 0o755);
    let some = &made["some"].host_path;
    assert_eq!((mode(&some.join("deep/er/a")), mode(&some.join("b")), mode(&some.join("deep"))), (0o400, 0o777, 0o755));

    let data = std::fs::read_link(path.join("..data")).expect("a link");
    set_up(&manager, &all).await.expect("volumes");
    assert_eq!(std::fs::read_link(path.join("..data")).expect("a link"), data, "nothing changed");

    objects.put("cm", &[("b", "new"), ("c", "gamma")]);
    // A pod that has its volumes keeps them, whatever becomes of what they are made of.
    let mut told = Told::default();
    let kept = manager.setup(&all, &mut told).await.expect("what is there stays");
    assert_eq!((&kept["some"], told.stale.len()), (&made["some"], 1));
    let error = told.stale[0].to_string();
    assert_eq!(error, "MountVolume.SetUp failed for volume \"some\" : configmap references non-existent config key: a");
    assert_eq!(std::fs::read_to_string(some.join("deep/er/a")).expect("a file"), "alpha");
    assert_eq!(std::fs::read_to_string(path.join("b")).expect("a file"), "new");
    let mut names: Vec<_> =
        std::fs::read_dir(path).expect("a directory").map(|e| e.expect("an entry").file_name()).collect();
    names.sort();
    assert_eq!(names.len(), 4, "{names:?}");
    assert_eq!(names[2..], ["b", "c"]);
    manager.teardown("u1").await.expect("gone");
    assert!(!scratch.0.join("pods/u1/volumes").exists());
}

#[tokio::test]
async fn what_is_optional_may_be_missing() {
    let scratch = Scratch::new("optional");
    let manager = manager(&scratch.0, &Arc::new(Memory::default()));
    let made = set_up(&manager, &pod(vec![("none", config_map("no", 0o644, &[("x", "x", None)], true))]))
        .await
        .expect("empty");
    let left: Vec<_> = std::fs::read_dir(&made["none"].host_path).expect("a directory").collect();
    assert_eq!(left.len(), 2, "only ..data and what it points to");
}

#[tokio::test]
async fn what_nothing_uses_holds_nothing_back() {
    let scratch = Scratch::new("unused");
    let manager = manager(&scratch.0, &Arc::new(Memory::default()));
    let empty = VolumeSource { empty_dir: Some(EmptyDirVolumeSource::default()), ..Default::default() };
    let mut pod = pod(vec![("none", config_map("no", 0o644, &[], false)), ("idle", empty.clone()), ("used", empty)]);
    pod.spec.as_mut().expect("a spec").containers[0].volume_mounts.retain(|mount| mount.name == "used");
    let made = set_up(&manager, &pod).await.expect("all that is used");
    assert_eq!(made.keys().collect::<Vec<_>>(), ["used"]);
    assert!(!scratch.0.join("pods/u1/volumes/kubernetes.io~empty-dir/idle").exists());
}

/// Volumes were made one after the other: whatever one waited for, a driver or the API server, all after it waited for too.
#[tokio::test]
async fn no_volume_waits_for_another() {
    let scratch = Scratch::new("beside");
    let manager = manager(&scratch.0, &Arc::new(Memory::default()));
    let claim = PersistentVolumeClaimVolumeSource { claim_name: "unanswered".into(), read_only: false };
    let slow = VolumeSource { persistent_volume_claim: Some(claim), ..Default::default() };
    let empty = VolumeSource { empty_dir: Some(EmptyDirVolumeSource::default()), ..Default::default() };
    let pod = pod(vec![("slow", slow.clone()), ("again", slow), ("fast", empty)]);
    let ready = manager.ready_file("u1", "fast");
    let made = async {
        while !ready.exists() {
            tokio::time::sleep(std::time::Duration::from_millis(10)).await;
        }
    };
    tokio::select! {
        done = set_up(&manager, &pod) => panic!("the API server does not answer: {done:?}"),
        () = made => {}
        () = tokio::time::sleep(std::time::Duration::from_secs(20)) => panic!("it waits for the others"),
    }
}

/// Of claims on the node's own disks nobody told how full they are.
#[tokio::test]
async fn it_is_known_of_a_claim_on_a_disk_where_its_file_system_is() {
    let scratch = Scratch::new("claimed");
    if !may_mount(&scratch) {
        return;
    }
    let objects = Arc::new(Memory::default());
    let drivers = Arc::new(crate::csi::Drivers::default());
    let manager = manager_with(&scratch.0, &objects, drivers.clone());
    let folder = scratch.0.join("disk");
    std::fs::create_dir(&folder).expect("a directory");
    let path = folder.display().to_string();
    let of_node = |source| PersistentVolume {
        metadata: Some(ObjectMeta { name: "pv".into(), ..Default::default() }),
        spec: Some(PersistentVolumeSpec {
            claim_ref: Some(ObjectReference::default()),
            persistent_volume_source: Some(source),
            ..Default::default()
        }),
        ..Default::default()
    };
    let claim = PersistentVolumeClaimVolumeSource { claim_name: "disk".into(), read_only: false };
    let source = VolumeSource { persistent_volume_claim: Some(claim), ..Default::default() };
    let local = LocalVolumeSource { path: path.clone(), ..Default::default() };
    *objects.disk.lock().expect("no panic while held") =
        of_node(PersistentVolumeSource { local: Some(local), ..Default::default() });
    let made = set_up(&manager, &pod(vec![("data", source.clone())])).await.expect("volumes");
    let claim = Some(("ns".to_owned(), "disk".to_owned()));
    let want = BTreeMap::from([(made["data"].host_path.clone(), ("data".to_owned(), claim))]);
    assert_eq!(drivers.usages.file_systems_of_pod("u1"), want);
    manager.teardown("u1").await.expect("it is gone");
    assert!(drivers.usages.file_systems_of_pod("u1").is_empty());
    // A path of the host is no volume that is counted.
    let host = HostPathVolumeSource { path, ..Default::default() };
    *objects.disk.lock().expect("no panic while held") =
        of_node(PersistentVolumeSource { host_path: Some(host), ..Default::default() });
    set_up(&manager, &pod(vec![("data", source)])).await.expect("volumes");
    assert!(drivers.usages.file_systems_of_pod("u1").is_empty());
}

/// Every claim is bound to this volume.
struct OneVolume(PersistentVolume);

impl claims::Claims for OneVolume {
    fn claim<'a>(&'a self, _: &'a str, name: &'a str) -> claims::Found<'a, PersistentVolumeClaim> {
        let claim = PersistentVolumeClaim {
            metadata: Some(ObjectMeta { name: name.into(), ..Default::default() }),
            spec: Some(PersistentVolumeClaimSpec { volume_name: "pv".into(), ..Default::default() }),
            status: Some(PersistentVolumeClaimStatus { phase: "Bound".into(), ..Default::default() }),
        };
        Box::pin(std::future::ready(Ok(claim)))
    }
    fn volume<'a>(&'a self, _: &'a str) -> claims::Found<'a, PersistentVolume> {
        Box::pin(std::future::ready(Ok(self.0.clone())))
    }
}

/// A label of the node that went kept the pods with volumes there from being looked after: what crashed stayed down.
#[tokio::test]
async fn a_node_that_moves_takes_no_volume_from_who_has_it() {
    let scratch = Scratch::new("affinity");
    let place = scratch.0.join("place");
    std::fs::create_dir(&place).expect("a directory");
    let path = place.display().to_string();
    let host = HostPathVolumeSource { path: path.clone(), ..Default::default() };
    let host = PersistentVolumeSource { host_path: Some(host), ..Default::default() };
    let local = LocalVolumeSource { path, ..Default::default() };
    let local = PersistentVolumeSource { local: Some(local), ..Default::default() };
    let node = |zone: &str| {
        let labels = [("zone".to_owned(), zone.to_owned())].into();
        Arc::new(Node { metadata: Some(ObjectMeta { labels, ..Default::default() }), ..Default::default() })
    };
    let here = NodeSelectorRequirement { key: "zone".into(), operator: "In".into(), values: vec!["a".into()] };
    let here = NodeSelectorTerm { match_expressions: vec![here], ..Default::default() };
    let required = Some(NodeSelector { node_selector_terms: vec![here] });
    let claim = PersistentVolumeClaimVolumeSource { claim_name: "c".into(), read_only: false };
    let pod = pod(vec![("v", VolumeSource { persistent_volume_claim: Some(claim), ..Default::default() })]);
    let mut other = pod.clone();
    other.metadata.as_mut().expect("it has").uid = "u2".into();
    let is_mounted = may_mount(&scratch);
    for source in [Some(host), Some(local).filter(|_| is_mounted)].into_iter().flatten() {
        let again = source.local.is_some();
        let volume = PersistentVolume {
            metadata: Some(ObjectMeta { name: "pv".into(), ..Default::default() }),
            spec: Some(PersistentVolumeSpec {
                persistent_volume_source: Some(source),
                claim_ref: Some(ObjectReference::default()),
                node_affinity: Some(VolumeNodeAffinity { required: required.clone() }),
                ..Default::default()
            }),
            ..Default::default()
        };
        let (labels, seen) = watch::channel(node("a"));
        let volume = Arc::new(OneVolume(volume));
        let begin = || manager_at(&scratch.0, &Arc::default(), (volume.clone(), Arc::default()), seen.clone());
        let manager = begin();
        set_up(&manager, &pod).await.expect("it is in its place");
        labels.send_replace(node("b"));
        set_up(&manager, &pod).await.expect("it has it");
        if again {
            set_up(&begin(), &pod).await.expect("it has it from the agent before");
        }
        let refused = "MountVolume.NodeAffinity check failed for volume \"pv\" : no matching NodeSelectorTerms";
        assert_eq!(told(&manager, &other).await, refused);
        manager.teardown("u1").await.expect("gone");
        assert_eq!(told(&manager, &pod).await, refused, "it has it no more");
    }
}

#[test]
fn paths_cannot_leave_a_volume() {
    let scratch = Scratch::new("paths");
    let long = format!("a/{}", "n".repeat(256));
    for path in ["", "/a", "..", "../a", "a/../../b", "..a", "./", "./..data/a", "./..data", "a/..", long.as_str()] {
        let file = payload::File { data: Vec::new(), mode: 0o644, user: None };
        assert!(atomic::write(&scratch.0, &[(path.to_owned(), file)].into(), || Ok(())).is_err(), "{path:?}");
    }
}

/// A path that the API takes was refused for its dots and slashes, or its file could not be made: the volume never
/// came.
#[test]
fn paths_are_written_in_their_shortest_form() {
    let scratch = Scratch::new("clean");
    let file = |text: &str| payload::File { data: text.into(), mode: 0o644, user: None };
    let paths = ["./app.conf", "dir/file/", "a//b/./..c"];
    let payload: payload::Payload = paths.iter().map(|path| ((*path).to_owned(), file(path))).collect();
    let written = [(); 2].map(|()| {
        atomic::write(&scratch.0, &payload, || Ok(())).expect("written");
        let texts = ["app.conf", "dir/file", "a/b/..c"].map(|path| std::fs::read_to_string(scratch.0.join(path)));
        assert_eq!(texts.map(|text| text.expect("a file")), paths);
        std::fs::read_link(scratch.0.join("..data")).expect("a link")
    });
    assert_eq!(written[0], written[1], "the second time all was there");
}

#[tokio::test]
async fn host_paths_are_checked_and_made() {
    let scratch = Scratch::new("host");
    let manager = manager(&scratch.0, &Arc::new(Memory::default()));
    let source = |path: &Path, kind: &str| VolumeSource {
        host_path: Some(HostPathVolumeSource { path: path.display().to_string(), r#type: Some(kind.into()) }),
        ..Default::default()
    };
    let (directory, file) = (scratch.0.join("a/b"), scratch.0.join("file"));
    let good = pod(vec![
        ("d", source(&directory, "DirectoryOrCreate")),
        ("f", source(&file, "FileOrCreate")),
        ("unset", source(&scratch.0.join("nothing"), "")),
    ]);
    set_up(&manager, &good).await.expect("made");
    assert!(directory.is_dir() && file.is_file());
    // What is there no more keeps no pod that has it from being looked after; the next one is told.
    std::fs::remove_file(&file).expect("gone");
    std::fs::create_dir(&file).expect("something else");
    set_up(&manager, &good).await.expect("it was there");
    manager.teardown("u1").await.expect("over");
    assert!(told(&manager, &good).await.contains("is not a file"));
    std::fs::remove_dir(&file).expect("gone");
    std::fs::write(&file, b"").expect("a file");
    let below = |folder: &Path| folder.join("x/y");
    for (path, kind, why) in [
        (below(&scratch.0), "FileOrCreate", format!("open {}: no such file or directory", below(&scratch.0).display())),
        (below(&file), "DirectoryOrCreate", format!("mkdir {}: not a directory", file.display())),
    ] {
        let error = told(&manager, &pod(vec![("v", source(&path, kind))])).await;
        assert_eq!(error, format!("MountVolume.SetUp failed for volume \"v\" : {why}"));
    }
    for (path, kind, wanted) in [
        (&file, "Directory", "a directory"),
        (&directory, "File", "a file"),
        (&file, "Socket", "a socket file"),
        (&file, "CharDevice", "a character device"),
        (&scratch.0.join("absent"), "Directory", "a directory"),
    ] {
        let error = told(&manager, &pod(vec![("v", source(path, kind))])).await;
        let expected = format!(
            "MountVolume.SetUp failed for volume \"v\" : hostPath type check failed: {} is not {wanted}",
            path.display()
        );
        assert_eq!(error, expected);
    }
}

#[tokio::test]
async fn scratch_space_is_kept_until_the_pod_goes() {
    let scratch = Scratch::new("empty");
    let manager = manager(&scratch.0, &Arc::new(Memory::default()));
    let source = |medium: &str| VolumeSource {
        empty_dir: Some(EmptyDirVolumeSource { medium: medium.into(), ..Default::default() }),
        ..Default::default()
    };
    let mut volumes = vec![("disk", source(""))];
    if may_mount(&scratch) {
        volumes.push(("mem", source("Memory")));
    }
    let mut grouped = pod(volumes);
    let is_root = nix::unistd::geteuid().is_root();
    if is_root && let Some(spec) = grouped.spec.as_mut() {
        spec.security_context = Some(PodSecurityContext { fs_group: Some(3001), ..Default::default() });
    }
    let made = set_up(&manager, &grouped).await.expect("made");
    let disk = &made["disk"].host_path;
    assert_eq!(mode(disk), if is_root { 0o2777 } else { 0o777 });
    std::fs::write(disk.join("kept"), b"x").expect("a file");
    std::fs::set_permissions(disk.join("kept"), std::fs::Permissions::from_mode(0o600)).expect("a mode");
    set_up(&manager, &grouped).await.expect("made before");
    assert_eq!(mode(&disk.join("kept")), 0o600, "left alone");
    if let Some(memory) = made.get("mem") {
        assert!(mount_table::is_mount_point(&memory.host_path).unwrap());
        assert_eq!(mode(&memory.host_path), if is_root { 0o3777 } else { 0o1777 });
        let place = memory.host_path.display().to_string();
        let mounts = std::fs::read_to_string("/proc/self/mounts").expect("a table");
        let line = mounts.lines().find(|line| line.split(' ').nth(1) == Some(&place)).expect("it is mounted");
        let kernel = std::fs::read_to_string("/proc/sys/kernel/osrelease").expect("a release");
        let version: Vec<u32> = kernel.split(['.', '-']).take(2).map(|n| n.parse().expect("a number")).collect();
        assert_eq!(line.contains("noswap"), version >= vec![6, 4], "{line}");
    }
    manager.teardown("u1").await.expect("gone");
    manager.teardown("u1").await.expect("gone is gone");
    assert!(!disk.exists());
}

/// A privileged pod can mount there what does not answer any more: it was looked at again at every sync, by a thread that
/// others need.
#[tokio::test]
async fn scratch_space_that_a_pod_has_is_not_looked_at_again() {
    let scratch = Scratch::new("once");
    let objects = Arc::new(Memory::default());
    let source = VolumeSource { empty_dir: Some(EmptyDirVolumeSource::default()), ..Default::default() };
    let pod = pod(vec![("disk", source)]);
    let first = manager(&scratch.0, &objects);
    let disk = set_up(&first, &pod).await.expect("made")["disk"].host_path.clone();
    std::fs::remove_dir(&disk).expect("it is empty");
    assert_eq!(set_up(&first, &pod).await.expect("had")["disk"].host_path, disk);
    assert!(!disk.exists());
    // The next agent knows nothing of it yet.
    set_up(&manager(&scratch.0, &objects), &pod).await.expect("made again");
    assert!(disk.is_dir());
    first.teardown("u1").await.expect("gone");
    set_up(&first, &pod).await.expect("made for the next pod of that name and uid");
    assert!(disk.is_dir());
}

/// A pod that runs failed for good after a restart of the agent: the folder could not be made over what it mounted there.
#[tokio::test]
async fn scratch_space_below_what_nobody_serves_any_more_is_there() {
    use std::os::fd::AsRawFd as _;
    let scratch = Scratch::new("unserved");
    let objects = Arc::new(Memory::default());
    let source = VolumeSource { empty_dir: Some(EmptyDirVolumeSource::default()), ..Default::default() };
    let pod = pod(vec![("disk", source)]);
    let disk = set_up(&manager(&scratch.0, &objects), &pod).await.expect("made")["disk"].host_path.clone();
    let Ok(served) = std::fs::OpenOptions::new().read(true).write(true).open("/dev/fuse") else { return };
    let options = format!("fd={},rootmode=40000,user_id=0,group_id=0", served.as_raw_fd());
    let flags = nix::mount::MsFlags::empty();
    if nix::mount::mount(Some("dead"), &disk, Some("fuse"), flags, Some(options.as_str())).is_err() {
        return;
    }
    drop(served);
    let error = std::fs::metadata(&disk).expect_err("nobody serves it");
    assert_eq!(error.raw_os_error(), Some(nix::errno::Errno::ENOTCONN as i32));
    let next = manager(&scratch.0, &objects);
    assert_eq!(set_up(&next, &pod).await.expect("it is there")["disk"].host_path, disk);
    next.teardown("u1").await.expect("gone");
    assert!(!disk.exists());
}

#[tokio::test]
async fn projections_are_one_volume() {
    let scratch = Scratch::new("projected");
    if !may_mount(&scratch) {
        return;
    }
    let objects = Arc::new(Memory::default());
    objects.put("cm", &[("c", "cm")]);
    let secret = Secret { data: [("k".to_owned(), "secret".into())].into(), ..Default::default() };
    objects.secrets.lock().expect("no panic while held").insert("s".into(), Arc::new(secret));
    let manager = manager(&scratch.0, &objects);
    let token = ServiceAccountTokenProjection { audience: "me".into(), expiration_seconds: None, path: "token".into() };
    let projection = |token| VolumeProjection { service_account_token: Some(token), ..Default::default() };
    let projected = ProjectedVolumeSource { sources: vec![projection(token)], default_mode: Some(0o640) };
    let source = VolumeSource { projected: Some(projected), ..Default::default() };
    let secret = SecretVolumeSource { secret_name: "s".into(), default_mode: Some(0o440), ..Default::default() };
    let secret = VolumeSource { secret: Some(secret), ..Default::default() };
    let mut both = pod(vec![("v", source), ("s", secret)]);
    let made = set_up(&manager, &both).await.expect("made");
    let path = made["v"].host_path.join("token");
    assert_eq!(std::fs::read_to_string(&path).expect("a file"), "token for me");
    assert_eq!((mode(&path), mode(&made["s"].host_path.join("k"))), (0o640, 0o440));
    assert!(mount_table::is_mount_point(&made["s"].host_path).unwrap());

    if let Some(spec) = both.spec.as_mut() {
        spec.security_context =
            Some(PodSecurityContext { run_as_user: Some(1000), fs_group: Some(3001), ..Default::default() });
    }
    manager.teardown("u1").await.expect("gone");
    set_up(&manager, &both).await.expect("made");
    let token = std::fs::metadata(&path).expect("a file");
    assert_eq!((token.uid(), token.gid(), token.mode() & 0o777), (1000, 3001, 0o640));
    manager.teardown("u1").await.expect("gone");
}

fn mounts(scratch: &Scratch, volume: &Path, mount: VolumeMount) -> Result<Vec<proto::cri::Mount>, VolumeError> {
    mounts_of(scratch, MountSource { host_path: volume.into(), ..Default::default() }, mount)
}

fn mounts_of(
    scratch: &Scratch,
    source: MountSource,
    mount: VolumeMount,
) -> Result<Vec<proto::cri::Mount>, VolumeError> {
    let container = Container { name: "main".into(), volume_mounts: vec![mount], ..Default::default() };
    let envs = [("POD".to_owned(), b"p".to_vec()), ("EMPTY".to_owned(), Vec::new())];
    let context = MountContext {
        pod_dir: &scratch.0.join("pods/u1"),
        volumes: &[("d".to_owned(), source)].into(),
        envs: &envs,
        hosts_file: None,
        termination_log: None,
        image_volumes: &BTreeMap::new(),
        recursive_read_only: false,
        selinux: true,
    };
    container_mounts(&pod(Vec::new()), &container, &context)
}

fn part(sub_path: &str) -> VolumeMount {
    VolumeMount { name: "d".into(), mount_path: "/m".into(), sub_path: sub_path.into(), ..Default::default() }
}

/// A runtime refuses the mount of an image that may be written to, and no volume leads out of one.
#[test]
fn volumes_of_images_are_mounted_read_only() {
    let scratch = Scratch::new("images");
    let mount = |mount: VolumeMount| {
        let source = MountSource { read_only: true, image: Some("i:1".into()), ..Default::default() };
        mounts_of(&scratch, source, mount).map(|mut made| made.remove(0)).map_err(|e| e.to_string())
    };
    let made = mount(VolumeMount { sub_path_expr: "logs/$(POD)".into(), ..part("") }).expect("a mount");
    assert_eq!((made.readonly, made.image_sub_path.as_str(), made.host_path.as_str()), (true, "logs/p", ""));
    assert_eq!((made.image.expect("an image").user_specified_image, made.selinux_relabel), ("i:1".into(), false));
    let recursive = |read_only| VolumeMount { recursive_read_only: Some("IfPossible".into()), read_only, ..part("") };
    assert!(!mount(recursive(true)).expect("a mount").recursive_read_only, "the runtime cannot");
    for (asked, told) in [
        (part("/etc"), "error SubPath `/etc` must not be an absolute path"),
        (part("a/.."), "unable to provision SubPath `a/..`: must not contain '..'"),
        (
            recursive(false),
            "failed to resolve recursive read-only mode: volume \"d\" requested recursive read-only mode, but it is not \
             read-only",
        ),
    ] {
        assert_eq!(mount(asked).expect_err("refused"), told);
    }
}

#[test]
fn parts_of_volumes_are_pinned_and_made() {
    let scratch = Scratch::new("parts");
    if !may_mount(&scratch) {
        return;
    }
    let volume = scratch.0.join("volume");
    empty_dir::make_directory(&volume).expect("a directory");
    std::fs::write(volume.join("conf"), b"text").expect("a file");
    symlink("conf", volume.join("link")).expect("a link");
    let expression = VolumeMount { sub_path_expr: "logs/$(POD)".into(), ..part("") };
    let made = mounts(&scratch, &volume, expression).expect("mounts");
    assert_eq!(made[0].host_path, scratch.0.join("pods/u1/volume-subpaths/d/main/0").display().to_string());
    assert_eq!(mode(&volume.join("logs/p")), 0o777);
    std::fs::write(Path::new(&made[0].host_path).join("seen"), b"").expect("a file");
    assert!(volume.join("logs/p/seen").exists());
    // The same place takes what is there now: another kind of thing, or another file of the same name.
    for text in ["text", "changed"] {
        std::fs::write(volume.join("new"), text).expect("a file");
        std::fs::rename(volume.join("new"), volume.join("conf")).expect("renamed");
        for _ in 0..2 {
            let made = mounts(&scratch, &volume, part("link")).expect("mounts");
            assert_eq!(std::fs::read_to_string(&made[0].host_path).expect("a file"), text);
        }
    }
    let source = MountSource { host_path: volume, inner_name: Some("pv".into()), ..Default::default() };
    let made = mounts_of(&scratch, source, part("logs")).expect("mounts");
    assert_eq!(made[0].host_path, scratch.0.join("pods/u1/volume-subpaths/pv/main/0").display().to_string());
}

#[test]
fn parts_belong_to_the_group_of_their_volume() {
    let scratch = Scratch::new("part-groups");
    if !may_mount(&scratch) {
        return;
    }
    let volume = scratch.0.join("volume");
    empty_dir::make_directory(&volume).expect("a directory");
    std::os::unix::fs::chown(&volume, None, Some(3001)).expect("a group");
    std::fs::set_permissions(&volume, std::fs::Permissions::from_mode(0o2775)).expect("a mode");
    mounts(&scratch, &volume, part("a/b")).expect("mounts");
    for made in [volume.join("a"), volume.join("a/b")] {
        assert_eq!((mode(&made), std::fs::metadata(&made).expect("it exists").gid()), (0o2775, 3001));
    }
}

#[test]
fn files_of_the_pod_are_labeled_and_those_of_the_host_are_not() {
    let scratch = Scratch::new("labels");
    let volumes = [true, false].map(|relabel| {
        let name = if relabel { "own" } else { "host" };
        (name.to_owned(), MountSource { host_path: scratch.0.clone(), relabel, ..Default::default() })
    });
    let mount = |name: &str| VolumeMount { name: name.into(), ..part("") };
    let container = Container { volume_mounts: vec![mount("own"), mount("host")], ..Default::default() };
    let labeled = |selinux| {
        let context = MountContext {
            pod_dir: &scratch.0,
            volumes: &volumes.clone().into(),
            envs: &[],
            hosts_file: Some(Path::new("/hosts")),
            termination_log: Some(Path::new("/log")),
            image_volumes: &BTreeMap::new(),
            recursive_read_only: false,
            selinux,
        };
        let made = container_mounts(&pod(Vec::new()), &container, &context).expect("mounts");
        made.iter().map(|mount| mount.selinux_relabel).collect::<Vec<_>>()
    };
    assert_eq!((labeled(true), labeled(false)), (vec![true, false, true, true], vec![false; 4]));
}

#[test]
fn parts_cannot_lead_out_of_a_volume() {
    let scratch = Scratch::new("escape");
    let volume = scratch.0.join("volume");
    std::fs::create_dir_all(&volume).expect("a directory");
    std::fs::create_dir_all(scratch.0.join("outside")).expect("a directory");
    symlink("../outside", volume.join("up")).expect("a link");
    symlink("/etc", volume.join("absolute")).expect("a link");
    symlink("loop", volume.join("loop")).expect("a link");
    symlink("nowhere", volume.join("dangling")).expect("a link");
    let refused = "failed to prepare subPath for volumeMount \"d\" of container \"main\"";
    let not_made = "failed to create subPath directory for volumeMount \"d\" of container \"main\"";
    for (path, told) in [
        ("up", refused),
        ("up/new", not_made),
        ("absolute/passwd", refused),
        ("loop", refused),
        ("dangling/x", not_made),
        ("/etc", "error SubPath `/etc` must not be an absolute path"),
        ("a/../../b", "unable to provision SubPath `a/../../b`: must not contain '..'"),
    ] {
        assert_eq!(mounts(&scratch, &volume, part(path)).expect_err(path).to_string(), told);
    }
    assert!(!scratch.0.join("outside/new").exists());
    let nowhere = scratch.0.join("nowhere");
    let told = format!("stat {}: no such file or directory", nowhere.display());
    assert_eq!(mounts(&scratch, &nowhere, part("a")).expect_err("no volume").to_string(), told);
    let unset = VolumeMount { sub_path_expr: "$(NO)/$(EMPTY)/$$(X)".into(), ..part("") };
    assert_eq!(mounts(&scratch, &volume, unset).expect_err("unset").to_string(), "missing value for EMPTY, NO");
}

#[test]
fn mounts_take_propagation_and_read_only() {
    let scratch = Scratch::new("mounts");
    let both =
        VolumeMount { mount_propagation: Some("Bidirectional".into()), mount_path: "rel//x/".into(), ..part("") };
    let made = mounts(&scratch, &scratch.0, both).expect("mounts");
    assert_eq!((made[0].propagation, made[0].container_path.as_str()), (2, "/rel/x"));
    let recursive = VolumeMount { recursive_read_only: Some("Enabled".into()), read_only: true, ..part("") };
    let told = "failed to resolve recursive read-only mode: volume \"d\" requested recursive read-only mode, but it is not \
                supported by the runtime";
    assert_eq!(mounts(&scratch, &scratch.0, recursive).expect_err("it cannot").to_string(), told);
    let unknown = VolumeMount { name: "x".into(), ..part("") };
    let error = mounts(&scratch, &scratch.0, unknown).expect_err("no such volume").to_string();
    assert_eq!(error, "cannot find volume \"x\" to mount into container \"main\"");
}

/// Its plugin is known, and off: that used to be told as if there were none.
#[tokio::test]
async fn repositories_are_not_cloned_any_more() {
    let scratch = Scratch::new("git");
    let git =
        proto::api::core::v1::GitRepoVolumeSource { repository: "https://example.com/a".into(), ..Default::default() };
    let pod = pod(vec![("v", VolumeSource { git_repo: Some(git), ..Default::default() })]);
    let told = told(&manager(&scratch.0, &Arc::default()), &pod).await;
    let wanted = "MountVolume.SetUp failed for volume \"v\" : git-repo volume plugin has been disabled; if necessary, it may \
                  be re-enabled by enabling the feature-gate `GitRepoVolumeDriver`";
    assert_eq!(told, wanted);
}

/// Without the mount table only what is memory, or empty, may go: anything else may be somebody's disk.
#[test]
fn memory_goes_without_the_mount_table_and_what_holds_something_stays() {
    let scratch = Scratch::new("memory-goes");
    let folder = scratch.0.join("volumes");
    let place = |plugin: &str, name: &str| folder.join(plugin).join(name);
    let empty = place("kubernetes.io~empty-dir", "empty");
    let full = place("kubernetes.io~empty-dir", "full");
    let foreign = place("kubernetes.io~csi", "disk");
    let token = place("kubernetes.io~projected", "token");
    for path in [&empty, &full, &foreign, &token] {
        std::fs::create_dir_all(path).unwrap();
    }
    std::fs::write(full.join("file"), "kept").unwrap();
    let mounts = empty_dir::mount_memory(&token, None).is_ok();
    if mounts {
        std::fs::write(token.join("token"), "secret").unwrap();
    }
    remove_memory(&folder);
    assert_eq!([&empty, &full, &foreign, &token].map(|path| path.exists()), [false, true, true, false]);
    assert_eq!(std::fs::read_to_string(full.join("file")).unwrap(), "kept");
    // A mount in a volume is found in the table, and gone before anything of it could be removed.
    let inner = full.join("inner");
    std::fs::create_dir_all(&inner).unwrap();
    if mounts {
        empty_dir::mount_memory(&inner, None).unwrap();
        remove_memory(&folder);
        assert!(mount_table::is_own_file_system(&inner));
    }
    remove_below(&folder).unwrap();
    assert!(!folder.exists());
}

/// A container may mount a disk of the net over its volume, and the server be gone when the pod ends: to ask such a file
/// system for anything waits for good. Here it is one that nobody serves.
#[test]
fn a_volume_that_does_not_answer_any_more_is_taken_away_without_asking_it() {
    use std::os::fd::AsRawFd as _;
    let scratch = Scratch::new("dead-volume");
    let folder = scratch.0.join("volumes");
    let dead = folder.join("kubernetes.io~empty-dir").join("dead");
    std::fs::create_dir_all(&dead).unwrap();
    let Ok(served) = std::fs::OpenOptions::new().read(true).write(true).open("/dev/fuse") else { return };
    let options = format!("fd={},rootmode=40000,user_id=0,group_id=0", served.as_raw_fd());
    let flags = nix::mount::MsFlags::empty();
    if nix::mount::mount(Some("dead"), &dead, Some("fuse"), flags, Some(options.as_str())).is_err() {
        return;
    }
    let (done, removed) = std::sync::mpsc::channel();
    let below = folder.clone();
    // Nobody waits for one that hangs; what it waits for ends with the file.
    std::thread::spawn(move || done.send(remove_below(&below)));
    let removed = removed.recv_timeout(std::time::Duration::from_secs(10));
    drop(served);
    assert_eq!(removed, Ok(Ok(())));
    assert!(!folder.exists());
}
