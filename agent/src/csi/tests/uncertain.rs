//! Volumes that a driver gave and did not say so.

use nix::mount::{MsFlags, mount};

use super::*;
use crate::volumes::mount_table;

fn broken() -> Status {
    Status::internal("broken")
}

fn refused<T>() -> Result<T, Failure> {
    Err(Failure::SetUp("rpc error: code = Internal desc = broken".into()))
}

fn mounts(target: &Path) -> Result<(), Status> {
    std::fs::create_dir_all(target)?;
    if mount_table::is_mount_point(target) == Ok(false) {
        // Without the right to mount there is nothing to be seen.
        let _ = mount(Some("tmpfs"), target, Some("tmpfs"), MsFlags::empty(), None::<&str>);
    }
    Ok(())
}

fn mounts_and_fails(target: &Path) -> Result<(), Status> {
    mounts(target)?;
    Err(broken())
}

/// A driver that had mounted a volume before it failed was asked once more, and whatever it said then the pod was
/// started with what there was: a file and a mount, as of a volume from an earlier run of the agent.
#[tokio::test]
async fn a_volume_is_had_once_its_driver_has_said_so() {
    let world = World::new("uncertain", plain());
    let (pod, volume) = (pod("u1"), volume(false));
    let target = world.root.join("pods/u1/volumes/kubernetes.io~csi/pv/mount");
    // Each time another run of the agent.
    let set_up = async |publishes: Publishes| {
        *world.book.publishes.lock().unwrap() = Some(publishes);
        world.volumes().set_up(&wanted(&pod, &volume)).await
    };
    assert_eq!(set_up(mounts_and_fails).await, refused());
    if mount_table::is_mount_point(&target) != Ok(true) {
        eprintln!("skipped: no right to mount");
        return world.end();
    }
    assert_eq!(set_up(mounts_and_fails).await, refused());
    assert_eq!(set_up(mounts).await, Ok(target.clone()));
    assert_eq!(set_up(mounts_and_fails).await, Ok(target.clone()), "what the pod has it keeps");
    world.volumes().tear_down("u1").await.unwrap();
    assert!(!target.exists());
    world.end();
}

fn makes_device(target: &Path) -> Result<(), Status> {
    if !target.exists() {
        let _ = std::process::Command::new("mknod").arg(target).args(["b", "7", "0"]).output();
    }
    Ok(())
}

fn makes_device_and_fails(target: &Path) -> Result<(), Status> {
    makes_device(target)?;
    Err(broken())
}

/// The same with a device; and after a start of the machine a pod was given the file to which the device had been
/// bound.
#[tokio::test]
async fn a_device_is_had_once_its_driver_has_said_so() {
    let world = World::new("uncertain-block", plain());
    let (pod, volume) = (pod("u1"), volume(true));
    let blocks = world.root.join("plugins/kubernetes.io/csi/volumeDevices");
    let (target, uncertain) = (blocks.join("publish/pv/u1"), blocks.join("pv/uncertain"));
    let link = world.root.join("pods/u1/volumeDevices/kubernetes.io~csi/pv");
    let set_up = async |publishes: Publishes| {
        *world.book.publishes.lock().unwrap() = Some(publishes);
        world.volumes().set_up_block(&wanted(&pod, &volume)).await
    };
    assert_eq!(set_up(makes_device_and_fails).await, refused());
    if !target.exists() {
        eprintln!("skipped: no right to make a device");
        return world.end();
    }
    assert_eq!(set_up(makes_device_and_fails).await, refused());
    assert!(uncertain.join("u1").exists());
    assert_eq!(set_up(makes_device).await, Ok(link.clone()));
    assert!(!uncertain.exists());
    assert_eq!(set_up(makes_device_and_fails).await, Ok(link.clone()), "what the pod has it keeps");
    std::fs::remove_file(&target).unwrap();
    std::fs::write(&target, "").unwrap();
    assert_eq!(set_up(makes_device_and_fails).await, refused());
    world.volumes().tear_down("u1").await.unwrap();
    assert!(!target.exists() && !blocks.join("pv").exists());
    world.end();
}
