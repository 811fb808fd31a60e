//! The rules of logging in and out with a stand-in for `iscsiadm` that writes down what it is asked and keeps a `/sys` of
//! sessions, because a target and the kernel's initiator cannot be had everywhere; the disks, their file systems and the
//! mounts are real.

use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
use std::process::Command;

use super::*;

/// What it is asked is kept in `asked`. Portal 10.0.0.1 refuses; a file `stuck-IQN` keeps the session of a target.
const TOOL: &str = r#"#!/bin/sh
d=$(dirname "$0")
echo "$*" >>$d/asked
last=
for word in "$@"; do
    case $last in
    -p) portal=$word ;;
    -T) iqn=$word ;;
    -I) interface=$word ;;
    esac
    last=$word
done
s=$d/sys/devices/host5/session-$iqn
case "$*" in
*--login)
    case $portal in 10.0.0.1:3260) echo refused >&2; exit 8 ;; esac
    mkdir -p $s/iscsi_session/session1 $s/connection1:0/iscsi_connection/connection1:0
    mkdir -p $d/sys/class/iscsi_session $d/sys/class/scsi_host/host5
    echo $iqn >$s/iscsi_session/session1/targetname
    echo $interface >$s/iscsi_session/session1/ifacename
    echo ${portal%:*} >$s/connection1:0/iscsi_connection/connection1:0/address
    echo ${portal##*:} >$s/connection1:0/iscsi_connection/connection1:0/port
    ln -sfn $s/iscsi_session/session1 $d/sys/class/iscsi_session/session-$iqn
    while read -r of lun device; do
        [ "$of" = "$iqn" ] || continue
        mkdir -p $s/target5:0:0/5:0:0:$lun/block/$device
        ln -sf /dev/$device "$d/by-path/ip-$portal-iscsi-$iqn-lun-$lun"
    done <$d/luns
    ;;
*--logout)
    [ -e $d/stuck-$iqn ] && { echo busy >&2; exit 9; }
    case $portal in 10.0.0.1:3260) exit 21 ;; esac
    rm -rf $s $d/sys/class/iscsi_session/session-$iqn $d/by-path/*-iscsi-$iqn-lun-*
    ;;
*'-o show')
    echo '# BEGIN RECORD'
    echo 'iface.iscsi_ifacename = default'
    echo 'iface.transport_name = tcp'
    echo 'iface.mtu = 9000'
    echo 'iface.hwaddress = <empty>'
    echo 'iface.initiatorname = iqn.machine'
    ;;
esac
"#;

struct World {
    dir: PathBuf,
    initiator: Arc<Initiator>,
    /// Real disks, where this machine lets a test have them.
    devices: Vec<String>,
}

fn initiator(dir: &Path) -> Initiator {
    Initiator {
        tool: dir.join("iscsiadm"),
        by_path: dir.join("by-path"),
        sys: dir.join("sys"),
        ..Initiator::new(&dir.join("root"))
    }
}

fn loop_device(image: &Path) -> Option<String> {
    std::fs::File::create(image).unwrap().set_len(32 << 20).unwrap();
    let made = Command::new("losetup").args(["--find", "--show"]).arg(image).output();
    let made = made.ok().filter(|output| output.status.success());
    made.map(|output| String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

impl World {
    /// With that many disks: LUN 3 and 4 of `iqn.x:t`, LUN 3 of `iqn.y:u`.
    fn new(name: &str, disks: usize) -> World {
        let dir = std::env::temp_dir().join(format!("iscsi-{name}-{}", std::process::id()));
        let _ = mount_table::unmount_below(&dir);
        let _ = std::fs::remove_dir_all(&dir);
        std::fs::create_dir_all(dir.join("by-path")).unwrap();
        let devices: Vec<String> = (0..disks).filter_map(|n| loop_device(&dir.join(format!("image-{n}")))).collect();
        let name = |n: usize| devices.get(n).map_or("null", |path| path.trim_start_matches("/dev/"));
        let luns = format!("iqn.x:t 3 {}\niqn.x:t 4 {}\niqn.y:u 3 {}\n", name(0), name(1), name(2));
        std::fs::write(dir.join("luns"), luns).unwrap();
        std::fs::create_dir_all(dir.join("sys/class/scsi_host/host5")).unwrap();
        let tool = dir.join("iscsiadm");
        std::fs::write(&tool, TOOL).unwrap();
        std::fs::set_permissions(&tool, std::fs::Permissions::from_mode(0o755)).unwrap();
        World { initiator: Arc::new(initiator(&dir)), dir, devices }
    }

    fn has(&self, disks: usize) -> bool {
        if self.devices.len() < disks {
            eprintln!("skipped: no loop device can be had");
        }
        self.devices.len() >= disks
    }

    /// What the tool was asked since the last time.
    fn asked(&self) -> Vec<String> {
        let path = self.dir.join("asked");
        let text = std::fs::read_to_string(&path).unwrap_or_default();
        let _ = std::fs::remove_file(path);
        text.lines().map(str::to_owned).collect()
    }

    fn of_pod(&self, uid: &str) -> PathBuf {
        self.dir.join("root/pods").join(uid).join("volumes/kubernetes.io~iscsi/data")
    }

    async fn give(&self, disk: Disk, uid: &str, read_only: bool) -> PathBuf {
        let staged = self.initiator.stage(disk).await.unwrap();
        let to = self.of_pod(uid);
        disk::bind(&staged.path, &to, read_only).unwrap();
        to
    }

    fn staged(&self) -> usize {
        record::staged_below(&self.initiator.all()).unwrap().len()
    }

    fn session(&self, iqn: &str) -> usize {
        sysfs::sessions(&self.initiator.sys, iqn).unwrap().len()
    }

    fn deleted(&self, iqn: &str, lun: u64) -> bool {
        let lun = format!("sys/devices/host5/session-{iqn}/target5:0:0/5:0:0:{lun}/delete");
        std::fs::read_to_string(self.dir.join(lun)).is_ok_and(|text| text == "1")
    }
}

impl Drop for World {
    fn drop(&mut self) {
        let _ = mount_table::unmount_below(&self.dir);
        for device in &self.devices {
            let _ = Command::new("losetup").args(["--detach", device]).output();
        }
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}

fn source() -> IscsiVolumeSource {
    IscsiVolumeSource {
        target_portal: "10.0.0.1".into(),
        portals: vec!["10.0.0.2:3260".into()],
        iqn: "iqn.x:t".into(),
        lun: 3,
        chap_auth_session: true,
        ..Default::default()
    }
}

fn disk() -> Disk {
    let secret = [("node.session.auth.username".to_owned(), "me".to_owned()), ("other".to_owned(), "x".to_owned())];
    Disk { secret: secret.into(), ..Disk::of_pod("data", &source()) }
}

fn ends(asked: &[String], end: &str) -> usize {
    asked.iter().filter(|line| line.ends_with(end)).count()
}

#[tokio::test]
async fn a_disk_is_logged_in_to_where_a_portal_answers() {
    let world = World::new("login", 0);
    assert_eq!(world.initiator.attach(&disk()).await.unwrap(), Path::new("/dev/null"));
    let asked = world.asked();
    assert_eq!(asked[0], "-m iface -I default -o show");
    let of = |portal: &str| {
        let words = format!("-p {portal}");
        asked.iter().filter(|line| line.contains(&words)).cloned().collect::<Vec<_>>()
    };
    let node = "-m node -p 10.0.0.2:3260 -T iqn.x:t -I default";
    assert_eq!(
        of("10.0.0.2:3260"),
        [
            "-m discoverydb -t sendtargets -p 10.0.0.2:3260 -I default --discover",
            &format!("{node} -o update -n node.session.auth.authmethod -v CHAP"),
            &format!("{node} -o update -n node.session.auth.username -v me"),
            &format!("{node} -o update -n node.session.scan -v manual"),
            &format!("{node} --login"),
            "-m node -p 10.0.0.2:3260 -T iqn.x:t -o update -n node.startup -v manual",
        ]
    );
    let refused = of("10.0.0.1:3260");
    assert!(refused.last().unwrap().ends_with("-I default -o delete"), "{refused:?}");
    let scanned = std::fs::read_to_string(world.dir.join("sys/class/scsi_host/host5/scan")).unwrap();
    assert_eq!(scanned, "0 0 3", "that disk alone");
    let nowhere = Disk { portals: vec!["10.0.0.1:3260".into()], ..disk() };
    let why = world.initiator.attach(&nowhere).await.unwrap_err();
    assert!(why.contains("failed to attach disk: refused (exit status 8)"), "{why}");
}

#[tokio::test]
async fn every_portal_is_logged_in_to_and_what_joins_the_paths_is_used() {
    let world = World::new("paths", 0);
    let block = world.dir.join("sys/class/block");
    std::fs::create_dir_all(block.join("null/holders/dm-7")).unwrap();
    std::fs::create_dir_all(block.join("dm-7/dm")).unwrap();
    let two = Disk { portals: vec!["10.0.0.2:3260".into(), "10.0.0.3:3260".into()], ..disk() };
    // Something else than multipath may hold a disk.
    std::fs::write(block.join("dm-7/dm/uuid"), "LVM-x\n").unwrap();
    assert_eq!(world.initiator.attach(&two).await.unwrap(), Path::new("/dev/null"));
    assert_eq!(ends(&world.asked(), "--login"), 2);
    std::fs::write(block.join("dm-7/dm/uuid"), "mpath-x\n").unwrap();
    assert_eq!(world.initiator.attach(&two).await.unwrap(), Path::new("/dev/dm-7"));
}

#[tokio::test]
async fn an_initiator_name_of_its_own_gets_an_interface_of_its_own() {
    let world = World::new("interface", 0);
    let named = |portal: &str| IscsiVolumeSource {
        target_portal: portal.into(),
        portals: Vec::new(),
        iscsi_interface: "fast".into(),
        initiator_name: Some("iqn.me".into()),
        ..source()
    };
    world.initiator.attach(&Disk::of_pod("v", &named("10.0.0.2"))).await.unwrap();
    let asked = world.asked();
    let update = "-m iface -I 10.0.0.2:3260:v -o update -n iface";
    assert_eq!(
        asked[..5],
        [
            "-m iface -I fast -o show",
            "-m iface -I 10.0.0.2:3260:v -o new",
            &format!("{update}.transport_name -v tcp"),
            &format!("{update}.mtu -v 9000"),
            &format!("{update}.initiatorname -v iqn.me"),
        ]
    );
    assert_eq!(ends(&asked, "-I 10.0.0.2:3260:v --login"), 1, "{asked:?}");
    world.initiator.attach(&Disk::of_pod("v", &named("10.0.0.1"))).await.unwrap_err();
    assert_eq!(world.asked().last().unwrap(), "-m iface -I 10.0.0.1:3260:v -o delete");
}

#[tokio::test]
async fn names_that_lead_elsewhere_are_refused_before_anything_is_done() {
    let world = World::new("names", 0);
    let bad = [
        IscsiVolumeSource { iscsi_interface: "../../x".into(), ..source() },
        IscsiVolumeSource { iqn: "iqn/../../x".into(), ..source() },
        IscsiVolumeSource { iqn: String::new(), ..source() },
        IscsiVolumeSource { target_portal: "../10.0.0.1".into(), ..source() },
        IscsiVolumeSource { portals: vec!["10.0.0.2/x".into()], ..source() },
        IscsiVolumeSource { target_portal: String::new(), ..source() },
        IscsiVolumeSource { initiator_name: Some("a\nnode.startup = automatic".into()), ..source() },
    ];
    for source in bad {
        let why = world.initiator.stage(Disk::of_pod("v", &source)).await.map(|staged| staged.path).unwrap_err();
        assert!(why.starts_with("iscsi: invalid "), "{why}");
    }
    assert!(world.asked().is_empty() && !world.dir.join("root").exists());
    assert!(!format!("{:?}", disk()).contains("me"), "no credentials in logs");
}

#[tokio::test]
async fn pods_share_a_disk_and_the_last_one_logs_out() {
    let mut world = World::new("share", 1);
    if !world.has(1) {
        return;
    }
    let one = world.give(disk(), "one", false).await;
    std::fs::write(one.join("kept"), "yes").unwrap();
    assert_eq!(ends(&world.asked(), "--login"), 2, "one portal refused, one took it");
    // As after a restart of the agent: nothing is known but what is mounted.
    world.initiator = Arc::new(initiator(&world.dir));
    let two = world.give(disk(), "two", true).await;
    assert_eq!(ends(&world.asked(), "--login"), 0, "the disk is there");
    assert_eq!(std::fs::read_to_string(two.join("kept")).unwrap(), "yes");
    assert!(std::fs::write(two.join("kept"), "no").is_err(), "read-only");
    mount_table::unmount_below(&one).unwrap();
    assert!(world.initiator.clear().await);
    assert!(world.asked().is_empty(), "the other pod has it still");
    mount_table::unmount_below(&two).unwrap();
    assert!(world.initiator.clear().await);
    let asked = world.asked();
    assert_eq!(ends(&asked, "--logout"), 2, "{asked:?}");
    assert_eq!((world.staged(), world.session("iqn.x:t")), (0, 0));
    // What was written is there when the disk comes back; it is not made anew.
    world.give(disk(), "one", false).await;
    assert_eq!(std::fs::read_to_string(one.join("kept")).unwrap(), "yes");
    mount_table::unmount_below(&world.dir.join("root")).unwrap();
    let other = Disk { how: How { fs_type: "xfs".into(), ..How::default() }, ..disk() };
    let why = world.initiator.stage(other).await.map(|staged| staged.path).unwrap_err();
    assert!(why.starts_with("failed to mount the volume as \"xfs\", it already contains ext4. Mount error: "), "{why}");
}

#[tokio::test]
async fn a_session_stays_while_another_disk_of_its_target_is_in_use() {
    let world = World::new("target", 2);
    if !world.has(2) {
        return;
    }
    // Both come by the second portal, the first is down.
    let three = world.give(disk(), "three", false).await;
    let four = world.give(Disk { lun: 4, ..disk() }, "four", false).await;
    world.asked();
    mount_table::unmount_below(&three).unwrap();
    assert!(world.initiator.clear().await);
    assert!(world.asked().is_empty(), "nothing is logged out of");
    assert_eq!((world.staged(), world.session("iqn.x:t")), (1, 1));
    assert!(world.deleted("iqn.x:t", 3) && !world.deleted("iqn.x:t", 4), "the kernel forgets the one disk");
    std::fs::write(four.join("written"), "yes").unwrap();
    mount_table::unmount_below(&four).unwrap();
    assert!(world.initiator.clear().await);
    assert_eq!((world.staged(), world.session("iqn.x:t")), (0, 0));
}

#[tokio::test]
async fn a_disk_that_cannot_be_logged_out_of_keeps_no_other() {
    let world = World::new("stuck", 3);
    if !world.has(3) {
        return;
    }
    let stuck = world.give(disk(), "one", false).await;
    let other = world.give(Disk { iqn: "iqn.y:u".into(), ..disk() }, "two", false).await;
    std::fs::write(world.dir.join("stuck-iqn.x:t"), "").unwrap();
    mount_table::unmount_below(&stuck).unwrap();
    mount_table::unmount_below(&other).unwrap();
    assert!(!world.initiator.clear().await, "another try is worth it");
    assert_eq!((world.session("iqn.x:t"), world.session("iqn.y:u"), world.staged()), (1, 0, 1));
    std::fs::remove_file(world.dir.join("stuck-iqn.x:t")).unwrap();
    assert!(world.initiator.clear().await, "the record was kept for this");
    assert_eq!((world.session("iqn.x:t"), world.staged()), (0, 0));
}

#[tokio::test]
async fn a_disk_in_use_keeps_its_session() {
    let world = World::new("busy", 1);
    if !world.has(1) {
        return;
    }
    let pod = world.give(disk(), "one", false).await;
    let staged = world.initiator.all().join(disk().place());
    world.asked();
    let open = std::fs::File::create(staged.join("open")).unwrap();
    mount_table::unmount_below(&pod).unwrap();
    let why = world.initiator.let_go(&staged).await.unwrap_err();
    assert!(why.contains("EBUSY"), "{why}");
    // Out of sight, and still not idle.
    mount_table::unmount_below(&staged).unwrap();
    let why = world.initiator.let_go(&staged).await.unwrap_err();
    assert!(why.ends_with("is in use"), "{why}");
    assert!(world.asked().is_empty() && !world.deleted("iqn.x:t", 3));
    assert_eq!((world.staged(), world.session("iqn.x:t")), (1, 1));
    drop(open);
    assert_eq!(world.initiator.let_go(&staged).await, Ok(true));
    assert_eq!((world.staged(), world.session("iqn.x:t")), (0, 0));
}

#[tokio::test]
async fn a_disk_stays_when_nobody_can_tell_who_has_it() {
    let world = World::new("unreadable", 0);
    let staged = world.initiator.all().join(disk().place());
    record::write(&staged, &Record::of(&disk())).unwrap();
    world.initiator.attach(&disk()).await.unwrap();
    world.asked();
    let blind = Arc::new(Initiator { table: world.dir.join("none"), ..initiator(&world.dir) });
    let why = blind.let_go(&staged).await.unwrap_err();
    assert!(why.starts_with("cannot read the mount table"), "{why}");
    assert!(!blind.clear().await && world.asked().is_empty());
    assert_eq!((world.staged(), world.session("iqn.x:t")), (1, 1));
    // What is not the agent's is not removed either.
    std::fs::write(staged.join("precious"), "").unwrap();
    assert!(!world.initiator.clear().await);
    assert!(staged.join("precious").exists());
}

#[tokio::test]
async fn pods_have_a_disk_as_device_until_the_last_of_them_is_over() {
    let mut world = World::new("raw", 1);
    if !world.has(1) {
        return;
    }
    let root = world.dir.join("root");
    let link = |uid: &str| root.join("pods").join(uid).join("volumeDevices/kubernetes.io~iscsi/data");
    let place = world.initiator.raw_place(&disk());
    for uid in ["one", "two"] {
        let attached = world.initiator.attach_for(disk(), uid).await.unwrap();
        assert_eq!(attached.device, Path::new(&world.devices[0]));
        assert!(!world.initiator.is_given(&disk(), uid, &link(uid)), "it has no link yet");
        crate::volumes::persistent::link(&attached.device, &link(uid)).unwrap();
        assert!(mount_table::is_mount_point(&place.join(uid)).unwrap());
        assert!(world.initiator.is_given(&disk(), uid, &link(uid)));
    }
    // The portal that refused is asked again for the second pod.
    assert_eq!((world.staged(), ends(&world.asked(), "--login")), (1, 3), "one session serves both");
    // As after a restart of the agent: nothing is known but what lies there.
    world.initiator = Arc::new(initiator(&world.dir));
    std::fs::remove_file(link("one")).unwrap();
    assert!(world.initiator.clear().await);
    assert!(world.asked().is_empty() && !place.join("one").exists() && place.join("two").exists());
    std::fs::remove_file(link("two")).unwrap();
    // Somebody else has it mounted.
    let held = std::fs::File::options().read(true).custom_flags(nix::libc::O_EXCL).open(&world.devices[0]).unwrap();
    assert!(!world.initiator.clear().await && world.session("iqn.x:t") == 1, "it is in use");
    drop(held);
    assert!(world.initiator.clear().await);
    assert_eq!((world.staged(), world.session("iqn.x:t")), (0, 0));
    assert!(world.deleted("iqn.x:t", 3) || !world.dir.join("sys/devices/host5/session-iqn.x:t").exists());
    assert!(!place.exists());
}

#[tokio::test]
async fn a_file_system_and_a_device_of_one_target_share_its_session() {
    let world = World::new("mixed", 2);
    if !world.has(2) {
        return;
    }
    let three = world.give(disk(), "three", false).await;
    let four = Disk { lun: 4, ..disk() };
    drop(world.initiator.attach_for(four.clone(), "four").await.unwrap());
    world.asked();
    mount_table::unmount_below(&three).unwrap();
    // The mounted disk goes first; whichever is last ends the session.
    let mounted = world.initiator.all().join(disk().place());
    assert_eq!(world.initiator.let_go(&mounted).await, Ok(true));
    assert!(world.asked().is_empty() && world.session("iqn.x:t") == 1);
    let raw = world.initiator.raw_place(&four);
    assert_eq!(world.initiator.let_go(&raw).await, Ok(true));
    assert_eq!((world.staged(), world.session("iqn.x:t")), (0, 0));
}
