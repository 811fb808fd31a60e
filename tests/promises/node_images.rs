//! Images come when the policy of a container asks for them, and their lack is told and waited for.

use anyhow::{Result, ensure};
use serde_json::{Value, json};
use tests::node::IMAGE;
use tests::pods::{Pods, container};

const REASONS: [(&str, &str, &str, &str); 3] = [
    ("never", "localhost/later:1", "Never", "ErrImageNeverPull"),
    // Nobody listens there.
    ("away", "127.0.0.1:1/team/app:1", "IfNotPresent", "ImagePullBackOff"),
    ("broken", "team/UPPER", "IfNotPresent", "InvalidImageName"),
];

fn waiting(status: &Value) -> &Value {
    &container(status, "main")["state"]["waiting"]
}

#[test]
fn images_are_pulled_as_the_policy_says_and_waited_for() -> Result<()> {
    if tests::no_node() {
        return Ok(());
    }
    let pods = Pods::start("images", "")?;
    for (name, image, policy, _) in REASONS {
        let main = Pods::shell("exec sleep 1000", &json!({"image": image, "imagePullPolicy": policy}));
        pods.create(name, &json!({"containers": [main]}))?;
    }
    for (name, image, _, reason) in REASONS {
        let status = pods.wait(name, reason, |s| waiting(s)["reason"] == reason)?;
        ensure!(status["phase"] == "Pending", "{status:#}");
        if name == "never" {
            let message = format!("Container image {image:?} is not present with pull policy of Never");
            ensure!(waiting(&status)["message"] == message, "{status:#}");
        }
    }
    let failed = pods.events("away", "Failed")?;
    ensure!(failed.iter().any(|m| m.starts_with("Failed to pull image \"127.0.0.1:1/team/app:1\": ")), "{failed:?}");
    ensure!(!pods.events("away", "BackOff")?.is_empty(), "the back-off is told");
    ensure!(pods.events("never", "Pulling")?.is_empty(), "nothing is pulled against the policy");

    // What is there is used, also where the registry is not.
    let said = pods.said("there", "echo here", &json!({"imagePullPolicy": "IfNotPresent"}), &json!({}))?;
    ensure!(said == "here\n", "{said}");
    let told = pods.events("there", "Pulled")?;
    ensure!(
        told.iter().any(|m| m.starts_with(&format!("Container image {IMAGE:?} already present on machine"))),
        "{told:?}"
    );

    // Once the image is there, the pod that waits for it begins.
    pods.node.ctr(&["images", "tag", IMAGE, "localhost/later:1"])?;
    let status = pods.wait_phase("never", "Running")?;
    let main = container(&status, "main");
    ensure!(
        main["imageID"].as_str().is_some_and(|id| id.contains("sha256:")) && main["restartCount"] == 0,
        "{status:#}"
    );

    // The node says which images it has.
    pods.node.wait_until("the node tells of its images", std::time::Duration::from_secs(50), || {
        let node = pods.server.get("node", &pods.node.name)?;
        let images = node["status"]["images"].as_array().cloned().unwrap_or_default();
        let named = |name: &str| {
            images.iter().any(|i| {
                i["names"].as_array().is_some_and(|n| n.iter().any(|n| n == name)) && i["sizeBytes"].as_u64() > Some(0)
            })
        };
        Ok(named(IMAGE) && named("localhost/later:1"))
    })
}
