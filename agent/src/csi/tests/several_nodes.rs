//! Volumes that more nodes than this one have.

use super::*;

/// A volume of several nodes grew on the one that was first: the others took it from the claim that it had grown.
#[tokio::test]
async fn a_volume_of_several_nodes_grows_on_each() {
    let world = World::new("nodes", plain());
    let (pod, mut volume) = (pod("u1"), volume(false));
    let volumes = world.volumes();
    volumes.set_up(&wanted(&pod, &volume)).await.unwrap();
    volume.spec.as_mut().unwrap().capacity = sized("1Gi");
    assert_eq!(volumes.expand(&wanted(&pod, &volume), &volume, &mut claim("")).await, Ok(false));
    world.book.take();
    // The claim as the other node leaves it, with a controller of today.
    volume.spec.as_mut().unwrap().capacity = sized("2Gi");
    let mut done = claim("");
    let status = done.status.as_mut().unwrap();
    (status.capacity, status.allocated_resources) = (sized("2Gi"), sized("2Gi"));
    let grow = async || volumes.expand(&wanted(&pod, &volume), &volume, &mut done.clone()).await;
    assert_eq!((grow().await, grow().await), (Ok(true), Ok(false)));
    assert_eq!(world.book.take(), ["expand to 2147483648 pods/u1/volumes/kubernetes.io~csi/pv/mount"]);
    assert!(world.api.patches.lock().unwrap().is_empty(), "the claim shows it");
    let next = world.volumes();
    assert_eq!(next.expand(&wanted(&pod, &volume), &volume, &mut done.clone()).await, Ok(false));
    world.end();
}
