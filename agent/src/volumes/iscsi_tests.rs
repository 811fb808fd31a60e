//! The rules of logging in and out with a stand-in for `iscsiadm` that writes down what it is asked, because a target and
//! the kernel's initiator cannot be had everywhere; the disk behind it, its file system and the mounts are real.

use std::os::unix::fs::PermissionsExt as _;
use std::process::Command;

use super::*;

struct World {
    dir: PathBuf,
    initiator: Initiator,
    /// A real disk, where this machine lets a test have one.
    device: Option<String>,
}

impl World {
    fn new(name: &str) -> World {
        let dir = std::env::temp_dir().join(format!("iscsi-{name}-{}", std::process::id()));
        let _ = mount_table::unmount_below(&dir);
        let _ = std::fs::remove_dir_all(&dir);
        std::fs::create_dir_all(dir.join("by-path")).unwrap();
        let image = dir.join("image");
        std::fs::File::create(&image).unwrap().set_len(32 << 20).unwrap();
        let made = Command::new("losetup").args(["--find", "--show"]).arg(&image).output();
        let made = made.ok().filter(|output| output.status.success());
        let device = made.map(|output| String::from_utf8_lossy(&output.stdout).trim().to_owned());
        let tool = dir.join("iscsiadm");
        let script = format!(
            "#!/bin/sh\necho \"$*\" >>{0}/asked\ncase \"$*\" in\n\
             *'-p 10.0.0.1:3260'*--login) echo refused >&2; exit 8;;\n\
             *--login) ln -sf {1} \"{0}/by-path/ip-10.0.0.2:3260-iscsi-iqn.x:t-lun-3\";;\n\
             *--logout) rm -f {0}/by-path/*;;\n\
             *'-o show') echo 'iface.transport_name = tcp';;\nesac\n",
            dir.display(),
            device.as_deref().unwrap_or("/dev/null")
        );
        std::fs::write(&tool, script).unwrap();
        std::fs::set_permissions(&tool, std::fs::Permissions::from_mode(0o755)).unwrap();
        let initiator = Initiator::with(&dir.join("root"), tool, dir.join("by-path"));
        World { dir, initiator, device }
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
}

impl Drop for World {
    fn drop(&mut self) {
        let _ = mount_table::unmount_below(&self.dir);
        if let Some(device) = &self.device {
            let _ = Command::new("losetup").args(["--detach", device]).output();
        }
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}

fn disk() -> Disk {
    let source = IscsiVolumeSource {
        target_portal: "10.0.0.1".into(),
        portals: vec!["10.0.0.2:3260".into()],
        iqn: "iqn.x:t".into(),
        lun: 3,
        chap_auth_session: true,
        ..Default::default()
    };
    let secret = [("node.session.auth.username".to_owned(), "me".to_owned()), ("other".to_owned(), "x".to_owned())];
    Disk { secret: secret.into(), ..Disk::of_pod("data", &source) }
}

#[tokio::test]
async fn a_disk_is_logged_in_to_where_a_portal_answers() {
    let world = World::new("login");
    let found = world.initiator.attach(&disk()).await.unwrap();
    assert_eq!(found, Path::new(world.device.as_deref().unwrap_or("/dev/null")));
    let second = "-p 10.0.0.2:3260";
    let asked = world.asked();
    assert_eq!(asked[0], "-m iface -I default -o show");
    assert_eq!(asked[1], "-m discoverydb -t sendtargets -p 10.0.0.1:3260 -I default --discover");
    let mine: Vec<&str> = asked.iter().filter(|line| line.contains(second)).map(String::as_str).collect();
    let node = "-m node -p 10.0.0.2:3260 -T iqn.x:t -I default";
    assert_eq!(
        mine,
        [
            "-m discoverydb -t sendtargets -p 10.0.0.2:3260 -I default --discover",
            &format!("{node} -o update -n node.session.auth.authmethod -v CHAP"),
            &format!("{node} -o update -n node.session.auth.username -v me"),
            &format!("{node} --login"),
            "-m node -p 10.0.0.2:3260 -T iqn.x:t -o update -n node.startup -v manual",
        ]
    );
    let nowhere = Disk { portals: vec!["10.0.0.1:3260".into()], ..disk() };
    let why = world.initiator.attach(&nowhere).await.unwrap_err();
    assert!(why.contains("failed to attach disk: refused (exit status 8)"), "{why}");
}

#[tokio::test]
async fn an_initiator_name_of_its_own_gets_an_interface_of_its_own() {
    let world = World::new("interface");
    let source = IscsiVolumeSource {
        target_portal: "10.0.0.2".into(),
        iqn: "iqn.x:t".into(),
        lun: 3,
        initiator_name: Some("iqn.me".into()),
        ..Default::default()
    };
    world.initiator.attach(&Disk::of_pod("v", &source)).await.unwrap();
    let asked = world.asked();
    assert_eq!(asked[0], "-m iface -I 10.0.0.2:3260:v -o new");
    assert_eq!(asked[1], "-m iface -I 10.0.0.2:3260:v -o update -n iface.initiatorname -v iqn.me");
    assert!(asked.iter().any(|line| line.ends_with("-I 10.0.0.2:3260:v --login")), "{asked:?}");
}

#[tokio::test]
async fn pods_share_a_disk_and_the_last_one_logs_out() {
    let world = World::new("share");
    if world.device.is_none() {
        eprintln!("skipped: no loop device can be had");
        return;
    }
    let (one, two) = (world.of_pod("one"), world.of_pod("two"));
    assert!(world.initiator.give(&disk(), &one, false).await.unwrap());
    std::fs::write(one.join("kept"), "yes").unwrap();
    assert!(!world.initiator.give(&disk(), &one, false).await.unwrap(), "it has it already");
    let logins = |asked: Vec<String>| asked.iter().filter(|line| line.ends_with("--login")).count();
    assert_eq!(logins(world.asked()), 2, "one portal refused, one took it");
    // As after a restart of the agent: nothing is known but what is mounted.
    let again = Initiator::with(&world.dir.join("root"), world.dir.join("iscsiadm"), world.dir.join("by-path"));
    again.give(&disk(), &two, true).await.unwrap();
    assert_eq!(logins(world.asked()), 0, "the disk is there");
    assert_eq!(std::fs::read_to_string(two.join("kept")).unwrap(), "yes");
    assert!(std::fs::write(two.join("kept"), "no").is_err(), "read-only");
    mount_table::unmount_below(&one).unwrap();
    again.clear(true).await.unwrap();
    assert!(world.asked().is_empty(), "the other pod has it still");
    mount_table::unmount_below(&two).unwrap();
    again.clear(true).await.unwrap();
    let asked = world.asked();
    assert_eq!(asked.iter().filter(|line| line.ends_with("--logout")).count(), 2, "{asked:?}");
    assert!(staged_below(&again.all()).is_empty());
    // What was written is there when the disk comes back; it is not made anew.
    again.give(&disk(), &one, false).await.unwrap();
    assert_eq!(std::fs::read_to_string(one.join("kept")).unwrap(), "yes");
    mount_table::unmount_below(&world.dir.join("root")).unwrap();
    let other = Disk { how: How { fs_type: "xfs".into(), ..How::default() }, ..disk() };
    let why = again.give(&other, &one, false).await.unwrap_err();
    assert_eq!(why, "failed to mount the volume as \"xfs\", it already contains ext4");
}
