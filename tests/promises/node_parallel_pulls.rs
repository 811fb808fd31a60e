//! As many images are pulled at once as the configuration says, and no more: seen by what the registry is asked for while
//! it answers nothing.

use std::time::Duration;

use anyhow::{Result, ensure};
use nix::sys::signal::Signal;
use serde_json::json;
use tests::pods::Pods;
use tests::registry::{HOST, Registry};

const ALL: [&str; 4] = ["a", "b", "c", "d"];

/// Pods whose images are held: `most` of them are asked for at once, and one more whenever one is there.
fn pulled(pods: &Pods, registry: &Registry, way: &str, most: usize) -> Result<()> {
    let pod = |name: &str| format!("{way}-{name}");
    for name in ALL {
        let image = format!("{HOST}/held/{}:1", pod(name));
        let main = Pods::shell("exec sleep 1000", &json!({"image": image, "imagePullPolicy": "Always"}));
        pods.create(&pod(name), &json!({"containers": [main]}))?;
    }
    // Each says that it pulls before it waits for its turn.
    for name in ALL {
        pods.told(&pod(name), "Pulling")?;
    }
    for there in 0..ALL.len() {
        let wanted = most.min(ALL.len() - there);
        let what = format!("{way}: {wanted} images are asked for at once, with {there} there");
        pods.node.wait_until(&what, Duration::from_secs(30), || Ok(registry.held().len() == wanted))?;
        let Some(next) = registry.held().pop_first() else { continue };
        registry.let_go(&next);
        pods.wait_phase(next.trim_start_matches("held/"), "Running")?;
    }
    let seen = registry.most_held();
    ensure!(seen == most.min(ALL.len()), "{way}: {seen} images were asked for at once, not {most}");
    Ok(())
}

#[test]
fn as_many_images_are_pulled_at_once_as_the_configuration_says() -> Result<()> {
    if tests::no_node() {
        return Ok(());
    }
    // Without a word they are pulled one by one.
    let mut pods = Pods::start("parallel-pulls", "")?;
    let registry = Registry::start(&pods.node.dir.join("images/busybox.tar"), &pods.node.dir.join("registry"))?;
    registry.announce(&pods.node.dir.join("certs.d"))?;
    pulled(&pods, &registry, "serial", 1)?;
    for (way, settings, most) in [
        ("limited", "serializeImagePulls: false\nmaxParallelImagePulls: 2", 2),
        ("parallel", "serializeImagePulls: false", usize::MAX),
    ] {
        pods.node.end_agent(Signal::SIGTERM);
        pods.node.settle(&pods.server, settings)?;
        pods.node.start_agent()?;
        pulled(&pods, &registry, way, most)?;
    }
    Ok(())
}
